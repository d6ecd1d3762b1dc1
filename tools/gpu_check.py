"""Check and measure every kernel on this machine's GPU.

Run it as `tools/run python tools/gpu_check.py --help`.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import click
import gpu_steps
from gpu_peers import Torch
from gpu_subjects import Subject, find, subjects
from gpu_table import GPU, ROOT, Journal, commit_here, is_bad
from gpu_tools import child, finding
from gpu_tools import find as find_tool
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loopnest.backends.cuda.driver import gpu_driver
from loopnest.base.errors import LoopnestError

HELP = """Check and measure every kernel on this machine's GPU, and write a table of it.

For each schedule in --folder that binds a launch dimension, and for some launches that none of
them makes, in this order:

\b
1. results  at ragged, even, degenerate and large sizes, in each type, on arrays of the host and
            of the GPU, with 32-bit and 64-bit indices, against the oracle
2. times    at large sizes, by events; beside the time in which a copy moves as many bytes,
            torch, and torch.compile (Triton)
3. checks   compute-sanitizer: memcheck, racecheck, synccheck, initcheck
4. counts   Nsight Compute: bytes of memory against those that must move, conflicts of banks

\b
    tools/run python tools/gpu_check.py                       # go on for --minutes
    tools/run python tools/gpu_check.py --only softmax        # one kernel, all schedules
    tools/run python tools/gpu_check.py --only gemm@gpu --skip checks --skip counts
    tools/run python tools/gpu_check.py --jobs 16             # 16 tasks at a time

With --jobs, each task runs in a process of its own: a kernel that hangs or faults takes none of the
others along. What is timed or counted has the GPU to itself all the same.

Every finding is written at once to tools/results/gpu_DEVICE_DATE.jsonl and into the table beside
it, gpu_DEVICE_DATE.md. A call goes on where the last one on this day and commit stopped. What is
not installed (torch, compute-sanitizer, ncu) leaves its columns empty. All of it takes about an
hour, with --jobs 16 some minutes. Exit status: 0, or 1 where a result is wrong or a check is not
clean, 2 where there is no GPU, 3 where the time was up before the end.
"""

STEPS = ("results", "times", "checks", "counts")

SLOWEST = 120.0
"""Seconds that a tool around one kernel may take."""


@dataclass(frozen=True)
class Task:
    """One step on one subject."""

    step: str
    subject: Subject

    @property
    def title(self) -> str:
        return f"{self.subject.name}: {self.step}"


def tasks(chosen: Sequence[Subject], steps: Sequence[str]) -> Iterator[Task]:
    """Yield what is to do, the most telling first: all results, then times, then the tools."""
    for step in steps:
        for subject in chosen:
            if step == "results" or subject.is_main:
                yield Task(step, subject)


def found_here(task: Task, torch: Torch | None) -> dict[str, Any]:
    """Return the results or the times of a subject, found by this process."""
    if task.step == "results":
        return gpu_steps.results(task.subject)
    return gpu_steps.times(task.subject, torch)


@dataclass
class Session:
    """One call: what is done within its time.

    Args:
        journal: what was found.
        torch: to compare with, if it is installed.
        deadline: when no task is begun any more, by `monotonic`.
        jobs: how many tasks run at once; 1: all in this process.
    """

    journal: Journal
    torch: Torch | None
    deadline: float
    jobs: int = 1

    def left(self) -> float:
        return self.deadline - monotonic()

    def is_wrong(self, task: Task) -> bool:
        """Whether the subject of a measurement was found to be wrong: it is not measured then."""
        found = self.journal.read().get(task.subject.name, {}).get("results")
        return task.step != "results" and found is not None and is_bad("results", found)

    def findings(self, batch: Sequence[Task]) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Yield what tasks of one step find, those that the time allows."""
        if self.jobs == 1:
            for task in batch:
                if self.left() > 0:
                    yield task, self.perform(task)
            return
        with ThreadPoolExecutor(self.jobs) as pool:
            running = {pool.submit(self._outside, task): task for task in batch}
            for done in as_completed(running):
                found = done.result()
                if found is not None:
                    yield running[done], found

    def _outside(self, task: Task) -> dict[str, Any] | None:
        """Return what a task finds in a process of its own; None if its time is up."""
        if self.left() <= 0:
            return None
        if task.step in ("checks", "counts"):  # its tools are processes already
            return self.perform(task)
        return finding(child(task.subject, [], task.step), self._seconds())

    def perform(self, task: Task) -> dict[str, Any]:
        """Return what a task finds; an error is a finding too."""
        try:
            match task.step:
                case "results" | "times":
                    return found_here(task, self.torch)
                case "checks":
                    return gpu_steps.checks(task.subject, self._seconds())
                case _:
                    return gpu_steps.counts(task.subject, self._seconds())
        except LoopnestError as error:
            return {"error": str(error)}

    def _seconds(self) -> float:
        return max(min(SLOWEST, self.left()), 1.0)

    def measure_copy(self) -> None:
        if "copy" not in self.journal.read().get(GPU, {}):
            found = {"bandwidth": gpu_steps.copy_bandwidth(self.torch)}
            self.journal.write(GPU, "copy", found)


