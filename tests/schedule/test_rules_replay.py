"""The rules of replay and of positions: what a tensor's loops become when it is computed elsewhere.

T[I, J] is a tensor with the axes I and J; a position counts shared leading loops.
"""

from __future__ import annotations

import pytest

import loopnest as ln
from helpers.schedule_run import (
    PT,
    assert_computes,
    body,
    leaf,
    loops,
    nest,
    positions,
    random,
    refused,
    state,
    taken_back,
)


def chain(*shape: str, length: int = 2) -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return x -> T1 -> T2 … of pointwise tensors, the last the output y."""
    with ln.Fusion("chain") as f:
        tensors = [f.input("x", shape, ln.float32)]
        for number in range(length):
            tensors.append(tensors[-1] + float(number + 1))
        f.output(tensors[-1], "y")
    return f, tensors


# 1: what a position means


def test_rule_1_position_shares_leading_loops() -> None:
    """T2.split(0, 4) gives [Io, Ii, J, K]; T1 at 1 of it: one loop io around both."""
    f, (_, t1, y) = chain("I", "J", "K")
    y.split(0, 4)
    t1.compute_at(y, 1)
    assert leaf(t1) == leaf(y) == "i:ceildiv(I, 4) i:4 i:J i:K"
    assert positions(t1, y) == (1, 0)
    assert nest(f) == body("""
        for i0 in ceildiv(I, 4):
          T1: float32[4, J, K] local
          for i1 in 4:
            if i0 * 4 + i1 < I:
              for i2 in J:
                for i3 in K:
                  T1[i1, i2, i3] = x[i0 * 4 + i1, i2, i3] + 1.0
          for i4 in 4:
            if i0 * 4 + i4 < I:
              for i5 in J:
                for i6 in K:
                  y[i0 * 4 + i4, i5, i6] = T1[i4, i5, i6] + 2.0
    """)
    assert_computes(f, random(6, 3, 2))


def test_rule_1_position_0_is_a_nest_of_its_own() -> None:
    """Position 0 leaves two nests."""
    f, (_, t1, y) = chain("I", "J")
    t1.compute_at(y, 0)
    assert positions(t1) == (0,)
    assert loops(f) == ["for I", "  for J", "    T1", "for I", "  for J", "    y"]


def test_rule_1_position_ndim_is_fully_inlined() -> None:
    """Position ndim shares all loops: the buffer holds one element."""
    f, (_, t1, y) = chain("I", "J")
    t1.compute_at(y, 2)
    assert loops(f) == ["for I", "  for J", "    T1", "    y"]
    assert "T1: float32[1] local" in nest(f)


@pytest.mark.parametrize(("pos", "meant"), [(-1, 2), (-2, 1), (-3, 0)])
def test_rule_1_negative_position_counts_from_the_end(pos: int, meant: int) -> None:
    """A negative position stands for pos + ndim + 1."""
    _, (_, t1, y) = chain("I", "J")
    t1.compute_at(y, pos)
    assert positions(t1) == (meant,)


# 2 to 4: which transforms are replayed, in which order


def test_rule_2_only_what_the_prefix_needs_is_replayed() -> None:
    """T2[Io, Ii, Jo, Ji, K]; T1 at 1 of it becomes [Io, Ii, J, K]."""
    f, (_, t1, y) = chain("I", "J", "K")
    y.split(0, 4).split(2, 8)
    t1.compute_at(y, 1)
    assert leaf(y) == "i:ceildiv(I, 4) i:4 i:ceildiv(J, 8) i:8 i:K"
    assert leaf(t1) == "i:ceildiv(I, 4) i:4 i:J i:K"
    assert_computes(f, random(9, 9, 2))


def test_rule_2_steps_past_the_prefix_are_not_replayed() -> None:
    """A split and a merge below the axis that the prefix needs stay the consumer's own.

    The inner axis of the replayed split is no leaf of the consumer: a remainder, it stands last.
    """
    f, (_, t1, y) = chain("I", "J", "K")
    y.split(0, 8).split(1, 2).merge(2, 3)
    t1.compute_at(y, 1)
    assert leaf(y) == "i:ceildiv(I, 8) i:4 i:J * 2 i:K"
    assert leaf(t1) == "i:ceildiv(I, 8) i:J i:K i:8"
    assert_computes(f, random(9, 3, 2))


def test_rule_3_order_is_prefix_then_axes_made_on_the_way() -> None:
    """T2[I, J].split(1, 4) reordered to [Jo, I, Ji]; T1 at 1 of it becomes [Jo, Ji, I]."""
    f, (_, t1, y) = chain("I", "J")
    y.split(1, 4).reorder({1: 0})
    assert leaf(y) == "i:ceildiv(J, 4) i:I i:4"
    t1.compute_at(y, 1)
    assert leaf(t1) == "i:ceildiv(J, 4) i:4 i:I"
    assert_computes(f, random(5, 7))


def test_rule_3_axes_made_on_the_way_stand_in_the_consumers_order() -> None:
    """Past the prefix come the other replayed axes, in the consumer's order."""
    f, (_, t1, y) = chain("I", "J")
    y.split(0, 8).split(0, 2).reorder({2: 1})
    assert leaf(y) == "i:ceildiv(ceildiv(I, 8), 2) i:8 i:2 i:J"
    t1.compute_at(y, 1)
    assert leaf(t1) == leaf(y)
    assert_computes(f, random(35, 2))


