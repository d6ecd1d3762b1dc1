"""Rules of ATen's convolutions and pools, and of what their gradients are made of."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import loopnest.graph as G
from loopnest.graph.dimensions import Dim, Shape, add, ceildiv, product, sub
from loopnest.graph.node import Node
from loopnest.graph.registry import call as call_op
from loopnest.scalar.dtypes import int32, int64
from loopnest.torch.aten_table import Call, as_node, translates
from loopnest.torch.symbolic_sizes import NotTranslated


def _each(value: Any, rank: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Return one int a spatial axis; torch repeats a single one, and an empty list is a default."""
    given = [value] if isinstance(value, int) else [int(e) for e in value]
    if not given:
        return tuple(default)
    return tuple(given * rank if len(given) == 1 else given)


def number_of(extent: Dim) -> int:
    """Return an extent that is a number.

    Raises:
        NotTranslated: it is a size.
    """
    if isinstance(extent, int):
        return extent
    raise NotTranslated(f"windows along an axis of {extent} elements")


# Convolutions


@translates("convolution.default")
def _convolution(call: Call) -> Node:
    x, w, bias, *around = call.args
    rank = w.ndim - 2
    batched = x if x.ndim == w.ndim else G.expand_dims(x, 0)
    strides, padding, dilation = [_each(value, rank) for value in around[:3]]
    transposed, groups = around[3], around[5]
    if transposed:
        found = G.conv_transposed(
            batched, w, call.shape[-rank:], strides, padding, dilation, groups
        )
    else:
        found = G.conv(batched, w, strides, padding, dilation, groups)
    if bias is not None:
        found = G.add(found, G.reshape(bias, (1, bias.shape[0], *[1] * rank)))
    return found if x.ndim == w.ndim else G.squeeze(found, 0)


@translates("convolution_backward.default")
def _convolution_backward(call: Call) -> tuple[Node | None, ...]:
    dy, x, w, _, *around = call.args
    rank = w.ndim - 2
    if x.ndim != w.ndim:
        raise NotTranslated("without a batch")
    strides, padding, dilation = [_each(value, rank) for value in around[:3]]
    transposed, groups, (of_x, of_w, of_bias) = around[3], around[5], around[6]
    dx = dw = db = None
    if transposed:
        if of_x:
            dx = G.conv(dy, w, strides, padding, dilation, groups)
        if of_w:
            dw = G.conv_weight(dy, x, w.shape[2:], strides, padding, dilation, groups)
    else:
        if of_x:
            space = x.shape[2:]
            dx = G.conv_transposed(dy, w, space, strides, padding, dilation, groups)
        if of_w:
            dw = G.conv_weight(x, dy, w.shape[2:], strides, padding, dilation, groups)
    if of_bias:
        db = G.sum(dy, [0, *range(2, dy.ndim)])
    return dx, dw, db


# Pools


class _Pool:
    """The windows of a pool: sizes, strides, padding and dilation, one a spatial axis.

    Args:
        call: of the pool, or of its gradient.
        out: the spatial extents of the pool's result.
    """

    def __init__(self, call: Call, out: Sequence[Dim]) -> None:
        rank = self.rank = len(out)
        self.size = _each(call["kernel_size"], rank)
        self.stride = _each(call["stride"], rank, self.size)
        self.padding = _each(call["padding"], rank)
        self.dilation = _each(call.get("dilation", 1), rank)
        self.out = tuple(out)

    def reach(self, axis: int) -> int:
        """Return how far the last element of a window is from its first."""
        return (self.size[axis] - 1) * self.dilation[axis]

    def behind(self, axis: int, extent: Dim) -> int:
        """Return how many elements stand behind an axis: what its last window needs.

        Of a symbolic extent it is the padding, and a step less one more where a window that is
        partly outside counts; what that makes too many, no window has.
        """
        out, low, stride = self.out[axis], self.padding[axis], self.stride[axis]
        if not isinstance(extent, int) or not isinstance(out, int):
            starts = sub(add(extent, 2 * low + stride - 1), self.reach(axis))
            return low + stride - 1 if ceildiv(starts, stride) == out else low
        end = (out - 1) * self.stride[axis] + self.reach(axis) + 1
        return max(end - extent - self.padding[axis], 0)

    def windows(self, x: Node, fill: float) -> Node:
        """Return [*, *out, *size]: the windows of x, `fill` around it."""
        lead = x.ndim - self.rank
        widths = [(0, 0)] * lead
        for axis in range(self.rank):
            widths.append((self.padding[axis], self.behind(axis, x.shape[lead + axis])))
        if any(map(any, widths)):
            x = G.pad(x, widths, fill)
        for axis in range(self.rank):
            size, stride = self.size[axis], self.stride[axis]
            x = G.unfold(x, lead + axis, size, stride, self.dilation[axis])
        return x

    def covering(self, dy: Node, space: Sequence[Dim]) -> Node:
        """Return [*, *space, *size]: what stands in the windows over each element, else 0."""
        lead = dy.ndim - self.rank
        shape, starts, steps = [*dy.shape[:lead]], [0] * lead, [1] * lead
        for axis, extent in enumerate(space):
            reach = self.reach(axis)
            if self.padding[axis] > reach:
                raise NotTranslated("more padding than a window is long")
            shape.append(add(extent, reach))
            starts.append(reach - self.padding[axis])
            steps.append(self.stride[axis])
        spread = G.unslice(dy, shape, starts, steps)
        for axis in range(self.rank):
            spread = G.unfold(spread, lead + axis, self.size[axis], 1, self.dilation[axis])
        return spread

    def plane(self, shape: Shape) -> dict[str, Any] | None:
        """Return the attributes of ``max_pool2d`` that say the same; None where it has none."""
        if self.rank != 2 or set(self.dilation) != {1}:
            return None
        behind = tuple([self.behind(axis, shape[axis - 2]) for axis in (0, 1)])
        if any(map(operator.ge, (*self.padding, *behind), self.size * 2)):
            return None
        around = (*self.padding, *behind)
        sizes = {"pool": self.size, "strides": self.stride, "padding": around}
        return {**sizes, "data_layout": "NCHW"}

    def last(self, windows: Node) -> list[int]:
        """Return the axes of the elements of windows."""
        return list(range(windows.ndim - self.rank, windows.ndim))


