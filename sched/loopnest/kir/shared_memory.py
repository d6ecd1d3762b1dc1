"""Where the SHARED buffers of a kernel lie in the memory of a block, and where their elements do.

Buffers follow each other in the order of their allocations, each at a multiple of 16 bytes; one
with `alias_of` begins where that buffer begins, and the place of both is as large as the larger.
Texts declare the bytes of a place and a launch asks for their sum, so that both agree with what the
machine code takes; a proof holds each buffer against the bytes of its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from loopnest.base.errors import InternalError
from loopnest.kir import Allocate, Program
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import ONE, ZERO, Buffer, Const, Expr, Op, integer

ALIGNMENT = 16
"""Of each buffer, in bytes: that of the widest access."""

STATIC_BYTES = 48 * 1024
"""What a block may have of shared memory without opting in, and without a dynamic arena."""


class SharedLayout(NamedTuple):
    """The layout of a block's shared memory.

    Args:
        offsets: where each buffer begins, in bytes.
        total: bytes that all take.
    """

    offsets: dict[Buffer, Expr]
    total: Expr

    @property
    def is_dynamic(self) -> bool:
        """Whether the launch sets the size: it is symbolic, or above what the compiler grants."""
        return not isinstance(self.total, Const) or self.total.value > STATIC_BYTES


@dataclass(frozen=True, eq=False, slots=True)
class SharedPiece:
    """Buffers that share one piece of memory; the first one gives it its name.

    Args:
        buffers: in order of allocation, the one that the others are aliases of first.
        bytes: what texts declare for them: a multiple of 16 that holds the largest.
    """

    buffers: tuple[Buffer, ...]
    bytes: Expr

    @property
    def static_bytes(self) -> int:
        """The bytes of a place whose size is no expression."""
        assert isinstance(self.bytes, Const)
        return int(self.bytes.value)


def shared_layout(program: Program) -> SharedLayout:
    """Return the offset of each SHARED buffer in its block's memory, and the size of all."""
    offsets: dict[Buffer, Expr] = {}
    end: Expr = ZERO
    for place in shared_places(program):
        for buffer in place.buffers:
            offsets[buffer] = end
        end = _add(end, place.bytes)
    return SharedLayout(offsets, end)


def shared_places(program: Program) -> tuple[SharedPiece, ...]:
    """Return the pieces of shared memory that a block needs, in order.

    Raises:
        InternalError: a buffer is an alias of none that exists.
    """
    found = [n.storage for n in program.nodes if isinstance(n, Allocate)]
    buffers = list(dict.fromkeys([b for b in found if b.memory is Memory.SHARED]))
    by_name = {b.name: b for b in buffers}
    groups: dict[Buffer, list[Buffer]] = {b: [] for b in buffers if b.alias_of is None}
    for buffer in buffers:
        groups[_base(buffer, by_name)].append(buffer)
    return tuple(
        [
            SharedPiece((base, *[b for b in group if b is not base]), _largest(group))
            for base, group in groups.items()
        ]
    )


def _base(buffer: Buffer, by_name: dict[str, Buffer]) -> Buffer:
    seen = {buffer}
    while buffer.alias_of is not None:
        base = by_name.get(buffer.alias_of)
        if base is None or base in seen:
            reason = f"its buffer is an alias of {buffer.alias_of}, which is no SHARED buffer here"
            raise InternalError(buffer.tensor, reason)
        seen.add(base)
        buffer = base
    return buffer


def _largest(group: list[Buffer]) -> Expr:
    result: Expr = ZERO
    for size in dict.fromkeys(map(_aligned_bytes, group)):
        if isinstance(result, Const) and isinstance(size, Const):
            result = size if size.value > result.value else result
        else:
            result = Op("max", (result, size), dtypes.index) if result is not ZERO else size
    return result


def _aligned_bytes(buffer: Buffer) -> Expr:
    width = integer(buffer.dtype.size)
    if isinstance(buffer.size, Const):
        count = int(buffer.size.value) * buffer.dtype.size
        return integer(-(-count // ALIGNMENT) * ALIGNMENT)
    total = buffer.size if width is ONE else Op("mul", (buffer.size, width), dtypes.index)
    blocks = Op("ceildiv", (total, integer(ALIGNMENT)), dtypes.index)
    return Op("mul", (blocks, integer(ALIGNMENT)), dtypes.index)


def _add(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Const) and isinstance(b, Const):
        return integer(int(a.value) + int(b.value))
    return b if a is ZERO else Op("add", (a, b), dtypes.index)


def swizzled(buffer: Buffer, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Return where the element at `index` lies: ``(…a…b ^ a…)`` in a swizzled buffer."""
    for swizzle in buffer.swizzles:
        index = permuted(buffer, swizzle, index)
    return index


def permuted(buffer: Buffer, swizzle: tuple[int, int], index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Return where one of the swizzles of `buffer` moves the element at `index`."""
    a, b = swizzle
    used = [i for i in (index[b], _low_bits(index[a], buffer, swizzle)) if i is not ZERO] or [ZERO]
    place = Op("bitxor", (used[0], used[1]), dtypes.index) if len(used) == 2 else used[0]
    return (*index[:b], place, *index[b + 1 :])


def _low_bits(row: Expr, buffer: Buffer, swizzle: tuple[int, int]) -> Expr:
    """Return the part of an index along the first dimension that is below the second's extent."""
    rows, columns = [buffer.shape[d] for d in swizzle]
    if not isinstance(rows, Const) or not isinstance(columns, Const) or row is ZERO:
        return row
    if rows.value <= columns.value:
        return row
    # Columns are a power of two: a number below them XOR another one stays below them, and XOR by
    # one number is its own inverse, so that each row is a permutation of its columns. Higher bits
    # of the row would lead out of it.
    return Op("bitand", (row, integer(int(columns.value) - 1)), dtypes.index)
