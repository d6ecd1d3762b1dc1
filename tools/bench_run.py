"""Measure the "cpu" schedules on target "c", beside NumPy, torch, Apache TVM and Halide.

Before each kernel the FMA peak and the copy bandwidth of the machine are measured in the same
process: the share of this limit that a kernel reaches does not change with the machine's mood.

Run it as `tools/run python tools/bench_run.py --help`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time, sleep
from typing import Any

import click
from cpu_peers import (
    DOMAIN_SHAPES,
    DOMAIN_TARGETS,
    INDICES,
    OPERATIONS,
    PEERS,
    SIZES,
    Call,
    Peer,
    kernel_of,
    reference_of,
)
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

SHAPES: Mapping[str, Sequence[tuple[int, ...]]] = {
    **DOMAIN_SHAPES,
    "bias_gelu": [(8192, 4096), (4096,)],
    "softmax": [(4096, 4096)],
    "layernorm": [(4096, 4096), (4096,), (4096,)],
    "transpose": [(4096, 4096)],
    "gemm": [(1024, 1024), (1024, 1024)],
}
"""Each kernel and the shapes of its inputs, float32 but for indices."""

TARGETS = {
    **DOMAIN_TARGETS,
    "bias_gelu": 2.0,
    "softmax": 2.0,
    "layernorm": 2.0,
    "transpose": 2.0,
    "gemm": 3.0,
}
"""At most: our time / that of the best of TVM, Halide, torch and inductor."""

JUDGES = ("TVM", "Halide", "torch", "inductor")
BURST = 4
"""Calls of one candidate before the next has its turn; the first of them does not count."""

BY_ROWS = ("bias_gelu",)
ROWS = 64
"""Kernels whose rows stand alone; so many of them are compared with the math in float64."""

PAUSE = 0.2
"""Seconds before a turn: threads of the one before (OpenBLAS, OpenMP) wait in busy loops."""

# Measuring


@dataclass(frozen=True)
class Timing:
    """Milliseconds of calls of one candidate: wall time, and CPU time by thread.

    `turns` has the best time of each turn, of the kind that is compared; candidates that were timed
    together have as many.
    """

    best: float
    median: float
    cpu: float
    turns: tuple[float, ...]


def measure(
    candidates: Mapping[str, Call], rounds: int, threads: int, use_cpu: bool
) -> dict[str, Timing]:
    """Time the candidates in turns, so that a busy moment of the machine strikes all alike."""
    wall: dict[str, list[float]] = {name: [] for name in candidates}
    cpu: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            sleep(PAUSE)
            call()
            for _ in range(BURST - 1):
                start, busy = perf_counter(), process_time()
                call()
                wall[name].append(1e3 * (perf_counter() - start))
                cpu[name].append(1e3 * (process_time() - busy) / threads)
    return {
        name: Timing(
            min(times),
            sorted(times)[len(times) // 2],
            min(cpu[name]),
            _best_of_turns(cpu[name] if use_cpu else times),
        )
        for name, times in wall.items()
    }


def _best_of_turns(times: Sequence[float]) -> tuple[float, ...]:
    return tuple([min(times[i : i + BURST - 1]) for i in range(0, len(times), BURST - 1)])


def ratio(ours: Timing, theirs: Timing) -> tuple[float, float, float]:
    """Return the median of our time / theirs over the turns, and the quartiles around it."""
    found = sorted([a / b for a, b in zip(ours.turns, theirs.turns, strict=True)])
    last = len(found) - 1
    return found[last // 2], found[last // 4], found[(3 * last + 2) // 4]


def limit_of(name: str, moved: int, shapes: Sequence[tuple[int, ...]], threads: int) -> float:
    """Return the milliseconds that the machine takes at the least: for its bytes, for its FMAs."""
    from loopnest.backends.cpu.machine_probe import measure_machine

    now = measure_machine()
    operations = OPERATIONS.get(name, 0)
    if name == "gemm":
        operations = 2 * shapes[0][0] * shapes[0][1] * shapes[1][1]
    seconds = [moved / now.bandwidth] if now.bandwidth else []
    seconds += [operations / (now.flops * min(threads, now.cores))] if now.flops else []
    return 1e3 * max(seconds, default=0.0)


def exact_rows(name: str, arrays: Sequence[Any]) -> Any:
    """Return the first rows of a result in float64."""
    import numpy as np

    first, *others = [a.astype(np.float64) for a in (arrays[0][:ROWS], *arrays[1:])]
    return reference_of(name)(first, *others)


def error_of(result: Any, exact: Any) -> float:
    """Return the largest error of rows in units of 2^-24: of the value, or of 1 if it is less."""
    import numpy as np

    off = np.abs(np.asarray(result)[: len(exact)] - exact)
    return float((off / np.maximum(np.abs(exact), 1)).max() * 2**24)


def our_call(
    name: str, arrays: Sequence[Any], threads: int, fast_math: bool = False, **parameters: Any
) -> tuple[Call, Any]:
    """Return a call of our kernel, by parameters of its schedule, and the array it writes to."""
    import loopnest as ln

    options = {"threads": threads, "fast_math": fast_math}
    function = ln.compile(kernel_of(name).lower("cpu", **parameters), target="c", **options)
    sizes = SIZES.get(name, {})
    result = function(*arrays, **sizes)
    return (lambda: function(*arrays, out=result, **sizes)), result


def tuned_parameters(name: str, arrays: Sequence[Any]) -> dict[str, Any]:
    """Return what `ln.tune` kept of a kernel for the sizes of arrays that are nearest."""
    kernel = kernel_of(name)
    sizes = {
        axis.size.name: extent
        for tensor, array in zip(kernel.fusion("cpu").inputs, arrays, strict=True)
        for axis, extent in zip(tensor.root_domain, array.shape, strict=True)
        if not isinstance(axis.extent, int)
    }
    found: dict[str, Any] = kernel.tuned("cpu", "c", sizes)
    return found


def made_arrays(name: str) -> list[Any]:
    """Return the inputs of a kernel: normal numbers, and indices in their range."""
    import numpy as np

    draw = np.random.default_rng(0)
    return [
        draw.integers(0, INDICES[name, place], shape, np.int32)
        if (name, place) in INDICES
        else draw.standard_normal(shape, np.float32)
        for place, shape in enumerate(SHAPES[name])
    ]


def bench_kernel(
    name: str,
    peers: Sequence[Peer],
    rounds: int,
    threads: int,
    use_cpu: bool,
    fast_math: bool = False,
    tuned: bool = False,
) -> dict[str, Any]:
    """Return times of one kernel, ours and the peers', and how they relate."""
    import numpy as np

    arrays = made_arrays(name)
    call, result = our_call(name, arrays, threads, fast_math)
    candidates = {"loopnest": call}
    parameters = tuned_parameters(name, arrays) if tuned else {}
    if parameters:
        candidates["tuned"] = our_call(name, arrays, threads, fast_math, **parameters)[0]
    errors: dict[str, str] = {}
    exact = exact_rows(name, arrays) if name in BY_ROWS else None
    off: dict[str, float] = {} if exact is None else {"loopnest": error_of(result, exact)}
    for peer in peers:
        try:
            theirs, value = peer.prepare(name, arrays)
            theirs()
            found = np.asarray(value())
            difference = float(np.abs(found - result).max())
        except Exception as problem:  # a peer whose interface has changed must not stop the rest
            errors[peer.label] = f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
            continue
        # GELU by tanh is off by 5e-4; all else is rounding.
        if difference > (1e-3 if name == "bias_gelu" else 1e-3 * float(np.abs(result).max())):
            errors[peer.label] = f"its result differs by {difference:.3g}"
            continue
        candidates[peer.label] = theirs
        if exact is not None:
            off[peer.label] = error_of(found, exact)
    moved = sum(a.nbytes for a in arrays) + result.nbytes
    limit = limit_of(name, moved, SHAPES[name], threads)
    times = measure(candidates, rounds, threads, use_cpu)
    chosen = {label: t.cpu if use_cpu else t.best for label, t in times.items()}
    ours = chosen["loopnest"]
    judged = [chosen[label] for label in JUDGES if label in chosen]
    ratios = {n: ratio(times["loopnest"], t) for n, t in times.items() if n != "loopnest"}
    return {
        "shape": [list(shape) for shape in SHAPES[name]],
        "ms": {label: vars(timing) for label, timing in times.items()},
        "gbps": moved / ours / 1e6,
        "limit": limit,
        "share": limit / ours,
        "ratio": {label: ours / value for label, value in chosen.items() if label != "loopnest"},
        "turns": {label: list(found) for label, found in ratios.items()},
        "judged": ours / min(judged) if judged else None,
        "errors": errors,
        "tuned": {key: str(value) for key, value in parameters.items()},
        "off": off,
    }


