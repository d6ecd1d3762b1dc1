"""The second checker: what it calls right and wrong, and that it agrees with the first."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest

import loopnest as ln
from loopnest import kir
from loopnest.certificate import main
from loopnest.proofs import verify_program
from loopnest.scalar.expr import Symbol
from loopnest.second_checker import Opinion, second_opinion
from loopnest.second_checker.crossing_sizes import crossing_sizes
from loopnest.tensor.math_snapshot import MathSnapshot
from mutation.judge import DECLARED, mutants_of
from mutation.mutant import Mutant
from mutation.mutants import KINDS, mutants
from mutation.rewriting import with_buffer
from mutation.subjects import keys_in, load, random_keys

ROOT = Path(__file__).parents[2]


def tiled_sum(dims: tuple[int | str, int | str] = ("N", "D")) -> ln.Kernel:
    with ln.Fusion("row_sum") as f:
        x = f.input("x", dims, ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    t = y.cache_before()
    y.split(0, 4)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_y})
    t.compute_at(y, 2)
    return ln.lower(f)


def parts(kernel: ln.Kernel) -> tuple[kir.Program, MathSnapshot]:
    return kernel._lowered.program, kernel._lowered.math()


def mutants_of_kind(kind: str, program: kir.Program) -> list[Mutant]:
    return [mutant for mutant in mutants(program, KINDS) if mutant.kind == kind]


def opinion(old: str, new: str) -> Opinion:
    """Return the opinion on the sum of rows with a line of its nest changed."""
    kernel = tiled_sum()
    text = str(kernel)
    assert old in text
    program, math = parts(kernel)
    found = kir.parse(text.replace(old, new))
    changed = replace(program, body=found.body, params=found.params, outputs=found.outputs)
    return second_opinion(changed, math)


def test_sizes_cross_two_tiles_and_fill_them() -> None:
    program, _ = parts(tiled_sum())
    assert list(crossing_sizes(program, (), 10_000)) == [
        {"N": 9, "D": 3}, {"N": 8, "D": 2}, {"N": 5, "D": 3}, {"N": 1, "D": 1},
        {"N": 0, "D": 3}, {"N": 5, "D": 0},
    ]  # fmt: skip


def test_sizes_keep_to_assumptions() -> None:
    with ln.Fusion("scaled") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        f.assume("N % 6 == 0")
        f.assume("M == N + 1")
        y = f.output(x * 2.0, "y")
    y.split(0, 4)
    program, math = parts(ln.lower(f))
    found = list(crossing_sizes(program, [c for _, c in math.conditions], 10_000))
    assert found[0] == {"N": 12, "M": 13}
    assert all(s["N"] % 6 == 0 and s["M"] == s["N"] + 1 for s in found)


def test_one_axis_at_a_time_where_all_are_too_many_statements() -> None:
    with ln.Fusion("outer") as f:
        x, z = f.input("x", ("N",), ln.float32), f.input("z", ("M",), ln.float32)
        y = f.output(ln.broadcast(x, (False, True)) * z, "y")
    y.split(1, 64)
    y.split(0, 64)
    found = list(crossing_sizes(parts(ln.lower(f))[0], (), 30_000))
    assert found[:2] == [{"N": 129, "M": 3}, {"N": 5, "M": 129}]


def test_a_right_kernel_is_right_at_the_sizes_that_were_tried() -> None:
    found = second_opinion(*parts(tiled_sum()))
    assert found.ok
    assert str(found) == ("right at N=9, D=3; N=8, D=2; N=5, D=3; N=1, D=1; N=0, D=3; N=5, D=0")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("if i0 * 4 + i1 < N:", "if i0 * 4 + i1 <= N:",
         "wrong: bounds: x[9, 0], line 9, thread 2.1 at N=9, D=3"),
        ("    T2[0] = 0.0\n", "",
         "wrong: undefined: T2[0], line 8, thread 0.3 at N=9, D=3"),
        ("for i2 in D:", "for i2 in D - 1:",
         "wrong: y: largest error .* at .*, where rounding allows .*; 9 of 9 elements differ at "
         "N=9, D=3"),
        ("if i0 * 4 + i1 < N:", "if i0 * 4 + i1 < 8:", "wrong: unwritten: y 8 at N=9, D=3"),
        ("y[i0 * 4 + i1] = T2[0]", "y[i0 * 4] = T2[0]",
         "wrong: race: y[.*], line 10, thread .* and .* at N=9, D=3"),
        ("-> (y: float32[N])", "-> (y: float64[N])",
         "wrong: the outputs of the nest are [('y', 'float64', '')], those of the math "
         "[('y', 'float32', '')]"),
        ("(x: float32[N, D])", "(x: float32[D, N])",
         "wrong: the input x has the extents (5, 9), in the math (9, 5) at D=5, N=9"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(old: str, new: str, message: str) -> None:
    pattern = re.escape(message).replace(r"\.\*", ".*")
    assert re.fullmatch(pattern, str(opinion(old, new)))


def test_a_nest_that_assumes_more_than_its_math_is_wrong() -> None:
    program, math = parts(tiled_sum())
    even = kir.parse("kernel k(x: float32[N]) -> (y: float32[N])\nfor i0 in N:\n  y[i0] = x[i0]\n")
    assert even.conditions == ()
    known = Symbol("N")
    assumed = replace(program, conditions=(("N != 0", known),))
    assert str(second_opinion(assumed, math)) == (
        "wrong: the nest assumes that N != 0, the math does not"
    )


def test_memory_that_only_a_caller_can_pass_is_wrong() -> None:
    program, math = parts(tiled_sum())
    (made,) = [node.storage for node in program.nodes if isinstance(node, kir.Allocate)]
    wrong = with_buffer(program, made, replace(made, memory=ln.GLOBAL))
    assert str(second_opinion(wrong, math)) == (
        f"wrong: {made.name} is allocated in GLOBAL memory, which only a caller can pass"
    )


def test_sizes_without_elements_alone_tell_nothing() -> None:
    program, math = parts(tiled_sum())
    found = second_opinion(program, math, most=1)
    assert found.status == "unknown"
    assert found.finding == ("no sizes with elements are known at which at most 20 statements run")


def test_what_cannot_be_run_is_unknown() -> None:
    found = second_opinion(*parts(tiled_sum((1 << 14, 1 << 14))))
    assert not found.ok
    assert str(found) == (
        "unknown: no sizes with elements are known at which at most 40000000 statements run"
    )


# Loops that data end


def halved(parallel: ln.ParallelType | None = None) -> ln.Kernel:
    """Halve a vector until all is below 1."""
    with ln.Fusion("halved") as f:
        x = f.input("x", ("N",), ln.float32)
        y = ln.recur(
            lambda y, _: y * 0.5, x, steps="T", keep="last",
            until=lambda y: ln.all((y < 1.0).named("below"), axis=0).named("small"),
        )  # fmt: skip
        f.output(y, "y")
    if parallel is not None:
        states = [t for t in f.tensors if t.memory is ln.GLOBAL and t.ndim == 2]
        for tensor in (*states, f["small"], f["y"]):
            tensor.parallelize({-1: parallel})
    f.inline_most(replay=True)
    return ln.lower(f)


def constant_steps(steps: int) -> ln.Kernel:
    with ln.Fusion("doubled") as f:
        y = ln.recur(lambda y, _: y * 2.0, ln.full((), 1.0), steps=steps, keep="last",
                     until=lambda y: y > 30.0)  # fmt: skip
        f.output(y, "y")
    return ln.lower(f)


@pytest.mark.parametrize("parallel", [None, ln.ParallelType.block_x])
def test_a_loop_ends_early_in_a_trial_and_runs_on_in_another(
    parallel: ln.ParallelType | None,
) -> None:
    program, math = parts(halved(parallel))
    assert second_opinion(program, math).ok
    ends = {m.text: second_opinion(m.program, math) for m in mutants_of_kind("end", program)}
    assert set(ends) == {"end by the opposite", "end where it may not", "end before a statement"}
    assert {text: str(o) for text, o in ends.items() if o.status != "wrong"} == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("small[0], int64(i0), ", "small[0], int64(i0 + 1), "),
        ("small[0], int64(i0), ", "small[0], int64(0), "),
        ("< 1.0", "< 0.5"),
        ("where(small[0]", "where(not small[0]"),
    ],
)
def test_another_step_that_ends_a_loop_is_wrong(old: str, new: str) -> None:
    kernel = halved()
    program, math = parts(kernel)
    text = str(kernel)
    assert old in text
    found = kir.parse(text.replace(old, new))
    changed = replace(program, body=found.body, params=found.params, outputs=found.outputs)
    assert second_opinion(changed, math).status == "wrong"


def test_a_loop_that_only_larger_sizes_end_runs_longer() -> None:
    with ln.Fusion("fibonacci") as f:
        one = ln.full((), 1, dtype=ln.int64)
        n = ln.recur(lambda past, _: past[0] + past[1], (one, one), steps="T", depth=2,
                     keep="last", until=lambda n: n > 30)  # fmt: skip
        f.output(n, "n")
    program, math = parts(ln.lower(f))
    found = second_opinion(program, math)
    assert str(found) == "right at T=0; T=1; T=3; T=4; T=5; T=12"


@pytest.mark.parametrize(
    ("steps", "how"),
    [(4, "is left early, behind its first step"), (20, "runs all its steps")],
)
def test_an_end_that_no_trial_shows_is_unknown(steps: int, how: str) -> None:
    kernel = constant_steps(steps)
    lines = str(kernel).splitlines()
    (line,) = [n for n, text in enumerate(lines, 1) if "until" in text]
    assert str(second_opinion(*parts(kernel))) == (
        f"unknown: no trial is known in which the loop that ends at line {line} {how}"
    )


def test_a_nest_without_the_end_of_its_math_is_unknown() -> None:
    kernel = halved()
    program, math = parts(kernel)
    text = "\n".join([line for line in str(kernel).splitlines() if "until" not in line])
    found = kir.parse(text)
    changed = replace(program, body=found.body, params=found.params, outputs=found.outputs)
    (fold,) = [t.name for t in math.tensors if t.definition and t.definition.op == "until"]
    assert str(second_opinion(changed, math)) == (
        f"unknown: no loop of the nest ends early, as {fold} of the math says"
    )


@pytest.mark.parametrize("name", ["sinkhorn@gpu", "sinkhorn@cpu"])
def test_a_kernel_that_ends_on_square_matrices_alone(name: str) -> None:
    subject = load(next(keys_in(ROOT / "kernels", [name])))
    assert subject is not None
    found = second_opinion(subject.program, subject.math, 300_000)
    assert found.ok, found
    assert {"N": 3, "M": 3, "S": 3} in found.sizes


# Tiles that were not crossed


def test_tiles_that_no_run_crosses_are_named() -> None:
    with ln.Fusion("doubled") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(x * 2.0, "y")
    y.split(0, 512)
    program, math = parts(ln.lower(f))
    assert str(second_opinion(program, math, 5_000)) == "right at N=1025; N=1024; N=5; N=1; N=0"
    found = second_opinion(program, math, 600)
    assert found.ok
    assert found.uncrossed == {"N": 1025}
    assert str(found) == (
        "right at N=5; N=0; two tiles are crossed from N=1025 on, which was not tried"
    )


def test_it_loads_nothing_of_the_first_checker() -> None:
    script = (
        "import sys, loopnest.second_checker as s; "
        "print([m for m in sys.modules if m.startswith(('loopnest.proofs', 'loopnest.lane_machine',"
        " 'loopnest.lowering', 'loopnest.schedule'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# The command


def test_the_command_asks_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ln.Fusion("doubled") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(x * 2.0, "y")
    t = y.cache_before()
    y.split(0, 4)
    t.compute_at(y, 1)
    y.axis(1).parallelize(ln.ParallelType.vectorize)
    path = tmp_path / "doubled.cert"
    ln.lower(f).certificate(path)
    assert main(["--second", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{path}: proved for all sizes (")
    assert re.fullmatch(r"  second checker: right at N=12; N=8; N=4; N=0 \(\d+\.\d s\)", lines[-2])
    assert re.fullmatch(
        r"  second checker of the variant without wide accesses: right at N=9; N=8; N=5; N=1; N=0 "
        r"\(\d+\.\d s\)",
        lines[-1],
    )


def test_the_command_fails_where_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.cert"
    tiled_sum((1 << 14, 1 << 14)).certificate(path)
    assert main([str(path)]) == 0
    assert main([str(path), "--second"]) == 1
    assert "second checker: unknown: no sizes with elements are known" in capsys.readouterr().out


def test_other_options_of_the_command_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--third", "x.cert"]) == 2
    assert capsys.readouterr().err == "error: there is no option --third; there is --second\n"


# It agrees with the first


SAMPLE = (
    "softmax@gpu", "row_sum@gpu", "transpose@gpu", "histogram@gpu", "embedding@gpu",
    "cumsum@gpu_warps", "sort_rows@gpu",
)  # fmt: skip
"""Kernels that run fast; `tools/second_opinions.py` asks of all."""


@pytest.mark.parametrize("name", SAMPLE)
def test_kernels_are_right_to_both(name: str) -> None:
    key = next(keys_in(ROOT / "kernels", [name]))
    subject = load(key)
    assert subject is not None
    assert verify_program(subject.program, subject.math).ok
    assert second_opinion(subject.program, subject.math, 200_000).ok


def test_what_is_proved_of_mutants_is_right_to_both() -> None:
    subjects = [load(key) for key in islice(random_keys(400, 31), 400)]
    judged = proved = 0
    for number, subject in enumerate(s for s in subjects if s is not None):
        found = [m for m in mutants_of(subject) if m.kind not in DECLARED]
        for mutant in Random(number).sample(found, min(3, len(found))):
            first = verify_program(mutant.program, subject.math)
            second = second_opinion(mutant.program, subject.math, 50_000)
            judged += 1
            proved += first.ok
            assert not (first.ok and second.status == "wrong"), (subject.name, mutant.text, second)
        if judged >= 60:
            break
    assert judged >= 60
    assert proved < judged
