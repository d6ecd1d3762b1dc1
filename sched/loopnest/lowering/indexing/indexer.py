"""Pass "indexing": every phase of a computation becomes stores with indices and a value.

Requires the nest and the storage. Ensures `kir` statements in which every access is written in loop
indices, each with the terms of its predicate (placed later). Indices are found by walking the
transforms behind a tensor's loops backward to its root, over the root map to its producers, and,
for a LOCAL producer, forward again to the loops that index its buffer.

Before: ``for i0: define T1``; after: ``for i0: T1[0] = x[i0] * 2.0``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import TypeAlias

from loopnest.kir import Allocate, Arrive, Let, Shuffle, Store
from loopnest.lowering.indexing.accesses import Accesses, WholeVectors
from loopnest.lowering.indexing.axis_indices import Environment
from loopnest.lowering.indexing.phase_terms import PhaseTerms
from loopnest.lowering.loops.guarded_tree import (
    Guarded,
    PredicateTerm,
    Simple,
    Tree,
    TreeItem,
    fresh,
    made_in,
    with_buffers,
)
from loopnest.lowering.loops.loop_plan import (
    LoopSpec,
    is_atomic,
    item_axes,
    keeps_carry,
    scanned_over,
)
from loopnest.lowering.loops.needed_components import is_needed
from loopnest.lowering.loops.phase_nest import Compute, Nest
from loopnest.lowering.memory.allocation import TensorStorage
from loopnest.lowering.reductions.block_exchange import (
    BlockThreads,
    FreshNames,
    Values,
    reduce_threads,
    row_major,
    scan_threads,
    serial_loop,
)
from loopnest.lowering.reductions.grid_reduction import GridReduction
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    TRUE,
    ZERO,
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    integer,
)
from loopnest.schedule.fold_order import carries
from loopnest.tensor.tensor_view import TensorView, started_by

JointLoops: TypeAlias = "tuple[tuple[Index, LoopSpec], ...]"
"""Loops over values that one exchange combines together, outermost first."""


class Indexer:
    """Turn computation phases into stores.

    Attributes:
        accesses: their indices, and what was read of computed tensors so far.
        terms: their predicates, and the conditions outside of which updates take nothing in.
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
        self.nest, self.plan, self.names = nest, nest.plan, names
        self.algebra = self.plan.algebra
        self.storage, self.stages = storage, stages
        self.exchange = BlockThreads(self.plan.launch, self.algebra, names)
        self.vectors = WholeVectors(nest, assumed=whole_vectors)
        self.accesses = Accesses(nest, storage, self.vectors, names)
        self.terms = PhaseTerms(self.accesses, stages, flagged, names)

    def statements(self, compute: Compute) -> tuple[TreeItem, ...]:
        """Return the statements of one phase, with the terms of their predicates."""
        unit = compute.unit
        environments = self.environments(compute)
        before: list[TreeItem] = []
        self.accesses.exchanging = compute.phase == "define"
        made: tuple[Store | Let | Shuffle, ...]
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
                made = self.finish(environments, values)
            case "begin" | "take" | "exchange" | "start":
                return ThreadScan(self, compute, environments).phase()
            case "update" if item_axes(self.plan, unit):
                return ThreadScan(self, compute, environments).phase()
            case "update" if scanned_over(self.plan, unit):
                return ThreadScan(self, compute, environments).statements()
            case "update" if carries(unit):
                return self._step(compute, unit, environments)
            case "update":
                made = self._update(unit, environments)
            case _:
                made = self._define(unit, environments)
                made = (*self.accesses.taken(), *made)
        guarded = self.terms.guarded(compute, environments[0], made)
        self.accesses.keep_readings(compute, guarded)
        return (*before, *looped(guarded, compute.joint))

    def again(self, tree: Tree) -> TreeItem:
        """Return a copy of a loop, its indices and the buffers that are made in it others."""
        names: dict[Expr, Expr] = {}
        other = {
            buffer: replace(buffer, name=self.names.buffer(f"{buffer.name}_again"))
            for buffer in made_in(tree)
        }
        made = with_buffers(fresh(tree, names), other)
        for old, new in names.items():
            assert isinstance(old, Index)
            assert isinstance(new, Index)
            self.nest.spec_of[new] = self.nest.spec_of[old]
        return made

    def environments(self, compute: Compute) -> list[Environment]:
        """Return the indices of the axes of each output, at a phase of their computation."""
        return [Environment(self.plan, t, compute.indices) for t in compute.unit.siblings]

    # Phases

    def _define(self, unit: TensorView, environments: list[Environment]) -> tuple[Store, ...]:
        definition = unit.definition
        assert definition is not None
        values = self.accesses.values(definition, environments[0])
        fold = started_by(unit)
        if fold is not None:
            buffer = self.storage[unit].buffer
            return (self.accesses.start(environments[0], fold, buffer, values[0]),)
        return tuple(
            [
                self.accesses.store(env, self.storage[env.tensor].buffer, value, "define")
                for env, value in zip(environments, values, strict=True)
                if is_needed(self.plan, env.tensor)
            ]
        )

    def _init(self, unit: TensorView, environments: list[Environment]) -> tuple[Store, ...]:
        definition = unit.definition
        assert definition is not None
        assert definition.reducer is not None
        return tuple(
            [
                self.accesses.store(env, self.storage[env.tensor].accumulator, value, "init")
                for env, value in zip(environments, definition.reducer.identity, strict=True)
                if is_needed(self.plan, env.tensor)
            ]
        )

    def _update(self, unit: TensorView, environments: list[Environment]) -> tuple[Store | Let, ...]:
        definition = unit.definition
        assert definition is not None
        assert definition.reducer is not None
        element = self.accesses.values(definition, environments[0])
        before = tuple(
            [
                self.accesses.load_own(env, self.storage[env.tensor].accumulator)
                for env in environments
            ]
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
            self.accesses.store(env, self.storage[env.tensor].accumulator, value, "update")
            for env, value in after
        ]
        if is_atomic(unit):
            self.accesses.note_start(environments[0])
            stores = [replace(store, atomic=True) for store in stores]
        return (*lets, *stores)

    def _step(
        self, compute: Compute, unit: TensorView, environments: list[Environment]
    ) -> tuple[TreeItem, ...]:
        """Return one step of a scan: the update of what it carries, and the element's store."""
        assert unit.definition is not None
        assert unit.definition.scan is not None
        update = self._update(unit, environments)
        steps: list[tuple[Store | Let, ...]] = [update, self.finish(environments, None)]
        if unit.definition.scan.exclusive:
            steps.reverse()
        guarded = [
            g for made in steps for g in self.terms.guarded(compute, environments[0], made, True)
        ]
        self.accesses.keep_readings(compute, guarded)
        return tuple(guarded)

    def finish(self, environments: list[Environment], values: Values | None) -> tuple[Store, ...]:
        """Return the stores of the results: `values`, or else what the accumulators hold."""
        result: list[Store] = []
        for number, env in enumerate(environments):
            own = self.storage[env.tensor]
            if not is_needed(self.plan, env.tensor):
                continue
            if values is not None:
                result.append(self.accesses.store(env, own.buffer, values[number], "finish"))
            elif own.accumulator is not own.buffer:
                held = self.accesses.load_own(env, own.accumulator)
                result.append(self.accesses.store(env, own.buffer, held, "finish"))
        return tuple(result)


