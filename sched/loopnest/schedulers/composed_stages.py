"""Schedules of fusions that no scheduler takes as a whole: each stage by the one that takes it.

for each stage:          # a launch of its own on a GPU
  the loops of the scheduler that accepts it as a fusion; else each element by itself

Between stages tensors lie in memory as arguments do, in the order of their axes. `stage_parts` says
what the stages are, `stage_loops` has the loops of those that no scheduler accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeAlias

import loopnest as ln
from loopnest.scalar.origin import caller
from loopnest.schedule.stage_focus import focused
from loopnest.schedulers.iteration_space import reductions, together
from loopnest.schedulers.stage_loops import keep_overwritten
from loopnest.schedulers.stage_parts import Stage, stages_of
from loopnest.tensor.intents import Intent

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
            tensor.new_launch()
