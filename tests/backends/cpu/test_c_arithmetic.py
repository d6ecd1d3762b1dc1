"""Conversions, integers and comparisons of the C kernels' header, against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from helpers.c_functions import C_TYPES, Array, all_exponents, call, one_expression, suffix
from loopnest.backends.cpu.c_compiler import compile_c, find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")


# 16-bit floats


def same_bits(got: Array, want: Array, nan: Array) -> None:
    assert got.dtype == want.dtype == np.uint16
    differ = (got != want) & ~nan
    assert not differ.any(), (got[differ][:5], want[differ][:5])


def between_halves() -> Array:
    """Return float32 values at, near and midway between all float16 values, in float64."""
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
    half = np.sort(half[np.isfinite(half)])
    middle = np.append((half[1:] + half[:-1]) / 2, [65520.0, -65520.0])
    around = np.concatenate([half, middle])
    return np.concatenate([around, around * (1 + 2.0**-22), around * (1 - 2.0**-22)])


def test_float16_to_float32_of_every_value() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    got = one_expression("ln_f16_to_f32(x)", "float32", bits)
    want = bits.view(np.float16).astype(np.float32)
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got[~nan].view(np.uint32), want[~nan].view(np.uint32))


def test_float32_to_float16_rounds_to_even() -> None:
    x = np.concatenate([all_exponents("float32", 400), between_halves().astype(np.float32)])
    with np.errstate(all="ignore"):
        want = x.astype(np.float16)
    got = one_expression("ln_f32_to_f16(x)", "uint16", x)
    assert np.array_equal(np.isnan(got.view(np.float16)), np.isnan(x))
    same_bits(got, want.view(np.uint16), np.isnan(x))


def test_float64_to_float16_rounds_once() -> None:
    middle = between_halves()
    x = np.concatenate(
        [all_exponents("float64", 40), middle, middle * (1 + 2.0**-50), middle * (1 - 2.0**-50)]
    )
    with np.errstate(all="ignore"):
        want = x.astype(np.float16)
    same_bits(one_expression("ln_f64_to_f16(x)", "uint16", x), want.view(np.uint16), np.isnan(x))


def test_bfloat16_to_float32_of_every_value() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    got = one_expression("ln_bf16_to_f32(x)", "float32", bits)
    want = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(want))


def test_float32_to_bfloat16_rounds_to_even_and_keeps_nan() -> None:
    middle = (np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    bits = middle.view(np.uint32)
    around = np.concatenate([bits - 1, bits + 1]).view(np.float32)
    nans = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    x = np.concatenate([all_exponents("float32", 400), middle, around, nans])
    with np.errstate(all="ignore"):
        want = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    got = one_expression("ln_f32_to_bf16(x)", "uint16", x)
    assert np.array_equal(np.isnan(got.view(ml_dtypes.bfloat16)), np.isnan(x))
    same_bits(got, want, np.isnan(x))


def test_float64_to_bfloat16_rounds_once() -> None:
    upper = np.arange(0x0080, 0x7F7F, dtype=np.uint32)
    middle = (upper << 16 | 0x8000).view(np.float32).astype(np.float64)
    x = np.concatenate([middle, middle * (1 + 2.0**-50), middle * (1 - 2.0**-50)])
    # The exact rounding on float64's own bits: 45 of 52 mantissa bits go.
    cut = np.uint64(45)
    bits = x.view(np.uint64)
    bits = bits + np.uint64((1 << 44) - 1) + (bits >> cut & np.uint64(1))
    bits = bits >> cut << cut
    with np.errstate(all="ignore"):
        want = bits.view(np.float64).astype(np.float32).view(np.uint32) >> 16
    same_bits(
        one_expression("ln_f64_to_bf16(x)", "uint16", x),
        want.astype(np.uint16),
        np.zeros(len(x), bool),
    )


# Integers, comparisons, rounding


def integers(dtype: str) -> tuple[Array, Array]:
    limits = np.iinfo(np.dtype(dtype))
    rng = np.random.default_rng(1)
    few = np.array([0, 1, -1, 2, -2, 3, 7, -7, limits.max, limits.min, limits.min + 1], dtype)
    x, y = (a.ravel() for a in np.meshgrid(few, few))
    n = 20_000
    wide = rng.integers(limits.min, limits.max, (2, n), dtype)
    narrow = rng.integers(-50, 50, (2, n), dtype)
    return (
        np.concatenate([x, wide[0], wide[0], narrow[0]]),
        np.concatenate([y, wide[1], narrow[1], narrow[1]]),
    )


@pytest.mark.parametrize(("dtype", "end"), [("int32", "i32"), ("int64", "i64")])
def test_integers_are_numpys(dtype: str, end: str) -> None:
    x, y = integers(dtype)
    with np.errstate(all="ignore"):
        cases = {
            f"ln_mod_{end}(x, y)": np.mod(x, y),
            f"ln_floordiv_{end}(x, y)": np.floor_divide(x, y),
            f"ln_max_{end}(x, y)": np.maximum(x, y),
            f"ln_min_{end}(x, y)": np.minimum(x, y),
            f"ln_abs_{end}(x)": np.abs(x),
            f"ln_relu_{end}(x)": np.maximum(x, 0),
            f"ln_mod_{end}(x, 7)": np.mod(x, 7),
            f"ln_mod_{end}(x, -7)": np.mod(x, -7),
            f"ln_floordiv_{end}(x, -7)": np.floor_divide(x, -7),
            "x + y": x + y,
            "x * y": x * y,
            "-x": -x,
        }
    for expression, want in cases.items():
        got = one_expression(expression, dtype, x, y)
        assert np.array_equal(got, want), expression


@pytest.mark.parametrize(("dtype", "end"), [("int32", "i32"), ("int64", "i64")])
def test_index_division(dtype: str, end: str) -> None:
    x, y = integers(dtype)
    x, y = x[y > 0], y[y > 0]
    got = one_expression(f"ln_index_div_{end}(x, y)", dtype, x, y)
    assert np.array_equal(got, np.floor_divide(x, y))
    got = one_expression(f"ln_index_mod_{end}(x, y)", dtype, x, y)
    assert np.array_equal(got, np.mod(x, y))


@pytest.mark.parametrize(("dtype", "end"), [("int32", "i32"), ("int64", "i64")])
def test_integer_power(dtype: str, end: str) -> None:
    x, y = integers(dtype)
    y = np.abs(y) % 70
    got = one_expression(f"ln_pow_{end}(x, y)", dtype, x, y)
    with np.errstate(all="ignore"):
        assert np.array_equal(got, np.power(x, y))


@pytest.mark.parametrize(("dtype", "end"), [("int32", "i32"), ("int64", "i64")])
def test_integer_power_with_negative_exponent(dtype: str, end: str) -> None:
    x = np.array([2, 1, 1, -1, -1, 0, -3], dtype)
    y = np.array([-1, -1, -2, -1, -2, -1, -1], dtype)
    got = one_expression(f"ln_pow_{end}(x, y)", dtype, x, y)
    assert got.tolist() == [0, 1, 1, -1, 1, 0, 0]


SPECIAL = [0.0, -0.0, 1, -1, 2.5, -2.5, 0.5, 1.5, 1e30, -1e30, np.inf, -np.inf, np.nan, 1e-40]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float_operations_are_numpys(dtype: str) -> None:
    rng = np.random.default_rng(2)
    grid = np.array(SPECIAL, dtype)
    x, y = (a.ravel() for a in np.meshgrid(grid, grid))
    x = np.concatenate([x, rng.uniform(-9, 9, 5000).astype(dtype)])
    y = np.concatenate([y, rng.uniform(-3, 3, 5000).astype(dtype)])
    cases: dict[str, Callable[[Array, Array], Array]] = {
        "max": np.maximum,
        "min": np.minimum,
        "mod": np.mod,
    }
    alone: dict[str, Callable[[Array], Array]] = {
        "abs": np.abs,
        "relu": lambda x: np.maximum(x, 0),
        "floor": np.floor,
        "ceil": np.ceil,
        "trunc": np.trunc,
        "round": np.round,
    }
    with np.errstate(all="ignore"):
        for name, operation in cases.items():
            got = one_expression(f"{suffix(name, dtype)}(x, y)", dtype, x, y)
            assert np.array_equal(got, operation(x, y), equal_nan=True), name
        for name, function in alone.items():
            got = one_expression(f"{suffix(name, dtype)}(x)", dtype, x)
            assert np.array_equal(got, function(x), equal_nan=True), name
    got = one_expression(f"{suffix('isnan', dtype)}(x)", "int32", x)
    assert np.array_equal(got.astype(bool), np.isnan(x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_signs_of_zero(dtype: str) -> None:
    x = np.array([-0.0, 0.0, -0.3, 0.3, -4.0, 4.0], dtype)
    for name in ("floor", "ceil", "trunc", "round"):
        got = one_expression(f"{suffix(name, dtype)}(x)", dtype, x)
        assert np.array_equal(np.signbit(got), np.signbit(getattr(np, name)(x))), name
    y = np.array([2, -2, 2, -2, -2, -2], dtype)
    got = one_expression(f"{suffix('mod', dtype)}(x, y)", dtype, x, y)
    assert np.array_equal(np.signbit(got), np.signbit(np.mod(x, y)))


def test_casts_to_integers() -> None:
    values = [0.0, 1.9, -1.9, 2147483520.0, 2147483648.0, -2147483648.0, -2147483904.0]
    x = np.array([*values, 9.3e18, -9.3e18, np.inf, -np.inf, np.nan, 1e30], np.float32)
    low = {"int32": -(2**31), "int64": -(2**63)}
    for name in ("float32", "float64"):
        for dtype in ("int32", "int64"):
            wide = x.astype(name)
            expression = f"ln_f{name[5:]}_to_i{dtype[3:]}(x)"
            inside = (wide >= low[dtype]) & (wide < -low[dtype])
            want = np.where(inside, wide, 0).astype(dtype)
            want[~inside] = low[dtype]
            assert np.array_equal(one_expression(expression, dtype, wide), want), expression
    edge = np.array([-2147483648.9, 2147483647.9, -2147483649.0])
    got = one_expression("ln_f64_to_i32(x)", "int32", edge)
    assert got.tolist() == [-(2**31), 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("at", [None, 0, 500, 1000])
def test_simd_reductions_carry_nan(dtype: str, name: str, at: int | None) -> None:
    function, c_type = suffix(name, dtype), C_TYPES[dtype]
    start = {"max": "-", "min": ""}[name] + "__builtin_inf()"
    source = (
        f'#include "loopnest_math.h"\nvoid f({c_type} *out, const {c_type} *x, long n) {{\n'
        f"  {c_type} m = {start};\n#pragma omp simd reduction({function} : m)\n"
        f"  for (long i = 0; i < n; i++) m = {function}(m, x[i]);\n  out[0] = m;\n}}\n"
    )
    x = np.random.default_rng(5).normal(size=1001).astype(dtype)
    if at is not None:
        x[at] = np.nan
    for openmp in (True, False):
        got = call(compile_c(source, openmp=openmp), "f", dtype, x)[0]
        assert np.array_equal(got, getattr(np, name)(x), equal_nan=True)
