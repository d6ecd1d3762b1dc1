"""Printed CUDA text on the CPU: what it says is what runs, the printer's part included."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.fake_gpu import FakeGpu

HEADER = Path(__file__).parent / "cuda_on_cpu.h"

# What the header cannot define: the arena, and a loop that waits while other blocks run.
_REWRITTEN = (
    (r"#include <cuda_.*>\n", ""),
    (
        r"extern __shared__ __align__\(16\) unsigned char ln_shared\[\];",
        "unsigned char *const ln_shared = (unsigned char *)cpu_arena;",
    ),
    (r"(& 0x80000000u\) == 0\)) \{\n    \}", r"\1 cpu_stop(RUNS, 0, 0);"),
)

_FLAGS = ("-std=c++20", "-O0", "-w", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off",
          "-ftrivial-auto-var-init=pattern", "-shared", "-fPIC")  # fmt: skip


_ASM = re.compile(r'\basm(?: volatile)?\("(?P<ptx>[^"]*)"(?P<rest>.*?)\);', re.DOTALL)
_OPERAND = re.compile(r'"(?P<kind>[+=]?[a-z])"\(')
_EXECUTED = ("mma.", "ldmatrix.", "cp.async.")
"""What the opcodes begin with that `ptx_on_cpu.h` has a function for."""


def with_calls(text: str) -> str:
    """Return CUDA text in which calls of `ptx_on_cpu.h` stand in the place of inline PTX.

    A thread notes the line where it calls a device function, at which its warp meets.
    """
    text = text.replace(
        '#if defined(__CUDA_ARCH__)\n  asm volatile("cp.async', '#if 1\n  asm("cp.async'
    )
    names = "|".join(re.findall(r"__forceinline__ void (ln_\w+)\(void\*", text))
    if names:
        text = re.sub(rf"(?m)^( *)({names})\(", r"\1cpu_thread->line = __LINE__; \2(", text)
    return _ASM.sub(_call, text)


def _call(asm: re.Match[str]) -> str:
    """Return the call that executes one inline PTX, its registers as numbers."""
    opcode, _, operands = asm["ptx"].rstrip("; ").partition(" ")
    if not opcode.startswith(_EXECUTED):
        return asm[0]
    results, values = [], []
    for kind, expression in _operands(asm["rest"]):
        results += [expression] if kind[0] in "+=" else []
        values.append("0" if kind[0] == "=" else f"cpu_word({expression})")
    at = []
    for place in re.findall(r"%?\d+", operands):  # a register, or a number of the text
        at.append(int(place[1:]) if place[0] == "%" else len(values))
        values += [] if place[0] == "%" else [place]
    moved = " ".join([f"cpu_unword({e}, cpu_w[{n}]);" for n, e in enumerate(results)])
    return (
        f"{{ uint64_t cpu_w[] = {{{', '.join(values) or '0'}}}; "
        f"const int cpu_at[] = {{{', '.join(map(str, at)) or '0'}}}; "
        f"ptx_{re.sub(r'[^a-z0-9]+', '_', opcode)}(cpu_w, cpu_at); {moved} }}"
    )


def _operands(text: str) -> Iterator[tuple[str, str]]:
    """Yield constraint and expression of each operand of an asm statement."""
    place = 0
    while found := _OPERAND.search(text, place):
        depth, place = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[place], 0)
            place += 1
        yield found["kind"], text[found.end() : place - 1]


class CpuGpu(FakeGpu):
    """A `Driver` whose kernels run, on the CPU: in another order at each launch.

    Args:
        folder: for what is compiled.
        at_once: how many blocks run at the same time, but where all must.
    """

    def __init__(self, folder: Path, at_once: int = 4) -> None:
        super().__init__()
        self.compiler = shutil.which("g++")
        if self.compiler is None:
            pytest.skip("no g++ for CUDA text on the CPU")
        self.folder, self.at_once = folder, at_once
        self.held: dict[int, np.ndarray] = {}
        self.launches = 0
        self.compiled: dict[tuple[bytes, str], object] = {}

    def load(self, code, name):
        launch = self.compiled.get((code, name))
        if launch is None:
            launch = self.compiled[code, name] = self._compile(code.decode(), name)
        launched = self._launched(code, name)
        return SimpleNamespace(name=name, **launched, shared=48 * 1024, run=launch)

    def _compile(self, text, name):
        for pattern, replacement in _REWRITTEN:
            text = re.sub(pattern, replacement, text)
        text = with_calls(text)
        source = self.folder / f"{name}{len(list(self.folder.iterdir()))}.cpp"
        source.write_text(f'#include "{HEADER}"\n{text}\nCALL_OF({name})\n')
        target = source.with_suffix(".so")
        command = [self.compiler, *_FLAGS, "-o", target, source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        launch = ctypes.CDLL(str(target)).launch
        launch.restype = ctypes.c_char_p
        return launch

    def launch(self, function, launch, arguments, stream):
        self._note("launch", function.name, launch, stream)
        assert launch.dynamic_bytes <= function.shared
        places = [ctypes.addressof(argument) for argument in arguments]
        grid, block = [(ctypes.c_uint * 3)(*sizes) for sizes in (launch.grid, launch.block)]
        at_once = int(np.prod(launch.grid)) if launch.cooperative else self.at_once
        self.launches += 1
        error = function.run(
            grid, block, launch.dynamic_bytes, (ctypes.c_void_p * len(places))(*places),
            self.launches, at_once,
        )  # fmt: skip
        assert error is None, error.decode()

    def allocate(self, count, stream):
        self._note("allocate", count, stream)
        raw = np.full(count + 256, 0xFF, np.uint8)
        start = -raw.ctypes.data % 256
        address = raw.ctypes.data + start
        self.held[address], self.memory[address] = raw, raw[start : start + count]
        return address

    def free(self, address, stream):
        super().free(address, stream)
        del self.held[address]
