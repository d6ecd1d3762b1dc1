"""Conditions over named integers, and the sets and maps of isl that are made from them.

A condition is a tree of linear constraints, so that names can be looked for and changed in it. isl
gets matrices: it reads only numbers there, while a text of a condition costs it many times what its
work on the constraints does. A row is a constraint, a column a variable. A floor has a column of
its own, as an existentially quantified variable with two constraints, in which isl finds the floor
again.

Source: Loechner, "PolyLib: a library for manipulating parameterized polyhedra", 1999 (the format).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import product
from typing import Any, NamedTuple, TypeAlias, TypeVar

from loopnest.proofs.program_model import Site

Term = TypeVar("Term")


class NotAffine(Exception):
    """An expression that isl cannot represent; `site` is the statement that asked for it."""

    site: Site | None = None


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


# Sums


class Floor(NamedTuple):
    """The floor of a sum, divided by a number above 0."""

    whole: Sum
    by: int


class Extreme(NamedTuple):
    """The least or the largest of sums: `op` is "min" or "max"."""

    op: str
    args: tuple[Sum, ...]


Atom: TypeAlias = str | Floor | Extreme
Sum: TypeAlias = tuple[tuple[Atom, int], ...]
"""The coefficient of each variable, floor or extreme. `ONE` has the constant."""

ONE = ""
Value: TypeAlias = Sum | str | int
"""A sum; or a variable, or a number."""


def _terms(value: Value) -> Sum:
    if isinstance(value, str):
        return ((value, 1),)
    if isinstance(value, int):
        return ((ONE, value),) if value else ()
    return value


def sum_of(parts: Iterable[tuple[Value, int]]) -> Sum:
    """Return a sum of values, each times a number."""
    result: dict[Atom, int] = {}
    for value, factor in parts:
        for atom, count in _terms(value):
            total = result.get(atom, 0) + factor * count
            if total:
                result[atom] = total
            else:
                result.pop(atom, None)
    return tuple(result.items())


def floor_of(value: Value, by: int) -> Sum:
    """Return the floor of a quotient by a number above 0."""
    return ((Floor(_terms(value), by), 1),)


def extreme_of(op: str, values: Iterable[Sum]) -> Sum:
    """Return the least or the largest of sums."""
    return ((Extreme(op, tuple(values)), 1),)


def _put(value: Sum, new: Mapping[Atom, Value]) -> Sum:
    """Return a sum with values for some of its atoms."""
    return sum_of([(_replaced(atom, new), count) for atom, count in value])


def _replaced(atom: Atom, new: Mapping[Atom, Value]) -> Value:
    if atom in new:
        return new[atom]
    match atom:
        case Floor(whole, by):
            return floor_of(_put(whole, new), by)
        case Extreme(op, args):
            return extreme_of(op, [_put(arg, new) for arg in args])
    return atom


def _parts(value: Sum) -> Iterator[Atom]:
    """Yield the atoms of a sum, those that others are made of first."""
    for atom, _ in value:
        for inner in () if isinstance(atom, str) else _inside(atom):
            yield from _parts(inner)
        yield atom


def _inside(atom: Floor | Extreme) -> tuple[Sum, ...]:
    return (atom.whole,) if isinstance(atom, Floor) else atom.args


# Conditions


class Constraint(NamedTuple):
    """``value = 0``, or ``value >= 0``."""

    equal: bool
    value: Sum

    def __and__(self, other: Condition) -> Condition:
        return all_of([self, other])

    def __or__(self, other: Condition) -> Condition:
        return any_of([self, other])

    def __invert__(self) -> Condition:
        if self.equal:
            return unequal(self.value, 0)
        return _constraint(False, [(self.value, -1), (1, -1)])


class Compound(NamedTuple):
    """Conditions that all hold, or of which one holds."""

    all: bool
    parts: tuple[Condition, ...]

    def __and__(self, other: Condition) -> Condition:
        return all_of([self, other])

    def __or__(self, other: Condition) -> Condition:
        return any_of([self, other])

    def __invert__(self) -> Condition:
        return Compound(not self.all, tuple([~part for part in self.parts]))


Condition: TypeAlias = Constraint | Compound
Conjunction: TypeAlias = tuple[Constraint, ...]

TRUE = Compound(True, ())
FALSE = Compound(False, ())


def all_of(conditions: Iterable[Condition]) -> Condition:
    """Return that all of some conditions hold."""
    return _joined(True, conditions)


def any_of(conditions: Iterable[Condition]) -> Condition:
    """Return that one of some conditions holds."""
    return _joined(False, conditions)


CONNECTIVES = ("and", "or", "not")


def connected(op: str, parts: Sequence[Condition]) -> Condition:
    """Return conditions joined by one of `CONNECTIVES`."""
    return ~parts[0] if op == "not" else _joined(op == "and", parts)


def _joined(all_: bool, conditions: Iterable[Condition]) -> Condition:
    parts: dict[Condition, None] = {}
    for condition in conditions:
        if isinstance(condition, Compound) and condition.all is all_:
            parts.update(dict.fromkeys(condition.parts))
        else:
            parts[condition] = None
    decided = Compound(not all_, ())
    if decided in parts:
        return decided
    return next(iter(parts)) if len(parts) == 1 else Compound(all_, tuple(parts))


@lru_cache(maxsize=1 << 15)
def equal(a: Value, b: Value) -> Condition:
    """Return ``a = b``."""
    return _constraint(True, [(a, 1), (b, -1)])


def unequal(a: Value, b: Value) -> Condition:
    """Return ``a != b``."""
    return below(a, b) | below(b, a)


@lru_cache(maxsize=1 << 15)
def below(a: Value, b: Value) -> Condition:
    """Return ``a < b``."""
    return _constraint(False, [(b, 1), (a, -1), (1, -1)])


@lru_cache(maxsize=1 << 15)
def at_most(a: Value, b: Value) -> Condition:
    """Return ``a <= b``."""
    return _constraint(False, [(b, 1), (a, -1)])


@lru_cache(maxsize=1 << 15)
def within(value: Value, end: Value) -> Condition:
    """Return ``0 <= value < end``."""
    return at_most(0, value) & below(value, end)


def _constraint(equal_: bool, parts: Iterable[tuple[Value, int]]) -> Condition:
    value = sum_of(parts)
    found = None
    if not all(isinstance(atom, str) for atom, _ in value):
        found = next((atom for atom in _parts(value) if isinstance(atom, Extreme)), None)
    if found is not None:
        count = dict(value).get(found, 0)
        if equal_ or not count or [*_parts(value)].count(found) > 1:
            return any_of([_where(found, n, equal_, value) for n in range(len(found.args))])
        each = [_constraint(False, [(_put(value, {found: arg}), 1)]) for arg in found.args]
        # A sum is 0 or more where it is for each argument of a minimum that it grows with.
        return all_of(each) if (count > 0) is (found.op == "min") else any_of(each)
    known = dict(value)
    if not known.keys() <= {ONE}:
        return Constraint(equal_, value)
    number = known.get(ONE, 0)
    return TRUE if (number == 0 if equal_ else number >= 0) else FALSE


def _where(extreme: Extreme, number: int, equal_: bool, value: Sum) -> Condition:
    """Return a constraint where the first of the extreme arguments in it has a number."""
    one, is_least = extreme.args[number], extreme.op == "min"
    chosen: list[Condition] = []
    for n, other in enumerate(extreme.args):
        if n != number:
            beyond = below if n < number else at_most
            chosen.append(beyond(one, other) if is_least else beyond(other, one))
    return all_of([*chosen, _constraint(equal_, [(_put(value, {extreme: one}), 1)])])


def names_in(conditions: Iterable[Condition | Sum]) -> set[str]:
    """Return the variables in conditions, or in sums."""
    found: set[str] = set()
    for condition in conditions:
        match condition:
            case Compound(_, parts):
                found |= names_in(parts)
            case Constraint(_, value):
                found |= names_in([value])
            case _:
                found.update([atom for atom in _parts(condition) if isinstance(atom, str)])
    return found - {ONE}


def replaced(condition: Condition, new: Mapping[Atom, Value]) -> Condition:
    """Return a condition with values in the places of variables."""
    if isinstance(condition, Compound):
        return _joined(condition.all, [replaced(part, new) for part in condition.parts])
    return _constraint(condition.equal, [(_put(condition.value, new), 1)])


MOST_CASES = 64
"""The most conjunctions that a condition becomes: of more, isl joins sets, and drops empty ones."""


@lru_cache(maxsize=1 << 15)
def _cases(condition: Condition) -> tuple[Conjunction, ...] | None:
    """Return conjunctions of which one holds just where a condition does; None for too many."""
    if isinstance(condition, Constraint):
        return ((condition,),)
    inner: list[tuple[Conjunction, ...]] = []
    for part in condition.parts:
        cases = _cases(part)
        if cases is None:
            return None
        inner.append(cases)
    if not condition.all:
        found = [case for cases in inner for case in cases]
        return None if len(found) > MOST_CASES else ((),) if () in found else tuple(found)
    count = 1
    for cases in inner:
        count *= len(cases)
    if count > MOST_CASES:
        return None
    return tuple([tuple([c for case in choice for c in case]) for choice in product(*inner)])


# Sets and maps


class Tuple(NamedTuple):
    """The points of a statement or the elements of a buffer: a name, and what tells them apart.

    Of a set, or of a map's domain, the values are variables; of a map's range they may be sums.
    """

    name: str
    values: tuple[Value, ...]


class Relations:
    """Makes sets and maps in one context of isl.

    Args:
        isl, ctx: the module and the context.
    """

    def __init__(self, isl: Any, ctx: Any) -> None:
        self.isl, self.ctx = isl, ctx
        self._read: dict[tuple[tuple[str, ...], str, bool], Any] = {}

    def make(
        self,
        parameters: tuple[str, ...],
        points: tuple[Value, ...],
        target: tuple[Value, ...] | None,
        conditions: Iterable[Condition],
    ) -> Any:
        """Return ``[parameters] -> { [points] -> [target] : conditions }``, a set without target.

        Raises:
            NotAffine: a variable is neither a parameter nor one of a tuple.
        """
        columns = _columns(parameters, points, target)
        whole = all_of([*columns.equalities, *conditions])
        parts = whole.parts if isinstance(whole, Compound) and whole.all else (whole,)
        sure = [part for part in parts if isinstance(part, Constraint)]
        result = self._of([sure], columns)
        for part in parts:
            if not isinstance(part, Constraint):
                result = result.intersect(self._part(part, columns))
        return result

    def _part(self, condition: Condition, columns: Columns) -> Any:
        cases = _cases(condition)
        if cases is not None or isinstance(condition, Constraint):
            return self._of(cases or (), columns)
        parts = [self._part(part, columns) for part in condition.parts]
        kind = type(parts[0])
        return reduce(kind.intersect if condition.all else kind.union, parts)

    def _of(self, cases: Sequence[Iterable[Constraint]], columns: Columns) -> Any:
        """Return the points for which all constraints of one of the cases hold."""
        parts = [columns.matrix(tuple(case)) for case in cases] or [columns.nothing()]
        text = parts[0] if len(parts) == 1 else "\n".join([str(len(parts)), *parts])
        key = (columns.parameters, text, columns.is_map)
        found = self._read.get(key)
        if found is None:
            kind = self.isl.Map if columns.is_map else self.isl.Set
            found = kind.read_from_str(self.ctx, text)
            for place, name in enumerate(columns.parameters):
                found = found.set_dim_name(self.isl.dim_type.param, place, name)
            self._read[key] = found
        return found


class Columns:
    """Which column of a matrix belongs to which variable.

    A value that stands for no new variable has a column too, and a constraint that it is equal.
    """

    def __init__(
        self,
        parameters: tuple[str, ...],
        points: tuple[Value, ...],
        target: tuple[Value, ...] | None,
    ) -> None:
        self.parameters, self.is_map = parameters, target is not None
        self.inputs = len(points) if self.is_map else 0
        self.outputs = len(points if target is None else target)
        self._place: dict[Atom, int] = {}
        self._matrices: dict[Conjunction, str] = {}
        self._locals = len(points) + len(target or ()) + 1
        self.equalities: list[Condition] = []
        first = 1 if target is None else self.outputs + 1
        self._take(points, first, set(parameters))
        self._take(target or (), 1, {*parameters, *[v for v in points if isinstance(v, str)]})

    def _take(self, values: Iterable[Value], first: int, known: Collection[str]) -> None:
        for place, value in enumerate(values, first):
            name = value
            if not isinstance(name, str) or name in known or name in self._place:
                name = f"#{place}"
                self.equalities.append(equal(value, name))
            self._place[name] = place

    def matrix(self, constraints: Conjunction) -> str:
        """Return constraints as a matrix.

        Raises:
            NotAffine: a variable has no column.
        """
        found = self._matrices.get(constraints)
        if found is None:
            found = self._matrices[constraints] = self._matrix(constraints)
        return found

    def _matrix(self, constraints: Conjunction) -> str:
        rows = list(dict.fromkeys(constraints))
        made = [atom for row in rows for atom, _ in row.value if not isinstance(atom, str)]
        parts = dict.fromkeys(part for atom in made for part in _parts(((atom, 1),)))
        floors = [part for part in parts if isinstance(part, Floor)]
        place = dict(self._place)
        place.update({floor: self._locals + n for n, floor in enumerate(floors)})
        start = self._locals + len(floors)
        place.update({name: start + n for n, name in enumerate(self.parameters)})
        last = place[ONE] = start + len(self.parameters)
        for floor in floors:
            rest = sum_of([(floor.whole, 1), (((floor, 1),), -floor.by)])
            top = sum_of([(floor.by - 1, 1), (rest, -1)])
            rows += [Constraint(False, rest), Constraint(False, top)]
        zeros = ["0"] * (last + 1)
        lines = [
            f"{len(rows)} {last + 1} {self.outputs} {self.inputs} {len(floors)} "
            f"{len(self.parameters)}"
        ]
        for equal_, value in rows:
            row = zeros.copy()
            if not equal_:
                row[0] = "1"
            for atom, count in value:
                found = place.get(atom)
                if found is None:
                    raise NotAffine(f"{atom} has no value here")
                row[found] = str(count)
            lines.append(" ".join(row))
        return "\n".join([*lines, ""])

    def nothing(self) -> str:
        """Return a matrix that no point fulfils."""
        return self.matrix((Constraint(False, ((ONE, -1),)),))


@lru_cache(maxsize=4096)
def _columns(
    parameters: tuple[str, ...], points: tuple[Value, ...], target: tuple[Value, ...] | None
) -> Columns:
    return Columns(parameters, points, target)
