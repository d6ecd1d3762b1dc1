"""Rules of ATen's pointwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import loopnest.graph as G
from loopnest.graph.node import Node
from loopnest.scalar.dtypes import DType, bool_, float32, int64
from loopnest.torch.aten_table import RULES, Call, as_node, own_dtype, translates
from loopnest.torch.symbolic_sizes import NotTranslated

_SAME: dict[str, Callable[..., Node]] = {
    "add": G.add,
    "sub": G.sub,
    "mul": G.mul,
    "div": G.div,
    "pow": G.pow,
    "remainder": G.mod,
    "bitwise_and": G.bitand,
    "bitwise_or": G.bitor,
    "bitwise_xor": G.bitxor,
}
_ONE: dict[str, Callable[..., Node]] = {
    "neg": G.neg,
    "abs": G.abs,
    "exp": G.exp,
    "exp2": G.exp2,
    "log": G.log,
    "log2": G.log2,
    "log1p": G.log1p,
    "sqrt": G.sqrt,
    "rsqrt": G.rsqrt,
    "reciprocal": G.reciprocal,
    "sin": G.sin,
    "cos": G.cos,
    "tan": G.tan,
    "tanh": G.tanh,
    "sigmoid": G.sigmoid,
    "erf": G.erf,
    "relu": G.relu,
    "silu": G.silu,
    "floor": G.floor,
    "ceil": G.ceil,
    "round": G.round,
    "trunc": G.trunc,
}
_COMPARISONS: dict[str, Callable[..., Node]] = {
    "eq": G.eq,
    "ne": G.ne,
    "lt": G.lt,
    "le": G.le,
    "gt": G.gt,
    "ge": G.ge,
}
_LOGICAL: dict[str, Callable[..., Node]] = {
    "logical_and": G.logical_and,
    "logical_or": G.logical_or,
}


def _binary(function: Callable[..., Node]) -> Callable[[Call], Node]:
    """Return the rule of a function of two operands, computed in the type of the result."""

    def rule(call: Call) -> Node:
        dtype = call.dtype
        if dtype.is_bool and function not in (G.bitand, G.bitor, G.bitxor):
            return _of_bools(function, call)
        return function(as_node(call[0], dtype), as_node(call[1], dtype))

    return rule


def _of_bools(function: Callable[..., Node], call: Call) -> Node:
    found = {G.add: G.logical_or, G.mul: G.logical_and}.get(function, function)
    if found is function and function not in (G.maximum, G.minimum):
        raise NotTranslated("of bools")
    found = {G.maximum: G.logical_or, G.minimum: G.logical_and}.get(function, found)
    return found(as_node(call[0], bool_), as_node(call[1], bool_))


def _scaled(function: Callable[..., Node], first: int = 0) -> Callable[[Call], Node]:
    """Return the rule of add and sub: a factor alpha multiplies the operand that is not `first`."""

    def rule(call: Call) -> Node:
        one, other, alpha, dtype = call[first], call[1 - first], call["alpha"], call.dtype
        if dtype.is_bool:
            if alpha != 1:
                raise NotTranslated("of bools, with a factor")
            return _of_bools(function, call)
        wide = dtype if alpha == 1 else dtype.compute
        second = as_node(other, wide)
        second = second if alpha == 1 else G.mul(second, as_node(alpha, wide))
        return as_node(function(as_node(one, wide), second), dtype)

    return rule


def _unary(function: Callable[..., Node]) -> Callable[[Call], Node]:
    def rule(call: Call) -> Node:
        return function(as_node(call[0], call.dtype))

    return rule


def _compared(function: Callable[..., Node]) -> Callable[[Call], Node]:
    def rule(call: Call) -> Node:
        common = torch.result_type(*call.fakes.values())
        dtype = own_dtype(torch.empty(0, dtype=common, device="meta"))
        return function(as_node(call[0], dtype), as_node(call[1], dtype))

    return rule


def _truth(value: Node) -> Node:
    return as_node(value, bool_)


def _of_truths(function: Callable[..., Node]) -> Callable[[Call], Node]:
    return lambda call: function(_truth(call[0]), _truth(call[1]))


for _name, _binary_function in _SAME.items():
    _rule = _scaled if _name in ("add", "sub") else _binary
    translates(f"{_name}.Tensor", f"{_name}.Scalar")(_rule(_binary_function))
translates("maximum.default")(_binary(G.maximum))
translates("minimum.default")(_binary(G.minimum))
translates("rsub.Tensor", "rsub.Scalar")(_scaled(G.sub, first=1))
translates("pow.Tensor_Tensor", "pow.Scalar")(_binary(G.pow))
for _name, _function in _ONE.items():
    translates(f"{_name}.default")(_unary(_function))
for _name, _function in _COMPARISONS.items():
    translates(f"{_name}.Tensor", f"{_name}.Scalar")(_compared(_function))
for _name, _function in _LOGICAL.items():
    translates(_name)(_of_truths(_function))


@translates("pow.Tensor_Scalar")
def _power(call: Call) -> Node:
    """Return products for small whole exponents, which pow of two floats is slow for."""
    dtype, exponent = call.dtype, call[1]
    wide = dtype.compute
    x = as_node(call[0], wide)
    if exponent in (2, 3, 4) and wide.is_float:
        square = G.mul(x, x)
        power = {2: square, 3: G.mul(square, x), 4: G.mul(square, square)}[exponent]
        return as_node(power, dtype)
    if exponent == 0.5 and wide.is_float:
        return as_node(G.sqrt(x), dtype)
    return as_node(G.pow(x, as_node(exponent, wide)), dtype)


@translates("div.Tensor_mode", "div.Scalar_mode")
def _rounded_quotient(call: Call) -> Node:
    mode = call["rounding_mode"]
    dtype = call.dtype
    a, b = as_node(call[0], dtype), as_node(call[1], dtype)
    if mode is None:
        return G.div(a, b)
    if not dtype.is_float:
        quotient = G.floordiv(a, b)
        if mode == "floor":
            return quotient
        zero, one = as_node(0, dtype), as_node(1, dtype)
        is_above = G.logical_and(G.lt(quotient, zero), G.ne(G.mod(a, b), zero))
        return G.add(quotient, G.where(is_above, one, zero))
    if mode == "trunc":
        return G.trunc(G.div(a, b))
    whole = G.round(G.div(G.sub(a, G.mod(a, b)), b))
    return G.where(G.eq(b, as_node(0, dtype)), G.div(a, b), whole)


@translates("logical_not.default")
def _not(call: Call) -> Node:
    return G.logical_not(_truth(call[0]))


@translates("bitwise_not.default")
def _invert(call: Call) -> Node:
    return G.logical_not(call[0]) if call.dtype.is_bool else G.invert(call[0])


@translates("isnan.default")
def _isnan(call: Call) -> Node:
    if not call[0].dtype.is_float:
        return G.full(call.shape, False, bool_)
    return G.isnan(call[0])


@translates("isinf.default")
def _isinf(call: Call) -> Node:
    if not call[0].dtype.is_float:
        return G.full(call.shape, False, bool_)
    return G.eq(G.abs(call[0]), as_node(math.inf, call[0].dtype))


@translates("sign.default", "sgn.default")
def _sign(call: Call) -> Node:
    x = call[0]
    if x.dtype.is_bool:
        return _node(x)
    zero = as_node(0, x.dtype)
    positive = G.where(G.gt(x, zero), as_node(1, x.dtype), zero)
    found = G.where(G.lt(x, zero), as_node(-1, x.dtype), positive)
    return G.where(G.isnan(x), as_node(0, x.dtype), found) if x.dtype.is_float else found


def _node(value: Any) -> Node:
    found: Node = value
    return found


@translates("square.default")
def _square(call: Call) -> Node:
    return G.mul(call[0], call[0])


@translates("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(call: Call) -> Node:
    dtype = call.dtype
    found = G.where(_truth(call[0]), as_node(call[1], dtype), as_node(call[2], dtype))
    return G.broadcast_to(found, call.shape)


@translates("clamp.default", "clamp.Tensor", "hardtanh.default")
def _clamp(call: Call) -> Node:
    dtype = call.dtype
    found = as_node(call[0], dtype)
    _, low, high = call.args
    if low is not None:
        found = G.maximum(found, as_node(low, dtype))
    return found if high is None else G.minimum(found, as_node(high, dtype))


@translates("clamp_min.default", "clamp_min.Tensor")
def _clamp_min(call: Call) -> Node:
    return G.maximum(as_node(call[0], call.dtype), as_node(call[1], call.dtype))


@translates("clamp_max.default", "clamp_max.Tensor")
def _clamp_max(call: Call) -> Node:
    return G.minimum(as_node(call[0], call.dtype), as_node(call[1], call.dtype))


@translates("gelu.default")
def _gelu(call: Call) -> Node:
    return G.gelu(call[0], call["approximate"])


@translates("expm1.default")
def _expm1(call: Call) -> Node:
    """Return exp(x) - 1, exact near 0 too.

    There it is a polynomial in float32: the series of exp up to x^9 / 9!, of which what is left out
    is below 2^-26 of the result where ``|x| < 0.5``. In float64 it is 2 t / (1 - t) for
    t = tanh(x / 2), where x is not large.

    Source: the series of exp; the addition theorem of tanh.
    """
    dtype = call.dtype
    wide = dtype.compute
    x = as_node(call[0], wide)
    one = as_node(1, wide)
    if wide is float32:
        series = as_node(1 / math.factorial(9), wide)
        for number in range(8, 0, -1):
            series = G.add(G.mul(series, x), as_node(1 / math.factorial(number), wide))
        near, is_near = G.mul(x, series), G.lt(G.abs(x), as_node(0.5, wide))
        return as_node(G.where(is_near, near, G.sub(G.exp(x), one)), dtype)
    t = G.tanh(G.mul(G.minimum(x, one), as_node(0.5, wide)))
    near = G.div(G.add(t, t), G.sub(one, t))
    return as_node(G.where(G.gt(x, one), G.sub(G.exp(x), one), near), dtype)


@translates("leaky_relu.default")
def _leaky_relu(call: Call) -> Node:
    x, slope = call.args
    return G.where(G.gt(x, as_node(0, x.dtype)), x, G.mul(x, as_node(slope, x.dtype)))


@translates("_to_copy.default")
def _cast(call: Call) -> Node:
    return as_node(call[0], call.dtype)


@translates("clone.default", "alias.default", "detach.default", "lift_fresh_copy.default")
def _identity(call: Call) -> Node:
    return _node(call[0])


if hasattr(torch.ops, "prims"):
    RULES[torch.ops.prims.convert_element_type.default] = _cast


@translates("scalar_tensor.default")
def _scalar_tensor(call: Call) -> Node:
    return as_node(call[0], call.dtype)


@translates("full.default", "full_like.default")
def _full(call: Call) -> Node:
    return _filled(call, call[1])


@translates("zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format",
            "empty_like.default", "new_empty.default")  # fmt: skip
def _zeros(call: Call) -> Node:
    return _filled(call, 0)


@translates("ones.default", "ones_like.default", "new_ones.default")
def _ones(call: Call) -> Node:
    return _filled(call, 1)


@translates("new_full.default")
def _new_full(call: Call) -> Node:
    return _filled(call, call[2])


def _filled(call: Call, value: Any) -> Node:
    if isinstance(value, Node):
        return G.broadcast_to(as_node(value, call.dtype), call.shape)
    return G.full(call.shape, value, call.dtype)


@translates("fill.Scalar", "fill.Tensor")
def _fill(call: Call) -> Node:
    return _filled(call, call[1])


@translates("arange.start_step", "arange.default", "arange.start")
def _arange(call: Call) -> Node:
    start, step = call.get("start", 0), call.get("step", 1)
    (length,) = call.shape
    dtype = call.dtype
    if dtype.is_integer:  # torch rounds the start and the step, not the elements
        start, step = [int(x) if isinstance(x, float) else x for x in (start, step)]
        if isinstance(start, int) and isinstance(step, int):
            return G.iota(length, start, step, dtype)
    wide = int64 if dtype.is_integer else dtype if dtype.size >= 4 else float32
    places = G.cast(G.iota(length, 0, 1, int64), wide)
    found = G.add(G.mul(places, as_node(step, wide)), as_node(start, wide))
    return as_node(found, dtype)


@translates("addcmul.default")
def _addcmul(call: Call) -> Node:
    dtype = call.dtype
    wide = dtype.compute
    product = G.mul(as_node(call[1], wide), as_node(call[2], wide))
    return as_node(G.add(as_node(call[0], wide), _times(product, call, wide)), dtype)


@translates("addcdiv.default")
def _addcdiv(call: Call) -> Node:
    dtype = call.dtype
    wide = dtype.compute
    quotient = G.div(_times(as_node(call[1], wide), call, wide), as_node(call[2], wide))
    return as_node(G.add(as_node(call[0], wide), quotient), dtype)


def _times(x: Node, call: Call, wide: DType) -> Node:
    value = call["value"]
    return x if value == 1 else G.mul(as_node(value, wide), x)
