"""A plan of several launches, as one plan a launch: the passes after "groups" see one at a time.

Loops, extents and promotions are those of the whole; a part has its own tensors, their order, and
the launch dimensions that they need. What lies between two launches lies in GLOBAL memory.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from loopnest.base.errors import LoweringError, NotSupported
from loopnest.lowering.loops.loop_plan import LoopPlan, launch_extents
from loopnest.scalar.enums import Memory
from loopnest.scalar.simplify import Simplifier
from loopnest.schedule.loop_forest import LoopBody
from loopnest.tensor.definition import started_by
from loopnest.tensor.tensor_view import TensorView


def launch_parts(plan: LoopPlan) -> tuple[LoopPlan, ...]:
    """Return the plan of each launch, in order; `plan` itself where it is one.

    Raises:
        LoweringError: a launch reads what an earlier one holds in LOCAL or SHARED memory, or an
            input that an earlier one overwrites.
    """
    bodies = plan.order.parts()
    if len(bodies) == 1:
        return (plan,)
    launch = {unit: number for number, body in enumerate(bodies) for unit in body.walk()}
    for unit in plan.forest.units:
        for tensor in unit.siblings:
            _check_memory(tensor, launch)
    _check_overwritten(plan, launch)
    return tuple([_part(plan, body) for body in bodies])


def _part(plan: LoopPlan, body: LoopBody) -> LoopPlan:
    own = set(body.walk())
    forest = copy(plan.forest)
    forest.units = tuple([unit for unit in plan.forest.units if unit in own])
    groups = {group for unit in forest.units for group in forest.path(unit)}
    algebra = Simplifier(plan.algebra.facts)
    launch = launch_extents([plan.specs[group] for group in plan.specs if group in groups], algebra)
    algebra.launch = launch
    crossed = {unit: dims for unit, dims in plan.crossed.items() if unit in own}
    return replace(plan, algebra=algebra, forest=forest, order=body, launch=launch, crossed=crossed)


def _check_memory(tensor: TensorView, launch: dict[TensorView, int]) -> None:
    mine = launch[tensor.siblings[0]]
    for consumer in tensor.consumers:
        theirs = launch.get(consumer.siblings[0], mine)
        if theirs == mine:
            continue
        if tensor.domain.allocation is not None and not tensor.is_output:
            raise NotSupported(
                tensor.name,
                f"{consumer.name} reads it in a later launch (number {theirs}), and it has an "
                "allocation domain of its own",
                "leave what passes between launches in C order (allocation_domain.reset())",
            )
        if tensor.memory is not Memory.GLOBAL:
            keep = f"set {tensor.name}.memory = ln.GLOBAL"
            if started_by(tensor) is consumer:
                keep = f"set {consumer.name}.memory = ln.GLOBAL before atomic()"
            raise LoweringError(
                tensor.name,
                f"it is in {tensor.memory.value.upper()} memory, which ends with launch "
                f"{mine}, and {consumer.name} reads it in launch {theirs}",
                f"{keep}, or compute it in the loops of {consumer.name} (compute_at)",
            )


def _check_overwritten(plan: LoopPlan, launch: dict[TensorView, int]) -> None:
    """Refuse an output in the memory of an input that a later launch still reads."""
    for output, target in plan.fusion.inplace.items():
        written = launch.get(output.siblings[0], 0)
        for reader in target.consumers:
            if launch.get(reader.siblings[0], 0) > written:
                raise LoweringError(
                    f"{output.name} in the memory of {target.name}",
                    f"launch {written} overwrites {target.name}, and {reader.name} reads it in "
                    f"launch {launch[reader.siblings[0]]}",
                    f"start a launch with {output.name} too, or drop inplace=",
                )
