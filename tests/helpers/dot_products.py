"""Products scheduled for an instruction of one thread, with packed copies of both operands."""

from __future__ import annotations

import loopnest as ln


def dot_product(name: str, rows: int = 3, parts: int = 2) -> ln.Fusion:
    """Return a product of a [M, K] and b [K, N] by the row `name`, proved for no size yet.

    A tile of c has `rows` rows and `parts` vectors.
    """
    row = ln.instructions[name]
    lanes, depth = row.extents["n"], row.extents["k"]
    total_type = row.operands["d"].dtype
    with ln.Fusion("product") as f:
        a = f.input("a", ("M", "K"), row.operands["a"].dtype)
        b = f.input("b", ("K", "N"), row.operands["b"].dtype)
        wide = [x if x.dtype is total_type else ln.cast(x, total_type) for x in (a, b)]
        c = f.output(ln.matmul(*wide, dtype=total_type), "c")
    (product,) = c.producers
    total = c.cache_before()
    left, right = a.cache_after(), b.cache_after()
    c.split("N", lanes)
    c.split(1, parts)
    c.split("M", rows)
    c.reorder({2: 0})  # [N / 32, M / 3, 3, 2, 16]
    right.compute_at(c, 1)
    left.compute_at(c, 2)
    total.compute_at(c, 2)
    total.split(-1, depth)
    total.reorder({-2: 2})  # [..., K / 2, 3, 2, 16, 2]
    left.split(-1, depth)
    right.split(-1, depth)
    right.reorder({-2: 1})
    total.instruct(name, axes=(-2, -1))
    total.parallelize({3: ln.ParallelType.unroll, 4: ln.ParallelType.unroll})
    product.compute_at(total, -1)
    ln.inline_most([t for t in f.tensors if t not in (a, b, left, right, total, c)], replay=True)
    return f
