"""Compile CUDA source without a GPU: PTX, cubin, SASS, resources, the disk cache, messages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from loopnest.backends.cuda.toolchain import cubin, cuda_toolkit, nvrtc
from loopnest.backends.cuda.toolchain.cubin import kernel_resources
from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda
from loopnest.errors import CompileError, InternalError
from loopnest.launch.disk_cache import DiskCache

SAXPY = """\
extern "C" __global__ void __launch_bounds__(256)
saxpy(int n, float a, const float* __restrict__ x, float* __restrict__ y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
"""

HALVES = """\
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void halves(const __half2* x, __half2* y) {
  y[threadIdx.x] = __hfma2(x[threadIdx.x], x[threadIdx.x], y[threadIdx.x]);
}
extern "C" __global__ void brains(const __nv_bfloat162* x, __nv_bfloat162* y) {
  y[threadIdx.x] = __hfma2(x[threadIdx.x], x[threadIdx.x], y[threadIdx.x]);
}
"""

# 64 values live at once.
GREEDY = """\
extern "C" __global__ void __launch_bounds__(256) greedy(float* x, int n) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i] = x[i * n + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; i++) x[i * n + threadIdx.x * 2] = a[i] * a[63 - i];
}
"""

MEMORY = """\
extern "C" __global__ void local_array(float* x, int n) {
  float a[1000];
  for (int i = 0; i < 1000; i++) a[i] = x[i];
  x[0] = a[n];
}
extern "C" __global__ void shared_array(float* x, int n) {
  __shared__ float s[100];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[n];
}
"""

WRONG = """\
extern "C" __global__ void wrong(float* x) {
  int i = threadIdx.x;
  x[i] = scale * x[i];
}




extern "C" __global__ void wrong_too(float* x) {
  x[0] = missing(x[1]);
}
"""


class MemoryCache:
    """Stands for the disk cache, so that no test sees the results of another run."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.hits = 0

    def get(self, key: str) -> bytes | None:
        self.hits += key in self.stored
        return self.stored.get(key)

    def put(self, key: str, data: bytes) -> None:
        self.stored[key] = data


@pytest.fixture(autouse=True)
def memory_cache(monkeypatch: pytest.MonkeyPatch) -> MemoryCache:
    cache = MemoryCache()
    monkeypatch.setattr(nvrtc, "DiskCache", lambda kind: cache)
    return cache


@pytest.fixture
def library() -> ModuleType:
    try:
        return cuda_toolkit.load_nvrtc()
    except CompileError as error:
        pytest.skip(str(error))


@pytest.fixture
def title(library: ModuleType) -> str:
    _, major, minor = library.nvrtcVersion()
    return f"NVRTC {major}.{minor}"


@pytest.fixture
def headers(library: ModuleType) -> None:
    if not cuda_toolkit.include_dirs(library.nvrtcVersion()[1]):
        pytest.skip("no cuda_fp16.h: pip install 'loopnest[nvrtc]'")


@pytest.fixture
def tool(library: ModuleType) -> Callable[[str], Path]:
    def find(name: str) -> Path:
        found = cuda_toolkit.find_tool(name, library.nvrtcVersion()[1])
        if found is None:
            pytest.skip(f"no {name}: pip install 'loopnest[nvrtc]'")
        return found

    return find


def message(action: Callable[[], object]) -> str:
    with pytest.raises(CompileError) as caught:
        action()
    return str(caught.value)


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


@pytest.mark.usefixtures("library")
def test_cache_keeps_all_results_and_tells_inputs_apart(memory_cache: MemoryCache) -> None:
    first = compile_cuda(SAXPY, 90)
    assert first.cubin
    second = compile_cuda(SAXPY, "sm_90")
    assert (second.ptx, second.cubin) == (first.ptx, first.cubin)
    assert (second.log, second.resources) == (first.log, first.resources)
    assert memory_cache.hits == 1
    stored = len(memory_cache.stored)
    assert compile_cuda(SAXPY, 80).cubin
    assert compile_cuda(SAXPY, 90, fast_math=True).cubin
    assert compile_cuda(SAXPY, 90, max_registers=32).cubin
    assert compile_cuda(SAXPY + "\n", 90).cubin
    assert memory_cache.hits == 1
    assert len(memory_cache.stored) == stored + 4


@pytest.mark.usefixtures("library")
def test_the_disk_cache_serves_another_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "DiskCache", DiskCache)
    monkeypatch.setenv("LOOPNEST_CACHE_DIR", str(tmp_path))
    first = compile_cuda(SAXPY, 90)
    assert first.cubin

    def compile_again(library: ModuleType, job: object) -> None:
        raise AssertionError("not served from the disk")

    monkeypatch.setattr(nvrtc, "_compile", compile_again)
    second = compile_cuda(SAXPY, 90)
    assert (second.cubin, second.ptx, second.log) == (first.cubin, first.ptx, first.log)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("damage", [b"no JSON", b"[]", b'{"ptx": ""}', b"\xff"])
