"""Why two ops fuse, or why they do not: the partition of `FuseOps` in a sentence."""

from __future__ import annotations

from importlib import import_module
from typing import overload

from loopnest.graph.graph_error import GraphError
from loopnest.graph.node import LEAVES, Node, describe
from loopnest.graph.node_origins import postorder
from loopnest.graph.passes.fuse_ops import (
    ForwardGraph,
    FuseOps,
    GroupMerge,
    MergeRefusal,
    Partition,
    Rule,
    Why,
    depth_of,
    detect,
)
from loopnest.graph.passes.manager import PassContext
from loopnest.graph.program import Graph
from loopnest.graph.registry import Pattern
from loopnest.graph.state import check_state


@overload
def explain_fusion(
    graph: Graph,
    a: Node,
    b: Node,
    /,
    *,
    fuse_opt_level: int = ...,
    max_depth: int | None = ...,
    kernels: bool = ...,
    library: bool = ...,
) -> str: ...
@overload
def explain_fusion(
    a: Node,
    b: Node,
    /,
    *,
    fuse_opt_level: int = ...,
    max_depth: int | None = ...,
    kernels: bool = ...,
    library: bool = ...,
) -> str: ...
def explain_fusion(
    *ends: Graph | Node,
    fuse_opt_level: int = 2,
    max_depth: int | None = None,
    kernels: bool = False,
    library: bool = False,
) -> str:
    """Return why `FuseOps` puts two ops of a graph into one group, or why it does not.

    With `kernels` it says so of the groups of `KernelFusion`: the kernels that `G.compile` makes.

    ``explain_fusion(graph, a, b)``: what is fused depends on every reader of a value, thus on the
    graph. ``explain_fusion(a, b)`` is about the graph of all that the two reach, whose outputs
    are those of the two that the other does not read.

    Args:
        ends: the graph, before fusion, and two of its nodes.
        fuse_opt_level: as of `FuseOps`.
        max_depth: as of `FuseOps`.
        kernels: whether the groups of `KernelFusion` are meant.
        library: as of `KernelFusion`, whose groups are meant.

    Returns:
        A sentence that names nodes, pattern kinds and the phase.

    Raises:
        GraphError: a node that is none of the graph, or an argument out of range.

    >>> from loopnest.graph import exp, sum, var
    >>> x = var("x", (4,))
    >>> y = exp(x)
    >>> print(explain_fusion(y, sum(y)))
    exp(x) [ELEMWISE] and sum(exp(…)) [REDUCTION] fuse: phase 0 merged exp(x) with its \
post-dominator sum(exp(…)) by the rule for pointwise ops (edges are at most REDUCTION, ops between \
at most INJECTIVE)
    """
    graph, a, b = _unpacked(ends)
    if kernels:
        room = import_module("loopnest.graph_kernels.group_reasons")
        reason: str = room.kernel_reason(graph, a, b, library)
        return reason
    ctx = PassContext.current()
    given = FuseOps(fuse_opt_level, max_depth)  # checks them
    check_state(graph)
    level = ctx.opt_level if fuse_opt_level < 0 else fuse_opt_level
    depth = depth_of(given.max_depth, ctx)
    return _Explainer(*detect(graph, level, depth), depth).sentence(a, b)


def _unpacked(ends: tuple[Graph | Node, ...]) -> tuple[Graph, Node, Node]:
    graph, nodes = (ends[0], ends[1:]) if ends and isinstance(ends[0], Graph) else (None, ends)
    if len(nodes) != 2 or not all(isinstance(node, Node) for node in nodes):
        kinds = ", ".join(type(end).__name__ for end in ends)
        raise GraphError(
            f"explain_fusion({kinds})", "it takes a graph and two nodes", "write (graph, a, b)"
        )
    a, b = [node for node in nodes if isinstance(node, Node)]
    if graph is None:
        reached = [{x for x in postorder([node]) if x is not node} for node in (a, b)]
        outputs = [node for node, other in ((a, reached[1]), (b, reached[0])) if node not in other]
        inputs = [x for x in postorder(outputs) if x.op == "var"]
        graph = Graph(inputs, list(dict.fromkeys(outputs)))
    for node in (a, b):
        if node not in graph.index:
            raise GraphError(
                f"explain_fusion({describe(a)}, {describe(b)})",
                f"{describe(node)} is no node of graph {graph.name}",
                "take nodes of the graph before fusion",
            )
    return graph, a, b


_RULES = {
    Rule.HEAVY: "the rule for heavy ops (all edges are ELEMWISE, all ops at most BROADCAST)",
    Rule.POINTWISE: "the rule for pointwise ops (edges are at most REDUCTION, ops between at most "
    "INJECTIVE)",
    Rule.INJECTIVE: "the rule for injective ops (all ops are at most INJECTIVE)",
    Rule.INTO_TUPLE: "the rule for tuples (the tuple was fused into injective ops before)",
}


_OPAQUE = MergeRefusal(0, Why.OPAQUE)


