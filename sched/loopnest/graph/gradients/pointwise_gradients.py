"""Gradients of pointwise ops. Where it saves work a rule uses the node's own value."""

from __future__ import annotations

import math
from collections.abc import Callable

from loopnest.graph.gradients.gradient_rules import (
    Contribution,
    NotDifferentiable,
    Rule,
    fit,
    zero_where_not,
)
from loopnest.graph.node import Node
from loopnest.graph.operators import creation
from loopnest.graph.operators import pointwise_ops as p
from loopnest.graph.registry import register_attr
from loopnest.scalar.op_table import FUNCTIONS, Column

_LN2 = math.log(2)


def _factor(derivative: object) -> Rule:
    """Return the rule of a unary op, of its derivative (x, value of the node) -> factor of dy."""
    return lambda node, dy: (p.mul(dy, derivative(node.inputs[0], node)),)  # type: ignore[operator]


def _binary(rule: object) -> Rule:
    """Return the rule of an op that broadcasts, of (node, dy, *operands) -> whole gradients."""

    def fitted(node: Node, dy: Node) -> list[Contribution]:
        found = rule(node, dy, *node.inputs)  # type: ignore[operator]
        pairs = zip(found, node.inputs, strict=True)
        return [None if part is None else fit(part, operand) for part, operand in pairs]

    return fitted


def _pow(node: Node, dy: Node, a: Node, b: Node) -> tuple[Node, Node]:
    flat = p.logical_and(p.eq(a, 0), p.ge(b, 0))  # 0 ** b does not change with b >= 0
    return p.mul(dy, _power_slope(a, b)), p.mul(dy, p.where(flat, 0, p.mul(node, p.log(a))))


def _power_slope(a: Node, b: Node) -> Node:
    """Return b * a ** (b - 1), and 0 for b = 0 whatever a is."""
    if b.op == "const" and b.value.size == 1:
        exponent = b.value.item()
        if exponent == 2:
            return p.mul(a, 2)
        if exponent == 1:
            return creation.ones_like(a)
        return creation.zeros_like(a) if not exponent else p.mul(p.pow(a, exponent - 1), exponent)
    return p.where(p.eq(b, 0), 0, p.mul(b, p.pow(a, p.sub(b, 1))))


def _clamp(node: Node, dy: Node, x: Node, lo: Node, hi: Node) -> tuple[Node, Node, Node]:
    raised = p.maximum(x, lo)
    below, over = _chosen(_first(p.le, raised, hi), dy)
    return *_chosen(_first(p.ge, x, lo), below), over


def _abs(node: Node, dy: Node) -> tuple[Node]:
    (x,) = node.inputs
    return (p.where(p.eq(x, 0), 0, p.where(p.lt(x, 0), p.neg(dy), dy)),)


def _silu(x: Node, value: Node) -> Node:
    share = p.sigmoid(x)
    return p.add(share, p.mul(value, p.sub(1, share)))


