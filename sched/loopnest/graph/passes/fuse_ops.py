"""FuseOps: ops that one kernel can compute become one function.

The design is that of TVM's pass (src/relay/transforms/fuse_ops.cc, to v0.18): an indexed forward
graph (`indexed_graph`), its post-dominator tree and three phases that merge ops with their
post-dominators by union-find (`fuse_ops_groups`), and here a graph that calls one function a group.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import count
from threading import Lock

from loopnest.graph.graph_error import GraphError
from loopnest.graph.leaves import var
from loopnest.graph.node import Node
from loopnest.graph.passes.context import PassContext
from loopnest.graph.passes.decorators import register_pass
from loopnest.graph.passes.fuse_ops_groups import Partition, partition
from loopnest.graph.passes.indexed_graph import ForwardGraph, forward_graph
from loopnest.graph.passes.info import PassInfo
from loopnest.graph.passes.manager import FunctionPass
from loopnest.graph.passes.module import Unit
from loopnest.graph.passes.options import register_option
from loopnest.graph.program import Graph, body_of, call_graph
from loopnest.graph.registry import rebuild
from loopnest.graph.structural import Key, node_key, structural_key

register_option(
    "FuseOps.max_depth", 256, doc="the largest number of ops in a group, an integer >= 1"
)

_KEPT = 32
"""So many partitions are remembered; the key of one takes about 400 bytes an op."""

_PARTITIONS: OrderedDict[Hashable, Partition] = OrderedDict()
_LOCK = Lock()


class FuseOps(FunctionPass):
    """Turn groups of ops that one kernel can compute into functions.

    Every op that computes then stands in a function, alone where nothing fuses with it; tuples,
    and fields of tuples from other functions, stay between them. Calls of functions are left as
    they are, so that a second run changes nothing.

    Args:
        fuse_opt_level: 0 makes a function of every single op; from 1 on groups are fused; -1 takes
            the `opt_level` of the context.
        max_depth: the largest number of ops in a group; None takes the option
            ``FuseOps.max_depth``, which is 256.

    Raises:
        GraphError: an argument out of range.

    >>> from loopnest.graph import tanh, var
    >>> x = var("x", (4,))
    >>> g = FuseOps()(Graph([x], [tanh(x * x + 1.0)]))
    >>> g.outputs, g.functions[0].outputs
    ((<@fused0(x): float32[4]>,), (<tanh(add(…)): float32[4]>,))

    Source: TVM's `relay.transform.FuseOps` (src/relay/transforms/fuse_ops.cc, to v0.18).
    """

    info = PassInfo("FuseOps", opt_level=1)

    def __init__(self, fuse_opt_level: int = 2, max_depth: int | None = None) -> None:
        _check_integer("fuse_opt_level", fuse_opt_level, -1)
        if max_depth is not None:
            _check_integer("max_depth", max_depth, 1)
        self.fuse_opt_level, self.max_depth = fuse_opt_level, max_depth

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        level = ctx.opt_level if self.fuse_opt_level < 0 else self.fuse_opt_level
        return fused_graph(func, *detect(func, level, depth_of(self.max_depth, ctx)))


class NnvmFusion(FuseOps):
    """FuseOps under the name that NNVM gave it: the result knows its ``subgraph``.

    ``graph.attrs["subgraph"]`` maps each call of a function to its body.
    """

    info = PassInfo("Fusion", opt_level=1, provides=("subgraph",))

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        graph = super().transform_function(func, mod, ctx)
        if "subgraph" in graph.attrs:
            return graph
        return graph.with_attrs(subgraph={node: body_of(node) for node in graph.calls})


def detect(graph: Graph, level: int, max_depth: int) -> tuple[ForwardGraph, Partition]:
    """Return the forward graph and its groups, those of an equal structure if they are known."""
    ops = forward_graph(graph)
    key = (structural_key(graph), ops.patterns, min(level, 1), max_depth)
    with _LOCK:
        found = _PARTITIONS.pop(key, None) or partition(ops, max_depth, level)
        _PARTITIONS[key] = found  # the newest last
        while len(_PARTITIONS) > _KEPT:
            _PARTITIONS.popitem(last=False)
    return ops, found


def depth_of(max_depth: int | None, ctx: PassContext) -> int:
    """Return the largest number of ops in a group.

    Raises:
        GraphError: the option of the context is out of range.
    """
    if max_depth is not None:
        return max_depth
    found: int = ctx.option("FuseOps.max_depth")
    return _check_integer("max_depth", found, 1)


def _check_integer(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise GraphError(f"FuseOps({name}={value!r})", f"it must be an integer >= {least}")
    return value


register_pass("FuseOps", FuseOps)
register_pass("Fusion", NnvmFusion)


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
