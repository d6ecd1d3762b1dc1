"""Every reduction against NumPy: types, axes, special values, no elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

import loopnest as ln
from helpers.math_run import FLOATS, TYPES, assert_equal, define, of_type, run, wide
from loopnest.numerics.float64_math import evaluate_expr
from loopnest.scalar.expr import ZERO, Arg, Const, Coordinate, Op, walk
from loopnest.tensor.ops import reducers
from loopnest.tensor.ops.reducers import Family

REFERENCE: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "any": np.any,
    "all": np.all,
    "mean": np.mean,
    "var": np.var,
}
WIDE = dict.fromkeys(("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"), "int64")
TOLERANCE = {
    "float8_e4m3fn": 0.125, "float8_e5m2": 0.25, "float16": 1e-3, "bfloat16": 8e-3,
    "float64": 1e-12,
}  # fmt: skip
RESULT = {
    "sum": lambda name: WIDE.get(name, name),
    "prod": lambda name: WIDE.get(name, name),
    "max": lambda name: name,
    "min": lambda name: name,
    "any": lambda name: "bool",
    "all": lambda name: "bool",
    "mean": lambda name: name if "float" in name else "float32",
    "var": lambda name: name if "float" in name else "float32",
}


def sample(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype.is_float:
        return rng.normal(size=shape).astype(dtype.numpy)
    return rng.integers(-4 if dtype.signed else 0, 5, size=shape).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), (-1, 0, 1), None], ids=str)
@pytest.mark.parametrize("keepdims", [False, True], ids=["", "keepdims"])
def test_reduction_is_numpys(name: str, dtype: Any, axis: Any, keepdims: bool) -> None:
    x = sample(dtype, (3, 4, 5))
    with np.errstate(all="ignore"):
        expected = REFERENCE[name](wide(x), axis=axis, keepdims=keepdims)
    actual = run(lambda t: getattr(ln, name)(t, axis=axis, keepdims=keepdims), x)
    assert actual.dtype.name == RESULT[name](dtype.name)
    rtol = TOLERANCE.get(actual.dtype.name, 1e-6)
    assert_equal(actual, expected.astype(actual.dtype), rtol)


@given(
    shape=array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4),
    name=st.sampled_from(["sum", "prod", "max", "min", "any", "all", "mean", "var"]),
    data=st.data(),
)
def test_reduction_of_any_shape(shape: tuple[int, ...], name: str, data: Any) -> None:
    places = st.integers(-len(shape), len(shape) - 1)
    unique = st.lists(places, min_size=1, unique_by=lambda axis: axis % len(shape))
    axis = tuple(data.draw(unique))
    keepdims = data.draw(st.booleans())
    x = np.random.default_rng(1).normal(size=shape)
    identity = {"max": {"initial": -np.inf}, "min": {"initial": np.inf}}.get(name, {})
    with np.errstate(all="ignore"):
        count = np.prod([shape[a] for a in axis])
        if count == 0 and name in ("mean", "var"):
            empty = np.sum(x, axis=axis, keepdims=keepdims)
            expected = np.full(empty.shape, np.nan)
        else:
            expected = REFERENCE[name](x, axis=axis, keepdims=keepdims, **identity)
    actual = run(lambda t: getattr(ln, name)(t, axis=axis, keepdims=keepdims), x)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_no_elements_give_the_identity(dtype: Any) -> None:
    x = np.zeros((3, 0), dtype.numpy)
    if dtype.is_float:
        least, greatest = -np.inf, np.inf
    elif dtype.is_bool:
        least, greatest = 0, 1
    else:
        least, greatest = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
    for name, identity in (
        *(("sum", 0), ("prod", 1), ("max", least), ("min", greatest)),
        *(("any", 0), ("all", 1), ("mean", np.nan), ("var", np.nan)),
    ):
        actual = run(lambda t, name=name: getattr(ln, name)(t, axis=1), x, symbolic=("N", "D"))
        assert_equal(wide(actual), wide(np.full(3, identity).astype(actual.dtype)))
    mean, var, count = run(lambda t: ln.welford(t, axis=1), x, symbolic=("N", "D"))
    assert_equal(wide(mean), np.zeros(3))
    assert_equal(wide(var), np.zeros(3))
    assert_equal(count, np.zeros(3, np.int64))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all", "mean", "var"])
@pytest.mark.parametrize("values", [
    *([np.nan], [np.inf], [-np.inf], [1.0]),
    *([np.nan, 1.0, 2.0], [1.0, 2.0, np.nan], [np.nan, np.inf], [0.0, np.nan]),
    *([np.inf, 1.0], [1.0, np.inf, 2.0], [np.inf, np.inf], [np.inf, -np.inf], [0.0, -0.0]),
], ids=str)  # fmt: skip
def test_reduction_of_special_values(name: str, values: list[float]) -> None:
    x = np.array([values, values])
    with np.errstate(all="ignore"):
        expected = REFERENCE[name](x, axis=1)
    assert_equal(run(lambda t: getattr(ln, name)(t, axis=1), x), expected)


@pytest.mark.parametrize("correction", [0, 1, 2, 0.5, 3, 4])
@pytest.mark.parametrize("symbolic", [(), ("N", "D")], ids=["static", "symbolic"])
def test_variance_with_correction(correction: float, symbolic: tuple[str, ...]) -> None:
    x = np.random.default_rng(0).normal(size=(5, 3))
    with np.errstate(all="ignore"), pytest.warns() if correction >= 3 else no_warning():
        expected = np.var(x, axis=1, ddof=correction)
    actual = run(lambda t: ln.var(t, axis=1, correction=correction), x, symbolic=symbolic)
    assert_equal(actual, expected, 1e-12)


def no_warning() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_variance_of_one_element() -> None:
    x = np.array([[2.0], [5.0]])
    assert_equal(run(lambda t: ln.var(t, 1, correction=1), x, symbolic=("N", "D")), [np.nan] * 2)
    assert_equal(run(lambda t: ln.var(t, 1), x, symbolic=("N", "D")), [0.0, 0.0])
    assert_equal(run(lambda t: ln.var(t, 1), x), [0.0, 0.0])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_welford(dtype: Any, keepdims: bool) -> None:
    x = sample(dtype, (4, 37, 2))
    mean, var, count = run(lambda t: ln.welford(t, axis=(1, 2), keepdims=keepdims), x)
    real = dtype.numpy if dtype.is_float else np.float32
    assert (mean.dtype, var.dtype, count.dtype) == (real, real, np.int64)
    rtol = TOLERANCE.get(mean.dtype.name, 1e-6)
    floats = wide(x).astype(np.float64)
    args = {"axis": (1, 2), "keepdims": keepdims}
    np.testing.assert_allclose(wide(mean), np.mean(floats, **args), rtol=rtol, atol=rtol)
    np.testing.assert_allclose(wide(var), np.var(floats, **args), rtol=rtol)
    assert_equal(count, np.full(mean.shape, 74))


def test_welford_keeps_small_variances_of_large_means() -> None:
    x = 1e9 + np.random.default_rng(0).normal(size=(1, 1000))
    _, var, _ = run(lambda t: ln.welford(t, axis=1), x)
    np.testing.assert_allclose(var, np.var(x, axis=1), rtol=1e-7)


def test_integer_sums_are_wide_and_mean_is_exact() -> None:
    x = np.full(3, 2**31 - 1, np.int32)
    assert_equal(run(ln.sum, x), np.array(3 * (2**31 - 1)))
    assert_equal(run(ln.prod, x), np.prod(x.astype(np.int64)))
    y = np.full(4, 2**62, np.int64)
    assert_equal(run(ln.mean, y), np.array(2.0**62, np.float32))
    assert_equal(run(ln.sum, y), np.array(0))
    assert run(ln.mean, np.array([True, False, True, True])) == np.float32(0.75)


@pytest.mark.parametrize("dtype", FLOATS[2:4], ids=str)
def test_16_bit_reduction_rounds_once(dtype: Any) -> None:
    x = of_type([1.0] + [2.0**-10] * 4096, dtype)
    exact = 1.0 + 4096 * 2.0**-10
    assert_equal(run(ln.sum, x), np.array(exact).astype(dtype.numpy))
    assert_equal(run(ln.mean, x), np.array(exact / 4097).astype(dtype.numpy))
    big = of_type([30000.0] * 4, ln.float16)
    assert run(ln.mean, big) == 30000
    with ln.Fusion() as f:
        t = f.input("x", ("N",), dtype)
        total, average, spread = ln.sum(t), ln.mean(t), ln.var(t, correction=1)
    assert total.dtype is average.dtype is spread.dtype is dtype
    assert average.reduction is not None
    assert average.reduction.dtype is ln.float32
    assert spread.reduction is not None
    assert spread.reduction.dtype is ln.float32
    assert total.definition is not None
    assert total.definition.values[0].dtype is ln.float32


def test_keepdims_gives_a_broadcast_of_the_reduction() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N", "D"), ln.float32)
        m = ln.max(x, axis=1, keepdims=True)
        r = m.reduction
    assert r is not None
    assert f.tensors == (x, r, m)
    assert [axis.kind for axis in m.root_domain] == [ln.IterKind.ITERATION, ln.IterKind.BROADCAST]
    assert [axis.kind for axis in r.root_domain] == [ln.IterKind.ITERATION, ln.IterKind.REDUCTION]
    assert r.definition is not None
    assert [read.equal_axes(r.root_domain) for read in r.definition.reads] == [(0, 1)]
    assert r.shape == (f.symbols[0],)
    assert m.shape == (f.symbols[0], 1)
    assert m.definition is not None
    assert m.definition.note == "mask=(False, True)"


@pytest.mark.parametrize("name", ["mean", "var"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reduction_of_mean_and_variance_is_what_reduces(name: str, keepdims: bool) -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N", "D"), ln.float32)
        result = getattr(ln, name)(x, axis=1, keepdims=keepdims)
    assert result.reduction is not None
    assert [axis.is_reduction for axis in result.reduction.root_domain] == [False, True]


def test_welford_is_one_definition_of_three_tensors() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N", "D"), ln.float16)
        parts = ln.welford(x, axis=1)
    assert f.tensors == (x, *parts)
    definition = parts[0].definition
    assert definition is not None
    assert definition.reducer is not None
    assert all(part.definition is definition for part in parts)
    assert definition.outputs == parts == parts[1].siblings
    assert len(definition.reducer.identity) == 3
    assert x.consumers == parts


@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("keepdims", [False, True])
def test_reducing_broadcast_axes_only_is_a_copy(name: str, keepdims: bool) -> None:
    x = np.array([[[1.5, np.nan, 0.0, np.inf]]])
    with np.errstate(all="ignore"):
        expected = REFERENCE[name](x, axis=(0, 1), keepdims=keepdims)
    reduce = getattr(ln, name)
    assert_equal(run(lambda t: reduce(t, axis=(0, 1), keepdims=keepdims), x), expected)
    f = define(lambda t: reduce(t, axis=(0, 1), keepdims=keepdims), x)
    first = f.tensors[1].definition
    assert first is not None
    assert first.reducer is None
    (read,) = first.reads
    assert read.indices == (ZERO, ZERO, Coordinate(0))
    assert first.op == ("welford" if name == "var" else "squeeze")


def test_reducing_a_broadcast_axis_of_bool_keeps_the_cast() -> None:
    actual = run(lambda t: ln.sum(t, axis=0), np.array([[True, False]]))
    assert actual.dtype == np.int64
    assert_equal(actual, np.array([1, 0]))


def test_broadcast_axis_beside_a_reduced_one_is_reduced_with_it() -> None:
    x = np.arange(6.0).reshape(2, 1, 3)
    f = define(lambda t: ln.sum(t, axis=(1, 2)), x)
    assert [str(axis.size) for axis in f.tensors[1].root_domain] == ["2", "1", "3"]
    assert [axis.is_reduction for axis in f.tensors[1].root_domain] == [False, True, True]
    assert_equal(ln.evaluate(f, x), x.sum((1, 2)))


VALUES = [0.0, 1.5, -2.0, float("inf"), float("-inf"), float("nan"), 1e300, -1e-300]


@pytest.mark.parametrize("family", [
    *(reducers.SUM, reducers.PROD, reducers.MAX, reducers.MIN, reducers.ANY, reducers.ALL),
    reducers.WELFORD,
], ids=lambda family: family.name)  # fmt: skip
def test_identity_is_neutral_exactly(family: Family) -> None:
    if family is reducers.WELFORD:
        types = (ln.float64, ln.float64, ln.int64)
        spread = [0.0, 2.5, 1.0, np.nan, np.nan, np.nan, 3.0, 0.0]
        parts = [np.array(VALUES), np.array(spread), np.array([1, 2, 7, 1, 3, 1, 49, 10**9])]
    elif family in (reducers.ANY, reducers.ALL):
        types, parts = (ln.bool,), [np.array([True, False])]
    else:
        types, parts = (ln.float64,), [np.array(VALUES)]
    left = tuple([Arg(n, dtype) for n, dtype in enumerate(types)])
    reducer = family.of(*types)
    identity = reducer.identity
    assert reducer.types == types
    env = dict(zip(left, parts, strict=True))
    with np.errstate(all="ignore"):
        for folded in (reducer.combine(left, identity), reducer.combine(identity, left)):
            for value, part in zip(folded, parts, strict=True):
                assert_equal(evaluate_expr(value, env), part)
        for value, neutral in zip(reducer.combine(identity, identity), identity, strict=True):
            assert evaluate_expr(value, {}) == neutral.value


def test_welford_takes_a_single_element_with_one_division() -> None:
    types = (ln.float64, ln.float64, ln.int64)
    left = tuple([Arg(n, dtype) for n, dtype in enumerate(types)])
    x = Arg(3, ln.float64)
    element = (x, Op("sub", (x, x), ln.float64), Const(1, ln.int64))
    folded = reducers.WELFORD.of(*types).combine(left, element)
    found = {n for value in folded for n in walk(value) if isinstance(n, Op)}
    assert sorted(n.op for n in found if n.op in ("div", "where", "max", "eq")) == ["div"]
    start = dict(zip(left, (0.0, 0.0, 0), strict=True)) | {x: np.array(VALUES)}
    with np.errstate(all="ignore"):
        mean, spread, count = [evaluate_expr(value, start) for value in folded]
        assert_equal(mean, np.array(VALUES))
        assert_equal(spread, np.array(VALUES) * 0)
    assert count == 1
