"""A graph whose ops that a kernel can compute together are calls of functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from loopnest.graph.dimensions import Shape
from loopnest.graph.leaves import make_tuple
from loopnest.graph.node import Node
from loopnest.graph.node_origins import made_for, origin_of, postorder
from loopnest.graph.operators.movement_ops import reshape
from loopnest.graph.passes.decompose import decomposed
from loopnest.graph.program import Graph, body_of, call_graph
from loopnest.graph.registry import rebuild
from loopnest.graph.rewriting import inline_call
from loopnest.graph.structural import Key, structural_key
from loopnest.graph_kernels.code_gen import current_target, schedule_target
from loopnest.graph_kernels.free_ops import FREE
from loopnest.graph_kernels.kernel_groups import (
    VIEWS,
    GroupLimits,
    KernelGroups,
    kernel_body,
    operands_of,
)


def kernel_fusion(graph: Graph, library: bool) -> Graph:
    """Return a graph whose groups are calls: see `loopnest.graph.KernelFusion`."""
    limits = GroupLimits(schedule_target(current_target()), library)
    found = grouped(inlined(graph), limits).graph
    return found.with_attrs(subgraph={node: body_of(node) for node in found.calls})


def inlined(graph: Graph) -> Graph:
    """Return a graph with the bodies of its calls in their places; itself where it has none."""
    while graph.calls:
        done: dict[Node, Node] = {}
        for node in graph.nodes:
            inputs = [done[x] for x in node.inputs]
            whole = node.inputs[0] if node.op == "get_item" else None
            if whole is not None and whole.op == "fused" and inputs[0].op == "tuple":
                done[node] = inputs[0].inputs[node.attrs["index"]]
                continue
            done[node] = rebuild(node, inputs)
            if node.op == "fused":
                found = inline_call(done[node])
                done[node] = found[0] if len(found) == 1 else make_tuple(*found)
        graph = graph.changed(graph.inputs, [done[x] for x in graph.outputs])
    return graph


def values_for_assignments(graph: Graph) -> Graph:
    """Return a graph in which nothing but outputs reads an assignment: all else reads its value.

    So a new value and what is computed from it can share a kernel. Assignments that are part of no
    output then follow as outputs of their own.
    """
    done: dict[Node, Node] = {}
    for node in graph.nodes:
        inputs = [done[x] for x in node.inputs]
        if node.op not in ("group", "tuple"):
            inputs = [x.inputs[1] if x.op == "assign" else x for x in inputs]
        done[node] = rebuild(node, inputs)
    outputs = [done[x] for x in graph.outputs]
    reached = set(postorder(outputs))
    own = dict.fromkeys([done[x] for x in graph.nodes if x.op == "assign"])
    return graph.changed(graph.inputs, [*outputs, *[x for x in own if x not in reached]])


@dataclass(frozen=True, slots=True)
class Grouping:
    """A graph of calls, and the ops of the graph before that each of them computes."""

    graph: Graph
    members: Mapping[Node, Sequence[Node]]
    groups: Sequence[Sequence[Node]]


def grouped(
    graph: Graph,
    limits: GroupLimits,
    single: frozenset[Node] = frozenset(),
    known: Sequence[Sequence[int]] | None = None,
) -> Grouping:
    """Return a graph with each group as a call of a function.

    Groups of equal structure call one body, so that it is compiled once.

    Args:
        graph: decomposed, without calls of functions.
        limits: what groups are made for.
        single: ops that stay alone.
        known: the groups, by the numbers of their nodes, where they are known already.
    """
    groups = KernelGroups(graph, limits, single, known)
    bodies = _SharedBodies()
    done: dict[Node, Node] = {}
    computed: dict[Node, Sequence[Node]] = {}
    stack = [(node, False) for node in reversed((*graph.inputs, *graph.outputs))]
    while stack:
        node, ready = stack.pop()
        if node in done:
            continue
        members = groups.group.get(node)
        if members is None and node.op in FREE and not _is_view(node, graph, groups):
            members = [node]  # it is an output, or read by what is no kernel
        args = node.inputs if members is None else operands_of(members)
        if not ready:
            stack.append((node, True))
            stack += [(x, False) for x in reversed(args)]
        elif members is None:
            done[node] = rebuild(node, [done[x] for x in args])
        else:
            outputs = groups.outputs_of(members) if node in groups.group else [node]
            with made_for(origin_of(members[-1])):
                body = bodies.of(members, outputs)
                pairs = zip(args, body.inputs, strict=True)
                call = call_graph(body, [_in_shape(done[x], p.shape) for x, p in pairs])
                computed[call] = members
                for number, output in enumerate(outputs):
                    found = call if len(outputs) == 1 else call[number]
                    done[output] = _in_shape(found, output.shape)
    result = graph.changed(graph.inputs, [done[x] for x in graph.outputs])
    return Grouping(result, computed, groups.groups)


def _in_shape(node: Node, shape: Shape) -> Node:
    """Return what lies in memory in another shape."""
    return node if node.shape == shape else decomposed(reshape(node, shape))


def _is_view(node: Node, graph: Graph, groups: KernelGroups) -> bool:
    """Whether no kernel needs to compute a free op: its readers find it in its operand's memory."""
    if node.op in VIEWS:
        return True
    if node.op not in ("strided_view", "transpose") or node in graph.outputs:
        return False
    readers = [x for x in graph.users[node] if x not in groups.group]
    return not any(x.is_tuple or x.op in FREE or x.op in VIEWS for x in readers)


class _SharedBodies:
    """The functions of one graph, one for all groups of a structure."""

    def __init__(self) -> None:
        self._known: dict[Key, Graph] = {}
        self._names = (f"kernel{i}" for i in count())
        self._next = next(self._names)

    def of(self, members: list[Node], outputs: list[Node]) -> Graph:
        body = kernel_body(members, outputs, self._next)
        found = self._known.setdefault(structural_key(body), body)
        if found is body:
            self._next = next(self._names)
        return found
