"""The functions of the C kernels' header against long double and NumPy."""

from __future__ import annotations

import ctypes
import platform
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from loopnest.backends.clike.float_functions import C
from loopnest.backends.cpu import c_compiler
from loopnest.backends.cpu.c_compiler import Library, compile_c, find_compiler
from loopnest.scalar.op_table import OPS

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")

ULP = 4.0
F32, F64 = np.float32, np.float64
Array = np.ndarray[Any, Any]

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint16": "uint16_t",
    "longdouble": "long double",
}

SIGMOID = "x >= 0 ? 1 / (1 + expl(-(long double)x)) : expl(x) / (1 + expl(x))"
EXACT = {
    "exp": "expl(x)",
    "exp2": "exp2l(x)",
    "sigmoid": SIGMOID,
    "tanh": "tanhl(x)",
    "erf": "erfl(x)",
    "log": "logl(x)",
    "log2": "log2l(x)",
    "log1p": "log1pl(x)",
    "sin": "sinl(x)",
    "cos": "cosl(x)",
    "tan": "tanl(x)",
    "sqrt": "sqrtl(x)",
    "rsqrt": "1 / sqrtl(x)",
}
HOT = ("exp", "exp2", "sigmoid", "tanh", "erf", "log", "log2", "log1p")

# Plain x86-64 has no FMA: two roundings for each step of a polynomial, also in what is left.
NO_FMA = """\
#undef __FMA__
#undef __ARM_FEATURE_FMA
#pragma STDC FP_CONTRACT OFF
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=off")
#endif
"""


def loop(name: str, result: str, arguments: Sequence[str], expression: str) -> str:
    """Write a C function `name` that evaluates `expression` of x (and y) for each element."""
    pointers = "".join(
        f", const {C_TYPES[a]} *restrict p{v}" for a, v in zip(arguments, "xy", strict=False)
    )
    values = " ".join(f"{C_TYPES[a]} {v} = p{v}[i];" for a, v in zip(arguments, "xy", strict=False))
    return (
        f"void {name}({C_TYPES[result]} *restrict out{pointers}, long n) {{\n"
        f"  for (long i = 0; i < n; i++) {{ {values} out[i] = {expression}; }}\n}}\n"
    )


def call(library: Library, name: str, result: str, *arguments: Array) -> Array:
    out = np.empty(len(arguments[0]), np.dtype(result))
    arrays = [np.ascontiguousarray(a) for a in arguments]
    types = [ctypes.c_void_p] * (len(arrays) + 1)
    function = library.function(name, [*types, ctypes.c_long])
    function(out.ctypes.data, *[a.ctypes.data for a in arrays], out.size)
    return out


def suffix(name: str, dtype: str) -> str:
    return f"ln_{name}f" if dtype == "float32" else f"ln_{name}"


@cache
def unary(dtype: str, fma: bool, optimize: int) -> Library:
    source = '#include "loopnest_math.h"\n#include <math.h>\n'
    for name in EXACT:
        source += loop(f"got_{name}", dtype, [dtype], f"{suffix(name, dtype)}(x)")
    return compile_c(("" if fma else NO_FMA) + source, optimize=optimize, openmp=False)


@cache
def exact() -> Library:
    source = '#include <math.h>\n#include <stdint.h>\n#include "loopnest_math.h"\n'
    for dtype in ("float32", "float64"):
        for name, expression in EXACT.items():
            source += loop(f"{name}_{dtype}", "longdouble", [dtype], expression)
        source += loop(f"pow_{dtype}", "longdouble", [dtype, dtype], "powl(x, y)")
    return compile_c(source, openmp=False)


def one_expression(expression: str, result: str, *arguments: Array) -> Array:
    source = '#include "loopnest_math.h"\n' + loop(
        "f", result, [a.dtype.name for a in arguments], expression
    )
    return call(compile_c(source, openmp=False), "f", result, *arguments)


def test_every_function_of_floats_is_measured() -> None:
    functions = {name for name in C if OPS[name].result == "float"}
    assert set(EXACT) == functions


# Samples


def all_exponents(dtype: str, mantissas: int, seed: int = 0) -> Array:
    """Return values of either sign in every binade, subnormal numbers, inf and NaN among them."""
    rng = np.random.default_rng(seed)
    bits, width, word = (23, 8, np.uint32) if dtype == "float32" else (52, 11, np.uint64)
    parts: Array = rng.integers(0, 1 << bits, (mantissas, 1), word)
    parts[:3, 0] = 0, 1, (1 << bits) - 1
    upper: Array = (np.arange(2 << width) << bits).astype(word)
    result: Array = (parts | upper).ravel().view(dtype)
    return result


INTERVALS = [(-110, 110), (-20, 20), (-5, 5), (-1.5, 1.5), (0.4, 1.6), (-0.02, 0.02), (-800, 800)]


