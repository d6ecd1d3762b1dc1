"""Atomic reductions in SHARED memory: counters of a block, which it adds to those of all."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from helpers.math_run import assert_equal
from loopnest.proofs.verifier import verify_program
from mutation.mutants import Mutant, mutants

PT = ln.ParallelType
BINS = 12


def counted(dtype: Any = ln.int32, rows: bool = False) -> tuple[ln.Fusion, Any]:
    """Return a weighted histogram, of each row or of all, as ``h [.., r: N, bins]``."""
    with ln.Fusion("counted") as f:
        size = ("B", "N") if rows else ("N",)
        x, w = f.input("x", size, ln.int32), f.input("w", size, dtype)
        zeros = ln.full((*size[:-1], BINS), 0, dtype=dtype)
        h = f.output(ln.scatter_add(zeros, x, w, int(rows)), "h")
    h.reorder({2: 1} if rows else {1: 0})
    return f, h


def _of_a_block(h: Any) -> None:
    """Each block has counters for 32 values, and adds them to those of all."""
    h.split(0, 32)
    own = h.rfactor(1).named("own")
    own.memory = ln.SHARED
    start = own.atomic()
    h.atomic()
    h.new_launch()
    h.parallelize({0: PT.grid_x, 1: PT.block_x})
    own.compute_at(h, 1)
    own.split(1, 16)
    own.parallelize({2: PT.block_x})
    start.compute_at(own, 1)
    start.parallelize({1: PT.block_x})


def _of_rows(h: Any) -> None:
    """As before, for each row of a batch."""
    h.split(1, 32)
    own = h.rfactor(2)
    own.memory = ln.SHARED
    start = own.atomic()
    h.atomic()
    h.new_launch()
    h.parallelize({0: PT.grid_y, 1: PT.grid_x, 2: PT.block_x})
    own.compute_at(h, 2)
    own.parallelize({2: PT.block_x})
    start.compute_at(own, 2)


def _of_a_warp(h: Any) -> None:
    """A block has counters for each of two groups of threads, and one result for all."""
    h.split(0, 64)
    h.split(1, 2, inner=False)
    own = h.rfactor(2)
    own.memory = ln.SHARED
    start = own.atomic()
    h.atomic()
    h.parallelize({0: PT.grid_x, 2: PT.block_x})
    own.compute_at(h, 1)
    own.parallelize({1: PT.block_y, 2: PT.block_x})
    start.compute_at(own, 2)
    start.parallelize({2: PT.block_x})


def _of_the_kernel(h: Any) -> None:
    """One block, whose counters start and end outside of all loops."""
    h.split(0, 32)
    own = h.rfactor(1)
    own.memory = ln.SHARED
    start = own.atomic()
    start.parallelize({0: PT.block_x})
    own.parallelize({1: PT.block_x})
    h.parallelize({1: PT.block_x})


def _started_once(h: Any) -> None:
    """Blocks start counters of their own before the loop that they take parts of."""
    h.split(0, 32)
    own = h.rfactor(1)
    own.memory = ln.SHARED
    own.atomic()
    h.atomic()
    h.parallelize({0: PT.grid_x})
    own.compute_at(h, 1)
    own.parallelize({1: PT.block_x})


SCHEDULES = [_of_a_block, _of_rows, _of_a_warp, _of_the_kernel, _started_once]


def data(rows: bool, dtype: Any = np.int32) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(3)
    shape = (3, 75) if rows else (150,)
    x = rng.integers(-2, BINS + 2, shape).astype(np.int32)
    w = rng.integers(1, 5, shape).astype(dtype)
    expected = np.zeros((3, BINS) if rows else (BINS,), dtype)
    for place in zip(*np.nonzero((x >= 0) & (x < BINS)), strict=True):
        expected[(*place[:-1], x[place])] += w[place]
    return x, w, expected


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_targets(
    schedule: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = schedule is _of_rows
    f, h = counted(rows=rows)
    schedule(h)
    kernel = ln.lower(f)
    assert re.search(r"shared\n(.*\n)*.* atomic (own|T\d+)\[", str(kernel)), kernel
    assert ln.verify(kernel).all_sizes, ln.verify(kernel)
    x, w, expected = data(rows)
    assert_equal(ln.compile(kernel, target="c", optimize=0)(x, w), expected)
    for seed in (None, 1, 2, 3):
        run = ln.compile(kernel, target="interpret", thread_order=seed)
        assert_equal(run(x, w), expected)
    plug_in(monkeypatch, CpuGpu(tmp_path))
    run = ln.compile(kernel, target="cuda")
    for _ in range(3):
        assert_equal(run(x, w), expected)


def test_the_nest() -> None:
    f, h = counted()
    _of_a_block(h)
    assert str(ln.lower(f)).split("launch:\n")[2] == (
        "  for i1 in ceildiv(N, 32):  # grid_x\n"
        "    own: int32[12] shared\n"
        "    for i2 in 12:  # block_x\n"
        "      own[i2] = 0\n"
        "    barrier warp  # own stores to own after own stores it in other threads\n"
        "    for i3 in 2:\n"
        "      for i4 in 16:  # block_x\n"
        "        if i1 * 32 + i3 * 16 + i4 < N:\n"
        "          for i5 in max(0, index(x[i1 * 32 + i3 * 16 + i4]))..min(index(x[i1 * 32 + i3 * "
        "16 + i4]), 11) + 1 of 12:\n"
        "            atomic own[i5] = own[i5] + where(index(x[i1 * 32 + i3 * 16 + i4]) == i5, "
        "w[i1 * 32 + i3 * 16 + i4], 0)\n"
        "    barrier warp  # h reads own after own stores it in other threads\n"
        "    for i6 in 12:  # block_x\n"
        "      atomic h[i6] = h[i6] + own[i6]"
    )


HARMLESS = ("drop '", "weaken", "launch grid", "launch block")
KINDS = frozenset({"atomic", "init", "identity", "predicate", "barrier", "launch", "bound", "index",
                   "claim", "clobber", "order", "store", "memory", "alias"})  # fmt: skip


def _broken(program: ln.kir.Program) -> list[Mutant]:
    """Return the mutants that are wrong: not those that leave out a test that holds anyway."""
    made = [m for m in mutants(program, KINDS) if not m.text.startswith(HARMLESS)]
    made = [m for m in made if not (m.kind == "bound" and m.text.endswith("+1"))]
    return [m for m in made if not (m.kind == "claim" and getattr(m.node, "role", "") == "init")]


# The first stores of h and the barrier in front of its loops may change places, and loops of T4.
FREE_ORDER = ["raise barrier warp", "swap two neighbours"]


@pytest.mark.parametrize(("schedule", "right"), [(_of_a_block, []), (_of_the_kernel, FREE_ORDER)])
def test_mutants_are_not_proved(schedule: Callable[[Any], None], right: list[str]) -> None:
    f, h = counted()
    schedule(h)
    lowered = ln.lower(f)._lowered
    assert lowered.math is not None
    math = lowered.math()
    made = _broken(lowered.program)
    assert {m.kind for m in made} >= {"atomic", "init", "identity", "index", "claim", "barrier"}
    assert [m.text for m in made if verify_program(m.program, math).ok] == right


REDUCERS = [
    (ln.max, np.float32), (ln.min, np.float64), (ln.max, np.int32), (ln.prod, np.float32),
    (ln.sum, np.int64), (ln.sum, np.float64), (ln.min, np.uint32),
]  # fmt: skip


@pytest.mark.parametrize(("reduce", "dtype"), REDUCERS)
def test_reducers(reduce: Any, dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the operations that CUDA has for shared memory, and by a loop that compares and swaps."""
    kind = getattr(ln, np.dtype(dtype).name)
    with ln.Fusion("k") as f:
        x = f.input("x", (40, 5), kind)
        y = f.output(reduce(x, axis=0, **({"dtype": kind} if reduce is ln.sum else {})), "y")
    y.split(0, 16)
    own = y.rfactor(1)
    own.memory = ln.SHARED
    start = own.atomic()
    y.parallelize({0: PT.block_y, 1: PT.block_x})
    own.parallelize({1: PT.block_y, 2: PT.block_x})
    start.parallelize({1: PT.block_x})
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    assert kernel.cubin("sm_80")
    values = np.random.default_rng(1).integers(1, 3, (40, 5)).astype(dtype)
    expected = ln.evaluate(f, values)
    plug_in(monkeypatch, CpuGpu(tmp_path))
    for target, options in (("interpret", {}), ("c", {"optimize": 0}), ("cuda", {})):
        assert_equal(ln.compile(kernel, target=target, **options)(values), expected)


