"""The judge of random schedules, judged: it sees planted mistakes, and it accepts what is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner

import loopnest as ln
from fuzzing.engine import Outcome
from fuzzing.fusions import FusionWriter
from loopnest import kir
from loopnest.devtools.fuzzing import Case, Failure, Session, check, expect
from loopnest.devtools.fuzzing.case_lines import Snapshot, primitive_of
from loopnest.devtools.fuzzing.judge import (
    TARGETS,
    blind_outputs,
    choose_sizes,
    compare,
    compiled,
    refusal_of,
    require_order,
    run,
)
from loopnest.devtools.fuzzing.kernel_fuzzing import Shrinker
from loopnest.devtools.work_farm import processes
from loopnest.facade.kernel_class import Kernel
from loopnest.kir import map_body
from loopnest.scalar import dtypes
from loopnest.scalar.expr import ONE, Const, Op
from loopnest.scalar.simplify import Simplifier

# Comparison


def exp_case() -> tuple[ln.Fusion, list]:
    with ln.Fusion() as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(ln.exp(x), "y")
    return f, [expect(f, {"N": 5}, data=1)]


@pytest.mark.parametrize("wrong", [1e-4, np.nan, np.inf])
def test_a_wrong_element_is_seen(wrong: float) -> None:
    _, (expected,) = exp_case()
    result = expected.outputs[0].copy()
    compare([result], expected, "here")
    result[3] += wrong
    with pytest.raises(Failure, match=r"^result: y at \[3\] is .* 1 of 5 elements differ"):
        compare([result], expected, "here")


def test_a_schedule_that_computes_something_else_is_seen() -> None:
    """The meaning of a definition is changed behind the judge's back."""
    f, expected = exp_case()
    y = f["y"]
    with ln.Fusion() as other:
        x = other.input("x", ("N",), ln.float32)
        other.output(ln.sin(x), "y")
    assert y.definition is not None
    object.__setattr__(y.definition, "values", other["y"].definition.values)
    with pytest.raises(Failure, match=r"^result: y at .*\n  at: .* by ln.evaluate"):
        check(f, expected)


def test_unknown_refusals_of_the_lowering_are_failures() -> None:
    error = ln.LoweringError("T1", "the moon is not full", "wait")
    with pytest.raises(Failure, match=r"^lowering: LoweringError: T1: the moon is not full"):
        refusal_of(error)


# Calls


def test_a_refused_call_that_changes_something_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    session = written("x0 = f.input('x0', ('N',), ln.float32)", "t0 = ln.exp(x0)")

    def change_and_refuse(self: ln.TensorView, position: int) -> None:
        self.domain.leaf[position].pinned = True
        raise ln.ScheduleError("pin", "refused")

    monkeypatch.setattr(ln.TensorView, "pin", change_and_refuse)
    with pytest.raises(Failure, match=r"^transaction: a call that was refused .* changed"):
        session.attempt("t0.pin(0)")


def test_another_error_than_scheduleerror_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    session = written("x0 = f.input('x0', ('N',), ln.float32)", "t0 = ln.exp(x0)")

    def broken(self: ln.TensorView, position: int) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(ln.TensorView, "pin", broken)
    with pytest.raises(Failure, match=r"^call: IndexError: tuple index out of range"):
        session.attempt("t0.pin(0)")


def test_a_frozen_axis_that_moves_is_seen() -> None:
    session = written("x0 = f.input('x0', ('N', 'M'), ln.float32)", "t0 = -x0", "t1 = -t0")
    session.fusion.output(session.tensor("t1"), "y")
    session.attempt("t0.compute_at(t1, 1)")
    before = Snapshot(session.fusion)
    t1 = session.tensor("t1")
    t1.domain = t1.domain.with_leaf(reversed(t1.leaf_domain))
    with pytest.raises(Failure, match=r"^frozen: y: a frozen axis moved"):
        before.require_frozen("")
    require_order(written("x0 = f.input('x0', ('N',), ln.float32)").fusion)


def test_lines_without_their_variables_are_passed_over() -> None:
    session = written("x0 = f.input('x0', ('N',), ln.float32)", "t1 = ln.exp(t0)", "t2 = -x0")
    assert session.math == ["x0 = f.input('x0', ('N',), ln.float32)", "t2 = -x0"]
    assert not session.attempt("t1.split(0, 2)")
    assert session.attempt("t2.split(0, 2)")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("t1.split(0, 4)", "split"),
        ("r1 = t1.rfactor(0)", "rfactor"),
        ("t1.memory = ln.GLOBAL", "memory"),
        ("t1.axis(0).parallelize(ln.ParallelType.unroll)", "parallelize"),
        ("t1.axis(0).pin()", "pin"),
        ("ln.propagate(t1, -1)", "propagate"),
    ],
)
def test_primitive_of(line: str, name: str) -> None:
    assert primitive_of(line) == name


def written(*lines: str) -> Session:
    session = Session("case")
    for line in lines:
        session.define(line)
    return session


