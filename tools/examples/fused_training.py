"""An activation of one's own, and Adam, as fused kernels.

    tools/run python tools/examples/fused_training.py

--elements 1000000  elements of the activation
--hidden 256        neurons of the layer that Adam trains
--steps 20          timed calls, of which the fastest counts
--no-unfused        no row with a kernel for each op
--torch eager,inductor,loopnest    rows of PyTorch: eager, and backends of torch.compile

`my_sigmoid` is written with simple ops; a step of training is a loss, its gradients and Adam's
updates. The tables have launches, bytes and times of a call: op by op in NumPy, with a kernel an
op, and fused.

Source: the post on NNVM's fusion and run-time compilation, examples 1 and 2.
"""

from __future__ import annotations

import click
import numpy as np
from rich.console import Console
from step_table import StepTable

import loopnest.graph as G


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


@click.command()
@click.option("--elements", default=1_000_000, help="Elements of the activation.")
@click.option("--hidden", default=256, help="Neurons of the trained layer.")
@click.option("--steps", default=20, help="Timed calls.")
@click.option("--torch", default="", help="eager and backends of torch.compile, by commas.")
@click.option("--unfused/--no-unfused", default=True, help="A kernel for each op too.")
def main(elements: int, hidden: int, steps: int, torch: str, unfused: bool) -> None:
    """Print a table a program."""
    for graph in (activation(elements), training(hidden)):
        random = np.random.default_rng(1)
        arrays = [random.uniform(0, 1, x.static_shape).astype(x.dtype.numpy) for x in graph.inputs]
        table = StepTable(graph, arrays, steps)
        table.add_ops()
        if unfused:
            table.add_unfused()
        table.add_compiled("fused", G.compile(graph))
        if graph.variables:
            add_torch(table, torch)
        Console(width=120).print(table.table)


def add_torch(table: StepTable, names: str) -> None:
    """Add the layers and Adam in torch."""
    if names:
        from torch_twins import adam, perceptron

        table.add_torch(names.split(","), perceptron, adam(0.001))


if __name__ == "__main__":
    main()
