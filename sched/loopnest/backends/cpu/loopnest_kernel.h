/* What the printed C kernels of loopnest stand on, beside the functions of loopnest_math.h: narrow
 * floats, threads (OpenMP where the compiler has it, else one), and scratch memory.
 */
#ifndef LOOPNEST_KERNEL_H
#define LOOPNEST_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Store a value where the old one is found, else learn what is there: a step of an atomic update. */
#define LN_SWAP(place, old, value) \
  __atomic_compare_exchange(place, old, &(value), 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)

/* What a kernel returns. From LN_OUTSIDE on the number of a check of data that failed: no kernel ran
 * then. */
enum { LN_OK = 0, LN_OUT_OF_MEMORY = 1, LN_OUTSIDE = 2 };

typedef uint16_t half_t;
typedef uint16_t bfloat16_t;
typedef uint8_t float8_e4m3fn_t;
typedef uint8_t float8_e5m2_t;

/* Vectors of neighbouring elements, cut to the registers of the machine that is compiled for: wider
 * ones would go through memory. They may lie anywhere that an element may. */
#ifndef LN_VECTOR_BYTES
#if defined(__AVX512F__)
#define LN_VECTOR_BYTES 64
#elif defined(__AVX__)
#define LN_VECTOR_BYTES 32
#else
#define LN_VECTOR_BYTES 16
#endif
#endif
#define LN_VECTOR_TYPE(name, element, bytes)                                                   \
  typedef element name __attribute__((                                                         \
      vector_size((bytes) < LN_VECTOR_BYTES ? (bytes) : LN_VECTOR_BYTES), aligned(sizeof(element)), \
      may_alias))
LN_VECTOR_TYPE(ln_f32x4, float, 16);
LN_VECTOR_TYPE(ln_f32x8, float, 32);
LN_VECTOR_TYPE(ln_f32x16, float, 64);
LN_VECTOR_TYPE(ln_f64x2, double, 16);
LN_VECTOR_TYPE(ln_f64x4, double, 32);
LN_VECTOR_TYPE(ln_f64x8, double, 64);

/* The vector that begins with an element, the elements of a vector, one value in all of them. */
#define LN_VEC(type, element) (*(type *)&(element))
#define LN_LANES(type) ((idx_t)(sizeof(type) / sizeof((type){0}[0])))
#define LN_ALL(type, value) ((type)((value) - (type){0}))

/* Functions of vectors, lane by lane: those of loopnest_math.h, and what their templates ask for. A
 * mask is a vector of integers as wide as the elements, 0 or -1 in each lane. */
#define LN_V_BITS(U, x) ((U)(x))
#define LN_V_FROM(T, u) ((T)(u))
#define LN_V_ALL(T, x) ((x) - (T){0})
#define LN_V_PICK(T, U, c, a, b) \
  ((T)(((__typeof__(c))(a) & (c)) | ((__typeof__(c))(b) & ~(c)))) /* one blend to compilers */
#define LN_MASK_PICK(c, a, b) (((a) & (c)) | ((b) & ~(c)))
#define LN_V_SIGN(U) (((U){0} + 1) << (8 * sizeof((U){0}[0]) - 1))
#define LN_V_FMA(a, b, c) ((a) * (b) + (c))
#define LN_V_EACH(T, value)                                                            \
  T r = {0};                                                                           \
  _Pragma("GCC unroll 16") for (int e = 0; e < (int)(sizeof(T) / sizeof(r[0])); ++e) { \
    r[e] = (value);                                                                    \
  }                                                                                    \
  return r
