"""The dialect of expressions in CUDA text, and the device functions that it calls.

Device functions are the precise ones; maximum and minimum propagate NaN, and integers divide
towards minus infinity. A function is printed only where it is called.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache

from loopnest.backends.clike.dialect import Dialect, common_functions, unsigned
from loopnest.backends.clike.float_functions import CUDA
from loopnest.backends.cuda.printing.cuda_dot_products import DOT_PRODUCTS
from loopnest.backends.cuda.printing.cuda_sync import FUNCTIONS
from loopnest.backends.cuda.printing.cuda_vectors import WIDE
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType


def device_functions(called: Collection[str]) -> Iterator[str]:
    """Yield the definitions of those of our own functions that are called, in a fixed order."""
    wanted = with_needed({name.partition("<")[0] for name in called})
    if "ln_wide" in wanted:
        yield WIDE
    for name, (before, definition) in (
        *_HELPERS.items(),
        *FUNCTIONS.items(),
        *DOT_PRODUCTS.items(),
    ):
        if name in wanted:
            yield f"{before}static __device__ __forceinline__ {definition}"


def _extremum(name: str, sign: str) -> str:
    """Return a float32 maximum or minimum that propagates NaN: one instruction from sm_80 on."""
    return f"""float ln_{name}f(float a, float b) {{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float r;
  asm("{name}.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return a {sign} b || a != a ? a : b;
#endif
}}"""


# Device functions that convert floats of 8 bits, and the types that hold their bits.
#
# From sm_89 on the processor converts them; before that it is done by bits, as in
# `loopnest_math.h`. The processor's own conversion saturates: what is too large is put right here.


def float8_types(used: Collection[DType], called: Collection[str]) -> Iterator[str]:
    """Yield the types of the 8-bit floats that a text needs."""
    for dtype in (dtypes.float8_e4m3fn, dtypes.float8_e5m2):
        ending = dtype.name.removeprefix("float8_")
        if dtype in used or any(ending in name for name in called):
            yield f"typedef unsigned char {dtype.name}_t;  // the bits"


def with_needed(called: Collection[str]) -> set[str]:
    """Return functions, with those of this module that they call."""
    result = set(called)
    for name in ("e4m3fn", "e5m2"):
        if f"ln_f64_to_f8_{name}" in called:
            result |= {"ln_f64_to_f32_odd", f"ln_f32_to_f8_{name}"}
    return result


_BY_PROCESSOR = "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890"


def _widening(name: str, ptx: str, by_bits: str) -> str:
    return f"""float ln_f8_{name}_to_f32(float8_{name}_t b) {{
{_BY_PROCESSOR}
  unsigned int halves;
  float x;
  asm("cvt.rn.f16x2.{ptx} %0, %1;" : "=r"(halves) : "h"((unsigned short)b));
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)halves));
  return x;
