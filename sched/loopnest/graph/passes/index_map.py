"""Index maps: from the index of an element of a result to that of its source.

An op that only moves elements (transpose, flip, slice, broadcast…) is an `Affine` map: each axis
of the source is read at ``start + step * i`` for one axis i of the result, or at a fixed place; an
axis of the result that no axis of the source follows repeats. Such maps compose to one. A reshape
is none, unless it only adds and drops axes of extent 1; maps with reshapes between them are a
chain.

Source: the views of tinygrad's ShapeTracker (`shape/shapetracker.py`): a list of strided views that
merge where they can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loopnest.graph.dimensions import Dim, Shape, add, mul, sub
from loopnest.graph.node import Node

MOVEMENTS = frozenset(
    {"transpose", "flip", "slice", "squeeze", "expand_dims", "broadcast_to", "reshape"}
)
"""Ops that are index maps."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Where an axis of the source is read: at start + step * index `out` of the result.

    `out` is None for one fixed place.
    """

    start: Dim = 0
    step: int = 0
    out: int | None = None


@dataclass(frozen=True, slots=True)
class Affine:
    """An index map; `axes` has one entry for each axis of the source."""

    source: Shape
    shape: Shape
    axes: tuple[Axis, ...]

    @property
    def followed(self) -> tuple[int, ...]:
        """The axes of the result that an axis of the source follows, in order."""
        return tuple(sorted([axis.out for axis in self.axes if axis.out is not None]))

    @property
    def is_identity(self) -> bool:
        """Whether each element is itself."""
        same = [
            axis.start == 0 and (extent == 1 or (axis.step == 1 and axis.out == i))
            for i, (axis, extent) in enumerate(zip(self.axes, self.source, strict=True))
        ]
        return self.source == self.shape and all(same)

    @property
    def is_trivial(self) -> bool:
        """Whether it only adds and drops axes of extent 1: a reshape could do it."""
        moved = [axis for axis, extent in zip(self.axes, self.source, strict=True) if extent != 1]
        places = [axis.out for axis in moved]
        wanted = [i for i, extent in enumerate(self.shape) if extent != 1]
        return places == wanted and all(axis.start == 0 and axis.step == 1 for axis in moved)


@dataclass(frozen=True, slots=True)
class Reshape:
    """The elements in row-major order, in another shape."""

    source: Shape
    shape: Shape


Step: TypeAlias = Affine | Reshape


@dataclass(frozen=True, slots=True)
class Chain:
    """Maps one after the other, from the source on; () is the identity. Equal chains are equal."""

    source: Shape
    steps: tuple[Step, ...] = ()

    @property
    def shape(self) -> Shape:
        """The shape of the result."""
        return self.steps[-1].shape if self.steps else self.source

    def then(self, step: Step) -> Chain:
        """Return this chain with one more map, which is merged with the last where it can be."""
        steps = list(self.steps)
        step = _plain(step)
        while steps:
            merged = _merged(steps[-1], step)
            if merged is None:
                break
            steps.pop()
            step = _plain(merged)
        same = isinstance(step, Affine) and step.is_identity
        return Chain(self.source, tuple(steps) if same else (*steps, step))

    def followed_by(self, other: Chain) -> Chain:
        """Return this chain and then another."""
        found = self
        for step in other.steps:
            found = found.then(step)
        return found


def affine(source: Shape, shape: Shape, axes: Sequence[Axis]) -> Affine:
    """Return a map in its one form: what reads a single place follows no axis."""
    plain = []
    for axis in axes:
        if axis.out is None or shape[axis.out] == 1:
            axis = Axis(axis.start)
        plain.append(axis)
    return Affine(source, shape, tuple(plain))


def _plain(step: Step) -> Step:
    """Return a reshape that only adds and drops axes of extent 1 as an affine map."""
    if isinstance(step, Affine):
        return step
    kept = [extent for extent in step.source if extent != 1]
    if kept != [extent for extent in step.shape if extent != 1]:
        return step
    return trivial(step.source, step.shape, [i for i, e in enumerate(step.shape) if e != 1])


def trivial(source: Shape, shape: Shape, places: Sequence[int]) -> Affine:
    """Return the map under which the axes of extent other than 1 stand at `places`, in order."""
    follows = iter(places)
    return affine(
        source, shape, [Axis() if extent == 1 else Axis(0, 1, next(follows)) for extent in source]
    )


def repeated(source: Shape, shape: Shape) -> Affine:
    """Return the map by which a tensor broadcasts to a shape."""
    lead = len(shape) - len(source)
    axes = [Axis() if extent == 1 else Axis(0, 1, lead + i) for i, extent in enumerate(source)]
    return affine(source, shape, axes)


def _merged(first: Step, second: Step) -> Step | None:
    reshapes = isinstance(first, Reshape) or isinstance(second, Reshape)
    if reshapes and _is_reshape(first) and _is_reshape(second):
        return Reshape(first.source, second.shape)
    if isinstance(first, Affine) and isinstance(second, Affine):
        axes = [
            axis if axis.out is None else _through(axis, second.axes[axis.out])
            for axis in first.axes
        ]
        return affine(first.source, second.shape, axes)
    return None


def _is_reshape(step: Step) -> bool:
    return isinstance(step, Reshape) or step.is_trivial


def _through(inner: Axis, outer: Axis) -> Axis:
    start = add(inner.start, mul(outer.start, inner.step))
    return Axis(start, inner.step * outer.step, outer.out)


def map_of(node: Node) -> Step:
    """Return the index map of an op of `MOVEMENTS`."""
    source, shape, attrs = node.inputs[0].shape, node.shape, node.attrs
    if node.op in ("reshape", "squeeze", "expand_dims"):
        return Reshape(source, shape)
    if node.op == "broadcast_to":
        return repeated(source, shape)
    if node.op == "transpose":
        places = {old: new for new, old in enumerate(attrs["axes"])}
        return affine(source, shape, [Axis(0, 1, places[i]) for i in range(len(source))])
    if node.op == "flip":
        turned = attrs["axis"]
        parts: list[tuple[Dim, int]] = [
            (sub(e, 1), -1) if i in turned else (0, 1) for i, e in enumerate(source)
        ]
    else:
        parts = list(zip(attrs["starts"], attrs["steps"], strict=True))
    return affine(source, shape, [Axis(*part, i) for i, part in enumerate(parts)])


def core(chain: Chain) -> Chain:
    """Return a chain without the axes of the result that repeat or have extent 1.

    Chains with one core read the same elements, but for repetition and axes of extent 1.
    """
    places = {place: number for number, place in enumerate(followed_places(chain))}
    shape = tuple([chain.shape[place] for place in places])
    last = chain.steps[-1] if chain.steps else repeated(chain.source, chain.source)
    inner = Chain(chain.source, chain.steps[:-1])
    if isinstance(last, Reshape):
        return inner.then(Reshape(last.source, shape))
    axes = [
        axis if axis.out is None else Axis(axis.start, axis.step, places[axis.out])
        for axis in last.axes
    ]
    return inner.then(Affine(last.source, shape, tuple(axes)))


def without_repeats(chain: Chain) -> Chain:
    """Return a chain whose result has extent 1 where it would repeat, or no such axis in front."""
    last = chain.steps[-1] if chain.steps else None
    if isinstance(last, Affine):
        kept = set(last.followed)
        shape = tuple([extent if i in kept else 1 for i, extent in enumerate(last.shape)])
        once = Affine(last.source, shape, last.axes)
        chain = Chain(chain.source, chain.steps[:-1]).then(once)
    spare = len(chain.shape) - len(chain.source)
    lead = next((i for i, extent in enumerate(chain.shape) if extent != 1), len(chain.shape))
    drop = min(max(spare, 0), lead)  # broadcasting adds them again
    return chain.then(Reshape(chain.shape, chain.shape[drop:])) if drop else chain


def followed_places(chain: Chain) -> list[int]:
    """Return the axes of the result of extent other than 1 that do not repeat."""
    last = chain.steps[-1] if chain.steps else None
    if isinstance(last, Affine):
        return list(last.followed)
    return [i for i, extent in enumerate(chain.shape) if extent != 1]


def restricted(chain: Chain, operand: Shape) -> Chain | None:
    """Return the chain by which an operand of a pointwise op is read if its result is read by one.

    None if there is none: the operand is broadcast, and a reshape mixes its axes with others.

    Args:
        chain: the chain of the op's result, without repeats.
        operand: the shape of the operand, which broadcasts to the source of the chain.
    """
    rank = len(chain.shape)
    if all(extent == 1 for extent in operand):
        return Chain(operand).then(affine(operand, (1,) * rank, [Axis()] * len(operand)))
    if operand == chain.source:
        return chain
    if any(isinstance(step, Reshape) for step in chain.steps):
        return None
    (only,) = chain.steps
    assert isinstance(only, Affine)
    lead = len(chain.source) - len(operand)
    axes = [Axis() if extent == 1 else only.axes[lead + i] for i, extent in enumerate(operand)]
    followed = {axis.out for axis in axes}
    shape = tuple([extent if i in followed else 1 for i, extent in enumerate(only.shape)])
    return Chain(operand).then(affine(operand, shape, axes))
