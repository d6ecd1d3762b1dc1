"""A schedule as it was when it was lowered, and its loop nest: what the checks of intents read.

Lowering keeps one for each kernel; it holds references, and computes nothing before it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from loopnest.base.fast_init import fast_init
from loopnest.kir import Allocate, Loop, Program, Stmt, Store, walk
from loopnest.kir.vector_access import VectorFinder
from loopnest.lowering.loops.loop_plan import LoopPlan, LoopSpec
from loopnest.lowering.memory.allocation import TensorStorage
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer, Const
from loopnest.scalar.facts import Facts
from loopnest.scalar.origin import Origin
from loopnest.schedule.replay import match_leaves
from loopnest.tensor.domain import IterDomain, TensorDomain
from loopnest.tensor.fusion import State
from loopnest.tensor.intents import Intent
from loopnest.tensor.tensor_view import TensorView, started_by

UNSWITCHED = "unswitch: "
"""How the reason of a test begins that decides those of an unswitch loop."""


@fast_init
@dataclass(frozen=True, slots=True)
class ScheduledTensor:
    """What a tensor was when it was lowered."""

    name: str
    leaf: tuple[IterDomain, ...]
    position: int
    domain: TensorDomain
    placed: Origin


@dataclass(eq=False)
class Lowering:
    """One lowering, as the checks read it.

    Args:
        plan: the loops.
        storage: the buffer of each live tensor.
        program: the loop nest.
        held: each tensor as it was.
        intents: what was asked until then.
        spread: why LOCAL buffers of symbolic size are that large, by tensor.
        idle: the assumptions that no proof used, and whether they have a form that one can use.
        starts: for each atomic fold the tensor of its initial values, by name.
        state: of the fusion then (`Fusion.as_of`).
    """

    plan: LoopPlan
    storage: Mapping[TensorView, TensorStorage]
    program: Program
    held: Mapping[TensorView, ScheduledTensor]
    intents: tuple[Intent, ...]
    spread: Mapping[TensorView, tuple[str, str]]
    idle: Mapping[str, bool]
    starts: Mapping[str, str]
    state: State

    @cached_property
    def stores(self) -> dict[str, list[tuple[Store, tuple[Stmt, ...]]]]:
        """The stores of each tensor, by name, each with the statements around it."""
        found: dict[str, list[tuple[Store, tuple[Stmt, ...]]]] = {}
        for node, around in walk(self.program.body):
            if isinstance(node, Store):
                name = self.starts.get(node.tensor, "") if node.role == "init" else ""
                found.setdefault(name or node.tensor, []).append((node, around))
        return found

    @cached_property
    def loops(self) -> dict[str, list[Loop]]:
        """The loops of the program, by the axis that gave them their shape."""
        found: dict[str, list[Loop]] = {}
        for node, _ in walk(self.program.body):
            if isinstance(node, Loop):
                found.setdefault(node.axis, []).append(node)
        return found

    @cached_property
    def buffers(self) -> dict[str, Buffer]:
        """The buffers that the program makes, by name."""
        made = [n.storage for n, _ in walk(self.program.body) if isinstance(n, Allocate)]
        return {buffer.name: buffer for buffer in made}

    @cached_property
    def finder(self) -> VectorFinder:
        """What finds wide accesses."""
        return VectorFinder(self.program)

    def call(self, kind: str, tensor: TensorView) -> Origin | None:
        """Return the last call that meant something of a kind for a tensor."""
        calls = [i.origin for i in self.intents if i.kind == kind and i.tensor is tensor]
        return calls[-1] if calls else None

    def spec(self, axis: IterDomain) -> LoopSpec:
        """Return the loop of a leaf axis."""
        return self.plan.spec(axis)


def lowering_of(
    plan: LoopPlan, storage: Mapping[TensorView, TensorStorage], program: Program, facts: Facts
) -> Lowering:
    """Return what the notes of a lowering are made from, when they are first read.

    Only references are taken here, since lowering pays for it: the schedule may go on.
    """
    fusion = plan.fusion
    held = {
        t: ScheduledTensor(t.name, t.domain.leaf, t.compute_at_pos, t.domain, t.placed or t.origin)
        for t in fusion.tensors
    }
    spread = {
        t: _spread(t)
        for t, where in storage.items()
        if t.memory is Memory.LOCAL and not isinstance(where.buffer.size, Const)
    }
    intents = tuple(fusion.intents)
    idle = {text: facts.teaches(text) for text, _ in facts.conditions if not facts.uses(text)}
    starts = {
        fold.name: t.name for t in fusion.tensors if (fold := started_by(t)) is not None
    }  # fmt: skip
    return Lowering(plan, storage, program, held, intents, spread, idle, starts, fusion.state)


def _spread(tensor: TensorView) -> tuple[str, str]:
    """Return why a LOCAL buffer is as large as its loops, and what would make it small."""
    live = tensor.fusion.live()
    read = [(twin, c) for twin in tensor.siblings for c in twin.consumers if c in live]
    own = [pair for pair in read if pair[0] is tensor]
    if not read:
        return "nothing reads it", "leave it out, or declare it an output (f.output)"
    twin, consumer = (own or read)[0]
    pos = tensor.compute_at_pos
    shared = f"it shares {pos or 'none'} of its {tensor.ndim} loops with {consumer.name}"
    remedy = (
        f"call ln.propagate({consumer.name}), which gives it the loops of {consumer.name}, and "
        f"then {tensor.name}.compute_at({consumer.name}, -1) or ln.inline_most(), or set "
        f"{tensor.name}.memory = ln.GLOBAL"
    )
    image, places = match_leaves(twin, consumer).image, []
    for number, axis in enumerate(twin.domain.leaf):
        other = image.get(axis)
        if axis.is_reduction:
            continue
        mine = axis.label(number)
        if other not in consumer.domain.leaf:
            places.append(f"{mine} is no loop")
        elif consumer.domain.leaf.index(other) != number:
            place = consumer.domain.leaf.index(other)
            places.append(f"{mine} is {other.label(place)}")
    return shared + (f", where its {', its '.join(places)}" if places else ""), remedy