def test_rule_3_own_leaves_come_before_remainders() -> None:
    """The producer's surviving leaves come third, what a dropped step leaves over comes last."""
    f, (_, t1, y) = chain("I", "J", "K")
    t1.split(2, 8).merge(0)
    assert leaf(t1) == "i:I * J i:ceildiv(K, 8) i:8"
    y.split(0, 4)
    t1.compute_at(y, 1)
    assert leaf(t1) == "i:ceildiv(I, 4) i:4 i:ceildiv(K, 8) i:8 i:J"
    assert_computes(f, random(6, 2, 9))


def test_rule_4_a_history_that_matches_is_reused() -> None:
    """A split by the same factor is not replayed twice: the axes stay the same objects."""
    f, (_, t1, y) = chain("I", "J")
    t1.split(0, 4).split(1, 2)
    y.split(0, 4)
    before = t1.leaf_domain
    t1.compute_at(y, 1)
    assert t1.leaf_domain == before
    assert leaf(t1) == "i:ceildiv(I, 4) i:2 i:2 i:J"
    assert_computes(f, random(7, 2))


def test_rule_4_a_history_that_differs_gives_way() -> None:
    """T1.split(0, 8), T2.split(0, 4), T1 at 1 of T2: T1 becomes [ceil(I / 4), 4]."""
    f, (_, t1, y) = chain("I")
    t1.split(0, 8)
    y.split(0, 4)
    t1.compute_at(y, 1)
    assert leaf(t1) == "i:ceildiv(I, 4) i:4"
    assert_computes(f, random(11))


def test_rule_4_inner_and_outer_splits_are_different_steps() -> None:
    """A split by an inner 4 does not match a split by an outer 4."""
    f, (_, t1, y) = chain("I")
    t1.split(0, 4, inner=False)
    y.split(0, 4)
    t1.compute_at(y, 1)
    assert leaf(t1) == "i:ceildiv(I, 4) i:4"
    assert_computes(f, random(11))


def test_rule_4_a_step_below_a_shared_axis_gives_way() -> None:
    """The producer's own split of an axis that it must share whole gives way."""
    f, (_, t1, y) = chain("I", "J")
    t1.split(0, 4).split(1, 2)
    y.split(0, 4)
    t1.compute_at(y, 2)
    assert leaf(t1) == "i:ceildiv(I, 4) i:4 i:J"
    assert_computes(f, random(7, 2))


# 5, 6: inputs, and what must raise


