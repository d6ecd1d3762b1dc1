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

from loopnest.scalar.simplify import Simplifier
from loopnest.schedule.root_maps import pairs, windowed
from loopnest.schedule.transaction import PrimitiveRefused, leading_position
from loopnest.tensor.domain import IterDomain, TensorDomain, Transform, ancestors
from loopnest.tensor.tensor_view import TensorView


class Match:
    """A correspondence from axes of a source domain to axes of a target domain.

    `image` maps source axes to target axes; `absent` holds source axes that the target lacks;
    `exact` holds the source axes whose image stands for the same points (no merge was carried).
    `name` is the tensor that refusals speak of; `reshapes` whether it is a reshape. Axes in
    `opaque` the target neither lacks nor has.
    """

    def __init__(
        self,
        source: TensorDomain,
        target: TensorDomain,
        seed: Mapping[IterDomain, IterDomain],
        start: Iterable[IterDomain],
        wanted: set[IterDomain] | None = None,
        name: str = "",
        opaque: Collection[IterDomain] = (),
        *,
        reshapes: bool = False,
    ) -> None:
        self.source, self.target = source, target
        self.wanted, self.name, self.reshapes = wanted, name, reshapes
        self.image: dict[IterDomain, IterDomain] = {}
        self.absent: set[IterDomain] = set()
        self.exact: set[IterDomain] = set()
        self.dropped: set[Transform] = set()
        self.added: list[Transform] = []
        self._positions: tuple[int, ...] | None = None
        for axis in start:
            if wanted is not None and axis not in wanted:
                continue
            if axis in seed:
                self.image[axis] = seed[axis]
                if axis.is_broadcast == seed[axis].is_broadcast:
                    self.exact.add(axis)
            elif axis not in opaque:
                self.absent.add(axis)
        self._target_absent = self._spread_absence(set(seed.values()))

    def _spread_absence(self, mapped: set[IterDomain]) -> set[IterDomain]:
        begin = {*self.target.root, *self.target.rfactor}
        absent = {axis for axis in begin if axis not in mapped and axis.is_broadcast}
        for step in self.target.history:
            if all(axis in absent for axis in step.inputs):
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

    def follow(self, algebra: Simplifier | None) -> Match:
        """Extend the image along the source's history.

        With `algebra` the steps that the target lacks are replayed on it (and its own give way);
        without it, the correspondence ends there.
        """
        for step in self.source.history:
            if self.wanted is not None and self.wanted.isdisjoint(step.outputs):
                continue
            present = [axis in self.image for axis in step.inputs]
            if not all(axis in self.image or axis in self.absent for axis in step.inputs):
                continue
            if not any(present):
                self.absent.update(step.outputs)
            elif all(present):
                self._both(step, algebra)
            else:
                self._carry(step, present)
        return self

    def shared_positions(self) -> tuple[int, ...]:
        """Return the places of leading target leaves; see the function of this name."""
        if self._positions is None:
            self._positions = tuple(self._walk_leaves())
        return self._positions

    def _walk_leaves(self) -> Iterator[int]:
        leaf, lacked = self.target.leaf, self._target_absent
        place = 0
        for axis in self.source.leaf:
            image = self.image.get(axis)
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
        for position, output in carried.items():
            self.image[step.outputs[output]] = self.image[step.inputs[position]]
        self.absent.update(axis for axis in step.outputs if axis not in self.image)

    def _both(self, step: Transform, algebra: Simplifier | None) -> None:
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
            if algebra is None:
                return
            if not step.accepts(images):
                raise PrimitiveRefused(
                    f"a {step.describe()} of these loops would join iteration and reduction axes "
                    f"of {self.name}",
                    "an iteration axis merges with iteration or broadcast axes only",
                )
            for axis in images:
                self.drop_use(axis)
            own = step.replay(images, algebra)
            self.added.append(own)
        assert own is not None
        exact = images == direct and all(axis in self.exact for axis in step.inputs)
        for axis, image in zip(step.outputs, own.outputs, strict=True):
            self.image[axis] = image
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


