"""Tiles in nests written by hand: text, meaning, and what is no tile."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from loopnest import kir
from loopnest.backends.interpret import Interpreter
from loopnest.kir.legal_program import program_faults
from loopnest.kir.nest_text import print_nest
from loopnest.kir.tiles import in_registers, without_tiles
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import integer

TEXT = """# loopnest nest 1
kernel g(a: float16[16, 16], b: float16[16, 8]) -> (c: float32[16, 8])
d: float32[4] local
A: float16[32, 8] warp
B: float16[32, 4] warp
for i0 in 32:  # block_x
  for i1 in 4:
    d[i1] = 0.0
for i2 in 32:  # block_x
  for i3 in 8:
    A[i2, i3] = a[i3 // 2 % 2 * 8 + i2 // 4, i3 // 4 * 8 + i2 % 4 * 2 + i3 % 2]
for i4 in 32:  # block_x
  for i5 in 4:
    B[i4, i5] = b[i5 // 2 * 8 + i4 % 4 * 2 + i5 % 2, i4 // 4]
tile mma.m16n8k16.f32.f16(d=d, a=A, b=B):
  for i6 in 32:  # block_x
    for i7 in 4:  # mma
      for i8 in 16:  # mma
        v: float32[1] local
        v[0] = float32(A[i6 // 4 * 4 + i8 // 2 % 4, i8 // 8 * 4 + i7 // 2 * 2 + i8 % 2])
        w: float32[1] local
        w[0] = float32(B[i6 % 4 * 8 + i7 % 2 * 4 + i8 // 2 % 4, i8 // 8 * 2 + i8 % 2])
        d[i7] = d[i7] + v[0] * w[0]
for i9 in 32:  # block_x
  for i10 in 4:
    c[i10 // 2 * 8 + i9 // 4, i9 % 4 * 2 + i10 % 2] = d[i10]"""

TILE = "the tile mma.m16n8k16.f32.f16: "

FAULTS = [
    (
        "i8 // 8 * 4 + i7 // 2 * 2 +",
        "i8 // 8 * 2 + i7 // 2 * 4 +",
        TILE + "A[i6 // 4 * 4 + i8 // 2 % 4, i8 // 8 * 2 + i7 // 2 * 4 + i8 % 2] is another m than "
        "its other operands have",
    ),
    ("in 16:  # mma", "in 8:  # mma", TILE + "its loops are not once over each of m, n, k"),
    (
        "f32.f16",
        "f32.bf16",
        "the tile mma.m16n8k16.f32.bf16: its operand a is of float16, not bfloat16",
    ),
    ("A[i2, i3]", "A[31 - i2, i3]",
     "A[31 - i2, i3] is an access to other lanes' elements outside of a tile"),
    ("v[0] * w", "w",
     TILE + "its body is not d[m, n] = d[m, n] + float32(a[m, k]) * float32(b[k, n])"),
    ("v[0] * w", "v[0] + w",
     TILE + "its body is not d[m, n] = d[m, n] + float32(a[m, k]) * float32(b[k, n])"),
    ("a=A, b=B", "a=A, b=A",
     TILE + "its body is not d[m, n] = d[m, n] + float32(a[m, k]) * float32(b[k, n])"),
    ("d=d, ", "", TILE + "its operands are a, b, not d, a, b"),
    ("        v[0] =", "        if i8 < 16:\n          v[0] =", TILE + "its body holds a If"),
]  # fmt: skip


def test_the_text_is_read_back() -> None:
    program = kir.parse(TEXT)
    assert print_nest(program) == TEXT
    assert program_faults(program) == []


@pytest.mark.parametrize(("old", "new", "fault"), FAULTS)
def test_no_tile(old: str, new: str, fault: str) -> None:
    assert old in TEXT
    assert fault in program_faults(kir.parse(TEXT.replace(old, new)))


@pytest.mark.parametrize(("old", "new", "fault"), FAULTS)
def test_no_tile_is_a_fault_when_it_runs(old: str, new: str, fault: str) -> None:
    with pytest.raises(ln.KernelFault) as caught:
        Interpreter(kir.parse(TEXT.replace(old, new))).run({}, {}, {})
    assert str(caught.value) == f"g: {fault}"


def test_no_such_instruction() -> None:
    (fault,) = program_faults(kir.parse(TEXT.replace("f32.f16", "f32.f12")))
    assert fault.startswith("the tile mma.m16n8k16.f32.f12: no such instruction; there are mma.m16")


def test_blocks_of_other_lanes() -> None:
    wanted = "tiles and WARP buffers in blocks of 64 threads along block_x, not 32"
    text = TEXT.replace(" in 32:", " in 64:")
    launch = {ParallelType.block_x: integer(64)}
    assert wanted in program_faults(kir.parse(text, launch=launch))


def test_its_meaning() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((16, 16)), rng.standard_normal((16, 8))
    given = {
        "a": a.astype(np.float16),
        "b": b.astype(np.float16),
        "c": np.zeros((16, 8), np.float32),
    }
    Interpreter(kir.parse(TEXT)).run(given, {}, {})
    wanted = given["a"].astype(np.float64) @ given["b"].astype(np.float64)
    assert np.allclose(given["c"], wanted, atol=1e-5)


def test_without_tiles() -> None:
    program = kir.parse(TEXT)
    plain = print_nest(without_tiles(program))
    assert "tile" not in plain.replace("a tile begins or ends", "")
    assert "A: float16[32, 8] shared" in plain
    assert plain.count("barrier warp") == 2
    assert without_tiles(without_tiles(program)) is not program
    other = without_tiles(program)
    assert without_tiles(other) is other


def test_in_registers() -> None:
    text = print_nest(in_registers(kir.parse(TEXT)))
    assert "A: float16[8] local" in text
    assert "A[i3] = a[" in text
    assert "tile mma.m16n8k16.f32.f16(d=d, a=A, b=B):" in text
