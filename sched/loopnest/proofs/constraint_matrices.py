"""Sets and maps of isl, made from matrices of constraints instead of texts of conditions.

A matrix is a text too, but isl reads only numbers in it: a row for each constraint, a column for
each variable. A floor has a column of its own, as an existentially quantified variable with two
constraints, in which isl finds the floor again.

Source: Loechner, "PolyLib: a library for manipulating parameterized polyhedra", 1999 (the format).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from loopnest.proofs.affine_conditions import (
    ONE,
    Atom,
    Conjunction,
    Constraint,
    Floor,
    NotLinear,
    linear,
    parsed,
)


class Matrices:
    """Reads relations in one context of isl.

    Args:
        isl, ctx: the module and the context.
    """

    def __init__(self, isl: Any, ctx: Any) -> None:
        self.isl, self.ctx = isl, ctx
        self._read: dict[tuple[str, str, bool], Any] = {}

    def read(self, head: str, variables: str, target: str | None, conditions: Sequence[str]) -> Any:
        """Return ``[head] -> { [variables -> [target : conditions }``, a set without a target."""
        try:
            return self._relation(head, variables, target, conditions)
        except NotLinear:
            kind = self.isl.Set if target is None else self.isl.Map
            points = variables if target is None else f"{variables} -> [{target}"
            rest = f" : {' and '.join([f'({c})' for c in conditions])}" if conditions else ""
            return kind.read_from_str(self.ctx, f"[{head}] -> {{ [{points}{rest} }}")

    def _relation(
        self, head: str, variables: str, target: str | None, conditions: Sequence[str]
    ) -> Any:
        """Return the same from matrices.

        Raises:
            NotLinear: a condition or a tuple has another form; isl can read it.
        """
        columns = _columns(head, variables, target)
        sure: list[Constraint] = [*columns.equalities]
        choices: list[tuple[Conjunction, ...]] = []
        for text in conditions:
            condition = parsed(text)
            sure += condition.sure
            choices += condition.choices
        result = self._of([sure], columns)
        for cases in choices:
            result = result.intersect(self._of(cases, columns))
        return result

    def _of(self, cases: Sequence[Iterable[Constraint]], columns: Columns) -> Any:
        """Return the points for which all constraints of one of the cases hold."""
        parts = [columns.matrix(case) for case in cases] or [columns.nothing()]
        text = parts[0] if len(parts) == 1 else "\n".join([str(len(parts)), *parts])
        key = (columns.head, text, columns.is_map)
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

    Args:
        head: the parameters, as isl reads them.
        variables: the tuple of a set, or that of a map's domain; without its first bracket.
        target: the tuple of a map's range.

    Raises:
        NotLinear: a tuple has another form.
    """

    def __init__(self, head: str, variables: str, target: str | None) -> None:
        self.head, self.is_map = head, target is not None
        self.parameters = _parts(head)
        first = _parts(variables.removesuffix("]"))
        second = [] if target is None else _parts(target.removesuffix("]"))
        known = {*self.parameters, *first}
        if len(known) < len(self.parameters) + len(first):
            raise NotLinear("a name that stands twice")
        self.inputs = len(first) if self.is_map else 0
        self.outputs = len(second) if self.is_map else len(first)
        names: list[str | None] = []
        defined: list[tuple[int, str]] = []
        for place, text in enumerate(second):
            if text.isidentifier() and text not in known:
                known.add(text)
                names.append(text)
            else:
                defined.append((place, text))
                names.append(None)
        names += first
        self._place: dict[Atom, int] = {
            name: place for place, name in enumerate(names, 1) if name is not None
        }
        self._locals = len(names) + 1
        self.equalities: tuple[Constraint, ...] = ()
        if defined:
            self.equalities = tuple([self._equality(place, text) for place, text in defined])

    def _equality(self, place: int, text: str) -> Constraint:
        """Return the constraint that the range has the value of an expression at a place."""
        name = f"#{place}"
        self._place[name] = place + 1
        terms = dict(linear(text))
        terms[name] = -1
        return Constraint(True, tuple(terms.items()))

    def matrix(self, constraints: Iterable[Constraint]) -> str:
        """Return constraints as a matrix.

        Raises:
            NotLinear: a variable has no column.
        """
        rows = list(dict.fromkeys(constraints))
        floors = list(dict.fromkeys(f for row in rows for f in _floors(row.terms)))
        place = dict(self._place)
        place.update({floor: self._locals + n for n, floor in enumerate(floors)})
        start = self._locals + len(floors)
        place.update({name: start + n for n, name in enumerate(self.parameters)})
        last = place[ONE] = start + len(self.parameters)
        for floor in floors:
            whole = dict(floor.whole)
            whole[floor] = -floor.by
            rows.append(Constraint(False, tuple(whole.items())))
            rest = {atom: -count for atom, count in whole.items()}
            rest[ONE] = rest.get(ONE, 0) + floor.by - 1
            rows.append(Constraint(False, tuple(rest.items())))
        zeros = ["0"] * (last + 1)
        lines = [
            f"{len(rows)} {last + 1} {self.outputs} {self.inputs} {len(floors)} "
            f"{len(self.parameters)}"
        ]
        for equal, terms in rows:
            row = zeros.copy()
            if not equal:
                row[0] = "1"
            for atom, count in terms:
                found = place.get(atom)
                if found is None:
                    raise NotLinear(f"{atom} has no column")
                row[found] = str(count)
            lines.append(" ".join(row))
        return "\n".join([*lines, ""])

    def nothing(self) -> str:
        """Return a matrix that no point fulfils."""
        return self.matrix([Constraint(False, ((ONE, -1),))])


@lru_cache(maxsize=4096)
def _columns(head: str, variables: str, target: str | None) -> Columns:
    return Columns(head, variables, target)


def _parts(tuple_: str) -> list[str]:
    """Return what stands between the commas of a tuple.

    Raises:
        NotLinear: a comma stands in parentheses.
    """
    if not tuple_.strip():
        return []
    parts = [part.strip() for part in tuple_.split(",")]
    if any(part.count("(") != part.count(")") for part in parts):
        raise NotLinear("a function of two terms")
    return parts


def _floors(terms: Iterable[tuple[Atom, int]]) -> Iterator[Floor]:
    """Yield the floors in a term, those that others are made of first."""
    for atom, _ in terms:
        if isinstance(atom, Floor):
            yield from _floors(atom.whole)
            yield atom
