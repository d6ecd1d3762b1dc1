"""Device functions that convert floats of 8 bits, and the types that hold their bits.

From sm_89 on the processor converts them; before that it is done by bits, as in `loopnest_math.h`.
The processor's own conversion saturates: what is too large is put right here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType


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
