"""The gradient of a graph, and the ``gradient`` attribute of every op.

A rule is the attribute ``gradient`` of an op: ``(node, dy) -> contributions``, one for each
operand: a node of the operand's type, or None where the operand has no influence (or none but on a
set of measure 0). For a tuple-typed node `dy` is a tuple of nodes or None, and the contribution to
a tuple-typed operand is such a tuple.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from loopnest.base.errors import kind_of
from loopnest.graph import operators as ops
from loopnest.graph.dimensions import Dim, add, last_place, mul, product, sub
from loopnest.graph.graph_error import GraphError
from loopnest.graph.leaves import const, var
from loopnest.graph.node import Attrs, Node, TensorType, TupleType, describe, items_of
from loopnest.graph.node_origins import made_for, origin_of, place_of, postorder
from loopnest.graph.node_values import math_of
from loopnest.graph.operators.convolution import CONV_ATTRS
from loopnest.graph.program import Graph, body_of
from loopnest.graph.registry import call, get_attr, register_attr, short
from loopnest.graph.rewriting import substitute
from loopnest.scalar.dtypes import int64
from loopnest.scalar.op_table import FUNCTIONS, Column

Contribution: TypeAlias = "Node | tuple[Node | None, ...] | None"
Rule: TypeAlias = Callable[..., Sequence[Contribution]]


@dataclass(frozen=True, slots=True)
class NotDifferentiable:
    """The ``gradient`` of an op that has none, and why."""

    reason: str


def not_differentiable(ops: Sequence[str], reason: str) -> None:
    """Declare that ops have no gradient."""
    register_attr(ops, "gradient", NotDifferentiable(reason))


def fit(dy: Node, operand: Node) -> Node:
    """Return a gradient summed over the axes along which `operand` was broadcast."""
    lead = dy.ndim - operand.ndim
    own = dy.shape[lead:]
    repeated = [lead + i for i, extent in enumerate(operand.shape) if extent != own[i]]
    if not lead:
        return ops.sum(dy, repeated, keepdims=True) if repeated else dy
    # One sum: two, one after the other, would be two kernels with what lies between in memory.
    dy = ops.sum(dy, (*range(lead), *repeated), keepdims=bool(repeated))
    return ops.squeeze(dy, tuple(range(lead))) if repeated else dy


def spread(dy: Node, node: Node) -> Node:
    """Return the gradient of a reduction with its reduced axes as extents of 1."""
    if node.attrs["keepdims"]:
        return dy
    return ops.expand_dims(dy, node.attrs["axis"])


def zero_where_not(cond: Node, dy: Node) -> Node:
    """Return dy where `cond` holds, else 0."""
    return ops.where(cond, dy, 0)


_LN2 = math.log(2)


def _factor(derivative: object) -> Rule:
    """Return the rule of a unary op, of its derivative (x, value of the node) -> factor of dy."""
    return lambda node, dy: (ops.mul(dy, derivative(node.inputs[0], node)),)  # type: ignore[operator]


def _binary(rule: object) -> Rule:
    """Return the rule of an op that broadcasts, of (node, dy, *operands) -> whole gradients."""

    def fitted(node: Node, dy: Node) -> list[Contribution]:
        found = rule(node, dy, *node.inputs)  # type: ignore[operator]
        pairs = zip(found, node.inputs, strict=True)
        return [None if part is None else fit(part, operand) for part, operand in pairs]

    return fitted


def _pow(node: Node, dy: Node, a: Node, b: Node) -> tuple[Node, Node]:
    flat = ops.logical_and(ops.eq(a, 0), ops.ge(b, 0))  # 0 ** b does not change with b >= 0
    slope = ops.where(flat, 0, ops.mul(node, ops.log(a)))
    return ops.mul(dy, _power_slope(a, b)), ops.mul(dy, slope)


def _power_slope(a: Node, b: Node) -> Node:
    """Return b * a ** (b - 1), and 0 for b = 0 whatever a is."""
    if b.op == "const" and b.value.size == 1:
        exponent = b.value.item()
        if exponent == 2:
            return ops.mul(a, 2)
        if exponent == 1:
            return ops.ones_like(a)
        return ops.zeros_like(a) if not exponent else ops.mul(ops.pow(a, exponent - 1), exponent)
    return ops.where(ops.eq(b, 0), 0, ops.mul(b, ops.pow(a, ops.sub(b, 1))))


def _clamp(node: Node, dy: Node, x: Node, lo: Node, hi: Node) -> tuple[Node, Node, Node]:
    raised = ops.maximum(x, lo)
    below, over = _chosen(_first(ops.le, raised, hi), dy)
    return *_chosen(_first(ops.ge, x, lo), below), over


def _abs(node: Node, dy: Node) -> tuple[Node]:
    (x,) = node.inputs
    return (ops.where(ops.eq(x, 0), 0, ops.where(ops.lt(x, 0), ops.neg(dy), dy)),)


def _silu(x: Node, value: Node) -> Node:
    share = ops.sigmoid(x)
    return ops.add(share, ops.mul(value, ops.sub(1, share)))


def _gelu(node: Node, dy: Node) -> tuple[Node]:
    (x,) = node.inputs
    if node.attrs["approximate"] == "none":
        share = ops.mul(ops.add(ops.erf(ops.mul(x, math.sqrt(0.5))), 1), 0.5)
        density = ops.mul(ops.exp(ops.mul(ops.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
        return (ops.mul(dy, ops.add(share, ops.mul(x, density))),)
    scale = math.sqrt(2 / math.pi)
    square = ops.mul(x, x)
    inner = ops.mul(ops.mul(x, ops.add(ops.mul(square, 0.044715), 1)), scale)
    bent = ops.tanh(inner)
    slope = ops.mul(ops.add(ops.mul(square, 3 * 0.044715), 1), scale)
    tail = ops.mul(ops.mul(ops.mul(x, ops.sub(1, ops.mul(bent, bent))), slope), 0.5)
    return (ops.mul(dy, ops.add(ops.mul(ops.add(bent, 1), 0.5), tail)),)


def _cast_back(node: Node, dy: Node) -> tuple[Node | None]:
    (x,) = node.inputs
    return (ops.cast(dy, x.dtype) if x.dtype.is_float else None,)


def _where_back(node: Node, dy: Node, cond: Node, a: Node, b: Node) -> tuple[None, Node, Node]:
    return None, *_chosen(cond, dy)


_UNARY = {
    "exp": lambda x, y: y,
    "exp2": lambda x, y: ops.mul(y, _LN2),
    "log1p": lambda x, y: ops.reciprocal(ops.add(x, 1)),
    "rsqrt": lambda x, y: ops.mul(ops.div(y, x), -0.5),
    "reciprocal": lambda x, y: ops.neg(ops.mul(y, y)),
    "sin": lambda x, y: ops.cos(x),
    "cos": lambda x, y: ops.neg(ops.sin(x)),
    "tan": lambda x, y: ops.add(ops.mul(y, y), 1),
    "sigmoid": lambda x, y: ops.mul(y, ops.sub(1, y)),
    "erf": lambda x, y: ops.mul(ops.exp(ops.neg(ops.mul(x, x))), 2 / math.sqrt(math.pi)),
    "silu": _silu,
}
_WHOLE: dict[str, Rule] = {
    "neg": lambda node, dy: (ops.neg(dy),),
    "abs": _abs,
    "relu": lambda node, dy: (ops.where(ops.le(node, 0), 0, dy),),
    "log": lambda node, dy: (ops.div(dy, node.inputs[0]),),
    "log2": lambda node, dy: (ops.div(dy, ops.mul(node.inputs[0], _LN2)),),
    "sqrt": lambda node, dy: (ops.div(ops.mul(dy, 0.5), node),),
    "tanh": lambda node, dy: (ops.mul(ops.sub(1, ops.mul(node, node)), dy),),
    "gelu": _gelu,
}
_SEVERAL = {
    "add": lambda node, dy, a, b: (dy, dy),
    "sub": lambda node, dy, a, b: (dy, ops.neg(dy)),
    "mul": lambda node, dy, a, b: (ops.mul(dy, b), ops.mul(dy, a)),
    "div": lambda node, dy, a, b: (ops.div(dy, b), ops.neg(ops.div(ops.mul(dy, node), b))),
    "mod": lambda node, dy, a, b: (dy, ops.mul(dy, ops.div(ops.sub(node, a), b))),  # -floor(a / b)
    "pow": _pow,
    "fma": lambda node, dy, a, b, c: (ops.mul(dy, b), ops.mul(dy, a), dy),
    "maximum": lambda node, dy, a, b: _chosen(_first(ops.ge, a, b), dy),
    "minimum": lambda node, dy, a, b: _chosen(_first(ops.le, a, b), dy),
    "clamp": _clamp,
}


def _first(order: Callable[[Node, Node], Node], a: Node, b: Node) -> Node:
    """Whether the first operand is the extreme one: by `order`, or as the first that is NaN."""
    return ops.logical_or(order(a, b), ops.isnan(a))


def _chosen(cond: Node, dy: Node) -> tuple[Node, Node]:
    return zero_where_not(cond, dy), ops.where(cond, 0, dy)


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
register_attr("cast", "gradient", _cast_back)
register_attr("where", "gradient", _binary(_where_back))


def _count(node: Node) -> Dim:
    return product([node.inputs[0].shape[axis] for axis in node.attrs["axis"]])


@register_attr("sum", "gradient")
def _sum(node: Node, dy: Node) -> tuple[Node]:
    return (ops.broadcast_to(spread(dy, node), node.inputs[0].shape),)


@register_attr("mean", "gradient")
def _mean(node: Node, dy: Node) -> tuple[Node | None]:
    (x,) = node.inputs
    if not x.dtype.is_float:
        return (None,)
    count = _count(node)
    number = float(count) if isinstance(count, int) else ops.size(count, x.dtype.compute)
    share = ops.cast(ops.div(spread(dy, node), number), x.dtype)
    return (ops.broadcast_to(share, x.shape),)


@register_attr("variance", "gradient")
def _variance(node: Node, dy: Node) -> tuple[Node | None]:
    (x,) = node.inputs
    if not x.dtype.is_float:
        return (None,)
    count, correction = _count(node), node.attrs["correction"]
    center = ops.sub(x, ops.mean(x, node.attrs["axis"], keepdims=True))
    if isinstance(count, int):
        divisor = max(count - correction, 0)
        return (ops.mul(ops.mul(spread(dy, node), 2 / divisor if divisor else math.nan), center),)
    left = ops.maximum(ops.sub(ops.size(count, x.dtype.compute), correction), 0)
    scale = ops.where(ops.eq(left, 0), math.nan, ops.div(2.0, left))
    return (ops.cast(ops.mul(ops.mul(spread(dy, node), scale), center), x.dtype),)


@register_attr(("max", "min"), "gradient")
def _extreme(node: Node, dy: Node) -> tuple[Node]:
    """Share dy evenly among the elements that are the extreme one, or those that are NaN."""
    (x,) = node.inputs
    chosen = ops.logical_or(ops.eq(x, spread(node, node)), ops.isnan(x))
    count = ops.sum(ops.cast(chosen, x.dtype.compute), node.attrs["axis"], keepdims=True)
    share = ops.cast(ops.div(spread(dy, node), count), x.dtype)
    return (ops.where(chosen, share, 0),)


@register_attr("prod", "gradient")
def _prod(node: Node, dy: Node) -> tuple[Node]:
    """Multiply dy with the product of all other elements: right where elements are 0 too.

    It takes n * n products for n elements reduced; dividing the product by the element would take
    n, but is 0 / 0 at a zero.
    """
    (x,) = node.inputs
    axes = node.attrs["axis"]
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    order = (*kept, *axes)
    count = _count(node)
    rows = ops.reshape(ops.transpose(x, order), [x.shape[a] for a in kept] + [count])
    own = ops.eq(ops.expand_dims(ops.iota(count, dtype=int64), 1), ops.iota(count, dtype=int64))
    others = ops.where(own, 1, ops.expand_dims(rows, rows.ndim - 1))
    products = ops.reshape(ops.prod(others, -1), [x.shape[a] for a in order])
    back = sorted(range(x.ndim), key=lambda place: order[place])
    return (ops.mul(spread(dy, node), ops.transpose(products, back)),)


@register_attr("matmul", "gradient")
def _matmul(node: Node, dy: Node) -> tuple[Node, Node]:
    a, b = node.inputs
    return fit(ops.matmul(dy, _turned(b)), a), fit(ops.matmul(_turned(a), dy), b)


def _turned(x: Node) -> Node:
    """Return a matrix transposed (its last two axes)."""
    lead = range(x.ndim - 2)
    return ops.transpose(x, (*lead, x.ndim - 1, x.ndim - 2))


not_differentiable(("any", "all"), "its value is bool")
not_differentiable(("argmax", "argmin", "argsort", "searchsorted"), "its value is an integer")


@register_attr("broadcast_to", "gradient")
def _broadcast(node: Node, dy: Node) -> tuple[Node]:
    return (fit(dy, node.inputs[0]),)


@register_attr("expand_dims", "gradient")
def _expand(node: Node, dy: Node) -> tuple[Node]:
    return (ops.squeeze(dy, node.attrs["axis"]),)


@register_attr("squeeze", "gradient")
def _squeeze(node: Node, dy: Node) -> tuple[Node]:
    return (ops.expand_dims(dy, node.attrs["axis"]),)


@register_attr("transpose", "gradient")
def _transpose(node: Node, dy: Node) -> tuple[Node]:
    axes = node.attrs["axes"]
    return (ops.transpose(dy, sorted(range(len(axes)), key=lambda place: axes[place])),)


@register_attr("strided_view", "gradient")
def _strided_view(node: Node, dy: Node) -> tuple[Node]:
    """Add each element of dy to the one that it was read from: several may be one."""
    shape, strides = node.static_shape, node.attrs["strides"]
    places = np.zeros((), np.int64)
    for extent, stride in zip(shape, strides, strict=True):
        places = np.add.outer(places, np.arange(extent) * int(stride))
    (x,) = node.inputs
    flat = ops.reshape(dy, (node.tensor_type.size,))
    return (ops.index_add(ops.zeros_like(x), const(places.reshape(-1)), flat),)


@register_attr("reshape", "gradient")
def _reshape(node: Node, dy: Node) -> tuple[Node]:
    return (ops.reshape(dy, node.inputs[0].shape),)


@register_attr("flip", "gradient")
def _flip(node: Node, dy: Node) -> tuple[Node]:
    return (ops.flip(dy, node.attrs["axis"]),)


@register_attr("concatenate", "gradient")
def _concatenate(node: Node, dy: Node) -> list[Node]:
    axis = node.attrs["axis"]
    found: list[Node] = []
    start: Dim = 0
    for operand in node.inputs:
        starts: list[Dim] = [0] * node.ndim
        stops = list(node.shape)
        starts[axis], stops[axis] = start, add(start, operand.shape[axis])
        found.append(ops.slice(dy, starts, stops))
        start = stops[axis]
    return found


@register_attr("slice", "gradient")
def _slice(node: Node, dy: Node) -> tuple[Node]:
    return (ops.unslice(dy, node.inputs[0].shape, node.attrs["starts"], node.attrs["steps"]),)


@register_attr("unslice", "gradient")
def _unslice(node: Node, dy: Node) -> tuple[Node]:
    starts, steps = node.attrs["starts"], node.attrs["steps"]
    parts = zip(starts, steps, node.inputs[0].shape, strict=True)
    stops = [last_place(*part) for part in parts]
    return (ops.slice(dy, starts, stops, steps),)


@register_attr("pad", "gradient")
def _pad(node: Node, dy: Node) -> tuple[Node]:
    starts = [before for before, _ in node.attrs["widths"]]
    shape = node.inputs[0].shape
    stops = [add(start, extent) for start, extent in zip(starts, shape, strict=True)]
    return (ops.slice(dy, starts, stops),)


@register_attr("layout_transform", "gradient")
def _layout(node: Node, dy: Node) -> tuple[Node]:
    return (ops.layout_transform(dy, node.attrs["dst_layout"], node.attrs["src_layout"]),)


@register_attr(("var", "const", "variable", "full", "iota", "size"), "gradient")
def _leaf(node: Node, dy: Node) -> tuple[()]:
    return ()


@register_attr("take", "gradient")
def _take(node: Node, dy: Node) -> tuple[Node, None]:
    """Add each slice to where it was taken from, all axes of the indices as one."""
    x, indices = node.inputs
    axis = node.attrs["axis"]
    flat = ops.reshape(indices, -1)
    slices = ops.reshape(dy, (*x.shape[:axis], *flat.shape, *x.shape[axis + 1 :]))
    return ops.index_add(ops.zeros_like(x), flat, slices, axis), None


@register_attr("index_add", "gradient")
def _index_add(node: Node, dy: Node) -> tuple[Node, None, Node]:
    return dy, None, ops.take(dy, node.inputs[1], node.attrs["axis"])


@register_attr("put", "gradient")
def _put(node: Node, dy: Node) -> tuple[Node, None, Node]:
    """Give a place that has a value nothing of x, and what it has to the last of its values.

    An extreme is shared evenly by those that are it, x among them. A factor has the product of the
    others.
    """
    x, indices, values = node.inputs
    if node.attrs["fold"] == "prod":
        others = ops.put(ops.ones_like(x), indices, values, "prod")
        return ops.mul(dy, others), None, _of_factors(node, dy)
    if node.attrs["fold"] != "last":
        own = ops.logical_or(ops.eq(x, node), ops.isnan(x))
        chosen = ops.logical_or(ops.eq(values, ops.take(node, indices)), ops.isnan(values))
        wide = x.dtype.compute
        sharing = ops.index_add(ops.cast(own, wide), indices, ops.cast(chosen, wide))
        share = ops.cast(ops.div(dy, sharing), x.dtype)
        taken = zero_where_not(chosen, ops.take(share, indices))
        return zero_where_not(own, share), None, taken
    (count,) = indices.shape
    zero, numbers = ops.zeros((count,), dy.dtype), ops.iota(count)
    last = ops.put(ops.zeros(x.shape, numbers.dtype), indices, numbers)
    is_last = call("eq", (ops.take(last, indices), numbers))
    taken = zero_where_not(is_last, ops.take(dy, indices))
    return ops.put(dy, indices, zero), None, taken


def _of_factors(node: Node, dy: Node) -> Node:
    """Multiply dy with the product of all other factors: a quotient, but for a zero that is alone.

    Second derivatives miss what two zeros of one place would have of each other.
    """
    x, indices, values = node.inputs
    is_zero = ops.eq(values, 0)
    zeros = ops.index_add(ops.zeros(x.shape, int64), indices, ops.cast(is_zero, int64))
    alone = ops.logical_and(is_zero, ops.eq(ops.take(zeros, indices), 1))
    others = ops.put(x, indices, ops.where(alone, 1, values), "prod")
    quotient = ops.div(ops.take(ops.mul(dy, node), indices), ops.where(is_zero, 1, values))
    return ops.where(alone, ops.take(ops.mul(dy, others), indices), quotient)


@register_attr(("tuple", "group"), "gradient")
def _tuple(node: Node, dy: tuple[Node | None, ...]) -> tuple[Contribution, ...]:
    return dy


@register_attr("get_item", "gradient")
def _get_item(node: Node, dy: Node) -> tuple[Contribution]:
    whole = node.inputs[0].type
    assert isinstance(whole, TupleType)
    fields = range(len(whole.fields))
    return (tuple([dy if i == node.attrs["index"] else None for i in fields]),)


@register_attr("assign", "gradient")
def _assign(node: Node, dy: Node) -> tuple[Contribution, ...]:
    return (None, dy)


def _conv_attrs(node: Node) -> Attrs:
    return {key: node.attrs[key] for key in CONV_ATTRS}


@register_attr("conv2d", "gradient")
def _conv(node: Node, dy: Node) -> tuple[Node, Node]:
    x, w = node.inputs
    attrs = _conv_attrs(node)
    dx = ops.conv2d_backward_data(dy, w, x.shape, **attrs)
    return dx, ops.conv2d_backward_weight(x, dy, w.shape, **attrs)


@register_attr("conv2d_backward_data", "gradient")
def _conv_data(node: Node, dy: Node) -> tuple[Node, Node]:
    above, w = node.inputs
    attrs = _conv_attrs(node)
    weight = ops.conv2d_backward_weight(dy, above, w.shape, **attrs)
    return call("conv2d", (dy, w), attrs), weight


@register_attr("conv2d_backward_weight", "gradient")
def _conv_weight(node: Node, dy: Node) -> tuple[Node, Node]:
    x, above = node.inputs
    attrs = _conv_attrs(node)
    data = ops.conv2d_backward_data(above, dy, x.shape, **attrs)
    return data, call("conv2d", (x, dy), attrs)


def _around(node: Node) -> dict[str, object]:
    attrs = node.attrs
    found = {"stride": attrs["strides"], "padding": attrs["padding"]}
    return {**found, "dilation": attrs["dilation"], "groups": attrs["groups"]}


@register_attr("conv", "gradient")
def _conv_of_any_rank(node: Node, dy: Node) -> tuple[Node, Node]:
    x, w = node.inputs
    lows = [low for low, _ in node.attrs["padding"]]
    around = {**_around(node), "padding": lows}
    dx = ops.conv_transposed(dy, w, x.shape[2:], **around)  # type: ignore[arg-type]
    dw = ops.conv_weight(x, dy, w.shape[2:], **_around(node))  # type: ignore[arg-type]
    return dx, dw


@register_attr("conv_transposed", "gradient")
def _conv_transposed(node: Node, dy: Node) -> tuple[Node, Node]:
    x, w = node.inputs
    around = {**_around(node), "padding": _padding_of(node)}
    stops = [*dy.shape[:2], *_ends(node)]
    dy = ops.slice(dy, [0] * dy.ndim, stops)
    dw = ops.conv_weight(dy, x, w.shape[2:], **around)  # type: ignore[arg-type]
    return ops.conv(dy, w, **around), dw  # type: ignore[arg-type]


def _ends(node: Node) -> list[Dim]:
    """Return where the last windows of a transposed convolution end in its result, or that ends."""
    return [
        add(extent, min(behind, 0))
        for extent, behind in zip(node.attrs["space"], _behind(node), strict=True)
    ]


def _padding_of(node: Node) -> list[tuple[int, int]]:
    """Return the padding of the convolution that a transposed one is the gradient of."""
    rows = zip(node.attrs["padding"], _behind(node), strict=True)
    return [(low, max(behind, 0)) for low, behind in rows]


def _behind(node: Node) -> list[int]:
    """Return how many elements of the last windows lie behind the result; negative: before its end.

    Raises:
        GraphError: that depends on a size.
    """
    (x, w), attrs = node.inputs, node.attrs
    found = []
    for axis, extent in enumerate(attrs["space"]):
        reach = mul(sub(w.shape[2 + axis], 1), attrs["dilation"][axis])
        last = mul(sub(x.shape[2 + axis], 1), attrs["strides"][axis])
        behind = sub(sub(add(add(last, reach), 1), attrs["padding"][axis]), extent)
        if not isinstance(behind, int):
            reason = f"its last window has {behind} elements behind axis {2 + axis}"
            raise GraphError(describe(node), reason, "bind the sizes: G.bind")
        found.append(max(behind, -extent) if isinstance(extent, int) else behind)
    return found


@register_attr("conv_weight", "gradient")
def _conv_weight_of_any_rank(node: Node, dw: Node) -> tuple[Node, Node]:
    x, above = node.inputs
    lows = [low for low, _ in node.attrs["padding"]]
    around = {**_around(node), "padding": lows}
    dx = ops.conv_transposed(above, dw, x.shape[2:], **around)  # type: ignore[arg-type]
    return dx, ops.conv(x, dw, **_around(node))  # type: ignore[arg-type]


@register_attr("unfold", "gradient")
def _unfold(node: Node, dy: Node) -> tuple[Node]:
    """Return dy with each place of the windows put back, all added."""
    (x,) = node.inputs
    attrs, axis = node.attrs, node.attrs["axis"]
    steps = [1] * x.ndim
    steps[axis] = attrs["stride"]
    parts = []
    for place in range(attrs["size"]):
        starts = [0] * x.ndim
        starts[axis] = place * attrs["dilation"]
        parts.append(ops.unslice(dy[..., place], x.shape, starts, steps))
    total = parts[0]
    for part in parts[1:]:
        total = ops.add(total, part)
    return (total,)


@register_attr("cumsum", "gradient")
def _cumsum(node: Node, dy: Node) -> tuple[Node]:
    return (call("cumsum", (dy,), {**node.attrs, "reverse": not node.attrs["reverse"]}),)


@register_attr("cumprod", "gradient")
def _cumprod(node: Node, dy: Node) -> tuple[Node]:
    """Return, for each factor, the products that it is part of, without it.

    They are made anew for each factor, since a quotient of products would be 0 / 0 beside a 0.
    """
    (x,) = node.inputs
    axis, last = node.attrs["axis"], node.ndim - 1
    order = [*[i for i in range(node.ndim) if i != axis], axis]
    back = [order.index(i) for i in range(node.ndim)]
    turned = [ops.flip(t, axis) if node.attrs["reverse"] else t for t in (x, dy)]
    factors, above = [ops.transpose(t, order) for t in turned]
    count = factors.shape[last]
    if node.attrs["exclusive"]:
        widths = [*[(0, 0)] * last, (0, 1)]
        above = ops.pad(above[..., 1:], widths)
    places = ops.iota(count)
    later = ops.gt(places[None, :], places[:, None])
    own = ops.expand_dims(factors, last)
    between = call("cumprod", (ops.where(later, own, 1.0),), {"axis": last + 1})
    reached = ops.where(ops.ge(places[None, :], places[:, None]), between, 0.0)
    total = ops.sum(ops.mul(reached, ops.expand_dims(above, last)), last + 1)
    before = call("cumprod", (factors,), {"axis": last, "exclusive": True})
    found = ops.transpose(ops.mul(before, total), back)
    return (ops.flip(found, axis) if node.attrs["reverse"] else found,)


@register_attr("max_pool2d", "gradient")
def _max_pool(node: Node, dy: Node) -> tuple[Node]:
    return (ops.max_pool2d_backward(node.inputs[0], dy, **node.attrs),)


@register_attr("max_pool2d_backward", "gradient")
def _max_pool_backward(node: Node, dy: Node) -> tuple[None, Node]:
    return None, ops.max_pool2d_gather(node.inputs[0], dy, **node.attrs)


@register_attr("max_pool2d_gather", "gradient")
def _max_pool_gather(node: Node, dy: Node) -> tuple[None, Node]:
    return None, ops.max_pool2d_backward(node.inputs[0], dy, **node.attrs)


not_differentiable(("max_pool2d_places",), "its value is an integer")


@register_attr("avg_pool2d", "gradient")
def _avg_pool(node: Node, dy: Node) -> tuple[Node]:
    return (ops.avg_pool2d_backward(dy, node.inputs[0].shape, **node.attrs),)


@register_attr("avg_pool2d_backward", "gradient")
def _avg_pool_backward(node: Node, dy: Node) -> tuple[Node]:
    attrs = {key: value for key, value in node.attrs.items() if key != "shape"}
    return (call("avg_pool2d", (dy,), attrs),)


@register_attr("softmax", "gradient")
def _softmax(node: Node, dy: Node) -> tuple[Node]:
    common = ops.sum(ops.mul(dy, node), node.attrs["axis"], keepdims=True)
    return (ops.mul(node, ops.sub(dy, common)),)


@register_attr("log_softmax", "gradient")
def _log_softmax(node: Node, dy: Node) -> tuple[Node]:
    total = ops.sum(dy, node.attrs["axis"], keepdims=True)
    return (ops.sub(dy, ops.mul(ops.exp(node), total)),)


Adjoint: TypeAlias = "Node | tuple[Node | None, ...]"


def gradient(y: Node, xs: Sequence[Node], dy: Node | None = None) -> list[Node]:
    """Return the gradient of y with respect to each of `xs`: nodes, which can be differentiated.

    Args:
        y: a float tensor.
        xs: float tensors: inputs, variables or any other node; zeros for those that y does not
            depend on.
        dy: the gradient that arrives at y, of y's type; ones by default, that is, the gradient of
            sum(y).

    Integers, bools and comparisons end a path, as the condition of `where` does. Ties of `maximum`
    go to its first operand, those of a `max` reduction are shared, `relu` and `abs` have slope 0
    at 0. An extreme that is NaN is the element that is NaN, so that a NaN is never lost on the
    way. ``a ** b`` has slope 0 in b where a is 0 and b >= 0, and NaN where a < 0.

    Raises:
        GraphError: an operand that is no float tensor, or a node on the way from xs to y whose op
            is not differentiable (floor, argmax…) or has no gradient registered.

    >>> from loopnest.graph import tanh, var
    >>> x, dy = var("x", (3,)), var("dy", (3,))
    >>> gradient(tanh(x), [x], dy)
    [<mul(sub(…), dy): float32[3]>]

    Source: Griewank and Walther, "Evaluating Derivatives", 2008, section 3.2.
    """
    wanted = items_of(xs)
    if wanted is None:
        kind = "a node" if isinstance(xs, Node) else kind_of(xs)
        raise GraphError(f"gradient(xs={short(xs)})", f"xs is {kind}", "pass a list of nodes")
    seed = _checked(y, wanted, dy)
    found = _pulled_back({y: seed}, wanted)
    results: list[Node] = []
    for x in wanted:
        adjoint = found.get(x)
        assert not isinstance(adjoint, tuple)
        results.append(ops.zeros_like(x) if adjoint is None else adjoint)
    return results


def _checked(y: Node, xs: Sequence[Node], dy: Node | None) -> Node:
    """Return the gradient that arrives at y."""
    for role, node in (("y", y), *[("x", x) for x in xs]):
        if not isinstance(node, Node):
            raise GraphError(
                f"gradient({role}={short(node)})", f"it is {kind_of(node)}", "use a node"
            )
        if not isinstance(node.type, TensorType) or not node.dtype.is_float:
            raise GraphError(
                f"gradient({role}={describe(node)})", f"it is {node.type}", "use a float tensor"
            )
    if dy is None:
        return ops.ones_like(y)
    if not isinstance(dy, Node) or dy.type != y.type:
        what = str(dy.type) if isinstance(dy, Node) else kind_of(dy)
        raise GraphError(f"gradient(dy={dy})", f"it is {what}, y is {y.type}", "they must agree")
    return dy


def _pulled_back(adjoints: dict[Node, Adjoint], xs: Sequence[Node]) -> dict[Node, Adjoint]:
    """Return the adjoints of all nodes between the given ones and xs."""
    order = postorder(adjoints)
    wanted = set(xs)
    active: set[Node] = set()  # what depends on xs
    for node in order:
        if node in wanted or any(x in active for x in node.inputs):
            active.add(node)
    for node in reversed(order):
        dy = adjoints.get(node)
        if dy is None or not any(x in active for x in node.inputs):
            continue
        with made_for(origin_of(node)):
            parts = _rule(node)(node, dy)
        if len(parts) != len(node.inputs):
            raise GraphError(
                describe(node), f"its gradient has {len(parts)} parts", "one for each operand"
            )
        for operand, part in zip(node.inputs, parts, strict=True):
            if part is not None and operand in active:
                adjoints[operand] = _summed(node, operand, adjoints.get(operand), part)
    return adjoints


def _rule(node: Node) -> Rule:
    """Return the rule of a node's op.

    Raises:
        GraphError: it has none.
    """
    rule: Rule | NotDifferentiable | None = get_attr(node, "gradient", None)
    if rule is None or isinstance(rule, NotDifferentiable):
        why = "no gradient is registered for it" if rule is None else rule.reason
        raise GraphError(
            f"gradient of {describe(node)}{place_of(node)}",
            f"op {node.op} is not differentiable: {why}",
            f"register_attr({node.op!r}, 'gradient', …) gives it a rule",
        )
    return rule


def _summed(node: Node, operand: Node, old: Adjoint | None, part: Contribution) -> Adjoint:
    """Return an adjoint with one more contribution, that of `node`."""
    if isinstance(operand.type, TupleType):
        fields = (None,) * len(operand.type.fields)
        before = old if isinstance(old, tuple) else fields
        assert isinstance(part, tuple)
        return tuple([_added(a, b) for a, b in zip(before, part, strict=True)])
    assert not isinstance(old, tuple)
    if not isinstance(part, Node) or part.type != operand.type:
        what = part.type if isinstance(part, Node) else type(part).__name__
        raise GraphError(
            f"gradient of {describe(node)}{place_of(node)}",
            f"its rule gives {what} for {describe(operand)}",
            f"that is {operand.type}",
        )
    return part if old is None else ops.add(old, part)


def _added(a: Node | None, b: Node | None) -> Node | None:
    if a is None or b is None:
        return b if a is None else a
    return ops.add(a, b)


@register_attr("fused", "gradient")
def _fused(node: Node, dy: Adjoint) -> list[Contribution]:
    return _through(body_of(node), node, dy)


@register_attr(("max_pool2d_spread", "max_pool2d_spread_phases", "max_pool2d_pick"), "gradient")
def _of_math(node: Node, dy: Adjoint) -> list[Contribution]:
    body = math_of(node)
    assert body is not None
    return _through(body, node, dy)


def _through(body: Graph, node: Node, dy: Adjoint) -> list[Contribution]:
    """Differentiate a body on its own inputs, then put the operands of a node in."""
    arriving = dy if isinstance(dy, tuple) else (dy,)
    adjoints: dict[Node, Adjoint] = {}
    replacements = dict(zip(body.inputs, node.inputs, strict=True))
    for output, part in zip(body.outputs, arriving, strict=True):
        if part is not None:
            seed = var("dy", part.shape, part.dtype)
            replacements[seed] = part
            adjoints[output] = _summed(node, output, adjoints.get(output), seed)
    found = _pulled_back(adjoints, body.inputs)
    parts = [found.get(x) for x in body.inputs]
    present = iter(substitute([x for x in parts if isinstance(x, Node)], replacements))
    return [None if part is None else next(present) for part in parts]
