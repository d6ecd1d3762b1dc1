"""Pass "checks": refuse schedules whose threads, vectors or parallel loops have no kernel.

Requires the plan and the storage. Ensures that vectorized axes are innermost and of a legal width,
no parallel loop races on a buffer, no launch dimension is used twice in a nest, and some launch
admits the static extents. It changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from loopnest.base.errors import LoweringError
from loopnest.lowering.loops.loop_plan import (
    LoopPlan,
    LoopSpec,
    combined,
    is_atomic,
    is_reduced,
    is_trivial,
    item_axes,
    refolded,
    scanned_over,
)
from loopnest.lowering.memory.allocation import TensorStorage
from loopnest.scalar.enums import (
    BLOCK_DIMENSIONS,
    MOST_ALONG,
    MOST_THREADS,
    STEP_TYPES,
    WARP,
    Memory,
    ParallelType,
)
from loopnest.scalar.expr import ONE, ZERO, Const, Coordinate, Expr, Index, integer, substitute
from loopnest.schedule.fold_order import folded_axes, keeps_order, scans_in_order
from loopnest.schedule.loop_forest import LoopGroup
from loopnest.tensor.domain import IterDomain, Skew
from loopnest.tensor.overlapping_tiles import is_tile_loop, overlaps
from loopnest.tensor.tensor_view import TensorView, started_by

_MAX_VECTOR_BYTES = 64
_STEPWISE = (ParallelType.serial, ParallelType.unroll, ParallelType.unswitch)


def check_plan(plan: LoopPlan, storage: dict[TensorView, TensorStorage]) -> None:
    """Check every tensor of the plan.

    Raises:
        LoweringError: no kernel exists for the schedule.
    """
    _check_launch(plan)
    _check_warps(plan)
    for unit in plan.forest.units:
        _check_order(plan, unit)
        for tensor in unit.siblings:
            _check_start(tensor)
            _check_reduction(plan, tensor)
            _check_steps(plan, tensor)
            _check_rooms(plan, tensor, storage[tensor].rooms)
            _check_vectors(plan, tensor)
            check_races(plan, tensor, storage[tensor])
            _check_lanes(plan, tensor)
            _check_thread_loops(plan, tensor)
            _check_tiles(plan, tensor)


def check_scans(plan: LoopPlan) -> None:
    """Check the loops of every scan, which the nest's phases rely on: before there is a nest.

    Raises:
        LoweringError: the loops do not go through a scan step by step.
    """
    for unit in plan.forest.units:
        _check_scan(plan, unit)


def _check_launch(plan: LoopPlan) -> None:
    """Refuse what no launch admits whatever the sizes; symbolic extents are checked at a launch."""
    if all(ZERO in tensor.sizes for tensor in plan.fusion.outputs):
        return  # nothing is launched
    static = {d: int(e.value) for d, e in plan.launch.items() if isinstance(e, Const)}
    block = {d: extent for d, extent in static.items() if d.is_block}
    threads = math.prod(block.values())
    if threads > MOST_THREADS:
        product = " * ".join([f"{d.value}{_axes(plan, d)} = {e}" for d, e in block.items()])
        raise LoweringError(
            plan.fusion.name,
            f"a block has {threads} threads: {product}",
            f"use at most {MOST_THREADS}",
        )
    for dimension, extent in static.items():
        if extent > MOST_ALONG[dimension]:
            raise LoweringError(
                plan.fusion.name,
                f"{dimension.value}{_axes(plan, dimension)} has the extent {extent}",
                f"use at most {MOST_ALONG[dimension]}",
            )


def _check_warps(plan: LoopPlan) -> None:
    """Refuse WARP memory in blocks whose rows of threads are no warps."""
    held = [unit for unit in plan.forest.units if unit.memory is Memory.WARP]
    lanes = plan.launch.get(ParallelType.block_x, ONE)
    if held and not (isinstance(lanes, Const) and lanes.value == WARP):
        raise LoweringError(
            held[0].name,
            f"its memory is WARP, and block_x{_axes(plan, ParallelType.block_x)} has the extent "
            f"{lanes}",
            f"bind axes of {WARP} lanes alone to block_x, and others to block_y or block_z",
        )


def _axes(plan: LoopPlan, dimension: ParallelType) -> str:
    """Return the loops that are bound to a dimension, in parentheses."""
    axes = dict.fromkeys(
        [s.axis for s in plan.specs.values() if s.parallel is dimension and not is_trivial(s)]
    )
    return f" ({', '.join(axes)})"


def _check_start(tensor: TensorView) -> None:
    """Refuse readers of initial values that a fold has changed by then."""
    fold = started_by(tensor)
    others = [c.name for c in tensor.consumers if c is not fold]
    if fold is not None and (others or tensor.is_output):
        what = f"{', '.join(others)} reads it too" if others else "it is an output"
        raise LoweringError(
            tensor.name,
            f"it holds what {fold.name} starts from, in the memory of {fold.name}, and {what}",
            "use a tensor of its own, as ln.full makes one",
        )


def _check_steps(plan: LoopPlan, tensor: TensorView) -> None:
    """Refuse loops over steps that do not run in order, such as those of a reader's threads."""
    for place, axis in enumerate(tensor.domain.leaf):
        spec = plan.spec(axis)
        if axis.is_step and not is_trivial(spec) and spec.parallel not in STEP_TYPES:
            raise LoweringError(
                tensor.name,
                f"its axis {place} is one of steps, whose loop is {spec.parallel.value}, but each "
                "step reads the state of the one before",
                "compute what shares that loop in one of its own, or leave the loop serial",
            )


