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
        "T2: T2.circular_buffer(2): each iteration of the loop over y.i1 waits for the loads "
        "of a later one, because these are stored to T2 at once, which waits for them; load "
        "into registers first, and store after the work: c = x.cache_after(), c.compute_at(T2, "
        "2), c inlined no deeper (inline_most)"
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
        "T1: T1 in local memory: each thread has a buffer of N * M elements, because it shares "
        "none of its 2 loops with y, where its i0 is i1, its i1 is i0; call ln.propagate(y), "
        "which gives it the loops of y, and then T1.compute_at(y, -1) or ln.inline_most(), or "
        "set T1.memory = ln.GLOBAL"
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
        "T2: T2.set_allocation(order=[1, 0]): the order changes nothing, because its buffer "
        "holds 1 of the 2 leaf axes, and an order needs two; leave order= out, or compute T2 "
        "at a smaller position"
    ]
    t.set_allocation(pad={0: 1})
    assert notes(f) == [
        "T2: T2.set_allocation(pad={0: 1}): nothing is padded, because its buffer does not "
        "hold leaf axis 0; pad an axis from position 1 on that is not bound to blocks"
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
        "T2: T2.circular_buffer(2): no iteration is computed ahead, because the loop over "
        "y.i1, which its stages rotate through, runs once; compute T2 inside of a loop of more "
        "iterations (compute_at)"
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
        "T2: T2.circular_buffer(2): no iteration is computed ahead, because the loops that it "
        "shares are all over launch dimensions, which do not iterate; compute T2 inside of a "
        "serial loop (compute_at)"
    ]


def test_order_of_an_allocation_domain_of_which_one_axis_is_left() -> None:
    f, x, y = scaled("N", 64)
    t = x.cache_after()
    t.memory = ln.SHARED
    t.allocation_domain.split(0, 8).reorder([1, 0, 2])
    t.compute_at(y, 1)
    assert notes(f)[:1] == [
        "T2: T2.allocation_domain.reorder([1, 0, 2]): the order changes nothing, because its "
        "buffer holds 1 of the 3 axes of its allocation domain, and an order needs two; leave "
        "order= out, or compute T2 at a smaller position"
    ]


def test_padding_of_an_axis_of_the_allocation_domain_that_the_buffer_lacks() -> None:
    f, x, y = scaled("N", 64)
    t = x.cache_after()
    t.memory = ln.SHARED
    t.allocation_domain.split(0, 8).pad(0, 1)
    t.compute_at(y, 1)
    assert notes(f)[:1] == [
        "T2: T2.allocation_domain.pad(0, 1): nothing is padded, because its buffer does not "
        "hold axis 0 of its allocation domain; pad an axis from position 1 on that is not "
        "bound to blocks"
    ]


def test_local_buffer_that_nothing_reads() -> None:
    with ln.Fusion("spread") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        _, variance, _ = ln.welford(x, axis=1)
        y = f.output(variance, "y")
    y.reorder({1: 0})
    assert notes(f) == [
        f"{name}: {name} in local memory: each thread has a buffer of N elements, because "
        "nothing reads it; leave it out, or declare it an output (f.output)"
        for name in ("T1", "T3")
    ]


def test_local_buffer_whose_consumer_has_other_loops() -> None:
    with ln.Fusion("cut") as f:
        x = f.input("x", ("N", 8), ln.float32)
        y = f.output(ln.exp(x) * 2.0, "y")
    y.split(0, 4, inner=False)
    assert notes(f)[:1] == [
        "T1: T1 in local memory: each thread has a buffer of N * 8 elements, because it shares "
        "none of its 2 loops with y, where its i0 is no loop, its i1 is i2; call "
        "ln.propagate(y), which gives it the loops of y, and then T1.compute_at(y, -1) or "
        "ln.inline_most(), or set T1.memory = ln.GLOBAL"
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
        "held: held in local memory: its 8 elements lie in memory and not in registers, or "
        "each access compares its index with all of them, because registers have no addresses, "
        "and which one is meant (a loop of M steps and a loop of ceildiv(8, M) steps) is known "
        "at run time only; let loops of static extents choose the element, or set held.memory "
        "= ln.SHARED"
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
        "t: t in local memory: its 4 elements lie in memory and not in registers, or each "
        "access compares its index with all of them, because registers have no addresses, and "
        "which one is meant (an element of i) is known at run time only; let loops of static "
        "extents choose the element, or set t.memory = ln.SHARED"
    ]
