"""Fragments: which lane of a warp has which element of a small matrix, and in which register.

The axes of the matrix are written as digits of a mixed radix, and the same digits, in another
order, are the number of the lane and that of the register. So a fragment is a bijection by its
spelling, and index arithmetic never has to find its digits again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from loopnest.base.errors import DefinitionError
from loopnest.scalar.expr import whole


class Fragment:
    """How a matrix is spread over lanes and registers: axes on the left, places on the right.

    Each group in parentheses is one number, the first of its digits the slowest; a digit alone is
    a group. The left has a group for each axis, the right one for the lane and one for the
    register. Each name stands once on each side.

    Args:
        pattern: the groups of digits, as in the example.
        sizes: how many values each digit has, by its name.

    Raises:
        DefinitionError: the pattern is malformed, or the sizes are not those of its names.

    >>> import loopnest as ln
    >>> a = ln.Fragment("(mh g) (kh t p) -> (g t) (kh mh p)", mh=2, g=8, kh=2, t=4, p=2)
    >>> a.shape, a.lanes, a.registers
    ((16, 16), 32, 8)
    >>> a.place(9, 3)
    (5, 3)
    >>> a.element(5, 3)
    (9, 3)

    Source: the patterns are those of einops.rearrange.
    """

    __slots__ = ("axes", "pattern", "places", "sizes")

    def __init__(self, pattern: str, **sizes: int) -> None:
        self.pattern = pattern
        self.axes, self.places = _sides(pattern)
        self.sizes = _checked(self, sizes)

    def __repr__(self) -> str:
        sizes = ", ".join([f"{name}={size}" for name, size in self.sizes.items()])
        return f'ln.Fragment("{self.pattern}", {sizes})'

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fragment) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        """Return what makes two fragments the same: their spelling, but for the names."""
        number = {name: n for n, name in enumerate(self.sizes)}
        sides = [
            tuple([tuple([number[d] for d in g]) for g in s]) for s in (self.axes, self.places)
        ]
        return (*sides, *self.sizes.values())

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the matrix."""
        return tuple([self._product(group) for group in self.axes])

    @property
    def lanes(self) -> int:
        """How many lanes hold it."""
        return self._product(self.places[0])

    @property
    def registers(self) -> int:
        """How many elements each lane holds."""
        return self._product(self.places[1])

    def place(self, *element: int) -> tuple[int, int]:
        """Return the lane and the register of an element, one index an axis."""
        lane, register = self._moved(element, self.axes, self.places, "element")
        return lane, register

    def element(self, lane: int, register: int) -> tuple[int, ...]:
        """Return the element that a lane has in a register."""
        return self._moved((lane, register), self.places, self.axes, "place")

    def _product(self, group: Sequence[str]) -> int:
        return math.prod([self.sizes[name] for name in group])

    def _moved(
        self,
        numbers: Sequence[int],
        source: Sequence[tuple[str, ...]],
        target: Sequence[tuple[str, ...]],
        what: str,
    ) -> tuple[int, ...]:
        """Return the numbers of the groups of one side that have the digits of the other."""
        extents = [self._product(group) for group in source]
        inside = len(numbers) == len(extents) and all(
            whole(n) is not None and 0 <= n < e for n, e in zip(numbers, extents, strict=True)
        )
        if not inside:
            raise DefinitionError(
                repr(self), f"there is no {what} {tuple(numbers)}", f"the extents are {extents}"
            )
        digits: dict[str, int] = {}
        for number, group in zip(numbers, source, strict=True):
            for name in reversed(group):
                number, digits[name] = divmod(number, self.sizes[name])
        return tuple([self._number(group, digits) for group in target])

    def _number(self, group: Sequence[str], digits: Mapping[str, int]) -> int:
        number = 0
        for name in group:
            number = number * self.sizes[name] + digits[name]
        return number


_FORM = 'write "(mh g) (kh p) -> (g) (kh mh p)": axes, an arrow, lane and register'

_Groups = tuple[tuple[str, ...], ...]


def _sides(pattern: str) -> tuple[_Groups, _Groups]:
    """Return the groups of both sides of a pattern."""
    subject = f"Fragment({pattern!r})"
    sides = pattern.split("->") if isinstance(pattern, str) else []
    if len(sides) != 2:
        raise DefinitionError(subject, "it has no two sides", _FORM)
    axes, places = [_groups(side, subject) for side in sides]
    if len(places) != 2:
        reason = f"{len(places)} groups are on the right of the arrow"
        raise DefinitionError(subject, reason, "lane and register are two")
    names = [[name for group in side for name in group] for side in (axes, places)]
    for side in names:
        twice = next((name for name in side if side.count(name) > 1), None)
        if twice is not None:
            raise DefinitionError(
                subject, f"'{twice}' is twice on one side", "each digit is once on each side"
            )
    alone = sorted(set(names[0]) ^ set(names[1]))
    if alone:
        raise DefinitionError(
            subject, f"'{alone[0]}' is on one side alone", "each digit is once on each side"
        )
    return axes, places


def _groups(side: str, subject: str) -> _Groups:
    text = side.strip()
    if re.fullmatch(r"(\(\s*(\w+\s*)*\)\s*|\w+\s*)*", text) is None:
        raise DefinitionError(subject, f"'{text}' is not a row of groups", _FORM)
    found = [tuple((g or n).split()) for g, n in re.findall(r"\(([^)]*)\)|(\w+)", text)]
    wrong = next((name for group in found for name in group if not name.isidentifier()), None)
    if wrong is not None:
        raise DefinitionError(subject, f"'{wrong}' is no name of a digit", _FORM)
    return tuple(found)


def _checked(fragment: Fragment, given: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the digits in the order of the axes."""
    subject = f"Fragment({fragment.pattern!r})"
    names = [name for group in fragment.axes for name in group]
    for name in names:
        if name not in given:
            raise DefinitionError(subject, f"the digit '{name}' has no size", f"give {name}=…")
    for name, size in given.items():
        if name not in names:
            raise DefinitionError(
                subject, f"'{name}' is no digit of it", f"the digits are {', '.join(names)}"
            )
        if (whole(size) or 0) < 1:
            raise DefinitionError(subject, f"{name}={size!r}", "a digit has an int >= 1 of values")
    return {name: given[name] for name in names}
