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

/* What a kernel returns. */
enum { LN_OK = 0, LN_OUT_OF_MEMORY = 1 };

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
#define LN_ALL(type, value) ((value) - (type){0})

/* Stores of whole cache lines past the caches, where a buffer is larger than the last of them. What
 * was stored so is seen by other threads behind a fence. */
#ifndef LN_LAST_CACHE
#define LN_LAST_CACHE (32 << 20)
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

/* A square tile as wide as a cache line: rows become columns, in registers. In stage h, rows r and
 * r + h exchange blocks of h elements. Narrower registers take parts of a copy of the tile. */
#if defined(__clang__)
#define LN_EXCHANGE(a, b, first, second)                                               \
  for (int e = 0; e < lanes; ++e) {                                                    \
    both[e] = (a)[e];                                                                  \
    both[lanes + e] = (b)[e];                                                          \
  }                                                                                    \
  for (int e = 0; e < lanes; ++e) {                                                    \
    (a)[e] = both[(first)[e]];                                                         \
    (b)[e] = both[(second)[e]];                                                        \
  }
#else
#define LN_EXCHANGE(a, b, first, second)                                               \
  const vector low = __builtin_shuffle((a), (b), (first));                             \
  (b) = __builtin_shuffle((a), (b), (second));                                         \
  (a) = low;
#endif
#define LN_TRANSPOSE_TYPE(name, element, integer)                                      \
  static inline __attribute__((unused, always_inline)) void name##_transpose(          \
      element *to, int64_t to_step, const element *from, int64_t from_step, bool past) { \
    typedef name vector;                                                               \
    typedef integer places __attribute__((vector_size(sizeof(vector))));               \
    enum { lanes = sizeof(vector) / sizeof(element), side = 64 / sizeof(element) };    \
    element tile[side * side] __attribute__((aligned(64)));                            \
    if (lanes < side) { /* parts of lines far apart would come from memory again */    \
      for (int r = 0; r < side; ++r)                                                   \
        for (int e = 0; e < side; ++e) tile[r * side + e] = from[r * from_step + e];   \
      from = tile;                                                                     \
      from_step = side;                                                                \
    }                                                                                  \
    element both[2 * lanes] __attribute__((unused));                                   \
    for (int j = 0; j < side; j += lanes) {                                            \
      for (int i = 0; i < side; i += lanes) {                                          \
        vector a[lanes];                                                               \
        _Pragma("GCC unroll 16") for (int r = 0; r < lanes; ++r) {                     \
          a[r] = *(const vector *)(from + (i + r) * from_step + j);                    \
        }                                                                              \
        _Pragma("GCC unroll 4") for (int h = 1; h < lanes; h *= 2) {                   \
          _Pragma("GCC unroll 16") for (int r = 0; r < lanes; ++r) {                   \
            if (!(r & h)) {                                                            \
              places first, second;                                                    \
              _Pragma("GCC unroll 16") for (int e = 0; e < lanes; ++e) {               \
                first[e] = e & h ? lanes + (e ^ h) : e;                                \
                second[e] = e & h ? lanes + e : e | h;                                 \
              }                                                                        \
              LN_EXCHANGE(a[r], a[r | h], first, second)                               \
            }                                                                          \
          }                                                                            \
        }                                                                              \
        _Pragma("GCC unroll 16") for (int r = 0; r < lanes; ++r) {                     \
          name##_stream(to + (j + r) * to_step + i, a[r], past);                     \
        }                                                                              \
      }                                                                                \
    }                                                                                  \
  }
LN_TRANSPOSE_TYPE(ln_f32x16, float, int32_t)
LN_TRANSPOSE_TYPE(ln_f64x8, double, int64_t)

/* The work of one thread. A function of its own, so that its pointers stay `restrict`: the body of
 * a parallel region would reach them through memory, and loops would be compiled for aliases. */
#define LN_WORK static __attribute__((noinline)) void

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
