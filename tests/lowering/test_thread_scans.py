"""Scans over the threads of a block: statements, proofs and values, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.schedule_run import PT, body, nest
from loopnest.kir import parse as parse_nest
from loopnest.kir.nest_text import print_nest

Schedule = Callable[[ln.TensorView], object]

AFFINE = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")
"""Composition of linear functions: it does not commute."""


def fusion(
    op: Callable[..., ln.TensorView] = ln.cumsum, dtype: Any = ln.float32, **how: Any
) -> ln.Fusion:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), dtype)
        f.output(op(x, **{"axis": 1, **how}), "y")
    return f


def linear(**how: Any) -> ln.Fusion:
    """Return y[d] = F[d] y[d - 1] + v[d], a scan of pairs."""
    with ln.Fusion("k") as f:
        factor, value = [f.input(name, ("N", "D"), ln.float32) for name in "Fv"]
        f.output(ln.scan(AFFINE, (factor, value), **{"axis": 1, **how})[1], "y")
    return f


def lanes(count: int) -> Schedule:
    """Return the schedule in which a block scans `count` neighbours at once, and carries on."""

    def schedule(y: ln.TensorView) -> None:
        y.split(1, count)
        y.parallelize({0: PT.grid_x, 2: PT.block_x})

    return schedule


def rows_of(count: int) -> Schedule:
    """Return the schedule in which a block has four rows, `count` threads each."""

    def schedule(y: ln.TensorView) -> None:
        y.split(0, 4)
        y.split(2, count)
        y.parallelize({0: PT.grid_x, 1: PT.block_y, 3: PT.block_x})

    return schedule


def two_dimensions(y: ln.TensorView) -> None:
    y.split(1, 32)
    y.split(1, 3)
    y.parallelize({0: PT.grid_x, 2: PT.block_y, 3: PT.block_x})


def at_once(y: ln.TensorView) -> None:
    y.parallelize({0: PT.grid_x, 1: PT.block_x})


def columns(y: ln.TensorView) -> None:
    """Scan along block_y, a column a thread of block_x."""
    y.split(0, 6)
    y.split(2, 8)
    y.parallelize({1: PT.block_y, 2: PT.grid_x, 3: PT.block_x})


def check(f: ln.Fusion, sizes: tuple[tuple[int, int], ...] = ((5, 133), (3, 1), (3, 0))) -> None:
    """Prove it for all sizes; compare the interpreter and C with the oracle."""
    k = ln.lower(f)
    assert ln.verify(k).all_sizes, ln.verify(k)
    for size in sizes:
        draw = np.random.default_rng(0)
        arrays = [
            (draw.uniform(-1, 1, size) * (1 if t.dtype.is_float else 99)).astype(t.dtype.numpy)
            for t in f.inputs
        ]
        wanted, bound = ln.evaluate(f, *arrays, exact=True), ln.error_bound(f, *arrays)
        for target in ("interpret", "c"):
            found = ln.compile(k, target=target)(*arrays)
            assert (abs(found.astype(np.float64) - wanted) <= bound).all(), (size, target)


def test_a_warp_scans_by_shuffles_alone() -> None:
    f = fusion()
    rows_of(8)(f["y"])
    assert nest(f) == body("""
        for i0 in ceildiv(N, 4):  # grid_x
          for i1 in 4:  # block_y
            y_acc: float32[1] local
            y_acc[0] = 0.0
            for i2 in ceildiv(D, 8):
              for i3 in 8:  # block_x
                y_part: float32[1] local
                y_part[0] = 0.0
                if i0 * 4 + i1 < N and i2 * 8 + i3 < D:
                  y_part[0] = y_part[0] + x[i0 * 4 + i1, i2 * 8 + i3]
                v6; v12 = inclusive sum(y_part[0]) over block_x:
                  let v0 = y_part[0]
                  let v1 = shuffle_up(v0, 1)
                  let v2 = where(0 < block_x, v1 + v0, v0)
                  let v3 = shuffle_up(v2, 2)
                  let v4 = where(1 < block_x, v3 + v2, v2)
                  let v5 = shuffle_up(v4, 4)
                  let v6 = where(3 < block_x, v5 + v4, v4)
                  let v7 = shuffle_down(v6, 1)
                  let v8 = where(block_x + 1 < 8, v7, v6)
                  let v9 = shuffle_down(v8, 2)
                  let v10 = where(block_x + 2 < 8, v9, v8)
                  let v11 = shuffle_down(v10, 4)
                  let v12 = where(block_x + 4 < 8, v11, v10)
                y_all: float32[1] local
                if i0 * 4 + i1 < N and i2 * 8 + i3 < D:
                  y_all[0] = y_acc[0]
                  y_all[0] = y_all[0] + v6
                  y[i0 * 4 + i1, i2 * 8 + i3] = y_all[0]
                  y_acc[0] = y_acc[0] + v12
    """)


def test_a_block_exchanges_the_totals_of_its_warps() -> None:
    f = fusion(exclusive=True)
    f["y"].split(1, 96)
    f["y"].parallelize({0: PT.grid_y, 1: PT.grid_x, 2: PT.block_x})
    with pytest.raises(ln.LoweringError, match="is grid_x, but each step of a scan needs the one"):
        ln.lower(f)
    f = fusion(exclusive=True, axis=0)
    lanes_of_columns = f["y"]
    lanes_of_columns.parallelize({0: PT.block_x, 1: PT.grid_x})
    text = nest(f)
    assert text.count("barrier block") == 1
    assert "y_acc" not in text  # nothing is carried
    assert "v15 = exclusive sum(y_part[0]) over block_x:" in text
    check(f, ((133, 2), (1, 3), (0, 3)))


def test_blocks_along_the_items_of_a_thread_are_refused() -> None:
    f = fusion(axis=0)
    y = f["y"]
    y.split(0, 40)
    y.split(0, 4)
    y.parallelize({0: PT.block_x, 2: PT.grid_x})
    with pytest.raises(ln.LoweringError) as error:
        ln.lower(f)
    assert str(error.value) == (
        "y: its loop over i2: 40 is grid_x, but each step of a scan needs the one before; "
        "bind another axis, or threads of a block to the inner part of this one"
    )


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_a_part_of_one_point_is_no_item_of_a_thread(inner: bool, exclusive: bool) -> None:
    f = fusion(exclusive=exclusive)
    y = f["y"]
    y.split(1, 4)
    y.parallelize({1: PT.block_x})
    y.split(2, 1, inner=inner)
    check(f, ((3, 17), (1, 4), (2, 0)))


def test_the_text_is_read_back() -> None:
    f = fusion()
    lanes(64)(f["y"])
    text = str(ln.lower(f))
    assert "inclusive sum(y_part[0]) over block_x:" in text
    assert print_nest(parse_nest(text)) == text


@pytest.mark.parametrize("count", [2, 7, 8, 31, 32, 33, 64, 96, 101, 256])
def test_numbers_of_threads(count: int) -> None:
    f = fusion()
    lanes(count)(f["y"])
    check(f)


@pytest.mark.parametrize(
    "schedule", [rows_of(8), rows_of(24), rows_of(32), rows_of(64), two_dimensions, at_once]
)
@pytest.mark.parametrize("exclusive", [False, True])
def test_blocks(schedule: Schedule, exclusive: bool) -> None:
    for f in (fusion(exclusive=exclusive), linear(exclusive=exclusive)):
        schedule(f["y"])
        check(f, ((5, 133), (3, 0)))


def test_along_another_dimension_than_x() -> None:
    for f in (fusion(axis=0), linear(axis=0)):
        columns(f["y"])
        check(f, ((21, 11), (1, 3), (0, 3)))


@pytest.mark.parametrize(
    "f",
    [
        fusion(reverse=True),
        fusion(exclusive=True, reverse=True),
        fusion(ln.cumprod, ln.float16),
        fusion(ln.cummax),
        fusion(ln.cummax, ln.int32),
        fusion(dtype=ln.int8),
        fusion(dtype=ln.bfloat16),
        linear(),
    ],
    ids=lambda f: f.print_math() or "",
)
def test_reducers_and_types(f: ln.Fusion) -> None:
    lanes(64)(f["y"])
    check(f)


def test_all_components_of_a_reducer() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        factor, value = ln.scan(AFFINE, (x, 0.5), axis=1)
        f.output(factor, "factor")
        f.output(value, "value")
    lanes(48)(f["value"])
    k = ln.lower(f)
    assert ln.verify(k).all_sizes
    a = np.random.default_rng(0).uniform(0.5, 1, (3, 100)).astype(np.float32)
    wanted, bounds = ln.evaluate(f, a, exact=True), ln.error_bound(f, a)
    for target in ("interpret", "c"):
        for found, exact, bound in zip(
            ln.compile(k, target=target)(a), wanted, bounds, strict=True
        ):
            assert (abs(found - exact) <= bound).all()


def test_consumers_and_producers_share_the_loops() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        c = ln.cumsum(ln.tanh(x), axis=1)
        f.output(c * 2.0 + x, "y")
    lanes(64)(f["y"])
    ln.propagate(f["y"])
    f.inline_most()
    assert c.compute_at_pos == 3
    check(f)


def test_threads_scan_neighbours_first() -> None:
    """rfactor takes what a thread scans by itself out; the totals are scanned by all threads."""
    for f in (fusion(), linear()):
        y = f["y"].split(1, 4)
        inside = y.rfactor(2)
        inside = inside[0] if isinstance(inside, tuple) else inside
        before = y.producers[0]
        totals = before.producers[0]
        for tensor in (inside, totals, before):
            tensor.compute_at(y, 1)
        y.parallelize({0: PT.grid_x})
        for tensor in (y, inside, totals, before):
            tensor.axis(1).parallelize(PT.block_x)
        text = nest(f)
        assert "exclusive" in text
        assert text.count("barrier") == 1
        check(f)


def test_only_the_first_block_carries_a_scan_of_totals() -> None:
    """Where one block stores a GLOBAL tensor, the others have neither elements nor a carry."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        c = ln.cumsum(ln.sum(x, axis=1), axis=0)
        f.output(x + ln.broadcast(c, (False, True)), "y")
    y, total = f["y"], c.producers[0]
    total.memory = c.memory = ln.GLOBAL
    y.parallelize({0: PT.grid_x})
    total.parallelize({0: PT.grid_x})
    c.split(0, 32)
    c.parallelize({1: PT.block_x})
    check(f, ((70, 3), (1, 2)))


