"""Guards against redundant writes, in loops over axes that a tensor lacks.

A tensor may stand in a loop over an axis of the math that it does not have: the loop of a tensor
that it shares a producer with, or that of an axis which is broadcast in it. Computing a value again
does no harm, but an update inside of a reduction adds again. Such an update happens only where what
the tensor lacks is 0; so does a store to GLOBAL memory in a loop that runs over nothing else, whose
first iteration is as good as all, and a store to memory that the threads of the loop share. What
an atomic fold starts from has loops over all elements, also where a block folds one of them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from loopnest.lowering.indexing.axis_indices import Environment
from loopnest.lowering.loops.loop_plan import LoopPlan, is_trivial, loops_with_start
from loopnest.lowering.loops.phase_nest import Compute, Nest
from loopnest.lowering.loops.promotion import Promoter
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import ZERO, Expr, LaunchIndex, Op, free_indices, substitute
from loopnest.schedule.loop_forest import LoopGroup
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.tensor_view import TensorView, started_by


def first_points(
    nest: Nest,
    compute: Compute,
    known: Mapping[IterDomain, Expr],
    memory: Memory,
    places: Container[int],
) -> Iterator[Expr]:
    """Yield the conditions under which `compute` is no repetition.

    Args:
        nest: the loops.
        compute: a phase of a definition.
        known: the indices of the axes that its loops run over.
        memory: where it stores to.
        places: the leaf axes that its buffer has, by position.
    """
    is_global = memory is Memory.GLOBAL
    plan, unit = nest.plan, compute.unit
    path, leaf = plan.forest.path(unit), unit.domain.leaf
    # As many loops as leaf axes, each over the axis itself: every element is met once.
    if len(path) == len(leaf) and not plan.promotions[unit].image:
        return
    held = plan.promoter.held(unit)
    tiled = {plan.forest.find(axis) for step in unit.domain.history for axis in step.given()}
    place = next((n for n, axis in enumerate(leaf) if axis.is_reduction), len(leaf))
    start = path.index(plan.forest.find(leaf[place])) if place < len(leaf) else len(path)
    definition = unit.definition
    fill = None if definition is None else definition.starts_from
    if fill is not None and compute.phase == "update":
        # What starts from another tensor's memory is not initialized where its loops begin again.
        start = min(start, len(loops_with_start(plan, unit)))
    around = path if compute.phase in ("update", "define") else path[:start]
    for depth, group in enumerate(around):
        index = nest.index_of[group]
        parallel = nest.plan.specs[group].parallel
        if group in tiled or index is ZERO or not _matters(parallel, memory, depth >= start):
            continue
        keys = plan.promoter.concrete_keys(plan.promoter.node_of[group])
        # A loop over nothing that the tensor has meets each of its elements once an iteration.
        if keys and keys.isdisjoint(held):
            yield _is_zero(index)
    if compute.phase in ("init", "finish"):
        yield from _of_result(nest, compute, memory, tiled)
    if memory is not Memory.LOCAL:
        yield from _of_threads(nest, compute, known, memory, None if is_global else places)
    if compute.phase == "update":
        for position in range(0 if fill is not None else place, len(leaf)):
            again = fill is not None and path.index(plan.forest.find(leaf[position])) >= start
            if is_global or again or leaf[position].is_reduction:
                yield from _within(nest, compute, position, known)


def first_starts(
    nest: Nest, env: Environment, held: Container[IterDomain] | None
) -> Iterator[Expr]:
    """Yield the tests of a fold's initial values in SHARED memory for axes that their buffer lacks.

    A block folds at one index of each. Iterations that run at once would all store to that element;
    those that run one after the other store the same value to it again.

    Args:
        nest: the loops.
        env: the indices of the axes of the initial values.
        held: the axes of the fold that the buffer has.
    """
    fold, algebra = started_by(env.tensor), nest.plan.algebra
    if fold is None or fold.memory is not Memory.SHARED or held is None:
        return
    for axis, own in zip(fold.domain.logical, env.tensor.domain.logical, strict=True):
        index = env.index(own)
        if axis not in held and index is not None:
            kinds = {var: nest.spec_of[var].parallel for var in free_indices(index)}
            at_once = [var for var, kind in kinds.items() if kind.is_block or kind.is_unordered]
            beyond = algebra.sub(index, substitute(index, dict.fromkeys(at_once, ZERO)))
            if beyond is not ZERO:
                yield _is_zero(beyond)


def is_repeated(plan: LoopPlan, unit: TensorView) -> bool:
    """Whether loops of one thread store elements again.

    Those merged with axes `unit` lacks do, and those around tiles of it that overlap.
    """
    held = plan.promoter.held(unit)
    around = [plan.spec(axis) for step in unit.domain.history for axis in step.given()]
    if any(not spec.parallel.is_thread and not is_trivial(spec) for spec in around):
        return True
    for axis, node in zip(unit.domain.leaf, plan.promotions[unit].leaf, strict=True):
        if plan.spec(axis).parallel.is_thread or axis.is_reduction:
            continue
        keys = plan.promoter.concrete_keys(node)
        if keys - held and not keys.isdisjoint(held):
            return True
    return False


def _of_result(
    nest: Nest, compute: Compute, memory: Memory, tiled: Container[LoopGroup]
) -> Iterator[Expr]:
    """Yield the tests for loops of a reduction's result, bound to threads, that it lacks.

    Those around tiles of it, `tiled`, it does not lack: each iteration has a part of its own.
    """
    plan, unit = nest.plan, compute.unit
    held = plan.promoter.held(unit)
    for axis in unit.domain.leaf:
        dim = plan.spec(axis).parallel
        group = plan.forest.find(axis)
        if axis.is_reduction or group in tiled or not dim.is_thread:
            continue
        keys = plan.promoter.concrete_keys(plan.promoter.node_of[group])
        if _matters(dim, memory, True) and keys and keys.isdisjoint(held):
            yield _is_zero(LaunchIndex(dim))


def _matters(parallel: ParallelType, memory: Memory, reducing: bool) -> bool:
    """Whether repetition in such a loop must be kept from a store to `memory`.

    Loops of one thread repeat: that harms updates, and wastes GLOBAL stores. Threads repeat at
    once: they would race on memory that they share.
    """
    if not parallel.is_thread:
        return memory is Memory.GLOBAL or reducing
    # Threads of other blocks have a SHARED memory of their own; on GLOBAL memory all would race.
    return memory.spans(parallel)


def _of_threads(
    nest: Nest,
    compute: Compute,
    known: Mapping[IterDomain, Expr],
    memory: Memory,
    places: Container[int] | None,
) -> Iterator[Expr]:
    """Yield the tests for axes that run at once and were merged with axes the tensor lacks.

    Of a SHARED tensor, whose buffer has the axes at `places`, those that a loop tells alone which
    the buffer lacks: each block has a part of its own, which may begin anywhere along such an axis.
    """
    for position, axis in enumerate(compute.unit.domain.leaf):
        group = nest.plan.forest.find(axis)
        parallel = nest.plan.specs[group].parallel
        apart = places is None and parallel.is_unordered
        at_once = _matters(parallel, memory, False) if parallel.is_thread else apart
        if not at_once or axis.is_reduction or (places is not None and position in places):
            continue
        for condition in _within(nest, compute, position, known):
            if places is None or free_indices(condition) == {nest.index_of[group]}:
                yield condition


def _within(
    nest: Nest, compute: Compute, position: int, known: Mapping[IterDomain, Expr]
) -> Iterator[Expr]:
    """Yield the tests for a leaf that was merged with axes which the tensor lacks."""
    promoter, unit = nest.plan.promoter, compute.unit
    node, held = nest.plan.promotions[unit].leaf[position], promoter.held(unit)
    loop = promoter.node_of[nest.plan.forest.find(unit.domain.leaf[position])]
    # Of such a loop `first_points` asks; of one that a reshape made of both, the tensor's own axis.
    if promoter.concrete_keys(node).isdisjoint(held) and promoter.concrete_keys(loop).isdisjoint(
        held
    ):
        return
    for root in promoter.parts_of(node, held):
        if root.is_broadcast or not promoter.keys(root).isdisjoint(held):
            continue
        # Of an axis that was split, the loop may run over a part alone.
        parts = [root] if root in known else _parts_in(node, root, known, promoter)
        for value in [known[part] for part in parts]:
            if value is not ZERO:
                yield _is_zero(value)


def _parts_in(
    node: IterDomain, root: IterDomain, known: Mapping[IterDomain, Expr], promoter: Promoter
) -> list[IterDomain]:
    """Return the axes that were made of `root` alone, and `node` of them, whose index is known."""
    found: list[IterDomain] = []
    stack, seen = [node], {root}
    while stack:
        axis = stack.pop()
        if axis in seen:
            continue
        seen.add(axis)
        if axis in known and promoter.keys(axis) == promoter.keys(root):
            found.append(axis)
        elif axis.definition is not None:
            stack.extend(axis.definition.inputs)
    return found


def _is_zero(value: Expr) -> Expr:
    return Op("eq", (value, ZERO), dtypes.bool_)
