"""Proofs about values that cross threads: nests as they are, and with one thing wrong."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from helpers.exchanging_kernels import (
    CASES,
    EXCHANGE,
    on,
)
from loopnest.lowering.loops.loop_plan import LoopPlan
from loopnest.lowering.reductions import grid_reduction
from loopnest.schedule.loop_forest import LoopGroup

# Kernels: the math, and a nest


@pytest.mark.parametrize("name", list(CASES))
def test_a_right_nest_is_proved_for_all_sizes(name: str) -> None:
    report = on(name)
    assert (report.status, report.scope) == ("proved", "all sizes"), str(report)


def dropped(line: str, number: int = 1) -> tuple[str, str, int]:
    return line + "\n", "\n", number


BARRIERS = [
    (name, scope, number)
    for name, (_, text) in CASES.items()
    for scope in ("block", "warp", "grid")
    for number in range(1, text.count(f"barrier {scope}") + 1)
]


@pytest.mark.parametrize(("name", "scope", "number"), BARRIERS)
def test_without_one_barrier_there_is_a_race(name: str, scope: str, number: int) -> None:
    report = on(name, dropped(f"barrier {scope}", number))
    assert report.status == "refuted"
    races = [f for f in report.findings if f.kind == "race"]
    assert races, str(report)
    assert all(f.at is not None and f.other is not None for f in races)
    assert all((f.at.block, f.at.thread) != (f.other.block, f.other.thread) for f in races)


SUM = "the collective 'sum' does not do what it declares in a block of "
RACE = "two threads use one element of {}, and one of them writes"
BLOCKS = "two blocks use one element of {}, and one of them writes"
SHORT = "which has not accumulated its whole domain by then"
OTHERWISE = "which accumulates an element twice, or without an init, or of another element"

WRONG = {
    # an index term
    "tile: a transposed read": (
        "tile", ("t[i5, i4] * 2.0", "t[i4, i5] * 2.0"),
        "flow", "y reads an element of t that was never stored",
    ),
    "tile: a store at the wrong place": (
        "tile", ("t[i2, i3] = x[i1 * 8 + i2", "t[i2, i3] = x[i1 * 8 + i3"),
        "bounds", "t reads out of bounds: index {N} for axis 0 of x, which has extent {N}",
    ),
    "exchange: an element off": (
        "exchange", ("t[(i2 + 1) % 64] + 1.0", "t[(i2 + 1) % 64 - 1] + 1.0"),
        "bounds", "y reads out of bounds: index -1 for axis 0 of t, which has extent 64",
    ),
    "exchange: two elements on one": (
        "exchange", ("t[i1] = x[i0 * 64 + i1]", "t[i1 % 63] = x[i0 * 64 + i1]"),
        "race", RACE.format("t"),
    ),
    "gemm: a transposed tile": (
        "gemm", ("right[i7, i6]", "right[i6, i7]"),
        "flow", "T5 reads an element of right that was never stored",
    ),
    "block: half of the slots": (
        "block", ("part[block_x % 4]", "part[block_x % 2]"),
        "collective", SUM + "(128, 1, 1): v15 in thread 0 lacks the contribution of thread 64",
    ),
    "block: a lane too often": (
        "block", ("shuffle_xor(v2, 8)", "shuffle_xor(v2, 16)"),
        "collective", SUM + "(128, 1, 1): v15 in thread 0 lacks the contribution of thread 8",
    ),
    "grid: the first part only": (
        "grid", ("parts[i2]", "parts[0]"), "accumulation", f"y needs y[], {OTHERWISE}",
    ),
    "grid: one slot for all": (
        "grid", ("parts[grid_x] = acc[0]", "parts[0] = acc[0]"), "race", BLOCKS.format("parts"),
    ),
    "alias: an element off": (
        "alias", ("u[i2] * 2.0", "u[i2 - 1] * 2.0"),
        "bounds", "y reads out of bounds: index -1 for axis 0 of u, which has extent 8",
    ),
    # an identity, an init
    "gemm: another identity": (
        "gemm", ("acc[0] = 0.0", "acc[0] = 1.0"),
        "value", "the store starts y from 1.0, its identity is 0.0",
    ),
    "odd: another identity": (
        "odd", ("total[0] = 0.0", "total[0] = 1.0"),
        "collective", SUM + "(33, 1, 1): it takes in 1.0, the identity is 0.0",
    ),
    "block: threads without an init": (
        "block", ("  acc[0] = 0.0  # init", "  if block_x > 0:\n    acc[0] = 0.0  # init"),
        "accumulation", "a thread contributes what is no partial result of y",
    ),
    "grid: the parts on top of the own one": (
        "grid", ("if last:\n  acc[0] = 0.0  # init y(0)\n", "if last:\n"),
        "accumulation", f"y needs y[], {OTHERWISE}",
    ),
    # a predicate, a bound
    "tile: a weaker test": (
        "tile", ("if i1 * 8 + i2 < N", "if i1 * 8 + i2 <= N"),
        "bounds", "t reads out of bounds: index {N} for axis 0 of x, which has extent {N}",
    ),
    "exchange: a narrower test": (
        "exchange", ("if i0 * 64 + i1 < N:", "if i0 * 64 + i1 < N - 1:"),
        "flow", "y reads an element of t that was never stored",
    ),
    "gemm: a weaker test": (
        "gemm", ("if i2 * 8 + i7 < K", "if i2 * 8 + i7 <= K"),
        "flow", "T4 reads an element of left that was never stored",
    ),
    "gemm: the rest of K left out": (
        "gemm", ("for i2 in ceildiv(K, 8)", "for i2 in K // 8"),
        "accumulation", f"y needs y[0, 0], {SHORT}",
    ),
    "gemm: a short loop": (
        "gemm", ("for i7 in 8", "for i7 in 7"), "accumulation", f"y needs y[0, 0], {SHORT}",
    ),
    "block: too few slots": (
        "block", ("if block_x % 32 == 0", "if block_x % 64 == 0"),
        "collective",
        SUM + "(128, 1, 1): nothing was stored to the element of part read by thread 1",
    ),
    "block: two writers": (
        "block", ("if block_x == 0", "if block_x <= 1"), "race", RACE.format("y"),
    ),
    "odd: a slot left out": (
        "odd", ("for i3 in 33", "for i3 in 32"),
        "collective", SUM + "(33, 1, 1): v9 in thread 0 lacks the contribution of thread 32",
    ),
    "odd: a slot without a store": (
        "odd", ("    slots[block_x] =", "    if block_x < 32:\n      slots[block_x] ="),
        "collective",
        SUM + "(33, 1, 1): nothing was stored to the element of slots read by thread 0",
    ),
    "columns: a partner too many": (
        "columns", ("if block_y + 4 < 8", "if block_y + 4 <= 8"), "race", RACE.format("slots"),
    ),
    "columns: a partner too few": (
        "columns", ("if block_y + 2 < 4", "if block_y + 2 < 3"),
        "collective", SUM + "(16, 16, 1): v8 in thread 0 lacks the contribution of thread 48",
    ),
    "grid: a part too few": (
        "grid", ("for i2 in 4", "for i2 in 3"), "accumulation", f"y needs y[], {SHORT}",
    ),
    # what threads declare
    "block: another reducer": (
        "block", ("v15 = sum(acc[0])", "v15 = max(acc[0])"),
        "value", "the collective combines by 'max', not by the reducer of y",
    ),
    "block: another dimension": (
        "block", ("over block_x", "over block_y"),
        "collective",
        SUM + "(128, 1, 1): v15 in thread 0 has taken in the contribution of thread 1",
    ),
    # buffers
    "tile: a small buffer": (
        "tile", ("t: float32[8, 8] shared", "t: float32[8, 7] shared"),
        "bounds", "t writes out of bounds: index 7 for axis 1 of t, which has extent 7",
    ),
    "grid: a small workspace": (
        "grid", ("parts: float32[4]", "parts: float32[3]"),
        "bounds", "y writes out of bounds: index 3 for axis 0 of parts, which has extent 3",
    ),
    # arrivals
    "grid: another count": (
        "grid", ("arrive(count[0], 4)", "arrive(count[0], 3)"),
        "arrival", "4 blocks arrive at count, not 3",
    ),
    "grid: another counter": (
        "grid", ("arrive(count[0], 4)", "arrive(count[grid_x], 4)"),
        "bounds",
        "the arrival last writes out of bounds: index 1 for axis 0 of count, which has extent 1",
    ),
    "grid: the first block goes on": (
        "grid", ("if last:\n", "if grid_x == 0:\n"), "race", BLOCKS.format("parts"),
    ),
    "grid: left after arriving": (
        "grid",
        (
            "parts[grid_x] = acc[0]  # partial y\nlet last = arrive(count[0], 4)\n",
            "let last = arrive(count[0], 4)\nparts[grid_x] = acc[0]  # partial y\n",
        ),
        "race", BLOCKS.format("parts"),
    ),
    # barriers
    "tile: a barrier of the warp": (
        "tile", ("barrier block", "barrier warp"), "race", RACE.format("t"),
    ),
    "together: a barrier of the block": (
        "together", ("barrier grid", "barrier block"), "race", BLOCKS.format("parts"),
    ),
    "together: all blocks write": (
        "together", ("if grid_x == 0:\n  y[0] =", "y[0] ="), "race", BLOCKS.format("y"),
    ),
    "tile: rows pass by the barrier": (
        "tile", ("    barrier block", "    if i1 * 8 + block_y < N:\n      barrier block"),
        "barrier", "not all threads of a block reach the barrier",
    ),
    "tile: a barrier of one column": (
        "tile", ("    barrier block", "    if block_x == 0:\n      barrier block"),
        "barrier", "not all threads of a block reach the barrier",
    ),
    "block: half a warp shuffles": (
        "block",
        ("    let v1 = shuffle", "    if block_x < 16:\n      let v1 = shuffle"),
        "scope", "the value of v2 names v1 before it is defined",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", list(WRONG))
def test_one_thing_wrong_is_refuted(what: str) -> None:
    name, (old, new), kind, message = WRONG[what]
    report = on(name, (old, new, 1))
    assert report.status == "refuted", str(report)
    found = [(f.kind, f.message) for f in report.findings]
    sizes = report.findings[0].sizes
    assert (kind, message.format(**sizes)) in found, str(report)


def test_a_race_names_both_accesses() -> None:
    report = on("tile", dropped("barrier block"))
    (race,) = [f for f in report.findings if f.kind == "race"]
    n, m = race.sizes["N"], race.sizes["M"]
    assert str(race) == (
        "race: two threads use one element of t, and one of them writes; "
        "read of t[0, 1] at nest line 15 'y[i0 * 8 + i4, i1 * 8 + i5] = t[i5, i4] * 2.0', "
        "block (0, 0, 0), thread (0, 1, 0), i0=0, i1=0, i4=1, i5=0; "
        "other access: write of t[0, 1] at nest line 10 "
        "'t[i2, i3] = x[i1 * 8 + i2, i0 * 8 + i3]', "
        f"block (0, 0, 0), thread (1, 0, 0), i0=0, i1=0, i2=0, i3=1; N={n}, M={m}"
    )


def test_a_store_in_shared_space_ends_what_was_there() -> None:
    late = ("    y[i0, i2] =", "    z[i0, i2] = t[i2] + 4.0  # z(i0, i2)\n    y[i0, i2] =", 1)
    gone = ("  z[i0, block_x] = t[block_x] + 4.0  # z(i0, block_x)\n", "", 1)
    report = on("alias", gone, late)
    assert [(f.kind, f.message) for f in report.findings] == [
        ("alias", "z reads an element of t after a store to u, which shares its space")
    ]
    apart = ("u: float32[8] shared = t", "u: float32[8] shared", 1)
    assert on("alias", gone, late, apart).ok


def test_threads_of_two_buffers_in_one_space_are_ordered() -> None:
    report = on("alias", dropped("barrier warp"))
    assert [f.message for f in report.findings] == [
        "two threads use u and t, which share space, and one of them writes"
    ]


def test_a_barrier_of_the_warp_orders_a_warp_alone() -> None:
    small = [("64", "32", number) for number in (1,) * EXCHANGE.count("64")]
    warps = [("barrier block", "barrier warp", 1)] * 2
    assert on("exchange", *small, *warps).ok
    assert on("exchange", *warps).status == "refuted"


@pytest.mark.parametrize(
    "tile",
    ["[8, 8] shared xor(0, 1)", "[8, 8] shared xor(1, 0)", "[16, 8] shared xor(0, 1)",
     "[8, 16] shared xor(0, 1)", "[8, 8] shared xor(0, 1) xor(1, 0)"],
)  # fmt: skip
def test_a_swizzle_permutes_its_tile(tile: str) -> None:
    report = on("tile", ("t: float32[8, 8] shared", f"t: float32{tile}", 1))
    assert (report.status, report.scope) == ("proved", "all sizes"), str(report)


@pytest.mark.parametrize(
    ("shape", "swizzles"),
    [([8, 9], "xor(0, 1)"), ([8, 12], "xor(1, 0) xor(0, 1)"), ([8, 8], "xor(1, 1)")],
)
def test_a_swizzle_of_another_extent_is_refuted(shape: list[int], swizzles: str) -> None:
    tile = f"t: float32{shape} shared {swizzles}"
    report = on("tile", ("t: float32[8, 8] shared", tile, 1))
    assert [(f.kind, f.message) for f in report.findings] == [
        ("layout", f"the swizzle of t is no permutation of its tile: shape {shape}")
    ]


def test_a_name_of_an_index_is_looked_through() -> None:
    named = (
        "      y[i0 * 8 + i4, i1 * 8 + i5] = t[i5, i4] * 2.0",
        "      let c = i1 * 8 + i5\n            y[i0 * 8 + i4, c] = t[c - i1 * 8, i4] * 2.0",
        1,
    )
    report = on("tile", named)
    assert (report.status, report.scope) == ("proved", "all sizes"), str(report)


def test_a_loop_that_differs_between_threads_is_not_proved() -> None:
    report = on("tile", ("    barrier block", "    for i9 in block_x:\n      barrier block", 1))
    assert report.status == "unknown"
    unknown = [f.message for f in report.findings if f.status == "unknown"]
    assert unknown == ["an extent depends on data: block_x"]


def test_one_block_need_not_be_the_last_at_two_counters() -> None:
    report = on(
        "grid",
        ("count: int32[1] global\n", "count: int32[1] global\nmore: int32[1] global\n", 1),
        ("if last:", "let also = arrive(more[0], 4)\nif last and also:", 1),
    )
    assert (report.status, report.findings[0].message) == (
        "refuted",
        "element [] of output y is never stored",
    )


def running_sums_of_maxima() -> ln.Fusion:
    """Each step of a scan waits for blocks: the last one of a step may be another in the next."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("M", "K", "N"), ln.float32)
        top = ln.max(x, 2)
        y = f.output(ln.cumsum(top, 1), "y")
    top.split(2, 7)
    top.parallelize({3: ln.ParallelType.grid_x})
    top.compute_at(y, 2)
    return f


