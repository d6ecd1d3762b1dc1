"""Measure the "cpu" schedules on target "c", beside NumPy, torch, its inductor and Apache TVM.

Before each kernel the FMA peak and the copy bandwidth of the machine are measured in the same
process: the share of this limit that a kernel reaches does not change with the machine's mood.

Run it as `tools/run python tools/bench_run.py --help`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any, Protocol

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent

SHAPES: Mapping[str, Sequence[tuple[int, ...]]] = {
    "bias_gelu": [(8192, 4096), (4096,)],
    "softmax": [(4096, 4096)],
    "layernorm": [(4096, 4096), (4096,), (4096,)],
    "transpose": [(4096, 4096)],
    "gemm": [(1024, 1024), (1024, 1024)],
}
"""Each kernel and the shapes of its inputs, all float32."""

TARGETS = {"bias_gelu": 2.0, "softmax": 2.0, "layernorm": 2.0, "transpose": 2.0, "gemm": 3.0}
"""At most: our time / that of the best of TVM, torch and inductor."""

JUDGES = ("TVM", "torch", "inductor")
BURST = 4
"""Calls of one candidate before the next has its turn; the first of them does not count."""

PAUSE = 0.05
"""Seconds before a turn: the threads of the one before wait for work in busy loops first."""

Call = Callable[[], object]


class Peer(Protocol):
    """Another implementation.

    `prepare` returns a call that computes a kernel on the arrays into memory of its own, and one
    that returns the result as a NumPy array.
    """

    label: str
    package: str

    def prepare(self, kernel: str, arrays: Sequence[Any]) -> tuple[Call, Callable[[], Any]]: ...


class NumPy:
    """NumPy as one writes it, one operation after the other."""

    label = "NumPy"
    package = "numpy"

    def __init__(self, threads: int) -> None:
        import numpy as np

        self.np = np

    def prepare(self, kernel: str, arrays: Sequence[Any]) -> tuple[Call, Callable[[], Any]]:
        def call() -> Any:
            return getattr(self, kernel)(*arrays)

        return call, call

    def bias_gelu(self, x: Any, bias: Any) -> Any:
        h = x + bias  # NumPy has no erf: the approximation of GELU by tanh
        return 0.5 * h * (1 + self.np.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))

    def softmax(self, x: Any) -> Any:
        e = self.np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def layernorm(self, x: Any, gamma: Any, beta: Any) -> Any:
        centered = x - x.mean(axis=1, keepdims=True)
        variance = (centered * centered).mean(axis=1, keepdims=True)
        return centered / self.np.sqrt(variance + 1e-5) * gamma + beta

    def transpose(self, x: Any) -> Any:
        return x.T.copy()

    def gemm(self, a: Any, b: Any) -> Any:
        return a @ b


class Torch:
    """torch's operators, eager; results go where the first call put them, as ours do."""

    label = "torch"
    package = "torch"

    def __init__(self, threads: int) -> None:
        import torch

        self.torch = torch
        self.ops = torch.ops.aten
        torch.set_num_threads(threads)

    def prepare(self, kernel: str, arrays: Sequence[Any]) -> tuple[Call, Callable[[], Any]]:
        tensors = [self.torch.from_numpy(a) for a in arrays]
        result, call = getattr(self, kernel)(*tensors)
        return call, lambda: result.numpy()

    def bias_gelu(self, x: Any, bias: Any) -> tuple[Any, Call]:
        h, y = self.torch.empty_like(x), self.torch.empty_like(x)

        def call() -> None:
            self.torch.add(x, bias, out=h)
            self.ops.gelu.out(h, out=y)

        return y, call

    def softmax(self, x: Any) -> tuple[Any, Call]:
        y = self.torch.empty_like(x)
        return y, lambda: self.ops._softmax.out(x, 1, False, out=y)

    def layernorm(self, x: Any, gamma: Any, beta: Any) -> tuple[Any, Call]:
        y = self.torch.empty_like(x)
        mean, rstd = self.torch.empty(len(x), 1), self.torch.empty(len(x), 1)
        shape = [x.shape[1]]

        def call() -> None:
            self.ops.native_layer_norm.out(
                x, shape, gamma, beta, 1e-5, out0=y, out1=mean, out2=rstd
            )

        return y, call

    def transpose(self, x: Any) -> tuple[Any, Call]:
        y = self.torch.empty(x.shape[::-1])
        return y, lambda: y.copy_(x.t())

    def gemm(self, a: Any, b: Any) -> tuple[Any, Call]:
        c = self.torch.empty(a.shape[0], b.shape[1])
        return c, lambda: self.torch.mm(a, b, out=c)


