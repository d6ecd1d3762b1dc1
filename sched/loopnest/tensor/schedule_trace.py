"""The trace of a schedule: the calls that a fusion took, and a script that makes them again.

The script starts from the fusion `f` as its math leaves it. Tensors are looked up by the name that
they have before their first call; what calls make gets a variable where it is made. Names and
assumptions that were given beside the calls stand between them.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from loopnest.base.fast_init import fast_init
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Expr, whole
from loopnest.scalar.fragments import Fragment
from loopnest.scalar.origin import Origin
from loopnest.tensor.tensor_view import TensorView

FOCUS, UNFOCUS = "focused", "leave"
"""The steps at which a fusion begins and ends to be one of its stages."""


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """One call, as it was made.

    Args:
        name: of the method; of a function where it begins with an underscore; `FOCUS` and `UNFOCUS`
            are no calls of a user.
        tensor: of which it is a method, or the first argument; None for a method of the fusion, and
            for a function of a list of tensors.
        args: what it was given, but for the tensor, in the order of its parameters.
        keywords: what was given by name alone.
        names: the tensors that it speaks of, as they were called then.
        made: the tensors that it made, likewise.
        returned: the tensor that it returned.
    """

    name: str
    tensor: TensorView | None
    args: tuple[object, ...]
    keywords: Mapping[str, object]
    names: tuple[tuple[TensorView, str], ...]
    made: tuple[tuple[TensorView, str], ...] = ()
    returned: object = None

    @staticmethod
    def of(
        name: str,
        tensor: TensorView | None,
        args: Iterable[object] = (),
        keywords: Mapping[str, object] | None = None,
    ) -> Step:
        """Return the step of a call that is about to be made."""
        given = tuple([_frozen(arg) for arg in args])
        by_name = {key: _frozen(value) for key, value in (keywords or {}).items()}
        named = _named(_tensors((tensor, given, tuple(by_name.values()))))
        return Step(name, tensor, given, by_name, named)

    def done(self, made: Iterable[TensorView], returned: object) -> Step:
        """Return the step with what it led to."""
        return replace(self, made=_named(made), returned=returned)


def _named(tensors: Iterable[TensorView]) -> tuple[tuple[TensorView, str], ...]:
    return tuple([(tensor, tensor.name) for tensor in dict.fromkeys(tensors)])


def _frozen(value: object) -> object:
    """Return an argument that no caller changes any more."""
    if isinstance(value, (list, tuple)):
        return type(value)(value)
    return dict(value) if isinstance(value, Mapping) else value


def _tensors(value: object) -> Iterator[TensorView]:
    """Yield the tensors in an argument."""
    if isinstance(value, TensorView):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


class Trace(list[Origin]):
    """The calls of a schedule, in order: each with its place in the user's code.

    ``print(f.trace)`` prints a script that makes the schedule again, from the fusion `f` as its
    math leaves it.

    >>> import loopnest as ln
    >>> with ln.Fusion("rows") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     y = f.output(ln.sum(x, axis=1), "y")
    >>> part = y.cache_before()
    >>> y = y.split(0, 4).parallelize({0: ln.ParallelType.grid_x})
    >>> print(f.trace)
    import loopnest as ln
    <BLANKLINE>
    y = f["y"]
    T2 = y.cache_before()
    y.split(0, 4)
    y.parallelize({0: ln.ParallelType.grid_x})
    """

    def __init__(self, origins: Iterable[Origin] = ()) -> None:
        super().__init__(origins)
        self.steps: list[Step] = []

    def note(self, step: Step, origin: Origin | None = None) -> None:
        """Add a step; one of a call of the user's with its origin."""
        if origin is not None:
            self.append(origin)
        self.steps.append(step)

    def joined(self, other: Trace) -> Trace:
        """Return this trace with another one behind it."""
        both = Trace([*self, *other])
        both.steps = [*self.steps, *other.steps]
        return both

    def cut(self, calls: int, steps: int) -> Trace:
        """Return the leading calls, and steps, of the trace."""
        part = Trace(self[:calls])
        part.steps = self.steps[:steps]
        return part

    def begin_math(self) -> None:
        """Forget names and assumptions that belong to math which is still being written."""
        if not self:
            self.steps.clear()

    def script(self, calls: int | None = None) -> str:
        """Return the script of all calls, or of so many."""
        return "\n".join(["import loopnest as ln", *_ScriptLines().lines(self._first(calls)), ""])

    def ends_in_stage(self, calls: int) -> bool:
        """Whether the fusion is one of its stages behind so many calls."""
        return _depth(self._first(calls)) > 0

    def _first(self, calls: int | None) -> list[Step]:
        """Return the steps up to a number of calls."""
        if calls is None:
            return self.steps
        left, found = calls, []
        for step in self.steps:
            if not left and step.name != "named":
                break
            left -= step.name not in _NO_CALLS
            found.append(step)
        return found

    def __str__(self) -> str:
        return self.script().rstrip("\n")


