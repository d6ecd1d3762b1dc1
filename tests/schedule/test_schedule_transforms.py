"""split, merge, reorder, parallelize, pin: before and after."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loopnest as ln
from helpers.pointwise_fusions import doubled, summed
from helpers.schedule_run import PT, assert_computes, leaf, nest, random, state

# split


@pytest.mark.parametrize(
    ("args", "after"),
    [
        ((0, 4), "i:ceildiv(N, 4) i:4 i:D"),
        ((1, 4), "i:N i:ceildiv(D, 4) i:4"),
        ((-1, 4), "i:N i:ceildiv(D, 4) i:4"),
        ((-2, 4), "i:ceildiv(N, 4) i:4 i:D"),
        ((0, 4, False), "i:4 i:ceildiv(N, 4) i:D"),
        ((0, 1), "i:N i:1 i:D"),
        ((0, 1, False), "i:1 i:N i:D"),
        ((0, "D"), "i:ceildiv(N, D) i:D i:D"),
        ((0, "D", False), "i:D i:ceildiv(N, D) i:D"),
        ((0, "N"), "i:1 i:N i:D"),
    ],
)
def test_split(args: tuple[Any, ...], after: str) -> None:
    f, y = doubled("N", "D")
    assert y.split(*args) is y
    assert leaf(y) == after
    assert_computes(f, random(6, 5))
    assert_computes(f, random(3, 4))


def test_split_of_static_extents() -> None:
    f, y = doubled(10, 8)
    y.split(0, 4).split(2, 4)
    assert [axis.extent for axis in y.leaf_domain] == [3, 4, 2, 4]
    assert_computes(f, random(10, 8))


def test_split_of_a_reduction_and_of_a_broadcast_keeps_the_kind() -> None:
    f, y = summed()
    y.split(1, 4)
    assert leaf(y) == "i:I r:ceildiv(R, 4) r:4 i:K"
    assert_computes(f, random(2, 6, 3))
    with ln.Fusion("k") as g:
        x = g.input("x", ("N", 1), ln.float32)
        z = g.output(x * 2.0, "z")
    z.split(1, 4).split(2, 2, inner=False)
    assert leaf(z) == "i:N b:1 b:1 b:1"
    assert_computes(g, random(3, 1))


def test_split_uses_facts() -> None:
    f, y = doubled("N")
    f.assume("N % 4 == 0")
    y.split(0, 4)
    assert leaf(y) == "i:N // 4 i:4"
    assert "if" not in nest(f)
    assert_computes(f, random(8))


# merge


@pytest.mark.parametrize(
    ("args", "after"),
    [
        ((0,), "i:I * J i:K i:L"),
        ((1,), "i:I i:J * K i:L"),
        ((-2,), "i:I i:J i:K * L"),
        ((0, 1), "i:I * J i:K i:L"),
        ((1, 0), "i:J * I i:K i:L"),
        ((0, 2), "i:I * K i:J i:L"),
        ((2, 0), "i:K * I i:J i:L"),
        ((0, -1), "i:I * L i:J i:K"),
        ((-1, 1), "i:I i:L * J i:K"),
    ],
)
def test_merge(args: tuple[int, ...], after: str) -> None:
    """The first is the outer one; the result stands at the smaller of the two places."""
    f, y = doubled("I", "J", "K", "L")
    assert y.merge(*args) is y
    assert [frozenset(a.split(" * ")) for a in re.split(r" ?i:", leaf(y))[1:]] == [
        frozenset(a.split(" * ")) for a in re.split(r" ?i:", after)[1:]
    ]
    assert_computes(f, random(2, 3, 4, 5))


def test_merge_order_outer_runs_slower() -> None:
    f, y = doubled(2, 3)
    y.merge(1, 0)
    assert nest(f).splitlines()[1].strip().startswith("y[i0 % 2, i0 // 2] =")
    assert_computes(f, random(2, 3))


def test_merge_kinds() -> None:
    """A broadcast axis takes the other's kind; two reductions merge."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", 1, "J", "K"), ln.float32)
        y = f.output(ln.sum(x, axis=(2, 3)), "y")
    y.merge(2)
    assert leaf(y) == "i:I b:1 r:J * K"
    y.merge(1)
    assert leaf(y) == "i:I r:J * K"
    assert_computes(f, random(2, 1, 3, 4))
    with ln.Fusion("k") as g:
        x = g.input("x", (1, "I"), ln.float32)
        z = g.output(x * 2.0, "z")
    z.merge(0)
    assert leaf(z) == "i:I"


