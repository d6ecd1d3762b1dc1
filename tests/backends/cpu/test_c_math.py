"""The functions of the C kernels' header: accuracy, special values, the code that comes out."""

from __future__ import annotations

import ctypes
import platform
import re
import shlex
import subprocess
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from helpers.c_functions import Array, all_exponents, call, loop, one_expression, suffix
from loopnest.backends.clike.float_functions import C
from loopnest.backends.cpu import c_compiler
from loopnest.backends.cpu.c_compiler import Library, compile_c, find_compiler
from loopnest.numerics.target_accuracy import FAST
from loopnest.numerics.target_accuracy import C as IN_C
from loopnest.scalar.op_table import OPS

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")

F32, F64 = np.float32, np.float64


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


def allowed(name: str, dtype: str) -> float:
    """Return what error bounds of target "c" count for a function, in ulps."""
    return IN_C[name][dtype == "float64"].ulps if name in IN_C else 0.5


@cache
def unary(dtype: str, fma: bool, optimize: int, fast_math: bool = False) -> Library:
    source = '#include "loopnest_math.h"\n#include <math.h>\n'
    for name in EXACT:
        source += loop(f"got_{name}", dtype, [dtype], f"{suffix(name, dtype)}(x)")
    text = ("" if fma else NO_FMA) + source
    return compile_c(text, optimize=optimize, openmp=False, fast_math=fast_math)


@cache
def exact() -> Library:
    source = '#include <math.h>\n#include <stdint.h>\n#include "loopnest_math.h"\n'
    for dtype in ("float32", "float64"):
        for name, expression in EXACT.items():
            source += loop(f"{name}_{dtype}", "longdouble", [dtype], expression)
        source += loop(f"pow_{dtype}", "longdouble", [dtype, dtype], "powl(x, y)")
    return compile_c(source, openmp=False)


@cache
def has_fma() -> bool:
    """Tell whether the compiler's processor rounds a product and a sum at once."""
    source = '#include "loopnest_math.h"\nint has(void) {\n#if defined(__FMA__) || '
    source += "defined(__ARM_FEATURE_FMA)\nreturn 1;\n#else\nreturn 0;\n#endif\n}\n"
    return bool(compile_c(source, openmp=False).function("has", restype=ctypes.c_int)())


def test_every_function_of_floats_is_measured() -> None:
    functions = {name for name in C if OPS[name].result == "float"}
    assert set(EXACT) == functions


# Samples


INTERVALS = [(-110, 110), (-20, 20), (-5, 5), (-1.5, 1.5), (0.4, 1.6), (-0.02, 0.02), (-800, 800)]


@cache
def samples(dtype: str) -> Array:
    dense = [np.linspace(low, high, 30_001).astype(dtype) for low, high in INTERVALS]
    powers = np.ldexp(np.array(1, dtype), np.arange(-40, 41))
    near = [np.nextafter(powers, np.array(t, dtype)) for t in (-np.inf, np.inf)]
    seams = [9.02, 3.95, 0.55, 0.93, 1.25]
    special = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, *seams], dtype)
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


def check(got: Array, want: Array, *arguments: Array, most: float) -> None:
    error = ulps(got, want)
    worst = int(np.argmax(error))
    at = ", ".join(float(a[worst]).hex() for a in arguments)
    assert error[worst] <= most, f"{error[worst]:.2f} ulp at {at}: {got[worst]!r}"


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
    faithful = name in HOT and fma and has_fma()
    most = 1.0 if faithful else allowed(name, dtype)
    check(got, call(exact(), f"{name}_{dtype}", "longdouble", x), x, most=most)


@pytest.mark.parametrize(("name", "most"), [("erf", FAST["erf"].ulps), ("tanh", 6)])
@pytest.mark.parametrize("fma", [True, False])
def test_accuracy_with_fast_math(fma: bool, name: str, most: float) -> None:
    x = samples("float32")
    got = call(unary("float32", fma, 3, True), f"got_{name}", "float32", x)
    exactly = call(unary("float32", fma, 3), f"got_{name}", "float32", x)
    assert (got != exactly).any()  # it is another function
    check(got, call(exact(), f"{name}_float32", "longdouble", x), x, most=most)
    assert np.abs(got[~np.isnan(x)]).max() <= 1


@pytest.mark.skipif(not has_fma(), reason="the processor rounds a product and a sum apart")
def test_tanh_of_every_float_around_the_seam_of_its_two_forms() -> None:
    first, last = np.array([0.5, 2], F32).view(np.uint32)
    x = np.arange(first, last, dtype=np.uint32).view(F32)
    got = call(unary("float32", True, 3), "got_tanh", "float32", x)
    check(got, np.tanh(x.astype(np.float64)).astype(np.longdouble), x, most=0.97)


@pytest.mark.parametrize("fma", [True, False])
def test_fast_tanh_and_erf_stay_in_range_up_to_their_last_float(fma: bool) -> None:
    first, last = np.array([3, 8.5], F32).view(np.uint32)
    x = np.arange(first, last, dtype=np.uint32).view(F32)
    for name in ("tanh", "erf"):
        for side in (x, -x):
            got = call(unary("float32", fma, 3, True), f"got_{name}", "float32", side)
            assert np.abs(got).max() <= 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values_are_numpys(dtype: str) -> None:
    x = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2e38, -2e38, 1e-45, -1e-45], dtype)
    for name in ("exp", "exp2", "tanh", "log", "log2", "log1p", "sin", "cos", "tan", "sqrt"):
        with np.errstate(all="ignore"):
            want = getattr(np, name)(x)
        got = call(unary(dtype, True, 3), f"got_{name}", dtype, x)
        check(got, want.astype(np.longdouble), x, most=4.0)  # NumPy's own error counts too


