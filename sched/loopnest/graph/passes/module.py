"""Several graphs that passes treat together, such as a forward and a backward one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from loopnest.base.errors import kind_of
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import items_of
from loopnest.graph.program import Graph
from loopnest.graph.registry import short


class Module:
    """Graphs of distinct names, in order; immutable, compared by identity.

    Args:
        graphs: the graphs.

    Raises:
        GraphError: one is no graph, or two have the same name.

    >>> from loopnest.graph import var
    >>> x = var("x", (3,))
    >>> Module([Graph([x], [x], "forward"), Graph([x], [x + x], "backward")])
    <module: forward, backward>
    """

    __slots__ = ("graphs",)

    def __init__(self, graphs: Iterable[Graph]) -> None:
        found = items_of(graphs)
        if found is None:
            kind = type(graphs).__name__
            raise GraphError("Module(…)", f"it was given a {kind}", "pass a list of graphs")
        self.graphs: tuple[Graph, ...] = found
        names: set[str] = set()
        for graph in self.graphs:
            if not isinstance(graph, Graph):
                raise GraphError("Module(…)", f"it was given {kind_of(graph)}", "no graph")
            if graph.name in names:
                raise GraphError("Module(…)", f"two graphs are called {graph.name}")
            names.add(graph.name)

    def __getitem__(self, name: str) -> Graph:
        for graph in self.graphs:
            if isinstance(name, str) and graph.name == name:
                return graph
        have = ", ".join(graph.name for graph in self.graphs) or "none"
        raise GraphError(f"Module[{short(name)}]", "there is no such graph", f"it has: {have}")

    def __iter__(self) -> Iterator[Graph]:
        return iter(self.graphs)

    def __len__(self) -> int:
        return len(self.graphs)

    def map(self, function: Callable[[Graph], Graph]) -> Module:
        """Return the module of `function` of each graph; itself where all stay the same object."""
        mapped = [function(graph) for graph in self.graphs]
        same = all(new is old for new, old in zip(mapped, self.graphs, strict=True))
        return self if same else Module(mapped)

    def __repr__(self) -> str:
        return f"<module: {', '.join(graph.name for graph in self.graphs)}>"

    def __str__(self) -> str:
        return "\n\n".join(str(graph) for graph in self.graphs)


Unit: TypeAlias = Graph | Module
"""What a pass is called on, and returns."""


def graphs_of(unit: Unit) -> tuple[Graph, ...]:
    """Return the graph, or those of a module."""
    return unit.graphs if isinstance(unit, Module) else (unit,)
