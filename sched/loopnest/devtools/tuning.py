"""Finding the parameters of a schedule: what cannot win falls without running, the rest is timed.

Candidates fall to constraints, to schedule calls that refuse them, to proofs that refute them, and
to counts: launches that are refused, and work many times that of another. The rest is timed, each
in a process of its own, in rounds: in each round every candidate runs once, in a random order, and
what counts is its time by the median of that round. The slower half is dropped, and the others take
twice as many rounds, until the budget is spent or two are left.

Source: Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter
optimization", 2016 (successive halving); Akiba et al., "Optuna", 2019 (the search in large spaces).
"""

from __future__ import annotations

import fcntl
import math
import os
import pickle
import random
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopnest.base.errors import CompileError, DefinitionError, LaunchError, LoopnestError
from loopnest.devtools import tuned_calls, tuned_rows
from loopnest.devtools.harness import make_arguments
from loopnest.devtools.kernel_def import KernelDef
from loopnest.devtools.tuned_rows import TunedRow, as_json
from loopnest.devtools.tuning_space import Space

if TYPE_CHECKING:
    from loopnest.facade.kernel_class import Kernel
    from loopnest.tensor.fusion import Fusion

Candidate = Mapping[str, Any]

MOST_TIMED = 24
"""A space of more candidates is searched by optuna."""
BATCH = 8
"""How many candidates optuna proposes at a time."""
FIRST_ROUNDS, MOST_ROUNDS = 3, 24
HOPELESS = 4.0
"""A candidate whose counted work takes that many times as long as another's is not timed."""
ALIKE = 1.01
"""Times that differ by less are alike; the default wins then, or who stands first in the space."""
START_SECONDS, ROUND_SECONDS = 120.0, 20.0


@dataclass
class Tuned:
    """What a tuning found.

    Attributes:
        kernel, schedule, target: what was tuned.
        sizes: at which.
        parameters: the best; the defaults where nothing was timed.
        seconds, default_seconds: the median time of a call, of both in the same rounds; nan where
            nothing was timed.
        spread: the distance of the quartiles of its times.
        fell: how many candidates fell, by what they fell to, in order.
        timed: the candidates that were timed, the fastest first, with their time by that of the
            best.
        row: where the result was written; None where it was not.
    """

    kernel: str
    schedule: str
    target: str
    sizes: dict[str, int]
    parameters: dict[str, Any]
    seconds: float = math.nan
    default_seconds: float = math.nan
    spread: float = math.nan
    fell: dict[str, int] = field(default_factory=dict)
    timed: list[tuple[dict[str, Any], float]] = field(default_factory=list)
    row: Path | None = None
    note: str = ""
    examples: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        sizes = ", ".join([f"{name}={size}" for name, size in self.sizes.items()])
        lines = [f"{self.kernel}@{self.schedule} on {self.target} at {sizes}"]
        total = sum(self.fell.values()) + len(self.timed)
        lines.append(f"{total} candidates, {len(self.timed)} of them timed")
        for cause, count in self.fell.items():
            why = f" ({self.examples[cause]})" if cause in self.examples else ""
            lines.append(f"  {count} fell to {cause}{why}")
        for candidate, ratio in self.timed[:5]:
            lines.append(f"  {ratio:.3f}  {shown(candidate)}")
        best = shown(self.parameters)
        if math.isnan(self.seconds):
            lines.append(f"kept: {best}; {self.note}")
        else:
            gain = self.default_seconds / self.seconds
            lines.append(f"best: {best}: {self.seconds * 1e3:.4g} ms +- {self.spread * 1e3:.2g}, "
                         f"{gain:.3f} times as fast as the defaults")  # fmt: skip
        return "\n".join(lines)


@dataclass
class TunedRange:
    """What tunings at several extents of one size found.

    Attributes:
        found: the tunings, the least extent first.
        entries: condition -> (schedule, its parameters), for `KernelDef.choose`: each extent has
            what is best at the one that is nearest, by the ratio.
    """

    found: tuple[Tuned, ...]
    entries: dict[str | bool, tuple[str, dict[str, Any]]]

    def __str__(self) -> str:
        lines = [f"    {key!r}: {value!r}," for key, value in self.entries.items()]
        return "\n".join([f"{self.found[0].kernel}.choose({{", *lines, "})"])

    @staticmethod
    def of(size: str, found: Sequence[Tuned]) -> TunedRange:
        """Return the range of tunings at rising extents of a size."""
        entries: dict[str | bool, tuple[str, dict[str, Any]]] = {}
        for one, other in pairwise(found):
            if one.parameters != other.parameters:
                least, most = one.sizes[size], other.sizes[size]
                entries[f"{size} <= {math.isqrt(least * most)}"] = (one.schedule, one.parameters)
        entries[True] = (found[-1].schedule, found[-1].parameters)
        return TunedRange(tuple(found), entries)


