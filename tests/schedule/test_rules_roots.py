"""The rules of root maps: which axes of neighbours are one axis of the math, and what follows."""

from __future__ import annotations

import re

import pytest

import loopnest as ln
from helpers.schedule_run import (
    assert_computes,
    body,
    leaf,
    loops,
    mapped,
    nest,
    positions,
    random,
    state,
)

# 16, 17: pairs of neighbours


def test_rule_16_axes_map_by_position_past_new_broadcasts() -> None:
    """T1 = bc(T0, {T, F}), T2 = bc(T1, {T, F, F}): the b of T1 is axis 1 of T2, not 0."""
    with ln.Fusion("k") as f:
        t0 = f.input("x", ("I",), ln.float32)
        t1 = ln.broadcast(t0, (True, False))
        t2 = f.output(ln.broadcast(t1, (True, False, False)), "y")
    assert mapped(t0, t1) == {0: 1}
    assert mapped(t1, t2) == {0: 1, 1: 2}


def test_rule_16_permute_maps_through_its_order() -> None:
    """New axis i of a permutation is old axis order[i]."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J", "K"), ln.float32)
        y = f.output(ln.permute(x, (2, 0, 1)), "y")
    assert mapped(x, y) == {0: 1, 1: 2, 2: 0}


def test_rule_16_the_producers_reductions_stand_in_no_pair() -> None:
    """The producer's axes without its reductions map, those of its rfactor domain."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "R", "K"), ln.float32)
        total = ln.sum(x, axis=1)
        y = f.output(total * 2.0, "y")
    assert mapped(x, total) == {0: 0, 1: 1, 2: 2}
    assert mapped(total, y) == {0: 0, 1: 1}
    total.split(1, 4)
    partial = total.rfactor(1)
    assert [a.kind.letter for a in partial.root_domain] == ["i", "r", "i"]
    assert [a.kind.letter for a in partial.rfactor_domain] == ["i", "r", "i", "i"]
    assert mapped(x, partial) == {0: 0, 1: 1, 2: 2}
    assert mapped(partial, total) == {0: 0, 1: 1, 2: 2}
    assert [a.kind.letter for a in total.root_domain] == ["i", "r", "i"]


def test_rule_16_squeezed_axes_stand_in_no_pair() -> None:
    """An axis that the consumer drops has no partner."""
    with ln.Fusion("k") as f:
        x = f.input("x", (1, "I", 1), ln.float32)
        y = f.output(ln.squeeze(x, 0), "y")
    assert mapped(x, y) == {1: 0, 2: 1}


def test_rule_17_a_sum_then_a_broadcast_maps_to_no_new_axis() -> None:
    """T1 = sum(T0), T2 = bc(T1): T0's axis 1 is T1's reduction; neither is T2's new b."""
    with ln.Fusion("k") as f:
        t0 = f.input("x", ("I", "J"), ln.float32)
        t2 = f.output(ln.sum(t0, axis=1, keepdims=True), "y")
        t1 = t2.reduction
    assert t1 is not None
    assert mapped(t0, t1) == {0: 0, 1: 1}
    assert t1.root_domain[1].is_reduction
    assert mapped(t1, t2) == {0: 0}
    assert t2.root_domain[1].is_broadcast


# 18 to 20: broadcasts inside shared loops


def two_ways(*, joined: bool) -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return T1[I], T2 = [b, I], T3 = [I, b], and T4 = T2 + T3 or two outputs."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        t1 = x * 2.0
        t2 = ln.broadcast(t1, (True, False))
        t3 = ln.broadcast(t1, (False, True))
        if joined:
            return f, [t1, t2, t3, f.output(t2 + t3, "y")]
        return f, [t1, f.output(t2, "a"), f.output(t3, "b")]


def test_rule_18_one_axis_used_two_ways_raises() -> None:
    """T1 at 1 of T4, and at -1 of T3, would make the two axes of T4 one."""
    f, (t1, _, t3, t4) = two_ways(joined=True)
    before = state(f)
    with pytest.raises(ln.ScheduleError, match=r"^T1\.compute_at\(y, 1\): .*recomputed"):
        t1.compute_at(t4, 1)
    with pytest.raises(ln.ScheduleError, match=r"^T1\.compute_at\(T3, -1\): .*recomputed"):
        t1.compute_at(t3, -1)
    assert state(f) == before
    assert_computes(f, random(4))


