"""Passes and how they are run: the classes, `Sequential`, `apply_passes`.

A pass is a function from a graph to a graph; the same object comes back where nothing changed.
One place runs every pass, `run`: it runs first what the pass requires and depends on, asks and
tells the instruments, and checks what comes back. Graphs are immutable, so that a pass that fails
leaves nothing half rewritten.

Sources: TVM's documentation, "Pass Infrastructure" (`tvm.transform`); NNVM (github.com/dmlc/nnvm:
`ApplyPasses`, graph attributes that passes provide and depend on).

In order: `PassInfo`, the record of a pass, and the registry of pass names; options, the entries of
`PassContext.config`, registered so that typos are found; `PassContext`, which passes run in;
passes; and what makes passes of functions and classes (`function_pass`, `module_pass`,
`register_pass`).
"""

from __future__ import annotations

import difflib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, overload

from loopnest.base.errors import kind_of
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import items_of
from loopnest.graph.program import Graph, Module, Unit, graphs_of
from loopnest.graph.registry import short
from loopnest.graph.state import check, check_state


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


@dataclass(frozen=True, slots=True)
class PassOption:
    """An entry of `PassContext.config` that a pass reads."""

    key: str
    default: object
    kind: type | tuple[type, ...]
    doc: str


_OPTIONS: dict[str, PassOption] = {}


def register_option(
    key: str, default: object, kind: type | tuple[type, ...] | None = None, doc: str = ""
) -> PassOption:
    """Register an option ``"Pass.option"`` of `PassContext.config`.

    Args:
        key: the name of the pass, a dot, and that of the option.
        default: its value where the context has none.
        kind: the type that a value must have; that of `default` unless that is None.
        doc: what it does.
    """
    if not isinstance(key, str):
        kind_of = type(key).__name__
        raise GraphError("register_option(…)", f"the key is a {kind_of}", "write 'Pass.option'")
    if kind is None:
        kind = object if default is None else type(default)
    _OPTIONS[key] = PassOption(key, default, kind, doc)
    return _OPTIONS[key]


def option_of(key: str) -> PassOption:
    """Return a registered option.

    Raises:
        GraphError: no option has that name.
    """
    if key not in _OPTIONS:
        raise GraphError(f"option({key!r})", "there is no such option", "use register_option")
    return _OPTIONS[key]


def check_config(config: Mapping[str, object]) -> None:
    """Check the entries that belong to a pass; others are free.

    Raises:
        GraphError: a pass has no such option, or the value has another type.
    """
    owners = {key.partition(".")[0] for key in _OPTIONS}
    for key, value in config.items():
        subject = f"PassContext(config={{{key!r}: {value!r}}})"
        option = _OPTIONS.get(key)
        if option is None and str(key).partition(".")[0] in owners:
            mine = [k for k in sorted(_OPTIONS) if k.startswith(str(key).partition(".")[0] + ".")]
            raise GraphError(subject, "there is no such option", f"there are: {', '.join(mine)}")
        if option is not None and not _is_kind(value, option.kind):
            raise GraphError(subject, f"the value is {kind_of(value)}", option.doc)


def _is_kind(value: object, kind: type | tuple[type, ...]) -> bool:
    if isinstance(value, bool) and kind in (int, float):
        return False
    return isinstance(value, kind)


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


T = TypeVar("T")


class Pass(ABC):
    """A pass; call it on a graph (or a `Module`) to get the rewritten one.

    A subclass has an attribute `info` and the method of `FunctionPass` or `ModulePass`.
    """

    info: PassInfo

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        if "info" in cls.__dict__:
            note_name(cls.info.name)

    @overload
    def __call__(self, unit: Graph) -> Graph: ...
    @overload
    def __call__(self, unit: Module) -> Module: ...
    def __call__(self, unit: Unit) -> Unit:
        """Return the rewritten graph: the same object where nothing changed.

        It runs whatever the level of the context (a `Sequential` minds levels).

        Raises:
            GraphError: no graph, a pass that this one needs is missing or disabled, or what comes
                back is ill-formed.
        """
        if not isinstance(unit, (Graph, Module)):
            raise GraphError(
                f"{self.info.name}(…)", f"it was given {kind_of(unit)}", "pass a G.Graph"
            )
        return run(self, unit, PassContext.current())

    @abstractmethod
    def apply(self, unit: Unit, ctx: PassContext) -> Unit:
        """Return the rewritten unit; called by `run` alone."""

    def __repr__(self) -> str:
        return f"<pass {self.info}>"


