"""Loops that run only where a reduction takes something in: triangles, bands, tiles, windows."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from loopnest.kir.nest_text import print_nest
from loopnest.proofs.verifier import verify_program
from mutation.mutants import mutants

PT = ln.ParallelType


def index(size: str, place: int, rank: int) -> ln.TensorView:
    """Return the index along one axis of a tensor."""
    return ln.broadcast(ln.iota(size), tuple(n != place for n in range(rank)))


def causal(op: str = "sum", fill: float = 0.0) -> ln.Fusion:
    with ln.Fusion("causal") as f:
        x = f.input("x", ("N", "N"), ln.float32)
        mask = ln.le(index("N", 1, 2), index("N", 0, 2))
        f.output(getattr(ln, op)(ln.where(mask, x, fill), 1), "y")
    return f


def loops_of(kernel: Any) -> list[str]:
    """Return the loops and tests of a nest."""
    lines = [line.strip() for line in str(kernel).splitlines()]
    return [line for line in lines if line.startswith(("for", "if"))]


def judge(f: ln.Fusion, kernel: Any, *arrays: np.ndarray) -> None:
    """Prove a kernel for all sizes, and compare what it gives to the oracle."""
    report = ln.verify(kernel)
    assert report.all_sizes, report
    for target in ("interpret", "c"):
        found = ln.compile(kernel, target=target)(*[a.copy() for a in arrays])
        np.testing.assert_array_equal(found, ln.evaluate(f, *arrays))


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)


def test_a_triangle() -> None:
    f = causal()
    f.inline_most()
    kernel = ln.lower(f)
    assert loops_of(kernel) == ["for i0 in N:", "for i1 in 0..i0 + 1 of N:"]
    assert "for (idx_t i1 = 0; i1 < i0 + 1; ++i1) {" in kernel.cuda()
    assert print_nest(ln.kir.parse(str(kernel))) == str(kernel)
    judge(f, kernel, some(7, 7))


@pytest.mark.parametrize(("op", "fill"), [("max", -np.inf), ("min", np.inf), ("prod", 1.0)])
def test_other_reducers_have_other_identities(op: str, fill: float) -> None:
    f = causal(op, fill)
    f.inline_most()
    kernel = ln.lower(f)
    assert "for i1 in 0..i0 + 1 of N:" in loops_of(kernel)
    judge(f, kernel, some(6, 6))


def test_lanes_that_have_a_row_together() -> None:
    """Row ``lane // 4`` grows with the lane: the last lane of a block has the largest."""
    with ln.Fusion("quads") as f:
        x, w = f.input("x", ("K",), ln.float32), f.input("w", ("M", "K", 4), ln.float32)
        terms = ln.broadcast(x, (True, False, True)) * w
        seen = ln.le(index("K", 1, 3), index("M", 0, 3))
        f.output(ln.sum(ln.where(seen, terms, 0.0), 1), "y")
    y, tile = f["y"], x.cache_after()
    tile.memory = ln.SHARED
    y.split(0, 8).split(2, 16)
    y.reorder([0, 2, 1, 4, 3])
    y.merge(2)  # [M / 8, K / 16, 8 * 4, 16]
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    tile.compute_at(y, 2)
    tile.axis(-1).parallelize(PT.block_x)
    f.inline_most([t for t in f.tensors if t not in (x, w, tile, y)])
    kernel = ln.lower(f)
    bounded = [line for line in loops_of(kernel) if "of ceildiv(K, 16)" in line]
    assert [line.partition("in ")[2] for line in bounded] == [
        "0..min(i2 // 2 + 1, ceildiv(K, 16)) of ceildiv(K, 16):"
    ]
    judge(f, kernel, some(20), some(21, 20, 4))


def test_what_is_no_identity_bounds_nothing() -> None:
    f = causal("sum", 1.0)
    f.inline_most()
    assert loops_of(ln.lower(f)) == ["for i0 in N:", "for i1 in N:"]