def test_rule_18_one_axis_used_two_ways_by_separate_outputs_is_allowed() -> None:
    """With T2 and T3 as separate outputs, T1 shares its loop with both."""
    f, (t1, t2, t3) = two_ways(joined=False)
    t1.compute_at(t3, 1)
    assert positions(t1) == (1,)
    assert (leaf(t2), leaf(t3)) == ("i:I b:1", "i:I b:1")
    assert loops(f) == ["for I", "  T1", "  a", "  b"]
    assert_computes(f, random(4))


def test_rule_18_to_recompute_is_allowed() -> None:
    """Where T1 is cloned for one of the two, the other computes it in its loops."""
    f, (t1, _, _, t4) = two_ways(joined=True)
    t1.compute_at(t4, 1, recompute=True)
    assert positions(t1) == (1,)
    assert len(t1.clones) == 1
    assert_computes(f, random(4))


def two_extents(a: str, b: str, *facts: str) -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return T3 = bc(T0, {F, T}), y = T3 + u[I, a] and z = T3 + v[I, b]."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        u = f.input("u", ("I", a), ln.float32)
        v = f.input("v", ("I", b), ln.float32)
        t3 = ln.broadcast(x * 2.0, (False, True)).named("t3")
        y, z = f.output(t3 + u, "y"), f.output(t3 + v, "z")
        for fact in facts:
            f.assume(fact)
    return f, [t3, y, z]


def test_rule_19_a_broadcast_made_concrete_with_two_extents_raises() -> None:
    """T4 = T3[I, b] + T1[I, J], T5 = T3 + T2[I, K]: T3 at -1 of T4 raises, at 1 it does not."""
    f, (t3, y, _) = two_extents("J", "K")
    before = state(f)
    message = (
        "t3.compute_at(y, -1): a broadcast axis of t3 would have the extents {} and {} in one "
        "loop, which are not known to be equal, so a tensor would have to be recomputed; pass "
        "recompute=True to clone it for the consumers that cannot share"
    )
    either = "|".join(re.escape(message.format(*order)) for order in (("J", "K"), ("K", "J")))
    with pytest.raises(ln.ScheduleError, match=f"^({either})$"):
        t3.compute_at(y, -1)
    assert state(f) == before
    t3.compute_at(y, 1)
    assert positions(t3) == (1,)
    assert_computes(f, random(3), random(3, 4), random(3, 5))


def test_rule_19_extents_that_are_the_same_are_allowed() -> None:
    """One symbol is one extent."""
    f, (t3, y, _) = two_extents("J", "J")
    t3.compute_at(y, -1)
    assert positions(t3) == (2,)
    assert loops(f) == ["for I", "  T3", "for I", "  for J", "    t3", "    y", "    z"]
    assert_computes(f, random(3), random(3, 4), random(3, 4, seed=1))


def test_rule_19_extents_that_are_assumed_equal_are_allowed() -> None:
    """An assumption proves two symbols equal."""
    f, (t3, y, _) = two_extents("J", "K", "J == K")
    t3.compute_at(y, -1)
    assert positions(t3) == (2,)
    assert_computes(f, random(3), random(3, 4), random(3, 4, seed=1))


def test_rule_19_static_extents_that_differ_raise() -> None:
    """Two static extents are compared."""
    with ln.Fusion("k") as f:
        x = f.input("x", (3,), ln.float32)
        u, v = f.input("u", (3, 4), ln.float32), f.input("v", (3, 5), ln.float32)
        t3 = ln.broadcast(x * 2.0, (False, True))
        y = f.output(t3 + u, "y")
        f.output(t3 + v, "z")
    with pytest.raises(ln.ScheduleError, match=r"the extents (4 and 5|5 and 4) in one loop"):
        t3.compute_at(y, 2)


