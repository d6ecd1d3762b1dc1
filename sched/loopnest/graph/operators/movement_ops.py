"""Ops that move elements: broadcast_to, expand_dims, squeeze, transpose, reshape, flip…"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loopnest.graph.dimensions import (
    Dim,
    ShapeLike,
    divides,
    floordiv,
    product,
    shown,
    total,
)
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.leaves import shape_of
from loopnest.graph.node import Attrs, Node, Operand, TensorType, Type
from loopnest.graph.operators.node_operands import meet, one_type, require_node, tensors
from loopnest.graph.operators.reduction_ops import Axes, normalized_axes
from loopnest.graph.registry import Pattern, call, call_text, register_op, takes_arguments
from loopnest.scalar.dtypes import KEEPING
from loopnest.scalar.expr import Expr


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


def _infer_broadcast(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
    shape = attrs["shape"]
    lead = len(shape) - len(x.shape)
    pairs = zip(x.shape, shape[max(lead, 0) :], strict=False)
    if lead < 0 or any(own not in (1, wanted) for own, wanted in pairs):
        raise Refused(
            f"{shown(x.shape)} does not broadcast to {shown(shape)}", "extents of 1 repeat"
        )
    return TensorType(shape, x.dtype)


def _infer_expand(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
    shape: list[Dim] = list(x.shape)
    for place in attrs["axis"]:
        if not 0 <= place <= len(shape):
            raise Refused(f"axis {place} is out of range")
        shape.insert(place, 1)
    return TensorType(tuple(shape), x.dtype)


def _infer_squeeze(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
    for place in attrs["axis"]:
        if not 0 <= place < len(x.shape):
            raise Refused(f"axis {place} is out of range", f"it has {len(x.shape)} axes")
        if x.shape[place] != 1:
            raise Refused(f"axis {place} has extent {x.shape[place]}", "only extents of 1 go")
    kept = [e for i, e in enumerate(x.shape) if i not in attrs["axis"]]
    return TensorType(tuple(kept), x.dtype)


def _infer_transpose(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
    axes = attrs["axes"]
    if sorted(axes) != list(range(len(x.shape))):
        raise Refused(f"axes={axes} is no permutation", f"name each of {len(x.shape)} axes once")
    return TensorType(tuple([x.shape[a] for a in axes]), x.dtype)


def _infer_reshape(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
    found = TensorType(attrs["shape"], x.dtype)
    if found.size != x.size:
        raise Refused(f"{shown(found.shape)} has {found.size} elements, the operand {x.size}")
    return found


def _infer_flip(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
    if any(not 0 <= a < len(x.shape) for a in attrs["axis"]):
        raise Refused(f"axis={attrs['axis']} is out of range", f"it has {len(x.shape)} axes")
    return x


def _infer_concatenate(types: tuple[Type, ...], attrs: Attrs) -> Type:
    parts = tensors(types)
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


def _register(
    name: str, infer: Any, evaluate: Any, params: Sequence[str], pattern: Pattern, arity: int | None
) -> None:
    register_op(name, infer=infer, evaluate=evaluate, arity=arity, params=params, pattern=pattern)


_register(
    "broadcast_to",
    _infer_broadcast,
    lambda node, x: np.broadcast_to(x, node.static_shape),
    ("shape",),
    Pattern.BROADCAST,
    1,
)
_register(
    "expand_dims",
    _infer_expand,
    lambda node, x: np.expand_dims(x, node.attrs["axis"]),
    ("axis",),
    Pattern.BROADCAST,
    1,
)
_register(
    "squeeze",
    _infer_squeeze,
    lambda node, x: np.reshape(x, node.static_shape),
    ("axis",),
    Pattern.INJECTIVE,
    1,
)
_register(
    "transpose",
    _infer_transpose,
    lambda node, x: np.transpose(x, node.attrs["axes"]),
    ("axes",),
    Pattern.INJECTIVE,
    1,
)
_register(
    "reshape",
    _infer_reshape,
    lambda node, x: np.reshape(x, node.static_shape),
    ("shape",),
    Pattern.INJECTIVE,
    1,
)
_register(
    "flip",
    _infer_flip,
    lambda node, x: np.flip(x, node.attrs["axis"]),
    ("axis",),
    Pattern.INJECTIVE,
    1,
)
_register(
    "concatenate",
    _infer_concatenate,
    lambda node, *parts: np.concatenate(parts, node.attrs["axis"]),
    ("axis",),
    Pattern.INJECTIVE,
    None,
)