class Inductor(Torch):
    """torch.compile's default backend, C++ for this CPU; results are allocated by each call."""

    label = "inductor"

    def prepare(self, kernel: str, arrays: Sequence[Any]) -> tuple[Call, Callable[[], Any]]:
        functional = self.torch.nn.functional
        math: Mapping[str, Callable[..., Any]] = {
            "bias_gelu": lambda x, bias: functional.gelu(x + bias),
            "softmax": lambda x: functional.softmax(x, 1),
            "layernorm": lambda x, gamma, beta: functional.layer_norm(
                x, x.shape[1:], gamma, beta, 1e-5
            ),
            "transpose": lambda x: x.t().contiguous(),
            "gemm": lambda a, b: a @ b,
        }
        compiled = self.torch.compile(math[kernel])
        tensors = [self.torch.from_numpy(a) for a in arrays]
        return lambda: compiled(*tensors), lambda: compiled(*tensors).numpy()


class Tvm:
    """Apache TVM: tensor expressions, the loops of our "cpu" schedules, LLVM for this CPU.

    exp and erf are `topi.fast_exp` and `topi.fast_erf`, which become vector code; sizes are static.
    """

    label = "TVM"
    package = "apache-tvm"

    def __init__(self, threads: int) -> None:
        import tvm
        from tvm import te, topi
        from tvm.s_tir import Schedule
        from tvm.target.codegen import llvm_get_system_cpu

        self.tvm, self.te, self.topi, self.Schedule = tvm, te, topi, Schedule
        self.target = tvm.target.Target(
            {"kind": "llvm", "mcpu": llvm_get_system_cpu(), "num-cores": threads}
        )

    def prepare(self, kernel: str, arrays: Sequence[Any]) -> tuple[Call, Callable[[], Any]]:
        schedule, shape = getattr(self, kernel)(*[a.shape for a in arrays])
        function = self.tvm.compile(schedule.mod, target=self.target)["main"]
        tensors = [self.tvm.runtime.tensor(a) for a in arrays]
        result = self.tvm.runtime.empty(shape, "float32")
        return (lambda: function(*tensors, result)), result.numpy

    def _placeholders(self, **shapes: tuple[int, ...]) -> list[Any]:
        return [self.te.placeholder(shape, name=name) for name, shape in shapes.items()]

    def _vectorize(self, s: Any, *blocks: str) -> None:
        for block in blocks:
            _, lanes = s.split(s.get_loops(s.get_sblock(block))[-1], [None, 16])
            s.vectorize(lanes)

    def _rows(self, s: Any, reductions: Sequence[str], blocks: Sequence[str]) -> Any:
        """Give rows to threads, 16 partial results to each reduction, and vectorize."""
        for block in reductions:
            _, lanes = s.split(s.get_loops(s.get_sblock(block))[-1], [None, 16])
            s.rfactor(lanes, 1)
        row = s.get_loops(s.get_sblock("y"))[0]
        s.parallel(row)
        for block in blocks:
            s.compute_at(s.get_sblock(block), row)
        for block in reductions:
            partial = s.get_sblock(f"{block}_rf")
            _, lanes, steps = s.get_loops(partial)
            s.reorder(steps, lanes)
            s.vectorize(lanes)
            s.decompose_reduction(partial, steps)
        return s

    def bias_gelu(self, size: tuple[int, ...], bias_size: tuple[int, ...]) -> Any:
        te = self.te
        x, bias = self._placeholders(x=size, bias=bias_size)
        t = te.compute(size, lambda i, j: x[i, j] + bias[j], name="t")
        u = te.compute(size, lambda i, j: t[i, j] * te.const(2**-0.5, "float32"), name="u")
        e = self.topi.fast_erf(u)
        y = te.compute(size, lambda i, j: t[i, j] * 0.5 * (1.0 + e[i, j]), name="y")
        s = self.Schedule(te.create_prim_func([x, bias, y]))
        i, j = s.get_loops(s.get_sblock("y"))
        s.parallel(i)
        outer, _ = s.split(j, [None, 64])
        for block in ("T_fast_erf", "u", "t"):
            s.compute_at(s.get_sblock(block), outer)
        self._vectorize(s, "t", "u", "T_fast_erf", "y")
        return s, size

    def softmax(self, size: tuple[int, ...]) -> Any:
        te, (n, d) = self.te, size
        (x,) = self._placeholders(x=size)
        k, q = te.reduce_axis((0, d), name="k"), te.reduce_axis((0, d), name="q")
        m = te.compute((n,), lambda i: te.max(x[i, k], axis=k), name="m")
        u = te.compute(size, lambda i, j: x[i, j] - m[i], name="u")
        e = self.topi.fast_exp(u)
        z = te.compute((n,), lambda i: te.sum(e[i, q], axis=q), name="z")
        y = te.compute(size, lambda i, j: e[i, j] / z[i], name="y")
        s = self.Schedule(te.create_prim_func([x, y]))
        s.compute_inline(s.get_sblock("u"))
        self._rows(s, "mz", ("z", "z_rf", "T_fast_exp", "m", "m_rf"))
        self._vectorize(s, "T_fast_exp", "y")
        return s, size

    def layernorm(
        self, size: tuple[int, ...], gamma_size: tuple[int, ...], beta_size: tuple[int, ...]
    ) -> Any:
        te, (n, d) = self.te, size
        x, gamma, beta = self._placeholders(x=size, gamma=gamma_size, beta=beta_size)
        k, q = te.reduce_axis((0, d), name="k"), te.reduce_axis((0, d), name="q")
        a = te.compute((n,), lambda i: te.sum(x[i, k], axis=k), name="a")
        c = te.compute(size, lambda i, j: x[i, j] - a[i] / d, name="c")
        v = te.compute((n,), lambda i: te.sum(c[i, q] * c[i, q], axis=q), name="v")
        r = te.compute((n,), lambda i: te.rsqrt(v[i] / d + 1e-5), name="r")
        y = te.compute(size, lambda i, j: c[i, j] * r[i] * gamma[j] + beta[j], name="y")
        s = self.Schedule(te.create_prim_func([x, gamma, beta, y]))
        self._rows(s, "av", ("r", "v", "v_rf", "c", "a", "a_rf"))
        self._vectorize(s, "c", "y")
        return s, size

    def transpose(self, size: tuple[int, ...]) -> Any:
        te, (n, d) = self.te, size
        (x,) = self._placeholders(x=size)
        y = te.compute((d, n), lambda i, j: x[j, i], name="y")
        s = self.Schedule(te.create_prim_func([x, y]))
        i, j = s.get_loops(s.get_sblock("y"))
        outer_i, inner_i = s.split(i, [None, 128])
        outer_j, inner_j = s.split(j, [None, 16])
        s.reorder(outer_i, outer_j, inner_i, inner_j)
        s.parallel(outer_i)
        s.vectorize(inner_j)
        return s, (d, n)

    def gemm(self, left: tuple[int, ...], right: tuple[int, ...]) -> Any:
        te, (m, depth), (_, n) = self.te, left, right
        a, b = self._placeholders(a=left, b=right)
        k = te.reduce_axis((0, depth), name="k")
        c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
        s = self.Schedule(te.create_prim_func([a, b, c]))
        block = s.get_sblock("c")
        panel, copy = s.cache_read(block, 1, "global"), s.cache_write(block, 0, "global")
        i, j, steps = s.get_loops(block)
        outer_i, inner_i = s.split(i, [None, 4])  # 6, as ours, does not divide, and costs it more
        outer_j, inner_j = s.split(j, [None, 64])
        s.reorder(outer_j, outer_i, steps, inner_i, inner_j)
        s.parallel(outer_j)
        s.compute_at(panel, outer_j)
        s.reverse_compute_at(copy, outer_i)
        s.vectorize(inner_j)
        s.unroll(inner_i)
        s.decompose_reduction(block, steps)
        s.vectorize(s.get_loops(s.get_sblock("c_init"))[-1])
        self._vectorize(s, "b_global", "c_global")
        return s, (m, n)


