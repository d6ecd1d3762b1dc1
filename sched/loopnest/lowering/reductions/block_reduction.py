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

Barriers are not placed here: the pass that places them for all others finds these too.

Source: the warp and block reductions of CUB; Harris, "Optimizing parallel reduction in CUDA".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

from loopnest.kir import Allocate, Collective, Let, Shuffle, Store
from loopnest.kir.buffers import Buffer
from loopnest.lowering.loops.guarded_tree import Guarded, PredicateTerm, Simple, Tree, TreeItem
from loopnest.lowering.loops.loop_plan import LoopSpec
from loopnest.scalar import dtypes
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
    integer,
)
from loopnest.scalar.launch_bounds import LaunchBounds
from loopnest.scalar.origin import Origin
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.definition import TracedReducer

_FEW = 8
"""A group of at most that many threads reads all its slots instead of folding by halves."""

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


class BlockReduction:
    """Reduce over threads, for one kernel.

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

    def reduce_threads(
        self,
        tensor: str,
        reducer: TracedReducer,
        args: Values,
        dims: tuple[ParallelType, ...],
        origin: Origin | None,
    ) -> tuple[Tree, tuple[Local, ...]]:
        """Return the collective that combines `args` over `dims`, and the names of its results.

        Args:
            tensor: the tensor that is reduced, for names.
            reducer: how partial results combine.
            args: the partial results of a thread: of each value, one a component.
            dims: dimensions of the block.
            origin: the place in the user's code.
        """
        body = _Body(self, tensor, reducer, args, origin)
        values = body.run(args, dims)
        results = tuple([v for v in values if isinstance(v, Local)])
        assert len(results) == len(args)
        header = Collective(
            reducer.name, results, args, dims, reducer.identity, reducer.combination, (), origin
        )
        return Tree(None, None, tuple(body.items), header), results

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


class _Body:
    """The statements of one collective."""

    def __init__(
        self,
        exchange: BlockReduction,
        tensor: str,
        reducer: TracedReducer,
        args: Values,
        origin: Origin | None,
    ) -> None:
        self.exchange, self.algebra = exchange, exchange.algebra
        self.tensor, self.reducer, self.origin = tensor, reducer, origin
        self.size = len(reducer.identity)
        self.types = tuple([a.dtype for a in args[: self.size]])
        self.count = len(args) // self.size
        self.items: list[TreeItem] = []

    def run(self, args: Values, dims: tuple[ParallelType, ...]) -> Values:
        """Reduce over `dims`; all at once where that is one of the good cases."""
        values = self._named(args)
        extents, used = self.exchange.extents, self.exchange.dims
        dims = tuple([d for d in used if d in dims])
        # The cases come by their price: shuffles need no memory, whole warps one slot each, and a
        # dimension by itself a slot a thread.
        if self._in_warp(dims):
            return self._butterfly(values, self._lane_bits(dims))
        leading = used[: used.index(dims[-1]) + 1]
        if dims == leading:
            size = _static(self.exchange.product(dims))
            if size is not None and size % WARP == 0:
                return self._over_warps(values, size)
            if dims == used:
                return self._over_block(values)
        if len(dims) == 1:
            size = _static(extents[dims[0]])
            if size is not None and size <= _FEW:
                return self._read_all(values, dims[0], size)
            return self._by_halves(values, dims[0])
        for dim in dims:
            values = self.run(values, (dim,))
        return values

    # Inside a warp

    def _in_warp(self, dims: tuple[ParallelType, ...]) -> bool:
        """Whether groups along `dims` are aligned powers of two of lanes."""
        used = self.exchange.dims
        total = 1
        for dim in used[: used.index(dims[-1]) + 1]:
            size = _static(self.exchange.extents[dim])
            # xor by an offset stays in a group only where groups are powers of two and begin at
            # multiples of their size; so must the dimensions below be, which the offset passes
            # over.
            if size is None or size & (size - 1):
                return False
            total *= size
        return total <= WARP

    def _lane_bits(self, dims: tuple[ParallelType, ...]) -> list[int]:
        """Return the lane offsets that span the groups along `dims`, largest first."""
        result: list[int] = []
        step = 1
        for dim in self.exchange.dims:
            size = _static(self.exchange.extents[dim])
            if dim in dims:
                assert size is not None
                result += [step << bit for bit in range(size.bit_length() - 1)]
            step *= size or 1
            if dim is dims[-1]:
                break
        return result[::-1]

    def _butterfly(self, values: Values, offsets: list[int]) -> Values:
        for offset in offsets:
            others = self._shuffle(values, "xor", offset)
            values = self._named(self._combine(values, others))
        return values

    def _down_tree(self, values: Values) -> Values:
        """Fold each warp into its first lane; what the other lanes then hold is of no use."""
        thread, threads = self.exchange.thread(), self.exchange.product(self.exchange.dims)
        offset = WARP // 2
        while offset:
            others = self._shuffle(values, "down", offset)
            exists = _less(self.algebra.add(thread, integer(offset)), threads)
            both = self._combine(values, others)
            values = self._named(
                tuple([_where(exists, b, v) for b, v in zip(both, values, strict=True)])
            )
            offset //= 2
        return values

    def _lane(self) -> Expr:
        return self.algebra.mod(self.exchange.thread(), integer(WARP))

    def _warp(self) -> Expr:
        return self.algebra.floordiv(self.exchange.thread(), integer(WARP))

    # Over warps

    def _over_warps(self, values: Values, size: int) -> Values:
        """Reduce groups of `size` neighbouring threads, whole warps."""
        warps = size // WARP
        # All 32 lanes exist: a group is whole warps.
        values = self._butterfly(values, [16, 8, 4, 2, 1])
        threads = self.exchange.product(self.exchange.dims)
        slots = self._scratch((self.algebra.ceildiv(threads, integer(WARP)),))
        first = self._term(_equal(self._lane(), ZERO), "one lane of each warp stores")
        self._store(slots, (self._warp(),), values, first)
        group = self.algebra.floordiv(self.exchange.thread(), integer(size))
        base = self.algebra.mul(group, integer(warps))
        # Every warp of a group reads all slots of the group, a lane each, and repeats them past
        # `power`: the second butterfly then gives all lanes the result, without a second exchange.
        power = 1 << (warps - 1).bit_length()
        slot = self.algebra.mod(self.exchange.thread(), integer(power))
        place = self.algebra.add(base, slot)
        found = self._load(slots, (place,))
        if power != warps:
            exists = _less(slot, integer(warps))
            found = self._or_identity(exists, found)
        bits = [1 << bit for bit in range(power.bit_length() - 1)]
        return self._butterfly(self._named(found), bits[::-1])

    def _over_block(self, values: Values) -> Values:
        """Reduce all threads of a block of any extents."""
        threads = self.exchange.product(self.exchange.dims)
        values = self._down_tree(values)
        warps = self.algebra.ceildiv(threads, integer(WARP))
        slots = self._scratch((warps,))
        first = self._term(_equal(self._lane(), ZERO), "one lane of each warp stores")
        self._store(slots, (self._warp(),), values, first)
        return self._fold_slots(slots, warps, lambda slot: (slot,))

    def _fold_slots(
        self, slots: tuple[Buffer, ...], size: Expr, place: Callable[[Expr], Values]
    ) -> Values:
        """Return the combination of slots 0 to `size`, read by every thread."""
        known = _static(size)
        if known is not None and known <= _FEW:
            # Slot 0 always exists, so that no identity is taken in.
            values = self._named(self._load(slots, place(ZERO)))
            for slot in range(1, known):
                found = self._load(slots, place(integer(slot)))
                values = self._named(self._combine(values, found))
            return values
        identity = self.reducer.identity * self.count
        total = self._buffers("total", (ONE,), Memory.LOCAL, "accumulator")
        self._store(total, (ZERO,), identity, (), "init")
        var = self.exchange.names.index(size)
        held = self._load(total, (ZERO,))
        folded = self._combine(held, self._load(slots, place(var)))
        outer, self.items = self.items, []
        if len(folded) > 1:
            folded = self._named(folded)
        self._store(total, (ZERO,), folded, (), "update")
        self.items = [*outer, serial_loop(var, self.tensor, tuple(self.items), self.origin)]
        return self._named(self._load(total, (ZERO,)))

    # One dimension through shared memory

    def _read_all(self, values: Values, dim: ParallelType, size: int) -> Values:
        slots = self._slots_of_all(values)
        return self._fold_slots(slots, integer(size), lambda slot: self._place(dim, slot))

    def _by_halves(self, values: Values, dim: ParallelType) -> Values:
        slots = self._slots_of_all(values)
        mine = LaunchIndex(dim)
        size = whole = self.exchange.extents[dim]
        # Enough halvings for the largest extent that a launch may have; at smaller ones, the
        # predicate of the last turns holds for no thread.
        for turn in range((self.exchange.limits.most(dim) - 1).bit_length()):
            half = self.algebra.ceildiv(whole, integer(2 << turn))
            upper = self.algebra.add(mine, half)
            both = self._combine(
                self._load(slots, self._place(dim, mine)),
                self._load(slots, self._place(dim, upper)),
            )
            terms = self._term(_less(upper, size), "this half has a partner")
            # One guarded group: no barrier may stand between the loads and the stores.
            lets = [Let(self.exchange.names.local(v), v, self.origin) for v in both]
            stores = self._stores(slots, self._place(dim, mine), [let.var for let in lets])
            self._emit((*lets, *stores), terms)
            size = half
        return self._named(self._load(slots, self._place(dim, ZERO)))

    def _slots_of_all(self, values: Values) -> tuple[Buffer, ...]:
        """Store the values of every thread, and return the buffers that hold them."""
        dims = self.exchange.dims[::-1]
        slots = self._scratch(tuple([self.exchange.extents[d] for d in dims]))
        self._store(slots, tuple([LaunchIndex(d) for d in dims]), values, ())
        return slots

    def _place(self, dim: ParallelType, at: Expr) -> Values:
        dims = self.exchange.dims[::-1]
        return tuple([at if d is dim else LaunchIndex(d) for d in dims])

    # Statements

    def _combine(self, ours: Values, others: Values) -> Values:
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

    def _named(self, values: Values) -> Values:
        lets = [Let(self.exchange.names.local(v), v, self.origin) for v in values]
        self._emit(tuple(lets), ())
        return tuple([let.var for let in lets])

    def _shuffle(self, values: Values, mode: str, offset: int) -> Values:
        made = [
            Shuffle(self.exchange.names.local(v), v, mode, integer(offset), self.origin)
            for v in values
        ]
        self._emit(tuple(made), ())
        return tuple([s.var for s in made])

    def _store(
        self,
        buffers: tuple[Buffer, ...],
        index: Values,
        values: Values,
        terms: tuple[PredicateTerm, ...],
        role: str = "partial",
    ) -> None:
        self._emit(self._stores(buffers, index, values, role), terms)

    def _stores(
        self,
        buffers: tuple[Buffer, ...],
        index: Values,
        values: Sequence[Expr],
        role: str = "partial",
    ) -> tuple[Store, ...]:
        places = self._places(buffers, index)
        return tuple([
            Store(buffer, own, value, self.tensor, role, origin=self.origin)
            for (buffer, own), value in zip(places, values, strict=True)
        ])  # fmt: skip

    def _load(self, buffers: tuple[Buffer, ...], index: Values) -> Values:
        return tuple([Load(buffer, own) for buffer, own in self._places(buffers, index)])

    def _emit(self, made: tuple[Simple, ...], terms: tuple[PredicateTerm, ...]) -> None:
        self.items.append(Guarded(made, terms))

    def _term(self, condition: Expr, reason: str) -> tuple[PredicateTerm, ...]:
        return (PredicateTerm(condition, f"{self.tensor}: {reason}"),)

    def _or_identity(self, condition: Expr, values: Values) -> Values:
        identity = self.reducer.identity * self.count
        return tuple([_where(condition, v, i) for v, i in zip(values, identity, strict=True)])

    def _scratch(self, shape: tuple[Expr, ...]) -> tuple[Buffer, ...]:
        return self._buffers("part", shape, Memory.SHARED, "scratch")

    def _buffers(
        self, stem: str, shape: tuple[Expr, ...], memory: Memory, kind: str
    ) -> tuple[Buffer, ...]:
        if self.count > 1:
            shape = (integer(self.count), *shape)
        strides = row_major(shape, self.algebra)
        size = self.algebra.product(shape)
        made = tuple([
            Buffer(
                self.exchange.names.buffer(f"{self.tensor}_{stem}"),
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


def _static(extent: Expr) -> int | None:
    return int(extent.value) if isinstance(extent, Const) else None


def _less(a: Expr, b: Expr) -> Expr:
    return Op("lt", (a, b), dtypes.bool_)


def _equal(a: Expr, b: Expr) -> Expr:
    return Op("eq", (a, b), dtypes.bool_)


def _where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return Op("where", (condition, a, b), a.dtype)
