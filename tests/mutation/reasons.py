"""Why a mutant is no mutant: what it stores is compared with what the original stores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from loopnest import kir
from loopnest.scalar.enums import Memory
from mutation.mutant import Mutant

if TYPE_CHECKING:
    from mutation.subjects import Trial

Stored = tuple[str, int, object]
Trace = dict[tuple[int, int], list[Stored]]

_SAME = {
    "predicate": "what is tested follows from the loops and the other tests",
    "bound": "an iteration that stores nothing",
    "index": "the term is 0 wherever the statement runs",
    "buffer": "no access reaches the element",
    "stride": "no access reaches the row",
    "barrier": "no value crosses threads there",
    "order": "neither stores anything",
}
_RELATIONS = {
    "same": "every thread stores the same",
    "reordered": "the two do not depend on each other",
    "repeated": "the same values are stored again",
    "threads": "other threads store the same values",
    "fewer": "what is no longer stored is not read",
    "more": "what is stored besides is not read",
    "local": "the threads' own values differ, what leaves them does not",
    "other": "other values, the outputs agree within rounding",
}
_ORDER = tuple(_RELATIONS)


def explain(program: kir.Program, mutant: Mutant, trials: Sequence[Trial]) -> str:
    """Return why a mutant makes no difference at the sizes of the trials."""
    local = {
        n.storage.name
        for n, _ in kir.walk(program.body)
        if isinstance(n, kir.Allocate) and n.storage.memory is Memory.LOCAL
    }
    worst = "same"
    names: dict[str, None] = {}
    for trial in trials:
        before, after = _traced(program, trial), _traced(mutant.program, trial)
        worst = max(worst, relation(before, after, local), key=_ORDER.index)
        names.update(dict.fromkeys(_differing(before, after)))
    if worst == "same" and isinstance(mutant.node, kir.If) and mutant.node.orelse:
        return "both branches store the same"
    if worst == "same" and mutant.kind in _SAME:
        return _SAME[mutant.kind]
    if worst == "other":
        return f"{', '.join(names)}: {_RELATIONS[worst]}"
    return _RELATIONS[worst]


def _differing(before: Trace, after: Trace) -> list[str]:
    """Return the buffers that hold other values."""
    a, b = [{s for stored in t.values() for s in stored} for t in (before, after)]
    return sorted({name for name, _, _ in a ^ b})


def _traced(program: kir.Program, trial: Trial) -> Trace:
    from mutation.judge import machine_run

    found = machine_run(program, trial, 0, trace=True).trace
    return {thread: [_plain(s) for s in stored] for thread, stored in found.items()}


def _plain(stored: Stored) -> Stored:
    name, place, value = stored
    odd = isinstance(value, float) and math.isnan(value)
    return (name, place, "nan") if odd else stored


def relation(before: Trace, after: Trace, local: set[str]) -> str:
    """Return how the stores of a program and its mutant are related."""
    first = _related(before, after)
    if first != "other":
        return first
    outside = [
        {who: [s for s in stored if s[0] not in local] for who, stored in trace.items()}
        for trace in (before, after)
    ]
    return "other" if _related(*outside) == "other" else "local"


def _related(before: Trace, after: Trace) -> str:
    before = {who: stored for who, stored in before.items() if stored}
    after = {who: stored for who, stored in after.items() if stored}
    if before == after:
        return "same"
    counted = [{w: Counter(s) for w, s in t.items()} for t in (before, after)]
    if counted[0] == counted[1]:
        return "reordered"
    sets = [{w: set(s) for w, s in t.items()} for t in (before, after)]
    if sets[0] == sets[1]:
        return "repeated"
    a, b = [{s for stored in t.values() for s in stored} for t in (before, after)]
    if a == b:
        return "threads"
    if a > b:
        return "fewer"
    return "more" if a < b else "other"
