"""Rules of ATen's operators that compute: pointwise ones, folds, products, convolutions and pools.

Among them are what gradients are made of, and the attention of the CPU with its gradient: torch's
own decomposition of that gives no logarithms of sums, which the gradient needs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import loopnest.graph as G
from loopnest.graph.dimensions import Dim, Shape, add, ceildiv, product, sub
from loopnest.graph.node import Node
from loopnest.graph.registry import call as call_op
from loopnest.scalar.dtypes import DType, bool_, float32, float64, int32, int64
from loopnest.scalar.op_table import FUNCTIONS
from loopnest.torch.aten_table import RULES, Call, as_node, axes_of, own_dtype, translates
from loopnest.torch.symbolic_sizes import NotTranslated

_BINARY: dict[str, Callable[..., Node]] = {
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
"""Operators that compute in the type of their result."""


def _binary(function: Callable[..., Node]) -> Callable[[Call], Node]:
    """Return the rule of a function of two operands, computed in the type of the result.

    A number that a 16-bit tensor is multiplied or divided by is not rounded to 16 bits; one that is
    added to it is, in torch too.
    """

    def rule(call: Call) -> Node:
        dtype = call.dtype
        if dtype.is_bool and function not in (G.bitand, G.bitor, G.bitxor):
            return _of_bools(function, call)
        wide = dtype.compute if function in (G.mul, G.div) else dtype
        return as_node(function(as_node(call[0], wide), as_node(call[1], wide)), dtype)

    return rule


def _of_bools(function: Callable[..., Node], call: Call) -> Node:
    of_bools: dict[Callable[..., Node], Callable[..., Node]] = {
        **dict.fromkeys((G.add, G.maximum), G.logical_or),
        **dict.fromkeys((G.mul, G.minimum), G.logical_and),
    }
    found = of_bools.get(function)
    if found is None:
        raise NotTranslated("of bools")
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


for _name, _function in _BINARY.items():
    _rule = _scaled if _name in ("add", "sub") else _binary
    translates(f"{_name}.Tensor", f"{_name}.Scalar")(_rule(_function))
translates("maximum.default", "clamp_min.default", "clamp_min.Tensor")(_binary(G.maximum))
translates("minimum.default", "clamp_max.default", "clamp_max.Tensor")(_binary(G.minimum))
translates("rsub.Tensor", "rsub.Scalar")(_scaled(G.sub, first=1))
translates("pow.Tensor_Tensor", "pow.Scalar")(_binary(G.pow))
for _name in ("logical_and", "logical_or"):
    translates(_name)(_of_truths(getattr(G, _name)))
for _name, _info in FUNCTIONS.items():  # of the same name in ATen; the rules below come after it
    if _info.arity == 1:
        translates(f"{_name}.default")(_unary(getattr(G, _name)))
    elif _name in ("eq", "ne", "lt", "le", "gt", "ge"):
        translates(f"{_name}.Tensor", f"{_name}.Scalar")(_compared(getattr(G, _name)))


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
    wide = x.dtype.compute
    steep = as_node(G.mul(as_node(x, wide), as_node(slope, wide)), x.dtype)
    return G.where(G.gt(x, as_node(0, x.dtype)), x, steep)


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


def _filled(call: Call, value: Any) -> Node:
    if isinstance(value, Node):
        return G.broadcast_to(as_node(value, call.dtype), call.shape)
    return G.full(call.shape, value, call.dtype)


translates("full.default", "full_like.default", "fill.Scalar", "fill.Tensor")(
    lambda call: _filled(call, call[1])
)
translates("new_full.default")(lambda call: _filled(call, call[2]))
translates("ones.default", "ones_like.default", "new_ones.default")(lambda call: _filled(call, 1))
translates("zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format",
           "empty_like.default", "new_empty.default")(lambda call: _filled(call, 0))  # fmt: skip


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


def _fold_rule(function: Callable[..., Node], dtype: DType | None = None) -> Callable[[Call], Node]:
    """Return the rule of a fold in a type, by default that of the result.

    Over no axis each element is its own result.
    """

    def rule(call: Call) -> Node:
        x = as_node(call[0], dtype or call.dtype)
        axes = axes_of(call.get("dim"), x.ndim)
        return as_node(function(x, axes, call.get("keepdim", False)) if axes else x, call.dtype)

    return rule


translates("sum.dim_IntList", "sum.default")(_fold_rule(G.sum))
translates("mean.dim", "mean.default")(_fold_rule(G.mean))
translates("prod.dim_int", "prod.default")(_fold_rule(G.prod))
translates("amax.default", "max.default")(_fold_rule(G.max))
translates("amin.default", "min.default")(_fold_rule(G.min))
translates("any.default", "any.dim", "any.dims")(_fold_rule(G.any, bool_))
translates("all.default", "all.dim", "all.dims")(_fold_rule(G.all, bool_))


def _extreme(value: Callable[..., Node], place: Callable[..., Node]) -> Callable[[Call], Any]:
    def rule(call: Call) -> tuple[Node, Node]:
        x = call[0]
        if not x.ndim:
            return x, G.full((), 0, int64)
        axis, keep = call["dim"] % x.ndim, call["keepdim"]
        return value(x, axis, keep), place(x, axis, keep)

    return rule


translates("max.dim")(_extreme(G.max, G.argmax))
translates("min.dim")(_extreme(G.min, G.argmin))


def _extreme_place(function: Callable[..., Node]) -> Callable[[Call], Node]:
    def rule(call: Call) -> Node:
        x, axis, keep = call.args
        if x.dtype.is_bool:
            raise NotTranslated("of bools")
        if not x.ndim:
            return G.full((), 0, int64)
        if axis is None:
            found = function(G.reshape(x, (x.tensor_type.size,)), 0, False)
            return G.reshape(found, call.shape)
        return function(x, axis % x.ndim, keep)

    return rule


translates("argmax.default")(_extreme_place(G.argmax))
translates("argmin.default")(_extreme_place(G.argmin))


@translates("var_mean.correction")
def _var_mean(call: Call) -> tuple[Node, Node]:
    axes = axes_of(call.get("dim"), call[0].ndim)
    return _variance(call), G.mean(call[0], axes, call["keepdim"])


def _variance(call: Call) -> Node:
    correction = call["correction"]
    axes = axes_of(call.get("dim"), call[0].ndim)
    divisor = 1 if correction is None else correction
    return G.variance(call[0], axes, divisor, call["keepdim"])


translates("var.correction")(_variance)


def _along(function: Callable[..., Node]) -> Callable[[Call], Node]:
    def rule(call: Call) -> Node:
        x = as_node(call[0], call.dtype)
        if not x.ndim:
            return as_node(G.reshape(function(G.reshape(x, (1,)), 0), ()), call.dtype)
        return as_node(function(x, call[1] % x.ndim), call.dtype)

    return rule


translates("_softmax.default")(_along(G.softmax))
translates("_log_softmax.default")(_along(G.log_softmax))
translates("cumsum.default")(_along(G.cumsum))
translates("cumprod.default")(_along(G.cumprod))


@translates("linalg_vector_norm.default")
def _norm(call: Call) -> Node:
    x, order, keep, dtype = call[0], call["ord"], call["keepdim"], call.dtype
    axes = axes_of(call["dim"], x.ndim)
    wide = dtype.compute
    size = G.abs(as_node(x, wide))
    if not axes:
        raise NotTranslated("over no axis")
    if order == math.inf:
        return as_node(G.max(size, axes, keep), dtype)
    if order == -math.inf:
        return as_node(G.min(size, axes, keep), dtype)
    if order == 0:
        raise NotTranslated("a count")
    if order == 1:
        return as_node(G.sum(size, axes, keep), dtype)
    if order == 2:
        return as_node(G.sqrt(G.sum(G.mul(size, size), axes, keep)), dtype)
    total = G.sum(G.pow(size, as_node(float(order), wide)), axes, keep)
    return as_node(G.pow(total, as_node(1.0 / order, wide)), dtype)


# Products of matrices


@translates("mm.default", "bmm.default")
def _mm(call: Call) -> Node:
    return _product(call, call[0], call[1])


def _product(call: Call, a: Node, b: Node) -> Node:
    dtype = own_dtype(call.first)
    if not dtype.is_float:
        return as_node(G.matmul(as_node(a, int64), as_node(b, int64)), dtype)
    return as_node(G.matmul(a, b), dtype)


@translates("addmm.default")
def _addmm(call: Call) -> Node:
    beta, alpha, dtype = call["beta"], call["alpha"], call.dtype
    if dtype.is_narrow:
        product = G.matmul(G.cast(call[1], float32), G.cast(call[2], float32))
    else:
        product = _product(call, call[1], call[2])
    wide = dtype.compute
    product = product if alpha == 1 else G.mul(product, as_node(alpha, wide))
    bias = as_node(call[0], wide)
    bias = bias if beta == 1 else G.mul(bias, as_node(beta, wide))
    return as_node(G.add(product, bias), dtype)


@translates("mv.default")
def _mv(call: Call) -> Node:
    found = _product(call, call[0], G.expand_dims(call[1], 1))
    return G.squeeze(found, 1)


@translates("dot.default")
def _dot(call: Call) -> Node:
    return G.sum(G.mul(as_node(call[0], call.dtype), as_node(call[1], call.dtype)), 0)


def _each(value: Any, rank: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Return one int a spatial axis; torch repeats a single one, and an empty list is a default."""
    given = [value] if isinstance(value, int) else [int(e) for e in value]
    if not given:
        return tuple(default)
    return tuple(given * rank if len(given) == 1 else given)


