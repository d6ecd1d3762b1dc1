"""Lowering of values that cross threads: exchanges, barriers, blocks that wait."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from helpers.thread_fusions import PT, barriers, chain, collective, nest, shuffles, summed
from loopnest.kir import Collective

# Exchanges


@pytest.mark.parametrize(
    ("block", "dims", "over", "offsets"),
    [
        ((32,), [PT.block_x], [0], [16, 8, 4, 2, 1]),
        ((8,), [PT.block_x], [0], [4, 2, 1]),
        ((4, 8), [PT.block_y, PT.block_x], [1], [4, 2, 1]),
        ((4, 8), [PT.block_y, PT.block_x], [0], [16, 8]),
        ((4, 8), [PT.block_y, PT.block_x], [0, 1], [16, 8, 4, 2, 1]),
        ((64, 8), [PT.block_y, PT.block_x], [1], [4, 2, 1]),
    ],
)
def test_groups_inside_a_warp_need_shuffles_alone(
    block: tuple[int, ...], dims: list[ln.ParallelType], over: list[int], offsets: list[int]
) -> None:
    """The lanes of a group differ in a few bits of their number; no shared memory, no barrier."""
    f = summed(*block, dims=dims, over=over)
    assert shuffles(f) == [f"xor {n}" for n in offsets]
    assert not barriers(f)
    assert all(b.memory is not ln.SHARED for b in ln.lower(f).buffers)


def test_whole_warps_meet_in_one_slot_each() -> None:
    """256 threads: a butterfly in each warp, 8 slots, a butterfly over the slots."""
    f = summed(256, dims=[PT.block_x], over=[0])
    assert shuffles(f) == [f"xor {n}" for n in (16, 8, 4, 2, 1, 4, 2, 1)]
    assert barriers(f) == [("block", 1)]
    (slots,) = [b for b in ln.lower(f).buffers if b.memory is ln.SHARED]
    assert (slots.shape, slots.tensor) == ((8,), "y")


def test_groups_of_whole_warps_in_a_block_of_several() -> None:
    """Four rows of 64 threads: two slots a row."""
    f = summed(4, 64, dims=[PT.block_y, PT.block_x], over=[1])
    assert shuffles(f) == [f"xor {n}" for n in (16, 8, 4, 2, 1, 1)]
    text = "\n".join(nest(f))
    assert "    y_part[block_y * 2 + block_x // 32] = v10" in text
    assert "y_part[block_y * 2 + block_x % 2]" in text


@pytest.mark.parametrize("extent", [33, 100, "D"])
def test_a_block_of_any_extent_tests_for_lanes_that_exist(extent: int | str) -> None:
    """The last warp is partial: shuffles go down, and lane 0 of each warp has the part."""
    f = summed(extent, dims=[PT.block_x], over=[0])
    assert shuffles(f) == [f"down {n}" for n in (16, 8, 4, 2, 1)]
    assert f"where(block_x + 16 < {extent}, " in "\n".join(nest(f))
    assert len(barriers(f)) == 1


@pytest.mark.parametrize(
    ("rows", "columns", "scopes"),
    [
        (8, 64, "block"),
        (12, 64, "block block block block"),  # 6, 3, 2, 1: only row 0 halves 3 and then 2
        (32, 32, "block block block block block block"),
        (32, 8, "block block block warp warp block"),
        ("E", 64, "block block block block block"),
        ("E", 8, "block block block block block warp warp block"),
    ],
)
def test_a_strided_group_folds_in_shared_memory(rows: int | str, columns: int, scopes: str) -> None:
    """Columns of a block: up to 8 slots are read by all, more are folded by halves."""
    f = summed(rows, columns, dims=[PT.block_y, PT.block_x], over=[0])
    assert not shuffles(f)
    assert [scope for scope, _ in barriers(f)] == scopes.split()
    (slots,) = [b for b in ln.lower(f).buffers if b.memory is ln.SHARED]
    assert [str(n) for n in slots.shape] == [str(rows), str(columns)]


def test_two_dimensions_that_are_no_neighbours_fold_one_after_the_other() -> None:
    """x and z of a block of x, y and z."""
    f = summed(3, 5, 7, dims=[PT.block_z, PT.block_y, PT.block_x], over=[0, 2])
    assert collective(f).dims == (PT.block_x, PT.block_z)
    assert len([b for b in ln.lower(f).buffers if b.memory is ln.SHARED]) == 2


def lanes_summed(
    lanes: int, rows: int, *, parts: int = 1, kind: ln.ParallelType = PT.unroll
) -> ln.Fusion:
    """Return column sums of x: a thread has `lanes`, shared by `rows` threads, `parts` blocks."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
    t = y.cache_before()
    y.split(0, lanes)
    y.split(0, 32)
    y.parallelize({0: PT.grid_x, 1: PT.block_x, 2: PT.vectorize})
    t.compute_at(y, 2)
    t.split(3, rows)
    t.split(3, parts, inner=False)
    t.reorder({2: -1})  # [D / 32 / lanes, 32, parts, N / parts / rows, rows, lanes]
    t.parallelize({2: PT.grid_y, 4: PT.block_y, 5: kind})
    return f


