"""What a call of a compiled graph does: launches of C that are one call, and steps in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeAlias

from loopnest.errors import LaunchError
from loopnest.graph_kernels.launch_table import LaunchTable
from loopnest.graph_kernels.step_arrays import Memory

Entry: TypeAlias = "tuple[Any, list[int]]"
"""A launch of a table: a function, and the numbers of its pointers and sizes."""


class TableAction:
    """Launches of a table, as a part of a call."""

    def __init__(self, launches: Sequence[Entry], subject: str) -> None:
        self.table = LaunchTable(*zip(*launches, strict=True))
        self._subject = subject

    def run(self, memory: Memory) -> None:
        """Run the launches."""
        if self.table.run():
            raise no_memory(self._subject)

    def timed(self, memory: Memory) -> list[float]:
        """Run the launches; return the seconds of each."""
        status, seconds = self.table.timed()
        if status:
            raise no_memory(self._subject)
        return seconds


class CallAction:
    """A step that Python calls: a library, an evaluation, a kernel that no table takes.

    Args:
        run: the step.
    """

    def __init__(self, run: Callable[[Memory], None]) -> None:
        self.run = run

    def timed(self, memory: Memory) -> list[float]:
        """Run the step; return its seconds."""
        start = perf_counter()
        self.run(memory)
        return [perf_counter() - start]


def no_memory(subject: str) -> LaunchError:
    """Return the error of a call whose kernels found no memory."""
    found = "no memory is left for the local buffers of its kernels"
    return LaunchError(subject, found, "pass smaller arrays, or fewer threads")
