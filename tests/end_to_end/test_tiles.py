"""Products by instructions of the table: results, proofs, texts, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import loopnest as ln
from helpers.mma_gemm import mma_gemm
from loopnest import kir
from loopnest.backends.interpret import Interpreter
from loopnest.kir import instruction_table
from loopnest.kir.tiles import without_tiles
from mutation.mutants import mutants
from mutation.subjects import keys_in, load

ROOT = Path(__file__).parents[2]
ROWS = [name for name, row in ln.instructions.items() if row.ptx and not row.is_move]
F16 = "mma.m16n8k16.f32.f16"


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    """Give the rows back that a test adds."""
    kept = dict(instruction_table._table)
    yield
    instruction_table._table.clear()
    instruction_table._table.update(kept)


def arrays(name: str, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    kind = ln.instructions[name].operands["a"].dtype.numpy
    rng = np.random.default_rng(m + n + k)
    return tuple([(rng.standard_normal(s) * 3).astype(kind) for s in ((m, k), (k, n))])


def check(f: ln.Fusion, name: str, *sizes: int) -> None:
    given = arrays(name, *sizes)
    wanted = ln.evaluate(f, *given)
    for target in ("interpret", "c"):
        found = ln.compile(f, target=target)(*given)
        bound = ln.error_bound(f, *given, target=target)
        difference = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
        assert np.all(difference <= bound), target


@pytest.mark.parametrize("name", ROWS)
def test_every_row(name: str) -> None:
    f = mma_gemm(name)
    check(f, name, 64, 32, 64)
    assert str(ln.verify(ln.lower(f))) == "proved for all sizes"


@pytest.mark.parametrize("name", ["mma.m16n8k16.f32.f16", "mma.m16n8k16.f32.bf16"])
def test_a_result_of_16_bits_is_rounded_once(name: str) -> None:
    row = ln.instructions[name]
    f = mma_gemm(name, out=row.operands["a"].dtype)
    check(f, name, 64, 32, 64)
    assert str(ln.verify(ln.lower(f))) == "proved for all sizes"


def test_several_warps_and_stages() -> None:
    f = mma_gemm(F16, warps=(2, 2), stages=3)
    check(f, F16, 128, 64, 96)
    assert str(ln.verify(ln.lower(f))) == "proved for all sizes"


@pytest.mark.parametrize("warps", [(1, 1), (2, 2)])
def test_ragged_sizes_are_filled(warps: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")  # results alone
    f = mma_gemm(F16, warps=warps, whole=False)
    for sizes in ((33, 17, 45), (1, 1, 1), (40, 40, 40), (64, 32, 64)):
        check(f, F16, *sizes)


@pytest.mark.parametrize("divided", ["", "M", "MNK"])
@pytest.mark.parametrize("warps", [(2, 1), (2, 2)])
def test_warps_of_one_tile_each(
    warps: tuple[int, int], divided: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which warps have a tile at all is no test in front of each element."""
    f = mma_gemm(F16, warps=warps, tiles=(1, 1, 1), whole=False)
    extents = dict(zip("MNK", ln.instructions[F16].extents.values(), strict=True))
    for size in divided:
        f.assume(f"{size} % {extents[size]} == 0")
    assert str(ln.verify(ln.lower(f))) == "proved for all sizes"
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")
    for sizes in ((33, 17, 45), (1, 1, 1), (48, 24, 32)):
        whole = [
            -(-n // extents[s]) * extents[s] if s in divided else n
            for s, n in zip("MNK", sizes, strict=True)
        ]
        check(f, F16, *whole)


def test_threads_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")
    f = mma_gemm(F16, warps=(2, 1))
    given = arrays(F16, 64, 32, 64)
    wanted = ln.compile(f, target="interpret")(*given)
    for seed in range(3):
        run = ln.compile(f, target="interpret", thread_order=seed)
        assert np.array_equal(run(*given), wanted)


@pytest.mark.parametrize("name", ["product@tile", "product@flying"])
def test_a_tile_that_lanes_do_not_execute_together_shows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In some order of threads, which looks for no races."""
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")
    (key,) = [k for k in keys_in(ROOT / "tests/mutation/kernels/tiles.py") if k.name == name]
    subject = load(key)
    assert subject is not None
    (apart,) = [
        mutant.program
        for mutant in mutants(subject.program, frozenset({"tile"}))
        if mutant.text == "the body without a tile"
    ]
    given = arrays(F16, 32, 16, 64)
    wanted = ln.evaluate(subject.fusion, *given)

    def run(program: kir.Program, seed: int) -> np.ndarray:
        c = np.zeros((32, 16), np.float32)
        held = {**dict(zip("ab", given, strict=True)), "c": c}
        Interpreter(program).run(held, {"M": 32, "N": 16, "K": 64}, {}, thread_order=seed)
        return c

    for seed in range(4):
        assert np.allclose(run(subject.program, seed), wanted, atol=1e-3)
    wrong = 0
    for seed in range(4):
        try:
            # As SHARED memory: that lanes read each other's elements is a fault before it runs.
            wrong += not np.allclose(run(without_tiles(apart), seed), wanted, atol=1e-3)
        except ln.KernelFault:
            wrong += 1
    assert wrong


# CUDA


def test_the_text_calls_the_instruction() -> None:
    text = ln.lower(mma_gemm(F16)).cuda()
    assert text.count("ln_mma_m16n8k16_f32_f16(") == 2
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}" in text
    assert "T2[0]" not in text  # the body is for others
    assert "shared" in text
    assert "__half T9[16];" in text  # of a lane: two tiles of eight


@pytest.mark.parametrize("name", ROWS)
def test_machine_code(name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    sass = ln.lower(mma_gemm(name)).sass("sm_90")
    assert len(re.findall(r"\b[HI]MMA\.", sass)) >= 4
    assert "LDL" not in sass


def test_an_older_architecture() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    k = ln.lower(mma_gemm(F16))
    message = "the instruction mma.m16n8k16.f32.f16 needs sm_80; compile for sm_80 or a newer one"
    with pytest.raises(ln.CompileError, match=re.escape(message) + "$"):
        k.ptx("sm_75")


# Rows from outside


SHUFFLED = ln.Instruction(
    "toy.m4n8k8",
    {
        "d": ln.Operand(
            ln.float32, ("m", "n"), ln.Fragment("(x) (y z) -> (z x) (y)", x=4, y=1, z=8)
        ),
        "a": ln.Operand(
            ln.float16, ("m", "k"), ln.Fragment("(x) (y z) -> (z x) (y)", x=4, y=1, z=8)
        ),
        "b": ln.Operand(
            ln.float16, ("k", "n"), ln.Fragment("(u v) (w) -> (v w) (u)", u=2, v=4, w=8)
        ),
    },
    "d[m, n] = d[m, n] + float32(a[m, k]) * float32(b[k, n])",
)


def test_a_row_from_outside() -> None:
    ln.add_instruction(SHUFFLED)
    f = mma_gemm(SHUFFLED.name)
    check(f, SHUFFLED.name, 16, 16, 16)
    k = ln.lower(f)
    assert str(ln.verify(k)) == "proved for all sizes"
    message = (
        "mma_gemm: the instruction toy.m4n8k8 has no PTX, which target 'cuda' needs; give its row "
        "a ptx, or run the kernel on another target"
    )
    with pytest.raises(ln.LoweringError, match=f"^{re.escape(message)}$"):
        k.cuda()


def test_another_map_is_another_row() -> None:
    """A nest in which a fragment's digits are swapped is refuted."""
    row = ln.instructions[F16]
    a = replace(
        row.operands["a"],
        fragment=ln.Fragment("(mh g) (kh t p) -> (g t) (mh kh p)", mh=2, g=8, kh=2, t=4, p=2),
    )
    ln.add_instruction(replace(row, name="swapped", operands={**row.operands, "a": a}))
    k = ln.lower(mma_gemm("swapped"))
    assert ln.verify(k).status == "proved"
    instruction_table._table["swapped"] = row
    report = ln.verify(k)
    assert report.status == "refuted"
    assert "is another" in str(report.findings[0])
