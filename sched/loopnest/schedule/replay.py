"""Replay: give one tensor the leading loops of a neighbour (replayPasC, replayCasP).

Both directions are one traversal. The *source* has the loops that are wanted; the *target* gets
them. Starting from the root axes that the two share, the source's transforms that its leading
axes need are followed in order; where the target already has the same step on the same axes it is
reused, elsewhere the target's own step gives way and the source's is replayed.

An axis that one side lacks is a broadcast there (or a reduction that the consumer does not see):
a merge with such an axis *carries* its other input through (rule 26). So does one with an axis of
the consumer that a window of the producer's axes takes the place of; the producer's own axis is
none that the consumer lacks, and nothing that is made of it has an image.

Source: the algorithm follows nvFuser's TransformReplay and BestEffortReplay (csarofeen/pytorch
torch/csrc/jit/codegen/cuda/transform_replay.cpp), whose order of the replayed domain is rule 3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from loopnest.fast_init import fast_init
from loopnest.scalar.simplify import Simplifier
from loopnest.schedule.read_footprints import loops_of_tiles
from loopnest.schedule.root_maps import pairs, windowed
from loopnest.schedule.transaction import PrimitiveRefused
from loopnest.tensor.domain import (
    IterDomain,
    TensorDomain,
    Transform,
    ancestors,
    same_axes,
)
from loopnest.tensor.overlapping_tiles import Overlap, overlaps
from loopnest.tensor.tensor_view import TensorView


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class LeadingReplay:
    """A domain that was replayed as a neighbour's.

    Args:
        domain: with the neighbour's axes in front.
        places: which leading axes of the neighbour those are.
        exact: the places of those that stand for the same points: no merge was carried.
        pos: how many leading axes of the neighbour were replayed.
    """

    domain: TensorDomain
    places: tuple[int, ...]
    exact: frozenset[int]
    pos: int

    def up_to(self, pos: int) -> LeadingReplay:
        """Return the replay of `domain` up to an earlier position: itself, with fewer loops."""
        if pos == self.pos:
            return self
        places = tuple([place for place in self.places if place < pos])
        exact = frozenset([place for place in self.exact if place < pos])
        return LeadingReplay(self.domain, places, exact, pos)


class Match:
    """A correspondence from axes of a source domain to axes of a target domain.

    `image` maps source axes to target axes; `absent` holds source axes that the target lacks;
    `exact` holds the source axes whose image stands for the same points (no merge was carried).
    `name` is the tensor that refusals speak of; `reshapes` whether it is a reshape. Axes in
    `opaque` the target neither lacks nor has. Without `tiles` steps to tiles with halo are not
    replayed: what those need, their producers have. A merge with one of `units`, source axes that
    have one element wherever their loops run, is carried and stands for the same points. With
    `twins`, outputs of one definition, loops that only repeat the source repeat the target, too.
    Axes in `repeated` are broadcasts of the source that the target has elements along; those in
    `restored` are an earlier axis of the target again, behind a reshape.
    """

    def __init__(
        self,
        source: TensorDomain,
        target: TensorDomain,
        seed: Mapping[IterDomain, IterDomain],
        start: Iterable[IterDomain],
        algebra: Simplifier,
        wanted: set[IterDomain] | None = None,
        name: str = "",
        opaque: Collection[IterDomain] = (),
        *,
        reshapes: bool = False,
        tiles: bool = True,
        units: Collection[IterDomain] = (),
        twins: bool = False,
    ) -> None:
        self.source, self.target, self.tiles, self.units = source, target, tiles, units
        self.twins = twins
        self.wanted, self.name, self.reshapes = wanted, name, reshapes
        self.image: dict[IterDomain, IterDomain] = {}
        self.absent: set[IterDomain] = set()
        self.exact: set[IterDomain] = set()
        self.dropped: set[Transform] = set()
        self.added: list[Transform] = []
        self._positions: tuple[int, ...] | None = None
        self._equal: Collection[tuple[IterDomain, IterDomain]] = seed.items()
        self._equal_above: dict[int, tuple[tuple[IterDomain, IterDomain], ...]] = {}
        self.algebra = algebra
        self.same = same_axes(source, algebra)
        restored = same_axes(target, algebra)
        self.restored: Collection[IterDomain] = restored.keys()
        self._latest = {b: a for a, b in restored.items()}
        self.repeated = {a for a, b in seed.items() if a.is_broadcast and not b.is_broadcast}
        for axis in start:
            if wanted is not None and axis not in wanted:
                continue
            if axis in seed:
                self.image[axis] = self._latest.get(seed[axis], seed[axis])
                if axis.is_broadcast == seed[axis].is_broadcast:
                    self.exact.add(axis)
            elif axis not in opaque:
                self.absent.add(axis)
        self._target_absent = self._spread_absence(set(seed.values()))

    def _spread_absence(self, mapped: set[IterDomain]) -> set[IterDomain]:
        begin = {*self.target.root, *self.target.rfactor}
        absent = {axis for axis in begin if axis not in mapped and axis.is_broadcast}
        for step in self.target.history:
            if step.inputs and all(axis in absent for axis in step.inputs):
                absent.update(step.outputs)
        return absent

    def settle(self, axis: IterDomain) -> IterDomain:
        """Follow the target's merges of `axis` with axes that the source lacks."""
        while True:
            step = self.target.uses.get(axis)
            if step is None or step in self.dropped:
                return axis
            present = [other not in self._target_absent for other in step.inputs]
            if all(present):
                return axis
            carried = step.carries(present).get(step.inputs.index(axis))
            if carried is None:
                return axis
            axis = step.outputs[carried]

    def follow(self, *, replays: bool = False) -> Match:
        """Extend the image along the source's history.

        With `replays` the steps that the target lacks are replayed on it (and its own give way);
        without it, the correspondence ends there.
        """
        for step in self.source.history:
            if self.wanted is not None and self.wanted.isdisjoint(step.outputs):
                continue
            if self._again(step):
                continue
            if not step.inputs and self.twins:
                self._repeat(step)
                continue
            present = [axis in self.image for axis in step.inputs]
            if not all(axis in self.image or axis in self.absent for axis in step.inputs):
                continue
            if not any(present):
                self.absent.update(step.outputs)
            elif all(present):
                self._both(step, replays=replays)
            else:
                self._carry(step, present)
        return self

    def _repeat(self, step: Transform) -> None:
        """Give the target loops that only repeat it, as the source has them."""
        known = [own for own in self.target.history if not own.inputs and own.key == step.key]
        own = next((own for own in known if own not in self.dropped), None)
        if own is None:
            own = step.replay((), self.algebra)
            self.added.append(own)
        self.image.update(zip(step.outputs, own.outputs, strict=True))

    def _again(self, step: Transform) -> bool:
        """Take the outputs of a step for the earlier axes that they are, where these are known."""
        handled = False
        for axis in step.outputs:
            earlier = self.same.get(axis)
            if earlier in self.image:
                assert earlier is not None
                self.image[axis] = self.image[earlier]
                if earlier in self.exact:
                    self.exact.add(axis)
                handled = True
            elif earlier in self.absent:
                self.absent.add(axis)
                handled = True
        return handled

    def shared_positions(self) -> tuple[int, ...]:
        """Return the places of leading target leaves; see the function of this name."""
        if self._positions is None:
            self._positions = tuple(self._walk_leaves())
        return self._positions

    def equal_above(self, pos: int) -> tuple[tuple[IterDomain, IterDomain], ...]:
        """Return the equal axes that the leading `pos` leaves of the source are made from."""
        if pos not in self._equal_above:
            needed = ancestors(self.source.leaf[:pos], self.source)
            self._equal_above[pos] = tuple([pair for pair in self._equal if pair[0] in needed])
        return self._equal_above[pos]

    def take(self, loops: Mapping[IterDomain, IterDomain]) -> None:
        """Extend the image by loops of the target that the source's tiles follow from."""
        self.image.update(loops)
        self._positions = None

    def walk_tiles(self, loops: Collection[IterDomain]) -> dict[IterDomain, IterDomain]:
        """Return the leaves of the target that stand where those of the source in `loops` do."""
        found: dict[IterDomain, IterDomain] = {}
        list(self._walk_leaves(loops, found))
        return found

    def _walk_leaves(
        self,
        loops: Collection[IterDomain] = (),
        found: dict[IterDomain, IterDomain] | None = None,
    ) -> Iterator[int]:
        leaf, lacked = self.target.leaf, self._target_absent
        place = 0
        for axis in self.source.leaf:
            image = self.image.get(axis)
            if image is None and axis in loops and found is not None:
                while place < len(leaf) and leaf[place] in lacked:
                    place += 1
                if place == len(leaf):
                    return
                found[axis] = image = leaf[place]
            if image is None or axis.is_reduction:
                return
            image = self.settle(image)
            while place < len(leaf) and leaf[place] is not image and leaf[place] in lacked:
                place += 1
            if place == len(leaf) or leaf[place] is not image:
                return
            yield place
            place += 1

    def _carry(self, step: Transform, present: list[bool]) -> None:
        carried = step.carries(present)
        units = all(axis in self.image or axis in self.units for axis in step.inputs)
        for position, output in carried.items():
            self.image[step.outputs[output]] = self.image[step.inputs[position]]
            if units and step.inputs[position] in self.exact:
                self.exact.add(step.outputs[output])
        self.absent.update(axis for axis in step.outputs if axis not in self.image)

    def _both(self, step: Transform, *, replays: bool) -> None:
        direct = [self.image[axis] for axis in step.inputs]
        images = [self.settle(axis) for axis in direct]
        own = self.target.uses.get(images[0])
        same = (
            own is not None
            and own not in self.dropped
            and own.key == step.key
            and own.inputs == tuple(images)
        )
        if not same:
            if not replays or (isinstance(step, Overlap) and not self.tiles):
                return
            if not step.accepts(images):
                raise PrimitiveRefused(
                    f"a {step.describe()} of these loops would join iteration and reduction axes "
                    f"of {self.name}",
                    "an iteration axis merges with iteration or broadcast axes only",
                )
            # An axis has one use in a domain: where the source's step stands, the target's own
            # cannot.
            for axis in images:
                self.drop_use(axis)
            own = step.replay(images, self.algebra)
            self.added.append(own)
        assert own is not None
        # Past a merge that `settle` followed, an image stands for more points than the source's
        # axis.
        exact = images == direct and all(axis in self.exact for axis in step.inputs)
        for axis, image in zip(step.outputs, own.outputs, strict=True):
            self.image[axis] = self._latest.get(image, image)
            if exact:
                self.exact.add(axis)

    def drop_use(self, axis: IterDomain) -> None:
        """Let the target's own step on `axis` give way, and all that follows it.

        Raises:
            Refusal: the step lies between root and rfactor domain.
        """
        step = self.target.uses.get(axis)
        if step is None or step in self.dropped:
            return
        self.dropped.add(step)
        for output in step.outputs:
            if output in self.target.rfactor and self.reshapes:
                raise PrimitiveRefused(
                    f"the loops cannot cross the reshape {self.name}: its {step.describe()} would "
                    "have to give way",
                    f"take loops over axes that {self.name} does not reshape, or split and merge "
                    "them as it does",
                )
            if output in self.target.rfactor:
                raise PrimitiveRefused(
                    f"the rfactor domain of {self.name} was made by a {step.describe()} that would "
                    "have to give way",
                    "call compute_at before rfactor, or split the consumer alike",
                )
            self.drop_use(output)


