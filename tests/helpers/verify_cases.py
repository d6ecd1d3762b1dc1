"""Fusions under schedules of all kinds, as cases of the proofs."""

from __future__ import annotations

from collections.abc import Callable

import loopnest as ln
from loopnest.facade.kernel_class import Kernel
from loopnest.scalar.enums import ParallelType as PT

CASES: dict[str, Callable[[], ln.Fusion]] = {}


def case(make: Callable[[], ln.Fusion]) -> Callable[[], ln.Fusion]:
    CASES[make.__name__] = make
    return make


@case
def row_sum() -> ln.Fusion:
    with ln.Fusion("row_sum") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        y = f.output(ln.sum(x, axis=1), "y")
    t = y.cache_before()
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_y})
    t.compute_at(y, 2)
    return f


@case
def softmax_half() -> ln.Fusion:
    with ln.Fusion("softmax") as f:
        x = f.input("x", ("N", "D"), ln.float16)
        a = f.scalar("alpha", ln.float32)
        e = ln.exp(a * (x - ln.max(x, axis=1, keepdims=True)))
        y = f.output(e / ln.sum(e, axis=1, keepdims=True), "y")
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_y})
    ln.propagate(y, 2)
    f.inline_most()
    return f


def _sums_of_rows(name: str) -> tuple[ln.Fusion, ln.TensorView]:
    with ln.Fusion(name) as f:
        y = f.output(ln.sum(f.input("x", ("N", "D"), ln.float32), axis=1), "y")
    return f, y


@case
def factored() -> ln.Fusion:
    f, y = _sums_of_rows("factored")
    y.split(1, 4)
    y.rfactor(1).compute_at(y, 1)
    return f


@case
def factored_outer() -> ln.Fusion:
    f, y = _sums_of_rows("factored_outer")
    y.split(1, 9, inner=False)
    y.rfactor(2).compute_at(y, 1)
    return f


@case
def welford() -> ln.Fusion:
    with ln.Fusion("welford") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        mean, var, _ = ln.welford(x, axis=1)
        f.output(mean, "m")
        f.output(var, "v")
    mean.split(1, 4)
    mean.rfactor(1).compute_at(mean, 1)
    return f


@case
def merged() -> ln.Fusion:
    with ln.Fusion("merged") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        b = f.input("b", ("D",), ln.float32)
        t = x + b
        y = f.output(ln.exp(t), "y")
    y.merge(0)
    y.split(0, 128)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    t.compute_at(y, 2)
    f.inline_most()
    return f


@case
def in_place() -> ln.Fusion:
    with ln.Fusion("in_place") as f:
        x = f.input("x", ("N",), ln.float32)
        t = x * 2.0
        y = f.output(ln.exp(t), "y", inplace=x)
    y.split(0, 4)
    y.split(0, 8)
    y.parallelize({0: PT.grid_x, 1: PT.unswitch, 2: PT.vectorize})
    t.compute_at(y, 2)
    return f


@case
def gemm() -> ln.Fusion:
    with ln.Fusion("gemm") as f:
        a = f.input("a", ("M", "K"), ln.float32)
        b = f.input("b", ("K", "N"), ln.float32)
        y = f.output(a @ b, "y")
    t = y.cache_before()
    y.split(0, 4)
    y.split(2, 4)
    y.reorder([0, 2, 1, 3])
    y.parallelize({0: PT.grid_y, 1: PT.grid_x, 2: PT.block_y, 3: PT.block_x})
    t.compute_at(y, 4)
    f.inline_most()
    return f


@case
def promoted() -> ln.Fusion:
    with ln.Fusion("promoted") as f:
        x = f.input("x", ("N",), ln.float32)
        t = ln.exp(x)
        u = ln.broadcast(t, (False, True))
        z = f.input("z", ("N", "K"), ln.float32)
        y = f.output(u + z, "y")
    y.merge(0)
    y.split(0, 8)
    u.compute_at(y, 2)
    t.compute_at(y, 2)
    return f


def math_of(k: Kernel) -> object:
    make = k._lowered.math
    assert make is not None
    return make()
