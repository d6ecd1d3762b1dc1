"""Facts about sizes: the comparisons that a user assumed, for the simplifier."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Const, Expr, Op, Symbol, substitute, terms_of
from loopnest.scalar.size_text import read_size

_COMPARE: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}


@dataclass(slots=True)
class Facts:
    """Facts on sizes, gathered from assumptions.

    `conditions` holds each as a boolean expression over size symbols: the launch checks them all,
    while the tables below are what proofs use. Sizes that were assumed equal are one: the tables
    speak of the one that the others are `names` of.
    """

    conditions: list[tuple[str, Expr]] = field(default_factory=list)
    _divisible: dict[Expr, list[Expr]] = field(default_factory=dict)
    _lower: dict[Expr, int] = field(default_factory=dict)
    _upper: dict[Expr, int] = field(default_factory=dict)
    _equal: dict[Expr, Expr] = field(default_factory=dict)
    _names: dict[Expr, Expr] = field(default_factory=dict)
    used: set[tuple[str, Expr]] = field(default_factory=set, compare=False)
    """Which entries (table, key) told somebody something; all copies share it."""
    _learned: dict[str, list[tuple[str, Expr]]] = field(default_factory=dict, compare=False)

    def uses(self, text: str) -> bool:
        """Whether something was looked up that the assumption `text` states."""
        used = {(table, self.named(key)) for table, key in self.used}
        told = [(table, self.named(key)) for table, key in self._learned.get(text, ())]
        return not used.isdisjoint(told)

    def teaches(self, text: str) -> bool:
        """Whether the assumption `text` has a form that can be looked up."""
        return bool(self._learned.get(text))

    @classmethod
    def of(cls, conditions: Iterable[Expr]) -> Facts:
        """Return what comparisons of sizes say, also those in a conjunction."""
        made = cls()
        for condition in conditions:
            for term in terms_of(condition):
                if isinstance(term, Op) and term.op in _COMPARE.values():
                    made._learn(term.op, *term.args)
        return made

    def copy(self) -> Facts:
        """Return an independent copy."""
        return Facts(
            list(self.conditions),
            {k: list(v) for k, v in self._divisible.items()},
            dict(self._lower),
            dict(self._upper),
            dict(self._equal),
            dict(self._names),
            self.used,
            {k: list(v) for k, v in self._learned.items()},
        )

    def with_divisor(self, size: Expr, divisor: Expr) -> Facts:
        """Return these facts and ``size % divisor == 0``, which is no condition of the launch."""
        made = self.copy()
        made._divisible.setdefault(self.named(size), []).append(self.named(divisor))
        return made

    def with_upper(self, size: Expr, bound: int) -> Facts:
        """Return these facts and ``size <= bound``, which is no condition of the launch."""
        made, size = self.copy(), self.named(size)
        made._upper[size] = min(bound, made._upper.get(size, bound))
        return made

    def named(self, size: Expr) -> Expr:
        """Return an expression with one symbol for all sizes that were assumed equal."""
        return substitute(size, self._names) if self._names else size

    def name_of(self, size: Symbol) -> Expr:
        """Return the symbol that stands for all sizes that were assumed to equal `size`."""
        found = self._names.get(size)
        if found is None:
            return size
        self.used.add(("name", size))
        return found

    def divisor(self, atom: Expr) -> int:
        """Return the largest integer known to divide `atom` (1 where nothing is known)."""
        atom = self.named(atom)
        if isinstance(atom, Op) and atom.op == "floordiv" and isinstance(atom.args[1], Const):
            whole = self.divisor(atom.args[0])
            by = int(atom.args[1].value)
            # whole | n and by | whole: n // by = (n / whole) * (whole / by), without a rest.
            return whole // by if whole % by == 0 else 1
        known = self._steps(atom)
        if known:
            self.used.add(("divisible", atom))
        return math.lcm(*known)

    def _steps(self, size: Expr) -> list[int]:
        """Return the numbers that a size was assumed to be a multiple of."""
        return [int(d.value) for d in self._divisible.get(size, ()) if isinstance(d, Const)]

    def product_divisors(self, atoms: frozenset[Expr]) -> Iterator[tuple[tuple[Expr, ...], int]]:
        """Yield products that some of `atoms` make, each with an integer known to divide it."""
        for size, divisors in self._divisible.items():
            if isinstance(size, Op) and size.op == "mul":
                factors = tuple(_factors(size))
                known = [int(d.value) for d in divisors if isinstance(d, Const)]
                if known and atoms.issuperset(factors):
                    self.used.add(("divisible", size))
                    yield factors, math.lcm(*known)

    def states_divisible(self, value: Expr, divisor: Expr) -> bool:
        """Whether ``value % divisor == 0`` was assumed literally."""
        value, divisor = self.named(value), self.named(divisor)
        found = divisor in self._divisible.get(value, ())
        if found:
            self.used.add(("divisible", value))
        return found

    def states_equal(self, a: Expr, b: Expr) -> bool:
        """Whether ``a == b`` was assumed literally."""
        one, other = self.named(a), self.named(b)
        if one is other:
            self.used |= {("name", node) for node in (a, b) if node in self._names}
            return True
        a, b = one, other
        found = self._equal.get(a) is b or self._equal.get(b) is a
        if found:
            self.used |= {("equal", a), ("equal", b)}
        return found

    @property
    def equations(self) -> Mapping[Expr, Expr]:
        """What was assumed to equal what, both ways."""
        return self._equal

    def rely_on_equation(self, side: Expr) -> None:
        """Note that what `side` was assumed to equal decided something."""
        self.used.add(("equal", side))

    def lower(self, atom: Expr) -> int:
        """Return a lower bound of a size inside a loop over it: 1 of a symbol, or as assumed."""
        atom = self.named(atom)
        plain, assumed = int(isinstance(atom, Symbol)), self._lower.get(atom, 0)
        if assumed > plain:
            self.used.add(("lower", atom))
        return max(plain, assumed)

    def states_positive(self, atom: Expr) -> bool:
        """Whether a size was assumed to be >= 1, or is a maximum with such a number."""
        if isinstance(atom, Op) and atom.op == "max":
            return any(isinstance(a, Const) and a.value >= 1 for a in atom.args)
        atom = self.named(atom)
        if isinstance(atom, Op) and atom.op == "ceildiv":
            return self.states_positive(atom.args[0])
        found = self._lower.get(atom, 0) >= 1
        if found:
            self.used.add(("lower", atom))
        return found

    @property
    def bounds_above(self) -> bool:
        """Whether any size has an upper bound."""
        return bool(self._upper)

    def empty_ranges(self) -> Iterator[tuple[Expr, int, int, int]]:
        """Yield sizes without a value, with the bounds and the divisor that leave them none."""
        for size, high in self._upper.items():
            low = self._lower.get(size, 0 if isinstance(size, Symbol) else high)
            step = max(math.lcm(*self._steps(size)), 1)
            if -(-low // step) * step > high // step * step:
                yield size, low, high, step

    def range_of(self, size: Symbol) -> tuple[int, int | None]:
        """Return the least and the largest value of a size at any launch; None without bound."""
        key = self.named(size)
        low, high = max(self._lower.get(key, 0), 0), self.upper(key)
        if low:
            self.used.add(("lower", key))
        # Of the multiples of `step` the first is not below `low`, the last not above `high`.
        step = self.divisor(key)
        return -(-low // step) * step, None if high is None else high // step * step

    def fixed(self, size: Symbol) -> int | None:
        """Return the one value >= 1 that assumptions leave a size, or None."""
        key = self.named(size)
        high = self._upper.get(key)
        if high is None:
            return None
        step = max(math.lcm(*self._steps(key)), 1)
        value = high // step * step
        if value < 1 or -(-self._lower.get(key, 0) // step) * step != value:
            return None
        self.used |= {(table, key) for table in ("lower", "upper", "divisible")}
        self.name_of(size)
        return value

    def largest(self, size: Expr) -> int | None:
        """Return the assumed upper bound of a size, or None, as no use of it; see `rely_on`."""
        size = self.named(size)
        found = self._upper.get(size)
        step = max(math.lcm(*self._steps(size)), 1)
        return None if found is None else found // step * step

    def rely_on(self, size: Expr) -> None:
        """Note that the upper bound of a size decided something."""
        size = self.named(size)
        if size in self._upper:
            self.used |= {("upper", size), ("divisible", size)}

    def upper(self, atom: Expr) -> int | None:
        """Return the assumed upper bound of a size, or None."""
        atom = self.named(atom)
        found = self._upper.get(atom)
        if found is not None:
            self.used.add(("upper", atom))
        return found

    def add(self, text: str, symbols: Callable[[str], bool]) -> None:
        """Take the comparison `text` over integers and size symbols.

        Raises:
            DefinitionError: it is no such comparison, or names an unknown symbol.
        """
        self.state(text, _AssumptionParser(text, symbols).parse())

    def state(self, text: str, condition: Expr) -> None:
        """Take a comparison of sizes, which people read as `text`."""
        self.conditions.append((text, condition))
        assert isinstance(condition, Op)
        before = self._entries()
        self._learn(condition.op, *condition.args)
        after = self._entries()
        known = {(t, key if t == "name" else self.named(key)): v for (t, key), v in before.items()}
        self._learned[text] = [entry for entry, held in after.items() if known.get(entry) != held]

    def _entries(self) -> dict[tuple[str, Expr], object]:
        """Return what is stated, by table and key."""
        return {
            **{("divisible", k): tuple(v) for k, v in self._divisible.items()},
            **{("lower", k): v for k, v in self._lower.items()},
            **{("upper", k): v for k, v in self._upper.items()},
            **{("equal", k): v for k, v in self._equal.items()},
            **{("name", k): v for k, v in self._names.items()},
        }

    def _learn(self, op: str, left: Expr, right: Expr) -> None:
        left, right = self.named(left), self.named(right)
        if op in ("gt", "ge"):
            op, left, right = {"gt": "lt", "ge": "le"}[op], right, left
        if op == "eq" and isinstance(left, Symbol) and isinstance(right, Symbol):
            if left is not right:
                self._join(left, right)
        elif op == "eq":
            self._learn_equal(left, right)
            self._learn_equal(right, left)
        elif op in ("lt", "le"):
            strict = int(op == "lt")
            if isinstance(right, Const):
                bound = int(right.value) - strict
                self._upper[left] = min(bound, self._upper.get(left, bound))
            if isinstance(left, Const):
                bound = int(left.value) + strict
                self._lower[right] = max(bound, self._lower.get(right, bound))

    def _join(self, kept: Symbol, other: Symbol) -> None:
        """Take `other` for another name of `kept`, in all that is known."""
        old = {size: kept if name is other else name for size, name in self._names.items()}
        self._names = {**old, other: kept}
        divisible, lower, upper, equal = self._divisible, self._lower, self._upper, self._equal
        self._divisible, self._lower, self._upper, self._equal = {}, {}, {}, {}
        for size, divisors in divisible.items():
            known = self._divisible.setdefault(self.named(size), [])
            known += [self.named(d) for d in divisors]
        for size, bound in lower.items():
            self._lower[self.named(size)] = max(bound, self._lower.get(self.named(size), bound))
        for size, bound in upper.items():
            self._upper[self.named(size)] = min(bound, self._upper.get(self.named(size), bound))
        for size, same in equal.items():
            if self.named(size) is not self.named(same):
                self._equal[self.named(size)] = self.named(same)

    def _learn_equal(self, left: Expr, right: Expr) -> None:
        if isinstance(left, Op) and left.op == "mod" and isinstance(right, Const):
            if right.value == 0:
                self._divisible.setdefault(left.args[0], []).append(left.args[1])
        elif isinstance(right, Const) and not isinstance(left, Const):
            value = int(right.value)
            self._lower[left] = max(value, self._lower.get(left, value))
            self._upper[left] = min(value, self._upper.get(left, value))
        elif not isinstance(left, Const):
            self._equal[left] = right
        if (divisor := _rounded(left, right)) is not None:
            self._divisible.setdefault(left, []).append(divisor)
        if isinstance(right, Op) and right.op == "mul":
            for factor in right.args:
                self._divisible.setdefault(left, []).append(factor)


def _rounded(size: Expr, product: Expr) -> Expr | None:
    """Return d where `product` is ``size // d * d``, which equals `size` where d divides it."""
    factors = list(_factors(product))
    for quotient in factors:
        if isinstance(quotient, Op) and quotient.op == "floordiv" and quotient.args[0] is size:
            divisor = quotient.args[1]
            others = [factor for factor in factors if factor is not quotient]
            if others == list(_factors(divisor)):
                return divisor
    return None


