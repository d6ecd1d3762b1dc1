"""Where compute_at has placed tensors: what the next call need not find out again.

A position never falls and the loops left of it are frozen: what shares its leading loops with a
target keeps them as long as the graph of tensors is the same and no call is undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loopnest.base.fast_init import fast_init
from loopnest.schedule.axis_places import leading_position
from loopnest.schedule.overlap import SharedLoops
from loopnest.tensor.domain import TensorDomain
from loopnest.tensor.tensor_view import TensorView


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Placement:
    """The loops of a target that a tensor was placed in.

    Args:
        target: the tensor whose loops they are.
        pos: how many of its leading ones were asked for.
        domain: the axes of the target then.
        shared: the loops that the tensor shares of these.
    """

    target: TensorView
    pos: int
    domain: TensorDomain
    shared: SharedLoops


def note_placed(target: TensorView, pos: int, found: Mapping[TensorView, SharedLoops]) -> None:
    """Take note of the tensors that share all the loops that they were replayed to have.

    And that the target depends on: others are replayed with them, but share no loop of its own.
    """
    order = target.fusion.order
    for tensor in sorted(found, key=order.ranks.__getitem__, reverse=True):
        shared = found[tensor]
        leads = any(
            consumer is target or placed_at(consumer, target, pos) is not None
            for consumer in tensor.consumers
            if consumer in order.live
        )
        alone = len(tensor.siblings) == 1 and tensor is not target
        if leads and alone and shared.loops and tensor.compute_at_pos >= len(shared.loops):
            order.placed[tensor] = Placement(target, pos, target.domain, shared)


def placed_at(tensor: TensorView, target: TensorView, pos: object) -> SharedLoops | None:
    """Return the loops that a tensor shares with a target, where it was placed there."""
    found = target.fusion.order.placed.get(tensor)
    if not isinstance(found, Placement) or found.target is not target:
        return None
    same = found.domain is target.domain and found.shared.domain is tensor.domain
    return found.shared if same and leading_position(target, pos) == found.pos else None
