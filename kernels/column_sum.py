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


@column_sum.schedule("gpu")
def gpu(f, columns=32, rows=8):
    """A block takes `columns` columns: the threads of a warp read neighbours of one row.

    `rows` threads share a column and meet in shared memory. [N] is split to [N / rows, rows].
    """
    y = f["y"]
    total = y.cache_before()
    y.split(0, columns)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    total.compute_at(y, 2)
    total.split(2, rows)  # [D / columns, columns, N / rows, rows]
    total.parallelize({1: ln.ParallelType.block_x, 3: ln.ParallelType.block_y})


@column_sum.schedule("gpu_tall")
def gpu_tall(f, columns=32, rows=8, parts=16):
    """As "gpu", with `parts` blocks to `columns` columns: for few columns and many rows.

    [N] is split to [parts, N / rows / parts, rows]. The last block that is done combines the parts,
    in their order.
    """
    y = f["y"]
    total = y.cache_before()
    y.split(0, columns)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    total.compute_at(y, 2)
    total.split(2, rows)
    total.split(2, parts, inner=False)  # [D / columns, columns, parts, N / rows / parts, rows]
    total.parallelize(
        {1: ln.ParallelType.block_x, 2: ln.ParallelType.grid_y, 4: ln.ParallelType.block_y}
    )


@column_sum.schedule("cpu")
def cpu(f, columns=256):
    """A core owns `columns` neighbouring columns, whose sums lie in its cache.

    `total` is [D / columns, columns, N], and its inner axes are exchanged: the loop over the rows
    stands outside, the one over the columns inside, where it becomes vector code.
    """
    y = f["y"]
    total = y.cache_before()
    y.split(0, columns)
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    total.compute_at(y, 1)
    total.reorder({-1: 1})


if __name__ == "__main__":
    ln.main()
