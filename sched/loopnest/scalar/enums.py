"""The closed sets that every layer shares: axis kinds, parallel types, memory spaces."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


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
    def is_grid(self) -> bool:
        """Whether the loop is spread over the blocks of the grid."""
        return self.value.startswith("grid")

    @property
    def is_block(self) -> bool:
        """Whether the loop is spread over the threads of a block."""
        return self.value.startswith("block")

    @property
    def is_thread(self) -> bool:
        """Whether the loop is bound to a launch dimension (grid or block)."""
        return self.is_grid or self.is_block

    @property
    def cuda_name(self) -> str:
        """The CUDA register of a launch dimension: ``blockIdx.x``, ``threadIdx.y``…"""
        return ("blockIdx." if self.is_grid else "threadIdx.") + self.value[-1]


LAUNCH_DIMENSIONS: tuple[ParallelType, ...] = (
    ParallelType.grid_x,
    ParallelType.grid_y,
    ParallelType.grid_z,
    ParallelType.block_x,
    ParallelType.block_y,
    ParallelType.block_z,
)

BLOCK_DIMENSIONS: tuple[ParallelType, ...] = LAUNCH_DIMENSIONS[3:]
"""The dimensions of a block, the one that runs fastest first."""

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
