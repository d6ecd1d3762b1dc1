"""Notes on what tiles with halo compute more than once, held against a run that counts stores."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln
from loopnest.second_checker.thread_machine import run

PT = ln.ParallelType


def blur() -> tuple[ln.Fusion, ln.TensorView]:
    with ln.Fusion("blur") as f:
        x = f.input("x", (14, 21), ln.float32)
        rows = ((x[:, :-2] + x[:, 1:-1] + x[:, 2:]) * 0.5).named("rows")
        y = f.output(rows[:-2] + rows[1:-1] + rows[2:], "y")
    y.split(1, 8).split(0, 5).reorder({1: 2})
    rows.compute_at(y, 2)
    return f, rows


def both_ways() -> tuple[ln.Fusion, ln.TensorView]:
    """Windows of a stride and a dilation along one axis, backwards along the other."""
    with ln.Fusion("both") as f:
        x = f.input("x", (17, 19), ln.float32)
        rows = ln.flip(x * 2.0, 1).named("rows")
        windows = ln.unfold(rows, 0, 3, stride=2, dilation=3)
        y = f.output(ln.sum(windows, axis=2), "y")
    y.split(1, 5).split(0, 2).reorder({1: 2})
    rows.compute_at(y, 2)
    return f, rows


def beyond_the_border() -> tuple[ln.Fusion, ln.TensorView]:
    with ln.Fusion("border") as f:
        x = f.input("x", (23,), ln.float32)
        rows = (x * 2.0).named("rows")
        wide = ln.pad(rows, ((2, 2),))
        y = f.output(ln.sum(ln.unfold(wide, 0, 5), axis=1), "y")
    y.split(0, 4)
    rows.compute_at(y, 1)
    return f, rows


def for_each_channel() -> tuple[ln.Fusion, ln.TensorView]:
    """Tiles that are the same for all channels of the result."""
    with ln.Fusion("channels") as f:
        x = f.input("x", (1, 3, 9, 8), ln.float32)
        w = f.input("w", (4, 3, 3, 3), ln.float32)
        rows = (x * 2.0).named("rows")
        y = f.output(ln.conv(rows, w), "y")
    y.split(2, 3)
    rows.compute_at(y, 3)
    return f, rows


@pytest.mark.parametrize("make", [blur, both_ways, beyond_the_border, for_each_channel])
def test_numbers_are_those_of_a_run(make: Callable[[], tuple[ln.Fusion, ln.TensorView]]) -> None:
    f, rows = make()
    kernel = ln.lower(f)
    (note,) = [n for n in kernel.notes if n.subject == "rows" and "halo" in n.why]
    arrays = {t.name: np.ones([int(n) for n in t.shape], np.float32) for t in f.inputs}
    ran = run(kernel.program, {}, arrays, {}, trace=True)
    assert ran.broken == {}
    computed = sum(name == "rows" for made in ran.trace.values() for name, *_ in made)
    size = int(np.prod([int(n) for n in rows.shape]))
    done = "computed|loaded"
    pattern = rf"(\d+) elements are (?:{done}) for (\d+) that are needed, (\d+\.\d\d) times as many"
    found = re.fullmatch(pattern, note.became)
    assert found is not None, note.became
    assert int(found[1]) == computed > int(found[2])
    assert int(found[2]) <= size
    assert float(found[3]) == pytest.approx(computed / int(found[2]), abs=0.005)
    assert note.asked.startswith("rows.compute_at(y, ")


def test_sizes_that_are_no_numbers() -> None:
    with ln.Fusion("blur") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        rows = ((x[:, :-2] + x[:, 1:-1] + x[:, 2:]) * 0.5).named("rows")
        y = f.output(rows[:-2] + rows[1:-1] + rows[2:], "y")
    y.split(1, 8).split(0, 5).reorder({1: 2})
    rows.compute_at(y, 2)
    f.inline_most()
    (note,) = [n for n in ln.lower(f).notes if "halo" in n.why]
    place = f" ({note.origin.file}:{note.origin.line})" if note.origin else ""
    assert str(note).removesuffix(place) == (
        "rows: rows.compute_at(y, 2): its tiles have 7 elements and begin 5 apart, 1.40 times "
        "as many as are needed, because neighbouring tiles need the same elements at their "
        "edges (halo), and each computes them again; split what reads rows into larger tiles, "
        "or compute it at a smaller position (compute_at): at 0 nothing is repeated"
    )


def test_elements_of_a_copy_are_loaded_more_than_once() -> None:
    with ln.Fusion("blur") as f:
        x = f.input("x", (18,), ln.float32)
        y = f.output(x[:-2] + x[1:-1] + x[2:], "y")
    held = x.cache_after()
    y.split(0, 4)
    held.compute_at(y, 1)
    (note,) = [n for n in ln.lower(f).notes if "halo" in n.why]
    assert note.became == "24 elements are loaded for 18 that are needed, 1.33 times as many"
    assert note.why.endswith("and each loads them again")


def test_tiles_without_halo_have_no_note() -> None:
    with ln.Fusion("pairs") as f:
        x = f.input("x", ("N",), ln.float32)
        rows = (x * 2.0).named("rows")
        y = f.output(ln.sum(ln.unfold(rows, 0, 2, stride=2), axis=1), "y")
    y.split(0, 8)
    rows.compute_at(y, 1)
    f.inline_most()
    assert [n for n in ln.lower(f).notes if "halo" in n.why] == []
