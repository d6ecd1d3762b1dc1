"""Which loops have a test that holds in their first iterations and fails in all others.

What the first ones do is then a loop without a test, in which sums stay in registers::

    for i2 in ceildiv(D, 16):           for i2 in D // 16: whole
      if 16 <= D - i2 * 16: whole  ->   for i2 from there on: short
      else: short

The test may stand in loops of a static extent: it holds where it does in their last iteration.
"""

from __future__ import annotations

from collections.abc import Container

from loopnest.backends.cpu.border_loops import up_to
from loopnest.kir import If, Loop, Stmt
from loopnest.kir.loop_bounds import gaps, slope
from loopnest.scalar.expr import ONE, ZERO, Expr, integer, substitute, terms_of
from loopnest.scalar.simplify import Simplifier


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
