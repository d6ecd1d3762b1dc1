"""The schedulers: which there are, and which one schedules a fusion.

A scheduler is two functions of a fusion: whether it can schedule it, and the schedule, by public
primitives alone. The first that accepts is taken, so that one of a user's own stands in front of
those of the package.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TypeAlias

from loopnest.base.errors import ScheduleError, kind_of
from loopnest.facade import language as ln
from loopnest.scalar.target_names import target_name
from loopnest.schedulers import (
    contraction_loops,
    convolution_loops,
    fold_loops,
    pointwise_loops,
    scan_loops,
    scatter_loops,
    sort_loops,
    stage_loops,
    state_loops,
    transpose_loops,
    window_loops,
)
from loopnest.schedulers.composed_stages import Composition, Loops
from loopnest.schedulers.processor_facts import Processor, this_processor

TARGETS = ("c", "cuda")
_KEPT = 4096
"""So many answers are remembered."""


Schedule: TypeAlias = "Callable[[ln.Fusion, Processor], None]"
"""Schedules a fusion for a processor."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A way to schedule a class of fusions for a target.

    Both functions see a fusion as math alone: nothing tells them which operations of a graph it
    was made of. They are pure: the same fusion and processor give the same answer and schedule.

    Args:
        name: an identifier, unique for its target.
        target: "c" or "cuda" (or "cpu" or "gpu").
        accepts: whether `schedule` can schedule an unscheduled fusion.
        schedule: schedules it.
        reuses: whether it keeps elements near to use them many times, as a product of matrices
            does. Groups of a graph are made of other ops first, and then asked to join these.
        carries: whether it is asked about loops that carry state (`ln.recur`).
    """

    name: str
    target: str
    accepts: Callable[[ln.Fusion, Processor], bool]
    schedule: Schedule
    reuses: bool = False
    carries: bool = False


_Key: TypeAlias = "tuple[str, Processor, Hashable]"

_SCHEDULERS: list[Scheduler] = [
    Scheduler("steps", "c", state_loops.accepts, state_loops.for_cores, carries=True),
    Scheduler("transpose", "c", transpose_loops.accepts, transpose_loops.for_cores),
    Scheduler("pointwise", "c", pointwise_loops.accepts, pointwise_loops.for_cores),
    Scheduler("scatter", "c", scatter_loops.accepts, scatter_loops.for_cores),
    Scheduler("sort", "c", sort_loops.accepts, sort_loops.for_cores),
    Scheduler("fold_alone", "c", fold_loops.accepts_alone, fold_loops.alone_on_cores),
    Scheduler("fold", "c", fold_loops.accepts, fold_loops.for_cores),
    Scheduler("convolution", "c", convolution_loops.accepts, convolution_loops.for_cores, True),
    Scheduler(
        "contraction", "c", contraction_loops.accepts_for_cores, contraction_loops.for_cores, True
    ),
    Scheduler("window", "c", window_loops.accepts, window_loops.for_cores, True),
    Scheduler("scan", "c", scan_loops.accepts, scan_loops.for_cores),
    Scheduler("steps", "cuda", state_loops.accepts, state_loops.for_threads, carries=True),
    Scheduler("transpose", "cuda", transpose_loops.accepts, transpose_loops.for_threads),
    Scheduler("pointwise", "cuda", pointwise_loops.accepts, pointwise_loops.for_threads),
    Scheduler("scatter", "cuda", scatter_loops.accepts_atomic, scatter_loops.for_threads),
    Scheduler("sort", "cuda", sort_loops.accepts, sort_loops.for_threads),
    Scheduler("fold", "cuda", fold_loops.accepts, fold_loops.for_threads),
    Scheduler(
        "contraction", "cuda", contraction_loops.accepts, contraction_loops.for_threads, True
    ),
    Scheduler("window", "cuda", window_loops.accepts, window_loops.for_threads, True),
    Scheduler("scan", "cuda", scan_loops.accepts, scan_loops.for_threads),
]
_ANSWERS: OrderedDict[_Key, Scheduler | None] = OrderedDict()
_LOCK = Lock()


def schedulers(target: str) -> tuple[Scheduler, ...]:
    """Return the schedulers of a target, in the order in which they are asked.

    Raises:
        ScheduleError: there are none for this target.
    """
    named = _named_target(f"schedulers({target!r})", target)
    return tuple([s for s in _SCHEDULERS if s.target == named])


def register_scheduler(scheduler: Scheduler) -> Scheduler:
    """Let a scheduler be asked before all others of its target.

    Raises:
        ScheduleError: no Scheduler, no such target, or one of its name is there already.
    """
    subject = f"register_scheduler({scheduler!r})"
    if not isinstance(scheduler, Scheduler):
        raise ScheduleError(subject, f"{kind_of(scheduler)} is no Scheduler")
    subject = f"register_scheduler({scheduler.name!r})"
    target = _named_target(subject, scheduler.target)
    if target != scheduler.target:
        scheduler = replace(scheduler, target=target)
    if any((s.name, s.target) == (scheduler.name, scheduler.target) for s in _SCHEDULERS):
        found = f"target {scheduler.target!r} has a scheduler of this name already"
        raise ScheduleError(subject, found, "give it another name, or unregister that one")
    with _LOCK:
        _SCHEDULERS.insert(0, scheduler)
        _ANSWERS.clear()
    return scheduler


def unregister_scheduler(name: str, target: str) -> None:
    """Forget a scheduler.

    Raises:
        ScheduleError: there is none of this name for this target.
    """
    found = [s for s in _SCHEDULERS if (s.name, s.target) == (name, target_name(target))]
    if not found:
        have = ", ".join([f"{s.name} ({s.target})" for s in _SCHEDULERS])
        subject = f"unregister_scheduler({name!r}, {target!r})"
        raise ScheduleError(subject, "there is no such scheduler", f"there are: {have}")
    with _LOCK:
        _SCHEDULERS.remove(found[0])
        _ANSWERS.clear()


def has_only_own_schedulers() -> bool:
    """Whether the schedulers are those of this package: none of a user's, none forgotten."""
    return tuple(_SCHEDULERS) == _OWN


