"""Pooling over H and W, and the ops that its gradients are made of.

Each op has a partner: `max_pool2d_backward` spreads values to where the largest elements of x are
(the first of several), `max_pool2d_gather` collects values from there; `avg_pool2d_backward` is
`avg_pool2d` transposed. A kernel looks for these places first: ``max_pool2d_places`` numbers, from
x and the largest elements, where in its window each is; ``max_pool2d_spread`` and
``max_pool2d_pick`` go by that. ``max_pool2d_spread_phases`` is the former with elements that are a
stride apart as neighbours: [N, C, *strides, *elements of a phase].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from loopnest.graph.data_layout import math_shape, parse_layout, shape_in, transform
from loopnest.graph.dimensions import DimLike, Shape, add, at, shown
from loopnest.graph.graph_error import Refused
from loopnest.graph.leaves import shape_of
from loopnest.graph.node import Attrs, Node, Operand, TensorType, Type
from loopnest.graph.operators.convolution import around, pair
from loopnest.graph.operators.node_operands import meet, one_type, tensors
from loopnest.graph.operators.pool_phases import pool_phases, split_phases
from loopnest.graph.operators.windows import columns, scatter, window_extent
from loopnest.graph.registry import REQUIRED, Pattern, call, call_text, register_op, takes_arguments
from loopnest.scalar.dtypes import FLOAT, KEEPING, int32

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
    for letter, size, before, after in (("H", 0, top, bottom), ("W", 1, left, right)):
        if max(before, after) >= attrs["pool"][size]:
            raise Refused(f"padding {attrs['padding']} of windows {attrs['pool']}", "pad less")
        padded = add(extents[letter], before + after)
        extents[letter] = window_extent(padded, attrs["pool"][size], attrs["strides"][size], 1)
    return shape_in(extents, layout)


def _infer(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
    return TensorType(_pooled(x.shape, attrs), x.dtype)


def _infer_average(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
    if not x.dtype.is_float:
        raise Refused(f"it does not take {x.dtype}", "cast the operand")
    return _infer(types, attrs)


def _infer_spread(types: tuple[Type, ...], attrs: Attrs) -> Type:
    x, dy = tensors(types)
    one_type((x, dy))
    if dy.shape != _pooled(x.shape, attrs):
        found = shown(_pooled(x.shape, attrs))
        raise Refused(f"the gradient is {shown(dy.shape)}, the output {found}")
    return x


def _infer_gather(types: tuple[Type, ...], attrs: Attrs) -> Type:
    x, values = tensors(types)
    one_type((x, values))
    if values.shape != x.shape:
        raise Refused(f"the values are {shown(values.shape)}, x is {shown(x.shape)}")
    return TensorType(_pooled(x.shape, attrs), x.dtype)


def _infer_places(types: tuple[Type, ...], attrs: Attrs) -> Type:
    x, largest = tensors(types)
    one_type((x, largest))
    pooled = _pooled(x.shape, attrs)
    if largest.shape != pooled:
        raise Refused(f"the largest elements are {largest}", f"windows: {shown(pooled)}")
    return TensorType(pooled, int32)


def _infer_by_places(types: tuple[Type, ...], attrs: Attrs) -> Type:
    places, values = tensors(types)
    if places.dtype is not int32:
        raise Refused(f"the places are {places.dtype}", "max_pool2d_places gives int32")
    pooled = _pooled(attrs.get("shape", values.shape), attrs)
    if places.shape != pooled or ("shape" in attrs and values.shape != pooled):
        raise Refused(f"the places are {places}, the values {values}", f"windows: {shown(pooled)}")
    return TensorType(attrs.get("shape", pooled), values.dtype)


def _infer_phases(types: tuple[Type, ...], attrs: Attrs) -> Type:
    _infer_by_places(types, attrs)
    static = all(isinstance(extent, int) for extent in attrs["shape"][2:])
    if attrs["data_layout"] != "NCHW" or not static:
        raise Refused(f"x is {shown(attrs['shape'])} in {attrs['data_layout']}", "static, NCHW")
    axes = pool_phases(attrs)
    steps, counts = [a.stride for a in axes], [a.count for a in axes]
    return TensorType((*attrs["shape"][:2], *steps, *counts), tensors(types)[1].dtype)


def _infer_average_back(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (dy,) = tensors(types)
    if dy.shape != _pooled(attrs["shape"], attrs):
        raise Refused(f"the gradient is {shown(dy.shape)}, the output differs")
    return TensorType(attrs["shape"], dy.dtype)


def _in_nchw(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an evaluator for any layout, of one that computes on NCHW: (node, attrs, *arrays)."""

    def evaluate(node: Node, *arrays: Any) -> Any:
        layout, nchw = parse_layout(node.attrs["data_layout"]), parse_layout("NCHW")
        result = function(node, *[transform(array, layout, nchw) for array in arrays])
        return np.ascontiguousarray(transform(result, nchw, layout))

    return evaluate


def _windows(x: Any, attrs: Attrs, value: Any) -> Any:
    """Return windows as [N, C, KH * KW, OH, OW]."""
    found = columns(x, attrs["pool"], attrs["strides"], attrs["padding"], (1, 1), value)
    n, c, kh, kw, oh, ow = found.shape
    return np.ascontiguousarray(found).reshape(n, c, kh * kw, oh, ow)


