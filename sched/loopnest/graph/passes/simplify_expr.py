"""SimplifyExpr: algebraic identities, and movements that cancel or compose.

A rule takes a node and returns a simpler one of the same type, or None where it does not apply.
Those for ops that move elements, for tuples and layouts are all exact. Such a rule rewrites one op,
or two of a kind, into one op of the graph. Chains of several kinds are maps of indices
(`auto_inline`), which are compared and composed but need be no op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from loopnest.base.errors import InternalError
from loopnest.graph import operators
from loopnest.graph.dimensions import Dim, add, last_place, mul
from loopnest.graph.leaves import const
from loopnest.graph.node import Node, describe
from loopnest.graph.node_values import compute
from loopnest.graph.passes.manager import (
    FunctionPass,
    PassContext,
    PassInfo,
    register_option,
    register_pass,
)
from loopnest.graph.program import Graph, Unit
from loopnest.graph.registry import call
from loopnest.graph.rewriting import rewrite

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


@rule(EXACT, "transpose")
def _transpose(node: Node) -> Node | None:
    (x,) = node.inputs
    axes = node.attrs["axes"]
    if axes == tuple(range(len(axes))):
        return x
    if x.op == "transpose":
        return operators.transpose(x.inputs[0], [x.attrs["axes"][axis] for axis in axes])
    return None


@rule(EXACT, "flip")
def _flip(node: Node) -> Node | None:
    (x,) = node.inputs
    axes = {axis for axis in node.attrs["axis"] if x.shape[axis] not in (0, 1)}
    if x.op == "flip":
        axes ^= set(x.attrs["axis"])
        x = x.inputs[0]
    elif axes and len(axes) == len(node.attrs["axis"]):
        return None
    return operators.flip(x, sorted(axes)) if axes else x


@rule(EXACT, "reshape", "expand_dims", "squeeze")
def _reshape(node: Node) -> Node | None:
    (x,) = node.inputs
    if node.shape == x.shape:
        return x
    if x.op not in ("reshape", "expand_dims", "squeeze"):
        return None
    source = x.inputs[0]
    if source.shape == node.shape:
        return source
    return operators.reshape(source, node.shape) if "reshape" in (node.op, x.op) else None


@rule(EXACT, "broadcast_to")
def _broadcast(node: Node) -> Node | None:
    (x,) = node.inputs
    if x.op == "broadcast_to":
        x = x.inputs[0]
    elif x.shape != node.shape:
        return None
    return operators.broadcast_to(x, node.shape)


@rule(EXACT, "slice")
def _slice(node: Node) -> Node | None:
    (x,) = node.inputs
    if node.shape == x.shape:
        return x
    starts, steps = node.attrs["starts"], node.attrs["steps"]
    if x.op == "unslice" and node.shape == x.inputs[0].shape:
        same = all(x.attrs[key] == node.attrs[key] for key in ("starts", "steps"))
        return x.inputs[0] if same else None
    if x.op != "slice":
        return None
    inner = list(zip(x.attrs["starts"], x.attrs["steps"], strict=True))
    first = [add(a, mul(b, start)) for start, (a, b) in zip(starts, inner, strict=True)]
    step = [own * b for own, (_, b) in zip(steps, inner, strict=True)]
    return operators.slice(x.inputs[0], first, _stops(first, step, node), step)


def _stops(starts: list[Dim], steps: list[int], node: Node) -> list[Dim]:
    """Return the least stops that give the shape of a node."""
    parts = zip(starts, steps, node.shape, strict=True)
    return [last_place(*part) for part in parts]


@rule(EXACT, "pad", "unslice", "concatenate")
def _nothing_added(node: Node) -> Node | None:
    x = node.inputs[0]
    whole = node.shape == x.shape
    if node.op == "concatenate":
        parts = [part for part in node.inputs if part.shape[node.attrs["axis"]] != 0]
        if len(parts) == len(node.inputs) and len(parts) > 1:
            return None
        return call("concatenate", parts, node.attrs) if len(parts) > 1 else (parts or [x])[0]
    return x if whole else None


@rule(EXACT, "layout_transform")
def _layout(node: Node) -> Node | None:
    (x,) = node.inputs
    src, dst = node.attrs["src_layout"], node.attrs["dst_layout"]
    if x.op == "layout_transform" and x.attrs["dst_layout"] == src:
        return operators.layout_transform(x.inputs[0], x.attrs["src_layout"], dst)
    return x if src == dst else None


@rule(EXACT, "get_item")
def _field(node: Node) -> Node | None:
    (x,) = node.inputs
    return x.inputs[node.attrs["index"]] if x.op in ("tuple", "group") else None


_KEY = "SimplifyExpr.reassociate"
_ROUNDS = 100
"""More rewrites of one node, or rounds over a graph, mean that rules undo each other."""
register_option(
    _KEY, False, doc="True lets floats be treated as real numbers: x - x is 0, constants meet"
)


class SimplifyExpr(FunctionPass):
    """Apply identities until none applies: x + 0, x * 1, -(-x), two transposes, a slice of a slice.

    Values stay bit for bit the same, but for the sign of a zero (-0.0 + 0 is +0.0, the result is
    -0.0) and the last bit of x ** 2, which becomes x * x.

    Args:
        reassociate: whether floats may be treated as real numbers: x - x is 0 (even of NaN),
            (x + 1) + 2 is x + 3, (x + y) - y is x, exp(log(x)) is x. Without it, that of the
            option ``SimplifyExpr.reassociate``; integers are treated so in any case, since they
            wrap.

    Idempotent. The rules are tables: `identities`, `movements`.
    """

    info = PassInfo("SimplifyExpr", 0)

    def __init__(self, reassociate: bool | None = None) -> None:
        self.reassociate = reassociate

    def transform_function(self, func: Graph, mod: Unit, ctx: PassContext) -> Graph:
        loose = ctx.option(_KEY) if self.reassociate is None else self.reassociate
        for _ in range(_ROUNDS):
            simpler = rewrite(func, lambda node: _simplified(node, loose))
            if simpler is func:
                return func
            func = simpler
        raise InternalError("SimplifyExpr", f"no end after {_ROUNDS} rounds over {func.name}")


def _simplified(node: Node, loose: bool) -> Node:
    for _ in range(_ROUNDS):
        simpler = _once(node, loose)
        if simpler is None:
            return node
        node = simpler
    raise InternalError("SimplifyExpr", f"no end of rewriting {describe(node)}")


def _once(node: Node, loose: bool) -> Node | None:
    rules = EXACT.get(node.op, [])
    if node.op in LOOSE and (loose or not node.dtype.is_float):
        rules = rules + LOOSE[node.op]
    for rule in rules:
        simpler = rule(node)
        if simpler is not None and simpler is not node:
            if simpler.type != node.type:
                raise InternalError(
                    "SimplifyExpr", f"{describe(node)}: {node.type} became {simpler.type}"
                )
            return simpler
    return None


register_pass("SimplifyExpr", SimplifyExpr)
