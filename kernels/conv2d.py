"""A convolution of images by 3 x 3 windows: y[i, o] is the sum over p of w[o, p] over x[i, p].

Around the images lie zeros. The windows are math alone: no buffer has the axes of a window. A tile
of results reads its part of the image with a halo of two rows and columns, which a block keeps in
shared memory, and a core in its cache.

    python kernels/conv2d.py                        # show it, run it, compare it
"""

import numpy as np

import loopnest as ln


def conv2d_numpy(x, w):
    wide, weights = np.pad(x.astype(np.float32), ((0, 0), (0, 0), (1, 1), (1, 1))), np.float32(w)
    rows, columns = x.shape[2:]
    y = sum(
        np.einsum("ipyx,op->ioyx", wide[:, :, i : i + rows, j : j + columns], weights[:, :, i, j])
        for i in range(3)
        for j in range(3)
    )
    return y.astype(x.dtype)


@ln.kernel(sizes={"I": 4, "P": 32, "O": 32, "Y": 56, "X": 56}, reference=conv2d_numpy)
def conv2d(f, dtype=ln.float32):
    x = f.input("x", ("I", "P", "Y", "X"), dtype)
    w = f.input("w", ("O", "P", 3, 3), dtype)
    y = ln.conv(x, w, padding=1)
    f.output(y, "y")
    image(f).named("image")


def image(f):
    """Return the image with its border, which all windows are read from."""
    return next(t for t in f["x"].consumers if t.definition.op == "pad")


@conv2d.schedule("gpu")
def gpu(f, channels=8, height=8, width=32, depth=4):
    """A block has `channels` x `height` x `width` results, a thread `channels` of them.

    The tile of the image, `depth` channels at a time, lies in shared memory: each of its elements
    is read by up to 9 threads, `channels` times.
    """
    y = f["y"]
    total = y.cache_before()
    y.split(3, width).split(2, height).split(1, channels)
    # [I, O / channels, channels, Y / height, height, X / width, width]
    y.reorder([0, 1, 3, 5, 4, 6, 2])
    total.compute_at(y, 4)
    total.reorder({7: 4}).split(4, depth).reorder({5: 8})  # [.., P / depth, y, x, o, depth, 3, 3]
    tile = f["image"]
    tile.compute_at(total, 5)
    tile.memory = ln.SHARED
    f.inline_most([tensor for tensor in f.tensors if tensor is not tile], replay=True)
    y.parallelize({0: ln.ParallelType.grid_z, 1: ln.ParallelType.grid_y})
    y.parallelize({2: ln.ParallelType.grid_x})
    y.parallelize({4: ln.ParallelType.block_y, 5: ln.ParallelType.block_x})
    total.parallelize({5: ln.ParallelType.block_y, 6: ln.ParallelType.block_x})
    for tensor, axis in ((y, 6), (total, 7)):
        tensor.axis(axis).parallelize(ln.ParallelType.unroll)
    tile.merge(-2).split(-1, width).split(-2, height)
    tile.parallelize({-2: ln.ParallelType.block_y, -1: ln.ParallelType.block_x})


@conv2d.schedule("cpu")
def cpu(
    f,
    height=ln.choice(4, 2, 8),
    rows=ln.choice(2, 1, 4),
    columns=ln.choice(None, 2, 3, 4, 6),
    parts=ln.choice(2, 1),
    lanes=None,
):
    """A core has `height` rows of results at a time, their part of the image in its cache.

    The sums of `rows` x `columns` results for `parts` vectors of channels stay in registers: 2 x 3
    x 2 of the 16 of AVX2, 2 x 4 x 2 of the 32 of AVX-512, as `ln.machine()` finds them. Each of
    their steps loads `parts` vectors of weights, and one element of the image for each result. The
    weights are packed once, so that a tile reads them from front to back. The image in the cache is
    as wide as whole tiles ask for, with zeros at its end: the sums need no tests.
    """
    machine = ln.machine()
    columns = columns or (4 if machine.vector_registers >= 32 else 3)
    lanes = lanes or machine.lanes(4)
    y, vector, unroll = f["y"], ln.ParallelType.vectorize, ln.ParallelType.unroll
    packed = f["w"].cache_after().named("packed")
    total = y.cache_before()
    product = total.producers[0]
    windows, weights = product.producers

    packed.memory = ln.GLOBAL
    packed.split(0, parts * lanes).reorder({1: 4})
    layout = packed.allocation_domain.split(0, parts * lanes)
    layout.reorder([0, 3, 4, 2, 1])  # [O / channels, 3, 3, P, channels]
    packed.parallelize({0: ln.ParallelType.cpu_parallel})

    y.split(3, columns).split(3, 1, inner=False)
    y.split(2, height).split(3, rows)
    y.split(1, parts * lanes).split(2, lanes)
    y.reorder([0, 4, 7, 1, 5, 8, 6, 9, 2, 3]).merge(0)
    # [I * Y / height, 1, O / channels, height / rows, X / columns, rows, columns, parts, lanes]
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    f["image"].compute_at(y, 2)
    total.compute_at(y, 5)
    total.split(-1, lanes).reorder({8: 5, 9: 6, 7: 7, 5: 8, 6: 9})
    # [.., X / columns, 3, 3, P, rows, columns, parts, lanes]
    product.compute_at(total, -1)
    windows.compute_at(product, 10)
    weights.compute_at(product, 8)
    weights.split(-1, lanes)
    for tensor in (total, product, weights):
        tensor.axis(-1).parallelize(vector)
        tensor.axis(-2).parallelize(unroll)
    for axis in (-4, -3):
        total.axis(axis).parallelize(unroll)
    for axis in range(5, 9):
        y.axis(axis).parallelize(unroll)


if __name__ == "__main__":
    ln.main()
