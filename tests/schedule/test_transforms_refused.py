"""What split, merge, reorder, parallelize and pin refuse: the whole message."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import loopnest as ln
from helpers.pointwise_fusions import doubled, summed
from helpers.schedule_run import PT, leaf, state

# What they refuse: the whole message


AXES = "y has 3 leaf axes [i0, i1, b2], so use -3..2"
NO_FACTOR = "use an int >= 1, the name of a size symbol, or arithmetic on these"
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
    (lambda y: y.split("i0", 4), "y.split(axis='i0', factor=4): y has no axis named 'i0'; "
     "its axes are [i0 N, i1 D, b2]"),
    (lambda y: y.split(True, 4), "y.split(axis=True, factor=4): axis True is not an int; "
     "leaf axes are given by position, or by name"),
    (lambda y: y.split(1.0, 4), "y.split(axis=1.0, factor=4): axis 1.0 is not an int; "  # type: ignore[arg-type]
     "leaf axes are given by position, or by name"),
    (lambda y: y.split(0, 0),
     f"y.split(axis=0, factor=0): the factor 0 is not allowed; {NO_FACTOR}"),
    (lambda y: y.split(0, -2),
     f"y.split(axis=0, factor=-2): the factor -2 is not allowed; {NO_FACTOR}"),
    (lambda y: y.split(0, 2.5),  # type: ignore[arg-type]
     f"y.split(axis=0, factor=2.5): the factor 2.5 is not allowed; {NO_FACTOR}"),
    (lambda y: y.split(0, True),
     f"y.split(axis=0, factor=True): the factor True is not allowed; {NO_FACTOR}"),
    (lambda y: y.split(0, "-D"),
     f"y.split(axis=0, factor='-D'): the factor '-D' is never 1 or more; {NO_FACTOR}"),
    (lambda y: y.split(0, "D // 2 +"),
     "y.split(axis=0, factor='D // 2 +'): the size 'D // 2 +' cannot be read; write integers and "
     "size symbols with + - * // %, such as 'N * K'"),
    (lambda y: y.split(0, "M // 2"),
     "y.split(axis=0, factor='M // 2'): of the size 'M // 2', 'M' is no size symbol of this "
     "fusion; write integers and size symbols with + - * // %, such as 'N * K'"),
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
     "leaf axes are given by position, or by name"),
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
    (lambda y: y.reorder("021"),
     "y.reorder('021'): y has no axis named '021'; its axes are [i0 N, i1 D, b2]"),
    (lambda y: y.reorder(3),
     "y.reorder(3): 3 is no order; use {old: new}, a permutation, or axes by name"),
    (lambda y: y.parallelize({3: PT.grid_x}),
     f"y.parallelize({{3: grid_x}}): axis 3 is out of range; {AXES}"),
    (lambda y: y.parallelize([PT.grid_x]),  # type: ignore[arg-type]
     "y.parallelize([grid_x]): [<ParallelType.grid_x: 'grid_x'>] is no mapping; "
     "use {axis: ln.ParallelType.grid_x}"),
    (lambda y: y.parallelize({0: "grid_x"}),  # type: ignore[dict-item]
     "y.parallelize({0: 'grid_x'}): 'grid_x' is no ParallelType; use ln.ParallelType.{serial, "
     "grid_x, grid_y, grid_z, block_x, block_y, block_z, vectorize, unroll, unswitch, "
     "cpu_parallel, mma}"),
    (lambda y: y.parallelize({0: PT.block_x, 1: PT.block_x}),
     "y.parallelize({0: block_x, 1: block_x}): axes 0 and 1 of y would both be block_x; "
     "one axis of a tensor may have a launch dimension"),
    (lambda y: y.parallelize({0: PT.grid_x, -3: PT.unroll}),
     "y.parallelize({0: grid_x, -3: unroll}): axis 0 of y would be grid_x and unroll; "
     "give an axis one parallel type"),
    (lambda y: y.pin(7), f"y.pin(7): axis 7 is out of range; {AXES}"),
    (lambda y: y.axis(3), f"y.axis(3): axis 3 is out of range; {AXES}"),
    (lambda y: y.axis(None), "y.axis(None): axis None is not an int; "  # type: ignore[arg-type]
     "leaf axes are given by position, or by name"),
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
        "T1.set_memory('shared'): 'shared' is no memory; use ln.LOCAL, ln.WARP, ln.SHARED or "
        "ln.GLOBAL"
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
