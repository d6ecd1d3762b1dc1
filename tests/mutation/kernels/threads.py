"""Kernels whose values cross threads, for mutants: each way to synchronise once, and small.

Blocks and tiles are small, so that small sizes cross them.
"""

import loopnest as ln

PT = ln.ParallelType


@ln.kernel()
def row(f):
    x = f.input("x", ("N", "D"), ln.float32)
    f.output(ln.sum(x, axis=1), "y")


def reduced_by_a_block(f, threads):
    y = f["y"]
    y.split(1, threads)
    partial = y.rfactor(1)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    partial.compute_at(y, 1)
    partial.parallelize({2: PT.block_x})


@row.schedule("warp")
def row_warp(f, threads=32):
    """Shuffles alone."""
    reduced_by_a_block(f, threads)


@row.schedule("block")
def row_block(f, threads=64):
    """Shuffles, then a slot for each warp in shared memory."""
    reduced_by_a_block(f, threads)


@row.schedule("odd")
def row_odd(f, threads=33):
    """A warp that is not whole."""
    reduced_by_a_block(f, threads)


@ln.kernel()
def column(f):
    x = f.input("x", ("N", "D"), ln.float32)
    f.output(ln.sum(x, axis=0), "y")


@column.schedule("folded")
def column_folded(f, rows=12, columns=8):
    """Threads of a column lie apart: it is folded by halves in shared memory."""
    y = f["y"]
    y.split(1, columns)
    y.split(0, rows)
    partial = y.rfactor(0)
    y.parallelize({0: PT.block_y, 1: PT.grid_x, 2: PT.block_x})
    partial.compute_at(y, 0)
    partial.parallelize({1: PT.block_y, 2: PT.grid_x, 3: PT.block_x})


def column_lanes(f, threads, lanes=4):
    y = f["y"]
    whole = y.cache_before()
    y.split(0, lanes)
    y.parallelize({0: PT.grid_x, 1: PT.vectorize})
    whole.compute_at(y, 1)
    whole.split(2, threads)  # [D / lanes, lanes, N / threads, threads]
    whole.reorder({1: -1})
    whole.parallelize({2: PT.block_x, 3: PT.unroll})
    return whole


@column.schedule("joint_warps")
def column_joint_warps(f, threads=64):
    """Four sums a thread: shuffles of all, then a slot for each sum of a warp."""
    column_lanes(f, threads)


@column.schedule("joint_odd")
def column_joint_odd(f, threads=33):
    """Four sums a thread, in a block whose last warp is not whole."""
    column_lanes(f, threads)


@column.schedule("joint_folded")
def column_joint_folded(f, threads=12, columns=3, lanes=2):
    """Two sums a thread, folded by halves."""
    y = f["y"]
    whole = y.cache_before()
    y.split(0, lanes)
    y.split(0, columns)
    y.parallelize({0: PT.grid_x, 1: PT.block_x, 2: PT.vectorize})
    whole.compute_at(y, 2)
    whole.split(3, threads)
    whole.reorder({2: -1})
    whole.parallelize({3: PT.block_y, 4: PT.unroll})


@column.schedule("joint_grid")
def column_joint_grid(f, threads=8, parts=3):
    """Four sums a thread, over the threads of a block and over blocks."""
    whole = column_lanes(f, threads)
    whole.split(1, parts, inner=False)
    whole.axis(1).parallelize(PT.grid_y)


@ln.kernel()
def share(f):
    x = f.input("x", ("N", "D"), ln.float32)
    f.output(x / ln.sum(x * x, axis=1, keepdims=True), "y")


@share.schedule("block")
def share_block(f, threads=64):
    """The sum of a row goes back to all threads of its block."""
    y = f["y"]
    total = next(t for t in f.tensors if any(a.is_reduction for a in t.root_domain))
    total.split(1, threads)
    partial = total.rfactor(1)
    y.split(1, threads)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    total.compute_at(y, 1)
    partial.compute_at(total, 1)
    total.axis(-1).parallelize(PT.block_x)
    partial.axis(-1).parallelize(PT.block_x)
    f.inline_most()


@ln.kernel()
def staged(f):
    x = f.input("x", ("N", "D"), ln.float32)
    f.output(ln.permute(x, (1, 0)) * 2.0, "y")


@staged.schedule("tile")
def staged_tile(f, tile=8):
    """A tile passes through shared memory, written by other threads than those that read it."""
    y = f["y"]
    t = f["x"].cache_after()
    t.memory = ln.SHARED
    y.split(1, tile)
    y.split(0, tile)
    y.reorder({1: 2})
    t.compute_at(y, 2)
    ln.inline_most(y.producers)
    y.parallelize({0: PT.grid_y, 1: PT.grid_x, 2: PT.block_y, 3: PT.block_x})
    t.parallelize({2: PT.block_x, 3: PT.block_y})


@staged.schedule("loop")
def staged_loop(f, tile=8):
    """A block goes through several tiles: the buffer is used again."""
    y = f["y"]
    t = f["x"].cache_after()
    t.memory = ln.SHARED
    y.split(1, tile)
    y.split(0, tile)
    y.reorder({1: 2})
    t.compute_at(y, 2)
    ln.inline_most(y.producers)
    y.parallelize({0: PT.grid_y, 2: PT.block_y, 3: PT.block_x})
    t.parallelize({2: PT.block_x, 3: PT.block_y})


@ln.kernel()
def total(f):
    x = f.input("x", ("N",), ln.float32)
    f.output(ln.sum(x, axis=0), "y")


@total.schedule("grid")
def total_grid(f, threads=32):
    """All blocks reduce together; the last of them has the result."""
    y = f["y"]
    y.split(0, threads)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})


@ln.kernel()
def two(f):
    x = f.input("x", ("N", 16), ln.float32)
    a = ln.exp(x).named("a")
    b = (ln.sum(a, axis=1, keepdims=True) * 2.0).named("b")
    f.output(x * b + a, "y")


@two.schedule("shared")
def two_shared(f):
    """Two buffers in shared memory, at different times or at the same."""
    y, a, b = f["y"], f["a"], f["b"]
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    b.compute_at(y, 1)
    a.compute_at(y, 1)
    a.memory = b.memory = ln.SHARED
    a.parallelize({1: PT.block_x})
