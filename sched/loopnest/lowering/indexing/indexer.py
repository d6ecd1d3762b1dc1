"""Pass "indexing": every phase of a computation becomes stores with indices and a value.

Requires the nest and the storage. Ensures `kir` statements in which every access is written in loop
indices, each with the terms of its predicate (placed later). Indices are found by walking the
transforms behind a tensor's loops backward to its root, over the root map to its producers, and,
for a LOCAL producer, forward again to the loops that index its buffer.

Before: ``for i0: define T1``; after: ``for i0: T1[0] = x[i0] * 2.0``.

Source: the backward traversal is nvFuser's index_compute; rule 26: the loop map forwards merged
broadcasts, the index map does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from loopnest.errors import InternalError, LoweringError
from loopnest.kir import WHOLE_ELEMENTS, Let, Store
from loopnest.kir.buffers import Buffer
from loopnest.kir.loop_bounds import gaps, slope
from loopnest.lowering.indexing.axis_indices import Environment
from loopnest.lowering.indexing.idle_points import live_terms
from loopnest.lowering.indexing.redundant_writes import first_points
from loopnest.lowering.indexing.tile_owners import owners
from loopnest.lowering.loops.guarded_tree import Guarded, PredicateTerm, TreeItem
from loopnest.lowering.loops.loop_plan import is_trivial
from loopnest.lowering.loops.needed_components import is_needed
from loopnest.lowering.loops.phase_nest import Compute, Nest
from loopnest.lowering.loops.promotion import Promotion
from loopnest.lowering.loops.reshaped_axes import axes_behind
from loopnest.lowering.loops.tightening import is_bounded
from loopnest.lowering.memory.allocation import TensorStorage
from loopnest.lowering.reductions.block_reduction import BlockReduction, FreshNames, Values
from loopnest.lowering.reductions.cooperative_phases import CooperativePhases, looped
from loopnest.lowering.reductions.grid_reduction import GridReduction, result_loops
from loopnest.scalar import dtypes
from loopnest.scalar.conditions import decided, normal_le
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    TRUE,
    ZERO,
    Arg,
    Const,
    Coordinate,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    Symbol,
    free_indices,
    integer,
    loads,
    substitute,
    walk,
)
from loopnest.scalar.templates import coordinates
from loopnest.schedule.fold_order import carries
from loopnest.schedule.replay import Match, match_leaves
from loopnest.tensor.definition import Definition, Read
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.overlapping_tiles import is_tile_loop
from loopnest.tensor.tensor_view import TensorView


@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """A read of a tensor that is computed.

    Args:
        producer: the tensor.
        env: the indices of the reader's axes.
        element: which element it is, by logical axis of the producer.
        place: where it lies in a LOCAL or SHARED buffer.
        loops: the indices of the loops around the reader.
        conditions: the tests that the reader is under.
    """

    producer: TensorView
    env: Environment
    element: dict[IterDomain, Expr]
    place: tuple[Expr, ...]
    loops: tuple[Index, ...] = ()
    conditions: tuple[Expr, ...] = ()


class Indexer:
    """Turn computation phases into stores.

    Attributes:
        readings: what was read of computed tensors so far.
    """

    def __init__(
        self,
        nest: Nest,
        storage: dict[TensorView, TensorStorage],
        stages: dict[TensorView, GridReduction],
        flagged: dict[TensorView, tuple[TensorView, ...]],
        names: FreshNames,
        *,
        whole_vectors: bool,
    ) -> None:
        plan = nest.plan
        self.whole_vectors = whole_vectors
        self.requires: dict[str, tuple[Expr, Expr, Expr]] = {}
        """Where vectors are taken to divide sizes: text -> (size, width, test)."""
        self.nest, self.plan, self.names = nest, plan, names
        self.stages, self._flagged = stages, flagged
        self.exchange = BlockReduction(plan.launch, plan.algebra, names)
        self._flags: dict[TensorView, Local] = {}
        self.lanes = {
            var for var, spec in nest.spec_of.items() if spec.parallel is ParallelType.vectorize
        }
        self.algebra = plan.algebra
        self.storage = storage
        self._matches: dict[tuple[TensorView, TensorView], Match] = {}
        self.readings: list[Reading] = []
        self.idle: set[Expr] = set()
        """Conditions outside of which updates take nothing in."""
        self._unguarded: list[Reading] = []

    def statements(self, compute: Compute) -> tuple[TreeItem, ...]:
        """Return the statements of one phase, with the terms of their predicates."""
        unit = compute.unit
        environments = self.environments(compute)
        before: list[TreeItem] = []
        made: tuple[Store | Let, ...]
        match compute.phase:
            case "publish":
                return tuple(CooperativePhases(self, compute, environments).publish())
            case "arrive":
                return tuple(CooperativePhases(self, compute, environments).arrive())
            case "init":
                made = self._init(unit, environments)
            case "finish":
                values: Values | None = None
                if self.plan.crossed[unit]:
                    before, values = CooperativePhases(self, compute, environments).finish()
                made = self._finish(environments, values)
            case "update" if carries(unit):
                return self._step(compute, unit, environments)
            case "update":
                made = self._update(unit, environments)
            case _:
                made = self._define(unit, environments)
        guarded = self._guarded(compute, environments[0], made)
        self._keep_readings(compute, guarded)
        return (*before, *looped(guarded, compute.joint))

    def environments(self, compute: Compute) -> list[Environment]:
        """Return the indices of the axes of each output, at a phase of their computation."""
        return [Environment(self.plan, t, compute.indices) for t in compute.unit.siblings]

    def _keep_readings(self, compute: Compute, guarded: Sequence[Guarded]) -> None:
        """Keep what statements read, with the tests that all of them are under."""
        tests = [dict.fromkeys(t.condition for t in item.terms) for item in guarded]
        first = tests[0] if tests else {}
        conditions = tuple([c for c in first if all(c in found for found in tests)])
        for reading in self._unguarded:
            self.readings.append(replace(reading, loops=compute.loops, conditions=conditions))
        self._unguarded.clear()

    # Blocks that go on alone

    def flag_of(self, unit: TensorView) -> Local:
        """Return the name that says whether this block is the last one of a reduction."""
        found = self._flags.get(unit)
        if found is None:
            name = self.names.buffer(f"{unit.name}_last")
            found = self._flags[unit] = Local(name, dtypes.bool_)
        return found

    def arrivals(self) -> dict[Expr, frozenset[ParallelType]]:
        """Return by flag the grid dimensions whose blocks have all arrived where it is true."""
        return {flag: frozenset(self.stages[unit].dims) for unit, flag in self._flags.items()}

    def flags(self, unit: TensorView, *, own: bool) -> tuple[PredicateTerm, ...]:
        """Return the tests for the blocks that `unit` is computed in."""
        return tuple([
            PredicateTerm(self.flag_of(t), f"{unit.name} is computed in the last block of {t.name}")
            for t in self._flagged[unit] if own or t is not unit
        ])  # fmt: skip

    def first_threads(
        self, unit: TensorView, used: Iterable[ParallelType]
    ) -> tuple[PredicateTerm, ...]:
        """Return the tests that let one thread write what does not use the other dimensions."""
        alone = {d for t in self._flagged[unit] if t is not unit for d in self.plan.crossed[t]}
        free = {*used, *(d for d in alone if d.is_grid)}
        return tuple([
            PredicateTerm(one_thread(d), f"{unit.name} does not use {d.value}, so one writes it")
            for d in self.plan.launch
            if d not in free
        ])  # fmt: skip

    # Phases

    def _define(self, unit: TensorView, environments: list[Environment]) -> tuple[Store, ...]:
        definition = unit.definition
        assert definition is not None
        values = self._values(definition, environments[0])
        return tuple(
            [
                self.store(env, self.storage[env.tensor].buffer, value, "define")
                for env, value in zip(environments, values, strict=True)
            ]
        )

    def _init(self, unit: TensorView, environments: list[Environment]) -> tuple[Store, ...]:
        definition = unit.definition
        assert definition is not None
        assert definition.reducer is not None
        return tuple(
            [
                self.store(env, self.storage[env.tensor].accumulator, value, "init")
                for env, value in zip(environments, definition.reducer.identity, strict=True)
                if is_needed(self.plan, env.tensor)
            ]
        )

    def _update(self, unit: TensorView, environments: list[Environment]) -> tuple[Store | Let, ...]:
        definition = unit.definition
        assert definition is not None
        assert definition.reducer is not None
        element = self._values(definition, environments[0])
        before = tuple(
            [self.load_own(env, self.storage[env.tensor].accumulator) for env in environments]
        )
        after = [
            (env, value)
            for env, value in zip(
                environments, definition.reducer.combine(before, element), strict=True
            )
            if is_needed(self.plan, env.tensor)
        ]
        lets: list[Let] = []
        if len(after) > 1:
            for _, value in after:
                lets.append(Let(self.names.local(value), value, unit.origin))
            after = [(env, let.var) for (env, _), let in zip(after, lets, strict=True)]
        stores = [
            self.store(env, self.storage[env.tensor].accumulator, value, "update")
            for env, value in after
        ]
        return (*lets, *stores)

    def _step(
        self, compute: Compute, unit: TensorView, environments: list[Environment]
    ) -> tuple[TreeItem, ...]:
        """Return one step of a scan: the update of what it carries, and the element's store."""
        assert unit.definition is not None
        assert unit.definition.scan is not None
        update = self._update(unit, environments)
        steps: list[tuple[Store | Let, ...]] = [update, self._finish(environments, None)]
        if unit.definition.scan.exclusive:
            steps.reverse()
        guarded = [g for made in steps for g in self._guarded(compute, environments[0], made)]
        self._keep_readings(compute, guarded)
        return tuple(guarded)

    def _finish(self, environments: list[Environment], values: Values | None) -> tuple[Store, ...]:
        """Return the stores of the results: `values`, or else what the accumulators hold."""
        result: list[Store] = []
        for number, env in enumerate(environments):
            own = self.storage[env.tensor]
            if not is_needed(self.plan, env.tensor):
                continue
            if values is not None:
                result.append(self.store(env, own.buffer, values[number], "finish"))
            elif own.accumulator is not own.buffer:
                held = self.load_own(env, own.accumulator)
                result.append(self.store(env, own.buffer, held, "finish"))
        return tuple(result)

    # Accesses

    def store(self, env: Environment, buffer: Buffer, value: Expr, role: str) -> Store:
        """Return the store of `value` to the element of `buffer` at hand."""
        index, flat = self._own_index(env, buffer)
        placed = env.tensor.placed or env.tensor.origin
        factored = env.tensor.domain.is_factored and role in WHOLE_ELEMENTS
        claim = env.element() if factored else env.coordinate()
        return Store(buffer, index, value, env.tensor.name, role, flat, claim, placed)

    def load_own(self, env: Environment, buffer: Buffer) -> Load:
        """Return the element of `buffer` at hand."""
        index, flat = self._own_index(env, buffer)
        return Load(buffer, index, flat)

    def _own_index(self, env: Environment, buffer: Buffer) -> tuple[tuple[Expr, ...], bool]:
        storage = self.storage[env.tensor]
        if buffer is storage.buffer and storage.axes is not None:
            return self._index(buffer, [self._allocated(env, axis) for axis in storage.axes])
        if buffer.memory is Memory.GLOBAL:
            return self._index(buffer, [self._need(env, a) for a in env.tensor.domain.logical])
        places = storage.places if buffer is storage.buffer else storage.partial_places
        leaf = env.promotion.leaf
        return tuple([env.known[leaf[place]] for place in places]) or (ZERO,), False

    def _need(self, env: Environment, axis: IterDomain) -> Expr:
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

    def _values(self, definition: Definition, env: Environment) -> tuple[Expr, ...]:
        args = self._reads(definition, env)
        values = [definition.value(n, args) for n in range(len(definition.values))]
        root = env.tensor.domain.root
        result: list[Expr] = []
        for value in values:
            known: dict[Expr, Expr] = {
                c: self._need(env, root[c.number]) for c in coordinates(value)
            }
            result.append(decided(substitute(value, known), self.algebra) if known else value)
        return tuple(result)

    def _reads(self, definition: Definition, env: Environment) -> tuple[Expr, ...]:
        """Return what each read finds; those come first that indices are computed from."""
        found: dict[Expr, Expr] = {}
        order = sorted(enumerate(definition.reads), key=lambda item: bool(item[1].data))
        for number, read in order:
            found[Arg(number, read.producer.dtype)] = self._read(read, env, found)
        return tuple([found[Arg(n, r.producer.dtype)] for n, r in enumerate(definition.reads)])

    def _read(self, read: Read, env: Environment, data: Mapping[Expr, Expr]) -> Load:
        producer = read.producer
        storage = self.storage[producer]
        index: dict[IterDomain, Expr] = {
            axis: ZERO if axis.is_broadcast else self._at(template, env, data)
            for axis, template in zip(producer.domain.logical, read.indices, strict=True)
        }
        if producer.strides is not None:
            self._require_strides(storage.buffer, env)
            return Load(storage.buffer, tuple(index.values()))
        if producer.is_input:
            return Load(storage.buffer, *self._index(storage.buffer, list(index.values())))
        reader = _LocalReader(self, producer, env, index)
        promoted, leaf = self.plan.promotions[producer].leaf, producer.domain.leaf
        places = tuple([reader.value(promoted[n], leaf[n]) for n in storage.places])
        self._unguarded.append(Reading(producer, env, index, places))
        if storage.axes is not None:
            where = [reader.allocated(axis) for axis in storage.axes]
        elif storage.buffer.memory is Memory.GLOBAL:
            where = list(index.values())
        else:
            return Load(storage.buffer, places or (ZERO,))
        return Load(storage.buffer, *self._index(storage.buffer, where))

    def _require_strides(self, buffer: Buffer, env: Environment) -> None:
        """Take a symbolic stride to be a multiple of the vector of loads along another axis."""
        lanes = self.lanes.intersection(env.known.values())
        if not self.whole_vectors or ONE not in buffer.strides:
            return
        for lane in lanes:
            for stride in buffer.strides:
                if isinstance(stride, Symbol) and isinstance(lane, Index):
                    self.require(stride, lane.extent)

    def _at(self, template: Expr, env: Environment, data: Mapping[Expr, Expr]) -> Expr:
        """Return an index of a read at the element at hand; `data` is what other reads find."""
        root = env.tensor.domain.root
        if isinstance(template, Coordinate):
            return self._need(env, root[template.number])
        known: dict[Expr, Expr] = {
            c: self._need(env, root[c.number]) for c in coordinates(template)
        }
        return self.algebra.simplify(substitute(template, {**known, **data}))

    def match(self, producer: TensorView, consumer: TensorView) -> Match:
        """Return the correspondence of the axes of direct neighbours, made once."""
        key = (producer, consumer)
        found = self._matches.get(key)
        if found is None:
            found = self._matches[key] = match_leaves(producer, consumer)
        return found

    # Predicates

    def _guarded(
        self, compute: Compute, env: Environment, made: tuple[Store | Let, ...]
    ) -> tuple[Guarded, ...]:
        """Return the statements, those with the same predicate together.

        Outputs of one definition may differ: holes of a LOCAL buffer may be initialised, where its
        loops gave it its axes, and a GLOBAL one has one writer, as have the LOCAL ones that it
        alone is computed in. Updates do not differ (see `nest.accumulates_apart`).
        """
        holes = self._holes(compute, env)
        once = all(twin.memory is Memory.GLOBAL for twin in compute.unit.siblings)
        once = once and not self.plan.crossed[compute.unit]  # all threads have a part
        by_memory = {m: self._terms(compute, env, m, once, holes) for m in Memory}
        stores = [s for s in made if isinstance(s, Store)]
        result: list[Guarded] = []
        for memory, same in groupby(stores, key=lambda store: store.storage.memory):
            first = () if result else tuple([s for s in made if isinstance(s, Let)])
            result.append(Guarded((*first, *same), by_memory[memory]))
        return tuple(result)

    def _terms(
        self,
        compute: Compute,
        env: Environment,
        memory: Memory,
        once: bool,
        holes: dict[Expr, PredicateTerm],
    ) -> tuple[PredicateTerm, ...]:
        is_global = memory is Memory.GLOBAL
        terms: dict[Expr, PredicateTerm] = {}
        own = [self.storage[twin] for twin in compute.unit.siblings]
        own_axes = any(s.axes is not None and s.accumulator is s.buffer for s in own)
        if compute.phase != "init" or is_global or own_axes:
            last = compute.phase == "finish" or not self.plan.crossed[compute.unit]
            terms = {t.condition: t for t in self.flags(compute.unit, own=last)}
            terms |= holes
        if compute.phase == "update":
            for condition in self._live(compute, env):
                reason = f"{compute.unit.name} takes nothing in elsewhere"
                terms[condition] = PredicateTerm(condition, reason)
                self.idle.add(condition)
        for condition in first_points(self.nest, compute, env.known, memory):
            terms[condition] = PredicateTerm(condition, f"{compute.unit.name}: once is enough")
        stored = is_global and any(t.memory is memory for t in compute.unit.siblings)
        for condition in owners(self.plan, env) if stored else ():
            terms[condition] = PredicateTerm(condition, f"{compute.unit.name}: one tile stores it")
        if once or memory is not Memory.LOCAL:
            for term in self._one_writer(compute, Memory.GLOBAL if once else memory):
                terms[term.condition] = term
        return tuple(terms.values())

    def _live(self, compute: Compute, env: Environment) -> Iterator[Expr]:
        """Yield the conditions of an update outside of which it adds the identity.

        Only those that spare iterations of a loop.
        """
        definition, root = compute.unit.definition, env.tensor.domain.root
        assert definition is not None
        for term in live_terms(definition):
            known: dict[Expr, Expr] = {
                c: self._need(env, root[c.number]) for c in coordinates(term)
            }
            data = [n for n in walk(term) if isinstance(n, Arg)]
            if data:
                known.update(self._data(definition, env, data))
            condition = decided(substitute(term, known), self.algebra)
            if isinstance(condition, Op) and self._spares(compute, condition):
                yield condition

    def _data(
        self, definition: Definition, env: Environment, data: Sequence[Arg]
    ) -> dict[Expr, Expr]:
        """Return what some reads of a definition find, which an update reads anyway."""
        before = len(self._unguarded)
        found = self._reads(definition, env)
        del self._unguarded[before:]
        return {arg: found[arg.number] for arg in data}

    def _spares(self, compute: Compute, condition: Expr) -> bool:
        """Whether a condition bounds a loop around a phase, or stands outside of one."""
        used = free_indices(condition)
        if loads(condition):  # one of data bounds a loop over the index that it is compared to
            found = gaps(condition, self.algebra)
            inner = frozenset(v for v in used if all(slope(g, v, self.algebra) for g in found))
            places = {var: n for n, var in enumerate(compute.loops)}
            known = max([places.get(v, 0) for v in used - inner], default=-1)
            used = frozenset(v for v in inner if places.get(v, -1) > known)
        specs = [self.nest.spec_of[var] for var in compute.loops]
        if any(s.parallel is ParallelType.vectorize
               for var, s in zip(compute.loops, specs, strict=True) if var in used):  # fmt: skip
            return False
        # At its best thread a condition may stand outside of all loops over threads.
        serial = [n for n, (var, s) in enumerate(zip(compute.loops, specs, strict=True))
                  if var in used and not s.parallel.is_thread]  # fmt: skip
        last = max(serial, default=-1)
        return any(
            is_bounded(spec.parallel, spec.extent)
            and (var in used or (n > last and not loads(condition)))
            for n, (var, spec) in enumerate(zip(compute.loops, specs, strict=True))
        )

    def _holes(self, compute: Compute, env: Environment) -> dict[Expr, PredicateTerm]:
        """Return the tests that keep a phase to the elements that there are.

        Those of a definition and of an update are the root's; a reduction starts and ends with
        logical elements, also with one that no element of the root belongs to (a part of a split
        that does not divide): it holds the identity, which is read like any other.
        """
        terms: dict[Expr, PredicateTerm] = {}
        domain = env.tensor.domain
        whole = compute.phase not in ("define", "update")
        above = env.above(domain.logical if whole else domain.root)
        for step in env.promotion.steps:
            for axis in step.overshoots(self.algebra):
                if axis in above or not self._concerns(axis, compute.unit):
                    continue
                if not self._follows(env, axis, above):
                    self._hole(env, axis, step.describe(), terms)
            for axis in step.undershoots(self.algebra):
                if axis in env.known and self._concerns(axis, compute.unit):
                    self._before(env, axis, terms)
        for axis in domain.logical if whole else dict.fromkeys((*domain.root, *domain.logical)):
            value = env.part(axis) if whole else env.index_as_part(axis)
            if value is not None:
                self._beyond(env, axis, value, "a loop that others need", terms)
        return terms

    def _concerns(self, axis: IterDomain, unit: TensorView) -> bool:
        """Whether `unit` has any of the axes of the math that `axis` was made from.

        Or is computed in tiles, of which there are no more than its loops have points.
        """
        image, promoter = self.plan.promotions[unit].image, self.plan.promoter
        if not image or not promoter.keys(axis).isdisjoint(promoter.held(unit)):
            return True
        return any(axis in axes_behind(node) for own, node in image.items() if is_tile_loop(own))

    def _follows(self, env: Environment, axis: IterDomain, above: frozenset[IterDomain]) -> bool:
        """Whether the test of what `axis` was made from keeps `axis` within bounds too.

        There is none of the axes `above`.
        """
        step = axis.definition
        if step is None or not above.isdisjoint(step.inputs):
            return False
        if not all(source in env.known for source in step.inputs):
            return False
        return axis in step.follows(self.algebra)

    def _hole(
        self, env: Environment, axis: IterDomain, how: str, terms: dict[Expr, PredicateTerm]
    ) -> None:
        value = env.known.get(axis)
        if value is not None:
            self._beyond(env, axis, value, how, terms)

    def _before(self, env: Environment, axis: IterDomain, terms: dict[Expr, PredicateTerm]) -> None:
        """Add the test that an index, of which loops may make a negative one, is none."""
        condition = self.algebra.lt(integer(-1), env.known[axis])
        if condition is not TRUE:
            condition = normal_le(ZERO, env.known[axis], self.algebra)
            reason = f"{env.tensor.name}: a tile with halo begins in front of the first element"
            terms[condition] = PredicateTerm(condition, reason)

    def _beyond(
        self,
        env: Environment,
        axis: IterDomain,
        value: Expr,
        how: str,
        terms: dict[Expr, PredicateTerm],
    ) -> None:
        size = self.algebra.simplify(axis.size)
        condition = self.algebra.lt(self._first_lane(env.tensor, value, size), size)
        if condition is not TRUE:
            name, root = env.tensor.name, axis.definition is None
            terms[condition] = PredicateTerm(
                condition,
                f"{name}: {how} need not divide {size}",
                self.algebra.lt(value, size) if root else None,
                folded=not (axis.is_iteration and axis in env.tensor.domain.root)
                or axis in _scanned(env.tensor),
            )

    def _first_lane(self, tensor: TensorView, value: Expr, size: Expr) -> Expr:
        """Return the index to test: that of iteration 0 where all of an inner loop agree.

        They do where they are neighbours and the loop's extent divides the size. For the lanes of a
        vector that is required of a symbolic size, or else each lane has a test of its own.
        """
        for node in walk(value):
            if not isinstance(node, Index) or not isinstance(node.extent, Const):
                continue
            first = self.algebra.sub(value, node)
            if not self.algebra.divides(node.extent, first):
                continue
            if self.algebra.divides(node.extent, size):
                return self._first_lane(tensor, first, size)
            if node in self.lanes:
                return self._of_lanes(tensor, node, value, size)
        return value

    def _of_lanes(self, tensor: TensorView, lane: Index, value: Expr, size: Expr) -> Expr:
        if isinstance(size, Const):
            raise LoweringError(
                tensor.name,
                f"its vectorized axis of extent {lane.extent} runs over {size} elements, "
                f"which {lane.extent} does not divide",
                "a vectorized axis must divide: choose another factor",
            )
        if not self.whole_vectors:
            return value
        self.require(size, lane.extent)
        return self.algebra.sub(value, lane)

    def require(self, size: Expr, width: Expr) -> None:
        """Let the program with vectors run only where `width` divides `size`."""
        rest = Op("mod", (size, width), dtypes.index)
        test = Op("eq", (rest, ZERO), dtypes.bool_)
        self.requires.setdefault(str(test), (size, width, test))

    def _one_writer(self, compute: Compute, memory: Memory) -> tuple[PredicateTerm, ...]:
        """Return the tests that let one thread write a tensor without these dimensions.

        One of the launch writes to GLOBAL memory, one of each block to SHARED memory.
        """
        whole = compute.phase in ("update", "define")
        path = self.plan.forest.path(compute.unit)
        loops = path if whole else result_loops(self.plan, compute.unit)
        specs = [self.plan.specs[group] for group in loops]
        used = {spec.parallel for spec in specs if not is_trivial(spec)}
        if memory is Memory.SHARED:
            used.update(d for d in self.plan.launch if d.is_grid)
        used.update(
            d for t in self._flagged[compute.unit] for d in self.plan.crossed[t] if d.is_grid
        )
        return self.first_threads(compute.unit, used)


