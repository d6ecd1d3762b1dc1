"""``loopnest check``: prove, sanitize and compare all schedules of a file or a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loopnest.devtools.cli.console_output import (
    at_sizes,
    diagnosis_lines,
    fault_lines,
    finding_lines,
    plain_console,
    print_table,
    table_of,
)
from loopnest.devtools.cli_spec import (
    Asked,
    CliError,
    FoundSchedule,
    Request,
    sentence_of,
)
from loopnest.devtools.work_farm import KernelFile, Lost, Opener, finished, opener

if TYPE_CHECKING:
    from loopnest.devtools.schedule_check import Checked
    from loopnest.proofs import Finding, Report

_MOST_FINDINGS = 3
_SHORT_SCOPE = 24


HELP = """Prove, sanitize and compare every kernel and schedule of a file or a folder.

\b
proof      isl shows, for all sizes that the assumptions allow, that each element of each output is
           computed once and rightly, without races and within bounds; where it does not find a
           proof for all sizes, every point is looked at for the small sizes that are named
sanitizer  the interpreter runs the kernel at small sizes and checks every access: bounds, elements
           that were never stored, races, barriers that not all threads reach
cost       what the file says that a schedule may cost (`@k.schedule("gpu", cost={...})`), counted
           at the kernel's sizes, or those of -D
result     the same runs, and runs in C, compared with the math and with the reference; C is
           compiled at -O0 for speed, with --release at the level of ln.compile
bits       with --invariant N: the order of each sum is shown not to depend on the size N, so that
           rows of a small batch have the same bits inside of a large one (`ln.batch_invariant`)

