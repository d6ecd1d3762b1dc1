"""The verdicts on random cases, a line of JSON each, which parts of a run append to.

    python tools/fuzz_journal.py build/fuzz/*.jsonl > build/random_schedules.md

A part that ends early, or is ended, leaves what it judged; the next one goes on (`fuzz.py
--resume`). Of several verdicts on one case the last one counts. Files of several machines are
put together by naming them all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from fuzzing.engine import Outcome
from loopnest.devtools.fuzzing.case_lines import Case, Failure


def version() -> str:
    """Return the commit that is checked out here, and whether files differ from it."""
    here = str(Path(__file__).resolve().parent)
    command = ["git", "-C", here, "describe", "--always", "--dirty", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


class Journal:
    """The verdicts on one seed.

    Args:
        path: the file.
        targets: what cases are judged on; those of other targets are passed over.
    """

    def __init__(self, path: Path, targets: Sequence[str]) -> None:
        self.path, self.targets = path, list(targets)
        self.version = version()

    def write(self, outcome: Outcome) -> None:
        """Add a verdict."""
        failure = outcome.failure
        row = {
            "number": outcome.number, "targets": self.targets, "version": self.version,
            "case": asdict(outcome.case),
            "refused": outcome.refused, "refusals": outcome.refusals, "lowered": outcome.lowered,
            "proof": outcome.proof, "without": outcome.without, "runs": outcome.runs,
            "cuda": outcome.cuda, "blind": outcome.blind, "seconds": round(outcome.seconds, 3),
            "calls": [[*key, n] for key, n in outcome.calls.items()],
            "failure": failure and [failure.kind, failure.what, failure.line, failure.where],
        }  # fmt: skip
        if failure is None:
            del row["case"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            whole = not file.tell() or self._ends_a_line(file)
            file.write(b"\n" * (not whole) + json.dumps(row).encode() + b"\n")

    def _ends_a_line(self, file: BinaryIO) -> bool:
        """Whether the last line is whole: it is not where a part was ended as it wrote."""
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"

    def read(self) -> dict[int, Outcome]:
        """Return the verdicts so far, by number."""
        rows = rows_of(self.path) if self.path.exists() else ()
        return {row["number"]: _outcome(row) for row in rows if row["targets"] == self.targets}


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the verdicts of a file; a last line that was cut is passed over."""
    for line in path.read_text("utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def _outcome(row: dict[str, Any]) -> Outcome:
    row = {name: value for name, value in row.items() if name not in ("targets", "version")}
    case = row.pop("case", None) or {
        "name": f"case_{row['number']}",
        "math": (),
        "schedule": (),
        "sizes": (),
    }
    lists = {k: tuple(case.get(k, ())) for k in ("math", "schedule", "sizes", "head")}
    row["calls"] = Counter({(name, verdict): n for name, verdict, n in row["calls"]})
    row["refused"], row["refusals"] = tuple(row["refused"]), tuple(row["refusals"])
    row["failure"] = Failure(*row["failure"]) if row["failure"] else None
    return Outcome(case=Case(**{**case, **lists}), **row)


# The table


def page_of(files: Sequence[Path]) -> str:
    """Return the page of all verdicts that stand in some files, each named by its seed."""
    known: dict[tuple[str, int], dict[str, Any]] = {}
    for path in files:
        for row in rows_of(path):
            known[path.stem, row["number"]] = row
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (seed, _), row in sorted(known.items(), key=lambda item: item[0]):
        groups.setdefault((seed, ", ".join(row["targets"])), []).append(row)
    rows = list(known.values())
    lines = [
        f"# Random schedules, {date.today()}",
        "",
        "`python tools/fuzz.py --seed SEED --count COUNT --target TARGET --verify --resume`, in "
        "parts, put together by `python tools/fuzz_journal.py FILES`. Judged are launches against "
        "`ln.evaluate`, at divisible, ragged and empty sizes.",
        "",
        "| seed | targets | cases | lowered | CUDA texts | launches judged | "
        "proved, all sizes / named / not known | failed | seconds a case |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *[_summed(seed, targets, found) for (seed, targets), found in groups.items()],
        _summed("all", "", rows),
        "",
        *_counted("version", Counter(row.get("version", "unknown") for row in rows)),
        *_counted(
            "why there is no kernel", Counter(x for row in rows for x in row["refusals"][:1])
        ),
        *_failures(groups),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _summed(seed: str, targets: str, rows: Sequence[dict[str, Any]]) -> str:
    proofs = Counter(row["proof"] for row in rows if row["lowered"])
    seconds = sum(row.get("seconds", 0.0) for row in rows) / len(rows)
    cells = [
        seed, targets, f"{len(rows):,}", f"{sum(row['lowered'] for row in rows):,}",
        f"{sum(row['cuda'] for row in rows if 'nvrtc' in row['targets']):,}",
        f"{sum(row['runs'] for row in rows):,}",
        f"{proofs['all sizes']:,} / {proofs['named sizes']:,} / {proofs['']:,}",
        f"{sum(row['failure'] is not None for row in rows):,}", f"{seconds:.2f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _counted(what: str, counts: Counter[str]) -> Iterator[str]:
    yield from (f"| {what} | cases |", "| --- | --- |")
    yield from [f"| {name} | {count:,} |" for name, count in counts.most_common()]
    yield ""


def _failures(groups: dict[tuple[str, str], list[dict[str, Any]]]) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for (seed, _), rows in groups.items():
        for row in rows:
            if row["failure"]:
                signature = Failure(*row["failure"]).signature
                found.setdefault(signature, []).append(f"{row['number']} of {seed}")
    if found:
        yield from ("| failure | cases | the first of them |", "| --- | --- | --- |")
        for signature, cases in sorted(found.items(), key=lambda item: -len(item[1])):
            shown = " ".join(signature.split()).replace("|", "\\|")
            yield f"| {shown} | {len(cases)} | {', '.join(cases[:4])} |"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "files", nargs=-1, required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)  # fmt: skip
def main(files: tuple[Path, ...]) -> None:
    """Print one table of the verdicts that tools/fuzz.py wrote to FILES."""
    if not any(True for path in files for _ in rows_of(path)):
        shown = ", ".join(map(str, files))
        raise click.UsageError(
            f"{shown}: no verdicts; tools/fuzz.py writes them to --out/SEED.jsonl"
        )
    sys.stdout.write(page_of(files))


if __name__ == "__main__":
    main()
