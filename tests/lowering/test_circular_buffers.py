"""Circular buffers: stages, how far they run ahead, in registers and inside of thread loops."""

from __future__ import annotations

import itertools
import re

import pytest

import loopnest as ln
from helpers.schedule_run import PT, assert_computes, nest, random
from loopnest.proofs import verify_program
from loopnest.proofs.verifier import program_of
from mutation.mutants import mutants


def ahead(
    stages: int,
    prefetch: int | None = None,
    rows: int | str = "K",
    *,
    memory: ln.Memory = ln.LOCAL,
    inside: bool = False,
) -> ln.Fusion:
    """Return y = 2 x, whose rows are copied ahead; `inside` shares the loop over threads too."""
    with ln.Fusion("k") as f:
        x = f.input("x", (rows, 64), ln.float32)
        y = f.output(x * 2.0, "y")
    row = x.cache_after().named("row")
    row.memory = memory
    row.compute_at(y, 2 if inside else 1)
    y.parallelize({1: PT.block_x})
    if not inside:
        row.parallelize({1: PT.block_x})
    row.circular_buffer(stages, prefetch)
    return f


def test_registers_rotate_by_unrolling() -> None:
    assert nest(ahead(3, 1)).splitlines() == [
        "row: float32[3, 1] local",
        "if 0 < K:",
        "  for i0 in 64:  # block_x",
        "    row[0, 0] = x[0, i0]",
        "for i1 in ceildiv(K, 3):",
        "  for i2 in 3:  # unroll",
        "    if i1 * 3 + i2 + 1 < K:",
        "      for i3 in 64:  # block_x",
        "        row[(i2 + 1) % 3, 0] = x[i1 * 3 + i2 + 1, i3]",
        "    if i1 * 3 + i2 < K:",
        "      for i4 in 64:  # block_x",
        "        y[i1 * 3 + i2, i4] = row[i2, 0] * 2.0",
    ]


def test_no_test_stands_around_what_is_unrolled_where_the_stages_divide() -> None:
    f = ahead(2)
    f.assume("K % 2 == 0")
    text = nest(f)
    assert "for i1 in K // 2:" in text
    assert text.count("< K") == 2  # the prologue, and what runs ahead


def test_a_prefetch_of_shared_memory_leaves_stages_between() -> None:
    text = nest(ahead(4, 2, memory=ln.SHARED))
    assert "row: float32[4, 64] shared" in text
    assert re.findall(r"row\[(.*?), \w+\] = x\[(.*?), ", text) == [
        ("0", "0"), ("1", "1"), ("(i2 + 2) % 4", "i2 + 2"),
    ]  # fmt: skip


CASES = list(
    itertools.product(
        (ln.LOCAL, ln.SHARED), (False, True), ((2, 1), (3, 1), (4, 2)), ("K", 1, 3, 5, 8)
    )
)


@pytest.mark.parametrize(("memory", "inside", "turns", "rows"), CASES)
def test_it_computes_and_is_proved(
    memory: ln.Memory, inside: bool, turns: tuple[int, int], rows: int | str
) -> None:
    f = ahead(*turns, rows, memory=memory, inside=inside)
    report = ln.verify(ln.lower(f))
    assert (report.ok, report.all_sizes) == (True, True)
    for count in (1, 4, 7) if rows == "K" else (rows,):
        assert_computes(f, random(int(count), 64))


@pytest.mark.parametrize("rows", ["K", 5])
@pytest.mark.parametrize("inside", [False, True])
def test_stages_are_registers(rows: int | str, inside: bool) -> None:
    k = ln.lower(ahead(3, rows=rows, inside=inside))
    assert ".local" not in k.ptx("sm_90")
    found = k.resources("sm_90")
    assert (found.stack_bytes, found.spill_store_bytes) == (0, 0)


@pytest.mark.parametrize("memory", [ln.LOCAL, ln.SHARED])
def test_wrong_stages_and_prefetches_are_refuted(memory: ln.Memory) -> None:
    """Other indices of stages, other iterations, other tests: no mutant that is wrong is proved."""
    program, math = program_of(ln.lower(ahead(3, 1, memory=memory)), "verify")
    changed = mutants(program, frozenset({"index", "predicate", "bound"}))
    stages = [m for m in changed if "% 3" in m.text or "i2 + 1" in m.text]
    assert len(stages) > 2
    for mutant in stages:
        report = verify_program(mutant.program, math, {})
        assert report.status != "proved" or "with 3 + 1" in mutant.text, mutant.text