def _gelu(node: Node, dy: Node) -> tuple[Node]:
    (x,) = node.inputs
    if node.attrs["approximate"] == "none":
        share = p.mul(p.add(p.erf(p.mul(x, math.sqrt(0.5))), 1), 0.5)
        density = p.mul(p.exp(p.mul(p.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
        return (p.mul(dy, p.add(share, p.mul(x, density))),)
    scale = math.sqrt(2 / math.pi)
    square = p.mul(x, x)
    inner = p.mul(p.mul(x, p.add(p.mul(square, 0.044715), 1)), scale)
    bent = p.tanh(inner)
    slope = p.mul(p.add(p.mul(square, 3 * 0.044715), 1), scale)
    tail = p.mul(p.mul(p.mul(x, p.sub(1, p.mul(bent, bent))), slope), 0.5)
    return (p.mul(dy, p.add(p.mul(p.add(bent, 1), 0.5), tail)),)


def _cast(node: Node, dy: Node) -> tuple[Node | None]:
    (x,) = node.inputs
    return (p.cast(dy, x.dtype) if x.dtype.is_float else None,)


def _where(node: Node, dy: Node, cond: Node, a: Node, b: Node) -> tuple[None, Node, Node]:
    return None, *_chosen(cond, dy)


_UNARY = {
    "exp": lambda x, y: y,
    "exp2": lambda x, y: p.mul(y, _LN2),
    "log1p": lambda x, y: p.reciprocal(p.add(x, 1)),
    "rsqrt": lambda x, y: p.mul(p.div(y, x), -0.5),
    "reciprocal": lambda x, y: p.neg(p.mul(y, y)),
    "sin": lambda x, y: p.cos(x),
    "cos": lambda x, y: p.neg(p.sin(x)),
    "tan": lambda x, y: p.add(p.mul(y, y), 1),
    "sigmoid": lambda x, y: p.mul(y, p.sub(1, y)),
    "erf": lambda x, y: p.mul(p.exp(p.neg(p.mul(x, x))), 2 / math.sqrt(math.pi)),
    "silu": _silu,
}
_WHOLE: dict[str, Rule] = {
    "neg": lambda node, dy: (p.neg(dy),),
    "abs": _abs,
    "relu": lambda node, dy: (p.where(p.le(node, 0), 0, dy),),
    "log": lambda node, dy: (p.div(dy, node.inputs[0]),),
    "log2": lambda node, dy: (p.div(dy, p.mul(node.inputs[0], _LN2)),),
    "sqrt": lambda node, dy: (p.div(p.mul(dy, 0.5), node),),
    "tanh": lambda node, dy: (p.mul(p.sub(1, p.mul(node, node)), dy),),
    "gelu": _gelu,
}
_SEVERAL = {
    "add": lambda node, dy, a, b: (dy, dy),
    "sub": lambda node, dy, a, b: (dy, p.neg(dy)),
    "mul": lambda node, dy, a, b: (p.mul(dy, b), p.mul(dy, a)),
    "div": lambda node, dy, a, b: (p.div(dy, b), p.neg(p.div(p.mul(dy, node), b))),
    "mod": lambda node, dy, a, b: (dy, p.mul(dy, p.div(p.sub(node, a), b))),  # -floor(a / b)
    "pow": _pow,
    "fma": lambda node, dy, a, b, c: (p.mul(dy, b), p.mul(dy, a), dy),
    "maximum": lambda node, dy, a, b: _chosen(_first(p.ge, a, b), dy),
    "minimum": lambda node, dy, a, b: _chosen(_first(p.le, a, b), dy),
    "clamp": _clamp,
}


def _first(order: Callable[[Node, Node], Node], a: Node, b: Node) -> Node:
    """Whether the first operand is the extreme one: by `order`, or as the first that is NaN."""
    return p.logical_or(order(a, b), p.isnan(a))


def _chosen(cond: Node, dy: Node) -> tuple[Node, Node]:
    return zero_where_not(cond, dy), p.where(cond, 0, dy)


_CONSTANT = NotDifferentiable("it is piecewise constant")
_BOOL = NotDifferentiable("its value is bool")
_BITS = NotDifferentiable("it acts on bits")
_GRADIENTS: dict[str, Rule | NotDifferentiable] = {
    **{name: _factor(derivative) for name, derivative in _UNARY.items()},
    **_WHOLE,
    **{name: _binary(rule) for name, rule in _SEVERAL.items()},
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), _CONSTANT),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "isnan"), _BOOL),
    **dict.fromkeys(("logical_and", "logical_or", "logical_not"), _BOOL),
    **dict.fromkeys(("bitand", "bitor", "bitxor", "invert", "lshift", "rshift"), _BITS),
    "floordiv": _CONSTANT,
}
GRADIENTS = Column("gradient", __name__, _GRADIENTS, keys=FUNCTIONS)
for _name, _gradient in GRADIENTS.items():
    register_attr(_name, "gradient", _gradient)
register_attr("cast", "gradient", _cast)
register_attr("where", "gradient", _binary(_where))
