"""Run KernelBench: `tools/run python tools/bench_kernelbench.py --help`."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import multiprocessing
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import loopnest as ln

# How far a result may lie from torch's in float64: by the bound of the math, else by eager
#
# The bound (`ln.error_bound`) holds for every correct kernel of the graph that torch.compile hands
# over, whatever its schedules: a result lies within it of the math of that graph (`ln.evaluate`).
# That math lies within it, or eager's largest distance, of torch's float64: both round constants to
# float32. Where there is no bound (an operator that torch computes; a quotient whose divisor may be
# 0) eager's distance alone tells what float32 can do.


EAGER_FACTOR = 4.0
"""How many times eager's largest distance a result may lie off where there is no bound: sums in
another order, of as many terms."""


@dataclass(frozen=True)
class Judge:
    """What is allowed of the results of a problem.

    Args:
        exact: torch's results in float64.
        math: those of the graph in float64; None where it has no math.
        bounds: for each of them how far each element may lie off; None likewise.
        eager: the largest distance of eager's result from each of them.
        why: why there are no bounds; "" where there are.
    """

    exact: Sequence[Any]
    math: Sequence[Any | None]
    bounds: Sequence[Any | None]
    eager: Sequence[float]
    why: str

    def error(self, found: Any) -> float:
        """Return the largest error in units of what is allowed: 1 and below are right."""
        rows = zip(listed(found), self.exact, self.math, self.bounds, self.eager, strict=True)
        return max(
            _error(a, exact, value, bound, EAGER_FACTOR * far)
            for a, exact, value, bound, far in rows
        )

    def by(self) -> str:
        """Return by what results are judged."""
        if self.why:
            return f"eager's distance: {self.why}"
        unbounded = sum(int(bound.isinf().sum()) for bound in self.bounds if bound is not None)
        whole = sum(exact.numel() for exact in self.exact)
        part = f", {unbounded} of {whole} elements by eager's distance" if unbounded else ""
        return f"the bound{part}"


def judge_of(model: Callable[..., Any], inputs: Sequence[Any], exact: Any) -> Judge:
    """Return what is allowed of a compiled model.

    Args:
        model: the model itself, in float32.
        inputs: its arguments.
        exact: its results in float64.
    """
    from loopnest.torch.function_bounds import function_math

    wanted = listed(exact)
    found = listed(model(*inputs))
    eager = [_largest(_distance(a, b)) for a, b in zip(found, wanted, strict=True)]
    try:
        math = function_math(model, inputs, "the model")
        values = math.returned(ln.evaluate(math.fusion, *math.arrays, exact=True))
        bounds = math.returned(ln.error_bound(math.fusion, *math.arrays, target="c"))
    except Exception as error:  # of the math of the graph: it has none, then
        why = " ".join(str(error).split())[:120]
        return Judge(wanted, [None] * len(wanted), [None] * len(wanted), eager, why)
    return Judge(wanted, listed(values), listed(bounds), eager, "")


def listed(found: Any) -> list[Any]:
    """Return results as a list."""
    return list(found) if isinstance(found, (tuple, list)) else [found]


def _distance(found: Any, exact: Any) -> Any:
    """Return how far each element lies off: 0 where both are the same, NaN and infinities too."""
    import torch

    a, b = found.double(), exact.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, torch.zeros_like(a), (a - b).abs().nan_to_num(math.inf, math.inf))


def _largest(values: Any) -> float:
    return float(values.max()) if values.numel() else 0.0


def _error(
    found: Any, exact: Any, of_math: Any | None, bound: Any | None, otherwise: float
) -> float:
    """Return the largest distance in units of what is allowed: the bound where it is finite."""
    import torch

    if found.shape != exact.shape:
        return math.inf
    away = _distance(found, exact)
    if of_math is None or bound is None:
        return _largest(_units(away, torch.full_like(away, otherwise)))
    allowed = torch.where(bound.isinf(), torch.full_like(away, otherwise), bound)
    near = torch.where(bound.isinf(), away, _distance(found, of_math))
    meant = _units(_distance(of_math, exact), allowed.clamp(min=otherwise))
    return max(_largest(_units(near, allowed)), _largest(meant))


def _units(away: Any, allowed: Any) -> Any:
    """Return distances in units of what is allowed; infinite where that is 0."""
    import torch

    return torch.where(away > 0, away / allowed, torch.zeros_like(away))


# The table of a run of KernelBench: rows, sums and remarks of what was found
#
# A row is what is known of a problem, by name; what was not asked for is missing.


LIMITS = (
    "problems that are not judged by the bound alone, that no kernel computes alone, wrong ones, "
    "those without a proof for all sizes, and those below half of eager's speed"
)


def is_right(row: Mapping[str, Any]) -> bool:
    return bool(row.get("error_of_generated", math.inf) <= 1)


def is_generated(row: Mapping[str, Any]) -> bool:
    return is_right(row) and not row["not_generated"] and row["launches"] > 0


def cells(row: Mapping[str, Any]) -> list[str]:
    def shown(key: str) -> str:
        value = row.get(key)
        return "" if value is None else f"{value:.2f}"

    right = "right" if is_right(row) else "WRONG" if "error_of_generated" in row else "failed"
    generated = "yes" if is_generated(row) else "no" if "not_generated" in row else ""
    proved = f"{row['proved']}/{row['kernels']}" if "proved" in row else ""
    symbolic = f"{row['all_sizes']}/{row['symbolic']}" if row.get("symbolic") else ""
    times = [shown(f"{key}_ms") for key in ("eager", "inductor", "library", "generated")]
    name = str(row["problem"])
    return [
        name.split("_")[0],
        name.split("_", 1)[1].strip("_").replace("_", " ")[:48],
        right,
        " / ".join([f"{row[key]:.2g}" for key in _ERRORS if key in row]),
        generated,
        proved,
        symbolic or ("no" if "all_sizes" in row else ""),
        ", ".join(row.get("schedules", [])),
        shown("first_call_s"),
        *times,
    ]


_ERRORS = ("error_of_generated", "error_of_eager")
HEADINGS = (
    *(
        "",
        "problem",
        "result",
        "of what is allowed / eager",
        "generated",
        "proved",
        "for all sizes",
        "schedules",
    ),
    "first call, s",
    *("eager, ms", "inductor, ms", "library, ms", "generated, ms"),
)


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(*HEADINGS)
    for row in rows:
        table.add_row(*cells(row))
    return table


def summary_of(rows: Sequence[Mapping[str, Any]]) -> str:
    right, generated = sum(map(is_right, rows)), sum(map(is_generated, rows))
    proofs = [r for r in rows if "proved" in r and is_generated(r)]
    proved = sum(r["proved"] == r["kernels"] for r in proofs)
    lines = [f"{len(rows)} problems: {right} right, {generated} right and generated"]
    if proofs:
        lines.append(f"every kernel proved at its sizes: {proved} of the generated ones")
    symbolic = [r for r in rows if "all_sizes" in r]
    if symbolic:
        whole = sum(r["symbolic"] == r["all_sizes"] > 0 for r in symbolic)
        lines.append(f"compiled for symbolic sizes and proved for all of them: {whole}")
    for key, name in (("library", "with library=True"), ("generated", "with library=False")):
        ratios = [r["eager_ms"] / r[f"{key}_ms"] for r in rows if r.get(f"{key}_ms")]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            lines.append(f"speed over eager, {name}: {mean:.2f} (geometric mean)")
    ratios = [r["inductor_ms"] / r["library_ms"] for r in rows if r.get("inductor_ms")]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"speed over inductor, with library=True: {mean:.2f} (geometric mean)")
    return "\n".join(lines)


def remarks_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each problem that falls short, with its reason."""
    lines = []
    for row in rows:
        reasons = [row["error"]] if "error" in row else []
        reasons += row.get("not_generated", [])
        if "error_of_generated" in row and not is_right(row):
            reasons.append(f"{row['error_of_generated']:.3g} times the error allowed")
        if row.get("judged_by", "the bound") != "the bound":
            reasons.append(f"judged by {row['judged_by']}")
        if row.get("all_sizes", 1) < row.get("symbolic", 1):
            reasons.append(f"proved for all sizes: {row['all_sizes']} of {row['symbolic']} kernels")
        if "why" in row:
            reasons.append(row["why"])
        if row.get("library_ms", 0) > 2 * row.get("eager_ms", math.inf):
            ratio = row["eager_ms"] / row["library_ms"]
            reasons.append(f"with library=True {ratio:.2f} of eager's speed")
        if reasons:
            lines.append(f"{row['problem'].split('_')[0]}. {'; '.join(reasons)}")
    return lines


