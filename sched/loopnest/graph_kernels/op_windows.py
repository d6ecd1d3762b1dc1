"""The attribute ``lower`` of ops that read parts, borders and windows of their operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import loopnest as ln
from loopnest.base.errors import NotSupported
from loopnest.graph.dimensions import Dim, Shape, add, mul, sub
from loopnest.graph.node import Node, describe
from loopnest.graph.registry import register_attr
from loopnest.graph_kernels.op_math import MathOperand, as_tensor, size_operand

Around: TypeAlias = "tuple[Dim, Dim]"
"""How many elements stand before those of an axis, and after them."""


@register_attr("slice", "lower")
def _slice(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    attrs = node.attrs
    return ln.slice(as_tensor(operands[0], node), attrs["starts"], attrs["stops"], attrs["steps"])


@register_attr("strided_view", "lower")
def _strided_view(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    """Return the elements at computed places; a view of an input is declared with its strides."""
    places = ln.full(node.shape, 0, ln.int64)
    rows = zip(node.shape, node.attrs["strides"], strict=True)
    for axis, (extent, stride) in enumerate(rows):
        own = ln.broadcast(ln.iota(extent, dtype=ln.int64), [i != axis for i in range(node.ndim)])
        steps = size_operand(stride, ln.int64, node)
        places = places + own * steps
    return ln.take(as_tensor(operands[0], node), places, 0)


@register_attr("flip", "lower")
def _flip(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    return ln.flip(as_tensor(operands[0], node), node.attrs["axis"])


@register_attr("pad", "lower")
def _pad(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    return ln.pad(as_tensor(operands[0], node), node.attrs["widths"], node.attrs["value"])


@register_attr("unslice", "lower")
def _unslice(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    """Return zeros with the operand put in: zeros around it, and between its elements."""
    (x,) = node.inputs
    if x.tensor_type.size == 0:
        return ln.full(node.shape, 0, node.dtype)
    widths: list[Around] = []
    between: list[int] = []
    rows = zip(node.shape, x.shape, node.attrs["starts"], node.attrs["steps"], strict=True)
    for whole, own, start, step in rows:
        after = sub(sub(whole, start), add(mul(sub(own, 1), step), 1))
        widths.append((start, after))
        between.append(step - 1)
    return ln.pad(as_tensor(operands[0], node), widths, 0, between)


def static_width(found: Dim, node: Node) -> int:
    """Return an extent that math needs as a number.

    Raises:
        NotSupported: it depends on a size.
    """
    if isinstance(found, int):
        return found
    raise NotSupported(describe(node), f"it needs a number where {found} stands")


@register_attr("concatenate", "lower")
def _concatenate(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    return ln.concatenate([as_tensor(x, node) for x in operands], node.attrs["axis"])


@register_attr(["argmax", "argmin"], "lower")
def _place(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    function = ln.argmax if node.op == "argmax" else ln.argmin
    (axis,) = node.attrs["axis"]
    return function(as_tensor(operands[0], node), axis, node.attrs["keepdims"])


@register_attr("argsort", "lower")
def _order(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    return ln.argsort(as_tensor(operands[0], node), node.attrs["axis"], node.attrs["descending"])


@register_attr("searchsorted", "lower")
def _search(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    sorted_, values = [as_tensor(operand, node) for operand in operands]
    return ln.searchsorted(sorted_, values, node.attrs["side"])


@register_attr("take", "lower")
def _take(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    x, indices = as_tensor(operands[0], node), _indices(operands[1], node)
    return ln.take(x, indices, node.attrs["axis"])


@register_attr("index_add", "lower")
def _index_add(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    x, indices = as_tensor(operands[0], node), _indices(operands[1], node)
    return ln.index_add(x, node.attrs["axis"], indices, as_tensor(operands[2], node))


@register_attr("put", "lower")
def _put(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    x, indices = as_tensor(operands[0], node), _indices(operands[1], node)
    return ln.scatter(x, indices, as_tensor(operands[2], node), 0)


def _indices(operand: MathOperand, node: Node) -> ln.TensorView:
    """Return indices, of which every launch checks that they lie inside.

    Raises:
        NotSupported: the kernel computes them itself, so that nothing can be checked before.
    """
    if not isinstance(operand, ln.TensorView) or not operand.is_input:
        raise NotSupported(describe(node), "its indices are no input of the kernel")
    extent = node.inputs[0].shape[node.attrs.get("axis", 0)]
    operand.fusion.assume_range(operand, 0, extent)
    return operand


# Convolutions, as one contraction of windows


def check_plain(node: Node) -> None:
    """Check that a node has the layouts that the core knows.

    Raises:
        NotSupported: it has others.
    """
    layouts = (node.attrs["data_layout"], node.attrs.get("kernel_layout", "OIHW"))
    if layouts != ("NCHW", "OIHW"):
        raise NotSupported(describe(node), f"its layouts are {', '.join(layouts)}")


@register_attr("conv2d", "lower")
def _conv(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    check_plain(node)
    x, w = [as_tensor(operand, node) for operand in operands]
    attrs = node.attrs
    top, left, bottom, right = attrs["padding"]
    around = ((top, bottom), (left, right))
    return ln.conv(x, w, attrs["strides"], around, attrs["dilation"], attrs["groups"])


@register_attr("conv2d_backward_data", "lower")
def _conv_data(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    """Return dy spread by the strides, correlated with the reversed kernel."""
    check_plain(node)
    dy, w = [as_tensor(operand, node) for operand in operands]
    attrs = node.attrs
    if attrs["groups"] > 1:
        return _transposed(node, dy, w, node.shape[2:], attrs["padding"][:2])
    widths: list[Around] = [(0, 0), (0, 0)]
    for place in (0, 1):
        kernel, stride = node.inputs[1].shape[2 + place], attrs["strides"][place]
        span = mul(sub(kernel, 1), attrs["dilation"][place])
        spread = add(mul(sub(node.inputs[0].shape[2 + place], 1), stride), 1)
        before = sub(span, attrs["padding"][place])
        after = sub(sub(add(node.shape[2 + place], span), before), spread)
        widths.append((before, after))
    between = (0, 0, *[stride - 1 for stride in attrs["strides"]])
    spread_dy = ln.pad(dy, widths, 0, between)
    reversed_w = ln.permute(ln.flip(w, (2, 3)), (1, 0, 2, 3))
    return ln.conv(spread_dy, reversed_w, 1, 0, attrs["dilation"])


@register_attr("conv2d_backward_weight", "lower")
def _conv_weight(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    """Return x correlated with dy over the batch: strides and dilation change places."""
    check_plain(node)
    x, dy = [as_tensor(operand, node) for operand in operands]
    attrs = node.attrs
    widths: list[Around] = [(0, 0), (0, 0)]
    for place in (0, 1):
        own, out = node.inputs[0].shape[2 + place], node.inputs[1].shape[2 + place]
        before = attrs["padding"][place]
        reach = mul(sub(node.shape[2 + place], 1), attrs["dilation"][place])
        needed = add(add(reach, mul(sub(out, 1), attrs["strides"][place])), 1)
        widths.append((before, sub(sub(needed, own), before)))
    return _over_batch(node, ln.pad(x, widths), dy)


def _over_batch(node: Node, x: ln.TensorView, dy: ln.TensorView) -> ln.TensorView:
    """Return x [N, C, …] correlated with dy [N, O, …] over the batch: [O, C / groups, …].

    The batch takes the place of channels; where each channel is a group, channels stay apart.

    Raises:
        NotSupported: groups of several channels.
    """
    attrs, groups = node.attrs, node.attrs["groups"]
    if groups > 1:
        return _by_channel(node, x, dy)
    swap = (1, 0, *range(2, node.ndim))
    found = ln.conv(
        ln.permute(x, swap), ln.permute(dy, swap), attrs["dilation"], 0, attrs["strides"]
    )
    return ln.permute(found, swap)


def _by_channel(node: Node, x: ln.TensorView, dy: ln.TensorView) -> ln.TensorView:
    """Return the sum over the batch of windows of x times dy, a channel at a time.

    Raises:
        NotSupported: a group has several channels, of x or of dy.
    """
    attrs, (image, results) = node.attrs, node.inputs
    if not image.shape[1] == results.shape[1] == attrs["groups"]:
        found = f"it has {attrs['groups']} groups of several channels"
        raise NotSupported(describe(node), found)
    rank = node.ndim - 2
    sizes = [static_width(extent, node) for extent in results.shape[2:]]
    x = ln.unfold(x, range(2, 2 + rank), sizes, attrs["dilation"], attrs["strides"])
    between = [False, False, *[True] * rank, *[False] * rank]
    folded = (0, *range(2 + rank, 2 + 2 * rank))
    total = ln.sum(ln.mul(x, ln.broadcast(dy, between)), folded)
    return ln.broadcast(total, [False, True, *[False] * rank])


# Convolutions of any rank


@register_attr("conv", "lower")
def _conv_of_any_rank(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    x, w = [as_tensor(operand, node) for operand in operands]
    attrs = node.attrs
    return ln.conv(x, w, attrs["strides"], attrs["padding"], attrs["dilation"], attrs["groups"])


@register_attr("conv_transposed", "lower")
def _conv_transposed(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    x, w = [as_tensor(operand, node) for operand in operands]
    return _transposed(node, x, w, node.attrs["space"], node.attrs["padding"])


def _transposed(
    node: Node, x: ln.TensorView, w: ln.TensorView, space: Shape, before: Sequence[int]
) -> ln.TensorView:
    """Return the core's; zeros behind x make what lies behind its windows.

    Where a size says how many elements are left out behind, or are missing, the core adds zeros.
    """
    attrs = node.attrs
    pairs: list[Around] = []
    behind: list[tuple[int, int]] = [(0, 0), (0, 0)]
    for axis, extent in enumerate(space):
        own, size = node.inputs[0].shape[2 + axis], node.inputs[1].shape[2 + axis]
        stride = attrs["strides"][axis]
        reach = mul(sub(size, 1), attrs["dilation"][axis])
        end = add(add(mul(sub(own, 1), stride), reach), 1)
        left = sub(sub(end, before[axis]), extent)
        more = -(min(left, 0) // stride) if isinstance(left, int) else 0
        behind.append((0, more))
        pairs.append((before[axis], add(left, more * stride)))
    if any(after for _, after in behind):
        x = ln.pad(x, behind)
    steps, apart, groups = attrs["strides"], attrs["dilation"], attrs["groups"]
    return ln.conv(x, w, steps, pairs, apart, groups, transposed=True)


@register_attr("conv_weight", "lower")
def _conv_weight_of_any_rank(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    """Return x correlated with dy over the batch: strides and dilation change places."""
    x, dy = [as_tensor(operand, node) for operand in operands]
    attrs = node.attrs
    widths: list[Around] = [(0, 0), (0, 0)]
    for axis, size in enumerate(attrs["kernel"]):
        own, out = node.inputs[0].shape[2 + axis], node.inputs[1].shape[2 + axis]
        before = attrs["padding"][axis][0]
        reach = (size - 1) * attrs["dilation"][axis] + 1
        needed = add(mul(sub(out, 1), attrs["strides"][axis]), reach)
        widths.append((before, sub(sub(needed, own), before)))
    return _over_batch(node, ln.pad(x, widths), dy)


@register_attr("unfold", "lower")
def _unfold(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    """Return windows of windows as windows along several axes of one tensor, where they are."""
    x = as_tensor(operands[0], node)
    chain = [node]
    if x.definition is not None and x.definition.op == "unfold":
        (base,) = x.producers
        while len(chain) <= x.ndim - base.ndim:
            chain.insert(0, chain[0].inputs[0])
        are_unfolds = all(step.op == "unfold" for step in chain)
        axes = [step.attrs["axis"] for step in chain] if are_unfolds else []
        if axes and len({*axes}) == len(axes) and max(axes) < base.ndim:
            given: dict[str, Any] = {
                n: [step.attrs[n] for step in chain] for n in ("size", "stride", "dilation")
            }
            return ln.unfold(base, axes, **given)
    attrs = node.attrs
    return ln.unfold(x, attrs["axis"], attrs["size"], attrs["stride"], attrs["dilation"])
