"""Facts of the machine at hand, measured once and kept on disk with the kernels.

A small C program multiplies and adds in vectors of 16, 32 and 64 bytes and copies an array larger
than the caches. Both rates are measured by the clocks of the threads, so that other programs on the
machine change them little; the best of several turns counts. Sizes of caches come from Linux.

``LOOPNEST_MACHINE=any`` measures nothing: the facts are those of no particular machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from loopnest.backends.cpu.c_compiler import Compiler, compile_c, cpu_model, find_compiler
from loopnest.base.errors import CompileError, LoopnestError
from loopnest.launch.disk_cache import DiskCache, digest
from loopnest.scalar.machine_facts import ANY, MachineFacts

VARIABLE = "LOOPNEST_MACHINE"

WIDER_PAYS = 1.3
"""How much faster wider vectors have to be; twice is what they promise."""

FAST_MEMORY = 3e10
"""Bytes a second of each core, all of them copying, with which functions are the slower part."""

_VERSION = "1"  # of what is measured
_COPIED = 2
"""The copied array is so many times the last cache."""
_LEAST_COPY, _MOST_COPY = 16 << 20, 64 << 20

_SOURCE = """\
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

static double seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Operations a second: 12 chains of multiply-adds hide the latency of any core so far. */
#define RATE(bytes)                                                                    \\
  static double rate_##bytes(int rounds, float factor, float *sink) {                  \\
    typedef float vec __attribute__((vector_size(bytes)));                             \\
    enum { lanes = bytes / 4, chains = 12 };                                           \\
    vec a[chains], m = factor - (vec){0};                                              \\
    for (int j = 0; j < chains; ++j) a[j] = (float)j - (vec){0};                       \\
    const double start = seconds(CLOCK_THREAD_CPUTIME_ID);                             \\
    for (int k = 0; k < rounds; ++k) {                                                 \\
      _Pragma("GCC unroll 12") for (int j = 0; j < chains; ++j) a[j] = a[j] * m + m;   \\
    }                                                                                  \\
    const double taken = seconds(CLOCK_THREAD_CPUTIME_ID) - start;                     \\
    for (int j = 0; j < chains; ++j) *sink += a[j][0] + a[j][lanes - 1];               \\
    return 2.0 * rounds * chains * lanes / taken;                                      \\
  }
RATE(16)
#if defined(__AVX__)
RATE(32)
#endif
#if defined(__AVX512F__)
RATE(64)
#endif

double probe_rate(int bytes, int rounds, float factor, float *sink) {
#if defined(__AVX512F__)
  if (bytes == 64) return rate_64(rounds, factor, sink);
#endif
#if defined(__AVX__)
  if (bytes == 32) return rate_32(rounds, factor, sink);
#endif
  return bytes == 16 ? rate_16(rounds, factor, sink) : 0.0;
}

int probe_registers(void) {
#if defined(__AVX512F__) || defined(__aarch64__)
  return 32;
#else
  return 16;
#endif
}

