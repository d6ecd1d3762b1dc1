"""A causal convolution along time, of each channel by itself: y[t] = sum of w[k] x[t - K + 1 + k].

What lies before the first element is 0. Four elements of x are read for each result, and each is
read for four results: threads that are neighbours find them in the cache of their core.

    python kernels/conv1d.py                        # show it, run it, compare it
"""

import numpy as np

import loopnest as ln


def conv1d_numpy(x, w):
    wide, count = np.pad(x.astype(np.float32), ((0, 0), (0, 0), (3, 0))), x.shape[2]
    y = sum(wide[:, :, k : k + count] * np.float32(w)[:, k, None] for k in range(4))
    return y.astype(x.dtype)


@ln.kernel(sizes={"B": 8, "C": 64, "T": 1024}, reference=conv1d_numpy)
def conv1d(f, dtype=ln.float32):
    x = f.input("x", ("B", "C", "T"), dtype)
    w = f.input("w", ("C", 4), dtype)
    before = ln.pad(x, ((0, 0), (0, 0), (3, 0))).named("before")
    windows = ln.unfold(before, 2, 4).named("windows")
    weights = ln.broadcast(w, (True, False, True, False))
    f.output(ln.sum(windows * weights, axis=3), "y")


@conv1d.schedule("gpu")
def gpu(f, threads=128, items=4):
    """A thread has `items` results in a row, and the `items` + 3 elements that they read.

    These are its registers: each is loaded once, from what a neighbour loads too.
    """
    y = f["y"]
    total = y.cache_before()
    y.split(2, items).split(2, threads)  # [B, C, T / (threads * items), threads, items]
    y.parallelize({0: ln.ParallelType.grid_z, 1: ln.ParallelType.grid_y})
    y.parallelize({2: ln.ParallelType.grid_x, 3: ln.ParallelType.block_x})
    f["before"].compute_at(y, 4)
    total.compute_at(y, 4)
    for tensor in (f["before"], total, y):
        tensor.parallelize(dict.fromkeys(range(4, tensor.ndim), ln.ParallelType.unroll))
    ln.inline_most()
    y.axis(4).parallelize(ln.ParallelType.vectorize)


@conv1d.schedule("cpu")
def cpu(f, width=256):
    """A core has a channel; a piece of it and 3 elements before stand in a buffer without tests."""
    y = f["y"]
    y.split(2, width)
    y.axis(0).parallelize(ln.ParallelType.cpu_parallel)
    f["before"].compute_at(y, 3)
    y.reorder({3: 4})  # [B, C, T / width, 4, width]
    f["w"].consumers[0].compute_at(y, -1)
    ln.inline_most()


if __name__ == "__main__":
    ln.main()