def _factors(product: Expr) -> Iterator[Expr]:
    """Yield what is multiplied, from left to right."""
    if isinstance(product, Op) and product.op == "mul":
        for arg in product.args:
            yield from _factors(arg)
    else:
        yield product


def size_expression(text: str, symbols: Callable[[str], bool], call: str) -> Expr:
    """Return the size that `text` writes, over integers and size symbols, as in ``"N * K"``.

    Raises:
        DefinitionError: it cannot be read, or names an unknown symbol.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return _AssumptionParser(text, symbols).term(tree)
    except (SyntaxError, ValueError, TypeError):
        raise DefinitionError(call, f"the size {text!r} cannot be read", _SIZES) from None
    except DefinitionError as refused:
        raise DefinitionError(call, f"of the size {text!r}, {refused.reason}", _SIZES) from None


_SIZES = "write integers and size symbols with + - * // %, such as 'N * K'"


class _AssumptionParser:
    """Read one comparison of sizes by Python's own grammar; other syntax is refused."""

    def __init__(self, text: str, symbols: Callable[[str], bool]) -> None:
        self.text = text
        self.symbols = symbols

    def fail(self, reason: str) -> DefinitionError:
        return DefinitionError(
            f"assume({self.text!r})",
            reason,
            "write one comparison of integers and size symbols with + - * // %, "
            "such as 'N % 128 == 0' or 'N <= 65536'",
        )

    def parse(self) -> Expr:
        try:
            tree = ast.parse(self.text.strip(), mode="eval").body
        except (SyntaxError, ValueError, TypeError):
            raise self.fail("it cannot be read") from None
        if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
            raise self.fail("it is not one comparison")
        op = _COMPARE.get(type(tree.ops[0]))
        if op is None:
            raise self.fail("it is not one comparison")
        left, right = self.term(tree.left), self.term(tree.comparators[0])
        return Op(op, (left, right), dtypes.bool_)

    def term(self, node: ast.expr) -> Expr:
        return read_size(node, self.symbol, self.fail)

    def symbol(self, name: str) -> Symbol:
        if not self.symbols(name):
            raise self.fail(f"'{name}' is no size symbol of this fusion")
        return Symbol(name)
