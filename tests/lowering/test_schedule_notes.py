"""Notes: what was asked of a schedule and has no effect on its loop nest, in exact words."""

from __future__ import annotations

import inspect
import pickle

import pytest

import loopnest as ln
from loopnest.scalar.origin import Origin

PT = ln.ParallelType


def scaled(*shape: int | str) -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    """Return the fusion y = x * 2, x and y."""
    with ln.Fusion("scaled") as f:
        x = f.input("x", shape, ln.float32)
        y = f.output(x * 2.0, "y")
    return f, x, y


def staged() -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    """Return x -> r (registers) -> t (shared, of two stages later) -> y, and r and t."""
    f, x, y = scaled("N")
    t = x.cache_after()
    t.memory = ln.SHARED
    r = x.cache_after()
    y.split(0, 128).split(0, 8)
    ln.propagate(y)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    ln.parallelize_like(y)
    t.compute_at(y, 2)
    return f, r, t


def notes(f: ln.Fusion) -> list[str]:
    """Return the notes of `f`, without their places, each of which must be in this file."""
    found = ln.lower(f).notes
    result = []
    for note in found:
        assert note.origin is not None
        assert note.origin.file == __file__
        place = f" ({note.origin.file}:{note.origin.line})"
        assert str(note).endswith(place)
        result.append(str(note).removesuffix(place))
    return result


def test_fields_and_place() -> None:
    f, _, y = scaled("N")
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    y.parallelize({0: PT.unroll})
    (note,) = ln.lower(f).notes
    assert note.subject == "y"
    assert note.asked == "y.parallelize({0: unroll})"
    assert note.became == "the loop over y.i0 stays a loop"
    assert note.why == "its extent N is known at run time only"
    assert note.remedy == "split the axis by a constant and unroll the inner one"
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
        "y: y.parallelize({3: vectorize}): no access is wide in the loop over y.i3, neighbouring "
        "lanes do not access neighbouring elements of x; vectorize an axis that runs along the "
        "innermost one of x, split from it without a merge"
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
        "T4: T4.parallelize({1: vectorize}): no access is wide in the loop over T4.i1, "
        "neighbouring lanes access neighbouring elements of b only where 4 divides K; "
        'assume("K % 4 == 0")'
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
        f"{t.name}: {t.name}.parallelize({{2: vectorize}}): no access is wide in the loop "
        f"over {t.name}.i2, all that the loop surely accesses lies in registers; "
        "vectorize the tensor that loads or stores memory: an output, or a cache_after of an input"
    ]


def test_vectors_of_few_bytes() -> None:
    with ln.Fusion("flags") as f:
        x = f.input("x", ("N",), ln.bool)
        y = f.output(ln.logical_not(x), "y")
    f.assume("N % 2 == 0")
    y.split(0, 2).axis(1).parallelize(PT.vectorize)
    assert notes(f) == [
        "y: y.parallelize({1: vectorize}): no access is wide in the loop over y.i1, 2 elements "
        "of x are fewer than 4 bytes; split by a larger factor"
    ]


@pytest.mark.parametrize("kind", [PT.unroll, PT.block_x, PT.grid_y])
def test_parallel_type_of_extent_one(kind: ln.ParallelType) -> None:
    f, _, y = scaled("N")
    y.split(0, 1).axis(1).parallelize(kind)
    assert notes(f) == [
        f"y: y.parallelize({{1: {kind.value}}}): no loop is {kind.value}, y.i1 has extent 1; "
        "leave the type out, or give it to an axis of more elements"
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
        "y: y.parallelize({0: grid_x, 1: unswitch, 2: block_x}): the tests stay in the loop over "
        "y.i1, a barrier stands inside of it; unswitch an inner axis, without barriers"
    ]


def test_circular_buffer_whose_loads_are_waited_for() -> None:
    f, r, t = staged()
    f.assume("N % 1024 == 0")
    for tensor in (r, t):
        tensor.axis(2).parallelize(PT.serial)
    t.circular_buffer(2)
    ln.inline_most([r])
    assert notes(f) == [
        "T2: T2.circular_buffer(2): nothing overlaps, in the loop over y.i1 each load of a later "
        "iteration is waited for where it stands, by the store to T2 beside it; let a LOCAL copy "
        "be computed at that loop and no deeper: c = x.cache_after(), c.compute_at(T2, 2), and "
        "keep inline_most from it"
    ]


def test_loads_in_a_loop_over_threads_are_parted_from_the_stores() -> None:
    f, r, t = staged()
    t.circular_buffer(2)
    ln.inline_most([r])
    assert notes(f) == []


def test_circular_buffer_that_runs_ahead() -> None:
    f, r, t = staged()
    r.compute_at(t, 2)
    t.circular_buffer(2)
    assert notes(f) == []


