"""Pass "grid_reductions": where blocks leave partial results, and which blocks go on.

Requires the plan and the storage. Ensures a `GridReduction` for every reduction over the grid, and,
of each definition, in which last block it is computed. It comes before indexing, whose statements
stand under the flag of that block.

A reduction over grid dimensions leaves a partial result in each block. By default the block that
arrives last combines them and goes on alone: whatever depends on the result is computed in that
block only ("flagged"). Where something that depends on it runs over those grid dimensions again,
or stands outside of a loop around the reduction (each iteration has a last block of its own), or
is another reduction over the grid, all blocks need the result: they wait for each other at a
barrier of the grid, and each combines. So it is where something depends on two such reductions:
the blocks that arrive last at their counters may be two.

Before: ``for i0 (grid_x): update T2 | finish T2 | define T3``; after::

    for i0 (grid_x): update T2 | publish T2 | if T2_last: finish T2 | define T3

Source: CUDA's threadFenceReduction sample; rule 38.
"""

from __future__ import annotations

from dataclasses import dataclass

from loopnest.lowering.loops.loop_plan import LoopPlan, is_trivial
from loopnest.lowering.reductions.block_exchange import FreshNames, row_major
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import BLOCK_DIMENSIONS, Memory, ParallelType
from loopnest.scalar.expr import ONE, Buffer, Expr
from loopnest.schedule.fold_order import folded_axes
from loopnest.schedule.loop_forest import LoopGroup
from loopnest.tensor.tensor_view import TensorView


@dataclass(frozen=True, eq=False, slots=True)
class GridReduction:
    """How the blocks of a reduction over the grid meet.

    Args:
        dims: the grid dimensions reduced over.
        extents: the number of blocks along them that take part.
        groups: the others, whose blocks have results of their own.
        loops: serial loops around the reduction; each of their iterations has its own slots.
        threads: dimensions of the block that iterate over results.
        counter: where blocks arrive; None where they wait at a barrier instead.
        partials: of each output of the definition, what the blocks leave.
    """

    dims: tuple[ParallelType, ...]
    extents: tuple[Expr, ...]
    groups: tuple[ParallelType, ...]
    loops: tuple[LoopGroup, ...]
    threads: tuple[ParallelType, ...]
    counter: Buffer | None
    partials: tuple[Buffer, ...]


def thread_dims(plan: LoopPlan, unit: TensorView) -> frozenset[ParallelType]:
    """Return the launch dimensions that the loops around `unit` are bound to."""
    specs = [plan.specs[group] for group in plan.forest.path(unit)]
    return frozenset(s.parallel for s in specs if s.parallel.is_thread and not is_trivial(s))


def result_loops(plan: LoopPlan, unit: TensorView) -> tuple[LoopGroup, ...]:
    """Return the loops around the result of a reduction: those not inside its own."""
    path, leaf = plan.forest.path(unit), unit.domain.leaf
    place = next((n for n, axis in enumerate(leaf) if axis.is_reduction), None)
    if place is None:
        return path
    outside = path[: path.index(plan.forest.find(leaf[place]))]
    inside = [plan.forest.find(axis) for axis in leaf[place:] if not axis.is_reduction]
    return (*outside, *inside)


def last_blocks(plan: LoopPlan) -> dict[TensorView, tuple[TensorView, ...]]:
    """Return for each definition the reduction in whose last block it is computed: at most one.

    Where a definition depends on several, the first one has it, and all blocks get the others.
    """
    meeting = [u for u in plan.forest.units if any(d.is_grid for d in plan.crossed[u])]
    flagged: dict[TensorView, list[TensorView]] = {unit: [] for unit in plan.forest.units}
    for start in meeting:
        dims = {d for d in plan.crossed[start] if d.is_grid}
        after = [u for u in _downstream(plan, start) if u is not start]
        around = set(_around(plan, start))
        # What runs along these dimensions again needs the result in all blocks; what stands outside
        # of a loop around the reduction, that of all iterations.
        if all(
            not dims & thread_dims(plan, unit)
            and around <= set(_all_around(plan, unit))
            and unit not in meeting  # all its blocks must arrive
            and not flagged[unit]  # another last block's
            for unit in after
        ):
            for unit in (start, *after):
                flagged[unit].append(start)
    return {unit: tuple(found) for unit, found in flagged.items()}


