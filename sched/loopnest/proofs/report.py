"""What verify found: a status, and findings with witnesses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

Status: TypeAlias = 'Literal["proved", "refuted", "unknown"]'

ALL_SIZES = "all sizes"
"""The scope of what holds for all sizes."""


@dataclass(frozen=True, slots=True)
class Place:
    """A point of a statement: who executes it, in which iteration, at which element.

    Args:
        line: its line in the nest, counted from 1.
        text: that line.
        block: (x, y, z) of the block.
        thread: (x, y, z) of the thread in its block.
        loops: name of each loop index around it -> its value.
        access: the element, with numbers: ``y[3, 0]``; empty for a point without one.
    """

    line: int
    text: str
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    loops: Mapping[str, int]
    access: str = ""

    def __str__(self) -> str:
        values = "".join([f", {name}={value}" for name, value in self.loops.items()])
        what = f"{self.access} at " if self.access else ""
        return (
            f"{what}nest line {self.line} '{self.text}', block {self.block}, "
            f"thread {self.thread}{values}"
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact that does not hold, or that could not be decided.

    Args:
        kind: "bounds", "claim", "flow", "value", "accumulation", "output", "race", "barrier",
            "arrival", "collective", "alias", "vector", "layout", "scope", "interface" (parameters,
            outputs, memory), "launch" (no block is within the limits), or, as notes, "redundant",
            "unique" (data that were declared to choose different elements), "sizes" (where the
            proof for all sizes ended, and why), "range" (a declared range of data under which it is
            proved), "factor" (sizes that a launch refuses because an axis is split by what is not 1
            or more at them), "needed" and "superfluous" (of barriers, waits and atomic stores,
            where that was asked). "range" is no note where data are indices that nothing bounds
            ("unknown"), or that a declared range lets outside ("refuted").
        status: "refuted", "unknown", or "note".
        message: one sentence.
        tensor: whose computation it concerns.
        index: the element, where there is one.
        sizes: the sizes at which it fails.
        at: where.
        other: the other of two accesses.
        origin: the schedule call that placed the statement.
    """

    kind: str
    status: Literal["refuted", "unknown", "note"]
    message: str
    tensor: str = ""
    index: tuple[int, ...] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    at: Place | None = None
    other: Place | None = None
    origin: str = ""

    def moved(self, to: Callable[[Place], Place]) -> Finding:
        """Return the finding about another nest, in which `to` says where a place of this is."""
        at, other = [None if place is None else to(place) for place in (self.at, self.other)]
        return replace(self, at=at, other=other)

    def __str__(self) -> str:
        parts = [f"{self.kind}: {self.message}"]
        if self.at is not None:
            parts.append(f"at {self.at}" if not self.at.access else str(self.at))
        if self.other is not None:
            parts.append(f"other access: {self.other}")
        if self.sizes:
            parts.append(", ".join([f"{n}={v}" for n, v in self.sizes.items()]))
        if self.origin:
            parts.append(f"placed by {self.origin}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `loopnest.verify`.

    Args:
        status: "proved", "refuted" or "unknown".
        findings: what failed or could not be decided; with "proved" only notes.
        scope: "all sizes" (that fulfil the assumptions), or the sizes that were proved.
    """

    status: Status
    findings: tuple[Finding, ...] = ()
    scope: str = ALL_SIZES

    @property
    def all_sizes(self) -> bool:
        """Whether it is about all sizes that fulfil the assumptions, not those in `scope` alone."""
        return self.scope == ALL_SIZES

    @property
    def ranges(self) -> tuple[str, ...]:
        """The ranges of data under which it is proved: the class "declared" of proofs."""
        found = [f for f in self.findings if f.kind == "range" and f.status == "note"]
        return tuple([f.message for f in found])

    @property
    def ok(self) -> bool:
        """Whether everything is proved."""
        return self.status == "proved"

    @property
    def verdict(self) -> str:
        """The status, and for which sizes: ``proved for all sizes``."""
        if self.status == "refuted" and {f.kind for f in self.findings} == {"launch"}:
            return "refuted: no launch admits this kernel"
        return f"{self.status} for {self.scope}"

    def __str__(self) -> str:
        return "\n".join([self.verdict, *[f"  {finding}" for finding in self.findings]])
