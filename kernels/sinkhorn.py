"""Sinkhorn's algorithm: the plan of least cost, softened, that moves one mass to each column.

Rows and columns of exp(-cost) are scaled in turn, until they are balanced: a loop that carries the
factors of the columns, and ends when a step changes none of them by more than the tolerance, or
after `S` steps. Rows of the plan sum up to 1 over M, columns to 1 over N.

    python kernels/sinkhorn.py                # show it, run it, compare it
    python kernels/sinkhorn.py dump --stage cuda

Source: Cuturi, "Sinkhorn distances", 2013.
"""

import numpy as np

import loopnest as ln

TOLERANCE = 1e-3


def sinkhorn_numpy(cost, S):
    weights = np.exp(-cost.astype(np.float64))
    columns = np.ones(weights.shape[1])
    for _ in range(S):
        new = 1 / ((1 / (weights @ columns)) @ weights)
        change = np.abs(new / columns - 1).max(initial=-np.inf)
        columns = new
        if change <= TOLERANCE:
            break
    plan = weights * columns
    return plan / plan.sum(1, keepdims=True)


def balance(weights, vector, axis):
    """Return what scales sums over an axis, of products with a vector along it, to 1."""
    products = weights * ln.broadcast(vector, (axis == 1, axis == 0))
    return 1.0 / ln.sum(products, axis=axis)


@ln.kernel(sizes={"N": 256, "M": 256, "S": 100}, reference=sinkhorn_numpy)
def sinkhorn(f):
    cost = f.input("cost", ("N", "M"), ln.float32)
    weights = ln.exp(-cost).named("weights")

    def step(state, _):
        columns, _ = state
        rows = balance(weights, columns.named("before"), 1).named("rows")
        new = balance(weights, rows, 0).named("new")
        return new, ln.max(ln.abs(new / columns - 1.0), axis=0).named("change")

    def balanced(_, change):
        return change <= TOLERANCE

    start = ln.full(("M",), 1.0).named("first"), ln.full((), float("inf"))
    columns, _ = ln.recur(step, start, steps="S", keep="last", until=balanced)
    rows = balance(weights, columns.named("columns"), 1).named("scale")
    f.output(
        weights * ln.broadcast(columns, (True, False)) * ln.broadcast(rows, (False, True)), "plan"
    )


def inline_others(f, *names):
    """Compute in place what is not kept under a name; the weights are computed once."""
    f["weights"].memory = ln.GLOBAL
    kept = [f["weights"], *[f[name] for name in names]]
    f.inline_most([t for t in f.tensors if t not in kept], replay=True)


@sinkhorn.schedule("gpu")
def gpu(f, threads=256):
    """One block: its threads own rows, then columns, and wait for each other."""
    (states,) = [t for t in f["new"].consumers if t.memory is ln.GLOBAL]
    vectors = [f[name] for name in ("first", "before", "rows", "new", "columns", "scale")]
    for tensor in vectors:
        tensor.memory = ln.SHARED
    for tensor in (*vectors, states, f["change"], f["weights"], f["plan"]):
        tensor.split(-1, threads)
        tensor.parallelize({-1: ln.ParallelType.block_x})
    inline_others(f, *[tensor.name for tensor in vectors], "change")


@sinkhorn.schedule("cpu")
def cpu(f):
    """One core: sums of columns go through the weights row by row, as they lie."""
    (sums,) = f["new"].producers
    inline_others(f, "rows", "new", sums.name)


if __name__ == "__main__":
    ln.main()
