"""Accesses of a phase: the index of a store, and of what a definition reads, in loop indices.

Indices are found by walking the transforms behind a tensor's loops backward to its root, over the
root map to its producers, and, for a LOCAL producer, forward again to the loops that index its
buffer.

Source: the backward traversal is nvFuser's index_compute; rule 26: the loop map forwards merged
broadcasts, the index map does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from loopnest.base.errors import InternalError
from loopnest.base.fast_init import fast_init
from loopnest.kir import WHOLE_ELEMENTS, Shuffle, Store
from loopnest.lowering.indexing.axis_indices import Environment
from loopnest.lowering.loops.guarded_tree import Guarded
from loopnest.lowering.loops.phase_nest import Compute, Nest
from loopnest.lowering.loops.promotion import Promotion
from loopnest.lowering.memory.allocation import TensorStorage, warps_of
from loopnest.lowering.reductions.block_exchange import FreshNames
from loopnest.scalar import dtypes
from loopnest.scalar.conditions import decided
from loopnest.scalar.enums import BLOCK_DIMENSIONS, WARP, Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Arg,
    Buffer,
    Coordinate,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    Symbol,
    integer,
    substitute,
    walk,
)
from loopnest.scalar.launch_bounds import LaunchBounds
from loopnest.scalar.templates import coordinates
from loopnest.schedule.replay import match_leaves
from loopnest.schedule.root_maps import Match
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.tensor_view import Definition, Read, TensorView


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """A read of a tensor that is computed.

    Args:
        producer: the tensor.
        env: the indices of the reader's axes.
        element: which element it is, by logical axis of the producer.
        place: where it lies in a LOCAL or SHARED buffer.
        slots: the loops of the producer, by position, whose indices `place` gives.
        loops: the indices of the loops around the reader.
        conditions: the tests that the reader is under.
        lanes: the numbers of the threads of the warp that have the element, where a shuffle brings
            it from them.
    """

    producer: TensorView
    env: Environment
    element: dict[IterDomain, Expr]
    place: tuple[Expr, ...]
    slots: Sequence[int]
    loops: tuple[Index, ...] = ()
    conditions: tuple[Expr, ...] = ()
    lanes: Mapping[ParallelType, Expr] = field(default_factory=dict)


class WholeVectors:
    """Sizes that the lanes of vectors would have to divide, for the "indexing" pass.

    Args:
        nest: the loops.
        assumed: whether a symbolic size is taken to divide; else each lane has its own test.

    Attributes:
        lanes: the indices of vectorized loops.
        requires: what whole vectors require so far: text -> (size, width, test).
    """

    def __init__(self, nest: Nest, *, assumed: bool) -> None:
        self.assumed = assumed
        self.lanes = {
            var for var, spec in nest.spec_of.items() if spec.parallel is ParallelType.vectorize
        }
        self.requires: dict[str, tuple[Expr, Expr, Expr]] = {}

    def require(self, size: Expr, width: Expr) -> None:
        """Let the program with vectors run only where `width` divides `size`."""
        rest = Op("mod", (size, width), dtypes.index)
        test = Op("eq", (rest, ZERO), dtypes.bool_)
        self.requires.setdefault(str(test), (size, width, test))


class Accesses:
    """The accesses of a fusion's tensors, for the statements of its phases.

    Attributes:
        readings: the reads of computed tensors so far, each with the tests that it is under.
        unguarded: what the phase at hand read, before its tests are known.
        exchanging: whether the phase at hand may read elements of other lanes.
        shuffles: what brings them.
    """

    def __init__(
        self,
        nest: Nest,
        storage: dict[TensorView, TensorStorage],
        vectors: WholeVectors,
        names: FreshNames,
    ) -> None:
        self.nest, self.plan, self.algebra = nest, nest.plan, nest.plan.algebra
        self.storage, self.vectors = storage, vectors
        self._matches: dict[tuple[TensorView, TensorView], Match] = {}
        self.readings: list[Reading] = []
        self.unguarded: list[Reading] = []
        self.names, self.limits = names, LaunchBounds(self.plan.launch, self.algebra)
        self.exchanging = False
        self.shuffles: list[Shuffle] = []

    def keep_readings(self, compute: Compute, guarded: Sequence[Guarded]) -> None:
        """Keep what statements read, with the tests that all of them are under."""
        tests = [dict.fromkeys(t.condition for t in item.terms) for item in guarded]
        first = tests[0] if tests else {}
        conditions = tuple([c for c in first if all(c in found for found in tests)])
        for reading in self.unguarded:
            self.readings.append(replace(reading, loops=compute.loops, conditions=conditions))
        self.unguarded.clear()

    def store(self, env: Environment, buffer: Buffer, value: Expr, role: str) -> Store:
        """Return the store of `value` to the element of `buffer` at hand."""
        index, flat = self._own_index(env, buffer)
        placed = env.tensor.placed or env.tensor.origin
        factored = env.tensor.domain.is_factored and role in WHOLE_ELEMENTS
        claim = env.element() if factored else env.coordinate()
        return Store(buffer, index, value, env.tensor.name, role, flat, claim, placed)

    def start(self, env: Environment, fold: TensorView, buffer: Buffer, value: Expr) -> Store:
        """Return the store of what `fold` starts from, at the element of its initial values."""
        storage = self.storage[env.tensor]
        axes = fold.domain.logical if storage.axes is None else storage.axes
        own = dict(zip(fold.domain.logical, env.tensor.domain.logical, strict=True))
        index, flat = self._index(buffer, [self.need(env, own[axis]) for axis in axes])
        stored = Store(buffer, index, value, env.tensor.name, "init", flat, env.coordinate())
        if fold.domain.is_factored:
            return replace(stored, tensor=fold.name)
        element = dict(zip(fold.domain.logical, stored.coordinate, strict=True))
        claim = tuple([element.get(axis, ZERO) for axis in fold.domain.root])
        return replace(stored, tensor=fold.name, coordinate=claim)

    def note_start(self, env: Environment) -> None:
        """Note that an atomic fold in SHARED memory updates what its own block initialized."""
        fold = env.tensor
        assert fold.definition is not None
        fill = fold.definition.starts_from
        if fill is None or fold.memory is not Memory.SHARED:
            return
        logical = zip(fill.domain.logical, fold.domain.logical, strict=True)
        element = {axis: self.need(env, own) for axis, own in logical}
        reader = _LocalReader(self, fill, env, element)
        promoted, leaf = self.plan.promotions[fill].leaf, fill.domain.leaf
        slots = [n for n, axis in enumerate(leaf) if not self.plan.spec(axis).parallel.is_grid]
        place = tuple([reader.value(promoted[n], leaf[n]) for n in slots])
        self.unguarded.append(Reading(fill, env, element, place, slots))

    def load_own(self, env: Environment, buffer: Buffer) -> Load:
        """Return the element of `buffer` at hand."""
        index, flat = self._own_index(env, buffer)
        return Load(buffer, index, flat)

    def _own_index(self, env: Environment, buffer: Buffer) -> tuple[tuple[Expr, ...], bool]:
        storage = self.storage[env.tensor]
        if buffer is storage.buffer and storage.axes is not None:
            return self._index(buffer, [self._allocated(env, axis) for axis in storage.axes])
        if buffer.memory is Memory.GLOBAL:
            return self._index(buffer, [self.need(env, a) for a in env.tensor.domain.logical])
        places = storage.places if buffer is storage.buffer else storage.partial_places
        leaf = env.promotion.leaf
        own = tuple([env.known[leaf[place]] for place in places]) or (ZERO,)
        step = self.need(env, env.tensor.domain.root[0]) if storage.rooms else ZERO
        return (*self._warp(buffer), *self._room(storage, step), *own), False

    def _room(self, storage: TensorStorage, step: Expr) -> tuple[Expr, ...]:
        """Return the index of the state of a step, of a buffer that has those of the last steps."""
        rooms = storage.rooms
        return (self.algebra.mod(step, integer(rooms)),) if rooms else ()

    def _warp(self, buffer: Buffer) -> tuple[Expr, ...]:
        """Return the indices of the warp at hand, in a buffer that has one for each warp."""
        dims = warps_of(self.plan) if buffer.memory is Memory.WARP else ()
        return tuple([LaunchIndex(d) for d in dims])

    def need(self, env: Environment, axis: IterDomain) -> Expr:
        """Return the index of an axis, which follows from the loops at hand."""
        return self._known(env, axis, env.index(axis))

    def _allocated(self, env: Environment, axis: IterDomain) -> Expr:
        return self._known(env, axis, env.allocated(axis))

    def _known(self, env: Environment, axis: IterDomain, value: Expr | None) -> Expr:
        if value is None:
            raise InternalError(
                f"{env.tensor.name} of {self.plan.fusion.name}",
                f"the index of an axis of extent {axis.size} is not known from its loops",
            )
        return value

    def _index(self, buffer: Buffer, index: list[Expr]) -> tuple[tuple[Expr, ...], bool]:
        """Return one index a dimension; in GLOBAL memory one offset where that divides less."""
        if not index:
            return (ZERO,), False
        cost = sum(_divisions(i) for i in index)
        if cost and len(index) > 1 and buffer.memory is Memory.GLOBAL:
            terms = (self.algebra.mul(i, s) for i, s in zip(index, buffer.strides, strict=True))
            flat = self.algebra.sum(terms)
            if _divisions(flat) < cost:
                return (flat,), True
        return tuple(index), False

    def values(self, definition: Definition, env: Environment) -> tuple[Expr, ...]:
        """Return the values of a definition's components at the element at hand."""
        args = self.reads(definition, env)
        values = [definition.value(n, args) for n in range(len(definition.values))]
        root = env.tensor.domain.root
        result: list[Expr] = []
        for value in values:
            known: dict[Expr, Expr] = {
                c: self.need(env, root[c.number]) for c in coordinates(value)
            }
            result.append(decided(substitute(value, known), self.algebra) if known else value)
        return tuple(result)

    def reads(self, definition: Definition, env: Environment) -> tuple[Expr, ...]:
        """Return what each read finds; those come first that indices are computed from."""
        found: dict[Expr, Expr] = {}
        order = sorted(enumerate(definition.reads), key=lambda item: bool(item[1].data))
        for number, read in order:
            if number == definition.start:
                continue  # no template asks for it
            earlier = number in definition.carried
            found[Arg(number, read.producer.dtype)] = self._read(read, env, found, earlier)
        args = [Arg(n, read.producer.dtype) for n, read in enumerate(definition.reads)]
        return tuple([found.get(arg, arg) for arg in args])

    def _read(
        self, read: Read, env: Environment, data: Mapping[Expr, Expr], earlier: bool = False
    ) -> Load | Local:
        producer = read.producer
        storage = self.storage[producer]
        index: dict[IterDomain, Expr] = {
            axis: ZERO if axis.is_broadcast else self._at(template, env, data)
            for axis, template in zip(producer.domain.logical, read.indices, strict=True)
        }
        if producer.strides is not None:
            self._require_strides(storage.buffer, env)
            return Load(storage.buffer, tuple(index.values()))
        if producer.is_input or (earlier and storage.buffer.memory is Memory.GLOBAL):
            return Load(storage.buffer, *self._index(storage.buffer, list(index.values())))
        reader = _LocalReader(self, producer, env, index)
        promoted, leaf = self.plan.promotions[producer].leaf, producer.domain.leaf
        places = tuple([reader.value(promoted[n], leaf[n]) for n in storage.places])
        reading = Reading(producer, env, index, places, storage.places)
        if self.exchanging and storage.axes is None and producer.memory is Memory.LOCAL:
            lanes = self._other_lanes(reader, places)
            mask = self._mask(lanes)
            if mask:
                self.unguarded.append(replace(reading, lanes=lanes))
                return self._shuffled(Load(storage.buffer, places or (ZERO,)), mask, env)
        self.unguarded.append(reading)
        if storage.axes is not None:
            where = [reader.allocated(axis) for axis in storage.axes]
        elif storage.buffer.memory is Memory.GLOBAL:
            where = list(index.values())
        else:
            step = index[producer.domain.logical[0]] if storage.rooms else ZERO
            before = (*self._warp(storage.buffer), *self._room(storage, step))
            return Load(storage.buffer, (*before, *(places or (ZERO,))))
        return Load(storage.buffer, *self._index(storage.buffer, where))

    def _other_lanes(
        self, reader: _LocalReader, places: Sequence[Expr]
    ) -> dict[ParallelType, Expr]:
        """Return the numbers of the thread that has a LOCAL element; none where this one has it.

        None either where threads of the block take no part, or want different registers.
        """
        producer, consumer = reader.producer.siblings[0], reader.env.tensor.siblings[0]
        path = self.plan.forest.path(consumer)
        found: dict[ParallelType, Expr] = {}
        leaves = zip(self.plan.promotions[producer].leaf, producer.domain.leaf, strict=True)
        for node, axis in leaves:
            spec = self.plan.spec(axis)
            dimension = spec.parallel
            if not dimension.is_block or dimension in self.plan.crossed[producer]:
                continue
            whole = self.algebra.equal(spec.extent, self.plan.launch.get(dimension, ONE))
            if axis.is_reduction or not whole:
                return {}
            if self.plan.forest.find(axis) not in path:
                found[dimension] = self.in_numbers(reader.value(node, axis))
        own = all(value is LaunchIndex(dimension) for dimension, value in found.items())
        alone = {n for place in places for n in walk(self.in_numbers(place))}
        return {} if own or any(isinstance(n, LaunchIndex) for n in alone) else found

    def in_numbers(self, value: Expr) -> Expr:
        """Return an index with the numbers of threads in place of the loops bound to them."""
        bound: dict[Expr, Expr] = {
            node: LaunchIndex(self.nest.spec_of[node].parallel)
            for node in walk(value)
            if isinstance(node, Index) and self.nest.spec_of[node].parallel.is_thread
        }
        return self.algebra.simplify(substitute(value, bound)) if bound else value

    def _mask(self, lanes: Mapping[ParallelType, Expr]) -> int:
        """Return what the number of a lane and that of the lane it reads differ by as bits, or 0.

        0 too where that is not the same for all, or other warps have the element.
        """
        number: Expr = ZERO
        step: Expr = ONE
        for dimension in BLOCK_DIMENSIONS if lanes else ():
            at = self.algebra.mul(lanes.get(dimension, LaunchIndex(dimension)), step)
            number = self.algebra.add(number, at)
            step = self.algebra.mul(step, self.plan.launch.get(dimension, ONE))
        found = self.limits.in_threads(number) if lanes else None
        masks = {own ^ other for own, other in enumerate(found or ())}
        mask = masks.pop() if len(masks) == 1 else 0
        return mask if mask < WARP else 0

    def _shuffled(self, offered: Load, mask: int, env: Environment) -> Local:
        """Return what another lane has at the place of `offered`."""
        name = self.names.local(offered)
        self.shuffles.append(Shuffle(name, offered, "xor", integer(mask), env.tensor.origin))
        return name

    def taken(self) -> tuple[Shuffle, ...]:
        """Return the shuffles of the phase at hand, once."""
        made = tuple(self.shuffles)
        self.shuffles.clear()
        return made

    def _require_strides(self, buffer: Buffer, env: Environment) -> None:
        """Take a symbolic stride to be a multiple of the vector of loads along another axis."""
        lanes = self.vectors.lanes.intersection(env.known.values())
        if ONE not in buffer.strides:
            return
        for lane in lanes:
            for stride in buffer.strides:
                if isinstance(stride, Symbol) and isinstance(lane, Index):
                    self.vectors.require(stride, lane.extent)

    def _at(self, template: Expr, env: Environment, data: Mapping[Expr, Expr]) -> Expr:
        """Return an index of a read at the element at hand; `data` is what other reads find."""
        root = env.tensor.domain.root
        if isinstance(template, Coordinate):
            return self.need(env, root[template.number])
        known: dict[Expr, Expr] = {c: self.need(env, root[c.number]) for c in coordinates(template)}
        return self.algebra.simplify(substitute(template, {**known, **data}))

    def match(self, producer: TensorView, consumer: TensorView) -> Match:
        """Return the correspondence of the axes of direct neighbours, made once."""
        key = (producer, consumer)
        found = self._matches.get(key)
        if found is None:
            found = self._matches[key] = match_leaves(producer, consumer)
        return found


