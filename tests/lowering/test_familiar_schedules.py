"""Schedules that other compilers print for pointwise operations, transposes and pipelines.

Each is legal, proved for all sizes, and has the barriers that the other compiler counts.

Source: nvFuser's tests of its pointwise and transpose schedulers, RAWSyncInsertionPlace1 to 4, and
its circular buffers, written anew in the primitives of this package.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln
from helpers.bank_conflicts import conflicts
from loopnest.kir.vector_access import wide_accesses

PT = ln.ParallelType


def barriers(k: ln.Kernel) -> int:
    return sum(isinstance(node, ln.kir.Barrier) for node, _ in k.walk())


def bias(dims: tuple[str, ...], *, flat: bool, known: bool) -> ln.Kernel:
    """Return relu(x + b) in vectors of 16 bytes; all axes merged, or all but the last."""
    with ln.Fusion("bias") as f:
        x, b = f.input("x", dims, ln.float16), f.input("b", dims[-1:], ln.float16)
        y = f.output(ln.relu(x + b), "y")
        if known:
            f.assume(f"{dims[-1]} % 8 == 0")
    row, column = x.cache_after(), b.cache_after()
    y.cache_before()
    while y.ndim > (1 if flat else 2):
        y.merge(0)
    last = y.ndim - 1
    y.split(last, 8)
    y.split(last, 1)
    y.split(last, 128)
    ln.propagate(y)
    y.parallelize({last: PT.grid_x, last + 1: PT.block_x, last + 2: PT.unswitch})
    if not flat:
        y.axis(0).parallelize(PT.grid_y)
    ln.parallelize_like(y)
    for tensor in (row, column, y):
        tensor.axis(-1).parallelize(PT.vectorize)
    f.inline_most()
    return ln.lower(f)


@pytest.mark.parametrize("dims", [("M", "N"), ("A", "B", "C"), ("A", "B", "C", "D")])
@pytest.mark.parametrize("flat", [False, True])
def test_a_bias_is_added_in_wide_accesses(dims: tuple[str, ...], flat: bool) -> None:
    k = bias(dims, flat=flat, known=True)
    assert k.notes == ()
    assert sorted(a.buffer.name for a in wide_accesses(k.program)) == ["b", "x", "y"]
    assert {a.piece_bytes for a in wide_accesses(k.program)} == {16}
    assert ln.verify(k).ok


def test_a_bias_whose_rows_vectors_cross_is_read_element_by_element() -> None:
    """And a note says what would have to divide."""
    k = bias(("A", "B", "C"), flat=True, known=False)
    assert sorted(a.buffer.name for a in wide_accesses(k.program)) == ["x", "y"]
    (note,) = k.notes
    assert note.remedy == 'state it: f.assume("C % 8 == 0")'


def transposed(how: str) -> ln.Kernel:
    """Return a transpose by tiles of 32 x 32 that a block of 256 threads along x moves."""
    with ln.Fusion("transpose") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        y = f.output(ln.permute(x, (1, 0)), "y")
    tile = x.cache_after()
    tile.memory = ln.SHARED
    y.split(0, 32)
    y.split(2, 32)
    y.reorder([0, 2, 1, 3])
    tile.compute_at(y, 2)
    tile.reorder([0, 1, 3, 2])
    if how == "padded":
        tile.set_allocation(pad={3: 1})
    elif how == "swizzled":
        tile.swizzle(ln.Swizzle.XOR, 2, 3)
    for tensor in (y, tile):
        tensor.merge(2)
        tensor.split(2, 256)
        tensor.axis(3).parallelize(PT.block_x)
    y.parallelize({0: PT.grid_x, 1: PT.grid_y})
    return ln.lower(f)


@pytest.mark.parametrize("how", ["plain", "padded", "swizzled"])
def test_a_tile_is_transposed_by_a_row_of_threads(how: str) -> None:
    k = transposed(how)
    assert barriers(k) == 1
    assert ln.verify(k).all_sizes
    assert any(conflicts(k.program, {"N": 64, "M": 64})) is (how == "plain")


def threads_change() -> ln.Fusion:
    """One element a thread, read by threads of another dimension."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 32), ln.float32)
        t = x + 1.0
        y = f.output(t * 2.0, "y")
    t.memory = ln.SHARED
    for tensor, dimension in ((t, PT.block_x), (y, PT.block_y)):
        tensor.parallelize({0: PT.grid_x, 1: dimension})
    t.compute_at(y, 1)
    return f


