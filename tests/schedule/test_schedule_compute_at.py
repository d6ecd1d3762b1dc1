"""compute_at, inline_at, inline_most: recomputation, transactions, the trace, and their cost."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import loopnest as ln
from helpers.schedule_run import (
    PT,
    assert_computes,
    leaf,
    loops,
    nest,
    positions,
    program,
    random,
    state,
)
from loopnest.schedule import compute_at, inlining
from loopnest.schedule.compute_at import joins_plainly
from loopnest.schedule.loop_forest import LoopForest
from mutation.subjects import load, random_keys


def chain(*shape: int | str, length: int) -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return x -> T1 … of pointwise tensors, the last the output y."""
    with ln.Fusion("chain") as f:
        tensors = [f.input("x", shape, ln.float32)]
        for number in range(length):
            tensors.append(tensors[-1] + float(number + 1))
        f.output(tensors[-1], "y")
    return f, tensors[1:]


def refused(message: str) -> pytest.RaisesExc[ln.ScheduleError]:
    return pytest.raises(ln.ScheduleError, match=f"^{re.escape(message)}$")


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
    (lambda t, y: t.compute_at(y, "1"),  # type: ignore[arg-type]
     "T1.compute_at(y, '1'): position '1' is not an int; a position counts leading leaf axes"),
    (lambda t, y: t.compute_at(y, True),
     "T1.compute_at(y, True): position True is not an int; a position counts leading leaf axes"),
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
     "T1.inline_at(None): position None is not an int; a position counts leading leaf axes"),
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


# recompute=True


def two_ways() -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return T1 read by T2, its broadcast over rows, and by T3, over columns; y = T2 + T3."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        t1 = ln.exp(x)
        t2, t3 = ln.broadcast(t1, (True, False)), ln.broadcast(t1, (False, True))
        y = f.output(t2 + t3, "y")
    return f, [t1, t2, t3, y]


def test_recompute_clones_for_the_consumers_that_cannot_share() -> None:
    f, (t1, t2, t3, y) = two_ways()
    count = len(f.tensors)
    t1.compute_at(y, 1, recompute=True)
    (clone,) = t1.clones
    assert (clone.name, f.tensors[count:], clone.clones) == ("T1_2", (clone,), ())
    assert clone.definition is not None
    assert (clone.definition.op, clone.producers, clone.memory) == ("exp", t1.producers, ln.LOCAL)
    assert {t.producers for t in (t2, t3)} == {(t1,), (clone,)}
    assert positions(t1, clone) == (1, 0)
    assert_computes(f, random(4))


def test_the_original_feeds_the_consumer() -> None:
    """e = exp(x - max) is read by its sum and by the division: the clone goes to the sum."""
    with ln.Fusion("softmax") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        e = ln.exp(x - ln.max(x, axis=1, keepdims=True)).named("e")
        total = ln.sum(e, axis=1, keepdims=True)
        y = f.output(e / total, "y")
    total.compute_at(y, 1)
    before = state(f)
    with pytest.raises(ln.ScheduleError, match=r"^e\.compute_at\(y, -1\): .*recomputed"):
        e.compute_at(y, -1)
    assert state(f) == before
    e.compute_at(y, -1, recompute=True)
    assert [c.name for c in e.clones] == ["e_2"]
    assert e in y.producers
    assert total.reduction is not None
    assert total.reduction.producers == e.clones
    assert positions(e) == (2,)
    (shifted,) = [t for t in e.producers if not t.is_input]
    shifted.compute_at(y, -1, recompute=True)
    assert e.producers == (shifted,)
    assert e.clones[0].producers == shifted.clones
    f.inline_most()
    assert "[D] local" not in nest(f)
    assert_computes(f, random(3, 5))


def test_recompute_clones_nothing_where_all_can_share() -> None:
    f, (t1, t2, y) = chain("I", "J", length=3)
    tensors = f.tensors
    t1.compute_at(y, 2, recompute=True)
    assert f.tensors == tensors
    assert t1.clones == ()
    assert positions(t1, t2) == (2, 2)


def test_upstream_is_cloned_only_where_it_cannot_share_either() -> None:
    """What is computed inside the producer is cloned with it; what stands outside is shared."""
    for inside in (False, True):
        with ln.Fusion("k") as f:
            x = f.input("x", ("I",), ln.float32)
            far = ln.sin(x).named("far")
            near = ln.cos(far).named("near")
            a, b = ln.broadcast(near, (True, False)), ln.broadcast(near, (False, True))
            y = f.output(a * b, "y")
        if inside:
            far.compute_at(near, 1)
        near.compute_at(y, 1, recompute=True)
        assert [c.name for c in near.clones] == ["near_2"]
        assert [c.name for c in far.clones] == (["far_2"] if inside else [])
        assert near.clones[0].producers == (far.clones if inside else (far,))
        assert positions(near, *near.clones) == (1, 0)
        if inside:
            assert positions(far, *far.clones) == (1, 1)
        assert_computes(f, random(4))


