"""Estimate from machine code what share of a GPU the schedules of kernels/ can use.

Run it as `tools/run python tools/kernel_estimates.py --help`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from sass_table import commit, fixed, is_typed, kernel_option, kernels, nvrtc_version
from sass_text import Code, Function, functions

import loopnest as ln
from loopnest.backends.cuda.toolchain.cubin import Resources
from loopnest.launch.launch_plan import LaunchConfig
from loopnest.scalar.dtypes import DType

ARCH = "sm_90"
TYPES = (ln.float32, ln.float16)

PROCESSORS = 132
BANDWIDTH = 3.35e12
LATENCY = 700e-9
CLOCK = 1.7e9
LANES = 4 * 32
REGISTERS = 1 << 16
THREADS = 2048
BLOCKS = 32
SHARED = 227 << 10

HELP = f"""Estimate from machine code what share of a GPU the schedules of kernels/ can use.

No GPU is needed: NVRTC makes the code, for {ARCH}, with each kernel's own sizes known. The GPU that
is reckoned with is an H100 SXM: {PROCESSORS} multiprocessors at {CLOCK / 1e9} GHz that issue
{LANES} instructions of threads a cycle each, {BANDWIDTH / 1e12} TB/s, {LATENCY * 1e9:.0f} ns from a
load of memory to its value.

\b
blocks           of a launch (a kernel of several has a row for each); as many of them as have
                 room on a multiprocessor at once, by registers ({REGISTERS}), threads
                 ({THREADS}) and shared memory
bytes in flight  of a multiprocessor: what its threads load before the first of them computes
an element       instructions of the innermost loop that loads (of all code where none does), by
                 the elements that it loads
bandwidth        the share of it: the least of 1, bytes in flight of all multiprocessors
                 / (bandwidth * latency), and busy multiprocessors * {LANES} * clock
                 / (instructions an element) * (bytes an element) / bandwidth
FMA              of the innermost loop: products with a sum by all instructions
"""


@dataclass(frozen=True)
class Estimate:
    """What a kernel keeps busy.

    Args:
        blocks: of the launch.
        resident: blocks that a multiprocessor has room for.
        registers: of a thread.
        spilled: bytes that it spills.
        in_flight: bytes that are loaded at once, of a multiprocessor.
        instructions: for an element that is loaded.
        bandwidth: share of it that can be used.
        products: share of the innermost loop that multiplies and adds.
    """

    blocks: int
    resident: int
    registers: int
    spilled: int
    in_flight: int
    instructions: float
    bandwidth: float
    products: float


def loaded(code: Code) -> int:
    """Return the bytes that a thread loads from global memory."""
    return sum(i.bits // 8 for i in code.instructions if i.name == "LDG")


def at_once(function: Function) -> int:
    """Return the most bytes that a thread loads before it computes with any."""
    most = running = 0
    for instruction in function.code().instructions:
        one = Code((instruction,))
        if one.floats or instruction.name == "BAR":
            running = 0
        running += loaded(one)
        most = max(most, running)
    return most


def streaming(function: Function) -> Code:
    """Return the innermost loop that loads the most; all code where no loop loads."""
    inner = [loop for loop in function.loops if not any(other < loop for other in function.loops)]
    found = [code for code in map(function.code, inner) if loaded(code)]
    return max(found, key=loaded, default=function.code())


def estimates(kernel: ln.Kernel, dtype: DType) -> list[Estimate]:
    """Return what each launch of a kernel of static sizes keeps busy."""
    whole, used = kernel.launch(), kernel.resources(ARCH)
    code = [function for _, function in sorted(functions(kernel.sass(ARCH)).items())]
    return [estimate(f, one, used, dtype) for f, one in zip(code, whole.launches, strict=True)]


def estimate(function: Function, launch: LaunchConfig, used: Resources, dtype: DType) -> Estimate:
    """Return what a launch keeps busy, whose threads have no more registers than `used`."""
    threads, blocks = math.prod(launch.block), math.prod(launch.grid)
    taken = math.ceil(used.registers / 8) * 8 * max(threads, 32)
    room = SHARED // max(launch.shared_bytes, 1)
    resident = min(REGISTERS // taken, THREADS // threads, BLOCKS, room)
    busy = min(blocks, PROCESSORS)
    there = min(blocks, resident * PROCESSORS)
    in_flight = there * threads * at_once(function)
    code = streaming(function)
    elements = loaded(code) / dtype.size
    rate = busy * LANES * CLOCK * loaded(code) / len(code) if elements else 0.0
    hot = function.hot_loop or function.code()
    products = hot.names["FFMA"] + hot.names["HFMA2"]
    return Estimate(
        blocks, resident, used.registers, used.spill_bytes, in_flight // busy,
        len(code) / elements if elements else math.nan,
        min(1.0, in_flight / (BANDWIDTH * LATENCY), rate / BANDWIDTH), products / len(hot),
    )  # fmt: skip


def rows(names: tuple[str, ...]) -> Iterator[str]:
    """Yield the row of each schedule for a GPU and each type."""
    for name, kernel in kernels().items():
        if names and name not in names:
            continue
        for schedule in [s for s in kernel.schedules if s.startswith("gpu")]:
            for dtype in TYPES if is_typed(kernel) else TYPES[:1]:
                label = f"{name}@{schedule}"
                click.echo(f"{label} {dtype}", err=True)
                launches = estimates(fixed(kernel, schedule, dtype), dtype)
                yield from [
                    f"| {label}{f', launch {n}' if len(launches) > 1 else ''} "
                    f"| {dtype} | {found.blocks} / {found.resident} "
                    f"| {found.registers} | {found.spilled} | {found.in_flight / 1024:.1f} "
                    f"| {found.instructions:.1f} | {found.bandwidth:.0%} | {found.products:.0%} |"
                    for n, found in enumerate(launches, 1)
                ]


def page(names: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield f"# What the kernels keep busy, by estimate, at commit {commit()}"
    yield ""
    yield (
        f"NVRTC {nvrtc_version()}, {ARCH}. By `tools/kernel_estimates.py`, whose help has the "
        "formulas. An estimate is no measurement: it is what latency and issue leave, "
        "caches and write-backs aside."
    )
    yield ""
    head = ("kernel", "type", "blocks / resident", "registers", "spilled", "KiB in flight",
            "instructions an element", "bandwidth", "FMA")  # fmt: skip
    yield f"| {' | '.join(head)} |"
    yield "|---|---|" + "---:|" * (len(head) - 2)
    yield from rows(names)


@click.command(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@kernel_option()
@click.option("--markdown", "out", type=click.Path(dir_okay=False, path_type=Path))
def main(names: tuple[str, ...], out: Path | None) -> None:
    lines = list(page(names))
    click.echo("\n".join(lines))
    if out is not None:
        out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
