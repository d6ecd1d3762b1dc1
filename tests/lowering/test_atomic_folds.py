"""Atomic reductions: scatters over their sources, what is refused, what verify sees, the texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from helpers.math_run import assert_equal
from loopnest.kir.kernel_program import Program
from loopnest.proofs.verifier import verify_program
from mutation.mutants import Mutant, mutants

PT = ln.ParallelType


def gradient(dtype: Any = ln.float32, deterministic: bool = False) -> tuple[ln.Fusion, Any]:
    with ln.Fusion("gradient") as f:
        g, i = f.input("g", ("K", "D"), dtype), f.input("i", ("K",), ln.int32)
        zeros = ln.full(("V", "D"), 0, dtype=dtype)
        w = f.output(ln.index_add(zeros, 0, i, g, deterministic=deterministic), "w")
    return f, w


def _two_launches(w: Any) -> None:
    start = w.atomic()
    start.parallelize({0: PT.grid_x, 1: PT.block_x})
    w.reorder({2: 0, 1: 1})
    w.new_launch()
    w.parallelize({0: PT.grid_x, 1: PT.block_x})


def _one_grid(w: Any) -> None:
    start = w.atomic()
    start.parallelize({0: PT.grid_x, 1: PT.block_x})
    w.reorder({2: 0, 1: 1})
    w.parallelize({0: PT.grid_x, 1: PT.block_x})


def _one_block(w: Any) -> None:
    start = w.atomic()
    start.parallelize({0: PT.block_x})
    w.split(2, 4)
    w.reorder({2: 0, 3: 1})
    w.parallelize({1: PT.block_x})


def _cores(w: Any) -> None:
    w.atomic()
    w.reorder({2: 0, 1: 1})
    w.parallelize({0: PT.cpu_parallel})


def _started_in_loop(w: Any) -> None:
    start = w.atomic()
    w.reorder({1: 0})
    w.parallelize({2: PT.cpu_parallel})
    start.compute_at(w, 1)


SCHEDULES = [_two_launches, _one_grid, _one_block, _cores, _started_in_loop]


def data(dtype: Any = np.float32) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    g, i = rng.integers(-8, 9, (37, 5)).astype(dtype), rng.integers(-1, 5, 37).astype(np.int32)
    expected = np.zeros((4, 5), dtype)
    inside = (i >= 0) & (i < 4)
    np.add.at(expected, i[inside], g[inside])
    return g, i, expected


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_targets(
    schedule: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    f, w = gradient()
    schedule(w)
    kernel = ln.lower(f)
    assert "atomic w[" in str(kernel)
    assert ln.verify(kernel).all_sizes, ln.verify(kernel)
    g, i, expected = data()
    for target, options in (("interpret", {}), ("c", {"optimize": 0})):
        assert_equal(ln.compile(kernel, target=target, **options)(g, i, V=4), expected)
    run = ln.compile(kernel, target="interpret", thread_order=3)
    assert_equal(run(g, i, V=4), expected)
    if schedule is _two_launches:
        assert kernel.cubin("sm_80")
    if schedule in (_two_launches, _one_grid):
        plug_in(monkeypatch, CpuGpu(tmp_path))
        assert_equal(ln.compile(kernel, target="cuda")(g, i, V=4), expected)


HARMLESS = ("drop '", "weaken", "launch grid", "launch block")

KINDS = frozenset({"atomic", "init", "identity", "predicate", "barrier", "launch", "bound", "index",
                   "claim", "clobber", "order", "store"})  # fmt: skip


def _broken(program: Program) -> list[Mutant]:
    """Return the mutants that are wrong: not those that leave out a test that holds anyway."""
    made = [m for m in mutants(program, KINDS) if not m.text.startswith(HARMLESS)]
    made = [m for m in made if not (m.kind == "bound" and m.text.endswith("+1"))]
    return [m for m in made if not (m.kind == "claim" and getattr(m.node, "role", "") == "init")]


@pytest.mark.parametrize("schedule", [_two_launches, _one_block, _cores])
def test_mutants_are_not_proved(schedule: Callable[[Any], None]) -> None:
    f, w = gradient()
    schedule(w)
    lowered = ln.lower(f)._lowered
    assert lowered.math is not None
    math = lowered.math()
    made = _broken(lowered.program)
    kinds = {m.kind for m in made}
    assert kinds >= {"atomic", "init", "identity", "index", "claim"}
    assert [m.text for m in made if verify_program(m.program, math).ok] == []


REDUCERS = [
    (ln.max, np.float32), (ln.min, np.float64), (ln.max, np.int32), (ln.prod, np.float32),
    (ln.sum, np.int64), (ln.sum, np.float64), (ln.min, np.uint32),
]  # fmt: skip


def test_reducers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the operations that CUDA has, and by a loop that compares and swaps."""
    with ln.Fusion("k") as f:
        for number, (reduce, dtype) in enumerate(REDUCERS):
            kind = getattr(ln, np.dtype(dtype).name)
            x = f.input(f"x{number}", (12, 5), kind)
            given = {"dtype": kind} if reduce is ln.sum else {}
            f.output(reduce(x, axis=0, **given), f"y{number}")
    for y in f.outputs:
        y.atomic().parallelize({0: PT.block_x})
        y.new_launch()
        y.parallelize({0: PT.grid_x, 1: PT.block_x})
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    text = kernel.cuda()
    assert [text.count(name + "(&") for name in ("atomicMax", "atomicMin", "atomicAdd")] == [
        1,
        1,
        1,
    ]
    assert text.count("atomicAdd((unsigned long long *)&y4") == 1
    assert text.count("ln_swap(ln_place") == 3
    rng = np.random.default_rng(1)
    values = [rng.integers(1, 4, (12, 5)).astype(dtype) for _, dtype in REDUCERS]
    expected = ln.evaluate(f, *values)
    plug_in(monkeypatch, CpuGpu(tmp_path))
    for target, options in (("interpret", {}), ("c", {"optimize": 0}), ("cuda", {})):
        found = ln.compile(kernel, target=target, **options)(*values)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)


