#!/usr/bin/env python
"""Both checkers of kernels on all schedules of files and on mutants of them, side by side."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from loopnest import kir
from loopnest.proofs import verify_program
from loopnest.second_checker import second_opinion
from mutation.judge import DECLARED, TooLong, at_most, mutants_of
from mutation.subjects import Key, Subject, keys_in, load, random_keys

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT / "kernels", ROOT / "tests" / "mutation" / "kernels")
Row = dict[str, Any]

HELP = """Ask both checkers of the same nests: the proofs, and loopnest.second_checker.

Each schedule of the kernels in --folder is judged as it was lowered, and --limit of its mutants,
drawn by --seed; random kernels under random schedules likewise. A nest that is proved and wrong to
the second checker is a disagreement: one of the two is broken. What is refuted and right at the
sizes that the second checker tried is counted by the kind of change: it may be wrong at other sizes
alone, or in what it declares. Every answer is written to --journal at once, and what stands there
is not asked again.

\b
    tools/run python tools/second_opinions.py --limit 20 --random 100
    tools/run python tools/second_opinions.py --part 2/4
    tools/run python tools/second_opinions.py --table build/second_*.jsonl > table.md
"""


@click.command(help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("journals", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--folder", "folders", multiple=True, default=FOLDERS, show_default=True,
              type=click.Path(exists=True, path_type=Path), help="Files of kernels.")  # fmt: skip
@click.option("--limit", default=20, show_default=True, help="How many mutants a program.")
@click.option("--random", "randoms", default=0, help="How many random kernels, too.")
@click.option("--seed", default=0, show_default=True, help="Of random kernels and of --limit.")
@click.option("--part", default="1/1", show_default=True, help="Which part of the programs.")
@click.option("--seconds", default=20.0, show_default=True, help="How long an answer may take.")
@click.option("--most", default=300_000, show_default=True, help="Statements a run at most.")
@click.option("--journal", default=ROOT / "build" / "second_opinions.jsonl", show_default=True,
              type=click.Path(path_type=Path), help="Where answers are written.")  # fmt: skip
@click.option("--table", is_flag=True, help="Print the table of JOURNALS; ask nothing.")
def main(
    journals: tuple[Path, ...], folders: tuple[Path, ...], limit: int, randoms: int, seed: int,
    part: str, seconds: float, most: int, journal: Path, table: bool,
) -> None:  # fmt: skip
    if table:
        rows = [row for file in journals for row in read(file)]
        print(markdown(rows))
        raise SystemExit(1 if any(map(disagrees, rows)) else 0)
    keys = [key for folder in folders for key in keys_in(folder)] + list(random_keys(randoms, seed))
    place, parts = [int(number) for number in part.split("/")]
    known = {(row["program"], row["number"]) for row in read(journal)}
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("a", encoding="utf-8") as file:
        for key in keys[place - 1 :: parts]:
            for row in asked(key, limit, seed, known, seconds, most):
                file.write(json.dumps(row) + "\n")
                file.flush()


def read(journal: Path) -> list[Row]:
    """Return the answers in a journal; a line that was cut off is left out."""
    lines = journal.read_text("utf-8").splitlines() if journal.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def asked(
    key: Key, limit: int, seed: int, known: set[tuple[str, int]], seconds: float, most: int
) -> Iterator[Row]:
    """Yield the answers on a program and its mutants that are not known."""
    subject = load(key)
    if subject is None:
        return
    mutants = mutants_of(subject)
    chosen = Random(f"{seed} {key.name}").sample(range(len(mutants)), min(limit, len(mutants)))
    for number in (-1, *chosen):
        if (key.name, number) in known:
            continue
        row: Row = {"program": key.name, "number": number, "kind": "none", "change": ""}
        program = subject.program
        if number >= 0:
            mutant = mutants[number]
            program = mutant.program
            row |= {"kind": mutant.kind, "change": mutant.text}
        yield {**row, **answers(program, subject, seconds, most)}


def answers(program: kir.Program, subject: Subject, seconds: float, most: int) -> Row:
    """Return what both checkers say of a program."""
    row: Row = {}
    for which in ("first", "second"):
        started = time.process_time()
        try:
            with at_most(seconds):
                if which == "first":
                    report = verify_program(program, subject.math)
                    row[which], found = report.status, str(report)
                else:
                    opinion = second_opinion(program, subject.math, most)
                    row[which], found = opinion.status, str(opinion)
        except TooLong:
            row[which], found = "unknown", f"no answer within {seconds:g} s"
        except Exception as error:  # no checker may break, whatever it is given
            row[which], found = "error", f"{type(error).__name__}: {error}"
        row[f"{which}_says"] = found[:600]
        row[f"{which}_seconds"] = round(time.process_time() - started, 2)
    return row


def disagrees(row: Row) -> bool:
    """Whether one of the checkers must be broken."""
    proved_wrong = row["first"] == "proved" and row["second"] == "wrong"
    return proved_wrong or "error" in (row["first"], row["second"])


def markdown(rows: list[Row]) -> str:
    """Return the tables of answers."""
    lines = ["# Two checkers, side by side", ""]
    for title, chosen in (
        ("Schedules", [row for row in rows if row["number"] < 0]),
        ("Mutants", [row for row in rows if row["number"] >= 0]),
    ):
        lines += [f"## {title}", "", *counted(chosen), ""]
    unseen = [r for r in rows if r["first"] == "refuted" and r["second"] == "right"]
    lines += ["## Refuted, and right at the sizes that were tried, by the kind of change", ""]
    lines += ["| change | mutants | of them tiles not crossed | declared only |"]
    lines += ["| --- | --- | --- | --- |"]
    small = Counter(row["kind"] for row in unseen if "which was not tried" in row["second_says"])
    for kind, count in Counter(row["kind"] for row in unseen).most_common():
        lines.append(f"| {kind} | {count} | {small[kind]} | {'yes' if kind in DECLARED else ''} |")
    lines += ["", "## Disagreements", ""]
    lines += [told(row) for row in rows if disagrees(row)] or ["None."]
    return "\n".join(lines)


def counted(rows: list[Row]) -> list[str]:
    """Return how many rows have each pair of answers, as a table."""
    pairs: Mapping[tuple[str, str], int] = Counter((r["first"], r["second"]) for r in rows)
    second = [
        name for name in ("right", "wrong", "unknown", "error") if any(b == name for _, b in pairs)
    ]
    lines = ["| proofs | " + " | ".join(f"second: {name}" for name in second) + " |"]
    lines.append("| --- |" + " --- |" * len(second))
    for first in ("proved", "refuted", "unknown", "error"):
        numbers = [pairs.get((first, name), 0) for name in second]
        if any(numbers):
            lines.append(f"| {first} | " + " | ".join(map(str, numbers)) + " |")
    times = [sum(row[f"{which}_seconds"] for row in rows) for which in ("first", "second")]
    total = (
        f"{len(rows)} nests; processor time {times[0]:.0f} s of proofs, {times[1]:.0f} s of runs."
    )
    return [*lines, "", total]


def told(row: Row) -> str:
    """Return a disagreement as a line."""
    name = row["program"] if row["number"] < 0 else f"{row['program']}#{row['number']}"
    return (
        f"- `{name}` ({row['kind']}: {row['change']}): {row['first_says']} / {row['second_says']}"
    )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
