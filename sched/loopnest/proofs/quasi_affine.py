"""Index expressions as polynomials, and the linear sums and conditions that they are for isl.

Written apart from the simplifier that the indices went through. A *digit* is a variable known to
lie in [0, D) for a product D of size symbols; by digits a division by D is carried out, and a
comparison of ``a * D + digit`` is one of ``a``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from types import MappingProxyType
from typing import TypeAlias

from loopnest import kir
from loopnest.proofs import affine
from loopnest.scalar.expr import Const, Expr, Local, Op, Symbol

Monomial: TypeAlias = "tuple[str, ...]"
Poly: TypeAlias = "dict[Monomial, int]"
Product: TypeAlias = "tuple[Monomial, int]"
"""A product of sizes and a number above 0: what an index is divided by."""
Division: TypeAlias = "tuple[frozenset[tuple[Monomial, int]], frozenset[tuple[Monomial, int]]]"
"""What is divided, and by what."""


def constant(value: int) -> Poly:
    """Return a number."""
    return {(): value} if value else {}


def variable(name: str) -> Poly:
    """Return a variable."""
    return {(name,): 1}


def times(a: Poly, b: Poly) -> Poly:
    """Return a * b."""
    result: Poly = {}
    for m, c in a.items():
        for n, d in b.items():
            result = affine.plus(result, {tuple(sorted((*m, *n))): c * d})
    return result


def product_of(factors: Iterable[Poly]) -> Poly:
    """Return the product of polynomials, 1 of none."""
    return reduce(times, factors, constant(1))


def mixed_radix(digits: Sequence[str], extents: Iterable[Poly]) -> Poly:
    """Return a number by its digits, the slowest first, and by how many values each has."""
    whole: Poly = {}
    for digit, extent in zip(digits, extents, strict=True):
        whole = affine.plus(times(whole, extent), variable(digit))
    return whole


def row_major(extents: Sequence[Poly]) -> list[Poly]:
    """Return the strides of dense memory."""
    return [product_of(extents[axis + 1 :]) for axis in range(len(extents))]


def offset_of(index: Iterable[Poly], strides: Iterable[Poly]) -> Poly:
    """Return the offset of an element by its index along each axis, and the strides."""
    total: Poly = {}
    for p, stride in zip(index, strides, strict=True):
        total = affine.plus(total, times(p, stride))
    return total


def as_constant(p: Poly) -> int | None:
    """Return the value of a polynomial without variables, else None."""
    if not p:
        return 0
    return p.get((), None) if len(p) == 1 else None


def quotient(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """Return monomial / divisor, None where it does not divide."""
    rest = list(monomial)
    for name in divisor:
        if name not in rest:
            return None
        rest.remove(name)
    return tuple(rest)


def parted(whole: Poly, by: Poly) -> tuple[Poly, Poly]:
    """Return quotient and rest of a division of polynomials.

    A term that the leading one of the divisor does not divide is one of the rest.
    """
    lead = max(by, key=lambda monomial: (len(monomial), monomial))
    found: Poly = {}
    rest, waiting = dict(whole), list(whole)
    while waiting:
        monomial = waiting.pop(0)
        count, part = rest.get(monomial, 0), quotient(monomial, lead)
        if count and part is not None and count % by[lead] == 0:
            term = {part: count // by[lead]}
            taken = times(term, by)
            found, rest = affine.plus(found, term), affine.plus(rest, taken, -1)
            waiting += taken
    return found, rest


def evenly(whole: Poly, by: Poly) -> Poly | None:
    """Return a quotient in which each term comes out even; None where one does not."""
    found, rest = parted(whole, by)
    return None if rest else found


def as_product(p: Poly) -> Product | None:
    """Return a polynomial that is one product of sizes and a number above 0; None for others."""
    found = next(iter(p.items())) if len(p) == 1 else None
    return found if found is not None and found[1] > 0 else None


class Algebra:
    """Turns expressions into polynomials, and these into sums and conditions for isl.

    Args:
        sizes: the size symbols that have a value.
        multiples: what a size is assumed to be a multiple of.
        same: the sizes that are assumed to be others, or made of them, which stand for them.
        least: what sizes and quotients of sizes are known to be at least; their parameters count
            from there.

    Attributes:
        symbols: the parameters of isl: sizes, divided by what they are multiples of, and what else
            is one number a launch.
        stands_for: which size or quotient of sizes, as `least` names it, a parameter is for.
        bounds: what is known of a parameter beside that it is not negative.
        below: digits, with the product that each is less than.
        extents: how many values a variable has, which is 0 or more.
        derived: products of an index and sizes for which a variable of its own stands.
        named: index expressions that have a name.
        quotients: the variables of quotients with few values; `divided_in` has what they divide.
        data: the variables of data that indices are computed from.
        remainders: of data by a size: any number in [0, size); `wrapped` has the sizes.
        divisors: of sizes and of data; a proof shows that they are positive.
        shown: tells whether a rest lies in [0, divisor) at the statement that is looked at, by its
            tests, where the extents of its loops do not; None where no statement is.
        given: quotients that conditions say the value of.
        asked: the quotients with a variable that came out of divisions so far.
        divisions: those that could not be carried out.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        multiples: Mapping[str, int],
        same: Mapping[str, Expr],
        least: Mapping[object, int] = MappingProxyType({}),
    ) -> None:
        self.sizes, self.multiples, self.same, self.least = sizes, multiples, same, least
        self.symbols: set[str] = set()
        self.stands_for: dict[str, object] = {}
        self.products: dict[Monomial, str] = {}
        self.functions: dict[str, tuple[str, tuple[Poly, ...]]] = {}
        self._names: dict[object, str] = {}
        self.below: dict[str, Product] = {}
        self.extents: dict[str, Poly] = {}
        self.derived: dict[Monomial, str] = {}
        self.bounds: dict[str, affine.Condition] = {}
        self.named: dict[Expr, Expr] = {}
        self.quotients: dict[Division, str] = {}
        self.divided_in: dict[str, Poly] = {}
        self.data: set[str] = set()
        self.remainders: dict[Division, str] = {}
        self.wrapped: dict[str, Poly] = {}
        self.divisors: list[Poly] = []
        self.shown: Callable[[Poly, Poly], bool] | None = None
        self.given: dict[Division, Poly] = {}
        self.asked: set[str] = set()
        self.divisions: list[tuple[Poly, Poly]] = []

    # Expressions

    def poly(self, node: Expr, env: Mapping[Expr, Poly]) -> Poly:
        """Return an index expression as a polynomial.

        Raises:
            NotAffine: it is none of sums, products, divisions and extremes of known variables.
        """
        found = env.get(node)
        if found is not None:
            return found
        match node:
            case Const():
                return constant(int(node.value))
            case Symbol():
                if node.name in self.sizes:
                    return constant(self.sizes[node.name])
                if node.name in self.same:
                    return self.poly(self.same[node.name], env)
                number = self.multiples.get(node.name, 1)
                return self._counted(f"p_{node.name}", node.name, number)
            case Local() if node in self.named:
                return self.poly(self.named[node], env)
            case Op() if node.dtype.kind == "x":
                return self.operation(node.op, [self.poly(a, env) for a in node.args])
        raise affine.NotAffine(str(node))

    def _counted(self, name: str, key: object, number: int = 1) -> Poly:
        """Return a size, or a quotient of sizes, from its parameter, times a number."""
        self.symbols.add(name)
        self.stands_for[name] = key
        least = self.least.get(key, 0)
        return {(name,): number, (): least * number} if least else {(name,): number}

    def operation(self, op: str, args: list[Poly]) -> Poly:
        """Return an operation on polynomials."""
        match op:
            case "add":
                return affine.plus(args[0], args[1])
            case "sub":
                return affine.plus(args[0], args[1], -1)
            case "neg":
                return affine.plus({}, args[0], -1)
            case "mul":
                return times(args[0], args[1])
            case "floordiv":
                return self.divided(args[0], args[1])
            case "mod" if self.variables(args[0]) & self.data and as_constant(args[1]) is None:
                key = self.division(*args)
                # isl has no remainder by a size. Any number in its range stands for it: there are
                # more points then than the program has, of which all must be right.
                name = self.remainders.setdefault(key, f"r_{len(self.remainders)}")
                self.wrapped[name] = args[1]
                self.divisors.append(args[1])
                return variable(name)
            case "mod":
                return affine.plus(args[0], times(args[1], self.divided(args[0], args[1])), -1)
            case "ceildiv":
                found = self._of_sizes("ceil", args[0], args[1])
                if found is None:
                    found = affine.plus({}, self.divided(affine.plus({}, args[0], -1), args[1]), -1)
                return found
            case "min" | "max":
                return self._function(op, tuple(args))
            case "cast":  # of an integer, which an index holds as it is
                return args[0]
        raise affine.NotAffine(op)

    def divided(self, whole: Poly, by: Poly) -> Poly:
        """Return the floor of a quotient.

        Raises:
            NotAffine: a divisor that is no number and no product of sizes, or a rest that is not
                known to be smaller.
        """
        number = as_constant(by)
        if number is not None:
            if number <= 0:
                raise affine.NotAffine("division by a number <= 0")
            return self._of_sizes("floor", whole, by) or self._exactly_by(whole, number)
        if not whole:
            return {}
        found = self._named_quotient(whole, by)
        if found is None:
            found = self.exactly(whole, by)
        if found is None:
            found = self._of_sizes("floor", whole, by)
        if found is None:
            whole, by = self._reduced(whole, by)
            found = self._named_quotient(whole, by)
        if found is None:
            self.divisions.append((whole, by))
            raise affine.NotAffine(f"division by a {'symbol' if len(by) == 1 else 'sum'}")
        return found

    def _named_quotient(self, whole: Poly, by: Poly) -> Poly | None:
        division = self.division(whole, by)
        known = self.quotients.get(division)
        if known is None:
            return self.given.get(division)
        self.asked.add(known)
        return variable(known)

    def _reduced(self, whole: Poly, by: Poly) -> tuple[Poly, Poly]:
        """Return a division of one quotient, ``(4 * i + j) // (4 * D)`` as ``i // D`` for j < 4.

        The floor of a quotient by a product is that of the quotients by its factors in turn. Where
        the first comes out in indices, all quotients of neighbours have one name.
        """
        number = next(iter(by.values()), 0)
        if len(by) == 1 and number > 1:
            found = self.exactly(whole, constant(number))
            if found is not None and not any(v in self.functions for m in found for v in m):
                return found, dict.fromkeys(by, 1)
        return whole, by

    def unfloored(self, whole: Poly, by: Poly) -> tuple[Poly, Poly, int]:
        """Return a division without the floor in what is divided, and the number of that floor.

        ``(4 * i + j // 8) // D`` is ``(32 * i + j) // (8 * D)``: the floor of a quotient by a
        product is that of the quotients by its factors in turn.
        """
        floors = [m for m, c in whole.items() if c == 1 and len(m) == 1 and self.is_floor(m[0])]
        if len(floors) != 1:
            return whole, by, 1
        part, number = self.functions[floors[0][0]][1]
        times_ = as_constant(number)
        assert times_ is not None
        rest = {m: c * times_ for m, c in whole.items() if m != floors[0]}
        return affine.plus(rest, part), {m: c * times_ for m, c in by.items()}, times_

    def is_floor(self, name: str) -> bool:
        """Whether a variable stands for the floor of a quotient by a number."""
        return self.functions.get(name, ("", ()))[0] == "floor"

    def division(self, whole: Poly, by: Poly) -> Division:
        """Return by what a quotient is known."""
        return frozenset(whole.items()), frozenset(by.items())

    def exactly(self, whole: Poly, by: Poly) -> Poly | None:
        """Return a quotient by a product of sizes; None where the rest may not be smaller."""
        if len(by) != 1 or next(iter(by.values())) < 1:
            return None
        ((divisor, number),) = by.items()
        exact, rest = parted(whole, by)
        if self._smaller(rest, by):
            return exact
        # A quotient by a number is isl's own.
        if divisor and self.shown is not None and self.shown(rest, by):
            return exact
        found = None if number == 1 else self.exactly(whole, {divisor: 1})
        return None if found is None else self._by_number(found, number)

    def _of_sizes(self, op: str, whole: Poly, by: Poly) -> Poly | None:
        """Return a quotient of sizes that does not come out even, as a parameter; else None.

        Nothing is known of it where the divisor is not positive.
        """
        known = {v for p in (whole, by) for monomial in p for v in monomial} <= self.symbols
        number = as_constant(by)
        if not known or not whole or any(n < 0 for n in whole.values()):
            return None
        if number is None:
            exact = self.exactly(whole, by)
            if exact is not None:
                return exact
        elif number <= 0 or all(count % number == 0 for count in whole.values()):
            return None
        key = (op, *self.division(whole, by))
        name = self._names.get(key, f"q{len(self._names)}_{op}")
        found = self._counted(name, key)
        if key not in self._names:
            self._names[key] = name
            self.divisors.append(by)
            rest = affine.plus(whole, times(found, by), -1)
            size = self.linear(by)
            if op == "ceil":
                rest = affine.plus({}, rest, -1)
            inside = affine.within(self.linear(rest), size)
            if number is None:
                # Of a product with a size isl knows too little: that ceil(1/M) is 1, say.
                inside &= affine.at_most(self.linear(found), self.linear(whole))
            # Without the first part a divisor of 0 would leave the parameter no value, and all
            # would be shown of none; `divisors` asks for a proof that it is positive.
            self.bounds[name] = affine.at_most(size, 0) | inside
        return found

    def _exactly_by(self, whole: Poly, number: int) -> Poly:
        found = self.exactly(whole, constant(number))
        return self._by_number(whole, number) if found is None else found

    def _by_number(self, whole: Poly, number: int) -> Poly:
        # An integer comes out of a floor as it is; the rest stays under it, for isl.
        exact = {m: c // number for m, c in whole.items() if c % number == 0}
        rest = {m: c for m, c in whole.items() if c % number}
        if not rest:
            return exact
        return affine.plus(exact, self._function("floor", (rest, constant(number))))

    def _function(self, op: str, args: tuple[Poly, ...]) -> Poly:
        key = (op, *[frozenset(a.items()) for a in args])
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"f{len(self._names)}"
            self.functions[name] = (op, args)
        return variable(name)

    def _smaller(self, rest: Poly, bound: Poly) -> bool:
        """Whether `rest` lies in [0, bound), by its value where each index is at its largest."""
        if not rest:
            return True
        most: Poly = {}
        for monomial, count in rest.items():
            own = [v for v in monomial if v not in self.symbols]
            if count < 0 or len(own) > 1:
                return False
            top: Poly = {tuple(v for v in monomial if v in self.symbols): count}
            for v in own:
                if v not in self.extents:
                    return False
                top = times(top, affine.plus(self.extents[v], constant(1), -1))
            most = affine.plus(most, top)
        # No size and no index is negative, so that no number of the rest is. What has no negative
        # coefficient is at least 0: then the largest rest is at most bound - 1. Where an extent is
        # 0 there is no point to speak of.
        room = affine.plus(affine.plus(bound, most, -1), constant(1), -1)
        known = {v for monomial in room for v in monomial} <= self.symbols
        return known and all(count >= 0 for count in room.values())

    # Conditions

    def linear(self, p: Poly, mark: str = "") -> affine.Sum:
        """Return a polynomial as a sum; `mark` begins the names of variables that are no sizes.

        Raises:
            NotAffine: a product with a variable that is no size.
        """
        return affine.sum_of(
            [(self._factor(monomial, mark), count) for monomial, count in p.items()]
        )

    def _factor(self, monomial: Monomial, mark: str) -> affine.Value:
        if not monomial:
            return 1
        if len(monomial) == 1:
            return self._atom(monomial[0], mark)
        if monomial in self.derived:
            return mark + self.derived[monomial]
        if any(part not in self.symbols for part in monomial):
            raise affine.NotAffine("*".join(monomial))
        return self.products.setdefault(monomial, "__".join(monomial))

    def _atom(self, atom: str, mark: str) -> affine.Value:
        if atom not in self.functions:
            return atom if atom in self.symbols else mark + atom
        op, args = self.functions[atom]
        if op != "floor":
            return affine.extreme_of(op, [self.linear(arg, mark) for arg in args])
        number = as_constant(args[1])
        assert number is not None
        return affine.floor_of(self.linear(args[0], mark), number)

    def variables(self, p: Poly) -> set[str]:
        """Return the variables in a polynomial, those inside of functions and quotients too."""
        found: set[str] = set()
        for monomial in p:
            for part in monomial:
                if part in self.functions:
                    for arg in self.functions[part][1]:
                        found |= self.variables(arg)
                    continue
                found.add(part)
                if part in self.divided_in:
                    found |= self.variables(self.divided_in[part])
        return found

    def compare(self, op: str, a: Poly, b: Poly) -> affine.Condition:
        """Return the condition ``a op b``."""
        match op:
            case "lt":
                return self._positive(affine.plus(b, a, -1))
            case "gt":
                return self._positive(affine.plus(a, b, -1))
            case "ge":
                # Over integers, and by way of `_positive`, which alone knows what a digit decides.
                return ~self.compare("lt", a, b)
            case "le":
                return ~self.compare("lt", b, a)
            case "eq":
                return affine.equal(self.linear(affine.plus(a, b, -1)), 0)
            case "ne":
                return affine.unequal(self.linear(affine.plus(a, b, -1)), 0)
        raise affine.NotAffine(op)

    def inside(self, p: Poly, end: Poly) -> affine.Condition:
        """Return ``0 <= p < end``."""
        return affine.at_most(0, self.linear(p)) & self.compare("lt", p, end)

    def _positive(self, p: Poly) -> affine.Condition:
        """Return ``p > 0``; ``A * D - digit > 0`` is ``A >= 1`` for a digit below D."""
        known = as_constant(p)
        if known is not None:
            return affine.TRUE if known > 0 else affine.FALSE
        with suppress(affine.NotAffine):
            return affine.below(0, self.linear(p))
        for digit, limit in self.below.items():
            if p.get((digit,)) != -1:
                continue
            others = evenly(affine.plus(p, variable(digit)), dict([limit]))
            if others is not None:
                return self._positive(others)
        raise affine.NotAffine("comparison")

    def condition(self, node: Expr, env: Mapping[Expr, Poly]) -> affine.Condition:
        """Return a boolean expression as a condition."""
        if isinstance(node, Const):
            return affine.TRUE if node.value else affine.FALSE
        if isinstance(node, Op) and node.op in affine.CONNECTIVES:
            return affine.connected(node.op, [self.condition(a, env) for a in node.args])
        if isinstance(node, Op) and node.dtype.is_bool and len(node.args) == 2:
            a, b = [self.poly(arg, env) for arg in node.args]
            return self.compare(node.op, a, b)
        raise affine.NotAffine(str(node))

    def counted_from(self, p: Poly) -> Iterator[tuple[str, int]]:
        """Yield the parameters and numbers of which the difference divides a sum of sizes."""
        for name in sorted(self.stands_for):
            factor = {tuple([v for v in m if v != name]): c for m, c in p.items() if name in m}
            rest = {m: c for m, c in p.items() if name not in m}
            number = as_constant(evenly(rest, factor) or {}) if factor else None
            if number is not None and number < 0 and self.stands_for[name] not in self.least:
                yield name, -number

    def facts(self, program: kir.Program) -> Iterator[affine.Condition]:
        """Yield what is assumed of sizes, as far as it has an affine form: less holds as well."""
        for _, condition in (*program.conditions, *program.requires):
            with suppress(affine.NotAffine):
                yield self.condition(condition, {})

    def parameters(self) -> tuple[str, ...]:
        """Return the names of sizes, and of their products."""
        return (*sorted(self.symbols), *self.products.values())

    def context(self) -> affine.Condition:
        """Return what is known of the parameters: sizes are not negative, nor their products."""
        facts = [*[affine.at_most(0, s) for s in sorted(self.symbols)], *self.bounds.values()]
        for monomial, product in self.products.items():
            zero = affine.any_of([affine.equal(s, 0) for s in monomial])
            large = [affine.at_most(s, product) & affine.at_most(1, s) for s in monomial]
            facts.append(affine.equal(product, 0) & zero | affine.all_of(large))
        return affine.all_of(facts)