def joint(f: ln.Fusion) -> list[int]:
    """Return how many values each exchange combines."""
    found = [n for n, _ in ln.lower(f).walk() if isinstance(n, Collective)]
    return [len(node.by_value(node.args)) for node in found]


@pytest.mark.parametrize("lanes", [2, 8])
def test_values_of_a_thread_cross_together(lanes: int) -> None:
    """One exchange, one barrier, however many values; the slots of each are apart."""
    f = lanes_summed(lanes, 8)
    assert joint(f) == [lanes]
    assert len(barriers(f)) == 1
    (slots,) = [b for b in ln.lower(f).buffers if b.memory is ln.SHARED]
    assert [str(n) for n in slots.shape] == [str(lanes), "8", "32"]
    x = np.random.default_rng(0).random((37, 8 * lanes), np.float32)
    np.testing.assert_allclose(ln.compile(f, target="interpret")(x), x.sum(0), rtol=1e-5)


def test_blocks_leave_and_take_in_the_values_of_a_thread_by_vectors() -> None:
    """Two exchanges with a barrier each, beside the arrival; workspace goes in vectors."""
    f = lanes_summed(4, 8, parts=16)
    kernel = ln.lower(f)
    assert joint(f) == [4, 4]
    assert [scope for scope, _ in barriers(f)] == ["block", "block"]
    lines = [line.strip() for line in str(kernel).splitlines()]
    place = "T2_blocks[grid_y, grid_x, block_x, i7]"
    assert lines[lines.index(f"{place} = T2_all[i7]") - 1] == "for i7 in 4:  # vectorize"
    wide = [line for line in kernel.cuda().splitlines() if "ln_wide" in line]
    assert sum("T2_blocks[" in line for line in wide) == 2
    x = np.random.default_rng(0).random((67, 64), np.float32)
    np.testing.assert_allclose(ln.compile(f, target="c")(x), x.sum(0), rtol=1e-5)
    assert ln.verify(kernel).all_sizes


def test_a_loop_that_a_thread_runs_in_turn_has_an_exchange_in_each_iteration() -> None:
    assert joint(lanes_summed(8, 8, kind=PT.serial)) == [1]


def test_no_more_values_cross_together_than_there_is_room_for() -> None:
    """1024 threads: 8 values of 4 KiB fit into 32 KiB, 16 do not."""
    assert joint(lanes_summed(8, 32)) == [8]
    assert joint(lanes_summed(16, 32)) == [1]


def test_slots_of_neighbouring_threads_lie_next_to_each_other() -> None:
    """Workspace of a reduction over blocks: the threads along x, then those along y."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 8, 32), ln.float32)
        f.output(ln.sum(x, axis=0), "y")
    f["y"].parallelize({0: PT.grid_x, 1: PT.block_y, 2: PT.block_x})
    assert "    y_blocks[grid_x, block_y, block_x] = y_acc[0]" in nest(f)


def test_every_thread_holds_the_identity_before_it_takes_part() -> None:
    """Threads outside of the loops of a reduction offer the identity."""
    with ln.Fusion("k") as f:
        x = f.input("x", (100,), ln.float32)
        z = f.input("z", (128,), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
        w = f.output(z * 2.0, "w")
    y.parallelize({0: PT.block_x})
    w.parallelize({0: PT.block_x})
    lines = nest(f)
    assert "y_acc[0] = 0.0" in lines
    assert "for i0 in 100:  # block_x" in lines


def test_welford_sends_three_components() -> None:
    """Mean, variance and count go through the shuffles together."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 32), ln.float32)
        mean, var, count = ln.welford(x, axis=1)
        f.output(mean, "mean")
        f.output(var, "var")
        f.output(count, "count")
    mean.parallelize({0: PT.grid_x, 1: PT.block_x})
    assert len(shuffles(f)) == 3 * 5
    assert len(collective(f).results) == 3


