"""Pass "nest": loops with numbered indices, around the phases of each tensor's computation.

Requires the plan of loop groups. Ensures a tree of `LoopNode` and `Compute`; every loop has its own
`Index`, numbered in order of appearance; loops of extent 1 are gone; a reduction is an init before
its outermost reduction loop, an update inside, and a finish after where it folds apart; a scan is
an init before the outermost loop along its axis, and an update inside, which stores the element.
One whose loops are all bound to threads carries nothing from iteration to iteration, and has no
init. A scan over threads each of which has several items has four more phases in front of the loop
over them: a begin, a fold (that loop, once more), an exchange between threads and a start.
It comes before allocation and indexing because both ask where a tensor stands in the nest.

Before, loops of T2 ``[i0, r1]``; after::

    for i0: { init T2; for r1: update T2 }

A thread may hold several values that it reduces with other threads: one for each index of the inner
axes of the result. An exchange costs barriers, whatever it carries; so the axes that the user lets
a thread run over at once (unrolled or vectorized, of static extent) go through one exchange, as far
as registers and shared memory have room.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from loopnest.base.fast_init import fast_init
from loopnest.lowering.loops.loop_plan import (
    LoopPlan,
    LoopSpec,
    is_atomic,
    is_reduced,
    is_trivial,
    item_axes,
    keeps_carry,
    refolded,
    scanned_over,
)
from loopnest.lowering.loops.needed_components import is_needed
from loopnest.scalar.enums import BLOCK_DIMENSIONS, WARP, Memory, ParallelType
from loopnest.scalar.expr import ZERO, Const, Expr, Index, LaunchIndex
from loopnest.scalar.launch_bounds import LaunchBounds
from loopnest.schedule.fold_order import carries, folded_axes
from loopnest.schedule.loop_forest import LoopBody, LoopGroup
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


ITEM_PHASES = ("begin", "fold", "exchange", "start")
"""The phases of a scan over threads in front of the loop over the items of a thread."""


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Compute:
    """One phase of a definition: "define", or "init", "update" and "finish".

    Where blocks reduce together there are two more before the finish: "publish" and "arrive". A
    scan over threads that have several items each has `ITEM_PHASES` in front of its updates.

    `indices` gives, for each leaf axis of the (first) output, the index of its loop; 0 where the
    loop is trivial, None where the phase does not run over it (folded axes outside the update).
    `loops` are the loops around it, outermost first. `joint` are loops that no node of the tree
    stands for: their values are exchanged together, so that the phase itself puts
    them around its statements where it must.
    """

    unit: TensorView
    phase: str
    indices: tuple[Expr | None, ...]
    loops: tuple[Index, ...]
    joint: tuple[tuple[Index, LoopSpec], ...] = ()

    def text(self) -> str:
        """Return what it computes, for the stage dump."""
        over = "".join([f", for {var.name} in {spec.extent}" for var, spec in self.joint])
        return f"{self.phase} {', '.join(t.name for t in self.unit.siblings)}{over}"


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class LoopNode:
    """A loop of the tree."""

    var: Index
    spec: LoopSpec
    body: list[NestItem]


NestItem: TypeAlias = "LoopNode | Compute"


@dataclass(frozen=True, eq=False, slots=True)
class Nest:
    """The tree, for each loop group its index expression, and for each index its loop."""

    plan: LoopPlan
    body: list[NestItem]
    index_of: dict[LoopGroup, Expr]
    spec_of: dict[Index, LoopSpec]

    def text(self) -> str:
        """Return the tree, for the stage dump."""
        return "\n".join(["# nest", *_lines(self.body, 0)]) + "\n"


def _lines(body: list[NestItem], depth: int) -> Iterator[str]:
    for item in body:
        if isinstance(item, Compute):
            yield "  " * depth + item.text()
        else:
            how = "" if item.spec.parallel is ParallelType.serial else item.spec.parallel.value
            note = f"  # {how}" if how else ""
            yield "  " * depth + f"for {item.var.name} in {item.spec.extent}:{note}"
            yield from _lines(item.body, depth + 1)


def build_nest(plan: LoopPlan) -> Nest:
    """Return the tree of loops and computation phases."""
    builder = _Builder(plan)
    body = builder.body(plan.order, ())
    return Nest(plan, body, builder.index_of, builder.spec_of)


def accumulates_apart(plan: LoopPlan, tensor: TensorView) -> bool:
    """Whether a reduction folds in a LOCAL buffer of its own.

    One of 16 bits does, to be rounded once; one over threads, since each has a part; a SHARED one
    where registers can hold it; and a GLOBAL one of whose definition another output is not GLOBAL,
    or has 16 bits, because one thread writes it while all threads need the running values. A scan
    does, whose elements are what that buffer holds one after the other, but for one that a block
    goes through at once.
    """
    if carries(tensor):
        return keeps_carry(plan, tensor.siblings[0])
    if not is_reduced(tensor) or is_atomic(tensor):
        return False
    if plan.crossed[tensor.siblings[0]]:
        return True
    if any(twin.memory is Memory.SHARED for twin in tensor.siblings):
        return True
    mixed = any(
        twin.memory is not Memory.GLOBAL or twin.dtype.is_narrow
        for twin in tensor.siblings
        if is_needed(plan, twin)
    )
    return tensor.dtype.is_narrow or (tensor.memory is Memory.GLOBAL and mixed)


class _Builder:
    def __init__(self, plan: LoopPlan) -> None:
        self.plan = plan
        self.index_of: dict[LoopGroup, Expr] = {}
        self.spec_of: dict[Index, LoopSpec] = {}
        self.first_loop: dict[LoopGroup, list[TensorView]] = {}
        self.item_loop: dict[LoopGroup, list[TensorView]] = {}
        for unit in plan.forest.units:
            items = item_axes(plan, unit)
            if items:
                self.item_loop.setdefault(plan.forest.find(items[0]), []).append(unit)
            starts = keeps_carry(plan, unit) if carries(unit) else is_reduced(unit)
            if starts and not is_atomic(unit):
                group = self._first_fold(unit)
                self.first_loop.setdefault(group, []).append(unit)

    def _first_fold(self, unit: TensorView) -> LoopGroup:
        """Return the outermost loop that folds `unit`, around which init and finish stand."""
        return self.plan.forest.find(folded_axes(unit)[0])

    def body(self, tree: LoopBody, loops: tuple[Index, ...]) -> list[NestItem]:
        result: list[NestItem] = []
        for item in tree.order:
            if isinstance(item, TensorView):
                phase = "update" if is_reduced(item) or carries(item) else "define"
                result.append(self._compute(item, phase, {}, loops))
                continue
            assert item.group is not None
            starting = self.first_loop.get(item.group, [])
            for unit in starting:
                result.extend(self._around(unit, "init", loops))
            result.extend(self._before_items(self.item_loop.get(item.group, []), loops))
            result.extend(self._loop(item, loops))
            for unit in starting:
                result.extend(self._after(unit, loops))
        return result

    def _before_items(
        self, units: list[TensorView], loops: tuple[Index, ...]
    ) -> Iterator[NestItem]:
        """Yield the phases of scans in front of the loop over the items of a thread."""
        again = {unit: refolded(self.plan, unit) for unit in units}
        for unit in sorted(units, key=lambda u: len(again[u])):  # what one depends on comes first
            for earlier in [u for u in units if u in again[unit]]:
                yield from self._around(earlier, "start", loops)
            yield from self._around(unit, "begin", loops)
            yield Compute(unit, "fold", (), loops)
            yield from self._around(unit, "exchange", loops)
        for unit in units:
            yield from self._around(unit, "start", loops)

    def _after(self, unit: TensorView, loops: tuple[Index, ...]) -> list[NestItem]:
        """Return the statements behind the reduction loops of `unit`."""
        result: list[NestItem] = []
        if carries(unit):
            return result
        if any(d.is_grid for d in self.plan.crossed[unit]):
            result.extend(self._around(unit, "publish", loops))
            result.append(self._compute(unit, "arrive", {}, loops))
        if any(accumulates_apart(self.plan, twin) for twin in unit.siblings):
            result.extend(self._around(unit, "finish", loops))
        return result

    def _loop(self, tree: LoopBody, loops: tuple[Index, ...]) -> list[NestItem]:
        group = tree.group
        assert group is not None
        spec = self.plan.specs[group]
        if is_trivial(spec):
            self.index_of[group] = ZERO
            inner = self.body(tree, loops)
            if spec.parallel is not ParallelType.unswitch:
                return inner
            # It opens the region that the pass "unswitch" doubles; no index uses its own.
            return [LoopNode(self._index(spec), spec, inner)]
        var = self._index(spec)
        self.index_of[group] = var
        inner = self.body(tree, (*loops, var))
        return [LoopNode(var, spec, inner)]

    def _index(self, spec: LoopSpec) -> Index:
        var = Index(f"i{len(self.spec_of)}", spec.extent)
        self.spec_of[var] = spec
        return var

    def _around(self, unit: TensorView, phase: str, loops: tuple[Index, ...]) -> list[NestItem]:
        """Return `phase` of a fold inside fresh loops over its inner iteration axes."""
        leaf, folded = unit.domain.leaf, folded_axes(unit)
        own_items = item_axes(self.plan, unit) if phase in ITEM_PHASES else ()
        start = leaf.index(own_items[0] if own_items else folded[0])
        own: dict[IterDomain, Expr] = {}
        made: list[tuple[Index, LoopSpec]] = []
        together = () if phase == "init" else joint_axes(self.plan, unit)
        joint: list[tuple[Index, LoopSpec]] = []
        exchanges = bool(self.plan.crossed[unit] or scanned_over(self.plan, unit))
        for axis in leaf[start:]:
            if axis in folded:
                continue
            spec = self.plan.spec(axis)
            if is_trivial(spec):
                own[axis] = ZERO
            elif phase == "init" and spec.parallel.is_thread and exchanges:
                own[axis] = LaunchIndex(spec.parallel)  # every thread takes part in the exchange
            else:
                var = self._index(spec)
                own[axis] = var
                (joint if axis in together else made).append((var, _outside_of_tile(spec)))
        inside = (*loops, *(var for var, _ in (*made, *joint)))
        compute = replace(self._compute(unit, phase, own, inside), joint=tuple(joint))
        items: list[NestItem] = [compute]
        for var, spec in reversed(made):
            items = [LoopNode(var, spec, items)]
        return items

    def _compute(
        self,
        unit: TensorView,
        phase: str,
        own: dict[IterDomain, Expr],
        loops: tuple[Index, ...],
    ) -> Compute:
        leaf, folds = unit.domain.leaf, folded_axes(unit)
        folded = phase not in ("update", "define", *ITEM_PHASES)
        first = leaf.index(folds[0]) if folds else len(leaf)
        items = item_axes(self.plan, unit) if phase in ITEM_PHASES else ()
        # Parts of one point inside of the items are no items: their loops do not stand here either.
        items = folds[folds.index(items[0]) :] if items else ()
        indices: list[Expr | None] = []
        for place, axis in enumerate(leaf):
            if axis in own:
                indices.append(own[axis])
            elif axis in items:
                indices.append(ZERO)  # a thread has items if it has a first one
            elif folded and (axis in folds or place > first):
                indices.append(None)
            else:
                indices.append(self.index_of[self.plan.forest.find(axis)])
        return Compute(unit, phase, tuple(indices), loops)


def _outside_of_tile(spec: LoopSpec) -> LoopSpec:
    """Return the loop of a tile for a phase that is none: over registers of a thread, serial."""
    if spec.tile is None:
        return spec
    in_registers = spec.parallel is ParallelType.mma
    return replace(spec, tile=None, parallel=ParallelType.serial if in_registers else spec.parallel)


def static(extent: Expr) -> int | None:
    """Return a static extent as an int, else None."""
    return int(extent.value) if isinstance(extent, Const) else None
