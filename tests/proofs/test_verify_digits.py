"""Indices that merges and reshapes divide: their digits are known by tests and assumptions.

Each kernel has a wrong one beside it, whose index is off by one digit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln
from loopnest.devtools.fuzzing.judge import compiled
from loopnest.proofs.quasi_affine import Algebra
from loopnest.proofs.verifier import verify_program
from loopnest.scalar.expr import Symbol
from loopnest.schedulers import auto_schedule
from mutation.mutants import mutants

PT = ln.ParallelType


def heads(f: ln.Fusion) -> ln.TensorView:
    """[T, E] as [T, 3, E / 24, 8]."""
    x = f.input("x", ("T", "E"), ln.float32)
    f.assume("E % 24 == 0")
    return f.output(ln.reshape(x, ("T", 3, -1, 8)) * 2.0, "z")


def projected_heads(f: ln.Fusion) -> ln.TensorView:
    """The same of a product, permuted."""
    x, w = f.input("x", ("T", "C"), ln.float32), f.input("w", ("C", "E"), ln.float32)
    f.assume("E % 24 == 0")
    parts = ln.reshape(ln.matmul(x, w), ("T", 3, -1, 8))
    return f.output(ln.permute(parts, (1, 2, 0, 3)) * 2.0, "z")


def thirds(f: ln.Fusion) -> ln.TensorView:
    """[T, 3 * H] as [T, 3, H], with a bias a third."""
    x, b = f.input("x", ("T", "H3"), ln.float32), f.input("b", ("H",), ln.float32)
    f.assume("H3 == 3 * H")
    y = ln.reshape(x, ("T", 3, "H")) * 2.0
    return f.output(y + ln.broadcast(b, (True, True, False)), "z")


def sum_of_thirds(f: ln.Fusion) -> ln.TensorView:
    x, b = f.input("x", ("T", "H3"), ln.float32), f.input("b", ("T", "H"), ln.float32)
    f.assume("H3 == 3 * H")
    return f.output(ln.sum(ln.reshape(x, ("T", 3, "H")), axis=1) + b, "z")


def first_third(f: ln.Fusion) -> ln.TensorView:
    x, b = f.input("x", ("T", "H3"), ln.float32), f.input("b", ("T", "H"), ln.float32)
    f.assume("H3 == 3 * H")
    return f.output(ln.reshape(x, ("T", 3, "H"))[:, 0] + b, "z")


def three_times(f: ln.Fusion) -> ln.TensorView:
    x, b = f.input("x", ("T", "H"), ln.float32), f.input("b", ("T", "H3"), ln.float32)
    f.assume("H3 == 3 * H")
    return f.output(ln.reshape(ln.stack([x, x, x], 1), ("T", "H3")) + b, "z")


def merged(f: ln.Fusion) -> None:
    """A thread an element, all axes of the output merged."""
    z = f["z"]
    while z.ndim > 1:
        z.merge(0)
    z.split(0, 128)
    z.parallelize({0: PT.grid_x, 1: PT.block_x})
    f.inline_most()


def automatic(target: str) -> Callable[[ln.Fusion], object]:
    def schedule(f: ln.Fusion) -> object:
        return auto_schedule(f, target)

    schedule.__name__ = target
    return schedule


MATHS = [heads, projected_heads, thirds, sum_of_thirds, first_third, three_times]


@pytest.mark.parametrize("schedule", [merged, automatic("c"), automatic("cuda")])
@pytest.mark.parametrize("math", MATHS)
def test_a_reshape_by_an_assumption_is_proved_for_all_sizes(math, schedule) -> None:
    with ln.Fusion(math.__name__) as f:
        math(f)
    schedule(f)
    assert str(ln.verify(ln.lower(f))) == "proved for all sizes"


def third(number: int) -> ln.Kernel:
    with ln.Fusion("third") as f:
        x = f.input("x", ("T", "H3"), ln.float32)
        b = f.input("b", ("T", "H"), ln.float32)
        f.assume("H3 == 3 * H")
        f.output(ln.reshape(x, ("T", 3, "H"))[:, number] + b, "z")
    merged(f)
    return ln.lower(f)


def test_another_third_is_refuted() -> None:
    math = third(1)._lowered.math
    assert math is not None
    assert verify_program(third(1).program, math()).scope == "all sizes"
    assert verify_program(third(2).program, math()).status == "refuted"


def summed(blocks: int, way: str) -> ln.Fusion:
    """A sum of which each block takes neighbours, as many as all others."""
    with ln.Fusion("summed") as f:
        y = f.output(ln.sum(f.input("x", ("N",), ln.float32), axis=0), "y")
    y.split(0, blocks, inner=False)
    if way == "threads":
        y.split(1, 128)
        y.parallelize({0: PT.grid_x, 2: PT.block_x})
        return f
    if way == "parts of threads":
        y.split(1, 128)
    if way == "two launches":
        part = y.rfactor([1])
        part.memory = ln.GLOBAL
        part.parallelize({0: PT.grid_x})
        y.new_launch()
        return f
    if way != "whole":
        y.rfactor([1]).compute_at(y, 1)
    y.parallelize({0: PT.grid_x})
    if way == "parts of threads":
        y.parallelize({1: PT.block_x})
    return f


WAYS = ["whole", "threads", "parts", "parts of threads", "two launches"]


@pytest.mark.parametrize("way", WAYS)
def test_a_sum_over_blocks_of_neighbours_is_proved_for_all_sizes(way: str) -> None:
    assert str(ln.verify(ln.lower(summed(8, way)))) == "proved for all sizes"


def ranked(f: ln.Fusion) -> ln.TensorView:
    """The rank of each element in ascending order; of equals the first comes first."""
    x = f.input("x", ("N",), ln.float32)
    place = ln.iota("N")
    columns, rows = (False, True), (True, False)
    mine, other = ln.broadcast(x, columns), ln.broadcast(x, rows)
    earlier = ln.broadcast(place, rows) < ln.broadcast(place, columns)
    before = ln.logical_or(other < mine, ln.logical_and(ln.eq(other, mine), earlier))
    return ln.sum(ln.cast(before, ln.int32), axis=1).named("rank")


@pytest.mark.parametrize("memory", [ln.LOCAL, ln.GLOBAL])
def test_an_assignment_at_computed_places_is_proved_for_all_sizes(memory) -> None:
    """Which elements an update folds is chosen by a sum that stands in a buffer."""
    with ln.Fusion("argsort") as f:
        rank = ranked(f)
        zeros = ln.full(("N",), 0, ln.int64)
        f.output(ln.scatter(zeros, rank, ln.iota("N"), 0), "places")
    rank.memory = memory
    k = ln.lower(f)
    assert str(ln.verify(k)) == "proved for all sizes"


@pytest.mark.parametrize("target", ["c", "cuda"])
@pytest.mark.parametrize("axis", [0, 1])
def test_merged_axes_of_an_output_are_proved_for_all_sizes(axis: int, target: str) -> None:
    """Elements of an output are told by the digits of their index: isl has no product of sizes."""
    with ln.Fusion("flat") as f:
        x = f.input("x", ("N", "H", "W"), ln.float32)
        f.output(ln.flatten(ln.permute(x, (0, 2, 1)) * 2.0, axis), "z")
    auto_schedule(f, target)
    assert str(ln.verify(ln.lower(f))) == "proved for all sizes"


def flattened(order: tuple[int, ...]) -> ln.Kernel:
    with ln.Fusion("flat") as f:
        x = f.input("x", ("N", "N", "N"), ln.float32)
        z = f.output(ln.flatten(ln.permute(x, order)) * 2.0, "z")
    z.split(0, 128)
    f.inline_most()
    return ln.lower(f)


def test_merged_axes_in_another_order_are_refuted() -> None:
    """Extents do not tell the digits of one index apart: their places do."""
    math = flattened((0, 1, 2))._lowered.math
    assert math is not None
    assert verify_program(flattened((0, 1, 2)).program, math()).scope == "all sizes"
    for order in ((0, 2, 1), (1, 0, 2), (2, 1, 0)):
        assert verify_program(flattened(order).program, math()).status == "refuted"


def neighbours(f: ln.Fusion, step: int = 1) -> ln.TensorView:
    """What differs from the next row and column, of which there is one less than of elements."""
    x = f.input("x", ("N", "M"), ln.float32)
    f.assume("N >= 2")
    f.assume("M >= 1")
    return f.output(x[step : step - 2 or None, 1:] - x[:-2, :-1], "z")


def transformed_tiles(f: ln.Fusion) -> ln.TensorView:
    """Winograd's transform of tiles of an image, of H // 2 - 1 and W // 2 - 1 of them."""
    x, b = f.input("x", ("H", "W"), ln.float32), f.input("b", (4, 4), ln.float32)
    tiles = ln.unfold(ln.unfold(x, 0, 4, stride=2), 1, 4, stride=2)
    return f.output(ln.matmul(ln.matmul(b, tiles), ln.permute(b, (1, 0))), "z")


