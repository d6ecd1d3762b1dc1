"""The body of a group without the reshapes in it: its tensors get axes that all of them have.

    y = exp(reshape(x @ w, (B, T, C)) + r)      # x: [B * T, K], r: [B, T, C]
    y = exp(x @ w + r)                          # r, y: [B * T, C], their memory as it was

Parameters and results lie in memory in C order, where another shape costs nothing. In between, ops
take the finest axes that a reshape makes, but for those that no tensor has apart. What takes axes
as they are (windows, slices, gathers) has to find them whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from loopnest.graph.dimensions import Dim, product
from loopnest.graph.leaves import var
from loopnest.graph.node import Node, describe
from loopnest.graph.node_origins import made_for, origin_of
from loopnest.graph.operators import movement_ops, pointwise_ops, reduction_ops
from loopnest.graph.operators.matmul_op import matmul
from loopnest.graph.program import Graph
from loopnest.graph.registry import call
from loopnest.graph_kernels.axis_parts import (
    Axes,
    AxisBlocks,
    NoCommonAxes,
    SharedAxis,
    new_axes,
    relate,
)
from loopnest.scalar.op_table import FUNCTIONS

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
