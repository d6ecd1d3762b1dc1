#!/usr/bin/env python
"""Barriers of random schedules: is each of them needed, narrow, and reached by all its threads?"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from random import Random

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import loopnest as ln
from fuzzing.fusions import FusionWriter
from loopnest import kir
from loopnest.devtools.fuzzing import Failure
from loopnest.devtools.fuzzing.arrays import make_arrays
from loopnest.devtools.fuzzing.case_lines import Session
from loopnest.devtools.fuzzing.schedules import ScheduleWriter
from loopnest.facade import Kernel, lower
from loopnest.kir.nest_text import nest_lines
from loopnest.proofs import superfluous_barriers, verify, wide_barriers
from loopnest.proofs.program_model import Model, launch_dimensions
from loopnest.proofs.size_choice import large_sizes, points_at, small_sizes

BATCH = 100
MOST_POINTS = 2_000_000
"""How many points of statements a run of the sanitizer may have."""

HELP = """Delete the barriers of random schedules, one statement at a time, and look for a race.

Schedule NUMBER of a seed is always the same. Of each that has barriers, a barrier is superfluous if
verify finds no race without it, at sizes up to blocks of 1024 threads, and the sanitizer stops no
run either. Beside that each kernel must be proved, and every barrier must stand in control flow
that is the same for all threads of a block. With --wide, barriers of a block are listed in whose
place one of each warp would do, as far as sizes that are affordable tell.

Superfluous barriers are written to --out as scripts that run alone:

\b
    tools/run python tools/superfluous.py --count 1000 --jobs 2
    tools/run python build/superfluous/c2374.py

Numbers as arguments judge just these schedules:

\b
    tools/run python tools/superfluous.py 2374 5343
