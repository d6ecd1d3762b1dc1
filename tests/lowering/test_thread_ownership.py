"""Which thread has an element: what is legal lowers and is proved, what is not is refused.

The schedules are those of well-known GPU kernels: pointwise with a bias, tiles in shared memory,
reductions whose result is broadcast back.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln
from fuzzing.engine import Engine
from fuzzing.switched_off import switched_off
from helpers.schedule_run import assert_computes

PT = ln.ParallelType
Built = tuple[ln.Fusion, list[tuple[int, ...]]]


def flattened_for_threads(c: ln.TensorView, lanes: int = 0) -> None:
    """Schedule as a flat grid of threads: all axes merged, blocks of 128, everything inlined."""
    while c.ndim > 1:
        c.merge(0)
    if lanes:
        c.split(0, lanes)
    c.split(0, 128)
    ln.propagate(c)
    c.parallelize({0: PT.grid_x, 1: PT.block_x})
    ln.parallelize_like(c)


def bias_along_rows() -> Built:
    """``x[M, N] + bias[N]``, registers for inputs and outputs, four elements a thread."""
    with ln.Fusion("bias") as f:
        x = f.input("x", ("M", "N"), ln.float32)
        bias = f.input("bias", ("N",), ln.float32)
        y = f.output(x + ln.broadcast(bias, (True, False)), "y")
    x.cache_after(), bias.cache_after(), y.cache_before()
    flattened_for_threads(y, lanes=4)
    f.inline_most()
    return f, [(6, 70), (70,)]


def bias_computed_in_the_blocks_loop() -> Built:
    """The bias is kept in registers of the threads that need it, in a loop of its own."""
    with ln.Fusion("bias_apart") as f:
        x = f.input("x", ("M", "N"), ln.float32)
        bias = f.input("bias", ("N",), ln.float32)
        scaled = ln.exp(bias)
        y = f.output(x * ln.broadcast(scaled, (True, False)), "y")
    flattened_for_threads(y)
    f.inline_most()
    return f, [(6, 70), (70,)]


def rows_of_a_merged_loop() -> Built:
    """A value a row, computed at the outer of two loops over merged axes, threads inside."""
    with ln.Fusion("rows") as f:
        a = f.input("a", (10,), ln.float32)
        b = f.input("b", (10, 5), ln.float32)
        u = a + 1.0
        t = ln.broadcast(u, (False, True))
        c = f.output(t + b, "c")
    c.merge(0)
    c.split(0, 4)
    u.compute_at(c, 1)
    for tensor in (u, t, c):
        tensor.axis(1).parallelize(PT.block_x)
    return f, [(10,), (10, 5)]


def shared_tile_of_a_broadcast() -> Built:
    """Each block has a tile of its own of a tensor that lacks the axis of the other blocks."""
    with ln.Fusion("tile") as f:
        a = f.input("a", ("M",), ln.float32)
        b = f.input("b", ("M", "N"), ln.float32)
        t = ln.broadcast(a, (False, True))
        c = f.output(t * b, "c")
    c.split(1, 4)
    c.split(0, 8)
    c.reorder([0, 2, 1, 3])
    t.compute_at(c, 2)
    t.memory = ln.SHARED
    c.parallelize({0: PT.grid_x, 1: PT.grid_y})
    return f, [(11,), (11, 7)]


def gemm(memory: ln.Memory) -> Built:
    """A gemm by tiles whose operands are broadcast in memory."""
    with ln.Fusion("gemm") as f:
        a = f.input("a", ("M", "K"), ln.float32)
        b = f.input("b", ("K", "N"), ln.float32)
        left = ln.broadcast(a, (False, False, True))
        right = ln.broadcast(b, (True, False, False))
        c = f.output(ln.sum(left * right, axis=1), "c")
    total = c.cache_before()  # [M, N, K]
    total.reorder([0, 2, 1])
    total.split(2, 4)
    total.split(1, 8)
    total.split(0, 8)  # [Mo, Mi, No, Ni, Ko, Ki]
    total.reorder([0, 2, 4, 1, 3, 5])  # [Mo, No, Ko, Mi, Ni, Ki]
    left.compute_at(total, 3)
    right.compute_at(total, 3)
    left.memory = right.memory = memory
    c.split(1, 8)
    c.split(0, 8)
    c.reorder([0, 2, 1, 3])
    total.compute_at(c, 2)
    for tensor in (c, total):
        tensor.parallelize({0: PT.grid_y, 1: PT.grid_x})
    c.parallelize({2: PT.block_y, 3: PT.block_x})
    total.parallelize({3: PT.block_y, 4: PT.block_x})
    ln.parallelize_like(total)
    return f, [(11, 6), (6, 9)]


def gemm_in_shared_memory() -> Built:
    """The operands in shared memory."""
    return gemm(ln.SHARED)


def gemm_in_global_memory() -> Built:
    """The operands in global memory."""
    return gemm(ln.GLOBAL)


def transpose_by_tiles() -> Built:
    """Tiles through shared memory, read along one axis and written along the other."""
    with ln.Fusion("transpose") as f:
        x = f.input("x", ("M", "N"), ln.float32)
        y = f.output(ln.permute(x, (1, 0)), "y")
    tile = x.cache_after()
    y.split(1, 8)
    y.split(0, 8)
    y.reorder([0, 2, 1, 3])
    tile.compute_at(y, 2)
    tile.memory = ln.SHARED
    y.merge(2)
    tile.merge(2)
    y.parallelize({0: PT.grid_x, 1: PT.grid_y, 2: PT.block_x})
    tile.axis(2).parallelize(PT.block_x)
    return f, [(11, 19)]


def rows_normalized() -> Built:
    """An inner reduction by the threads of a block, its result broadcast back."""
    with ln.Fusion("normalize") as f:
        x = f.input("x", ("M", "N"), ln.float32)
        total = ln.sum(x, axis=1, keepdims=True)
        y = f.output(x / total, "y")
    y.split(1, 32)
    ln.propagate(y)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    ln.parallelize_like(y)
    f.inline_most()
    return f, [(5, 70)]


def columns_normalized() -> Built:
    """An outer reduction by threads along y, its result broadcast back."""
    with ln.Fusion("columns") as f:
        x = f.input("x", ("M", "N"), ln.float32)
        total = ln.sum(x, axis=0, keepdims=True)
        y = f.output(x / total, "y")
    y.split(1, 16)
    y.split(0, 4)
    y.reorder([2, 3, 0, 1])
    ln.propagate(y)
    y.parallelize({0: PT.grid_x, 1: PT.block_x, 3: PT.block_y})
    ln.parallelize_like(y)
    f.inline_most()
    return f, [(10, 21)]


def two_broadcasts_merged() -> Built:
    """Both operands lack an axis of the merged loop."""
    with ln.Fusion("outer") as f:
        x = f.input("x", ("I",), ln.float32)
        y = f.input("y", ("J",), ln.float32)
        z = f.input("z", ("I", "J"), ln.float32)
        rows = ln.broadcast(ln.exp(x), (False, True))
        columns = ln.broadcast(-y, (True, False))
        c = f.output(rows * columns + z, "c")
    flattened_for_threads(c)
    f.inline_most()
    return f, [(9,), (31,), (9, 31)]


def broadcast_twice() -> Built:
    """A broadcast of a broadcast, three axes merged to one."""
    with ln.Fusion("twice") as f:
        x = f.input("x", ("J",), ln.float32)
        z = f.input("z", ("I", "J", "K"), ln.float32)
        once = ln.broadcast(ln.exp(x), (True, False))
        c = f.output(ln.broadcast(once, (False, False, True)) + z, "c")
    flattened_for_threads(c, lanes=2)
    f.inline_most()
    return f, [(5,), (4, 5, 9)]


def scalar_of_a_row_in_a_register() -> Built:
    """Each thread has a row; its maximum is subtracted in a loop over the row's elements."""
    with ln.Fusion("running") as f:
        x = f.input("x", ("M", "N"), ln.float32)
        most = ln.max(x, axis=1)
        again = ln.broadcast(most, (False, True))
        y = f.output(x - again, "y")
    y.split(0, 16)
    most.split(0, 16)
    most.parallelize({0: PT.grid_x, 1: PT.block_x})
    again.compute_at(y, -1)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    return f, [(21, 6)]


