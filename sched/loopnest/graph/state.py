"""The state of a graph: the variables that it reads, and what it assigns to them.

Whoever runs or rewrites a graph asks `check_state` first: a graph whose variables do not have one
meaning each has no value, and no rewriting of it has. And which nodes compute a value and nothing
else, so that passes may merge or evaluate them.
"""

from __future__ import annotations

from collections.abc import Iterator

from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import Node, describe
from loopnest.graph.node_origins import place_of
from loopnest.graph.program import Graph, body_of, require_graph
from loopnest.graph.registry import call, get_attr, get_op, is_inferred
from loopnest.graph.structural import node_key

_CHECKED = "_state_is_checked"
_PURE = "pure"
"""An attribute of an op; False for one whose calls are never merged, folded or moved (random)."""


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


def is_pure(node: Node) -> bool:
    """Whether equal operands always give the node's value; of a fused call, whether its body is.

    `assign` counts as pure: its value is that of its operand, state changes after the evaluation.
    """
    if node.op == "fused":
        return body_is_pure(body_of(node))
    pure: bool = get_attr(node, _PURE, True)
    return pure


def body_is_pure(body: Graph) -> bool:
    """Whether every node of a graph is pure; kept on the graph, since it does not change."""
    found: bool | None = body.__dict__.get("_pure")
    if found is None:
        found = all(is_pure(node) for node in body.nodes)
        body.__dict__["_pure"] = found
    return found


def has_state(node: Node) -> bool:
    """Whether a node reads or assigns a variable, or its body does."""
    if node.op == "fused":
        return bool(_of_body(body_of(node)))
    return node.op in ("assign", "variable")


def check(graph: Graph) -> Graph:
    """Return `graph` if it is well-formed.

    Every op is registered, has the operands and attributes that it takes, and the type that
    follows from them; every var is an input; a variable has one first value and is assigned at
    most once; in a fused body the same holds, and its parameters have the types of the operands.

    Raises:
        GraphError: it is not; the subject is the graph and the node.
    """
    for node in require_graph(graph, "check").nodes:
        _check_node(graph, node)
    check_state(graph)
    for node in graph.calls:
        check(body_of(node))
    return graph


def _check_node(graph: Graph, node: Node) -> None:
    if is_inferred(node):
        return
    subject = f"graph {graph.name}, node {describe(node)}{place_of(node)}"
    try:
        definition = get_op(node.op)
        again = call(node.op, node.inputs, node.attrs)
    except GraphError as error:
        raise GraphError(subject, error.reason, error.hint) from None
    if again.type != node.type:
        raise GraphError(
            subject, f"its type is {node.type}, inference gives {again.type}", "use G.call"
        )
    if set(again.attrs) != set(node.attrs):
        raise GraphError(subject, f"attributes are missing, op {definition.name} has more")