def test_c_adds_without_atomic_operations_to_what_a_core_has() -> None:
    """The threads of a block are loops of one core; other cores have counters of their own."""
    f, h = counted()
    _of_a_block(h)
    text = ln.lower(f).c()
    assert "__atomic_fetch_add(&h[" in text
    assert "__atomic_fetch_add(&own[" not in text
    start = r"\n *for \(idx_t i5 = ln_max_i32\(0, .*\n"
    loop = re.search(start + r"(?:.*LN_HOLDS.*\n)?.*own\[i5\] = ", text)
    assert loop, text  # over the one bin of a value, not over all


def test_cores_meet_in_what_they_share() -> None:
    """Counters outside of a parallel loop are updated by all of its cores."""
    f, h = counted()
    h.split(0, 32)
    own = h.rfactor(1).named("own")
    own.memory = ln.SHARED
    own.atomic()
    own.parallelize({1: PT.cpu_parallel})
    kernel = ln.lower(f)
    assert "__atomic_fetch_add(&own[" in kernel.c()
    x, w, expected = data(False)
    for target in ("interpret", "c"):
        assert_equal(ln.compile(kernel, target=target)(x, w), expected)


def test_one_counter_a_block() -> None:
    """A buffer of one element has no index, whatever loops its initial value stands in."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "M"), ln.int32)
        s = ln.sum(x, axis=1, dtype=ln.int32).named("s")
        y = f.output(s * 2, "y")
    s.memory = ln.SHARED
    start = s.atomic()
    y.parallelize({0: PT.grid_x})
    s.compute_at(y, 1)
    s.split(1, 32)
    s.parallelize({2: PT.block_x})
    start.compute_at(s, 1)
    kernel = ln.lower(f)
    assert "\n  s: int32[1] shared\n" in str(kernel)
    assert "s[0] = 0\n" in str(kernel)
    assert ln.verify(kernel).all_sizes
    values = np.arange(100, dtype=np.int32).reshape(4, 25)
    for target in ("interpret", "c"):
        assert_equal(ln.compile(kernel, target=target)(values), 2 * values.sum(1, dtype=np.int32))


def test_blocks_do_not_fold_into_one_shared_result() -> None:
    f, h = counted()
    h.split(0, 32)
    own = h.rfactor(1).named("own")
    own.memory = ln.SHARED
    own.atomic()
    own.parallelize({1: PT.grid_x})
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value) == (
        "own: its reduction axis 1 is grid_x, but each block has SHARED memory of its own, which "
        "would hold a part of the result; rfactor the axis that blocks have, so that each folds a "
        "result of its own; or set own.memory = ln.GLOBAL before atomic()"
    )


def test_initial_values_do_not_outlive_their_launch() -> None:
    f, h = counted()
    h.split(0, 32)
    own = h.rfactor(1).named("own")
    own.memory = ln.SHARED
    own.atomic()
    own.new_launch()
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value) == (
        "T5: it is in SHARED memory, which ends with launch 0, and own reads it in launch 1; set "
        "own.memory = ln.GLOBAL before atomic(), or compute it in the loops of own (compute_at)"
    )


def test_a_layout_of_its_own_is_refused() -> None:
    _, h = counted()
    h.split(0, 32)
    own = h.rfactor(1).named("own")
    own.memory = ln.SHARED
    own.set_allocation(pad={2: 1})
    with pytest.raises(ln.ScheduleError) as caught:
        own.atomic()
    assert str(caught.value) == (
        "own.atomic(): own is laid out by an allocation domain of its own; "
        "own.allocation_domain.reset() first: updates go to the plain layout"
    )


@pytest.mark.parametrize("loops", ["around", "merged"])
def test_loops_over_what_a_fold_lacks_do_not_add_again(loops: str) -> None:
    """The memory is initialized once, outside of the loops that the fold is computed in."""
    with ln.Fusion("centred") as f:
        x = f.input("x", ("K", "M"), ln.float32)
        sums = ln.sum(x, 0, keepdims=True)
        total = sums.producers[0]
        y = f.output(x - sums, "y")
    if loops == "around":
        y.split(1, 4)
        y.reorder({1: 0})
    else:
        y.merge(0)
        y.split(0, 4)
    ln.propagate(y)
    f.inline_most()
    total.memory = ln.SHARED
    total.atomic()
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    data = np.arange(35, dtype=np.float32).reshape(5, 7)
    for target in ("interpret", "c"):
        assert_equal(ln.compile(kernel, target=target)(data), ln.evaluate(f, data))


def _rows(bound: str, rows: int = 11) -> ln.Fusion:
    with ln.Fusion("rows") as f:
        x = f.input("x", (rows, "M"), ln.float32)
        total = ln.sum(x, 1)
        y = f.output(total + 1.0, "y")
    total.memory = ln.SHARED
    start = total.atomic()
    total.axis(1).parallelize(PT.block_y)
    for name, tensor in {"start": start, "total": total, "y": y}.items():
        if name in bound:
            tensor.axis(0).parallelize(PT.grid_x)
    return f


def test_initial_values_of_other_blocks_are_refused() -> None:
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(_rows("start"))
    assert str(caught.value) == (
        "T1 (shared) starts from T3: along grid_x (T3.i0) the block that folds is not the one that "
        "stores these initial values, and each has a memory of its own; bind the same axis of both "
        "to grid_x, compute T3 at a position in T1 that holds its loop, or set the memory of T1 to "
        "GLOBAL before atomic()"
    )


def test_blocks_that_start_and_fold_the_same_rows_are_taken() -> None:
    kernel = ln.lower(_rows("start total y"))
    assert ln.verify(kernel).all_sizes
    data = np.arange(33, dtype=np.float32).reshape(11, 3)
    assert_equal(ln.compile(kernel, target="interpret")(data), data.sum(1) + 1)


@pytest.mark.parametrize("kind", [PT.block_x, PT.block_y, PT.cpu_parallel, PT.vectorize])
@pytest.mark.parametrize(("rows", "split"), [(4, None), (11, 4)])
@pytest.mark.parametrize("blocks", ["rows", "split rows", "split rows, also of the start"])
def test_one_of_the_iterations_at_once_starts_the_row_of_a_block(
    kind: PT, rows: int, split: int | None, blocks: str
) -> None:
    """A block has one row in SHARED memory; initial values have loops over all rows."""
    if kind is PT.vectorize and split is not None:
        rows = 12
    f = _rows("total y" if blocks == "rows" else "", rows)
    total, start, y = f["T1"], f["T3"], f["y"]
    if blocks != "rows":
        for tensor in (total, y):
            tensor.split(0, split or 3)
            tensor.parallelize({0: PT.grid_y, 1: PT.grid_x})
    if split is not None:
        start.split(0, split)
        if "start" in blocks:
            start.axis(0).parallelize(PT.grid_y)
    start.axis(-1).parallelize(kind)
    kernel = ln.lower(f)
    assert "\nT1: float32[1] shared\n" in str(kernel)
    assert ln.verify(kernel).all_sizes, ln.verify(kernel)
    data = np.arange(3 * rows, dtype=np.float32).reshape(-1, 3)
    for target in ("interpret", "c"):
        assert_equal(ln.compile(kernel, target=target)(data), data.sum(1) + 1)
