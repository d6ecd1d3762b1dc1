"""Pooling over H and W, and the ops that its gradients are made of.

Each op has a partner: `max_pool2d_backward` spreads values to where the largest elements of x are
(the first of several), `max_pool2d_gather` collects values from there; `avg_pool2d_backward` is
`avg_pool2d` transposed. A kernel looks for these places first: ``max_pool2d_places`` numbers, from
x and the largest elements, where in its window each is; ``max_pool2d_spread`` and
``max_pool2d_pick`` go by that. ``max_pool2d_spread_phases`` is the former with elements that are a
stride apart as neighbours: [N, C, *strides, *elements of a phase].

All of them are made of windows (`unfold`). What is spread back is read in windows too: along an
axis, element x of the operand of a pool lies at place k of window o where
``x + before = o * stride + k``. With ``stride - 1`` zeros between the windows' values and a border,
those windows are neighbours, in reversed order.

By phases there are no zeros between them. All elements of a phase (one rest of their number by the
stride) lie at the same places of windows, and read the same number of neighbouring ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loopnest.graph.data_layout import LayoutRule, math_shape, parse_layout, shape_in
from loopnest.graph.dimensions import Dim, DimLike, Shape, add, mul, shown
from loopnest.graph.graph_error import Refused
from loopnest.graph.leaves import shape_of
from loopnest.graph.node import Attrs, Node, Operand, TensorType
from loopnest.graph.operators import movement_ops as m
from loopnest.graph.operators import pointwise_ops as p
from loopnest.graph.operators import reduction_ops as r
from loopnest.graph.operators.convolution import around, pair, unfold, window_extent
from loopnest.graph.operators.creation import iota, size
from loopnest.graph.operators.node_operands import declares, meet, one_type
from loopnest.graph.registry import (
    REQUIRED,
    Pattern,
    call,
    call_text,
    register_attr,
    takes_arguments,
)
from loopnest.scalar.dtypes import FLOAT, KEEPING, DType, int32, int64

__all__ = [
    "avg_pool2d",
    "avg_pool2d_backward",
    "max_pool2d",
    "max_pool2d_backward",
    "max_pool2d_gather",
]

_POOL = {"pool": REQUIRED, "strides": REQUIRED, "padding": (0, 0, 0, 0), "data_layout": "NCHW"}
_AVERAGE = {**_POOL, "count_include_pad": False}


@takes_arguments
def max_pool2d(
    x: Operand,
    pool: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    data_layout: str = "NCHW",
) -> Node:
    """Return the largest element of each window; NaN if one is.

    Args:
        x: [N, C, H, W] in `data_layout`.
        pool: extents of a window.
        strides: distances of windows; the extents by default.
        padding: 1, 2 or 4 numbers, as of `conv2d`; it never is the largest.
        data_layout: "NCHW", "NHWC", "NCHW16c"…

    Raises:
        GraphError: shapes, layouts or attributes that do not fit.
    """
    attrs = _attrs("max_pool2d", x, pool, strides, padding, data_layout)
    return call("max_pool2d", meet("max_pool2d", (x,), KEEPING), attrs)


@takes_arguments
def avg_pool2d(
    x: Operand,
    pool: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    data_layout: str = "NCHW",
    count_include_pad: bool = False,
) -> Node:
    """Return the mean of each window; arguments as of `max_pool2d`.

    Args:
        x: [N, C, H, W] in `data_layout`.
        pool: extents of a window.
        strides: distances of windows; the extents by default.
        padding: 1, 2 or 4 numbers, as of `conv2d`.
        data_layout: "NCHW", "NHWC", "NCHW16c"…
        count_include_pad: whether zeros of the padding count as elements.

    Raises:
        GraphError: shapes, layouts or attributes that do not fit.
    """
    attrs = _attrs("avg_pool2d", x, pool, strides, padding, data_layout)
    attrs["count_include_pad"] = count_include_pad
    return call("avg_pool2d", meet("avg_pool2d", (x,), FLOAT), attrs)


@takes_arguments
def max_pool2d_backward(x: Operand, dy: Operand, **attrs: object) -> Node:
    """Return dy added up where the largest elements of the windows of x are.

    Args:
        x: what was pooled, [N, C, H, W] in `data_layout`.
        dy: of the shape of ``max_pool2d(x, **attrs)``.
        attrs: pool_size, strides, padding and data_layout of that call.

    Raises:
        GraphError: shapes or attributes that do not fit.
    """
    op = "max_pool2d_backward"
    return call(op, meet(op, (x, dy), FLOAT), attrs)


@takes_arguments
def max_pool2d_gather(x: Operand, values: Operand, **attrs: object) -> Node:
    """Return the values that stand where the largest elements of the windows of x are.

    Args:
        x: what was pooled, [N, C, H, W] in `data_layout`.
        values: of the shape of x.
        attrs: pool_size, strides, padding and data_layout of the pooling.

    Raises:
        GraphError: shapes or attributes that do not fit.
    """
    op = "max_pool2d_gather"
    return call(op, meet(op, (x, values), FLOAT), attrs)


@takes_arguments
def avg_pool2d_backward(dy: Operand, shape: Sequence[DimLike], **attrs: object) -> Node:
    """Return the gradient of what was averaged, given that of the averages.

    Args:
        dy: of the shape of ``avg_pool2d(x, **attrs)``.
        shape: that of x.
        attrs: pool_size, strides, padding and data_layout of that call.

    Raises:
        GraphError: shapes or attributes that do not fit.
    """
    op = "avg_pool2d_backward"
    return call(op, meet(op, (dy,), FLOAT), {"shape": shape_of(shape, op), **attrs})


def _attrs(
    op: str, x: object, pool: object, strides: object, padding: object, data_layout: str
) -> dict[str, object]:
    subject = call_text(op, (x,), {"pool": pool, "strides": strides, "padding": padding})
    size = pair(pool, subject)
    return {
        "pool": size,
        "strides": size if strides is None else pair(strides, subject),
        "padding": around(padding, subject),
        "data_layout": data_layout,
    }


def _pooled(shape: Shape, attrs: Attrs) -> Shape:
    """Return the shape of a pool's output.

    Raises:
        Refused: a layout or a window that does not fit, or one that sees padding alone.
    """
    layout = parse_layout(attrs["data_layout"])
    if "".join(sorted(layout.letters)) != "CHNW":
        raise Refused(f"layout {layout} has other axes", "its axes are those of NCHW")
    extents = math_shape(shape, layout)
    top, left, bottom, right = attrs["padding"]
    for axis, (letter, before, after) in enumerate((("H", top, bottom), ("W", left, right))):
        if max(before, after) >= attrs["pool"][axis]:
            raise Refused(f"padding {attrs['padding']} of windows {attrs['pool']}", "pad less")
        padded = add(extents[letter], before + after)
        extents[letter] = window_extent(padded, attrs["pool"][axis], attrs["strides"][axis], 1)
    return shape_in(extents, layout)


def _infer(attrs: Attrs, x: TensorType) -> TensorType:
    return TensorType(_pooled(x.shape, attrs), x.dtype)


def _infer_average(attrs: Attrs, x: TensorType) -> TensorType:
    if not x.dtype.is_float:
        raise Refused(f"it does not take {x.dtype}", "cast the operand")
    return _infer(attrs, x)


def _infer_spread(attrs: Attrs, x: TensorType, dy: TensorType) -> TensorType:
    one_type((x, dy))
    if dy.shape != _pooled(x.shape, attrs):
        found = shown(_pooled(x.shape, attrs))
        raise Refused(f"the gradient is {shown(dy.shape)}, the output {found}")
    return x


def _infer_gather(attrs: Attrs, x: TensorType, values: TensorType) -> TensorType:
    one_type((x, values))
    if values.shape != x.shape:
        raise Refused(f"the values are {shown(values.shape)}, x is {shown(x.shape)}")
    return TensorType(_pooled(x.shape, attrs), x.dtype)


def _infer_places(attrs: Attrs, x: TensorType, largest: TensorType) -> TensorType:
    one_type((x, largest))
    pooled = _pooled(x.shape, attrs)
    if largest.shape != pooled:
        raise Refused(f"the largest elements are {largest}", f"windows: {shown(pooled)}")
    return TensorType(pooled, int32)


def _infer_by_places(attrs: Attrs, places: TensorType, values: TensorType) -> TensorType:
    if places.dtype is not int32:
        raise Refused(f"the places are {places.dtype}", "max_pool2d_places gives int32")
    pooled = _pooled(attrs.get("shape", values.shape), attrs)
    if places.shape != pooled or ("shape" in attrs and values.shape != pooled):
        raise Refused(f"the places are {places}, the values {values}", f"windows: {shown(pooled)}")
    return TensorType(attrs.get("shape", pooled), values.dtype)


def _infer_phases(attrs: Attrs, places: TensorType, values: TensorType) -> TensorType:
    _infer_by_places(attrs, places, values)
    static = all(isinstance(extent, int) for extent in attrs["shape"][2:])
    if attrs["data_layout"] != "NCHW" or not static:
        raise Refused(f"x is {shown(attrs['shape'])} in {attrs['data_layout']}", "static, NCHW")
    axes = pool_phases(attrs)
    steps, counts = [a.stride for a in axes], [a.count for a in axes]
    return TensorType((*attrs["shape"][:2], *steps, *counts), values.dtype)


def _infer_average_back(attrs: Attrs, dy: TensorType) -> TensorType:
    if dy.shape != _pooled(attrs["shape"], attrs):
        raise Refused(f"the gradient is {shown(dy.shape)}, the output differs")
    return TensorType(attrs["shape"], dy.dtype)


@dataclass(frozen=True, slots=True)
class PoolPhases:
    """The phases along an axis of a pool's operand.

    Element ``q * stride + r`` lies at place ``r + nearest + t * stride`` of the window t in front
    of the last one of q, where it lies inside.

    Args:
        stride: the number of phases.
        taps: the windows around an element.
        nearest: the place of element 0 in the last of them; negative where it lies in front of it.
        count: elements of a phase.
        before: windows that are missing in front of the first.
        behind: windows that are missing behind the last.
    """

    stride: int
    taps: int
    nearest: int
    count: int
    before: int
    behind: int


def pool_phases(attrs: Attrs) -> list[PoolPhases]:
    """Return the phases along H and W of an operand of static shape in the layout NCHW."""
    rows = zip(attrs["pool"], attrs["strides"], _pairs(attrs), attrs["shape"][2:], strict=True)
    return [_axis(*row) for row in rows]


def _axis(size: int, stride: int, around: tuple[int, int], extent: Dim) -> PoolPhases:
    assert isinstance(extent, int)
    count = -(-extent // stride)
    ahead = (stride - 1 + around[0]) // stride  # windows that begin behind phase 0
    before = (size - 1 - around[0]) // stride
    windows = (extent + sum(around) - size) // stride + 1
    behind = count + ahead - windows
    taps = ahead + before + 1
    return PoolPhases(stride, taps, around[0] - ahead * stride, count, before, behind)


def side_by_side(apart: Node, shape: Shape) -> Node:
    """Return what lies by phases, [N, C, SH, SW, counts of H, counts of W], as [N, C, H, W]."""
    n, c, *steps, rows, columns = apart.shape
    moved = m.transpose(apart, (0, 1, 4, 2, 5, 3))
    whole = m.reshape(moved, (n, c, mul(rows, steps[0]), mul(columns, steps[1])))
    return whole if whole.shape == shape else m.slice(whole, [0] * 4, shape, [1] * 4)


# What they are made of


_NOWHERE = 1 << 30
"""Behind the places of all elements of a window."""
_OUTSIDE = -(1 << 20)
"""In front of them, and so far that no sum with one of them is one."""
_INNER = (4, 5)
"""The axes of windows [N, C, OH, OW, KH, KW] that their elements lie along."""


def _pairs(attrs: Attrs) -> tuple[tuple[int, int], tuple[int, int]]:
    top, left, bottom, right = attrs["padding"]
    return (top, bottom), (left, right)


def _windows(x: Node, attrs: Attrs, fill: float) -> Node:
    """Return the windows of a padded operand: [N, C, OH, OW, KH, KW]."""
    if any(attrs["padding"]):
        x = m.pad(x, ((0, 0), (0, 0), *_pairs(attrs)), fill)
    for axis in (0, 1):
        x = unfold(x, 2 + axis, attrs["pool"][axis], attrs["strides"][axis])
    return x


def _least(dtype: DType) -> float:
    if dtype.is_bool:
        return False
    return -math.inf if dtype.is_float else dtype.least


def _max(node: Node) -> Node:
    (x,) = node.inputs
    return r.max(_windows(x, node.attrs, _least(x.dtype)), _INNER)


def _average(node: Node) -> Node:
    """Return the mean of each window; where the padding does not count, over what lies inside."""
    attrs, (x,) = node.attrs, node.inputs
    windows = _windows(p.cast(x, x.dtype.compute), attrs, 0)
    if attrs["count_include_pad"] or not any(attrs["padding"]):
        return p.cast(r.mean(windows, _INNER), node.dtype)
    inside = _inside(attrs, x.shape[2:], node.shape[2:], windows.dtype)
    return p.cast(p.div(r.sum(windows, _INNER), inside), node.dtype)


def _inside(attrs: Attrs, extents: Shape, counts: Shape, dtype: DType) -> Node:
    """Return for each window how many of its elements lie inside: [OH, OW]."""
    found = []
    for axis, (extent, count) in enumerate(zip(extents, counts, strict=True)):
        start = p.sub(p.mul(iota(count), attrs["strides"][axis]), attrs["padding"][axis])
        stop = p.minimum(p.add(start, attrs["pool"][axis]), size(extent, int64))
        found.append(p.cast(p.sub(stop, p.maximum(start, 0)), dtype))
    return p.mul(m.expand_dims(found[0], 1), found[1])


def _average_back(node: Node) -> Node:
    attrs, (dy,) = node.attrs, node.inputs
    wide = p.cast(dy, dy.dtype.compute)
    if attrs["count_include_pad"] or not any(attrs["padding"]):
        share = p.mul(wide, 1.0 / math.prod(attrs["pool"]))
    else:
        share = p.div(wide, _inside(attrs, node.shape[2:], dy.shape[2:], wide.dtype))
    return p.cast(r.sum(_around(share, node), _INNER), node.dtype)


def _around(values: Node, node: Node) -> Node:
    """Return for each element the values of the windows that it may lie in: [N, C, H, W, KH, KW].

    The last window that it lies in, in which it is the first element, comes last.
    """
    attrs = node.attrs
    shape: list[Dim] = [*values.shape[:2]]
    starts, steps = [0, 0], [1, 1, *attrs["strides"]]
    for axis, length in enumerate(attrs["pool"]):
        shape.append(add(node.shape[2 + axis], length - 1))
        starts.append(length - 1 - attrs["padding"][axis])
    found = m.unslice(values, shape, starts, steps)
    return unfold(unfold(found, 2, attrs["pool"][0]), 3, attrs["pool"][1])


def _numbers(attrs: Attrs, reverse: bool = False) -> Node:
    """Return the place of each element of a window, in row-major order: [KH, KW]."""
    height, width = attrs["pool"]
    rows, columns = iota(height, dtype=int32), iota(width, dtype=int32)
    if reverse:
        rows, columns = p.sub(height - 1, rows), p.sub(width - 1, columns)
    return p.add(m.expand_dims(p.mul(rows, width), 1), columns)


def by_places(node: Node) -> Node:
    """Return what spreads or picks by the places of the largest elements, found first."""
    x, values = node.inputs
    largest = call("max_pool2d", (x,), node.attrs)
    places = call("max_pool2d_places", (x, largest), node.attrs)
    if node.op == "max_pool2d_gather":
        return call("max_pool2d_pick", (places, values), node.attrs)
    return call("max_pool2d_spread", (places, values), {"shape": x.shape, **node.attrs})


def _max_places(node: Node) -> Node:
    """Return which element of each window is the (first) largest.

    NaN is the largest; the padding never is, even where all elements are -inf.
    """
    attrs, (x, largest) = node.attrs, node.inputs
    windows = _windows(x, attrs, 0)
    chosen = p.eq(windows, m.expand_dims(largest, _INNER))
    if x.dtype.is_float:
        chosen = p.logical_or(chosen, p.isnan(windows))
    for axis in (0, 1):
        if any(_pairs(attrs)[axis]):
            chosen = p.logical_and(chosen, _is_inside(node, axis))
    return r.min(p.where(chosen, _numbers(attrs), _NOWHERE), _INNER)


def _is_inside(node: Node, axis: int) -> Node:
    """Return which elements of windows lie inside along H, [OH, 1, KH, 1], or along W."""
    attrs, extent = node.attrs, node.inputs[0].shape[2 + axis]
    dtype = int32 if isinstance(extent, int) and extent < _NOWHERE else int64
    windows = iota(node.shape[2 + axis], dtype=dtype)
    starts = p.sub(p.mul(windows, attrs["strides"][axis]), attrs["padding"][axis])
    steps = iota(attrs["pool"][axis], dtype=dtype)
    others = [[place for place in range(4) if place != own] for own in (axis, 2 + axis)]
    places = p.add(m.expand_dims(starts, others[0]), m.expand_dims(steps, others[1]))
    return p.logical_and(p.ge(places, 0), p.lt(places, size(extent, dtype)))


def _max_pick(node: Node) -> Node:
    places, values = node.inputs
    chosen = p.eq(m.expand_dims(places, _INNER), _numbers(node.attrs))
    return r.sum(p.where(chosen, _windows(values, node.attrs, 0), 0), _INNER)


def _max_spread(node: Node) -> Node:
    """Return the sum of the values of those windows whose largest element each element is."""
    places, dy = node.inputs
    chosen = p.eq(_around(places, node), _numbers(node.attrs, reverse=True))
    return r.sum(p.where(chosen, _around(dy, node), 0), _INNER)


def _max_spread_phases(node: Node) -> Node:
    """Return what `max_pool2d_spread` does, from the windows that an element of a phase lies in."""
    axes = pool_phases(node.attrs)
    places, dy = node.inputs
    chosen = p.eq(_near(places, axes, -1), _phase_numbers(node.attrs, axes))
    return r.sum(p.where(chosen, _near(dy, axes, 0), 0), (6, 7))


def _near(values: Node, axes: list[PoolPhases], fill: int) -> Node:
    """Return the values of the windows around each phase's elements: [N, C, 1, 1, H, W, KH, KW]."""
    found = m.pad(values, [(0, 0), (0, 0), *[(a.before, a.behind) for a in axes]], fill)
    for place, axis in enumerate(axes, 2):
        found = unfold(found, place, axis.taps)
    return m.expand_dims(found, (2, 3))


