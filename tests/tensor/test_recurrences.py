"""`reduce` of values with different axes: what is computed a row stays computed a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.schedule_run import body, nest

INF = float("inf")
N, T, W = 3, 5, 4


def rescaled(a: Any, b: Any) -> Any:
    most = ln.maximum(a[0], b[0])
    one, other = ln.exp(a[0] - most), ln.exp(b[0] - most)
    return most, a[1] * one + b[1] * other, a[2] * one + b[2] * other


def mean_of_counts(a: Any, b: Any) -> Any:
    """(count, mean): the mean is linear in itself, and neutral only where counts are tested."""
    count = a[0] + b[0]
    return count, a[1] * (a[0] / count) + b[1] * (b[0] / count)


def lifted(a: Any, b: Any) -> Any:
    """(sum, sum of -elements + 2 * what was before * element): with a rest."""
    return a[0] + b[0], a[1] - (-b[1]) + a[0] * b[0] * 2.0


def at_largest(a: Any, b: Any) -> Any:
    """(largest, what stands there): not linear."""
    return ln.maximum(a[0], b[0]), ln.where(b[0] > a[0], b[1], a[1])


SOFTMAX = ln.Reducer((-INF, 0.0, 0.0), rescaled, "softmax")
MEAN = ln.Reducer((0.0, 0.0), mean_of_counts, "mean_of_counts")
LIFTED = ln.Reducer((0.0, 0.0), lifted, "lifted")
AFFINE = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")
AT_LARGEST = ln.Reducer((-INF, 0.0), at_largest, "at_largest")


def uneven(reducer: ln.Reducer, dtype: Any = ln.float32, axis: int = 1) -> ln.Fusion:
    """One value over [N, T, W], the others over [N, T]."""
    with ln.Fusion("uneven") as f:
        rows = [f.input(f"r{n}", ("N", "T"), dtype) for n in range(len(reducer.identity) - 1)]
        whole = f.input("w", ("N", "T", "W"), dtype)
        given = [ln.broadcast(row, (False, False, True)) for row in rows]
        for number, made in enumerate(ln.reduce(reducer, (*given, whole), axis=axis)):
            f.output(made, f"y{number}")
    return f


def arrays(count: int, dtype: Any = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    made = [rng.uniform(0.5, 2.0, (N, T)) for _ in range(count)]
    return [a.astype(dtype) for a in (*made, rng.normal(size=(N, T, W)))]


def folded(reducer: ln.Reducer, given: list[np.ndarray]) -> list[np.ndarray]:
    """Fold in order, by the function itself, on the values as broadcast."""
    with ln.Fusion("even") as f:
        whole = [f.input(f"x{n}", ("N", "T", "W"), ln.float64) for n in range(len(given))]
        for number, made in enumerate(ln.reduce(reducer, whole, axis=1)):
            f.output(made, f"y{number}")
    spread = [np.broadcast_to(g[..., None] if g.ndim == 2 else g, (N, T, W)) for g in given]
    found = ln.evaluate(f, *[np.array(s, np.float64) for s in spread])
    return [np.asarray(a) for a in found]


EVERY = [SOFTMAX, MEAN, LIFTED, AFFINE, AT_LARGEST]


@pytest.mark.parametrize("reducer", EVERY, ids=lambda r: r.name)
def test_as_if_broadcast(reducer: ln.Reducer) -> None:
    """The same results as of values that have all axes, proved, within the bound on all targets."""
    f = uneven(reducer)
    given = arrays(len(reducer.identity) - 1)
    k = ln.lower(f)
    assert ln.verify(k).status == "proved"
    wanted = folded(reducer, given)
    exact, bound = ln.evaluate(f, *given, exact=True), ln.error_bound(f, *given)
    for target in ("interpret", "c"):
        results = ln.compile(k, target=target)(*given)
        for found, whole, right, off in zip(results, wanted, exact, bound, strict=True):
            assert np.isfinite(off).all()
            assert (abs(found - right) <= off).all()
            np.testing.assert_allclose(np.broadcast_to(found, whole.shape), whole, 1e-4, 1e-5)


def test_what_rows_need_is_computed_in_rows() -> None:
    """Results of rows lack the other axis; no exponential has it."""
    f = uneven(SOFTMAX)
    assert [str(t.sizes[1]) for t in f.outputs] == ["1", "1", "W"]
    for tensor in f.tensors:
        if tensor.definition is not None and "exp(" in str(tensor.definition.values):
            assert tensor.domain.logical[2].is_broadcast, tensor
    assert sum("exp(" in str(t.definition and t.definition.values) for t in f.tensors) == 2


def test_equal_components_stay_one_definition() -> None:
    """Values that are folded apart from each other share their loop, whatever their axes."""
    add = ln.Reducer((0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1]), "two_sums")
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        w = f.input("w", ("D",), ln.float32)
        one, other = ln.reduce(add, (x, w), axis=1)
        f.output(one + other, "y")
    assert one.siblings == other.siblings


def test_components_that_nobody_reads_are_left_out() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        f.output(ln.reduce(AFFINE, (0.5, x), axis=1)[1], "y")
    assert nest(f) == body("""
        for i0 in N:
          y[i0] = 0.0
          for i1 in D:
            y[i0] = y[i0] * 0.5 + x[i0, i1]
    """)
    assert ln.verify(ln.lower(f)).status == "proved"


@pytest.mark.parametrize("empty", ["N", "T", "W"])
def test_no_elements(empty: str) -> None:
    f = uneven(SOFTMAX)
    shape = {"N": N, "T": T, "W": W} | {empty: 0}
    rows = np.ones((shape["N"], shape["T"]), np.float32)
    whole = np.ones((shape["N"], shape["T"], shape["W"]), np.float32)
    for one, other in zip(
        ln.compile(ln.lower(f), target="interpret")(rows, rows, whole),
        ln.evaluate(f, rows, rows, whole),
        strict=True,
    ):
        assert np.array_equal(one, other)


def test_rows_without_any_score() -> None:
    """What was left out (-inf) in all tiles so far does not make a NaN of the first that counts."""
    given = arrays(2)
    given[0][:, :3] = -INF
    given[1][:, :3] = 0.0
    given[2][:, :3] = 0.0
    f = uneven(SOFTMAX)
    for found in ln.compile(ln.lower(f), target="interpret")(*given):
        assert np.isfinite(found).all()


@pytest.mark.parametrize("dtype", [ln.float16, ln.float64], ids=str)
def test_types(dtype: Any) -> None:
    """Of 16 bits all is folded in float32, and what lies between is not rounded either."""
    f = uneven(SOFTMAX, dtype)
    assert all(t.dtype is dtype for t in f.outputs)
    between = {
        t.dtype
        for t in f.tensors
        if t.definition is not None and t.definition.op == "softmax" and not t.is_output
    }
    assert between == {dtype.compute}
    given = arrays(2, dtype.numpy)
    exact, bound = ln.evaluate(f, *given, exact=True), ln.error_bound(f, *given)
    for found, right, off in zip(
        ln.compile(ln.lower(f), target="c")(*given), exact, bound, strict=True
    ):
        assert (abs(found.astype(np.float64) - right) <= off).all()


SEVERAL: dict[str, Callable[[ln.Fusion], Any]] = {
    "affine over both": lambda f: ln.reduce(AFFINE, (f["r"], f["w"]), axis=(1, 2))[1],
    "softmax over both": lambda f: ln.reduce(SOFTMAX, (f["r"], f["r"], f["w"]), axis=(1, 2))[2],
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_axes(name: str) -> None:
    with ln.Fusion("several") as f:
        row = f.input("x", ("N", "T", "D"), ln.float32)
        ln.broadcast(row, (False, False, False, True)).named("r")
        f.input("w", ("N", "T", "D", "W"), ln.float32)
        f.output(SEVERAL[name](f), "y")
    k = ln.lower(f)
    assert ln.verify(k).status == "proved"
    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 1.5, (2, 3, 2)).astype(np.float32)
    w = rng.normal(size=(2, 3, 2, 3)).astype(np.float32)
    wanted, bound = ln.evaluate(f, x, w, exact=True), ln.error_bound(f, x, w)
    found = np.asarray(ln.compile(k, target="c")(x, w))
    assert (abs(found - wanted) <= bound).all()


@pytest.mark.parametrize("keepdims", [False, True])
def test_an_axis_of_one_element_is_reduced_like_others(keepdims: bool) -> None:
    def scaled(a: Any, b: Any) -> Any:
        most = ln.maximum(a[0], b[0])
        return most, a[1] * ln.exp(a[0] - most) + b[1] * ln.exp(b[0] - most)

    reducer = ln.Reducer((-INF, 0.0), scaled, "scaled")
    x = np.random.default_rng(0).random((N, 1, W)).astype(np.float32)
    with ln.Fusion("k") as f:
        tensor = f.input("x", x.shape, ln.float32)
        values = (ln.max(tensor, -1, keepdims=True), tensor)
        largest, total = ln.reduce(reducer, values, axis=(0, 1), keepdims=keepdims)
        f.output(largest, "largest")
        f.output(total, "total")
    found = ln.evaluate(f, x)
    m = x.max(axis=2, keepdims=True)
    weights = np.exp(m - m.max())
    expected = (
        m.max(axis=(0, 1), keepdims=keepdims),
        (x * weights).sum(axis=(0, 1), keepdims=keepdims),
    )
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5)
