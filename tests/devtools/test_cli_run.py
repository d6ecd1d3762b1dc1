"""The commands run and bench: what is compared, and what is told where it differs."""

from __future__ import annotations

import json
import re

from helpers.command_line import PLAIN, SOFTMAX, call, output, refusal

# run, bench


def test_run(file):
    sizes = ("-D", "N=30", "-D", "factor=2")
    text = output("run", f"{file}:scale@gpu", "--target", "interpret", *sizes)
    lines = text.splitlines()
    assert lines[0] == "# loopnest nest 1"
    table = lines.index("tensor  dtype    shape  memory  buffer  compute_at")
    assert lines[table + 1] == "x       float32  [N]    global  x[N]    0"
    assert "scale@gpu on target interpret: N=30, factor=2" in lines
    verdict = next(line for line in lines if line.startswith("y: "))
    assert verdict.startswith("y: largest error ")
    assert ", where rounding allows " in verdict
    assert verdict.endswith(": right")
    assert lines[-1].endswith(" GB/s")


def test_run_on_the_interpreter_takes_small_sizes():
    text = output("run", SOFTMAX, "--target", "interpret", "-D", "D=10")
    assert "softmax@cpu on target interpret: N=64, D=10" in text
    assert "(sizes are at most 64 on this target; -D sets others)" in text


def test_run_without_a_reference_asks_the_oracle(file):
    text = output("run", f"{file}:lonely", "--target", "interpret")
    assert "y: largest error 0, where rounding allows 0: right" in text


def test_run_shows_the_steps_of_a_thread(file):
    small = ("-D", "N=3", "-D", "factor=2", "-P", "threads=2")
    text = output("run", f"{file}:scale@gpu", "--step", "1:0", *small)
    lines = text.splitlines()
    assert lines[:5] == [
        "scale@gpu on target interpret: N=3, factor=2",
        "(sizes are at most 64 on this target; -D sets others)",
        "line 5: if i0 * 2 + i1 < N:",
        "    block (1, 0, 0), thread (0, 0, 0), i0=1, i1=0",
        "    -> condition = True",
    ]
    assert lines[5] == "line 6: y[i0 * 2 + i1] = x[i0 * 2 + i1] * factor"
    found = json.loads(output("run", f"{file}:scale@gpu", "--step", "1,0:0", "--json", *small))
    assert [step["line"] for step in found["steps"]] == [5, 6]
    assert refusal("run", f"{file}:scale@gpu", "--step", "1") == (
        "error: --step 1: use BLOCK:THREAD, as 0:31 or 2,1:31\n"
    )
    assert refusal("run", f"{file}:scale@gpu", "--step", "0:0", "--target", "c") == (
        "error: --step 0:0: it runs on interpret, not on c\n"
    )


def test_run_of_a_wrong_kernel(file):
    result = call("run", f"{file}:wrong", "--target", "interpret")
    assert result.exit_code == 1
    assert "WRONG" in result.stdout
    assert result.stderr == "error: wrong on target interpret: the result is wrong\n"


def test_run_blames_the_reference_where_the_nest_is_right(file):
    result = call("run", f"{file}:wrong", "--target", "interpret")
    assert (
        "every tensor of the nest has the values of the math, run by the interpreter: the "
        "reference says something else than the math of wrong\n"
    ) in result.stdout


def test_run_names_the_first_tensor_that_differs(broken_lowering):
    broken_lowering("index", "load x: i2 without")
    result = call(
        "run", f"{PLAIN}:plain_softmax@cpu", "--target", "interpret", "-D", "N=6", "-D", "D=4"
    )
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    first = lines.index("the first tensor that differs:")
    assert lines[first - 1].endswith(": WRONG")
    assert re.fullmatch(
        r"  shifted\[0, 1\] is \S+, the math says \S+ \(allowed difference \S+\)",
        lines[first + 1],
    )
    assert lines[first + 2].startswith("    of shifted ")
    assert lines[first + 2].endswith(" elements differ; before it largest, T2 are right")
    assert lines[first + 3] == "    stored at nest line 14 'shifted[0] = x[i0, 0] - T2[0]'"
    assert lines[first + 4].startswith("    placed by inline_most() at ")
    assert result.stderr == "error: plain_softmax@cpu on target interpret: the result is wrong\n"


def test_run_diagnoses_a_long_run_at_small_sizes(broken_lowering, monkeypatch):
    monkeypatch.setattr("loopnest.devtools.cli.kernel_commands._MOST_DIAGNOSED", 10)
    broken_lowering("index", "load x: i2 without")
    result = call(
        "run", f"{PLAIN}:plain_softmax@cpu", "--target", "interpret", "-D", "N=6", "-D", "D=4"
    )
    assert "the first tensor that differs at N=5, D=3:\n  shifted[0, 1] is " in result.stdout


def test_run_tells_a_broken_rule_without_a_stack(broken_lowering):
    broken_lowering("predicate", "drop")
    spec = f"{PLAIN}:plain_softmax@gpu"
    result = call("run", spec, "--target", "interpret", "-D", "N=6", "-D", "D=4")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[lines.index("it broke a rule:") + 1] == (
        "  largest reads x[6, 0]: index 6 is out of bounds for axis 0 of buffer x (tensor x), "
        "which has extent 6"
    )
    assert "Traceback" not in result.output


def test_bench(file):
    lines = output("bench", file, "--target", "interpret", "-D", "N=8").splitlines()
    assert lines[0].startswith("scale@gpu on target interpret: N=8, factor=0.")
    assert lines[-1].endswith(" GB/s")
