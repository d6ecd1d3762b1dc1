#!/usr/bin/env python
"""Mutants of loop nests, to judge what checks them; see `tests/mutation/mutants.py` and
`tests/mutation`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from random import Random

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from loopnest.devtools.work_farm import Lost, Opener, finished, opener, processes
from mutation.journal import Journal, is_of
from mutation.judge import Verdict, judge_mutant, judge_original, mutants_of
from mutation.mutant import Mutant
from mutation.mutants import KINDS
from mutation.report import COLUMNS, Tally, by_kind, by_rule, by_subject, markdown
from mutation.subjects import Key, Subject, keys_in, load, random_keys

BATCH = 12
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT / "kernels", ROOT / "tests" / "mutation" / "kernels")

HELP = """Change loop nests, one thing at a time, and see who notices.

Every kernel and schedule in --folder (it may be repeated) is lowered; each mutant of its nest drops
or weakens a predicate, changes an index, an init, an identity, a bound, a buffer, a barrier... (see
KINDS in tests/mutation/mutants.py). A mutant is wrong if it breaks a rule of loopnest.kir or gives
other outputs than the oracle: it is run at three sizes, in two random orders of threads, on a
machine of its own (loopnest/second_checker), and on the interpreter. Of the wrong ones verify
alone must not prove 99 %, and the sanitizer must stop 95 % of those that break a rule, without
comparing values. The programs themselves must raise no alarm.

\b
    tools/run python tools/mutate.py --jobs 2
    tools/run python tools/mutate.py --kernel softmax@gpu --kind predicate --kind bound
    tools/run python tools/mutate.py --random 200 --limit 10     # random kernels, too
    tools/run python tools/mutate.py --only-random --legal 1000  # false alarms on legal schedules
    tools/run python tools/mutate.py --show softmax@gpu#17       # one mutant, in full
    tools/run python tools/mutate.py --journal build/mutants.jsonl --resume --seconds 60

