"""What holds of every fusion at any time, whatever was scheduled."""

from __future__ import annotations

import loopnest as ln
from loopnest.devtools.fuzzing.failures import Failure
from loopnest.schedule.replay import shared_positions
from loopnest.tensor.domain import ancestors


def require_sound(fusion: ln.Fusion, line: str = "") -> None:
    """Raise `Failure` where a tensor breaks a promise of the documentation."""
    live = fusion.live()
    for tensor in fusion.tensors:
        problem = _of_domain(tensor) or _of_place(tensor, live) or _of_neighbours(tensor, live)
        if problem:
            raise Failure("invariant", f"{tensor.name} {problem}; now {tensor}", line)


def _of_domain(tensor: ln.TensorView) -> str:
    domain = tensor.domain
    if len(set(domain.leaf)) != len(domain.leaf):
        return "has a leaf axis twice"
    if set(domain.root) - ancestors(domain.leaf, domain):
        return "has a root axis that no loop runs over"
    if set(domain.rfactor) - ancestors(domain.leaf, domain):
        return "has an rfactor axis that no loop runs over"
    threads = [a.parallel for a in domain.leaf if a.parallel.is_thread]
    if len(set(threads)) != len(threads):
        return "has a launch dimension twice"
    for step in domain.history:
        mixed = {a.is_reduction for a in step.inputs if not a.is_broadcast}
        if len(mixed) > 1:
            return "joins an iteration and a reduction axis"
    return ""


def _of_place(tensor: ln.TensorView, live: frozenset[ln.TensorView]) -> str:
    pos = tensor.compute_at_pos
    if tensor.is_input and (pos or tensor.leaf_domain != tensor.root_domain):
        return "is an input with a schedule"
    if not 0 <= pos <= tensor.ndim or not 0 <= tensor.produced_at_pos <= tensor.ndim:
        return "has a position that is no position"
    if any(axis.is_reduction for axis in tensor.leaf_domain[:pos]):
        return "has a reduction axis inside its own compute-at position"
    if pos and not any(twin.consumers for twin in tensor.siblings):
        return "has a position without a consumer"
    for twin in tensor.siblings:
        if (twin.ndim, twin.compute_at_pos) != (tensor.ndim, pos):
            return f"has other loops than its sibling {twin.name}"
        kinds = [(a.kind, a.parallel, a.pinned) for a in twin.leaf_domain]
        if kinds != [(a.kind, a.parallel, a.pinned) for a in tensor.leaf_domain]:
            return f"has other axes than its sibling {twin.name}"
    return ""


def _of_neighbours(tensor: ln.TensorView, live: frozenset[ln.TensorView]) -> str:
    for consumer in tensor.consumers:
        if tensor not in consumer.producers:
            return f"has the consumer {consumer.name}, which does not read it"
        if consumer in live and tensor in live and tensor.compute_at_pos:
            places = shared_positions(tensor, consumer)
            if len(places) < tensor.compute_at_pos:
                return f"shares more loops with {consumer.name} than correspond"
            if places[tensor.compute_at_pos - 1] >= consumer.produced_at_pos:
                return f"shares loops of {consumer.name} that are not frozen there"
    for producer in tensor.producers:
        if tensor not in producer.consumers:
            return f"reads {producer.name}, which does not know it"
    return ""