class _ThreadPhases:
    """What phases that threads take part in together are made of, at one place of the nest."""

    def __init__(
        self,
        indexer: Indexer,
        compute: Compute,
        environments: list[Environment],
        accumulators: tuple[Buffer, ...] = (),
    ) -> None:
        self.indexer, self.compute, self.environments = indexer, compute, environments
        self.plan, self.algebra, self.unit = indexer.plan, indexer.algebra, compute.unit
        definition = self.unit.definition
        assert definition is not None
        assert definition.reducer is not None
        self.definition, self.reducer = definition, definition.reducer
        own = [indexer.storage[twin].accumulator for twin in self.unit.siblings]
        self.accumulators = accumulators or tuple(own)
        self.origin = self.unit.placed or self.unit.origin

    def _own(self, buffers: tuple[Buffer, ...]) -> Values:
        """Return what registers hold of the values at hand."""
        load = self.indexer.accesses.load_own
        return tuple([load(e, b) for e, b in zip(self.environments, buffers, strict=True)])

    def _own_stores(
        self, buffers: tuple[Buffer, ...], values: Values, role: str
    ) -> tuple[Store, ...]:
        store = self.indexer.accesses.store
        return tuple([
            store(env, buffer, value, role)
            for env, buffer, value in zip(self.environments, buffers, values, strict=True)
        ])  # fmt: skip

    def _named(self, values: Values) -> tuple[tuple[Let, ...], Values]:
        """Return names for several components: each is computed from all as they were."""
        if len(values) == 1:
            return (), values
        lets = tuple([Let(self.indexer.names.local(v), v, self.origin) for v in values])
        return lets, tuple([let.var for let in lets])

    def _registers(self, stem: str, shape: tuple[Expr, ...]) -> tuple[Buffer, ...]:
        """Return a buffer of a thread for each component."""
        strides, size = row_major(shape, self.algebra), self.algebra.product(shape)
        return tuple([
            Buffer(
                self.indexer.names.buffer(f"{t.name}_{stem}"), t.name, Memory.LOCAL,
                t.dtype.compute, shape, strides, size, "accumulator",
            )
            for t in self.unit.siblings
        ])  # fmt: skip

    def _made(self, buffers: tuple[Buffer, ...]) -> list[TreeItem]:
        return [Allocate(buffer, self.origin) for buffer in buffers]


