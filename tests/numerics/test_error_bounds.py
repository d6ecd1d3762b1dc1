"""`ln.error_bound`: bounds of whole fusions, what they let pass and what they catch."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import loopnest as ln
from fuzzing.fusions import FusionWriter
from helpers.math_run import define
from kernels.layernorm import layernorm
from kernels.softmax import softmax
from loopnest.backends.targets import TARGETS
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.judge import choose_sizes, draw_arguments, lowered
from loopnest.numerics import float64_math, oracle_blocks
from loopnest.numerics.compare import compare
from loopnest.numerics.error_bounds import enclosures
from loopnest.numerics.interval_rules import RANGES
from loopnest.numerics.intervals import Interval
from loopnest.numerics.target_accuracy import TARGET_NAMES, Arithmetic
from loopnest.tensor.math_snapshot import snapshot, thaw

Array = np.ndarray[Any, Any]
U = 2.0**-24


def bound(math: Callable[..., Any], *arrays: Array, **options: Any) -> Any:
    """Return the bound of what `math` gives of `arrays`."""
    return ln.error_bound(define(math, *arrays), *arrays, **options)


def enclosed(fusion: ln.Fusion, *arrays: Array, **keywords: Any) -> Interval:
    """Return the enclosure of the only output."""
    return enclosures(fusion, arrays, keywords)[fusion.outputs[0].name]


# What it returns


def test_as_evaluate_does() -> None:
    with ln.Fusion("two") as f:
        x = f.input("x", ("N",), ln.float32)
        s = f.scalar("s", ln.float32)
        f.output(ln.exp(x * s), "y")
        f.output(x > s, "z")
    array = np.linspace(-1, 1, 5, dtype=np.float32)
    y, z = ln.error_bound(f, array, s=0.3)
    assert (y.dtype, z.dtype) == (np.float64, np.float64)
    assert (y > 0).all()
    assert z.tolist() == [0] * 5
    outputs, tensors = ln.error_bound(f, array, s=0.3, tensors=True)
    assert list(tensors) == [t.name for t in f.tensors]
    np.testing.assert_array_equal(tensors["y"], outputs[0])
    assert tensors["x"].tolist() == [0] * 5


@pytest.mark.parametrize("dtype", [ln.float32, ln.float64, ln.int32])
def test_the_bound_of_one_number_is_an_array(dtype):
    with ln.Fusion() as f:
        f.output(ln.sum(f.input("x", ("N",), dtype), 0))
    found = ln.error_bound(f, np.ones(3, dtype.numpy))
    assert (type(found), found.shape, found.dtype) == (np.ndarray, (), np.float64)


def test_only_fusions_and_arguments_that_fit() -> None:
    with pytest.raises(ln.LaunchError) as caught:
        ln.error_bound("softmax")
    assert str(caught.value) == (
        "error_bound('softmax'): a str is neither a Fusion nor a Kernel; "
        "pass the fusion, or the kernel that ln.lower made of it"
    )
    with pytest.raises(ln.LaunchError) as caught:
        ln.error_bound(softmax.fusion(), np.zeros((2, 3)))
    assert str(caught.value) == "error_bound(softmax): x has dtype float64; pass float32[N, D]"


def all_math(x: ln.TensorView) -> tuple[ln.TensorView, ...]:
    mean = ln.mean(x, 1, keepdims=True)
    return (
        ln.gelu(x), ln.gelu(x, approximate="tanh"), ln.silu(x) / (1.5 + ln.sin(x)), x**3, x % 0.7,
        ln.where(x > mean, ln.log(ln.abs(x)), ln.round(x * 3.3)), ln.cast(ln.floor(x), ln.int32),
        ln.var(x, 0, correction=1), *ln.welford(x, 1), ln.prod(x, 1), ln.any(x > 1.9, 1),
        ln.fma(x, mean, 0.1), ln.cast(x, ln.bfloat16) * ln.cast(x, ln.float16),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_values_are_those_of_evaluate(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, in blocks too."""
    monkeypatch.setattr(oracle_blocks, "BLOCK", 16)
    array = np.random.default_rng(0).uniform(-2, 2, (7, 9)).astype(dtype)
    f = define(all_math, array)
    values, tensors = ln.evaluate(f, array, tensors=True)
    found = enclosures(f, [array], {}, f.tensors)
    assert len(values) == len(f.outputs)
    for tensor in f.tensors:
        enclosure, value = found[tensor.name], tensors[tensor.name]
        assert enclosure.value.astype(value.dtype).tobytes() == value.tobytes()
        assert enclosure.contains(enclosure.value).all(), tensor.name
    monkeypatch.setattr(oracle_blocks, "BLOCK", 1 << 30)
    whole = enclosures(f, [array], {}, f.tensors)
    for name, enclosure in found.items():
        assert np.array_equal(enclosure.bound, whole[name].bound), name


