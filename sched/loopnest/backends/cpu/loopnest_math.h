/* Scalar functions of loopnest's C kernels, written so that the C compiler can vectorize them.
 *
 * Libm calls stay scalar inside a vectorized loop. The functions below are branch-free instead:
 * a call inlines to straight-line arithmetic and selects, which GCC 12 and clang turn into SIMD
 * code in a `#pragma omp simd` loop or at -O3. Nothing needs -ffast-math; NaN, infinities,
 * signed zeros and subnormal numbers give what NumPy gives.
 *
 * Accuracy: exp, exp2, sigmoid, tanh, erf and the logarithms are within 1 ulp of the exact value
 * over their whole range with hardware FMA, and within 2 without; sine and cosine are within 3, the
 * tangent within 5 (numerics/target_accuracy.py, tests/backends/cpu/test_c_math.py).
 *
 * Polynomials: minimax fits by the Remez exchange in 160- to 220-bit arithmetic, coefficients
 * rounded to the working type. Range reductions are the classical ones: Cody and Waite, "Software
 * Manual for the Elementary Functions" (exp, log); Payne and Hanek, "Radian reduction for
 * trigonometric functions" (sine, cosine). log in float64 goes through f / (2 + f), as fdlibm does.
 *
 * Results are right under any flags that keep the order of floating-point sums. For speed it wants
 * -fno-math-errno and -fno-trapping-math, which let both sides of a select be computed.
 */
#ifndef LOOPNEST_MATH_H
#define LOOPNEST_MATH_H

#include <stdint.h>

/* Inlined by force, because a function that stays a call stops its loop from being vectorized.
 * LOOPNEST_COMPACT leaves the choice to the compiler: quick builds of many kernels at -O1. */
#if defined(LOOPNEST_COMPACT) || !defined(__OPTIMIZE__)
#define LN_FN static inline __attribute__((unused))
#else
#define LN_FN static inline __attribute__((unused, always_inline))
#endif

/* One rounding where the hardware has it; else two, never libm's slow emulation. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define LN_FMAF(a, b, c) __builtin_fmaf((a), (b), (c))
#define LN_FMA(a, b, c) __builtin_fma((a), (b), (c))
#else
#define LN_FMAF(a, b, c) ((a) * (b) + (c))
#define LN_FMA(a, b, c) ((a) * (b) + (c))
#endif

#define LN_INFF __builtin_inff()
#define LN_NANF __builtin_nanf("")
#define LN_INF __builtin_inf()
#define LN_NAN __builtin_nan("")

/* ---- bits ---- */

LN_FN uint32_t ln_bits_f32(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
}

LN_FN float ln_from_bits_f32(uint32_t u) {
  float x;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
}

LN_FN uint64_t ln_bits_f64(double x) {
  uint64_t u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
}

LN_FN double ln_from_bits_f64(uint64_t u) {
  double x;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
}

/* ---- float16 and bfloat16, by bits ----
 * GCC 12 does not vectorize _Float16, and has no bfloat16 arithmetic; both are uint16_t here. */

/* The exponent is rebased by a multiplication, which also normalises subnormal numbers.
 * Source: F. Giesen, "float->half variants" (public domain note), the method only. */
LN_FN float ln_f16_to_f32(uint16_t h) {
  uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
  float scaled = ln_from_bits_f32(magnitude) * 0x1p112f;
  uint32_t u = ln_bits_f32(scaled) | (magnitude >= 0x0f800000u ? 0x7f800000u : 0u);
  return ln_from_bits_f32(u | (uint32_t)(h & 0x8000) << 16);
}