def number_of(extent: Dim) -> int:
    """Return an extent that is a number.

    Raises:
        NotTranslated: it is a size.
    """
    if isinstance(extent, int):
        return extent
    raise NotTranslated(f"windows along an axis of {extent} elements")


# Convolutions


@translates("convolution.default")
def _convolution(call: Call) -> Node:
    x, w, bias, *around = call.args
    rank = w.ndim - 2
    batched = x if x.ndim == w.ndim else G.expand_dims(x, 0)
    strides, padding, dilation = [_each(value, rank) for value in around[:3]]
    transposed, groups = around[3], around[5]
    if transposed:
        found = G.conv_transposed(
            batched, w, call.shape[-rank:], strides, padding, dilation, groups
        )
    else:
        found = G.conv(batched, w, strides, padding, dilation, groups)
    if bias is not None:
        found = G.add(found, G.reshape(bias, (1, bias.shape[0], *[1] * rank)))
    return found if x.ndim == w.ndim else G.squeeze(found, 0)


@translates("convolution_backward.default")
def _convolution_backward(call: Call) -> tuple[Node | None, ...]:
    dy, x, w, _, *around = call.args
    rank = w.ndim - 2
    if x.ndim != w.ndim:
        raise NotTranslated("without a batch")
    strides, padding, dilation = [_each(value, rank) for value in around[:3]]
    transposed, groups, (of_x, of_w, of_bias) = around[3], around[5], around[6]
    dx = dw = db = None
    if transposed:
        if of_x:
            dx = G.conv(dy, w, strides, padding, dilation, groups)
        if of_w:
            dw = G.conv_weight(dy, x, w.shape[2:], strides, padding, dilation, groups)
    else:
        if of_x:
            space = x.shape[2:]
            dx = G.conv_transposed(dy, w, space, strides, padding, dilation, groups)
        if of_w:
            dw = G.conv_weight(x, dy, w.shape[2:], strides, padding, dilation, groups)
    if of_bias:
        db = G.sum(dy, [0, *range(2, dy.ndim)])
    return dx, dw, db


