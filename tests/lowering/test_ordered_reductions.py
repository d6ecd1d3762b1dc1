"""Reducers that need not commute over threads and blocks: proofs, values, statements, refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln
from helpers.ordered_reducers import (
    AFFINE,
    PT,
    SCHEDULES,
    Schedule,
    check,
    chunks,
    composed,
    farthest,
    flagged,
    items,
    softmax,
)
from helpers.schedule_run import body, nest
from loopnest.kir import parse as parse_nest
from loopnest.kir.nest_text import print_nest


def proved(f: ln.Fusion) -> ln.Kernel:
    """Return the kernel, proved for all sizes."""
    k = ln.lower(f)
    assert ln.verify(k).all_sizes, ln.verify(k)
    return k


@pytest.mark.parametrize("name", SCHEDULES)
def test_blocks_and_threads_combine_neighbours(name: str) -> None:
    f = composed()
    SCHEDULES[name](f["a"])
    check(f, proved(f))


@pytest.mark.parametrize("name", ["items", "odd", "a grid of threads"])
@pytest.mark.parametrize("made", [farthest, softmax])
def test_argmax_and_online_softmax(made: Callable[[], ln.Fusion], name: str) -> None:
    f = made()
    SCHEDULES[name](f["a"])
    for tensor in f.outputs:
        tensor.parallelize({0: f["a"].axis(0).parallel})
    check(f, proved(f), ((5, 133), (3, 1)))


@pytest.mark.parametrize("name", SCHEDULES)
def test_flags_choose_the_last_of_several(name: str) -> None:
    """Of the choices in the exchange some are the reducer's, others are between lanes."""
    f = flagged()
    SCHEDULES[name](f["a"])
    check(f, proved(f))


def test_a_butterfly_begins_with_the_nearest_lanes() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", (8,), ln.float32)
        last = ln.Reducer((0.0, False), lambda a, b: (ln.where(b[1], b[0], a[0]), a[1] | b[1]), "l")
        f.output(ln.reduce(last, (x, x > 0.0), axis=0)[0], "y")
    y = f["y"]
    y.split(0, 2)
    y.parallelize({0: PT.block_x})
    text = nest(f)
    wanted = body("""
        v20, v21 = ordered l(y_acc[0], T3_acc[0]) over block_x:
          let v2 = y_acc[0]
          let v3 = T3_acc[0]
          let v4 = shuffle_xor(v2, 1)
          let v5 = shuffle_xor(v3, 1)
          let v6 = block_x % 2 == 0
          let v7 = where(v6, v2, v4)
          let v8 = where(v6, v3, v5)
          let v9 = where(v6, v4, v2)
          let v10 = where(v6, v5, v3)
          let v11 = where(v10, v9, v7)
          let v12 = v8 or v10
          let v13 = shuffle_xor(v11, 2)
    """)
    assert wanted in text


def test_the_text_is_read_back() -> None:
    f = composed()
    items(4)(f["a"])
    text = str(ln.lower(f))
    assert "= ordered affine(a_acc[0], b_acc[0]) over block_x:" in text
    assert print_nest(parse_nest(text)) == text


def test_threads_fold_the_parts_of_blocks_turn_by_turn() -> None:
    """As many neighbours as there are threads, so that loads lie side by side."""
    f = composed()
    SCHEDULES["blocks of threads"](f["a"])
    f["a"].parallelize({0: PT.grid_y})
    text = nest(f)
    assert text.count("ordered affine") == 2
    assert "for i6 in ceildiv(ceildiv(ceildiv(D, 5), 2), ceildiv" not in text
    assert "a_part[0] = " in text


def test_values_that_cross_together() -> None:
    """Neighbouring columns in one exchange, over threads and blocks."""
    for dims in ((PT.block_x,), (PT.grid_x, PT.block_x)):
        f = composed(axis=0)
        a = f["a"].split(0, 4, inner=False)
        if PT.grid_x in dims:
            a.split(0, 2)
        a.parallelize(dict(enumerate(dims)))
        a.split(len(dims) + 1, 4)
        a.axis(-1).parallelize(PT.unroll)
        check(f, proved(f), ((133, 6), (1, 5)))


def test_narrow_floats_are_rounded_once() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float16)
        f.output(ln.reduce(AFFINE, (x, x), axis=1)[1], "a")
    items(3)(f["a"])
    k = ln.lower(f)
    assert ln.verify(k).all_sizes
    a = np.random.default_rng(0).uniform(0.5, 1, (3, 20)).astype(np.float16)
    for target in ("interpret", "c"):
        found = ln.compile(k, target=target)(a)
        assert (abs(found - ln.evaluate(f, a, exact=True)) <= ln.error_bound(f, a)).all()


def test_rfactor_of_a_part_over_threads() -> None:
    """The partial results of chunks, and the fold of them, each over other threads."""
    f = composed()
    a = f["a"].split(1, 4).split(1, 32)
    part = a.rfactor([2, 3])
    part.compute_at(a, 1)
    a.parallelize({0: PT.grid_x, 1: PT.block_y})
    part.parallelize({1: PT.block_y, 2: PT.block_x})
    k = proved(f)
    assert str(k).count("ordered affine") == 2
    check(f, k)


def test_a_reducer_that_commutes_combines_as_before() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        f.output(ln.sum(x, axis=1), "a")
    chunks(64)(f["a"])
    text = nest(f)
    assert "= sum(a_acc[0]) over block_x:" in text
    assert text.index("shuffle_xor(v0, 16)") < text.index(", 8)") < text.index(", 1)")


REFUSED: tuple[tuple[Schedule, str], ...] = (
    (
        lambda a: (a.split(1, 4), a.parallelize({1: PT.block_x, 2: PT.grid_x})),
        "r2: 4 (grid_x), r1: ceildiv(D, 4) (block_x)",
    ),
    (
        lambda a: (a.split(1, 4), a.split(1, 3), a.parallelize({1: PT.grid_x, 3: PT.block_x})),
        "r1: ceildiv(ceildiv(D, 4), 3) (grid_x), r3: 4 (block_x), r2: 3",
    ),
    (
        lambda a: (a.split(1, 4), a.parallelize({2: PT.grid_x})),
        "r2: 4 (grid_x), r1: ceildiv(D, 4)",
    ),
)


@pytest.mark.parametrize(("schedule", "loops"), REFUSED)
def test_what_cannot_keep_the_order_is_refused(schedule: Schedule, loops: str) -> None:
    f = composed()
    schedule(f["a"])
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value) == (
        f"a: its reduction loops [{loops}] do not meet the elements in their order, and affine "
        "need not commute; bind outer parts to blocks, parts inside of these to threads, and leave "
        "the innermost ones serial, or rfactor inner parts; say commutative=True of a reducer that "
        "commutes"
    )


@pytest.mark.parametrize("inner", [1, 2])
def test_elements_of_threads_that_lie_apart_are_folded_together_in_each_iteration(
    inner: int,
) -> None:
    """The refusal names the calls that keep the order, and they do."""
    f = composed()
    a = f["a"]
    a.split(1, 32)
    if inner == 2:
        a.split(2, 4)
    a.parallelize({0: PT.grid_x, 2: PT.block_x})
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    places = list(range(2, 2 + inner))
    calls = f"part = a.rfactor({places}), part.compute_at(a, 2)"
    assert f"or fold each iteration's elements together: {calls}; say" in str(caught.value)
    part = a.rfactor(places)
    part.compute_at(a, 2)
    f.inline_most()
    check(f, proved(f))