/* Round to nearest, ties to even; a NaN stays a (quiet) NaN. */
LN_FN uint16_t ln_f32_to_f16(float x) {
  uint32_t u = ln_bits_f32(x);
  uint32_t magnitude = u & 0x7fffffffu;
  uint32_t rebased = magnitude - (112u << 23);
  uint32_t normal = (rebased + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  /* Adding 0.5 puts the units of float16's subnormal numbers at the end of the mantissa. */
  uint32_t tiny = ln_bits_f32(ln_from_bits_f32(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  uint32_t h = magnitude < 0x38800000u ? tiny : normal;
  h = magnitude >= 0x477ff000u ? 0x7c00u : h;
  h = magnitude > 0x7f800000u ? nan : h;
  return (uint16_t)(h | ((u >> 16) & 0x8000u));
}

LN_FN float ln_bf16_to_f32(uint16_t b) { return ln_from_bits_f32((uint32_t)b << 16); }

LN_FN uint16_t ln_f32_to_bf16(float x) {
  uint32_t u = ln_bits_f32(x);
  uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  uint32_t nan = (u >> 16) | 0x40u;
  return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* Round to odd: of the two neighbours of an inexact value, the one with an odd last bit. Another
 * rounding to 16 bits then gives what one rounding from float64 would.
 * Source: Boldo and Melquiond, "When double rounding is odd" (2005). */
LN_FN float ln_f64_to_f32_odd(double x) {
  float near = (float)x;
  double back = (double)near;
  uint32_t u = ln_bits_f32(near);
  uint32_t away = __builtin_fabs(back) > __builtin_fabs(x) ? 1u : 0u;
  uint32_t odd = (u - away) | 1u;
  return ln_from_bits_f32(((back == x) | (x != x)) ? u : odd);
}

LN_FN uint16_t ln_f64_to_f16(double x) { return ln_f32_to_f16(ln_f64_to_f32_odd(x)); }

LN_FN uint16_t ln_f64_to_bf16(double x) { return ln_f32_to_bf16(ln_f64_to_f32_odd(x)); }

/* An integer of 64 bits has more digits than float64; those that do not fit are gathered in the
 * last one, so that the rounding to bfloat16 is the only one. */
LN_FN uint16_t ln_i64_to_bf16(int64_t x) {
  int64_t odd = (x & ~(int64_t)0x7ff) | ((x & 0x7ff) != 0) * 0x400;
  int fits = (x < ((int64_t)1 << 53)) & (x > -((int64_t)1 << 53));
  return ln_f64_to_bf16((double)(fits ? x : odd));
}

/* ---- floats of 8 bits, by bits: float8_e4m3fn has no infinity, what is too large is NaN ---- */

LN_FN float ln_f8_e4m3fn_to_f32(uint8_t b) {
  uint32_t exponent = (b >> 3) & 15u, mantissa = b & 7u;
  float normal = ln_from_bits_f32((exponent + 120u) << 23 | mantissa << 20);
  float magnitude = exponent == 0u ? (float)(int32_t)mantissa * 0x1p-9f : normal;
  uint32_t u = (b & 0x7f) == 0x7f ? 0x7fc00000u : ln_bits_f32(magnitude);
  return ln_from_bits_f32(u | (uint32_t)(b & 0x80) << 24);
}

/* Round to nearest, ties to even: from above 464 on there is only NaN. */
LN_FN uint8_t ln_f32_to_f8_e4m3fn(float x) {
  uint32_t u = ln_bits_f32(x), magnitude = u & 0x7fffffffu;
  uint32_t normal = (magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  uint32_t tiny = ln_bits_f32(ln_from_bits_f32(magnitude) + 0x1p14f) - 0x46800000u;
  uint32_t b = magnitude < 0x3c800000u ? tiny : normal;
  b = magnitude > 0x43e80000u ? 0x7fu : b;
  return (uint8_t)(b | (u >> 24 & 0x80u));
}

LN_FN float ln_f8_e5m2_to_f32(uint8_t b) {
  uint32_t exponent = (b >> 2) & 31u, mantissa = b & 3u;
  uint32_t normal = (exponent + (exponent == 31u ? 224u : 112u)) << 23 | mantissa << 21;
  uint32_t tiny = ln_bits_f32((float)(int32_t)mantissa * 0x1p-16f);
  return ln_from_bits_f32((exponent == 0u ? tiny : normal) | (uint32_t)(b & 0x80) << 24);
}

LN_FN uint8_t ln_f32_to_f8_e5m2(float x) {
  uint32_t u = ln_bits_f32(x), magnitude = u & 0x7fffffffu;
  uint32_t normal = (magnitude - (112u << 23) + 0xfffffu + ((magnitude >> 21) & 1u)) >> 21;
  uint32_t tiny = ln_bits_f32(ln_from_bits_f32(magnitude) + 0x1p7f) - 0x43000000u;
  uint32_t b = magnitude < 0x38800000u ? tiny : normal;
  b = magnitude >= 0x47700000u ? 0x7cu : b;
  b = magnitude > 0x7f800000u ? 0x7eu : b;
  return (uint8_t)(b | (u >> 24 & 0x80u));
}

LN_FN uint8_t ln_f64_to_f8_e4m3fn(double x) { return ln_f32_to_f8_e4m3fn(ln_f64_to_f32_odd(x)); }

LN_FN uint8_t ln_f64_to_f8_e5m2(double x) { return ln_f32_to_f8_e5m2(ln_f64_to_f32_odd(x)); }

/* ---- casts to integers: truncation; out of range and NaN give the least integer, which is what
 * NumPy gives on x86-64 and what C leaves undefined ---- */

LN_FN int32_t ln_f32_to_i32(float x) {
  return ((x >= -0x1p31f) & (x < 0x1p31f)) ? (int32_t)x : INT32_MIN;
}

LN_FN int64_t ln_f32_to_i64(float x) {
  return ((x >= -0x1p63f) & (x < 0x1p63f)) ? (int64_t)x : INT64_MIN;
}

LN_FN int32_t ln_f64_to_i32(double x) {
  return ((x > -0x1.00000002p31) & (x < 0x1p31)) ? (int32_t)x : INT32_MIN;
}

LN_FN int64_t ln_f64_to_i64(double x) {
  return ((x >= -0x1p63) & (x < 0x1p63)) ? (int64_t)x : INT64_MIN;
}

/* ---- maximum, minimum: NaN propagates ---- */

LN_FN float ln_maxf(float a, float b) { return ((a > b) | (a != a)) ? a : b; }
LN_FN float ln_minf(float a, float b) { return ((a < b) | (a != a)) ? a : b; }
LN_FN double ln_max(double a, double b) { return ((a > b) | (a != a)) ? a : b; }
LN_FN double ln_min(double a, double b) { return ((a < b) | (a != a)) ? a : b; }
LN_FN int32_t ln_max_i32(int32_t a, int32_t b) { return a > b ? a : b; }
LN_FN int32_t ln_min_i32(int32_t a, int32_t b) { return a < b ? a : b; }
LN_FN int64_t ln_max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
LN_FN int64_t ln_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* The same as reductions of a `#pragma omp simd reduction(ln_maxf : x)` loop. Without them such a
 * loop stays serial: only max that ignores NaN is an associative operation to the compiler. */
#if defined(_OPENMP) || defined(LOOPNEST_OPENMP_SIMD)
#pragma omp declare reduction(ln_maxf : float : omp_out = ln_maxf(omp_out, omp_in)) \
    initializer(omp_priv = -LN_INFF)
#pragma omp declare reduction(ln_minf : float : omp_out = ln_minf(omp_out, omp_in)) \
    initializer(omp_priv = LN_INFF)
#pragma omp declare reduction(ln_max : double : omp_out = ln_max(omp_out, omp_in)) \
    initializer(omp_priv = -LN_INF)
#pragma omp declare reduction(ln_min : double : omp_out = ln_min(omp_out, omp_in)) \
    initializer(omp_priv = LN_INF)
#endif

/* ---- integers: floor division, modulus of the divisor's sign, power; all wrap ----
 * As NumPy: anything by zero is 0, and the least integer by -1 wraps. Both would trap in C. */

/* a / d. There is no SIMD integer division, but the float64 quotient of two int32, truncated, is
 * exact: it is off by less than the distance of a fraction with denominator d to an integer. */
LN_FN int32_t ln_quotient_i32(int32_t a, int32_t d) {
  return __builtin_constant_p(d) ? a / d : (int32_t)((double)a / (double)d);
}

LN_FN int32_t ln_floordiv_i32(int32_t a, int32_t b) {
  int32_t d = ((b == 0) | (b == -1)) ? 1 : b;
  int32_t q = ln_quotient_i32(a, d);
  int32_t r = a - q * d;
  q -= (r != 0) & ((r ^ d) < 0);
  q = b == -1 ? (int32_t)(0u - (uint32_t)a) : q;
  return b == 0 ? 0 : q;
}

LN_FN int64_t ln_floordiv_i64(int64_t a, int64_t b) {
  int64_t d = ((b == 0) | (b == -1)) ? 1 : b;
  int64_t q = a / d;
  int64_t r = a - q * d;
  q -= (r != 0) & ((r ^ d) < 0);
  q = b == -1 ? (int64_t)(0u - (uint64_t)a) : q;
  return b == 0 ? 0 : q;
}

LN_FN int32_t ln_mod_i32(int32_t a, int32_t b) {
  int32_t d = ((b == 0) | (b == -1)) ? 1 : b;
  int32_t r = a - ln_quotient_i32(a, d) * d;
  return r + (((r != 0) & ((r ^ d) < 0)) ? d : 0);
}

LN_FN int64_t ln_mod_i64(int64_t a, int64_t b) {
  int64_t d = ((b == 0) | (b == -1)) ? 1 : b;
  int64_t r = a % d;
  return r + (((r != 0) & ((r ^ d) < 0)) ? d : 0);
}

/* Indices: the divisor is positive, so the remainder's sign alone decides. */
LN_FN int32_t ln_index_div_i32(int32_t a, int32_t b) { return a / b - (a % b < 0); }
LN_FN int64_t ln_index_div_i64(int64_t a, int64_t b) { return a / b - (a % b < 0); }
LN_FN int32_t ln_index_mod_i32(int32_t a, int32_t b) { return a % b + (a % b < 0 ? b : 0); }
LN_FN int64_t ln_index_mod_i64(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }

/* Square and multiply, wrapping. NumPy refuses negative exponents; here they give the quotient
 * 1 / a^-n truncated: 1, or +-1 for a = -1, else 0. */
LN_FN uint64_t ln_pow_u64(uint64_t a, uint64_t n) {
  uint64_t r = 1;
  for (; n != 0; n >>= 1, a *= a) r *= (n & 1) ? a : 1;
  return r;
}

LN_FN int64_t ln_pow_i64(int64_t a, int64_t n) {
  int64_t unit = a == -1 ? ((n & 1) ? -1 : 1) : a == 1;
  return n < 0 ? unit : (int64_t)ln_pow_u64((uint64_t)a, (uint64_t)n);
}

LN_FN int32_t ln_pow_i32(int32_t a, int32_t n) { return (int32_t)(uint32_t)ln_pow_i64(a, n); }

/* Integers of 8 and 16 bits are computed in 32 and wrap. */
#define LN_SMALL_INTEGER(T, end)                                                    \
  LN_FN T ln_max_##end(T a, T b) { return a > b ? a : b; }                          \
  LN_FN T ln_min_##end(T a, T b) { return a < b ? a : b; }                          \
  LN_FN T ln_floordiv_##end(T a, T b) { return (T)ln_floordiv_i32(a, b); }          \
  LN_FN T ln_mod_##end(T a, T b) { return (T)ln_mod_i32(a, b); }                    \
  LN_FN T ln_pow_##end(T a, T n) { return (T)ln_pow_i32(a, n); }
LN_SMALL_INTEGER(int8_t, i8)
LN_SMALL_INTEGER(uint8_t, u8)
LN_SMALL_INTEGER(int16_t, i16)
LN_SMALL_INTEGER(uint16_t, u16)

LN_FN int8_t ln_abs_i8(int8_t a) { return (int8_t)(a < 0 ? -a : a); }
LN_FN int16_t ln_abs_i16(int16_t a) { return (int16_t)(a < 0 ? -a : a); }
LN_FN uint32_t ln_max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }
LN_FN uint32_t ln_min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
LN_FN uint32_t ln_floordiv_u32(uint32_t a, uint32_t b) { return b == 0u ? 0u : a / b; }
LN_FN uint32_t ln_mod_u32(uint32_t a, uint32_t b) { return b == 0u ? 0u : a % b; }
LN_FN uint32_t ln_pow_u32(uint32_t a, uint32_t n) { return (uint32_t)ln_pow_u64(a, n); }

/* Shifts; a count outside of the width, seen as unsigned, gives 0 or the sign. W is unsigned and at
 * least as wide as an int. */
#define LN_SHIFTS(T, U, W, end, left_over)                                                      \
  LN_FN T ln_shl_##end(T a, T n) {                                                              \
    return (T)((U)n < 8 * sizeof(T) ? (W)a << ((U)n & (8 * sizeof(T) - 1)) : 0);                \
  }                                                                                             \
  LN_FN T ln_shr_##end(T a, T n) {                                                              \
    return (T)((U)n < 8 * sizeof(T) ? a >> ((U)n & (8 * sizeof(T) - 1)) : (left_over));         \
  }
LN_SHIFTS(int8_t, uint8_t, uint32_t, i8, -(a < 0))
LN_SHIFTS(uint8_t, uint8_t, uint32_t, u8, 0)
LN_SHIFTS(int16_t, uint16_t, uint32_t, i16, -(a < 0))
LN_SHIFTS(uint16_t, uint16_t, uint32_t, u16, 0)
LN_SHIFTS(int32_t, uint32_t, uint32_t, i32, -(a < 0))
LN_SHIFTS(uint32_t, uint32_t, uint32_t, u32, 0u)
LN_SHIFTS(int64_t, uint64_t, uint64_t, i64, -(int64_t)(a < 0))

/* ---- random bits: a word of the block high * 2^64 + low + block, Philox 4x32 in ten rounds ----
 * Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011). */
LN_FN uint32_t ln_philox(int64_t key, int64_t low, int64_t high, int64_t block, int64_t word) {
  uint64_t start = (uint64_t)low + (uint64_t)block;
  uint64_t top = (uint64_t)high + (start < (uint64_t)low);
  uint32_t c0 = (uint32_t)start, c1 = (uint32_t)(start >> 32);
  uint32_t c2 = (uint32_t)top, c3 = (uint32_t)(top >> 32);
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)((uint64_t)key >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    uint64_t even = (uint64_t)c0 * 0xd2511f53u, odd = (uint64_t)c2 * 0xcd9e8d57u;
    c0 = (uint32_t)(odd >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)odd;
    c2 = (uint32_t)(even >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)even;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  uint32_t first = (word & 1) ? c1 : c0, second = (word & 1) ? c3 : c2;
  return (word & 2) ? second : first;
}

/* ---- the number of a float among all in their order: both zeros are 0, a NaN is the last ---- */
LN_FN int64_t ln_ordinal32(float x) {
  int32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  if ((bits & INT32_MAX) > 0x7f800000) return INT32_MAX;
  return bits < 0 ? (int64_t)INT32_MIN - bits : bits;
}
LN_FN int64_t ln_ordinal64(double x) {
  int64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  if ((bits & INT64_MAX) > 0x7ff0000000000000) return INT64_MAX;
  return bits < 0 ? INT64_MIN - bits : bits;
}

/* ---- small functions ---- */

LN_FN int32_t ln_abs_i32(int32_t a) { return a < 0 ? (int32_t)(0u - (uint32_t)a) : a; }
LN_FN int64_t ln_abs_i64(int64_t a) { return a < 0 ? (int64_t)(0u - (uint64_t)a) : a; }
LN_FN float ln_absf(float x) { return __builtin_fabsf(x); }
LN_FN double ln_abs(double x) { return __builtin_fabs(x); }
LN_FN int32_t ln_relu_i32(int32_t a) { return a > 0 ? a : 0; }
LN_FN int64_t ln_relu_i64(int64_t a) { return a > 0 ? a : 0; }
LN_FN float ln_reluf(float x) { return x <= 0.0f ? 0.0f : x; }
LN_FN double ln_relu(double x) { return x <= 0.0 ? 0.0 : x; }
LN_FN float ln_floorf(float x) { return __builtin_floorf(x); }
LN_FN double ln_floor(double x) { return __builtin_floor(x); }
LN_FN float ln_ceilf(float x) { return __builtin_ceilf(x); }
LN_FN double ln_ceil(double x) { return __builtin_ceil(x); }
LN_FN float ln_truncf(float x) { return __builtin_truncf(x); }
LN_FN double ln_trunc(double x) { return __builtin_trunc(x); }
LN_FN float ln_roundf(float x) { return __builtin_rintf(x); }
LN_FN double ln_round(double x) { return __builtin_rint(x); }
LN_FN float ln_sqrtf(float x) { return __builtin_sqrtf(x); }
LN_FN double ln_sqrt(double x) { return __builtin_sqrt(x); }
LN_FN float ln_rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
LN_FN double ln_rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
LN_FN float ln_fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
LN_FN double ln_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
LN_FN int ln_isnanf(float x) { return x != x; }
LN_FN int ln_isnan(double x) { return x != x; }

/* The remainder takes the divisor's sign, a zero too (NumPy's mod and Python's %). */
LN_FN float ln_modf(float a, float b) {
  float r = __builtin_fmodf(a, b);
  float moved = (b < 0.0f) != (r < 0.0f) ? r + b : r;
  return r == 0.0f ? __builtin_copysignf(0.0f, b) : moved;
}

LN_FN double ln_mod(double a, double b) {
  double r = __builtin_fmod(a, b);
  double moved = (b < 0.0) != (r < 0.0) ? r + b : r;
  return r == 0.0 ? __builtin_copysign(0.0, b) : moved;
}

/* ---- exponentials and logarithms, of one value and of vectors ----
 *
 * Each function is written once, for any type of values T with integers U and I as wide: T is a
 * scalar, or a vector type of the compiler (loopnest_kernel.h). N names a function; S is the family
 * of helpers below, for scalars or for vectors; W is 32 or 64, the bits of an element, and picks
 * the constants and polynomials. Conditions are integers: 0 or 1 of a scalar, 0 or -1 in each lane
 * of a vector.
 *
 * Errors stay below 1 ulp where there is FMA. The last addition of each function rounds once, to
 * half an ulp; what it adds is small beside the other summand, or the summand's own rounding error
 * (`low`) is known and added too. Sources of these sums: Dekker, "A floating-point technique for
 * extending the available precision" (1971), which also needs |a| >= |b| of fl(a + b); Muller et
 * al., "Handbook of Floating-Point Arithmetic", chapter 4. */
#define LN_S32_BITS(U, x) ln_bits_f32(x)
#define LN_S32_FROM(T, u) ln_from_bits_f32(u)
#define LN_S32_ALL(T, x) (x)
#define LN_S32_PICK(T, U, c, a, b) ((c) ? (a) : (b))
#define LN_S32_SIGN(U) 0x80000000u
#define LN_S32_FMA(a, b, c) LN_FMAF((a), (b), (c))
#define LN_S64_BITS(U, x) ln_bits_f64(x)
#define LN_S64_FROM(T, u) ln_from_bits_f64(u)
#define LN_S64_ALL(T, x) (x)
#define LN_S64_PICK(T, U, c, a, b) ((c) ? (a) : (b))
#define LN_S64_SIGN(U) 0x8000000000000000u
#define LN_S64_FMA(a, b, c) LN_FMA((a), (b), (c))
#define LN_NAME_F32(name) ln_##name##f
#define LN_NAME_F64(name) ln_##name

/* a < b ? a : b with a > 0, and a > b ? a : b with a < 0; both give b where that is NaN. Floats are
 * compared as integers, which are in the same order, signed from a > 0 on and unsigned from a < 0
 * on; the number added takes NaNs past the end of their range, before every number. gcc makes
 * branches for constants of comparisons of floats, and where it merges them again, selections that
 * take two to four times the instructions of the rest. */
#define LN_PAST_NAN 0x7fffffu
LN_FN float ln_smallerf(float a, float b) {
  int32_t x = (int32_t)(ln_bits_f32(b) + LN_PAST_NAN), y = (int32_t)(ln_bits_f32(a) + LN_PAST_NAN);
  return ln_from_bits_f32((uint32_t)(x < y ? x : y) - LN_PAST_NAN);
}
LN_FN float ln_largerf(float a, float b) {
  uint32_t x = ln_bits_f32(b) + LN_PAST_NAN, y = ln_bits_f32(a) + LN_PAST_NAN;
  return ln_from_bits_f32((x < y ? x : y) - LN_PAST_NAN);
}
LN_FN double ln_smaller(double a, double b) { return a < b ? a : b; }
LN_FN double ln_larger(double a, double b) { return a > b ? a : b; }

/* A polynomial of x by Horner's rule, the constant term first: LN_POLY(n, S, T, x, c0, c1, ...). */
#define LN_POLY(n, ...) LN_POLY_(n, __VA_ARGS__)
#define LN_POLY_(n, ...) LN_POLY##n(__VA_ARGS__)
#define LN_POLY1(S, T, x, c) S##ALL(T, c)
#define LN_POLY2(S, T, x, c, ...) S##FMA(LN_POLY1(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY3(S, T, x, c, ...) S##FMA(LN_POLY2(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY4(S, T, x, c, ...) S##FMA(LN_POLY3(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY5(S, T, x, c, ...) S##FMA(LN_POLY4(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY6(S, T, x, c, ...) S##FMA(LN_POLY5(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY7(S, T, x, c, ...) S##FMA(LN_POLY6(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY8(S, T, x, c, ...) S##FMA(LN_POLY7(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY9(S, T, x, c, ...) S##FMA(LN_POLY8(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY10(S, T, x, c, ...) S##FMA(LN_POLY9(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY11(S, T, x, c, ...) S##FMA(LN_POLY10(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY12(S, T, x, c, ...) S##FMA(LN_POLY11(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY13(S, T, x, c, ...) S##FMA(LN_POLY12(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY14(S, T, x, c, ...) S##FMA(LN_POLY13(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY15(S, T, x, c, ...) S##FMA(LN_POLY14(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY16(S, T, x, c, ...) S##FMA(LN_POLY15(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY17(S, T, x, c, ...) S##FMA(LN_POLY16(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY18(S, T, x, c, ...) S##FMA(LN_POLY17(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY19(S, T, x, c, ...) S##FMA(LN_POLY18(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY20(S, T, x, c, ...) S##FMA(LN_POLY19(S, T, x, __VA_ARGS__), x, c)
#define LN_POLY21(S, T, x, c, ...) S##FMA(LN_POLY20(S, T, x, __VA_ARGS__), x, c)

/* A literal, and the format: how many bits the fraction has, the bits of all but the sign, those of
 * 1 and of other limits. Adding LN_ROUND rounds to an integer and leaves it in the low bits; a
 * small integer in the low bits of LN_WHOLE is added to it. log(2) is the sum of a number whose
 * products with exponents are exact, and of the rest; 1 / log(2) that of a half as long one, whose
 * products with numbers of LN_HALF are, and of the rest. */
#define LN_C_32(x) x##f
#define LN_DIGITS_32 23
#define LN_MAGNITUDE_32 0x7fffffffu
#define LN_FRACTION_32 0x7fffffu
#define LN_BIAS_32 127
#define LN_EXPONENT_32 127.0f
#define LN_EXPONENT_SUBNORMAL_32 150.0f
#define LN_ONE_32 0x3f800000u
#define LN_SQRT_HALF_32 0x3f3504f3u
#define LN_THREE_QUARTERS_32 0x3f400000u
#define LN_WHOLE_32 0x1p23f
#define LN_WHOLE_BITS_32 0x4b000000u
#define LN_NORMAL_32 0x1p-126f
#define LN_INFINITE_32 LN_INFF
#define LN_NO_NUMBER_32 LN_NANF
#define LN_ROUND_32 0x1.8p23f
#define LN_LOG2E_32 0x1.715476p0f
#define LN_LOG2E_HALF_32 0x1.716p0f
#define LN_LOG2E_REST_32 -0x1.7135a8p-13f
#define LN_HALF_32 0xfffff000u
#define LN_LOG2_32 0x1.62e4p-1f
#define LN_LOG2_LOW_32 0x1.7f7d1cp-20f
#define LN_C_64(x) x
#define LN_DIGITS_64 52
#define LN_MAGNITUDE_64 0x7fffffffffffffffu
#define LN_FRACTION_64 0xfffffffffffffu
#define LN_BIAS_64 1023
#define LN_EXPONENT_64 1023.0
#define LN_EXPONENT_SUBNORMAL_64 1075.0
#define LN_ONE_64 0x3ff0000000000000u
#define LN_SQRT_HALF_64 0x3fe6a09e667f3bcdu
#define LN_THREE_QUARTERS_64 0x3fe8000000000000u
#define LN_WHOLE_64 0x1p52
#define LN_WHOLE_BITS_64 0x4330000000000000u
#define LN_NORMAL_64 0x1p-1022
#define LN_INFINITE_64 LN_INF
#define LN_NO_NUMBER_64 LN_NAN
#define LN_ROUND_64 0x1.8p52
#define LN_LOG2E_64 0x1.71547652b82fep0
#define LN_LOG2E_HALF_64 0x1.7154768p0
#define LN_LOG2E_REST_64 -0x1.6a3e80f444178p-27
#define LN_HALF_64 0xfffffffff8000000u
#define LN_LOG2_64 0x1.62e42fefa3800p-1
#define LN_LOG2_LOW_64 0x1.ef35793c76730p-45

/* (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2, and from where on exp is infinite or 0. */
#define LN_EXP_TAIL_32(S, T, r) LN_POLY(5, S, T, r, 0x1p-1f, 0x1.555466p-3f, 0x1.5552fep-5f, \
  0x1.125804p-7f, 0x1.6fed46p-10f)
#define LN_EXP_MOST_32 89.0f
#define LN_EXP_LEAST_32 -104.0f
#define LN_EXP_TAIL_64(S, T, r) LN_POLY(10, S, T, r, 0x1.000000000000ap-1, 0x1.55555555554fap-3, \
  0x1.555555555086ap-5, 0x1.1111111127c40p-7, 0x1.6c16c1842e7ffp-10, 0x1.a01a012a419d6p-13, \
  0x1.a01999ffadb19p-16, 0x1.71df256fcd55ep-19, 0x1.28ad7f208bb9ap-22, 0x1.ad7f600b3dd2dp-26)
