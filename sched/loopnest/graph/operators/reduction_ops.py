"""Reductions, scans and products of matrices: what folds elements.

``axis`` is an int, several, or None for all; ``keepdims`` leaves extents of 1.

Sums and products of bools and integers are int64; narrow floats accumulate in float32. Over no
element the value is the identity of the fold (max: -inf or the least integer), and the mean is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from loopnest.base.errors import kind_of
from loopnest.graph.dimensions import Shape, product
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.node import OPERATORS, Attrs, Node, Operand, TensorType, Type
from loopnest.graph.node_values import by_math
from loopnest.graph.operators import pointwise_ops as p
from loopnest.graph.operators.creation import size
from loopnest.graph.operators.node_operands import (
    applied,
    broadcast_shapes,
    declares,
    one_type,
    require_node,
    tensors,
)
from loopnest.graph.operators.op_docs import folding
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
from loopnest.scalar.dtypes import ARITHMETIC, DType, bool_, float32, float64, int64

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "cumprod",
    "cumsum",
    "matmul",
    "max",
    "mean",
    "min",
    "prod",
    "sum",
    "variance",
]


Axes: TypeAlias = int | Sequence[int] | None


@folding("[1. 5.]", "numpy.sum")
@takes_arguments
def sum(x: Operand, axis: Axes = None, keepdims: bool = False) -> Node:
    """Return the sum over `axis`; of bools and integers in int64."""
    return _reduce("sum", x, axis, keepdims)


@folding("[0. 6.]", "numpy.prod")
@takes_arguments
def prod(x: Operand, axis: Axes = None, keepdims: bool = False) -> Node:
    """Return the product over `axis`; of bools and integers in int64."""
    return _reduce("prod", x, axis, keepdims)


@folding("[1. 3.]", "numpy.max")
@takes_arguments
def max(x: Operand, axis: Axes = None, keepdims: bool = False) -> Node:
    """Return the largest element over `axis`; NaN if one is."""
    return _reduce("max", x, axis, keepdims)


@folding("[0. 2.]", "numpy.min")
@takes_arguments
def min(x: Operand, axis: Axes = None, keepdims: bool = False) -> Node:
    """Return the least element over `axis`; NaN if one is."""
    return _reduce("min", x, axis, keepdims)


@folding("[ True  True]", "numpy.any")
@takes_arguments
def any(x: Operand, axis: Axes = None, keepdims: bool = False) -> Node:
    """Return whether an element over `axis` is not 0."""
    return _reduce("any", x, axis, keepdims)


@folding("[False  True]", "numpy.all")
@takes_arguments
def all(x: Operand, axis: Axes = None, keepdims: bool = False) -> Node:
    """Return whether no element over `axis` is 0."""
    return _reduce("all", x, axis, keepdims)


@folding("[0.5 2.5]", "numpy.mean")
@takes_arguments
def mean(x: Operand, axis: Axes = None, keepdims: bool = False) -> Node:
    """Return the mean over `axis`; integers give float32."""
    return _reduce("mean", x, axis, keepdims)


@takes_arguments
def variance(x: Operand, axis: Axes = None, correction: float = 0, keepdims: bool = False) -> Node:
    """Return the variance over `axis`; the divisor is the number of elements minus `correction`.

    Integers give float32. (The core calls it `var`; here that is an input.)
    """
    subject = call_text("variance", (x,), {"correction": correction})
    if isinstance(correction, bool) or not isinstance(correction, (int, float)):
        raise GraphError(subject, "the correction is no number")
    if not math.isfinite(correction):
        raise GraphError(subject, "the correction is not finite")
    return _reduce("variance", x, axis, keepdims, correction=correction)


@folding("[0 0]", "numpy.argmax")
@takes_arguments
def argmax(x: Operand, axis: int, keepdims: bool = False) -> Node:
    """Return the place (int64) of the first largest element along one axis."""
    return _reduce("argmax", x, (axis,) if isinstance(axis, int) else axis, keepdims)


@folding("[1 1]", "numpy.argmin")
@takes_arguments
def argmin(x: Operand, axis: int, keepdims: bool = False) -> Node:
    """Return the place (int64) of the first least element along one axis."""
    return _reduce("argmin", x, (axis,) if isinstance(axis, int) else axis, keepdims)


def normalized_axes(op: str, node: Node, axis: Axes) -> tuple[int, ...]:
    """Return axes as sorted places from the front; None is all.

    Raises:
        GraphError: an axis that the node does not have, or twice the same.
    """
    rank = node.ndim
    if axis is None:
        return tuple(range(rank))
    subject = call_text(op, (node,), {"axis": axis})
    if not isinstance(axis, (int, np.integer, Iterable)):
        raise GraphError(subject, f"the axis is {kind_of(axis)}", "use integers, or None")
    given = [axis] if isinstance(axis, (int, np.integer)) else list(axis)
    places: list[int] = []
    for place in given:
        if isinstance(place, bool) or not isinstance(place, (int, np.integer)):
            raise GraphError(subject, f"the axis {short(place)} is no integer")
        if not -rank <= place < rank:
            allowed = f"use {-rank}..{rank - 1}" if rank else "a scalar has no axes"
            raise GraphError(subject, f"axis {place} is out of range", allowed)
        places.append(int(place) % rank)
    if len(set(places)) < len(places):
        raise GraphError(subject, "an axis is named twice")
    return tuple(sorted(places))


def _reduce(op: str, x: object, axis: Axes, keepdims: bool, **attrs: object) -> Node:
    node = require_node(op, x)
    axes = normalized_axes(op, node, axis)
    return call(op, (node,), {"axis": axes, "keepdims": bool(keepdims), **attrs})


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """Return a shape without `axes`, or with extents of 1 there.

    Raises:
        Refused: an axis that the shape does not have.
    """
    for axis in axes:
        if not 0 <= axis < len(shape):
            raise Refused(f"axis {axis} is out of range", f"it has {len(shape)} axes")
    if keepdims:
        return tuple([1 if i in axes else extent for i, extent in enumerate(shape)])
    return tuple([extent for i, extent in enumerate(shape) if i not in axes])


def _infer(result: Callable[[DType], DType]) -> Callable[[tuple[Type, ...], Attrs], Type]:
    def infer(types: tuple[Type, ...], attrs: Attrs) -> Type:
        (operand,) = tensors(types)
        shape = reduced_shape(operand.shape, attrs["axis"], attrs["keepdims"])
        return TensorType(shape, result(operand.dtype))

    return infer


def _infer_place(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (operand,) = tensors(types)
    if len(attrs["axis"]) != 1:
        raise Refused(f"it is along {len(attrs['axis'])} axes", "name one axis")
    shape = reduced_shape(operand.shape, attrs["axis"], attrs["keepdims"])
    if operand.shape[attrs["axis"][0]] == 0:
        raise Refused("there is no element along the axis")
    return TensorType(shape, int64)


def _wide(dtype: DType) -> DType:
    return dtype if dtype.is_float else int64


def _float(dtype: DType) -> DType:
    return dtype if dtype.is_float else float32


def _extreme(function: Callable[..., Any], least: bool) -> Callable[..., Any]:
    """Return max or min, with the identity where there is no element."""

    def evaluate(node: Node, x: Any) -> Any:
        if x.dtype.kind == "b":
            fold = np.any if least else np.all
            return fold(x, axis=node.attrs["axis"], keepdims=node.attrs["keepdims"])
        initial = None
        if not x.size:
            limits = np.finfo if x.dtype.kind == "f" else np.iinfo
            found: Any = limits(x.dtype)
            infinite = x.dtype.kind == "f"
            initial = (-np.inf if infinite else found.min) if least else found.max
            initial = np.inf if infinite and not least else initial
        keywords = {} if initial is None else {"initial": initial}
        return function(x, axis=node.attrs["axis"], keepdims=node.attrs["keepdims"], **keywords)

    return evaluate


def _folded(function: Callable[..., Any], wide: bool = False) -> Callable[..., Any]:
    def evaluate(node: Node, x: Any) -> Any:
        if wide and x.dtype.kind in "biu":
            x = x.astype(np.int64)
        return function(x, axis=node.attrs["axis"], keepdims=node.attrs["keepdims"])

    return evaluate


def _mean(node: Node, x: Any) -> Any:
    axes, keepdims = node.attrs["axis"], node.attrs["keepdims"]
    exact = x.astype(np.float64) if x.dtype.kind in "biu" else x
    count = math.prod([x.shape[axis] for axis in axes])
    return np.sum(exact, axis=axes, keepdims=keepdims) / exact.dtype.type(count)


def _variance(node: Node) -> Node:
    """Return a variance as two means."""
    (x,) = node.inputs
    axes, keepdims = node.attrs["axis"], node.attrs["keepdims"]
    wide = p.cast(x, x.dtype.compute if x.dtype.is_float else float64)
    count = product([x.shape[axis] for axis in axes])
    center = p.sub(wide, mean(wide, axes, keepdims=True))
    total = sum(p.mul(center, center), axes, keepdims=keepdims)
    correction = node.attrs["correction"]
    if isinstance(count, int):
        divisor = count - correction
        return p.cast(p.div(total, float(divisor) if divisor > 0 else 0.0), node.dtype)
    left = p.maximum(p.sub(size(count, wide.dtype), correction), 0)
    return p.cast(p.div(total, left), node.dtype)


def _place(function: Callable[..., Any]) -> Callable[..., Any]:
    def evaluate(node: Node, x: Any) -> Any:
        return function(x, axis=node.attrs["axis"][0], keepdims=node.attrs["keepdims"])

    return evaluate


def _register(
    name: str, result: Callable[[DType], DType], evaluate: Callable[..., Any], **more: object
) -> None:
    register_op(
        name,
        infer=_infer(result),
        evaluate=evaluate,
        arity=1,
        params={"axis": REQUIRED, "keepdims": False, **more},
        pattern=Pattern.REDUCTION,
    )


_register("sum", _wide, _folded(np.sum, wide=True))
_register("prod", _wide, _folded(np.prod, wide=True))
_register("max", lambda d: d, _extreme(np.max, least=True))
_register("min", lambda d: d, _extreme(np.min, least=False))
_register("any", lambda d: bool_, _folded(np.any))
_register("all", lambda d: bool_, _folded(np.all))
_register("mean", _float, _mean)
_register("variance", _float, by_math, correction=0)
register_attr("variance", "math", _variance)
for _name, _function in (("argmax", np.argmax), ("argmin", np.argmin)):
    register_op(
        _name,
        infer=_infer_place,
        evaluate=_place(_function),
        arity=1,
        params={"axis": REQUIRED, "keepdims": False},
        pattern=Pattern.REDUCTION,
    )


@takes_arguments
def cumsum(x: Operand, axis: int, exclusive: bool = False, reverse: bool = False) -> Node:
    """Return the sums of all elements up to each along an axis; of bools and integers in int64.

    Args:
        x: the operand.
        axis: the axis, negative from the end.
        exclusive: whether an element has what lies before it; the first one has 0.
        reverse: whether to go from the end.

    Raises:
        GraphError: an axis that it does not have.
    """
    return _scan("cumsum", x, axis, exclusive, reverse)


@takes_arguments
def cumprod(x: Operand, axis: int, exclusive: bool = False, reverse: bool = False) -> Node:
    """Return the products of all elements up to each along an axis; arguments as of `cumsum`.

    Raises:
        GraphError: an axis that it does not have.
    """
    return _scan("cumprod", x, axis, exclusive, reverse)


def _scan(op: str, x: object, axis: int, exclusive: bool, reverse: bool) -> Node:
    node = require_node(op, x)
    (place,) = normalized_axes(op, node, [axis])
    attrs = {"axis": place, "exclusive": bool(exclusive), "reverse": bool(reverse)}
    return call(op, (node,), attrs)


def _infer_scan(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
    return TensorType(x.shape, x.dtype if x.dtype.is_float else int64)


def _scanned(function: Callable[..., Any], identity: int) -> Callable[..., Any]:
    def evaluate(node: Node, x: Any) -> Any:
        attrs = node.attrs
        axis = attrs["axis"]
        wide = x.astype(node.dtype.compute.numpy)
        wide = np.flip(wide, axis) if attrs["reverse"] else wide
        found = function(wide, axis=axis)
        if attrs["exclusive"]:
            found = np.roll(found, 1, axis)
            if found.shape[axis]:
                np.moveaxis(found, axis, 0)[0] = identity
        found = np.flip(found, axis) if attrs["reverse"] else found
        return found.astype(node.dtype.numpy)

    return evaluate


for _name, _accumulate, _identity in (("cumsum", np.cumsum, 0), ("cumprod", np.cumprod, 1)):
    register_op(
        _name,
        infer=_infer_scan,
        evaluate=_scanned(_accumulate, _identity),
        arity=1,
        params={"axis": REQUIRED, "exclusive": False, "reverse": False},
        pattern=Pattern.OPAQUE,
    )


@takes_arguments
def matmul(a: Operand, b: Operand) -> Node:
    """Return the matrix product over the last two axes: […, M, K] @ […, K, N] -> […, M, N].

    Axes in front broadcast. 16-bit operands accumulate in float32; int32 and bool are multiplied in
    int32 and summed in int64, as in the core.

    Raises:
        GraphError: a rank below 2, or extents that do not fit.
    """
    return applied("matmul", (a, b), ARITHMETIC, lambda nodes: call("matmul", nodes))


def _matmul(node: Node, a: Any, b: Any) -> Any:
    if a.dtype.kind in "iu" and a.dtype.itemsize < 8:
        products = a[..., :, :, None] * b[..., None, :, :]  # each wraps before the sum
        return np.sum(products, axis=-2, dtype=np.int64)
    return np.matmul(a, b)


@declares("matmul", value=_matmul, pattern=Pattern.OUT_ELEMWISE_FUSABLE)
def _type_of_matmul(attrs: Attrs, a: TensorType, b: TensorType) -> TensorType:
    dtype = one_type((a, b))
    for side in (a, b):
        if len(side.shape) < 2:
            raise Refused(f"an operand has rank {len(side.shape)}", "both ranks are at least 2")
    if a.shape[-1] != b.shape[-2]:
        raise Refused(
            f"the extents {a.shape[-1]} and {b.shape[-2]} differ",
            "the last extent of the first is the last but one of the second",
        )
    batch = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    wide = dtype if dtype.is_float else int64
    return TensorType((*batch, a.shape[-2], b.shape[-1]), wide)


OPERATORS["matmul"] = matmul