def test_a_product_with_a_mask_bounds_nothing() -> None:
    """0 * x is not 0 where x is infinite."""
    with ln.Fusion("masked") as f:
        x = f.input("x", ("N", "N"), ln.float32)
        mask = ln.le(index("N", 1, 2), index("N", 0, 2))
        f.output(ln.sum(ln.where(mask, 1.0, 0.0) * x, 1), "y")
    f.inline_most()
    assert loops_of(ln.lower(f)) == ["for i0 in N:", "for i1 in N:"]


def test_a_band() -> None:
    with ln.Fusion("band") as f:
        x = f.input("x", ("N", "N"), ln.float32)
        i, j = index("N", 0, 2), index("N", 1, 2)
        mask = ln.logical_and(ln.lt(j, i + 3), ln.ge(j + 2, i))
        f.output(ln.sum(ln.where(mask, x, 0.0), 1), "y")
    f.inline_most()
    kernel = ln.lower(f)
    assert loops_of(kernel)[1] == "for i1 in max(0, i0 - 2)..min(i0 + 3, N) of N:"
    judge(f, kernel, some(9, 9))


def test_tiles_are_left_out_whole() -> None:
    f = causal()
    y = f["y"]
    y.split(1, 16)
    y.split(0, 16)
    for tensor in f.tensors:
        if tensor is not y and not tensor.is_input:
            tensor.compute_at(y, -1)
    kernel = ln.lower(f)
    loops = loops_of(kernel)
    assert "for i2 in 0..i0 + 1 of ceildiv(N, 16):" in loops or any(
        loop.startswith("for i2 in 0..min(") for loop in loops
    )
    judge(f, kernel, some(37, 37))


def tiles_run(kernel: Any, place: int, inner: int) -> set[tuple[int, int]]:
    """Return the iterations of two loops, one in the other, by the bounds that the nest has."""
    loops = [line for line in loops_of(kernel) if line.startswith("for")]
    (a, first), (_, second) = [
        re.fullmatch(r"for (\w+) in (.*):", loops[n]).groups() for n in (place, inner)
    ]
    return {(n, m) for n in numbers(first, {}) for m in numbers(second, {a: n})}


