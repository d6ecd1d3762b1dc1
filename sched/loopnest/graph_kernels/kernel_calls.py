"""A graph as calls of groups that have kernels."""

from __future__ import annotations

from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import LEAVES, Node, describe
from loopnest.graph.node_origins import place_of
from loopnest.graph.passes.decompose import Decompose
from loopnest.graph.passes.eliminate_common_subexpr import EliminateCommonSubexpr
from loopnest.graph.passes.fold_constant import FoldConstant
from loopnest.graph.program import Graph
from loopnest.graph_kernels.code_gen import Generated, generated, schedule_target
from loopnest.graph_kernels.kept_groups import groups_key, keep_groups, read_groups
from loopnest.graph_kernels.kernel_fusion import grouped, inlined, values_for_assignments
from loopnest.graph_kernels.kernel_groups import VIEWS, GroupLimits
from loopnest.graph_kernels.op_math import lower_of

MEMORY = frozenset({"assign", "get_item", "group", "tuple"})
"""Ops that compute nothing: what they say is where values lie."""


def with_kernels(
    g: Graph, target: str, library: bool, fallback: bool, own: tuple[str, ...] = ()
) -> tuple[Graph, Generated]:
    """Return a graph of calls, and their kernels; a group that has none is taken apart.

    Args:
        g: the graph.
        target: "c", "interpret" or "cuda".
        library: whether products of matrices are left to a library.
        fallback: whether ops may stay without a kernel.
        own: products that are not left to it, by `product_of`.

    Raises:
        GraphError: an op has no kernel, and `fallback` is False.
    """
    made = g.attrs.get("generated")
    if "rtc" in g.attrs and isinstance(made, Generated) and not _assigns_inside(g):
        return g, made
    simple = EliminateCommonSubexpr()(FoldConstant()(inlined(Decompose()(g))))
    simple = values_for_assignments(simple)
    limits = GroupLimits(schedule_target(target), library, own)
    single: frozenset[Node] = frozenset()
    if not fallback:
        _check_lowered(simple)
    key = groups_key(simple, limits)
    kept = read_groups(key)
    if kept is not None:
        graph = grouped(simple, limits, known=kept.groups).graph
        return graph, kept.generated(graph)
    while True:
        grouping = grouped(simple, limits, single)
        found = generated(grouping.graph, target)
        apart = [x for call in found.refused for x in grouping.members[call]]
        if single.issuperset(apart):
            if found.refused and not fallback:
                raise _without_kernel(g, *next(iter(found.refused.items())))
            keep_groups(key, simple, grouping.groups, grouping.graph, found)
            return grouping.graph, found
        single = single.union(apart)


def _assigns_inside(graph: Graph) -> bool:
    """Whether a function of a graph assigns a variable."""
    return any(node.op == "assign" for body in graph.functions for node in body.nodes)


def _check_lowered(graph: Graph) -> None:
    """Check that every op can be math of a kernel, or is another shape of its operand.

    Raises:
        GraphError: one cannot; it names the node.
    """
    for node in graph.nodes:
        if node.op in LEAVES or node.op in VIEWS or node.op in MEMORY:
            continue
        if lower_of(node) is None:
            raise _without_kernel(graph, node, f"op {node.op} has no attribute 'lower'")


def _without_kernel(graph: Graph, node: Node, reason: str) -> GraphError:
    subject = f"compile({graph.name}, library=False), node {describe(node)}{place_of(node)}"
    return GraphError(subject, f"it has no kernel: {reason}", "pass library=True")