The report names every mutant that is proved though wrong, that the sanitizer missed, or that seems
to be no mutant, with its reason. Exit status 1 where a figure is below what is wanted. With
--journal every verdict is written down as it comes; with --resume what stands there is not judged
again.
"""


@dataclass(frozen=True)
class Task:
    """Mutants of one subject; none: the program itself."""

    key: Key
    numbers: tuple[int, ...]


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--folder", "folders", multiple=True, default=FOLDERS, show_default=True,
              type=click.Path(exists=True, path_type=Path), help="Files of kernels.")  # fmt: skip
@click.option("--kernel", "kernels", multiple=True, metavar="NAME[@SCHEDULE]", help="Only these.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(sorted(KINDS)), help="Only these changes."
)
@click.option("--limit", type=int, help="How many mutants a program, drawn by --seed [all].")
@click.option("--random", "randoms", default=0, show_default=True,
              help="How many random kernels to mutate, too.")  # fmt: skip
@click.option(
    "--legal", default=0, show_default=True, help="How many random kernels to check unchanged, too."
)
@click.option("--only-random", is_flag=True, help="Leave the kernels of --folder out.")
@click.option("--seed", default=0, show_default=True, help="Of random kernels and of --limit.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Worker processes.")
@click.option("--scheduler", help="A cluster of Dask's: tcp://HOST:8786, or local.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/mutants.md"),
              show_default=True, help="The report.")  # fmt: skip
@click.option("--json", "json_out", type=click.Path(path_type=Path), help="All verdicts.")
@click.option("--journal", "kept", type=click.Path(path_type=Path), help="Verdicts as they come.")
@click.option("--resume/--no-resume", help="Do not judge again what stands in --journal.")
@click.option("--seconds", type=float, help="How long a proof may take; then it is unknown.")
@click.option("--show", metavar="NAME#NUMBER", help="Print one mutant, its nest and its verdict.")
def main(
    folders: tuple[Path, ...], kernels: tuple[str, ...], kinds: tuple[str, ...], limit: int | None,
    randoms: int, legal: int, only_random: bool, seed: int, jobs: int,
    scheduler: str | None, out: Path, json_out: Path | None, kept: Path | None, resume: bool,
    seconds: float | None,
    show: str | None,
) -> None:  # fmt: skip
    console = Console()
    if show is not None:
        show_mutant(show, [k for folder in folders for k in keys_in(folder)], console)
        return
    keys = [] if only_random else [k for folder in folders for k in keys_in(folder, kernels)]
    if kernels and not keys and not only_random:
        raise click.ClickException(f"there is none of {', '.join(kernels)}")
    chosen = frozenset(kinds) or KINDS
    keys += random_keys(randoms, seed)
    plain = [] if legal <= randoms else list(random_keys(legal, seed))[randoms:]
    tally, journal = Tally(), Journal(kept)
    known = journal.read() if resume else {}
    tasks = list(plan(keys, plain, Drawn(chosen, limit, seed), known, tally, console))
    opened = opener(jobs, scheduler) or processes(1)
    judge_all(tasks, Terms(chosen, seconds), opened, 2 * jobs, tally, journal, console)
    title = f"Mutants of {len(tally.originals)} programs"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(markdown(tally, title), encoding="utf-8")
    if json_out is not None:
        json_out.write_text(json.dumps(tally.as_dict(), indent=1), encoding="utf-8")
    print_tables(tally, console)
    console.print(f"the report: {out}")
    raise SystemExit(0 if tally.is_good else 1)


# What is to be done


@dataclass(frozen=True)
class Drawn:
    """Which mutants of a program are judged: of these kinds, at most `limit`, by `seed`."""

    kinds: frozenset[str]
    limit: int | None
    seed: int


@dataclass(frozen=True)
class Terms:
    """What a worker needs to know: the kinds that mutants are numbered by, seconds a proof."""

    kinds: frozenset[str]
    seconds: float | None


def plan(
    keys: Sequence[Key], plain: Sequence[Key], which: Drawn,
    known: Mapping[tuple[str, int], Verdict], tally: Tally, console: Console,
) -> Iterator[Task]:  # fmt: skip
    """Yield tasks: each program itself, then its mutants in batches; `known` verdicts are told."""
    with console.status("") as status:
        for key in keys:
            status.update(f"lowering {key.name}")
            subject = subject_of(key)
            if subject is None or not subject.trials:
                why = (
                    "it has no kernel" if subject is None else "no small sizes fulfil what it needs"
                )
                tally.skipped.append((key.name, why))
                continue
            if (key.name, -1) in known:
                tally.originals.append(known[key.name, -1])
            else:
                yield Task(key, ())
            found = mutants_of(subject, which.kinds)
            numbers = []
            for number in drawn(subject, found, which):
                verdict = known.get((key.name, number))
                if verdict is not None and is_of(verdict, found[number]):
                    tally.verdicts.append(verdict)
                else:
                    numbers.append(number)
            for start in range(0, len(numbers), BATCH):
                yield Task(key, tuple(numbers[start : start + BATCH]))
    for key in plain:
        yield Task(key, ())


def drawn(subject: Subject, found: Sequence[Mutant], which: Drawn) -> list[int]:
    """Return the numbers of mutants to judge: of each kind about the same share."""
    limit = which.limit
    if limit is None or len(found) <= limit:
        return list(range(len(found)))
    rng = Random(f"{which.seed} {subject.name}")
    kinds = sorted(which.kinds)
    rng.shuffle(kinds)
    queues = {k: [n for n, m in enumerate(found) if m.kind == k] for k in kinds}
    for queue in queues.values():
        rng.shuffle(queue)
    result: list[int] = []
    while len(result) < limit:
        for queue in queues.values():
            if queue and len(result) < limit:
                result.append(queue.pop())
    return sorted(result)


@lru_cache(maxsize=4)
def subject_of(key: Key) -> Subject | None:
    return load(key)


# Workers


def work(task: Task, terms: Terms) -> list[Verdict]:
    """Judge the mutants of a task, or the program itself where it names none."""
    subject = subject_of(task.key)
    if subject is None:
        return []
    if not task.numbers:
        return [judge_original(subject, terms.seconds)]
    found = mutants_of(subject, terms.kinds)
    return [judge_mutant(subject, n, found[n], terms.seconds) for n in task.numbers]


def judge_all(
    tasks: Sequence[Task],
    terms: Terms,
    opened: Opener,
    most: int,
    tally: Tally,
    journal: Journal,
    console: Console,
) -> None:
    """Judge everything; a task whose process dies is judged mutant by mutant."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("judging", total=sum(max(len(t.numbers), 1) for t in tasks))
        left = list(tasks)
        while left:
            lost: list[Task] = []
            for task, verdicts in judged(left, terms, opened, most, lost):
                journal.write(verdicts)
                target = tally.verdicts if task.numbers else tally.originals
                target.extend(verdicts)
                said = f"judging: {len(tally.holes)} holes, {len(tally.alarms)} alarms"
                progress.update(bar, advance=max(len(task.numbers), 1), description=said)
                if not console.is_terminal and len(tally.verdicts) % 240 < len(verdicts):
                    console.print(f"{said}, {len(tally.verdicts)} mutants so far")
            single = [t for t in lost if len(t.numbers) <= 1]
            for task in single:
                number = task.numbers[0] if task.numbers else -1
                died = Verdict(task.key.name, number, "none", "", 0, "", "error",
                               "the process died")  # fmt: skip
                (tally.verdicts if task.numbers else tally.originals).append(died)
                progress.update(bar, advance=1)
            left = [Task(t.key, (n,)) for t in lost if len(t.numbers) > 1 for n in t.numbers]
    tally.verdicts.sort(key=lambda v: (v.subject, v.number))
    tally.originals.sort(key=lambda v: v.subject)


