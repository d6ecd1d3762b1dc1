"""Judge schedules of random groups: `tools/run python tools/bench_groups.py --help`."""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import loopnest as ln
from loopnest.base.errors import LoopnestError
from loopnest.numerics.compare import compare
from loopnest.numerics.error_bounds import enclosures
from loopnest.scalar.arguments import size_value
from loopnest.scalar.expr import Op, walk
from loopnest.scalar.op_table import OPS
from loopnest.schedulers import auto_schedule

PRIMES = (2, 3, 7, 13, 31, 61, 127, 257, 1009)
LARGE = (512, 1024, 4096, 1 << 16, 1 << 20)
MOST, CHECKED = 1 << 22, 1 << 19
"""Elements of a group at most, and of one whose values are compared."""
LEAST = 7
"""Extents below it (windows, channels) are no symbols."""
Shape = tuple[int, ...]
Build = Callable[..., ln.TensorView]


class Maker:
    """Random groups of one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def shape(self, rank: int, most: int = MOST, least: int = 0) -> list[int]:
        """Return random extents: one in twelve is 0, one in six is 1."""
        while True:
            pools = self.random.choices(((0,), (1,), PRIMES, LARGE), (1, 2, 5, 4), k=rank)
            found = [self.random.choice(pool) for pool in pools]
            if math.prod(found) <= most and min(found, default=1) >= least:
                return found

    def chain(self, x: ln.TensorView) -> ln.TensorView:
        """Return a few elementwise ops of a tensor."""
        steps: list[Build] = [ln.exp, ln.tanh, ln.relu, lambda v: v * 0.5, lambda v: v + 1.0]
        for step in self.random.sample(steps, self.random.randint(0, 2)):
            x = step(x)
        return x

    # Classes: shapes of the inputs, the math, and the operations where these limit

    def pointwise(self) -> tuple[list[Shape], Build, int]:
        shape = self.shape(self.random.randint(1, 3))
        other = tuple(self.random.choice((e, 1)) for e in shape)
        return [tuple(shape), other], lambda x, y: self.chain(x) * self.chain(y), 0

    def moved(self) -> tuple[list[Shape], Build, int]:
        shape = self.shape(self.random.randint(2, 4))
        axes = [*range(len(shape))]
        while axes == sorted(axes):
            self.random.shuffle(axes)
        return [tuple(shape)], lambda x: ln.permute(self.chain(x), tuple(axes)) + 1.0, 0

    def folded(self) -> tuple[list[Shape], Build, int]:
        shape = self.shape(self.random.randint(1, 4))
        count = self.random.randint(1, min(len(shape), 2))
        axes = tuple(sorted(self.random.sample(range(len(shape)), count)))
        return [tuple(shape)], lambda x: self.chain(ln.sum(self.chain(x), axis=axes)), 0

    def normalised(self) -> tuple[list[Shape], Build, int]:
        shape = self.shape(self.random.randint(2, 3))
        axis = self.random.randrange(len(shape))

        def softmax(x: ln.TensorView) -> ln.TensorView:
            e = ln.exp(x - ln.max(x, axis=axis, keepdims=True))
            return e / ln.sum(e, axis=axis, keepdims=True)

        def norm(x: ln.TensorView) -> ln.TensorView:
            center = x - ln.mean(x, axis=axis, keepdims=True)
            return center * ln.rsqrt(ln.mean(center * center, axis=axis, keepdims=True) + 1e-5)

        return [tuple(shape)], self.random.choice((softmax, norm)), 0

    def product(self) -> tuple[list[Shape], Build, int]:
        m, k, n = self.shape(3, 1 << 27)
        while max(m * k, k * n, m * n) > MOST:
            m, k, n = self.shape(3, 1 << 27)
        return [(m, k), (k, n)], lambda a, b: self.chain(ln.matmul(a, b)), 2 * m * k * n

    def window(self) -> tuple[list[Shape], Build, int]:
        images, channels, out = [self.random.choice((1, 2, 3, 7, 16, 64)) for _ in range(3)]
        side, size = self.random.choice((7, 13, 31, 64)), self.random.choice((1, 2, 3, 5))
        stride = self.random.choice((1, 2))
        x, padding = (images, channels, side, side), size // 2
        places = images * ((side + 2 * padding - size) // stride + 1) ** 2
        if self.random.random() < 0.4:
            pool = self.random.choice((ln.max_pool, ln.avg_pool))
            return [x], lambda x: pool(x, size, stride, padding), places * channels * size**2
        w = (out, channels, size, size)
        work = 2 * places * out * channels * size**2
        return [x, w], lambda x, w: ln.relu(ln.conv(x, w, stride, padding)), work

    def scan(self) -> tuple[list[Shape], Build, int]:
        shape = self.shape(self.random.randint(1, 3))
        axis = self.random.randrange(len(shape))
        return [tuple(shape)], lambda x: ln.cumsum(self.chain(x) * 0.01, axis), 0

    def gather(self) -> tuple[list[Shape], Build, int]:
        rows, columns = self.shape(2, 1 << 20, 1)
        (count,) = self.shape(1, max(MOST // columns, 1))

        def take(x: ln.TensorView, places: ln.TensorView) -> ln.TensorView:
            places.fusion.assume_range(places, 0, x.shape[0])
            return ln.take(x, places, 0) * 2.0

        return [(rows, columns), (count,)], take, 0


CLASSES = ("pointwise", "moved", "folded", "normalised", "product", "window", "scan", "gather")
OPERATIONS = ("product", "window")
"""Classes that operations limit, not memory."""


@dataclass
class Judged:
    """What was found of a group."""

    seed: int
    kind: str
    shapes: list[Shape]
    schedule: str = ""
    fault: str = ""
    proved: str = ""
    seconds: float = 0.0
    work: int = 0
    bytes: int = 0
    functions: float = 0.0
    """Seconds that its functions take, at their rate in a cache."""
    ratio: float = 0.0

    @property
    def bucket(self) -> tuple[str, int]:
        """The class, and the cache that its arrays fit."""
        return self.kind, sum(self.bytes > size for size in (1 << 15, 1 << 20, 1 << 24))


def symbolic(shapes: Sequence[Shape], seed: int) -> list[tuple[int | str, ...]]:
    """Return shapes with a symbol for about two thirds of the extents of 7 or more.

    Equal extents get one symbol, so that what fits still does.
    """
    draw = random.Random(seed)
    extents = sorted({extent for shape in shapes for extent in shape if extent >= LEAST})
    named = {extent: f"N{extent}" for extent in extents if draw.random() < 2 / 3}
    return [tuple([named.get(extent, extent) for extent in shape]) for shape in shapes]


def judged(seed: int, target: str, symbols: bool) -> Judged:
    """Return what is found of the group of a seed."""
    kind = CLASSES[seed % len(CLASSES)]
    maker = Maker(seed)
    shapes, build, flops = getattr(maker, kind)()
    found = Judged(seed, kind, shapes)
    declared = symbolic(shapes, seed) if symbols else shapes
    with ln.Fusion(f"{kind}{seed}") as f:
        inputs = [
            f.input(f"x{n}", s, ln.int32 if kind == "gather" and n else ln.float32)
            for n, s in enumerate(declared)
        ]
        f.output(build(*inputs), "y")
    called = calls_of(f) if target == "c" and not symbols else {}
    try:
        found.schedule = auto_schedule(f, target).name
        kernel = ln.lower(f)
        report = ln.verify(kernel)
        asked = any(isinstance(extent, str) for shape in declared for extent in shape)
        found.proved = "yes" if report.ok and (report.all_sizes or not asked) else "no"
        if target == "cuda":
            kernel.cuda()
        if not report.ok or found.proved == "no":
            found.fault = str(report)[-300:]
        elif target == "c" and not symbols:
            _run(found, f, kernel, flops)
            found.functions = sum(count * seconds_of(name) for name, count in called.items())
    except LoopnestError as error:
        found.fault = str(error)
    return found


def _shape(tensor: ln.TensorView) -> tuple[int, ...]:
    return tuple([size_value(size, {}) for size in tensor.sizes])


def _run(found: Judged, f: ln.Fusion, kernel: ln.Kernel, flops: int) -> None:
    draw = np.random.default_rng(found.seed)
    arrays: list[np.ndarray[Any, Any]] = [
        draw.normal(size=_shape(t)).astype(np.float32)
        if t.dtype is ln.float32
        else draw.integers(0, found.shapes[0][0], _shape(t)).astype(np.int32)
        for t in f.inputs
    ]
    run = ln.compile(kernel, target="c")
    result = run(*arrays)
    assert not isinstance(result, tuple)
    found.bytes = sum(a.nbytes for a in arrays) + result.nbytes
    found.work = flops if found.kind in OPERATIONS else found.bytes
    if max([result.size, *[a.size for a in arrays]]) <= CHECKED and flops < 1 << 26:
        verdict = compare("y", result, enclosures(f, arrays, {})["y"])
        found.fault = "" if verdict.ok else str(verdict)[:200]
    out = np.empty_like(result)
    found.seconds = _seconds(lambda: run(*arrays, out=out))


def _seconds(call: Callable[[], object]) -> float:
    """Return the CPU time of a call: the least of three rounds of many calls."""
    call()
    start = time.process_time()
    call()
    count = max(1, round(0.02 / max(time.process_time() - start, 1e-6)))
    rounds = []
    for _ in range(3):
        start = time.process_time()
        for _ in range(count):
            call()
        rounds.append((time.process_time() - start) / count)
    return min(rounds)


def calls_of(f: ln.Fusion) -> Counter[str]:
    """Return how often an unscheduled fusion calls each function."""
    found: Counter[str] = Counter()
    for tensor in f.tensors:
        if tensor.definition is None or tensor.definition.outputs[0] is not tensor:
            continue
        points = 1
        for axis in tensor.root_domain:
            points *= axis.extent if isinstance(axis.extent, int) else size_value(axis.extent, {})
        nodes = [node for value in tensor.definition.values for node in walk(value)]
        for node in nodes:
            if isinstance(node, Op) and OPS[node.op].result == "float":
                found[node.op] += points
    return found


@cache
def seconds_of(function: str) -> float:
    """Return the seconds that a function of float32 takes an element, beside a sum."""
    count = 1 << 14
    x = np.linspace(-3.0, 3.0, count, dtype=np.float32)
    times = []
    for name in ("neg", function):
        with ln.Fusion("called") as f:
            f.output(getattr(ln, name)(f.input("x", (count,), ln.float32)) + 1.0, "y")
        auto_schedule(f)
        run, out = ln.compile(f, target="c"), np.empty_like(x)
        times.append(_seconds(partial(run, x, out=out)))
    return max(times[1] - times[0], 0.0) / count


def rate(groups: Sequence[Judged]) -> float:
    """Set the ratio of each group to its class's best; return the seconds of a launch."""
    timed = [g for g in groups if g.seconds]
    launch = min([g.seconds for g in timed], default=0.0)
    best: dict[tuple[str, int], float] = {}
    for g in timed:
        if g.seconds > 2 * launch:
            best[g.bucket] = max(best.get(g.bucket, 0.0), g.work / (g.seconds - launch))
    for g in timed:
        work = g.work / best[g.bucket] if best.get(g.bucket) else 0.0
        streams = best.get(("pointwise", g.bucket[1]), 0.0)
        work = max(work, g.bytes / streams if streams else 0.0)
        g.ratio = g.seconds / (2 * launch + max(work, g.functions))
    return launch