def test_a_damaged_entry_is_compiled_again(damage: bytes, memory_cache: MemoryCache) -> None:
    cubin = compile_cuda(SAXPY, 90).cubin
    memory_cache.stored = dict.fromkeys(memory_cache.stored, damage)
    assert compile_cuda(SAXPY, 90).cubin == cubin
    assert damage not in memory_cache.stored.values()


@pytest.mark.usefixtures("library")
def test_a_changed_header_is_compiled_again(
    tmp_path: Path, memory_cache: MemoryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "include_dirs", lambda major: (tmp_path,))
    source = '#include "name.h"\n' + SAXPY
    (tmp_path / "name.h").write_text("#define saxpy first\n")
    assert ".entry first(" in compile_cuda(source, 90).ptx
    (tmp_path / "name.h").write_text("#define saxpy the_second\n")
    assert ".entry the_second(" in compile_cuda(source, 90).ptx
    assert memory_cache.hits == 0


@pytest.mark.usefixtures("library")
def test_headers_from_elsewhere_keep_a_result_out_of_the_cache(
    tmp_path: Path, memory_cache: MemoryCache
) -> None:
    (tmp_path / "name.h").write_text("#define saxpy renamed\n")
    by_option = compile_cuda(f'#include "name.h"\n{SAXPY}', 90, options=[f"-I{tmp_path}"])
    by_path = compile_cuda(f'#include "{tmp_path}/name.h"\n{SAXPY}', 90)
    assert ".entry renamed(" in by_option.ptx
    assert ".entry renamed(" in by_path.ptx
    assert memory_cache.stored == {}


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


def executable(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_tools_and_headers_are_found_in_wheels_then_cuda_home_then_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, home, path = (tmp_path / name for name in ("nvidia", "home", "path"))
    on_path = executable(path / "loopnest-tool", "")
    at_home = executable(home / "bin" / "loopnest-tool", "")
    monkeypatch.setattr(cuda_toolkit, "_namespace", lambda package: (wheels,))
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert cuda_toolkit.find_tool("loopnest-tool", 13) == on_path
    monkeypatch.setenv("CUDA_HOME", str(home))
    (home / "include").mkdir()
    (home / "include" / "cuda_fp16.h").touch()
    assert cuda_toolkit.find_tool("loopnest-tool", 13) == at_home
    assert cuda_toolkit.include_dirs(13) == (home / "include",)
    in_wheels = executable(wheels / "cu13" / "bin" / "loopnest-tool", "")
    (wheels / "cu13" / "include" / "cccl").mkdir(parents=True)
    (wheels / "cu13" / "include" / "cuda_fp16.h").touch()
    assert cuda_toolkit.find_tool("loopnest-tool", 13) == in_wheels
    assert cuda_toolkit.find_tool("loopnest-tool", 14) == at_home
    include = wheels / "cu13" / "include"
    assert cuda_toolkit.include_dirs(13) == (include, include / "cccl")
    assert cuda_toolkit.find_tool("loopnest-no-such-tool", 13) is None


def test_importing_the_module_imports_no_cuda_package() -> None:
    code = (
        "import sys, loopnest.backends.cuda.toolchain.nvrtc\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('cuda', 'nvidia')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_what_to_compile_for_a_gpu():
    """Its own architecture; PTX of an older one for a GPU that is newer than NVRTC."""
    assert str(nvrtc.loadable_arch((9, 0))) == "sm_90"
    assert str(nvrtc.loadable_arch((8, 0))) == "sm_80"
    newer = nvrtc.loadable_arch((99, 9))
    assert newer.virtual
    assert compile_cuda("__global__ void k() {}", str(newer)).ptx
    with pytest.raises(CompileError) as raised:
        nvrtc.loadable_arch((3, 5))
    assert "NVRTC" in raised.value.reason
    assert raised.value.subject == "arch='sm_35'"


@pytest.mark.parametrize(
    ("arch", "supported", "enough"),
    [("sm_90", (99, 0), True), ("compute_90", (99, 0), True), ("sm_90", None, True)],
)
def test_a_driver_that_is_new_enough(arch, supported, enough):
    built = nvrtc._version(nvrtc.load_nvrtc())
    nvrtc.check_driver(nvrtc.parse_arch(arch), supported or (built[0], 0))


def test_a_driver_that_is_too_old():
    major, minor = nvrtc._version(nvrtc.load_nvrtc())
    with pytest.raises(CompileError) as caught:
        nvrtc.check_driver(nvrtc.parse_arch("sm_90"), (major - 1, 8))
    assert str(caught.value) == (
        f"arch='sm_90': NVRTC {major}.{minor} makes machine code that this driver is too old for: "
        f"it supports CUDA {major - 1}.8; update the driver, or install nvidia-cuda-nvrtc of CUDA "
        f"{major - 1}.8"
    )
    with pytest.raises(CompileError, match=f"NVRTC {major}.{minor} makes PTX that this driver"):
        nvrtc.check_driver(nvrtc.parse_arch("compute_90"), (major, minor - 1))
