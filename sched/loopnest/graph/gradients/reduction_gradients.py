"""Gradients of reductions and of matrix products."""

from __future__ import annotations

import math

from loopnest.graph.dimensions import Dim, product
from loopnest.graph.gradients.gradient_rules import fit, not_differentiable, spread
from loopnest.graph.node import Node
from loopnest.graph.operators import movement_ops, reduction_ops
from loopnest.graph.operators import pointwise_ops as p
from loopnest.graph.operators.creation import iota, size
from loopnest.graph.operators.matmul_op import matmul
from loopnest.graph.registry import register_attr
from loopnest.scalar.dtypes import int64


def _count(node: Node) -> Dim:
    return product([node.inputs[0].shape[axis] for axis in node.attrs["axis"]])


@register_attr("sum", "gradient")
def _sum(node: Node, dy: Node) -> tuple[Node]:
    return (movement_ops.broadcast_to(spread(dy, node), node.inputs[0].shape),)


@register_attr("mean", "gradient")
def _mean(node: Node, dy: Node) -> tuple[Node | None]:
    (x,) = node.inputs
    if not x.dtype.is_float:
        return (None,)
    count = _count(node)
    number = float(count) if isinstance(count, int) else size(count, x.dtype.compute)
    share = p.cast(p.div(spread(dy, node), number), x.dtype)
    return (movement_ops.broadcast_to(share, x.shape),)


@register_attr("variance", "gradient")
def _variance(node: Node, dy: Node) -> tuple[Node | None]:
    (x,) = node.inputs
    if not x.dtype.is_float:
        return (None,)
    count, correction = _count(node), node.attrs["correction"]
    center = p.sub(x, reduction_ops.mean(x, node.attrs["axis"], keepdims=True))
    if isinstance(count, int):
        divisor = max(count - correction, 0)
        return (p.mul(p.mul(spread(dy, node), 2 / divisor if divisor else math.nan), center),)
    left = p.maximum(p.sub(size(count, x.dtype.compute), correction), 0)
    scale = p.where(p.eq(left, 0), math.nan, p.div(2.0, left))
    return (p.cast(p.mul(p.mul(spread(dy, node), scale), center), x.dtype),)


@register_attr(("max", "min"), "gradient")
def _extreme(node: Node, dy: Node) -> tuple[Node]:
    """Share dy evenly among the elements that are the extreme one, or those that are NaN."""
    (x,) = node.inputs
    chosen = p.logical_or(p.eq(x, spread(node, node)), p.isnan(x))
    count = reduction_ops.sum(p.cast(chosen, x.dtype.compute), node.attrs["axis"], keepdims=True)
    share = p.cast(p.div(spread(dy, node), count), x.dtype)
    return (p.where(chosen, share, 0),)


@register_attr("prod", "gradient")
def _prod(node: Node, dy: Node) -> tuple[Node]:
    """Multiply dy with the product of all other elements: right where elements are 0 too.

    It takes n * n products for n elements reduced; dividing the product by the element would take
    n, but is 0 / 0 at a zero.
    """
    (x,) = node.inputs
    axes = node.attrs["axis"]
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    order = (*kept, *axes)
    count = _count(node)
    rows = movement_ops.reshape(
        movement_ops.transpose(x, order), [x.shape[a] for a in kept] + [count]
    )
    own = p.eq(movement_ops.expand_dims(iota(count, dtype=int64), 1), iota(count, dtype=int64))
    others = p.where(own, 1, movement_ops.expand_dims(rows, rows.ndim - 1))
    products = movement_ops.reshape(reduction_ops.prod(others, -1), [x.shape[a] for a in order])
    back = sorted(range(x.ndim), key=lambda place: order[place])
    return (p.mul(spread(dy, node), movement_ops.transpose(products, back)),)


@register_attr("matmul", "gradient")
def _matmul(node: Node, dy: Node) -> tuple[Node, Node]:
    a, b = node.inputs
    return fit(matmul(dy, _turned(b)), a), fit(matmul(_turned(a), dy), b)


def _turned(x: Node) -> Node:
    """Return a matrix transposed (its last two axes)."""
    lead = range(x.ndim - 2)
    return movement_ops.transpose(x, (*lead, x.ndim - 1, x.ndim - 2))


not_differentiable(("any", "all"), "its value is bool")
not_differentiable(("argmax", "argmin", "argsort", "searchsorted"), "its value is an integer")
