"""A residual and the root mean square norm behind it, in float16, as transformers have it.

    h = x + residual, y = h / sqrt(mean(h * h) + eps) * gamma

Both are results: h is the next layer's residual. It is rounded to float16 once, and the norm is
that of the rounded sum, taken in float32.

    python kernels/rmsnorm.py                        # show it, run it, compare it
    python kernels/rmsnorm.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def rmsnorm_numpy(x, residual, gamma, eps):
    h = x + residual
    return h, h / np.sqrt((h * h).mean(axis=1, keepdims=True) + eps) * gamma


@ln.kernel(sizes={"N": 4096, "D": 4096}, reference=rmsnorm_numpy)
def rmsnorm(f, dtype=ln.float16, eps=1e-6):
    x = f.input("x", ("N", "D"), dtype)
    residual = f.input("residual", ("N", "D"), dtype)
    gamma = f.input("gamma", ("D",), dtype)
    added = (x + residual).named("added")
    f.output(ln.cast(added, dtype), "h")
    wide = ln.cast(added, dtype.compute).named("wide")
    square = (wide * wide).named("square")
    mean = ln.mean(square, axis=1)
    scale = ln.rsqrt(mean + eps).named("scale")
    y = wide * ln.broadcast(scale, (False, True)) * gamma
    f.output(ln.cast(y.named("scaled"), dtype), "y")
    mean.producers[0].named("squares")


@rmsnorm.schedule("gpu")
def gpu(f, lanes=None, parts=2):
    """A block owns a row and keeps the sum in registers; it is read once, and both results go out.

    [D] is split to [parts, threads, lanes] with two constants, as in layernorm.py.
    """
    y, h = f["y"], f["h"]
    y.split(1, lanes or 16 // y.dtype.size)
    y.split(1, parts, inner=False)
    copies = [f[name].cache_after() for name in ("x", "residual")]
    gamma = f["gamma"].cache_after()
    ln.propagate(y)
    y.axis(0).parallelize(ln.ParallelType.grid_x)
    for tensor in (*copies, f["added"], f["wide"], f["squares"]):
        tensor.compute_at(y, 1)
    for tensor in (*copies, f["added"], f["wide"], f["squares"], h, y):
        tensor.axis(2).parallelize(ln.ParallelType.block_x)
    for tensor in (*copies, h, y):
        tensor.axis(-1).parallelize(ln.ParallelType.vectorize)
    gamma.compute_at(y, y.ndim - 1)
    gamma.axis(-1).parallelize(ln.ParallelType.vectorize)
    f["scaled"].compute_at(y, -2)
    ln.inline_most()


@rmsnorm.schedule("cpu")
def cpu(f, lanes=16):
    """Rows go to the cores; the sum of squares is factored into `lanes` partial ones."""
    y = f["y"]
    squares = f["squares"]
    squares.split(1, lanes)
    partial = squares.rfactor(1)
    partial.parallelize({1: ln.ParallelType.unswitch, 2: ln.ParallelType.vectorize})
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    for tensor in (partial, f["added"]):
        tensor.compute_at(y, 1)
    ln.inline_most()


if __name__ == "__main__":
    ln.main()
