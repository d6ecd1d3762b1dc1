"""The disk cache: what it keeps, and what it does where it cannot be used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers.cached_libraries import (
    SOURCE,
    answer,
    build_elsewhere,
    entries,
    mode,
    needs_compiler,
    write,
)
from loopnest.backends.cpu import c_compiler
from loopnest.backends.cpu.c_compiler import compile_c
from loopnest.launch.disk_cache import DiskCache, digest

# What it keeps


def test_round_trip(root: Path) -> None:
    kept = entries()
    assert kept.get("key") is None
    kept.put("key", b"content")
    assert kept.folder == root / "kind"
    assert kept.get("key") == b"content"
    assert (root / "kind" / "key.bin").read_bytes() == b"content"
    kept.put("key", b"new")
    assert kept.get("key") == b"new"
    assert DiskCache("other").get("key") is None
    assert list((root / "kind").glob("tmp-*")) == []


def test_an_entry_is_read_where_it_was_checked(root: Path) -> None:
    kept = entries()
    kept.put("key", b"content")
    with kept.entry("key") as found:
        assert found is not None
        root.rename(root.with_name("moved"))
        write_elsewhere = root / "kind"
        write_elsewhere.mkdir(parents=True)
        write(write_elsewhere / "key.bin", b"planted")
        assert (found[0], Path(found[1]).read_bytes()) == (b"content", b"content")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_folders_and_files_are_made_for_the_user_alone(root: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        kept = DiskCache("kind")
        kept.root = root / "several" / "levels"
        kept.put("key", b"content")
        with kept.lock("key"):
            pass
    finally:
        os.umask(before)
    made = [root, *root.rglob("*")]
    assert {mode(p) for p in made if p.is_dir()} == {0o700}
    assert {mode(p) for p in made if p.is_file()} == {0o600}
    assert {p.name for p in made} >= {"several", "levels", "kind", "locks", "key.bin"}


def age(path: Path, key: str, seconds: float) -> None:
    for each in path.glob(f"{key}.*"):
        os.utime(each, (time.time() - seconds,) * 2)


def test_prune_by_age_and_size(root: Path) -> None:
    kept = entries()
    for key, hours in (("old", 3000), ("middle", 5), ("recent", 3), ("new", 0)):
        kept.put(key, bytes(1000))
        age(kept.folder, key, hours * 3600)
    kept.prune()
    assert {p.stem for p in kept.folder.glob("*.bin")} == {"middle", "recent", "new"}
    kept.prune(max_bytes=2500)
    assert {p.stem for p in kept.folder.glob("*.bin")} == {"recent", "new"}
    kept.prune(max_bytes=0)
    assert {p.stem for p in kept.folder.glob("*.bin")} == {"new"}
    assert {p.name for p in kept.folder.glob("*.sha256")} == {"new.bin.sha256"}


def test_once_a_day_a_new_entry_prunes(root: Path) -> None:
    kept = entries()
    kept.put("first", b"")
    kept.put("old", b"")
    age(kept.folder, "old", 3000 * 3600)
    kept.put("second", b"")
    assert (kept.folder / "old.bin").exists()
    stamp = kept.folder / "locks" / "pruned"
    os.utime(stamp, (time.time() - 25 * 3600,) * 2)
    kept.put("third", b"")
    assert not (kept.folder / "old.bin").exists()


def test_use_keeps_an_entry_young(root: Path) -> None:
    kept = entries()
    kept.put("key", b"content")
    age(kept.folder, "key", 3000 * 3600)
    assert kept.get("key") == b"content"
    kept.prune()
    assert kept.get("key") == b"content"


def test_lock_excludes_other_threads(root: Path) -> None:
    kept = entries()
    inside: list[int] = []

    def work(_: int) -> None:
        with kept.lock("key"):
            inside.append(1)
            assert len(inside) == 1
            time.sleep(0.01)
            inside.pop()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


def test_a_lock_ends_though_a_child_was_forked_meanwhile(root: Path) -> None:
    script = """