def page_of(
    rows: Sequence[Mapping[str, Any]], level: int, threads: int, elements: int, flops: float
) -> str:
    """Return the page of a run whose problems were reduced to so many elements and operations."""
    import torch

    clock = {0: "a thread a core", 1: "time of the processor, one thread"}.get(
        threads, f"{threads} threads"
    )
    head = "| " + " | ".join(HEADINGS) + " |"
    lines = [
        f'# KernelBench, level {level}, by `torch.compile(backend="loopnest")`',
        "",
        f"{date.today()}, {machine()}, torch {torch.__version__}; {clock}; sizes reduced to "
        f"{elements} elements and {flops:.0e} operations. "
        "`python tools/bench_kernelbench.py FOLDER --write`.",
        "",
        *[f"- {line}" for line in summary_of(rows).splitlines()],
        "",
        head,
        "| " + " | ".join(["---"] * len(HEADINGS)) + " |",
        *["| " + " | ".join(cells(row)) + " |" for row in rows],
        "",
        f"## {LIMITS.capitalize()}",
        "",
        *[f"- {line}" for line in remarks_of(rows)],
    ]
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Return the name of the processor and the number of its cores."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    names = [x.split(":")[1].strip() for x in text.splitlines() if x.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


HERE = Path(__file__).resolve().parent
HELP = """Run the problems of KernelBench through torch.compile(backend="loopnest").

FOLDER is a checkout of KernelBench: it holds level1/1_….py (or KernelBench/level1).

A problem is right where each element of the result lies within its error bound: ln.error_bound of
the graph that torch hands over, around the float64 values of that graph, which lie as near to
torch's own in float64. Where the bound is infinite or unknown, 4 times eager's own largest distance
from float64 is allowed. The distances of both are shown in units of what is allowed.
It is generated where every launch is a kernel of loopnest: neither torch nor a library computes
anything. Each problem runs in a process of its own, which may fail or hang. What became of it is
kept in --state, and a run goes on where the last one ended.

\b
    python tools/bench_kernelbench.py FOLDER --only 19,33 --again
    python tools/bench_kernelbench.py FOLDER --threads 1 --inductor --proofs --write

Source: Ouyang et al., "KernelBench: Can LLMs Write Efficient GPU Kernels?", 2025
(github.com/ScalingIntelligence/KernelBench).
"""


