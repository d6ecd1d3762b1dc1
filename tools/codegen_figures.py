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
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from time import process_time
from typing import Any, Protocol

import click

import loopnest as ln
from loopnest.lowering import pipeline

# What is compared with: other generators, each with the same math and loops
#
# The math has static sizes (or the peer's own variables), the loops are those of the "gpu"
# schedules of `kernels/`.


class Peer(Protocol):
    """Another generator."""

    label: str
    package: str

    def text(self, kernel: str, sizes: Sequence[Any]) -> str:
        """Make the text of a kernel from nothing; sizes in the order of our size symbols."""

    def variables(self, count: int) -> tuple[Any, ...]:
        """Return variables to stand for sizes; none where there is no such build here."""


class Tvm:
    """Apache TVM: tensor expressions, a schedule, its default pipeline, CUDA source.

    Each schedule is the cheapest that gives these loops: reductions keep their initial value inside
    the loop where that costs TVM less.
    """

    label = "TVM"
    package = "apache-tvm"

    def __init__(self) -> None:
        import tvm
        import tvm_ffi
        from tvm import te, tirx
        from tvm.s_tir import Schedule
        from tvm.tirx.build import split_host_device_mods

        self.te, self.tirx = te, tirx
        self.Schedule, self._split_host = Schedule, split_host_device_mods
        # Where there is a CUDA compiler, TVM would run it: only the text is wanted.
        tvm_ffi.register_global_func(
            "tvm_callback_cuda_compile", lambda code, *_: b"", override=True
        )
        self.target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="c")
        self.codegen = tvm.get_global_func("target.build.cuda")

    def variables(self, count: int) -> tuple[Any, ...]:
        return tuple(self.te.var(f"n{number}") for number in range(count))

    def text(self, kernel: str, sizes: Sequence[Any]) -> str:
        module = self.tirx.transform.BindTarget(self.target)(getattr(self, kernel)(*sizes).mod)
        passes, _, finalize_device = self.tirx.get_tir_pipeline("s_tir")
        _, devices = self._split_host(passes(module))
        ((target, device),) = devices.items()
        text: str = self.codegen(finalize_device()(device), target).inspect_source()
        return text

    def _bind(self, schedule: Any, **loops: Any) -> None:
        for name, loop in loops.items():
            schedule.bind(loop, name.replace("_", "."))

    def bias_gelu(self, n: Any, d: Any) -> Any:
        te = self.te
        x, bias = te.placeholder((n, d), name="x"), te.placeholder((d,), name="bias")
        t = te.compute((n, d), lambda i, j: x[i, j] + bias[j], name="t")
        y = te.compute((n, d), lambda i, j: t[i, j] * 0.5 * (1.0 + te.erf(t[i, j] * 2**-0.5)), "y")
        s = self.Schedule(te.create_prim_func([x, bias, y]))
        s.compute_inline(s.get_sblock("t"))
        i, j = s.get_loops(s.get_sblock("y"))
        outer, threads, lanes = s.split(j, [None, 128, 4])
        self._bind(s, blockIdx_x=i, blockIdx_y=outer, threadIdx_x=threads)
        s.vectorize(lanes)
        return s

    def _row_of_a_thread(self, schedule: Any, rows: Sequence[str]) -> Any:
        """Let a thread own a row of y, and compute what it needs of the row in registers."""
        i, _ = schedule.get_loops(schedule.get_sblock("y"))
        block, thread = schedule.split(i, [None, 128])
        self._bind(schedule, blockIdx_x=block, threadIdx_x=thread)
        for name in rows:
            schedule.compute_at(schedule.get_sblock(name), thread)
            schedule.set_scope(schedule.get_sblock(name), 0, "local")
        return schedule

    def softmax(self, n: Any, d: Any) -> Any:
        te = self.te
        x = te.placeholder((n, d), name="x")
        k, q = te.reduce_axis((0, d), name="k"), te.reduce_axis((0, d), name="q")
        m = te.compute((n,), lambda i: te.max(x[i, k], axis=k), name="m")
        e = te.compute((n, d), lambda i, j: te.exp(x[i, j] - m[i]), name="e")
        z = te.compute((n,), lambda i: te.sum(e[i, q], axis=q), name="z")
        y = te.compute((n, d), lambda i, j: e[i, j] / z[i], name="y")
        s = self.Schedule(te.create_prim_func([x, y]))
        s.compute_inline(s.get_sblock("e"))
        return self._row_of_a_thread(s, "zm")

    def layernorm(self, n: Any, d: Any) -> Any:
        te = self.te
        x = te.placeholder((n, d), name="x")
        gamma, beta = te.placeholder((d,), name="gamma"), te.placeholder((d,), name="beta")
        k, q = te.reduce_axis((0, d), name="k"), te.reduce_axis((0, d), name="q")
        a = te.compute((n,), lambda i: te.sum(x[i, k], axis=k), name="a")
        m = te.compute((n,), lambda i: a[i] / d, name="m")
        c = te.compute((n, d), lambda i, j: x[i, j] - m[i], name="c")
        v = te.compute((n,), lambda i: te.sum(c[i, q] * c[i, q], axis=q), name="v")
        r = te.compute((n,), lambda i: te.rsqrt(v[i] / d + 1e-5), name="r")
        y = te.compute((n, d), lambda i, j: c[i, j] * r[i] * gamma[j] + beta[j], name="y")
        s = self.Schedule(te.create_prim_func([x, gamma, beta, y]))
        s.compute_inline(s.get_sblock("c"))
        return self._row_of_a_thread(s, "rvma")

    def _tile(self, schedule: Any, block: str, split: Sequence[Sequence[int]]) -> Any:
        """Split the two outer loops to blocks, threads (and registers), and bind them."""
        loops = schedule.get_loops(schedule.get_sblock(block))
        by, ty, *vy = schedule.split(loops[0], [None, *split[0]])
        bx, tx, *vx = schedule.split(loops[1], [None, *split[1]])
        schedule.reorder(by, bx, ty, tx, *loops[2:], *vy, *vx)
        self._bind(schedule, blockIdx_y=by, blockIdx_x=bx, threadIdx_y=ty, threadIdx_x=tx)
        return tx, *loops[2:], *vy, *vx

    def transpose(self, n: Any, d: Any) -> Any:
        te = self.te
        x = te.placeholder((n, d), name="x")
        y = te.compute((d, n), lambda i, j: x[j, i], name="y")
        s = self.Schedule(te.create_prim_func([x, y]))
        self._tile(s, "y", ([8], [32]))
        return s

    def gemm(self, m: Any, depth: Any, n: Any) -> Any:
        te = self.te
        a, b = te.placeholder((m, depth), name="a"), te.placeholder((depth, n), name="b")
        k = te.reduce_axis((0, depth), name="k")
        c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
        s = self.Schedule(te.create_prim_func([a, b, c]))
        block = s.get_sblock("c")
        copy = s.cache_write(block, 0, "local")
        left, right = (s.cache_read(block, operand, "local") for operand in (0, 1))
        thread, inner, *registers = self._tile(s, "c", ([16, 4], [16, 4]))
        s.reverse_compute_at(copy, thread)
        s.compute_at(right, inner)
        s.compute_at(left, registers[0])
        s.decompose_reduction(block, inner)
        for loop in registers:  # as `#pragma unroll`, which is cheaper than TVM's own unrolling
            s.annotate(loop, "pragma_auto_unroll_max_step", 16)
            s.annotate(loop, "pragma_unroll_explicit", 0)
        return s


