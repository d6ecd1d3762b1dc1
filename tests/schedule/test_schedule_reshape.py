"""Loops across a reshape: replay both ways, inlining, propagation, and where they cannot cross."""

from __future__ import annotations

import pytest

import loopnest as ln
from helpers.schedule_run import assert_computes, leaf, loops, positions, random, state


def chain(old: tuple[int | str, ...], new: tuple[int | str, ...]) -> tuple[ln.Fusion, ...]:
    """Return a fusion with t1 = -x, t2 = t1 in another shape, t3 = t2 * 2, y = t3 + 1."""
    with ln.Fusion("k") as f:
        t1 = -f.input("x", old, ln.float32)
        t2 = ln.reshape(t1, new)
        t3 = t2 * 2.0
        y = f.output(t3 + 1.0, "y")
    return f, t1, t2, t3, y  # type: ignore[return-value]


def test_a_split_shape_splits_the_producer() -> None:
    """x [N, 12] in the shape [N, 3, 4]: y's loops are loops of t1, which is split by 4."""
    f, t1, t2, t3, y = chain(("N", 12), ("N", 3, 4))
    y.split(1, 2)
    t1.compute_at(y, 3)
    assert leaf(t1) == "i:N i:2 i:2 i:4"
    assert (positions(t1, t2, t3), y.produced_at_pos) == ((3, 3, 3), 3)
    assert_computes(f, random(3, 12))


def test_a_merged_shape_merges_the_producer() -> None:
    f, t1, t2, t3, y = chain((4, "N"), ("4 * N",))
    y.split(0, 8)
    t1.compute_at(y, -1)
    assert (leaf(t1), positions(t1, t2, t3)) == ("i:ceildiv(N * 4, 8) i:8", (2, 2, 2))
    assert_computes(f, random(4, 5))


def test_a_loop_over_an_axis_that_keeps_is_shared_without_the_others() -> None:
    """[4, 6] in the shape [8, 3]: 6 is split by 3 alone, and the loop over 4 is left as it is."""
    f, t1, _, _, y = chain(("N", 4, 6), ("N", 8, 3))
    t1.compute_at(y, 1)
    assert (leaf(t1), t1.compute_at_pos) == ("i:N i:4 i:6", 1)
    t1.compute_at(y, 2)
    assert (leaf(t1), t1.compute_at_pos) == ("i:N i:8 i:3", 2)
    assert_computes(f, random(2, 4, 6))


def test_a_history_that_is_the_reshape_crosses_forward() -> None:
    """t1 is split as t2 splits it: the loops of t1 are loops of its consumers."""
    f, t1, t2, t3, y = chain(("N", 12), ("N", 3, 4))
    t1.split(1, 4).reorder({2: 0})
    ln.propagate(t1)
    assert [leaf(t) for t in (t2, t3, y)] == ["i:4 i:N i:3"] * 3
    f.inline_most()
    assert positions(t1, t2, t3) == (3, 3, 3)
    assert_computes(f, random(2, 12))


def test_loops_that_do_not_cross_are_refused_by_the_name_of_the_reshape() -> None:
    f, t1, t2, t3, _ = chain(("N", 12), ("N", 3, 4))
    t1.split(1, 6)
    before = state(f)
    why = (
        "the loops cannot cross the reshape T2: its split by 4 would have to give way; take loops "
        "over axes that T2 does not reshape, or split and merge them as it does"
    )
    calls = {
        "propagate(T1, -1)": lambda: ln.propagate(t1),
        "replay_casp(T2, T1, 2)": lambda: ln.replay_casp(t2, t1, 2),
    }
    for call, made in calls.items():
        with pytest.raises(ln.ScheduleError) as caught:
            made()
        assert str(caught.value) == f"{call}: {why}"
        assert state(f) == before
    ln.propagate(t1, 1)
    f.inline_most()
    assert positions(t1, t2, t3) == (1, 3, 3)
    assert_computes(f, random(2, 12))


def test_a_consumer_beside_the_reshape_is_dragged_along_or_refused() -> None:
    """z has the loops of t1, which t2's consumers give: the other user follows them."""
    with ln.Fusion("k") as f:
        t1 = -f.input("x", ("N", 12), ln.float32)
        y = f.output(ln.reshape(t1, ("N", 3, 4)) + 1.0, "y")
        z = f.output(t1 * 3.0, "z")
    y.split(0, 2)
    t1.compute_at(y, 3)
    assert (leaf(z), t1.compute_at_pos) == ("i:ceildiv(N, 2) i:2 i:3 i:4", 3)
    assert_computes(f, random(3, 12))
    with ln.Fusion("k") as f:
        t1 = -f.input("x", ("N", 12), ln.float32)
        y = f.output(ln.reshape(t1, ("N", 3, 4)) + 1.0, "y")
        z = f.output(t1 * 3.0, "z")
    z.split(1, 6)
    with pytest.raises(ln.ScheduleError, match="cannot cross the reshape T2: its split by 4"):
        t1.compute_at(z, 3)


def test_root_maps_are_those_of_the_operand_and_of_the_shape() -> None:
    _, t1, t2, t3, _ = chain(("N", 12), ("N", 3, 4))
    assert [b in t2.root_domain for b in ln.root_map(t1, t2).values()] == [True, True]
    assert list(ln.root_map(t2, t3)) == list(t2.rfactor_domain)
    assert [str(axis.extent) for axis in t2.root_domain] == ["N", "12"]


def test_caches_and_recomputation_keep_the_shape() -> None:
    f, t1, t2, _, y = chain(("N", 12), ("N", 3, 4))
    cached = t2.cache_before()
    after = cached.cache_after()
    t1.compute_at(y, -1)
    f.inline_most()
    assert [tuple(map(str, t.shape)) for t in (cached, after)] == [("N", "3", "4")] * 2
    assert_computes(f, random(2, 12))
    with ln.Fusion("k") as f:
        square = ln.reshape(-f.input("x", (16,), ln.float32), (4, 4))
        y = f.output(square + ln.permute(square, (1, 0)), "y")
    square.compute_at(y, 1, recompute=True)
    assert [clone.shape for clone in square.clones] == [(4, 4)]
    assert_computes(f, random(16))


def test_a_reduction_over_a_part_of_an_axis() -> None:
    """The mean over groups of channels, of a tensor whose channels and pixels are two axes."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 8, "P"), ln.float32)
        t = x * 2.0
        groups = ln.reshape(t, ("N", 4, -1))
        y = f.output(ln.mean(groups, 2), "y")
    total = y.producers[0]
    total.split(2, 32)
    partial = total.rfactor(2)
    y.split(0, 2)
    total.compute_at(y, -1)
    partial.compute_at(total, -1)
    t.compute_at(partial, -1)
    assert groups.compute_at_pos == 5
    assert_computes(f, random(3, 8, 7))
    assert loops(f)
