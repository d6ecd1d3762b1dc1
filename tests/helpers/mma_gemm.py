"""A matrix product by an instruction of the table, over tiles in shared memory: a schedule."""

from __future__ import annotations

import loopnest as ln
from loopnest.scalar.dtypes import DType

P = ln.ParallelType


def mma_gemm(
    name: str,
    f: ln.Fusion | None = None,
    *,
    out: DType | None = None,
    warps: tuple[int, int] = (1, 1),
    tiles: tuple[int, int, int] = (2, 2, 2),
    stages: int = 1,
    whole: bool = True,
) -> ln.Fusion:
    """Return c = a @ b by the row `name`; `tiles` of it along m, n, k are a warp's.

    With `whole`, tiles of a block are taken to divide the sizes.
    """
    row = ln.instructions[name]
    rows, columns, depth = row.extents.values()
    f = ln.Fusion("mma_gemm") if f is None else f
    with f:
        a = f.input("a", ("M", "K"), row.operands["a"].dtype)
        b = f.input("b", ("K", "N"), row.operands["b"].dtype)
        if out is None:
            c = f.output(ln.matmul(a, b, dtype=row.operands["d"].dtype), "c")
        else:
            c = f.output(ln.matmul(a, b), "c")
    if whole:
        f.assume(f"M % {rows * tiles[0] * warps[0]} == 0")
        f.assume(f"N % {columns * tiles[1] * warps[1]} == 0")
        f.assume(f"K % {depth * tiles[2]} == 0")
    (product,) = c.producers
    acc = c.cache_before()
    shared = [x.cache_after() for x in (a, b)]
    held = [s.cache_after() for s in shared]
    for axis, factors in (1, (columns, tiles[1], warps[1])), (0, (rows, tiles[0], warps[0])):
        for factor in factors:
            c.split(axis, factor)
    c.reorder([0, 4, 1, 5, 2, 6, 3, 7])  # blocks, warps, tiles, elements: of m, of n
    c.parallelize({0: P.grid_y, 1: P.grid_x, 2: P.block_z, 3: P.block_y})
    acc.compute_at(c, 2)  # [blocks, warps, tiles, elements, K]
    acc.split(8, depth).split(8, tiles[2])
    acc.reorder([0, 1, 8, 2, 3, 9, 4, 5, 6, 7, 10])  # [blocks, slices, warps, steps, tiles, m n k]
    acc.parallelize({3: P.block_z, 4: P.block_y})
    for s, h in zip(shared, held, strict=True):
        s.memory, h.memory = ln.SHARED, ln.WARP
        s.compute_at(acc, 3)
        h.compute_at(acc, 6)
    acc.instruct(name, axes=(8, 9, 10))
    d = row.operands["d"].fragment
    assert d is not None
    c.distribute(d, axes=(6, 7))
    for s in shared:
        s.merge(-2)
        s.split(-1, 32).split(-2, warps[1]).split(-3, warps[0])
        s.parallelize({-1: P.block_x, -2: P.block_y, -3: P.block_z})
        if stages > 1:
            s.circular_buffer(stages)
    product.compute_at(acc, -1)
    f.inline_most(product.producers, replay=True)
    return f


def moved(name: str, moves: tuple[str, str] = ("x4", "x2"), **shape: object) -> ln.Fusion:
    """Return a product whose operands go to lanes by ldmatrix."""
    f = mma_gemm(name, **shape)  # type: ignore[arg-type]
    for tensor, kind in zip([t for t in f.tensors if t.memory is ln.WARP], moves, strict=True):
        tensor.move_by(f"ldmatrix.{kind}")
    return f