#define LN_EXP_MOST_64 710.0
#define LN_EXP_LEAST_64 -746.0

/* 2^r for |r| <= 1/2, and from where on exp2 is infinite or 0. */
#define LN_EXP2_32(S, T, r) LN_POLY(7, S, T, r, 1.0f, 0x1.62e430p-1f, 0x1.ebfbdcp-3f, \
  0x1.c6aee8p-5f, 0x1.3b2d4cp-7f, 0x1.5f3e58p-10f, 0x1.41fbbap-13f)
#define LN_EXP2_MOST_32 129.0f
#define LN_EXP2_LEAST_32 -151.0f
#define LN_EXP2_64(S, T, r) LN_POLY(12, S, T, r, 1.0, 0x1.62e42fefa39efp-1, 0x1.ebfbdff82c5a4p-3, \
  0x1.c6b08d7049fe8p-5, 0x1.3b2ab6fba0117p-7, 0x1.5d87fe78cd6e9p-10, 0x1.4309130ed97bap-13, \
  0x1.ffcbfba97b52bp-17, 0x1.62bfc79b74688p-20, 0x1.b5267ce730a76p-24, 0x1.e61b52fab35c7p-28, \
  0x1.e79bb272aab51p-32)
#define LN_EXP2_MOST_64 1025.0
#define LN_EXP2_LEAST_64 -1076.0