def _assemble(match: Match, pos: int) -> tuple[TensorDomain, int]:
    """Return the target with the source's `pos` leading axes in front (order: rule 3)."""
    source, target = match.source, match.target
    prefix: list[IterDomain] = []
    for axis in source.leaf[:pos]:
        image = match.image.get(axis)
        if image is not None:
            image = match.settle(image)
            match.drop_use(image)
            if image not in prefix:
                prefix.append(image)
    if not match.added and not match.dropped and target.leaf[: len(prefix)] == tuple(prefix):
        return target, len(prefix)  # in place already: what lies behind keeps its order
    live = [step for step in target.history if step not in match.dropped] + match.added
    nodes = dict.fromkeys(target.root)
    nodes.update(dict.fromkeys(axis for step in live for axis in step.outputs))
    for step in live:
        for axis in step.inputs:
            nodes.pop(axis, None)
    order = dict.fromkeys(prefix)
    others = (match.image[axis] for axis in source.leaf[pos:] if axis in match.image)
    for axis in (*others, *target.leaf, *nodes):
        if axis in nodes:
            order.setdefault(axis)
    leaf = tuple(order)
    return (target if leaf == target.leaf else target.with_leaf(leaf)), len(prefix)


def _replay(
    source: TensorDomain,
    target: TensorDomain,
    seed: Mapping[IterDomain, IterDomain],
    start: Iterable[IterDomain],
    pos: int,
    tensor: TensorView,
    opaque: Collection[IterDomain] = (),
) -> tuple[TensorDomain, int]:
    wanted = ancestors(source.leaf[:pos], source)
    definition = tensor.definition
    reshapes = definition is not None and definition.reducer is None
    match = Match(source, target, seed, start, wanted, tensor.name, opaque, reshapes=reshapes)
    return _assemble(match.follow(tensor.fusion.algebra), pos)


def producer_as_consumer(
    producer: TensorView, consumer: TensorView, domain: TensorDomain, pos: int
) -> tuple[TensorDomain, int]:
    """Return `producer`'s domain replayed as `domain`, that of its direct consumer, left of pos."""
    seed = {c: p for p, c in pairs(producer, consumer)}
    return _replay(domain, producer.domain, seed, domain.root, pos, producer)


def consumer_as_producer(
    consumer: TensorView, producer: TensorView, domain: TensorDomain, pos: int
) -> tuple[TensorDomain, int]:
    """Return `consumer`'s domain replayed as `domain`, that of its direct producer, left of pos."""
    seed = dict(pairs(producer, consumer))
    opaque = windowed(producer, consumer)
    return _replay(domain, consumer.domain, seed, domain.rfactor, pos, consumer, opaque)


def replay_pasc(producer: TensorView, consumer: TensorView, pos: int) -> tuple[TensorDomain, int]:
    """Return what `producer` becomes when it is replayed as its direct consumer.

    With ``T2 [i0: ceildiv(I, 4), i1: 4, i2: J]`` and ``T1 [i0: I, i1: J]``, ``replay_pasc(T1, T2,
    1)`` gives ``[ceildiv(I, 4), 4, J]`` and 1. It changes nothing: the axes that it makes belong
    to no tensor.

    Args:
        producer: a tensor that `consumer` reads.
        consumer: has the loops that are wanted.
        pos: how many of the consumer's leading leaf axes; negative: ``pos += ndim + 1``.

    Returns:
        The producer's domain with these axes in front, and how many of its leading axes they are.

    Raises:
        ScheduleError: no direct neighbours, a position out of range, or a producer whose rfactor
            domain would change.

    Source: nvFuser's design note on computeAt, replayPasC.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     t = f.input("x", ("I", "J"), ln.float32) * 2.0
    ...     y = f.output(t + 1.0, "y")
    >>> y.split(0, 4)
    <TensorView y float32 global [i0: ceildiv(I, 4), i1: 4, i2: J] compute_at=0 produced_at=0>
    >>> domain, pos = ln.replay_pasc(t, y, 1)
    >>> [str(axis.extent) for axis in domain.leaf], pos
    (['ceildiv(I, 4)', '4', 'J'], 1)
    """
    call = _call_text("replay_pasc", producer, consumer, pos)
    try:
        _require_neighbours(producer, consumer)
        place = leading_position(consumer, pos)
        return producer_as_consumer(producer, consumer, consumer.domain, place)
    except PrimitiveRefused as refusal:
        raise refusal.error(call) from None


