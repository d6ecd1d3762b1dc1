"""The oracle: the math of a fusion by NumPy, without loops, buffers or schedules.

It reads definitions only (templates, reads, reducers, and the transforms between root and
rfactor domain), so a scheduled fusion, whose definitions were split and copied, evaluates as well.

Memory is that of inputs and outputs, of reductions, and of blocks: a large pointwise tensor is not
held but computed, block by block, where it is read. It is computed again for each reduction and
output that reads it, which costs time only where more than a block is to compute.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Literal, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from loopnest.errors import InternalError, LaunchError
from loopnest.numerics import oracle_blocks
from loopnest.numerics.float64_math import Values, evaluate_expr, held, rounded, stored
from loopnest.numerics.oracle_blocks import (
    Arrays,
    Block,
    Pieces,
    Region,
    blocks_of,
    chunks_of,
    halves,
    length,
)
from loopnest.numerics.oracle_gathers import (
    picked,
    places_by_data,
    points_along,
    require_inside,
    spots_by_data,
)
from loopnest.numerics.oracle_reads import Spots, gathered, part_of
from loopnest.scalar.arguments import ArraySpec, bind, size_value
from loopnest.scalar.data_ranges import check_data
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Arg, Coordinate, Expr, Index, two_sides
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.definition import Definition, Read, Scan, TracedReducer
from loopnest.tensor.domain import IterDomain, TensorDomain, transforms_between
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.tensor_view import TensorView

Result: TypeAlias = "npt.NDArray[Any] | tuple[npt.NDArray[Any], ...]"


@overload
def evaluate(
    fusion: Fusion, /, *arrays: object, tensors: Literal[False] = False, exact: bool = False,
    **scalars: object,
) -> Result: ...  # fmt: skip
@overload
def evaluate(
    fusion: Fusion, /, *arrays: object, tensors: Literal[True], exact: bool = False,
    **scalars: object,
) -> tuple[Result, dict[str, npt.NDArray[Any]]]: ...  # fmt: skip
def evaluate(
    fusion: Fusion, /, *arrays: object, tensors: bool = False, exact: bool = False,
    **scalars: object,
) -> Result | tuple[Result, dict[str, npt.NDArray[Any]]]:  # fmt: skip
    """Return what `fusion` computes of `arrays`, by NumPy: the oracle.

    Floats are computed in float64 and rounded only by casts and where a 16-bit tensor is defined;
    integers are computed in their own type.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("row_sum") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     y = f.output(ln.sum(x, axis=1), "y")
    >>> ln.evaluate(f, np.ones((2, 3), np.float32))
    array([3., 3.], dtype=float32)
    >>> ln.evaluate(f, np.full((1, 3), 0.1, np.float32), exact=True)
    array([0.3])

    Args:
        fusion: the math, scheduled or not.
        arrays: one an input, in the order of ``fusion.inputs``.
        tensors: whether to return every tensor.
        exact: whether floats are returned in float64, as they were computed: a float32 result is
            then not rounded. Casts, and the definitions of 16-bit tensors, round all the same.
        scalars: the run-time scalars, and the sizes that no input has.

    Returns:
        The output, or a tuple of them where there is not exactly one, in the outputs' types. With
        `tensors` that, and a dict of every tensor by name.

    Raises:
        LaunchError: arguments that do not fit, or an assumption that does not hold.

    Source: the way of nvFuser's `ExpressionEvaluator`: definitions alone, no schedule.
    """
    if not isinstance(fusion, Fusion):
        raise LaunchError(f"evaluate({fusion!r})", "it is no Fusion", "pass the fusion itself")
    for name, flag in (("tensors", tensors), ("exact", exact)):
        if not isinstance(flag, bool):
            subject = f"evaluate({fusion.name}, {name}={type(flag).__name__})"
            raise LaunchError(subject, f"{name}= is no bool", "pass True or False")
    wanted = fusion.tensors if tensors else fusion.outputs
    results = _Values(fusion, arrays, scalars).results(wanted, _unrounded if exact else stored)
    outputs = tuple([results[tensor] for tensor in fusion.outputs])
    result: Result = outputs[0] if len(outputs) == 1 else outputs
    return (result, {t.name: results[t] for t in fusion.tensors}) if tensors else result


V = TypeVar("V")
Places: TypeAlias = Mapping[IterDomain, Values]
"""Axes that are not walked whole, with the coordinates that are."""


class Oracle(ABC, Generic[V]):
    """One evaluation: the sizes, the scalars, and the values of the tensors so far.

    What a value is, a subclass says: it brings the arithmetic, this class the order of definitions,
    the axes and the memory.

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
    def folded(self, reducer: TracedReducer, parts: Sequence[V]) -> list[V]:
        """Return the components of a reduction, with their last axis folded away."""

    @abstractmethod
    def folded_so_far(
        self, reducer: TracedReducer, parts: Sequence[V], *, exclusive: bool
    ) -> list[V]:
        """Return for each element along the last axis what all up to it fold to.

        With `exclusive` it is all before it.
        """

    @abstractmethod
    def defined(self, value: V, dtype: DType) -> V:
        """Return `value` as a tensor of `dtype` has it: rounded if it is a 16-bit tensor."""

    @abstractmethod
    def assembled(self, shape: tuple[int, ...]) -> Pieces[V]:
        """Return what puts a value of extents `shape` together from blocks."""

    # The order of definitions

    def run(self, wanted: Sequence[TensorView]) -> dict[TensorView, V]:
        """Return the values of `wanted`; others are kept only while needed."""
        self._define_all(wanted, {})
        return {tensor: self._read(tensor, None) for tensor in wanted}

    def results(
        self, wanted: Sequence[TensorView], final: Callable[[V, DType], Values]
    ) -> dict[TensorView, Values]:
        """Return what `final` makes of the values of `wanted`, block by block where it can."""
        needed = _producers_of(wanted)
        ends = {} if len(needed) == len(set(wanted)) else dict.fromkeys(wanted, final)
        made = self._define_all(wanted, ends)
        with np.errstate(all="ignore"):
            for tensor in wanted:
                if tensor not in made:
                    made[tensor] = final(self._read(tensor, None), tensor.dtype)
        return made

    def _define_all(
        self, wanted: Sequence[TensorView], ends: Mapping[TensorView, Callable[[V, DType], Values]]
    ) -> dict[TensorView, Values]:
        """Evaluate all that `wanted` needs; return what `ends` make of the values of theirs.

        Large pointwise tensors are computed anew, block by block, where they are read.
        """
        needed = _producers_of(wanted)
        order = [t for t in self.order if t in needed and t.definition is not None]
        gathered_from = {
            r.producer for t in order if t.definition for r in t.definition.reads if r.data
        }
        self.inlined = {
            t for t in order
            if (t in ends or t not in wanted) and self._is_large(t) and t not in gathered_from
        }  # fmt: skip
        read = {producer for t in order for producer in t.producers}
        stored_whole = read.difference(self.inlined)
        stages = [t for t in order if t not in self.inlined or t in ends]
        inner = {tensor: self._inlined_into(tensor) for tensor in stages}
        last = {p: t for t in stages for u in (t, *inner[t]) for p in u.producers}
        made: dict[TensorView, Values] = {}
        with np.errstate(all="ignore"):
            for tensor in stages:
                if tensor not in self.values and tensor not in made:
                    direct = {t: end for t, end in ends.items() if t not in stored_whole}
                    self._define(tensor, inner[tensor], direct, made)
                for producer in [p for p, t in last.items() if t is tensor]:
                    if producer not in wanted:
                        self.values.pop(producer, None)
        return made

    def _is_large(self, tensor: TensorView) -> bool:
        """Whether a tensor is pointwise, and larger than a block."""
        definition, domain = tensor.definition, tensor.domain
        assert definition is not None
        if definition.reducer is not None or domain.rfactor != domain.root:
            return False
        return math.prod(self.shape(domain.root)) > oracle_blocks.BLOCK

    def _inlined_into(self, tensor: TensorView) -> list[TensorView]:
        """Return the tensors that are computed where `tensor` reads them, producers first."""
        found: set[TensorView] = set()
        stack = list(tensor.producers)
        while stack:
            producer = stack.pop()
            if producer in self.inlined and producer not in found:
                found.add(producer)
                stack.extend(producer.producers)
        return [t for t in self.order if t in found] if found else []

    def _define(
        self,
        tensor: TensorView,
        inner: Sequence[TensorView],
        ends: Mapping[TensorView, Callable[[V, DType], Values]],
        made: dict[TensorView, Values],
    ) -> None:
        """Evaluate the definition of `tensor`, for all its outputs, block by block."""
        definition, domain = tensor.definition, tensor.domain
        assert definition is not None
        shape = self.shape(domain.root)
        reduces = definition.reducer is not None
        kept = [
            place
            for place, axis in enumerate(domain.root)
            if axis in domain.rfactor and not (reduces and axis.is_reduction)
        ]
        if definition.scan is not None:
            kept.remove(definition.scan.axis)
        logical = [a for a in domain.rfactor if not (reduces and a.is_reduction)]
        whole = self.shape(logical)
        arrays = {t: Arrays(whole) for t in definition.outputs if t in ends}
        pieces = {t: self.assembled(whole) for t in definition.outputs if t not in ends}
        for block in blocks_of(shape, kept):
            parts = self._block(definition, domain, shape, block, inner)
            cut = {domain.root[place]: part for place, part in block.items()}
            where = tuple([cut.get(axis, slice(None)) for axis in logical])
            for output, part in zip(definition.outputs, parts, strict=True):
                value = self.defined(part, output.dtype)
                if output in ends:
                    arrays[output].put(where, ends[output](value, output.dtype))
                elif not block:  # all of it
                    self.values[output] = value
                else:
                    pieces[output].put(where, value)
        made.update({t: result.whole() for t, result in arrays.items()})
        rest = {t: piece for t, piece in pieces.items() if t not in self.values}
        self.values.update({t: piece.whole() for t, piece in rest.items()})

    def _block(
        self,
        definition: Definition,
        domain: TensorDomain,
        shape: tuple[int, ...],
        block: Block,
        inner: Sequence[TensorView],
    ) -> list[V]:
        """Return what a definition gives on a block of its root domain."""
        reducer = definition.reducer
        chunks = [block]
        if self.folds_in_parts and reducer is not None and domain.rfactor == domain.root:
            chunks = list(chunks_of(shape, block, [a.is_reduction for a in domain.root]))
        found = []
        for chunk in chunks:
            region = tuple([_bounds(chunk, place) for place in range(len(shape))])
            local = self._locals(definition, region, inner)
            env = self.operands(definition, domain, region, local)
            size = tuple([length(chunk, place, n) for place, n in enumerate(shape)])
            found.append(self.computed(definition, domain, size, env, chunk))
        if len(found) == 1:
            return found[0]
        assert reducer is not None
        return self.folded_parts(reducer, found)

    folds_in_parts = False
    """Whether a reduction may fold parts of its elements, and then `folded_parts` of these."""

    def folded_parts(self, reducer: TracedReducer, parts: Sequence[list[V]]) -> list[V]:
        """Return what partial results fold to, the components of each given."""
        raise InternalError(reducer.name, f"{type(self).__name__} folds no parts")

    def _locals(
        self, definition: Definition, region: Region, inner: Sequence[TensorView]
    ) -> dict[tuple[TensorView, Region], V]:
        """Return the parts of inlined tensors that a definition reads on a region."""
        asked: dict[TensorView, dict[Region, None]] = {tensor: {} for tensor in inner}

        def ask(definition: Definition, region: Region) -> None:
            root = definition.outputs[0].domain.root
            for read in definition.reads:
                if read.producer in asked:
                    spots = self._spots(read, root, region)
                    asked[read.producer][part_of(spots, region)] = None

        if inner:
            ask(definition, region)
        for tensor in reversed(inner):
            for part in asked[tensor]:
                assert tensor.definition is not None
                ask(tensor.definition, part)
        found: dict[tuple[TensorView, Region], V] = {}
        for tensor in inner:
            own = tensor.definition
            assert own is not None
            for part in asked[tensor]:
                env = self.operands(own, tensor.domain, part, found)
                size = tuple(
                    [
                        n if ends is None else ends[1] - ends[0]
                        for n, ends in zip(self.shape(tensor.domain.root), part, strict=True)
                    ]
                )
                value = self.viewed(
                    self.expression(own.values[0], env), partial(np.broadcast_to, shape=size)
                )
                found[tensor, part] = self.defined(value, tensor.dtype)
        return found

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

    def computed(
        self,
        definition: Definition,
        domain: TensorDomain,
        shape: tuple[int, ...],
        env: Mapping[Expr, V],
        block: Block,
    ) -> list[V]:
        """Return what a definition gives on a block of extents `shape` of its root domain.

        Args:
            definition: the definition.
            domain: of its outputs.
            shape: the extents of the block.
            env: the leaves of the templates, to broadcast to `shape`.
            block: where it lies.
        """
        parts = [
            self.viewed(self.expression(value, env), lambda a: np.broadcast_to(a, shape))
            for value in definition.values
        ]
        reducer = definition.reducer
        if domain.rfactor != domain.root:
            fill = reducer.identity if reducer else None
            empty = [evaluate_expr(c, {}) for c in fill] if fill else [np.asarray(0)] * len(parts)
            cut = {domain.root[place]: part.stop - part.start for place, part in block.items()}
            where = self._places(domain, cut)
            whole = zip(domain.rfactor, self.shape(domain.rfactor), strict=True)
            shape = tuple([cut.get(axis, size) for axis, size in whole])
            parts = [
                self.viewed(part, partial(_placed, shape, where, neutral))
                for part, neutral in zip(parts, empty, strict=True)
            ]
        if reducer is None:
            return parts
        if definition.scan is not None:
            return self._scanned(reducer, definition.scan, parts)
        return self._reduced(reducer, domain.rfactor, shape, parts)

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

    @abstractmethod
    def integers(self, value: V) -> Values:
        """Return the numbers that a value of an integer type has."""

    @abstractmethod
    def uncertain(self, value: V, indices: Sequence[V]) -> V:
        """Return what was read at `indices`: anything, where such an index may be another."""

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

    def _places(self, domain: TensorDomain, cut: Mapping[IterDomain, int]) -> tuple[Values, ...]:
        """Return where on the rfactor domain each point of the root domain lies.

        Of the axes in `cut`, which both domains have, only so many coordinates are looked at.
        """
        algebra = Simplifier()
        env: dict[Expr, Values] = dict(self.indices)
        names: dict[IterDomain, Index] = {}
        region = tuple([(0, cut[axis]) if axis in cut else None for axis in domain.root])
        for axis, points in zip(domain.root, self._grid(domain.root, region), strict=True):
            names[axis] = Index(f"i{len(names)}", axis.size)
            dense = np.arange(points.size).reshape(points.shape)
            env[names[axis]] = dense if axis in self.places else points
        for step in transforms_between(domain.root, domain.rfactor):
            images = step.forward([names[axis] for axis in step.inputs], algebra)
            for axis, image in zip(step.outputs, images, strict=True):
                names[axis] = Index(f"i{len(names)}", axis.size)
                env[names[axis]] = evaluate_expr(image, env)
        return tuple([env[names[axis]] for axis in domain.rfactor])

    def _scanned(self, reducer: TracedReducer, scan: Scan, parts: Sequence[V]) -> list[V]:
        """Give each element what is folded so far along an axis."""
        last = [self.viewed(part, lambda a: np.moveaxis(a, scan.axis, -1)) for part in parts]
        if scan.segment is None:
            found = self.folded_so_far(reducer, last, exclusive=scan.exclusive)
        else:
            cut = Segments(scan.segment)
            apart = [self.viewed(part, cut.apart) for part in last]
            found = self.folded_so_far(reducer, apart, exclusive=scan.exclusive)
            found = [self.viewed(part, cut.joined) for part in found]
        return [self.viewed(part, lambda a: np.moveaxis(a, -1, scan.axis)) for part in found]

    def _reduced(
        self,
        reducer: TracedReducer,
        axes: Sequence[IterDomain],
        shape: tuple[int, ...],
        parts: Sequence[V],
    ) -> list[V]:
        """Fold the reduction axes away."""
        folded = tuple([place for place, axis in enumerate(axes) if axis.is_reduction])
        kept = [place for place in range(len(axes)) if place not in folded]
        count = int(np.prod([shape[place] for place in folded], dtype=np.int64))
        flat = (*[shape[place] for place in kept], count)
        order = (*kept, *folded)
        if count == 0:
            neutral = [(evaluate_expr(c, {}), c.dtype) for c in reducer.identity]
            return [self.given(np.full(flat[:-1], value), dtype) for value, dtype in neutral]
        now = [self.viewed(p, lambda a: np.transpose(a, order).reshape(flat)) for p in parts]
        return self.folded(reducer, now)


