"""Loops across a reshape: replay both ways, inlining, propagation, and where they cannot cross."""

from __future__ import annotations

import pytest

import loopnest as ln
from helpers.schedule_run import (
    assert_computes,
    leaf,
    loops,
    positions,
    random,
    refused,
    state,
)


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


def there_and_back() -> tuple[ln.Fusion, ln.TensorView, ln.TensorView, ln.TensorView]:
    """Return a fusion with the rows of x centered in groups of 4 channels, and put back."""
    with ln.Fusion("k") as f:
        x, w = f.input("x", ("N", "C", "P"), ln.float32), f.input("w", ("C",), ln.float32)
        f.assume("C % 4 == 0")
        rows = ln.reshape(x, ("N", 4, -1))
        total = ln.sum(rows, 2)
        centered = rows - ln.broadcast(total, (False, False, True))
        back = ln.reshape(centered, x.shape)
        y = f.output(back * ln.broadcast(w, (False, True)), "y")
    return f, total, centered, y


def test_a_reshape_that_another_turns_back_keeps_the_loops() -> None:
    """y is split into the groups again: they are those of the sum, which a reshape took away."""
    f, total, centered, y = there_and_back()
    y.split(1, 4, inner=False)
    y.merge(2)
    total.compute_at(y, 2)
    ln.propagate(y)
    f.inline_most()
    assert leaf(total) == "i:N i:4 r:C // 4 * P"
    assert leaf(centered) == "i:N i:4 i:C // 4 * P"
    assert positions(total, centered) == (2, 3)
    assert_computes(f, random(2, 8, 3), random(8))


def test_what_is_split_further_goes_on_from_there() -> None:
    f, total, centered, y = there_and_back()
    y.split(1, 4, inner=False)
    y.merge(2).split(2, 8)
    centered.compute_at(y, 4)
    total.compute_at(y, 2)
    f.inline_most()
    assert leaf(centered) == "i:N i:4 i:ceildiv(C // 4 * P, 8) i:8"
    assert (total.compute_at_pos, centered.compute_at_pos) == (2, 4)
    assert_computes(f, random(2, 8, 3), random(8))


def test_a_flattened_tensor_and_its_source_share_loops_again() -> None:
    """t is read in a flat shape and as it is: both ways, its loops are the same."""
    with ln.Fusion("k") as f:
        t = -f.input("x", ("N", 6), ln.float32)
        flat = ln.reshape(t, ("N * 6",)) * 2.0
        y = f.output(ln.reshape(flat, t.shape) + t, "y")
    y.split(1, 2)
    t.compute_at(y, 3)
    f.inline_most()
    assert (leaf(t), t.compute_at_pos, flat.compute_at_pos) == ("i:N i:3 i:2", 3, 3)
    assert_computes(f, random(4, 6))


def test_a_size_that_an_assumption_relates_to_another_is_its_quotient() -> None:
    """N == T * 16: an axis of N split by 16 has the loops of [T, 16], and no test of its end."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        f.symbol("T")
        f.assume("N == T * 16")
        e = f.input("e", ("T",), ln.float32)
        tiles = ln.reshape(x, ("T", 16, "D")) * ln.broadcast(e, (False, True, True))
        y = f.output(ln.reshape(tiles, x.shape), "y")
    y.split(0, 16)
    tiles.compute_at(y, 2)
    f.inline_most()
    assert "if " not in str(ln.lower(f))
    assert_computes(f, random(32, 5), random(2))
    assert ln.verify(ln.lower(f)).all_sizes


def test_a_row_that_a_repetition_takes_apart_shares_no_loop() -> None:
    """Of 4 * M rows of parts of repeated elements none has a row of x."""
    with ln.Fusion("k") as f:
        t = f.input("x", ("M", "M"), ln.float32) * 2.0
        flat = ln.flatten(t)
        wide = ln.expand(ln.broadcast(flat, (False, True)), (flat.shape[0], 4))
        y = f.output(ln.flatten(wide), "y")
    y.split(0, "M")
    before = state(f)
    message = (
        f"{t.name}.compute_at(y, 1): loop 0 of {t.name} is an axis that the reshape {flat.name} "
        f"took and a split makes again, but in the loops around {flat.name} its elements are "
        "repeated before that split; compute it outside of that loop, or give the repetition a "
        "loop of its own"
    )
    with refused(message):
        t.compute_at(y, 1)
    assert state(f) == before
    ln.propagate(y)
    f.inline_most()
    assert flat.compute_at_pos == 2
    assert t.compute_at_pos == 0
    assert_computes(f, random(3, 3))
    assert ln.verify(ln.lower(f)).ok


def test_a_repetition_outside_of_the_rows_leaves_them() -> None:
    with ln.Fusion("k") as f:
        t = f.input("x", ("M", "M"), ln.float32) * 2.0
        flat = ln.flatten(t)
        wide = ln.expand(ln.broadcast(flat, (True, False)), (4, flat.shape[0]))
        y = f.output(wide + 1.0, "y")
    y.split(1, "M")
    y.merge(0)
    t.compute_at(y, 1)
    assert (leaf(y), positions(t, flat)) == ("i:M * 4 i:M", (1, 1))
    assert_computes(f, random(3, 3))
    assert ln.verify(ln.lower(f)).ok
