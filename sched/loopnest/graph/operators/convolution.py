"""Convolutions, their two transposes, and windows as an axis of their own.

The three convolutions are the three faces of one trilinear form, so that their gradients are each
other. `conv` is over any number of axes, of [N, C, *space] and [O, C // groups, *kernel]; `conv2d`
over two, in any layout of N, C, H, W and O, I, H, W: what it computes is a `conv` between changes
of layout.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from loopnest.graph.data_layout import DataLayout, LayoutRule, math_shape, parse_layout, shape_in
from loopnest.graph.dimensions import (
    Dim,
    DimLike,
    Shape,
    add,
    ceildiv,
    divides,
    floordiv,
    mul,
    never_at_most,
    shown,
    sub,
)
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.leaves import shape_of
from loopnest.graph.node import Attrs, Node, Operand, TensorType, Type
from loopnest.graph.node_values import by_math
from loopnest.graph.operators.movement_ops import in_plain_layouts
from loopnest.graph.operators.node_operands import (
    applied,
    declares,
    meet,
    one_type,
    require_node,
    tensors,
)
from loopnest.graph.registry import (
    REQUIRED,
    Pattern,
    call,
    call_text,
    register_attr,
    register_op,
    short,
    takes_arguments,
)
from loopnest.scalar.dtypes import FLOAT, DType
from loopnest.scalar.expr import whole

__all__ = [
    "conv",
    "conv2d",
    "conv2d_backward_data",
    "conv2d_backward_weight",
    "conv_transposed",
    "conv_weight",
    "unfold",
]

Pair: TypeAlias = tuple[int, int]
Padding: TypeAlias = int | Sequence[int | Pair]

CONV_ATTRS = {
    "strides": (1, 1),
    "padding": (0, 0, 0, 0),
    "dilation": (1, 1),
    "groups": 1,
    "data_layout": "NCHW",
    "kernel_layout": "OIHW",
}


@takes_arguments
def conv(
    x: Operand,
    w: Operand,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Node:
    """Return the convolution (cross-correlation) of x with w, over all axes from the third on.

    Args:
        x: ``[N, C, *space]``.
        w: ``[O, C // groups, *kernel]``.
        stride: from one window to the next: an int, or one a spatial axis.
        padding: zeros around: an int, or an int or a pair of ints a spatial axis.
        dilation: distances of the kernel's elements, as `stride`.
        groups: input channels fall in so many groups, each with its own output channels.

    Raises:
        GraphError: shapes or attributes that do not fit.
    """
    subject = call_text("conv", (x, w), {"stride": stride, "padding": padding})
    attrs = _windows_of(x, subject, stride, padding, dilation, groups)
    return applied("conv", (x, w), FLOAT, lambda nodes: call("conv", nodes, attrs))


@takes_arguments
def conv_transposed(
    x: Operand,
    w: Operand,
    space: Sequence[DimLike],
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Node:
    """Return the map of the gradient of `conv`: each element of x spread out by the kernel.

    Args:
        x: ``[N, C, *space]``.
        w: ``[C, O // groups, *kernel]``.
        space: the spatial extents of the result; what the windows do not reach is 0.
        stride: as of the convolution that it is the gradient of.
        padding: how many elements are left out in front of each spatial axis.
        dilation: distances of the kernel's elements.
        groups: the channels fall in so many groups.

    Raises:
        GraphError: shapes or attributes that do not fit.
    """
    subject = call_text("conv_transposed", (x, w), {"space": space, "stride": stride})
    op = "conv_transposed"
    windows = _windows_of(x, subject, stride, padding, dilation, groups, pairs=False)
    attrs = {"space": shape_of(space, op), **windows}
    return applied(op, (x, w), FLOAT, lambda nodes: call(op, nodes, attrs))


@takes_arguments
def conv_weight(
    x: Operand,
    dy: Operand,
    kernel: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Node:
    """Return the gradient of the kernel of `conv`, of spatial extents `kernel`, for dy of y.

    Raises:
        GraphError: shapes or attributes that do not fit.
    """
    subject = call_text("conv_weight", (x, dy), {"kernel": kernel, "stride": stride})
    windows = _windows_of(x, subject, stride, padding, dilation, groups)
    attrs = {"kernel": tuple(kernel), **windows}
    return call("conv_weight", meet("conv_weight", (x, dy), FLOAT), attrs)


@takes_arguments
def unfold(x: Operand, axis: int, size: int, stride: int = 1, dilation: int = 1) -> Node:
    """Return the windows of `size` elements along an axis: the axis counts them, a new last one
    has their elements.

    >>> from loopnest.graph import var
    >>> unfold(var("x", (2, 10)), 1, 3, stride=2).shape
    (2, 4, 3)

    Args:
        x: the operand.
        axis: the axis, negative from the end.
        size: elements of a window.
        stride: from one window to the next.
        dilation: from one element of a window to the next.

    Raises:
        GraphError: an axis out of range, a size, stride or dilation that is no integer >= 1, or a
            window that does not fit.
    """  # noqa: D205 - a sentence of two lines
    node = require_node("unfold", x)
    subject = call_text("unfold", (node,), {"axis": axis})
    place = whole(axis)
    if place is None or not -node.ndim <= place < node.ndim:
        raise GraphError(subject, f"axis={short(axis)} is no axis", f"it has {node.ndim} axes")
    attrs = {"axis": place % node.ndim}
    for name, value in (("size", size), ("stride", stride), ("dilation", dilation)):
        number = whole(value)
        if number is None or number < 1:
            raise GraphError(subject, f"{name}={short(value)}", "an integer >= 1")
        attrs[name] = number
    return call("unfold", (node,), attrs)


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


def _windows_of(
    x: object,
    subject: str,
    stride: int | Sequence[int],
    padding: Padding,
    dilation: int | Sequence[int],
    groups: int,
    pairs: bool = True,
) -> dict[str, object]:
    """Return the attributes of windows over the spatial axes of x.

    Args:
        x: the operand.
        subject: the call.
        stride: an int, or one a spatial axis.
        padding: likewise, or (where `pairs`) a pair a spatial axis.
        dilation: likewise.
        groups: of channels.
        pairs: whether padding has two sides.

    Raises:
        GraphError: they do not fit.
    """
    rank = x.ndim - 2 if isinstance(x, Node) else 0
    if rank < 1:
        raise GraphError(subject, "there is no spatial axis", "x is [N, C, *space]")
    return {
        "strides": _each(stride, rank, subject),
        "padding": _pairs(padding, rank, subject)
        if pairs
        else _each(padding, rank, subject, least=0),
        "dilation": _each(dilation, rank, subject),
        "groups": groups,
    }


def _each(value: object, rank: int, subject: str, least: int = 1) -> tuple[int, ...]:
    """Return one int for each spatial axis.

    Raises:
        GraphError: another number of them, or one below `least`.
    """
    found = (value,) * rank if isinstance(value, int) else tuple(value)  # type: ignore[arg-type]
    if len(found) != rank or any(not isinstance(e, int) or e < least for e in found):
        hint = f"one integer >= {least}, or one for each of {rank} spatial axes"
        raise GraphError(subject, f"{short(value)} does not fit", hint)
    return found


def _pairs(value: object, rank: int, subject: str) -> tuple[Pair, ...]:
    """Return (before, after) for each spatial axis.

    Raises:
        GraphError: no such widths.
    """
    given = (value,) * rank if isinstance(value, int) else tuple(value)  # type: ignore[arg-type]
    pairs = [(e, e) if isinstance(e, int) else tuple(e) for e in given]
    good = all(len(p) == 2 and all(isinstance(e, int) and e >= 0 for e in p) for p in pairs)
    if len(pairs) != rank or not good:
        hint = f"an integer >= 0, or one or a pair for each of {rank} spatial axes"
        raise GraphError(subject, f"padding={short(value)}", hint)
    return tuple([(p[0], p[1]) for p in pairs])


# Types


def window_extent(padded: Dim, size: Dim, stride: int, dilation: int) -> Dim:
    """Return how many windows fit into an extent.

    Raises:
        Refused: none does, whatever the sizes are.
    """
    before = mul(sub(size, 1), dilation)
    starts = sub(padded, before)
    if never_at_most(1, size) or never_at_most(1, starts):
        raise Refused(f"a window of {add(before, 1)} does not fit the padded extent {padded}")
    return ceildiv(starts, stride)


def check_groups(groups: object, own: Dim, out: Dim) -> None:
    """Check the groups of a convolution of so many channels to so many.

    Raises:
        Refused: they do not divide both.
    """
    if (
        not isinstance(groups, int)
        or groups < 1
        or not divides(groups, own)
        or not divides(groups, out)
    ):
        raise Refused(f"{groups} groups of {own} channels to {out}", "groups must divide both")


def check_channels(groups: int, own: Dim, kernel: Dim, out: Dim) -> None:
    """Check the channels of a convolution in groups.

    Args:
        groups: their number.
        own: channels of the data.
        kernel: channels that a kernel takes: those of one group.
        out: channels of the results.

    Raises:
        Refused: they do not fit.
    """
    check_groups(groups, own, out)
    if mul(kernel, groups) != own:
        raise Refused(
            f"the kernel takes {kernel} channels in {groups} groups, the data has {own}",
            "the second extent of the kernel is C // groups",
        )


def window_counts(
    space: Shape,
    kernel: Shape,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Shape:
    """Return how many windows there are along each spatial axis.

    Raises:
        Refused: a window does not fit.
    """
    rows = zip(space, kernel, strides, padding, dilation, strict=True)
    return tuple([window_extent(add(n, sum(pair)), k, s, d) for n, k, s, pair, d in rows])


def _counts(space: Shape, kernel: Shape, attrs: Attrs) -> Shape:
    return window_counts(space, kernel, attrs["strides"], attrs["padding"], attrs["dilation"])


def _operands(types: tuple[Type, ...]) -> tuple[TensorType, TensorType]:
    a, b = tensors(types)
    if len(a.shape) != len(b.shape) or len(a.shape) < 3:
        raise Refused(f"the operands are {a} and {b}", "they have one rank >= 3")
    if not one_type((a, b)).is_float:
        raise Refused(f"it does not take {a.dtype}", "cast the operands")
    return a, b


def _infer_conv(types: tuple[Type, ...], attrs: Attrs) -> Type:
    x, w = _operands(types)
    check_channels(attrs["groups"], x.shape[1], w.shape[1], w.shape[0])
    space = _counts(x.shape[2:], w.shape[2:], attrs)
    return TensorType((x.shape[0], w.shape[0], *space), x.dtype)


def _infer_transposed(types: tuple[Type, ...], attrs: Attrs) -> Type:
    x, w = _operands(types)
    channels = mul(w.shape[1], attrs["groups"])
    check_groups(attrs["groups"], x.shape[1], channels)
    if w.shape[0] != x.shape[1]:
        raise Refused(f"the kernel takes {w.shape[0]} channels, the data has {x.shape[1]}")
    if len(attrs["space"]) != len(x.shape) - 2 or any(
        isinstance(e, int) and e < 0 for e in attrs["space"]
    ):
        raise Refused(f"space={attrs['space']}", "an extent for each spatial axis")
    return TensorType((x.shape[0], channels, *attrs["space"]), x.dtype)


def _infer_weight(types: tuple[Type, ...], attrs: Attrs) -> Type:
    x, dy = _operands(types)
    check_groups(attrs["groups"], x.shape[1], dy.shape[1])
    space = _counts(x.shape[2:], attrs["kernel"], attrs)
    if dy.shape != (x.shape[0], dy.shape[1], *space):
        raise Refused(f"the gradient is {list(dy.shape)}, the windows are {list(space)}")
    shape = (dy.shape[1], floordiv(x.shape[1], attrs["groups"]), *attrs["kernel"])
    return TensorType(shape, x.dtype)


def _unfold(node: Node, x: Any) -> Any:
    attrs = node.attrs
    span = attrs["dilation"] * (attrs["size"] - 1) + 1
    view = np.lib.stride_tricks.sliding_window_view(x, span, axis=attrs["axis"])
    every = [builtins.slice(None)] * view.ndim
    every[attrs["axis"]] = builtins.slice(None, None, attrs["stride"])
    every[-1] = builtins.slice(None, None, attrs["dilation"])
    return view[tuple(every)]


_UNFOLD = {"axis": REQUIRED, "size": REQUIRED, "stride": 1, "dilation": 1}


@declares("unfold", _UNFOLD, value=_unfold, pattern=Pattern.INJECTIVE)
def _type_of_unfold(attrs: Attrs, x: TensorType) -> TensorType:
    axis, size = attrs["axis"], attrs["size"]
    if attrs["stride"] < 1 or attrs["dilation"] < 1 or not 0 <= axis < len(x.shape):
        raise Refused("an axis that it lacks, or a stride or dilation below 1")
    count = window_extent(x.shape[axis], size, attrs["stride"], attrs["dilation"])
    return TensorType((*x.shape[:axis], count, *x.shape[axis + 1 :], size), x.dtype)


def _infer_laid_out(op: str) -> Callable[[tuple[Type, ...], Attrs], Type]:
    """Return the type of a convolution in layouts: that of `conv` in plain ones, laid out."""

    def infer(types: tuple[Type, ...], attrs: Attrs) -> Type:
        first, second = tensors(types)
        data, kernel = parse_layout(attrs["data_layout"]), parse_layout(attrs["kernel_layout"])
        image = attrs["shape"] if op == _DATA else first.shape
        weight = attrs["shape"] if op == _WEIGHT else second.shape
        dtype = one_type((first, second))
        plain = (_plain(image, data, "NCHW", dtype), _plain(weight, kernel, "OIHW", dtype))
        found = _infer_conv(plain, _plain_attrs(attrs))
        assert isinstance(found, TensorType)
        shape = shape_in(dict(zip("NCHW", found.shape, strict=True)), data)
        if op == "conv2d":
            return TensorType(shape, dtype)
        dy = first if op == _DATA else second
        if dy.shape != shape:
            raise Refused(f"the gradient is {shown(dy.shape)}, the output {shown(shape)}")
        return TensorType(attrs["shape"], dtype)

    return infer


def _plain(shape: Shape, layout: DataLayout, letters: str, dtype: DType) -> TensorType:
    if sorted(layout.letters) != sorted(letters):
        named = "".join(sorted(letters))
        raise Refused(f"layout {layout} has other axes", f"its axes are those of {named}")
    extents = math_shape(shape, layout)
    return TensorType(tuple([extents[letter] for letter in letters]), dtype)


def _plain_attrs(attrs: Attrs) -> dict[str, Any]:
    """Return the attributes of the `conv` that a conv2d in plain layouts is."""
    top, left, bottom, right = attrs["padding"]
    kept = {name: attrs[name] for name in ("strides", "dilation", "groups")}
    return {**kept, "padding": ((top, bottom), (left, right))}


# Values


def _windows(x: Any, kernel: Sequence[int], attrs: Attrs) -> Any:
    """Return the windows of x as [N, groups, C // groups * kernel, windows]."""
    rank, groups = len(kernel), attrs["groups"]
    x = np.pad(x, ((0, 0), (0, 0), *attrs["padding"]))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, attrs["dilation"], strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, spans, axis=tuple(range(2, 2 + rank)))
    every = [builtins.slice(None, None, s) for s in (1, 1, *attrs["strides"], *attrs["dilation"])]
    view = view[tuple(every)]
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    (n, c), windows = x.shape[:2], view.shape[2 : 2 + rank]
    shape = (n, groups, c // groups * math.prod(kernel), math.prod(windows))
    return view.transpose(order).reshape(shape)


def _conv(node: Node, x: Any, w: Any) -> Any:
    groups = node.attrs["groups"]
    found = np.matmul(_grouped(w, groups), _windows(x, w.shape[2:], node.attrs))
    return found.reshape(node.shape)


def _grouped(w: Any, groups: int) -> Any:
    return w.reshape(groups, w.shape[0] // groups, math.prod(w.shape[1:]))


def _transposed(node: Node, x: Any, w: Any) -> Any:
    attrs, rank = node.attrs, x.ndim - 2
    n, groups, kernel = x.shape[0], attrs["groups"], w.shape[2:]
    flat = x.reshape(n, groups, x.shape[1] // groups, math.prod(x.shape[2:]))
    found = np.matmul(np.swapaxes(_grouped(w, groups), 1, 2), flat)
    found = found.reshape(n, node.shape[1], *kernel, *x.shape[2:])
    rows = zip(x.shape[2:], kernel, attrs["strides"], attrs["dilation"], strict=True)
    ends = [max((e - 1) * s, 0) + (k - 1) * d + 1 for e, k, s, d in rows]
    low = attrs["padding"]
    sizes = [max(end, p + e) for end, p, e in zip(ends, low, attrs["space"], strict=True)]
    result = np.zeros((*node.shape[:2], *sizes), x.dtype)
    for place in np.ndindex(*kernel):
        into = [builtins.slice(None), builtins.slice(None)]
        for axis in range(rank):
            first = place[axis] * attrs["dilation"][axis]
            stop = first + attrs["strides"][axis] * x.shape[2 + axis]
            into.append(builtins.slice(first, stop, attrs["strides"][axis]))
        taken: Any = (..., *place, *[builtins.slice(None)] * rank)
        result[tuple(into)] += found[taken]
    rows_kept = zip(low, attrs["space"], strict=True)
    part: Any = (..., *[builtins.slice(p, p + e) for p, e in rows_kept])
    return result[part]


def _weight(node: Node, x: Any, dy: Any) -> Any:
    groups = node.attrs["groups"]
    found = _windows(x, node.attrs["kernel"], node.attrs)
    rows = dy.reshape(dy.shape[0], groups, dy.shape[1] // groups, math.prod(dy.shape[2:]))
    return np.sum(np.matmul(rows, np.swapaxes(found, 2, 3)), axis=0).reshape(node.shape)


def _conv2d_math(node: Node) -> Node:
    """Return a convolution between changes of layout, or one face of `conv` in plain layouts."""
    laid_out = in_plain_layouts(node)
    if laid_out is not node:
        return laid_out
    attrs, space = _plain_attrs(node.attrs), node.shape[2:]
    if node.op == _DATA:
        lows = tuple([low for low, _ in attrs["padding"]])
        return call("conv_transposed", node.inputs, {**attrs, "padding": lows, "space": space})
    if node.op == _WEIGHT:
        return call("conv_weight", node.inputs, {**attrs, "kernel": space})
    return call("conv", node.inputs, attrs)


_DATA, _WEIGHT = "conv2d_backward_data", "conv2d_backward_weight"
_NAMES = ("data_layout", "kernel_layout")
for _name, _more, _layouts in (
    ("conv2d", {}, LayoutRule(_NAMES, "data_layout")),
    (_DATA, {"shape": REQUIRED}, LayoutRule(_NAMES, "data_layout")),
    (_WEIGHT, {"shape": REQUIRED}, LayoutRule(("data_layout", "data_layout"), "kernel_layout")),
):
    register_op(
        _name,
        infer=_infer_laid_out(_name),
        evaluate=by_math,
        arity=2,
        params={**_more, **CONV_ATTRS},
        pattern=Pattern.OUT_ELEMWISE_FUSABLE,
    )
    register_attr(_name, "layouts", _layouts)
    register_attr(_name, "math", _conv2d_math)
_AROUND = {"strides": REQUIRED, "padding": REQUIRED, "dilation": REQUIRED, "groups": 1}
for _name, _infer, _evaluate, _extra in (
    ("conv", _infer_conv, _conv, {}),
    ("conv_transposed", _infer_transposed, _transposed, {"space": REQUIRED}),
    ("conv_weight", _infer_weight, _weight, {"kernel": REQUIRED}),
):
    register_op(
        _name,
        infer=_infer,
        evaluate=_evaluate,
        arity=2,
        params={**_extra, **_AROUND},
        pattern=Pattern.OUT_ELEMWISE_FUSABLE,
    )
