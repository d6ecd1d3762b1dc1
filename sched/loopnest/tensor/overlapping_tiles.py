"""Overlap: axes of a producer as the tiles that the windows of its consumers need, with halo.

A consumer whose loops go over tiles of windows reads tiles of the producer that overlap: 8 windows
of 3 elements are 10 elements, and the next 8 begin 8 elements further on. The producer's axis is
then ``base(outer loops) + inner``, where the inner extent is that of a tile and the outer loops are
those of the consumer. An element of the halo belongs to several tiles, so that the step from the
element to the tile is a relation: an index of the inner axis is found under known outer loops.

Source: the split of a required region in Halide's bounds inference (src/BoundsInference.cpp) and
in TVM's compute_at (src/tir/schedule/primitive/compute_at.cc); here it is a transform like others.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ONE, ZERO, Coordinate, Expr, integer, substitute
from loopnest.scalar.simplify import Simplifier
from loopnest.scalar.templates import coordinates
from loopnest.tensor.domain import IterDomain, Transform


class Overlap(Transform):
    """Axes as tiles that overlap: outer loops of others, and the inner axes, one an input.

    Input k is at ``bases[k] + steps[k] * inner k``. It may be less than 0 and more than its axis
    has: tiles at the borders are tested on both sides. A broadcast axis gives inner axes of
    extent 1.

    Args:
        inputs: axes of one tensor; none where loops are only repeated.
        loops: the extents of the outer loops.
        bases: for each input the first index of a tile; `Coordinate(j)` is the index of loop j.
        steps: for each input the distance from one element of a tile to the next.
        extents: for each input how many elements a tile has.
    """

    __slots__ = ("bases", "extents", "loops", "steps")

    def __init__(
        self,
        inputs: Sequence[IterDomain],
        loops: Sequence[Expr],
        bases: Sequence[Expr],
        steps: Sequence[int],
        extents: Sequence[Expr],
    ) -> None:
        self.loops, self.bases = tuple(loops), tuple(bases)
        self.steps, self.extents = tuple(steps), tuple(extents)
        outer = [IterDomain(extent, IterKind.ITERATION) for extent in self.loops]
        inner = [
            IterDomain(ONE if axis.is_broadcast else extent, axis.kind)
            for axis, extent in zip(inputs, self.extents, strict=True)
        ]
        self._bind(inputs, [*outer, *inner])

    @property
    def key(self) -> Hashable:
        return ("overlap", self.loops, self.bases, self.steps, self.extents)

    @property
    def outer(self) -> tuple[IterDomain, ...]:
        """The loops of the consumers."""
        return self.outputs[: len(self.loops)]

    @property
    def inner(self) -> tuple[IterDomain, ...]:
        """The axes of a tile, one an input."""
        return self.outputs[len(self.loops) :]

    def used(self) -> frozenset[int]:
        """Return which of the loops tiles move with; within the others they are computed again."""
        return frozenset(c.number for base in self.bases for c in coordinates(base))

    def replay(self, inputs: Sequence[IterDomain], algebra: Simplifier) -> Overlap:
        return Overlap(inputs, self.loops, self.bases, self.steps, self.extents)

    def begin(self, outer: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        """Return the first index of a tile along each input, given the indices of the loops."""
        known: dict[Expr, Expr] = {Coordinate(j): index for j, index in enumerate(outer)}
        return tuple([algebra.simplify(substitute(base, known)) for base in self.bases])

    def backward(self, outputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        count = len(self.loops)
        begin = self.begin(outputs[:count], algebra)
        return tuple([
            ZERO if axis.is_broadcast else algebra.add(first, algebra.mul(inner, integer(step)))
            for axis, first, step, inner in zip(
                self.inputs, begin, self.steps, outputs[count:], strict=True
            )
        ])  # fmt: skip

    def forward(self, inputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        count = len(self.inputs)
        outer = tuple(inputs[count:])
        begin = self.begin(outer, algebra)
        within = [
            ZERO if axis.is_broadcast else algebra.floordiv(algebra.sub(index, at), integer(step))
            for axis, index, at, step in zip(
                self.inputs, inputs[:count], begin, self.steps, strict=True
            )
        ]
        return (*outer, *within)

    def given(self) -> tuple[IterDomain, ...]:
        return self.outer

    def sources(self, output: IterDomain) -> tuple[IterDomain, ...]:
        place = self.outputs.index(output) - len(self.loops)
        return () if place < 0 else (self.inputs[place],)

    def overshoots(self, algebra: Simplifier) -> tuple[IterDomain, ...]:
        return tuple([axis for axis in self.inputs if not axis.is_broadcast])

    def undershoots(self, algebra: Simplifier) -> tuple[IterDomain, ...]:
        return self.overshoots(algebra)

    def accepts(self, inputs: Sequence[IterDomain]) -> bool:
        return not any(axis.is_reduction for axis in inputs)

    def describe(self) -> str:
        return "tile with halo"


def overlaps(steps: Sequence[Transform]) -> list[Overlap]:
    """Return those of `steps` that make tiles of windows."""
    return [step for step in steps if isinstance(step, Overlap)]


def is_tile_loop(axis: IterDomain) -> bool:
    """Whether an axis is a loop of consumers around a tile."""
    step = axis.definition
    return isinstance(step, Overlap) and axis in step.outer


def same_loops(before: Sequence[IterDomain], after: Sequence[IterDomain]) -> bool:
    """Whether leading axes are what they were, loops around tiles being known by their places."""
    return len(before) == len(after) and all(
        a is b or (is_tile_loop(a) and is_tile_loop(b)) for a, b in zip(before, after, strict=True)
    )
