"""`tools/instruction_probe.py`, with a warp that is NumPy's in place of a GPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner

import loopnest as ln

TOOLS = Path(__file__).parents[2] / "tools"
spec = importlib.util.spec_from_file_location("instruction_probe", TOOLS / "instruction_probe.py")
assert spec is not None
assert spec.loader is not None
probe = importlib.util.module_from_spec(spec)
sys.modules["instruction_probe"] = probe
spec.loader.exec_module(probe)

Array = npt.NDArray[Any]
PRODUCTS = [name for name, row in ln.instructions.items() if row.ptx and not row.is_move]
LOADS = [n for n, row in ln.instructions.items() if row.is_move and row.scope == "warp"]


def warp(hardware: ln.Instruction):
    """Return what executes any row as a machine whose fragments are those of `hardware`."""

    def run(row: ln.Instruction, given: Mapping[str, Array]) -> Array:
        matrices = {}
        for role, matrix in given.items():
            ours, theirs = row.operands[role], hardware.operands[role]
            moved = ours.fragment is not None
            matrices[role] = probe.gathered(theirs, probe.spread(ours, matrix)) if moved else matrix
        if row.is_move:
            (result,) = matrices.values()
        else:
            wide = [matrices[role].astype(np.float64) for role in "abd" if role in matrices]
            with np.errstate(invalid="ignore", over="ignore"):
                result = wide[0] @ wide[1] + (wide[2] if len(wide) > 2 else 0)
            if row.operands["d"].dtype is ln.int32:
                result = (result + 2**31) % 2**32 - 2**31
        with np.errstate(invalid="ignore", over="ignore"):
            return probe.spread(hardware.operands[row.result], result)

    return run


@pytest.mark.parametrize("name", [*PRODUCTS, *LOADS])
def test_a_machine_as_the_row_says_is_found_right(name: str) -> None:
    row = ln.instructions[name]
    found = probe.lane_findings(row, warp(row))
    assert found
    assert not any(found.values())


@pytest.mark.parametrize("name", [*PRODUCTS, *LOADS])
def test_another_fragment_is_found(name: str) -> None:
    row = ln.instructions[name]
    for role, operand in row.operands.items():
        if operand.fragment is None:
            continue
        lanes, registers = operand.fragment.places
        pattern = operand.fragment.pattern.partition("->")[0]
        other = f"{pattern} -> ({' '.join(lanes)}) ({' '.join(reversed(registers))})"
        if len(registers) < 2:
            other = f"{pattern} -> ({' '.join(reversed(lanes))}) ({' '.join(registers)})"
        fragment = ln.Fragment(other, **operand.fragment.sizes)
        first = [f.place(*e) for f in (fragment, operand.fragment) for e in np.ndindex(*f.shape)]
        if first[: len(first) // 2] == first[len(first) // 2 :]:
            continue  # digits of one value may stand anywhere
        wrong = replace(operand, fragment=fragment)
        hardware = replace(row, operands={**row.operands, role: wrong})
        assert probe.lane_findings(row, warp(hardware)) != probe.lane_findings(row, warp(row))


@pytest.mark.parametrize("name", PRODUCTS)
def test_exact_sums_are_reported_so(name: str) -> None:
    row = ln.instructions[name]
    found = dict(probe.sum_findings(row, warp(row)))
    if row.operands["d"].dtype is ln.int32:
        assert found == {"2^31 - 1 plus 1": "wraps"}
        return
    assert found["a product of two factors of 8 bits"] == "exact"
    assert found["1 + 0.75 units in the last place"] == "to nearest"
    assert all(lost == "none" for asked, lost in found.items() if "is lost at" in asked)


def test_all_kernels_compile() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    result = CliRunner().invoke(probe.main, ["--compile"])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) == 2 * len(probe.ROWS)


def test_the_page_names_what_is_wrong() -> None:
    name = PRODUCTS[0]
    text = probe.markdown("a GPU", {name: {"d": [], "a": ["x is found"]}}, {name: [("1 + 1", "2")]})
    assert f"| {name} | d | `(mh g) (t p) -> (g t) (mh p)` | as written |" in text
    assert "1 wrong: x is found" in text
    assert "| 1 + 1 | 2 |" in text
