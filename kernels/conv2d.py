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
    f["w"].consumers[0].compute_at(total, -1)
    y.parallelize({0: ln.ParallelType.grid_z, 1: ln.ParallelType.grid_y})
    y.parallelize({2: ln.ParallelType.grid_x})
    y.parallelize({4: ln.ParallelType.block_y, 5: ln.ParallelType.block_x})
    total.parallelize({5: ln.ParallelType.block_y, 6: ln.ParallelType.block_x})
    for tensor, axis in ((y, 6), (total, 7)):
        tensor.axis(axis).parallelize(ln.ParallelType.unroll)
    tile.merge(-2).split(-1, width).split(-2, height)
    tile.parallelize({-2: ln.ParallelType.block_y, -1: ln.ParallelType.block_x})
    ln.inline_most([tensor for tensor in f.tensors if tensor is not tile])


@conv2d.schedule("cpu")
def cpu(f, height=4, channels=8, lanes=8):
    """A core has `height` rows of an image at a time, with the halo in its cache, for all results.

    The sums of `channels` x `lanes` results stay in registers; each element of the image is loaded
    once for all channels.
    """
    y, vector, unroll = f["y"], ln.ParallelType.vectorize, ln.ParallelType.unroll
    total = y.cache_before()
    product = total.producers[0]
    windows, weights = product.producers
    y.split(3, lanes).split(2, height).split(1, channels)
    # [I, O / channels, channels, Y / height, height, X / lanes, lanes]
    y.reorder([0, 3, 1, 4, 5, 2, 6])
    y.parallelize({0: ln.ParallelType.cpu_parallel, 5: unroll, 6: vector})
    y.axis(2).parallelize(ln.ParallelType.unswitch)
    f["image"].compute_at(y, 2)
    total.compute_at(y, 5)
    total.reorder({5: -2, 6: -1})  # [.., P, 3, 3, channels, lanes]
    for tensor, own in ((product, total), (windows, product), (weights, product)):
        tensor.compute_at(own, own.ndim - 1)
    for tensor in (total, product, windows):
        tensor.axis(-1).parallelize(vector)
        tensor.axis(-2).parallelize(unroll)


if __name__ == "__main__":
    ln.main()
