"""The oracle: the math of a fusion by NumPy, without loops, buffers or schedules.

It reads definitions only (templates, axis maps, reducers, and the transforms between root and
rfactor domain), so a scheduled fusion, whose definitions were split and copied, evaluates as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from loopnest.arguments import ArraySpec, bind, size_value
from loopnest.definition import AxisMap, Definition, Reducer
from loopnest.domain import IterDomain, TensorDomain, transforms_between
from loopnest.dtypes import DType
from loopnest.errors import LaunchError
from loopnest.expr import Arg, Coordinate, Expr, Index
from loopnest.fusion import Fusion
from loopnest.numeric import Values, evaluate_expr, held, rounded, stored
from loopnest.simplify import Simplifier
from loopnest.tensor import TensorView

Result: TypeAlias = "npt.NDArray[Any] | tuple[npt.NDArray[Any], ...]"


@overload
def evaluate(
    fusion: Fusion, /, *arrays: object, tensors: Literal[False] = False, **scalars: object
) -> Result: ...
@overload
def evaluate(
    fusion: Fusion, /, *arrays: object, tensors: Literal[True], **scalars: object
) -> tuple[Result, dict[str, npt.NDArray[Any]]]: ...
def evaluate(
    fusion: Fusion, /, *arrays: object, tensors: bool = False, **scalars: object
) -> Result | tuple[Result, dict[str, npt.NDArray[Any]]]:
    """Return what `fusion` computes of `arrays`, by NumPy: the oracle.

    Floats are computed in float64 and rounded only by casts and where a 16-bit tensor is defined;
    integers are computed in their own type.

    >>> import loopnest as ln
    >>> with ln.Fusion("row_sum") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     y = f.output(ln.sum(x, axis=1), "y")
    >>> evaluate(f, np.ones((2, 3), np.float32))
    array([3., 3.], dtype=float32)

    Args:
        fusion: the math, scheduled or not.
        arrays: one an input, in the order of ``fusion.inputs``.
        tensors: whether to return every tensor.
        scalars: the run-time scalars, and the sizes that no input has.

    Returns:
        The output, or a tuple of them where there is not exactly one, in the outputs' types. With
        `tensors` that, and a dict of every tensor by name.

    Raises:
        LaunchError: arguments that do not fit, or an assumption that does not hold.
    """
    if not isinstance(fusion, Fusion):
        raise LaunchError(f"evaluate({fusion!r})", "it is no Fusion", "pass the fusion itself")
    oracle = _Oracle(fusion, arrays, scalars)
    found = oracle.run(fusion.tensors if tensors else fusion.outputs)
    outputs = tuple([found[tensor] for tensor in fusion.outputs])
    result: Result = outputs[0] if len(outputs) == 1 else outputs
    return (result, {t.name: found[t] for t in fusion.tensors}) if tensors else result


class _Oracle:
    """One evaluation: the sizes, the scalars, and the values of the tensors so far."""

    def __init__(
        self, fusion: Fusion, arrays: Sequence[object], keywords: Mapping[str, object]
    ) -> None:
        specs = [ArraySpec(tensor.name, tensor.dtype, tensor.sizes) for tensor in fusion.inputs]
        bound = bind(
            specs, fusion.scalars, fusion.symbols, fusion.facts.conditions, arrays, keywords,
            f"evaluate({fusion.name})",
        )  # fmt: skip
        self.sizes = bound.sizes
        self.env: dict[Expr, Values] = {
            symbol: np.asarray(bound.sizes[symbol.name], np.int64) for symbol in fusion.symbols
        }
        for scalar in fusion.scalars:
            self.env[scalar] = held(np.asarray(bound.scalars[scalar.name]), scalar.dtype)
        self.values: dict[TensorView, Values] = {}
        for tensor, array in zip(fusion.inputs, arrays, strict=True):
            self.values[tensor] = held(np.asarray(array), tensor.dtype)
        self.order = fusion.topological()

    def run(self, wanted: Sequence[TensorView]) -> dict[TensorView, npt.NDArray[Any]]:
        """Return the values of `wanted`, in their types; others are kept only while needed."""
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
            return {tensor: stored(self.values[tensor], tensor.dtype) for tensor in wanted}

    def _define(self, tensor: TensorView) -> None:
        """Evaluate the definition of `tensor`, for all its outputs."""
        definition = tensor.definition
        assert definition is not None
        parts = self._elements(definition, tensor.domain)
        types = tuple([value.dtype for value in definition.values])
        reducer = definition.reducer
        if tensor.domain.rfactor != tensor.domain.root:
            fill = reducer.identity(types) if reducer else None
            empty = [evaluate_expr(c, {}) for c in fill] if fill else [np.asarray(0)] * len(parts)
            parts = [
                self._placed(tensor.domain, part, neutral)
                for part, neutral in zip(parts, empty, strict=True)
            ]
        if reducer is not None:
            parts = self._reduced(reducer, types, tensor.domain.rfactor, parts)
        for output, part in zip(definition.outputs, parts, strict=True):
            self.values[output] = _defined(part, output.dtype)

    def _shape(self, axes: Sequence[IterDomain]) -> tuple[int, ...]:
        return tuple([size_value(axis.size, self.sizes) for axis in axes])

    def _elements(self, definition: Definition, domain: TensorDomain) -> list[Values]:
        """Return the values of the templates at every point of the root domain."""
        shape = self._shape(domain.root)
        env = dict(self.env)
        for number, (producer, axes) in enumerate(
            zip(definition.producers, definition.maps, strict=True)
        ):
            value = _aligned(self.values[producer], axes, len(shape))
            env[Arg(number, producer.dtype)] = value
        for axis, points in enumerate(_grid(shape)):
            env[Coordinate(axis)] = points
        return [np.broadcast_to(evaluate_expr(v, env), shape) for v in definition.values]

    def _placed(self, domain: TensorDomain, part: Values, neutral: Values) -> Values:
        """Return `part`, given on the root domain, on the rfactor domain.

        Points of the rfactor domain that are no points of the root hold `neutral`.
        """
        algebra = Simplifier()
        env: dict[Expr, Values] = dict(self.env)
        names: dict[IterDomain, Index] = {}
        for axis, points in zip(domain.root, _grid(part.shape), strict=True):
            names[axis] = Index(f"i{len(names)}", axis.size)
            env[names[axis]] = points
        for step in transforms_between(domain.root, domain.rfactor):
            images = step.forward([names[axis] for axis in step.inputs], algebra)
            for axis, image in zip(step.outputs, images, strict=True):
                names[axis] = Index(f"i{len(names)}", axis.size)
                env[names[axis]] = evaluate_expr(image, env)
        result = np.full(self._shape(domain.rfactor), neutral, part.dtype)
        where = [np.broadcast_to(env[names[axis]], part.shape) for axis in domain.rfactor]
        result[tuple(where)] = part
        return result

    def _reduced(
        self,
        reducer: Reducer,
        types: tuple[DType, ...],
        axes: Sequence[IterDomain],
        parts: Sequence[Values],
    ) -> list[Values]:
        """Fold the reduction axes away, halving their elements until one is left."""
        folded = tuple([place for place, axis in enumerate(axes) if axis.is_reduction])
        kept = [place for place in range(len(axes)) if place not in folded]
        shape = self._shape(axes)
        count = int(np.prod([shape[place] for place in folded], dtype=np.int64))
        flat = (*[shape[place] for place in kept], count)
        order = (*kept, *folded)
        now = [np.transpose(part, order).reshape(flat) for part in parts]
        neutral = [evaluate_expr(c, {}) for c in reducer.identity(types)]
        if count == 0:
            pairs = zip(neutral, now, strict=True)
            return [np.full(flat[:-1], value, part.dtype) for value, part in pairs]
        while now[0].shape[-1] > 1:
            now = _halved(reducer, types, now)
        return [part[..., 0] for part in now]


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


def _defined(values: Values, dtype: DType) -> Values:
    """Return `values` as a tensor of `dtype` has them: rounded if it is a 16-bit tensor."""
    return rounded(values, dtype) if dtype.is_half else held(values, dtype)


def _grid(shape: Sequence[int]) -> Iterator[Values]:
    """Yield the coordinate along each axis, to broadcast to `shape`."""
    for axis, size in enumerate(shape):
        rest = [1] * len(shape)
        rest[axis] = size
        yield np.arange(size, dtype=np.int64).reshape(rest)


def _aligned(value: Values, axes: AxisMap, rank: int) -> Values:
    """Return the value of a producer with its axes where `axes` says, others of extent 1."""
    gone = tuple([place for place, axis in enumerate(axes) if axis is None])
    value = np.squeeze(value, gone) if gone else value
    places = [axis for axis in axes if axis is not None]
    order = sorted(range(len(places)), key=places.__getitem__)
    value = np.transpose(value, order)
    missing = [axis for axis in range(rank) if axis not in places]
    return np.expand_dims(value, tuple(missing))


def _halved(reducer: Reducer, types: tuple[DType, ...], parts: Sequence[Values]) -> list[Values]:
    """Fold the second half of the last axis into the first."""
    half = parts[0].shape[-1] // 2
    left = tuple([Arg(n, dtype) for n, dtype in enumerate(types)])
    right = tuple([Arg(len(types) + n, dtype) for n, dtype in enumerate(types)])
    env: dict[Expr, Values] = {}
    for a, b, part in zip(left, right, parts, strict=True):
        env[a], env[b] = part[..., :half], part[..., half : 2 * half]
    result = [evaluate_expr(value, env) for value in reducer.combine(left, right)]
    if parts[0].shape[-1] % 2:
        result = [
            np.concatenate([value, part[..., -1:]], axis=-1)
            for value, part in zip(result, parts, strict=True)
        ]
    return result
