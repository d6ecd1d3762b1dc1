"""The rules of use chains: which tensors one compute_at places, where, and along which path."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pytest

import loopnest as ln
from helpers.schedule_run import assert_computes, body, leaf, loops, nest, positions, random, state

# 10 to 13: side consumers, common consumers, several outputs


def test_rule_10_a_side_consumer_is_dragged_along() -> None:
    """T2 = -T1, T3 = -2 T1, both outputs: T1 at 1 of the split T3 puts all three in one loop."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        t1 = x * 0.5
        t2 = f.output(t1 * -1.0, "a")
        t3 = f.output(t1 * -2.0, "b")
    t3.split(0, 128)
    t1.compute_at(t3, 1)
    assert leaf(t1) == leaf(t2) == leaf(t3) == "i:ceildiv(I, 128) i:128"
    assert positions(t1, t2, t3) == (1, 0, 0)
    assert nest(f) == body("""
        for i0 in ceildiv(I, 128):
          T1: float32[128] local
          for i1 in 128:
            if i0 * 128 + i1 < I:
              T1[i1] = x[i0 * 128 + i1] * 0.5
          for i2 in 128:
            if i0 * 128 + i2 < I:
              a[i0 * 128 + i2] = T1[i2] * -1.0
          for i3 in 128:
            if i0 * 128 + i3 < I:
              b[i0 * 128 + i3] = T1[i3] * -2.0
    """)
    assert_computes(f, random(130))


def test_rule_11_the_first_common_consumer_stops_the_propagation() -> None:
    """With T4 = T2 + T3 and T5 = 5 T4: T4 becomes 2-D, T5 stays untouched."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        t1 = x * 0.5
        t2, t3 = t1 * -1.0, t1 * -2.0
        t4 = t2 + t3
        t5 = f.output(t4 * 5.0, "y")
    t3.split(0, 128)
    t1.compute_at(t3, 1)
    for tensor in (t1, t2, t3, t4):
        assert leaf(tensor) == "i:ceildiv(I, 128) i:128"
    assert leaf(t5) == "i:I"
    assert positions(t1, t2, t3, t4, t5) == (1, 1, 1, 0, 0)
    inner = [
        line
        for number in (1, 2, 3, 4)
        for line in ("  for 128", f"    if i0 * 128 + i{number} < I", f"      T{number}")
    ]
    assert loops(f) == ["for ceildiv(I, 128)", *inner, "for I", "  y"]
    assert_computes(f, random(130))


def test_rule_11_the_target_may_be_the_first_common_consumer() -> None:
    """T1.compute_at(T4, 1) stops at T4 itself."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        t1 = x * 0.5
        t2, t3 = t1 * -1.0, t1 * -2.0
        t4 = t2 + t3
        t5 = f.output(t4 * 5.0, "y")
    t4.split(0, 8)
    t1.compute_at(t4, 2)
    assert positions(t1, t2, t3, t4, t5) == (2, 2, 2, 0, 0)
    assert leaf(t5) == "i:I"
    assert_computes(f, random(13))


def test_rule_11_a_common_consumer_before_the_target_does_not_stop_it() -> None:
    """Only a common consumer at or after the target counts."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        t1 = x * 0.5
        t4 = t1 * -1.0 + t1 * -2.0
        t5 = f.output(t4 * 5.0, "y")
    t5.split(0, 8)
    t1.compute_at(t5, 1)
    assert [leaf(t) for t in f.tensors[1:]] == ["i:ceildiv(I, 8) i:8"] * 5
    assert positions(t1, t4, t5) == (1, 1, 0)
    assert_computes(f, random(13))


def test_rule_12_with_no_common_consumer_all_use_chains_are_replayed() -> None:
    """The terminal outputs come to share the loops, through chains of any length."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t1 = x * 0.5
        a = f.output(ln.exp(ln.sin(t1)), "a")
        b = f.output(ln.cos(t1), "b")
        c = f.output(ln.sum(t1, axis=1), "c")
    b.split(0, 4)
    t1.compute_at(b, 1)
    sin = f["T2"]
    assert leaf(t1) == leaf(sin) == leaf(a) == "i:ceildiv(I, 4) i:4 i:J"
    assert leaf(c) == "i:ceildiv(I, 4) i:4 r:J"
    assert positions(t1, sin, a, b, c) == (1, 1, 0, 0, 0)
    assert [line for line in loops(f) if not line.startswith(" ")] == ["for ceildiv(I, 4)"]
    assert_computes(f, random(7, 3))


def test_rule_13_an_output_that_another_consumes_is_not_terminal() -> None:
    """T1 -> a -> b with outputs a and b, and T1 -> b: no cycle, one nest."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        t1 = x * 0.5
        a = f.output(ln.exp(t1), "a")
        b = f.output(a * t1, "b")
    t1.compute_at(a, 1)
    assert positions(t1, a, b) == (1, 1, 0)
    assert loops(f) == ["for I", "  T1", "  a", "  b"]
    assert_computes(f, random(5))


def test_rule_13_an_output_may_be_computed_at_the_output_that_reads_it() -> None:
    """An output that another tensor consumes is placed like an intermediate."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        a = f.output(ln.exp(x), "a")
        b = f.output(ln.sum(a, axis=1), "b")
    a.compute_at(b, -1)
    assert positions(a, b) == (2, 0)
    assert nest(f) == body("""
        for i0 in I:
          b[i0] = 0.0
          for i1 in J:
            a[i0, i1] = exp(x[i0, i1])
            b[i0] = b[i0] + a[i0, i1]
    """)
    assert_computes(f, random(3, 4))


