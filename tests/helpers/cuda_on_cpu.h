/* CUDA C++ as printed, on a CPU: a thread is a coroutine, which runs from one place where threads
   meet to the next, in an order that a seed decides. Blocks run at the same time, and in turns.

   What a GPU would not forgive ends the launch with a sentence: threads of a block that meet at
   different barriers, a lane that a mask names and that does not come, an assumption that does not
   hold. What nobody wrote is NaN or, in registers, a pattern of bits; the value of a lane outside
   of the mask is NaN, too. One launch at a time. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("cpu_shared")))
#define __builtin_assume(x) do { if (!(x)) cpu_fail("an assumption does not hold"); } while (0)

extern "C" char __start_cpu_shared[] __attribute__((weak));
extern "C" char __stop_cpu_shared[] __attribute__((weak));

struct Numbers { unsigned x, y, z; };
enum State { RUNS, AT_BARRIER, IN_WARP, ENDED };

struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  Numbers index;
  unsigned number, block;
  State state;
  unsigned mask, site;
  char offered[16];
};

struct Block {
  Numbers index;
  std::vector<Thread> threads;
  std::vector<char> shared;
  char *arena;
  int any;
};

static Thread *cpu_thread;
static std::vector<Block> cpu_blocks;
static ucontext_t cpu_scheduler;
static char cpu_error[256];
static char *cpu_arena;
static Numbers blockDim, gridDim;
#define threadIdx (cpu_thread->index)
#define blockIdx (cpu_blocks[cpu_thread->block].index)

static void cpu_stop(State state, unsigned mask, unsigned site) {
  Thread *own = cpu_thread;
  own->state = state, own->mask = mask, own->site = site;
  swapcontext(&own->context, &cpu_scheduler);
}
static void cpu_fail(const char *reason) {
  if (!cpu_error[0]) {
    snprintf(cpu_error, sizeof cpu_error, "%s: block %u, thread %u", reason, cpu_thread->block,
             cpu_thread->number);
  }
  cpu_stop(ENDED, 0, 0);
}

/* Where threads meet. A place is a line; what meets there several times has several numbers. */
#define SITE (__LINE__ * 4u)
#define __syncthreads() cpu_stop(AT_BARRIER, 0, SITE)
#define __syncthreads_or(value) cpu_any(value, SITE)
#define __syncwarp(...) cpu_warp(cpu_mask(__VA_ARGS__), SITE)
#define __shfl_xor_sync(mask, value, n) cpu_shuffle(mask, value, cpu_lane() ^ (int)(n), SITE)
#define __shfl_down_sync(mask, value, n) cpu_shuffle(mask, value, cpu_lane() + (int)(n), SITE)
#define __shfl_sync(mask, value, n) cpu_shuffle(mask, value, (int)(n) & 31, SITE)
#define __threadfence() ((void)0)

static int cpu_any(int value, unsigned site) {
  Block &block = cpu_blocks[cpu_thread->block];
  block.any |= value;
  cpu_stop(AT_BARRIER, 0, site);
  int result = block.any;
  cpu_stop(AT_BARRIER, 0, site + 1);
  block.any = 0;
  cpu_stop(AT_BARRIER, 0, site + 2);
  return result;
}
static unsigned cpu_mask(unsigned mask = ~0u) { return mask; }
static int cpu_lane() { return cpu_thread->number % 32; }
static void cpu_warp(unsigned mask, unsigned site) {
  if (!(mask >> cpu_lane() & 1)) cpu_fail("a mask without the thread itself");
  cpu_stop(IN_WARP, mask, site);
}
template <class T> static T cpu_shuffle(unsigned mask, T value, int lane, unsigned site) {
  memcpy(cpu_thread->offered, &value, sizeof value);
  cpu_warp(mask, site);
  T result;
  if (lane > 31) {
    result = value;
  } else if (mask >> lane & 1) {
    unsigned number = cpu_thread->number / 32 * 32 + lane;
    memcpy(&result, cpu_blocks[cpu_thread->block].threads[number].offered, sizeof result);
  } else {
    memset(&result, 0xff, sizeof result);
  }
  cpu_warp(mask, site + 1);
  return result;
}
static unsigned atomicInc(unsigned *place, unsigned most) {
  unsigned before = *place;
  *place = before >= most ? 0 : before + 1;
  return before;
}
static unsigned atomicAdd(unsigned *place, unsigned value) {
  unsigned before = *place;
  *place += value;
  return before;
}

