"""What all verdicts come to: figures, and every mutant that deserves a look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mutation.judge import CLASSES, Verdict
from mutation.mutants import KINDS

WANTED_PROOFS = 0.99
"""The share of the wrong mutants that verify alone must not prove."""
WANTED_FAULTS = 0.95
"""The share of those that break a rule at run time that the sanitizer must stop."""


@dataclass
class Tally:
    """Verdicts, and the figures made of them.

    Args:
        verdicts: of mutants.
        originals: of programs as they were lowered.
        skipped: subjects that could not be loaded, each with a reason.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    originals: list[Verdict] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def proved(self) -> set[str]:
        """The names of the programs that are proved as they were lowered."""
        return {v.subject for v in self.originals if v.is_proved}

    @property
    def wrong(self) -> list[Verdict]:
        return [v for v in self.verdicts if v.is_wrong]

    @property
    def tried(self) -> list[Verdict]:
        """Wrong mutants of proved programs: those that verify must not prove."""
        return [v for v in self.wrong if v.subject in self.proved]

    @property
    def holes(self) -> list[Verdict]:
        """Mutants that verify proves and must not."""
        return [v for v in self.verdicts if v.is_hole]

    @property
    def equivalent(self) -> list[Verdict]:
        """Mutants that verify proves, and that do nothing wrong."""
        return [v for v in self.verdicts if v.is_proved and not v.is_wrong and not v.is_hole]

    @property
    def harmless(self) -> list[Verdict]:
        """Mutants that verify does not prove although the outputs are right."""
        return [v for v in self.verdicts if not v.is_proved and not v.is_wrong]

    @property
    def broken(self) -> list[Verdict]:
        """Mutants that break a rule which the sanitizer must see."""
        return [v for v in self.verdicts if v.breaks]

    @property
    def missed(self) -> list[Verdict]:
        """Those of them that the sanitizer did not stop."""
        return [v for v in self.broken if not v.fault]

    @property
    def alarms(self) -> list[Verdict]:
        """Programs as they were lowered in which something was found."""
        return [
            v
            for v in self.originals
            if v.is_wrong or v.failed or (v.proof != "proved" and v.proof != "unknown")
        ]

    @property
    def unproved(self) -> list[Verdict]:
        """Programs as they were lowered that verify cannot decide."""
        return [v for v in self.originals if v.proof == "unknown"]

    @property
    def errors(self) -> list[Verdict]:
        """Mutants on which a checker itself broke."""
        return [v for v in self.verdicts if v.proof == "error" or v.failed]

    @property
    def idle(self) -> list[Verdict]:
        """Barriers that may go, or be narrower, without any difference: the lowering's matter."""
        changes = ("remove", "narrow")
        found = [v for v in self.verdicts if v.kind == "barrier" and v.text.startswith(changes)]
        return [v for v in found if not v.is_wrong]

    @property
    def proofs(self) -> float:
        """The share of the wrong mutants of proved programs that verify alone does not prove."""
        killed = [v for v in self.tried if not v.is_proved]
        return len(killed) / len(self.tried) if self.tried else 1.0

    @property
    def faults(self) -> float:
        """The share of those that break a rule that the sanitizer stops."""
        return 1 - len(self.missed) / max(len(self.broken), 1)

    @property
    def is_good(self) -> bool:
        """Whether the checkers are as good as they must be, without a false alarm."""
        enough = self.proofs >= WANTED_PROOFS and self.faults >= WANTED_FAULTS
        return enough and not self.alarms

    def figures(self) -> dict[str, Any]:
        """Return the figures by name."""
        statuses = Counter(v.proof for v in self.tried)
        return {
            "programs": len(self.originals),
            "false alarms": len(self.alarms),
            "not decided by verify": len(self.unproved),
            "mutants": len(self.verdicts),
            "wrong": len(self.wrong),
            "of proved programs": len(self.tried),
            "- refuted": statuses["refuted"],
            "- unknown": statuses["unknown"],
            "- verify broke": statuses["error"],
            "- proved": statuses["proved"],
            "killed by verify alone": f"{self.proofs:.2%}",
            "holes of verify, inner tensors too": len(self.holes),
            "break a rule at run time": len(self.broken),
            "stopped by the sanitizer": f"{self.faults:.2%}",
            "proved, no difference": len(self.equivalent),
            "not proved, outputs right": len(self.harmless),
            "barriers without effect": len(self.idle),
        }

    def as_dict(self) -> dict[str, Any]:
        return {
            "figures": self.figures(),
            "originals": [v.as_dict() for v in self.originals],
            "mutants": [v.as_dict() for v in self.verdicts],
            "skipped": self.skipped,
        }