/* (tanh(c) / c - 1) / c^2 as a function of c^2, below 0.93 in float32 and below 0.55 in float64, and
 * from where on tanh is 1; (exp(2 r) - 1) / r for |r| up to a quarter of log(2), and the half of it. */
#define LN_TANH_32(S, T, z) LN_POLY(7, S, T, z, -0x1.555548p-2f, 0x1.110e02p-3f, \
  -0x1.b9a142p-5f, 0x1.61b5bap-6f, -0x1.0a14d8p-7f, 0x1.40b06cp-9f, -0x1.a96516p-12f)
#define LN_TANH_MOST_32 9.02f
#define LN_TANH_POWER_32(S, T, r) LN_POLY(6, S, T, r, 2.0f, 2.0f, 0x1.555492p0f, \
  0x1.5554c0p-1f, 0x1.123992p-2f, 0x1.6d7a5cp-4f)
#define LN_TANH_HALF_32 0x1.62e430p-2f
#define LN_TANH_64(S, T, z) LN_POLY(11, S, T, z, -0x1.555555555554cp-2, 0x1.11111111103dap-3, \
  -0x1.ba1ba1b946466p-5, 0x1.664f484cf56dfp-6, -0x1.226e2d77940ffp-7, 0x1.d6d259d612c31p-9, \
  -0x1.7d8c7dccda316p-10, 0x1.346805abe8f73p-11, -0x1.e8543ec2e24ecp-13, 0x1.5a4243d03584dp-14, \
  -0x1.3f20dcd18eaebp-16)
