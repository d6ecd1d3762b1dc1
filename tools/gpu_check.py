"""Check and measure every kernel on this machine's GPU.

Run it as `tools/run python tools/gpu_check.py --help`.
"""

from __future__ import annotations

import datetime
import importlib.util
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from gpu_peers import PeerTimes, Torch
from gpu_tools import CHECKS, Counters, child, count, find, sanitize
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import loopnest as ln
from loopnest.checking import trial_sizes
from loopnest.errors import LoopnestError
from loopnest.kernel import Kernel, compile, lower
from loopnest.runtime import driver
from loopnest.script import KernelDef, kernels_of
from loopnest.trial import judge, make_arguments, oracle

ROOT = Path(__file__).resolve().parent.parent

HELP = """Check and measure every kernel on this machine's GPU, and write a table of it.

For each kernel and schedule in --folder that has a CUDA form:

\b
1. results  at small, odd sizes and at large ones, on arrays of the host, against the oracle
2. checks   compute-sanitizer: memcheck, racecheck, synccheck, initcheck, at small sizes
3. times    at large sizes; beside the time in which a copy moves as many bytes, torch,
            and torch.compile (Triton)
4. counts   Nsight Compute: bytes of memory against those that must move, conflicts of banks

\b
    tools/run python tools/gpu_check.py                       # all of it
    tools/run python tools/gpu_check.py --only softmax        # one kernel, all schedules
    tools/run python tools/gpu_check.py --only gemm@gpu --skip checks --skip counts

What is not installed (torch, compute-sanitizer, ncu) leaves its columns empty. The table goes to
tools/results/gpu_DEVICE_DATE.md. Exit status: 0, or 1 where a result is wrong or a check is not
clean, or 2 where there is no GPU.
"""

LARGE_BYTES = 256 << 20
"""What a launch that is timed moves at least: more than the caches hold."""

LARGE = {"gemm": {"M": 4096, "N": 4096, "K": 4096}, "lstm_cell": {"B": 512, "K": 2048, "H": 2048}}
"""Sizes of kernels that are not bound by memory."""

STEPS = ("results", "checks", "times", "counts")


@dataclass(frozen=True)
class Subject:
    """A schedule of a kernel: where it is, its name (``softmax@gpu``), what it was lowered to."""

    file: Path
    definition: KernelDef
    schedule: str
    kernel: Kernel

    @property
    def name(self) -> str:
        return f"{self.definition.name}@{self.schedule}" if self.schedule else self.definition.name

    def small(self) -> list[dict[str, int]]:
        """Return small sizes: tiles crossed by one element, hardly begun, filled exactly."""
        return [dict(sizes) for sizes in trial_sizes(self.kernel.program)]

    def large(self) -> dict[str, int]:
        """Return sizes at which what a launch moves does not fit into a cache."""
        sizes = {**self.definition.sizes, **LARGE.get(self.definition.name, {})}
        names = [p.name for p in self.kernel.params if p.kind == "size" and p.name in sizes]
        while self.definition.name not in LARGE and names and self.moved(sizes) < LARGE_BYTES:
            sizes[names[0]] *= 2
        return sizes

    def moved(self, sizes: Mapping[str, int]) -> int:
        """Return the bytes that a launch must move: every input and output once."""
        total = 0
        for param in self.kernel.params:
            if param.kind in ("input", "output") and param.shape is not None:
                extents = [ln_size(size, sizes) for size in param.shape]
                total += math.prod(extents) * param.dtype.size
        return total


def ln_size(size: Any, sizes: Mapping[str, int]) -> int:
    from loopnest.arguments import size_value

    return size if isinstance(size, int) else size_value(size, sizes)


@dataclass(frozen=True)
class Row:
    """What was found of one subject; fields are empty where a step was left out."""

    name: str
    results: str = ""
    checks: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    moved: int = 0
    seconds: float | None = None
    peers: PeerTimes = field(default_factory=lambda: PeerTimes(None, None))
    counters: Counters | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        bad = [c for c in self.checks.values() if c not in ("clean", "-")]
        return self.results in ("", "right") and not bad


# What there is


def subjects(folder: Path, only: Sequence[str], tell: Console) -> Iterator[Subject]:
    """Yield the schedules that have a CUDA form; say why others have none."""
    for file in sorted(folder.glob("*.py")):
        for definition in load(file):
            for schedule in list(definition.schedules) or [""]:
                label = f"{definition.name}@{schedule}"
                if only and not {definition.name, label} & set(only):
                    continue
                try:
                    kernel = lower(definition.fusion(schedule or None))
                    kernel.cuda()
                except LoopnestError as error:
                    tell.print(f"[dim]{label} is left out: {error}[/dim]", highlight=False)
                else:
                    yield Subject(file, definition, schedule, kernel)


