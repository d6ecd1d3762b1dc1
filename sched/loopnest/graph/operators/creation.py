"""Nodes from nothing: full, zeros, ones, iota."""

from __future__ import annotations

import numpy as np

from loopnest.base.errors import kind_of
from loopnest.graph.dimensions import DimLike, ShapeLike, dim_of
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.leaves import const, dtype_of, shape_of
from loopnest.graph.node import Attrs, Node, TensorType, Type
from loopnest.graph.operators.node_operands import is_number
from loopnest.graph.registry import Pattern, call, call_text, register_op, short, takes_arguments
from loopnest.scalar.dtypes import DType, float32, int64

__all__ = [
    "full",
    "full_like",
    "iota",
    "ones",
    "ones_like",
    "size",
    "zeros",
    "zeros_like",
]


@takes_arguments
def full(shape: ShapeLike, value: float, dtype: DType | str | type | None = None) -> Node:
    """Return a tensor of one number; without `dtype` bool, int32 or float32, as the number is.

    Raises:
        GraphError: a shape that is none, or no number.
    """
    subject = call_text("full", (shape, value))
    if not is_number(value):
        raise GraphError(subject, f"the value is {kind_of(value)}", "use a Python number")
    weak = "bool" if isinstance(value, bool) else "int32" if isinstance(value, int) else "float32"
    found = dtype_of(weak if dtype is None else dtype, subject)
    typed = bool(value) if found.is_bool else int(value) if found.is_integer else float(value)
    attrs = {"shape": shape_of(shape, subject), "value": typed, "dtype": found}
    return call("full", (), attrs)


@takes_arguments
def zeros(shape: ShapeLike, dtype: DType | str | type = float32) -> Node:
    """Return a tensor of zeros.

    Args:
        shape: an int or a size an axis.
        dtype: the element type.

    >>> import loopnest.graph as G
    >>> print(*G.evaluate(G.Graph([], [G.zeros((2,), "int32")])))
    [0 0]

    Source: numpy.zeros.
    """
    return full(shape, 0, dtype)


@takes_arguments
def ones(shape: ShapeLike, dtype: DType | str | type = float32) -> Node:
    """Return a tensor of ones.

    Args:
        shape: an int or a size an axis.
        dtype: the element type.

    >>> import loopnest.graph as G
    >>> print(*G.evaluate(G.Graph([], [G.ones((2,), "int32")])))
    [1 1]

    Source: numpy.ones.
    """
    return full(shape, 1, dtype)


@takes_arguments
def zeros_like(node: Node) -> Node:
    """Return zeros of a node's shape and type.

    Args:
        node: whose shape and element type the result has.

    >>> import loopnest.graph as G
    >>> G.zeros_like(G.var("x", (2, 3), "float32")).shape
    (2, 3)

    Source: numpy.zeros_like.
    """
    return full(node.shape, 0, node.dtype)


@takes_arguments
def ones_like(node: Node) -> Node:
    """Return ones of a node's shape and type.

    Args:
        node: whose shape and element type the result has.

    >>> import loopnest.graph as G
    >>> G.ones_like(G.var("x", (2, 3), "float32")).shape
    (2, 3)

    Source: numpy.ones_like.
    """
    return full(node.shape, 1, node.dtype)


@takes_arguments
def full_like(node: Node, value: float) -> Node:
    """Return a tensor of one number, of a node's shape and type.

    Args:
        node: whose shape and element type the result has.
        value: every element, converted to that type.

    >>> import loopnest.graph as G
    >>> G.full_like(G.var("x", (2, 3), "float32"), 1.5).shape
    (2, 3)

    Source: numpy.full_like.
    """
    return full(node.shape, value, node.dtype)


@takes_arguments
def iota(length: DimLike, start: int = 0, step: int = 1, dtype: DType | str | type = int64) -> Node:
    """Return [start, start + step, …] of `length` elements.

    Raises:
        GraphError: a length below 0, or a start or step that is no integer.
    """
    subject = call_text("iota", (length, start, step))
    for value in (start, step):
        if isinstance(value, bool) or not isinstance(value, int):
            raise GraphError(subject, f"{short(value)} is no integer")
    (extent,) = shape_of((length,), subject)
    attrs = {"length": extent, "start": start, "step": step, "dtype": dtype_of(dtype, subject)}
    return call("iota", (), attrs)


@takes_arguments
def size(value: DimLike, dtype: DType | str | type = float32) -> Node:
    """Return a size as a scalar, to compute with: a const where it is static.

    >>> size("N * 2", "int64"), size(3)
    (<size(): int64[]>, <3.0: float32[]>)

    Raises:
        GraphError: no size, or an unknown dtype.
    """
    subject = call_text("size", (value,))
    extent, found = dim_of(value, subject), dtype_of(dtype, subject)
    if isinstance(extent, int):
        return const(extent, found)
    return call("size", (), {"value": extent, "dtype": found})


def _infer_full(types: tuple[Type, ...], attrs: Attrs) -> Type:
    if not is_number(attrs["value"]):
        raise Refused(f"the value {short(attrs['value'])} is no number")
    return TensorType(attrs["shape"], attrs["dtype"])


def _infer_size(types: tuple[Type, ...], attrs: Attrs) -> Type:
    if attrs["dtype"].is_bool:
        raise Refused("a size is no bool", "use an integer or a float type")
    return TensorType((), attrs["dtype"])


def _iota(node: Node) -> object:
    start, step = node.attrs["start"], node.attrs["step"]
    return start + step * np.arange(node.attrs["length"], dtype=np.int64)


register_op(
    "full",
    infer=_infer_full,
    evaluate=lambda node: np.full(node.static_shape, node.attrs["value"], node.dtype.numpy),
    arity=0,
    params=("shape", "value", "dtype"),
    pattern=Pattern.ELEMWISE,
)
register_op(
    "size",
    infer=_infer_size,
    evaluate=lambda node: np.asarray(node.attrs["value"], node.dtype.numpy),
    arity=0,
    params=("value", "dtype"),
    pattern=Pattern.ELEMWISE,
)
register_op(
    "iota",
    infer=lambda types, attrs: TensorType((attrs["length"],), attrs["dtype"]),
    evaluate=_iota,
    arity=0,
    params=("length", "start", "step", "dtype"),
    pattern=Pattern.INJECTIVE,
)