class _LocalReader:
    """Find the index of a LOCAL producer's buffer from its consumer's loops."""

    def __init__(
        self,
        accesses: Accesses,
        producer: TensorView,
        env: Environment,
        index: dict[IterDomain, Expr],
    ) -> None:
        self.accesses, self.producer, self.env = accesses, producer, env
        self.promotion: Promotion = accesses.plan.promotions[producer]
        self.base = index
        self.found: dict[IterDomain, Expr] = {}

    def value(self, node: IterDomain, own: IterDomain) -> Expr:
        """Return the index along the axis `own` of the producer, whose loop runs over `node`."""
        consumer = self.env.promotion
        if node is own:
            match = self.accesses.match(self.producer, self.env.tensor)
            image = match.image.get(own)
            exact = own in match.exact and image not in consumer.image
            if image is not None and exact and image in self.env.known:
                return self.env.known[image]
        return self._forward(node)

    def allocated(self, axis: IterDomain) -> Expr:
        """Return the index along an axis of the producer's allocation domain."""
        return self._forward(axis) if self.promotion.image else self.value(axis, axis)

    def _forward(self, node: IterDomain) -> Expr:
        value = self.found.get(node)
        if value is not None:
            return value
        if node in self.base:
            value = self.base[node]
        elif node in self.env.known:
            value = self.env.known[node]
        elif (same := self._by_class(node)) is not None:
            value = same
        elif (alike := self.env.alike(node)) is not None:
            value = alike
        elif node.definition is not None:
            step = node.definition
            inputs = [self._forward(a) for a in step.inputs]
            inputs += [self._loop(a) for a in step.given()]
            values = step.forward(inputs, self.accesses.algebra)
            self.found.update(zip(step.outputs, values, strict=True))
            return self.found[node]
        else:
            value = self._root(node)
        self.found[node] = value
        return value

    def _loop(self, axis: IterDomain) -> Expr:
        """Return the index of a loop around a tile, which the producer shares with its readers."""
        plan, reader = self.accesses.plan, self.env.tensor
        group = plan.forest.find(plan.promoter.loop_of.get(axis, axis))
        if group not in plan.forest.path(reader.siblings[0]):
            raise InternalError(
                f"{self.producer.name} read by {reader.name}",
                f"its tile moves with a loop of extent {axis.size} that they do not share",
            )
        return self.accesses.nest.index_of[group]

    def _by_class(self, node: IterDomain) -> Expr | None:
        """Return the reader's index of the axis of the math that `node` runs over, or None."""
        class_of = self.accesses.plan.forest.class_of
        group = class_of.get(node)
        if group is None:
            return None
        for axis, value in self.base.items():
            other = class_of.get(axis)
            if other is not None and other.find() is group.find() and not axis.is_broadcast:
                return value
        return self.env.of_class(group.find())

    def _root(self, node: IterDomain) -> Expr:
        if node in self.base:
            return self.base[node]
        promoter = self.accesses.plan.promoter
        if promoter.keys(node).isdisjoint(promoter.held(self.producer)):
            return ZERO  # the producer lacks this axis: it has the same value all along it
        raise InternalError(
            f"{self.producer.name} read by {self.env.tensor.name}",
            f"the index of an axis of extent {node.size} is not known",
        )


def _divisions(value: Expr) -> int:
    return sum(1 for node in walk(value) if isinstance(node, Op) and node.op in ("floordiv", "mod"))
