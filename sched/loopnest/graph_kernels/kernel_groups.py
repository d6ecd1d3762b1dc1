"""Which ops of a graph one kernel computes: groups that a scheduler accepts, without cycles.

Ops are taken in topological order; each tries to join the groups that its operands come from, and
then those that read what it reads. Whether a group can be one kernel is asked of the core: its
fusion is built, and `scheduled_by` finds a scheduler or not. Nothing about reductions, broadcasts
or contractions is decided here.

What costs nothing is no member but stands in every group that reads it: scalar constants, `full`,
and ops that only repeat, insert or permute axes. A reshape between members stands in their group,
whose body does without it (`reshaped_bodies`); any other is another shape of what lies in memory.
A transpose that such a reshape reads is stored by the kernel of what it moves, if it keeps rows
whole.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from loopnest.errors import LoopnestError
from loopnest.graph.cost import bytes_of
from loopnest.graph.dimensions import typical
from loopnest.graph.leaves import var
from loopnest.graph.node import LEAVES, Node
from loopnest.graph.node_origins import keep_origin
from loopnest.graph.program import Graph
from loopnest.graph.structural import structural_key
from loopnest.graph_kernels.axis_parts import NoCommonAxes
from loopnest.graph_kernels.free_ops import FREE
from loopnest.graph_kernels.group_math import scheduled_by
from loopnest.graph_kernels.op_math import lower_of
from loopnest.graph_kernels.reshaped_bodies import without_reshapes
from loopnest.schedulers import Processor, Scheduler

VIEWS = frozenset({"expand_dims", "reshape", "squeeze"})
"""Ops whose value is their operand's memory under another shape."""

PASSED = FREE | VIEWS
"""Ops that may stand between members of a group."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What groups are made for.

    Args:
        target: "c" or "cuda".
        library: whether products of matrices are left to a library.
        own: products that are not, by `product_of`, in order.
        most: the largest number of ops in a group.
        processor: what schedulers choose by.
    """

    target: str = "c"
    library: bool = False
    own: tuple[str, ...] = ()
    most: int = 64
    processor: Processor = field(default_factory=Processor)


def is_member(node: Node, limits: GroupLimits) -> bool:
    """Whether a node is computed by a kernel that is made for it."""
    if node.op in LEAVES or node.op in FREE or node.is_tuple or lower_of(node) is None:
        return False
    return not is_left(node, limits)


def is_left(node: Node, limits: GroupLimits) -> bool:
    """Whether a node is left to a library."""
    return limits.library and is_library(node) and product_of(node) not in limits.own


def product_of(node: Node) -> str:
    """Return the name of a product of matrices: what its time follows from.

    An operand that is transposed is one that lies so in memory.
    """
    operands = []
    for x in node.inputs:
        moved = f" by {x.attrs['axes']}" if x.op == "transpose" else ""
        operands.append(f"{x.type}{moved}")
    return f"{node.op}({', '.join(operands)})"


def is_library(node: Node) -> bool:
    """Whether a library computes a node: a product of matrices of floats that it knows.

    A convolution has a kernel: NumPy would write out its windows first, which takes longer.
    """
    return node.op == "matmul" and node.dtype.name in ("float32", "float64")


def is_number(node: Node) -> bool:
    """Whether a node is a scalar constant, which stands in the text of a kernel."""
    return node.op == "const" and not node.ndim


def operands_of(members: Iterable[Node]) -> list[Node]:
    """Return what a group reads from outside, in order of first use."""
    inside = set(members)
    found: dict[Node, None] = {}
    for node in members:
        pending = list(reversed(node.inputs))
        while pending:
            x = pending.pop()
            if x in inside or is_number(x):
                continue
            if x.op in FREE or (x.op == "reshape" and not inside.isdisjoint(origins(x))):
                pending += reversed(x.inputs)
            else:
                found[x] = None
    return list(found)


