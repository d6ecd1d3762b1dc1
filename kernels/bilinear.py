"""Bilinear resize by a whole number: each output is a mean of the four inputs around it.

Which inputs these are is arithmetic on integers, (2 p + 1 - scale) // (2 scale), so that the reads
are affine with a floor: `ln.take` of indices that are computed of `iota`s, and clamped at the
border, reads no indices, and the kernel is proved for all sizes without a word on data. The pixels
are centered in their squares, as torch's with align_corners=False.

    python kernels/bilinear.py                       # show it, run it, compare it
    python kernels/bilinear.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def around(count, size, scale):
    """Return the neighbours of each output along an axis, and the share of the second."""
    place = (2 * np.arange(count) + 1 - scale) / (2 * scale)
    first = np.floor(place).astype(np.int64)
    ends = (first.clip(0, size - 1), (first + 1).clip(0, size - 1))
    return ends, place - first


def bilinear_numpy(x, P, Q, scale=2):
    (top, bottom), down = around(P, x.shape[1], scale)
    (left, right), across = around(Q, x.shape[2], scale)
    rows = x[:, top] * (1 - down[:, None]) + x[:, bottom] * down[:, None]
    return rows[:, :, left] * (1 - across) + rows[:, :, right] * across


def neighbours(size, name, scale):
    """Return the two indices around each output along an axis, and the share of the second."""
    place = ln.iota(size).named(name) * 2 + (1 - scale)
    first = place // (2 * scale)
    share = ln.cast(place % (2 * scale), ln.float32) * (0.5 / scale)
    return (first, first + 1), share


@ln.kernel(sizes={"C": 64, "H": 128, "W": 128, "P": 256, "Q": 256}, reference=bilinear_numpy)
def bilinear(f, scale=2):
    x = f.input("x", ("C", "H", "W"), ln.float32)
    rows, down = neighbours("P", "row", scale)
    columns, across = neighbours("Q", "column", scale)
    down = ln.broadcast(down, (True, False, True))
    across = ln.broadcast(across, (True, True, False))
    means = []
    for place in columns:
        top, bottom = [
            ln.take(ln.take(x, row, 1, mode="clip"), place, 2, mode="clip") for row in rows
        ]
        means.append(top + (bottom - top) * down)
    f.output(means[0] + (means[1] - means[0]) * across, "y")


@bilinear.schedule("gpu")
def gpu(f, threads=64, lanes=4):
    """A thread owns `lanes` outputs in a row; their inputs lie in one line of the cache."""
    y = f["y"]
    means = y.cache_before()
    y.split(2, lanes)
    y.split(2, threads)  # [C, P, Q / threads / lanes, threads, lanes]
    means.compute_at(y, 4)
    y.parallelize({0: ln.ParallelType.grid_y, 1: ln.ParallelType.grid_x})
    y.parallelize({3: ln.ParallelType.block_x})
    f.inline_most([tensor for tensor in f.tensors if tensor is not means], replay=True)
    means.axis(4).parallelize(ln.ParallelType.unroll)
    y.axis(4).parallelize(ln.ParallelType.vectorize)


@bilinear.schedule("cpu")
def cpu(f):
    """Rows of outputs go to the cores; what is the same along a row is computed once a row."""
    y = f["y"]
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    f.inline_most()


if __name__ == "__main__":
    ln.main()
