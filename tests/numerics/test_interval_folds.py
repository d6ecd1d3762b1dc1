"""Enclosures of folds: every order of a reduction lies in them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.enclosures import Array, around, between, require
from loopnest.lane_machine.native_math import apply, convert
from loopnest.numerics.float64_math import held
from loopnest.numerics.intervals import Interval, exact, narrowed
from loopnest.numerics.oracle_operands import fold_values
from loopnest.numerics.reduction_intervals import fold
from loopnest.numerics.target_accuracy import (
    STANDARD,
    unit,
)
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Arg, Const, Expr, Op
from loopnest.tensor.ops import reducers
from loopnest.tensor.ops.reducers import Family

pytestmark = pytest.mark.usefixtures("no_warnings")


# Folds


def orders(count: int, rng: np.random.Generator) -> list[list[Any]]:
    """Return trees over range(count): a chain, a balanced one, chunks, and random ones."""

    def chain(items: list[Any]) -> Any:
        tree = items[0]
        for item in items[1:]:
            tree = (tree, item)
        return tree

    def balanced(items: list[Any]) -> Any:
        if len(items) == 1:
            return items[0]
        return (balanced(items[: len(items) // 2]), balanced(items[len(items) // 2 :]))

    def randomly(items: list[Any]) -> Any:
        items = list(items)
        while len(items) > 1:
            a, b = (items.pop(int(rng.integers(len(items)))) for _ in range(2))
            items.append((a, b))
        return items[0]

    plain = list(range(count))
    chunks = [chain(plain[n : n + 7]) for n in range(0, count, 7)]
    mixed = rng.permutation(count).tolist()
    reverse = plain[::-1]
    found = [chain(plain), chain(reverse), chain(mixed), balanced(plain), chain(chunks)]
    return [*found, randomly(plain), randomly(plain)]


def folded_in(
    family: Family, dtype: DType, parts: Sequence[Array], tree: Any, single: bool = False
) -> list[Array]:
    """Fold rows of elements in one order, in the arithmetic of `dtype` itself.

    With `single`, elements are folded in as such: Welford's count of one is a constant.
    """
    if not isinstance(tree, tuple):
        return [part[:, tree] for part in parts]
    left, right = (folded_in(family, dtype, parts, side, single) for side in tree)
    types = component_types(family, dtype)
    args: list[Expr] = [Arg(n, t) for n, t in enumerate((*types, *types))]
    count = len(types)
    values = dict(zip(args, [*left, *right], strict=True))
    if single and not isinstance(tree[1], tuple):
        args[-1] = Const(1, ln.int64)
    return [
        native(expr, values)
        for expr in family.of(*types).combine(tuple(args[:count]), tuple(args[count:]))
    ]


def component_types(family: Family, dtype: DType) -> tuple[DType, ...]:
    return (dtype, dtype, ln.int64) if family is reducers.WELFORD else (dtype,)


def native(root: Expr, values: dict[Expr, Array]) -> Array:
    """Evaluate an expression in its own types, by the interpreter's operations."""
    if root in values:
        return values[root]
    if isinstance(root, Const):
        return np.array([root.value], root.dtype.numpy)
    assert isinstance(root, Op)
    args = [native(arg, values) for arg in root.args]
    if root.op == "cast":
        return np.asarray(convert(args[0], root.args[0].dtype, root.dtype))
    if root.op == "where":
        return np.where(*args).astype(root.dtype.numpy)
    return np.asarray(apply(root.op, args, [a.dtype for a in root.args], root.dtype))


def rows(kind: str, dtype: DType, rng: np.random.Generator, count: int) -> Array:
    shape = (20, count)
    values = {
        "uniform": lambda: rng.uniform(-2, 2, shape),
        "positive": lambda: rng.uniform(0, 1, shape),
        "offset": lambda: 1000 + rng.normal(size=shape),
        "scales": lambda: rng.normal(size=shape) * np.exp2(rng.uniform(-40, 40, shape)),
        "huge": lambda: rng.normal(size=shape) * (1e37 if dtype.size == 4 else 1e307),
        "tiny": lambda: rng.normal(size=shape) * (1e-38 if dtype.size == 4 else 1e-308),
        "dyadic": lambda: np.rint(rng.uniform(-20, 20, shape)) / 8,
        "special": lambda: np.where(
            rng.random(shape) < 0.02,
            rng.choice([np.nan, np.inf, -np.inf, 0.0], shape),
            rng.uniform(-2, 2, shape),
        ),
    }[kind]()
    return values.astype(dtype.numpy)


