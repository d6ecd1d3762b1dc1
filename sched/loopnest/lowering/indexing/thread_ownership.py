"""Pass "ownership": a value that threads do not share is read by the thread that wrote it.

Requires the statements, and what was read where (`Indexer.readings`). Ensures that each element of
a LOCAL tensor which a thread reads was stored by that thread, or by a lane that a shuffle of whole
warps brings it from, and each one of a SHARED tensor by a thread of that block (rule 39).
It changes nothing. It comes right after indexing, whose indices decide that: the place that is read
in the buffer, the loops that the tensor shares with its consumer, and the reading thread's own
number give all loop indices of a store; the element stored there must be the one that is read, and
the thread must run so far and under no test that fails.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from loopnest.base.errors import LoweringError
from loopnest.base.fast_init import fast_init
from loopnest.lowering.indexing.accesses import Reading
from loopnest.lowering.indexing.axis_indices import Environment
from loopnest.lowering.indexing.indexer import Indexer
from loopnest.lowering.loops.loop_plan import LoopPlan, LoopSpec, is_reduced, is_trivial
from loopnest.lowering.loops.never_empty import AtLeastOne
from loopnest.lowering.loops.reshaped_axes import axes_behind
from loopnest.lowering.reductions.grid_reduction import result_loops
from loopnest.scalar.access_bounds import AccessBounds, without_remainders
from loopnest.scalar.enums import BLOCK_DIMENSIONS, WARP, Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    substitute,
    walk,
)
from loopnest.scalar.launch_bounds import LaunchBounds
from loopnest.schedule.loop_forest import LoopGroup
from loopnest.tensor.domain import IterDomain, Merge, Split
from loopnest.tensor.tensor_view import started_by


def check_readers(indexer: Indexer) -> None:
    """Check every element that is read.

    Raises:
        LoweringError: another thread wrote it, or another block.
    """
    plan = indexer.plan
    if not plan.launch:
        return
    bounds = AccessBounds(LaunchBounds(plan.launch, plan.algebra), plan.algebra)
    for reading in indexer.accesses.readings:
        sizes = [index.extent for index in reading.loops]
        sizes += [axis.size for axis in reading.env.tensor.domain.root]
        if any(size is ZERO for size in sizes):
            continue  # nothing is read: by no iteration, or for no element
        check = _ReadCheck(indexer, bounds, reading)
        if reading.producer.memory is Memory.GLOBAL:
            early = check.early()
            if early is not None:
                raise _error_of_order(reading, *early)
            continue
        foreign = check.foreign()
        if foreign is not None:
            raise _error(plan, reading, foreign)
        alone = check.divergent()
        if alone is not None:
            raise _error_of_warp(reading, alone)


def _error(plan: LoopPlan, reading: Reading, dimension: ParallelType) -> LoweringError:
    producer, consumer = reading.producer, reading.env.tensor
    axes = [
        plan.specs[group].axis
        for unit in (producer, consumer)
        for group in plan.forest.path(unit.siblings[0])
        if plan.specs[group].parallel is dimension
    ]
    named = ", ".join(dict.fromkeys(axes))
    if started_by(producer) is consumer:
        return LoweringError(
            f"{consumer.name} ({producer.memory.value}) starts from {producer.name}",
            f"along {dimension.value} ({named}) the block that folds is not the one that stores "
            "these initial values, and each has a memory of its own",
            f"bind the same axis of both to {dimension.value}, compute {producer.name} at a "
            f"position in {consumer.name} that holds its loop, or set the memory of "
            f"{consumer.name} to GLOBAL before atomic()",
        )
    in_lanes = producer.memory is Memory.WARP
    return LoweringError(
        f"{consumer.name} reads {producer.name} ({producer.memory.value})",
        f"along {dimension.value} ({named}) the reading thread is not the writing one",
        (
            f"let an instruction read it: inline {consumer.name} into its tile (compute_at with "
            "position -1); "
            if in_lanes
            else ""
        )
        + f"compute {producer.name} at a position in {consumer.name} that holds the "
        f"{dimension.value} loop, bind the same axis of both to it, or set its memory to "
        + ("GLOBAL" if dimension.is_grid else "SHARED or GLOBAL"),
    )


def _error_of_warp(reading: Reading, test: Expr) -> LoweringError:
    producer, consumer = reading.producer.name, reading.env.tensor.name
    return LoweringError(
        f"{consumer} reads {producer} (local)",
        f"other lanes of the warp have the elements, which takes a shuffle by all {WARP} of them, "
        f"and some may fail the test {test} alone",
        f"let whole warps have it: let axes of {WARP} elements or more be those of block_x, assume "
        f"that tiles divide the size, or set the memory of {producer} to SHARED",
    )


def _error_of_order(reading: Reading, serial: LoopSpec, threads: LoopSpec) -> LoweringError:
    producer, consumer = reading.producer.name, reading.env.tensor.name
    return LoweringError(
        f"{consumer} reads {producer} (global)",
        f"one thread of the {threads.parallel.value} loop {threads.axis} stores an element for all "
        f"that have it, and may do so in a later iteration of the {serial.parallel.value} loop "
        f"{serial.axis} than one that reads it",
        f"compute {producer} outside of the loop {serial.axis}, set its memory to LOCAL or SHARED, "
        f"or order the loops so that {threads.axis} is the faster one of the two",
    )


@fast_init
@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop around the store: its launch dimension, and its index in the reading thread."""

    group: LoopGroup
    dimension: ParallelType
    index: Expr


