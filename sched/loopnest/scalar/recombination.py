"""Rules that put quotients and remainders of indices together, for `Simplifier`.

Each undoes a division: ``x // d * d + x % d`` is x again. A rule gets a polynomial, one of its
terms with its coefficient, and an atom of that term; it returns the polynomial without them, or
None where it does not apply.

Source: the recombination is that of loopy and isl.
"""

from __future__ import annotations

from loopnest.scalar.expr import Const, Op
from loopnest.scalar.polynomials import Monomial, Poly, PolynomialAlgebra, index_op
from loopnest.scalar.size_rounding import shorter


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
