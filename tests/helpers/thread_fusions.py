"""Fusions whose values cross threads, and what their nests hold."""

from __future__ import annotations

from collections.abc import Sequence

import loopnest as ln
from loopnest.kir import Barrier, Collective, Loop, Shuffle

PT = ln.ParallelType


def nest(f: ln.Fusion) -> list[str]:
    return str(ln.lower(f)).splitlines()[2:]


def barriers(f: ln.Fusion) -> list[tuple[str, int]]:
    """Return the scope of each barrier and how many real loops it stands in."""
    return [
        (node.scope, sum(isinstance(a, Loop) for a in ancestors))
        for node, ancestors in ln.lower(f).walk()
        if isinstance(node, Barrier)
    ]


def chain(*extents: int | str, copies: int = 1) -> tuple[ln.Fusion, Sequence[ln.TensorView]]:
    """Return a fusion of doubled copies of x, the last one its output."""
    with ln.Fusion("k") as f:
        x = f.input("x", extents, ln.float32)
        made = [x]
        for _ in range(copies + 1):
            made.append(made[-1] * 2.0)
        f.output(made[-1], "y")
    return f, made[1:]


def summed(*block: int | str, dims: Sequence[ln.ParallelType], over: Sequence[int]) -> ln.Fusion:
    """Return the sum of x over axes of a block; all axes are bound to threads."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", *block), ln.float32)
        y = f.output(ln.sum(x, axis=tuple(n + 1 for n in over)), "y")
    y.parallelize({0: PT.grid_x, **{n + 1: d for n, d in enumerate(dims)}})
    return f


def collective(f: ln.Fusion) -> Collective:
    (found,) = [n for n, _ in ln.lower(f).walk() if isinstance(n, Collective)]
    return found


def shuffles(f: ln.Fusion) -> list[str]:
    nodes = [n for n, _ in ln.lower(f).walk() if isinstance(n, Shuffle)]
    return [f"{n.mode} {n.offset}" for n in nodes]
