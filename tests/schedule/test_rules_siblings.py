"""Rule 32: consumers that reduce or broadcast one producer come to share its loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import loopnest as ln
from helpers.schedule_run import assert_computes, body, leaf, loops, nest, positions, random

# 32: consumers that reduce


def siblings(
    *folds: Callable[..., ln.TensorView],
) -> tuple[ln.Fusion, ln.TensorView, list[ln.TensorView], ln.TensorView]:
    """Return T1[i0, i1] = x + 1, its reductions over i1, and y[i0] made of these."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t1 = x + 1.0
        reduced = [fold(t1, axis=1) for fold in folds]
        f.output(reduced[0] + reduced[1] if len(reduced) == 2 else ln.fma(*reduced), "y")
    return f, t1, reduced, f["y"]


ONE_LOOP = body("""
    for i0 in I:
      T2: float32[1] local
      T3: float32[1] local
      T2[0] = 0.0
      T3[0] = -inf
      for i1 in J:
        T1: float32[1] local
        T1[0] = x[i0, i1] + 1.0
        T2[0] = T2[0] + T1[0]
        T3[0] = max(T3[0], T1[0])
      y[i0] = T2[0] + T3[0]
""")


@pytest.mark.parametrize("target", [0, 1], ids=["from T2", "from T3"])
def test_rule_32_consumers_that_reduce_share_one_reduction_loop(target: int) -> None:
    """T2[i0, r1] and T3[i0, r1] reduce T1[i0, i1], T4 = T2 + T3; T1 at 2 of either.

    T1 gets 2, T2 and T3 get 1: one T1 and one r1 loop for both, a max beside a sum.
    """
    f, t1, (t2, t3), y = siblings(ln.sum, ln.max)
    t1.compute_at((t2, t3)[target], 2)
    assert positions(t1, t2, t3, y) == (2, 1, 1, 0)
    assert (t2.produced_at_pos, t3.produced_at_pos, y.produced_at_pos) == (2, 2, 1)
    assert nest(f) == ONE_LOOP
    assert_computes(f, random(3, 5))


@pytest.mark.parametrize("target", [0, 1], ids=["from T2", "from T3"])
def test_rule_32_two_sums(target: int) -> None:
    """The same with two sums, one of which stands for another definition."""
    f, t1, (t2, t3), y = siblings(ln.sum, ln.sum)
    t1.compute_at((t2, t3)[target], 2)
    assert positions(t1, t2, t3, y) == (2, 1, 1, 0)
    assert nest(f) == ONE_LOOP.replace("-inf", "0.0").replace("max(T3[0], T1[0])", "T3[0] + T1[0]")
    assert_computes(f, random(3, 5))


@pytest.mark.parametrize("target", [0, 1, 2])
def test_rule_32_three_siblings(target: int) -> None:
    """Three consumers that reduce share one T1 and one reduction loop, from any of them."""
    f, t1, reduced, y = siblings(ln.sum, ln.max, ln.min)
    t1.compute_at(reduced[target], 2)
    assert positions(t1, *reduced, y) == (2, 1, 1, 1, 0)
    assert loops(f) == [
        "for I", "  T2", "  T3", "  T4", "  for J", "    T1", "    T2", "    T3", "    T4", "  y"
    ]  # fmt: skip
    assert_computes(f, random(3, 5))


@pytest.mark.parametrize("target", [0, 1], ids=["from T2", "from T3"])
def test_rule_32_the_other_sibling_is_reached_through_the_producer(target: int) -> None:
    """T2.split(1, 4), T1 at 3 of T2: T3 takes all three axes through T1, not one through T4."""
    f, t1, pair, y = siblings(ln.sum, ln.max)
    pair[target].split(1, 4)
    t1.compute_at(pair[target], 3)
    assert leaf(t1) == "i:I i:ceildiv(J, 4) i:4"
    assert leaf(pair[0]) == leaf(pair[1]) == "i:I r:ceildiv(J, 4) r:4"
    assert leaf(y) == "i:I"
    assert positions(t1, *pair, y) == (3, 1, 1, 0)
    assert nest(f) == body("""
        for i0 in I:
          T2: float32[1] local
          T3: float32[1] local
          T2[0] = 0.0
          T3[0] = -inf
          for i1 in ceildiv(J, 4):
            for i2 in 4:
              T1: float32[1] local
              if i1 * 4 + i2 < J:
                T1[0] = x[i0, i1 * 4 + i2] + 1.0
                T2[0] = T2[0] + T1[0]
                T3[0] = max(T3[0], T1[0])
          y[i0] = T2[0] + T3[0]
    """)
    assert_computes(f, random(3, 6))


