"""Bounds of expressions of sizes: the least and the largest value that assumptions leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from loopnest.scalar.expr import Const, Expr, Op, Symbol, integer
from loopnest.scalar.facts import Facts
from loopnest.scalar.polynomials import Monomial, Poly

Range: TypeAlias = "tuple[int | None, int | None]"


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
