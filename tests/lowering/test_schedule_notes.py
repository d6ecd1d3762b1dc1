"""Notes on loops and calls that have no effect on the loop nest, in exact words."""

from __future__ import annotations

import inspect
import pickle

import pytest

import loopnest as ln
from helpers.schedule_notes import PT, notes, scaled
from loopnest.scalar.origin import Origin


def test_fields_and_place() -> None:
    f, _, y = scaled("N")
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    y.parallelize({0: PT.unroll})
    (note,) = ln.lower(f).notes
    assert note.subject == "y"
    assert note.asked == "y.parallelize({0: unroll})"
    assert note.became == "the loop over y.i0 is not unrolled"
    assert note.why == "its extent N is known at run time only"
    assert note.remedy == "split the axis by a constant, and unroll the inner one"
    assert note.origin == Origin(__file__, line, "y.parallelize({0: unroll})")


def test_nothing_to_say() -> None:
    f, _, y = scaled("N")
    f.assume("N % 4 == 0")
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.vectorize})
    assert notes(f) == []


def test_vectors_across_rows() -> None:
    f, _, y = scaled("N", "M", "K")
    y.split(0, 4).reorder({1: -1})
    y.axis(-1).parallelize(PT.vectorize)
    assert notes(f) == [
        "y: y.parallelize({3: vectorize}): nothing is loaded or stored in vectors in the loop "
        "over y.i3, because neighbouring lanes do not access neighbouring elements of x; "
        "vectorize an axis that runs along the innermost one of x, split from it without a "
        "merge"
    ]


@pytest.mark.parametrize("merges", [(0, 0), (1, 0), (1, 1)])
def test_vectors_of_merged_axes(merges: tuple[int, int]) -> None:
    """Of any number of merged axes: a row is as long as all of them."""
    f, _, y = scaled("N", "M", "K", "L")
    for axis in merges:
        y.merge(axis)
    y.split(y.ndim - 1, 4)
    y.axis(-1).parallelize(PT.vectorize)
    assert notes(f) == []


@pytest.mark.parametrize("assumed", [False, True])
def test_vectors_of_a_row_that_merged_axes_repeat(assumed: bool) -> None:
    with ln.Fusion("k") as f:
        x, b = f.input("x", ("N", "M", "K"), ln.float32), f.input("b", ("K",), ln.float32)
        if assumed:
            f.assume("K % 4 == 0")
        y = f.output(x + b, "y")
    row = b.cache_after()
    y.merge(0).merge(0).split(0, 4)
    ln.propagate(y)
    row.compute_at(y, 1)
    row.axis(-1).parallelize(PT.vectorize)
    f.inline_most()
    wanted = [
        "T4: T4.parallelize({1: vectorize}): nothing is loaded or stored in vectors in the "
        "loop over T4.i1, because neighbouring lanes access neighbouring elements of b only "
        'where 4 divides K; state it: f.assume("K % 4 == 0")'
    ]
    assert notes(f) == ([] if assumed else wanted)
    if assumed:
        assert "T4[i1] = b[i0 * 4 % K + i1]" in str(ln.lower(f))


def test_vectors_of_registers() -> None:
    f, x, y = scaled("N")
    x.cache_after()
    t = y.cache_before()
    y.split(0, 256).split(1, 4)
    ln.propagate(y)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    ln.parallelize_like(y)
    for tensor in f.tensors[1:]:
        if tensor is not y:
            tensor.compute_at(y, 2)
    t.axis(2).parallelize(PT.vectorize)
    assert notes(f)[:1] == [
        f"{t.name}: {t.name}.parallelize({{2: vectorize}}): nothing is loaded or stored in "
        f"vectors in the loop over {t.name}.i2, because all that it accesses in each iteration "
        "lies in registers; vectorize the tensor that loads or stores memory: an output, or a "
        "cache_after of an input"
    ]


def test_vectors_of_few_bytes() -> None:
    with ln.Fusion("flags") as f:
        x = f.input("x", ("N",), ln.bool)
        y = f.output(ln.logical_not(x), "y")
    f.assume("N % 2 == 0")
    y.split(0, 2).axis(1).parallelize(PT.vectorize)
    assert notes(f) == [
        "y: y.parallelize({1: vectorize}): nothing is loaded or stored in vectors in the loop "
        "over y.i1, because 2 elements of x are fewer than 4 bytes; split by a larger factor"
    ]


