"""Ops of neural networks: softmax; and functions made of smaller ops.

Normalisations and losses are graphs of means, variances and pointwise ops, so that passes see what
they share with their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.node import Attrs, Node, Operand, Type
from loopnest.graph.node_values import by_math
from loopnest.graph.operators import pointwise_ops as p
from loopnest.graph.operators.creation import iota
from loopnest.graph.operators.movement_ops import expand_dims, reshape
from loopnest.graph.operators.node_operands import meet, require_node, tensors
from loopnest.graph.operators.reduction_ops import max, mean, normalized_axes, sum, variance
from loopnest.graph.registry import (
    Pattern,
    call,
    call_text,
    register_attr,
    register_op,
    takes_arguments,
)
from loopnest.scalar.dtypes import FLOAT

__all__ = [
    "batch_norm",
    "cross_entropy",
    "layer_norm",
    "log_softmax",
    "softmax",
]


@takes_arguments
def softmax(x: Operand, axis: int = -1) -> Node:
    """Return exp(x) / sum(exp(x)) along an axis, computed without overflow.

    Raises:
        GraphError: the axis is out of range.
    """
    return _along("softmax", x, axis)


@takes_arguments
def log_softmax(x: Operand, axis: int = -1) -> Node:
    """Return log(softmax(x)) along an axis, computed without overflow.

    Raises:
        GraphError: the axis is out of range.
    """
    return _along("log_softmax", x, axis)


@takes_arguments
def batch_norm(x: Operand, gamma: Operand, beta: Operand, eps: float = 1e-5) -> Node:
    """Return x normalised over all axes but 1 (channels), times gamma, plus beta (training).

    Args:
        x: [N, C, …]; a statistic of each channel is taken over the other axes.
        gamma: [C].
        beta: [C].
        eps: added to the variance.

    Raises:
        GraphError: x has fewer than two axes, or gamma or beta is not [C].

    Source: Ioffe and Szegedy, "Batch Normalization", 2015, algorithm 1.
    """
    nodes = meet("batch_norm", (x, gamma, beta), FLOAT)
    data = nodes[0]
    subject = call_text("batch_norm", nodes)
    if data.ndim < 2:
        raise GraphError(subject, f"x has rank {data.ndim}", "its axes are N, C and more")
    for name, node in zip(("gamma", "beta"), nodes[1:], strict=True):
        if node.shape != data.shape[1:2]:
            raise GraphError(subject, f"{name} is {node.type}", f"it must be [{data.shape[1]}]")
    axes = (0, *range(2, data.ndim))
    scale, shift = [expand_dims(node, tuple(axes)) for node in nodes[1:]]
    return p.add(p.mul(_normalized(data, axes, eps), scale), shift)


@takes_arguments
def layer_norm(
    x: Operand,
    gamma: Operand,
    beta: Operand,
    axis: int | Sequence[int] = -1,
    eps: float = 1e-5,
) -> Node:
    """Return x normalised over `axis`, times gamma, plus beta.

    Args:
        x: the operand.
        gamma: the extents of `axis`, or what broadcasts to x.
        beta: as gamma.
        axis: the axes that each statistic is taken over.
        eps: added to the variance.

    Raises:
        GraphError: an axis out of range, or shapes that do not broadcast.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    data, scale, shift = meet("layer_norm", (x, gamma, beta), FLOAT)
    axes = normalized_axes("layer_norm", data, axis)
    kept = tuple([e if i in axes else 1 for i, e in enumerate(data.shape)])
    own = tuple([data.shape[a] for a in axes])
    scale, shift = [reshape(n, kept) if n.shape == own else n for n in (scale, shift)]
    return p.add(p.mul(_normalized(data, axes, eps), scale), shift)


def _normalized(x: Node, axes: Sequence[int], eps: float) -> Node:
    """Return (x - E) / sqrt(V + eps), the statistics over `axes`."""
    center = p.sub(x, mean(x, axes, keepdims=True))
    return p.div(center, p.sqrt(p.add(variance(x, axes, keepdims=True), eps)))


@takes_arguments
def cross_entropy(logits: Operand, labels: Operand) -> Node:
    """Return the mean over all rows of -sum(labels * log_softmax(logits)), a scalar.

    Args:
        logits: […, classes]; not normalised.
        labels: probabilities […, classes], or the integer class of each row […].

    Raises:
        GraphError: labels of another shape.
    """
    (data,) = meet("cross_entropy", (logits,), FLOAT)
    target = require_node("cross_entropy", labels)
    subject = call_text("cross_entropy", (data, target))
    if not data.ndim:
        raise GraphError(subject, "the logits have no axis", "the last axis is that of classes")
    if target.dtype.is_integer and target.shape == data.shape[:-1]:
        classes = iota(data.shape[-1], dtype=target.dtype)
        own = p.eq(expand_dims(target, -1), classes)
        picked = p.where(own, log_softmax(data), 0)  # other classes may have probability 0
    elif target.shape == data.shape:
        picked = p.mul(target, log_softmax(data))
    else:
        raise GraphError(subject, "labels do not fit", "probabilities […, classes] or integers […]")
    return p.neg(mean(sum(picked, axis=-1)))


def _along(op: str, x: Operand, axis: int) -> Node:
    (node,) = meet(op, (x,), FLOAT)
    (place,) = normalized_axes(op, node, axis)
    return call(op, (node,), {"axis": place})


def _infer_along(types: tuple[Type, ...], attrs: Attrs) -> Type:
    (x,) = tensors(types)
    if not x.dtype.is_float:
        raise Refused(f"it does not take {x.dtype}", "cast the operand")
    if not 0 <= attrs["axis"] < len(x.shape):
        raise Refused(f"axis {attrs['axis']} is out of range", f"it has {len(x.shape)} axes")
    return x


def _softmax(node: Node) -> Node:
    powers = p.exp(_shifted(node))
    total = sum(powers, node.attrs["axis"], keepdims=True)
    return p.cast(p.div(powers, total), node.dtype)


def _log_softmax(node: Node) -> Node:
    shifted = _shifted(node)
    total = sum(p.exp(shifted), node.attrs["axis"], keepdims=True)
    return p.cast(p.sub(shifted, p.log(total)), node.dtype)


def _shifted(node: Node) -> Node:
    """Return the operand, widened, less its largest element along the axis."""
    wide = p.cast(node.inputs[0], node.dtype.compute)
    return p.sub(wide, max(wide, node.attrs["axis"], keepdims=True))


for _name, _math in (("softmax", _softmax), ("log_softmax", _log_softmax)):
    register_op(
        _name,
        infer=_infer_along,
        evaluate=by_math,
        arity=1,
        params=("axis",),
        pattern=Pattern.OPAQUE,
    )
    register_attr(_name, "math", _math)