def _placed(
    shape: tuple[int, ...], where: tuple[Values, ...], neutral: Values, part: Values
) -> Values:
    """Return `part`, given on the root domain, on an rfactor domain of extents `shape`.

    Points of the rfactor domain that are no points of the root hold `neutral`.
    """
    result = np.full(shape, neutral, part.dtype)
    result[tuple([np.broadcast_to(index, part.shape) for index in where])] = part
    return result


class _Values(Oracle[Values]):
    """The oracle itself: floats in float64, integers in their own type."""

    def given(self, values: Values, dtype: DType) -> Values:
        return held(values, dtype)

    def expression(self, root: Expr, env: Mapping[Expr, Values]) -> Values:
        return evaluate_expr(root, env)

    def viewed(self, value: Values, view: Callable[[Values], Values]) -> Values:
        return view(value)

    def integers(self, value: Values) -> Values:
        return value

    def uncertain(self, value: Values, indices: Sequence[Values]) -> Values:
        return value

    def folded(self, reducer: TracedReducer, parts: Sequence[Values]) -> list[Values]:
        return fold_values(reducer, parts)

    def folded_so_far(
        self, reducer: TracedReducer, parts: Sequence[Values], *, exclusive: bool
    ) -> list[Values]:
        return scan_values(reducer, parts, exclusive=exclusive)

    def defined(self, value: Values, dtype: DType) -> Values:
        return define_values(value, dtype)

    def assembled(self, shape: tuple[int, ...]) -> Arrays:
        return Arrays(shape)

    folds_in_parts = True

    def folded_parts(self, reducer: TracedReducer, parts: Sequence[list[Values]]) -> list[Values]:
        return self.folded(reducer, [np.stack(part, axis=-1) for part in zip(*parts, strict=True)])


