"""rfactor of a scan: segments side by side, over threads, a block and the grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.schedule_run import PT, body, nest, state
from loopnest.proofs.verifier import program_of, verify_program
from mutation.mutants import mutants

AFFINE = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")


def rows(exclusive: bool = False, dtype: Any = ln.float32, pairs: bool = False) -> ln.Fusion:
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N", "D"), dtype)
        if pairs:
            y = ln.scan(AFFINE, (0.5, x), 1, exclusive=exclusive)[1]
        else:
            y = ln.cumsum(x, 1, exclusive=exclusive)
        f.output(y, "y")
    return f


def check(
    f: ln.Fusion, shapes: Any = ((3, 13), (2, 1), (2, 0), (1, 40)), named: bool = False
) -> None:
    """Compare results; the proof is for all sizes, or for `named` ones."""
    k = ln.lower(f)
    report = ln.verify(k)
    assert report.status == "proved"
    assert report.all_sizes or named
    for shape in shapes:
        x = np.random.default_rng(0).normal(size=shape).astype(f.inputs[0].dtype.numpy)
        wanted, bound = ln.evaluate(f, x, exact=True), ln.error_bound(f, x)
        for target in ("interpret", "c"):
            found = np.asarray(ln.compile(k, target=target)(x)).astype(np.float64)
            assert (abs(found - wanted) <= bound).all()


def parts(y: ln.TensorView, p: ln.TensorView) -> tuple[ln.TensorView, ln.TensorView]:
    """Return the totals of segments and their exclusive scan."""
    carried = y.producers[0]
    assert p in y.producers
    return carried.producers[0], carried


def test_nest() -> None:
    f = rows()
    y = f["y"]
    y.split(1, 4)
    p = y.rfactor(2)
    totals, carried = parts(y, p)
    for tensor in (p, totals, carried):
        tensor.compute_at(y, 1)
    assert nest(f) == body("""
        for i0 in N:
          T2: float32[ceildiv(D, 4), 4] local
          T3: float32[ceildiv(D, 4)] local
          T4: float32[ceildiv(D, 4)] local
          T4_acc: float32[1] local
          for i1 in ceildiv(D, 4):
            T2_acc: float32[1] local
            T2_acc[0] = 0.0
            for i2 in 4:
              if i1 * 4 + i2 < D:
                T2_acc[0] = T2_acc[0] + x[i0, i1 * 4 + i2]
                T2[i1, i2] = T2_acc[0]
          for i3 in ceildiv(D, 4):
            T3[i3] = where(i3 * 4 + 4 <= D, T2[i3, 3], 0.0)
          T4_acc[0] = 0.0
          for i4 in ceildiv(D, 4):
            T4[i4] = T4_acc[0]
            T4_acc[0] = T4_acc[0] + T3[i4]
          for i5 in ceildiv(D, 4):
            for i6 in 4:
              if i5 * 4 + i6 < D:
                y[i0, i5 * 4 + i6] = T4[i5] + T2[i5, i6]
    """)


def test_nest_of_totals_that_fold_again() -> None:
    """The array is read twice, and a segment's scan is a register."""
    f = rows()
    y = f["y"].split(1, 4)
    p = y.rfactor(2, refold=True)
    p.compute_at(y, 3)
    for tensor in parts(y, p):
        tensor.compute_at(y, 1)
    assert nest(f) == body("""
        for i0 in N:
          T3: float32[ceildiv(D, 4)] local
          T4: float32[ceildiv(D, 4)] local
          T4_acc: float32[1] local
          for i1 in ceildiv(D, 4):
            T3[i1] = 0.0
            if i1 * 4 + 4 <= D:
              for i2 in 4:
                T3[i1] = T3[i1] + where(i1 * 4 + 4 <= D, x[i0, i1 * 4 + i2], 0.0)
          T4_acc[0] = 0.0
          for i3 in ceildiv(D, 4):
            T4[i3] = T4_acc[0]
            T4_acc[0] = T4_acc[0] + T3[i3]
          for i4 in ceildiv(D, 4):
            T2_acc: float32[1] local
            T2_acc[0] = 0.0
            for i5 in 4:
              T2: float32[1] local
              if i4 * 4 + i5 < D:
                T2_acc[0] = T2_acc[0] + x[i0, i4 * 4 + i5]
                T2[0] = T2_acc[0]
                y[i0, i4 * 4 + i5] = T4[i4] + T2[0]
    """)


