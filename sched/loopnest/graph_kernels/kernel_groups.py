"""Which ops of a graph one kernel computes: groups that a scheduler accepts, without cycles.

Ops are taken in topological order; each tries to join the groups that its operands come from, and
then those that read what it reads. Whether a group can be one kernel is asked of the core: its
fusion is built, and `scheduled_by` finds a scheduler or not. Nothing about reductions, broadcasts
or contractions is decided here.

What costs nothing is no member but stands in every group that reads it: scalar constants, `full`,
and ops that only repeat, insert or permute axes. A reshape between members stands in their group,
whose body does without it; any other is another shape of what lies in memory.
A transpose that such a reshape reads is stored by the kernel of what it moves, if it keeps rows
whole.

The body of a group without the reshapes in it: its tensors get axes that all of them have.

    y = exp(reshape(x @ w, (B, T, C)) + r)      # x: [B * T, K], r: [B, T, C]
    y = exp(x @ w + r)                          # r, y: [B * T, C], their memory as it was

Parameters and results lie in memory in C order, where another shape costs nothing. In between, ops
take the finest axes that a reshape makes, but for those that no tensor has apart. What takes axes
as they are (windows, slices, gathers) has to find them whole.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from loopnest.base.errors import LoopnestError
from loopnest.graph.cost import bytes_of
from loopnest.graph.dimensions import Dim, product, typical
from loopnest.graph.leaves import var
from loopnest.graph.node import LEAVES, Node, describe
from loopnest.graph.node_origins import keep_origin, made_for, origin_of
from loopnest.graph.operators import movement_ops, pointwise_ops, reduction_ops
from loopnest.graph.operators.reduction_ops import matmul
from loopnest.graph.program import Graph
from loopnest.graph.registry import call
from loopnest.graph.structural import structural_key
from loopnest.graph_kernels.axis_parts import (
    Axes,
    AxisBlocks,
    NoCommonAxes,
    SharedAxis,
    new_axes,
    relate,
)
from loopnest.graph_kernels.free_ops import FREE
from loopnest.graph_kernels.group_math import scheduled_by
from loopnest.graph_kernels.op_math import lower_of
from loopnest.scalar.op_table import FUNCTIONS
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


POINTWISE = frozenset((*FUNCTIONS, "cast", "where"))
FOLDS = frozenset(("all", "any", "max", "mean", "min", "prod", "sum"))

Form: TypeAlias = "tuple[SharedAxis | None, ...]"
"""The block of each axis of a node, by its first part; None for an axis of extent 1."""


def without_reshapes(body: Graph) -> Graph:
    """Return a body that computes the same without reshapes; itself where it has none.

    Its parameters and outputs have the elements of those of `body`, in other shapes.

    Raises:
        NoCommonAxes: it cannot: an op takes an axis whole that a reshape takes apart.
    """
    if all(node.op != "reshape" for node in body.nodes):
        return body
    if any(0 in node.shape for node in body.nodes if not node.is_tuple):
        raise NoCommonAxes("a tensor has no element")
    return _Reshaped(body).graph()


class _Reshaped:
    def __init__(self, body: Graph) -> None:
        self.body = body
        self.axes: dict[Node, Axes] = {}
        self.leaf_axes: dict[tuple[Node, int], Axes] = {}
        """Of operands that have none of their own (`full`, `iota`), by reader and place: each
        reader has one for itself."""
        self.whole: list[Axes] = []
        for node in body.nodes:
            if node.is_tuple:
                raise NoCommonAxes(f"{describe(node)} is a tuple")
            if node.inputs or node.op == "var":
                self.axes[node] = self._axes_of(node)
        known = [*self.axes.values(), *self.leaf_axes.values()]
        self.blocks = AxisBlocks(known, self.whole)
        self.extents: dict[SharedAxis, Dim] = {}
        for axes in known:
            found = self.blocks.extents(axes)
            self.extents.update({block: product(parts) for block, parts in found.items()})
        self.values: dict[Node, tuple[Node, Form]] = {}

    # Axes

    def _operand_axes(self, node: Node) -> list[Axes]:
        found = []
        for place, x in enumerate(node.inputs):
            if x in self.axes:
                found.append(self.axes[x])
                continue
            if (node, place) not in self.leaf_axes:
                self.leaf_axes[node, place] = new_axes(x.shape)
                if x.op != "full" and x.ndim:
                    self.whole.append(self.leaf_axes[node, place])
            found.append(self.leaf_axes[node, place])
        return found

    def _axes_of(self, node: Node) -> Axes:
        """Return the axes of a node, related to those of its operands."""
        if node.op == "var":
            return new_axes(node.shape)
        operands = self._operand_axes(node)
        if node.op in POINTWISE:
            return _broadcast(node.shape, operands)
        if node.op in FOLDS:
            return _folded(node, operands[0])
        match node.op:
            case "broadcast_to":
                lead = new_axes(node.shape[: node.ndim - len(operands[0])])
                pairs = zip(operands[0], node.shape[len(lead) :], strict=True)
                return (*lead, *[a if a.extent == e else SharedAxis(e) for a, e in pairs])
            case "expand_dims":
                rest = iter(operands[0])
                places = node.attrs["axis"]
                return tuple(
                    [SharedAxis(1) if n in places else next(rest) for n in range(node.ndim)]
                )
            case "squeeze":
                gone = node.attrs["axis"]
                return tuple([a for n, a in enumerate(operands[0]) if n not in gone])
            case "transpose":
                return tuple([operands[0][n] for n in node.attrs["axes"]])
            case "reshape":
                found = new_axes(node.shape)
                relate(operands[0], found)
                return found
            case "matmul":
                a, b = operands
                relate(a[-1:], b[-2:-1])
                return (*_broadcast(node.shape[:-2], [a[:-2], b[:-2]]), a[-2], b[-1])
            case "take":
                (x, indices), n = operands, node.attrs["axis"]
                self.whole.append(x[n : n + 1])
                return (*x[:n], *indices, *x[n + 1 :])
        found = new_axes(node.shape)
        self.whole += [*operands, found]
        return found

    # Nodes

    def graph(self) -> Graph:
        """Return the body without reshapes."""
        for node in self.body.nodes:
            with made_for(origin_of(node)):
                if node.op == "var":
                    self.values[node] = self._parameter(node)
                elif node.inputs:
                    self.values[node] = self._value(node)
        params = [self.values[x][0] for x in self.body.inputs]
        return Graph(params, [self.values[x][0] for x in self.body.outputs], self.body.name)

    def _form(self, node: Node) -> Form:
        return tuple(self.blocks.of(self.axes[node]))

    def _shape(self, form: Form) -> tuple[Dim, ...]:
        return tuple([1 if block is None else self.extents[block] for block in form])

    def _parameter(self, node: Node) -> tuple[Node, Form]:
        form = self._form(node)
        shape = self._shape(form)
        return (node if shape == node.shape else var(node.name, shape, node.dtype)), form

    def _value(self, node: Node) -> tuple[Node, Form]:
        rule = _RULES.get(node.op)
        if rule is not None:
            return rule(self, node)
        if node.op in POINTWISE:
            return self._pointwise(node)
        if node.op in FOLDS:
            return self._fold(node)
        return self._as_it_is(node)

    def _read(self, node: Node, place: int) -> tuple[Node, Form]:
        """Return an operand, and its form."""
        x = node.inputs[place]
        if x in self.values:
            return self.values[x]
        form = tuple(self.blocks.of(self.leaf_axes[node, place]))
        if x.op == "full":
            return call("full", (), {**x.attrs, "shape": self._shape(form)}), form
        own = self._whole_form(x, self.leaf_axes[node, place])
        return x, own

    def _whole_form(self, node: Node, axes: Axes) -> Form:
        """Return the form of a tensor whose axes are taken as they are.

        Raises:
            NoCommonAxes: one of them consists of several blocks.
        """
        found: list[SharedAxis | None] = []
        for axis in axes:
            blocks = self.blocks.of((axis,)) if axis.parts else []
            if len(blocks) > 1:
                raise NoCommonAxes(f"{describe(node)} has an axis of {axis.extent} as a whole")
            found += blocks or [None]
        return tuple(found)

    def _pointwise(self, node: Node) -> tuple[Node, Form]:
        form = self._form(node)
        operands = []
        for place in range(len(node.inputs)):
            x, own = self._read(node, place)
            operands.append(_fitted(x, own, _present(form, own)))
        return call(node.op, operands, node.attrs), form

    def _fold(self, node: Node) -> tuple[Node, Form]:
        x, form = self._read(node, 0)
        source = self._operand_axes(node)[0]
        gone = set(self.blocks.of([source[n] for n in node.attrs["axis"]]))
        places = [n for n, block in enumerate(form) if block in gone]
        rest = tuple([block for block in form if block not in gone])
        if places:
            return call(node.op, [x], {**node.attrs, "axis": places, "keepdims": False}), rest
        if node.op in ("any", "all"):
            raise NoCommonAxes(f"{describe(node)} is over no axis")
        return pointwise_ops.cast(x, node.dtype), rest  # each element is its own result

    def _as_it_is(self, node: Node) -> tuple[Node, Form]:
        operands = []
        for place, axes in enumerate(self._operand_axes(node)):
            x, own = self._read(node, place)
            operands.append(_fitted(x, own, self._whole_form(node, axes)))
        return call(node.op, operands, node.attrs), self._whole_form(node, self.axes[node])

    def _moved(self, node: Node) -> tuple[Node, Form]:
        """Return what moves axes or cuts them: of the same blocks, maybe in another order."""
        x, own = self._read(node, 0)
        form = self._form(node)
        return _fitted(x, own, form), form

    def _repeated(self, node: Node) -> tuple[Node, Form]:
        x, own = self._read(node, 0)
        form = self._form(node)
        wanted = tuple([block if block in own else None for block in form])
        found = _fitted(x, own, wanted)
        return movement_ops.broadcast_to(found, self._shape(form)), form

    def _taken(self, node: Node) -> tuple[Node, Form]:
        (x, own), (indices, places) = self._read(node, 0), self._read(node, 1)
        axes, n = self._operand_axes(node)[0], node.attrs["axis"]
        head, tail = self.blocks.of(axes[:n]), self.blocks.of(axes[n + 1 :])
        x = _fitted(x, own, (*head, *self._whole_form(node, axes[n : n + 1]), *tail))
        return call("take", [x, indices], {"axis": len(head)}), (*head, *places, *tail)

    def _product(self, node: Node) -> tuple[Node, Form]:
        """Return a product of matrices, also where rows, columns or terms are several blocks."""
        (a, own_a), (b, own_b) = self._read(node, 0), self._read(node, 1)
        form = self._form(node)
        terms = tuple([x for x in own_a if x is not None and x in own_b and x not in form])
        rows = tuple([x for x in form if x not in own_b])
        columns = tuple([x for x in form if x not in own_a])
        batch = tuple([x for x in form if x in own_a and x in own_b])
        plain = len(terms) == len(rows) == len(columns) == 1
        if plain and form == (*batch, *rows, *columns):
            a = _fitted(a, own_a, (*batch, *rows, *terms))
            return matmul(a, _fitted(b, own_b, (*batch, *terms, *columns))), form
        every, wide = (*form, *terms), node.dtype.compute
        if wide is not node.dtype:  # products are not rounded
            a, b = pointwise_ops.cast(a, wide), pointwise_ops.cast(b, wide)
        a = _fitted(a, own_a, _present(every, own_a))
        pairs = pointwise_ops.mul(a, _fitted(b, own_b, _present(every, own_b)))
        found = reduction_ops.sum(pairs, [*range(len(form), len(every))]) if terms else pairs
        return pointwise_ops.cast(found, node.dtype), form


def _present(form: Sequence[SharedAxis | None], own: Form) -> Form:
    """Return a form with None where an operand does not have a block; not in front."""
    found = [block if block in own else None for block in form]
    while found and found[0] is None:
        del found[0]
    return tuple(found)


_RULES: dict[str, Callable[[_Reshaped, Node], tuple[Node, Form]]] = {
    "broadcast_to": _Reshaped._repeated,
    "matmul": _Reshaped._product,
    "take": _Reshaped._taken,
    **dict.fromkeys(("expand_dims", "reshape", "squeeze", "transpose"), _Reshaped._moved),
}


def _broadcast(shape: Sequence[Dim], operands: Sequence[Axes]) -> Axes:
    """Return the axes of what is computed element by element, those of operands being related."""
    found: list[SharedAxis] = []
    for place in range(len(shape), 0, -1):
        real = [axes[-place] for axes in operands if len(axes) >= place]
        real = [axis for axis in real if axis.extent != 1]
        for other in real[1:]:
            relate(real[:1], (other,))
        found.append(real[0] if real else SharedAxis(1))
    return tuple(found)


def _folded(node: Node, axes: Axes) -> Axes:
    gone, kept = node.attrs["axis"], node.attrs["keepdims"]
    own = [SharedAxis(1) if n in gone else axis for n, axis in enumerate(axes)]
    return tuple([axis for n, axis in enumerate(own) if kept or n not in gone])


def _fitted(x: Node, own: Form, wanted: Form) -> Node:
    """Return a node of one form in another one of the same blocks."""
    if own == wanted:
        return x
    ones = [n for n, block in enumerate(own) if block is None]
    blocks = [block for block in own if block is not None]
    order = [blocks.index(block) for block in wanted if block is not None]
    x = movement_ops.squeeze(x, ones) if ones else x
    if order != [*range(len(order))]:
        x = movement_ops.transpose(x, order)
    new = [n for n, block in enumerate(wanted) if block is None]
    return movement_ops.expand_dims(x, new) if new else x