# Measuring


@dataclass(frozen=True)
class Timing:
    """Milliseconds of calls of one candidate: wall time, and CPU time by thread.

    `turns` has the best wall time of each turn; candidates that were timed together have as many.
    """

    best: float
    median: float
    cpu: float
    turns: tuple[float, ...]


def measure(candidates: Mapping[str, Call], rounds: int, threads: int) -> dict[str, Timing]:
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
            tuple([min(times[i : i + BURST - 1]) for i in range(0, len(times), BURST - 1)]),
        )
        for name, times in wall.items()
    }


def ratio(ours: Timing, theirs: Timing) -> tuple[float, float, float]:
    """Return the median of our time / theirs over the turns, and the quartiles around it."""
    found = sorted([a / b for a, b in zip(ours.turns, theirs.turns, strict=True)])
    last = len(found) - 1
    return found[last // 2], found[last // 4], found[(3 * last + 2) // 4]


def limit_of(name: str, moved: int, shapes: Sequence[tuple[int, ...]], threads: int) -> float:
    """Return the milliseconds that the machine takes at the least: for its bytes, for its FMAs."""
    from loopnest.backends.cpu.machine_probe import measure_machine

    now = measure_machine()
    operations = 2 * shapes[0][0] * shapes[0][1] * shapes[1][1] if name == "gemm" else 0
    seconds = [moved / now.bandwidth] if now.bandwidth else []
    seconds += [operations / (now.flops * min(threads, now.cores))] if now.flops else []
    return 1e3 * max(seconds, default=0.0)


def our_call(name: str, arrays: Sequence[Any], threads: int) -> tuple[Call, Any]:
    """Return a call of our kernel, and the array that it writes to."""
    import loopnest as ln

    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    kernel = getattr(importlib.import_module(f"kernels.{name}"), name)
    function = ln.compile(kernel.lower("cpu"), target="c", threads=threads)
    result = function(*arrays)
    return (lambda: function(*arrays, out=result)), result


def bench_kernel(
    name: str, peers: Sequence[Peer], rounds: int, threads: int, use_cpu: bool
) -> dict[str, Any]:
    """Return times of one kernel, ours and the peers', and how they relate."""
    import numpy as np

    draw = np.random.default_rng(0)
    arrays = [draw.standard_normal(shape, np.float32) for shape in SHAPES[name]]
    call, result = our_call(name, arrays, threads)
    candidates = {"loopnest": call}
    errors: dict[str, str] = {}
    for peer in peers:
        try:
            theirs, value = peer.prepare(name, arrays)
            theirs()
            difference = float(np.abs(np.asarray(value()) - result).max())
        except Exception as problem:  # a peer whose interface has changed must not stop the rest
            errors[peer.label] = f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
            continue
        # GELU by tanh is off by 5e-4; all else is rounding.
        if difference > (1e-3 if name == "bias_gelu" else 1e-3 * float(np.abs(result).max())):
            errors[peer.label] = f"its result differs by {difference:.3g}"
            continue
        candidates[peer.label] = theirs
    moved = sum(a.nbytes for a in arrays) + result.nbytes
    limit = limit_of(name, moved, SHAPES[name], threads)
    times = measure(candidates, rounds, threads)
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
    }