def leading_images(match: Match, pos: int) -> dict[IterDomain, int]:
    """Return the target's axes for the source's `pos` leading ones, and the places of these."""
    prefix: dict[IterDomain, int] = {}
    for place, axis in enumerate(match.source.leaf[:pos]):
        image = match.image.get(axis)
        if image is not None:
            image = match.settle(image)
            match.drop_use(image)
            prefix.setdefault(image, place)
    return prefix


def exact_places(match: Match, prefix: Mapping[IterDomain, int]) -> frozenset[int]:
    """Return the places of the source's axes that the target has as they are: none was carried."""
    leaf = match.source.leaf
    return frozenset(
        place
        for axis, place in prefix.items()
        if leaf[place] in match.exact and match.image[leaf[place]] is axis
    )


def assemble(match: Match, pos: int, prefix: Collection[IterDomain]) -> TensorDomain:
    """Return the target with `prefix` in front (order: rule 3).

    What the source has behind `pos` comes next; beside a tile, what was made of an axis stands
    where that stood.
    """
    source, target = match.source, match.target
    if not match.added and not match.dropped and target.leaf[: len(prefix)] == tuple(prefix):
        return target  # in place already: what lies behind keeps its order
    live = [step for step in target.history if step not in match.dropped] + match.added
    nodes = dict.fromkeys(target.root)
    nodes.update(dict.fromkeys(axis for step in live for axis in step.outputs))
    for step in live:
        for axis in step.inputs:
            nodes.pop(axis, None)
    order = dict.fromkeys(prefix)
    others = (match.image[axis] for axis in source.leaf[pos:] if axis in match.image)
    behind = _in_place(target, nodes) if overlaps(live) else (*others, *target.leaf)
    for axis in (*behind, *nodes):
        if axis in nodes:
            order.setdefault(axis)
    leaf = tuple(order)
    return target if leaf == target.leaf else target.with_leaf(leaf)