def test_rule_5_on_an_input_its_users_are_placed() -> None:
    """compute_at of a fusion input acts on the input's users on the way to the consumer."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t1 = x + 1.0
        t2 = x * 2.0
        y = f.output(t1 + t2, "y")
        aside = f.output(ln.exp(x), "z")
    y.split(0, 4)
    assert x.compute_at(y, 1) is x
    assert positions(x, t1, t2, aside) == (0, 1, 1, 0)
    assert leaf(t1) == leaf(t2) == "i:ceildiv(I, 4) i:4 i:J"
    assert leaf(x) == leaf(aside) == "i:I i:J"
    assert_computes(f, random(5, 3))


def test_rule_5_an_input_read_by_the_consumer_alone() -> None:
    """Where the input's only user is the consumer, there is nothing to do."""
    f, (x, y) = chain("I", length=1)
    x.compute_at(y, 1)
    assert positions(x, y) == (0, 0)
    assert len(f.trace) == 1


def test_rule_6_what_must_raise() -> None:
    """At itself, without dependency, out of range, of another fusion: an error, and no change."""
    f, (_, t1, y) = chain("I", "J")
    other, (_, _, z) = chain("I", "J")
    with f:
        aside = f.output(f["x"] * 3.0, "w")
    before, there = state(f), state(other)
    with refused(
        "T1.compute_at(T1, 1): a tensor cannot be computed at itself; name one of its consumers"
    ):
        t1.compute_at(t1, 1)
    with refused(
        "T1.compute_at(w, 1): w does not depend on T1; "
        "compute_at takes a tensor that is computed from the producer"
    ):
        t1.compute_at(aside, 1)
    with refused(
        "y.compute_at(T1, 1): T1 does not depend on y; "
        "compute_at takes a tensor that is computed from the producer"
    ):
        y.compute_at(t1, 1)
    for pos in (3, -4):
        with refused(
            f"T1.compute_at(y, {pos}): position {pos} is out of range; "
            "y has the leaf axes [i0, i1], so use -3..2"
        ):
            t1.compute_at(y, pos)
    with refused(
        "T1.compute_at(y, 1): y belongs to fusion chain, not chain; "
        "both must be tensors of one fusion"
    ):
        t1.compute_at(z, 1)
    assert state(f) == before
    assert state(other) == there


def test_rule_6_the_targets_own_domain_never_changes() -> None:
    """The target keeps its domain, whatever the producer's is."""
    _, (_, t1, y) = chain("I", "J")
    t1.split(0, 8).reorder({2: 0})
    domain = y.domain
    t1.compute_at(y, 2)
    assert y.domain is domain
    assert leaf(t1) == "i:I i:J"


# 7 to 9: positions only grow, one position a pass, frozen prefixes


def test_rule_7_positions_only_grow() -> None:
    """compute_at(c, 2), then compute_at(c, 1), leaves 2."""
    f, (_, t1, y) = chain("I", "J")
    t1.compute_at(y, 2)
    before = state(f)[5:]
    t1.compute_at(y, 1)
    assert positions(t1) == (2,)
    assert state(f)[5:] == before


def test_rule_7_a_pass_that_breaks_a_set_prefix_raises() -> None:
    """T1 is at 1 of T2[I, J]; T3[Io, Ii, J] asks T2, and so T1, for other leading loops."""
    f, (_, t1, t2, y) = chain("I", "J", length=3)
    t1.compute_at(t2, 1)
    y.split(0, 4)
    before = state(f)
    with refused(
        "T2.compute_at(y, 1): it would change the leading 1 loops of T2, which are shared "
        "already (compute_at_pos 0, produced_at_pos 1); split, merge and reorder T2 in the "
        "same way first, or " + taken_back(f, 0)
    ):
        t2.compute_at(y, 1)
    assert state(f) == before