class CooperativePhases(_ThreadPhases):
    """The phases of a reduction that several threads take part in, after the last update.

    Each thread has folded its own elements in registers. "finish" combines the parts of a block by
    a collective (`reduce_threads`). Where blocks take part too, "publish" leaves the part of a
    block in workspace, "arrive" finds the last block, and "finish" folds what all left, in the
    order of the blocks, so that the result does not depend on which block was last. The threads of
    a block share that fold, each taking some parts; for a reducer that need not commute they take
    as many neighbours at a time as they are, and combine them, turn by turn.

    Before: ``for r0 in 256 (block_x): T2 += x``; after::

        T2_acc = 0; for r0 in 256: T2_acc += x
        v5 = sum(T2_acc) over block_x: ...
        T2 = v5
    """

    def __init__(
        self,
        indexer: Indexer,
        compute: Compute,
        environments: list[Environment],
        accumulators: tuple[Buffer, ...] = (),
    ) -> None:
        super().__init__(indexer, compute, environments, accumulators)
        crossed = self.plan.crossed[self.unit]
        self.threads = tuple([d for d in crossed if d.is_block])
        self.stage: GridReduction | None = indexer.stages.get(self.unit)

    def publish(self) -> list[TreeItem]:
        """Return the statements that leave the part of this block in workspace."""
        assert self.stage is not None
        items, values = self._combined()
        index = self._slot([LaunchIndex(d) for d in self.stage.dims])
        stores = tuple(
            [
                Store(buffer, (*index, *own), value, self.unit.name, "partial", origin=self.origin)
                for buffer, own, value in zip(
                    self.stage.partials, self._places(), values, strict=True
                )
            ]
        )
        kept = (*self.stage.threads, *self.stage.groups, *self.stage.dims)
        one = self.indexer.terms.first_threads(self.unit, kept)
        terms = (*self._taking_part(), *one)
        left = Guarded(stores, terms)
        return [*items, *looped([left], side_by_side(self.compute.joint))]

    def arrive(self) -> list[TreeItem]:
        """Return the arrival of this block, where one block goes on alone."""
        assert self.stage is not None
        if self.stage.counter is None:
            return []
        index = (*map(LaunchIndex, self.stage.groups), *self._loops()) or (ZERO,)
        flag = self.indexer.terms.flag_of(self.unit)
        count = self.algebra.product([self.plan.launch[d] for d in self.stage.dims])
        # Under no test, so that its name is known to all that follows: every block arrives.
        return [Guarded((Arrive(flag, self.stage.counter, index, count, self.origin),), ())]

    def _taking_part(self) -> tuple[PredicateTerm, ...]:
        """Return the tests for blocks that the loops of the reduction reach."""
        assert self.stage is not None
        found: list[PredicateTerm] = []
        for dim, extent in zip(self.stage.dims, self.stage.extents, strict=True):
            if not self.algebra.equal(extent, self.plan.launch[dim]):
                test = self.algebra.lt(LaunchIndex(dim), extent)
                reason = f"{self.unit.name}: {extent} blocks along {dim.value} take part"
                found.append(PredicateTerm(test, reason))
        return tuple(found)

    def finish(self) -> tuple[list[TreeItem], Values]:
        """Return the statements that make the result known to every thread, and the result."""
        if self.stage is None:
            return self._combined()
        terms = self.indexer.terms.flags(self.unit, own=True)
        if self.reducer.ordered and self._rounds() is not ONE and self.threads:
            return self._again()._gather_in_turns(terms), self._own(self.accumulators)
        gathered = self._again()._gather(terms)
        more, values = self._combined()
        return [*gathered, *more], values

    def _again(self) -> CooperativePhases:
        """Return these phases with loops of their own over joint values."""
        names = self.indexer.names
        joint = tuple([(names.index(var.extent), spec) for var, spec in self.compute.joint])
        new = {old: var for (old, _), (var, _) in zip(self.compute.joint, joint, strict=True)}
        return self._where(new, joint)

    def _where(self, known: Mapping[Index, Expr], joint: JointLoops = ()) -> CooperativePhases:
        """Return these phases with other indices in the place of those of joint loops."""
        indices = [known.get(i, i) if isinstance(i, Index) else i for i in self.compute.indices]
        compute = replace(self.compute, indices=tuple(indices), joint=joint)
        return CooperativePhases(
            self.indexer, compute, self.indexer.environments(compute), self.accumulators
        )

    def _combined(self) -> tuple[list[TreeItem], Values]:
        """Return the exchange between threads, under no test, and the value at hand after it.

        Its names are used after it. Joint values are combined at once, and lie in registers then.
        """
        if not self.threads:
            return [], self._own(self.accumulators)
        joint = [var for var, _ in self.compute.joint]
        sizes = [int(var.extent.value) for var in joint if isinstance(var.extent, Const)]
        points = [tuple(map(integer, point)) for point in product(*map(range, sizes))]
        each = [self._where(dict(zip(joint, point, strict=True))) for point in points]
        args = tuple(chain.from_iterable([phases._own(self.accumulators) for phases in each]))
        tree, values = reduce_threads(
            self.indexer.exchange, self.unit.name, self.reducer, args, self.threads, self.origin
        )
        if not joint:
            return [tree], values
        buffers = self._registers("all", tuple([var.extent for var in joint]))
        stores = tuple(
            [
                Store(buffer, point, value, buffer.tensor, "partial", origin=self.origin)
                for (point, buffer), value in zip(product(points, buffers), values, strict=True)
            ]
        )
        held = tuple([Load(buffer, tuple(joint)) for buffer in buffers])
        return [tree, *self._made(buffers), Guarded(stores, ())], held

    def _gather(self, terms: tuple[PredicateTerm, ...]) -> list[TreeItem]:
        """Return the loop that folds what the blocks left, spread over the reduced threads."""
        rounds = self._rounds()
        var = self.indexer.names.index(rounds)
        begin = self._again()._begin(terms)
        updates = self._take_part(ZERO if rounds is ONE else var, terms)
        if rounds is ONE:
            return [*begin, *updates]
        return [*begin, serial_loop(var, self.unit.name, tuple(updates), self.origin)]

    def _gather_in_turns(self, terms: tuple[PredicateTerm, ...]) -> list[TreeItem]:
        """Return the loop in which the reduced threads fold neighbouring parts, some each turn."""
        var = self.indexer.names.index(self._rounds())
        names = self.indexer.names
        held = tuple([replace(b, name=names.buffer(f"{b.tensor}_part")) for b in self.accumulators])
        part = CooperativePhases(self.indexer, self.compute, self.environments, held)
        turn = self._made(held)
        turn += part._again()._begin(())
        turn += part._again()._take_part(var, terms)
        exchange, values = part._combined()
        merge = Guarded(self._merged(values), terms)
        turn += [*exchange, *looped([merge], self.compute.joint)]
        begin = self._again()._begin(terms)
        return [*begin, serial_loop(var, self.unit.name, tuple(turn), self.origin)]

    def _rounds(self) -> Expr:
        """Return how many parts of blocks a thread takes at most."""
        return self.algebra.ceildiv(self._blocks(), self.indexer.exchange.product(self.threads))

    def _begin(self, terms: tuple[PredicateTerm, ...]) -> list[TreeItem]:
        return looped(
            [Guarded(self._own_stores(self.accumulators, self.reducer.identity, "init"), terms)],
            self.compute.joint,
        )

    def _take_part(self, turn: Expr, terms: tuple[PredicateTerm, ...]) -> list[TreeItem]:
        """Return the statements by which a thread takes its part of a turn in."""
        blocks, exchange = self._blocks(), self.indexer.exchange
        width = exchange.product(self.threads)
        number = self.algebra.add(self.algebra.mul(turn, width), exchange.number(self.threads))
        guard: tuple[PredicateTerm, ...] = ()
        if width is not ONE:
            exists = self.algebra.lt(number, blocks)
            if exists is not TRUE:
                guard = (PredicateTerm(exists, f"{self.unit.name}: so many blocks left a part"),)
        merge = Guarded(self._merge(self._slot(self._coordinates(number))), (*terms, *guard))
        return looped([merge], side_by_side(self.compute.joint))

    def _merge(self, index: tuple[Expr, ...]) -> tuple[Simple, ...]:
        """Return the statements that take in what a block left at `index`.

        It is loaded before anything else, so that no load depends on what the combination tests.
        """
        assert self.stage is not None
        left: Values = tuple(
            [
                Load(buffer, (*index, *own))
                for buffer, own in zip(self.stage.partials, self._places(), strict=True)
            ]
        )
        found, left = self._named(left)
        return (*found, *self._merged(left))

    def _merged(self, values: Values) -> tuple[Simple, ...]:
        """Return the statements that combine what is accumulated with `values`."""
        made, folded = self._named(self.reducer.combine(self._own(self.accumulators), values))
        return (*made, *self._own_stores(self.accumulators, folded, "merge"))

    def _coordinates(self, number: Expr) -> list[Expr]:
        """Return the block's coordinates along the reduced dimensions, given its number."""
        assert self.stage is not None
        result: list[Expr] = []
        for extent in self.stage.extents[:-1]:
            result.append(self.algebra.mod(number, extent))
            number = self.algebra.floordiv(number, extent)
        return [*result, number]

    def _slot(self, coordinates: list[Expr]) -> tuple[Expr, ...]:
        assert self.stage is not None
        groups = [LaunchIndex(d) for d in self.stage.groups]
        threads = [LaunchIndex(d) for d in self.stage.threads]
        return (*coordinates, *groups, *self._loops(), *threads)

    def _loops(self) -> list[Expr]:
        assert self.stage is not None
        return [self.indexer.nest.index_of[group] for group in self.stage.loops]

    def _blocks(self) -> Expr:
        assert self.stage is not None
        return self.algebra.product(self.stage.extents)

    def _places(self) -> list[tuple[Expr, ...]]:
        """Return by output the indices of the accumulator, none where it has one element."""
        result: list[tuple[Expr, ...]] = []
        for env in self.environments:
            places = self.indexer.storage[env.tensor].partial_places
            result.append(tuple([env.known[env.promotion.leaf[place]] for place in places]))
        return result


