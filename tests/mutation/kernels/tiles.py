"""Kernels whose products an instruction computes, for mutants: small tiles, one or two warps."""

import loopnest as ln

PT = ln.ParallelType
ROW = "mma.m16n8k16.f32.f16"


@ln.kernel()
def product(f):
    a = f.input("a", ("M", "K"), ln.float16)
    b = f.input("b", ("K", "N"), ln.float16)
    f.output(ln.matmul(a, b, dtype=ln.float32), "c")


def by_tiles(f, warps):
    """Let each warp compute a tile, of slices of a and b in shared memory; return these."""
    c, a, b = f["c"], f["a"], f["b"]
    (multiplied,) = c.producers
    acc = c.cache_before()
    shared = [x.cache_after() for x in (a, b)]
    held = [s.cache_after() for s in shared]
    c.split(1, 8).split(0, 16).split(0, warps)
    c.reorder([0, 3, 1, 2, 4])  # blocks, warps, elements
    c.parallelize({0: PT.grid_y, 1: PT.grid_x, 2: PT.block_y})
    acc.compute_at(c, 2)
    acc.split(5, 16)
    acc.reorder([0, 1, 5, 2, 3, 4, 6])  # blocks, slices, warps, elements
    acc.parallelize({3: PT.block_y})
    for s, h in zip(shared, held, strict=True):
        s.memory, h.memory = ln.SHARED, ln.WARP
        s.compute_at(acc, 3)
        h.compute_at(acc, 4)
    acc.instruct(ROW, axes=(4, 5, 6))
    c.distribute(ln.instructions[ROW].operands["d"].fragment, axes=(3, 4))
    multiplied.compute_at(acc, -1)
    f.inline_most(multiplied.producers, replay=True)
    return shared


def spread(shared, warps):
    """Let all threads copy a slice, each 4 to 16 bytes of neighbours."""
    shared[1].reorder({-1: -2})
    for s, width in zip(shared, (8 // warps, 4 // warps), strict=True):
        s.merge(-2)
        s.split(-1, width)
        s.split(-2, 32).split(-3, warps)
        s.parallelize({-1: PT.vectorize, -2: PT.block_x, -3: PT.block_y})


@product.schedule("tile")
def product_tile(f):
    """One warp."""
    f.assume("M % 16 == 0")
    f.assume("N % 8 == 0")
    f.assume("K % 16 == 0")
    spread(by_tiles(f, 1), 1)


@product.schedule("flying")
def product_flying(f):
    """Two warps, of slices that are in flight."""
    f.assume("M % 32 == 0")
    f.assume("N % 8 == 0")
    f.assume("K % 64 == 0")
    shared = by_tiles(f, 2)
    spread(shared, 2)
    for s in shared:
        s.move_by("cp.async").circular_buffer(3)


@product.schedule("moved")
def product_moved(f):
    """One warp, whose operands are moved to its lanes by matrices."""
    f.assume("M % 16 == 0")
    f.assume("N % 8 == 0")
    f.assume("K % 16 == 0")
    shared = by_tiles(f, 1)
    for s, move in zip(shared, ("ldmatrix.x4", "ldmatrix.x2.trans"), strict=True):
        s.consumers[0].move_by(move)
    spread(shared, 1)
