"""``loopnest fuzz``: random schedules of a user's math; a fault is found, made small, and shown."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

import loopnest as ln
from loopnest.devtools.cli import command_line
from loopnest.devtools.cli.fuzz_command import _seconds
from loopnest.devtools.cli_spec import CliError, Source
from loopnest.devtools.fuzzing import Failure
from loopnest.devtools.fuzzing.kernel_fuzzing import KernelFuzzer
from loopnest.lowering.indexing.phase_terms import PhaseTerms

SCALE = """\
import loopnest as ln


@ln.kernel(sizes={"N": 64, "D": 8}, ranges={"x": (1, 2), "c": (3, 4)})
def lambda_rows(f, dtype=ln.float32):
    c1 = f.input("c1", ("N", "D"), dtype)
    f.input("unused", ("N",), ln.int32)
    x = f.input("x", ("N", "D"), dtype)
    f.output(ln.sum(c1 * x * f.scalar("c", ln.float32), axis=1), "y")


@lambda_rows.schedule("tiled")
def tiled(f, rows=4):
    f["y"].split(0, rows)


@ln.kernel()
def rows_of(f):
    x = f.input("x", ("V",), ln.float32)
    i = f.input("i", ("N",), ln.int32)
    f.assume_range(i, 0, "V")
    f.output(ln.take(x, i, 0) * 2.0, "y")


@ln.kernel()
def large(f):
    x = f.input("x", ("N",), ln.float32)
    f.assume("N % 4096 == 0")
    f.assume("N >= 4096")
    f.output(x + 1.0, "y")
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "scale.py"
    path.write_text(SCALE)
    return str(path)


def run(*arguments):
    source = Source(script=False)
    return CliRunner().invoke(command_line(False, "loopnest"), ["fuzz", *arguments], obj=source)


def without_holes(monkeypatch):
    """Let lowering forget the tests of splits that do not divide."""
    monkeypatch.setattr(PhaseTerms, "_holes", lambda *arguments: {})


def test_nothing_fails(file):
    result = run(f"{file}:lambda_rows", "--count", "6")
    assert result.exit_code == 0, result.output
    counts = re.fullmatch(
        r"lambda_rows: nothing failed in 6 schedules of (\d+) calls; (\d+) have a kernel, "
        r"(\d+) launches were right\n",
        result.output,
    )
    assert counts
    assert all(int(count) > 3 for count in counts.groups())
    again = run(f"{file}:lambda_rows", "--count", "6", "--json")
    found = json.loads(again.output)
    assert [str(found[name]) for name in ("calls", "kernels", "runs")] == [*counts.groups()]
    assert found["failure"] is None


def test_a_fault_is_made_small(file, monkeypatch):
    without_holes(monkeypatch)
    result = run(f"{file}:lambda_rows", "--count", "40", "-P", "dtype=float16")
    assert result.exit_code == 1
    script, _, error = result.output.rpartition("error: ")
    assert re.fullmatch(r"lambda_rows: schedule \d+ failed, by [12] calls?\n", error)
    assert "kernel.math(f, dtype=ln.float16)" in script
    assert 'x = f["x"]' in script
    calls = script.partition("expected = [")[2].partition("print(f)")[0].splitlines()[1:]
    assert 1 <= len([line for line in calls if line.strip() and "with judged" not in line]) <= 2
    with pytest.raises(Failure):
        exec(compile(script, "script", "exec"), {})
    monkeypatch.undo()
    exec(compile(script, "script", "exec"), {})


def test_calls_come_behind_a_schedule(file, monkeypatch):
    """And its parameters are taken; the fault shows in the schedule itself."""
    without_holes(monkeypatch)
    result = run(f"{file}:lambda_rows@tiled", "--count", "3", "-P", "rows=3")
    assert result.exit_code == 1
    assert "f = kernel.fusion('tiled', rows=3)" in result.output
    assert result.output.endswith("error: lambda_rows: schedule 1 failed, by 0 calls\n")


def test_time_ends_it(file):
    found = json.loads(run(f"{file}:lambda_rows", "--time", "0s", "--json").output)
    assert (found["schedules"], found["runs"]) == (0, 0)


def test_sizes_and_proofs(file):
    source = Source(script=False)
    kernel, _ = source.choose(f"{file}:lambda_rows")
    fuzzer = KernelFuzzer(kernel, file, fixed={"D": 3}, targets=("interpret", "verify"))
    assert {sizes["D"] for sizes in fuzzer.sizes()} == {3}
    told = []
    found = fuzzer.run(2, 60.0, lambda found, what: told.append(what))
    assert found.failure is None
    assert told == ["judging", "judging"]
    result = run(f"{file}:large", "-D", "N=4096", "--count", "1")
    assert result.exit_code in (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--time", "soon"], "--time soon: it is no time; use 60s, 5m or 1h"),
        (["--time", "1.2.3s"], "--time 1.2.3s: it is no time; use 60s, 5m or 1h"),
        (["-P", "rows=3"],
         "-P rows: the math has no such parameter; name the schedule that has it, too"),
        (["-D", "M=3"], "-D M: lambda_rows has no size or scalar 'M'; it has N, D, c"),
    ],
)  # fmt: skip
def test_bad_arguments(file, arguments, message):
    result = run(f"{file}:lambda_rows", *arguments)
    assert (result.exit_code, result.output) == (1, f"error: {message}\n")


def test_a_scalar_that_is_given_has_this_value(file, monkeypatch):
    without_holes(monkeypatch)
    result = run(f"{file}:lambda_rows@tiled", "--count", "3", "-P", "rows=3", "-D", "c=5.25")
    assert result.exit_code == 1
    assert "ranges={'x': (1, 2), 'c': (5.25, 5.25)}" in result.output


def test_a_folder_with_the_sign_of_schedules_names_none(tmp_path):
    file = tmp_path / "a@b" / "scale.py"
    file.parent.mkdir()
    file.write_text(SCALE)
    assert run(str(file), "-P", "rows=3").output == (
        "error: -P rows: the math has no such parameter; name the schedule that has it, too\n"
    )


def test_units_of_time():
    assert [_seconds(text) for text in ("90", "90s", "1.5m", "1h")] == [90, 90, 90, 3600]
    with pytest.raises(CliError, match=r"^--time \?: it is no time; use 60s, 5m or 1h$"):
        _seconds("?")


def test_no_small_sizes(file):
    result = run(f"{file}:large")
    assert result.exit_code == 1
    assert result.output == (
        "error: fuzz large: no small sizes fulfil what it assumes; set sizes by -D\n"
    )


def test_declared_ranges_have_elements(file):
    """Where an index must lie in an axis without elements, there is no data to run."""
    kernel, _ = Source(script=False).choose(f"{file}:rows_of")
    for seed in range(40):
        fuzzer = KernelFuzzer(kernel, file, seed=seed)
        assert all(sizes["V"] > 0 or sizes["N"] == 0 for sizes in fuzzer.sizes())
    assert run(f"{file}:rows_of", "--count", "3").exit_code == 0


def test_kernels_of_the_project_keep_their_promises():
    for spec in ("softmax.py:softmax", "blur.py:blur", "cumsum.py:cumsum"):
        result = run(f"kernels/{spec}", "--count", "4", "--seed", "3")
        assert result.exit_code == 0, result.output
    assert ln.kernel
