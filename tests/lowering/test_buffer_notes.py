"""Notes on buffers: registers, circular buffers, layouts and memory that nothing asks for."""

from __future__ import annotations

import pytest

import loopnest as ln
from helpers.schedule_notes import PT, notes, scaled, staged


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
