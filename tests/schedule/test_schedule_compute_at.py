"""compute_at, inline_at, inline_most: before and after, transactions, the trace, and their cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import loopnest as ln
from helpers.schedule_run import (
    PT,
    assert_computes,
    chain,
    leaf,
    loops,
    positions,
    program,
    random,
    refused,
    state,
)
from loopnest.schedule import compute_at, inlining
from loopnest.schedule.compute_at import joins_plainly
from loopnest.schedule.loop_forest import LoopForest
from mutation.subjects import load, random_keys

# Before and after


def test_the_producer_takes_the_consumers_loops() -> None:
    f, (t1, t2, y) = chain("I", "J", length=3)
    y.split(0, 4).split(2, 8).reorder([0, 2, 1, 3])
    assert t1.compute_at(y, 2) is t1
    assert leaf(t1) == leaf(t2) == leaf(y) == "i:ceildiv(I, 4) i:ceildiv(J, 8) i:4 i:8"
    assert positions(t1, t2, y) == (2, 2, 0)
    assert (t1.produced_at_pos, t2.produced_at_pos, y.produced_at_pos) == (0, 2, 2)
    assert_computes(f, random(6, 9))


def test_the_loops_may_come_by_any_route() -> None:
    """A merge that the consumer split again, replayed on a transposed producer."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("J", "I"), ln.float32)
        t = x * 2.0
        y = f.output(ln.permute(t, (1, 0)) + 1.0, "y")
    y.merge(0).split(0, 8)
    t.compute_at(y, -1)
    assert leaf(t) == leaf(y)
    assert positions(t, f["T2"]) == (2, 2)
    assert_computes(f, random(5, 3))


def test_positions_of_tensors_without_consumers_are_0() -> None:
    f, (t1, t2, y) = chain("I", length=3)
    f.inline_most()
    assert y.compute_at_pos == 0
    with refused(
        "y.inline_at(1): position 1 is beyond the largest legal position 0; inline_at "
        "replays nothing: the leading axes must correspond already; compute_at replays "
        "them"
    ):
        y.inline_at(1)
    assert positions(t1, t2) == (1, 1)


def test_scheduling_inside_and_after_the_block() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        t = x * 2.0
        t.split(0, 4)
        y = f.output(t + 1.0, "y")
        t.compute_at(y, 1)
    y.axis(0).parallelize(PT.grid_x)
    assert positions(t) == (1,)
    assert leaf(t) == "i:I"
    assert_computes(f, random(5))


def test_a_tensor_that_shares_loops_keeps_its_memory_and_types() -> None:
    """compute_at sets neither parallel types nor memory."""
    _, (t1, y) = chain("I", "J", length=2)
    t1.axis(1).parallelize(PT.unroll)
    y.axis(0).parallelize(PT.grid_x)
    t1.compute_at(y, 1)
    assert [a.parallel for a in t1.leaf_domain] == [PT.serial, PT.unroll]
    assert t1.memory is ln.LOCAL