#define LN_TANH_MOST_64 19.1

/* erf(c) / c - 1 below 1.125 as a function of c^2 less LN_ERF_ABOUT, so that where erf is large the
 * last steps of the polynomial have small factors. Above that, 1 less a power of a root q of erfc,
 * which is a tame function, of s = c less LN_ERF_FROM. A third root errs less when it is raised
 * than a fourth one, and needs more terms; the fourth one is a sum of two floats. Then from where
 * on erf is 1. */
#define LN_ERF_32(S, T, z) LN_POLY(7, S, T, z, 0x1.ecdcbep-10f, -0x1.350d90p-2f, 0x1.62bac0p-4f, \
  -0x1.49967ep-6f, 0x1.f8ff70p-9f, -0x1.4373cep-11f, 0x1.26a99cp-14f)
#define LN_ERF_ABOUT_32 0.375f
#define LN_ERF_FROM_32 1.0f
#define LN_ERF_LARGE_32(S, T, s)                                                                   \
  T q = LN_POLY(9, S, T, s, 0x1.146266p-1f, -0x1.e64774p-2f, 0x1.d64a1ap-5f, 0x1.04cff4p-4f,       \
                -0x1.ad75f2p-7f, -0x1.46603ep-7f, 0x1.514f20p-8f, -0x1.dcfb96p-11f,                \
                0x1.d95b50p-15f);                                                                  \
  T large = S##FMA(-(q * q), q, 1.0f);
#define LN_ERF_MOST_32 3.95f
#define LN_ERF_64(S, T, z) LN_POLY(14, S, T, z, 0x1.ecdcb3fadb1c6p-10, -0x1.350d94d118e26p-2, \
  0x1.62bad8f5b13a0p-4, -0x1.498fcbc3d1597p-6, 0x1.f8a20cbf0a377p-9, -0x1.46ba7f89bea77p-11, \
  0x1.6db169f2e221ap-14, -0x1.6804448b4ffc8p-17, 0x1.3c253f806608ep-20, -0x1.f4efa0b3049dep-24, \
  0x1.696ca364c621cp-27, -0x1.de13d170733b1p-31, 0x1.1d75a3399960dp-34, -0x1.fd5514650b49bp-39)
#define LN_ERF_ABOUT_64 0.375
#define LN_ERF_FROM_64 1.1875
#define LN_ERF_LARGE_64(S, T, s)                                                                   \
  T p = LN_POLY(20, S, T, s, -0x1.a27141189507ap-2, 0x1.045be05bad341p-5, 0x1.7add33a765a7dp-5,    \
                -0x1.0c1ddd82f9e5dp-7, -0x1.fad0347a8a280p-9, 0x1.1d725cb6e3fdbp-10,               \
                0x1.730eae8f7a5ccp-13, -0x1.5e3958a1c265fp-14, -0x1.4266140ab4354p-19,             \
                0x1.01b1f1f987853p-18, -0x1.09d49e53eb2dbp-24, -0x1.3682cdce48094p-23,             \
                0x1.1433cec999042p-28, 0x1.6f533c5a5f2dap-28, 0x1.96614a372d67ap-33,               \
                -0x1.1528dfc8be350p-31, 0x1.0edd090f98ba4p-33, -0x1.024f5b11568e5p-36,             \
                0x1.027b47c34db22p-40, -0x1.b50f80e70aaa5p-46);                                    \
  T q = S##FMA(p, s, 0x1.1acd3d9c05d12p-1);                                                        \
  T low = S##FMA(p, s, 0x1.1acd3d9c05d12p-1 - q);                                                  \
  T square = q * q;                                                                                \
  T large = 1.0 - S##FMA(square, square, 4.0 * square * q * low);
#define LN_ERF_MOST_64 5.95

/* log(1 + f) - f for 1 + f in [sqrt(1/2), 3/2). In float64 it goes through s = f / (2 + f), whose
 * polynomial is half as long. */
#define LN_LOG_TAIL_32(S, T)                                                                       \
  T z = f * f;                                                                                     \
  T p = LN_POLY(9, S, T, f, 0x1.55554cp-2f, -0x1.0000b6p-2f, 0x1.99a2fap-3f, -0x1.5512d8p-3f,      \
                0x1.232376p-3f, -0x1.02cbfap-3f, 0x1.f0f258p-4f, -0x1.aca2e0p-4f, 0x1.8a3b2cp-5f); \
  return S##FMA(-0.5f * f, f, z * f * p);
#define LN_LOG_TAIL_64(S, T)                                                                       \
  T s = f / (2.0 + f);                                                                             \
  T z = s * s;                                                                                     \
  T p = LN_POLY(8, S, T, z, 0x1.555555555554fp-1, 0x1.999999999c17ap-2, 0x1.24924921e43bbp-2,      \
                0x1.c71c748fd4af6p-3, 0x1.745c4ad4ddd0cp-3, 0x1.3b35c1ed09501p-3,                  \
                0x1.0dcb7de856f79p-3, 0x1.1b82558b960f0p-3);                                       \
  T half = 0.5 * f;                                                                                \
  return S##FMA(-half, f, s * S##FMA(p, z, half * f));

