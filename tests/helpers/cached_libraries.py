"""Entries of the disk cache, and a library that is built elsewhere and loaded from it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loopnest.backends.cpu.c_compiler import compile_c, find_compiler
from loopnest.launch import disk_cache
from loopnest.launch.disk_cache import DiskCache

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
SOURCE = "int answer(int x) { return x + 41; }\n"


OWN = "set LOOPNEST_CACHE_DIR to a folder of your own"


def entries() -> DiskCache:
    return DiskCache("kind")


def write(path: Path, data: bytes) -> None:
    """Write an entry as the cache does, a sum that fits beside it."""
    sums = path.with_name(path.name + ".sha256")
    for file, content in ((path, data), (sums, hashlib.sha256(data).hexdigest().encode())):
        file.write_bytes(content)
        file.chmod(0o600)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def answer() -> int:
    function = compile_c(SOURCE).function("answer", [ctypes.c_int], ctypes.c_int)
    result: int = function(1)
    return result


def build_elsewhere() -> None:
    """Fill the cache by another process: a library that was loaded here is not read again."""
    script = f"from loopnest.backends.cpu.c_compiler import compile_c; compile_c({SOURCE!r})"
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)


def another_user(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let all that is there belong to another user, and return the number of the present one."""
    number = os.geteuid() + 1
    monkeypatch.setattr(disk_cache.os, "geteuid", lambda: number)
    return number