@pytest.mark.parametrize("kind", [PT.unroll, PT.block_x, PT.grid_y])
def test_parallel_type_of_extent_one(kind: ln.ParallelType) -> None:
    f, _, y = scaled("N")
    y.split(0, 1).axis(1).parallelize(kind)
    assert notes(f) == [
        f"y: y.parallelize({{1: {kind.value}}}): no loop is {kind.value}, because y.i1 has one "
        "element; leave the call out, or parallelize an axis of more elements"
    ]


def test_unswitch_of_extent_one() -> None:
    f, _, y = scaled("N")
    y.split(0, 4).split(0, 1)
    y.axis(1).parallelize(PT.unswitch)
    assert notes(f) == []


def test_unswitch_around_a_barrier() -> None:
    f, x, y = scaled("N")
    t = x.cache_after()
    t.memory = ln.SHARED
    y.split(0, 32).split(0, 8)
    t.compute_at(y, 2)
    t.split(-1, 16)
    y.parallelize({0: PT.grid_x, 1: PT.unswitch, 2: PT.block_x})
    t.axis(-1).parallelize(PT.block_x)
    assert notes(f)[:1] == [
        "y: y.parallelize({0: grid_x, 1: unswitch, 2: block_x}): the tests inside of the loop "
        "over y.i1 are made in each iteration, because a barrier stands inside of it, which "
        "all threads have to reach; unswitch an inner axis, without barriers"
    ]


def test_guard_in_the_innermost_loop() -> None:
    f, _, y = scaled("N")
    y.split(0, 4)
    assert notes(f) == [
        "y.i1: a loop over y.i1: i0 * 4 + i1 < N is tested in each iteration, because y: split "
        'by 4 need not divide N; f.assume("N % 4 == 0"), or parallelize '
        "this axis, or one around it, as unswitch"
    ]
    f.assume("N % 4 == 0")
    assert notes(f) == []


def test_one_note_for_a_loop_that_tensors_share() -> None:
    with ln.Fusion("shared") as f:
        x = f.input("x", ("N",), ln.float32)
        t = ln.exp(x)
        y = f.output(t * 2.0, "y")
    y.parallelize({0: PT.unroll})
    ln.parallelize_like(y)
    with f:
        ln.propagate(y)
    t.compute_at(y, 1)
    assert notes(f) == [
        "y: y.parallelize({0: unroll}): the loop over y.i0 is not unrolled, because its extent "
        "N is known at run time only; split the axis by a constant, and unroll the inner one"
    ]


def test_guard_of_a_static_size() -> None:
    f, _, y = scaled(5)
    y.split(0, 4)
    assert notes(f) == [
        "y.i1: a loop over y.i1: i0 * 4 + i1 < 5 is tested in each iteration, because y: split "
        "by 4 need not divide 5; split by 5 in place of 4: 5 divides 5, or parallelize "
        "this axis, or one around it, as unswitch"
    ]


def test_unswitch_takes_the_guard_away() -> None:
    f, _, y = scaled("N")
    y.split(0, 4).axis(1).parallelize(PT.unswitch)
    assert notes(f) == []


def test_assumption_that_nothing_used() -> None:
    f, _, _ = scaled("N")
    f.assume("N % 4 == 0")
    f.assume("N != 3")
    assert notes(f) == [
        "scaled: scaled.assume('N % 4 == 0'): each launch checks it, and nothing is faster, "
        "because no index, test or bound of this schedule depends on it; leave it out, so that "
        "other sizes may be launched",
        "scaled: scaled.assume('N != 3'): each launch checks it, and nothing is faster, "
        "because an assumption before it says as much, or nothing follows from one of this "
        "form; leave it out, so that other sizes may be launched",
    ]


def test_a_bound_of_blocks_that_decides_nothing() -> None:
    f, _, y = scaled("N")
    y.axis(0).parallelize(PT.grid_x)
    f.assume("N <= 100000")
    (note,) = notes(f)
    assert note.startswith(
        "scaled: scaled.assume('N <= 100000'): each launch checks it, and nothing is faster"
    )


def test_calls_on_what_is_not_computed() -> None:
    with ln.Fusion("dead") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x * 2.0, "y")
        x_ = x + 1.0
    x_.split(0, 4)
    assert notes(f) == [
        "T2: T2.split(axis=0, factor=4): the call has no effect, because no output depends on "
        "T2, so that it is never computed; declare an output that does (f.output), or leave "
        "the call out"
    ]


