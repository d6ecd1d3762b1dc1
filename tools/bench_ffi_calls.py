"""Measure what calls a compiled kernel: the package's own call, or apache-tvm-ffi in its place.

Sums of small arrays, so that little but the call is left. "in its place" is a call of the package
in which apache-tvm-ffi runs the launch; what that refuses is told in
`tools/results/calls_2026-11-28.md`. Times are of the processor, in turns.

Run it as `tools/run python tools/bench_ffi_calls.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time_ns
from typing import Any

import numpy as np
import tvm_ffi

import loopnest as ln

CALLS, TURNS = 1000, 60


def kernel_of(count: int) -> ln.Kernel:
    """Return the sum of `count` arrays."""
    with ln.Fusion(f"sum_of_{count}") as f:
        first, *others = [f.input(f"x{n}", ("N",), ln.float32) for n in range(count)]
        total = first
        for other in others:
            total = total + other
        f.output(total, "y")
    return ln.lower(f)


def main() -> None:
    """Print a row for each number of arrays."""
    heads = ("arrays", "results", "own call, us", "in its place, us", "ratio", "alone, us")
    print(f"| {' | '.join(heads)} |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for count in (2, 5, 9):
        kernel = kernel_of(count)
        folder = Path(tempfile.mkdtemp()) / "export"
        kernel.export(folder, target="c", prove=False)
        alone = tvm_ffi.load_module(str(folder / f"lib{kernel.name}.so"))[kernel.name]
        arrays = [np.ones(64, np.float32) for _ in range(count)]
        given = np.empty(64, np.float32)
        for out in (None, given):
            rows = _times(kernel, alone, arrays, out, given)
            own, placed, bare = [median(times) for times in rows]
            ratio = median([a / b for a, b in zip(rows[1], rows[0], strict=True)])
            made = "made" if out is None else "given"
            print(f"| {count + 1} | {made} | {own:.2f} | {placed:.2f} | {ratio:.2f} | {bare:.2f} |")


def _times(
    kernel: ln.Kernel, alone: Any, arrays: list[Any], out: Any, given: Any
) -> list[list[float]]:
    own, placed = [ln.compile(kernel, target="c") for _ in range(2)]
    own(*arrays, out=out)
    placed(*arrays, out=out)
    assert placed._ready is not None

    def run(arrays: Any, made: Any, is_out: bool, values: Any) -> int:
        if is_out and not made[0].flags.writeable:
            return -1
        alone(*arrays, *made)
        return 0

    placed._ready._run = run  # type: ignore[assignment]
    calls: list[Callable[[], Any]] = [
        lambda: own(*arrays, out=out),
        lambda: placed(*arrays, out=out),
        lambda: alone(*arrays, given),
    ]
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(TURNS):
        for times, call in zip(found, calls, strict=True):
            start = process_time_ns()
            for _ in range(CALLS):
                call()
            times.append((process_time_ns() - start) / CALLS / 1e3)
    return found


if __name__ == "__main__":
    main()
