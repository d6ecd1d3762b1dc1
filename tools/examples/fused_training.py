"""An activation of one's own, and Adam, as fused kernels.

    tools/run python tools/examples/fused_training.py

--elements 1000000  elements of the activation
--hidden 256        neurons of the layer that Adam trains
--steps 20          timed calls, of which the fastest counts

`my_sigmoid` is written with simple ops; a step of training is a loss, its gradients and Adam's
updates. The table has for each: the ops, and the bytes that they move one by one; the kernels that
they become, and the bytes that these move; and the time of a call, beside NumPy's op by op.

Source: the post on NNVM's fusion and run-time compilation, examples 1 and 2.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import loopnest.graph as G
from loopnest.graph.cost import traffic
from loopnest.graph.node import LEAVES


def my_sigmoid(x: G.Node) -> G.Node:
    """Return the sigmoid by simple ops."""
    return 1.0 / (1.0 + G.exp(-x))


def activation(elements: int) -> G.Graph:
    """Return the activation and its gradient."""
    x = G.var("x", (elements,))
    y = my_sigmoid(x)
    return G.Graph([x], [y, *G.gradient(y, [x])], "my_sigmoid")


def training(hidden: int, batch: int = 64, features: int = 100, classes: int = 10) -> G.Graph:
    """Return a step of training of two layers by Adam."""
    random = np.random.default_rng(0)
    x, labels = G.var("x", (batch, features)), G.var("labels", (batch, classes))
    shapes = ((features, hidden), (hidden,), (hidden, classes), (classes,))
    w1, b1, w2, b2 = [
        G.Variable(random.normal(size=shape).astype(np.float32) * 0.1, f"p{number}")
        for number, shape in enumerate(shapes)
    ]
    loss = G.cross_entropy(my_sigmoid(x @ w1 + b1) @ w2 + b2, labels)
    return G.Graph([x, labels], [loss, G.optim.Adam(0.001).minimize(loss)], "training")


def fastest(run: Callable[[], object], steps: int) -> float:
    """Return the milliseconds of the fastest of some calls."""
    spent = []
    for _ in range(steps):
        start = time.perf_counter()
        run()
        spent.append(time.perf_counter() - start)
    return 1e3 * min(spent)


@click.command()
@click.option("--elements", default=1_000_000, help="Elements of the activation.")
@click.option("--hidden", default=256, help="Neurons of the trained layer.")
@click.option("--steps", default=20, help="Timed calls.")
def main(elements: int, hidden: int, steps: int) -> None:
    """Print a row a program."""
    table = Table("program", "ops", "MB", "kernels", "MB", "of it library", "ms", "NumPy, ms")
    for graph in (activation(elements), training(hidden)):
        random = np.random.default_rng(1)
        arrays = [random.uniform(0, 1, x.shape).astype(x.dtype.numpy) for x in graph.inputs]
        feeds = {x.name: array for x, array in zip(graph.inputs, arrays, strict=True)}
        fn = G.compile(graph)
        single = [n for n in G.Decompose()(graph).nodes if n.op not in LEAVES and not n.is_tuple]
        state: dict[str, np.ndarray] = {}
        table.add_row(
            graph.name,
            str(len(single)),
            f"{sum(map(traffic, single)) / 1e6:.2f}",
            str(len(fn.kernels)),
            f"{sum(launch.bytes for launch in fn.kernels) / 1e6:.2f}",
            str(sum(launch.library for launch in fn.kernels)),
            f"{fastest(lambda fn=fn, arrays=arrays: fn(*arrays), steps):.3f}",
            f"{fastest(lambda g=graph, f=feeds, s=state: G.evaluate(g, f, s), steps):.3f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
