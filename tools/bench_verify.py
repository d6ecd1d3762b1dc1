"""Time `loopnest.verify` on each kernel: `tools/run python tools/bench_verify.py --help`."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

import loopnest as ln
from loopnest import kir
from loopnest.base.errors import LoopnestError
from loopnest.devtools.kernel_def import kernels_of
from loopnest.proofs import superfluous_barriers, verify

HELP = """Prove every kernel and schedule of a folder, and print how long each proof takes.

Both variants of a kernel with wide accesses are proved. Barriers that order nothing are counted.
Exit status 1 where a kernel is not proved, or a proof or all of them take longer than they may.

\b
    tools/run python tools/bench_verify.py
    tools/run python tools/bench_verify.py --folder my_kernels --limit 5
"""


@click.command(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--folder",
    default="kernels",
    show_default=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where files of kernels are.",
)
@click.option("--limit", default=2.0, show_default=True, help="Seconds that one proof may take.")
@click.option("--total", default=20.0, show_default=True, help="Seconds that all may take.")
def main(folder: Path, limit: float, total: float) -> None:
    table = Table("kernel", "schedule", "status", "scope", "seconds", "barriers")
    spent, worst, bad, idle = 0.0, 0.0, 0, 0
    verify_warm()
    paths = sorted(folder.glob("*.py"))
    for path in track(paths, "proofs", console=Console(stderr=True), transient=True):
        for kernel in _kernels(path):
            schedules: list[str | None] = [*kernel.schedules]
            for schedule in schedules or [None]:
                try:
                    lowered = kernel.lower(schedule)
                except LoopnestError as error:
                    table.add_row(kernel.name, schedule or "", "no kernel", str(error)[:60], "", "")
                    continue
                start = time.perf_counter()
                report = verify(lowered)
                seconds = time.perf_counter() - start
                spent, worst = spent + seconds, max(worst, seconds)
                bad += not report.ok
                needless = len(superfluous_barriers(lowered)) if report.ok else 0
                idle += needless
                table.add_row(
                    kernel.name, schedule or "", report.status, report.scope[:50],
                    f"{seconds:.3f}", _counted(lowered, needless),
                )  # fmt: skip
    console = Console()
    console.print(table)
    console.print(f"in all {spent:.2f} s, the longest {worst:.2f} s, {bad} not proved")
    console.print(f"{idle} superfluous barriers")
    sys.exit(int(bad > 0 or worst > limit or spent > total))


def _counted(lowered: ln.Kernel, needless: int) -> str:
    count = sum(isinstance(node, kir.Barrier) for node, _ in lowered.walk())
    return f"{count}, {needless} superfluous" if needless else str(count or "")


def verify_warm() -> None:
    """Load isl before anything is timed."""
    import islpy

    islpy.Set("{ [i] : 0 <= i < 4 }").is_empty()


def _kernels(path: Path) -> tuple[ln.KernelDef, ...]:
    spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return kernels_of(spec.name)


if __name__ == "__main__":
    main()
