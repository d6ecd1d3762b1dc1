"""Value numbering: equal numbers are equal computations, whatever nodes stand for them.

Two nodes have one number if they apply equal ops (with equal attributes, such as axes) to operands
of equal numbers. Vars are equal by name and type, so that graphs which share no nodes can be
compared; constants are equal by value. Operands of commutative ops have no order; a field of a
tuple is the field itself; a call of a fused group is what its body computes.

Source: Click, "Global Code Motion, Global Value Numbering", 1995.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from loopnest.base.errors import kind_of
from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import Node
from loopnest.graph.program import Graph, body_of
from loopnest.graph.registry import get_attr
from loopnest.graph.state import is_pure
from loopnest.graph.structural import node_key


class Numbering:
    """Numbers of values, over any number of graphs; they are counted from 0."""

    def __init__(self) -> None:
        self._numbers: dict[Node, int] = {}
        self._table: dict[Hashable, int] = {}
        self._fields: dict[int, tuple[int, ...]] = {}

    def add(self, roots: Iterable[Node]) -> None:
        """Give numbers to all that `roots` reach and that has none yet."""
        numbers = self._numbers
        for root in roots:
            stack = [root]
            while stack:
                node = stack[-1]
                missing = [x for x in node.inputs if x not in numbers]
                if missing:
                    stack += missing[::-1]
                    continue
                if node not in numbers:
                    numbers[node] = self._value(node, [numbers[x] for x in node.inputs])
                stack.pop()

    def __getitem__(self, node: Node) -> int:
        """Return the number of a node that was added."""
        return self._numbers[node]

    def _value(self, node: Node, operands: Sequence[int]) -> int:
        if node.op == "fused" and is_pure(node):
            return self._called(node, operands)
        if node.op in ("tuple", "group"):
            return self._tuple(operands)
        if node.op == "get_item" and operands[0] in self._fields:
            return self._fields[operands[0]][node.attrs["index"]]
        if node.op == "var":
            return self._number(("var", node.name, node.type))
        if not is_pure(node):
            return self._number(("impure", node))
        if get_attr(node, "commutative", False):
            operands = sorted(operands)
        return self._number((node_key(node), *operands))

    def _called(self, node: Node, operands: Sequence[int]) -> int:
        body = body_of(node)
        inner = dict(zip(body.inputs, operands, strict=True))
        for step in body.nodes:
            if step not in inner:
                inner[step] = self._value(step, [inner[x] for x in step.inputs])
        outputs = [inner[x] for x in body.outputs]
        return outputs[0] if len(outputs) == 1 else self._tuple(outputs)

    def _tuple(self, fields: Sequence[int]) -> int:
        number = self._number(("fields", *fields))
        self._fields[number] = tuple(fields)
        return number

    def _number(self, key: Hashable) -> int:
        return self._table.setdefault(key, len(self._table))


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
