"""The binding of launch arguments: sizes, scalars, and the sentence of every refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import loopnest as ln
from loopnest.scalar import dtypes
from loopnest.scalar.arguments import ArraySpec, Bound, bind, size_value
from loopnest.scalar.expr import Op, ScalarParam, Symbol, integer

N, D, M = Symbol("N"), Symbol("D"), Symbol("M")
X = ArraySpec("x", ln.float32, (N, D))
W = ArraySpec("w", ln.float32, (D, integer(4)))
ALPHA = ScalarParam("alpha", ln.float32)
COUNT = ScalarParam("count", ln.int32)
FLAG = ScalarParam("flag", ln.bool)


def condition(text: str) -> tuple[str, Any]:
    with ln.Fusion() as f:
        f.input("x", ("N", "D", "M"), ln.float32)
    f.assume(text)
    return f.facts.conditions[0]


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def call(
    *arrays: object,
    inputs: tuple[ArraySpec, ...] = (X, W),
    scalars: tuple[ScalarParam, ...] = (),
    symbols: tuple[Symbol, ...] = (N, D),
    assume: tuple[str, ...] = (),
    **keywords: object,
) -> Bound:
    conditions = [condition(text) for text in assume]
    return bind(inputs, scalars, symbols, conditions, arrays, keywords, "k(...)")


def test_sizes_come_from_shapes() -> None:
    assert call(zeros(2, 3), zeros(3, 4)) == Bound({"N": 2, "D": 3}, {})
    assert call(zeros(0, 1), zeros(1, 4), assume=("N < D",)).sizes == {"N": 0, "D": 1}


def test_sizes_without_an_input_come_from_keywords() -> None:
    assert call(zeros(2, 3), inputs=(X,), symbols=(N, D, M), M=np.int64(7)).sizes["M"] == 7
    assert call(zeros(2, 3), inputs=(X,), N=2).sizes == {"N": 2, "D": 3}
    assert call(inputs=(), N=0, D=1).sizes == {"N": 0, "D": 1}


def test_extent_that_is_an_expression_is_checked() -> None:
    spec = ArraySpec("y", ln.float32, (Op("ceildiv", (N, integer(4)), dtypes.index),))
    assert call(zeros(5, 1), zeros(2), inputs=(X, spec)).sizes["N"] == 5
    with pytest.raises(ln.LaunchError) as caught:
        call(zeros(5, 1), zeros(3), inputs=(X, spec))
    assert str(caught.value) == (
        "k(...): axis 0 of y has extent 3, not 2; pass float32[ceildiv(N, 4)]"
    )


def test_scalars_are_rounded_to_their_types() -> None:
    half = ScalarParam("half", ln.float16)
    wide = ScalarParam("wide", ln.float64)
    bound = call(
        inputs=(), symbols=(), scalars=(ALPHA, COUNT, FLAG, half, wide),
        alpha=0.1, count=np.int64(3), flag=True, half=1e6, wide=np.float32(0.5),
    )  # fmt: skip
    assert bound.scalars == {
        "alpha": float(np.float32(0.1)), "count": 3, "flag": True, "half": np.inf, "wide": 0.5,
    }  # fmt: skip
    assert [type(v) for v in bound.scalars.values()] == [float, int, bool, float, float]


@pytest.mark.parametrize(("value", "expected"), [
    (1, 1.0), (np.float64(2.5), 2.5), (np.array(3.0), 3.0), (np.int32(4), 4.0),
    (float("inf"), float("inf")), (10**400, float("inf")), (-(10**400), -float("inf")),
    (np.float16(0.5), 0.5),
])  # fmt: skip
def test_what_a_float_scalar_takes(value: object, expected: float) -> None:
    bound = call(inputs=(), symbols=(), scalars=(ALPHA,), alpha=value)
    assert bound.scalars == {"alpha": expected}


SOURCE = "pass 2: x: float32[N, D], w: float32[D, 4]"


@pytest.mark.parametrize(("arrays", "message"), [
    ((), f"0 arrays were given; {SOURCE}"),
    ((zeros(2, 3),), f"1 array was given; {SOURCE}"),
    (([1.0], zeros(3, 4)), "x is of type list; pass an array, float32[N, D]"),
    ((None, zeros(3, 4)), "x is of type NoneType; pass an array, float32[N, D]"),
    ((zeros(2), zeros(3, 4)), "x has shape (2,); pass float32[N, D]"),
    ((zeros(2, 3), zeros(3, 4, 1)), "w has shape (3, 4, 1); pass float32[D, 4]"),
    ((zeros(2, 3).astype(int), zeros(3, 4)), "x has dtype int64; pass float32[N, D]"),
    ((zeros(2, 3).astype(">f4"), zeros(3, 4)),
     "x has dtype float32 in foreign byte order; pass float32[N, D]"),
    ((zeros(2, 3).astype("S1"), zeros(3, 4)), "x has dtype bytes8; pass float32[N, D]"),
    ((zeros(2, 3), zeros(5, 4)),
     "D is 3 by axis 1 of x but 5 by axis 0 of w; a size symbol has one value in a launch"),
    ((zeros(2, 3), zeros(3, 5)), "axis 1 of w has extent 5, not 4; pass float32[D, 4]"),
])  # fmt: skip
def test_bad_array(arrays: tuple[object, ...], message: str) -> None:
    with pytest.raises(ln.LaunchError) as caught:
        call(*arrays)
    assert str(caught.value) == f"k(...): {message}"


def test_arrays_for_a_kernel_without_inputs() -> None:
    with pytest.raises(ln.LaunchError) as caught:
        call(zeros(1), inputs=(), symbols=())
    assert str(caught.value) == "k(...): 1 array was given; pass none"


@pytest.mark.parametrize(("keywords", "message"), [
    ({}, "the size M is the extent of no input; pass M=..."),
    ({"M": -1}, "M = -1 is no size; sizes are ints >= 0"),
    ({"M": 2.0}, "M = 2.0 is no size; sizes are ints >= 0"),
    ({"M": True}, "M = True is no size; sizes are ints >= 0"),
    ({"M": np.zeros(3)}, "M = array([0., 0., 0.]) is no size; sizes are ints >= 0"),
    ({"M": 3, "N": 5},
     "N is 2 by axis 0 of x but 5 by keyword; a size symbol has one value in a launch"),
    ({"M": 3, "beta": 1}, "it has no scalar 'beta'; it takes no scalar"),
])  # fmt: skip
def test_bad_size(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(ln.LaunchError) as caught:
        call(zeros(2, 3), inputs=(X,), symbols=(N, D, M), **keywords)
    assert str(caught.value) == f"k(...): {message}"


@pytest.mark.parametrize(("keywords", "message"), [
    ({}, "the scalar alpha is missing; pass alpha=..., a number of type float32"),
    ({"alpha": 1.0}, "the scalar count is missing; pass count=..., a number of type int32"),
    ({"beta": 1.0}, "it has no scalar 'beta'; the scalars are alpha, count, flag"),
    ({"alpha": "a"}, "alpha = 'a' is no float32; pass a Python or NumPy number"),
    ({"alpha": None}, "alpha = None is no float32; pass a Python or NumPy number"),
    ({"alpha": True}, "alpha = True is no float32; pass a Python or NumPy number"),
    ({"alpha": np.ones(2)}, "alpha = array([1., 1.]) is no float32; "
                            "pass a Python or NumPy number"),
    ({"alpha": np.ones((99, 9))}, "alpha = <ndarray> is no float32; pass a Python or NumPy number"),
    ({"alpha": 1j}, "alpha = 1j is no float32; pass a Python or NumPy number"),
    ({"alpha": 1, "count": 1.0}, "count = 1.0 is no int32; pass a Python or NumPy int"),
    ({"alpha": 1, "count": 2**31}, "count = 2147483648 does not fit int32"),
    ({"alpha": 1, "count": 1, "flag": 1}, "flag = 1 is no bool; pass a Python or NumPy bool"),
])  # fmt: skip
def test_bad_scalar(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(ln.LaunchError) as caught:
        call(inputs=(), symbols=(), scalars=(ALPHA, COUNT, FLAG), **keywords)
    assert str(caught.value) == f"k(...): {message}"


@pytest.mark.parametrize(
    ("assume", "found"),
    [
        ("N % 4 == 0", "for N = 2"),
        ("N * D >= 7", "for N = 2, D = 3"),
        ("N - D + 1 > 0", "for N = 2, D = 3"),
        ("D // N != 1", "for D = 3, N = 2"),
        ("N % M == 0", "for N = 2, M = 0"),
        ("min(1, 2) == 2", ""),
    ],
)
def test_broken_assumption(assume: str, found: str) -> None:
    with pytest.raises(ln.LaunchError) as caught:
        call(zeros(2, 3), inputs=(X,), symbols=(N, D, M), assume=(assume,), M=0)
    assert str(caught.value) == (
        f"k(...): the assumption '{assume}' does not hold{' ' if found else ''}{found}; "
        "pass sizes for which it does, or define the kernel without it"
    )


def test_value_of_a_size_is_unbounded() -> None:
    product = Op("mul", (N, D), dtypes.index)
    assert size_value(product, {"N": 2**40, "D": 2**40}) == 2**80
    smaller = Op("min", (product, Op("neg", (N,), dtypes.index)), dtypes.index)
    assert size_value(smaller, {"N": 3, "D": 2}) == -3
