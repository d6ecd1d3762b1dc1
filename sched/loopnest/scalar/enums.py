"""The closed sets that every layer shares: axis kinds, parallel types, memory spaces."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, TypeAlias

from loopnest.base.errors import InternalError

Order: TypeAlias = Literal["ascending", "any", "grid", "block"]


class IterKind(Enum):
    """The kind of an axis."""

    ITERATION = "iteration"
    """One element of the result for each index."""
    REDUCTION = "reduction"
    """Folded: all its indices give one element."""
    BROADCAST = "broadcast"
    """Extent 1, read along any extent."""
    STEP = "step"
    """The steps of a loop that carries state: iterations in order, each of which reads the last."""

    __hash__ = object.__hash__  # a member is one object: Enum's own hash is that of its name

    @property
    def letter(self) -> str:
        """The letter that names an axis of this kind in errors: i, r, b or s."""
        return self.value[0]


class ParallelType(Enum):
    """How the loop of an axis runs, on each target.

    The launch dimensions are those of CUDA, and each is used once a tensor; every target keeps
    CUDA's limits on their extents (`MOST_ALONG`), so that what runs on one runs on all.
    """

    serial = "serial"
    """A loop, its iterations one after another.

    CUDA: a loop of the thread. C: a loop. The interpreter: a loop.
    """
    grid_x = "grid_x"
    """Spread over the blocks of the grid, which may run in any order and at the same time.

    CUDA: ``blockIdx.x``. C: blocks, spread over the cores. The interpreter: blocks, one after
    another.
    """
    grid_y = "grid_y"
    """As `grid_x`, along the second dimension of the grid.

    CUDA: ``blockIdx.y``. C: blocks, spread over the cores. The interpreter: one after another.
    """
    grid_z = "grid_z"
    """As `grid_x`, along the third dimension of the grid.

    CUDA: ``blockIdx.z``. C: blocks, spread over the cores. The interpreter: one after another.
    """
    block_x = "block_x"
    """Spread over the threads of a block; 32 neighbours along it are a warp.

    CUDA: ``threadIdx.x``. C: a loop over the threads, cut at barriers. The interpreter: all threads
    of a block in step.
    """
    block_y = "block_y"
    """As `block_x`, along the second dimension of a block.

    CUDA: ``threadIdx.y``. C: a loop over the threads, cut at barriers. The interpreter: in step.
    """
    block_z = "block_z"
    """As `block_x`, along the third dimension of a block, of at most 64 threads.

    CUDA: ``threadIdx.z``. C: a loop over the threads, cut at barriers. The interpreter: in step.
    """
    vectorize = "vectorize"
    """The lanes of one wide access: the innermost axis, a static power of two of elements.

    CUDA: accesses of up to 16 bytes where the tensor is a copy between memory and registers or a
    result that is stored; arithmetic lane by lane. C: ``#pragma omp simd`` where no lane depends on
    another. The interpreter: lane by lane. Sizes or addresses that do not fit take the scalar
    variant.
    """
    unroll = "unroll"
    """A loop that is written out by the compiler.

    CUDA: ``#pragma unroll``. C: ``#pragma GCC unroll`` for a static extent. The interpreter: a
    loop.
    """
    unswitch = "unswitch"
    """A loop whose tests are asked once, in front of it: a body without tests, and one with.

    The same on CUDA, C: two bodies in the text, and the interpreter: two bodies in the nest.
    """
    cpu_parallel = "cpu_parallel"
    """Spread over the cores of a CPU, where it is an outermost loop.

    CUDA: a loop of the thread. C: iterations spread over the cores. The interpreter: a loop.
    """
    mma = "mma"
    """Elements of a matrix that one instruction of a warp computes with: a loop inside of a tile.

    CUDA: no loop, the instruction. C: a loop. The interpreter: a loop.
    """

    __hash__ = object.__hash__  # as that of `IterKind`

    @property
    def order(self) -> Order:
        """How the iterations run: one after another, in any order, by blocks or by threads."""
        found = _ORDERS.get(self._name_)
        if found is None:
            raise InternalError(str(self), "nobody says in which order its iterations run")
        return found

    @property
    def is_grid(self) -> bool:
        """Whether the loop is spread over the blocks of the grid."""
        return self.order == "grid"

    @property
    def is_block(self) -> bool:
        """Whether the loop is spread over the threads of a block."""
        return self.order == "block"

    @property
    def is_thread(self) -> bool:
        """Whether the loop is bound to a launch dimension (grid or block)."""
        return self.order in ("grid", "block")

    @property
    def is_unordered(self) -> bool:
        """Whether one thread runs the loop, in an order that does not matter."""
        return self.order == "any"

    @property
    def letter(self) -> str:
        """The letter of a launch dimension: x, y or z."""
        return "xyz"[(GRID_DIMENSIONS if self.is_grid else BLOCK_DIMENSIONS).index(self)]

    @property
    def cuda_name(self) -> str:
        """The CUDA register of a launch dimension: ``blockIdx.x``, ``threadIdx.y``…"""
        return f"{'blockIdx' if self.is_grid else 'threadIdx'}.{self.letter}"


_ORDERS: Mapping[str, Order] = {
    "serial": "ascending",
    "unroll": "ascending",
    "unswitch": "ascending",
    "vectorize": "any",
    "cpu_parallel": "any",
    "mma": "ascending",
    "grid_x": "grid",
    "grid_y": "grid",
    "grid_z": "grid",
    "block_x": "block",
    "block_y": "block",
    "block_z": "block",
}

GRID_DIMENSIONS: tuple[ParallelType, ...] = (
    ParallelType.grid_x,
    ParallelType.grid_y,
    ParallelType.grid_z,
)
"""The dimensions of the grid, the one that runs fastest first."""

BLOCK_DIMENSIONS: tuple[ParallelType, ...] = (
    ParallelType.block_x,
    ParallelType.block_y,
    ParallelType.block_z,
)
"""The dimensions of a block, the one that runs fastest first."""


def along_dimensions(number: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Return the places along x, y and z of a thread in its block, or of a block in its grid.

    This is the one formula of thread numbers: x runs fastest.

    Args:
        number: an int, or an array of numbers.
        x: the extent of the block or grid along x, likewise, at least 1.
        y: that along y.
    """
    return number % x, number // x % y, number // (x * y)


