"""The one form of a rounded size, however it is written: ``H + H % 2`` is ``ceildiv(H, 2) * 2``.

A quotient that rounds up becomes a ``ceildiv``, whose dividend has no constant where that can be.
Of a size x and a constant d, a sum may have five terms: x, ``x // d``, ``ceildiv(x, d)``, ``x % d``
and ``-x % d``. Two of them follow from the others::

    x % d == x - x // d * d
    -x % d == ceildiv(x, d) * d - x

and for d = 2 a third, since ``x // 2 + ceildiv(x, 2) == x``. A sum with several of these terms is
written with the fewest, so that a size is one expression.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from loopnest.scalar.expr import Const, Expr, Op, Symbol, integer, variables
from loopnest.scalar.polynomials import UNIT, Monomial, Poly, PolynomialAlgebra

Parts: TypeAlias = "tuple[int, int, int, int, int]"
"""The coefficients of the five terms in a sum, in their order above."""


def is_size(node: Expr) -> bool:
    """Whether an expression is one of sizes alone."""
    return all(isinstance(v, Symbol) for v in variables(node))


def moved_ceiling(algebra: PolynomialAlgebra, dividend: Expr, divisor: Const) -> Expr | None:
    """Return ``ceildiv(n + c, d)`` as a constant plus ``ceildiv(n, d)`` or ``n // d``.

    None where c is 0, or where no such sum is equal.
    """
    count, by = algebra.poly(dividend).get(UNIT, 0), int(divisor.value)
    if not count:
        return None
    whole = algebra.binary("sub", dividend, integer(count))
    if algebra.divides(divisor, whole):
        # ceil((w * d + c) / d) = w + ceil(c / d): of an even D, ceildiv(D - 1, 2) is D // 2
        quotient = algebra.binary("floordiv", whole, divisor)
        return algebra.binary("add", quotient, integer(-(-count // by)))
    if not is_size(whole):
        return None
    if count % by == 0:
        return algebra.binary(
            "add", algebra.binary("ceildiv", whole, divisor), integer(count // by)
        )
    if count % by == 1:
        # ceil((n + c) / d) = floor((n + c + d - 1) / d): of any D, ceildiv(D - 1, 2) is D // 2
        quotient = algebra.binary("floordiv", whole, divisor)
        return algebra.binary("add", quotient, integer(count // by + 1))
    return None


def rounded_up(algebra: PolynomialAlgebra, rest: Poly, divisor: Const) -> Poly | None:
    """Return a quotient of sizes that rounds up as a ``ceildiv``; None for other quotients.

    ``(N + 1) // 2`` is ``ceildiv(N, 2)``, ``-N // 2`` is ``-ceildiv(N, 2)``, whose sign shows.
    """
    last = int(divisor.value) - 1
    sizes = {term: count for term, count in rest.items() if term != UNIT}
    if all(count < 0 for count in sizes.values()):
        # floor((c - p) / d) = -ceil((p - c) / d) = -floor((p - c + d - 1) / d)
        opposite = algebra.combine({UNIT: last}, rest, -1)
        quotient = algebra.binary("floordiv", algebra.expression(opposite), divisor)
        return algebra.combine({}, algebra.poly(quotient), -1)
    if rest.get(UNIT) == last and sizes:
        return algebra.poly(algebra.binary("ceildiv", algebra.expression(sizes), divisor))
    return None


def plain_remainder(algebra: PolynomialAlgebra, rest: Poly, divisor: Expr) -> Poly | None:
    """Return a sum of sizes with the same remainder and smaller terms; None where there is none.

    ``-n % 2`` is ``n % 2``, and ``(4 - n % 4) % 4`` is ``-n % 4``.
    """
    if not isinstance(divisor, Const):
        return None
    by = int(divisor.value)
    if not all(is_size(atom) for term in rest for atom in term):
        return None
    for term, count in rest.items():
        if len(term) == 1 and isinstance(term[0], Op) and term[0].op == "mod":
            dividend, other = term[0].args
            if isinstance(other, Const) and int(other.value) % by == 0:
                others = {key: times for key, times in rest.items() if key != term}
                part = algebra.products.times(algebra.poly(dividend), {UNIT: count})
                return algebra.combine(others, part, 1)
    if by == 2 and any(count not in (0, 1) for count in rest.values()):
        return {term: 1 for term, count in rest.items() if count % 2}
    return None


def shorter(
    algebra: PolynomialAlgebra, poly: Poly, term: Monomial, count: int, atom: Op
) -> Poly | None:
    """Return an equal polynomial with fewer of the five terms; None where there is none.

    `atom` is one of them, a factor of `term`, which has the coefficient `count`. Each step leaves
    fewer terms, smaller coefficients or fewer remainders, so that the steps end.
    """
    inner, divisor = atom.args
    if len(poly) < 2 or not isinstance(divisor, Const):
        return None
    if not is_size(inner):
        return None
    size = algebra.poly(inner)
    if atom.op == "mod" and all(times < 0 for times in size.values()):
        size = algebra.combine({}, size, -1)
    others = list(term)
    others.remove(atom)
    factor: Poly = {algebra.products.monomial(others): 1}
    whole = algebra.products.times(size, factor)
    if not (any(key in poly for key in whole) or _has_other_part(poly, term, atom)):
        return None
    keys = _keys(algebra, size, divisor, factor)
    if keys is None or not whole.keys().isdisjoint(keys):  # N % 2 is its own remainder
        return None
    found = _parts(poly, whole, keys)
    best = min(_ways(found, int(divisor.value)), key=_cost)
    if _cost(best) >= _cost(found):
        return None
    return _rewritten(algebra, poly, whole, keys, [b - f for b, f in zip(best, found, strict=True)])


def _has_other_part(poly: Poly, term: Monomial, atom: Op) -> bool:
    """Whether another term rounds something by the same number."""
    return any(
        isinstance(other, Op) and other.op in ("floordiv", "ceildiv", "mod")
        and other.args[1] is atom.args[1]
        for key in poly if key != term for other in key
    )  # fmt: skip


def _keys(
    algebra: PolynomialAlgebra, size: Poly, divisor: Const, factor: Poly
) -> list[Monomial] | None:
    """Return the two quotients and the two remainders of a size, each times `factor`.

    None where one of them is not a single term.
    """
    plain = algebra.expression(size)
    if algebra.divides(divisor, plain):
        return None
    opposite = algebra.expression(algebra.combine({}, size, -1))
    found: list[Monomial] = []
    for op, dividend in (
        ("floordiv", plain), ("ceildiv", plain), ("mod", plain), ("mod", opposite)
    ):  # fmt: skip
        made = algebra.products.times(algebra.poly(algebra.binary(op, dividend, divisor)), factor)
        if list(made.values()) != [1] or UNIT in made:
            return None
        found += made
    return found


def _parts(poly: Poly, whole: Poly, keys: list[Monomial]) -> Parts:
    """Return the coefficients of the five terms; that of x is 0 where no multiple of it stands."""
    times = {poly.get(key, 0) / wanted for key, wanted in whole.items()}
    (first, *more) = times
    plain = int(first) if not more and first == int(first) else 0
    quotient, ceiling, remainder, rest = [poly.get(key, 0) for key in keys]
    return plain, quotient, ceiling, remainder, 0 if keys[2] == keys[3] else rest


def _ways(found: Parts, by: int) -> Iterator[Parts]:
    """Yield the coefficients of equal sums, each without some of the five terms.

    h, q, c, m and n are those of x, ``x // d``, ``ceildiv(x, d)``, ``x % d`` and ``-x % d``.
    """
    h, q, c, m, n = found
    if by == 2:
        # Two terms are enough: x is x // 2 + ceildiv(x, 2), and x % 2 their difference.
        low, high = h + q - m - n, h + c + m + n
        yield high, low - high, 0, 0, 0
        yield low, 0, high - low, 0, 0
        if (low + high) % 2 == 0:
            yield (low + high) // 2, 0, 0, (high - low) // 2, 0
        yield 0, low, high, 0, 0
        yield 0, low + high, 0, high, 0
        yield 0, 0, low + high, -low, 0
        return
    # Without remainders; then with t times x % d and u times -x % d.
    h, q, c = h + m - n, q - by * m, c + by * n
    down = {0, h} | ({-q // by} if q % by == 0 else set())
    for u in {0, -h} | ({c // by} if c % by == 0 else set()):
        for t in down | {h + u}:
            yield h - t + u, q + by * t, c - by * u, t, u


def _cost(parts: Parts) -> tuple[int, int, int, int]:
    """Return what is least of the shortest sum: terms, coefficients, remainders, ceilings."""
    h, q, c, m, n = [abs(part) for part in parts]
    return sum([part > 0 for part in (h, q, c, m, n)]), h + q + c + m + n, m + n, c


def _rewritten(
    algebra: PolynomialAlgebra, poly: Poly, whole: Poly, keys: list[Monomial], change: list[int]
) -> Poly:
    """Return a polynomial with changed coefficients of the five terms, where the first stood."""
    parts: Poly = dict.fromkeys([*whole, *keys], 0)
    for key in parts:
        parts[key] = poly.get(key, 0) + change[0] * whole.get(key, 0)
    for key, count in zip(keys, change[1:], strict=True):
        parts[key] += count
    found: Poly = {}
    for key, count in poly.items():
        found.update(parts if key in parts and not parts.keys() & found.keys() else {})
        if key not in parts:
            found[key] = count
    return {key: count for key, count in found.items() if count}
