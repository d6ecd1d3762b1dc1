"""Scans over the threads of a block, as statements: shuffles in a warp, then shared memory.

`scan_threads` gives the body of one `kir.Collective`: every thread offers a partial result, and
every thread has the combination of what the threads before it offered, or of these and its own, in
the end; and that of all where it is asked for. Partial results are combined in the order of the
threads, so that a reducer need not commute. How that is done depends on the extents of the block
alone:

- groups that lie inside warps in powers of two: steps of shuffles, each from twice as far as the
  one before;
- groups of whole warps, or the whole block of any extents: the same in each warp, one slot a warp
  in shared memory for its total, a scan of the slots by shuffles in every warp (where the number of
  threads is symbolic, the slots one after the other), and one combination of the two;
- anything else: the steps of a warp through shared memory, a slot a thread.

Barriers are placed by the pass that places them for all others.

Source: Hillis and Steele, "Data parallel algorithms", CACM 1986; the warp and block scans of CUB
(`WarpScanShfl`, `BlockScanWarpScans`).
"""

from __future__ import annotations

from loopnest.kir import Collective
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
from loopnest.scalar import dtypes
from loopnest.scalar.enums import WARP, Memory, ParallelType
from loopnest.scalar.expr import ONE, ZERO, Expr, LaunchIndex, Local, Op, integer
from loopnest.scalar.origin import Origin
from loopnest.tensor.definition import TracedReducer


def scan_threads(
    threads: BlockThreads,
    tensor: str,
    reducer: TracedReducer,
    args: Values,
    dims: tuple[ParallelType, ...],
    *,
    exclusive: bool,
    total: bool,
    origin: Origin | None,
) -> tuple[Tree, Values, Values]:
    """Return the collective that scans `args` over `dims`, and the names of its results.

    Args:
        threads: of the block.
        tensor: the tensor that is scanned, for names.
        reducer: how partial results combine.
        args: the partial result of a thread, one a component.
        dims: dimensions of the block; x runs fastest.
        exclusive: whether a thread gets what lies before it, without its own.
        total: whether the combination of all is asked for.
        origin: the place in the user's code.

    Returns:
        The statements, what each thread gets, and the combination of all (empty if not asked for).
    """
    body = _Scan(threads, tensor, reducer, args, origin)
    found, whole = body.run(args, dims, exclusive=exclusive, total=total)
    results = tuple([v for v in (*found, *whole) if isinstance(v, Local)])
    assert len(results) == len(args) * (2 if total else 1)
    header = Collective(
        reducer.name, results, args, dims, reducer.identity, reducer.combination, (), origin,
        "exclusive" if exclusive else "inclusive",
    )  # fmt: skip
    return Tree(None, None, tuple(body.items), header), found, whole


