"""FoldConstant: compute now what depends on constants alone."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from loopnest.graph.dimensions import at
from loopnest.graph.leaves import const, make_tuple
from loopnest.graph.node import LEAVES, Node, TensorType, Type
from loopnest.graph.node_values import Value, compute
from loopnest.graph.passes.manager import (
    FunctionPass,
    PassContext,
    PassInfo,
    register_option,
    register_pass,
)
from loopnest.graph.program import Graph, Unit
from loopnest.graph.rewriting import ExprMutator
from loopnest.graph.size_binding import node_sizes
from loopnest.graph.state import has_state, is_pure

Known: TypeAlias = "dict[Node, Value]"
_LIMIT = "FoldConstant.max_bytes"
register_option(
    _LIMIT, 1 << 20, doc="bytes that a folded constant may have where its operands have less"
)


class FoldConstant(FunctionPass):
    """Replace nodes that depend on constants alone by their values, bit for bit.

    ``add(const, const)`` becomes a const; so does a fused call, and a field of a tuple. `full` and
    `iota` stay as they are by themselves, since they are smaller than their value. A value that is
    larger than all constants that it is computed from and than the option
    ``FoldConstant.max_bytes`` (1 MiB) is left to be computed. Variables are no constants.

    Idempotent. Source: TVM's `relay.transform.FoldConstant` (to v0.18).
    """

    info = PassInfo("FoldConstant", 2)

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        return _Folder(ctx.option(_LIMIT)).visit(func)


class _Folder(ExprMutator):
    """Keeps the values of nodes that are constant but not folded: full, iota, tuples."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._known: Known = {}

    def visit_node(self, node: Node) -> Node:
        if node.op in LEAVES or not is_pure(node) or has_state(node):
            return node
        if not node.inputs:
            return node  # full, iota: known when somebody reads it
        operands = [self._value(x) for x in node.inputs]
        known = _is_static(node) and all(value is not None for value in operands)
        if not known or not self._fits(node):
            return node
        return self._folded(node, [value for value in operands if value is not None])

    def visit_fused(self, node: Node) -> Node:
        inner = super().visit_fused(node)
        return self.visit_node(inner)

    def _value(self, node: Node) -> Value | None:
        """Return the value of an operand, None if it is not constant."""
        if node.op == "const":
            return node.value
        creates = not node.inputs and node.op not in LEAVES and is_pure(node)
        fits = creates and _is_static(node) and _bytes(node.type) <= self._limit
        if fits and node not in self._known:
            self._known[node] = compute(node, [])
        return self._known.get(node)

    def _fits(self, node: Node) -> bool:
        own = _bytes(node.type)
        return own <= self._limit or own <= sum(
            _bytes(x.type) for x in node.inputs if x.op == "const"
        )

    def _folded(self, node: Node, operands: list[Value]) -> Node:
        value = _computed(node, operands)
        if isinstance(value, tuple):
            self._known[node] = value
            return node if node.op in ("tuple", "group") else self._tuple(value)
        return const(value, node.dtype, node.name if node.name.isidentifier() else "")

    def _tuple(self, value: tuple[Value, ...]) -> Node:
        """Return a tuple of constants."""
        fields = [self._tuple(part) if isinstance(part, tuple) else const(part) for part in value]
        made = make_tuple(*fields)
        self._known[made] = value
        return made


def _computed(node: Node, operands: list[Any]) -> Value:
    with np.errstate(all="ignore"):
        return compute(node, operands)


def _is_static(node: Node) -> bool:
    """Whether the value of a node depends on no size that is known later."""
    return next(node_sizes(node), None) is None


def _bytes(kind: Type) -> int:
    """Return the bytes of a type without sizes."""
    if isinstance(kind, TensorType):
        return at(kind.size, {}) * kind.dtype.size
    return sum(_bytes(part) for part in kind.fields)


register_pass("FoldConstant", FoldConstant)
