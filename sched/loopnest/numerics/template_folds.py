"""Intervals of reducers of one's own: their templates on intervals, in whatever grouping they fold.

A combination that does not round gives one result in every grouping: then that of the templates on
the enclosures of the elements holds all. One that rounds errs once where two partial results are
combined, at n - 1 places, and what it errs there reaches the result by way of the combinations
after it. How much that comes to, one tree shows: the partial results in it, single elements
included, are each taken to be off by as many roundings as the combination has operations that
round, whether these operands need them or not. Each of the n - 1 errors of another tree counts as
much as all of its together.

That is a bound to first order, for partial results like those that the tree has: where one of
another grouping is far larger than all of these (as where elements next to each other cancel, but
not those further apart), it may be too small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loopnest.numerics.float64_math import Values, evaluate_expr, held
from loopnest.numerics.interval_rules import enclose
from loopnest.numerics.intervals import (
    Interval,
    exact,
    extremes,
    is_wild,
    undetermined,
    unknown_where,
    widened,
)
from loopnest.numerics.oracle_blocks import halves
from loopnest.numerics.reduction_intervals import FOLDS
from loopnest.numerics.target_accuracy import FORMATS, SELECTING, Arithmetic, unit
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Expr, Op, two_sides, walk
from loopnest.tensor.definition import TracedReducer


def fold_templates(
    reducer: TracedReducer,
    parts: Sequence[Interval],
    totals: Sequence[Values],
    arithmetic: Arithmetic,
) -> list[Interval]:
    """Return the enclosures of what a reducer folds `parts` to, by its combination.

    Args:
        reducer: how partial results combine.
        parts: the enclosure of each component, with the axis to fold away last (not empty).
        totals: what the oracle folds each component to.
        arithmetic: the rules of the computation.
    """
    found = _tree(reducer, list(parts), arithmetic)
    points = [exact(part.value) for part in parts]
    erring = _tree(reducer, _off(reducer, points), arithmetic, erring=True)
    steps = parts[0].value.shape[-1] - 1
    made = [
        exact(total, unsigned=True)
        if one.exact and other.exact
        else _widened(one, other, total, steps, dtype)
        for one, other, total, dtype in zip(found, erring, totals, reducer.types, strict=True)
    ]
    unsure = _changed_by_identity(reducer, [part.value for part in parts]).any(axis=-1)
    unsure |= _changed_by_identity(reducer, totals)
    return [unknown_where(part, unsure) for part in made] if unsure.any() else made


def scan_templates(
    reducer: TracedReducer,
    parts: Sequence[Interval],
    totals: Sequence[Values],
    arithmetic: Arithmetic,
    *,
    exclusive: bool,
) -> list[Interval]:
    """Return the enclosures of what a scan gives: for each element as `fold_templates`."""
    found = _so_far(reducer, list(parts), arithmetic)
    points = [exact(part.value) for part in parts]
    neutral = [enclose(value, {}, arithmetic) for value in reducer.identity]
    erring = _erring_so_far(reducer, points, arithmetic)
    if exclusive:
        found, erring = [_shifted(neutral, some) for some in (found, erring)]
    steps = np.arange(parts[0].value.shape[-1])
    made = [
        exact(total, unsigned=True)
        if one.exact and other.exact
        else _widened(one, other, total, steps, dtype)
        for one, other, total, dtype in zip(found, erring, totals, reducer.types, strict=True)
    ]
    if reducer.name in FOLDS:
        return made
    unsure = _changed_by_identity(reducer, [part.value for part in parts])
    if exclusive:
        unsure = np.concatenate([np.zeros_like(unsure[..., :1]), unsure[..., :-1]], axis=-1)
    unsure = np.logical_or.accumulate(unsure | _changed_by_identity(reducer, totals), axis=-1)
    return [unknown_where(part, unsure) for part in made] if unsure.any() else made


def _changed_by_identity(reducer: TracedReducer, parts: Sequence[Values]) -> Values:
    """Return for which partial results the identity is not neutral.

    That of a reducer which multiplies is not beside an infinity or NaN. Kernels fold it in where
    their loops begin, as often as they have such beginnings: so results may be anything there.
    """
    left, right = two_sides(reducer.types)
    neutral = [held(evaluate_expr(c, {}), c.dtype) for c in reducer.identity]
    shape = np.broadcast_shapes(*[part.shape for part in parts])
    changed = np.zeros(shape, np.bool_)
    for one, other in ((neutral, parts), (parts, neutral)):
        env: dict[Expr, Values] = dict(zip((*left, *right), (*one, *other), strict=True))
        for template, part in zip(reducer.combination, parts, strict=True):
            found = evaluate_expr(template, env)
            changed |= (found != part) & ((found == found) | (part == part))
    return changed


def _erring_so_far(
    reducer: TracedReducer, points: list[Interval], arithmetic: Arithmetic
) -> list[Interval]:
    """Return what may be off for each element of a scan at one combination."""
    if reducer.name != "sum" or not reducer.types[0].is_float:
        return _so_far(reducer, _off(reducer, points), arithmetic, erring=True)
    (x,) = points  # an addition errs by its result, which is at most all magnitudes
    with np.errstate(all="ignore"):
        sizes = np.cumsum(np.abs(x.value), axis=-1)
        largest = FORMATS[reducer.types[0].name].largest
        error = np.where(sizes >= largest, np.inf, unit(reducer.types[0]) * sizes)
        total = np.cumsum(x.value, axis=-1)
        return [Interval(total, total - error, total + error, is_wild(error), True)]


def _so_far(
    reducer: TracedReducer,
    parts: list[Interval],
    arithmetic: Arithmetic,
    *,
    erring: bool = False,
) -> list[Interval]:
    """Fold each element with all before it, twice as many a round; `erring` as in `_tree`."""
    size, reach = parts[0].value.shape[-1], 1
    while reach < size:
        before, after = _cut(parts, slice(None, -reach)), _cut(parts, slice(reach, None))
        made = _combined(reducer, before, after, arithmetic)
        made = _off(reducer, made) if erring else made
        first = _cut(parts, slice(None, reach))
        parts = [_joined(a, b) for a, b in zip(first, made, strict=True)]
        reach *= 2
    return parts


def _shifted(neutral: Sequence[Interval], parts: Sequence[Interval]) -> list[Interval]:
    """Return for each element what the one before it has, for the first the identity."""
    shape = parts[0].value[..., :1].shape
    first = [part.viewed(lambda a: np.broadcast_to(a, shape)) for part in neutral]
    return [_joined(a, b) for a, b in zip(first, _cut(parts, slice(None, -1)), strict=True)]


def _tree(
    reducer: TracedReducer,
    parts: list[Interval],
    arithmetic: Arithmetic,
    *,
    erring: bool = False,
) -> list[Interval]:
    """Fold the last axis away by halves; `erring` combinations are each off by their roundings."""
    while (size := parts[0].value.shape[-1]) > 1:
        first, second = halves(size // 2, reducer.ordered)
        one, other = _cut(parts, first), _cut(parts, second)
        made = _combined(reducer, one, other, arithmetic)
        made = _off(reducer, made) if erring else made
        if size % 2:
            rest = _cut(parts, slice(-1, None))
            made = [_joined(a, b) for a, b in zip(made, rest, strict=True)]
        parts = made
    return [part.viewed(lambda a: a[..., 0]) for part in parts]


def _off(reducer: TracedReducer, parts: Sequence[Interval]) -> list[Interval]:
    """Return partial results off by as many roundings as their combination has."""
    result: list[Interval] = []
    for part, template, dtype in zip(parts, reducer.combination, reducer.types, strict=True):
        count = len([node for node in walk(template) if _rounds(node)])
        if count and dtype.is_float:
            least = FORMATS[dtype.name].least
            with np.errstate(all="ignore"):
                low, high = widened(part.low, part.high, count * unit(dtype))
                low, high = low - count * least, high + count * least
            part = Interval(part.value, low, high, part.wild or is_wild(low, high), True)
        result.append(part)
    return result


def _rounds(node: Expr) -> bool:
    return isinstance(node, Op) and node.dtype.is_float and node.op not in SELECTING


def _cut(parts: Sequence[Interval], where: slice) -> list[Interval]:
    return [part.viewed(lambda a: a[..., where]) for part in parts]


def _combined(
    reducer: TracedReducer,
    one: Sequence[Interval],
    other: Sequence[Interval],
    arithmetic: Arithmetic,
) -> list[Interval]:
    left, right = two_sides(reducer.types)
    env: Mapping[Expr, Interval] = dict(zip((*left, *right), (*one, *other), strict=True))
    shape = np.broadcast_shapes(*[part.value.shape for part in (*one, *other)])
    made = [enclose(template, env, arithmetic) for template in reducer.combination]
    return [part.viewed(lambda a: np.broadcast_to(a, shape)) for part in made]


def _joined(a: Interval, b: Interval) -> Interval:
    value = np.concatenate([a.value, b.value], axis=-1)
    wild, unsigned = a.wild or b.wild, a.unsigned or b.unsigned
    if a.exact and b.exact:
        return Interval(value, value, value, wild, unsigned)
    low, high = [np.concatenate(ends, axis=-1) for ends in ((a.low, b.low), (a.high, b.high))]
    return Interval(value, low, high, wild, unsigned)


def _widened(
    found: Interval, erring: Interval, total: Values, steps: int | Values, dtype: DType
) -> Interval:
    """Return an enclosure of another grouping, given what one tree errs."""
    if not dtype.is_float:
        least, most = extremes(dtype)
        free = undetermined(erring)
        low, high = np.where(free, least, found.low), np.where(free, most, found.high)
        return Interval(total, low, high)
    with np.errstate(all="ignore"):
        reach = np.maximum(erring.high - erring.value, erring.value - erring.low)
        reach = np.where(erring.low == erring.high, 0.0, reach)
        low, high = found.low - steps * reach, found.high + steps * reach
    unknown = np.isnan(low) | np.isnan(high) | np.isnan(total)
    low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
    return Interval(total, low, high, is_wild(low, high), True)
