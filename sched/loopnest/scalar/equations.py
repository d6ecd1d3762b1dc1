"""Equations of sizes, solved: from what is assumed equal, each size that follows from others.

Of ``N == T * 16`` and ``T == K + 1`` come N = K * 16 + 16 and T = K + 1. Two expressions are equal
where they are the same after these are put in, and so are quotients: N // 16 is K + 1.

Source: Gaussian elimination, over whole numbers: an equation is solved for a size that stands in it
alone and once, so that nothing is divided.
"""

from __future__ import annotations

from collections.abc import Iterable

from loopnest.scalar.expr import Expr, Symbol, substitute, variables
from loopnest.scalar.polynomials import Poly, PolynomialAlgebra


class SolvedSizes:
    """Sizes as what equations say they are, in terms of the others.

    Args:
        algebra: simplifies the solutions.
        equations: expressions of sizes that are equal.
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
