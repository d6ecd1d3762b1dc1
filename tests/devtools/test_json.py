"""``--json``: each command prints one JSON text on standard output, and nothing else there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loopnest.devtools.cli import Source, command_line
from loopnest.devtools.cli.kernel_commands import stages

FILE = """
import numpy as np
import loopnest as ln

print("a file may print what it likes")

@ln.kernel(sizes={"N": 64})
def doubled(f, dtype=ln.float32):
    f.output(f.input("x", ("N",), dtype) * 2.0, "y")

@doubled.schedule("cpu")
def cpu(f, threads=ln.choice(8, 16)):
    f["y"].split(0, threads)

@ln.kernel(sizes={"N": 64}, reference=lambda x: 3 * x)
def wrong(f):
    f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "some.py").write_text(FILE)
    return str(tmp_path / "some.py")


def called(*arguments: str, status: int = 0) -> Any:
    group = command_line(script=False, prog="loopnest")
    found = CliRunner().invoke(group, [*arguments, "--json"], obj=Source(script=False))
    assert found.exit_code == status, found.output
    return json.loads(found.stdout)


COMMANDS = {
    "list": ["kernel", "schedule", "parameters", "condition", "sizes"],
    "dump": ["kernel", "schedule", "parameters", "stage", "text"],
    "run": ["kernel", "schedule", "parameters", "target", "sizes", "scalars", "nest", "results",
            "seconds", "bytes"],
    "bench": ["kernel", "schedule", "parameters", "target", "sizes", "scalars", "seconds", "bytes"],
    "report": ["page", "about"],
    "profile": [], "explain": [], "check": [], "fuzz": [], "tune": [],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_it(command: str, file: str, tmp_path: Path) -> None:
    more = {
        "run": ["--target", "interpret"], "bench": ["--target", "interpret", "-D", "N=8"],
        "report": ["-o", str(tmp_path / "page.html")], "fuzz": ["--count", "2"],
        "tune": ["--target", "c", "--budget", "1s"],
    }  # fmt: skip
    found = called(command, f"{file}:doubled@cpu", *more.get(command, []))
    first = found[0] if isinstance(found, list) else found
    if COMMANDS[command]:
        assert [*first] == COMMANDS[command]
    else:
        assert first


def test_all_commands_are_tried() -> None:
    group = command_line(script=False, prog="loopnest")
    assert {*group.commands} - {"machine", "judge"} == {*COMMANDS}  # judge: with those of torch


def test_a_listed_kernel(file: str) -> None:
    assert called("list", file)[0] == {
        "kernel": "doubled", "schedule": "cpu", "condition": None, "sizes": {"N": 64},
        "parameters": {"dtype": {"dtype": "float32"}, "threads": 8},
    }  # fmt: skip


def test_texts(file: str) -> None:
    found = called("dump", f"{file}:doubled", "--stage", "nest", "-P", "threads=16")
    assert found["parameters"] == {"threads": 16}
    assert "for i0 in ceildiv(N, 16):" in found["text"]
    found = called("dump", f"{file}:doubled", "--diff", "predicates")
    assert found["stage"] == "predicates"
    assert found["text"] == "predicates changes nothing\n"
    listed = [row["stage"] for row in called("dump", file, "--stage", "list")]
    assert listed == [*stages()]


def test_a_wrong_result(file: str) -> None:
    found = called("run", f"{file}:wrong", "--target", "interpret", status=1)
    (result,) = found["results"]
    assert (result["output"], result["right"]) == ("y", False)
    assert "seconds" not in found
