"""move_by: pipelines of copies in flight, their barriers, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln
from helpers.flying_nests import column_sums
from loopnest.kir import Barrier, Commit, Issue, Store, Wait
from loopnest.kir.legal_program import program_faults

PT = ln.ParallelType
SIZES = [(13, 260), (4, 131), (0, 8)]


def kinds(kernel: ln.Kernel) -> list[type]:
    return [type(node) for node, _ in kernel.walk()]


def results_are_right(f: ln.Fusion, dtype: ln.DType) -> None:
    for target, order in (("interpret", None), ("interpret", 3), ("c", None)):
        options = {} if order is None else {"thread_order": order}
        run = ln.compile(f, target=target, **options)
        for rows, columns in SIZES:
            x = np.random.default_rng(rows).integers(-9, 9, (rows, columns)).astype(dtype.numpy)
            expected = (x.astype(np.float64) * 2).sum(0).astype(dtype.numpy)
            np.testing.assert_array_equal(run(x), expected)


@pytest.mark.parametrize(
    ("stages", "prefetch", "dtype", "lanes"),
    [
        (2, None, ln.float32, 4), (4, None, ln.float32, 2), (4, 2, ln.int32, 4),
        (3, 1, ln.float64, 2), (3, None, ln.float16, 8), (2, None, ln.bfloat16, 2),
    ],
)  # fmt: skip
def test_a_pipeline(stages: int, prefetch: int | None, dtype: ln.DType, lanes: int) -> None:
    f = column_sums(stages, prefetch, dtype=dtype, lanes=lanes)
    kernel = ln.lower(f)
    ahead = prefetch or stages - 1
    found = kinds(kernel)
    assert [found.count(kind) for kind in (Issue, Commit, Wait, Barrier)] == [
        ahead + 1, ahead + 1, 1, 1
    ]  # fmt: skip
    (wait,) = [node for node, _ in kernel.walk() if isinstance(node, Wait)]
    assert wait.pending == ahead - 1
    for variant in (kernel, kernel.scalar):
        assert variant is not None
        assert ln.verify(variant).all_sizes
    results_are_right(f, dtype)


def test_each_pass_keeps_the_nest_legal_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPNEST_PASSES", "verify")
    ln.lower(column_sums(3))


@pytest.mark.parametrize("dtype", [ln.float16, ln.float32], ids=str)
def test_padding_is_a_copy_of_fewer_bytes(dtype: ln.DType) -> None:
    """Elements that the math says are 0 take no memory, and no other way."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("S", 64), dtype)
        tiles = ln.unfold(x, 0, 32, stride=32, padding=(0, 31))  # [T, 64, 32]
        f.output(ln.sum(ln.cast(ln.flip(tiles, 2), ln.float32), axis=0), "y")
    y, tile = f["y"], tiles
    tile.memory = ln.SHARED
    y.axis(1).parallelize(PT.block_x)
    tile.compute_at(y, 1)
    tile.reorder({2: 1})  # [T, 32, 64]
    wide = 16 // dtype.size
    tile.split(2, wide)
    tile.parallelize({2: PT.block_x, 3: PT.vectorize})
    tile.move_by("cp.async").circular_buffer(2)
    f.inline_most()
    kernel = ln.lower(f)
    assert ln.verify(kernel).all_sizes
    assert str(kernel).count("else:") == 2
    assert kernel.cuda().count("32 < S ? 16 : 0);") == kernel.cuda().count("? 16 : 0);") - 1 == 1
    for target in ("interpret", "c"):
        run = ln.compile(f, target=target)
        for rows in (1, 32, 70):
            given = np.random.default_rng(rows).integers(-9, 9, (rows, 64)).astype(dtype.numpy)
            np.testing.assert_array_equal(run(given), ln.evaluate(f, given))


def test_without_a_circular_buffer_copies_are_waited_for_at_once() -> None:
    f = column_sums(1)
    kernel = ln.lower(f)
    found = kinds(kernel)
    assert [found.count(kind) for kind in (Issue, Commit, Wait, Barrier)] == [1, 1, 1, 2]
    (note,) = [str(note).partition(" (/")[0] for note in kernel.notes]
    assert note == (
        "tile: tile.move_by('cp.async'): each copy is waited for at once, because no circular "
        "buffer holds what arrives while something else is computed; let tile run ahead: "
        "circular_buffer(2)"
    )
    assert ln.verify(kernel).all_sizes
    results_are_right(f, ln.float32)


def test_elements_that_no_copy_fits_are_stored_as_usual_where_vectors_fit_no_size() -> None:
    kernel = ln.lower(column_sums(3, dtype=ln.float16, lanes=8))
    assert Issue in kinds(kernel)
    assert kernel.scalar is not None
    assert not {Issue, Commit, Wait} & set(kinds(kernel.scalar))


