"""Reductions over the threads of a block, as statements: shuffles in a warp, then shared memory.

`reduce_threads` gives the body of one `kir.Collective`: every thread offers a partial result, and
every thread has the combination of its group in the end. A thread may offer several values, each
of which is combined with itself alone: they cross together, in slots of their own, for the price of
one exchange. How that is done depends on the extents of the block, and on whether the order of
threads must be kept:

- groups that lie inside warps in powers of two: a butterfly of shuffles;
- groups of whole warps: a butterfly, one slot a warp in shared memory, a butterfly over the slots;
- the whole block, of any extents: the same with tests for lanes that do not exist, the slots folded
  one after the other;
- anything else: dimension by dimension; a dimension that is not one of the above folds in shared
  memory, by halves.

A reducer that need not commute combines neighbours only, the earlier one first. Where all lanes are
to have the result, a butterfly begins with the nearest ones, and the later of two lanes puts the
other's value in front; else each lane takes in what later ones hold, and the first one has all. In
shared memory neighbours are folded in the place of halves.

Source: the warp and block reductions of CUB; Harris, "Optimizing parallel reduction in CUDA".
"""

from __future__ import annotations

from collections.abc import Callable

from loopnest.kir import Collective, Let
from loopnest.kir.buffers import Buffer
from loopnest.lowering.loops.guarded_tree import Tree
from loopnest.lowering.reductions.exchange_body import (
    BlockThreads,
    ExchangeBody,
    Values,
    equal,
    less,
    serial_loop,
    static,
    where,
)
from loopnest.scalar.enums import WARP, Memory, ParallelType
from loopnest.scalar.expr import ONE, ZERO, Expr, LaunchIndex, Local, integer
from loopnest.scalar.origin import Origin
from loopnest.tensor.definition import TracedReducer

_FEW = 8
"""A group of at most that many threads reads all its slots instead of folding by halves."""

_LANE_BITS = [1, 2, 4, 8, 16]
"""The lane offsets that span a warp."""


def reduce_threads(
    threads: BlockThreads,
    tensor: str,
    reducer: TracedReducer,
    args: Values,
    dims: tuple[ParallelType, ...],
    origin: Origin | None,
) -> tuple[Tree, tuple[Local, ...]]:
    """Return the collective that combines `args` over `dims`, and the names of its results.

    Args:
        threads: of the block.
        tensor: the tensor that is reduced, for names.
        reducer: how partial results combine.
        args: the partial results of a thread: of each value, one a component.
        dims: dimensions of the block. Where the reducer need not commute, in the order of threads:
            the first runs fastest.
        origin: the place in the user's code.
    """
    body = _Reduction(threads, tensor, reducer, args, origin)
    values = body.run(args, dims)
    results = tuple([v for v in values if isinstance(v, Local)])
    assert len(results) == len(args)
    header = Collective(
        reducer.name, results, args, dims, reducer.identity, reducer.combination, (), origin,
        ordered=reducer.ordered,
    )  # fmt: skip
    return Tree(None, None, tuple(body.items), header), results