class _Explainer:
    """A partition and the words for it."""

    def __init__(self, ops: ForwardGraph, groups: Partition, max_depth: int) -> None:
        self.ops, self.groups, self.max_depth = ops, groups, max_depth
        self.number = {node: i for i, node in enumerate(ops.nodes)}

    def sentence(self, a: Node, b: Node) -> str:
        for node in (a, b):
            if node.op in LEAVES:
                return (
                    f"{describe(node)} is a {node.op}, which belongs to no group: a group takes "
                    f"it as a parameter, and copies a scalar constant"
                )
        i, j = self.number[a], self.number[b]
        both = f"{self._shown(i)} and {self._shown(j)}"
        if i == j:
            return f"{self._shown(i)} is one op"
        for number in (i, j):
            if self.ops.patterns[number] is Pattern.OPAQUE:
                return f"{both} do not fuse: {self._refused(number, _OPAQUE)}"
        first, second = [self.groups.leaders[n] for n in (i, j)]
        if first == second:
            return f"{both} fuse: {self._merged(self._first_merge(i, j))}"
        end, start = (first, i) if first < second else (second, j)
        ends = (
            "" if end == start else f"the group of {self._name(start)} ends at {self._name(end)}: "
        )
        return f"{both} do not fuse: {ends}{self._refused(end, self.groups.refusals[end])}"

    def _name(self, number: int) -> str:
        return describe(self.ops.nodes[number])

    def _shown(self, number: int) -> str:
        return f"{self._name(number)} [{self.ops.patterns[number].name}]"

    def _first_merge(self, i: int, j: int) -> GroupMerge:
        """Return the merge that brought two ops of one group together."""
        up = list(range(len(self.ops)))

        def find(number: int) -> int:
            while up[number] != number:
                number = up[number]
            return number

        for merge in self.groups.merges:
            for number in (merge.source, *merge.between):
                up[find(number)] = find(merge.sink)
            if find(i) == find(j):
                return merge
        raise AssertionError("ops of one group were merged")

    def _merged(self, merge: GroupMerge) -> str:
        between = [self._shown(number) for number in merge.between]
        middle = f" and what lies between ({', '.join(between[:4])}" if between else ""
        middle += ", …)" if len(between) > 4 else ")" if between else ""
        return (
            f"phase {merge.phase} merged {self._name(merge.source)} with its post-dominator "
            f"{self._name(merge.sink)}{middle} by {_RULES[merge.rule]}"
        )

    def _refused(self, end: int, refusal: MergeRefusal) -> str:
        name, sink = self._name(end), self.groups.parents[end]
        reasons = {
            Why.LEVEL: "fuse_opt_level 0 leaves every op in a group of its own, before phase 0",
            Why.OPAQUE: f"{name} is OPAQUE, which no phase fuses with anything",
            Why.OUTPUT: f"{name} is an output of the graph, where a group ends in every phase",
            Why.SCATTERED: f"{name} has no post-dominator (the ways from it to the outputs do not "
            f"meet in one op), so that no phase fuses it",
            Why.REDUCTION: f"{name} is a REDUCTION, which no phase fuses with what reads it",
        }
        if refusal.why in reasons:
            return reasons[refusal.why]
        where = f"phase {refusal.phase} did not merge {name} with its post-dominator "
        return f"{where}{self._name(sink)}, because {self._because(end, sink, refusal)}"

    def _because(self, end: int, sink: int, refusal: MergeRefusal) -> str:
        if refusal.why is Why.TUPLE:
            return "that is a TUPLE which was fused with nothing that reads it"
        if refusal.why is Why.DEPTH:
            return f"their group would have {refusal.at} ops or more, max_depth is {self.max_depth}"
        assert refusal.rule is not None
        if refusal.why is Why.EDGE:
            number, pattern = self._largest_edge(end, sink)
            found = f"the edge into {self._shown(number)} is {pattern.name}"
            heavy = refusal.rule is Rule.HEAVY and pattern is Pattern.OUT_ELEMWISE_FUSABLE
        else:
            heavy = refusal.rule is Rule.HEAVY and refusal.anchored >= 0
            found = f"{self._shown(refusal.at)} is in a group that is {refusal.pattern.name}"
            if refusal.anchored >= 0 and refusal.anchored != refusal.at:
                found += f" by {self._name(refusal.anchored)}"
        if heavy:
            return f"{found}: two heavy ops never share a group"
        return f"{found}, against {_RULES[refusal.rule]}"

    def _largest_edge(self, source: int, sink: int) -> tuple[int, Pattern]:
        """Return the edge with the largest pattern on the ways between two ops, and its reader."""
        found, largest = sink, Pattern.ELEMWISE
        pending, seen = [source], {source}
        while pending:
            for number, pattern in self.ops.edges[pending.pop()]:
                if pattern > largest:
                    found, largest = number, pattern
                if number not in seen and number != sink:
                    seen.add(number)
                    pending.append(number)
        return found, largest