def load(file: Path) -> tuple[KernelDef, ...]:
    """Return the kernels that a file defines."""
    spec = importlib.util.spec_from_file_location(f"gpu_check_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return kernels_of(spec.name)


# The steps


def compare(subject: Subject) -> str:
    """Return "right", or how the first wrong result differs."""
    fusion = subject.definition.fusion(subject.schedule or None)
    function = compile(subject.kernel, target="cuda")
    for sizes in (*subject.small(), subject.definition.sizes):
        arguments = make_arguments(fusion, {**subject.definition.sizes, **sizes},
                                   subject.definition.ranges)  # fmt: skip
        wanted = oracle(fusion, arguments)
        if wanted is None:
            continue
        actual = function(*arguments.fresh(), **arguments.keywords(fusion))
        for verdict in judge(fusion, arguments.sizes, actual, wanted):
            if not verdict.ok:
                found = ", ".join([f"{k}={v}" for k, v in sizes.items()])
                return f"wrong at {found}: {verdict}"
    return "right"


def check(subject: Subject) -> dict[str, str]:
    """Return what each check of compute-sanitizer says, at the most telling small sizes."""
    sizes = next(iter(subject.small()), dict(subject.definition.sizes))
    command = child(subject.file, subject.name, sizes)
    return {name: sanitize(name, command) for name in CHECKS}


def measure(subject: Subject, torch: Torch | None) -> tuple[float, PeerTimes]:
    """Return the seconds of a launch at large sizes, and those of torch on the same arrays."""
    fusion = subject.definition.fusion(subject.schedule or None)
    arguments = make_arguments(fusion, subject.large(), subject.definition.ranges)
    function = compile(subject.kernel, target="cuda")
    found = function.bench(*arguments.arrays, **arguments.keywords(fusion))
    none = PeerTimes(None, None)
    peers = none if torch is None else torch.times(subject.definition.name, arguments.arrays)
    return found.seconds, peers


def copy_bandwidth(torch: Torch | None) -> float:
    """Return the bytes a second of a copy: the better of torch's and of a kernel of ours."""
    import numpy as np

    types = ln.ParallelType
    with ln.Fusion("copy") as f:
        y = f.output(f.input("x", ("N",), ln.float32), "y")
    y.split(0, 4)
    y.split(0, 256)
    y.parallelize({0: types.grid_x, 1: types.block_x, 2: types.vectorize})
    found = compile(f, target="cuda").bench(np.zeros(1 << 28, np.float32))
    ours = found.bytes / found.seconds
    return ours if torch is None else max(ours, torch.copy_bandwidth())


def once(place: str, sizes: Mapping[str, int]) -> None:
    """Run one kernel once: what the tools watch."""
    file, _, name = place.rpartition(":")
    wanted, _, schedule = name.partition("@")
    definition = next(d for d in load(Path(file)) if d.name == wanted)
    fusion = definition.fusion(schedule or None)
    arguments = make_arguments(fusion, {**definition.sizes, **sizes}, definition.ranges)
    compile(fusion, target="cuda")(*arguments.arrays, **arguments.keywords(fusion))


# The table


def markdown(rows: Sequence[Row], device: driver.Device, bandwidth: float | None, day: str) -> str:
    """Return the report: what was measured on, what each column means, one line a schedule."""
    copy = "not measured" if bandwidth is None else f"{bandwidth / 1e9:.0f} GB/s"
    lines = [
        f"# Kernels on {device.name}",
        "",
        f"{day}; {device.arch}, {device.multiprocessors} multiprocessors; "
        f"copy bandwidth (read and written): {copy}; commit {commit()}.",
        "",
        "- results: against the oracle, at small and large sizes; checks: compute-sanitizer's "
        + ", ".join(CHECKS),
        "- of copy: the time in which a copy moves the bytes that must move / our time",
        "- torch, Triton: our time / that of torch, and of torch.compile",
        "- memory: bytes that Nsight Compute counted / those that must move; conflicts: of banks",
        "",
        "| kernel | results | checks | sizes | time | GB/s | of copy | torch | Triton | memory "
        "| conflicts |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *[_line(row, bandwidth) for row in rows],
    ]
    return "\n".join(lines) + "\n"


def commit() -> str:
    """Return the commit that is measured, marked where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _line(row: Row, bandwidth: float | None) -> str:
    bad = [f"{k}: {v}" for k, v in row.checks.items() if v not in ("clean", "-")]
    ran = [k for k, v in row.checks.items() if v != "-"]
    checks = "; ".join(bad) or ("clean" if ran else "")
    sizes = ", ".join([f"{k}={v}" for k, v in row.sizes.items()])
    cells = [row.name, row.results, checks, sizes, *_times(row, bandwidth), *_counts(row)]
    return f"| {' | '.join([cell.replace('|', '/') for cell in cells])} |"


def _times(row: Row, bandwidth: float | None) -> list[str]:
    if row.seconds is None:
        return [""] * 5
    eager, compiled = [
        "" if other is None else f"{row.seconds / other:.2f}"
        for other in (row.peers.eager, row.peers.compiled)
    ]
    share = "" if bandwidth is None else f"{row.moved / bandwidth / row.seconds:.0%}"
    rate = f"{row.moved / row.seconds / 1e9:.0f}"
    return [f"{row.seconds * 1e6:.1f} µs", rate, share, eager, compiled]


def _counts(row: Row) -> list[str]:
    if row.counters is None:
        return ["", ""]
    return [f"{row.counters.bytes / row.moved:.2f}", f"{row.counters.conflicts:.0f}"]


# The command


def examine(subject: Subject, steps: Sequence[str], torch: Torch | None, tell: Any) -> Row:
    """Return what the steps find of one subject; an error is its result."""
    row = Row(subject.name)
    try:
        if "results" in steps:
            tell(f"{subject.name}: results")
            row = replace(row, results=compare(subject))
        if "checks" in steps:
            tell(f"{subject.name}: compute-sanitizer")
            row = replace(row, checks=check(subject))
        if {"times", "counts"} & set(steps):
            sizes = subject.large()
            row = replace(row, sizes=sizes, moved=subject.moved(sizes))
        if "times" in steps:
            tell(f"{subject.name}: times")
            seconds, peers = measure(subject, torch)
            row = replace(row, seconds=seconds, peers=peers)
        if "counts" in steps:
            tell(f"{subject.name}: ncu")
            command = child(subject.file, subject.name, row.sizes)
            row = replace(row, counters=count(subject.kernel.name, command))
    except LoopnestError as error:
        row = replace(row, results=f"failed: {error}")
    return row


def torch_here(tell: Console) -> Torch | None:
    try:
        return Torch()
    except ImportError as error:
        tell.print(f"[dim]no comparison with torch: {error}[/dim]", highlight=False)
        return None


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
@click.option(
    "--out",
    default=ROOT / "tools" / "results",
    show_default="tools/results",
    type=click.Path(path_type=Path),
    help="Where the table goes.",
)
@click.option("--once", "place", metavar="FILE:KERNEL[@SCHEDULE]", hidden=True)
@click.option("--size", "given", multiple=True, metavar="N=100", hidden=True)  # fmt: skip
def main(
    folder: Path, only: tuple[str, ...], skip: tuple[str, ...], out: Path, place: str | None,
    given: tuple[str, ...],
) -> None:  # fmt: skip
    console = Console(stderr=True)
    missing = driver.obstacle()
    if missing is not None:
        console.print(f"gpu_check: {missing}. It checks kernels on a GPU; run it where there is "
                      "one. Everything else is checked by tools/run pytest.",
                      highlight=False)  # fmt: skip
        sys.exit(2)
    if place is not None:
        once(place, {k: int(v) for k, _, v in [text.partition("=") for text in given]})
        return
    sys.exit(0 if report(folder, only, skip, out, console) else 1)


def report(
    folder: Path, only: Sequence[str], skip: Sequence[str], out: Path, console: Console
) -> bool:
    """Examine all subjects, write the table; return whether nothing is wrong."""
    device = driver.find_driver().device
    steps = [step for step in STEPS if step not in skip]
    for step, tool in (("checks", "compute-sanitizer"), ("counts", "ncu")):
        if step in steps and find(tool) is None:
            console.print(f"[dim]no {step}: {tool} was not found[/dim]", highlight=False)
    torch = torch_here(console) if "times" in steps else None
    chosen = list(subjects(folder, only, console))
    bandwidth = copy_bandwidth(torch) if "times" in steps else None
    rows = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("kernels", total=len(chosen))
        for subject in chosen:
            row = examine(subject, steps, torch,
                          lambda text: progress.update(task, description=text))  # fmt: skip
            rows.append(row)
            progress.advance(task)
            if not row.ok:
                console.print(f"[red]{row.name}[/red]: {row.results} {dict(row.checks)}")
    day = datetime.date.today().isoformat()
    text = markdown(rows, device, bandwidth, day)
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"gpu_{device.name.replace(' ', '_')}_{day}.md"
    target.write_text(text)
    console.print(f"written to {target}", highlight=False)
    return all(row.ok for row in rows)


if __name__ == "__main__":
    main()
