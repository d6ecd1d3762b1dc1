"""Types and shapes of pointwise results: promotion, weak numbers, scalars, broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

import loopnest as ln
from helpers.math_run import TYPES, assert_equal, run
from loopnest.tensor.fusion import ScalarOperand

INTEGRAL = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def meet(names: list[str]) -> str:
    """Return the type in which types (or weak "python ..." numbers) meet: the model under test."""
    typed = {name for name in names if not name.startswith("python")}
    floats = {name for name in typed if "float" in name}
    if floats in ({"float16", "bfloat16"}, {"float8_e4m3fn", "float8_e5m2"}):
        return "float32"
    if floats:
        return next(n for n in FLOATS if n in floats)
    if "python float" in names:
        return "float32"
    if typed - {"bool"}:
        return np.result_type(*typed).name
    if "python int" in names:
        return "int32"
    return "bool"


OPERANDS = [*[dtype.name for dtype in TYPES], "python bool", "python int", "python float"]
NUMBERS = {"python bool": True, "python int": 3, "python float": 0.5}
RULES = {
    "add": lambda met: "int32" if met == "bool" else met,
    "mod": lambda met: "int32" if met == "bool" else met,
    "floordiv": lambda met: "int32" if met == "bool" else met,
    "lshift": lambda met: "int32" if met == "bool" else met,
    "maximum": lambda met: met,
    "div": lambda met: "float32" if met in INTEGRAL else met,
    "lt": lambda met: "bool",
    "logical_and": lambda met: "bool",
}


def operand(f: ln.Fusion, kind: str, name: str, scalar: bool) -> Any:
    if kind in NUMBERS:
        return NUMBERS[kind]
    dtype = next(d for d in TYPES if d.name == kind)
    return f.scalar(name, dtype) if scalar else f.input(name, ("N",), dtype)


@given(
    name=st.sampled_from(sorted(RULES)),
    kinds=st.tuples(st.sampled_from(OPERANDS), st.sampled_from(OPERANDS)),
    scalar=st.tuples(st.booleans(), st.booleans()),
)
def test_result_type(name: str, kinds: tuple[str, str], scalar: tuple[bool, bool]) -> None:
    if all(kind in NUMBERS for kind in kinds):
        return
    with ln.Fusion() as f:
        operands = [
            operand(f, kind, f"x{n}", s)
            for n, (kind, s) in enumerate(zip(kinds, scalar, strict=True))
        ]
        if name in ("floordiv", "lshift") and "float" in meet(list(kinds)):
            with pytest.raises(ln.DefinitionError):
                getattr(ln, name)(*operands)
            return
        result = getattr(ln, name)(*operands)
    assert result.dtype.name == RULES[name](meet(list(kinds)))
    tensors = [o for o in operands if isinstance(o, ln.TensorView)]
    assert isinstance(result, ln.TensorView if tensors else ScalarOperand)
    assert f.tensors == (*tensors, result) if tensors else f.tensors == ()


@given(kinds=st.tuples(st.sampled_from(OPERANDS), st.sampled_from(OPERANDS)))
def test_result_type_of_where(kinds: tuple[str, str]) -> None:
    with ln.Fusion() as f:
        cond = f.input("cond", ("N",), ln.bool)
        result = ln.where(cond, *[operand(f, k, f"x{n}", False) for n, k in enumerate(kinds)])
    assert result.dtype.name == meet(list(kinds))


@given(
    shapes=mutually_broadcastable_shapes(num_shapes=3, max_dims=4, min_side=0, max_side=3),
    seed=st.integers(0, 99),
)
def test_broadcasting_is_numpys(shapes: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(-9, 9, size=shape) for shape in shapes.input_shapes]
    actual = run(ln.fma, *arrays)
    assert_equal(actual, arrays[0] * arrays[1] + arrays[2])
    with ln.Fusion() as f:
        inputs = [f.input(f"x{n}", s, ln.int64) for n, s in enumerate(shapes.input_shapes)]
        result = ln.fma(*inputs)
    rank = len(shapes.result_shape)
    extended = sum(len(shape) < rank for shape in shapes.input_shapes)
    assert len(f.tensors) == 3 + extended + 1
    assert result.shape == shapes.result_shape
    for producer, given_input in zip(result.producers, inputs, strict=True):
        if producer is not given_input:
            assert producer.definition is not None
            assert producer.definition.op == "broadcast"
            assert producer.producers == (given_input,)


def test_operand_of_lower_rank_is_extended_once() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N", "D"), ln.float32)
        b = f.input("b", ("D",), ln.float32)
        y = ln.fma(x, b, b)
    assert [t.name for t in f.tensors] == ["x", "b", "T2", "T3"]
    assert f["T2"].shape[0] == 1
    assert f["T2"].axis(0).is_broadcast
    assert y.producers == (x, f["T2"])


def test_broadcast_axis_against_iteration_axis_maps_directly() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N", "D"), ln.float32)
        m = f.input("m", ("N", 1), ln.float32)
        y = x - m
    assert f.tensors == (x, m, y)
    assert [axis.kind for axis in y.root_domain] == [ln.IterKind.ITERATION] * 2
    assert [axis.kind for axis in m.root_domain] == [ln.IterKind.ITERATION, ln.IterKind.BROADCAST]
    assert y.definition is not None
    assert [r.equal_axes(y.root_domain) for r in y.definition.reads] == [(0, 1), (0, 1)]


def test_tensor_of_rank_0() -> None:
    assert_equal(run(lambda x: x * 2 + 1, np.array(3.0)), np.array(7.0))
    assert_equal(run(ln.add, np.array(3.0), np.arange(3.0)), np.arange(3.0) + 3)


def test_scalar_expressions_make_no_tensor() -> None:
    with ln.Fusion() as f:
        a = f.scalar("a", ln.float32)
        n = f.scalar("n", ln.int32)
        b = ln.exp(-a) * 2 + n / 2
        c = ln.where(n > 3, a, 0.0)
        assert f.tensors == ()
        x = f.input("x", ("N",), ln.float32)
        y = b * x + c
        f.output(y, "y")
    assert (str(b), b.dtype) == ("exp(-a) * 2.0 + float32(n) / 2.0", ln.float32)
    assert len(f.tensors) == 3
    x0 = np.arange(4, dtype=np.float32)
    for number in (3, 4):
        expected = (2 * np.exp(-0.5) + number / 2) * x0 + (0.5 if number > 3 else 0)
        assert_equal(ln.evaluate(f, x0, a=0.5, n=number), expected.astype(np.float32), 1e-6)


def test_scalar_operators() -> None:
    with ln.Fusion() as f:
        a, n = f.scalar("a", ln.float32), f.scalar("n", ln.int32)
        x = f.input("x", (1,), ln.float32)
        results = [
            *(a + 1, 1 + a, a - 1, 1 - a, a * 3, 3 * a, a / 4, 4 / a, a % 2, 2 % a),
            *(a**3, 3**a, -a, abs(-a), a < 2, a <= 2, a > 2, a >= 2),
            2 < a,  # noqa: SIM300 - the reflected operator
            *(n & 6, 6 & n, n | 9, 9 | n, ~n, ln.cast(a, ln.int32), ln.gelu(a)),
        ]
        f.output(x + 0, "same")
        for result in results:
            f.output(ln.full((1,), result))
    v, k = 1.5, 5
    expected = [
        *(v + 1, 1 + v, v - 1, 1 - v, v * 3, 3 * v, v / 4, 4 / v, v % 2, 2 % v),
        *(v**3, 3**v, -v, v, v < 2, v <= 2, v > 2, v >= 2, v > 2),
        *(k & 6, 6 & k, k | 9, 9 | k, ~k, 1, 1.3997892),
    ]
    actual = ln.evaluate(f, np.zeros(1, np.float32), a=v, n=k)[1:]
    np.testing.assert_allclose([float(r[0]) for r in actual], expected, rtol=1e-6)
    assert [r.dtype for r in actual] == [r.dtype.numpy for r in results]


def test_16_bit_scalar_is_rounded_at_each_operation() -> None:
    with ln.Fusion() as f:
        a = f.scalar("a", ln.float16)
        b = a * 3.0
        f.output(ln.full((), b - a), "y")
    assert b.dtype is ln.float16
    assert str(b) == "float16(float32(a) * 3.0)"
    value = np.float16(0.1)
    rounded = np.float16(np.float32(value) * np.float32(3))
    assert ln.evaluate(f, a=0.1) == np.float16(np.float32(rounded) - np.float32(value))


def test_numpy_number_that_is_a_python_number() -> None:
    assert_equal(run(lambda x: x * np.float64(2), np.ones(2, np.float32)), [2.0, 2.0])


def test_number_beyond_float32_is_infinite() -> None:
    assert_equal(run(lambda x: ln.minimum(x, 1e39), np.array([np.inf], np.float32)), [np.inf])


def test_math_after_an_operation_failed_is_unchanged() -> None:
    with ln.Fusion() as f:
        x = f.input("x", ("N", "D"), ln.float32)
        b = f.input("b", ("M",), ln.float32)
        c = f.input("c", ("D",), ln.float32)
        with pytest.raises(ln.DefinitionError):
            ln.fma(x, c, b)
        with pytest.raises(ln.DefinitionError):
            ln.matmul(x, x)
        assert f.tensors == (x, b, c)
        assert x.consumers == ()
