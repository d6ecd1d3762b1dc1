"""The interpreter's scalar language: what each operation gives, and in which type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from loopnest.backends.interpret import interpret
from loopnest.kir import parse as parse_nest
from loopnest.lane_machine import native_math
from loopnest.scalar import dtypes
from loopnest.scalar.op_table import OPS

F = np.float32


def run(text, scalars=None, **arrays):
    interpret(parse_nest(text), arrays, {}, scalars or {})


def values(op, *arrays, dtype, result=None):
    out = native_math.apply(op, list(arrays), [dtype] * len(arrays), result or dtype)
    return np.asarray(out)


def test_every_operation_of_the_language_is_there():
    known = {*native_math.VALUE, *native_math.PREDICATE, "where", "cast"}
    assert known == set(OPS)


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        ("min", ([1, NAN, 2], [NAN, 1, 3]), [NAN, NAN, 2]),
        ("max", ([1, NAN, 2], [NAN, 1, 3]), [NAN, NAN, 3]),
        ("mod", ([-7, 7, -7], [3, -3, -3]), [2, -2, -1]),
        ("floordiv", ([-7, 7, -7], [3, -3, -3]), [-3, -3, 2]),
        ("round", ([0.5, 1.5, 2.5, -0.5],), [0, 2, 2, -0.0]),
        ("trunc", ([1.7, -1.7],), [1, -1]),
        ("sigmoid", ([-1000, 0, 1000],), [0, 0.5, 1]),
        ("rsqrt", ([4, 0],), [0.5, INF]),
        ("reciprocal", ([4, 0],), [0.25, INF]),
        ("erf", ([0, INF, -INF],), [0, 1, -1]),
        ("pow", ([2, -8, 0], [0.5, 2, -1]), [np.sqrt(F(2)), 64, INF]),
    ],
)
def test_float_semantics(op, operands, expected):
    with np.errstate(all="ignore"):
        found = values(op, *[np.array(a, F) for a in operands], dtype=dtypes.float32)
    assert found.dtype == F
    np.testing.assert_array_equal(found, np.array(expected, F))


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        ("add", ([2**31 - 1], [1]), [-(2**31)]),
        ("mul", ([2**16], [2**16]), [0]),
        ("neg", ([-(2**31)],), [-(2**31)]),
        ("abs", ([-(2**31)],), [-(2**31)]),
        ("floordiv", ([-7, 7, -(2**31), 5], [2, -2, -1, 0]), [-4, -4, -(2**31), 0]),
        ("mod", ([-7, 7, 5], [3, -3, 0]), [2, -2, 0]),
        ("pow", ([2, -1, 1, 3, 0], [31, -3, -5, -1, -1]), [-(2**31), -1, 1, 0, 0]),
        ("round", ([3],), [3]),
        ("bitnot", ([5],), [-6]),
        ("ceildiv", ([7, -7], [2, 2]), [4, -3]),
    ],
)
def test_int32_wraps_without_a_warning(op, operands, expected):
    with np.errstate(all="ignore"):
        found = values(op, *[np.array(a, np.int32) for a in operands], dtype=dtypes.int32)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)


def test_comparisons_with_nan_are_false():
    nan, one = np.array([NAN], F), np.array([1], F)
    for op in ("lt", "le", "gt", "ge", "eq"):
        assert not values(op, nan, one, dtype=dtypes.float32, result=dtypes.bool_)
    assert values("ne", nan, one, dtype=dtypes.float32, result=dtypes.bool_)


def test_fma_rounds_once():
    a, b, c = F(1 + 2**-12), F(1 + 2**-12), F(-1 - 2**-11)
    found = values("fma", *[np.array([v]) for v in (a, b, c)], dtype=dtypes.float32)
    assert found == F(2**-24)
    assert F(F(a * b) + c) == 0
    wide = [np.array([v]) for v in (1 + 2**-30, 1 + 2**-30, -1 - 2**-29)]
    assert values("fma", *wide, dtype=dtypes.float64) == 2.0**-60


def test_index_arithmetic_is_exact():
    big = 2**62
    assert native_math.apply("mul", [big, 4], [dtypes.index] * 2, dtypes.index) == 2**64
    assert native_math.apply("floordiv", [-7, 2], [dtypes.index] * 2, dtypes.index) == -4
    assert native_math.apply("mod", [-7, 2], [dtypes.index] * 2, dtypes.index) == 1
    assert native_math.apply("ceildiv", [7, 2], [dtypes.index] * 2, dtypes.index) == 4


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        ([2049.0, 65520.0], dtypes.float32, dtypes.float16, [2048, INF]),
        ([257.0, 1e39], dtypes.float64, dtypes.bfloat16, [256, INF]),
        # halfway between two bfloat16 after a rounding to float32, above it before
        ([1 + 2**-8 + 2**-30], dtypes.float64, dtypes.bfloat16, [1 + 2**-7]),
        ([1.9, -1.9], dtypes.float32, dtypes.int32, [1, -1]),
        ([2**33 + 5], dtypes.int64, dtypes.int32, [5]),
        ([0.5, 0.0, NAN], dtypes.float32, dtypes.bool_, [1, 0, 1]),
    ],
)
def test_conversions(value, source, target, expected):
    with np.errstate(all="ignore"):
        found = native_math.convert(np.array(value, source.numpy), source, target)
    assert found.dtype == target.numpy
    np.testing.assert_array_equal(found.astype(np.float64), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64", "bool"])
def test_store_rounds_to_the_type_of_the_buffer(dtype):
    text = f"""
    kernel store(x: float32[5]) -> (y: {dtype}[5])
    for i0 in 5:
      y[i0] = x[i0] * 1.5
    """
    target = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    x, y = np.array([0, 1, 1.37, 999.3, -2.71], F), np.zeros(5, target)
    run(text, x=x, y=y)
    np.testing.assert_array_equal(y, (x * F(1.5)).astype(target))


def test_half_loads_are_cast():
    text = """
    kernel scale(x: float16[6], a: float16) -> (y: float16[6])
    for i0 in 6:
      y[i0] = float16(float32(x[i0]) * float32(a) + 0.1)
    """
    x, y = np.linspace(0, 3, 6).astype(np.float16), np.zeros(6, np.float16)
    run(text, {"a": np.float16(1.1)}, x=x, y=y)
    expected = x.astype(F) * np.float16(1.1).astype(F) + F(0.1)
    np.testing.assert_array_equal(y, expected.astype(np.float16))