class _LocalReader:
    """Find the index of a LOCAL producer's buffer from its consumer's loops."""

    def __init__(
        self,
        indexer: Indexer,
        producer: TensorView,
        env: Environment,
        index: dict[IterDomain, Expr],
    ) -> None:
        self.indexer, self.producer, self.env = indexer, producer, env
        self.promotion: Promotion = indexer.plan.promotions[producer]
        self.base = index
        self.found: dict[IterDomain, Expr] = {}

    def value(self, node: IterDomain, own: IterDomain) -> Expr:
        """Return the index along the axis `own` of the producer, whose loop runs over `node`."""
        consumer = self.env.promotion
        if node is own:
            match = self.indexer.match(self.producer, self.env.tensor)
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
            values = step.forward(inputs, self.indexer.algebra)
            self.found.update(zip(step.outputs, values, strict=True))
            return self.found[node]
        else:
            value = self._root(node)
        self.found[node] = value
        return value

    def _loop(self, axis: IterDomain) -> Expr:
        """Return the index of a loop around a tile, which the producer shares with its readers."""
        plan = self.indexer.plan
        group = plan.forest.find(plan.promoter.loop_of.get(axis, axis))
        return self.indexer.nest.index_of[group]

    def _by_class(self, node: IterDomain) -> Expr | None:
        """Return the index of an axis of the math that `node` is, as far as the reader has it."""
        class_of = self.indexer.plan.forest.class_of
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
        promoter = self.indexer.plan.promoter
        if promoter.keys(node).isdisjoint(promoter.held(self.producer)):
            return ZERO  # the producer lacks this axis: it has the same value all along it
        raise InternalError(
            f"{self.producer.name} read by {self.env.tensor.name}",
            f"the index of an axis of extent {node.size} is not known",
        )


def _scanned(tensor: TensorView) -> tuple[IterDomain, ...]:
    """Return the root axis that a scan folds along; none of other definitions."""
    if tensor.definition is None or tensor.definition.scan is None:
        return ()
    return (tensor.domain.root[tensor.definition.scan.axis],)


def _divisions(value: Expr) -> int:
    return sum(1 for node in walk(value) if isinstance(node, Op) and node.op in ("floordiv", "mod"))


def one_thread(dimension: ParallelType) -> Expr:
    """Return the test for the first thread (or block) along a launch dimension."""
    return Op("eq", (LaunchIndex(dimension), ZERO), dtypes.bool_)
