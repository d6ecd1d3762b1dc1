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
def cpu(f, width=1024, lanes=16):
    """A core has a channel; a piece of it and 3 elements before stand in its cache, without tests.

    `lanes` results at a time are summed in a vector, tap after tap.
    """
    y, vector = f["y"], ln.ParallelType.vectorize
    total, product = y.cache_before(), f["windows"].consumers[0]
    y.split(2, width).split(3, lanes)  # [B, C, T / width, width / lanes, lanes]
    y.parallelize({0: ln.ParallelType.cpu_parallel, 4: vector})
    f["before"].compute_at(y, 3)
    total.compute_at(y, 4)
    total.reorder({5: 4})  # [.., 4, lanes]
    total.parallelize({4: ln.ParallelType.unroll, 5: vector})
    product.compute_at(total, 5)
    f["windows"].compute_at(product, 5)
    for tensor in (product, f["windows"]):
        tensor.axis(5).parallelize(vector)
    f["w"].consumers[0].compute_at(product, 5)


if __name__ == "__main__":
    ln.main()
