"""Prove by enumeration, at given or at small sizes, what isl did not prove for all sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from loopnest import kir
from loopnest.base.gc_pause import paused
from loopnest.kir.buffers import Buffer
from loopnest.proofs.enumeration import EnumeratedFacts
from loopnest.proofs.live_points import LivePoints
from loopnest.proofs.obligations import CollectiveMath, Work
from loopnest.proofs.point_arrays import Array, NoLaunch, TooMany, Undecidable, number
from loopnest.proofs.program_model import Model
from loopnest.proofs.report import Finding, Report
from loopnest.proofs.size_choice import (
    crossed,
    filled,
    fulfils,
    points_at,
    small_sizes,
    starts,
    telling_extents,
)
from loopnest.scalar.expr import Expr, Local, loads
from loopnest.tensor.math_snapshot import MathSnapshot

MOST_SIZES = 12
"""How many sets of small sizes are looked at."""

MOST_POINTS = 6_000_000
"""How many points of statements are looked at in all of them together."""

DRAWS = 3
"""How many sets of elements of inputs are tried at each sizes, where tests load them."""

MOST_FIRST = 6_000_000
"""How many points may be looked at where it would be none else."""


def enumerated(
    model: Model,
    math: MathSnapshot,
    works: Sequence[Work],
    exchanges: Sequence[CollectiveMath],
    given: Mapping[str, int],
    hints: Sequence[Mapping[str, int]] = (),
) -> Report:
    """Return what holds at some sizes; those of `hints` come first.

    At sizes that no launch admits (an axis is split by 0), or at which no thread runs, there is
    nothing to be wrong; where all that are looked at are such sizes, a note says so.

    Args:
        model: the program.
        math: what it should compute.
        works: its stores.
        exchanges: its collectives.
        given: the size symbols that have a value.
        hints: sizes at which something may fail.
    """
    search = _SizeSearch(model, math, works, exchanges, given)
    for sizes in small_sizes(model.program, given, hints):
        refuted = search.look_at(sizes)
        if refuted is not None:
            return refuted
    return search.verdict(hints)


class _SizeSearch:
    """What is known of the sizes that were looked at so far.

    Attributes:
        done: these sizes.
        notes: findings that are no failures, by message.
        open: extents of loops that were at none of them as large as is telling.
        skipped: such an extent -> the first sizes at which it is, with too many points to look at.
        budget: how many points may be looked at yet.
        telling: whether at some of them no size was 0.
        passed_over: whether some of them have too many points.
        launched: whether something runs at some of them, as far as it is known.
        undecided: why nothing is known at some of them, "" where it is.
    """

    def __init__(
        self,
        model: Model,
        math: MathSnapshot,
        works: Sequence[Work],
        exchanges: Sequence[CollectiveMath],
        given: Mapping[str, int],
    ) -> None:
        self.model, self.math, self.works, self.exchanges = model, math, works, exchanges
        self.program, self.given = model.program, given
        self.extents = telling_extents(model.program)
        self.done: list[Mapping[str, int]] = []
        self.notes: dict[str, Finding] = {}
        self.open = set(self.extents)
        self.skipped: dict[Expr, Mapping[str, int]] = {}
        self.budget, self.telling, self.launched = MOST_POINTS, False, False
        self.passed_over = False
        self.undecided = ""

    def look_at(self, sizes: Mapping[str, int]) -> Report | None:
        """Look at every point at some sizes; return what is refuted there."""
        new = self.open & crossed(self.extents, sizes)
        cost = points_at(self.program, sizes)
        most = MOST_FIRST if new or not self.telling else self.budget
        # A loop that runs as often as is telling for the first time is worth more points than the
        # budget.
        if cost > most or (len(self.done) >= MOST_SIZES and not new):
            self._skip(sizes, new)
            return None
        self.budget -= cost
        try:
            with paused():
                found = self._findings(sizes)
        except TooMany:
            self._skip(sizes, new)
            return None
        except NoLaunch:
            self.done.append(sizes)
            return None
        except Undecidable as why:
            self.undecided = str(why)
            self.done.append(sizes)
            return None
        except ZeroDivisionError:
            message = "an index or a test divides by 0"
            fault = Finding("bounds", "refuted", message, sizes=dict(sizes))
            return Report("refuted", (fault,), named(sizes))
        refuted = [f for f in found if f.status == "refuted"]
        if refuted:
            return Report("refuted", tuple(refuted), named(sizes))
        self.notes.update({f.message: f for f in found})
        self.done.append(sizes)
        self.open -= new
        self.launched = True
        self.telling = self.telling or all(v for n, v in sizes.items() if n not in self.given)
        return None

    def _skip(self, sizes: Mapping[str, int], new: set[Expr]) -> None:
        self.launched = self.passed_over = True
        if starts(self.program, sizes):
            self.skipped = {**dict.fromkeys(new, sizes), **self.skipped}

    def _findings(self, sizes: Mapping[str, int]) -> list[Finding]:
        """Return the findings at these sizes, where the last block of the grid arrives last.

        At the first sizes, the first block arriving last at every other counter is tried as well.
        This one trial shows that the choice makes no difference, also where different blocks are
        the last to arrive at different counters.

        Raises:
            Undecidable: nothing is refuted, and a fact depends on data or on which block is last.
        """
        found: list[Finding] = []
        undecided: Undecidable | None = None
        flags = tuple(self.model.arrivals)
        choices: list[tuple[Local, ...]] = [()]
        # Which block arrives last is the machine's choice. What common memory holds must not depend
        # on it; `_lonely` refuses what names that block, and one other choice shows what it missed.
        if flags and not self.telling:
            choices += [flags, *([(flag,) for flag in flags] if len(flags) > 1 else [])]
        for first, data in product(choices, self._drawn(sizes)):
            facts = EnumeratedFacts(
                self.model, self.math, self.works, self.exchanges, sizes, first=first, data=data
            )
            try:
                for finding in facts.findings():
                    found.append(_with_data(finding, data))
            except Undecidable as why:
                undecided = why
            if any(f.status == "refuted" for f in found):
                return found
            if data:  # there are other numbers than those drawn
                undecided = Undecidable(f"a test depends on data: {', '.join(map(_name, data))}")
        for buffer in self.model.kept_by_last_blocks():
            undecided = undecided or Undecidable(f"{buffer.name} keeps what a last block stored")
        if undecided is not None:
            raise undecided
        return found

    def _drawn(self, sizes: Mapping[str, int]) -> list[Mapping[Buffer, Array]]:
        """Return elements of the inputs that tests load, such as launches may have."""
        live = LivePoints(self.math, self.program)
        tests = [e for site in self.model.tests for e in kir.expressions(site.node)]
        asked = [x for e in tests for x in loads(e) if live.is_kept(x)]
        buffers = list(dict.fromkeys([x.buffer for x in asked]))
        return [self._draw(buffers, sizes, seed) for seed in range(DRAWS if buffers else 1)]

    def _draw(
        self, buffers: Sequence[Buffer], sizes: Mapping[str, int], seed: int
    ) -> Mapping[Buffer, Array]:
        """Return random elements of inputs, those of the first draw in ascending order."""
        random = np.random.default_rng(seed)
        result: dict[Buffer, Array] = {}
        for buffer in buffers:
            shape = tuple([max(number(extent, sizes), 0) for extent in buffer.shape])
            low, high = -1, max([*sizes.values(), 1]) + 2
            known = [r for r in self.math.ranges if r.name == buffer.tensor]
            for declared in known:
                low, high = number(declared.low, sizes), number(declared.high, sizes)
            drawn = random.integers(low, max(high, low + 1), shape, np.int64)
            sort = not seed or any(r.ascending for r in known)
            result[buffer] = np.sort(drawn, axis=None).reshape(shape) if sort else drawn
        return result

    def verdict(self, hints: Sequence[Mapping[str, int]]) -> Report:
        """Return what holds where nothing was refuted."""
        scope = "; ".join(map(named, self.done))
        if self.undecided:
            return _unknown(self.undecided)
        asked = [filled(self.program, self.given, hint) for hint in hints]
        for sizes in [sizes for sizes in asked if sizes not in self.done]:
            if fulfils(self.program, sizes) and starts(self.program, sizes):
                where = f"it may fail at {named(sizes)}"
                return _unknown(f"{where}, where there are too many points to look at", scope)
        if self.done and not self.launched:
            message = "nothing is launched at these sizes"
            return Report("proved", (Finding("launch", "note", message),), scope)
        if not self.done and not self.passed_over:
            tests = ", ".join(
                [text for text, _ in (*self.program.conditions, *self.program.requires)]
            )
            return _unknown(f"no sizes were found that fulfil {tests}", named(self.given))
        if not self.telling and self.passed_over:
            message = "there are too many points to look at every one"
            return _unknown(message, scope or named(self.given))
        for extent in [e for e in self.extents if e in self.open and e in self.skipped]:
            where = f"at {named(self.skipped[extent])}, where a loop of extent '{extent}' runs"
            times = self.extents[extent]
            return _unknown(f"{where} {times} times, there are too many points", scope)
        return Report("proved", tuple(self.notes.values()), scope)


def _with_data(finding: Finding, data: Mapping[Buffer, Array]) -> Finding:
    """Return a finding that tells the elements of inputs with which it was found."""
    if finding.status != "refuted" or not data:
        return finding
    text = ", ".join([f"{_name(b)} = {array.tolist()}" for b, array in data.items()])
    return replace(finding, message=f"{finding.message}, where {text}")


def _name(buffer: Buffer) -> str:
    return buffer.tensor


def _unknown(message: str, scope: str = "all sizes") -> Report:
    return Report("unknown", (Finding("value", "unknown", message),), scope)


def named(sizes: Mapping[str, int]) -> str:
    """Return sizes as a text."""
    return ", ".join([f"{name}={value}" for name, value in sizes.items()]) or "its sizes"
