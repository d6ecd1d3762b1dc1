"""Batch normalisation in training: each channel of [N, C, S] by its own mean and variance.

    y = (x - mean) / sqrt(variance + eps) * gamma + beta, mean and variance over N and S

S is the product of the image's axes. The moments come from Welford's algorithm in one pass; the
second pass normalises.

    python kernels/batchnorm.py                      # show it, run it, compare it
    python kernels/batchnorm.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def batchnorm_numpy(x, gamma, beta, eps=1e-5):
    x = x.astype(np.float64)
    mean, variance = x.mean(axis=(0, 2), keepdims=True), x.var(axis=(0, 2), keepdims=True)
    scale = gamma[:, None] / np.sqrt(variance + eps)
    return (x - mean) * scale + beta[:, None]


@ln.kernel(sizes={"N": 32, "C": 64, "S": 3136}, reference=batchnorm_numpy)
def batchnorm(f, dtype=ln.float32, eps=1e-5):
    x = f.input("x", ("N", "C", "S"), dtype)
    gamma = f.input("gamma", ("C",), dtype)
    beta = f.input("beta", ("C",), dtype)
    mean, variance, _ = ln.welford(x, axis=(0, 2))
    mean.named("mean")
    variance.named("variance")
    scale = (gamma * ln.rsqrt(variance + eps)).named("scale")
    channel = (True, False, True)
    centered = x - ln.broadcast(mean, channel)
    f.output(centered * ln.broadcast(scale, channel) + ln.broadcast(beta, channel), "y")


@batchnorm.schedule("gpu")
def gpu(f, threads=256, lanes=4):
    """A block owns a channel: its threads fold partial moments, meet, and normalise.

    The loop over N stands outside of that over [S / lanes / threads, threads, lanes], so that a
    warp reads neighbouring vectors. `y` is reordered to run over channels first.
    """
    y, mean, scale = f["y"], f["mean"], f["scale"]
    copy = f["x"].cache_after()
    y.reorder([1, 0, 2])
    y.split(2, lanes)
    y.split(2, threads)  # [C, N, S / lanes / threads, threads, lanes]
    ln.propagate(y)  # through the copy of x it reaches the moments too
    y.parallelize({0: ln.ParallelType.grid_x, 3: ln.ParallelType.block_x})
    mean.compute_at(y, 1)
    mean.parallelize({3: ln.ParallelType.block_x, 4: ln.ParallelType.unroll})
    scale.compute_at(y, 1)
    copy.compute_at(mean, 4, recompute=True)
    (again,) = copy.clones
    again.compute_at(y, 4)
    for tensor in (copy, again, y):
        tensor.axis(4).parallelize(ln.ParallelType.vectorize)
    ln.inline_most()


@batchnorm.schedule("cpu")
def cpu(f):
    """Channels go to the cores; a core folds the moments of one, then normalises it."""
    y, mean, scale = f["y"], f["mean"], f["scale"]
    y.reorder([1, 0, 2])
    ln.propagate(y)
    mean.reorder([1, 0, 2])
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    mean.compute_at(y, 1)
    scale.compute_at(y, 1)
    ln.inline_most()


if __name__ == "__main__":
    ln.main()