def test_rule_7_a_pass_that_keeps_a_set_prefix_succeeds() -> None:
    """A deeper position with the same leading loops is no break."""
    f, (_, t1, t2, y) = chain("I", "J", length=3)
    t1.compute_at(t2, 1)
    t2.compute_at(y, 1)
    t1.compute_at(y, 2)
    assert positions(t1, t2, y) == (2, 2, 0)
    assert_computes(f, random(3, 4))


def test_rule_8_two_positions_for_one_tensor_raise() -> None:
    """T1 is summed over its first axis and read again: at 1 it would have to be recomputed."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t1 = ln.exp(x)
        total = ln.sum(t1, axis=0, keepdims=True)
        y = f.output(t1 / total, "y")
    before = state(f)
    with refused(
        "T1.compute_at(y, 1): T3 reads T2 (compute_at_pos 0) inside a loop that still "
        "computes T2, so a tensor would have to be recomputed; pass recompute=True to "
        "clone it for the consumers that cannot share"
    ):
        t1.compute_at(y, 1)
    assert state(f) == before
    t1.compute_at(y, 1, recompute=True)
    assert positions(t1) == (1,)
    assert [t.name for t in t1.clones] == ["T1_2"]
    assert_computes(f, random(4, 3))


def test_rule_9_the_shared_prefix_is_frozen_for_both() -> None:
    """split, merge and reorder left of the shared position raise, on producer and consumer."""
    f, (_, t1, y) = chain("I", "J", "K")
    t1.compute_at(y, 2)
    before = state(f)
    for tensor, ca, produced in ((t1, 2, 0), (y, 0, 2)):
        why = (
            f"the leading 2 of the leaf axes [i0, i1, i2] of {tensor.name} are frozen: their loops "
            f"are shared by computeAt (compute_at_pos {ca}, produced_at_pos {produced}); change "
            f"only axes from position 2 on, or {taken_back(f, 0)}"
        )
        with refused(f"{tensor.name}.split(axis=1, factor=4): {why}"):
            tensor.split(1, 4)
        with refused(f"{tensor.name}.split(axis=-2, factor=4, inner=False): {why}"):
            tensor.split(-2, 4, inner=False)
        with refused(f"{tensor.name}.merge(0): {why}"):
            tensor.merge(0)
        with refused(f"{tensor.name}.merge(1): {why}"):
            tensor.merge(1)
        with refused(f"{tensor.name}.merge(2, 1): {why}"):
            tensor.merge(2, 1)
        with refused(f"{tensor.name}.reorder({{2: 0}}): {why}"):
            tensor.reorder({2: 0})
        with refused(f"{tensor.name}.reorder([0, 2, 1]): {why}"):
            tensor.reorder([0, 2, 1])
    assert state(f) == before


def test_rule_9_axes_right_of_the_prefix_are_free() -> None:
    """Right of the shared prefix each tensor is scheduled alone."""
    f, (_, t1, y) = chain("I", "J", "K")
    t1.compute_at(y, 1)
    t1.split(2, 4).reorder({3: 1})
    y.merge(1)
    t1.axis(0).parallelize(PT.serial)
    assert leaf(t1) == "i:I i:4 i:J i:ceildiv(K, 4)"
    assert leaf(y) == "i:I i:J * K"
    assert_computes(f, random(2, 3, 5))


def test_rule_9_freezes_up_to_the_larger_of_both_positions() -> None:
    """The larger of the own position and the largest position of a producer counts."""
    f, (_, t1, t2, y) = chain("I", "J", "K", length=3)
    t2.compute_at(y, 1)
    t1.compute_at(t2, 3)
    assert (t2.compute_at_pos, t2.produced_at_pos) == (1, 3)
    before = state(f)
    with refused(
        "T2.split(axis=2, factor=4): the leading 3 of the leaf axes [i0, i1, i2] of T2 "
        "are frozen: their loops are shared by computeAt (compute_at_pos 1, "
        "produced_at_pos 3); change only axes from position 3 on, or " + taken_back(f, 0, 1)
    ):
        t2.split(2, 4)
    assert state(f) == before
