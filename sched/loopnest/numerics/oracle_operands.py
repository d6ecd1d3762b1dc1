"""What the templates of a definition find at the elements at hand, for the oracle.

A read finds elements of a producer: at the same coordinates, at others that follow from them, or
at indices that are data. Their values are arrays of any arithmetic: numbers, or enclosures.
Folds and scans go along the last axis of arrays, by the combination of a reducer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from loopnest.base.errors import LaunchError
from loopnest.numerics import oracle_blocks
from loopnest.numerics.float64_math import Values, evaluate_expr, held
from loopnest.numerics.oracle_blocks import Region, halves
from loopnest.scalar.arguments import ArraySpec, bind, check_factors, size_value
from loopnest.scalar.data_ranges import check_data
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Arg, Coordinate, Expr, Index, two_sides
from loopnest.tensor.domain import IterDomain, Split, TensorDomain, transforms_between
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.tensor_view import AxisMap, Definition, Read, TensorView, TracedReducer

V = TypeVar("V")
Places: TypeAlias = Mapping[IterDomain, Values]
"""Axes that are not walked whole, with the coordinates that are."""
AxisImages: TypeAlias = tuple[Mapping[IterDomain, Index], Sequence[tuple[Index, Expr]]]
"""A name for each axis of a domain, and what the axes that transforms make are of those before."""


class OracleOperands(ABC, Generic[V]):
    """The sizes, the scalars, and the values of tensors: what definitions read.

    What a value is, a subclass says.

    Args:
        fusion: the math, scheduled or not.
        arrays: one an input.
        keywords: the run-time scalars, and the sizes that no input has.
        subject: the function called, for errors.
        places: axes of which only some coordinates are evaluated; `arrays` are whole all the same.
    """

    def __init__(
        self,
        fusion: Fusion,
        arrays: Sequence[object],
        keywords: Mapping[str, object],
        subject: str = "evaluate",
        places: Places | None = None,
    ) -> None:
        specs = [ArraySpec(t.name, t.dtype, t.sizes, t.strides) for t in fusion.inputs]
        bound = bind(
            specs, fusion.scalars, fusion.symbols, fusion.facts.conditions, arrays, keywords,
            f"{subject}({fusion.name})",
        )  # fmt: skip
        self.sizes = bound.sizes
        self.subject = f"{subject}({fusion.name})"
        named = {t.name: np.asarray(a) for t, a in zip(fusion.inputs, arrays, strict=True)}
        check_data(fusion.ranges, named, bound.sizes, self.subject)
        check_factors(_short_factors(fusion, bound.sizes), bound.sizes, self.subject)
        self.places = places or {}
        self.indices: dict[Expr, Values] = {
            symbol: np.asarray(bound.sizes[symbol.name], np.int64) for symbol in fusion.symbols
        }
        self.leaves = {node: self.given(value, node.dtype) for node, value in self.indices.items()}
        for scalar in fusion.scalars:
            self.leaves[scalar] = self.given(np.asarray(bound.scalars[scalar.name]), scalar.dtype)
        self.values: dict[TensorView, V] = {}
        self.arrays: dict[TensorView, Values] = {}
        for tensor, array in zip(fusion.inputs, arrays, strict=True):
            taken = self._taken(np.asarray(array), tensor)
            if taken.size > oracle_blocks.BLOCK:  # converted where it is read
                self.arrays[tensor] = taken
            else:
                self.values[tensor] = self.given(taken, tensor.dtype)
        self.images: dict[TensorDomain, AxisImages] = {}
        self.order = fusion.topological()

    # The arithmetic

    @abstractmethod
    def given(self, values: Values, dtype: DType) -> V:
        """Return the value of what is known, of type `dtype`."""

    @abstractmethod
    def expression(self, root: Expr, env: Mapping[Expr, V]) -> V:
        """Return the value of a template, given those of its leaves."""

    @abstractmethod
    def viewed(self, value: V, view: Callable[[Values], Values]) -> V:
        """Return `value` with its elements moved by `view`."""

    @abstractmethod
    def integers(self, value: V) -> Values:
        """Return the numbers that a value of an integer type has."""

    @abstractmethod
    def uncertain(self, value: V, indices: Sequence[V]) -> V:
        """Return what was read at `indices`: anything, where such an index may be another."""

    # Reads

    def shape(self, axes: Sequence[IterDomain]) -> tuple[int, ...]:
        """Return how many coordinates along each axis are evaluated."""
        return tuple(
            [
                len(self.places[axis]) if axis in self.places else size_value(axis.size, self.sizes)
                for axis in axes
            ]
        )

    def _taken(self, array: Values, tensor: TensorView) -> Values:
        """Return the elements of an input at the coordinates that are evaluated."""
        for place, axis in enumerate(tensor.domain.logical):
            if axis in self.places:
                array = np.take(array, self.places[axis], place)
        return array

    def operands(
        self,
        definition: Definition,
        domain: TensorDomain,
        region: Region,
        local: Mapping[tuple[TensorView, Region], V],
    ) -> dict[Expr, V]:
        """Return the values of a template's leaves on a region, with the axes of the root domain.

        `local` has the parts of inlined tensors.
        """
        rank = len(domain.root)
        env = dict(self.leaves)
        by_data: list[tuple[int, Read]] = []
        for number, read in enumerate(definition.reads):
            if read.data:
                by_data.append((number, read))
                continue
            producer, spots = read.producer, self._spots(read, domain.root, region)
            part = part_of(spots, region)
            found = local.get((producer, part))
            value = self._read(producer, part) if found is None else found
            env[Arg(number, producer.dtype)] = self.viewed(
                value, partial(gathered, spots=spots, part=part, rank=rank)
            )
        for number, read in by_data:
            env[Arg(number, read.producer.dtype)] = self._picked(
                definition, number, domain.root, region, env
            )
        for place, points in enumerate(self._grid(domain.root, region)):
            coordinate = Coordinate(place)
            env[coordinate] = self.given(points, coordinate.dtype)
        return env

    def _picked(
        self,
        definition: Definition,
        number: int,
        root: Sequence[IterDomain],
        region: Region,
        env: Mapping[Expr, V],
    ) -> V:
        """Return what a read finds whose indices depend on data.

        Raises:
            LaunchError: an index lies outside of the producer.
        """
        read = definition.reads[number]
        producer = read.producer
        known: dict[Expr, Values] = {arg: self.integers(env[arg]) for arg in read.data}
        known.update(self.indices)
        known.update({Coordinate(n): p for n, p in enumerate(self._grid(root, region))})
        sizes = self.shape(producer.domain.logical)
        found = places_by_data(read, root, sizes, known)
        if any(isinstance(value, Arg) and value.number == number for value in definition.values):
            for axis, index in found.items():
                require_inside(self.subject, definition, read, (axis, sizes[axis]), index)
        dense = [points_along(n, ends, size, len(root))
                 for n, (ends, size) in enumerate(zip(region, self.shape(root), strict=True))
                 ]  # fmt: skip
        view = partial(picked, spots=spots_by_data(read, root, sizes, found, dense))
        if producer in self.arrays:
            value = self.given(view(self.arrays[producer]), producer.dtype)
        else:
            value = self.viewed(self.values[producer], view)
        return self.uncertain(value, [env[arg] for arg in read.data])

    def _grid(self, axes: Sequence[IterDomain], region: Region) -> Iterator[Values]:
        """Yield the coordinate along each axis of a region, to broadcast to all of them."""
        sizes = self.shape(axes)
        for place, (axis, size, ends) in enumerate(zip(axes, sizes, region, strict=True)):
            start, stop = (0, size) if ends is None else ends
            rest = [1] * len(axes)
            rest[place] = stop - start
            if axis in self.places:
                yield self.places[axis][start:stop].reshape(rest)
            else:
                yield np.arange(start, stop, dtype=np.int64).reshape(rest)

    def _spots(self, read: Read, root: Sequence[IterDomain], region: Region) -> Spots:
        """Return where a definition on a region of its root domain reads, an axis of the producer.

        It is a root axis, at the same coordinate; or the coordinates, to broadcast to the region,
        those outside of the producer moved into it; or None, at 0.
        """
        logical = read.producer.domain.logical
        found: list[int | Values | None] = []
        env: dict[Expr, Values] = {}
        equal = read.equal_axes(root)
        for axis, size, place, index in zip(
            logical, self.shape(logical), equal, read.indices, strict=True
        ):
            if axis.is_broadcast:
                found.append(None)
            elif place is not None:
                found.append(place)
            else:
                if not env:
                    grid = self._grid(root, region)
                    env = {**self.indices, **{Coordinate(n): p for n, p in enumerate(grid)}}
                where = np.asarray(evaluate_expr(index, env))
                ranked = where.reshape((1,) * (len(root) - where.ndim) + where.shape)
                found.append(np.clip(ranked, 0, max(size - 1, 0)))
        return tuple(found)

    def _read(self, tensor: TensorView, region: Region | None) -> V:
        """Return the value of a tensor on a region of its logical domain; None: on all of it."""
        where = tuple([slice(None) if p is None else slice(*p) for p in region or ()])
        if tensor in self.arrays:
            return self.given(self.arrays[tensor][where], tensor.dtype)
        value = self.values[tensor]
        if all(part is None for part in region or ()):
            return value
        return self.viewed(value, lambda array: array[where])


def _short_factors(fusion: Fusion, sizes: Mapping[str, int]) -> Iterator[Expr]:
    """Yield the factors of folds in two steps (rfactor) that leave elements to neither."""
    for tensor in fusion.tensors:
        for step in transforms_between(tensor.domain.root, tensor.domain.rfactor):
            if isinstance(step, Split):
                factor = size_value(step.factor, sizes)
                if factor < 0 or (not factor and size_value(step.inputs[0].size, sizes)):
                    yield step.factor


def points_along(place: int, ends: tuple[int, int] | None, size: int, rank: int) -> Values:
    """Return the numbers of the points of a region along an axis, to broadcast to all of them."""
    start, stop = (0, size) if ends is None else ends
    shape = [1] * rank
    shape[place] = stop - start
    return np.arange(start, stop, dtype=np.int64).reshape(shape)


def places_by_data(
    read: Read, root: Sequence[IterDomain], sizes: Sequence[int], known: Mapping[Expr, Values]
) -> dict[int, Values]:
    """Return the index along each axis that is neither broadcast nor an axis of the reader.

    Args:
        read: whose indices depend on data.
        root: the reader's root axes.
        sizes: the extents of the producer.
        known: the values of what the indices are made of, to broadcast to a region of the root.
    """
    found: dict[int, Values] = {}
    axes = zip(read.producer.domain.logical, read.equal_axes(root), read.indices, strict=True)
    for place, (axis, equal, index) in enumerate(axes):
        if not axis.is_broadcast and equal is None:
            value = np.asarray(evaluate_expr(index, known))
            found[place] = value.reshape((1,) * (len(root) - value.ndim) + value.shape)
    return found


def spots_by_data(
    read: Read,
    root: Sequence[IterDomain],
    sizes: Sequence[int],
    found: Mapping[int, Values],
    dense: Sequence[Values],
) -> tuple[Values, ...]:
    """Return the index along each axis of the producer; those outside of it are moved into it."""
    spots: list[Values] = []
    for place, equal in enumerate(read.equal_axes(root)):
        if place in found:
            spots.append(np.clip(found[place], 0, max(sizes[place] - 1, 0)))
        else:
            broadcast = equal is None or read.producer.domain.logical[place].is_broadcast
            zero = np.zeros((1,) * len(root), np.int64)
            spots.append(zero if broadcast or equal is None else dense[equal])
    return tuple(spots)


def picked(values: Values, spots: tuple[Values, ...]) -> Values:
    """Return the values at some places; zeros where there is no value at all."""
    if not values.size:
        return np.zeros(np.broadcast_shapes(*[s.shape for s in spots]), values.dtype)
    return values[spots]


def require_inside(
    subject: str, definition: Definition, read: Read, axis: tuple[int, int], found: Values
) -> None:
    """Refuse an index that lies outside of its axis, given with its extent.

    Raises:
        LaunchError: there is one; the first is named.
    """
    place, size = axis
    bad = np.flatnonzero((found < 0) | (found >= size))
    if bad.size:
        raise LaunchError(
            subject,
            f"{definition.outputs[0].name} ({definition.op}) reads {read.producer.name} at index "
            f"{int(found.ravel()[bad[0]])} along axis {place}, which has extent {size}",
            "pass indices that lie inside" if size else "pass no indices",
        )


def fold_values(reducer: TracedReducer, parts: Sequence[Values]) -> list[Values]:
    """Fold the last axis away, which is not empty, halving its elements until one is left."""
    now = list(parts)
    while now[0].shape[-1] > 1:
        now = _halved(reducer, now)
    return [part[..., 0] for part in now]


def scan_values(
    reducer: TracedReducer, parts: Sequence[Values], *, exclusive: bool = False
) -> list[Values]:
    """Return for each element along the last axis the fold of all elements up to it.

    By doubling: after each round an element holds the fold of twice as many in front of it.
    """
    now, size, reach = list(parts), parts[0].shape[-1], 1
    while reach < size:
        found = _combined(reducer, [(part[..., :-reach], part[..., reach:]) for part in now])
        now = [
            np.concatenate([part[..., :reach], value], axis=-1)
            for part, value in zip(now, found, strict=True)
        ]
        reach *= 2
    if not exclusive:
        return now
    neutral = [held(evaluate_expr(c, {}), c.dtype) for c in reducer.identity]
    return [
        np.concatenate([np.broadcast_to(e, part[..., :1].shape), part[..., :-1]], axis=-1)
        for e, part in zip(neutral, now, strict=True)
    ]


def rows_of(places: Values) -> Iterator[tuple[Values, Values]]:
    """Yield rows of elements that go to one place each, a few lengths of rows in turn.

    `places` are those of the elements, and ascend. A row has its elements in their order and then,
    at least once, the number behind all elements, up to a power of two.

    Yields:
        Places, and for each the numbers of its elements.
    """
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    counts = np.diff(starts, append=len(places))
    lengths = 1 << np.frexp(counts.astype(np.float64))[1]
    for length in np.unique(lengths):
        chosen = np.flatnonzero(lengths == length)
        along = np.arange(length)
        numbers = starts[chosen, None] + along
        is_own = along < counts[chosen, None]
        yield places[starts[chosen]], np.where(is_own, numbers, len(places))


def _combined(reducer: TracedReducer, pairs: Sequence[tuple[Values, Values]]) -> Iterator[Values]:
    """Yield the components of what pairs of elements, given by components, fold to."""
    env: dict[Expr, Values] = {}
    for a, b, (one, other) in zip(*two_sides(reducer.types), pairs, strict=True):
        env[a], env[b] = one, other
    for value in reducer.combination:
        yield np.broadcast_to(evaluate_expr(value, env), pairs[0][1].shape)


class Segments:
    """The last axis of arrays as two: the segments of a scan, and the elements of one.

    The last segment is filled up behind the end, where a scan comes last.
    """

    def __init__(self, length: int) -> None:
        self.length, self.size = length, 0

    def apart(self, values: Values) -> Values:
        """Return `values`, an axis of `length` in place of the last one, and one in front of it."""
        self.size = values.shape[-1]
        missing = -self.size % self.length
        if missing and self.size:
            fill = np.broadcast_to(values[..., :1], (*values.shape[:-1], missing))
            values = np.concatenate([values, fill], axis=-1)
        return values.reshape(*values.shape[:-1], -(-self.size // self.length), self.length)

    def joined(self, values: Values) -> Values:
        """Return what `apart` made of an array as one axis again."""
        whole = values.reshape(*values.shape[:-2], values.shape[-2] * values.shape[-1])
        return whole[..., : self.size]


def _halved(reducer: TracedReducer, parts: Sequence[Values]) -> list[Values]:
    """Fold the second half of the last axis into the first; neighbours where order counts."""
    first, second = halves(parts[0].shape[-1] // 2, reducer.ordered)
    result = list(_combined(reducer, [(part[..., first], part[..., second]) for part in parts]))
    if parts[0].shape[-1] % 2:
        result = [
            np.concatenate([value, part[..., -1:]], axis=-1)
            for value, part in zip(result, parts, strict=True)
        ]
    return result


Spots: TypeAlias = "tuple[int | Values | None, ...]"
"""Where each axis of a producer is read, for the points of a region of the reader.

