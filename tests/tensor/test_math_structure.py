"""broadcast, permute, squeeze, expand, iota, full, copy and matmul against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loopnest as ln
from helpers.math_run import TYPES, assert_equal, define, run
from loopnest.scalar.expr import Coordinate
from loopnest.tensor.ops.data_movement import copy


def test_broadcast() -> None:
    x = np.arange(6).reshape(2, 3)
    f = define(lambda t: ln.broadcast(t, (True, False, True, True, False)), x)
    assert_equal(ln.evaluate(f, x), x.reshape(1, 2, 1, 1, 3))
    y = f.outputs[0]
    assert [axis.is_broadcast for axis in y.root_domain] == [True, False, True, True, False]
    assert y.definition is not None
    assert [r.equal_axes(y.root_domain) for r in y.definition.reads] == [(1, 4)]
    assert_equal(run(lambda t: ln.broadcast(t, [False, False]), x), x)
    assert_equal(run(lambda t: ln.broadcast(t, [True]), np.array(3)), np.array([3]))


@given(order=st.permutations(range(4)))
def test_permute(order: list[int]) -> None:
    x = np.arange(120).reshape(2, 3, 4, 5)
    f = define(lambda t: ln.permute(t, [axis - 4 * (axis % 2) for axis in order]), x)
    assert_equal(ln.evaluate(f, x), np.transpose(x, order))
    definition = f.outputs[0].definition
    assert definition is not None
    (read,) = definition.reads
    assert [read.indices[axis] for axis in order] == [Coordinate(n) for n in range(4)]


def test_squeeze() -> None:
    x = np.arange(3).reshape(1, 3, 1)
    assert_equal(run(lambda t: ln.squeeze(t, 0), x), x[0])
    assert_equal(run(lambda t: ln.squeeze(t, (0, -1)), x), x[0, :, 0])


def test_expand() -> None:
    x = np.arange(3).reshape(3, 1)
    assert_equal(run(lambda t: ln.expand(t, (3, 4)), x), np.broadcast_to(x, (3, 4)))
    f = define(lambda t: ln.expand(t, (2, 3, 4)), x)
    assert_equal(ln.evaluate(f, x), np.broadcast_to(x, (2, 3, 4)))
    y = f.outputs[0]
    assert [axis.is_iteration for axis in y.root_domain] == [True] * 3
    assert [t.definition.op for t in f.tensors[1:] if t.definition] == ["broadcast", "expand"]
    assert_equal(run(lambda t: ln.expand(t, t.shape), x), x)


def test_expand_to_a_symbol() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N", 1), ln.float32)
        w = f.input("w", ("D",), ln.float32)
        y = ln.expand(x, ("N", *w.shape))
        f.output(y + w, "y")
        f.output(ln.expand(x, ("N", "M")), "z")
    a, b = np.ones((2, 1), np.float32), np.arange(3, dtype=np.float32)
    first, second = ln.evaluate(f, a, b, M=5)
    assert_equal(first, a + b)
    assert_equal(second, np.ones((2, 5), np.float32))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_moving_elements_keeps_type_and_value(dtype: Any) -> None:
    x = np.array([[0.0], [1.0], [-2.5]]).astype(dtype.numpy)
    for function in (
        *(copy, lambda t: ln.permute(t, (1, 0)), lambda t: ln.broadcast(t, (True, False, False))),
        *(lambda t: ln.squeeze(t, 1), lambda t: ln.expand(t, (3, 2))),
    ):
        f = define(function, x)
        assert f.outputs[0].dtype is dtype
        definition = f.outputs[0].definition
        assert definition is not None
        assert definition.values[0].dtype is dtype
        assert np.unique(ln.evaluate(f, x)).tolist() == np.unique(x).tolist()


def test_output_of_an_input_or_an_output_is_a_copy() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(x, "y")
        z = f.output(y, "z")
    assert f.outputs == (y, z)
    assert len({x, y, z}) == 3
    assert [t.definition.op for t in (y, z) if t.definition] == ["copy", "copy"]


@pytest.mark.parametrize(("args", "expected"), [
    ((5,), np.arange(5)),
    ((4, 3), np.arange(3, 7)),
    ((4, 3, -2), np.array([3, 1, -1, -3])),
    ((3, 0.5), np.array([0.5, 1.5, 2.5], np.float32)),
    ((3, 0, 1, ln.float16), np.arange(3, dtype=np.float16)),
    ((3, 1, 2, ln.int32), np.array([1, 3, 5], np.int32)),
    ((0,), np.arange(0)),
], ids=str)  # fmt: skip
def test_iota(args: tuple[Any, ...], expected: np.ndarray) -> None:
    with ln.Fusion() as f:
        f.output(ln.iota(*args), "y")
    actual = ln.evaluate(f)
    assert actual.dtype == expected.dtype
    assert_equal(actual, expected)


def test_iota_of_a_symbol_and_of_scalars() -> None:
    with ln.Fusion() as f:
        start = f.scalar("start", ln.int32)
        x = f.input("x", ("N",), ln.float32)
        y = ln.iota("N", start, dtype=ln.int32)
        f.output(y, "y")
        f.output(x + ln.iota(*x.shape), "z")
        f.output(ln.iota("M"), "w")
    y0, z0, w0 = ln.evaluate(f, np.ones(3, np.float32), start=7, M=2)
    assert_equal(y0, np.array([7, 8, 9], np.int32))
    assert_equal(z0, np.array([1, 2, 3], np.float32))
    assert_equal(w0, np.array([0, 1]))


def test_iota_adds_no_zero_and_multiplies_by_no_one() -> None:
    with ln.Fusion() as f:
        for name, args in (("y", ()), ("z", (3,)), ("w", (0, 2)), ("v", (0.0, 1.0))):
            f.output(ln.iota("N", *args), name)
    values = [f[name].definition.values for name in "yzwv"]
    assert [[str(value) for value in parts] for parts in values] == [
        ["int64(#0)"],
        ["3 + int64(#0)"],
        ["int64(#0) * 2"],
        ["float32(#0)"],
    ]


def test_full() -> None:
    with ln.Fusion() as f:
        a = f.scalar("a", ln.float32)
        f.output(ln.full((2, "N"), 1.5), "x")
        f.output(ln.full((), 7, ln.float16), "y")
        f.output(ln.full(3, True), "z")
        f.output(ln.full("N", a * 2), "w")
        f.output(ln.full((2,), -1), "v")
    results = ln.evaluate(f, N=3, a=2.5)
    for actual, expected in zip(results, (
        np.full((2, 3), 1.5, np.float32), np.array(7, np.float16), np.full(3, True),
        np.full(3, 5.0, np.float32), np.full(2, -1, np.int32),
    ), strict=True):  # fmt: skip
        assert actual.dtype == expected.dtype
        assert_equal(actual, expected)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((6, 1, 2, 3), (5, 3, 4)),
        ((6, 5, 2, 3), (6, 5, 3, 4)),
        ((1, 3), (3, 1)),
        ((2, 1), (1, 4)),
        ((2, 0), (0, 4)),
    ],
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=left), rng.normal(size=right)
    np.testing.assert_allclose(run(ln.matmul, a, b), a @ b, rtol=1e-12)
    np.testing.assert_allclose(run(lambda s, t: s @ t, a, b), a @ b, rtol=1e-12)


def test_matmul_is_broadcasts_a_product_and_a_sum() -> None:
    with ln.Fusion() as f:
        a = f.input("a", ("M", "K"), ln.float16)
        b = f.input("b", ("K", "N"), ln.float16)
        c = ln.matmul(a, b)
    left, right, product, total = f.tensors[2:]
    assert total is c
    assert c.producers == (product,)
    assert product.producers == (left, right)
    assert left.producers == (a,)
    assert right.producers == (b,)
    assert [str(axis.size) for axis in product.root_domain] == ["M", "N", "K"]
    assert [str(axis.size) for axis in c.root_domain] == ["M", "N", "K"]
    assert [axis.is_reduction for axis in c.root_domain] == [False, False, True]
    assert [axis.is_broadcast for axis in left.root_domain] == [False, True, False]
    assert [axis.is_broadcast for axis in right.root_domain] == [True, False, False]
    assert right.definition is not None
    assert [r.equal_axes(right.root_domain) for r in right.definition.reads] == [(2, 1)]
    assert (product.dtype, c.dtype) == (ln.float32, ln.float16)


def test_matmul_of_a_tensor_with_itself() -> None:
    x = np.random.default_rng(0).normal(size=(3, 3))
    np.testing.assert_allclose(run(lambda t: t @ t, x), x @ x, rtol=1e-12)


@pytest.mark.parametrize(("left", "right", "expected"), [
    (ln.float16, ln.float16, "float16"),
    (ln.float16, ln.bfloat16, "float32"),
    (ln.int32, ln.int32, "int64"),
    (ln.int64, ln.float32, "float32"),
    (ln.bool, ln.bool, "int64"),
], ids=str)  # fmt: skip
def test_type_of_matmul(left: Any, right: Any, expected: str) -> None:
    a, b = np.ones((2, 300)).astype(left.numpy), np.ones((300, 2)).astype(right.numpy)
    c = run(ln.matmul, a, b)
    assert c.dtype.name == expected
    assert_equal(c, np.full((2, 2), 300).astype(c.dtype))


def test_matmul_of_16_bit_rounds_once() -> None:
    a, b = np.full((1, 2), 300.0, np.float16), np.array([[300.0], [-300.0]], np.float16)
    assert_equal(run(ln.matmul, a, b), np.zeros((1, 1), np.float16))  # 90000 is beyond float16