import os, time
from loopnest.launch.disk_cache import DiskCache
kept = DiskCache("kind")
with kept.lock("key"):
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
start = time.monotonic()
with kept.lock("key"):
    print(time.monotonic() - start < 30)
os.kill(child, 9)
os.waitpid(child, 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "True\n"


def test_digest_depends_on_where_parts_end() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("ab") == digest(b"ab")


# What it does where it cannot be used


@needs_compiler
def test_a_folder_that_cannot_be_made_is_done_without(
    tmp_path: Path,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    warnings: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOOPNEST_CACHE_DIR", str(tmp_path / "file"))
    assert answer() == 42
    assert compile_c(SOURCE) is compile_c(SOURCE)
    assert warnings.messages == [
        f"compiled code is not kept: cache folder {tmp_path}/file cannot be used "
        "(Not a directory); set LOOPNEST_CACHE_DIR to another"
    ]


@needs_compiler
def test_a_folder_that_cannot_be_written_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    build_elsewhere()
    c_compiler._features(c_compiler._required())
    monkeypatch.setattr("loopnest.launch.disk_cache.replace_file", refuse)
    with monkeypatch.context() as patch:
        patch.setattr(c_compiler, "_build", refuse)
        assert answer() == 42
    compile_c("int other;\n")
    compile_c("int yet_another;\n")
    assert warnings.messages == [
        f"compiled code is not kept: cache folder {root} cannot be used "
        "(Read-only file system); set LOOPNEST_CACHE_DIR to another"
    ]


def test_no_home_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOOPNEST_CACHE_DIR", "~nobody-of-this-name/cache")
    monkeypatch.chdir(tmp_path)
    kept = entries()
    assert kept.get("key") is None
    kept.put("key", b"content")
    assert not list(tmp_path.iterdir())
    assert warnings.messages == [
        "compiled code is not kept: cache folder ~nobody-of-this-name/cache cannot be used "
        "(no home folder is known); set LOOPNEST_CACHE_DIR to another"
    ]


def test_the_folder_of_the_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOPNEST_CACHE_DIR", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_, **__: tmp_path / "a folder")
    kept = entries()
    kept.put("key", b"content")
    assert (tmp_path / "a folder" / "kind" / "key.bin").read_bytes() == b"content"


# Entries that are damaged


def as_folder(entry: Path) -> None:
    entry.unlink()
    entry.mkdir()
    (entry / "inside").write_text("")


def as_pipe(entry: Path) -> None:
    entry.unlink()
    os.mkfifo(entry, 0o600)


def as_garbage(entry: Path) -> None:
    entry.unlink()
    write(entry, b"no library")


def without_its_sum(entry: Path) -> None:
    entry.with_name(entry.name + ".sha256").unlink()


def with_a_folder_as_sum(entry: Path) -> None:
    as_folder(entry.with_name(entry.name + ".sha256"))


@needs_compiler
@pytest.mark.parametrize(
    "damage", [as_folder, as_pipe, as_garbage, without_its_sum, with_a_folder_as_sum]
)
@pytest.mark.parametrize("kind", ["c", "probe"])
def test_a_damaged_entry_is_rebuilt(
    kind: str,
    damage: Callable[[Path], None],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    warnings: pytest.LogCaptureFixture,
) -> None:
    build_elsewhere()
    try:
        for entry in (root / kind).glob("*.so"):
            damage(entry)
        for _ in range(2):
            monkeypatch.setattr(c_compiler, "_LIBRARIES", c_compiler._Once())
            c_compiler._features.cache_clear()
            assert answer() == 42
            # The second time it is there.
            assert all(p.is_file() for p in (root / kind).iterdir() if p.name != "locks")
            shutil.rmtree(root / ("probe" if kind == "c" else "c"))
    finally:
        c_compiler._features.cache_clear()
    assert warnings.messages == []
