"""What ops cost: operations and bytes, from types and attributes alone; ints, or size expressions.

An addition, multiplication or comparison of two elements is one operation, what divides or takes a
root four, a transcendental function ten; what only moves elements is free of operations. These are
weights to choose by, not times. The attribute ``flops`` of an op, a function from a node to an
int, says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from loopnest.graph.dimensions import Dim, mul, product, total
from loopnest.graph.node import Node, TupleType, Type
from loopnest.graph.node_values import math_of
from loopnest.graph.program import body_of
from loopnest.graph.registry import Pattern, get_attr, op_names, pattern_of, register_attr
from loopnest.scalar.op_table import FUNCTIONS, Column, ops

Flops: TypeAlias = Callable[[Node], Dim]

_ROOTS = ("div", "mod", "sqrt", "rsqrt", "reciprocal")
_FUNCTIONS = ("silu", "gelu", "pow", *ops(lambda op: op.result == "float"))
_WEIGHTS: dict[str, int] = {
    **dict.fromkeys(FUNCTIONS, 1),
    **dict.fromkeys(_FUNCTIONS, 10),
    **dict.fromkeys(_ROOTS, 4),
    "fma": 2,
}
WEIGHTS = Column("cost", __name__, _WEIGHTS, keys=FUNCTIONS)
_FREE = ("assign", "broadcast_to", "expand_dims", "full", "group", "tuple")
"""Pointwise by pattern, or of none, but without arithmetic."""


def flops(node: Node) -> Dim:
    """Return the operations that a node costs; of a fused call those of its body."""
    if node.op == "fused":
        return total(flops(inner) for inner in body_of(node).nodes)
    rule: Flops = get_attr(node, "flops", _by_pattern)
    return rule(node)


def bytes_of(kind: Type) -> Dim:
    """Return the bytes of a tensor, or of all fields of a tuple."""
    if isinstance(kind, TupleType):
        return total(bytes_of(field) for field in kind.fields)
    return mul(kind.size, kind.dtype.numpy.itemsize)


def traffic(node: Node) -> Dim:
    """Return the bytes that a node reads and writes in a kernel of its own."""
    return total([bytes_of(node.type), *[bytes_of(x.type) for x in dict.fromkeys(node.inputs)]])


def _by_pattern(node: Node) -> Dim:
    pattern = pattern_of(node)
    if not node.inputs or pattern in (Pattern.INJECTIVE, Pattern.TUPLE):
        return 0
    if pattern <= Pattern.BROADCAST:
        return _size(node.type)
    return total(_size(x.type) for x in node.inputs)


def _size(kind: Type) -> Dim:
    if isinstance(kind, TupleType):
        return total(_size(field) for field in kind.fields)
    return kind.size


def _times(weight: int) -> Flops:
    return lambda node: mul(_size(node.type), weight)


def _matmul(node: Node) -> Dim:
    return product((2, node.tensor_type.size, node.inputs[0].shape[-1]))


def _of_math(node: Node) -> Dim:
    """Return the operations of what a node is made of."""
    made = math_of(node)
    assert made is not None
    return total(flops(inner) for inner in made.nodes)


def _conv(node: Node) -> Dim:
    """Return 2 operations for each element of the windowed tensor's partner and kernel element."""
    x, w = node.inputs
    out, kernel = (node, w) if node.op == "conv" else (x, w)
    if node.op == "conv_weight":
        out, kernel = w, node
    return product((2, out.tensor_type.size, *kernel.shape[1:]))


def _pool(node: Node) -> Dim:
    return product((*node.attrs["pool"], node.tensor_type.size))


def _statistics(node: Node) -> Dim:
    return mul(node.inputs[0].tensor_type.size, 4)


def _softmax(node: Node) -> Dim:
    return mul(node.tensor_type.size, 16)


for _name, _weight in WEIGHTS.items():
    if _weight != 1 and _name in op_names():  # the pattern says 1 already
        register_attr(_name, "flops", _times(_weight))
register_attr(_FREE, "flops", _times(0))
register_attr("matmul", "flops", _matmul)
register_attr(["conv2d", "conv2d_backward_data", "conv2d_backward_weight"], "flops", _of_math)
register_attr(["conv", "conv_transposed", "conv_weight"], "flops", _conv)
register_attr(["cumsum", "cumprod"], "flops", _times(1))
register_attr(["max_pool2d", "avg_pool2d"], "flops", _pool)
register_attr("variance", "flops", _statistics)
register_attr(["softmax", "log_softmax"], "flops", _softmax)
