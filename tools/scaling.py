"""How the generator's time grows: `tools/run python tools/scaling.py --help`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from time import process_time

import click
import numpy as np

import loopnest as ln
from loopnest import graph as G

Run = Callable[[], object]

CASES: dict[str, Callable[[int], Run]] = {}
"""Name -> from a number of tensors to what is timed; what it needs is made before."""

PT = ln.ParallelType


def case(make: Callable[[int], Run]) -> Callable[[int], Run]:
    CASES[make.__name__] = make
    return make


def chain(count: int) -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return a fusion in which each tensor is computed from the one before."""
    with ln.Fusion("chain") as f:
        made = [f.input("x", (1024,), ln.float32)]
        for number in range(count):
            made.append(made[-1] * (1.0 + number))
        f.output(made[-1], "y")
    return f, made


def norms(count: int) -> tuple[ln.Fusion, list[ln.TensorView]]:
    """Return a fusion of rows from which their sum is taken again and again, and the sums."""
    sums = []
    with ln.Fusion("norms") as f:
        x = f.input("x", (64, 128), ln.float32)
        for number in range(count // 4):
            total = ln.sum(x, axis=1, keepdims=True)
            assert total.reduction is not None
            sums.append(total.reduction)
            x = x * (0.5 + number) - total
        f.output(x, "y")
    return f, sums


def rows_of_threads(count: int) -> ln.Fusion:
    """Return `norms` with a row for each block, reduced by its threads."""
    f, _ = norms(count)
    for tensor in f.tensors:
        if tensor.definition is not None and tensor.domain.leaf:
            tensor.parallelize({0: PT.grid_x, 1: PT.block_x})
    f.inline_most()
    return f


@case
def definition_of_a_chain(count: int) -> Run:
    return partial(chain, count)


@case
def definition_with_fan_out(count: int) -> Run:
    def run() -> None:
        with ln.Fusion("fan") as f:
            x = f.input("x", (64,), ln.float32)
            total = x
            for number in range(count // 2):
                total = total + x * (1.0 + number)
            f.output(total, "y")

    return run


@case
def compute_at_the_consumer(count: int) -> Run:
    _, made = chain(count)

    def run() -> None:
        made[-1].split(0, 32)
        for tensor, consumer in reversed(list(pairwise(made[1:]))):
            tensor.compute_at(consumer, 2)

    return run


@case
def compute_at_the_output(count: int) -> Run:
    _, made = chain(count)

    def run() -> None:
        made[-1].split(0, 32)
        for tensor in reversed(made[1:-1]):
            tensor.compute_at(made[-1], 2)

    return run


@case
def compute_at_from_the_first_on(count: int) -> Run:
    _, made = chain(count)

    def run() -> None:
        for tensor, consumer in pairwise(made[1:]):
            tensor.compute_at(consumer, 1)

    return run


@case
def inline_most_of_many_reductions(count: int) -> Run:
    return norms(count)[0].inline_most


@case
def lowering_of_a_chain(count: int) -> Run:
    f, _ = chain(count)
    f.inline_most()
    return partial(ln.lower, f)


@case
def lowering_of_reductions_of_threads(count: int) -> Run:
    return partial(ln.lower, rows_of_threads(count))


@case
def proof_for_all_sizes(count: int) -> Run:
    f, _ = chain(count)
    f.inline_most()
    return partial(ln.verify, ln.lower(f))


@case
def proof_at_sizes(count: int) -> Run:
    """Where one tensor reads at an index that isl does not know."""
    with ln.Fusion("turned") as f:
        x = f.input("x", ("N",), ln.float32)
        made = ln.roll(x, 1, 0)
        for number in range(count):
            made = made * (1.0 + number)
        f.output(made, "y")
    f.inline_most()
    return partial(ln.verify, ln.lower(f))


def two_passes(count: int) -> tuple[G.Graph, G.Graph]:
    """Return a chain of activations and its gradient."""
    x, dy = G.var("x", (4,)), G.var("dy", (4,))
    y = x
    for _ in range(count // 2):
        y = G.tanh(y) * x
    return G.Graph([x], [y], "forward"), G.Graph([x, dy], G.gradient(y, [x], dy), "backward")


@case
def common_subexpressions(count: int) -> Run:
    return partial(G.cse, *two_passes(count))


@case
def common_subexpressions_under_a_budget(count: int) -> Run:
    return partial(G.cse, *two_passes(count), 4 * count)


def growth(make: Callable[[int], Run], sizes: list[int]) -> Iterator[tuple[int, float]]:
    """Yield the CPU seconds at each size, the least of some runs."""
    for size in sizes:
        taken = []
        for _ in range(3):
            run = make(size)
            start = process_time()
            run()
            taken.append(process_time() - start)
            if sum(taken) > 2.0:
                break
        yield size, min(taken)


HELP = """Measure how the time of definition, schedules, lowering, proofs and graph passes grows.

Each case makes a program of so many tensors, at sizes that double up to --most. Printed are the CPU
seconds at each size and the exponent over the last two doublings: 1.0 where twice the tensors take
twice the time.

\b
    tools/run python tools/scaling.py
    tools/run python tools/scaling.py --case proof_for_all_sizes --most 4000
"""


@click.command(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--case",
    "names",
    multiple=True,
    type=click.Choice(list(CASES)),
    help="Only this case; may be given several times.",
)
@click.option("--most", default=2000, show_default=True, help="How many tensors at most.")
@click.option(
    "--seconds", default=60.0, show_default=True, help="End a case where one run takes longer."
)
def main(names: tuple[str, ...], most: int, seconds: float) -> None:
    sizes = [most >> shift for shift in (4, 3, 2, 1, 0)]
    print(f"| case | {' | '.join(map(str, sizes))} | exponent |")
    print("| --- |" + " ---: |" * (len(sizes) + 1))
    for name in names or CASES:
        found: list[tuple[int, float]] = []
        for size, taken in growth(CASES[name], sizes):
            found.append((size, taken))
            if taken > seconds:
                break
        logs = np.log([[n, t] for n, t in found[-3:]])
        slope = np.polyfit(logs[:, 0], logs[:, 1], 1)[0] if len(found) > 1 else math.nan
        cells = [f"{taken:.3g}" for _, taken in found] + [""] * (len(sizes) - len(found))
        print(f"| {name.replace('_', ' ')} | {' | '.join(cells)} | {slope:.2f} |", flush=True)


if __name__ == "__main__":
    main()
