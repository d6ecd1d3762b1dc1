"""Ops as math of the core: the attribute ``lower`` of graph ops, for `group_math`.

``lower(node, operands)`` returns a TensorView of the current fusion, by public functions. An
operand is a TensorView, or the Python number of a scalar constant; at least one is a TensorView,
where the op has operands. An op without one that has the attribute ``math`` is what it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import loopnest as ln
from loopnest.base.errors import NotSupported
from loopnest.graph.dimensions import Dim, Shape, add, mul, sub
from loopnest.graph.node import Node, describe
from loopnest.graph.node_values import math_of
from loopnest.graph.operators.movement_ops import PLAIN
from loopnest.graph.registry import get_attr, register_attr
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import cast
from loopnest.scalar.op_table import FUNCTIONS
from loopnest.tensor.fusion import ScalarOperand, current_fusion
from loopnest.tensor.ops.data_movement import sizes_of
from loopnest.tensor.ops.gathers import scatter_prod

MathOperand: TypeAlias = "ln.TensorView | ScalarOperand | bool | int | float"
MathValue: TypeAlias = "MathOperand | tuple[MathValue, ...]"
Lower: TypeAlias = "Callable[[Node, tuple[MathOperand, ...]], ln.TensorView]"
Around: TypeAlias = "tuple[Dim, Dim]"
"""How many elements stand before those of an axis, and after them."""


def lower_of(node: Node) -> Lower | None:
    """Return how a node's op becomes math; None where it has no attribute ``lower``."""
    made = _by_math if get_attr(node, "math", None) is not None else None
    found: Lower | None = get_attr(node, "lower", made)
    return found


def value_of(node: Node, operands: Sequence[MathValue]) -> MathValue:
    """Return the math of a node, given that of its operands.

    Raises:
        NotSupported: its op has no attribute ``lower``.
        LoopnestError: the core does not take what the op becomes.
    """
    if node.op in ("tuple", "group"):
        return tuple(operands)
    if node.op == "get_item":
        (whole,) = operands
        assert isinstance(whole, tuple)
        return whole[node.attrs["index"]]
    if node.op == "const" and not node.ndim:
        number: bool | int | float = node.value.item()
        return number
    lower = lower_of(node)
    if lower is None:
        raise NotSupported(describe(node), f"op {node.op} has no attribute 'lower'")
    plain: list[MathOperand] = [x for x in operands if not isinstance(x, tuple)]
    found = lower(node, tuple(plain))
    return found if found.dtype is node.dtype else ln.cast(found, node.dtype)


def value_alone(node: Node, operands: Sequence[MathValue]) -> MathValue:
    """Return the math of a node as `value_of`, for math that is evaluated and has no kernel.

    A reshape is math there, and indices are looked at where they are used, computed ones too.
    """
    rule = _ALONE.get(node.op)
    if rule is None:
        return value_of(node, operands)
    return rule(node, *[as_tensor(x, node) for x in operands if not isinstance(x, tuple)])


_ALONE: dict[str, Callable[..., ln.TensorView]] = {
    "index_add": lambda node, x, places, more: ln.index_add(x, node.attrs["axis"], places, more),
    "put": lambda node, *tensors: _PUTS[node.attrs["fold"]](*tensors, 0),
    "reshape": lambda node, x: ln.reshape(x, node.shape),
    "take": lambda node, x, places: ln.take(x, places, node.attrs["axis"]),
}