#else
{by_bits}
#endif
}}"""


def _narrowing(name: str, ptx: str, by_bits: str, beyond: str) -> str:
    return f"""float8_{name}_t ln_f32_to_f8_{name}(float x) {{
  const unsigned int u = __float_as_uint(x), magnitude = u & 0x7fffffffu;
  unsigned int b;
{_BY_PROCESSOR}
  unsigned short pair;
  asm("cvt.rn.satfinite.{ptx}.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  b = pair & 0x7fu;
#else
{by_bits}
#endif
{beyond}
  return (float8_{name}_t)(b | (u >> 24 & 0x80u));
}}"""


# The methods, and why the numbers are what they are: `loopnest_math.h`.
FLOAT8: Mapping[str, tuple[str, str]] = {
    "ln_f8_e4m3fn_to_f32": (
        "",
        _widening(
            "e4m3fn",
            "e4m3x2",
            """\
  const unsigned int exponent = (b >> 3) & 15u, mantissa = b & 7u;
  const float normal = __uint_as_float((exponent + 120u) << 23 | mantissa << 20);
  const float magnitude = exponent == 0 ? (float)mantissa * 0x1p-9f : normal;
  const unsigned int u = (b & 0x7f) == 0x7f ? 0x7fc00000u : __float_as_uint(magnitude);
  return __uint_as_float(u | (unsigned int)(b & 0x80) << 24);""",
        ),
    ),
    "ln_f32_to_f8_e4m3fn": (
        "",
        _narrowing(
            "e4m3fn",
            "e4m3x2",
            """\
  const unsigned int rebased = magnitude - (120u << 23);
  const unsigned int normal = (rebased + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  const unsigned int tiny = __float_as_uint(__uint_as_float(magnitude) + 0x1p14f) - 0x46800000u;
  b = magnitude < 0x3c800000u ? tiny : normal;""",
            "  b = magnitude > 0x43e80000u ? 0x7fu : b;  // from above 464 on there is only NaN",
        ),
    ),
    "ln_f8_e5m2_to_f32": (
        "",
        _widening(
            "e5m2",
            "e5m2x2",
            """\
  const unsigned int exponent = (b >> 2) & 31u, mantissa = b & 3u;
  const unsigned int normal = (exponent + (exponent == 31 ? 224u : 112u)) << 23 | mantissa << 21;
  const unsigned int tiny = __float_as_uint((float)mantissa * 0x1p-16f);
  return __uint_as_float((exponent == 0 ? tiny : normal) | (unsigned int)(b & 0x80) << 24);""",
        ),
    ),
    "ln_f32_to_f8_e5m2": (
        "",
        _narrowing(
            "e5m2",
            "e5m2x2",
            """\
  const unsigned int rebased = magnitude - (112u << 23);
  const unsigned int normal = (rebased + 0xfffffu + ((magnitude >> 21) & 1u)) >> 21;
  const unsigned int tiny = __float_as_uint(__uint_as_float(magnitude) + 0x1p7f) - 0x43000000u;
  b = magnitude < 0x38800000u ? tiny : normal;""",
            """\
  b = magnitude >= 0x47700000u ? 0x7cu : b;  // infinity
  b = magnitude > 0x7f800000u ? 0x7eu : b;""",
        ),
    ),
    # Round to odd: another rounding then gives what one rounding from float64 would.
    "ln_f64_to_f32_odd": (
        "",
        """float ln_f64_to_f32_odd(double x) {
  const float near = (float)x;
  const double back = (double)near;
  const unsigned int u = __float_as_uint(near);
  if (back == x || x != x) return near;
  return __uint_as_float((u - (fabs(back) > fabs(x) ? 1u : 0u)) | 1u);
}""",
    ),
    **{
        f"ln_f64_to_f8_{name}": (
            "",
            f"float8_{name}_t ln_f64_to_f8_{name}(double x) "
            f"{{ return ln_f32_to_f8_{name}(ln_f64_to_f32_odd(x)); }}",
        )
        for name in ("e4m3fn", "e5m2")
    },
}


# Helpers by name: what stands before and after "static __device__ __forceinline__".
_T = "template <class T>\n"
_TU = "template <class T, class U>\n"
_HELPERS: Mapping[str, tuple[str, str]] = {
    # An index of the launch or a size: as its sign is known, a division by 2^n is one shift.
    "ln_index": ("", "idx_t ln_index(idx_t i) { __builtin_assume(i >= 0); return i; }"),
    # The IEEE quotient of operands that are whole numbers, b >= 1: the steps of the compiler's own
    # division, without its test for operands and results near the ends of the range.
    "ln_quotient": (
        "",
        """float ln_quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
#else
  float r = 1.0f / b;
#endif
  r = fmaf(r, fmaf(-b, r, 1.0f), r);
  if (a == 1.0f) return r;
  float q = a * r;
  q = fmaf(r, fmaf(-b, q, a), q);
  return fmaf(r, fmaf(-b, q, a), q);
}""",
    ),
    "ln_min": (_T, "T ln_min(T a, T b) { return a < b ? a : b; }"),
    "ln_max": (_T, "T ln_max(T a, T b) { return a > b ? a : b; }"),
    "ln_abs": (_T, "T ln_abs(T a) { return a < 0 ? (T)(0ULL - (unsigned long long)a) : a; }"),
    "ln_index_div": (_T, "T ln_index_div(T a, T b) { return a / b - (a % b < 0); }"),
    "ln_index_mod": (_T, "T ln_index_mod(T a, T b) { return a % b + (a % b < 0 ? b : 0); }"),
    # As NumPy: anything by zero is 0, and the least integer by -1 wraps.
    "ln_floordiv": (
        _T,
        """T ln_floordiv(T a, T b) {
  if (b == 0) return 0;
  if (b == -1) return (T)(0ULL - (unsigned long long)a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}""",
    ),
    "ln_mod": (
        _T,
        """T ln_mod(T a, T b) {
  if (b == 0 || b == -1) return 0;
  const T r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}""",
    ),
    "ln_pow": (
        _T,
        """T ln_pow(T a, T n) {
  if (n < 0) return a == 1 ? 1 : a == -1 ? (n & 1 ? -1 : 1) : 0;
  unsigned long long r = 1, x = (unsigned long long)a;
  for (; n != 0; n >>= 1, x *= x) r *= n & 1 ? x : 1;
  return (T)r;
}""",
    ),
    "ln_udiv": (_T, "T ln_udiv(T a, T b) { return b == 0 ? (T)0 : (T)(a / b); }"),
    "ln_umod": (_T, "T ln_umod(T a, T b) { return b == 0 ? (T)0 : (T)(a % b); }"),
    "ln_upow": (
        _T,
        """T ln_upow(T a, T n) {
  unsigned int r = 1, x = a;
  for (; n != 0; n >>= 1, x *= x) r *= n & 1 ? x : 1;
  return (T)r;
}""",
    ),
    # Counts outside of the width, seen as U, the unsigned type of that width, give 0 or the sign.
    "ln_shl": (
        _TU,
        """T ln_shl(T a, T n) {
  return (U)n < 8 * sizeof(T) ? (T)((U)a << (U)n) : (T)0;
}""",
    ),
    "ln_shr": (
        _TU,
        """T ln_shr(T a, T n) {
  return (T)(a >> ((U)n < 8 * sizeof(T) ? (int)n : (int)(8 * sizeof(T) - 1)));
}""",
    ),
    "ln_ushr": (
        _T,
        """T ln_ushr(T a, T n) {
  return n < 8 * sizeof(T) ? (T)(a >> n) : (T)0;
}""",
    ),
    # A word of the block high * 2^64 + low + block: Philox 4x32 in ten rounds.
    "ln_philox": (
        "",
        """unsigned int ln_philox(
    long long key, long long low, long long high, long long block, long long word) {
  const unsigned long long start = (unsigned long long)low + (unsigned long long)block;
  const unsigned long long top = (unsigned long long)high + (start < (unsigned long long)low);
  unsigned int c0 = (unsigned int)start, c1 = (unsigned int)(start >> 32);
  unsigned int c2 = (unsigned int)top, c3 = (unsigned int)(top >> 32);
  unsigned int k0 = (unsigned int)key, k1 = (unsigned int)((unsigned long long)key >> 32);
  #pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long even = (unsigned long long)c0 * 0xd2511f53u;
    const unsigned long long odd = (unsigned long long)c2 * 0xcd9e8d57u;
    c0 = (unsigned int)(odd >> 32) ^ c1 ^ k0;
    c1 = (unsigned int)odd;
    c2 = (unsigned int)(even >> 32) ^ c3 ^ k1;
    c3 = (unsigned int)even;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return word & 2 ? (word & 1 ? c3 : c2) : (word & 1 ? c1 : c0);
}""",
    ),
    # More digits than float64 has are gathered in its last one: the rounding is the only one.
    "ln_i64_to_bf16": (
        "",
        """__nv_bfloat16 ln_i64_to_bf16(long long x) {
  const bool fits = x < (1LL << 53) && x > -(1LL << 53);
  const long long odd = (x & ~0x7ffLL) | (x & 0x7ff ? 0x400 : 0);
  return __double2bfloat16((double)(fits ? x : odd));
}""",
    ),
    **FLOAT8,
    "ln_maxf": ("", _extremum("max", ">")),
    "ln_minf": ("", _extremum("min", "<")),
    "ln_max_f64": ("", "double ln_max_f64(double a, double b) { return a > b || a != a ? a : b; }"),
    "ln_min_f64": ("", "double ln_min_f64(double a, double b) { return a < b || a != a ? a : b; }"),
    # Numbers of floats in their order: both zeros are 0, a NaN is the last.
    "ln_ordinal32": (
        "",
        """long long ln_ordinal32(float x) {
  const int bits = __float_as_int(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fffffff;
  return bits < 0 ? -0x80000000LL - bits : bits;
}""",
    ),
    "ln_ordinal64": (
        "",
        """long long ln_ordinal64(double x) {
  const long long bits = __double_as_longlong(x), most = 0x7fffffffffffffffLL;
  if ((bits & most) > 0x7ff0000000000000LL) return most;
  return bits < 0 ? -most - 1 - bits : bits;
}""",
    ),
    "ln_sigmoid": (_T, "T ln_sigmoid(T x) { return (T)1 / ((T)1 + exp(-x)); }"),
    # The remainder takes the divisor's sign, a zero too.
    "ln_mod_real": (
        _T,
        """T ln_mod_real(T a, T b) {
  const T r = fmod(a, b);
  if (r == 0) return copysign((T)0, b);
  return (b < 0) != (r < 0) ? r + b : r;
}""",
    ),
    "ln_floordiv_real": (
        _T,
        """T ln_floordiv_real(T a, T b) {
  if (b == 0) return a / b;
  T r = fmod(a, b);
  if (r != 0 && (b < 0) != (r < 0)) r += b;
  const T q = (a - r) / b, f = floor(q);
  return q == 0 ? copysign((T)0, a / b) : f + (q - f > (T)0.5 ? 1 : 0);
}""",
    ),
}


def _functions() -> dict[tuple[str, str], str]:
    functions = {
        **common_functions(CUDA),
        ("quotient", "float32"): "ln_quotient",
        ("floordiv", "index"): "ln_index_div<idx_t>",
        ("mod", "index"): "ln_index_mod<idx_t>",
    }
    for dtype, type_ in (*_INTEGERS.items(), ("index", "idx_t")):
        for op in ("min", "max", "abs", "floordiv", "mod", "pow"):
            functions.setdefault((op, dtype), f"ln_{op}<{type_}>")
    for dtype, type_ in _INTEGERS.items():
        unsigned = type_ if dtype.startswith("u") else f"unsigned {type_.removeprefix('signed ')}"
        functions["shl", dtype] = f"ln_shl<{type_}, {unsigned}>"
        functions["shr", dtype] = f"ln_shr<{type_}, {unsigned}>"
        if dtype.startswith("u"):
            functions["shr", dtype] = f"ln_ushr<{type_}>"
            functions["floordiv", dtype] = f"ln_udiv<{type_}>"
            functions |= {(op, dtype): f"ln_u{op}<{type_}>" for op in ("mod", "pow")}
    return functions


_INTEGERS = {
    "int8": "signed char", "uint8": "unsigned char", "int16": "short",
    "uint16": "unsigned short", "int32": "int", "uint32": "unsigned int", "int64": "long long",
}  # fmt: skip


@cache
def cuda_dialect() -> Dialect:
    """Return how expressions are written in CUDA C++."""
    types = {
        "bool": "bool", **_INTEGERS, "float16": "__half", "bfloat16": "__nv_bfloat16",
        "float8_e4m3fn": "float8_e4m3fn_t", "float8_e5m2": "float8_e5m2_t", "float32": "float",
        "float64": "double", "index": "idx_t",
    }  # fmt: skip
    special = {
        ("inf", "float32"): "__int_as_float(0x7f800000)",
        ("nan", "float32"): "__int_as_float(0x7fc00000)",
        ("inf", "float64"): "__longlong_as_double(0x7ff0000000000000LL)",
        ("nan", "float64"): "__longlong_as_double(0x7ff8000000000000LL)",
    }
    casts = {
        ("float16", "float32"): "__half2float",
        ("float32", "float16"): "__float2half_rn",
        ("float64", "float16"): "__double2half",
        ("bfloat16", "float32"): "__bfloat162float",
        ("float32", "bfloat16"): "__float2bfloat16_rn",
        ("float64", "bfloat16"): "__double2bfloat16",
        ("int64", "bfloat16"): "ln_i64_to_bf16",
    }
    for name in ("e4m3fn", "e5m2"):
        casts[f"float8_{name}", "float32"] = f"ln_f8_{name}_to_f32"
        casts["float32", f"float8_{name}"] = f"ln_f32_to_f8_{name}"
        casts["float64", f"float8_{name}"] = f"ln_f64_to_f8_{name}"
    return Dialect(
        types, unsigned("unsigned int", "unsigned long long"), special, _functions(), casts
    )
