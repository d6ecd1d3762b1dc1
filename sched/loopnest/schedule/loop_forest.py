"""Which leaf axes share a loop, how the loops nest, and in which order tensors are computed.

Two leaf axes share a loop if and only if producer-consumer pairs connect them in which the
producer's axis lies left of its compute-at position and the root map relates them, or they belong
to outputs of one definition. From this alone `LoopForest` derives groups (one loop each), their
nesting, and an order; where there is none it raises `Conflict`. The schedule layer uses it to
refuse a call, the lowering to build the nest: what is accepted there is what can be lowered here.

Source: rule 33 (groups stay a DAG) is nvFuser's expr_sort; rules 18 and 19 its domain validation.

`Ordering` makes an ordered tree of the loops (rule 33). The groups already nest; what is left is to
order, inside every loop, the loops and tensors that stand in it, so that every tensor comes before
its consumers. A tensor that is still being computed by a loop may not be read in it.

Source: nvFuser's expr_sort merges groups from the innermost loop outward; here the nesting is known
from the groups, and each body is one topological sort.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import permutations
from typing import TypeAlias

from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import ONE
from loopnest.schedule import chains
from loopnest.schedule.fold_order import carries, folded_axes
from loopnest.schedule.replay import match_leaves, reshapes, shared_positions
from loopnest.schedule.root_maps import Match, pairs
from loopnest.tensor.domain import IterDomain, ancestors, transforms_between
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.overlapping_tiles import is_tile_loop, overlaps
from loopnest.tensor.tensor_view import TensorView


class Conflict(Exception):
    """These positions have no loop nest; `reason` names the tensors."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


SEPARATE = "give them separate loops, or keep what is read in LOCAL or SHARED memory"
"""What helps against a `LaunchConflict`."""


class LaunchConflict(Conflict):
    """A tensor would be computed in the loops of one that starts a launch after it."""


ELSEWHERE = "compute it outside of that loop, or give the repetition a loop of its own"
"""What helps against a `MergedRepetition`."""


class MergedRepetition(Conflict):
    """A tensor would be computed in a loop that repeats it, merged with what tells its elements."""


def is_several_launches(fusion: Fusion) -> bool:
    """Whether a tensor starts a launch (`TensorView.new_launch`)."""
    return any(tensor.starts_launch for tensor in fusion.tensors)


class LoopGroup:
    """One loop: the leaf axes that share it, and the loop around it."""

    __slots__ = ("axes", "earliest", "forward", "outer")

    def __init__(self, axis: IterDomain, outer: LoopGroup | None, earliest: int) -> None:
        self.axes = [axis]
        self.earliest = earliest
        self.outer = outer
        self.forward: LoopGroup | None = None

    def find(self) -> LoopGroup:
        """Return the group that this one was united into."""
        group = self
        while group.forward is not None:
            group = group.forward
        if group is not self:
            self.forward = group
        return group

    def enclosing(self) -> LoopGroup | None:
        """Return the group of the loop around this one."""
        return None if self.outer is None else self.outer.find()

    def path(self) -> tuple[LoopGroup, ...]:
        """Return the groups from the outermost loop to this one."""
        result: list[LoopGroup] = []
        group: LoopGroup | None = self.find()
        while group is not None:
            result.append(group)
            group = group.enclosing()
        return tuple(reversed(result))


class RootClass:
    """Root axes that stand for one axis of the math inside shared loops (rules 18 to 20)."""

    __slots__ = ("_concrete", "derived", "forward", "members")

    def __init__(self, tensor: TensorView, axis: IterDomain) -> None:
        self.members: dict[tuple[TensorView, bool], IterDomain] = {
            (tensor, axis in tensor.domain.root): axis
        }
        self.forward: RootClass | None = None
        self._concrete = axis
        definition = tensor.definition
        folds = definition is not None and definition.reducer is not None
        self.derived = axis if folds and axis.definition is not None else None
        """A member that a factored reduction made from others, if there is one."""

    def find(self) -> RootClass:
        """Return the class that this one was united into."""
        found = self
        while found.forward is not None:
            found = found.forward
        return found

    def absorb(self, other: RootClass) -> None:
        """Take the members of `other`, which is this class from now on."""
        self.members.update(other.members)
        if self._concrete.is_broadcast:
            self._concrete = other._concrete
        if self.derived is None:
            self.derived = other.derived
        other.forward = self

    def concrete(self) -> IterDomain:
        """Return a member that is no broadcast, if there is one; else a broadcast (rule 20)."""
        return self._concrete