def by_kind(tally: Tally) -> list[list[str]]:
    """Return a row a kind of mutation."""
    return [_row(kind, [v for v in tally.verdicts if v.kind == kind]) for kind in sorted(KINDS)]


def by_subject(tally: Tally) -> list[list[str]]:
    """Return a row a kernel and schedule; all random ones are one."""

    def group(v: Verdict) -> str:
        return v.subject.partition(" ")[0]

    names = dict.fromkeys([group(v) for v in tally.originals])
    return [_row(name, [v for v in tally.verdicts if group(v) == name]) for name in names]


COLUMNS = ("", "mutants", "wrong", "refuted", "unknown", "proved", "break a rule", "stopped")


def _row(name: str, verdicts: Sequence[Verdict]) -> list[str]:
    wrong = [v for v in verdicts if v.is_wrong]
    proofs = Counter(v.proof for v in wrong)
    broken = [v for v in verdicts if v.breaks]
    stopped = sum([bool(v.fault) for v in broken])
    numbers = (
        len(verdicts), len(wrong), proofs["refuted"], proofs["unknown"] + proofs["error"],
        proofs["proved"], len(broken), stopped,
    )  # fmt: skip
    return [name, *[str(n) if n else "-" for n in numbers]]


def by_rule(tally: Tally) -> list[list[str]]:
    """Return a row a rule: how many mutants break it, and how many of them are stopped."""
    rows = []
    for rule in (*CLASSES, "equal race"):
        found = [v for v in tally.verdicts if rule in v.rules and "scope" not in v.rules]
        stopped = sum([bool(v.fault) for v in found])
        rows.append([rule, str(len(found)), str(stopped)])
    return rows


# Markdown


def markdown(tally: Tally, title: str) -> str:
    """Return the whole report."""
    parts = [f"# {title}", ""]
    parts += _table(("", ""), [[k, str(v)] for k, v in tally.figures().items()])
    parts += ["## By kind of change", "", *_table(COLUMNS, by_kind(tally))]
    parts += ["## By kernel", "", *_table(COLUMNS, by_subject(tally))]
    parts += ["## By rule", "", *_table(("rule", "broken by", "stopped"), by_rule(tally))]
    sections: tuple[tuple[str, str, list[Verdict], Callable[[Verdict], str]], ...] = (
        ("False alarms", "Programs as they were lowered.", tally.alarms, _alarm),
        ("Not decided", "Programs as they were lowered.", tally.unproved, _alarm),
        ("Wrong, but proved", "Holes of verify.", tally.holes, _hole),
        ("Broken rules that the sanitizer did not see", "", tally.missed, _missed),
        ("Checkers that broke", "", tally.errors, _error),
        ("Barriers that could go or be narrower", "", tally.idle, _reason),
        ("Proved, and nothing differs", "Equivalent, by reason.", tally.equivalent, _reason),
        ("Not proved, though the outputs are right", "By reason.", tally.harmless, _harmless),
    )
    for heading, what, verdicts, text in sections:
        parts += [f"## {heading}: {len(verdicts)}", ""]
        if what and verdicts:
            parts += [what, ""]
        parts += [*_grouped(verdicts, text), ""]
    for name, reason in tally.skipped:
        parts.append(f"- not looked at: {name}: {reason}")
    return "\n".join(parts).rstrip() + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    return [*lines, *[f"| {' | '.join(row)} |" for row in rows], ""]


def _grouped(verdicts: Sequence[Verdict], text: Callable[[Verdict], str]) -> Iterator[str]:
    """Yield the lines of a list, grouped by what `text` says of each."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(text(verdict), []).append(verdict)
    for said, found in sorted(groups.items(), key=lambda item: -len(item[1])):
        yield f"- {said} ({len(found)})"
        for v in found:
            place = f", line {v.line} `{v.code}`" if v.line else ""
            yield f"  - {v.subject} #{v.number} {v.kind}: {v.text}{place}"


def _alarm(v: Verdict) -> str:
    found = [v.finding] if not v.is_proved else []
    return "; ".join([*found, v.fault, v.failed, v.values, *v.rules.values()]).strip("; ")


def _hole(v: Verdict) -> str:
    what = "; ".join([s for s in (*v.rules.values(), v.values or v.fault) if s])
    if v.inner:
        what = f"{v.inner} is not what the math says, the outputs are"
    return f"proved for {v.scope}; {what or 'what it declares is not what it does'}"


def _missed(v: Verdict) -> str:
    return "; ".join(v.rules.values())


def _error(v: Verdict) -> str:
    return v.failed or v.finding


def _reason(v: Verdict) -> str:
    return v.reason


def _harmless(v: Verdict) -> str:
    inner = f"{v.inner} is not what the math says; " if v.inner else ""
    return f"{v.proof}: {v.finding.partition(':')[0]}; {inner}{v.reason}"