def find_peers(wanted: bool, threads: int) -> tuple[list[Peer], list[str]]:
    """Return the peers that are installed, and a line for each package: its version, or why not."""
    peers: list[Peer] = []
    notes = [f"Python {platform.python_version()}, {platform.machine()}, {threads} threads"]
    for kind in PEERS if wanted else ():
        try:
            peers.append(kind(threads))
        except (ImportError, AttributeError) as problem:
            notes.append(f"{kind.package} left out: {problem}")
        else:
            notes.append(f"{kind.package} {importlib.metadata.version(kind.package)}")
    return peers, notes


# Showing


def show(
    console: Console, results: Mapping[str, Mapping[str, Any]], labels: Sequence[str], kind: str
) -> None:
    table = Table(title='"cpu" schedules on target "c": ms, and our time / theirs')
    table.add_column("kernel", no_wrap=True)
    table.add_column("shape", no_wrap=True)
    columns = (
        "loopnest",
        "GB/s",
        "of limit",
        *labels,
        *(f"/ {label}" for label in labels),
        "/ best",
    )
    for column in (*columns, "at most"):
        table.add_column(column, justify="right")
    for name, found in results.items():
        shape = " ".join("x".join(map(str, s)) for s in found["shape"])
        cells = [_ms(found, "loopnest", kind), f"{found['gbps']:.1f}", f"{found['share']:.0%}"]
        cells += [_ms(found, label, kind) for label in labels]
        cells += [_spread(found["turns"][n]) if n in found["turns"] else "" for n in labels]
        judged = found["judged"]
        met = judged is None or judged <= TARGETS[name]
        text = "" if judged is None else f"{judged:.2f}"
        cells.append(text if met else f"[bold red]{text} missed[/]")
        table.add_row(name, shape, *cells, f"{TARGETS[name]:g}")
    console.print(table)
    for name, found in results.items():
        if found["tuned"]:
            chosen = ", ".join([f"{key}={value}" for key, value in found["tuned"].items()])
            console.print(f"{name} as it was tuned: {chosen}", markup=False)
        if found["off"]:
            off = ", ".join([f"{label} {value:.1f}" for label, value in found["off"].items()])
            console.print(f"{name} errs by at most so many roundings (2^-24): {off}", markup=False)
        for label, problem in found["errors"].items():
            console.print(f"{name} by {label}: {problem}", style="red", markup=False)


