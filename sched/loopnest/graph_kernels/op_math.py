"""The attribute ``lower`` of graph ops: an op as math of the core, for `group_math`.

``lower(node, operands)`` returns a TensorView of the current fusion, by public functions. An
operand is a TensorView, or the Python number of a scalar constant; at least one is a TensorView,
where the op has operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import loopnest as ln
from loopnest.graph.dimensions import Dim
from loopnest.graph.node import Node, describe
from loopnest.graph.registry import get_attr, register_attr
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import cast
from loopnest.scalar.op_table import FUNCTIONS
from loopnest.tensor.fusion import current_fusion
from loopnest.tensor.ops.data_movement import sizes_of
from loopnest.tensor.ops.operands import ScalarOperand

MathOperand: TypeAlias = "ln.TensorView | bool | int | float"
Lower: TypeAlias = "Callable[[Node, tuple[MathOperand, ...]], ln.TensorView]"


def lower_of(node: Node) -> Lower | None:
    """Return how a node's op becomes math; None where it has no attribute ``lower``."""
    found: Lower | None = get_attr(node, "lower", None)
    return found


def as_tensor(operand: MathOperand, node: Node) -> ln.TensorView:
    """Return an operand as a tensor; a number as one of the type of the node's operand."""
    if isinstance(operand, ln.TensorView):
        return operand
    return ln.full((), operand, node.inputs[0].dtype)


def _function(name: str) -> Lower:
    """Return the lowering of a function that the core has under the same name."""
    function: Callable[..., ln.TensorView] = getattr(ln, name)

    def lower(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
        if not any(isinstance(x, ln.TensorView) for x in operands):
            operands = (as_tensor(operands[0], node), *operands[1:])
        return function(*operands, **node.attrs)

    return lower


def _reduction(name: str) -> Lower:
    function: Callable[..., ln.TensorView] = getattr(ln, name)

    def lower(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
        tensor = as_tensor(operands[0], node)
        if not node.attrs["axis"] and name not in ("any", "all"):
            return ln.cast(tensor, node.dtype)  # over no axis: each element is its own result
        return function(tensor, node.attrs["axis"], node.attrs["keepdims"])

    return lower


def _where(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    cond, a, b = operands
    if not isinstance(a, ln.TensorView) and not isinstance(b, ln.TensorView):
        a = ln.full((), a, node.dtype)  # numbers alone would have a type of their own
    if isinstance(a, ln.TensorView):
        return ln.where(cond, a, b)
    assert isinstance(b, ln.TensorView)
    return ln.where(cond, a, b)


def _cast(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    return ln.cast(as_tensor(operands[0], node), node.dtype)


def _matmul(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    a, b = [as_tensor(operand, node) for operand in operands]
    return ln.matmul(a, b)


def _expand_dims(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    mask = [place in node.attrs["axis"] for place in range(node.ndim)]
    return ln.broadcast(as_tensor(operands[0], node), mask)


def _squeeze(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    return ln.squeeze(as_tensor(operands[0], node), node.attrs["axis"])


def _broadcast_to(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    return ln.expand(as_tensor(operands[0], node), node.shape)


def _transpose(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    return ln.permute(as_tensor(operands[0], node), node.attrs["axes"])


def _full(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    return ln.full(node.shape, node.attrs["value"], node.dtype)


def _iota(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    attrs = node.attrs
    found = ln.iota(attrs["length"], attrs["start"], attrs["step"], ln.int64)
    return ln.cast(found, node.dtype)


def _size(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    operand = size_operand(node.attrs["value"], node.dtype.compute, node)
    return ln.full((), operand, node.dtype)


def size_operand(extent: Dim, dtype: DType, node: Node) -> ScalarOperand | int:
    """Return an extent as an operand of math: an int where it is static."""
    if isinstance(extent, int):
        return extent
    fusion = current_fusion()
    assert fusion is not None
    (size,) = sizes_of(fusion, describe(node), (extent,))
    return ScalarOperand(cast(size, dtype), fusion)


@register_attr(["cumsum", "cumprod"], "lower")
def _scan(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    function = ln.cumsum if node.op == "cumsum" else ln.cumprod
    attrs = node.attrs
    tensor = as_tensor(operands[0], node)
    return function(tensor, attrs["axis"], attrs["exclusive"], attrs["reverse"])


for _name in FUNCTIONS:
    register_attr(_name, "lower", _function(_name))
for _name in ("sum", "prod", "max", "min", "any", "all", "mean"):
    register_attr(_name, "lower", _reduction(_name))
for _name, _rule in {
    "where": _where,
    "cast": _cast,
    "matmul": _matmul,
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "broadcast_to": _broadcast_to,
    "transpose": _transpose,
    "full": _full,
    "iota": _iota,
    "size": _size,
}.items():
    register_attr(_name, "lower", _rule)
