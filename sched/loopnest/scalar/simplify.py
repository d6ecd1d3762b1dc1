"""Arithmetic on indices: canonical sums of products, bounds, and proofs of comparisons.

Every index that a kernel computes goes through one `Simplifier`, which knows the facts that the
user assumed of the sizes. It works on polynomials over atoms (symbols, loop indices, floor
divisions, remainders) with integer coefficients; a rule fires only where it is proved.

Sizes are taken as >= 1 in proofs: whatever is proved is used inside a loop over that size, which
does not run where the size is 0. `max(N, 1)` therefore stays as it is. A quotient or remainder by a
static 0 stands in such a loop, too (the divisor is an extent of a split or merged axis): it is 0.

Source: the split of a dividend into a divisible and a bounded part is Halide's and TVM's canonical
simplification; the recombination ``x // d * d + x % d == x`` loopy's and isl's.
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
)
from loopnest.scalar.facts import Facts
from loopnest.scalar.size_bounds import Monomial, Poly, SizeBounds

_UNIT: Monomial = ()


def _index_op(op: str, *args: Expr) -> Expr:
    return Op(op, args, dtypes.index)


def _ranked(facts: Facts, atoms: Iterable[Expr], launch: Mapping[ParallelType, Expr]) -> Simplifier:
    made = Simplifier(facts)
    made._rank.update((atom, rank) for rank, atom in enumerate(atoms))
    made.launch.update(launch)
    return made


class Simplifier:
    """Build simplified index expressions and decide comparisons under `facts`.

    Methods take and return index expressions; results are memoised for the life of the object, so
    one is made for each lowering.
    """

    def __init__(self, facts: Facts | None = None) -> None:
        self.facts = facts if facts is not None else Facts()
        self._rank: dict[Expr, int] = {}
        self._polys: dict[Expr, Poly] = {}
        self._memo: dict[tuple[str, Expr, Expr], Expr] = {}
        self._high: dict[Expr, Poly] = {}
        self._naturals: dict[Expr, bool] = {}
        self._simple: dict[Expr, Expr] = {}
        self._extremes = SizeBounds(self.facts, self.poly)
        self.launch: dict[ParallelType, Expr] = {}
        """Extents of the launch, where known: bounds of the numbers of threads and blocks."""

    def __reduce__(self) -> tuple[Callable[..., Simplifier], tuple[object, ...]]:
        """Pickle the facts, and the order in which atoms were seen: sums are written in it."""
        return _ranked, (self.facts, tuple(self._rank), self.launch)

    # Sums and products

    def add(self, a: Expr, b: Expr) -> Expr:
        """Return a + b."""
        if a is ZERO:
            return b
        if b is ZERO:
            return a
        return self._binary("add", a, b)

    def sub(self, a: Expr, b: Expr) -> Expr:
        """Return a - b."""
        return a if b is ZERO else self._binary("sub", a, b)

    def mul(self, a: Expr, b: Expr) -> Expr:
        """Return a * b."""
        if a is ONE:
            return b
        if b is ONE:
            return a
        if a is ZERO or b is ZERO:
            return ZERO
        return self._binary("mul", a, b)

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
        return a if b is ONE or a is ZERO else self._binary("floordiv", a, b)

    def mod(self, a: Expr, b: Expr) -> Expr:
        """Return a - b * floor(a / b), b >= 0; 0 where b is."""
        return ZERO if b is ONE or a is ZERO else self._binary("mod", a, b)

    def ceildiv(self, a: Expr, b: Expr) -> Expr:
        """Return ceil(a / b), b >= 0; 0 where b is."""
        return a if b is ONE or a is ZERO else self._binary("ceildiv", a, b)

    def min(self, a: Expr, b: Expr) -> Expr:
        """Return the smaller of two indices."""
        if self.proves_le(a, b):
            return a
        return b if self.proves_le(b, a) else _index_op("min", a, b)

    def max(self, a: Expr, b: Expr) -> Expr:
        """Return the larger of two indices; `max(N, 1)` is kept (N may be 0)."""
        if isinstance(a, Const) and isinstance(b, Const):
            return a if a.value >= b.value else b
        return a if a is b else _index_op("max", a, b)

    def _binary(self, op: str, a: Expr, b: Expr) -> Expr:
        key = (op, a, b)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = getattr(self, "_" + op)(a, b)
        assert isinstance(found, Expr)
        return found

    def _add(self, a: Expr, b: Expr) -> Expr:
        return self._expr(self._combine(self.poly(a), self.poly(b), 1))

    def _sub(self, a: Expr, b: Expr) -> Expr:
        return self._expr(self._combine(self.poly(a), self.poly(b), -1))

    def _mul(self, a: Expr, b: Expr) -> Expr:
        return self._expr(self._recombine(self._poly_mul(self.poly(a), self.poly(b))))

    def _floordiv(self, a: Expr, b: Expr) -> Expr:
        if not self.poly(b):
            return ZERO
        known = self._extremes.one_quotient(a, b, lambda n, d: n // d)
        if known is not None:
            return known
        quotient, rest = self._split(self.poly(a), b)
        return self._expr(self._combine(quotient, self._floordiv_rest(rest, b), 1))

    def _mod(self, a: Expr, b: Expr) -> Expr:
        if not self.poly(b):
            return ZERO
        _, rest = self._split(self.poly(a), b)
        return self._mod_rest(rest, b)

    def _ceildiv(self, a: Expr, b: Expr) -> Expr:
        if not self.poly(b):
            return ZERO
        if isinstance(a, Const) and isinstance(b, Const):
            return integer(-(-int(a.value) // int(b.value)))
        if self.divides(b, a):
            return self.floordiv(a, b)
        known = self._extremes.one_quotient(a, b, lambda n, d: -(-n // d))
        return known if known is not None else _index_op("ceildiv", a, b)

    # Division: a = quotient * b + rest, the quotient free of division

    def _split(self, dividend: Poly, divisor: Expr) -> tuple[Poly, Poly]:
        base = self.poly(divisor)
        if len(base) != 1:
            whole = dividend == base
            return ({_UNIT: 1}, {}) if whole else ({}, dividend)
        ((monomial, factor),) = base.items()
        quotient: Poly = {}
        rest: Poly = {}
        for term, coefficient in dividend.items():
            left = _divide_monomial(term, monomial)
            if left is None:
                rest[term] = coefficient
                continue
            count, remainder = divmod(coefficient, factor)
            if term != _UNIT and remainder:
                count, remainder = 0, coefficient  # keep 6 * i // 4 whole
            if count:
                quotient[left] = quotient.get(left, 0) + count
            if remainder:
                rest[term] = remainder
        return quotient, rest

    def _floordiv_rest(self, rest: Poly, divisor: Expr) -> Poly:
        if not rest or self._within(rest, divisor):
            return {}
        if self._within(self._combine(rest, self.poly(divisor), 1), divisor):
            return {_UNIT: -1}
        rest, divisor, _ = self._reduce(rest, divisor)
        dividend = self._expr(rest)
        digits = self._digits(rest, divisor)
        if digits is not None:
            high, _, by, _ = digits
            return self.poly(self.floordiv(self._expr(high), by))
        whole, low = self._tail(rest, divisor)
        if low:
            return self.poly(self.floordiv(self._expr(whole), divisor))
        if isinstance(dividend, Op) and dividend.op == "floordiv":
            inner, by = dividend.args
            return self.poly(self.floordiv(inner, self.mul(by, divisor)))
        if isinstance(dividend, Const) and isinstance(divisor, Const):
            return {_UNIT: int(dividend.value) // int(divisor.value)}
        return {(_index_op("floordiv", dividend, divisor),): 1}

    def _mod_rest(self, rest: Poly, divisor: Expr) -> Expr:
        if not rest or self._within(rest, divisor):
            return self._expr(rest)
        rest, divisor, scale = self._reduce(rest, divisor)
        dividend = self._expr(rest)
        digits = self._digits(rest, divisor)
        if digits is not None:
            high, low, by, step = digits
            upper = self.mul(self.mod(self._expr(high), by), integer(step))
            return self.mul(self.add(upper, self._expr(low)), integer(scale))
        whole, low = self._tail(rest, divisor)
        if low:
            return self.add(self.mod(self._expr(whole), divisor), self._expr(low))
        if (
            isinstance(dividend, Op)
            and dividend.op == "mod"
            and self.divides(divisor, dividend.args[1])
        ):
            return self.mul(self.mod(dividend.args[0], divisor), integer(scale))
        return self.mul(_index_op("mod", dividend, divisor), integer(scale))

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
        scales = {math.gcd(by, count) for term, count in rest.items() if term != _UNIT}
        for scale in sorted(scales - {1}):
            low = {term: count for term, count in rest.items() if count % scale}
            if low and len(low) < len(rest) and self._within(low, integer(scale)):
                high = {t: count // scale for t, count in rest.items() if t not in low}
                return high, low, integer(by // scale), scale
        return None

    def _tail(self, rest: Poly, divisor: Expr) -> tuple[Poly, Poly]:
        """Return whole and low: ``rest = whole + low``, ``0 <= low < scale``.

        Here `scale` divides `whole` and the symbolic divisor, so that division leaves the low part
        as it is. It is empty where there is no such part.
        """
        if isinstance(divisor, Const) or len(rest) < 2:
            return rest, {}
        steps = {term: self._divisor({term: count}) for term, count in rest.items()}
        for scale in sorted({abs(step) for term, step in steps.items() if term != _UNIT} - {1}):
            low = {term: count for term, count in rest.items() if steps[term] % scale}
            if low and len(low) < len(rest) and self._within(low, integer(scale)):
                if self._divisor(self.poly(divisor)) % scale:
                    break
                return {t: c for t, c in rest.items() if t not in low}, low
        return rest, {}

    def _within(self, poly: Poly, bound: Expr) -> bool:
        """Whether 0 <= poly < bound is proved."""
        if not self._nonnegative(poly):
            return False
        slack = self._combine(self.poly(bound), poly, -1)
        return self._nonnegative(self._combine(slack, {_UNIT: 1}, -1))

    # Polynomials

    def poly(self, node: Expr) -> Poly:
        """Return `node` as a sum of monomials; treat the result as read-only."""
        found = self._polys.get(node)
        if found is None:
            found = self._polys[node] = self._to_poly(node)
        return found

    def _to_poly(self, node: Expr) -> Poly:
        if isinstance(node, Const):
            return {_UNIT: int(node.value)} if node.value else {}
        if isinstance(node, Symbol):
            fixed = self.facts.fixed(node)
            return {(node,): 1} if fixed is None else {_UNIT: fixed}
        if isinstance(node, Op):
            if node.op in ("add", "sub"):
                left, right = node.args
                return self._combine(
                    self.poly(left), self.poly(right), 1 if node.op == "add" else -1
                )
            if node.op == "mul":
                return self._poly_mul(self.poly(node.args[0]), self.poly(node.args[1]))
            if node.op == "neg":
                return self._combine({}, self.poly(node.args[0]), -1)
            if node.op in ("floordiv", "mod", "ceildiv") and not self.poly(node.args[1]):
                return {}
        return {(node,): 1}

    def _combine(self, a: Poly, b: Poly, sign: int) -> Poly:
        result = dict(a)
        for term, coefficient in b.items():
            total = result.get(term, 0) + sign * coefficient
            if total:
                result[term] = total
            else:
                result.pop(term, None)
        return self._recombine(result)

    def _recombine(self, poly: Poly) -> Poly:
        """Apply ``x // d * d + x % d -> x``, and ``x // d * d -> x`` where d divides x."""
        for term, coefficient in poly.items():
            for atom in term:
                if not isinstance(atom, Op):
                    continue
                if atom.op == "mod":
                    merged = self._undo_mod(poly, term, coefficient, atom)
                    if merged is None:
                        merged = self._undo_digit(poly, term, coefficient, atom)
                elif atom.op == "floordiv":
                    merged = self._undo_exact(poly, term, coefficient, atom)
                    if merged is None:
                        merged = self._undo_quotient(poly, term, coefficient, atom)
                else:
                    continue
                if merged is not None:
                    return self._recombine(merged)
        return poly

    def _undo_mod(self, poly: Poly, term: Monomial, count: int, atom: Op) -> Poly | None:
        inner, divisor = atom.args
        quotient = _index_op("floordiv", inner, divisor)
        others = list(term)
        others.remove(atom)
        partner = self._poly_mul({self._monomial([quotient, *others]): count}, self.poly(divisor))
        if len(partner) != 1:
            return None
        ((key, wanted),) = partner.items()
        if poly.get(key) != wanted:
            return None
        rest = {t: c for t, c in poly.items() if t != term and t != key}
        return self._combine(
            rest, self._poly_mul(self.poly(inner), {self._monomial(others): count}), 1
        )

    def _undo_digit(self, poly: Poly, term: Monomial, count: int, atom: Op) -> Poly | None:
        """Undo ``x // d % e * d + x % d``, which is ``x % (d * e)``."""
        quotient, base = atom.args
        if not isinstance(quotient, Op) or quotient.op != "floordiv" or len(poly) < 2:
            return None
        whole, by = quotient.args
        others = list(term)
        others.remove(atom)
        factor, left = self._split({self._monomial(others): count}, by)
        if left or not factor:
            return None
        digit = self._poly_mul(self.poly(self.mod(whole, by)), factor)
        if not digit or any(poly.get(key) != wanted for key, wanted in digit.items()):
            return None
        both = self._poly_mul(self.poly(self.mod(whole, self.mul(by, base))), factor)
        result: Poly = {}
        for key, wanted in poly.items():  # in the place of the digits
            if key == term:
                result = self._combine(result, both, 1)
            elif key not in digit:
                result = self._combine(result, {key: wanted}, 1)
        return result

    def _undo_exact(self, poly: Poly, term: Monomial, count: int, atom: Op) -> Poly | None:
        inner, divisor = atom.args
        others = list(term)
        others.remove(atom)
        divided = self._split({self._monomial(others): count}, divisor)
        if divided[1] or not divided[0] or not self.divides(divisor, inner):
            return None
        rest = {t: c for t, c in poly.items() if t != term}
        return self._combine(rest, self._poly_mul(self.poly(inner), divided[0]), 1)

    def _undo_quotient(self, poly: Poly, term: Monomial, count: int, atom: Op) -> Poly | None:
        """Undo ``x // 4 * 4 + i % 4`` with x = 8k + i: the remainder was simplified."""
        inner, divisor = atom.args
        if len(poly) < 2:
            return None
        others = list(term)
        others.remove(atom)
        scale, left = self._split({self._monomial(others): count}, divisor)
        if left or not scale:
            return None
        remainder = self._poly_mul(self.poly(self.mod(inner, divisor)), scale)
        if not remainder or any(poly.get(key) != wanted for key, wanted in remainder.items()):
            return None
        rest = {t: c for t, c in poly.items() if t != term and t not in remainder}
        return self._combine(rest, self._poly_mul(self.poly(inner), scale), 1)

    def _expr(self, poly: Poly) -> Expr:
        result: Expr | None = None
        for term, coefficient in sorted(poly.items(), key=lambda item: item[0] == _UNIT):
            factor = abs(coefficient)
            product = _product(term, factor)
            if result is None:
                negated = _product(term, coefficient)
                result = product if coefficient > 0 else negated
            else:
                result = _index_op("add" if coefficient > 0 else "sub", result, product)
        result = ZERO if result is None else result
        self._polys.setdefault(result, poly)
        return result

    # Products of atoms are kept in one order: loop indices, then others as first seen

    def _atom_key(self, atom: Expr) -> tuple[bool, int]:
        rank = self._rank.get(atom)
        if rank is None:
            rank = self._rank[atom] = len(self._rank)
        return (not isinstance(atom, Index), rank)

    def _monomial(self, atoms: Iterable[Expr]) -> Monomial:
        result = list(atoms)
        if len(result) > 1:
            result.sort(key=self._atom_key)
        return tuple(result)

    def _poly_mul(self, a: Poly, b: Poly) -> Poly:
        if len(b) == 1 and _UNIT in b:
            factor = b[_UNIT]
            return {t: c * factor for t, c in a.items()}
        result: Poly = {}
        for left, m in a.items():
            for right, n in b.items():
                term = self._monomial((*left, *right)) if left and right else left or right
                total = result.get(term, 0) + m * n
                if total:
                    result[term] = total
                else:
                    result.pop(term, None)
        return result

    # Proofs

    def divides(self, divisor: Expr, value: Expr) -> bool:
        """Whether `divisor` is proved to divide `value`."""
        if divisor is ONE or divisor is value:
            return True
        if self.facts.states_divisible(value, divisor):
            return True
        if isinstance(divisor, Op) and divisor.op == "floordiv" and divisor.args[0] is value:
            return self.divides(divisor.args[1], value)  # what divides has a whole quotient
        base = self.poly(divisor)
        if len(base) != 1:
            return False
        ((monomial, factor),) = base.items()
        return all(
            self._term_divisible(t, c, monomial, factor) for t, c in self.poly(value).items()
        )

    def _term_divisible(self, term: Monomial, count: int, monomial: Monomial, factor: int) -> bool:
        left = _divide_monomial(term, monomial)
        return left is not None and self._divisor({left: count}) % factor == 0

    def _known_divisor(self, atom: Expr) -> int:
        """Return an integer that is known to divide `atom`."""
        if isinstance(atom, Op) and atom.op == "mod":
            return math.gcd(*[self._divisor(self.poly(arg)) for arg in atom.args])
        return self.facts.divisor(atom)

    def _divisor(self, poly: Poly) -> int:
        """Return an integer that is known to divide a polynomial; 0 of 0."""
        found = 0
        for term, count in poly.items():
            known = math.prod([self._known_divisor(atom) for atom in term])
            for product, divisor in self.facts.product_divisors(frozenset(term)):
                left = _divide_monomial(term, self._monomial(product))
                if left is not None:
                    others = math.prod([self._known_divisor(atom) for atom in left])
                    known = math.lcm(known, divisor * others)
            found = math.gcd(found, count * known)
        return found

    def proves_lt(self, a: Expr, b: Expr) -> bool:
        """Whether a < b is proved."""
        slack = self._combine(self.poly(b), self.poly(a), -1)
        return self._nonnegative(self._combine(slack, {_UNIT: 1}, -1))

    def proves_le(self, a: Expr, b: Expr) -> bool:
        """Whether a <= b is proved."""
        return self._nonnegative(self._combine(self.poly(b), self.poly(a), -1))

    def holds_le(self, a: Expr, b: Expr) -> bool:
        """Whether a <= b is proved for all sizes that assumptions leave, those of 0 too."""
        return self._nonnegative(self._combine(self.poly(b), self.poly(a), -1), self._at_launch)

    def proves_positive(self, size: Expr) -> bool:
        """Whether a size is known to be >= 1 at every launch (not only inside its loop)."""
        poly = self.poly(size)
        return bool(poly) and all(
            count > 0 and all(self.facts.states_positive(atom) for atom in term)
            for term, count in poly.items()
        )

    def lt(self, a: Expr, b: Expr) -> Expr:
        """Return a < b, or TRUE or FALSE where it is decided."""
        return self._binary("lt", a, b)

    def _lt(self, a: Expr, b: Expr) -> Expr:
        if self.proves_lt(a, b):
            return TRUE
        if self.proves_le(b, a):
            return FALSE
        return Op("lt", (a, b), dtypes.bool_)

    def equal(self, a: Expr, b: Expr) -> bool:
        """Whether a == b is proved."""
        return a is b or self.poly(a) == self.poly(b) or self.facts.states_equal(a, b)

    def _nonnegative(self, poly: Poly, least: Callable[[Expr], int] | None = None) -> bool:
        """Whether poly >= 0 is proved, from bounds of its atoms, none of which may be negative.

        `least` gives lower bounds of sizes; by default those inside of loops over them.
        """
        if not all(self._natural(atom) for term in poly for atom in term):
            return False
        if all(c >= 0 for c in poly.values()):
            return True
        low = self._bound(poly, upper=False)
        if all(c >= 0 for c in low.values()):
            return True
        return all(c >= 0 for c in self._shifted(low, least or self._least).values())

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
        if atom.op in ("mod", "floordiv") and bound:
            return False
        proved = (
            self._nonnegative(self._combine(self.poly(arg), {_UNIT: bound}, -1))
            for arg in atom.args
        )
        match atom.op:
            case "mod":
                return True
            case "floordiv" | "ceildiv":
                return next(proved)
            case "min":
                return all(proved)
            case "max":
                return any(proved)
        return False

    def _bound(self, poly: Poly, *, upper: bool) -> Poly:
        result: Poly = {}
        for term, coefficient in poly.items():
            value: Poly = {_UNIT: coefficient}
            take_high = (coefficient > 0) == upper
            for atom in term:
                value = self._poly_mul(value, self._high_of(atom) if take_high else _low_of(atom))
            result = self._combine(result, value, 1)
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
            return self._combine(self.poly(extent), {_UNIT: 1}, -1)
        if isinstance(atom, Op) and not _is_size(atom):
            if atom.op == "mod":
                return self._combine(self.poly(atom.args[1]), {_UNIT: 1}, -1)
            polys = [self.poly(arg) for arg in atom.args]
            if all(self._natural(part) for poly in polys for term in poly for part in term):
                top, *others = [self._expr(self._bound(poly, upper=True)) for poly in polys]
                if atom.op in ("floordiv", "ceildiv"):
                    return self.poly(self._binary(atom.op, top, atom.args[1]))
                if atom.op in ("min", "max"):
                    return self.poly(getattr(self, atom.op)(top, *others))
        return {(atom,): 1}

    def _shifted(self, poly: Poly, least: Callable[[Expr], int]) -> Poly:
        """Rewrite each size S as S' + lower bound: coefficients >= 0 then prove >= 0."""
        result: Poly = {}
        for term, coefficient in poly.items():
            value: Poly = {_UNIT: coefficient}
            for atom in term:
                value = self._poly_mul(value, {(atom,): 1, _UNIT: least(atom)})
            for key, count in value.items():
                result[key] = result.get(key, 0) + count
        return result

    def _least(self, atom: Expr) -> int:
        """Return a lower bound of a size, inside a loop over it."""
        assumed = self.facts.lower(atom)
        return max(assumed, 1) if isinstance(atom, Op) and self._at_least(atom, 1) else assumed

    def _at_launch(self, atom: Expr) -> int:
        """Return a lower bound of a size at any launch."""
        return self.facts.range_of(atom)[0] if isinstance(atom, Symbol) else self.facts.lower(atom)

    def simplify(self, root: Expr) -> Expr:
        """Return an index or predicate expression with every operation simplified."""
        found = self._simple.get(root)
        if found is None:
            found = self._simple[root] = rewrite(root, self._simplify_node)
        return found

    def _simplify_node(self, node: Expr) -> Expr | None:
        if isinstance(node, Symbol):
            fixed = self.facts.fixed(node)
            return None if fixed is None else integer(fixed)
        if not isinstance(node, Op) or node.dtype is not dtypes.index:
            return None
        args = [self.simplify(a) for a in node.args]
        if node.op in ("add", "sub", "mul", "floordiv", "mod", "ceildiv", "min", "max"):
            result = getattr(self, node.op)(*args)
            assert isinstance(result, Expr)
            return result
        return None


def _low_of(atom: Expr) -> Poly:
    return {(atom,): 1} if _is_size(atom) else {}


def _is_size(atom: Expr) -> bool:
    """Whether `atom` is free of the numbers of loops and threads (then it is its own bound)."""
    return not isinstance(atom, (Index, LaunchIndex)) and all(_is_size(a) for a in atom.args)


def _divide_monomial(term: Monomial, by: Monomial) -> Monomial | None:
    if not by:
        return term
    rest = list(term)
    for atom in by:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _product(term: Monomial, factor: int) -> Expr:
    if not term:
        return integer(factor)
    result = term[0]
    for atom in term[1:]:
        result = _index_op("mul", result, atom)
    return result if factor == 1 else _index_op("mul", result, integer(factor))
