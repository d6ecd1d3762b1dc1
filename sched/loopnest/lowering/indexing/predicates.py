"""Pass "predicates": put the tests around the statements, as far out as they go.

Requires statements with the terms of their predicates. Ensures that no statement runs at a point
that its tensor does not have; a term stands outside every loop whose index it does not use, where
all statements of that loop need it and none stores what it loads; neighbours under the same test
share one `If`. It comes after indexing, which makes the terms, and before unswitch, which lifts
them.

Before: ``for i1: { T2 = 0 | for i2: T2 += x  [i1 < N] | y = T2  [i1 < N] }``; after::

    for i1: { T2 = 0; if i1 < N: { for i2: T2 += x; y = T2 } }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loopnest.kir import Allocate, If, Loop, Stmt, before
from loopnest.lowering.loops.guarded_tree import PredicateTerm, ThreadData
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import Expr, Index, all_of, walk

_NONE: dict[Expr, PredicateTerm] = {}


@dataclass(eq=False, slots=True)
class GuardedPiece:
    """A statement and the terms that must hold for it, not yet placed."""

    statement: Stmt
    terms: dict[Expr, PredicateTerm]


def lift(
    pieces: Sequence[GuardedPiece], var: Index, parallel: ParallelType, data: ThreadData
) -> dict[Expr, PredicateTerm]:
    """Take out of `pieces`, the body of the loop over `var`, the terms that can stand outside.

    A test of data that each thread stores for itself stays in a loop over such threads that some
    threads do not run, or whose other tests keep some out: those may have no data.
    """
    common = {c: t for c, t in _common(pieces).items() if not uses(c, var)}
    tested = any(uses(condition, var) for p in pieces for condition in p.terms)
    if tested or not data.covers(parallel, var.extent):
        common = {c: t for c, t in common.items() if not data.lacks(c, parallel)}
    return _taken_out(pieces, common)


def common_terms(pieces: Sequence[GuardedPiece]) -> dict[Expr, PredicateTerm]:
    """Take out of `pieces`, the body of a statement that is no loop, the terms that all have."""
    return _taken_out(pieces, _common(pieces))


def _common(pieces: Sequence[GuardedPiece]) -> dict[Expr, PredicateTerm]:
    """Return the terms that all pieces have and that may be asked in front of them."""
    bound = [p for p in pieces if not isinstance(p.statement, Allocate)]
    if not bound:
        return _NONE
    shared = [c for c in bound[0].terms if all(c in p.terms for p in bound[1:])]
    return {c: bound[0].terms[c] for c in before(shared, [p.statement for p in pieces])}


def _taken_out(
    pieces: Sequence[GuardedPiece], common: dict[Expr, PredicateTerm]
) -> dict[Expr, PredicateTerm]:
    if common:
        for piece in pieces:
            piece.terms = {c: t for c, t in piece.terms.items() if c not in common}
    return common


def uses(condition: Expr, var: Index) -> bool:
    """Whether `condition` depends on the loop index `var`."""
    return any(node is var for node in walk(condition))


def seal(pieces: Sequence[GuardedPiece]) -> tuple[Stmt, ...]:
    """Return the statements, runs of pieces under the same terms inside one `If`."""
    result: list[Stmt] = []
    start = 0
    while start < len(pieces):
        terms = pieces[start].terms
        stop = start + 1
        run = [pieces[start].statement]
        while stop < len(pieces) and pieces[stop].terms.keys() == terms.keys():
            if len(before(terms, run)) < len(terms):
                break  # what the test loads is stored in front of this one
            run.append(pieces[stop].statement)
            stop += 1
        if terms:
            result.append(_guard(tuple(run), terms))
        else:
            result.extend(run)
        start = stop
    return tuple(result)


def _guard(body: tuple[Stmt, ...], terms: dict[Expr, PredicateTerm]) -> If:
    reasons = dict.fromkeys(term.reason for term in terms.values())
    origin = next((s.origin for s in body if isinstance(s, Loop)), None)
    return If(all_of(terms), body, (), "; ".join(reasons), origin)
