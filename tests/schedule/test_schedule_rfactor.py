"""rfactor: a reduction in two, also twice, also of several outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln
from helpers.schedule_run import (
    PT,
    assert_computes,
    leaf,
    loops,
    positions,
    random,
    state,
    taken_back,
)


def reduced(
    fold: Callable[..., ln.TensorView] = ln.sum, *shape: int | str
) -> tuple[ln.Fusion, ln.TensorView]:
    """Return y, x reduced over its last axis."""
    with ln.Fusion("k") as f:
        x = f.input("x", shape or ("I", "J"), ln.float32)
        y = f.output(fold(x, axis=-1), "y")
    return f, y


def domain(axes: tuple[ln.IterDomain, ...]) -> str:
    return " ".join(f"{axis.kind.letter}:{axis.size}" for axis in axes)


def test_rfactor_of_the_outer_part() -> None:
    """y [i0, r1: J / 4, r2: 4]; p = y.rfactor(1) reduces r1, y reduces p over 4."""
    f, y = reduced()
    y.split(1, 4)
    p = y.rfactor(1)
    assert f.tensors[-1] is p
    assert (leaf(p), leaf(y)) == ("i:I r:ceildiv(J, 4) i:4", "i:I r:4")
    assert (domain(p.root_domain), domain(p.rfactor_domain)) == (
        "i:I r:J",
        "i:I r:ceildiv(J, 4) i:4",
    )
    assert (domain(y.root_domain), domain(y.rfactor_domain)) == ("i:I r:4", "i:I r:4")
    assert (p.producers, p.consumers, y.producers) == ((f["x"],), (y,), (p,))
    assert (p.memory, y.memory) == (ln.LOCAL, ln.GLOBAL)
    assert_computes(f, random(3, 10))
    assert_computes(f, random(3, 2))
    p.compute_at(y, 1)
    assert positions(p, y) == (1, 0)
    assert_computes(f, random(3, 10))


def test_rfactor_of_the_inner_part() -> None:
    f, y = reduced()
    y.split(1, 4)
    p = y.rfactor(-1)
    assert (leaf(p), leaf(y)) == ("i:I i:ceildiv(J, 4) r:4", "i:I r:ceildiv(J, 4)")
    p.compute_at(y, 2)
    assert positions(p) == (2,)
    assert loops(f)[:5] == ["for I", "  y", "  for ceildiv(J, 4)", "    T2", "    for 4"]
    assert_computes(f, random(3, 10))


def test_rfactor_keeps_the_order_of_axes() -> None:
    """Axes that stay keep their places, also where the reduction was moved outwards."""
    f, y = reduced(ln.sum, "I", "J")
    y.split(1, 4).split(2, 2).reorder([3, 0, 2, 1])
    assert leaf(y) == "r:2 i:I r:2 r:ceildiv(J, 4)"
    p = y.rfactor([0, 3])
    assert leaf(p) == "r:2 i:I i:2 r:ceildiv(J, 4)"
    assert leaf(y) == "i:I r:2"
    assert_computes(f, random(3, 11))


def test_rfactor_of_several_axes_of_several_reductions() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J", "K"), ln.float32)
        y = f.output(ln.sum(x, axis=(0, 2)), "y")
    p = y.rfactor(2)
    assert (leaf(p), leaf(y)) == ("i:I i:J r:K", "r:I i:J")
    assert (domain(p.root_domain), domain(p.rfactor_domain)) == ("i:I i:J r:K", "i:I i:J r:K")
    assert_computes(f, random(2, 3, 4))


def test_rfactor_of_merged_reductions() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J", "K"), ln.float32)
        y = f.output(ln.sum(x, axis=(1, 2)), "y")
    y.merge(1).split(1, 8)
    p = y.rfactor(1)
    assert (leaf(p), leaf(y)) == ("i:I r:ceildiv(J * K, 8) i:8", "i:I r:8")
    assert_computes(f, random(2, 5, 3))


def test_rfactor_twice() -> None:
    """First over the outermost part, then over the middle: three stages."""
    f, y = reduced()
    y.split(1, 4).split(1, 3)
    first = y.rfactor(1)
    assert (leaf(first), leaf(y)) == ("i:I r:ceildiv(ceildiv(J, 4), 3) i:3 i:4", "i:I r:3 r:4")
    second = y.rfactor(1)
    assert (leaf(second), leaf(y)) == ("i:I r:3 i:4", "i:I r:4")
    assert (second.producers, y.producers) == ((first,), (second,))
    for size in (1, 4, 23, 24):
        assert_computes(f, random(2, size))
    first.compute_at(y, 1)
    assert positions(first, second, y) == (1, 1, 0)
    assert_computes(f, random(2, 23))


def test_rfactor_of_the_partial_tensor() -> None:
    """The new tensor is a reduction too, and is factored like one."""
    f, y = reduced()
    y.split(1, 8).split(1, 2)
    p = y.rfactor([1, 2])
    assert leaf(p) == "i:I r:ceildiv(ceildiv(J, 8), 2) r:2 i:8"
    q = p.rfactor(1)
    assert (leaf(q), leaf(p), leaf(y)) == (
        "i:I r:ceildiv(ceildiv(J, 8), 2) i:2 i:8",
        "i:I r:2 i:8",
        "i:I r:8",
    )
    for size in (3, 40, 64):
        assert_computes(f, random(2, size))


@pytest.mark.parametrize("fold", [ln.sum, ln.prod, ln.max, ln.min, ln.mean])
def test_rfactor_of_every_reducer(fold: Callable[..., ln.TensorView]) -> None:
    """A lane of the split that has no element holds the identity."""
    f, y = reduced(fold)
    total = y if y.definition is not None and y.definition.reducer else y.producers[0]
    total.split(1, 4)
    total.rfactor(1)
    for size in (1, 6, 8):
        assert_computes(f, -1.0 - np.abs(random(3, size)))


@pytest.mark.parametrize("fold", [ln.any, ln.all])
def test_rfactor_of_logical_reducers(fold: Callable[..., ln.TensorView]) -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.bool)
        y = f.output(fold(x, axis=1), "y")
    y.split(1, 4)
    y.rfactor(2)
    for size in (1, 6, 8):
        assert_computes(f, random(7, size) > 0.5)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_rfactor_of_welford_factors_all_outputs(which: int) -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        outputs = ln.welford(x, axis=1)
        for tensor, name in zip(outputs, ("mean", "var", "count"), strict=True):
            f.output(tensor, name)
    outputs[which].split(1, 4)
    p = outputs[which].rfactor(1)
    assert p.siblings.index(p) == which
    for tensor, partial in zip(outputs, p.siblings, strict=True):
        assert (leaf(tensor), leaf(partial)) == ("i:I r:4", "i:I r:ceildiv(J, 4) i:4")
        assert tensor.producers == p.siblings
        assert partial.consumers == outputs
    for size in (1, 5, 10):
        assert_computes(f, random(3, size))
    p.compute_at(outputs[0], 1)
    assert positions(*p.siblings) == (1, 1, 1)
    assert_computes(f, random(3, 10))


def test_rfactor_of_welford_twice() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        mean, var, _ = ln.welford(x, axis=1)
        f.output(mean, "mean")
        f.output(var, "var")
    mean.split(1, 4).split(1, 2)
    var.rfactor(1)
    mean.rfactor(1)
    assert leaf(mean) == leaf(var) == "i:I r:4"
    for size in (1, 11, 16):
        assert_computes(f, random(3, size))


def test_partial_results_of_16_bit_tensors_are_not_rounded() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float16)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(1, 8)
    p = y.rfactor(1)
    assert (p.dtype, y.dtype) == (ln.float32, ln.float16)
    assert_computes(f, random(2, 600, dtype=np.float16))


def test_rfactor_takes_parallel_types_along() -> None:
    f, y = reduced()
    y.split(1, 4).axis(0).parallelize(PT.grid_x)
    y.axis(2).parallelize(PT.unroll)
    p = y.rfactor(1)
    assert [a.parallel for a in p.leaf_domain] == [PT.grid_x, PT.serial, PT.unroll]
    assert [a.parallel for a in y.leaf_domain] == [PT.grid_x, PT.unroll]
    p.compute_at(y, 1)
    assert_computes(f, random(3, 10))


def test_a_consumer_of_a_factored_reduction() -> None:
    """Positions and replays work through the rfactor domain."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t = ln.sum(x, axis=1)
        y = f.output(t * 2.0, "y")
    t.split(1, 4)
    p = t.rfactor(1)
    y.split(0, 2)
    p.compute_at(y, 2)
    assert leaf(p) == "i:ceildiv(I, 2) i:2 r:ceildiv(J, 4) i:4"
    assert leaf(t) == "i:ceildiv(I, 2) i:2 r:4"
    assert positions(p, t, y) == (2, 2, 0)
    assert_computes(f, random(5, 10))


