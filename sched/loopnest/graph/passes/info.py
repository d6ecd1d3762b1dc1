"""The record of a pass (level, requirements, options), and the registry of pass names."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from loopnest.base.errors import kind_of
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import items_of


@dataclass(frozen=True, slots=True)
class PassInfo:
    """The facts that decide when a pass runs.

    Attributes:
        name: what `disabled_pass`, `required_pass` and `apply_passes` call it.
        opt_level: a `Sequential` leaves it out below this level of the context.
        required: names of passes that run right before it.
        provides: attributes of the graph that it adds.
        depends: attributes of the graph that it reads; a pass that provides a missing one is run.
        changes_graph: False if it only adds attributes.

    Sources: TVM's `tvm.transform.PassInfo`; NNVM (github.com/dmlc/nnvm: `NNVM_REGISTER_PASS`).
    """

    name: str
    opt_level: int = 0
    required: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    changes_graph: bool = True

    def __str__(self) -> str:
        parts = [f"opt_level {self.opt_level}"]
        for title, names in (
            ("requires", self.required),
            ("depends on", self.depends),
            ("provides", self.provides),
        ):
            if names:
                parts.append(f"{title} {', '.join(names)}")
        return f"{self.name} ({'; '.join(parts)})"


class HasInfo(Protocol):
    """What the catalog of pass names asks of a pass."""

    @property
    def info(self) -> PassInfo: ...


_NAMES: dict[str, None] = {}
_FACTORIES: dict[str, Callable[[], HasInfo]] = {}


def check_signature(name: str, function: Callable[..., object], *arguments: str) -> None:
    """Check that what a pass runs takes the arguments that it will get.

    Raises:
        GraphError: it does not.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin that does not tell
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise GraphError(
            f"pass {name}",
            f"{getattr(function, '__name__', 'it')}{signature} does not take its arguments: "
            f"{error}",
            f"it is called with ({', '.join(arguments)})",
        ) from None


def note_name(name: str) -> None:
    """Remember that there is a pass of this name, so that contexts may speak of it."""
    _NAMES.setdefault(name)


def check_names(subject: str, names: Iterable[str] | None) -> tuple[str, ...]:
    """Return names of registered passes as a tuple, an empty one for None.

    Raises:
        GraphError: no pass has one of the names.
    """
    if isinstance(names, str):
        raise GraphError(subject, f"{names!r} is a string", f"write [{names!r}]")
    found = () if names is None else items_of(names)
    if found is None:
        raise GraphError(subject, f"the names are {kind_of(names)}", "pass a list")
    for name in found:
        if not isinstance(name, str) or name not in _NAMES:
            raise GraphError(subject, f"there is no pass {name}", _close(name, _NAMES))
    return found


def catalogue(name: str, factory: Callable[[], HasInfo], override: bool) -> None:
    """Make a pass available by name.

    Raises:
        GraphError: there is one of that name and `override` is False.
    """
    if not isinstance(name, str):
        kind = type(name).__name__
        raise GraphError("register_pass(…)", f"the name is a {kind}", "pass a string")
    if name in _FACTORIES and not override:
        raise GraphError(
            f"register_pass({name!r})",
            "there is such a pass already",
            "pass override=True to replace it",
        )
    note_name(name)
    _FACTORIES[name] = factory


def unregister_pass(name: str) -> None:
    """Forget a registered pass (for tests of toy passes).

    Raises:
        GraphError: no pass has that name.
    """
    factory_of(name)
    del _FACTORIES[name], _NAMES[name]


def factory_of(name: str) -> Callable[[], HasInfo]:
    """Return what makes the pass of a name.

    Raises:
        GraphError: none is registered.
    """
    found = _FACTORIES.get(name) if isinstance(name, str) else None
    if found is None:
        raise GraphError(f"pass {name}", "no such pass is registered", _close(name, _FACTORIES))
    return found


def pass_names() -> tuple[str, ...]:
    """Return the names of all registered passes, in order of registration."""
    return tuple(_FACTORIES)


def _close(name: str, names: Iterable[str]) -> str:
    known = sorted(names)
    near = difflib.get_close_matches(str(name), known, 3)
    return f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(known)}"
