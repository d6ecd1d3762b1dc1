"""Check and measure every kernel on this machine's GPU.

Run it as `tools/run python tools/gpu_check.py --help`.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import click
import gpu_steps
from gpu_peers import Torch
from gpu_subjects import Subject, find, subjects
from gpu_table import GPU, ROOT, Journal, commit_here, is_bad
from gpu_tools import find as find_tool
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loopnest.backends.cuda.driver import driver_interface
from loopnest.errors import LoopnestError

HELP = """Check and measure every kernel on this machine's GPU, and write a table of it.

For each schedule in --folder that binds a launch dimension, and for some launches that none of
them makes, in this order:

\b
1. results  at ragged, even, degenerate and large sizes, in each type, on arrays of the host and
            of the GPU, with 32-bit and 64-bit indices, against the oracle
2. times    at large sizes, by events; beside the time in which a copy moves as many bytes,
            torch, and torch.compile (Triton)
3. checks   compute-sanitizer: memcheck, racecheck, synccheck, initcheck; of six kernels
4. counts   Nsight Compute: bytes of memory against those that must move, conflicts of banks

\b
    tools/run python tools/gpu_check.py                       # go on for --minutes
    tools/run python tools/gpu_check.py --only softmax        # one kernel, all schedules
    tools/run python tools/gpu_check.py --only gemm@gpu --skip checks --skip counts

Every finding is written at once to tools/results/gpu_DEVICE_DATE.jsonl and into the table beside
it, gpu_DEVICE_DATE.md. A call goes on where the last one on this day and commit stopped. What is
not installed (torch, compute-sanitizer, ncu) leaves its columns empty. All of it takes about half
an hour. Exit status: 0, or 1 where a result is wrong or a check is not clean, 2 where there is no
GPU, 3 where the time was up before the end.
"""

STEPS = ("results", "times", "checks", "counts")

WATCHED = (
    "softmax@gpu", "layernorm@gpu_warp", "gemm@gpu", "column_sum@gpu_tall", "transpose@gpu",
    "centred@gpu",
)  # fmt: skip
"""What compute-sanitizer watches: shuffles, shared memory, a pipeline, last blocks, wide accesses,
a barrier of the grid."""

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
            if step == "results" or (
                subject.is_main and (step != "checks" or subject.name in WATCHED)
            ):
                yield Task(step, subject)


@dataclass
class Session:
    """One call: what is done within its time.

    Args:
        journal: what was found.
        torch: to compare with, if it is installed.
        deadline: when no task is begun any more, by `monotonic`.
    """

    journal: Journal
    torch: Torch | None
    deadline: float

    def left(self) -> float:
        return self.deadline - monotonic()

    def perform(self, task: Task) -> dict[str, Any]:
        """Return what a task finds; an error is a finding too."""
        try:
            match task.step:
                case "results":
                    return gpu_steps.results(task.subject)
                case "times":
                    return gpu_steps.times(task.subject, self.torch)
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
        for task in waiting:
            if session.left() <= 0:
                console.print(
                    f"the time is up; {len(waiting)} tasks were left at its beginning: "
                    "call it again to go on",
                    highlight=False,
                )
                return 3
            progress.update(bar, description=task.title)
            found = session.perform(task)
            session.journal.write(task.subject.name, task.step, found)
            progress.advance(bar)
            if is_bad(task.step, found):
                console.print(f"[red]{task.title}[/red]: {found}", highlight=False)
    console.print(f"written to {session.journal.table}", highlight=False)
    done = session.journal.read()
    return int(any(is_bad(t.step, done[t.subject.name][t.step]) for t in wanted))


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
@click.option("--once", "place", metavar="FILE:KERNEL@SCHEDULE", hidden=True)
@click.option("--dtype", default="", hidden=True)
@click.option("--sizes", default="[]", metavar="JSON", hidden=True)
def main(
    folder: Path, only: tuple[str, ...], skip: tuple[str, ...], minutes: float, fresh: bool,
    out: Path, place: str | None, dtype: str, sizes: str,
) -> None:  # fmt: skip
    started = monotonic()
    console = Console(stderr=True)
    missing = driver_interface.obstacle()
    if missing is not None:
        console.print(
            f"gpu_check: {missing}. It checks kernels on a GPU; run it where there is "
            "one. Everything else is checked by tools/run pytest.",
            highlight=False,
        )
        sys.exit(2)
    if place is not None:
        gpu_steps.once(find(place, dtype), json.loads(sizes))
        return
    device = driver_interface.find_driver().device
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
    session = Session(journal, torch, started + 60 * minutes)
    sys.exit(report(session, wanted, console))


if __name__ == "__main__":
    main()