def test_rule_20_a_broadcast_that_never_becomes_concrete_is_its_own_axis() -> None:
    """[I, b] read by nobody who extends it keeps an axis of extent 1."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        t1 = x * 2.0
        t2 = ln.broadcast(t1, (False, True))
        y = f.output(ln.exp(t2), "y")
    y.merge(0)
    t1.compute_at(y, -1)
    assert positions(t1, t2, y) == (1, 1, 0)
    assert y.axis(0).extent.name == "I"  # type: ignore[union-attr]
    assert loops(f) == ["for I", "  T1", "  T2", "  y"]
    assert_computes(f, random(4))


# 21 to 24: reductions


def softmax() -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return T1 = sum, T2 = bc, T3 = x - T2, T4 = exp, T5 = sum, T6 = bc, T7 = T6 - T4."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t2 = ln.sum(x, axis=1, keepdims=True)
        t4 = ln.exp(x - t2)
        t6 = ln.sum(t4, axis=1, keepdims=True)
        f.output(t6 - t4, "y")
    return f, list(f.tensors[1:])


def test_rule_21_softmax_positions_of_compute_at() -> None:
    """T1 at 1 of T7 works: everything shares the row; at -1 it raises."""
    f, tensors = softmax()
    t1, t7 = tensors[0], tensors[-1]
    before = state(f)
    with pytest.raises(ln.ScheduleError, match=r"^T1\.compute_at\(y, -1\): .*recomputed"):
        t1.compute_at(t7, -1)
    assert state(f) == before
    t1.compute_at(t7, 1)
    assert positions(*tensors) == (1, 1, 1, 1, 1, 1, 0)
    assert [line for line in loops(f) if not line.startswith(" ")] == ["for I"]
    assert_computes(f, 0.1 * random(3, 5))


def test_rule_21_softmax_largest_legal_positions() -> None:
    """T1 1, T2 2, T3 2, T4 1 (the reduction and what follows need it), T5 1, T6 2."""
    f, tensors = softmax()
    f.inline_most()
    assert positions(*tensors) == (1, 2, 2, 1, 1, 2, 0)
    assert_computes(f, 0.1 * random(3, 5))


def test_rule_22_no_reduction_lies_inside_the_own_position() -> None:
    """T2[I, R, K] -> T3[I, K]: forward from T2 at 2, T3 gets position 1, and T2 at most 1."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "R", "K"), ln.float32)
        t1 = x + 1.0
        t2 = ln.sum(t1, axis=1)
        t3 = f.output(t2 * 2.0, "y")
    assert ln.replay_casp(t3, t2, 2)[1] == 1
    f.inline_most()
    assert positions(t1, t2, t3) == (3, 1, 0)
    before = state(f)
    message = (
        "T2.inline_at(2): position 2 is beyond the largest legal position 1; inline_at replays "
        "nothing: the leading axes must correspond already; compute_at replays them"
    )
    with pytest.raises(ln.ScheduleError, match=f"^{re.escape(message)}$"):
        t2.inline_at(2)
    assert state(f) == before
    assert_computes(f, random(2, 3, 4))


def test_rule_22_a_reduction_moves_behind_the_shared_axes() -> None:
    """T2.compute_at(T3, 2) is legal: T2 becomes [I, K, R]."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "R", "K"), ln.float32)
        t2 = ln.sum(x, axis=1)
        t3 = f.output(t2 * 2.0, "y")
    t2.compute_at(t3, 2)
    assert leaf(t2) == "i:I i:K r:R"
    assert positions(t2, t3) == (2, 0)
    assert loops(f) == ["for I", "  for K", "    T1", "    for R", "      T1", "    y"]
    assert_computes(f, random(2, 3, 4))


def test_rule_23_inlining_into_a_reduction_is_legal() -> None:
    """T1[I, J, K] at 3 of T2[Io, Ii, R, K]: init loops before r, T1 and the update inside."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "R", "K"), ln.float32)
        t1 = x + 1.0
        t2 = f.output(ln.sum(t1, axis=1), "y")
    t2.split(0, 4)
    t1.compute_at(t2, 3)
    assert positions(t1, t2) == (3, 0)
    assert nest(f) == body("""
        for i0 in ceildiv(I, 4):
          for i1 in 4:
            if i0 * 4 + i1 < I:
              for i2 in K:
                y[i0 * 4 + i1, i2] = 0.0
              for i3 in R:
                T1: float32[K] local
                for i4 in K:
                  T1[i4] = x[i0 * 4 + i1, i3, i4] + 1.0
                for i5 in K:
                  y[i0 * 4 + i1, i5] = y[i0 * 4 + i1, i5] + T1[i5]
    """)
    assert_computes(f, random(5, 3, 2))


