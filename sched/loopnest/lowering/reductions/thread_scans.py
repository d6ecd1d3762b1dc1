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

A thread may have several items, in loops inside of those that are bound to threads. It folds them
first, in a copy of their loop that computes nothing else; what lies before its items comes from the
exchange; and then it goes through them again, from that on.

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

from __future__ import annotations

from dataclasses import replace
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
        begin = self._own_stores(before, self._carry(), "partial")
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

    def _own(self, buffers: tuple[Buffer, ...]) -> Values:
        """Return what registers hold of the values at hand."""
        load = self.indexer.accesses.load_own
        return tuple([load(e, b) for e, b in zip(self.environments, buffers, strict=True)])

    def _own_stores(
        self, buffers: tuple[Buffer, ...], values: tuple[Expr, ...], role: str
    ) -> tuple[Store, ...]:
        store = self.indexer.accesses.store
        return tuple([
            store(env, buffer, value, role)
            for env, buffer, value in zip(self.environments, buffers, values, strict=True)
        ])  # fmt: skip

    def _kept(self, made: tuple[Store | Let, ...]) -> tuple[Guarded, ...]:
        """Return statements under the tests of an element, and keep what they read."""
        found = self._guarded(made)
        self.indexer.accesses.keep_readings(self.compute, found)
        return found

    def statements(self) -> tuple[TreeItem, ...]:
        """Return the statements of the step, where a thread has one item."""
        carried = keeps_carry(self.plan, self.unit)
        parts = self._registers("part")
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
        step = replace(self.compute, phase="update")
        return self.indexer.terms.guarded(step, self.environments[0], made)

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