def _unrounded(values: Values, dtype: DType) -> Values:
    """Return `values` as they were computed, in a new array."""
    return np.array(values)


def fold_values(reducer: TracedReducer, parts: Sequence[Values]) -> list[Values]:
    """Fold the last axis away, which is not empty, halving its elements until one is left."""
    now = list(parts)
    while now[0].shape[-1] > 1:
        now = _halved(reducer, now)
    return [part[..., 0] for part in now]


def scan_values(
    reducer: TracedReducer, parts: Sequence[Values], *, exclusive: bool = False
) -> list[Values]:
    """Return for each element along the last axis what all up to it fold to.

    Each round lets it take in what twice as many elements in front of it fold to.
    """
    now, size, reach = list(parts), parts[0].shape[-1], 1
    left, right = two_sides(reducer.types)
    while reach < size:
        env: dict[Expr, Values] = {}
        for a, b, part in zip(left, right, now, strict=True):
            env[a], env[b] = part[..., :-reach], part[..., reach:]
        shape = now[0][..., reach:].shape
        found = [np.broadcast_to(evaluate_expr(e, env), shape) for e in reducer.combination]
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


def define_values(values: Values, dtype: DType) -> Values:
    """Return `values` as a tensor of `dtype` has them: rounded if it is a 16-bit tensor."""
    return rounded(values, dtype) if dtype.is_narrow else held(values, dtype)