def test_sine_cosine_and_tangent_of_huge_arguments() -> None:
    # The float32 that lies closest to a multiple of pi/2, and the largest one.
    x = np.array([16367173.0 * 2.0**72, 3.4028234663852886e38, 1e30, -1e22, 2.0**30], F32)
    for name in ("sin", "cos", "tan"):
        got = call(unary("float32", True, 3), f"got_{name}", "float32", x)
        most = allowed(name, "float32")
        check(got, call(exact(), f"{name}_float32", "longdouble", x), x, most=most)


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
    most = allowed("pow", dtype)
    check(got, call(exact(), f"pow_{dtype}", "longdouble", x, y), x, y, most=most)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_power_of_special_values_is_numpys(dtype: str) -> None:
    whole = [0.0, 1, 2, 3, 2.0**23 - 1, 2.0**24, 2.0**31]
    values = [*whole, 0.5, 1.5, 2.5, 8388606.5, 1e-40, 1e-10, 1e30, np.inf]
    grid = np.array([s * v for v in values for s in (1, -1)] + [np.nan], dtype)
    x, y = (a.ravel() for a in np.meshgrid(grid, grid))
    with np.errstate(all="ignore"):
        want = np.power(x, y)
    got = one_expression(f"{suffix('pow', dtype)}(x, y)", dtype, x, y)
    check(got, want.astype("g"), x, y, most=4.5)


# The code that comes out


def run(*arguments: str) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="reads the assembly of x86-64"
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hot_functions_become_simd_code(dtype: str, tmp_path: Path) -> None:
    source = [loop(f"got_{name}", dtype, [dtype], f"{suffix(name, dtype)}(x)") for name in HOT]
    assembly = avx2_code("".join(source), tmp_path)
    end = "ps" if dtype == "float32" else "pd"
    for name in HOT:
        body = assembly.partition(f"\ngot_{name}:")[2].partition(".cfi_endproc")[0]
        assert re.search(rf"\bv(mul|fmadd\d+){end}\b.*%[yz]mm", body), name
        assert not re.search(r"\bcall", body), name


def avx2_code(source: str, folder: Path, *more: str) -> str:
    """Return the assembly of C for a processor with AVX2 and FMA."""
    compiler = find_compiler()
    assert compiler is not None
    simd = c_compiler._features(compiler).simd
    flags = [*c_compiler._FLAGS, "-O3", "-march=haswell", *simd, *more]
    (folder / "k.c").write_text(f'#include "loopnest_math.h"\n{source}')
    (folder / c_compiler.HEADER).write_text(c_compiler._header())
    run(*compiler.command, *flags, "-S", str(folder / "k.c"), "-o", str(folder / "k.s"))
    return (folder / "k.s").read_text(errors="replace")


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="reads the assembly of x86-64"
)
@pytest.mark.parametrize("value", ["ln_tanhf(u)", "ln_erff(u)", "ln_expf(u)", "ln_exp2f(u)"])
def test_a_clamp_takes_no_selections(value: str, tmp_path: Path) -> None:
    """A function in the middle of an expression, where gcc would go on apart for each constant."""
    gelu = f"float u = x * (x * x * 0.044715f + 1.0f); out[i] = x * ({value} + 1.0f)"
    source = loop("f", "float32", ["float32"], "0").replace("out[i] = 0", gelu)
    assembly = avx2_code(source, tmp_path, *c_compiler._FAST_MATH)
    assert re.search(r"\bvfmadd\d+ps\b.*%ymm", assembly)
    assert not re.search(r"\bv(blend|cmp)\w*ps\b", assembly)


def test_smaller_and_larger_of_a_constant() -> None:
    """As the comparison of floats says; a NaN of either sign passes with its bits."""
    x = np.concatenate([samples("float32"), np.array(NANS, np.uint32).view(F32)])
    for most in (1.0, 7.5, 1e-45, 3e38):
        for function, end, keep in (
            ("ln_smallerf", most, x <= most),
            ("ln_largerf", -most, x >= -most),
        ):
            got = one_expression(f"{function}((float){end!r}, x)", "float32", x)
            want = np.where(keep | np.isnan(x), x, F32(end))
            np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32), str(end))


NANS = (0x7F800001, 0x7FFFFFFF, 0x7FC00000, 0xFF800001, 0xFFFFFFFF, 0xFFC00000)


def test_header_has_no_warnings(tmp_path: Path) -> None:
    compiler = find_compiler()
    assert compiler is not None
    (tmp_path / "k.c").write_text('#include "loopnest_math.h"\nint main(void) { return 0; }\n')
    (tmp_path / c_compiler.HEADER).write_text(c_compiler._header())
    strict = shlex.split("-std=gnu11 -O2 -Wall -Wextra -Werror -fsyntax-only")
    run(*compiler.command, *strict, str(tmp_path / "k.c"))


def test_header_is_packaged() -> None:
    assert resources.files("loopnest.backends.cpu").joinpath(c_compiler.HEADER).is_file()