#define LN_EXACT_ERF(N, S, W, T, U)                                                                \
LN_FN T N(erf)(T x) {                                                                              \
  T a = S##FROM(T, S##BITS(U, x) & LN_MAGNITUDE_##W);                                              \
  T c = N(smaller)(S##ALL(T, LN_ERF_MOST_##W), a);                                                 \
  T z = S##FMA(c, c, -LN_ERF_ABOUT_##W);                                                           \
  T small = S##FMA(c, LN_ERF_##W(S, T, z), c);                                                     \
  T s = c - LN_ERF_FROM_##W;                                                                       \
  LN_ERF_LARGE_##W(S, T, s)                                                                        \
  return N(signed)(S##PICK(T, U, c < LN_C_##W(1.125), small, large), x);                           \
}

/* Within 7 ulp: a rational function of x^2 up to where erf is 1, which its rounding might exceed.
 * A third fewer multiplications, and a division beside them. The coefficients share a factor with
 * which all of them lie close to floats. */
#define LN_FAST_ERF(N, S, W, T, U)                                                                 \
LN_FN T N(erf)(T x) {                                                                              \
  T c = N(clamp)(x, S##ALL(T, -LN_FAST_ERF_MOST_##W), S##ALL(T, LN_FAST_ERF_MOST_##W));            \
  T z = c * c;                                                                                     \
  T r = c * LN_FAST_ERF_ABOVE_##W(S, T, z) / LN_FAST_ERF_BELOW_##W(S, T, z);                       \
  return N(clamp)(r, S##ALL(T, LN_C_##W(-1.0)), S##ALL(T, LN_C_##W(1.0)));                         \
}
#define LN_FAST_ERF_MOST_32 3.93f
#define LN_FAST_ERF_ABOVE_32(S, T, z) LN_POLY(6, S, T, z, 0x1.17e31ap1f, 0x1.7a93a8p-2f, \
  0x1.a303acp-4f, 0x1.dffd40p-8f, 0x1.215b5ep-11f, 0x1.098cb0p-18f)
#define LN_FAST_ERF_BELOW_32(S, T, z) LN_POLY(6, S, T, z, 0x1.f01646p0f, 0x1.f279fep-1f, \
  0x1.c57306p-3f, 0x1.dc27a8p-6f, 0x1.27f3b4p-9f, 0x1.34e3e8p-14f)
#define LN_ERF_FUNCTION_64 LN_EXACT_ERF
#ifdef LN_FAST_MATH
#define LN_ERF_FUNCTION_32 LN_FAST_ERF
#else
#define LN_ERF_FUNCTION_32 LN_EXACT_ERF
#endif

/* 1 - 2 / d, d = exp(2a) + 1, from where it has no cancellation, below it an odd polynomial. d is
 * a sum of two floats, and so is 1 - 2 / d. Past the clamp the result rounds to 1, so the power
 * of two needs no second scaling step. */
#define LN_EXACT_TANH(N, S, W, T, U)                                                               \
LN_FN T N(tanh)(T x) {                                                                             \
  T r, a = S##FROM(T, S##BITS(U, x) & LN_MAGNITUDE_##W);                                           \
  T c = N(smaller)(S##ALL(T, LN_TANH_MOST_##W), a);                                                \
  T t = N(exp_split)(c + c, &r);                                                                   \
  T scale = S##FROM(T, (S##BITS(U, t) << LN_DIGITS_##W) + LN_ONE_##W);                             \
  T u = S##FMA(r * r, LN_EXP_TAIL_##W(S, T, r), r);                                                \
  T more = scale + LN_C_##W(1.0);                                                                  \
  T d = S##FMA(scale, u, more);                                                                    \
  T d_low = S##FMA(scale, u, more - d);                                                            \
  T q = LN_C_##W(2.0) / d;                                                                         \
  T high = LN_C_##W(1.0) - q;                                                                      \
  T large = high + S##FMA(q * (LN_C_##W(0.5) * q), d_low, (LN_C_##W(1.0) - high) - q);             \
  T z = c * c;                                                                                     \
  T small = S##FMA(c * z, LN_TANH_##W(S, T, z), c);                                                \
  return N(signed)(S##PICK(T, U, c < LN_C_##W(0.55), small, large), x);                            \
}

/* The same in float32 with a quarter less arithmetic. Where the polynomial reaches further, 2 / d is
 * so small that one float is enough for d. The nearest float to half of log(2) is 24 times as near
 * as floats lie apart, so that a is reduced by it in one step. Every float is within 0.97 ulp. */
#define LN_SHORT_TANH(N, S, W, T, U)                                                               \
LN_FN T N(tanh)(T x) {                                                                             \
  T a = S##FROM(T, S##BITS(U, x) & LN_MAGNITUDE_##W);                                              \
  T c = N(smaller)(S##ALL(T, LN_TANH_MOST_##W), a);                                                \
  T t = S##FMA(c, 2 * LN_LOG2E_##W, LN_ROUND_##W);                                                 \
  T r = S##FMA(t - LN_ROUND_##W, -LN_TANH_HALF_##W, c);                                            \
  T scale = S##FROM(T, (S##BITS(U, t) << LN_DIGITS_##W) + LN_ONE_##W);                             \
  T d = S##FMA(scale, r * LN_TANH_POWER_##W(S, T, r), scale + LN_C_##W(1.0));                      \
  T z = c * c;                                                                                     \
  T small = S##FMA(c * z, LN_TANH_##W(S, T, z), c);                                                \
  T large = LN_C_##W(1.0) - LN_C_##W(2.0) / d;                                                     \
  return N(signed)(S##PICK(T, U, c < LN_C_##W(0.93), small, large), x);                            \
}

/* Within 6 ulp: a rational function of x^2 up to where tanh is 1, which no rounding of it exceeds,
 * with FMA or without. No power and no choice of two sides. The constant terms are 1, so that no
 * small x underflows. Source: Eigen, generic_fast_tanh_float. */
#define LN_FAST_TANH(N, S, W, T, U)                                                                \
LN_FN T N(tanh)(T x) {                                                                             \
  T c = N(clamp)(x, S##ALL(T, -LN_FAST_TANH_MOST_##W), S##ALL(T, LN_FAST_TANH_MOST_##W));          \
  T z = c * c;                                                                                     \
  return c * LN_FAST_TANH_ABOVE_##W(S, T, z) / LN_FAST_TANH_BELOW_##W(S, T, z);                    \
}
#define LN_FAST_TANH_MOST_32 7.99881172f
#define LN_FAST_TANH_ABOVE_32(S, T, z) LN_POLY(7, S, T, z, 0x1.0p0f, 0x1.0ab3bp-3f, \
  0x1.8df28ep-9f, 0x1.5f3b22p-17f, -0x1.2e1652p-26f, 0x1.678874p-35f, \
  -0x1.fc2832p-45f)
#define LN_FAST_TANH_BELOW_32(S, T, z) LN_POLY(4, S, T, z, 0x1.0p0f, 0x1.daaf0cp-2f, \
  0x1.8cdda2p-6f, 0x1.00c2bep-12f)
#define LN_TANH_FUNCTION_64 LN_EXACT_TANH
#ifdef LN_FAST_MATH
#define LN_TANH_FUNCTION_32 LN_FAST_TANH
#else
#define LN_TANH_FUNCTION_32 LN_SHORT_TANH
#endif

#define LN_FLOAT_FUNCTIONS(N, S, W, T, U, I)                                                       \
/* p * 2^n, `t` holding n in its low bits: two steps, so that results in the subnormal range are   \
 * rounded once and results out of range overflow. */                                              \
LN_FN T N(scale)(T p, U t) {                                                                       \
  U half = t >> 1;                                                                                 \
  T low = S##FROM(T, (half << LN_DIGITS_##W) + LN_ONE_##W);                                        \
  T high = S##FROM(T, ((t - half) << LN_DIGITS_##W) + LN_ONE_##W);                                 \
  return p * low * high;                                                                           \
}                                                                                                  \
                                                                                                   \
/* c = n log(2) + r with |r| <= log(2) / 2; n lies in the low bits of the result. */               \
LN_FN T N(exp_split)(T c, T *r) {                                                                  \
  T t = S##FMA(c, LN_LOG2E_##W, LN_ROUND_##W);                                                     \
  T n = t - LN_ROUND_##W;                                                                          \
  *r = S##FMA(n, -LN_LOG2_LOW_##W, S##FMA(n, -LN_LOG2_##W, c));                                    \
  return t;                                                                                        \
}                                                                                                  \
                                                                                                   \
/* A number that is not negative, with the sign of x. */                                           \
LN_FN T N(signed)(T r, T x) {                                                                      \
  return S##FROM(T, S##BITS(U, r) | (S##BITS(U, x) & S##SIGN(U)));                                 \
}                                                                                                  \
                                                                                                   \
/* x between two ends; a NaN passes. */                                                            \
LN_FN T N(clamp)(T x, T least, T most) {                                                           \
  T c = N(smaller)(most, x);                                                                       \
  return N(larger)(least, c);                                                                      \
}                                                                                                  \
                                                                                                   \
LN_FN T N(exp)(T x) {                                                                              \
  T r, c = N(clamp)(x, S##ALL(T, LN_EXP_LEAST_##W), S##ALL(T, LN_EXP_MOST_##W));                   \
  T t = N(exp_split)(c, &r);                                                                       \
  T p = S##FMA(LN_EXP_TAIL_##W(S, T, r), r, LN_C_##W(1.0));                                        \
  return N(scale)(S##FMA(p, r, LN_C_##W(1.0)), S##BITS(U, t));                                     \
}                                                                                                  \
                                                                                                   \
LN_FN T N(exp2)(T x) {                                                                             \
  T c = N(clamp)(x, S##ALL(T, LN_EXP2_LEAST_##W), S##ALL(T, LN_EXP2_MOST_##W));                    \
  T t = c + LN_ROUND_##W;                                                                          \
  T r = c - (t - LN_ROUND_##W);                                                                    \
  return N(scale)(LN_EXP2_##W(S, T, r), S##BITS(U, t));                                            \
}                                                                                                  \
                                                                                                   \
/* 1 / (1 + e) or e / (1 + e), e = exp(-|x|): nothing overflows and small results keep their       \
 * digits. e and 1 + e are sums of two floats, and the division gets its remainder. */             \
LN_FN T N(sigmoid)(T x) {                                                                          \
  T r, a = S##FROM(T, S##BITS(U, x) & LN_MAGNITUDE_##W);                                           \
  T t = N(exp_split)(N(larger)(S##ALL(T, LN_EXP_LEAST_##W), -a), &r);                              \
  T p = S##FMA(LN_EXP_TAIL_##W(S, T, r), r, LN_C_##W(1.0));                                        \
  T e = S##FMA(p, r, LN_C_##W(1.0));                                                               \
  T e_low = N(scale)(S##FMA(p, r, LN_C_##W(1.0) - e), S##BITS(U, t));                              \
  e = N(scale)(e, S##BITS(U, t));                                                                  \
  T d = e + LN_C_##W(1.0);                                                                         \
  T d_low = ((LN_C_##W(1.0) - d) + e) + e_low;                                                     \
  T above = S##PICK(T, U, x < LN_C_##W(0.0), e, S##ALL(T, LN_C_##W(1.0)));                         \
  T above_low = S##PICK(T, U, x < LN_C_##W(0.0), e_low, S##ALL(T, LN_C_##W(0.0)));                 \
  T inverse = LN_C_##W(1.0) / d;                                                                   \
  T q = above * inverse;                                                                           \
  T rest = S##FMA(-q, d_low, S##FMA(-q, d, above) + above_low);                                    \
  return S##FMA(rest, inverse, q);                                                                 \
}                                                                                                  \
                                                                                                   \
LN_TANH_FUNCTION_##W(N, S, W, T, U)                                                                \
                                                                                                   \
LN_ERF_FUNCTION_##W(N, S, W, T, U)                                                                 \
                                                                                                   \
/* log(1 + f) - f. */                                                                              \
LN_FN T N(log_tail)(T f) { LN_LOG_TAIL_##W(S, T) }                                                 \
                                                                                                   \
/* A small non-negative integer as a float: AVX2 converts no 64-bit integers. */                   \
LN_FN T N(small)(U k) { return S##FROM(T, k | LN_WHOLE_BITS_##W) - LN_WHOLE_##W; }                 \
                                                                                                   \
/* x = 2^e * (1 + f) with 1 + f from `least` (its bits) to twice that: the exponent as the bits of \
 * a float count it, with 1 + f below them. */                                                     \
LN_FN U N(log_bits)(T x, U least) { return S##BITS(U, x) + (LN_ONE_##W - least); }                 \
                                                                                                   \
LN_FN T N(log_rest)(U u, U least) {                                                                \
  return S##FROM(T, (u & LN_FRACTION_##W) + least) - LN_C_##W(1.0);                                \
}                                                                                                  \
                                                                                                   \
/* 1 + f lies in [sqrt(1/2), sqrt(2)): little cancellation between e and log(1 + f). */            \
LN_FN T N(log_split)(T x, T *e) {                                                                  \
  const U least = (U){0} + LN_SQRT_HALF_##W;                                                       \
  I subnormal = x < LN_NORMAL_##W;                                                                 \
  U u = N(log_bits)(S##PICK(T, U, subnormal, x * LN_WHOLE_##W, x), least);                         \
  *e = N(small)(u >> LN_DIGITS_##W) -                                                              \
       S##PICK(T, U, subnormal, S##ALL(T, LN_EXPONENT_SUBNORMAL_##W),                              \
               S##ALL(T, LN_EXPONENT_##W));                                                        \
  return N(log_rest)(u, least);                                                                    \
}                                                                                                  \
                                                                                                   \
/* What log gives outside (0, inf), else r. */                                                     \
LN_FN T N(log_edges)(T x, T r) {                                                                   \
  r = S##PICK(T, U, x < LN_INFINITE_##W, r, x);                                                    \
  r = S##PICK(T, U, x == LN_C_##W(0.0), S##ALL(T, -LN_INFINITE_##W), r);                           \
  return S##PICK(T, U, x < LN_C_##W(0.0), S##ALL(T, LN_NO_NUMBER_##W), r);                         \
}                                                                                                  \
                                                                                                   \
/* fl(a + b), and what is left of the sum; |a| >= |b|, or a is 0. */                               \
LN_FN T N(sum)(T a, T b, T *rest) {                                                                \
  T high = a + b;                                                                                  \
  *rest = (a - high) + b;                                                                          \
  return high;                                                                                     \
}                                                                                                  \
                                                                                                   \
/* e log(2) + f + tail. */                                                                         \
LN_FN T N(log_sum)(T e, T f) {                                                                     \
  T rest, high = N(sum)(e * LN_LOG2_##W, f, &rest);                                                \
  return high + (N(log_tail)(f) + S##FMA(e, LN_LOG2_LOW_##W, rest));                               \
}                                                                                                  \
                                                                                                   \
LN_FN T N(log)(T x) {                                                                              \
  T e, f = N(log_split)(x, &e);                                                                    \
  return N(log_edges)(x, N(log_sum)(e, f));                                                        \
}                                                                                                  \
                                                                                                   \
/* The product of the upper halves of f and 1 / log(2) is exact. */                                \
LN_FN T N(log2)(T x) {                                                                             \
  T e, f = N(log_split)(x, &e);                                                                    \
  T half = S##FROM(T, S##BITS(U, f) & LN_HALF_##W);                                                \
  T rest, high = N(sum)(e, half * LN_LOG2E_HALF_##W, &rest);                                       \
  rest = S##FMA(half, LN_LOG2E_REST_##W, S##FMA(f - half, LN_LOG2E_##W, rest));                    \
  return N(log_edges)(x, high + S##FMA(N(log_tail)(f), LN_LOG2E_##W, rest));                       \
}                                                                                                  \
                                                                                                   \
/* 1 + x picks the power of two; f = x / 2^e + (1 / 2^e - 1) then has all of x's digits, as 1 + f  \
 * lies in [3/4, 3/2). Where 1 / 2^e would not be a normal number, 1 + x = x, and f is read off the\
 * mantissa. */                                                                                    \
LN_FN T N(log1p)(T x) {                                                                            \
  const U least = (U){0} + LN_THREE_QUARTERS_##W;                                                  \
  T s = x + LN_C_##W(1.0);                                                                         \
  U u = N(log_bits)(s, least);                                                                     \
  U k = u >> LN_DIGITS_##W;                                                                        \
  T e = N(small)(k) - LN_EXPONENT_##W;                                                             \
  T scale = S##FROM(T, (2 * LN_BIAS_##W - k) << LN_DIGITS_##W);                                    \
  T f = S##FMA(x, scale, scale - LN_C_##W(1.0));                                                   \
  f = S##PICK(T, U, e > LN_C_##W(64.0), N(log_rest)(u, least), f);                                 \
  T r = N(log_edges)(s, N(log_sum)(e, f));                                                         \
  return S##PICK(T, U, x == LN_C_##W(0.0), x, r);                                                  \
}
#define LN_FLOAT32_FUNCTIONS(N, S, T, U, I) LN_FLOAT_FUNCTIONS(N, S, 32, T, U, I)
#define LN_FLOAT64_FUNCTIONS(N, S, T, U, I) LN_FLOAT_FUNCTIONS(N, S, 64, T, U, I)

LN_FLOAT32_FUNCTIONS(LN_NAME_F32, LN_S32_, float, uint32_t, int32_t)
LN_FLOAT64_FUNCTIONS(LN_NAME_F64, LN_S64_, double, uint64_t, int64_t)

/* ---- float32: sine, cosine, tangent ---- */

LN_FN uint32_t ln_mulhi_u32(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }

/* The 32 bits that start `s` bits (0..31) into the two words. */
LN_FN uint32_t ln_window_u32(uint32_t high, uint32_t low, uint32_t s) {
  return high << s | (low >> (31 - s)) >> 1;
}

/* |x| = quadrant * pi/2 + r, |r| <= pi/4, for 2^-12 <= |x| < inf.
 *
 * Payne-Hanek in 32-bit words, without a table: |x| = m * 2^(e-150) in quarter turns is
 * m * 2^(e-150) * 2/pi, of which only the value modulo 4 counts, so of 2/pi only the 96 bits
 * that meet m there. `w` are the words of 2/pi after 37 zeros; three bits of the exponent select
 * four of them, its other bits shift them. Below 2^-12 the result means nothing: callers drop it.
 * One path for all exponents, because a Cody-Waite path for small arguments beside it would be
 * computed for every lane as well. */
LN_FN float ln_trig_reducef(uint32_t magnitude, uint32_t *quadrant) {
  const uint32_t w0 = 0x00000000u, w1 = 0x0517cc1bu, w2 = 0x727220a9u, w3 = 0x4fe13abeu;
  const uint32_t w4 = 0x8fa9a6eeu, w5 = 0x06db14acu, w6 = 0xc9e21c82u, w7 = 0x0ff28b1du;
  uint32_t offset = (magnitude >> 23) - 115u;
  uint32_t m = (magnitude & 0x7fffffu) | 0x800000u;
  int by4 = (offset & 128u) != 0, by2 = (offset & 64u) != 0, by1 = (offset & 32u) != 0;
  uint32_t a0 = by2 ? w2 : w0, a1 = by2 ? w3 : w1, a2 = by2 ? w4 : w2;
  uint32_t a3 = by2 ? w5 : w3, a4 = by2 ? w6 : w4;
  uint32_t b0 = by4 ? w4 : by1 ? a1 : a0, b1 = by4 ? w5 : by1 ? a2 : a1;
  uint32_t b2 = by4 ? w6 : by1 ? a3 : a2, b3 = by4 ? w7 : by1 ? a4 : a3;
  uint32_t s = offset & 31u;
  uint32_t high = ln_window_u32(b0, b1, s), mid = ln_window_u32(b1, b2, s);
  uint32_t lowest = ln_window_u32(b2, b3, s);
  /* The turn as a 64-bit fraction, (turn, rest). */
  uint32_t product = m * mid;
  uint32_t rest = product + ln_mulhi_u32(m, lowest);
  uint32_t turn = m * high + ln_mulhi_u32(m, mid) + (rest < product ? 1u : 0u);
  *quadrant = (turn + 0x20000000u) >> 30;
  int32_t near = (int32_t)(turn - (*quadrant << 30));
  /* near + rest / 2^32 in floats, to more digits than one float has. */
  float lead = (float)near;
  float tail = (float)(near - (int32_t)lead) + (float)(int32_t)(rest >> 1) * 0x1p-31f;
  return LN_FMAF(lead, 0x1.921fb6p-30f, LN_FMAF(lead, -0x1.777a5cp-55f, tail * 0x1.921fb6p-30f));
}

LN_FN float ln_sin_polyf(float r) {
  float z = r * r;
  float p = LN_FMAF(LN_FMAF(-0x1.9943e0p-13f, z, 0x1.11073ap-7f), z, -0x1.555546p-3f);
  return LN_FMAF(r * z, p, r);
}

LN_FN float ln_cos_polyf(float r) {
  float z = r * r;
  float p = LN_FMAF(LN_FMAF(0x1.99eb9cp-16f, z, -0x1.6c0c34p-10f), z, 0x1.55554ap-5f);
  return LN_FMAF(z * z, p, LN_FMAF(-0.5f, z, 1.0f));
}

LN_FN float ln_sinf(float x) {
  uint32_t u = ln_bits_f32(x), magnitude = u & 0x7fffffffu, quadrant;
  float r = ln_trig_reducef(magnitude, &quadrant);
  float y = (quadrant & 1u) ? ln_cos_polyf(r) : ln_sin_polyf(r);
  y = ln_from_bits_f32(ln_bits_f32(y) ^ ((quadrant << 30 ^ u) & 0x80000000u));
  y = magnitude < 0x39800000u ? x : y;
  return magnitude < 0x7f800000u ? y : LN_NANF;
}

LN_FN float ln_cosf(float x) {
  uint32_t magnitude = ln_bits_f32(x) & 0x7fffffffu, quadrant;
  float r = ln_trig_reducef(magnitude, &quadrant);
  float y = (quadrant & 1u) ? ln_sin_polyf(r) : ln_cos_polyf(r);
  y = ln_from_bits_f32(ln_bits_f32(y) ^ ((quadrant + 1u) << 30 & 0x80000000u));
  y = magnitude < 0x39800000u ? 1.0f : y;
  return magnitude < 0x7f800000u ? y : LN_NANF;
}

/* Between two poles it is sin / cos, from there on -cos / sin. */
LN_FN float ln_tanf(float x) {
  uint32_t u = ln_bits_f32(x), magnitude = u & 0x7fffffffu, quadrant;
  float r = ln_trig_reducef(magnitude, &quadrant);
  float s = ln_sin_polyf(r), c = ln_cos_polyf(r);
  float y = ((quadrant & 1u) ? c : s) / ((quadrant & 1u) ? s : c);
  y = ln_from_bits_f32(ln_bits_f32(y) ^ ((quadrant << 31 ^ u) & 0x80000000u));
  y = magnitude < 0x39800000u ? x : y;
  return magnitude < 0x7f800000u ? y : LN_NANF;
}

/* ---- power ---- */

/* log2(x) to some 2^-36 for x >= 0 that was a float32 (so a normal float64, or 0, inf, NaN). */
LN_FN double ln_pow_log2(double x) {
  uint64_t u = ln_bits_f64(x) + 0x3ff0000000000000u - 0x3fe5555555555555u;
  double e = ln_small(u >> 52) - 1023.0;
  double f = ln_from_bits_f64((u & 0xfffffffffffffu) + 0x3fe5555555555555u) - 1.0;
  double p = 0x1.42a573e0ccc22p-3;
  p = LN_FMA(p, f, -0x1.542f30d302c4ep-3);
  p = LN_FMA(p, f, 0x1.fa1ce3004347bp-4);
  p = LN_FMA(p, f, -0x1.19852774d729ap-3);
  p = LN_FMA(p, f, 0x1.49815891dd127p-3);
  p = LN_FMA(p, f, -0x1.724a747639b95p-3);
  p = LN_FMA(p, f, 0x1.a60b28e2e6df1p-3);
  p = LN_FMA(p, f, -0x1.ec687b933743bp-3);
  p = LN_FMA(p, f, 0x1.2776e22791dc8p-2);
  p = LN_FMA(p, f, -0x1.715484fad1b84p-2);
  p = LN_FMA(p, f, 0x1.ec709d900fd06p-2);
  p = LN_FMA(p, f, -0x1.7154764b33943p-1);
  p = LN_FMA(p, f, 0x1.71547652bbe3ap+0);
  double r = LN_FMA(p, f, e);
  r = x < LN_INF ? r : x;
  return x == 0.0 ? -LN_INF : r;
}

/* 2^x to some 2^-34, without a subnormal range: the rounding to float32 makes that. */
LN_FN double ln_pow_exp2(double x) {
  double c = x > 200.0 ? 200.0 : x;
  c = c < -200.0 ? -200.0 : c;
  double t = c + 0x1.8p52;
  double r = c - (t - 0x1.8p52);
  double p = 0x1.fde5f95fdc403p-17;
  p = LN_FMA(p, r, 0x1.445c8779512e0p-13);
  p = LN_FMA(p, r, 0x1.5d8a860bc3fadp-10);
  p = LN_FMA(p, r, 0x1.3b29f399551c0p-7);
  p = LN_FMA(p, r, 0x1.c6b08ac056d2ap-5);
  p = LN_FMA(p, r, 0x1.ebfbe0778b036p-3);
  p = LN_FMA(p, r, 0x1.62e42ff0e19efp-1);
  double scale = ln_from_bits_f64((ln_bits_f64(t) << 52) + 0x3ff0000000000000u);
  return LN_FMA(p, r, 1.0) * scale;
}

/* C's pow, which is NumPy's: x^0 = 1^y = 1 even for NaN, (-1)^inf = 1, a negative x takes an
 * integer y. Computed in float64: the exponent magnifies the logarithm's error. */
LN_FN float ln_powf(float x, float y) {
  float a = __builtin_fabsf(x);
  float half = 0.5f * y;
  int whole = __builtin_rintf(y) == y;
  int odd = whole & (__builtin_rintf(half) != half);
  float r = (float)ln_pow_exp2((double)y * ln_pow_log2((double)a));
  r = ((y == 0.0f) | (x == 1.0f) | ((a == 1.0f) & (y == y))) ? 1.0f : r;
  r = odd ? __builtin_copysignf(r, x) : r;
  return ((x < 0.0f) & (a < LN_INFF) & !whole) ? LN_NANF : r;
}

/* Libm is good for these in float64; they stay scalar. */
LN_FN double ln_pow(double x, double y) { return __builtin_pow(x, y); }
LN_FN double ln_sin(double x) { return __builtin_sin(x); }
LN_FN double ln_cos(double x) { return __builtin_cos(x); }
LN_FN double ln_tan(double x) { return __builtin_tan(x); }

#endif