class _ReadCheck:
    """One read, and the store that the same thread would have made of the element."""

    def __init__(self, indexer: Indexer, bounds: AccessBounds, reading: Reading) -> None:
        self.indexer, self.reading = indexer, reading
        self.plan, self.algebra = indexer.plan, indexer.algebra
        self.producer = reading.producer
        unit = reading.env.tensor.siblings[0]
        self.bounds = bounds
        self.path = self.plan.forest.path(unit)
        self._numbers: dict[ParallelType, Expr] = {}

    @cached_property
    def zero(self) -> dict[Expr, Expr]:
        """The indices that are 0 where the tests of the reader hold."""
        reading, bounds = self.reading, self.bounds
        found: dict[Expr, Expr] = {
            c.args[0]: ZERO
            for c in reading.conditions
            if isinstance(c, Op) and c.op == "eq" and c.args[1] is ZERO
        }
        for index in (*reading.loops, *map(LaunchIndex, self.plan.launch)):
            if bounds.only_zero(index, reading.conditions):
                found[index] = ZERO
        found |= {i: ZERO for i in reading.loops if bounds.limits.at_most_one(i.extent)}
        return found | {LaunchIndex(d): ZERO for d in self.plan.launch if bounds.limits.has_one(d)}

    @cached_property
    def conditions(self) -> tuple[Expr, ...]:
        """The tests of the reader, under themselves."""
        return tuple([self._here(c) for c in self.reading.conditions])

    def number(self, dimension: ParallelType) -> Expr:
        """Return the number of the reading thread along a dimension."""
        found = self._numbers.get(dimension)
        if found is None:
            found = self._numbers[dimension] = self._number(dimension)
        return found

    def _number(self, dimension: ParallelType) -> Expr:
        if dimension in self.reading.lanes:
            return self.reading.lanes[dimension]
        for index in self.reading.loops:
            if self.indexer.nest.spec_of[index].parallel is dimension:
                return self.zero.get(index, index)
        return self.zero.get(LaunchIndex(dimension), LaunchIndex(dimension))

    def _here(self, value: Expr) -> Expr:
        """Return an expression under the tests of the reader that an index is 0."""
        return self.algebra.simplify(substitute(value, self.zero)) if self.zero else value

    def _equal(self, a: Expr, b: Expr) -> bool:
        """Whether two expressions are equal where the tests of the reader hold."""
        a, b = self._here(a), self._here(b)
        if self.algebra.equal(a, b):
            return True
        known = [without_remainders(e, self.conditions, self.algebra) for e in (a, b)]
        if self.algebra.equal(*[self.algebra.simplify(e) for e in known]):
            return True
        return bool(self.reading.lanes) and self._equal_in_threads(a, b)

    def _equal_in_threads(self, a: Expr, b: Expr) -> bool:
        """Whether two indices are equal in each thread of a block."""
        in_numbers = self.indexer.accesses.in_numbers
        found = [self.bounds.limits.in_threads(in_numbers(index)) for index in (a, b)]
        return found[0] is not None and found[0] == found[1]

    def divergent(self) -> Expr | None:
        """Return a test of a read from another lane that some lanes of a warp may fail alone."""
        if not self.reading.lanes:
            return None
        split, stretch = set[ParallelType](), 1
        for dimension in BLOCK_DIMENSIONS:
            extent = self.plan.launch.get(dimension, ONE)
            if stretch % WARP:
                split.add(dimension)
            stretch *= int(extent.value) if isinstance(extent, Const) else 0
        for condition in self.reading.conditions:
            nodes = list(walk(self.indexer.accesses.in_numbers(condition)))
            apart = any(isinstance(n, LaunchIndex) and n.dimension in split for n in nodes)
            if apart or any(isinstance(n, (Load, Local)) for n in nodes):
                return condition
        return None

    @property
    def _in_tile(self) -> bool:
        """Whether the read stands in a tile, whose lanes read each other's elements."""
        specs = [self.indexer.nest.spec_of[index] for index in self.reading.loops]
        return any(spec.tile is not None for spec in specs)

    @property
    def _in_lane(self) -> bool:
        """Whether the read is of an element that the reading lane must hold itself."""
        return self.producer.memory is Memory.WARP and not self._in_tile

    def foreign(self) -> ParallelType | None:
        """Return a dimension along which another thread wrote the element, None where none is."""
        memory = Memory.LOCAL if self._in_lane else self.producer.memory
        around = [(group, d) for group, d in self._thread_loops() if not memory.spans(d)]
        # A state of an earlier step has the elements of all iterations.
        earlier = self.producer in self.reading.env.tensor.carried
        if all(group in self.path for group, _ in around) and not (earlier and around):
            return None  # the store and the read stand in one iteration of each: in one thread
        loops = [_Loop(group, d, self.number(d)) for group, d in around]
        for loop in loops:
            if not self._runs(loop):
                return loop.dimension
        stored = Environment(self.plan, self.producer, self._store_indices())
        for axis, wanted in self.reading.element.items():
            if axis.is_broadcast or (axis.is_step and self.indexer.storage[self.producer].rooms):
                continue
            found = stored.index(axis)
            found = ZERO if found is None else found
            if not self._equal(found, wanted):
                return self._blame(loops, (found, wanted))
        if not self._stored(stored):
            return loops[0].dimension
        return None

    # The order of a GLOBAL store and its reads

    def early(self) -> tuple[LoopSpec, LoopSpec] | None:
        """Return a loop that may read an element before it is stored, and the loop that is why.

        Where threads run over axes that a GLOBAL tensor lacks, those with 0 along these store it
        for all (`redundant_writes`). A serial loop over parts of the same axes, around both the
        store and the read, must not come to the read first.
        """
        alone = self._stored_at_zero()
        for group in self.plan.forest.path(self.producer.siblings[0]) if alone else ():
            spec = self.plan.specs[group]
            if group not in self.path or spec.parallel.is_thread or is_trivial(spec):
                continue
            node = self._node(group)
            causes = [cause for root, cause in alone.items() if root in axes_behind(node)]
            if causes and not _grows(node, alone):
                return spec, causes[0]
        return None

    def _node(self, group: LoopGroup) -> IterDomain:
        """Return what a loop around the producer runs over, in terms of the producer's loops."""
        leaf = self.producer.domain.leaf
        promoted = self.plan.promotions[self.producer].leaf
        for axis, node in zip(leaf, promoted, strict=True):
            if self.plan.forest.find(axis) is group:
                return node
        return self.plan.promoter.node_of[group]

    def _stored_at_zero(self) -> dict[IterDomain, LoopSpec]:
        """Return the axes at 0 of which the producer is stored, and which loop is over each."""
        promoter, found = self.plan.promoter, dict[IterDomain, LoopSpec]()
        held = promoter.held(self.producer)
        promoted = self.plan.promotions[self.producer].leaf
        for axis, node in zip(self.producer.domain.leaf, promoted, strict=True):
            spec = self.plan.spec(axis)
            if not spec.parallel.is_thread or promoter.concrete_keys(node).isdisjoint(held):
                continue
            for root in promoter.parts_of(node, held):
                if not root.is_broadcast and promoter.keys(root).isdisjoint(held):
                    found.setdefault(root, spec)
        return found

    # The thread of a store

    def _thread_loops(self) -> list[tuple[LoopGroup, ParallelType]]:
        """Return the loops around the last store of an element that are bound to threads.

        All threads have the result of a reduction over threads.
        """
        unit = self.producer.siblings[0]
        path = result_loops(self.plan, unit) if is_reduced(unit) else self.plan.forest.path(unit)
        specs = [(group, self.plan.specs[group]) for group in path]
        return [
            (group, spec.parallel)
            for group, spec in specs
            if spec.parallel.is_thread
            and not is_trivial(spec)
            # an exchange gives it to every thread
            and spec.parallel not in self.plan.crossed[unit]
        ]

    def _runs(self, loop: _Loop) -> bool:
        """Whether the loop around the store has an iteration for the reading thread."""
        extent = self.plan.specs[loop.group].extent
        if loop.index is ZERO or loop.group in self.path or loop.dimension in self.reading.lanes:
            return True
        # A thread beyond the end of the loop around the store stored nothing, whatever it reads.
        if self.algebra.proves_lt(loop.index, extent) or self._is_tested(loop.index, extent):
            return True
        return isinstance(loop.index, Index) and self.algebra.proves_le(loop.index.extent, extent)

    def _is_tested(self, value: Expr, size: Expr) -> bool:
        """Whether a test of the reader says that a value is below a size."""
        for condition in self.conditions:
            if isinstance(condition, Op) and condition.op == "lt":
                small, large = condition.args
                gap = self.algebra.sub(small, value)
                if self.algebra.proves_le(ZERO, gap) and self.algebra.proves_le(large, size):
                    return True
        return False

    def _store_indices(self) -> tuple[Expr | None, ...]:
        """Return what the loops of the producer run at where the reading thread stores."""
        slot = dict(zip(self.reading.slots, self.reading.place, strict=True))
        result: list[Expr | None] = []
        folds = is_reduced(self.producer.siblings[0])  # else it has one iteration, as others have
        for place, axis in enumerate(self.producer.domain.leaf):
            spec, group = self.plan.spec(axis), self.plan.forest.find(axis)
            if axis.is_reduction and folds:
                result.append(None)
            elif place in slot and not (self._in_lane and spec.parallel.is_thread):
                result.append(self._here(slot[place]))
            elif is_trivial(spec):
                result.append(ZERO)
            elif spec.parallel.is_thread:
                result.append(self.number(spec.parallel))
            else:  # shared with the reader, or an axis along which nothing differs
                index = self.indexer.nest.index_of[group] if group in self.path else ZERO
                result.append(self._here(index))
        return tuple(result)

    def _stored(self, stored: Environment) -> bool:
        """Whether the store happens there, given that the element exists."""
        held = self.plan.promoter.held(self.producer)
        for step in stored.promotion.steps:
            for axis in step.overshoots(self.algebra):
                value = stored.known.get(axis)
                root = axis.definition is None and axis in self.reading.element
                if value is None or root:  # what is read of a root axis is an element there is
                    continue
                if self.plan.promoter.keys(axis).isdisjoint(held):
                    continue
                if not self._is_below(self._here(value), self.algebra.simplify(axis.size)):
                    return False
        return True

    def _is_below(self, value: Expr, size: Expr) -> bool:
        if self.algebra.proves_lt(value, size) or self._is_tested(value, size):
            return True
        env, promoter = self.reading.env, self.plan.promoter
        held = promoter.held(env.tensor)
        return any(
            self._equal(known, value)
            and self.algebra.equal(self.algebra.simplify(axis.size), size)
            and not promoter.keys(axis).isdisjoint(held)
            for axis, known in env.known.items()
        )

    def _blame(self, loops: Iterable[_Loop], pair: tuple[Expr, Expr]) -> ParallelType:
        """Return the dimension that two indices of an element differ along."""
        nodes = set(walk(self.algebra.sub(*[self._here(value) for value in pair])))
        dimensions = [loop.dimension for loop in loops]
        for loop in loops:
            if loop.index in nodes:
                return loop.dimension
        for dimension in self._in(nodes):
            if dimension in dimensions:
                return dimension
        return dimensions[0]

    def _in(self, nodes: Iterable[Expr]) -> Iterator[ParallelType]:
        for node in nodes:
            if isinstance(node, Index) and node in self.indexer.nest.spec_of:
                yield self.indexer.nest.spec_of[node].parallel


def _grows(node: IterDomain, axes: Container[IterDomain]) -> bool:
    """Whether an index along `node` gets no smaller where one along some axes gets larger."""
    step = node.definition
    if step is None or _is_free_of(node, axes):
        return True
    outer = isinstance(step, (Merge, Split, AtLeastOne)) and step.outputs[0] is node
    return outer and all(_grows(axis, axes) for axis in step.inputs)


def _is_free_of(node: IterDomain, axes: Container[IterDomain]) -> bool:
    """Whether `node` was made from none of some axes."""
    return not any(axis in axes for axis in axes_behind(node))
