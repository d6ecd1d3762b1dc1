"""Moves of matrices to the lanes of a warp: results, proofs, texts, costs, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln
from helpers.mma_gemm import mma_gemm, moved

F16, S8 = "mma.m16n8k16.f32.f16", "mma.m16n8k32.s32.s8"


def check(f: ln.Fusion, name: str, *sizes: int) -> None:
    m, n, k = sizes
    kind = ln.instructions[name].operands["a"].dtype.numpy
    rng = np.random.default_rng(m + n + k)
    given = [(rng.standard_normal(s) * 3).astype(kind) for s in ((m, k), (k, n))]
    wanted, bound = ln.evaluate(f, *given), ln.error_bound(f, *given)
    for target in ("interpret", "c"):
        found = ln.compile(f, target=target)(*given)
        assert np.all(np.abs(found.astype(np.float64) - wanted) <= bound), target


@pytest.mark.parametrize("name", [row for row in ln.instructions if row.startswith("mma")])
def test_operands_of_every_row(name: str) -> None:
    f = moved(name)
    check(f, name, 64, 32, 64)
    assert str(ln.verify(ln.lower(f))) == "proved for all sizes"


def test_several_warps_and_ragged_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")  # results alone
    f = moved(F16, warps=(2, 2), stages=3, whole=False)
    for sizes in ((33, 17, 45), (1, 1, 1), (40, 40, 40)):
        check(f, F16, *sizes)


def test_a_tile_is_the_copy_that_its_instruction_makes() -> None:
    text = str(ln.lower(moved(F16)))
    assert "tile ldmatrix.x4(d=T9, s=T7):" in text
    assert "tile ldmatrix.x2(d=T10, s=T8):" in text
    assert ln.Kernel.parse(ln.lower(moved(F16)).text(full=True)).notes == ()


def test_two_tiles_of_b_are_one_move() -> None:
    f = mma_gemm(F16)
    a, b = [t for t in f.tensors if t.memory is ln.WARP]
    a.move_by("ldmatrix.x4")
    b.split(-3, 2)
    b.reorder({-3: -1})  # [..., lane, registers, two tiles]
    b.move_by("ldmatrix.x4")
    check(f, F16, 64, 32, 64)
    k = ln.lower(f)
    assert str(ln.verify(k)) == "proved for all sizes"
    assert k.cuda().count("ln_ldmatrix_x4(") == 3


def test_each_lane_names_a_row() -> None:
    text = ln.lower(moved(F16)).cuda()
    (call,) = re.findall(r"ln_ldmatrix_x2\(&T10.*;", text)
    assert "block_x % 16 / 8 * 8" in call  # the second matrix lies eight elements further
    assert "d=T10, s=T8" in text
    pytest.importorskip("cuda.bindings.nvrtc")
    sass = ln.lower(moved(F16)).sass("sm_90")
    assert "LDSM.16.M88.4" in sass
    assert "LDSM.16.M88.2" in sass


def test_profiles_count_the_rows_that_lanes_name() -> None:
    profile = ln.profile(ln.lower(moved(F16)), M=64, N=32, K=64)
    loads = {a.buffer: a for a in profile.accesses if a.memory is ln.SHARED and not a.writes}
    # Of 8 rows of 32 bytes two are in each bank; ldmatrix.x2 takes those of 16 lanes.
    found = {name: (a.width, a.requests, a.least, a.wavefronts) for name, a in loads.items()}
    assert found == {"T7": (16, 32, 128, 256), "T8": (16, 32, 64, 128)}
    notes = {n.subject: n.became for n in ln.lower(moved(F16)).notes}
    assert notes["T7"] == "a load of it by T9 takes a warp 8 turns instead of 4"
    assert notes["T8"] == "a load of it by T10 takes a warp 4 turns instead of 2"


# Refused


def local(f: ln.Fusion) -> ln.TensorView:
    (tensor,) = [t for t in f.tensors if t.name == "T9"]
    tensor.memory = ln.LOCAL
    return tensor


MOVES = "the moves are cp.async, ldmatrix.x2, ldmatrix.x2.trans, ldmatrix.x4, ldmatrix.x4.trans"


@pytest.mark.parametrize(
    ("row", "tensor", "name", "message"),
    [
        (F16, local, "ldmatrix.x4",
         "T9.move_by('ldmatrix.x4'): T9 is in local memory, and ldmatrix.x4 copies from shared to "
         "warp memory; set T9.memory = ln.WARP first"),
        (F16, lambda f: f["T7"], "ldmatrix.x4",
         "T7.move_by('ldmatrix.x4'): T7 is in shared memory, and ldmatrix.x4 copies from shared to "
         "warp memory; set T7.memory = ln.WARP first"),
        (F16, lambda f: f["T6"], "ldmatrix.x4",
         "T6.move_by('ldmatrix.x4'): T6 is a reduction, and ldmatrix.x4 copies; move a copy "
         "(cache_after)"),
        (F16, lambda f: f["T4"], "ldmatrix.x4",
         "T4.move_by('ldmatrix.x4'): T4 is mul of what it reads, and ldmatrix.x4 copies; move a "
         "copy (cache_after), and compute from it"),
        (S8, lambda f: f["T9"], "ldmatrix.x4.trans",
         "T9.move_by('ldmatrix.x4.trans'): T9 is of int8, of 1 byte; ldmatrix.x4.trans moves "
         "elements of 2 bytes"),
        ("mma.m16n8k8.f32.tf32", lambda f: f["T9"], "ldmatrix.x4.trans",
         "T9.move_by('ldmatrix.x4.trans'): T9 is of float32, of 4 bytes; ldmatrix.x4.trans "
         "moves elements of 2 bytes"),
        (F16, lambda f: f["T9"], "cp.async",
         "T9.move_by('cp.async'): T9 is in warp memory, and cp.async copies from global to shared "
         "memory; set T9.memory = ln.SHARED first"),
        (F16, lambda f: f["T9"], "ldmatrix.x8",
         f"T9.move_by('ldmatrix.x8'): there is no instruction 'ldmatrix.x8'; {MOVES}"),
    ],
)  # fmt: skip
def test_a_refused_move_changes_nothing(
    row: str, tensor: Callable[[ln.Fusion], ln.TensorView], name: str, message: str
) -> None:
    f = mma_gemm(row)
    chosen = tensor(f)
    before = [str(t) for t in f.tensors], len(f.trace)
    with pytest.raises(ln.ScheduleError) as caught:
        chosen.move_by(name)
    assert str(caught.value) == message
    assert ([str(t) for t in f.tensors], len(f.trace)) == before


def test_the_memory_is_chosen_before() -> None:
    f = moved(F16)
    with pytest.raises(ln.ScheduleError) as caught:
        f["T9"].memory = ln.SHARED
    assert str(caught.value) == (
        "T9.set_memory(shared): T9 is moved by ldmatrix.x4, to WARP memory; choose the memory "
        "before move_by"
    )


def from_registers(f: ln.Fusion) -> None:
    f["T7"].memory = ln.GLOBAL


def narrow_rows(f: ln.Fusion) -> None:
    f["T7"].allocation_domain.split(-1, 4).pad(-1, 4)


def odd_rows(f: ln.Fusion) -> None:
    f["T7"].allocation_domain.pad(-1, 4)


REMEDY = (
    "store rows of 16 bytes together in SHARED memory (allocation_domain), and let the axes inside "
    "of the tile be those of as many matrices as the instruction moves"
)
APART = (
    "T9: ldmatrix.x4 cannot copy it: the 16 bytes of a row do not follow each other in T7, at a "
    "multiple of 16: "
)


@pytest.mark.parametrize(
    ("moves", "change", "message"),
    [
        (("x2", "x2"), None,
         "T9: ldmatrix.x2 cannot copy it: ldmatrix.x2 gives a lane 8 bytes, and the loops of a "
         f"tile inside of that over lanes store 16; {REMEDY}"),
        (("x4", "x2"), from_registers,
         f"T9: ldmatrix.x4 cannot copy it: T7 is in global memory; {REMEDY}"),
        (("x4", "x2"), narrow_rows, APART),
        (("x4", "x2"), odd_rows, APART),
        (("x4.trans", "x2"), None, APART.replace("x4", "x4.trans")),
    ],
)  # fmt: skip
def test_rows_that_lanes_cannot_name(
    moves: tuple[str, str], change: Callable[[ln.Fusion], None] | None, message: str
) -> None:
    f = moved(F16, moves)
    if change is not None:
        change(f)
    with pytest.raises(ln.LoweringError) as caught:
        ln.lower(f)
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(REMEDY)