def _rows_and_columns(plane: Mapping[str, Any], out: Shape) -> tuple[Node, Node]:
    """Return where each window begins, in front of the image where it does: [OH, 1], [OW]."""
    rows, columns = [
        G.iota(extent, -before, step, int64)
        for extent, before, step in zip(out, plane["padding"], plane["strides"], strict=False)
    ]
    return G.expand_dims(rows, 1), columns


def _largest_of_planes(x: Node, plane: Mapping[str, Any]) -> tuple[Node, Node]:
    """Return the largest elements of windows over H and W, and the flat place of each."""
    planes = x if x.ndim == 4 else G.expand_dims(x, 0)
    largest = call_op("max_pool2d", (planes,), plane)
    numbers = call_op("max_pool2d_places", (planes, largest), plane)
    width = plane["pool"][1]
    rows, columns = _rows_and_columns(plane, largest.shape[2:])
    # Numbers are taken apart in their own narrow type.
    own_rows, own_columns = numbers // width, numbers % width
    places = (G.cast(own_rows, int64) + rows) * G.size(x.shape[-1], int64)
    places = places + (G.cast(own_columns, int64) + columns)
    found = largest, places
    return found if x.ndim == 4 else (G.squeeze(largest, 0), G.squeeze(places, 0))


def _spread_over_planes(x: Node, dy: Node, places: Node, plane: Mapping[str, Any]) -> Node:
    """Return the gradient of windows over H and W, from the flat places of their largest."""
    given = [value if x.ndim == 4 else G.expand_dims(value, 0) for value in (dy, places)]
    extent, width = G.size(x.shape[-1], int64), plane["pool"][1]
    rows, columns = _rows_and_columns(plane, dy.shape[-2:])
    own_rows, own_columns = given[1] // extent - rows, given[1] % extent - columns
    numbers = G.cast(own_rows * width + own_columns, int32)
    shape = x.shape if x.ndim == 4 else (1, *x.shape)
    found = call_op("max_pool2d_spread", (numbers, given[0]), {"shape": shape, **plane})
    return found if x.ndim == 4 else G.squeeze(found, 0)


def _places(space: Sequence[Dim], first: int = 0) -> Node:
    """Return each element's flat place in space, from `first` on."""
    if all(isinstance(extent, int) for extent in space):
        return G.reshape(G.iota(product(space), first, 1, int64), tuple(space))
    found = G.iota(space[0], 0, 1, int64)
    for axis in range(1, len(space)):
        rows = G.expand_dims(found, axis) * G.size(space[axis], int64)
        found = rows + G.iota(space[axis], 0, 1, int64)
    return found + first


_NOWHERE = 1 << 62
"""Behind the places of all elements."""


def _max_rule(rank: int) -> Any:
    def rule(call: Call) -> tuple[Node, Node]:
        x = call[0]
        pool = _Pool(call, call.shape[-rank:])
        if not x.dtype.is_float:
            raise NotTranslated("of integers")
        plane = pool.plane(x.shape)
        if plane is not None:
            return _largest_of_planes(x, plane)
        windows = pool.windows(x, -math.inf)
        largest = G.max(windows, pool.last(windows))
        return largest, _first_places(call, pool, windows, largest, x.shape[-rank:])

    return rule


def _first_places(
    call: Call, pool: _Pool, windows: Node, largest: Node, space: Sequence[Dim]
) -> Node:
    """Return the first place of the largest element of each window (a NaN is the largest)."""
    own = pool.windows(_places(space), _NOWHERE)
    whole = G.reshape(largest, (*largest.shape, *[1] * pool.rank))
    found = G.logical_or(G.eq(windows, whole), G.isnan(windows))
    return G.min(G.where(found, own, G.const(_NOWHERE, int64)), pool.last(windows))


