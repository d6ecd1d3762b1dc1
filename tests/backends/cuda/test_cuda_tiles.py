"""Printed text of tiles and of copies in flight, executed on the CPU by the PTX ISA's tables."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from helpers.mma_gemm import mma_gemm, moved
from kernels.gemm import gemm
from kernels.layernorm import layernorm
from kernels.softmax import softmax
from loopnest.backends.cuda.printing import cuda_printer
from mutation.subjects import keys_in, load

ROOT = Path(__file__).parents[3]
spec = importlib.util.spec_from_file_location("probe", ROOT / "tools" / "instruction_probe.py")
assert spec is not None
assert spec.loader is not None
probe = importlib.util.module_from_spec(spec)
sys.modules["probe"] = probe
spec.loader.exec_module(probe)

PRODUCTS = [name for name, row in ln.instructions.items() if row.ptx and not row.is_move]
F16, TF32 = "mma.m16n8k16.f32.f16", "mma.m16n8k8.f32.tf32"


class Prober(CpuGpu):
    """One that knows nothing of the kernels that it runs."""

    def _launched(self, code: bytes, name: str) -> dict[str, object]:
        return {}


@pytest.fixture(autouse=True)
def unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")


# The tables of the PTX ISA, and the fragments of the rows


@pytest.mark.parametrize("name", probe.ROWS)
def test_rows_are_as_the_tables(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probe, "compile_cuda", lambda text, _: SimpleNamespace(cubin=text.encode()))
    row, run = ln.instructions[name], probe.Gpu(Prober(tmp_path))
    find = probe.copy_findings if row.scope == "thread" else probe.lane_findings
    found = find(row, run)
    assert found
    assert not any(found.values())


def test_sums_are_as_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probe, "compile_cuda", lambda text, _: SimpleNamespace(cubin=text.encode()))
    monkeypatch.setattr(probe, "_errors", lambda sums: iter(()))
    found = dict(probe.sum_findings(ln.instructions[TF32], probe.Gpu(Prober(tmp_path))))
    told = (ROOT / "tools/results/instructions_NVIDIA_H200_2026-11-27.md").read_text()
    section = told.partition(f"## Sums of {TF32}\n")[2].partition("##")[0]
    measured = dict(re.findall(r"^\| (.*?) \| (.*?) \|$", section, re.MULTILINE))
    assert found.items() <= measured.items()


# Kernels


def data(f: ln.Fusion, **sizes: int) -> list[np.ndarray]:
    rng = np.random.default_rng(sum(sizes.values()))
    return [
        (rng.standard_normal([sizes[str(n)] for n in t.sizes]) * 3).astype(t.dtype.numpy)
        for t in f.inputs
    ]


def right(f: ln.Fusion, run: Callable[..., object], **sizes: int) -> bool:
    given = data(f, **sizes)
    wanted, bound = ln.evaluate(f, *given, exact=True), ln.error_bound(f, *given, target="cuda")
    return bool(np.all(abs(np.asarray(run(*given), np.float64) - wanted) <= bound))


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plug_in(monkeypatch, CpuGpu(tmp_path))
    f = mma_gemm(name)
    assert right(f, ln.compile(f, target="cuda"), M=64, K=64, N=32)


@pytest.mark.parametrize("name", [F16, TF32])
def test_several_warps_at_ragged_sizes(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of each size one of both variants runs."""
    plug_in(monkeypatch, CpuGpu(tmp_path))
    f = mma_gemm(name, warps=(2, 2), whole=False)
    run = ln.compile(f, target="cuda")
    for m, k, n in ((33, 45, 17), (64, 64, 32), (1, 1, 1), (40, 72, 24)):
        assert right(f, run, M=m, K=k, N=n)