# Pools


class _Pool:
    """The windows of a pool: sizes, strides, padding and dilation, one a spatial axis.

    Args:
        call: of the pool, or of its gradient.
        out: the spatial extents of the pool's result.
    """

    def __init__(self, call: Call, out: Sequence[Dim]) -> None:
        rank = self.rank = len(out)
        self.size = _each(call["kernel_size"], rank)
        self.stride = _each(call["stride"], rank, self.size)
        self.padding = _each(call["padding"], rank)
        self.dilation = _each(call.get("dilation", 1), rank)
        self.out = tuple(out)

    def reach(self, axis: int) -> int:
        """Return how far the last element of a window is from its first."""
        return (self.size[axis] - 1) * self.dilation[axis]

    def behind(self, axis: int, extent: Dim) -> int:
        """Return how many elements stand behind an axis: what its last window needs.

        Of a symbolic extent it is the padding, and a step less one more where a window that is
        partly outside counts; what that makes too many, no window has.
        """
        out, low, stride = self.out[axis], self.padding[axis], self.stride[axis]
        if not isinstance(extent, int) or not isinstance(out, int):
            starts = sub(add(extent, 2 * low + stride - 1), self.reach(axis))
            return low + stride - 1 if ceildiv(starts, stride) == out else low
        end = (out - 1) * self.stride[axis] + self.reach(axis) + 1
        return max(end - extent - self.padding[axis], 0)

    def windows(self, x: Node, fill: float) -> Node:
        """Return [*, *out, *size]: the windows of x, `fill` around it."""
        lead = x.ndim - self.rank
        widths = [(0, 0)] * lead
        for axis in range(self.rank):
            widths.append((self.padding[axis], self.behind(axis, x.shape[lead + axis])))
        if any(map(any, widths)):
            x = G.pad(x, widths, fill)
        for axis in range(self.rank):
            size, stride = self.size[axis], self.stride[axis]
            x = G.unfold(x, lead + axis, size, stride, self.dilation[axis])
        return x

    def covering(self, dy: Node, space: Sequence[Dim]) -> Node:
        """Return [*, *space, *size]: what stands in the windows over each element, else 0."""
        lead = dy.ndim - self.rank
        shape, starts, steps = [*dy.shape[:lead]], [0] * lead, [1] * lead
        for axis, extent in enumerate(space):
            reach = self.reach(axis)
            if self.padding[axis] > reach:
                raise NotTranslated("more padding than a window is long")
            shape.append(add(extent, reach))
            starts.append(reach - self.padding[axis])
            steps.append(self.stride[axis])
        spread = G.unslice(dy, shape, starts, steps)
        for axis in range(self.rank):
            spread = G.unfold(spread, lead + axis, self.size[axis], 1, self.dilation[axis])
        return spread

    def plane(self, shape: Shape) -> dict[str, Any] | None:
        """Return the attributes of ``max_pool2d`` that say the same; None where it has none."""
        if self.rank != 2 or set(self.dilation) != {1}:
            return None
        behind = tuple([self.behind(axis, shape[axis - 2]) for axis in (0, 1)])
        if any(map(operator.ge, (*self.padding, *behind), self.size * 2)):
            return None
        around = (*self.padding, *behind)
        sizes = {"pool": self.size, "strides": self.stride, "padding": around}
        return {**sizes, "data_layout": "NCHW"}

    def last(self, windows: Node) -> list[int]:
        """Return the axes of the elements of windows."""
        return list(range(windows.ndim - self.rank, windows.ndim))