_FEW = 16
"""So many tensors of a loop are looked at for one that is computed by it, and of what follows from
these: a look that finds nothing is followed by a check of the whole."""


class LoopForest:
    """Loop groups of all live tensors of a fusion under given compute-at positions.

    Args:
        fusion: whose tensors.
        positions: compute-at positions that stand in for the tensors' own.
        units: what to place, producers before consumers; by default all (`units_of`).
        earliest: for leaf axes, the place in program order of the first tensor that is known to
            share their loop although it is not placed yet (see `joins_plainly`).
    """

    def __init__(
        self,
        fusion: Fusion,
        positions: Mapping[TensorView, int] | None = None,
        units: Iterable[TensorView] | None = None,
        earliest: Mapping[IterDomain, int] | None = None,
    ) -> None:
        self.fusion = fusion
        self.group_of: dict[IterDomain, LoopGroup] = {}
        self.class_of: dict[IterDomain, RootClass] = {}
        self.position: dict[TensorView, int] = {}
        self._earliest = earliest or {}
        self.units = self.units_of(fusion) if units is None else tuple(units)
        override = positions or {}
        # Consumers first: a producer joins the loops that its consumers have.
        for unit in reversed(self.units):
            self.place(unit, override.get(unit, unit.compute_at_pos))
        self._unite_around_tiles()

    @staticmethod
    def units_of(fusion: Fusion) -> tuple[TensorView, ...]:
        """Return the first output of each live definition, producers before consumers."""
        live = fusion.live()
        return tuple(
            [t for t in fusion.topological() if t in live and not t.is_input and t.siblings[0] is t]
        )

    # Groups

    def joins_plainly(self, unit: TensorView, pos: int, rank: int) -> bool | None:
        """Say whether `unit`, whose consumers are placed, may be placed at `pos`.

        True: its consumers share those loops already, and no tensor before it (place `rank` in
        program order) will turn up in one of them, so that an order is kept. None: it takes a
        check of the whole.
        """
        start = unit.compute_at_pos
        # Steps of a scan have an order that loops inside may break, and a tensor that passes
        # between launches may need its loops in the earlier one.
        if carries(unit) or (unit.memory is Memory.GLOBAL and is_several_launches(self.fusion)):
            return None
        if len(unit.siblings) > 1 or unit.produced_at_pos > start:
            return None
        if overlaps(unit.domain.history):  # what lies around a tile is asked of all of its readers
            return None
        consumers = [c for c in unit.consumers if c in self.position]
        if any(reshapes(c) for c in consumers):
            return None
        for place in range(pos):
            groups = {self.find(self._consumer_axis(unit, c, place)) for c in consumers}
            # A tensor in front of `unit` that lies in this loop may lead to it by way of one
            # outside, which the loop would then have to precede and to follow (rule 33).
            if len(groups) > 1 or (place >= start and groups.pop().earliest < rank):
                return None
        return True if self._roots_agree(unit, consumers, pos) else None

    def parts_a_fold(self, unit: TensorView, pos: int) -> bool:
        """Whether placing `unit` at `pos` makes one loop of two that surely cannot be one.

        One of them computes a tensor that is read in the other: a sum, say, and what is divided by
        it. A look at the loops that the placed consumers of `unit` have; where it is false, there
        may be another conflict.
        """
        reads = [(t, c) for t in unit.siblings for c in t.consumers if c in self.position]
        for place in range(unit.compute_at_pos, pos):
            groups = {self.find(self._consumer_axis(t, c, place)): None for t, c in reads}
            if any(self._computes_what_is_read_in(a, b) for a, b in permutations(groups, 2)):
                return True
        return False

    def _computes_what_is_read_in(self, group: LoopGroup, other: LoopGroup) -> bool:
        """Whether what is computed by one loop is needed in the other, directly or by others.

        It is there behind the loop only, and so is all that follows from it.
        """
        waiting: list[TensorView] = []
        for axis in group.axes[:_FEW]:
            tensor = axis.owner
            if not isinstance(tensor, TensorView) or tensor not in self.position:
                continue
            if axis in tensor.domain.leaf[self.position[tensor] :]:
                waiting.append(tensor)
        inside = {axis.owner for axis in other.axes}
        seen = set(waiting)
        for tensor in waiting:  # which grows: nearest first
            for consumer in tensor.consumers:
                if consumer in self.position and consumer not in seen:
                    if consumer in inside:
                        return True
                    seen.add(consumer)
                    if len(waiting) < 2 * _FEW:
                        waiting.append(consumer)
        return False

    def earliest(self) -> dict[IterDomain, int]:
        """Return for each leaf axis the place in program order of the first sharer of its loop."""
        first: dict[LoopGroup, int] = {}
        for rank, unit in enumerate(self.units):
            for axis in unit.domain.leaf:
                first.setdefault(self.find(axis), rank)
        return {axis: first[group.find()] for axis, group in self.group_of.items()}

    def _roots_agree(self, unit: TensorView, consumers: list[TensorView], pos: int) -> bool:
        needed = ancestors(unit.domain.leaf[:pos], unit.domain)
        seen: dict[RootClass, IterDomain] = {}
        for consumer in consumers:
            for mine, theirs in pairs(unit, consumer):
                if mine in needed:
                    found = self._class(consumer, theirs)
                    if seen.setdefault(found, mine) is not mine:
                        return False
        return len(set(seen.values())) == len(seen)

    def place(self, unit: TensorView, pos: int) -> None:
        """Give `unit` its loops, the leading `pos` of them shared with its placed consumers.

        Raises:
            Conflict: the consumers' loops cannot be one.
        """
        outer: LoopGroup | None = None
        siblings = unit.siblings
        reads = self._placed_readers(siblings) if pos else []
        for place, axis in enumerate(unit.domain.leaf):
            if place < pos:
                outer = self._share(unit, reads, place)
            else:
                outer = self._new_group(axis, outer)
            for twin in siblings[1:]:
                self._join(twin.domain.leaf[place], outer)
        for twin in siblings[1:]:
            self._unite_twins(unit, twin)
        for twin in siblings:
            self.position[twin] = pos
        for match, twin, consumer in reads:
            # One axis of the math may not be used two ways inside shared loops.
            for mine, theirs in match.equal_above(pos):
                self._unite_class(twin, mine, consumer, theirs)

    def _placed_readers(
        self, siblings: Iterable[TensorView]
    ) -> list[tuple[Match, TensorView, TensorView]]:
        """Return the placed consumers of tensors, each with what it reads and their match."""
        return [
            (match_leaves(twin, consumer), twin, consumer)
            for twin in siblings
            for consumer in twin.consumers
            if consumer in self.position
        ]

    def _new_group(self, axis: IterDomain, outer: LoopGroup | None) -> LoopGroup:
        group = LoopGroup(axis, outer, self._earliest.get(axis, 0))
        self.group_of[axis] = group
        return group

    def _join(self, axis: IterDomain, group: LoopGroup) -> None:
        group.axes.append(axis)
        group.earliest = min(group.earliest, self._earliest.get(axis, 0))
        self.group_of[axis] = group

    def _share(
        self,
        unit: TensorView,
        reads: Iterable[tuple[Match, TensorView, TensorView]],
        place: int,
    ) -> LoopGroup:
        group: LoopGroup | None = None
        for match, twin, consumer in reads:
            positions = match.shared_positions()
            if place >= len(positions):
                raise _short_of_axes(twin, consumer, place, len(positions))
            theirs = consumer.domain.leaf[positions[place]]
            if theirs in match.restored and not self._keeps(consumer, theirs, positions[place]):
                raise _repeated(twin, consumer, place)
            found = self.find(theirs)
            group = found if group is None else self._unite(group, found, unit)
        assert group is not None
        self._join(unit.domain.leaf[place], group)
        return group

    def _keeps(self, tensor: TensorView, axis: IterDomain, place: int) -> bool:
        """Whether the loop at `place` of a tensor tells the index of `axis`, which it was made of.

        It does not where a consumer that shares the loop repeats the tensor below a split: the loop
        then runs over parts of (element, repetition).
        """
        if place >= self.position[tensor]:
            return True
        for match, twin, consumer in self._placed_readers((tensor,)):
            image = match.image.get(axis)
            if image is None or not match.repeated.isdisjoint(ancestors((axis,), twin.domain)):
                return False
            if not self._keeps(consumer, image, match.shared_positions()[place]):
                return False
        return True

    def _consumer_axis(self, producer: TensorView, consumer: TensorView, place: int) -> IterDomain:
        positions = shared_positions(producer, consumer)
        if place >= len(positions):
            raise _short_of_axes(producer, consumer, place, len(positions))
        return consumer.domain.leaf[positions[place]]

    def find(self, axis: IterDomain) -> LoopGroup:
        """Return the loop group of a leaf axis."""
        return self.group_of[axis].find()

    def _unite(self, a: LoopGroup, b: LoopGroup, unit: TensorView) -> LoopGroup:
        if a is b:
            return a
        # Two loops become one. What encloses either must enclose both, so the enclosing loops must
        # lie on one path; and a loop cannot come to lie inside itself.
        # The smaller joins the larger, so that n axes are moved at most log n times each.
        keep, drop = (a, b) if len(a.axes) >= len(b.axes) else (b, a)
        outer = self._inner_most(keep.enclosing(), drop.enclosing(), unit)
        if outer is not None and not {keep, drop}.isdisjoint(outer.path()):
            raise self._tangled(unit)
        keep.axes.extend(drop.axes)
        keep.earliest = min(keep.earliest, drop.earliest)
        drop.forward = keep
        keep.outer = outer
        return keep

    def _inner_most(
        self, a: LoopGroup | None, b: LoopGroup | None, unit: TensorView
    ) -> LoopGroup | None:
        """Return the inner one of two loops, one of which must enclose the other."""
        if a is b or b is None:
            return a
        if a is None or a in b.path():
            return b
        if b in a.path():
            return a
        raise self._tangled(unit)

    def _tangled(self, unit: TensorView) -> Conflict:
        names = ", ".join(c.name for t in unit.siblings for c in t.consumers)
        return Conflict(
            f"{unit.name} would share loops with its consumers {names}, but these run inside of "
            "different loops"
        )

    # Root axes

    def _unite_twins(self, unit: TensorView, twin: TensorView) -> None:
        """Take the axes of two outputs of one definition, which share every loop, as one."""
        levels = ((unit.domain.root, twin.domain.root), (unit.domain.rfactor, twin.domain.rfactor))
        for mine, theirs in levels:
            for a, b in zip(mine, theirs, strict=True):
                self._unite_class(unit, a, twin, b)

    def _unite_around_tiles(self) -> None:
        """Take the axes of the tensors whose windows share a loop as one.

        No axis of what they read joins them: that is computed in tiles.

        Raises:
            Conflict: their loops are made in different ways, or of different extents.
        """
        tiled = [
            unit.domain.leaf[place]
            for unit in self.units
            for place in range(self.position[unit])
            if is_tile_loop(unit.domain.leaf[place])
        ]
        if not tiled:
            return
        owner = {a: t for unit in self.units for t in unit.siblings for a in t.domain.leaf}
        for group in dict.fromkeys([self.find(axis) for axis in tiled]):
            found = [a for a in group.axes if not is_tile_loop(a) and not a.is_broadcast]
            for axis in found[1:]:
                self._unite_behind(owner[found[0]], found[0], owner[axis], axis)

    def _unite_behind(
        self, one: TensorView, mine: IterDomain, other: TensorView, theirs: IterDomain
    ) -> None:
        """Unite the root axes that two axes in one loop were made from."""
        a, b = mine.definition, theirs.definition
        top = mine in one.domain.root or theirs in other.domain.root
        if top or a is None or b is None or is_tile_loop(mine):
            if mine in one.domain.root and theirs in other.domain.root:
                self._unite_class(one, mine, other, theirs)
            elif not self._made_alike(one, mine, other, theirs):
                raise self._of_windows(one, other)
        elif a.key != b.key or len(a.inputs) != len(b.inputs):
            if not self._made_alike(one, mine, other, theirs):
                raise self._of_windows(one, other)
        else:
            for x, y in zip(a.inputs, b.inputs, strict=True):
                self._unite_behind(one, x, other, y)

    def _made_alike(
        self, one: TensorView, mine: IterDomain, other: TensorView, theirs: IterDomain
    ) -> bool:
        """Whether two axes follow from the same classes already (one merged with more)."""
        above = [
            {self._class(t, a) for a in ancestors((axis,), t.domain) if a in t.domain.root}
            for t, axis in ((one, mine), (other, theirs))
        ]
        return not above[0].isdisjoint(above[1])

    @staticmethod
    def _of_windows(one: TensorView, other: TensorView) -> Conflict:
        return Conflict(
            f"{one.name} and {other.name} read windows along a loop that they would share, but "
            "each splits it in another way"
        )

    def _class(self, tensor: TensorView, axis: IterDomain) -> RootClass:
        found = self.class_of.get(axis)
        if found is None:
            found = self.class_of[axis] = RootClass(tensor, axis)
        return found.find()

    def _unite_class(
        self, producer: TensorView, mine: IterDomain, consumer: TensorView, theirs: IterDomain
    ) -> None:
        a, b = self._class(producer, mine), self._class(consumer, theirs)
        if a is b:
            return
        if len(a.members) < len(b.members):
            a, b = b, a
        # A class holds at most one axis of a tensor at each level: two would be one loop index, and
        # only the diagonal of the tensor would be computed (rule 18).
        for key, axis in b.members.items():
            other = a.members.get(key)
            if other is not None and other is not axis:
                raise Conflict(
                    f"{producer.name} is used two ways inside the shared loops: they would make "
                    f"two axes of {key[0].name} one"
                )
        # The shared loop runs over the concrete extent; two of them in one loop must be equal
        # (rule 19).
        one, two = a.concrete(), b.concrete()
        different = not self.fusion.algebra.equal(one.size, two.size)
        if not one.is_broadcast and not two.is_broadcast and different:
            raise Conflict(
                f"a broadcast axis of {producer.name} would have the extents {one.size} and "
                f"{two.size} in one loop, which are not known to be equal"
            )
        a.absorb(b)

    # Nesting and order

    def path(self, unit: TensorView) -> tuple[LoopGroup, ...]:
        """Return the loops around the computation of `unit`, outermost first."""
        leaf = unit.domain.leaf
        return self.find(leaf[-1]).path() if leaf else ()

    def shared_depth(self, unit: TensorView) -> int:
        """Return how many loops around `unit` it shares with its consumers."""
        pos = self.position[unit]
        return len(self.find(unit.domain.leaf[pos - 1]).path()) if pos else 0

    def check(self) -> None:
        """Check that an order of the tensors exists, and that scans go on step by step.

        Raises:
            Conflict: it does not, or a loop that a scan lacks runs inside of it.
        """
        for unit in self.units:
            if carries(unit):
                self._check_scan(unit)
        Ordering(self, overwrites=False).run()

    def _check_scan(self, unit: TensorView) -> None:
        path = self.path(unit)
        own = {self.find(axis) for axis in unit.domain.leaf if axis.size is not ONE}
        first = min([path.index(self.find(axis)) for axis in folded_axes(unit)])
        for group in path[first:]:
            if group not in own and any(axis.size is not ONE for axis in group.axes):
                raise Conflict(
                    f"{unit.name} is a scan, and a loop of extent {group.axes[0].size} inside of "
                    "it, which it does not have, would take each step again"
                )
        held = {self.class_of[a].find() for a in unit.domain.root if a in self.class_of}
        for group in path[first:]:
            lacking = self._lacking(group, held)
            if lacking is not None:
                raise MergedRepetition(
                    f"{unit.name} is a scan, and a loop that it would share is merged with an axis "
                    f"of extent {lacking.size}, which it does not have: it would take each step "
                    "again"
                )

    def _lacking(self, group: LoopGroup, held: Collection[RootClass]) -> IterDomain | None:
        """Return an axis that a loop runs over and none of `held` is, None if there is none.

        Behind a reshape that is left to lowering: its axes are other axes of the math.
        """
        if any(map(reshapes, self.units)):
            return None
        for axis in group.axes:
            for root in (a for step in transforms_between((), (axis,)) for a in step.inputs):
                found = self.class_of.get(root)
                if found is not None and not root.is_broadcast and found.find() not in held:
                    return root
        return None

    def order(self) -> LoopBody:
        """Return the loop nest as an ordered tree, readers of an input before its overwrite.

        Where no order keeps them before it, that is left to the check of in-place outputs.

        Raises:
            Conflict: the positions have no order, or a tensor would be read inside a loop that
                still computes it.
        """
        if self.fusion.inplace:
            try:
                return Ordering(self, overwrites=True).run()
            except Conflict:
                pass
        return Ordering(self, overwrites=False).run()


def _repeated(producer: TensorView, consumer: TensorView, place: int) -> MergedRepetition:
    return MergedRepetition(
        f"loop {place} of {producer.name} is an axis that the reshape {consumer.name} took and a "
        f"split makes again, but in the loops around {consumer.name} its elements are repeated "
        "before that split"
    )


def _short_of_axes(producer: TensorView, consumer: TensorView, place: int, count: int) -> Conflict:
    return Conflict(
        f"{producer.name} shares {place + 1} loops with {consumer.name}, "
        f"but only {count} of their leading axes correspond"
    )


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
