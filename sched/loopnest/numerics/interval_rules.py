"""Scalar expressions over intervals: the range of each operation, widened by its rounding.

`RANGES` has operations of floats in real arithmetic. A range that holds NaN (0 / 0, the root of
what may be negative) has an end that is NaN; `intervals.settled` makes of it what it means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from loopnest.numerics.float64_math import APPLY, Values, held, rounded
from loopnest.numerics.intervals import (
    Interval,
    anything,
    around,
    erring,
    exact,
    extremes,
    is_wild,
    narrowed,
    settled,
    undetermined,
    widened,
)
from loopnest.numerics.target_accuracy import (
    FAST,
    FORMATS,
    OF_FLOATS,
    SELECTING,
    Accuracy,
    Arithmetic,
    accuracy,
    unit,
)
from loopnest.scalar.dtypes import DType, float32
from loopnest.scalar.expr import Const, Expr, Op, walk
from loopnest.scalar.op_table import Column, ops

Ends: TypeAlias = "tuple[Values, Values]"
Range: TypeAlias = Callable[[Values, Sequence[Interval]], Ends]
"""From the value and the operands to the ends."""


def _rising(function: Callable[..., Values]) -> Range:
    """Return the range of a function that rises in each of its operands."""

    def ends(value: Values, args: Sequence[Interval]) -> Ends:
        return function(*[a.low for a in args]), function(*[a.high for a in args])

    return ends


def _neg(value: Values, args: Sequence[Interval]) -> Ends:
    return -args[0].high, -args[0].low


def _abs(value: Values, args: Sequence[Interval]) -> Ends:
    (x,) = args
    return np.maximum(np.maximum(x.low, -x.high), 0.0), np.maximum(-x.low, x.high)


def _sub(value: Values, args: Sequence[Interval]) -> Ends:
    a, b = args
    return a.low - b.high, a.high - b.low


def _corners(function: Callable[..., Values], a: Interval, b: Interval) -> Ends:
    """Return the ends of a function that is monotone in each operand: those of its corners."""
    if b.exact:
        found = [function(a.low, b.value), function(a.high, b.value)]
    elif a.exact:
        found = [function(a.value, b.low), function(a.value, b.high)]
    else:
        found = [function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = found[0], found[0]
    for one in found[1:]:
        low, high = np.minimum(low, one), np.maximum(high, one)
    return low, high


def _positive(x: Interval) -> bool:
    return bool(x.low.size) and bool(x.low.min() > 0)  # False where one is NaN


def _mul(value: Values, args: Sequence[Interval]) -> Ends:
    a, b = args
    if a is b:
        low, high = a.low * a.low, a.high * a.high
        # A square is least at 0 where the interval holds it: the corners do not show that.
        outside = (a.low > 0) | (a.high < 0)
        return np.where(outside, np.minimum(low, high), 0.0 * low), np.maximum(low, high)
    if _positive(a) and _positive(b):
        return a.low * b.low, a.high * b.high
    return _corners(np.multiply, a, b)


def poles(b: Interval) -> Values:
    """Return where a divisor may be 0, or a zero of either sign."""
    free = np.True_ if b.unsigned else undetermined(b)
    return np.asarray((b.low <= 0) & (b.high >= 0) & free)


def _div(value: Values, args: Sequence[Interval]) -> Ends:
    a, b = args
    if _positive(b):
        if _positive(a):
            return a.low / b.high, a.high / b.low
        return _corners(np.divide, a, b)
    low, high = _corners(np.divide, a, b)
    # Beside 0 a quotient goes to either infinity.
    either = poles(b)
    return np.where(either, -np.inf, low), np.where(either, np.inf, high)


_ONE = np.asarray(1.0)


def _reciprocal(value: Values, args: Sequence[Interval]) -> Ends:
    return _div(value, [Interval(_ONE, _ONE, _ONE), args[0]])


def _rsqrt(value: Values, args: Sequence[Interval]) -> Ends:
    (x,) = args
    either = poles(x)
    # it falls where x grows
    low, high = 1 / np.sqrt(x.high), 1 / np.sqrt(x.low)
    return np.where(either, -np.inf, low), np.where(either, np.inf, high)


def _fma(value: Values, args: Sequence[Interval]) -> Ends:
    """Return the ends where the oracle rounds the product, and a kernel need not."""
    low, high = widened(*_mul(value, args[:2]), _TWICE)
    return widened(low + args[2].low, high + args[2].high, _TWICE)


_TWICE = 2 * FORMATS["float64"].unit
"""Twice what one operation of the oracle errs by."""


def _along(value: Values, slope: Values | float, x: Interval, most: float) -> Ends:
    """Return the ends of a function whose slope is at most `slope`, and itself at most `most`.

    It moves by no more than over 4, which infinite ends would hide. What is rounded here counts.
    """
    down = np.where(x.low == x.value, 0.0, np.minimum(x.value - x.low, 4.0))
    up = np.where(x.high == x.value, 0.0, np.minimum(x.high - x.value, 4.0))
    own, slope = _TWICE * np.abs(value), slope * (1 + 4 * _TWICE)
    low, high = value - (slope * down + own), value + (slope * up + own)
    return np.maximum(low, -most), np.minimum(high, most)


def _lost_at_infinity(x: Interval, low: Values, high: Values) -> Ends:
    """Return the ends of a function that is NaN at an infinity: both NaN where x must be one."""
    if not x.wild:
        return low, high
    may = np.isinf(x.low) | np.isinf(x.high)
    low = np.where(may, np.nan, low)
    return low, np.where(may, np.where(x.low == x.high, np.nan, 0.0), high)


def _wave(value: Values, args: Sequence[Interval]) -> Ends:
    """Sine and cosine: their slope is at most 1."""
    (x,) = args
    reach = np.maximum(x.value - x.low, x.high - x.value)
    low, high = _along(value, 1.0, Interval(x.value, x.value - reach, x.value + reach), 1.0)
    return _lost_at_infinity(x, low, high)


def _tan(value: Values, args: Sequence[Interval]) -> Ends:
    """Between two poles it rises; over less than pi, an end lies lower where a pole is passed.

    Two ends next to each other may fall by what NumPy errs by.
    """
    (x,) = args
    low, high = np.tan(x.low), np.tan(x.high)
    slack = 16 * _TWICE * np.maximum(np.abs(low), np.abs(high))
    rises = ((x.high - x.low < 3) & (low - high <= slack)) | np.isnan(x.low)
    low, high = np.where(rises, low, -np.inf), np.where(rises, high, np.inf)
    return _lost_at_infinity(x, low, high)


def _erf(value: Values, args: Sequence[Interval]) -> Ends:
    """By the slope where it is steepest, the point next to 0: cheaper than erf itself."""
    (x,) = args
    nearest = np.maximum(np.maximum(x.low, -x.high), 0.0)
    slope = 2 / math.sqrt(math.pi) * np.exp(-nearest * nearest)
    return _along(value, slope, x, 1.0)


def _pow(value: Values, args: Sequence[Interval]) -> Ends:
    """Monotone in each operand while a > 0, and where b is a known integer on either side of 0."""
    a, b = args
    low, high = _corners(np.power, a, b)
    if _positive(a):
        return low, high
    across = (a.low < 0) & (a.high > 0)
    low = np.where(across & (b.value > 0), np.minimum(low, 0.0), low)  # an even power
    known = ~undetermined(b)
    whole = known & (np.rint(b.value) == b.value) & np.isfinite(b.value)
    single = known & ~undetermined(a)
    if a.unsigned:
        single = single & ((a.low != 0) | (b.value >= 0))
    touches = (a.low <= 0) & (a.high >= 0)
    fine = single | (a.low > 0) | (whole & ~(touches & (b.value <= 0)))
    fine |= (a.low == 0) & (b.low > 0)
    return np.where(fine, low, -np.inf), np.where(fine, high, np.inf)


def _mod(value: Values, args: Sequence[Interval]) -> Ends:
    """Shifted by a multiple of b while a stays between two of them; else all of [0, b]."""
    a, b = args
    low, high = np.mod(a.low, b.value), np.mod(a.high, b.value)
    ordered = (low <= high) & (a.high - a.low < np.abs(b.value)) & ~undetermined(b)
    ends = np.minimum(b.low, 0.0), np.maximum(b.high, 0.0)
    lost = poles(b) | (b.value == 0) | ~np.isfinite(a.low) | ~np.isfinite(a.high)
    single = ~undetermined(a) & ~undetermined(b)
    low = np.where(single, value, np.where(lost, np.nan, np.where(ordered, low, ends[0])))
    high = np.where(single, value, np.where(lost, np.nan, np.where(ordered, high, ends[1])))
    return low, high


def power_error(args: Sequence[Interval]) -> Values:
    """Return the relative error of a power that fast math computes as exp2(b * log2(a)).

    An error of the exponent counts by log 2. What is not positive may give anything.
    """
    a, b = args
    logarithm = np.maximum(np.abs(np.log2(a.low)), np.abs(np.log2(a.high)))
    exponent = np.maximum(np.abs(b.low), np.abs(b.high))
    u, found = unit(float32), FAST["log2"]
    error = exponent * ((2 * found.ulps + 1) * u * logarithm + found.absolute)
    return np.where(a.low > 0, np.expm1(math.log(2) * error), np.nan)


def tangent_error(t: Values) -> Values:
    """Return the error of a tangent `t` that fast math computes as sin(x) / cos(x).

    Near a pole, where the error of the cosine is no longer small beside it, nothing is known: NaN.
    """
    secant = np.sqrt(1 + t * t)
    sine, cosine = FAST["sin"].absolute, FAST["cos"].absolute
    error = (sine + np.abs(t) * cosine) * secant / (1 - cosine * secant)
    error = error * (1 + 16 * unit(float32))  # the division rounds it too
    return np.where(cosine * secant < 1 / 16, error, np.nan)


_RANGES: Mapping[str, Range] = {
    **{op: _rising(APPLY[op]) for op in ("add", "min", "max", "floor", "ceil", "round", "trunc")},
    **{op: _rising(APPLY[op]) for op in ("exp", "exp2", "log", "log2", "log1p", "sqrt")},
    **{op: _rising(APPLY[op]) for op in ("tanh", "sigmoid")},
    "neg": _neg, "abs": _abs, "sub": _sub, "mul": _mul, "div": _div, "reciprocal": _reciprocal,
    "rsqrt": _rsqrt, "fma": _fma, "sin": _wave, "cos": _wave, "tan": _tan, "erf": _erf, "pow": _pow,
    "mod": _mod,
}  # fmt: skip
RANGES = Column("range over an interval", __name__, _RANGES, needs=OF_FLOATS - {"where", "cast"})
"""Every operation that takes and gives floats, but where and cast."""


def enclose(root: Expr, env: Mapping[Expr, Interval], arithmetic: Arithmetic) -> Interval:
    """Return the enclosure of `root`; `env` has those of its leaves (all but literals)."""
    done: dict[Expr, Interval] = {}
    for node in walk(root):
        found = env.get(node)
        if found is not None:
            done[node] = found
        elif isinstance(node, Const):
            done[node] = narrowed(exact(np.asarray(node.value)), node.dtype, arithmetic)
        elif isinstance(node, Op):
            done[node] = _apply(node, [done[arg] for arg in node.args], arithmetic)
        else:
            raise KeyError(f"no enclosure for {node!r}")
    return done[root]


def _apply(node: Op, args: Sequence[Interval], arithmetic: Arithmetic) -> Interval:
    if node.op == "cast":
        return _cast(args[0], node.args[0].dtype, node.dtype, arithmetic)
    value = np.asarray(APPLY[node.op](*[arg.value for arg in args]))
    if node.op == "where":
        return _where(value, args)
    if node.dtype.is_float:
        return _of_floats(node, value, args, arithmetic)
    if all(arg.exact for arg in args):
        return exact(value)
    rule = DISCRETE.get(node.op)
    found = rule(args) if rule is not None else None
    return _discrete(value, found, args, node.dtype)


# Floats


def _of_floats(
    node: Op, value: Values, args: Sequence[Interval], arithmetic: Arithmetic
) -> Interval:
    op, dtype = node.op, node.dtype
    known = all(arg.exact for arg in args) and op != "fma"
    unsigned = any(arg.unsigned for arg in args) or arithmetic.fast_math
    unsigned = unsigned or op in UNSIGNED or (op in STEPS and not known)
    if op in SELECTING:
        if known:
            return exact(value, unsigned)
        return settled(value, *RANGES[op](value, args), args, unsigned)
    if op == "sub" and args[0] is args[1]:  # 0, and NaN of what is not finite
        (x, _) = args
        return settled(value, x.low - x.low, x.high - x.high, args, unsigned)
    found = accuracy(op, dtype, arithmetic)
    if known and not _may_be_pole(op, args):
        if found is None and not arithmetic.reference and not arithmetic.fast_math:
            return _rounded_once(op, value, args, dtype, unsigned)
        low, high = value, value
    else:
        low, high = RANGES[op](value, args)
    if found is None:
        low, high = around(low, high, dtype, arithmetic)
    else:
        low, high = erring(low, high, args[0], found, dtype, arithmetic)
        low, high = _unpromised(op, low, high, args, found, arithmetic)
    return settled(value, low, high, args, unsigned)


UNSIGNED = frozenset({"min", "max"})
"""What gives either of two zeros."""
STEPS = frozenset({"floor", "ceil", "round", "trunc", "mod"})
"""What gives zeros of both signs next to each other."""


def _may_be_pole(op: str, args: Sequence[Interval]) -> bool:
    """Whether a zero of unknown sign may decide over the sign of an infinity."""
    if op == "pow":
        return args[0].unsigned
    divides = op in ("div", "reciprocal", "rsqrt")
    return divides and args[-1].unsigned and bool(poles(args[-1]).any())


def _rounded_once(
    op: str, value: Values, args: Sequence[Interval], dtype: DType, unsigned: bool
) -> Interval:
    """Return the enclosure of one rounding of exact operands: exact where none is needed.

    For float32 the oracle's float64 is precise enough that rounding it again is rounding once. In
    float64 both round alike; but a product may be left unrounded.

    Source: Figueroa, "When is double rounding innocuous?", 1995.
    """
    if dtype is float32:
        # Either the rounded value or the one before it may be what a kernel holds, if it keeps more
        # digits.
        near = value.astype(np.float32).astype(np.float64)
        if np.equal(near, value).all():
            return exact(value, unsigned)
        return settled(value, np.minimum(value, near), np.maximum(value, near), args, unsigned)
    if op != "mul" or all(_short(arg.value).all() for arg in args):
        return exact(value, unsigned)
    slack = np.where(np.isfinite(value), np.abs(value) * unit(dtype) + FORMATS[dtype.name].least, 0)
    return settled(value, value - slack, value + slack, args, unsigned)


def _short(values: Values) -> Values:
    """Return which numbers have so few digits that float64 holds their products."""
    return np.asarray(
        (values.astype(np.float32) == values) & ((values == 0) | (np.abs(values) > 1e-30))
    )


def _unpromised(
    op: str,
    low: Values,
    high: Values,
    args: Sequence[Interval],
    found: Accuracy,
    arithmetic: Arithmetic,
) -> tuple[Values, Values]:
    """Return the ends where nothing is promised of a function: fast math far out."""
    if not arithmetic.fast_math:
        return low, high
    x = args[-1]
    size = np.maximum(np.abs(x.low), np.abs(x.high))
    if op in ("sin", "cos"):
        far = ~(size <= found.within)
        return np.where(far, np.minimum(low, -1.0), low), np.where(far, np.maximum(high, 1.0), high)
    if op == "tan":
        below, above = low - tangent_error(low), high + tangent_error(high)
        lost = ~(size <= found.within) | np.isnan(below) | np.isnan(above)
        return np.where(lost, -np.inf, below), np.where(lost, np.inf, above)
    if op == "pow":
        error = power_error(args)
        lost = np.isnan(error)
        low, high = low - np.abs(low) * error, high + np.abs(high) * error
        return np.where(lost, -np.inf, low), np.where(lost, np.inf, high)
    if op in ("div", "reciprocal"):
        far = ~(size <= FAST_DIVISOR)
        if op == "reciprocal" or not args[0].wild:
            ends = np.minimum(low, 0.0), np.maximum(high, 0.0)
        else:
            ends = np.full_like(low, -np.inf), np.full_like(high, np.inf)
        low, high = np.where(far, ends[0], low), np.where(far, ends[1], high)
    return low, high


FAST_DIVISOR = 2.0**126
"""Where fast math divides by more, the result may be 0, and NaN of an infinity."""


def _where(value: Values, args: Sequence[Interval]) -> Interval:
    """Return what is chosen where the choice is sure, elsewhere the hull of both."""
    cond, a, b = args
    unsigned = a.unsigned or b.unsigned
    if cond.exact:
        if a.exact and b.exact:
            wild = (a.wild or b.wild) and is_wild(value)
            return Interval(value, value, value, wild, unsigned)
        low, high = np.where(cond.value, a.low, b.low), np.where(cond.value, a.high, b.high)
        return Interval(value, low, high, a.wild or b.wild, unsigned)
    low = np.where(cond.low, a.low, np.where(cond.high, np.minimum(a.low, b.low), b.low))
    high = np.where(cond.low, a.high, np.where(cond.high, np.maximum(a.high, b.high), b.high))
    wild = a.wild or b.wild
    if wild:  # one of the two may be NaN
        either = undetermined(cond) & (np.isnan(a.low) != np.isnan(b.low))
        low, high = np.where(either, -np.inf, low), np.where(either, np.inf, high)
    return Interval(value, low, high, wild, unsigned)


def _cast(x: Interval, source: DType, target: DType, arithmetic: Arithmetic) -> Interval:
    if target.is_bool:
        value = np.not_equal(x.value, 0)
        if x.exact:
            return exact(value)
        zero = exact(np.zeros((), x.value.dtype))
        return _discrete(value, _ne([x, zero]), [x], target)
    if target.is_float:
        narrower = not source.is_float or FORMATS[source.name].unit < FORMATS[target.name].unit
        shorter = source.is_float and FORMATS[source.name].largest > FORMATS[target.name].largest
        if source.is_float and not narrower and not shorter:
            return x  # a wider type holds every value of a narrower one
        return narrowed(x, target, arithmetic)
    value = rounded(x.value, target)
    if source.is_float:
        return _to_integer(value, x, target)
    if x.exact:
        return exact(value)
    low, high = x.low.astype(np.int64), x.high.astype(np.int64)
    return _discrete(value, (low, high), [], target)


def _to_integer(value: Values, x: Interval, target: DType) -> Interval:
    """Truncate: monotone. Out of range, targets differ."""
    below = float(target.least) - (target.size < 8)  # of 64 bits no float lies between the two
    fits = (x.low > below) & (x.high < float(target.greatest + 1))  # False for NaN
    if x.exact and fits.all():
        return exact(value)
    least, most = extremes(target)
    low = rounded(np.where(fits, x.low, 0.0), target)
    high = rounded(np.where(fits, x.high, 0.0), target)
    return Interval(value, np.where(fits, low, least), np.where(fits, high, most))


# Integers and bools


def _discrete(
    value: Values,
    found: tuple[Values, Values] | None,
    args: Sequence[Interval],
    dtype: DType,
) -> Interval:
    """Return integers or bools in an interval; all values of the type where that is not known.

    Integers that might wrap are not known.
    """
    least, most = extremes(dtype)
    if found is None:
        free: Values = np.zeros(value.shape, np.bool_)
        for arg in args:
            free = free | undetermined(arg)
        return Interval(value, np.where(free, least, value), np.where(free, most, value))
    low, high = found
    lost = np.zeros(value.shape, np.bool_)
    for arg in args:
        if arg.wild:
            lost = lost | anything(arg)
    if not dtype.is_bool:
        lost = lost | (low < least) | (high > most)
    low, high = np.where(lost, least, low), np.where(lost, most, high)
    return Interval(value, low.astype(dtype.numpy), high.astype(dtype.numpy))


Discrete = Callable[[Sequence[Interval]], Ends]


def _eq(args: Sequence[Interval]) -> Ends:
    a, b = args
    low = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return low, (a.low <= b.high) & (b.low <= a.high)


def _ne(args: Sequence[Interval]) -> Ends:
    low, high = _eq(args)
    return ~high, ~low


def _lt(args: Sequence[Interval]) -> Ends:
    a, b = args
    return a.high < b.low, a.low < b.high


def _le(args: Sequence[Interval]) -> Ends:
    a, b = args
    return a.high <= b.low, a.low <= b.high


def _isnan(args: Sequence[Interval]) -> Ends:
    found = np.isnan(args[0].low)
    return found, found


def _not(args: Sequence[Interval]) -> Ends:
    (x,) = args
    return np.logical_not(x.high), np.logical_not(x.low)


def _both(function: Callable[..., Values]) -> Discrete:
    """Return the ends of what rises in each operand."""
    return lambda args: (function(*[a.low for a in args]), function(*[a.high for a in args]))


def _wide(*arrays: Values) -> list[Values]:
    """Return integers as float64, in which nothing wraps, rounded past 2^53 if at all."""
    return [held(a, float32) for a in arrays]


def _int_add(args: Sequence[Interval]) -> Ends:
    a, b = args
    low, high = np.add(*_wide(a.low, b.low)), np.add(*_wide(a.high, b.high))
    return _whole(low, high)


def _int_sub(args: Sequence[Interval]) -> Ends:
    a, b = args
    low, high = np.subtract(*_wide(a.low, b.high)), np.subtract(*_wide(a.high, b.low))
    return _whole(low, high)


def _int_mul(args: Sequence[Interval]) -> Ends:
    a, b = args
    found = [np.multiply(*_wide(x, y)) for x in (a.low, a.high) for y in (b.low, b.high)]
    return _whole(np.minimum.reduce(found), np.maximum.reduce(found))


def _int_neg(args: Sequence[Interval]) -> Ends:
    low, high = _wide(args[0].low, args[0].high)
    return _whole(-high, -low)


def _int_abs(args: Sequence[Interval]) -> Ends:
    low, high = _wide(args[0].low, args[0].high)
    return _whole(np.maximum(np.maximum(low, -high), 0), np.maximum(-low, high))


def _whole(low: Values, high: Values) -> Ends:
    """Return ends in float64 as int64, all of that type where a float64 may have rounded."""
    fine = (low >= -(2.0**53)) & (high <= 2.0**53)
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    low, high = np.where(fine, low, 0).astype(np.int64), np.where(fine, high, 0).astype(np.int64)
    return np.where(fine, low, least), np.where(fine, high, most)


_DISCRETE: Mapping[str, Discrete] = {
    "eq": _eq,
    "ne": _ne,
    "lt": _lt,
    "le": _le,
    "gt": lambda args: _lt(args[::-1]),
    "ge": lambda args: _le(args[::-1]),
    "isnan": _isnan,
    "ordinal32": _both(APPLY["ordinal32"]),
    "ordinal64": _both(APPLY["ordinal64"]),
    "not": _not,
    "and": _both(np.logical_and),
    "or": _both(np.logical_or),
    "min": _both(np.minimum),
    "max": _both(np.maximum),
    "add": _int_add,
    "sub": _int_sub,
    "mul": _int_mul,
    "neg": _int_neg,
    "abs": _int_abs,
}
DISCRETE = Column(
    "range over integers or bools",
    __name__,
    _DISCRETE,
    needs=ops(lambda op: op.result in ("bool", "int64")),
)
"""Operations that give bools or integers; of others inexact operands give any value."""