def shown(candidate: Candidate) -> str:
    """Return a candidate as keyword arguments."""
    return ", ".join([f"{name}={value}" for name, value in candidate.items()])


def tune(
    kernel: KernelDef,
    schedule: str | None = None,
    target: str = "auto",
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    budget: str | float = "60s",
    executor: Executor | None = None,
) -> Tuned | TunedRange:
    """Find the parameters of a schedule that are the fastest on this machine, and keep them.

    The choices are those that the schedule declares (`loopnest.choice`). What was found is written
    to the database of this user; calls of the kernel, `loopnest.compile` of it and ``loopnest run``
    take it from there where no parameters are given.

    Args:
        kernel: what ``@ln.kernel`` made.
        schedule: its name; the one that suits the target where it is None.
        target: where it is timed; see `loopnest.compile`.
        sizes: of the size symbols; those of the kernel where they are not given. One of them may
            have several extents, at each of which the schedule is tuned.
        budget: how long it may take: seconds, or a text such as "90s" or "5m"; several extents
            share it.
        executor: where candidates are lowered, proved and counted, of `concurrent.futures` or one
            like it; None does it here. Times are taken on this machine in any case.

    Returns:
        The best parameters, with their time; printed, it says what the others fell to. Of several
        extents a `TunedRange`, which has and prints the entries of a `choose` for all of them.

    Raises:
        DefinitionError: the schedule has no choices, no candidate meets the constraints, a size
            is missing, or more than one has several extents.
        CompileError: the target cannot run here; a large space, and optuna is missing.
        ScheduleError: there is no such schedule.

    >>> import loopnest as ln
    >>> @ln.kernel(sizes={"N": 64})
    ... def double(f):
    ...     f.output(f.input("x", ("N",), ln.float32) * 2.0, "y")
    >>> @double.schedule("cpu")
    ... def cpu(f, lanes=8):
    ...     f["y"].split(0, lanes)
    >>> ln.tune(double)
    Traceback (most recent call last):
    ...
    loopnest.base.errors.DefinitionError: tune(double@cpu): the schedule has no choices; declare \
some: lanes=ln.choice(8, ...)

    Source: Halide's and TVM's autotuners; Jamieson and Talwalkar, 2016 (successive halving).
    """
    from loopnest.backends.targets import named_target, preferred

    if not isinstance(kernel, KernelDef):
        raise DefinitionError(f"tune({kernel!r})", "it is no kernel", "decorate one by @ln.kernel")
    where = named_target(target, f"tune({kernel.name})")
    where = preferred() if where == "auto" else where
    name = kernel.suited(where) if schedule is None else kernel.resolve(schedule)
    call = f"tune({kernel.label(name)})"
    space = kernel.spaces.get(name, Space())
    if not space.choices:
        first = next(iter(kernel.parameters(name).items()), ("lanes", 4))
        hint = f"declare some: {first[0]}=ln.choice({first[1]!r}, ...)"
        raise DefinitionError(call, "the schedule has no choices", hint)
    fusion = kernel.fusion(name)
    seconds = _seconds(budget, call)
    several, given = _extents(sizes or {}, call)
    tunings = []
    for extents in given:
        known = _sizes(kernel, fusion, extents, call)
        deadline = time.monotonic() + seconds / len(given)
        tuner = _Tuner(kernel, name, where, known, space, deadline, executor, call)
        tunings.append(tuner.run(make_arguments(fusion, known, kernel.ranges)))
        print(tunings[-1])
    if several is None:
        return tunings[0]
    found = TunedRange.of(several, tunings)
    print(found)
    return found