def looped(items: Sequence[TreeItem], loops: JointLoops) -> list[TreeItem]:
    """Return the items inside of loops."""
    result = list(items)
    for var, spec in reversed(loops):
        result = [Tree(var, spec, tuple(result))]
    return result


def side_by_side(loops: JointLoops) -> JointLoops:
    """Return the loops, the innermost as lanes: partial results lie next to each other there."""
    return tuple(
        [
            (var, replace(spec, parallel=ParallelType.vectorize) if n == len(loops) else spec)
            for n, (var, spec) in enumerate(loops, 1)
        ]
    )


class ThreadScan(_ThreadPhases):
    """A step of a scan whose loops are bound to threads, at one place of the nest.

    A thread offers the element that it is at, the identity where there is none, so that all threads
    take part in the exchange (`scan_threads`). What they get is what the elements of this step fold
    to up to theirs. Where a loop goes from step to step around the threads, each thread carries
    what all earlier steps fold to, combines it with what it gets, and takes in the whole step.

    Before: ``for i0: for i1 in 256 (block_x): step of T2``; after::

        T2_acc = 0
        for i0: for i1 in 256:
            T2_part = 0; if i0 * 256 + i1 < N: T2_part += x
            v5, v6 = inclusive sum(T2_part) over block_x: ...
            if i0 * 256 + i1 < N: T2_all = T2_acc; T2_all += v5; T2 = T2_all; T2_acc += v6

    A thread may have several items, in loops inside of those that are bound to threads. It folds
    them first, in a copy of their loop that computes nothing else; what lies before its items comes
    from the exchange; and then it goes through them again, from that on.

    Before: ``for i0: for i1 in 64 (block_x): for i2 in 4: step of T2``; after::

        T2_acc = 0
        for i0: for i1 in 64:
            T2_part = 0
            for i3 in 4: if ... < N: T2_part += x
            v5, v6 = exclusive sum(T2_part) over block_x: ...
            if ... < N: T2_before = T2_acc; T2_before += v5; T2_acc += v6; T2_all = T2_before
            for i2 in 4: if ... < N: T2_all += x; T2 = T2_all

    Source: the raking scans of CUB (`BlockScan`, items in a blocked arrangement).
    """

    def __init__(self, indexer: Indexer, compute: Compute, environments: list[Environment]) -> None:
        super().__init__(indexer, compute, environments)
        assert self.definition.scan is not None
        self.scan = self.definition.scan

    def phase(self) -> tuple[TreeItem, ...]:
        """Return the statements of one phase, where a thread has several items."""
        part, before, running = self._items()
        match self.compute.phase:
            case "begin":
                return (Guarded(self._own_stores(part, self.reducer.identity, "init"), ()),)
            case "take":
                return self._kept(self._taken_into(part))
            case "exchange":
                return self._exchange(part, before)
            case "start":
                return self._kept(self._own_stores(running, self._own(before), "partial"))
        finish = self.indexer.finish(self.environments, self._own(running))
        steps: list[tuple[Store | Let, ...]] = [self._taken_into(running), finish]
        if self.scan.exclusive:
            steps.reverse()
        return tuple([item for made in steps for item in self._kept(made)])

    def _taken_into(self, buffers: tuple[Buffer, ...]) -> tuple[Store | Let, ...]:
        """Return the statements that take the element at hand into registers for items."""
        lets, values = self._taken(self._own(buffers))
        return (*lets, *self._own_stores(buffers, values, "update"))

    def _exchange(
        self, part: tuple[Buffer, ...], before: tuple[Buffer, ...]
    ) -> tuple[TreeItem, ...]:
        """Return the statements that find what lies before the items of a thread."""
        carried = keeps_carry(self.plan, self.unit)
        tree, found, whole = scan_threads(
            self.indexer.exchange, self.unit.name, self.reducer, self._own(part),
            scanned_over(self.plan, self.unit), exclusive=True, total=carried, origin=self.origin,
        )  # fmt: skip
        if not carried:
            return (tree, *self._kept(self._own_stores(before, found, "partial")))
        begin = self._own_stores(before, self._own(self.accumulators), "partial")
        lets, values = self._named(self.reducer.combine(self._own(before), found))
        merge: tuple[Store | Let, ...] = (*lets, *self._own_stores(before, values, "merge"))
        # Apart: of statements under one test names come first.
        return (tree, *self._kept(begin), *self._kept(merge), *self._carry_on(whole))

    def _items(self) -> list[tuple[Buffer, ...]]:
        """Return the registers for a thread's items, each for all components."""
        found = [self.indexer.storage[twin].items for twin in self.unit.siblings]
        items = [registers for registers in found if registers is not None]
        return [
            tuple([registers.part for registers in items]),
            tuple([registers.before for registers in items]),
            tuple([registers.running for registers in items]),
        ]

    def _kept(self, made: tuple[Store | Let, ...]) -> tuple[Guarded, ...]:
        """Return statements under the tests of an element, and keep what they read."""
        found = self._guarded(made)
        self.indexer.accesses.keep_readings(self.compute, found)
        return found

    def statements(self) -> tuple[TreeItem, ...]:
        """Return the statements of the step, where a thread has one item."""
        carried = keeps_carry(self.plan, self.unit)
        parts = self._registers("part", (ONE,))
        begin = self._stores(parts, self.reducer.identity, "init")
        lets, values = self._taken(_held(parts))
        update = self._guarded((*lets, *self._stores(parts, values, "update")))
        tree, found, whole = scan_threads(
            self.indexer.exchange, self.unit.name, self.reducer, _held(parts),
            scanned_over(self.plan, self.unit), exclusive=self.scan.exclusive, total=carried,
            origin=self.origin,
        )  # fmt: skip
        items: list[TreeItem] = [*self._made(parts), Guarded(begin, ()), *update, tree]
        if carried:
            more, found = self._with_carry(found)
            items += more
        finish = self._guarded(self.indexer.finish(self.environments, found))
        self.indexer.accesses.keep_readings(self.compute, [*update, *finish])
        items += finish
        if carried:
            items += self._carry_on(whole)
        return tuple(items)

    def _taken(self, held: Values) -> tuple[tuple[Let, ...], Values]:
        """Return names, and what `held` and the element at hand combine to."""
        element = self.indexer.accesses.values(self.definition, self.environments[0])
        return self._named(self.reducer.combine(held, element))

    def _with_carry(self, found: Values) -> tuple[list[TreeItem], Values]:
        """Return the statements that combine what is carried with `found`, and the result.

        What is carried comes first: a reducer need not commute.
        """
        both = self._registers("all", (ONE,))
        carry = self._own(self.accumulators)
        begin = tuple([
            Store(b, (ZERO,), value, b.tensor, "partial", origin=self.origin)
            for b, value in zip(both, carry, strict=True)
        ])  # fmt: skip
        lets, values = self._named(self.reducer.combine(_held(both), found))
        merge = self._stores(both, values, "merge")
        # Apart: of statements under one test names come first.
        stores = (*self._guarded(begin), *self._guarded((*lets, *merge)))
        return [*self._made(both), *stores], _held(both)

    def _carry_on(self, whole: Values) -> tuple[Guarded, ...]:
        """Return the statements that take the whole step in.

        A thread without an element at this step has none at later ones, and carries nothing on.
        """
        lets, values = self._named(self.reducer.combine(self._own(self.accumulators), whole))
        stores = self._own_stores(self.accumulators, values, "merge")
        return self._guarded((*lets, *stores))

    # Statements

    def _guarded(self, made: tuple[Store | Let, ...]) -> tuple[Guarded, ...]:
        step = replace(self.compute, phase="update")
        return self.indexer.terms.guarded(step, self.environments[0], made)

    def _stores(
        self, buffers: tuple[Buffer, ...], values: tuple[Expr, ...], role: str
    ) -> tuple[Store, ...]:
        return tuple([
            Store(buffer, (ZERO,), value, buffer.tensor, role, False, env.coordinate(), self.origin)
            for buffer, value, env in zip(buffers, values, self.environments, strict=True)
        ])  # fmt: skip


def _held(buffers: tuple[Buffer, ...]) -> Values:
    """Return what registers hold."""
    return tuple([Load(buffer, (ZERO,)) for buffer in buffers])