def deep(length: int) -> tuple[ln.Fusion, list[ln.TensorView], ln.TensorView]:
    """Return a chain of tensors, the last one read along rows and along columns, and the output."""
    with ln.Fusion("k") as f:
        t: ln.TensorView = f.input("x", ("I",), ln.float32)
        chained = []
        for number, op in zip(range(length), (ln.sin, ln.cos, ln.exp, ln.tanh), strict=False):
            t = op(t).named(f"t{number}")
            chained.append(t)
        a, b = ln.broadcast(t, (True, False)), ln.broadcast(t, (False, True))
        y = f.output(a * b, "y")
    return f, chained, y


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("length", "place"), [(2, 0), (3, 0), (3, 1), (3, 2), (4, 0), (4, 3)])
def test_recompute_clones_a_chain(length: int, place: int, inside: bool) -> None:
    """From the tensor on to the one that is read in two ways, and what is computed inside of it."""
    f, chained, y = deep(length)
    if inside:
        for far, near in zip(chained[-2::-1], chained[::-1], strict=False):
            far.compute_at(near, 1)
    chained[place].compute_at(y, 1, recompute=True)
    copied = [t for t in chained if t.clones]
    assert copied == (chained if inside else chained[place:])
    assert positions(*copied) == (1,) * len(copied)
    copies = [t.clones[0] for t in copied]
    for near, far in zip(copies[1:], copies, strict=False):
        assert near.producers == (far,)
    assert_computes(f, random(4))


def test_a_diamond_is_cloned_once() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        top = ln.sin(x).named("top")
        left, right = ln.cos(top).named("left"), ln.exp(top).named("right")
        low = ln.add(left, right).named("low")
        y = f.output(ln.broadcast(low, (True, False)) * ln.broadcast(low, (False, True)), "y")
    top.compute_at(y, 1, recompute=True)
    assert [t.clones[0].name for t in (top, left, right, low)] == [
        "top_2", "left_2", "right_2", "low_2",
    ]  # fmt: skip
    assert all(len(t.clones) == 1 for t in (top, left, right, low))
    assert_computes(f, random(4))


def test_recompute_says_which_clone_comes_first() -> None:
    """Two tensors in a row are each read in two ways: a call clones for one of them."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        t = ln.sin(x).named("t")
        u = ln.mul(ln.broadcast(t, (True, False)), ln.broadcast(t, (False, True))).named("u")
        w = ln.broadcast(u, (True, False, False)) * ln.broadcast(u, (False, False, True))
        y = f.output(w, "y")
    before = state(f)
    with pytest.raises(ln.ScheduleError) as caught:
        t.compute_at(y, 2, recompute=True)
    assert str(caught.value).endswith(
        "; first clone, by recompute=True, the tensor nearest to y that consumers read in several "
        "ways"
    )
    assert state(f) == before
    u.compute_at(y, 2, recompute=True)
    assert_computes(f, random(4))


def test_clones_are_numbered() -> None:
    """Three consumers that use one axis in three ways: two clones, T1_2 and T1_3, in two calls."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        t1 = ln.exp(x)
        a = ln.broadcast(t1, (True, True, False))
        b = ln.broadcast(t1, (True, False, True))
        c = ln.broadcast(t1, (False, True, True))
        y = f.output(ln.fma(a, b, c), "y")
    t1.compute_at(y, -1, recompute=True)
    clones = t1.clones
    assert [clone.name for clone in clones] == ["T1_2"]
    clones[0].compute_at(y, -1, recompute=True)
    names = [t.name for t in f.tensors]
    assert len(set(names)) == len(names) == 8
    assert_computes(f, random(3))


@pytest.mark.parametrize("memory", [ln.SHARED, ln.GLOBAL])
def test_a_shared_or_global_producer_is_not_cloned(memory: ln.Memory) -> None:
    f, (t1, _, _, y) = two_ways()
    t1.memory = memory
    before = state(f)
    with refused(
        f"T1.compute_at(y, 1, recompute=True): T1 is {memory.value}, and a recomputed "
        "tensor must be local; set its memory to ln.LOCAL, or place it where all its "
        "consumers can share it"
    ):
        t1.compute_at(y, 1, recompute=True)
    assert state(f) == before


def test_recompute_cannot_help_where_the_target_itself_is_impossible() -> None:
    f, (t1, t2, y) = chain("I", "J", length=3)
    t1.compute_at(t2, 1)
    y.split(0, 4)
    before = state(f)
    with refused(
        "T2.compute_at(y, 1, recompute=True): it would change the leading 1 loops of T2, "
        "which are shared already (compute_at_pos 0, produced_at_pos 1); schedule T2 "
        "alike first, or in another order"
    ):
        t2.compute_at(y, 1, recompute=True)
    assert state(f) == before


def test_recompute_of_all_outputs_of_an_expression() -> None:
    """mean is used two ways; variance and count are cloned with it."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        mean, var, _ = ln.welford(x, axis=1)
        a, b = ln.broadcast(mean, (True, False)), ln.broadcast(mean, (False, True))
        y = f.output(a * b, "y")
        v = f.output(var + 1.0, "v")
    mean.compute_at(y, 1, recompute=True)
    assert len(mean.clones) == len(var.clones) == 1
    assert mean.clones[0].siblings == (mean.clones[0], var.clones[0], f["T3"].clones[0])
    assert v.ndim == 1
    assert_computes(f, random(3, 4))


def test_recompute_on_an_input_acts_on_its_users() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        t1 = ln.exp(x)
        y = f.output(ln.broadcast(t1, (True, False)) + ln.broadcast(t1, (False, True)), "y")
    x.compute_at(y, 1, recompute=True)
    assert x.clones == ()
    assert [c.name for c in t1.clones] == ["T1_2"]
    assert_computes(f, random(3))


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
