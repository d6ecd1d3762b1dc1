"""Slices, borders, windows and joins against NumPy: math, oracle, kernels and proofs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

import loopnest as ln
from helpers.math_run import TYPES, assert_equal, define, of_type, run
from loopnest.scalar.expr import Coordinate

X = np.arange(35, dtype=np.float32).reshape(5, 7)
NAMES = ("N", "M")

Case = tuple[Callable[[Any], Any], Any]


def zeros_between(x: np.ndarray, count: int) -> np.ndarray:
    result = np.zeros((x.shape[0], (x.shape[1] - 1) * (count + 1) + 1), x.dtype)
    result[:, :: count + 1] = x
    return result


CASES: dict[str, Case] = {
    "part": (lambda t: t[1:-1, ::-2], X[1:-1, ::-2]),
    "new axes": (lambda t: t[None, 1:-1, ..., None], X[None, 1:-1, ..., None]),
    "element": (lambda t: t[0, -1], X[0, -1]),
    "row": (lambda t: t[-2], X[-2]),
    "backwards": (lambda t: t[4:1:-2, 2:6], X[4:1:-2, 2:6]),
    "slice": (lambda t: ln.slice(t, [0, 1], [None, 7], [2, 3]), X[::2, 1:7:3]),
    "one element": (lambda t: t[2:3] * t, X[2:3] * X),
    "pad": (lambda t: ln.pad(t, ((1, 2), (0, 3)), 9), np.pad(X, ((1, 2), (0, 3)), "constant",
                                                              constant_values=9)),
    "crop": (lambda t: ln.pad(t, ((-1, 2), (2, -3)), 9),
             np.pad(X[1:, :-3], ((0, 2), (2, 0)), "constant", constant_values=9)),
    "interior": (lambda t: ln.pad(t, ((0, 0), (1, 0)), interior=(0, 2)),
                 np.pad(zeros_between(X, 2), ((0, 0), (1, 0)))),
    "interior cropped": (lambda t: ln.pad(t, ((0, 0), (-2, -1)), interior=(0, 1)),
                         zeros_between(X, 1)[:, 2:-1]),
    "flip": (lambda t: ln.flip(t), X[::-1, ::-1]),
    "flip of an axis": (lambda t: ln.flip(t, -1), X[:, ::-1]),
    "roll": (lambda t: ln.roll(t, 2, 1), np.roll(X, 2, 1)),
    "roll back": (lambda t: ln.roll(t, -9, 0), np.roll(X, -9, 0)),
    "roll of two axes": (lambda t: ln.roll(t, (1, -2), (0, 1)), np.roll(X, (1, -2), (0, 1))),
    "concatenate": (lambda t: ln.concatenate([t, t * 2, t]), np.concatenate([X, X * 2, X])),
    "concatenate of parts": (lambda t: ln.concatenate([t[:, 3:], t[:, :3]], -1),
                             np.roll(X, -3, 1)),
    "stack": (lambda t: ln.stack([t, t * 2], 1), np.stack([X, X * 2], 1)),
    "stack behind": (lambda t: ln.stack([t, t * 2, t], -1), np.stack([X, X * 2, X], -1)),
    "windows": (lambda t: ln.unfold(t, 1, 3, stride=2), sliding_window_view(X, 3, 1)[:, ::2]),
    "far windows": (lambda t: ln.unfold(t, 0, 2, dilation=3),
                    np.stack([X[:2], X[3:]], -1)),
    "two ways": (lambda t: t[1:] - t[:-1], X[1:] - X[:-1]),
    "padded twice": (lambda t: ln.pad(ln.pad(t, ((1, 0), (0, 0)), 1), ((0, 1), (0, 0)), 2),
                     np.concatenate([np.ones((1, 7)), X, np.full((1, 7), 2)])),
}  # fmt: skip


@pytest.mark.parametrize("symbolic", [(), NAMES])
@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name: str, symbolic: Sequence[str]) -> None:
    math, expected = CASES[name]
    f = define(math, X, symbolic=symbolic)
    assert_equal(ln.evaluate(f, X), expected)
    kernel = ln.lower(f)
    for target in ("interpret", "c"):
        assert_equal(ln.compile(kernel, target=target)(X), expected)
    report = ln.verify(kernel)
    assert report.ok, f"{kernel}\n{report}"
    assert report.all_sizes == (not symbolic or name != "roll back"), report
    assert_equal(ln.compile(ln.Kernel.parse(kernel.text(full=True)), target="c")(X), expected)


def test_roll_is_proved_for_all_sizes_that_it_does_not_exceed() -> None:
    with ln.Fusion("rolled") as f:
        x = f.input("x", ("N",), ln.float32)
        f.assume("N >= 4")
        f.output(ln.roll(x, 4, 0), "y")
        f.output(ln.roll(x, -3, 0), "z")
    report = ln.verify(ln.lower(f))
    assert report.ok
    assert report.all_sizes
    for n in (4, 7):
        x = np.arange(n, dtype=np.float32)
        y, z = ln.compile(f, target="c")(x)
        assert_equal(y, np.roll(x, 4))
        assert_equal(z, np.roll(x, -3))


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_small_sizes(n: int) -> None:
    """What is padded has elements where its producer has none; a window that just fits is one."""
    x = np.arange(n, dtype=np.float32)
    cases: list[Case] = [
        (lambda t: ln.pad(t, [(1, 2)], 5), np.pad(x, (1, 2), "constant", constant_values=5)),
        (lambda t: ln.pad(t, [(1, 0)], 5)[0] + t, x + 5),
        (lambda t: ln.pad(t, [(0, 1)], 5)[0], x[0] if n else np.array(5)),
        (lambda t: ln.concatenate([t, t]), np.concatenate([x, x])),
        (lambda t: ln.roll(t, 2, 0), np.roll(x, 2)),
        (lambda t: ln.flip(t), x[::-1]),
        (lambda t: ln.stack([t, t]), np.stack([x, x])),
        (lambda t: ln.sum(ln.unfold(ln.pad(t, [(1, 1)]), 0, 3), axis=1),
         np.array([x[max(i - 1, 0) : i + 2].sum() for i in range(n)])),
    ]  # fmt: skip
    for number, (math, expected) in enumerate(cases):
        f = define(math, x, symbolic=("N",))
        assert_equal(ln.evaluate(f, x), expected)
        f.inline_most()
        for target in ("interpret", "c"):
            assert_equal(ln.compile(f, target=target)(x), expected)
        assert ln.verify(ln.lower(f)).ok, number


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_basic_indexing_is_numpys(data: st.DataObject) -> None:
    x = np.arange(60, dtype=np.int64).reshape(3, 4, 5)
    bound = st.none() | st.integers(-7, 7)
    step = st.none() | st.integers(-3, 3).filter(bool)
    item = st.builds(slice, bound, bound, step) | st.none() | st.integers(-3, 2)
    key = data.draw(
        st.lists(item, max_size=4).filter(lambda k: len([i for i in k if i is not None]) < 4)
    )
    if data.draw(st.booleans()):
        key.insert(data.draw(st.integers(0, len(key))), ...)
    assert_equal(run(lambda t: t[tuple(key)] + 0, x), x[tuple(key)])


def test_an_index_of_everything_is_the_tensor_itself() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N", 4, 1), ln.float32)
        assert x[...] is x[:, :] is x[()] is x[:, 0:4] is x[:, :, ::-1] is x
        assert x[..., None].shape == (f.symbols[0], 4, 1, 1)
    assert len(f.tensors) == 2


@pytest.mark.parametrize("dtype", TYPES)
def test_types(dtype: Any) -> None:
    x = of_type([1.0, 0.0, 1.0], dtype)
    value = dtype is ln.bool or 2
    f = define(lambda t: (ln.pad(t, [(1, 1)], value), ln.concatenate([t, t]), ln.roll(t, 1, 0)), x)
    expected = [of_type([value, 1, 0, 1, value], dtype), np.concatenate([x, x]), np.roll(x, 1)]
    for found in (ln.evaluate(f, x), ln.compile(f, target="c")(x),
                  ln.compile(f, target="interpret")(x)):  # fmt: skip
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            assert_equal(one, other)
    assert ln.lower(f).cuda()


def test_joins_take_the_common_type() -> None:
    a, b = np.array([1, 2], np.int32), np.array([0.5], np.float16)
    f = define(lambda x, y: ln.concatenate([x, y]), a, b)
    assert f.outputs[0].dtype is ln.float16
    assert_equal(ln.compile(f, target="c")(a, b), np.array([1, 2, 0.5]))


def test_symbolic_bounds() -> None:
    with ln.Fusion("head") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        m = f.input("m", ("M",), ln.float32)
        f.output(x[:, :"M"] * m, "y")  # type: ignore[misc]
        f.output(ln.slice(x, [2, "M"], [None, None]), "z")
    assert [text for text, _ in f.facts.conditions] == ["M <= D", "2 <= N"]
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes
    m = np.array([1, 10, 100], np.float32)
    y, z = ln.compile(kernel, target="c")(X, m)
    assert_equal(y, X[:, :3] * m)
    assert_equal(z, X[2:, 3:])
    for target in ("interpret", "c"):
        with pytest.raises(ln.LaunchError) as caught:
            ln.compile(kernel, target=target)(X[:, :2].copy(), m)
        assert "the assumption 'M <= D' does not hold for M = 3, D = 2" in str(caught.value)


def test_equal_axes_of_reads() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = x[:, 1:-1]
        z = ln.concatenate([x, x], axis=1)
        p = ln.permute(x, (1, 0))
    assert y.definition is not None
    assert [r.equal_axes(y.root_domain) for r in y.definition.reads] == [(0, None)]
    assert ln.root_map(x, y) == {x.root_domain[0]: y.root_domain[0]}
    assert z.definition is not None
    assert (len(z.definition.reads), z.definition.producers) == (2, (x,))
    assert z.definition.reads[0].indices == (Coordinate(0), Coordinate(1))
    assert ln.root_map(x, z) == {x.root_domain[0]: z.root_domain[0]}
    assert list(ln.root_map(x, p)) == list(x.root_domain)


def test_axes_equal_in_one_read_alone_are_not_equal() -> None:
    with ln.Fusion() as f:
        x = f.input("x", (4, 4), ln.float32)
        s = ln.roll(x, 1, 0)
    assert s.definition is not None
    assert [str(r.indices[0]) for r in s.definition.reads] == ["#0 + 3", "#0 - 1"]
    assert ln.root_map(x, s) == {x.root_domain[1]: s.root_domain[1]}


def test_windows_of_a_large_tensor_take_blocks() -> None:
    """The oracle computes what is read of an inlined tensor, not all of it for each block."""
    x = np.arange(3 << 16, dtype=np.float64)
    f = define(lambda t: ln.pad((t * 2)[::-1], [(1, 1)])[2:] + (t + 1), x)
    assert_equal(ln.evaluate(f, x), np.append(x[::-1][1:] * 2, 0) + x + 1)


@pytest.mark.parametrize("shift", list(itertools.product((-3, 0, 1, 5), (-1, 4))))
def test_roll_by_any_shift(shift: tuple[int, int]) -> None:
    assert_equal(run(lambda t: ln.roll(t, shift, (0, 1)), X), np.roll(X, shift, (0, 1)))
    assert_equal(run(lambda t: ln.roll(t, shift, (0, 1)), X, symbolic=NAMES),
                 np.roll(X, shift, (0, 1)))  # fmt: skip


def test_no_sequence() -> None:
    with ln.Fusion() as f:
        x = f.input("x", (4,), ln.float32)
    with pytest.raises(TypeError, match=r"x is no sequence; take parts of it, as in x\[0\]"):
        iter(x)
    with pytest.raises(TypeError, match="x has no values before it runs; compare elements by ln"):
        1 in x  # noqa: B015