def _check_rooms(plan: LoopPlan, tensor: TensorView, rooms: int) -> None:
    """Refuse a state on chip of which more than the last steps are read, or in another order."""
    domain = tensor.domain
    if not rooms:
        return
    if domain.allocation is not None or tensor.layout.stages > 1:
        raise LoweringError(
            tensor.name,
            f"it is a state in {tensor.memory.value} memory, of which there are those of {rooms} "
            "steps, and its buffer was laid out or given stages",
            "leave its buffer as it is, or set its memory to GLOBAL",
        )
    steps = [place for place, axis in enumerate(domain.leaf) if axis.is_step]
    if any(isinstance(step, Skew) for step in domain.history):
        raise LoweringError(
            tensor.name,
            f"it is a state in {tensor.memory.value} memory, of which there are those of {rooms} "
            "steps, and its loop over steps runs in waves, each of several steps",
            "set its memory to GLOBAL",
        )
    for consumer in tensor.consumers:
        inside = steps[-1] < tensor.compute_at_pos
        if consumer.siblings[0] in plan.forest.position and not inside:
            _require_last(plan, tensor, consumer, rooms)


def _require_last(plan: LoopPlan, state: TensorView, reader: TensorView, rooms: int) -> None:
    definition, algebra = reader.definition, plan.algebra
    assert definition is not None
    at: dict[Expr, Expr] = {
        Coordinate(n): Index(f"i{n}", axis.size) for n, axis in enumerate(reader.domain.root)
    }
    last = algebra.sub(state.domain.root[0].size, ONE)
    for number, read in enumerate(definition.reads):
        if read.producer is not state or number in definition.carried:
            continue
        ago = algebra.sub(last, substitute(read.indices[0], at))
        if not (algebra.proves_le(ZERO, ago) and algebra.proves_lt(ago, integer(rooms))):
            raise LoweringError(
                f"{reader.name} reads {state.name} ({state.memory.value})",
                f"behind the loop over steps there are the states of the last {rooms} of them",
                f"read these alone, compute {state.name} at a position in {reader.name} that holds "
                f"the loop, or set the memory of {state.name} to GLOBAL",
            )


def _check_reduction(plan: LoopPlan, tensor: TensorView) -> None:
    for place, axis in enumerate(tensor.domain.leaf):
        spec = plan.spec(axis)
        if not axis.is_reduction or is_trivial(spec):
            continue
        if is_atomic(tensor) and spec.parallel is not ParallelType.vectorize:
            _check_own_block(tensor, place, spec.parallel)
            continue
        if spec.parallel.is_unordered:
            raise LoweringError(
                tensor.name,
                f"its reduction axis {place} is {spec.parallel.value}, but each step of a "
                "reduction needs the one before",
                "split the reduction, rfactor it, and bind the iteration axis of the new tensor",
            )


def _check_own_block(tensor: TensorView, place: int, parallel: ParallelType) -> None:
    """Refuse blocks that fold into one SHARED result, of which each has its own."""
    if tensor.memory is Memory.SHARED and parallel.is_grid:
        raise LoweringError(
            tensor.name,
            f"its reduction axis {place} is {parallel.value}, but each block has SHARED memory of "
            "its own, which would hold a part of the result",
            f"rfactor the axis that blocks have, so that each folds a result of its own; or set "
            f"{tensor.name}.memory = ln.GLOBAL before atomic()",
        )


