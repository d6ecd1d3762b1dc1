"""Random schedules: calls of every primitive on every tensor, legal and not, as lines of Python.

A schedule has a style (`schedule_styles`). After any style, one schedule in eight gets several
launches.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.judge import require_order
from loopnest.devtools.fuzzing.named_axes import by_names
from loopnest.devtools.fuzzing.schedule_styles import ScheduleStyles

Report = Callable[[str, str], None]

_STYLES = ["free", "free", "tile", "tile", "place", "place", "reduce"]
_STYLES += ["threads"] * 3 + ["blocks"] * 4 + ["copies"] * 2 + ["stages"] * 3 + ["lanes"] * 2
_STYLES += ["grouped"] * 2 + ["joint"] * 2 + ["halo"] * 3 + ["swizzles"] * 2 + ["chains"] * 3


class ScheduleWriter(ScheduleStyles):
    """Writes a random schedule into a session whose math is written.

    Args:
        session: with math and outputs.
        rng: decides everything.
        report: is told each call's primitive and outcome.
    """

    def __init__(self, session: Session, rng: Random, report: Report | None = None) -> None:
        super().__init__(session, rng)
        self.report = report
        self.style = rng.choice(_STYLES)
        for style, found in (
            ("scans", self._scanned()),
            ("scatters", self._scattered()),
            ("orders", self._ordered()),
        ):  # few fusions have one
            if found and rng.random() < 0.4:
                self.style = style
        if self.style == "stages":
            self.symbolic_factors = 0.2

    def write(self) -> None:
        """Write up to a dozen calls, each judged at once.

        Raises:
            Failure: a call broke a promise.
        """
        calls = {
            "free": self._free, "tile": self._tile, "place": self._place, "reduce": self._reduce,
            "threads": self._threads, "blocks": self._blocks, "copies": self._copies,
            "stages": self._stages, "lanes": self._lanes, "joint": self._joint,
            "halo": self._halo, "swizzles": self._swizzles, "chains": self._chains,
            "scans": self._scans, "grouped": self._grouped, "scatters": self._scatters,
            "orders": self._orders,
        }[self.style]  # fmt: skip
        for line in calls():
            self._attempt(line)
        self._atomic_folds()
        self._several_launches()
        require_order(self.session.fusion)

    def _atomic_folds(self) -> None:
        """Let one schedule in eight have an atomic reduction; what others draw stays the same."""
        shown = [str(tensor) for tensor in self.session.fusion.tensors]
        own = Random("\n".join(["atomic", *shown]))
        if own.random() < 0.125:
            drawn, self.rng = self.rng, own
            for line in self._atomic(self._reduction()):
                self._attempt(line)
            self.rng = drawn

    def _several_launches(self) -> None:
        """Let one schedule in eight be several launches; what others draw stays the same."""
        own = Random("\n".join([str(tensor) for tensor in self.session.fusion.tensors]))
        if own.random() < 0.125:
            drawn, self.rng = self.rng, own
            for line in self._launches():
                self._attempt(line)
            self.rng = drawn

    def _attempt(self, line: str) -> bool:
        own = Random(f"{line}/{len(self.session.schedule)}")
        if own.random() < 0.25:  # the same call; what others draw stays the same
            line = by_names(line, self.session, own)
        accepted = self.session.attempt(line, self.report)
        if accepted:
            if "inline_most" in line:
                require_order(self.session.fusion, line)
            if "recompute=True" in line:
                self._bind_clones()
        return accepted

    def _bind_clones(self) -> None:
        session = self.session
        known = {session.tensor(n) for n in session.tensors}
        for name in list(session.tensors):
            for place, clone in enumerate(session.tensor(name).clones):
                if clone not in known:
                    known.add(clone)
                    self.session.attempt(f"{self._new('d')} = {name}.clones[{place}]")
