"""Trials of reducers of one's own, on random values: is it associative, its identity neutral?

A trial proves nothing, but what fails it would give results that depend on the schedule. Partial
results keep rules that a trial cannot know (a count is not negative, the largest k are sorted), so
they are drawn in several ways, and one way must do: at random; or as what random elements are
combined to, elements in which a component is positive or the identity's. A component that depends
on itself alone must do with any values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, TypeAlias

import numpy as np

from loopnest.numerics.float64_math import Values, evaluate_expr, held
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Arg, Expr, substitute, two_sides, walk
from loopnest.tensor.tensor_view import TracedReducer

_COUNT = 256
_SEED = 20231
_CLOSE = 1e-6
_FEW = 4
"""For so many components all ways are tried."""

_Parts: TypeAlias = "tuple[Values, ...]"
_Drawn: TypeAlias = 'Literal["any", "positive", "identity"]'
_WAYS: tuple[_Drawn, ...] = ("any", "positive", "identity")


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial found.

    Args:
        failure: what is wrong, None if nothing is.
        exact: whether the identity is neutral without rounding, in itself too.
    """

    failure: str | None
    exact: bool = True


def trial(reducer: TracedReducer, *, commutes: bool = False) -> Trial:
    """Try a reducer on random values.

    Args:
        reducer: traced, for some types.
        commutes: whether it is said to commute.
    """
    for number, alone in _alone(reducer):
        found = _tried(alone, ("any",), commutes)
        if found.failure is not None:
            whose = f"component {number} fails by itself: " if len(reducer.types) > 1 else ""
            return Trial(whose + found.failure)
    first: Trial | None = None
    for way in _ways(len(reducer.types)):
        found = _tried(reducer, way, commutes)
        if found.failure is None:
            return found
        first = first or found
    assert first is not None
    return first


def _alone(reducer: TracedReducer) -> Iterator[tuple[int, TracedReducer]]:
    """Yield the components that depend on themselves alone, as reducers of their own."""
    sides = two_sides(reducer.types)
    for number, template in enumerate(reducer.combination):
        own = (sides[0][number], sides[1][number])
        if all(node in own for node in walk(template) if isinstance(node, Arg)):
            one, other = two_sides(reducer.types[number : number + 1])
            mapping: dict[Expr, Expr] = {own[0]: one[0], own[1]: other[0]}
            combination = (substitute(template, mapping),)
            yield (
                number,
                replace(reducer, identity=(reducer.identity[number],), combination=combination),
            )


def _ways(count: int) -> Iterator[tuple[_Drawn, ...]]:
    """Yield how the components of elements are drawn; all of them at random first."""
    if count <= _FEW:
        yield from product(_WAYS, repeat=count)
        return
    signed: list[_Drawn] = ["any"] * count
    positive: list[_Drawn] = ["positive"] * count
    yield tuple(signed)
    yield (*signed[:1], *positive[1:])
    for kept in range(1, count):  # (largest, index, second, index…), (largest, second…, index…)
        places = {range(kept), range(0, count, kept)}
        for some in places:
            yield tuple(["any" if n in some else "identity" for n in range(count)])


def _tried(reducer: TracedReducer, way: Sequence[_Drawn], commutes: bool) -> Trial:
    with np.errstate(all="ignore"):
        a, b, c = [_drawn(reducer, way, seed) for seed in range(3)]
        neutral = tuple([held(evaluate_expr(value, {}), value.dtype) for value in reducer.identity])
        left = _combined(reducer, _combined(reducer, a, b), c)
        right = _combined(reducer, a, _combined(reducer, b, c))
        if not _vary(left):
            return Trial("random partial results combine to what is always the same")
        if not _alike(left, right):
            return Trial("combine is not associative: (a b) c and a (b c) differ")
        if commutes and not _alike(_combined(reducer, a, b), _combined(reducer, b, a)):
            return Trial("combine does not commute, as commutative=True says: a b and b a differ")
        for one, other in ((neutral, a), (a, neutral)):
            if not _alike(_combined(reducer, one, other), a):
                return Trial("the identity is not neutral: combined with a it does not give a")
        pairs = ((neutral, a, a), (a, neutral, a), (neutral, neutral, neutral))
        exact = all(_equal(_combined(reducer, x, y), wanted) for x, y, wanted in pairs)
    return Trial(None, exact)


def _drawn(reducer: TracedReducer, way: Sequence[_Drawn], seed: int) -> _Parts:
    """Return random partial results: elements, or what some elements are combined to."""
    rng = np.random.default_rng([_SEED, seed])
    count = 1 if set(way) == {"any"} else len(way) + seed
    result = _elements(reducer, way, rng)
    for _ in range(count - 1):
        result = _combined(reducer, result, _elements(reducer, way, rng))
    return result


def _elements(reducer: TracedReducer, way: Sequence[_Drawn], rng: np.random.Generator) -> _Parts:
    return tuple(
        [
            np.broadcast_to(held(evaluate_expr(neutral, {}), neutral.dtype), (_COUNT,))
            if how == "identity"
            else _values(neutral.dtype, how, rng)
            for neutral, how in zip(reducer.identity, way, strict=True)
        ]
    )


def _values(dtype: DType, how: _Drawn, rng: np.random.Generator) -> Values:
    """Return small random values; half of the floats have few digits, so that some are equal."""
    if dtype.is_bool:
        return rng.integers(int(how == "positive"), 2, _COUNT).astype(np.bool_)
    if not dtype.is_float:
        low = 1 if how == "positive" else -6
        return rng.integers(low, 7, _COUNT).astype(dtype.numpy)
    drawn = rng.normal(size=_COUNT) * 2
    drawn = np.where(rng.integers(0, 2, _COUNT) > 0, np.rint(drawn * 2) / 2, drawn)
    return np.abs(drawn) + 0.25 if how == "positive" else drawn


def _combined(reducer: TracedReducer, one: _Parts, other: _Parts) -> _Parts:
    left, right = two_sides(reducer.types)
    env: dict[Expr, Values] = dict(zip((*left, *right), (*one, *other), strict=True))
    return tuple([evaluate_expr(template, env) for template in reducer.combination])


def _vary(parts: _Parts) -> bool:
    """Whether each component has different values; a flag may be always true."""
    found = [part for part in map(np.atleast_1d, parts) if part.dtype.kind != "b"]
    return all(np.unique(part[part == part]).size > 1 for part in found)


def _alike(found: _Parts, wanted: _Parts) -> bool:
    """Whether partial results are equal but for rounding."""
    for a, b in zip(found, wanted, strict=True):
        if np.asarray(b).dtype.kind != "f":
            if not np.array_equal(np.broadcast_to(a, np.shape(b)), b):
                return False
        elif not np.allclose(a, b, rtol=_CLOSE, atol=_CLOSE, equal_nan=True):
            return False
    return True


def _equal(found: _Parts, wanted: _Parts) -> bool:
    for a, b in zip(found, wanted, strict=True):
        with_nan = np.asarray(b).dtype.kind == "f"
        if not np.array_equal(np.broadcast_to(a, np.shape(b)), b, equal_nan=with_nan):
            return False
    return True
