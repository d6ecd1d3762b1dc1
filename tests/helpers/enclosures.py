"""Samples around numbers, and the demand that results lie in an enclosure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from loopnest.numerics.intervals import Interval, is_wild
from loopnest.scalar.dtypes import DType

Array = np.ndarray[Any, Any]


def operands(dtype: DType, seed: int, count: int = 4000) -> Array:
    """Return numbers of a float type of every size, small integers and special values."""
    rng = np.random.default_rng(seed)
    span = 30 if seed % 2 else (160 if dtype.size == 4 else 1100)
    values = rng.uniform(0.5, 1, count) * np.exp2(rng.uniform(-span, span, count))
    values *= rng.choice([-1, 1], count)
    plain = rng.integers(-24, 25, count) / 8
    values = np.where(rng.random(count) < 0.4, plain, values)
    special = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 3.0], count)
    return np.where(rng.random(count) < 0.06, special, values).astype(dtype.numpy)


def around(points: Array, seed: int) -> Interval:
    """Return intervals of many widths that hold `points`, some at an end; some are exact."""
    rng = np.random.default_rng(seed + 1000)
    wide = points.astype(np.float64)
    reach = np.abs(wide) * np.exp2(rng.uniform(-60, 1, wide.shape))
    reach = np.where(rng.random(wide.shape) < 0.1, 1e-30, reach)
    low = wide - reach * rng.choice([0.0, 0.3, 1.0], wide.shape)
    high = wide + reach * rng.choice([0.0, 0.3, 1.0], wide.shape)
    sure = (rng.random(wide.shape) < 0.2) | ~np.isfinite(wide)
    low, high = np.where(sure, wide, low), np.where(sure, wide, high)
    middle = np.where(sure, wide, low + (high - low) * rng.random(wide.shape))
    return Interval(middle, low, high, is_wild(low, high), True)


def require(found: Interval, results: Array, operands: Sequence[Array], name: str) -> None:
    right = found.contains(results.astype(found.value.dtype))
    if not right.all():
        bad = np.flatnonzero(~right)[:5]
        lines = [
            f"{name}({', '.join(repr(o[n]) for o in operands)}) = {results[n]!r}, not in "
            f"[{found.low[n]!r}, {found.high[n]!r}] around {found.value[n]!r}"
            for n in bad
        ]
        pytest.fail("\n".join([f"{np.count_nonzero(~right)} of {right.size}", *lines]))


def between(low: float, high: float) -> Interval:
    ends = [np.asarray(v, np.float64) for v in ((low + high) / 2, low, high)]
    return Interval(*ends, wild=is_wild(*ends))
