"""Phases of a reduction that several threads take part in: the statements after the last update.

Each thread has folded its own elements in registers. "finish" combines the parts of a block by a
collective (`exchange`). Where blocks take part too, "publish" leaves the part of a block in
workspace, "arrive" finds the last block, and "finish" folds what all left, in the order of the
blocks, so that the result does not depend on which block was last.

Before: ``for r0 in 256 (block_x): T2 += x``; after::

    T2_acc = 0; for r0 in 256: T2_acc += x
    v5 = sum(T2_acc) over block_x: ...
    T2 = v5
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopnest.kir import Arrive, Let, Store
from loopnest.lowering.loops.guarded_tree import Guarded, PredicateTerm, Simple, Tree, TreeItem
from loopnest.lowering.loops.phase_nest import Compute
from loopnest.lowering.reductions.block_reduction import Values, serial_loop
from loopnest.lowering.reductions.grid_reduction import GridReduction
from loopnest.scalar.expr import ONE, TRUE, ZERO, Expr, LaunchIndex, Load

if TYPE_CHECKING:
    from loopnest.lowering.indexing.axis_indices import Environment
    from loopnest.lowering.indexing.indexer import Indexer


class CooperativePhases:
    """The phases across threads of one definition, at one place of the nest."""

    def __init__(self, indexer: Indexer, compute: Compute, environments: list[Environment]) -> None:
        self.indexer, self.compute, self.environments = indexer, compute, environments
        self.plan, self.algebra = indexer.plan, indexer.algebra
        self.unit = compute.unit
        definition = self.unit.definition
        assert definition is not None
        assert definition.reducer is not None
        self.reducer = definition.reducer
        self.accumulators = tuple([indexer.storage[t].accumulator for t in self.unit.siblings])
        crossed = self.plan.crossed[self.unit]
        self.threads = tuple([d for d in crossed if d.is_block])
        self.stage: GridReduction | None = indexer.stages.get(self.unit)
        self.origin = self.unit.placed or self.unit.origin

    def publish(self) -> list[TreeItem]:
        """Return the statements that leave the part of this block in workspace."""
        assert self.stage is not None
        items, values = self._combined(self._own())
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
        one = self.indexer.first_threads(self.unit, kept)
        terms = (*self._taking_part(), *one)
        return [*items, Guarded(stores, terms)]

    def arrive(self) -> list[TreeItem]:
        """Return the arrival of this block, where one block goes on alone."""
        assert self.stage is not None
        if self.stage.counter is None:
            return []
        index = (*map(LaunchIndex, self.stage.groups), *self._loops()) or (ZERO,)
        flag = self.indexer.flag_of(self.unit)
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
        terms = self.indexer.flags(self.unit, own=True)
        items = self._gather(terms) if self.stage is not None else []
        more, values = self._combined(self._own())
        return [*items, *more], values

    def _combined(self, args: Values) -> tuple[list[TreeItem], Values]:
        """Return the exchange between threads, under no test: its names are used after it."""
        if not self.threads:
            return [], args
        tree, values = self.indexer.exchange.reduce_threads(
            self.unit.name, self.reducer, args, self.threads, self.origin
        )
        return [tree], values

    def _gather(self, terms: tuple[PredicateTerm, ...]) -> list[TreeItem]:
        """Return the loop that folds what the blocks left, spread over the reduced threads."""
        assert self.stage is not None
        start = self._stores(self.reducer.identity, "init")
        blocks, exchange = self._blocks(), self.indexer.exchange
        width = exchange.product(self.threads)
        rounds = self.algebra.ceildiv(blocks, width)
        var = self.indexer.names.index(rounds)
        turn = ZERO if rounds is ONE else var
        number = self.algebra.add(self.algebra.mul(turn, width), exchange.number(self.threads))
        guard: tuple[PredicateTerm, ...] = ()
        if width is not ONE:
            exists = self.algebra.lt(number, blocks)
            if exists is not TRUE:
                guard = (PredicateTerm(exists, f"{self.unit.name}: so many blocks left a part"),)
        index = self._slot(self._coordinates(number))
        left = tuple(
            [
                Load(buffer, (*index, *own))
                for buffer, own in zip(self.stage.partials, self._places(), strict=True)
            ]
        )
        folded = self.reducer.combine(self._own(), left)
        made: tuple[Simple, ...] = ()
        if len(folded) > 1:
            lets = tuple([Let(self.indexer.names.local(v), v, self.origin) for v in folded])
            made, folded = lets, tuple([let.var for let in lets])
        update = Guarded((*made, *self._stores(folded, "merge")), (*terms, *guard))
        if rounds is ONE:
            return [Guarded(start, terms), update]
        loop: Tree = serial_loop(var, self.unit.name, (update,), self.origin)
        return [Guarded(start, terms), loop]

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

    def _own(self) -> Values:
        return tuple(
            [
                self.indexer.load_own(env, buffer)
                for env, buffer in zip(self.environments, self.accumulators, strict=True)
            ]
        )

    def _places(self) -> list[tuple[Expr, ...]]:
        """Return by output the indices of the accumulator, none where it has one element."""
        result: list[tuple[Expr, ...]] = []
        for env in self.environments:
            places = self.indexer.storage[env.tensor].partial_places
            result.append(tuple([env.known[env.promotion.leaf[place]] for place in places]))
        return result

    def _stores(self, values: Values, role: str) -> tuple[Store, ...]:
        return tuple(
            [
                self.indexer.store(env, buffer, value, role)
                for env, buffer, value in zip(
                    self.environments, self.accumulators, values, strict=True
                )
            ]
        )