def _extents(
    sizes: Mapping[str, int | Sequence[int]], call: str
) -> tuple[str | None, list[dict[str, int]]]:
    """Return the size that has several extents, if one has, and the sizes of each tuning."""
    lists = {name: size for name, size in sizes.items() if isinstance(size, Sequence)}
    plain = {name: size for name, size in sizes.items() if not isinstance(size, Sequence)}
    if not lists:
        return None, [plain]
    if len(lists) > 1:
        reason = f"{' and '.join(lists)} have several extents"
        raise DefinitionError(call, reason, "tune over those of one size at a time")
    ((name, extents),) = lists.items()
    rising = sorted({*extents}) if all(type(extent) is int for extent in extents) else []
    if not rising or isinstance(extents, str) or rising[0] < 1:
        reason = f"the extents {name}={extents!r} are no ints >= 1"
        raise DefinitionError(call, reason, f"write {{'{name}': [256, 4096]}}")
    return name, [{**plain, name: extent} for extent in rising]


def _sizes(
    kernel: KernelDef, fusion: Fusion, given: Mapping[str, int] | None, call: str
) -> dict[str, int]:
    known = {**kernel.sizes, **(given or {})}
    names = [symbol.name for symbol in fusion.symbols]
    for name in given or {}:
        if name not in names:
            raise DefinitionError(call, f"there is no size {name}", f"its sizes are {names}")
    for name in names:
        if name not in known:
            raise DefinitionError(
                call, f"the size {name} is not given", f"pass sizes={{'{name}': ...}}"
            )
    return {name: known[name] for name in names}


def _seconds(budget: object, call: str) -> float:
    """Return a budget in seconds."""
    if isinstance(budget, (int, float)) and not isinstance(budget, bool) and budget > 0:
        return float(budget)
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|m|h)", budget) if isinstance(budget, str) else None
    if found is None or float(found[1]) <= 0:
        raise DefinitionError(call, f"budget={budget!r} is no time", 'write "60s", "5m" or seconds')
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


# Without running


@dataclass(frozen=True, slots=True)
class Examined:
    """A candidate that was looked at without running it.

    Args:
        cause: what it fell to; "" where it did not.
        why: a sentence.
        kernel: what is timed.
        work: seconds that a GPU would take for what was counted; nan where nothing was.
    """

    cause: str
    why: str = ""
    kernel: Kernel | None = None
    work: float = math.nan


CONSTRAINTS, CALLS, COUNTS = "constraints", "schedule calls", "counts and resources"
PROOFS, RUNS = "verify", "their own runs"


def examine(fusion: Fusion, sizes: Mapping[str, int], target: str) -> Examined:
    """Lower a scheduled fusion, count what it does, prove it; where it runs, nothing is."""
    from loopnest.costs import profile
    from loopnest.facade.kernel_class import lower
    from loopnest.proofs import verify

    try:
        kernel = lower(fusion)
        if target == "cuda":
            kernel.cuda()
    except LoopnestError as error:
        return Examined(CALLS, str(error))
    try:
        kernel.launch(**sizes)
        given: dict[str, Any] = dict(sizes)
        counted = profile(kernel, **given)
        # How long a byte is on its way is no work.
        work = sum([roof.seconds for roof in counted.roofs if roof.name != "latency"])
        work += (counted.bytes_moved - counted.bytes_least) / counted.device.bandwidth
    except LoopnestError as error:
        return Examined(COUNTS, str(error))
    report = verify(kernel)
    if report.status == "refuted":
        return Examined(PROOFS, report.findings[0].message if report.findings else "it is wrong")
    return Examined("", "", kernel, work)


# The tuner