def _rows_and_columns(plane: Mapping[str, Any], out: Shape) -> tuple[Node, Node]:
    """Return where each window begins, in front of the image where it does: [OH, 1], [OW]."""
    rows, columns = [
        G.iota(extent, -before, step, int64)
        for extent, before, step in zip(out, plane["padding"], plane["strides"], strict=False)
    ]
    return G.expand_dims(rows, 1), columns


def _largest_of_planes(x: Node, plane: Mapping[str, Any]) -> tuple[Node, Node]:
    """Return the largest elements of windows over H and W, and the flat place of each."""
    planes = x if x.ndim == 4 else G.expand_dims(x, 0)
    largest = call_op("max_pool2d", (planes,), plane)
    numbers = call_op("max_pool2d_places", (planes, largest), plane)
    width = plane["pool"][1]
    rows, columns = _rows_and_columns(plane, largest.shape[2:])
    # Numbers are taken apart in their own narrow type.
    own_rows, own_columns = numbers // width, numbers % width
    places = (G.cast(own_rows, int64) + rows) * G.size(x.shape[-1], int64)
    places = places + (G.cast(own_columns, int64) + columns)
    found = largest, places
    return found if x.ndim == 4 else (G.squeeze(largest, 0), G.squeeze(places, 0))


def _spread_over_planes(x: Node, dy: Node, places: Node, plane: Mapping[str, Any]) -> Node:
    """Return the gradient of windows over H and W, from the flat places of their largest."""
    given = [value if x.ndim == 4 else G.expand_dims(value, 0) for value in (dy, places)]
    extent, width = G.size(x.shape[-1], int64), plane["pool"][1]
    rows, columns = _rows_and_columns(plane, dy.shape[-2:])
    own_rows, own_columns = given[1] // extent - rows, given[1] % extent - columns
    numbers = G.cast(own_rows * width + own_columns, int32)
    shape = x.shape if x.ndim == 4 else (1, *x.shape)
    found = call_op("max_pool2d_spread", (numbers, given[0]), {"shape": shape, **plane})
    return found if x.ndim == 4 else G.squeeze(found, 0)