def _check_order(plan: LoopPlan, unit: TensorView) -> None:
    """Refuse loops that do not meet the elements of a reducer that need not commute in order."""
    definition, domain = unit.definition, unit.domain
    if definition is None or definition.reducer is None or not definition.reducer.ordered:
        return
    if definition.scan is not None:
        return  # `_check_scan` asks for more
    loops = combined(unit, plan.forest, plan.specs, plan.crossed[unit])
    if keeps_order(loops, domain):
        return
    shown = ", ".join([_bound(plan, unit, axis) for axis in loops])
    raise LoweringError(
        unit.name,
        f"its reduction loops [{shown}] do not meet the elements in their order, and "
        f"{definition.reducer.name} need not commute",
        "bind outer parts to blocks, parts inside of these to threads, and leave the innermost "
        f"ones serial, or {_parts_together(plan, unit)}; say commutative=True of a reducer that "
        "commutes"
        if plan.crossed[unit]
        else "reorder them: outer parts in front of inner ones, the axes as they were reduced",
    )


def _parts_together(plan: LoopPlan, unit: TensorView) -> str:
    """Return the calls by which threads fold the elements of each serial iteration together.

    The order is then that of the loops, if that is the one of the elements.
    """
    leaf, name, crossed = unit.domain.leaf, unit.name, plan.crossed[unit]
    folds = [n for n, a in enumerate(leaf) if a.is_reduction and not is_trivial(plan.spec(a))]
    bound = [n for n in folds if plan.spec(leaf[n]).parallel in crossed]
    inner = [n for n in folds if n >= bound[0]]
    in_order = keeps_order([leaf[n] for n in folds], unit.domain) and inner[: len(bound)] == bound
    if not in_order or any(d.is_grid for d in crossed):
        return "rfactor inner parts"
    return (
        f"fold each iteration's elements together: part = {name}.rfactor({inner}), "
        f"part.compute_at({name}, {bound[0]})"
    )


def _check_scan(plan: LoopPlan, unit: TensorView) -> None:
    """Refuse loops that do not go through a scan step by step, each element once.

    Threads of a block take the steps of the innermost loops together.
    """
    definition, domain = unit.definition, unit.domain
    if definition is None or definition.scan is None or not folded_axes(unit):
        return
    path = plan.forest.path(unit)
    loops = sorted(folded_axes(unit), key=lambda axis: path.index(plan.forest.find(axis)))
    _check_scan_loops(plan, unit, loops)
    if not scans_in_order(unit, loops):
        shown = ", ".join([_named(unit, axis) for axis in loops])
        raise LoweringError(
            unit.name,
            f"its loops [{shown}] do not go through the axis of its scan in order",
            "reorder them: outer parts in front of inner ones; do not merge the axis with others",
        )
    if item_axes(plan, unit):
        _check_items(plan, unit)
    own = {plan.forest.find(axis) for axis in domain.leaf}
    inside = path[path.index(plan.forest.find(loops[0])) :]
    other = [g for g in inside if g not in own and not is_trivial(plan.specs[g])]
    again = other or _repeating(plan, unit, inside)
    if again:
        raise LoweringError(
            unit.name,
            f"the loop {plan.specs[again[0]].axis} inside of its scan would take each step again",
            "compute it outside of that loop",
        )


def _repeating(plan: LoopPlan, unit: TensorView, inside: Sequence[LoopGroup]) -> list[LoopGroup]:
    """Return the loops inside of a scan over what it lacks, in which it would go on too far.

    Each thread carries what it folds itself: threads may take the same steps side by side.
    """
    promoter = plan.promoter
    held = promoter.held(unit)
    apart = unit.memory is Memory.LOCAL and not scanned_over(plan, unit)
    return [
        group
        for group in inside
        if not is_trivial(plan.specs[group])
        and not (apart and plan.specs[group].parallel.is_thread)
        and not promoter.concrete_keys(promoter.node_of[group]) <= held
    ]


