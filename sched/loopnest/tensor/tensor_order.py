"""Which tensors of a fusion come before which, and which of them an output needs.

For one state of the graph of tensors: each answer is computed when it is first asked for, and a
fusion makes another `TensorOrder` when its graph has changed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import cached_property

from loopnest.tensor.domain import IterDomain
from loopnest.tensor.tensor_view import TensorView


class TensorOrder:
    """The graph of tensors of a fusion in one version.

    Args:
        version: of the graph.
        tensors: all of them, in order of creation.
        outputs: those that are declared.

    Attributes:
        placed: what the schedule layer knows of where tensors are computed, as long as the graph is
            this one and no call was undone.
    """

    def __init__(
        self, version: int, tensors: Sequence[TensorView], outputs: Sequence[TensorView]
    ) -> None:
        self.version = version
        self._tensors, self._outputs = tuple(tensors), tuple(outputs)
        self.placed: dict[TensorView, object] = {}

    @cached_property
    def topological(self) -> tuple[TensorView, ...]:
        """All tensors, producers before consumers, else in order of creation.

        Definitions, the outputs of one together, come by the first of their outputs' numbers.
        """
        unit_of = {t: t.siblings for t in self._tensors}
        rank = {unit: min(t.number for t in unit) for unit in unit_of.values()}
        waiting = {
            unit: len({unit_of[p] for t in unit for p in t.producers}) for unit in unit_of.values()
        }
        ready = [(rank[unit], unit) for unit, count in waiting.items() if not count]
        heapq.heapify(ready)
        order: list[TensorView] = []
        while ready:
            _, unit = heapq.heappop(ready)
            order.extend(unit)
            for user in dict.fromkeys(unit_of[c] for t in unit for c in t._consumers):
                waiting[user] -= 1
                if not waiting[user]:
                    heapq.heappush(ready, (rank[user], user))
        return tuple(order)

    @cached_property
    def ranks(self) -> dict[TensorView, int]:
        """The place of each tensor in `topological`."""
        return {tensor: place for place, tensor in enumerate(self.topological)}

    @cached_property
    def live(self) -> frozenset[TensorView]:
        """The tensors that an output depends on, with siblings; all where none is declared."""
        found = set(self._outputs or self._tensors)
        stack = list(found)
        while stack:
            tensor = stack.pop()
            for other in (*tensor.siblings, *tensor.producers, *tensor.carried):
                if other not in found:
                    found.add(other)
                    stack.append(other)
        return frozenset(found)

    @cached_property
    def unit_axes(self) -> frozenset[IterDomain]:
        """The root axes that are broadcast in their tensor and in all that is computed from it.

        A loop over one of them is never that of an axis that has more than one element.
        """
        found: set[IterDomain] = set()
        for tensor in reversed(self.topological):
            logical = tensor.domain.logical
            for axis in tensor.domain.root:
                if axis.is_broadcast and axis in logical:
                    readers = _readers(tensor, logical.index(axis))
                    if all(other in found for other in readers):
                        found.add(axis)
        return frozenset(found)

    @cached_property
    def first_placed(self) -> int:
        """A rank below which no tensor shares a loop with a consumer."""
        placed = [rank for t, rank in self.ranks.items() if t.compute_at_pos]
        return min(placed, default=len(self._tensors))

    def note_placed(self, tensor: TensorView) -> None:
        """Take note that `tensor` shares a loop with a consumer from now on."""
        if "first_placed" in self.__dict__:
            self.first_placed = min(self.first_placed, self.ranks[tensor])


def _readers(tensor: TensorView, number: int) -> Iterator[IterDomain]:
    """Yield the root axes of consumers that stand for logical axis `number` of a tensor."""
    for consumer in tensor.consumers:
        definition, root = consumer.definition, consumer.domain.root
        assert definition is not None
        for read in definition.reads:
            place = read.equal_axes(root)[number] if read.producer is tensor else None
            if place is not None:
                yield root[place]
