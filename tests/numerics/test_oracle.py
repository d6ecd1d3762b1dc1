"""The oracle: rounding, arguments, every tensor by name, and scheduled fusions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loopnest as ln
from helpers.math_run import assert_equal
from loopnest.numerics import oracle_blocks
from loopnest.numerics.float64_math import APPLY, evaluate_expr
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Arg, Const, Expr, Op, integer
from loopnest.scalar.op_table import OPS
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.domain import IterDomain, TensorDomain, Transform


def softmax() -> ln.Fusion:
    with ln.Fusion("softmax") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        a = f.scalar("alpha", ln.float32)
        m = ln.max(x, axis=1, keepdims=True)
        e = ln.exp(a * (x - m))
        y = e / ln.sum(e, axis=1, keepdims=True)
        f.output(y, "y")
    return f


def softmax_numpy(x: np.ndarray, alpha: float) -> np.ndarray:
    e = np.exp(alpha * (x - x.max(1, keepdims=True)))
    return e / e.sum(1, keepdims=True)


# What it returns


def test_softmax() -> None:
    x = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    y = ln.evaluate(softmax(), x, alpha=0.5)
    assert y.dtype == np.float32
    assert_equal(y, softmax_numpy(x.astype(np.float64), 0.5).astype(np.float32), 1e-6)


def test_one_output_is_an_array_several_are_a_tuple() -> None:
    x = np.arange(3, dtype=np.float32)
    with ln.Fusion() as f:
        t = f.input("x", ("N",), ln.float32)
        assert ln.evaluate(f, x) == ()
        f.output(t + 1)
        assert isinstance(ln.evaluate(f, x), np.ndarray)
        f.output(t > 1)
    first, second = ln.evaluate(f, x)
    assert_equal(first, x + 1)
    assert second.dtype == np.bool_


def test_every_tensor_by_name() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    f = softmax()
    y, tensors = ln.evaluate(f, x, alpha=1.0, tensors=True)
    assert list(tensors) == [t.name for t in f.tensors]
    assert_equal(tensors["y"], y)
    assert_equal(tensors["x"], x)
    assert_equal(tensors["T1"], x.max(1))
    for tensor in f.tensors:
        assert tensors[tensor.name].dtype == tensor.dtype.numpy
        assert tensors[tensor.name].ndim == len(tensor.shape)


def test_result_is_new_memory() -> None:
    x = np.arange(3, dtype=np.float32)
    with ln.Fusion() as f:
        t = f.input("x", (3,), ln.float32)
        f.output(t, "y", inplace=t)
        f.output(ln.expand(ln.broadcast(t, (True, False)), (2, 3)), "z")
    y, z = ln.evaluate(f, x)
    y[0] = z[0, 0] = 9
    assert_equal(x, np.arange(3, dtype=np.float32))
    assert z[1, 0] == 0


def test_unused_multi_outputs_and_dead_tensors_do_no_harm() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with ln.Fusion() as f:
        t = f.input("x", ("N", "D"), ln.float32)
        ln.exp(t)
        _, var, _ = ln.welford(t, axis=1)
        f.output(ln.sqrt(var), "s")
    assert_equal(ln.evaluate(f, x), x.std(1), 1e-6)
    assert len(ln.evaluate(f, x, tensors=True)[1]) == 6


# How it rounds


def test_floats_are_float64_between_definitions() -> None:
    x = np.array([1.0], np.float32)
    with ln.Fusion() as f:
        t = f.input("x", (1,), ln.float32)
        small = (t + 2.0**-40) - 1.0
        f.output(small, "y")
        f.output(ln.cast(t + 2.0**-40, ln.float32) - 1.0, "z")
        f.output(t * 0.1, "w")
    y, z, w = ln.evaluate(f, x)
    assert_equal(y, np.array([2.0**-40], np.float32))
    assert_equal(z, np.array([2.0**-40], np.float32))  # of the same type: no rounding
    assert_equal(w, np.array([0.1], np.float32))


def test_cast_rounds() -> None:
    with ln.Fusion() as f:
        t = f.input("x", (1,), ln.float64)
        f.output(ln.cast(ln.cast(t, ln.float32), ln.float64), "y")
    assert_equal(ln.evaluate(f, np.array([0.1])), np.array([np.float32(0.1)], np.float64))


def test_16_bit_tensor_is_rounded_where_it_is_defined() -> None:
    x = np.array([0.1], np.float16)
    with ln.Fusion() as f:
        t = f.input("x", (1,), ln.float16)
        f.output((t * 3) * 3, "y")
        f.output(ln.fma(t * 3, 3, 0), "z")
    wide = x.astype(np.float64)
    inner = (wide * 3).astype(np.float16).astype(np.float64)
    for actual in ln.evaluate(f, x):
        assert_equal(actual, (inner * 3).astype(np.float16))


def test_integers_are_computed_in_their_own_type() -> None:
    x = np.array([2**31 - 1], np.int32)
    with ln.Fusion() as f:
        t = f.input("x", (1,), ln.int32)
        f.output((t + 1) / 2, "y")
    assert_equal(ln.evaluate(f, x), np.array([-(2.0**30)], np.float32))


def test_no_warning_on_special_values() -> None:
    with ln.Fusion() as f:
        t = f.input("x", ("N",), ln.float32)
        f.output(ln.cast(ln.log(t) / t, ln.int32) % 0, "y")
    ln.evaluate(f, np.array([0, -1, np.inf, np.nan], np.float32))


# The scalar language on NumPy


def test_every_operation_is_covered() -> None:
    assert set(APPLY) == set(OPS) - {"cast"}


def test_index_arithmetic_rounds_down() -> None:
    a, b = Arg(0, dtypes.index), Arg(1, dtypes.index)
    env: dict[Expr, Any] = {a: np.array([-7, 7, 6]), b: np.array([3, 3, 3])}
    for op, expected in (("floordiv", [-3, 2, 2]), ("mod", [2, 1, 0]), ("ceildiv", [-2, 3, 2])):
        assert_equal(evaluate_expr(Op(op, (a, b), dtypes.index), env), np.array(expected))


def test_literal_is_rounded_to_its_type() -> None:
    assert evaluate_expr(Const(0.1, ln.float32), {}) == float(np.float32(0.1))
    assert evaluate_expr(Const(0.1, ln.float64), {}) == 0.1


def test_leaf_without_a_value() -> None:
    with pytest.raises(KeyError, match="no value for <Arg"):
        evaluate_expr(Arg(0, ln.float32), {})


# Scheduled fusions


REDUCTIONS = ["sum", "prod", "max", "min", "any", "all", "mean", "var"]


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(REDUCTIONS),
    size=st.integers(0, 17),
    factor=st.integers(1, 6),
    inner=st.booleans(),
    second=st.integers(1, 3),
    merge=st.booleans(),
    picks=st.sets(st.integers(0, 2), min_size=1, max_size=2),
)
def test_rfactor_does_not_change_the_math(
    name: str, size: int, factor: int, inner: bool, second: int, merge: bool, picks: set[int]
) -> None:
    x = np.random.default_rng(size).normal(size=(3, size, 2))
    with ln.Fusion() as f:
        t = f.input("x", ("N", "D", 2), ln.float64)
        result = getattr(ln, name)(t, axis=(1, 2) if merge else 1)
        f.output(result, "y")
    expected = ln.evaluate(f, x)
    reduction = result.reduction if result.reduction is not None else result
    if merge:
        reduction.merge(1)
    reduction.split(1, factor, inner=inner)
    reduction.split(1, second)
    partial = reduction.rfactor([1 + pick for pick in picks])
    assert partial.domain.rfactor != partial.domain.root
    np.testing.assert_allclose(ln.evaluate(f, x), expected, rtol=1e-12)


def test_rfactor_of_welford_of_16_bit() -> None:
    x = np.random.default_rng(0).normal(size=(2, 10)).astype(np.float16)
    with ln.Fusion() as f:
        t = f.input("x", ("N", "D"), ln.float16)
        parts = ln.welford(t, axis=1)
        for part in parts:
            f.output(part)
    expected = ln.evaluate(f, x)
    parts[0].split(1, 4)
    parts[0].rfactor(2)
    for actual, before in zip(ln.evaluate(f, x), expected, strict=True):
        assert_equal(actual, before)


def test_partial_result_without_points_holds_the_identity() -> None:
    with ln.Fusion() as f:
        t = f.input("x", ("N",), ln.float32)
        y = ln.max(t)
        f.output(y, "y")
    y.split(0, 4, inner=False)
    partial = y.rfactor(1).named("partial")
    x = np.arange(1, 6, dtype=np.float32)  # 5 elements in 4 parts of 2: the last part has none
    assert [str(size) for size in partial.sizes] == ["4"]
    _, tensors = ln.evaluate(f, x, tensors=True)
    assert_equal(tensors["partial"], np.array([2, 4, 5, -np.inf], np.float32))


def test_cached_copies() -> None:
    f = softmax()
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    expected = ln.evaluate(f, x, alpha=2.0)
    f["y"].cache_before()
    f["x"].cache_after()
    assert_equal(ln.evaluate(f, x, alpha=2.0), expected)


class Reverse(Transform):
    """A toy: the same axis, backwards."""

    def __init__(self, axis: IterDomain) -> None:
        self._bind([axis], [IterDomain(axis.size, axis.kind)])

    @property
    def key(self) -> Hashable:
        return ("reverse",)

    def replay(self, inputs: Sequence[IterDomain], algebra: Simplifier) -> Reverse:
        return Reverse(inputs[0])

    def _mirror(self, index: Expr, algebra: Simplifier) -> Expr:
        return algebra.sub(algebra.sub(self.inputs[0].size, integer(1)), index)

    def backward(self, outputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        return (self._mirror(outputs[0], algebra),)

    def forward(self, inputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        return (self._mirror(inputs[0], algebra),)

    def describe(self) -> str:
        return "reverse"


def test_rfactor_domain_of_a_transform_that_the_oracle_does_not_know() -> None:
    with ln.Fusion() as f:
        t = f.input("x", ("N", "D"), ln.float32)
        y = t * 2
        f.output(y, "y")
    root = y.domain.root
    rfactor = (root[0], Reverse(root[1]).outputs[0])
    y.bind(TensorDomain(root, rfactor, rfactor))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_equal(ln.evaluate(f, x), 2 * x[:, ::-1])


# Arguments (the sentences are tested with the binding itself)


def test_arguments_are_checked() -> None:
    f = softmax()
    x = np.zeros((2, 3), np.float32)
    for arrays, scalars, message in (
        ((), {"alpha": 1}, "evaluate(softmax): 0 arrays were given; pass 1: x: float32[N, D]"),
        (
            (x.astype(np.float64),),
            {"alpha": 1},
            "evaluate(softmax): x has dtype float64; pass float32[N, D]",
        ),
        (
            (x,),
            {},
            "evaluate(softmax): the scalar alpha is missing; "
            "pass alpha=..., a number of type float32",
        ),
    ):
        with pytest.raises(ln.LaunchError) as caught:
            ln.evaluate(f, *arrays, **scalars)
        assert str(caught.value) == message


def test_assumptions_are_checked() -> None:
    with ln.Fusion() as f:
        f.output(f.input("x", ("N",), ln.float32) + 1)
    f.assume("N % 4 == 0")
    ln.evaluate(f, np.zeros(8, np.float32))
    with pytest.raises(ln.LaunchError) as caught:
        ln.evaluate(f, np.zeros(6, np.float32))
    assert str(caught.value) == (
        "evaluate(kernel): the assumption 'N % 4 == 0' does not hold for N = 6; "
        "pass sizes for which it does, or define the kernel without it"
    )


def test_only_fusions_are_evaluated() -> None:
    with pytest.raises(ln.LaunchError) as caught:
        ln.evaluate("softmax")  # type: ignore[call-overload]
    assert str(caught.value) == (
        "evaluate('softmax'): a str is neither a Fusion nor a Kernel; "
        "pass the fusion, or the kernel that ln.lower made of it"
    )


@pytest.mark.parametrize("name", ["tensors", "exact"])
def test_flags_are_bools(name):
    with ln.Fusion("f") as f:
        f.output(f.input("x", (3,), ln.float32) + 1.0, "y")
    with pytest.raises(ln.LaunchError) as caught:
        ln.evaluate(f, np.zeros(3, np.float32), **{name: np.arange(3)})
    assert str(caught.value) == (
        f"evaluate(f, {name}=ndarray): {name}= is no bool; pass True or False"
    )


@pytest.mark.parametrize(("factor", "size"), [("D // 2", 1), ("D - 3", 3), ("D - 3", 2)])
def test_folds_in_steps_refuse_what_a_launch_refuses(factor: str, size: int) -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    y.split(1, factor)
    y.rfactor([2])
    assert ln.evaluate(f, np.ones((2, 5), np.float32)).tolist() == [5, 5]
    with pytest.raises(ln.LaunchError) as caught:
        ln.evaluate(f, np.ones((2, size), np.float32))
    value = {"D // 2": size // 2, "D - 3": size - 3}[factor]
    assert str(caught.value) == (
        f"evaluate(k): an axis is split by '{factor}', which is {value} for D = {size}; pass sizes "
        "for which it is 1 or more"
    )


# Scatters: an element is looked at once, not once for each place that it could go to

SCATTERS = ("scatter", "scatter_add", "scatter_max", "scatter_min", "index_add")


def scattered_one_by_one(
    kind: str, x: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int
) -> np.ndarray:
    """Return x with its updates, those in front along the axis before others."""
    result = x.copy()
    for at in sorted(np.ndindex(*updates.shape), key=lambda at: at[axis]):
        place = int(indices[at[axis]] if kind == "index_add" else indices[at])
        if 0 <= place < x.shape[axis]:
            to = (*at[:axis], place, *at[axis + 1 :])
            old, new = result[to], updates[at]
            most, least = max(old, new), min(old, new)
            sums = {"scatter": new, "scatter_max": most, "scatter_min": least}
            result[to] = sums.get(kind, old + new)
    return result


@pytest.mark.parametrize("block", [1 << 16, 16], ids=["whole", "blocks"])
@pytest.mark.parametrize("dtype", [ln.float32, ln.uint8, ln.int64, ln.float16], ids=str)
@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("kind", SCATTERS)
def test_scatters(
    kind: str, axis: int, dtype: ln.DType, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several updates of one element, indices outside, fewer updates than rows, none at all."""
    monkeypatch.setattr(oracle_blocks, "BLOCK", block)
    rng = np.random.default_rng(axis)
    for count in (0, 1, 23):
        shape, given = [4, 5, 3], [4, 5, 3] if kind == "index_add" else [3, 4, 2]
        given[axis] = count
        with ln.Fusion("k") as f:
            x = f.input("x", tuple(shape), dtype)
            i = f.input("i", (count,) if kind == "index_add" else tuple(given), ln.int32)
            u = f.input("u", tuple(given), dtype)
            call = (x, axis, i, u) if kind == "index_add" else (x, i, u, axis)
            f.output(getattr(ln, kind)(*call), "y")
        base = rng.integers(0, 50, shape).astype(dtype.numpy)
        updates = rng.integers(0, 9, given).astype(dtype.numpy)
        size = (count,) if kind == "index_add" else given
        indices = rng.integers(-1, shape[axis] + 1, size).astype(np.int32)
        wanted = scattered_one_by_one(kind, base, indices, updates, axis)
        assert_equal(ln.evaluate(f, base, indices, updates), wanted)


