"""``loopnest check --invariant N``: a column, a failure with its witness, JSON, and wrong sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.command_line import call, refusal

FILE = """
import loopnest as ln

@ln.kernel(sizes={"N": 4, "D": 8})
def rows(f):
    x = f.input("x", ("N", "D"), ln.float32)
    f.output(ln.sum(x, axis=1), "y")

@rows.schedule("plain")
def plain(f):
    f["y"].split(0, 4)

@rows.schedule("chunks")
def chunks(f):
    f["y"].split(1, "N")
    f["y"].rfactor([2])

@ln.kernel(sizes={"M": 4})
def scaled(f):
    x = f.input("x", ("M",), ln.float32)
    f.output(x * 2.0, "y")
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "rows.py"
    path.write_text(FILE)
    return str(path)


def test_a_column_says_yes_and_other_kernels_are_passed_over(file: str) -> None:
    result = call("check", f"{file}:rows@plain", "--invariant", "N")
    assert result.exit_code == 0
    head, row = result.stdout.splitlines()[:2]
    assert "same bits at any N" in head
    assert row.split()[-2] == "yes"
    result = call("check", f"{file}:scaled", "--invariant", "M", "--invariant", "M")
    assert result.exit_code == 0
    assert result.stdout.count("same bits at any M") == 1


def test_a_schedule_whose_bits_depend_on_the_size_fails(file: str) -> None:
    result = call("check", file, "--invariant", "N")
    assert result.exit_code == 1
    assert (
        "rows@chunks\n  whether bits depend on N: different; y: its terms are folded in another "
        "order; y[0] differs at N=3, D=5 and N=4, D=5;"
    ) in " ".join(result.stdout.split(" "))
    assert "error: 1 of 3 schedules failed" in result.stderr


def test_json_has_the_claims(file: str) -> None:
    result = call("check", f"{file}:rows", "--invariant", "N", "--json")
    found = [entry["invariant"] for entry in json.loads(result.stdout)["checked"]]
    assert [claims["N"]["status"] for claims in found] == ["same", "different"]
    assert found[0]["N"]["witness"] is None


def test_a_size_that_no_kernel_has(file: str) -> None:
    assert refusal("check", file, "--invariant", "Q") == (
        "error: --invariant Q: no kernel has the size 'Q'; their sizes are D, M, N\n"
    )
