"""Ops that move elements: reshapes, transposes, slices, padding, indexing, strided views."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from loopnest.graph.data_layout import (
    LayoutRule,
    math_shape,
    parse_layout,
    shape_in,
    transformed_shape,
)
from loopnest.graph.dimensions import (
    Dim,
    DimLike,
    ShapeLike,
    add,
    ceildiv,
    dim_of,
    divides,
    floordiv,
    mul,
    never_at_most,
    product,
    shown,
    sub,
    total,
)
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.leaves import get_item, shape_of
from loopnest.graph.node import OPERATORS, Attrs, Node, Operand, TensorType
from loopnest.graph.operators.node_operands import declares, meet, one_type, require_node
from loopnest.graph.operators.reduction_ops import Axes, normalized_axes
from loopnest.graph.registry import (
    Pattern,
    call,
    call_text,
    get_attr,
    register_attr,
    short,
    takes_arguments,
)
from loopnest.scalar.dtypes import KEEPING
from loopnest.scalar.expr import Expr

__all__ = [
    "broadcast_to",
    "concatenate",
    "expand_dims",
    "flip",
    "layout_transform",
    "pad",
    "reshape",
    "slice",
    "squeeze",
    "strided_view",
    "transpose",
    "unslice",
]

_moves = partial(declares, pattern=Pattern.INJECTIVE)
_spreads = partial(declares, pattern=Pattern.BROADCAST)


@takes_arguments
def broadcast_to(x: Operand, shape: ShapeLike) -> Node:
    """Return x repeated to `shape`, as NumPy broadcasts; x itself if it has that shape.

    Raises:
        GraphError: x does not broadcast to the shape.
    """
    node = require_node("broadcast_to", x)
    wanted = shape_of(shape, call_text("broadcast_to", (x, shape)))
    return node if node.shape == wanted else call("broadcast_to", (node,), {"shape": wanted})


@takes_arguments
def expand_dims(x: Operand, axis: int | Sequence[int]) -> Node:
    """Return x with axes of extent 1 that stand at `axis` of the result.

    Raises:
        GraphError: an axis out of range, or twice the same.
    """
    node = require_node("expand_dims", x)
    given = [axis] if isinstance(axis, int) else list(axis)
    rank = node.ndim + len(given)
    subject = call_text("expand_dims", (node,), {"axis": axis})
    if any(not isinstance(a, int) or not -rank <= a < rank for a in given):
        raise GraphError(subject, "an axis is out of range", f"use {-rank}..{rank - 1}")
    places = sorted(a % rank for a in given)
    if len(set(places)) < len(places):
        raise GraphError(subject, "an axis is named twice")
    return call("expand_dims", (node,), {"axis": tuple(places)}) if places else node


@takes_arguments
def squeeze(x: Operand, axis: Axes = None) -> Node:
    """Return x without axes of extent 1: those of `axis`, or all.

    Raises:
        GraphError: an axis of another extent, or out of range.
    """
    node = require_node("squeeze", x)
    if axis is None:
        axis = [i for i, extent in enumerate(node.shape) if extent == 1]
    places = normalized_axes("squeeze", node, axis)
    return call("squeeze", (node,), {"axis": places}) if places else node


@takes_arguments
def transpose(x: Operand, axes: Sequence[int] | None = None) -> Node:
    """Return x with its axes in another order: new axis i is old axis axes[i]; None reverses.

    Raises:
        GraphError: no permutation of the axes.
    """
    node = require_node("transpose", x)
    order = tuple(range(node.ndim))[::-1] if axes is None else tuple(axes)
    subject = call_text("transpose", (node,), {"axes": axes})
    if any(not isinstance(a, int) or not -node.ndim <= a < node.ndim for a in order):
        raise GraphError(subject, "an axis is out of range", f"it has {node.ndim} axes")
    return call("transpose", (node,), {"axes": tuple(a % node.ndim for a in order)})


@takes_arguments
def reshape(x: Operand, shape: ShapeLike) -> Node:
    """Return the elements of x, in row-major order, in another shape; one extent may be -1.

    Raises:
        GraphError: the numbers of elements differ.
    """
    node = require_node("reshape", x)
    given = (shape,) if isinstance(shape, (int, str, Expr)) else tuple(shape)
    subject = call_text("reshape", (node, shape))
    if sum(1 for e in given if e == -1) == 1:
        elements = node.tensor_type.size
        known = product(shape_of([e for e in given if e != -1], subject))
        if not divides(known, elements):
            raise GraphError(subject, "the -1 has no value", "elements must divide evenly")
        given = tuple([floordiv(elements, known) if e == -1 else e for e in given])
    return call("reshape", (node,), {"shape": shape_of(given, subject)})


@takes_arguments
def flip(x: Operand, axis: Axes) -> Node:
    """Return x with its elements in reversed order along `axis`.

    Raises:
        GraphError: an axis out of range.
    """
    node = require_node("flip", x)
    return call("flip", (node,), {"axis": normalized_axes("flip", node, axis)})


@takes_arguments
def concatenate(tensors: Sequence[Operand], axis: int = 0) -> Node:
    """Return tensors one after the other along an axis.

    Raises:
        GraphError: no tensor, or shapes that differ elsewhere.
    """
    nodes = meet("concatenate", tuple(tensors), KEEPING)
    if not nodes:
        raise GraphError("concatenate([])", "there is no tensor", "pass at least one")
    (place,) = normalized_axes("concatenate", nodes[0], axis)
    return call("concatenate", nodes, {"axis": place})


@_spreads("broadcast_to", ("shape",), value=lambda node, x: np.broadcast_to(x, node.static_shape))
def _type_of_broadcast(attrs: Attrs, x: TensorType) -> TensorType:
    shape = attrs["shape"]
    lead = len(shape) - len(x.shape)
    pairs = zip(x.shape, shape[max(lead, 0) :], strict=False)
    if lead < 0 or any(own not in (1, wanted) for own, wanted in pairs):
        raise Refused(
            f"{shown(x.shape)} does not broadcast to {shown(shape)}", "extents of 1 repeat"
        )
    return TensorType(shape, x.dtype)


@_spreads("expand_dims", ("axis",), value=lambda node, x: np.expand_dims(x, node.attrs["axis"]))
def _type_of_expand(attrs: Attrs, x: TensorType) -> TensorType:
    shape: list[Dim] = list(x.shape)
    for place in attrs["axis"]:
        if not 0 <= place <= len(shape):
            raise Refused(f"axis {place} is out of range")
        shape.insert(place, 1)
    return TensorType(tuple(shape), x.dtype)


@_moves("squeeze", ("axis",), value=lambda node, x: np.reshape(x, node.static_shape))
def _type_of_squeeze(attrs: Attrs, x: TensorType) -> TensorType:
    for place in attrs["axis"]:
        if not 0 <= place < len(x.shape):
            raise Refused(f"axis {place} is out of range", f"it has {len(x.shape)} axes")
        if x.shape[place] != 1:
            raise Refused(f"axis {place} has extent {x.shape[place]}", "only extents of 1 go")
    kept = [e for i, e in enumerate(x.shape) if i not in attrs["axis"]]
    return TensorType(tuple(kept), x.dtype)


@_moves("transpose", ("axes",), value=lambda node, x: np.transpose(x, node.attrs["axes"]))
def _type_of_transpose(attrs: Attrs, x: TensorType) -> TensorType:
    axes = attrs["axes"]
    if sorted(axes) != list(range(len(x.shape))):
        raise Refused(f"axes={axes} is no permutation", f"name each of {len(x.shape)} axes once")
    return TensorType(tuple([x.shape[a] for a in axes]), x.dtype)


@_moves("reshape", ("shape",), value=lambda node, x: np.reshape(x, node.static_shape))
def _type_of_reshape(attrs: Attrs, x: TensorType) -> TensorType:
    found = TensorType(attrs["shape"], x.dtype)
    if found.size != x.size:
        raise Refused(f"{shown(found.shape)} has {found.size} elements, the operand {x.size}")
    return found


@_moves("flip", ("axis",), value=lambda node, x: np.flip(x, node.attrs["axis"]))
def _type_of_flip(attrs: Attrs, x: TensorType) -> TensorType:
    if any(not 0 <= a < len(x.shape) for a in attrs["axis"]):
        raise Refused(f"axis={attrs['axis']} is out of range", f"it has {len(x.shape)} axes")
    return x


@_moves(
    "concatenate", ("axis",), value=lambda node, *parts: np.concatenate(parts, node.attrs["axis"])
)
def _type_of_concatenate(attrs: Attrs, *parts: TensorType) -> TensorType:
    if not parts:
        raise Refused("there is no tensor")
    axis, first = attrs["axis"], parts[0]
    dtype = one_type(parts)
    if not 0 <= axis < len(first.shape):
        raise Refused(f"axis {axis} is out of range", f"the first has {len(first.shape)} axes")
    for part in parts:
        same = part.shape[:axis] + part.shape[axis + 1 :]
        if len(part.shape) <= axis or same != first.shape[:axis] + first.shape[axis + 1 :]:
            raise Refused(f"{part} does not fit {first}", f"extents agree but along axis {axis}")
    whole = total(part.shape[axis] for part in parts)
    return TensorType((*first.shape[:axis], whole, *first.shape[axis + 1 :]), dtype)


@takes_arguments
def slice(
    x: Operand,
    starts: Sequence[DimLike],
    stops: Sequence[DimLike],
    steps: Sequence[int] | None = None,
) -> Node:
    """Return x[starts[0]:stops[0]:steps[0], …], one of each an axis.

    Negative places count from the end, places beyond an end are that end, as in Python. Where a
    place or the extent is a size, places must satisfy 0 <= start <= stop <= extent, which is
    checked when sizes are known. Steps are at least 1 (`flip` reverses).

    Raises:
        GraphError: not one of each an axis, or a step below 1.
    """
    node = require_node("slice", x)
    given = (tuple(starts), tuple(stops), tuple(steps) if steps is not None else (1,) * node.ndim)
    subject = call_text("slice", (node, *given))
    if any(len(part) != node.ndim for part in given):
        raise GraphError(
            subject, "not one start, stop and step an axis", f"it has {node.ndim} axes"
        )
    if any(not isinstance(p, (int, str, Expr)) for part in given[:2] for p in part):
        raise GraphError(subject, "a place is no integer")
    if any(not isinstance(p, int) or p < 1 for p in given[2]):
        raise GraphError(subject, "a step is below 1", "G.flip reverses an axis")
    first: list[Dim] = []
    last: list[Dim] = []
    for start, stop, extent in zip(given[0], given[1], node.shape, strict=True):
        low, high = _place(start, extent, subject), _place(stop, extent, subject)
        first.append(low)
        last.append(max(low, high) if isinstance(low, int) and isinstance(high, int) else high)
    return call("slice", (node,), {"starts": tuple(first), "stops": tuple(last), "steps": given[2]})


def _place(given: DimLike, extent: Dim, subject: str) -> Dim:
    """Return a place counted from the front; a static one within a static extent."""
    if not isinstance(given, int):
        return dim_of(given, subject)
    if isinstance(extent, int):
        return min(max(given + extent * (given < 0), 0), extent)
    return add(extent, given) if given < 0 else given


@takes_arguments
def unslice(
    x: Operand, shape: Sequence[DimLike], starts: Sequence[DimLike], steps: Sequence[int]
) -> Node:
    """Return zeros of `shape` with x at starts[i] + steps[i] * k: what `slice` takes out, put back.

    Raises:
        GraphError: x reaches beyond the shape.
    """
    node = require_node("unslice", x)
    subject = call_text("unslice", (node, tuple(shape), tuple(starts), tuple(steps)))
    places = [start if isinstance(start, int) else dim_of(start, subject) for start in starts]
    attrs = {"shape": shape_of(shape, subject), "starts": tuple(places), "steps": tuple(steps)}
    return call("unslice", (node,), attrs)


@takes_arguments
def pad(x: Operand, widths: Sequence[Sequence[int]], value: float = 0) -> Node:
    """Return x with `value` around it: widths[i] = (before, after) of axis i, in elements.

    Raises:
        GraphError: not two widths >= 0 an axis.
    """
    node = require_node("pad", x)
    pairs = tuple(tuple(pair) for pair in widths)
    typed = bool(value) if node.dtype.is_bool else value
    return call("pad", (node,), {"widths": pairs, "value": typed})


@takes_arguments
def index(x: Node, key: object) -> Node:
    """Return x[key]: a field of a tuple, or a tensor by ints, slices, None and `...`.

    Raises:
        GraphError: another key, or one out of range.
    """
    if x.is_tuple:
        if not _is_integer(key):
            raise GraphError(f"{x}[{short(key)}]", "a tuple takes an integer")
        return get_item(x, key)  # type: ignore[arg-type]
    parts = list(key) if isinstance(key, tuple) else [key]
    subject = f"{x}[{short(key)}]"
    for part in parts:
        _check_place(part, subject)
    axes = sum(1 for part in parts if part is not None and part is not Ellipsis)
    dots = [place for place, part in enumerate(parts) if part is Ellipsis]
    if axes > x.ndim or len(dots) > 1:
        raise GraphError(subject, f"there are {axes} places for {x.ndim} axes")
    place = dots[0] if dots else len(parts)
    parts[place : place + 1] = [_ALL] * (x.ndim - axes)
    taken, dropped, added = _taken(x, parts, subject)
    whole = all(t == (0, e, 1) for t, e in zip(taken, x.shape, strict=True))
    result = x if whole else slice(x, *[list(part) for part in zip(*taken, strict=True)])
    result = squeeze(result, dropped) if dropped else result
    return expand_dims(result, added) if added else result


_PySlice = builtins.slice


_ALL = _PySlice(None)


def _taken(
    x: Node, parts: Sequence[object], subject: str
) -> tuple[list[tuple[Dim, Dim, int]], list[int], list[int]]:
    """Return (start, stop, step) an axis, the axes to squeeze, the axes of the result to add."""
    taken: list[tuple[Dim, Dim, int]] = []
    dropped: list[int] = []
    added: list[int] = []
    for part in parts:
        if part is None:
            added.append(len(taken) - len(dropped) + len(added))
            continue
        axis = len(taken)
        extent = x.shape[axis]
        if isinstance(part, _PySlice):
            taken.append(_span(part, extent, subject))
            continue
        place = part.__index__()  # type: ignore[attr-defined]
        if isinstance(extent, int) and not -extent <= place < extent:
            raise GraphError(subject, f"place {place} is out of range", f"extent {extent}")
        first = add(extent, place) if place < 0 else place
        taken.append((first, add(first, 1), 1))
        dropped.append(axis)
    return taken, dropped, added


def _span(part: builtins.slice, extent: Dim, subject: str) -> tuple[Dim, Dim, int]:
    """Return start, stop and step of what a forward slice takes of an axis."""
    if isinstance(extent, int):
        return part.indices(extent)
    start = 0 if part.start is None else _place(part.start, extent, subject)
    stop = extent if part.stop is None else _place(part.stop, extent, subject)
    return start, stop, 1 if part.step is None else int(part.step)


def _check_place(part: object, subject: str) -> None:
    """Check that a part of a key is a place: an integer, a forward slice, None or `...`."""
    if part is None or part is Ellipsis or _is_integer(part):
        return
    if isinstance(part, _PySlice):
        ends = [end for end in (part.start, part.stop, part.step) if end is not None]
        if all(_is_integer(end) for end in ends) and (part.step is None or part.step > 0):
            return
    raise GraphError(
        subject, f"{short(part)} is no place", "use integers, forward slices, None, ..."
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _places(starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> tuple[Any, ...]:
    parts = zip(starts, steps, shape, strict=True)
    return tuple([_PySlice(start, start + step * count, step) for start, step, count in parts])


def _slice(node: Node, x: Any) -> Any:
    return x[_places(node.attrs["starts"], node.attrs["steps"], node.static_shape)]


def _unslice(node: Node, x: Any) -> Any:
    result = np.zeros(node.static_shape, x.dtype)
    result[_places(node.attrs["starts"], node.attrs["steps"], x.shape)] = x
    return result


def _pad(node: Node, x: Any) -> Any:
    if not node.attrs["widths"]:
        return x
    return np.pad(x, node.attrs["widths"], constant_values=node.attrs["value"])


@_moves("slice", ("starts", "stops", "steps"), value=_slice)
def _type_of_slice(attrs: Attrs, x: TensorType) -> TensorType:
    parts = list(zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True))
    if len(parts) != len(x.shape):
        raise Refused("not one start, stop and step an axis", f"it has {len(x.shape)} axes")
    for (start, stop, step), extent in zip(parts, x.shape, strict=True):
        ends = ((0, start), (start, stop), (stop, extent))
        if step < 1 or any(never_at_most(low, high) for low, high in ends):
            raise Refused(f"{start}:{stop}:{step} does not fit extent {extent}")
    shape = [ceildiv(sub(stop, start), step) for start, stop, step in parts]
    return TensorType(tuple(shape), x.dtype)


@_moves("unslice", ("shape", "starts", "steps"), value=_unslice)
def _type_of_unslice(attrs: Attrs, x: TensorType) -> TensorType:
    shape, starts, steps = attrs["shape"], attrs["starts"], attrs["steps"]
    if not len(x.shape) == len(shape) == len(starts) == len(steps):
        raise Refused("not one extent, start and step an axis", f"it has {len(x.shape)} axes")
    for own, extent, start, step in zip(x.shape, shape, starts, steps, strict=True):
        last = add(start, mul(sub(own, 1), step))
        beyond = own != 0 and isinstance(last, int) and never_at_most(add(last, 1), extent)
        if never_at_most(0, start) or step < 1 or beyond:
            raise Refused(f"{own} elements from {start} by {step} do not fit extent {extent}")
    return TensorType(shape, x.dtype)


@_moves("pad", ("widths", "value"), value=_pad)
def _type_of_pad(attrs: Attrs, x: TensorType) -> TensorType:
    widths = attrs["widths"]
    bad = any(len(w) != 2 or any(not isinstance(e, int) or e < 0 for e in w) for w in widths)
    if bad or len(widths) != len(x.shape):
        raise Refused(f"widths={widths}", "a pair of integers >= 0 for each axis")
    shape = [add(extent, sum(pair)) for extent, pair in zip(x.shape, widths, strict=True)]
    return TensorType(tuple(shape), x.dtype)


@takes_arguments
def strided_view(x: Operand, shape: ShapeLike, strides: Sequence[DimLike]) -> Node:
    """Return the tensor whose element ``[i, j, …]`` is ``x[i * strides[0] + j * strides[1] + …]``.

    An array that lies in memory with gaps is an input of one axis, from its first element to its
    last, and a view of that: kernels read it where it lies.

    >>> from loopnest.graph import var
    >>> strided_view(var("x", 14), (4, 2), (4, 1))
    <strided_view(x): float32[4, 2]>

    Args:
        x: of one axis.
        shape: of the result.
        strides: elements from one to the next along each axis, at least 0.

    Raises:
        GraphError: x has not one axis, not one stride an axis, or the view reaches beyond x.

    Source: torch.as_strided.
    """
    node = require_node("strided_view", x)
    subject = call_text("strided_view", (node, shape, strides))
    attrs = {"shape": shape_of(shape, subject), "strides": shape_of(strides, subject)}
    return call("strided_view", (node,), attrs)


def _strided(node: Node, x: Any) -> Any:
    steps = [int(step) * x.itemsize for step in node.attrs["strides"]]
    words = np.ascontiguousarray(x).view(f"u{x.itemsize}")  # NumPy's function knows no other types
    return as_strided(words, node.static_shape, steps).view(x.dtype).copy()


@_moves("strided_view", ("shape", "strides"), value=_strided)
def _type_of_strided(attrs: Attrs, x: TensorType) -> TensorType:
    shape, strides = attrs["shape"], attrs["strides"]
    if len(x.shape) != 1:
        raise Refused(f"the operand has {len(x.shape)} axes", "it has one: reshape it")
    if len(shape) != len(strides):
        raise Refused(f"{len(strides)} strides for {len(shape)} axes", "one an axis")
    if 0 in shape:
        return TensorType(shape, x.dtype)
    last: Dim = 0
    for extent, stride in zip(shape, strides, strict=True):
        last = add(last, mul(sub(extent, 1), stride))
    if never_at_most(add(last, 1), x.shape[0]):
        raise Refused(f"the last element is x[{last}], and x has {x.shape[0]}")
    return TensorType(shape, x.dtype)


@takes_arguments
def layout_transform(x: Operand, src_layout: str, dst_layout: str) -> Node:
    """Return x in another layout, such as "NCHW16c" for "NCHW"; x itself if they are the same.

    Raises:
        GraphError: a malformed layout, other axes, or a block that does not divide its axis.
    """
    node = require_node("layout_transform", x)
    attrs = {"src_layout": src_layout, "dst_layout": dst_layout}
    made = call("layout_transform", (node,), attrs)
    return node if src_layout == dst_layout else made


@_moves("layout_transform", ("src_layout", "dst_layout"))
def _type_of_layout(attrs: Attrs, x: TensorType) -> TensorType:
    src, dst = parse_layout(attrs["src_layout"]), parse_layout(attrs["dst_layout"])
    return TensorType(transformed_shape(x.shape, src, dst), x.dtype)


def _layout_math(node: Node) -> Node:
    return _laid_out(node.inputs[0], node.attrs["src_layout"], node.attrs["dst_layout"])


def _laid_out(x: Node, src_layout: str, dst_layout: str) -> Node:
    """Return a node in another layout, by reshapes and transposes."""
    if src_layout == dst_layout:
        return x
    src, dst = parse_layout(src_layout), parse_layout(dst_layout)
    extents = math_shape(x.shape, src)
    merged = transpose(x, [place for letter in dst.letters for place in src.places(letter)])
    merged = reshape(merged, [extents[letter] for letter in dst.letters])
    shape = shape_in(extents, dst)
    places = [place for letter in dst.letters for place in dst.places(letter)]
    split = reshape(merged, [shape[place] for place in places])
    return transpose(split, [places.index(place) for place in range(len(places))])


PLAIN = {"data_layout": "NCHW", "kernel_layout": "OIHW"}
"""The layouts of windows that other ops compute."""


def in_plain_layouts(node: Node) -> Node:
    """Return a node of windows in plain layouts, between reshapes and transposes; itself in these.

    Its op has the attribute ``layouts``, or all its layouts are ``data_layout``.
    """
    attrs = {**node.attrs, **{name: plain for name, plain in PLAIN.items() if name in node.attrs}}
    if attrs == node.attrs:
        return node
    names = ("data_layout",) * len(node.inputs)
    rule = get_attr(node, "layouts", LayoutRule(names, "data_layout"))
    pairs = zip(node.inputs, rule.inputs, strict=True)
    inputs = [_laid_out(x, node.attrs[name], PLAIN[name]) for x, name in pairs]
    own, plain = node.attrs[rule.output], PLAIN[rule.output]
    if "shape" in attrs:
        attrs["shape"] = transformed_shape(attrs["shape"], parse_layout(own), parse_layout(plain))
    return _laid_out(call(node.op, inputs, attrs), plain, own)


register_attr("layout_transform", "math", _layout_math)
OPERATORS["index"] = index
