"""The disk cache: what it keeps, whom it trusts, and what it does where it cannot be used."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loopnest.backends.cpu import c_compiler
from loopnest.backends.cpu.c_compiler import compile_c, find_compiler
from loopnest.errors import CompileError
from loopnest.launch import private_files
from loopnest.launch.disk_cache import DiskCache, digest

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")

SOURCE = "int answer(int x) { return x + 41; }\n"
OWN = "set LOOPNEST_CACHE_DIR to a folder of your own"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that is not there yet."""
    monkeypatch.setenv("LOOPNEST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(c_compiler, "_LIBRARIES", c_compiler._Once())
    return tmp_path / "cache"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "loopnest")
    return caplog


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


def another_user(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let all that is there belong to another user, and return the number of the present one."""
    number = os.geteuid() + 1
    monkeypatch.setattr(private_files.os, "geteuid", lambda: number)
    return number


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


# Whom it trusts


@pytest.mark.parametrize("mask", [0o020, 0o002, 0o022])
@pytest.mark.parametrize("which", ["root", "kind"])
def test_a_folder_that_others_can_write_is_not_used(
    which: str, mask: int, root: Path, warnings: pytest.LogCaptureFixture
) -> None:
    kept = entries()
    kept.put("key", b"planted")
    wrong = root if which == "root" else root / "kind"
    wrong.chmod(0o700 | mask)
    for _ in range(3):
        assert kept.get("key") is None
        kept.put("other", b"content")
        with kept.lock("key"), kept.entry("key") as found:
            assert found is None
    assert not (root / "kind" / "other.bin").exists()
    assert not (root / "kind" / "locks" / "2c.lock").exists()
    assert warnings.messages == [
        f"compiled code is not kept: cache folder {wrong} can be written by others "
        f"(mode {0o700 | mask:04o}); delete it, or {OWN}"
    ]


def test_a_folder_of_another_user_is_not_used(
    root: Path, warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pwd

    kept = entries()
    kept.put("key", b"planted")
    owner = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    monkeypatch.setattr(private_files, "_user", lambda number: f"user {number}")
    owner, user = f"user {os.geteuid()}", f"user {another_user(monkeypatch)}"
    assert kept.get("key") is None
    kept.put("other", b"content")
    assert not (root / "kind" / "other.bin").exists()
    assert warnings.messages == [
        f"compiled code is not kept: cache folder {root} belongs to {owner}, not to {user}; "
        f"delete it, or {OWN}"
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("which", ["cache", "cache/kind", "cache/kind/key.bin"])
def test_what_was_given_away_is_not_read(
    which: str, root: Path, warnings: pytest.LogCaptureFixture
) -> None:
    kept = entries()
    kept.put("key", b"planted")
    os.chown(root.parent / which, 12345, -1)
    assert kept.get("key") is None
    (message,) = warnings.messages
    assert "belongs to user 12345, not to root" in message


@pytest.mark.parametrize("name", ["key.bin", "key.bin.sha256"])
def test_an_entry_that_others_can_write_is_built_again(
    name: str, root: Path, warnings: pytest.LogCaptureFixture
) -> None:
    kept = entries()
    kept.put("key", b"planted")
    (root / "kind" / name).chmod(0o666)
    assert kept.get("key") is None
    assert kept.get("key") is None
    kept.put("key", b"content")
    assert kept.get("key") == b"content"
    assert warnings.messages == [
        f"cache entry {root}/kind/key.bin is built again: it can be written by others (mode 0666)"
    ]


@pytest.mark.parametrize("name", ["key.bin", "key.bin.sha256"])
def test_an_entry_that_is_a_link_is_built_again(
    name: str, root: Path, tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    kept = entries()
    kept.put("key", b"planted")
    entry, outside = root / "kind" / name, tmp_path / "outside"
    entry.rename(outside)
    entry.symlink_to(outside)
    planted = outside.read_bytes()
    assert kept.get("key") is None
    kept.put("key", b"content")
    assert kept.get("key") == b"content"
    assert outside.read_bytes() == planted
    assert warnings.messages == [
        f"cache entry {root}/kind/key.bin is built again: it is a symbolic link"
    ]


@pytest.mark.parametrize("which", ["root", "kind"])
def test_a_link_of_the_user_to_a_safe_folder_is_followed(
    which: str, root: Path, tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o700)
    link = root if which == "root" else root / "kind"
    link.parent.mkdir(mode=0o700, exist_ok=True)
    link.symlink_to(target)
    kept = entries()
    kept.put("key", b"content")
    assert kept.get("key") == b"content"
    target.chmod(0o777)
    assert kept.get("key") is None
    (message,) = warnings.messages
    assert f"cache folder {link} can be written by others (mode 0777)" in message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_a_link_of_another_user_is_not_followed(
    root: Path, tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    root.symlink_to(tmp_path / "elsewhere")
    os.lchown(root, 12345, -1)
    entries().put("key", b"content")
    assert not list((tmp_path / "elsewhere").iterdir())
    assert warnings.messages == [
        f"compiled code is not kept: cache folder {root} is a symbolic link of user 12345; "
        f"delete it, or {OWN}"
    ]


def test_a_folder_below_one_that_all_may_write(root: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    kept = entries()
    kept.put("key", b"content")
    assert kept.get("key") == b"content"


def planted(folder: Path, marker: Path) -> bytes:
    """Return a library that writes `marker` when it is loaded, and answers wrongly."""
    source = f"""
#include <stdio.h>
__attribute__((constructor)) static void loaded(void) {{ fclose(fopen("{marker}", "w")); }}
int answer(int x) {{ return -1; }}
"""
    folder.mkdir()
    (folder / "planted.c").write_text(source)
    compiler = find_compiler()
    assert compiler is not None
    subprocess.run(
        [*compiler.command, "-shared", "-fPIC", "planted.c", "-o", "planted.so"],
        cwd=folder,
        check=True,
    )
    return (folder / "planted.so").read_bytes()


def answer() -> int:
    function = compile_c(SOURCE).function("answer", [ctypes.c_int], ctypes.c_int)
    result: int = function(1)
    return result


def build_elsewhere() -> None:
    """Fill the cache by another process: a library that was loaded here is not read again."""
    script = f"from loopnest.backends.cpu.c_compiler import compile_c; compile_c({SOURCE!r})"
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)


@needs_compiler
def test_a_library_of_the_users_own_is_loaded(root: Path, tmp_path: Path) -> None:
    """What the tests below plant would be executed, were it trusted."""
    build_elsewhere()
    (entry,) = (root / "c").glob("*.so")
    write(entry, planted(tmp_path / "planted", tmp_path / "marker"))
    assert answer() == -1
    assert (tmp_path / "marker").exists()


@needs_compiler
@pytest.mark.parametrize(
    "expose",
    [
        pytest.param(lambda entry: entry.parent.parent.chmod(0o777), id="root"),
        pytest.param(lambda entry: entry.parent.chmod(0o770), id="folder"),
        pytest.param(lambda entry: entry.chmod(0o666), id="entry"),
        pytest.param(
            lambda entry: entry.symlink_to(entry.rename(entry.parents[2] / "outside")), id="link"
        ),
    ],
)
def test_a_planted_library_is_not_loaded(
    expose: Callable[[Path], object],
    root: Path,
    tmp_path: Path,
    warnings: pytest.LogCaptureFixture,
) -> None:
    marker = tmp_path / "a marker"
    build_elsewhere()
    (entry,) = (root / "c").glob("*.so")
    write(entry, planted(tmp_path / "planted", marker))
    expose(entry)
    assert answer() == 42
    assert not marker.exists()
    (message,) = warnings.messages
    assert "compiled code is not kept" in message or "is built again" in message


@needs_compiler
@pytest.mark.parametrize("bits", [0o777, 0o757])
def test_a_temporary_folder_that_others_can_empty_is_refused(
    bits: int, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(bits)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "open"))
    with pytest.raises(CompileError) as caught:
        compile_c("int unlike_any_other;\n")
    assert str(caught.value) == (
        f"the temporary folder {tmp_path}/open: lets every user replace its files "
        f"(mode {bits:04o}); set TMPDIR to another"
    )
    (tmp_path / "open").chmod(0o1777)
    compile_c("int unlike_any_other;\n")


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
