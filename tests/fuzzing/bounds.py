"""How far a correct kernel may be from the math: an error bound for every element.

A second evaluation of the math, independent of `ln.evaluate`: each value comes with a bound on
what rounding can do to it, carried through the definitions by the rules of forward error analysis
(Higham, "Accuracy and Stability of Numerical Algorithms", chapters 2 to 4). With u the unit
roundoff of the type that an operation computes in (2^-24 for float32, 2^-53 for float64):

- an operation on values known to within e gives its derivative times e, plus u times its result
  (`ULPS` times that for functions, which are promised to 4 ulp);
- a sum of n terms, in any order and any grouping, errs by at most (n - 1) u times the sum of the
  magnitudes, plus the errors of its terms; a product likewise, relative to its magnitude;
- a 16-bit tensor adds half an ulp of its own type, once, where it is defined;
- what does not round (copies, signs, extrema, integers, bools) adds nothing: exact stays exact.

Where no bound exists (a comparison or floor whose operand may lie on either side of the step, a
magnitude near overflow, a divisor that may be 0) the error is infinite: such an element may be
anything, and makes what depends on it the same. `Approx.unknown` counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import loopnest as ln
from loopnest import dtypes
from loopnest.definition import Definition
from loopnest.dtypes import DType
from loopnest.expr import Arg, Const, Coordinate, Expr, Op, ScalarParam, Symbol, walk
from loopnest.numeric import APPLY, held, rounded

Array: TypeAlias = "npt.NDArray[Any]"

ULPS = 4.0
"""What the vector math of the targets promises for exp, tanh, erf… (in units in the last place)."""

_UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
_LEAST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 5e-324}
_LARGEST = {
    "float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}  # fmt: skip


@dataclass(frozen=True)
class Approx:
    """Values, and for each a bound on the error of a correct computation of it.

    Floats are held in float64. `error` broadcasts to `value`; for integers it is 0 or inf.
    """

    value: Array
    error: Array

    @property
    def unknown(self) -> int:
        """How many elements may be anything."""
        return int(np.count_nonzero(np.broadcast_to(np.isinf(self.error), self.value.shape)))


def exact(value: Array) -> Approx:
    """Return values without error."""
    return Approx(value, np.zeros(()))


def unit(dtype: DType) -> float:
    """Return the unit roundoff of a float type.

    Twice that for float64, in which the reference itself is computed.
    """
    return _UNIT[dtype.name] * (2 if dtype is dtypes.float64 else 1)


def bounded_outputs(
    fusion: ln.Fusion,
    arrays: Sequence[Array],
    scalars: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> list[Approx]:
    """Return the outputs of `fusion`, which must not be scheduled yet, with their bounds."""
    with np.errstate(all="ignore"):
        return _Evaluation(fusion, arrays, scalars, sizes).outputs()


class _Evaluation:
    def __init__(
        self,
        fusion: ln.Fusion,
        arrays: Sequence[Array],
        scalars: Mapping[str, Any],
        sizes: Mapping[str, int],
    ) -> None:
        self.fusion, self.sizes = fusion, sizes
        self.env: dict[Expr, Approx] = {
            s: exact(np.asarray(sizes[s.name], np.int64)) for s in fusion.symbols
        }
        for param in fusion.scalars:
            assert isinstance(param, ScalarParam)
            value = held(np.asarray(scalars[param.name]), param.dtype)
            self.env[param] = exact(rounded(value, param.dtype))
        self.of: dict[ln.TensorView, Approx] = {
            t: exact(held(np.asarray(a), t.dtype))
            for t, a in zip(fusion.inputs, arrays, strict=True)
        }

    def outputs(self) -> list[Approx]:
        for tensor in self.fusion.topological():
            if tensor not in self.of:
                self._define(tensor)
        return [self.of[t] for t in self.fusion.outputs]

    def _define(self, tensor: ln.TensorView) -> None:
        definition = tensor.definition
        assert definition is not None
        shape = tuple(self._size(a.size) for a in tensor.root_domain)
        parts = self._elements(definition, shape)
        if definition.reducer is not None:
            axes = tuple(n for n, a in enumerate(tensor.root_domain) if a.is_reduction)
            fold = _FOLDS[definition.reducer.name]
            parts = fold(parts, axes, definition)
        for output, part in zip(definition.outputs, parts, strict=True):
            self.of[output] = _stored(part, output.dtype)

    def _size(self, size: Expr) -> int:
        return int(evaluate(size, self.env).value)

    def _elements(self, definition: Definition, shape: tuple[int, ...]) -> list[Approx]:
        env = dict(self.env)
        for number, (producer, axes) in enumerate(
            zip(definition.producers, definition.maps, strict=True)
        ):
            known = self.of[producer]
            error = np.broadcast_to(known.error, known.value.shape)
            env[Arg(number, producer.dtype)] = Approx(
                _aligned(known.value, axes, len(shape)), _aligned(error, axes, len(shape))
            )
        for axis, extent in enumerate(shape):
            rest = [1] * len(shape)
            rest[axis] = extent
            env[Coordinate(axis)] = exact(np.arange(extent, dtype=np.int64).reshape(rest))
        found = [evaluate(value, env) for value in definition.values]
        return [
            Approx(np.broadcast_to(f.value, shape), np.broadcast_to(f.error, shape)) for f in found
        ]


def _aligned(value: Array, axes: Sequence[int | None], rank: int) -> Array:
    """Return an operand with its axes where `axes` says (None: squeezed), others of extent 1."""
    shape = [1] * rank
    kept = [(place, n) for n, place in enumerate(axes) if place is not None]
    for place, n in kept:
        shape[place] = value.shape[n]
    order = [n for _, n in sorted(kept)] + [n for n, place in enumerate(axes) if place is None]
    return np.transpose(value, order).reshape(shape)


def _stored(part: Approx, dtype: DType) -> Approx:
    """Return the value of a tensor of `dtype`: a 16-bit one is rounded once."""
    if dtype.is_half:
        return _rounded_to(part, dtype)
    return Approx(held(part.value, dtype), part.error)


def _rounded_to(part: Approx, dtype: DType) -> Approx:
    """Return `part` rounded to a float type, as the oracle and as a kernel round it.

    Both round to nearest, from values that differ by at most e: the results differ by at most e
    and one ulp (two half ones), and not at all where e is 0.
    """
    value = rounded(part.value, dtype)
    u = _UNIT[dtype.name]
    size = np.abs(part.value) + part.error
    error = np.where(part.error > 0, part.error + 2 * u * size + _LEAST[dtype.name], 0.0)
    return _limited(value, error, dtype)


def _limited(value: Array, error: Array, dtype: DType) -> Approx:
    """Return an approximation; what may overflow in `dtype` may be anything."""
    value, error = np.asarray(value), np.asarray(error)
    finite = np.isfinite(value)
    beyond = finite & (np.abs(value) + error >= _LARGEST[dtype.name])
    beyond &= ~((error == 0) & (np.abs(value) <= _LARGEST[dtype.name]))
    error = np.where(beyond | np.isnan(error), np.inf, error)
    if finite.all():
        return Approx(value, error)
    return Approx(value, np.where(finite, error, np.where(np.isinf(error), np.inf, 0.0)))


# Expressions


def evaluate(root: Expr, env: Mapping[Expr, Approx]) -> Approx:
    """Return the value of a template, and its bound."""
    done: dict[Expr, Approx] = {}
    for node in walk(root):
        found = env.get(node)
        if found is None and isinstance(node, Const):
            found = exact(rounded(np.asarray(node.value), node.dtype))
        elif found is None:
            assert isinstance(node, Op), f"no value for {node!r}"
            found = _apply(node, [done[arg] for arg in node.args])
        done[node] = found
    return done[root]


def _apply(node: Op, args: list[Approx]) -> Approx:
    if node.op == "cast":
        return _cast(node, args[0])
    value = np.asarray(APPLY[node.op](*[a.value for a in args]))
    rule = _RULES.get(node.op)
    if node.op == "where":
        return _where(value, args)
    floats = [a for a, arg in zip(args, node.args, strict=True) if arg.dtype.is_float]
    if not floats or rule is None:
        assert rule is not None or not node.dtype.is_float, f"no error bound for {node.op}"
        if floats:
            return Approx(value, _step_error(node.op, args))
        unknown = sum(np.isinf(a.error) for a in args) > 0
        return Approx(value, np.where(unknown, np.inf, 0.0))
    if all(not a.error.any() for a in args) and node.op in _EXACT:
        return Approx(value, np.zeros(()))
    error = rule(value, args, unit(node.dtype), _LEAST[node.dtype.name])
    if node.op in _NEAREST:
        error = np.where(_fits(value, node.dtype) & _known(args), 0.0, error)
    return _determined(value, error, args, node.dtype)


_NEAREST = frozenset({"add", "sub", "mul", "div", "sqrt", "fma"})
"""What every target rounds to nearest: a result that needs no rounding has no error."""


def _fits(value: Array, dtype: DType) -> Array:
    return np.equal(rounded(value, dtype), value) & (dtype is not dtypes.float64)


def _known(args: list[Approx]) -> Array:
    return np.asarray(sum(a.error > 0 for a in args) == 0)


def _determined(value: Array, error: Array, args: list[Approx], dtype: DType) -> Approx:
    """Give infinities and NaNs their error: none where the operands decide.

    They do where one of them is not finite already, and no other may be 0 or of either sign.
    """
    unknown = sum(np.isinf(a.error) for a in args) > 0
    inexact = sum(a.error > 0 for a in args) > 0
    either = sum((a.error > 0) & (np.abs(a.value) <= a.error) for a in args) > 0
    surely = (sum(~np.isfinite(a.value) for a in args) > 0) & ~either
    error = np.where(np.isfinite(value), error, np.where(inexact & ~surely, np.inf, 0.0))
    return _limited(value, np.where(unknown, np.inf, error), dtype)


_EXACT = frozenset({"neg", "abs", "min", "max", "floor", "ceil", "round", "trunc"})
"""What adds no rounding of its own."""

Rule: TypeAlias = Callable[[Array, list[Approx], float, float], Array]


def _sum_rule(value: Array, args: list[Approx], u: float, tiny: float) -> Array:
    spread = args[0].error + args[1].error
    return spread + u * (np.abs(value) + spread)


def _mul_rule(value: Array, args: list[Approx], u: float, tiny: float) -> Array:
    a, b = args
    spread = np.abs(a.value) * b.error + np.abs(b.value) * a.error + a.error * b.error
    return spread + u * (np.abs(value) + spread) + tiny


def _div_rule(value: Array, args: list[Approx], u: float, tiny: float) -> Array:
    a, b = args
    least = np.abs(b.value) - b.error
    spread = (np.abs(value) * b.error + a.error) / least
    spread = np.where((b.error > 0) & (least <= 0), np.inf, np.where(b.error + a.error, spread, 0))
    return spread + u * (np.abs(value) + spread) + tiny


def _fma_rule(value: Array, args: list[Approx], u: float, tiny: float) -> Array:
    a, b, c = args
    product = a.value * b.value
    spread = _mul_rule(product, [a, b], u, tiny) + c.error  # a target may round the product too
    return spread + u * (np.abs(value) + spread)


def _max_rule(value: Array, args: list[Approx], u: float, tiny: float) -> Array:
    return np.maximum(args[0].error, args[1].error)


def _same_rule(value: Array, args: list[Approx], u: float, tiny: float) -> Array:
    return args[0].error + np.zeros(value.shape)


def _mod_rule(value: Array, args: list[Approx], u: float, tiny: float) -> Array:
    a, b = args
    moved = (a.error > 0) | (b.error > 0)
    return np.where(moved, np.inf, 4 * u * np.abs(b.value) + tiny)


def _pow_rule(value: Array, args: list[Approx], u: float, tiny: float) -> Array:
    a, b = args
    corners = [
        np.abs(np.power(a.value + s * a.error, b.value + t * b.error) - value)
        for s in (-1, 1) for t in (-1, 1)
    ]  # fmt: skip
    spread = np.maximum.reduce(corners)
    moved = (a.error > 0) | (b.error > 0)
    spread = np.where(moved & (a.value - a.error <= 0), np.inf, np.where(moved, spread, 0.0))
    return spread + 4 * ULPS * u * (np.abs(value) + spread) + tiny


def _step_rule(function: Callable[[Array], Array]) -> Rule:
    """Return the rule of floor and the like: exact, unless the step may go either way."""

    def rule(value: Array, args: list[Approx], u: float, tiny: float) -> Array:
        low, high = args[0].value - args[0].error, args[0].value + args[0].error
        return np.where((function(low) != function(high)) & (args[0].error > 0), np.inf, 0.0)

    return rule


def _smooth_rule(function: Callable[..., Array], ulps: float = ULPS, floor: float = 0.0) -> Rule:
    """Return the rule of a monotone function: its values at both ends, and its own error.

    `floor` is the least magnitude that the function's error is relative to.
    """

    def rule(value: Array, args: list[Approx], u: float, tiny: float) -> Array:
        x = args[0]
        spread = np.zeros(())
        if x.error.any():
            ends = [np.abs(function(x.value + s * x.error) - value) for s in (-1, 1)]
            spread = np.where(x.error > 0, np.maximum(*ends), 0.0)
            spread = np.where(np.isnan(spread), np.inf, spread)
        return spread + ulps * u * np.maximum(np.abs(value) + spread, floor) + tiny

    return rule


def _pole_rule(function: Callable[..., Array]) -> Rule:
    """Return the rule of a function that is monotone on either side of 0."""
    smooth = _smooth_rule(function)

    def rule(value: Array, args: list[Approx], u: float, tiny: float) -> Array:
        x = args[0]
        either = (x.error > 0) & (np.abs(x.value) <= x.error)
        return np.where(either, np.inf, smooth(value, args, u, tiny))

    return rule


def _wave_rule(value: Array, args: list[Approx], u: float, tiny: float) -> Array:
    return np.minimum(args[0].error, 2.0) + ULPS * u  # the slope of sin and cos is at most 1


_RULES: Mapping[str, Rule] = {
    "add": _sum_rule,
    "sub": _sum_rule,
    "mul": _mul_rule,
    "div": _div_rule,
    "fma": _fma_rule,
    "max": _max_rule,
    "min": _max_rule,
    "neg": _same_rule,
    "abs": _same_rule,
    "mod": _mod_rule,
    "pow": _pow_rule,
    "sin": _wave_rule,
    "cos": _wave_rule,
    **{op: _step_rule(APPLY[op]) for op in ("floor", "ceil", "round", "trunc")},
    **{
        op: _smooth_rule(APPLY[op])
        for op in ("exp", "exp2", "log", "log2", "log1p", "sqrt", "tanh", "sigmoid", "erf")
    },
    **{op: _pole_rule(APPLY[op]) for op in ("rsqrt", "reciprocal")},
}


def _step_error(op: str, args: list[Approx]) -> Array:
    """Return the error of a bool or integer made of floats: 0, or inf where it may be either."""
    if op == "isnan":
        return np.where(np.isinf(args[0].error), np.inf, 0.0)
    if op in ("eq", "ne", "lt", "le", "gt", "ge"):
        a, b = args
        spread = a.error + b.error
        near = ~(np.abs(a.value - b.value) > spread) & (spread > 0)
        near &= ~(np.isnan(a.value) | np.isnan(b.value)) | np.isinf(spread)
        return np.where(near, np.inf, 0.0)
    return np.where(sum(a.error > 0 for a in args) > 0, np.inf, 0.0)


def _where(value: Array, args: list[Approx]) -> Approx:
    cond, a, b = args
    error = np.where(cond.value, a.error, b.error)
    return Approx(value, np.where(np.isinf(cond.error), np.inf, error))


def _cast(node: Op, arg: Approx) -> Approx:
    source, target = node.args[0].dtype, node.dtype
    if target.is_bool:
        moved = (np.abs(arg.value) <= arg.error) & (arg.error > 0) if source.is_float else False
        error = np.where(moved | np.isinf(arg.error), np.inf, 0.0)
        return Approx(np.not_equal(arg.value, 0), error)
    if not target.is_float:
        return _to_integer(arg, source, target)
    if source.is_float and unit(source) >= unit(target) and source.size <= target.size:
        return arg  # a wider type holds every value of a narrower one
    value = rounded(arg.value, target)
    if not source.is_float:
        return Approx(value, arg.error)  # both round the same integer to nearest
    return _rounded_to(arg, target)


def _to_integer(arg: Approx, source: DType, target: DType) -> Approx:
    value = rounded(arg.value, target)
    if not source.is_float:
        return Approx(value, arg.error)
    low, high = np.trunc(arg.value - arg.error), np.trunc(arg.value + arg.error)
    limit = 2.0 ** (8 * target.size - 1)
    lost = ~np.isfinite(arg.value) | (np.abs(arg.value) + arg.error >= limit) | (low != high)
    return Approx(value, np.where(lost, np.inf, 0.0))


# Reductions


def _folded(part: Approx, axes: tuple[int, ...]) -> tuple[Array, Array, int]:
    """Return value and error with the reduced axes as one last axis, and its length."""
    kept = [n for n in range(part.value.ndim) if n not in axes]
    shape = [part.value.shape[n] for n in kept]
    count = int(np.prod([part.value.shape[n] for n in axes], dtype=np.int64))
    order = (*kept, *axes)
    value = np.transpose(part.value, order).reshape([*shape, count])
    error = np.broadcast_to(part.error, part.value.shape)
    return value, np.transpose(error, order).reshape([*shape, count]), count


def _sum(parts: list[Approx], axes: tuple[int, ...], definition: Definition) -> list[Approx]:
    dtype = definition.values[0].dtype
    value, error, count = _folded(parts[0], axes)
    total = np.sum(value, axis=-1, dtype=value.dtype)
    if not dtype.is_float:
        return [Approx(total, np.where(np.isinf(error).any(-1), np.inf, 0.0))]
    magnitude = np.sum(np.abs(value) + error, axis=-1)
    bound = np.sum(error, axis=-1) + _gamma(count, dtype) * magnitude
    if not error.any() and np.equal(np.rint(value * _GRID), value * _GRID).all():
        bound = np.where(magnitude * _GRID < 1 / _UNIT[dtype.name], 0.0, bound)
    special = ~np.isfinite(value).all(-1)  # what is not finite decides, whatever the errors
    bound = np.where(special, np.where(np.isinf(error).any(-1), np.inf, 0.0), bound)
    # Partial sums may overflow on the way.
    risky = ~special & (magnitude >= _LARGEST[dtype.name])
    return [_limited(total, np.where(risky, np.inf, bound), dtype)]


_GRID = 64.0
"""Sums of few multiples of 1 / _GRID need no rounding, in any order."""


def _gamma(count: int, dtype: DType) -> float:
    """Return Higham's gamma for `count` roundings: n u / (1 - n u)."""
    steps = max(count - 1, 0) * unit(dtype)
    return steps / (1 - steps)


