"""Launches of C kernels as one call: a table of functions and of the arguments that they take."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_POINTERS = 48
MOST_SIZES = 4
"""Kernels of more parameters are launched one by one."""


def _source(sizes: int) -> str:
    """Return C that calls functions of a table with pointers and up to so many sizes each.

    ``counts`` has two numbers a function: those of its pointers and of its sizes.
    """
    cases = []
    for count in range(1, MOST_POINTERS + 1):
        for more in range(sizes + 1):
            types = ", ".join(["void *"] * count + ["int64_t"] * more)
            values = ", ".join([f"a[{i}]" for i in range(count)] + [f"z[{i}]" for i in range(more)])
            number = count * (MOST_SIZES + 1) + more
            cases.append(f"    case {number}: s = ((int (*)({types}))f[i])({values}); break;")
    body = "\n".join(cases)
    return (
        "#include <stdint.h>\n"
        "int loopnest_run_table(int n, void **f, const int *counts, void **a, const int64_t *z) {\n"
        "  for (int i = 0; i < n; i++) {\n    int s = -1;\n"
        f"    switch (counts[2 * i] * {MOST_SIZES + 1} + counts[2 * i + 1]) {{\n"
        f"{body}\n    }}\n    if (s) return s;\n"
        "    a += counts[2 * i];\n    z += counts[2 * i + 1];\n  }\n  return 0;\n}\n"
    )


@cache
def _runner(sizes: int) -> Any:
    from loopnest.backends.cpu.c_compiler import compile_c

    library = compile_c(_source(sizes), optimize=1)
    kinds = [ctypes.c_int, *[ctypes.c_void_p] * 4]
    return library.function("loopnest_run_table", kinds, ctypes.c_int)


class LaunchTable:
    """Launches that follow each other.

    Args:
        functions: the C function of each launch.
        slots: for each launch the numbers of the pointers that it takes.
        sizes: for each launch the sizes that it takes behind them.
    """

    def __init__(
        self,
        functions: Sequence[Any],
        slots: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
    ) -> None:
        self._kept = list(functions)  # a function lives as long as its library does
        count = len(functions)
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
        self._functions = (ctypes.c_void_p * count)(*addresses)
        counts = [len(part) for own in zip(slots, sizes, strict=True) for part in own]
        self._counts = (ctypes.c_int * len(counts))(*counts)
        numbers = [size for own in sizes for size in own]
        self._sizes = (ctypes.c_int64 * len(numbers))(*numbers)
        self._slots = np.array([slot for own in slots for slot in own], np.intp)
        self._run = _runner(MOST_SIZES if numbers else 0)
        self._count = count

    def run(self, pointers: npt.NDArray[np.uint64]) -> int:
        """Run all launches on the pointers of this call; return the status of the first to fail."""
        values = pointers[self._slots]
        status: int = self._run(
            self._count, self._functions, self._counts, values.ctypes.data, self._sizes
        )
        return status