def replay_casp(consumer: TensorView, producer: TensorView, pos: int) -> tuple[TensorDomain, int]:
    """Return what `consumer` becomes when it is replayed as its direct producer.

    With ``T1 [i0: I, r1: R, i2: K]`` and ``T2 [i0: I, i1: K]``, ``replay_casp(T2, T1, 2)`` gives
    ``[I, K]`` and 1: the consumer does not see reductions. It changes nothing: the axes that it
    makes belong to no tensor.

    Args:
        consumer: a tensor that reads `producer`.
        producer: has the loops that are wanted.
        pos: how many of the producer's leading leaf axes; negative: ``pos += ndim + 1``.

    Returns:
        The consumer's domain with these axes in front, and how many of its leading axes they are.

    Raises:
        ScheduleError: no direct neighbours, a position out of range, or a consumer whose rfactor
            domain would change.

    Source: nvFuser's design note on computeAt, replayCasP.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     t = f.input("x", ("I", "J"), ln.float32) * 2.0
    ...     y = f.output(t + 1.0, "y")
    >>> t.split(0, 4)
    <TensorView T1 float32 local [i0: ceildiv(I, 4), i1: 4, i2: J] compute_at=0 produced_at=0>
    >>> domain, pos = ln.replay_casp(y, t, 1)
    >>> [str(axis.extent) for axis in domain.leaf], pos
    (['ceildiv(I, 4)', '4', 'J'], 1)
    """
    call = _call_text("replay_casp", consumer, producer, pos)
    try:
        _require_neighbours(producer, consumer)
        place = leading_position(producer, pos)
        return consumer_as_producer(consumer, producer, producer.domain, place)
    except PrimitiveRefused as refusal:
        raise refusal.error(call) from None


def _call_text(name: str, first: object, second: object, pos: object) -> str:
    shown = [t.name if isinstance(t, TensorView) else repr(t) for t in (first, second)]
    return f"{name}({shown[0]}, {shown[1]}, {pos!r})"


def _require_neighbours(producer: object, consumer: object) -> None:
    if not isinstance(producer, TensorView):
        raise PrimitiveRefused(f"{producer!r} is no TensorView", "give two TensorViews")
    if not isinstance(consumer, TensorView):
        raise PrimitiveRefused(f"{consumer!r} is no TensorView", "give two TensorViews")
    if producer not in consumer.producers:
        raise PrimitiveRefused(
            f"{consumer.name} does not read {producer.name}",
            "give a producer and one of its direct consumers",
        )


def mirror(domain: TensorDomain, sibling: TensorView) -> TensorDomain:
    """Return the domain of `sibling` (another output of one definition) with `domain`'s loops."""
    target = sibling.domain
    seed = dict(zip(domain.rfactor, target.rfactor, strict=True))
    replayed, _ = _replay(domain, target, seed, domain.rfactor, len(domain.leaf), sibling)
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
            opaque=windowed(producer, consumer),
        ).follow(None)  # fmt: skip
        known[key] = found
    return found


def shared_positions(producer: TensorView, consumer: TensorView) -> tuple[int, ...]:
    """Return, for the leading axes of `producer` that can share loops, the consumer's positions.

    The two leaf domains are walked in step; a consumer axis is passed over only where the producer
    lacks it (an inserted broadcast, rule 25). The walk ends at a reduction axis of the producer
    (rule 22), and at the first pair that does not correspond.
    """
    return match_leaves(producer, consumer).shared_positions()