def _phase_numbers(attrs: Attrs, axes: list[PoolPhases]) -> Node:
    """Return the place of an element of a phase in each window around: [SH, SW, 1, 1, KH, KW].

    It is negative where the element lies outside, and none of the places -1.
    """
    found = []
    for axis, length in zip(axes, attrs["pool"], strict=True):
        phase = m.expand_dims(iota(axis.stride, dtype=int32), 1)
        tap = p.sub(axis.taps - 1, iota(axis.taps, dtype=int32))
        place = p.add(p.add(phase, p.mul(tap, axis.stride)), axis.nearest)
        outside = p.logical_or(p.lt(place, 0), p.ge(place, length))
        found.append(p.where(outside, _OUTSIDE, place))
    rows = m.expand_dims(p.mul(found[0], attrs["pool"][1]), (1, 2, 3, 5))
    return p.add(rows, m.expand_dims(found[1], (0, 2, 3, 4)))


def _in_plain_layout(function: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """Return what a node of any layout is made of, given that of one of NCHW."""

    def made(node: Node) -> Node:
        plain = m.in_plain_layouts(node)
        return function(node) if plain is node else plain

    return made


def _register(name: str, infer: Any, made: Callable[[Node], Node], params: dict[str, Any]) -> None:
    anchor = name in ("max_pool2d", "avg_pool2d")
    pattern = Pattern.OUT_ELEMWISE_FUSABLE if anchor else Pattern.OPAQUE
    declares(name, params, pattern=pattern)(infer)
    register_attr(name, "math", _in_plain_layout(made))


_SHAPED = {"shape": REQUIRED, **_POOL}
_register("max_pool2d", _infer, _max, _POOL)
_register("max_pool2d_backward", _infer_spread, by_places, _POOL)
_register("max_pool2d_gather", _infer_gather, by_places, _POOL)
_register("max_pool2d_places", _infer_places, _max_places, _POOL)
_register("max_pool2d_spread", _infer_by_places, _max_spread, _SHAPED)
_register("max_pool2d_spread_phases", _infer_phases, _max_spread_phases, _SHAPED)
_register("max_pool2d_pick", _infer_by_places, _max_pick, _POOL)
_register("avg_pool2d", _infer_average, _average, _AVERAGE)
_register("avg_pool2d_backward", _infer_average_back, _average_back, {**_SHAPED, **_AVERAGE})
_LAID_OUT = {"max_pool2d": 1, "avg_pool2d": 1, "avg_pool2d_backward": 1}
for _name, _arity in {**_LAID_OUT, "max_pool2d_backward": 2, "max_pool2d_gather": 2}.items():
    _rule = LayoutRule(("data_layout",) * _arity, "data_layout", follows=True)
    register_attr(_name, "layouts", _rule)
