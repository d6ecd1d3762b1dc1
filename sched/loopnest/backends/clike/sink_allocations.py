"""Sink allocations: move each to where its buffer is first used.

requires: nothing. ensures: the same program; an Allocate stands right before the first statement
that touches its buffer, inside an `if` that holds all of them (or a loop that needs it afresh)::

    T2: float32[1] local                   if i0 < N:
    if i0 < N:                       ->      T2: float32[1] local
      T2[0] = x[i0]                          T2[0] = x[i0]
      y[i0] = T2[0] * T2[0]                  y[i0] = T2[0] * T2[0]

why here: C and CUDA then declare a scalar by its first store, and a loop whose whole body is an
`if` shows as one. The nest text keeps allocations where lowering put them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from loopnest.base.fast_init import fast_init
from loopnest.kir import Allocate, Loop, Stmt, Store, bodies, expressions, with_bodies
from loopnest.scalar.expr import ONE, Buffer, loads

Table: TypeAlias = "dict[Buffer, list[Stmt]]"
"""For each buffer the statements of one body that touch it, in order."""


@fast_init
@dataclass(frozen=True, slots=True)
class _Use:
    """What a statement touches: by its own expressions, and in each of its bodies."""

    own: frozenset[Buffer]
    branches: tuple[Table, ...]
    stored: Buffer | None

    def buffers(self) -> Iterator[Buffer]:
        yield from self.own
        if self.stored is not None:
            yield self.stored
        for table in self.branches:
            yield from table


_Uses: TypeAlias = "dict[Stmt, _Use]"


def settle_allocations(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Return `body` with every allocation next to the first use of its buffer."""
    uses: _Uses = {}
    _table(body, uses)
    return _settle(body, uses)


def _table(body: tuple[Stmt, ...], uses: _Uses) -> Table:
    """Return the users of each buffer in `body`, and note in `uses` what they touch."""
    table: Table = {}
    for node in body:
        stored = node.storage if isinstance(node, Store) else None
        branches = tuple([_table(inner, uses) for inner in bodies(node)])
        own = frozenset([load.buffer for e in expressions(node) for load in loads(e)])
        use = uses[node] = _Use(own, branches, stored)
        for buffer in dict.fromkeys(use.buffers()):
            table.setdefault(buffer, []).append(node)
    return table


def _settle(body: tuple[Stmt, ...], uses: _Uses) -> tuple[Stmt, ...]:
    users_of: dict[Buffer, list[int]] = {}
    for place, node in enumerate(body):
        for buffer in dict.fromkeys(uses[node].buffers()):
            users_of.setdefault(buffer, []).append(place)
    waiting: dict[int, list[Stmt]] = {}  # before which statement, by place
    inward: dict[int, list[tuple[Stmt, int]]] = {}  # into which body of which statement
    for place, node in enumerate(body):
        if isinstance(node, Allocate):
            users = users_of.get(node.storage, [])
            branch = _inner_place(body[users[0]], node.storage, uses) if len(users) == 1 else None
            if branch is not None:
                inward.setdefault(users[0], []).append((node, branch))
            else:
                waiting.setdefault(users[0] if users else place, []).append(node)
    return _rebuild(body, uses, waiting, inward)


def _rebuild(
    body: tuple[Stmt, ...],
    uses: _Uses,
    waiting: dict[int, list[Stmt]],
    inward: dict[int, list[tuple[Stmt, int]]],
) -> tuple[Stmt, ...]:
    result: list[Stmt] = []
    for place, node in enumerate(body):
        result += waiting.get(place, ())
        if not isinstance(node, Allocate):
            moved = inward.get(place, ())
            inner = [
                _settle((*[a for a, to in moved if to == number], *branch), uses)
                for number, branch in enumerate(bodies(node))
            ]
            result.append(with_bodies(node, tuple(inner)) if inner else node)
    return tuple(result)


def _inner_place(node: Stmt, buffer: Buffer, uses: _Uses) -> int | None:
    """Return the number of the body of `node` into which the allocation may move, else None.

    Into the one branch that uses the buffer; into a loop whose iterations each store a single
    element before they read it.
    """
    use = uses[node]
    if buffer in use.own:
        return None
    users = [number for number, table in enumerate(use.branches) if buffer in table]
    if isinstance(node, Loop):
        fresh = buffer.size is ONE and _is_stored_first(use.branches[0], buffer, uses)
        return 0 if fresh else None
    return users[0] if len(users) == 1 else None


def _is_stored_first(table: Table, buffer: Buffer, uses: _Uses) -> bool:
    first, *others = table[buffer]
    if isinstance(first, Store):
        return buffer not in uses[first].own
    inner = None if others else _inner_place(first, buffer, uses)
    return inner is not None and _is_stored_first(uses[first].branches[inner], buffer, uses)
