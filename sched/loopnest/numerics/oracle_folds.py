"""Folds and scans along the last axis of arrays, by the combination of a reducer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loopnest.numerics.float64_math import Values, evaluate_expr, held
from loopnest.numerics.oracle_blocks import (
    halves,
)
from loopnest.scalar.expr import Expr, two_sides
from loopnest.tensor.definition import TracedReducer


def fold_values(reducer: TracedReducer, parts: Sequence[Values]) -> list[Values]:
    """Fold the last axis away, which is not empty, halving its elements until one is left."""
    now = list(parts)
    while now[0].shape[-1] > 1:
        now = _halved(reducer, now)
    return [part[..., 0] for part in now]


def scan_values(
    reducer: TracedReducer, parts: Sequence[Values], *, exclusive: bool = False
) -> list[Values]:
    """Return for each element along the last axis the fold of all elements up to it.

    By doubling: after each round an element holds the fold of twice as many in front of it.
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
