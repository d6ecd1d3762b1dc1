"""Arithmetic on indices: canonical sums of products, bounds, and proofs of comparisons.

Every index that a kernel computes goes through one `Simplifier`, which knows the facts that the
user assumed of the sizes. It works on polynomials over atoms (`polynomials`), and proves
comparisons from bounds of atoms (`AtomBounds`); a rule fires only where it is proved.

Sizes are taken as >= 1 in proofs: whatever is proved is used inside a loop over that size, which
does not run where the size is 0. `max(N, 1)` therefore stays as it is. A quotient or remainder by a
static 0 stands in such a loop, too (the divisor is an extent of a split or merged axis): it is 0.

Source: the split of a dividend into a divisible and a bounded part is Halide's and TVM's canonical
simplification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from loopnest.scalar import dtypes
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Op,
    Symbol,
    integer,
    rewrite,
    sizes_by,
    variables,
)
from loopnest.scalar.facts import Facts
from loopnest.scalar.polynomials import (
    UNIT,
    KnownDivisors,
    Poly,
    PolynomialAlgebra,
    Products,
    Range,
    SizeBounds,
    SolvedSizes,
    divide_monomial,
    index_op,
    is_size,
    moved_ceiling,
    plain_remainder,
    product_of,
    recombined,
    rounded_up,
)


class AtomBounds:
    """Bounds of the atoms that one simplifier knows, and proofs that a sum is nowhere negative.

    An atom lies between 0 and what follows from the extent of a loop, of the launch, or of a
    divisor; a size is its own bound, at least what was assumed of it.

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
        coarse = _coarse(low)
        if coarse is not low and all(c >= 0 for c in self._shifted(coarse, least).values()):
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


