"""The largest eigenvalue of a symmetric matrix, by power iteration: v becomes a v / |a v|.

Each of the `S` steps is a product with the matrix and a norm: a loop that carries state. The
eigenvalue is that of the last vector, v' a v.

    python kernels/power_iteration.py                # show it, run it, compare it
    python kernels/power_iteration.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def power_numpy(a, v, S):
    v = v.astype(np.float64)
    for _ in range(S):
        w = a @ v
        v = w / np.sqrt((w * w).sum() + 1e-12)
    return v @ (a @ v)


def times(a, v):
    """Return the product of a matrix and a vector."""
    return ln.sum(a * ln.broadcast(v, (True, False)), axis=1)


def step(a):
    def next_of(v, _):
        w = times(a, v).named("w")
        size = ln.sum(w * w, axis=0).named("size")
        return w * ln.broadcast(ln.rsqrt(size + 1e-12), (True,))

    return next_of


@ln.kernel(sizes={"N": 512, "S": 64}, reference=power_numpy)
def power_iteration(f):
    a = f.input("a", ("N", "N"), ln.float32)
    v = f.input("v", ("N",), ln.float32)
    last = ln.recur(step(a), v, steps="S", keep="last").named("last")
    f.output(ln.sum(last * times(a, last).named("image"), axis=0), "value")


@power_iteration.schedule("gpu")
def gpu(f, threads=256):
    """One block: its threads own rows of the product, add up the norm, and wait for each other."""
    states = f["last"].producers[1]
    w, size, value = f["w"], f["size"], f["value"]
    w.memory = f["last"].memory = ln.SHARED
    for tensor, axis in ((w, 1), (states, 1), (f["last"], 0)):
        tensor.split(axis, threads)
        tensor.parallelize({axis + 1: ln.ParallelType.block_x})
    for total in (size, value):
        total.split(-1, threads)
        total.parallelize({-1: ln.ParallelType.block_x})
    f.inline_most(replay=True)


@power_iteration.schedule("cpu")
def cpu(f):
    """One core; the product and the norm of a step are kept in its cache."""
    f.inline_most(replay=True)


if __name__ == "__main__":
    ln.main()
