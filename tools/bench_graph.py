"""Time the graph passes on a residual network: `tools/run python tools/bench_graph.py --help`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.table import Table

import loopnest.graph as G
from loopnest.graph.cse_across import Ledger
from loopnest.graph.passes import fuse_ops
from loopnest.graph.passes.fuse_ops_groups import Partition, PostDominators, partition
from loopnest.graph.passes.indexed_graph import forward_graph

HELP = """Time the graph passes on a residual network, forward and backward.

Prints the least time of each step (the gradient, common subexpressions, FuseOps and its partition)
and what the step made. Exit status 1 where the partition takes longer than --limit.

\b
    tools/run python tools/bench_graph.py
    tools/run python tools/bench_graph.py --growth 3    # by which power of the nodes cse grows
"""


@click.command(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--blocks",
    default=24,
    show_default=True,
    help="Residual blocks of two layers each; 24 make the 50-layer network.",
)
@click.option("--repeat", default=5, show_default=True, help="Runs of each step; the best counts.")
@click.option(
    "--limit", default=1.0, show_default=True, help="Seconds that the partition may take."
)
@click.option("--growth", default=0, help="Instead: double the network so often, for cse alone.")
def main(blocks: int, repeat: int, limit: float, growth: int) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from graph.published import residual_network

    if growth:
        Console().print(_growth([residual_network(blocks << i) for i in range(growth + 1)]))
        return
    graph = residual_network(blocks)
    table = Table("step", "milliseconds", "result", title=f"{len(graph.nodes)} nodes")
    spent: dict[str, float] = {}
    for name, run, shown in _steps(graph):
        seconds, result = _fastest(run, repeat)
        spent[name] = seconds
        table.add_row(name, f"{seconds * 1e3:.1f}", shown(result))
    Console().print(table)
    sys.exit(int(spent["partition"] > limit))


Result = TypeVar("Result")

Step = tuple[str, Callable[[], object], Callable[..., str]]


def _growth(graphs: list[G.Graph]) -> Table:
    """Return a table of cse on larger and larger graphs, without and with a budget."""
    table = Table("nodes", "no budget, s", "exponent", "half of the bytes, s", "exponent")
    before: list[float] = []
    for graph in graphs:
        forward, backward = _halves(graph)
        seconds, ledger = _fastest(_budgeted(forward, backward, None), 1)
        half, _ = _fastest(_budgeted(forward, backward, ledger.bytes_stashed // 2), 1)
        now = [len(graph.nodes), seconds, half]
        powers = ["", ""]
        if before:
            more = math.log(now[0] / before[0])
            powers = [f"{math.log(now[i] / before[i]) / more:.2f}" for i in (1, 2)]
        table.add_row(str(now[0]), f"{seconds:.2f}", powers[0], f"{half:.2f}", powers[1])
        before = now
    return table


def _halves(graph: G.Graph) -> tuple[G.Graph, G.Graph]:
    """Return the forward and the backward of a graph whose first output is the loss."""
    forward = G.Graph(graph.inputs, graph.outputs[:1], "forward")
    return forward, G.Graph(graph.inputs, graph.outputs[1:], "backward")


def _steps(graph: G.Graph) -> Iterator[Step]:
    ops = forward_graph(graph)
    yield "forward graph", lambda: forward_graph(graph), lambda found: f"{len(found)} ops"
    yield "post-dominators", lambda: PostDominators(ops), lambda found: ""
    yield "partition", lambda: partition(forward_graph(graph), 256), _groups
    yield "FuseOps, structure unknown", lambda: _forgotten(G.FuseOps(), graph), _functions
    yield "FuseOps, structure known", lambda: G.FuseOps()(graph), _functions
    yield "Distribute", lambda: _law(G.Distribute(), graph), str
    yield "Distribute, regrouping", lambda: _law(G.Distribute(reassociate=True), graph), str
    forward, backward = _halves(graph)
    _, _, whole = G.cse(forward, backward)
    yield "cse, no budget", _budgeted(forward, backward, None), _summary
    for share in (0.75, 0.5, 0.25):
        budget = int(whole.bytes_stashed * share)
        run = _budgeted(forward, backward, budget)
        yield f"cse, {share:.0%} of the bytes", run, _summary


def _budgeted(forward: G.Graph, backward: G.Graph, budget: int | None) -> Callable[[], Ledger]:
    return lambda: G.cse(forward, backward, budget)[2]


def _forgotten(fuse: G.FuseOps, graph: G.Graph) -> G.Graph:
    fuse_ops._PARTITIONS.clear()
    return fuse(graph)


def _law(law: G.Distribute, graph: G.Graph) -> str:
    law(graph)
    return f"{len(law.rewrites)} rewrites"


def _groups(found: Partition) -> str:
    return f"{len(set(found.leaders))} groups, {len(found.merges)} merges"


def _functions(found: G.Graph) -> str:
    return f"{len(found.functions)} calls of {len(set(found.functions))} functions"


def _summary(ledger: object) -> str:
    return str(ledger).splitlines()[-1]


def _fastest(run: Callable[[], Result], repeat: int) -> tuple[float, Result]:
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        result = run()
        best = min(best, time.perf_counter() - start)
    return best, result


if __name__ == "__main__":
    main()
