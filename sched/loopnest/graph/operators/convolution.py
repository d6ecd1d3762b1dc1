"""Convolution over two axes and its two transposes, in any layout of N, C, H, W and O, I, H, W.

The three ops are the three faces of one trilinear form, so that their gradients are each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loopnest.graph.data_layout import math_shape, parse_layout, shape_in, transform
from loopnest.graph.dimensions import Dim, DimLike, Shape, at, shown
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.leaves import shape_of
from loopnest.graph.node import Attrs, Node, Operand, TensorType, Type
from loopnest.graph.operators.node_operands import applied, meet, one_type, tensors
from loopnest.graph.operators.windows import check_channels, columns, scatter, window_counts
from loopnest.graph.registry import (
    REQUIRED,
    Pattern,
    call,
    call_text,
    register_op,
    short,
    takes_arguments,
)
from loopnest.scalar.dtypes import FLOAT

__all__ = [
    "conv2d",
    "conv2d_backward_data",
    "conv2d_backward_weight",
]

CONV_ATTRS = {
    "strides": (1, 1),
    "padding": (0, 0, 0, 0),
    "dilation": (1, 1),
    "groups": 1,
    "data_layout": "NCHW",
    "kernel_layout": "OIHW",
}


@takes_arguments
def conv2d(
    x: Operand,
    w: Operand,
    strides: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
) -> Node:
    """Return the convolution (cross-correlation) of x with w, in `data_layout`.

    Args:
        x: [N, C, H, W] in `data_layout`.
        w: [O, C // groups, KH, KW] in `kernel_layout`.
        strides: of H and W, in elements.
        padding: zeros around H and W: one number, (vertical, horizontal), or (top, left, bottom,
            right).
        dilation: distances of the kernel's elements.
        groups: input channels fall in so many groups, each with its own output channels.
        data_layout: "NCHW", "NHWC", "NCHW16c"…
        kernel_layout: "OIHW", "OIHW4i16o"…

    Raises:
        GraphError: shapes, layouts or attributes that do not fit.
    """
    subject = call_text("conv2d", (x, w), {"strides": strides, "padding": padding})
    attrs = {
        "strides": pair(strides, subject),
        "padding": around(padding, subject),
        "dilation": pair(dilation, subject),
        "groups": groups,
        "data_layout": data_layout,
        "kernel_layout": kernel_layout,
    }
    return applied("conv2d", (x, w), FLOAT, lambda nodes: call("conv2d", nodes, attrs))


@takes_arguments
def conv2d_backward_data(
    dy: Operand, w: Operand, shape: Sequence[DimLike], **attrs: object
) -> Node:
    """Return the gradient of x, of `shape`, for dy of the output; attributes as of `conv2d`.

    Raises:
        GraphError: shapes, layouts or attributes that do not fit.
    """
    op = "conv2d_backward_data"
    return call(op, meet(op, (dy, w), FLOAT), {"shape": shape_of(shape, op), **attrs})


@takes_arguments
def conv2d_backward_weight(
    x: Operand, dy: Operand, shape: Sequence[DimLike], **attrs: object
) -> Node:
    """Return the gradient of w, of `shape`, for dy of the output; attributes as of `conv2d`.

    Raises:
        GraphError: shapes, layouts or attributes that do not fit.
    """
    op = "conv2d_backward_weight"
    return call(op, meet(op, (x, dy), FLOAT), {"shape": shape_of(shape, op), **attrs})


def pair(value: object, subject: str, least: int = 1) -> tuple[int, int]:
    """Return one number twice, or two numbers.

    Raises:
        GraphError: neither, or one below `least`.
    """
    found = (value, value) if isinstance(value, int) else tuple(value)  # type: ignore[arg-type]
    if len(found) != 2 or any(not isinstance(e, int) or e < least for e in found):
        raise GraphError(subject, f"{short(value)} is no pair", f"one or two integers >= {least}")
    return found[0], found[1]


def around(value: object, subject: str) -> tuple[int, int, int, int]:
    """Return padding as (top, left, bottom, right).

    Raises:
        GraphError: not 1, 2 or 4 integers >= 0.
    """
    given = (value,) * 4 if isinstance(value, int) else tuple(value)  # type: ignore[arg-type]
    found = given * 2 if len(given) == 2 else given
    if len(found) != 4 or any(not isinstance(e, int) or e < 0 for e in found):
        raise GraphError(subject, f"padding={short(value)}", "1, 2 or 4 integers >= 0")
    return found


def _output(x: Mapping[str, Dim], w: Mapping[str, Dim], attrs: Attrs) -> dict[str, Dim]:
    """Return the extents of a convolution's output.

    Raises:
        Refused: the extents do not fit.
    """
    check_channels(attrs["groups"], x["C"], w["I"], w["O"])
    top, left, bottom, right = attrs["padding"]
    space, kernel = (x["H"], x["W"]), (w["H"], w["W"])
    pairs = ((top, bottom), (left, right))
    height, width = window_counts(space, kernel, attrs["strides"], pairs, attrs["dilation"])
    return {"N": x["N"], "C": w["O"], "H": height, "W": width}


def _layouts(attrs: Attrs) -> tuple[Any, Any]:
    data, kernel = parse_layout(attrs["data_layout"]), parse_layout(attrs["kernel_layout"])
    for layout, letters in ((data, "CHNW"), (kernel, "HIOW")):
        if "".join(sorted(layout.letters)) != letters:
            raise Refused(f"layout {layout} has other axes", f"its axes are those of {letters}")
    return data, kernel


def _infer_conv(types: tuple[Type, ...], attrs: Attrs) -> Type:
    x, w = tensors(types)
    data, kernel = _layouts(attrs)
    out = _output(math_shape(x.shape, data), math_shape(w.shape, kernel), attrs)
    return TensorType(shape_in(out, data), _float(one_type((x, w))))


def _infer_data(types: tuple[Type, ...], attrs: Attrs) -> Type:
    dy, w = tensors(types)
    data, kernel = _layouts(attrs)
    out = _output(math_shape(attrs["shape"], data), math_shape(w.shape, kernel), attrs)
    _same(dy, shape_in(out, data))
    return TensorType(attrs["shape"], _float(one_type((dy, w))))


def _infer_weight(types: tuple[Type, ...], attrs: Attrs) -> Type:
    x, dy = tensors(types)
    data, kernel = _layouts(attrs)
    out = _output(math_shape(x.shape, data), math_shape(attrs["shape"], kernel), attrs)
    _same(dy, shape_in(out, data))
    return TensorType(attrs["shape"], _float(one_type((x, dy))))


def _float(dtype: Any) -> Any:
    if not dtype.is_float:
        raise Refused(f"it does not take {dtype}", "cast the operands")
    return dtype


def _same(dy: TensorType, shape: Shape) -> None:
    if dy.shape != shape:
        raise Refused(f"the gradient is {shown(dy.shape)}, the output {shown(shape)}")


def _plain(array: Any, layout: str, letters: str) -> Any:
    return transform(array, parse_layout(layout), parse_layout(letters))


def _laid(array: Any, layout: str, letters: str) -> Any:
    return np.ascontiguousarray(transform(array, parse_layout(letters), parse_layout(layout)))


def _columns(x: Any, kernel: tuple[int, int], attrs: Attrs) -> Any:
    """Return windows as [N, groups, C // groups * KH * KW, OH * OW]."""
    found = columns(x, kernel, attrs["strides"], attrs["padding"], attrs["dilation"], 0)
    n, c, kh, kw, oh, ow = found.shape
    groups = attrs["groups"]
    return np.ascontiguousarray(found).reshape(n, groups, c // groups * kh * kw, oh * ow), (oh, ow)


def _grouped(w: Any, groups: int) -> Any:
    """Return a kernel as [groups, O // groups, I * KH * KW]."""
    return w.reshape(groups, w.shape[0] // groups, -1)


def _conv(node: Node, x: Any, w: Any) -> Any:
    attrs = node.attrs
    x, w = _plain(x, attrs["data_layout"], "NCHW"), _plain(w, attrs["kernel_layout"], "OIHW")
    found, (oh, ow) = _columns(x, w.shape[2:], attrs)
    out = np.matmul(_grouped(w, attrs["groups"]), found)
    return _laid(out.reshape(x.shape[0], w.shape[0], oh, ow), attrs["data_layout"], "NCHW")


def _conv_data(node: Node, dy: Any, w: Any) -> Any:
    attrs = node.attrs
    dy, w = _plain(dy, attrs["data_layout"], "NCHW"), _plain(w, attrs["kernel_layout"], "OIHW")
    n, o, oh, ow = dy.shape
    groups = attrs["groups"]
    rows = np.swapaxes(_grouped(w, groups), 1, 2)
    found = np.matmul(rows, dy.reshape(n, groups, o // groups, oh * ow))
    found = found.reshape(n, w.shape[1] * groups, *w.shape[2:], oh, ow)
    size = _extents(attrs["shape"], attrs["data_layout"], "HW")
    dx = scatter(found, size, attrs["strides"], attrs["padding"], attrs["dilation"])
    return _laid(dx, attrs["data_layout"], "NCHW")


def _conv_weight(node: Node, x: Any, dy: Any) -> Any:
    attrs = node.attrs
    x, dy = _plain(x, attrs["data_layout"], "NCHW"), _plain(dy, attrs["data_layout"], "NCHW")
    o, i, kh, kw = _extents(attrs["shape"], attrs["kernel_layout"], "OIHW")
    found, (oh, ow) = _columns(x, (kh, kw), attrs)
    groups = attrs["groups"]
    rows = dy.reshape(dy.shape[0], groups, o // groups, oh * ow)
    dw = np.sum(np.matmul(rows, np.swapaxes(found, 2, 3)), axis=0)
    return _laid(dw.reshape(o, i, kh, kw), attrs["kernel_layout"], "OIHW")


def _extents(shape: Sequence[int], layout: str, letters: str) -> tuple[int, ...]:
    extents = math_shape(shape, parse_layout(layout))
    return tuple([at(extents[letter], {}) for letter in letters])


for _name, _infer, _evaluate, _more in (
    ("conv2d", _infer_conv, _conv, {}),
    ("conv2d_backward_data", _infer_data, _conv_data, {"shape": REQUIRED}),
    ("conv2d_backward_weight", _infer_weight, _conv_weight, {"shape": REQUIRED}),
):
    register_op(
        _name,
        infer=_infer,
        evaluate=_evaluate,
        arity=2,
        params={**_more, **CONV_ATTRS},
        pattern=Pattern.OUT_ELEMWISE_FUSABLE,
    )