@pytest.mark.parametrize("name", PRODUCTS)
def test_operands_that_are_moved_by_matrices(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plug_in(monkeypatch, CpuGpu(tmp_path))
    f = moved(name)
    assert right(f, ln.compile(f, target="cuda"), M=64, K=64, N=32)


def test_moves_of_several_warps_at_ragged_sizes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plug_in(monkeypatch, CpuGpu(tmp_path))
    f = moved(F16, warps=(2, 2), stages=3, whole=False)
    run = ln.compile(f, target="cuda")
    for m, k, n in ((33, 45, 17), (64, 96, 32), (1, 1, 1)):
        assert right(f, run, M=m, K=k, N=n)


def test_tiles_of_slices_in_flight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plug_in(monkeypatch, CpuGpu(tmp_path))
    keys = {key.name: key for key in keys_in(ROOT / "tests/mutation/kernels/tiles.py")}
    for name in ("product@tile", "product@flying", "product@moved"):
        subject = load(keys[name])
        assert subject is not None
        run = ln.compile(subject.fusion, target="cuda")
        for k in (64, 320):
            assert right(subject.fusion, run, M=64, K=k, N=16)


@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        (gemm, ({"M": 64, "N": 64, "K": 64}, {"M": 65, "N": 33, "K": 47})),
        (softmax, ({"N": 9, "D": 1024}, {"N": 5, "D": 333})),
        (layernorm, ({"N": 9, "D": 1024}, {"N": 5, "D": 333})),
    ],
    ids=lambda value: str(getattr(value, "name", "")),
)
def test_kernels_with_copies_in_flight(
    kernel: ln.KernelDef,
    sizes: tuple[dict[str, int], ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    plug_in(monkeypatch, CpuGpu(tmp_path))
    f = kernel.fusion("gpu_async")
    run = ln.compile(f, target="cuda")
    variants = set()
    for given in sizes:
        variants.add(kernel.lower("gpu_async").launch(**given).variant)
        scalars = {s.name: 1e-5 for s in f.scalars}
        arrays = data(f, **given)
        wanted = ln.evaluate(f, *arrays, exact=True, **scalars)
        bound = ln.error_bound(f, *arrays, target="cuda", **scalars)
        found = run(*arrays, **scalars)
        assert np.all(abs(np.asarray(found, np.float64) - wanted) <= bound)
    assert variants == {"vector", "scalar"}


# Texts that are wrong


WRONG = [
    ("ln_wait<1>();", "ln_wait<2>();"),
    ("    ln_wait<1>();\n", ""),
    ("    ln_commit();\n", ""),
    ("    ln_wait<1>();\n    __syncthreads();\n", "    __syncthreads();\n    ln_wait<1>();\n"),
    ("    ln_wait<1>();\n    __syncthreads();\n", "    ln_wait<1>();\n"),
    ("{%4, %5, %6, %7}", "{%4, %6, %5, %7}"),
    ("{%8, %9}", "{%9, %8}"),
    ("{%0, %1, %2, %3};", "{%1, %0, %2, %3};"),
    ("m16n8k16.row.col.f32.f16.f16.f32", "m16n8k16.row.col.f32.bf16.bf16.f32"),
]


@pytest.mark.parametrize(("old", "new"), WRONG)
def test_a_wrong_text_is_seen(
    old: str, new: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (key,) = [
        key
        for key in keys_in(ROOT / "tests/mutation/kernels/tiles.py")
        if key.name == "product@flying"
    ]
    subject = load(key)
    assert subject is not None
    real = cuda_printer.print_cuda

    def changed(*given: object) -> str:
        text = real(*given)  # type: ignore[arg-type]
        assert old in text
        return text.replace(old, new)

    monkeypatch.setattr("helpers.fake_gpu.print_cuda", changed)
    plug_in(monkeypatch, CpuGpu(tmp_path))
    run = ln.compile(subject.fusion, target="cuda")
    assert {outcome(subject.fusion, run) for _ in range(3)} != {"right"}


def outcome(f: ln.Fusion, run: Callable[..., object]) -> str:
    """Return "right" or "wrong", or what ends the launch."""
    try:
        return "right" if right(f, run, M=64, K=320, N=16) else "wrong"
    except AssertionError as failed:
        return str(failed)