def test_a_scatter_with_zeros_and_infinities_in_their_order() -> None:
    """A sum starts at zero, so that no -0 is left; what is no number stays where it went."""
    with ln.Fusion("k") as f:
        i, u = f.input("i", ("K",), ln.int32), f.input("u", ("K",), ln.float32)
        f.output(ln.scatter_add(ln.full((4,), 0.0), i, u, 0), "y")
    updates = np.array([-0.0, np.inf, -np.inf, np.nan, 1.0], np.float32)
    found = ln.evaluate(f, np.array([0, 1, 1, 2, 9], np.int32), updates)
    assert_equal(found, np.array([0, np.nan, np.nan, 0], np.float32))
    assert not np.signbit(found[0])


@pytest.mark.parametrize("kind", SCATTERS)
def test_a_scatter_of_a_million(kind: str) -> None:
    """All pairs of an update and an element would take hours."""
    count = 1 << 20
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.int32)
        i, u = f.input("i", ("K",), ln.int32), f.input("u", ("K",), ln.int32)
        call = (x, 0, i, u) if kind == "index_add" else (x, i, u, 0)
        f.output(getattr(ln, kind)(*call), "y")
    rng = np.random.default_rng(2)
    base, updates = rng.integers(-9, 9, (2, count)).astype(np.int32)
    indices = rng.integers(0, count, count).astype(np.int32)
    wanted = base.copy()
    if kind == "scatter":
        wanted[indices] = updates
    else:
        found = {"scatter_max": np.maximum, "scatter_min": np.minimum}.get(kind, np.add)
        found.at(wanted, indices, updates)
    assert_equal(ln.evaluate(f, base, indices, updates), wanted)
