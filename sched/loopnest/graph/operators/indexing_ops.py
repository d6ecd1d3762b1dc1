"""Ops whose places are data: take, index_add, which puts back what it took, and put."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopnest.graph.dimensions import Shape, shown
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.node import Attrs, Node, Operand, TensorType, Type
from loopnest.graph.operators.movement_ops import reshape
from loopnest.graph.operators.node_operands import meet, require_node, tensors
from loopnest.graph.operators.reduction_ops import normalized_axes
from loopnest.graph.registry import Pattern, call, call_text, register_op, takes_arguments
from loopnest.scalar.dtypes import ARITHMETIC, INTEGERS, DType


@takes_arguments
def take(x: Operand, indices: Operand, axis: int = 0) -> Node:
    """Return the elements of x along `axis` that stand at `indices`.

    The axes of `indices` (integers) take the place of `axis`: of x [V, D] and indices [N, T]
    the result is [N, T, D], the rows of an embedding. An index outside of the axis is an error: of
    a call too, before anything runs.

    Raises:
        GraphError: an axis out of range, or indices of another type.

    Source: numpy.take.
    """
    node, places = require_node("take", x), require_node("take", indices)
    (place,) = normalized_axes("take", node, axis)
    return call("take", (node, places), {"axis": place})


@takes_arguments
def index_add(x: Operand, indices: Operand, updates: Operand, axis: int = 0) -> Node:
    """Return x with each slice of `updates` along `axis` added to the slice that `indices` name.

    Args:
        x: the operand.
        indices: integers [K].
        updates: of the shape of x, but K along `axis`.
        axis: of both.

    Raises:
        GraphError: an axis out of range, or shapes or types that do not fit.

    Source: torch.Tensor.index_add.
    """
    node, added = meet("index_add", (x, updates), ARITHMETIC)
    places = require_node("index_add", indices)
    if not node.ndim:
        raise GraphError(call_text("index_add", (x, indices, updates)), "x has no axis")
    (place,) = normalized_axes("index_add", node, axis)
    return call("index_add", (node, places, added), {"axis": place})


@takes_arguments
def put(x: Operand, indices: Operand, values: Operand) -> Node:
    """Return x with values at flat places, which count its elements in C order.

    Of several values for one place the last one stays.

    >>> import loopnest.graph as G
    >>> x, i = G.const([1, 2, 3, 4]), G.const([2, 0, 2])
    >>> print(*G.evaluate(G.Graph([], [G.put(x, i, G.const([7, 8, 9]))])))
    [8 2 9 4]

    Args:
        x: of any shape.
        indices: int32 or int64. An index outside of x is an error, of a call too.
        values: of the shape of the indices and the type of x.

    Raises:
        GraphError: shapes or types that do not fit.

    Source: numpy.put.
    """
    operands = [require_node("put", operand) for operand in (x, indices, values)]
    flat = [reshape(operand, (operand.tensor_type.size,)) for operand in operands]
    return reshape(call("put", flat), operands[0].shape)


def _check_indices(dtype: DType) -> None:
    if dtype not in INTEGERS:
        raise Refused(f"the indices are {dtype}", "use integers")


def _spliced(x: Shape, axis: int, instead: Shape) -> Shape:
    return (*x[:axis], *instead, *x[axis + 1 :])


def _infer_take(types: tuple[Type, ...], attrs: Attrs) -> Type:
    x, indices = tensors(types)
    _check_indices(indices.dtype)
    if not 0 <= attrs["axis"] < len(x.shape):
        raise Refused(f"axis {attrs['axis']} is out of range", f"it has {len(x.shape)} axes")
    return TensorType(_spliced(x.shape, attrs["axis"], indices.shape), x.dtype)


def _infer_add(types: tuple[Type, ...], attrs: Attrs) -> Type:
    x, indices, updates = tensors(types)
    _check_indices(indices.dtype)
    if len(indices.shape) != 1:
        raise Refused(f"the indices are {shown(indices.shape)}", "they have one axis")
    wanted = TensorType(_spliced(x.shape, attrs["axis"], indices.shape), x.dtype)
    if updates != wanted:
        raise Refused(f"the updates are {updates}", f"they must be {wanted}")
    return x


def _infer_put(types: tuple[Type, ...], attrs: Attrs) -> Type:
    x, indices, values = tensors(types)
    _check_indices(indices.dtype)
    if len(x.shape) != 1 or len(indices.shape) != 1:
        raise Refused(f"the operand is {x}, the indices are {indices}", "both have one axis")
    wanted = TensorType(indices.shape, x.dtype)
    if values != wanted:
        raise Refused(f"the values are {values}", f"they must be {wanted}")
    return x


def _check_range(indices: Any, extent: int) -> None:
    outside = (indices < 0) | (indices >= extent)
    if outside.any():
        raise IndexError(f"index {indices[outside].flat[0]} is outside of an axis of {extent}")


def _take(node: Node, x: Any, indices: Any) -> Any:
    _check_range(indices, x.shape[node.attrs["axis"]])
    return np.take(x, indices, node.attrs["axis"])


def _add(node: Node, x: Any, indices: Any, updates: Any) -> Any:
    axis = node.attrs["axis"]
    _check_range(indices, x.shape[axis])
    result = np.array(x)
    np.add.at(np.moveaxis(result, axis, 0), indices, np.moveaxis(updates, axis, 0))
    return result


def _put(node: Node, x: Any, indices: Any, values: Any) -> Any:
    _check_range(indices, x.shape[0])
    result = np.array(x)
    for index, value in zip(indices.tolist(), values, strict=True):
        result[index] = value
    return result


register_op("put", infer=_infer_put, evaluate=_put, arity=3, pattern=Pattern.OPAQUE)
for _name, _infer, _evaluate, _arity in (
    ("take", _infer_take, _take, 2),
    ("index_add", _infer_add, _add, 3),
):
    register_op(
        _name,
        infer=_infer,
        evaluate=_evaluate,
        arity=_arity,
        params=("axis",),
        pattern=Pattern.OPAQUE,
    )
