"""Reductions over the threads of a block, as statements: shuffles in a warp, then shared memory.

`reduce_threads` gives the body of one `kir.Collective`: every thread offers a partial result, and
every thread has the combination of its group in the end. A thread may offer several values, each
of which is combined with itself alone: they cross together, in slots of their own, for the price of
one exchange. How that is done depends on the extents of the block alone:

- groups that lie inside warps in powers of two: a butterfly of shuffles;
- groups of whole warps: a butterfly, one slot a warp in shared memory, a butterfly over the slots;
- the whole block, of any extents: the same with tests for lanes that do not exist, the slots folded
  one after the other;
- anything else: dimension by dimension; a dimension that is not one of the above folds in shared
  memory, by halves.

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
        dims: dimensions of the block.
        origin: the place in the user's code.
    """
    body = _Reduction(threads, tensor, reducer, args, origin)
    values = body.run(args, dims)
    results = tuple([v for v in values if isinstance(v, Local)])
    assert len(results) == len(args)
    header = Collective(
        reducer.name, results, args, dims, reducer.identity, reducer.combination, (), origin
    )
    return Tree(None, None, tuple(body.items), header), results


class _Reduction(ExchangeBody):
    """The statements of a reduction over threads."""

    def run(self, args: Values, dims: tuple[ParallelType, ...]) -> Values:
        """Reduce over `dims`; all at once where that is one of the good cases."""
        values = self.named(args)
        extents, used = self.threads.extents, self.threads.dims
        dims = self.threads.along(dims)
        # The cases come by their price: shuffles need no memory, whole warps one slot each, and a
        # dimension by itself a slot a thread.
        if self.threads.in_warp(dims):
            return self._butterfly(values, self._lane_bits(dims))
        leading = used[: used.index(dims[-1]) + 1]
        if dims == leading:
            size = static(self.threads.product(dims))
            if size is not None and size % WARP == 0:
                return self._over_warps(values, size)
            if dims == used:
                return self._over_block(values)
        if len(dims) == 1:
            size = static(extents[dims[0]])
            if size is not None and size <= _FEW:
                return self._read_all(values, dims[0], size)
            return self._by_halves(values, dims[0])
        for dim in dims:
            values = self.run(values, (dim,))
        return values

    # Inside a warp

    def _lane_bits(self, dims: tuple[ParallelType, ...]) -> list[int]:
        """Return the lane offsets that span the groups along `dims`, largest first."""
        result: list[int] = []
        step = 1
        for dim in self.threads.dims:
            size = static(self.threads.extents[dim])
            if dim in dims:
                assert size is not None
                result += [step << bit for bit in range(size.bit_length() - 1)]
            step *= size or 1
            if dim is dims[-1]:
                break
        return result[::-1]

    def _butterfly(self, values: Values, offsets: list[int]) -> Values:
        for offset in offsets:
            others = self.shuffle(values, "xor", integer(offset))
            values = self.named(self.combine(values, others))
        return values

    def _down_tree(self, values: Values) -> Values:
        """Fold each warp into its first lane; what the other lanes then hold is of no use."""
        thread, threads = self.threads.thread(), self.threads.product(self.threads.dims)
        offset = WARP // 2
        while offset:
            others = self.shuffle(values, "down", integer(offset))
            exists = less(self.algebra.add(thread, integer(offset)), threads)
            both = self.combine(values, others)
            values = self.named(
                tuple([where(exists, b, v) for b, v in zip(both, values, strict=True)])
            )
            offset //= 2
        return values

    # Over warps

    def _over_warps(self, values: Values, size: int) -> Values:
        """Reduce groups of `size` neighbouring threads, whole warps."""
        warps = size // WARP
        # All 32 lanes exist: a group is whole warps.
        values = self._butterfly(values, [16, 8, 4, 2, 1])
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
        return self._butterfly(self.named(found), bits[::-1])

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

    def _slots_of_all(self, values: Values) -> tuple[Buffer, ...]:
        """Store the values of every thread, and return the buffers that hold them."""
        dims = self.threads.dims[::-1]
        slots = self.scratch(tuple([self.threads.extents[d] for d in dims]))
        self.store(slots, tuple([LaunchIndex(d) for d in dims]), values, ())
        return slots

    def _place(self, dim: ParallelType, at: Expr) -> Values:
        dims = self.threads.dims[::-1]
        return tuple([at if d is dim else LaunchIndex(d) for d in dims])
