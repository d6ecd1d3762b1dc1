"""What the rules of gradients share.

A rule is the attribute ``gradient`` of an op: ``(node, dy) -> contributions``, one for each
operand: a node of the operand's type, or None where the operand has no influence (or none but on a
set of measure 0). For a tuple-typed node `dy` is a tuple of nodes or None, and the contribution to
a tuple-typed operand is such a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loopnest.graph.node import Node
from loopnest.graph.operators import movement_ops, pointwise_ops, reduction_ops
from loopnest.graph.registry import register_attr

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
        return reduction_ops.sum(dy, repeated, keepdims=True) if repeated else dy
    # One sum: two, one after the other, would be two kernels with what lies between in memory.
    dy = reduction_ops.sum(dy, (*range(lead), *repeated), keepdims=bool(repeated))
    return movement_ops.squeeze(dy, tuple(range(lead))) if repeated else dy


def spread(dy: Node, node: Node) -> Node:
    """Return the gradient of a reduction with its reduced axes as extents of 1."""
    if node.attrs["keepdims"]:
        return dy
    return movement_ops.expand_dims(dy, node.attrs["axis"])


def zero_where_not(cond: Node, dy: Node) -> Node:
    """Return dy where `cond` holds, else 0."""
    return pointwise_ops.where(cond, dy, 0)
