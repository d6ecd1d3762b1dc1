"""LeNet on the handwritten digits that scikit-learn ships, trained by one compiled graph.

    tools/run python -m pip install scikit-learn
    tools/run python tools/examples/lenet_digits.py

--epochs 20    passes over the 1,437 images of the training set
--batch 48     images a step
--torch eager,inductor,loopnest    rows of PyTorch: eager, and backends of torch.compile

The graph has a size for the images of a call, ``N``, so that whole batches, the last short one, and
the test set run through the same function. Printed are the loss and the accuracy on the 360 images
of the test set after each epoch, and what a step computes, op by op and as kernels.

Source: LeCun, Bottou, Bengio and Haffner, "Gradient-Based Learning Applied to Document
Recognition", 1998.
"""

from __future__ import annotations

from typing import Any

import click
import numpy as np
import numpy.typing as npt
from resnet_step import Weights
from rich.console import Console
from step_table import StepTable

import loopnest.graph as G

Array = npt.NDArray[Any]
CLASSES = 10
SAME = 1e-3
"""Losses of equal steps differ by rounding alone, which training makes larger step by step."""


def digits() -> tuple[Array, Array, Array, Array]:
    """Return images [N, 1, 8, 8] and classes, of the training set and of the test set."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        hint = "it has the images: pip install scikit-learn"
        raise click.ClickException(f"scikit-learn is not installed; {hint}") from None
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = (found.images[order, None] / 16 - 0.5).astype(np.float32)
    classes = found.target[order].astype(np.int32)
    return images[360:], classes[360:], images[:360], classes[:360]


def lenet(x: G.Node) -> G.Node:
    """Return the scores of each class: two convolutions with pooling, three dense layers."""
    w = Weights()
    y = x
    for channels in (16, 32):
        own = int(y.shape[1])  # type: ignore[arg-type] # only the images have a size
        y = G.conv2d(y, w.make((channels, own, 3, 3), own * 9), padding=1)
        y = G.max_pool2d(G.relu(y + G.reshape(w.constant(0.0, channels), (channels, 1, 1))), 2)
    y = G.reshape(y, ("N", 128))
    for before, after in ((128, 120), (120, 84), (84, CLASSES)):
        y = (y if before == 128 else G.relu(y)) @ w.make((before, after), before)
        y = y + w.constant(0.0, after)
    return y


def training() -> tuple[G.Graph, G.Graph]:
    """Return the graph of a step, and that of the scores; both have the same variables."""
    x, labels = G.var("x", ("N", 1, 8, 8)), G.var("labels", ("N",), "int32")
    scores = lenet(x)
    loss = G.cross_entropy(scores, labels)
    step = G.Graph([x, labels], [loss, G.optim.Adam(0.002).minimize(loss)], "lenet")
    return step, G.Graph([x], [scores], "scores")


def accuracy(scores: Any, images: Array, classes: Array) -> float:
    """Return the share of images whose highest score is that of their class."""
    return float(np.mean(np.argmax(scores(images), axis=1) == classes))


@click.command()
@click.option("--epochs", default=20, help="Passes over the training set.")
@click.option("--batch", default=48, help="Images a step.")
@click.option("--torch", default="", help="eager and backends of torch.compile, by commas.")
def main(epochs: int, batch: int, torch: str) -> None:
    """Train, and print the table."""
    images, classes, test_images, test_classes = digits()
    graph, scores_graph = training()
    step = G.compile(graph)
    scores = G.compile(scores_graph, state=step)
    console = Console(width=120)
    random = np.random.default_rng(1)
    for epoch in range(epochs):
        order = random.permutation(len(images))
        losses = []
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch]
            losses.append(float(step(images[chosen], classes[chosen])[0]))
        found = accuracy(scores, test_images, test_classes)
        console.print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}, test accuracy {found:.2%}")
    table = StepTable(graph, [images[:batch], classes[:batch]], steps=20, sizes={"N": batch})
    table.add_ops()
    table.add_unfused()
    table.add_compiled("fused", step)
    table.add_compiled("fused, no library", G.compile(graph, library=False))
    if torch:
        from torch_twins import adam
        from torch_twins import lenet as twin

        table.add_torch(torch.split(","), twin, adam(0.002))
        console.print(compared(graph, images, classes, batch))
    console.print(table.table)


def compared(graph: G.Graph, images: Array, classes: Array, batch: int, steps: int = 60) -> str:
    """Train by our graph, by torch.compile(backend="loopnest") and eagerly; compare the losses.

    Raises:
        ClickException: losses of the same step differ by more than rounding explains.
    """
    from torch_twins import TorchStep, adam, largest_difference
    from torch_twins import lenet as twin

    ours = G.compile(graph)
    theirs = [TorchStep(graph, twin, adam(0.002), name) for name in ("loopnest", "")]
    losses: list[list[float]] = [[], [], []]
    random = np.random.default_rng(2)
    for _ in range(steps):
        chosen = random.integers(0, len(images), batch)
        arrays = (images[chosen], classes[chosen])
        losses[0].append(float(ours(*arrays)[0]))
        for found, step in zip(losses[1:], theirs, strict=True):
            found.append(step(*arrays))
    compiled, eager = [largest_difference(losses[0], x) for x in losses[1:]]
    if max(compiled, eager) > SAME:
        raise click.ClickException(f"losses differ by {compiled:.1e} and {eager:.1e}")
    said = f"{compiled:.1e} to torch.compile(backend='loopnest'), {eager:.1e} to torch eager"
    return f"{steps} steps: largest difference of our graph's loss {said}"


if __name__ == "__main__":
    main()