# Barriers


def test_rule_39_a_shared_value_of_another_thread_is_read_after_a_barrier() -> None:
    """Written along block_x, read along block_y."""
    f, (t, y) = chain(8, 8)
    t.memory = ln.SHARED
    t.parallelize({0: PT.block_x, 1: PT.block_y})
    y.parallelize({0: PT.block_y, 1: PT.block_x})
    assert barriers(f) == [("block", 0)]


def test_rule_39_the_same_thread_needs_no_barrier() -> None:
    """Bound to the same axes, shared memory is private in effect."""
    f, (t, y) = chain(8, 8)
    t.memory = ln.SHARED
    for tensor in (t, y):
        tensor.parallelize({0: PT.block_y, 1: PT.block_x})
    assert barriers(f) == []


def test_rule_39_two_pending_writes_share_one_barrier() -> None:
    """Placed after both, before the one that reads both."""
    with ln.Fusion("k") as f:
        x = f.input("x", (64,), ln.float32)
        a, b = x * 2.0, x * 3.0
        y = f.output(a + b, "y")
    for tensor in (a, b):
        tensor.memory = ln.SHARED
        tensor.parallelize({0: PT.block_x})
    lines = nest(f)
    (barrier,) = [place for place, line in enumerate(lines) if line.startswith("barrier block")]
    assert barrier > lines.index("  T2[i1] = x[i1] * 3.0")
    assert y.ndim == 1


def test_rule_39_threads_of_one_warp_need_a_barrier_of_the_warp() -> None:
    """A block of 16 threads, and rows of 16 lanes of a larger one."""
    f, (t, y) = chain(4, 4)
    t.memory = ln.SHARED
    t.parallelize({0: PT.block_x, 1: PT.block_y})
    y.parallelize({0: PT.block_y, 1: PT.block_x})
    assert barriers(f) == [("warp", 0)]
    f, (t, y) = chain(8, 16)
    t.memory = ln.SHARED
    t.parallelize({0: PT.block_y, 1: PT.block_x})
    y.parallelize({0: PT.block_y})
    assert barriers(f) == [("warp", 0)]


def test_rule_39_across_blocks_global_memory_and_a_grid_barrier() -> None:
    """Every block reads what others wrote: all must be resident."""
    f, (t, y) = chain("N", "M")
    t.memory = ln.GLOBAL
    t.parallelize({0: PT.grid_x})
    y.parallelize({1: PT.grid_x})
    assert barriers(f) == [("grid", 0)]
    assert ln.lower(f).program.is_cooperative


def test_an_output_in_place_is_read_in_other_blocks_after_a_grid_barrier() -> None:
    """It lies in an input's buffer, whose elements now cross blocks too."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        doubled = f.output(x * 2.0, "y", inplace=x)
        z = f.output(doubled + 1.0, "z")
    z.parallelize({0: PT.grid_x})
    assert barriers(f) == [("grid", 0)]
    doubled.compute_at(z, -1)
    assert barriers(f) == []


def test_rule_40_a_buffer_that_a_loop_uses_again_has_a_second_barrier() -> None:
    """At the loop's end, and only in a real loop."""
    f, (t, y) = chain("N", 16, 32)
    t.memory = ln.SHARED
    t.compute_at(y, 1)
    t.parallelize({1: PT.block_y, 2: PT.block_x})
    y.parallelize({2: PT.block_y})
    assert barriers(f) == [("block", 1), ("block", 1)]
    y.parallelize({0: PT.grid_x})
    assert barriers(f) == [("block", 1)]