def stored_by_one_thread(threads: int, memory: ln.Memory = ln.GLOBAL, pos: int = 2) -> ln.Fusion:
    """A tensor without one of two merged axes, whose loop is split: threads have one of the parts.

    Args:
        threads: the loop that is bound to threads: 0 the slower one, 1 the faster one.
        memory: of the tensor.
        pos: how many of the two loops it is computed in.
    """
    with ln.Fusion("stored") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.input("y", ("N", "M"), ln.float32)
        t = ln.exp(x)
        b = ln.broadcast(t, (False, True))
        c = f.output(b + y, "c")
    c.merge(0)
    c.split(0, 4)
    ln.propagate(c)
    b.compute_at(c, -1)
    t.compute_at(c, pos)
    t.memory = memory
    c.axis(threads).parallelize(PT.grid_x if memory is ln.SHARED else PT.block_x)
    ln.parallelize_like(c)
    return f


def broadcast_in_global_memory() -> Built:
    """One thread stores what several read; serial tiles come in the order of the elements."""
    return stored_by_one_thread(1), [(3,), (3, 5)]


LEGAL: list[Callable[[], Built]] = [
    bias_along_rows, bias_computed_in_the_blocks_loop, rows_of_a_merged_loop,
    shared_tile_of_a_broadcast, gemm_in_shared_memory, gemm_in_global_memory, transpose_by_tiles,
    rows_normalized, columns_normalized, two_broadcasts_merged, broadcast_twice,
    scalar_of_a_row_in_a_register, broadcast_in_global_memory,
]  # fmt: skip