def torch_here(tell: Console) -> Torch | None:
    try:
        return Torch()
    except ImportError as error:
        tell.print(f"[dim]no comparison with torch: {error}[/dim]", highlight=False)
        return None


def report(session: Session, wanted: Sequence[Task], console: Console) -> int:
    """Do what is not done yet; return the exit status."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    done = session.journal.read()
    waiting = [t for t in wanted if t.step not in done.get(t.subject.name, {})]
    if any(task.step == "times" for task in waiting):
        session.measure_copy()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(wanted), completed=len(wanted) - len(waiting))
        for step in STEPS:
            batch = [t for t in waiting if t.step == step and not session.is_wrong(t)]
            for task, found in session.findings(batch):
                progress.update(bar, description=task.title, advance=1)
                session.journal.write(task.subject.name, task.step, found)
                if is_bad(task.step, found):
                    console.print(f"[red]{task.title}[/red]: {found}", highlight=False)
    done = session.journal.read()
    left = [t for t in wanted if t.step not in done.get(t.subject.name, {})]
    if any(not session.is_wrong(task) for task in left):
        console.print(
            f"the time is up; {len(left)} tasks are left: call it again to go on",
            highlight=False,
        )
        return 3
    console.print(f"written to {session.journal.table}", highlight=False)
    return int(any(is_bad(t.step, done[t.subject.name][t.step]) for t in wanted if t not in left))


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--folder",
    default=ROOT / "kernels",
    show_default="kernels",
    type=click.Path(exists=True, path_type=Path),
    help="Where kernels are.",
)
@click.option("--only", multiple=True, metavar="KERNEL[@SCHEDULE]", help="Only these.")
@click.option("--skip", multiple=True, type=click.Choice(STEPS), help="Leave a step out.")
@click.option("--minutes", default=9.0, show_default=True, help="Begin nothing new after as many.")
@click.option("--fresh", is_flag=True, help="Forget what was found before on this day.")
@click.option(
    "--out",
    default=ROOT / "tools" / "results",
    show_default="tools/results",
    type=click.Path(path_type=Path),
    help="Where the table goes.",
)
@click.option(
    "--jobs",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    metavar="NUMBER",
    help="How many tasks to work at side by side.",
)
@click.option("--once", "place", metavar="FILE:KERNEL@SCHEDULE", hidden=True)
@click.option("--dtype", default="", hidden=True)
@click.option("--sizes", default="[]", metavar="JSON", hidden=True)
@click.option("--step", default="", hidden=True)
def main(
    folder: Path, only: tuple[str, ...], skip: tuple[str, ...], minutes: float, fresh: bool,
    out: Path, jobs: int, place: str | None, dtype: str, sizes: str, step: str,
) -> None:  # fmt: skip
    started = monotonic()
    console = Console(stderr=True)
    missing = gpu_driver.obstacle()
    if missing is not None:
        console.print(
            f"gpu_check: {missing}. It checks kernels on a GPU; run it where there is "
            "one. Everything else is checked by tools/run pytest.",
            highlight=False,
        )
        sys.exit(2)
    if place is not None:
        subject = find(place, dtype)
        if step in ("results", "times"):
            torch = torch_here(console) if step == "times" else None
            click.echo(json.dumps(found_here(Task(step, subject), torch)))
        else:
            gpu_steps.once(subject, json.loads(sizes), alone=step == "counts")
        return
    device = gpu_driver.find_driver().device
    journal = Journal(out, device, datetime.date.today().isoformat(), commit_here())
    if fresh:
        journal.forget()
    steps = [step for step in STEPS if step not in skip]
    for step, tool in (("checks", "compute-sanitizer"), ("counts", "ncu")):
        if step in steps and find_tool(tool) is None:
            console.print(f"[dim]no {step}: {tool} was not found[/dim]", highlight=False)
            steps.remove(step)
    torch = torch_here(console) if "times" in steps else None
    wanted = list(tasks(list(subjects(folder, only, console)), steps))
    if not wanted:
        console.print(
            f"gpu_check: no schedule in {folder} fits --only {' '.join(only)}", highlight=False
        )
        sys.exit(2)
    session = Session(journal, torch, started + 60 * minutes, jobs)
    sys.exit(report(session, wanted, console))


if __name__ == "__main__":
    main()
