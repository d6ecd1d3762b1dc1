"""Polynomials over atoms of indices: sums of products, each with an integer coefficient.

An atom is what no sum or product is: a symbol, a loop index, a quotient, a remainder, a minimum.
Below them stands what a `Simplifier` asks of them: what divides them (`KnownDivisors`), what bounds
those of sizes (`SizeBounds`), what equations say of sizes (`SolvedSizes`), the one form of a
rounded size, and the rules that undo divisions (`recombined`).

Source: the recombination is that of loopy and isl.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias

from loopnest.scalar import dtypes
from loopnest.scalar.expr import (
    ONE,
    Const,
    Expr,
    Index,
    Op,
    Symbol,
    integer,
    substitute,
    variables,
)
from loopnest.scalar.facts import Facts

Monomial: TypeAlias = tuple[Expr, ...]
Poly: TypeAlias = dict[Monomial, int]
"""A sum of products of atoms: each with the number of times that it stands there."""

UNIT: Monomial = ()
"""The product of no atoms: the key of a polynomial's constant."""


class Products:
    """Products of atoms, in one order: loop indices first, then others as they were first seen.

    Attributes:
        rank: the atoms seen, each with its place in that order.
    """

    def __init__(self) -> None:
        self.rank: dict[Expr, int] = {}

    def _atom_key(self, atom: Expr) -> tuple[bool, int]:
        rank = self.rank.get(atom)
        if rank is None:
            rank = self.rank[atom] = len(self.rank)
        return (not isinstance(atom, Index), rank)

    def monomial(self, atoms: Iterable[Expr]) -> Monomial:
        """Return the product of `atoms`."""
        result = list(atoms)
        if len(result) > 1:
            result.sort(key=self._atom_key)
        return tuple(result)

    def times(self, a: Poly, b: Poly) -> Poly:
        """Return the product of two polynomials."""
        if len(b) == 1 and UNIT in b:
            factor = b[UNIT]
            return {t: c * factor for t, c in a.items()}
        result: Poly = {}
        for left, m in a.items():
            for right, n in b.items():
                term = self.monomial((*left, *right)) if left and right else left or right
                total = result.get(term, 0) + m * n
                if total:
                    result[term] = total
                else:
                    result.pop(term, None)
        return result


class PolynomialAlgebra(Protocol):
    """What rules and bounds ask of the simplifier, which uses them."""

    facts: Facts
    products: Products

    @property
    def solved(self) -> SolvedSizes: ...

    def poly(self, node: Expr) -> Poly: ...
    def expression(self, poly: Poly) -> Expr: ...
    def combine(self, a: Poly, b: Poly, sign: int) -> Poly: ...
    def split(self, dividend: Poly, divisor: Expr) -> tuple[Poly, Poly]: ...
    def mul(self, a: Expr, b: Expr) -> Expr: ...
    def mod(self, a: Expr, b: Expr) -> Expr: ...
    def binary(self, op: str, a: Expr, b: Expr) -> Expr: ...
    def divides(self, divisor: Expr, value: Expr) -> bool: ...
    def simplify(self, root: Expr) -> Expr: ...


def divide_monomial(term: Monomial, by: Monomial) -> Monomial | None:
    """Return ``term / by``, None where `by` has an atom that `term` lacks."""
    if not by:
        return term
    rest = list(term)
    for atom in by:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def product_of(term: Monomial, factor: int) -> Expr:
    """Return ``term * factor`` as an expression."""
    if not term:
        return integer(factor)
    result = term[0]
    for atom in term[1:]:
        result = index_op("mul", result, atom)
    return result if factor == 1 else index_op("mul", result, integer(factor))


def index_op(op: str, *args: Expr) -> Expr:
    """Return an operation on indices as it is, not simplified."""
    return Op(op, args, dtypes.index)


