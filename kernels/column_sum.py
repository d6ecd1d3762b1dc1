"""The sum of each column: y[d] = sum over n of x[n, d].

The elements of a column lie far apart, so that no schedule should walk down one: neighbouring
columns are summed side by side.
"""

import loopnest as ln


def column_sum_numpy(x):
    return x.sum(axis=0)


@ln.kernel(sizes={"N": 4096, "D": 1024}, reference=column_sum_numpy)
def column_sum(f, dtype=ln.float32):
    x = f.input("x", ("N", "D"), dtype)
    f.output(ln.sum(x, axis=0), "y")


def by_tiles(f, columns, rows, parts, lanes, loads):
    """Let blocks own `columns` vectors of `lanes` neighbouring columns, and a part of the rows.

    A thread loads `loads` vectors of its columns before it adds the first, so that they are in
    flight together; an axis of one element around them is unswitched, so that one test decides
    whether all of their rows exist. The `rows` threads of a column meet in shared memory, all
    `lanes` sums in one exchange; the last of the `parts` blocks that is done combines what each
    left, in their order.
    """
    y = f["y"]
    total = y.cache_before()
    lanes = lanes or 16 // y.dtype.size
    y.split(0, lanes)
    y.split(0, columns)
    y.parallelize(
        {0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x, 2: ln.ParallelType.vectorize}
    )
    total.compute_at(y, 2)
    total.split(3, rows)
    total.split(3, loads)
    total.split(3, parts, inner=False)
    total.reorder([0, 1, 3, 6, 4, 5, 2])
    total.split(4, 1)  # [D / .., columns, parts, rows, N / .., 1, loads, lanes]
    copy = f["x"].cache_after()
    copy.compute_at(total, 6)
    total.parallelize(
        {
            2: ln.ParallelType.grid_y,
            3: ln.ParallelType.block_y,
            5: ln.ParallelType.unswitch,
            6: ln.ParallelType.unroll,
            7: ln.ParallelType.unroll,
        }
    )
    copy.parallelize({6: ln.ParallelType.unroll, 7: ln.ParallelType.vectorize})


@column_sum.schedule("gpu")
def gpu(f, columns=32, rows=8, parts=32, lanes=None, loads=4):
    """A warp reads `columns` vectors of 16 bytes of one row, eight warps a block.

    [N] is split to [parts, N / loads / rows / parts, loads, rows]; 1024 columns make 8 tiles, and
    with 32 parts of the rows 256 blocks.
    """
    by_tiles(f, columns, rows, parts, lanes, loads)


@column_sum.schedule("gpu_tall")
def gpu_tall(f, columns=8, rows=8, parts=128, lanes=None, loads=8):
    """As "gpu", with narrow tiles and more `parts`: for few columns and many rows.

    A warp reads four rows of eight vectors, 128 bytes each: what memory brings at once.
    """
    by_tiles(f, columns, rows, parts, lanes, loads)


@column_sum.schedule("gpu_launches")
def gpu_launches(f, columns=32, rows=8, parts=32, lanes=None, loads=4):
    """As "gpu" in two launches: blocks leave the sums of their parts, a second launch adds them.

    [N] is split to [N / .., parts, loads, rows]: the rows of a part lie apart by a constant. No
    block waits for another one, nor counts who is done; the sums are added in the order of the
    parts, so that the bits are the same each time. A thread of the second launch has a column, and
    loads `rows` of its sums before it adds the first.
    """
    y = f["y"]
    lanes = lanes or 16 // y.dtype.size
    grid, block = ln.ParallelType.grid_x, ln.ParallelType.block_x
    y.split(0, rows).split(0, loads).split(0, parts)
    part = y.rfactor([0, 2, 3])  # of [N / .., parts, loads, rows, D]
    part.memory = ln.GLOBAL
    total = part.cache_before()
    part.split(1, lanes).split(1, columns)  # [parts, D / .., columns, lanes]
    part.parallelize({0: ln.ParallelType.grid_y, 1: grid, 2: block})
    part.axis(3).parallelize(ln.ParallelType.vectorize)
    total.compute_at(part, 3)
    total.reorder({6: 3, 3: 6})  # [parts, D / .., columns, rows, N / .., loads, lanes]
    total.split(4, 1)
    copy = f["x"].cache_after()
    copy.compute_at(total, 6)
    total.parallelize({3: ln.ParallelType.block_y, 5: ln.ParallelType.unswitch})
    total.parallelize({6: ln.ParallelType.unroll, 7: ln.ParallelType.unroll})
    copy.parallelize({6: ln.ParallelType.unroll, 7: ln.ParallelType.vectorize})

    y.new_launch()
    y.split(1, columns).split(0, rows).reorder([2, 3, 0, 1])  # [D / .., columns, parts / .., rows]
    y.parallelize({0: grid, 1: block, 3: ln.ParallelType.unroll})


@column_sum.schedule("cpu")
def cpu(f, columns=1024, rows=128):
    """Cores share the rows, `rows` at a time, which are read along memory.

    `part` is [N / rows, rows, D]: the loop over its rows is put around the one over `columns`
    neighbouring columns, whose sums lie in the cache and which becomes vector code. An axis of one
    element around both is unswitched, so that D is tested once for all of them.
    """
    y = f["y"]
    y.split(0, rows)
    part = y.rfactor(1)
    part.memory = ln.GLOBAL
    part.split(2, columns)
    part.split(2, 1)
    part.reorder([0, 2, 3, 1, 4])  # [N / rows, D / columns, 1, rows, columns]
    part.parallelize({0: ln.ParallelType.cpu_parallel, 2: ln.ParallelType.unswitch})


if __name__ == "__main__":
    ln.main()