# Shrinking

MATH = (
    'x0 = f.input("x0", ("N", "M"), ln.float16)',
    "t0 = ln.exp(x0)",
    "t1 = ln.tanh(t0)",
    "t2 = ln.sum(t1, 1)",
    "t3 = -t2",
    'y0 = f.output(t3, "y0")',
)
SCHEDULE = ("t1.split(0, 4)", "t2.split(0, 8)", "t3.reorder([0])", "f.inline_most()")


def test_shrinker_keeps_what_the_failure_needs() -> None:
    """A planted judge: a case fails that has a tanh, an output and a split of any tensor."""

    def judge(case: Case) -> Failure | None:
        math, schedule = "\n".join(case.math), "\n".join(case.schedule)
        needed = ("tanh" in math, "output" in math, ".split(" in schedule)
        return Failure("planted", "it failed") if all(needed) else None

    case = Case("case", MATH, SCHEDULE, ({"N": 8, "M": 3}, {"N": 5, "M": 0}), data=9)
    small, failure = Shrinker(case, Failure("planted", "it failed"), judge=judge).run()
    assert failure.kind == "planted"
    assert "\n".join(small.math) == 't1 = ln.tanh(t0)\ny0 = f.output(t3, "y0")'
    assert small.schedule == ("t1.split(0, 2)",)
    assert len(small.sizes) == 1
    assert small.data == 0


def test_script_of_a_case_runs(tmp_path: object) -> None:
    case = Case("case", MATH, (*SCHEDULE, "t1.split(9, 2)"), ({"N": 8, "M": 3},))
    lines: Sequence[str] = case.script(refused=["t1.split(9, 2)"]).splitlines()
    assert "with judged(f):" in lines
    exec(compile("\n".join(lines), "case", "exec"), {})
    assert replace(case, schedule=()).script() != case.script()


# Wrong kernels: the inputs must show what is wrong


def zeros(node: kir.Stmt, outputs: frozenset[str]) -> kir.Stmt | None:
    """Every result is 0."""
    if not isinstance(node, kir.Store) or node.storage.name not in outputs:
        return node
    return replace(node, value=Const(0, node.storage.dtype))


def stale(node: kir.Stmt, outputs: frozenset[str]) -> kir.Stmt | None:
    """Nothing is stored to the outputs: they keep what was there."""
    wanted = isinstance(node, kir.Store) and node.storage.name in outputs
    return None if wanted else node


def dropped(node: kir.Stmt, outputs: frozenset[str]) -> kir.Stmt | None:
    """The loops over tiles of an output stop one tile early."""
    if not isinstance(node, kir.Loop) or not node.axis.startswith("y.i0"):
        return node
    inside = Op("lt", (node.var, Simplifier().sub(node.var.extent, ONE)), dtypes.bool_)
    return replace(node, body=(kir.If(inside, node.body),))


def uninitialised(node: kir.Stmt, outputs: frozenset[str]) -> kir.Stmt | None:
    """Reductions continue what their memory held before.

    A constant stands for it: C says nothing of a variable that is read before it is written, and a
    compiler may make anything of it, a crash too.
    """
    if not isinstance(node, kir.Store) or node.role != "init":
        return node
    dtype = node.storage.dtype
    return replace(node, value=Const(float("nan") if dtype.is_float else 77, dtype))


def with_all(f: ln.Fusion) -> tuple[ln.TensorView, ...]:
    """Return the outputs of a fusion of the kinds of math that random fusions have."""
    x = f.input("x", ("N", "M"), ln.float32)
    return (ln.sum(ln.tanh(x), 1), ln.max(x, 1), ln.var(x, 1) + 1.0, ln.mean(x * x, 1))


def of(build: Callable[[ln.Fusion], ln.TensorView]) -> ln.Fusion:
    with ln.Fusion() as f:
        f.output(build(f), "y")
    return f


MATH_OF_KINDS: Sequence[Callable[[ln.Fusion], ln.TensorView]] = (
    lambda f: ln.exp(f.input("x", ("N",), ln.float32)),
    lambda f: f.input("x", ("N",), ln.float16) * 2.0,
    lambda f: f.input("x", ("N", "M"), ln.int32) + 1,
    lambda f: ln.permute(f.input("x", ("N", "M"), ln.float64), (1, 0)),
    *[lambda f, n=n: with_all(f)[n] for n in range(4)],
)