def _check_items(plan: LoopPlan, unit: TensorView) -> None:
    """Refuse what cannot be done twice, in a loop over the items of a thread of a scan."""
    for source in refolded(plan, unit):
        if is_atomic(source):
            why = "an atomic operation would add again"
        elif any(d.is_grid for d in plan.crossed[source]):
            why = "blocks meet once to reduce it"
        elif source.layout.stages > 1:
            why = "its circular buffer runs ahead once"
        else:
            continue
        loop = plan.spec(item_axes(plan, unit)[0]).axis
        raise LoweringError(
            source.name,
            f"threads of the scan {unit.name} go through the loop {loop} over their items twice, "
            f"and {why}",
            "compute it outside of that loop",
        )


def _check_scan_loops(plan: LoopPlan, unit: TensorView, loops: list[IterDomain]) -> None:
    """Refuse parallel loops along a scan, but for threads of a block around items of a thread."""
    threads: list[IterDomain] = []
    items: list[IterDomain] = []
    for axis in loops:
        spec = plan.spec(axis)
        if is_trivial(spec) or spec.extent is ZERO:
            continue
        if spec.parallel.is_block and items:
            raise LoweringError(
                unit.name,
                f"its loop over {_named(unit, axis)} is {spec.parallel.value}, but it lies inside "
                f"of {_named(unit, items[-1])}, along which each thread goes through items",
                "bind neighbouring parts of the axis to threads, and leave inner ones serial",
            )
        if spec.parallel.is_block:
            # Threads are numbered with x running fastest: that must be the inner part.
            if threads and BLOCK_DIMENSIONS.index(plan.spec(threads[-1]).parallel) < (
                BLOCK_DIMENSIONS.index(spec.parallel)
            ):
                raise LoweringError(
                    unit.name,
                    f"its loop over {_named(unit, threads[-1])} is "
                    f"{plan.spec(threads[-1]).parallel.value}, and {_named(unit, axis)} inside of "
                    f"it is {spec.parallel.value}: neighbouring threads have no neighbouring "
                    "elements",
                    "bind the inner part to block_x, outer ones to block_y and block_z",
                )
            threads.append(axis)
        elif spec.parallel not in _STEPWISE:
            raise LoweringError(
                unit.name,
                f"its loop over {_named(unit, axis)} is {spec.parallel.value}, but each step of a "
                "scan needs the one before",
                "bind another axis, or threads of a block to the inner part of this one",
            )
        elif threads:
            items.append(axis)


def _bound(plan: LoopPlan, tensor: TensorView, axis: IterDomain) -> str:
    parallel = plan.spec(axis).parallel
    how = "" if parallel is ParallelType.serial else f" ({parallel.value})"
    return f"{_named(tensor, axis)}{how}"


def _named(tensor: TensorView, axis: IterDomain) -> str:
    return f"{axis.label(tensor.domain.leaf.index(axis))}: {axis.size}"


def _check_vectors(plan: LoopPlan, tensor: TensorView) -> None:
    for place, axis in enumerate(tensor.domain.leaf):
        spec = plan.spec(axis)
        if spec.parallel is not ParallelType.vectorize:
            continue
        if is_atomic(tensor) and not is_trivial(spec):
            raise LoweringError(
                tensor.name,
                f"its axis {place} is vectorized, but an atomic operation updates one element",
                "leave the axis serial, or bind it to threads",
            )
        if place != tensor.ndim - 1:
            raise LoweringError(
                tensor.name,
                f"its axis {place} is vectorized, but it has {tensor.ndim} leaf axes",
                "vectorize the innermost axis only",
            )
        width = int(spec.extent.value) if isinstance(spec.extent, Const) else 0
        power = width > 0 and width & (width - 1) == 0
        if not power or width * tensor.dtype.size > _MAX_VECTOR_BYTES:
            raise LoweringError(
                tensor.name,
                f"its vectorized axis {place} has the extent {spec.extent} "
                f"({tensor.dtype.size} bytes an element)",
                f"a vector is a static power of two of elements, of at most {_MAX_VECTOR_BYTES} "
                "bytes",
            )


