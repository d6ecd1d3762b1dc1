"""Rows of different lengths: `segments`, and offsets that ascend."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln


def rows_of(z: int | str = "Z", kind: ln.DType = ln.int32) -> ln.Fusion:
    with ln.Fusion("rows") as f:
        x, start = f.input("x", (z,), ln.float32), f.input("start", ("P",), kind)
        rows = ln.segments(start, z)
        f.output(ln.sum(ln.where(rows.mask, x, 0.0), axis=1), "y")
        f.output(rows.last - rows.first, "length")
        f.output(rows.mask, "mask")
    return f


@pytest.mark.parametrize("kind", ["int8", "uint16", "int32", "int64"])
@pytest.mark.parametrize("start", [[0, 2, 2, 5], [1, 1, 4], [3]])
def test_rows_of_offsets(kind: str, start: list[int]) -> None:
    f = rows_of(kind=getattr(ln, kind))
    x, offsets = np.arange(5, dtype=np.float32), np.array(start, kind)
    j = np.arange(5)
    mask = (j >= offsets[:-1, None]) & (j < offsets[1:, None])
    wanted = (mask * x).sum(1), np.diff(offsets), mask
    f.inline_most(replay=True)
    assert ln.verify(ln.lower(f)).all_sizes
    for given in (
        ln.evaluate(f, x, offsets),
        ln.compile(f, target="interpret")(x, offsets),
        ln.compile(f, target="c")(x, offsets),
    ):
        for found, expected in zip(given, wanted, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_offsets_are_declared_once() -> None:
    with ln.Fusion("rows") as f:
        start = f.input("start", ("P",), ln.int32)
        first = ln.segments(start, "Z")
        ln.segments(start, "Z")
        ln.segments(start, 4)
        f.output(first.mask, "y")
    assert [str(r) for r in f.ranges] == [
        "0 <= start < Z + 1, ascending",
        "0 <= start < 5, ascending",
    ]


def test_computed_offsets_are_a_mask_alone() -> None:
    with ln.Fusion("rows") as f:
        x, length = f.input("x", ("Z",), ln.float32), f.input("length", ("R",), ln.int32)
        rows = ln.segments(ln.cumsum(ln.pad(length, [(1, 0)]), 0), "Z")
        f.output(ln.sum(ln.where(rows.mask, x, 0.0), axis=1), "y")
    assert f.ranges == ()
    kernel = ln.lower(f)
    assert ".." not in str(kernel)
    x, length_ = np.arange(6, dtype=np.float32), np.array([2, 0, 3], np.int32)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(ln.compile(kernel, target=target)(x, length_), [1, 0, 9])


@pytest.mark.parametrize("strides", [None, ("S",)])
def test_offsets_that_descend(strides: tuple[str] | None) -> None:
    with ln.Fusion("rows") as f:
        x = f.input("x", ("Z",), ln.float32)
        start = f.input("start", ("P",), ln.int64, strides=strides)
        f.output(ln.sum(ln.where(ln.segments(start, "Z").mask, x, 0.0), axis=1), "y")
    given = np.arange(5, dtype=np.float32), np.array([0, 9, 3, 9, 2, 9], np.int64)[::2]
    said = (
        "start[2] is 2 behind 3, but it was declared that 0 <= start < Z + 1, ascending; pass "
        "elements that ascend"
    )
    for target in ("interpret", "c"):
        function = ln.compile(ln.lower(f), target=target)
        arrays = given if strides else (given[0], given[1].copy())
        with pytest.raises(ln.LaunchError) as caught:
            function(*arrays)
        assert str(caught.value) == f"rows(...): {said}"
        arrays[1][2] = 4
        function(*arrays)
        arrays[1][2] = 2
    with pytest.raises(ln.LaunchError) as caught:
        ln.evaluate(f, *given)
    assert str(caught.value) == f"evaluate(rows): {said}"


def test_a_text_tells_that_offsets_ascend() -> None:
    kernel = ln.lower(rows_of())
    again = ln.Kernel.parse(kernel.text(full=True))
    assert [r.ascending for r in again.program.ranges] == [True]
    assert "assume 0 <= start < Z + 1, ascending" in rows_of().print_math()


CASES: list[tuple[Callable[[ln.Fusion, ln.TensorView], object], str]] = [
    (lambda f, i: ln.segments(3, "Z"),  # type: ignore[arg-type]
     "segments(3): operand 1 is of type int; use a TensorView"),
    (lambda f, i: ln.segments(f["x"], "Z"),
     "segments(x, 'Z'): x is float32 with 1 axes; use integers along one axis"),
    (lambda f, i: ln.segments(i[None], "Z"),
     "segments(T2, 'Z'): T2 is int32 with 2 axes; use integers along one axis"),
    (lambda f, i: ln.segments(f.input("e", (0,), ln.int32), "Z"),
     "segments(e, 'Z'): e has no element; use one more than rows"),
    (lambda f, i: ln.segments(i, -1),
     "segments(i, -1): -1 is no extent; use an int >= 0 or the name of a size symbol (an "
     "identifier)"),
    (lambda f, i: f.assume_range(i, 0, 3, ascending=2),  # type: ignore[arg-type]
     "rows.assume_range(i, 0, 3): ascending=2 is no bool; give True or False"),
    (lambda f, i: f.assume_range(f.input("m", ("P", 2), ln.int32), 0, 3, ascending=True),
     "rows.assume_range(m, 0, 3): m has 2 axes; elements ascend along one axis"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "said"), CASES)
def test_bad_input(call: Callable[[ln.Fusion, ln.TensorView], object], said: str) -> None:
    with ln.Fusion("rows") as f:
        f.input("x", ("Z",), ln.float32)
        i = f.input("i", ("P",), ln.int32)
        with pytest.raises(ln.DefinitionError) as caught:
            call(f, i)
    assert str(caught.value) == said
    assert f.ranges == ()
