"""Replay across windows: give a producer the tiles that the windows of its consumers need.

Where a consumer reads a producer at other indices than its own, a loop of the consumer is none of
the producer's: 8 windows of 3 need 10 elements. The producer's axis becomes `Overlap`: the loops of
the consumers that are shared, and within them a tile that has all that is read there: by every read
of every consumer on the way (the hull of their footprints). An axis that is read as it is stays
what it was, unless it has a loop in common with one that is not.

    y[i] = t[i] + t[i + 2], y.split(0, 8), t.compute_at(y, 1)
    y [i0: ceildiv(N - 2, 8), i1: 8]  ->  t [i0: ceildiv(N - 2, 8), i1: 10]

Source: Halide's bounds inference (src/BoundsInference.cpp); TVM's compute_at with its region
solving (src/tir/schedule/primitive/compute_at.cc); Exo's and Halide's stencils with halo.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from loopnest.base.fast_init import fast_init
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Const, Expr, Index, free_indices
from loopnest.schedule.fold_order import carries, folded_axes
from loopnest.schedule.read_footprints import (
    Footprint,
    GivenLoops,
    hull,
    spans,
    templates,
)
from loopnest.schedule.replay import (
    assemble,
    exact_places,
    leading_images,
    producer_as_consumer,
)
from loopnest.schedule.root_maps import Match, pairs, windowed
from loopnest.schedule.transaction import PrimitiveRefused
from loopnest.tensor.domain import IterDomain, TensorDomain, ancestors
from loopnest.tensor.overlapping_tiles import Overlap, overlaps
from loopnest.tensor.tensor_view import TensorView


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class SharedLoops:
    """The leading loops of a replayed tensor, told by their places in the target of the replay.

    Loops are *exact* whose index is that of the tensor's own axis. Where it was merged with an axis
    that the tensor lacks, or repeats, the loop runs over more.
    """

    domain: TensorDomain
    loops: tuple[int, ...]
    exact: frozenset[int]

    def given(self, loops: Mapping[int, Index], *, exact: bool) -> dict[IterDomain, Expr]:
        """Return the index of each leading axis; with `exact`, only of those with exact loops."""
        return {
            axis: loops[loop]
            for axis, loop in zip(self.domain.leaf, self.loops, strict=False)
            if not axis.is_broadcast and (loop in self.exact or not exact)
        }


def _same_steps(one: TensorDomain, other: TensorDomain) -> bool:
    """Whether two domains have the same transforms, at the same places."""
    return [(s.key, len(s.inputs)) for s in one.history] == [
        (s.key, len(s.inputs)) for s in other.history
    ]


def whole_loops(tensor: TensorView, domain: TensorDomain, loops: Sequence[int]) -> SharedLoops:
    """Return the leading loops of a tensor that is replayed as no other."""
    units = tensor.fusion.order.unit_axes
    exact = [n for n, axis in zip(loops, domain.leaf, strict=False) if not _repeats(axis, units)]
    return SharedLoops(domain, tuple(loops), frozenset(exact))


def _repeats(axis: IterDomain, units: frozenset[IterDomain]) -> bool:
    """Whether an axis was made of one that is broadcast, and may stand in a loop over more.

    It stands in none where that is one of `units`, merged as it is.
    """
    step = axis.definition
    if axis.is_broadcast or step is None:
        return axis.is_broadcast
    return any(source not in units and _repeats(source, units) for source in step.sources(axis))


@dataclass(eq=False, slots=True)
class _ConsumerLoops:
    """A consumer of a tensor, with its loops given."""

    twin: TensorView
    consumer: TensorView
    place: SharedLoops
    known: GivenLoops
    """With the exact loops given: its windows follow from these."""
    whole: GivenLoops
    """With all loops given: what is read as it is has these loops."""


@dataclass(eq=False, slots=True)
class _Tiles:
    """Axes of a producer that become tiles together, since they have a loop in common."""

    axes: list[IterDomain] = field(default_factory=list)
    loops: set[Index] = field(default_factory=set)


def readers(tensor: TensorView) -> list[tuple[TensorView, TensorView]]:
    """Return the live direct consumers of a tensor, with which of its siblings each reads."""
    live = tensor.fusion.live()
    return [(twin, c) for twin in tensor.siblings for c in twin.consumers if c in live]


def crosses(tensor: TensorView, consumers: Iterable[TensorView]) -> bool:
    """Whether one of some consumers reads a tensor in windows, or is computed in tiles itself."""
    chosen = set(consumers)
    return any(
        c in chosen and (windowed(twin, c) or overlaps(c.domain.history))
        for twin, c in readers(tensor)
    )


def _in_windows(twin: TensorView, consumer: TensorView, place: SharedLoops) -> bool:
    """Whether a consumer reads a tensor in windows, or from loops over tiles."""
    return bool(windowed(twin, consumer) or overlaps(place.domain.history))


class WindowReplay:
    """The replay of one tensor as its consumers, some of which may read it in windows.

    Args:
        tensor: the tensor, whose domain does not change here.
        places: for each consumer that counts, its loops.
    """

    def __init__(self, tensor: TensorView, places: dict[TensorView, SharedLoops]) -> None:
        self.tensor, self.algebra = tensor, tensor.fusion.algebra
        self.loops: dict[int, Index] = {}
        self.readers: list[_ConsumerLoops] = []
        self.hulls: dict[IterDomain, Footprint] = {}
        self.plain: dict[IterDomain, frozenset[Index]] = {}
        consumers = readers(tensor)
        found = [(twin, c, places[c]) for twin, c in consumers if c in places]
        self.complete = len(found) == len(consumers)
        if len(found) == 1 and not _in_windows(*found[0]):
            return  # one reader reads each axis as it is: there is nothing to measure
        for exact in (True, False):
            for _, _, place in found:
                for axis, loop in zip(place.domain.leaf, place.loops, strict=False):
                    if loop in place.exact or not exact:
                        self.loops.setdefault(loop, Index(f"l{loop}", axis.size))
        for twin, consumer, place in found:
            known, whole = [
                GivenLoops(place.domain, place.given(self.loops, exact=exact), self.algebra)
                for exact in (True, False)
            ]
            self.readers.append(_ConsumerLoops(twin, consumer, place, known, whole))
        if self.readers:
            self._measure()

    def _measure(self) -> None:
        """Find what is read of each axis, and which axes are read as they are."""
        logical = self.tensor.domain.logical
        found: list[list[Footprint]] = [[] for _ in logical]
        equal: list[set[frozenset[Index] | None]] = [set() for _ in logical]
        for reader in self.readers:
            mapped = dict(pairs(reader.twin, reader.consumer))
            read = list(spans(reader.twin, reader.consumer, reader.known))
            for number, axis in enumerate(reader.twin.domain.logical):
                found[number] += read[number]
                root = mapped.get(axis)
                if axis.is_broadcast:
                    continue
                if root is None or root in reader.whole.tiled:
                    equal[number].add(None)
                else:
                    equal[number].add(free_indices(reader.whole.index(root)) & self._indices())
        for axis, here, same in zip(logical, found, equal, strict=True):
            if axis.is_broadcast:
                continue
            self.hulls[axis] = hull(axis, here, self.algebra)
            alike = all(
                self.algebra.equal(s.center, here[0].center)
                and (s.low, s.high) == (here[0].low, here[0].high)
                for s in here
            )
            if alike and len(same) == 1 and None not in same:
                (loops,) = same
                self.plain[axis] = loops or frozenset()

    def _indices(self) -> frozenset[Index]:
        return frozenset(self.loops.values())

    def tiles(self) -> list[_Tiles]:
        """Return the axes that become tiles; none where each is read as it is."""
        result: list[_Tiles] = []
        for axis, span in self.hulls.items():
            loops = set(free_indices(span.center))
            if axis not in self.plain and loops:
                result.append(_Tiles([axis], loops))
        result += [_Tiles([axis]) for axis in self.hulls if self._is_part(axis)]
        if not result:
            return []
        # A loop of a tile moves all axes that it has to do with: an axis that is read as it is
        # joins the tile once it shares a loop with it, and brings its other loops. So on until
        # nothing joins.
        rest = {axis: set(loops) for axis, loops in self.plain.items()}
        grown = True
        while grown:
            grown = False
            for axis, loops in list(rest.items()):
                if any(not tiles.loops.isdisjoint(loops) for tiles in result):
                    moved = set(free_indices(self.hulls[axis].center))
                    result.append(_Tiles([axis], loops | moved))
                    del rest[axis]
                    grown = True
            result = _joined(result)
        for tiles in result:
            for axis in tiles.axes:
                self.plain.pop(axis, None)
        return result

    def _is_part(self, axis: IterDomain) -> bool:
        """Whether all loops together read a part of an axis that no loop tells, and not all.

        A consumer whose loops are not known yet may read all of it.
        """
        if not self.complete or self.tensor.is_state:
            return False
        span = self.hulls[axis]
        if axis in self.plain or free_indices(span.center):
            return False
        count = span.count(self.algebra)
        few = isinstance(count, Const) and not isinstance(axis.size, Const)
        return few or self.algebra.proves_lt(count, axis.size)

    def run(self) -> SharedLoops | None:
        """Return the replayed domain; None where no window is crossed.

        Raises:
            PrimitiveRefused: the tensor is an output, or a scan along an axis of the tile.
        """
        tiles = self.tiles()
        if not tiles or self._is_alike():
            return None
        if self._is_placed():
            return whole_loops(self.tensor, self.tensor.domain, sorted(self.loops))
        self._require_tiles(tiles)
        # Loops that no axis follows from still stand around the tensor: they are outer axes of a
        # step without inputs, so that positions of producer and consumer stay in step.
        tiles += self._repeated(tiles)
        match, pos = self._match()
        old = overlaps(self.tensor.domain.history)
        made = [self._step(match, found, old) for found in tiles]
        for step in old:
            if step not in made:
                match.dropped.add(step)
                for axis in step.outputs:
                    match.drop_use(axis)
        outer = {
            index: axis
            for step, found in zip(made, tiles, strict=True)
            for index, axis in zip(self._ordered(found.loops), step.outer, strict=True)
        }
        images = leading_images(match, pos)
        plain = self._plain_loops(images)
        by_loop = {loop: axis for axis, loop in plain.items()}
        by_loop.update({loop: outer[i] for loop, i in self.loops.items() if i in outer})
        loops = tuple(sorted(by_loop))
        prefix = [by_loop[loop] for loop in loops]
        # A tile is a function of its outer loops, whose indices are those of the reader; of a plain
        # loop the replay tells whether it is exact.
        exact = {n for reader in self.readers for n in reader.place.exact} - set(plain.values())
        first = self.readers[0].place
        exact.update(
            {
                first.loops[place]
                for place in exact_places(match, images)
                if first.loops[place] in first.exact
            }
        )
        return SharedLoops(assemble(match, pos, prefix), loops, frozenset(exact))

    def as_one(self) -> SharedLoops | None:
        """Return the domain with the loops of consumers that are alike; None where they are not."""
        if not self.tiles() or not self._is_alike():
            return None
        require_no_output(self.tensor)
        first = self.readers[0]
        made = producer_as_consumer(
            self.tensor, first.consumer, first.place.domain, len(first.place.loops)
        )
        loops = [first.place.loops[place] for place in made.places]
        return whole_loops(self.tensor, made.domain, loops)

    def _is_alike(self) -> bool:
        """Whether each axis is that of one consumer in tiles, all of whose axes it has.

        The tensor then gets the consumer's own steps, and with them the tests of their tails.
        Loops that are only repeated belong to no axis, and no replay of axes sees them. Within
        fewer loops than the consumer's tiles move with, a tile has the elements of several.
        """
        first, *others = self.readers
        mapped = {root for _, root in pairs(first.twin, first.consumer)}
        steps = overlaps(first.place.domain.history)
        shared = set(first.place.domain.leaf[: len(first.place.loops)])
        return (
            first.twin is self.tensor  # whose axes the consumer has
            and not any(windowed(r.twin, r.consumer) for r in self.readers)
            and all(step.inputs and mapped.issuperset(step.inputs) for step in steps)
            and all(shared.issuperset(step.outer) for step in steps)
            and all(_same_steps(first.place.domain, r.place.domain) for r in others)
        )

    def _is_placed(self) -> bool:
        """Whether the tensor shares all of these loops already, and others inside of them."""
        place = self.tensor.compute_at_pos
        return place > len(self.loops) and all(
            r.place.domain is r.consumer.domain for r in self.readers
        )

    def _plain_loops(self, images: dict[IterDomain, int]) -> dict[IterDomain, int]:
        """Return the loops that are shared because of axes that are read as they are."""
        loops = self.readers[0].place.loops
        return {axis: loops[place] for axis, place in images.items()}

    def _ordered(self, loops: Iterable[Index]) -> list[Index]:
        order = {index: loop for loop, index in self.loops.items()}
        return sorted(loops, key=lambda index: order[index])

    def _require_tiles(self, tiles: Sequence[_Tiles]) -> None:
        tensor = self.tensor
        require_no_output(tensor)
        started = tensor.definition is not None and tensor.definition.start is not None
        if started and tensor.memory is Memory.GLOBAL:
            raise PrimitiveRefused(
                f"{tensor.name} is atomic, and its consumers read it in windows: what lies in two "
                "of the tiles that their loops need would be folded twice",
                "use a position in front of the windows",
            )
        if carries(tensor):
            along = folded_axes(tensor)
            folded = ancestors(along, tensor.domain)
            if any(axis in folded for found in tiles for axis in found.axes):
                raise PrimitiveRefused(
                    f"{tensor.name} is a scan along an axis that its consumers read in windows, "
                    "and a tile of it needs all elements before",
                    "use a position in front of the windows",
                )

    def _repeated(self, tiles: Sequence[_Tiles]) -> list[_Tiles]:
        """Return the loops that no axis of the tensor has to do with: it is computed again."""
        used = set().union(*(found.loops for found in tiles), *self.plain.values())
        lacked = {
            index
            for loop, index in self.loops.items()
            if index not in used and not all(self._is_broadcast(r, loop) for r in self.readers)
        }
        return [_Tiles([], lacked)] if lacked else []

    @staticmethod
    def _is_broadcast(reader: _ConsumerLoops, loop: int) -> bool:
        """Whether a loop runs over an axis that the reader repeats, or lacks."""
        place = reader.place
        if loop not in place.loops:
            return True
        return place.domain.leaf[place.loops.index(loop)].is_broadcast

    def _match(self) -> tuple[Match, int]:
        """Return the replay of the axes that are read as they are."""
        first = self.readers[0]
        domain, pos = first.place.domain, len(first.place.loops)
        own = dict(zip(first.twin.domain.logical, self.tensor.domain.logical, strict=True))
        seed = {
            root: own[axis]
            for axis, root in pairs(first.twin, first.consumer)
            if axis.is_broadcast or own[axis] in self.plain
        }
        wanted = ancestors(domain.leaf[:pos], domain)
        match = Match(
            domain, self.tensor.domain, seed, domain.root, self.algebra, wanted, self.tensor.name,
            tiles=False, units=first.consumer.fusion.order.unit_axes,
        )  # fmt: skip
        return match.follow(replays=True), pos

    def _step(self, match: Match, found: _Tiles, old: Sequence[Overlap]) -> Overlap:
        """Return the transform to a tile: that of before where it is the same."""
        loops = self._ordered(found.loops)
        axes = [axis for axis in self.tensor.domain.logical if axis in found.axes]
        read = [self.hulls[axis] for axis in axes]
        step = Overlap(
            axes,
            [index.extent for index in loops],
            templates([span.begin(self.algebra) for span in read], loops),
            [max(span.step, 1) for span in read],
            [span.count(self.algebra) for span in read],
        )
        for known in old:
            if known.key == step.key and known.inputs == step.inputs:
                return known
        for outer, index in zip(step.outer, loops, strict=True):
            self._name(outer, index)
        for axis in axes:
            match.drop_use(axis)
        match.added.append(step)
        return step

    def _name(self, axis: IterDomain, index: Index) -> None:
        """Let a loop around a tile have the names that it has for a reader."""
        for reader in self.readers:
            for loop, theirs in zip(reader.place.loops, reader.place.domain.leaf, strict=False):
                if self.loops.get(loop) is index and theirs.names:
                    axis.names, axis.is_named = theirs.names, theirs.is_named
                    return


def _joined(tiles: Sequence[_Tiles]) -> list[_Tiles]:
    """Return `tiles`, those with a loop in common as one."""
    result: list[_Tiles] = []
    for found in tiles:
        same = [other for other in result if not other.loops.isdisjoint(found.loops)]
        for other in same:
            result.remove(other)
            found = _Tiles([*other.axes, *found.axes], other.loops | found.loops)
        result.append(found)
    return result


def tiles_at(tensor: TensorView, count: int | None) -> SharedLoops | None:
    """Return the domain of a tensor in `count` leading loops of all its consumers, or in all.

    None where it is not read in windows, or where they have no such loops. It is that of the first
    of several outputs of one definition.

    Raises:
        PrimitiveRefused: the tensor is an output, or a scan along an axis of the tile.
    """
    head = tensor.siblings[0]
    found = [consumer for _, consumer in readers(head)]
    if not crosses(head, found):
        return None
    most = min([consumer.ndim for consumer in found])
    for depth in range(most, most + 1) if count is None else range(count, most + 1):
        places = {c: whole_loops(c, c.domain, range(depth)) for c in found}
        replay = WindowReplay(head, places)
        result = replay.run() or replay.as_one()
        if result is not None and count in (None, len(result.loops)):
            return result
    return None


def require_no_output(tensor: TensorView) -> None:
    """Refuse tiles of an output: loops of windows need not run over all of its elements.

    Raises:
        PrimitiveRefused: the tensor, or a result of the same definition, is an output.
    """
    if any(twin.is_output for twin in tensor.siblings):
        raise PrimitiveRefused(
            f"{tensor.name} is an output, each element of which is stored once, and its consumers "
            "read it in windows: the tiles that their loops need overlap, and may leave some out",
            f"let {tensor.name}.cache_fork() make the output a copy, or use a position in "
            "front of the windows",
        )
    if tensor.is_state:
        raise PrimitiveRefused(
            f"{tensor.name} is a state, all of whose elements the next steps read, and its "
            "consumers read it in windows: the tiles that their loops need may leave some out",
            "use a position in front of the windows",
        )