/* Arithmetic that C lacks. */
template <class To, class From> static To cpu_bits(From value) {
  To result;
  memcpy(&result, &value, sizeof result);
  return result;
}
static float __int_as_float(int bits) { return cpu_bits<float>(bits); }
static float __uint_as_float(unsigned bits) { return cpu_bits<float>(bits); }
static unsigned __float_as_uint(float x) { return cpu_bits<unsigned>(x); }
static double __longlong_as_double(long long bits) { return cpu_bits<double>(bits); }
static float rsqrtf(float x) { return (float)(1 / sqrt((double)x)); }
static double rsqrt(double x) { return 1 / sqrt(x); }
struct __half { _Float16 value; };
static float __half2float(__half x) { return (float)x.value; }
static __half __float2half_rn(float x) { return {(_Float16)x}; }
static __half __double2half(double x) { return {(_Float16)x}; }
struct __nv_bfloat16 { uint16_t bits; };
static float __bfloat162float(__nv_bfloat16 x) { return cpu_bits<float>((unsigned)x.bits << 16); }
static __nv_bfloat16 __float2bfloat16_rn(float x) {
  unsigned u = cpu_bits<unsigned>(x);
  if (x != x) return {(uint16_t)(u >> 16 | 0x40)};
  return {(uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
static __nv_bfloat16 __double2bfloat16(double x) {
  float near = (float)x;
  unsigned u = cpu_bits<unsigned>(near);
  if ((double)near == x || x != x) return __float2bfloat16_rn(near);
  return __float2bfloat16_rn(cpu_bits<float>((u - (fabs((double)near) > fabs(x))) | 1));
}

/* The schedule: all threads of a block that can run do so; then those go on that have met. */
#define CALL_OF(KERNEL)                                                                          \
  template <class... P, size_t... I>                                                             \
  static void cpu_call(void (*kernel)(P...), void **arguments, std::index_sequence<I...>) {      \
    kernel(*(P *)arguments[I]...);                                                               \
  }                                                                                              \
  template <class... P> static void cpu_call(void (*kernel)(P...), void **arguments) {           \
    cpu_call(kernel, arguments, std::make_index_sequence<sizeof...(P)>());                       \
  }                                                                                              \
  static void **cpu_arguments;                                                                   \
  static void cpu_run() {                                                                        \
    cpu_call(KERNEL, cpu_arguments);                                                             \
    cpu_stop(ENDED, 0, 0);                                                                       \
  }                                                                                              \
  extern "C" const char *launch(const unsigned *grid, const unsigned *block, unsigned bytes,     \
                                void **arguments, unsigned seed, unsigned at_once) {             \
    cpu_arguments = arguments;                                                                   \
    return cpu_launch({grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, bytes, seed,  \
                      at_once);                                                                  \
  }
static void cpu_run();

static void cpu_begin(unsigned number, unsigned bytes) {
  Block &block = cpu_blocks[number];
  unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  block.index = {number % gridDim.x, number / gridDim.x % gridDim.y,
                 number / gridDim.x / gridDim.y};
  block.shared.assign(__stop_cpu_shared - __start_cpu_shared, (char)0xff);
  block.arena = (char *)aligned_alloc(1024, (bytes / 1024 + 1) * 1024);
  memset(block.arena, 0xff, bytes);
  block.threads = std::vector<Thread>(threads);
  for (unsigned n = 0; n < threads; n++) {
    Thread &own = block.threads[n];
    own.index = {n % blockDim.x, n / blockDim.x % blockDim.y, n / blockDim.x / blockDim.y};
    own.number = n, own.block = number, own.state = RUNS;
    own.stack.resize(1 << 17);
    getcontext(&own.context);
    own.context.uc_stack.ss_sp = own.stack.data();
    own.context.uc_stack.ss_size = own.stack.size();
    makecontext(&own.context, cpu_run, 0);
  }
}

/* Let those go on that have met; return whether any thread can run. */
static bool cpu_meet(std::vector<Thread> &threads) {
  bool all = true, any = false;
  for (Thread &own : threads) {
    all = all && own.state == AT_BARRIER && own.site == threads[0].site;
    any = any || own.state == RUNS;
  }
  if (all) {
    for (Thread &own : threads) own.state = RUNS;
    return true;
  }
  for (Thread &own : threads) {
    if (own.state != IN_WARP) continue;
    bool whole = true;
    for (unsigned lane = 0; lane < 32; lane++) {
      unsigned n = own.number / 32 * 32 + lane;
      if (!(own.mask >> lane & 1)) continue;
      whole = whole && n < threads.size() && threads[n].state == IN_WARP &&
              threads[n].mask == own.mask && threads[n].site == own.site;
    }
    if (!whole) continue;
    unsigned mask = own.mask;
    for (unsigned lane = 0; lane < 32; lane++) {
      if (mask >> lane & 1) threads[own.number / 32 * 32 + lane].state = RUNS;
    }
    any = true;
  }
  return any;
}

static const char *cpu_launch(Numbers grid, Numbers size, unsigned bytes, unsigned seed,
                              unsigned at_once) {
  std::mt19937 random(seed);
  gridDim = grid, blockDim = size, cpu_error[0] = 0;
  cpu_blocks = std::vector<Block>((size_t)grid.x * grid.y * grid.z);
  std::vector<unsigned> waiting, running;
  for (unsigned n = 0; n < cpu_blocks.size(); n++) waiting.push_back(n);
  std::shuffle(waiting.begin(), waiting.end(), random);
  while ((waiting.size() || running.size()) && !cpu_error[0]) {
    while (running.size() < at_once && waiting.size()) {
      cpu_begin(waiting.back(), bytes);
      running.push_back(waiting.back());
      waiting.pop_back();
    }
    size_t place = random() % running.size();
    Block &block = cpu_blocks[running[place]];
    cpu_arena = block.arena;
    memcpy(__start_cpu_shared, block.shared.data(), block.shared.size());
    std::vector<Thread *> ready;
    bool ended = true;
    for (Thread &own : block.threads) {
      if (own.state == RUNS) ready.push_back(&own);
      ended = ended && own.state == ENDED;
    }
    std::shuffle(ready.begin(), ready.end(), random);
    for (Thread *own : ready) {
      cpu_thread = own;
      swapcontext(&cpu_scheduler, &own->context);
    }
    memcpy(block.shared.data(), __start_cpu_shared, block.shared.size());
    if (ended) {
      block.threads.clear();
      free(block.arena);
      running.erase(running.begin() + place);
    } else if (!cpu_meet(block.threads) &&
               !std::all_of(block.threads.begin(), block.threads.end(),
                            [](const Thread &own) { return own.state == ENDED; })) {
      cpu_thread = &block.threads[0];
      if (!cpu_error[0]) {
        snprintf(cpu_error, sizeof cpu_error, "threads of block %u wait for others in vain",
                 running[place]);
      }
    }
  }
  return cpu_error[0] ? cpu_error : nullptr;
}
