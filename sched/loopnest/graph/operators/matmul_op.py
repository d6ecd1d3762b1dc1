"""Products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopnest.graph.graph_error import Refused
from loopnest.graph.node import Attrs, Node, Operand, TensorType, Type
from loopnest.graph.operators.node_operands import applied, broadcast_shapes, one_type, tensors
from loopnest.graph.registry import Pattern, call, register_op, takes_arguments
from loopnest.scalar.dtypes import ARITHMETIC, int64


@takes_arguments
def matmul(a: Operand, b: Operand) -> Node:
    """Return the matrix product over the last two axes: […, M, K] @ […, K, N] -> […, M, N].

    Axes in front broadcast. 16-bit operands accumulate in float32; int32 and bool are multiplied in
    int32 and summed in int64, as in the core.

    Raises:
        GraphError: a rank below 2, or extents that do not fit.
    """
    return applied("matmul", (a, b), ARITHMETIC, lambda nodes: call("matmul", nodes))


def _infer(types: tuple[Type, ...], attrs: Attrs) -> Type:
    a, b = tensors(types)
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


def _matmul(node: Node, a: Any, b: Any) -> Any:
    if a.dtype.kind in "iu" and a.dtype.itemsize < 8:
        products = a[..., :, :, None] * b[..., None, :, :]  # each wraps before the sum
        return np.sum(products, axis=-2, dtype=np.int64)
    return np.matmul(a, b)


register_op("matmul", infer=_infer, evaluate=_matmul, arity=2, pattern=Pattern.OUT_ELEMWISE_FUSABLE)
