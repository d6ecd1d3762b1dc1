"""What pointwise ops compute, and the types that they take: rows of a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from loopnest.dtypes import DType, bool_
from loopnest.graph.errors import Refused
from loopnest.graph.node import Attrs, Node, TensorType, Type
from loopnest.graph.ops.operands import (
    Rule,
    arithmetic,
    bitwise,
    broadcast_shapes,
    elementwise,
    floating,
    keeping,
    logical,
    one_type,
    tensors,
)
from loopnest.graph.registry import Pattern, register_op
from loopnest.numeric import APPLY


def _infer_where(types: tuple[Type, ...], attrs: Attrs) -> Type:
    cond, *sides = tensors(types)
    if not cond.dtype.is_bool:
        raise Refused(f"the condition is {cond.dtype}", "cast it to bool")
    return TensorType(broadcast_shapes([t.shape for t in (cond, *sides)]), one_type(sides))


def _infer_cast(types: tuple[Type, ...], attrs: Attrs) -> Type:
    return TensorType(tensors(types)[0].shape, attrs["dtype"])


def _infer_gelu(types: tuple[Type, ...], attrs: Attrs) -> Type:
    if attrs["approximate"] not in ("none", "tanh"):
        raise Refused(f"there is no approximate={attrs['approximate']!r}", "use 'none' or 'tanh'")
    return elementwise(accepts=floating)(types, attrs)


def _gelu(node: Node, x: Any) -> Any:
    if node.attrs["approximate"] == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + _same(APPLY["erf"], x * math.sqrt(0.5)))


def _same(function: Callable[..., Any], x: Any) -> Any:
    """Return a function's value in the type of its operand."""
    return np.asarray(function(x)).astype(x.dtype, copy=False)


def _cast(node: Node, x: Any) -> Any:
    return np.not_equal(x, 0) if node.dtype.is_bool else x.astype(node.dtype.numpy)


def _mod(a: Any, b: Any) -> Any:
    return np.mod(a, b) if np.asarray(b).dtype.kind == "f" else np.where(b == 0, 0, np.mod(a, b))


def _sigmoid(x: Any) -> Any:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), 1 - 1 / (1 + np.exp(-np.abs(x))))


def _of_floats(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(x) if x.dtype.kind == "f" else x


_Row = tuple[Callable[..., Any], Rule, DType | None]

_UNARY: dict[str, _Row] = {
    "neg": (np.negative, arithmetic, None),
    "abs": (np.abs, keeping, None),
    "floor": (_of_floats(np.floor), keeping, None),
    "ceil": (_of_floats(np.ceil), keeping, None),
    "round": (_of_floats(np.rint), keeping, None),
    "trunc": (_of_floats(np.trunc), keeping, None),
    "relu": (lambda x: np.maximum(x, np.zeros((), x.dtype)), keeping, None),
    "exp": (np.exp, floating, None),
    "exp2": (np.exp2, floating, None),
    "log": (np.log, floating, None),
    "log2": (np.log2, floating, None),
    "log1p": (np.log1p, floating, None),
    "sqrt": (np.sqrt, floating, None),
    "rsqrt": (lambda x: 1 / np.sqrt(x), floating, None),
    "reciprocal": (lambda x: 1 / x, floating, None),
    "sin": (np.sin, floating, None),
    "cos": (np.cos, floating, None),
    "tanh": (np.tanh, floating, None),
    "sigmoid": (_sigmoid, floating, None),
    "erf": (lambda x: _same(APPLY["erf"], x), floating, None),
    "silu": (lambda x: x * _sigmoid(x), floating, None),
    "invert": (np.invert, bitwise, None),
    "logical_not": (np.logical_not, logical, None),
    "isnan": (lambda x: x != x, keeping, bool_),
}
_SEVERAL: dict[str, _Row] = {
    "add": (np.add, arithmetic, None),
    "sub": (np.subtract, arithmetic, None),
    "mul": (np.multiply, arithmetic, None),
    "div": (np.divide, floating, None),
    "mod": (_mod, arithmetic, None),
    "pow": (APPLY["pow"], arithmetic, None),
    "maximum": (np.maximum, keeping, None),
    "minimum": (np.minimum, keeping, None),
    "eq": (np.equal, keeping, bool_),
    "ne": (np.not_equal, keeping, bool_),
    "lt": (np.less, keeping, bool_),
    "le": (np.less_equal, keeping, bool_),
    "gt": (np.greater, keeping, bool_),
    "ge": (np.greater_equal, keeping, bool_),
    "bitand": (np.bitwise_and, bitwise, None),
    "bitor": (np.bitwise_or, bitwise, None),
    "logical_and": (np.logical_and, logical, None),
    "logical_or": (np.logical_or, logical, None),
    "fma": (lambda a, b, c: a * b + c, arithmetic, None),
    "clamp": (lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi), keeping, None),
}


def _register(name: str, row: _Row, arity: int, pattern: Pattern) -> None:
    function, rule, result = row
    register_op(
        name,
        infer=elementwise(result, rule),
        evaluate=lambda node, *values: function(*values),
        arity=arity,
        pattern=pattern,
    )


for _name, _row in _UNARY.items():
    _register(_name, _row, 1, Pattern.ELEMWISE)
for _name, _row in _SEVERAL.items():
    _register(_name, _row, 3 if _name in ("fma", "clamp") else 2, Pattern.BROADCAST)
register_op(
    "gelu",
    infer=_infer_gelu,
    evaluate=_gelu,
    arity=1,
    params={"approximate": "none"},
    pattern=Pattern.ELEMWISE,
)
register_op(
    "where",
    infer=_infer_where,
    evaluate=lambda node, cond, a, b: np.where(cond, a, b),
    arity=3,
    pattern=Pattern.BROADCAST,
)
register_op(
    "cast",
    infer=_infer_cast,
    evaluate=_cast,
    arity=1,
    params=("dtype",),
    pattern=Pattern.ELEMWISE,
)
