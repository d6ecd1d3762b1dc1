"""From a number to a verdict: cases are written, judged, and compiled many at a time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import loopnest as ln
from fuzzing.fusions import FusionWriter
from fuzzing.switched_off import OF_THREADS, verdict_without
from loopnest.devtools.fuzzing.case_lines import Case, Failure, Session
from loopnest.devtools.fuzzing.judge import (
    NO_CUDA,
    TARGETS,
    Expected,
    blind_outputs,
    cases_on,
    check_oracle,
    choose_sizes,
    compiled,
    expect,
    failures_of,
    garbage,
    lowered,
    lowered_or_serial,
    require_proof,
    require_texts,
    run,
    targets_of,
)
from loopnest.devtools.fuzzing.schedule_styles import ScheduleWriter
from loopnest.facade.kernel_class import Kernel, compile_many

SCHEDULES_A_FUSION = 4
MOVED, MOST_MOVED = 0.75, 6
"""How often tensors are moved to memory that CUDA can have, and how many."""


@dataclass
class Outcome:
    """What became of one case.

    Args:
        number: of the case.
        case: its lines, as far as they were written.
        failure: the promise that was broken, if one was.
        refused: the schedule lines that raised ScheduleError.
        calls: how many calls of each (primitive, outcome).
        refusals: why the lowering refused (at most twice: with and without parallel types).
        lowered: whether there is a kernel in the end.
        without: what a proof says of the kernel that a refused schedule would have without the
            check: "proved", "refuted", "unknown", "no kernel"; "" where that was not asked.
        proof: for what it was proved: "all sizes", "named sizes", or "" where nothing was.
        runs: how many launches were judged.
        cuda: whether there is CUDA text of the kernel.
        blind: outputs that are 0 at all sizes, so that zeros would pass for them.
        seconds: of the processor, but for what is compiled and run together with other cases.
    """

    number: int
    case: Case
    failure: Failure | None = None
    refused: tuple[str, ...] = ()
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    refusals: tuple[str, ...] = ()
    lowered: bool = False
    proof: str = ""
    without: str = ""
    runs: int = 0
    cuda: bool = False
    blind: int = 0
    seconds: float = 0.0


@dataclass
class _Job:
    outcome: Outcome
    expected: Sequence[Expected]
    session: Session
    kernel: Kernel | None = None


class Engine:
    """Writes and judges the cases of one seed.

    Args:
        seed: with the number of a case, decides all of it.
        targets: where kernels run ("interpret", "c"); with "nvrtc" their CUDA text is compiled,
            with "verify" they are proved; with "refused" it is asked what the kernels that are
            refused for their threads would be.
    """

    def __init__(self, seed: int = 0, targets: Sequence[str] = TARGETS) -> None:
        self.seed, self.targets = seed, tuple(targets)
        self._known: dict[int, tuple[tuple[str, ...], Sequence[Expected], Case]] = {}

    def judge(self, numbers: Iterable[int]) -> list[Outcome]:
        """Judge cases; their C kernels are compiled in one translation unit."""
        jobs = [self._job(number) for number in numbers]
        if "nvrtc" in self.targets:
            self._compile_texts([job for job in jobs if job.outcome.cuda])
        waiting = [job for job in jobs if job.kernel is not None and job.outcome.failure is None]
        if "c" in self.targets and waiting:
            for job, function in zip(waiting, _together(waiting), strict=True):
                self._run(job, function, "c")
        return [job.outcome for job in jobs]

    def _job(self, number: int) -> _Job:
        session = Session(f"case_{number}")
        outcome = Outcome(number, Case(session.fusion.name, (), (), ()))
        job = _Job(outcome, (), session)
        started = time.process_time()
        try:
            self._prepare(job)
        except Failure as failure:
            outcome.failure = failure
        outcome.seconds = time.process_time() - started
        known = self._known.get(number // SCHEDULES_A_FUSION)
        sizes = known[2].sizes if known else ()
        data = number // SCHEDULES_A_FUSION
        outcome.case = Case(
            session.fusion.name, tuple(session.math), tuple(session.schedule), sizes, data
        )
        outcome.refused = tuple(session.refused)
        return job

    def _prepare(self, job: _Job) -> None:
        outcome, session = job.outcome, job.session
        job.expected = self._math(outcome.number, session)
        outcome.blind = len(blind_outputs(job.expected))
        rng = Random(f"{self.seed}/schedule/{outcome.number}")

        def report(primitive: str, verdict: str) -> None:
            outcome.calls[primitive, verdict] += 1

        ScheduleWriter(session, rng, report).write()
        check_oracle(session.fusion, job.expected)

        def refused(fusion: ln.Fusion, why: str) -> None:
            if why in OF_THREADS:
                outcome.without = verdict_without(fusion)

        asked = refused if "refused" in self.targets else None
        found, outcome.refusals = lowered_or_serial(session, asked)
        if isinstance(found, str):
            return
        if rng.random() < MOVED:
            found = moved_to_memory(session, found, rng)
        require_texts(found, session.fusion)
        job.kernel, outcome.lowered, outcome.cuda = found, True, _no_cuda(found) is None
        if "verify" in self.targets:
            outcome.proof = require_proof(found)
        for target in targets_of(found, self.targets):
            if target != "c" and outcome.failure is None:
                self._run(job, compiled(found, target), target)

    def _math(self, number: int, session: Session) -> Sequence[Expected]:
        """Write the math of a case, and return what it computes; both are kept for the next."""
        key = number // SCHEDULES_A_FUSION
        if key in self._known:
            lines, expected, _ = self._known[key]
            for line in lines:
                session.define(line)
            return expected
        rng = Random(f"{self.seed}/math/{key}")
        FusionWriter(session, rng).write()
        sizes = choose_sizes(session.fusion, rng)
        lines = tuple(session.math)
        self._known = {key: (lines, (), Case("", lines, (), sizes))}
        expected = [expect(session.fusion, s, key) for s in sizes]
        self._known = {key: (lines, expected, Case("", lines, (), sizes))}
        return expected

    def _compile_texts(self, jobs: Sequence[_Job]) -> None:
        """Compile the CUDA text of kernels, in one program."""
        found = failures_of([job.kernel for job in jobs if job.kernel is not None])
        for job, failure in zip(jobs, found, strict=True):
            job.outcome.failure = job.outcome.failure or failure

    def _run(self, job: _Job, function: Any, target: str) -> None:
        if isinstance(function, Failure):
            job.outcome.failure = function
            return
        try:
            for expected in cases_on(target, job.expected):
                if not run(function, expected, target):
                    job.outcome.runs += 1
        except Failure as failure:
            job.outcome.failure = failure


def moved_to_memory(session: Session, kernel: Kernel, rng: Random) -> Kernel:
    """Return a kernel that has CUDA text, if moving tensors to memory is all that it takes.

    Most schedules leave a tensor of symbolic size in LOCAL memory, which C can have and CUDA
    cannot; in SHARED or GLOBAL memory it is a stage between others.
    """
    for _ in range(MOST_MOVED):
        name = _no_cuda(kernel)
        found = [n for n in session.tensors if name and session.tensor(n).name == name]
        if not found:
            break
        before = session.tensor(found[0]).memory  # not LOCAL where it accumulates in registers
        session.attempt(f"{found[0]}.memory = ln.{rng.choice(['SHARED', 'GLOBAL'])}")
        now = lowered(session.fusion)
        if isinstance(now, str):
            session.attempt(f"{found[0]}.memory = ln.{before.name}")
            break
        kernel = now
    return kernel


def _no_cuda(kernel: Kernel) -> str | None:
    """Return the name of a tensor for which a kernel has no CUDA text; None where it has one."""
    try:
        kernel.cuda()
    except ln.LoweringError as error:
        return str(error.subject) if NO_CUDA.search(str(error)) else None
    return None


def _together(jobs: Sequence[_Job]) -> list[Any]:
    """Return the C function of each job, or the Failure that its compilation is."""
    kernels = [job.kernel for job in jobs if job.kernel is not None]
    try:
        with garbage():
            return list(compile_many(kernels, "c", optimize=1))
    except Exception:  # one of them is to blame: find it
        result: list[Any] = []
        for kernel in kernels:
            try:
                result.append(compiled(kernel, "c"))
            except Failure as failure:
                result.append(failure)
        return result