# reorder


@pytest.mark.parametrize(
    ("order", "after"),
    [
        ({2: 0}, "K I J L"),
        ({0: 2}, "J K I L"),
        ({0: -1}, "J K L I"),
        ({-1: 0}, "L I J K"),
        ({0: 1, 1: 0}, "J I K L"),
        ({3: 0, 0: 3}, "L J K I"),
        ({1: 3, 3: 2}, "I K L J"),
        ({}, "I J K L"),
        ({1: 1}, "I J K L"),
        ([2, 0, 1, 3], "K I J L"),
        ((3, 2, 1, 0), "L K J I"),
        ([-1, 0, -2, 1], "L I K J"),
    ],
)
def test_reorder(order: Any, after: str) -> None:
    """{old: new}: axes that are not named keep their order in the places left; or a permutation."""
    f, y = doubled("I", "J", "K", "L")
    assert y.reorder(order) is y
    assert leaf(y).replace("i:", "") == after
    assert_computes(f, random(2, 3, 4, 5))


@given(order=st.permutations(range(4)))
@settings(max_examples=24, deadline=None, derandomize=True)
def test_reorder_by_dict_and_by_permutation_agree(order: list[int]) -> None:
    """{old: new} for all axes is the inverse permutation: new axis i is old axis p[i]."""
    _, a = doubled("I", "J", "K", "L")
    _, b = doubled("I", "J", "K", "L")
    a.reorder(order)
    b.reorder({old: new for new, old in enumerate(order)})
    assert leaf(a) == leaf(b)


# Handles, parallel types, text


def test_an_axis_handle_parallelizes_and_pins() -> None:
    f, y = doubled("I", "J")
    handle = y.axis(-1)
    assert handle is y.leaf_domain[1]
    assert handle.parallelize(PT.block_x) is handle
    assert handle.pin() is handle
    assert (y.axis(1).parallel, y.axis(1).pinned) == (PT.block_x, True)
    assert [str(origin).split(" at ")[0] for origin in f.trace] == [
        "y.parallelize({1: block_x})",
        "y.pin(1)",
    ]


def test_a_handle_of_an_axis_that_is_gone_raises() -> None:
    f, y = doubled("I", "J")
    handle = y.axis(0)
    y.split(0, 4)
    before = state(f)
    for call in (handle.pin, lambda: handle.parallelize(PT.grid_x)):
        with pytest.raises(ln.ScheduleError) as caught:
            call()
        assert str(caught.value) == (
            "<i I>: it is not a leaf axis of a tensor; take a handle by tv.axis(i)"
        )
    assert state(f) == before


def test_parallelize_replaces_and_resets() -> None:
    """A type may move from one axis to another in one call, and be taken back."""
    _, y = doubled("I", "J", "K")
    y.parallelize({0: PT.block_x, 1: PT.grid_x})
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    assert [a.parallel for a in y.leaf_domain] == [PT.grid_x, PT.block_x, PT.serial]
    with pytest.raises(ln.ScheduleError, match="axes 0 and 2 of y would both be grid_x"):
        y.parallelize({2: PT.grid_x})
    y.parallelize({-1: PT.grid_x, 0: PT.serial})
    assert [a.parallel for a in y.leaf_domain] == [PT.serial, PT.block_x, PT.grid_x]
    y.parallelize({0: PT.unroll, 1: PT.unroll})
    assert [a.parallel for a in y.leaf_domain][:2] == [PT.unroll, PT.unroll]


def test_str_is_one_stable_line() -> None:
    _, y = summed()
    y.split(1, 4).axis(0).parallelize(PT.grid_x)
    y.axis(2).pin()
    line = (
        "y float32 global [i0: I grid_x, r1: ceildiv(R, 4), r2: 4 pinned, i3: K] "
        "compute_at=0 produced_at=0"
    )
    assert str(y) == str(y) == line
    assert repr(y) == f"<TensorView {line}>"


