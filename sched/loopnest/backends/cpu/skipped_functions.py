"""Which functions of a vectorized loop are computed only where some lane needs them.

A loop that ends in a choice computes both sides of it in all lanes. Where one side alone needs
functions that take long, and all lanes of a vector choose the other, they are skipped::

    T1 = x[v] > 0.0                            T1 = x[v] > 0.0
    T2 = exp(x[v])                      ->     if all lanes of T1: y[v] = x[v]
    y[v] = where(T1, x[v], T2 - 1.0)           else: T2 = exp(x[v])
                                                     y[v] = where(T1, x[v], T2 - 1.0)

The test is one instruction and a branch, far less than any of these functions takes.

Source: "branches on superword condition codes", Shin, "Introducing Control Flow into Vectorized
Code" (PACT 2007).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from loopnest.backends.cpu.lane_vectors import LONG, LaneVectors
from loopnest.kir import Allocate, Let, Stmt, Store, expressions
from loopnest.kir.buffers import Buffer
from loopnest.scalar.expr import ONE, Expr, Load, Local, Op, walk


@dataclass(frozen=True, slots=True)
class SkippedSide:
    """The body of a loop that ends in a choice, of which one side may be skipped.

    Args:
        before: what is computed in any case.
        condition: of the choice.
        holds: whether the side is skipped where the condition holds in all lanes, or in none.
        other: the store of the other side.
        rest: what only the skipped side reads, and the choice.
    """

    before: tuple[Stmt, ...]
    condition: Expr
    holds: bool
    other: Store
    rest: tuple[Stmt, ...]


def skipped_side(body: tuple[Stmt, ...], vectors: LaneVectors) -> SkippedSide | None:
    """Return how a body is printed so that one side of its last choice may be skipped.

    Args:
        body: of a loop that is printed with vector types.
        vectors: what in it differs by lane.
    """
    *others, last = body
    if not isinstance(last, Store) or last.atomic or last.storage.size is ONE:
        return None
    choice = last.value
    if not (isinstance(choice, Op) and choice.op == "where" and vectors.varies(choice.args[0])):
        return None
    if not _are_names(others):
        return None
    condition, *sides = choice.args
    for side, other, holds in ((sides[1], sides[0], True), (sides[0], sides[1], False)):
        kept = _read([condition, other, *last.index])
        inner = _only_for(others, _read([side]) - kept, kept)
        rest = tuple([node for node in others if _made(node) in inner])
        values = [side, *(value for node in rest for value in expressions(node))]
        if any(isinstance(e, Op) and e.op in LONG for value in values for e in walk(value)):
            before = tuple([node for node in others if _made(node) not in inner])
            return SkippedSide(before, condition, holds, replace(last, value=other), (*rest, last))
    return None


def _are_names(body: Iterable[Stmt]) -> bool:
    """Whether statements give values to scalars alone, one to each: their order is that of reads.

    None of them changes an array, so that one may pass another that does not read it.
    """
    stored = [node.storage for node in body if isinstance(node, Store)]
    if len(stored) != len(set(stored)) or any(buffer.size is not ONE for buffer in stored):
        return False
    made = {node.storage for node in body if isinstance(node, Allocate)}
    return made.issuperset(stored) and all(isinstance(n, (Allocate, Let, Store)) for n in body)


def _made(node: Stmt) -> Buffer | Local | None:
    """Return what a statement makes or gives a value."""
    if isinstance(node, (Allocate, Store)):
        return node.storage
    return node.var if isinstance(node, Let) else None


def _only_for(
    body: list[Stmt], wanted: set[Buffer | Local], kept: set[Buffer | Local]
) -> set[Buffer | Local]:
    """Return the scalars that are read, directly or by others of them, for `wanted` alone."""
    kept = set(kept)
    found: set[Buffer | Local] = set()
    for node in reversed(body):  # readers come behind what they read
        if isinstance(node, Allocate):
            continue
        made = _made(node)
        reads = _read(expressions(node))
        if made in wanted and made not in kept:
            found.add(made)
            wanted = wanted | reads
        else:
            kept |= reads
    return found


def _read(values: Iterable[Expr]) -> set[Buffer | Local]:
    """Return the buffers and names that values read."""
    nodes = [node for value in values for node in walk(value)]
    names: set[Buffer | Local] = {node for node in nodes if isinstance(node, Local)}
    return names | {node.buffer for node in nodes if isinstance(node, Load)}
