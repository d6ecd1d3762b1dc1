"""Measure what it costs to make the CUDA text of a kernel, beside Apache TVM and loopy.

Run it as `tools/run python tools/bench_codegen.py --help`.
"""

from __future__ import annotations

import cProfile
import importlib
import importlib.metadata
import json
import math
import os
import platform
import pstats
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import StringIO
from itertools import pairwise
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from time import process_time
from typing import Any

import click
from codegen_peers import Loopy, Peer, Tvm
from rich.console import Console
from rich.table import Table

import loopnest as ln
from loopnest.lowering import pipeline

ROOT = Path(__file__).resolve().parent.parent

KERNELS: Mapping[str, tuple[int, ...]] = {
    "bias_gelu": (4096, 1024),
    "softmax": (1024, 1024),
    "layernorm": (1024, 1024),
    "transpose": (2048, 2048),
    "gemm": (1024, 1024, 1024),
}
"""Each kernel of `kernels/` and the values of its size symbols, in order of first appearance."""

SCHEDULES: Mapping[str, str] = {"gemm": "gpu_registers"}
"""The schedule with the loops of the peers' own, where that is not "gpu"."""

CHAIN = (256, 1024)
TARGETS = {"TVM": 2.0, "chain": 5.0, "import": 100.0}
"""At most: our time / TVM's; the long chain's time / the short one's; ms above NumPy's import."""

PASSES: Mapping[str, tuple[str, ...]] = {
    "groups": ("group_loops",),
    "nest": ("build_nest",),
    "allocation": ("allocate", "check_plan", "insert_allocations"),
    "indexing": ("index_tree",),
    "threads": ("circulate", "share_space", "insert_barriers", "flatten_addresses"),
    "predicates": ("statements", "check_inplace"),
    "unswitch": ("unswitch", "renumber"),
}
"""Each pass and the functions that `lower.pipeline` calls for it; other time there is "rest"."""

PHASES = ("definition", "schedule", *PASSES, "rest", "CUDA text")

WARM_UPS = 2
FEWEST = 5
BURST = 3
"""Calls of one candidate before the next has its turn: the first finds cold caches."""
BUDGET = 5.0
"""Seconds that one candidate may take; past it, it sits out the rounds beyond the fewest."""


# Our side


class FixedSizes(ln.Fusion):
    """A fusion in which size symbols are the given ints: the same math, static."""

    def __init__(self, name: str, sizes: Mapping[str, int]) -> None:
        super().__init__(name)
        self.fixed = sizes

    def size(self, call: str, extent: object) -> Any:
        return super().size(call, self.fixed.get(extent, extent))  # type: ignore[call-overload]

    def assume(self, condition: str) -> None:
        """Ignore the assumption: the sizes are known."""

    def assume_range(self, indices: Any, low: Any, high: Any) -> None:
        super().assume_range(indices, *[self.fixed.get(end, end) for end in (low, high)])


@dataclass(frozen=True)
class Ours:
    """A kernel of `kernels/`, built with symbolic sizes or, where `sizes` is given, static ones."""

    kernel: ln.KernelDef
    sizes: Mapping[str, int] | None

    def define(self) -> ln.Fusion:
        name = self.kernel.name
        fusion = ln.Fusion(name) if self.sizes is None else FixedSizes(name, self.sizes)
        with fusion:
            self.kernel.math(fusion)
        return fusion

    def scheduled(self, fusion: ln.Fusion) -> ln.Fusion:
        with fusion:
            self.kernel.schedules[SCHEDULES.get(self.kernel.name, "gpu")](fusion)
        return fusion

    def text(self) -> str:
        return ln.lower(self.scheduled(self.define())).cuda()

    def phases(self) -> dict[str, float]:
        """Return the milliseconds of each phase of one build."""
        return phases(self.define, self.scheduled)


