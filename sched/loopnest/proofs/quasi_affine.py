"""Index expressions as polynomials, written out as isl's quasi-affine expressions where they are.

Written apart from the simplifier that the indices went through. A *digit* is a variable known to
lie in [0, D) for a product D of size symbols; by digits a division by D is carried out, and a
comparison of ``a * D + digit`` is one of ``a``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from loopnest.scalar.expr import Const, Expr, Local, Op, Symbol

if TYPE_CHECKING:
    from loopnest.proofs.program_model import Site

Term = TypeVar("Term")
Monomial: TypeAlias = "tuple[str, ...]"
Poly: TypeAlias = "dict[Monomial, int]"
Product: TypeAlias = "tuple[Monomial, int]"
"""A product of sizes and a number above 0: what an index is divided by."""
Division: TypeAlias = "tuple[frozenset[tuple[Monomial, int]], frozenset[tuple[Monomial, int]]]"
"""What is divided, and by what."""


class NotAffine(Exception):
    """An expression that isl cannot represent; `site` is the statement that asked for it."""

    site: Site | None = None


def constant(value: int) -> Poly:
    """Return a number."""
    return {(): value} if value else {}


def variable(name: str) -> Poly:
    """Return a variable."""
    return {(name,): 1}


def plus(a: Mapping[Term, int], b: Mapping[Term, int], factor: int = 1) -> dict[Term, int]:
    """Return a + factor * b, of sums that are the coefficients of their terms."""
    result = dict(a)
    for term, count in b.items():
        total = result.get(term, 0) + factor * count
        if total:
            result[term] = total
        else:
            result.pop(term, None)
    return result


def times(a: Poly, b: Poly) -> Poly:
    """Return a * b."""
    result: Poly = {}
    for m, c in a.items():
        for n, d in b.items():
            result = plus(result, {tuple(sorted((*m, *n))): c * d})
    return result


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


def evenly(whole: Poly, by: Product) -> Poly | None:
    """Return a quotient in which each term comes out even; None where one does not."""
    sizes, number = by
    result: Poly = {}
    for monomial, count in whole.items():
        part = quotient(monomial, sizes)
        if part is None or count % number:
            return None
        result[part] = count // number
    return result


def as_product(p: Poly) -> Product | None:
    """Return a polynomial that is one product of sizes and a number above 0; None for others."""
    found = next(iter(p.items())) if len(p) == 1 else None
    return found if found is not None and found[1] > 0 else None


class Algebra:
    """Turns expressions into polynomials and these into isl's language.

    Args:
        sizes: the size symbols that have a value.
        multiples: what a size is assumed to be a multiple of.
        same: the sizes that are assumed to be others, or made of them, which stand for them.

    Attributes:
        symbols: the parameters of isl: sizes, divided by what they are multiples of, and what else
            is one number a launch.
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
        self, sizes: Mapping[str, int], multiples: Mapping[str, int], same: Mapping[str, Expr]
    ) -> None:
        self.sizes, self.multiples, self.same = sizes, multiples, same
        self.symbols: set[str] = set()
        self.products: dict[Monomial, str] = {}
        self.functions: dict[str, tuple[str, tuple[Poly, ...]]] = {}
        self._names: dict[object, str] = {}
        self.below: dict[str, Product] = {}
        self.extents: dict[str, Poly] = {}
        self.derived: dict[Monomial, str] = {}
        self.bounds: dict[str, str] = {}
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
                self.symbols.add(f"p_{node.name}")
                return {(f"p_{node.name}",): self.multiples.get(node.name, 1)}
            case Local() if node in self.named:
                return self.poly(self.named[node], env)
            case Op() if node.dtype.kind == "x":
                return self.operation(node.op, [self.poly(a, env) for a in node.args])
        raise NotAffine(str(node))

    def operation(self, op: str, args: list[Poly]) -> Poly:
        """Return an operation on polynomials."""
        match op:
            case "add":
                return plus(args[0], args[1])
            case "sub":
                return plus(args[0], args[1], -1)
            case "neg":
                return plus({}, args[0], -1)
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
                return plus(args[0], times(args[1], self.divided(args[0], args[1])), -1)
            case "ceildiv":
                found = self._of_sizes("ceil", args[0], args[1])
                if found is None:
                    found = plus({}, self.divided(plus({}, args[0], -1), args[1]), -1)
                return found
            case "min" | "max":
                return self._function(op, tuple(args))
            case "cast":  # of an integer, which an index holds as it is
                return args[0]
        raise NotAffine(op)

    def divided(self, whole: Poly, by: Poly) -> Poly:
        """Return the floor of a quotient.

        Raises:
            NotAffine: a divisor that is no number and no product of sizes, or a rest that is not
                known to be smaller.
        """
        number = as_constant(by)
        if number is not None:
            if number <= 0:
                raise NotAffine("division by a number <= 0")
            return self._of_sizes("floor", whole, by) or self._exactly_by(whole, number)
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
            raise NotAffine(f"division by a {'symbol' if len(by) == 1 else 'sum'}")
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
        return plus(rest, part), {m: c * times_ for m, c in by.items()}, times_

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
        exact: Poly = {}
        rest: Poly = {}
        for monomial, count in whole.items():
            part = quotient(monomial, divisor)
            if part is None or count % number:
                rest[monomial] = count
            else:
                exact[part] = count // number
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
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"q{len(self._names)}_{op}"
            self.symbols.add(name)
            self.divisors.append(by)
            rest = plus(whole, times(variable(name), by), -1)
            low, high = self.text(rest, str), self.text(by, str)
            inside = f"0 <= {low} < {high}" if op == "floor" else f"0 <= -{low} < {high}"
            if number is None:
                # Of a product with a size isl knows too little: that ceil(1/M) is 1, say.
                inside += f" and {name} <= {self.text(whole, str)}"
            # Without the first part a divisor of 0 would leave the parameter no value, and all
            # would be shown of none; `divisors` asks for a proof that it is positive.
            self.bounds[name] = f"({high} <= 0 or ({inside}))"
        return variable(name)

    def _exactly_by(self, whole: Poly, number: int) -> Poly:
        found = self.exactly(whole, constant(number))
        return self._by_number(whole, number) if found is None else found

    def _by_number(self, whole: Poly, number: int) -> Poly:
        # An integer comes out of a floor as it is; the rest stays under it, for isl.
        exact = {m: c // number for m, c in whole.items() if c % number == 0}
        rest = {m: c for m, c in whole.items() if c % number}
        if not rest:
            return exact
        return plus(exact, self._function("floor", (rest, constant(number))))

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
                top = times(top, plus(self.extents[v], constant(1), -1))
            most = plus(most, top)
        # No size and no index is negative, so that no number of the rest is. What has no negative
        # coefficient is at least 0: then the largest rest is at most bound - 1. Where an extent is
        # 0 there is no point to speak of.
        room = plus(plus(bound, most, -1), constant(1), -1)
        known = {v for monomial in room for v in monomial} <= self.symbols
        return known and all(count >= 0 for count in room.values())

    # Text

    def text(self, p: Poly, name: Callable[[str], str]) -> str:
        """Return a polynomial as an isl expression; `name` gives the text of a variable.

        Raises:
            NotAffine: a product with a variable that is no size.
        """
        parts = [f"{count}*{self._factor(m, name)}" if m else str(count) for m, count in p.items()]
        return "(" + " + ".join(parts or ["0"]) + ")"

    def _factor(self, monomial: Monomial, name: Callable[[str], str]) -> str:
        if len(monomial) == 1:
            return self._atom(monomial[0], name)
        if monomial in self.derived:
            return name(self.derived[monomial])
        if any(part not in self.symbols for part in monomial):
            raise NotAffine("*".join(monomial))
        return self.products.setdefault(monomial, "__".join(monomial))

    def _atom(self, atom: str, name: Callable[[str], str]) -> str:
        if atom not in self.functions:
            return atom if atom in self.symbols else name(atom)
        op, args = self.functions[atom]
        texts = [self.text(a, name) for a in args]
        return (
            f"floor({texts[0]}/{as_constant(args[1])})"
            if op == "floor"
            else f"{op}({', '.join(texts)})"
        )

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

    def compare(self, op: str, a: Poly, b: Poly, name: Callable[[str], str]) -> str:
        """Return ``a op b`` as an isl condition."""
        match op:
            case "lt":
                return self._positive(plus(b, a, -1), name)
            case "gt":
                return self._positive(plus(a, b, -1), name)
            case "ge":
                # Over integers, and by way of `_positive`, which alone knows what a digit decides.
                return f"not ({self.compare('lt', a, b, name)})"
            case "le":
                return f"not ({self.compare('lt', b, a, name)})"
            case "eq" | "ne":
                sign = "=" if op == "eq" else "!="
                return f"({self.text(plus(a, b, -1), name)} {sign} 0)"
        raise NotAffine(op)

    def _positive(self, p: Poly, name: Callable[[str], str]) -> str:
        """Return ``p > 0``; ``A * D - digit > 0`` is ``A >= 1`` for a digit below D."""
        known = as_constant(p)
        if known is not None:
            return "(1 = 1)" if known > 0 else "(1 = 0)"
        try:
            return f"({self.text(p, name)} > 0)"
        except NotAffine:
            pass
        for digit, limit in self.below.items():
            if p.get((digit,)) != -1:
                continue
            others = evenly(plus(p, variable(digit)), limit)
            if others is not None:
                return self._positive(others, name)
        raise NotAffine("comparison")

    def condition(self, node: Expr, env: Mapping[Expr, Poly], name: Callable[[str], str]) -> str:
        """Return a boolean expression as an isl condition."""
        if isinstance(node, Const):
            return "(1 = 1)" if node.value else "(1 = 0)"
        if isinstance(node, Op) and node.op in ("and", "or", "not"):
            parts = [self.condition(a, env, name) for a in node.args]
            if node.op == "not":
                return f"not ({parts[0]})"
            return f"({f' {node.op} '.join(parts)})"
        if isinstance(node, Op) and node.dtype.is_bool and len(node.args) == 2:
            a, b = [self.poly(arg, env) for arg in node.args]
            return self.compare(node.op, a, b, name)
        raise NotAffine(str(node))

    def context(self) -> str:
        """Return what is known of the parameters: sizes are not negative, nor their products."""
        facts = [f"{s} >= 0" for s in sorted(self.symbols)] + list(self.bounds.values())
        for monomial, product in self.products.items():
            zero = " or ".join([f"{s} = 0" for s in monomial])
            large = " and ".join([f"{product} >= {s} and {s} >= 1" for s in monomial])
            facts.append(f"(({product} = 0 and ({zero})) or ({large}))")
        return " and ".join(facts) or "1 = 1"
