"""Find the parts of a CUDA toolkit that need no driver: NVRTC, headers, disassemblers.

The wheels of the extra ``nvrtc`` come first, since their versions belong together; a toolkit that
the machine has (``CUDA_HOME``, ``CUDA_PATH``, ``/usr/local/cuda``) fills what they leave out.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from loopnest.base.errors import CompileError

INSTALL = "pip install 'loopnest[nvrtc]'"
INSTALL_OR_CUDA_HOME = f"{INSTALL}, or set CUDA_HOME to a CUDA toolkit"


def load_nvrtc() -> ModuleType:
    """Import cuda-bindings' NVRTC module and load the library behind it; no driver is needed.

    Raises:
        CompileError: the package or the library is missing.
    """
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        reason = f"the package cuda-bindings cannot be imported ({error})"
        raise CompileError("NVRTC", reason, INSTALL) from error
    try:
        nvrtc.nvrtcVersion()  # the first call loads the library
    except RuntimeError as error:
        reason = "the library libnvrtc was not found"
        raise CompileError("NVRTC", reason, INSTALL_OR_CUDA_HOME) from error
    module: ModuleType = nvrtc
    return module


def nvrtc_build() -> str:
    """Return the exact version of the NVRTC wheel, or "" for a library from elsewhere.

    The library itself tells major and minor only, and a patch release may change the code.
    """
    try:
        return importlib.metadata.version("nvidia-cuda-nvrtc")
    except importlib.metadata.PackageNotFoundError:
        return ""


def include_dirs(major: int) -> tuple[Path, ...]:
    """Return the header folders of the first toolkit with ``cuda_fp16.h``, or none.

    One toolkit only: headers of two versions do not mix.
    """
    for root in _roots(major):
        include = root / "include"
        if (include / "cuda_fp16.h").is_file():
            # CUDA 13 moved <cuda/std/...> and <cub/...> into a folder of their own.
            return tuple(folder for folder in (include, include / "cccl") if folder.is_dir())
    return ()


def find_tool(name: str, major: int) -> Path | None:
    """Return the path of a program such as ``nvdisasm``, from a toolkit or else from PATH."""
    for root in _roots(major):
        if found := shutil.which(name, path=root / "bin"):
            return Path(found)
    found = shutil.which(name)
    return Path(found) if found else None


def _roots(major: int) -> Iterator[Path]:
    """Yield the folders that may hold ``bin`` and ``include``, best first."""
    # The layout of the wheels of CUDA 13; those of CUDA 12, which other packages bring into the
    # same environment, lie elsewhere and their headers are too old for this NVRTC.
    for parent in _namespace("nvidia"):
        yield parent / f"cu{major}"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if value := os.environ.get(variable):
            yield Path(value)
    yield Path("/usr/local/cuda")


def _namespace(package: str) -> tuple[Path, ...]:
    """Return the folders of a namespace package, none where it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        return ()
    return tuple(Path(folder) for folder in spec.submodule_search_locations)
