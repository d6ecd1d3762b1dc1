"""Reads at indices that are data: what is proved, under what ranges, and which mutants are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import loopnest as ln
from loopnest import kir
from loopnest.kir import map_body
from loopnest.proofs.verifier import verify_program
from loopnest.scalar import dtypes
from loopnest.scalar.expr import ONE, Op, Symbol
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.computed_ranges import ComputedRanges
from mutation.mutants import mutants

PT = ln.ParallelType
KINDS = frozenset({"index", "predicate", "identity", "claim", "interface", "store"})


def taken(f: ln.Fusion) -> ln.TensorView:
    x, i = f.input("x", ("V", "D"), ln.float32), f.input("i", ("K",), ln.int32)
    f.assume_range(i, 0, "V")
    return ln.take(x, i, 0)


def clipped(f: ln.Fusion) -> ln.TensorView:
    x, i = f.input("x", ("K", "V"), ln.float32), f.input("i", ("K", 3), ln.int64)
    return ln.take(x, i, 1, mode="clip")


def computed(f: ln.Fusion) -> ln.TensorView:
    x, i = f.input("x", ("K", "V"), ln.float32), f.input("i", ("K", "D"), ln.int32)
    f.assume_range(i, -2, 3)
    return ln.gather(x * 2.0, ln.clamp(i, 0, 1), 1)


def picked(f: ln.Fusion) -> ln.TensorView:
    x, i = f.input("x", ("K", 7), ln.float32), f.input("i", ("K", "D"), ln.int64)
    f.assume_range(i, 0, 7)
    return ln.gather(x, i, 1)


@pytest.mark.parametrize("math", [taken, clipped, computed, picked])
def test_mutants_are_not_proved(math: Callable[[ln.Fusion], ln.TensorView]) -> None:
    with ln.Fusion("gathers") as f:
        y = f.output(math(f) + 1.0, "y")
    y.split(0, 4)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    for producer in f.tensors:
        if producer.definition is not None and producer.definition.op == "mul":
            producer.memory = ln.GLOBAL
        elif producer.definition is not None and producer is not y:
            producer.compute_at(y, -1)
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    assert report.all_sizes, report
    lowered = kernel._lowered
    assert lowered.math is not None
    math_of = lowered.math()
    made = list(mutants(lowered.program, KINDS))
    assert len(made) > 20
    alive = [mutant.text for mutant in made if verify_program(mutant.program, math_of).ok]
    assert alive == []


PLACES: list[Callable[[ln.TensorView], ln.TensorView]] = [
    lambda i: ln.clamp(i, 0, 4),
    lambda i: ln.maximum(4 - i, i - 4),
    lambda i: i % 5,
    lambda i: i // 3 % 4,
    lambda i: ln.minimum(i, 3) + ln.minimum(i, 2),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("inlined", [False, True])
def test_updates_go_to_places_that_coordinates_tell(
    place: Callable[[ln.TensorView], ln.TensorView], inlined: bool
) -> None:
    """The test around the fold asks the coordinates: what it leaves out is the identity."""
    with ln.Fusion("bins") as f:
        u = f.input("u", ("N",), ln.float32)
        places = place(ln.iota("N"))
        f.output(ln.scatter_add(ln.full((6,), 0.0), places, u, 0), "y")
    if inlined:
        f.inline_most()
    kernel = ln.lower(f)
    assert ln.verify(kernel).ok
    lowered = kernel._lowered
    assert lowered.math is not None
    program = lowered.program
    wrong = program.with_body(map_body(program.body, _of_the_next_bin))
    report = verify_program(wrong, lowered.math())
    assert report.status == "refuted"
    assert report.findings[0].kind == "accumulation"


@pytest.mark.parametrize("scattered", [ln.scatter, ln.scatter_add])
def test_places_that_lie_at_flat_offsets(
    scattered: Callable[..., ln.TensorView],
) -> None:
    """Another reader of the places merges their axes, so that they are stored by one offset."""
    with ln.Fusion("k") as f:
        x, u = f.input("x", ("N", 3), ln.float32), f.input("u", ("N", 3), ln.float32)
        places = f.input("i", ("N", 3), ln.int64) + 0
        f.output(scattered(x, places, u, 0), "y")
        f.output(places * 2, "z").merge(0)
    kernel = ln.lower(f)
    assert f"{places.name}.flat[" in str(kernel)
    assert ln.verify(kernel).all_sizes
    lowered = kernel._lowered
    assert lowered.math is not None
    math_of = lowered.math()
    made = list(mutants(lowered.program, frozenset({"index", "identity", "store"})))
    assert len(made) > 20
    assert not [m.text for m in made if verify_program(m.program, math_of).ok]


def _of_the_next_bin(node: kir.Stmt) -> kir.Stmt:
    if not isinstance(node, kir.If) or not isinstance(node.condition, Op):
        return node
    found, place = node.condition.args
    moved = Simplifier().add(place, ONE)
    return replace(node, condition=Op(node.condition.op, (found, moved), dtypes.bool_))


def test_an_index_that_lies_in_place_of_what_it_was_computed_from() -> None:
    """It is read from the memory of the input: behind the store there, where it is another."""
    with ln.Fusion("k") as f:
        i, x = f.input("i", ("N",), ln.int32), f.input("x", (4,), ln.float32)
        f.output(i & 3, "j", inplace=i)
        f.output(ln.take(x, f["j"], 0), "y")
    kernel = ln.lower(f)
    assert str(kernel).endswith("\n  y[i1] = x[index(i[i1])]")
    assert str(ln.verify(kernel)) == "proved for all sizes"
    assert kernel._lowered.math is not None
    math_of, made = kernel._lowered.math(), list(mutants(kernel.program, KINDS | {"order"}))
    assert "swap two neighbours" in [m.text for m in made]
    assert [m.text for m in made if verify_program(m.program, math_of).ok] == []


def test_the_report_names_what_is_declared() -> None:
    with ln.Fusion("k") as f:
        f.output(taken(f), "y")
    report = ln.verify(ln.lower(f))
    assert str(report) == ("proved for all sizes\n  range: 0 <= i < V, as declared by assume_range")
    assert report.ranges == ("0 <= i < V, as declared by assume_range",)


def test_the_report_names_the_declaration_that_is_missing() -> None:
    with ln.Fusion("k") as f:
        x, i = f.input("x", ("V", 7), ln.float32), f.input("i", ("K",), ln.int32)
        f.output(ln.take(x, i, 0), "y")
        f.output(ln.take(x, i, 1), "z")
    report = ln.verify(ln.lower(f))
    assert not report.ok
    assert str(report) == (
        "unknown for all sizes\n"
        "  range: y reads axis 0 of x, of V elements, at i, which nothing bounds: declare it by "
        'assume_range(i, 0, "V")\n'
        "  range: z reads axis 1 of x, of 7 elements, at i, which nothing bounds: declare it by "
        "assume_range(i, 0, 7)"
    )
    assert report.ranges == ()


WIDE: list[tuple[int | str, tuple[int | str, int | str], str]] = [
    ("V", (-1, "V"), "-1 lies outside; V=3, K=5"),
    ("V", (0, "V + 1"), "3 lies outside; V=3, K=5"),
    ("V", (0, 10), "9 lies outside; V=3, K=5"),
    (9, (0, 10), "9 lies outside; K=3"),
    ("V", (0, "K"), "4 lies outside; V=3, K=5"),
    (9, ("K - 1", "K + 7"), "9 lies outside; K=3"),
]


@pytest.mark.parametrize(("extent", "declared", "told"), WIDE)
def test_a_range_that_reaches_past_the_axis_is_refuted(
    extent: int | str, declared: tuple[int | str, int | str], told: str
) -> None:
    with ln.Fusion("k") as f:
        x, i = f.input("x", (extent,), ln.float32), f.input("i", ("K",), ln.int32)
        f.assume_range(i, *declared)
        f.output(ln.take(x, i, 0), "y")
    report = ln.verify(ln.lower(f))
    assert report.status == "refuted"
    (found,) = report.findings
    assert str(found) == (
        f"range: assume_range declares {f.ranges[0]}, and y reads axis 0 of x, of {extent} "
        f"elements: {told}"
    )


def test_a_range_that_other_facts_keep_inside_is_proved() -> None:
    with ln.Fusion("k") as f:
        x, i = f.input("x", ("V",), ln.float32), f.input("i", ("M",), ln.int32)
        f.assume("V >= M + 2")
        f.assume_range(i, 0, "M")
        f.output(ln.take(x, i + 1, 0), "y")
        f.output(ln.take(x, i, 0), "z")
    report = ln.verify(ln.lower(f))
    assert not report.ok  # a sum of int32 may wrap where M is not known
    with ln.Fusion("k") as f:
        x, i = f.input("x", (12,), ln.float32), f.input("i", ("M",), ln.int32)
        f.assume_range(i, 0, 11)
        f.output(ln.take(x, i + 1, 0), "y")
        f.output(ln.take(x, i, 0), "z")
    assert str(ln.verify(ln.lower(f))) == (
        "proved for all sizes\n  range: 0 <= i < 11, as declared by assume_range"
    )


def test_a_range_of_an_input_holds_for_copies_of_it() -> None:
    with ln.Fusion("k") as f:
        y = f.output(taken(f), "y")
    f["i"].cache_after().compute_at(y, 1)
    assert ln.verify(ln.lower(f)).ranges == ("0 <= i < V, as declared by assume_range",)


def test_what_is_wrapped_is_proved_for_all_sizes() -> None:
    with ln.Fusion("k") as f:
        x, i = f.input("x", ("V",), ln.float32), f.input("i", ("K",), ln.int32)
        f.output(ln.take(x, i, 0, mode="wrap"), "y")
    report = ln.verify(ln.lower(f))
    assert report.all_sizes
    assert report.ranges == ()


def test_lanes_of_rows_at_wrapped_indices_follow_each_other() -> None:
    with ln.Fusion("k") as f:
        x = f.input("x", ("M", "D"), ln.float32)
        i = f.input("i", ("K",), ln.int64)
        y = f.output(ln.take(x, i, 0, mode="wrap"), "y")
    y.split(-1, 2)
    y.axis(-1).parallelize(ln.ParallelType.vectorize)
    report = ln.verify(ln.lower(f))
    assert (report.status, report.all_sizes) == ("proved", True)


def test_a_tile_that_is_gathered_from_needs_its_barrier() -> None:
    with ln.Fusion("k") as f:
        x, i = f.input("x", ("V", 32), ln.float32), f.input("i", ("K",), ln.int32)
        f.assume_range(i, 0, "V")
        y = f.output(ln.take(x, i, 0), "y")
    tile = x.cache_after()
    tile.memory = ln.SHARED
    for tensor in (tile, y):
        tensor.split(0, 8)
        tensor.parallelize({1: PT.block_y, 2: PT.block_x})
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes
    lowered = kernel._lowered
    assert lowered.math is not None
    (mutant,) = [
        m for m in mutants(lowered.program, frozenset({"barrier"})) if m.text.startswith("remove")
    ]
    assert verify_program(mutant.program, lowered.math()).status == "refuted"


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("mode", ["raise", "wrap", "clip"])
@pytest.mark.parametrize("memory", [ln.LOCAL, ln.GLOBAL])
def test_an_index_of_the_only_element_is_zero(axis: int, mode: str, memory: ln.Memory) -> None:
    """A buffer lacks an axis of one element, or is read at the index that is data."""
    with ln.Fusion("k") as f:
        x = f.input("x", (5, "V") if axis else ("V", 5), ln.float32)
        f.assume("V == 1")
        i = f.input("i", ("K",), ln.int64)
        t = x * 2.0
        f.output(ln.take(t, i, axis, mode=mode), "y")
    t.memory = memory
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes
    lowered = kernel._lowered
    assert lowered.math is not None
    math = lowered.math()
    unknown = replace(lowered.program, conditions=())
    report = verify_program(unknown, replace(math, conditions=()))
    assert not report.ok
    if mode == "raise":
        fixed = any("reads a fixed element of T2" in found.message for found in report.findings)
        assert fixed == (memory is ln.LOCAL)  # in GLOBAL memory it reads at i


ASKED = "which nothing bounds: clamp it, or declare the range of what it is computed from"
COMPUTED = "as it is computed where no size is 0"
RANGES: list[tuple[int | str, Callable[..., ln.TensorView], str]] = [
    (256, lambda n, i: ln.cast(ln.cast(i, ln.uint8), ln.int32), ""),
    (255, lambda n, i: ln.cast(ln.cast(i, ln.uint8), ln.int32), ASKED),
    (300, lambda n, i: ln.cast(ln.cast(i, ln.uint8), ln.int32) + 44, ""),
    (300, lambda n, i: ln.cast(ln.cast(i, ln.uint8), ln.int32) + 45, ASKED),
    (300, lambda n, i: ln.cast(ln.cast(i, ln.uint8), ln.int32) - 1, ASKED),
    (300, lambda n, i: ln.cast(ln.cast(i, ln.uint8) + 44, ln.int64), ""),  # which wraps
    (256, lambda n, i: ln.cast(ln.cast(i, ln.int8), ln.int32), ASKED),
    (2, lambda n, i: ln.cast(i > 3, ln.int32), ""),
    (16, lambda n, i: ln.clamp(i, 0, 15), ""),
    (15, lambda n, i: ln.clamp(i, 0, 15), ASKED),
    (16, lambda n, i: ln.where(i >= 0, i % 16, 3), ""),
    (16, lambda n, i: i % -16, ASKED),
    (16, lambda n, i: i & 15, ""),
    (16, lambda n, i: ln.minimum(i, 15), ASKED),
    (16, lambda n, i: ln.cast(ln.clamp(ln.cast(i, ln.float32), 0, 15), ln.int32), ASKED),  # nan
    (16, lambda n, i: ln.cast(ln.cast(i, ln.uint8), ln.int32) // 16, ""),
    (15, lambda n, i: ln.cast(ln.cast(i, ln.uint8), ln.int32) // 16, ASKED),
    (16, lambda n, i: ln.cast(i, ln.uint8) >> 4, ""),
    (15, lambda n, i: ln.cast(i, ln.uint8) >> 4, ASKED),
    (255, lambda n, i: ln.cast(i, ln.uint8) // ln.cast(i, ln.uint8), ASKED),
    (255, lambda n, i: ln.cast(i, ln.uint8) >> ln.cast(i, ln.uint8), ASKED),
    ("N", lambda n, i: ln.clamp(i, 0, n - 1), COMPUTED),
    ("N", lambda n, i: ln.maximum(ln.minimum(i, n - 1), 0), COMPUTED),
    ("N", lambda n, i: i % n, COMPUTED),
    ("N", lambda n, i: ln.clamp(i, 0, n), ASKED),
    ("N + 1", lambda n, i: ln.clamp(i, 0, n), ""),
]


@pytest.mark.parametrize(("extent", "made", "told"), RANGES)
def test_ranges_follow_from_how_indices_are_computed(
    extent: int | str, made: Callable[..., ln.TensorView], told: str
) -> None:
    """An index that the math leaves no way out of its axis needs no declaration."""
    with ln.Fusion("rows") as f:
        (n,) = f.input("like", ("N",), ln.float32).shape
        x = f.input("x", (extent,), ln.float32)
        i = f.input("i", ("K",), ln.int32)
        f.output(ln.take(x, made(n, i), 0), "y")
    report = ln.verify(ln.lower(f))
    assert report.all_sizes
    assert report.ok == (told != ASKED)
    assert len(report.findings) == bool(told)
    assert "".join([found.message for found in report.findings]).endswith(told)


def test_no_size_is_zero_by_an_assumption() -> None:
    with ln.Fusion("rows") as f:
        x = f.input("x", ("N",), ln.float32)
        i = f.input("i", ("K",), ln.int32)
        f.assume("N >= 1")
        f.output(ln.take(x, ln.clamp(i, 0, x.shape[0] - 1), 0), "y")
    assert str(ln.verify(ln.lower(f))) == "proved for all sizes"


STORED = [(ln.LOCAL, False), (ln.SHARED, False), (ln.GLOBAL, False), (ln.GLOBAL, True)]


@pytest.mark.parametrize(("memory", "launches"), STORED)
@pytest.mark.parametrize("masked", [True, False])
def test_a_computed_range_passes_through_memory_and_launches(
    memory: ln.Memory, launches: bool, masked: bool
) -> None:
    with ln.Fusion("k") as f:
        x, i = f.input("x", (16,), ln.float32), f.input("i", ("K",), ln.int32)
        key = (i & 15 if masked else ln.minimum(i, 15)).named("key")
        y = f.output(ln.take(x, key, 0), "y")
    key.memory = memory
    if launches:
        y.new_launch()
    kernel = ln.lower(f)
    where = "in launch 1, " if launches else ""
    reads = f"{where}y reads axis 0 of x, of 16 elements, at key, {ASKED}"
    unknown = f"unknown for all sizes\n  range: {reads}"
    assert str(ln.verify(kernel)) == ("proved for all sizes" if masked else unknown)
    assert bool(kernel._lowered.program.index_checks) != masked


@pytest.mark.parametrize("launches", [False, True])
@pytest.mark.parametrize("atomic", [False, True])
def test_scatters_over_keys_that_are_stored(launches: bool, atomic: bool) -> None:
    with ln.Fusion("k") as f:
        i, u = f.input("i", ("K",), ln.int32), f.input("u", ("K",), ln.float32)
        key = (i & 15).named("key")
        h = f.output(ln.index_add(ln.full((16,), 0.0), 0, key, u), "h")
    key.memory = ln.GLOBAL
    if atomic:
        h.atomic()
    h.reorder({1: 0})
    if launches:
        h.new_launch()
    kernel = ln.lower(f)
    assert "in max(0, index(key[" in str(kernel)
    assert str(ln.verify(kernel)) == "proved for all sizes"


@pytest.mark.parametrize("dtype", [ln.uint32, ln.uint8, ln.float32])
def test_padding_that_is_the_identity_may_be_left_out(dtype):
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), dtype)
        value = float("-inf") if dtype.is_float else 0
        windows = ln.unfold(ln.pad(x, [(1, 1)], value=value), 0, 20, dilation=2)
        f.output(ln.max(windows, -1), "y")
    f.inline_most()
    assert ln.verify(ln.lower(f)).all_sizes


@pytest.mark.parametrize("atomic", [False, True])
def test_keys_that_are_folded_themselves(atomic: bool) -> None:
    """The data that choose what an update folds, and those that it folds, are one load."""
    with ln.Fusion("k") as f:
        key = (f.input("i", ("K",), ln.int32) & 15).named("key")
        h = f.output(ln.index_add(ln.full((16,), 0, ln.int32), 0, key, key), "h")
    key.memory = ln.GLOBAL
    if atomic:
        h.atomic()
    h.reorder({1: 0})
    kernel = ln.lower(f)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    lowered = kernel._lowered
    assert lowered.math is not None
    made = list(mutants(lowered.program, frozenset({"index"})))
    math_of = lowered.math()
    assert made
    assert [m.text for m in made if verify_program(m.program, math_of).ok] == []


def chosen(f: ln.Fusion, by: Callable[..., ln.TensorView]) -> tuple[ln.TensorView, ln.TensorView]:
    x, table = f.input("x", ("N", "M"), ln.int32), f.input("t", ("M",), ln.float32)
    found = by(x)
    return found, f.output(ln.take(table, found, 0), "y")


CHOSEN: list[tuple[Callable[..., ln.TensorView], bool]] = [
    (lambda x: ln.argmax(x, 1), True),
    (lambda x: ln.argmin(ln.cast(x, ln.float32), 1), True),
    (lambda x: ln.argmax(x, 1) + 1, False),
    (lambda x: ln.argmax(x), False),  # the number of an element among N * M
    (lambda x: ln.max(x % ln.full(("N", "M"), 2, ln.int32), 1), False),  # M may be 1
    (lambda x: ln.sum(ln.argmax(x, 1)), False),
]


@pytest.mark.parametrize(("by", "inside"), CHOSEN)
def test_what_a_reduction_chooses_lies_where_its_values_do(
    by: Callable[..., ln.TensorView], inside: bool
) -> None:
    with ln.Fusion("k") as f:
        chosen(f, by)
    report = ln.verify(ln.lower(f))
    assert report.ok == inside
    assert (ASKED in str(report)) != inside


@pytest.mark.parametrize("axes", [[1], [2]])
def test_parts_of_a_choice_may_be_of_no_element(axes: list[int]) -> None:
    """Their identity is no index, and the whole is never it; a part alone may be."""
    with ln.Fusion("k") as f:
        found, _ = chosen(f, lambda x: ln.argmax(x, 1))
    part = found.split(1, 8, inner=axes == [2]).rfactor(axes)
    assert part.definition is not None
    assert ln.verify(ln.lower(f)).ok
    make = ln.lower(f)._lowered.math
    assert make is not None
    math, algebra = make(), Simplifier()
    bound = ComputedRanges(math, algebra, algebra.proves_le)
    whole, own = math.tensor(found.name), math.tensor(part.name)
    assert whole is not None
    assert own is not None
    assert bound.inside(whole, Symbol("M"))
    assert not bound.inside(own, Symbol("M"))


def before(by: str, x: ln.TensorView) -> ln.TensorView:
    """Whether element j of x stands in front of element i, at [i, j]."""
    number = ln.iota(x.sizes[0], dtype=ln.int64)
    one, other, own, others = x[:, None], x[None, :], number[:, None], number[None, :]
    match by:
        case "less":
            return other < one
        case "less, in order":
            return (other < one) | (ln.eq(other, one) & (others < own))
        case "more, in order":
            return (one < other) | (ln.eq(other, one) & (own > others))
        case "less or equal":
            return other <= one
        case "less, in order, and itself":
            return (other < one) | (ln.eq(other, one) & (others <= own))
        case _:
            return ln.abs(other) < one


def ranked(by: str, dtype: ln.DType = ln.int64) -> tuple[ln.Fusion, ln.TensorView]:
    with ln.Fusion("ranked") as f:
        x = f.input("x", ("N",), ln.float32)
        rank = ln.sum(ln.cast(before(by, x), dtype), 1)
        f.output(ln.take(x, rank, 0), "y")
    return f, rank


RANKS = ["less", "less, in order", "more, in order"]


@pytest.mark.parametrize("by", RANKS)
@pytest.mark.parametrize("schedule", ["", "inlined", "parts", "c", "cuda"])
def test_a_rank_is_an_index_of_what_is_ranked(by: str, schedule: str) -> None:
    """It counts the elements before one, which is not before itself."""
    f, rank = ranked(by)
    if schedule == "parts":
        rank.split(1, 4)
        rank.rfactor(1)
    elif schedule in ("c", "cuda"):
        ln.auto_schedule(f, schedule)
    elif schedule:
        f.inline_most()
    kernel = ln.lower(f)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    data = np.array([3, -1, 3, np.inf, 0, -1, 7], np.float32)
    for target in ("interpret", "c"):
        np.testing.assert_array_equal(ln.compile(kernel, target)(data), ln.evaluate(f, data))


@pytest.mark.parametrize("by", ["less or equal", "less, in order, and itself", "another value"])
def test_a_count_of_what_is_not_known_to_lack_one_may_be_all(by: str) -> None:
    f, rank = ranked(by)
    report = ln.verify(ln.lower(f))
    assert report.status == "unknown"
    assert f"of N elements, at {rank.name}, {ASKED}" in str(report)


@pytest.mark.parametrize(("elements", "inside"), [(40, False), (41, True)])
def test_a_count_is_at_most_the_number_of_elements(elements: int, inside: bool) -> None:
    with ln.Fusion("counted") as f:
        x, table = f.input("x", ("K", 40), ln.int8), f.input("table", (elements,), ln.float32)
        f.output(ln.take(table, ln.sum(ln.cast(x > 0, ln.int64), 1), 0), "y")
    assert ln.verify(ln.lower(f)).status == ("proved" if inside else "unknown")


@pytest.mark.parametrize(("length", "status"), [(40, "proved"), ("N", "unknown")])
def test_a_sum_that_may_wrap_has_no_bounds(length: int | str, status: str) -> None:
    """Of N numbers to 3 it is at most 3 N, which the type may not hold."""
    with ln.Fusion("summed") as f:
        x = f.input("x", ("K", length), ln.uint8)
        table = f.input("table", (x.sizes[1] * 3 + 1,), ln.float32)
        f.output(ln.take(table, ln.sum(ln.cast(x & 3, ln.int64), 1), 0), "y")
    assert ln.verify(ln.lower(f)).status == status
