"""``loopnest fuzz``: random schedules of a user's math, judged, and a failure made small."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Console

from loopnest.devtools.cli.console_output import delayed
from loopnest.devtools.cli_spec import CliError, CommandOptions, Request
from loopnest.devtools.work_farm import KernelFile, Lost, Opener, finished, opener

if TYPE_CHECKING:
    from loopnest.devtools.fuzzing.kernel_fuzzing import Fuzzed, KernelFuzzer

_TIME = re.compile(r"([0-9.]+)\s*(s|m|h|)")
_AT_A_TIME = 10
"""How many schedules a worker judges at a time, until few are left."""
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def fuzz(
    request: Request,
    seed: int,
    count: int,
    budget: str,
    verify: bool,
    as_json: bool,
    jobs: int,
    scheduler: str | None,
) -> object:
    """Try random legal schedules of a kernel's math, and make a failure small.

    Each schedule call must succeed, or raise ScheduleError and change nothing. What lowers runs on
    the interpreter, where every access is checked, and in C, at small sizes: divisible, ragged,
    with ones and with zeros; results must be those of the math, within their error bound. The
    first failure is printed as a script with as few calls as show it. Where a schedule is named,
    the calls come behind it; else they begin with the math alone. Exit status: 0 if nothing
    failed, 1 if something did.
    """
    from loopnest.devtools.fuzzing.kernel_fuzzing import KernelFuzzer
    from loopnest.devtools.harness import small_targets

    choice = request.choose(None)
    named = choice.schedule if request.schedule else ""
    fuzzer = KernelFuzzer(
        choice.kernel, request.source.file, named, _params(choice, named), _values(choice),
        seed, (*small_targets(), *(("verify",) if verify else ())),
    )  # fmt: skip
    with _progress(choice.label, count) as tell:
        opened = opener(jobs, scheduler)
        if opened is None:
            found = fuzzer.run(count, _seconds(budget), tell)
        else:
            most = None if scheduler else 2 * jobs
            found = _shared(fuzzer, count, _seconds(budget), opened, jobs, most, tell)
    if not as_json:
        failed = found.failure is not None
        click.echo(found.script if failed else _sentence(choice.kernel.name, found))
    if found.failure is not None:
        calls = f"{found.calls_left} call{'' if found.calls_left == 1 else 's'}"
        sentence = f"{choice.kernel.name}: schedule {found.schedules} failed, by {calls}"
        raise CliError(sentence, _plain(found))
    return _plain(found)


def _shared(
    fuzzer: KernelFuzzer,
    count: int,
    seconds: float,
    opened: Opener,
    workers: int,
    most: int | None,
    tell: Callable[[Fuzzed, str], None],
) -> Fuzzed:
    """Let workers judge the schedules, some at a time, to the first failure that is found."""
    from loopnest.devtools.fuzzing.case_lines import Failure
    from loopnest.devtools.fuzzing.kernel_fuzzing import Fuzzed, FuzzJob, fuzzed_job

    file, end = KernelFile.of(fuzzer.file), time.monotonic() + seconds
    total = Fuzzed()

    def jobs() -> Iterator[FuzzJob]:
        first = 0
        while first < count and (left := end - time.monotonic()) > 0:
            # Smaller towards the end, so that workers end together.
            number = max(1, min(_AT_A_TIME, (count - first) // (4 * workers)))
            yield FuzzJob(file, fuzzer.kernel.name, fuzzer.settings, first, number, left)
            first += number

    for job, found in finished(opened, fuzzed_job, jobs(), most):
        if isinstance(found, Lost):
            where = f"of schedules {job.first}..{job.first + job.count - 1}"
            found = Fuzzed(failure=Failure("crash", f"{found.why}, {where}"))
        total.add(found)
        tell(total, "judging")
        if total.failure is not None:
            break
    return total


def _params(choice: CommandOptions, named: str) -> dict[str, object]:
    known = choice.kernel.parameters(named)
    for name in choice.params:
        if name not in known:
            raise CliError(
                f"-P {name}: the math has no such parameter; name the schedule that has it, too"
            )
    return dict(choice.params)


def _values(choice: CommandOptions) -> dict[str, float]:
    choice.check_values(choice.fusion())
    return dict(choice.values)


def _seconds(budget: str) -> float:
    match = _TIME.fullmatch(budget.strip())
    try:
        return float(match[1]) * _UNITS[match[2]] if match else _refused(budget)
    except ValueError:
        return _refused(budget)


def _refused(budget: str) -> float:
    raise CliError(f"--time {budget}: it is no time; use 60s, 5m or 1h")


def _sentence(name: str, found: Fuzzed) -> str:
    return (
        f"{name}: nothing failed in {found.schedules} schedules of {found.calls} calls; "
        f"{found.kernels} have a kernel, {found.runs} launches were right"
    )


def _plain(found: Fuzzed) -> dict[str, object]:
    failure = found.failure
    return {
        "schedules": found.schedules, "calls": found.calls, "kernels": found.kernels,
        "runs": found.runs, "failure": None if failure is None else str(failure),
        "script": found.script or None,
    }  # fmt: skip


@contextmanager
def _progress(label: str, count: int) -> Iterator[Callable[[Fuzzed, str], None]]:
    """Show how far it is, where it takes long, on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda found, what: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task(label, total=count)

    def tell(found: Fuzzed, what: str) -> None:
        progress.update(task, completed=found.schedules, description=f"{label}: {what}")

    with delayed(progress.start, progress.stop):
        yield tell
