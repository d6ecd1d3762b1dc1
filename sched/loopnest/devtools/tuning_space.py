"""What a schedule may be tuned by: parameters with declared choices, and their constraints."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from loopnest.base.errors import DefinitionError
from loopnest.scalar.arguments import broken_condition
from loopnest.scalar.expr import Expr, whole
from loopnest.scalar.facts import Facts


@dataclass(frozen=True)
class Choice:
    """The values that a parameter of a schedule may take; the first is its default."""

    values: tuple[Any, ...]

    @property
    def default(self) -> Any:
        """The value where none is given."""
        return self.values[0]


def choice(*values: Any) -> Any:
    """Declare the values that a parameter of a schedule may take, for `loopnest.tune`.

    It stands as the parameter's default, and the first value is what it is without tuning.

    Args:
        *values: ints, floats, texts, bools, None or element types, each once.

    Raises:
        DefinitionError: there is none, or one stands twice.

    >>> import loopnest as ln
    >>> @ln.kernel()
    ... def double(f):
    ...     f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")
    >>> @double.schedule("cpu", where=["lanes * parts <= N"])
    ... def cpu(f, lanes=ln.choice(8, 4, 16), parts=ln.choice(1, 2)):
    ...     f["y"].split(0, lanes * parts)
    >>> double.parameters("cpu")
    {'lanes': 8, 'parts': 1}

    Source: TVM's ``define_knob``, Triton's ``Config``.
    """
    call = f"choice({', '.join([repr(value) for value in values])})"
    if not values:
        raise DefinitionError(call, "there is no value to choose", "give the default and others")
    for place, value in enumerate(values):
        before = values[:place]
        if any(value is other or (value == other and type(value) is type(other))
               for other in before):  # fmt: skip
            raise DefinitionError(call, f"{value!r} stands twice", "give each value once")
    return Choice(values)


@dataclass(frozen=True)
class Space:
    """The choices of a schedule.

    Args:
        choices: by parameter.
        where: constraints: comparisons over parameters and sizes.
    """

    choices: Mapping[str, Choice] = field(default_factory=dict)
    where: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many candidates there are, before constraints."""
        return math.prod([len(found.values) for found in self.choices.values()])

    @property
    def default(self) -> dict[str, Any]:
        """The candidate of the defaults."""
        return {name: found.default for name, found in self.choices.items()}

    def candidates(self) -> Iterator[dict[str, Any]]:
        """Yield all candidates, the defaults first."""
        names = list(self.choices)
        for values in product(*[self.choices[name].values for name in names]):
            yield dict(zip(names, values, strict=True))

    def drawn(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Return some candidates, drawn evenly."""
        draw = random.Random(seed)
        return [
            {name: draw.choice(found.values) for name, found in self.choices.items()}
            for _ in range(count)
        ]

    def constraints(
        self, sizes: Mapping[str, int], call: str
    ) -> Callable[[Mapping[str, Any]], bool]:
        """Return what tells whether a candidate meets all constraints at sizes.

        Raises:
            DefinitionError: a constraint cannot be read, or names what is neither a parameter nor
                a size, or a parameter that is no number.
        """
        read = [_comparison(text, {*self.choices, *sizes}, call) for text in self.where]

        def meets(candidate: Mapping[str, Any]) -> bool:
            values = dict(sizes)
            for name, value in candidate.items():
                number = int(value) if isinstance(value, bool) else whole(value)
                if number is not None:
                    values[name] = number
            try:
                return broken_condition([("", condition) for condition in read], values) is None
            except KeyError as missing:
                (name,) = missing.args
                reason = f"a constraint names {name}, which is {candidate.get(name)!r} there"
                raise DefinitionError(call, reason, "constraints compare integers") from None

        return meets


def _comparison(text: object, names: set[str], call: str) -> Expr:
    hint = "write a comparison of parameters and sizes, such as 'lanes * parts <= D'"
    if not isinstance(text, str):
        raise DefinitionError(call, f"the constraint {text!r} is no text", hint)
    facts = Facts()
    try:
        facts.add(text, names.__contains__)
    except DefinitionError as error:
        reason = error.reason.replace("size symbol of this fusion", "parameter and no size")
        raise DefinitionError(call, f"the constraint {text!r}: {reason}", hint) from None
    return facts.conditions[-1][1]


def taken_choices(function: Any, where: Sequence[str]) -> Space:
    """Return the choices of a function, whose parameters then have plain defaults."""
    found: dict[str, Choice] = {}
    for parameter in inspect.signature(function).parameters.values():
        if isinstance(parameter.default, Choice):
            found[parameter.name] = parameter.default
    if found:
        plain = function.__defaults__ or ()
        named = function.__kwdefaults__ or {}
        function.__defaults__ = tuple([_plain(value) for value in plain])
        function.__kwdefaults__ = {n: _plain(v) for n, v in named.items()}
    return Space(found, tuple(where))


def _plain(default: Any) -> Any:
    return default.default if isinstance(default, Choice) else default
