"""Which threads may meet at one element: the test behind barriers.

Two accesses to one element, one of them a store, need no order where they are always made by the
same thread. That is decided along each launch dimension, from the indices of the two accesses; what
cannot be decided counts as different threads. It is lowering's own test: the checkers have theirs.

- Equal indices with the same scale and smaller rest are equal digit by digit: from
  ``x * 4 + i == x' * 4 + i'`` with i, i' < 4 follow x == x' and i == i'.
- Every element of a tensor is stored by one thread. An access whose index is that of the store,
  with other names for its serial loops, therefore belongs to the same thread.
- Both may be restricted to the first thread of a dimension by their predicates, or to the one block
  that an arrival lets go on.
- Predicates and the limits of a launch bound indices: what is stored below 3 is not read from 3 on.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from loopnest.base.fast_init import fast_init
from loopnest.scalar.access_bounds import AccessBounds, is_fixed
from loopnest.scalar.enums import BLOCK_DIMENSIONS, WARP, Memory, ParallelType
from loopnest.scalar.expr import (
    ZERO,
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Op,
    integer,
    substitute,
    walk,
)
from loopnest.scalar.launch_bounds import LaunchBounds
from loopnest.scalar.simplify import Simplifier


class Scope(IntEnum):
    """What a barrier orders; NONE where no barrier is needed."""

    NONE = 0
    warp = 1
    block = 2
    grid = 3


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class BufferAccess:
    """A load or store of memory that threads share.

    Args:
        buffer: what is accessed.
        index: with loops bound to threads written as numbers of threads.
        is_store: or a load.
        conditions: the terms of its predicate, written likewise.
        whose: the statement's tensor, for the reason of a barrier.
        injective: whether one thread alone stores each element.
        loops: extents of the loops around it, none of which is 0 where it happens.
        again: whether later iterations may store the same elements again.
        atomic: whether it belongs to an atomic update, which others may follow at any time.
    """

    buffer: Buffer
    index: tuple[Expr, ...]
    is_store: bool
    conditions: tuple[Expr, ...]
    whose: str
    injective: bool
    loops: frozenset[Expr] = frozenset()
    again: bool = False
    atomic: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Arrival:
    """Where a flag comes from that is true in one block of those that arrive together.

    Args:
        dims: the grid dimensions along which these blocks differ.
        loops: the indices of the loops around it.
    """

    dims: frozenset[ParallelType]
    loops: frozenset[Index]


class Dependence:
    """Decide which barrier two accesses need.

    Attributes:
        arrivals: of each flag that was set by now.
    """

    def __init__(self, launch: Mapping[ParallelType, Expr], algebra: Simplifier) -> None:
        self.launch, self.algebra = launch, algebra
        self.limits = LaunchBounds(launch, algebra)
        self.ranges = AccessBounds(self.limits, algebra)
        self.spread = tuple([d for d in launch if not self.limits.has_one(d)])
        self.arrivals: dict[Expr, Arrival] = {}
        self._memo: dict[tuple[object, ...], frozenset[ParallelType] | None] = {}
        self._fit: dict[tuple[object, ...], bool] = {}

    def scope(
        self,
        first: BufferAccess,
        second: BufferAccess,
        common: frozenset[Index],
        wrapped: Index | None = None,
        *,
        adjacent: bool = False,
    ) -> tuple[Scope, frozenset[ParallelType]]:
        """Return the barrier needed between two accesses, and along what their threads differ.

        Args:
            first: the access that comes first.
            second: the one that follows.
            common: indices that have one value for both.
            wrapped: the loop of which `second` runs in a later iteration.
            adjacent: whether that is the next iteration.
        """
        none = (Scope.NONE, frozenset[ParallelType]())
        if not (first.is_store or second.is_store) or _only_store(first, second):
            return none
        if first.buffer is not second.buffer:
            # Two buffers in one space: their indices number different tensors, so nothing follows
            # from them, and only who takes part can spare a barrier.
            if wrapped is not None and self.ranges.only_zero(wrapped, second.conditions):
                return none
            if not _share(first.buffer, second.buffer):
                return none
            apart = self._rest({d for d in self.spread if self._both_first(d, first, second)})
        else:
            key = (first, second, common, wrapped, adjacent)
            if key not in self._memo:
                self._memo[key] = self._apart(first, second, common, wrapped, adjacent)
            found = self._memo[key]
            if found is None:
                return none
            apart = found
        # Each block has a shared memory of its own: other blocks never meet these elements.
        apart = frozenset(d for d in apart if first.buffer.memory.spans(d))
        return self._scope_of(apart, first, second), apart

    def _rest(self, same: Container[ParallelType]) -> frozenset[ParallelType]:
        """Return the dimensions along which threads may differ, but for some."""
        return frozenset(d for d in self.spread if d not in same)

    def _offset(self, buffer: Buffer, index: tuple[Expr, ...]) -> Expr:
        """Return the number of an element."""
        if len(index) == 1:
            return index[0]
        parts = zip(index, buffer.strides, strict=True)
        return self.algebra.sum([self.algebra.mul(i, stride) for i, stride in parts])

    def _both_first(self, dim: ParallelType, first: BufferAccess, second: BufferAccess) -> bool:
        """Whether both are made by the first of a dimension only."""
        return all(self.ranges.most(dim, access.conditions) == 1 for access in (first, second))

    def _scope_of(
        self, apart: frozenset[ParallelType], first: BufferAccess, second: BufferAccess
    ) -> Scope:
        if not apart:
            return Scope.NONE
        if any(d.is_grid for d in apart):
            return Scope.grid
        return Scope.warp if self._in_one_warp(apart, first, second) else Scope.block

    def _in_one_warp(
        self, apart: frozenset[ParallelType], first: BufferAccess, second: BufferAccess
    ) -> bool:
        """Whether threads that differ along these dimensions only stand in one warp.

        Those who do are numbered from a multiple of `step` on: 0 where the others are all first.
        """
        if self.limits.threads() <= WARP:
            return True
        # A thread's number is x + y * X + z * X * Y, and a warp is 32 numbers from a multiple of 32
        # on. Threads that agree along the dimensions above `last` lie within `reach` of the number
        # at which those below begin.
        last = max(BLOCK_DIMENSIONS.index(d) for d in apart)
        reach, step = 0, 1
        for dim in BLOCK_DIMENSIONS[: last + 1]:
            most = max([self.ranges.most(dim, a.conditions) for a in (first, second)])
            if step == 0 and most > 1:
                return False  # the extent of a dimension before it is symbolic
            reach += (most - 1) * step
            extent = self.launch[dim] if dim in self.spread else integer(1)
            step *= int(extent.value) if isinstance(extent, Const) else 0
        # They begin at a multiple of `step`: they are in one warp if a warp is a whole number of
        # such stretches, or if a stretch is whole warps, of which they fill at most the first.
        above = [d for d in BLOCK_DIMENSIONS[last + 1 :] if d in self.spread]
        if all(self._both_first(d, first, second) for d in above):
            return reach < WARP
        return step > 0 and (WARP % step == 0 or (step % WARP == 0 and reach < WARP))

    # Along which dimensions may the threads differ?

    def _apart(
        self,
        first: BufferAccess,
        second: BufferAccess,
        common: frozenset[Index],
        wrapped: Index | None,
        adjacent: bool,
    ) -> frozenset[ParallelType] | None:
        """Return the dimensions; None where the accesses never meet."""
        later = second.index
        if wrapped is not None and self.ranges.only_zero(wrapped, second.conditions):
            return None  # it does not happen in later iterations
        if wrapped is not None and adjacent:
            step: dict[Expr, Expr] = {wrapped: Op("add", (wrapped, integer(1)), wrapped.dtype)}
            later = tuple([self.algebra.simplify(substitute(i, step)) for i in later])
            common = common | {wrapped}
        if len(first.index) == len(later):
            pairs = list(zip(first.index, later, strict=True))
        else:  # one offset, and one index a dimension
            pairs = [(self._offset(first.buffer, first.index), self._offset(first.buffer, later))]
        if any(self._differ(a, b, common) for a, b in pairs):
            return None
        if any(self.ranges.apart(a, first.conditions, b, second.conditions) for a, b in pairs):
            return None
        # In a later iteration `wrapped` has another value, but it is not known which: an index that
        # is linear in it, with everything else fixed, has another value too.
        later_rounds = wrapped is not None and not adjacent
        if later_rounds and any(self._moves(a, b, wrapped, common) for a, b in pairs):
            return None  # each iteration has elements of its own
        # The accesses meet only where all index pairs are equal. What follows from that, digit by
        # digit, is collected in `equal`: expressions with one value in both threads.
        equal: dict[Expr, None] = {}
        for a, b in pairs:
            for mine, theirs in self._digits(a, b, common):
                if mine is theirs:
                    equal[mine] = None
        same = {d for d in self.spread if self._decided(d, equal)}
        same |= {d for d in self.spread if self._both_first(d, first, second)}
        if first.injective or second.injective:
            # Most elements of GLOBAL tensors are stored once; other buffers may be reused.
            once = first.buffer.memory is Memory.GLOBAL and not (first.again or second.again)
            if _owns(first, second) and _owns(second, first):
                same |= self._by_owner(pairs, common, wrapped, once=once)
        return self._rest(same | self._going_on(first, second, common, self._rest(same)))

    def _going_on(
        self,
        first: BufferAccess,
        second: BufferAccess,
        common: frozenset[Index],
        apart: frozenset[ParallelType],
    ) -> frozenset[ParallelType]:
        """Return dimensions along which both are made by the one block that a flag lets go on."""
        grid = {d for d in apart if d.is_grid}
        # The flag is true in one block of each set that arrives together. Two threads under it are
        # in that block if they belong to one set: if the loops around the arrival have one value in
        # both, and the dimensions along which blocks could differ are those that it gathers.
        for flag in first.conditions:
            arrival = self.arrivals.get(flag)
            if arrival is None or flag not in second.conditions:
                continue
            if grid <= arrival.dims and arrival.loops <= common:
                return arrival.dims
        return frozenset()

    def _differ(self, a: Expr, b: Expr, common: frozenset[Index]) -> bool:
        """Whether two indices are never equal."""
        if not (is_fixed(a, common) and is_fixed(b, common)):
            return False
        gap = self.algebra.sub(a, b)
        if isinstance(gap, Const):
            return gap.value != 0
        rings = isinstance(a, Op) and isinstance(b, Op) and a.op == b.op == "mod"
        return rings and self._differ_in_ring(a, b)

    def _moves(self, a: Expr, b: Expr, wrapped: Index | None, common: frozenset[Index]) -> bool:
        """Whether two indices are one expression that another iteration never repeats."""
        if wrapped is None or a is not b or not is_fixed(a, common | {wrapped}):
            return False
        poly = self.algebra.poly(a)
        return sum(1 for term in poly if wrapped in term) == 1 and (wrapped,) in poly

    def _differ_in_ring(self, a: Expr, b: Expr) -> bool:
        if a.args[1] is not b.args[1] or not isinstance(a.args[1], Const):
            return False
        gap = self.algebra.sub(a.args[0], b.args[0])
        return isinstance(gap, Const) and gap.value % a.args[1].value != 0

    def _digits(self, a: Expr, b: Expr, common: frozenset[Index]) -> Iterator[tuple[Expr, Expr]]:
        """Yield pairs of atoms that are equal where ``a == b``."""
        # Let a == b be s * x + r == s * x' + r' with 0 <= r, r' < s. Division by s gives x == x',
        # and then r == r': the next digit. Terms of one value in both are taken off both sides.
        left, right = dict(self.algebra.poly(a)), dict(self.algebra.poly(b))
        for term in [t for t in left if right.get(t) == left[t]]:
            if all(is_fixed(atom, common) for atom in term):
                del left[term], right[term]
        while left and right:
            step = self._leading(left, right)
            if step is None:
                return
            mine, theirs = step
            (*_, atom), (*_, other) = mine, theirs
            del left[mine], right[theirs]
            yield atom, other

    def _leading(
        self, left: dict[tuple[Expr, ...], int], right: dict[tuple[Expr, ...], int]
    ) -> tuple[tuple[Expr, ...], tuple[Expr, ...]] | None:
        """Return terms of equal scale whose rests, on both sides, are smaller than the scale."""
        for mine, count in left.items():
            for theirs, other in right.items():
                if not mine or not theirs or count != other or mine[:-1] != theirs[:-1]:
                    continue
                scale = self.algebra.product([integer(count), *mine[:-1]])
                if self._fits(left, mine, scale) and self._fits(right, theirs, scale):
                    return mine, theirs
        return None

    def _fits(
        self, poly: dict[tuple[Expr, ...], int], without: tuple[Expr, ...], scale: Expr
    ) -> bool:
        key = (*poly.items(), without, scale)
        found = self._fit.get(key)
        if found is None:
            found = self._fit[key] = self._find_fit(poly, without, scale)
        return found

    def _find_fit(
        self, poly: dict[tuple[Expr, ...], int], without: tuple[Expr, ...], scale: Expr
    ) -> bool:
        rest = self.algebra.sum(
            self.algebra.product([integer(c), *term]) for term, c in poly.items() if term != without
        )
        if rest is ZERO:
            return True
        return self.algebra.proves_le(ZERO, rest) and self.algebra.proves_lt(rest, scale)

    def _decided(self, dim: ParallelType, equal: Mapping[Expr, None]) -> bool:
        """Whether the number along `dim` follows from expressions known to be equal."""
        number, known = LaunchIndex(dim), dict(equal)
        # n == n' follows from n // c == n' // c and n % c == n' % c, for one and the same c.
        while number not in known:
            whole = [e.args[0] for e in known if isinstance(e, Op) and self._has_rest(e, known)]
            if all(e in known for e in whole):
                return False
            known.update(dict.fromkeys(whole))
        return True

    def _has_rest(self, quotient: Op, known: Mapping[Expr, None]) -> bool:
        """Whether the remainder of a division is known, and with its quotient what was divided."""
        if quotient.op != "floordiv" or not isinstance(quotient.args[1], Const):
            return False
        return self.algebra.mod(*quotient.args) in known

    def _by_owner(
        self,
        pairs: list[tuple[Expr, Expr]],
        common: frozenset[Index],
        wrapped: Index | None,
        *,
        once: bool,
    ) -> set[ParallelType]:
        """Return the dimensions along which an element's owner is the accessing thread."""
        # Let `first` be the one store of an element by thread t, at loop values v. `second` has the
        # same index expressions, of other loop values w, and meets the same element. Then thread t'
        # of `second` would store it too, at w. The store is injective: t and t' have one number
        # along each dimension that the indices name.
        renamed: dict[Index, Index] = {}
        if not pairs or not all(self._unify(a, b, common, renamed) for a, b in pairs):
            return set()
        nodes = [n for a, b in pairs for e in (a, b) for n in walk(e)]
        # Where the buffer is used again in each iteration, injectivity holds within one only.
        if wrapped is not None and wrapped in nodes and not once:
            return set()
        return {n.dimension for n in nodes if isinstance(n, LaunchIndex)}

    def _unify(
        self, a: Expr, b: Expr, common: frozenset[Index], renamed: dict[Index, Index]
    ) -> bool:
        if isinstance(a, Index) and isinstance(b, Index):
            if a in common or b in common:
                return a is b
            # The renaming must be a bijection between loops of equal extents: else an index of the
            # one names elements that the other never reaches, and ownership says nothing.
            if renamed.setdefault(a, b) is not b or not self.algebra.equal(a.extent, b.extent):
                return False
            return sum(1 for v in renamed.values() if v is b) == 1
        if isinstance(a, Op) and isinstance(b, Op):
            if a.op != b.op or len(a.args) != len(b.args):
                return False
            return all(
                self._unify(x, y, common, renamed) for x, y in zip(a.args, b.args, strict=True)
            )
        return a is b


def _only_store(first: BufferAccess, second: BufferAccess) -> bool:
    """Whether `second` stores to a GLOBAL tensor that `first` reads.

    Its elements are stored once, and before they are read: no store follows a read.
    """
    once = second.injective and not second.again and second.buffer.memory is Memory.GLOBAL
    return once and second.is_store and not first.is_store and first.buffer is second.buffer


def _share(a: Buffer, b: Buffer) -> bool:
    """Whether two buffers lie in the same space."""
    return (a.alias_of or a.name) == (b.alias_of or b.name)


def _owns(store: BufferAccess, other: BufferAccess) -> bool:
    """Whether the thread of `other` would store the element too, had it the numbers it lacks.

    A store that some threads leave to others (``i % M == 0``, ``i < 8 or last``) does not belong to
    all who compute its index.
    """
    if not store.injective:
        return True
    moving = {n for i in store.index for n in walk(i) if isinstance(n, (Index, LaunchIndex))}
    return all(
        c in other.conditions
        for c in store.conditions
        if isinstance(c, Op) and c.op in ("eq", "or") and not moving.isdisjoint(walk(c))
    )