def _least(dtype: Any) -> Any:
    if dtype.kind == "b":
        return False
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _places(x: Any, attrs: Attrs) -> Any:
    """Return, for each window, which of its elements is the (first) largest: [N, C, 1, OH, OW].

    NaN is the largest; the padding never is, even where all elements are -inf.
    """
    found = _windows(x, attrs, _least(x.dtype))
    largest = (found == np.max(found, axis=2, keepdims=True)) | (found != found)
    inside = _windows(np.ones((1, 1, *x.shape[2:]), np.bool_), attrs, False)
    return np.argmax(largest & inside, axis=2, keepdims=True)


def _max(node: Node, x: Any) -> Any:
    return np.max(_windows(x, node.attrs, _least(x.dtype)), axis=2)


def _max_places(node: Node, x: Any, largest: Any) -> Any:
    return _places(x, node.attrs)[:, :, 0]


def _max_back(node: Node, x: Any, dy: Any) -> Any:
    return _spread(_places(x, node.attrs), dy, x.shape[2:], node.attrs)


def _max_spread(node: Node, places: Any, dy: Any) -> Any:
    extents = math_shape(node.attrs["shape"], parse_layout(node.attrs["data_layout"]))
    return _spread(places[:, :, None], dy, (at(extents["H"], {}), at(extents["W"], {})), node.attrs)


def _spread(places: Any, dy: Any, size: Sequence[int], attrs: Attrs) -> Any:
    n, c, _, oh, ow = places.shape
    kh, kw = attrs["pool"]
    spread = np.zeros((n, c, kh * kw, oh, ow), dy.dtype)
    np.put_along_axis(spread, places, dy[:, :, None], axis=2)
    return _scatter(spread, size, attrs)


def _max_spread_phases(node: Node, places: Any, dy: Any) -> Any:
    return split_phases(_max_spread(node, places, dy), pool_phases(node.attrs))


def _max_gather(node: Node, x: Any, values: Any) -> Any:
    return _picked(_places(x, node.attrs), values, node.attrs)


def _max_pick(node: Node, places: Any, values: Any) -> Any:
    return _picked(places[:, :, None], values, node.attrs)


def _picked(places: Any, values: Any, attrs: Attrs) -> Any:
    return np.take_along_axis(_windows(values, attrs, 0), places, axis=2)[:, :, 0]


def _scatter(found: Any, size: Sequence[int], attrs: Attrs) -> Any:
    n, c, _, oh, ow = found.shape
    windows = found.reshape(n, c, *attrs["pool"], oh, ow)
    return scatter(windows, size, attrs["strides"], attrs["padding"], (1, 1))


def _counts(size: Sequence[int], attrs: Attrs, dtype: Any) -> Any:
    """Return the number of elements of each window: [1, 1, OH, OW]."""
    if attrs["count_include_pad"]:
        return dtype.type(attrs["pool"][0] * attrs["pool"][1])
    return np.sum(_windows(np.ones((1, 1, *size), dtype), attrs, 0), axis=2)


def _average(node: Node, x: Any) -> Any:
    total = np.sum(_windows(x, node.attrs, 0), axis=2)
    return total / _counts(x.shape[2:], node.attrs, x.dtype)


def _average_back(node: Node, dy: Any) -> Any:
    extents = math_shape(node.attrs["shape"], parse_layout(node.attrs["data_layout"]))
    size = (at(extents["H"], {}), at(extents["W"], {}))
    share = (dy / _counts(size, node.attrs, dy.dtype))[:, :, None]
    kh, kw = node.attrs["pool"]
    return _scatter(np.repeat(share, kh * kw, axis=2), size, node.attrs)


def _register(name: str, infer: Any, evaluate: Any, arity: int, params: dict[str, Any]) -> None:
    register_op(
        name,
        infer=infer,
        evaluate=_in_nchw(evaluate),
        arity=arity,
        params=params,
        pattern=_ANCHOR if name in ("max_pool2d", "avg_pool2d") else Pattern.OPAQUE,
    )


_ANCHOR = Pattern.OUT_ELEMWISE_FUSABLE
_register("max_pool2d", _infer, _max, 1, _POOL)
_register("max_pool2d_backward", _infer_spread, _max_back, 2, _POOL)
_register("max_pool2d_gather", _infer_gather, _max_gather, 2, _POOL)
_register("max_pool2d_places", _infer_places, _max_places, 2, _POOL)
_register("max_pool2d_spread", _infer_by_places, _max_spread, 2, {"shape": REQUIRED, **_POOL})
register_op(
    "max_pool2d_spread_phases",
    infer=_infer_phases,
    evaluate=_max_spread_phases,
    arity=2,
    params={"shape": REQUIRED, **_POOL},
    pattern=Pattern.OPAQUE,
)
_register("max_pool2d_pick", _infer_by_places, _max_pick, 2, _POOL)
_register("avg_pool2d", _infer_average, _average, 1, _AVERAGE)
_register(
    "avg_pool2d_backward", _infer_average_back, _average_back, 1, {"shape": REQUIRED, **_AVERAGE}
)
