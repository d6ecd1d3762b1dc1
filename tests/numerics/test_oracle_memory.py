"""What the oracle holds: inputs and outputs, reductions, and blocks of what is between them."""

from __future__ import annotations

import importlib
import tracemalloc
from math import prod
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from loopnest.devtools.harness import make_arguments
from loopnest.numerics import oracle_blocks
from loopnest.scalar.arguments import size_value
from loopnest.scalar.dtypes import DType

KERNELS: dict[str, dict[str, int]] = {
    "adam": {"N": 1 << 16},
    "batchnorm": {"N": 8, "C": 16, "S": 1024},
    "bias_gelu": {"N": 256, "D": 256},
    "column_sum": {"N": 1024, "D": 128},
    "cross_entropy": {"N": 256, "C": 256},
    "gemm": {"M": 96, "N": 96, "K": 32},
    "grid_sum": {"N": 1 << 18},
    "layernorm": {"N": 512, "D": 256},
    "lstm_cell": {"B": 16, "K": 128, "H": 64},
    "row_sum": {"N": 512, "D": 256},
    "softmax": {"N": 512, "D": 256},
    "transpose": {"N": 512, "D": 512},
}


WIDER = {
    (ln.error_bound, "grid_sum"): 7,
    (ln.error_bound, "gemm"): 8,
    (ln.error_bound, "lstm_cell"): 6,
}
"""Bounds hold what a reduction gives three times (value, least, most), and all the elements of one
result at once; lstm_cell adds up the parts that each warp leaves. One product of it, before its
sum, would be 28 times as large as its arrays."""


@pytest.fixture(autouse=True, scope="module")
def loaded_modules() -> None:
    """Load what a first evaluation loads, so that a test measures arrays alone."""
    with ln.Fusion("k") as f:
        f.output(ln.sum(f.input("x", (4, 4), ln.float32), axis=1), "y")
    for function in (ln.evaluate, ln.error_bound):
        function(f, np.ones((4, 4), np.float32))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make them as small, relative to the sizes here, as they are at a kernel's own sizes."""
    monkeypatch.setattr(oracle_blocks, "BLOCK", 1 << 10)
    monkeypatch.setattr(oracle_blocks, "CHUNK", 1 << 14)


def peak(call: Any, *arguments: Any, **keywords: Any) -> int:
    tracemalloc.start()
    try:
        call(*arguments, **keywords)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("function", [ln.evaluate, ln.error_bound])
def test_within_three_times_inputs_and_outputs(function: Any, name: str) -> None:
    kernel = getattr(importlib.import_module(f"kernels.{name}"), name)
    fusion = kernel.fusion()
    arguments = make_arguments(fusion, KERNELS[name], kernel.ranges)
    keywords = arguments.keywords(fusion)
    whole = sum(a.nbytes for a in arguments.arrays)
    for tensor in fusion.outputs:
        shape = [size_value(size, arguments.sizes) for size in tensor.sizes]
        whole += prod(shape) * tensor.dtype.numpy.itemsize
    most = WIDER.get((function, name), 3)
    function(kernel.fusion(), *arguments.arrays, **keywords)  # what a first evaluation keeps
    assert peak(function, fusion, *arguments.arrays, **keywords) < most * whole


def math(x: ln.TensorView, w: ln.TensorView) -> tuple[ln.TensorView, ...]:
    """Return outputs that others read, a diamond, and reductions over either axis and over both."""
    twice = x + x
    scaled = twice * w
    chain = ln.exp(scaled - ln.max(scaled, axis=1, keepdims=True)) * twice
    total = ln.sum(chain, axis=0)
    mean, spread, _ = ln.welford(chain)
    return twice, chain / (1.0 + total * total), mean, spread, ln.permute(chain, (1, 0)) + mean


@pytest.mark.parametrize("dtype", [ln.float32, ln.float16, ln.float64], ids=str)
def test_blocks_change_no_value(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((19, 14)).astype(dtype.numpy), rng.random(14).astype(dtype.numpy)
    with ln.Fusion() as f:
        made = math(f.input("x", ("N", "D"), dtype), f.input("w", ("D",), dtype))
        for number, tensor in enumerate(made):
            f.output(tensor, f"y{number}")
    monkeypatch.setattr(oracle_blocks, "BLOCK", 1 << 30)
    whole = ln.evaluate(f, x, w, exact=True), ln.error_bound(f, x, w)
    for size in (10, 64):
        monkeypatch.setattr(oracle_blocks, "BLOCK", size)
        for a, b in zip(ln.evaluate(f, x, w, exact=True), whole[0], strict=True):
            np.testing.assert_array_equal(a, b)
        bounds = zip(ln.error_bound(f, x, w), *whole[::-1], strict=True)
        for a, b, value in bounds:  # bounds are sums and functions in float64 themselves
            assert (np.abs(a - b) <= 32 * np.spacing(np.abs(value) + b)).all()
    values, tensors = ln.evaluate(f, x, w, exact=True, tensors=True)
    assert list(tensors) == [t.name for t in f.tensors]
    for a, b in zip(values, whole[0], strict=True):
        np.testing.assert_array_equal(a, b)


def test_parts_of_a_long_sum_are_added_as_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle_blocks, "BLOCK", 64)
    monkeypatch.setattr(oracle_blocks, "CHUNK", 256)
    x = np.random.default_rng(0).random((7, 301))
    with ln.Fusion() as f:
        t = f.input("x", ("N", "D"), ln.float64)
        for n, y in enumerate((ln.sum(t), ln.max(t), *ln.welford(t), ln.sum(t, axis=1))):
            f.output(y, f"y{n}")
    total, most, mean, spread, count, rows = ln.evaluate(f, x)
    np.testing.assert_allclose(total, x.sum(), rtol=1e-15)
    assert most == x.max()
    np.testing.assert_allclose((mean, spread), (x.mean(), x.var()), rtol=1e-14)
    assert count == x.size
    np.testing.assert_allclose(rows, x.sum(axis=1), rtol=1e-15)
