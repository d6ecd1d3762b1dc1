"""What GPUs can do, from their data sheets and the CUDA C++ Programming Guide; occupancy.

Rates are those of the boost clock; a kernel under load runs below it. Bandwidth is that of the
memory, of which a copy reaches about nine tenths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loopnest.base.errors import LoopnestError

_REGISTER_UNIT = 8
"""Registers of a thread are given out in groups of so many."""

_RESERVED = 1 << 10
"""Bytes of shared memory that the system keeps for itself in each block."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU.

    Args:
        name: as profiles name it.
        arch: its architecture.
        multiprocessors: how many there are.
        clock: cycles a second.
        lanes: multiply-adds of float32 that a multiprocessor begins in a cycle.
        special: functions such as exp2 that it begins in a cycle.
        tensor: multiply-adds of 16 bits that its tensor cores begin in a cycle; of 8 bits twice as
            many, of 32 half as many.
        bandwidth: of its memory, in bytes a second.
        shared: bytes of shared memory of a multiprocessor.
        threads: that it holds at once.
        blocks: that it holds at once.
        registers: of 32 bits.
        latency: seconds from a load of memory to its value.
    """

    name: str
    arch: str
    multiprocessors: int
    clock: float
    lanes: int
    tensor: int
    bandwidth: float
    shared: int
    threads: int = 2048
    blocks: int = 32
    special: int = 16
    registers: int = 1 << 16
    latency: float = 700e-9

    @property
    def flops(self) -> float:
        """Operations on float32 a second, a multiply-add being two."""
        return 2 * self.lanes * self.multiprocessors * self.clock

    @property
    def tensor_flops(self) -> float:
        """Operations of tensor cores on 16 bits a second, a multiply-add being two."""
        return 2 * self.tensor * self.multiprocessors * self.clock


DEVICES: Mapping[str, GpuModel] = {
    device.name: device
    for device in (
        GpuModel("A100", "sm_80", 108, 1.41e9, 64, 1024, 2.04e12, 164 << 10),
        GpuModel("H100", "sm_90", 132, 1.98e9, 128, 2048, 3.35e12, 228 << 10),
        GpuModel("H200", "sm_90", 132, 1.98e9, 128, 2048, 4.8e12, 228 << 10),
        GpuModel("B200", "sm_100", 148, 1.85e9, 128, 4096, 8.0e12, 228 << 10),
        GpuModel("RTX 4090", "sm_89", 128, 2.52e9, 128, 256, 1.01e12, 100 << 10, 1536, 24),
    )
}
"""The GPUs that profiles know, by name."""


def find_device(name: object, subject: str) -> GpuModel:
    """Return a GPU by its name.

    Raises:
        LoopnestError: there is none of this name.
    """
    for known in DEVICES.values():
        if isinstance(name, str) and known.name.lower() == name.lower():
            return known
    raise LoopnestError(
        subject, f"no device is called {name!r}", f"use one of {', '.join(DEVICES)}"
    )


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks of a launch a multiprocessor holds at once, and what keeps it from more.

    Args:
        blocks: that it holds.
        warps: of these blocks.
        share: of the threads that it could hold.
        limit: "registers", "shared memory", "threads" or "blocks".
    """

    blocks: int
    warps: int
    share: float
    limit: str


def occupancy(device: GpuModel, threads: int, registers: int, shared: int) -> Occupancy:
    """Return the occupancy of blocks of so many threads, registers a thread and shared bytes."""
    warps = -(-threads // 32)
    a_warp = 32 * -(-max(registers, 1) // _REGISTER_UNIT) * _REGISTER_UNIT
    room = {
        "blocks": device.blocks,
        "threads": device.threads // max(32 * warps, 1),
        "registers": device.registers // a_warp // max(warps, 1),
        "shared memory": device.shared // (shared + _RESERVED),
    }
    limit = min(room, key=lambda name: room[name])
    blocks = room[limit]
    return Occupancy(blocks, blocks * warps, blocks * warps * 32 / device.threads, limit)
