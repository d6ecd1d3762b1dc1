"""A language model of two transformer layers, trained on the documentation of this repository.

    tools/run python tools/examples/language_model.py

--steps 300    steps of training
--batch 16     pieces of text a step
--length 32    characters of a piece
--torch eager,inductor,loopnest    rows of PyTorch: eager, and backends of torch.compile

Each character is predicted from those before it: an embedding, two layers of causal attention with
four heads and a perceptron, Adam. Printed are the loss, a text that the model writes, and what a
step computes, op by op and as kernels. The batch is a size of the graph, so that writing (one piece
of text at a time) takes the same graph of scores.

Source: Vaswani et al., "Attention Is All You Need", 2017; the order of norms is that of Xiong et
al., "On Layer Normalization in the Transformer Architecture", 2020.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from resnet_step import Weights
from rich.console import Console
from step_table import StepTable

import loopnest.graph as G

Array = npt.NDArray[Any]
DOCS = Path(__file__).resolve().parents[2] / "sched" / "docs"
WIDTH, HEADS, LAYERS = 64, 4, 2


def norm(w: Weights, x: G.Node) -> G.Node:
    """Return a layer norm with weights of its own."""
    return G.layer_norm(x, w.constant(1.0, WIDTH), w.constant(0.0, WIDTH))


def dense(w: Weights, x: G.Node, after: int) -> G.Node:
    """Return a dense layer over the last axis of [B * T, …]."""
    before = int(x.shape[-1])  # type: ignore[arg-type] # only the batch is a size
    return x @ w.make((before, after), 2 * before) + w.constant(0.0, after)


def attention(w: Weights, x: G.Node, length: int) -> G.Node:
    """Return causal attention of four heads: no character sees one behind it."""
    share = WIDTH // HEADS
    parts = [
        G.transpose(G.reshape(dense(w, x, WIDTH), ("B", length, HEADS, share)), (0, 2, 1, 3))
        for _ in range(3)
    ]
    query, key, value = parts
    scores = query @ G.transpose(key, (0, 1, 3, 2)) * share**-0.5
    place = G.iota(length)
    seen = G.ge(G.expand_dims(place, 1), place)
    weights = G.softmax(G.where(seen, scores, -1e9))
    mixed = G.transpose(weights @ value, (0, 2, 1, 3))
    return dense(w, G.reshape(mixed, (f"B * {length}", WIDTH)), WIDTH)


def scores_of(tokens: G.Node, length: int, characters: int) -> G.Node:
    """Return the scores [B * T, characters] of what follows each character."""
    w = Weights()
    flat = G.reshape(tokens, f"B * {length}")
    x = G.take(w.make((characters, WIDTH), 200), flat)
    places = w.make((length, WIDTH), 200)
    x = G.reshape(G.reshape(x, ("B", length, WIDTH)) + places, (f"B * {length}", WIDTH))
    for _ in range(LAYERS):
        x = x + attention(w, norm(w, x), length)
        x = x + dense(w, G.gelu(dense(w, norm(w, x), 4 * WIDTH), "tanh"), WIDTH)
    return dense(w, norm(w, x), characters)


def training(length: int, characters: int) -> tuple[G.Graph, G.Graph]:
    """Return the graph of a step, and that of the scores; both have the same variables."""
    tokens = G.var("tokens", ("B", length), "int32")
    labels = G.var("labels", (f"B * {length}",), "int32")
    scores = scores_of(tokens, length, characters)
    loss = G.cross_entropy(scores, labels)
    step = G.Graph([tokens, labels], [loss, G.optim.Adam(0.002).minimize(loss)], "model")
    return step, G.Graph([tokens], [scores], "scores")


def written(scores: Any, start: Array, count: int, random: np.random.Generator) -> list[int]:
    """Return what the model writes behind a piece of text, a character at a time."""
    text = [int(token) for token in start]
    for _ in range(count):
        seen = np.array([text[-len(start) :]], np.int32)
        last = scores(seen)[-1].astype(np.float64) / 0.6
        chances = np.exp(last - last.max())
        text.append(int(random.choice(len(last), p=chances / chances.sum())))
    return text[len(start) :]


@click.command()
@click.option("--steps", default=300, help="Steps of training.")
@click.option("--batch", default=16, help="Pieces of text a step.")
@click.option("--length", default=32, help="Characters of a piece.")
@click.option("--torch", default="", help="eager and backends of torch.compile, by commas.")
def main(steps: int, batch: int, length: int, torch: str) -> None:
    """Train, write, and print the table."""
    text = "".join([path.read_text() for path in sorted(DOCS.rglob("*.md"))])
    characters = sorted(set(text))
    number = {character: n for n, character in enumerate(characters)}
    tokens = np.array([number[character] for character in text], np.int32)
    graph, scores_graph = training(length, len(characters))
    step, scores = G.compile(graph), G.compile(scores_graph)
    console = Console(width=120, highlight=False)
    random = np.random.default_rng(0)

    def pieces() -> list[Array]:
        starts = random.integers(0, len(tokens) - length - 1, batch)
        found = np.stack([tokens[start : start + length + 1] for start in starts])
        return [found[:, :-1].copy(), found[:, 1:].reshape(-1)]

    losses: list[float] = []
    for done in range(1, steps + 1):
        losses.append(float(step(*pieces())[0]))
        if done % max(steps // 10, 1) == 0:
            console.print(f"step {done}: loss {np.mean(losses[-20:]):.3f}")
    for name, value in scores.state.items():
        value[...] = step.state[name]
    made = written(scores, tokens[:length], 120, random)
    console.print("written: " + repr("".join([characters[token] for token in made])), markup=False)
    table = StepTable(graph, pieces(), steps=20, sizes={"B": batch})
    table.add_ops()
    table.add_unfused()
    table.add_compiled("fused", step)
    table.add_compiled("fused, no library", G.compile(graph, library=False))
    if torch:
        from torch_twins import adam, language_model

        model = language_model(WIDTH, HEADS, LAYERS)
        table.add_torch(torch.split(","), model, adam(0.002))
    console.print(table.table)


if __name__ == "__main__":
    main()
