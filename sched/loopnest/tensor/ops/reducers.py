"""Reducers: how reductions fold, as data that every reader of a reduction uses.

A family is written as a function that combines two partial results, and traced once for each choice
of component types: what definitions and kernels hold are the templates that it returned.

`combine` is associative and commutative (but for rounding), and `identity` is neutral in it
exactly: partial results of parts that hold no element may be folded in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from loopnest.scalar.dtypes import DType, bool_, int64
from loopnest.scalar.expr import Const, Expr, Op, cast, two_sides
from loopnest.tensor.tensor_view import TracedReducer

Types: TypeAlias = "tuple[DType, ...]"
Combine: TypeAlias = Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, ...]]


def trace(
    name: str,
    identity: tuple[Const, ...],
    combine: Combine,
    literals: Sequence[Const | None] = (),
    *,
    ordered: bool = False,
) -> TracedReducer:
    """Return the reducer that `combine` describes: it is called with symbolic partial results.

    Args:
        name: of the reducer.
        identity: the neutral partial result; its types are those of the components.
        combine: folds two partial results, given as expressions of these types.
        literals: components of the second partial result with which it is traced once more, None
            where any value will do: the form that is used where these are the literals found.
        ordered: whether partial results must stay in the order of their elements.
    """
    one, other = two_sides([value.dtype for value in identity])
    special: tuple[Expr, ...] = ()
    if literals:
        found = [
            arg if known is None else known for arg, known in zip(other, literals, strict=True)
        ]
        special = combine(one, tuple(found))
    return TracedReducer(name, identity, combine(one, other), tuple(literals), special, ordered)


@dataclass(frozen=True, eq=False, slots=True)
class Family:
    """Reducers of one name, one for each choice of the components' types; see `trace`."""

    name: str
    identity: Callable[[Types], tuple[Const, ...]]
    combine: Combine
    literals: tuple[Const | None, ...] = ()
    components: int = 1
    _traced: dict[Types, TracedReducer] = field(default_factory=dict, repr=False)

    def of(self, *types: DType) -> TracedReducer:
        """Return the reducer of partial results of `types`."""
        found = self._traced.get(types)
        if found is None:
            found = trace(self.name, self.identity(types), self.combine, self.literals)
            self._traced[types] = found
        return found


def _folding(op: str) -> Combine:
    def combine(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (Op(op, (a[0], b[0]), a[0].dtype),)

    return combine


def _identity(of_type: Callable[[DType], float]) -> Callable[[Types], tuple[Const, ...]]:
    return lambda types: (Const(of_type(types[0]), types[0]),)


def least(dtype: DType) -> float:
    """Return the least value of `dtype`: -inf or the least integer."""
    return float("-inf") if dtype.is_float else dtype.least


def greatest(dtype: DType) -> float:
    """Return the greatest value of `dtype`: inf or the greatest integer."""
    return float("inf") if dtype.is_float else dtype.greatest


SUM = Family("sum", _identity(lambda dtype: 0), _folding("add"))
PROD = Family("prod", _identity(lambda dtype: 1), _folding("mul"))
MAX = Family("max", _identity(least), _folding("max"))
MIN = Family("min", _identity(greatest), _folding("min"))
ANY = Family("any", _identity(lambda dtype: False), _folding("or"))
ALL = Family("all", _identity(lambda dtype: True), _folding("and"))


def _first_extremum(beyond: str, extreme: str) -> Combine:
    """Return the fold of pairs (element, index) to an extremum, and where it stands first.

    A NaN lies beyond all others. It commutes: of equal elements that of the lower index counts.
    """

    def combine(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
        (value_a, index_a), (value_b, index_b) = a, b
        taken = comes_first(beyond, (value_b, index_b), (value_a, index_a))
        return (
            Op(extreme, (value_a, value_b), value_a.dtype),
            Op("where", (taken, index_b, index_a), index_a.dtype),
        )

    return combine


def comes_first(beyond: str, b: tuple[Expr, Expr], a: tuple[Expr, Expr]) -> Expr:
    """Return whether the pair (element, index) `b` comes before `a`.

    It does where its element lies beyond the other ("gt" or "lt"; a NaN lies beyond all others),
    or is equal and has the lower index.
    """
    (value_a, index_a), (value_b, index_b) = a, b
    farther: Expr = _test(beyond, value_b, value_a)
    same: Expr = _test("eq", value_b, value_a)
    if value_a.dtype.is_float:
        nan_a, nan_b = [Op("isnan", (value,), bool_) for value in (value_a, value_b)]
        farther = _test("or", farther, _test("and", nan_b, Op("not", (nan_a,), bool_)))
        same = _test("or", same, _test("and", nan_a, nan_b))
    return _test("or", farther, _test("and", same, _test("lt", index_b, index_a)))


def _test(op: str, a: Expr, b: Expr) -> Expr:
    return Op(op, (a, b), bool_)


def _nowhere(of_type: Callable[[DType], float]) -> Callable[[Types], tuple[Const, ...]]:
    def identity(types: Types) -> tuple[Const, ...]:
        return Const(of_type(types[0]), types[0]), Const(greatest(types[1]), types[1])

    return identity


ARGMAX = Family("argmax", _nowhere(least), _first_extremum("gt", "max"), components=2)
ARGMIN = Family("argmin", _nowhere(greatest), _first_extremum("lt", "min"), components=2)
"""Components: the extremum, and the least index at which it stands."""


def _no_elements(types: Types) -> tuple[Const, ...]:
    return tuple([Const(0, dtype) for dtype in types])


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


WELFORD = Family("welford", _no_elements, _combine_welford, (None, None, Const(1, int64)), 3)
"""Components: mean, population variance (not the sum of squares), count.

Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances", 1979.
"""
