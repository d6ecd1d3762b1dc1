"""The running sums of each row, y[n, d] = sum of x[n, 0..d], and of one long array.

A scan: each element is what the elements up to it fold to, so the loop along a row goes step by
step and carries a sum. Rows go to threads, or to cores; or `rfactor` cuts a row into segments that
are scanned side by side, while the sums of what lies before them are scanned apart.

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


def segments_of(y, place):
    """Factor the leaf axis `place` out of the scan `y`.

    Returns the scan of each segment, the totals of the segments, and what lies before each.
    """
    inside = y.rfactor(place)
    before = y.producers[0]
    return inside, before.producers[0], before


@cumsum.schedule("gpu_block")
def gpu_block(f, lanes=None, some=16):
    """A block owns a row: a thread scans `lanes` neighbours, for rows up to 1024 * `lanes` long.

    The totals of the threads are scanned in shared memory, `some` by a thread, and the totals of
    these by one thread: for a row of 1024 elements 4, 16 and 16 steps in place of 1024.
    """
    x, y = f["x"], f["y"]
    y.split(1, lanes or 16 // y.dtype.size)  # [N, D / lanes, lanes]
    sums, totals, before = segments_of(y, 2)
    before.split(1, some)
    inside, several, far = segments_of(before, 2)
    row = x.cache_after()
    for tensor in (sums, totals, inside, several, far, before):
        tensor.compute_at(y, 1)
    row.compute_at(sums, 2)
    before.merge(1)
    block, vector = ln.ParallelType.block_x, ln.ParallelType.vectorize
    y.parallelize({0: ln.ParallelType.grid_x})
    for tensor in (y, sums, totals, inside, several, before):
        tensor.axis(1).parallelize(block)
    for tensor in (row, y):
        tensor.axis(-1).parallelize(vector)
    sums.axis(-1).parallelize(ln.ParallelType.unroll)
    inside.axis(-1).parallelize(ln.ParallelType.unswitch)
    for tensor in (totals, inside, several, far, before):
        tensor.memory = ln.SHARED


@cumsum.schedule("cpu")
def cpu(f):
    """Rows go to the cores."""
    f["y"].parallelize({0: ln.ParallelType.cpu_parallel})


def long_numpy(x):
    return x.cumsum()


@ln.kernel(sizes={"N": 1 << 20}, reference=long_numpy)
def cumsum_long(f, dtype=ln.float32):
    x = f.input("x", ("N",), dtype)
    f.output(ln.cumsum(x, axis=0), "y")


def scan_in_blocks(f, threads, lanes):
    """Give each block a part of the array, each thread `lanes` neighbours in registers.

    Returns the sums within each thread's part and their totals; what lies before each thread; and,
    of that, the sums within a block, the totals of blocks, and what lies before each block.
    """
    y = f["y"]
    y.split(0, lanes)
    y.split(0, threads)  # [N / 2048, 128, 16]
    sums, totals, before = segments_of(y, 2)
    before.split(0, threads)
    inside, several, far = segments_of(before, 1)  # of a block, and of the grid
    totals.split(0, threads)
    grid, block = ln.ParallelType.grid_x, ln.ParallelType.block_x
    for tensor in (y, sums, totals, before):
        tensor.parallelize({0: grid, 1: block})
    part = f["x"].cache_after()
    part.compute_at(sums, 2)
    for tensor in (y, part):
        tensor.split(2, 16 // y.dtype.size)
        tensor.parallelize({2: ln.ParallelType.unroll, 3: ln.ParallelType.vectorize})
    sums.axis(2).parallelize(ln.ParallelType.unroll)
    for tensor in (inside, several):
        tensor.axis(0).parallelize(grid)
    inside.axis(1).parallelize(ln.ParallelType.unswitch)
    return sums, totals, before, inside, several, far


@cumsum_long.schedule("gpu")
def gpu_long(f, threads=128, lanes=16):
    """A block owns a part of the array, a thread `lanes` neighbours in registers.

    One thread of a block scans the totals of all. Blocks write the sums of their parts, wait for
    each other, and one thread scans these; so each element is read and written once. The grid must
    be resident at once.
    """
    _, totals, _, inside, several, far = scan_in_blocks(f, threads, lanes)
    for tensor in (totals, inside):
        tensor.memory = ln.SHARED
    several.memory = far.memory = ln.GLOBAL


@cumsum_long.schedule("gpu_launches")
def gpu_long_launches(f, threads=128, lanes=16, some=32):
    """Three launches, no grid that must be resident at once: any number of blocks will do.

    A block scans 2048 neighbours as in "gpu", but leaves them in workspace. In the second launch
    one block scans the totals of all blocks, `some` by a thread, for arrays of up to 64 million
    elements. In the third all blocks add what lies before. Each element is read and written twice.
    """
    sums, totals, before, inside, several, far = scan_in_blocks(f, threads, lanes)
    totals.memory = ln.SHARED
    for tensor in (sums, inside, several, far):
        tensor.memory = ln.GLOBAL

    far.split(0, some)
    own, parts, carried = segments_of(far, 1)
    for tensor in (own, parts, far):
        tensor.axis(0).parallelize(ln.ParallelType.block_x)
    own.memory = parts.memory = carried.memory = ln.SHARED
    own.new_launch()
    f["y"].new_launch()
    before.compute_at(f["y"], 2)


@cumsum_long.schedule("cpu")
def cpu_long(f, part=1 << 14):
    """A core scans parts of the array side by side; one scans their sums."""
    y = f["y"]
    y.split(0, part)
    sums, totals, before = segments_of(y, 1)
    for tensor in (y, sums, totals):
        tensor.axis(0).parallelize(ln.ParallelType.cpu_parallel)
    for tensor in (y, sums):
        tensor.axis(1).parallelize(ln.ParallelType.unswitch)
    sums.memory = totals.memory = before.memory = ln.GLOBAL


if __name__ == "__main__":
    ln.main()
