"""Intervals around values, and what rounding does to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loopnest.numerics.float64_math import Values, rounded
from loopnest.numerics.target_accuracy import FORMATS, Accuracy, Arithmetic, unit
from loopnest.scalar.dtypes import DType, float8_e4m3fn, float32


@dataclass(frozen=True, eq=False, slots=True)
class Interval:
    """Values of the oracle, and for each the interval that correct results lie in.

    Floats are held in float64, as by the oracle; integers and bools in their own type. Where the
    interval is [-inf, inf] a result may be anything, NaN too. Where both its ends are NaN the
    result is NaN.

    Args:
        value: the oracle's.
        low, high: the ends; the very object `value` where all results are exact.
        wild: whether an end may be infinite or NaN.
        unsigned: whether a zero among the results may have either sign.
    """

    value: Values
    low: Values
    high: Values
    wild: bool = False
    unsigned: bool = False

    @property
    def exact(self) -> bool:
        """Whether every correct result is the oracle's value."""
        return self.low is self.value and self.high is self.value

    @property
    def bound(self) -> Values:
        """How far a correct result may lie from the value; inf where it may be anything."""
        return np.zeros(self.value.shape) if self.exact else self._reach(self.value)

    def bound_in(self, dtype: DType) -> Values:
        """Return how far a correct result may lie from the value, and from it as a `dtype`."""
        if self.exact or dtype is not float32:  # others hold it as it is
            return self.bound
        with np.errstate(all="ignore"):
            near = rounded(self.value, dtype)
        return np.asarray(np.maximum(self._reach(self.value), self._reach(near)))

    def _reach(self, center: Values) -> Values:
        """Return how far a correct result may lie from `center`."""
        with np.errstate(all="ignore"):
            center, low, high = [np.asarray(a, np.float64) for a in (center, self.low, self.high)]
            reach = np.maximum(high - center, center - low)
        same = (low == high) & ((center == low) | ~np.isfinite(low))  # an infinity is what it is
        unknown = np.isnan(reach) | (np.isinf(low) & np.isinf(high) & (low != high))
        reach = np.where(same, 0.0, np.where(unknown, np.inf, reach))
        result: Values = np.where(np.isnan(low), 0.0, reach)
        return result

    @property
    def parts(self) -> tuple[Values, Values, Values]:
        """Value, low and high."""
        return self.value, self.low, self.high

    def viewed(self, view: Callable[[Values], Values]) -> Interval:
        """Return this interval with `view` applied to each of its arrays."""
        value = view(self.value)
        if self.exact:
            return replace(self, value=value, low=value, high=value)
        return replace(self, value=value, low=view(self.low), high=view(self.high))

    def contains(self, results: Values) -> Values:
        """Return which of `results` are correct."""
        with np.errstate(invalid="ignore"):
            inside = (self.low <= results) & (results <= self.high)
        if not self.wild:
            return inside
        nan = np.isnan(results) & (np.isnan(self.low) | anything(self))
        return np.asarray(inside | nan)


def unknown_where(value: Interval, where: Values) -> Interval:
    """Return `value`, of which a correct result may be any of its type where `where` holds."""
    kind = value.value.dtype
    if kind == np.bool_:
        least, most = np.asarray(False), np.asarray(True)
    elif np.issubdtype(kind, np.integer):
        least, most = np.asarray(np.iinfo(kind).min), np.asarray(np.iinfo(kind).max)
    else:
        least, most = np.asarray(-np.inf), np.asarray(np.inf)
    low = np.where(where, least, value.low).astype(kind)
    high = np.where(where, most, value.high).astype(kind)
    return Interval(np.broadcast_to(value.value, low.shape), low, high, True, value.unsigned)


def exact(value: Values, unsigned: bool = False) -> Interval:
    """Return `value` as it is, without any error."""
    return Interval(value, value, value, is_wild(value), unsigned)


def is_wild(*arrays: Values) -> bool:
    """Whether one of `arrays` may hold what is not finite.

    It sums them up, which costs less than a look at each element; a sum may overflow.
    """
    floats = [a for a in arrays if a.dtype.kind == "f"]
    with np.errstate(all="ignore"):
        return not all(math.isfinite(float(a.sum())) for a in floats)


def anything(enclosure: Interval) -> Values:
    """Return where the result may be anything."""
    return np.asarray((enclosure.low == -np.inf) & (enclosure.high == np.inf))


def undetermined(enclosure: Interval) -> Values:
    """Return where there is more than one correct result."""
    low, high = enclosure.low, enclosure.high
    return np.asarray((low != high) & ~(np.isnan(low) & np.isnan(high)))


def extremes(dtype: DType) -> tuple[Values, Values]:
    """Return the least and the greatest value of a type that is no float."""
    if dtype.is_bool:
        return np.asarray(False), np.asarray(True)
    return np.asarray(dtype.least, dtype.numpy), np.asarray(dtype.greatest, dtype.numpy)


