"""Steps of a scan whose loops are bound to threads: what each thread offers, gets and carries on.

A thread offers the element that it is at, the identity where there is none, so that all threads
take part in the exchange (`block_scan`). What they get is what the elements of this step fold to up
to theirs. Where a loop goes from step to step around the threads, each thread carries what all
earlier steps fold to, combines it with what it gets, and takes in the whole step.

Before: ``for i0: for i1 in 256 (block_x): step of T2``; after::

    T2_acc = 0
    for i0: for i1 in 256:
        T2_part = 0; if i0 * 256 + i1 < N: T2_part += x
        v5, v6 = inclusive sum(T2_part) over block_x: ...
        if i0 * 256 + i1 < N: T2_all = T2_acc; T2_all += v5; T2 = T2_all; T2_acc += v6
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopnest.kir import Allocate, Let, Store
from loopnest.kir.buffers import Buffer
from loopnest.lowering.loops.guarded_tree import Guarded, TreeItem
from loopnest.lowering.loops.loop_plan import keeps_carry, scanned_over
from loopnest.lowering.loops.phase_nest import Compute
from loopnest.lowering.reductions.block_scan import scan_threads
from loopnest.lowering.reductions.exchange_body import Values
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import ONE, ZERO, Expr, Load

if TYPE_CHECKING:
    from loopnest.lowering.indexing.axis_indices import Environment
    from loopnest.lowering.indexing.indexer import Indexer


class ThreadScan:
    """A step of a scan over threads, at one place of the nest."""

    def __init__(self, indexer: Indexer, compute: Compute, environments: list[Environment]) -> None:
        self.indexer, self.compute, self.environments = indexer, compute, environments
        self.plan, self.unit = indexer.plan, compute.unit
        definition = self.unit.definition
        assert definition is not None
        assert definition.reducer is not None
        assert definition.scan is not None
        self.definition, self.reducer, self.scan = definition, definition.reducer, definition.scan
        self.origin = self.unit.placed or self.unit.origin

    def statements(self) -> tuple[TreeItem, ...]:
        """Return the statements of the step."""
        carried = keeps_carry(self.plan, self.unit)
        parts = self._registers("part")
        begin = self._stores(parts, self.reducer.identity, "init")
        update = self._guarded(self._taken(parts))
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

    def _taken(self, parts: tuple[Buffer, ...]) -> tuple[Store | Let, ...]:
        """Return the statements that take the element at hand in."""
        element = self.indexer.accesses.values(self.definition, self.environments[0])
        lets, values = self._named(self.reducer.combine(_held(parts), element))
        return (*lets, *self._stores(parts, values, "update"))

    def _with_carry(self, found: Values) -> tuple[list[TreeItem], Values]:
        """Return the statements that combine what is carried with `found`, and the result.

        What is carried comes first: a reducer need not commute.
        """
        both = self._registers("all")
        carry = self._carry()
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
        lets, values = self._named(self.reducer.combine(self._carry(), whole))
        stores = tuple([
            self.indexer.accesses.store(env, self.indexer.storage[env.tensor].accumulator, value,
                                        "merge")
            for env, value in zip(self.environments, values, strict=True)
        ])  # fmt: skip
        return self._guarded((*lets, *stores))

    def _carry(self) -> Values:
        accesses, storage = self.indexer.accesses, self.indexer.storage
        return tuple(
            [accesses.load_own(env, storage[env.tensor].accumulator) for env in self.environments]
        )

    # Statements

    def _guarded(self, made: tuple[Store | Let, ...]) -> tuple[Guarded, ...]:
        return self.indexer.terms.guarded(self.compute, self.environments[0], made)

    def _named(self, values: Values) -> tuple[tuple[Let, ...], Values]:
        """Return names for several components: each is computed from all as they were."""
        if len(values) == 1:
            return (), values
        lets = tuple([Let(self.indexer.names.local(v), v, self.origin) for v in values])
        return lets, tuple([let.var for let in lets])

    def _stores(
        self, buffers: tuple[Buffer, ...], values: tuple[Expr, ...], role: str
    ) -> tuple[Store, ...]:
        return tuple([
            Store(buffer, (ZERO,), value, buffer.tensor, role, False, env.coordinate(), self.origin)
            for buffer, value, env in zip(buffers, values, self.environments, strict=True)
        ])  # fmt: skip

    def _registers(self, stem: str) -> tuple[Buffer, ...]:
        """Return a register for each component."""
        return tuple([
            Buffer(
                self.indexer.names.buffer(f"{t.name}_{stem}"), t.name, Memory.LOCAL,
                t.dtype.compute, (ONE,), (ONE,), ONE, "accumulator",
            )
            for t in self.unit.siblings
        ])  # fmt: skip

    def _made(self, buffers: tuple[Buffer, ...]) -> list[TreeItem]:
        return [Allocate(buffer, self.origin) for buffer in buffers]


def _held(buffers: tuple[Buffer, ...]) -> Values:
    """Return what registers hold."""
    return tuple([Load(buffer, (ZERO,)) for buffer in buffers])
