"""compute_at with recompute=True: which tensors are cloned, in which order, and when not."""

from __future__ import annotations

import pytest

import loopnest as ln
from helpers.schedule_run import (
    assert_computes,
    chain,
    nest,
    positions,
    random,
    refused,
    state,
    taken_back,
)

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
        "T2.compute_at(y, 1, recompute=True): it would change the leading 1 loops of T2, which "
        "are shared already (compute_at_pos 0, produced_at_pos 1); split, merge and reorder T2 "
        "in the same way first, or " + taken_back(f, 0)
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
