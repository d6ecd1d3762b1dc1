"""A transform that the package does not know, defined here alone: an axis run backwards.

Replay, indexing, predicates and printing must work for it without any change of the package.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest

import loopnest as ln
from helpers.schedule_run import (
    PT,
    assert_computes,
    body,
    interpreted,
    leaf,
    nest,
    positions,
    program,
    random,
    state,
)
from loopnest.lowering.pipeline import lower
from loopnest.scalar.expr import ONE, Expr
from loopnest.scalar.simplify import Simplifier
from loopnest.schedule.transaction import leaf_position, primitive
from loopnest.schedule.transforms import rebind
from loopnest.tensor.domain import IterDomain, Transform


class Reverse(Transform):
    """One axis to one axis that runs from the last point to the first."""

    __slots__ = ()

    def __init__(self, axis: IterDomain) -> None:
        self._bind([axis], [IterDomain(axis.size, axis.kind)])

    @property
    def key(self) -> Hashable:
        return ("reverse",)

    def replay(self, inputs: Sequence[IterDomain], algebra: Simplifier) -> Reverse:
        return Reverse(inputs[0])

    def backward(self, outputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        last = algebra.sub(self.inputs[0].size, ONE)
        return (algebra.sub(last, outputs[0]),)

    def forward(self, inputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        return self.backward(inputs, algebra)

    def describe(self) -> str:
        return "reverse"


@primitive
def reverse(tensor: ln.TensorView, axis: int) -> ln.TensorView:
    """Run leaf axis `axis` backwards."""
    position = leaf_position(tensor, axis)
    leaves = list(tensor.leaf_domain)
    leaves[position] = Reverse(leaves[position]).outputs[0]
    rebind(tensor, tensor.domain.with_leaf(leaves))
    return tensor


def chain() -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t = x + 1.0
        y = f.output(t * 2.0, "y")
    return f, t, y


def test_indices_run_backwards() -> None:
    f, t, y = chain()
    reverse(y, 1)
    assert nest(f) == body("""
        T1: float32[I, J] local
        for i0 in I:
          for i1 in J:
            T1[i0, i1] = x[i0, i1] + 1.0
        for i2 in I:
          for i3 in J:
            y[i2, J - i3 - 1] = T1[i2, J - i3 - 1] * 2.0
    """)
    assert_computes(f, random(3, 4))
    assert leaf(t) == leaf(y)


def test_replay_on_producer_and_consumer() -> None:
    f, t, y = chain()
    reverse(y, 0)
    domain, pos = ln.replay_pasc(t, y, 1)
    assert pos == 1
    assert isinstance(domain.leaf[0].definition, Reverse)
    t.compute_at(y, 1)
    assert positions(t, y) == (1, 0)
    assert isinstance(t.leaf_domain[0].definition, Reverse)
    assert "T1: float32[J] local" in nest(f)
    assert "x[I - i0 - 1, i1]" in nest(f)
    assert_computes(f, random(3, 4))
    g, t, y = chain()
    reverse(t, 0)
    domain, pos = ln.replay_casp(y, t, 1)
    assert (pos, leaf(domain)) == (1, "i:I i:J")
    assert isinstance(domain.leaf[0].definition, Reverse)
    assert_computes(g, random(3, 4))


def test_a_history_that_matches_is_reused() -> None:
    _, t, y = chain()
    reverse(t, 0)
    reverse(y, 0)
    before = t.leaf_domain
    t.compute_at(y, 2)
    assert t.leaf_domain == before
    _, t, y = chain()
    t.split(0, 4)
    reverse(y, 0)
    t.compute_at(y, 2)
    assert leaf(t) == "i:I i:J"
    assert isinstance(t.leaf_domain[0].definition, Reverse)


@pytest.mark.parametrize("size", [1, 4, 6, 7])
def test_a_split_of_the_reversed_axis_needs_its_predicate(size: int) -> None:
    f, t, y = chain()
    reverse(y, 0)
    y.split(0, 4)
    assert "if i2 * 4 + i3 < I:" in nest(f)
    t.compute_at(y, 2)
    assert "if i0 * 4 + i1 < I:" in nest(f)
    assert_computes(f, random(size, 3))


@pytest.mark.parametrize("size", [1, 4, 6, 7])
def test_the_reverse_of_a_split_axis(size: int) -> None:
    """Blocks from the last to the first, whose holes come first."""
    f, t, y = chain()
    y.split(0, 4)
    reverse(y, 0)
    reverse(y, 1)
    t.compute_at(y, 1)
    assert leaf(t) == "i:ceildiv(I, 4) i:J i:4"  # the inner part is left over: it stands last
    assert_computes(f, random(size, 3))


@pytest.mark.parametrize("size", [1, 9, 12, 17])
def test_a_split_of_a_reversed_outer_axis_is_tested(size: int) -> None:
    """Its hole lies before the first block, where no other test finds it."""
    f, t, y = chain()
    y.split(0, 4)
    reverse(y, 0)
    y.split(0, 3)
    t.compute_at(y, 2)
    assert "if i0 * 3 + i1 < ceildiv(I, 4):" in nest(f)
    assert_computes(f, random(size, 3))


def test_splits_merges_and_reverses_mix() -> None:
    f, t, y = chain()
    reverse(y, 0)
    y.merge(0).split(0, 6)
    reverse(y, 1)
    y.split(1, 4).reorder({2: 0})
    t.compute_at(y, -1)
    assert leaf(t) == leaf(y)
    for shape in ((3, 4), (5, 7), (1, 1)):
        assert_computes(f, random(*shape))


def test_a_reversed_reduction() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t = x * 2.0
        y = f.output(ln.sum(t, axis=1), "y")
    y.split(1, 4)
    reverse(y, 1)
    partial = y.rfactor(1)
    assert leaf(partial) == "i:I r:ceildiv(J, 4) i:4"
    t.compute_at(partial, -1)
    for size in (1, 6, 8):
        assert_computes(f, random(3, size))


def test_parallel_types_propagation_and_caches() -> None:
    f, t, y = chain()
    reverse(y, 1)
    y.axis(1).parallelize(PT.unroll)
    ln.propagate(y)
    ln.parallelize_like(y)
    assert [a.parallel for a in t.leaf_domain] == [PT.serial, PT.unroll]
    copy = t.cache_after()
    assert isinstance(copy.leaf_domain[1].definition, Reverse)
    assert copy.axis(1).parallel is PT.unroll
    f.inline_most()
    assert_computes(f, random(3, 4))


def test_the_order_of_the_points_is_that_of_the_loop() -> None:
    """A running value shows the order: the last element is written first."""
    f, _, y = chain()
    reverse(y, 0)
    stores = [line for line in nest(f).splitlines() if line.lstrip().startswith("y[")]
    assert stores == ["    y[I - i2 - 1, i3] = T1[I - i2 - 1, i3] * 2.0"]
    (result,) = interpreted(f, random(2, 2))
    assert result.shape == (2, 2)


def test_it_is_a_primitive_like_others() -> None:
    """Transactional, traced, and kept out of frozen prefixes by the funnel."""
    f, t, y = chain()
    t.compute_at(y, 1)
    before = state(f)
    with pytest.raises(ln.ScheduleError, match=r"^y\.reverse\(0\): the leading 1 of the leaf axes"):
        reverse(y, 0)
    with pytest.raises(ln.ScheduleError, match=r"^y\.reverse\(5\): axis 5 is out of range"):
        reverse(y, 5)
    assert state(f) == before
    reverse(y, 1)
    assert f.trace[-1].call == "y.reverse(1)"


def test_every_stage_prints() -> None:
    f, t, y = chain()
    reverse(y, 0)
    y.split(0, 4)
    t.compute_at(y, 1)
    for name, text in lower(f).stages:
        assert text(), name
    assert program(f).params
    assert str(y).startswith("y float32 global [i0: ceildiv(I, 4), i1: 4, i2: J]")
