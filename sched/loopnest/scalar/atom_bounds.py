"""Proofs that a polynomial of indices is nowhere negative, from bounds of its atoms.

An atom lies between 0 and what follows from the extent of a loop, of the launch, or of a divisor;
a size is its own bound, at least what was assumed of it.
"""

from __future__ import annotations

from collections.abc import Callable

from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import Expr, Index, LaunchIndex, Op, Symbol, variables
from loopnest.scalar.polynomials import UNIT, Poly, PolynomialAlgebra


class AtomBounds:
    """Bounds of the atoms that one simplifier knows; it asks and is asked.

    Attributes:
        launch: extents of the launch, where known: bounds of the numbers of threads and blocks.
    """

    def __init__(self, algebra: PolynomialAlgebra) -> None:
        self.algebra, self.facts = algebra, algebra.facts
        self.times, self.combine = algebra.products.times, algebra.combine
        self.launch: dict[ParallelType, Expr] = {}
        self._high: dict[Expr, Poly] = {}
        self._naturals: dict[Expr, bool] = {}
        self._proved: dict[tuple[object, ...], bool] = {}

    def take(self, launch: dict[ParallelType, Expr]) -> None:
        """Take over the extents of a launch: bounds of the numbers of threads from now on."""
        self.launch = launch
        self._proved.clear()

    def nonnegative(self, poly: Poly, least: Callable[[Expr], int] | None = None) -> bool:
        """Whether poly >= 0 is proved, from bounds of its atoms, none of which may be negative.

        `least` gives lower bounds of sizes; by default those inside of loops over them.
        """
        if least is not None:
            return self._prove(poly, least)
        shape = _shape(poly)
        found = self._proved.get(shape)
        if found is None:
            found = self._proved[shape] = self._prove(poly, self._least)
        return found

    def _prove(self, poly: Poly, least: Callable[[Expr], int]) -> bool:
        if not all(self._natural(atom) for term in poly for atom in term):
            return False
        if all(c >= 0 for c in poly.values()):
            return True
        # Each term bounded by itself bounds the sum, if not sharply.
        low = self._bound(poly, upper=False)
        if all(c >= 0 for c in low.values()):
            return True
        # N - 1 has a negative coefficient; with N = N' + 1, N' >= 0, it has none.
        if all(c >= 0 for c in self._shifted(low, least).values()):
            return True
        return bool(self.algebra.solved) and self._solved_nonnegative(low, least)

    def _solved_nonnegative(self, low: Poly, least: Callable[[Expr], int]) -> bool:
        """Whether low >= 0 is proved with assumed equations put in: N - T * 16 of N == T * 16."""
        solved, size = self.algebra.solved, self.algebra.expression(low)
        found = solved.apply(size)
        if found is size:
            return False
        poly = self.algebra.poly(found)
        if not all(self._natural(atom) for term in poly for atom in term):
            return False
        # A size that comes in by an equation has a loop of its own only where it must be >= 1 for
        # the old one to be: T of N == T * 16 is, K of N == T + K may be 0.
        known = variables(size) | solved.factors(size)

        def at_least(atom: Expr) -> int:
            return least(atom) if variables(atom) <= known else self.at_launch(atom)

        proved = all(c >= 0 for c in self._shifted(poly, at_least).values())
        if proved:
            solved.rely_on((size,))
        return proved

    def _natural(self, atom: Expr) -> bool:
        """Whether `atom` is known to be >= 0."""
        if not isinstance(atom, Op):
            return isinstance(atom, (Index, Symbol, LaunchIndex))
        found = self._naturals.get(atom)
        if found is None:
            found = self._naturals[atom] = self._at_least(atom, 0)
        return found

    def _at_least(self, atom: Op, bound: int) -> bool:
        """Whether an atom is known to be >= `bound`, which is 0 or 1."""
        # A remainder may be 0, and so may a quotient of something positive.
        if atom.op in ("mod", "floordiv") and bound:
            return False
        proved = (
            self.nonnegative(self.combine(self.algebra.poly(arg), {UNIT: bound}, -1))
            for arg in atom.args
        )
        match atom.op:
            case "mod":
                return True
            case "floordiv" | "ceildiv":
                # divisors are positive, so that the dividend alone decides
                return next(proved)
            case "min":
                return all(proved)
            case "max":
                return any(proved)
        return False

    def _bound(self, poly: Poly, *, upper: bool) -> Poly:
        result: Poly = {}
        for term, coefficient in poly.items():
            value: Poly = {UNIT: coefficient}
            take_high = (coefficient > 0) == upper
            for atom in term:
                value = self.times(value, self._high_of(atom) if take_high else _low_of(atom))
            result = self.combine(result, value, 1)
        return result

    def _high_of(self, atom: Expr) -> Poly:
        found = self._high.get(atom)
        if found is None:
            found = self._high[atom] = self._find_high(atom)
        return found

    def _find_high(self, atom: Expr) -> Poly:
        extent = atom.extent if isinstance(atom, Index) else None
        if isinstance(atom, LaunchIndex):
            extent = self.launch.get(atom.dimension)
        if extent is not None:
            return self.combine(self.algebra.poly(extent), {UNIT: 1}, -1)
        if isinstance(atom, Op) and not _is_size(atom):
            if atom.op == "mod":
                return self.combine(self.algebra.poly(atom.args[1]), {UNIT: 1}, -1)
            polys = [self.algebra.poly(arg) for arg in atom.args]
            if all(self._natural(part) for poly in polys for term in poly for part in term):
                highest = [self._bound(poly, upper=True) for poly in polys]
                top, *others = [self.algebra.expression(poly) for poly in highest]
                # a quotient grows with its dividend, `min` and `max` with each argument
                if atom.op in ("floordiv", "ceildiv"):
                    return self.algebra.poly(self.algebra.binary(atom.op, top, atom.args[1]))
                if atom.op in ("min", "max"):
                    return self.algebra.poly(getattr(self.algebra, atom.op)(top, *others))
        return {(atom,): 1}

    def _shifted(self, poly: Poly, least: Callable[[Expr], int]) -> Poly:
        """Rewrite each size S as S' + lower bound: coefficients >= 0 then prove >= 0."""
        result: Poly = {}
        for term, coefficient in poly.items():
            value: Poly = {UNIT: coefficient}
            for atom in term:
                value = self.times(value, {(atom,): 1, UNIT: least(atom)})
            for key, count in value.items():
                result[key] = result.get(key, 0) + count
        return result

    def _least(self, atom: Expr) -> int:
        """Return a lower bound of a size, inside a loop over it."""
        assumed = self.facts.lower(atom)
        return max(assumed, 1) if isinstance(atom, Op) and self._at_least(atom, 1) else assumed

    def at_launch(self, atom: Expr) -> int:
        """Return a lower bound of a size at any launch."""
        return self.facts.range_of(atom)[0] if isinstance(atom, Symbol) else self.facts.lower(atom)


def _shape(poly: Poly) -> tuple[object, ...]:
    """Return what a proof depends on: of the index of a loop its extent alone.

    Atoms are bounded one by one. Tensors that are computed in loops of their own have other
    indices in the same polynomials.
    """
    numbers: dict[Expr, int] = {}
    parts: list[object] = []
    for term, count in poly.items():
        for atom in term:
            if isinstance(atom, Index):
                parts.append((atom.extent, numbers.setdefault(atom, len(numbers))))
            else:
                parts.append(atom)
        parts.append(count)
    return tuple(parts)


def _low_of(atom: Expr) -> Poly:
    return {(atom,): 1} if _is_size(atom) else {}


def _is_size(atom: Expr) -> bool:
    """Whether `atom` is free of the numbers of loops and threads (then it is its own bound)."""
    return not isinstance(atom, (Index, LaunchIndex)) and all(_is_size(a) for a in atom.args)