BAD: list[tuple[Callable[[ln.TensorView, ln.TensorView], object], str]] = [
    (lambda t, y: t.compute_at(y, "1"),
     "T1.compute_at(y, '1'): y has no axis named '1'; its axes are [i0 I, i1 J]"),
    (lambda t, y: t.compute_at(y, True),
     "T1.compute_at(y, True): position True is not an int; a position counts leading leaf axes, or "
     "names the innermost of them"),
    (lambda t, y: t.compute_at(None, 1),  # type: ignore[arg-type]
     "T1.compute_at(None, 1): None is no TensorView"),
    (lambda t, y: t.compute_at("y", 1),  # type: ignore[arg-type]
     "T1.compute_at('y', 1): 'y' is no TensorView"),
    (lambda t, y: t.compute_at(y, 9, recompute=True),
     "T1.compute_at(y, 9, recompute=True): position 9 is out of range; y has the leaf axes "
     "[i0, i1], so use -3..2"),
    (lambda t, y: t.inline_at(3),
     "T1.inline_at(3): position 3 is out of range; T1 has the leaf axes [i0, i1], so use -3..2"),
    (lambda t, y: t.inline_at(-4),
     "T1.inline_at(-4): position -4 is out of range; T1 has the leaf axes [i0, i1], so use -3..2"),
    (lambda t, y: t.inline_at(None),  # type: ignore[arg-type]
     "T1.inline_at(None): position None is not an int; a position counts leading leaf axes, or "
     "names the innermost of them"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD, ids=[m.split(":")[0] for _, m in BAD])
def test_bad_arguments_are_named_and_change_nothing(
    call: Callable[[ln.TensorView, ln.TensorView], object], message: str
) -> None:
    f, (t, y) = chain("I", "J", length=2)
    before = state(f)
    with refused(message):
        call(t, y)
    assert state(f) == before


@pytest.mark.parametrize("bad", [5, "y", [1], [None]])
def test_inline_most_takes_tensors(bad: object) -> None:
    with pytest.raises(ln.ScheduleError, match=r"^inline_most"):
        ln.inline_most(bad)  # type: ignore[arg-type]
    f, (t, _) = chain("I", length=2)
    g, (u, _) = chain("I", length=2)
    before = state(f), state(g)
    with refused("inline_most: T1 is no TensorView of the same fusion; give TensorViews"):
        ln.inline_most([t, u])
    assert (state(f), state(g)) == before
    ln.inline_most([])
    ln.inline_most(t)
    assert positions(t, u) == (1, 0)


# Transactions


def test_a_refused_compute_at_undoes_replays_of_other_tensors() -> None:
    """The error comes late, when tensors were replayed and placed: all of it is undone."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t1 = x * 2.0
        aside = f.output(ln.sum(ln.exp(t1), axis=0), "aside")
        y = f.output(t1 + 1.0, "y")
    y.split(0, 4).merge(1).axis(0).parallelize(PT.unroll)
    aside.split(0, 8)
    before = state(f)
    with refused(
        "T1.compute_at(y, 2): a merge of these loops would join iteration and reduction "
        "axes of aside; an iteration axis merges with iteration or broadcast axes "
        "only"
    ):
        t1.compute_at(y, 2)
    assert state(f) == before
    t1.compute_at(y, 1)
    assert leaf(aside) == "r:ceildiv(I, 4) r:4 i:J"
    assert positions(t1, aside, y) == (1, 0, 0)
    assert_computes(f, random(6, 3))


def test_a_failed_call_leaves_no_trace_and_a_nested_one_neither() -> None:
    f, (t1, y) = chain("I", length=2)
    y.split(0, 4)
    with pytest.raises(ln.ScheduleError):
        y.split(9, 4)
    t1.compute_at(y, 1)
    with pytest.raises(ln.ScheduleError):
        t1.split(0, 4)
    assert [origin.call for origin in f.trace] == [
        "y.split(axis=0, factor=4)",
        "T1.compute_at(y, 1)",
    ]


def test_the_trace_names_calls_files_and_lines() -> None:
    f, (t1, t2, y) = chain("I", "J", length=3)
    y.split(1, 4, inner=False)
    here = sys._getframe().f_lineno - 1
    ln.propagate(y)
    t1.compute_at(t2, -1)
    f.inline_most()
    ln.inline_most([t2])
    ln.parallelize_like(y)
    assert [origin.call for origin in f.trace] == [
        "y.split(axis=1, factor=4, inner=False)",
        "propagate(y, -1)",
        "T1.compute_at(T2, -1)",
        "inline_most()",
        "inline_most([T2])",
        "parallelize_like(y)",
    ]
    assert [origin.line - here for origin in f.trace] == [0, 2, 3, 4, 5, 6]
    assert {Path(origin.file).name for origin in f.trace} == {Path(__file__).name}
    assert str(f.trace[0]) == f"{f.trace[0].call} at {__file__}:{here}"


def test_nodes_carry_the_call_that_placed_them() -> None:
    f, (t1, y) = chain("I", length=2)
    y.split(0, 4)
    t1.compute_at(y, 1)
    (stored,) = program(f).body
    assert stored.origin is not None
    assert stored.origin.call == "y.split(axis=0, factor=4)"


# Cost


def calls_of(run: Callable[[], object]) -> int:
    """Return how many Python functions `run` calls."""
    count = 0

    def profile(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def diamonds(count: int) -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    """Return `count` diamonds in series: three tensors each, 2 ** count chains."""
    with ln.Fusion("k") as f:
        t = first = f.input("x", ("I", "J"), ln.float32) * 2.0
        for _ in range(count):
            t = ln.sin(t) + ln.cos(t)
        return f, first, f.output(t * 2.0, "y")


def line(count: int) -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    """Return as many tensors in a row."""
    with ln.Fusion("k") as f:
        t = first = f.input("x", ("I", "J"), ln.float32) * 2.0
        for _ in range(3 * count):
            t = ln.sin(t)
        return f, first, f.output(t * 2.0, "y")


WORK: dict[str, Callable[[ln.Fusion, ln.TensorView, ln.TensorView], object]] = {
    "compute_at": lambda f, first, y: first.compute_at(y, -1),
    "recompute": lambda f, first, y: first.compute_at(y, 1, recompute=True),
    "inline_most": lambda f, first, y: f.inline_most(),
    "propagate": lambda f, first, y: ln.propagate(y),
    "parallelize_like": lambda f, first, y: ln.parallelize_like(y),
    "common_consumers": lambda f, first, y: ln.common_consumers(first),
    "lower": lambda f, first, y: program(f),
    "inline_most, lower": lambda f, first, y: (f.inline_most(), program(f)),
}


@pytest.mark.parametrize("name", WORK)
def test_64_diamonds_cost_what_a_chain_of_that_length_costs(name: str) -> None:
    costs = []
    for graph in (line, diamonds):
        f, first, y = graph(64)
        y.split(0, 4)
        costs.append(calls_of(lambda f=f, first=first, y=y: WORK[name](f, first, y)))  # type: ignore[misc]
    assert costs[1] <= 3 * costs[0]


@pytest.mark.parametrize("name", WORK)
def test_the_cost_of_a_chain_is_linear(name: str) -> None:
    costs = []
    for count in (16, 64):
        f, first, y = line(count)
        y.split(0, 4)
        costs.append(calls_of(lambda f=f, first=first, y=y: WORK[name](f, first, y)))  # type: ignore[misc]
    assert costs[1] <= 5 * costs[0]


def test_diamonds_fully_inlined_compute_their_math() -> None:
    f, first, y = diamonds(6)
    first.compute_at(y, -1)
    assert {t.compute_at_pos for t in f.tensors[1:-1]} == {2}
    assert len(loops(f)) == 2 + 20
    assert_computes(f, random(2, 3))


def inline_each(f: ln.Fusion, order: int) -> None:
    ln.propagate(f["y"])
    for tensor in f.tensors[1:-1][::order]:
        tensor.inline_at(2)


@pytest.mark.parametrize("order", [1, -1])
def test_a_call_for_each_tensor_of_a_chain_looks_at_few_others(order: int) -> None:
    """Each call costs the way to a tensor's users or origins, no nest of all tensors."""
    costs = []
    for count in (16, 64):
        f, tensors = chain("I", "J", length=count)
        costs.append(calls_of(lambda f=f: inline_each(f, order)))  # type: ignore[misc]
        assert {t.compute_at_pos for t in tensors[:-1]} == {2}
    assert costs[1] <= 8 * costs[0]


def test_what_joins_plainly_has_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bool] = []

    def judged(tensor: ln.TensorView, pos: int) -> bool:
        said.append(joins_plainly(tensor, pos))
        if said[-1]:
            LoopForest(tensor.fusion, {tensor.siblings[0]: pos}).check()
        return said[-1]

    monkeypatch.setattr(compute_at, "joins_plainly", judged)
    monkeypatch.setattr(inlining, "joins_plainly", judged)
    for key in random_keys(400, seed=4):
        load(key)
    assert min(said.count(True), said.count(False)) > 10


def test_a_tensor_beside_the_way_to_a_target_is_not_placed_there() -> None:
    """What the target does not depend on was replayed with others, but shares no loop with it."""
    with ln.Fusion() as f:
        x = f.input("x", (8, 8), ln.float32)
        early = ln.exp(f.input("z", (8, 8), ln.float32))
        t = ln.exp(x)
        beside = t + early
        f.output(beside * 2.0, "y0")
        y1 = f.output(t * 3.0, "y1")
    t.compute_at(y1, 1)
    with pytest.raises(ln.ScheduleError) as error:
        early.compute_at(y1, 1)
    assert "y1 does not depend on" in str(error.value)


def test_a_target_whose_loops_changed_since_is_replayed_again() -> None:
    """What a call knows of the one before holds for the axes of then."""
    with ln.Fusion() as f:
        x = f.input("x", (8, 12), ln.float32)
        first = ln.exp(x)
        second = ln.sin(first)
        y = f.output(second * 2.0, "y")
    second.compute_at(y, 1)
    y.split(1, 3)
    first.compute_at(y, 2)
    assert (second.compute_at_pos, first.compute_at_pos) == (2, 2)
    assert str(first.domain) == "[i0: 8, i1: 4, i2: 3]"