def test_bits_of_a_fixed_sum_are_the_same_each_time() -> None:
    _, w = gradient(deterministic=True)
    with pytest.raises(ln.ScheduleError) as caught:
        w.atomic()
    assert str(caught.value) == (
        "w.atomic(): w is index_add with deterministic=True, and a sum of float32 by atomic "
        "operations has other bits each time; leave out deterministic=True, or schedule the "
        "reduction without atomic()"
    )
    _, w = gradient(ln.int32, deterministic=True)
    assert w.atomic().shape == w.shape


def _sum(kind: Any = ln.float32, **options: Any) -> tuple[ln.Fusion, Any]:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), kind)
        y = f.output(ln.sum(x, axis=0, **options), "y")
    return f, y


def _twice(y: Any) -> None:
    y.atomic()
    y.atomic()


def _factored(y: Any) -> None:
    y.split(1, 4)
    y.atomic()
    y.rfactor(1)


def _cached(y: Any) -> None:
    y.atomic().cache_after()


def _moved(y: Any) -> None:
    y.atomic().memory = ln.SHARED


REFUSED = [
    (_twice, "y.atomic(): y is atomic already; call it once"),
    (_factored, "y.rfactor(1): y is atomic: its memory is that of its initial values T2; "
     "rfactor comes before atomic(), if at all"),
    (_cached, "T2.cache_after(): T2 holds the initial values of y, in its memory; cache_after "
     "serves other tensors"),
    (_moved, "T2.set_memory(shared): T2 holds the initial values of y, in its memory; memory = "
     "serves other tensors"),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "said"), REFUSED)
def test_what_is_refused(schedule: Callable[[Any], None], said: str) -> None:
    _, y = _sum()
    with pytest.raises(ln.ScheduleError) as caught:
        schedule(y)
    assert str(caught.value) == said


def test_types_that_are_refused() -> None:
    with pytest.raises(ln.ScheduleError, match="whose partial results are float32: each update"):
        _sum(ln.float16)[1].atomic()
    with pytest.raises(ln.ScheduleError, match="an element of y has 1 byte; atomic operations"):
        _sum(ln.int8, dtype=ln.int8)[1].atomic()


def test_a_sum_behind_what_it_is_added_to_is_named() -> None:
    """As `index_add` adds one to a table."""
    with ln.Fusion("k") as f:
        x, table = f.input("x", ("N", 4), ln.float32), f.input("table", (4,), ln.float32)
        y = f.output(table + ln.sum(x, axis=0), "y")
    with pytest.raises(ln.ScheduleError) as caught:
        y.atomic()
    said = "y.atomic(): y is no reduction; atomic() is for reductions; y reads T2, which has it"
    assert str(caught.value) == said


def test_initial_values_stay_outside_of_what_is_folded() -> None:
    f, y = _sum()
    start = y.atomic()
    start.compute_at(y, 1)
    assert start.compute_at_pos == 0
    y.reorder({1: 0})
    start.compute_at(y, 2)
    assert start.compute_at_pos == 1
    assert ln.verify(ln.lower(f)).all_sizes


def test_a_layout_of_its_own_is_refused() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 4, 8), ln.float32)
        s = ln.sum(x, axis=0)
        f.output(s * 2.0, "y")
    s.memory = ln.GLOBAL
    s.allocation_domain.reorder({0: 1})
    with pytest.raises(ln.ScheduleError) as caught:
        s.atomic()
    assert "allocation_domain.reset() first" in str(caught.value)
    s.allocation_domain.reset()
    start = s.atomic()
    for tensor in (s, start):
        with pytest.raises(ln.ScheduleError, match="initial values"):
            tensor.allocation_domain.reorder({0: 1})