def numbers(text: str, known: dict[str, int]) -> range:
    """Return the numbers that a loop such as ``0..i0 + 1 of 5`` goes over."""
    start, _, stop = text.partition(" of ")[0].rpartition("..")
    known = {**known, "min": min, "max": max, "ceildiv": lambda a, b: -(-a // b)}
    return range(eval(start or "0", known), eval(stop, known))


@pytest.mark.parametrize("mask", ["below", "above", "band"])
@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (8, 4), (4, 16)])
@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 0, 1, 3), (0, 2, 3, 1)])
def test_few_tiles_are_left_out_in_any_order_of_their_axes(mask, rows, columns, order) -> None:
    """A compiler writes short loops out, but not those over tiles that are idle."""
    with ln.Fusion("tiles") as f:
        x = f.input("x", (40, 40), ln.float32)
        i, j = index(40, 0, 2), index(40, 1, 2)
        seen = {"below": j <= i, "above": j >= i, "band": ln.logical_and(j <= i, i - j < 9)}[mask]
        y = f.output(ln.sum(ln.where(seen, x, 0.0), 1), "y")
    y.split(1, columns)
    y.split(0, rows)
    y.reorder(order)
    f.inline_most()
    kernel = ln.lower(f)
    judge(f, kernel, some(40, 40))
    rule = {
        "below": lambda i, j: j <= i,
        "above": lambda i, j: j >= i,
        "band": lambda i, j: i - 9 < j <= i,
    }[mask]
    wanted = {(i // rows, j // columns) for i in range(40) for j in range(40) if rule(i, j)}
    if mask == "below" and (rows, columns) == (8, 8):
        assert len(wanted) == 15
    if order[0]:  # behind the loops of the mask, and those that begin the sums
        assert {(a, b) for b, a in tiles_run(kernel, 4, 5)} == wanted
    else:
        assert tiles_run(kernel, 2, 4) == wanted


def test_short_loops_over_a_threads_own_elements_keep_all_iterations() -> None:
    """A loop over parts of a tile of sums in registers has no bounds: it is written out."""
    with ln.Fusion("parts") as f:
        x = f.input("x", ("N", "K"), ln.float32)
        seen = index("K", 1, 2) <= index("N", 0, 2)
        y = f.output(ln.sum(ln.where(seen, x, 0.0), 1), "y")
    acc = y.cache_before()
    y.split(0, 16)
    acc.compute_at(y, 1)
    acc.split(1, 4)
    acc.reorder({-1: 1})  # [N / 16, K, 4, 4]
    f.inline_most()
    kernel = ln.lower(f)
    judge(f, kernel, some(33, 7))
    assert "for i5 in 0..min(i2 * 16 + 16, K) of K:" in loops_of(kernel)
    assert "for i6 in 4:" in loops_of(kernel)


def syrk() -> tuple[ln.Fusion, Any]:
    """Return the lower half of ``a @ a.T``, in tiles through shared memory."""
    with ln.Fusion("syrk") as f:
        a = f.input("a", ("N", "K"), ln.float32)
        rows, columns = ln.broadcast(a, (False, True, False)), ln.broadcast(a, (True, False, False))
        lower = ln.le(index("N", 1, 3), index("N", 0, 3))
        y = f.output(ln.sum(ln.where(lower, rows * columns, 0.0), 2), "y")
    acc = y.cache_before()
    tiles = [t.cache_after() for t in (rows, columns)]
    y.split(0, 8)
    y.split(2, 8)
    y.reorder({1: 2, 2: 1})
    acc.compute_at(y, 2)
    acc.split(-1, 8)
    acc.reorder({4: 2, 2: 3, 3: 4})
    for tile in tiles:
        tile.memory = ln.SHARED
        tile.compute_at(acc, 3)
    for tensor in f.tensors:
        if not tensor.is_input and tensor.compute_at_pos == 0 and tensor is not y:
            tensor.compute_at(acc, -1)
    y.parallelize({0: PT.grid_y, 1: PT.grid_x, 2: PT.block_y, 3: PT.block_x})
    acc.parallelize({3: PT.block_y, 4: PT.block_x})
    for tile, place, dim in zip(tiles, (3, 4), (PT.block_y, PT.block_x), strict=True):
        tile.parallelize({place: dim})
    return f, ln.lower(f)


def test_blocks_above_the_diagonal_do_nothing() -> None:
    f, kernel = syrk()
    text = str(kernel)
    assert "barrier block" in text
    assert "if i1 * 8 <= i0 * 8 + 7:\n      for i4 in ceildiv(K, 8):" in text
    judge(f, kernel, some(19, 5))


@pytest.mark.parametrize("bound", ["i1 * 8 + i6 <= i0 * 8 + i5", "i1 <= i0"])
def test_narrower_bounds_are_not_proved(bound: str) -> None:
    lowered = (_inlined(causal()) if bound == "i1 <= i0" else syrk()[1])._lowered
    made = list(mutants(lowered.program, frozenset({"predicate"})))
    (narrow,) = [m for m in made if m.text == f"narrow '{bound}'"]
    assert verify_program(narrow.program, lowered.math()).status == "refuted"


def _inlined(f: ln.Fusion) -> Any:
    f.inline_most()
    return ln.lower(f)


def test_a_vectorized_axis_keeps_its_lanes() -> None:
    with ln.Fusion("columns") as f:
        x = f.input("x", ("N", 16), ln.float32)
        mask = ln.le(index("N", 0, 2), ln.broadcast(ln.iota(16), (True, False)))
        y = f.output(ln.sum(ln.where(mask, x, 0.0), 0), "y")
    acc = y.cache_before()
    y.split(0, 4)
    acc.compute_at(y, 1)
    y.parallelize({1: PT.vectorize})
    acc.reorder({2: 1})
    acc.parallelize({2: PT.vectorize})
    kernel = ln.lower(f)
    assert "of N" not in str(kernel)
    judge(f, kernel, some(5, 16))


def with_sums_so_far(late: bool, kept: bool = False) -> ln.Fusion:
    """Sums of what a scan of each row holds up to, or from, the diagonal."""
    with ln.Fusion("so_far") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        so_far = ln.cumsum(x, axis=1)
        row, column = index("N", 0, 2), index("M", 1, 2)
        mask = column >= row if late else column <= row
        f.output(ln.sum(ln.where(mask, so_far, 0.0), axis=1), "y")
        if kept:
            f.output(so_far, "kept")
    f.inline_most()
    return f


def test_what_skipped_iterations_carry_on_is_read_by_none() -> None:
    f = with_sums_so_far(late=False)
    kernel = ln.lower(f)
    assert loops_of(kernel) == ["for i0 in N:", "for i1 in 0..min(i0 + 1, M) of M:"]
    judge(f, kernel, some(5, 9))
    judge(f, kernel, some(9, 5))


@pytest.mark.parametrize(("late", "kept"), [(True, False), (False, True)])
def test_what_is_carried_to_iterations_that_count_is_computed(late: bool, kept: bool) -> None:
    f = with_sums_so_far(late, kept)
    kernel = ln.lower(f)
    assert not any(" of M" in line for line in loops_of(kernel))
    for target in ("interpret", "c"):
        found = ln.compile(kernel, target=target)(some(5, 9))
        for one, wanted in zip(
            found if kept else (found,),
            ln.evaluate(f, some(5, 9)) if kept else (ln.evaluate(f, some(5, 9)),),
            strict=True,
        ):
            np.testing.assert_array_equal(one, wanted)


def test_what_is_no_other_literal_is_where_the_mask_holds() -> None:
    """An element that is tested for being nothing counts where its own mask says so."""
    with ln.Fusion("guarded") as f:
        x = f.input("x", ("N", "N"), ln.float32)
        mask = ln.le(index("N", 1, 2), index("N", 0, 2))
        own = ln.where(mask, x, 0.0)
        f.output(ln.sum(ln.where(ln.eq(own, 0.0), 0.0, own * 2.0**40), 1), "y")
    f.inline_most()
    kernel = ln.lower(f)
    assert loops_of(kernel) == ["for i0 in N:", "for i1 in 0..i0 + 1 of N:"]
    judge(f, kernel, some(6, 6))


@pytest.mark.parametrize("split", [False, True])
def test_a_fold_whose_order_counts(split: bool) -> None:
    """The last element of each row, up to the diagonal, that is large."""
    last = ln.Reducer((0.0, False), lambda a, b: (ln.where(b[1], b[0], a[0]), a[1] | b[1]), "last")
    with ln.Fusion("last") as f:
        x = f.input("x", ("N", "N"), ln.float32)
        mask = ln.le(index("N", 1, 2), index("N", 0, 2))
        large = ln.gt(x, 0.25)
        values = ln.where(mask, ln.where(large, x, 0.0), 0.0), ln.where(mask, large, False)
        y, _ = ln.reduce(last, values, 1)
        f.output(y, "y")
    if split:
        y.split(1, 16)
    for tensor in values:
        tensor.compute_at(y, -1)
    kernel = ln.lower(f)
    assert " of " in str(kernel)
    judge(f, kernel, some(21, 21))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_triangle_in_an_unswitch_loop(axis: int) -> None:
    with ln.Fusion("above") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        mask = ln.lt(index("N", 0, 2), index("M", 1, 2))
        y = f.output(ln.sum(ln.where(mask, x, 0.0), 1), "y")
    f.inline_most()
    y.parallelize({axis: PT.unswitch})
    kernel = ln.lower(f)
    assert not any(line.startswith("if") for line in loops_of(kernel)), str(kernel)
    judge(f, kernel, some(5, 7))