def test_of_scheduled_fusions_with_factored_reductions() -> None:
    array = np.random.default_rng(0).uniform(-2, 2, (5, 10)).astype(np.float32)
    with ln.Fusion() as f:
        x = f.input("x", ("N", "D"), ln.float32)
        f.output(ln.sum(x * x, 1), "y")
    before = enclosed(f, array)
    f["y"].split(1, 4)
    f["y"].rfactor(1)
    after = enclosed(f, array)
    np.testing.assert_allclose(after.value, before.value, rtol=1e-15)
    # Two stages of 2 and 3 additions, instead of 9 in the worst order of one; points that no
    # element falls on hold zeros.
    assert (after.bound < 0.8 * before.bound).all()
    assert np.array_equal(enclosed(thaw(snapshot(f)), array).bound, after.bound)


# What they bound


def beyond(kernel: Array, value: Array, most: Array) -> Array:
    """Return which results of a kernel lie further from the oracle's than the bound allows."""
    with np.errstate(all="ignore"):
        apart = np.abs(kernel.astype(np.float64) - value.astype(np.float64))
    alike = (kernel == value) | (np.isnan(kernel) & np.isnan(value))
    return np.asarray(~alike & ~(apart <= most) & ~np.isinf(most))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_distance_to_rounded_results(dtype: str) -> None:
    rng = np.random.default_rng(0)
    kind = getattr(ln, dtype).numpy
    arrays = [rng.standard_normal(1 << 14).astype(kind) for _ in range(3)]
    f = define(lambda a, b, c: (a * b * c, ln.exp(a) / b), *arrays)
    found, bounds = ln.compile(f, target="interpret")(*arrays), ln.error_bound(f, *arrays)
    for exact in (False, True):
        values = ln.evaluate(f, *arrays, exact=exact)
        for result, value, most in zip(found, values, bounds, strict=True):
            assert value.dtype == (np.float64 if exact else kind)
            assert not beyond(result, value, most).any()
    if dtype == "float32":  # as sharp as can be: half a unit in the last place more
        product = ln.evaluate(f, *arrays, exact=True)[0]
        own = bounds[0] - np.abs(product - product.astype(np.float32))
        assert (own <= 2 * 3 * U * np.abs(product)).all()