def judged(
    tasks: Sequence[Task], terms: Terms, opened: Opener, most: int, lost: list[Task]
) -> Iterator[tuple[Task, list[Verdict]]]:
    """Yield tasks with their verdicts as they end; those that die are added to `lost`."""
    for task, found in finished(opened, partial(work, terms=terms), tasks, most):
        if isinstance(found, Lost):
            lost.append(task)
        else:
            yield task, found


# What is printed


def print_tables(tally: Tally, console: Console) -> None:
    for title, columns, rows in (
        ("by kind of change", COLUMNS, by_kind(tally)),
        ("by kernel", COLUMNS, by_subject(tally)),
        ("by rule", ("rule", "broken by", "stopped"), by_rule(tally)),
    ):
        table = Table(*columns, title=title, box=None, header_style="bold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    table = Table("", "", title="figures", box=None, show_header=False)
    for name, value in tally.figures().items():
        table.add_row(name, str(value))
    console.print(table)


def show_mutant(which: str, keys: Sequence[Key], console: Console) -> None:
    """Print one mutant: what was changed, its nest, its verdict."""
    from difflib import unified_diff

    from loopnest.kir.nest_text import print_nest

    name, _, number = which.partition("#")
    key = next((k for k in keys if k.name == name), None)
    subject = None if key is None else subject_of(key)
    if subject is None or not number.isdigit():
        known = ", ".join([k.name for k in keys])
        raise click.ClickException(f"--show {which}: use NAME#NUMBER; there are {known}")
    mutant = mutants_of(subject)[int(number)]
    lines = print_nest(mutant.program).splitlines()
    changes = list(unified_diff(subject.lines, lines, "original", "mutant", lineterm="", n=99))
    console.print(f"{mutant.kind}: {mutant.text}", style="bold", highlight=False, markup=False)
    for line in changes or lines:
        style = {"+": "green", "-": "red"}.get(line[:1], "")
        console.print(line, style=style, highlight=False, markup=False)
    verdict = judge_mutant(subject, int(number), mutant)
    for field, value in verdict.as_dict().items():
        console.print(f"{field}: {value}", highlight=False, markup=False)


if __name__ == "__main__":
    main()
