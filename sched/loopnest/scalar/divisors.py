"""Divisors of indices: what is known to divide a polynomial, and proofs that one does.

They follow from the coefficients, and from what was assumed of sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from loopnest.scalar.expr import ONE, Expr, Op
from loopnest.scalar.facts import Facts
from loopnest.scalar.polynomials import Monomial, Poly, Products, divide_monomial


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
