"""Conditions on indices and sizes: what of them is decided before a launch.

Proofs about the indices inside of loops take every size as at least 1 (`loopnest.scalar.simplify`).
The condition of a ``where`` must hold also where a size that it names is 0: a padded tensor has
elements where its producer has none. Here sizes are what assumptions say, and may else be 0.
"""

from __future__ import annotations

from collections.abc import Callable

from loopnest.scalar import dtypes
from loopnest.scalar.expr import FALSE, ONE, TRUE, Expr, Op, free_indices, integer, rebuild
from loopnest.scalar.simplify import Simplifier

_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def le(a: Expr, b: Expr, algebra: Simplifier) -> Expr:
    """Return ``a <= b``, or TRUE or FALSE where it is decided at every launch."""
    if algebra.holds_le(a, b):
        return TRUE
    if algebra.holds_le(algebra.add(b, ONE), a):
        return FALSE
    return Op("le", (a, b), dtypes.bool_)


def lt(a: Expr, b: Expr, algebra: Simplifier) -> Expr:
    """Return ``a < b``, or TRUE or FALSE where it is decided at every launch."""
    if algebra.holds_le(algebra.add(a, ONE), b):
        return TRUE
    if algebra.holds_le(b, a):
        return FALSE
    return Op("lt", (a, b), dtypes.bool_)


def normal_le(a: Expr, b: Expr, algebra: Simplifier) -> Expr:
    """Return ``a <= b`` with no term subtracted, as in ``2 <= N`` for ``0 <= N - 2``."""
    terms = algebra.poly(algebra.sub(b, a))
    left, right = [
        algebra.sum(
            algebra.mul(algebra.product(term), integer(abs(count)))
            for term, count in terms.items()
            if (count < 0) == negative
        )
        for negative in (True, False)
    ]
    return le(left, right, algebra)


def decided(value: Expr, algebra: Simplifier) -> Expr:
    """Return `value` with its indices simplified, and what conditions on them decide.

    A ``where`` whose condition is decided is the value that it chooses. What is computed from the
    number of an element is asked where that element is, so that no size is 0 there.
    """
    memo: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        found = memo.get(node)
        if found is None:
            found = memo[node] = _decided(node, visit, algebra)
        return found

    return visit(value)


def _decided(node: Expr, visit: Callable[[Expr], Expr], algebra: Simplifier) -> Expr:
    if not isinstance(node, Op):
        return node
    if node.op in _COMPARISONS and node.args[0].dtype is dtypes.index:
        return _compared(node, algebra)
    if node.dtype is dtypes.index:
        return algebra.simplify(node) if free_indices(node) else node
    args = tuple([visit(arg) for arg in node.args])
    return _chosen(node, args) if node.op in ("and", "or", "where") else rebuild(node, args)


def _compared(node: Op, algebra: Simplifier) -> Expr:
    a, b = [algebra.simplify(arg) for arg in node.args]
    match node.op:
        case "lt":
            return lt(a, b, algebra)
        case "le":
            return le(a, b, algebra)
        case "eq" if algebra.equal(a, b):
            return TRUE
    return Op(node.op, (a, b), node.dtype)


def _chosen(node: Op, args: tuple[Expr, ...]) -> Expr:
    if node.op == "where":
        if args[0] in (TRUE, FALSE):
            return args[1] if args[0] is TRUE else args[2]
        return rebuild(node, args)
    absorbing, neutral = (FALSE, TRUE) if node.op == "and" else (TRUE, FALSE)
    kept = [arg for arg in args if arg is not neutral]
    if absorbing in kept:
        return absorbing
    if len(kept) < 2:
        return kept[0] if kept else neutral
    return Op(node.op, tuple(kept), node.dtype)
