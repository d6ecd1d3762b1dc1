"""FuseOps: ops that one kernel can compute become one function.

The design is that of TVM's pass (src/relay/transforms/fuse_ops.cc, to v0.18): an indexed forward
graph (ops by number, their users, and the pattern of each edge), its post-dominator tree and three
phases that merge ops with their post-dominators by union-find, on numbers alone, and a graph that
calls one function a group.

A group grows forward, from an op to its immediate post-dominator, together with every op on the
ways between: all of them are in it or none. All users of an op that is not the last of its group
are thus in the group, so that a group has one output and no way leaves it and comes back.

- Phase 0: a heavy op (OUT_ELEMWISE_FUSABLE), or a group with one, if all edges on the ways are
  ELEMWISE and all ops at most BROADCAST.
- Phases 0 and 1: an ELEMWISE or BROADCAST op, if the edges are at most REDUCTION, the ops between
  at most INJECTIVE and the end at most OUT_ELEMWISE_FUSABLE.
- Phase 1: an INJECTIVE op or a TUPLE, if all ops are at most INJECTIVE. It comes after phase 0, so
  that heavy ops get their pointwise ones first.
- Phase 2: an op that is at most INJECTIVE, into a tuple that phase 1 fused into injective ops.

"Ops" are groups here: an op counts with the pattern of the group that it is in by then, which is
that of its last op, or OUT_ELEMWISE_FUSABLE once such an op (its anchor) is in it. No rule lets a
second anchor in, so that two heavy ops never share a group. OPAQUE ops fuse with nothing, and a
REDUCTION with nothing that reads it.

Source: TVM's `GraphPartitioner` (src/relay/transforms/fuse_ops.cc, to v0.18: RunFuse, CheckPath,
CommitFuse).

Post-dominators of a forward graph: the first op that every way out of an op runs through.

The graph has no cycles, so that one walk against the edges builds the tree: the immediate
post-dominator of an op is the least common ancestor, in the tree so far, of its users. Ancestors
are found by jump pointers, one a node, in O(log n) steps; every pointer carries the pattern of the
way that it skips.

Sources: TVM's `DominatorTree` (src/relay/transforms/fuse_ops.cc, to v0.18: least common ancestors
over a DAG); Myers, "An applicative random-access stack", 1983 (jump pointers).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from threading import Lock

from loopnest.base.errors import InternalError
from loopnest.graph.graph_error import GraphError
from loopnest.graph.leaves import var
from loopnest.graph.node import LEAVES, Node
from loopnest.graph.passes.manager import (
    FunctionPass,
    PassContext,
    PassInfo,
    register_option,
    register_pass,
)
from loopnest.graph.program import Graph, Unit, body_of, call_graph
from loopnest.graph.registry import Pattern, pattern_of, rebuild
from loopnest.graph.structural import Key, node_key, structural_key


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


class Why(Enum):
    """Why an op was not fused with its post-dominator."""

    LEVEL = auto()  # fuse_opt_level is 0
    OPAQUE = auto()
    OUTPUT = auto()  # its value leaves the graph
    SCATTERED = auto()  # the ways out of it do not meet
    REDUCTION = auto()
    TUPLE = auto()  # the post-dominator is a tuple which nothing was fused with
    EDGE = auto()  # an edge on the way has too large a pattern
    OP = auto()  # a group on the way has
    DEPTH = auto()  # the group would have more than max_depth ops


class Rule(Enum):
    """What a phase asks; see the module."""

    HEAVY = auto()
    POINTWISE = auto()
    INJECTIVE = auto()
    INTO_TUPLE = auto()


_MOST = {
    Rule.HEAVY: (Pattern.BROADCAST, Pattern.BROADCAST),
    Rule.POINTWISE: (Pattern.INJECTIVE, Pattern.OUT_ELEMWISE_FUSABLE),
    Rule.INJECTIVE: (Pattern.INJECTIVE, Pattern.INJECTIVE),
    Rule.INTO_TUPLE: (Pattern.INJECTIVE, Pattern.INJECTIVE),
}
"""The largest patterns of groups on the ways, and at their end."""


@dataclass(frozen=True, slots=True)
class MergeRefusal:
    """An op that was not fused with its post-dominator, in the last phase that asked.

    Attributes:
        phase: 0 to 2.
        why: the reason.
        rule: what was asked; None where no rule was.
        at: of OP the number of the op whose group stands in the way; of DEPTH the number of ops
            at which the limit was passed.
        anchored: of OP, the anchor of that group, -1 for none.
        pattern: of OP, that of the group in the way.
    """

    phase: int
    why: Why
    rule: Rule | None = None
    at: int = -1
    anchored: int = -1
    pattern: Pattern = Pattern.OPAQUE


@dataclass(frozen=True, slots=True)
class GroupMerge:
    """An op that was fused with its post-dominator and the ops between, in a phase."""

    phase: int
    rule: Rule
    source: int
    sink: int
    between: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """Groups of the ops of a forward graph.

    Attributes:
        leaders: of each op, the number of the last op of its group.
        merges: what was fused, in order.
        refusals: of the last op of each group, why the group ends there.
        parents: of each op, its post-dominator (the number of ops for none).
    """

    leaders: tuple[int, ...]
    merges: tuple[GroupMerge, ...]
    refusals: dict[int, MergeRefusal]
    parents: tuple[int, ...]


def partition(graph: ForwardGraph, max_depth: int, level: int = 2) -> Partition:
    """Return the groups of a graph.

    Args:
        graph: the forward graph.
        max_depth: the largest number of ops of a group, >= 1.
        level: 0 leaves every op in a group of its own.
    """
    tree = PostDominators(graph)
    run = _PartitionRun(graph, tree, max_depth)
    if level == 0:
        run.refusals = {i: MergeRefusal(0, Why.LEVEL) for i in range(len(graph))}
    else:
        for phase in range(3):
            for number in range(len(graph)):
                run.visit(number, phase)
    leaders = [run.find(i) for i in range(len(graph))]
    ends = {i: run.refusals[i] for i in range(len(graph)) if leaders[i] == i}
    return Partition(tuple(leaders), tuple(run.merges), ends, tuple(tree.parents[:-1]))


class _PartitionRun:
    """Groups while they grow: union-find with the last op of each group as its leader."""

    def __init__(self, graph: ForwardGraph, tree: PostDominators, max_depth: int) -> None:
        count = len(graph)
        self.graph, self.tree, self.max_depth = graph, tree, max_depth
        self.merges: list[GroupMerge] = []
        self.refusals: dict[int, MergeRefusal] = {}
        self._up = list(range(count))
        self._size = [1] * count
        self._pattern = list(graph.patterns)  # of the group that an op leads, or last led
        heavy = Pattern.OUT_ELEMWISE_FUSABLE
        self._anchor = [i if p is heavy else -1 for i, p in enumerate(graph.patterns)]

    def find(self, number: int) -> int:
        """Return the leader of an op's group."""
        leader = number
        while self._up[leader] != leader:
            leader = self._up[leader]
        while self._up[number] != leader:
            self._up[number], number = leader, self._up[number]
        return leader

    def visit(self, source: int, phase: int) -> None:
        """Fuse an op with its post-dominator if the phase allows it."""
        own, sink = self._pattern[source], self.tree.parents[source]
        if own is Pattern.OPAQUE or own is Pattern.REDUCTION or sink == self.tree.root:
            self.refusals[source] = MergeRefusal(phase, self._at_end(own, source))
        elif self.find(source) != self.find(sink):
            if phase == 2:
                self._into_tuple(source, sink)
            else:
                self._forward(source, sink, phase)

    def _at_end(self, own: Pattern, source: int) -> Why:
        if own is Pattern.OPAQUE:
            return Why.OPAQUE
        if self.graph.outputs[source]:
            return Why.OUTPUT
        return Why.REDUCTION if own is Pattern.REDUCTION else Why.SCATTERED

    def _forward(self, source: int, sink: int, phase: int) -> None:
        """Try phase 0 or 1."""
        own, way = self._pattern[source], self.tree.patterns[source]
        if self._pattern[sink] is Pattern.TUPLE:
            self.refusals[source] = MergeRefusal(phase, Why.TUPLE)
        elif own is Pattern.OUT_ELEMWISE_FUSABLE:
            if phase == 0:
                self._try(source, sink, phase, Rule.HEAVY, way is Pattern.ELEMWISE)
        elif own <= Pattern.BROADCAST:
            self._try(source, sink, phase, Rule.POINTWISE, way <= Pattern.REDUCTION)
        elif phase == 1:
            self._try(source, sink, phase, Rule.INJECTIVE, True)

    def _into_tuple(self, source: int, sink: int) -> None:
        """Try phase 2."""
        end = self._pattern[self.find(sink)]
        fused = self._pattern[sink] is Pattern.TUPLE and end <= Pattern.INJECTIVE
        if fused and self._pattern[source] <= Pattern.INJECTIVE:
            self._try(source, sink, 2, Rule.INTO_TUPLE, True)

    def _try(self, source: int, sink: int, phase: int, rule: Rule, edges_fit: bool) -> None:
        if not edges_fit:
            self.refusals[source] = MergeRefusal(phase, Why.EDGE, rule)
            return
        found = self._between(source, sink, phase, rule)
        if isinstance(found, MergeRefusal):
            self.refusals[source] = found
            return
        for number in (source, *found):
            self._merge(number, sink)
        self.merges.append(GroupMerge(phase, rule, source, sink, found))

    def _between(
        self, source: int, sink: int, phase: int, rule: Rule
    ) -> tuple[int, ...] | MergeRefusal:
        """Return the ops between two, or what forbids to fuse them all."""
        between: list[int] = []
        groups = {self.find(source)}
        total = self._size[self.find(source)]
        pending, seen = [source], {source}
        while pending:
            for number, _ in self.graph.edges[pending.pop()]:
                if number in seen:
                    continue
                seen.add(number)
                leader = self.find(number)
                pattern = self._pattern[leader]
                if pattern > _MOST[rule][number == sink]:
                    return MergeRefusal(phase, Why.OP, rule, number, self._anchor[leader], pattern)
                total += 0 if leader in groups else self._size[leader]
                groups.add(leader)
                if total > self.max_depth:  # which also ends long walks
                    return MergeRefusal(phase, Why.DEPTH, rule, total)
                if number != sink:
                    between.append(number)
                    pending.append(number)
        return tuple(sorted(between))

    def _merge(self, number: int, sink: int) -> None:
        child, leader = self.find(number), self.find(sink)
        if child == leader:
            return
        self._up[child] = leader
        self._size[leader] += self._size[child]
        # The pattern of a group is that of its anchor once it has one: what joins later must ask
        # for the heavy op.
        if self._anchor[child] >= 0:
            if self._anchor[leader] >= 0:
                raise InternalError(
                    f"fusion of {self.graph.nodes[number]}", "two heavy ops came into one group"
                )
            self._anchor[leader] = self._anchor[child]
            self._pattern[leader] = max(self._pattern[leader], self._pattern[child])