class FunctionPass(Pass):
    """A pass that rewrites one graph at a time.

    A subclass has ``transform_function(func, mod, ctx) -> graph``: the graph, what the pass was
    called on (that graph, or the module that holds it), and the context. Fused bodies inside of
    the graph are its own business (`ExprMutator` rewrites them too).
    """

    @abstractmethod
    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        """Return the rewritten graph."""

    def apply(self, unit: Unit, ctx: PassContext) -> Unit:
        if isinstance(unit, Module):
            return unit.map(lambda graph: self._graph(graph, unit, ctx))
        return self._graph(unit, unit, ctx)

    def _graph(self, graph: Graph, unit: Unit, ctx: PassContext) -> Graph:
        check_signature(self.info.name, self.transform_function, "func", "mod", "ctx")
        return _expect(self.transform_function(graph, unit, ctx), Graph, self.info, graph)


class ModulePass(Pass):
    """A pass that sees at once all that it was called on: a graph, or the graphs of a module.

    A subclass has ``transform_module(mod, ctx)``; it returns a graph for a graph, a module for a
    module.
    """

    @abstractmethod
    def transform_module(self, mod: Unit, ctx: PassContext) -> Unit:
        """Return the rewritten graph or module."""

    def apply(self, unit: Unit, ctx: PassContext) -> Unit:
        check_signature(self.info.name, self.transform_module, "mod", "ctx")
        return _expect(self.transform_module(unit, ctx), type(unit), self.info, unit)


def _expect(result: object, kind: type[T], info: PassInfo, unit: Unit) -> T:
    if not isinstance(result, kind):
        raise GraphError(
            _place(info, unit),
            f"the pass returned {kind_of(result)}",
            f"it must return a {kind.__name__}",
        )
    return result


def _place(info: PassInfo, unit: Unit) -> str:
    return f"pass {info.name} on {', '.join(f'graph {g.name}' for g in graphs_of(unit))}"


class Sequential(Pass):
    """Run passes one after the other: those that the level of the context admits.

    Args:
        passes: passes, or names of registered ones.
        opt_level: its own level, where it stands in another `Sequential`.
        name: what contexts call it.
        required: names of passes that run first.

    Raises:
        GraphError: what is neither a pass nor the name of one.

    Instruments see the passes in it, not itself.
    """

    def __init__(
        self,
        passes: Iterable[Pass | str],
        opt_level: int = 0,
        name: str = "sequential",
        required: Sequence[str] = (),
    ) -> None:
        self.passes = tuple([_as_pass(each, name) for each in _listed(passes, name)])
        self.info = PassInfo(name, opt_level, tuple(required))
        note_name(name)

    def apply(self, unit: Unit, ctx: PassContext) -> Unit:
        for each in self.passes:
            if ctx.enables(each.info):
                unit = run(each, unit, ctx)
        return unit


def _listed(passes: object, subject: str) -> Iterable[object]:
    found = items_of(passes)
    if found is None:
        raise GraphError(subject, f"the passes are {kind_of(passes)}", "pass a list")
    return found


def _as_pass(given: object, subject: str) -> Pass:
    if isinstance(given, str):
        return make_pass(given)
    if isinstance(given, type) and issubclass(given, Pass):
        raise GraphError(subject, f"{given.__name__} is a class", f"write {given.__name__}()")
    if not isinstance(given, Pass):
        raise GraphError(subject, f"{kind_of(given)} is no pass", "use G.function_pass")
    return given


# Running


def run(each: Pass, unit: Unit, ctx: PassContext, waiting: tuple[str, ...] = ()) -> Unit:
    """Run a pass on a graph, after the passes that it requires; return the new graph.

    Args:
        each: the pass.
        unit: the graph, or a module.
        ctx: the context.
        waiting: names of passes that wait for this one.

    Raises:
        GraphError: as `Pass.__call__`.
    """
    info = each.info
    if info.name in waiting:
        circle = " -> ".join([*waiting[waiting.index(info.name) :], info.name])
        raise GraphError(f"pass {info.name}", f"passes need each other in a circle: {circle}")
    waiting = (*waiting, info.name)
    for graph in graphs_of(unit):
        check_state(graph)
    for name in info.required:
        unit = run(_needed(name, f"pass {info.name} requires {name}", ctx), unit, ctx, waiting)
    for attr in info.depends:
        if not all(attr in graph.attrs for graph in graphs_of(unit)):
            unit = run(_provider(attr, info, ctx), unit, ctx, waiting)
    if isinstance(each, Sequential):
        return each.apply(unit, ctx)
    return _instrumented(each, unit, ctx)