@given(st.randoms(use_true_random=False))
@settings(
    max_examples=60, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
def test_results_of_random_math_lie_within(rng: Random) -> None:
    session = Session("case")
    FusionWriter(session, rng).write()
    f = session.fusion
    kernel = lowered(f)
    if isinstance(kernel, str):
        return  # an output in place of what is still read
    function = ln.compile(kernel, target="interpret")
    for sizes in choose_sizes(f, rng):
        made = draw_arguments(f, sizes, rng.randrange(16))
        arrays, keywords = made.arrays, made.keywords(f)
        found = as_tuple(function(*made.fresh(), **keywords))
        bounds = as_tuple(ln.error_bound(f, *arrays, **keywords))
        for exact in (False, True):
            values = as_tuple(ln.evaluate(f, *arrays, exact=exact, **keywords))
            for result, value, most in zip(found, values, bounds, strict=True):
                assert not beyond(result, value, most).any(), "\n".join(session.math)


def test_groupings_of_a_reducer_of_ones_own_in_float64() -> None:
    """The oracle rounds each sum as a kernel does, but folds by halves, not one by one."""
    with ln.Fusion("top_sum") as f:
        x = f.input("x", ("N",), ln.float64)
        pair = ln.Reducer(
            (0.0, float("-inf")), lambda a, b: (a[0] + b[0], ln.maximum(a[1], b[1])), "top_sum"
        )
        for number, part in enumerate(ln.reduce(pair, (x, ln.abs(x)), 0)):
            f.output(part, f"y{number}")
    x = np.random.default_rng(3).uniform(-1, 1, 1000) * 10.0 ** np.arange(1000).clip(0, 5)
    found = as_tuple(ln.compile(f, target="interpret")(x))
    values, bounds = as_tuple(ln.evaluate(f, x)), as_tuple(ln.error_bound(f, x))
    assert found[0] != values[0]
    assert not beyond(found[0], values[0], bounds[0]).any()
    assert bounds[0] < 1e-6 * np.abs(x).sum()
    assert found[1] == values[1]
    assert bounds[1] == 0


@pytest.mark.parametrize("exclusive", [True, False], ids=["exclusive", "inclusive"])
@pytest.mark.parametrize("scanned", [True, False], ids=["scan", "reduce"])
def test_an_identity_that_is_not_neutral_beside_an_infinity(scanned: bool, exclusive: bool) -> None:
    """A kernel folds it in first, where 0 * inf is NaN; up to there results are bounded."""
    with ln.Fusion("affine") as f:
        x = f.input("x", (3, 4), ln.float32)
        affine = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")
        made = (
            ln.scan(affine, (x, 0.5), 1, exclusive=exclusive)
            if scanned
            else ln.reduce(affine, (x, 0.5), 1)
        )
        f.output(made[1], "y")
    x = np.array([[1, 2, 3, 4], [2, np.inf, 1, 1], [np.inf, 1, 1, 1]], np.float32)
    found = ln.compile(f, target="interpret")(x)
    value, most = ln.evaluate(f, x), ln.error_bound(f, x)
    assert not beyond(found, value, most).any()
    sure = np.isfinite(most)
    if scanned:
        first = [[True] * 4, [True] + [exclusive] + [False] * 2, [exclusive] + [False] * 3]
        np.testing.assert_array_equal(sure, first)
    else:
        np.testing.assert_array_equal(sure, [True, False, False])
    assert np.isnan(found[2, -1] if scanned else found[2])


def as_tuple(found: Any) -> tuple[Array, ...]:
    return found if isinstance(found, tuple) else (found,)


def test_exact_results_are_not_rounded_but_by_the_math() -> None:
    values = np.array([0.1, 0.7], np.float32)
    with ln.Fusion() as f:
        x = f.input("x", ("N",), ln.float32)
        half = ln.cast(x, ln.float16)
        f.output(x / 3.0, "third")
        f.output(ln.cast(x / 3.0, ln.float16), "cast")
        f.output(half / 3.0, "defined")
        f.output(ln.cast(x, ln.int32), "whole")
    third, cast, defined, whole = ln.evaluate(f, values, exact=True)
    thirds = values.astype(np.float64) / 3
    assert third.tolist() == thirds.tolist()
    assert cast.tolist() == thirds.astype(np.float16).tolist()
    assert defined.tolist() == (half_of(values) / 3).astype(np.float16).tolist()
    assert whole.dtype == np.int32
    result, tensors = ln.evaluate(f, values, exact=True, tensors=True)
    assert tensors["third"] is result[0]
    assert tensors["x"].dtype == np.float64
    assert tensors["x"].flags.writeable


def half_of(values: Array) -> Array:
    return values.astype(np.float16).astype(np.float64)


# How wide they are


def test_sum_in_the_worst_order() -> None:
    values = np.random.default_rng(0).uniform(0.5, 1, (3, 1000)).astype(np.float32)
    sums = values.sum(1, dtype=np.float64)
    assert bound(lambda x: ln.sum(x, 1), values) == pytest.approx(999 * U * sums, rel=1e-3)


def test_16_bit_tensors_are_rounded_once() -> None:
    """Where no bound of the float32 result crosses a rounding boundary, results are known."""
    values = np.random.default_rng(0).uniform(1, 2, 10_000).astype(np.float16)
    found = bound(ln.exp, values)
    ulp = np.spacing(np.exp(values.astype(np.float64)).astype(np.float16)).astype(np.float64)
    assert ((found == 0) | (found == ulp)).all()
    assert 0 < np.count_nonzero(found) < 20


def test_cancellation_shows() -> None:
    values = np.array([1e4, 1e-4], np.float32)
    y = bound(lambda x: (x + 1.0 / 3) - x, values)
    assert y[0] > 1e-4
    assert y[1] < 1e-7


def test_errors_grow_through_exp_and_division() -> None:
    values = np.full((1, 1000), 0.1, np.float32)
    shift = bound(lambda x: ln.exp(ln.sum(x, 1)), values)[0]
    own = bound(ln.exp, np.array([100.0], np.float32) * 0 + np.float32(80))[0]
    assert shift > 300 * own * np.exp(20) > 0
    total = bound(lambda x: ln.sum(x, 1), values)[0]
    quotient = bound(lambda x: 1.0 / (ln.sum(x, 1) - 99.99), values)[0]
    assert quotient > total / 0.01**2


def test_relu_and_masks_pass_what_they_are_sure_of() -> None:
    values = np.array([-5.0, 0.3, 5.0], np.float32)
    y = bound(lambda x: ln.relu(x / 3.0 - 0.1), values)
    assert y[0] == 0
    assert 0 < y[1] < 2 * U  # 0.3 / 3 - 0.1 may lie on either side of 0
    mask = bound(lambda x: ln.cast(x / 3.0 > 0.1, ln.int32), values)
    assert mask.tolist() == [0, 1, 0]


# What they catch


def float16_sum(values: Array) -> Array:
    total = np.zeros(values.shape[:-1], np.float16)
    for n in range(values.shape[-1]):
        total = (total + values[..., n].astype(np.float16)).astype(np.float16)
    return total


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("length", [512, 4096])
def test_a_float16_accumulator_in_a_long_sum(dtype: type, length: int) -> None:
    values = np.random.default_rng(0).uniform(0, 1, (8, length)).astype(dtype)
    f = define(lambda x: ln.sum(x, 1), values)
    found = enclosed(f, values)
    right = values.astype(np.float32).cumsum(1)[:, -1].astype(dtype)
    assert compare("y", right, found).ok
    verdict = compare("y", float16_sum(values).astype(dtype), found)
    assert verdict.wrong >= 6
    assert verdict.error > 4 * verdict.allowed


def test_a_kernel_whose_accumulator_is_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same nest with another type of the accumulator, run by the interpreter: not proved."""
    monkeypatch.delenv("LOOPNEST_VERIFY", raising=False)
    values = np.random.default_rng(0).uniform(0, 1, (8, 4096)).astype(np.float16)
    f = define(lambda x: ln.sum(x, 1), values)
    kernel = ln.lower(f)
    found = enclosed(f, values)
    assert compare("y", ln.compile(kernel, target="interpret")(values), found).ok
    (accumulator,) = [
        node.storage
        for node, _ in kernel.walk()
        if isinstance(node, ln.kir.Allocate) and node.storage.dtype is ln.float32
    ]
    object.__setattr__(accumulator, "dtype", ln.float16)
    assert compare("y", ln.compile(kernel, target="interpret")(values), found).wrong == 8


def test_a_float16_accumulator_in_softmax_and_layernorm() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 1024)).astype(np.float32)
    e = np.exp(x - x.max(1, keepdims=True))
    found = enclosed(softmax.fusion(), x)
    assert compare("y", e / e.sum(1, keepdims=True), found).ok
    assert compare("y", e / float16_sum(e).astype(np.float32)[:, None], found).wrong > 4000
    ones, zeros = np.ones(1024, np.float32), np.zeros(1024, np.float32)
    found = enclosed(layernorm.fusion(), x, ones, zeros)
    centered = x - x.mean(1, keepdims=True)
    for total, ok in ((lambda a: a.sum(1), True), (float16_sum, False)):
        spread = total(centered * centered).astype(np.float32)[:, None] / 1024
        got = (centered / np.sqrt(spread + np.float32(1e-5))).astype(np.float32)
        assert compare("y", got, found).ok == ok


@pytest.mark.parametrize(("spread", "seen"), [(1.0, False), (0.01, True)])
def test_a_wrong_constant_is_seen_where_it_shows(spread: float, seen: bool) -> None:
    """1e-6 for 1e-5: at variance 1 that is 4.5e-6 of the result, below the bound of 1024 terms."""
    rng = np.random.default_rng(0)
    x = (spread * rng.normal(size=(8, 1024))).astype(np.float32)
    ones, zeros = np.ones(1024, np.float32), np.zeros(1024, np.float32)
    found = enclosed(layernorm.fusion(eps=1e-5), x, ones, zeros)
    for eps, wrong in ((1e-5, False), (1e-6, seen)):
        fusion = layernorm.fusion(eps=eps)
        got = ln.compile(fusion, target="interpret")(x, ones, zeros)
        assert compare("y", got, found).ok is not wrong


def test_one_element_too_few_in_a_mean() -> None:
    x = np.random.default_rng(0).uniform(0, 1, (4, 1024)).astype(np.float32)
    found = enclosed(define(lambda x: ln.mean(x, 1), x), x)
    assert compare("y", x.mean(1), found).ok
    assert compare("y", x[:, :-1].sum(1) / np.float32(1024), found).wrong == 4


# Special values


def test_overflow_and_underflow_let_pass_what_float32_does() -> None:
    values = np.array([-1e30, -200, -100, -90, 0, 50, 90, 200, 1e30], np.float32)
    found = enclosed(define(lambda x: x / (1.0 + ln.exp(-x)), values), values)
    with np.errstate(all="ignore"):
        single = values / (np.float32(1) + np.exp(-values))
    assert compare("y", single, found).ok
    assert not compare("y", single + np.float32(1e-3), found).ok
    assert np.isfinite(found.bound).all()


def test_zero_times_infinity_by_underflow() -> None:
    """Where the product underflows in float32, its reciprocal is infinite: anything may follow."""
    values = np.array([1e-25, 1.0], np.float32)
    y = bound(lambda x: (1.0 / (x * x)) * 0.0, values)
    assert np.isinf(y[0])
    assert y[1] == 0


def test_nan_and_infinity_must_match() -> None:
    values = np.array([np.nan, np.inf, -np.inf, -1.0, 0.0], np.float32)
    found = enclosed(define(lambda x: ln.log(x) * 2.0, values), values)
    assert found.bound.tolist() == [0, 0, 0, 0, 0]
    right = np.array([np.nan, np.inf, np.nan, np.nan, -np.inf], np.float32)
    assert compare("y", right, found).ok
    for n, other in enumerate([0.0, np.nan, -np.inf, 0.0, np.inf]):
        wrong = right.copy()
        wrong[n] = other
        assert compare("y", wrong, found).place == (n,)


def test_the_remainder_by_zero_of_an_inexact_value_is_nan() -> None:
    values = np.array([1.75, 0.0, 1.875], np.float32)
    found = enclosed(define(lambda x: (ln.exp(x) - 5.0) % x, values), values)
    right = (np.exp(values) - 5) % np.array([1.75, np.nan, 1.875], np.float32)
    assert compare("y", right, found).ok


def test_reductions_over_nothing() -> None:
    empty = np.zeros((3, 0), np.float32)

    def math(x: ln.TensorView) -> tuple[ln.TensorView, ...]:
        return ln.sum(x, 1), ln.max(x, 1), ln.mean(x, 1), ln.var(x, 1)

    for found in bound(math, empty):
        assert found.tolist() == [0, 0, 0]


# References, fast math


def test_a_reference_may_leave_out_16_bit_roundings() -> None:
    x = np.random.default_rng(0).normal(size=(4, 100)).astype(np.float16)
    f = softmax.fusion(dtype=ln.float16)
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    e /= e.sum(1, keepdims=True)
    assert not enclosed(f, x).contains(e).all()
    found = enclosures(f, [x], {}, None, Arithmetic(reference=True))["y"]
    assert found.contains(e).all()
    assert found.contains(enclosed(f, x).value).all()
    assert not found.contains(e * 1.01).any()


def test_fast_math_is_told() -> None:
    values = np.linspace(1, 20, 50, dtype=np.float32)
    assert (bound(ln.exp, values, fast_math=True) > bound(ln.exp, values)).all()


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sigmoid", "erf", "sin"])
def test_functions_of_c_err_less(name: str) -> None:
    values = np.linspace(0.1, 3, 50, dtype=np.float32)
    math = getattr(ln, name)
    any_target, c = bound(math, values), bound(math, values, target="c")
    assert (c < any_target).all()
    assert (bound(math, values, target="interpret") == any_target).all()
    assert (bound(math, values, target="c", fast_math=True) >= any_target).all()


def test_names_of_targets() -> None:
    assert set(TARGET_NAMES) == set(TARGETS)
    ones = np.ones(3, np.float32)
    for device, target in (("cpu", "c"), ("gpu", "cuda")):
        bounds = [bound(ln.exp, ones, target=name) for name in (device, target)]
        np.testing.assert_array_equal(*bounds)
    with pytest.raises(ln.LaunchError) as caught:
        bound(ln.exp, ones, target="tpu")
    assert str(caught.value) == (
        'error_bound(target=\'tpu\'): there is no such target; use "cuda", "c", "interpret"'
    )


# What they cost


def peak(function: Callable[..., Any], *arguments: Any) -> int:
    """Return how many bytes a call holds at most."""
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_three_values() -> None:
    f = softmax.fusion()
    x = np.random.default_rng(0).normal(size=(512, 1024)).astype(np.float32)
    assert peak(ln.error_bound, f, x) < 4 * peak(ln.evaluate, f, x)


def test_functions_are_evaluated_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the value and at both ends. In time, bounds cost 3 to 6 evaluations."""
    calls: list[int] = []

    def counted(x: Array) -> Array:
        calls.append(x.size)
        return np.exp(x)

    monkeypatch.setitem(float64_math.APPLY._cells, "exp", counted)
    ends = lambda value, args: (counted(args[0].low), counted(args[0].high))  # noqa: E731
    monkeypatch.setitem(RANGES._cells, "exp", ends)
    x = np.random.default_rng(0).normal(size=(50, 100)).astype(np.float32)
    ln.evaluate(softmax.fusion(), x)
    once = sum(calls)
    ln.error_bound(softmax.fusion(), x)
    assert sum(calls) == once + 3 * once


# Scatters


def scattered_sums(count: int, index: Callable[[ln.Fusion], ln.TensorView]) -> ln.Fusion:
    with ln.Fusion("k") as f:
        i, u = index(f), f.input("u", (count,), ln.float32)
        f.output(ln.scatter_add(ln.full((count,), 0.0), i, u, 0), "y")
    return f


def test_a_sum_of_a_scatter_errs_by_its_own_updates() -> None:
    """Not by all of a quarter of a million, at each of as many elements, which would take hours."""
    count = 1 << 18
    f = scattered_sums(count, lambda f: f.input("i", (count,), ln.int32))
    rng = np.random.default_rng(1)
    indices = rng.integers(0, count, count).astype(np.int32)
    updates = rng.uniform(1, 2, count).astype(np.float32)
    bounds = ln.error_bound(f, indices, updates)
    exact = ln.evaluate(f, indices, updates, exact=True)
    updated = np.bincount(indices, minlength=count)
    in_turn = np.zeros(count, np.float32)
    np.add.at(in_turn, indices, updates)
    assert not beyond(in_turn, exact, bounds).any()
    assert (bounds <= 2.0**-22 * updated * exact).all()
    assert (bounds[updated == 0] == 0).all()


def test_updates_that_rounding_may_send_elsewhere() -> None:
    """1 + 2**-25 rounds to 1 in float32, so that the element goes to 2 or to 3."""

    def index(f: ln.Fusion) -> ln.TensorView:
        x = f.input("x", (8,), ln.float32)
        return ln.cast(ln.ceil(x + 2.0**-25) * 2.0, ln.int32)

    f = scattered_sums(8, index)
    args = np.ones(8, np.float32), np.arange(1, 9, dtype=np.float32)
    found = ln.compile(f, target="interpret")(*args)
    values, bounds = ln.evaluate(f, *args), ln.error_bound(f, *args)
    assert (found != values).any()
    assert not beyond(found, values, bounds).any()