def _coarse(poly: Poly) -> Poly:
    """Return a bound from below with fewer quotients: N // 4 is at least N // 128 * 32."""
    quotients = {
        atom: count
        for term, count in poly.items()
        if len(term) == 1 and isinstance(atom := term[0], Op) and atom.op == "floordiv"
    }
    for fine, count in quotients.items():
        for coarse, taken in quotients.items():
            whole, by, times = fine.args[0], fine.args[1], coarse.args[1]
            if coarse.args[0] is not whole or not isinstance(by, Const) or count < 0 or taken > 0:
                continue
            if isinstance(times, Const) and int(times.value) % int(by.value) == 0:
                result = {**poly, (coarse,): taken + count * (int(times.value) // int(by.value))}
                del result[fine,]
                return result
    return poly


def _low_of(atom: Expr) -> Poly:
    return {(atom,): 1} if _is_size(atom) else {}


def _is_size(atom: Expr) -> bool:
    """Whether `atom` is free of the numbers of loops and threads (then it is its own bound)."""
    return not isinstance(atom, (Index, LaunchIndex)) and all(_is_size(a) for a in atom.args)


def _ranked(facts: Facts, atoms: Iterable[Expr], launch: Mapping[ParallelType, Expr]) -> Simplifier:
    made = Simplifier(facts)
    made.products.rank.update((atom, rank) for rank, atom in enumerate(atoms))
    made.launch.update(launch)
    return made


class Simplifier:
    """Build simplified index expressions and decide comparisons under `facts`.

    Methods take and return index expressions; results are memoised for the life of the object, so
    one is made for each lowering.

    Args:
        facts: what was assumed of sizes.
        products: the order of atoms in a product.
    """

    def __init__(self, facts: Facts | None = None, products: Products | None = None) -> None:
        self.facts = facts if facts is not None else Facts()
        self.products = Products() if products is None else products
        self._polys: dict[Expr, Poly] = {}
        self._memo: dict[tuple[str, Expr, Expr], Expr] = {}
        self._simple: dict[Expr, Expr] = {}
        self._extremes = SizeBounds(self.facts, self.poly)
        self._divisors = KnownDivisors(self.facts, self.products, self.poly)
        self._bounds = AtomBounds(self)
        self._solved: SolvedSizes | None = None

    def __reduce__(self) -> tuple[Callable[..., Simplifier], tuple[object, ...]]:
        """Pickle the facts, and the order in which atoms were seen: sums are written in it."""
        return _ranked, (self.facts, tuple(self.products.rank), self.launch)

    @property
    def launch(self) -> dict[ParallelType, Expr]:
        """Extents of the launch, where known: bounds of the numbers of threads and blocks."""
        return self._bounds.launch

    @launch.setter
    def launch(self, extents: dict[ParallelType, Expr]) -> None:
        self._bounds.take(extents)

    # Sums and products

    def add(self, a: Expr, b: Expr) -> Expr:
        """Return a + b."""
        if a is ZERO:
            return b
        if b is ZERO:
            return a
        return self.binary("add", a, b)

    def sub(self, a: Expr, b: Expr) -> Expr:
        """Return a - b."""
        return a if b is ZERO else self.binary("sub", a, b)

    def mul(self, a: Expr, b: Expr) -> Expr:
        """Return a * b."""
        if a is ONE:
            return b
        if b is ONE:
            return a
        if a is ZERO or b is ZERO:
            return ZERO
        return self.binary("mul", a, b)

    def product(self, terms: Iterable[Expr]) -> Expr:
        """Return the product of `terms`, 1 for none."""
        result: Expr = ONE
        for term in terms:
            result = self.mul(result, term)
        return result

    def sum(self, terms: Iterable[Expr]) -> Expr:
        """Return the sum of `terms`, 0 for none."""
        result: Expr = ZERO
        for term in terms:
            result = self.add(result, term)
        return result

    def floordiv(self, a: Expr, b: Expr) -> Expr:
        """Return floor(a / b), b >= 0; 0 where b is."""
        return a if b is ONE or a is ZERO else self.binary("floordiv", a, b)

    def mod(self, a: Expr, b: Expr) -> Expr:
        """Return a - b * floor(a / b), b >= 0; 0 where b is."""
        return ZERO if b is ONE or a is ZERO else self.binary("mod", a, b)

    def ceildiv(self, a: Expr, b: Expr) -> Expr:
        """Return ceil(a / b), b >= 0; 0 where b is."""
        return a if b is ONE or a is ZERO else self.binary("ceildiv", a, b)

    def min(self, a: Expr, b: Expr) -> Expr:
        """Return the smaller of two indices."""
        if self.proves_le(a, b):
            return a
        return b if self.proves_le(b, a) else index_op("min", a, b)

    def max(self, a: Expr, b: Expr) -> Expr:
        """Return the larger of two indices; `max(N, 1)` is kept (N may be 0)."""
        if isinstance(a, Const) and isinstance(b, Const):
            return a if a.value >= b.value else b
        return a if a is b else index_op("max", a, b)

    def binary(self, op: str, a: Expr, b: Expr) -> Expr:
        """Return the operation `op` of this class on two indices."""
        key = (op, a, b)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = getattr(self, "_" + op)(a, b)
        assert isinstance(found, Expr)
        return found

    def _add(self, a: Expr, b: Expr) -> Expr:
        return self.expression(self.combine(self.poly(a), self.poly(b), 1))

    def _sub(self, a: Expr, b: Expr) -> Expr:
        return self.expression(self.combine(self.poly(a), self.poly(b), -1))

    def _mul(self, a: Expr, b: Expr) -> Expr:
        return self.expression(self._recombine(self.products.times(self.poly(a), self.poly(b))))

    def _floordiv(self, a: Expr, b: Expr) -> Expr:
        if not self.poly(b):
            return ZERO
        known = self._extremes.one_quotient(a, b, lambda n, d: n // d)
        if known is not None:
            return known
        quotient, rest = self.split(self.poly(a), b)
        return self.expression(self.combine(quotient, self._floordiv_rest(rest, b), 1))

    def _mod(self, a: Expr, b: Expr) -> Expr:
        if not self.poly(b):
            return ZERO
        _, rest = self.split(self.poly(a), b)
        return self._mod_rest(rest, b)

    def _ceildiv(self, a: Expr, b: Expr) -> Expr:
        if not self.poly(b):
            return ZERO
        if isinstance(a, Const) and isinstance(b, Const):
            return integer(-(-int(a.value) // int(b.value)))
        if self.divides(b, a):
            return self.floordiv(a, b)
        known = self._extremes.one_quotient(a, b, lambda n, d: -(-n // d))
        if known is not None:
            return known
        if isinstance(b, Const):
            moved = moved_ceiling(self, a, b)
            if moved is not None:
                return moved
        return index_op("ceildiv", a, b)

    # Division: a = quotient * b + rest, the quotient free of division

    def split(self, dividend: Poly, divisor: Expr) -> tuple[Poly, Poly]:
        """Return quotient and rest: ``dividend = quotient * divisor + rest``, without division."""
        base = self.poly(divisor)
        if len(base) != 1:
            whole = dividend == base
            return ({UNIT: 1}, {}) if whole else ({}, dividend)
        ((monomial, factor),) = base.items()
        quotient: Poly = {}
        rest: Poly = {}
        for term, coefficient in dividend.items():
            left = divide_monomial(term, monomial)
            if left is None:
                rest[term] = coefficient
                continue
            count, remainder = divmod(coefficient, factor)
            if term != UNIT and remainder:
                count, remainder = 0, coefficient  # keep 6 * i // 4 whole
            if count:
                quotient[left] = quotient.get(left, 0) + count
            if remainder:
                rest[term] = remainder
        return quotient, rest

    def _floordiv_rest(self, rest: Poly, divisor: Expr) -> Poly:
        if not rest or self._within(rest, divisor):
            return {}
        if self._within(self.combine(rest, self.poly(divisor), 1), divisor):
            # rest lies in [-divisor, 0), so that the floor is -1
            return {UNIT: -1}
        # floor(g * r / (g * d)) is floor(r / d)
        rest, divisor, _ = self._reduce(rest, divisor)
        dividend = self.expression(rest)
        digits = self._digits(rest, divisor)
        if digits is not None:
            high, _, by, _ = digits
            return self.poly(self.floordiv(self.expression(high), by))
        whole, low = self._tail(rest, divisor)
        if low:
            return self.poly(self.floordiv(self.expression(whole), divisor))
        if isinstance(dividend, Op) and dividend.op == "floordiv":
            inner, by = dividend.args
            # floor(floor(n / p) / q) = floor(n / (p * q)), p and q being positive
            return self.poly(self.floordiv(inner, self.mul(by, divisor)))
        if isinstance(dividend, Const) and isinstance(divisor, Const):
            return {UNIT: int(dividend.value) // int(divisor.value)}
        if isinstance(divisor, Const) and is_size(dividend):
            rounded = rounded_up(self, rest, divisor)
            if rounded is not None:
                return rounded
        return {(index_op("floordiv", dividend, divisor),): 1}

    def _mod_rest(self, rest: Poly, divisor: Expr) -> Expr:
        if not rest or self._within(rest, divisor):
            return self.expression(rest)
        rest, divisor, scale = self._reduce(rest, divisor)
        if self.divides(divisor, self.expression(rest)):
            return ZERO
        plain = plain_remainder(self, rest, divisor)
        if plain is not None:
            return self.mul(self.mod(self.expression(plain), divisor), integer(scale))
        dividend = self.expression(rest)
        digits = self._digits(rest, divisor)
        if digits is not None:
            high, low, by, step = digits
            upper = self.mul(self.mod(self.expression(high), by), integer(step))
            return self.mul(self.add(upper, self.expression(low)), integer(scale))
        whole, low = self._tail(rest, divisor)
        if low:
            return self.add(self.mod(self.expression(whole), divisor), self.expression(low))
        if (
            isinstance(dividend, Op)
            and dividend.op == "mod"
            and self.divides(divisor, dividend.args[1])
        ):
            # (n % m) % d = n % d where d divides m
            return self.mul(self.mod(dividend.args[0], divisor), integer(scale))
        return self.mul(index_op("mod", dividend, divisor), integer(scale))

    def _reduce(self, rest: Poly, divisor: Expr) -> tuple[Poly, Expr, int]:
        if not isinstance(divisor, Const):
            return rest, divisor, 1
        scale = math.gcd(int(divisor.value), *rest.values())
        if scale == 1:
            return rest, divisor, 1
        reduced = {term: count // scale for term, count in rest.items()}
        return reduced, integer(int(divisor.value) // scale), scale

    def _digits(self, rest: Poly, divisor: Expr) -> tuple[Poly, Poly, Expr, int] | None:
        """Return high, low, by and scale: ``rest = high * scale + low``, ``0 <= low < scale``.

        The divisor is ``by * scale``, so that division takes the high part by `by`, and leaves the
        low one as it is.
        """
        if not isinstance(divisor, Const) or len(rest) < 2:
            return None
        by = int(divisor.value)
        scales = {math.gcd(by, count) for term, count in rest.items() if term != UNIT}
        for scale in sorted(scales - {1}):
            low = {term: count for term, count in rest.items() if count % scale}
            if low and len(low) < len(rest) and self._within(low, integer(scale)):
                high = {t: count // scale for t, count in rest.items() if t not in low}
                return high, low, integer(by // scale), scale
        return None

    def _tail(self, rest: Poly, divisor: Expr) -> tuple[Poly, Poly]:
        """Return whole and low: ``rest = whole + low``, ``0 <= low < scale``.

        Here `scale` divides `whole` and the divisor, so that division leaves the low part as it is.
        It is empty where there is no such part.
        """
        if len(rest) < 2:
            return rest, {}
        steps = {term: self._divisors.of({term: count}) for term, count in rest.items()}
        for scale in sorted({abs(step) for term, step in steps.items() if term != UNIT} - {1}):
            low = {term: count for term, count in rest.items() if steps[term] % scale}
            if low and len(low) < len(rest) and self._within(low, integer(scale)):
                if self._divisors.of(self.poly(divisor)) % scale:
                    break
                return {t: c for t, c in rest.items() if t not in low}, low
        return rest, {}

    def _within(self, poly: Poly, bound: Expr) -> bool:
        """Whether 0 <= poly < bound is proved."""
        if not self._bounds.nonnegative(poly):
            return False
        slack = self.combine(self.poly(bound), poly, -1)
        return self._bounds.nonnegative(self.combine(slack, {UNIT: 1}, -1))

    # Polynomials

    def poly(self, node: Expr) -> Poly:
        """Return `node` as a sum of monomials; treat the result as read-only."""
        found = self._polys.get(node)
        if found is None:
            found = self._polys[node] = self._to_poly(node)
        return found

    def _to_poly(self, node: Expr) -> Poly:
        if isinstance(node, Const):
            return {UNIT: int(node.value)} if node.value else {}
        if isinstance(node, Symbol):
            fixed = self.facts.fixed(node)
            return {(self.facts.name_of(node),): 1} if fixed is None else {UNIT: fixed}
        if isinstance(node, Op):
            if node.op in ("add", "sub"):
                left, right = node.args
                return self.combine(
                    self.poly(left), self.poly(right), 1 if node.op == "add" else -1
                )
            if node.op == "mul":
                return self.products.times(self.poly(node.args[0]), self.poly(node.args[1]))
            if node.op == "neg":
                return self.combine({}, self.poly(node.args[0]), -1)
            if node.op in ("floordiv", "mod", "ceildiv") and not self.poly(node.args[1]):
                return {}
        return {(node,): 1}

    def combine(self, a: Poly, b: Poly, sign: int) -> Poly:
        """Return ``a + sign * b``, with quotients and remainders put together."""
        result = dict(a)
        for term, coefficient in b.items():
            total = result.get(term, 0) + sign * coefficient
            if total:
                result[term] = total
            else:
                result.pop(term, None)
        return self._recombine(result)

    def _recombine(self, poly: Poly) -> Poly:
        """Put quotients and remainders together, as long as some fit."""
        while (merged := recombined(poly, self)) is not None:
            poly = merged
        return poly

    def expression(self, poly: Poly) -> Expr:
        """Return a polynomial as an expression."""
        result: Expr | None = None
        for term, coefficient in poly.items():
            if not term:  # the number comes last
                continue
            if result is None:
                result = product_of(term, coefficient)
            else:
                product = product_of(term, abs(coefficient))
                result = index_op("add" if coefficient > 0 else "sub", result, product)
        number = poly.get(UNIT, 0)
        if result is None:
            result = integer(number)
        elif number:
            result = index_op("add" if number > 0 else "sub", result, integer(abs(number)))
        self._polys.setdefault(result, poly)
        return result

    # Proofs

    def divides(self, divisor: Expr, value: Expr) -> bool:
        """Whether `divisor` is proved to divide `value`."""
        return self._divisors.divides(divisor, value)

    def proves_lt(self, a: Expr, b: Expr) -> bool:
        """Whether a < b is proved."""
        slack = self.combine(self.poly(b), self.poly(a), -1)
        return self._bounds.nonnegative(self.combine(slack, {UNIT: 1}, -1))

    def proves_le(self, a: Expr, b: Expr) -> bool:
        """Whether a <= b is proved."""
        return self._bounds.nonnegative(self.combine(self.poly(b), self.poly(a), -1))

    def holds_le(self, a: Expr, b: Expr) -> bool:
        """Whether a <= b is proved for all sizes that assumptions leave, those of 0 too."""
        slack = self.combine(self.poly(b), self.poly(a), -1)
        return self._bounds.nonnegative(slack, self._bounds.at_launch)

    def range_at_launch(self, size: Expr) -> Range:
        """Return the least and the largest value that assumptions leave a size; None: no bound."""
        return self._extremes.of(size)

    def poly_range(self, poly: Poly) -> Range:
        """Return the least and the largest value of a sum of sizes; None: no bound."""
        return self._extremes.of_poly(poly)

    def proves_positive(self, size: Expr) -> bool:
        """Whether a size is known to be >= 1 at every launch (not only inside its loop)."""
        poly = self.poly(size)
        return bool(poly) and all(
            count > 0 and all(self.facts.states_positive(atom) for atom in term)
            for term, count in poly.items()
        )

    def lt(self, a: Expr, b: Expr) -> Expr:
        """Return a < b, or TRUE or FALSE where it is decided."""
        return self.binary("lt", a, b)

    def _lt(self, a: Expr, b: Expr) -> Expr:
        if self.proves_lt(a, b):
            return TRUE
        if self.proves_le(b, a):
            return FALSE
        if self.solved and isinstance(b, Op):
            b = self.solved.shortest(b)
        return Op("lt", (a, b), dtypes.bool_)

    def equal(self, a: Expr, b: Expr) -> bool:
        """Whether a == b is proved."""
        if a is b or self.poly(a) == self.poly(b) or self.facts.states_equal(a, b):
            return True
        if not self.solved:
            return False
        found = self.poly(self.solved.apply(a)) == self.poly(self.solved.apply(b))
        if found:
            self.solved.rely_on((a, b))
        return found

    @property
    def solved(self) -> SolvedSizes:
        """What assumed equations say of sizes."""
        if self._solved is None:
            # Solving simplifies, which asks for what is solved: nothing, so far.
            self._solved = SolvedSizes(self, ())
            self._solved = SolvedSizes(self, self.facts.equations.items())
        return self._solved

    def simplify(self, root: Expr) -> Expr:
        """Return an index or predicate expression with every operation simplified."""
        found = self._simple.get(root)
        if found is None:
            found = self._simple[root] = rewrite(root, self._simplify_node)
        return found

    def _simplify_node(self, node: Expr) -> Expr | None:
        if isinstance(node, Symbol):
            fixed = self.facts.fixed(node)
            return self.facts.name_of(node) if fixed is None else integer(fixed)
        if not isinstance(node, Op) or node.dtype is not dtypes.index:
            return None
        args = [self.simplify(a) for a in node.args]
        if node.op == "neg":
            return self.sub(ZERO, args[0])
        if node.op in ("add", "sub", "mul", "floordiv", "mod", "ceildiv", "min", "max"):
            result = getattr(self, node.op)(*args)
            assert isinstance(result, Expr)
            return result
        return None


sizes_by(Simplifier)
