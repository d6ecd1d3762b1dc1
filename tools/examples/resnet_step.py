"""A step of training of a residual network: ResNet-18 or -50, at a small size.

    tools/run python tools/examples/resnet_step.py

--depth 50     18 or 50
--batch 4      images
--size 64      their height and width
--steps 3      timed steps, of which the fastest counts
--unfused      a row with a kernel for each op, of which there are hundreds to compile
--torch eager,inductor,loopnest    rows of PyTorch: eager, and backends of torch.compile

The table has what one step computes: op by op, and as the kernels that `G.compile` makes of it.

Source: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", 2015.
"""

from __future__ import annotations

import os
import time

import click
import numpy as np
from rich.console import Console
from step_table import StepTable

import loopnest.graph as G

BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
CLASSES = 10


class Weights:
    """Variables with random first values, by their numbers."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.count = 0

    def make(self, shape: tuple[int, ...], fan: int) -> G.Node:
        """Return a variable of random values, so that sums over `fan` operands keep their size."""
        self.count += 1
        value = self.random.normal(size=shape) * np.sqrt(2 / fan)
        return G.Variable(value.astype(np.float32), f"w{self.count}")

    def constant(self, value: float, extent: int) -> G.Node:
        """Return a variable that begins with one number."""
        self.count += 1
        return G.Variable(np.full(extent, value, np.float32), f"w{self.count}")


def conv_norm(w: Weights, x: G.Node, channels: int, size: int, stride: int = 1) -> G.Node:
    """Return a convolution and its batch norm."""
    own = int(x.static_shape[1])
    kernel = w.make((channels, own, size, size), own * size * size)
    y = G.conv2d(x, kernel, stride, size // 2)
    return G.batch_norm(y, w.constant(1.0, channels), w.constant(0.0, channels))


def block(w: Weights, x: G.Node, channels: int, stride: int, wide: bool) -> G.Node:
    """Return a residual block: two convolutions, or a bottleneck of three where `wide`."""
    out = channels * 4 if wide else channels
    shortcut = x if x.shape[1] == out and stride == 1 else conv_norm(w, x, out, 1, stride)
    if wide:
        y = G.relu(conv_norm(w, x, channels, 1))
        y = G.relu(conv_norm(w, y, channels, 3, stride))
        y = conv_norm(w, y, out, 1)
    else:
        y = G.relu(conv_norm(w, x, channels, 3, stride))
        y = conv_norm(w, y, channels, 3)
    return G.relu(y + shortcut)


def training(depth: int, batch: int, size: int) -> G.Graph:
    """Return the graph of a step: the loss, and the updates of all weights."""
    w = Weights()
    x, labels = G.var("x", (batch, 3, size, size)), G.var("labels", (batch,), "int32")
    y = G.relu(conv_norm(w, x, 64, 7, 2))
    y = G.max_pool2d(y, 3, 2, 1)
    for stage, count in enumerate(BLOCKS[depth]):
        for number in range(count):
            y = block(w, y, 64 << stage, 2 if stage and not number else 1, depth == 50)
    features = G.mean(y, (2, 3))
    logits = features @ w.make((int(features.static_shape[1]), CLASSES), CLASSES * 50)
    loss = G.cross_entropy(logits + w.constant(0.0, CLASSES), labels)
    return G.Graph([x, labels], [loss, G.optim.SGD(0.01, 0.9).minimize(loss)], f"resnet{depth}")


@click.command()
@click.option("--depth", default=50, type=click.Choice([18, 50]), help="Layers.")
@click.option("--batch", default=4, help="Images.")
@click.option("--size", default=64, help="Height and width of an image.")
@click.option("--steps", default=3, help="Timed steps.")
@click.option("--unfused", is_flag=True, help="A kernel for each op too.")
@click.option("--torch", default="", help="eager and backends of torch.compile, by commas.")
def main(depth: int, batch: int, size: int, steps: int, unfused: bool, torch: str) -> None:
    """Print a row a way to compute the step."""
    graph = training(depth, batch, size)
    random = np.random.default_rng(1)
    arrays = [
        random.normal(size=(batch, 3, size, size)).astype(np.float32),
        random.integers(0, CLASSES, batch).astype(np.int32),
    ]
    start, before = time.perf_counter(), os.times()
    fn = G.compile(graph)
    seconds, now = time.perf_counter() - start, os.times()
    worked = sum(now[:4]) - sum(before[:4])
    table = StepTable(graph, arrays, steps)
    table.add_ops()
    if unfused:
        table.add_unfused()
    table.add_compiled("fused", fn)
    if torch:
        from torch_twins import resnet, sgd

        table.add_torch(torch.split(","), resnet(BLOCKS[depth], depth == 50), sgd(0.01, 0.9))
    console = Console(width=120)
    console.print(table.table)
    bodies = len({id(launch.kernel) for launch in fn.kernels if launch.kernel is not None})
    shown = f"{seconds:.1f} s, {worked:.1f} s of all cores"
    console.print(f"compiled in {shown}: {len(fn.kernels)} launches, {bodies} kernels")
    besides = fn.profile(*arrays, calls=steps).overhead
    console.print(f"a call takes {besides * 1e3:.3f} ms besides its launches")


if __name__ == "__main__":
    main()