def origins(node: Node) -> list[Node]:
    """Return what a node has its elements from, through ops that may stand in a group."""
    found: list[Node] = []
    pending = [node]
    while pending:
        x = pending.pop()
        if x.op in PASSED:
            pending += reversed(x.inputs)
        else:
            found.append(x)
    return found


def body_graph(members: Sequence[Node], outputs: Sequence[Node], name: str) -> Graph:
    """Return the body of a group: members and free ops on parameters ``p0``, ``p1``…"""
    inner: dict[Node, Node] = {}
    for number, x in enumerate(operands_of(members)):
        inner[x] = var(f"p{number}", x.shape, x.dtype)
    params = list(inner.values())
    for root in members:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if node in inner:
                continue
            if ready or not node.inputs:
                inputs = tuple([inner[x] for x in node.inputs])
                inner[node] = keep_origin(Node(node.op, inputs, node.attrs, node.type), node)
            else:
                stack.append((node, True))
                stack += [(x, False) for x in reversed(node.inputs)]
    return Graph(params, [inner[x] for x in outputs], name)


def kernel_body(members: Sequence[Node], outputs: Sequence[Node], name: str) -> Graph:
    """Return the body of a group as a kernel has it: without reshapes.

    Raises:
        NoCommonAxes: members take axes whole that a reshape between them takes apart.
    """
    return without_reshapes(body_graph(members, outputs, name))