def test_rule_40_aliased_buffers_are_followed() -> None:
    """T3 takes the space of T1, when T1 is dead and other threads have read it."""
    f, (a, b, c, y) = chain(8, 32, copies=3)
    for tensor in (a, c):
        tensor.memory = ln.SHARED
    a.parallelize({0: PT.block_y, 1: PT.block_x})
    b.parallelize({1: PT.block_y})
    c.parallelize({0: PT.block_y, 1: PT.block_x})
    y.parallelize({1: PT.block_y})
    b.memory = ln.GLOBAL
    text = "\n".join(nest(f))
    assert "T3: float32[8, 32] shared = T1" in text
    assert text.count("barrier block") == 3


def test_a_loop_of_fewer_threads_is_widened_around_a_barrier() -> None:
    """28 of 32 rows of threads compute, all reach the barrier."""
    with ln.Fusion("k") as f:
        x = f.input("x", (28, 32), ln.float32)
        z = f.input("z", (32,), ln.float32)
        t = x * 2.0
        y = f.output(t * 2.0, "y")
        w = f.output(z * 2.0, "w")
    t.memory = ln.SHARED
    t.compute_at(y, 1)
    y.parallelize({0: PT.block_y, 1: PT.block_x})
    w.parallelize({0: PT.block_y})
    lines = nest(f)
    assert lines[0] == "for i0 in 32:  # block_y"
    reason = "y reads T2 after T2 stores it in other threads"
    assert f"barrier warp  # {reason}" in [line.strip() for line in lines]
    assert sum("i0 < 28" in line for line in lines) == 2


# Blocks


def test_the_last_block_finishes_a_reduction_over_the_grid() -> None:
    """Every block leaves its part; what depends on the result stands under the flag."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 64), ln.float32)
        total = ln.sum(x, axis=(0, 1))
        f.output(total / 2.0, "y")
    total.parallelize({0: PT.grid_x, 1: PT.block_x})
    kernel = ln.lower(f)
    assert [p.name for p in kernel.params][-2:] == ["T1_blocks", "T1_count"]
    text = str(kernel)
    assert "let T1_last = arrive(T1_count[0], N)" in text
    assert "if T1_last and block_x == 0:" in text
    assert "barrier grid" not in text


def test_a_result_that_all_blocks_need_takes_a_grid_barrier() -> None:
    """The quotient runs over the reduced grid dimension again."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        total = ln.sum(x, axis=0, keepdims=True)
        y = f.output(x / total, "y")
    total.reduction.parallelize({0: PT.grid_x})
    y.parallelize({0: PT.grid_x})
    assert barriers(f) == [("grid", 0)]
    assert "arrive" not in str(ln.lower(f))


@pytest.mark.parametrize("apart", [False, True])
def test_what_depends_on_two_reductions_over_the_grid_takes_a_barrier(apart: bool) -> None:
    """The last block at the one counter may be another than the last one at the other."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 4), ln.float32)
        total, largest = ln.sum(x, axis=(0, 1)), ln.max(x, axis=(0, 1))
        y = f.output(total, "y") if apart else f.output(total / largest, "y")
        z = f.output(largest, "z") if apart else y
    for tensor in (total, largest):
        tensor.parallelize({0: PT.grid_x})
    text = str(ln.lower(f))
    assert barriers(f) == ([] if apart else [("grid", 0)])
    assert text.count("arrive(") == (2 if apart else 1)
    values = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    for order in (None, *range(8)):
        found = ln.compile(f, target="interpret", thread_order=order)(values)
        np.testing.assert_array_equal(found, (78, 12) if z is not y else np.float32(78 / 12))


# Vectors


def test_a_symbolic_size_is_required_to_divide_and_has_a_scalar_variant() -> None:
    """One test a vector; where the size does not divide, the variant tests each lane."""
    f, (t, y) = chain("N")
    for tensor in (t, y):
        tensor.split(0, 4)
        tensor.parallelize({1: PT.vectorize})
    kernel = ln.lower(f)
    assert [text for text, _ in kernel.program.requires] == ["N % 4 == 0"]
    assert kernel.launch(N=8).variant == "vector"
    assert kernel.launch(N=7).variant == "scalar"