def check_races(plan: LoopPlan, tensor: TensorView, storage: TensorStorage) -> None:
    """Refuse a parallel loop in which several iterations work on one element of a buffer."""
    own = {plan.forest.find(axis) for axis in tensor.domain.leaf}
    path = plan.forest.path(tensor.siblings[0])
    local = storage.accumulator.memory is Memory.LOCAL
    # Loops that a LOCAL tensor shares with its consumers enclose its buffer: each iteration has one
    # of its own.
    start = plan.forest.shared_depth(tensor.siblings[0]) if local else 0
    repeated = plan.promotions[tensor].repeats and not local
    for group in path[start:]:
        spec = plan.specs[group]
        apart = spec.parallel is ParallelType.cpu_parallel
        again = apart and not is_trivial(spec) and (group not in own or repeated)
        # What one point of a merged loop stores is read at points of other iterations; so is what
        # the first iteration of a loop stores, and iterations on the host do not wait.
        readers = [c for c in tensor.consumers if c in plan.forest.position]
        if group not in own:
            waits = spec.parallel is not ParallelType.cpu_parallel
            readers = [] if waits else [c for c in readers if _runs_again(plan, c, group)]
        early = bool(readers) and (repeated or group not in own)
        if again and (local or is_reduced(tensor) or early):
            raise LoweringError(
                tensor.name,
                f"it is computed again in each iteration of the {spec.parallel.value} loop "
                f"{spec.axis}, all on one buffer",
                "compute it outside of that loop, or at a position inside it",
            )


def _check_lanes(plan: LoopPlan, tensor: TensorView) -> None:
    """Refuse lanes of a vector that read what another one of them stores.

    A GLOBAL tensor that lacks an axis of a loop is stored in its first iteration alone; lanes are
    in no order.

    Raises:
        LoweringError: a consumer of `tensor` shares such a loop.
    """
    if tensor.memory is not Memory.GLOBAL:
        return
    promoter = plan.promoter
    for group in plan.forest.path(tensor.siblings[0]):
        spec = plan.specs[group]
        if spec.parallel is not ParallelType.vectorize or is_trivial(spec):
            continue
        if promoter.concrete_keys(promoter.node_of[group]) <= promoter.held(tensor):
            continue
        for consumer in tensor.consumers:
            if consumer in plan.forest.position and group in plan.forest.path(consumer.siblings[0]):
                raise LoweringError(
                    tensor.name,
                    f"one lane of the vectorize loop {spec.axis} stores it, and all lanes compute "
                    f"{consumer.name} of it",
                    "compute it outside of that loop: nothing is inlined past an axis that is "
                    "vectorized already",
                )


def _runs_again(plan: LoopPlan, tensor: TensorView, group: LoopGroup) -> bool:
    """Whether `tensor` is computed in all iterations of a loop, not in the first one alone."""
    first = tensor.memory is Memory.GLOBAL and all(
        plan.forest.find(axis) is not group for axis in tensor.domain.leaf
    )
    return group in plan.forest.path(tensor.siblings[0]) and not first


def _check_tiles(plan: LoopPlan, tensor: TensorView) -> None:
    """Refuse tiles in a loop that does not run over the axis that the tiles move along.

    Raises:
        LoweringError: the loop was merged, for another tensor, with an axis that a reader lacks.
    """
    promoter = plan.promoter
    for step in overlaps(tensor.domain.history):
        for axis in [step.outer[n] for n in step.used()]:
            group = plan.forest.find(axis)
            run = promoter.concrete_keys(promoter.node_of[group])
            for consumer in [c for twin in tensor.siblings for c in twin.consumers]:
                for other in consumer.domain.leaf if consumer in plan.forest.position else ():
                    if plan.forest.find(other) is not group or is_tile_loop(other):
                        continue
                    if promoter.covered(other) != run:
                        raise LoweringError(
                            tensor.name,
                            f"its tiles begin where the windows of {consumer.name} do, but the "
                            f"loop {plan.spec(axis).axis} runs over more than that axis of it",
                            f"compute it outside of that loop, or {consumer.name} apart",
                        )


def _check_thread_loops(plan: LoopPlan, tensor: TensorView) -> None:
    """Refuse a launch dimension that two loops around a tensor are bound to.

    Raises:
        LoweringError: two loops are bound to one dimension.
    """
    found: dict[ParallelType, LoopSpec] = {}
    for group in plan.forest.path(tensor.siblings[0]):
        spec = plan.specs[group]
        if not spec.parallel.is_thread or is_trivial(spec):
            continue
        if spec.parallel in found:
            raise LoweringError(
                tensor.name,
                f"the loops {found[spec.parallel].axis} and {spec.axis} around it are both "
                f"{spec.parallel.value}",
                "one launch dimension may be used once in a nest",
            )
        found[spec.parallel] = spec
