"""Fixtures of tests that compile CUDA text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from helpers.fake_gpu import FakeGpu, plug_in
from helpers.nvrtc_cases import MemoryCache
from loopnest.backends.cuda.toolchain import cuda_toolkit, nvrtc
from loopnest.base.errors import CompileError


@pytest.fixture
def memory_cache(monkeypatch: pytest.MonkeyPatch) -> MemoryCache:
    """Let no test see results that another run left on disk."""
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


@pytest.fixture
def gpu(monkeypatch):
    return plug_in(monkeypatch, FakeGpu())
