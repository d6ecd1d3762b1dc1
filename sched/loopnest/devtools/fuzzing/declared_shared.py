"""How many bytes of shared memory CUDA text declares for a buffer, and what a buffer takes."""

from __future__ import annotations

import re

from loopnest.kir import Allocate, Program
from loopnest.scalar.arguments import size_value
from loopnest.scalar.enums import Memory

BYTES = {
    "bool": 1, "signed char": 1, "unsigned char": 1, "short": 2, "unsigned short": 2, "int": 4,
    "unsigned int": 4, "long long": 8, "float": 4, "double": 8, "__half": 2, "__nv_bfloat16": 2,
    "float8_e4m3fn_t": 1, "float8_e5m2_t": 1,
}  # fmt: skip
_ARRAY = re.compile(r"__shared__ __align__\(16\) ([\w ]+?) (\w+)\[(\d+)\];")
_VIEW = re.compile(r"^  ([\w ]+?) \*const (\w+) = \(\1 \*\)(\w+);", re.MULTILINE)


def declared_bytes(text: str) -> dict[str, int]:
    """Return the bytes that static arrays of CUDA text have for each name, views included."""
    found = {name: int(count) * BYTES[of] for of, name, count in _ARRAY.findall(text)}
    for _, name, base in _VIEW.findall(text):
        if base in found:
            found[name] = found[base]
    return found


def too_small(program: Program, text: str) -> list[str]:
    """Return a sentence for each SHARED buffer of static size that has too few bytes in `text`."""
    declared = declared_bytes(text)
    held = {n.storage for n in program.nodes if isinstance(n, Allocate)}
    needs = {
        b.name: size_value(b.size, {}) * b.dtype.size
        for b in held
        if b.memory is Memory.SHARED and b.name in declared
    }
    return [f"{n} has {declared[n]} of {need} bytes" for n, need in sorted(needs.items())
            if need > declared[n]]  # fmt: skip
