"""Notes on conflicts of shared memory's banks: whom they count, and whether their remedy helps."""

from __future__ import annotations

import pytest

import loopnest as ln
from helpers.bank_conflicts import conflicts
from loopnest.kir.lowered import Note

PT = ln.ParallelType


def turned(size: int = 32, lanes: int = 1) -> tuple[ln.Fusion, ln.TensorView]:
    """Return a transpose by tiles of shared memory, and its tile."""
    with ln.Fusion("k") as f:
        x = f.input("x", (64, 64), ln.float32)
        y = f.output(ln.permute(x, (1, 0)), "y")
    tile = x.cache_after()
    y.split(1, size).split(0, size).reorder({1: 2, 2: 1})  # [row, column, inner row, inner column]
    if lanes > 1:
        y.split(3, lanes)
    tile.compute_at(y, 2)
    tile.memory = ln.SHARED
    y.parallelize({0: PT.grid_y, 1: PT.grid_x, 2: PT.block_y, 3: PT.block_x})
    tile.parallelize({2: PT.block_x, 3: PT.block_y} if lanes == 1 else {2: PT.block_y})
    return f, tile


def notes(f: ln.Fusion) -> list[Note]:
    return [note for note in ln.lower(f).notes if "bank," in note.why]


def test_lanes_of_a_column_wait_for_each_other() -> None:
    f, tile = turned()
    (note,) = notes(f)
    assert note.origin is not None
    assert note.origin.file == __file__
    assert str(note).removesuffix(f" ({note.origin.file}:{note.origin.line})") == (
        "T2: T2.memory = ln.SHARED: a store to it takes a warp 32 turns instead of 1, because "
        "its lanes ask for different words of the same bank, one of 32, which serves them one "
        "after the other; T2.set_allocation(pad={3: 1}) makes its rows longer, or "
        "T2.allocation_domain.swizzle(ln.Swizzle.XOR, a, b) permutes its rows"
    )
    tile.set_allocation(pad={3: 1})
    assert notes(f) == []


def test_a_swizzle_parts_the_lanes() -> None:
    f, tile = turned()
    tile.swizzle(ln.Swizzle.XOR, 2, 3)
    assert notes(f) == []


@pytest.mark.parametrize("size", [4, 8, 16, 32])
@pytest.mark.parametrize("pad", [0, 1, 2, 4])
def test_notes_agree_with_a_count_over_the_whole_block(size: int, pad: int) -> None:
    f, tile = turned(size)
    if pad:
        tile.set_allocation(pad={3: pad})
    assert bool(notes(f)) == bool(list(conflicts(ln.lower(f).program, {})))