class _Scan(ExchangeBody):
    """The statements of a scan over threads."""

    def run(
        self, args: Values, dims: tuple[ParallelType, ...], *, exclusive: bool, total: bool
    ) -> tuple[Values, Values]:
        """Return what each thread gets, and the total or nothing."""
        values, used = self.named(args), self.threads.dims
        dims = self.threads.along(dims)
        size = static(self.threads.product(dims))
        one_warp = dims == used and size is not None and size <= WARP
        # The cases come by their price: shuffles need no memory, whole warps one slot each, all
        # else a slot a thread.
        if one_warp or (self.threads.in_warp(dims) and self._is_run(dims)):
            return self._in_warp(values, dims, exclusive=exclusive, total=total)
        if dims == used or (dims == used[: len(dims)] and size is not None and size % WARP == 0):
            return self._over_warps(values, dims, exclusive=exclusive, total=total)
        return self._in_memory(values, dims, exclusive=exclusive, total=total)

    def _is_run(self, dims: tuple[ParallelType, ...]) -> bool:
        """Whether no dimension in use lies between those of `dims`."""
        used = self.threads.dims
        first = used.index(dims[0])
        return used[first : first + len(dims)] == dims

    # Inside a warp

    def _in_warp(
        self, values: Values, dims: tuple[ParallelType, ...], *, exclusive: bool, total: bool
    ) -> tuple[Values, Values]:
        """Scan groups that lie inside warps."""
        used, step = self.threads.dims, 1
        for dim in used[: used.index(dims[0])]:
            step *= static(self.threads.extents[dim]) or 1
        size = static(self.threads.product(dims))
        assert size is not None
        place = self.threads.number(dims)
        so_far = self._steps(values, place, size, step)
        whole: Values = ()
        if total:
            whole = self._of_last(so_far, place, size, step)
        return self._shifted(so_far, place, step) if exclusive else so_far, whole

    def _steps(self, values: Values, place: Expr, size: int, step: int = 1) -> Values:
        """Return what each lane of a group combines to with those before it.

        After the turn by n lanes a lane has what it and the 2n - 1 lanes before it hold.
        """
        distance = 1
        while distance < size:
            others = self.shuffle(values, "up", integer(distance * step))
            both = self.combine(others, values)
            values = self._chosen(less(integer(distance - 1), place), both, values)
            distance *= 2
        return values

    def _shifted(self, values: Values, place: Expr, step: int = 1) -> Values:
        """Return what the lane before has, the identity in the first one of a group."""
        others = self.shuffle(values, "up", integer(step))
        return self.named(self.or_identity(less(ZERO, place), others))

    def _of_last(self, values: Values, place: Expr, size: int, step: int) -> Values:
        """Return what the last lane of each group has."""
        if size == 1:
            return self.named(values)
        if step == 1 and (size == WARP or static(self.threads.product(self.threads.dims)) == size):
            return self.shuffle(values, "lane", integer(size - 1))
        # The groups of a warp have last lanes of their own, and a shuffle has one lane a warp: the
        # last one hands its value down in steps, and each lane keeps what is meant for its group.
        distance = 1
        while distance < size:
            others = self.shuffle(values, "down", integer(distance * step))
            inside = less(self.algebra.add(place, integer(distance)), integer(size))
            values = self._chosen(inside, others, values)
            distance *= 2
        return values

    def _chosen(self, condition: Expr, a: Values, b: Values) -> Values:
        return self.named(tuple([where(condition, x, y) for x, y in zip(a, b, strict=True)]))

    # Over warps

    def _over_warps(
        self, values: Values, dims: tuple[ParallelType, ...], *, exclusive: bool, total: bool
    ) -> tuple[Values, Values]:
        """Scan groups of neighbouring threads: whole warps, or the whole block."""
        algebra, threads = self.algebra, self.threads
        lane, warp = threads.lane(), threads.warp()
        own = self._steps(values, lane, WARP)
        block = threads.product(threads.dims)
        slots = self.scratch((algebra.ceildiv(block, integer(WARP)),), "warps")
        last = equal(lane, integer(WARP - 1))
        if not algebra.divides(integer(WARP), block):
            # The last warp of a block may be partial; its last lane is that of the last thread.
            end = equal(threads.thread(), algebra.sub(block, ONE))
            last = Op("or", (last, end), dtypes.bool_)
        self.store(slots, (warp,), own, self.term(last, "the last lane of each warp stores"))
        size = static(threads.product(dims))
        # A warp needs a lane for each slot; the last one of a block may have less.
        if size is None or -(-size // WARP) > (size % WARP or WARP):
            before, whole = self._slots_in_turn(slots, total=total)
        else:
            before, whole = self._slots_by_lanes(slots, -(-size // WARP), total=total)
        if exclusive:
            own = self._shifted(own, lane)
        return self.named(self.combine(before, own)), whole

    def _slots_by_lanes(
        self, slots: tuple[Buffer, ...], warps: int, *, total: bool
    ) -> tuple[Values, Values]:
        """Return what the warps before this one hold, and all of its group: by shuffles.

        Every warp scans the slots of its group, a slot a lane.
        """
        algebra, threads = self.algebra, self.threads
        lane, warp = threads.lane(), threads.warp()
        mine = algebra.mod(warp, integer(warps))
        first = algebra.sub(warp, mine)
        power = 1 << (warps - 1).bit_length()
        slot = algebra.mod(lane, integer(power))
        exists = less(slot, integer(warps))
        found = self.load(slots, (algebra.add(first, slot),))
        if power != warps:
            found = self.or_identity(exists, found)
        held = self._steps(self.named(found), slot, warps)
        # Of the first warp nothing is asked: the lane of its shuffle is one that exists.
        before = self.shuffle(held, "lane", algebra.max(algebra.sub(mine, ONE), ZERO))
        before = self.named(self.or_identity(less(ZERO, mine), before))
        return before, self.shuffle(held, "lane", integer(warps - 1)) if total else ()

    def _slots_in_turn(self, slots: tuple[Buffer, ...], *, total: bool) -> tuple[Values, Values]:
        """Return what the warps before this one hold, and all: one slot after the other."""
        warps = self.algebra.ceildiv(self.threads.product(self.threads.dims), integer(WARP))
        mine = self.threads.warp()
        made = [self.buffers("before", (ONE,), Memory.LOCAL, "accumulator")]
        if total:
            made.append(self.buffers("total", (ONE,), Memory.LOCAL, "accumulator"))
        for held in made:
            self.store(held, (ZERO,), self.reducer.identity, (), "init")
        var = self.threads.names.index(warps)
        outer, self.items = self.items, []
        # `before` stops at this warp, the total goes on.
        for held, terms in zip(made, (self.term(less(var, mine), "warps before this one"), ()),
                               strict=False):  # fmt: skip
            folded = self.combine(self.load(held, (ZERO,)), self.load(slots, (var,)))
            if len(folded) > 1:
                folded = self.named(folded)
            self.store(held, (ZERO,), folded, terms, "update")
        self.items = [*outer, serial_loop(var, self.tensor, tuple(self.items), self.origin)]
        before, *whole = [self.named(self.load(held, (ZERO,))) for held in made]
        return before, whole[0] if total else ()

    # Through shared memory

    def _in_memory(
        self, values: Values, dims: tuple[ParallelType, ...], *, exclusive: bool, total: bool
    ) -> tuple[Values, Values]:
        """Scan groups of any extents: each thread has a slot."""
        algebra, threads = self.algebra, self.threads
        rest = [d for d in threads.dims[::-1] if d not in dims]
        group = tuple([LaunchIndex(d) for d in rest])
        size, place = threads.product(dims), threads.number(dims)
        slots = self.scratch((*[threads.extents[d] for d in rest], size), "threads")
        self.store(slots, (*group, place), values, ())
        most = 1
        for dim in dims:
            most *= threads.limits.most(dim)
        distance = 1
        while distance < min(most, 1024):
            # Under `where`, since a name that a test guards would have no value outside of it.
            far = less(integer(distance - 1), place)
            there = algebra.sub(place, integer(distance))
            others = self.named(self.or_identity(far, self.load(slots, (*group, there))))
            values = self.named(self.combine(others, values))
            self.store(slots, (*group, place), values, ())
            distance *= 2
        whole: Values = ()
        if total:
            whole = self.named(self.load(slots, (*group, algebra.sub(size, ONE))))
        if not exclusive:
            return values, whole
        before = self.load(slots, (*group, algebra.sub(place, ONE)))
        return self.named(self.or_identity(less(ZERO, place), before)), whole