def _max_backward_rule(rank: int) -> Any:
    def rule(call: Call) -> Node:
        dy, x, places = call[0], call[1], call["indices"]
        pool = _Pool(call, dy.shape[-rank:])
        space = x.shape[-rank:]
        plane = pool.plane(x.shape)
        if plane is not None:
            return _spread_over_planes(x, dy, places, plane)
        spread = pool.covering(dy, space)
        chosen = pool.covering(G.add(places, G.const(1, int64)), space)
        own = G.reshape(_places(space, 1), (*space, *[1] * rank))
        taken = G.where(G.eq(chosen, own), spread, as_node(0, dy.dtype))
        return G.sum(taken, pool.last(spread))

    return rule


def _average_rule(rank: int) -> Any:
    def rule(call: Call) -> Node:
        x = call[0]
        pool = _Pool(call, call.shape[-rank:])
        wide = as_node(x, call.dtype.compute)
        windows = pool.windows(wide, 0)
        total = G.sum(windows, pool.last(windows))
        return as_node(_divided(total, pool, x.shape[-rank:], call), call.dtype)

    return rule


def _average_backward_rule(rank: int) -> Any:
    def rule(call: Call) -> Node:
        dy, x = call[0], call[1]
        pool = _Pool(call, dy.shape[-rank:])
        wide = as_node(dy, call.dtype.compute)
        spread = pool.covering(_divided(wide, pool, x.shape[-rank:], call), x.shape[-rank:])
        return as_node(G.sum(spread, pool.last(spread)), call.dtype)

    return rule


def _divided(total: Node, pool: _Pool, space: Sequence[Dim], call: Call) -> Node:
    """Divide sums over windows by their numbers of elements, as the arguments say."""
    override = call.get("divisor_override")  # a pool of one axis has none
    if override is not None:
        return G.div(total, as_node(override, total.dtype))
    counted = call["count_include_pad"]
    whole = not any(map(bool, pool.padding)) or counted
    if not all(isinstance(extent, int) for extent in (*space, *pool.out)):
        if whole and not call["ceil_mode"]:
            return G.div(total, as_node(math.prod(pool.size), total.dtype))
        lengths = [
            _symbolic_lengths(pool, axis, extent, counted) for axis, extent in enumerate(space)
        ]
        found = lengths[0]
        for axis in range(1, len(space)):
            found = G.expand_dims(found, axis) * lengths[axis]
        return G.div(total, G.cast(found, total.dtype))
    rows = [_lengths(pool, axis, extent, counted) for axis, extent in enumerate(space)]
    if all(len(set(row)) == 1 for row in rows):
        return G.div(total, as_node(math.prod([row[0] for row in rows]), total.dtype))
    counts = np.ones((), np.float64)
    for row in rows:
        counts = np.multiply.outer(counts, row)
    return G.div(total, G.const(counts, total.dtype))


def _symbolic_lengths(pool: _Pool, axis: int, extent: Dim, counted: bool) -> Node:
    """Return what `_lengths` returns as a node."""
    low = -pool.padding[axis] if counted else 0
    high = G.size(add(extent, -low), int64)
    start = G.iota(pool.out[axis], -pool.padding[axis], pool.stride[axis], int64)
    return G.minimum(start + pool.size[axis], high) - G.maximum(start, low)


def _lengths(pool: _Pool, axis: int, extent: Dim, counted: bool) -> list[int]:
    """Return how many elements each window has along an axis, with the padding or without."""
    low = -pool.padding[axis] if counted else 0
    high = number_of(extent) + (pool.padding[axis] if counted else 0)
    found = []
    for place in range(number_of(pool.out[axis])):
        start = place * pool.stride[axis] - pool.padding[axis]
        found.append(min(start + pool.size[axis], high) - max(start, low))
    return found


for _number in (1, 2, 3):
    translates(f"max_pool{_number}d_with_indices.default")(_max_rule(_number))
    translates(f"max_pool{_number}d_with_indices_backward.default")(_max_backward_rule(_number))
    translates(f"avg_pool{_number}d.default")(_average_rule(_number))
    translates(f"avg_pool{_number}d_backward.default")(_average_backward_rule(_number))


@translates("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def _adaptive(call: Call) -> Node:
    """Return means of equal parts; where the parts differ, torch computes them."""
    x, sizes = call[0], call[1]
    rank = len(sizes)
    space = x.shape[-rank:]
    if any(e % n for e, n in zip(space, sizes, strict=True)):
        raise NotTranslated("of parts that differ")
    shape = [*x.shape[:-rank]]
    for extent, count in zip(space, sizes, strict=True):
        shape += [count, extent // count]
    lead = x.ndim - rank
    parts = G.reshape(x, shape)
    return G.mean(parts, [lead + 2 * axis + 1 for axis in range(rank)])
