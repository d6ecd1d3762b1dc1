"""Layer normalisation of each row: y = (x - mean) / sqrt(variance + eps) * gamma + beta.

The variance is that of the centered row, in two passes: as exact as Welford's algorithm, and each
pass is a plain sum.
"""

import numpy as np

import loopnest as ln


def layernorm_numpy(x, gamma, beta, eps):
    centered = x - x.mean(axis=1, keepdims=True)
    variance = (centered * centered).mean(axis=1, keepdims=True)
    return centered / np.sqrt(variance + eps) * gamma + beta


@ln.kernel(sizes={"N": 4096, "D": 1024}, reference=layernorm_numpy)
def layernorm(f, dtype=ln.float32, eps=1e-5):
    x = f.input("x", ("N", "D"), dtype)
    gamma = f.input("gamma", ("D",), dtype)
    beta = f.input("beta", ("D",), dtype)
    mean = ln.mean(x, axis=1, keepdims=True)
    centered = (x - mean).named("centered")
    square = (centered * centered).named("square")
    variance = ln.mean(square, axis=1, keepdims=True)
    f.output(centered * ln.rsqrt(variance + eps) * gamma + beta, "y")
    mean.reduction.named("total")
    variance.reduction.named("squares")


@layernorm.schedule("gpu")
def gpu(f, threads=128):
    """A thread owns a row and reads it three times.

    `centered` feeds the sum of squares and, after it, the result. It costs a subtraction, so each
    gets its own (`recompute`) instead of a row that would have to be kept.
    """
    y, total, squares = f["y"], f["total"], f["squares"]
    y.split(0, threads)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    total.compute_at(y, 2)
    squares.compute_at(y, 2)
    f["centered"].compute_at(squares, -1, recompute=True)
    f["gamma"].compute_at(y, -1)
    f["beta"].compute_at(y, -1)
    ln.inline_most()


@layernorm.schedule("cpu")
def cpu(f, lanes=16):
    """Rows go to the cores; `centered` keeps a row in the core's cache.

    Both sums are factored into `lanes` partial ones side by side, as in row_sum.py.
    """
    y = f["y"]
    partials = []
    for name in ("total", "squares"):
        f[name].split(1, lanes)
        partial = f[name].rfactor(1)
        partial.parallelize({1: ln.ParallelType.unswitch, 2: ln.ParallelType.vectorize})
        partials.append(partial)
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    for tensor in (*partials, f["centered"]):
        tensor.compute_at(y, 1)
    f["square"].compute_at(partials[1], 2)
    ln.inline_most()


if __name__ == "__main__":
    ln.main()