def test_who_else_reads_initial_values_is_refused() -> None:
    f, y = _sum()
    start = y.atomic()
    f.output(start * 2.0, "z")
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value) == (
        "T2: it holds what y starts from, in the memory of y, and z reads it too; use a tensor of "
        "its own, as ln.full makes one"
    )


def test_lanes_of_a_vector_are_refused() -> None:
    f, y = _sum()
    y.atomic()
    y.split(1, 4)
    y.parallelize({2: PT.vectorize})
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value) == (
        "y: its axis 2 is vectorized, but an atomic operation updates one element; leave the axis "
        "serial, or bind it to threads"
    )


def test_a_local_result_moves_to_global_memory() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.int32)
        s = ln.sum(x, 0, dtype=ln.int32)
        f.output(s * 2, "y")
    start = s.atomic()
    assert (s.memory, start.memory) == (ln.GLOBAL, ln.GLOBAL)
    s.new_launch()
    f["y"].new_launch()
    s.parallelize({0: PT.block_x, 1: PT.grid_x})
    k = ln.lower(f)
    assert k.notes == ()
    assert ln.verify(k).all_sizes
    values = np.arange(15, dtype=np.int32).reshape(3, 5)
    assert (ln.compile(k, "interpret")(values) == 2 * values.sum(0)).all()


def test_a_local_result_that_a_launch_needs_in_registers_stays() -> None:
    """Where its loops are those of what starts a launch after it, GLOBAL memory has no order."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.int32)
        s = ln.sum(x, 1, dtype=ln.int32)
        y = f.output(s * 2, "y")
    s.compute_at(y, 1)
    y.new_launch()
    with pytest.raises(ln.ScheduleError) as caught:
        s.atomic()
    assert str(caught.value) == (
        "T1.atomic(): y starts a launch (new_launch), and T1, which it reads from GLOBAL memory, "
        "is computed in an earlier one: they share no loops; give them separate loops, or keep "
        "what is read in LOCAL or SHARED memory"
    )
    assert s.memory is ln.LOCAL


def test_a_reader_beside_updates_is_a_race() -> None:
    """Updates of one element by several threads, and a plain load of it: the load races."""
    with ln.Fusion("k") as f:
        x = f.input("x", (64,), ln.int32)
        s = ln.sum(x, dtype=ln.int32)
        f.output(ln.cast(x, ln.int32) + s, "y")
    s.memory = ln.GLOBAL
    start = s.atomic()
    s.parallelize({0: PT.block_x})
    f["y"].parallelize({0: PT.block_x})
    lowered = ln.lower(f)._lowered
    assert str(ln.lower(f)).count("barrier block") == 2
    assert start.memory is ln.GLOBAL
    assert ln.verify(ln.lower(f)).all_sizes
    assert lowered.math is not None
    barriers = [m for m in mutants(lowered.program, frozenset({"barrier"})) if "remove" in m.text]
    assert len(barriers) == 2
    for mutant in barriers:
        assert verify_program(mutant.program, lowered.math()).status == "refuted"


def in_windows():
    with ln.Fusion("k") as f:
        t = ln.sum(f.input("x", ("N", "M"), ln.float32), axis=1).named("t")
        y = f.output(t[:-2] + t[2:], "y")
    y.split(0, 4)
    t.memory = ln.GLOBAL
    return t, y


def test_tiles_that_overlap_are_not_made_atomic():
    t, y = in_windows()
    t.compute_at(y, 1)
    with pytest.raises(ln.ScheduleError) as caught:
        t.atomic()
    assert str(caught.value) == (
        "t.atomic(): t is computed in tiles that overlap, as its consumers' windows ask, and what "
        "lies in two of them would be folded twice; compute t in front of the loops of its "
        "consumers"
    )


def test_what_is_atomic_is_not_computed_in_tiles_that_overlap():
    t, y = in_windows()
    t.atomic()
    with pytest.raises(ln.ScheduleError) as caught:
        t.compute_at(y, 1)
    assert str(caught.value) == (
        "t.compute_at(y, 1): t is atomic, and its consumers read it in windows: what lies in two "
        "of the tiles that their loops need would be folded twice; use a position in front of the "
        "windows"
    )


@pytest.mark.parametrize("dim", [PT.block_x, PT.block_y, PT.grid_x])
def test_one_update_is_an_update(dim: PT) -> None:
    """What is folded is one element: it is folded into the initial values, not stored over them."""
    with ln.Fusion("counted") as f:
        k = f.input("k", (1,), ln.int32)
        h = f.output(ln.index_add(ln.full((9,), 0, ln.int32), 0, k & 7, k), "h")
    start = h.atomic()
    start.parallelize({0: dim})
    h.split(0, 2)
    h.axis(1).parallelize(PT.block_y)
    kernel = ln.lower(f)
    assert "atomic h[" in str(kernel)
    assert ln.verify(kernel).all_sizes
    k = np.array([13], np.int32)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(ln.compile(kernel, target=target)(k), ln.evaluate(f, k))
