"""A product in tiles of symbolic number: in groups of rows, by blocks that take tile after tile."""

import loopnest as ln

PT = ln.ParallelType


def product_numpy(a, b):
    return a @ b


@ln.kernel(sizes={"M": 40, "N": 24, "K": 12}, reference=product_numpy)
def tiled_gemm(f):
    a = f.input("a", ("M", "K"), ln.float32)
    b = f.input("b", ("K", "N"), ln.float32)
    f.output(ln.matmul(a, b), "c")


def in_groups(c, group):
    """Split c to tiles of 8 x 4, and number them column by column in each `group` rows."""
    c.split(1, 4)
    c.split(0, 8)
    c.reorder({2: 1})
    c.split(0, group)
    c.reorder({2: 1})
    c.merge(1)
    c.merge(0)


def in_shared_memory(f, at):
    """Let a block sum the products of a tile of c from slices of a and b in shared memory."""
    c, total = f["c"], f["total"]
    (partial,) = total.producers
    slices = [f[name].cache_after() for name in ("a", "b")]
    total.compute_at(c, at)
    total.split(-1, 4)
    total.reorder({-2: at})
    for held in slices:
        held.memory = ln.SHARED
        held.compute_at(total, at + 1)
        held.split(-1, 4)
    f.inline_most([partial, *partial.producers])
    for tensor in (c, total):
        first = at if tensor is c else at + 1
        tensor.parallelize({first: PT.block_y, first + 1: PT.block_x})
    for held in slices:
        held.merge(-3)
        held.parallelize({-2: PT.block_y, -1: PT.block_x})


@tiled_gemm.schedule("grouped")
def grouped(f, group=2):
    """A block for each tile."""
    f["c"].cache_before().named("total")
    in_groups(f["c"], group)
    f["c"].parallelize({0: PT.grid_x})
    in_shared_memory(f, 1)


@tiled_gemm.schedule("persistent")
def persistent(f, group=2, blocks=3, inner=True):
    """So many blocks, each of which takes tile after tile; `inner` tells which ones."""
    f["c"].cache_before().named("total")
    in_groups(f["c"], group)
    f["c"].split(0, blocks, inner=inner)
    f["c"].parallelize({1 if inner else 0: PT.grid_x})
    in_shared_memory(f, 2)


@tiled_gemm.schedule("serial")
def serial(f, group=2):
    """One core, tile after tile."""
    f["c"].cache_before().named("total")
    in_groups(f["c"], group)
    f["total"].compute_at(f["c"], 1)
    f.inline_most()


@tiled_gemm.schedule("diagonal")
def diagonal(f):
    """Groups of columns inside of groups of rows: a number with four digits."""
    c = f["c"]
    c.split(1, 4)
    c.split(1, 3)
    c.split(0, 8)
    c.split(0, 2)  # [M / 16, 2, 8, N / 12, 3, 4]
    c.reorder([0, 3, 1, 4, 2, 5, 6])
    for _ in range(3):
        c.merge(0)
    c.parallelize({0: PT.grid_x})
    f.inline_most()
