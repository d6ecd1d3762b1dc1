"""What is kept of NVRTC's results on disk, and what makes a result another one."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from helpers.nvrtc_cases import SAXPY, MemoryCache
from loopnest.backends.cuda.toolchain import nvrtc
from loopnest.backends.cuda.toolchain.nvrtc import compile_cuda
from loopnest.launch.disk_cache import DiskCache

pytestmark = pytest.mark.usefixtures("memory_cache")


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
