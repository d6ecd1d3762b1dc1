"""The functions of vectors are C for every processor that the compiler knows, not for this one."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from loopnest.backends.cpu.c_compiler import find_compiler
from loopnest.backends.cpu.c_printer import c_prelude

pytestmark = pytest.mark.skipif(
    find_compiler() is None or platform.machine() not in ("x86_64", "AMD64"),
    reason="no C compiler for x86-64",
)

TYPES = ("f32x4", "f32x8", "f32x16", "f64x2", "f64x4", "f64x8")


def compiles(source: str, march: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "kernel.c").write_text(source)
    compiler = find_compiler()
    assert compiler is not None
    command = [
        *compiler.command,
        "-std=gnu11",
        f"-march={march}",
        "-O1",
        "-fopenmp-simd",
        "-Werror",
    ]
    command += ["-Wno-psabi", "-DLOOPNEST_COMPACT", "-c", "kernel.c", "-o", "kernel.o"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("march", ["x86-64", "haswell", "x86-64-v3", "znver3", "cascadelake"])
def test_functions_of_vectors_compile(march: str, tmp_path: Path) -> None:
    if compiles("int known;\n", march, tmp_path).returncode:
        pytest.skip(f"the compiler does not know {march}")
    functions = "\n".join(f"LN_FUNCTIONS_{name}" for name in TYPES)
    done = compiles(f"{c_prelude()}{functions}\n", march, tmp_path)
    assert done.returncode == 0, done.stderr