def _by_math(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    """Return what a node is made of, on its operands.

    Raises:
        NotSupported: windows of other layouts than those that the core knows.
    """
    check_plain(node)
    body = math_of(node)
    assert body is not None
    values: dict[Node, MathValue] = dict(zip(body.inputs, operands, strict=True))
    try:
        for inner in body.nodes:
            if inner.op == "size":  # an operand like a number, and no tensor
                values[inner] = size_operand(inner.attrs["value"], inner.dtype, inner)
            elif inner not in values:
                values[inner] = value_of(inner, [values[x] for x in inner.inputs])
    except NotSupported as error:
        raise NotSupported(describe(node), error.reason, error.hint) from None
    found = values[body.outputs[0]]
    assert isinstance(found, ln.TensorView)
    return found


def check_plain(node: Node) -> None:
    """Check that a node has the layouts that the core knows.

    Raises:
        NotSupported: it has others.
    """
    layouts = [node.attrs.get(name, plain) for name, plain in PLAIN.items()]
    if layouts != [*PLAIN.values()]:
        raise NotSupported(describe(node), f"its layouts are {', '.join(layouts)}")


def as_tensor(operand: MathOperand, node: Node) -> ln.TensorView:
    """Return an operand as a tensor; a number as one of the type of the node's operand."""
    if isinstance(operand, ln.TensorView):
        return operand
    return ln.full((), operand, node.inputs[0].dtype)


def lowers(*ops: str) -> Callable[[Callable[..., ln.TensorView]], object]:
    """Register ``lower`` of some ops: a function of the node and its operands as tensors."""

    def add_rule(rule: Callable[..., ln.TensorView]) -> object:
        def lower(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
            return rule(node, *[as_tensor(operand, node) for operand in operands])

        return register_attr(ops, "lower", lower)

    return add_rule


def _function(name: str) -> Lower:
    """Return the lowering of a function that the core has under the same name."""
    function: Callable[..., ln.TensorView] = getattr(ln, name)

    def lower(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
        if not any(isinstance(x, ln.TensorView) for x in operands):
            operands = (as_tensor(operands[0], node), *operands[1:])
        return function(*operands, **node.attrs)

    return lower


def _same(function: Callable[..., ln.TensorView]) -> Callable[..., ln.TensorView]:
    """Return the rule of an op whose attributes are the arguments of a function of the core."""
    return lambda node, *tensors: function(*tensors, *node.attrs.values())


def _reduction(function: Callable[..., ln.TensorView]) -> Callable[..., ln.TensorView]:
    def lower(node: Node, tensor: ln.TensorView) -> ln.TensorView:
        if not node.attrs["axis"] and node.op not in ("any", "all"):
            return ln.cast(tensor, node.dtype)  # over no axis: each element is its own result
        return function(tensor, node.attrs["axis"], node.attrs["keepdims"])

    return lower


def _extreme_place(function: Callable[..., ln.TensorView]) -> Callable[..., ln.TensorView]:
    return lambda node, x: function(x, *node.attrs["axis"], node.attrs["keepdims"])


@register_attr("where", "lower")
def _where(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    cond, a, b = operands
    if not isinstance(a, ln.TensorView) and not isinstance(b, ln.TensorView):
        a = ln.full((), a, node.dtype)  # numbers alone would have a type of their own
    if isinstance(a, ln.TensorView):
        return ln.where(cond, a, b)
    assert isinstance(b, ln.TensorView)
    return ln.where(cond, a, b)


@lowers("expand_dims")
def _expand_dims(node: Node, x: ln.TensorView) -> ln.TensorView:
    return ln.broadcast(x, [place in node.attrs["axis"] for place in range(node.ndim)])


@lowers("iota")
def _iota(node: Node) -> ln.TensorView:
    attrs = node.attrs
    dtype = node.dtype if node.dtype.is_integer else ln.int64
    return ln.iota(attrs["length"], attrs["start"], attrs["step"], dtype)


@lowers("size")
def _size(node: Node) -> ln.TensorView:
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


@lowers("strided_view")
def _strided_view(node: Node, x: ln.TensorView) -> ln.TensorView:
    """Return the elements at computed places; a view of an input is declared with its strides."""
    places = ln.full(node.shape, 0, ln.int64)
    rows = zip(node.shape, node.attrs["strides"], strict=True)
    for axis, (extent, stride) in enumerate(rows):
        own = ln.broadcast(ln.iota(extent, dtype=ln.int64), [i != axis for i in range(node.ndim)])
        steps = size_operand(stride, ln.int64, node)
        places = places + own * steps
    return ln.take(x, places, 0)


@lowers("unslice")
def _unslice(node: Node, operand: ln.TensorView) -> ln.TensorView:
    """Return zeros with the operand put in: zeros around it, and between its elements."""
    (x,) = node.inputs
    if x.tensor_type.size == 0:
        return ln.full(node.shape, 0, node.dtype)
    widths: list[Around] = []
    between: list[int] = []
    rows = zip(node.shape, x.shape, node.attrs["starts"], node.attrs["steps"], strict=True)
    for whole, own, start, step in rows:
        after = sub(sub(whole, start), add(mul(sub(own, 1), step), 1))
        widths.append((start, after))
        between.append(step - 1)
    return ln.pad(operand, widths, 0, between)


def static_width(found: Dim, node: Node) -> int:
    """Return an extent that math needs as a number.

    Raises:
        NotSupported: it depends on a size.
    """
    if isinstance(found, int):
        return found
    raise NotSupported(describe(node), f"it needs a number where {found} stands")


@lowers("take")
def _take(node: Node, x: ln.TensorView, indices: ln.TensorView) -> ln.TensorView:
    return ln.take(x, _checked(indices, node), node.attrs["axis"])


@lowers("index_add")
def _index_add(
    node: Node, x: ln.TensorView, indices: ln.TensorView, updates: ln.TensorView
) -> ln.TensorView:
    return ln.index_add(x, node.attrs["axis"], _checked(indices, node), updates)


@lowers("put")
def _put(
    node: Node, x: ln.TensorView, indices: ln.TensorView, values: ln.TensorView
) -> ln.TensorView:
    return _PUTS[node.attrs["fold"]](x, _checked(indices, node), values, 0)


_PUTS: dict[str, Callable[..., ln.TensorView]] = {
    "last": ln.scatter,
    "max": ln.scatter_max,
    "min": ln.scatter_min,
    "prod": scatter_prod,
}


def _checked(indices: ln.TensorView, node: Node) -> ln.TensorView:
    """Return indices, of which every launch checks that they lie inside.

    Raises:
        NotSupported: the kernel computes them itself, so that nothing can be checked before.
    """
    if not indices.is_input:
        raise NotSupported(describe(node), "its indices are no input of the kernel")
    extent = node.inputs[0].shape[node.attrs.get("axis", 0)]
    indices.fusion.assume_range(indices, 0, extent)
    return indices


# Convolutions, as one contraction of windows


@register_attr("conv2d_backward_data", "lower")
def _conv_data(node: Node, operands: tuple[MathOperand, ...]) -> ln.TensorView:
    """Return dy spread by the strides, correlated with the reversed kernel."""
    check_plain(node)
    dy, w = [as_tensor(operand, node) for operand in operands]
    attrs = node.attrs
    if attrs["groups"] > 1:
        return _transposed(node, dy, w, node.shape[2:], attrs["padding"][:2])
    widths: list[Around] = [(0, 0), (0, 0)]
    for place in (0, 1):
        kernel, stride = node.inputs[1].shape[2 + place], attrs["strides"][place]
        span = mul(sub(kernel, 1), attrs["dilation"][place])
        spread = add(mul(sub(node.inputs[0].shape[2 + place], 1), stride), 1)
        before = sub(span, attrs["padding"][place])
        after = sub(sub(add(node.shape[2 + place], span), before), spread)
        widths.append((before, after))
    between = (0, 0, *[stride - 1 for stride in attrs["strides"]])
    spread_dy = ln.pad(dy, widths, 0, between)
    reversed_w = ln.permute(ln.flip(w, (2, 3)), (1, 0, 2, 3))
    return ln.conv(spread_dy, reversed_w, 1, 0, attrs["dilation"])


def _over_batch(node: Node, x: ln.TensorView, dy: ln.TensorView) -> ln.TensorView:
    """Return x [N, C, …] correlated with dy [N, O, …] over the batch: [O, C / groups, …].

    The batch takes the place of channels; where each channel is a group, channels stay apart.

    Raises:
        NotSupported: groups of several channels.
    """
    attrs, groups = node.attrs, node.attrs["groups"]
    if groups > 1:
        return _by_channel(node, x, dy)
    swap = (1, 0, *range(2, node.ndim))
    found = ln.conv(
        ln.permute(x, swap), ln.permute(dy, swap), attrs["dilation"], 0, attrs["strides"]
    )
    return ln.permute(found, swap)


def _by_channel(node: Node, x: ln.TensorView, dy: ln.TensorView) -> ln.TensorView:
    """Return the sum over the batch of windows of x times dy, a channel at a time.

    Raises:
        NotSupported: a group has several channels, of x or of dy.
    """
    attrs, (image, results) = node.attrs, node.inputs
    if not image.shape[1] == results.shape[1] == attrs["groups"]:
        found = f"it has {attrs['groups']} groups of several channels"
        raise NotSupported(describe(node), found)
    rank = node.ndim - 2
    sizes = [static_width(extent, node) for extent in results.shape[2:]]
    x = ln.unfold(x, range(2, 2 + rank), sizes, attrs["dilation"], attrs["strides"])
    between = [False, False, *[True] * rank, *[False] * rank]
    folded = (0, *range(2 + rank, 2 + 2 * rank))
    total = ln.sum(ln.mul(x, ln.broadcast(dy, between)), folded)
    return ln.broadcast(total, [False, True, *[False] * rank])


@lowers("conv_transposed")
def _conv_transposed(node: Node, x: ln.TensorView, w: ln.TensorView) -> ln.TensorView:
    return _transposed(node, x, w, node.attrs["space"], node.attrs["padding"])


def _transposed(
    node: Node, x: ln.TensorView, w: ln.TensorView, space: Shape, before: Sequence[int]
) -> ln.TensorView:
    """Return the core's; zeros behind x make what lies behind its windows.

    Where a size says how many elements are left out behind, or are missing, the core adds zeros.
    """
    attrs = node.attrs
    pairs: list[Around] = []
    behind: list[tuple[int, int]] = [(0, 0), (0, 0)]
    for axis, extent in enumerate(space):
        own, size = node.inputs[0].shape[2 + axis], node.inputs[1].shape[2 + axis]
        stride = attrs["strides"][axis]
        reach = mul(sub(size, 1), attrs["dilation"][axis])
        end = add(add(mul(sub(own, 1), stride), reach), 1)
        left = sub(sub(end, before[axis]), extent)
        more = -(min(left, 0) // stride) if isinstance(left, int) else 0
        behind.append((0, more))
        pairs.append((before[axis], add(left, more * stride)))
    if any(after for _, after in behind):
        x = ln.pad(x, behind)
    steps, apart, groups = attrs["strides"], attrs["dilation"], attrs["groups"]
    return ln.conv(x, w, steps, pairs, apart, groups, transposed=True)


@lowers("conv_weight")
def _conv_weight(node: Node, x: ln.TensorView, dy: ln.TensorView) -> ln.TensorView:
    """Return x correlated with dy over the batch: strides and dilation change places."""
    attrs = node.attrs
    widths: list[Around] = [(0, 0), (0, 0)]
    for axis, size in enumerate(attrs["kernel"]):
        own, out = node.inputs[0].shape[2 + axis], node.inputs[1].shape[2 + axis]
        before = attrs["padding"][axis][0]
        reach = (size - 1) * attrs["dilation"][axis] + 1
        needed = add(mul(sub(out, 1), attrs["strides"][axis]), reach)
        widths.append((before, sub(sub(needed, own), before)))
    return _over_batch(node, ln.pad(x, widths), dy)


@lowers("unfold")
def _unfold(node: Node, x: ln.TensorView) -> ln.TensorView:
    """Return windows of windows as windows along several axes of one tensor, where they are."""
    chain = [node]
    if x.definition is not None and x.definition.op == "unfold":
        (base,) = x.producers
        while len(chain) <= x.ndim - base.ndim:
            chain.insert(0, chain[0].inputs[0])
        are_unfolds = all(step.op == "unfold" for step in chain)
        axes = [step.attrs["axis"] for step in chain] if are_unfolds else []
        if axes and len({*axes}) == len(axes) and max(axes) < base.ndim:
            given: dict[str, Any] = {
                n: [step.attrs[n] for step in chain] for n in ("size", "stride", "dilation")
            }
            return ln.unfold(base, axes, **given)
    attrs = node.attrs
    return ln.unfold(x, attrs["axis"], attrs["size"], attrs["stride"], attrs["dilation"])


for _name in FUNCTIONS:
    register_attr(_name, "lower", _function(_name))
for _name in ("sum", "prod", "max", "min", "any", "all", "mean"):
    lowers(_name)(_reduction(getattr(ln, _name)))
for _name in ("argmax", "argmin"):
    lowers(_name)(_extreme_place(getattr(ln, _name)))
_SAME: dict[str, Callable[..., ln.TensorView]] = {
    "argsort": ln.argsort,
    "broadcast_to": ln.expand,
    "cast": ln.cast,
    "conv": ln.conv,
    "cumprod": ln.cumprod,
    "cumsum": ln.cumsum,
    "flip": ln.flip,
    "full": ln.full,
    "matmul": ln.matmul,
    "pad": ln.pad,
    "searchsorted": ln.searchsorted,
    "slice": ln.slice,
    "squeeze": ln.squeeze,
    "transpose": ln.permute,
}
for _name, _core in _SAME.items():
    lowers(_name)(_same(_core))
lowers("concatenate")(lambda node, *parts: ln.concatenate([*parts], node.attrs["axis"]))
