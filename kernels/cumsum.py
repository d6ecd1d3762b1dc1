"""The running sums of each row: y[n, d] = sum of x[n, 0..d].

A scan: each element is what the elements up to it fold to, so the loop along a row goes step by
step and carries a sum. Rows go to threads, or to cores.

    python kernels/cumsum.py                         # show it, run it, compare it
    python kernels/cumsum.py dump --stage cuda
"""

import loopnest as ln


def cumsum_numpy(x):
    return x.cumsum(axis=1)


@ln.kernel(sizes={"N": 4096, "D": 1024}, reference=cumsum_numpy)
def cumsum(f, dtype=ln.float32):
    x = f.input("x", ("N", "D"), dtype)
    f.output(ln.cumsum(x, axis=1), "y")


@cumsum.schedule("gpu")
def gpu(f, rows=32, columns=32):
    """A thread carries the sum of a row, a block `rows` of them.

    If each thread read its own row, neighbours would read far apart. So the block copies a tile of
    `columns` into shared memory, neighbouring threads reading neighbours; each thread goes on with
    its row there; and the block copies the tile of results out. The sum stays in a register from
    tile to tile. A row of the tiles is one bank (4 bytes) longer than needed, so that threads that
    read a column do not meet in one bank.
    """
    x, y = f["x"], f["y"]
    tile = x.cache_after()
    sums = y.cache_before()
    y.split(0, rows)
    y.split(2, columns)
    y.reorder({1: 2, 2: 1})  # [N / rows, D / columns, rows, columns]
    sums.compute_at(y, 2)
    tile.compute_at(sums, 2)
    y.parallelize({0: ln.ParallelType.grid_x, 3: ln.ParallelType.block_x})
    sums.parallelize({2: ln.ParallelType.block_x})
    tile.parallelize({3: ln.ParallelType.block_x})
    for held in (tile, sums):
        held.memory = ln.SHARED
        held.set_allocation(pad={3: max(1, 4 // y.dtype.size)})


@cumsum.schedule("cpu")
def cpu(f):
    """Rows go to the cores."""
    f["y"].parallelize({0: ln.ParallelType.cpu_parallel})


if __name__ == "__main__":
    ln.main()