@click.command(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--level", default=1, show_default=True, help="Which problems.")
@click.option("--only", default="", metavar="19,33", help="Only the problems of these numbers.")
@click.option(
    "--elements",
    default=1 << 20,
    show_default=True,
    help="Elements of a tensor at most, where a load.py beside the problems makes them smaller.",
)
@click.option(
    "--flops", default=1e9, show_default=True, help="Operations of a call at most, likewise."
)
@click.option("--limit", default=300.0, show_default=True, help="Seconds that a problem may take.")
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file of what is known.  [default: build/kernelbench-levelN.json]",
)
@click.option("--again", is_flag=True, help="Forget what is known of the problems that are run.")
@click.option("--times/--no-times", default=True, show_default=True, help="Whether to measure.")
@click.option(
    "--threads",
    default=0,
    show_default=True,
    help="Threads of all that is timed; 0 is one a core. With 1 the time is that of the processor, "
    "which other programs on the machine change little.",
)
@click.option("--inductor", is_flag=True, help="Time torch's own compiler too.")
@click.option(
    "--proofs", is_flag=True, help="Prove each generated kernel, and those of symbolic sizes."
)
@click.option("--write", is_flag=True, help="Write the table to tools/results.")
def main(
    folder: Path, level: int, only: str, elements: int, flops: float, limit: float,
    state: Path | None, again: bool, times: bool, threads: int, inductor: bool, proofs: bool,
    write: bool,
) -> None:  # fmt: skip
    kept = state or HERE.parent / "build" / f"kernelbench-level{level}.json"
    known = json.loads(kept.read_text()) if kept.exists() else {}
    problems = problems_of(folder, level)
    if only:
        wanted = {n.strip() for n in only.split(",")}
        if not all(map(str.isdecimal, wanted)):
            raise click.BadParameter(f"{only!r} are no numbers; write --only 19,33")
        problems = [p for p in problems if str(number_of(p)) in wanted]
    pending = [p for p in problems if again or p.stem not in known]
    asked = Asked(elements, flops, times, threads, inductor, proofs)
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # what the problems' processes begin with
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("problems", total=len(pending))
        for problem in pending:
            progress.update(task, description=problem.stem[:40])
            known[problem.stem] = judged(folder, problem, asked, limit)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(known, indent=1))
            progress.advance(task)
    rows = [known[p.stem] for p in problems if p.stem in known]
    Console().print(table_of(rows))
    Console().print(summary_of(rows))
    if write:
        path = HERE / "results" / f"kernelbench_level{level}_{date.today()}.md"
        path.write_text(page_of(rows, level, threads, elements, flops))
        Console().print(f"written to {path.relative_to(HERE.parent)}")