def test_a_step_in_cuda() -> None:
    f = fusion()
    lanes(64)(f["y"])
    text = ln.lower(f).cuda()
    assert "__shfl_up_sync(0xffffffffu, v0, 1)" in text
    assert "__shared__ __align__(16) float y_warps[4];" in text


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            lambda y: (
                y.split(1, 4),
                y.split(1, 3),
                y.parallelize({1: PT.block_y, 3: PT.block_x}),
            ),
            "y: its loop over i3: 4 is block_x, but it lies inside of i2: 3, along which each "
            "thread goes through items; bind neighbouring parts of the axis to threads, and leave "
            "inner ones serial",
        ),
        (
            lambda y: (y.split(1, 4), y.parallelize({1: PT.block_x, 2: PT.block_y})),
            "y: its loop over i1: ceildiv(D, 4) is block_x, and i2: 4 inside of it is block_y: "
            "neighbouring threads have no neighbouring elements; bind the inner part to block_x, "
            "outer ones to block_y and block_z",
        ),
        (
            lambda y: (y.split(1, 4), y.parallelize({1: PT.grid_x, 2: PT.block_x})),
            "y: its loop over i1: ceildiv(D, 4) is grid_x, but each step of a scan needs the one "
            "before; bind another axis, or threads of a block to the inner part of this one",
        ),
        (
            lambda y: (y.split(1, 4), y.reorder({1: 2, 2: 1}), y.parallelize({2: PT.block_x})),
            "y: its loops [i1: 4, i2: ceildiv(D, 4)] do not go through the axis of its scan in "
            "order; reorder them: outer parts in front of inner ones; do not merge the axis with "
            "others",
        ),
    ],
)
def test_refused(schedule: Schedule, message: str) -> None:
    f = fusion()
    schedule(f["y"])
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value) == message
