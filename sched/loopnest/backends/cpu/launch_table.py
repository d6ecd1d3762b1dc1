"""Launches of C kernels as one call: a table of their entries and of the words that they take.

A word has 64 bits: an address, a size, or a scalar at its beginning.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from loopnest.backends.cpu import openmp
from loopnest.backends.cpu.array_fields import field_places
from loopnest.launch.target_interface import MISFIT

if TYPE_CHECKING:
    from loopnest.backends.cpu.c_compiler import Library

Words: TypeAlias = "ctypes.Array[Any] | bytes"
"""The words of a call."""


def words_of(numbers: Sequence[int]) -> ctypes.Array[Any]:
    """Return addresses and sizes as a table takes them."""
    return (ctypes.c_uint64 * len(numbers))(*numbers)


class TableEntry(NamedTuple):
    """A launch of a table.

    Args:
        entry: the function of C, as `c_printer.print_entry` prints it.
        slots: of each parameter, the number of its word.
    """

    entry: Any
    slots: Sequence[int]


@cache
def calls_library() -> Library:
    """Return the functions that run tables."""
    from loopnest.backends.cpu.c_compiler import compile_c

    places = "".join([f"#define {name} {place}\n" for name, place in field_places().items()])
    text = Path(__file__).with_name("loopnest_calls.c").read_text(encoding="utf-8")
    return compile_c(f"{places}#define MISFIT ({MISFIT})\n{text}", openmp=False)


@cache
def _runner() -> Any:
    types = [ctypes.c_void_p, ctypes.c_void_p]
    return calls_library().function("loopnest_run_table", types, ctypes.c_int)


class _Table(ctypes.Structure):
    """What the C function is given: ``launch_table`` of its source."""

    _fields_ = (
        ("count", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("entries", "widths", "slots", "times")],
        ("threads", ctypes.c_int),
        *[(name, ctypes.c_void_p) for name in ("most", "limit", "home")],
    )


class LaunchTable:
    """Launches that follow each other.

    Args:
        launches: in order.
        threads: how many may run one, None for OpenMP's choice.
        runtime: the OpenMP runtime of the entries, None where they have none.
    """

    def __init__(
        self,
        launches: Sequence[TableEntry],
        threads: int | None = None,
        runtime: openmp.Runtime | None = None,
    ) -> None:
        count = len(launches)
        entries = [launch.entry for launch in launches]
        self._times = (ctypes.c_int64 * count)()
        self._arrays = (
            (ctypes.c_void_p * count)(*map(_address, entries)),
            _ints([len(launch.slots) for launch in launches]),
            _ints([slot for launch in launches for slot in launch.slots]),
        )
        self._kept = (entries, runtime)  # a function lives as long as its library does
        own = (_address(runtime.read), _address(runtime.write)) if runtime else (None, None)
        home = ctypes.addressof(openmp.home)
        places = map(ctypes.addressof, self._arrays)
        self._table = _Table(count, *places, None, threads or 0, *own, home)
        self.address = ctypes.addressof(self._table)
        """Where the table stands, for a function of C."""
        self._argument = ctypes.c_void_p(self.address)
        self._run = _runner()

    def run(self, words: Words) -> int:
        """Run all launches; return the status of the first to fail."""
        status: int = self._run(self._argument, words)
        return status

    def timed(self, words: Words) -> tuple[int, list[float]]:
        """Run all launches; return the status, and the seconds of each."""
        self._table.times = ctypes.addressof(self._times)
        try:
            return self.run(words), [nanoseconds * 1e-9 for nanoseconds in self._times]
        finally:
            self._table.times = None


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _ints(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int * len(numbers))(*numbers)