@dataclass(eq=False)
class _Tuner:
    """One tuning; see `tune`."""

    kernel: KernelDef
    schedule: str
    target: str
    sizes: dict[str, int]
    space: Space
    deadline: float
    executor: Executor | None
    call: str
    seen: dict[object, float | None] = field(default_factory=dict)
    """What became of each candidate: its time by that of the default, None where it fell."""
    least: float = math.inf
    races: list[_Racer] = field(default_factory=list)
    order: dict[object, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.found = Tuned(
            self.kernel.name, self.schedule, self.target, self.sizes, self.space.default
        )
        self.meets = self.space.constraints(self.sizes, self.call)

    def run(self, arguments: Any) -> Tuned:
        """Search, time, decide, and write the row."""
        with tempfile.TemporaryDirectory(prefix="loopnest-tune-") as folder:
            path = Path(folder) / "arguments"
            keywords = arguments.keywords(self.kernel.fusion(self.schedule))
            path.write_bytes(pickle.dumps((arguments.arrays, keywords)))
            with _machine_lock():
                try:
                    self._search(str(path))
                    self._race(self.races, self.deadline)
                    self._decide()
                finally:
                    for racer in self.races:
                        racer.stop()
        return self.found

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _fall(self, cause: str, why: str = "") -> None:
        self.found.fell[cause] = self.found.fell.get(cause, 0) + 1
        if why:
            self.found.examples.setdefault(cause, why.partition("\n")[0][:150])

    # Which candidates are looked at

    def _search(self, path: str) -> None:
        if self.space.count <= MOST_TIMED:
            self._take(list(self.space.candidates()), path)
            if not self.seen:
                raise self._nothing_meets()
            return
        self._search_by_optuna(path)

    def _nothing_meets(self) -> DefinitionError:
        listed = ", ".join([repr(text) for text in self.space.where])
        return DefinitionError(
            self.call, f"no candidate meets the constraints {listed}", "widen the choices"
        )

    def _search_by_optuna(self, path: str) -> None:
        """Let optuna propose batches, for half of the budget; keep the best for the race."""
        try:
            optuna: Any = import_module("optuna")
        except ImportError:
            reason = f"its {self.space.count} candidates are searched by optuna, which is missing"
            raise CompileError(self.call, reason, "pip install 'loopnest[tune]'") from None
        if not any(map(self.meets, self.space.candidates())):
            raise self._nothing_meets()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=BATCH)
        )
        kinds = {
            name: optuna.distributions.CategoricalDistribution(range(len(found.values)))
            for name, found in self.space.choices.items()
        }
        study.enqueue_trial(dict.fromkeys(kinds, 0))
        half = time.monotonic() + self._left() / 2
        idle, first = 0, True
        while first or (time.monotonic() < half and idle < 5 and len(self.seen) < self.space.count):
            first = False
            trials = [study.ask(kinds) for _ in range(BATCH)]
            asked = [
                {name: self.space.choices[name].values[place] for name, place in t.params.items()}
                for t in trials
            ]
            before = len(self.seen)
            self._take(asked, path)
            self._race(self.races, half, rounds=FIRST_ROUNDS, halve=False)
            self._note_times()
            idle = idle + 1 if len(self.seen) == before else 0
            for trial, candidate in zip(trials, asked, strict=True):
                ratio = self.seen.get(_key(candidate))
                if ratio is None:
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
                else:
                    study.tell(trial, ratio)
            self._keep(BATCH)

    def _note_times(self) -> None:
        base = next((r for r in self.races if r.candidate == self.space.default), None)
        for racer in self.races:
            if racer.ratios:
                own = 1.0 if base is None or not base.ratios else statistics.median(base.ratios)
                self.seen[_key(racer.candidate)] = statistics.median(racer.ratios) / own

    def _keep(self, count: int) -> None:
        """End all but the fastest candidates and the default; their times are kept."""
        order = sorted(self.races, key=lambda racer: racer.score)
        for racer in order[count:]:
            if racer.candidate != self.space.default:
                self._leave(racer)

    def _leave(self, racer: _Racer) -> None:
        self.found.timed.append((dict(racer.candidate), racer.score))
        racer.stop()
        self.races.remove(racer)

    # What falls without running

    def _take(self, candidates: Sequence[Candidate], path: str) -> None:
        """Look at candidates; start a process for each that may win."""
        fusions: list[tuple[Candidate, Fusion]] = []
        for candidate in candidates:
            key = _key(candidate)
            if key in self.seen:
                continue
            self.order[key] = len(self.order)
            if not self.meets(candidate):
                self.found.fell[CONSTRAINTS] = self.found.fell.get(CONSTRAINTS, 0) + 1
                if self.space.count > MOST_TIMED:
                    self.seen[key] = None
                continue
            self.seen[key] = None
            try:
                fusions.append((candidate, self.kernel.fusion(self.schedule, **candidate)))
            except LoopnestError as error:
                self._fall(CALLS, str(error))
        kept: list[tuple[Candidate, Examined]] = []
        for candidate, examined in self._examined(fusions):
            if examined.cause:
                self._fall(examined.cause, examined.why)
            else:
                self.least = min(self.least, examined.work)
                kept.append((candidate, examined))
        for candidate, examined in kept:
            is_default = candidate == self.space.default
            if examined.work > HOPELESS * self.least and not is_default:
                ratio = examined.work / self.least
                self._fall(
                    COUNTS, f"{shown(candidate)} takes {ratio:.1f} times the work of another"
                )
            else:
                assert examined.kernel is not None
                self._start(candidate, examined.kernel, path)

    def _examined(
        self, fusions: Sequence[tuple[Candidate, Fusion]]
    ) -> Iterator[tuple[Candidate, Examined]]:
        """Yield what is found of candidates, by the executor; as long as there is time."""
        if self.executor is None:
            for candidate, fusion in fusions:
                if self._left() < 0:
                    self._fall("the budget")
                else:
                    yield candidate, examine(fusion, self.sizes, self.target)
            return
        waiting: list[tuple[Candidate, Future[Examined]]] = []
        try:
            for candidate, fusion in fusions:
                future = self.executor.submit(examine, fusion, self.sizes, self.target)
                waiting.append((candidate, future))
        except (RuntimeError, OSError) as error:
            raise CompileError(self.call, f"the executor takes no work: {error}") from error
        for candidate, future in waiting:
            try:
                yield candidate, future.result(timeout=max(self._left(), 0.001))
            except TimeoutError:
                future.cancel()
                self._fall("the budget")
            except Exception as error:  # a worker that died, say
                self._fall("their workers", f"{type(error).__name__}: {error}")

    def _start(self, candidate: Candidate, kernel: Kernel, path: str) -> None:
        if self._left() < 0:
            self._fall("the budget")
            return
        racer = _Racer(candidate, kernel, self.target, path)
        said = racer.start(min(START_SECONDS, max(self._left(), 1.0)))
        if said:
            racer.stop()
            self._fall(RUNS, said)
        else:
            self.races.append(racer)

    # The race

    def _race(
        self, racers: list[_Racer], deadline: float, rounds: int = FIRST_ROUNDS, halve: bool = True
    ) -> None:
        """Time candidates in rounds; drop the slower half, and double the rounds."""
        draw = random.Random(0)
        while racers:
            for _ in range(rounds):
                if time.monotonic() > deadline and all(racer.times for racer in racers):
                    return
                self._round(racers, draw)
            others = [r for r in racers if r.candidate != self.space.default]
            if not halve or (len(others) <= 2 and rounds >= MOST_ROUNDS):
                return
            if len(others) > 2:
                others.sort(key=lambda racer: racer.score)
                for racer in others[max(2, (len(others) + 1) // 2) :]:
                    self._leave(racer)
            rounds = min(2 * rounds, MOST_ROUNDS)

    def _round(self, racers: list[_Racer], draw: random.Random) -> None:
        order = list(racers)
        draw.shuffle(order)
        times: dict[int, float] = {}
        for racer in order:
            said = racer.time(ROUND_SECONDS)
            if said:
                racer.stop()
                racers.remove(racer)
                self._fall(RUNS, said)
            else:
                times[id(racer)] = racer.times[-1]
        if times:
            middle = statistics.median(times.values())
            for racer in racers:
                racer.ratios.append(times[id(racer)] / middle)

    def _decide(self) -> None:
        """Choose the fastest; of those that are alike the default, or the first of the space."""
        found = self.found
        if not self.races:
            found.note = "no candidate was timed: the budget is too short, or all fell"
            return
        # Of the last rounds alone, in which the same candidates ran: times of one round compare.
        last = min([len(racer.ratios) for racer in self.races])
        for racer in self.races:
            racer.ratios, racer.times = racer.ratios[-last:], racer.times[-last:]
        best = min(self.races, key=lambda racer: racer.score)
        alike = [r for r in self.races if r.score <= ALIKE * best.score]
        default = next((r for r in self.races if r.candidate == self.space.default), None)
        chosen = min(alike, key=lambda racer: self.order[_key(racer.candidate)])
        if default is not None and default in alike:
            chosen = default
        own = [(dict(racer.candidate), racer.score) for racer in self.races]
        found.timed = sorted(
            [(candidate, score / chosen.score) for candidate, score in [*own, *found.timed]],
            key=lambda pair: pair[1],
        )
        found.parameters = dict(chosen.candidate)
        found.seconds = statistics.median(chosen.times)
        quartiles = statistics.quantiles(chosen.times, n=4) if len(chosen.times) > 1 else [0, 0, 0]
        found.spread = quartiles[2] - quartiles[0]
        if default is not None:
            found.default_seconds = found.seconds * default.score / chosen.score
        found.row = tuned_rows.put(self._row())

    def _row(self) -> TunedRow:
        found = self.found
        return TunedRow(
            found.kernel, found.schedule, found.target, self.kernel.digest(),
            tuned_rows.machine_name(found.target), dict(found.sizes),
            {name: as_json(value) for name, value in found.parameters.items()},
            found.seconds, found.spread, found.default_seconds, _version(),
            **tuned_calls.of_graphs(
                self.kernel.unscheduled({}),
                self.kernel.fusion(found.schedule, **found.parameters),
                found.sizes,
            ),
        )  # fmt: skip


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("loopnest")
    except metadata.PackageNotFoundError:
        return "unknown"


def _key(candidate: Candidate) -> object:
    return tuple([(name, type(value), value) for name, value in candidate.items()])


class _Racer:
    """A candidate in a process of its own."""

    def __init__(self, candidate: Candidate, kernel: Kernel, target: str, path: str) -> None:
        self.candidate = candidate
        self.times: list[float] = []
        self.ratios: list[float] = []
        self._message = pickle.dumps((kernel, target, path))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def score(self) -> float:
        """The median of its times by the medians of their rounds."""
        return statistics.median(self.ratios) if self.ratios else math.inf

    def start(self, seconds: float) -> str:
        """Compile and run it once; return what went wrong, "" if nothing did."""
        command = [sys.executable, "-m", "loopnest.devtools.timed_candidate"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return self._asked(self._message, seconds)[0]

    def time(self, seconds: float) -> str:
        """Time it in one round; return what went wrong."""
        said, times = self._asked(pickle.dumps(("round",)), seconds)
        if not said:
            self.times.append(min(times))
        return said

    def _asked(self, message: bytes, seconds: float) -> tuple[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(message)
            process.stdin.flush()
        except OSError:
            return f"{shown(self.candidate)} crashed", None
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        if not ready:
            return f"{shown(self.candidate)} took more than {seconds:.0f} s", None
        try:
            kind, value = pickle.load(process.stdout)
        except (EOFError, pickle.UnpicklingError):
            code = process.wait()
            return f"{shown(self.candidate)} crashed (status {code})", None
        return (str(value), None) if kind == "failed" else ("", value)

    def stop(self) -> None:
        """End its process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            self._process = None


@contextmanager
def _machine_lock() -> Iterator[None]:
    """Hold the lock of this machine: two tunings at once would time each other."""
    path = Path(tempfile.gettempdir()) / f"loopnest-tune-{os.getuid()}.lock"
    try:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LaunchError("tune(...)", f"{path} cannot be opened ({error.strerror})") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# The diff of defaults


def defaults_diff(kernel: KernelDef, schedule: str, parameters: Mapping[str, Any]) -> str:
    """Return the diff of a kernel's file that makes parameters the defaults of a schedule.

    Raises:
        DefinitionError: the file does not show the choices.
    """
    import ast
    import difflib
    import inspect

    function: Callable[..., Any] = kernel.schedules[schedule]
    call = f"tune({kernel.label(schedule)})"
    path = inspect.getsourcefile(function)
    if path is None or not os.path.isfile(path):
        raise DefinitionError(call, "the file of the schedule is not there to change")
    text = Path(path).read_text(encoding="utf-8")
    first = function.__code__.co_firstlineno
    tree = next(
        (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)
         and first <= n.lineno <= first + 20 and n.name == function.__name__), None,
    )  # fmt: skip
    if tree is None:
        raise DefinitionError(call, f"{path} does not show the schedule")
    arguments = tree.args
    named = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(named[len(named) - len(arguments.defaults) :], arguments.defaults, strict=True),
             *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]  # fmt: skip
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data = text.encode()
    changes: list[tuple[int, int, bytes]] = []
    for argument, node in pairs:
        if argument.arg in parameters and isinstance(node, ast.Call):
            values = kernel.spaces[schedule].choices[argument.arg].values
            place = next(n for n, v in enumerate(values)
                         if _key({"": v}) == _key({"": parameters[argument.arg]}))  # fmt: skip
            spans = [(starts[a.lineno - 1] + a.col_offset,
                      starts[(a.end_lineno or 1) - 1] + (a.end_col_offset or 0))
                     for a in node.args]  # fmt: skip
            order = [place, *[n for n in range(len(spans)) if n != place]]
            texts = [data[spans[n][0] : spans[n][1]] for n in order]
            for span, own in zip(spans, texts, strict=True):
                changes.append((*span, own))
    for start, end, own in sorted(changes, reverse=True):
        data = data[:start] + own + data[end:]
    new = data.decode().splitlines(keepends=True)
    name = os.path.basename(path)
    return "".join(difflib.unified_diff(lines, new, f"a/{name}", f"b/{name}"))
