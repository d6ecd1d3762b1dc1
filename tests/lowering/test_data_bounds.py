"""Loops that begin and end where the data of inputs say: rows of a sparse matrix, lengths."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from loopnest import kir
from loopnest.kir import BOUND
from loopnest.kir.nest_text import print_nest
from loopnest.proofs.verifier import verify_program
from loopnest.scalar import dtypes
from loopnest.scalar.expr import (
    Expr,
    Load,
    Op,
    all_of,
    cast,
    integer,
    loads,
    substitute,
    terms_of,
)
from loopnest.scalar.simplify import Simplifier
from mutation.mutants import mutants

PT = ln.ParallelType


def loops_of(kernel: Any) -> list[str]:
    """Return the loops and tests of a nest."""
    lines = [line.strip() for line in str(kernel).splitlines()]
    return [line for line in lines if line.startswith(("for", "if"))]


def masked(kind: ln.DType = ln.int32, rest: str = "") -> ln.Fusion:
    """Return sums of the elements from `first` to before `last` of each row."""
    with ln.Fusion("sums") as f:
        x = f.input("x", ("Z",), ln.float32)
        first, last = f.input("first", ("R",), kind), f.input("last", ("R",), kind)
        j = ln.iota("Z")
        low, high = first[:, None], last[:, None]
        if rest == "length":
            mask = (j >= low) & (j - low < high)
        elif rest == "strict":
            mask = (j > low) & ~(j > high)
        else:
            mask = (j >= low) & (j < high)
        f.output(ln.sum(ln.where(mask, x, 0.0), axis=1), "y")
    return f


def judge(f: ln.Fusion, kind: str = "int32") -> Any:
    """Prove the kernel of a fusion, and compare it to the oracle with data of any kind."""
    kernel, rng = ln.lower(f), np.random.default_rng(0)
    report = ln.verify(kernel)
    assert report.all_sizes, report
    assert print_nest(ln.kir.parse(str(kernel))) == str(kernel)
    compiled = [ln.compile(kernel, target=target) for target in ("interpret", "c")]
    limits = np.iinfo(kind)
    for rows, z in ((0, 3), (1, 0), (21, 40)):
        x = rng.integers(-4, 5, z).astype(np.float32)
        ends = rng.integers(-3, z + 4, (2, rows)).astype(kind)
        if rows > 4:
            ends[0, :2], ends[1, 1:4] = limits.min, limits.max
        for function in compiled:
            found = function(x, ends[0], ends[1])
            np.testing.assert_array_equal(found, ln.evaluate(f, x, ends[0], ends[1]))
    return kernel


@pytest.mark.parametrize("kind", ["int32", "int64", "int16"])
def test_a_loop_begins_and_ends_at_data(kind: str) -> None:
    f = masked(getattr(ln, kind))
    f.inline_most(replay=True)
    kernel = judge(f, kind)
    bounds = "for i1 in max(0, index(first[i0]))..min(index(last[i0]), Z) of Z:"
    assert loops_of(kernel) == ["for i0 in R:", bounds]
    assert "LN_HOLDS(i1 < (idx_t)last[i0] && (idx_t)first[i0] <= i1);" in kernel.c()
    assert kernel.cuda()


def test_a_length_behind_a_begin() -> None:
    f = masked(rest="length")
    f.inline_most(replay=True)
    bounds = "for i1 in max(0, index(first[i0]))..min(index(last[i0]) + index(first[i0]), Z) of Z:"
    assert bounds in loops_of(judge(f))


def test_a_length_in_64_bits_bounds_nothing() -> None:
    """The sum of a begin and a length may wrap."""
    f = masked(ln.int64, rest="length")
    f.inline_most(replay=True)
    assert "for i1 in max(0, index(first[i0]))..Z of Z:" in loops_of(judge(f, "int64"))


SUMS = {
    "both on one side": lambda j, a, b: j + a + b >= 0,
    "one on each side": lambda j, a, b: j + a < b,
    "negatives": lambda j, a, b: (5 - j < a) & (7 - j >= b),
    "begin and length": lambda j, a, b: (j >= a) & (j - a < b),
    "a multiple of the index": lambda j, a, b: j * 2 - a < b,
}
"""Tests whose bounds add data, or take their negative."""


def extremes(kind: str) -> list[int]:
    """Return numbers of a type: the least, the largest, and some that are in between."""
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    return [least, least + 1, 0, 1, 5, 13, most - 1, most]


@pytest.mark.parametrize("split", [None, 4])
@pytest.mark.parametrize("kinds", ["int64", "int32", "uint32", "int16", "int32 int64"])
@pytest.mark.parametrize("mask", SUMS)
def test_sums_of_data_do_not_overflow(mask: str, kinds: str, split: int | None) -> None:
    first, last = kinds.split()[0], kinds.split()[-1]
    with ln.Fusion("sums") as f:
        x = f.input("x", ("Z",), ln.float32)
        a = f.input("a", ("R",), getattr(ln, first))
        b = f.input("b", ("R",), getattr(ln, last))
        kept = SUMS[mask](ln.iota("Z"), a[:, None], b[:, None])
        f.output(ln.sum(ln.where(kept, x, 0.0), axis=1), "y")
    if split is not None:
        f["y"].split(1, split)
    f.inline_most(replay=True)
    kernel = ln.lower(f)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    pairs = list(itertools.product(extremes(first), extremes(last)))
    ends = np.array([a for a, _ in pairs], first), np.array([b for _, b in pairs], last)
    for given in (np.arange(1, 14, dtype=np.float32), np.ones(1, np.float32)):
        for target in ("interpret", "c"):
            found = ln.compile(kernel, target=target)(given, *ends)
            np.testing.assert_array_equal(found, ln.evaluate(f, given, *ends))


def test_strict_comparisons_and_negations() -> None:
    f = masked(rest="strict")
    f.inline_most(replay=True)
    kernel = judge(f)
    assert "index(first[i0])" in loops_of(kernel)[1]
    assert "index(last[i0])" in loops_of(kernel)[1]


def test_threads_own_rows_and_the_test_of_a_row_goes_out() -> None:
    f = masked()
    y = f["y"]
    acc = y.cache_before()
    y.split(0, 8)
    acc.compute_at(y, 2)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    f.inline_most(replay=True)
    row = "i0 * 8 + i1"
    assert loops_of(judge(f)) == [
        "for i0 in ceildiv(R, 8):  # grid_x",
        "for i1 in 8:  # block_x",
        f"if {row} < R:",
        f"for i2 in max(0, index(first[{row}]))..min(index(last[{row}]), Z) of Z:",
    ]


def test_tiles_of_elements() -> None:
    f = masked()
    y = f["y"]
    y.split(1, 16)
    f.inline_most(replay=True)
    outer, inner = loops_of(judge(f))[1:3]
    assert outer == (
        "for i1 in max(0, ceildiv(index(first[i0]) - 15, 16))"
        "..min((index(last[i0]) + 15) // 16, ceildiv(Z, 16)) of ceildiv(Z, 16):"
    )
    assert inner == (
        "for i2 in max(0, i1 * -16 + index(first[i0]))..min(index(last[i0]) - i1 * 16, 16) of 16:"
    )


def test_rows_inside_of_elements_are_no_bounds() -> None:
    f = masked()
    f["y"].reorder({1: 0})
    f.inline_most(replay=True)
    assert not [line for line in loops_of(judge(f)) if ".." in line]


def test_threads_that_meet_run_alike() -> None:
    """Data may differ from thread to thread: all of them go through all elements."""
    f = masked()
    y = f["y"]
    y.split(1, 32)
    part = y.rfactor(1)
    y.parallelize({-1: PT.block_x})
    part.compute_at(y, 1)
    part.parallelize({-1: PT.block_x})
    f.inline_most(replay=True)
    judge(f)


def grouped() -> ln.Fusion:
    """Return sums of products of rows with the vector of their group."""
    with ln.Fusion("grouped") as f:
        x, w = f.input("x", ("T", "K"), ln.float32), f.input("w", ("G", "K"), ln.float32)
        start = f.input("start", ("P",), ln.int32)
        f.assume("P == G + 1")
        mask = ln.segments(start, "T").mask
        product = ln.sum(x[None] * w[:, None], axis=2).named("product")
        f.output(ln.sum(ln.where(mask, product, 0.0), axis=0), "y")
    return f


def judge_groups(f: ln.Fusion) -> Any:
    kernel, rng = ln.lower(f), np.random.default_rng(0)
    report = ln.verify(kernel)
    assert report.all_sizes, report
    x, w = [rng.integers(-4, 5, shape).astype(np.float32) for shape in ((11, 3), (4, 3))]
    for start in ([0, 2, 2, 9, 11], [1, 1, 3, 5, 7], [0, 0, 0, 0, 0]):
        given = x, w, np.array(start, np.int32)
        for target in ("interpret", "c"):
            found = ln.compile(kernel, target=target)(*given)
            np.testing.assert_array_equal(found, ln.evaluate(f, *given))
    return kernel


def test_what_is_computed_for_other_rows_is_not_computed() -> None:
    f = grouped()
    f.inline_most(replay=True)
    begin, end = "index(start[i1])", "index(start[i1 + 1])"
    bounds = f"for i2 in max(0, {begin})..min({end}, T) of T:"
    assert loops_of(judge_groups(f))[1:] == ["for i1 in P - 1:", bounds, "for i3 in K:"]


def test_a_row_that_looks_for_its_group() -> None:
    """The index of the loop says which element is loaded: that is a test, and no bound."""
    f = grouped()
    y = f["y"]
    acc = y.cache_before()
    acc.compute_at(y, 1)
    f.inline_most(replay=True)
    y.parallelize({0: PT.grid_x})
    assert loops_of(judge_groups(f)) == [
        "for i0 in T:  # grid_x",
        "for i1 in P - 1:",
        "if i0 < index(start[i1 + 1]) and index(start[i1]) <= i0:",
        "for i2 in K:",
    ]


@pytest.mark.parametrize("threads", [False, True])
def test_mutants_of_the_bounds_are_refuted(threads: bool) -> None:
    f = masked()
    y = f["y"]
    if threads:
        acc = y.cache_before()
        y.split(0, 8)
        acc.compute_at(y, 2)
        y.parallelize({0: PT.grid_x, 1: PT.block_x})
    f.inline_most(replay=True)
    lowered = ln.lower(f)._lowered
    assert lowered.math is not None
    math = lowered.math()
    made = [m for m in mutants(lowered.program) if "first[" in m.text or "last[" in m.text]
    found = {m.text: verify_program(m.program, math) for m in made}
    # A loop that runs longer adds what the mask says is 0.
    harmless = {t for t in found if t.startswith(("drop", "weaken"))}
    harmless |= {t for t in found if t.endswith(f"without i{2 if threads else 1}")}
    assert len(found) - len(harmless) >= 3
    assert {t for t, report in found.items() if report.status != "refuted"} <= harmless
    narrow = next(report for text, report in found.items() if text.startswith("narrow"))
    assert "which has not accumulated its whole domain by then, where " in str(narrow)


def moved(load: Load, place: int, by: int) -> Expr:
    """Return what another element of an input says, `place` further on, and `by` more."""
    algebra = Simplifier()
    found = Load(load.buffer, (algebra.add(load.args[0], integer(place)),))
    return algebra.add(cast(found, dtypes.index), integer(by))


@pytest.mark.parametrize(
    ("end", "other"),
    [
        (0, lambda x: moved(x, 0, 1)),
        (1, lambda x: moved(x, 0, -1)),
        (0, lambda x: moved(x, 1, 0)),
        (1, lambda x: moved(x, -1, 0)),
    ],
)
def test_another_begin_or_end_of_a_group_is_refuted(end: int, other: Any) -> None:
    f = grouped()
    f.inline_most(replay=True)
    lowered = ln.lower(f)._lowered
    assert lowered.math is not None
    (guard,) = [n for n, _ in kir.walk(lowered.program.body) if getattr(n, "reason", "") == BOUND]
    assert isinstance(guard, kir.If)
    tests = list(terms_of(guard.condition))
    place = next(n for n, t in enumerate(tests) if isinstance(loads(t)[0].args[0], Op) == bool(end))
    (load,) = loads(tests[place])
    tests[place] = substitute(tests[place], {cast(load, dtypes.index): other(load)})
    changed = replace(guard, condition=all_of(tests))
    body = kir.map_body(lowered.program.body, lambda n: changed if n is guard else n)
    report = verify_program(lowered.program.with_body(body), lowered.math())
    assert report.status == "refuted", report
