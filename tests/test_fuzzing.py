"""The judge of random schedules, judged: it sees planted mistakes, and it accepts what is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import loopnest as ln
from fuzzing import Case, Failure, Session, check, expect
from fuzzing.judge import compare, refusal_of, require_order
from fuzzing.program import primitive_of
from fuzzing.shrink import Shrinker
from fuzzing.snapshot import Snapshot

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