def test_rule_24_replay_casp_drops_the_producers_reductions() -> None:
    """A prefix [I, R] of the producer gives position 1 in the consumer; one [R] gives 0."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "R", "K"), ln.float32)
        t1 = ln.sum(x, axis=1)
        y = f.output(t1 * 2.0, "y")
    domain, pos = ln.replay_casp(y, t1, 2)
    assert (leaf(domain), pos) == ("i:I i:K", 1)
    t1.split(1, 4).reorder({1: 0})
    assert ln.replay_casp(y, t1, 1)[1] == 0
    domain, pos = ln.replay_casp(y, t1, 4)
    assert (leaf(domain), pos) == ("i:I i:K", 2)


# 25 to 28: broadcasts


def inserted() -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    """Return T1[I, b] and T2 = bc(T1, {F, T, F}), an output."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", 1), ln.float32)
        t1 = x * 2.0
        t2 = f.output(ln.broadcast(t1, (False, True, False)), "y")
    return f, t1, t2


def test_rule_25_positions_shift_over_inserted_broadcasts() -> None:
    """T1[I, b], T2 = bc(T1, {F, T, F}): axis 1 of T1 is axis 2 of T2."""
    f, t1, t2 = inserted()
    t1.inline_at(2)
    assert (t1.compute_at_pos, t2.produced_at_pos) == (2, 3)
    assert_computes(f, random(4, 1))


def test_rule_25_a_merge_closes_the_shift() -> None:
    """After T2.merge(1, 2), axis 1 of T1 is axis 1 of T2."""
    f, t1, t2 = inserted()
    t2.merge(1, 2)
    t1.inline_at(2)
    assert (t1.compute_at_pos, t2.produced_at_pos) == (2, 2)
    assert_computes(f, random(4, 1))


