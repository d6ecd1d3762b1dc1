"""Every call of a random schedule is found in the loop nest, or a note says why it is not."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from fuzzing.fusions import FusionWriter
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.judge import lowered_or_serial
from loopnest.devtools.fuzzing.schedule_styles import ScheduleWriter
from loopnest.kir.lowered import Note
from loopnest.lowering.schedule_notes.findings import CHECKS, findings
from loopnest.lowering.schedule_notes.lowered_schedule import Lowering

SEED, BATCHES, BATCH = 30_000_000, 4, 40


def walked(number: int) -> tuple[Counter[str], Counter[str]]:
    """Return the kinds of intents that have a witness, and of those that have a note."""
    witnessed: Counter[str] = Counter()
    noted: Counter[str] = Counter()
    session = Session("case")
    rng = Random(number)
    FusionWriter(session, rng).write()
    ScheduleWriter(session, rng).write()
    kernel, _ = lowered_or_serial(session)
    if isinstance(kernel, str):
        return witnessed, noted
    (lowering,) = kernel._lowered.notes.args  # type: ignore[union-attr]
    assert isinstance(lowering, Lowering)
    answered = set()
    for intent, found in findings(lowering):
        answered.add(id(intent.origin))
        assert found, intent
        if isinstance(found, Note):
            noted[intent.kind] += 1
            assert found.origin is intent.origin
            told = {(note.became, note.why, note.remedy) for note in kernel.notes}
            assert (found.became, found.why, found.remedy) in told
            assert all((found.subject, found.asked, found.became, found.why, found.remedy))
        else:
            witnessed[intent.kind] += 1
    assert {id(origin) for origin in session.fusion.trace} <= answered
    return witnessed, noted


@pytest.mark.parametrize("batch", range(BATCHES))
def test_each_call_has_a_witness_or_a_note(batch: int) -> None:
    witnessed: Counter[str] = Counter()
    noted: Counter[str] = Counter()
    for number in range(SEED + batch * BATCH, SEED + (batch + 1) * BATCH):
        found, missing = walked(number)
        witnessed, noted = witnessed + found, noted + missing
    assert set(witnessed) | set(noted) <= set(CHECKS)
    assert {"loops", "place", "parallel", "memory", "tensor"} <= set(witnessed)
    assert noted["parallel"] > 0