def _instrumented(each: Pass, unit: Unit, ctx: PassContext) -> Unit:
    info = each.info
    if not all(instrument.should_run(unit, info) for instrument in ctx.instruments):
        return unit
    for instrument in ctx.instruments:
        instrument.run_before_pass(unit, info)
    try:
        result = each.apply(unit, ctx)
        _check_result(info, unit, result)
    except Exception as error:
        for instrument in ctx.instruments:
            instrument.run_failed_pass(unit, info)
        error.add_note(f"in {_place(info, unit)}")
        raise
    for instrument in ctx.instruments:
        instrument.run_after_pass(result, info)
    return result


def _check_result(info: PassInfo, before: Unit, after: Unit) -> None:
    """Check that a result is well-formed and that the pass did what its facts say.

    Raises:
        GraphError: it is not; the message names the pass, the graph and the node.
    """
    old = {graph.name: graph for graph in graphs_of(before)}
    for graph in graphs_of(after):
        source = old.get(graph.name)
        if graph is not source:
            _check_graph(info, source, graph)
        for attr in info.provides:
            if attr not in graph.attrs:
                raise GraphError(
                    _place(info, graph),
                    f"it says that it provides {attr!r}, the graph that it returned has none",
                    f"return graph.with_attrs({attr}=…)",
                )


def _check_graph(info: PassInfo, source: Graph | None, graph: Graph) -> None:
    try:
        check(graph)
    except GraphError as error:
        place = f"pass {info.name} returned an ill-formed graph: {error.subject}"
        raise GraphError(place, error.reason, error.hint) from None
    if info.changes_graph:
        return
    if source is None or graph.changed(source.inputs, source.outputs) is not graph:
        raise GraphError(
            _place(info, graph),
            "it says that it does not change the graph, but it did",
            "register it with changes_graph=True",
        )


def _needed(name: str, subject: str, ctx: PassContext) -> Pass:
    """Return a pass that another needs.

    Raises:
        GraphError: it is disabled, or none is registered under that name.
    """
    if name in ctx.disabled_pass:
        raise GraphError(subject, f"{name} is disabled", "take it out of disabled_pass")
    try:
        return make_pass(name)
    except GraphError as error:
        raise GraphError(subject, error.reason, error.hint) from None


def _provider(attr: str, info: PassInfo, ctx: PassContext) -> Pass:
    """Return the first registered pass that provides an attribute and is enabled.

    Raises:
        GraphError: no registered pass provides the attribute, or each that does is disabled.
    """
    subject = f"pass {info.name} depends on the graph attribute {attr!r}"
    names = [name for name in pass_names() if attr in make_pass(name).info.provides]
    if not names:
        raise GraphError(
            subject,
            "no registered pass provides it",
            f"register_pass(…, provides=[{attr!r}]) or graph.with_attrs({attr}=…)",
        )
    enabled = [name for name in names if name not in ctx.disabled_pass]
    return _needed((enabled or names)[0], subject, ctx)


# By name


def make_pass(name: str) -> Pass:
    """Return a new pass of a registered name.

    Raises:
        GraphError: no pass has that name.
    """
    made = factory_of(name)()
    if not isinstance(made, Pass):
        raise GraphError(f"pass {name}", f"its factory made {kind_of(made)}", "no pass")
    return made


@overload
def apply_passes(graph: Graph, names: str | Iterable[str | Pass]) -> Graph: ...
@overload
def apply_passes(graph: Module, names: str | Iterable[str | Pass]) -> Module: ...
def apply_passes(graph: Unit, names: str | Iterable[str | Pass]) -> Unit:
    """Return a graph after registered passes, in the order given.

    A pass that depends on a graph attribute which is not there pulls in the pass that provides
    it. Levels do not count here, `disabled_pass` does.

    Raises:
        GraphError: an unknown name, or as the passes do.

    Source: NNVM (github.com/dmlc/nnvm: `ApplyPasses`).
    """
    ctx = PassContext.current()
    if not isinstance(graph, (Graph, Module)):
        kind = type(graph).__name__
        raise GraphError("apply_passes(…)", f"it was given a {kind}", "pass a G.Graph")
    wanted = [names] if isinstance(names, (str, Pass)) else _listed(names, "apply_passes")
    passes = [_as_pass(each, "apply_passes") for each in wanted]
    for each in passes:
        if each.info.name not in ctx.disabled_pass:
            graph = run(each, graph, ctx)
    return graph


@overload
def function_pass(transform: Callable[[Graph, Unit, PassContext], Graph], /) -> FunctionPass: ...
@overload
def function_pass(transform: None = None, /, **facts: Any) -> Callable[[Any], Any]: ...
def function_pass(transform: Any = None, /, **facts: Any) -> Any:
    """Make a function or a class a function pass.

    ``@function_pass(opt_level=1) class P: def transform_function(self, func, mod, ctx): …`` makes
    `P` a class of passes; its own `__init__` is kept. ``@function_pass(opt_level=1) def p(func,
    mod, ctx): …`` makes `p` a pass.

    Args:
        transform: the class or function, where the decorator has no arguments.
        facts: those of `PassInfo`: opt_level, name (that of the class or function), required,
            provides, depends, changes_graph.

    Raises:
        GraphError: a class without the method, or an unknown fact.
    """
    return _decorator(FunctionPass, "transform_function", transform, facts, "func", "mod", "ctx")


