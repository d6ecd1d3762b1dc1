"""Schedules of reducers that need not commute: what keeps their order, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.schedule_run import PT, state

AFFINE = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")
SHAPE = {1: ("N",), 2: ("N", "D"), 3: ("A", "B", "C")}


def composed(rank: int = 2, axis: int | tuple[int, ...] | None = 1) -> ln.Fusion:
    with ln.Fusion("composed") as f:
        x = f.input("x", SHAPE[rank], ln.float64)
        a, b = ln.reduce(AFFINE, (x, 0.5), axis)
        a.named("a")
        f.output(b, "b")
    return f


def check(f: ln.Fusion) -> None:
    """Prove the schedule, and run it on the targets."""
    k = ln.lower(f)
    report = ln.verify(k)
    assert report.status == "proved", report
    shape = (5, 13, 3)[: len(f.inputs[0].sizes)]
    x = np.random.default_rng(0).normal(size=shape)
    wanted, bound = ln.evaluate(f, x), ln.error_bound(f, x)
    for target in ("interpret", "c"):
        found = ln.compile(k, target=target)(x)
        assert (abs(found - wanted) <= bound).all()


@pytest.mark.parametrize(
    ("rank", "axis", "schedule"),
    [
        (2, 1, lambda b: None),
        (2, 1, lambda b: b.split(1, 4)),
        (2, 1, lambda b: (b.split(1, 4), b.split(1, 3), b.merge(2))),
        (2, 1, lambda b: (b.split(1, 4), b.rfactor(2))),
        (2, 1, lambda b: (b.split(1, 4), b.split(1, 3), b.rfactor([2, 3]))),
        (2, 1, lambda b: (b.split(1, 4), b.split(1, 3), b.rfactor([2, 3]).rfactor(3))),
        (2, 1, lambda b: (b.split(1, 4), b.split(1, 3), b.rfactor(3), b.rfactor(2))),
        (2, 0, lambda b: (b.reorder({0: 1, 1: 0}), b.split(1, 4))),
        (3, (0, 2), lambda b: None),
        (3, (0, 2), lambda b: b.rfactor(2)),
        (3, (0, 2), lambda b: b.reorder({1: 0, 0: 1})),
        (3, (1, 2), lambda b: b.split(1, 2)),
        (1, 0, lambda b: (b.split(0, 1), b.reorder({0: 1, 1: 0}))),
    ],
)
def test_order_is_kept(rank: int, axis: Any, schedule: Callable[[ln.TensorView], object]) -> None:
    f = composed(rank, axis)
    schedule(f["b"])
    check(f)


def test_chunks_of_threads() -> None:
    """Each thread composes a chunk, and then one goes through their results in order."""
    f = composed(1, None)
    b = f["b"]
    b.split(0, 4, inner=False)
    part = b.rfactor(1)
    for twin in part.siblings:
        twin.memory = ln.SHARED
    part.parallelize({0: PT.block_x})
    check(f)


@pytest.mark.parametrize(
    ("rank", "axis", "schedule", "call"),
    [
        (2, 1, lambda b: (b.split(1, 4), b.rfactor(1)), "b.rfactor(1)"),
        (2, 1, lambda b: (b.split(1, 4), b.split(1, 3), b.rfactor(2)), "b.rfactor(2)"),
        (3, (0, 2), lambda b: b.rfactor(0), "b.rfactor(0)"),
    ],
)
def test_refused_rfactor(rank: int, axis: Any, schedule: Any, call: str) -> None:
    f = composed(rank, axis)
    with pytest.raises(ln.ScheduleError) as caught:
        schedule(f["b"])
    before = state(f)
    names = {"b.rfactor(1)": "[i0, r1, r2]", "b.rfactor(2)": "[i0, r1, r2, r3]"}
    assert str(caught.value) == (
        f"{call}: affine combines neighbours only (it need not commute), and between those that "
        "the new tensor would reduce there are others; factor out the innermost of the reduction "
        f"axes of {names.get(call, '[r0, i1, r2]')}"
    )
    assert state(f) == before
    check(f)


def test_refused_loops() -> None:
    f = composed()
    f["b"].split(1, 4)
    f["b"].reorder({1: 2, 2: 1})
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value) == (
        "a: its reduction loops [r1: 4, r2: ceildiv(D, 4)] do not meet the elements in their "
        "order, and affine need not commute; reorder them: outer parts in front of inner ones, "
        "the axes as they were reduced"
    )
    f["b"].reorder({1: 2, 2: 1})
    check(f)


@pytest.mark.parametrize("parallel", [PT.block_x, PT.grid_x])
def test_threads_and_blocks_take_outer_parts(parallel: ln.ParallelType) -> None:
    for split in (0, 4):
        f = composed()
        if split:
            f["b"].split(1, split)
        f["b"].axis(1).parallelize(parallel)
        check(f)


def test_what_commutes_is_free() -> None:
    """The same schedules of a reducer that commutes."""
    lse = ln.Reducer(
        (float("-inf"), 0.0),
        lambda a, b: (
            most := ln.maximum(a[0], b[0]),
            a[1] * ln.exp(a[0] - most) + b[1] * ln.exp(b[0] - most),
        ),
        "lse",
    )
    for schedule in (
        lambda s: (s.split(1, 4), s.rfactor(1)),
        lambda s: (s.split(1, 4), s.reorder({1: 2, 2: 1})),
        lambda s: (s.split(1, 32), s.parallelize({0: PT.grid_x, 2: PT.block_x})),
        lambda s: (s.split(1, 40), s.parallelize({0: PT.grid_x, 2: PT.block_x})),
        lambda s: (s.split(1, 8), s.parallelize({1: PT.grid_x, 2: PT.block_y})),
    ):
        with ln.Fusion("lse") as f:
            x = f.input("x", ("N", "D"), ln.float64)
            most, total = ln.reduce(lse, (x, 1.0), 1)
            f.output(total.named("s"))
            f.output(most)
        schedule(f["s"])
        k = ln.lower(f)
        assert ln.verify(k).status == "proved"
        data = np.random.default_rng(0).normal(size=(3, 50))
        wanted, bounds = ln.evaluate(f, data), ln.error_bound(f, data)
        for found, value, bound in zip(
            ln.compile(k, target="c")(data), wanted, bounds, strict=True
        ):
            assert (abs(found - value) <= bound).all()


def partial_results(grid: bool) -> ln.Fusion:
    """A thread folds four neighbours, one of 8 threads what 8 threads left, in their order."""
    with ln.Fusion("threads") as f:
        x = f.input("x", ("D",) if grid else ("N", "D"), ln.float32)
        y = f.output(ln.reduce(AFFINE, (0.5, x), axis=-1)[1], "y")
    place = len(y.leaf_domain) - 1
    y.split(place, 4).split(place, 8)
    inner = y.rfactor(place + 2)
    outer = y.rfactor(place + 1)

    if grid:
        inner.compute_at(outer, 1)
        outer.parallelize({0: PT.grid_x})
        inner.parallelize({1: PT.block_x})
    else:
        for tensor in (inner, outer):
            tensor.compute_at(y, 1)
        y.parallelize({0: PT.grid_x})
        inner.parallelize({2: PT.block_x})
        outer.parallelize({1: PT.block_x})
    for tensor in inner.siblings:
        tensor.memory = ln.SHARED
    for tensor in outer.siblings:
        tensor.memory = ln.GLOBAL if grid else ln.SHARED
    return f


@pytest.mark.parametrize("grid", [False, True], ids=["block", "grid"])
def test_over_threads_by_contiguous_ranges(grid: bool) -> None:
    """Threads and blocks fold neighbours, and what they leave is folded in order: proved."""
    f = partial_results(grid)
    k = ln.lower(f)
    assert ln.verify(k).all_sizes
    for size in (0, 1, 33, 70):
        shape = (size,) if grid else (2, size)
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        wanted, bound = ln.evaluate(f, x, exact=True), ln.error_bound(f, x)
        for target in ("interpret", "c"):
            assert (abs(np.asarray(ln.compile(k, target=target)(x)) - wanted) <= bound).all()
