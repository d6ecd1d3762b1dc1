"""A fusion as one of its stages: what reads and schedules it then sees these tensors alone.

A stage is some tensors of a fusion. What they read of others lies in memory when the stage begins,
like an input; what others read of them goes through memory, like an output. While a fusion is
focused on a stage, its inputs, outputs, tensors and consumers are those of the stage. So a schedule
of the stage is one of a whole fusion, and moves no loops outside of it.

    x -> h -> y              the fusion; `h` goes through memory
    (x) -> h, (h) -> y       its two stages, with their inputs in parentheses
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from loopnest.schedule.caching import reroute
from loopnest.tensor.domain import TensorDomain
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.intents import Intent
from loopnest.tensor.schedule_trace import FOCUS, UNFOCUS, Step, Trace
from loopnest.tensor.tensor_view import TensorView


@contextmanager
def focused(
    fusion: Fusion, tensors: Collection[TensorView], outputs: Sequence[TensorView]
) -> Iterator[None]:
    """Let a fusion be one of its stages for a while. Calls are added to its trace as always.

    Args:
        fusion: no call of it is running.
        tensors: those of the stage, each with its siblings; no inputs.
        outputs: those of them that are outputs of the fusion, or that other stages read.
    """
    stage = _Stage(fusion, tensors, outputs)
    stage.enter()
    try:
        yield
    finally:
        stage.leave()


_SCHEDULE = ("definition", "domain", "_compute_at_pos", "_produced_at_pos", "_starts_launch")
"""The fields of a tensor that one that lies in memory has no more use for."""


class _Stage:
    """What a fusion has outside of a stage, kept while the fusion is that stage."""

    def __init__(
        self, fusion: Fusion, tensors: Collection[TensorView], outputs: Sequence[TensorView]
    ) -> None:
        self.fusion = fusion
        self.outputs = tuple(outputs)
        own = self.chosen = [t for t in fusion.topological() if t in tensors]
        read = {p for tensor in own for p in tensor.producers}
        self.inputs = tuple([t for t in fusion.tensors if t in read and t not in tensors])
        self.tensors = [t for t in fusion.tensors if t in tensors or t in read]
        self.outside = {t: [c for c in t.consumers if c not in tensors] for t in self.tensors}
        self.computed = [(t, {name: getattr(t, name) for name in _SCHEDULE}) for t in self.inputs]
        self.kept = (fusion.tensors, fusion.inputs, fusion.outputs, dict(fusion.inplace))
        self.names = fusion._names
        self.reduced = [(t, t.reduction) for t in self.tensors if t.reduction not in self.tensors]
        self.calls: tuple[Trace, list[Intent]] = (fusion.trace, fusion.intents)

    def enter(self) -> None:
        """Make the fusion the stage."""
        fusion = self.fusion
        for tensor, outside in self.outside.items():
            kept = tuple([c for c in tensor.consumers if c not in outside])
            fusion.change(tensor, "_consumers", kept)
        for tensor in self.inputs:
            root = TensorDomain.of_root(tensor.domain.logical)
            for name, value in zip(_SCHEDULE, (None, root, 0, 0, False), strict=True):
                fusion.change(tensor, name, value)
        for tensor, _ in self.reduced:
            fusion.change(tensor, "reduction", None)
        pairs = fusion.inplace.items()
        inplace = {o: i for o, i in pairs if o in self.outputs and i in self.inputs}
        self._become([*self.tensors], self.inputs, self.outputs, inplace)
        own = {*self.tensors}
        named = self.names.items()
        fusion._names = {n: t for n, t in named if t in own or not isinstance(t, TensorView)}
        fusion.trace, fusion.intents = Trace(), []
        fusion.trace.note(Step.of(FOCUS, None, (self.chosen, [*self.outputs])))
        fusion.renew()

    def leave(self) -> None:
        """Make the fusion what it was, with what was done to the stage."""
        fusion = self.fusion
        made = [t for t in fusion.tensors if t not in self.tensors]
        replaced = dict(zip(self.outputs, fusion.outputs, strict=True))
        all_tensors, inputs, outputs, inplace = self.kept
        given = tuple([replaced.get(t, t) for t in outputs])
        placed = {replaced.get(o, o): i for o, i in inplace.items()}
        self._become([*all_tensors, *made], inputs, given, placed)
        fusion._names = {**self.names, **fusion._names}
        trace, intents = self.calls
        fusion.trace.note(Step.of(UNFOCUS, None))
        fusion.trace = trace.joined(fusion.trace)
        fusion.intents = [*intents, *fusion.intents]
        for tensor, fields in self.computed:
            for name, value in fields.items():
                fusion.change(tensor, name, value)
        for tensor, reduction in self.reduced:
            fusion.change(tensor, "reduction", reduction)
        for tensor, outside in self.outside.items():
            both = {*tensor.consumers, *outside}
            ordered = tuple(sorted(both, key=lambda t: t.number))
            fusion.change(tensor, "_consumers", ordered)
            if replaced.get(tensor, tensor) is not tensor:
                reroute(outside, tensor, replaced[tensor])
        fusion.renew()

    def _become(
        self,
        tensors: Sequence[TensorView],
        inputs: Sequence[TensorView],
        outputs: Sequence[TensorView],
        inplace: Mapping[TensorView, TensorView],
    ) -> None:
        """Let the fusion consist of these."""
        fusion = self.fusion
        fusion.change(fusion, "_tensors", tensors)
        fusion.change(fusion, "_inputs", inputs)
        fusion.change(fusion, "_outputs", outputs)
        fusion.change(fusion, "_inplace", inplace)