def problems_of(folder: Path, level: int) -> list[Path]:
    """Return the files of the problems of a level, by number."""
    for place in (folder / f"level{level}", folder / "KernelBench" / f"level{level}"):
        if place.is_dir():
            return sorted(place.glob("[0-9]*.py"), key=number_of)
    raise click.UsageError(f"{folder} holds no level{level}")


def number_of(path: Path) -> int:
    return int(path.name.split("_")[0])


def judged(folder: Path, problem: Path, asked: Asked, limit: float) -> dict[str, Any]:
    """Return what a process of its own finds out about a problem, even if it fails or hangs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "loopnest.torch", "loopnest.proofs"])
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        process = context.Process(target=_run_one, args=(folder, problem, answer, asked))
        process.start()
        process.join(limit)
        error = ""
        if process.is_alive():
            process.kill()
            process.join()
            error = f"it took more than {limit:.0f} s"
        found: dict[str, Any] = json.loads(answer.read_text()) if answer.exists() else {}
        if process.exitcode and not error:
            error = found.pop("raised", f"it ended with {process.exitcode}")
    found["problem"] = problem.stem
    if error:
        found["error"] = error
    return found


def _run_one(folder: Path, path: Path, answer: Path, asked: Asked) -> None:
    """Run a problem in this process."""
    try:
        Problem(folder, path, answer, asked).run(asked)
    except Exception as error:  # whatever it is, it is the answer
        text = " ".join(str(error).split())[:300]
        found = json.loads(answer.read_text()) if answer.exists() else {}
        answer.write_text(json.dumps({**found, "raised": f"{type(error).__name__}: {text}"}))
        sys.exit(1)


@dataclass(frozen=True)
class Asked:
    """What to find out about each problem, at which size."""

    elements: int
    flops: float
    times: bool
    threads: int
    inductor: bool
    proofs: bool


class Problem:
    """A problem, run in this process; what is found out is written as soon as it is known."""

    def __init__(self, folder: Path, path: Path, answer: Path, asked: Asked) -> None:
        self.answer, self.asked = answer, asked
        self.found: dict[str, object] = {"problem": path.stem}
        self.model, self.inputs = loaded(folder, path, asked.elements, asked.flops)

    def tell(self, **found: object) -> None:
        self.found.update(found)
        self.answer.write_text(json.dumps(self.found))

    def run(self, asked: Asked) -> None:
        import torch

        warnings.filterwarnings("ignore")
        with torch.no_grad():
            exact = self._exact()
            self._generated(exact)
            library = torch.compile(self.model, backend=_backend(), options={"library": True})
            self.tell(library_error=self.judge.error(library(*self.inputs)))
            calls = {"eager": self.model, "library": library, "generated": self.compiled}
            if asked.inductor:
                calls |= self._inductor()
            if asked.times:
                times = self.in_turns(list(calls.values()))
                for name, milliseconds in zip(calls, times, strict=True):
                    self.tell(**{f"{name}_ms": milliseconds})
        if asked.proofs:
            self._proofs()
            self._proofs_for_all_sizes()

    def in_turns(self, calls: Sequence[Callable[..., object]], budget: float = 1.0) -> list[float]:
        """Return the milliseconds of the fastest run of each of some functions.

        They take turns, so that what else the machine does meets all of them. A run is so many
        calls that it takes a millisecond, of which there are three at least, and in all about
        `budget` seconds a function.
        """
        clock = time.thread_time if self.asked.threads == 1 else time.perf_counter
        counts, best = [], [math.inf] * len(calls)
        for call in calls:
            call(*self.inputs)
            start = time.perf_counter()
            call(*self.inputs)
            counts.append(max(1, min(200, int(1e-3 / (time.perf_counter() - start)))))
        end = time.perf_counter() + budget * len(calls)
        turns = 0
        while turns < 3 or (time.perf_counter() < end and turns < 200):
            for number, (call, count) in enumerate(zip(calls, counts, strict=True)):
                start = clock()
                for _ in range(count):
                    call(*self.inputs)
                best[number] = min(best[number], (clock() - start) / count)
            turns += 1
        return [max(seconds, 1e-7) * 1e3 for seconds in best]

    def _exact(self) -> Any:
        import copy

        import torch

        def wide(x: Any) -> Any:
            floats = isinstance(x, torch.Tensor) and x.is_floating_point()
            return x.double() if floats else x

        try:
            return copy.deepcopy(self.model).double()(*map(wide, self.inputs))
        except RuntimeError:
            return self.model(*self.inputs)

    def _generated(self, exact: Any) -> None:
        import torch

        from loopnest.torch import recording

        start = time.perf_counter()
        with recording() as programs:
            compiled = torch.compile(self.model, backend=_backend(), options={"library": False})
            found = compiled(*self.inputs)
        seconds = time.perf_counter() - start
        self.programs, self.compiled = programs, compiled
        self.judge = judge_of(self.model, self.inputs, exact)
        launches = [launch for program in programs for launch in program.kernels]
        others = {f"{x}: {why}" for p in programs for x, why in p.in_torch.items()}
        others |= {f"{', '.join(x.ops)}: {x.fallback}" for x in launches if x.fallback}
        if not programs:
            others.add("torch: the whole graph")
        self.tell(
            first_call_s=seconds,
            error_of_generated=self.judge.error(found),
            error_of_eager=self.judge.error(self.model(*self.inputs)),
            judged_by=self.judge.by(),
            launches=len(launches),
            schedules=sorted({x.schedule for x in launches if x.schedule}),
            not_generated=sorted(others),
        )

    def _inductor(self) -> dict[str, Callable[..., object]]:
        """Return what torch's own compiler makes of the model, by name; nothing where it fails."""
        import torch

        compiled = torch.compile(self.model)
        try:
            compiled(*self.inputs)
        except Exception as error:  # it is another compiler's: what it says is not judged
            self.tell(inductor_error=str(error)[:200])
            return {}
        return {"inductor": compiled}

    def _proofs(self) -> None:
        import loopnest as ln

        kernels = _kernels(self.programs)
        proved = 0
        for number, kernel in enumerate(kernels, 1):
            report = ln.verify(kernel)
            proved += report.ok
            self.tell(kernels=len(kernels), judged=number, proved=proved)

    def _proofs_for_all_sizes(self) -> None:
        """Prove the kernels that are made where the extents of all inputs are symbols.

        Each is a symbol of its own: by default torch gives extents that are equal one symbol, and a
        proof would not tell of sizes that differ.
        """
        import torch
        import torch.fx.experimental._config as shapes

        import loopnest as ln
        from loopnest.torch import recording

        torch._dynamo.reset()
        told: list[str] = []
        own = shapes.patch(use_duck_shape=False)
        with own, recording() as programs, torch.no_grad(), _messages(told):
            options = {"library": False}
            torch.compile(self.model, backend=_backend(), dynamic=True, options=options)(
                *self.inputs
            )
        if not any(program.run.sizes for program in programs):
            self.tell(all_sizes=0, symbolic=0, why=told[0] if told else "its sizes are constants")
            return
        kernels = _kernels(programs)
        proved = 0
        for kernel in kernels:
            proved += ln.verify(kernel).all_sizes
            self.tell(symbolic=len(kernels), all_sizes=proved)


def _kernels(programs: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys([x.kernel for p in programs for x in p.kernels if x.kernel]))


@contextmanager
def _messages(told: list[str]) -> Iterator[None]:
    """Note why graphs are not compiled for all sizes."""
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: (  # type: ignore[method-assign]
        told.append(record.getMessage()) if "each of its sizes" in record.msg else None
    )
    log = logging.getLogger("loopnest")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def _backend() -> Callable[..., Any]:
    from loopnest.torch import loopnest_backend

    return loopnest_backend


def loaded(folder: Path, path: Path, elements: int, flops: float) -> tuple[Any, list[Any]]:
    """Return a model in evaluation mode and its inputs; a folder may say how to load them."""
    import torch

    warnings.filterwarnings("ignore")
    loader = folder / "load.py"
    if loader.exists():
        found = _module(loader).load(path, elements=elements, flops=flops)
        return found[0], found[1]
    torch.manual_seed(0)
    problem = _module(path)
    return problem.Model(*problem.get_init_inputs()).eval(), problem.get_inputs()


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"problem_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
