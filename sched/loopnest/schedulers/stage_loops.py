"""Schedules of any fusion, an element at a time: for stages that no other scheduler accepts.

for each stage:             # a launch of its own on a GPU
  for element in ...:       # a core, or a thread
    what is folded for it, and all else that it is computed from, computed again

A stage goes through memory: an output, a fold or a scan, and what would be computed again too
often. All else is computed where it is read. Nothing is shared between elements of a stage, so that
this is a schedule to go on from, not the fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import TypeAlias

from loopnest.base.errors import LoweringError, ScheduleError
from loopnest.facade import language as ln
from loopnest.schedulers.iteration_space import copies, has_border, together, upstream
from loopnest.schedulers.loop_shapes import GRID, on_grid
from loopnest.schedulers.processor_facts import Processor
from loopnest.tensor.tensor_view import Read

AGAIN = 4
"""What takes work is computed so often for one of its elements, at most."""
LARGE = 1 << 10
"""The extent that a symbolic one is taken for."""

Spread: TypeAlias = Callable[[ln.TensorView, int], None]
"""Gives the loops of a stage, of which so many go along axes that it keeps, to cores or threads."""


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether it can be scheduled: always."""
    return True


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give the iterations of each stage's outermost loop to the cores."""

    def spread(stage: ln.TensorView, kept: int) -> None:
        if kept:
            stage.axis(0).parallelize(ln.ParallelType.cpu_parallel)

    _schedule(fusion, spread)


def for_threads(fusion: ln.Fusion, processor: Processor) -> None:
    """Give each thread an element of a stage: neighbouring threads have neighbours."""

    def spread(stage: ln.TensorView, kept: int) -> None:
        _spread(stage, kept, processor.threads)

    for stage in _schedule(fusion, spread)[1:]:
        stage.new_launch()


def _schedule(fusion: ln.Fusion, spread: Spread) -> list[ln.TensorView]:
    """Schedule a fusion; return its stages in their order.

    Where the loops of a tensor cannot become those of its reader (a reshape stands between them) it
    is a stage as well. That shows when they are asked to, so that a copy of the fusion goes first.
    """
    keep_overwritten(fusion)
    names = _stage_names(fusion)
    while True:
        trial = deepcopy(fusion)
        failed = _compute_again(trial, _stages(trial, names, spread))
        if failed is None or failed in names:
            break
        # What the new stage reads may be read by another one, too.
        names = _stage_names(fusion, names | {failed})
    if not _has_nest(trial):
        names = frozenset([t.definition.outputs[0].name for t in _live(fusion) if t.definition])
    stages = _stages(fusion, names, spread)
    _compute_again(fusion, stages)
    return stages


def keep_overwritten(fusion: ln.Fusion) -> list[ln.TensorView]:
    """Copy each input that an output overwrites, for all that reads it; return the copies."""
    for tensor in fusion.inplace:
        if tensor.definition is not None and tensor.definition.reducer is not None:
            tensor.cache_before()  # a fold reads on after it has stored
    overwritten = dict.fromkeys(fusion.inplace.values())
    return [tensor.cache_after() for tensor in overwritten if tensor.consumers]


def _has_nest(fusion: ln.Fusion) -> bool:
    """Whether a scheduled fusion has a loop nest.

    It has none where tiles of what windows read would stand in a loop over more than their axis:
    over rows that repeat them.
    """
    try:
        ln.lower(fusion)
    except LoweringError:
        return False
    return True


def _stage_names(fusion: ln.Fusion, chosen: frozenset[str] = frozenset()) -> frozenset[str]:
    """Return the names of the tensors that are stages by themselves, one a definition.

    Beside those that are `chosen`, outputs and folds: what would be computed again too often, and
    what two stages read, which would have to share loops.
    """
    times: dict[ln.TensorView, int] = {}
    users: dict[ln.TensorView, set[str]] = {}
    found = {tensor.name for kept in fusion.inplace.values() for tensor in kept.consumers}
    found |= chosen
    for tensor in [t for t in reversed(_live(fusion)) if t.definition]:
        definition = tensor.definition
        assert definition is not None
        times[tensor], users[tensor], alike = 0, set(), 1
        for consumer in [t for t in tensor.consumers if t in times]:
            assert consumer.definition is not None
            first = consumer.definition.outputs[0].name
            once = 1 if first in found else times[consumer]
            users[tensor] |= {first} if first in found else users[consumer]
            for read in [r for r in consumer.definition.reads if r.producer is tensor]:
                factor = _elements_that_read(read, consumer)
                if factor is None:
                    alike = max(alike, once)
                else:
                    times[tensor] += factor * once
        times[tensor] += alike
        dear = times[tensor] > AGAIN and not (copies(tensor) or has_border(tensor))
        if tensor.is_output or definition.reducer or dear or len(users[tensor]) > 1:
            found.add(definition.outputs[0].name)
    return frozenset(found)


