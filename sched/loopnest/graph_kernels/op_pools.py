"""The attribute ``lower`` of pooling over H and W, and of the ops that its gradients are made of.

What is spread back is read in windows too: along an axis, element x of the operand of a pool lies
at place k of window o where ``x + before = o * stride + k``. With ``stride - 1`` zeros between the
windows' values and a border, those windows are neighbours, in reversed order.
"""

from __future__ import annotations

import loopnest as ln
from loopnest.graph.dimensions import Dim, add, mul, sub
from loopnest.graph.node import Node
from loopnest.graph.operators.pool_phases import PoolPhases, pool_phases
from loopnest.graph.registry import register_attr
from loopnest.graph_kernels.op_math import MathOperand, as_tensor, size_operand
from loopnest.graph_kernels.op_windows import Around, check_plain

_NOWHERE = 1 << 30
"""Behind the places of all elements of a window."""
_OUTSIDE = -(1 << 20)
"""In front of them, and so far that no sum with one of them is one."""


def _pairs(node: Node) -> tuple[tuple[int, int], tuple[int, int]]:
    top, left, bottom, right = node.attrs["padding"]
    return (top, bottom), (left, right)


@register_attr("max_pool2d", "lower")
def _max_pool(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    check_plain(node)
    attrs = node.attrs
    return ln.max_pool(as_tensor(operands[0], node), attrs["pool"], attrs["strides"], _pairs(node))


@register_attr("avg_pool2d", "lower")
def _avg_pool(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    """Return the mean of each window; where the padding does not count, over what lies inside."""
    check_plain(node)
    attrs = node.attrs
    x = as_tensor(operands[0], node)
    found = ln.avg_pool(x, attrs["pool"], attrs["strides"], _pairs(node))
    if attrs["count_include_pad"] or not any(attrs["padding"]):
        return found
    whole = attrs["pool"][0] * attrs["pool"][1]
    inside = _inside(node, node.inputs[0].shape[2:], node.shape[2:])
    return ln.mul(found, ln.div(float(whole), inside))


def _inside(node: Node, extents: tuple[Dim, ...], counts: tuple[Dim, ...]) -> ln.TensorView:
    """Return for each window how many of its elements lie inside: [OH, OW], floats."""
    found = []
    for axis, (extent, count) in enumerate(zip(extents, counts, strict=True)):
        size, stride = node.attrs["pool"][axis], node.attrs["strides"][axis]
        start = ln.iota(count, dtype=ln.int64) * stride - node.attrs["padding"][axis]
        stop = ln.minimum(start + size, size_operand(extent, ln.int64, node))
        found.append(ln.cast(stop - ln.maximum(start, 0), node.dtype.compute))
    return ln.mul(ln.broadcast(found[0], [False, True]), found[1])


def _windows(x: ln.TensorView, node: Node, fill: float) -> ln.TensorView:
    """Return the windows of a padded operand: [N, C, OH, OW, KH, KW]."""
    attrs = node.attrs
    if any(attrs["padding"]):
        x = ln.pad(x, ((0, 0), (0, 0), *_pairs(node)), fill)
    return ln.unfold(x, (2, 3), attrs["pool"], attrs["strides"])


@register_attr("max_pool2d_places", "lower")
def _max_places(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    check_plain(node)
    x, largest = [as_tensor(operand, node) for operand in operands]
    windows = _windows(x, node, 0)
    chosen = ln.eq(windows, ln.broadcast(largest, [False] * 4 + [True] * 2))
    if x.dtype.is_float:
        chosen = ln.logical_or(chosen, ln.isnan(windows))
    for axis in (0, 1):
        if node.attrs["padding"][axis] or node.attrs["padding"][2 + axis]:
            chosen = ln.logical_and(chosen, _is_inside(node, axis))
    return ln.min(ln.where(chosen, _numbers(node), _NOWHERE), axis=(4, 5))


def _is_inside(node: Node, axis: int) -> ln.TensorView:
    """Return which elements of windows lie inside along H, [OH, 1, KH, 1], or along W."""
    attrs, extent = node.attrs, node.inputs[0].shape[2 + axis]
    dtype = ln.int32 if isinstance(extent, int) and extent < _NOWHERE else ln.int64
    before = attrs["padding"][axis]
    starts = ln.iota(node.shape[2 + axis], dtype=dtype) * attrs["strides"][axis] - before
    steps = ln.iota(attrs["pool"][axis], dtype=dtype)
    places = ln.broadcast(starts, [place != axis for place in range(4)]) + ln.broadcast(
        steps, [place != 2 + axis for place in range(4)]
    )
    return ln.logical_and(places >= 0, places < size_operand(extent, dtype, node))


def _numbers(node: Node, reverse: bool = False) -> ln.TensorView:
    """Return the place of each element of a window, in row-major order: [KH, KW]."""
    height, width = node.attrs["pool"]
    rows, columns = ln.iota(height, dtype=ln.int32), ln.iota(width, dtype=ln.int32)
    if reverse:
        rows, columns = height - 1 - rows, width - 1 - columns
    return ln.broadcast(rows * width, [False, True]) + columns


@register_attr("max_pool2d_pick", "lower")
def _max_pick(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    check_plain(node)
    places, values = [as_tensor(operand, node) for operand in operands]
    at_window = ln.broadcast(places, [False] * 4 + [True] * 2)
    chosen = ln.eq(at_window, _numbers(node))
    return ln.sum(ln.where(chosen, _windows(values, node, 0), 0), axis=(4, 5))


@register_attr("max_pool2d_spread", "lower")
def _max_spread(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    """Return the sum of the values of those windows whose largest element each element is."""
    check_plain(node)
    places, dy = [as_tensor(operand, node) for operand in operands]
    chosen = ln.eq(_around(places, node, -1), _numbers(node, reverse=True))
    return ln.sum(ln.where(chosen, _around(dy, node, 0), 0), axis=(4, 5))


@register_attr("max_pool2d_spread_phases", "lower")
def _max_spread_phases(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    """Return what `max_pool2d_spread` does, from the windows that an element of a phase lies in.

    All elements of a phase are at the same places of so many neighbouring windows.
    """
    axes = pool_phases(node.attrs)
    places, dy = [as_tensor(operand, node) for operand in operands]
    chosen = ln.eq(_near(places, axes, -1), _phase_numbers(node, axes))
    return ln.sum(ln.where(chosen, _near(dy, axes, 0), 0), axis=(6, 7))


def _near(values: ln.TensorView, axes: list[PoolPhases], fill: int) -> ln.TensorView:
    """Return the values of the windows around each phase's elements: [N, C, 1, 1, H, W, KH, KW]."""
    around: list[Around] = [(0, 0), (0, 0), *[(a.before, a.behind) for a in axes]]
    found = ln.unfold(ln.pad(values, around, fill), (2, 3), [a.taps for a in axes])
    return ln.broadcast(found, [False, False, True, True, *[False] * 4])


def _phase_numbers(node: Node, axes: list[PoolPhases]) -> ln.TensorView:
    """Return the place of an element of a phase in each window around: [SH, SW, 1, 1, KH, KW].

    It is negative where the element lies outside, and none of the places -1.
    """
    width, found = node.attrs["pool"][1], []
    for axis, size in zip(axes, node.attrs["pool"], strict=True):
        phase = ln.broadcast(ln.iota(axis.stride, dtype=ln.int32), [False, True])
        tap = axis.taps - 1 - ln.iota(axis.taps, dtype=ln.int32)
        place = phase + tap * axis.stride + axis.nearest
        outside = ln.logical_or(ln.lt(place, 0), ln.ge(place, size))
        found.append(ln.where(outside, _OUTSIDE, place))
    rows = ln.broadcast(found[0] * width, [False, True, True, True, False, True])
    columns = ln.broadcast(found[1], [True, False, True, True, True, False])
    return rows + columns


@register_attr("avg_pool2d_backward", "lower")
def _avg_back(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    check_plain(node)
    dy, attrs = as_tensor(operands[0], node), node.attrs
    if attrs["count_include_pad"] or not any(attrs["padding"]):
        share = dy * (1.0 / (attrs["pool"][0] * attrs["pool"][1]))
    else:
        share = dy / _inside(node, node.shape[2:], node.inputs[0].shape[2:])
    return ln.sum(_around(share, node, 0), axis=(4, 5))


def _around(values: ln.TensorView, node: Node, fill: int) -> ln.TensorView:
    """Return for each element the values of the windows that it may lie in: [N, C, H, W, KH, KW].

    The last window that it lies in, in which it is the first element, comes last.
    """
    attrs, counts = node.attrs, node.inputs[0].shape
    widths: list[Around] = [(0, 0), (0, 0)]
    for axis in (0, 1):
        size, stride = attrs["pool"][axis], attrs["strides"][axis]
        before = size - 1 - attrs["padding"][axis]
        own = add(mul(sub(counts[2 + axis], 1), stride), 1)
        after = sub(add(node.shape[2 + axis], size - 1), add(own, before))
        widths.append((before, after))
    between = (0, 0, *[stride - 1 for stride in attrs["strides"]])
    return ln.unfold(ln.pad(values, widths, fill, between), (2, 3), attrs["pool"])
