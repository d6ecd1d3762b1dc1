"""Ops whose places are data (take, index_add, which puts back what it took, put), or find places.

These are argsort and searchsorted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loopnest.graph.dimensions import Shape, shown
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.node import Attrs, Node, Operand, TensorType
from loopnest.graph.operators.movement_ops import reshape
from loopnest.graph.operators.node_operands import declares, meet, require_node
from loopnest.graph.operators.reduction_ops import normalized_axes
from loopnest.graph.registry import call, call_text, takes_arguments
from loopnest.scalar.dtypes import ARITHMETIC, INTEGERS, DType, int64

__all__ = [
    "argsort",
    "index_add",
    "put",
    "searchsorted",
    "take",
]


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
def put(x: Operand, indices: Operand, values: Operand, fold: str = "last") -> Node:
    """Return x with values at flat places, which count its elements in C order.

    Of several values for one place the last one stays; or the largest or the least one, of these
    and of what x has there; or the product of all of them, whose second derivatives are right where
    no place has two values that are 0.

    >>> import loopnest.graph as G
    >>> x, i = G.const([1, 2, 3, 4]), G.const([2, 0, 2])
    >>> print(*G.evaluate(G.Graph([], [G.put(x, i, G.const([7, 8, 9]))])))
    [8 2 9 4]
    >>> print(*G.evaluate(G.Graph([], [G.put(x, i, G.const([3, 0, 2]), "max")])))
    [1 2 3 4]
    >>> print(*G.evaluate(G.Graph([], [G.put(x, i, G.const([7, 8, 9]), "prod")])))
    [  8   2 189   4]

    Args:
        x: of any shape.
        indices: int32 or int64. An index outside of x is an error, of a call too.
        values: of the shape of the indices and the type of x.
        fold: "last", "max", "min" or "prod"; a NaN is the largest and the least.

    Raises:
        GraphError: shapes or types that do not fit, or another fold.

    Source: numpy.put; numpy.ufunc.at.
    """
    operands = [require_node("put", operand) for operand in (x, indices, values)]
    flat = [reshape(operand, (operand.tensor_type.size,)) for operand in operands]
    return reshape(call("put", flat, {"fold": fold}), operands[0].shape)


@takes_arguments
def argsort(x: Operand, axis: int = -1, descending: bool = False) -> Node:
    """Return where the elements of x in their order along `axis` stand, as int64.

    A NaN counts as the largest. Of equal elements the first comes first, also where `descending`.

    >>> import loopnest.graph as G
    >>> print(*G.evaluate(G.Graph([], [G.argsort(G.const([3, 0, 3, 2]))])))
    [1 3 0 2]

    Args:
        x: of any shape with an axis; no bools.
        axis: an axis, negative from the end.
        descending: whether the largest comes first.

    Raises:
        GraphError: an axis out of range, or bools.

    Source: numpy.argsort, with kind="stable".
    """
    node = require_node("argsort", x)
    (place,) = normalized_axes("argsort", node, axis)
    return call("argsort", (node,), {"axis": place, "descending": bool(descending)})


@takes_arguments
def searchsorted(sorted: Operand, values: Operand, side: str = "left") -> Node:
    """Return before which element of `sorted` each of `values` stands in the order, as int64.

    >>> import loopnest.graph as G
    >>> found = G.searchsorted(G.const([1, 2, 2, 3]), G.const([2, 9]), "right")
    >>> print(*G.evaluate(G.Graph([], [found])))
    [3 4]

    Args:
        sorted: the elements in their order along the last axis: of one axis, or of the axes of
            `values`, and of their extents but for the last.
        values: of the type of `sorted`.
        side: "left", or "right": equal elements stand in front, too.

    Raises:
        GraphError: types or shapes that do not fit, or another side.

    Source: numpy.searchsorted; torch.searchsorted, of rows.
    """
    operands = [require_node("searchsorted", operand) for operand in (sorted, values)]
    return call("searchsorted", operands, {"side": side})


def _check_indices(dtype: DType) -> None:
    if dtype not in INTEGERS:
        raise Refused(f"the indices are {dtype}", "use integers")


def _spliced(x: Shape, axis: int, instead: Shape) -> Shape:
    return (*x[:axis], *instead, *x[axis + 1 :])


def _take(node: Node, x: Any, indices: Any) -> Any:
    _check_range(indices, x.shape[node.attrs["axis"]])
    return np.take(x, indices, node.attrs["axis"])


@declares("take", ("axis",), value=_take)
def _type_of_take(attrs: Attrs, x: TensorType, indices: TensorType) -> TensorType:
    _check_indices(indices.dtype)
    if not 0 <= attrs["axis"] < len(x.shape):
        raise Refused(f"axis {attrs['axis']} is out of range", f"it has {len(x.shape)} axes")
    return TensorType(_spliced(x.shape, attrs["axis"], indices.shape), x.dtype)


def _add(node: Node, x: Any, indices: Any, updates: Any) -> Any:
    axis = node.attrs["axis"]
    _check_range(indices, x.shape[axis])
    result = np.array(x)
    np.add.at(np.moveaxis(result, axis, 0), indices, np.moveaxis(updates, axis, 0))
    return result


@declares("index_add", ("axis",), value=_add)
def _type_of_add(
    attrs: Attrs, x: TensorType, indices: TensorType, updates: TensorType
) -> TensorType:
    _check_indices(indices.dtype)
    if len(indices.shape) != 1:
        raise Refused(f"the indices are {shown(indices.shape)}", "they have one axis")
    wanted = TensorType(_spliced(x.shape, attrs["axis"], indices.shape), x.dtype)
    if updates != wanted:
        raise Refused(f"the updates are {updates}", f"they must be {wanted}")
    return x


def _put(node: Node, x: Any, indices: Any, values: Any) -> Any:
    _check_range(indices, x.shape[0])
    result = np.array(x)
    if node.attrs["fold"] == "last":
        for index, value in zip(indices.tolist(), values, strict=True):
            result[index] = value
    else:
        _FOLDS[node.attrs["fold"]].at(result, indices, values)
    return result


_FOLDS = {"max": np.maximum, "min": np.minimum, "prod": np.multiply}


@declares("put", {"fold": "last"}, value=_put)
def _type_of_put(
    attrs: Attrs, x: TensorType, indices: TensorType, values: TensorType
) -> TensorType:
    _check_indices(indices.dtype)
    if attrs["fold"] not in ("last", *_FOLDS):
        raise Refused(f"fold is {attrs['fold']!r}", 'use "last", "max", "min" or "prod"')
    if len(x.shape) != 1 or len(indices.shape) != 1:
        raise Refused(f"the operand is {x}, the indices are {indices}", "both have one axis")
    wanted = TensorType(indices.shape, x.dtype)
    if values != wanted:
        raise Refused(f"the values are {values}", f"they must be {wanted}")
    return x


def _order(node: Node, x: Any) -> Any:
    axis = node.attrs["axis"]
    if not node.attrs["descending"]:
        return np.argsort(x, axis, kind="stable")
    last = x.shape[axis] - 1
    return np.flip(last - np.argsort(np.flip(x, axis), axis, kind="stable"), axis)


@declares("argsort", ("axis", "descending"), value=_order)
def _type_of_order(attrs: Attrs, x: TensorType) -> TensorType:
    if x.dtype.is_bool:
        raise Refused(f"the operand is {x}", "sort numbers; cast it")
    return TensorType(x.shape, int64)


def _search(node: Node, sorted_: Any, values: Any) -> Any:
    side = node.attrs["side"]
    if sorted_.ndim == 1:
        return np.asarray(np.searchsorted(sorted_, values, side), np.int64)
    result = np.empty(values.shape, np.int64)
    for row in np.ndindex(*values.shape[:-1]):
        result[row] = np.searchsorted(sorted_[row], values[row], side)
    return result


@declares("searchsorted", ("side",), value=_search)
def _type_of_search(attrs: Attrs, sorted_: TensorType, values: TensorType) -> TensorType:
    found = f"the sorted elements are {sorted_}, the values are {values}"
    if sorted_.dtype is not values.dtype:
        raise Refused(found, "both have one type")
    rows = len(sorted_.shape) - 1
    if rows < 0 or (rows and sorted_.shape[:-1] != values.shape[:-1]):
        raise Refused(found, "what is sorted has one axis, or those of the values but for the last")
    if attrs["side"] not in ("left", "right"):
        raise Refused(f"side is {attrs['side']!r}", 'use "left" or "right"')
    return TensorType(values.shape, int64)


def _check_range(indices: Any, extent: int) -> None:
    outside = (indices < 0) | (indices >= extent)
    if outside.any():
        raise IndexError(f"index {indices[outside].flat[0]} is outside of an axis of {extent}")
