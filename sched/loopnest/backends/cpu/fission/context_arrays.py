"""Context arrays: what each thread owns, as arrays with a place for every thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from loopnest.backends.cpu.fission.loop_interchange import Interchange
from loopnest.kir import Stmt, map_accesses, map_body
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import ONE, ZERO, Buffer, Expr, Index, Load, Local
from loopnest.scalar.simplify import Simplifier


@dataclass(frozen=True, eq=False, slots=True)
class ContextArray:
    """An array of what threads own, its elements at [outer…, element…, inner…].

    Args:
        buffer: the array.
        outer: indices of blocks or threads before those of the element.
        inner: indices of threads behind them; elements of neighbours then lie side by side.
        step: how far the elements of one thread lie apart: the threads that `inner` counts.
        start: where this thread's first element lies, as one offset.
    """

    buffer: Buffer
    outer: tuple[Expr, ...]
    inner: tuple[Expr, ...]
    step: Expr
    start: Expr

    def element(self, index: tuple[Expr, ...] = ()) -> Load:
        """Return this thread's element at `index`."""
        return Load(self.buffer, (*self.outer, *index, *self.inner) or (ZERO,))

    def flat(self, offset: Expr) -> Load:
        """Return this thread's element at `offset`, counted through all its dimensions."""
        algebra = Simplifier()
        place = algebra.add(algebra.mul(offset, self.step), self.start)
        return Load(self.buffer, (place,), flat=True)

    def of_first(self) -> Load:
        """Return the value of the first thread."""
        return Load(self.buffer, (ZERO,), flat=True)


class ContextArrays:
    """Makes slots and names that nothing else in the program has.

    Args:
        taken: the names that exist.
        lanes: which loops stand outside those over neighbouring threads.
    """

    def __init__(self, taken: Iterable[str], lanes: Interchange) -> None:
        self.taken = set(taken)
        self.lanes = lanes
        self.algebra = Simplifier()
        self.spelled: dict[str, str] = {}
        self.fixed: set[Buffer] = set()
        """Slots of names: nothing stores to them once they are read."""

    def name(self, stem: str) -> str:
        """Return a new name."""
        name, number = stem, 2
        while name in self.taken:
            name, number = f"{stem}_{number}", number + 1
        self.taken.add(name)
        return name

    def index(self, stem: str, extent: Expr) -> Index:
        """Return a loop index; those of one stem are spelled alike."""
        name = self.spelled.get(stem)
        if name is None:
            name = self.spelled[stem] = self.name(stem)
        return Index(name, extent)

    def local(self, stem: str, dtype: DType) -> Local:
        """Return a new scalar."""
        return Local(self.name(stem), dtype)

    def of_buffer(
        self, buffer: Buffer, blocks: tuple[Index, ...], threads: tuple[Index, ...]
    ) -> ContextArray:
        """Return slots for a buffer of a thread (LOCAL) or of a block (SHARED).

        Args:
            buffer: what is kept.
            blocks: indices of the blocks that have one each.
            threads: indices of the threads of a block that have one each, where it is LOCAL.
        """
        if buffer.memory is Memory.SHARED:
            threads = ()
        row = 0 if buffer in self.lanes.rowwise else 1  # loops over neighbours are innermost
        split = max(len(threads) - row, 0)
        return self._make(buffer, (*blocks, *threads[:split]), threads[split:], bool(blocks))

    def of_name(
        self, var: Local, blocks: tuple[Index, ...], threads: tuple[Index, ...]
    ) -> ContextArray:
        """Return slots for a thread's value."""
        value = Buffer(var.name, var.name, Memory.LOCAL, var.dtype, (), (), ONE, "local")
        made = self._make(value, (*blocks, *threads), (), bool(blocks))
        self.fixed.add(made.buffer)
        return made

    def _make(
        self, buffer: Buffer, outer: tuple[Index, ...], inner: tuple[Index, ...], kept: bool
    ) -> ContextArray:
        algebra = self.algebra
        step = algebra.product([i.extent for i in inner])
        one = algebra.mul(buffer.size, step)
        before, behind = self._row_major(outer, one), self._row_major(inner, ONE)
        strides = (*before, *[algebra.mul(s, step) for s in buffer.strides], *behind)
        shape = (*[i.extent for i in outer], *buffer.shape, *[i.extent for i in inner])
        made = replace(
            buffer,
            name=self.name(f"{buffer.name}_slots"),
            memory=Memory.GLOBAL if kept else Memory.LOCAL,
            shape=shape or (ONE,),
            strides=strides or (ONE,),
            size=algebra.mul(algebra.product([i.extent for i in outer]), one),
            kind="slots",
            alias_of=None,
            swizzles=tuple([(a + len(outer), b + len(outer)) for a, b in buffer.swizzles]),
        )
        places = zip((*outer, *inner), (*before, *behind), strict=True)
        start = algebra.sum([algebra.mul(index, stride) for index, stride in places])
        return ContextArray(made, outer, inner, step, start)

    def _row_major(self, indices: tuple[Index, ...], step: Expr) -> tuple[Expr, ...]:
        strides: list[Expr] = []
        for index in reversed(indices):
            strides.insert(0, step)
            step = self.algebra.mul(step, index.extent)
        return tuple(strides)


def redirect(body: tuple[Stmt, ...], slots: dict[Buffer, ContextArray]) -> tuple[Stmt, ...]:
    """Return `body` with every access to one of the buffers in its slots."""

    def place(load: Load) -> Load:
        found = slots.get(load.buffer)
        if found is None:
            return load
        return found.flat(load.args[0]) if load.flat else found.element(load.args)

    return map_body(body, lambda node: map_accesses(node, place)) if slots else body