def _in_place(target: TensorDomain, nodes: Iterable[IterDomain]) -> Iterator[IterDomain]:
    """Yield the leaves of `target`, for those that gave way what was made of the same axes."""
    made = {axis: ancestors((axis,), target) & {*target.root, *target.rfactor} for axis in nodes}
    for axis in target.leaf:
        if axis in made:
            yield axis
        else:
            above = ancestors((axis,), target)
            yield from (node for node, sources in made.items() if not above.isdisjoint(sources))


def needed(domain: TensorDomain, pos: int) -> set[IterDomain]:
    """Return the axes that the leading `pos` loops follow from, those of their tiles included."""
    found = ancestors(domain.leaf[:pos], domain)
    for step in reversed(overlaps(domain.history)):
        if not found.isdisjoint(step.outputs):
            found.update(*(ancestors((axis,), domain) for axis in step.inputs))
    return found


def reshapes(tensor: TensorView) -> bool:
    """Whether a tensor is a reshape: splits and merges lead from its root to its rfactor domain."""
    definition, domain = tensor.definition, tensor.domain
    folds = definition is not None and definition.reducer is not None
    return domain.rfactor is not domain.root and not folds


def _wanted(
    leaf: Iterable[IterDomain], source: TensorDomain, same: Mapping[IterDomain, IterDomain]
) -> set[IterDomain]:
    """Return `leaf` and the axes that it was made from, by way of the earlier ones of `same`."""
    if not same:
        return ancestors(leaf, source)
    found: set[IterDomain] = set()
    stop, stack = set(source.root), list(leaf)
    while stack:
        axis = stack.pop()
        if axis in found:
            continue
        found.add(axis)
        if axis in same:
            stack.append(same[axis])
        elif axis.definition is not None and axis not in stop:
            stack.extend(axis.definition.inputs)
    return found


