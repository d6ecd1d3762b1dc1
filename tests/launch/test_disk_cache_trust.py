"""Whom the disk cache trusts: folders, entries and links that others could have changed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.cached_libraries import (
    OWN,
    another_user,
    answer,
    build_elsewhere,
    entries,
    needs_compiler,
    write,
)
from loopnest.backends.cpu.c_compiler import compile_c, find_compiler
from loopnest.base.errors import CompileError
from loopnest.launch import disk_cache

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
    monkeypatch.setattr(disk_cache, "_user", lambda number: f"user {number}")
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
