"""What it costs to make the CUDA text of a kernel, in figures, beside other generators.

`bench_codegen.py` shows them; other scripts take the kernels from here, and their static sizes.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from time import process_time
from typing import Any

import click
from codegen_peers import Loopy, Peer, Tvm

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
TARGETS = {"TVM": 1.0, "chain": 5.0, "import": 100.0}
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

    def assume_range(self, indices: Any, low: Any, high: Any, ascending: bool = False) -> None:
        ends = [self.fixed.get(end, end) for end in (low, high)]
        super().assume_range(indices, ends[0], ends[1], ascending)


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
        "ratio": {name: times["loopnest"].median / times[name].median for name in peers},
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
