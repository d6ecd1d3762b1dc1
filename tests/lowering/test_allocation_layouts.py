"""Buffers that are laid out apart from the loops: their axes, what they compute, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

import loopnest as ln
from helpers.bank_conflicts import conflicts
from helpers.schedule_run import PT
from loopnest.kir import Barrier
from loopnest.kir.vector_access import wide_accesses

Layout = Callable[[ln.TensorView], object]
XOR = ln.Swizzle.XOR


def swizzled(t: ln.TensorView) -> object:
    return t.swizzle(XOR, 2, 3)


def padded(t: ln.TensorView) -> object:
    return t.set_allocation(pad={3: 1})


LAYOUTS: Mapping[str, tuple[Layout, str]] = {
    "swizzle": (swizzled, "float32[32, 32] shared xor(0, 1)"),
    "pad": (padded, "float32[32, 32] shared"),
    "order": (lambda t: t.set_allocation(order=[0, 1, 3, 2]), "float32[32, 32] shared"),
    "chunks": (
        lambda t: t.allocation_domain.split(3, 4).swizzle(XOR, 2, 3),
        "float32[32, 8, 4] shared xor(0, 1)",
    ),
    "twice": (
        lambda t: t.allocation_domain.split(3, 4).swizzle(XOR, 2, 3).swizzle(XOR, 2, 4),
        "float32[32, 8, 4] shared xor(0, 1) xor(0, 2)",
    ),
    "merged": (
        lambda t: t.allocation_domain.merge(2).split(2, 256).pad(2, 8),
        "float32[4, 256] shared",
    ),
}


def transpose(layout: Layout, lanes: int = 1) -> ln.Fusion:
    """Return a transpose by tiles of 32 x 32 that blocks of 128 threads copy, along one axis."""
    with ln.Fusion("transpose") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        f.output(ln.permute(x, (1, 0)), "y")
    y = f["y"]
    t = x.cache_after()
    y.split(1, 32)
    y.split(0, 32)
    y.reorder({1: 2})
    y.parallelize({0: PT.grid_y, 1: PT.grid_x})
    t.compute_at(y, 2)
    t.memory = ln.SHARED
    t.reorder({2: 3})
    layout(t)
    for tensor in (y, t):
        tensor.merge(2)
        tensor.split(2, 128 * lanes)
        if lanes > 1:
            tensor.split(3, lanes)
            tensor.axis(4).parallelize(PT.vectorize)
        tensor.axis(3).parallelize(PT.block_x)
    return f


def right(f: ln.Fusion, *shape: int) -> ln.Kernel:
    """Return the kernel of `f`, which is proved for all sizes and gives what it should."""
    k = ln.lower(f)
    report = ln.verify(k)
    assert (report.status, report.all_sizes) == ("proved", True), f"{k}\n{report}"
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    wanted = ln.evaluate(f, x)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(ln.compile(k, target=target)(x), wanted)
    assert str(ln.Kernel.parse(k.text(full=True))) == str(k)
    return k


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_a_tile_whose_loops_are_merged_for_a_block_of_one_axis(name: str) -> None:
    """The layout is made of the tile's own axes; one barrier is enough, and notes are of banks."""
    layout, text = LAYOUTS[name]
    k = right(transpose(layout), 70, 45)
    assert f"    T2: {text}\n" in str(k)
    assert [n.reason for n, _ in k.walk() if isinstance(n, Barrier)] == [
        "y reads T2 after T2 stores it in other threads"
    ]
    assert [note for note in k.notes if note.asked != "T2.memory = ln.SHARED"] == []