@cache
def samples(dtype: str) -> Array:
    dense = [np.linspace(low, high, 30_001).astype(dtype) for low, high in INTERVALS]
    powers = np.ldexp(np.array(1, dtype), np.arange(-40, 41))
    near = [np.nextafter(powers, np.array(t, dtype)) for t in (-np.inf, np.inf)]
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 9.02, 3.95, 0.55, 1.25], dtype)
    sizes = {"float32": 200, "float64": 40}
    return np.concatenate([all_exponents(dtype, sizes[dtype]), *dense, powers, *near, special])


def ulps(got: Array, want: Array) -> Array:
    """Return the errors in units of the last place of the exact result; inf where kinds differ."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        top = np.finfo(got.dtype).max
        unit = np.spacing(np.minimum(np.abs(rounded), top)).astype(np.longdouble)
        # An infinite result counts as the next power of two, where an overflow would begin.
        limit = np.longdouble(2) ** np.finfo(got.dtype).maxexp
        finite = np.where(np.isinf(got), np.copysign(limit, got), got.astype(np.longdouble))
        error = np.abs(finite - want) / unit
    error = np.where(np.isinf(rounded) & (got == rounded), 0, error)
    wrong_sign = (got == 0) & (rounded == 0) & (np.signbit(got) != np.signbit(rounded))
    error = np.where(wrong_sign | (np.isnan(got) != np.isnan(rounded)), np.inf, error)
    result: Array = np.where(np.isnan(got) & np.isnan(rounded), 0, error).astype(np.float64)
    return result


def check(got: Array, want: Array, *arguments: Array) -> None:
    error = ulps(got, want)
    worst = int(np.argmax(error))
    at = ", ".join(float(a[worst]).hex() for a in arguments)
    assert error[worst] <= ULP, f"{error[worst]:.2f} ulp at {at}: {got[worst]!r}"


# Accuracy


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(
    ("fma", "optimize"),
    [
        pytest.param(True, 3, id="vectorized"),
        pytest.param(False, 3, id="without FMA"),
        pytest.param(True, 1, id="scalar"),
    ],
)
def test_accuracy(name: str, dtype: str, fma: bool, optimize: int) -> None:
    x = samples(dtype)
    got = call(unary(dtype, fma, optimize), f"got_{name}", dtype, x)
    check(got, call(exact(), f"{name}_{dtype}", "longdouble", x), x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values_are_numpys(dtype: str) -> None:
    x = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2e38, -2e38, 1e-45, -1e-45], dtype)
    for name in ("exp", "exp2", "tanh", "log", "log2", "log1p", "sin", "cos", "tan", "sqrt"):
        with np.errstate(all="ignore"):
            want = getattr(np, name)(x)
        got = call(unary(dtype, True, 3), f"got_{name}", dtype, x)
        check(got, want.astype(np.longdouble), x)


def test_sine_cosine_and_tangent_of_huge_arguments() -> None:
    # The float32 that lies closest to a multiple of pi/2, and the largest one.
    x = np.array([16367173.0 * 2.0**72, 3.4028234663852886e38, 1e30, -1e22, 2.0**30], F32)
    for name in ("sin", "cos", "tan"):
        got = call(unary("float32", True, 3), f"got_{name}", "float32", x)
        check(got, call(exact(), f"{name}_float32", "longdouble", x), x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tanh_erf_and_sigmoid_stay_in_range(dtype: str) -> None:
    x = samples(dtype)
    x = x[~np.isnan(x)]
    for name, low in (("tanh", -1), ("erf", -1), ("sigmoid", 0)):
        got = call(unary(dtype, True, 3), f"got_{name}", dtype, x)
        assert low <= got.min()
        assert got.max() <= 1


def power_samples(dtype: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(3)
    n = 60_000
    binades = all_exponents(dtype, 60)
    binades = binades[np.isfinite(binades)]
    wild = rng.choice(binades, (2, n))
    base = np.abs(rng.choice(binades[binades != 0], n)).astype(np.float64)
    edge = rng.uniform(-1100, 1100, n) / np.where(base == 1, 1, np.log2(base))
    pairs = [
        (wild[0], wild[1]),
        (rng.uniform(-10, 10, n), rng.integers(-40, 40, n)),
        (1 + rng.uniform(-1e-3, 1e-3, n), rng.uniform(-1e5, 1e5, n)),
        (rng.uniform(0, 10, n), rng.uniform(-40, 40, n)),
        (base, edge if dtype == "float64" else edge * 0.13),  # results of every exponent
    ]
    x, y = (np.concatenate([np.asarray(p[k], dtype) for p in pairs]) for k in (0, 1))
    return x, y


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fma", [True, False])
def test_power_accuracy(dtype: str, fma: bool) -> None:
    x, y = power_samples(dtype)
    source = '#include "loopnest_math.h"\n' + loop(
        "f", dtype, [dtype, dtype], f"{suffix('pow', dtype)}(x, y)"
    )
    got = call(compile_c(("" if fma else NO_FMA) + source, openmp=False), "f", dtype, x, y)
    check(got, call(exact(), f"pow_{dtype}", "longdouble", x, y), x, y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_power_of_special_values_is_numpys(dtype: str) -> None:
    whole = [0.0, 1, 2, 3, 2.0**23 - 1, 2.0**24, 2.0**31]
    values = [*whole, 0.5, 1.5, 2.5, 8388606.5, 1e-40, 1e-10, 1e30, np.inf]
    grid = np.array([s * v for v in values for s in (1, -1)] + [np.nan], dtype)
    x, y = (a.ravel() for a in np.meshgrid(grid, grid))
    with np.errstate(all="ignore"):
        want = np.power(x, y)
    check(one_expression(f"{suffix('pow', dtype)}(x, y)", dtype, x, y), want.astype("g"), x, y)


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
    want = bits.view(np.float16).astype(F32)
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got[~nan].view(np.uint32), want[~nan].view(np.uint32))


def test_float32_to_float16_rounds_to_even() -> None:
    x = np.concatenate([all_exponents("float32", 400), between_halves().astype(F32)])
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
    want = bits.view(ml_dtypes.bfloat16).astype(F32)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(want))


def test_float32_to_bfloat16_rounds_to_even_and_keeps_nan() -> None:
    middle = (np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8000).view(F32)
    bits = middle.view(np.uint32)
    around = np.concatenate([bits - 1, bits + 1]).view(F32)
    nans = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(F32)
    x = np.concatenate([all_exponents("float32", 400), middle, around, nans])
    with np.errstate(all="ignore"):
        want = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    got = one_expression("ln_f32_to_bf16(x)", "uint16", x)
    assert np.array_equal(np.isnan(got.view(ml_dtypes.bfloat16)), np.isnan(x))
    same_bits(got, want, np.isnan(x))


def test_float64_to_bfloat16_rounds_once() -> None:
    upper = np.arange(0x0080, 0x7F7F, dtype=np.uint32)
    middle = (upper << 16 | 0x8000).view(F32).astype(np.float64)
    x = np.concatenate([middle, middle * (1 + 2.0**-50), middle * (1 - 2.0**-50)])
    # The exact rounding on float64's own bits: 45 of 52 mantissa bits go.
    cut = np.uint64(45)
    bits = x.view(np.uint64)
    bits = bits + np.uint64((1 << 44) - 1) + (bits >> cut & np.uint64(1))
    bits = bits >> cut << cut
    with np.errstate(all="ignore"):
        want = bits.view(np.float64).astype(F32).view(np.uint32) >> 16
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


# The code that comes out


def run(*arguments: str) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="reads the assembly of x86-64"
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hot_functions_become_simd_code(dtype: str, tmp_path: Path) -> None:
    compiler = find_compiler()
    assert compiler is not None
    simd = c_compiler._features(compiler).simd
    flags = [*c_compiler._FLAGS, "-O3", "-march=haswell", *simd]  # with AVX2 and FMA
    source = '#include "loopnest_math.h"\n'
    for name in HOT:
        source += loop(f"got_{name}", dtype, [dtype], f"{suffix(name, dtype)}(x)")
    (tmp_path / "k.c").write_text(source)
    (tmp_path / c_compiler.HEADER).write_text(c_compiler._header())
    run(*compiler.command, *flags, "-S", str(tmp_path / "k.c"), "-o", str(tmp_path / "k.s"))
    assembly = (tmp_path / "k.s").read_text(errors="replace")
    end = "ps" if dtype == "float32" else "pd"
    for name in HOT:
        body = assembly.partition(f"\ngot_{name}:")[2].partition(".cfi_endproc")[0]
        assert re.search(rf"\bv(mul|fmadd\d+){end}\b.*%[yz]mm", body), name
        assert not re.search(r"\bcall", body), name


def test_header_has_no_warnings(tmp_path: Path) -> None:
    compiler = find_compiler()
    assert compiler is not None
    (tmp_path / "k.c").write_text('#include "loopnest_math.h"\nint main(void) { return 0; }\n')
    (tmp_path / c_compiler.HEADER).write_text(c_compiler._header())
    strict = shlex.split("-std=gnu11 -O2 -Wall -Wextra -Werror -fsyntax-only")
    run(*compiler.command, *strict, str(tmp_path / "k.c"))


def test_header_is_packaged() -> None:
    assert resources.files("loopnest.backends.cpu").joinpath(c_compiler.HEADER).is_file()
