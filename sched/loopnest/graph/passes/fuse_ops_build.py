"""From groups of ops to a graph that calls one function a group."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import count

from loopnest.graph.leaves import var
from loopnest.graph.node import Node
from loopnest.graph.passes.fuse_ops_groups import Partition
from loopnest.graph.passes.indexed_graph import ForwardGraph
from loopnest.graph.program import Graph, call_graph
from loopnest.graph.registry import rebuild
from loopnest.graph.structural import Key, node_key, structural_key

_BARE = frozenset({"tuple", "group", "get_item", "fused"})
"""Ops that compute nothing by themselves: alone in a group they stay as they are."""


def fused_graph(graph: Graph, ops: ForwardGraph, groups: Partition) -> Graph:
    """Return `graph` with each group as a call of a function; itself where there is none.

    Scalar constants are copied into each body that reads them; everything else that a group reads
    is a parameter (``p0``, ``p1``…, in order of first use). Groups of equal structure call one
    body, so that it is compiled once.
    """
    members = _members(ops, groups)
    bodies = _Bodies(graph)
    done: dict[Node, Node] = {}
    stack = [(node, False) for node in reversed((*graph.inputs, *graph.outputs))]
    while stack:  # in the order of the new graph, so that bodies are numbered in it
        node, ready = stack.pop()
        if node in done:
            continue
        args = bodies.operands(members[node]) if node in members else node.inputs
        if not ready:
            stack.append((node, True))
            stack += [(x, False) for x in reversed(args)]
        elif node in members:
            done[node] = call_graph(bodies.of(members[node]), [done[x] for x in args])
        else:
            done[node] = rebuild(node, [done[x] for x in args])
    return graph.changed(graph.inputs, [done[x] for x in graph.outputs])


def _members(ops: ForwardGraph, groups: Partition) -> dict[Node, list[Node]]:
    """Return the group of each op that is to stand in a function; its last op is the output."""
    found: dict[int, list[Node]] = {}
    for node, leader in zip(ops.nodes, groups.leaders, strict=True):
        found.setdefault(leader, []).append(node)
    members: dict[Node, list[Node]] = {}
    for group in found.values():
        inside = set(group)
        # A parameter is a tensor: a field of a tuple from elsewhere is taken before the call.
        kept = [n for n in group if n.op != "get_item" or n.inputs[0] in inside]
        if len(kept) > 1 or (kept and _computes(kept[0])):
            members.update(dict.fromkeys(kept, kept))
    return members


def _computes(node: Node) -> bool:
    """Whether an op that is alone in its group is to stand in a function."""
    return node.op not in _BARE and not any(x.is_tuple for x in node.inputs)


class _Bodies:
    """The functions of one graph, one for all groups of a structure."""

    def __init__(self, graph: Graph) -> None:
        self._known: dict[Key, Graph] = {}
        self._seen: dict[Key, Graph] = {}
        self._operands: dict[Node, list[Node]] = {}
        taken = {body.name for body in graph.functions}  # by an earlier run
        names = (f"fused{i}" for i in count())
        self._names = (name for name in names if name not in taken)
        self._next = next(self._names)

    def operands(self, group: Sequence[Node]) -> Sequence[Node]:
        """Return what a group reads from outside as parameters, in order of first use."""
        last = group[-1]
        if last not in self._operands:
            inside = set(group)
            found = dict.fromkeys([x for node in group for x in node.inputs])
            self._operands[last] = [x for x in found if x not in inside and not _is_number(x)]
        return self._operands[last]

    def of(self, group: Sequence[Node]) -> Graph:
        """Return the body of a group."""
        key = self._group_key(group)
        if key not in self._seen:
            body = self._built(group)
            # In another order of its ops a group has another key, and yet may have a known body.
            self._seen[key] = self._known.setdefault(structural_key(body), body)
            if self._seen[key] is body:
                self._next = next(self._names)
        return self._seen[key]

    def _group_key(self, group: Sequence[Node]) -> Key:
        args = self.operands(group)
        place: dict[Node, Hashable] = {x: i for i, x in enumerate((*args, *group))}
        key: list[Hashable] = [x.type for x in args]
        for node in group:
            key += [node_key(node), *[place[x] if x in place else node_key(x) for x in node.inputs]]
        return tuple(key)

    def _built(self, group: Sequence[Node]) -> Graph:
        inner: dict[Node, Node] = {}
        for i, x in enumerate(self.operands(group)):
            inner[x] = var(f"p{i}", x.shape, x.dtype)
        params = list(inner.values())
        for node in group:
            inputs = tuple([inner.get(x, x) for x in node.inputs])
            # Operands keep their types, so that nothing is to be inferred anew.
            inner[node] = Node(node.op, inputs, node.attrs, node.type, node.name)
        return Graph(params, [inner[group[-1]]], self._next)


def _is_number(node: Node) -> bool:
    return node.op == "const" and not node.ndim
