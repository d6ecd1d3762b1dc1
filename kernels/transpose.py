"""The transpose of a matrix: y[d, n] = x[n, d]."""

import loopnest as ln


def transpose_numpy(x):
    return x.T.copy()


@ln.kernel(sizes={"N": 2048, "D": 2048}, reference=transpose_numpy)
def transpose(f, dtype=ln.float32):
    x = f.input("x", ("N", "D"), dtype)
    f.output(ln.permute(x, (1, 0)), "y")


def tiled(f, tile, rows):
    """Move tiles of `tile` x `tile` through shared memory, by blocks of `tile` x `rows` threads.

    Both the reads of the tile's rows and the writes of its columns then are to neighbours. Returns
    the tile, whose axes are [D / tile, N / tile, tile (columns of x), tile (rows of x)].
    """
    y = f["y"]
    held = f["x"].cache_after()
    y.split(1, tile)
    y.split(0, tile)
    y.reorder({1: 2})  # [D / tile, N / tile, tile, tile]
    y.parallelize({0: ln.ParallelType.grid_y, 1: ln.ParallelType.grid_x})
    held.compute_at(y, 2)
    held.memory = ln.SHARED
    y.split(2, rows)  # [..., tile / rows, rows, tile]
    y.parallelize({3: ln.ParallelType.block_y, 4: ln.ParallelType.block_x})
    return held


def load(held, rows):
    """Let neighbouring threads load neighbours of a row of x."""
    held.reorder({2: 3})  # [..., rows of x, columns of x]
    held.split(2, rows)
    held.parallelize({3: ln.ParallelType.block_y, 4: ln.ParallelType.block_x})


@transpose.schedule("gpu")
def gpu(f, tile=32, rows=8):
    """Tiles in shared memory, padded: a column of the tile then lies in 32 different banks."""
    held = tiled(f, tile, rows)
    load(held, rows)
    held.set_allocation(pad={4: 1})


@transpose.schedule("gpu_swizzled")
def gpu_swizzled(f, tile=32, rows=8):
    """Tiles in shared memory, swizzled: no element is wasted, and no two banks collide."""
    held = tiled(f, tile, tile)
    load(held, tile)
    held.swizzle(ln.Swizzle.XOR, 3, 4)


@transpose.schedule("cpu")
def cpu(f, rows=16, columns=128):
    """Tiles of `rows` x `columns` elements of x pass through a local buffer.

    A tile is read in pieces of `columns` neighbours and written in pieces of `rows` neighbours: 16
    floats are a cache line. Without the buffer one side would touch a line for each element, and
    where rows lie a power of two apart all these lines compete for the same few places in the
    cache. `unswitch` tests once a tile whether it is whole.
    """
    y = f["y"]
    block = f["x"].cache_after()
    y.split(1, rows)
    y.split(0, columns)
    y.reorder({1: 2})
    y.parallelize({0: ln.ParallelType.cpu_parallel, 2: ln.ParallelType.unswitch})
    block.compute_at(y, 2)
    block.axis(2).parallelize(ln.ParallelType.unswitch)


if __name__ == "__main__":
    ln.main()
