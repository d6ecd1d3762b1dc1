"""Linear constraints over named variables, read from conditions in isl's language.

isl reads a condition by computing with piecewise expressions, term by term, which takes many times
as long as its work on the constraints that follow from it. `parsed` reads conditions of linear
terms and floors of them; isl itself reads the others (`constraint_matrices`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple, TypeAlias

from loopnest.proofs.quasi_affine import plus


class Floor(NamedTuple):
    """The floor of a linear term, divided by a number above 0."""

    whole: frozenset[tuple[Atom, int]]
    by: int


Atom: TypeAlias = str | Floor
Linear: TypeAlias = dict[Atom, int]
"""A sum: the coefficient of each variable or floor. `ONE` has the constant."""

ONE = ""


class Constraint(NamedTuple):
    """``terms = 0``, or ``terms >= 0``."""

    equal: bool
    terms: tuple[tuple[Atom, int], ...]


Conjunction: TypeAlias = tuple[Constraint, ...]


class Condition(NamedTuple):
    """Constraints that all hold (`sure`), and `choices`: of each, one conjunction holds."""

    sure: Conjunction
    choices: tuple[tuple[Conjunction, ...], ...]


class NotLinear(Exception):
    """A text that has more than linear constraints and floors of linear terms."""


_MOST = 64
"""The most conjunctions that a condition becomes. isl reads those with more: it drops empty ones
while it reads."""

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|(<=|>=|!=|[-+*/()<>=]))")
_COMPARISONS = ("<", "<=", "=", "!=", ">", ">=")
_NEGATED = {"<": ">=", "<=": ">", "=": "!=", "!=": "=", ">": "<=", ">=": "<"}


class _Test(NamedTuple):
    """``terms op 0``."""

    op: str
    terms: tuple[tuple[Atom, int], ...]


class _Compound(NamedTuple):
    """Formulas that all hold, or of which one holds."""

    all: bool
    parts: tuple[_Formula, ...]


_Formula: TypeAlias = _Test | _Compound
_Part: TypeAlias = Callable[[], "Linear | _Formula"]


@lru_cache(maxsize=1 << 15)
def parsed(text: str) -> Condition:
    """Return a condition as constraints.

    Raises:
        NotLinear: it has another form.
    """
    reader = _ConditionReader(_tokens(text))
    found = reader.either()
    if reader.place < len(reader.tokens) - 1 or isinstance(found, dict):
        raise NotLinear(text)
    sure: dict[Constraint, None] = {}
    choices: list[tuple[Conjunction, ...]] = []
    for part in _conjuncts(found):
        cases = _cases(part)
        if len(cases) == 1:
            sure.update(dict.fromkeys(cases[0]))
        else:
            choices.append(tuple(cases))
    return Condition(tuple(sure), tuple(choices))


@lru_cache(maxsize=1 << 15)
def linear(text: str) -> tuple[tuple[Atom, int], ...]:
    """Return the terms of an expression.

    Raises:
        NotLinear: it has another form.
    """
    reader = _ConditionReader(_tokens(text))
    found = reader.sum()
    if reader.place < len(reader.tokens) - 1 or not isinstance(found, dict):
        raise NotLinear(text)
    return tuple(found.items())


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    place, text = 0, text.rstrip()
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise NotLinear(text)
        tokens.append(found[0].strip())
        place = found.end()
    return [*tokens, ""]


class _ConditionReader:
    """A recursive descent; what stands in parentheses may be a term or a condition."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.place = tokens, 0

    def either(self) -> Linear | _Formula:
        """Read alternatives; a conjunction, a test or a term where nothing is joined by "or"."""
        return self._joined("or", self._all)

    def _all(self) -> Linear | _Formula:
        return self._joined("and", self._test)

    def _joined(self, word: str, part: _Part) -> Linear | _Formula:
        first = part()
        if self.tokens[self.place] != word:
            return first
        parts = [_formula(first)]
        while self.tokens[self.place] == word:
            self.place += 1
            parts.append(_formula(part()))
        return _Compound(word == "and", tuple(parts))

    def _test(self) -> Linear | _Formula:
        if self.tokens[self.place] == "not":
            self.place += 1
            return _negated(_formula(self._test()))
        left = self.sum()
        tests: list[_Formula] = []
        while self.tokens[self.place] in _COMPARISONS:  # ``0 <= i < N`` is two tests
            op = self.tokens[self.place]
            self.place += 1
            right = self.sum()
            tests.append(_Test(op, tuple(plus(_term(left), _term(right), -1).items())))
            left = right
        if not tests:
            return left
        return tests[0] if len(tests) == 1 else _Compound(True, tuple(tests))

    def sum(self) -> Linear | _Formula:
        """Read a sum of terms; or a condition in parentheses."""
        left = self._product()
        while (sign := self.tokens[self.place]) in ("+", "-"):
            self.place += 1
            left = plus(_term(left), _term(self._product()), 1 if sign == "+" else -1)
        return left

    def _product(self) -> Linear | _Formula:
        left = self._atom()
        while self.tokens[self.place] == "*":
            self.place += 1
            left = _times(_term(left), _term(self._atom()))
        return left

    def _atom(self) -> Linear | _Formula:
        token = self.tokens[self.place]
        self.place += 1
        if token.isdigit():
            return {ONE: int(token)} if token.strip("0") else {}
        if token == "-":
            return plus({}, _term(self._atom()), -1)
        if token == "(":
            found = self.either()
            self._expect(")")
            return found
        if token == "floor":
            return self._floor()
        if not token.isidentifier() or self.tokens[self.place] == "(":
            raise NotLinear(token)
        return {token: 1}

    def _floor(self) -> Linear:
        self._expect("(")
        whole = _term(self.sum())
        self._expect("/")
        by = self.tokens[self.place]
        self.place += 1
        self._expect(")")
        if not by.isdigit() or int(by) < 1:
            raise NotLinear(f"a floor by {by}")
        return {Floor(frozenset(whole.items()), int(by)): 1}

    def _expect(self, token: str) -> None:
        if self.tokens[self.place] != token:
            raise NotLinear(self.tokens[self.place])
        self.place += 1


