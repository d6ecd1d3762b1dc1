"""Two sweeps of Jacobi's iteration on a grid of three dimensions: each point from its neighbours.

A sweep is the mean of a point's six neighbours, on the inside of what the sweep before has. Both
sweeps go through the grid at once: a tile of the second needs a tile of the first that has one
point more on each side, which is never in memory as a whole.

    python kernels/jacobi3d.py                        # show it, run it, compare it
"""

import numpy as np

import loopnest as ln


def jacobi3d_numpy(x):
    dtype, x = x.dtype, x.astype(np.float32)
    for _ in range(2):
        along_z = x[2:, 1:-1, 1:-1] + x[:-2, 1:-1, 1:-1]
        along_y = x[1:-1, 2:, 1:-1] + x[1:-1, :-2, 1:-1]
        along_x = x[1:-1, 1:-1, 2:] + x[1:-1, 1:-1, :-2]
        x = (along_z + along_y + along_x) * np.float32(1 / 6)
    return x.astype(dtype)


def sweep(x):
    """Return the mean of the six neighbours of each point that has them all."""
    inner, after, before = slice(1, -1), slice(2, None), slice(None, -2)

    def pair(axis):
        places = [[inner] * axis + [part] + [inner] * (2 - axis) for part in (after, before)]
        a, b = [ln.cast(x[tuple(place)], x.dtype.compute) for place in places]
        return a + b

    return (pair(0) + pair(1) + pair(2)) * (1 / 6)


@ln.kernel(sizes={"Z": 66, "Y": 130, "X": 130}, reference=jacobi3d_numpy)
def jacobi3d(f, dtype=ln.float32):
    x = f.input("x", ("Z", "Y", "X"), dtype)
    f.output(ln.cast(sweep(sweep(x).named("first")), dtype), "y")


@jacobi3d.schedule("gpu")
def gpu(f, depth=4, height=8, width=32):
    """A block has a tile of both sweeps, the first in shared memory: 6 x 10 x 34 for 4 x 8 x 32."""
    y, first = f["y"], f["first"]
    y.split(2, width).split(1, height).split(0, depth).reorder([0, 2, 4, 1, 3, 5])
    first.compute_at(y, 3)
    first.memory = ln.SHARED
    first.merge(-2).split(-1, width).split(-2, height)  # [.., 6, 340 / 256, 8, 32]
    y.parallelize({0: ln.ParallelType.grid_z, 1: ln.ParallelType.grid_y})
    y.parallelize({2: ln.ParallelType.grid_x})
    for tensor in (y, first):
        tensor.parallelize({-2: ln.ParallelType.block_y, -1: ln.ParallelType.block_x})
    f.inline_most([tensor for tensor in f.tensors if tensor is not first], replay=True)


@jacobi3d.schedule("cpu")
def cpu(f, depth=8, height=64):
    """A core has tiles of `depth` x `height` rows; those of the first sweep stay in its cache."""
    y, first = f["y"], f["first"]
    y.split(1, height).split(0, depth).reorder({2: 1})
    y.axis(0).parallelize(ln.ParallelType.cpu_parallel)
    first.compute_at(y, 2)
    ln.inline_most()


if __name__ == "__main__":
    ln.main()