_NO_CALLS = frozenset({FOCUS, UNFOCUS, "named", "assume", "assume_range"})
"""The steps that are no call of the trace."""


def _depth(steps: Iterable[Step]) -> int:
    """Return how many stages of stages steps end in."""
    return sum((step.name == FOCUS) - (step.name == UNFOCUS) for step in steps)


def _without_empty_stages(steps: Iterable[Step]) -> list[Step]:
    """Return steps without the stages that hold no call."""
    kept: list[Step] = []
    for step in steps:
        if step.name == UNFOCUS and kept and kept[-1].name == FOCUS:
            kept.pop()
        else:
            kept.append(step)
    return kept


class _ScriptLines:
    """Writes steps as lines of Python, with a variable for each tensor."""

    def __init__(self) -> None:
        self.variables: dict[TensorView, str] = {}
        self.taken = {"f", "ln", "focused"}
        self.indent = ""

    def lines(self, steps: Sequence[Step]) -> Iterator[str]:
        """Yield the lines of steps."""
        kept = _without_empty_stages(steps)
        if any(step.name == FOCUS for step in kept):
            yield "from loopnest.schedule.stage_focus import focused"
        yield ""
        for step in kept:
            if step.name == UNFOCUS:
                self.indent = self.indent[4:]
            elif step.name == "named" and step.tensor not in self.variables:
                yield self._first_name(step)
            else:
                yield from self._call_lines(step)

    def _call_lines(self, step: Step) -> Iterator[str]:
        for tensor, name in step.names:
            if tensor not in self.variables:
                yield f'{self.indent}{self._variable(tensor, tensor.name)} = f["{name}"]'
        if step.name == FOCUS:
            stage = ", ".join([self._written(arg) for arg in step.args])
            yield f"{self.indent}with focused(f, {stage}):"
            self.indent += "    "
            return
        call = self._call(step)
        made = dict(step.made)
        if isinstance(step.returned, TensorView) and step.returned in made:
            call = f"{self._variable(step.returned, step.returned.name)} = {call}"
            del made[step.returned]
        yield f"{self.indent}{call}"
        for tensor, name in made.items():
            yield f'{self.indent}{self._variable(tensor, tensor.name)} = f["{name}"]'

    def _first_name(self, step: Step) -> str:
        """Return the line that names a tensor of the math: what it is called there is unknown."""
        assert step.tensor is not None
        variable = self._variable(step.tensor, str(step.args[0]))
        index = step.tensor.fusion.tensors.index(step.tensor)
        return f"{self.indent}{variable} = f.tensors[{index}].named({step.args[0]!r})"

    def _variable(self, tensor: TensorView, name: str) -> str:
        while keyword.iskeyword(name) or name in self.taken:
            name += "_"
        self.taken.add(name)
        self.variables[tensor] = name
        return name

    def _call(self, step: Step) -> str:
        given = [self._written(arg) for arg in step.args]
        given += [f"{key}={self._written(value)}" for key, value in step.keywords.items()]
        name = step.name
        if step.tensor is None:
            owner = "ln" if step.args and name.startswith("_") else "f"
            return f"{owner}.{name.lstrip('_')}({', '.join(given)})"
        of = self.variables[step.tensor]
        if name == "set_memory":
            return f"{of}.memory = {given[0]}"
        if name.startswith("_"):
            return f"ln.{name[1:]}({', '.join([of, *given])})"
        return f"{of}.{name}({', '.join(given)})"

    def _written(self, value: object) -> str:
        """Return an argument as Python reads it."""
        match value:
            case TensorView():
                return self.variables[value]
            case Memory():
                return f"ln.{value.name}"
            case Enum():
                return f"ln.{type(value).__name__}.{value.name}"
            case Mapping():
                pairs = [f"{self._written(k)}: {self._written(v)}" for k, v in value.items()]
                return "{" + ", ".join(pairs) + "}"
            case list():
                return "[" + ", ".join([self._written(item) for item in value]) + "]"
            case tuple():
                inner = ", ".join([self._written(item) for item in value])
                return f"({inner}{',' if len(value) == 1 else ''})"
            case Expr():  # a size
                return repr(str(value))
            case bool() | str() | Fragment() | None:
                return repr(value)
        number = whole(value)
        return repr(value) if number is None else repr(number)
