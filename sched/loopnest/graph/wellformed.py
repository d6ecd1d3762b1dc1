"""The well-formedness of a graph: what every pass must keep."""

from __future__ import annotations

from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import Node, describe
from loopnest.graph.node_origins import place_of
from loopnest.graph.program import Graph, body_of, require_graph
from loopnest.graph.registry import call, get_op, is_inferred
from loopnest.graph.state import check_state


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