@pytest.mark.skipif("c" not in TARGETS, reason="no C compiler")
@pytest.mark.parametrize("math", MATH_OF_KINDS)
@pytest.mark.parametrize("wrong", [zeros, stale, dropped, uninitialised])
def test_wrong_kernels_are_seen(
    math: Callable[[ln.Fusion], ln.TensorView],
    wrong: Callable[[kir.Stmt, frozenset[str]], kir.Stmt | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At each of the sizes that are run, with exact, rounded and special values."""
    f = of(math)
    sizes = [s for s in choose_sizes(f, Random(1)) if all(s.values())]
    expected = [expect(f, s, data) for data, s in enumerate(sizes)]
    y = f["y"]
    y.split(0, 4)
    y.axis(1).parallelize(ln.ParallelType.unroll)
    kernel = ln.lower(f)
    assert len(expected) > 2
    check(f, expected)
    monkeypatch.delenv("LOOPNEST_VERIFY", raising=False)
    if wrong is uninitialised and not any(t.definition and t.definition.reducer for t in f.tensors):
        return
    changed = map_body(kernel.program.body, lambda node: wrong(node, frozenset({"y"})))
    program = kernel.program.with_body(changed)
    function = compiled(Kernel(replace(kernel._lowered, program=program, scalar=None)), "c")
    for one in expected:
        with pytest.raises(Failure, match=r"^result: y"):
            run(function, one, "c")


def test_random_inputs_tell_results_from_zeros() -> None:
    """But for the few outputs that are 0 by their math."""
    found = []
    for number in range(60):
        session = Session(f"case_{number}")
        rng = Random(f"zeros/{number}")
        FusionWriter(session, rng).write()
        sizes = choose_sizes(session.fusion, rng)
        expected = [expect(session.fusion, s, number + n) for n, s in enumerate(sizes)]
        found += blind_outputs(expected)
    assert len(found) < 6, found


def test_verdicts_that_were_written_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A last line that was cut is judged again, and so is what was judged on other targets."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    journal = import_module("fuzz_journal").Journal(tmp_path / "0.jsonl", ("interpret",))
    case = Case("case_1", MATH, SCHEDULE, ({"N": 8, "M": 3},), data=9)
    failed = Outcome(1, case, Failure("fault", "it failed", "", "there"), proof="all sizes")
    failed.calls["split", "accepted"] += 2
    passed = Outcome(2, Case("case_2", (), (), ()), refusals=("no common domain",), runs=3)
    for outcome in (failed, passed):
        journal.write(outcome)
    with journal.path.open("a", encoding="utf-8") as file:
        file.write('{"number": 3')
    found = journal.read()
    assert found.keys() == {1, 2}
    assert found[2] == passed
    assert replace(found[1], failure=None) == replace(failed, failure=None)
    assert str(found[1].failure) == str(failed.failure)
    assert import_module("fuzz_journal").Journal(journal.path, ("c",)).read() == {}
    journal.write(Outcome(3, Case("case_3", (), (), ())))
    assert journal.read().keys() == {1, 2, 3}


def test_parts_of_a_run_add_up_to_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    tools = import_module("fuzz_journal")
    monkeypatch.setattr(tools, "version", lambda: "abc1234")
    first = tools.Journal(tmp_path / "5.jsonl", ("interpret", "c"))
    second = tools.Journal(tmp_path / "6.jsonl", ("interpret", "c", "nvrtc", "verify"))
    nothing = Case("case", (), (), ())
    first.write(Outcome(1, nothing, Failure("fault", "it failed at 3", "", "there")))
    first.write(Outcome(1, nothing, lowered=True, runs=4, seconds=0.5))  # judged again: it is right
    first.write(Outcome(2, nothing, Failure("fault", "it failed at 4", "", "there"), lowered=True))
    second.write(Outcome(1, nothing, lowered=True, proof="all sizes", runs=6, cuda=True))
    second.write(Outcome(3, nothing, refusals=("a race in a parallel loop",)))
    lines = tools.page_of([first.path, second.path]).splitlines()
    assert [line for line in lines if line.startswith(("| 5", "| 6", "| all"))] == [
        "| 5 | interpret, c | 2 | 2 | 0 | 4 | 0 / 0 / 2 | 1 | 0.25 |",
        "| 6 | interpret, c, nvrtc, verify | 2 | 1 | 1 | 6 | 1 / 0 / 0 | 0 | 0.00 |",
        "| all |  | 4 | 3 | 1 | 10 | 1 / 0 / 2 | 1 | 0.12 |",
    ]
    assert "| abc1234 | 4 |" in lines
    assert "| a race in a parallel loop | 1 |" in lines
    assert "| fault: it failed at # | 1 | 2 of 5 |" in lines
    assert not any("nan" in line for line in lines)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((), "Missing argument 'FILES...'."),
        (("gone.jsonl",), "Invalid value for 'FILES...': File 'gone.jsonl' does not exist."),
        (("page.md",), "page.md: no verdicts; tools/fuzz.py writes them to --out/SEED.jsonl"),
    ],
)
def test_files_without_verdicts(
    given: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text("a page\n", "utf-8")
    found = CliRunner().invoke(import_module("fuzz_journal").main, given)
    assert found.exit_code == 2
    assert found.stderr.endswith(f"\n\nError: {sentence}\n")


def test_a_part_ends_after_its_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is begun is ended, nothing more is begun."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    fuzz = import_module("fuzz")
    assert list(fuzz.outcomes([*range(99)], 0, (), processes(1), 2, end=0.0)) == []
