"""Batch normalisation in training: each channel of [N, C, S] by its own mean and variance.

    y = (x - mean) / sqrt(variance + eps) * gamma + beta, mean and variance over N and S

S is the product of the image's axes. The moments come from Welford's algorithm in one pass; the
second pass normalises. Elements of 16 bits are widened where they are loaded.

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
    if dtype is not dtype.compute:
        x = ln.cast(x, dtype.compute).named("wide")
    mean, variance, _ = ln.welford(x, axis=(0, 2))
    mean.named("mean")
    variance.named("variance")
    scale = (gamma * ln.rsqrt(variance + eps)).named("scale")
    channel = (True, False, True)
    centered = x - ln.broadcast(mean, channel)
    y = centered * ln.broadcast(scale, channel) + ln.broadcast(beta, channel)
    f.output(y if dtype is dtype.compute else ln.cast(y, dtype), "y")


def by_channels(f, threads, lanes, loads, parts):
    """Let blocks own channels: their threads fold partial moments, meet, and normalise.

    [N, S] becomes [parts, N / loads / parts, S / lanes / threads, threads, loads, lanes]: a warp
    reads neighbouring vectors, and a thread loads those of `loads` images before it uses the first,
    so that they are in flight together. `y` is reordered to run over channels first.
    """
    y, mean, scale = f["y"], f["mean"], f["scale"]
    copy = f["x"].cache_after()
    y.reorder("C", "N")
    y.split("S", lanes or 16 // y.dtype.size)
    y.split(2, threads)
    y.split("N", loads)
    y.split(1, parts, inner=False)
    y.reorder({3: 5})  # [C, parts, N / .., S / .., threads, loads, lanes]
    ln.propagate(y)  # through the copy of x it reaches the moments too
    y.parallelize(C=ln.ParallelType.grid_x)
    mean.compute_at(y, "C")
    scale.compute_at(y, "C")
    for tensor in (y, mean):
        if parts > 1:
            tensor.axis(1).parallelize(ln.ParallelType.grid_y)
        tensor.axis(4).parallelize(ln.ParallelType.block_x)
    mean.parallelize({5: ln.ParallelType.unroll, 6: ln.ParallelType.unroll})
    copy.compute_at(mean, 5, recompute=True)
    again = copy.clones[0]
    again.compute_at(y, 5)
    for tensor in (copy, again, y):
        tensor.parallelize({5: ln.ParallelType.unroll, 6: ln.ParallelType.vectorize})
    ln.inline_most()


@batchnorm.schedule("gpu")
def gpu(f, threads=512, lanes=None, loads=4):
    """A block owns a channel, for as many channels as keep all multiprocessors busy."""
    by_channels(f, threads, lanes, loads, 1)


@batchnorm.schedule("gpu_grid")
def gpu_grid(f, threads=256, lanes=None, loads=4, parts=4):
    """As "gpu", with `parts` blocks to a channel, which wait for each other: for few channels.

    All blocks must be resident at once: 64 channels in 4 parts take 256 blocks, of the 264 and more
    that a GPU of 132 multiprocessors has room for.
    """
    by_channels(f, threads, lanes, loads, parts)


@batchnorm.schedule("cpu")
def cpu(f):
    """Channels go to the cores; a core folds the moments of one, then normalises it."""
    y, mean, scale = f["y"], f["mean"], f["scale"]
    y.reorder("C", "N")
    ln.propagate(y)
    mean.reorder("C", "N")
    y.parallelize(C=ln.ParallelType.cpu_parallel)
    mean.compute_at(y, "C")
    scale.compute_at(y, "C")
    ln.inline_most()


if __name__ == "__main__":
    ln.main()
