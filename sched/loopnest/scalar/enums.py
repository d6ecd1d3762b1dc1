"""The closed sets that every layer shares: axis kinds, parallel types, memory spaces."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal, TypeAlias

from loopnest.errors import InternalError

Order: TypeAlias = Literal["ascending", "any", "grid", "block"]


class IterKind(Enum):
    """What an axis stands for."""

    ITERATION = "iteration"
    REDUCTION = "reduction"
    BROADCAST = "broadcast"

    @property
    def letter(self) -> str:
        """The letter that names an axis of this kind in errors: i, r or b."""
        return {"iteration": "i", "reduction": "r", "broadcast": "b"}[self.value]


class ParallelType(Enum):
    """How the loop of an axis runs."""

    serial = "serial"
    grid_x = "grid_x"
    grid_y = "grid_y"
    grid_z = "grid_z"
    block_x = "block_x"
    block_y = "block_y"
    block_z = "block_z"
    vectorize = "vectorize"
    unroll = "unroll"
    unswitch = "unswitch"
    cpu_parallel = "cpu_parallel"

    @property
    def order(self) -> Order:
        """How the iterations run: one after another, in any order, by blocks or by threads."""
        found = _ORDERS.get(self._name_)  # by name: the hash of a member is slow
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
    SHARED = "shared"
    GLOBAL = "global"


class Swizzle(Enum):
    """How a swizzled buffer permutes its elements."""

    XOR = "xor"
