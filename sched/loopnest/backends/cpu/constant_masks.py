"""Loops that a C compiler must not unroll: there the mask of a gather would be a constant.

A test in a loop that is vectorized is a mask, and under it a load of elements that are no
neighbours is a masked gather. Where the loop has few iterations and is unrolled afterwards, a test
of its index against a number is a constant::

    for i in 128:
      if i < 16:
        y[i] = x[i % 4, i // 4]

gcc 12 makes such a mask of ones where AVX2 asks for the sign bits of floats, so that nothing is
loaded, and zeros are stored. A loop that stays a loop computes its masks.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopnest.kir import If, Loop, Stmt, expressions, walk
from loopnest.scalar.expr import Const, Expr, Index, Load, Op, free_indices, loads, variables

MAX_UNROLL = 256
"""Loops of more iterations are not unrolled whole."""


def kept_whole(loop: Loop) -> Sequence[str]:
    """Return the pragma that keeps the compiler from unrolling a loop, where it must not."""
    return ("#pragma GCC unroll 1",) if has_constant_masks(loop) else ()


def has_constant_masks(loop: Loop) -> bool:
    """Whether a test in a loop compares its index with numbers alone, and decides over gathers."""
    if not isinstance(loop.extent, int) or loop.extent > MAX_UNROLL:
        return False
    nodes = [node for node, _ in walk(loop.body)]
    # In a loop over the threads of a block, their numbers go by the names of the loops bound to it.
    bound = [node.var for node in nodes if isinstance(node, Loop) and node.parallel.is_thread]
    return any(
        isinstance(node, If)
        and var in free_indices(node.condition)
        and _is_static(node.condition)
        and any(_gathers(load, var) for load in _loads(node))
        for node in nodes
        for var in (loop.var, *bound)
    )


def _is_static(cond: Expr) -> bool:
    """Whether nothing but indices of loops of known extents decides a test."""
    return all(isinstance(v, Index) and isinstance(v.extent, Const) for v in variables(cond))


def _loads(node: Stmt) -> set[Load]:
    inner = [node, *[below for below, _ in walk((node,))]]
    return {load for below in inner for value in expressions(below) for load in loads(value)}


def _gathers(load: Load, index: Index) -> bool:
    """Whether iterations of a loop load elements that are no neighbours."""
    *outer, last = load.args
    return any(index in free_indices(place) for place in outer) or not _steps_by_one(last, index)


def _steps_by_one(place: Expr, index: Index) -> bool:
    """Whether an index does not depend on a loop, or is a sum in which its own is a term."""
    if place is index or index not in free_indices(place):
        return True
    if isinstance(place, Op) and place.op == "add":
        return all(_steps_by_one(term, index) for term in place.args)
    return False
