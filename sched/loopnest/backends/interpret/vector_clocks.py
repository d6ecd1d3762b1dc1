"""Vector clocks: which accesses of other threads a thread has seen.

A clock ticks at each barrier and at each arrival. The horizon of a thread is the time before which
it sees all accesses of the threads of a scope; that of a smaller scope is never the earlier one.
Blocks order each other by a barrier of the grid, or by arrivals: the last block to arrive sees what
the others did before they arrived, and what these saw by then.
"""

from __future__ import annotations

import numpy as np

from loopnest.backends.interpret.concrete_program import ConcreteProgram
from loopnest.backends.interpret.native_math import Array
from loopnest.scalar.enums import WARP

SAME, IN_WARP, IN_BLOCK, IN_GRID = range(4)
"""How two threads stand to each other, and how far the readers of an element are spread."""


class VectorClocks:
    """The horizons of the threads that run.

    Args:
        setting: the program at its sizes.
    """

    def __init__(self, setting: ConcreteProgram) -> None:
        self.per_block = setting.threads
        self.total = setting.blocks
        self.now = 0
        self.of_grid = 0
        self.blocks: Array = np.zeros(0, np.int64)
        self._arrived: dict[object, list[tuple[int, int, Array | None]]] = {}

    def start(self, blocks: Array) -> None:
        """Begin with other blocks, their numbers in ascending order."""
        self.blocks = blocks
        self.of_block = np.full(blocks.size, self.now)
        self.of_warp = np.full((blocks.size, -(-self.per_block // WARP)), self.now)
        self.floor = self.now
        """Before it every thread sees all accesses of its block."""
        self._seen: dict[int, Array] = {}

    def barrier(self, scope: str, slots: Array, warps: Array) -> None:
        """Order the accesses within warps, blocks or the grid.

        Args:
            scope: "warp", "block" or "grid".
            slots: of each thread that is there, the place of its block.
            warps: its warp in the block.
        """
        self.now += 1
        if scope == "warp":
            self.of_warp[slots, warps] = self.now
            return
        self.of_block[slots] = self.of_warp[slots] = self.now
        self.floor = int(self.of_block.min())
        if scope == "grid":
            self.of_grid = self.now

    # Arrivals

    def arrive(self, slot: int, counter: object) -> None:
        """Let one block arrive at a counter, at this time."""
        block = int(self.blocks[slot])
        there = self._arrived.setdefault(counter, [])
        there.append((block, self.now, self._seen.get(block)))

    def see_arrivals(self, slot: int, counter: object) -> None:
        """Let one block see what all did that arrived at a counter, which begins anew."""
        seen = np.full(self.total, self.of_grid)
        for block, time, its_own in self._arrived.pop(counter, []):
            if its_own is not None:
                np.maximum(seen, its_own, out=seen)
            seen[block] = max(int(seen[block]), time)
        self._seen[int(self.blocks[slot])] = seen

    # Queries

    def relation(self, one: Array, other: Array) -> Array:
        """Return how threads stand to each other, by their numbers in the launch."""
        block, blocks = one // self.per_block, other // self.per_block
        warp, warps = one % self.per_block // WARP, other % self.per_block // WARP
        inside = np.where(warp == warps, IN_WARP, IN_BLOCK)
        return np.where(block == blocks, np.where(one == other, SAME, inside), IN_GRID)

    def unordered(self, times: Array, others: Array, spread: Array, threads: Array) -> Array:
        """Return how accesses stand to `threads` now: a relation, SAME where they are ordered.

        Args:
            times: of the accesses.
            others: one of the threads that made each.
            spread: how far these threads are spread: SAME for one alone.
            threads: that make accesses now.
        """
        apart = np.maximum(self.relation(others, threads), spread)
        block = threads // self.per_block
        slot = np.searchsorted(self.blocks, block)
        horizon = np.where(
            apart == IN_WARP,
            self.of_warp[slot, threads % self.per_block // WARP],
            np.where(apart == IN_BLOCK, self.of_block[slot], self.of_grid),
        )
        if self._seen:
            far = np.flatnonzero(apart == IN_GRID)
            for number in np.unique(block[far]):
                mine = far[block[far] == number]
                seen = self._seen_by(int(number), others[mine], spread[mine])
                horizon[mine] = np.maximum(horizon[mine], seen)
        return np.where(times < horizon, SAME, apart)

    def _seen_by(self, block: int, others: Array, spread: Array) -> Array | int:
        """Return the time up to which a block sees what other blocks did."""
        seen = self._seen.get(block)
        if seen is None:
            return self.of_grid
        each: Array = seen[others // self.per_block]
        if (spread == IN_GRID).any():
            # Of several blocks that read, the one that arrived last stands for all: what this
            # hides is a race with blocks of which only some arrived.
            latest = np.delete(seen, block).max(initial=0)
            each = np.where(spread == IN_GRID, latest, each)
        return each
