"""A loop over all elements that data choose one of runs over that one alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import loopnest as ln
from loopnest.proofs.verifier import verify_program
from mutation.mutants import mutants

PT = ln.ParallelType


def scattered() -> tuple[ln.Fusion, ln.TensorView]:
    with ln.Fusion("gradient") as f:
        g, i = f.input("g", ("K", "D"), ln.float32), f.input("i", ("K",), ln.int64)
        w = f.output(ln.index_add(ln.full(("V", "D"), 0.0), 0, i, g), "w")
    return f, w


def judge(kernel: Any) -> None:
    report = ln.verify(kernel)
    assert report.all_sizes, report
    g = np.random.default_rng(0).integers(-4, 5, (7, 5)).astype(np.float32)
    i = np.array([1, 0, 3, 3, 1 << 40, 1, -1])
    expected = np.zeros((4, 5), np.float32)
    inside = (i >= 0) & (i < 4)
    np.add.at(expected, i[inside], g[inside])
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(ln.compile(kernel, target=target)(g, i, V=4), expected)


def test_an_update_goes_to_one_row() -> None:
    _, w = scattered()
    w.reorder({2: 0})
    kernel = ln.lower(w.fusion)
    bounds = "for i3 in max(0, index(i[i2]))..min(index(i[i2]), V - 1) + 1 of V:"
    assert bounds in str(kernel)
    assert kernel.cubin("sm_90")
    judge(kernel)


def test_columns_go_to_threads() -> None:
    _, w = scattered()
    w.split(1, 4)
    w.reorder({1: 0, 2: 1, 3: 2})
    w.parallelize({0: PT.grid_x, 1: PT.block_x})
    assert "in max(0, index(i[" in str(ln.lower(w.fusion))
    judge(ln.lower(w.fusion))


def test_each_core_has_sums_of_its_own() -> None:
    _, w = scattered()
    w.split(2, 3)
    part = w.rfactor(3)
    part.memory = ln.GLOBAL
    part.reorder({2: 0, 3: 1})
    part.parallelize({0: PT.cpu_parallel})
    kernel = ln.lower(w.fusion)
    assert "in max(0, index(i[" in str(kernel)
    judge(kernel)


def test_where_the_rows_are_outside_there_is_nothing_to_bound() -> None:
    _, w = scattered()
    assert ".." not in str(ln.lower(w.fusion))


def test_mutants_are_not_proved() -> None:
    _, w = scattered()
    w.reorder({2: 0})
    lowered = ln.lower(w.fusion)._lowered
    assert lowered.math is not None
    math = lowered.math()
    kinds = frozenset({"predicate", "index", "claim", "init", "store"})
    made = [
        m for m in mutants(lowered.program, kinds) if not m.text.startswith(("drop '", "weaken"))
    ]
    made = [m for m in made if not (m.kind == "claim" and getattr(m.node, "role", "") == "init")]
    assert len(made) > 10
    assert [m.text for m in made if verify_program(m.program, math).ok] == []


@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_indices_of_64_bits_bound_a_loop_without_a_declared_range(kind: str) -> None:
    """Nothing is added to what may be the largest number: an index would exceed 64 bits."""
    with ln.Fusion("add") as f:
        x, u = f.input("x", ("N", "K"), ln.float32), f.input("u", ("N", "M"), ln.float32)
        g = f.input("g", ("M",), getattr(ln, kind))
        f.output(ln.index_add(x, 1, g, u), "y")
    added = next(t for t in f.tensors if any(axis.is_reduction for axis in t.leaf_domain))
    added.memory = ln.GLOBAL
    added.reorder({2: 0})
    k = ln.lower(f)
    assert "if 0 <= index(g[i2]) and index(g[i2]) <= K - 1:" in str(k)
    assert "for i4 in max(0, index(g[i2]))..min(index(g[i2]), K - 1) + 1 of K:" in str(k)
    assert k.c()
    assert k.cuda()
    assert ln.verify(k).ok
    limits = np.iinfo(kind)
    data = np.array([1, limits.max, 0, limits.min, -1, 4, 1], kind)
    arrays = [np.ones((2, 4), np.float32), np.arange(14, dtype=np.float32).reshape(2, 7), data]
    np.testing.assert_array_equal(ln.compile(k, target="c")(*arrays), ln.evaluate(f, *arrays))
