"""Launches of C kernels as one call: a table of functions and of the pointers that they take."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

MOST_POINTERS = 48
"""Kernels of more parameters are launched one by one."""


def _source() -> str:
    """Return C that calls a function of a table with the pointers that follow in another."""
    cases = []
    for count in range(1, MOST_POINTERS + 1):
        types = ", ".join(["void *"] * count)
        values = ", ".join([f"a[{i}]" for i in range(count)])
        cases.append(f"    case {count}: s = ((int (*)({types}))f[i])({values}); break;")
    body = "\n".join(cases)
    return (
        "int loopnest_run_table(int n, void **f, const int *counts, void **a) {\n"
        "  for (int i = 0; i < n; i++) {\n    int s = -1;\n    switch (counts[i]) {\n"
        f"{body}\n    }}\n    if (s) return s;\n    a += counts[i];\n  }}\n  return 0;\n}}\n"
    )


@cache
def _runner() -> Any:
    from loopnest.backends.cpu.c_compiler import compile_c

    library = compile_c(_source(), optimize=1)
    kinds = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return library.function("loopnest_run_table", kinds, ctypes.c_int)


class LaunchTable:
    """Launches that follow each other.

    Args:
        functions: the C function of each launch.
        slots: for each launch the numbers of the pointers that it takes.
    """

    def __init__(self, functions: Sequence[Any], slots: Sequence[Sequence[int]]) -> None:
        self._kept = list(functions)  # a function lives as long as its library does
        count = len(functions)
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
        self._functions = (ctypes.c_void_p * count)(*addresses)
        self._counts = (ctypes.c_int * count)(*[len(own) for own in slots])
        self._slots = [slot for own in slots for slot in own]
        self._run = _runner()
        self._count = count

    def run(self, pointers: Sequence[int]) -> int:
        """Run all launches on the pointers of this call; return the status of the first to fail."""
        values = (ctypes.c_void_p * len(self._slots))(*[pointers[slot] for slot in self._slots])
        status: int = self._run(self._count, self._functions, self._counts, values)
        return status