def _replay(
    source: TensorDomain,
    target: TensorDomain,
    seed: Mapping[IterDomain, IterDomain],
    start: Iterable[IterDomain],
    pos: int,
    tensor: TensorView,
    opaque: Collection[IterDomain] = (),
    *,
    tiles: bool = True,
    twins: bool = False,
) -> LeadingReplay:
    fusion = tensor.fusion
    algebra, known = fusion.algebra, fusion.matches
    done = known.get((tensor, source, target, fusion.version))
    if isinstance(done, LeadingReplay) and pos <= done.pos:
        return done.up_to(pos)
    same = same_axes(source, algebra)
    wanted = _wanted(source.leaf[:pos], source, same) if same else needed(source, pos)
    match = Match(
        source, target, seed, start, algebra, wanted, tensor.name, opaque,
        reshapes=reshapes(tensor), tiles=tiles, units=tensor.fusion.order.unit_axes, twins=twins,
    )  # fmt: skip
    prefix = leading_images(match.follow(replays=True), pos)
    domain = assemble(match, pos, prefix)
    found = LeadingReplay(domain, tuple(prefix.values()), exact_places(match, prefix), pos)
    # What was replayed has the source's steps, and is found as it is by a replay up to there. Not
    # across a reshape or a tile with halo, where steps are known by other axes.
    if not (twins or same or match.reshapes or overlaps(source.history)):
        known[tensor, source, domain, fusion.version] = found
    return found


