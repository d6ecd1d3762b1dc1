"""Enclosures: every operation against float32 and float64 arithmetic, and under fast math."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import loopnest as ln
from helpers.enclosures import Array, around, between, operands, require
from loopnest.lane_machine.native_math import apply
from loopnest.numerics.float64_math import held
from loopnest.numerics.interval_rules import DISCRETE, RANGES, enclose
from loopnest.numerics.intervals import Interval, anything, exact
from loopnest.numerics.reduction_intervals import FOLDS
from loopnest.numerics.target_accuracy import (
    ACCURACY,
    FAST,
    FORMATS,
    ROUNDED,
    SELECTING,
    STANDARD,
    Arithmetic,
)
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Arg, Op, cast
from loopnest.scalar.op_table import OPS
from loopnest.tensor.ops import reducers
from loopnest.tensor.ops.reducers import Family

pytestmark = pytest.mark.usefixtures("no_warnings")


REFERENCE, FAST_MATH = Arithmetic(reference=True), Arithmetic(fast_math=True)
DISCRETE_ONLY = {
    *("or", "and", "not", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "ordinal32", "ordinal64"),
    *("bitor", "bitxor", "bitand", "bitnot", "shl", "shr", "philox", "floordiv", "ceildiv"),
}


# The tables


def test_every_operation_of_floats_has_a_range_and_an_accuracy() -> None:
    floats = set(OPS) - DISCRETE_ONLY - {"where", "cast"}
    assert set(RANGES) == floats
    classes = [set(ROUNDED), set(SELECTING) - {"where", "cast"}, set(ACCURACY)]
    assert set.union(*classes) == floats
    assert sum(map(len, classes)) == len(floats)
    assert set(FAST) >= set(ACCURACY)
    assert set(DISCRETE) < set(OPS)


def test_every_reducer_has_a_fold() -> None:
    names = {r.name for r in vars(reducers).values() if isinstance(r, Family)}
    assert set(FOLDS) == names - {"argmax", "argmin"}  # they do not round: `template_folds`


@pytest.mark.parametrize("dtype", [ln.float16, ln.bfloat16, ln.float32, ln.float64])
def test_formats(dtype: DType) -> None:
    import ml_dtypes

    found, want = FORMATS[dtype.name], ml_dtypes.finfo(dtype.numpy)
    assert found.unit == float(want.eps) / 2
    assert found.least == float(want.smallest_subnormal)
    assert found.normal == float(want.smallest_normal)
    assert found.largest == float(want.max)


# Operations, against arithmetic in the type itself


def op_of(name: str, dtype: DType, arity: int) -> Op:
    result = ln.bool if OPS[name].result == "bool" else dtype
    return Op(name, tuple([Arg(n, dtype) for n in range(arity)]), result)


def compute(node: Op, points: Sequence[Array]) -> Array:
    types = [arg.dtype for arg in node.args]
    return np.asarray(apply(node.op, list(points), types, node.dtype))


ARITY = {name: OPS[name].arity for name in [*RANGES, "eq", "ne", "lt", "le", "gt", "ge", "isnan"]}


@pytest.mark.parametrize("dtype", [ln.float32, ln.float64])
@pytest.mark.parametrize("name", ARITY)
def test_results_lie_in_the_enclosure(name: str, dtype: DType) -> None:
    node = op_of(name, dtype, ARITY[name])
    for seed in range(5):
        points = [operands(dtype, 10 * seed + n) for n in range(ARITY[name])]
        results = compute(node, points)
        known = {a: exact(held(p, dtype), True) for a, p in zip(node.args, points, strict=True)}
        inexact = {a: around(p, seed) for a, p in zip(node.args, points, strict=True)}
        mixed = {a: (known if n % 2 else inexact)[a] for n, a in enumerate(node.args)}
        swapped = {a: (inexact if n % 2 else known)[a] for n, a in enumerate(node.args)}
        for env in (known, inexact, mixed, swapped):
            for arithmetic in (
                STANDARD,
                Arithmetic(reference=True),
                Arithmetic(fast_math=True),
            ):
                found = enclose(node, env, arithmetic)
                require(found, results, points, name)
                require(found, found.value, points, name)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "sqrt", "exp", "tanh", "max", "neg"])
def test_enclosures_are_no_wider_than_rounding(name: str) -> None:
    """Of exact operands: a few ulps; and nothing where a result needs no rounding."""
    node = op_of(name, ln.float32, ARITY[name])
    rng = np.random.default_rng(0)
    points = [rng.uniform(0.5, 2, 1000).astype(np.float32) for _ in node.args]
    env = {a: exact(held(p, ln.float32)) for a, p in zip(node.args, points, strict=True)}
    found = enclose(node, env, STANDARD)
    ulp = np.spacing(np.abs(found.value).astype(np.float32)).astype(np.float64)
    most = {"exp": 9.1, "tanh": 9.1, "max": 0, "neg": 0}.get(name, 0.5)
    assert (found.bound <= most * ulp).all()


def one(op: str, *values: float | Interval, dtype: DType = ln.float32) -> Interval:
    """Return the enclosure of an operation on single values."""
    node = op_of(op, dtype, len(values))
    env = {
        arg: v if isinstance(v, Interval) else exact(np.asarray(v, np.float64))
        for arg, v in zip(node.args, values, strict=True)
    }
    return enclose(node, env, STANDARD)


def test_what_needs_no_rounding_has_no_error() -> None:
    for dtype in (ln.float32, ln.float64):
        assert one("add", 0.25, 3.0, dtype=dtype).exact
        assert one("mul", 0.75, -2.5, dtype=dtype).exact
        assert one("div", 3.0, 4.0, dtype=dtype).exact
    assert one("sqrt", 2.25).exact
    assert one("mod", -1.0, 3.0).exact
    assert not one("div", 1.0, 3.0).exact
    assert one("div", 1.0, 3.0, dtype=ln.float64).exact  # the oracle rounds it alike
    assert not one("mul", 0.1, 0.3, dtype=ln.float64).exact  # may be fused with a sum
    assert not one("fma", 0.1, 0.3, 1.0, dtype=ln.float64).exact


def test_overflow_gives_the_largest_number_or_infinity() -> None:
    found = one("exp", 100.0)
    assert (float(found.high), found.wild) == (np.inf, True)
    assert found.low > 3.4e38
    share = one("div", 1.0, one("add", 1.0, found))  # 1 / (1 + exp(100)) may be 0, or 4e-44
    assert share.low == 0
    assert 0 < share.high < 1e-43
    assert anything(one("sub", found, found))


def test_underflow_to_zero_makes_a_quotient_unknown() -> None:
    small = one("mul", 1e-30, 1e-30)
    assert 0 <= small.low < small.high < 2e-45 * 2
    assert anything(one("mul", one("div", 1.0, small), 0.0))  # inf * 0
    assert anything(one("div", 0.0, small))


def test_a_zero_of_either_sign_is_no_divisor() -> None:
    assert float(one("div", 1.0, 0.0).value) == np.inf
    assert not anything(one("div", 1.0, 0.0))
    for zero in (one("max", 0.0, -0.0), one("round", between(-0.3, 0.2))):
        assert zero.unsigned
        assert (zero.low, zero.high) == (0, 0)
        assert anything(one("div", 1.0, zero))


def test_nan_is_sure_only_where_operands_are() -> None:
    nan = one("mul", 0.0, np.inf)
    assert np.isnan(nan.low)
    assert not nan.contains(np.array(1.0))
    assert nan.contains(np.array(np.nan))
    assert np.isnan(one("add", np.nan, between(1.0, 2.0)).low)
    unknown = one("sqrt", between(-1e-9, 1e-9))
    assert anything(unknown)
    for value in (np.nan, 0.0, -5.0):
        assert unknown.contains(np.array(value))
    assert not one("sqrt", between(1.0, 1.1)).contains(np.array(np.nan))


def test_steps_give_both_sides() -> None:
    found = one("floor", between(2.9999, 3.0001))
    assert (float(found.low), float(found.high)) == (2, 3)
    assert one("floor", between(3.01, 3.02)).bound == 0
    found = one("mod", between(-1e-8, 1e-8), 3.0)
    assert (float(found.low), float(found.high)) == (0, 3)


def test_comparisons_that_may_go_either_way_choose_both() -> None:
    close = one("lt", between(0.9, 1.1), 1.0)
    assert (bool(close.low), bool(close.high)) == (False, True)
    assert one("lt", between(0.9, 0.99), 1.0).bound == 0
    arg = [Arg(0, ln.bool), Arg(1, ln.float32), Arg(2, ln.float32)]
    env = {arg[0]: close, arg[1]: exact(np.asarray(5.0)), arg[2]: exact(np.asarray(-1.0))}
    found = enclose(Op("where", tuple(arg), ln.float32), env, STANDARD)
    assert (float(found.low), float(found.high)) == (-1, 5)


def casted(x: Interval, source: DType, target: DType) -> Interval:
    return enclose(cast(Arg(0, source), target), {Arg(0, source): x}, STANDARD)


def test_casts() -> None:
    near = casted(between(2.999, 3.001), ln.float32, ln.int32)
    assert (int(near.low), int(near.high)) == (2, 3)
    assert near.value.dtype == np.int32
    far = casted(exact(np.asarray(1e20)), ln.float32, ln.int32)  # targets differ
    assert (int(far.low), int(far.high)) == (-(2**31), 2**31 - 1)
    assert casted(exact(np.asarray(0.1)), ln.float32, ln.float64).exact
    half = casted(between(1.0, 1.0001), ln.float32, ln.float16)
    assert (float(half.low), float(half.high), half.bound) == (1, 1, 0)
    third = casted(exact(np.asarray(1 / 3)), ln.float64, ln.float32)
    assert third.exact
    truth = casted(between(-1e-9, 1e-9), ln.float32, ln.bool)
    assert (bool(truth.low), bool(truth.high)) == (False, True)
    assert casted(truth, ln.bool, ln.int64).high == 1


def test_integers_that_are_not_known() -> None:
    near = casted(between(2.999, 3.001), ln.float32, ln.int32)
    env = {Arg(0, ln.int32): near, Arg(1, ln.int32): exact(np.asarray(-7, np.int32))}
    args = tuple(env)
    for op, ends in {
        "add": (-5, -4), "sub": (9, 10), "mul": (-21, -14), "max": (2, 3), "min": (-7, -7),
        "bitand": (-(2**31), 2**31 - 1), "mod": (-(2**31), 2**31 - 1),
    }.items():  # fmt: skip
        found = enclose(Op(op, args, ln.int32), env, STANDARD)
        assert (int(found.low), int(found.high)) == ends, op
    env[args[1]] = exact(np.asarray(2**31 - 2, np.int32))  # may wrap
    found = enclose(Op("add", args, ln.int32), env, STANDARD)
    assert (int(found.low), int(found.high)) == (-(2**31), 2**31 - 1)


def test_a_leaf_without_an_enclosure() -> None:
    with pytest.raises(KeyError, match="no enclosure for <Arg"):
        enclose(Arg(0, ln.float32), {}, STANDARD)


# Fast math


def test_fast_math_widens() -> None:
    """By what CUDA lists: __expf, __fdividef, subnormal numbers flushed to 0."""

    def width(op: str, *values: float, arithmetic: Arithmetic = FAST_MATH) -> float:
        node = op_of(op, ln.float32, len(values))
        env = {
            a: exact(np.asarray(np.float32(v), np.float64))
            for a, v in zip(node.args, values, strict=True)
        }
        return float(enclose(node, env, arithmetic).bound)

    u = 2.0**-23
    assert width("exp", 20.0) > 23 * u * np.exp(20.0) > 2 * width("exp", 20.0, arithmetic=STANDARD)
    assert width("div", 1.0, 3.0) > 2 * u / 3 > width("div", 1.0, 3.0, arithmetic=STANDARD)
    assert width("tanh", 1.0) > 2.0**-11 * np.tanh(1.0)
    assert width("sin", 1.0) >= 2.0**-21.41
    assert width("sin", 10.0) > 0.4  # nothing is promised past pi
    assert width("div", 1e38, 2.0**127) > 0.5  # divisors past 2^126 give 0
    assert width("mul", 1e-20, 1e-20) >= 0.99e-40  # flushed
    assert width("pow", 3.0, 20.0) > 20 * 2.0**-22 * 3.0**20 * np.log(2)
    assert width("pow", -3.0, 2.0) == np.inf
    assert width("log", 1.001) >= 2.0**-21.41


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_what_may_be_infinite_may_have_any_sine(name: str) -> None:
    """The oracle's operand overflowed; a kernel's need not: its sine is a number, or NaN."""
    low, high = np.array([-np.inf, -np.inf, np.nan]), np.array([-690.0, -np.inf, np.nan])
    x = Interval(low, low.copy(), high, True)
    node = op_of(name, ln.float64, 1)
    found = enclose(node, {node.args[0]: x}, STANDARD)
    assert np.isnan(found.value).all()
    assert found.contains(np.array([0.5, 0.5, 0.5])).tolist() == [True, False, False]
    assert found.contains(np.full(3, np.nan)).all()


def test_tangent_next_to_a_pole() -> None:
    """Where an interval may hold a pole it is any number; between two poles it rises."""
    node, pole = op_of("tan", ln.float64, 1), np.pi / 2
    low = np.array([-1.0, 1.5, pole - 1e-9, 0.0, 1e6, 4.0, -np.inf])
    high = np.array([1.5, 1.6, pole - 1e-10, 3.2, 1e6 + 0.1, 4.0, 0.0])
    x = Interval((low + high) / 2, low, high, True)
    found = enclose(node, {node.args[0]: x}, STANDARD)
    whole = np.isneginf(found.low) & np.isposinf(found.high)
    assert whole.tolist() == [False, True, False, True, False, False, True]
    for n in (0, 2, 4, 5):
        np.testing.assert_allclose([found.low[n], found.high[n]], np.tan([low[n], high[n]]), 1e-12)


def test_fast_tangent_is_a_quotient_of_fast_sine_and_cosine() -> None:
    node = op_of("tan", ln.float32, 1)
    points = np.random.default_rng(3).uniform(-np.pi, np.pi, 20_000).astype(np.float32)
    points[:2] = np.float32(np.pi / 2), 1e-9
    wide = points.astype(np.float64)
    found = enclose(node, {node.args[0]: exact(wide)}, FAST_MATH)
    for below, beside in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
        sine = np.sin(wide) + below * FAST["sin"].absolute
        cosine = np.cos(wide) + beside * FAST["cos"].absolute
        for rounding in (1 - 2.0**-22, 1 + 2.0**-22):
            require(found, (sine / cosine * rounding).astype(np.float32), [points], "tan")
    ordinary = np.abs(np.tan(wide)) < 1e3
    assert found.bound[ordinary].max() < 2  # and no wider than that takes: 1e6 * 2^-20.3
    assert np.isinf(found.bound[0])
