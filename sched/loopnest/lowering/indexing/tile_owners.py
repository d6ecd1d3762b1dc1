"""Who stores an element that several tiles with halo have: one of them.

Tiles that run at once would store the elements of the halo at once: in GLOBAL memory, and in
SHARED memory where the threads of a block have no places of their own. The tile that an element
comes first in the interior of stores it, and the last one what is left; the rest of the nest waits
for all of them, as for any value that another thread wrote. Where no rule says which tile that is,
the schedule has no kernel.

Before: ``T1[8 * i0 + i1] = …`` for i1 in 10; after: under ``i1 < 8 or i0 == last``. Where
the elements of a tile lie apart, ``T1[3 * i0 + 2 * i1]``, only every second tile has some of the
same: ``2 * i1 < 6 or last - 2 < i0``. Of two loops, ``T1[8 * i0 + i1 + i2]``, the inner one's tiles
are the elements of the outer one's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd
from typing import NamedTuple

from loopnest.base.errors import LoweringError
from loopnest.lowering.indexing.axis_indices import Environment
from loopnest.lowering.loops.loop_plan import LoopPlan, is_trivial
from loopnest.lowering.loops.reshaped_axes import axes_behind
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    TRUE,
    ZERO,
    Const,
    Coordinate,
    Expr,
    Op,
    free_indices,
    integer,
    substitute,
)
from loopnest.scalar.simplify import Simplifier
from loopnest.scalar.templates import coordinates
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.overlapping_tiles import Overlap, overlaps


def owners(plan: LoopPlan, env: Environment, memory: Memory) -> Iterator[Expr]:
    """Yield the conditions under which this tile stores an element.

    Args:
        plan: the loops.
        env: the indices of the tensor's axes.
        memory: GLOBAL; or SHARED, of a buffer that is laid out by axes of its own.

    Raises:
        LoweringError: several tiles that run at once have an element, and no rule tells one.
    """
    for step in overlaps(env.tensor.domain.history):
        yield from _WindowTiles(plan, env, step, memory).conditions()


class _WindowLoop(NamedTuple):
    """A loop that runs at once: where it is, counted so that tiles rise by `width` each."""

    at: Expr
    width: Expr
    extent: Expr


class _WindowTiles:
    """The tiles of one step, of which some are computed at once."""

    def __init__(self, plan: LoopPlan, env: Environment, step: Overlap, memory: Memory) -> None:
        self.plan, self.env, self.step, self.memory = plan, env, step, memory
        self.algebra = plan.algebra

    def conditions(self) -> Iterator[Expr]:
        """Yield the conditions under which a tile stores an element."""
        moved = {
            number: [p for p, base in enumerate(self.step.bases) if _moves(base, number)]
            for number, axis in enumerate(self.step.outer)
            if self._at_once(axis)
        }
        for number in [n for n, places in moved.items() if not places]:
            index = self.env.known[self.step.outer[number]]
            yield self._by_barrier([number], Op("eq", (index, ZERO), dtypes.bool_))
        loops: dict[int, list[int]] = {}
        for number, places in moved.items():
            for place in places:
                loops.setdefault(place, []).append(number)
        apart = {n for place, found in loops.items() if self._apart(place, found) for n in found}
        for place, found in loops.items():
            alone = all(len(moved[number]) == 1 for number in found)
            conditions = self._of_axis(place, found) if alone else None
            if conditions is None and not apart.issuperset(found):
                raise self._refused(found[0])
            for condition in conditions or ():
                yield self._by_barrier(found, condition)

    def _at_once(self, axis: IterDomain) -> bool:
        spec = self.plan.spec(axis)
        if is_trivial(spec):
            return False
        if self.memory is Memory.SHARED:
            return spec.parallel.is_block
        return spec.parallel.is_thread or spec.parallel is ParallelType.cpu_parallel

    def _apart(self, place: int, numbers: Sequence[int]) -> bool:
        """Whether a block's threads never store an element of an axis in one iteration.

        Barriers part what they store in several.
        """
        inner, leaf = self.step.inner[place], self.env.tensor.domain.leaf
        bound = any(self._at_once(axis) and inner in axes_behind(axis) for axis in leaf)
        reach = self._reach(place) if bound else ZERO
        loops = None if self.memory is Memory.GLOBAL else self._loops(place, numbers)
        for loop in loops or ():
            if not self.algebra.proves_lt(reach, loop.width):
                return False
            reach = self._farther(reach, loop)
        return loops is not None

    def _of_axis(self, place: int, numbers: Sequence[int]) -> list[Expr] | None:
        """Return a condition for each loop whose tiles have elements along an axis in common.

        The elements within a loop must lie so that what one tile has beyond the next one's
        beginning, the next one has, too: all of them `gap` apart, or in whole tiles of a loop
        inside. None where they do not.
        """
        algebra = self.algebra
        gap: Expr = integer(self.step.steps[place])
        inner = self.env.promotion.image.get(self.step.inner[place], self.step.inner[place])
        distance, reach = algebra.mul(self.env.known[inner], gap), self._reach(place)
        loops = self._loops(place, numbers)
        if loops is None or self._is_ragged(self.step.bases[place]):
            return None
        result: list[Expr] = []
        for loop in loops:
            turns = _turns(loop.width, gap, algebra)
            if turns is None or (turns > 1 and loop is not loops[-1]):
                return None
            width = algebra.mul(loop.width, integer(turns))
            if not algebra.proves_lt(reach, width):
                result.append(self._owner(loop, turns, algebra.lt(distance, width)))
            if not algebra.proves_le(width, algebra.add(reach, gap)):
                gap = width
            distance = algebra.add(distance, algebra.mul(loop.at, loop.width))
            reach = self._farther(reach, loop)
        return result

    def _owner(self, loop: _WindowLoop, turns: int, first: Expr) -> Expr:
        """Return the test of a tile that has an element `first`, or is one of the last."""
        after = self.algebra.add(loop.at, ONE)
        last: Expr = Op("eq", (after, loop.extent), dtypes.bool_)
        if turns > 1:
            last = self.algebra.lt(self.algebra.sub(loop.extent, integer(turns)), after)
        return TRUE if last is TRUE else Op("or", (first, last), dtypes.bool_)

    def _loops(self, place: int, numbers: Sequence[int]) -> list[_WindowLoop] | None:
        """Return the loops that move tiles along an axis, the narrowest and innermost first.

        None where they do not move them evenly.
        """
        algebra, base = self.algebra, self.step.bases[place]
        start = self._begin(base, dict.fromkeys(numbers, ZERO))
        loops: list[_WindowLoop] = []
        total = start
        for number in reversed(numbers):
            one = self._begin(base, {**dict.fromkeys(numbers, ZERO), number: ONE})
            index, extent = self.env.known[self.step.outer[number]], self.step.loops[number]
            width = algebra.sub(one, start)
            total = algebra.add(total, algebra.mul(index, width))
            if isinstance(width, Const) and int(width.value) < 0:
                index = algebra.sub(algebra.sub(extent, ONE), index)
                width = algebra.sub(ZERO, width)
            if free_indices(width) or not algebra.proves_le(ZERO, width):
                return None
            loops.append(_WindowLoop(index, width, extent))
        even = algebra.equal(total, self._begin(base, {}))
        return sorted(loops, key=_rank) if even else None

    def _begin(self, base: Expr, chosen: Mapping[int, Expr]) -> Expr:
        """Return where a tile begins, with the indices of some loops chosen."""
        outer = [self.env.known[axis] for axis in self.step.outer]
        known: dict[Expr, Expr] = {
            c: chosen.get(c.number, outer[c.number]) for c in coordinates(base)
        }
        return self.algebra.simplify(substitute(base, known))

    def _is_ragged(self, base: Expr) -> bool:
        """Whether some points of several loops around tiles are beyond what they were made of.

        The last tile of a loop would not be that of its last iteration.
        """
        image = self.env.promotion.image
        if len(coordinates(base)) < 2:
            return False
        axes = [self.step.outer[c.number] for c in coordinates(base)]
        behind = {node for axis in axes for node in axes_behind(image.get(axis, axis))}
        steps = self.env.promotion.steps
        return any(a in behind for step in steps for a in step.overshoots(self.algebra))

    def _reach(self, place: int) -> Expr:
        """Return how far the last element of a tile lies from its first one."""
        last = self.algebra.sub(self.step.extents[place], ONE)
        return self.algebra.mul(last, integer(self.step.steps[place]))

    def _farther(self, reach: Expr, loop: _WindowLoop) -> Expr:
        rest = self.algebra.sub(loop.extent, ONE)
        return self.algebra.add(reach, self.algebra.mul(rest, loop.width))

    def _by_barrier(self, numbers: Sequence[int], condition: Expr) -> Expr:
        """Return a condition, where the loops can wait for each other."""
        for number in numbers if condition is not TRUE else ():
            if self.plan.spec(self.step.outer[number]).parallel is ParallelType.cpu_parallel:
                raise self._refused(number)
        return condition

    def _refused(self, number: int) -> LoweringError:
        spec, name = self.plan.spec(self.step.outer[number]), self.env.tensor.name
        what = f"the tiles of the {spec.parallel.value} loop {spec.axis} overlap, and would store"
        if self.memory is Memory.SHARED:
            return LoweringError(
                name,
                f"its buffer is laid out by its own axes, but {what} the same elements of it at "
                "once",
                f"leave the layout of {name} to its loops, set its memory to ln.LOCAL, or compute "
                "it outside of that loop",
            )
        return LoweringError(
            name,
            f"{what} the same elements of GLOBAL memory at once",
            f"set the memory of {name} to ln.SHARED or ln.LOCAL, or compute it outside of that "
            "loop",
        )


def _moves(base: Expr, number: int) -> bool:
    return Coordinate(number) in coordinates(base)


def _rank(loop: _WindowLoop) -> tuple[bool, int]:
    """Order loops by what they move a tile by, those that are not known as numbers the last."""
    known = isinstance(loop.width, Const)
    return (not known, int(loop.width.value) if isinstance(loop.width, Const) else 0)


def _turns(width: Expr, gap: Expr, algebra: Simplifier) -> int | None:
    """Return after how many tiles one has elements of the first again; None where it is not known.

    Tiles begin `width` apart, and their elements lie `gap` apart: the first tile's element
    ``gap * j`` is one of tile t where ``width * t`` is a multiple of `gap`.
    """
    if algebra.divides(gap, width):
        return 1
    if not isinstance(width, Const) or not isinstance(gap, Const):
        return None
    return int(gap.value) // gcd(int(width.value), int(gap.value))
