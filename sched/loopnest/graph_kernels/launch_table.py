"""Launches of C kernels as one call: a table of functions and of the arguments that they take."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

MOST_ARGUMENTS = 52
"""Kernels of more parameters are launched one by one."""

Pointers: TypeAlias = "ctypes.Array[Any]"
"""Where each storage of a call lies, and sizes: unsigned integers of 64 bits."""


def pointers_of(addresses: Sequence[int]) -> Pointers:
    """Return addresses as a table takes them."""
    return (ctypes.c_uint64 * len(addresses))(*addresses)


def _source() -> str:
    """Return C source that calls the functions of a table, each with its arguments.

    ``counts`` has the number of a function's arguments; ``slots`` says which of ``p`` they are:
    pointers, or sizes in 64 bits. A size is passed as a pointer is, in a register for integers, or
    in a place of the stack that is as wide, on every machine of 64 bits that there is a target for.
    Where there is room for them, ``t`` gets the nanoseconds of each function.
    """
    cases = []
    for count in range(1, MOST_ARGUMENTS + 1):
        types = ", ".join(["void *"] * count)
        values = ", ".join([f"p[a[{i}]]" for i in range(count)])
        cases.append(f"    case {count}: s = ((int (*)({types}))f[i])({values}); break;")
    body = "\n".join(cases)
    return (
        "#define _POSIX_C_SOURCE 199309L\n#include <stdint.h>\n#include <time.h>\n"
        "typedef struct {\n  int64_t n;\n  void **f;\n  const int *counts, *slots;\n"
        "  void **p;\n  int64_t *t;\n} loopnest_table;\n"
        "static int64_t loopnest_now(void) {\n  struct timespec now;\n"
        "  clock_gettime(CLOCK_MONOTONIC, &now);\n"
        "  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;\n}\n"
        "int loopnest_run_table(const loopnest_table *own) {\n"
        "  const int *counts = own->counts, *a = own->slots;\n"
        "  void **p = own->p, **f = own->f;\n"
        "  for (int64_t i = 0; i < own->n; i++) {\n    int s = -1;\n"
        "    if (own->t) own->t[i] = loopnest_now();\n"
        f"    switch (counts[i]) {{\n{body}\n    }}\n    if (s) return s;\n"
        "    if (own->t) own->t[i] = loopnest_now() - own->t[i];\n"
        "    a += counts[i];\n  }\n  return 0;\n}\n"
    )


TABLE_SOURCE = _source()
"""The C source of ``loopnest_run_table``, and of its argument's type."""


@cache
def _runner() -> Any:
    from loopnest.backends.cpu.c_compiler import compile_c

    library = compile_c(TABLE_SOURCE, optimize=1)
    return library.function("loopnest_run_table", [ctypes.c_void_p], ctypes.c_int)


class _Table(ctypes.Structure):
    """What the C function is given: ``loopnest_table`` of its source."""

    _fields_ = (
        ("n", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("f", "counts", "slots", "p", "t")],
    )


class LaunchTable:
    """Launches that follow each other.

    Args:
        functions: the C function of each launch.
        slots: for each launch the numbers of the pointers and sizes that it takes, in order.
    """

    def __init__(self, functions: Sequence[Any], slots: Sequence[Sequence[int]]) -> None:
        count = len(functions)
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
        self._times = (ctypes.c_int64 * count)()
        self._arrays = (
            (ctypes.c_void_p * count)(*addresses),
            _ints([len(own) for own in slots]),
            _ints([slot for own in slots for slot in own]),
        )
        self._kept = list(functions)  # a function lives as long as its library does
        table, counts, chosen = map(ctypes.addressof, self._arrays)
        self._table = _Table(count, table, counts, chosen, None, None)
        self.address = ctypes.addressof(self._table)
        """Where the table stands, for a function of C."""
        self._argument = ctypes.c_void_p(self.address)
        self._run = _runner()

    def attach(self, pointers: Pointers) -> None:
        """Let the following calls find where storages lie in `pointers`."""
        self._pointers = pointers
        self._table.p = ctypes.addressof(pointers)

    def run(self) -> int:
        """Run all launches; return the status of the first to fail."""
        status: int = self._run(self._argument)
        return status

    def timed(self) -> tuple[int, list[float]]:
        """Run all launches; return the status, and the seconds of each."""
        self._table.t = ctypes.addressof(self._times)
        try:
            return self.run(), [nanoseconds * 1e-9 for nanoseconds in self._times]
        finally:
            self._table.t = None


def _ints(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int * len(numbers))(*numbers)