def _spread(found: Sequence[float]) -> str:
    median, low, high = found
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def _ms(found: Mapping[str, Any], label: str, kind: str) -> str:
    timing = found["ms"].get(label)
    return f"{timing[kind]:.2f}" if timing else ""


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--kernel",
    "-k",
    "names",
    multiple=True,
    type=click.Choice(list(SHAPES)),
    help="Only this kernel; may be given several times.",
)
@click.option("--threads", default=2, show_default=True, type=click.IntRange(1))
@click.option(
    "--rounds",
    "-n",
    default=8,
    show_default=True,
    type=click.IntRange(1),
    help=f"Turns of each candidate, of {BURST} calls each.",
)
@click.option(
    "--peers/--no-peers", default=True, help="Whether to run NumPy, torch, TVM, Halide too."
)
@click.option(
    "--cpu", "use_cpu", is_flag=True, help="Compare CPU time by thread: for a busy machine."
)
@click.option(
    "--fast-math", is_flag=True, help="Compile ours for functions no more exact than the peers'."
)
@click.option("--tuned", is_flag=True, help="Time the parameters that `ln.tune` kept, too.")
@click.option("--json", "as_json", is_flag=True, help="Print everything measured as JSON.")
def main(
    names: tuple[str, ...],
    threads: int,
    rounds: int,
    peers: bool,
    use_cpu: bool,
    fast_math: bool,
    tuned: bool,
    as_json: bool,
) -> None:
    """Run the "cpu" schedules of kernels on target "c", beside the peers.

    "of limit" is the share of what the machine could do at that moment: the time of a copy of as
    many bytes by streaming stores, or of as many FMAs, whichever is longer, over our best time. A
    ratio is the median over the turns, with the quartiles. Peers differ in how exact their
    functions are: below the table stands what each errs by in the first rows.

    Without torch, TVM and Halide it measures what is there. They are the extra "peers"; an
    environment of their own does as well as .venv:

    \b
        python3 -m venv /tmp/peers
        /tmp/peers/bin/pip install -e '.[peers]'
        /tmp/peers/bin/python tools/bench_run.py

    All candidates run in one process, in turns, on warm memory; the best call of each counts.
    Judge by ratios of one run, never by times of two: the machine is rarely quiet.
    """
    for variable in ("OMP", "OPENBLAS", "MKL", "TVM", "HL"):  # read when their libraries are loaded
        os.environ[f"{variable}_NUM_THREADS"] = str(threads)
    os.environ["TVM_BIND_THREADS"] = "0"  # or all threads that are made later share one core
    found, notes = find_peers(peers, threads)
    results: dict[str, dict[str, Any]] = {}
    chosen = names or tuple(SHAPES)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=len(chosen))
        for name in chosen:
            progress.update(task, description=name)
            results[name] = bench_kernel(name, found, rounds, threads, use_cpu, fast_math, tuned)
            progress.advance(task)
    if as_json:
        click.echo(json.dumps({"about": notes, "kernels": results}, indent=2))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    labels = [*(["tuned"] if tuned else []), *[peer.label for peer in found]]
    show(console, results, labels, "cpu" if use_cpu else "best")
    console.print("; ".join(notes), markup=False)


if __name__ == "__main__":
    main()
