"""What is told where NVRTC, the assembler or a disassembler refuse, or are not installed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from helpers.nvrtc_cases import HALVES, MEMORY, SAXPY, WRONG, executable, message
from loopnest.backends.cuda.toolchain import cubin, nvrtc
from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda

pytestmark = pytest.mark.usefixtures("memory_cache")


@pytest.mark.parametrize("arch", ["volta", "sm_", "SM_90", "sm90", "sm_90b", "", -1, True, 9.0])
def test_error_arch_of_another_form(arch: str) -> None:
    expected = f'arch={arch!r}: not an architecture; use the form "sm_90" or 90'
    assert message(lambda: compile_cuda(SAXPY, arch)) == expected


@pytest.mark.parametrize("arch", ["sm_42", "sm_80a", "sm_90f", "compute_42"])
def test_error_unknown_arch_lists_the_known(arch: str, library: ModuleType, title: str) -> None:
    prefix = arch.split("_")[0]
    known = []
    for number in library.nvrtcGetSupportedArchs()[1]:
        suffixes = [""] if number < 90 else ["", "a"] if number < 100 else ["", "a", "f"]
        known += [f"{prefix}_{number}{suffix}" for suffix in suffixes]
    assert f"{prefix}_80" in known
    assert message(lambda: compile_cuda(SAXPY, arch).ptx) == (
        f"arch='{arch}': {title} does not know this architecture; use one of {', '.join(known)}"
    )


@pytest.mark.usefixtures("library")
def test_every_architecture_listed_in_the_error_compiles() -> None:
    text = message(lambda: compile_cuda(SAXPY, "sm_42").ptx)
    listed = text.split("use one of ")[1].split(", ")
    assert len(listed) > 10
    for arch in listed:
        assert compile_cuda(SAXPY, arch).resources["saxpy"].spill_bytes == 0


def test_error_source_prints_the_log_and_the_lines_around(title: str) -> None:
    expected = f"""\
kernel.cu for sm_90: {title} refused the source
kernel.cu(3): error: identifier "scale" is undefined
    x[i] = scale * x[i];
           ^

kernel.cu(10): error: identifier "missing" is undefined
    x[0] = missing(x[1]);
           ^

2 errors detected in the compilation of "kernel.cu".

    1 | extern "C" __global__ void wrong(float* x) {{
    2 |   int i = threadIdx.x;
>   3 |   x[i] = scale * x[i];
    4 | }}
    5 |
      ...
    8 |
    9 | extern "C" __global__ void wrong_too(float* x) {{
>  10 |   x[0] = missing(x[1]);
   11 | }}
   12 |"""
    assert message(lambda: compile_cuda(WRONG, "sm_90").ptx) == expected
    assert message(lambda: compile_cuda(WRONG, "sm_90").cubin) == expected


def test_error_of_the_assembler(title: str) -> None:
    source = MEMORY.replace("[100]", "[100000]")
    expected = f"""\
kernel.cu for sm_90: {title} refused the source
ptxas error   : Entry function 'shared_array' uses too much shared data \
(0x61a80 bytes, 0xc000 max)"""
    assert message(lambda: compile_cuda(source, "sm_90").cubin) == expected


def test_error_unknown_option(title: str) -> None:
    assert message(lambda: compile_cuda(SAXPY, 90, options=["--bogus"]).cubin) == (
        f"options=['--bogus']: {title} refused them: "
        "nvrtc: error: unrecognized option --bogus found"
    )


def test_error_option_for_the_architecture() -> None:
    assert message(lambda: compile_cuda(SAXPY, 90, options=["-arch=sm_80"])) == (
        "options=['-arch=sm_80']: the architecture is given by arch"
    )


@pytest.mark.parametrize("options", ["--use_fast_math", [1]])
def test_error_options_of_another_type(options: list[str]) -> None:
    assert message(lambda: compile_cuda(SAXPY, 90, options=options)) == (
        f"options={options!r}: not a sequence of strings"
    )


@pytest.mark.parametrize("limit", [0, 23, 256, "32"])
def test_error_register_limit(limit: int) -> None:
    assert message(lambda: compile_cuda(SAXPY, 90, max_registers=limit)) == (
        f"max_registers={limit!r}: no limit that the assembler keeps; use 24 to 255"
    )


def test_error_without_cuda_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert message(lambda: compile_cuda(SAXPY, 90).ptx) == (
        "NVRTC: the package cuda-bindings cannot be imported (import of cuda.bindings halted; "
        "None in sys.modules); pip install 'loopnest[nvrtc]'"
    )


def test_error_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> None:
        raise RuntimeError('Failure finding "libnvrtc.so"')

    package = SimpleNamespace(nvrtc=SimpleNamespace(nvrtcVersion=version))
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    assert message(lambda: compile_cuda(SAXPY, 90).ptx) == (
        "NVRTC: the library libnvrtc was not found; "
        "pip install 'loopnest[nvrtc]', or set CUDA_HOME to a CUDA toolkit"
    )


def test_error_without_headers(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "include_dirs", lambda major: ())
    assert message(lambda: compile_cuda(HALVES, 90).ptx) == (
        f"kernel.cu for sm_90: {title} could not open cuda_fp16.h, and no CUDA headers were "
        "found; pip install 'loopnest[nvrtc]', or set CUDA_HOME to a CUDA toolkit"
    )


@pytest.mark.usefixtures("library")
def test_error_without_disassemblers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cubin, "find_tool", lambda name, major: None)
    assert message(lambda: compile_cuda(SAXPY, 90).sass) == (
        "SASS: neither nvdisasm nor cuobjdump was found; "
        "pip install 'loopnest[nvrtc]', or set CUDA_HOME to a CUDA toolkit"
    )


def test_error_of_a_disassembler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = executable(tmp_path / "nvdisasm", "echo 'no such machine' >&2; exit 3")
    monkeypatch.setattr(cubin, "find_tool", lambda name, major: tool)
    assert message(lambda: cubin.disassemble(b"", 13)) == f"SASS: {tool} failed: no such machine"
    tool.write_bytes(b"\x7fELF of another machine")
    assert message(lambda: cubin.disassemble(b"", 13)) == (
        f"SASS: {tool} does not start (Exec format error)"
    )
