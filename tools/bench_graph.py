"""Time the graph passes, and calls at new sizes: `tools/run python tools/bench_graph.py --help`."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

import loopnest.graph as G
from loopnest.graph.cse_across import Ledger
from loopnest.graph.passes import fuse_ops
from loopnest.graph.passes.fuse_ops import Partition, PostDominators, forward_graph, partition

HELP = """Time the graph passes on a residual network, forward and backward.

Prints the least time of each step (the gradient, common subexpressions, FuseOps and its partition)
and what the step made. Exit status 1 where the partition takes longer than --limit.

\b
    tools/run python tools/bench_graph.py
    tools/run python tools/bench_graph.py --growth 3    # by which power of the nodes cse grows
    tools/run python tools/bench_graph.py --generate 12 # tokens of a decoder, beside inductor
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
@click.option(
    "--generate", default=0, help="Instead: so many tokens by torch.compile(…, dynamic=True)."
)
def main(blocks: int, repeat: int, limit: float, growth: int, generate: int) -> None:
    if generate:
        Console().print(_generation(generate, repeat))
        return
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


def _generation(tokens: int, repeat: int) -> Table:
    """Return a table of a decoder that generates tokens behind prompts of new lengths.

    Its cache of keys and values grows by each token, so that each call has sizes never seen before;
    the second time they are known. Processor time of one thread; least ratios count most.
    """
    import torch

    torch.set_num_threads(1)
    backends = ("loopnest", "inductor")
    runs = {name: torch.compile(_decoder(), backend=name, dynamic=True) for name in backends}
    spent: dict[tuple[str, str], list[float]] = {}
    with torch.no_grad():
        for number in range(2 + 4 * repeat):
            prompt = torch.randint(0, 256, (1, 5 + (tokens + 2) * number))
            for name, run in runs.items():
                for kind in ("new", "known"):
                    start = time.process_time()
                    _generate(run, prompt, tokens)
                    seconds = time.process_time() - start
                    if number >= 2:  # graphs are captured before
                        spent.setdefault((name, kind), []).append(seconds)
    table = Table(
        "lengths", *[f"{name}, ms" for name in backends], "ratio", title=f"{tokens} tokens"
    )
    for kind in ("new", "known"):
        ours, theirs = spent["loopnest", kind], spent["inductor", kind]
        ratio = statistics.median([a / b for a, b in zip(ours, theirs, strict=True)])
        medians = [f"{statistics.median(x) * 1e3:.2f}" for x in (ours, theirs)]
        table.add_row(kind, *medians, f"{ratio:.2f}")
    return table


def _generate(run: Callable[..., Any], ids: Any, tokens: int) -> None:
    cache = None
    for _ in range(tokens):
        logits, cache = run(ids, cache)
        ids = logits[:, -1].argmax(-1, keepdim=True)


def _decoder() -> Any:
    """Return a layer of a language model: attention of grouped heads, rotary places, SwiGLU."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    def norm(x: Any) -> Any:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    def split(x: Any) -> Any:
        return x.view(x.shape[0], x.shape[1], -1, 16).transpose(1, 2)

    def rotated(x: Any, angles: Any) -> Any:
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shapes = {"q": 64, "k": 32, "v": 32, "o": 64, "gate": 128, "up": 128, "head": 256}
            for name, width in shapes.items():
                setattr(self, name, nn.Linear(64, width, bias=False))
            self.down, self.words = nn.Linear(128, 64, bias=False), nn.Embedding(256, 64)
            self.register_buffer("rates", 10000.0 ** (-torch.arange(0, 16, 2) / 16))

        def forward(self, ids: Any, cache: Any) -> Any:
            past = 0 if cache is None else cache[0].shape[2]
            places = torch.arange(past, past + ids.shape[1])
            angles = torch.outer(places, self.rates).repeat(1, 2)
            x = self.words(ids)
            y = norm(x)
            keys, values = rotated(split(self.k(y)), angles), split(self.v(y))
            if cache is not None:
                keys, values = (torch.cat(x, 2) for x in zip(cache, (keys, values), strict=True))
            near, far = (t.repeat_interleave(2, 1) for t in (keys, values))
            scores = rotated(split(self.q(y)), angles) @ near.transpose(2, 3) / 4
            hidden = torch.arange(keys.shape[2]) > places[:, None]
            mixed = scores.masked_fill(hidden, -math.inf).softmax(-1) @ far
            x = x + self.o(mixed.transpose(1, 2).flatten(2))
            y = norm(x)
            x = x + self.down(F.silu(self.gate(y)) * self.up(y))
            return self.head(norm(x[:, -1:])), (keys, values)

    torch.manual_seed(0)
    return Decoder()


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
