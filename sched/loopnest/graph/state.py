"""The state of a graph: the variables that it reads, and what it assigns to them.

Whoever runs or rewrites a graph asks `check_state` first: a graph whose variables do not have one
meaning each has no value, and no rewriting of it has.
"""

from __future__ import annotations

from collections.abc import Iterator

from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import Node, describe
from loopnest.graph.node_origins import place_of
from loopnest.graph.program import Graph, body_of
from loopnest.graph.structural import node_key

_CHECKED = "_state_is_checked"


def check_state(graph: Graph) -> None:
    """Check that each variable has one first value and is assigned at most once.

    Bodies of fused groups count as often as they are called. Graphs do not change: one that has
    passed is not looked at again.

    Raises:
        GraphError: two variables have one name, or a variable is assigned twice; it names both
            nodes.
    """
    if _CHECKED in graph.__dict__:
        return
    states: dict[str, Node] = {}
    assigned: dict[str, Node] = {}
    for node in _stateful(graph):
        name = node.attrs["variable"]
        if node.op == "assign":
            if name in assigned:
                raise _assigned_twice(graph, name, assigned[name], node)
            assigned[name] = node
            continue
        other = states.setdefault(name, node)
        if other is not node and node_key(other) != node_key(node):
            raise GraphError(f"graph {graph.name}", f"two variables are called {name}")
    graph.__dict__[_CHECKED] = True


def _assigned_twice(graph: Graph, name: str, first: Node, second: Node) -> GraphError:
    return GraphError(
        f"graph {graph.name}, node {describe(second, 2)}{place_of(second)}",
        f"the variable {name} is assigned twice, first by {describe(first, 2)}{place_of(first)}",
        "its new value is one node",
    )


def assignments(graph: Graph) -> list[Node]:
    """Return the assign nodes of a graph, those in fused bodies included."""
    return [node for node in _stateful(graph) if node.op == "assign"]


def _stateful(graph: Graph) -> Iterator[Node]:
    """Yield the nodes that read or assign variables; those of a body at each call of it."""
    for node in graph.nodes:
        if node.op in ("assign", "variable"):
            yield node
        elif node.op == "fused":
            yield from _of_body(body_of(node))


def _of_body(body: Graph) -> tuple[Node, ...]:
    """Return the stateful nodes of a body; kept, since a body may be called often."""
    found: tuple[Node, ...] | None = body.__dict__.get("_stateful")
    if found is None:
        found = body.__dict__["_stateful"] = tuple(_stateful(body))
    return found
