"""How the axes of a producer and of its direct consumer correspond (rules 16 to 20).

Replay follows and extends the correspondence. It is one traversal, in both directions. The *source*
has the loops that are wanted; the *target* gets them. Starting from the root axes that the two
share, the source's transforms that its leading axes need are followed in order; where the target
already has the same step on the same axes it is reused, elsewhere the target's own step gives way
and the source's is replayed.

An axis that one side lacks is a broadcast there (or a reduction that the consumer does not see):
a merge with such an axis *carries* its other input through (rule 26). So does one with an axis of
the consumer that a window of the producer's axes takes the place of; the producer's own axis is
none that the consumer lacks, and nothing that is made of it has an image.

Source: nvFuser's BestEffortReplay (csarofeen/pytorch
torch/csrc/jit/codegen/cuda/transform_replay.cpp).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from loopnest.base.errors import ScheduleError
from loopnest.base.fast_init import fast_init
from loopnest.scalar.simplify import Simplifier
from loopnest.schedule.transaction import PrimitiveRefused
from loopnest.tensor.domain import IterDomain, TensorDomain, Transform, ancestors, same_axes
from loopnest.tensor.overlapping_tiles import Overlap
from loopnest.tensor.tensor_view import Definition, TensorView


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
            own = step.replay_named((), self.algebra)
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
            own = step.replay_named(images, self.algebra)
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


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class _EqualAxes:
    """The pairs of two neighbours, and what they follow from: loops have no part in them."""

    definition: Definition
    rfactor: tuple[IterDomain, ...]
    root: tuple[IterDomain, ...]
    pairs: tuple[tuple[IterDomain, IterDomain], ...]


def pairs(producer: TensorView, consumer: TensorView) -> tuple[tuple[IterDomain, IterDomain], ...]:
    """Return (logical axis of `producer`, root axis of `consumer`) for direct neighbours.

    These are the axes that are equal in every read of `producer`.
    """
    definition, root, rfactor = consumer.definition, consumer.domain.root, producer.domain.rfactor
    known, key = producer.fusion.matches, (producer, consumer)
    found = known.get(key)
    if (
        isinstance(found, _EqualAxes)
        and found.definition is definition
        and found.root is root
        and found.rfactor is rfactor
    ):
        return found.pairs
    assert definition is not None
    if definition.starts_from is producer:
        # Initial values lie in the memory of the fold: the axes of both are those that it stores.
        result = tuple(zip(producer.domain.logical, consumer.domain.logical, strict=True))
        known[key] = _EqualAxes(definition, rfactor, root, result)
        return result
    first, *others = [r.equal_axes(root) for r in definition.reads if r.producer is producer]
    result = tuple(
        [
            (axis, root[place])
            for number, (axis, place) in enumerate(zip(producer.domain.logical, first, strict=True))
            if place is not None and all(axes[number] == place for axes in others)
        ]
    )
    known[key] = _EqualAxes(definition, rfactor, root, result)
    return result


def windowed(producer: TensorView, consumer: TensorView) -> set[IterDomain]:
    """Return the logical axes of `producer` that its direct consumer has, but not as they are.

    It reads them at other indices than its own, or along another extent: no axis of the consumer
    stands for them, and none lacks them.
    """
    equal = {mine for mine, _ in pairs(producer, consumer)}
    return {a for a in producer.domain.logical if a not in equal and not a.is_broadcast}


def root_map(producer: TensorView, consumer: TensorView) -> dict[IterDomain, IterDomain]:
    """Map axes of a producer to those of its direct consumer.

    Args:
        producer: a tensor that `consumer` reads.
        consumer: its direct consumer.

    Returns:
        From each non-reduction axis of the producer's rfactor domain to the consumer's root axis
        that equals it; an axis that the consumer squeezes or reads at another index than its own,
        and one that it inserts, stand in no pair.

    Raises:
        ScheduleError: `consumer` does not read `producer`.

    Source: nvFuser PairwiseLogicalDomainMap.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     t = x * 2.0
    ...     y = f.output(t + x, "y")
    >>> [(a is t.root_domain[0], b is y.root_domain[0]) for a, b in ln.root_map(t, y).items()]
    [(True, True)]
    """
    if not isinstance(consumer, TensorView) or producer not in consumer.producers:
        raise ScheduleError(
            f"root_map({_name(producer)}, {_name(consumer)})",
            "the second does not read the first",
            "give a producer and one of its direct consumers",
        )
    return dict(pairs(producer, consumer))


def _name(tensor: object) -> str:
    return tensor.name if isinstance(tensor, TensorView) else repr(tensor)