def _live(fusion: ln.Fusion) -> list[ln.TensorView]:
    """Return the tensors that outputs are computed from, and what is computed with these."""
    used = upstream(fusion.outputs)
    return [t for t in fusion.tensors if t in used or not used.isdisjoint(together(t))]


def _elements_that_read(read: Read, consumer: ln.TensorView) -> int | None:
    """Return how many elements of a consumer read one of its producer, about.

    None where the one does that has its place, as all others of the fusion may that do so.
    """
    places = read.equal_axes(consumer.root_domain)
    own = [axis for axis in read.producer.rfactor_domain if not axis.is_reduction]
    moved = [a for a, p in zip(own, places, strict=True) if p is None and not a.is_broadcast]
    taken = {place for place in places if place is not None}
    more = [
        axis.extent if isinstance(axis.extent, int) else LARGE
        for place, axis in enumerate(consumer.root_domain)
        if place not in taken and not axis.is_broadcast
    ]
    if not moved and not more:
        return None
    count = 1
    for extent in sorted(more)[: max(len(more) - len(moved), 0)]:
        count *= extent
    return count


def _stages(fusion: ln.Fusion, names: Iterable[str], spread: Spread) -> list[ln.TensorView]:
    """Give stages memory and loops, and what they fold a register; return them in their order."""
    found: list[ln.TensorView] = []
    for tensor in [t for t in fusion.tensors if t.name in names]:
        definition = tensor.definition
        assert definition is not None
        stage = tensor
        alone = len(definition.outputs) == 1 and definition.scan is None
        if definition.reducer is not None and alone and _kept_axes(tensor):
            if tensor.is_output:
                tensor.cache_before()
            else:
                stage = tensor.cache_after()
        for output in definition.outputs if stage is tensor else (stage,):
            if not output.is_output:
                output.memory = ln.GLOBAL
        kept = _kept_axes(stage)
        rest = [n for n in range(stage.ndim) if n not in kept]
        if rest:
            stage.reorder([*kept, *rest])
        spread(stage, len(kept))
        found.append(stage)
    return found


def _kept_axes(stage: ln.TensorView) -> list[int]:
    """Return the loops along which elements have nothing to do with each other."""
    definition = stage.definition
    scanned = None if definition is None or definition.scan is None else definition.scan.axis
    axes = enumerate(stage.leaf_domain)
    return [n for n, axis in axes if not axis.is_reduction and n != scanned]


def _spread(stage: ln.TensorView, kept: int, threads: int) -> None:
    """Spread the first `kept` axes of a stage over threads; symbolic extents stay in loops apart.

    Neighbours of static extents are one axis with the symbolic one before them: no index is divided
    by a size then, and more is proved for all sizes.
    """
    place = 0
    while place + 1 < kept:
        if isinstance(stage.axis(place + 1).extent, int):
            stage.merge(place)
            kept -= 1
        else:
            place += 1
    while kept > GRID:
        stage.merge(0)
        kept -= 1
    if not kept:
        return
    stage.split(kept - 1, threads)
    stage.parallelize({**on_grid(range(kept)), kept: ln.ParallelType.block_x})


def _compute_again(fusion: ln.Fusion, stages: list[ln.TensorView]) -> str | None:
    """Compute what is no stage in the loops of what reads it; return the name of what cannot be."""
    of_stages = {t for stage in stages if stage.definition for t in stage.definition.outputs}
    seen = {tensor: tensor.name for tensor in fusion.tensors}
    pending = [t for t in _live(fusion) if not t.is_input and t not in of_stages]
    while pending:
        tensor = next(t for t in reversed(pending) if not any(c in pending for c in t.consumers))
        pending.remove(tensor)
        if not tensor.consumers:
            continue
        try:
            tensor.compute_at(tensor.consumers[0], -1, recompute=True)
        except ScheduleError:
            return seen[tensor]
        inner = tensor.leaf_domain[tensor.compute_at_pos :]
        whole = any(not isinstance(a.extent, int) for a in inner if not a.is_reduction)
        if not tensor.compute_at_pos or whole:  # its reader has no loops, or not all of its axes
            return seen[tensor]
        for clone in [t for t in fusion.tensors if t not in seen]:
            seen[clone] = seen[tensor]
            pending.append(clone)
    return None