LAUNCH_DIMENSIONS: tuple[ParallelType, ...] = (*GRID_DIMENSIONS, *BLOCK_DIMENSIONS)

WARP = 32
"""Threads of a warp, on every target."""

MOST_THREADS = 1024
"""Threads of a block, on every target."""

MOST_ALONG: Mapping[ParallelType, int] = {
    ParallelType.grid_x: (1 << 31) - 1,
    ParallelType.grid_y: 65535,
    ParallelType.grid_z: 65535,
    ParallelType.block_x: MOST_THREADS,
    ParallelType.block_y: MOST_THREADS,
    ParallelType.block_z: 64,
}
"""The largest extent along each launch dimension: CUDA's limits.

Every target keeps them, so that a schedule that runs on one runs on all.
"""


class Memory(Enum):
    """Where a tensor lives."""

    LOCAL = "local"
    """Of one thread: registers on CUDA, where its extents must be constant; else an array."""
    WARP = "warp"
    """Of one warp, spread over its lanes: registers on CUDA, an array a warp elsewhere."""
    SHARED = "shared"
    """Of one block: ``__shared__`` memory on CUDA, an array a block elsewhere."""
    GLOBAL = "global"
    """Of all blocks: arguments, and workspace of the launch for intermediate tensors."""

    __hash__ = object.__hash__  # as that of `IterKind`

    def spans(self, dimension: ParallelType) -> bool:
        """Whether threads that differ along a launch dimension have this memory in common."""
        if self is Memory.SHARED:
            return dimension.is_block
        return dimension is ParallelType.block_x if self is Memory.WARP else self is Memory.GLOBAL


class Swizzle(Enum):
    """How a swizzled buffer permutes its elements."""

    XOR = "xor"
    """The element at (a, b) lies at (a, b ^ a)."""


STEP_TYPES = (ParallelType.serial, ParallelType.unroll, ParallelType.unswitch)
"""How a loop over steps may run: in order, in each thread."""