def pooled(f: ln.Fusion) -> ln.TensorView:
    x = f.input("x", ("C", "H", "W"), ln.float32)
    return f.output(ln.max(ln.unfold(ln.unfold(x, 1, 3, stride=2), 2, 3, stride=2), (3, 4)), "z")


def convolved(f: ln.Fusion) -> ln.TensorView:
    x, w = (
        f.input("x", ("N", "C", "H", "W"), ln.float32),
        f.input("w", ("K", "C", 3, 3), ln.float32),
    )
    return f.output(ln.conv(x, w), "z")


@pytest.mark.parametrize(
    ("math", "schedule"),
    [
        (neighbours, merged),
        (transformed_tiles, automatic("cuda")),
        (pooled, automatic("cuda")),
        (convolved, automatic("cuda")),
    ],
)
def test_extents_that_are_less_than_a_size_by_a_number_divide(math, schedule) -> None:
    """Of `M - 1` elements the proof counts M from 1: `i // (M - 1)` is a division by a size."""
    with ln.Fusion(math.__name__) as f:
        math(f)
    schedule(f)
    assert str(ln.verify(ln.lower(f))) == "proved for all sizes"


def test_other_neighbours_are_refuted() -> None:
    kernels = []
    for step in (1, 2):
        with ln.Fusion("neighbours") as f:
            neighbours(f, step)
        merged(f)
        kernels.append(ln.lower(f))
    math = kernels[0]._lowered.math
    assert math is not None
    assert verify_program(kernels[0].program, math()).scope == "all sizes"
    assert verify_program(kernels[1].program, math()).status == "refuted"