def product(prefetches: tuple[int, int]) -> ln.Fusion:
    """Return a product of which the tiles of both operands are moved, by groups of one loop."""
    with ln.Fusion("product") as f:
        a = f.input("a", ("M", "K"), ln.float32)
        b = f.input("b", ("K", "N"), ln.float32)
        c = f.output(ln.matmul(a, b), "c")
    (terms,) = c.producers
    tiles, total = [a.cache_after(), b.cache_after()], c.cache_before()
    c.split(1, 8)
    c.split(0, 4)
    c.reorder({2: 1})
    c.parallelize({0: PT.grid_y, 1: PT.grid_x, 2: PT.block_y, 3: PT.block_x})
    total.compute_at(c, 2)
    total.split(-1, 4)
    total.reorder({-2: 2})  # [M / 4, N / 8, K / 4, 4, 8, 4]
    total.parallelize({3: PT.block_y, 4: PT.block_x})
    threads = ({2: PT.block_y, 3: PT.block_x}, {2: PT.block_x, 3: PT.block_y})
    for tile, ahead, along in zip(tiles, prefetches, threads, strict=True):
        tile.memory = ln.SHARED
        tile.compute_at(total, 3)
        tile.parallelize(along)
        tile.move_by("cp.async").circular_buffer(4, ahead)
    terms.compute_at(total, -1)
    for tensor in terms.producers:
        tensor.compute_at(terms, -1)
    return f


@pytest.mark.parametrize("prefetches", [(1, 1), (3, 3), (1, 3)])
def test_the_copies_of_a_loop_share_its_groups(prefetches: tuple[int, int]) -> None:
    f = product(prefetches)
    kernel = ln.lower(f)
    found = kinds(kernel)
    assert found.count(Commit) == max(prefetches) + 1
    (wait,) = [node for node, _ in kernel.walk() if isinstance(node, Wait)]
    assert wait.pending == min(prefetches) - 1
    assert found.count(Barrier) == 1
    assert ln.verify(kernel).all_sizes
    for sizes in ((1, 1, 1), (5, 9, 17), (8, 8, 4), (3, 2, 0)):
        m, n, k = sizes
        rng = np.random.default_rng(0)
        a = rng.integers(-4, 4, (m, k)).astype(np.float32)
        b = rng.integers(-4, 4, (k, n)).astype(np.float32)
        for target, options in (("c", {}), ("interpret", {}), ("interpret", {"thread_order": 1})):
            got = ln.compile(f, target=target, **options)(a, b)
            np.testing.assert_array_equal(got, a @ b)


def test_threads_that_read_their_own_copies_need_no_barrier() -> None:
    with ln.Fusion("own") as f:
        x = f.input("x", ("N", 32), ln.float32)
        y = f.output(ln.sum(ln.exp(x), axis=0), "y")
    tile, total = x.cache_after(), y.cache_before()
    tile.memory = ln.SHARED
    y.axis(0).parallelize(PT.block_x)
    total.compute_at(y, 1)
    tile.compute_at(total, 2)
    f.inline_most()
    tile.move_by("cp.async").circular_buffer(3)
    kernel = ln.lower(f)
    assert Barrier not in kinds(kernel)
    assert ln.verify(kernel).all_sizes
    x = np.random.default_rng(0).random((7, 32)).astype(np.float32)
    for order in (None, 1, 2):
        options = {} if order is None else {"thread_order": order}
        got = ln.compile(f, target="interpret", **options)(x)
        np.testing.assert_allclose(got, np.exp(x).sum(0), rtol=1e-6)


# Refused


def tensors() -> tuple[ln.Fusion, ln.TensorView, ln.TensorView]:
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", 128), ln.float32)
        y = f.output(ln.sum(x * 2.0, axis=1), "y")
    return f, x.cache_after(), y


def shared(f: ln.Fusion, tile: ln.TensorView) -> ln.TensorView:
    tile.memory = ln.SHARED
    return tile


def through_registers(f: ln.Fusion, tile: ln.TensorView) -> ln.TensorView:
    return shared(f, tile.cache_after())


def converted(f: ln.Fusion, tile: ln.TensorView) -> ln.TensorView:
    return shared(f, tile.consumers[0])


def folded(f: ln.Fusion, tile: ln.TensorView) -> ln.TensorView:
    return shared(f, f["y"].cache_before())


MOVES = "the moves are cp.async, ldmatrix.x2, ldmatrix.x2.trans, ldmatrix.x4, ldmatrix.x4.trans"


