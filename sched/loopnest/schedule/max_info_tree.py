"""Replay many tensors from one reference, each once, along a maximum spanning tree.

A tensor is reached along the path from the reference that keeps the most of the reference's root
axes: a path through a reduction or past a broadcast loses axes, and what is lost cannot be replayed
farther on.

Source: nvFuser's MaxInfoSpanningTree (Fuser, csrc/maxinfo_propagator.cpp), an adaptation of Prim's
algorithm; loopnest computes it over definitions, so that outputs of one definition move together.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from loopnest.schedule.replay import consumer_as_producer, mirror, producer_as_consumer
from loopnest.schedule.root_maps import pairs
from loopnest.tensor.domain import IterDomain, TensorDomain, ancestors
from loopnest.tensor.tensor_view import TensorView

Kept: TypeAlias = frozenset[tuple[IterDomain, IterDomain]]
"""(an axis of the reference's root, the axis of the tensor at hand that stands for it)."""

Replayed: TypeAlias = dict[TensorView, tuple[TensorDomain, int]]


def max_info_replay(reference: TensorView, pos: int, selected: Collection[TensorView]) -> Replayed:
    """Return the domain and aligned position of each selected tensor reached from `reference`.

    Tensors come in the order in which they are reached; nothing is changed. A selected input is
    passed through, but not where another way leads to the same tensor: an input shares no loop.
    """
    needed = ancestors(reference.domain.leaf[:pos], reference.domain)
    start: Kept = frozenset((axis, axis) for axis in reference.domain.root if axis in needed)
    result: Replayed = {}
    queue: list[tuple[int, int, int, TensorView, TensorView | None, Kept]] = []
    heapq.heappush(queue, (0, -len(start), 0, reference, None, start))
    count = 0
    while queue:
        inputs, _, _, tensor, origin, kept = heapq.heappop(queue)
        if tensor in result:
            continue
        result[tensor] = (tensor.domain, pos) if origin is None else _step(origin, tensor, result)
        for twin in tensor.siblings:
            if twin not in result:
                domain, aligned = result[tensor]
                twin_domain = twin.domain
                if domain is not tensor.domain:
                    twin_domain = mirror(domain, twin)
                result[twin] = (twin_domain, aligned)
        for near, neighbour, left in _neighbours(tensor, kept, selected, result):
            count += 1
            passed = inputs + neighbour.is_input
            heapq.heappush(queue, (passed, -len(left), count, neighbour, near, left))
    return result


def _step(origin: TensorView, tensor: TensorView, done: Replayed) -> tuple[TensorDomain, int]:
    domain, pos = done[origin]
    if tensor in origin.producers:
        return producer_as_consumer(tensor, origin, domain, pos)
    return consumer_as_producer(tensor, origin, domain, pos)


def _neighbours(
    tensor: TensorView, kept: Kept, selected: Collection[TensorView], done: Replayed
) -> Iterator[tuple[TensorView, TensorView, Kept]]:
    """Yield (sibling that is adjacent, neighbour to go to, what the step to it keeps)."""
    for twin in tensor.siblings:
        own = _as_twin(kept, tensor, twin)
        down = _to_logical(own, twin)
        for consumer in twin.consumers:
            if consumer in selected and consumer not in done:
                forward = dict(pairs(twin, consumer))
                yield twin, consumer, _through(down, forward)
        for producer in twin.producers:
            if producer in selected and producer not in done:
                back = {c: p for p, c in pairs(producer, twin)}
                yield twin, producer, _to_root(_through(own, back), producer)


def _through(kept: Kept, mapping: Mapping[IterDomain, IterDomain]) -> Kept:
    return frozenset((axis, mapping[here]) for axis, here in kept if here in mapping)


def _as_twin(kept: Kept, tensor: TensorView, twin: TensorView) -> Kept:
    if twin is tensor:
        return kept
    return _through(kept, dict(zip(tensor.domain.root, twin.domain.root, strict=True)))


def _to_logical(kept: Kept, tensor: TensorView) -> Kept:
    """Express root axes by the logical axes that they became (rfactored tensors)."""
    domain = tensor.domain
    if domain.rfactor is domain.root:
        return kept
    result = set()
    for axis, here in kept:
        for logical in domain.logical:
            if here in ancestors((logical,), domain):
                result.add((axis, logical))
                break
    return frozenset(result)


def _to_root(kept: Kept, tensor: TensorView) -> Kept:
    """Express logical axes by the root axes that they came from."""
    domain = tensor.domain
    if domain.rfactor is domain.root:
        return kept
    result = set()
    for axis, here in kept:
        sources = ancestors((here,), domain)
        result.add((axis, next(root for root in domain.root if root in sources)))
    return frozenset(result)