@pytest.mark.parametrize("build", LEGAL, ids=lambda build: build.__name__)
def test_a_legal_schedule(build: Callable[[], Built]) -> None:
    """It lowers, computes its math, and is proved."""
    f, shapes = build()
    rng = np.random.default_rng(0)
    assert_computes(f, *[rng.random(shape, np.float32) for shape in shapes])
    assert ln.verify(ln.lower(f)).ok


# What is refused

EARLY = (
    r"^T3 reads T2 \(global\): one thread of the block_x loop c.i0 stores an element for all that "
    r"have it, and may do so in a later iteration of the serial loop c.i1 than one that reads it; "
    r"compute T2 outside of the loop c.i1, set its memory to LOCAL or SHARED, or order the loops "
    r"so that c.i0 is the faster one of the two$"
)
OTHER_BLOCK = (
    r"^T3 reads T2 \(shared\): along grid_x \(T2.i1, c.i1\) the reading thread is not the writing "
    r"one; compute T2 at a position in T3 that holds the grid_x loop, bind the same axis of both "
    r"to it, or set its memory to GLOBAL$"
)
OTHER_ROW = (
    r"^T3 reads m \(local\): along block_y \(m.i1\) the reading thread is not the writing one; "
    r"compute m at a position in T3 that holds the block_y loop, bind the same axis of both to it, "
    r"or set its memory to SHARED or GLOBAL$"
)


