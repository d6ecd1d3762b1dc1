"""Who stores an element of GLOBAL memory that several tiles with halo have: one of them.

Tiles that run at once would store the elements of the halo at once. The tile that an element comes
first in the interior of stores it, and the last one what is left; the rest of the nest waits for
all of them, as for any value that another thread wrote. Where no rule of one loop says which tile
that is, the schedule has no kernel.

Before: ``T1[8 * i0 + i1] = …`` for i1 in 10; after: under ``i1 < 8 or i0 == last``. Where
the elements of a tile lie apart, ``T1[3 * i0 + 2 * i1]``, only every second tile has some of the
same: ``2 * i1 < 6 or last - 2 < i0``.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from loopnest.errors import LoweringError
from loopnest.lowering.indexing.axis_indices import Environment
from loopnest.lowering.loops.loop_plan import LoopPlan, is_trivial
from loopnest.scalar import dtypes
from loopnest.scalar.enums import ParallelType
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
)
from loopnest.scalar.simplify import Simplifier
from loopnest.scalar.templates import coordinates
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.overlapping_tiles import Overlap, overlaps


def owners(plan: LoopPlan, env: Environment) -> Iterator[Expr]:
    """Yield the conditions under which this tile stores an element of a GLOBAL tensor.

    Raises:
        LoweringError: several tiles that run at once have an element, and no rule tells one.
    """
    for step in overlaps(env.tensor.domain.history):
        for number, axis in enumerate(step.outer):
            spec = plan.spec(axis)
            apart = spec.parallel.is_thread or spec.parallel is ParallelType.cpu_parallel
            if apart and not is_trivial(spec):
                condition = _of_loop(plan, env, step, number)
                if condition is not TRUE and spec.parallel is ParallelType.cpu_parallel:
                    raise _refused(plan, env, axis)
                if condition is not TRUE:
                    yield condition


def _of_loop(plan: LoopPlan, env: Environment, step: Overlap, number: int) -> Expr:
    """Return the condition for one loop that runs at once."""
    axis, algebra = step.outer[number], plan.algebra
    index = env.known[axis]
    moved = [n for n, base in enumerate(step.bases) if Coordinate(number) in coordinates(base)]
    if not moved:
        return Op("eq", (index, ZERO), dtypes.bool_)
    (place, *others) = moved
    base = step.bases[place]
    if others or len(coordinates(base)) > 1:
        raise _refused(plan, env, axis)
    zero, one, two = [step.begin([integer(n)] * len(step.loops), algebra)[place] for n in range(3)]
    stride = algebra.sub(one, zero)
    falls = isinstance(stride, Const) and int(stride.value) < 0
    width = algebra.sub(ZERO, stride) if falls else stride
    even = algebra.equal(algebra.sub(two, one), stride) and not free_indices(stride)
    if not even or not algebra.proves_le(ZERO, width):
        raise _refused(plan, env, axis)
    last = algebra.sub(step.extents[place], ONE)
    by = integer(step.steps[place])
    turns = _turns(width, step.steps[place], algebra)
    if turns is None:
        raise _refused(plan, env, axis)
    width = algebra.mul(width, integer(turns))
    if algebra.lt(algebra.mul(last, by), width) is TRUE:
        return TRUE
    inner = env.known[env.promotion.image.get(step.inner[place], step.inner[place])]
    distance = algebra.mul(algebra.sub(last, inner) if falls else inner, by)
    ends: Expr = Op("eq", (algebra.add(index, ONE), step.loops[number]), dtypes.bool_)
    if turns > 1:
        ends = algebra.lt(algebra.sub(step.loops[number], integer(turns)), algebra.add(index, ONE))
    if ends is TRUE:
        return TRUE
    return Op("or", (algebra.lt(distance, width), ends), dtypes.bool_)


def _turns(width: Expr, step: int, algebra: Simplifier) -> int | None:
    """Return after how many tiles one has elements of the first again; None where it is not known.

    Tiles begin `width` apart, and their elements lie `step` apart: the first tile's element
    ``step * j`` is one of tile t where ``width * t`` is a multiple of `step`.
    """
    if algebra.mod(width, integer(step)) == ZERO:
        return 1
    return step // gcd(int(width.value), step) if isinstance(width, Const) else None


def _refused(plan: LoopPlan, env: Environment, axis: IterDomain) -> LoweringError:
    spec, name = plan.spec(axis), env.tensor.name
    return LoweringError(
        name,
        f"the tiles of the {spec.parallel.value} loop {spec.axis} overlap, and would store the "
        "same elements of GLOBAL memory at once",
        f"set the memory of {name} to ln.SHARED or ln.LOCAL, or compute it outside of that loop",
    )
