"""The bounds of a loop whose body stands under a condition of its index, for texts.

Such a loop is ``for i in extent: if BOUND: body`` for all that reads the nest; a text of it runs
over the numbers alone for which the condition holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from loopnest.kir.nodes import BOUND, If, Loop, Stmt
from loopnest.scalar.expr import ONE, ZERO, Expr, Op, integer, loads, substitute, terms_of, walk
from loopnest.scalar.simplify import Simplifier


@dataclass(frozen=True, eq=False, slots=True)
class LoopBounds:
    """The iterations that a loop runs: from `start` on, below `stop`, all within its extent.

    Args:
        start: the first.
        stop: behind the last.
        guard: the condition that says so.
        body: what runs.
    """

    start: Expr
    stop: Expr
    guard: If
    body: tuple[Stmt, ...]


def loop_bounds(loop: Loop, algebra: Simplifier) -> LoopBounds | None:
    """Return the bounds of a loop; None where it has none but its extent."""
    guard = loop.body[0] if len(loop.body) == 1 else None
    if not isinstance(guard, If) or guard.reason != BOUND or guard.orelse:
        return None
    start: Expr = ZERO
    stop = loop.var.extent
    for term in terms_of(guard.condition):
        for gap in gaps(term, algebra):
            count = slope(gap, loop.var, algebra)
            # A condition that is not linear in the index is no bound of it; one without it would
            # bound nothing.
            if not count:
                return None
            rest = algebra.simplify(substitute(gap, {loop.var: ZERO}))
            if count < 0:
                # rest - |count| * i >= 0 is i <= floor(rest / |count|), and rest + count * i >= 0
                # is i >= ceil(-rest / count): floor and ceil over all integers, also where rest is
                # negative.
                last = algebra.floordiv(rest, integer(-count))
                behind = algebra.add(last, ONE)
                if loads(last) and algebra.poly(behind).get((), 0) > 0:
                    # What data say may be the largest number: nothing is added to it.
                    stop = algebra.add(algebra.min(last, algebra.sub(stop, ONE)), ONE)
                else:
                    stop = algebra.min(behind, stop)
            else:
                first = algebra.ceildiv(algebra.sub(ZERO, rest), integer(count))
                start = algebra.max(start, first)
    return LoopBounds(start, stop, guard, guard.body)


def gaps(term: Expr, algebra: Simplifier) -> list[Expr]:
    """Return expressions of which none is negative just where a comparison of indices holds."""
    if not isinstance(term, Op) or term.op not in ("le", "lt", "eq"):
        return []
    gap = algebra.sub(term.args[1], term.args[0])
    if term.op == "eq":
        return [gap, algebra.sub(ZERO, gap)]
    return [gap if term.op == "le" else algebra.sub(gap, ONE)]


def slope(gap: Expr, var: Expr, algebra: Simplifier) -> int | None:
    """Return by how much an expression grows with an index; None where it is not linear in it."""
    poly = algebra.poly(gap)
    others = [atom for term in poly if term != (var,) for atom in term]
    if any(node is var for atom in others for node in walk(atom)):
        return None
    return poly.get((var,), 0)
