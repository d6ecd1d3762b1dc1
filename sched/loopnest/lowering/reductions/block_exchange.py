"""Reductions and scans over the threads of a block: names, thread numbers, statements.

Each is the body of one `kir.Collective`, written out as statements (`reduce_threads`,
`scan_threads`). Both fold values of some components by a reducer, by shuffles in a warp and in
scratch buffers in shared memory.

Barriers are not placed here: the pass that places them for all others finds these too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

from loopnest.kir import Allocate, Collective, Let, Shuffle, Store
from loopnest.lowering.loops.guarded_tree import Guarded, PredicateTerm, Simple, Tree, TreeItem
from loopnest.lowering.loops.loop_plan import LoopSpec
from loopnest.scalar import dtypes
from loopnest.scalar.enums import BLOCK_DIMENSIONS, WARP, Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    integer,
)
from loopnest.scalar.launch_bounds import LaunchBounds
from loopnest.scalar.origin import Origin
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.tensor_view import TracedReducer

Values = tuple[Expr, ...]


class FreshNames:
    """Names of temporaries and scratch buffers, unique in a kernel."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self._made = 0

    def local(self, value: Expr) -> Local:
        """Return a new name for a value of that type."""
        return Local(f"v{self._next()}", value.dtype)

    def index(self, extent: Expr) -> Index:
        """Return a new loop index."""
        return Index(f"w{self._next()}", extent)

    def _next(self) -> int:
        self._made += 1
        return self._made - 1

    def buffer(self, stem: str) -> str:
        """Return a new name of a buffer."""
        name, numbers = stem, count(2)
        while name in self.taken:
            name = f"{stem}_{next(numbers)}"
        self.taken.add(name)
        return name


class BlockThreads:
    """The threads of a block, for the exchanges of one kernel.

    Args:
        launch: the extents of the launch.
        algebra: for sizes.
        names: for temporaries and buffers.
    """

    def __init__(
        self, launch: Mapping[ParallelType, Expr], algebra: Simplifier, names: FreshNames
    ) -> None:
        self.algebra, self.names = algebra, names
        self.limits = LaunchBounds(launch, algebra)
        self.dims = tuple([d for d in BLOCK_DIMENSIONS if d in launch])
        self.extents = {d: launch[d] for d in self.dims}

    def product(self, dims: tuple[ParallelType, ...]) -> Expr:
        """Return the number of threads along `dims`."""
        return self.algebra.product([self.extents[d] for d in dims])

    def number(self, dims: tuple[ParallelType, ...]) -> Expr:
        """Return this thread's number along `dims`, the first running fastest."""
        result: Expr = ZERO
        step: Expr = ONE
        for dim in dims:
            result = self.algebra.add(result, self.algebra.mul(LaunchIndex(dim), step))
            step = self.algebra.mul(step, self.extents[dim])
        return result

    def thread(self) -> Expr:
        """Return this thread's number in its block."""
        return self.number(self.dims)

    def along(self, dims: tuple[ParallelType, ...]) -> tuple[ParallelType, ...]:
        """Return those of `dims` that the launch has, the fastest first."""
        return tuple([d for d in self.dims if d in dims])

    def in_warp(self, dims: tuple[ParallelType, ...]) -> bool:
        """Whether groups along `dims`, as `along` has them, are aligned powers of two of lanes."""
        # A lane offset stays in a group only where groups are powers of two and begin at multiples
        # of their size; so must the dimensions below be, which the offset passes over.
        total = 1
        for dim in self.dims[: self.dims.index(dims[-1]) + 1]:
            size = static(self.extents[dim])
            if size is None or size & (size - 1):
                return False
            total *= size
        return total <= WARP

    def lane(self) -> Expr:
        """Return this thread's number in its warp."""
        return self.algebra.mod(self.thread(), integer(WARP))

    def warp(self) -> Expr:
        """Return the number of this thread's warp in its block."""
        return self.algebra.floordiv(self.thread(), integer(WARP))


