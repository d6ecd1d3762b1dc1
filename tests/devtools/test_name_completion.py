"""What shells complete of ``FILE:KERNEL@SCHEDULE``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loopnest.devtools.cli.name_completion import completions, declared_kernels

PROGRAM = f"{sys.executable} -m loopnest"


def values(incomplete: str) -> list[str]:
    return [item.value for item in completions(incomplete)]


def test_names_of_a_file(file: str) -> None:
    shown = [f"{file}:{name}" for name in ("scale", "wrong", "lonely")]
    schedules = [f"{file}:scale@{name}" for name in ("gpu", "bad", "broken")]
    assert values(f"{file}:") == shown
    assert values(f"{file}:sc") == shown[:1]
    assert values(f"{file}:scale") == [shown[0], *schedules]
    assert values(f"{file}:scale@b") == schedules[1:]
    assert values(f"{file}:nothing") == values(f"{file}:lonely@") == []
    assert [(item.type, item.value) for item in completions(file)] == [("file", file)]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:")
    (tmp_path / "bytes.py").write_bytes(b"\0\xff")
    for name in ("broken.py", "bytes.py", "none.py", ""):
        assert declared_kernels(str(tmp_path / name)) == {}


def test_the_file_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(
        "from loopnest import kernel\nraise SystemExit\n@kernel()\ndef one(f): ...\n"
        "@one.schedule('gpu', cost={})\ndef gpu(f): ...\n@print\ndef two(f): ...\n"
    )
    assert declared_kernels(str(tmp_path / "k.py")) == {"one": ["gpu"]}


def asked(shell: str, words: str, place: object) -> list[str]:
    """Return what the program tells the script of a shell."""
    given = {
        "_LOOPNEST_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": str(place)
    }  # fmt: skip
    result = subprocess.run(
        [*PROGRAM.split()], env=os.environ | given, capture_output=True, text=True, check=True
    )
    return result.stdout.splitlines()


def test_zsh_and_fish_take_whole_arguments(file: str) -> None:
    words = f"loopnest dump {file}:scale@g"
    assert asked("zsh", words, 2) == ["plain", f"{file}:scale@gpu", "_"]
    assert asked("fish", words, f"{file}:scale@g") == [f"plain,{file}:scale@gpu"]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("dump FILE : sc", ["scale"]),
        ("dump FILE :", ["scale", "wrong", "lonely"]),
        ("dump FILE : scale @ b", ["bad", "broken"]),
        ("dump FILE : scale @", ["gpu", "bad", "broken"]),
        ("run -D N = 10 FILE : w", ["wrong"]),
    ],
)
def test_bash_has_a_word_for_each_colon(file: str, typed: str, found: list[str]) -> None:
    words = ["loopnest", *typed.replace("FILE", file).split()]
    told = asked("bash", "\n".join(words), len(words) - 1)
    assert told == [f"plain,{name}" for name in found]


def test_bash_itself(file: str, tmp_path: Path) -> None:
    """The script that a user's shell reads, run by bash on the words of a line."""
    program = tmp_path / "loopnest"
    program.write_text(f'#!/bin/sh\nexec {PROGRAM} "$@"\n')
    program.chmod(0o755)
    script = f"""
PATH={tmp_path}:$PATH
eval "$(_LOOPNEST_COMPLETE=bash_source loopnest 2>/dev/null)"
COMP_WORDS=(loopnest dump {file} : scale @ g) COMP_CWORD=6 COMPREPLY=()
_loopnest_completion loopnest
echo "${{COMPREPLY[@]}}"
COMP_WORDS=(loopnest pro) COMP_CWORD=1 COMPREPLY=()
_loopnest_completion loopnest
echo "${{COMPREPLY[@]}}"
"""
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert result.stdout.splitlines() == ["gpu", "profile"], result
