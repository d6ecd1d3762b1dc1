"""Which innermost loops choose by their index between a value and what stands outside of a tensor.

The choice holds in a range of iterations: the loop becomes three, none of which has a test. C
compilers copy the middle one in vectors; of a load under a test they make a gather, or nothing::

    for i in X + 2:                                    for i up to 1: row[i] = 0.0
      row[i] = where(0 <= i - 1 and i - 1 < X,    ->   for i up to X + 1: row[i] = x[i - 1]
                     x[i - 1], 0.0)                    for i up to X + 2: row[i] = 0.0
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from loopnest.kir import Allocate, If, Let, Loop, Stmt, Store, expressions, map_expressions
from loopnest.kir.loop_bounds import gaps, slope
from loopnest.scalar import dtypes
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Const,
    Expr,
    Index,
    Local,
    Op,
    all_of,
    free_indices,
    integer,
    loads,
    substitute,
    terms_of,
    walk,
)
from loopnest.scalar.simplify import Simplifier

Piece = tuple[Expr, tuple[Stmt, ...]]
"""Where iterations stop, and what they do."""

LEAST = 16
"""Shorter loops are unrolled, and then each iteration has a test of its own, or none."""


def border_pieces(
    body: tuple[Stmt, ...], var: Index, stop: Expr, algebra: Simplifier
) -> tuple[Piece, ...]:
    """Return the loops that do what a loop does; that loop alone where it has no such choice.

    Args:
        body: what an ordinary loop does.
        var: its index.
        stop: behind its last iteration.
        algebra: for the bounds.
    """
    whole = ((stop, body),)
    if isinstance(var.extent, Const) and var.extent.value < LEAST:
        return whole
    if not all(isinstance(node, (Allocate, Let, Store)) for node in body):
        return whole
    values = [value for node in body for value in expressions(node)]
    choices = list(dict.fromkeys(c for value in values for c in _choices(value, var, algebra)))
    conditions = dict.fromkeys(c.args[0] for c in choices)
    terms = list(dict.fromkeys(term for test in conditions for term in terms_of(test)))
    found = _range(terms, var, algebra)
    if found is None:
        return whole
    first, last, steady = found
    begin = up_to(first, stop, algebra)
    if steady:  # where they fail, all iterations stand outside
        begin = Op("where", (all_of(steady), begin, stop), dtypes.index)
    end = stop if last is None else up_to(last, stop, algebra)
    middle = _chosen(body, {c: c.args[1] for c in choices})
    # Where there are several conditions, some of them may hold there.
    sides = body
    if len(conditions) == 1:
        sides = _chosen(body, {c: c.args[2] for c in choices})
    pieces = (begin, sides), (end, middle), (stop, sides)
    return pieces if last is not None else pieces[:2]


def up_to(bound: Expr, stop: Expr, algebra: Simplifier) -> Expr:
    """Return the lesser of two ends of a loop, where the loop may run no iteration too.

    The simplifier's minimum is that inside of a loop that runs: of 1 and its extent it is 1.
    """
    found = algebra.min(stop, bound)
    if not isinstance(bound, Const) or found is not bound or isinstance(stop, Const):
        return found
    least, _ = algebra.range_at_launch(stop)
    enough = least is not None and least >= bound.value
    return bound if enough else Op("min", (bound, stop), dtypes.index)


def _choices(value: Expr, var: Index, algebra: Simplifier) -> Iterator[Op]:
    """Yield the outermost choices by indices in `value` that load on one side."""
    if isinstance(value, Op) and value.op == "where":
        condition, *sides = value.args
        if _is_of_indices(condition, var, algebra):
            if any(True for side in sides for _ in loads(side)):
                yield value
            return
    for part in value.args:
        yield from _choices(part, var, algebra)


def _is_of_indices(condition: Expr, var: Index, algebra: Simplifier) -> bool:
    """Whether a condition compares indices, which may be done before the loop of `var`."""
    for node in walk(condition):
        divides = isinstance(node, Op) and node.op in ("floordiv", "mod", "ceildiv")
        if isinstance(node, Local) or (divides and not _may_divide(node, var, algebra)):
            return False
    return not any(True for _ in loads(condition))


def _may_divide(division: Expr, var: Index, algebra: Simplifier) -> bool:
    """Whether a divisor is known not to be 0 where the loop of `var` may run no iteration.

    The loops around it run: an extent that is a multiple of the divisor is not 0, nor is the
    divisor then.
    """
    dividend, divisor = division.args
    if isinstance(divisor, Const):
        return True
    around = [index for index in free_indices(dividend) if index is not var]
    return any(algebra.mod(index.extent, divisor) is ZERO for index in around)


def _range(
    terms: list[Expr], var: Index, algebra: Simplifier
) -> tuple[Expr, Expr | None, list[Expr]] | None:
    """Return where all of `terms` begin to hold, behind the last one, and those free of `var`.

    None where one of them is no comparison that is linear in `var`, or all are free of it.
    """
    first: Expr = ZERO
    last: Expr | None = None
    steady: list[Expr] = []
    for term in terms:
        if var not in free_indices(term):
            steady.append(term)
            continue
        bounds = gaps(term, algebra)
        if not bounds:
            return None
        for gap in bounds:
            count = slope(gap, var, algebra)
            if not count:
                return None
            rest = algebra.simplify(substitute(gap, {var: ZERO}))
            if count > 0:
                start = algebra.ceildiv(algebra.sub(ZERO, rest), integer(count))
                first = algebra.max(first, start)
            else:
                behind = algebra.add(algebra.floordiv(rest, integer(-count)), integer(1))
                last = behind if last is None else algebra.min(last, behind)
    return None if len(steady) == len(terms) else (first, last, steady)


def _chosen(body: tuple[Stmt, ...], values: dict[Expr, Expr]) -> tuple[Stmt, ...]:
    """Return statements with one of its sides in place of each choice."""
    return tuple([map_expressions(n, lambda value: substitute(value, values)) for n in body])


# Which loops have a test that holds in their first iterations and fails in all others.
#
# What the first ones do is then a loop without a test, in which sums stay in registers::
#
#     for i2 in ceildiv(D, 16):           for i2 in D // 16: whole
#       if 16 <= D - i2 * 16: whole  ->   for i2 from there on: short
#       else: short
#
# The test may stand in loops of a static extent: it holds where it does in their last iteration.


def first_iterations(
    loop: Loop, algebra: Simplifier, limited: Container[Loop]
) -> tuple[Expr, tuple[Stmt, ...], tuple[Stmt, ...]] | None:
    """Return in how many iterations the test in a loop holds, what they do, what the rest does.

    None where its body is more than the test, the test has no other branch, or may hold again.

    Args:
        loop: an ordinary one.
        algebra: for the bounds.
        limited: loops that end before their extent.
    """
    around: list[Loop] = []
    inner = loop
    while len(inner.body) == 1 and isinstance(inner.body[0], Loop):
        inner = inner.body[0]
        if not isinstance(inner.extent, int) or inner in limited:
            return None
        around.append(inner)
    test = inner.body[0] if len(inner.body) == 1 else None
    if not isinstance(test, If) or not test.orelse:
        return None
    stop = _count(test, loop, around, algebra)
    if stop is None:
        return None
    body = test.body
    for node in reversed(around):
        body = (Loop(node.var, node.parallel, node.axis, body, node.origin),)
    return stop, body, loop.body if around else test.orelse


def _count(test: If, loop: Loop, around: list[Loop], algebra: Simplifier) -> Expr | None:
    """Return in how many first iterations of `loop` a test holds, None where that is not all."""
    stop = loop.var.extent
    for term in terms_of(test.condition):
        found = gaps(term, algebra)
        if not found:
            return None
        for gap in found:
            for node in around:
                rising = slope(gap, node.var, algebra)
                if rising is None:
                    return None
                assert isinstance(node.extent, int)
                # A linear gap is smallest at one end of an inner loop: the test holds in all of it
                # if it does there.
                worst = 0 if rising > 0 else node.extent - 1
                gap = algebra.simplify(substitute(gap, {node.var: integer(worst)}))
            count = slope(gap, loop.var, algebra)
            # It must fall: once it is negative it stays so, and the first iterations are all.
            if count is None or count >= 0:
                return None
            rest = algebra.simplify(substitute(gap, {loop.var: ZERO}))
            past = algebra.add(algebra.floordiv(rest, integer(-count)), ONE)
            stop = up_to(past, stop, algebra)
    return stop
