"""Measure what it costs to make the CUDA text of a kernel, beside Apache TVM and loopy.

Run it as `tools/run python tools/bench_codegen.py --help`.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
from collections.abc import Mapping
from io import StringIO
from typing import Any

import click
from codegen_figures import (
    BUDGET,
    CHAIN,
    KERNELS,
    PHASES,
    ROOT,
    TARGETS,
    WARM_UPS,
    Ours,
    bench_chain,
    bench_import,
    bench_kernel,
    find_peers,
    load_kernel,
    static_sizes,
)
from rich.console import Console
from rich.table import Table

import loopnest as ln


def show_kernels(console: Console, results: Mapping[str, Mapping[str, Any]]) -> None:
    labels = list(
        dict.fromkeys(label for found in results.values() for label in found["static"]["ratio"])
    )
    table = Table(title="CUDA text from nothing: ms, median of the runs", title_justify="left")
    for column in ("kernel", "sizes"):
        table.add_column(column, no_wrap=True)
    for column in ("loopnest", *labels, *(f"/ {label}" for label in labels)):
        table.add_column(column, justify="right")
    for name, found in results.items():
        for case, sizes in (("static", found["sizes"].values()), ("symbolic", found["sizes"])):
            cells = [_ms(found[case]["ms"].get(label)) for label in ("loopnest", *labels)]
            cells += [_ratio(label, found[case]["ratio"].get(label)) for label in labels]
            shown = name if case == "static" else ""
            table.add_row(shown, "x".join(map(str, sizes)), *cells, end_section=not shown)
    console.print(table)


def _ms(timing: Mapping[str, float] | None) -> str:
    return f"{timing['median']:.2f}" if timing else ""


def _ratio(label: str, ratio: float | None) -> str:
    if ratio is None:
        return ""
    most = TARGETS.get(label)
    return f"{ratio:.2f}" if most is None else _judged(f"{ratio:.2f}", ratio <= most)


def _judged(text: str, met: bool) -> str:
    return f"[green]{text}[/]" if met else f"[bold red]{text} missed[/]"


def show_phases(console: Console, title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("phase")
    for name in columns:
        table.add_column(name, justify="right")
    totals = {name: sum(found.values()) for name, found in columns.items()}
    for phase in PHASES:
        table.add_row(
            phase,
            *(
                f"{found[phase]:.2f} [dim]{found[phase] / totals[name]:4.0%}[/]"
                for name, found in columns.items()
            ),
        )
    table.add_section()
    table.add_row("in all", *(f"{total:.2f}     " for total in totals.values()))
    console.print(table)


def show_chain(console: Console, found: Mapping[str, Any]) -> None:
    short, long = CHAIN
    columns = {f"{length} tensors": found["phases"][length] for length in CHAIN}
    show_phases(console, "Chains of pointwise tensors, scheduled and inlined: ms", columns)
    most = TARGETS["chain"]
    ratio = _judged(f"{found['ratio']:.2f}", found["ratio"] <= most)
    console.print(f"{long} tensors cost {ratio} times {short} (target: at most {most:g})\n")


def show_import(console: Console, found: Mapping[str, Any], top: int = 8) -> None:
    table = Table(title="Fresh processes, ms", title_justify="left")
    table.add_column("")
    for column in ("best", "median"):
        table.add_column(column, justify="right")
    for name, timing in found["ms"].items():
        table.add_row(f"import {name}", f"{timing['best']:.0f}", f"{timing['median']:.0f}")
    console.print(table)
    above = _judged(f"{found['above']:.0f} ms", found["above"] <= TARGETS["import"])
    console.print(f"loopnest stands {above} above numpy (target: at most {TARGETS['import']:g} ms)")
    own = found["loads"]
    console.print(
        f"what it loads besides: {len(own)} modules, {sum(own.values()):.0f} ms; the largest, ms: "
        + ", ".join(f"{name} {ms:.1f}" for name, ms in list(own.items())[:top])
    )


def show_profile(console: Console, ours: Ours, repeat: int, top: int) -> None:
    """Print where the time of `repeat` builds goes, by function, per build."""
    for _ in range(WARM_UPS):
        ours.text()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(repeat):
        ours.text()
    profiler.disable()
    stats = pstats.Stats(profiler, stream=StringIO())
    total = stats.total_tt  # type: ignore[attr-defined]
    table = Table(
        title=f"{ours.kernel.name}: {1e3 * total / repeat:.2f} ms a build under the profiler",
        title_justify="left",
    )
    for column in ("calls", "own ms", "own", "ms", "with callees"):
        table.add_column(column, justify="right")
    table.add_column("function")
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])  # type: ignore[attr-defined]
    for (file, line, function), (_, calls, own, cumulative, _) in rows[:top]:
        table.add_row(
            f"{calls / repeat:.0f}",
            f"{1e3 * own / repeat:.3f}",
            f"{own / total:.1%}",
            f"{1e3 * cumulative / repeat:.3f}",
            f"{cumulative / total:.1%}",
            f"{_short(file)}:{line} {function}" if line else function,
        )
    console.print(table)


def _short(file: str) -> str:
    for start in (os.path.dirname(os.path.abspath(ln.__file__)), str(ROOT)):
        if file.startswith(start + os.sep):
            return file[len(start) + 1 :]
    return os.path.basename(file)


INCLUDED = """\
[b]What is timed.[/] loopnest: the math, the schedule, `lower` with all passes, `Kernel.cuda()`. \
TVM: tensor expressions, `create_prim_func`, a `Schedule` of the same loops, its default pipeline \
(the packed call interface included), device finalisation, CUDA source; neither host code nor \
nvcc. loopy: `make_kernel` from text, its transforms, `generate_code_v2`, OpenCL text, caches off. \
All in one process, warm, in turns. CPU time, the median of the runs. Ratios set static sizes \
beside static ones, symbolic beside symbolic."""


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--kernel",
    "-k",
    "names",
    multiple=True,
    type=click.Choice(list(KERNELS)),
    help="Only this kernel; may be given several times.",
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(["kernels", "chain", "import"]),
    help="Only this part; may be given several times.",
)
@click.option(
    "--repeat",
    "-n",
    default=30,
    show_default=True,
    type=click.IntRange(1),
    help=f"Builds a candidate; slow ones stop after {BUDGET:g} s.",
)
@click.option("--peers/--no-peers", default=True, help="Whether to build with TVM and loopy too.")
@click.option("--json", "as_json", is_flag=True, help="Print everything measured as JSON.")
@click.option(
    "--profile",
    type=click.Choice(list(KERNELS)),
    help="Instead: the functions that a kernel's build spends its time in, by cProfile.",
)
@click.option("--symbolic", is_flag=True, help="With --profile: keep the sizes symbolic.")
@click.option("--top", default=30, show_default=True, help="With --profile: how many functions.")
def main(
    names: tuple[str, ...],
    parts: tuple[str, ...],
    repeat: int,
    peers: bool,
    as_json: bool,
    profile: str | None,
    symbolic: bool,
    top: int,
) -> None:
    """Measure what it costs to make the CUDA text of a kernel from nothing.

    Of the kernels in kernels/ that this script builds with Apache TVM and loopy too: definition,
    schedule, lowering and printing, warm and in one process, with a profile by pass. Then a long
    chain of pointwise tensors beside a short one, and `import loopnest` beside `import numpy`.

    Without TVM and loopy it measures loopnest alone. They are the extra "peers"; an environment
    of their own does as well as .venv:

    \b
        python3 -m venv /tmp/peers
        /tmp/peers/bin/pip install -e '.[peers]'
        /tmp/peers/bin/python tools/bench_codegen.py

    Targets: at most TVM's time; the chain of 1024 tensors at most 5 times that of 256; the
    import at most 100 ms above NumPy's. Judge by ratios of one run, never by times of two: the
    machine is rarely quiet.

    \b
    Examples:
        tools/run python tools/bench_codegen.py
        tools/run python tools/bench_codegen.py -k softmax -n 100 --part kernels
        tools/run python tools/bench_codegen.py --profile gemm --top 40
        tools/run python tools/bench_codegen.py --json > codegen.json
    """
    console = Console()
    if profile is not None:
        kernel = load_kernel(profile)
        sizes = None if symbolic else static_sizes(kernel)
        show_profile(console, Ours(kernel, sizes), repeat, top)
        return
    found_peers, notes = find_peers(peers)
    chosen = parts or ("kernels", "chain", "import")
    result: dict[str, Any] = {"environment": notes, "targets": TARGETS}
    if "kernels" in chosen:
        result["kernels"] = {
            name: bench_kernel(name, found_peers, repeat) for name in names or KERNELS
        }
    if "chain" in chosen:
        result["chain"] = bench_chain(repeat)
    if "import" in chosen:
        result["import"] = bench_import(repeat)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        show(console, result)


def show(console: Console, result: Mapping[str, Any]) -> None:
    console.print("; ".join(result["environment"]), "\n", style="dim")
    kernels = result.get("kernels")
    if kernels:
        show_kernels(console, kernels)
        console.print(INCLUDED, "\n")
        for case in ("static", "symbolic"):
            columns = {name: found[case]["phases"] for name, found in kernels.items()}
            show_phases(console, f"loopnest by phase, {case} sizes: ms, share", columns)
    if "chain" in result:
        show_chain(console, result["chain"])
    if "import" in result:
        show_import(console, result["import"])


if __name__ == "__main__":
    main()
