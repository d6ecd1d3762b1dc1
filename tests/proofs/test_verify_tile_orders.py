"""Tiles of symbolic number in one merged loop, whose index is taken apart by digits.

That no mutant of these kernels is proved is looked at by `tools/mutate.py`.
"""

from __future__ import annotations

import dataclasses

import pytest

import loopnest as ln
from loopnest import kir
from loopnest.proofs.verifier import verify_program
from loopnest.scalar import dtypes
from loopnest.scalar.expr import Op, integer, substitute
from mutation.kernels.tile_orders import tiled_gemm
from mutation.rewriting import replaced

ORDERS: list[tuple[str, dict[str, object]]] = [
    ("grouped", {}),
    ("grouped", {"group": 8}),
    ("persistent", {}),
    ("persistent", {"inner": False}),
    ("persistent", {"group": 8, "blocks": 132}),
    ("serial", {"group": 8}),
    ("diagonal", {}),
]


@pytest.mark.parametrize(("schedule", "parameters"), ORDERS, ids=str)
def test_it_is_proved_for_all_sizes(schedule: str, parameters: dict[str, object]) -> None:
    assert str(ln.verify(tiled_gemm.lower(schedule, **parameters))) == "proved for all sizes"


@pytest.mark.parametrize("schedule", ["grouped", "persistent"])
def test_each_barrier_is_needed(schedule: str) -> None:
    """Of a persistent kernel the last one parts a tile from the next tile of the block."""
    k = tiled_gemm.lower(schedule)
    math = k._lowered.math
    assert math is not None
    barriers = [node for node, _ in k.walk() if isinstance(node, kir.Barrier)]
    assert len(barriers) == 2
    for barrier in barriers:
        report = verify_program(replaced(k.program, barrier, None), math())
        assert report.status == "refuted"
        assert report.findings[0].kind == "race"


def test_a_barrier_in_other_rounds_does_not_part_two() -> None:
    """A barrier at every other tile parts no two tiles of the block that has none of these."""
    k = tiled_gemm.lower("persistent", blocks=4)
    math = k._lowered.math
    assert math is not None
    last = [node for node, _ in k.walk() if isinstance(node, kir.Barrier)][-1]
    tests = [node.condition for node, _ in k.walk() if isinstance(node, kir.If)]
    number = next(test.args[0] for test in tests if "ceildiv" in str(test.args[1]))
    assert str(number) == "i0 * 4 + i1"
    remainder = Op("mod", (number, integer(2)), dtypes.index)
    even = Op("eq", (remainder, integer(0)), dtypes.bool_)
    program = replaced(k.program, last, kir.If(even, (last,)))
    report = verify_program(program, math())
    assert report.status == "refuted"
    assert report.findings[0].kind == "race"


def test_a_tile_of_another_group_is_refuted() -> None:
    """Groups of 4 rows of tiles are not those of 2, though as many tiles are computed."""
    math = tiled_gemm.lower("grouped")._lowered.math
    assert math is not None
    program = tiled_gemm.lower("grouped", group=4).program
    number = next(node.var for node, _ in kir.walk(program.body) if isinstance(node, kir.Loop))
    assert str(ln.verify(tiled_gemm.lower("grouped", group=4))) == "proved for all sizes"
    stores = [node for node, _ in kir.walk(program.body) if isinstance(node, kir.Store)]
    last = stores[-1]
    of_four, of_two = [Op("mod", (number, integer(n)), dtypes.index) for n in (4, 2)]
    row, column = [substitute(index, {of_four: of_two}) for index in last.index]
    assert row is not last.index[0]
    wrong = dataclasses.replace(last, index=(row, column))
    assert verify_program(replaced(program, last, wrong), math()).status == "refuted"
