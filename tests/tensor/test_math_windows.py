"""conv and pooling against plain NumPy: math, kernels of the default schedule, proofs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import loopnest as ln
from helpers.math_run import assert_equal, define

RNG = np.random.default_rng(0)


def small(*shape: int) -> np.ndarray:
    """Return small integers, of which sums of products are exact."""
    return RNG.integers(-4, 5, shape).astype(np.float32)


def correlate(
    x: np.ndarray, w: np.ndarray, stride: int = 1, padding: int = 0, dilation: int = 1,
    groups: int = 1,
) -> np.ndarray:  # fmt: skip
    """Return the cross-correlation, a kernel's element at a time."""
    space = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *[(padding, padding)] * space]).astype(np.float64)
    batch, _, *extents = x.shape
    outer, inner, *kernel = w.shape
    result = [
        (n - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(extents, kernel, strict=True)
    ]
    y = np.zeros((batch, outer, *result))
    for o in range(outer):
        first = o // (outer // groups) * inner
        for place in np.ndindex(*kernel):
            spans = [
                slice(p * dilation, p * dilation + (n - 1) * stride + 1, stride)
                for p, n in zip(place, result, strict=True)
            ]
            part = x[(slice(None), slice(first, first + inner), *spans)]
            factor = w[(o, slice(None), *place)].reshape(1, inner, *[1] * space)
            y[:, o] += (part * factor).sum(1)
    return y


PARAMETERS: list[dict[str, Any]] = [
    {}, {"padding": 1}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"groups": 2},
    {"groups": 4, "padding": 2, "stride": 2}, {"stride": 3, "dilation": 2, "padding": 3},
]  # fmt: skip


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("given", PARAMETERS, ids=str)
def test_conv(given: dict[str, Any], rank: int) -> None:
    extents, kernel = (7, 6, 5)[:rank], (3, 2, 1)[:rank]
    x, w = small(2, 4, *extents), small(8, 4 // given.get("groups", 1), *kernel)
    f = define(lambda x, w: ln.conv(x, w, **given), x, w)
    expected = correlate(x, w, **given)
    assert_equal(ln.evaluate(f, x, w), expected)
    f.inline_most()
    assert_equal(ln.compile(f, target="c")(x, w), expected)


@pytest.mark.parametrize("given", PARAMETERS, ids=str)
def test_conv_of_symbolic_extents(given: dict[str, Any]) -> None:
    x, w = small(2, 4, 8, 9), small(8, 4 // given.get("groups", 1), 3, 3)
    with ln.Fusion("symbolic") as f:
        image = f.input("x", ("N", 4, "H", "W"), ln.float32)
        f.output(ln.conv(image, f.input("w", w.shape, ln.float32), **given), "y")
    f.inline_most()
    kernel = ln.lower(f)
    assert_equal(ln.compile(kernel, target="c")(x, w), correlate(x, w, **given))
    report = ln.verify(kernel)
    assert report.ok
    assert report.all_sizes


@pytest.mark.parametrize(
    "given",
    [
        {"stride": 2, "padding": 1}, {"stride": 3}, {"dilation": 2, "groups": 2},
        {"padding": (0, (2, 1))},
    ],
    ids=str,
)  # fmt: skip
def test_transposed_conv_is_the_adjoint(given: dict[str, Any]) -> None:
    """<conv(z), x> = <z, transposed(x)> for all z: the definition of the gradient's map."""
    x, w = small(2, 4, 5, 5), small(4, 6 // given.get("groups", 1), 3, 3)
    f = define(lambda x, w: ln.conv(x, w, transposed=True, **given), x, w)
    y = ln.evaluate(f, x, w)
    assert isinstance(y, np.ndarray)
    z = small(*y.shape)
    g = define(lambda z, w: ln.conv(z, w, **given), z, w)
    back = ln.evaluate(g, z, w)
    assert isinstance(back, np.ndarray)
    assert back.shape == x.shape
    assert (back * x).sum() == (z * y).sum()
    assert_equal(ln.compile(f, target="c")(x, w), y)


def test_conv_types() -> None:
    with ln.Fusion() as f:
        x = f.input("x", (1, 2, 5), ln.float16)
        w = f.input("w", (3, 2, 3), ln.float16)
        i = f.input("i", (1, 2, 5), ln.int32)
        v = f.input("v", (3, 2, 3), ln.int32)
        found = (ln.conv(x, w), ln.conv(x, w, dtype=ln.float32), ln.conv(i, v), ln.conv(x, v))
    assert [t.dtype for t in found] == [ln.float16, ln.float32, ln.int64, ln.float16]
    assert {t.producers[0].dtype for t in found[:2]} == {ln.float32}
    assert [axis.is_reduction for axis in found[0].root_domain] == [False] * 3 + [True] * 2


def test_pooling() -> None:
    x = RNG.standard_normal((2, 3, 9, 8)).astype(np.float32)
    with ln.Fusion("pools") as f:
        image = f.input("x", ("N", 3, "H", "W"), ln.float32)
        f.output(ln.max_pool(image, 3, 2, 1), "largest")
        f.output(ln.avg_pool(image, (2, 4)), "mean")
        f.output(ln.avg_pool(image, 3, 1, ((1, 0), 2)), "padded")
    f.inline_most()
    largest, mean, padded = ln.compile(f, target="c")(x)
    around = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    windows = sliding_window_view(around, (3, 3), (2, 3))[:, :, ::2, ::2]
    assert_equal(largest, windows.max((-1, -2)))
    windows = sliding_window_view(x, (2, 4), (2, 3))[:, :, ::2, ::4]
    assert_equal(mean, windows.astype(np.float64).mean((-1, -2)), rtol=1e-5)
    around = np.pad(x, ((0, 0), (0, 0), (1, 0), (2, 2)))
    windows = sliding_window_view(around, (3, 3), (2, 3))
    np.testing.assert_allclose(padded, windows.mean((-1, -2)), rtol=1e-4, atol=1e-6)
    report = ln.verify(ln.lower(f))
    assert report.ok
    assert report.all_sizes


def test_max_pool_of_integers_and_nan() -> None:
    x = np.array([[[-5, -7, -6]]], np.int32)
    assert_equal(ln.evaluate(define(lambda t: ln.max_pool(t, 2, 1, 1), x), x), [[[-5, -5, -6, -6]]])
    y = np.array([[[1.0, np.nan, 2.0]]], np.float32)
    assert_equal(ln.evaluate(define(lambda t: ln.max_pool(t, 2, 1), y), y), [[[np.nan, np.nan]]])


@pytest.mark.parametrize("n", [1, 3, 4, 6, 9])
@pytest.mark.parametrize(
    ("size", "stride", "dilation", "padding"),
    [(4, 4, 1, (0, 3)), (3, 2, 1, 1), (3, 1, 2, (4, 0)), (2, 3, 1, (0, 2))],
)
def test_windows_that_reach_beyond(
    n: int, size: int, stride: int, dilation: int, padding: int | tuple[int, int]
) -> None:
    """`unfold` with a padding is `unfold` of a padded tensor."""
    low, high = (padding, padding) if isinstance(padding, int) else padding
    if n + low + high < dilation * (size - 1) + 1:
        return
    with ln.Fusion("beyond") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(ln.unfold(x, 0, size, stride, dilation, padding, 7.0), "y")
        f.output(ln.unfold(ln.pad(x, ((low, high),), value=7.0), 0, size, stride, dilation), "z")
    given = np.arange(n, dtype=np.float32)
    k = ln.lower(f)
    assert ln.verify(k).all_sizes
    for found in (ln.evaluate(f, given), ln.compile(k, target="interpret")(given)):
        assert isinstance(found, tuple)
        assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("padding", [0, ((1, 0), 2)])
def test_windows_along_two_axes_at_once(padding: Any) -> None:
    """They are windows along one axis, and then along the other."""
    pairs = ((1, 0), (2, 2)) if padding else ((0, 0), (0, 0))
    with ln.Fusion("both") as f:
        x = f.input("x", ("N", "P", "M"), ln.float32)
        f.output(ln.unfold(x, (0, -1), (2, 3), (1, 2), (2, 1), padding, 7.0), "y")
        one = ln.unfold(x, 0, 2, 1, 2, pairs[0], 7.0)
        f.output(ln.unfold(one, 2, 3, 2, 1, pairs[1], 7.0), "z")
    given = np.arange(5 * 2 * 6, dtype=np.float32).reshape(5, 2, 6)
    k = ln.lower(f)
    assert ln.verify(k).all_sizes
    for found in (ln.evaluate(f, given), ln.compile(k, target="interpret")(given)):
        assert isinstance(found, tuple)
        assert np.array_equal(found[0], found[1])
    if not padding:
        twice = "unfold(unfold(x, axis=0, size=2, dilation=2), axis=2, size=3, stride=2)"
        assert twice in f.print_math()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (((0, 0), 2), "its axes are (0, 0); name each axis once"),
        (((0, -2), 2), "its axes are (0, -2); name each axis once"),
        (((), 2), "its axes are (); name each axis once"),
        (((0, 1), (2, 2, 2)), "size is (2, 2, 2)"),
        (((0, 2), 2), "axis 2 is out of range"),
        (((0, 1), 2, 1, 1, (1, 2, 3)), "padding is (1, 2, 3)"),
    ],
)
def test_axes_of_windows_that_are_none(arguments: Any, reason: str) -> None:
    with ln.Fusion("both") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        with pytest.raises(ln.DefinitionError, match=re.escape(reason)):
            ln.unfold(x, *arguments)
    assert not [t for t in f.tensors if t.definition is not None]


def test_padding_that_is_none() -> None:
    with ln.Fusion("beyond") as f:
        x = f.input("x", ("N",), ln.float32)
        with pytest.raises(ln.DefinitionError, match="padding is "):
            ln.unfold(x, 0, 2, padding=(-1, 0))
        with pytest.raises(ln.DefinitionError, match="the value 'a' is no number"):
            ln.unfold(x, 0, 2, padding=1, value="a")  # type: ignore[arg-type]
    assert not [t for t in f.tensors if t.definition is not None]


def test_an_extent_as_a_scalar() -> None:
    with ln.Fusion("mask") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(ln.where(ln.iota(x.sizes[0]) + 2 < f.extent("N"), x, 0.0), "y")
        with pytest.raises(ln.DefinitionError, match=r"extent\(-1\): -1 is no extent"):
            f.extent(-1)
    k = ln.lower(f)
    assert ln.verify(k).all_sizes
    found = ln.compile(k, target="c")(np.ones(5, np.float32))
    assert np.array_equal(found, [1, 1, 1, 0, 0])


def test_borders_whose_widths_are_sizes() -> None:
    """A border of a size's width, and one that fills the last window; proved for all sizes."""
    with ln.Fusion("borders") as f:
        x = f.input("x", ("N",), ln.float32)
        f.input("like", ("B",), ln.float32)
        (n,) = x.sizes
        rest = -(-n // 4) * 4 - n
        f.output(ln.pad(x, ((1, "B"),), value=7.0), "y")
        f.output(ln.pad(x, (("B", -1),), interior=1), "z")
        f.output(ln.unfold(x, 0, 4, stride=4, padding=(0, rest)), "tiles")
    k = ln.lower(f)
    assert ln.verify(k).all_sizes
    for size, width in ((5, 3), (8, 0), (1, 2)):
        given = np.arange(1, size + 1, dtype=np.float32)
        spread = np.zeros(2 * size - 1, np.float32)
        spread[::2] = given
        fill = np.pad(given, (0, -size % 4)).reshape(-1, 4)
        expected = (
            np.pad(given, (1, width), constant_values=7),
            np.pad(spread, (width, 0))[:-1],
            fill,
        )
        for run in (ln.evaluate, lambda f, *a: ln.compile(ln.lower(f), target="interpret")(*a)):
            found = run(f, given, np.zeros(width, np.float32))
            assert all(map(np.array_equal, found, expected))
