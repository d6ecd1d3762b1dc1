"""A U-Net that finds discs in noise: each pixel is inside of one, or not.

    tools/run python tools/examples/unet_discs.py

--steps 150    steps of training
--batch 8      images a step
--size 32      their height and width, a multiple of 4
--torch eager,inductor,loopnest    rows of PyTorch: eager, and backends of torch.compile

Features are computed at three sizes. On the way back an image is made twice as large, each pixel
repeated, and the features of that size from the way down are put beside it: values that wait for
their reader while all between is computed. Printed are the loss, how well the discs of new images
are found (the intersection of what is found and what is there, by their union), and what a step
computes.

Source: Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image
Segmentation", 2015.
"""

from __future__ import annotations

from typing import Any

import click
import numpy as np
import numpy.typing as npt
from resnet_step import Weights, conv_norm
from rich.console import Console
from step_table import StepTable

import loopnest.graph as G

Array = npt.NDArray[Any]
CHANNELS, LEVELS = 8, 2


def twice(w: Weights, x: G.Node, channels: int) -> G.Node:
    """Return two convolutions with norms."""
    y = G.relu(conv_norm(w, x, channels, 3))
    return G.relu(conv_norm(w, y, channels, 3))


def enlarged(x: G.Node) -> G.Node:
    """Return images twice as high and wide, each pixel four times."""
    batch, channels, height, width = x.static_shape
    cells = G.expand_dims(x, (3, 5))
    cells = G.broadcast_to(cells, (batch, channels, height, 2, width, 2))
    return G.reshape(cells, (batch, channels, 2 * height, 2 * width))


def scores_of(x: G.Node) -> G.Node:
    """Return the score [N, H, W] of each pixel: above 0 inside of a disc."""
    w = Weights()
    skipped: list[G.Node] = []
    y = x
    for level in range(LEVELS):
        y = twice(w, y, CHANNELS << level)
        skipped.append(y)
        y = G.max_pool2d(y, 2)
    y = twice(w, y, CHANNELS << LEVELS)
    for level in reversed(range(LEVELS)):
        y = G.relu(conv_norm(w, enlarged(y), CHANNELS << level, 1))
        y = twice(w, G.concatenate([skipped[level], y], 1), CHANNELS << level)
    y = G.conv2d(y, w.make((1, CHANNELS, 1, 1), CHANNELS), 1, 0) + w.constant(0.0, 1)
    return G.squeeze(y, 1)


def training(batch: int, size: int) -> tuple[G.Graph, G.Graph]:
    """Return the graph of a step, and that of the scores; both have the same variables."""
    x = G.var("x", (batch, 1, size, size))
    inside = G.var("inside", (batch, size, size))
    scores = scores_of(x)
    # The cross entropy of a pixel of two classes, of numbers that do not overflow.
    costs = G.relu(scores) - scores * inside + G.log1p(G.exp(-G.abs(scores)))
    loss = G.mean(costs)
    step = G.Graph([x, inside], [loss, G.optim.Adam(0.003).minimize(loss)], "unet")
    return step, G.Graph([x], [scores], "scores")


def discs(random: np.random.Generator, batch: int, size: int) -> list[Array]:
    """Return noisy images [N, 1, H, W] of three discs each, and where these are [N, H, W]."""
    rows, columns = np.mgrid[:size, :size]
    inside = np.zeros((batch, size, size), bool)
    for image in inside:
        for row, column, radius in random.uniform((0, 0, 2), (size, size, size / 5), (3, 3)):
            image |= (rows - row) ** 2 + (columns - column) ** 2 < radius**2
    noise = random.normal(size=(batch, 1, size, size))
    return [(inside[:, None] + noise).astype(np.float32), inside.astype(np.float32)]


@click.command()
@click.option("--steps", default=150, help="Steps of training.")
@click.option("--batch", default=8, help="Images a step.")
@click.option("--size", default=32, help="Height and width of an image.")
@click.option("--torch", default="", help="eager and backends of torch.compile, by commas.")
def main(steps: int, batch: int, size: int, torch: str) -> None:
    """Train, look at new images, and print the table."""
    graph, scores_graph = training(batch, size)
    step = G.compile(graph)
    scores = G.compile(scores_graph, state=step)
    console = Console(width=120, highlight=False)
    random = np.random.default_rng(0)
    losses: list[float] = []
    for done in range(1, steps + 1):
        losses.append(float(step(*discs(random, batch, size))[0]))
        if done % max(steps // 5, 1) == 0:
            console.print(f"step {done}: loss {np.mean(losses[-20:]):.3f}")
    found, wanted = [], []
    for _ in range(8):
        images, inside = discs(random, batch, size)
        found.append(scores(images) > 0)
        wanted.append(inside > 0)
    both = np.logical_and(found, wanted).sum() / np.logical_or(found, wanted).sum()
    console.print(f"new images: intersection by union {both:.2f}")
    table = StepTable(graph, discs(random, batch, size), steps=20)
    table.add_ops()
    table.add_unfused()
    table.add_compiled("fused", step)
    table.add_compiled("fused, no library", G.compile(graph, library=False))
    if torch:
        from torch_twins import adam, unet

        table.add_torch(torch.split(","), unet(LEVELS), adam(0.003))
    console.print(table.table)


if __name__ == "__main__":
    main()