# 14, 15: several outputs of one expression; own and frozen positions


def test_rule_14_outputs_of_one_expression_share_the_least_position() -> None:
    """The mean could lie at 2 of its consumer, the variance at 1 of its own: all get 1."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J", "K"), ln.float32)
        mean, var, count = ln.welford(x * 2.0, axis=2)
        a = f.output(mean + 1.0, "a")
        b = f.output(var + 1.0, "b")
    b.split(1, 4)
    f.inline_most()
    assert positions(mean, var, count) == (1, 1, 1)
    assert (a.produced_at_pos, b.produced_at_pos) == (1, 1)
    assert_computes(f, random(2, 5, 3))


def test_rule_14_compute_at_moves_all_outputs_of_the_expression() -> None:
    """One call on the mean places and replays variance and count too."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "K"), ln.float32)
        mean, var, count = ln.welford(x * 2.0, axis=1)
        a = f.output(mean + 1.0, "a")
        b = f.output(var + 1.0, "b")
    a.split(0, 4)
    mean.compute_at(a, 1)
    for tensor in (mean, var, count):
        assert leaf(tensor) == "i:ceildiv(I, 4) i:4 r:K"
    assert leaf(b) == "i:ceildiv(I, 4) i:4"
    assert positions(mean, var, count) == (1, 1, 1)
    assert (a.produced_at_pos, b.produced_at_pos) == (1, 1)
    assert_computes(f, random(6, 3))


def test_rule_15_the_frozen_prefix_is_the_largest_of_the_producers_positions() -> None:
    """T3 = T1 + T2 with [I, Jo, Ji], T1 at 3 and T2 at 2: the frozen prefix of T3 is 3."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t1, t2 = x + 1.0, x * 2.0
        t3 = f.output(t1 + t2, "y")
    t3.split(1, 4)
    t1.compute_at(t3, 3)
    t2.compute_at(t3, 2)
    assert positions(t1, t2, t3) == (3, 2, 0)
    assert t3.produced_at_pos == 3
    assert (t1.produced_at_pos, t2.produced_at_pos) == (0, 0)
    assert_computes(f, random(3, 6))


def test_rule_15_a_tensor_keeps_its_own_position() -> None:
    """A producer computed deeper into it does not move a tensor."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t1 = x + 1.0
        t2 = ln.exp(t1)
        y = f.output(t2 * 3.0, "y")
    t2.compute_at(y, 1)
    t1.compute_at(t2, 2)
    assert positions(t1, t2) == (2, 1)
    assert (t2.produced_at_pos, y.produced_at_pos) == (2, 1)
    assert loops(f) == ["for I", "  for J", "    T1", "    T2", "  for J", "    y"]


# The terms: chains and common consumers


def note_example() -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return T1 = 2 T0, T3 = T1 + T2, T4 = T3 T0, T5 = T3 - T4."""
    with ln.Fusion("note") as f:
        t0 = f.input("t0", ("I",), ln.float32)
        t2 = f.input("t2", ("I",), ln.float32)
        t1 = (t0 * 2.0).named("t1")
        t3 = (t1 + t2).named("t3")
        t4 = (t3 * t0).named("t4")
        t5 = f.output(t3 - t4, "t5")
    return f, [t0, t1, t2, t3, t4, t5]


def names(chains: Iterable[tuple[ln.TensorView, ...]]) -> list[str]:
    return [" ".join(t.name for t in chain) for chain in chains]


def test_terms_dependency_chain_use_chain_common_consumer() -> None:
    """A dependency chain is a path between two tensors; use chains end at terminal outputs.

    A common consumer lies on every use chain.
    """
    _, (t0, t1, t2, t3, t4, t5) = note_example()
    found = sorted(names(ln.dependency_chains(t0, t5)))
    assert found == ["t0 t1 t3 t4 t5", "t0 t1 t3 t5", "t0 t4 t5"]
    assert sorted(names(ln.use_chains(t3))) == ["t3 t4 t5", "t3 t5"]
    assert names([ln.common_consumers(t3)]) == ["t5"]
    assert names([ln.common_consumers(t1)]) == ["t3 t5"]
    assert names([ln.common_consumers(t2)]) == ["t3 t5"]
    assert names([ln.common_consumers(t0)]) == ["t5"]
    assert names([ln.common_consumers(t4)]) == ["t5"]
    assert ln.common_consumers(t5) == ()
    assert list(ln.dependency_chains(t4, t1)) == []
    assert list(ln.use_chains(t5)) == [(t5,)]
    assert list(ln.dependency_chains(t3, t3)) == [(t3,)]


def test_terms_an_output_that_is_consumed_ends_no_use_chain() -> None:
    """Use chains pass through outputs that another tensor consumes."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        a = f.output(x * 2.0, "a")
        b = f.output(a + 1.0, "b")
    assert list(ln.use_chains(x)) == [(x, a, b)]
    assert ln.common_consumers(x) == (a, b)


