"""Arguments for a fusion: arrays and scalars from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import loopnest as ln
from loopnest.launch.strided_arrays import arranged
from loopnest.scalar.arguments import size_value
from loopnest.scalar.dtypes import DType

Array = np.ndarray[Any, Any]

_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e30, -1e-30, 1.0)
_INTEGERS = (0, 1, -1, 2**31 - 1, -(2**31), 7)


def make_arrays(
    fusion: ln.Fusion,
    sizes: Mapping[str, int],
    seed: int,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> tuple[list[Array], dict[str, Any]]:
    """Return an array an input, and the keyword arguments: scalars, and sizes of no input.

    Floats are multiples of 1/8 (whose sums and products are exact) for even seeds; every eighth
    seed strews NaN, infinities and other special values among them. Those of `ranges`, by the name
    of the input or the scalar, are drawn evenly from there.
    """
    rng = np.random.default_rng(seed)
    arrays = []
    for tensor in fusion.inputs:
        shape = tuple(size_value(size, sizes) for size in tensor.sizes)
        declared = [r for r in fusion.ranges if r.name == tensor.name]
        if declared:
            low = max(size_value(r.low, sizes) for r in declared)
            high = min(size_value(r.high, sizes) for r in declared)
            arrays.append(rng.integers(low, high, shape).astype(tensor.dtype.numpy))
        elif tensor.name in (ranges or {}):
            drawn = _within(rng, (ranges or {})[tensor.name], tensor.dtype, shape)
            arrays.append(np.asarray(drawn).astype(tensor.dtype.numpy))
        else:
            arrays.append(_array(rng, shape, tensor.dtype, seed))
        if tensor.strides is not None:
            arrays[-1] = arranged(arrays[-1], [size_value(s, sizes) for s in tensor.strides])
    keywords: dict[str, Any] = {}
    for scalar in fusion.scalars:
        keywords[scalar.name] = _scalar(rng, scalar.dtype)
        if scalar.name in (ranges or {}):
            drawn = _within(rng, (ranges or {})[scalar.name], scalar.dtype, ())
            keywords[scalar.name] = drawn.item() if hasattr(drawn, "item") else drawn
    bound = {str(s) for t in fusion.inputs for s in t.sizes}
    keywords |= {s.name: sizes[s.name] for s in fusion.symbols if s.name not in bound}
    return arrays, keywords


def _within(
    rng: np.random.Generator, bounds: tuple[float, float], dtype: DType, shape: tuple[int, ...]
) -> Any:
    low, high = bounds
    if dtype.is_integer or dtype.is_bool:
        return rng.integers(int(low), int(high) + 1, shape)
    return rng.uniform(low, high, shape)


def _array(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, seed: int) -> Array:
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(np.bool_)
    special = seed % 8 == 7
    if dtype.is_integer:
        values = rng.integers(-5, 6, shape).astype(dtype.numpy)
        return _strewn(rng, values, _INTEGERS) if special else values
    floats = rng.uniform(-2.0, 2.0, shape)
    if seed % 2 == 0:
        floats = np.rint(floats * 8) / 8
    if special:
        floats = _strewn(rng, floats, _SPECIAL)
    with np.errstate(over="ignore"):
        return np.asarray(floats).astype(dtype.numpy)


def _strewn(rng: np.random.Generator, values: Array, among: tuple[float, ...]) -> Array:
    values = np.asarray(values)
    chosen = rng.random(values.shape) < 0.1
    return np.where(chosen, rng.choice(among, values.shape), values).astype(values.dtype)


def _scalar(rng: np.random.Generator, dtype: DType) -> Any:
    if dtype.is_bool:
        return bool(rng.integers(0, 2))
    if dtype.is_integer:
        return int(rng.integers(-3 if dtype.signed else 0, 4))
    return float(rng.integers(-12, 13)) / 8