def _places(space: Sequence[Dim], first: int = 0) -> Node:
    """Return each element's flat place in space, from `first` on."""
    if all(isinstance(extent, int) for extent in space):
        return G.reshape(G.iota(product(space), first, 1, int64), tuple(space))
    found = G.iota(space[0], 0, 1, int64)
    for axis in range(1, len(space)):
        rows = G.expand_dims(found, axis) * G.size(space[axis], int64)
        found = rows + G.iota(space[axis], 0, 1, int64)
    return found + first


_NOWHERE = 1 << 62
"""Behind the places of all elements."""


def _max_rule(rank: int) -> Any:
    def rule(call: Call) -> tuple[Node, Node]:
        x = call[0]
        pool = _Pool(call, call.shape[-rank:])
        if not x.dtype.is_float:
            raise NotTranslated("of integers")
        plane = pool.plane(x.shape)
        if plane is not None:
            return _largest_of_planes(x, plane)
        windows = pool.windows(x, -math.inf)
        largest = G.max(windows, pool.last(windows))
        return largest, _first_places(call, pool, windows, largest, x.shape[-rank:])

    return rule


def _first_places(
    call: Call, pool: _Pool, windows: Node, largest: Node, space: Sequence[Dim]
) -> Node:
    """Return the first place of the largest element of each window (a NaN is the largest)."""
    own = pool.windows(_places(space), _NOWHERE)
    whole = G.reshape(largest, (*largest.shape, *[1] * pool.rank))
    found = G.logical_or(G.eq(windows, whole), G.isnan(windows))
    return G.min(G.where(found, own, G.const(_NOWHERE, int64)), pool.last(windows))


def _max_backward_rule(rank: int) -> Any:
    def rule(call: Call) -> Node:
        dy, x, places = call[0], call[1], call["indices"]
        pool = _Pool(call, dy.shape[-rank:])
        space = x.shape[-rank:]
        plane = pool.plane(x.shape)
        if plane is not None:
            return _spread_over_planes(x, dy, places, plane)
        spread = pool.covering(dy, space)
        chosen = pool.covering(G.add(places, G.const(1, int64)), space)
        own = G.reshape(_places(space, 1), (*space, *[1] * rank))
        taken = G.where(G.eq(chosen, own), spread, as_node(0, dy.dtype))
        return G.sum(taken, pool.last(spread))

    return rule