def test_totals_of_computed_elements_and_of_a_scan_from_its_end() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        wide = ln.pad(ln.exp(-(x * x)), ((0, 0), (1, 2)), value=0.5)
        y = f.output(ln.cumsum(wide, 1, reverse=True), "y")
    scan = next(t for t in f.tensors if t.definition is not None and t.definition.scan is not None)
    scan.split(1, 4)
    p = scan.rfactor(2, refold=True)
    p.compute_at(scan, 3)
    f.inline_most()
    check(f, named=True)
    assert y.is_output


def test_refold_of_a_reduction_is_refused() -> None:
    with ln.Fusion("k") as f:
        y = f.output(ln.sum(f.input("x", ("N", "D"), ln.float32), 1), "y")
    y.split(1, 4)
    before = state(f)
    with pytest.raises(ln.ScheduleError) as caught:
        y.rfactor(1, refold=True)
    assert str(caught.value) == (
        "y.rfactor(1, refold=True): refold is asked for, and y is no scan; a reduction has no "
        "totals of segments; leave refold out"
    )
    assert state(f) == before


def segments(f: ln.Fusion) -> None:
    f["y"].split(1, 4).rfactor(2)


def lanes(f: ln.Fusion) -> None:
    """Several segments side by side, each in a lane."""
    y = f["y"].split(1, 3).split(1, 8)  # [N, D / 24, 8, 3]
    y.rfactor(3).reorder({2: 3, 3: 2})


def two_axes(f: ln.Fusion) -> None:
    y = f["y"].split(1, 2).split(1, 4)
    y.rfactor([2, 3])


def again(f: ln.Fusion) -> None:
    """Segments of segments: of the scan of totals, and of the scan of segments."""
    y = f["y"].split(1, 8)
    p = y.rfactor(2)
    p.split(2, 2)
    p.rfactor(3)
    carried = y.producers[0]
    carried.split(1, 3)
    carried.rfactor(2)


def block(f: ln.Fusion) -> None:
    """A thread scans four elements, 16 threads the totals of 16 threads each, one theirs."""
    y = f["y"].split(1, 4)
    p = y.rfactor(2)
    totals, carried = parts(y, p)
    carried.split(1, 16)
    inner = carried.rfactor(2)
    several, last = parts(carried, inner)
    for tensor in (p, totals, inner, several, last, carried):
        tensor.compute_at(y, 1)
    carried.merge(1)
    y.parallelize({0: PT.grid_x})
    for tensor in (y, p, totals, inner, several, carried):
        tensor.parallelize({1: PT.block_x})
    for tensor in (totals, inner, several, last, carried):
        tensor.memory = ln.SHARED


def refolded(f: ln.Fusion) -> None:
    """Segments are scanned where they are stored; their totals are sums of vectors."""
    y = f["y"].split(1, 8).split(1, 3)  # [N, D / 24, 3, 8]
    p = y.rfactor(3, refold=True)
    totals, carried = parts(y, p)
    assert totals not in p.consumers
    if len(totals.siblings) == 1:
        totals.split(2, 4)
        vectors = totals.rfactor(2)
        vectors.compute_at(totals, 2)
        vectors.axis(-1).parallelize(PT.vectorize)
    y.reorder({2: 3, 3: 2})
    p.compute_at(y, 4)
    for tensor in (totals, carried):
        tensor.memory = ln.GLOBAL
    y.parallelize({1: PT.cpu_parallel})
    totals.parallelize({1: PT.cpu_parallel})


def refolded_again(f: ln.Fusion) -> None:
    """Segments of segments, of which both fold again."""
    y = f["y"].split(1, 6)
    p = y.rfactor(2, refold=True)
    p.split(2, 2)
    p.rfactor(3, refold=True)
    carried = y.producers[0]
    carried.split(1, 3)
    carried.rfactor(2, refold=True)


SCHEDULES: dict[str, Callable[[ln.Fusion], None]] = {
    "segments": segments, "lanes": lanes, "two axes": two_axes, "again": again, "block": block,
    "refolded": refolded, "refolded again": refolded_again,
}  # fmt: skip
NAMED = ("again", "refolded again")
"""Schedules that are proved at sizes."""


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("exclusive", [False, True], ids=["", "exclusive"])
def test_schedules(name: str, exclusive: bool) -> None:
    f = rows(exclusive)
    SCHEDULES[name](f)
    check(f, named=name in NAMED)


@pytest.mark.parametrize("name", ["segments", "again", "refolded", "refolded again"])
def test_pairs_that_do_not_commute(name: str) -> None:
    f = rows(pairs=True)
    SCHEDULES[name](f)
    check(f, named=name in NAMED)


