"""Index expressions as sums of atoms with integer coefficients, at given sizes.

An atom is a loop index, a floor division or remainder of such a sum by a constant, or an expression
that is taken as it is. The sizes are numbers here, so more is decided than symbolically; none of it
is shared with the simplifier that the indices went through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from loopnest.scalar.expr import Const, Expr, Index, Load, Local, Op, Symbol


@dataclass(frozen=True, slots=True)
class Part:
    """A digit of a sum: its quotient or remainder by `divisor`."""

    op: str  # "floordiv" or "mod"
    of: LinearForm
    divisor: int


Atom: TypeAlias = "Expr | Part"


@dataclass(frozen=True, slots=True)
class LinearForm:
    """``constant`` + the sum of coefficient * atom over `terms`."""

    terms: frozenset[tuple[Atom, int]]
    constant: int = 0

    def plus(self, other: LinearForm, factor: int = 1) -> LinearForm:
        """Return self + factor * other."""
        terms = dict(self.terms)
        for atom, count in other.terms:
            total = terms.get(atom, 0) + factor * count
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return LinearForm(frozenset(terms.items()), self.constant + factor * other.constant)


Interval: TypeAlias = "tuple[int, int] | None"


class Normalizer:
    """Bring index expressions into affine form.

    Args:
        sizes: the value of every size symbol.
        definitions: the values of scalar temporaries.
        extent: the number of values of a loop index.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        definitions: Mapping[Local, Expr],
        extent: Callable[[Index], int],
    ) -> None:
        self._sizes = sizes
        self._definitions = definitions
        self._extent = extent
        self._memo: dict[Expr, LinearForm] = {}

    def affine(self, node: Expr) -> LinearForm:
        """Return `node` as a sum of atoms."""
        found = self._memo.get(node)
        if found is None:
            found = self._memo[node] = self._find(node)
        return found

    def _find(self, node: Expr) -> LinearForm:
        match node:
            case Const():
                return LinearForm(frozenset(), int(node.value))
            case Symbol() if node.name in self._sizes:
                return LinearForm(frozenset(), self._sizes[node.name])
            case Index() if self._extent(node) <= 1:
                return LinearForm(frozenset())
            case Local() if node in self._definitions:
                return self.affine(self._definitions[node])
            case Op() if node.dtype.kind == "x":
                return self._operation(node)
        return LinearForm(frozenset({(node, 1)}))

    def _operation(self, node: Op) -> LinearForm:
        args = [self.affine(a) for a in node.args]
        match node.op:
            case "add":
                return args[0].plus(args[1])
            case "sub":
                return args[0].plus(args[1], -1)
            case "neg":
                return LinearForm(frozenset()).plus(args[0], -1)
            case "mul":
                for whole, factor in (args, args[::-1]):
                    if not factor.terms:
                        return LinearForm(frozenset()).plus(whole, factor.constant)
            case "floordiv" | "mod" | "ceildiv" if not args[1].terms and args[1].constant > 0:
                return self.divided(node.op, args[0], args[1].constant)
        return LinearForm(frozenset({(node, 1)}))

    def divided(self, op: str, whole: LinearForm, divisor: int) -> LinearForm:
        """Return the quotient ("floordiv", "ceildiv") or remainder ("mod") by a number > 0."""
        if op == "ceildiv":
            whole, op = whole.plus(LinearForm(frozenset(), divisor - 1)), "floordiv"
        quotient = frozenset((a, c // divisor) for a, c in whole.terms if c % divisor == 0)
        carried, left = divmod(whole.constant, divisor)
        rest = LinearForm(frozenset((a, c) for a, c in whole.terms if c % divisor), left)
        low, high = self.interval(rest) or (-1, divisor)
        small = low >= 0 and high < divisor
        if op == "mod":
            return rest if small else LinearForm(frozenset({(Part("mod", rest, divisor), 1)}))
        result = LinearForm(quotient, carried)
        return result if small else result.plus(self._quotient(rest, divisor))

    def _quotient(self, rest: LinearForm, divisor: int) -> LinearForm:
        if len(rest.terms) == 1 and rest.constant == 0:
            ((atom, count),) = rest.terms
            if isinstance(atom, Part) and atom.op == "floordiv" and count == 1:
                return self.divided("floordiv", atom.of, atom.divisor * divisor)
        return LinearForm(frozenset({(Part("floordiv", rest, divisor), 1)}))

    def interval(self, value: LinearForm) -> Interval:
        """Return the least and the largest value, None where they are not known."""
        low = high = value.constant
        for atom, count in value.terms:
            bounds = self.atom_interval(atom)
            if bounds is None:
                return None
            ends = (bounds[0] * count, bounds[1] * count)
            low, high = low + min(ends), high + max(ends)
        return low, high

    def atom_interval(self, atom: Atom) -> Interval:
        """Return the least and the largest value of an atom, None where they are not known."""
        if isinstance(atom, Index):
            return 0, max(self._extent(atom) - 1, 0)
        if isinstance(atom, Part):
            if atom.op == "mod":
                return 0, atom.divisor - 1
            inner = self.interval(atom.of)
            return inner and (inner[0] // atom.divisor, inner[1] // atom.divisor)
        return None


def depends(atom: Atom, varies: Callable[[Expr], bool]) -> bool:
    """Whether an atom reads memory or has a node in it that `varies`."""
    if isinstance(atom, Part):
        return any(depends(a, varies) for a, _ in atom.of.terms)
    if isinstance(atom, Load) or varies(atom):
        return True
    return any(depends(a, varies) for a in atom.args)
