"""argmax and argmin against NumPy: ties, NaN, types, axes, no elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.math_run import TYPES, assert_equal, run

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1, None], ids=str)
@pytest.mark.parametrize("keepdims", [False, True], ids=["", "keepdims"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_it_is_numpys(name: str, dtype: Any, axis: int | None, keepdims: bool) -> None:
    x = np.random.default_rng(0).integers(-3, 4, size=(3, 5, 7)).astype(dtype.numpy)
    found = run(lambda t: getattr(ln, name)(t, axis, keepdims), x)
    assert found.dtype == np.int64
    wide = x.astype(np.float64)
    assert_equal(found, getattr(np, name)(wide, axis=axis, keepdims=keepdims))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize(
    "values",
    [
        *(
            [1.0, NAN, 2.0, NAN],
            [NAN, NAN],
            [-INF, -INF],
            [INF, INF, NAN],
            [-0.0, 0.0],
            [0.0, -0.0],
        ),
        *([-INF, 3.0, INF, INF], [NAN, INF], [5.0]),
    ],
    ids=str,
)
def test_special_values(name: str, values: list[float]) -> None:
    x = np.array([values, values[::-1]])
    assert_equal(run(lambda t: getattr(ln, name)(t, 1), x), getattr(np, name)(x, axis=1))
    assert_equal(run(lambda t: getattr(ln, name)(t), x), getattr(np, name)(x))


@pytest.mark.parametrize("least", [True, False])
def test_extremes_of_integers(least: bool) -> None:
    ends = np.iinfo(np.int64)
    x = np.full((2, 4), ends.max if least else ends.min)
    for name in ("argmax", "argmin"):
        assert_equal(run(lambda t, name=name: getattr(ln, name)(t, 1), x), np.zeros(2, np.int64))


def test_broadcast_axes() -> None:
    x = np.random.default_rng(0).normal(size=(1, 4))
    assert_equal(run(lambda t: ln.argmax(t, 0), x), np.zeros(4, np.int64))
    assert_equal(run(lambda t: ln.argmax(t), x), np.argmax(x))
    assert_equal(run(lambda t: ln.argmax(t, 0, keepdims=True), x), np.zeros((1, 4), np.int64))


def test_no_elements() -> None:
    with ln.Fusion("f") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        f.output(ln.argmax(x, 1), "y")
    message = (
        "evaluate(f): the assumption 'D >= 1' does not hold for D = 0; pass sizes for which it "
        "does, or define the kernel without it"
    )
    with pytest.raises(ln.LaunchError) as caught:
        ln.evaluate(f, np.zeros((3, 0), np.float32))
    assert str(caught.value) == message
    assert ln.evaluate(f, np.zeros((0, 3), np.float32)).shape == (0,)
    for target in ("interpret", "c"):
        with pytest.raises(ln.LaunchError, match="the assumption 'D >= 1' does not hold"):
            ln.compile(f, target=target)(np.zeros((3, 0), np.float32))
    with ln.Fusion("f") as f:
        x = f.input("x", (3, 0), ln.float32)
        f.output(ln.argmin(x), "y")
    with pytest.raises(ln.LaunchError, match="the assumption '0 >= 1' does not hold"):
        ln.evaluate(f, np.zeros((3, 0), np.float32))


def test_refused() -> None:
    with ln.Fusion("f") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        for call, message in (
            (
                lambda: ln.argmax(x, 2),
                "argmax(x, axis=2): axis 2 is out of range; x has 2 axes, so use -2..1",
            ),
            (
                lambda: ln.argmin(x, (0, 1)),  # type: ignore[arg-type]
                "argmin(x, axis=(0, 1)): several axes are named; name one, or None for all",
            ),
            (
                lambda: ln.argmin(3.0),  # type: ignore[arg-type]
                "argmin(3.0, axis=None): operand 1 is of type float; use a TensorView",
            ),
        ):
            with pytest.raises(ln.DefinitionError) as caught:
                call()
            assert str(caught.value) == message
        assert len(f.tensors) == 1
        assert not f.facts.conditions