@pytest.mark.parametrize("refold", [False, True])
def test_sixteen_bits_are_rounded_once(refold: bool) -> None:
    f = rows(dtype=ln.float16)
    p = f["y"].split(1, 4).rfactor(2, refold)
    assert {t.dtype for t in (p, *parts(f["y"], p))} == {ln.float32}
    check(f)


def long() -> ln.Fusion:
    """One array over the grid: each block scans its part, and adds what lies before it."""
    with ln.Fusion("long") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(ln.cumsum(x, 0), "y")
    y.split(0, 4).split(0, 8)  # [N / 32, 8, 4]
    p = y.rfactor(2)
    totals, carried = parts(y, p)
    carried.split(0, 8)
    inner = carried.rfactor(1)
    several, last = parts(carried, inner)
    totals.split(0, 8)
    for tensor in (y, p, totals, carried):
        tensor.parallelize({0: PT.grid_x, 1: PT.block_x})
    for tensor in (inner, several):
        tensor.parallelize({0: PT.grid_x})
    totals.memory = inner.memory = ln.SHARED
    several.memory = last.memory = ln.GLOBAL
    return f


def test_over_the_grid() -> None:
    f = long()
    assert ln.lower(f).program.is_cooperative
    check(f, ((0,), (1,), (31,), (32,), (100,)))


def test_cuda_text() -> None:
    for f in (long(), rows()):
        if f.name == "rows":
            block(f)
        assert ".target sm_80" in ln.lower(f).ptx("sm_80")


@pytest.mark.parametrize(
    ("split", "axes", "message"),
    [
        (
            None, 1,
            "y.rfactor(1): all axes that y goes along are named, so that nothing is left to scan; "
            "leave the outer one of [i0, i1]; split first",
        ),
        (
            4, 1,
            "y.rfactor(1): the named axes are not the innermost of those that y goes along; split "
            "its axis by an int, and name the inner ones of [i0, i1, i2]",
        ),
        (
            4, 0,
            "y.rfactor(0): axis 0 is none that y goes along; y has the leaf axes [i0, i1, i2]; "
            "name what its scan axis was split to",
        ),
        (4, [], "y.rfactor([]): no axis is named; the leaf axes are [i0, i1, i2]"),
    ],
)  # fmt: skip
def test_refused(split: int | None, axes: Any, message: str) -> None:
    f = rows()
    if split is not None:
        f["y"].split(1, split)
    before = state(f)
    with pytest.raises(ln.ScheduleError) as caught:
        f["y"].rfactor(axes)
    assert str(caught.value) == message
    assert state(f) == before


def test_a_loop_over_two_segments_is_refused() -> None:
    f = rows()
    p = f["y"].split(1, 4).rfactor(2)
    p.merge(1)
    with pytest.raises(ln.LoweringError, match="do not go through the axis of its scan in order"):
        ln.lower(f)


def test_segments_are_none_of_another_length() -> None:
    """A nest for segments of 4 against the math of segments of 2, and of none."""
    found = {}
    for length in (2, 4):
        f = rows()
        f["y"].split(1, length).rfactor(2)
        found[length] = program_of(ln.lower(f), "verify")
    report = verify_program(found[4][0], found[2][1])
    assert report.status == "refuted"


def test_mutants() -> None:
    """A carry that is lost or started again, an element too few, a barrier gone: refuted."""
    f = rows()
    block(f)
    program, math = program_of(ln.lower(f), "verify")
    kinds = frozenset({"init", "store", "clobber", "identity", "barrier", "index"})
    wrong = [m for m in mutants(program, kinds) if not m.text.startswith("raise barrier")]
    passed = [m.text for m in wrong if verify_program(m.program, math).status == "proved"]
    assert len(wrong) > 60
    assert passed == []


def test_an_inclusive_scan_is_no_exclusive_one() -> None:
    made = []
    for exclusive in (False, True):
        f = rows(exclusive)
        block(f)
        made.append(program_of(ln.lower(f), "verify"))
    assert verify_program(made[0][0], made[1][1]).status != "proved"


def test_mutants_of_totals_that_fold_again() -> None:
    f = rows()
    refolded(f)
    program, math = program_of(ln.lower(f), "verify")
    kinds = frozenset({"init", "store", "clobber", "identity", "index"})
    wrong = [*mutants(program, kinds)]
    passed = [m.text for m in wrong if verify_program(m.program, math).status == "proved"]
    assert len(wrong) > 30
    assert passed == []