def over_all_rows(fold: Callable[[ln.TensorView], ln.TensorView], rows: PT) -> ln.Kernel:
    """A fold of which each block has a row, and the last one combines N blocks' by M threads."""
    with ln.Fusion("rows") as f:
        y = f.output(fold(f.input("x", ("N", "M"), ln.float32)), "y")
    y.parallelize({0: rows, 1: PT.grid_x if rows is PT.block_x else PT.block_x})
    return ln.lower(f)


@pytest.mark.parametrize("rows", [PT.grid_x, PT.grid_y, PT.block_x])
@pytest.mark.parametrize("fold", [ln.sum, ln.max, ln.argmax])
def test_blocks_and_threads_of_any_number_fold_together(fold, rows: PT) -> None:
    """Thread t takes in the parts of blocks t, t + M, t + 2 * M: isl has no product of sizes."""
    kernel = over_all_rows(fold, rows)
    assert "* M + block_x" in str(kernel) or "* N + block_x" in str(kernel)
    assert str(ln.verify(kernel)) == "proved for all sizes"


def test_other_blocks_and_threads_are_not_proved() -> None:
    """Longer loops are none: threads are those of the launch, and a test stands around parts."""
    lowered = over_all_rows(ln.sum, PT.grid_x)._lowered
    assert lowered.math is not None
    math = lowered.math()
    made = mutants(lowered.program, frozenset({"index", "bound", "claim", "init", "store"}))
    proved = [m.text for m in made if verify_program(m.program, math).ok]
    assert proved == ["loop i1 +1", "loop i3 +1"]


def test_nothing_divided_by_any_size_is_nothing() -> None:
    """It has no index by whose digits it could be written."""
    algebra = Algebra({}, {}, {})
    size = algebra.poly(Symbol("N") - Symbol("M"), {})
    assert algebra.divided({}, size) == {}


def test_a_sort_whose_digits_an_earlier_launch_stored_is_not_refuted() -> None:
    """Of a digit's row one element counts, where points are looked at one by one, too."""
    with ln.Fusion("argsort") as f:
        f.output(ln.argsort(f.input("x", ("N",), ln.int8)), "y")
        f.output(f.input("e", ("S",), ln.float32) + 1.0, "z")
    ops = {t.definition.op: t for t in f.tensors if t.definition}
    digit = [t for t in f.tensors if t.definition and t.definition.op == "digit"]
    for t in [*digit, ops["packed"], ops["digit_rank"], ops["digit_start"]]:
        t.memory = ln.GLOBAL
    place = ops["digit_place"]
    place.new_launch()
    place.split(0, "S")  # a division by a symbol: not for all sizes at once
    k = ln.lower(f)
    report = ln.verify(k)
    assert report.status == "unknown"
    assert "a test depends on data" in str(report)
    x, e = np.array([3, -1, 3, 0, -128], np.int8), np.zeros(2, np.float32)
    found, _ = compiled(k, "interpret")(x, e)
    np.testing.assert_array_equal(found, ln.evaluate(f, x, e)[0])
