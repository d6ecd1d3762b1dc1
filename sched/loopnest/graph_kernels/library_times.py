"""Whether a kernel or a library computes an op faster here: measured once, and kept on disk.

An entry is named by all that its times follow from: the op and its operands, the machine, threads,
options, and the source of this package. Where nothing may depend on the machine
(``LOOPNEST_MACHINE=any``), nothing is measured, and the library computes what it can.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loopnest.backends.cpu.machine_probe import machine
from loopnest.base.errors import LoopnestError
from loopnest.graph_kernels.kept_groups import package_digest
from loopnest.launch.disk_cache import DiskCache, digest
from loopnest.scalar.machine_facts import ANY

_log = logging.getLogger("loopnest")
Run: TypeAlias = "Callable[[], object]"

GRAPH_SECONDS = 10.0
"""So long the ops of one graph may be compiled and measured; the library computes the others."""
OP_SECONDS = 0.3
"""So long an op is measured, but `_FEWEST` turns at least."""
MARGIN = 0.95
"""A kernel is taken where its time is below this part of the library's."""
_HOPELESS = 3.0
"""A way that takes so many times as long in the first few turns has lost."""
_FIRST, _FEWEST = 3, 5
"""Turns that no judgement comes before, and that there are without one."""
_RUN_SECONDS = 2e-4
"""A run is so many calls that it takes so long."""


@dataclass(frozen=True, slots=True)
class LibraryTimes:
    """The times of a call of an op.

    Args:
        op: its name, and the types of its operands.
        kernel: seconds of kernels made for it; infinite where it was not measured.
        library: seconds of the library.
    """

    op: str
    kernel: float
    library: float

    @property
    def by_library(self) -> bool:
        """Whether the library computes it."""
        return not self.kernel < MARGIN * self.library

    def __str__(self) -> str:
        if not math.isfinite(self.kernel):
            return f"{self.op}: library, not measured"
        chosen = "library" if self.by_library else "generated"
        times = f"generated {self.kernel * 1e3:.3g} ms, library {self.library * 1e3:.3g} ms"
        return f"{self.op}: {chosen} ({times})"


@dataclass(frozen=True, slots=True)
class Rivals:
    """An op that can be computed both ways.

    Args:
        op: its name, and the types of its operands.
        settings: what else its times follow from.
        work: what grows with its time: those with most are measured first.
        make: returns a call of its kernels and one of the library.
        finish: waits until what was called has run.
        clock: in seconds; that of a processor where one thread does all, which other programs on
            the machine change little.
    """

    op: str
    settings: str
    work: float
    make: Callable[[], tuple[Run, Run]]
    finish: Run = lambda: None
    clock: Callable[[], float] = time.perf_counter


_KIND, _SUFFIX = "library_times", ".json"
_TIMES: dict[str, LibraryTimes] = {}


def is_measured() -> bool:
    """Whether times may decide here."""
    return machine() is not ANY


def measured(rivals: Sequence[Rivals], seconds: float | None = None) -> Mapping[str, LibraryTimes]:
    """Return the times of ops by their `Rivals.op`: those known, and others measured now.

    What the budget does not reach is the library's, for these ops together in later processes too.

    Args:
        rivals: the ops; equal ones are measured once.
        seconds: the budget; `GRAPH_SECONDS` where it is None.
    """
    budget = GRAPH_SECONDS if seconds is None else seconds
    distinct = {_key(x): x for x in rivals}
    found = {key: times for key, x in distinct.items() if (times := _known(key, x.op))}
    missing = [key for key in distinct if key not in found]
    spent_before = digest(*sorted(distinct))
    if missing and DiskCache(_KIND, _SUFFIX).get(spent_before) is None:
        end = time.perf_counter() + budget
        for key in sorted(missing, key=lambda key: (-distinct[key].work, key)):
            if time.perf_counter() >= end:
                DiskCache(_KIND, _SUFFIX).put(spent_before, b"the budget was spent")
                break
            found[key] = _TIMES[key] = _measure(distinct[key])
            _log.info("%s", found[key])
            seconds_of_both = [str(found[key].kernel), str(found[key].library)]
            DiskCache(_KIND, _SUFFIX).put(key, json.dumps(seconds_of_both).encode())
    none = {x.op: LibraryTimes(x.op, math.inf, math.inf) for x in rivals}
    return {**none, **{distinct[key].op: times for key, times in found.items()}}


def _key(rival: Rivals) -> str:
    return digest(package_digest(), repr(machine()), _threads(), rival.op, rival.settings)


def _known(key: str, op: str) -> LibraryTimes | None:
    if key not in _TIMES:
        found = _read(key, op)
        if found is None:
            return None
        _TIMES[key] = found
    return _TIMES[key]


def _threads() -> str:
    return " ".join([f"{x}={os.environ.get(x)}" for x in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")])


def _read(key: str, op: str) -> LibraryTimes | None:
    data = DiskCache(_KIND, _SUFFIX).get(key)
    if data is None:
        return None
    try:
        kernel, library = json.loads(data)
        return LibraryTimes(op, float(kernel), float(library))
    except (ValueError, TypeError):
        return None


def _measure(rival: Rivals) -> LibraryTimes:
    """Return the times of an op; one that has no kernel, or fails, is the library's."""
    try:
        kernel, library = in_turns(rival.make(), rival.finish, rival.clock)
    except (LoopnestError, RuntimeError, MemoryError) as error:
        _log.info("%s: no kernel is measured: %s", rival.op, error)
        return LibraryTimes(rival.op, math.inf, math.inf)
    return LibraryTimes(rival.op, kernel, library)


def in_turns(
    runs: Sequence[Run], finish: Run, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the seconds of the fastest call of each function; they take turns."""
    counts = []
    best = [math.inf] * len(runs)
    for number, run in enumerate(runs):
        run()  # what is made at the first call
        best[number] = _seconds(run, 1, finish, clock)
        counts.append(max(1, min(1000, int(_RUN_SECONDS / max(best[number], 1e-7)))))
    end = clock() + OP_SECONDS
    turns = 0
    while turns < _FEWEST or clock() < end:
        if max(best) > _HOPELESS * min(best) and turns >= _FIRST:
            break
        for number, (run, count) in enumerate(zip(runs, counts, strict=True)):
            best[number] = min(best[number], _seconds(run, count, finish, clock))
        turns += 1
    return best


def _seconds(run: Run, count: int, finish: Run, clock: Callable[[], float]) -> float:
    finish()
    start = clock()
    for _ in range(count):
        run()
    finish()
    return (clock() - start) / count
