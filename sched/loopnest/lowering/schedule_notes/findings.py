"""The finding for each intent, by the check of its kind, and the notes of a kernel from them."""

from __future__ import annotations

from collections.abc import Iterator

from loopnest.kir.lowered import Note
from loopnest.lowering.loops.needed_components import is_needed
from loopnest.lowering.schedule_notes.axis_witnesses import AXIS_CHECKS
from loopnest.lowering.schedule_notes.buffer_witnesses import BUFFER_CHECKS
from loopnest.lowering.schedule_notes.lowered_schedule import (
    Check,
    Finding,
    Lowering,
    note_of,
)
from loopnest.lowering.schedule_notes.nest_costs import nest_notes
from loopnest.lowering.schedule_notes.statement_witnesses import STATEMENT_CHECKS
from loopnest.tensor.fusion import Intent
from loopnest.tensor.tensor_view import TensorView


def notes_of(lowering: Lowering) -> tuple[Note, ...]:
    """Return the notes, those of calls first, in their order; one for each loop."""
    found: dict[object, Note] = {}
    for intent, note in findings(lowering):
        if isinstance(note, Note):
            tensor = None if intent.kind == "parallel" else note.subject
            key = (tensor, note.became, note.why, note.remedy)
            found.setdefault(key, note)
    return tuple(dict.fromkeys([*found.values(), *nest_notes(lowering)]))


def findings(lowering: Lowering) -> Iterator[tuple[Intent, Finding]]:
    """Yield each intent with its witness or its note."""
    last = {_key(intent): intent for intent in lowering.intents}
    for intent in lowering.intents:
        if last[_key(intent)] is not intent:
            yield intent, "a later call set it again"
        elif intent.tensor is not None and not _is_computed(lowering, intent.tensor):
            yield intent, _dead(lowering, intent)
        elif intent.tensor is not None and not is_needed(lowering.plan, intent.tensor):
            yield intent, "its definition is computed, but nobody reads this component of it"
        else:
            yield intent, CHECKS[intent.kind](lowering, intent)


def _key(intent: Intent) -> object:
    if intent.kind in ("unchanged", "assume"):
        return intent
    return intent.kind, intent.tensor, intent.axis


def _is_computed(lowering: Lowering, tensor: TensorView) -> bool:
    return tensor in lowering.storage


def _dead(lowering: Lowering, intent: Intent) -> Finding:
    assert intent.tensor is not None
    if intent.tensor not in lowering.held:
        return "the call that made the tensor was undone"
    return note_of(
        lowering,
        intent,
        "it is not computed",
        "no output depends on it",
        "declare an output that does, or leave the call out",
    )


def _unchanged(lowering: Lowering, intent: Intent) -> Finding:
    return "all was so before"


def _assume(lowering: Lowering, intent: Intent) -> Finding:
    text = intent.value
    assert isinstance(text, str)
    if text not in lowering.idle:
        return "the simplifier looked it up"
    why = (
        "no index, test or bound of this schedule depends on it"
        if lowering.idle[text]
        else "an assumption before it says as much, or no proof reads a comparison of this form"
    )
    return note_of(
        lowering, intent, "nothing but the check at each launch came of it", why,
        "leave it out, so that other sizes may be launched", lowering.program.name,
    )  # fmt: skip


CHECKS: dict[str, Check] = {
    "unchanged": _unchanged,
    **STATEMENT_CHECKS,
    **AXIS_CHECKS,
    **BUFFER_CHECKS,
    "assume": _assume,
}
"""The check of each kind of intent."""
