"""Reducers that need not commute, and schedules that combine them over threads and blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import loopnest as ln

PT = ln.ParallelType
Schedule = Callable[[ln.TensorView], object]

AFFINE = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")
"""Composition of linear functions: it does not commute."""


def _farther(a: Any, b: Any) -> Any:
    """Return the larger value and its place: of equals the first one."""
    more = b[0] > a[0]
    return ln.where(more, b[0], a[0]), ln.where(more, b[1], a[1])


FARTHER = ln.Reducer((float("-inf"), 0), _farther, "farther")


def _online(a: Any, b: Any) -> Any:
    """Return the largest value, the sum of exponentials, and a weighted sum of them."""
    most = ln.maximum(a[0], b[0])
    mine, theirs = ln.exp(a[0] - most), ln.exp(b[0] - most)
    return most, a[1] * mine + b[1] * theirs, a[2] * mine + b[2] * theirs


ONLINE = ln.Reducer((float("-inf"), 0.0, 0.0), _online, "online")


def composed(axis: int = 1) -> ln.Fusion:
    """Return a kernel of two components."""
    with ln.Fusion("k") as f:
        x, w = [f.input(name, ("N", "D"), ln.float32) for name in "xw"]
        a, b = ln.reduce(AFFINE, (x, w), axis=axis)
        f.output(a, "a")
        f.output(b, "b")
    return f


def farthest() -> ln.Fusion:
    """Return the largest of x in each row, and what w is there."""
    with ln.Fusion("k") as f:
        x, w = [f.input(name, ("N", "D"), ln.float32) for name in "xw"]
        a, b = ln.reduce(FARTHER, (x, w), axis=1)
        f.output(a, "a")
        f.output(b, "b")
    return f


LAST = ln.Reducer((0.0, False), lambda a, b: (ln.where(b[1], b[0], a[0]), a[1] | b[1]), "last")
"""One of two results is chosen by a flag, as lanes choose which of two comes first."""


def flagged() -> ln.Fusion:
    """Return the last of x in each row whose w is large, and whether there is one."""
    with ln.Fusion("k") as f:
        x, w = [f.input(name, ("N", "D"), ln.float32) for name in "xw"]
        a, b = ln.reduce(LAST, (x, w > 0.25), axis=1)
        f.output(a, "a")
        f.output(b, "b")
    return f


def softmax() -> ln.Fusion:
    """Return a weighted mean by exponentials: three components."""
    with ln.Fusion("k") as f:
        x, v = [f.input(name, ("N", "D"), ln.float32) for name in "xv"]
        _, weight, total = ln.reduce(ONLINE, (x, 1.0, v), axis=1)
        f.output(total / weight, "y")
        f.output(total, "a")
    return f


def items(count: int) -> Schedule:
    """Each thread folds `count` neighbours, a block as many threads as that takes."""
    return lambda y: (y.split(1, count), y.parallelize({0: PT.grid_x, 1: PT.block_x}))


def chunks(threads: int) -> Schedule:
    """Each of `threads` folds a chunk whose size is a symbol."""

    def schedule(y: ln.TensorView) -> None:
        y.split(1, threads, inner=False)
        y.parallelize({0: PT.grid_x, 1: PT.block_x})

    return schedule


def rows(threads: int, dim: ln.ParallelType = PT.block_x) -> Schedule:
    """A block has five rows."""

    def schedule(y: ln.TensorView) -> None:
        y.split(1, threads, inner=False)
        y.split(0, 5)
        other = PT.block_x if dim is PT.block_y else PT.block_y
        y.parallelize({0: PT.grid_x, 1: other, 2: dim})

    return schedule


def bound(*dims: ln.ParallelType) -> Schedule:
    """Neighbours of five, then of 32, of three, of two are bound to `dims`, the outermost first."""

    def schedule(y: ln.TensorView) -> None:
        for size in (5, 2, 32)[: len(dims)]:
            y.split(1, size)
        y.parallelize(dict(enumerate(dims, 1)))

    return schedule


SCHEDULES: dict[str, Schedule] = {
    "whole": lambda y: y.parallelize({0: PT.grid_x, 1: PT.block_x}),
    "items": items(4),
    "warp": chunks(32),
    "lanes": rows(8),
    "warps": chunks(96),
    "odd": chunks(50),
    "across": rows(8, PT.block_y),
    "across, odd": rows(12, PT.block_y),
    "x outside": bound(PT.block_x, PT.block_y),
    "three dimensions": bound(PT.block_y, PT.block_z, PT.block_x),
    "blocks": bound(PT.grid_x),
    "blocks in another order": bound(PT.grid_z, PT.grid_x, PT.grid_y),
    "blocks of threads": bound(PT.grid_x, PT.block_x),
    "a grid of threads": bound(PT.grid_y, PT.grid_x, PT.block_x),
}
"""Each keeps the order: blocks outside, then threads, then the elements of a thread."""


SIZES = ((5, 133), (3, 1), (3, 0))


def check(f: ln.Fusion, k: Any, sizes: tuple[tuple[int, int], ...] = SIZES) -> None:
    """Compare a kernel with the math on the targets of a CPU."""
    for target, options in (("interpret", {}), ("interpret", {"thread_order": 1}), ("c", {})):
        run = ln.compile(k, target=target, **options)
        for size in sizes[:1] if options else sizes:
            compare(f, run, size)


def compare(f: ln.Fusion, run: Callable[..., Any], size: tuple[int, int]) -> None:
    """Compare a run with the math."""
    draw = np.random.default_rng(0)
    arrays = [draw.integers(-9, 9, size).astype(np.float32) / 8 for _ in f.inputs]
    for mine, exact, most in zip(
        run(*arrays), ln.evaluate(f, *arrays), ln.error_bound(f, *arrays), strict=True
    ):
        same = (mine == exact) | (np.isnan(mine) & np.isnan(exact))
        with np.errstate(invalid="ignore"):
            near = abs(mine.astype(np.float64) - exact) <= most
        assert (same | near).all(), size