def _average_rule(rank: int) -> Any:
    def rule(call: Call) -> Node:
        x = call[0]
        pool = _Pool(call, call.shape[-rank:])
        wide = as_node(x, call.dtype.compute)
        windows = pool.windows(wide, 0)
        total = G.sum(windows, pool.last(windows))
        return as_node(_divided(total, pool, x.shape[-rank:], call), call.dtype)

    return rule


def _average_backward_rule(rank: int) -> Any:
    def rule(call: Call) -> Node:
        dy, x = call[0], call[1]
        pool = _Pool(call, dy.shape[-rank:])
        wide = as_node(dy, call.dtype.compute)
        spread = pool.covering(_divided(wide, pool, x.shape[-rank:], call), x.shape[-rank:])
        return as_node(G.sum(spread, pool.last(spread)), call.dtype)

    return rule


def _divided(total: Node, pool: _Pool, space: Sequence[Dim], call: Call) -> Node:
    """Divide sums over windows by their numbers of elements, as the arguments say."""
    override = call.get("divisor_override")  # a pool of one axis has none
    if override is not None:
        return G.div(total, as_node(override, total.dtype))
    counted = call["count_include_pad"]
    whole = not any(map(bool, pool.padding)) or counted
    if not all(isinstance(extent, int) for extent in (*space, *pool.out)):
        if whole and not call["ceil_mode"]:
            return G.div(total, as_node(math.prod(pool.size), total.dtype))
        lengths = [
            _symbolic_lengths(pool, axis, extent, counted) for axis, extent in enumerate(space)
        ]
        found = lengths[0]
        for axis in range(1, len(space)):
            found = G.expand_dims(found, axis) * lengths[axis]
        return G.div(total, G.cast(found, total.dtype))
    rows = [_lengths(pool, axis, extent, counted) for axis, extent in enumerate(space)]
    if all(len(set(row)) == 1 for row in rows):
        return G.div(total, as_node(math.prod([row[0] for row in rows]), total.dtype))
    counts = np.ones((), np.float64)
    for row in rows:
        counts = np.multiply.outer(counts, row)
    return G.div(total, G.const(counts, total.dtype))


def _symbolic_lengths(pool: _Pool, axis: int, extent: Dim, counted: bool) -> Node:
    """Return what `_lengths` returns as a node."""
    low = -pool.padding[axis] if counted else 0
    high = G.size(add(extent, -low), int64)
    start = G.iota(pool.out[axis], -pool.padding[axis], pool.stride[axis], int64)
    return G.minimum(start + pool.size[axis], high) - G.maximum(start, low)


def _lengths(pool: _Pool, axis: int, extent: Dim, counted: bool) -> list[int]:
    """Return how many elements each window has along an axis, with the padding or without."""
    low = -pool.padding[axis] if counted else 0
    high = number_of(extent) + (pool.padding[axis] if counted else 0)
    found = []
    for place in range(number_of(pool.out[axis])):
        start = place * pool.stride[axis] - pool.padding[axis]
        found.append(min(start + pool.size[axis], high) - max(start, low))
    return found


for _number in (1, 2, 3):
    translates(f"max_pool{_number}d_with_indices.default")(_max_rule(_number))
    translates(f"max_pool{_number}d_with_indices_backward.default")(_max_backward_rule(_number))
    translates(f"avg_pool{_number}d.default")(_average_rule(_number))
    translates(f"avg_pool{_number}d_backward.default")(_average_backward_rule(_number))


