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
def gpu_block(f, lanes=None):
    """A block owns a row: a thread scans `lanes` neighbours, for rows up to 1024 * `lanes` long.

    What the threads' parts fold to they scan together: by shuffles within a warp, and with one slot
    of shared memory a warp.
    """
    x, y = f["x"], f["y"]
    y.split(1, lanes or 16 // y.dtype.size)  # [N, D / lanes, lanes]
    sums, totals, before = segments_of(y, 2)
    row = x.cache_after()
    for tensor in (sums, totals, before):
        tensor.compute_at(y, 1)
    row.compute_at(sums, 2)
    y.parallelize({0: ln.ParallelType.grid_x})
    for tensor in (y, sums, totals, before):
        tensor.axis(1).parallelize(ln.ParallelType.block_x)
    for tensor in (row, y):
        tensor.axis(-1).parallelize(ln.ParallelType.vectorize)
    sums.axis(-1).parallelize(ln.ParallelType.unroll)


@cumsum.schedule("gpu_warps")
def gpu_warps(f, rows=8, threads=32):
    """`threads` lanes own a row, of any length, a block `rows` of them: neighbours read neighbours.

    The lanes scan as many elements by shuffles, and carry the sum of all before to the next ones;
    no shared memory, no barrier.
    """
    y = f["y"]
    y.split(0, rows)
    y.split(2, threads)  # [N / rows, rows, D / threads, threads]
    grid, block = ln.ParallelType.grid_x, ln.ParallelType.block_x
    y.parallelize({0: grid, 1: ln.ParallelType.block_y, 3: block})


@cumsum.schedule("gpu_items")
def gpu_items(f, threads=128, lanes=None):
    """A block owns a row of any length, and goes through it `threads` * `lanes` elements at a time.

    A thread loads `lanes` neighbours at once and keeps them in registers. The threads exchange what
    theirs fold to; then each goes through its own again, from what lies before them on. What all
    fold to is carried on in a register.
    """
    x, y = f["x"], f["y"]
    row, sums = x.cache_after(), y.cache_before()
    y.split(1, lanes or 16 // y.dtype.size)
    y.split(1, threads)  # [N, D / .., threads, lanes]
    sums.compute_at(y, 3)
    row.compute_at(sums, 3)
    y.parallelize({0: ln.ParallelType.grid_x, 2: ln.ParallelType.block_x})
    for tensor in (row, y):
        tensor.axis(-1).parallelize(ln.ParallelType.vectorize)
    sums.axis(-1).parallelize(ln.ParallelType.unroll)


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
    of that, the sums within a block (which its threads scan together), the totals of blocks, and
    what lies before each block.
    """
    y = f["y"]
    y.split(0, lanes)
    y.split(0, threads)  # [N / 2048, 128, 16]
    sums, totals, before = segments_of(y, 2)
    before.split(0, threads)
    inside, several, far = segments_of(before, 1)  # of a block, and of the grid
    totals.split(0, threads)
    grid, block = ln.ParallelType.grid_x, ln.ParallelType.block_x
    for tensor in (y, sums, totals, before, inside):
        tensor.parallelize({0: grid, 1: block})
    part = f["x"].cache_after()
    part.compute_at(sums, 2)
    for tensor in (y, part):
        tensor.split(2, 16 // y.dtype.size)
        tensor.parallelize({2: ln.ParallelType.unroll, 3: ln.ParallelType.vectorize})
    sums.axis(2).parallelize(ln.ParallelType.unroll)
    several.axis(0).parallelize(grid)
    return sums, totals, before, inside, several, far


def scan_blocks(far, threads):
    """Let one block scan the totals of all blocks, `threads` at a time."""
    far.split(0, threads)
    far.axis(1).parallelize(ln.ParallelType.block_x)


@cumsum_long.schedule("gpu")
def gpu_long(f, threads=128, lanes=16):
    """A block owns a part of the array, a thread `lanes` neighbours in registers.

    The threads of a block scan their totals by shuffles. Blocks write the sums of their parts, wait
    for each other, and one block scans these; so each element is read and written once. The grid
    must be resident at once.
    """
    _, totals, _, inside, several, far = scan_in_blocks(f, threads, lanes)
    totals.memory = inside.memory = ln.SHARED
    several.memory = far.memory = ln.GLOBAL
    scan_blocks(far, threads)


@cumsum_long.schedule("gpu_launches")
def gpu_long_launches(f, threads=128, lanes=16):
    """Three launches, no grid that must be resident at once: any number of blocks will do.

    A block scans 2048 neighbours as in "gpu", but leaves them in workspace. In the second launch
    one block scans the totals of all blocks. In the third all blocks add what lies before. Each
    element is read and written twice.
    """
    sums, totals, before, inside, several, far = scan_in_blocks(f, threads, lanes)
    totals.memory = ln.SHARED
    for tensor in (sums, inside, several, far):
        tensor.memory = ln.GLOBAL
    scan_blocks(far, threads)
    far.new_launch()
    f["y"].new_launch()
    before.compute_at(f["y"], 2)


@cumsum_long.schedule("cpu")
def cpu_long(f, part=2064, several=4, lanes=None):
    """Cores sum parts of the array by vectors; one scans the sums; cores scan the parts from these.

    So the array is read twice and written once. A step of a scan waits for the one before it: a
    core goes through `several` parts at once, whose steps do not wait for each other. Their
    elements are no power of two apart, or they would share few places of the first-level cache.
    """
    y = f["y"]
    y.split(0, part)
    y.split(0, several)  # [N / .., several, part]
    sums = y.rfactor(2, refold=True)
    before = y.producers[0]
    totals = before.producers[0]

    totals.split(1, lanes or 64 // totals.dtype.size)  # [N / part, part / lanes, lanes]
    vectors = totals.rfactor(1)
    vectors.compute_at(totals, 1)
    vectors.axis(-1).parallelize(ln.ParallelType.vectorize)

    y.reorder({1: 2})
    y.split(1, 1, inner=False)  # [N / .., 1, part, several]
    y.parallelize({1: ln.ParallelType.unswitch, 3: ln.ParallelType.unroll})
    sums.compute_at(y, 4)
    for tensor in (y, totals):
        tensor.axis(0).parallelize(ln.ParallelType.cpu_parallel)
    totals.memory = before.memory = ln.GLOBAL


if __name__ == "__main__":
    ln.main()