def scheduler_of(
    fusion: ln.Fusion, target: str, processor: Processor | None = None
) -> Scheduler | None:
    """Return the scheduler that accepts an unscheduled fusion; None where none does.

    Answers are remembered by structure: what a fusion computes, and on which extents.
    """
    facts = this_processor() if processor is None else processor
    target = _named_target(f"scheduler_of({fusion.name}, {target!r})", target)
    key = (target, facts, structure(fusion))
    with _LOCK:
        if key in _ANSWERS:
            _ANSWERS.move_to_end(key)
            return _ANSWERS[key]
    asked = [s for s in schedulers(target) if s.carries or not _carries(fusion)]
    found = next((s for s in asked if s.accepts(fusion, facts)), None)
    with _LOCK:
        _ANSWERS[key] = found
        while len(_ANSWERS) > _KEPT:
            _ANSWERS.popitem(last=False)
    return found


def _carries(fusion: ln.Fusion) -> bool:
    return any(tensor.carried for tensor in fusion.tensors)


def auto_schedule(
    fusion: ln.Fusion, target: str = "c", processor: Processor | None = None
) -> Scheduler:
    """Schedule a fusion by the scheduler that accepts it, and return that.

    Where none does, or what one makes of it has no kernel, it goes in stages, through memory: as
    many definitions as a scheduler accepts are scheduled by that, the next by the one that accepts
    them. What none accepts is computed an element at a time. `Kernel.notes` says where stages end.

    >>> import loopnest as ln
    >>> with ln.Fusion("scale") as f:
    ...     x = f.input("x", (1000, 300), ln.float32)
    ...     y = f.output(x * 2.0, "y")
    >>> ln.auto_schedule(f).name
    'pointwise'

    Args:
        fusion: the math alone, with its outputs declared.
        target: "c" or "cpu", "cuda" or "gpu".
        processor: what to schedule for; this machine's processor by default.

    Raises:
        ScheduleError: no Fusion, an unknown target, or it has a schedule already.

    Source: nvFuser, which takes the first of its schedulers that accepts a fusion.
    """
    subject = f"auto_schedule({fusion!r}, {target!r})"
    if not isinstance(fusion, ln.Fusion):
        raise ScheduleError(subject, f"{kind_of(fusion)} is no Fusion")
    subject = f"auto_schedule({fusion.name}, {target!r})"
    target = _named_target(subject, target)
    if fusion.trace:
        found = f"it has a schedule already: {fusion.trace[0].call}"
        raise ScheduleError(subject, found, "pass a fusion that is math alone")
    facts = this_processor() if processor is None else processor
    chosen = scheduler_of(fusion, target, facts)
    if chosen is None or (chosen in _OWN and not _works(fusion, chosen, facts)):
        chosen = _STAGES[target]
    chosen.schedule(fusion, facts)
    return chosen


