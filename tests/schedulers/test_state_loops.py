"""Automatic schedules of loops that carry state: alone, and as stages among others."""

import numpy as np
import pytest

import loopnest as ln
from loopnest import kir
from loopnest.schedulers import Processor, auto_schedule

F = ln.float32
SIZES = {"T": 4, "B": 3, "H": 6, "K": 5, "N": 130, "C": 7}


def cells(x, a):
    """Two states, the one read by the other, from the last slice to the first."""

    def step(state, x):
        h, c = state
        return ln.tanh(h * 0.5 + x), c + h

    return ln.recur(step, (a, a), over=x, reverse=True)


def network(x, h, u, w):
    return ln.recur(lambda h, x: ln.tanh(h @ w + x), h, over=x @ u)


def classes(x, h, u, w, v):
    """The last state alone, of a step that has the product with the inputs, and what follows."""
    last = ln.recur(lambda h, x: ln.tanh(h @ w + x @ u), h, over=x, keep="last")
    return ln.logsumexp(last @ v, axis=1, keepdims=True)


def weights(x, a):
    def step(h, x):
        e = ln.exp(h + x)
        return e / ln.sum(e, axis=0, keepdims=True)

    return ln.recur(step, a, over=x, keep="last")


def wave(a, b):
    def step(state, _):
        before, now = state
        wide = ln.pad(now, ((1, 1),))
        return 2.0 * now - before + 0.1 * (wide[2:] + wide[:-2] - 2.0 * now)

    return ln.recur(step, (a, b), steps=5, depth=2)


def both_ways(x, h, u, w):
    """Two loops, and a third one over what both made."""
    ahead = ln.recur(lambda h, x: ln.tanh(h @ w + x), h, over=x @ u)
    back = ln.recur(lambda h, x: ln.tanh(h @ w + x), h, over=x @ u, reverse=True)
    both = ln.concatenate((ahead, back), axis=2)
    total = ln.recur(
        lambda h, x: h * 0.5 + ln.sum(x, axis=1, keepdims=True), h, over=both, keep="last"
    )
    return ln.sum(total, axis=1)


def root(a):
    """A state without axes, between a fold and what reads it everywhere."""
    s = ln.sum(a * a)
    r = ln.recur(lambda r, _: 0.5 * (r + s / r), ln.full((), 1.0, F), steps=8, keep="last")
    return a / r


def paths(e, t, p):
    found = ln.recur(lambda v, e: ln.max(ln.reshape(v, ("C", 1)) + t, axis=0) + e, p, over=e)
    return found, ln.argmax(found, axis=1)


ROWS, LAYER = ("T", "B", "K"), [("B", "H"), ("K", "H"), ("H", "H")]
CASES = {
    "cells": (cells, [("T", "N"), ("N",)], "steps"),
    "network": (network, [ROWS, *LAYER], "stages"),
    "classes": (classes, [ROWS, *LAYER, ("H", "C")], "stages"),
    "weights": (weights, [("T", "N"), ("N",)], "steps"),
    "wave": (wave, [("N",), ("N",)], "steps"),
    "both ways": (both_ways, [ROWS, *LAYER], "stages"),
    "root": (root, [("N",)], "stages"),
    "paths": (paths, [("T", "C"), ("C", "C"), ("C",)], "stages"),
}


def fusion(name):
    build, shapes, _ = CASES[name]
    with ln.Fusion("case") as f:
        found = build(*[f.input(f"x{n}", shape, F) for n, shape in enumerate(shapes)])
        for n, y in enumerate(found if isinstance(found, tuple) else (found,)):
            f.output(y, f"y{n}")
    return f


@pytest.mark.parametrize("target", ["c", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_results(name, target):
    f = fusion(name)
    rng = np.random.default_rng(0)
    shapes = [[SIZES[size] for size in shape] for shape in CASES[name][1]]
    given = [(0.3 * rng.standard_normal(shape)).astype(np.float32) for shape in shapes]
    right, bound = ln.evaluate(f, *given), ln.error_bound(f, *given)
    assert auto_schedule(f, target, Processor()).name == CASES[name][2]
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes
    if target == "cuda":
        assert kernel.cuda()
    found = ln.compile(kernel, target="interpret" if target == "cuda" else "c")(*given)
    several = isinstance(right, tuple)
    for a, b, limit in zip(*[v if several else (v,) for v in (found, right, bound)], strict=True):
        assert np.all(np.abs(np.asarray(a, np.float64) - b) <= limit)


def parallel_around(kernel, tensor):
    """The parallel types of loops around the stores of a tensor."""
    return {
        loop.parallel
        for node, around in kernel.walk()
        if isinstance(node, kir.Store) and node.tensor == tensor
        for loop in around
        if isinstance(loop, kir.Loop) and loop.parallel is not ln.ParallelType.serial
    }


def test_rows_of_a_batch_are_blocks():
    f = fusion("network")
    auto_schedule(f, "cuda", Processor())
    kernel = ln.lower(f)
    both = {ln.ParallelType.grid_x, ln.ParallelType.block_x}
    assert parallel_around(kernel, "y0") == both
    sizes = {name: SIZES[name] for name in "TBKH"}
    assert kernel.launch(**sizes).launches[-1].grid == (3, 1, 1)


@pytest.mark.parametrize("name", ["weights", "wave"])
def test_what_elements_of_a_step_have_in_common_keeps_them_in_a_block(name):
    f = fusion(name)
    auto_schedule(f, "cuda", Processor())
    kernel = ln.lower(f)
    (state,) = {s.name for t in f.tensors for s in t.carried}
    assert parallel_around(kernel, state) == {ln.ParallelType.block_x}
    assert "barrier grid" not in str(kernel)


def test_loops_over_one_sequence_are_stages_of_their_own():
    f = fusion("both ways")
    auto_schedule(f, "cuda", Processor())
    assert len(ln.lower(f).launch(**{name: SIZES[name] for name in "TBKH"}).launches) >= 3