@translates("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def _adaptive(call: Call) -> Node:
    """Return means of equal parts; where the parts differ, torch computes them."""
    x, sizes = call[0], call[1]
    rank = len(sizes)
    space = x.shape[-rank:]
    if any(e % n for e, n in zip(space, sizes, strict=True)):
        raise NotTranslated("of parts that differ")
    shape = [*x.shape[:-rank]]
    for extent, count in zip(space, sizes, strict=True):
        shape += [count, extent // count]
    lead = x.ndim - rank
    parts = G.reshape(x, shape)
    return G.mean(parts, [lead + 2 * axis + 1 for axis in range(rank)])


def _scores(call: Call, q: Node, k: Node) -> tuple[Node, Node]:
    """Return the scaled products of queries and keys, masked; and their scale."""
    if call["dropout_p"]:
        raise NotTranslated("with dropout")
    wide = q.dtype.compute
    scale = _score_scale(call, q, wide)
    scores = G.matmul(as_node(q, wide), G.transpose(as_node(k, wide), _swapped(k)))
    scores = G.mul(scores, scale)
    mask = call["attn_mask"]
    if mask is not None and mask.dtype is bool_:
        scores = G.where(mask, scores, as_node(-math.inf, wide))
    elif mask is not None:
        scores = G.add(scores, as_node(mask, wide))
    if call["is_causal"]:
        rows = G.reshape(G.iota(q.shape[-2], 0, 1, int64), (q.shape[-2], 1))
        columns = G.reshape(G.iota(k.shape[-2], 0, 1, int64), (1, k.shape[-2]))
        scores = G.where(G.ge(rows, columns), scores, as_node(-math.inf, wide))
    return scores, scale


def _score_scale(call: Call, q: Node, dtype: DType) -> Node:
    """Return what products are multiplied by: as given, or by the number of features."""
    given, width = call["scale"], q.shape[-1]
    if given is not None:
        return as_node(float(given), dtype)
    if isinstance(width, int):
        return as_node(1 / math.sqrt(width), dtype)
    return as_node(G.div(1.0, G.sqrt(G.size(width, float64))), dtype)


def _swapped(x: Node) -> list[int]:
    """Return the order of axes in which the last two are swapped."""
    return [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]


@translates("_scaled_dot_product_flash_attention_for_cpu.default")
def _attention(call: Call) -> tuple[Node, Node]:
    """Return softmax(q k^T) v, and the logarithm of each row's sum of exponentials."""
    q, k, v = call.args[:3]
    scores, _ = _scores(call, q, k)
    wide = scores.dtype
    largest = G.max(scores, -1, True)
    exponentials = G.exp(G.sub(scores, largest))
    total = G.sum(exponentials, -1, True)
    found = G.matmul(G.div(exponentials, total), as_node(v, wide))
    rows = G.squeeze(G.add(largest, G.log(total)), -1)
    return as_node(found, q.dtype), as_node(rows, wide)


@translates("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def _attention_backward(call: Call) -> tuple[Node, Node, Node]:
    """Return the gradients of q, k and v.

    Source: Dao et al., "FlashAttention", 2022, algorithm 4.
    """
    dy, q, k, v, y, rows = call.args[:6]
    scores, scale = _scores(call, q, k)
    wide = scores.dtype
    dy, v, y = [as_node(x, wide) for x in (dy, v, y)]
    shares = G.exp(G.sub(scores, G.expand_dims(as_node(rows, wide), -1)))
    along = G.sum(G.mul(dy, y), -1, True)
    ds = G.mul(shares, G.sub(G.matmul(dy, G.transpose(v, _swapped(v))), along))
    ds = G.mul(ds, scale)
    dq = G.matmul(ds, as_node(k, wide))
    dk = G.matmul(G.transpose(ds, _swapped(ds)), as_node(q, wide))
    dv = G.matmul(G.transpose(shares, _swapped(shares)), dy)
    return as_node(dq, q.dtype), as_node(dk, q.dtype), as_node(dv, q.dtype)
