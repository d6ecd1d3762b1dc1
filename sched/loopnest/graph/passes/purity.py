"""Which nodes compute a value and nothing else, so that passes may merge or evaluate them."""

from __future__ import annotations

from loopnest.graph.node import Node
from loopnest.graph.program import Graph, body_of
from loopnest.graph.registry import get_attr

_PURE = "pure"
"""An attribute of an op; False for one whose calls are never merged, folded or moved (random)."""


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
        return any(has_state(inner) for inner in body_of(node).nodes)
    return node.op in ("assign", "variable")
