"""Fusions with notes, and their notes without the places."""

from __future__ import annotations

import sys

import loopnest as ln

PT = ln.ParallelType


def scaled(*shape: int | str) -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    """Return the fusion y = x * 2, x and y."""
    with ln.Fusion("scaled") as f:
        x = f.input("x", shape, ln.float32)
        y = f.output(x * 2.0, "y")
    return f, x, y


def staged() -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    """Return x -> r (registers) -> t (shared, of two stages later) -> y, and r and t."""
    f, x, y = scaled("N")
    t = x.cache_after()
    t.memory = ln.SHARED
    r = x.cache_after()
    y.split(0, 128).split(0, 8)
    ln.propagate(y)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    ln.parallelize_like(y)
    t.compute_at(y, 2)
    return f, r, t


def notes(f: ln.Fusion) -> list[str]:
    """Return the notes of `f`, without their places, each of them in the test's file or here."""
    places = (sys._getframe(1).f_code.co_filename, __file__)
    found = ln.lower(f).notes
    result = []
    for note in found:
        assert note.origin is not None
        assert note.origin.file in places
        place = f" ({note.origin.file}:{note.origin.line})"
        assert str(note).endswith(place)
        result.append(str(note).removesuffix(place))
    return result
