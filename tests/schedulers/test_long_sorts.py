"""Sorts of long rows on a GPU: passes of launches, in which each thread has a segment of a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from helpers.math_run import assert_equal
from loopnest.kir import Loop
from loopnest.schedulers import sort_loops


def sorted_rows(shape: tuple[int | str, ...], dtype: Any, op: str = "argsort") -> ln.Fusion:
    with ln.Fusion("sorted") as f:
        x = f.input("x", shape, dtype)
        if op == "topk":
            values, places = ln.topk(x, 20, -1)
            f.output(values, "values")
            f.output(places, "places")
        else:
            f.output(getattr(ln, op)(x), "y")
    ln.auto_schedule(f, "cuda")
    return f


def drawn(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return numbers with many equal ones, and some NaN."""
    found = np.random.default_rng(0).integers(-90, 90, shape).astype(dtype.numpy)
    if dtype.is_float:
        found[..., ::7] = np.nan
    return found


CASES = [
    (("N",), ln.uint8, "argsort", (500,)),
    (("N",), ln.float32, "sort", (200,)),
    (("N",), ln.int64, "argsort", (100,)),
    (("N",), ln.float32, "topk", (90,)),
    (("B", "N"), ln.int16, "argsort", (3, 70)),
    ((2, 2, 1300), ln.uint8, "argsort", (2, 2, 1300)),
]


@pytest.mark.parametrize(("shape", "dtype", "op", "extents"), CASES)
def test_segments_of_a_row_are_sorted_side_by_side(
    shape: tuple[int | str, ...], dtype: Any, op: str, extents: tuple[int, ...],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sort_loops, "SEGMENT", 8)
    f = sorted_rows(shape, dtype, op)
    kernel = ln.lower(f)
    assert "barrier grid" not in str(kernel)
    x = drawn(extents, dtype)
    wanted = ln.evaluate(f, x)
    targets = ["interpret", "c"]
    if dtype is ln.uint8 and shape == ("N",):  # others take more launches of the same text
        plug_in(monkeypatch, CpuGpu(tmp_path))
        targets.append("cuda")
    for target in targets:
        found = ln.compile(kernel, target=target)(x)
        pairs = [(found, wanted)] if op != "topk" else zip(found, wanted, strict=True)
        for one, other in pairs:
            assert_equal(one, other)


def test_they_are_proved_for_all_sizes() -> None:
    for dtype, op in ((ln.uint8, "argsort"), (ln.float32, "sort"), (ln.int64, "argsort")):
        report = ln.verify(ln.lower(sorted_rows(("N",), dtype, op)))
        assert (report.status, report.scope) == ("proved", "all sizes"), str(report)


def test_no_launch_goes_along_a_long_row_by_one_thread() -> None:
    kernel = ln.lower(sorted_rows(("N",), ln.uint8))
    loops = [node for node, _ in kernel.walk() if isinstance(node, Loop)]
    serial = [loop for loop in loops if not loop.parallel.is_thread]
    extents = {str(loop.var.extent) for loop in serial}
    # Those over N are bounded by data to the one place of an element.
    assert extents == {"256", "512", "N", "ceildiv(ceildiv(N, 512), 256)"}
    text = str(kernel)
    assert text.count(" of N:") == sum(str(loop.var.extent) == "N" for loop in serial) == 1


def test_short_rows_have_a_thread_each() -> None:
    kernel = ln.lower(sorted_rows(("B", 1000), ln.uint8))
    assert "ceildiv(1000" not in str(kernel)
    assert str(ln.verify(kernel)) == "proved for all sizes"
