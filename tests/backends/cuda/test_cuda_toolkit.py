"""Where tools and headers of CUDA are found, and which driver runs what was compiled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.nvrtc_cases import executable
from loopnest.backends.cuda.toolchain import cuda_toolkit, nvrtc
from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda
from loopnest.base.errors import CompileError

pytestmark = pytest.mark.usefixtures("memory_cache")


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