def read_behind_its_loop() -> ln.Fusion:
    with ln.Fusion("k") as f:
        x = f.input("x", (16, 32), ln.float32)
        t = x + 1.0
        y = f.output(ln.sum(t, axis=1), "y")
    t.memory = ln.SHARED
    t.parallelize({0: PT.block_y, 1: PT.block_x})
    y.axis(0).parallelize(PT.block_x)
    return f


def one_after_the_other() -> ln.Fusion:
    """The second tensor in shared memory is made from the first, by other threads."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 32), ln.float32)
        t = x + 1.0
        u = t * 2.0
        y = f.output(u + t, "y")
    t.memory = u.memory = ln.SHARED
    t.compute_at(y, 1)
    u.compute_at(y, 1)
    y.axis(0).parallelize(PT.grid_x)
    for tensor, dimension in ((t, PT.block_x), (u, PT.block_y), (y, PT.block_x)):
        tensor.axis(1).parallelize(dimension)
    return f


def two_pending_in_a_grid_loop() -> ln.Fusion:
    """Both are written before the first is read: they share one barrier."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 32), ln.float32)
        a, b = x + 1.0, x * 3.0
        y = f.output(a + b, "y")
    a.memory = b.memory = ln.SHARED
    for tensor in (a, b):
        tensor.compute_at(y, 1)
        tensor.axis(1).parallelize(PT.block_x)
    y.parallelize({0: PT.grid_x, 1: PT.block_y})
    return f


RAW: list[tuple[Callable[[], ln.Fusion], int]] = [
    (threads_change, 1), (read_behind_its_loop, 1), (one_after_the_other, 2),
    (two_pending_in_a_grid_loop, 1),
]  # fmt: skip


@pytest.mark.parametrize(("build", "count"), RAW, ids=[build.__name__ for build, _ in RAW])
def test_barriers_stand_where_threads_change(build: Callable[[], ln.Fusion], count: int) -> None:
    k = ln.lower(build())
    assert barriers(k) == count
    assert ln.verify(k).all_sizes


@pytest.mark.parametrize(("stages", "prefetch"), [(2, None), (3, 1), (4, 2)])
def test_rows_are_loaded_ahead_into_registers(stages: int, prefetch: int | None) -> None:
    """By threads that reduce together, each with its own part of the loop."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 512), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    row, total = x.cache_after(), y.cache_before()
    y.parallelize({0: PT.grid_x})
    total.compute_at(y, 1)
    total.split(1, 32)
    total.axis(2).parallelize(PT.block_x)
    row.compute_at(total, 2)
    row.axis(2).parallelize(PT.block_x)
    row.circular_buffer(stages, prefetch)
    k = ln.lower(f)
    (buffer,) = [b for b in k.buffers if b.tensor == row.name]
    assert (buffer.memory, buffer.size) == (ln.LOCAL, stages)
    assert [n for n in k.notes if "circular" in n.asked] == []
    assert ln.verify(k).all_sizes


def test_loops_are_propagated_through_inputs() -> None:
    """Two outputs that have an input in common, and nothing else."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        a, b = f.output(x + 1.0, "a"), f.output(x * 2.0, "b")
    a.merge(0).split(0, 128)
    ln.propagate(a)
    assert [str(axis.extent) for axis in b.leaf_domain] == ["ceildiv(N * M, 128)", "128"]
    k = ln.lower(f)
    assert ln.verify(k).all_sizes
    given = np.arange(15, dtype=np.float32).reshape(3, 5)
    for found, wanted in zip(
        ln.compile(k, target="interpret")(given), (given + 1, given * 2), strict=True
    ):
        assert (found == wanted).all()