HELP = """Judge automatic schedules on random groups: right, proved, and how far from the best.

A group is a few ops of one class (pointwise, moved, folded, normalised, product, window, scan,
gather) on tensors whose extents are 0, 1, primes or large. Its class's best is the highest rate
(bytes a second; of products and windows operations a second) among the groups of the class whose
arrays fit the same cache; a group may take as long as a launch and its work at that rate, times
--slack. Its arrays have to be read and written too, at the best rate of the pointwise groups, and
functions (exp, tanh) take what they take an element of an array in a cache, which is measured.
Times are of the CPU, on one thread.

Printed are faults, slow groups, and a row for each class.

\b
    tools/run python tools/bench_groups.py --count 50
    tools/run python tools/bench_groups.py --target cuda      # proved, and compiled by NVRTC
"""


@click.command(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option("--count", default=200, show_default=True, help="How many groups.")
@click.option("--seed", default=0, show_default=True, help="Group n is made of this and n.")
@click.option(
    "--target",
    default="c",
    show_default=True,
    type=click.Choice(["c", "cuda"]),
    help="c: proved, run and timed; cuda: proved, and compiled where NVRTC is there.",
)
@click.option(
    "--slack",
    default=3.0,
    show_default=True,
    help="So many times its class's best a group may take.",
)
@click.option(
    "--symbolic",
    "symbols",
    is_flag=True,
    help="Prove with symbols in place of extents, for all sizes; nothing is run.",
)
@click.option("--out", default="", metavar="FILE", help="Write the table to this file too.")
def main(count: int, seed: int, target: str, slack: float, symbols: bool, out: str) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    groups = [judged(seed + n, target, symbols) for n in range(count)]
    launch = rate(groups)
    columns = ("class", "groups", "right", "proved", f"within {slack:g}x", "schedulers", "worst")
    table = Table(*columns, title=f"{count} random groups on '{target}', seed {seed}")
    for kind in CLASSES:
        own = [g for g in groups if g.kind == kind]
        near = [g for g in own if g.ratio <= slack and not g.fault]
        names = ", ".join(sorted({g.schedule for g in own if g.schedule}))
        worst = max([g.ratio for g in own], default=0.0)
        counts = (len(own), sum(not g.fault for g in own), sum(g.proved == "yes" for g in own))
        table.add_row(kind, *map(str, counts), str(len(near)), names, f"{worst:.1f}")
    near = [g for g in groups if g.ratio <= slack and not g.fault]
    right = sum(not g.fault for g in groups)
    lines = [
        f"{right} of {count} right, {len(near)} within {slack:g}x; launch {launch * 1e6:.1f} us"
    ]
    for g in sorted(groups, key=lambda g: -g.ratio):
        if g.fault or g.ratio > slack:
            why = g.fault or f"{g.ratio:.1f}x, {g.seconds * 1e3:.3f} ms"
            lines.append(f"seed {g.seed} {g.kind} {g.shapes} by {g.schedule or 'none'}: {why}")
    console = Console(width=110, record=True)
    console.print(table)
    for line in lines:
        console.print(line, markup=False, highlight=False)
    if out:
        Path(out).write_text(console.export_text())
    sys.exit(int(any(g.fault for g in groups)))


if __name__ == "__main__":
    main()
