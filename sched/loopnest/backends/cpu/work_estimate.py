"""How many values a parallel loop stores, for the number of threads that it pays for."""

from __future__ import annotations

from collections.abc import Sequence

from loopnest.kir import If, Loop, Stmt, Store
from loopnest.scalar import dtypes
from loopnest.scalar.expr import ONE, ZERO, Expr, Op, free_indices


def stores_of(chain: Sequence[Loop], body: tuple[Stmt, ...]) -> Expr | None:
    """Return how many stores the loops of `chain` perform, their tests all true.

    None where an extent changes from one iteration to the next: then nothing is known from outside.

    Args:
        chain: loops around each other, the outermost first.
        body: of the innermost one.
    """
    count = _stores(body)
    for loop in reversed(chain):
        count = _times(loop.var.extent, count)
    return None if count is None or free_indices(count) else count


def _stores(body: tuple[Stmt, ...]) -> Expr | None:
    total: Expr = ZERO
    for node in body:
        count = _of(node)
        if count is None:
            return None
        if count is not ZERO:
            total = count if total is ZERO else Op("add", (total, count), dtypes.index)
    return total


def _of(node: Stmt) -> Expr | None:
    match node:
        case Store():
            return ONE
        case Loop():
            return _times(node.var.extent, _stores(node.body))
        case If():
            either = _stores(node.body), _stores(node.orelse)
            if None in either:
                return None
            return either[1] if either[0] is ZERO else either[0]
    inner = getattr(node, "body", ())
    return _stores(inner)


def _times(extent: Expr, count: Expr | None) -> Expr | None:
    if count is None or free_indices(extent):
        return None
    if count is ZERO or extent is ONE:
        return count
    return extent if count is ONE else Op("mul", (extent, count), dtypes.index)
