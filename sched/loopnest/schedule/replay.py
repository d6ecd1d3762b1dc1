"""Replay: give one tensor the leading loops of a neighbour (replayPasC, replayCasP).

Both directions follow one correspondence of axes (`root_maps`): what the leading axes of the one
need is replayed on the other, and the domain is put together anew.

Source: the algorithm follows nvFuser's TransformReplay (csarofeen/pytorch
torch/csrc/jit/codegen/cuda/transform_replay.cpp), whose order of the replayed domain is rule 3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from loopnest.base.fast_init import fast_init
from loopnest.schedule.read_footprints import loops_of_tiles
from loopnest.schedule.root_maps import Match, pairs, windowed
from loopnest.tensor.domain import (
    IterDomain,
    TensorDomain,
    ancestors,
    same_axes,
)
from loopnest.tensor.overlapping_tiles import overlaps
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
    producer: TensorView,
    consumer: TensorView,
    domain: TensorDomain,
    pos: int,
    *,
    tiles: bool = True,
) -> LeadingReplay:
    """Return `producer`'s domain replayed as `domain`, that of its direct consumer, left of pos.

    Windows are not crossed: `schedule.overlap` does that. Without `tiles` the producer gets none of
    the consumer's tiles with halo, as where it shall share no loop.
    """
    seed = {c: p for p, c in pairs(producer, consumer)}
    definition = consumer.definition
    starts = definition is not None and definition.starts_from is producer
    above = domain.rfactor if starts else domain.root
    return _replay(domain, producer.domain, seed, above, pos, producer, tiles=tiles)


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


def sharers(tensor: TensorView, position: int) -> dict[TensorView, int]:
    """Return the tensors that share a loop of `tensor`, itself among them, and where it stands."""
    found, stack = {tensor: position}, [tensor]
    while stack:
        one = stack.pop()
        place = found[one]
        near = [(twin, place) for twin in one.siblings]
        if place < one.compute_at_pos:
            near += [(c, shared_positions(one, c)[place]) for c in one.consumers]
        for producer in one.producers:
            places = shared_positions(producer, one)[: producer.compute_at_pos]
            near += [(producer, mine) for mine, theirs in enumerate(places) if theirs == place]
        for other, where in near:
            if other not in found:
                found[other] = where
                stack.append(other)
    return found