def find_peers(wanted: bool, threads: int) -> tuple[list[Peer], list[str]]:
    """Return the peers that are installed, and a line for each package: its version, or why not."""
    peers: list[Peer] = []
    notes = [f"Python {platform.python_version()}, {platform.machine()}, {threads} threads"]
    kinds: tuple[type[Tvm] | type[Torch] | type[NumPy], ...] = (Tvm, Torch, Inductor, NumPy)
    for kind in kinds if wanted else ():
        try:
            peers.append(kind(threads))
        except (ImportError, AttributeError) as problem:
            notes.append(f"{kind.package} left out: {problem}")
        else:
            notes.append(f"{kind.package} {importlib.metadata.version(kind.package)}")
    return peers, notes


# Showing


def show(console: Console, results: Mapping[str, Mapping[str, Any]], labels: Sequence[str]) -> None:
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
        cells = [_ms(found, "loopnest"), f"{found['gbps']:.1f}", f"{found['share']:.0%}"]
        cells += [_ms(found, label) for label in labels]
        cells += [_spread(found["turns"][n]) if n in found["turns"] else "" for n in labels]
        judged = found["judged"]
        met = judged is None or judged <= TARGETS[name]
        text = "" if judged is None else f"{judged:.2f}"
        cells.append(text if met else f"[bold red]{text} missed[/]")
        table.add_row(name, shape, *cells, f"{TARGETS[name]:g}")
    console.print(table)
    for name, found in results.items():
        for label, problem in found["errors"].items():
            console.print(f"{name} by {label}: {problem}", style="red", markup=False)


