"""Matrix products on tensor cores: results at ragged sizes, proofs, and machine code."""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import loopnest as ln
from kernels.gemm import gemm
from kernels.int8_gemm import int8_gemm

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import sass_text

KINDS = [(ln.float16, None), (ln.float16, ln.float32), (ln.bfloat16, None), (ln.float32, None)]
SIZES = sorted({*itertools.product((1, 40), repeat=3), (8, 16, 24), (33, 17, 9), (130, 136, 72)})


@pytest.mark.parametrize(("dtype", "result"), KINDS, ids=str)
def test_ragged_sizes(dtype, result, monkeypatch):
    """Both variants are right where tiles do not divide the sizes."""
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")  # proved below
    f = gemm.fusion("gpu_mma", dtype=dtype, result=result)
    runs = [ln.compile(f, target=target) for target in ("interpret", "c")]
    rng = np.random.default_rng(1)
    some = random.Random(1).sample(list(itertools.product(range(1, 41), repeat=3)), 4)
    for m, n, k in [*SIZES, *some]:
        a, b = [(rng.standard_normal(s) * 3).astype(dtype.numpy) for s in ((m, k), (k, n))]
        wanted = ln.evaluate(f, a, b).astype(np.float64)
        bound = ln.error_bound(f, a, b)
        for run in runs:
            difference = np.abs(run(a, b).astype(np.float64) - wanted)
            assert np.all(difference <= bound), (run.target, m, n, k)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("dtype", "result"), KINDS, ids=str)
def test_proofs_of_all_sizes(dtype, result, whole):
    kernel = gemm.lower("gpu_mma", dtype=dtype, result=result, whole=whole)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    assert kernel.has_scalar is not whole


@pytest.mark.parametrize(
    ("warps", "tiles", "stages"), [((2, 2), (4, 4, 2), 2), ((1, 4), (2, 2, 4), 4)]
)
def test_other_tiles(warps, tiles, stages):
    params = {"warps": warps, "tiles": tiles, "stages": stages, "dtype": ln.float16}
    kernel = gemm.lower("gpu_mma", **params)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    rng = np.random.default_rng(0)
    a, b = [rng.standard_normal(s).astype(np.float16) for s in ((70, 48), (48, 88))]
    found = ln.compile(kernel, target="interpret")(a, b).astype(np.float64)
    assert np.all(np.abs(found - ln.evaluate(kernel, a, b)) <= ln.error_bound(kernel, a, b))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("result", [None, ln.float32], ids=str)
def test_machine_code(result, whole):
    """The loop over slices has what is needed for a 128 x 128 x 32 tile, and little else."""
    pytest.importorskip("cuda.bindings.nvrtc")
    kernel = gemm.lower("gpu_mma", dtype=ln.float16, result=result, whole=whole)
    (function,) = sass_text.functions(kernel.sass("sm_90")).values()
    loop = max([function.code(places) for places in function.loops], key=_products)
    names = Counter([i.name for i in loop.instructions])
    # A load of shared memory that never runs (@!PT) keeps what is in flight in order.
    assert names["HMMA"] == 32
    assert names["LDSM"] == 12
    assert names["LDGSTS"] == 4
    assert names["BAR"] == 1
    assert names["LDG"] == 0
    assert len(loop) <= 170
    resources = kernel.resources("sm_90")
    assert resources.registers <= 156
    assert resources.spill_bytes == 0


FORMS = [
    {"turned": "a"},
    {"turned": "b"},
    {"turned": "ab"},
    {"batch": True},
    {"gelu": True},
    {"turned": "b", "batch": True, "gelu": True},
    {"turned": "ab", "dtype": ln.float32},
]


def formed(turned="", batch=False, gelu=False, dtype=ln.float16, **params):
    """Return a product of other math, scheduled as gemm is."""
    lead, order = (("B",), (0, 2, 1)) if batch else ((), (1, 0))
    with ln.Fusion("product") as f:
        a = f.input("a", (*lead, *("KM" if "a" in turned else "MK")), dtype)
        b = f.input("b", (*lead, *("NK" if "b" in turned else "KN")), dtype)
        left = ln.permute(a, order) if "a" in turned else a
        right = ln.permute(b, order) if "b" in turned else b
        c = ln.matmul(left, right, dtype=ln.float32)
        f.output(ln.gelu(c + f.input("bias", ("N",), ln.float32)) if gelu else c, "c")
    gemm.schedules["gpu_mma"](f, **params)
    return f


