#!/usr/bin/env python
"""Random fusions under random schedules, judged against the math; see `tests/fuzzing`."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
os.environ.setdefault("OMP_NUM_THREADS", "2")  # enough for races to show, cheap to start

from fuzz_journal import Journal

from fuzzing.engine import Engine, Outcome
from loopnest.devtools.fuzzing.case_lines import Case, Failure
from loopnest.devtools.fuzzing.judge import judge_case
from loopnest.devtools.fuzzing.kernel_fuzzing import Shrinker
from loopnest.devtools.work_farm import Lost, Opener, finished, opener, processes

BATCH = 40
TARGETS = {
    "both": ("interpret", "c"),
    "interpret": ("interpret",),
    "c": ("c",),
    "nvrtc": ("nvrtc",),
    "all": ("interpret", "c", "nvrtc"),
}

HELP = """Write random fusions and random schedules, and judge what loopnest makes of them.

Case NUMBER of a seed is always the same fusion and schedule. Each schedule call must succeed, or
raise ScheduleError and change nothing; the lowering must succeed, or give a good reason; results
must be those of ln.evaluate, within ln.error_bound, at divisible, ragged and empty sizes, in memory
that is full of NaN before. With --target nvrtc or all, CUDA text is compiled, for compute_90.

A failing case is written to --out as a script that runs alone:

\b
    tools/run python tools/fuzz.py --count 2000
    tools/run python build/fuzz/case_17.py

With --verify each kernel is proved too: one that is refuted has failed, however it runs. With
--refused the kernels that are refused for their threads are lowered without that check, and proved:
each proof is a refusal too many.

Each verdict is written to --out/SEED.jsonl as it comes. With --resume the cases that stand there,
judged on the same targets, are not judged again, but counted; parts of one range may so be run one
after another (each for so many --minutes), or on several machines. tools/fuzz_journal.py makes one
table of their files:

\b
    tools/run python tools/fuzz.py --seed 5 --count 20000 --verify --resume --minutes 60

With --shrink its lines are dropped and simplified first, as long as it fails in the same way; of
several failures of one kind only the first is shrunk. Numbers as arguments judge just these cases:

\b
    tools/run python tools/fuzz.py --shrink 17 4711
"""


@dataclass
class Tally:
    """What all cases came to."""

    cases: int = 0
    lowered: int = 0
    cuda: int = 0
    runs: int = 0
    blind: int = 0
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    proofs: Counter[str] = field(default_factory=Counter)
    without: Counter[str] = field(default_factory=Counter)
    needless: list[int] = field(default_factory=list)
    failures: dict[str, list[Outcome]] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.cases += 1
        self.runs += outcome.runs
        self.lowered += outcome.lowered
        self.cuda += outcome.cuda
        self.blind += outcome.blind
        if outcome.lowered:
            self.proofs[outcome.proof] += 1
        if outcome.without:
            self.without[outcome.without] += 1
        if outcome.without == "proved":
            self.needless.append(outcome.number)
        self.calls.update(outcome.calls)
        self.refusals.update(outcome.refusals[:1])
        if outcome.failure is not None:
            self.failures.setdefault(outcome.failure.signature, []).append(outcome)

    @property
    def failed(self) -> int:
        return sum(len(found) for found in self.failures.values())


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("numbers", nargs=-1, type=int)
@click.option("--count", default=1000, show_default=True, help="How many cases to judge.")
@click.option("--start", default=0, show_default=True, help="The number of the first case.")
@click.option("--seed", default=0, show_default=True, help="Decides all cases, with their numbers.")
@click.option(
    "--jobs",
    default=len(os.sched_getaffinity(0)),
    help="Worker processes.",
    show_default="the cores",
)
@click.option("--scheduler", help="A cluster of Dask's: tcp://HOST:8786, or local.")
@click.option("--minutes", default=math.inf, help="Begin no more cases after so long.")
@click.option("--resume/--no-resume", help="Do not judge again what was judged before.")
@click.option("--target", type=click.Choice(list(TARGETS)), default="both", show_default=True)
@click.option("--verify/--no-verify", help="Prove each kernel, beside running it.")
@click.option("--refused/--no-refused", help="Ask a proof of what is refused for its threads.")
@click.option("--shrink/--no-shrink", help="Make failing cases small.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/fuzz"),
              show_default=True, help="The folder for failing cases.")  # fmt: skip
def main(
    numbers: tuple[int, ...], count: int, start: int, seed: int, jobs: int,
    scheduler: str | None, target: str, verify: bool, refused: bool, shrink: bool, resume: bool,
    minutes: float, out: Path,
) -> None:  # fmt: skip
    console = Console()
    tally = Tally()
    opened = opener(jobs, scheduler) or processes(1)
    asked = {"verify": verify, "refused": refused}
    targets = (*TARGETS[target], *(name for name, wanted in asked.items() if wanted))
    wanted = list(numbers) or list(range(start, start + count))
    journal = Journal(out / f"{seed}.jsonl", targets)
    known = journal.read() if resume else {}
    for outcome in (known[n] for n in wanted if n in known):
        tally.add(outcome)
    wanted = [n for n in wanted if n not in known]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("judging", total=len(wanted))
        end = time.monotonic() + 60 * minutes
        most = None if scheduler else 2 * jobs
        for outcome in outcomes(wanted, seed, targets, opened, most, end):
            tally.add(outcome)
            journal.write(outcome)
            if outcome.failure is not None:
                save(outcome, out, outcome.case, outcome.failure)
            progress.update(task, advance=1, description=f"judging, {tally.failed} failed")
    if shrink:
        shrink_firsts(tally, out, targets, console)
    report(tally, out, console)
    raise SystemExit(1 if tally.failures else 0)


# Workers


def _judge(numbers: list[int], seed: int, targets: tuple[str, ...]) -> list[Outcome]:
    return Engine(seed, targets).judge(numbers)


def outcomes(
    numbers: list[int],
    seed: int,
    targets: tuple[str, ...],
    opened: Opener,
    most: int | None,
    end: float = math.inf,
) -> Iterator[Outcome]:
    """Yield the outcome of each case, as batches end; none is begun after the time `end`.

    A worker that dies takes its batch with it; the cases are then judged one by one, and the ones
    that die again are reported as crashes. `most` batches are submitted at a time, or as many as
    keep a cluster busy.
    """
    batches = [numbers[n : n + BATCH] for n in range(0, len(numbers), BATCH)]
    work = partial(_judge, seed=seed, targets=targets)
    begun = (batch for batch in batches if time.monotonic() <= end)
    died: list[int] = []
    for batch, found in finished(opened, work, begun, most):
        if isinstance(found, Lost):
            died += batch
        else:
            yield from found
    for batch, found in finished(opened, work, [[number] for number in died], 1):
        if isinstance(found, Lost):
            (number,) = batch
            failure = Failure("crash", "the process died", where="on c")
            yield Outcome(number, _lines_of(number, seed), failure)
        else:
            yield from found


def _lines_of(number: int, seed: int) -> Case:
    return Engine(seed, ()).judge([number])[0].case


# Failures


_ONLY = {"nvrtc": ("nvrtc",), "ln.verify": ("verify",)}
"""Where a failure shows that does not show in a run."""


def save(outcome: Outcome, out: Path, case: Case, failure: Failure) -> Path:
    """Write a failing case as a script; return its path."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{case.name}.py"
    refused = {*outcome.refused, failure.line}
    called = [line for line in case.schedule if line in refused]
    path.write_text(case.script(called, str(failure), _ONLY.get(failure.where, ())), "utf-8")
    return path