def _works(fusion: ln.Fusion, scheduler: Scheduler, processor: Processor) -> bool:
    """Whether a fusion has the text of its target under a schedule; tried on a copy.

    Schedulers decide by the dimensions of tensors. What a GPU has no registers for (a tensor that
    others read at several places), and what an assumption makes of a size, shows in lowering.
    """
    trial = deepcopy(fusion)
    try:
        scheduler.schedule(trial, processor)
    except ln.ScheduleError:
        return False
    return _has_text(trial, scheduler.target)


def _has_text(fusion: ln.Fusion, target: str) -> bool:
    """Whether a scheduled fusion has the text of a target."""
    try:
        kernel = ln.lower(fusion)
        if target == "cuda":
            kernel.cuda()
    except (ln.ScheduleError, ln.LoweringError, ln.NotSupported):
        return False
    return True


def _in_stages(
    target: str,
    alone: Schedule,
    steps: Schedule,
    fusion: ln.Fusion,
    processor: Processor,
) -> None:
    """Schedule each stage of a fusion by the scheduler that accepts it, or `alone`, or by steps."""

    def choose(stage: ln.Fusion) -> Loops | None:
        found = scheduler_of(stage, target, processor)
        return None if found is None else lambda fusion: found.schedule(fusion, processor)

    Composition(
        choose,
        lambda stage: (steps if _carries(stage) else alone)(stage, processor),
        partial(_has_text, target=target),
        structure,
        f"auto_schedule({fusion.name}, {target!r})",
        target == "cuda",
    ).schedule(fusion)


_STAGES = {
    "c": Scheduler(
        "stages",
        "c",
        stage_loops.accepts,
        partial(_in_stages, "c", stage_loops.for_cores, state_loops.for_cores),
    ),
    "cuda": Scheduler(
        "stages",
        "cuda",
        stage_loops.accepts,
        partial(_in_stages, "cuda", stage_loops.for_threads, state_loops.for_threads),
    ),
}
"""What `auto_schedule` takes where none accepts. It is none of `schedulers`: groups of a graph are
made of what those accept, and this one accepts everything."""


_SCHEDULERS += [
    replace(_STAGES[target], name="sort_stages", accepts=sort_loops.accepts_whole)
    for target in TARGETS
]
_OWN = tuple(_SCHEDULERS)


def structure(fusion: ln.Fusion) -> Hashable:
    """Return what two fusions of the same math and extents have in common."""
    place = {tensor: number for number, tensor in enumerate(fusion.tensors)}
    rows: list[Hashable] = []
    for tensor in fusion.tensors:
        kinds = tuple([(axis.extent, axis.kind) for axis in tensor.root_domain])
        rows.append((tensor.dtype, kinds, tensor.is_output))
        definition = tensor.definition
        if definition is not None:
            reads = tuple([(place[r.producer], r.indices) for r in definition.reads])
            outputs = tuple([place[t] for t in definition.outputs])
            fold = (definition.reducer, definition.scan, definition.carried)
            rows.append((reads, outputs, definition.values, *fold, definition.deterministic))
    inplace = tuple([(place[o], place[i]) for o, i in fusion.inplace.items()])
    return (tuple(rows), inplace)


def _named_target(subject: str, target: object) -> str:
    """Return the target that a name stands for.

    Raises:
        ScheduleError: it has no schedulers.
    """
    found = target_name(target)
    if not isinstance(found, str) or found not in TARGETS:
        known = " or ".join([f'"{name}"' for name in TARGETS])
        raise ScheduleError(subject, f"there are no schedulers for {target!r}", f"use {known}")
    return found