def assert_within_bounds(f, kernel, *sizes):
    """Hold what the kernel gives at these sizes, with batches of 2, against the math."""
    runs = [ln.compile(kernel, target=target) for target in ("interpret", "c")]
    rng = np.random.default_rng(2)
    for own in sizes:
        shapes = [[{"B": 2, **own}[str(s)] for s in x.shape] for x in f.inputs]
        arrays = [
            rng.standard_normal(s).astype(x.dtype.numpy)
            for s, x in zip(shapes, f.inputs, strict=True)
        ]
        wanted, bound = ln.evaluate(f, *arrays), ln.error_bound(f, *arrays)
        for run in runs:
            assert np.all(np.abs(run(*arrays).astype(np.float64) - wanted) <= bound), run.target


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_other_math(form, monkeypatch):
    """Operands transposed, batches, and what is computed of the sums where they lie."""
    f = formed(**form)
    kernel = ln.lower(f)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")
    sizes = [{"M": 33, "N": 17, "K": 24}, dict.fromkeys("MNK", 40), dict.fromkeys("MNK", 1)]
    assert_within_bounds(f, kernel, *sizes)


@pytest.mark.parametrize(
    "form",
    [
        {"slices": 4},
        {"slices": 3, "turned": "b", "batch": True, "gelu": True},
        {"slices": 2, "turned": "a", "dtype": ln.float32},
    ],
    ids=str,
)
def test_blocks_that_share_terms(form, monkeypatch):
    """They leave parts of the sums in workspace, which another launch adds in order."""
    f = formed(**form)
    kernel = ln.lower(f)
    assert str(ln.verify(kernel)) == "proved for all sizes"
    first, second = [dict(launch.launch) for launch in kernel.program.launches]
    assert str(form["slices"]) in str(first[ln.ParallelType.grid_z])
    assert second[ln.ParallelType.block_x] != first[ln.ParallelType.block_x]
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")
    sizes = [{"M": 33, "N": 17, "K": 70}, {"M": 130, "N": 136, "K": 300}]
    assert_within_bounds(f, kernel, *sizes)


@pytest.mark.parametrize("form", [{}, *FORMS], ids=str)
def test_loads_of_other_math(form):
    """LDSM loads what lies along k, and transposes elements of two bytes."""
    pytest.importorskip("cuda.bindings.nvrtc")
    sass = ln.lower(formed(**form)).sass("sm_90")
    straight, turned = sass.count("LDSM.16.M88.4"), sass.count("LDSM.16.MT88.4")
    if form.get("dtype") is ln.float32:
        assert (straight > 0, turned) == (True, 0)  # b lies along k; a is loaded one by one
    else:
        assert (turned > 0) == ("a" in form.get("turned", "") or "b" not in form.get("turned", ""))
        assert (straight > 0) == (
            "a" not in form.get("turned", "") or "b" in form.get("turned", "")
        )


def test_bytes():
    """The sums of int8_gemm are those of IMMA."""
    kernel = int8_gemm.lower("gpu_mma")
    assert str(ln.verify(kernel)) == "proved for all sizes"
    assert ln.profile(kernel, M=256, N=256, K=256).bank_conflicts == 0
    pytest.importorskip("cuda.bindings.nvrtc")
    (function,) = sass_text.functions(kernel.sass("sm_90")).values()
    loop = max([function.code(places) for places in function.loops], key=_products)
    counts = [loop.names[name] for name in ("IMMA", "LDSM", "LDGSTS", "BAR", "LDG")]
    assert counts == [32, 12, 4, 1, 0]
    assert len(loop) <= 170
    assert kernel.resources("sm_90").spill_bytes == 0


def _products(code):
    return code.names["HMMA"] + code.names["IMMA"]