@pytest.mark.parametrize("name", ["swizzle", "pad"])
def test_such_a_tile_has_no_bank_conflicts(name: str) -> None:
    sizes = {"N": 64, "D": 64}
    assert list(conflicts(ln.lower(transpose(lambda t: None)).program, sizes))
    assert list(conflicts(ln.lower(transpose(LAYOUTS[name][0])).program, sizes)) == []


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (lambda t: t.allocation_domain.split(2, 4).split(2, 8).swizzle(XOR, 1, 3), (32, 2, 8, 4)),
        (lambda t: t.allocation_domain.pad(2, 4), (32, 64)),
        (lambda t: t.allocation_domain.split(2, 32).reorder([0, 2, 1, 3]), (2, 32, 32)),
    ],
)
def test_accesses_are_wide_through_a_layout(layout: Layout, shape: tuple[int, ...]) -> None:
    """A swizzle moves chunks of 16 bytes whole, and padding by as much keeps rows aligned."""
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N", 64), ln.float32)
        y = f.output(x + 1.0, "y")
    t = x.cache_after()
    r = t.cache_after()
    y.split(0, 32)
    t.memory = ln.SHARED
    t.compute_at(y, 1)
    layout(t)
    for tensor in (y, t, r):
        tensor.merge(1)
        tensor.split(1, 512)
        tensor.split(2, 4)
        tensor.parallelize({2: PT.block_x, 3: PT.vectorize})
    y.axis(0).parallelize(PT.grid_x)
    r.inline_at(3)
    k = right(f, 70, 64)
    found = {(a.buffer.name, a.is_store, a.piece_bytes) for a in wide_accesses(k.program)}
    assert found == {(b, s, 16) for b, s in (("x", 0), ("T2", 0), ("T2", 1), ("y", 1))}
    (buffer,) = [b for b in k.buffers if b.name == "T2"]
    assert buffer.shape == shape
    assert not [n for n, _ in k.walk() if isinstance(n, Barrier)]  # each thread reads its own


# What a buffer holds


def chain(*extents: int | str) -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    with ln.Fusion("chain") as f:
        t = f.input("x", extents, ln.float32) + 1.0
        y = f.output(t * 2.0, "y")
    return f, t, y


def held(k: ln.Kernel) -> list[tuple[object, ...]]:
    """Return shape, strides and size of each buffer but the caller's."""
    own = [b for b in k.buffers if b.name not in ("x", "y")]
    return [(tuple(map(str, b.shape)), tuple(map(str, b.strides)), str(b.size)) for b in own]


@pytest.mark.parametrize("memory", [ln.SHARED, ln.LOCAL])
def test_axes_outside_of_the_home_are_not_allocated(memory: ln.Memory) -> None:
    """Their own splits tell, also those that no loop made."""
    f, t, y = chain("N", "D")
    t.memory = memory
    t.allocation_domain.split(1, 8).split(0, 4).reorder([0, 2, 3, 1]).pad(3, 1)
    y.split(0, 4)
    y.split(2, 8)
    y.reorder([0, 2, 1, 3])
    t.compute_at(y, 2)
    assert held(right(f, 9, 20)) == [(("8", "4"), ("5", "1"), "40")]


def test_a_part_of_a_split_that_is_finer_than_the_loops() -> None:
    f, t, y = chain("N", 64)
    t.memory = ln.SHARED
    t.compute_at(y, 1)
    t.allocation_domain.split(1, 16).reorder([0, 2, 1]).pad(2, 1)
    assert held(right(f, 3, 64)) == [(("16", "4"), ("5", "1"), "80")]


def test_an_axis_that_the_loops_cut_is_allocated_whole() -> None:
    """It is right, and a note says what it costs."""
    f, t, y = chain(12, 16)
    t.memory = ln.SHARED
    t.allocation_domain.reorder([1, 0]).pad(1, 1)
    y.split(0, 4)
    t.compute_at(y, 1)
    k = right(f, 12, 16)
    assert held(k) == [(("16", "12"), ("13", "1"), "208")]
    assert [str(note).rpartition(" (")[0] for note in k.notes] == [
        "T1: the allocation domain of T1: its buffer has room for 192 elements, of which 64 "
        "are used at a time, because its allocation domain is not split as the loops around it "
        "are; call T1.allocation_domain.split as those loops are split, or lay the buffer out "
        "after compute_at"
    ]


def test_a_global_tensor_is_allocated_whole() -> None:
    """What need not divide is allocated, too."""
    f, t, _ = chain("N", 16)
    t.memory = ln.GLOBAL
    t.split(0, 4)
    t.set_allocation(order=[2, 1, 0])
    assert held(right(f, 9, 16)) == [
        (("16", "4", "ceildiv(N, 4)"), ("ceildiv(N, 4) * 4", "ceildiv(N, 4)", "1"),
         "ceildiv(N, 4) * 64")
    ]  # fmt: skip


