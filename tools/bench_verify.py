"""Time `loopnest.verify` on every kernel and schedule: tools/run python tools/bench_verify.py

Both variants of a kernel with wide accesses are proved. Barriers that order nothing are counted.

--folder kernels    files of kernels
--limit 2.0         seconds that one proof may take; exit 1 beyond
--total 20.0        seconds that all may take
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

import loopnest as ln
from loopnest import kir
from loopnest.devtools.kernel_def import kernels_of
from loopnest.errors import LoopnestError
from loopnest.proofs import superfluous_barriers, verify


@click.command()
@click.option("--folder", default="kernels", type=click.Path(exists=True, path_type=Path))
@click.option("--limit", default=2.0, help="Seconds a proof.")
@click.option("--total", default=20.0, help="Seconds in all.")
def main(folder: Path, limit: float, total: float) -> None:
    """Prove every kernel; print a table."""
    table = Table("kernel", "schedule", "status", "scope", "seconds", "barriers")
    spent, worst, bad, idle = 0.0, 0.0, 0, 0
    verify_warm()
    for path in sorted(folder.glob("*.py")):
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