def settled(
    value: Values, low: Values, high: Values, args: Sequence[Interval], unsigned: bool = False
) -> Interval:
    """Return an enclosure of floats after a look at what is not finite.

    An end that is NaN says that a result may be NaN: where it need not be, it may be anything. So
    it may where that holds of an operand.
    """
    if not is_wild(low, high) and not any(arg.wild for arg in args):
        return Interval(value, low, high, False, unsigned)
    nans = [np.isnan(a) for a in (value, low, high)]
    sure = np.asarray(nans[0] & nans[1] & nans[2])
    if len(args) > 1:  # 0 * inf may lie at the ends alone
        free, nan = np.zeros((), np.bool_), np.zeros((), np.bool_)
        for arg in args:
            free, nan = free | undetermined(arg), nan | np.isnan(arg.low)
        sure = sure & (nan | ~free)
    unknown = (nans[0] | nans[1] | nans[2]) & ~sure
    for arg in args:
        if arg.wild:
            unknown = unknown | anything(arg)
    return Interval(
        value, np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high), True, unsigned
    )


# Rounding


def widened(low: Values, high: Values, relative: float | Values) -> tuple[Values, Values]:
    """Move both ends outwards by `relative` of their magnitudes; infinities stay."""
    less, more = 1.0 - relative, 1.0 + relative
    return np.minimum(low * less, low * more), np.maximum(high * less, high * more)


def around(
    low: Values, high: Values, dtype: DType, arithmetic: Arithmetic
) -> tuple[Values, Values]:
    """Return the ends of what results in [low, high] are, rounded to `dtype` or left unrounded.

    float32 is rounded as the hardware does, which is monotone: overflow, underflow and results that
    need no rounding come out as they are. For float64 the oracle rounds as well as the kernel.
    """
    if dtype is not float32:
        least = 2 * FORMATS[dtype.name].least
        low, high = widened(low, high, unit(dtype))
        return low - least, high + least
    if arithmetic.reference:
        low, high = widened(low, high, 2 * FORMATS["float64"].unit)
    low = np.minimum(low, low.astype(np.float32))
    high = np.maximum(high, high.astype(np.float32))
    return flushed(low, high) if arithmetic.fast_math else (low, high)


def flushed(low: Values, high: Values) -> tuple[Values, Values]:
    """Take in 0 where a float32 result may be subnormal, which fast math may flush."""
    normal = FORMATS["float32"].normal
    # Where the interval meets the subnormal range, from either side.
    near = (low < normal) & (high > -normal)
    return np.where(near, np.minimum(low, 0.0), low), np.where(near, np.maximum(high, 0.0), high)


def flushing(x: Interval) -> Interval:
    """Return `x` with 0 wherever it may be subnormal."""
    low, high = flushed(x.low, x.high)
    same = np.array_equal(low, x.low, equal_nan=True) and np.array_equal(
        high, x.high, equal_nan=True
    )
    return x if same else replace(x, low=low, high=high)


def erring(
    low: Values,
    high: Values,
    x: Interval,
    found: Accuracy,
    dtype: DType,
    arithmetic: Arithmetic,
) -> tuple[Values, Values]:
    """Return the ends after the own error of a function of x whose range is [low, high]."""
    ulps: float | Values = found.ulps
    if found.slope:
        ulps = ulps + found.slope * np.maximum(np.abs(x.low), np.abs(x.high))
    least = 2 * found.ulps * FORMATS[dtype.name].least
    start, end = widened(low, high, 2 * ulps * unit(dtype) + found.relative)
    # Subnormal results have larger ulps; an exact 0 is a 0: all functions that have one hit it.
    start = start - np.where(low == 0, 0.0, least) - found.absolute
    end = end + np.where(high == 0, 0.0, least) + found.absolute
    return around(start, end, dtype, arithmetic) if dtype is float32 else (start, end)


def cut_off(x: Interval, relative: float, dtype: DType) -> Interval:
    """Return `x` rounded to fewer digits, which errs by `relative`; of a subnormal, by its bits."""
    low, high = widened(x.low, x.high, relative)
    least = relative * FORMATS[dtype.name].normal
    low, high = np.where(low == 0, low, low - least), np.where(high == 0, high, high + least)
    return replace(x, low=low, high=high)


def narrowed(x: Interval, dtype: DType, arithmetic: Arithmetic) -> Interval:
    """Return `x` rounded once to `dtype`; rounding is monotone, so its ends are those of x rounded.

    A reference may leave it unrounded.
    """
    value = rounded(x.value, dtype)
    if x.exact and not (arithmetic.reference and dtype.is_float):
        wild = x.wild or is_wild(value)
        return Interval(value, value, value, wild, x.unsigned)
    low, high = rounded(x.low, dtype), rounded(x.high, dtype)
    if dtype is float8_e4m3fn:  # what is too large is NaN: between two such ends lies everything
        sure = np.isnan(x.low) & np.isnan(x.high) | (low == low) & (high == high)
        beyond = np.isnan(low) & np.isnan(high) & ((x.low > 0) | (x.high < 0))
        lost = ~(sure | beyond & ~np.isinf(x.low) & ~np.isinf(x.high))
        low, high = np.where(lost, -np.inf, low), np.where(lost, np.inf, high)
    if arithmetic.reference:
        low, high = np.minimum(low, x.low), np.maximum(high, x.high)
    return Interval(value, low, high, x.wild or is_wild(low, high), x.unsigned)
