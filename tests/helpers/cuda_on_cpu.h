/* CUDA C++ as printed, on a CPU: a thread is a coroutine, which runs from one place where threads
   meet to the next, in an order that a seed decides. Blocks run at the same time, and in turns.

   What a GPU would not forgive ends the launch with a sentence: threads of a block that meet at
   different barriers, a lane that a mask names and that does not come, an assumption that does not
   hold. What nobody wrote is NaN or, in registers, a pattern of bits; the value of a lane outside
   of the mask is NaN, too. One launch at a time. Only C's headers: C++'s containers would take most of
   the compiler's time. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <utility>

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
  char *stack;
  Numbers index;
  unsigned number, block;
  State state;
  unsigned mask, site, line;
  char offered[32];
  struct Flight *flight;
};

struct Block {
  Numbers index;
  Thread *threads;
  unsigned count;
  char *shared, *arena;
  int any;
};

static Thread *cpu_thread;
static Block *cpu_blocks;
static ucontext_t cpu_scheduler;
static char cpu_error[256];
static char *cpu_arena;
static unsigned cpu_arena_bytes;
static Numbers blockDim, gridDim;
#define threadIdx (cpu_thread->index)
#define blockIdx (cpu_blocks[cpu_thread->block].index)

static void cpu_land_some(Flight &flight);
static void cpu_stop(State state, unsigned mask, unsigned site) {
  Thread *own = cpu_thread;
  cpu_land_some(*own->flight);
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
#define __shfl_up_sync(mask, value, n) cpu_shuffle(mask, value, cpu_lane() - (int)(n), SITE)
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
  if (lane < 0 || lane > 31) {
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
template <class T> static T atomicAdd(T *place, T value) {
  T before = *place;
  *place += value;
  return before;
}
template <class T> static T atomicMax(T *place, T value) {
  T before = *place;
  *place = before < value ? value : before;
  return before;
}
template <class T> static T atomicMin(T *place, T value) {
  T before = *place;
  *place = value < before ? value : before;
  return before;
}
template <class T> static T atomicCAS(T *place, T compare, T value) {
  T before = *place;
  *place = before == compare ? value : before;
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
static long long __double_as_longlong(double x) { return cpu_bits<long long>(x); }
static int __float_as_int(float x) { return cpu_bits<int>(x); }
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

/* Addresses in shared memory: of what is declared, and of the arena behind it. */
static const unsigned ARENA = 1u << 30;
static unsigned cpu_shared_address(const void *place) {
  const char *own = (const char *)place;
  if (__start_cpu_shared <= own && own < __stop_cpu_shared) return own - __start_cpu_shared;
  if (cpu_arena <= own && own < cpu_arena + cpu_arena_bytes) return ARENA + (own - cpu_arena);
  cpu_fail("an address that is not in shared memory");
  return 0;
}
static unsigned char *cpu_shared_place(uint64_t address, unsigned bytes) {
  char *start = address < ARENA ? __start_cpu_shared : cpu_arena;
  uint64_t first = address % ARENA;
  uint64_t room = address < ARENA ? __stop_cpu_shared - __start_cpu_shared : cpu_arena_bytes;
  if (first + bytes > room) cpu_fail("an address beyond shared memory");
  return (unsigned char *)start + first;
}
#define __cvta_generic_to_shared(place) ((uint64_t)cpu_shared_address(place))
#define __cvta_generic_to_global(place) ((uint64_t)(place))
template <class T> static uint64_t cpu_word(T value) {
  uint64_t result = 0;
  memcpy(&result, &value, sizeof value);
  return result;
}
template <class T> static void cpu_unword(T &place, uint64_t word) {
  memcpy(&place, &word, sizeof place);
}
#include "ptx_on_cpu.h"

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

/* Numbers that a seed decides (Marsaglia's xorshift), and orders made of them. */
static uint64_t cpu_state;
static unsigned cpu_random(unsigned below) {
  cpu_state ^= cpu_state << 13, cpu_state ^= cpu_state >> 7, cpu_state ^= cpu_state << 17;
  return (cpu_state >> 32) % below;
}
static void cpu_shuffled(unsigned *numbers, unsigned count) {
  for (unsigned n = count; n > 1; n--) {
    unsigned other = cpu_random(n), kept = numbers[n - 1];
    numbers[n - 1] = numbers[other], numbers[other] = kept;
  }
}
static void *cpu_memory(size_t count, size_t size) {
  void *found = calloc(count + !count, size);
  if (!found) abort();
  return found;
}

static size_t cpu_shared_bytes() { return __stop_cpu_shared - __start_cpu_shared; }