def phases(
    define: Callable[[], ln.Fusion], schedule: Callable[[ln.Fusion], ln.Fusion]
) -> dict[str, float]:
    """Return the milliseconds that each of `PHASES` takes in one build."""
    with timed_passes() as spent:
        marks = [process_time()]
        fusion = define()
        marks.append(process_time())
        schedule(fusion)
        marks.append(process_time())
        kernel = ln.lower(fusion)
        marks.append(process_time())
        kernel.cuda()
        marks.append(process_time())
    defined, scheduled, lowered, printed = (
        1e3 * (after - before) for before, after in pairwise(marks)
    )
    found = {"definition": defined, "schedule": scheduled, **spent}
    return found | {"rest": lowered - sum(spent.values()), "CUDA text": printed}


@contextmanager
def timed_passes() -> Iterator[dict[str, float]]:
    """Add up, by pass, the milliseconds in the functions that the pipeline calls."""
    spent = dict.fromkeys(PASSES, 0.0)

    def timed(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = process_time()
            try:
                return run(*args, **kwargs)
            finally:
                spent[name] += 1e3 * (process_time() - start)

        return call

    replaced: dict[str, Callable[..., Any]] = {}
    try:
        for name, functions in PASSES.items():
            for function in functions:
                run = getattr(pipeline, function, None)
                if run is None:
                    raise click.ClickException(
                        f"loopnest.lowering.pipeline calls no {function}() any more: "
                        f"mend PASSES in {Path(__file__).name}"
                    )
                replaced[function] = run
                setattr(pipeline, function, timed(name, run))
        yield spent
    finally:
        for function, run in replaced.items():
            setattr(pipeline, function, run)


def load_kernel(name: str) -> ln.KernelDef:
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    kernel = getattr(importlib.import_module(f"kernels.{name}"), name)
    assert isinstance(kernel, ln.KernelDef)
    return kernel


def static_sizes(kernel: ln.KernelDef) -> dict[str, int]:
    symbols = Ours(kernel, None).define().symbols
    return {s.name: n for s, n in zip(symbols, KERNELS[kernel.name], strict=True)}


def define_chain(length: int) -> ln.Fusion:
    """Return `length` pointwise tensors in a row."""
    with ln.Fusion("chain") as fusion:
        tensor = fusion.input("x", ("N",), ln.float32)
        for number in range(length - 1):
            tensor = ln.tanh(tensor) if number % 2 else tensor * 1.5
        fusion.output(tensor + 1.0, "y")
    return fusion


def schedule_chain(fusion: ln.Fusion) -> ln.Fusion:
    """Give all tensors the loops of the last, and compute each in the innermost one."""
    y = fusion["y"]
    y.split(0, 128)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    fusion.tensors[1].compute_at(y, 1)
    fusion.inline_most()
    return fusion


# Measuring


@dataclass(frozen=True)
class Timing:
    """Milliseconds of several calls of one candidate."""

    best: float
    median: float
    calls: int

    @staticmethod
    def of(times: Sequence[float]) -> Timing:
        ordered = sorted(times)
        return Timing(ordered[0], ordered[len(ordered) // 2], len(ordered))


def measure(candidates: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, Timing]:
    """Time the candidates in turns, so that a busy moment of the machine strikes all alike."""
    for call in candidates.values():
        for _ in range(WARM_UPS):
            call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(-(-repeat // BURST)):
        for name, call in candidates.items():
            done = times[name]
            if len(done) >= FEWEST and sum(done) > 1e3 * BUDGET:
                continue
            for _ in range(BURST):
                start = process_time()
                call()
                done.append(1e3 * (process_time() - start))
    return {name: Timing.of(done) for name, done in times.items()}


def best_phases(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the least time of each phase, over several builds."""
    return {phase: min([run[phase] for run in runs]) for phase in PHASES}


def bench_kernel(name: str, peers: Sequence[Peer], repeat: int) -> dict[str, Any]:
    """Return sizes of a kernel, and what was measured with them static and symbolic."""
    kernel = load_kernel(name)
    sizes = static_sizes(kernel)
    static: dict[str, Callable[[], str]] = {}
    symbolic: dict[str, Callable[[], str]] = {}
    for peer in peers:
        static[peer.label] = partial(peer.text, name, tuple(sizes.values()))
        variables = peer.variables(len(sizes))
        if variables:
            symbolic[peer.label] = partial(peer.text, name, variables)
    return {
        "sizes": sizes,
        "static": _bench_case(Ours(kernel, sizes), static, repeat),
        "symbolic": _bench_case(Ours(kernel, None), symbolic, repeat),
    }


def _bench_case(
    ours: Ours, peers: Mapping[str, Callable[[], str]], repeat: int
) -> dict[str, dict[str, Any]]:
    """Return times, our time / each peer's, and our phases."""
    times = measure({"loopnest": ours.text, **peers}, repeat)
    return {
        "ms": {name: vars(timing) for name, timing in times.items()},
        "ratio": {name: times["loopnest"].best / times[name].best for name in peers},
        "phases": best_phases([ours.phases() for _ in range(repeat)]),
    }


def bench_chain(repeat: int) -> dict[str, Any]:
    """Return the phases of a short and of a long chain of pointwise tensors, and their ratio."""
    builds = [partial(phases, partial(define_chain, n), schedule_chain) for n in CHAIN]
    for build in builds:
        build()
    runs = [[build() for build in builds] for _ in range(max(FEWEST, repeat // 4))]
    best = [min([sum(run[place].values()) for run in runs]) for place in range(len(CHAIN))]
    profiles = [best_phases([run[place] for run in runs]) for place in range(len(CHAIN))]
    return {
        "ms": dict(zip(CHAIN, best, strict=True)),
        "phases": dict(zip(CHAIN, profiles, strict=True)),
        "ratio": best[1] / best[0],
    }


def bench_import(repeat: int) -> dict[str, Any]:
    """Return what fresh processes take to import NumPy and loopnest, and where the time goes."""
    taken: dict[str, list[float]] = {"numpy": [], "loopnest": []}
    for _ in range(max(FEWEST, repeat)):
        for module, times in taken.items():
            times.append(_import_ms(module))
    found = {module: Timing.of(times) for module, times in taken.items()}
    return {
        "ms": {module: vars(timing) for module, timing in found.items()},
        "above": found["loopnest"].best - found["numpy"].best,
        "loads": _import_breakdown(FEWEST),
    }


def _import_ms(module: str) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def _import_breakdown(repeat: int) -> dict[str, float]:
    """Return what `import loopnest` loads besides NumPy's modules, by their own time in ms."""
    command = [sys.executable, "-X", "importtime", "-c", "import numpy; import loopnest"]
    own: dict[str, float] = {}
    for _ in range(repeat):
        log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        _, _, after = log.partition(" | numpy\n")
        for us, name in re.findall(r"^import time: +(\d+) \| +\d+ \| +(\S+)$", after, re.MULTILINE):
            own[name] = min(int(us) / 1e3, own.get(name, math.inf))
    return dict(sorted(own.items(), key=lambda item: -item[1]))


def find_peers(wanted: bool) -> tuple[list[Peer], list[str]]:
    """Return the peers that are installed, and a line for each package: its version, or why not."""
    peers: list[Peer] = []
    notes = [f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores"]
    kinds: tuple[type[Tvm] | type[Loopy], ...] = (Tvm, Loopy)
    for kind in kinds if wanted else ():
        try:
            peers.append(kind())
        except (ImportError, AttributeError) as problem:
            notes.append(f"{kind.package} left out: {problem}")
        else:
            notes.append(f"{kind.package} {importlib.metadata.version(kind.package)}")
    return peers, notes


# Showing


def show_kernels(console: Console, results: Mapping[str, Mapping[str, Any]]) -> None:
    labels = list(
        dict.fromkeys(label for found in results.values() for label in found["static"]["ratio"])
    )
    table = Table(title="CUDA text from nothing: ms, best of the runs", title_justify="left")
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
    return f"{timing['best']:.2f}" if timing else ""


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
All in one process, warm, in turns. CPU time, and the best of the runs, since other processes \
share the machine. Ratios set static sizes beside static ones, symbolic beside symbolic."""


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

    Targets: at most twice TVM's time; the chain of 1024 tensors at most 5 times that of 256; the
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
