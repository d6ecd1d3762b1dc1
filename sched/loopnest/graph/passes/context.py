"""The context that passes run in: level, required and disabled passes, options, instruments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import items_of
from loopnest.graph.passes.info import PassInfo, check_names
from loopnest.graph.passes.module import Unit
from loopnest.graph.passes.options import check_config, option_of
from loopnest.graph.registry import short

_HOOKS = (
    "enter_pass_ctx",
    "exit_pass_ctx",
    "should_run",
    "run_before_pass",
    "run_after_pass",
    "run_failed_pass",
)


class PassInstrument:
    """What is told about every pass that runs under a `PassContext`; override what is wanted."""

    def enter_pass_ctx(self) -> None:
        """Learn that the `with` block of the context begins."""

    def exit_pass_ctx(self) -> None:
        """Learn that the `with` block ends, also by an error."""

    def should_run(self, mod: Unit, info: PassInfo) -> bool:
        """Return whether the pass runs; where one instrument says no, it is left out."""
        return True

    def run_before_pass(self, mod: Unit, info: PassInfo) -> None:
        """See the graph that a pass gets."""

    def run_after_pass(self, mod: Unit, info: PassInfo) -> None:
        """See the graph that a pass returned, which is well-formed."""

    def run_failed_pass(self, mod: Unit, info: PassInfo) -> None:
        """See the graph that a pass got which then raised an error."""


class _Duck(PassInstrument):
    """An object that has some of the hooks, without the base class."""

    def __init__(self, instrument: object) -> None:
        for hook in _HOOKS:
            if hasattr(instrument, hook):
                setattr(self, hook, getattr(instrument, hook))


class _Traced(PassInstrument):
    """A tracing function: (graph, info, whether it is before the pass)."""

    def __init__(self, function: Callable[[Unit, PassInfo, bool], object]) -> None:
        self._function = function

    def run_before_pass(self, mod: Unit, info: PassInfo) -> None:
        self._function(mod, info, True)

    def run_after_pass(self, mod: Unit, info: PassInfo) -> None:
        self._function(mod, info, False)


def pass_instrument(cls: type[Any]) -> type[Any]:
    """Make a class with some of the hooks an instrument: ``@pass_instrument class Mine: …``.

    Raises:
        GraphError: it has none of the hooks.
    """
    if not any(hasattr(cls, hook) for hook in _HOOKS):
        raise GraphError(
            f"pass_instrument({getattr(cls, '__name__', cls)})",
            "it has no hook",
            f"define one of {', '.join(_HOOKS)}",
        )
    return type(cls.__name__, (cls, PassInstrument), _like(cls))


def _like(cls: type[Any]) -> dict[str, object]:
    """Return the namespace of a class that behaves as `cls` does."""
    return {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
    }


def _adapted(instrument: object) -> PassInstrument:
    if isinstance(instrument, PassInstrument):
        return instrument
    if not isinstance(instrument, type):
        if any(hasattr(instrument, hook) for hook in _HOOKS):
            return _Duck(instrument)
        if callable(instrument):
            return _Traced(instrument)
    raise GraphError(
        f"PassContext(instruments=[{short(instrument)}])",
        "it is no instrument",
        "give an object with run_before_pass or run_after_pass, or a function",
    )


class PassContext:
    """What passes run under, as a context manager; it may be entered again, also nested.

    A `Sequential` runs the passes whose `opt_level` is at most that of the context or that
    `required_pass` names, and none that `disabled_pass` names. A pass that is called by itself
    runs in any case.

    Args:
        opt_level: 0 to 3 by custom; a higher one runs more passes.
        required_pass: names of passes to run whatever their level.
        disabled_pass: names of passes to leave out.
        config: options of passes by ``"Pass.option"``; keys that belong to no pass are free.
        instruments: objects with some of the hooks of `PassInstrument`, or functions of (graph,
            info, whether it is before the pass).

    Raises:
        GraphError: an unknown pass or option, a pass that is both required and disabled, or an
            instrument that is none.

    >>> with PassContext(opt_level=3):
    ...     PassContext.current().opt_level
    3
    >>> PassContext.current().opt_level
    2

    Source: TVM's `tvm.transform.PassContext`.
    """

    def __init__(
        self,
        opt_level: int = 2,
        required_pass: Iterable[str] | None = None,
        disabled_pass: Iterable[str] | None = None,
        config: Mapping[str, Any] | None = None,
        instruments: Iterable[object] | None = None,
    ) -> None:
        if isinstance(opt_level, bool) or not isinstance(opt_level, int):
            raise GraphError(f"PassContext(opt_level={short(opt_level)})", "it is no integer")
        self.opt_level = opt_level
        self.required_pass = check_names("PassContext(required_pass=…)", required_pass)
        self.disabled_pass = check_names("PassContext(disabled_pass=…)", disabled_pass)
        for name in self.required_pass:
            if name in self.disabled_pass:
                raise GraphError("PassContext(…)", f"{name} is both required and disabled")
        if config is not None and not isinstance(config, Mapping):
            kind = type(config).__name__
            raise GraphError("PassContext(config=…)", f"it is a {kind}", "pass a dict")
        self.config: Mapping[str, Any] = MappingProxyType(dict(config or {}))
        check_config(self.config)
        given = items_of(() if instruments is None else instruments)
        if given is None:
            kind = type(instruments).__name__
            raise GraphError("PassContext(instruments=…)", f"it is a {kind}", "pass a list")
        self.instruments = tuple([_adapted(each) for each in given])

    @staticmethod
    def current() -> PassContext:
        """Return the innermost context that is entered, or one with the defaults."""
        stack = _ENTERED.get()
        return stack[-1] if stack else _DEFAULT

    def enables(self, info: PassInfo) -> bool:
        """Whether a `Sequential` runs a pass."""
        if info.name in self.disabled_pass:
            return False
        return info.name in self.required_pass or self.opt_level >= info.opt_level

    def option(self, key: str) -> Any:
        """Return the value of a registered option.

        Raises:
            GraphError: no option of that name is registered.
        """
        return self.config.get(key, option_of(key).default)

    def __enter__(self) -> PassContext:
        entered: list[PassInstrument] = []
        try:
            for instrument in self.instruments:
                instrument.enter_pass_ctx()
                entered.append(instrument)
        except BaseException:
            for instrument in reversed(entered):
                instrument.exit_pass_ctx()
            raise
        _ENTERED.set((*_ENTERED.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        _ENTERED.set(_ENTERED.get()[:-1])
        for instrument in reversed(self.instruments):
            instrument.exit_pass_ctx()

    def __repr__(self) -> str:
        parts = [f"opt_level={self.opt_level}"]
        for key in ("required_pass", "disabled_pass"):
            names = list(getattr(self, key))
            parts += [f"{key}={names}"] if names else []
        parts += [f"config={dict(self.config)}"] if self.config else []
        return f"PassContext({', '.join(parts)})"


_ENTERED: ContextVar[tuple[PassContext, ...]] = ContextVar("loopnest_pass_context", default=())
_DEFAULT = PassContext()