class ExchangeBody:
    """The statements of one collective, as they are put together.

    Args:
        threads: of the block.
        tensor: the tensor that is folded, for names.
        reducer: how partial results combine.
        args: what a thread offers: of each value, one a component.
        origin: the place in the user's code.
    """

    def __init__(
        self,
        threads: BlockThreads,
        tensor: str,
        reducer: TracedReducer,
        args: Values,
        origin: Origin | None,
    ) -> None:
        self.threads, self.algebra = threads, threads.algebra
        self.tensor, self.reducer, self.origin = tensor, reducer, origin
        self.size = len(reducer.identity)
        self.args, self.types = args, tuple([a.dtype for a in args[: self.size]])
        self.count = len(args) // self.size
        self.items: list[TreeItem] = []

    def collective(
        self,
        values: Values,
        dims: tuple[ParallelType, ...],
        scan: str = "",
        *,
        ordered: bool = False,
    ) -> Tree:
        """Return the statements as a collective over `dims` with `values`, which are names."""
        results = tuple([v for v in values if isinstance(v, Local)])
        assert len(results) == len(values)
        header = Collective(
            self.reducer.name, results, self.args, dims, self.reducer.identity,
            self.reducer.combination, (), self.origin, scan, ordered=ordered,
        )  # fmt: skip
        return Tree(None, None, tuple(self.items), header)

    def combine(self, ours: Values, others: Values) -> Values:
        """Return the combination of two partial results of each value."""
        found: list[Expr] = []
        for start in range(0, len(ours), self.size):
            part = slice(start, start + self.size)
            found += self.reducer.combine(ours[part], others[part])
        return tuple(found)

    def _places(
        self, buffers: tuple[Buffer, ...], index: Values
    ) -> Iterator[tuple[Buffer, Values]]:
        """Yield the place of each component of each value, which has slots of its own."""
        for number in range(self.count):
            own = (integer(number), *index) if self.count > 1 else index
            yield from ((buffer, own) for buffer in buffers)

    def named(self, values: Values) -> Values:
        """Name values; return the names."""
        lets = [Let(self.threads.names.local(v), v, self.origin) for v in values]
        self.emit(tuple(lets), ())
        return tuple([let.var for let in lets])

    def shuffle(self, values: Values, mode: str, offset: Expr) -> Values:
        """Return what another lane offers for each value."""
        made = [Shuffle(self.threads.names.local(v), v, mode, offset, self.origin) for v in values]
        self.emit(tuple(made), ())
        return tuple([s.var for s in made])

    def store(
        self,
        buffers: tuple[Buffer, ...],
        index: Values,
        values: Values,
        terms: tuple[PredicateTerm, ...],
        role: str = "partial",
    ) -> None:
        """Store values to their places, under `terms`."""
        self.emit(self.stores(buffers, index, values, role), terms)

    def stores(
        self,
        buffers: tuple[Buffer, ...],
        index: Values,
        values: Sequence[Expr],
        role: str = "partial",
    ) -> tuple[Store, ...]:
        """Return the stores of values to their places."""
        places = self._places(buffers, index)
        return tuple([
            Store(buffer, own, value, self.tensor, role, origin=self.origin)
            for (buffer, own), value in zip(places, values, strict=True)
        ])  # fmt: skip

    def load(self, buffers: tuple[Buffer, ...], index: Values) -> Values:
        """Return what stands at `index`."""
        return tuple([Load(buffer, own) for buffer, own in self._places(buffers, index)])

    def emit(self, made: tuple[Simple, ...], terms: tuple[PredicateTerm, ...]) -> None:
        """Append statements under `terms`."""
        self.items.append(Guarded(made, terms))

    def term(self, condition: Expr, reason: str) -> tuple[PredicateTerm, ...]:
        """Return one test."""
        return (PredicateTerm(condition, f"{self.tensor}: {reason}"),)

    def or_identity(self, condition: Expr, values: Values) -> Values:
        """Return the values where `condition` holds, else the identity."""
        identity = self.reducer.identity * self.count
        return tuple([where(condition, v, i) for v, i in zip(values, identity, strict=True)])

    def chosen(self, condition: Expr, a: Values, b: Values) -> Values:
        """Return names of `a` where `condition` holds, else of `b`."""
        return self.named(tuple([where(condition, x, y) for x, y in zip(a, b, strict=True)]))

    def fold_in_turn(
        self,
        slots: tuple[Buffer, ...],
        size: Expr,
        place: Callable[[Expr], Values],
        limits: Mapping[str, Expr | None],
    ) -> list[Values]:
        """Return combinations of slots, read by every thread, one slot after the other.

        Args:
            slots: what is folded.
            size: their number.
            place: the place of a slot.
            limits: by the name of a combination: the slot that it stops at, None for the last.
        """
        made = [self.buffers(stem, (ONE,), Memory.LOCAL, "accumulator") for stem in limits]
        for held in made:
            self.store(held, (ZERO,), self.reducer.identity * self.count, (), "init")
        var = self.threads.names.index(size)
        outer, self.items = self.items, []
        for held, limit in zip(made, limits.values(), strict=True):
            terms = () if limit is None else self.term(less(var, limit), "warps before this one")
            folded = self.combine(self.load(held, (ZERO,)), self.load(slots, place(var)))
            if len(folded) > 1:
                folded = self.named(folded)
            self.store(held, (ZERO,), folded, terms, "update")
        self.items = [*outer, serial_loop(var, self.tensor, tuple(self.items), self.origin)]
        return [self.named(self.load(held, (ZERO,))) for held in made]

    def scratch(self, shape: tuple[Expr, ...], stem: str = "part") -> tuple[Buffer, ...]:
        """Make a buffer in shared memory for each component."""
        return self.buffers(stem, shape, Memory.SHARED, "scratch")

    def buffers(
        self, stem: str, shape: tuple[Expr, ...], memory: Memory, kind: str
    ) -> tuple[Buffer, ...]:
        """Make a buffer for each component."""
        if self.count > 1:
            shape = (integer(self.count), *shape)
        strides = row_major(shape, self.algebra)
        size = self.algebra.product(shape)
        made = tuple([
            Buffer(
                self.threads.names.buffer(f"{self.tensor}_{stem}"),
                self.tensor, memory, dtype, shape, strides, size, kind,
            )
            for dtype in self.types
        ])  # fmt: skip
        self.items += [Allocate(buffer, self.origin) for buffer in made]
        return made


