"""Launches of C kernels as one call: a table of functions and of the arguments that they take."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

MOST_POINTERS = 48
MOST_SIZES = 4
"""Kernels of more parameters are launched one by one."""

Pointers: TypeAlias = "ctypes.Array[Any]"
"""Where each storage of a call lies: unsigned integers of 64 bits."""


def pointers_of(addresses: Sequence[int]) -> Pointers:
    """Return addresses as a table takes them."""
    return (ctypes.c_uint64 * len(addresses))(*addresses)


def _source(sizes: int) -> str:
    """Return C source that calls the functions of a table, each with its pointers and sizes.

    ``counts`` has two numbers a function: those of its pointers and of its sizes; ``slots`` says
    which of the pointers ``p`` it takes.
    """
    cases = []
    for count in range(1, MOST_POINTERS + 1):
        for more in range(sizes + 1):
            types = ", ".join(["void *"] * count + ["int64_t"] * more)
            values = ", ".join(
                [f"p[a[{i}]]" for i in range(count)] + [f"z[{i}]" for i in range(more)]
            )
            number = count * (MOST_SIZES + 1) + more
            cases.append(f"    case {number}: s = ((int (*)({types}))f[i])({values}); break;")
    body = "\n".join(cases)
    return (
        "#include <stdint.h>\n"
        "int loopnest_run_table(int n, void **f, const int *counts, const int *slots, void **p,\n"
        "                       const int64_t *z) {\n"
        "  const int *a = slots;\n"
        "  for (int i = 0; i < n; i++) {\n    int s = -1;\n"
        f"    switch (counts[2 * i] * {MOST_SIZES + 1} + counts[2 * i + 1]) {{\n"
        f"{body}\n    }}\n    if (s) return s;\n"
        "    a += counts[2 * i];\n    z += counts[2 * i + 1];\n  }\n  return 0;\n}\n"
    )


@cache
def _runner(sizes: int) -> Any:
    from loopnest.backends.cpu.c_compiler import compile_c

    library = compile_c(_source(sizes), optimize=1)
    kinds = [ctypes.c_int, *[ctypes.c_void_p] * 5]
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
        self._counts = _ints([len(part) for own in zip(slots, sizes, strict=True) for part in own])
        numbers = [size for own in sizes for size in own]
        self._sizes = (ctypes.c_int64 * len(numbers))(*numbers)
        self._slots = _ints([slot for own in slots for slot in own])
        self._run = _runner(MOST_SIZES if numbers else 0)
        self._count = count

    def run(self, pointers: Pointers) -> int:
        """Run all launches on the pointers of this call; return the status of the first to fail."""
        status: int = self._run(
            self._count, self._functions, self._counts, self._slots, pointers, self._sizes
        )
        return status


def _ints(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int * len(numbers))(*numbers)
