"""Layout: what the buffer of a tensor has beyond the axes of its allocation domain."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False, slots=True)
class BufferLayout:
    """The stages that a user gave to an intermediate tensor's buffer.

    Args:
        stages: how many copies a circular buffer rotates through.
        move: the name of the instruction that copies elements to it; empty for ordinary stores.
        prefetch: how many iterations ahead of its use a circular buffer is computed.
    """

    stages: int = 1
    prefetch: int = 0
    move: str = ""


PLAIN = BufferLayout()