def row_major(shape: tuple[Expr, ...], algebra: Simplifier) -> tuple[Expr, ...]:
    """Return row-major strides in elements."""
    strides: list[Expr] = []
    step: Expr = ONE
    for extent in reversed(shape):
        strides.append(step)
        step = algebra.mul(step, extent)
    return tuple(reversed(strides))


def serial_loop(var: Index, tensor: str, body: tuple[TreeItem, ...], origin: Origin | None) -> Tree:
    """Return a loop that belongs to no axis of `tensor`, but to how it is computed."""
    spec = LoopSpec(None, var.extent, ParallelType.serial, tensor, (tensor,), origin)
    return Tree(var, spec, body)


def static(extent: Expr) -> int | None:
    """Return a static extent as an int, else None."""
    return int(extent.value) if isinstance(extent, Const) else None


def less(a: Expr, b: Expr) -> Expr:
    """Return the test ``a < b``."""
    return Op("lt", (a, b), dtypes.bool_)


def equal(a: Expr, b: Expr) -> Expr:
    """Return the test ``a == b``."""
    return Op("eq", (a, b), dtypes.bool_)


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    """Return the choice of `a` or `b`."""
    return Op("where", (condition, a, b), a.dtype)


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
) -> tuple[Tree, Values]:
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
    return body.collective(values, dims, ordered=reducer.ordered), values


