"""Run KernelBench: `tools/run python tools/bench_kernelbench.py --help`."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import click
from kernelbench_judge import judge_of
from kernelbench_table import page_of, summary_of, table_of
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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
        self.model, self.inputs = _loaded(folder, path, asked)

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
        self.judge = judge_of(compiled, self.model, self.inputs, exact)
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


def _loaded(folder: Path, path: Path, asked: Asked) -> tuple[Any, list[Any]]:
    """Return a model in evaluation mode and its inputs; a folder may say how to load them."""
    import torch

    warnings.filterwarnings("ignore")
    loader = folder / "load.py"
    if loader.exists():
        found = _module(loader).load(path, elements=asked.elements, flops=asked.flops)
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
