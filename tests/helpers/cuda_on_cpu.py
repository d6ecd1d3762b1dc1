"""Printed CUDA text on the CPU: what it says is what runs, the printer's part included."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
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

    def load(self, code, name):
        text = code.decode()
        for pattern, replacement in _REWRITTEN:
            text = re.sub(pattern, replacement, text)
        source = self.folder / f"{name}{len(list(self.folder.iterdir()))}.cpp"
        source.write_text(f'#include "{HEADER}"\n{text}\nCALL_OF({name})\n')
        target = source.with_suffix(".so")
        command = [self.compiler, *_FLAGS, "-o", target, source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        launch = ctypes.CDLL(str(target)).launch
        launch.restype = ctypes.c_char_p
        launched = self._launched(code, name)
        return SimpleNamespace(name=name, **launched, shared=48 * 1024, run=launch)

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