class _Reduction(ExchangeBody):
    """A reduction over threads, as statements: shuffles in a warp, then shared memory.

    Every thread offers a partial result, and every thread has the combination of its group in the
    end. A thread may offer several values, each of which is combined with itself alone: they cross
    together, in slots of their own, for the price of one exchange. How that is done depends on the
    extents of the block, and on whether the order of threads must be kept:

    - groups that lie inside warps in powers of two: a butterfly of shuffles;
    - groups of whole warps: a butterfly, one slot a warp in shared memory, a butterfly over the
      slots;
    - the whole block, of any extents: the same with tests for lanes that do not exist, the slots
      folded one after the other;
    - anything else: dimension by dimension; a dimension that is not one of the above folds in
      shared memory, by halves.

    A reducer that need not commute combines neighbours only, the earlier one first. Where all lanes
    are to have the result, a butterfly begins with the nearest ones, and the later of two lanes
    puts the other's value in front; else each lane takes in what later ones hold, and the first one
    has all. In shared memory neighbours are folded in the place of halves.

    Source: the warp and block reductions of CUB; Harris, "Optimizing parallel reduction in CUDA".
    """

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
            return self._in_memory(values, dims[0])
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
        return self.chosen(first, mine, others), self.chosen(first, others, mine)

    def _down_tree(self, values: Values, *, whole: bool = False) -> Values:
        """Fold each warp into its first lane; what the other lanes then hold is of no use.

        All lanes exist where warps are `whole`.
        """
        thread, threads = self.threads.thread(), self.threads.product(self.threads.dims)
        for offset in self._turns(_LANE_BITS):
            others = self.shuffle(values, "down", integer(offset))
            exists = less(self.algebra.add(thread, integer(offset)), threads)
            both = self.combine(values, others)
            values = self.named(both) if whole else self.chosen(exists, both, values)
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
        slots, _ = self._slots_of_warps(values)
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
        slots, warps = self._slots_of_warps(self._down_tree(values))
        return self._fold_slots(slots, warps, lambda slot: (slot,))

    def _slots_of_warps(self, values: Values) -> tuple[tuple[Buffer, ...], Expr]:
        """Store the values of each warp; return the buffers that hold them, and how many."""
        warps = self.algebra.ceildiv(self.threads.product(self.threads.dims), integer(WARP))
        slots = self.scratch((warps,))
        first = self.term(equal(self.threads.lane(), ZERO), "one lane of each warp stores")
        self.store(slots, (self.threads.warp(),), values, first)
        return slots, warps

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
        (total,) = self.fold_in_turn(slots, size, place, {"total": None})
        return total

    # One dimension through shared memory

    def _read_all(self, values: Values, dim: ParallelType, size: int) -> Values:
        slots = self._slots_of_all(values)
        return self._fold_slots(slots, integer(size), lambda slot: self._place(dim, slot))

    def _in_memory(self, values: Values, dim: ParallelType) -> Values:
        """Fold a slot a thread, pairs at a time."""
        slots, mine = self._slots_of_all(values), LaunchIndex(dim)
        pairs = self._neighbours if self.reducer.ordered else self._halves
        for there, terms in pairs(dim):
            both = self.combine(
                self.load(slots, self._place(dim, mine)), self.load(slots, self._place(dim, there))
            )
            # One guarded group: no barrier may stand between the loads and the stores.
            lets = [Let(self.threads.names.local(v), v, self.origin) for v in both]
            stores = self.stores(slots, self._place(dim, mine), [let.var for let in lets])
            self.emit((*lets, *stores), terms)
        return self.named(self.load(slots, self._place(dim, ZERO)))

    def _halves(self, dim: ParallelType) -> Iterator[tuple[Expr, tuple[PredicateTerm, ...]]]:
        """Yield the partner of a thread by turns, and the test that it has one."""
        size = whole = self.threads.extents[dim]
        # Enough halvings for the largest extent that a launch may have; at smaller ones, the
        # predicate of the last turns holds for no thread.
        for turn in range((self.threads.limits.most(dim) - 1).bit_length()):
            half = self.algebra.ceildiv(whole, integer(2 << turn))
            upper = self.algebra.add(LaunchIndex(dim), half)
            yield upper, self.term(less(upper, size), "this half has a partner")
            size = half

    def _neighbours(self, dim: ParallelType) -> Iterator[tuple[Expr, tuple[PredicateTerm, ...]]]:
        """Yield the begin of the run behind that of a thread by turns, and the tests for both."""
        mine, size = LaunchIndex(dim), self.threads.extents[dim]
        distance = 1
        while distance < self.threads.limits.most(dim):
            there = self.algebra.add(mine, integer(distance))
            begins = equal(self.algebra.mod(mine, integer(2 * distance)), ZERO)
            terms = self.term(begins, "a run begins here")
            yield there, terms + self.term(less(there, size), "another run follows")
            distance *= 2

    def _slots_of_all(self, values: Values) -> tuple[Buffer, ...]:
        """Store the values of every thread, and return the buffers that hold them."""
        dims = self.threads.dims[::-1]
        slots = self.scratch(tuple([self.threads.extents[d] for d in dims]))
        self.store(slots, tuple([LaunchIndex(d) for d in dims]), values, ())
        return slots

    def _place(self, dim: ParallelType, at: Expr) -> Values:
        dims = self.threads.dims[::-1]
        return tuple([at if d is dim else LaunchIndex(d) for d in dims])


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
    kind = "exclusive" if exclusive else "inclusive"
    return body.collective((*found, *whole), dims, scan=kind), found, whole


class _Scan(ExchangeBody):
    """Scans over the threads of a block, as statements: shuffles in a warp, then shared memory.

    `scan_threads` gives the body of one `kir.Collective`: every thread offers a partial result, and
    every thread has the combination of what the threads before it offered, or of these and its own,
    in the end; and that of all where it is asked for. Partial results are combined in the order of
    the threads, so that a reducer need not commute. How that is done depends on the extents of the
    block alone:

    - groups that lie inside warps in powers of two: steps of shuffles, each from twice as far as
      the one before;
    - groups of whole warps, or the whole block of any extents: the same in each warp, one slot a
      warp in shared memory for its total, a scan of the slots by shuffles in every warp (where the
      number of threads is symbolic, the slots one after the other), and one combination of the two;
    - anything else: the steps of a warp through shared memory, a slot a thread.

    Barriers are placed by the pass that places them for all others.

    Source: Hillis and Steele, "Data parallel algorithms", CACM 1986; the warp and block scans of
    CUB (`WarpScanShfl`, `BlockScanWarpScans`).
    """

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
            values = self.chosen(less(integer(distance - 1), place), both, values)
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
            values = self.chosen(inside, others, values)
            distance *= 2
        return values

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
        limits: dict[str, Expr | None] = {"before": self.threads.warp()}
        if total:
            limits["total"] = None
        before, *whole = self.fold_in_turn(slots, warps, lambda slot: (slot,), limits)
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
