"""The bounds of a loop whose body stands under a condition of its index, for texts.

Such a loop is ``for i in extent: if BOUND: body`` for all that reads the nest; a text of it runs
over the numbers alone for which the condition holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from loopnest.kir.nodes import BOUND, If, Loop, Stmt
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Const,
    Expr,
    Op,
    integer,
    loads,
    substitute,
    terms_of,
    walk,
)
from loopnest.scalar.polynomials import index_op
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


def loop_bounds(loop: Loop, algebra: Simplifier, *, of_width: bool = False) -> LoopBounds | None:
    """Return the bounds of a loop; None where it has none but its extent.

    Args:
        loop: the loop.
        algebra: what is known of sizes.
        of_width: whether numbers have a width. Data may be the largest number that there is, or the
            least: they are brought near the extent first, before anything is added to them.
    """
    guard = loop.body[0] if len(loop.body) == 1 else None
    if not isinstance(guard, If) or guard.reason != BOUND or guard.orelse:
        return None
    start: Expr = ZERO
    stop = loop.var.extent
    for term in terms_of(guard.condition):
        found = gaps(term, algebra)
        if not found:  # a test that was joined with the bound, such as that of another branch
            return None
        for gap in found:
            count = slope(gap, loop.var, algebra)
            # A condition that is not linear in the index is no bound of it; one without it would
            # bound nothing.
            if not count:
                return None
            rest = algebra.simplify(substitute(gap, {loop.var: ZERO}))
            reach = algebra.mul(integer(abs(count)), loop.var.extent)
            if count < 0:
                # rest - |count| * i >= 0 is i <= floor(rest / |count|), and rest + count * i >= 0
                # is i >= ceil(-rest / count): floor and ceil over all integers, also where rest is
                # negative.
                if of_width and not _is_bare(rest, count, algebra):
                    rest = _between(rest, integer(-1), reach, algebra)
                last = algebra.floordiv(rest, integer(-count))
                behind = algebra.add(last, ONE)
                if loads(last) and algebra.poly(behind).get((), 0) > 0:
                    # What data say may be the largest number: nothing is added to it.
                    stop = algebra.add(algebra.min(last, algebra.sub(stop, ONE)), ONE)
                else:
                    stop = algebra.min(behind, stop)
            else:
                least = algebra.sub(ZERO, rest)
                if of_width and not _is_bare(least, count, algebra):
                    least = _between(least, ZERO, reach, algebra)
                start = algebra.max(start, algebra.ceildiv(least, integer(count)))
    return LoopBounds(start, stop, guard, guard.body)


def _is_bare(value: Expr, count: int, algebra: Simplifier) -> bool:
    """Whether a bound is what data say, maybe one less: it is compared as it is; or is no data."""
    poly = algebra.poly(value)
    # i < d is i <= d - 1, whose bound is d.
    added = [0, -1] if count < 0 else [0]
    factors = [number for term, number in poly.items() if term]
    bare = factors == [1] and poly.get((), 0) in added
    return not loads(value) or (abs(count) == 1 and bare)


def _between(value: Expr, low: Expr, high: Expr, algebra: Simplifier) -> Expr:
    """Return a sum with data as low or as high as these where it is beyond them.

    No number is computed on the way that lies further off than these and the rest of the sum: of
    what data say, the negative is only taken when it is near.
    """
    terms = algebra.poly(value)
    data = {t: n for t, n in terms.items() if any(loads(atom) for atom in t)}
    sign = -1 if all(n < 0 for n in data.values()) else 1
    part = algebra.sum(
        [algebra.mul(algebra.product(t), integer(sign * n)) for t, n in data.items()]
    )
    rest = algebra.sub(value, algebra.mul(part, integer(sign)))
    ends = [algebra.mul(algebra.sub(end, rest), integer(sign)) for end in (low, high)][::sign]
    near = index_op("min", index_op("max", part, ends[0]), ends[1])
    return algebra.add(algebra.mul(near, integer(sign)), rest)


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


def direction(gap: Expr, var: Expr, algebra: Simplifier) -> int | None:
    """Return 1 where an expression gets no smaller as an index grows, -1 where no larger.

    None where that is not known; an index may be divided, as by the lanes that have one row.
    """
    signs: set[bool] = set()
    for term, count in algebra.poly(gap).items():
        if not any(node is var for atom in term for node in walk(atom)):
            continue
        if len(term) != 1 or not _grows(term[0], var, algebra):
            return None
        signs.add(count > 0)
    if len(signs) > 1:
        return None
    return -1 if signs == {False} else 1


def _grows(atom: Expr, var: Expr, algebra: Simplifier) -> bool:
    if not isinstance(atom, Op):
        return atom is var
    by = atom.args[-1]
    divides = atom.op == "floordiv" and isinstance(by, Const) and by.value > 0
    return divides and direction(atom.args[0], var, algebra) == 1
