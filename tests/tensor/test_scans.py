"""cumsum, cumprod, cummax and scan against NumPy: types, axes, flags, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.math_run import TYPES, assert_equal, run, wide

NAN, INF = float("nan"), float("inf")
AFFINE = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")
REFERENCE = {
    "cumsum": (np.cumsum, 0),
    "cumprod": (np.cumprod, 1),
    "cummax": (np.maximum.accumulate, None),
}


def expected(name: str, x: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    function, start = REFERENCE[name]
    if start is None:
        start = -INF if x.dtype.kind in "fV" else False if x.dtype == bool else None
        start = np.iinfo(x.dtype).min if start is None else start
    x = np.moveaxis(wide(x), axis, -1)
    x = x[..., ::-1] if reverse else x
    found = function(x, axis=-1)
    if exclusive:
        first = np.full_like(found[..., :1], start)
        found = np.concatenate([first, found[..., :-1]], axis=-1)
    return np.moveaxis(found[..., ::-1] if reverse else found, -1, axis)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", REFERENCE)
def test_it_is_numpys(name: str, dtype: Any, axis: int) -> None:
    x = np.random.default_rng(0).integers(-2, 3, size=(3, 5, 4)).astype(dtype.numpy)
    found = run(lambda t: getattr(ln, name)(t, axis), x)
    reduction = {"cumsum": "sum", "cumprod": "prod", "cummax": "max"}[name]
    assert found.dtype == run(lambda t: getattr(ln, reduction)(t, axis), x).dtype
    assert_equal(found, expected(name, x, axis, False, False).astype(found.dtype))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("size", [0, 1, 2, 7, 100])
def test_flags(name: str, size: int, exclusive: bool, reverse: bool) -> None:
    x = np.random.default_rng(0).integers(-2, 3, size=(2, size)).astype(np.float64)
    for symbolic in ((), ("N", "D")):
        found = run(
            lambda t: getattr(ln, name)(t, 1, exclusive=exclusive, reverse=reverse),
            x, symbolic=symbolic,
        )  # fmt: skip
        assert_equal(found, expected(name, x, 1, exclusive, reverse))


def test_nan_stays() -> None:
    x = np.array([1.0, NAN, 3.0, -INF])
    assert_equal(run(lambda t: ln.cummax(t, 0), x), [1.0, NAN, NAN, NAN])
    assert_equal(run(lambda t: ln.cummax(t, 0, reverse=True), x), [NAN, NAN, 3.0, -INF])


def test_order_is_kept() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 3, 50))
    a, b = run(lambda t, u: ln.scan(AFFINE, (t, u), 1), x, y)
    want = [np.ones(3), np.zeros(3)]
    for n in range(50):
        want = [want[0] * x[:, n], want[1] * x[:, n] + y[:, n]]
        np.testing.assert_allclose(a[:, n], want[0], 1e-9)
        np.testing.assert_allclose(b[:, n], want[1], 1e-9)
    back = run(lambda t, u: ln.scan(AFFINE, (t, u), 1, reverse=True), x, y)
    front = run(lambda t, u: ln.scan(AFFINE, (t, u), 1), x[:, ::-1].copy(), y[:, ::-1].copy())
    np.testing.assert_allclose(back[1], front[1][:, ::-1], 1e-12)


def test_results_are_as_the_values() -> None:
    total = ln.Reducer(0, lambda a, b: (a[0] + b[0],), "total")
    with ln.Fusion("f") as f:
        x = f.input("x", ("N", "D"), ln.float16)
        y = ln.scan(total, x, 1)
        assert (y.dtype, y.shape) == (ln.float16, x.shape)
        assert isinstance(ln.scan(total, (x,), 1), tuple)
        a, b = ln.scan(AFFINE, (0.5, x), 0, exclusive=True)
        assert a.definition is b.definition
        one = f.input("one", (1, "D"), ln.float32)
        copy = ln.cumsum(one, 0)
        assert copy.definition is not None
        assert copy.definition.reducer is None  # along a broadcast axis nothing is folded


def test_refused() -> None:
    with ln.Fusion("f") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        for call, message in (
            (
                lambda: ln.cumsum(x, 2),
                "cumsum(x, axis=2): axis 2 is out of range; x has 2 axes, so use -2..1",
            ),
            (
                lambda: ln.cumprod(x, (0, 1)),  # type: ignore[arg-type]
                "cumprod(x, axis=(0, 1)): a scan goes along one axis; name it by an int",
            ),
            (
                lambda: ln.cummax(x, None),  # type: ignore[arg-type]
                "cummax(x, axis=None): a scan goes along one axis; name it by an int",
            ),
            (
                lambda: ln.cumsum(3.0, 0),  # type: ignore[arg-type]
                "cumsum(3.0, axis=0): operand 1 is of type float; use a TensorView",
            ),
            (
                lambda: ln.cumsum(x, 0, exclusive=1),  # type: ignore[arg-type]
                "cumsum(exclusive=1): exclusive=1 is no bool; use exclusive=True or "
                "exclusive=False",
            ),
            (
                lambda: ln.scan(AFFINE, x, 0),
                "scan('affine', x): 1 value is given, the partial results of affine have 2 "
                "components; give a value a component",
            ),
            (
                lambda: ln.scan(AFFINE, (x, x), 2),
                "scan(x, axis=2): axis 2 is out of range; x has 2 axes, so use -2..1",
            ),
        ):
            with pytest.raises(ln.DefinitionError) as caught:
                call()
            assert str(caught.value) == message
        assert len(f.tensors) == 1