def test_local_buffer_of_symbolic_size() -> None:
    with ln.Fusion("turned") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        t = ln.exp(x)
        f.output(ln.permute(t, (1, 0)), "y")
    assert notes(f) == [
        "T1: T1 in local memory: each thread has a buffer of N * M elements, it shares none of its "
        "2 loops with y, where its i0 is i1, its i1 is i0; ln.propagate(y) gives it the loops of "
        "y, then T1.compute_at(y, -1) or ln.inline_most() shares them; T1.memory = ln.GLOBAL "
        "holds it whole"
    ]
    ln.propagate(f["y"])
    t.compute_at(f["y"], -1)
    assert notes(f) == []


def test_guard_in_the_innermost_loop() -> None:
    f, _, y = scaled("N")
    y.split(0, 4)
    assert notes(f) == [
        "y.i1: a loop over y.i1: i0 * 4 + i1 < N is tested in each iteration, y: split by 4 need "
        "not divide N; assume that tiles divide the sizes, or make the axis or one around it "
        "unswitch"
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
        "y: y.parallelize({0: unroll}): the loop over y.i0 stays a loop, its extent N is known at "
        "run time only; split the axis by a constant and unroll the inner one"
    ]


def test_guard_of_a_static_size() -> None:
    f, _, y = scaled(5)
    y.split(0, 4)
    assert notes(f) == [
        "y.i1: a loop over y.i1: i0 * 4 + i1 < 5 is tested in each iteration, y: split by 4 need "
        "not divide 5; split by a factor that divides, or make the axis or one around it unswitch"
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
        "scaled: scaled.assume('N % 4 == 0'): nothing but the check at each launch came of it, no "
        "index, test or bound of this schedule depends on it; leave it out, so that other sizes "
        "may be launched",
        "scaled: scaled.assume('N != 3'): nothing but the check at each launch came of it, an "
        "assumption before it says as much, or no proof reads a comparison of this form; leave it "
        "out, so that other sizes may be launched",
    ]


def test_a_bound_of_blocks_that_decides_nothing() -> None:
    f, _, y = scaled("N")
    y.axis(0).parallelize(PT.grid_x)
    f.assume("N <= 100000")
    (note,) = notes(f)
    assert note.startswith(
        "scaled: scaled.assume('N <= 100000'): nothing but the check at each launch came of it"
    )


def test_calls_on_what_is_not_computed() -> None:
    with ln.Fusion("dead") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x * 2.0, "y")
        x_ = x + 1.0
    x_.split(0, 4)
    assert notes(f) == [
        "T2: T2.split(axis=0, factor=4): it is not computed, no output depends on it; declare an "
        "output that does, or leave the call out"
    ]


def test_layout_of_axes_that_the_buffer_lacks() -> None:
    f, x, y = scaled("N", 64)
    t = x.cache_after()
    t.memory = ln.SHARED
    t.compute_at(y, 1)
    t.set_allocation(order=[1, 0])
    assert notes(f) == [
        "T2: T2.set_allocation(order=[1, 0]): its buffer has no two axes to order, it holds 1 of "
        "the 2 leaf axes; leave order= out, or compute the tensor further out"
    ]
    t.set_allocation(pad={0: 1})
    assert notes(f) == [
        "T2: T2.set_allocation(pad={0: 1}): its buffer has no gap there, it does not hold leaf "
        "axis 0; pad an axis right of the compute-at position that is not bound to blocks"
    ]