A root axis of the reader, at the same coordinate; or the coordinates, to broadcast to the region,
moved into the producer where they lie outside; or None, at 0.
"""


def part_of(spots: Spots, region: Region) -> Region:
    """Return the region of a producer that is read at `spots` of a region of the reader."""
    return tuple([_reach(spot, region) for spot in spots])


def _reach(spot: int | Values | None, region: Region) -> tuple[int, int] | None:
    if spot is None or isinstance(spot, int):
        return None if spot is None else region[spot]
    return (int(spot.min()), int(spot.max()) + 1) if spot.size else None


def gathered(value: Values, spots: Spots, part: Region, rank: int) -> Values:
    """Return what a reader finds at `spots` of a producer, given on its region `part`.

    It has the axes of the reader's root domain, to broadcast to them. Of an empty producer nothing
    is found: zeros stand where no template asks for it.
    """
    plain = [spot for spot in spots if isinstance(spot, int)]
    moved = [spot for spot in spots if not (spot is None or isinstance(spot, int))]
    if not moved and len(set(plain)) == len(plain):
        return _aligned(value, tuple([s if isinstance(s, int) else None for s in spots]), rank)
    where = []
    for axis, (spot, ends) in enumerate(zip(spots, part, strict=True)):
        if spot is None or isinstance(spot, int):
            shape = [1] * rank
            if spot is not None:
                shape[spot] = value.shape[axis]
            where.append(np.arange(value.shape[axis] if spot is not None else 1).reshape(shape))
        else:
            where.append(spot - (ends[0] if ends is not None else 0))
    if not value.size:
        return np.zeros(np.broadcast_shapes(*[w.shape for w in where]), value.dtype)
    return value[tuple(where)]


def _aligned(value: Values, axes: AxisMap, rank: int) -> Values:
    """Return the value of a producer with its axes where `axes` says, others of extent 1."""
    gone = tuple([place for place, axis in enumerate(axes) if axis is None])
    value = np.squeeze(value, gone) if gone else value
    places = [axis for axis in axes if axis is not None]
    order = sorted(range(len(places)), key=places.__getitem__)
    value = np.transpose(value, order)
    missing = [axis for axis in range(rank) if axis not in places]
    return np.expand_dims(value, tuple(missing))