class KernelGroups:
    """The groups of a graph, found when it is made.

    Args:
        graph: decomposed, without calls of functions.
        limits: what groups are made for.
        single: members that stay alone.
        known: the groups, by the numbers of their nodes, where they are known already.
    """

    def __init__(
        self,
        graph: Graph,
        limits: GroupLimits,
        single: frozenset[Node],
        known: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.graph, self.limits, self.single = graph, limits, single
        self.group: dict[Node, list[Node]] = {}
        self._refused: set[tuple[int, int, int, int]] = set()
        for numbers in known or ():
            members = [graph.nodes[number] for number in numbers]
            self.group.update(dict.fromkeys(members, members))
        if known is None:
            self._find()

    def _find(self) -> None:
        graph, limits = self.graph, self.limits
        for node in graph.nodes:
            if is_member(node, limits):
                self.group[node] = [node]
        streams = {node for node in self.group if self._streams(node)}
        # Ops that memory limits first, among themselves: each such group saves round trips through
        # memory. Then all, whose products may take in what is left.
        for chosen in (streams, set(self.group)):
            for node in [x for x in self.group if x in chosen]:
                sources = sorted(self._sources(node), key=lambda x: -typical(bytes_of(x.type)))
                for source in [x for x in sources if x in chosen]:
                    self._join(self.group[source], self.group[node])
            self._join_siblings(chosen)
        for node in graph.nodes:
            if self._is_stored(node):
                self._join_stored(node)

    @property
    def groups(self) -> list[list[Node]]:
        """The groups, in the order of their first nodes."""
        return list({id(members): members for members in self.group.values()}.values())

    def members_of(self, node: Node) -> list[Node]:
        """Return the group of a member, in topological order."""
        return self.group[node]

    def outputs_of(self, members: Sequence[Node]) -> list[Node]:
        """Return the members that are read outside of their group, or are outputs."""
        inside = set(members)
        ends = set(self.graph.outputs)
        return [x for x in members if x in ends or self._leaves_group(x, inside)]

    def _leaves_group(self, member: Node, inside: set[Node]) -> bool:
        ends = set(self.graph.outputs)
        return any(
            user.op not in PASSED or user in ends for user in self._outer_users([member], inside)
        )

    def _outer_users(self, members: Iterable[Node], inside: set[Node]) -> list[Node]:
        """Return who reads members outside of their group, also through free ops, and these.

        Free ops and reshapes that lead back into the group alone are among them, but nothing
        behind them is: the group has them itself.
        """
        found: list[Node] = []
        pending = [u for x in members for u in self.graph.users[x] if u not in inside]
        while pending:
            user = pending.pop()
            found.append(user)
            if user.op in PASSED:
                pending += [u for u in self.graph.users[user] if u not in inside]
        return found

    def _sources(self, node: Node) -> list[Node]:
        """Return the members of other groups that a node reads."""
        found = [y for x in operands_of([node]) for y in origins(x)]
        return [x for x in dict.fromkeys(found) if x in self.group]

    def _join(self, first: list[Node], second: list[Node]) -> bool:
        """Make two groups one, if that makes no cycle and a scheduler accepts it."""
        if first is second or len(first) + len(second) > self.limits.most:
            return False
        if self.single & {*first, *second}:
            return False
        index = self.graph.index
        # Groups only grow: a first member and a length name one.
        key = (index[first[0]], len(first), index[second[0]], len(second))
        if key in self._refused:
            return False
        both = sorted([*first, *second], key=index.__getitem__)
        if self.makes_cycle(both) or not self._accepted(both):
            self._refused.add(key)
            return False
        for node in both:
            self.group[node] = both
        return True

    def makes_cycle(self, members: Sequence[Node]) -> bool:
        """Whether a path leaves the members and comes back: groups are computed whole."""
        inside = set(members)
        last = max(self.graph.index[x] for x in members)
        pending = [x for x in self._outer_users(members, inside) if x.op not in PASSED]
        seen: set[Node] = set()
        while pending:
            node = pending.pop()
            if node in inside:
                return True
            # Nodes are numbered in topological order: behind the last member no way leads back.
            if node in seen or self.graph.index[node] > last:
                continue
            # Another group is computed whole: what leaves any of its members comes after all of
            # them.
            together = self.group.get(node, [node])
            seen.update(together)
            pending += [u for x in together for u in self.graph.users[x] if u not in together]
        return False

    def _streams(self, node: Node) -> bool:
        """Whether memory limits an op alone: it uses no element of an operand again and again."""
        found = scheduler_for(body_graph([node], [node], "group"), self.limits)
        return found is not None and not found.reuses

    def _accepted(self, members: Sequence[Node]) -> bool:
        body = body_graph(members, self.outputs_of(members), "group")
        return scheduler_for(body, self.limits) is not None

    def _join_siblings(self, chosen: set[Node]) -> None:
        """Let groups of chosen ops that read one tensor be one: it is read once then."""
        for node in self.graph.nodes:
            if node.is_tuple or is_number(node):
                continue
            readers: list[list[Node]] = []
            for user in self.graph.users[node]:
                if user in chosen and not any(self.group[user] is g for g in readers):
                    readers.append(self.group[user])
            for number, group in enumerate(readers):
                for other in readers[number + 1 :]:
                    self._join(self.group[group[0]], self.group[other[0]])

    def _is_stored(self, node: Node) -> bool:
        """Whether a transpose that keeps rows whole lies in memory: none of its readers has it."""
        if node.op != "transpose" or node.attrs["axes"][-1:] != (node.ndim - 1,):
            return False
        users = self.graph.users[node]
        if any(user in self.group or user.op in FREE for user in users):
            return False
        return node in self.graph.outputs or any(user.op == "reshape" for user in users)

    def _join_stored(self, node: Node) -> None:
        """Let the group that computes what a free op moves store it as it is read."""
        for source in self._sources(node):
            members = self.group[source]
            if node in self.graph.outputs or self._leaves_group(node, {*members}):
                self.group[node] = [node]
                if self._join(members, self.group[node]):
                    return
                del self.group[node]


_SCHEDULERS: dict[Hashable, Scheduler | None] = {}
_KEPT = 4096


def scheduler_for(body: Graph, limits: GroupLimits) -> Scheduler | None:
    """Return the scheduler that accepts the math of a body, if one does; kept by structure."""
    key = (structural_key(body), limits)
    if key not in _SCHEDULERS:
        if len(_SCHEDULERS) >= _KEPT:
            _SCHEDULERS.clear()
        try:
            _, found = scheduled_by(without_reshapes(body), limits.target, limits.processor)
        except (LoopnestError, NoCommonAxes):
            found = None
        _SCHEDULERS[key] = found
    return _SCHEDULERS[key]
