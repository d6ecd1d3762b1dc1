#!/usr/bin/env python
"""Measure the oracle: `tools/run python tools/bench_oracle.py --help`."""

from __future__ import annotations

import importlib
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import loopnest as ln  # noqa: E402
from loopnest.devtools.harness import make_arguments  # noqa: E402


def measured(call: Callable[[], Any]) -> tuple[Any, int, float]:
    """Return what a call gives, the most bytes that it holds at once, and its seconds."""
    tracemalloc.start()
    start = time.perf_counter()
    try:
        found = call()
        return found, tracemalloc.get_traced_memory()[1], time.perf_counter() - start
    finally:
        tracemalloc.stop()


HELP = """Measure the memory and the time that the oracle takes, at the kernels' own sizes.

NAMES are kernels of kernels/ [all]. Memory is the most that numpy holds at once, beside the inputs
and outputs of the kernel; the ratio of the two says what an evaluation costs.

\b
    tools/run python tools/bench_oracle.py
    tools/run python tools/bench_oracle.py softmax gemm --bound
"""


KERNELS = sorted(path.stem for path in (ROOT / "kernels").glob("[a-z]*.py"))


@click.command(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.argument("names", nargs=-1, type=click.Choice(KERNELS), metavar="[NAMES]...")
@click.option("--bound", is_flag=True, help="Measure ln.error_bound instead of ln.evaluate.")
def main(names: tuple[str, ...], bound: bool) -> None:
    table = Table("kernel", "inputs, outputs [MiB]", "peak [MiB]", "ratio", "seconds")
    for name in names or KERNELS:
        kernel = getattr(importlib.import_module(f"kernels.{name}"), name)
        fusion = kernel.fusion()
        arguments = make_arguments(fusion, kernel.sizes, kernel.ranges)
        keywords = arguments.keywords(fusion)
        call = ln.error_bound if bound else ln.evaluate
        result, peak, seconds = measured(partial(call, fusion, *arguments.arrays, **keywords))
        outputs = result if isinstance(result, tuple) else (result,)
        kinds = [tensor.dtype.size for tensor in fusion.outputs]
        whole = sum(array.nbytes for array in arguments.arrays)
        whole += sum(a.size * size for a, size in zip(outputs, kinds, strict=True))
        mib = 2.0**20
        row = (whole / mib, peak / mib, peak / whole, seconds)
        table.add_row(name, *[f"{value:.2f}" for value in row])
    Console().print(table)


if __name__ == "__main__":
    main()
