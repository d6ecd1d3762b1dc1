"""Memory full of garbage: what a C kernel reads before it is stored shows in its results.

In a fresh process memory is 0, and so is most of what is never stored: sums come out right. Here
workspace and what the kernel allocates are NaN (-1 as integers), and variables and arrays of the
stack hold a pattern, where the compiler can do that.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.launch.outputs import Outputs

HEADER = Path(__file__).with_name("garbage.h")
_STACK = ("-ftrivial-auto-var-init=pattern", "-mno-red-zone")
"""Fills variables. GCC 12 stores the pattern by aligned vectors, and to a stack that is not aligned
where it needs no frame of its own; so it always gets one, on processors that have a choice."""


@contextmanager
def garbage() -> Iterator[None]:
    """While it lasts, C kernels are compiled for memory full of garbage, and get such workspace."""
    before, empty = os.environ.get("CC"), Outputs.empty
    command = _command(before or "")
    if command:
        os.environ["CC"] = command
    Outputs.empty = _filled  # type: ignore[method-assign]
    try:
        yield
    finally:
        Outputs.empty = empty  # type: ignore[method-assign]
        if command and before is None:
            del os.environ["CC"]
        elif before is not None:
            os.environ["CC"] = before


def fill(array: np.ndarray[Any, Any]) -> None:
    """Overwrite an array with NaN, or with -1; a bool with True."""
    if array.size:
        array.reshape(-1).view(np.uint8)[...] = 1 if array.dtype == np.bool_ else 0xFF


def _filled(
    self: Outputs, shape: tuple[int, ...], dtype: np.dtype[Any], is_zero: bool = False
) -> np.ndarray[Any, Any]:
    made = np.zeros(shape, dtype)
    if not is_zero:  # counts of blocks that have arrived begin at 0
        fill(made)
    return made


@cache
def _command(compiler: str) -> str:
    """Return the compiler with the flags that fill memory; "" where there is none."""
    found = find_compiler()
    if found is None:
        return ""
    plain = (*found.command, "-include", str(HEADER))
    filled = [(*plain, *flags) for flags in (_STACK, _STACK[:1]) if _works((*plain, *flags))]
    return shlex.join([*filled, plain][0])


def _works(command: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text("int probe(void) { int x; return 0; }\n", encoding="utf-8")
        done = subprocess.run(
            [*command, "-c", str(source), "-o", str(source.with_suffix(".o"))],
            capture_output=True,
            check=False,
        )
        return done.returncode == 0
