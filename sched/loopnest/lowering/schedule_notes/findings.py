"""The finding for each intent, by the check of its kind, and the notes of a kernel from them."""

from __future__ import annotations

from collections.abc import Iterator

from loopnest.kir import Stmt, Store, expressions, walk
from loopnest.kir.lowered import Note
from loopnest.lowering.loops.needed_components import is_needed
from loopnest.lowering.schedule_notes.axis_witnesses import AXIS_CHECKS
from loopnest.lowering.schedule_notes.bank_conflicts import bank_notes
from loopnest.lowering.schedule_notes.buffer_witnesses import BUFFER_CHECKS
from loopnest.lowering.schedule_notes.halo_costs import halo_notes
from loopnest.lowering.schedule_notes.lowered_schedule import (
    Check,
    Finding,
    Lowering,
    note_of,
)
from loopnest.lowering.schedule_notes.nest_costs import nest_notes
from loopnest.lowering.schedule_notes.statement_witnesses import STATEMENT_CHECKS
from loopnest.scalar.expr import Load, loads
from loopnest.scalar.expr import walk as walk_expr
from loopnest.tensor.intents import Intent
from loopnest.tensor.tensor_view import TensorView


def notes_of(lowering: Lowering) -> tuple[Note, ...]:
    """Return the notes, those of calls first, in their order; one for each loop."""
    found: dict[object, Note] = {}
    for intent, note in findings(lowering):
        if isinstance(note, Note):
            tensor = None if intent.kind == "parallel" else note.subject
            key = (tensor, note.became, note.why, note.remedy)
            found.setdefault(key, note)
    costs = [*nest_notes(lowering), *halo_notes(lowering), *bank_notes(lowering)]
    return tuple(dict.fromkeys([*found.values(), *costs]))


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
    if intent.kind in ("unchanged", "assume", "range"):
        return intent
    return intent.kind, intent.tensor, intent.axis


def _is_computed(lowering: Lowering, tensor: TensorView) -> bool:
    return tensor in lowering.storage


def _dead(lowering: Lowering, intent: Intent) -> Finding:
    assert intent.tensor is not None
    if intent.tensor not in lowering.held:
        return "the call that made the tensor was undone"
    definition = intent.tensor.definition
    if definition is not None and definition.is_zero:
        return note_of(
            lowering,
            intent,
            "the call has no effect",
            "what is added to zeros (index_add, scatter_add) starts at 0 by itself, so that these "
            "zeros are never computed",
            "call it on the result of that, or leave it out",
        )
    return note_of(
        lowering,
        intent,
        "the call has no effect",
        f"no output depends on {lowering.held[intent.tensor].name}, so that it is never computed",
        "declare an output that does (f.output), or leave the call out",
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
        else "an assumption before it says as much, or nothing follows from one of this form"
    )
    return note_of(
        lowering, intent, "each launch checks it, and nothing is faster", why,
        "leave it out, so that other sizes may be launched", lowering.program.name,
    )  # fmt: skip


def _range(lowering: Lowering, intent: Intent) -> Finding:
    """Look for an index or a test that an input of which a range was declared decides."""
    if any(load.buffer.name == intent.value for load in _deciding(lowering.program.body)):
        return f"elements of {intent.value} are indices, or compared to them"
    return note_of(
        lowering,
        intent,
        "each launch checks it, and nothing is faster",
        f"no index and no test of what is computed depends on an element of {intent.value}",
        "leave it out, so that other data may be passed",
        str(intent.value),
    )


def _stored(lowering: Lowering, intent: Intent) -> Finding:
    """Say that loops end at a tensor: an automatic schedule goes in stages there."""
    return note_of(
        lowering,
        intent,
        "it is stored, and the loops of what reads it load it again",
        "no scheduler takes it and what reads it in one loop nest",
        "where that costs much, schedule both by hand: compute_at shares loops",
    )


def _lost(lowering: Lowering, intent: Intent) -> Finding:
    """Say that axes with names gave way to the loops of another tensor."""
    names = intent.value
    assert isinstance(names, tuple)
    assert intent.tensor is not None
    tensor = lowering.held[intent.tensor].name
    are = "axis {} of {} is" if len(names) == 1 else "axes {} of {} are"
    return note_of(
        lowering,
        intent,
        f"the {are.format(' and '.join(names), tensor)} no more",
        "loops of another tensor, which are split otherwise, took the place",
        "name the axes of that tensor, which replay carries, or split both alike",
    )


def _elements(lowering: Lowering, intent: Intent) -> Finding:
    """Say that an automatic schedule has no loops for a fold but the plainest."""
    return note_of(
        lowering,
        intent,
        "each of its elements is folded by itself, in order",
        "no scheduler takes it with what it is computed from, or what one made of it has no kernel",
        "where that costs much, schedule it by hand: rfactor folds side by side",
    )


def _deciding(body: tuple[Stmt, ...]) -> Iterator[Load]:
    """Yield the loads on which an index or a test depends."""
    for node, _ in walk(body):
        if isinstance(node, Store):
            for place in node.index:
                yield from loads(place)
        for value in expressions(node):
            for part in walk_expr(value):
                if isinstance(part, Load):
                    for place in part.args:
                        yield from loads(place)
                elif part.dtype.is_bool:
                    yield from loads(part)


CHECKS: dict[str, Check] = {
    "unchanged": _unchanged,
    **STATEMENT_CHECKS,
    **AXIS_CHECKS,
    **BUFFER_CHECKS,
    "assume": _assume,
    "range": _range,
    "stored": _stored,
    "elements": _elements,
    "lost": _lost,
}
"""The check of each kind of intent."""