@pytest.mark.parametrize("op", ["index_add", "scatter_add"])
def test_calls_on_the_zeros_that_a_sum_starts_from(op: str) -> None:
    with ln.Fusion("histogram") as f:
        key = f.input("key", ("N",), ln.int32)
        x = f.input("x", ("N",), ln.float32)
        f.assume_range(key, 0, 15)
        zeros = ln.full((16,), 0.0, ln.float32)
        if op == "index_add":
            f.output(ln.index_add(zeros, 0, key, x), "y")
        else:
            f.output(ln.scatter_add(zeros, key, x, 0), "y")
    zeros.split(0, 4)
    assert notes(f) == [
        "T2: T2.split(axis=0, factor=4): the call has no effect, because what is added to "
        "zeros (index_add, scatter_add) starts at 0 by itself, so that these zeros are never "
        "computed; call it on the result of that, or leave it out"
    ]


def test_loops_that_a_later_call_replaced() -> None:
    with ln.Fusion("two") as f:
        x = f.input("x", ("N",), ln.float32)
        t = ln.exp(x)
        y = f.output(t * 2.0, "y")
    t.split(0, 4)
    t.axis(1).parallelize(PT.unroll)
    y.split(0, 8)
    t.compute_at(y, 1)
    assert notes(f)[:1] == [
        "T1: T1.parallelize({1: unroll}): the call has no effect, because a later call gave T1 "
        "other loops, without this axis; repeat it after that call"
    ]


def test_a_later_call_takes_the_place_of_an_earlier_one() -> None:
    f, _, y = scaled("N")
    y.parallelize({0: PT.unroll})
    y.parallelize({0: PT.grid_x})
    assert notes(f) == []


def test_notes_are_those_of_the_time_of_lowering() -> None:
    f, _, y = scaled("N")
    y.parallelize({0: PT.unroll})
    kernel = ln.lower(f)
    y.parallelize({0: PT.serial})
    y.split(0, 4)
    f.assume("N % 4 == 0")
    assert [note.asked for note in kernel.notes] == ["y.parallelize({0: unroll})"]
    assert notes(f) == []


def test_notes_are_pickled() -> None:
    f, _, y = scaled("N")
    y.parallelize({0: PT.unroll})
    kernel = ln.lower(f)
    copied = pickle.loads(pickle.dumps(kernel))
    assert copied.notes == kernel.notes != ()
    assert ln.lower(pickle.loads(pickle.dumps(f))).notes == kernel.notes


def test_unswitch_of_tests_that_fail_at_the_largest_index() -> None:
    f, _, y = scaled(5)
    y.split(0, 4).axis(0).parallelize(PT.unswitch)
    assert notes(f)[:1] == [
        "y: y.parallelize({0: unswitch}): the tests inside of the loop over y.i0 are made in "
        "each iteration, because one test of the largest index does not decide them; unswitch "
        "an inner axis, or state by f.assume that tiles divide the sizes"
    ]


def test_pinned_axis_that_a_later_call_replaced() -> None:
    with ln.Fusion("two") as f:
        x = f.input("x", ("N",), ln.float32)
        t = ln.exp(x)
        y = f.output(t * 2.0, "y")
    t.split(0, 4).pin(1)
    y.split(0, 8)
    t.compute_at(y, 1)
    assert notes(f)[:1] == [
        "T1: T1.pin(1): the call has no effect, because a later call gave T1 other loops, "
        "without this axis; repeat it after that call"
    ]


def test_vectors_around_a_loop() -> None:
    f, x, y = scaled("N", 4)
    t = x.cache_after()
    t.memory = ln.SHARED
    t.compute_at(y, 2)
    y.parallelize({1: PT.vectorize})
    assert notes(f) == [
        "y: y.parallelize({1: vectorize}): nothing is loaded or stored in vectors in the loop "
        "over y.i1, because a test, a loop or a barrier stands inside of the loop; vectorize "
        "the innermost axis, and state by f.assume that its extent divides the size"
    ]


def test_vectors_of_rows_that_begin_anywhere() -> None:
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N", 5), ln.float32)
        t = x[:, 1:]
        y = f.output(t * 2.0, "y")
    t.compute_at(y, 1)
    t.axis(1).parallelize(PT.vectorize)
    assert notes(f) == [
        "T1: T1.parallelize({1: vectorize}): nothing is loaded or stored in vectors in the "
        "loop over T1.i1, because nothing says that the first lane accesses an element of x at "
        "a multiple of 4; state by f.assume that the vector divides the row length of x"
    ]