def test_rule_25_the_shift_in_front() -> None:
    """T1[I], T2 = bc(T1, {T, F}): sharing I means sharing two loops of T2."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        z = f.input("z", ("J", "I"), ln.float32)
        t1 = x * 2.0
        y = f.output(t1 + z, "y")
        t2 = f["T3"]
    t2.compute_at(y, 2)
    t1.inline_at(1)
    assert (t1.compute_at_pos, t2.produced_at_pos, t2.compute_at_pos) == (1, 2, 2)
    assert loops(f) == ["for J", "  for I", "    T2", "    T3", "    y"]
    assert_computes(f, random(4), random(3, 4))


def merged_broadcast() -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return T1[I], T2[I, b], y[I, J] = T2 + z, y and T2 flattened."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        z = f.input("z", ("I", "J"), ln.float32)
        t1 = (x * 2.0).named("t1")
        t2 = ln.broadcast(t1, (False, True)).named("t2")
        y = f.output(t2 + z, "y")
    y.merge(0)
    t2.merge(0)
    return f, [t1, t2, y]


def test_rule_26_a_merged_broadcast_forwards_loops_but_not_indices() -> None:
    """T1[I] shares the loop of T2[I b], flattened to I J; its index is the I part alone."""
    f, (t1, t2, y) = merged_broadcast()
    f.inline_most()
    assert positions(t1, t2, y) == (1, 1, 0)
    assert nest(f) == body("""
        for i0 in I * J:
          t1: float32[1] local
          t2: float32[1] local
          t1[0] = x[i0 // J] * 2.0
          t2[0] = t1[0]
          y.flat[i0] = t2[0] + z.flat[i0]
    """)
    assert_computes(f, random(3), random(3, 4))


def test_rule_26_the_merged_broadcast_stored_whole() -> None:
    """Only T1 shares with T2: the loop is I, since no axis of the group is larger."""
    f, (t1, t2, y) = merged_broadcast()
    t1.inline_at(1)
    assert positions(t1, t2, y) == (1, 0, 0)
    assert loops(f) == ["for I", "  t1", "  t2", "for I * J", "  y"]
    assert_computes(f, random(3), random(3, 4))


def test_rule_27_an_inserted_broadcast_counts() -> None:
    """T2[i0, b1, i2] = bc(T1[i0, i2]), T3[i0, i1, i2]: from T3 at 2, T2 gets 2 and T1 gets 1."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "K"), ln.float32)
        z = f.input("z", ("I", "J", "K"), ln.float32)
        t1 = (x * 2.0).named("t1")
        t2 = ln.broadcast(t1, (False, True, False)).named("t2")
        t3 = f.output(t2 + z, "y")
    assert ln.replay_pasc(t2, t3, 2)[1] == 2
    assert ln.replay_pasc(t1, t2, 2)[1] == 1
    t1.compute_at(t3, 2)
    assert positions(t1, t2, t3) == (1, 2, 0)
    assert_computes(f, random(2, 3), random(2, 4, 3))


def test_rule_27_trailing_broadcasts_count() -> None:
    """T2[i0, b1] fully inlined into T3[i0, i1] has position 2."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        z = f.input("z", ("I", "J"), ln.float32)
        t2 = ln.broadcast(x, (False, True))
        t3 = f.output(t2 + z, "y")
    t2.compute_at(t3, -1)
    assert positions(t2, t3) == (2, 0)
    assert t3.produced_at_pos == 2
    assert_computes(f, random(3), random(3, 4))


def test_rule_28_a_broadcast_that_feeds_axes_inside_and_outside_the_prefix() -> None:
    """T2 = bc(T0, {F, T}), T3.split(1, 128), T0 at 2 of T3: T2 becomes [I, b, b] at 2, T0 at 1."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        z = f.input("z", ("I", "J"), ln.float32)
        t0 = (x * 2.0).named("t0")
        t2 = ln.broadcast(t0, (False, True)).named("t2")
        t3 = f.output(t2 + z, "y")
    t3.split(1, 128)
    t0.compute_at(t3, 2)
    assert leaf(t2) == "i:I b:1 b:1"
    assert positions(t0, t2, t3) == (1, 2, 0)
    assert nest(f) == body("""
        for i0 in I:
          t0: float32[1] local
          t0[0] = x[i0] * 2.0
          for i1 in ceildiv(J, 128):
            t2: float32[1] local
            t2[0] = t0[0]
            for i2 in 128:
              if i1 * 128 + i2 < J:
                y[i0, i1 * 128 + i2] = t2[0] + z[i0, i1 * 128 + i2]
    """)
    assert_computes(f, random(3), random(3, 130))


# 29: reductions over one element


def test_rule_29_a_reduction_of_a_broadcast_axis_is_a_copy() -> None:
    """A sum over a static extent 1 folds nothing: no init, no accumulation."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", 1), ln.float32)
        f.output(ln.sum(x * 2.0, axis=1), "y")
    assert nest(f) == body("""
        T1: float32[I] local
        for i0 in I:
          T1[i0] = x[i0, 0] * 2.0
        for i1 in I:
          y[i1] = T1[i1]
    """)
    assert_computes(f, random(3, 1))


def test_rule_29_a_factored_reduction_over_extent_1_is_a_copy() -> None:
    """What rfactor leaves over an axis of extent 1 is a copy too."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        y = f.output(ln.max(x, axis=1), "y")
    y.split(1, 1)
    y.rfactor(1)
    assert loops(f) == ["for I", "  T2", "  for J", "    T2", "for I", "  y"]
    assert_computes(f, random(3, 4))


def test_rule_29_a_symbol_is_never_taken_for_1() -> None:
    """A symbolic extent that is 1 at run time is reduced like any other."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        f.output(ln.sum(x, axis=1), "y")
    assert loops(f) == ["for I", "  y", "  for J", "    y"]
    assert_computes(f, random(3, 1))
