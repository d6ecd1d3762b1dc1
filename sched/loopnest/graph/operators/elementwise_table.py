"""What pointwise ops compute, and the types that they take: rows of a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from loopnest.graph.graph_error import Refused
from loopnest.graph.node import Attrs, Node, TensorType, Type
from loopnest.graph.operators.node_operands import broadcast_shapes, elementwise, one_type, tensors
from loopnest.graph.registry import Pattern, register_op
from loopnest.numerics.float64_math import APPLY
from loopnest.scalar.dtypes import ARITHMETIC, BITWISE, COMPARISON, FLOAT, KEEPING, LOGICAL, Rule


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
    return elementwise(FLOAT)(types, attrs)


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


_Row = tuple[Callable[..., Any], Rule]

_UNARY: dict[str, _Row] = {
    "neg": (np.negative, ARITHMETIC),
    "abs": (np.abs, KEEPING),
    "floor": (_of_floats(np.floor), KEEPING),
    "ceil": (_of_floats(np.ceil), KEEPING),
    "round": (_of_floats(np.rint), KEEPING),
    "trunc": (_of_floats(np.trunc), KEEPING),
    "relu": (lambda x: np.maximum(x, np.zeros((), x.dtype)), KEEPING),
    "exp": (np.exp, FLOAT),
    "exp2": (np.exp2, FLOAT),
    "log": (np.log, FLOAT),
    "log2": (np.log2, FLOAT),
    "log1p": (np.log1p, FLOAT),
    "sqrt": (np.sqrt, FLOAT),
    "rsqrt": (lambda x: 1 / np.sqrt(x), FLOAT),
    "reciprocal": (lambda x: 1 / x, FLOAT),
    "sin": (np.sin, FLOAT),
    "cos": (np.cos, FLOAT),
    "tanh": (np.tanh, FLOAT),
    "sigmoid": (_sigmoid, FLOAT),
    "erf": (lambda x: _same(APPLY["erf"], x), FLOAT),
    "silu": (lambda x: x * _sigmoid(x), FLOAT),
    "invert": (np.invert, BITWISE),
    "logical_not": (np.logical_not, LOGICAL),
    "isnan": (lambda x: x != x, COMPARISON),
}
_SEVERAL: dict[str, _Row] = {
    "add": (np.add, ARITHMETIC),
    "sub": (np.subtract, ARITHMETIC),
    "mul": (np.multiply, ARITHMETIC),
    "div": (np.divide, FLOAT),
    "mod": (_mod, ARITHMETIC),
    "pow": (APPLY["pow"], ARITHMETIC),
    "maximum": (np.maximum, KEEPING),
    "minimum": (np.minimum, KEEPING),
    "eq": (np.equal, COMPARISON),
    "ne": (np.not_equal, COMPARISON),
    "lt": (np.less, COMPARISON),
    "le": (np.less_equal, COMPARISON),
    "gt": (np.greater, COMPARISON),
    "ge": (np.greater_equal, COMPARISON),
    "bitand": (np.bitwise_and, BITWISE),
    "bitor": (np.bitwise_or, BITWISE),
    "logical_and": (np.logical_and, LOGICAL),
    "logical_or": (np.logical_or, LOGICAL),
    "fma": (lambda a, b, c: a * b + c, ARITHMETIC),
    "clamp": (lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi), KEEPING),
}


def _register(name: str, row: _Row, arity: int, pattern: Pattern) -> None:
    function, rule = row
    register_op(
        name,
        infer=elementwise(rule),
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