def _bounds(block: Block, place: int) -> tuple[int, int] | None:
    return (block[place].start, block[place].stop) if place in block else None


def _producers_of(wanted: Sequence[TensorView]) -> set[TensorView]:
    """Return `wanted`, and all that they are computed from."""
    found: set[TensorView] = set()
    stack = list(wanted)
    while stack:
        tensor = stack.pop()
        if tensor not in found:
            found.add(tensor)
            stack.extend(tensor.producers)
    return found


def _halved(reducer: TracedReducer, parts: Sequence[Values]) -> list[Values]:
    """Fold the second half of the last axis into the first; neighbours where order counts."""
    half = parts[0].shape[-1] // 2
    left, right = two_sides(reducer.types)
    first, second = halves(half, reducer.ordered)
    env: dict[Expr, Values] = {}
    for a, b, part in zip(left, right, parts, strict=True):
        env[a], env[b] = part[..., first], part[..., second]
    shape = (*parts[0].shape[:-1], half)
    found = [evaluate_expr(value, env) for value in reducer.combination]
    result = [np.broadcast_to(value, shape) for value in found]
    if parts[0].shape[-1] % 2:
        result = [
            np.concatenate([value, part[..., -1:]], axis=-1)
            for value, part in zip(result, parts, strict=True)
        ]
    return result
