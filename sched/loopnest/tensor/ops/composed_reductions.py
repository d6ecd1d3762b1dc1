"""Reductions made of others: logsumexp, and the largest few elements of `topk`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType, float32, int32, int64
from loopnest.scalar.expr import Arg, Const, Expr, Op, cast
from loopnest.tensor.definition import Read, TracedReducer
from loopnest.tensor.ops import reducers
from loopnest.tensor.ops.construction import axes_of, define
from loopnest.tensor.ops.elementary_functions import exp
from loopnest.tensor.ops.joins import stack
from loopnest.tensor.ops.own_reducers import Parts, Reducer
from loopnest.tensor.ops.pointwise import maximum
from loopnest.tensor.ops.reductions import checked_axes, keep_axes
from loopnest.tensor.ops.tuple_reductions import element_number, folded
from loopnest.tensor.tensor_view import TensorView

_Axes: TypeAlias = "int | Sequence[int] | None"

MOST_KEPT = 16
"""How many elements `topk` keeps at most: they stand in registers."""


def logsumexp(tv: TensorView, axis: _Axes = None, keepdims: bool = False) -> TensorView:
    """Return the logarithm of the sum of the exponentials over `axis`, in one pass.

    What is summed are exponentials of what lies below the largest element so far, so that none
    overflows. -inf for no element.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     y = f.output(ln.logsumexp(x, axis=1), "y")
    >>> print(ln.evaluate(f, np.array([[0, 0], [3, 3]], np.float32)))
    [0.6931472 3.6931472]

    Args:
        tv: the operand, of any shape; integers and bools are taken as float32.
        axis: an axis, several, or None for all; negative from the end.
        keepdims: whether broadcast axes of extent 1 stand in place of the reduced ones.

    Returns:
        A tensor without the reduced axes; with `keepdims` a broadcast, whose `.reduction` it is.

    Raises:
        DefinitionError: no TensorView, or axes that it does not have.

    Source: torch.logsumexp; Milakov and Gimelshein, "Online normalizer calculation for softmax",
    2018.
    """
    axes = checked_axes("logsumexp", tv, axis, keepdims)
    dtype = tv.dtype if tv.dtype.is_float else float32
    kind = dtype.compute
    values = (cast(Arg(0, tv.dtype), kind), Const(1, kind))
    reducer = _log_sum_exp().of_elements(values)
    largest, total = folded("logsumexp", tv, axes, [kind, kind], values, reducer)
    most, sums = Arg(0, kind), Arg(1, kind)
    whole = Op("add", (most, Op("log", (sums,), kind)), kind)
    infinite = Op("eq", (Op("abs", (most,), kind), Const(float("inf"), kind)), dtypes.bool_)
    shape = axes_of(largest)
    along = tuple(range(len(shape)))
    result = define(
        tv.fusion, "logsumexp", (largest, total),
        (Read.along(largest, along), Read.along(total, along)), shape, dtype,
        Op("where", (infinite, most, whole), kind),
    )  # fmt: skip
    return keep_axes(result, len(tv.domain.logical), axes) if keepdims else result


def kept_largest(tv: TensorView, count: int, place: int) -> tuple[TensorView, TensorView]:
    """Return the `count` largest elements along an axis, largest first, and their indices.

    They are kept in registers on one way through the elements, `MOST_KEPT` at most.
    """
    kind = int32 if tv.dtype.is_bool else tv.dtype.compute
    reducer = _largest(count, kind)
    first = (cast(Arg(0, tv.dtype), kind), element_number(tv, (place,)))
    values = (*first, *reducer.identity[2:])
    types = [tv.dtype if not tv.dtype.is_bool else kind, int64] * count
    made = folded("topk", tv, (place,), types, values, reducer)
    kept, places = stack(made[::2], place), stack(made[1::2], place)
    if tv.dtype.is_bool:
        shape = axes_of(kept)
        reads = (Read.along(kept, tuple(range(len(shape)))),)
        value = cast(Arg(0, kind), dtypes.bool_)
        kept = define(tv.fusion, "topk", (kept,), reads, shape, dtypes.bool_, value)
    return kept, places


@cache
def _log_sum_exp() -> Reducer:
    """Return the fold of pairs (largest element, sum of the exponentials of what lies below it)."""

    def combine(a: Parts, b: Parts) -> tuple[object, object]:
        most = maximum(a[0], b[0])
        return most, a[1] * exp(a[0] - most) + b[1] * exp(b[0] - most)

    return Reducer((float("-inf"), 0.0), combine, "logsumexp", commutative=True)


@cache
def _largest(count: int, kind: DType) -> TracedReducer:
    """Return the fold of `count` pairs (element, index), largest first, to those of two such."""
    neutral = (Const(reducers.least(kind), kind), Const(int64.greatest, int64))

    def combine(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
        one, other = _pairs(a), _pairs(b)
        if all(pair == neutral for pair in other[1:]):
            kept = [_inserted(one, other[0], n) for n in range(count)]
        else:
            kept = [_merged(one, other, n, neutral) for n in range(count)]
        return tuple([part for pair in kept for part in pair])

    literals = [None, None, *(neutral * (count - 1))]
    return reducers.trace(f"topk_{count}", neutral * count, combine, literals)


_Pair: TypeAlias = "tuple[Expr, Expr]"


def _pairs(parts: Sequence[Expr]) -> list[_Pair]:
    return list(zip(parts[::2], parts[1::2], strict=True))


def _inserted(kept: Sequence[_Pair], new: _Pair, place: int) -> _Pair:
    """Return the pair at `place` of sorted pairs after one more pair is inserted."""
    here = _chosen(_before(new, kept[place]), new, kept[place])
    return here if not place else _chosen(_before(new, kept[place - 1]), kept[place - 1], here)


def _merged(
    one: Sequence[_Pair], other: Sequence[_Pair], place: int, neutral: tuple[Const, Const]
) -> _Pair:
    """Return the pair at `place` of two sorted lists of pairs, merged.

    It is pair n of one list, in front of which there are `place` - n pairs of the other.
    All tests are of the pairs themselves, so that the templates stay small.
    """
    result: _Pair = neutral
    for mine, theirs in ((one, other), (other, one)):
        for n in range(place + 1):
            test: Expr = Op("not", (_before(theirs[place - n], mine[n]),), dtypes.bool_)
            if n < place:
                enough = _before(theirs[place - n - 1], mine[n])
                test = Op("and", (enough, test), dtypes.bool_)
            result = _chosen(test, mine[n], result)
    return result


def _before(a: _Pair, b: _Pair) -> Expr:
    return reducers.comes_first("gt", a, b)


def _chosen(test: Expr, a: _Pair, b: _Pair) -> _Pair:
    value, index = [Op("where", (test, x, y), x.dtype) for x, y in zip(a, b, strict=True)]
    return value, index
