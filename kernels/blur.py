"""A blur of an image in two stages of three: along rows, then along columns of the averages.

Each result needs three averages, and each of these is needed by three results. Tiles of results
share them: the tile of averages is two rows higher than that of results, and that of the image two
columns wider again. These halos are what neighbouring tiles read, and compute, once more.

    python kernels/blur.py                        # show it, run it, compare it
"""

import numpy as np

import loopnest as ln


def blur_numpy(x):
    wide = x.astype(np.float32)
    rows = (wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]) * np.float32(1 / 3)
    y = (rows[:-2] + rows[1:-1] + rows[2:]) * np.float32(1 / 3)
    return y.astype(x.dtype)


@ln.kernel(sizes={"N": 1026, "M": 1538}, reference=blur_numpy)
def blur(f, dtype=ln.float32):
    x = f.input("x", ("N", "M"), dtype)
    if dtype is not dtype.compute:
        x = ln.cast(x, dtype.compute).named("image")
    rows = ((x[:, :-2] + x[:, 1:-1] + x[:, 2:]) * (1 / 3)).named("rows")
    y = (rows[:-2] + rows[1:-1] + rows[2:]) * (1 / 3)
    f.output(y if dtype is dtype.compute else ln.cast(y, dtype), "y")


@blur.schedule("gpu")
def gpu(f, height=16, width=64, threads=8):
    """A block has a tile of `height` x `width`, with its image and averages in shared memory.

    Both are read by several threads, so each is loaded, and computed, once a block, halo included.
    A warp reads neighbours along a row, so there are no bank conflicts.
    """
    y, rows = f["y"], f["rows"]
    image = f["x"].cache_after().named("image") if y.dtype is y.dtype.compute else f["image"]
    y.split(1, width).split(0, height).reorder({1: 2})  # [N / height, M / width, height, width]
    y.parallelize({0: ln.ParallelType.grid_y, 1: ln.ParallelType.grid_x})
    image.compute_at(y, 2)
    for tensor in (image, rows, y):
        tensor.split(3, 32).split(2, threads)  # [.., .., height / threads, threads, width / 32, 32]
    for tensor in (image, rows, y):
        tensor.parallelize({3: ln.ParallelType.block_y, 5: ln.ParallelType.block_x})
    for tensor in (image, rows):
        tensor.memory = ln.SHARED
    f.inline_most([t for t in f.tensors if t.memory is ln.LOCAL], replay=True)


@blur.schedule("cpu")
def cpu(f, height=16, width=4096):
    """A core has tiles of `height` x `width`, whose averages stay in its cache: 18 rows of 4096.

    Tiles are as wide as most images: a core then reads and writes memory from front to back. Rows
    are averaged along neighbours in memory, and columns row by row, so that both vectorize.
    """
    y, rows = f["y"], f["rows"]
    y.split(1, width).split(0, height).reorder({1: 2})
    y.parallelize({0: ln.ParallelType.cpu_parallel, 1: ln.ParallelType.unswitch})
    rows.compute_at(y, 2)
    ln.inline_most()


if __name__ == "__main__":
    ln.main()
