"""The forward graph of fusion: ops by number, their users, and the pattern of each edge."""

from __future__ import annotations

from dataclasses import dataclass

from loopnest.graph.node import LEAVES, Node
from loopnest.graph.program import Graph
from loopnest.graph.registry import Pattern, pattern_of


@dataclass(frozen=True, slots=True)
class ForwardGraph:
    """The ops of a graph, numbered in its order (operands before users); leaves are no part.

    Attributes:
        nodes: the op of each number.
        patterns: its pattern.
        edges: its users, each once: (number, pattern of the edge).
        outputs: whether its value leaves the graph.

    An edge has the pattern of the op that reads, but for two: it is ELEMWISE where a BROADCAST op
    reads a tensor of the shape that it computes, and INJECTIVE into a tuple.

    Source: TVM's `IndexedForwardGraph` (src/relay/transforms/fuse_ops.cc, to v0.18).
    """

    nodes: tuple[Node, ...]
    patterns: tuple[Pattern, ...]
    edges: tuple[tuple[tuple[int, Pattern], ...], ...]
    outputs: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.nodes)


def forward_graph(graph: Graph) -> ForwardGraph:
    """Return the forward graph of `graph`, fused groups as ops that are OPAQUE."""
    ops = tuple([node for node in graph.nodes if node.op not in LEAVES])
    number = {node: i for i, node in enumerate(ops)}
    patterns = [_pattern(node) for node in ops]
    edges: list[dict[int, Pattern]] = [{} for _ in ops]
    for i, node in enumerate(ops):
        for operand in node.inputs:
            source = number.get(operand)
            if source is not None:
                edge = _edge(operand, node, patterns[i])
                edges[source][i] = max(edge, edges[source].get(i, edge))
    ends = set(graph.outputs)
    return ForwardGraph(
        ops,
        tuple(patterns),
        tuple([tuple(users.items()) for users in edges]),
        tuple([node in ends for node in ops]),
    )


def _pattern(node: Node) -> Pattern:
    nested = node.is_tuple if node.op == "get_item" else any(x.is_tuple for x in node.inputs)
    return Pattern.OPAQUE if nested else pattern_of(node)  # a group takes and gives tensors


def _edge(operand: Node, user: Node, pattern: Pattern) -> Pattern:
    if pattern is Pattern.TUPLE:
        return Pattern.INJECTIVE
    alike = not operand.is_tuple and operand.shape == user.shape
    return Pattern.ELEMWISE if alike and pattern is Pattern.BROADCAST else pattern
