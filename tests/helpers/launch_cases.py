"""Fusions of several launches: what passes between them, and how each launch is shaped."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import loopnest as ln

PT = ln.ParallelType


def split_sum() -> ln.Fusion:
    """A sum of parts that blocks summed: two launches with grids and blocks of their own."""
    with ln.Fusion("split_sum") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(ln.sum(x, axis=0), "y")
    y.split(0, 8)
    part = y.rfactor(1)
    part.memory = ln.GLOBAL
    part.split(0, 4)
    part.parallelize({0: PT.grid_x, 1: PT.block_x})
    y.new_launch()
    y.split(0, 32)
    y.parallelize({1: PT.block_x})
    return f


def normalized() -> ln.Fusion:
    """Columns over their largest element, which is an output: read with a cache, in two tiles."""
    with ln.Fusion("normalized") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        top = f.output(ln.max(x, axis=0), "top")
        y = f.output(x / top, "y")
    top.split(1, 4)
    top.reorder({0: 2})
    top.parallelize({0: PT.grid_x, 1: PT.block_x})
    held = top.cache_after()
    held.memory = ln.SHARED
    y.split(1, 16)
    y.reorder({1: 0})
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    y.new_launch()
    held.compute_at(y, 1)
    f.inline_most()
    held.axis(-1).parallelize(PT.block_x)
    return f


def scanned() -> ln.Fusion:
    """A scan in three launches: of segments, of their totals, and both together."""
    with ln.Fusion("scanned") as f:
        x = f.input("x", ("N",), ln.float32)
        y = f.output(ln.cumsum(x, axis=0), "y")
    y.split(0, 16)
    inner = y.rfactor([1])
    before = next(p for p in y.producers if p is not inner)
    (totals,) = before.producers
    inner.memory = before.memory = ln.GLOBAL
    inner.split(0, 4)
    inner.parallelize({0: PT.grid_x, 1: PT.block_x})
    before.new_launch()
    totals.compute_at(before, -1)
    y.new_launch()
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    return f


def two_results() -> ln.Fusion:
    """Mean and variance of columns in one launch, both read by the next one."""
    with ln.Fusion("two_results") as f:
        x = f.input("x", (12, "D"), ln.float32)
        mean, var, _ = ln.welford(x, 0)
        y = f.output((x - mean) * ln.rsqrt(var + 1.0), "y")
    mean.memory = var.memory = ln.GLOBAL
    mean.parallelize({1: PT.grid_x, 0: PT.block_x})
    y.split(0, 3)
    y.parallelize({0: PT.grid_x, 1: PT.block_y, 2: PT.block_x})
    y.new_launch()
    chain = next(t for t in ln.use_chains(var) if t[-1] is y)[1:]
    ln.propagate(y, tensors=[*chain, *mean.consumers, *mean.consumers[0].consumers])
    f.inline_most()
    return f


def masked() -> ln.Fusion:
    """Rows of a triangle, stored with the identity outside of it, which the next launch skips."""
    with ln.Fusion("masked") as f:
        x = f.input("x", ("N", "N"), ln.float32)
        rows = ln.broadcast(ln.iota("N"), (False, True))
        columns = ln.broadcast(ln.iota("N"), (True, False))
        t = ln.where(columns <= rows, x, 0.0)
        y = f.output(ln.sum(t, axis=1), "y")
    t.memory = ln.GLOBAL
    t.parallelize({0: PT.grid_x, 1: PT.block_x})
    y.new_launch()
    y.parallelize({0: PT.grid_x})
    rows.compute_at(t, -1)
    columns.compute_at(t, -1)
    f.inline_most()
    return f


CASES: dict[str, tuple[Callable[[], ln.Fusion], tuple[int, ...], int]] = {
    "split_sum": (split_sum, (77,), 2),
    "normalized": (normalized, (5, 37), 2),
    "scanned": (scanned, (150,), 3),
    "two_results": (two_results, (12, 11), 2),
    "masked": (masked, (7, 7), 2),
}
"""By name: the fusion, the shape of its input, and how many launches it is."""


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    """Return an input: positive numbers, none too small."""
    return np.random.default_rng(0).random(shape, np.float32) + np.float32(0.5)
