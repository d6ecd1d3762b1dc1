"""Attention on tensor cores: results at ragged sizes, proofs, wrong nests, and machine code."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from kernels.attention import attention, attention_causal
from loopnest.kir.legal_program import program_faults
from loopnest.lowering import watchers
from loopnest.proofs.verifier import verify_program
from mutation.mutants import mutants

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import sass_text

KERNELS = [attention, attention_causal]
TYPES = [ln.float16, ln.bfloat16, ln.float32]
SIZES = [(2, 37, 70), (1, 1, 1), (1, 65, 64)]


def is_right(f, kernel, sizes, targets=("interpret", "c")):
    """Run it with standard normal numbers, three of which are large, and ask for the bound."""
    rng = np.random.default_rng(1)
    width = int(f.inputs[0].shape[2])
    runs = [ln.compile(kernel, target=target) for target in targets]
    for heads, rows, keys in sizes:
        arrays = [rng.standard_normal((heads, n, width)) for n in (rows, keys, keys)]
        arrays = [a.astype(x.dtype.numpy) for a, x in zip(arrays, f.inputs, strict=True)]
        arrays[0].flat[:: rows * 7] *= 8
        wanted = ln.evaluate(f, *arrays, exact=True)
        for run in runs:
            bound = ln.error_bound(f, *arrays, target=run.target)
            assert np.isfinite(bound).all()
            found = run(*arrays).astype(np.float64)
            assert (abs(found - wanted) <= bound).all(), (run.target, heads, rows, keys)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_ragged_sizes(kernel, dtype, monkeypatch):
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")  # proved here
    f = kernel.fusion("gpu_mma", dtype=dtype)
    lowered = ln.lower(f)
    assert str(ln.verify(lowered)) == "proved for all sizes"
    is_right(f, lowered, SIZES)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_printed_text(kernel, dtype, monkeypatch, tmp_path):
    """The CUDA text, by what PTX says of its instructions, in random orders of threads."""
    plug_in(monkeypatch, CpuGpu(tmp_path))
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")
    f = kernel.fusion("gpu_mma", dtype=dtype, warps=2)
    is_right(f, ln.lower(f), [(1, 35, 70), (2, 64, 129)], targets=("cuda",))


@pytest.mark.parametrize(
    "params",
    [
        {"warps": 1, "tile": 16, "stages": 4},
        {"warps": 8, "stages": 3, "width": 128},
        {"warps": 2, "stages": 1, "width": 16, "tile": 32},
        {"width": 32, "tile": 128, "dtype": ln.float32},
    ],
    ids=str,
)
def test_other_tiles(params, monkeypatch):
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")
    params = {"dtype": ln.float16, **params}
    f = attention.fusion("gpu_mma", **params)
    lowered = ln.lower(f)
    assert str(ln.verify(lowered)) == "proved for all sizes"
    assert ln.profile(lowered, H=1, M=128, S=256).bank_conflicts == 0
    is_right(f, lowered, [(2, 35, 150)], targets=("interpret",))


def test_weights_stay_in_their_lanes():
    """They lie in no memory but registers: shared are inputs, and numbers of rows."""
    kernel = attention.lower("gpu_mma", dtype=ln.float16)
    shared = [b for b in kernel.buffers if b.memory is ln.SHARED]
    rows = [b for b in shared if b.dtype is ln.float32]
    assert len(shared) - len(rows) == 3
    assert all(int(str(b.size)) <= 4 * 64 for b in rows)
    product = [n for n, _ in kernel.walk() if isinstance(n, ln.kir.Tile)][-1]
    left = dict(product.operands)["a"]
    (store,) = [n for n, _ in kernel.walk() if isinstance(n, ln.kir.Store) and n.storage is left]
    assert left.memory is ln.WARP
    assert store.storage.dtype is ln.float16


def test_tiles_that_no_row_sees_are_skipped():
    """The loop over tiles ends with the last one that a row of the block sees."""
    text = str(attention_causal.lower("gpu_mma", dtype=ln.float16))
    assert text.count(" in 0..min(i0 + 1, ceildiv(S, 64)) of ceildiv(S, 64):") == 1


WRONG = [
    "drop issue", "drop commit", "drop wait", "wait 1 instead of 0", "T3 a stage less",
    "T4 a stage less", "drop tile", "the body without a tile", "tile only where block_x is 0",
    "remove barrier block", "remove barrier warp",
]  # fmt: skip


@pytest.fixture(scope="module")
def small():
    return attention.lower("gpu_mma", dtype=ln.float16, warps=2, tile=16, width=16)._lowered


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_each_pass_keeps_the_nest_legal(kernel, dtype, monkeypatch):
    """Stages before tests are gone from tiles can be shown, and kernels travel with them."""
    monkeypatch.setenv("LOOPNEST_PASSES", "verify")
    monkeypatch.setattr(watchers, "ORDERED", ())  # what is proved, is proved above
    lowered = kernel.lower("gpu_mma", dtype=dtype)
    assert program_faults(lowered.program) == []
    again = pickle.loads(pickle.dumps(lowered))
    assert str(again) == str(lowered)
    assert list(again.stages) == list(lowered.stages)
    assert again.stages["indexing"] == lowered.stages["indexing"]


@pytest.fixture(scope="module")
def broken(small):
    return list(mutants(small.program, frozenset({"flight", "tile", "barrier"})))


@pytest.mark.parametrize("text", WRONG)
def test_what_is_left_out_is_refuted(text, small, broken):
    found = [mutant.program for mutant in broken if mutant.text == text]
    assert found
    for program in (found[0], found[-1]):
        assert verify_program(program, small.math()).status == "refuted"


def test_swapped_digits_are_refuted(small, broken):
    """In what a lane loads for the second product, or stores for it, and in what it multiplies."""
    found = [mutant for mutant in broken if "digits" in mutant.text]
    assert len(found) >= 20
    for mutant in found[::6]:
        assert verify_program(mutant.program, small.math()).status == "refuted", mutant.text


@pytest.mark.parametrize(
    ("dtype", "products", "registers"), [(ln.float16, 64, 200), (ln.float32, 128, 240)], ids=str
)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_machine_code(kernel, dtype, products, registers):
    """The loop over tiles: both products, copies in flight, and no load from global memory."""
    pytest.importorskip("cuda.bindings.nvrtc")
    lowered = kernel.lower("gpu_mma", dtype=dtype)
    (function,) = sass_text.functions(lowered.sass("sm_90")).values()
    loop = max([function.code(places) for places in function.loops], key=lambda c: c.names["HMMA"])
    names = loop.names
    assert names["HMMA"] == products
    # Values of four bytes are not transposed on their way.
    assert names["LDSM"] == 32
    assert names["LDGSTS"] == 4 * dtype.size
    assert names["LDG"] == 0
    assert names["BAR"] <= 2
    resources = lowered.resources("sm_90")
    assert resources.registers <= registers
    assert resources.spill_bytes == 0
