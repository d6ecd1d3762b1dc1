"""Scans under schedules: proved for all sizes, right on the targets, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.schedule_run import PT, body, nest, state
from loopnest.proofs.verifier import program_of, verify_program

AFFINE = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")


def rows(exclusive: bool = False, dtype: Any = ln.float32) -> ln.Fusion:
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N", "D"), dtype)
        f.output(ln.cumsum(x, 1, exclusive=exclusive), "y")
    return f


def check(f: ln.Fusion, shape: tuple[int, ...] = (5, 13)) -> None:
    k = ln.lower(f)
    report = ln.verify(k)
    assert report.all_sizes, report
    for size in (shape, (shape[0], 1), (shape[0], 0)):
        x = np.random.default_rng(0).normal(size=size).astype(f.inputs[0].dtype.numpy)
        wanted, bound = ln.evaluate(f, x, exact=True), ln.error_bound(f, x)
        for target in ("interpret", "c"):
            found = ln.compile(k, target=target)(x)
            assert (abs(found.astype(np.float64) - wanted) <= bound).all()


def test_nest() -> None:
    assert nest(rows()) == body("""
        for i0 in N:
          y_acc: float32[1] local
          y_acc[0] = 0.0
          for i1 in D:
            y_acc[0] = y_acc[0] + x[i0, i1]
            y[i0, i1] = y_acc[0]
    """)
    assert nest(rows(exclusive=True)) == body("""
        for i0 in N:
          y_acc: float32[1] local
          y_acc[0] = 0.0
          for i1 in D:
            y[i0, i1] = y_acc[0]
            y_acc[0] = y_acc[0] + x[i0, i1]
    """)


SCHEDULES: dict[str, Callable[[ln.TensorView], object]] = {
    "none": lambda y: None,
    "split": lambda y: y.split(1, 4),
    "two splits that do not divide": lambda y: (y.split(1, 6), y.split(2, 4)),
    "unrolled": lambda y: (y.split(1, 4), y.axis(2).parallelize(PT.unroll)),
    "the axis outside": lambda y: y.reorder({0: 1, 1: 0}),
    "a row a thread": lambda y: (y.split(0, 4), y.parallelize({0: PT.grid_x, 1: PT.block_x})),
    "threads inside": lambda y: (y.reorder({0: 1, 1: 0}), y.parallelize({1: PT.block_x})),
    "a row a core": lambda y: y.parallelize({0: PT.cpu_parallel}),
    "lanes": lambda y: (
        y.split(0, 4),
        y.split(2, 3),
        y.reorder({1: 3, 2: 1, 3: 2}),
        y.cache_before(),
    ),
}


@pytest.mark.parametrize("exclusive", [False, True], ids=["", "exclusive"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str, exclusive: bool) -> None:
    f = rows(exclusive)
    SCHEDULES[name](f["y"])
    check(f)


def test_sixteen_bits_fold_in_float32() -> None:
    f = rows(dtype=ln.float16)
    check(f)
    assert "y_acc: float32[1] local" in str(ln.lower(f))


def test_neighbours_share_its_loop() -> None:
    """The producer, the scan and its consumer in one loop along the axis: nothing is kept."""
    with ln.Fusion("chain") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        e = ln.tanh(x).named("e")
        y = ln.cumsum(e, 1).named("c")
        z = f.output(ln.exp(y * 0.1), "z")
    z.split(1, 4)
    f.inline_most()
    assert "c: float32[1] local" in str(ln.lower(f))
    check(f)


@pytest.mark.parametrize("factors", [(4,), (6, 4)])
def test_copies_with_fills(factors: tuple[int, ...]) -> None:
    """Tests may go where a copy holds the identity, but not in the midst of a scan."""
    f = rows()
    y, copy = f["y"], f["x"].cache_after()
    for place, factor in enumerate(factors, 1):
        y.split(place, factor)
    copy.compute_at(y, 2)
    check(f)


def test_several_scans() -> None:
    with ln.Fusion("several") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = ln.cumsum(x, 1)
        f.output(ln.cumsum(y, 1), "twice")
        f.output(ln.cumsum(y, 0), "both")
        f.output(ln.scan(AFFINE, (0.5, y), 1, exclusive=True, reverse=True)[1], "smooth")
        f.output(ln.sum(y, 1), "total")
    k = ln.lower(f)
    assert ln.verify(k).all_sizes
    x = np.random.default_rng(0).normal(size=(5, 13)).astype(np.float32)
    wanted, bounds = ln.evaluate(f, x, exact=True), ln.error_bound(f, x)
    for target in ("interpret", "c"):
        for found, value, bound in zip(
            ln.compile(k, target=target)(x), wanted, bounds, strict=True
        ):
            assert (abs(found - value) <= bound).all()


def test_cuda_text() -> None:
    f = rows()
    f["y"].split(0, 4)
    f["y"].parallelize({0: PT.grid_x, 1: PT.block_x})
    assert ".target sm_80" in ln.lower(f).ptx("sm_80")


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            lambda y: (y.split(1, 4), y.reorder({1: 2, 2: 1})),
            "y: its loops [i1: 4, i2: ceildiv(D, 4)] do not go through the axis of its scan in "
            "order; reorder them: outer parts in front of inner ones; do not merge the axis with "
            "others",
        ),
        (
            lambda y: y.merge(0),
            "y: its loops [i0: N * D] do not go through the axis of its scan in order; reorder "
            "them: outer parts in front of inner ones; do not merge the axis with others",
        ),
        (
            lambda y: y.parallelize({1: PT.grid_x}),
            "y: its loop over i1: D is grid_x, but each step of a scan needs the one before; bind "
            "another axis, or threads of a block to the inner part of this one",
        ),
        (
            lambda y: y.parallelize({1: PT.cpu_parallel}),
            "y: its loop over i1: D is cpu_parallel, but each step of a scan needs the one before; "
            "bind another axis, or threads of a block to the inner part of this one",
        ),
    ],
)
def test_refused_loops(schedule: Callable[[ln.TensorView], object], message: str) -> None:
    f = rows()
    schedule(f["y"])
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value) == message


def repeated() -> ln.Fusion:
    with ln.Fusion("repeated") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = ln.cumsum(x, 1).named("c")
        f.output(ln.broadcast(y, (False, False, True)) + ln.full((4,), 1.0), "z")
    return f


def test_a_loop_that_it_lacks_stays_out_of_it() -> None:
    f = repeated()
    f["z"].reorder({0: 2, 1: 0, 2: 1})  # [D, 4, N]
    before = state(f)
    with pytest.raises(ln.ScheduleError) as caught:
        f["c"].compute_at(f["z"], 3)
    assert str(caught.value) == (
        "c.compute_at(z, 3): c is a scan, and a loop of extent 4 inside of it, which it does not "
        "have, would take each step again, so a tensor would have to be recomputed; pass "
        "recompute=True to clone it for the consumers that cannot share"
    )
    assert state(f) == before
    f.inline_most()
    check(f)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_merged_loop_that_it_lacks(recompute: bool) -> None:
    f = repeated()
    f["z"].merge(1)
    before = state(f)
    with pytest.raises(ln.ScheduleError) as caught:
        f["c"].compute_at(f["z"], 2, recompute=recompute)
    assert str(caught.value) == (
        f"c.compute_at(z, 2{', recompute=True' if recompute else ''}): c is a scan, and a loop "
        "that it would share is merged with an axis of extent 4, which it does not have: it would "
        "take each step again; compute it outside of that loop, or give the repetition a loop of "
        "its own"
    )
    assert state(f) == before
    ln.propagate(f["z"])
    f.inline_most()  # as far as there is a nest
    assert f["c"].compute_at_pos == 1
    check(f)


def side_by_side(parallel: ln.ParallelType, inside: bool) -> ln.Fusion:
    """Return a scan in a loop of 8 rows by 4 elements that it lacks, inside of its steps or not."""
    with ln.Fusion("repeated") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        c = ln.cumsum(ln.broadcast(x, (False, False, True)), 1).named("c")
        z = f.output(c + ln.full((4,), 1.0), "z")
    z.split(0, 8)
    z.reorder({2: 1} if inside else {3: 2})
    z.merge(2 if inside else 1)
    c.compute_at(z, 3)
    z.axis(2 if inside else 1).parallelize(parallel)
    f.inline_most()
    return f


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("parallel", [PT.serial, PT.cpu_parallel, PT.block_x, PT.grid_x], ids=str)
def test_threads_take_the_same_steps(parallel: ln.ParallelType, inside: bool) -> None:
    """Each carries its own sum; a loop that one thread goes through inside has one for all."""
    f = side_by_side(parallel, inside)
    if inside and not parallel.is_thread:
        with pytest.raises(ln.LoweringError) as caught:
            ln.lower(f)
        assert str(caught.value) == (
            "c: the loop z.i2 inside of its scan would take each step again; compute it outside "
            "of that loop"
        )
        return
    check(f)


# Wrong nests


def test_another_scan_is_refuted() -> None:
    """A nest of one kind of scan against the math of the other."""
    for exclusive in (False, True):
        program, _ = program_of(ln.lower(rows(exclusive)), "verify")
        _, math = program_of(ln.lower(rows(not exclusive)), "verify")
        report = verify_program(program, math)
        assert report.status == "refuted"
        assert "y[" in str(report) or "output y" in str(report)


def test_a_carry_that_does_not_start_again_is_refuted() -> None:
    program, math = program_of(ln.lower(rows()), "verify")
    (loop,) = program.body
    allocate, start, inner = loop.body
    wrong = replace(program, body=(allocate, start, replace(loop, body=(inner,))))
    report = verify_program(wrong, math)
    assert report.status == "refuted"


def test_a_store_before_its_step_is_refuted() -> None:
    program, math = program_of(ln.lower(rows()), "verify")
    (loop,) = program.body
    allocate, start, inner = loop.body
    turned = replace(inner, body=inner.body[::-1])
    wrong = replace(program, body=(replace(loop, body=(allocate, start, turned)),))
    assert verify_program(wrong, math).status == "refuted"
