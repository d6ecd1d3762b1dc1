"""Which serial loops may run their iterations side by side, as lanes.

A loop may where no iteration touches what another one writes: every access of a buffer that the
body writes tells the iteration it belongs to, by one and the same calculation from its index. Such
a calculation is a *recipe*. A buffer that the body only accumulates into, by one statement, may be
folded in the order of the iterations instead.

The analysis runs at given sizes; where it finds nothing, the loop runs one iteration at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import TypeAlias

import numpy as np

from loopnest import kir
from loopnest.lane_machine.concrete_program import ConcreteProgram
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer, Const, Expr, Index, Load, Local, Op, Symbol, loads

Recipe: TypeAlias = "tuple[object, ...]"
"""How an iteration is calculated from the index of an access; equal recipes, equal calculation."""

FOLDS: Mapping[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "and": np.logical_and,
    "or": np.logical_or,
}
"""Operations by which a statement may accumulate; all commute, bit for bit."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """How a loop may be expanded into lanes.

    Args:
        folds: the stores that accumulate over its iterations.
        nested: the loops between it and these stores; they must be expanded whole, too, so that
            the lanes stay in the order of the program.
        bytes: the memory that each lane allocates inside it.
    """

    folds: frozenset[kir.Store]
    nested: tuple[kir.Loop, ...]
    bytes: int


class Expansions:
    """How the loops of a program may be expanded at given sizes; each is analysed once."""

    def __init__(self, setting: ConcreteProgram) -> None:
        self.setting = setting
        self._known: dict[kir.Loop, Expansion | None] = {}

    def of(self, loop: kir.Loop) -> Expansion | None:
        """Return how to expand `loop`, None where it must run in order."""
        if loop not in self._known:
            self._known[loop] = LoopAnalysis(loop, self.setting).expansion()
        return self._known[loop]


@dataclass(frozen=True, slots=True)
class _Access:
    buffer: Buffer
    index: tuple[Expr, ...]
    flat: bool
    stmt: kir.Stmt
    writes: bool


class LoopAnalysis:
    """Decide for one loop whether its iterations are independent.

    Args:
        loop: a loop that is not bound to a launch dimension.
        setting: its program at given sizes.
    """

    def __init__(self, loop: kir.Loop, setting: ConcreteProgram) -> None:
        self.loop = loop
        self.setting = setting
        self.nodes = list(kir.walk(loop.body))
        self.inner = {
            n.var for n, _ in self.nodes if isinstance(n, kir.Loop) and not n.parallel.is_thread
        }
        lets = {n.var: n.value for n, _ in self.nodes if isinstance(n, kir.Let)}
        self.lets: Mapping[Local, Expr] = lets
        extents = setting.extents
        self.normalizer = Normalizer(setting.sizes, lets, lambda index: extents.get(index, 2))
        self.private = {*kir.allocated(n for n, _ in self.nodes)}

    def expansion(self) -> Expansion | None:
        """Return how to expand the loop, None where it must run in order."""
        if any(self._forbids(node) for node, _ in self.nodes):
            return None
        accesses = [a for node, _ in self.nodes for a in _accesses(node)]
        written = {a.buffer: None for a in accesses if a.writes and a.buffer not in self.private}
        folds: dict[kir.Store, None] = {}
        for buffer in written:
            mine = [a for a in accesses if a.buffer is buffer]
            if not self._independent(mine):
                fold = self._fold(mine)
                if fold is None:
                    return None
                folds[fold] = None
        nested = {n: None for fold in folds for n in self._serial_loops_around(fold)}
        return Expansion(frozenset(folds), tuple(nested), self._private_bytes())

    def _forbids(self, node: kir.Stmt) -> bool:
        match node:
            case kir.Allocate():
                return node.storage.memory is not Memory.LOCAL or node.storage.alias_of is not None
            case kir.Loop():
                return depends(node.var.extent, self._varies)
        return not isinstance(node, (kir.If, kir.Store, kir.Let))

    def _private_bytes(self) -> int:
        return sum(self.setting.bytes(b) for b in self.private)

    def _varies(self, node: Expr) -> bool:
        """Whether a variable may differ between two iterations."""
        if node is self.loop.var or node in self.inner:
            return True
        return isinstance(node, Local) and node in self.lets

    # Independence

    def _independent(self, accesses: list[_Access]) -> bool:
        if not any(a.flat for a in accesses) and self._common(accesses, flat=False):
            return True
        return self._common(accesses, flat=True)

    def _common(self, accesses: list[_Access], *, flat: bool) -> bool:
        common: set[Recipe] | None = None
        for index, is_flat in dict.fromkeys((a.index, a.flat) for a in accesses):
            sums = [self.normalizer.affine(e) for e in index]
            if flat and not is_flat:
                sums = [self._offset(accesses[0].buffer, sums)]
            found = self._recipes(sums)
            common = found if common is None else common & found
            if not common:
                return False
        return True

    def _offset(self, buffer: Buffer, sums: list[LinearForm]) -> LinearForm:
        result = LinearForm(frozenset())
        for value, stride in zip(sums, self.setting.layouts[buffer].strides, strict=True):
            result = result.plus(value, stride)
        return result

    def _recipes(self, sums: list[LinearForm]) -> set[Recipe]:
        """Return the recipes that calculate the loop's index from numbers known to be `sums`."""
        known: dict[LinearForm, Recipe] = {}
        for axis, value in enumerate(sums):
            varying, fixed = self._varying(value)
            known.setdefault(varying, ("axis", axis, fixed))
        queue = list(known)
        digits: dict[Atom, Recipe] = {}
        found: set[Recipe] = set()
        for value in queue:  # grows while it is walked
            for atom, digit in self._digits(value, known[value]):
                if atom is self.loop.var:
                    found.add(digit)
                if atom not in digits:
                    digits[atom] = digit
                    known.setdefault(LinearForm(frozenset({(atom, 1)})), digit)
            for whole, recipe in self._joined(digits, known):
                queue.append(whole)
                known[whole] = recipe
        return found

    def _varying(self, value: LinearForm) -> tuple[LinearForm, LinearForm]:
        """Return (what may differ between iterations, with the constant; the other terms)."""
        terms = frozenset(t for t in value.terms if depends(t[0], self._varies))
        return LinearForm(terms, value.constant), LinearForm(value.terms - terms)

    def _joined(
        self, digits: Mapping[Atom, Recipe], known: Mapping[LinearForm, Recipe]
    ) -> list[tuple[LinearForm, Recipe]]:
        """Return the sums whose quotient and remainder by one divisor are both known."""
        result: list[tuple[LinearForm, Recipe]] = []
        for atom, recipe in digits.items():
            if isinstance(atom, Part) and atom.op == "mod":
                quotient = self.normalizer.divided("floordiv", atom.of, atom.divisor)
                varying, offset = self._varying(quotient)
                other = known.get(varying) if varying.terms else ("fixed", varying)
                whole, fixed = self._varying(atom.of)
                if other is not None and whole not in known:
                    place = (atom.divisor, offset, fixed)
                    result.append((whole, ("join", other, recipe, *place)))
        return result

    def _digits(self, value: LinearForm, recipe: Recipe) -> Iterator[tuple[Atom, Recipe]]:
        """Yield the atoms that can be calculated from a known sum: one digit of it each."""
        for atom, count in value.terms:
            bounds = self.normalizer.atom_interval(atom)
            if bounds is None:
                continue
            least = bounds[0] if count > 0 else -bounds[1]
            span = abs(count) * (bounds[1] - bounds[0])
            for modulus, start in self._places(atom, abs(count), span, value):
                yield atom, ("digit", recipe, count, least, modulus, start)

    def _places(
        self, atom: Atom, step: int, span: int, value: LinearForm
    ) -> Iterator[tuple[int, int]]:
        """Yield (modulus, start) where `atom` is a digit of `value`.

        The other terms are multiples of the modulus (0: there are none) or a lower part, constant
        included, that lies within one step from `start` on: from its least value, or, so that
        neighbours have one recipe, from a multiple of the step.
        """
        modulus, low, high = 0, value.constant, value.constant
        for other, factor in value.terms:
            if other == atom:
                continue
            ends = self.normalizer.atom_interval(other)
            if ends is not None and (ends[1] - ends[0]) * abs(factor) < step:
                pair = (ends[0] * factor, ends[1] * factor)
                low, high = low + min(pair), high + max(pair)
            else:
                modulus = gcd(modulus, factor)
        for start in dict.fromkeys((low, low // step * step)):
            if high - start < step and (modulus == 0 or span + high - start < modulus):
                yield modulus, start

    # Accumulation

    def _fold(self, accesses: list[_Access]) -> kir.Store | None:
        stores = {a.stmt for a in accesses}
        store = next(iter(stores))
        if len(stores) > 1 or not isinstance(store, kir.Store) or folded(store) is None:
            return None
        return store

    def _serial_loops_around(self, store: kir.Store) -> list[kir.Loop]:
        around = [n for node, up in self.nodes if node is store for n in up]
        return [n for n in around if isinstance(n, kir.Loop) and not n.parallel.is_thread]


def folded(store: kir.Store) -> tuple[np.ufunc, Expr] | None:
    """Return (operation, e) where the store is ``a[i] = a[i] op e``, and e does not read a."""
    value = store.value
    if not isinstance(value, Op) or value.op not in FOLDS:
        return None
    if value.dtype is not store.storage.dtype:
        return None
    own = Load(store.storage, store.index, store.flat)
    for mine, other in (value.args, value.args[::-1]):
        if mine is own and all(n.buffer is not store.storage for n in loads(other)):
            return FOLDS[value.op], other
    return None


def _accesses(node: kir.Stmt) -> Iterator[_Access]:
    make = partial(_Access, stmt=node)
    for root in kir.expressions(node):
        for load in loads(root):
            yield make(load.buffer, load.args, load.flat, writes=False)
    if isinstance(node, kir.Store):
        yield make(node.storage, node.index, node.flat, writes=True)


# Index expressions as sums of atoms with integer coefficients: loop indices, digits of such sums,
# and expressions that are taken as they are. The sizes are numbers here, so more is decided than
# symbolically; none of it is shared with the simplifier that the indices went through.


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