def test_a_split_that_made_the_rfactor_domain_cannot_give_way() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t = ln.sum(x, axis=1)
        f.output(t * 2.0, "y")
    t.split(1, 4)
    p = t.rfactor(1)
    source = x.cache_after()
    source.split(1, 8)
    before = state(f)
    with pytest.raises(ln.ScheduleError) as caught:
        ln.propagate(source)
    assert str(caught.value) == (
        f"propagate({source.name}, -1): the rfactor domain of {p.name} was made by a split by 4 "
        "that would have to give way; call compute_at before rfactor, or split the consumer alike"
    )
    assert state(f) == before


BAD: list[tuple[Callable[[ln.TensorView], object], str]] = [
    (lambda y: y.rfactor(0),
     "y.rfactor(0): axis 0 is no reduction axis; y has the leaf axes [i0, r1, r2]"),
    (lambda y: y.rfactor([1, 0]),
     "y.rfactor([1, 0]): axis 0 is no reduction axis; y has the leaf axes [i0, r1, r2]"),
    (lambda y: y.rfactor([1, 2]),
     "y.rfactor([1, 2]): all reduction axes of y are named, so nothing is left to reduce; "
     "leave one of the reduction axes of [i0, r1, r2] to y; split first"),
    (lambda y: y.rfactor(3), "y.rfactor(3): axis 3 is out of range; "
     "y has 3 leaf axes [i0, r1, r2], so use -3..2"),
    (lambda y: y.rfactor((1, 1)),
     "y.rfactor((1, 1)): axis 1 of y is named twice; name each reduction axis once"),
    (lambda y: y.rfactor((1, -2)),
     "y.rfactor((1, -2)): axis 1 of y is named twice; name each reduction axis once"),
    (lambda y: y.rfactor([]), "y.rfactor([]): no axis is named; the leaf axes are [i0, r1, r2]"),
    (lambda y: y.rfactor("1"), "y.rfactor('1'): y has no axis named '1'; "
     "its axes are [i0 I, r1, r2]"),
    (lambda y: y.rfactor(None), "y.rfactor(None): axis None is not an int; "  # type: ignore[arg-type]
     "leaf axes are given by position, or by name"),
    (lambda y: y.producers[0].rfactor(0), "x.rfactor(0): x is an input, which has no loops of its "
     "own; only cache_after and compute_at apply to inputs"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD, ids=[m.split(":")[0] for _, m in BAD])
def test_refusals_change_nothing(call: Callable[[ln.TensorView], object], message: str) -> None:
    f, y = reduced()
    y.split(1, 4)
    before = state(f)
    with pytest.raises(ln.ScheduleError) as caught:
        call(y)
    assert str(caught.value) == message
    assert state(f) == before


def test_what_is_no_reduction_or_frozen_is_not_factored() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        t = ln.sum(x * 2.0, axis=1)
        y = f.output(t + 1.0, "y")
    t.split(1, 4)
    t.compute_at(y, 1)
    before = state(f)
    with pytest.raises(ln.ScheduleError) as caught:
        t.rfactor(1)
    assert str(caught.value) == (
        "T2.rfactor(1): the leading 1 loops of T2 are shared already; call rfactor before "
        f"compute_at: {taken_back(f, 1)}"
    )
    with pytest.raises(ln.ScheduleError) as caught:
        f["T1"].rfactor(0)
    assert str(caught.value) == "T1.rfactor(0): T1 is no reduction; rfactor factors a reduction"
    assert state(f) == before