def rows_in_registers_of_others() -> ln.Fusion:
    """A thread has one row; each copies all eight of them."""
    with ln.Fusion("k") as f:
        x, w = f.input("x", ("M", "N"), ln.float32), f.input("w", ("M",), ln.float32)
        m = (w * 2.0).named("m")
        y = f.output(x - ln.broadcast(m, (False, True)), "y")
    y.split(0, 8)
    m.compute_at(y, 1)
    y.parallelize({0: PT.grid_x, 1: PT.block_y})
    m.axis(1).parallelize(PT.block_y)
    return f


REFUSED = {
    "another row": (rows_in_registers_of_others, OTHER_ROW),
    "stored later": (lambda: stored_by_one_thread(0), EARLY),
    "another block": (lambda: stored_by_one_thread(1, ln.SHARED, 0), OTHER_BLOCK),
}


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_wrong(build: Callable[[], ln.Fusion], message: str) -> None:
    """The sentence says why; without the check, the kernel is refuted."""
    with pytest.raises(ln.LoweringError, match=message):
        ln.lower(build())
    with switched_off():
        kernel = ln.lower(build())
    assert ln.verify(kernel).status == "refuted"


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("pos", [0, 1, 2])
@pytest.mark.parametrize("memory", [ln.LOCAL, ln.SHARED, ln.GLOBAL], ids=lambda m: m.value)
def test_the_check_and_the_proof_agree(threads: int, pos: int, memory: ln.Memory) -> None:
    """Every place of a tensor that threads store for each other is accepted or refuted."""
    with switched_off():
        proved = ln.verify(ln.lower(stored_by_one_thread(threads, memory, pos))).ok
    try:
        ln.lower(stored_by_one_thread(threads, memory, pos))
    except ln.LoweringError:
        assert not proved
    else:
        assert proved


# Random schedules

SEED, CASES = 40_000_000, 64


def test_what_is_never_read_needs_no_owner() -> None:
    """A loop over nothing reads nothing, whoever wrote it."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 0, "M"), ln.float32)
        t = x * 2.0
        y = f.output(t + 1.0, "y")
    t.split(2, 8)
    t.axis(2).parallelize(PT.block_x)
    t.compute_at(y, 1)
    kernel = ln.lower(f)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    assert ln.compile(f, target="interpret")(np.zeros((3, 0, 5), np.float32)).shape == (3, 0, 5)


def test_tests_of_the_reader_tell_the_writing_thread() -> None:
    """Two elements lie in the first thread's part of three, whatever loop runs over them."""
    with ln.Fusion("k") as f:
        x = f.input("x", (2,), ln.float32)
        t = x * 2.0
        y = f.output(t + 1.0, "y")
        z = f.output(t + 2.0, "z")
    for tensor in (t, y, z):
        tensor.split(0, 4)
    for tensor, loop in ((t, PT.block_x), (z, PT.grid_y)):
        tensor.split(1, 3)
        tensor.axis(1).parallelize(loop)
    assert str(ln.verify(ln.lower(f))) == "proved for all sizes"


def test_no_random_schedule_is_refused_that_could_be_proved() -> None:
    """Each program that is refused for its threads is refuted where the check is switched off."""
    outcomes = Engine(SEED, ("refused",)).judge(range(CASES))
    asked = [outcome for outcome in outcomes if outcome.without]
    assert len(asked) >= 3  # else these cases say little
    assert [o.number for o in asked if o.without == "proved"] == []


def test_an_axis_of_one_element_that_is_split_over_blocks_has_one_block():
    """What one block stores in its shared memory, no other can read."""
    with ln.Fusion("k") as f:
        x = f.input("x", (4,), ln.float32)
        total = ln.sum(x, 0)
        f.output(total * 2.0, "y")
    total.split(0, 8)
    part = total.rfactor(0)
    part.split(0, 16)
    inner = part.rfactor(1)
    part.memory = ln.SHARED
    inner.split(0, 4)
    part.split(0, 4)
    part.axis(1).parallelize(ln.ParallelType.grid_x)
    with pytest.raises(ln.LoweringError, match=r"along grid_x .* the reading thread is not the wr"):
        ln.lower(f)
