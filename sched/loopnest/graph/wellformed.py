"""The well-formedness of a graph: what every pass must keep."""

from __future__ import annotations

from loopnest.graph.errors import GraphError
from loopnest.graph.graph import Graph, body_of
from loopnest.graph.node import Node, describe
from loopnest.graph.registry import call, get_op
from loopnest.graph.structural import node_key


def check(graph: Graph) -> Graph:
    """Return `graph` if it is well-formed.

    Every op is registered, has the operands and attributes that it takes, and the type that
    follows from them; every var is an input; a variable has one first value and is assigned at
    most once; in a fused body the same holds, and its parameters have the types of the operands.

    Raises:
        GraphError: it is not; the subject is the graph and the node.
    """
    for node in graph.nodes:
        _check_node(graph, node)
    _check_state(graph)
    for node in graph.calls:
        check(body_of(node))
    return graph


def _check_node(graph: Graph, node: Node) -> None:
    subject = f"graph {graph.name}, node {describe(node)}"
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


def _check_state(graph: Graph) -> None:
    """Check that names of variables mean one thing, and that each is assigned once."""
    states: dict[str, Node] = {}
    assigned: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op == "variable":
            name = node.attrs["variable"]
            other = states.setdefault(name, node)
            if other is not node and node_key(other) != node_key(node):
                raise GraphError(f"graph {graph.name}", f"two variables are called {name}")
    for node in assignments(graph):
        name = node.attrs["variable"]
        if assigned.setdefault(name, node) is not node:
            raise GraphError(
                f"graph {graph.name}, node {describe(node)}",
                f"the variable {name} is assigned twice",
                "its new value is one node",
            )


def assignments(graph: Graph) -> list[Node]:
    """Return the assign nodes of a graph, those in fused bodies included."""
    found: list[Node] = []
    for node in graph.nodes:
        if node.op == "assign":
            found.append(node)
        elif node.op == "fused":
            found += assignments(body_of(node))
    return found
