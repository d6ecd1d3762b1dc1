"""Intervals of reducers of one's own: their templates on intervals, in whatever grouping they fold.

A combination that does not round gives one result in every grouping: then that of the templates on
the enclosures of the elements holds all. One that rounds errs once where two partial results are
combined, at n - 1 places, and what it errs there reaches the result by way of the combinations
after it. One tree over exact elements, each first combined with the identity, shows how much that
comes to for partial results of all sizes, single elements included; each of the n - 1 errors of
another tree counts as much as all of its together.

That is a bound to first order, for partial results like those that the tree has: where one of
another grouping is far larger than all of these (as where elements next to each other cancel, but
not those further apart), it may be too small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from loopnest.numerics.float64_math import Values
from loopnest.numerics.interval_rules import enclose
from loopnest.numerics.intervals import (
    Interval,
    exact,
    extremes,
    is_wild,
    undetermined,
    widened,
)
from loopnest.numerics.oracle_blocks import halves
from loopnest.numerics.target_accuracy import Arithmetic, unit
from loopnest.scalar.dtypes import DType, float64
from loopnest.scalar.expr import Expr, Op, two_sides, walk
from loopnest.tensor.definition import TracedReducer

_EXACT = ("max", "min", "where", "neg", "abs")
"""Operations whose result is that of an operand, but for its sign."""


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
    neutral = [enclose(value, {}, arithmetic) for value in reducer.identity]
    erring = _tree(reducer, _combined(reducer, neutral, points, arithmetic), arithmetic)
    steps = parts[0].value.shape[-1] - 1
    return [
        exact(total, unsigned=True)
        if one.exact and other.exact
        else _widened(one, other, total, steps, dtype)
        for one, other, total, dtype in zip(found, erring, totals, reducer.types, strict=True)
    ]


def _tree(reducer: TracedReducer, parts: list[Interval], arithmetic: Arithmetic) -> list[Interval]:
    """Fold the last axis away by halves."""
    while (size := parts[0].value.shape[-1]) > 1:
        first, second = halves(size // 2, reducer.ordered)
        one, other = _cut(parts, first), _cut(parts, second)
        made = _combined(reducer, one, other, arithmetic)
        if size % 2:
            rest = _cut(parts, slice(-1, None))
            made = [_joined(a, b) for a, b in zip(made, rest, strict=True)]
        parts = made
    return [part.viewed(lambda a: a[..., 0]) for part in parts]


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
    made = [_enclosed(template, env, arithmetic) for template in reducer.combination]
    return [part.viewed(lambda a: np.broadcast_to(a, shape)) for part in made]


def _enclosed(template: Expr, env: Mapping[Expr, Interval], arithmetic: Arithmetic) -> Interval:
    """Return the enclosure of a combination; in float64 too, where groupings round otherwise."""
    made = enclose(template, env, arithmetic)
    if not any(node.dtype is float64 for node in walk(template) if _rounds(node)):
        return made
    with np.errstate(all="ignore"):
        low, high = widened(made.low, made.high, unit(float64))
    return replace(made, low=low, high=high)


def _rounds(node: Expr) -> bool:
    return isinstance(node, Op) and node.dtype.is_float and node.op not in _EXACT


def _joined(a: Interval, b: Interval) -> Interval:
    value = np.concatenate([a.value, b.value], axis=-1)
    wild, unsigned = a.wild or b.wild, a.unsigned or b.unsigned
    if a.exact and b.exact:
        return Interval(value, value, value, wild, unsigned)
    low, high = [np.concatenate(ends, axis=-1) for ends in ((a.low, b.low), (a.high, b.high))]
    return Interval(value, low, high, wild, unsigned)


def _widened(
    found: Interval, erring: Interval, total: Values, steps: int, dtype: DType
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