def test_terms_tensors_that_no_output_needs_do_not_count() -> None:
    """A tensor that leads to no output is on no use chain."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        t1 = x * 2.0
        a = f.output(ln.exp(t1), "a")
        b = f.output(ln.sin(t1), "b")
        ln.cos(a)
    assert list(ln.use_chains(t1)) == [(t1, a), (t1, b)]
    assert ln.common_consumers(t1) == ()
    assert ln.common_consumers(x) == (t1,)


def test_terms_chains_of_diamonds_are_enumerated_lazily() -> None:
    """64 diamonds have 2 ** 64 chains: the first comes at once."""
    with ln.Fusion("k") as f:
        t = x = f.input("x", ("I",), ln.float32)
        for _ in range(64):
            t = ln.sin(t) + ln.cos(t)
        y = f.output(t, "y")
    assert len(next(ln.dependency_chains(x, y))) == 129
    assert len(next(ln.use_chains(x))) == 129
    assert len(ln.common_consumers(x)) == 64


def test_terms_replay_functions_change_nothing() -> None:
    """replay_pasc and replay_casp return a domain and a position, and leave both tensors alone."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t1 = x + 1.0
        y = f.output(ln.sum(t1, axis=1), "y")
    y.split(0, 4)
    before = state(f)
    domain, pos = ln.replay_pasc(t1, y, 1)
    assert (leaf(domain), pos) == ("i:ceildiv(I, 4) i:4 i:J", 1)
    assert (domain.root, domain.rfactor) == (t1.root_domain, t1.rfactor_domain)
    domain, pos = ln.replay_pasc(t1, y, -1)
    assert (leaf(domain), pos) == ("i:ceildiv(I, 4) i:4 i:J", 3)
    domain, pos = ln.replay_casp(y, t1, 2)
    assert (leaf(domain), pos) == ("i:I r:J", 2)
    domain, pos = ln.replay_pasc(x, t1, 1)
    assert (leaf(domain), pos) == ("i:I i:J", 1)
    assert state(f) == before


def test_terms_replay_functions_refuse_bad_arguments() -> None:
    """Positions out of range, no tensors and no direct neighbours are named in the error."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t1 = x + 1.0
        y = f.output(ln.exp(t1), "y")
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: ln.replay_pasc(t1, y, 3), "replay_pasc(T1, y, 3): position 3 is out of range; "
         "y has the leaf axes [i0, i1], so use -3..2"),
        (lambda: ln.replay_pasc(t1, y, -4), "replay_pasc(T1, y, -4): position -4 is out of range; "
         "y has the leaf axes [i0, i1], so use -3..2"),
        (lambda: ln.replay_casp(y, t1, 7), "replay_casp(y, T1, 7): position 7 is out of range; "
         "T1 has the leaf axes [i0, i1], so use -3..2"),
        (lambda: ln.replay_pasc(t1, y, True), "replay_pasc(T1, y, True): position True is not an "
         "int; a position counts leading leaf axes, or names the innermost of them"),
        (lambda: ln.replay_pasc(x, y, 1), "replay_pasc(x, y, 1): y does not read x; give a "
         "producer and one of its direct consumers"),
        (lambda: ln.replay_casp(t1, y, 1), "replay_casp(T1, y, 1): T1 does not read y; give a "
         "producer and one of its direct consumers"),
        (lambda: ln.replay_casp(y, "t1", 1), "replay_casp(y, 't1', 1): 't1' is no TensorView; "  # type: ignore[arg-type]
         "give two TensorViews"),
        (lambda: ln.replay_pasc(t1, None, 1), "replay_pasc(T1, None, 1): None is no TensorView; "  # type: ignore[arg-type]
         "give two TensorViews"),
        (lambda: ln.root_map(x, y), "root_map(x, y): the second does not read the first; "
         "give a producer and one of its direct consumers"),
    ]  # fmt: skip
    for call, message in cases:
        with pytest.raises(ln.ScheduleError, match=f"^{re.escape(message)}$"):
            call()


def test_note_forward_through_a_reduction_loses_an_axis() -> None:
    """T2[i0, r1, i2] sums T1[i0, i1, i2]; T3[i0, i2]: from T2 at 2, T1 gets 2 and T2 gets 1."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "R", "K"), ln.float32)
        t1 = x + 1.0
        t2 = ln.sum(t1, axis=1)
        y = f.output(t2 * 2.0, "y")
    assert ln.replay_casp(y, t2, 2)[1] == 1
    t1.compute_at(t2, 2)
    assert positions(t1, t2, y) == (2, 0, 0)
    t1.compute_at(y, 1)
    assert positions(t1, t2, y) == (2, 1, 0)
    assert_computes(f, random(2, 3, 4))
