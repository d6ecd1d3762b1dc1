"""Verdicts as they come, a line of JSON each: a long run goes on where it was cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from mutation.judge import Verdict
from mutation.mutant import Mutant

_NAMES = frozenset(f.name for f in fields(Verdict))


class Journal:
    """Verdicts in a file.

    Args:
        path: the file; None to keep nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def write(self, verdicts: Sequence[Verdict]) -> None:
        """Add verdicts."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines([json.dumps(v.as_dict()) + "\n" for v in verdicts])

    def read(self) -> dict[tuple[str, int], Verdict]:
        """Return the verdicts by subject and number; a last line that was cut is passed over."""
        found: dict[tuple[str, int], Verdict] = {}
        exists = self.path is not None and self.path.exists()
        for line in self.path.read_text("utf-8").splitlines() if self.path and exists else ():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue
            verdict = Verdict(**{name: value for name, value in row.items() if name in _NAMES})
            found[verdict.subject, verdict.number] = verdict
        return found


def is_of(verdict: Verdict, mutant: Mutant) -> bool:
    """Whether a verdict is on this mutant, and not on what had its number before."""
    return (verdict.kind, verdict.text) == (mutant.kind, mutant.text)