def test_the_buffer_that_a_reduction_folds_in() -> None:
    """Elements that there are not are not initialised: they have no place."""
    with ln.Fusion("s") as f:
        f.output(ln.sum(f.input("x", ("D", 16), ln.float32), axis=0) * 1.0, "y")
    (s,) = f["y"].producers
    s.split(1, 6)
    s.allocation_domain.merge(0).split(0, 4).reorder([1, 0])
    k = ln.lower(f)
    assert held(k) == [(("4", "5"), ("5", "1"), "20")]
    assert ln.verify(k).ok
    x = np.arange(48, dtype=np.float32).reshape(3, 16)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(ln.compile(k, target=target)(x), x.sum(axis=0))


def test_stages_of_a_circular_buffer_come_first() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("K", 8, 16), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
    y.reorder([1, 2, 0])
    t = x.cache_after()
    y.reorder({2: 0})
    t.memory = ln.SHARED
    t.compute_at(y, 1)
    t.allocation_domain.split(2, 4).pad(1, 1).swizzle(XOR, 2, 3)
    t.circular_buffer(3)
    for tensor in (t, y):
        tensor.merge(1)
        tensor.axis(1).parallelize(PT.block_x)
    k = right(f, 5, 8, 16)
    assert "T2: float32[3, 8, 4, 4] shared xor(2, 3)\n" in str(k)
    assert held(k)[0] == (("3", "8", "4", "4"), ("144", "16", "4", "1"), "432")


@pytest.mark.parametrize("axes", [(2, 3), (3, 2)])
def test_a_swizzle_of_one_element_moves_nothing(axes: tuple[int, int]) -> None:
    """A parameter of a schedule may leave an axis one element; others are swizzled still."""
    f, t, y = chain(32, 32)
    t.memory = ln.SHARED
    t.compute_at(y, 1)
    t.allocation_domain.split(1, 32).reorder([0, 2, 1]).split(1, 4)  # [32, 8, 4, 1]
    t.allocation_domain.swizzle(XOR, *axes).swizzle(XOR, 1, 2)
    k = right(f, 32, 32)
    assert "T1: float32[8, 4] shared xor(0, 1)\n" in str(k)


# Refusals


def test_a_swizzle_of_an_axis_outside_of_the_home() -> None:
    f, t, y = chain(32, 32)
    t.memory = ln.SHARED
    t.compute_at(y, 1)
    t.swizzle(XOR, 0, 1)
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value) == (
        "T1: its swizzle is over axes that its buffer in shared memory lacks; swizzle two axes "
        "that a SHARED buffer holds: those right of the compute-at position, and those bound to "
        "threads of a block"
    )


def broadcast_loop(layout: Layout) -> ln.Fusion:
    """Return a row that is computed in a loop of threads over a matrix."""
    with ln.Fusion("k") as f:
        a = f.input("a", (8,), ln.float32)
        b = f.input("b", (8, 16), ln.float32)
        u = a + 1.0
        t = ln.broadcast(u, (False, True))
        c = f.output(t + b, "c")
    c.merge(0)
    c.split(0, 32)
    u.memory = ln.SHARED
    u.compute_at(c, 1)
    layout(u)
    for tensor in (u, t, c):
        tensor.axis(1).parallelize(PT.block_x)
    return f


def test_threads_that_compute_one_element() -> None:
    """By its loops each has a place of its own; an element of the tensor has one place."""
    assert ln.verify(ln.lower(broadcast_loop(lambda u: None))).ok
    f = broadcast_loop(lambda u: u.allocation_domain.merge(0).split(0, 3).pad(1, 1))
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value) == (
        "T2: its buffer is laid out by its own axes, but several threads of the block_x loop T2.i1 "
        "compute one element; lay out the axis that is bound to these threads, or bind one that it "
        "has"
    )


def test_what_threads_fold_in_is_not_laid_out() -> None:
    """Each element is started, and all are exchanged, also those behind the end of the axis."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "N", "M"), ln.float32)
        y = f.output(ln.sum(x, 0), "y")
    total = y.cache_before()
    total.memory = ln.SHARED
    total.allocation_domain.split(1, 8)
    total.reorder([2, 0, 1])
    total.axis(1).parallelize(PT.block_x)
    total.split(2, 16)
    value = np.arange(36, dtype=np.float32).reshape(3, 3, 4)
    found = ln.compile(f, target="interpret")(value)
    assert np.array_equal(found, value.sum(0))
