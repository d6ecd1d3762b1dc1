"""Pass "unswitch": one test of the largest index picks a body without tests.

Requires placed predicates. Ensures that the body of an unswitch loop whose tests can be decided at
their largest index stands twice: without them where they all hold, with them elsewhere. Indices of
launch dimensions are not replaced by their maximum: each thread tests its own. Where the test could
never hold, the body stands once. A loop of extent 1 opens a region too, for the loops inside of it.
It comes after predicates, whose tests it lifts, and last, because
it duplicates code.

A body that holds a barrier stands once too. Of a test with two cases (a filled copy, an inner
unswitch loop) the body without tests has the first alone.

Before: ``for i0: for i1: if i0 * 4 + i1 < N: S``; after, with i1 unswitch::

    for i0: if i0 * 4 + 3 < N: for i1: S
            else:              for i1: if i0 * 4 + i1 < N: S

Source: nvFuser's unswitch (lower_unroll.cpp); rule 37.
"""

from __future__ import annotations

from loopnest.kir import If, Loop, Program, Stmt, holds_sync, map_body, walk
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Op,
    all_of,
    free_indices,
    loads,
    rewrite,
    substitute,
    terms_of,
)
from loopnest.scalar.simplify import Simplifier


def unswitch(program: Program, algebra: Simplifier) -> Program:
    """Return `program` with its unswitch loops doubled."""

    def rule(node: Stmt) -> Stmt:
        unswitched = isinstance(node, Loop) and node.parallel is ParallelType.unswitch
        # Which of two bodies a thread runs may not decide which barrier it reaches.
        if unswitched and isinstance(node, Loop) and not holds_sync(node.body):
            return _double(node, algebra)
        return node

    return program.with_body(map_body(program.body, rule))


def _double(loop: Loop, algebra: Simplifier) -> Stmt:
    inner = {loop.var}
    threads: dict[Expr, Expr] = {}  # the test stands outside their loops
    for node, _ in walk(loop.body):
        if isinstance(node, Loop) and node.parallel.is_thread:
            threads[node.var] = LaunchIndex(node.parallel)
        elif isinstance(node, Loop):
            inner.add(node.var)
    largest: dict[Expr, None] = {}
    for node, _ in walk(loop.body):
        if isinstance(node, If):
            for term in terms_of(node.condition):
                top = _at_largest(term, inner, algebra)
                if top is not None and top is not TRUE:
                    largest[top] = None
    # Where a test fails at the largest index whatever the sizes, the body without tests would never
    # run.
    if not largest or FALSE in largest:
        return loop

    def drop(node: Stmt) -> Stmt | tuple[Stmt, ...]:
        if isinstance(node, If):
            kept = [t for t in terms_of(node.condition) if _at_largest(t, inner, algebra) is None]
            if not kept:
                return node.body
            return If(all_of(kept), node.body, node.orelse, node.reason, node.origin)
        return node

    # A term is dropped that was asked at its largest index: it holds at all smaller ones, since its
    # left side grows with each of them (`_grows`).
    fast = Loop(loop.var, loop.parallel, loop.axis, map_body(loop.body, drop), loop.origin)
    reason = "unswitch: at the largest index all tests inside hold"
    test = substitute(all_of(largest), threads)
    return If(test, (fast,), (loop,), reason, loop.origin)


def _at_largest(term: Expr, inner: set[Index], algebra: Simplifier) -> Expr | None:
    """Return the strongest instance of ``e < bound`` over `inner`; None where there is none."""
    if not isinstance(term, Op) or term.op != "lt":
        return None
    value, bound = term.args
    # The test stands outside of the loops: it may neither name their indices in its bound, nor load
    # what may lie outside of a buffer where their own tests fail.
    if not inner.isdisjoint(free_indices(bound)) or loads(term):
        return None
    if not _grows(value, inner, algebra):
        return None

    def top(node: Expr) -> Expr | None:
        if isinstance(node, Index) and node in inner:
            return algebra.sub(node.extent, Const(1, node.dtype))
        return None

    found = algebra.lt(algebra.simplify(rewrite(value, top)), bound)
    # A loop over parts of an extent does not run where that is 0; the test in front of it does.
    return rewrite(found, lambda node: _defined(node, algebra))


def _defined(node: Expr, algebra: Simplifier) -> Expr | None:
    """Return a quotient or remainder by at least 1; None for anything else."""
    if not isinstance(node, Op) or node.op not in ("floordiv", "ceildiv", "mod"):
        return None
    whole, by = node.args
    if algebra.proves_positive(by):
        return None
    inner = rewrite(whole, lambda deeper: _defined(deeper, algebra))
    return Op(node.op, (inner, algebra.max(by, ONE)), node.dtype)


def _grows(value: Expr, inner: set[Index], algebra: Simplifier) -> bool:
    """Whether `value` is largest where every index of `inner` is."""
    if inner.isdisjoint(free_indices(value)):
        return True
    if not isinstance(value, Op):
        return True
    match value.op:
        case "add" | "min" | "max":
            return all(_grows(arg, inner, algebra) for arg in value.args)
        case "mul":  # a product grows with its factors where none of them is negative
            natural = all(algebra.proves_le(ZERO, arg) for arg in value.args)
            return natural and all(_grows(arg, inner, algebra) for arg in value.args)
        case "sub" | "floordiv":  # in their first operand; divisors are positive
            first, second = value.args
            return inner.isdisjoint(free_indices(second)) and _grows(first, inner, algebra)
    return False