def two(first: int, second: int) -> ln.Fusion:
    with ln.Fusion("k") as f:
        a = f.input("a", ("K", 8), ln.float32)
        b = f.input("b", ("K", 8), ln.float32)
        y = f.output(a * b, "y")
    for tensor, stages in ((a, first), (b, second)):
        row = tensor.cache_after()
        row.compute_at(y, 1)
        row.circular_buffer(stages)
    return f


def test_two_buffers_in_registers_are_unrolled_together() -> None:
    f = two(2, 3)
    assert "  for i4 in 6:  # unroll" in nest(f)
    assert ln.verify(ln.lower(f)).ok
    assert_computes(f, random(7, 8), random(7, 8))


@pytest.mark.parametrize("memory", [ln.LOCAL, ln.SHARED])
def test_a_buffer_that_turns_inside_of_an_unrolled_loop(memory: ln.Memory) -> None:
    """What runs ahead in the inner loop does so only where the outer iteration exists."""
    with ln.Fusion("k") as f:
        a = f.input("a", ("K", 8), ln.float32)
        b = f.input("b", ("K", 8), ln.float32)
        y = f.output(a * b, "y")
    outer, inner = a.cache_after(), b.cache_after()
    inner.memory = memory
    outer.compute_at(y, 1)
    inner.compute_at(y, 2)
    outer.circular_buffer(2)
    inner.circular_buffer(4, 1)
    assert ln.verify(ln.lower(f)).ok
    assert_computes(f, random(1, 8), random(1, 8))
    assert_computes(f, random(7, 8), random(7, 8))


def test_stages_without_a_small_common_multiple_are_refused() -> None:
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(two(31, 32))
    assert str(caught.value) == (
        "T3, T4: circular buffers in registers unroll the loop over i0 by 992, a common multiple "
        "of their stages; use numbers of stages with a common multiple of at most 64"
    )


def reduced(rows: str | int) -> ln.Fusion:
    with ln.Fusion("k") as f:
        x = f.input("x", (rows, 64), ln.float32)
        y = f.output(ln.sum(x * x, axis=1), "y")
    row = x.cache_after().named("row")
    total = y.cache_before()
    total.compute_at(y, 1)
    row.compute_at(total, 1)
    ln.inline_most([t for t in f.tensors if not t.is_input and t not in (row, y, total)])
    total.parallelize({1: PT.block_x})
    ln.parallelize_like(total)
    row.circular_buffer(2)
    return f


def test_threads_that_reduce_together_are_not_tested_by_iteration() -> None:
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(reduced("K"))
    assert str(caught.value) == (
        "row: its circular buffer in registers unrolls the loop over i0, in which threads reduce "
        "together, by 2, which is not known to divide its extent; assume that it divides, use "
        "other numbers of stages, or SHARED memory"
    )
    f = reduced(8)
    assert ln.verify(ln.lower(f)).ok
    assert_computes(f, random(8, 64))


@pytest.mark.parametrize(
    ("prefetch", "message"),
    [
        (0, "row.circular_buffer(3, 0): prefetch=0 of 3 stages; use an int from 1 to 2"),
        (3, "row.circular_buffer(3, 3): prefetch=3 of 3 stages; use an int from 1 to 2"),
        (True, "row.circular_buffer(3, True): prefetch=True of 3 stages; use an int from 1 to 2"),
    ],
)
def test_a_prefetch_is_less_than_the_stages(prefetch: int, message: str) -> None:
    f = ahead(2)
    with pytest.raises(ln.ScheduleError, match=f"^{re.escape(message)}$"):
        f["row"].circular_buffer(3, prefetch)
    assert f["row"].layout.stages == 2


def test_a_global_tensor_does_not_rotate() -> None:
    f = ahead(2)
    message = (
        "row.set_memory(global): row has a circular buffer of 2 stages, as only a LOCAL or a "
        "SHARED tensor may; choose the memory before circular_buffer"
    )
    with pytest.raises(ln.ScheduleError, match=f"^{re.escape(message)}$"):
        f["row"].memory = ln.GLOBAL


def test_notes_tell_whether_registers_run_ahead() -> None:
    f = ahead(2)
    f.assume("K % 2 == 0")
    assert ln.lower(f).notes == ()


def test_registers_that_are_filled_outside_of_the_math_run_ahead() -> None:
    """A fill is no load that is waited for."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "K"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    row = x.cache_after()
    y.split(1, 32)
    y.split(1, 4)
    row.compute_at(y, 2)
    for tensor in (y, row):
        tensor.axis(-1).parallelize(PT.block_x)
    row.circular_buffer(2)
    k = ln.lower(f)
    assert "= 0.0" in str(k)
    assert [n.asked for n in k.notes if "circular" in n.asked] == []