class PostDominators:
    """The post-dominator tree of a graph, whose root stands behind all outputs.

    Attributes:
        parents: the number of each op's immediate post-dominator; that of the root, `len(graph)`,
            for ops whose ways out do not meet before the graph ends, and for its outputs.
        patterns: the largest pattern of an edge on the ways from each op to its parent (OPAQUE to
            the root).
    """

    def __init__(self, graph: ForwardGraph) -> None:
        root = len(graph)
        self.root = root
        self.parents = [root] * (root + 1)
        self.patterns: list[Pattern] = [Pattern.OPAQUE] * (root + 1)
        self._depth = [0] * (root + 1)
        self._jump = [root] * (root + 1)
        self._jumped: list[Pattern] = [Pattern.OPAQUE] * (root + 1)
        # Users first: the tree holds all of an op's users, so that their common ancestor is known.
        for number in reversed(range(root)):
            # The value leaves the graph here: no later op stands on all ways out.
            if graph.outputs[number]:
                self._insert(number, root, Pattern.OPAQUE)
            else:
                self._insert(number, *self._meeting(graph.edges[number]))

    def _insert(self, number: int, parent: int, pattern: Pattern) -> None:
        if parent == self.root:
            pattern = Pattern.OPAQUE
        self.parents[number], self.patterns[number] = parent, pattern
        self._depth[number] = self._depth[parent] + 1
        far = self._jump[parent]
        even = (
            self._depth[parent] - self._depth[far]
            == self._depth[far] - self._depth[self._jump[far]]
        )
        if even:  # two jumps of one length make one of twice the length
            self._jump[number] = self._jump[far]
            self._jumped[number] = max(pattern, self._jumped[parent], self._jumped[far])
        else:
            self._jump[number], self._jumped[number] = parent, pattern

    def _meeting(self, users: Sequence[tuple[int, Pattern]]) -> tuple[int, Pattern]:
        """Return where the ways through all users meet, and the largest pattern until there."""
        meeting, pattern = users[0]
        for user, edge in users[1:]:
            meeting, climbed = self._common_ancestor(meeting, user)
            pattern = max(pattern, edge, climbed)
        return meeting, pattern

    def _common_ancestor(self, a: int, b: int) -> tuple[int, Pattern]:
        """Return the least common ancestor of two ops, and the largest pattern on the way up."""
        pattern = Pattern.ELEMWISE
        if self._depth[a] < self._depth[b]:
            a, b = b, a
        while self._depth[a] > self._depth[b]:
            if self._depth[self._jump[a]] >= self._depth[b]:
                a, pattern = self._jump[a], max(pattern, self._jumped[a])
            else:
                a, pattern = self.parents[a], max(pattern, self.patterns[a])
        while a != b:  # ops of one depth jump to one depth
            # Different behind the jump: the meeting lies beyond it. The same: it lies at the jump
            # or before it, and one step is taken.
            if self._jump[a] != self._jump[b]:
                pattern = max(pattern, self._jumped[a], self._jumped[b])
                a, b = self._jump[a], self._jump[b]
            else:
                pattern = max(pattern, self.patterns[a], self.patterns[b])
                a, b = self.parents[a], self.parents[b]
        return a, pattern


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
