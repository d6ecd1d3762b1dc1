"""Where a graph computes an expression."""

from __future__ import annotations

from loopnest.base.errors import kind_of
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import Node
from loopnest.graph.passes.numbering import Numbering
from loopnest.graph.program import Graph


def find(graph: Graph, expr: Node) -> tuple[Node, ...]:
    """Return the nodes of a graph that compute an expression, in the order of `Graph.nodes`.

    They are compared by kind of node and axes: the same ops, attributes and shapes down to the
    inputs, which are the same if they have the same name and type. Operands of commutative ops
    have no order. A fused group is found by what it computes, not by what its body computes on the
    way.

    Args:
        graph: the graph.
        expr: a node of this graph, or of any other.

    Raises:
        GraphError: `graph` is no graph, or `expr` no node.

    >>> from loopnest.graph import tanh, var
    >>> x, again = var("x", (3,)), var("x", (3,))
    >>> find(Graph([x], [tanh(x) * tanh(x)]), tanh(again))
    (<tanh(x): float32[3]>, <tanh(x): float32[3]>)

    Source: TVM's RFC "CSE Optimization" (discuss.tvm.apache.org/t/8130; `TensorExprTree.Find`).
    """
    if not isinstance(graph, Graph):
        raise GraphError("find(…)", f"it was given {kind_of(graph)}", "pass a G.Graph")
    if not isinstance(expr, Node):
        kind = type(expr).__name__
        raise GraphError(f"find({graph.name}, …)", f"the expression is a {kind}", "pass a node")
    numbers = Numbering()
    numbers.add([*graph.nodes, expr])
    return tuple([node for node in graph.nodes if numbers[node] == numbers[expr]])
