"""The value of each variable in each thread, of several blocks at once, in a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from loopnest.proofs.collectives.multisets import Multisets
from loopnest.proofs.point_arrays import Array, Flags
from loopnest.scalar.enums import BLOCK_DIMENSIONS, MOST_THREADS, WARP, along_dimensions
from loopnest.scalar.expr import Expr

Shape: TypeAlias = "tuple[int, int, int]"


class Wrong(Exception):
    """The body does not do what is declared: a sentence, and a thread of which it is true."""

    def __init__(self, message: str, lane: int = 0) -> None:
        super().__init__(message)
        self.message, self.lane = message, lane


@dataclass(frozen=True, slots=True)
class Value:
    """What each thread has.

    Args:
        held: whose contributions.
        known: whether the thread has the value.
        which: for each thread the number of the value that these are contributions to, of those
            that the collective combines; -1 where it holds no contribution.
        component: of the reducer; None where only literals were seen yet.
        literal: for each thread the number of a literal that it has instead, or -1; None where no
            thread has one.
    """

    held: Multisets
    known: Flags
    which: Array
    component: int | None
    literal: Array | None = None

    def take(self, place: Array, exists: Flags) -> Value:
        """Return what the threads at `place` have."""
        known = exists & self.known[place]
        literal = None if self.literal is None else self.literal[place]
        return Value(self.held.take(place), known, self.which[place], self.component, literal)

    def chosen(self, holds: Flags, other: Value, component: int | None) -> Value:
        """Return this value in the threads where it holds, and `other` elsewhere."""
        literal: Array | None = None
        if self.literal is not None or other.literal is not None:
            none = np.full(holds.size, -1, np.int64)
            sides = [none if v.literal is None else v.literal for v in (self, other)]
            literal = np.where(holds, *sides)
        held = self.held.choose(holds, other.held)  # type: ignore[arg-type]
        known = np.where(holds, self.known, other.known)
        return Value(held, known, np.where(holds, self.which, other.which), component, literal)


class Blocks:
    """The threads of one or several blocks of different shapes.

    Args:
        shapes: extents along x, y and z.
        numbers: expressions that are one number a block, with that number for each shape.
    """

    def __init__(self, shapes: Sequence[Shape], numbers: Mapping[Expr, Sequence[int]]) -> None:
        self.shapes = shapes
        sizes = np.array([x * y * z for x, y, z in shapes], np.int64)
        self.count = int(sizes.sum())
        self.block = np.repeat(np.arange(len(shapes)), sizes)
        start = np.cumsum(sizes) - sizes
        self.thread = np.arange(self.count) - start[self.block]
        self.size = sizes[self.block]
        self.first = start[self.block]
        x, y = [np.array([s[n] for s in shapes], np.int64)[self.block] for n in (0, 1)]
        places = along_dimensions(self.thread, x, y)
        self.places = dict(zip(BLOCK_DIMENSIONS, places, strict=True))
        self.warp = self.block * (MOST_THREADS // WARP + 1) + self.thread // WARP
        self.numbers = {e: self._number(values) for e, values in numbers.items()}

    def _number(self, values: Sequence[int]) -> Any:
        if len(set(values)) == 1:
            return values[0]
        return np.array(values, np.int64)[self.block]
