"""Rules of ATen's operators that fold: sums, extremes, means, softmax, products of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import loopnest.graph as G
from loopnest.graph.node import Node
from loopnest.scalar.dtypes import bool_, float32, int64
from loopnest.torch.aten_table import Call, as_node, axes_of, own_dtype, translates
from loopnest.torch.symbolic_sizes import NotTranslated


def _folded(function: Callable[..., Node], call: Call, axes: tuple[int, ...], keep: bool) -> Node:
    """Return a fold in the type of the result; over no axis each element is its own result."""
    x = as_node(call[0], call.dtype)
    return as_node(function(x, axes, keep), call.dtype) if axes else x


def _fold_rule(function: Callable[..., Node]) -> Callable[[Call], Node]:
    def rule(call: Call) -> Node:
        rank = call[0].ndim
        return _folded(function, call, axes_of(call.get("dim"), rank), call.get("keepdim", False))

    return rule


for _name, _function in {"sum": G.sum, "mean": G.mean, "amax": G.max, "amin": G.min}.items():
    translates(f"{_name}.dim_IntList", f"{_name}.dim")(_fold_rule(_function))
    translates(f"{_name}.default")(
        _fold_rule(_function)
        if _name in ("amax", "amin")
        else lambda call, function=_function: _folded(  # type: ignore[misc]
            function, call, axes_of(None, call[0].ndim), False
        )
    )
translates("prod.dim_int")(_fold_rule(G.prod))


@translates("prod.default")
def _prod(call: Call) -> Node:
    return _folded(G.prod, call, axes_of(None, call[0].ndim), False)


def _whole(function: Callable[..., Node]) -> Callable[[Call], Node]:
    return lambda call: _folded(function, call, axes_of(None, call[0].ndim), False)


translates("max.default")(_whole(G.max))
translates("min.default")(_whole(G.min))


@translates("any.default", "any.dim", "any.dims")
def _any(call: Call) -> Node:
    axes = axes_of(call.get("dim"), call[0].ndim)
    x = as_node(call[0], bool_)
    return as_node(G.any(x, axes, call.get("keepdim", False)) if axes else x, call.dtype)


@translates("all.default", "all.dim", "all.dims")
def _all(call: Call) -> Node:
    axes = axes_of(call.get("dim"), call[0].ndim)
    x = as_node(call[0], bool_)
    return as_node(G.all(x, axes, call.get("keepdim", False)) if axes else x, call.dtype)


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


@translates("argmax.default")
def _argmax(call: Call) -> Node:
    return _place(G.argmax, call)


@translates("argmin.default")
def _argmin(call: Call) -> Node:
    return _place(G.argmin, call)


def _place(function: Callable[..., Node], call: Call) -> Node:
    x, axis, keep = call.args
    if x.dtype.is_bool:
        raise NotTranslated("of bools")
    if not x.ndim:
        return G.full((), 0, int64)
    if axis is None:
        found = function(G.reshape(x, (x.tensor_type.size,)), 0, False)
        return G.reshape(found, call.shape)
    return function(x, axis % x.ndim, keep)


@translates("var.correction")
def _var(call: Call) -> Node:
    return _variance(call)


@translates("var_mean.correction")
def _var_mean(call: Call) -> tuple[Node, Node]:
    axes = axes_of(call.get("dim"), call[0].ndim)
    return _variance(call), G.mean(call[0], axes, call["keepdim"])


def _variance(call: Call) -> Node:
    correction = call["correction"]
    axes = axes_of(call.get("dim"), call[0].ndim)
    divisor = 1 if correction is None else correction
    return G.variance(call[0], axes, divisor, call["keepdim"])


@translates("_softmax.default")
def _softmax(call: Call) -> Node:
    return _along(G.softmax, call)


@translates("_log_softmax.default")
def _log_softmax(call: Call) -> Node:
    return _along(G.log_softmax, call)


def _along(function: Callable[..., Node], call: Call) -> Node:
    x = as_node(call[0], call.dtype)
    if not x.ndim:
        return G.reshape(function(G.reshape(x, (1,)), 0), ())
    return function(x, call[1] % x.ndim)


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


# Scans


@translates("cumsum.default")
def _cumsum(call: Call) -> Node:
    return _scanned(G.cumsum, call)


@translates("cumprod.default")
def _cumprod(call: Call) -> Node:
    return _scanned(G.cumprod, call)


def _scanned(function: Callable[..., Node], call: Call) -> Node:
    x = as_node(call[0], call.dtype)
    return as_node(function(x, call[1] % x.ndim), call.dtype) if x.ndim else x
