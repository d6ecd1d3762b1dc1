"""The order of expressions: the loops of a forest as an ordered tree (rule 33).

The groups of a forest already nest; what is left is to order, inside every loop, the loops and
tensors that stand in it, so that every tensor comes before its consumers. A tensor that is still
being computed by a loop may not be read in it.

Source: nvFuser's expr_sort merges groups from the innermost loop outward; here the nesting is known
from the groups, and each body is one topological sort.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from loopnest.scalar.enums import Memory
from loopnest.schedule import chains
from loopnest.schedule.loop_groups import Conflict, LaunchConflict, LoopGroup, is_several_launches
from loopnest.tensor.tensor_view import TensorView

if TYPE_CHECKING:
    from loopnest.schedule.loop_forest import LoopForest

Item: TypeAlias = "LoopGroup | TensorView"


class Ordering:
    """Build and sort the tree of one forest."""

    def __init__(self, forest: LoopForest, *, overwrites: bool) -> None:
        self.forest = forest
        self.overwrites = overwrites
        self.top = LoopBody(None)
        self.node_of: dict[LoopGroup, LoopBody] = {}
        self.paths: dict[TensorView, tuple[LoopGroup, ...]] = {}

    def run(self) -> LoopBody:
        """Return the sorted tree.

        Raises:
            Conflict: there is no order, or a tensor would be read inside a loop that still
                computes it.
        """
        for rank, unit in enumerate(self.forest.units):
            self._insert(unit, rank)
        for unit in self.forest.units:
            for consumer in chains.consumers_of(unit):
                head = consumer.siblings[0]
                if head in self.paths:
                    self._read(unit, head)
        if self.overwrites:
            for output, target in self.forest.fusion.inplace.items():
                self._overwrite(output, target)
        # Bodies are sorted one by one: every demand is put into the innermost loop around both
        # tensors, where it decides between two items; outside of it both are in one.
        for body in (self.top, *self.node_of.values()):
            body.sort()
        if is_several_launches(self.forest.fusion):
            self._launches()
        return self.top

    def _launches(self) -> None:
        """Give each item its launch; refuse tensors that share loops across the start of one."""
        for item in self.top.order:
            self._check_launch(list(item.walk()) if isinstance(item, LoopBody) else [item])
        self.top.number_launches()

    def _check_launch(self, units: list[TensorView]) -> None:
        """Refuse what a tensor that starts a launch reads from GLOBAL memory, in loops with it."""
        inside = set(units)
        for head in (twin for unit in units for twin in unit.siblings if twin.starts_launch):
            waiting, seen = [head.siblings[0]], set[TensorView]()
            while waiting:
                unit = waiting.pop()
                for producer in (p for twin in unit.siblings for p in twin.producers):
                    if producer.siblings[0] not in inside or producer in seen:
                        continue
                    seen.add(producer)
                    waiting.append(producer.siblings[0])
                    if producer.memory is Memory.GLOBAL:
                        raise LaunchConflict(
                            f"{head.name} starts a launch (new_launch), and {producer.name}, which "
                            "it reads from GLOBAL memory, is computed in an earlier one: they "
                            "share no loops"
                        )

    def _insert(self, unit: TensorView, rank: int) -> None:
        path = self.paths[unit] = self.forest.path(unit)
        body = self.top
        for group in path:
            inner = self.node_of.get(group)
            if inner is None:
                inner = self.node_of[group] = LoopBody(group)
                body.add(group, inner, rank)
            body = inner
        body.add(unit, unit, rank)

    def _common_depth(self, first: TensorView, second: TensorView) -> int:
        depth = 0
        for a, b in zip(self.paths[first], self.paths[second], strict=False):
            if a is not b:
                break
            depth += 1
        return depth

    def _read(self, unit: TensorView, consumer: TensorView) -> None:
        # Loops around both beyond those that `unit` shares by its position are loops that compute
        # it: inside of them only a part of its elements is there.
        depth = self._common_depth(unit, consumer)
        if depth > self.forest.shared_depth(unit):
            raise Conflict(
                f"{consumer.name} reads {unit.name} (compute_at_pos "
                f"{self.forest.position[unit]}) inside a loop that still computes {unit.name}"
            )
        self._before(unit, consumer, depth)

    def _overwrite(self, output: TensorView, target: TensorView) -> None:
        """Put the other readers of an input before the output that takes its memory."""
        head = output.siblings[0]
        later = chains.descendants(output)
        for reader in target.consumers:
            first = reader.siblings[0]
            if first in self.paths and head in self.paths and first not in later:
                self._before(first, head, self._common_depth(first, head))

    def _before(self, first: TensorView, second: TensorView, depth: int) -> None:
        # The order is decided in the innermost loop around both: there, what holds the one (a loop
        # or the tensor itself) must stand before what holds the other.
        mine, theirs = self.paths[first], self.paths[second]
        body = self.node_of[mine[depth - 1]] if depth else self.top
        body.edge(
            mine[depth] if depth < len(mine) else first,
            theirs[depth] if depth < len(theirs) else second,
        )


class LoopBody:
    """The loops and tensors in one loop (or in the kernel: `group` is None), in their order."""

    __slots__ = ("_after", "_items", "_keys", "_rank", "_waiting", "group", "launches", "order")

    def __init__(self, group: LoopGroup | None) -> None:
        self.group = group
        self.order: list[LoopBody | TensorView] = []
        self._items: dict[Item, LoopBody | TensorView] = {}
        self._rank: dict[Item, int] = {}
        self._after: dict[Item, dict[Item, None]] = {}
        self._waiting: dict[Item, int] = {}
        self._keys: list[Item] = []
        self.launches: list[int] = []
        """Of the kernel's body: in which launch each item runs, from 0; none where it is one."""

    def add(self, key: Item, item: LoopBody | TensorView, rank: int) -> None:
        """Add an item; `rank` orders items that nothing else orders."""
        self._items[key] = item
        self._rank[key] = rank
        self._waiting[key] = 0

    def edge(self, first: Item, second: Item) -> None:
        """Demand that `first` stands before `second`."""
        after = self._after.setdefault(first, {})
        if second not in after:
            after[second] = None
            self._waiting[second] += 1

    def sort(self) -> None:
        """Put the items into order.

        Raises:
            Conflict: they depend on each other in a circle.
        """
        ready = [
            (self._rank[key], n, key) for n, key in enumerate(self._items) if not self._waiting[key]
        ]
        heapq.heapify(ready)
        count = len(self._items)
        while ready:
            _, _, key = heapq.heappop(ready)
            self.order.append(self._items[key])
            self._keys.append(key)
            for other in self._after.get(key, ()):
                self._waiting[other] -= 1
                if not self._waiting[other]:
                    count += 1
                    heapq.heappush(ready, (self._rank[other], count, other))
        if len(self.order) < len(self._items):
            stuck = sorted(
                {
                    t.name
                    for key, n in self._waiting.items()
                    if n
                    for t in _tensors(self._items[key])
                }
            )
            raise Conflict(
                f"no order of expressions exists: {', '.join(stuck)} depend on each other inside "
                "and outside of the loops that they share"
            )

    def number_launches(self) -> None:
        """Give each item its launch, and put the items into the order of their launches.

        What starts a launch comes in the one after all that it depends on; anything else comes in
        the first one that has all of that.
        """
        level: dict[Item, int] = dict.fromkeys(self._keys, 0)
        for key in self._keys:  # each comes after what it depends on
            heads = (twin for unit in _tensors(self._items[key]) for twin in unit.siblings)
            level[key] += any(tensor.starts_launch for tensor in heads)
            for other in self._after.get(key, ()):
                level[other] = max(level[other], level[key])
        # A stable sort: within a launch the order of before stays, and no item passes one that it
        # depends on, whose launch is not later.
        self._keys.sort(key=lambda key: level[key])
        self.order = [self._items[key] for key in self._keys]
        numbers = {found: n for n, found in enumerate(sorted(set(level.values())))}
        if len(numbers) > 1:
            self.launches = [numbers[level[key]] for key in self._keys]

    def parts(self) -> tuple[LoopBody, ...]:
        """Return the body of each launch, in order; this body where it is one."""
        if not self.launches:
            return (self,)
        made = [LoopBody(None) for _ in range(self.launches[-1] + 1)]
        for item, number in zip(self.order, self.launches, strict=True):
            made[number].order.append(item)
        return tuple(made)

    def walk(self) -> Iterator[TensorView]:
        """Yield the tensors computed in here."""
        for item in self.order or self._items.values():
            if isinstance(item, LoopBody):
                yield from item.walk()
            else:
                yield item


def _tensors(item: LoopBody | TensorView) -> Iterable[TensorView]:
    return item.walk() if isinstance(item, LoopBody) else (item,)
