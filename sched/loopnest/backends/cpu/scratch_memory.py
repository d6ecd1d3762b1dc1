"""Where the buffers of a C kernel lie: on the stack or in scratch memory.

There are two pieces of scratch memory, both reserved before the kernel starts: one that each thread
of the CPU has for itself, and one of the launch for what outlives the work of a thread, because
blocks keep it across a barrier of the grid.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from loopnest.backends.clike.statements import static_size
from loopnest.kir.buffers import Buffer
from loopnest.scalar.enums import Memory

STACK_BYTES = 16384
"""Larger buffers of static size lie in scratch memory: the stacks of threads are small."""

STACK_TOTAL = 65536
"""What buffers of several threads may take of a stack together; further ones lie in scratch."""


class ScratchPiece(NamedTuple):
    """A piece of scratch memory: names of variables, and what lies in it.

    Args:
        start: where it begins.
        memory: what malloc returned.
        total: its size in bytes.
        copies: how often it is needed.
        buffers: what lies in it, in order.
    """

    start: str
    memory: str
    total: str
    copies: str
    buffers: list[Buffer]


class MemoryPlan:
    """Where each of `buffers` lies.

    Args:
        buffers: all that a kernel makes, in order.
        is_threaded: whether arrays of several threads are among them, which add up.
    """

    def __init__(self, buffers: Iterable[Buffer], *, is_threaded: bool) -> None:
        self.off_stack: dict[Buffer, None] = {}
        room = STACK_TOTAL
        for buffer in buffers:
            count = static_size(buffer)
            size = None if count is None else count * buffer.dtype.size
            if size is None or size > STACK_BYTES or _is_kept(buffer):
                self.off_stack[buffer] = None
            elif is_threaded and (buffer.memory is Memory.SHARED or buffer.kind == "slots"):
                room -= size
                if room < 0:
                    self.off_stack[buffer] = None
        self.scratch = self.scratch_of(self.off_stack)
        self._own = ScratchPiece("ln_scratch", "ln_memory", "ln_bytes", "ln_threads", self.scratch)
        kept = [b for b in self.off_stack if _is_kept(b)]
        self._kept = ScratchPiece("ln_kept", "ln_kept_memory", "ln_kept_bytes", "1", kept)
        self.pieces = tuple([p for p in (self._own, self._kept) if p.buffers])

    def scratch_of(self, buffers: Iterable[Buffer]) -> list[Buffer]:
        """Return those of `buffers` that lie in the scratch memory of a thread."""
        return [b for b in buffers if b in self.off_stack and not _is_kept(b)]

    def piece_of(self, buffer: Buffer) -> ScratchPiece:
        """Return the piece in which a buffer off the stack lies."""
        return self._kept if _is_kept(buffer) else self._own


def _is_kept(buffer: Buffer) -> bool:
    return buffer.memory is Memory.GLOBAL
