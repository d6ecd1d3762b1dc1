"""The softmax of each row: y = exp(x - max(x)) / sum(exp(x - max(x))).

Three passes over a row: its maximum, the sum of the exponentials, the quotients. The schedules
differ in what becomes of the exponentials in between: a core keeps them in a buffer, a GPU thread
has no room for a row and computes them twice.

    python kernels/softmax.py                        # show it, run it, compare it
    python kernels/softmax.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def softmax_numpy(x):
    e = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=1, keepdims=True)


@ln.kernel(sizes={"N": 4096, "D": 1024}, reference=softmax_numpy)
def softmax(f, dtype=ln.float32):
    x = f.input("x", ("N", "D"), dtype)
    largest = ln.max(x, axis=1, keepdims=True)
    shifted = (x - largest).named("shifted")
    e = ln.exp(shifted).named("e")
    total = ln.sum(e, axis=1, keepdims=True)
    f.output(e / total, "y")
    largest.reduction.named("largest")
    total.reduction.named("total")


@softmax.schedule("gpu")
def gpu(f, threads=128):
    """A thread owns a row.

    `e` feeds a sum and, after it, the quotient: no loop can hold both uses. With `recompute` the
    loop of the sum gets `e`, and the quotient a clone of it; then the same for what `e` reads.
    """
    y, largest, total = f["y"], f["largest"], f["total"]
    y.split(0, threads)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    largest.compute_at(y, 2)
    total.compute_at(y, 2)
    f["e"].compute_at(total, -1, recompute=True)
    f["shifted"].compute_at(f["e"], -1, recompute=True)
    ln.inline_most()


@softmax.schedule("cpu")
def cpu(f, lanes=16):
    """Rows go to the cores; `e` keeps a row in the core's cache.

    Both reductions are factored into `lanes` partial ones side by side, as in row_sum.py.
    """
    y = f["y"]
    partials = []
    for name in ("largest", "total"):
        f[name].split(1, lanes)
        partial = f[name].rfactor(1)
        partial.parallelize({1: ln.ParallelType.unswitch, 2: ln.ParallelType.vectorize})
        partials.append(partial)
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    for tensor in (*partials, f["e"]):
        tensor.compute_at(y, 1)
    ln.inline_most()


if __name__ == "__main__":
    ln.main()
