"""The oracle: the math of a fusion by NumPy, without loops, buffers or schedules.

It reads definitions only (templates, axis maps, reducers, and the transforms between root and
rfactor domain), so a scheduled fusion, whose definitions were split and copied, evaluates as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Literal, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from loopnest.arguments import ArraySpec, bind, size_value
from loopnest.definition import AxisMap, Definition, Reducer
from loopnest.domain import IterDomain, TensorDomain, transforms_between
from loopnest.dtypes import DType
from loopnest.errors import LaunchError
from loopnest.expr import Arg, Coordinate, Expr, Index, two_sides
from loopnest.fusion import Fusion
from loopnest.numeric import Values, evaluate_expr, held, rounded, stored
from loopnest.simplify import Simplifier
from loopnest.tensor import TensorView

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

    >>> import loopnest as ln
    >>> with ln.Fusion("row_sum") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     y = f.output(ln.sum(x, axis=1), "y")
    >>> evaluate(f, np.ones((2, 3), np.float32))
    array([3., 3.], dtype=float32)
    >>> evaluate(f, np.full((1, 3), 0.1, np.float32), exact=True)
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
    """
    if not isinstance(fusion, Fusion):
        raise LaunchError(f"evaluate({fusion!r})", "it is no Fusion", "pass the fusion itself")
    oracle = _Values(fusion, arrays, scalars)
    found = oracle.run(fusion.tensors if tensors else fusion.outputs)
    with np.errstate(all="ignore"):
        results = {
            tensor: np.array(value) if exact else stored(value, tensor.dtype)
            for tensor, value in found.items()
        }
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
        specs = [ArraySpec(tensor.name, tensor.dtype, tensor.sizes) for tensor in fusion.inputs]
        bound = bind(
            specs, fusion.scalars, fusion.symbols, fusion.facts.conditions, arrays, keywords,
            f"{subject}({fusion.name})",
        )  # fmt: skip
        self.sizes = bound.sizes
        self.places = places or {}
        self.indices: dict[Expr, Values] = {
            symbol: np.asarray(bound.sizes[symbol.name], np.int64) for symbol in fusion.symbols
        }
        self.leaves = {node: self.given(value, node.dtype) for node, value in self.indices.items()}
        for scalar in fusion.scalars:
            self.leaves[scalar] = self.given(np.asarray(bound.scalars[scalar.name]), scalar.dtype)
        self.values: dict[TensorView, V] = {}
        for tensor, array in zip(fusion.inputs, arrays, strict=True):
            taken = self._taken(np.asarray(array), tensor)
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
    def folded(self, reducer: Reducer, parts: Sequence[V]) -> list[V]:
        """Return the components of a reduction, with their last axis folded away."""

    @abstractmethod
    def defined(self, value: V, dtype: DType) -> V:
        """Return `value` as a tensor of `dtype` has it: rounded if it is a 16-bit tensor."""

    # The order of definitions

    def run(self, wanted: Sequence[TensorView]) -> dict[TensorView, V]:
        """Return the values of `wanted`; others are kept only while needed."""
        needed = _producers_of(wanted)
        order = [tensor for tensor in self.order if tensor in needed]
        last = {producer: tensor for tensor in order for producer in tensor.producers}
        with np.errstate(all="ignore"):
            for tensor in order:
                if tensor not in self.values:
                    self._define(tensor)
                for producer in tensor.producers:
                    if last[producer] is tensor and producer not in wanted:
                        del self.values[producer]
        return {tensor: self.values[tensor] for tensor in wanted}

    def _define(self, tensor: TensorView) -> None:
        """Evaluate the definition of `tensor`, for all its outputs."""
        definition = tensor.definition
        assert definition is not None
        env = self._operands(definition, tensor.domain)
        parts = self.computed(definition, tensor.domain, self.shape(tensor.domain.root), env)
        for output, part in zip(definition.outputs, parts, strict=True):
            self.values[output] = self.defined(part, output.dtype)

    def computed(
        self,
        definition: Definition,
        domain: TensorDomain,
        shape: tuple[int, ...],
        env: Mapping[Expr, V],
    ) -> list[V]:
        """Return what a definition gives on a root domain of extents `shape`.

        Args:
            definition: the definition.
            domain: of its outputs.
            shape: the extents of the root domain, or of a block of it.
            env: the leaves of the templates, to broadcast to `shape`.
        """
        parts = [
            self.viewed(self.expression(value, env), lambda a: np.broadcast_to(a, shape))
            for value in definition.values
        ]
        reducer = definition.reducer
        if domain.rfactor != domain.root:
            fill = reducer.identity if reducer else None
            empty = [evaluate_expr(c, {}) for c in fill] if fill else [np.asarray(0)] * len(parts)
            where = self._places(domain)
            shape = self.shape(domain.rfactor)
            parts = [
                self.viewed(part, partial(_placed, shape, where, neutral))
                for part, neutral in zip(parts, empty, strict=True)
            ]
        if reducer is None:
            return parts
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

    def _operands(self, definition: Definition, domain: TensorDomain) -> dict[Expr, V]:
        """Return the values of a template's leaves, with the axes of the root domain."""
        rank = len(domain.root)
        env = dict(self.leaves)
        for number, (producer, axes) in enumerate(
            zip(definition.producers, definition.maps, strict=True)
        ):
            value = self.viewed(self.values[producer], partial(_aligned, axes=axes, rank=rank))
            env[Arg(number, producer.dtype)] = value
        for place, points in enumerate(self._grid(domain.root)):
            coordinate = Coordinate(place)
            env[coordinate] = self.given(points, coordinate.dtype)
        return env

    def _grid(self, axes: Sequence[IterDomain]) -> Iterator[Values]:
        """Yield the coordinate along each axis, to broadcast to all of them."""
        for place, (axis, size) in enumerate(zip(axes, self.shape(axes), strict=True)):
            rest = [1] * len(axes)
            rest[place] = size
            points = self.places.get(axis, np.arange(size, dtype=np.int64))
            yield points.reshape(rest)

    def _places(self, domain: TensorDomain) -> tuple[Values, ...]:
        """Return where on the rfactor domain each point of the root domain lies."""
        algebra = Simplifier()
        env: dict[Expr, Values] = dict(self.indices)
        names: dict[IterDomain, Index] = {}
        for axis, points in zip(domain.root, self._grid(domain.root), strict=True):
            names[axis] = Index(f"i{len(names)}", axis.size)
            dense = np.arange(points.size).reshape(points.shape)
            env[names[axis]] = dense if axis in self.places else points
        for step in transforms_between(domain.root, domain.rfactor):
            images = step.forward([names[axis] for axis in step.inputs], algebra)
            for axis, image in zip(step.outputs, images, strict=True):
                names[axis] = Index(f"i{len(names)}", axis.size)
                env[names[axis]] = evaluate_expr(image, env)
        return tuple([env[names[axis]] for axis in domain.rfactor])

    def _reduced(
        self,
        reducer: Reducer,
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

    def folded(self, reducer: Reducer, parts: Sequence[Values]) -> list[Values]:
        return fold_values(reducer, parts)

    def defined(self, value: Values, dtype: DType) -> Values:
        return define_values(value, dtype)


def fold_values(reducer: Reducer, parts: Sequence[Values]) -> list[Values]:
    """Fold the last axis away, which is not empty, halving its elements until one is left."""
    now = list(parts)
    while now[0].shape[-1] > 1:
        now = _halved(reducer, now)
    return [part[..., 0] for part in now]


def define_values(values: Values, dtype: DType) -> Values:
    """Return `values` as a tensor of `dtype` has them: rounded if it is a 16-bit tensor."""
    return rounded(values, dtype) if dtype.is_half else held(values, dtype)


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


def _aligned(value: Values, axes: AxisMap, rank: int) -> Values:
    """Return the value of a producer with its axes where `axes` says, others of extent 1."""
    gone = tuple([place for place, axis in enumerate(axes) if axis is None])
    value = np.squeeze(value, gone) if gone else value
    places = [axis for axis in axes if axis is not None]
    order = sorted(range(len(places)), key=places.__getitem__)
    value = np.transpose(value, order)
    missing = [axis for axis in range(rank) if axis not in places]
    return np.expand_dims(value, tuple(missing))


def _halved(reducer: Reducer, parts: Sequence[Values]) -> list[Values]:
    """Fold the second half of the last axis into the first."""
    half = parts[0].shape[-1] // 2
    left, right = two_sides(reducer.types)
    env: dict[Expr, Values] = {}
    for a, b, part in zip(left, right, parts, strict=True):
        env[a], env[b] = part[..., :half], part[..., half : 2 * half]
    result = [evaluate_expr(value, env) for value in reducer.combination]
    if parts[0].shape[-1] % 2:
        result = [
            np.concatenate([value, part[..., -1:]], axis=-1)
            for value, part in zip(result, parts, strict=True)
        ]
    return result
