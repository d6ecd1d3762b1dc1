"""The op strided_view: memory read at strides, as what made an array says that it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from loopnest.graph.dimensions import Dim, DimLike, ShapeLike, add, mul, never_at_most, sub
from loopnest.graph.graph_error import Refused
from loopnest.graph.leaves import shape_of
from loopnest.graph.node import Attrs, Node, Operand, TensorType, Type
from loopnest.graph.operators.node_operands import require_node, tensors
from loopnest.graph.registry import Pattern, call, call_text, register_op, takes_arguments


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


def _infer(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
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


def _evaluate(node: Node, x: Any) -> Any:
    steps = [int(step) * x.itemsize for step in node.attrs["strides"]]
    words = np.ascontiguousarray(x).view(f"u{x.itemsize}")  # NumPy's function knows no other types
    return as_strided(words, node.static_shape, steps).view(x.dtype).copy()


register_op(
    "strided_view",
    infer=_infer,
    evaluate=_evaluate,
    arity=1,
    params=("shape", "strides"),
    pattern=Pattern.INJECTIVE,
)
