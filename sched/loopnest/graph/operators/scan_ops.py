"""Scans: each element is what is folded up to it, along one axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from loopnest.graph.node import Attrs, Node, Operand, TensorType, Type
from loopnest.graph.operators.node_operands import require_node, tensors
from loopnest.graph.operators.reduction_ops import normalized_axes
from loopnest.graph.registry import REQUIRED, Pattern, call, register_op, takes_arguments
from loopnest.scalar.dtypes import int64


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


def _infer(types: tuple[Type, ...], attrs: Attrs) -> Type:
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


for _name, _function, _identity in (("cumsum", np.cumsum, 0), ("cumprod", np.cumprod, 1)):
    register_op(
        _name,
        infer=_infer,
        evaluate=_scanned(_function, _identity),
        arity=1,
        params={"axis": REQUIRED, "exclusive": False, "reverse": False},
        pattern=Pattern.OPAQUE,
    )