def _term(found: Linear | _Formula) -> Linear:
    if not isinstance(found, dict):
        raise NotLinear("a condition in a sum")
    return found


def _formula(found: Linear | _Formula) -> _Formula:
    if isinstance(found, dict):
        raise NotLinear("a sum where a condition stands")
    return found


def _times(a: Linear, b: Linear) -> Linear:
    for number, other in ((a, b), (b, a)):
        if number.keys() <= {ONE}:
            return plus({}, other, number.get(ONE, 0)) if number else {}
    raise NotLinear("a product")


def _negated(formula: _Formula) -> _Formula:
    if isinstance(formula, _Test):
        return _Test(_NEGATED[formula.op], formula.terms)
    return _Compound(not formula.all, tuple([_negated(part) for part in formula.parts]))


def _conjuncts(formula: _Formula) -> Iterator[_Formula]:
    """Yield formulas that hold together just where a formula holds."""
    if isinstance(formula, _Compound) and formula.all:
        for part in formula.parts:
            yield from _conjuncts(part)
    else:
        yield formula


def _cases(formula: _Formula) -> list[Conjunction]:
    """Return conjunctions of which one holds just where a formula holds."""
    if isinstance(formula, _Test):
        return _cases_of_test(formula)
    inner = [_cases(part) for part in formula.parts]
    if not formula.all:
        found = [case for cases in inner for case in cases]
        if len(found) > _MOST:
            raise NotLinear("too many cases")
        return [()] if () in found else found
    count = 1
    for cases in inner:
        count *= len(cases)
    if count > _MOST:
        raise NotLinear("too many cases")
    return [tuple([c for case in choice for c in case]) for choice in product(*inner)]


def _cases_of_test(test: _Test) -> list[Conjunction]:
    match test.op:
        case "=":
            return _case(Constraint(True, test.terms))
        case "!=":
            return [
                *_cases_of_test(_Test("<", test.terms)),
                *_cases_of_test(_Test(">", test.terms)),
            ]
    sign = -1 if test.op in ("<", "<=") else 1
    terms = plus({}, dict(test.terms), sign)
    if test.op in ("<", ">"):  # of integers
        terms = plus(terms, {ONE: 1}, -1)
    return _case(Constraint(False, tuple(terms.items())))


def _case(constraint: Constraint) -> list[Conjunction]:
    """Return a constraint as a conjunction: none where it always holds or never does."""
    terms = dict(constraint.terms)
    if not terms.keys() <= {ONE}:
        return [(constraint,)]
    value = terms.get(ONE, 0)
    holds = value == 0 if constraint.equal else value >= 0
    return [()] if holds else []