class KnownDivisors:
    """What divides the indices of one simplifier.

    Args:
        facts: what was assumed of sizes.
        products: the order of atoms in a product.
        poly: returns an index as a polynomial.
    """

    def __init__(self, facts: Facts, products: Products, poly: Callable[[Expr], Poly]) -> None:
        self._facts, self._products, self._poly = facts, products, poly

    def divides(self, divisor: Expr, value: Expr) -> bool:
        """Whether `divisor` is proved to divide `value`."""
        if divisor is ONE or divisor is value:
            return True
        if self._facts.states_divisible(value, divisor):
            return True
        if isinstance(divisor, Op) and divisor.op == "floordiv" and divisor.args[0] is value:
            return self.divides(divisor.args[1], value)  # what divides has a whole quotient
        base = self._poly(divisor)
        if len(base) != 1:
            return False
        ((monomial, factor),) = base.items()
        return all(
            self._term_divisible(t, c, monomial, factor) for t, c in self._poly(value).items()
        )

    def _term_divisible(self, term: Monomial, count: int, monomial: Monomial, factor: int) -> bool:
        left = divide_monomial(term, monomial)
        return left is not None and self.of({left: count}) % factor == 0

    def _of_atom(self, atom: Expr) -> int:
        """Return an integer that is known to divide `atom`."""
        if isinstance(atom, Op) and atom.op == "mod":
            return math.gcd(*[self.of(self._poly(arg)) for arg in atom.args])
        return self._facts.divisor(atom)

    def of(self, poly: Poly) -> int:
        """Return an integer that is known to divide a polynomial; 0 of 0."""
        found = 0
        for term, count in poly.items():
            known = math.prod([self._of_atom(atom) for atom in term])
            for product, divisor in self._facts.product_divisors(frozenset(term)):
                left = divide_monomial(term, self._products.monomial(product))
                if left is not None:
                    others = math.prod([self._of_atom(atom) for atom in left])
                    known = math.lcm(known, divisor * others)
            found = math.gcd(found, count * known)
        return found


Range: TypeAlias = "tuple[int | None, int | None]"
"""The least and the largest value that assumptions leave; None where there is no bound."""


class SizeBounds:
    """Ranges over all launches that the facts allow; a size may be 0 unless they say otherwise.

    Args:
        facts: what was assumed of sizes.
        poly: writes an index as a polynomial.
    """

    def __init__(self, facts: Facts, poly: Callable[[Expr], Poly]) -> None:
        self._facts, self._poly = facts, poly

    def one_quotient(self, a: Expr, b: Expr, divide: Callable[[int, int], int]) -> Expr | None:
        """Return a quotient that is the same number for all that `a` can be, by assumptions."""
        if not isinstance(b, Const) or not self._facts.bounds_above:
            return None
        low, high = self.of_poly(self._poly(a))
        if low is None or high is None:
            return None
        # A quotient never falls where the dividend grows: equal at both ends, it is one number
        # between.
        first = divide(low, int(b.value))
        return integer(first) if first == divide(high, int(b.value)) else None

    def of(self, size: Expr) -> Range:
        """Return the least and the largest value of a size at any launch; None: no bound."""
        return self.of_poly(self._poly(size))

    def of_poly(self, poly: Poly) -> Range:
        """Return the least and the largest value of a polynomial, None where not bounded."""
        least: int | None = 0
        most: int | None = 0
        for term, coefficient in poly.items():
            low, high = self._product_range(term)
            if coefficient < 0:
                low, high = high, low
            least = None if least is None or low is None else least + coefficient * low
            most = None if most is None or high is None else most + coefficient * high
        return least, most

    def _product_range(self, term: Monomial) -> Range:
        least: int = 1
        most: int | None = 1
        for atom in term:
            low, high = self._atom_range(atom)
            # Bounds multiply to bounds of the product only where no factor is negative.
            if low is None or low < 0:
                return None, None
            least *= low
            most = None if most is None or high is None else most * high
        return least, most

    def _atom_range(self, atom: Expr) -> Range:
        if isinstance(atom, Op) and atom.op in ("floordiv", "ceildiv", "mod"):
            low, high = self.of_poly(self._poly(atom.args[0]))
            by = atom.args[1]
            if isinstance(by, Const) and low is not None and low >= 0:
                size = int(by.value)
                if atom.op == "mod":
                    return 0, size - 1 if high is None else min(high, size - 1)
                up = size - 1 if atom.op == "ceildiv" else 0
                return (low + up) // size, None if high is None else (high + up) // size
        if isinstance(atom, Symbol):
            return self._facts.range_of(atom)
        return None, None


