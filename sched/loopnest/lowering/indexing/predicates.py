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

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from loopnest.kir import Allocate, If, Loop, Stmt, Store, before
from loopnest.kir import walk as walk_statements
from loopnest.lowering.loops.guarded_tree import PredicateTerm, ThreadData
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import Buffer, Expr, Index, LaunchIndex, all_of, loads, walk

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

    All of the body is under the others that those pieces have that leave something. What is only
    set in front of them, to the identity of a reduction, needs no test (rule 37).

    A test of data that each thread stores for itself stays in a loop over such threads that some
    threads do not run, or whose other tests keep some out: those may have no data.
    """
    inside = _common(pieces)
    common = {c: t for c, t in inside.items() if not uses(c, var)}
    tested = any(uses(condition, var) for p in pieces for condition in p.terms)
    if tested or not data.covers(parallel, var.extent):
        common = {c: t for c, t in common.items() if not data.lacks(c, parallel)}
    _taken_out(pieces, common)
    rest = {c: t for c, t in inside.items() if c not in common}
    for piece in dropwhile(_is_set, pieces) if rest else ():
        if not isinstance(piece.statement, Allocate):
            piece.terms = {**rest, **piece.terms}
    return common


def common_terms(pieces: Sequence[GuardedPiece]) -> dict[Expr, PredicateTerm]:
    """Take out of `pieces`, the body of a statement that is no loop, the terms that all have."""
    return _taken_out(pieces, _common(pieces))


def _is_set(piece: GuardedPiece) -> bool:
    """Whether a piece, under no test, makes buffers or stores numbers to them."""
    nodes = [node for node, _ in walk_statements((piece.statement,))]
    stored = [node.value for node in nodes if isinstance(node, Store)]
    return not piece.terms and not any(loads(value) for value in stored)


def _common(pieces: Sequence[GuardedPiece]) -> dict[Expr, PredicateTerm]:
    """Return the terms that all pieces have and that may be asked in front of them.

    What is computed for registers that the body makes is there for the other pieces alone: where
    none of these counts, it need not be computed.
    """
    if not any(piece.terms for piece in pieces):
        return _NONE
    made = {p.statement.storage for p in pieces if isinstance(p.statement, Allocate)}
    own = {buffer for buffer in made if buffer.memory is Memory.LOCAL}
    bound = [
        p for p in pieces
        if not isinstance(p.statement, Allocate) and not _stays(p.statement, own)
    ]  # fmt: skip
    if not bound:
        return _NONE
    shared = [c for c in bound[0].terms if all(c in p.terms for p in bound[1:])]
    if len(bound) < len(pieces) - len(made):
        shared = [c for c in shared if not any(p.terms[c].idle for p in bound)]
        # What one block or thread alone does is no test of a loop over all of them.
        inner = [node for node, _ in walk_statements(tuple([p.statement for p in pieces]))]
        over = {node.parallel for node in inner if isinstance(node, Loop)}
        shared = [
            c for c in shared
            if not any(isinstance(n, LaunchIndex) and n.dimension in over for n in walk(c))
        ]  # fmt: skip
    return {c: bound[0].terms[c] for c in before(shared, [p.statement for p in pieces])}


def _stays(statement: Stmt, own: Collection[Buffer]) -> bool:
    """Whether a statement stores to the buffers `own` alone, and nobody waits for it."""
    nodes = [node for node, _ in walk_statements((statement,))]
    made = {node.storage for node in nodes if isinstance(node, Allocate)}
    held = {*own, *[buffer for buffer in made if buffer.memory is Memory.LOCAL]}
    return all(
        node.storage in held if isinstance(node, Store) else isinstance(node, (Loop, If, Allocate))
        for node in nodes
    )


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