def producer_as_consumer(
    producer: TensorView, consumer: TensorView, domain: TensorDomain, pos: int
) -> LeadingReplay:
    """Return `producer`'s domain replayed as `domain`, that of its direct consumer, left of pos.

    Windows are not crossed: `schedule.overlap` does that.
    """
    seed = {c: p for p, c in pairs(producer, consumer)}
    return _replay(domain, producer.domain, seed, domain.root, pos, producer)


def consumer_as_producer(
    consumer: TensorView, producer: TensorView, domain: TensorDomain, pos: int
) -> LeadingReplay:
    """Return `consumer`'s domain replayed as `domain`, that of its direct producer, left of pos."""
    seed = dict(pairs(producer, consumer))
    opaque = windowed(producer, consumer)
    return _replay(
        domain, consumer.domain, seed, domain.rfactor, pos, consumer, opaque, tiles=False
    )


def mirror(domain: TensorDomain, sibling: TensorView) -> TensorDomain:
    """Return the domain of `sibling` (another output of one definition) with `domain`'s loops."""
    target = sibling.domain
    seed = dict(zip(domain.rfactor, target.rfactor, strict=True))
    replayed = _replay(
        domain, target, seed, domain.rfactor, len(domain.leaf), sibling, twins=True
    ).domain
    for axis, twin in zip(domain.leaf, replayed.leaf, strict=True):
        twin.parallel, twin.pinned = axis.parallel, axis.pinned
    return replayed


def match_leaves(producer: TensorView, consumer: TensorView) -> Match:
    """Return the correspondence from axes of `producer` to axes of its direct consumer.

    It is made once for each pair of domains, which are immutable; treat it as read-only.
    """
    known = producer.fusion.matches
    key = (producer.domain, consumer.domain)
    found = known.get(key)
    if not isinstance(found, Match):
        seed = dict(pairs(producer, consumer))
        found = Match(
            producer.domain, consumer.domain, seed, producer.domain.rfactor,
            producer.fusion.algebra, opaque=windowed(producer, consumer),
        ).follow()  # fmt: skip
        tiles = overlaps(producer.domain.history)
        if tiles:  # its loops are those in the same places, where they fit
            steps = [s for s in tiles if found.image.keys().isdisjoint(s.outer)]
            loops = found.walk_tiles([axis for step in steps for axis in step.outer])
            found.take(loops_of_tiles(steps, loops, producer, consumer))
        known[key] = found
    return found


def shared_positions(producer: TensorView, consumer: TensorView) -> tuple[int, ...]:
    """Return, for the leading axes of `producer` that can share loops, the consumer's positions.

    The two leaf domains are walked in step; a consumer axis is passed over only where the producer
    lacks it (an inserted broadcast, rule 25). The walk ends at a reduction axis of the producer
    (rule 22), and at the first pair that does not correspond.
    """
    return match_leaves(producer, consumer).shared_positions()
