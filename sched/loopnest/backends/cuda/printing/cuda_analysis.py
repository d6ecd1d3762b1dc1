"""Analyses of a program for CUDA text: register arrays, memory through which threads exchange."""

from __future__ import annotations

import math
from collections.abc import Sequence

from loopnest.kir import (
    Arrive,
    Barrier,
    Loop,
    Program,
    Shuffle,
    Stmt,
    Store,
    expressions,
    is_sync,
)
from loopnest.kir.buffers import Buffer
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import ONE, Expr, Index, Load, free_indices


class Usage:
    """What the statements of a program touch, found in one pass."""

    def __init__(self, program: Program) -> None:
        self.nodes = program.nodes
        self.loads = _loads(self.nodes)
        self.stores = [n for n in self.nodes if isinstance(n, Store)]

    def register_indices(self) -> frozenset[Index]:
        """Return the indices that address arrays of registers, which have none at run time."""
        found: set[Index] = set()
        for node in self.stores:
            if _is_register_array(node.storage):
                found.update(*map(free_indices, node.index))
        for load in self.loads:
            if _is_register_array(load.buffer):
                found |= free_indices(load)
        return frozenset(found)

    def exchanged(self) -> frozenset[Buffer]:
        """Return the GLOBAL buffers through which threads may pass values to each other.

        `__restrict__` would promise the compiler that a load after a barrier gives what the same
        load gave before it.
        """
        if not any(is_sync(n) for n in self.nodes):
            return frozenset()
        stored = {n.storage for n in self.stores}
        counters = {n.counter for n in self.nodes if isinstance(n, Arrive)}
        return frozenset((stored & {load.buffer for load in self.loads}) | counters)

    @property
    def concerns_warps(self) -> bool:
        """Whether a statement is reached by the threads of a warp together, and needs no others."""
        return any(
            isinstance(n, Shuffle) or (isinstance(n, Barrier) and n.scope == "warp")
            for n in self.nodes
        )


def _loads(nodes: Sequence[Stmt]) -> list[Load]:
    """Return every load, once; expressions that statements share are visited once."""
    found: list[Load] = []
    seen: set[Expr] = set()
    stack = [e for n in nodes for e in expressions(n)]
    while stack:
        node = stack.pop()
        if node not in seen and node.args:
            seen.add(node)
            stack.extend(node.args)
            if isinstance(node, Load):
                found.append(node)
    return found


def _is_register_array(buffer: Buffer) -> bool:
    return buffer.memory is Memory.LOCAL and buffer.size is not ONE


def unrolled_trips(loop: Loop) -> float:
    """Return how often the innermost body of static loops stands there once they are unrolled."""
    if not isinstance(loop.extent, int):
        return math.inf
    loops = [n for n in loop.body if isinstance(n, Loop) and isinstance(n.extent, int)]
    return loop.extent * max(map(unrolled_trips, loops), default=1)


def folds_slots(loop: Loop) -> bool:
    """Whether `loop`, of a collective, folds as many slots as there are, each by one statement."""
    return not isinstance(loop.extent, int) and [type(n) for n in loop.body] == [Store]
