"""Scans over the threads of a block, each of which has several items: nests, proofs, values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln
from helpers.ordered_reducers import FARTHER
from helpers.schedule_run import PT, body, nest

Schedule = Callable[[ln.TensorView], object]

AFFINE = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")
"""Composition of linear functions: it does not commute."""


def fusion(build: Callable[[ln.TensorView], ln.TensorView]) -> ln.Fusion:
    with ln.Fusion("k") as f:
        f.output(build(f.input("x", ("N", "D"), ln.float32)), "y")
    return f


def at_once(y: ln.TensorView) -> None:
    """A block has a row: four neighbours a thread."""
    y.split(1, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})


def in_turns(y: ln.TensorView) -> None:
    """A block goes through a row, 32 threads with four neighbours each at a time."""
    y.split(1, 4)
    y.split(1, 32)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})


def odd(y: ln.TensorView) -> None:
    """The last warp is not whole; items lie in two loops."""
    y.split(1, 2)
    y.split(1, 3)
    y.split(1, 40)
    y.parallelize({0: PT.grid_x, 2: PT.block_x, 4: PT.unroll})


def rows(y: ln.TensorView) -> None:
    """A block has four rows, eight threads each."""
    y.split(1, 3)
    y.split(1, 8)
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_y, 3: PT.block_x})


def two_dimensions(y: ln.TensorView) -> None:
    y.split(1, 2)
    y.split(1, 4)
    y.split(1, 3)
    y.parallelize({0: PT.grid_x, 2: PT.block_y, 3: PT.block_x})


def chunks(y: ln.TensorView) -> None:
    """Each thread has a part of the row whose length is a symbol."""
    y.split(1, 48, inner=False)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})


SIZES = ((5, 133), (3, 1), (3, 0))


def check(f: ln.Fusion, *, whole: bool = True, sizes: tuple[tuple[int, ...], ...] = SIZES) -> None:
    """Prove it for all sizes; compare targets with the oracle."""
    k = ln.lower(f)
    report = ln.verify(k)
    assert report.ok, report
    assert report.all_sizes is whole, report
    for target, options in (("interpret", {}), ("interpret", {"thread_order": 1}), ("c", {})):
        run = ln.compile(k, target=target, **options)
        for size in sizes:
            draw = np.random.default_rng(0)
            arrays = [draw.uniform(-1, 1, size).astype(t.dtype.numpy) for t in f.inputs]
            found = run(*arrays)
            wanted, bounds = ln.evaluate(f, *arrays, exact=True), ln.error_bound(f, *arrays)
            if len(f.outputs) == 1:
                found, wanted, bounds = (found,), (wanted,), (bounds,)
            for mine, exact, most in zip(found, wanted, bounds, strict=True):
                with np.errstate(invalid="ignore"):
                    near = (abs(mine.astype(np.float64) - exact) <= most) | (mine == exact)
                assert near.all(), (target, size, str(k))


def test_the_nest() -> None:
    f = fusion(lambda x: ln.cumsum(x, axis=1))
    f["y"].split(1, 4)
    f["y"].split(1, 2)
    f["y"].parallelize({0: PT.grid_x, 2: PT.block_x})
    assert nest(f) == body("""
        for i0 in N:  # grid_x
          y_acc: float32[1] local
          y_acc[0] = 0.0
          for i1 in ceildiv(ceildiv(D, 4), 2):
            for i2 in 2:  # block_x
              y_part: float32[1] local
              y_before: float32[1] local
              y_all: float32[1] local
              y_part[0] = 0.0
              for i3 in 4:
                if i1 * 8 + i2 * 4 + i3 < D:
                  y_part[0] = y_part[0] + x[i0, i1 * 8 + i2 * 4 + i3]
              v5; v3 = exclusive sum(y_part[0]) over block_x:
                let v0 = y_part[0]
                let v1 = shuffle_up(v0, 1)
                let v2 = where(0 < block_x, v1 + v0, v0)
                let v3 = shuffle_lane(v2, 1)
                let v4 = shuffle_up(v2, 1)
                let v5 = where(0 < block_x, v4, 0.0)
              if i1 * 8 + i2 * 4 < D:
                y_before[0] = y_acc[0]
                y_before[0] = y_before[0] + v5
                y_acc[0] = y_acc[0] + v3
                y_all[0] = y_before[0]
              for i4 in 4:
                if i1 * 8 + i2 * 4 + i4 < D:
                  y_all[0] = y_all[0] + x[i0, i1 * 8 + i2 * 4 + i4]
                  y[i0, i1 * 8 + i2 * 4 + i4] = y_all[0]
    """)


SCHEDULES = (at_once, in_turns, odd, rows, two_dimensions)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "how", [{}, {"exclusive": True}, {"reverse": True}, {"exclusive": True, "reverse": True}]
)
def test_sums(schedule: Schedule, how: dict[str, bool]) -> None:
    f = fusion(lambda x: ln.cumsum(x, axis=1, **how))
    schedule(f["y"])
    check(f)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("reducer", [AFFINE, FARTHER], ids=lambda r: r.name)
@pytest.mark.parametrize("exclusive", [False, True])
def test_pairs_in_order(schedule: Schedule, reducer: ln.Reducer, exclusive: bool) -> None:
    f = fusion(lambda x: ln.scan(reducer, (x, 0.5), axis=1, exclusive=exclusive)[1])
    schedule(f["y"])
    check(f)


@pytest.mark.parametrize("dtype", [ln.float16, ln.int8])
def test_types(dtype: ln.DType) -> None:
    with ln.Fusion("k") as f:
        f.output(ln.cumsum(f.input("x", ("N", "D"), dtype), axis=1), "y")
    in_turns(f["y"])
    check(f)


def test_items_of_a_symbolic_number() -> None:
    """Where a thread begins is a product of its number and a size; no buffer holds its items."""
    f = fusion(lambda x: ln.cumsum(x, axis=1))
    chunks(f["y"])
    check(f, whole=False)
    assert "y_part" in ln.lower(f).cuda()


@pytest.mark.parametrize("order", [(3, 0, 1, 2), (0, 3, 1, 2), (0, 1, 3, 2), (0, 1, 2, 3)])
def test_columns_at_each_place(order: tuple[int, ...]) -> None:
    """Four columns a thread, outside of all loops of the scan, between them, or inside."""
    f = fusion(lambda x: ln.cumsum(x, axis=0))
    y = f["y"]
    y.split(1, 4)
    y.split(0, 3)
    y.split(0, 16)  # [S, T, I, j, 4]
    y.reorder([*order, 4])
    places = {axis: place for place, axis in enumerate([*order, 4])}
    y.parallelize({places[1]: PT.block_x, places[3]: PT.grid_x})
    check(f, sizes=((133, 5), (1, 3), (0, 3)))


def shared(y: ln.TensorView) -> None:
    in_turns(y)
    ln.propagate(y)
    y.fusion.inline_most()


@pytest.mark.parametrize(
    "build",
    [
        lambda x: ln.cumsum(ln.tanh(x), axis=1) * 2.0 + x,
        lambda x: ln.cumsum(t := ln.tanh(x), axis=1) * t,
        lambda x: ln.cumsum(c := ln.cumsum(x, axis=1), axis=1) + c,
        lambda x: ln.cumsum(ln.cumsum(x, axis=1) * ln.cummax(x, axis=1), axis=1, exclusive=True),
    ],
)
def test_what_shares_the_loop_over_items(build: Callable[[ln.TensorView], ln.TensorView]) -> None:
    """Producers, consumers, what is both, other scans."""
    f = fusion(build)
    shared(f["y"])
    check(f)


def test_only_what_the_scan_needs_is_computed_twice() -> None:
    f = fusion(lambda x: ln.cumsum(ln.tanh(x), axis=1) * ln.exp(x))
    shared(f["y"])
    text = nest(f)
    assert (text.count("tanh("), text.count("exp(")) == (2, 1)


def test_an_output_that_is_scanned_too() -> None:
    with ln.Fusion("k") as f:
        t = ln.tanh(f.input("x", ("N", "D"), ln.float32))
        f.output(t, "t")
        f.output(ln.cumsum(t, axis=1), "y")
    shared(f["y"])
    check(f)


@pytest.mark.parametrize("memory", [ln.LOCAL, ln.SHARED])
@pytest.mark.parametrize("place", [2, 3, 4])
def test_what_is_read_lies_outside_or_inside(memory: ln.Memory, place: int) -> None:
    f = fusion(lambda x: ln.cumsum(x, axis=1))
    y = f["y"]
    in_turns(y)
    row = f["x"].cache_after()
    row.memory = memory
    row.compute_at(y, place)
    row.parallelize({2: PT.block_x})
    check(f)


def test_a_reduction_in_the_loop_over_items() -> None:
    with ln.Fusion("k") as f:
        total = ln.sum(f.input("x", ("N", "D", "K"), ln.float32), axis=2)
        f.output(ln.cumsum(total, axis=1), "y")
    in_turns(f["y"])
    total.compute_at(f["y"], 4)
    check(f, sizes=((3, 70, 5), (1, 3, 0)))


def test_vectors_of_registers() -> None:
    """What kernels do: four elements by one load, and by one store."""
    f = fusion(lambda x: ln.cumsum(x, axis=1))
    y = f["y"]
    row, sums = f["x"].cache_after(), y.cache_before()
    in_turns(y)
    sums.compute_at(y, 3)
    row.compute_at(sums, 3)
    for tensor in (y, row):
        tensor.axis(-1).parallelize(PT.vectorize)
    check(f, sizes=((5, 132), (5, 133), (3, 1)))


def test_segments() -> None:
    """A scan that starts anew, each segment by the threads of a block."""
    f = fusion(lambda x: ln.cumsum(x, axis=1))
    y = f["y"].split(1, 60)
    inside = y.rfactor(2)
    inside.split(2, 4)
    inside.memory = ln.SHARED
    inside.parallelize({2: PT.block_x})
    for tensor in f.tensors[1:]:
        tensor.parallelize({0: PT.grid_x})
    text = nest(f)
    assert "for i2 in 15:  # block_x" in text or "in 15:  # block_x" in text
    check(f)


def test_what_cannot_be_done_twice_is_refused() -> None:
    f = fusion(lambda x: ln.cumsum(x, axis=1))
    in_turns(f["y"])
    row = f["x"].cache_after()
    row.compute_at(f["y"], 4)
    row.circular_buffer(2)
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value) == (
        "T2: threads of the scan y go through the loop y.i3 over their items twice, and its "
        "circular buffer runs ahead once; compute it outside of that loop"
    )
