"""What pointwise ops compute; the types that they take stand in `op_table`."""

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
from loopnest.scalar.dtypes import FLOAT
from loopnest.scalar.op_table import FUNCTIONS, Column, ops


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
    return 0.5 * x * (1 + _erf(x * math.sqrt(0.5)))


def _in_its_type(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a function of floats whose value has the type of its operand."""
    return lambda x: np.asarray(function(x)).astype(x.dtype, copy=False)


_erf = _in_its_type(APPLY["erf"])


def _cast(node: Node, x: Any) -> Any:
    return np.not_equal(x, 0) if node.dtype.is_bool else x.astype(node.dtype.numpy)


def _mod(a: Any, b: Any) -> Any:
    return np.mod(a, b) if np.asarray(b).dtype.kind == "f" else np.where(b == 0, 0, np.mod(a, b))


def _sigmoid(x: Any) -> Any:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), 1 - 1 / (1 + np.exp(-np.abs(x))))


def _of_floats(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(x) if x.dtype.kind == "f" else x


_VALUES: dict[str, Callable[..., Any]] = {
    **{n: _in_its_type(f) for n, f in APPLY.items() if n in ops(lambda op: op.result == "float")},
    "neg": np.negative,
    "abs": np.abs,
    "floor": _of_floats(np.floor),
    "ceil": _of_floats(np.ceil),
    "round": _of_floats(np.rint),
    "trunc": _of_floats(np.trunc),
    "relu": lambda x: np.maximum(x, np.zeros((), x.dtype)),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "invert": np.invert,
    "logical_not": np.logical_not,
    "isnan": lambda x: x != x,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "mod": _mod,
    "pow": APPLY["pow"],
    "maximum": np.maximum,
    "minimum": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "floordiv": APPLY["floordiv"],
    "lshift": APPLY["shl"],
    "rshift": APPLY["shr"],
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "fma": lambda a, b, c: a * b + c,
    "clamp": lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi),
}
VALUES = Column(
    "value in a graph", __name__, _VALUES, keys=FUNCTIONS, needs=frozenset(FUNCTIONS) - {"gelu"}
)
"""From the arrays of the operands to that of the result. (gelu has an attribute: see below.)"""


def _register(name: str, function: Callable[..., Any]) -> None:
    info = FUNCTIONS[name]
    register_op(
        name,
        infer=elementwise(info.rule),
        evaluate=lambda node, *values: function(*values),
        arity=info.arity,
        pattern=Pattern.ELEMWISE if info.arity == 1 else Pattern.BROADCAST,
    )


for _name, _function in VALUES.items():
    _register(_name, _function)
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
