"""Reducers: how reductions fold, as data that every reader of a reduction uses.

`combine` is associative and commutative (but for rounding), and `identity` is neutral in it
exactly: partial results of parts that hold no element may be folded in.
"""

from __future__ import annotations

from collections.abc import Callable

from loopnest.definition import Combine, Reducer
from loopnest.dtypes import DType, bool_
from loopnest.expr import Const, Expr, Op, cast


def _folding(op: str) -> Combine:
    def combine(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (Op(op, (a[0], b[0]), a[0].dtype),)

    return combine


def _identity(
    of_type: Callable[[DType], float],
) -> Callable[[tuple[DType, ...]], tuple[Const, ...]]:
    return lambda dtypes: (Const(of_type(dtypes[0]), dtypes[0]),)


def least(dtype: DType) -> float:
    """Return the least value of `dtype`: -inf or the least integer."""
    return float("-inf") if dtype.is_float else -(1 << (dtype.size * 8 - 1))


def greatest(dtype: DType) -> float:
    """Return the greatest value of `dtype`: inf or the greatest integer."""
    return float("inf") if dtype.is_float else (1 << (dtype.size * 8 - 1)) - 1


SUM = Reducer("sum", 1, _identity(lambda dtype: 0), _folding("add"))
PROD = Reducer("prod", 1, _identity(lambda dtype: 1), _folding("mul"))
MAX = Reducer("max", 1, _identity(least), _folding("max"))
MIN = Reducer("min", 1, _identity(greatest), _folding("min"))
ANY = Reducer("any", 1, _identity(lambda dtype: False), _folding("or"))
ALL = Reducer("all", 1, _identity(lambda dtype: True), _folding("and"))


def _no_elements(dtypes: tuple[DType, ...]) -> tuple[Const, ...]:
    return tuple([Const(0, dtype) for dtype in dtypes])


def _combine_welford(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Fold two triples (mean, population variance, count).

    The shares of the two counts are quotients, not 1 minus one another and not products with a
    reciprocal, so that they are exactly 0 and 1 where one count is 0. There the mean needs a test
    of its own only for the sake of infinities.

    A single element, whose count is the constant 1, needs neither that test nor two divisions: its
    share is a reciprocal, and the other one is still exactly 0 where the other count is.
    """
    (mean_a, var_a, count_a), (mean_b, var_b, count_b) = a, b
    real, whole = mean_a.dtype, count_a.dtype
    one = Const(1, whole)
    is_single = count_b is one
    count = Op("add", (count_a, count_b), whole)
    total = cast(count if is_single else Op("max", (count, one), whole), real)
    share_b = Op("div", (cast(count_b, real), total), real)
    held = cast(count_a, real)
    share_a = _times(held, share_b) if is_single else Op("div", (held, total), real)
    delta = Op("sub", (mean_b, mean_a), real)
    step = Op("mul", (delta, share_b), real)
    within = Op("add", (_times(var_a, share_a), _times(var_b, share_b)), real)
    between = Op("mul", (_times(delta, share_a), step), real)
    mean: Expr = Op("add", (mean_a, step), real)
    if not is_single:
        mean = Op("where", (Op("eq", (count_b, Const(0, whole)), bool_), mean_a, mean), real)
    return mean, Op("add", (within, between), real), count


def _times(a: Expr, b: Expr) -> Expr:
    return Op("mul", (a, b), a.dtype)


WELFORD = Reducer("welford", 3, _no_elements, _combine_welford)
"""Components: mean, population variance (not the sum of squares), count.

Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances", 1979.
"""