\b
A failure is shown with its witness: block, thread, loop values, the line of the nest, the call of
the schedule that placed it. An 'unknown' proof is no failure without --strict, nor are blocks and
threads that CUDA C++ cannot be printed for. Nothing is written.
Exit status: 0 if all is well, 1 if not.
"""


def check(
    request: Request,
    strict: bool,
    invariant: Sequence[str],
    release: bool,
    as_json: bool,
    jobs: int,
    scheduler: str | None,
) -> object:
    """Check what is asked for; see `HELP`."""
    asked = request.choose_all()
    if asked.broken and not asked.found and not asked.skipped:
        raise CliError("; ".join([sentence for _, sentence in asked.broken]))
    rows = [_Row(found, tuple(dict.fromkeys(invariant))) for found in asked.found]
    with _progress(rows, strict, as_json) as update:
        _check_rows(rows, release, opener(jobs, scheduler), update)
    _require_sizes(rows, asked)
    if not as_json:
        _print_report(rows, asked, strict)
    facts = _report(rows, asked, strict)
    failed = sum([not row.ok(strict) for row in rows])
    if failed or asked.broken:
        parts = [f"{failed} of {_count(len(rows), 'schedule')} failed"] if failed else []
        if asked.broken:
            parts.append(f"{_count(len(asked.broken), 'file')} could not be loaded")
        raise CliError(" and ".join(parts), facts)
    return facts


def _require_sizes(rows: Sequence[_Row], asked: Asked) -> None:
    """Raise CliError where ``--invariant`` names a size that none of the kernels has."""
    lowered = [row.checked for row in rows if row.checked is not None and row.checked.sizes]
    for name in rows[0].invariant if lowered else ():
        if not any(name in checked.sizes for checked in lowered):
            known = sorted({size for checked in lowered for size in checked.sizes})
            found = f"no kernel has the size '{name}'"
            raise CliError(f"--invariant {name}: {found}; their sizes are {', '.join(known)}")


def _check_rows(
    rows: Sequence[_Row],
    release: bool,
    opened: Opener | None,
    update: Callable[[_Row, str], None],
) -> None:
    """Check each row here, or by workers."""
    from loopnest.devtools.schedule_check import Checked, CheckJob, check_schedule, checked_job

    jobs = []
    files = {row.found.file: KernelFile.of(row.found.file) for row in rows if opened is not None}
    for place, row in enumerate(rows):
        choice = row.found.choice
        asked: dict[str, Any] = {
            "schedule": choice.schedule, "params": choice.params, "values": choice.values,
            "release": release, "invariant": row.invariant,
        }  # fmt: skip
        if opened is None:
            row.checked = check_schedule(choice.kernel, tell=partial(update, row), **asked)
        else:
            jobs.append(CheckJob(files[row.found.file], choice.kernel.name, asked, place))
            update(row, "waiting")
    if opened is None:
        return
    for job, found in finished(opened, checked_job, jobs):
        if isinstance(found, Lost):
            found = Checked(
                job.kernel, job.asked["schedule"], error=CliError(found.why), stage="running"
            )
        rows[job.place].checked = found


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


@dataclass(slots=True)
class _Row:
    """A schedule, of which sizes its bits must not depend, what goes on with it, its result."""

    found: FoundSchedule
    invariant: tuple[str, ...] = ()
    checked: Checked | None = None
    doing: str = field(default="")

    @property
    def label(self) -> str:
        return self.found.choice.label

    def ok(self, strict: bool) -> bool:
        """Whether it was checked and nothing is wrong."""
        return self.checked is not None and self.checked.ok(strict)


# The table


@contextmanager
def _progress(
    rows: Sequence[_Row], strict: bool, as_json: bool
) -> Iterator[Callable[[_Row, str], None]]:
    """Show the table as it grows, on a terminal; else what goes on, if errors go to one."""
    console, errors = Console(highlight=False), Console(stderr=True)

    def note(row: _Row, what: str) -> None:
        row.doing = what

    if console.is_terminal and not as_json:
        from rich.live import Live

        with Live(
            console=console,
            get_renderable=lambda: _table(rows, strict),
            transient=True,
            vertical_overflow="crop",
        ):
            yield note
    elif errors.is_terminal:
        with errors.status("") as status:

            def tell(row: _Row, what: str) -> None:
                place = f"{rows.index(row) + 1} of {len(rows)}"
                status.update(f"{place}, {row.label}: {what}")

            yield tell
    else:
        yield note


def _table(rows: Sequence[_Row], strict: bool) -> Table:
    several = len({row.found.file for row in rows}) > 1
    files = ("file",) if several else ()
    sizes = rows[0].invariant if rows else ()
    names = [f"same bits at any {size}" for size in sizes]
    table = table_of(
        *files, "kernel", "schedule", "proof", "sanitizer", "result", *names, "seconds"
    )
    table.columns[-1].justify = "right"
    for row in rows:
        choice = row.found.choice
        name = (Path(row.found.file).name,) if several else ()
        cells: tuple[Text | str, ...] = (Text(row.doing, "dim"), "", "", *["" for _ in sizes], "")
        if row.checked:
            cells = _cells(row.checked, strict, sizes)
        table.add_row(*name, choice.kernel.name, choice.schedule or "-", *cells)
    return table


def _cells(checked: Checked, strict: bool, sizes: Sequence[str]) -> tuple[Text | str, ...]:
    good, bad, odd = "green", "bold red", "yellow"
    proof = Text("-")
    if checked.error is not None and checked.stage != "running":
        proof = Text("no kernel" if checked.stage == "lowering" else "FAILED", bad)
    elif checked.proof is not None:
        status = checked.proof.status
        styles = {"proved": good, "refuted": bad, "unknown": bad if strict else odd}
        words = {"proved": _scope(checked.proof), "refuted": "REFUTED", "unknown": "unknown"}
        proof = Text(words[status], styles[status])
    sanitizer = Text("clean", good) if checked.runs else Text("-")
    result = Text("right", good) if checked.runs else Text("-")
    if checked.fault:
        sanitizer, result = Text("FAULT", bad), Text("-")
    elif checked.wrong:
        result = Text(f"WRONG on {checked.wrong[0].target}", bad)
    elif checked.error is not None and checked.stage == "running":
        result = Text("FAILED", bad)
    elif checked.cost:
        result = Text("COSTS TOO MUCH", bad)
    elif checked.runs and all(run.target != "c" for run in checked.runs):
        result = Text("right, not in C", odd)
    elif checked.unprinted:
        result = Text("right, no CUDA text", bad if strict else odd)
    claims = [_claim(checked, size) for size in sizes]
    return proof, sanitizer, result, *claims, f"{checked.seconds:.2f}"


def _claim(checked: Checked, size: str) -> Text:
    claim = checked.claims.get(size)
    if claim is None:
        return Text("-")
    return Text("yes", "green") if claim else Text(claim.status.upper(), "bold red")


def _scope(proof: Report) -> str:
    if len(proof.scope) <= _SHORT_SCOPE:
        return proof.scope
    return f"{proof.scope.count(';') + 1} sets of sizes"


# The summary


def _print_report(rows: Sequence[_Row], asked: Asked, strict: bool) -> None:
    console = plain_console()
    if rows:
        print_table(_table(rows, strict))
    for row in rows:
        if row.checked is not None and not row.ok(strict):
            console.print()
            console.print(Text(row.label, style="bold red"))
            for line in _failure_lines(row.checked, row.found.file):
                console.print(Text(f"  {line}"))
    for file, sentence in asked.broken:
        console.print()
        console.print(Text(file, style="bold red"))
        console.print(Text(f"  it cannot be loaded: {sentence}"))
    notes = [f"{row.label}: {note}" for row in rows for note in _notes(row.checked)]
    if notes or asked.skipped:
        console.print()
    for note in notes:
        console.print(Text(note, style="yellow"))
    for file, reason in asked.skipped:
        console.print(Text(f"skipped {file}: {reason}", style="dim"))
    if all(row.ok(strict) for row in rows) and not asked.broken:
        kernels = len({(row.found.file, row.found.choice.kernel.name) for row in rows})
        what = f"{_count(len(rows), 'schedule')} of {_count(kernels, 'kernel')}"
        console.print()
        console.print(Text(f"{what}: all is well" if rows else "there is nothing to check"))


def _failure_lines(checked: Checked, file: str) -> Iterator[str]:
    if checked.error is not None:
        yield sentence_of(checked.error, file)
    if checked.proof is not None and not checked.proof.ok:
        which = f", the {checked.variant} variant" if checked.variant else ""
        yield f"{checked.proof.verdict}{which}:"
        for finding in checked.proof.findings[:_MOST_FINDINGS]:
            yield from [f"  {line}" for line in finding_lines(finding)]
        more = len(checked.proof.findings) - _MOST_FINDINGS
        if more > 0:
            yield f"  and {_count(more, 'finding')} more"
    if checked.fault is not None:
        yield f"the sanitizer stopped it{at_sizes(checked.faulty)}:"
        yield from [f"  {line}" for line in fault_lines(checked.fault)]
    for run in checked.wrong:
        yield f"wrong {run}"
    if checked.cost:
        yield checked.cost
    yield from _claim_lines(checked)
    if checked.unprinted:
        yield checked.unprinted
    if checked.diagnosis is not None and checked.diagnosis.tensor:
        yield "the first tensor that differs:"
        yield from [f"  {line}" for line in diagnosis_lines(checked.diagnosis)]
    elif checked.diagnosis is not None and checked.diagnosis.ok:
        yield "every tensor of the nest has the values of the math, run by the interpreter"


def _claim_lines(checked: Checked) -> list[str]:
    texts = {size: f"{c.status}; {c.witness}" for size, c in checked.claims.items() if not c}
    return [f"whether bits depend on {size}: {text}" for size, text in texts.items()]


def _notes(checked: Checked | None) -> Iterator[str]:
    if checked is None:
        return
    proof = checked.proof
    which = f" of the {checked.variant} variant" if checked.variant else ""
    if proof is not None and proof.status == "unknown":
        first = proof.findings[0].message if proof.findings else "nothing was found"
        yield f"the proof{which} is unknown: {first}"
    elif proof is not None and proof.ok:
        ended = next((f for f in proof.findings if f.kind == "sizes"), None)
        if ended is not None or len(proof.scope) > _SHORT_SCOPE:
            yield f"the proof{which} is only for {proof.scope}"
        if ended is not None:
            yield f"{ended.message}{f' (nest line {ended.at.line})' if ended.at else ''}"
    yield from checked.notes


# JSON


def _report(rows: Sequence[_Row], asked: Asked, strict: bool) -> dict[str, Any]:
    return {
        "ok": all(row.ok(strict) for row in rows) and not asked.broken,
        "checked": [
            {"file": row.found.file, **_entry(row.checked, row.found, strict)}
            for row in rows
            if row.checked is not None
        ],
        "skipped": [{"file": file, "reason": reason} for file, reason in asked.skipped],
        "broken": [{"file": file, "error": sentence} for file, sentence in asked.broken],
    }


def _entry(checked: Checked, found: FoundSchedule, strict: bool) -> dict[str, Any]:
    diagnosis = checked.diagnosis
    error = checked.error
    return {
        "kernel": checked.kernel,
        "schedule": checked.schedule or None,
        "parameters": {name: str(value) for name, value in found.choice.params.items()},
        "ok": checked.ok(strict),
        "proof": None if checked.proof is None else _proof_entry(checked.proof),
        "variant": checked.variant or None,
        "invariant": {
            size: {"status": claim.status, "witness": str(claim.witness) if claim.witness else None}
            for size, claim in checked.claims.items()
        },
        "fault": None if checked.fault is None else str(checked.fault),
        "fault_sizes": dict(checked.faulty),
        "runs": [
            {
                "target": run.target,
                "against": run.against,
                "sizes": dict(run.sizes),
                "ok": run.ok,
                "outputs": [
                    {"name": v.name, "error": _number(v.error), "allowed": _number(v.allowed),
                     "index": list(v.place), "ok": v.ok}
                    for v in run.verdicts
                ],
            }
            for run in checked.runs
        ],
        "diagnosis": None if diagnosis is None else str(diagnosis),
        "error": None if error is None else sentence_of(error, found.file),
        "cost": checked.cost or None,
        "notes": list(checked.notes),
        "seconds": round(checked.seconds, 3),
    }  # fmt: skip


def _number(value: float) -> float | str:
    """Return a number that JSON has; others as text."""
    return value if abs(value) < float("inf") else str(value)


def _proof_entry(proof: Report) -> dict[str, Any]:
    findings = [_finding_entry(finding) for finding in proof.findings]
    return {"status": proof.status, "scope": proof.scope, "findings": findings}


def _finding_entry(finding: Finding) -> dict[str, Any]:
    found = asdict(finding)
    for place in filter(None, (found["at"], found["other"])):
        place["access"] = place["access"] or None
    placed = found.pop("origin") or None
    return {**found, "tensor": finding.tensor or None, "placed": placed}
