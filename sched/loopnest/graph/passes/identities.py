"""Algebraic identities: the tables of rules that `SimplifyExpr` applies to pointwise ops.

A rule takes a node and returns a simpler one of the same type, or None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from loopnest.graph import operators
from loopnest.graph.leaves import const
from loopnest.graph.node import Node
from loopnest.graph.node_values import compute
from loopnest.graph.registry import call

Rule: TypeAlias = Callable[[Node], "Node | None"]
Rules: TypeAlias = "dict[str, list[Rule]]"

_INTEGRAL = frozenset({"floor", "ceil", "round", "trunc"})
_NOT_NEGATIVE = frozenset({"abs", "relu", "exp", "exp2", "sigmoid"})
EXACT: Rules = {}
"""Rules that keep every value, but for the sign of a zero and the last bit of x ** 2."""
LOOSE: Rules = {}
"""Rules that hold for real numbers; of integers, those of + - * hold exactly (they wrap)."""


def rule(table: Rules, *ops: str) -> Callable[[Rule], Rule]:
    """Add a rule for some ops to a table."""

    def add(function: Rule) -> Rule:
        for op in ops:
            table.setdefault(op, []).append(function)
        return function

    return add


def uniform(node: Node) -> bool | int | float | None:
    """Return the number that all elements of a constant equal; None where they differ."""
    if node.op == "full":
        value: bool | int | float = node.attrs["value"]
        return value
    if node.op != "const" or not node.value.size:
        return None
    array = node.value
    first = array.flat[0]
    if array.flat[-1] != first or not bool(np.all(array == first)):
        return None
    found: bool | int | float = first.item()
    return found


def in_shape(x: Node, node: Node) -> Node | None:
    """Return x repeated to the shape of `node`, None if it has another element type."""
    return operators.broadcast_to(x, node.shape) if x.dtype is node.dtype else None


def _either(node: Node) -> Iterable[tuple[Node, Node]]:
    """Return the two operands in both orders."""
    a, b = node.inputs
    return (a, b), (b, a)


def _of(node: Node, op: str) -> Node | None:
    """Return the operand of a call of a unary op; None for other nodes."""
    return node.inputs[0] if node.op == op else None


# Neutral and absorbing elements


@rule(EXACT, "add", "mul", "logical_and", "logical_or")
def _neutral(node: Node) -> Node | None:
    wanted = {"add": 0, "mul": 1, "logical_and": True, "logical_or": False}[node.op]
    for x, constant in _either(node):
        if uniform(constant) == wanted:
            return in_shape(x, node)
    return None


@rule(EXACT, "sub", "div", "pow")
def _neutral_right(node: Node) -> Node | None:
    x, constant = node.inputs
    wanted = 0 if node.op == "sub" else 1
    return in_shape(x, node) if uniform(constant) == wanted else None


@rule(EXACT, "logical_and", "logical_or")
def _absorbing(node: Node) -> Node | None:
    wanted = node.op == "logical_or"
    found = any(uniform(x) is wanted for x in node.inputs)
    return operators.full_like(node, wanted) if found else None


@rule(EXACT, "maximum", "minimum", "logical_and", "logical_or", "bitand", "bitor")
def _idempotent(node: Node) -> Node | None:
    a, b = node.inputs
    return a if a is b else None


@rule(LOOSE, "mul")
def _times_zero(node: Node) -> Node | None:
    zero = any(uniform(x) == 0 for x in node.inputs)
    return operators.full_like(node, 0) if zero else None


# Signs


@rule(EXACT, "neg")
def _negated(node: Node) -> Node | None:
    (x,) = node.inputs
    if x.op == "sub":
        return operators.sub(x.inputs[1], x.inputs[0])
    return _of(x, "neg")


@rule(EXACT, "add")
def _add_negated(node: Node) -> Node | None:
    for a, b in _either(node):
        negated = _of(b, "neg")
        if negated is not None:
            return operators.sub(a, negated)
    return None


@rule(EXACT, "sub")
def _subtract(node: Node) -> Node | None:
    a, b = node.inputs
    negated = _of(b, "neg")
    if negated is not None:
        return operators.add(a, negated)
    return in_shape(operators.neg(b), node) if uniform(a) == 0 else None


@rule(EXACT, "mul", "div")
def _signs(node: Node) -> Node | None:
    a, b = node.inputs
    if a.op == b.op == "neg":
        return call(node.op, (a.inputs[0], b.inputs[0]))
    if uniform(b) == -1:
        return in_shape(operators.neg(a), node)
    return in_shape(operators.neg(b), node) if node.op == "mul" and uniform(a) == -1 else None


@rule(EXACT, "abs", "relu")
def _magnitude(node: Node) -> Node | None:
    (x,) = node.inputs
    if x.op in _NOT_NEGATIVE:
        return x
    negated = _of(x, "neg") if node.op == "abs" else None
    return None if negated is None else operators.abs(negated)


# Powers, rounding, conversion


@rule(EXACT, "pow")
def _power(node: Node) -> Node | None:
    base, exponent = node.inputs
    value = uniform(exponent)
    if value == 0 or uniform(base) == 1:
        return operators.full_like(node, 1)
    return in_shape(operators.mul(base, base), node) if value == 2 else None


@rule(EXACT, "floor", "ceil", "round", "trunc")
def _integral(node: Node) -> Node | None:
    (x,) = node.inputs
    whole = x.op == "cast" and not x.inputs[0].dtype.is_float
    return x if whole or x.op in _INTEGRAL or not x.dtype.is_float else None


@rule(EXACT, "cast")
def _cast(node: Node) -> Node | None:
    (x,) = node.inputs
    if x.dtype is node.dtype:
        return x
    inner = _of(x, "cast")
    if inner is not None and _keeps(inner, x):
        return operators.cast(inner, node.dtype)
    return None


def _keeps(x: Node, wide: Node) -> bool:
    """Whether a conversion loses nothing."""
    a, b = x.dtype, wide.dtype
    if a.is_float != b.is_float or b.is_bool:
        return a.is_bool
    return a.is_bool or bool(np.can_cast(a.numpy, b.numpy, "safe"))


@rule(EXACT, "fma")
def _fma(node: Node) -> Node | None:
    a, b, c = node.inputs
    if uniform(c) == 0:
        return in_shape(operators.mul(a, b), node)
    for x, factor in ((a, b), (b, a)):
        if uniform(factor) == 1:
            return in_shape(operators.add(x, c), node)
    return None


# Selection and logic


@rule(EXACT, "where")
def _where(node: Node) -> Node | None:
    cond, a, b = node.inputs
    if a is b:
        return in_shape(a, node)
    known = uniform(cond)
    if known is not None:
        return in_shape(a if known else b, node)
    inverse = _of(cond, "logical_not")
    return None if inverse is None else operators.where(inverse, b, a)


@rule(EXACT, "logical_not")
def _not(node: Node) -> Node | None:
    (x,) = node.inputs
    if x.op == "logical_not":
        return x.inputs[0]
    exact = {"eq": operators.ne, "ne": operators.eq}  # true also of NaN
    ordered = {"lt": operators.ge, "ge": operators.lt, "le": operators.gt, "gt": operators.le}
    if x.op in exact:
        return exact[x.op](*x.inputs)
    return ordered[x.op](*x.inputs) if x.op in ordered and not x.inputs[0].dtype.is_float else None


# Reductions of nothing


@rule(EXACT, "sum", "prod", "max", "min", "mean", "any", "all")
def _single(node: Node) -> Node | None:
    (x,) = node.inputs
    axes = node.attrs["axis"]
    if x.dtype is not node.dtype or any(x.shape[axis] != 1 for axis in axes):
        return None
    return x if node.attrs["keepdims"] else operators.squeeze(x, axes)


@rule(EXACT, "max", "min", "any", "all")
def _twice(node: Node) -> Node | None:
    """Make one fold of two, where order does not matter to the last bit."""
    (x,) = node.inputs
    if x.op != node.op or not x.attrs["keepdims"]:
        return None
    axes = tuple(sorted({*x.attrs["axis"], *node.attrs["axis"]}))
    if node.attrs["keepdims"]:
        return call(node.op, x.inputs, {"axis": axes, "keepdims": True})
    return None


# Identities of real numbers


@rule(LOOSE, "sub")
def _difference(node: Node) -> Node | None:
    return _cancelled(node, "add", 0)


def _cancelled(node: Node, inverse: str, neutral: int) -> Node | None:
    """Return ``x - x`` or ``x / x`` as its number, and ``(x + y) - y`` or ``(x * y) / y`` as x."""
    a, b = node.inputs
    if a is b:
        return operators.full_like(node, neutral)
    if a.op == inverse and b in a.inputs:
        return in_shape(a.inputs[a.inputs[0] is b], node)
    return None


@rule(LOOSE, "add")
def _put_back(node: Node) -> Node | None:
    for a, b in _either(node):
        if a.op == "sub" and a.inputs[1] is b:
            return in_shape(a.inputs[0], node)
    return None


@rule(LOOSE, "div")
def _ratio(node: Node) -> Node | None:
    return _cancelled(node, "mul", 1)


@rule(LOOSE, "exp", "log", "exp2", "log2")
def _inverse(node: Node) -> Node | None:
    inverse = {"exp": "log", "log": "exp", "exp2": "log2", "log2": "exp2"}[node.op]
    return _of(node.inputs[0], inverse)


@rule(LOOSE, "add", "sub", "mul", "div")
def _constants(node: Node) -> Node | None:
    """Bring constants together: (x + c) - d is x + (c - d), (x * c) / d is x * (c / d)."""
    for x, outer in _either(node) if node.op in ("add", "mul") else [node.inputs]:
        family = ("add", "sub") if node.op in ("add", "sub") else ("mul", "div")
        if outer.op != "const" or x.op not in family:
            continue
        a, b = x.inputs
        if b.op == "const":
            return _joined(node.op, x.op, a, b, outer)
        if a.op == "const" and x.op in ("add", "mul"):
            return _joined(node.op, x.op, b, a, outer)
    return None


def _joined(op: str, inner_op: str, x: Node, inner: Node, outer: Node) -> Node:
    """Return (x inner_op inner) op outer with the constants together."""
    plus, minus = ("add", "sub") if op in ("add", "sub") else ("mul", "div")
    if op == plus:
        both = (plus, inner, outer) if inner_op == plus else (minus, outer, inner)
        return call(plus, (x, _constant(*both)))
    both = (minus, inner, outer) if inner_op == plus else (plus, inner, outer)
    return call(inner_op, (x, _constant(*both)))


def _constant(op: str, a: Node, b: Node) -> Node:
    """Return the value of an op on two constants."""
    made = call(op, (a, b))
    return const(compute(made, (a.value, b.value)), made.dtype)