def shrink_firsts(tally: Tally, out: Path, targets: tuple[str, ...], console: Console) -> None:
    """Shrink the first failure of each kind, print it and write it over the long one."""
    for found in tally.failures.values():
        outcome = min(found, key=lambda o: len(o.case.math) + len(o.case.schedule))
        if outcome.failure is None or outcome.failure.kind == "crash":
            continue
        with console.status(f"shrinking case {outcome.number}"):
            failure, _ = judge_case(outcome.case, targets)
            if failure is None or failure.signature != outcome.failure.signature:
                console.print(f"case {outcome.number} does not fail when run alone")
                continue
            case, failure = Shrinker(outcome.case, failure).run()
            _, session = judge_case(case, targets)
        outcome.refused = tuple(session.refused)
        path = save(outcome, out, case, failure)
        console.print(f"[bold]{path}[/bold]")
        console.print(path.read_text(), highlight=False, markup=False)


def report(tally: Tally, out: Path, console: Console) -> None:
    """Print what was tried and what came of it."""
    calls = Table("primitive", "accepted", "refused", "unsupported", title="schedule calls")
    for name in sorted({name for name, _ in tally.calls}):
        verdicts = ("accepted", "refused", "unsupported")
        calls.add_row(name, *(str(tally.calls[name, verdict] or "") for verdict in verdicts))
    console.print(calls)
    refusals = Table("why there is no kernel", "cases", title="lowering")
    for reason, number in tally.refusals.most_common():
        refusals.add_row(reason, str(number))
    console.print(refusals)
    if tally.failures:
        failures = Table("failure", "cases", "first", title=f"failures, in {out}")
        for signature, found in sorted(tally.failures.items(), key=lambda item: -len(item[1])):
            first = ", ".join(str(o.number) for o in found[:4])
            failures.add_row(signature, str(len(found)), first)
        console.print(failures)
    if tally.proofs.keys() - {""}:
        whole, named, rest = (tally.proofs[scope] for scope in ("all sizes", "named sizes", ""))
        console.print(f"proved for all sizes {whole}, for sizes that are named {named}, not {rest}")
    if tally.without:
        without = ", ".join(f"{number} {what}" for what, number in tally.without.most_common())
        console.print(f"refused for their threads, and without that check: {without}")
        if tally.needless:
            console.print(f"refused but proved: {', '.join(map(str, tally.needless))}")
    console.print(f"{tally.blind} outputs are 0 at all sizes, so that zeros would pass for them")
    console.print(
        f"{tally.cases} schedules, {tally.lowered} lowered, {tally.cuda} with CUDA text, "
        f"{tally.runs} launches judged, {tally.failed} failed"
    )


if __name__ == "__main__":
    main()