class _Reduction(ExchangeBody):
    """The statements of a reduction over threads."""

    def run(self, args: Values, dims: tuple[ParallelType, ...]) -> Values:
        """Reduce over `dims`; all at once where that is one of the good cases."""
        values = self.named(args)
        extents, used = self.threads.extents, self.threads.dims
        order, dims = dims, self.threads.along(dims)
        if not self.reducer.ordered:
            order = dims
        # The cases come by their price: shuffles need no memory, whole warps one slot each, and a
        # dimension by itself a slot a thread.
        if self.threads.in_warp(dims):
            return self._butterfly(values, self._lane_bits(order))
        leading = used[: used.index(dims[-1]) + 1]
        if order == leading:
            size = static(self.threads.product(dims))
            if size is not None and size % WARP == 0:
                return self._over_warps(values, size)
            if order == used:
                return self._over_block(values)
        if len(dims) == 1:
            size = static(extents[dims[0]])
            if size is not None and size <= _FEW:
                return self._read_all(values, dims[0], size)
            fold = self._by_neighbours if self.reducer.ordered else self._by_halves
            return fold(values, dims[0])
        for dim in order:
            values = self.run(values, (dim,))
        return values

    # Inside a warp

    def _lane_bits(self, dims: tuple[ParallelType, ...]) -> list[int]:
        """Return the lane offsets that span the groups along `dims`, the nearest lanes first."""
        offsets: dict[ParallelType, list[int]] = {}
        step = 1
        for dim in self.threads.dims[: max(map(self.threads.dims.index, dims)) + 1]:
            size = static(self.threads.extents[dim])
            assert size is not None
            offsets[dim] = [step << bit for bit in range(size.bit_length() - 1)]
            step *= size
        return [offset for dim in dims for offset in offsets[dim]]

    def _turns(self, offsets: list[int]) -> list[int]:
        """Return lane offsets, given from the nearest lanes on, in the order of their shuffles."""
        return offsets if self.reducer.ordered else offsets[::-1]

    def _butterfly(self, values: Values, offsets: list[int]) -> Values:
        for offset in self._turns(offsets):
            others = self.shuffle(values, "xor", integer(offset))
            values = self.named(self.combine(*self._in_order(values, others, offset)))
        return values

    def _in_order(self, mine: Values, others: Values, offset: int) -> tuple[Values, Values]:
        """Return what this lane and the one at `offset` hold, that of the earlier lane first."""
        if not self.reducer.ordered:
            return mine, others
        turn = self.algebra.mod(
            self.algebra.floordiv(self.threads.thread(), integer(offset)), integer(2)
        )
        first, *_ = self.named((equal(turn, ZERO),))
        both = [*zip(mine, others, strict=True)]
        earlier = self.named(tuple([where(first, own, other) for own, other in both]))
        return earlier, self.named(tuple([where(first, other, own) for own, other in both]))

    def _down_tree(self, values: Values, *, whole: bool = False) -> Values:
        """Fold each warp into its first lane; what the other lanes then hold is of no use.

        All lanes exist where warps are `whole`.
        """
        thread, threads = self.threads.thread(), self.threads.product(self.threads.dims)
        for offset in self._turns(_LANE_BITS):
            others = self.shuffle(values, "down", integer(offset))
            exists = less(self.algebra.add(thread, integer(offset)), threads)
            both = self.combine(values, others)
            if whole:
                values = self.named(both)
                continue
            values = self.named(
                tuple([where(exists, b, v) for b, v in zip(both, values, strict=True)])
            )
        return values

    # Over warps

    def _over_warps(self, values: Values, size: int) -> Values:
        """Reduce groups of `size` neighbouring threads, whole warps."""
        warps = size // WARP
        # All 32 lanes exist: a group is whole warps.
        # One lane of a warp stores: that the others hold nothing in order spares a choice of sides.
        ordered = self.reducer.ordered
        values = (
            self._down_tree(values, whole=True) if ordered else self._butterfly(values, _LANE_BITS)
        )
        threads = self.threads.product(self.threads.dims)
        slots = self.scratch((self.algebra.ceildiv(threads, integer(WARP)),))
        first = self.term(equal(self.threads.lane(), ZERO), "one lane of each warp stores")
        self.store(slots, (self.threads.warp(),), values, first)
        group = self.algebra.floordiv(self.threads.thread(), integer(size))
        base = self.algebra.mul(group, integer(warps))
        # Every warp of a group reads all slots of the group, a lane each, and repeats them past
        # `power`: the second butterfly then gives all lanes the result, without a second exchange.
        power = 1 << (warps - 1).bit_length()
        slot = self.algebra.mod(self.threads.thread(), integer(power))
        place = self.algebra.add(base, slot)
        found = self.load(slots, (place,))
        if power != warps:
            exists = less(slot, integer(warps))
            found = self.or_identity(exists, found)
        bits = [1 << bit for bit in range(power.bit_length() - 1)]
        return self._butterfly(self.named(found), bits)

    def _over_block(self, values: Values) -> Values:
        """Reduce all threads of a block of any extents."""
        threads = self.threads.product(self.threads.dims)
        values = self._down_tree(values)
        warps = self.algebra.ceildiv(threads, integer(WARP))
        slots = self.scratch((warps,))
        first = self.term(equal(self.threads.lane(), ZERO), "one lane of each warp stores")
        self.store(slots, (self.threads.warp(),), values, first)
        return self._fold_slots(slots, warps, lambda slot: (slot,))

    def _fold_slots(
        self, slots: tuple[Buffer, ...], size: Expr, place: Callable[[Expr], Values]
    ) -> Values:
        """Return the combination of slots 0 to `size`, read by every thread."""
        known = static(size)
        if known is not None and known <= _FEW:
            # Slot 0 always exists, so that no identity is taken in.
            values = self.named(self.load(slots, place(ZERO)))
            for slot in range(1, known):
                found = self.load(slots, place(integer(slot)))
                values = self.named(self.combine(values, found))
            return values
        identity = self.reducer.identity * self.count
        total = self.buffers("total", (ONE,), Memory.LOCAL, "accumulator")
        self.store(total, (ZERO,), identity, (), "init")
        var = self.threads.names.index(size)
        held = self.load(total, (ZERO,))
        folded = self.combine(held, self.load(slots, place(var)))
        outer, self.items = self.items, []
        if len(folded) > 1:
            folded = self.named(folded)
        self.store(total, (ZERO,), folded, (), "update")
        self.items = [*outer, serial_loop(var, self.tensor, tuple(self.items), self.origin)]
        return self.named(self.load(total, (ZERO,)))

    # One dimension through shared memory

    def _read_all(self, values: Values, dim: ParallelType, size: int) -> Values:
        slots = self._slots_of_all(values)
        return self._fold_slots(slots, integer(size), lambda slot: self._place(dim, slot))

    def _by_halves(self, values: Values, dim: ParallelType) -> Values:
        slots = self._slots_of_all(values)
        mine = LaunchIndex(dim)
        size = whole = self.threads.extents[dim]
        # Enough halvings for the largest extent that a launch may have; at smaller ones, the
        # predicate of the last turns holds for no thread.
        for turn in range((self.threads.limits.most(dim) - 1).bit_length()):
            half = self.algebra.ceildiv(whole, integer(2 << turn))
            upper = self.algebra.add(mine, half)
            both = self.combine(
                self.load(slots, self._place(dim, mine)),
                self.load(slots, self._place(dim, upper)),
            )
            terms = self.term(less(upper, size), "this half has a partner")
            # One guarded group: no barrier may stand between the loads and the stores.
            lets = [Let(self.threads.names.local(v), v, self.origin) for v in both]
            stores = self.stores(slots, self._place(dim, mine), [let.var for let in lets])
            self.emit((*lets, *stores), terms)
            size = half
        return self.named(self.load(slots, self._place(dim, ZERO)))

    def _by_neighbours(self, values: Values, dim: ParallelType) -> Values:
        slots = self._slots_of_all(values)
        mine, size = LaunchIndex(dim), self.threads.extents[dim]
        distance = 1
        while distance < self.threads.limits.most(dim):
            there = self.algebra.add(mine, integer(distance))
            both = self.combine(
                self.load(slots, self._place(dim, mine)), self.load(slots, self._place(dim, there))
            )
            begins = equal(self.algebra.mod(mine, integer(2 * distance)), ZERO)
            terms = self.term(begins, "a run begins here")
            terms += self.term(less(there, size), "another run follows")
            # As above: no barrier may stand between the loads and the stores.
            lets = [Let(self.threads.names.local(v), v, self.origin) for v in both]
            stores = self.stores(slots, self._place(dim, mine), [let.var for let in lets])
            self.emit((*lets, *stores), terms)
            distance *= 2
        return self.named(self.load(slots, self._place(dim, ZERO)))

    def _slots_of_all(self, values: Values) -> tuple[Buffer, ...]:
        """Store the values of every thread, and return the buffers that hold them."""
        dims = self.threads.dims[::-1]
        slots = self.scratch(tuple([self.threads.extents[d] for d in dims]))
        self.store(slots, tuple([LaunchIndex(d) for d in dims]), values, ())
        return slots

    def _place(self, dim: ParallelType, at: Expr) -> Values:
        dims = self.threads.dims[::-1]
        return tuple([at if d is dim else LaunchIndex(d) for d in dims])