def _spread(found: Sequence[float]) -> str:
    median, low, high = found
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def _ms(found: Mapping[str, Any], label: str) -> str:
    timing = found["ms"].get(label)
    return f"{timing['best']:.2f}" if timing else ""


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
@click.option("--peers/--no-peers", default=True, help="Whether to run NumPy, torch and TVM too.")
@click.option(
    "--cpu", "use_cpu", is_flag=True, help="Compare CPU time by thread: for a busy machine."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything measured as JSON.")
def main(
    names: tuple[str, ...], threads: int, rounds: int, peers: bool, use_cpu: bool, as_json: bool
) -> None:
    """Run the "cpu" schedules of five kernels on target "c", beside NumPy, torch and TVM.

    "of limit" is the share of what the machine could do at that moment: the time of a copy of as
    many bytes by streaming stores, or of as many FMAs, whichever is longer, over our best time. A
    ratio is the median over the turns, with the quartiles.

    Without torch and TVM it measures what is there. They are the extra "peers"; an environment of
    their own does as well as .venv:

    \b
        python3 -m venv /tmp/peers
        /tmp/peers/bin/pip install -e '.[peers]'
        /tmp/peers/bin/python tools/bench_run.py

    All candidates run in one process, in turns, on warm memory; the best call of each counts.
    Judge by ratios of one run, never by times of two: the machine is rarely quiet.
    """
    for variable in ("OMP", "OPENBLAS", "MKL", "TVM"):  # read when their libraries are loaded
        os.environ[f"{variable}_NUM_THREADS"] = str(threads)
    os.environ["TVM_BIND_THREADS"] = "0"  # or all threads that are made later share one core
    found, notes = find_peers(peers, threads)
    results: dict[str, dict[str, Any]] = {}
    chosen = names or tuple(SHAPES)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=len(chosen))
        for name in chosen:
            progress.update(task, description=name)
            results[name] = bench_kernel(name, found, rounds, threads, use_cpu)
            progress.advance(task)
    if as_json:
        click.echo(json.dumps({"about": notes, "kernels": results}, indent=2))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    show(console, results, [peer.label for peer in found])
    console.print("; ".join(notes), markup=False)


if __name__ == "__main__":
    main()
