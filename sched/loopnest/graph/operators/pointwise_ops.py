"""Pointwise ops: NumPy's broadcasting, one element type, Python numbers weak.

Names shadow builtins on purpose: they are what users call as ``G.abs``. The types that they take
stand in `op_table`, the docstrings but for their first lines in `function_docs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from loopnest.graph.graph_error import Refused
from loopnest.graph.leaves import dtype_of
from loopnest.graph.node import OPERATORS, Attrs, Node, Operand, TensorType, Type
from loopnest.graph.operators.node_operands import (
    applied,
    broadcast_shapes,
    converted,
    declares,
    elementwise,
    one_type,
    require,
    require_node,
)
from loopnest.graph.operators.op_docs import pointwise
from loopnest.graph.registry import Pattern, call, call_text, register_op
from loopnest.numerics.float64_math import APPLY
from loopnest.scalar.dtypes import FLOAT, KEEPING, DType, bool_
from loopnest.scalar.op_table import FUNCTIONS, Column, ops

__all__ = [
    "abs",
    "add",
    "bitand",
    "bitor",
    "bitxor",
    "cast",
    "ceil",
    "clamp",
    "cos",
    "div",
    "eq",
    "erf",
    "exp",
    "exp2",
    "floor",
    "floordiv",
    "fma",
    "ge",
    "gelu",
    "gt",
    "invert",
    "isnan",
    "le",
    "log",
    "log1p",
    "log2",
    "logical_and",
    "logical_not",
    "logical_or",
    "lshift",
    "lt",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "ne",
    "neg",
    "pow",
    "reciprocal",
    "relu",
    "round",
    "rshift",
    "rsqrt",
    "sigmoid",
    "silu",
    "sin",
    "sqrt",
    "sub",
    "tan",
    "tanh",
    "trunc",
    "where",
]

Function = TypeVar("Function", bound=Callable[..., Node])


@declares(
    "where",
    value=lambda node, cond, a, b: np.where(cond, a, b),
    pattern=Pattern.BROADCAST,
)
def _type_of_where(attrs: Attrs, cond: TensorType, a: TensorType, b: TensorType) -> TensorType:
    if not cond.dtype.is_bool:
        raise Refused(f"the condition is {cond.dtype}", "cast it to bool")
    return TensorType(broadcast_shapes([t.shape for t in (cond, a, b)]), one_type((a, b)))


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


@declares("cast", ("dtype",), value=_cast, pattern=Pattern.ELEMWISE)
def _type_of_cast(attrs: Attrs, x: TensorType) -> TensorType:
    return TensorType(x.shape, attrs["dtype"])


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


class UnaryFunction(Protocol):
    def __call__(self, x: Operand) -> Node: ...


class BinaryFunction(Protocol):
    def __call__(self, a: Operand, b: Operand) -> Node: ...


def _unary(name: str, first: str) -> UnaryFunction:
    """Return the function of an op of one operand; `first` is the first line of its docstring."""

    def function(x: Operand) -> Node:
        return _apply(name, x)

    return _documented(function, name, first)


def _binary(name: str, first: str) -> BinaryFunction:
    def function(a: Operand, b: Operand) -> Node:
        return _apply(name, a, b)

    return _documented(function, name, first)


def _documented(function: Function, name: str, first: str) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = first
    return pointwise(function)


def _apply(op: str, *operands: object) -> Node:
    if op.startswith("logical"):
        return call(op, [_truth(operand) for operand in operands])
    return applied(op, operands, FUNCTIONS[op].rule, lambda nodes: call(op, nodes))


# Arithmetic


add = _binary("add", "Return a + b; two bools give int32, as in all arithmetic.")
sub = _binary("sub", "Return a - b.")
mul = _binary("mul", "Return a * b.")
div = _binary("div", "Return a / b; integers give float32.")
floordiv = _binary(
    "floordiv", "Return a / b of integers, rounded towards minus infinity; by 0 it is 0."
)
lshift = _binary(
    "lshift",
    "Return the integer a * 2 ** b; 0 for a count that is negative or no less than the width.",
)
rshift = _binary("rshift", "Return a / 2 ** b of integers, rounded towards minus infinity.")
mod = _binary("mod", "Return the remainder of a / b, with the sign of b; integers modulo 0 give 0.")
pow = _binary(
    "pow", "Return a ** b; of integers, a negative power is the true value without its fraction."
)
neg = _unary("neg", "Return -x.")


@pointwise
def fma(a: Operand, b: Operand, c: Operand) -> Node:
    """Return a * b + c, of floats rounded once where the target can.

    Args:
        a: a node, or a Python number.
        b: likewise.
        c: likewise; one of the three is a node.

    Raises:
        GraphError: an operand that is none, or shapes or types that do not fit.

    >>> import numpy as np
    >>> import loopnest.graph as G
    >>> x = G.const(np.array([1, 2, 3], np.float32))
    >>> print(*G.evaluate(G.Graph([], [G.fma(x, 2.0, 1.0)])))
    [3. 5. 7.]

    Source: C, fmaf.
    """
    return _apply("fma", a, b, c)


# Functions that keep integers


abs = _unary("abs", "Return the magnitude of x.")
floor = _unary("floor", "Return the largest integer <= x.")
ceil = _unary("ceil", "Return the least integer >= x.")
round = _unary("round", "Return the nearest integer, the even one of two.")
trunc = _unary("trunc", "Return x without its fraction.")
maximum = _binary("maximum", "Return the larger of a and b; NaN if one is.")
minimum = _binary("minimum", "Return the smaller of a and b; NaN if one is.")
relu = _unary("relu", "Return max(x, 0).")


@pointwise
def clamp(x: Operand, lo: Operand, hi: Operand) -> Node:
    """Return min(max(x, lo), hi); NaN stays NaN.

    Args:
        x: a node, or a Python number.
        lo: likewise; the least value of the result.
        hi: likewise; the largest, which wins where `lo` is larger.

    Raises:
        GraphError: an operand that is none, or shapes or types that do not fit.

    >>> import numpy as np
    >>> import loopnest.graph as G
    >>> x = G.const(np.array([-1, 0.5, 2], np.float32))
    >>> print(*G.evaluate(G.Graph([], [G.clamp(x, 0.0, 1.0)])))
    [0.  0.5 1. ]

    Source: numpy.clip.
    """
    return _apply("clamp", x, lo, hi)


# Functions of floats; integers give float32


exp = _unary("exp", "Return e ** x.")
exp2 = _unary("exp2", "Return 2 ** x.")
log = _unary("log", "Return the natural logarithm of x.")
log2 = _unary("log2", "Return the binary logarithm of x.")
log1p = _unary("log1p", "Return log(1 + x), exact for small x.")
sqrt = _unary("sqrt", "Return the square root of x.")
rsqrt = _unary("rsqrt", "Return 1 / sqrt(x).")
reciprocal = _unary("reciprocal", "Return 1 / x.")
sin = _unary("sin", "Return the sine of x.")
cos = _unary("cos", "Return the cosine of x.")
tan = _unary("tan", "Return the tangent of x.")
tanh = _unary("tanh", "Return the hyperbolic tangent of x.")
sigmoid = _unary("sigmoid", "Return 1 / (1 + exp(-x)).")
erf = _unary("erf", "Return the error function of x.")
silu = _unary("silu", "Return x * sigmoid(x).")


def gelu(x: Operand, approximate: str = "none") -> Node:
    """Return x times the share of a normal distribution below x.

    Args:
        x: the operand; integers give float32.
        approximate: "none" (by erf) or "tanh".

    Raises:
        GraphError: another `approximate`.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
    """
    attrs = {"approximate": approximate}
    return applied("gelu", (x,), FUNCTIONS["gelu"].rule, lambda nodes: call("gelu", nodes, attrs))


# Comparisons, bits, logic


eq = _binary("eq", "Return a == b.")
ne = _binary("ne", "Return a != b (true where one is NaN).")
lt = _binary("lt", "Return a < b.")
le = _binary("le", "Return a <= b.")
gt = _binary("gt", "Return a > b.")
ge = _binary("ge", "Return a >= b.")
bitand = _binary("bitand", "Return a & b: of integers bitwise, of bools logical.")
bitor = _binary("bitor", "Return a | b: of integers bitwise, of bools logical.")
bitxor = _binary("bitxor", "Return a ^ b: of integers bitwise, of bools logical.")
invert = _unary("invert", "Return ~x: of integers bitwise, of bools logical.")
logical_and = _binary("logical_and", "Return whether a and b are both not 0.")
logical_or = _binary("logical_or", "Return whether a or b is not 0.")
logical_not = _unary("logical_not", "Return whether x is 0.")
isnan = _unary("isnan", "Return whether x is NaN; of integers false.")


# Selection and conversion


def where(cond: Operand, a: Operand, b: Operand) -> Node:
    """Return a where `cond` is not 0, else b.

    Args:
        cond: a node; numbers other than 0 are true.
        a: a node, or a Python number.
        b: likewise.

    Raises:
        GraphError: an operand that is none, or shapes or types that do not fit.

    >>> import numpy as np
    >>> import loopnest.graph as G
    >>> x = G.const(np.array([1, 2, 3], np.float32))
    >>> print(*G.evaluate(G.Graph([], [G.where(G.gt(x, 1.0), x, 0.0)])))
    [0. 2. 3.]

    Source: numpy.where.
    """
    cond, a, b = require("where", (cond, a, b))
    truth = _truth(cond)
    return applied("where", (a, b), KEEPING, lambda sides: call("where", [truth, *sides]))


def cast(x: Operand, dtype: DType | str | type) -> Node:
    """Return x converted to `dtype` (rounded to floats, truncated to integers); x if it has it.

    Raises:
        GraphError: no operand, or no element type.
    """
    return converted(require_node("cast", x), dtype_of(dtype, call_text("cast", (x, dtype))))


def _truth(x: object) -> Node:
    return converted(require_node("logical", x), bool_)


OPERATORS.update({name: globals()[name] for name in __all__})
