"""Printed CUDA text run on the CPU, in random orders of threads and blocks."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from helpers.launch_cases import CASES

PT = ln.ParallelType
LAUNCHES = 5
"""Each is another order of threads and blocks."""


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    return plug_in(monkeypatch, CpuGpu(tmp_path))


def check(fusion, *arrays, **options):
    """Launch again and again, and compare with the math."""
    fn = ln.compile(fusion, target="cuda", **options)
    expected, bounds = ln.evaluate(fusion, *arrays), ln.error_bound(fusion, *arrays)
    if not isinstance(expected, tuple):
        expected, bounds = (expected,), (bounds,)
    for _ in range(LAUNCHES):
        found = fn(*arrays)
        found = found if isinstance(found, tuple) else (found,)
        for a, b, most in zip(found, expected, bounds, strict=True):
            error = np.abs(a.astype(np.float64) - b.astype(np.float64))
            assert (error <= most).all(), fn.kernel.cuda()
    return fn.kernel.cuda()


def numbers(*shape):
    return np.random.default_rng(0).random(shape, np.float32)


def reduced(x, axis):
    """Return a reduction of each kind: of one value, of another one, of several together."""
    return ln.sum(x, axis=axis), ln.max(x, axis=axis), ln.welford(x, axis)[1]


@pytest.mark.parametrize("threads", [16, 33, "D"])
@pytest.mark.parametrize("dim", [PT.block_x, PT.block_y, PT.block_z], ids=str)
def test_reductions_over_threads(gpu, dim, threads, monkeypatch):
    if dim is not PT.block_x:  # nests that differ in the name of a dimension are proved once
        monkeypatch.setenv("LOOPNEST_VERIFY", "0")
    with ln.Fusion("k") as f:
        found = reduced(f.input("x", ("N", threads), ln.float32), 1)
        outputs = [f.output(y, f"y{n}") for n, y in enumerate(found)]
    beside = PT.block_y if dim is PT.block_x else PT.block_x
    for y in outputs:
        y.split(0, 3)
        y.parallelize({0: PT.grid_x, 1: beside, 2: dim})
    check(f, numbers(5, 37 if threads == "D" else threads))


@pytest.mark.parametrize("threads", [7, 32, 33])
def test_reductions_over_blocks(gpu, threads, monkeypatch):
    if threads == 32:  # warps that are whole; the others are proved
        monkeypatch.setenv("LOOPNEST_VERIFY", "0")
    with ln.Fusion("k") as f:
        found = reduced(f.input("x", ("N", "D"), ln.float32), 1)
        outputs = [f.output(y, f"y{n}") for n, y in enumerate(found)]
    for y in outputs:
        y.split(1, threads)
        y.parallelize({0: PT.grid_y, 1: PT.grid_x, 2: PT.block_x})
    assert check(f, numbers(5, 100)).count("= ln_arrive(") == 3


def test_what_depends_on_two_reductions_over_blocks(gpu):
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        total, largest = ln.sum(x, axis=0), ln.max(x, axis=0)
        f.output(total / largest, "y")
    for tensor in (total, largest):
        tensor.split(0, 8)
        tensor.parallelize({0: PT.grid_x, 1: PT.block_x})
    check(f, numbers(50))


def test_a_result_that_all_blocks_need(gpu):
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        total = ln.sum(x, axis=(0, 1), keepdims=True)
        y = f.output(x / total, "y")
    for tensor in (y, total.reduction):
        tensor.split(1, 5)
        tensor.split(0, 4)
        tensor.parallelize({0: PT.grid_y, 1: PT.block_z, 2: PT.grid_x, 3: PT.block_x})
    assert "ln_grid_barrier" in check(f, numbers(6, 37))


@pytest.mark.parametrize("columns", [96, 9001])
def test_buffers_of_several_types_in_shared_memory(gpu, columns):
    """Beyond 48 kilobytes they lie in one arena."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", columns), ln.float16)
        doubled = x + x
        wide = ln.cast(doubled, ln.float64)
        largest = ln.max(doubled, axis=1, keepdims=True)
        y = f.output(wide - ln.cast(largest, ln.float64), "y")
    doubled.memory = wide.memory = ln.SHARED
    y.split(1, 32)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})
    for tensor in (doubled, wide, largest.reduction):
        tensor.compute_at(y, 1)
        tensor.split(1, 32)
        tensor.parallelize({2: PT.block_x})
    text = check(f, numbers(3, columns).astype(np.float16))
    assert ("extern __shared__" in text) is (columns > 96)


@pytest.mark.parametrize("memory", [ln.LOCAL, ln.SHARED, ln.GLOBAL], ids=str)
def test_parts_that_no_element_belongs_to(gpu, memory):
    """What a reduction that was factored twice holds where its split does not divide."""
    with ln.Fusion("k") as f:
        y = f.output(ln.sum(f.input("x", ("N", 11), ln.float32), axis=(0, 1)), "y")
    y.split(1, 8)
    parts = y.rfactor([0, 1]).rfactor([0])
    parts.memory = memory
    check(f, numbers(3, 11))


def test_a_vectorized_axis_inside_of_an_unswitch_loop(gpu):
    """The two bodies share loads and stores, and each has registers of its own for them."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        z = f.input("z", ("M", "N"), ln.float32)
        y = f.output((x + x) + z, "y")
    y.split(1, 4)
    y.split(0, 4)
    ln.propagate(y)
    f.inline_most()
    y.parallelize({1: PT.unswitch, 3: PT.vectorize})
    text = check(f, numbers(8), numbers(6, 8))
    assert text.count("x_v = ln_wide<4>(&x[i2 * 4]);") == 2
    assert text.count("T2 = x_v[i3] + x_v[i3];") == 2


@pytest.mark.parametrize("name", CASES)
def test_several_launches(gpu, name):
    """One function a launch, enqueued in order, each with blocks of its own; no grid waits."""
    make, shape, count = CASES[name]
    f = make()
    gpu.log.clear()
    text = check(f, numbers(*shape) + np.float32(0.5))
    names = [call[0] for call in gpu.calls("launch")]
    assert names == [f"{name}_launch{number}" for number in range(count)] * LAUNCHES
    assert text.count("__global__") == count
    assert "ln_grid_barrier" not in text
