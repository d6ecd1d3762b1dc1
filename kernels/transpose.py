"""The transpose of a matrix: y[d, n] = x[n, d]."""

import loopnest as ln


def transpose_numpy(x):
    return x.T.copy()


@ln.kernel(sizes={"N": 2048, "D": 2048}, reference=transpose_numpy)
def transpose(f, dtype=ln.float32):
    x = f.input("x", ("N", "D"), dtype)
    f.output(ln.permute(x, (1, 0)), "y")


@transpose.schedule("gpu", cost={"gmem_ratio": "<=1.0", "bank_conflicts": 0, "barriers": "<=1"})
def gpu(f, lanes=None):
    """Tiles of 8 x 8 squares of `lanes` x `lanes` in shared memory, swizzled; vectors all through.

    A vector is 16 bytes, of either type: what all threads load at once must hide the way to memory.

    A vector of the tile lies at the column of squares that XOR with its row of squares gives. A
    warp then finds the elements of a vector of y, which come from `lanes` rows of x, in 32
    different banks; padding would do that too, but leave the rows of the tile unaligned.
    """
    y = f["y"]
    lanes = lanes or 16 // y.dtype.size
    held = f["x"].cache_after()
    y.split(1, 8 * lanes)
    y.split(0, 8 * lanes)
    y.reorder({1: 2})  # [D / 32, N / 32, 32, 32]
    y.parallelize({0: ln.ParallelType.grid_y, 1: ln.ParallelType.grid_x})
    held.compute_at(y, 2)
    held.memory = ln.SHARED
    held.reorder({2: 3})  # [..., rows of x, columns of x]
    for tensor in (y, held):
        tensor.split(3, lanes)
        tensor.split(2, lanes)  # [..., 8, 4, 8, 4]
        tensor.parallelize(
            {
                2: ln.ParallelType.block_z,
                3: ln.ParallelType.block_y,
                4: ln.ParallelType.block_x,
                5: ln.ParallelType.vectorize,
            }
        )
    held.swizzle(ln.Swizzle.XOR, 2, 4)


@transpose.schedule("gpu_padded")
def gpu_padded(f, tile=32, rows=None):
    """Tiles in shared memory, padded: a column of the tile then lies in 32 different banks.

    A bank is 4 bytes wide, and so is the padding. Single elements, so that any N and D do: blocks
    of `tile` x `rows` threads read rows of the tile and write its columns, each time neighbours; a
    thread loads 16 bytes of a tile of 32 x 32.
    """
    y = f["y"]
    rows = rows or 2 * y.dtype.size
    held = f["x"].cache_after()
    y.split(1, tile)
    y.split(0, tile)
    y.reorder({1: 2})  # [D / tile, N / tile, tile, tile]
    y.parallelize({0: ln.ParallelType.grid_y, 1: ln.ParallelType.grid_x})
    held.compute_at(y, 2)
    held.memory = ln.SHARED
    held.reorder({2: 3})  # [..., rows of x, columns of x]
    for tensor in (y, held):
        tensor.split(2, rows)
        tensor.parallelize(
            {2: ln.ParallelType.unroll, 3: ln.ParallelType.block_y, 4: ln.ParallelType.block_x}
        )
    held.set_allocation(pad={4: max(1, 4 // held.dtype.size)})


@transpose.schedule("cpu")
def cpu(f, side=16, tiles=8):
    """Tiles of `side` x `side` elements are transposed in registers.

    16 floats are a cache line: a tile is read in whole lines of x and written in whole lines of y,
    past the caches where y is larger than the last of them. A core takes `tiles` of them from left
    to right in x, then those below: neighbouring lines of x are read together, and the rows of y
    that are written stay few, so that the addresses of their pages are at hand. `unswitch` tests
    once a tile whether it is whole.
    """
    y = f["y"]
    y.split(1, side)
    y.split(0, side)
    y.split(0, tiles)  # [D / 128, 8, 16, N / 16, 16]
    y.reorder({3: 1})
    y.parallelize(
        {
            0: ln.ParallelType.cpu_parallel,
            3: ln.ParallelType.unswitch,
            4: ln.ParallelType.vectorize,
        }
    )


if __name__ == "__main__":
    ln.main()
