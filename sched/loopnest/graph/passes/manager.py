"""Passes and how they are run: the classes, `Sequential`, `apply_passes`.

A pass is a function from a graph to a graph; the same object comes back where nothing changed.
One place runs every pass, `run`: it runs first what the pass requires and depends on, asks and
tells the instruments, and checks what comes back. Graphs are immutable, so that a pass that fails
leaves nothing half rewritten.

Sources: TVM's documentation, "Pass Infrastructure" (`tvm.transform`); NNVM (github.com/dmlc/nnvm:
`ApplyPasses`, graph attributes that passes provide and depend on).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TypeVar, overload

from loopnest.base.errors import kind_of
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import items_of
from loopnest.graph.passes.context import PassContext
from loopnest.graph.passes.info import PassInfo, check_signature, factory_of, note_name, pass_names
from loopnest.graph.passes.module import Module, Unit, graphs_of
from loopnest.graph.program import Graph
from loopnest.graph.state import check_state
from loopnest.graph.wellformed import check

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