static void cpu_begin(unsigned number, unsigned bytes) {
  Block &block = cpu_blocks[number];
  block.count = blockDim.x * blockDim.y * blockDim.z;
  block.index = {number % gridDim.x, number / gridDim.x % gridDim.y,
                 number / gridDim.x / gridDim.y};
  block.shared = (char *)cpu_memory(cpu_shared_bytes(), 1);
  memset(block.shared, 0xff, cpu_shared_bytes());
  block.arena = (char *)aligned_alloc(1024, (bytes / 1024 + 1) * 1024);
  memset(block.arena, 0xff, bytes);
  block.threads = (Thread *)cpu_memory(block.count, sizeof(Thread));
  for (unsigned n = 0; n < block.count; n++) {
    Thread &own = block.threads[n];
    own.index = {n % blockDim.x, n / blockDim.x % blockDim.y, n / blockDim.x / blockDim.y};
    own.number = n, own.block = number, own.state = RUNS;
    own.stack = (char *)cpu_memory(1 << 17, 1);
    own.flight = (Flight *)cpu_memory(1, sizeof(Flight));
    getcontext(&own.context);
    own.context.uc_stack.ss_sp = own.stack;
    own.context.uc_stack.ss_size = 1 << 17;
    makecontext(&own.context, cpu_run, 0);
  }
}
static void cpu_end(Block &block) {
  for (unsigned n = 0; n < block.count; n++) {
    free(block.threads[n].stack), free(block.threads[n].flight);
  }
  free(block.threads), free(block.shared), free(block.arena);
}

/* Let those go on that have met; return whether any thread can run. */
static bool cpu_meet(Block &block) {
  Thread *threads = block.threads;
  bool all = true, any = false;
  for (unsigned n = 0; n < block.count; n++) {
    all = all && threads[n].state == AT_BARRIER && threads[n].site == threads[0].site;
    any = any || threads[n].state == RUNS;
  }
  if (all) {
    for (unsigned n = 0; n < block.count; n++) threads[n].state = RUNS;
    return true;
  }
  for (unsigned t = 0; t < block.count; t++) {
    Thread &own = threads[t];
    if (own.state != IN_WARP) continue;
    bool whole = true;
    for (unsigned lane = 0; lane < 32; lane++) {
      unsigned n = own.number / 32 * 32 + lane;
      if (!(own.mask >> lane & 1)) continue;
      whole = whole && n < block.count && threads[n].state == IN_WARP &&
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

/* Run a block to where all its threads wait or have ended; return whether they have ended. */
static bool cpu_turn(Block &block) {
  unsigned *ready = (unsigned *)cpu_memory(block.count, sizeof *ready), count = 0, ended = 0;
  cpu_arena = block.arena;
  memcpy(__start_cpu_shared, block.shared, cpu_shared_bytes());
  for (unsigned n = 0; n < block.count; n++) {
    if (block.threads[n].state == RUNS) ready[count++] = n;
  }
  cpu_shuffled(ready, count);
  for (unsigned n = 0; n < count; n++) {
    cpu_thread = &block.threads[ready[n]];
    swapcontext(&cpu_scheduler, &cpu_thread->context);
  }
  free(ready);
  memcpy(block.shared, __start_cpu_shared, cpu_shared_bytes());
  for (unsigned n = 0; n < block.count; n++) ended += block.threads[n].state == ENDED;
  if (ended == block.count) return true;
  if (!cpu_meet(block) && !cpu_error[0]) {
    snprintf(cpu_error, sizeof cpu_error, "threads of block %u wait for others in vain",
             block.threads[0].block);
  }
  return false;
}

static const char *cpu_launch(Numbers grid, Numbers size, unsigned bytes, unsigned seed,
                              unsigned at_once) {
  unsigned total = grid.x * grid.y * grid.z, waiting = total, running = 0;
  gridDim = grid, blockDim = size, cpu_arena_bytes = bytes, cpu_error[0] = 0;
  cpu_state = seed * 0x9e3779b97f4a7c15u + 1;
  cpu_blocks = (Block *)cpu_memory(total, sizeof(Block));
  unsigned *order = (unsigned *)cpu_memory(total, sizeof *order);
  unsigned *turns = (unsigned *)cpu_memory(total, sizeof *turns);
  for (unsigned n = 0; n < total; n++) order[n] = n;
  cpu_shuffled(order, total);
  while ((waiting || running) && !cpu_error[0]) {
    while (running < at_once && waiting) {
      cpu_begin(order[--waiting], bytes);
      turns[running++] = order[waiting];
    }
    unsigned place = cpu_random(running);
    if (cpu_turn(cpu_blocks[turns[place]])) {
      cpu_end(cpu_blocks[turns[place]]);
      turns[place] = turns[--running];
    }
  }
  for (unsigned n = 0; n < running; n++) cpu_end(cpu_blocks[turns[n]]);
  free(cpu_blocks), free(order), free(turns);
  return cpu_error[0] ? cpu_error : nullptr;
}