class SolvedSizes:
    """Sizes as what equations say they are, in terms of the others.

    Of ``N == T * 16`` and ``T == K + 1`` come N = K * 16 + 16 and T = K + 1. Two expressions are
    equal where they are the same after these are put in, and so are quotients: N // 16 is K + 1.

    Args:
        algebra: simplifies the solutions.
        equations: expressions of sizes that are equal.

    Source: Gaussian elimination, over whole numbers: an equation is solved for a size that stands
    in it alone and once, so that nothing is divided.
    """

    def __init__(self, algebra: PolynomialAlgebra, equations: Iterable[tuple[Expr, Expr]]) -> None:
        self.algebra = algebra
        self.facts = algebra.facts
        self._values: dict[Expr, Expr] = {}
        self._sides: dict[Expr, frozenset[Expr]] = {}
        self._memo: dict[Expr, Expr] = {}
        for left, right in equations:
            self._solve(left, right)

    def __bool__(self) -> bool:
        return bool(self._values)

    def _solve(self, left: Expr, right: Expr) -> None:
        algebra = self.algebra
        one, two = [algebra.simplify(substitute(side, self._values)) for side in (left, right)]
        difference = algebra.combine(algebra.poly(one), algebra.poly(two), -1)
        symbol = _alone(difference, left)
        if symbol is None:
            return
        count = difference[(symbol,)]
        rest = {term: -count * times for term, times in difference.items() if term != (symbol,)}
        value = algebra.expression(rest)
        used = [self._sides[s] for s in self._values if s in variables(left) | variables(right)]
        sides = frozenset([left]).union(*used)
        for other, held in self._values.items():
            if symbol in variables(held):
                self._values[other] = algebra.simplify(substitute(held, {symbol: value}))
                self._sides[other] |= sides
        self._values[symbol], self._sides[symbol] = value, sides

    def apply(self, size: Expr) -> Expr:
        """Return `size` without the sizes that follow from others; the same object if it has none.

        It does not count as a use of the assumptions; see `rely_on`.
        """
        found = self._memo.get(size)
        if found is None:
            found = size
            if not self._values.keys().isdisjoint(variables(size)):
                found = self.algebra.simplify(substitute(size, self._values))
            self._memo[size] = found
        return found

    def shortest(self, size: Expr) -> Expr:
        """Return the symbol that follows from sizes as `size`; `size` itself where none does.

        So tests against N and against T * S are one, of N == T * S.
        """
        poly = self.algebra.poly(size)
        for symbol, value in self._values.items():
            if self.algebra.poly(value) == poly:
                self.rely_on((symbol,))
                return symbol
        return size

    def factors(self, size: Expr) -> frozenset[Expr]:
        """Return sizes that are >= 1 where those in `size` that follow from them are."""
        found: set[Expr] = set()
        for symbol in variables(size):
            value = self._values.get(symbol)
            terms = {} if value is None else self.algebra.poly(value)
            if len(terms) == 1:
                found.update(atom for term in terms for atom in term if isinstance(atom, Symbol))
        return frozenset(found)

    def rely_on(self, sizes: Iterable[Expr]) -> None:
        """Note that what equations say of the symbols in `sizes` decided something."""
        for symbol in {v for size in sizes for v in variables(size)}:
            for side in self._sides.get(symbol, ()):
                self.facts.rely_on_equation(side)


def _alone(difference: Poly, left: Expr) -> Symbol | None:
    """Return a symbol that an equation can be solved for, the left side where it is one.

    It stands once, neither in a product nor in a quotient, and no more than once: K in
    ``K - T * 16``, none in ``K * 2 - G * 32``.
    """
    found = None
    for term, count in difference.items():
        if len(term) == 1 and abs(count) == 1 and isinstance(term[0], Symbol):
            symbol = term[0]
            others = [atom for other in difference if other != term for atom in other]
            if not any(symbol in variables(atom) for atom in others):
                if symbol is left:
                    return symbol
                found = symbol if found is None else found
    return found


# Rounded sizes: the one form of each, however it is written
#
# A quotient that rounds up becomes a ``ceildiv``, whose dividend has no constant where that can be.
# Of a size x and a constant d, a sum may have five terms: x, ``x // d``, ``ceildiv(x, d)``,
# ``x % d`` and ``-x % d``. Two of them follow from the others::
#
#     x % d == x - x // d * d
#     -x % d == ceildiv(x, d) * d - x
#
# and for d = 2 a third, since ``x // 2 + ceildiv(x, 2) == x``. A sum with several of these terms is
# written with the fewest, so that a size is one expression: ``H + H % 2`` is ``ceildiv(H, 2) * 2``.


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


# Rules that put quotients and remainders together
#
# Each undoes a division: ``x // d * d + x % d`` is x again. A rule gets a polynomial, one of its
# terms with its coefficient, and an atom of that term; it returns the polynomial without them, or
# None where it does not apply.


def recombined(poly: Poly, algebra: PolynomialAlgebra) -> Poly | None:
    """Return a polynomial in which one quotient or remainder is undone, None where none can be."""
    for term, coefficient in poly.items():
        for atom in term:
            if not isinstance(atom, Op):
                continue
            for rule in _RULES.get(atom.op, ()):
                merged = rule(algebra, poly, term, coefficient, atom)
                if merged is not None:
                    return merged
    return None


