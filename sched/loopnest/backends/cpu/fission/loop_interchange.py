"""Loop interchange: which loops of a thread go outside the loop over neighbouring threads.

On a GPU neighbouring threads run side by side, and schedules let them touch neighbouring elements.
A CPU does alike if the loop over the threads of a row is the innermost one::

    for t in 32:                          for i in D // 32:
      for i in D // 32:            ->       for t in 32:
        T2[t] = T2[t] + x[i * 32 + t]         T2[t] = T2[t] + x[i * 32 + t]

That is always legal: threads are unordered. It pays where the memory that a loop touches lies
closer together along the threads than along the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from loopnest.kir import BOUND, Allocate, If, Let, Loop, Stmt, Store, expressions, holds_sync
from loopnest.kir import walk as walk_statements
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import (
    ONE,
    Buffer,
    Const,
    Expr,
    Index,
    Load,
    Local,
    rewrite,
    substitute,
    walk,
)
from loopnest.scalar.simplify import Simplifier

UNKNOWN_EXTENT = 16
"""What a loop of symbolic extent counts for."""

MUCH = 4
"""A loop that touches a thread's own buffers only stands outside, unless other loops touch these
buffers from inside so many times as often: then their elements are to lie as those loops need."""


SMALL_STRIDE = 16
SMALL_COST, LARGE_COST = 1, 4
"""What it costs that neighbours lie some elements apart, or in other cache lines."""

FOLD_COST = 2
"""What it costs that the iterations of a loop wait for each other."""


@dataclass(frozen=True, slots=True)
class Interchange:
    """The choice.

    Args:
        outside: indices of the loops that stand outside.
        rowwise: buffers of a thread that are used in other loops for the most part, so that their
            elements are to lie side by side.
    """

    outside: frozenset[Index]
    rowwise: frozenset[Buffer]

    def is_outside(self, node: Stmt) -> bool:
        """Whether `node` is a loop that stands outside."""
        return isinstance(node, Loop) and node.var in self.outside


def choose_interchange(body: tuple[Stmt, ...], threads: tuple[Index, ...]) -> Interchange:
    """Return the choice for `body`, the statements of one of `threads`, neighbours last."""
    chooser = _Chooser(body, threads[-1], frozenset(threads))
    return Interchange(frozenset(chooser.outside), chooser.rowwise())


def is_formula(value: Expr) -> bool:
    """Whether `value` is index arithmetic, or a test of it, without names: it never changes."""
    return not any(
        isinstance(node, (Load, Local)) or node.dtype not in (dtypes.index, dtypes.bool_)
        for node in walk(value)
    )


class _Chooser:
    def __init__(self, body: tuple[Stmt, ...], lane: Index, threads: frozenset[Index]) -> None:
        self.lane, self.threads = lane, threads
        self.algebra = Simplifier()
        self.outside: set[Index] = set()
        self.undecided: list[tuple[Loop, int]] = []
        self.inward: dict[Buffer, int] = {}
        """How often threads touch a buffer of theirs in loops of their own, less how often not."""
        nodes = [node for node, _ in walk_statements(body)]
        self.values = {n.var: n.value for n in nodes if isinstance(n, Let)}
        self.private = {n.storage for n in nodes if isinstance(n, Allocate) and _is_local(n)}
        self._visit(body, 1)
        for loop, times in self.undecided:  # grows while it is walked
            touched: dict[Buffer, int] = {}
            for access in accesses((loop,)):
                if access.buffer in self.private:
                    touched[access.buffer] = touched.get(access.buffer, 0) + access.count * times
            inward = sum([self.inward.get(buffer, 0) for buffer in touched])
            self._place(loop, times, outside=inward <= MUCH * sum(touched.values()))

    def rowwise(self) -> frozenset[Buffer]:
        return frozenset(b for b, count in self.inward.items() if count > 0)

    def _visit(self, body: tuple[Stmt, ...], times: int) -> None:
        """Decide on the loops in `body`, which runs `times` times outside the loop over lanes."""
        for node in body:
            match node:
                case Loop() if holds_sync(node.body):
                    self._visit(node.body, times * _trips(node))
                # A loop may stand around all threads only if they agree on how often it runs.
                case Loop() if self._is_steady(node.var.extent) and not _is_bound_by_data(node):
                    verdict = self._verdict(node)
                    if verdict is None:
                        self.undecided.append((node, times))
                    else:
                        self._place(node, times, outside=verdict)
                # A test of index arithmetic can be evaluated in each region again; one of data may
                # find other values there.
                case If() if holds_sync(node.body + node.orelse) or is_formula(node.condition):
                    self._visit(node.body, times)
                    self._visit(node.orelse, times)
                case _:
                    self._count(node, times)

    def _place(self, loop: Loop, times: int, *, outside: bool) -> None:
        if outside:
            self.outside.add(loop.var)
            self._visit(loop.body, times * _trips(loop))
        else:
            self._count(loop, times)

    def _is_steady(self, value: Expr) -> bool:
        """Whether `value` is the same in all threads, and shows it."""
        return not any(n in self.threads or isinstance(n, (Local, Load)) for n in walk(value))

    def _count(self, node: Stmt, times: int) -> None:
        for access in accesses((node,)):
            if access.buffer in self.private:
                sign = 1 if access.loop is not None else -1
                before = self.inward.get(access.buffer, 0)
                self.inward[access.buffer] = before + sign * times * access.count

    def _verdict(self, loop: Loop) -> bool | None:
        """Return whether `loop` goes outside the loop over threads; None if it touches no memory.

        It does where its accesses lie closer together along the threads than along the loop. Where
        they lie closer along the loop, an innermost loop stays inside; a loop around others goes
        outside all the same, unless an iteration reads what an earlier one stored.
        """
        lane_cost = own_cost = along = 0
        for access in accesses((loop,)):
            if access.buffer in self.private:
                continue
            assert access.loop is not None
            offset = self._offset(access)
            stride = self._stride(offset, self.lane)
            along += stride == 1
            lane_cost += access.count * _cost(stride)
            own = _cost(self._stride(offset, access.loop.var))
            own_cost += access.count * (own + FOLD_COST * self._folds(access.loop))
        if lane_cost == own_cost:
            return True if along else False if lane_cost else None
        return lane_cost < own_cost or (_holds_loops(loop) and not self._carries(loop))

    def _folds(self, loop: Loop) -> bool:
        """Whether the iterations of an innermost loop fold into one element: no vector code."""
        made = {n.storage for n, _ in walk_statements(loop.body) if isinstance(n, Allocate)}
        return any(
            a.is_store
            and a.buffer in self.private - made
            and self._stride(self._offset(a), loop.var) == 0
            for a in accesses((loop,))
        )

    def _carries(self, loop: Loop) -> bool:
        """Whether an iteration reads what an earlier one stored: it may be kept in registers."""
        made = {n.storage for n, _ in walk_statements(loop.body) if isinstance(n, Allocate)}
        own = [a for a in accesses((loop,)) if a.buffer in self.private - made]
        stored = {a.buffer for a in own if a.is_store}
        return any(a.buffer in stored and not a.is_store for a in own)

    def _offset(self, access: ThreadAccess) -> Expr:
        strides = (ONE,) if access.flat else access.buffer.strides
        pairs = zip(access.index, strides, strict=True)
        return self.algebra.sum([self.algebra.mul(self._plain(i), s) for i, s in pairs])

    def _plain(self, index: Expr) -> Expr:
        """Return `index` simplified, names in it replaced by their values."""

        def named(node: Expr) -> Expr | None:
            value = self.values.get(node) if isinstance(node, Local) else None
            return None if value is None else rewrite(value, named)

        return self.algebra.simplify(rewrite(index, named))

    def _stride(self, offset: Expr, index: Index) -> int | None:
        """Return how far `offset` moves with `index`; None where that is not one small number."""
        nodes = list(walk(offset))
        if any(isinstance(n, (Local, Load)) for n in nodes):
            return None
        if index not in nodes:
            return 0
        after = substitute(offset, {index: self.algebra.add(index, ONE)})
        moved = self.algebra.sub(self.algebra.simplify(after), offset)
        return int(moved.value) if isinstance(moved, Const) else None


@dataclass(frozen=True, slots=True)
class ThreadAccess:
    """A load or a store: its place, its innermost loop, and how often it is done."""

    buffer: Buffer
    index: tuple[Expr, ...]
    flat: bool
    is_store: bool
    loop: Loop | None
    count: int


def accesses(body: tuple[Stmt, ...]) -> Iterator[ThreadAccess]:
    """Yield the loads and stores of statements."""
    for node, ancestors in walk_statements(body):
        loops = [a for a in ancestors if isinstance(a, Loop)]
        inner, count = (loops[-1] if loops else None), prod(map(_trips, loops))
        if isinstance(node, Store):
            yield ThreadAccess(node.storage, node.index, node.flat, True, inner, count)
        for load in {p for e in expressions(node) for p in walk(e) if isinstance(p, Load)}:
            yield ThreadAccess(load.buffer, load.args, load.flat, False, inner, count)


def _trips(loop: Loop) -> int:
    extent = loop.extent
    return extent if isinstance(extent, int) else UNKNOWN_EXTENT


def _cost(stride: int | None) -> int:
    if stride in (0, 1):
        return 0
    near = stride is not None and abs(stride) <= SMALL_STRIDE
    return SMALL_COST if near else LARGE_COST


def _holds_loops(loop: Loop) -> bool:
    return any(isinstance(node, Loop) for node, _ in walk_statements(loop.body))


def _is_bound_by_data(loop: Loop) -> bool:
    """Whether each thread runs a part of a loop that data choose: one index of it, mostly."""
    first = loop.body[0] if len(loop.body) == 1 else None
    if not isinstance(first, If) or first.reason != BOUND:
        return False
    return any(isinstance(node, (Load, Local)) for node in walk(first.condition))


def _is_local(node: Allocate) -> bool:
    return node.storage.memory is Memory.LOCAL