@pytest.mark.parametrize(
    ("made", "name", "message"),
    [
        (shared, "cp.asink",
         f"T3.move_by('cp.asink'): there is no instruction 'cp.asink'; {MOVES}"),
        (shared, 3, f"T3.move_by(3): there is no instruction 3; {MOVES}"),
        (shared, "mma.m16n8k16.f32.f16",
         "T3.move_by('mma.m16n8k16.f32.f16'): mma.m16n8k16.f32.f16 computes d[m, n] = d[m, n] + "
         f"float32(a[m, k]) * float32(b[k, n]), and moves nothing; {MOVES}"),
        (lambda f, tile: tile, "cp.async",
         "T3.move_by('cp.async'): T3 is in local memory, and cp.async copies from global to shared "
         "memory; set T3.memory = ln.SHARED first"),
        (through_registers, "cp.async",
         "T4.move_by('cp.async'): T3 is in local memory, and cp.async copies from global to shared "
         "memory; move a copy of what lies in GLOBAL memory (cache_after)"),
        (converted, "cp.async",
         "T1.move_by('cp.async'): T1 is mul of what it reads, and cp.async copies; move a copy "
         "(cache_after), and compute from it"),
        (folded, "cp.async",
         "T4.move_by('cp.async'): T4 is a reduction, and cp.async copies; move a copy "
         "(cache_after)"),
        (lambda f, tile: f["x"], "cp.async",
         "x.move_by('cp.async'): x is an input, which has no loops of its own; only cache_after "
         "and compute_at apply to inputs"),
    ],
)  # fmt: skip
def test_a_refused_move_changes_nothing(
    made: Callable[[ln.Fusion, ln.TensorView], ln.TensorView], name: object, message: str
) -> None:
    f, tile, _ = tensors()
    moved = made(f, tile)
    before = [str(t) for t in f.tensors], len(f.trace)
    with pytest.raises(ln.ScheduleError) as caught:
        moved.move_by(name)  # type: ignore[arg-type]
    assert str(caught.value) == message
    assert ([str(t) for t in f.tensors], len(f.trace)) == before
    assert moved.layout.move == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cp.async.bulk", "T3.move_by('cp.async.bulk'): instructions of this kind need statements "
         f"that do not exist yet is not supported yet; {MOVES}"),
        ("tma.load", "T3.move_by('tma.load'): instructions of this kind need statements that do "
         f"not exist yet is not supported yet; {MOVES}"),
    ],
)  # fmt: skip
def test_moves_of_a_later_version(name: str, message: str) -> None:
    f, tile, _ = tensors()
    with pytest.raises(ln.NotSupported) as caught:
        shared(f, tile).move_by(name)
    assert str(caught.value).startswith(message.partition(" is not supported")[0])


def test_the_memory_is_chosen_before() -> None:
    f, tile, _ = tensors()
    shared(f, tile).move_by("cp.async")
    with pytest.raises(ln.ScheduleError) as caught:
        tile.memory = ln.LOCAL
    assert str(caught.value) == (
        "T3.set_memory(local): T3 is moved by cp.async, to SHARED memory; choose the memory before "
        "move_by"
    )


def test_fills_are_in_flight_too() -> None:
    kernel = ln.lower(column_sums(2))
    issued = [
        node.role
        for node, around in kernel.walk()
        if isinstance(node, Store) and any(isinstance(a, Issue) for a in around)
    ]
    assert set(issued) == {"define", "fill"}


def test_diagnose_sees_what_copies_bring() -> None:
    kernel = ln.lower(column_sums(3))
    found = str(ln.diagnose(kernel, np.ones((7, 12), np.float32)))
    assert found == "column_sums: all 4 tensors have the values of the math"


def test_a_copy_that_came_to_lie_in_between() -> None:
    f, tile, _ = tensors()
    shared(f, tile).move_by("cp.async")
    tile.cache_before()
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value) == (
        "T3: it is moved by cp.async, from GLOBAL memory, and is stored T4[i2, i3]; let it copy an "
        "input, or a tensor in GLOBAL memory, and compute from it"
    )


@pytest.mark.parametrize("moved", [True, False])
def test_a_buffer_that_rotates_inside_of_a_loop_that_was_parted(moved: bool) -> None:
    """The loop over threads inside of the outer one is parted; the inner loop stays itself."""
    with ln.Fusion("nested") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        w = f.input("w", ("N", "D"), ln.float32)
        y = f.output(ln.max(x * 2 + w * 3, axis=0), "y")
    outer, inner = x.cache_after(), w.cache_after()
    y.split(1, 2)
    y.split(0, 8)  # [r N / 8, r 8, D / 2, 2]
    y.axis(1).parallelize(PT.grid_x)
    for tile, at, lanes in ((outer, 1, 8), (inner, 3, 4)):
        tile.memory = ln.SHARED
        tile.compute_at(y, at)
        tile.split(-1, lanes)
        tile.axis(-2).parallelize(PT.block_x)
        if moved:
            tile.move_by("cp.async")
        tile.circular_buffer(3)
    f.inline_most()
    kernel = ln.lower(f)
    assert program_faults(kernel.program) == []
    assert "T7: float32[3, " in str(kernel)
    rng = np.random.default_rng(0)
    a, b = [rng.integers(-9, 9, (19, 12)).astype(np.float32) for _ in range(2)]
    for options in ({}, {"thread_order": 1}):
        got = ln.compile(f, target="interpret", **options)(a, b)
        np.testing.assert_array_equal(got, (2 * a + 3 * b).max(0))
