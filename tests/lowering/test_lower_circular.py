"""Lowering of circular buffers and layouts: prologue, rotation, strides, refused calls."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from helpers.thread_fusions import PT, chain, nest

# Circular buffers, layouts


def staged(stages: int, *, registers: bool) -> ln.Fusion:
    """Return y = sum over k of a tile that is copied through shared memory."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("K", 64), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
    y.reorder([1, 0])
    tile = x.cache_after()
    if registers:
        held, tile = tile, tile.cache_after()
    tile.memory = ln.SHARED
    y.reorder([1, 0])
    tile.compute_at(y, 1)
    if registers:
        held.compute_at(tile, 1)
    tile.parallelize({1: PT.block_x})
    if registers:
        held.parallelize({1: PT.block_x})
    y.parallelize({1: PT.block_x})
    tile.circular_buffer(stages)
    return f


@pytest.mark.parametrize("stages", [2, 3])
def test_a_circular_buffer_has_a_prologue_and_rotates(stages: int) -> None:
    """The loop computes `stages` - 1 iterations ahead."""
    f = staged(stages, registers=False)
    text = "\n".join(nest(f))
    assert f"T2: float32[{stages}, 64] shared" in text
    assert f"i0 + {stages - 1} < K" in text or f"+ {stages - 1} < K" in text
    assert text.count("T2[0, ") == 1
    assert f"+ {stages - 1}) % {stages}" in text


def test_registers_are_loaded_first_and_stored_last() -> None:
    """Loads are in flight while the sum is taken."""
    lines = [line.strip() for line in nest(staged(2, registers=True))]
    loop = next(n for n, line in enumerate(lines) if line.endswith("in K:"))
    kinds = [line.split("[")[0] for line in lines[loop:] if "] = " in line]
    assert kinds[:3] == ["T2", "y_acc" if "y_acc" in kinds else "y", "T3"]


def folded(definition: str, memory: ln.Memory, *, threads: bool = False) -> ln.Fusion:
    """Return y = sum over k of what is folded over the last axis, some iterations ahead."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "K", 5), ln.float32)
        kept = {
            "sum": lambda: ln.sum(x, 2),
            "places": lambda: ln.argmax(x, 2),
            "welford": lambda: ln.mul(*ln.welford(x, 2)[:2]),
            "scan": lambda: ln.cumsum(x, 2),
            "private": lambda: x - ln.max(x, 2, keepdims=True),
        }[definition]()
        last = ln.sum(kept, 2) if definition in ("scan", "private") else kept
        y = f.output(ln.sum(last * 2, 1), "y")
    ahead = kept.producers[0] if definition == "welford" else kept
    ahead.memory = memory
    ahead.compute_at(y, 2)
    if threads:
        ahead.axis(2).parallelize(PT.block_x)
    f.inline_most(replay=definition == "private")
    ahead.circular_buffer(3)
    return f


@pytest.mark.parametrize("memory", [ln.SHARED, ln.LOCAL])
@pytest.mark.parametrize("definition", ["sum", "places", "welford", "scan", "private"])
def test_a_fold_runs_ahead_from_its_initial_value_on(definition: str, memory: ln.Memory) -> None:
    f = folded(definition, memory)
    kernel = ln.lower(f)
    assert any(buffer.shape[0] == 3 for buffer in kernel.buffers)
    assert ln.verify(kernel).all_sizes
    for target in ("interpret", "c"):
        run = ln.compile(kernel, target)
        for count in (1, 2, 7):
            x = np.random.default_rng(count).integers(-9, 9, (4, count, 5)).astype(np.float32)
            np.testing.assert_allclose(run(x), ln.evaluate(f, x), rtol=1e-5)


def test_outputs_of_one_definition_run_ahead_together() -> None:
    """What nobody reads of them is no part of it."""
    f = folded("welford", ln.SHARED)
    shapes = {b.name: [str(n) for n in b.shape] for b in ln.lower(f).buffers if b.tensor != "y"}
    assert (shapes["T1"], shapes["T2"], shapes["T3"]) == (["3", "1"], ["3", "1"], ["1"])


def test_threads_that_fold_together_do_not_run_ahead() -> None:
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(folded("sum", ln.SHARED, threads=True))
    assert str(caught.value) == (
        "T1: its circular buffer runs ahead in the loop over i1, and threads along block_x fold T1 "
        "together in each iteration; fold T1 in one thread each, or compute it outside of that loop"
    )


def test_an_atomic_fold_has_no_circular_buffer() -> None:
    f = folded("sum", ln.SHARED)
    kept = next(t for t in f.tensors if t.name == "T1")
    with pytest.raises(ln.ScheduleError) as caught:
        kept.atomic()
    assert str(caught.value) == (
        "T1.atomic(): T1 has a circular buffer of 3 stages, which begins anew in each iteration; "
        "leave out one of the two"
    )


def test_layouts_change_strides_and_size_alone() -> None:
    """Padding widens a stride; an order permutes them; stages come first."""
    f, (t, y) = chain("N", 16, 32)
    t.memory = ln.SHARED
    t.compute_at(y, 1)
    t.set_allocation(pad={2: 1})
    (buffer,) = [b for b in ln.lower(f).buffers if b.memory is ln.SHARED]
    assert (buffer.shape, buffer.strides, buffer.size) == ((16, 32), (33, 1), 16 * 33)
    t.set_allocation(order=[0, 2, 1])
    (buffer,) = [b for b in ln.lower(f).buffers if b.memory is ln.SHARED]
    assert (buffer.shape, buffer.strides, buffer.size) == ((16, 32), (1, 16), 512)


def test_a_swizzle_stands_in_the_nest() -> None:
    f, (t, y) = chain("N", 32, 32)
    t.memory = ln.SHARED
    t.compute_at(y, 1)
    t.swizzle(ln.Swizzle.XOR, 1, 2)
    assert "  T1: float32[32, 32] shared xor(0, 1)" in nest(f)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda t: t.swizzle(ln.Swizzle.XOR, 0, 1),
            "T1.swizzle(xor, 0, 1): axes 0 and 1 of T1 have the extents N and 32; two "
            "axes of one static power of two may be swizzled",
        ),
        (
            lambda t: t.circular_buffer(1),
            "T1.circular_buffer(1): stages=1; use an int from 2 to 32",
        ),
        (
            lambda t: t.circular_buffer(2),
            "T1.circular_buffer(2): T1 is computed at the root; compute it inside a serial loop of "
            "its consumer first",
        ),
        (
            lambda t: t.set_allocation(order=[0, 0]),
            "T1.set_allocation(order=[0, 0]): order=[0, 0] is no permutation of the 2 leaf axes of "
            "T1; name each leaf axis once, the one that varies slowest first",
        ),
        (
            lambda t: t.set_allocation(pad={0: -1}),
            "T1.set_allocation(pad={0: -1}): pad={0: -1} is no number of elements; use an int >= 0",
        ),
    ],
)
def test_layout_calls_that_cannot_be(call: object, message: str) -> None:
    f, (t, _) = chain("N", 32)
    t.memory = ln.SHARED
    assert callable(call)
    with pytest.raises(ln.ScheduleError) as caught:
        call(t)
    assert str(caught.value) == message
    assert f["y"].ndim == 2
