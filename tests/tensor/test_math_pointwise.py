"""Every pointwise function against NumPy, on special values and in every type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.math_run import (
    FLOATS,
    INTEGERS,
    SPECIAL,
    TYPES,
    assert_equal,
    define,
    of_type,
    run,
    wide,
)
from loopnest.scalar.dtypes import FLOAT
from loopnest.scalar.op_table import FUNCTIONS

erf = np.vectorize(math.erf, otypes=[np.float64])

# What float functions are, in float64.
FLOAT_UNARY: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": erf,
    "silu": lambda x: x * (1 / (1 + np.exp(-x))),
    "gelu": lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2))),
}
KEEPING_UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "relu": lambda x: np.maximum(x, np.zeros((), x.dtype)),
}
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "mod": np.mod,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
TOLERANCE = {
    "float8_e4m3fn": 0.125, "float8_e5m2": 0.25, "float16": 1e-3, "bfloat16": 8e-3,
    "float32": 1e-6, "float64": 1e-13,
}  # fmt: skip


def test_every_function_of_floats_is_tested() -> None:
    functions = {info.name for info in FUNCTIONS.values() if info.rule is FLOAT and info.arity == 1}
    assert set(FLOAT_UNARY) == functions


def pairs(values: list[Any]) -> tuple[list[Any], list[Any]]:
    return [a for a in values for _ in values], [b for _ in values for b in values]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", [*FLOAT_UNARY, *KEEPING_UNARY, "neg"])
def test_unary_function_of_special_floats_is_numpys(name: str, dtype: Any) -> None:
    x = of_type(SPECIAL, dtype)
    reference = {**FLOAT_UNARY, **KEEPING_UNARY, "neg": np.negative}[name]
    with np.errstate(all="ignore"):
        expected = of_type(reference(wide(x)), dtype)
    actual = run(getattr(ln, name), x)
    assert actual.dtype == dtype.numpy
    assert_equal(actual, expected, TOLERANCE[dtype.name])


@pytest.mark.parametrize("dtype", [ln.bool, ln.int32, ln.int64], ids=str)
@pytest.mark.parametrize("name", FLOAT_UNARY)
def test_float_function_of_integers_gives_float32(name: str, dtype: Any) -> None:
    x = of_type([0, 1, 2, 3, 7, 20], dtype)
    with np.errstate(all="ignore"):
        expected = FLOAT_UNARY[name](x.astype(np.float64)).astype(np.float32)
    actual = run(getattr(ln, name), x)
    assert actual.dtype == np.float32
    assert_equal(actual, expected, 1e-6)


@pytest.mark.parametrize("dtype", [ln.int32, ln.int64], ids=str)
@pytest.mark.parametrize("name", [*KEEPING_UNARY, "neg", "invert"])
def test_unary_function_keeps_integers(name: str, dtype: Any) -> None:
    x = np.array(INTEGERS).astype(dtype.numpy)
    reference = {
        "neg": np.negative,
        "invert": np.invert,
        "abs": np.abs,
        "relu": lambda x: np.maximum(x, 0),
    }.get(name, lambda x: x)
    actual = run(getattr(ln, name), x)
    assert actual.dtype == dtype.numpy
    assert_equal(actual, reference(x))


@pytest.mark.parametrize("name", KEEPING_UNARY)
def test_unary_function_keeps_bool(name: str) -> None:
    x = np.array([True, False])
    actual = run(getattr(ln, name), x)
    assert actual.dtype == np.bool_
    assert_equal(actual, x)


def test_gelu_by_tanh() -> None:
    x = np.linspace(-6, 6, 101)
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    actual = run(lambda t: ln.gelu(t, approximate="tanh"), x)
    assert_equal(actual, 0.5 * x * (1 + np.tanh(inner)), 1e-12)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", [*ARITHMETIC, "div", "pow"])
def test_binary_function_of_special_floats_is_numpys(name: str, dtype: Any) -> None:
    left, right = pairs(SPECIAL)
    a, b = of_type(left, dtype), of_type(right, dtype)
    reference = {**ARITHMETIC, "div": np.divide, "pow": np.power}[name]
    with np.errstate(all="ignore"):
        expected = of_type(reference(wide(a), wide(b)), dtype)
    actual = run(getattr(ln, name), a, b)
    assert actual.dtype == dtype.numpy
    assert_equal(actual, expected, TOLERANCE[dtype.name])


@pytest.mark.parametrize("dtype", [ln.int32, ln.int64], ids=str)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_binary_function_of_integers_wraps_as_numpy(name: str, dtype: Any) -> None:
    left, right = pairs(INTEGERS)
    a, b = np.array(left).astype(dtype.numpy), np.array(right).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        expected = ARITHMETIC[name](a, b)
    actual = run(getattr(ln, name), a, b)
    assert actual.dtype == dtype.numpy
    assert_equal(actual, expected)


@pytest.mark.parametrize("divisor", [3, -3, 1, -1, 0])
def test_integer_remainder_by_a_number(divisor: int) -> None:
    x = np.array(INTEGERS, np.int32)
    with np.errstate(all="ignore"):
        expected = np.mod(x, np.int32(divisor))
    assert_equal(run(lambda t: t % divisor, x), expected)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 10, 31])
def test_integer_power_by_a_number_wraps(exponent: int) -> None:
    x = np.array(INTEGERS, np.int32)
    expected = np.ones_like(x)
    with np.errstate(all="ignore"):
        for _ in range(exponent):
            expected = expected * x
    assert_equal(run(lambda t: t**exponent, x), expected)


def test_integer_power_of_tensors() -> None:
    base = np.array([0, 1, -1, 2, -2, 3, 10, -1, -1, 1, 2, 0, 7], np.int32)
    power = np.array([0, 5, 3, 31, 31, 20, 3, -1, -2, -3, -1, -1, 1], np.int32)
    expected = [1, 1, -1, -(2**31), -(2**31), 3486784401 - 2**32, 1000, -1, 1, 1, 0, 0, 7]
    assert_equal(run(ln.pow, base, power), np.array(expected, np.int32))


def test_float_square_is_a_product() -> None:
    x = of_type(SPECIAL, ln.float64)
    with np.errstate(all="ignore"):
        assert_equal(run(lambda t: t**2, x), x * x)
        assert_equal(run(lambda t: t**3.0, x), x**3, 1e-14)
        assert_equal(run(lambda t: 2**t, x), 2**x, 1e-14)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison_is_numpys(name: str, dtype: Any) -> None:
    left, right = pairs(SPECIAL if dtype.is_float else [0, 1, -1, 7, -(2**31)])
    a, b = of_type(left, dtype), of_type(right, dtype)
    actual = run(getattr(ln, name), a, b)
    assert actual.dtype == np.bool_
    assert_equal(actual, COMPARISONS[name](wide(a), wide(b)))


def test_comparison_with_a_number_rounds_it_to_the_type_of_the_tensor() -> None:
    x = np.array([0.1, 0.2], np.float32)
    assert_equal(run(lambda t: t >= 0.1, x), [True, True])
    assert_equal(run(lambda t: t > 0.1, x), [False, True])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", ["logical_and", "logical_or"])
def test_logical_function_tests_against_zero(name: str, dtype: Any) -> None:
    left, right = pairs(SPECIAL if dtype.is_float else [0, 1, -1, 7])
    a, b = of_type(left, dtype), of_type(right, dtype)
    expected = getattr(np, name)(wide(a), wide(b))
    actual = run(getattr(ln, name), a, b)
    assert actual.dtype == np.bool_
    assert_equal(actual, expected)
    assert_equal(run(ln.logical_not, a), np.logical_not(wide(a)))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_isnan(dtype: Any) -> None:
    x = of_type(SPECIAL if dtype.is_float else [0, 1, 7], dtype)
    actual = run(ln.isnan, x)
    assert actual.dtype == np.bool_
    assert_equal(actual, np.isnan(wide(x).astype(np.float64)))


@pytest.mark.parametrize("dtype", [ln.bool, ln.int32, ln.int64], ids=str)
def test_bits_are_bitwise_on_integers_and_logical_on_bool(dtype: Any) -> None:
    left, right = pairs([0, 1, -1, 12, 2**31 - 1])
    a, b = of_type(left, dtype), of_type(right, dtype)
    for actual, expected in (
        (run(lambda s, t: s & t, a, b), a & b),
        (run(lambda s, t: s | t, a, b), a | b),
        (run(lambda s: ~s, a), ~a),
    ):
        assert actual.dtype == dtype.numpy
        assert_equal(actual, expected)


def test_maximum_of_bools_is_bool() -> None:
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert_equal(run(ln.maximum, a, b), a | b)
    assert_equal(run(ln.minimum, a, b), a & b)
    assert run(ln.maximum, a, b).dtype == np.bool_


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_where(dtype: Any) -> None:
    values = SPECIAL if dtype.is_float else [0, 1, 7, -1]
    a = of_type(values, dtype)
    b = of_type(values[::-1], dtype)
    cond = np.arange(len(values)) % 3 == 0
    actual = run(ln.where, cond, a, b)
    assert actual.dtype == dtype.numpy
    assert_equal(actual, np.where(cond, a, b))
    truth = of_type([0, 2, float("nan") if dtype.is_float else 1, 0], dtype)
    assert_equal(run(lambda c: ln.where(c, 1.5, 0), truth), np.array([0, 1.5, 1.5, 0], np.float32))


def test_where_of_numbers_only() -> None:
    cond = np.array([True, False])
    for a, b, dtype in ((1, 2, np.int32), (True, False, np.bool_), (1, 0.5, np.float32)):
        actual = run(lambda c, a=a, b=b: ln.where(c, a, b), cond)
        assert actual.dtype == dtype
        assert_equal(actual, np.array([a, b], dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_clamp(dtype: Any) -> None:
    x = of_type(SPECIAL, dtype)
    expected = np.minimum(np.maximum(wide(x), -1.0), 2.0).astype(dtype.numpy)
    assert_equal(run(lambda t: ln.clamp(t, -1, 2), x), expected)


def test_clamp_of_integers_and_between_tensors() -> None:
    x = np.array(INTEGERS, np.int32)
    assert_equal(run(lambda t: ln.clamp(t, lo=-3, hi=5), x), np.clip(x, -3, 5))
    assert run(lambda t: ln.clamp(t, 0.5, 5), x).dtype == np.float32
    low, high = np.full(12, -1, np.int32), np.arange(12, dtype=np.int32)
    assert_equal(run(ln.clamp, x, low, high), np.minimum(np.maximum(x, low), high))
    truth = np.array([True, False])
    assert_equal(run(lambda t: ln.clamp(t, False, True), truth), truth)


def test_fma() -> None:
    left, right = pairs(SPECIAL)
    a, b = of_type(left, ln.float64), of_type(right, ln.float64)
    with np.errstate(all="ignore"):
        assert_equal(run(ln.fma, a, b, b[::-1].copy()), a * b + b[::-1])
    x = np.array(INTEGERS, np.int32)
    with np.errstate(all="ignore"):
        assert_equal(run(ln.fma, x, x, x), x * x + x)


@pytest.mark.parametrize("source", TYPES, ids=str)
@pytest.mark.parametrize("target", TYPES, ids=str)
def test_cast(source: Any, target: Any) -> None:
    values = [0, 1, 2, 100] if not source.is_float else [0.0, 1.0, -1.5, 2.75, 100.0, -0.5]
    x = of_type(values, source)
    actual = run(lambda t: ln.cast(t, target), x)
    assert actual.dtype == target.numpy
    if target.is_bool:
        expected = wide(x) != 0
    else:
        expected = wide(x).astype(target.numpy)
    assert_equal(actual, expected)


def test_cast_rounds_once() -> None:
    near = 1 + 2.0**-11 + 2.0**-40  # by way of float32 this would be a tie, and round down
    x = np.array([near, -near], np.float64)
    assert_equal(run(lambda t: ln.cast(t, ln.float16), x), x.astype(np.float16))
    near = 1 + 2.0**-8 + 2.0**-40
    x = np.array([near, 3.5e38, -1e39, 1e-45, 2.0**-133, 1.5 * 2.0**-133], np.float64)
    expected = np.array([1 + 2.0**-7, np.inf, -np.inf, 0.0, 2.0**-133, 2.0**-132])
    assert_equal(run(lambda t: ln.cast(t, ln.bfloat16), x), expected)


def test_cast_to_an_integer_truncates_and_wraps() -> None:
    x = np.array([1.9, -1.9, 0.0, -0.0], np.float32)
    assert_equal(run(lambda t: ln.cast(t, ln.int32), x), np.array([1, -1, 0, 0], np.int32))
    big = np.array([2**32 + 5, -(2**31) - 1], np.int64)
    assert_equal(run(lambda t: ln.cast(t, ln.int32), big), big.astype(np.int32))


def test_16_bit_tensor_is_rounded_at_its_definition_only() -> None:
    x = np.array([60000.0, 1e-4], np.float16)

    def within(t: ln.TensorView) -> ln.TensorView:
        return ln.fma(t, 2.0, -60000.0)  # 120000 is beyond float16, the result is not

    def between(t: ln.TensorView) -> ln.TensorView:
        return t * 2.0 - 60000.0

    assert_equal(run(within, x), (wide(x) * 2 - 60000).astype(np.float16))
    assert run(between, x)[0] == np.inf


def test_composite_function_is_one_tensor() -> None:
    x = np.zeros(3, np.float16)
    for function in (ln.gelu, ln.silu, ln.relu, ln.sigmoid, lambda t: ln.clamp(t, 0, 1)):
        assert len(define(function, x).tensors) == 2


def test_operators_are_the_functions() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=8), rng.normal(size=8)
    for operator, expected in (
        (lambda s, t: s + t, a + b),
        (lambda s, t: s - t, a - b),
        (lambda s, t: s * t, a * b),
        (lambda s, t: s / t, a / b),
        (lambda s, t: s % t, a % b),
        (lambda s, t: abs(s) ** t, np.abs(a) ** b),
        (lambda s, t: -s + abs(t), -a + np.abs(b)),
        (lambda s, t: s < t, a < b),
        (lambda s, t: s <= t, a <= b),
        (lambda s, t: s > t, a > b),
        (lambda s, t: s >= t, a >= b),
        (lambda s, t: (2 + s) + (s + 2), 4 + 2 * a),
        (lambda s, t: (2 - s) / (1 / t), (2 - a) / (1 / b)),
        (lambda s, t: (3 * s) % 1 + 7 % abs(t), (3 * a) % 1 + 7 % np.abs(b)),
        (lambda s, t: (s < t) & (s > 0) | ~(t < 0), (a < b) & (a > 0) | ~(b < 0)),
        (lambda s, t: 0 < s, a > 0),  # noqa: SIM300 - the reflected operator
    ):
        assert_equal(run(operator, a, b), expected, 1e-14)


def test_equality_stays_identity() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N",), ln.float32)
        y = x + 1
        assert x == x
        assert x != y
        assert len({x, y, x}) == 2


def test_definition_names_operation_and_operands() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N",), ln.float16)
        y = x * x + 2
    product, total = y.producers[0].definition, y.definition
    assert product is not None
    assert total is not None
    assert (product.op, total.op) == ("mul", "add")
    assert product.operands == (x, x)
    assert product.producers == (x,)
    assert str(product.values[0]) == "float32($0) * float32($0)"
    assert [str(o) for o in total.operands[1:]] == ["2.0"]
    assert product.values[0].dtype is ln.float32
    assert y.dtype is ln.float16
    assert x.consumers == (y.producers[0],)
    assert f.tensors == (x, *y.producers, y)