def test_circular_buffer_of_one_iteration() -> None:
    f, x, y = scaled("N")
    t = x.cache_after()
    t.memory = ln.SHARED
    y.split(0, 32).split(0, 1)
    t.compute_at(y, 2)
    t.circular_buffer(2)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    t.axis(2).parallelize(PT.block_x)
    assert notes(f) == [
        "T2: T2.circular_buffer(2): nothing runs ahead, the loop over y.i1 runs once; compute the "
        "tensor inside a loop of more iterations"
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
        "T1: T1.parallelize({1: unroll}): its axis is gone, a later call gave the tensor other "
        "loops; parallelize after that call"
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


@pytest.mark.parametrize("memory", [ln.LOCAL, ln.SHARED])
def test_circular_buffer_whose_loops_are_all_over_threads(memory: ln.Memory) -> None:
    """The loop was serial when the buffer was asked for, and was bound afterwards."""
    f, x, y = scaled("N", 8)
    t = x.cache_after()
    t.memory = memory
    t.compute_at(y, 1)
    t.circular_buffer(2)
    y.axis(0).parallelize(PT.block_x)
    assert notes(f) == [
        "T2: T2.circular_buffer(2): nothing runs ahead, the loops around it are all over launch "
        "dimensions; compute the tensor inside a serial loop"
    ]


def test_unswitch_of_tests_that_fail_at_the_largest_index() -> None:
    f, _, y = scaled(5)
    y.split(0, 4).axis(0).parallelize(PT.unswitch)
    assert notes(f)[:1] == [
        "y: y.parallelize({0: unswitch}): the tests stay in the loop over y.i0, its tests are not "
        "decided at the largest index; unswitch an inner axis, or assume that tiles divide the "
        "sizes"
    ]


def test_order_of_an_allocation_domain_of_which_one_axis_is_left() -> None:
    f, x, y = scaled("N", 64)
    t = x.cache_after()
    t.memory = ln.SHARED
    t.allocation_domain.split(0, 8).reorder([1, 0, 2])
    t.compute_at(y, 1)
    assert notes(f)[:1] == [
        "T2: T2.allocation_domain.reorder([1, 0, 2]): its buffer has no two axes to order, it "
        "holds 1 of the 3 axes of its allocation domain; leave order= out, or compute the tensor "
        "further out"
    ]


def test_padding_of_an_axis_of_the_allocation_domain_that_the_buffer_lacks() -> None:
    f, x, y = scaled("N", 64)
    t = x.cache_after()
    t.memory = ln.SHARED
    t.allocation_domain.split(0, 8).pad(0, 1)
    t.compute_at(y, 1)
    assert notes(f)[:1] == [
        "T2: T2.allocation_domain.pad(0, 1): its buffer has no gap there, it does not hold axis 0 "
        "of its allocation domain; pad an axis right of the compute-at position that is not bound "
        "to blocks"
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
        "T1: T1.pin(1): its axis is gone, a later call gave the tensor other loops; pin it again "
        "after that call"
    ]


def test_local_buffer_that_nothing_reads() -> None:
    with ln.Fusion("spread") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        _, variance, _ = ln.welford(x, axis=1)
        y = f.output(variance, "y")
    y.reorder({1: 0})
    assert notes(f) == [
        f"{name}: {name} in local memory: each thread has a buffer of N elements, nothing reads "
        "it; leave it out, or declare it an output"
        for name in ("T1", "T3")
    ]


def test_local_buffer_whose_consumer_has_other_loops() -> None:
    with ln.Fusion("cut") as f:
        x = f.input("x", ("N", 8), ln.float32)
        y = f.output(ln.exp(x) * 2.0, "y")
    y.split(0, 4, inner=False)
    assert notes(f)[:1] == [
        "T1: T1 in local memory: each thread has a buffer of N * 8 elements, it shares none of its "
        "2 loops with y, where its i0 has no loop, its i1 is i2; ln.propagate(y) gives it the "
        "loops of y, then T1.compute_at(y, -1) or ln.inline_most() shares them; T1.memory = "
        "ln.GLOBAL holds it whole"
    ]


def test_vectors_around_a_loop() -> None:
    f, x, y = scaled("N", 4)
    t = x.cache_after()
    t.memory = ln.SHARED
    t.compute_at(y, 2)
    y.parallelize({1: PT.vectorize})
    assert notes(f) == [
        "y: y.parallelize({1: vectorize}): no access is wide in the loop over y.i1, a test, a loop "
        "or a barrier stands inside of the loop; vectorize the innermost axis, and assume that the "
        "vector divides the sizes"
    ]


def test_vectors_of_rows_that_begin_anywhere() -> None:
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N", 5), ln.float32)
        t = x[:, 1:]
        y = f.output(t * 2.0, "y")
    t.compute_at(y, 1)
    t.axis(1).parallelize(PT.vectorize)
    assert notes(f) == [
        "T1: T1.parallelize({1: vectorize}): no access is wide in the loop over T1.i1, the element "
        "of x that the first lane accesses is not known to be a multiple of 4; assume that the "
        "vector divides the row length of x"
    ]


def test_registers_picked_by_a_loop_of_unknown_extent() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", (8, "N"), ln.float32)
        f.symbol("M")
        y = f.output(x + 1.0, "y")
    held = x.cache_after().named("held")
    for tensor in (y, held):
        tensor.reorder([1, 0])
    y.split(1, "M").axis(0).parallelize(PT.grid_x)
    held.compute_at(y, 1)
    (first, _) = notes(f)  # the second is of the test that a split by M needs
    assert first == (
        "held: held in local memory: its 8 registers are picked by a loop of M steps and a loop "
        "of ceildiv(8, M) steps, registers have no addresses: they are put into memory, or all are "
        "compared; let loops of static extents pick the element, or hold it in SHARED memory"
    )


def test_registers_picked_by_data() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 4), ln.float32)
        i = f.input("i", ("N", 1), ln.int32)
        f.assume_range(i, 0, 4)
        t = (x * 2.0).named("t")
        y = f.output(ln.gather(t, i, 1), "y")
    y.axis(0).parallelize(PT.grid_x)
    t.compute_at(y, 1)
    assert notes(f) == [
        "t: t in local memory: its 4 registers are picked by an element of i, registers have no "
        "addresses: they are put into memory, or all are compared; let loops of static extents "
        "pick the element, or hold it in SHARED memory"
    ]
