"""The stages of a fusion that no scheduler takes as a whole: each as large as one takes it.

A stage ends in a tensor that goes through memory, and has all that is computed for it from inputs
and from what earlier stages left there. Definitions are added to the stage of what they read for as
long as a scheduler accepts the whole. Where none does, the stage ends in front of the definition:
a product stays one with its bias and activation, and ends in front of the maximum of its rows.
Nothing here knows an operation: what counts is what schedulers accept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import loopnest as ln
from loopnest.schedule.stage_focus import focused
from loopnest.schedulers.iteration_space import copies, is_reshaped, together

LARGE = 1 << 10
"""The extent that a symbolic one is taken for."""

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
        live = fusion.live()
        self.units = [
            t for t in fusion.topological() if t in live and t is _unit(t) and not t.is_input
        ]
        ends = [*fusion.outputs, *apart]
        self.stored = frozenset([_unit(t) for t in ends if not t.is_input])
        self.live = live

    def stages(self) -> list[Stage]:
        """Return the stages."""
        for unit in self.units:
            if not self._is_accepted(unit, self.stored):
                self.stored = self._cut(unit)
        while (shared := self._shared()) is not None:
            self.stored |= {shared}
        ends = [unit for unit in self.units if unit in self.stored]
        return [self._stage(self._cone(unit, self.stored), (unit,)) for unit in ends]

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
        nearest = self.stored | {p for p in folds if _is_fold(p)}
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
        read = [_unit(p) for t in together(unit) for p in t.producers if not p.is_input]
        return [p for p in dict.fromkeys(read) if p not in self.stored]

    def _cone(self, unit: ln.TensorView, stored: Units) -> Units:
        """Return a unit and all that it is computed from since the last stored tensors."""
        found = {unit}
        pending = [unit]
        while pending:
            for tensor in together(pending.pop()):
                for other in [_unit(p) for p in tensor.producers if not p.is_input]:
                    if other not in found and other not in stored:
                        found.add(other)
                        pending.append(other)
        return frozenset(found)

    def _folds(self, unit: ln.TensorView) -> bool:
        """Whether a unit is computed from a fold since the last stored tensors, or is one."""
        return any(map(_is_fold, self._cone(unit, self.stored)))

    def _is_accepted(self, unit: ln.TensorView, stored: Units) -> bool:
        """Whether a scheduler accepts the stage that ends in a unit.

        What folds nothing has no need of one: each element is computed by itself.
        """
        cone = self._cone(unit, stored)
        return not any(map(_is_fold, cone)) or self._asks(self._stage(cone, (unit,)))

    def _asks(self, stage: Stage) -> bool:
        with focused(self.fusion, stage.tensors, stage.outputs):
            return self.accepts(self.fusion)

    def _stage(self, units: Units, ends: Sequence[ln.TensorView]) -> Stage:
        tensors = [t for unit in self.units if unit in units for t in together(unit)]
        outputs = [t for end in ends for t in together(end) if self._is_read(t)]
        return Stage(tuple(tensors), tuple(outputs))

    def _is_read(self, tensor: ln.TensorView) -> bool:
        return tensor.is_output or not self.live.isdisjoint(tensor.consumers)

    def _shared(self) -> ln.TensorView | None:
        """Return a tensor that two stages would compute, the last one; None where there is none."""
        users: dict[ln.TensorView, int] = {}
        for end in self.units:
            for unit in self._cone(end, self.stored) if end in self.stored else ():
                users[unit] = users.get(unit, 0) + 1
        return next((unit for unit in reversed(self.units) if users.get(unit, 0) > 1), None)


def _unit(tensor: ln.TensorView) -> ln.TensorView:
    """Return the first output of the definition of a computed tensor."""
    return together(tensor)[0]


def _is_fold(unit: ln.TensorView) -> bool:
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