static const int32_t ln_numbers_f32[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const int64_t ln_numbers_f64[8] = {0, 1, 2, 3, 4, 5, 6, 7};

/* Loads and stores of the lanes of a mask; nothing else is touched. Where all lanes are asked for,
 * a load is one without a mask: loads with one may not start the prefetch of the lines that follow
 * (Zen 5: three times the time from memory). */
#if defined(__AVX512F__) && !defined(__clang__)
#define LN_TEST_f32(mask) __builtin_ia32_ptestmd512((mask), (mask), -1)
#define LN_TEST_f64(mask) __builtin_ia32_ptestmq512((mask), (mask), -1)
#elif defined(__AVX512DQ__)
#define LN_TEST_f32(mask) __builtin_ia32_cvtd2mask512(mask)
#define LN_TEST_f64(mask) __builtin_ia32_cvtq2mask512(mask)
#endif
#if defined(LN_TEST_f32)
#define LN_LOAD_f32_64(T, from, mask) \
  __builtin_ia32_loadups512_mask((from), (T){0}, LN_TEST_f32(mask))
#define LN_LOAD_f64_64(T, from, mask) \
  __builtin_ia32_loadupd512_mask((from), (T){0}, LN_TEST_f64(mask))
#define LN_STORE_f32_64(T, to, mask, x) __builtin_ia32_storeups512_mask((to), (x), LN_TEST_f32(mask))
#define LN_STORE_f64_64(T, to, mask, x) __builtin_ia32_storeupd512_mask((to), (x), LN_TEST_f64(mask))
#define LN_IS_FULL_f32_64(mask) ((uint16_t)LN_TEST_f32(mask) == 0xffff)
#define LN_IS_FULL_f64_64(mask) ((uint8_t)LN_TEST_f64(mask) == 0xff)
#else
#define LN_LOAD_f32_64 LN_LOAD_LANES
#define LN_LOAD_f64_64 LN_LOAD_LANES
#define LN_STORE_f32_64 LN_STORE_LANES
#define LN_STORE_f64_64 LN_STORE_LANES
#define LN_IS_FULL_f32_64 LN_IS_NEVER_FULL
#define LN_IS_FULL_f64_64 LN_IS_NEVER_FULL
#endif
#if defined(__AVX__)
#define LN_LOAD_f32_32(T, from, mask) __builtin_ia32_maskloadps256((const void *)(from), (mask))
#define LN_LOAD_f64_32(T, from, mask) __builtin_ia32_maskloadpd256((const void *)(from), (mask))
#define LN_LOAD_f32_16(T, from, mask) __builtin_ia32_maskloadps((const void *)(from), (mask))
#define LN_LOAD_f64_16(T, from, mask) __builtin_ia32_maskloadpd((const void *)(from), (mask))
#define LN_STORE_f32_32(T, to, mask, x) __builtin_ia32_maskstoreps256((void *)(to), (mask), (x))
#define LN_STORE_f64_32(T, to, mask, x) __builtin_ia32_maskstorepd256((void *)(to), (mask), (x))
#define LN_STORE_f32_16(T, to, mask, x) __builtin_ia32_maskstoreps((void *)(to), (mask), (x))
#define LN_STORE_f64_16(T, to, mask, x) __builtin_ia32_maskstorepd((void *)(to), (mask), (x))
#define LN_IS_FULL_f32_32(mask) (__builtin_ia32_movmskps256((ln_f32x8)(mask)) == 0xff)
#define LN_IS_FULL_f64_32(mask) (__builtin_ia32_movmskpd256((ln_f64x4)(mask)) == 0xf)
#define LN_IS_FULL_f32_16(mask) (__builtin_ia32_movmskps((ln_f32x4)(mask)) == 0xf)
#define LN_IS_FULL_f64_16(mask) (__builtin_ia32_movmskpd((ln_f64x2)(mask)) == 0x3)
#else
#define LN_LOAD_f32_32 LN_LOAD_LANES
#define LN_LOAD_f64_32 LN_LOAD_LANES
#define LN_LOAD_f32_16 LN_LOAD_LANES
#define LN_LOAD_f64_16 LN_LOAD_LANES
#define LN_STORE_f32_32 LN_STORE_LANES
#define LN_STORE_f64_32 LN_STORE_LANES
#define LN_STORE_f32_16 LN_STORE_LANES
#define LN_STORE_f64_16 LN_STORE_LANES
#define LN_IS_FULL_f32_32 LN_IS_NEVER_FULL
#define LN_IS_FULL_f64_32 LN_IS_NEVER_FULL
#define LN_IS_FULL_f32_16 LN_IS_NEVER_FULL
#define LN_IS_FULL_f64_16 LN_IS_NEVER_FULL
#endif
#define LN_IS_NEVER_FULL(mask) 0 /* lane by lane in any case */
#define LN_LOAD_LANES(T, from, mask)                                                   \
  ({                                                                                   \
    T some = {0};                                                                      \
    for (int e = 0; e < (int)(sizeof(T) / sizeof(some[0])); ++e) {                     \
      if ((mask)[e]) some[e] = (from)[e];                                              \
    }                                                                                  \
    some;                                                                              \
  })
#define LN_STORE_LANES(T, to, mask, x)                                                 \
  do {                                                                                 \
    for (int e = 0; e < (int)(sizeof(T) / sizeof((x)[0])); ++e) {                      \
      if ((mask)[e]) (to)[e] = (x)[e];                                                 \
    }                                                                                  \
  } while (0)

/* Elements `step` apart. Of two vectors, the second ends at the last one: no other is read. */
#if defined(__clang__)
#define LN_EVERY(T, U, I, from, step) LN_V_EACH(T, (from)[e * (step)])
#define LN_EVERY_OF(kind, bytes, T, I, from, step, mask) \
  LN_V_EACH(T, (mask)[e] ? (from)[e * (step)] : 0)
#else
#define LN_EVERY(T, U, I, from, step)                                                  \
  enum { lanes = sizeof(T) / sizeof(*(from)) };                                        \
  if (step == 2 || step == -1) {                                                       \
    const T first = *(const T *)((from) + (step < 0 ? 1 - lanes : 0));                 \
    const T second = *(const T *)((from) + (step < 0 ? 1 - lanes : lanes - 1));        \
    I places;                                                                          \
    _Pragma("GCC unroll 16") for (int e = 0; e < lanes; ++e) {                         \
      places[e] = step < 0 ? lanes - 1 - e : e < lanes / 2 ? 2 * e : 2 * e + 1;        \
    }                                                                                  \
    return __builtin_shuffle(first, second, places);                                   \
  }                                                                                    \
  LN_V_EACH(T, (from)[e * (step)])
/* The same of the lanes of a mask: what lies between two elements is not asked for. */
#define LN_EVERY_OF(kind, bytes, T, I, from, step, mask)                               \
  enum { lanes = sizeof(T) / sizeof(*(from)) };                                        \
  if (step == 2 || step == -1) {                                                       \
    I places, near, far, wanted_near, wanted_far;                                      \
    _Pragma("GCC unroll 16") for (int e = 0; e < lanes; ++e) {                         \
      near[e] = step < 0 ? lanes - 1 - e : e / 2;                                      \
      far[e] = step < 0 ? 0 : (lanes - 1 + e) / 2;                                     \
      wanted_near[e] = -(step < 0 || e % 2 == 0);                                      \
      wanted_far[e] = -(step > 0 && e % 2 == 1);                                       \
      places[e] = step < 0 ? lanes - 1 - e : e < lanes / 2 ? 2 * e : 2 * e + 1;        \
    }                                                                                  \
    near = __builtin_shuffle((mask), near) & wanted_near;                              \
    far = __builtin_shuffle((mask), far) & wanted_far;                                 \
    const T first = LN_LOAD(kind, bytes)(T, (from) + (step < 0 ? 1 - lanes : 0), near); \
    const T second = LN_LOAD(kind, bytes)(T, (from) + lanes - 1, far);                 \
    return __builtin_shuffle(first, step < 0 ? first : second, places);                \
  }                                                                                    \
  LN_V_EACH(T, (mask)[e] ? (from)[e * (step)] : 0)
#endif

/* a > b ? a : b, and a < b ? a : b: one instruction of x86, which gives b where one is NaN. */
#define LN_MAX_LANES(T, U, a, b) LN_V_PICK(T, U, (a) > (b), (a), (b))
#define LN_MIN_LANES(T, U, a, b) LN_V_PICK(T, U, (a) < (b), (a), (b))
#if defined(__AVX512F__) && !defined(__clang__)
#define LN_MAX_f32_64(T, U, a, b) __builtin_ia32_maxps512_mask((a), (b), (T){0}, -1, 4)
#define LN_MIN_f32_64(T, U, a, b) __builtin_ia32_minps512_mask((a), (b), (T){0}, -1, 4)
#define LN_MAX_f64_64(T, U, a, b) __builtin_ia32_maxpd512_mask((a), (b), (T){0}, -1, 4)
#define LN_MIN_f64_64(T, U, a, b) __builtin_ia32_minpd512_mask((a), (b), (T){0}, -1, 4)
#else
#define LN_MAX_f32_64 LN_MAX_LANES
#define LN_MIN_f32_64 LN_MIN_LANES
#define LN_MAX_f64_64 LN_MAX_LANES
#define LN_MIN_f64_64 LN_MIN_LANES
#endif
#if defined(__AVX__)
#define LN_MAX_f32_32(T, U, a, b) __builtin_ia32_maxps256((a), (b))
#define LN_MIN_f32_32(T, U, a, b) __builtin_ia32_minps256((a), (b))
#define LN_MAX_f64_32(T, U, a, b) __builtin_ia32_maxpd256((a), (b))
#define LN_MIN_f64_32(T, U, a, b) __builtin_ia32_minpd256((a), (b))
#else
#define LN_MAX_f32_32 LN_MAX_LANES
#define LN_MIN_f32_32 LN_MIN_LANES
#define LN_MAX_f64_32 LN_MAX_LANES
#define LN_MIN_f64_32 LN_MIN_LANES
#endif
#if defined(__SSE2__)
#define LN_MAX_f32_16(T, U, a, b) __builtin_ia32_maxps((a), (b))
#define LN_MIN_f32_16(T, U, a, b) __builtin_ia32_minps((a), (b))
#define LN_MAX_f64_16(T, U, a, b) __builtin_ia32_maxpd((a), (b))
#define LN_MIN_f64_16(T, U, a, b) __builtin_ia32_minpd((a), (b))
#else
#define LN_MAX_f32_16 LN_MAX_LANES
#define LN_MIN_f32_16 LN_MIN_LANES
#define LN_MAX_f64_16 LN_MAX_LANES
#define LN_MIN_f64_16 LN_MIN_LANES
#endif

#define LN_VECTOR_MATH(N, kind, bytes, T, F, U, I, integer, f, FUNCTIONS) \
  typedef unsigned integer U __attribute__((vector_size(sizeof(T))));                        \
  typedef integer I __attribute__((vector_size(sizeof(T))));                           \
  LN_FN T N(larger)(T a, T b) { return LN_MAX(kind, bytes)(T, U, a, b); }              \
  LN_FN T N(smaller)(T a, T b) { return LN_MIN(kind, bytes)(T, U, a, b); }             \
  FUNCTIONS(N, LN_V_, T, U, I)                                                         \
  LN_FN T N(where)(I c, T a, T b) { return LN_V_PICK(T, U, c, a, b); } \
  LN_FN T N(max)(T a, T b) { return N(where)((I)(a != a), a, N(larger)(a, b)); } \
  LN_FN T N(min)(T a, T b) { return N(where)((I)(a != a), a, N(smaller)(a, b)); } \
  LN_FN T N(abs)(T x) { return (T)((U)x & ~LN_V_SIGN(U)); }                            \
  LN_FN T N(sqrt)(T x) { LN_V_EACH(T, __builtin_sqrt##f(x[e])); }                      \
  LN_FN T N(rsqrt)(T x) { return (F)1 / N(sqrt)(x); }                                  \
  LN_FN T N(floor)(T x) { LN_V_EACH(T, __builtin_floor##f(x[e])); }                    \
  LN_FN T N(ceil)(T x) { LN_V_EACH(T, __builtin_ceil##f(x[e])); }                      \
  LN_FN T N(trunc)(T x) { LN_V_EACH(T, __builtin_trunc##f(x[e])); }                    \
  LN_FN T N(round)(T x) { LN_V_EACH(T, __builtin_rint##f(x[e])); }                     \
  LN_FN T N(fma)(T a, T b, T c) { LN_V_EACH(T, __builtin_fma##f(a[e], b[e], c[e])); }  \
  LN_FN I N(first)(int64_t count) { /* the lanes below `count` */                      \
    I numbers;                                                                         \
    const int64_t lanes = sizeof(T) / sizeof(F);                                       \
    __builtin_memcpy(&numbers, ln_numbers_##kind, sizeof numbers);                   \
    return numbers < (integer)(count < 0 ? 0 : count < lanes ? count : lanes);         \
  }                                                                                    \
  LN_FN int N(is_full)(I mask) { return LN_IS_FULL(kind, bytes)(mask); }               \
  LN_FN T N(load)(const F *from, I mask) {                                             \
    if (LN_IS_FULL(kind, bytes)(mask)) return *(const T *)from;                        \
    return LN_LOAD(kind, bytes)(T, from, mask);                                        \
  }                                                                                    \
  typedef uint8_t T##_flags                                                            \
      __attribute__((vector_size(sizeof(T) / sizeof(F)), aligned(1), may_alias));      \
  LN_FN I N(load_mask)(const uint8_t *from) {                                          \
    return __builtin_convertvector(*(const T##_flags *)from, I) != 0;                  \
  }                                                                                    \
  LN_FN I N(load_mask_of)(const uint8_t *from, I mask) {                               \
    if (LN_IS_FULL(kind, bytes)(mask)) return N(load_mask)(from);                      \
    LN_V_EACH(I, mask[e] && from[e] ? -1 : 0);                                         \
  }                                                                                    \
  LN_FN void N(store_mask)(uint8_t *to, I x) {                                         \
    *(T##_flags *)to = __builtin_convertvector(x, T##_flags) & 1;                      \
  }                                                                                    \
  LN_FN void N(store_mask_of)(uint8_t *to, I mask, I x) {                              \
    if (LN_IS_FULL(kind, bytes)(mask)) return N(store_mask)(to, x);                    \
    for (int e = 0; e < (int)(sizeof(T) / sizeof(F)); ++e) {                           \
      if (mask[e]) to[e] = x[e] & 1;                                                   \
    }                                                                                  \
  }                                                                                    \
  LN_FN T N(every)(const F *from, int64_t step) { LN_EVERY(T, U, I, from, step); }     \
  LN_FN T N(every_of)(const F *from, int64_t step, I mask) {                           \
    if (LN_IS_FULL(kind, bytes)(mask)) return N(every)(from, step);                    \
    LN_EVERY_OF(kind, bytes, T, I, from, step, mask);                                  \
  }                                                                                    \
  LN_FN void N(store)(F *to, I mask, T x) { LN_STORE(kind, bytes)(T, to, mask, x); }
#define LN_PASTE(a, b) LN_PASTE_(a, b)
#define LN_PASTE_(a, b) a##b
#define LN_LOAD(kind, bytes) LN_PASTE(LN_LOAD_##kind##_, bytes)
#define LN_IS_FULL(kind, bytes) LN_PASTE(LN_IS_FULL_##kind##_, bytes)
#define LN_MAX(kind, bytes) LN_PASTE(LN_MAX_##kind##_, bytes)
#define LN_MIN(kind, bytes) LN_PASTE(LN_MIN_##kind##_, bytes)
#define LN_STORE(kind, bytes) LN_PASTE(LN_STORE_##kind##_, bytes)
#define LN_VECTOR_F32(N, T, bytes) \
  LN_VECTOR_MATH(N, f32, bytes, T, float, T##_bits, T##_mask, int, f, LN_FLOAT32_FUNCTIONS)
#define LN_VECTOR_F64(N, T, bytes) \
  LN_VECTOR_MATH(N, f64, bytes, T, double, T##_bits, T##_mask, long long, , LN_FLOAT64_FUNCTIONS)
#if LN_VECTOR_BYTES >= 32
#define LN_CUT_32 32
#else
#define LN_CUT_32 16
#endif
#define LN_NAME_F32X4(name) ln_f32x4_##name
#define LN_NAME_F32X8(name) ln_f32x8_##name
#define LN_NAME_F32X16(name) ln_f32x16_##name
#define LN_NAME_F64X2(name) ln_f64x2_##name
#define LN_NAME_F64X4(name) ln_f64x4_##name
#define LN_NAME_F64X8(name) ln_f64x8_##name
/* A kernel that calls functions of a vector type puts the line in front that defines them. */
#define LN_FUNCTIONS_f32x4 LN_VECTOR_F32(LN_NAME_F32X4, ln_f32x4, 16)
#define LN_FUNCTIONS_f32x8 LN_VECTOR_F32(LN_NAME_F32X8, ln_f32x8, LN_CUT_32)
#define LN_FUNCTIONS_f32x16 LN_VECTOR_F32(LN_NAME_F32X16, ln_f32x16, LN_VECTOR_BYTES)
#define LN_FUNCTIONS_f64x2 LN_VECTOR_F64(LN_NAME_F64X2, ln_f64x2, 16)
#define LN_FUNCTIONS_f64x4 LN_VECTOR_F64(LN_NAME_F64X4, ln_f64x4, LN_CUT_32)
#define LN_FUNCTIONS_f64x8 LN_VECTOR_F64(LN_NAME_F64X8, ln_f64x8, LN_VECTOR_BYTES)

/* Stores of whole cache lines past the caches, where a buffer is larger than the last of them. What
 * was stored so is seen by other threads behind a fence. */
#ifndef LN_LAST_CACHE
#define LN_LAST_CACHE (32 << 20)
#endif
#ifndef LN_FAST_MEMORY /* 1 where a core is fed faster than it computes functions */
#define LN_FAST_MEMORY 0
#endif
#define LN_PAST_CACHES(count, element) ((uint64_t)(count) * sizeof(element) > LN_LAST_CACHE)
#if defined(__clang__)
#define LN_NONTEMPORAL_F32(to, value) __builtin_nontemporal_store((value), (ln_f32x16 *)(to))
#define LN_NONTEMPORAL_F64(to, value) __builtin_nontemporal_store((value), (ln_f64x8 *)(to))
#elif LN_VECTOR_BYTES == 64 && defined(__AVX512F__)
#define LN_NONTEMPORAL_F32(to, value) __builtin_ia32_movntps512((to), (value))
#define LN_NONTEMPORAL_F64(to, value) __builtin_ia32_movntpd512((to), (value))
#elif LN_VECTOR_BYTES == 32 && defined(__AVX__)
#define LN_NONTEMPORAL_F32(to, value) __builtin_ia32_movntps256((to), (value))
#define LN_NONTEMPORAL_F64(to, value) __builtin_ia32_movntpd256((to), (value))
#elif LN_VECTOR_BYTES == 16 && defined(__SSE2__)
#define LN_NONTEMPORAL_F32(to, value) __builtin_ia32_movntps((to), (value))
#define LN_NONTEMPORAL_F64(to, value) __builtin_ia32_movntpd((to), (value))
#else
#define LN_NONTEMPORAL_F32(to, value) (*(ln_f32x16 *)(to) = (value))
#define LN_NONTEMPORAL_F64(to, value) (*(ln_f64x8 *)(to) = (value))
#endif
#if defined(__SSE2__)
#define LN_FENCE() __builtin_ia32_sfence()
#else
#define LN_FENCE() __atomic_thread_fence(__ATOMIC_RELEASE)
#endif
#define LN_STREAM_TYPE(name, element, store)                                           \
  static inline __attribute__((unused, always_inline)) void name##_stream(             \
      element *to, name value, bool past) {                                            \
    if (past && (uintptr_t)to % sizeof(name) == 0) {                                   \
      store(to, value);                                                                \
    } else {                                                                           \
      *(name *)to = value;                                                             \
    }                                                                                  \
  }
LN_STREAM_TYPE(ln_f32x16, float, LN_NONTEMPORAL_F32)
LN_STREAM_TYPE(ln_f64x8, double, LN_NONTEMPORAL_F64)

/* A square tile as wide as a cache line: rows become columns, in registers. Stage h takes rows r and
 * r + h. Within 16 bytes it interleaves their blocks of h elements, which is one instruction for
 * registers of any width: the lower halves go to row r, the upper ones to row r + h. That leaves the
 * columns of 16 bytes with the bits of their numbers reversed. Beyond 16 bytes rows exchange blocks
 * of h elements. A stage lists the places of the lower halves among those of both rows; the upper
 * ones are `up` places further. The lists are literals, since compilers choose the instruction
 * before they unroll loops. */
#if defined(__clang__)
#define LN_SHUFFLE(places, a, b, ...) __builtin_shufflevector((a), (b), __VA_ARGS__)
#else
#define LN_SHUFFLE(places, a, b, ...) __builtin_shuffle((a), (b), (places){__VA_ARGS__})
#endif
#define LN_UP2(up, a, b) (a) + (up), (b) + (up)
#define LN_UP4(up, a, b, c, d) LN_UP2(up, a, b), LN_UP2(up, c, d)
#define LN_UP8(up, a, b, c, d, ...) LN_UP4(up, a, b, c, d), LN_UP4(up, __VA_ARGS__)
#define LN_UP16(up, a, b, c, d, e, f, g, h, ...) \
  LN_UP8(up, a, b, c, d, e, f, g, h), LN_UP8(up, __VA_ARGS__)
#define LN_STAGE(h, up, UP, ...)                                                       \
  _Pragma("GCC unroll 16") for (int r = 0; r < lanes; ++r) {                           \
    if (!(r & h)) {                                                                    \
      const vector low = LN_SHUFFLE(places, a[r], a[r | h], UP(0, __VA_ARGS__));       \
      a[r | h] = LN_SHUFFLE(places, a[r], a[r | h], UP(up, __VA_ARGS__));              \
      a[r] = low;                                                                      \
    }                                                                                  \
  }
#if LN_VECTOR_BYTES == 64
#define LN_STAGES_F32                                                                            \
  LN_STAGE(1, 2, LN_UP16, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)              \
  LN_STAGE(2, 2, LN_UP16, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)              \
  LN_STAGE(4, 4, LN_UP16, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)              \
  LN_STAGE(8, 8, LN_UP16, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define LN_STAGES_F64                            \
  LN_STAGE(1, 1, LN_UP8, 0, 8, 2, 10, 4, 12, 6, 14) \
  LN_STAGE(2, 2, LN_UP8, 0, 1, 8, 9, 4, 5, 12, 13)  \
  LN_STAGE(4, 4, LN_UP8, 0, 1, 2, 3, 8, 9, 10, 11)
#elif LN_VECTOR_BYTES == 32
#define LN_STAGES_F32                              \
  LN_STAGE(1, 2, LN_UP8, 0, 8, 1, 9, 4, 12, 5, 13) \
  LN_STAGE(2, 2, LN_UP8, 0, 1, 8, 9, 4, 5, 12, 13) \
  LN_STAGE(4, 4, LN_UP8, 0, 1, 2, 3, 8, 9, 10, 11)
#define LN_STAGES_F64 LN_STAGE(1, 1, LN_UP4, 0, 4, 2, 6) LN_STAGE(2, 2, LN_UP4, 0, 1, 4, 5)
#else
#define LN_STAGES_F32 LN_STAGE(1, 2, LN_UP4, 0, 4, 1, 5) LN_STAGE(2, 2, LN_UP4, 0, 1, 4, 5)
#define LN_STAGES_F64 LN_STAGE(1, 1, LN_UP2, 0, 2)
#endif

/* Registers that are narrower than the line take parts of a copy of the tile: parts of lines far
 * apart would come from memory again. The parts of a line of the result are stored together, or it
 * would go past the caches in pieces. */
#define LN_TRANSPOSE_TYPE(name, element, integer, STAGES)                              \
  static inline __attribute__((unused, always_inline)) void name##_transpose(          \
      element *to, int64_t to_step, const element *from, int64_t from_step, bool past) {\
    typedef name vector;                                                               \
    typedef integer places __attribute__((unused, vector_size(sizeof(vector))));       \
    enum { lanes = sizeof(vector) / sizeof(element), side = 64 / sizeof(element) };    \
    element tile[side * side] __attribute__((aligned(64)));                            \
    element lines[lanes * side] __attribute__((unused, aligned(64)));                  \
    if (lanes < side) {                                                                \
      for (int r = 0; r < side; ++r)                                                   \
        for (int e = 0; e < side; ++e) tile[r * side + e] = from[r * from_step + e];   \
      from = tile;                                                                     \
      from_step = side;                                                                \
    }                                                                                  \
    for (int j = 0; j < side; j += lanes) {                                            \
      _Pragma("GCC unroll 4") for (int i = 0; i < side; i += lanes) {                  \
        vector a[lanes];                                                               \
        _Pragma("GCC unroll 16") for (int r = 0; r < lanes; ++r) {                     \
          a[r] = *(const vector *)(from + (i + r) * from_step + j);                    \
        }                                                                              \
        STAGES                                                                         \
        _Pragma("GCC unroll 16") for (int r = 0; r < lanes; ++r) {                     \
          const int swapped = (r & ~3) | (r & 1) << 1 | (r >> 1 & 1);                  \
          const int column = sizeof(element) == 4 ? swapped : r;                       \
          element *line = to + (j + column) * to_step;                                 \
          if (i + lanes < side) {                                                      \
            *(vector *)(lines + column * side + i) = a[r];                             \
            continue;                                                                  \
          }                                                                            \
          _Pragma("GCC unroll 4") for (int e = 0; e < i; e += lanes) {                 \
            name##_stream(line + e, *(const vector *)(lines + column * side + e), past);\
          }                                                                            \
          name##_stream(line + i, a[r], past);                                         \
        }                                                                              \
      }                                                                                \
    }                                                                                  \
  }
LN_TRANSPOSE_TYPE(ln_f32x16, float, int32_t, LN_STAGES_F32)
LN_TRANSPOSE_TYPE(ln_f64x8, double, int64_t, LN_STAGES_F64)

/* Tells the compiler what holds at this place: the mask of a row whose loop begins and ends with it
 * is true in that loop. */
#if defined(__GNUC__)
#define LN_HOLDS(condition) do { if (!(condition)) __builtin_unreachable(); } while (0)
#else
#define LN_HOLDS(condition) ((void)0)
#endif

/* Keeps a loop around it from being vectorized. GCC 12 turns loads that tests choose, a few elements
 * apart, into one of neighbours under a mask (-O3 with AVX2), where it has unrolled all inner loops:
 * of a fold that keeps its last value it then returns others. */
#define LN_APART() __asm__ volatile("")

/* The work of one thread. A function of its own, so that its pointers stay `restrict`: the body of
 * a parallel region would reach them through memory, and loops would be compiled for aliases. */
#if defined(__GNUC__) && !defined(__clang__) /* no second copy for a team of one */
#define LN_WORK static __attribute__((noinline, noclone)) void
#else
#define LN_WORK static __attribute__((noinline)) void
#endif

/* How many threads a kernel may use; one where it is itself called by one of a team. */
static inline __attribute__((unused)) int ln_max_threads(void) {
#ifdef _OPENMP
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

static inline __attribute__((unused)) int ln_thread(void) {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

/* The size of a team that has `count` iterations to share, in which it stores `stores` values: so
 * few that they are done before a second thread is awake are not worth one. */
#ifndef LN_STORES_A_THREAD
#define LN_STORES_A_THREAD (1 << 14)
#endif
static inline __attribute__((unused)) int ln_team(int threads, int64_t count, int64_t stores) {
  const int64_t paying = 1 + stores / LN_STORES_A_THREAD;
  const int64_t most = count < paying ? count : paying;
  return most >= threads ? threads : most < 1 ? 1 : (int)most;
}

/* Where the share of the calling thread starts (end 0) and stops (end 1). */
static inline __attribute__((unused)) int64_t ln_share(int64_t count, int end) {
#ifdef _OPENMP
  int64_t team = omp_get_num_threads(), number = ln_thread() + end;
  int64_t rest = count % team;
  return count / team * number + (number < rest ? number : rest);
#else
  return end ? count : 0;
#endif
}

/* Whether an element of x lies outside of low..high - 1. Without a branch, so that compilers take
 * vectors; by several threads where there is so much that memory is slower than one of them. */
#define LN_OUTSIDE_OF(name, element, least, greatest)                                            \
  static inline __attribute__((unused)) bool ln_scan_##name(                                     \
      const element *x, int64_t from, int64_t to, element low, element last) {                   \
    element found = 0;                                                                           \
    for (int64_t i = from; i < to; ++i) found |= (element)((x[i] < low) | (x[i] > last));        \
    return found != 0;                                                                           \
  }                                                                                              \
  static __attribute__((unused, noinline)) bool ln_outside_##name(                               \
      const element *x, int64_t count, int64_t low, int64_t high) {                              \
    if (count < 1) return false;                                                                 \
    if (low >= high || low > (greatest) || high <= (least)) return true;                         \
    const element a = low < (least) ? (least) : (element)low;                                    \
    const element b = high > (greatest) ? (greatest) : (element)(high - 1);                      \
    const int team = ln_team(ln_max_threads(), count, count / 4);                                \
    if (team < 2) return ln_scan_##name(x, 0, count, a, b);                                      \
    int found = 0;                                                                               \
    _Pragma("omp parallel num_threads(team) reduction(| : found)") {                             \
      found |= ln_scan_##name(x, ln_share(count, 0), ln_share(count, 1), a, b);                  \
    }                                                                                            \
    return found != 0;                                                                           \
  }
/* Whether an element of x is below the one before it. */
#define LN_DESCENDS(name, element)                                                               \
  static inline __attribute__((unused)) bool ln_descends_##name(                                 \
      const element *x, int64_t count, int64_t step) {                                           \
    element found = 0;                                                                           \
    for (int64_t i = 1; i < count; ++i) found |= (element)(x[i * step] < x[(i - 1) * step]);     \
    return found != 0;                                                                           \
  }
LN_DESCENDS(int8, int8_t)
LN_DESCENDS(int16, int16_t)
LN_DESCENDS(int32, int32_t)
LN_DESCENDS(int64, int64_t)
LN_DESCENDS(uint8, uint8_t)
LN_DESCENDS(uint16, uint16_t)
LN_DESCENDS(uint32, uint32_t)
LN_OUTSIDE_OF(int8, int8_t, INT8_MIN, INT8_MAX)
LN_OUTSIDE_OF(int16, int16_t, INT16_MIN, INT16_MAX)
LN_OUTSIDE_OF(int32, int32_t, INT32_MIN, INT32_MAX)
LN_OUTSIDE_OF(int64, int64_t, INT64_MIN, INT64_MAX)
LN_OUTSIDE_OF(uint8, uint8_t, 0, UINT8_MAX)
LN_OUTSIDE_OF(uint16, uint16_t, 0, UINT16_MAX)
LN_OUTSIDE_OF(uint32, uint32_t, 0, UINT32_MAX)

/* Whether two elements of a line choose the same of 0..extent - 1: each marks what it chooses. What
 * there is no memory to mark counts as chosen twice. */
#define LN_REPEATED_OF(name, element)                                                            \
  static __attribute__((unused, noinline)) bool ln_repeated_##name(                              \
      const element *x, int64_t count, int64_t stride, int64_t extent) {                         \
    if (count < 2 || extent < 1) return false;                                                   \
    char *const marks = (char *)__builtin_calloc((size_t)extent, 1);                             \
    if (marks == NULL) return true;                                                              \
    char twice = 0;                                                                              \
    for (int64_t i = 0; i < count; ++i) {                                                        \
      const int64_t at = (int64_t)x[i * stride];                                                 \
      if (at < 0 || at >= extent) continue;                                                      \
      twice |= marks[at];                                                                        \
      marks[at] = 1;                                                                             \
    }                                                                                            \
    __builtin_free(marks);                                                                       \
    return twice != 0;                                                                           \
  }
LN_REPEATED_OF(int8, int8_t)
LN_REPEATED_OF(int16, int16_t)
LN_REPEATED_OF(int32, int32_t)
LN_REPEATED_OF(int64, int64_t)
LN_REPEATED_OF(uint8, uint8_t)
LN_REPEATED_OF(uint16, uint16_t)
LN_REPEATED_OF(uint32, uint32_t)

/* Scratch memory: one piece a thread, in which every buffer has a fixed place, so that making one
 * costs nothing and memory can run out only before the kernel starts. Sizes saturate. */
static inline __attribute__((unused)) size_t ln_reserve(size_t *end, int64_t count, size_t width) {
  const size_t limit = SIZE_MAX >> 16, start = *end;
  size_t elements = count < 0 ? 0 : (uint64_t)count > limit ? limit : (size_t)count;
  size_t bytes = elements > limit / width ? limit : elements * width;
  *end = start > limit ? start : start + (bytes + 127) / 64 * 64;
  return start;
}

static inline __attribute__((unused)) char *ln_scratch_new(void **memory, int threads, size_t bytes) {
  *memory = bytes > (SIZE_MAX >> 16) / (size_t)threads ? NULL : __builtin_malloc(bytes * (size_t)threads + 64);
  return (char *)(((uintptr_t)*memory + 63) / 64 * 64);
}

/* Whether the calling block is the last of `count` that arrive at a counter, which starts at 0 and
 * is 0 again after the last one. That one sees all that the others wrote before they arrived. */
static inline __attribute__((unused)) bool ln_arrive(int32_t *counter, int64_t count) {
  const bool last = __atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL) + 1 == count;
  if (last) __atomic_store_n(counter, 0, __ATOMIC_RELAXED);
  return last;
}

/* A choice of which both values are evaluated. */
#define LN_SELECT(name, type) \
  static inline __attribute__((unused)) type ln_select_##name(bool choice, type a, type b) { \
    return choice ? a : b; \
  }
LN_SELECT(bool, bool)
LN_SELECT(int8, int8_t)
LN_SELECT(uint8, uint8_t)
LN_SELECT(int16, int16_t)
LN_SELECT(uint16, uint16_t)
LN_SELECT(int32, int32_t)
LN_SELECT(uint32, uint32_t)
LN_SELECT(int64, int64_t)
LN_SELECT(float16, half_t)
LN_SELECT(bfloat16, bfloat16_t)
LN_SELECT(float8_e4m3fn, float8_e4m3fn_t)
LN_SELECT(float8_e5m2, float8_e5m2_t)
LN_SELECT(float32, float)
LN_SELECT(float64, double)

/* NumPy's floor_divide. */
static inline __attribute__((unused)) float ln_floordivf(float a, float b) {
  float q = (a - ln_modf(a, b)) / b, whole = __builtin_floorf(q);
  whole += q - whole > 0.5f ? 1.0f : 0.0f;
  return b == 0.0f ? a / b : q == 0.0f ? __builtin_copysignf(0.0f, a / b) : whole;
}

static inline __attribute__((unused)) double ln_floordiv(double a, double b) {
  double q = (a - ln_mod(a, b)) / b, whole = __builtin_floor(q);
  whole += q - whole > 0.5 ? 1.0 : 0.0;
  return b == 0.0 ? a / b : q == 0.0 ? __builtin_copysign(0.0, a / b) : whole;
}

#endif
