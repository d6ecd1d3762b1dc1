"""Phases of a reduction that several threads take part in: the statements after the last update.

Each thread has folded its own elements in registers. "finish" combines the parts of a block by a
collective (`exchange`). Where blocks take part too, "publish" leaves the part of a block in
workspace, "arrive" finds the last block, and "finish" folds what all left, in the order of the
blocks, so that the result does not depend on which block was last. The threads of a block share
that fold, each taking some parts; for a reducer that need not commute they take as many neighbours
at a time as they are, and combine them, turn by turn.

Before: ``for r0 in 256 (block_x): T2 += x``; after::

    T2_acc = 0; for r0 in 256: T2_acc += x
    v5 = sum(T2_acc) over block_x: ...
    T2 = v5
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import TYPE_CHECKING, TypeAlias

from loopnest.kir import Allocate, Arrive, Let, Store
from loopnest.kir.buffers import Buffer
from loopnest.lowering.loops.guarded_tree import Guarded, PredicateTerm, Simple, Tree, TreeItem
from loopnest.lowering.loops.loop_plan import LoopSpec
from loopnest.lowering.loops.phase_nest import Compute
from loopnest.lowering.reductions.block_reduction import reduce_threads
from loopnest.lowering.reductions.exchange_body import Values, row_major, serial_loop
from loopnest.lowering.reductions.grid_reduction import GridReduction
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import ONE, TRUE, ZERO, Const, Expr, Index, LaunchIndex, Load, integer
from loopnest.tensor.tensor_view import TensorView

if TYPE_CHECKING:
    from loopnest.lowering.indexing.axis_indices import Environment
    from loopnest.lowering.indexing.indexer import Indexer

JointLoops: TypeAlias = "tuple[tuple[Index, LoopSpec], ...]"
"""Loops over values that one exchange combines together, outermost first."""


class CooperativePhases:
    """The phases across threads of one definition, at one place of the nest."""

    def __init__(
        self,
        indexer: Indexer,
        compute: Compute,
        environments: list[Environment],
        accumulators: tuple[Buffer, ...] = (),
    ) -> None:
        self.indexer, self.compute, self.environments = indexer, compute, environments
        self.plan, self.algebra = indexer.plan, indexer.algebra
        self.unit = compute.unit
        definition = self.unit.definition
        assert definition is not None
        assert definition.reducer is not None
        self.reducer = definition.reducer
        own = [indexer.storage[twin].accumulator for twin in self.unit.siblings]
        self.accumulators = accumulators or tuple(own)
        crossed = self.plan.crossed[self.unit]
        self.threads = tuple([d for d in crossed if d.is_block])
        self.stage: GridReduction | None = indexer.stages.get(self.unit)
        self.origin = self.unit.placed or self.unit.origin

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
            return self._again()._gather_in_turns(terms), self._own()
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
            return [], self._own()
        joint = [var for var, _ in self.compute.joint]
        sizes = [int(var.extent.value) for var in joint if isinstance(var.extent, Const)]
        points = [tuple(map(integer, point)) for point in product(*map(range, sizes))]
        each = [self._where(dict(zip(joint, point, strict=True))) for point in points]
        args = tuple(chain.from_iterable([phases._own() for phases in each]))
        tree, values = reduce_threads(
            self.indexer.exchange, self.unit.name, self.reducer, args, self.threads, self.origin
        )
        if not joint:
            return [tree], values
        buffers = [
            self._register(twin, tuple(var.extent for var in joint)) for twin in self.unit.siblings
        ]
        stores = tuple(
            [
                Store(buffer, point, value, buffer.tensor, "partial", origin=self.origin)
                for (point, buffer), value in zip(product(points, buffers), values, strict=True)
            ]
        )
        made = [Allocate(buffer, self.origin) for buffer in buffers]
        held = tuple([Load(buffer, tuple(joint)) for buffer in buffers])
        return [tree, *made, Guarded(stores, ())], held

    def _register(self, tensor: TensorView, shape: tuple[Expr, ...]) -> Buffer:
        """Return a buffer for joint values of a thread that were combined."""
        name = self.indexer.names.buffer(f"{tensor.name}_all")
        strides, size = row_major(shape, self.algebra), self.algebra.product(shape)
        dtype = tensor.dtype.compute
        return Buffer(name, tensor.name, Memory.LOCAL, dtype, shape, strides, size, "accumulator")

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
        turn: list[TreeItem] = [Allocate(buffer, self.origin) for buffer in held]
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
            [Guarded(self._stores(self.reducer.identity, "init"), terms)], self.compute.joint
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
        found = self._lets(left) if len(left) > 1 else ()
        if found:
            left = tuple([let.var for let in found])
        return (*found, *self._merged(left))

    def _merged(self, values: Values) -> tuple[Simple, ...]:
        """Return the statements that combine what is accumulated with `values`."""
        folded = self.reducer.combine(self._own(), values)
        made = self._lets(folded) if len(folded) > 1 else ()
        if made:
            folded = tuple([let.var for let in made])
        return (*made, *self._stores(folded, "merge"))

    def _lets(self, values: Values) -> tuple[Let, ...]:
        return tuple([Let(self.indexer.names.local(v), v, self.origin) for v in values])

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
                self.indexer.accesses.load_own(env, buffer)
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
                self.indexer.accesses.store(env, buffer, value, role)
                for env, buffer, value in zip(
                    self.environments, self.accumulators, values, strict=True
                )
            ]
        )


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
