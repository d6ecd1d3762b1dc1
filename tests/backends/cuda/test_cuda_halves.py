"""16-bit values that are only moved keep their type: text, machine code, and every bit of them."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from kernels.gemm import gemm

PT = ln.ParallelType
HALVES = [ln.float16, ln.bfloat16]


def moved(dtype) -> ln.Fusion:
    """Return x of 16 bits, moved to y by vectors of 16 bytes through two buffers."""
    with ln.Fusion("moved") as f:
        x = f.input("x", (8192,), dtype)
        y = f.output(ln.broadcast(x, (False,)), "y")
    outer, inner = x.cache_after(), y.cache_before()
    y.split(0, 8)
    y.split(0, 128)
    y.parallelize({0: PT.grid_x, 1: PT.block_x, 2: PT.vectorize})
    ln.propagate(y)
    for tensor in (inner, outer):
        tensor.compute_at(y, 1)
        tensor.parallelize({1: PT.block_x, 2: PT.vectorize})
    return f


def chosen(dtype) -> ln.Fusion:
    """Return y = x where a mask is set, else 0.5."""
    with ln.Fusion("chosen") as f:
        x = f.input("x", (8192,), dtype)
        mask = f.input("mask", (8192,), ln.bool)
        y = f.output(ln.where(mask, x, 0.5), "y")
    y.split(0, 128)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    return f


def product(dtype) -> ln.Fusion:
    """Return a product whose tiles in shared memory have 16 bits."""
    with ln.Fusion("product") as f:
        a, b = f.input("a", ("M", "K"), dtype), f.input("b", ("K", "N"), dtype)
        f.output(ln.matmul(a, b), "c")
        gemm.schedules["gpu"](f, whole=True)
    return f


def every_value(dtype) -> np.ndarray:
    """Return all numbers, zeros, infinities and NaNs of a 16-bit type."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)


def opcodes(kernel: ln.Kernel, arch: str) -> Counter[str]:
    return Counter(re.findall(r"\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", kernel.sass(arch)))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("make", [moved, chosen])
def test_what_is_moved_is_not_computed(make, dtype):
    text = ln.lower(make(dtype)).cuda()
    assert "2float" not in text
    assert [line for line in text.splitlines() if "float2" in line and "0.5f" not in line] == []


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_machine_code_of_moves_has_no_conversion(dtype, arch):
    pytest.importorskip("cuda.bindings")
    found = opcodes(ln.lower(moved(dtype)), arch)
    assert [name for name in found if name.startswith(("F2F", "HADD2", "HMUL2", "PRMT"))] == []
    assert [n for n in found if n.startswith(("LDG", "STG"))] == ["LDG.E.128.CONSTANT", "STG.E.128"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_shared_memory_takes_16_bytes_at_once(dtype, arch):
    """Also of what is loaded in one iteration and stored at the end of it; a is transposed."""
    pytest.importorskip("cuda.bindings")
    found = opcodes(ln.lower(product(dtype)), arch)
    assert {n: c for n, c in found.items() if n.startswith("STS")} == {"STS.128": 2, "STS.U16": 16}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_products_of_a_gemm_convert_nothing(arch):
    """A thread converts 16 elements where it stores them: of a first slice, and in the loop."""
    pytest.importorskip("cuda.bindings")
    found = opcodes(gemm.lower("gpu", dtype=ln.float16, whole=True), arch)
    assert {n: c for n, c in found.items() if n.startswith("STS")} == {"STS.128": 4, "STS": 16}
    assert {n: c for n, c in found.items() if n.startswith("LDS")} == {"LDS.128": 16}
    assert (found["FFMA"], found["HADD2.F32"]) == (256, 32)


@pytest.mark.parametrize("target", ["c", "interpret"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_bit_of_moved_values_stays(dtype, target):
    x = every_value(dtype).reshape(8, 8192)
    run = ln.compile(moved(dtype), target=target)
    for row in x:
        assert np.array_equal(run(row).view(np.uint16), row.view(np.uint16))


@pytest.mark.parametrize("target", ["c", "interpret"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_bit_of_chosen_values_stays(dtype, target):
    run = ln.compile(chosen(dtype), target=target)
    mask = np.arange(8192) % 3 > 0
    for row in every_value(dtype).reshape(8, 8192):
        wanted = np.where(mask, row, dtype.numpy.type(0.5)).view(np.uint16)
        assert np.array_equal(run(row, mask).view(np.uint16), wanted)


@pytest.mark.parametrize("make", [moved, chosen])
def test_every_bit_stays_in_cuda_text(make, monkeypatch, tmp_path):
    plug_in(monkeypatch, CpuGpu(tmp_path))
    run = ln.compile(make(ln.float16), target="cuda")
    mask = np.arange(8192) % 3 > 0
    for row in every_value(ln.float16).reshape(8, 8192):
        others, wanted = (
            ((), row) if make is moved else ((mask,), np.where(mask, row, row.dtype.type(0.5)))
        )
        assert np.array_equal(run(row, *others).view(np.uint16), wanted.view(np.uint16))