KINDS = ("uniform", "positive", "offset", "scales", "huge", "tiny", "dyadic", "special")
FLOAT_REDUCERS = (reducers.SUM, reducers.PROD, reducers.MAX, reducers.MIN, reducers.WELFORD)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [ln.float32, ln.float64])
@pytest.mark.parametrize("family", FLOAT_REDUCERS, ids=lambda r: r.name)
@pytest.mark.parametrize("inexact", [False, True])
def test_every_order_lies_in_the_enclosure(
    family: Family, dtype: DType, kind: str, inexact: bool
) -> None:
    rng = np.random.default_rng(5)
    types = component_types(family, dtype)
    for count in (2, 3, 17, 60):
        points = rows(kind, dtype, rng, count)
        if inexact:
            wide = around(points.ravel(), count)
            elements = wide.viewed(lambda a: a.reshape(points.shape))  # noqa: B023
        else:
            elements = exact(held(points, dtype))
        ends = [a - a for a in elements.parts]
        zero = exact(ends[0]) if not inexact else Interval(*ends, wild=elements.wild)
        ones = np.ones(points.shape, np.int64)
        enclosed = [elements, zero, exact(ones)][: len(types)]
        natives = [points, points - points, ones][: len(types)]
        totals = fold_values(family.of(*types), [e.value for e in enclosed])
        found = fold(family.name, enclosed, totals, dtype, STANDARD)
        ways = (False, True) if family is reducers.WELFORD else (False,)
        for tree, single in product(orders(count, rng), ways):
            results = folded_in(family, dtype, natives, tree, single)
            for component, result in zip(found, results, strict=True):
                require(component, result, [points], f"{family.name} of {kind}")


def test_sum_bound_is_that_of_the_worst_order() -> None:
    values = np.full((1, 100), np.float64(np.float32(0.1)))
    (found,) = fold("sum", [exact(values)], [values.sum(-1)], ln.float32, STANDARD)
    assert 0 < found.bound[0] - 99 * unit(ln.float32) * values.sum() < 2.0**-20  # and its rounding


def test_sums_of_few_digits_are_exact() -> None:
    rng = np.random.default_rng(0)
    for scale in (1.0, 2.0**-130, 2.0**90):
        values = rng.integers(-1000, 1000, (5, 400)) * scale
        (found,) = fold("sum", [exact(values)], [values.sum(-1)], ln.float32, STANDARD)
        assert found.exact
    values[:, 7] = 1e-4 * scale
    (found,) = fold("sum", [exact(values)], [values.sum(-1)], ln.float32, STANDARD)
    assert not found.exact


def test_extrema_take_no_error_of_their_own() -> None:
    x = between(1.0, 1.5).viewed(lambda a: a.reshape(1, 1) + np.array([[0.0, 5.0]]))
    for name, value in (("max", 6.25), ("min", 1.25)):
        (found,) = fold(name, [x], [np.array([value])], ln.float32, STANDARD)
        assert found.bound == 0.25


def test_truth_values_and_counts_that_are_not_known() -> None:
    low, high = np.array([[True, False, False]]), np.array([[True, True, False]])
    x = Interval(low, low, high)
    (found,) = fold("any", [x], [np.array([True])], ln.bool, STANDARD)
    assert (found.low, found.high) == (True, True)
    (found,) = fold("all", [x], [np.array([False])], ln.bool, STANDARD)
    assert (found.low, found.high) == (False, False)
    count = x.viewed(lambda a: a.astype(np.int64))
    (found,) = fold("sum", [count], [np.array([1])], ln.int64, STANDARD)
    assert (found.low, found.high) == (1, 2)


def test_variance_of_a_large_mean_is_bounded_by_the_spread() -> None:
    """Not by the square of the mean, as the textbook formula would be."""
    rng = np.random.default_rng(0)
    values = np.float32(100 + rng.normal(size=(1, 1024))).astype(np.float64)
    parts = [exact(values), exact(values * 0), exact(np.ones(values.shape, np.int64))]
    totals = fold_values(
        reducers.WELFORD.of(ln.float32, ln.float32, ln.int64), [p.value for p in parts]
    )
    mean, spread, count = fold("welford", parts, totals, ln.float32, STANDARD)
    assert mean.bound[0] < 600 * 2.0**-24 * 200
    assert spread.bound[0] < 0.1
    assert count.exact


def test_what_may_be_beyond_float8_e4m3fn_may_be_a_number_or_nan() -> None:
    low = np.array([1.0, 400.0, 470.0, -600.0, -900.0, -np.inf])
    high = np.array([1.1, 500.0, 600.0, 600.0, -470.0, np.inf])
    found = narrowed(Interval(high, low, high), ln.float8_e4m3fn, STANDARD)
    assert found.contains(np.array([1.125, 448.0, np.nan, 0.0, np.nan, 3.0])).all()
    assert found.contains(np.full(6, np.nan)).tolist() == [False, True, True, True, True, True]
    assert found.contains(np.zeros(6)).tolist() == [False, True, False, True, False, True]
