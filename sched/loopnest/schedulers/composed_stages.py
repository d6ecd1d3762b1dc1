"""Schedules of fusions that no scheduler takes as a whole: each stage by the one that takes it.

for each stage:          # a launch of its own on a GPU
  the loops of the scheduler that accepts it as a fusion; else each element by itself

Between stages tensors lie in memory as arguments do, in the order of their axes. `stages_of` says
what the stages are, `stage_loops` has the loops of those that no scheduler accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from loopnest.facade import language as ln
from loopnest.scalar.origin import caller
from loopnest.schedule.stage_focus import focused
from loopnest.schedulers.iteration_space import copies, is_reshaped, reductions, together
from loopnest.schedulers.stage_loops import LARGE, keep_overwritten
from loopnest.schedulers.state_loops import loops_of_state
from loopnest.tensor.intents import Intent

# The stages of a fusion that no scheduler takes as a whole: each as large as one takes it.
#
# A stage ends in a tensor that goes through memory, and has all that is computed for it from inputs
# and from what earlier stages left there. Definitions are added to the stage of what they read as
# long as a scheduler accepts the whole. Where none does, the stage ends in front of the definition:
# a product stays one with its bias and activation, and ends in front of the maximum of its rows.
# Nothing here knows an operation: what counts is what schedulers accept.

Accepts: TypeAlias = Callable[[ln.Fusion], bool]
"""Whether a scheduler accepts an unscheduled fusion."""
Units: TypeAlias = "frozenset[ln.TensorView]"
"""Definitions, each by the first of its outputs."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Definitions that are scheduled as one fusion.

    Args:
        tensors: what they define.
        outputs: those of the tensors that go through memory, in order of creation.
    """

    tensors: tuple[ln.TensorView, ...]
    outputs: tuple[ln.TensorView, ...]


def stages_of(
    fusion: ln.Fusion, accepts: Accepts, apart: Iterable[ln.TensorView] = ()
) -> list[Stage]:
    """Return the stages of an unscheduled fusion in an order in which each can be computed.

    Args:
        fusion: which gets no calls.
        accepts: asked of the fusion while it is one stage.
        apart: tensors that go through memory in any case.
    """
    return _Partition(fusion, accepts, apart).stages()


class _Partition:
    """Chooses the tensors that go through memory."""

    def __init__(self, fusion: ln.Fusion, accepts: Accepts, apart: Iterable[ln.TensorView]) -> None:
        self.fusion, self.accepts = fusion, accepts
        self.live = live = fusion.live()
        loops = loops_of_state(fusion)
        self.loops = {loop[-1]: tuple(loop) for loop in loops}
        """What carries state, a unit as a whole: by the last tensor."""
        self.loop_of = {tensor: loop[-1] for loop in loops for tensor in loop}
        self.units = [
            t for t in fusion.topological() if t in live and t is self._unit(t) and not t.is_input
        ]
        ends = [*fusion.outputs, *apart, *self.loops]
        self.stored = frozenset([self._unit(t) for t in ends if not t.is_input])

    def stages(self) -> list[Stage]:
        """Return the stages."""
        for unit in self.units:
            if not self._is_accepted(unit, self.stored):
                self.stored = self._cut(unit)
        while (shared := self._shared()) is not None:
            self.stored |= {shared}
        ends = [unit for unit in self.units if unit in self.stored]
        found = [self._stage(self._cone(unit, self.stored), (unit,)) for unit in ends]
        return _in_order(found) if self.loops else found

    def _unit(self, tensor: ln.TensorView) -> ln.TensorView:
        """Return the first output of the definition of a computed tensor."""
        return self.loop_of.get(tensor, together(tensor)[0])

    def _together(self, unit: ln.TensorView) -> tuple[ln.TensorView, ...]:
        return self.loops.get(unit, together(unit))

    def _is_fold(self, unit: ln.TensorView) -> bool:
        return unit in self.loops or _folds_itself(unit)

    def _cut(self, unit: ln.TensorView) -> Units:
        """Return what is stored so that a unit's stage is accepted, or has as little as possible.

        First what is behind the nearest folds, in front of what only moves it; then in front of
        what only repeats it. Then all that the unit reads. What the stage is accepted with stays in
        it.
        """
        folds = [p for p in self._producers(unit) if self._folds(p)]
        stored = self.stored
        for found in (folds, self._producers(unit)):
            for passed in (copies, _repeats, _nothing):
                ends = self._ends(found, passed)
                stored = self.stored | ends
                if not ends or not self._is_accepted(unit, stored):
                    continue
                for end in sorted(ends, key=lambda t: t.number):
                    if self._is_accepted(unit, stored - {end}):
                        stored -= {end}
                return stored
        # A fold may have more elements than what it folds (a histogram), and still be stored.
        nearest = self.stored | {p for p in folds if self._is_fold(p)}
        return nearest if self._is_accepted(unit, nearest) else stored

    def _ends(
        self, units: Iterable[ln.TensorView], passed: Callable[[ln.TensorView], bool]
    ) -> Units:
        """Return what to store in place of tensors: what is `passed` is computed where it is read.

        So is a tensor that has more elements than all that it is computed from.
        """
        found: set[ln.TensorView] = set()
        pending = [*units]
        while pending:
            unit = pending.pop()
            grows = _elements(unit) > sum(map(_elements, unit.producers))
            if grows or passed(unit):
                pending += self._producers(unit)
            else:
                found.add(unit)
        return frozenset(found)

    def _producers(self, unit: ln.TensorView) -> list[ln.TensorView]:
        """Return what a unit reads of definitions that are not stored."""
        read = [self._unit(p) for t in self._together(unit) for p in t.producers if not p.is_input]
        return [p for p in dict.fromkeys(read) if p not in self.stored and p is not unit]

    def _cone(self, unit: ln.TensorView, stored: Units) -> Units:
        """Return a unit and all that it is computed from since the last stored tensors."""
        found = {unit}
        pending = [unit]
        while pending:
            for tensor in self._together(pending.pop()):
                for other in [self._unit(p) for p in tensor.producers if not p.is_input]:
                    if other not in found and other not in stored:
                        found.add(other)
                        pending.append(other)
        return frozenset(found)

    def _folds(self, unit: ln.TensorView) -> bool:
        """Whether a unit is computed from a fold since the last stored tensors, or is one."""
        return any(map(self._is_fold, self._cone(unit, self.stored)))

    def _is_accepted(self, unit: ln.TensorView, stored: Units) -> bool:
        """Whether a scheduler accepts the stage that ends in a unit.

        What folds nothing has no need of one: each element is computed by itself.
        """
        cone = self._cone(unit, stored)
        return not any(map(self._is_fold, cone)) or self._asks(self._stage(cone, (unit,)))

    def _asks(self, stage: Stage) -> bool:
        with focused(self.fusion, stage.tensors, stage.outputs):
            return self.accepts(self.fusion)

    def _stage(self, units: Units, ends: Sequence[ln.TensorView]) -> Stage:
        tensors = [t for unit in self.units if unit in units for t in self._together(unit)]
        outputs = [t for end in ends for t in self._together(end) if self._is_read(t, end)]
        return Stage(tuple(tensors), tuple(outputs))

    def _is_read(self, tensor: ln.TensorView, unit: ln.TensorView) -> bool:
        """Whether a tensor of a unit is an output, or others read it."""
        others = self.live.difference(self._together(unit))
        return tensor.is_output or not others.isdisjoint(tensor.consumers)

    def _shared(self) -> ln.TensorView | None:
        """Return a tensor that two stages would compute, the last one; None where there is none."""
        users: dict[ln.TensorView, int] = {}
        for end in self.units:
            for unit in self._cone(end, self.stored) if end in self.stored else ():
                users[unit] = users.get(unit, 0) + 1
        return next((unit for unit in reversed(self.units) if users.get(unit, 0) > 1), None)


def _in_order(stages: Sequence[Stage]) -> list[Stage]:
    """Return stages, each behind those that it reads."""
    left, found = [*stages], list[Stage]()
    while left:
        made = {tensor for stage in left for tensor in stage.outputs}
        stage = next(s for s in left if made.isdisjoint(_read_by(s)))
        left.remove(stage)
        found.append(stage)
    return found


def _read_by(stage: Stage) -> set[ln.TensorView]:
    return {p for tensor in stage.tensors for p in tensor.producers}.difference(stage.tensors)


def _folds_itself(unit: ln.TensorView) -> bool:
    return unit.definition is not None and unit.definition.reducer is not None


def _repeats(unit: ln.TensorView) -> bool:
    """Whether a tensor is another one, moved or repeated, but no reshape of it."""
    return copies(unit) and not is_reshaped(unit)


def _nothing(unit: ln.TensorView) -> bool:
    return False


def _elements(tensor: ln.TensorView) -> int:
    """Return how many elements a tensor has, about."""
    extents = [axis.extent for axis in tensor.rfactor_domain if not axis.is_reduction]
    return prod([extent if isinstance(extent, int) else LARGE for extent in extents])


Loops: TypeAlias = Callable[[ln.Fusion], None]
"""Schedules a fusion."""


@dataclass(frozen=True, slots=True)
class Composition:
    """How stages are scheduled.

    Args:
        choose: returns how a scheduler schedules an unscheduled fusion, None where none accepts it.
        alone: schedules what none accepts.
        works: whether a scheduled fusion has a kernel.
        structure: what fusions have in common that are scheduled alike.
        call: the call that asks for it, in notes.
        launches: whether stages are launches.
    """

    choose: Callable[[ln.Fusion], Loops | None]
    alone: Loops
    works: Callable[[ln.Fusion], bool]
    structure: Callable[[ln.Fusion], Hashable]
    call: str
    launches: bool

    def schedule(self, fusion: ln.Fusion) -> None:
        """Schedule a fusion in stages.

        What a scheduler makes of a stage may be refused, or have no kernel. That shows when it is
        lowered, so that a copy of the fusion goes first; elements of such a stage are computed one
        by one. So are those of all stages where each has a kernel but the whole has none.
        """
        refused: set[Hashable] = set()
        while (failed := self._failed(deepcopy(fusion), refused)) is not None:
            if failed <= refused:
                self._note(fusion, "elements", _folds(fusion))
                self.alone(fusion)
                return
            refused |= failed
        self._in_stages(fusion, refused)

    def _failed(self, trial: ln.Fusion, refused: Collection[Hashable]) -> set[Hashable] | None:
        """Return which stages have no schedule or no kernel; None where the whole has a kernel."""
        try:
            stages = self._in_stages(trial, refused)
        except _Refused as failed:
            return {failed.key}
        if self.works(trial):
            return None
        return {key for key, stage in stages if not self._has_kernel(trial, stage)}

    def _has_kernel(self, fusion: ln.Fusion, stage: Stage) -> bool:
        with focused(fusion, stage.tensors, stage.outputs):
            return self.works(fusion)

    def _in_stages(
        self, fusion: ln.Fusion, refused: Collection[Hashable]
    ) -> list[tuple[Hashable, Stage]]:
        """Schedule each stage; return what it is and its tensors then.

        Raises:
            _Refused: the schedule of a stage is refused.
        """
        copied = keep_overwritten(fusion)
        found = []
        for stage in stages_of(fusion, lambda part: self.choose(part) is not None, copied):
            stored = [tensor for tensor in stage.outputs if not tensor.is_output]
            for tensor in stored:
                tensor.memory = ln.GLOBAL
                if not self.launches:  # what passes between launches lies like that anyway
                    tensor.set_allocation([*range(tensor.ndim)])
            with focused(fusion, stage.tensors, stage.outputs):
                key = self.structure(fusion)
                chosen = None if key in refused else self.choose(fusion)
                if chosen is None:
                    self._note(fusion, "elements", _folds(fusion))
                try:
                    (chosen or self.alone)(fusion)
                except ln.ScheduleError as problem:
                    raise _Refused(key) from problem
                made = tuple([t for t in fusion.tensors if not t.is_input])
                found.append((key, Stage(made, fusion.outputs)))
            self._note(fusion, "stored", stored)
            if self.launches:
                _start_launches(found[-1][1])
        return found

    def _note(self, fusion: ln.Fusion, kind: str, tensors: Iterable[ln.TensorView]) -> None:
        """Let the notes of a kernel say what is lost."""
        for tensor in tensors:
            fusion.intents.append(Intent(caller(self.call), kind, tensor))


class _Refused(Exception):
    """The schedule of the stage `key` is refused."""

    def __init__(self, key: Hashable) -> None:
        super().__init__(key)
        self.key = key


def _folds(fusion: ln.Fusion) -> list[ln.TensorView]:
    """Return a tensor of each definition that folds, one that is read."""
    found = [together(tensor) for tensor in reductions(fusion)]
    return [next(t for t in outputs if t.is_output or t.consumers) for outputs in found]


def _start_launches(stage: Stage) -> None:
    """Let what a stage reads of earlier ones be complete before its loops begin."""
    own = {*stage.tensors}
    for tensor in stage.tensors:
        if any(not p.is_input and p not in own for p in tensor.producers):
            for first in _first_in_loops(tensor, own):
                first.new_launch()


def _first_in_loops(tensor: ln.TensorView, own: Collection[ln.TensorView]) -> list[ln.TensorView]:
    """Return what is computed first in the loops of a tensor, where these pass GLOBAL memory on.

    A launch that began at the tensor itself would leave what it reads there in an earlier one.
    """
    inside = dict.fromkeys([tensor])
    for unit in (waiting := [tensor]):
        found = [p for p in unit.producers if p in own and p.compute_at_pos and p not in inside]
        inside.update(dict.fromkeys(found))
        waiting += found
    if all(unit.memory is not ln.GLOBAL for unit in inside if unit is not tensor):
        return [tensor]
    return [unit for unit in inside if inside.keys().isdisjoint(unit.producers)]
