"""The largest element of each 3 x 3 window of an image, every second one, with a border of one.

The border is no buffer: it is what a window reads where it reaches over the edge. On a GPU each
read tests for itself; a core has rows of the image with their border in its cache.

    python kernels/max_pool.py                        # show it, run it, compare it
"""

import numpy as np

import loopnest as ln


def max_pool_numpy(x):
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    rows, columns = [2 * np.arange((n + 1) // 2) for n in x.shape[2:]]
    found = [wide[:, :, rows + i][..., columns + j] for i in range(3) for j in range(3)]
    return np.maximum.reduce(found)


@ln.kernel(sizes={"I": 8, "P": 64, "Y": 112, "X": 112}, reference=max_pool_numpy)
def max_pool(f, dtype=ln.float32):
    x = f.input("x", ("I", "P", "Y", "X"), dtype)
    f.output(ln.max_pool(x, 3, stride=2, padding=1), "y")
    next(t for t in x.consumers if t.definition.op == "pad").named("image")


@max_pool.schedule("gpu")
def gpu(f, height=8, width=32):
    """A thread has a result, and reads its window from memory, where its neighbours read theirs."""
    y = f["y"]
    total = y.cache_before()
    y.split(3, width).split(2, height).reorder({4: 3})  # [I, P, Y / height, X / width, ..]
    y.parallelize({0: ln.ParallelType.grid_z, 1: ln.ParallelType.grid_y})
    y.parallelize({2: ln.ParallelType.grid_x})
    y.parallelize({4: ln.ParallelType.block_y, 5: ln.ParallelType.block_x})
    total.compute_at(y, -1)
    total.parallelize({6: ln.ParallelType.unroll, 7: ln.ParallelType.unroll})
    f["image"].compute_at(total, 6)
    f["image"].parallelize({6: ln.ParallelType.unroll, 7: ln.ParallelType.unroll})
    ln.inline_most()


@max_pool.schedule("cpu")
def cpu(f, height=8, columns=8):
    """A core has `height` rows of results of an image; the rows they read are copied to its cache.

    The copy has the border, so that windows need no test. `columns` results are a vector: each of
    its nine operands is every second element of a row.
    """
    y, image, vector = f["y"], f["image"], ln.ParallelType.vectorize
    total = y.cache_before()
    windows = total.producers[0]
    y.split(3, columns).split(2, height)  # [I, P, Y / height, height, X / columns, columns]
    y.parallelize({0: ln.ParallelType.cpu_parallel, -1: vector})
    image.compute_at(y, 3)
    total.compute_at(y, 5)
    total.reorder({5: -1})  # [.., 3, 3, columns]
    total.parallelize({5: ln.ParallelType.unroll, 6: ln.ParallelType.unroll, 7: vector})
    windows.compute_at(total, 7)
    windows.axis(-1).parallelize(vector)


if __name__ == "__main__":
    ln.main()
