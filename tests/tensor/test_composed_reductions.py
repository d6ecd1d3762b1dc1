"""logsumexp and topk: results, ties, NaN, types, schedules, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.schedule_run import PT

INF = float("inf")


def of_rows(function: Any, dtype: Any = ln.float32, shape: Any = ("N", "D")) -> ln.Fusion:
    with ln.Fusion("k") as f:
        x = f.input("x", shape, dtype)
        made = function(x)
        for n, tensor in enumerate(made if isinstance(made, tuple) else (made,)):
            f.output(tensor, f"y{n}")
    return f


def largest(x: np.ndarray, k: int, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k largest by a stable sort: NaN first, then descending, the first of equals."""
    values = np.moveaxis(x.astype(np.float64), axis, -1)
    keys = np.where(np.isnan(values), -np.inf, -values)
    keys = np.where(np.isnan(values), -np.inf, np.where(values == np.inf, -1e300, keys))
    order = np.argsort(keys, axis=-1, kind="stable")[..., :k]
    found = np.take_along_axis(np.moveaxis(x, axis, -1), order, -1)
    return np.moveaxis(found, -1, axis), np.moveaxis(order, -1, axis)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_topk(k: int, axis: int) -> None:
    f = of_rows(lambda x: ln.topk(x, k, axis))
    x = np.random.default_rng(k).integers(-3, 3, (6, 7)).astype(np.float32)
    x[2, 3], x[4, 3], x[1, 1] = np.nan, np.nan, np.inf
    wanted = largest(x, k, axis)
    lowered = ln.lower(f)
    assert ln.verify(lowered).status == "proved"
    for found in (ln.evaluate(f, x), ln.compile(lowered, target="interpret")(x)):
        assert np.array_equal(found[0], wanted[0], equal_nan=True)
        assert np.array_equal(found[1], wanted[1])
        assert found[1].dtype == np.int64


@pytest.mark.parametrize("dtype", [ln.float16, ln.int32, ln.uint8, ln.bool], ids=str)
def test_topk_of_types(dtype: Any) -> None:
    f = of_rows(lambda x: ln.topk(x, 2, 1), dtype)
    x = np.array([[0, 1, 1, 0], [1, 0, 0, 0]]).astype(dtype.numpy)
    found = ln.compile(ln.lower(f), target="interpret")(x)
    assert found[0].dtype == x.dtype
    assert np.array_equal(found[0], [[1, 1], [1, 0]])
    assert np.array_equal(found[1], [[1, 2], [0, 1]])


def test_topk_over_threads() -> None:
    f = of_rows(lambda x: ln.topk(x, 3, 1))
    stacked = f["y0"].producers[0]
    pairs = stacked
    while pairs.definition is not None and pairs.definition.reducer is None:
        pairs = pairs.producers[0]
    pairs.split(1, 8)
    pairs.parallelize({0: PT.grid_x, 2: PT.block_x})
    for tensor in pairs.siblings:
        tensor.memory = ln.GLOBAL
    k = ln.lower(f)
    assert ln.verify(k).status == "proved"
    x = np.random.default_rng(0).integers(-9, 9, (2, 21)).astype(np.float32)
    wanted = largest(x, 3, 1)
    for target in ("interpret", "c"):
        found = ln.compile(k, target=target)(x)
        assert np.array_equal(found[0], wanted[0])
        assert np.array_equal(found[1], wanted[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: ln.topk(x, 0),
            "topk(x, 0, axis=-1): k is 0; use an int from 1 to the axis' extent",
        ),
        (
            lambda x: ln.topk(x, True),
            "topk(x, True, axis=-1): k is True; use an int from 1 to the axis' extent",
        ),
        (
            lambda x: ln.topk(x, 5, axis=1),
            "topk(x, 5, axis=1): the axis has fewer than 5 elements; x is float32[N, 4]",
        ),
        (
            lambda x: ln.topk(x, 2, axis=(0, 1)),
            "topk(x, 2, axis=(0, 1)): topk goes along one axis; name it by an int",
        ),
    ],
)
def test_refused(call: Any, message: str) -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 4), ln.float32)
        with pytest.raises(ln.DefinitionError) as caught:
            call(x)
    assert str(caught.value) == message
    assert f.tensors == (x,)


def test_too_few_elements_at_a_launch() -> None:
    f = of_rows(lambda x: ln.topk(x, 3, 1))
    with pytest.raises(ln.LaunchError):
        ln.compile(ln.lower(f), target="interpret")(np.zeros((2, 2), np.float32))


@pytest.mark.parametrize("axis", [1, None, (0, 1)], ids=str)
@pytest.mark.parametrize("dtype", [ln.float16, ln.float32, ln.float64, ln.int32], ids=str)
def test_logsumexp(axis: Any, dtype: Any) -> None:
    f = of_rows(lambda x: ln.logsumexp(x, axis), dtype)
    assert f["y0"].dtype is (dtype if dtype.is_float else ln.float32)
    x = (np.random.default_rng(0).normal(size=(3, 9)) * 5).astype(dtype.numpy)
    k = ln.lower(f)
    assert ln.verify(k).status == "proved"
    wanted, bound = ln.evaluate(f, x, exact=True), ln.error_bound(f, x)
    assert np.isfinite(bound).all()
    wide = x.astype(np.float64)
    np.testing.assert_allclose(
        wanted, np.log(np.exp(wide).sum(axis)), 2e-3 if dtype is ln.float16 else 1e-9
    )
    found = np.asarray(ln.compile(k, target="interpret")(x)).astype(np.float64)
    assert (abs(found - wanted) <= bound).all()


def test_logsumexp_of_infinities() -> None:
    f = of_rows(lambda x: ln.logsumexp(x, 1, keepdims=True))
    x = np.array([[-INF, -INF], [INF, 1], [-INF, 2], [np.nan, 1], [1e38, 1e38]], np.float32)
    wanted = np.array([[-INF], [INF], [2], [np.nan], [1e38]], np.float32)
    for found in (ln.evaluate(f, x), ln.compile(ln.lower(f), target="interpret")(x)):
        assert np.array_equal(found, wanted, equal_nan=True)
    empty = np.zeros((2, 0), np.float32)
    assert np.array_equal(ln.compile(ln.lower(f), target="interpret")(empty), [[-INF], [-INF]])
