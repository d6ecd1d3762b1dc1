"""CUDA text of what threads do together: masks of lanes, shuffles, arrivals, grid barriers.

Masks are those of the lanes that exist, from the extents of the block; never `__activemask()`,
which tells the lanes that happen to run together. Arrivals and grid barriers follow cooperative
groups: the threads of a block meet, then one of them fences for all, which is enough since
fences are cumulative.

Source: PTX ISA, "Memory Consistency Model"; the sample threadFenceReduction; cooperative_groups.h,
`grid_group::sync`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from loopnest.backends.clike.statements import extent_product
from loopnest.kir import Program
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import BLOCK_DIMENSIONS, WARP, ParallelType
from loopnest.scalar.expr import ONE, Const, Expr

FULL_MASK = "0xffffffffu"

SHUFFLES: Mapping[str, str] = {
    "xor": "__shfl_xor_sync",
    "down": "__shfl_down_sync",
    "up": "__shfl_up_sync",
    "lane": "__shfl_sync",
}
"""By mode: bits of any 4 or 8 bytes, and of 16-bit floats; a bool goes as an int."""

GRID_COUNTER = "ln_arrived"
"""The last parameter of a cooperative kernel: one 32-bit counter of blocks, 0 before the first
launch; its top bit flips with each barrier."""

FUNCTIONS: Mapping[str, tuple[str, str]] = {
    # The lanes of this thread's warp: all 32, but in the last warp of a block.
    "ln_warp_mask": (
        "",
        """unsigned int ln_warp_mask(unsigned int thread, unsigned int threads) {
  const unsigned int lanes = threads - thread / 32 * 32;
  return lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
}""",
    ),
    # The loop of an atomic update that the machine has no operation for: bits are compared.
    "ln_swap": (
        "template <class T>\n",
        """bool ln_swap(T *place, T *old, T value) {
  if (sizeof(T) == 4) {
    unsigned int before, after;
    memcpy(&before, old, 4);
    memcpy(&after, &value, 4);
    const unsigned int found = atomicCAS((unsigned int *)place, before, after);
    memcpy(old, &found, 4);
    return found == before;
  }
  unsigned long long before, after;
  memcpy(&before, old, sizeof(T));
  memcpy(&after, &value, sizeof(T));
  const unsigned long long found = atomicCAS((unsigned long long *)place, before, after);
  memcpy(old, &found, sizeof(T));
  return found == before;
}""",
    ),
    # atomicInc goes back to 0 by itself at the last block.
    "ln_arrive": (
        "",
        """bool ln_arrive(int *counter, unsigned int blocks) {
  bool last = false;
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    __threadfence();  // what this block wrote comes before its count
    last = atomicInc((unsigned int *)counter, blocks - 1) == blocks - 1;
    __threadfence();  // what the others wrote comes before what follows
  }
  return __syncthreads_or(last);
}""",
    ),
    # All blocks together add 2^31: the top bit flips when the last one has come.
    "ln_grid_barrier": (
        "",
        """void ln_grid_barrier(unsigned int *arrived) {
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    const bool first = blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0;
    const unsigned int others = gridDim.x * gridDim.y * gridDim.z - 1;
    __threadfence();
    const unsigned int before = atomicAdd(arrived, first ? 0x80000000u - others : 1u);
    while (((*(volatile unsigned int *)arrived ^ before) & 0x80000000u) == 0) {
    }
    __threadfence();
  }
  __syncthreads();
}""",
    ),
}
"""Device functions by name, in the form of `cuda_functions`."""


_ATOMICS: Mapping[tuple[str, str], tuple[str, str]] = {
    **{("add", name): ("atomicAdd", "") for name in ("float32", "float64", "int32", "uint32")},
    ("add", "int64"): ("atomicAdd", "unsigned long long"),
    **{
        (op, name): (f"atomic{op.capitalize()}", "")
        for op in ("max", "min")
        for name in ("int32", "uint32", "int64")
    },
}
"""By operation and type: CUDA's function, and the type that its operands are seen as."""


def atomic_call(operation: str, dtype: DType, place: str, value: str) -> str:
    """Return the call of an atomic operation; empty where CUDA has none of this type."""
    function, seen = _ATOMICS.get((operation, dtype.name), ("", ""))
    if seen:
        place, value = f"({seen} *){place}", f"({seen})({value})"
    return f"{function}({place}, {value})" if function else ""


def block_extents(program: Program) -> tuple[Expr, ...]:
    """Return the extents of a block along x, y and z, 1 where a dimension is not in use."""
    found = [program.launch_extent(d) for d in BLOCK_DIMENSIONS]
    return tuple([ONE if size is None else size for size in found])


def static_mask(program: Program) -> str | None:
    """Return the mask of the lanes of each warp where all warps have the same, else None."""
    sizes = block_extents(program)
    # Where a multiple of 32 divides the number of threads whatever the sizes, no warp is partial.
    if prod([int(size.value) for size in sizes if isinstance(size, Const)]) % WARP == 0:
        return FULL_MASK
    threads = extent_product(sizes)
    return None if threads is None or threads > WARP else f"{(1 << threads) - 1:#x}u"


def mask_value(program: Program, thread: str) -> tuple[str, str]:
    """Return the mask of this thread's warp as text, and the function that it calls, if any.

    Args:
        program: whose warps are not all alike.
        thread: the number of this thread in its block.
    """
    threads = extent_product(block_extents(program))
    if threads is None:
        return f"ln_warp_mask({thread}, blockDim.x * blockDim.y * blockDim.z)", "ln_warp_mask"
    whole, rest = threads // WARP * WARP, threads % WARP
    return f"{thread} < {whole} ? {FULL_MASK} : {(1 << rest) - 1:#x}u", ""


def thread_number(program: Program, launch: Mapping[ParallelType, str]) -> str:
    """Return the number of this thread in its block, x running fastest."""
    terms: list[tuple[str, str]] = []
    for dimension in BLOCK_DIMENSIONS:
        size = program.launch_extent(dimension)
        if size is not None and size is not ONE:
            extent = str(size) if isinstance(size, Const) else f"blockDim.{dimension.letter}"
            terms.append((launch[dimension], extent))
    if not terms:
        return "0"
    text, _ = terms.pop()
    while terms:
        own, extent = terms.pop()
        text = f"{own} + {extent} * {f'({text})' if ' ' in text else text}"
    return text