def _prod(parts: list[Approx], axes: tuple[int, ...], definition: Definition) -> list[Approx]:
    dtype = definition.values[0].dtype
    value, error, count = _folded(parts[0], axes)
    total = np.prod(value, axis=-1, dtype=value.dtype)
    if not dtype.is_float:
        return [Approx(total, np.where(np.isinf(error).any(-1), np.inf, 0.0))]
    most = np.prod(np.abs(value) + error, axis=-1)
    bound = most * (1 + _gamma(count, dtype)) - np.abs(total) + count * _LEAST[dtype.name]
    # A partial product may over- or underflow where the whole does not.
    with np.errstate(all="ignore"):
        magnitudes = np.abs(np.log2(np.where(value == 0, 1.0, np.abs(value) + error)))
        risky = np.sum(magnitudes, axis=-1) > (120 if dtype.size == 4 else 1000)
    special = ~np.isfinite(value).all(-1)
    exactly = ~(error > 0).any(-1)
    bound = np.where(special, np.where(exactly, 0.0, np.inf), np.where(risky, np.inf, bound))
    return [_limited(total, np.maximum(bound, 0.0) if count else bound * 0, dtype)]


def _extreme(largest: bool) -> Callable[..., list[Approx]]:
    def fold(parts: list[Approx], axes: tuple[int, ...], definition: Definition) -> list[Approx]:
        reducer = definition.reducer
        assert reducer is not None
        dtype = definition.values[0].dtype
        value, error, count = _folded(parts[0], axes)
        if not count:
            neutral = reducer.identity((dtype,))[0].value
            return [exact(np.full(value.shape[:-1], neutral, value.dtype))]
        total = value.max(-1) if largest else value.min(-1)
        return [Approx(total, error.max(-1))]

    return fold


