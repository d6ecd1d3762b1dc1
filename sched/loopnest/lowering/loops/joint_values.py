"""For the nest: which of a reduction's values one exchange between threads combines together.

A thread may hold several values that it reduces with other threads: one for each index of the inner
axes of the result. An exchange costs barriers, whatever it carries; so the axes that the user lets
a thread run over at once (unrolled or vectorized, of static extent) go through one exchange, as far
as registers and shared memory have room.
"""

from __future__ import annotations

import math

from loopnest.lowering.loops.loop_plan import LoopPlan, is_trivial
from loopnest.scalar.enums import BLOCK_DIMENSIONS, WARP, ParallelType
from loopnest.scalar.expr import Const
from loopnest.scalar.launch_bounds import LaunchBounds
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.tensor_view import TensorView

_MOST_VALUES = 32
"""As many registers of a thread may take part in one exchange."""

_MOST_BYTES = 32 << 10
"""As much shared memory may one exchange take."""

_AT_ONCE = (ParallelType.unroll, ParallelType.vectorize)


def joint_axes(plan: LoopPlan, unit: TensorView) -> tuple[IterDomain, ...]:
    """Return the inner axes of a reduction over threads whose values are combined together.

    They are the innermost of those that a thread runs over, outermost first; none where that is no
    more than one value.
    """
    if not plan.crossed[unit]:
        return ()
    most = _most(plan, unit)
    leaf = unit.domain.leaf
    start = next(n for n, axis in enumerate(leaf) if axis.is_reduction)
    count, found = 1, list[IterDomain]()
    for axis in reversed([a for a in leaf[start:] if not a.is_reduction]):
        spec = plan.spec(axis)
        if is_trivial(spec) or spec.parallel.is_thread:
            continue
        if spec.parallel not in _AT_ONCE or not isinstance(spec.extent, Const):
            break
        if count * spec.extent.value > most:
            break
        count *= int(spec.extent.value)
        found.append(axis)
    return tuple(reversed(found)) if count > 1 else ()


def _most(plan: LoopPlan, unit: TensorView) -> int:
    """Return how many values of a thread one exchange has room for."""
    types = [twin.dtype.compute for twin in unit.siblings]
    room = _MOST_BYTES // (_slots(plan, unit) * sum(t.size for t in types))
    return min(_MOST_VALUES // len(types), room)


def _slots(plan: LoopPlan, unit: TensorView) -> int:
    """Return a bound of the elements of shared memory that the exchange of one value takes."""
    used = [d for d in BLOCK_DIMENSIONS if d in plan.launch]
    crossed = [d for d in used if d in plan.crossed[unit]]
    threads = LaunchBounds(plan.launch, plan.algebra).threads()
    by_warps = crossed == used[: len(crossed)]
    return math.ceil(threads / WARP) if by_warps else threads
