"""split, merge, reorder, parallelize, pin: before and after, and what they refuse."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loopnest as ln
from helpers.schedule_run import PT, assert_computes, leaf, nest, random, state


def doubled(*shape: int | str) -> tuple[ln.Fusion, ln.TensorView]:
    """Return y = 2 x."""
    with ln.Fusion("k") as f:
        x = f.input("x", shape, ln.float32)
        y = f.output(x * 2.0, "y")
    return f, y


def summed() -> tuple[ln.Fusion, ln.TensorView]:
    """Return y[I, K], the sum over R of x[I, R, K]."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("I", "R", "K"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    return f, y


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


# What they refuse: the whole message


AXES = "y has 3 leaf axes [i0, i1, b2], so use -3..2"
NO_FACTOR = "use an int >= 1 or the name of a size symbol"
ONLY = "an iteration axis merges with iteration or broadcast axes only"


def mixed() -> tuple[ln.Fusion, ln.TensorView]:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D", 1), ln.float32)
        y = f.output(x * 2.0, "y")
    return f, y


Call = Callable[[ln.TensorView], object]

BAD: list[tuple[Call, str]] = [
    (lambda y: y.split(3, 4), f"y.split(axis=3, factor=4): axis 3 is out of range; {AXES}"),
    (lambda y: y.split(-4, 4), f"y.split(axis=-4, factor=4): axis -4 is out of range; {AXES}"),
    (lambda y: y.split("i0", 4), "y.split(axis='i0', factor=4): axis 'i0' is not an int; "  # type: ignore[arg-type]
     "leaf axes are given by position"),
    (lambda y: y.split(True, 4), "y.split(axis=True, factor=4): axis True is not an int; "
     "leaf axes are given by position"),
    (lambda y: y.split(1.0, 4), "y.split(axis=1.0, factor=4): axis 1.0 is not an int; "  # type: ignore[arg-type]
     "leaf axes are given by position"),
    (lambda y: y.split(0, 0),
     f"y.split(axis=0, factor=0): the factor 0 is not allowed; {NO_FACTOR}"),
    (lambda y: y.split(0, -2),
     f"y.split(axis=0, factor=-2): the factor -2 is not allowed; {NO_FACTOR}"),
    (lambda y: y.split(0, 2.5),  # type: ignore[arg-type]
     f"y.split(axis=0, factor=2.5): the factor 2.5 is not allowed; {NO_FACTOR}"),
    (lambda y: y.split(0, True),
     f"y.split(axis=0, factor=True): the factor True is not allowed; {NO_FACTOR}"),
    (lambda y: y.split(0, "M"),
     "y.split(axis=0, factor='M'): 'M' is no size symbol of fusion k; the symbols are N, D"),
    (lambda y: y.merge(0, 0), "y.merge(0, 0): axis 0 cannot be merged with itself; name two axes"),
    (lambda y: y.merge(0, -3),
     "y.merge(0, -3): axis 0 cannot be merged with itself; name two axes"),
    (lambda y: y.merge(2), "y.merge(2): axis 2 is the last of the leaf axes [i0, i1, b2], there is "
     "none to merge it with; name the inner axis: merge(2, other)"),
    (lambda y: y.merge(-1), "y.merge(-1): axis 2 is the last of the leaf axes [i0, i1, b2], there "
     "is none to merge it with; name the inner axis: merge(2, other)"),
    (lambda y: y.merge(0, 3), f"y.merge(0, 3): axis 3 is out of range; {AXES}"),
    (lambda y: y.merge(None), "y.merge(None): axis None is not an int; "  # type: ignore[arg-type]
     "leaf axes are given by position"),
    (lambda y: y.reorder([0, 1]),
     "y.reorder([0, 1]): the permutation [0, 1] names 2 axes; y has 3 leaf axes [i0, i1, b2]"),
    (lambda y: y.reorder([0, 1, 1]),
     "y.reorder([0, 1, 1]): [0, 1, 1] names an axis or a place twice; each may stand once"),
    (lambda y: y.reorder({0: 1, -3: 2}),
     "y.reorder({0: 1, -3: 2}): {0: 1, -3: 2} names an axis or a place twice; each may stand once"),
    (lambda y: y.reorder({0: 1, 2: 1}),
     "y.reorder({0: 1, 2: 1}): {0: 1, 2: 1} names an axis or a place twice; each may stand once"),
    (lambda y: y.reorder({0: 3}), f"y.reorder({{0: 3}}): axis 3 is out of range; {AXES}"),
    (lambda y: y.reorder({4: 0}), f"y.reorder({{4: 0}}): axis 4 is out of range; {AXES}"),
    (lambda y: y.reorder("021"),  # type: ignore[arg-type]
     "y.reorder('021'): '021' is no order; use {old: new} or a permutation"),
    (lambda y: y.reorder(3),  # type: ignore[arg-type]
     "y.reorder(3): 3 is no order; use {old: new} or a permutation"),
    (lambda y: y.parallelize({3: PT.grid_x}),
     f"y.parallelize({{3: grid_x}}): axis 3 is out of range; {AXES}"),
    (lambda y: y.parallelize([PT.grid_x]),  # type: ignore[arg-type]
     "y.parallelize([grid_x]): [<ParallelType.grid_x: 'grid_x'>] is no mapping; "
     "use {axis: ln.ParallelType.grid_x}"),
    (lambda y: y.parallelize({0: "grid_x"}),  # type: ignore[dict-item]
     "y.parallelize({0: 'grid_x'}): 'grid_x' is no ParallelType; use ln.ParallelType.{serial, "
     "grid_x, grid_y, grid_z, block_x, block_y, block_z, vectorize, unroll, unswitch, "
     "cpu_parallel}"),
    (lambda y: y.parallelize({0: PT.block_x, 1: PT.block_x}),
     "y.parallelize({0: block_x, 1: block_x}): axes 0 and 1 of y would both be block_x; "
     "one axis of a tensor may have a launch dimension"),
    (lambda y: y.pin(7), f"y.pin(7): axis 7 is out of range; {AXES}"),
    (lambda y: y.axis(3), f"y.axis(3): axis 3 is out of range; {AXES}"),
    (lambda y: y.axis(None), "y.axis(None): axis None is not an int; "  # type: ignore[arg-type]
     "leaf axes are given by position"),
    (lambda y: y.producers[0].split(0, 4), "x.split(axis=0, factor=4): x is an input, which has no "
     "loops of its own; only cache_after and compute_at apply to inputs"),
    (lambda y: y.producers[0].merge(0), "x.merge(0): x is an input, which has no "
     "loops of its own; only cache_after and compute_at apply to inputs"),
    (lambda y: y.producers[0].reorder({0: 1}), "x.reorder({0: 1}): x is an input, which has no "
     "loops of its own; only cache_after and compute_at apply to inputs"),
    (lambda y: y.producers[0].axis(0).parallelize(PT.grid_x), "x.parallelize({0: grid_x}): x is an "
     "input, which has no loops of its own; only cache_after and compute_at apply to inputs"),
    (lambda y: y.producers[0].axis(0).pin(), "x.pin(0): x is an input, which has no "
     "loops of its own; only cache_after and compute_at apply to inputs"),
    (lambda y: y.producers[0].inline_at(1), "x.inline_at(1): x is an input, which has no "
     "loops of its own; only cache_after and compute_at apply to inputs"),
    (lambda y: setattr(y, "memory", ln.SHARED), "y.set_memory(shared): y is an output, which is "
     "global; set the memory of an intermediate: cache_before or cache_after makes one"),
    (lambda y: setattr(y.producers[0], "memory", ln.LOCAL), "x.set_memory(local): x is an input, "
     "which is global; set the memory of an intermediate: cache_before or cache_after makes one"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD, ids=[m.split(":")[0] for _, m in BAD])
def test_bad_arguments_are_named_and_change_nothing(call: Call, message: str) -> None:
    f, y = mixed()
    before = state(f)
    with pytest.raises(ln.ScheduleError) as caught:
        call(y)
    assert str(caught.value) == message
    assert state(f) == before


def test_a_memory_is_one_of_three() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        t = x * 2.0
        f.output(t + 1.0, "y")
    for memory in (ln.SHARED, ln.GLOBAL, ln.LOCAL):
        t.memory = memory
        assert t.memory is memory
    with pytest.raises(ln.ScheduleError) as caught:
        t.memory = "shared"  # type: ignore[assignment]
    assert str(caught.value) == (
        "T1.set_memory('shared'): 'shared' is no memory; use ln.LOCAL, ln.SHARED or ln.GLOBAL"
    )


def test_merge_of_iteration_and_reduction_is_refused() -> None:
    f, y = summed()
    before = state(f)
    cases = {
        (0, 1): "axis 0 is an iteration axis and axis 1 a reduction",
        (1, 2): "axis 1 is a reduction axis and axis 2 an iteration",
    }
    for axes, kinds in cases.items():
        with pytest.raises(ln.ScheduleError) as caught:
            y.merge(*axes)
        assert str(caught.value) == f"y.merge({axes[0]}, {axes[1]}): {kinds} axis; {ONLY}"
    assert state(f) == before


@pytest.mark.parametrize(
    ("parallel", "bound"),
    [(PT.grid_y, "bound to blockIdx.y"), (PT.block_z, "bound to threadIdx.z"),
     (PT.vectorize, "vectorize"), (PT.unroll, "unroll"), (PT.cpu_parallel, "cpu_parallel")],
)  # fmt: skip
def test_split_and_merge_of_a_parallel_axis_are_refused(
    parallel: ln.ParallelType, bound: str
) -> None:
    f, y = doubled("I", "J")
    y.axis(1).parallelize(parallel)
    before = state(f)
    with pytest.raises(ln.ScheduleError) as caught:
        y.split(1, 4)
    message = f"y.split(axis=1, factor=4): axis 1 is {bound}; split before parallelize"
    assert str(caught.value) == message
    with pytest.raises(ln.ScheduleError) as caught:
        y.merge(0)
    assert str(caught.value) == f"y.merge(0): axis 1 is {bound}; merge before parallelize"
    assert state(f) == before
    y.axis(1).parallelize(PT.serial)
    y.merge(0)
    assert leaf(y) == "i:I * J"


def test_a_tensor_without_axes_has_none_to_name() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", (), ln.float32)
        y = f.output(x * 2.0, "y")
    for call in (lambda: y.split(0, 2), lambda: y.axis(-1)):
        with pytest.raises(ln.ScheduleError, match=r"y has 0 leaf axes \[\], so there is none to"):
            call()
    y.reorder([])
    y.reorder({})
    y.parallelize({})
    assert y.ndim == 0


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