def _undo_mod(
    algebra: PolynomialAlgebra, poly: Poly, term: Monomial, count: int, atom: Op
) -> Poly | None:
    inner, divisor = atom.args
    quotient = index_op("floordiv", inner, divisor)
    others = list(term)
    others.remove(atom)
    factor = {algebra.products.monomial([quotient, *others]): count}
    partner = algebra.products.times(factor, algebra.poly(divisor))
    # A divisor that is a sum spreads the quotient over several terms: not looked for.
    if len(partner) != 1:
        return None
    ((key, wanted),) = partner.items()
    if poly.get(key) != wanted:
        return None
    rest = {t: c for t, c in poly.items() if t != term and t != key}
    factor = {algebra.products.monomial(others): count}
    return algebra.combine(rest, algebra.products.times(algebra.poly(inner), factor), 1)


def _undo_digit(
    algebra: PolynomialAlgebra, poly: Poly, term: Monomial, count: int, atom: Op
) -> Poly | None:
    """Undo ``x // d % e * d + x % d``, which is ``x % (d * e)``."""
    quotient, base = atom.args
    if not isinstance(quotient, Op) or quotient.op != "floordiv" or len(poly) < 2:
        return None
    whole, by = quotient.args
    others = list(term)
    others.remove(atom)
    factor, left = algebra.split({algebra.products.monomial(others): count}, by)
    if left or not factor:
        return None
    digit = algebra.products.times(algebra.poly(algebra.mod(whole, by)), factor)
    if not digit or any(poly.get(key) != wanted for key, wanted in digit.items()):
        return None
    both = algebra.products.times(algebra.poly(algebra.mod(whole, algebra.mul(by, base))), factor)
    result: Poly = {}
    for key, wanted in poly.items():  # in the place of the digits
        if key == term:
            result = algebra.combine(result, both, 1)
        elif key not in digit:
            result = algebra.combine(result, {key: wanted}, 1)
    return result


def _undo_exact(
    algebra: PolynomialAlgebra, poly: Poly, term: Monomial, count: int, atom: Op
) -> Poly | None:
    inner, divisor = atom.args
    others = list(term)
    others.remove(atom)
    divided = algebra.split({algebra.products.monomial(others): count}, divisor)
    if divided[1] or not divided[0] or not algebra.divides(divisor, inner):
        return None
    rest = {t: c for t, c in poly.items() if t != term}
    return algebra.combine(rest, algebra.products.times(algebra.poly(inner), divided[0]), 1)


def _take_part(
    algebra: PolynomialAlgebra, poly: Poly, term: Monomial, count: int, atom: Op
) -> Poly | None:
    """Write ``x - x // d`` as ``(d - 1) * (x // d)`` where the int d divides x."""
    inner, divisor = atom.args
    if len(poly) < 2 or not isinstance(divisor, Const):
        return None
    others = list(term)
    others.remove(atom)
    sign, by = (1 if count < 0 else -1), int(divisor.value)
    factor = {algebra.products.monomial(others): sign}
    whole = algebra.products.times(algebra.poly(inner), factor)
    if not whole or by < 2 or term in whole:
        return None
    if any(poly.get(key, 0) * wanted < wanted * wanted for key, wanted in whole.items()):
        return None
    if not algebra.divides(divisor, inner):
        return None
    # Each step leaves less of the dividend, so that there are finitely many.
    left = {key: number - whole.get(key, 0) for key, number in poly.items()}
    left[term] = count + sign * by
    return {key: number for key, number in left.items() if number}


def _undo_quotient(
    algebra: PolynomialAlgebra, poly: Poly, term: Monomial, count: int, atom: Op
) -> Poly | None:
    """Undo ``x // 4 * 4 + i % 4`` with x = 8k + i: the remainder was simplified."""
    inner, divisor = atom.args
    if len(poly) < 2:
        return None
    others = list(term)
    others.remove(atom)
    scale, left = algebra.split({algebra.products.monomial(others): count}, divisor)
    if left or not scale:
        return None
    remainder = algebra.products.times(algebra.poly(algebra.mod(inner, divisor)), scale)
    if not remainder or any(poly.get(key) != wanted for key, wanted in remainder.items()):
        return None
    rest = {t: c for t, c in poly.items() if t != term and t not in remainder}
    return algebra.combine(rest, algebra.products.times(algebra.poly(inner), scale), 1)


_RULES = {
    "mod": (_undo_mod, _undo_digit, shorter),
    "floordiv": (_undo_exact, _undo_quotient, _take_part, shorter),
    "ceildiv": (shorter,),
}
