"""What a call of a compiled graph does: launches of C that are one call, and steps in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeAlias

from loopnest.backends.cpu.c_target import CompiledC
from loopnest.backends.cpu.launch_table import LaunchTable, TableEntry
from loopnest.backends.ready_call import no_memory
from loopnest.graph_kernels.step_arrays import Memory

Entry: TypeAlias = "tuple[TableEntry, CompiledC]"
"""A launch of a table, and what it launches."""
WHOSE = "the local buffers of its kernels"
"""What memory is missing for where a launch fails."""


class TableAction:
    """Launches of a table, as a part of a call.

    Args:
        launches: in order, each with what it launches; all of these have the same options.
        subject: the call, for errors.
    """

    def __init__(self, launches: Sequence[Entry], subject: str) -> None:
        kernels = [kernel for _, kernel in launches]
        runtime = next((kernel.runtime for kernel in kernels if kernel.runtime), None)
        own = [launch for launch, _ in launches]
        self.table = LaunchTable(own, kernels[0].threads, runtime)
        self._subject = subject
        self._words: Any = None

    def attach(self, words: Any) -> None:
        """Let the following calls find addresses and sizes in `words`."""
        self._words = words

    def run(self, memory: Memory) -> None:
        """Run the launches."""
        if self.table.run(self._words):
            raise no_memory(self._subject, WHOSE)

    def timed(self, memory: Memory) -> list[float]:
        """Run the launches; return the seconds of each."""
        status, seconds = self.table.timed(self._words)
        if status:
            raise no_memory(self._subject, WHOSE)
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