def test_rule_32_a_split_iteration_axis_is_shared_too() -> None:
    """T2.split(0, 4), T1 at 3 of T2[Io, Ii, r]: T4 takes the two iteration axes."""
    f, t1, (t2, t3), y = siblings(ln.sum, ln.max)
    t2.split(0, 4)
    t1.compute_at(t2, 3)
    assert leaf(t3) == "i:ceildiv(I, 4) i:4 r:J"
    assert leaf(y) == "i:ceildiv(I, 4) i:4"
    assert positions(t1, t2, t3, y) == (3, 2, 2, 0)
    assert_computes(f, random(6, 3))


def broadcasts(*, concrete: bool) -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return T1[i0], its broadcasts T2[i0, b] and T3[i0, b], and T4 that adds these."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I",), ln.float32)
        z = f.input("z", ("I", "J"), ln.float32)
        t1 = (x + 1.0).named("t1")
        t2 = ln.broadcast(t1, (False, True)).named("t2")
        t3 = ln.broadcast(t1, (False, True)).named("t3")
        if concrete:
            f.output(ln.fma(t2, t3, z), "y")
        else:
            f.output(ln.maximum(t2, t3), "y")
            f.output(ln.sum(z, axis=1), "other")
    return f, [t1, t2, t3, f["y"]]


@pytest.mark.parametrize("target", [1, 2, 3])
def test_rule_32_broadcasts_in_place_of_reductions(target: int) -> None:
    """T2 = T3 = [i0, b]: T1 at 2 of either gets 1, T2 and T3 get 2, reached through T4."""
    f, (t1, t2, t3, y) = broadcasts(concrete=True)
    t1.compute_at((t1, t2, t3, y)[target], 2)
    assert positions(t1, t2, t3, y) == (1, 2, 2, 0)
    assert nest(f) == body("""
        for i0 in I:
          t1: float32[1] local
          t1[0] = x[i0] + 1.0
          for i1 in J:
            t2: float32[1] local
            t3: float32[1] local
            t2[0] = t1[0]
            t3[0] = t1[0]
            y[i0, i1] = fma(t2[0], t3[0], z[i0, i1])
    """)
    assert_computes(f, random(3), random(3, 4))


def test_rule_32_broadcasts_that_stay_broadcasts() -> None:
    """The same where no tensor makes the broadcast axis concrete."""
    f, (t1, t2, t3, y) = broadcasts(concrete=False)
    t1.compute_at(t2, 2)
    assert positions(t1, t2, t3, y) == (1, 2, 2, 0)
    assert loops(f)[:5] == ["for I", "  t1", "  t2", "  t3", "  y"]
    assert_computes(f, random(3), random(3, 4))


def test_rule_32_split_broadcasts_are_reached_through_the_common_consumer() -> None:
    """The common consumer's split reaches both broadcasts; T1 has no axis to split."""
    f, (t1, t2, t3, y) = broadcasts(concrete=True)
    y.split(1, 4)
    t1.compute_at(y, 3)
    assert leaf(t2) == leaf(t3) == "i:I b:1 b:1"
    assert leaf(t1) == "i:I"
    assert positions(t1, t2, t3, y) == (1, 3, 3, 0)
    assert_computes(f, random(3), random(3, 6))


def test_rule_32_each_tensor_is_replayed_once() -> None:
    """A diamond of tensors between producer and target: no tensor gets a second history."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t1 = x + 1.0
        a, b = ln.sin(t1), ln.cos(t1)
        c, d = a * b, a + b
        y = f.output(c - d, "y")
    y.split(1, 4).merge(0, 1).reorder({1: 0})
    t1.compute_at(y, 2)
    for tensor in (t1, a, b, c, d):
        assert leaf(tensor) == leaf(y) == "i:4 i:I * ceildiv(J, 4)"
        assert len(tensor.domain.history) == 2
    assert positions(t1, a, b, c, d, y) == (2, 2, 2, 2, 2, 0)
    assert_computes(f, random(3, 6))
