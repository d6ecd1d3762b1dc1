"""Witnesses among statements: where those of a tensor stand, and whether there are any."""

from __future__ import annotations

from loopnest.kir import Launch, Loop
from loopnest.kir.instruction_rows import instructions
from loopnest.lowering.loops.loop_plan import is_trivial
from loopnest.lowering.schedule_notes.lowered_schedule import (
    Check,
    Finding,
    Lowering,
    note_of,
    tensor_of,
)
from loopnest.scalar.enums import Memory
from loopnest.tensor.intents import Intent, LeftBehind


def _loops(lowering: Lowering, intent: Intent) -> Finding:
    """Look for the statements inside of the leaf axes' loops: split, merge, reorder, propagate."""
    assert intent.tensor is not None
    return _inside(lowering, intent, len(lowering.held[intent.tensor].leaf))


def _place(lowering: Lowering, intent: Intent) -> Finding:
    """Look for the statements inside of the shared loops: compute_at, inline_at, inline_most."""
    assert intent.tensor is not None
    return _inside(lowering, intent, lowering.held[intent.tensor].position)


def _inside(lowering: Lowering, intent: Intent, count: int) -> Finding:
    tensor = intent.tensor
    assert tensor is not None
    wanted = {
        spec.axis
        for spec in map(lowering.spec, lowering.held[tensor].leaf[:count])
        if not is_trivial(spec) and not spec.parallel.is_thread
    }
    around: set[str] = set()
    for _, parents in lowering.stores_of(tensor):
        around |= {p.axis for p in parents if isinstance(p, Loop)}
    if wanted <= around:
        return "its statements stand inside of " + (", ".join(sorted(wanted)) or "no loop")
    missing = ", ".join(sorted(wanted - around))
    return note_of(
        lowering,
        intent,
        f"its statements stand outside of the loops over {missing}",
        "nothing in these loops computes it",
        "place it by compute_at",
    )


def _left(lowering: Lowering, intent: Intent) -> Finding:
    """Say why a tensor that was to share all loops keeps some: inline_most with replay."""
    tensor, left = tensor_of(intent), intent.value
    assert isinstance(left, LeftBehind)
    held = lowering.held[tensor]
    if held.position != left.pos:
        return "a later call placed it"
    if lowering.storage[tensor].buffer.memory is not Memory.LOCAL:
        return "a later call gave it memory for all that it holds"
    count = sum(not axis.is_reduction for axis in held.leaf)
    return note_of(
        lowering,
        intent,
        f"it shares {left.pos or 'none'} of its {count} loops with its consumers, and holds what "
        "the others compute",
        left.why,
        left.remedy,
    )


def _tensor(lowering: Lowering, intent: Intent) -> Finding:
    """Look for stores of a new tensor: a cache, a factored reduction."""
    if lowering.stores_of(tensor_of(intent)):
        return "it is stored"
    return note_of(
        lowering,
        intent,
        "the call has no effect",
        "no statement computes the new tensor",
        "leave it out",
    )


def _launch(lowering: Lowering, intent: Intent) -> Finding:
    """Look for the launch that the tensor is computed in: new_launch."""
    launches = [node for node in lowering.program.body if isinstance(node, Launch)]
    found = [parents[0] for _, parents in lowering.stores_of(tensor_of(intent)) if parents]
    number = next((n for n, launch in enumerate(launches) if launch in found), 0)
    if number:
        return f"it is computed in launch {number} of 0 to {len(launches) - 1}"
    return note_of(
        lowering,
        intent,
        "no launch comes before it",
        "its loops read nothing but inputs, and what they compute themselves",
        "set memory = ln.GLOBAL of what it reads, in loops of its own, or leave the call out",
    )


def _instruction(lowering: Lowering, intent: Intent) -> Finding:
    """Look at what the lane maps of the instruction of a tile rest on: instruct."""
    row = instructions[tensor_of(intent).instruction]
    if row.witness:
        return f"{row.name} executes its tiles, whose lane maps rest on {row.witness}"
    return note_of(
        lowering,
        intent,
        f"on a device the results rest on the lane maps of {row.name}",
        "its row names no witness of them",
        "hold them against a published table or a device, and name it: witness=",
    )


STATEMENT_CHECKS: dict[str, Check] = {
    "loops": _loops,
    "place": _place,
    "left": _left,
    "tensor": _tensor,
    "launch": _launch,
    "instruction": _instruction,
}
"""The checks that look at where the statements of a tensor stand."""
