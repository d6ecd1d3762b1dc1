"""Intervals of reductions, in whatever order and grouping they fold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from loopnest.numerics.float64_math import Values
from loopnest.numerics.intervals import (
    Interval,
    anything,
    around,
    exact,
    extremes,
    flushing,
    is_wild,
    undetermined,
)
from loopnest.numerics.target_accuracy import FORMATS, Arithmetic, unit
from loopnest.scalar.dtypes import DType

Parts: TypeAlias = Sequence[Interval]
Fold: TypeAlias = Callable[[Parts, Sequence[Values], DType, Arithmetic], list[Interval]]
"""From the components of the elements, whose last axis is folded away (it is not empty), the
oracle's totals, the type that the first component is computed in, and the rules of the computation.
"""


def fold(
    name: str, parts: Parts, totals: Sequence[Values], dtype: DType, arithmetic: Arithmetic
) -> list[Interval]:
    """Return the enclosures of what the reducer `name` folds `parts` to.

    Args:
        name: of the reducer.
        parts: the enclosure of each component, with the axis to fold away last.
        totals: what the oracle folds each component to.
        dtype: the type that the first component is computed in.
        arithmetic: the rules of the computation.
    """
    if parts[0].value.shape[-1] == 1:  # 0 + x is x, but for the sign of a zero
        return [replace(part.viewed(lambda a: a[..., 0]), unsigned=True) for part in parts]
    return FOLDS[name](parts, totals, dtype, arithmetic)


def _magnitude(x: Interval) -> Values:
    """Return the largest magnitude in each interval."""
    return np.abs(x.value) if x.exact else np.maximum(-x.low, x.high)


# Sums


def _sum(
    parts: Parts, totals: Sequence[Values], dtype: DType, arithmetic: Arithmetic
) -> list[Interval]:
    """Each of n - 1 additions errs by u times a partial sum, which is at most all magnitudes."""
    (x,), (total,) = parts, totals
    if not dtype.is_float:
        return [_whole_sum(x, total, dtype)]
    # Whatever the tree: each of its n - 1 additions errs by at most u times its own result, and
    # each result is at most the sum of all magnitudes.
    relative = (x.value.shape[-1] - 1) * unit(dtype)
    return [float_sum(x, total, dtype, arithmetic, relative, FORMATS[dtype.name].unit)]


def float_sum(
    x: Interval,
    total: Values,
    dtype: DType,
    arithmetic: Arithmetic,
    relative: float,
    rounding: float,
) -> Interval:
    """Return the enclosure of the sums of x along its last axis.

    Args:
        x: the terms.
        total: the oracle's sums.
        dtype: of the sums.
        arithmetic: the rules of the computation.
        relative: how far a sum may lie from that of its terms, in sums of their magnitudes.
        rounding: the relative error of one addition, of which there is none among few digits.
    """
    adds_exactly = x.exact and not arithmetic.reference and _adds_exactly(x.value, rounding)
    if adds_exactly and not (arithmetic.fast_math and _may_be_subnormal(x.value, dtype)):
        return exact(total, unsigned=True)
    form, steps = FORMATS[dtype.name], x.value.shape[-1] - 1
    sizes = _magnitude(x)
    if x.wild:
        sizes = np.where(np.isfinite(sizes), sizes, 0.0)
    size = sizes.sum(-1)
    slack = relative * size if relative < math.inf else np.where(size > 0, math.inf, 0.0)
    if arithmetic.fast_math:
        slack = slack + steps * FORMATS["float32"].normal
    if x.exact:
        low, high = total - slack, total + slack
    else:
        low, high = x.low.sum(-1) - slack, x.high.sum(-1) + slack
    low, high = around(low, high, dtype, arithmetic)
    over = size + slack >= form.largest  # a partial sum may overflow
    if over.any():
        # Of one sign, partial sums overflow that way alone.
        low = np.where(over & ~(x.low >= 0).all(-1), -np.inf, low)
        high = np.where(over & ~(x.high <= 0).all(-1), np.inf, high)
    return _settled_fold(total, low, high, x)


def instructed_sum(
    x: Interval, total: Values, dtype: DType, arithmetic: Arithmetic, error: float, steps: int
) -> Interval:
    """Return the enclosure of sums of x along its last axis that instructions compute.

    An instruction adds some terms to what came before it, with an error of (terms + 1) times
    `error` of the largest of these; that is at most the sum of all magnitudes, and the errors
    before. One that adds zeros alone adds no error.

    Args:
        x: the terms.
        total: the oracle's sums.
        dtype: of the sums.
        arithmetic: the rules of the computation.
        error: of the row's result.
        steps: how many instructions make a sum.
    """
    terms = x.value.shape[-1]
    x = flushing(x) if arithmetic.fast_math else x
    rounding = error + FORMATS["float64"].unit
    once = (terms + min(steps, terms)) * rounding
    relative = once / (1 - once) if once < 1 else math.inf
    return float_sum(x, total, dtype, arithmetic, relative, error)


def _settled_fold(total: Values, low: Values, high: Values, x: Interval) -> Interval:
    """Return the enclosure of a fold of x: a NaN is sure where x is determined, or surely NaN."""
    if not x.wild and not is_wild(low, high):
        return Interval(total, low, high, False, True)
    sure = np.isnan(total) & (~undetermined(x).any(-1) | np.isnan(x.low).any(-1))
    unknown = anything(x).any(-1) | np.isnan(low) | np.isnan(high) | np.isnan(total)
    unknown &= ~sure
    low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
    low, high = np.where(sure, np.nan, low), np.where(sure, np.nan, high)
    return Interval(total, low, high, True, True)


def _adds_exactly(values: Values, rounding: float) -> bool:
    """Whether sums of `values` need no rounding in any order, which errs by `rounding`.

    So it is where all are multiples of a power of two of which their magnitudes make up no more
    than there are digits for.
    """
    digits = math.floor(-math.log2(rounding))

    def fits(part: Values) -> bool:
        size = np.abs(part).sum(-1, keepdims=True)
        multiple = np.ldexp(part, digits - np.frexp(size)[1])
        return bool(np.isfinite(size).all() and np.equal(np.rint(multiple), multiple).all())

    return fits(values[..., :2]) and fits(values)  # most arrays fail at once


def _may_be_subnormal(values: Values, dtype: DType) -> bool:
    """Whether a sum of `values` may be subnormal; one but 0 is no less than their last bits."""
    sizes = np.abs(values)
    least = FORMATS[dtype.name].normal / FORMATS[dtype.name].unit
    return bool(((sizes > 0) & (sizes < least)).any())


def _whole_sum(x: Interval, total: Values, dtype: DType) -> Interval:
    if x.exact:
        return exact(total)
    low, high = [a.astype(np.float64).sum(-1) for a in (x.low, x.high)]
    free = undetermined(x).any(-1)
    lost = free & ((low < -(2.0**53)) | (high > 2.0**53))
    least, most = extremes(dtype)
    ends = [np.where(lost | ~free, 0, a).astype(np.int64) for a in (low, high)]
    low = np.where(free, np.where(lost, least, ends[0]), total)
    high = np.where(free, np.where(lost, most, ends[1]), total)
    return Interval(total, low.astype(dtype.numpy), high.astype(dtype.numpy))


# Products


def _prod(
    parts: Parts, totals: Sequence[Values], dtype: DType, arithmetic: Arithmetic
) -> list[Interval]:
    """Errors are relative, but where a partial product under- or overflows."""
    (x,), (total,) = parts, totals
    if not dtype.is_float:
        return [_all_or_nothing(x, total, dtype)]
    form, steps = FORMATS[dtype.name], x.value.shape[-1] - 1
    sizes = np.abs(x.value)
    if not x.exact:  # the product moves by at most that of the sizes
        off = np.maximum(x.high - x.value, x.value - x.low)
        sizes = sizes + np.where(x.low == x.high, 0.0, off)
    most = np.prod(sizes, axis=-1)
    growth = (1 + 2 * unit(dtype)) ** steps - 1
    with np.errstate(all="ignore"):
        largest = np.prod(np.maximum(sizes, 1.0), axis=-1)
        smallest = np.prod(np.minimum(np.where(sizes == 0, 1.0, sizes), 1.0), axis=-1)
    slack = (most - np.abs(total)) + most * growth + 8 * FORMATS["float64"].unit * most
    tiny = form.normal if arithmetic.fast_math else form.least
    slack = slack + np.where(smallest < form.normal, steps * tiny * largest, 0.0)
    low, high = around(total - slack, total + slack, dtype, arithmetic)
    over = largest * (1 + growth) >= form.largest
    low, high = np.where(over, -np.inf, low), np.where(over, np.inf, high)
    if x.wild:  # an infinity: exact where all are
        plain = ~np.isfinite(total) & ~undetermined(x).any(-1) & ~over
        low, high = np.where(plain, total, low), np.where(plain, total, high)
    return [_settled_fold(total, low, high, x)]


def _all_or_nothing(x: Interval, total: Values, dtype: DType) -> Interval:
    if x.exact:
        return exact(total)
    free = undetermined(x).any(-1)
    least, most = extremes(dtype)
    return Interval(total, np.where(free, least, total), np.where(free, most, total))


# Extrema and truth values


def _extremum(function: Callable[..., Values]) -> Fold:
    def of(
        parts: Parts, totals: Sequence[Values], dtype: DType, arithmetic: Arithmetic
    ) -> list[Interval]:
        (x,), (total,) = parts, totals
        if x.exact:
            return [exact(total, unsigned=True)]
        # A maximum and a minimum grow with each operand and round nothing: their ends are those of
        # the ends.
        low, high = function(x.low, axis=-1), function(x.high, axis=-1)
        if not dtype.is_float:
            return [Interval(total, low, high)]
        return [_settled_fold(total, low, high, x)]

    return of


# Welford


def _welford(
    parts: Parts, totals: Sequence[Values], dtype: DType, arithmetic: Arithmetic
) -> list[Interval]:
    """Merge (mean, variance, count) in any tree of k leaves; see `reducers` for the formula.

    With N elements in all, a merge of a and b elements whose means differ by D:

    - The mean takes D b / (a + b) in: 5 roundings on that, one on the sum. An error made at a merge
      counts (a + b) / N in the end, so with magnitudes M and differences R the mean errs by at most
      E = u (M + 5 R) times the sum of these shares, which is below k.
    - The variance is the mean of two, weighted, and D^2 ab / (a + b)^2: 7 roundings on the one, 13
      on the other; one less, unless a share is a product with a reciprocal. The first parts,
      weighted, are each at most the whole variance V, the second ones add up to it. D itself is off
      by 2 E: times D that is at most 4 E sqrt(V S) by Cauchy and Schwarz, where S, the sum of
      ab / (a + b) / N, is at most log2 k, the entropy of the shares.

    Source: Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance", 1983, whose
    bound has the same terms.
    """
    mean, spread, count = parts
    filled = count.value > 0
    weight = count.value / np.maximum(count.value.sum(-1, keepdims=True), 1)
    leaves = filled.sum(-1)
    merges = np.maximum(leaves - 1, 0) + float(arithmetic.reference)  # by another formula
    # The shares of single elements add up to (k + 2) (k - 1) / 2 k: those of a chain.
    shares = np.where((count.value > 1).any(-1), merges, np.minimum(merges, merges / 2 + 1))
    u, form = unit(dtype), FORMATS[dtype.name]

    least = np.where(filled, mean.low, np.inf).min(-1)
    most = np.where(filled, mean.high, -np.inf).max(-1)
    least, most = np.where(leaves > 0, least, 0.0), np.where(leaves > 0, most, 0.0)
    size, reach = np.maximum(-least, most), most - least
    error = u * shares * (size + 5 * reach)

    off = np.where(filled, np.maximum(mean.high - mean.value, mean.value - mean.low), 0.0)
    within = np.where(filled, np.maximum(spread.high - spread.value, spread.value - spread.low), 0)
    away = np.where(filled, np.abs(mean.value - totals[0][..., None]), 0.0)
    drift = (weight * off).sum(-1)
    moved = off + drift[..., None]
    change = (weight * (within + moved * (2 * away + moved))).sum(-1)

    variance, entropy = totals[1] + change, np.log2(np.maximum(leaves, 2))
    slack = u * (7 * merges + 13 * (merges > 0)) * variance
    slack += 4 * error * (np.sqrt(np.maximum(variance, 0) * entropy) + error * entropy)
    slack += 8 * merges * (form.normal if arithmetic.fast_math else form.least) * (1 + reach)
    slack = change + slack * (1 + 32 * merges * u)  # what is of second order

    infinite = np.asarray((filled & (np.isinf(mean.low) | np.isinf(mean.high))).any(-1))
    nan = np.asarray((filled & np.isnan(mean.low)).any(-1))
    means = _spread_out(totals[0], error + drift, dtype, arithmetic)
    spreads = _spread_out(totals[1], slack, dtype, arithmetic)
    undefined = nan | (filled & np.isnan(spread.low)).any(-1)
    return [
        _finished(means, nan, np.asarray(infinite | (2 * size >= form.largest))),
        _finished(spreads, undefined, np.asarray(infinite | (2 * reach**2 >= form.largest))),
        exact(totals[2]),
    ]


def _spread_out(total: Values, slack: Values, dtype: DType, arithmetic: Arithmetic) -> Interval:
    return Interval(total, *around(total - slack, total + slack, dtype, arithmetic), True, True)


def _finished(found: Interval, nan: Values, anything: Values) -> Interval:
    """Return a component of Welford's after a look at what is not finite.

    Args:
        found: its enclosure where all is finite.
        nan: where it is surely NaN.
        anything: where it may be anything.
    """
    unknown = (anything | np.isnan(found.low) | np.isnan(found.high) | np.isnan(found.value)) & ~nan
    low, high = np.where(nan, np.nan, found.low), np.where(nan, np.nan, found.high)
    low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
    return Interval(found.value, low, high, is_wild(low, high), True)


FOLDS: Mapping[str, Fold] = {
    "sum": _sum,
    "prod": _prod,
    "max": _extremum(np.max),
    "min": _extremum(np.min),
    "any": _extremum(np.any),
    "all": _extremum(np.all),
    "welford": _welford,
}
"""The reducers of `ops.reducers` but argmax and argmin; these, and those of one's own, are enclosed
by their templates (`template_folds`)."""
