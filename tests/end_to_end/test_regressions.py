"""Schedules that were once lowered wrongly, as `tools/fuzz.py` found and shrank them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import loopnest as ln
from loopnest import ParallelType
from loopnest.devtools.fuzzing import check, expect
from loopnest.devtools.fuzzing.judge import Expected

SIZES = ({"N": 8, "M": 4}, {"N": 5, "M": 3}, {"N": 1, "M": 1}, {"N": 3, "M": 0}, {"N": 0, "M": 2})


def meaning(f: ln.Fusion, *sizes: Mapping[str, int]) -> list[Expected]:
    """Return what `f`, which is not scheduled yet, computes at `SIZES` or the given sizes."""
    needed = {symbol.name for symbol in f.symbols}
    found = [{n: v for n, v in s.items() if n in needed} for s in sizes or SIZES]
    return [expect(f, s, data) for data, s in enumerate(found)]


# Axes that a tensor lacks


def test_broadcast_axis_of_an_output_is_stored_at_0() -> None:
    """Its loop runs over the axis of the consumer that makes it concrete."""
    with ln.Fusion() as f:
        x = f.input("x", ("N", "N"), ln.float32)
        y0 = f.output(ln.mean(ln.broadcast(x, (True, False, False)), -2), "y0")
        y1 = f.output(y0 + x, "y1")
    expected = meaning(f)
    y0.compute_at(y1, 1)
    assert check(f, expected) == ""


def test_update_is_not_repeated_by_the_loop_of_another_consumer() -> None:
    """y0 reduces t inside the loop over the columns of the product, which it does not have."""
    with ln.Fusion() as f:
        x0 = f.input("x0", ("N", "N"), ln.float32)
        x1 = f.input("x1", ("N", "N", "M", "N"), ln.float32)
        t = ln.permute(x1, (1, 0, 2, 3))
        f.output(ln.sum(t, None), "y0")
        f.output(ln.matmul(t, x0), "y1")
    expected = meaning(f)
    f.inline_most()
    assert check(f, expected) == ""


@pytest.mark.parametrize("stored", [True, False], ids=["global", "local"])
@pytest.mark.parametrize("transform", ["", "merge", "split"])
def test_update_is_not_repeated_by_a_broadcast_axis(transform: str, stored: bool) -> None:
    """The sum has a broadcast axis, whose loop runs over the axis of the other consumer."""
    with ln.Fusion() as f:
        x = f.input("x", ("N",), ln.float32)
        w = f.input("w", ("N", "M"), ln.float32)
        b = ln.broadcast(ln.neg(x), (False, True))
        s = ln.sum(b, 0)
        f.output(s if stored else ln.exp(s), "y0")
        y1 = f.output(b + w, "y1")
    expected = meaning(f)
    if transform:
        y1.merge(0)
    if transform == "split":
        y1.split(0, 3)
    b.compute_at(y1, -1)
    assert check(f, expected) == ""


def test_both_parts_of_a_split_stand_for_one_axis() -> None:
    """y0 splits the second axis merged with a broadcast axis, t splits it alone."""
    with ln.Fusion() as f:
        x0 = f.input("x0", ("N", "N", "M"), ln.float32)
        x1 = f.input("x1", (1, "M"), ln.float32)
        t = x1 + x1
        y0 = f.output(ln.broadcast(t + x0, (False, False, True, False)), "y0")
        f.output(t, "y1")
    expected = meaning(f)
    y0.split(1, 2)
    y0.merge(2)
    y0.reorder([3, 0, 2, 1])
    y0.split(2, 1)
    t.compute_at(y0, 3)
    assert check(f, expected) == ""


# Outputs of one definition


def test_outputs_of_one_reduction_in_different_memories() -> None:
    """Holes of a local buffer may be initialised, those of an output may not."""
    with ln.Fusion() as f:
        x = f.input("x", (5, "M", "N"), ln.float32)
        _, spread, count = ln.welford(x, 2)
        f.output(spread, "y0")
        y1 = f.output(ln.matmul(count, ln.permute(x, (0, 1, 2))), "y1")
    expected = meaning(f)
    y1.split(1, "M")
    ln.propagate(y1, -4)
    assert check(f, expected[:3]) == ""


@pytest.mark.parametrize("axis", [1, 2], ids=["reduced", "squeezed"])
def test_global_output_beside_a_local_one_in_many_blocks(axis: int) -> None:
    """One block writes the output; every block computes the values of the local tensor."""
    with ln.Fusion() as f:
        x = f.input("x", ("N", "M", 1), ln.float32)
        mean, spread, _ = ln.welford(x, axis)
        f.output(mean, "y0")
        y1 = f.output(ln.exp(spread), "y1")
    expected = meaning(f)
    y1.axis(1).parallelize(ParallelType.grid_y)
    assert check(f, expected) == ""


# Factored reductions


def test_rfactor_of_an_axis_behind_two_transforms() -> None:
    with ln.Fusion() as f:
        x = f.input("x", (4, "M"), ln.float32)
        y = f.output(ln.sum(x, None), "y")
    expected = meaning(f)
    y.split(1, 3)
    y.merge(0)
    y.split(0, 4, inner=False)
    y.rfactor([0, 2])
    assert check(f, expected) == ""


def test_rfactor_of_a_factored_reduction_initialises_the_holes() -> None:
    """The second partial result has more points than the first has elements."""
    with ln.Fusion() as f:
        x = f.input("x", ("N",), ln.float32)
        s = ln.sum(ln.exp(x), 0)
        y = f.output(ln.exp(s), "y")
    expected = meaning(f)
    s.split(0, 2)
    s.rfactor(0)
    s.split(0, 8, inner=False)
    s.split(1, 3)
    s.rfactor([2, 1])
    assert check(f, expected) == ""
    assert y.producers == (s,)


def test_rfactor_keeps_the_broadcast_axes_of_the_result() -> None:
    with ln.Fusion() as f:
        x = f.input("x", (1, "N"), ln.float32)
        y = f.output(ln.sum(x, 1), "y")
    y.merge(0)
    y.split(0, 4)
    before = str(y)
    with pytest.raises(ln.ScheduleError) as caught:
        y.rfactor(0)
    assert str(caught.value) == (
        "y.rfactor(0): one of the axes was made by merging a broadcast axis of y with a reduction "
        "axis; call rfactor before that merge: the result keeps the broadcast axis"
    )
    assert str(y) == before


# Threads that do not take part


def test_output_in_place_is_not_overwritten_while_other_blocks_read() -> None:
    """Block 0 overwrites x, the other blocks of y0 still read it."""
    with ln.Fusion() as f:
        x = f.input("x", ("N",), ln.float32)
        t = ln.clamp(x, -1.0, x)
        y0 = f.output(t + x * t, "y0")
        f.output(x * x, "y1", inplace=x)
    expected = meaning(f)
    y0.axis(0).parallelize(ParallelType.grid_x)
    assert check(f, expected) == "an output in place is read late"


def test_every_block_reads_what_one_block_wrote() -> None:
    """t is written by block 0; u does not use grid_x either, but every block computes it."""
    with ln.Fusion() as f:
        x = f.input("x", ("N", "M"), ln.float32)
        t = ln.exp(x)
        u = -t
        y = f.output(u + x, "y")
    expected = meaning(f)
    t.memory = ln.GLOBAL
    y.axis(0).parallelize(ParallelType.grid_x)
    assert check(f, expected) == ""
    assert "barrier grid" in str(ln.lower(f))


def test_one_launch_dimension_on_two_loops_of_a_nest_is_refused() -> None:
    """Two outputs bind different axes, whose loops nest around the producer that they share."""
    with ln.Fusion() as f:
        x = f.input("x", ("N", "M"), ln.float32)
        t = ln.exp(x)
        y0 = f.output(-t, "y0")
        y1 = f.output(t * t, "y1")
    expected = meaning(f)
    f.inline_most()
    y0.axis(0).parallelize(ParallelType.block_z)
    y1.axis(1).parallelize(ParallelType.block_z)
    assert check(f, expected) == "a launch dimension twice"
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value).endswith(
        "around it are both block_z; one launch dimension may be used once in a nest"
    )


def test_loop_runs_for_every_output_of_one_definition() -> None:
    """The mean is read inside a loop over M; variance and count are outputs that lack M."""
    with ln.Fusion() as f:
        x = f.input("x", ("N", "M"), ln.float32)
        z = f.input("z", ("M",), ln.float32)
        mean, variance, count = ln.welford(x, 1, keepdims=True)
        f.output(mean + z, "y0")
        f.output(variance, "y1")
        f.output(count, "y2")
    expected = meaning(f)
    f.inline_most()
    assert check(f, expected) == ""


def test_a_doubled_body_keeps_its_values_apart_from_its_twin() -> None:
    """Only one of the two bodies of an unswitch loop runs across the threads on "c"."""
    with ln.Fusion() as f:
        x = f.input("x", ("M", "N"), ln.float32)
        t = x * 2.0
        y = f.output(ln.sum(t, 1), "y")
    expected = meaning(f)
    y.split(1, 5)
    t.compute_at(y, 3)
    y.axis(1).parallelize(ParallelType.unswitch)
    y.axis(2).parallelize(ParallelType.block_x)
    ln.parallelize_like(y)
    assert check(f, expected) == ""


@pytest.mark.parametrize("fold", [ln.sum, ln.max])
def test_the_rest_of_a_factored_reduction_in_a_loop_that_must_run(fold: Any) -> None:
    """Its loop runs at least once, for an output that lacks the axis that it is a part of."""
    with ln.Fusion() as f:
        x = f.input("x", ("N",), ln.float32)
        z = f.input("z", ("M",), ln.float32)
        t = -ln.broadcast(x, (False, True))
        f.output(ln.cos(t), "y0")
        y = f.output(fold(ln.maximum(z, t), 1), "y1")
    expected = meaning(f)
    y.split(1, 4)
    rest = y.rfactor(2)
    rest.memory = ln.GLOBAL
    t.compute_at(y, 2)
    assert check(f, expected) == ""


def test_an_output_that_is_repeated_by_a_merged_parallel_loop_is_stored_once() -> None:
    """Two iterations of a cpu_parallel loop do not store one element, not even the same value."""
    with ln.Fusion() as f:
        x = f.input("x", ("M",), ln.float32)
        t = ln.tanh(x)
        f.output(-t, "y0")
        y = f.output(ln.expand(ln.broadcast(t, (True, False)), ("N", "M")), "y1")
    expected = meaning(f)
    y.merge(0)
    t.compute_at(y, 1)
    y.axis(0).parallelize(ParallelType.cpu_parallel)
    assert check(f, expected) == ""
    assert ln.verify(ln.lower(f)).ok


def test_a_global_tensor_that_serial_loops_store_again_is_not_overtaken() -> None:
    """Other blocks read an element while the first stores it again: a barrier stands between."""
    with ln.Fusion() as f:
        x = f.input("x", ("N", "M"), ln.float32)
        z = f.input("z", ("N", 3, "M"), ln.float32)
        t = ln.broadcast(x * 2.0, (False, True, False))
        f.output(t, "y0")
        y = f.output(t + z, "y1")
    expected = meaning(f)
    y.merge(1)
    y.merge(0)
    y.split(0, 16)
    t.compute_at(y, 1)
    y.axis(1).parallelize(ParallelType.grid_x)
    assert check(f, expected) == ""
    assert ln.verify(ln.lower(f)).ok


def test_a_global_tensor_is_not_read_beside_the_iteration_that_stores_it() -> None:
    """The first iteration stores it for all, and iterations on the host do not wait for it."""
    with ln.Fusion() as f:
        x = f.input("x", (2, "N"), ln.float32)
        t = ln.exp(x)
        share = t / ln.sum(t, 0, keepdims=True)
        u = -t
        y = f.output(share * x, "y0")
        f.output(u + 2.0, "y1").cache_before()
    expected = meaning(f)
    u.memory = ln.GLOBAL
    t.compute_at(share.producers[1], -1, recompute=True)
    share.compute_at(y, 1)
    assert check(f, expected) == ""
    y.axis(0).parallelize(ParallelType.cpu_parallel)
    assert check(f, expected) == "a race in a parallel loop"


def test_an_output_in_place_of_the_last_block_waits_for_all_who_read() -> None:
    """Blocks that read after their arrival do not know whether the last one has stored."""
    for late in (True, False):
        with ln.Fusion() as f:
            x = f.input("x", ("N",), ln.float32)
            z = f.input("z", (1,), ln.float32)
            total = ln.sum(x * z, 0, keepdims=True)
            f.output(total * 2.0, "y0", inplace=z)
            if late:
                f.output(z + 1.0, "y1")
        expected = meaning(f)
        total.reduction.producers[0].compute_at(total.reduction, 1)
        total.reduction.parallelize({0: ParallelType.grid_x})
        assert check(f, expected) == ("an output in place is read late" if late else "")


# Reductions that are factored more than once


@pytest.mark.parametrize("memory", [ln.LOCAL, ln.SHARED, ln.GLOBAL], ids=str)
@pytest.mark.parametrize("fold", [ln.sum, ln.max, ln.var])
def test_the_parts_of_a_split_that_does_not_divide_hold_the_identity(
    fold: Any, memory: ln.Memory
) -> None:
    """The second stage reads an element for each part, also for those that no point belongs to."""
    with ln.Fusion() as f:
        x = f.input("x", ("N", "M"), ln.float32)
        y = f.output(fold(x, axis=(0, 1)), "y")
    expected = meaning(f, *({"N": 3, "M": m} for m in (0, 1, 7, 8, 17)))
    parts = next(t for t in f.tensors if t.definition and t.definition.reducer)
    parts.split(1, 8)
    first = parts.rfactor([0, 1])
    second = first.rfactor([0])
    second.memory = memory
    assert y.is_output
    assert check(f, expected) == ""
    assert ln.verify(ln.lower(f)).ok


@pytest.mark.parametrize("memory", [ln.LOCAL, ln.SHARED, ln.GLOBAL], ids=str)
def test_a_part_is_tested_where_its_own_loops_overshoot_it(memory: ln.Memory) -> None:
    """The split of a part does not divide it: its elements end there, not those of the root."""
    with ln.Fusion() as f:
        x = f.input("x", ("N", "M"), ln.float32)
        y = f.output(ln.sum(x, axis=(0, 1)), "y")
    expected = meaning(f, {"N": 3, "M": 23}, {"N": 2, "M": 4}, {"N": 0, "M": 3})
    y.split(1, 5)
    first = y.rfactor([0, 1])
    first.split(2, 2)
    second = first.rfactor([0])
    second.split(0, 3)
    first.memory = second.memory = memory
    assert check(f, expected) == ""
    assert ln.verify(ln.lower(f)).ok


@pytest.mark.parametrize("outside", [True, False], ids=["threads", "serial"])
def test_the_element_of_a_factored_reduction_is_not_told_by_way_of_its_root(
    outside: bool,
) -> None:
    """Parts of a part that does not divide: the root's index at one is that of another."""
    with ln.Fusion() as f:
        x = f.input("x", ("M",), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
    expected = meaning(f, *({"M": m} for m in (0, 1, 3, 16, 35)))
    y.split(0, "M")
    y.split(1, 16)
    parts = y.rfactor([0, 1])
    if outside:
        parts.split(0, 1)
        parts.parallelize({0: ParallelType.block_y, 1: ParallelType.block_x})
    parts.memory = ln.SHARED
    assert check(f, expected) == ""
    assert ln.verify(ln.lower(f)).ok


def test_a_part_of_a_part_that_does_not_divide_is_no_other_part() -> None:
    """Proved: the padding of the second split holds nothing of the next part of the first."""
    with ln.Fusion() as f:
        y = f.output(ln.sum(f.input("x", ("N",), ln.float32)), "y")
    expected = meaning(f)
    y.split(0, 1)
    first = y.rfactor([1])
    first.split(1, 4)
    first.rfactor([1]).memory = ln.SHARED
    assert check(f, expected) == ""
    assert ln.verify(ln.lower(f)).ok


def test_a_component_that_nobody_reads_has_no_store_where_one_element_is_reduced() -> None:
    """The part that is left of the axis has one element: there is no update, but a definition."""
    with ln.Fusion() as f:
        x = f.input("x", (3,), ln.float32)
        last = ln.Reducer(
            (0.0, False), lambda a, b: (ln.where(b[1], b[0], a[0]), a[1] | b[1]), "last"
        )
        _, found = ln.reduce(last, (x, x > 0.25), -1)
        f.output(found, "y")
    expected = meaning(f, {})
    found.split(0, 1)
    found.rfactor(0)
    assert check(f, expected, ("interpret", "verify")) == ""


@pytest.mark.parametrize("sizes", [("N", "M"), (8, 8)], ids=["symbolic", "static"])
@pytest.mark.parametrize("threads", [True, False], ids=["block", "serial"])
def test_lanes_do_not_read_what_one_of_them_stores(
    threads: bool, sizes: tuple[str | int, ...]
) -> None:
    """A tensor in GLOBAL memory, inlined before its consumer's innermost axis was vectorized."""
    with ln.Fusion() as f:
        x = f.input("x", sizes, ln.float32)
        y0 = f.output(ln.min(x, None, keepdims=True), "y0")
        y1 = f.output(x > y0, "y1")
    y1.split(-1, 4)
    ln.propagate(y1)
    f.inline_most()
    if threads:
        y1.axis(1).parallelize(ParallelType.block_x)
    y1.axis(-1).parallelize(ParallelType.vectorize)
    with pytest.raises(ln.LoweringError) as error:
        ln.lower(f)
    assert str(error.value) == (
        "y0: one lane of the vectorize loop y1.i2 stores it, and all lanes compute y1 of it; "
        "compute it outside of that loop: nothing is inlined past an axis that is vectorized "
        "already"
    )
    y1.axis(-1).parallelize(ParallelType.unroll)
    assert ln.verify(ln.lower(f)).ok


def test_lanes_read_what_each_of_them_stores() -> None:
    """An axis that a tensor lacks may stand outside of the lanes."""
    with ln.Fusion() as f:
        x = f.input("x", (4, 8), ln.float32)
        row = f.input("row", (8,), ln.float32)
        y0 = f.output(ln.exp(ln.broadcast(row, (True, False))), "y0")
        y1 = f.output(x + y0, "y1")
    y1.split(-1, 4)
    y0.compute_at(y1, 3)
    y1.axis(-1).parallelize(ParallelType.vectorize)
    assert ln.verify(ln.lower(f)).ok


def test_a_wide_output_beside_one_of_16_bits_is_folded_by_all_threads() -> None:
    """The count was kept in memory that one thread wrote while all read it."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float16)
        mean, _, count = ln.welford(x, -1)
        y = f.output(x * 2.0, "y")
        f.output(count, "count")
        f.output(mean, "mean")
    y.axis(0).parallelize(ln.ParallelType.block_y)
    assert ln.verify(ln.lower(f)).all_sizes


def test_both_results_of_an_argmin_are_repeated_under_a_loop_that_is_not_theirs() -> None:
    """The replay of the second one lacked the loops that only repeat the first."""
    with ln.Fusion("k") as f:
        least = ln.argmin(f.input("x", (8, "N"), ln.float32), 1)
        padded = ln.pad(least, [(-1, 0)], 1)
        y = f.output(padded, "y")
    y.split(0, 2)
    y.split(-1, 2)
    y.reorder([0, 2, 1])
    y.split(2, 2)
    least.compute_at(padded, 4)
    assert ln.verify(ln.lower(f)).ok


def test_one_thread_starts_a_result_that_lacks_the_threads_inside_of_its_fold() -> None:
    """The update was tested, and the init before it ran in all threads."""
    reducer = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")
    with ln.Fusion("k") as f:
        x = f.input("x", ("M", "N"), ln.float32)
        product, folded = ln.reduce(reducer, (ln.sin(ln.max(x, 0)), x), -1)
        y = f.output(folded, "y")
        f.output(product, "product")
    y.definition.outputs[0].reorder([1, 0])
    x.compute_at(y, -2)
    f.inline_most()
    y.axis(1).parallelize(ParallelType.block_x)
    assert ln.verify(ln.lower(f)).all_sizes
