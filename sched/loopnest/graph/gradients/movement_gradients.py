"""Gradients of ops that move elements, of tuples and of state."""

from __future__ import annotations

import numpy as np

from loopnest.graph.dimensions import Dim, add, last_place
from loopnest.graph.gradients.gradient_rules import Contribution, fit, zero_where_not
from loopnest.graph.leaves import const
from loopnest.graph.node import Node, TupleType
from loopnest.graph.operators import creation, indexing_ops, nn_ops, slicing
from loopnest.graph.operators import movement_ops as s
from loopnest.graph.registry import call, register_attr


@register_attr("broadcast_to", "gradient")
def _broadcast(node: Node, dy: Node) -> tuple[Node]:
    return (fit(dy, node.inputs[0]),)


@register_attr("expand_dims", "gradient")
def _expand(node: Node, dy: Node) -> tuple[Node]:
    return (s.squeeze(dy, node.attrs["axis"]),)


@register_attr("squeeze", "gradient")
def _squeeze(node: Node, dy: Node) -> tuple[Node]:
    return (s.expand_dims(dy, node.attrs["axis"]),)


@register_attr("transpose", "gradient")
def _transpose(node: Node, dy: Node) -> tuple[Node]:
    axes = node.attrs["axes"]
    return (s.transpose(dy, sorted(range(len(axes)), key=lambda place: axes[place])),)


@register_attr("strided_view", "gradient")
def _strided_view(node: Node, dy: Node) -> tuple[Node]:
    """Add each element of dy to the one that it was read from: several may be one."""
    shape, strides = node.static_shape, node.attrs["strides"]
    places = np.zeros((), np.int64)
    for extent, stride in zip(shape, strides, strict=True):
        places = np.add.outer(places, np.arange(extent) * int(stride))
    (x,) = node.inputs
    flat = s.reshape(dy, (node.tensor_type.size,))
    return (indexing_ops.index_add(creation.zeros_like(x), const(places.reshape(-1)), flat),)


@register_attr("reshape", "gradient")
def _reshape(node: Node, dy: Node) -> tuple[Node]:
    return (s.reshape(dy, node.inputs[0].shape),)


@register_attr("flip", "gradient")
def _flip(node: Node, dy: Node) -> tuple[Node]:
    return (s.flip(dy, node.attrs["axis"]),)


@register_attr("concatenate", "gradient")
def _concatenate(node: Node, dy: Node) -> list[Node]:
    axis = node.attrs["axis"]
    found: list[Node] = []
    start: Dim = 0
    for operand in node.inputs:
        starts: list[Dim] = [0] * node.ndim
        stops = list(node.shape)
        starts[axis], stops[axis] = start, add(start, operand.shape[axis])
        found.append(slicing.slice(dy, starts, stops))
        start = stops[axis]
    return found


@register_attr("slice", "gradient")
def _slice(node: Node, dy: Node) -> tuple[Node]:
    return (slicing.unslice(dy, node.inputs[0].shape, node.attrs["starts"], node.attrs["steps"]),)


@register_attr("unslice", "gradient")
def _unslice(node: Node, dy: Node) -> tuple[Node]:
    starts, steps = node.attrs["starts"], node.attrs["steps"]
    parts = zip(starts, steps, node.inputs[0].shape, strict=True)
    stops = [last_place(*part) for part in parts]
    return (slicing.slice(dy, starts, stops, steps),)


@register_attr("pad", "gradient")
def _pad(node: Node, dy: Node) -> tuple[Node]:
    starts = [before for before, _ in node.attrs["widths"]]
    shape = node.inputs[0].shape
    stops = [add(start, extent) for start, extent in zip(starts, shape, strict=True)]
    return (slicing.slice(dy, starts, stops),)


@register_attr("layout_transform", "gradient")
def _layout(node: Node, dy: Node) -> tuple[Node]:
    return (nn_ops.layout_transform(dy, node.attrs["dst_layout"], node.attrs["src_layout"]),)


@register_attr(("var", "const", "variable", "full", "iota", "size"), "gradient")
def _leaf(node: Node, dy: Node) -> tuple[()]:
    return ()


@register_attr("take", "gradient")
def _take(node: Node, dy: Node) -> tuple[Node, None]:
    """Add each slice to where it was taken from, all axes of the indices as one."""
    x, indices = node.inputs
    axis = node.attrs["axis"]
    flat = s.reshape(indices, -1)
    slices = s.reshape(dy, (*x.shape[:axis], *flat.shape, *x.shape[axis + 1 :]))
    return indexing_ops.index_add(creation.zeros_like(x), flat, slices, axis), None


@register_attr("index_add", "gradient")
def _index_add(node: Node, dy: Node) -> tuple[Node, None, Node]:
    return dy, None, indexing_ops.take(dy, node.inputs[1], node.attrs["axis"])


@register_attr("put", "gradient")
def _put(node: Node, dy: Node) -> tuple[Node, None, Node]:
    """Give a place that has a value nothing of x, and what it has to the last of its values."""
    x, indices, _ = node.inputs
    (count,) = indices.shape
    zero, numbers = creation.zeros((count,), dy.dtype), creation.iota(count)
    last = indexing_ops.put(creation.zeros(x.shape, numbers.dtype), indices, numbers)
    is_last = call("eq", (indexing_ops.take(last, indices), numbers))
    values = zero_where_not(is_last, indexing_ops.take(dy, indices))
    return indexing_ops.put(dy, indices, zero), None, values


@register_attr(("tuple", "group"), "gradient")
def _tuple(node: Node, dy: tuple[Node | None, ...]) -> tuple[Contribution, ...]:
    return dy


@register_attr("get_item", "gradient")
def _get_item(node: Node, dy: Node) -> tuple[Contribution]:
    whole = node.inputs[0].type
    assert isinstance(whole, TupleType)
    fields = range(len(whole.fields))
    return (tuple([dy if i == node.attrs["index"] else None for i in fields]),)


@register_attr("assign", "gradient")
def _assign(node: Node, dy: Node) -> tuple[Contribution, ...]:
    return (None, dy)