class Loopy:
    """loopy: its kernel language, its transforms, and OpenCL text, its caches off.

    OpenCL because its CUDA text knows no identity of a maximum.
    """

    label = "loopy"
    package = "loopy"

    def __init__(self) -> None:
        import loopy
        import numpy

        loopy.set_caching_enabled(False)
        self.lp, self.float32 = loopy, numpy.float32
        self.target = loopy.OpenCLTarget()

    def variables(self, count: int) -> tuple[Any, ...]:
        return ()

    def text(self, kernel: str, sizes: Sequence[Any]) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as the choice of its slower scheduler for gemm
            text: str = self.lp.generate_code_v2(getattr(self, kernel)(*sizes)).device_code()
        return text

    def _kernel(self, domain: str, code: str, y: tuple[int, ...], **inputs: tuple[int, ...]) -> Any:
        arg = partial(self.lp.GlobalArg, dtype=self.float32)
        args = [arg(name, shape=shape) for name, shape in inputs.items()]
        args.append(arg("y", shape=y, is_output=True))
        version = (2018, 2)
        return self.lp.make_kernel(
            domain, code, [*args, "..."], target=self.target, lang_version=version
        )

    def _split(self, kernel: Any, axis: str, factor: int, **tags: str) -> Any:
        names = {f"{place}_tag": tag.replace("_", ".") for place, tag in tags.items()}
        return self.lp.split_iname(kernel, axis, factor, **names)

    def bias_gelu(self, n: int, d: int) -> Any:
        code = """
            t := x[i, j] + bias[j]
            y[i, j] = t * 0.5f * (1.0f + erf(t * 0.70710678f))
        """
        domain = f"{{[i, j]: 0 <= i < {n} and 0 <= j < {d}}}"
        k = self._kernel(domain, code, (n, d), x=(n, d), bias=(d,))
        k = self._split(k, "j", 4, inner="unr")
        k = self._split(k, "j_outer", 128, outer="g_1", inner="l_0")
        return self.lp.tag_inames(k, "i:g.0")

    def _rows(self, code: str, n: int, d: int, **inputs: tuple[int, ...]) -> Any:
        domain = f"{{[i, k, q, j]: 0 <= i < {n} and 0 <= k, q, j < {d}}}"
        k = self._kernel(domain, code, (n, d), x=(n, d), **inputs)
        return self._split(k, "i", 128, outer="g_0", inner="l_0")

    def softmax(self, n: int, d: int) -> Any:
        code = """
            <> m = max(k, x[i, k])
            <> z = sum(q, exp(x[i, q] - m))
            y[i, j] = exp(x[i, j] - m) / z
        """
        return self._rows(code, n, d)

    def layernorm(self, n: int, d: int) -> Any:
        code = f"""
            <> m = sum(k, x[i, k]) / {d}
            <> v = sum(q, (x[i, q] - m) * (x[i, q] - m)) / {d}
            <> r = rsqrt(v + 1e-5f)  {{inames=i}}
            y[i, j] = (x[i, j] - m) * r * gamma[j] + beta[j]
        """
        return self._rows(code, n, d, gamma=(d,), beta=(d,))

    def transpose(self, n: int, d: int) -> Any:
        domain = f"{{[i, j]: 0 <= i < {d} and 0 <= j < {n}}}"
        k = self._kernel(domain, "y[i, j] = x[j, i]", (d, n), x=(n, d))
        k = self._split(k, "i", 8, outer="g_1", inner="l_1")
        return self._split(k, "j", 32, outer="g_0", inner="l_0")

    def gemm(self, m: int, depth: int, n: int) -> Any:
        domain = f"{{[i, j, k]: 0 <= i < {m} and 0 <= j < {n} and 0 <= k < {depth}}}"
        code = "y[i, j] = sum(k, a[i, k] * b[k, j])"
        k = self._kernel(domain, code, (m, n), a=(m, depth), b=(depth, n))
        for axis, place in (("i", 1), ("j", 0)):
            k = self._split(k, axis, 64, outer=f"g_{place}")
            k = self._split(k, f"{axis}_inner", 4, outer=f"l_{place}", inner="ilp_unr")
        return k


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

    def input(
        self,
        name: str,
        shape: Sequence[Any],
        dtype: ln.DType,
        strides: Sequence[int | str | None] | None = None,
        names: Sequence[str | None] | None = None,
    ) -> ln.TensorView:
        """Declare an input whose axes are called as its sizes were."""
        once = [size if shape.count(size) == 1 else None for size in shape]
        called = [size if isinstance(size, str) else None for size in once]
        return super().input(name, shape, dtype, strides, called if names is None else names)

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