def test_what_a_scan_carries_on_is_not_left_in_a_last_block() -> None:
    f = running_sums_of_maxima()
    kernel = ln.lower(f)
    assert "barrier grid" in str(kernel)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    x = np.random.default_rng(0).random((3, 5, 9)).astype(np.float32)
    for seed in (None, 0, 1):
        found = ln.compile(kernel, "interpret", thread_order=seed)(x)
        np.testing.assert_allclose(found, ln.evaluate(f, x), rtol=1e-6)


def test_registers_that_go_from_one_last_block_to_another_are_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a nest was proved: one number stood for the last block at all counters."""

    def outside_of_reductions(plan: LoopPlan, unit: ln.TensorView) -> tuple[LoopGroup, ...]:
        path = plan.forest.path(unit)
        first = next((axis for axis in unit.domain.leaf if axis.is_reduction), None)
        return path if first is None else path[: path.index(plan.forest.find(first))]

    monkeypatch.setattr(grid_reduction, "_all_around", outside_of_reductions)
    kernel = ln.lower(running_sums_of_maxima())
    assert "y_acc[0] = y_acc[0] + T1[0]" in str(kernel)
    assert "barrier grid" not in str(kernel)
    for sizes in ({}, {"M": 3, "K": 4, "N": 9}):
        assert ln.verify(kernel, **sizes).status == "refuted"


def test_two_reductions_over_the_grid_go_on_in_blocks_of_their_own() -> None:
    """It is looked at with the first block last at one counter and the last one at the other."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        outputs = [f.output(ln.sum(x, 0), "y1"), f.output(ln.max(x, 0), "y2")]
    for y in outputs:
        y.split(0, 5)
        y.split(0, 2)
        kinds = (ln.ParallelType.grid_x, ln.ParallelType.grid_y, ln.ParallelType.grid_z)
        y.parallelize(dict(zip((0, 2, 3), kinds, strict=True)))
    assert ln.verify(ln.lower(f)).ok


def test_what_depends_on_the_last_block_is_not_proved() -> None:
    own = ("parts[i2]", "parts[(i2 + grid_x) % 4]", 1)
    report = on("grid", own)
    assert report.status == "unknown"
    unknown = [f.message for f in report.findings if f.status == "unknown"]
    assert unknown == ["an access depends on which block arrives last"]


@pytest.mark.parametrize("threads", [32, 33, 64])
def test_components_that_combine_alike_are_told_by_what_is_combined(threads: int) -> None:
    """Two sums in one reducer: the template of the first fits the second too."""
    both = ln.Reducer((0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1]), "both")
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", threads), ln.float32)
        one, two = ln.reduce(both, (x, x * x), axis=1)
        f.output(one, "one")
        f.output(two, "two")
    f["one"].parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    f.inline_most()
    assert ln.verify(ln.lower(f)).all_sizes