/* Bytes a second that all threads together read and write; both arrays are aligned to 64 bytes. */
double probe_copy(float *to, const float *from, int64_t count) {
  double rate = 0.0;
#pragma omp parallel reduction(+ : rate)
  {
    int64_t copied = 0;
    const double start = seconds(CLOCK_THREAD_CPUTIME_ID);
#pragma omp for schedule(static) nowait
    for (int64_t block = 0; block < count / 1024; ++block) {
      float *t = to + block * 1024;
      const float *f = from + block * 1024;
#if defined(__AVX512F__)
      for (int i = 0; i < 1024; i += 16) _mm512_stream_ps(t + i, _mm512_load_ps(f + i));
#elif defined(__AVX__)
      for (int i = 0; i < 1024; i += 8) _mm256_stream_ps(t + i, _mm256_load_ps(f + i));
#elif defined(__SSE2__)
      for (int i = 0; i < 1024; i += 4) _mm_stream_ps(t + i, _mm_load_ps(f + i));
#else
      for (int i = 0; i < 1024; ++i) t[i] = f[i];
#endif
      copied += 8 * 1024;
    }
#if defined(__SSE2__)
    _mm_sfence();
#endif
    if (copied) rate += (double)copied / (seconds(CLOCK_THREAD_CPUTIME_ID) - start);
  }
  return rate;
}
"""


def machine() -> MachineFacts:
    """Return the facts of this machine's processor, measured now if they are not known yet.

    Measuring takes about a second, once; the facts are kept with the compiled kernels. Where there
    is no C compiler, the rates are 0. With ``LOOPNEST_MACHINE=any`` in the environment nothing is
    measured: the facts are those of no particular machine.

    Returns:
        name, cores, the bytes of vectors that pay, vector registers, bytes of the caches,
        float32 operations a second of one core, bytes a second of a copy by all of them.

    Raises:
        LoopnestError: LOOPNEST_MACHINE has another value.

    >>> import loopnest as ln
    >>> ln.machine().vector_bytes in (16, 32, 64)
    True

    Source: the peak is measured as in the "peak" programs of BLAS developers, by independent chains
    of multiply-adds; bandwidth as in McCalpin's STREAM (1995), its copy.
    """
    asked = os.environ.get(VARIABLE, "").strip()
    if asked not in ("", "any"):
        raise LoopnestError(f"{VARIABLE}={asked}", "names no machine", "set it to any, or unset it")
    return ANY if asked else _known_machine(find_compiler())


def forget_machine() -> None:
    """Drop what was measured: the next question measures again."""
    _known_machine.cache_clear()
    if (compiler := find_compiler()) is not None:
        DiskCache("machine", ".json").put(_key(compiler), b"")


@cache
def _known_machine(compiler: Compiler | None) -> MachineFacts:
    if compiler is None:
        return _unmeasured()
    entries, key = DiskCache("machine", ".json"), _key(compiler)
    with entries.lock(key):
        found = _read(entries.get(key))
        if found is None:
            found = measure_machine()
            entries.put(key, json.dumps(asdict(found)).encode())
    return found


def _key(compiler: Compiler) -> str:
    return digest(_VERSION, cpu_model(), str(compiler), str(_cores()))


def vector_flags(machine: MachineFacts) -> tuple[str, ...]:
    """Return the flags by which a compiler for x86-64 uses the vectors that pay.

    There are none where nothing was measured. A compiler prefers 32 bytes on many machines whose
    64 are twice as fast.

    >>> vector_flags(MachineFacts(vector_bytes=64, flops=1e11))
    ('-mprefer-vector-width=512', '-DLN_VECTOR_BYTES=64', '-DLN_LAST_CACHE=8388608')
    """
    if not machine.flops or platform.machine() not in ("x86_64", "AMD64"):
        return ()
    bits = 8 * machine.vector_bytes
    preferred = (f"-mprefer-vector-width={bits}",) if bits >= 256 else ()
    cache = (f"-DLN_LAST_CACHE={machine.caches[-1]}",) if machine.caches else ()
    fast = machine.bandwidth > FAST_MEMORY * machine.cores
    memory = ("-DLN_FAST_MEMORY=1",) if fast else ()
    return (*preferred, f"-DLN_VECTOR_BYTES={machine.vector_bytes}", *cache, *memory)


def measure_machine() -> MachineFacts:
    """Return the facts of this moment, measured now and not kept: what a benchmark is held against.

    Without a C compiler that works the rates are 0.
    """
    known = _unmeasured()
    try:
        library = compile_c(_SOURCE)
    except CompileError:  # whoever compiles a kernel is told
        return known
    float_p = ctypes.POINTER(ctypes.c_float)
    rate = library.function(
        "probe_rate", [ctypes.c_int, ctypes.c_int, ctypes.c_float, float_p], ctypes.c_double
    )
    rates = _rates(rate)
    width = 16
    for wider in (32, 64):
        if rates[wider] > WIDER_PAYS * rates[width]:
            width = wider
    return MachineFacts(
        known.name,
        known.cores,
        width,
        library.function("probe_registers", [], ctypes.c_int)(),
        known.caches,
        rates[width],
        _bandwidth(library, known.caches),
    )


def _rates(rate: Any) -> dict[int, float]:
    """Return the operations a second in vectors of 16, 32 and 64 bytes: the best of 20 turns."""
    sink = ctypes.c_float()
    best = dict.fromkeys((16, 32, 64), 0.0)
    for _ in range(20):
        for width in best:
            best[width] = max(best[width], rate(width, 20_000, 0.5, ctypes.byref(sink)))
    return best


def _bandwidth(library: Any, caches: tuple[int, ...]) -> float:
    import numpy as np

    copy = library.function(
        "probe_copy", [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], ctypes.c_double
    )
    size = min(max(_COPIED * (caches[-1] if caches else 0), _LEAST_COPY), _MOST_COPY)
    count = size // 4 // 1024 * 1024
    memory = np.ones(2 * count + 32, np.float32)
    start = memory.ctypes.data + -memory.ctypes.data % 64
    rates: list[float] = [copy(start + 4 * count, start, count) for _ in range(5)]
    return max(rates)


def _unmeasured() -> MachineFacts:
    return MachineFacts(_name(), _cores(), caches=_caches())


def _read(data: bytes | None) -> MachineFacts | None:
    """Return the facts of an entry; None where it is missing or of another kind."""
    if data is None:
        return None
    try:
        fields = json.loads(data)
        return MachineFacts(**{**fields, "caches": tuple(fields["caches"])})
    except (ValueError, TypeError, KeyError):
        return None


def _name() -> str:
    for line in cpu_model().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or ANY.name


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _caches() -> tuple[int, ...]:
    """Return the bytes of the data caches of the first core, by level."""
    found: dict[int, int] = {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind, level, size = [
                (folder / name).read_text().strip() for name in ("type", "level", "size")
            ]
            if kind != "Instruction":
                found[int(level)] = int(size.removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    return tuple([found[level] for level in sorted(found)]) or ANY.caches
