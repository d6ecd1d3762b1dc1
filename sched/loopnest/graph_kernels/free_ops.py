"""Ops that cost nothing inside of a kernel: each group computes them for itself."""

from __future__ import annotations

from loopnest.graph.node import Node
from loopnest.graph.node_origins import keep_origin
from loopnest.graph.program import Graph
from loopnest.graph.registry import rebuild

FREE = frozenset(
    (
        *("broadcast_to", "expand_dims", "full", "iota", "size", "squeeze", "strided_view"),
        *("transpose", "unfold"),
    )
)
"""Ops that every group computes for itself: they move or repeat, or read nothing."""


def read_apart(body: Graph) -> Graph:
    """Return a body whose free ops have one reader each; the same object where they have already.

        b = broadcast_to(p0, (2, 7))                   # p0: [7]
        y = add(b, expand_dims(b, 1))                  # y: [2, 2, 7]

    Here the axis along which `b` repeats is the axis 0 of `y` for one reader and 1 for the other,
    and a tensor of a nest has one loop for it. A `b` for each reader has its own.
    """
    done: dict[Node, Node] = {}

    def own(node: Node) -> Node:
        """Return a free op for one reader."""
        if node.op not in FREE:
            return done[node]
        return keep_origin(Node(node.op, tuple(map(own, node.inputs)), node.attrs, node.type), node)

    if all(node.op not in FREE or len(body.users[node]) < 2 for node in body.nodes):
        return body
    for node in body.nodes:
        if node.op not in FREE:
            done[node] = rebuild(node, list(map(own, node.inputs)))
    return body.changed(body.inputs, list(map(own, body.outputs)))