def test_extent_and_kind_of_axes() -> None:
    f, y = summed()
    y.split(1, 4)
    kinds = [axis.kind for axis in y.leaf_domain]
    assert kinds == [ln.IterKind.ITERATION, ln.IterKind.REDUCTION, ln.IterKind.REDUCTION,
                     ln.IterKind.ITERATION]  # fmt: skip
    assert [str(axis.extent) for axis in y.leaf_domain] == ["I", "ceildiv(R, 4)", "4", "K"]
    assert y.axis(2).extent == 4
    assert y.axis(0).extent == f["x"].axis(0).extent
    assert (y.axis(1).is_reduction, y.axis(1).is_broadcast) == (True, False)
    assert y.root_domain == y.rfactor_domain != y.leaf_domain
    assert y.ndim == 4


def test_the_layout_of_an_output_is_the_callers() -> None:
    f, y = doubled("I", "J")
    before = state(f)
    calls: dict[str, Callable[[], object]] = {
        "y.circular_buffer(2)": lambda: y.circular_buffer(2),
        "y.swizzle(xor, 0, 1)": lambda: y.swizzle(ln.Swizzle.XOR, 0, 1),
        "y.set_allocation(pad={0: 1})": lambda: y.set_allocation(pad={0: 1}),
    }
    for text, call in calls.items():
        with pytest.raises(ln.ScheduleError) as caught:
            call()
        assert str(caught.value) == (
            f"{text}: y is an output, whose layout is the caller's; lay out an intermediate: "
            "cache_before or cache_after makes one"
        )
    assert state(f) == before


# Siblings


def welford() -> tuple[ln.Fusion, tuple[ln.TensorView, ...]]:
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "J"), ln.float32)
        mean, var, count = ln.welford(x, axis=1)
        for tensor, name in ((mean, "mean"), (var, "var"), (count, "count")):
            f.output(tensor, name)
    return f, (mean, var, count)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_outputs_of_one_expression_are_scheduled_together(which: int) -> None:
    f, outputs = welford()
    one = outputs[which]
    one.split(1, 4).split(0, 2, inner=False).reorder({2: 0})
    one.axis(1).parallelize(PT.unroll)
    one.axis(2).pin()
    texts = {str(t).split("[")[1] for t in outputs}
    assert texts == {
        "r0: ceildiv(J, 4), i1: 2 unroll, i2: ceildiv(I, 2) pinned, r3: 4] "
        "compute_at=0 produced_at=0"
    }
    assert len({axis for t in outputs for axis in t.leaf_domain}) == 12
    assert_computes(f, random(5, 6))


def test_a_refused_call_on_one_output_changes_none() -> None:
    f, outputs = welford()
    before = state(f)
    with pytest.raises(ln.ScheduleError, match="axis 0 is an iteration axis"):
        outputs[1].merge(0)
    assert state(f) == before


# All together: any sequence visits every element once


@given(data=st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_any_sequence_of_transforms_computes_the_same(data: st.DataObject) -> None:
    f, y = doubled("I", "J", 3)
    for _ in range(data.draw(st.integers(1, 6))):
        axis = data.draw(st.integers(-y.ndim, y.ndim - 1))
        match data.draw(st.sampled_from(["split", "outer", "merge", "reorder", "symbol"])):
            case "split":
                y.split(axis, data.draw(st.integers(1, 5)))
            case "outer":
                y.split(axis, data.draw(st.integers(1, 5)), inner=False)
            case "symbol":
                y.split(axis, data.draw(st.sampled_from(["I", "J"])))
            case "merge" if y.ndim > 1:
                places = [place for place in range(y.ndim) if place != axis % y.ndim]
                other = data.draw(st.sampled_from(places))
                y.merge(axis, other)
            case "reorder":
                y.reorder({axis: data.draw(st.integers(0, y.ndim - 1))})
    shape = data.draw(st.sampled_from([(1, 1), (4, 3), (5, 7), (2, 1)]))
    assert_computes(f, random(*shape, 3))


def test_merge_of_all_pairs_of_four_axes() -> None:
    for outer, inner in itertools.permutations(range(4), 2):
        f, y = doubled(2, 3, 4, 5)
        y.merge(outer, inner)
        assert y.ndim == 3
        assert y.leaf_domain[min(outer, inner)].extent == (outer + 2) * (inner + 2)
        assert_computes(f, random(2, 3, 4, 5))