@overload
def module_pass(transform: Callable[[Any, PassContext], Any], /) -> ModulePass: ...
@overload
def module_pass(transform: None = None, /, **facts: Any) -> Callable[[Any], Any]: ...
def module_pass(transform: Any = None, /, **facts: Any) -> Any:
    """Make a function (mod, ctx) or a class with `transform_module` a module pass.

    Arguments are those of `function_pass`.

    Raises:
        GraphError: a class without the method, or an unknown fact.
    """
    return _decorator(ModulePass, "transform_module", transform, facts, "mod", "ctx")


def _decorator(
    base: Any, method: str, transform: Any, facts: dict[str, Any], *arguments: str
) -> Any:
    def decorate(target: Any) -> Any:
        if not callable(target):
            raise GraphError("a pass", f"{kind_of(target)} is no function and no class")
        info = _info(getattr(target, "__name__", type(target).__name__), facts)
        if not isinstance(target, type):
            check_signature(info.name, target, *arguments)
            cls = _subclass(base, target, info, {method: staticmethod(target)})
            return cls()
        if not callable(getattr(target, method, None)):
            raise GraphError(f"pass {info.name}", f"the class has no {method}", "define it")
        return _subclass(base, target, info, {})

    return decorate if transform is None else decorate(transform)


def _subclass(
    base: Any, target: Any, info: PassInfo, namespace: Mapping[str, object]
) -> type[Pass]:
    """Return a class of passes that looks like the class or function `target`."""
    bases = (target, base) if isinstance(target, type) else (base,)
    look = {key: getattr(target, key, None) for key in ("__module__", "__qualname__", "__doc__")}
    return type(info.name, bases, {**look, **namespace, "info": info})


def _info(name: str, facts: dict[str, Any]) -> PassInfo:
    known = [field.name for field in fields(PassInfo)]
    for key in facts:
        if key not in known:
            raise GraphError(
                f"pass {name}", f"there is no fact {key!r}", f"it has {', '.join(known)}"
            )
    given: dict[str, Any] = {"name": name}
    if not isinstance(facts.get("name", name), str):
        raise GraphError("a pass", f"its name is {kind_of(facts.get('name', name))}")
    for key, value in facts.items():
        if value is not None:
            given[key] = _names(name, key, value) if key in _LISTS else value
    return PassInfo(**given)


_LISTS = ("required", "provides", "depends")


def _names(name: str, key: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise GraphError(f"pass {name}", f"{key}={value!r} is no list", f"write [{value!r}]")
    return tuple(value)


def register_pass(name: str, factory: Any = None, *, override: bool = False, **facts: Any) -> Any:
    """Register a pass by name, for `apply_passes`, `required` and `depends`.

    Args:
        name: its name.
        factory: a class of passes, or a function from a graph to a graph; without it this is a
            decorator.
        override: whether it may replace one that is registered.
        facts: of a function: those of `PassInfo` (provides, depends, changes_graph…).

    Returns:
        What was registered, as it was.

    Raises:
        GraphError: the name is taken, or what is registered is no pass.

    >>> @register_pass("CountNodes", provides=["count"], changes_graph=False)
    ... def count_nodes(graph):
    ...     return graph.with_attrs(count=len(graph.nodes))
    >>> from loopnest.graph import apply_passes, var
    >>> x = var("x", (3,))
    >>> apply_passes(Graph([x], [x + x]), ["CountNodes"]).attrs["count"]
    2
    """
    if factory is None:
        return lambda target: register_pass(name, target, override=override, **facts)
    if isinstance(factory, type) and issubclass(factory, Pass):
        catalogue(name, factory, override)
    elif callable(factory):
        made = _from_function(factory, _info(name, facts))
        catalogue(name, lambda: made, override)
    else:
        raise GraphError(f"register_pass({name!r})", f"{kind_of(factory)} is no pass")
    return factory


def _from_function(function: Callable[[Graph], Graph], info: PassInfo) -> Pass:
    """Return the pass of a function from a graph to a graph."""
    if isinstance(function, Pass):
        return function
    check_signature(info.name, function, "graph")
    method = {"transform_function": staticmethod(lambda func, mod, ctx: function(func))}
    return _subclass(FunctionPass, function, info, method)()
