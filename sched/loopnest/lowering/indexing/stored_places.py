"""Where a store writes an element: its index, solved for the loop indices in it.

A buffer is mostly indexed by loops, one each. One that is laid out by axes of its own is indexed by
sums of digits: of whole loop indices, and of their quotients and remainders. Where the digits of
each dimension make up all of its numbers once, each element has one point of the loops::

    T8[i1 % 2 * 4 + i2, i0 * 8 + i1 // 2]      i0 < 16, i1 < 16, i2 < 4, T8: [8, 128]
    element [k, m]: i0 = m // 8, i1 = m % 8 * 2 + k // 4, i2 = k % 4
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from loopnest.scalar.expr import ONE, ZERO, Const, Expr, Index, LaunchIndex, Op, integer
from loopnest.scalar.simplify import Simplifier


class _Digit(NamedTuple):
    """A part of a loop index: ``var // low % numbers``, times `weight` in its dimension."""

    var: Index
    low: int
    numbers: int
    weight: int


def solved_places(
    index: Sequence[Expr], shape: Sequence[Expr], element: Sequence[Expr], algebra: Simplifier
) -> dict[Expr, Expr] | None:
    """Return the loop indices at which a store at `index` writes `element` of a buffer.

    None where not every element is written at one point of these loops.
    """
    found: dict[Expr, Expr] = {}
    digits: dict[Index, list[tuple[_Digit, Expr]]] = {}
    for place, extent, at in zip(index, shape, element, strict=True):
        if (place is ZERO and extent is ONE) or (place is at and isinstance(place, LaunchIndex)):
            continue  # the one element there is, or those of the thread's own warp
        if isinstance(place, Index):
            if place in found or not algebra.equal(place.extent, extent):
                return None
            found[place] = at
            continue
        parts = _parts(place, extent, algebra)
        if parts is None:
            return None
        for part in parts:
            upper = algebra.floordiv(at, integer(part.weight))
            digits.setdefault(part.var, []).append(
                (part, algebra.mod(upper, integer(part.numbers)))
            )
    for var, held in digits.items():
        whole = _whole(var, held, algebra)
        if var in found or whole is None:
            return None
        found[var] = whole
    return found


def _whole(var: Index, held: list[tuple[_Digit, Expr]], algebra: Simplifier) -> Expr | None:
    """Return a loop index of its digits, None where they do not make it up."""
    reach = 1
    value: Expr = ZERO
    for part, digit in sorted(held, key=lambda pair: pair[0].low):
        # Digits of a loop index must follow each other without a gap and without overlap, else one
        # number has two writings, or none.
        if part.low != reach:
            return None
        value = algebra.add(value, algebra.mul(digit, integer(part.low)))
        reach *= part.numbers
    return value if algebra.equal(var.extent, integer(reach)) else None


def _parts(place: Expr, extent: Expr, algebra: Simplifier) -> list[_Digit] | None:
    """Return the digits that an index is the sum of, if they make up all of its numbers."""
    parts: list[_Digit] = []
    for term, weight in algebra.poly(place).items():
        if len(term) != 1 or weight < 1:
            return None
        part = _digit(term[0], weight)
        if part is None:
            return None
        parts.append(part)
    reach = 1
    for part in sorted(parts, key=lambda part: part.weight):
        # The same of the digits that a dimension is the sum of: each of its numbers is then met
        # once.
        if part.weight != reach:
            return None
        reach *= part.numbers
    return parts if algebra.equal(extent, integer(reach)) else None


def _digit(atom: Expr, weight: int) -> _Digit | None:
    match atom:
        case Index(extent=Const(value=count)):
            return _Digit(atom, 1, int(count), weight)
        case Op(op="mod", args=(inner, Const(value=count))):
            part = _digit(inner, weight)
            if part is not None and part.numbers % count == 0:
                return part._replace(numbers=int(count))
        case Op(op="floordiv", args=(inner, Const(value=by))):
            part = _digit(inner, weight)
            if part is not None and part.numbers % by == 0:
                return part._replace(low=part.low * int(by), numbers=part.numbers // int(by))
    return None
