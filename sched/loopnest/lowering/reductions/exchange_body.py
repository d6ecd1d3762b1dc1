"""What exchanges between the threads of a block are made of: names, thread numbers, statements.

A reduction over threads and a scan over threads are each the body of one `kir.Collective`, written
out as statements (`block_reduction`, `block_scan`). Both fold values of some components by a
reducer, by shuffles in a warp and in scratch buffers in shared memory.

Barriers are not placed here: the pass that places them for all others finds these too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from loopnest.kir import Allocate, Let, Shuffle, Store
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
        self.types = tuple([a.dtype for a in args[: self.size]])
        self.count = len(args) // self.size
        self.items: list[TreeItem] = []

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