"""


@dataclass
class Outcome:
    """What became of one schedule.

    Args:
        number: of the schedule.
        barriers: how many statements.
        warps: how many of them are of each warp.
        needless: the superfluous ones: line and reason.
        wide: those of a block in whose place one of each warp would do.
        faults: what else is wrong.
        lines: that define and schedule the fusion.
    """

    number: int
    barriers: int
    warps: int
    needless: tuple[str, ...]
    wide: tuple[str, ...]
    faults: tuple[str, ...]
    lines: tuple[tuple[str, ...], tuple[str, ...]]


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("numbers", nargs=-1, type=int)
@click.option("--count", default=1000, show_default=True, help="How many schedules with barriers.")
@click.option("--seed", default=0, show_default=True, help="Decides all schedules.")
@click.option("--jobs", default=1, show_default=True, help="Worker processes.")
@click.option("--wide", is_flag=True, help="List barriers that are wider than sizes show.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/superfluous"),
              show_default=True, help="The folder for scripts.")  # fmt: skip
def main(numbers: tuple[int, ...], count: int, seed: int, jobs: int, wide: bool, out: Path) -> None:
    console = Console()
    found: list[Outcome] = []
    total = len(numbers) or count
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("judging", total=total)
        for outcome in outcomes(numbers, seed, jobs, wide):
            found.append(outcome)
            if outcome.needless or outcome.faults:
                save(outcome, out)
            bad = sum(len(o.needless) for o in found)
            progress.update(task, advance=1, description=f"judging, {bad} superfluous")
            if len(found) == total:
                break
    report(found, out, console)
    raise SystemExit(1 if any(o.needless or o.faults for o in found) else 0)


def outcomes(numbers: Sequence[int], seed: int, jobs: int, wide: bool) -> Iterator[Outcome]:
    """Yield the outcomes of schedules with barriers, for as long as more are wanted."""
    start = 10_000_000 * seed
    batches = (
        iter([list(numbers)])
        if numbers
        else (list(range(n, n + BATCH)) for n in range(start, start + 10_000_000, BATCH))
    )
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    running: set[Future[list[Outcome]]] = set()
    try:
        for batch in batches:
            running.add(pool.submit(judge, batch, wide))
            if len(running) > jobs:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
        for future in running:
            yield from future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


# One schedule


def judge(numbers: Sequence[int], wide: bool) -> list[Outcome]:
    """Return what becomes of schedules; those without barriers are passed over."""
    made = []
    for number in numbers:
        try:
            made.append(judge_one(number, wide))
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
            made.append(Outcome(number, 0, 0, (), (), (fault,), ((), ())))
    return [outcome for outcome in made if outcome is not None]


def judge_one(number: int, wide: bool) -> Outcome | None:
    """Return what becomes of a schedule, None where its kernel has no barriers."""
    session, kernel = written(number)
    if kernel is None:
        return None
    barriers = [n for n, _ in kernel.walk() if isinstance(n, kir.Barrier)]
    if not barriers:
        return None
    needless = [b for b in superfluous_barriers(kernel) if not stopped(session, kernel, b)]
    too_wide = wide_barriers(kernel) if wide else []
    return Outcome(
        number,
        len(barriers),
        sum(b.scope == "warp" for b in barriers),
        tuple([described(kernel, b) for b in needless]),
        tuple([described(kernel, b) for b in too_wide if b not in needless]),
        tuple(faults(kernel)),
        (tuple(session.math), tuple(session.schedule)),
    )


def written(number: int) -> tuple[Session, Kernel | None]:
    """Return a random fusion under a random schedule, and its kernel, None where it has none."""
    rng = Random(number)
    session = Session(f"c{number}")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            with session.fusion:
                FusionWriter(session, rng).write()
            ScheduleWriter(session, rng).write()
        return session, lower(session.fusion)
    except (Failure, ln.LoopnestError):
        return session, None  # what others test


def faults(kernel: Kernel) -> Iterator[str]:
    """Yield what is wrong with a kernel: no proof, or a barrier that some threads may not reach."""
    proof = verify(kernel)
    if not proof.ok:
        yield str(proof)
    model = Model(kernel.program)
    for site in model.syncs:
        if not isinstance(site.node, kir.Barrier) or site.node.scope == "warp":
            continue
        decisive = [condition for condition, _ in site.guards]
        decisive += [loop.var.extent for loop in site.serial]
        dims = set().union(*[launch_dimensions(site, value) for value in decisive])
        if any(d.is_block or site.node.scope == "grid" for d in dims):
            yield f"not all threads reach {described(kernel, site.node)}"


def stopped(session: Session, kernel: Kernel, barrier: kir.Barrier) -> bool:
    """Whether the sanitizer stops a run without a barrier."""
    program = without(kernel.program, barrier)
    run = ln.compile(Kernel(replace(kernel._lowered, program=program, scalar=None)), "interpret")
    for sizes in (*large_sizes(program, {}), *small_sizes(program, {})):
        if points_at(program, sizes) > MOST_POINTS:
            continue
        try:
            arrays, keywords = make_arrays(session.fusion, sizes, 0)
            run(*arrays, **keywords)
        except ln.KernelFault:
            return True
        except (ln.LaunchError, ZeroDivisionError):
            continue
    return False


def without(program: kir.Program, barrier: kir.Barrier) -> kir.Program:
    """Return a program without a barrier."""
    return program.with_body(
        kir.map_body(program.body, lambda node: None if node is barrier else node)
    )


def described(kernel: Kernel, barrier: kir.Barrier) -> str:
    """Return the line of a barrier in its nest, and why it was placed."""
    return f"line {nest_lines(kernel.program)[barrier]}: {barrier.scope}: {barrier.reason}"


# Reports


def save(outcome: Outcome, out: Path) -> None:
    """Write a schedule as a script that shows its nest and its superfluous barriers."""
    out.mkdir(parents=True, exist_ok=True)
    math, schedule = outcome.lines
    lines = [
        f'"""c{outcome.number}: ' + "; ".join([*outcome.needless, *outcome.faults]),
        "",
        "Run it from the project's root: tools/run python FILE",
        '"""',
        "",
        "import contextlib",
        "",
        "import loopnest as ln",
        "from loopnest.proofs import superfluous_barriers, verify",
        "",
        f'with ln.Fusion("c{outcome.number}") as f:',
        *[f"    {line}" for line in math],
        "",
    ]
    for line in schedule:
        lines += ["with contextlib.suppress(ln.ScheduleError, ln.NotSupported):", f"    {line}"]
    lines += [
        "",
        "k = ln.lower(f)",
        "print(k)",
        "for barrier in superfluous_barriers(k):",
        "    print(barrier.scope, barrier.reason)",
        "print(verify(k))",
        "",
    ]
    (out / f"c{outcome.number}.py").write_text("\n".join(lines))


def report(found: Sequence[Outcome], out: Path, console: Console) -> None:
    """Print what was judged and what came of it."""
    table = Table("schedule", "barrier", "what", title=f"scripts in {out}")
    for outcome in found:
        for kind, texts in (
            ("superfluous", outcome.needless),
            ("wide", outcome.wide),
            ("fault", outcome.faults),
        ):
            for text in texts:
                table.add_row(str(outcome.number), text[:200], kind)
    if table.row_count:
        console.print(table)
    barriers = sum(o.barriers for o in found)
    warps = sum(o.warps for o in found)
    bad = sum(len(o.needless) for o in found)
    wrong = sum(bool(o.faults) for o in found)
    console.print(
        f"{len(found)} schedules with {barriers} barriers ({warps} of a warp): {bad} superfluous, "
        f"{wrong} schedules with faults"
    )


if __name__ == "__main__":
    main()
