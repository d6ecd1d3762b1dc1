"""Helpers for tests of the math: build a fusion around a function, and evaluate it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import loopnest as ln
from loopnest.scalar import dtypes

TYPES = dtypes.ALL
FLOATS = dtypes.FLOATS

SPECIAL = [
    *(float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5),
    *(2.5, -2.5, 3.0, -7.25, 1e-4, -1e-4, 12.0, -12.0, 40.0, -40.0, 6e4, -6e4),
]
INTEGERS = [0, 1, -1, 2, -2, 3, 7, -7, 100, -100, 2**31 - 1, -(2**31)]


def define(
    math: Callable[..., Any], *arrays: np.ndarray, symbolic: Sequence[str] = ()
) -> ln.Fusion:
    """Return a fusion with an input an array, whose outputs are what `math` returns.

    Extents are static; with `symbolic` those of the arrays' axes are these names instead.
    """
    with ln.Fusion("case") as f:
        inputs = []
        for number, array in enumerate(arrays):
            dtype = dtypes.from_numpy(array.dtype)
            assert dtype is not None
            shape = symbolic[: array.ndim] if symbolic else array.shape
            inputs.append(f.input(f"x{number}", shape, dtype))
        results = math(*inputs)
        for result in results if isinstance(results, tuple) else (results,):
            f.output(result)
    return f


def run(math: Callable[..., Any], *arrays: np.ndarray, symbolic: Sequence[str] = ()) -> Any:
    """Return what `math` of `arrays` evaluates to."""
    return ln.evaluate(define(math, *arrays, symbolic=symbolic), *arrays)


def wide(array: np.ndarray) -> np.ndarray:
    """Return a float array in float64."""
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


def of_type(values: Sequence[float], dtype: Any) -> np.ndarray:
    """Return `values` as an array of a loopnest type."""
    with np.errstate(all="ignore"):
        return np.array(values).astype(dtype.numpy)


def assert_equal(actual: np.ndarray, expected: Any, rtol: float = 0.0) -> None:
    """Compare values: NaN equals NaN; with `rtol` floats may differ by that."""
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    if rtol:
        np.testing.assert_allclose(wide(actual), wide(expected), rtol=rtol, atol=1e-300)
    else:
        np.testing.assert_array_equal(wide(actual), wide(expected))