def _downstream(plan: LoopPlan, start: TensorView) -> list[TensorView]:
    """Return `start` and the definitions that depend on it."""
    found = {start: None}
    waiting = [start]
    while waiting:
        for tensor in waiting.pop().siblings:
            for consumer in tensor.consumers:
                unit = consumer.siblings[0]
                if unit not in found and unit in plan.crossed:
                    found[unit] = None
                    waiting.append(unit)
    return list(found)


def block_stage(
    plan: LoopPlan,
    unit: TensorView,
    flagged: dict[TensorView, tuple[TensorView, ...]],
    inner: tuple[tuple[Expr, ...], ...],
    names: FreshNames,
) -> GridReduction | None:
    """Return how the blocks of `unit` meet, None where it does not reduce over the grid.

    Args:
        plan: the loops.
        unit: a definition, by its first output.
        flagged: of `last_blocks`.
        inner: by output: extents of the accumulator of a thread.
        names: for the buffers.
    """
    dims = tuple([d for d in plan.crossed[unit] if d.is_grid])
    if not dims:
        return None
    alone = {d for t in flagged[unit] if t is not unit for d in plan.crossed[t] if d.is_grid}
    groups = tuple([d for d in plan.launch if d.is_grid and d not in dims and d not in alone])
    loops = tuple([g for g in _around(plan, unit) if not plan.specs[g].parallel.is_thread])
    bound = {plan.specs[g].parallel for g in result_loops(plan, unit)}
    extents = {
        plan.spec(axis).parallel: plan.spec(axis).extent
        for axis in unit.domain.leaf
        if axis.is_reduction
    }
    # Neighbouring threads are those along x: their slots lie next to each other.
    threads = tuple([d for d in BLOCK_DIMENSIONS[::-1] if d in plan.launch and d in bound])
    kept = [plan.launch[d] for d in groups] + [plan.specs[g].extent for g in loops]
    slots = [extents[d] for d in dims] + kept + [plan.launch[d] for d in threads]
    partials = tuple(
        [
            _workspace(plan, tensor, names, "blocks", (*slots, *own), tensor.dtype.compute)
            for tensor, own in zip(unit.siblings, inner, strict=True)
        ]
    )
    # Each block with a result of its own, and each iteration around the reduction, has a counter:
    # only blocks that reduce together may count together.
    counter = None
    if unit in flagged[unit]:
        counter = _workspace(plan, unit, names, "count", tuple(kept), dtypes.int32, "counter")
    sizes = tuple([extents[d] for d in dims])
    return GridReduction(dims, sizes, groups, loops, threads, counter, partials)


def _around(plan: LoopPlan, unit: TensorView) -> list[LoopGroup]:
    """Return the loops that run around all of a reduction, outermost first."""
    return [g for g in _all_around(plan, unit) if not is_trivial(plan.specs[g])]


def _all_around(plan: LoopPlan, unit: TensorView) -> tuple[LoopGroup, ...]:
    """Return the loops around every phase of a definition: those outside of what it folds.

    A scan carries on in a block what that block folded in earlier iterations, too.
    """
    path, folded = plan.forest.path(unit), folded_axes(unit)
    return path[: path.index(plan.forest.find(folded[0]))] if folded else path


def _workspace(
    plan: LoopPlan,
    tensor: TensorView,
    names: FreshNames,
    stem: str,
    shape: tuple[Expr, ...],
    dtype: DType,
    kind: str = "workspace",
) -> Buffer:
    shape = shape or (ONE,)
    size = plan.algebra.product(shape)
    strides = row_major(shape, plan.algebra)
    name = names.buffer(f"{tensor.name}_{stem}")
    return Buffer(name, tensor.name, Memory.GLOBAL, dtype, shape, strides, size, kind)