def _logical(every: bool) -> Callable[..., list[Approx]]:
    def fold(parts: list[Approx], axes: tuple[int, ...], definition: Definition) -> list[Approx]:
        value, error, _ = _folded(parts[0], axes)
        total = value.all(-1) if every else value.any(-1)
        return [Approx(total, np.where(np.isinf(error).any(-1), np.inf, 0.0))]

    return fold


def _welford(parts: list[Approx], axes: tuple[int, ...], definition: Definition) -> list[Approx]:
    """Bound mean and population variance, folded in any order and grouping (Chan et al.).

    Each of the n steps forms the new mean as a convex combination of two, so it errs by a few u
    times the largest magnitude M; each forms the variance as one of two variances and a product of
    differences, which err by a few u (R^2 + R M), R the range of the elements.
    """
    dtype = definition.values[0].dtype
    value, error, count = _folded(parts[0], axes)
    counts = exact(np.full(value.shape[:-1], count, np.int64))
    if not count:
        zero = exact(np.zeros(value.shape[:-1]))
        return [zero, zero, counts]
    mean = np.mean(value, axis=-1)
    spread = np.mean((value - mean[..., None]) ** 2, axis=-1)
    worst = error.max(-1)
    most = np.abs(value).max(-1) + worst
    reach = value.max(-1) - value.min(-1) + 2 * worst
    step = 6 * _gamma(count + 1, dtype)
    mean_error = worst + step * most if count > 1 else worst
    spread_error = 2 * reach * worst + worst**2 + step * (reach**2 + reach * most)
    if count == 1:
        spread_error = np.where(worst > 0, spread_error, 0.0)
    nan = np.isnan(value).any(-1)
    special = ~np.isfinite(value).all(-1)
    unknown = np.isinf(error).any(-1)
    # With an infinity the mean depends on the order; with a NaN both are NaN.
    mean_error = np.where(special, np.where(nan & ~unknown, 0.0, np.inf), mean_error)
    spread = np.where(special, np.nan, spread)
    spread_error = np.where(special, np.where(unknown, np.inf, 0.0), spread_error)
    near = most**2 >= _LARGEST[dtype.name]
    spread_error = np.where(near & ~special, np.inf, spread_error)
    return [_limited(mean, mean_error, dtype), _limited(spread, spread_error, dtype), counts]


_FOLDS: Mapping[str, Callable[..., list[Approx]]] = {
    "sum": _sum,
    "prod": _prod,
    "max": _extreme(True),
    "min": _extreme(False),
    "any": _logical(False),
    "all": _logical(True),
    "welford": _welford,
}

__all__ = ["Approx", "Symbol", "bounded_outputs", "evaluate", "exact", "unit"]
