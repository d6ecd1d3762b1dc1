"""Copies in flight in CUDA text: a device function for each width, and groups of them.

A copy and the store of zeros where its test fails are one call, which takes no byte of its source
there::

    ln_cp_async<16>(&T2[i * 4], &x[i * 4], i < N ? 16 : 0);  // T2
    ln_commit();
    ln_wait<1>();
"""

from __future__ import annotations

from collections.abc import Iterable

from loopnest.backends.cuda.printing.cuda_tiles import function_name, with_operands
from loopnest.base.errors import LoweringError
from loopnest.kir import If, Loop, Stmt, Store
from loopnest.kir.instruction_table import Instruction
from loopnest.scalar.expr import Const

WIDTHS = (16, 8, 4)
"""Bytes of one copy, the widest first."""

COMMIT, WAIT = "ln_commit", "ln_wait"

GROUPS = f"""\
static __device__ __forceinline__ void {COMMIT}() {{
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}}
template <int PENDING>
static __device__ __forceinline__ void {WAIT}() {{
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
#endif
}}"""
"""What closes a group of copies, and what waits until at most so many groups are unfinished."""


def copy_function(row: Instruction) -> str:
    """Return the device function that begins one copy: `taken` bytes, then zeros."""
    target = row.result
    (source,) = [role for role in row.operands if role != target]
    numbers = {target: "%0", source: "%1", "bytes": "%2", "taken": "%3"}
    return f"""\
template <int BYTES>
static __device__ __forceinline__ void {function_name(row)}(
    void *to, const void *from, int taken) {{
#if defined(__CUDA_ARCH__)
  asm volatile("{with_operands(row.ptx, numbers)}"
      :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)),
         "n"(BYTES), "r"(taken) : "memory");
#else
  for (int i = 0; i < BYTES; ++i) ((char *)to)[i] = i < taken ? ((const char *)from)[i] : 0;
#endif
}}"""


def no_instruction(kernel: str, name: str) -> LoweringError:
    """Return the error of a copy by an instruction that has no PTX, or of no row."""
    return LoweringError(
        kernel,
        f"the instruction '{name}' has no ptx, so that no CUDA text can be printed",
        "give its row one, or run on 'interpret' and 'c'",
    )


def narrow_copy(tensor: str, name: str, size: int) -> LoweringError:
    """Return the error of copies of fewer bytes than the instruction moves."""
    return LoweringError(
        tensor,
        f"{name} moves 4, 8 or 16 aligned bytes, and its copies are of {size}",
        "vectorize the innermost axis of its copy, and state by f.assume that it divides the size",
    )


def zero_filled(node: If) -> Stmt | None:
    """Return what a test copies, where its other branch stores zeros to the same elements."""
    if len(node.body) != 1 or len(node.orelse) != 1:
        return None
    copy, fill = node.body[0], node.orelse[0]
    return copy if _are_alike(copy, fill) else None


def _are_alike(copy: Stmt, fill: Stmt) -> bool:
    if isinstance(copy, Loop) and isinstance(fill, Loop):
        same = copy.var is fill.var and len(copy.body) == len(fill.body) == 1
        return same and _are_alike(copy.body[0], fill.body[0])
    if isinstance(copy, Store) and isinstance(fill, Store):
        place = copy.storage is fill.storage and copy.index == fill.index
        return place and copy.flat is fill.flat and _is_zero(fill)
    return False


def _is_zero(node: Store) -> bool:
    """Whether all bits that a store writes are 0."""
    return isinstance(node.value, Const) and str(node.value.value) in ("0", "0.0", "False")


def widest(bytes_: int, pieces: Iterable[int]) -> int:
    """Return the widest copy that so many bytes are made of, in pieces of memory; 0 for none."""
    most = min([bytes_, *pieces])
    return next((width for width in WIDTHS if width <= most and bytes_ % width == 0), 0)
