"""Passes made from functions and classes: `function_pass`, `module_pass`, `register_pass`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, overload

from loopnest.base.errors import kind_of
from loopnest.graph.graph_error import GraphError
from loopnest.graph.passes.context import PassContext
from loopnest.graph.passes.info import PassInfo, catalogue, check_signature
from loopnest.graph.passes.manager import FunctionPass, ModulePass, Pass
from loopnest.graph.passes.module import Unit
from loopnest.graph.program import Graph


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
