"""Compile CUDA source without a GPU: PTX, cubin, SASS, resources."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.nvrtc_cases import GREEDY, HALVES, MEMORY, SAXPY, message
from loopnest.backends.cuda.toolchain import cubin
from loopnest.backends.cuda.toolchain.cubin import kernel_resources
from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda
from loopnest.base.errors import InternalError

pytestmark = pytest.mark.usefixtures("memory_cache")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", 90, "90a"])
def test_saxpy_to_ptx_cubin_and_resources(arch: str | int) -> None:
    compiled = compile_cuda(SAXPY, arch)
    assert ".entry saxpy(" in compiled.ptx
    assert f".target sm_{str(arch).removeprefix('sm_')}" in compiled.ptx
    assert compiled.cubin[:4] == b"\x7fELF"
    assert list(compiled.resources) == ["saxpy"]
    resources = compiled.resources["saxpy"]
    assert 6 <= resources.registers <= 32
    assert (resources.spill_bytes, resources.shared_bytes, resources.stack_bytes) == (0, 0, 0)
    assert resources.constant_bytes >= 4 + 4 + 8 + 8  # the parameters lie in a constant bank
    assert resources.barriers == 0


@pytest.mark.usefixtures("headers")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_half_and_bfloat16_headers(arch: str) -> None:
    compiled = compile_cuda(HALVES, arch)
    assert ".entry halves(" in compiled.ptx
    assert "fma.rn.bf16x2" in compiled.ptx
    assert compiled.cubin[:4] == b"\x7fELF"
    assert set(compiled.resources) == {"halves", "brains"}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", ["nvdisasm", "cuobjdump"])
def test_sass_by_either_tool(
    name: str,
    arch: str,
    tool: Callable[[str], Path],
    headers: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = tool(name)
    monkeypatch.setattr(cubin, "find_tool", lambda asked, major: found if asked == name else None)
    assert "FFMA" in compile_cuda(SAXPY, arch).sass
    halves = compile_cuda(HALVES, arch).sass
    # The assembler also makes constants by an HFMA2 on zeros, which would not count.
    assert re.search(r"HFMA2(\.MMA)? R\d+, R\d+, R\d+, R\d+", halves)
    assert re.search(r"HFMA2(\.MMA)?\.BF16\S* R\d+, R\d+, R\d+, R\d+", halves)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_resources_of_local_and_shared_arrays(arch: str) -> None:
    resources = compile_cuda(MEMORY, arch).resources
    assert resources["local_array"].stack_bytes == 4000
    assert resources["local_array"].shared_bytes == 0
    assert resources["local_array"].spill_bytes == 0
    assert resources["shared_array"].shared_bytes == 400  # without the system's 1 KiB
    assert resources["shared_array"].stack_bytes == 0
    assert resources["shared_array"].barriers == 1


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_register_limit_holds_under_launch_bounds_and_spills(arch: str) -> None:
    free = compile_cuda(GREEDY, arch).resources["greedy"]
    assert free.registers > 32
    assert free.spill_bytes == 0
    tight = compile_cuda(GREEDY, arch, max_registers=32).resources["greedy"]
    assert tight.registers <= 32
    assert tight.spill_store_bytes > 0
    assert tight.spill_load_bytes > 0
    assert tight.spill_bytes == tight.spill_store_bytes + tight.spill_load_bytes
    assert tight.stack_bytes > 0


@pytest.mark.usefixtures("library")
def test_spills_of_a_called_function_count_for_its_kernels() -> None:
    body = GREEDY.replace('extern "C" __global__ void __launch_bounds__(256)', "")
    source = f"""__device__ __noinline__ void {body.strip()}
extern "C" __global__ void caller(float* x, int n) {{ greedy(x, n); greedy(x + 1, n); }}
extern "C" __global__ void stranger(float* x) {{ x[0] = 1.0f; }}
"""
    resources = compile_cuda(source, "sm_90", max_registers=32).resources
    assert resources["caller"].spill_bytes >= 200  # some twenty of 64 values go both ways
    assert resources["stranger"].spill_bytes == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_resources_agree_with_cuobjdump(
    arch: str, tool: Callable[[str], Path], tmp_path: Path
) -> None:
    compiled = compile_cuda(MEMORY + SAXPY + GREEDY, arch, max_registers=32)
    file = tmp_path / "kernel.cubin"
    file.write_bytes(compiled.cubin)
    command = [str(tool("cuobjdump")), "--dump-resource-usage", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pattern = r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:\d+ CONSTANT\[0\]:(\d+)"
    expected = {
        name: (registers, stack, constant)
        for name, registers, stack, _, constant in re.findall(pattern, text)
    }
    assert expected == {
        name: (str(each.registers), str(each.stack_bytes), str(each.constant_bytes))
        for name, each in compiled.resources.items()
    }


@pytest.mark.usefixtures("library")
def test_ptx_is_the_same_before_and_after_the_machine_code() -> None:
    first, second = compile_cuda(SAXPY, "sm_90"), compile_cuda(SAXPY, "sm_90")
    assert second.cubin
    assert first.ptx == second.ptx


@pytest.mark.usefixtures("library")
def test_a_virtual_architecture_gives_ptx_only() -> None:
    compiled = compile_cuda(SAXPY, "compute_90")
    assert ".entry saxpy(" in compiled.ptx
    expected = "arch='compute_90': a virtual architecture has PTX but no machine code; use 'sm_90'"
    assert message(lambda: compiled.cubin) == expected
    assert message(lambda: compiled.sass) == expected
    assert message(lambda: compiled.resources) == expected


@pytest.mark.usefixtures("library")
def test_fast_math_is_off_until_asked_for() -> None:
    source = 'extern "C" __global__ void f(float* x) { x[0] = x[1] / x[2]; }'
    assert "div.rn.f32" in compile_cuda(source, 90).ptx
    assert "div.approx.ftz.f32" in compile_cuda(source, 90, fast_math=True).ptx


@pytest.mark.usefixtures("library")
def test_options_reach_nvrtc() -> None:
    assert ".entry renamed(" in compile_cuda(SAXPY, 90, options=["-Dsaxpy=renamed"]).ptx


@pytest.mark.usefixtures("library")
def test_the_log_holds_warnings() -> None:
    source = 'extern "C" __global__ void f(float* x) { int unused; x[0] = 1.0f; }'
    assert 'variable "unused" was declared but never referenced' in compile_cuda(source, 90).log


def test_resources_of_unknown_reports() -> None:
    with pytest.raises(InternalError) as caught:
        kernel_resources("", b"MZ of another system")
    assert str(caught.value) == "cubin: not a 64-bit ELF file; it begins with b'MZ of '"
    empty = b"\x7fELF\x02\x01".ljust(64, b"\0") + bytes(64)  # one section header, all zero
    empty = empty[:40] + (64).to_bytes(8, "little") + empty[48:]
    with pytest.raises(InternalError) as caught:
        kernel_resources("ptxas info    : 0 bytes gmem", empty)
    assert str(caught.value) == (
        "resources: the assembler's report names no kernel:\nptxas info    : 0 bytes gmem"
    )
    report = "ptxas info    : Compiling entry function 'f' for 'sm_90'\nof a new form"
    with pytest.raises(InternalError) as caught:
        kernel_resources(report, empty)
    assert str(caught.value) == (
        "resources of f: no register count in the report:\n'sm_90'\nof a new form"
    )
