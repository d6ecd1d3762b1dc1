"""The range of each operation of floats over intervals, in real arithmetic.

A range that holds NaN (0 / 0, the root of what may be negative) has an end that is NaN;
`intervals.settled` makes of it what it means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from loopnest.numerics.float64_math import APPLY, Values
from loopnest.numerics.intervals import Interval, undetermined, widened
from loopnest.numerics.target_accuracy import FAST, FORMATS, OF_FLOATS, unit
from loopnest.scalar.dtypes import float32
from loopnest.scalar.op_table import Column

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
