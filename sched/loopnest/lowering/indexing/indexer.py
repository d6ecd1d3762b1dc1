"""Pass "indexing": every phase of a computation becomes stores with indices and a value.

Requires the nest and the storage. Ensures `kir` statements in which every access is written in loop
indices, each with the terms of its predicate (placed later). Indices are found by walking the
transforms behind a tensor's loops backward to its root, over the root map to its producers, and,
for a LOCAL producer, forward again to the loops that index its buffer.

Before: ``for i0: define T1``; after: ``for i0: T1[0] = x[i0] * 2.0``.
"""

from __future__ import annotations

from dataclasses import replace

from loopnest.kir import Let, Store
from loopnest.lowering.indexing.accesses import Accesses, WholeVectors
from loopnest.lowering.indexing.axis_indices import Environment
from loopnest.lowering.indexing.phase_terms import PhaseTerms
from loopnest.lowering.loops.guarded_tree import Tree, TreeItem, fresh, made_in, with_buffers
from loopnest.lowering.loops.loop_plan import is_atomic, item_axes, scanned_over
from loopnest.lowering.loops.needed_components import is_needed
from loopnest.lowering.loops.phase_nest import Compute, Nest
from loopnest.lowering.memory.allocation import TensorStorage
from loopnest.lowering.reductions.cooperative_phases import CooperativePhases, looped
from loopnest.lowering.reductions.exchange_body import BlockThreads, FreshNames, Values
from loopnest.lowering.reductions.grid_reduction import GridReduction
from loopnest.lowering.reductions.thread_scans import ThreadScan
from loopnest.scalar.expr import Expr, Index
from loopnest.schedule.fold_order import carries
from loopnest.tensor.definition import started_by
from loopnest.tensor.tensor_view import TensorView


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
        self.accesses = Accesses(nest, storage, self.vectors)
        self.terms = PhaseTerms(self.accesses, stages, flagged, names)

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
