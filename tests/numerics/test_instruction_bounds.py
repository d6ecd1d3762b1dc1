"""`ln.error_bound` where an instruction of the table computes a reduction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import loopnest as ln
from helpers.mma_gemm import mma_gemm
from helpers.tensor_cores import TF32, Array, cut, tensor_core_product
from loopnest.kir import instruction_table

FLOATS = [
    n
    for n, r in ln.instructions.items()
    if r.ptx and not r.is_move and r.operands["d"].dtype.is_float
]
NAME = "mma.m16n8k8.f32.tf32"
FULL = 1 + 2.0**-9 - 2.0**-23
"""A float32 number of which tf32 cuts off nearly all that it may."""


@pytest.fixture(autouse=True)
def unproved(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Prove nothing, and give the rows back that a test adds."""
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")
    kept = dict(instruction_table._table)
    yield
    instruction_table._table.clear()
    instruction_table._table.update(kept)


def factors(name: str, data: str, depth: int) -> tuple[Array, Array]:
    """Return matrices of 64 and 32 lines, `depth` long."""
    rng = np.random.default_rng(depth)
    a, b = rng.standard_normal((64, depth)), rng.standard_normal((depth, 32))
    if data == "spread":
        a *= 2.0 ** rng.integers(-8, 8, a.shape)
    if data == "positive":
        a, b = abs(a), abs(b)
    if data == "full":
        a, b = np.full_like(a, FULL), np.full_like(b, FULL)
    if data == "tiny":
        a *= 2.0**-128
    kind = ln.instructions[name].operands["a"].dtype.numpy
    return a.astype(kind), b.astype(kind)


def worst(f: ln.Fusion, result: Array, a: Array, b: Array) -> float:
    """Return the largest error of a result, in bounds of it."""
    wanted = ln.evaluate(f, a, b, exact=True)
    away, bound = abs(result.astype(np.float64) - wanted), ln.error_bound(f, a, b)
    assert isinstance(bound, np.ndarray)
    assert not away[bound == 0].any()
    return float(np.max(away / np.where(bound == 0, 1, bound)))


@pytest.mark.parametrize("depth", [64, 1024])
@pytest.mark.parametrize("data", ["normal", "spread", "positive", "full", "tiny"])
@pytest.mark.parametrize("name", FLOATS)
def test_what_a_tensor_core_gives_is_right(name: str, data: str, depth: int) -> None:
    f = mma_gemm(name)
    a, b = factors(name, data, depth)
    assert worst(f, tensor_core_product(ln.instructions[name], a, b), a, b) <= 1


def test_a_bit_less_of_a_factor_is_wrong() -> None:
    f, row = mma_gemm(NAME), ln.instructions[NAME]
    a, b = factors(NAME, "full", 64)
    assert 0.99 < worst(f, tensor_core_product(row, a, b), a, b) <= 1
    assert worst(f, tensor_core_product(row, a, b, TF32 - 1), a, b) > 1.9
    coarse = cut(a.astype(np.float64), TF32 - 1).astype(np.float32)
    assert worst(f, tensor_core_product(row, coarse, b), a, b) > 1.4


@pytest.mark.parametrize("name", FLOATS)
def test_kernels_and_their_texts_have_the_bound_of_the_fusion(name: str) -> None:
    f = mma_gemm(name)
    a, b = factors(name, "normal", 64)
    k = ln.lower(f)
    wanted = ln.error_bound(f, a, b)
    for kernel in (k, ln.Kernel.parse(k.text(full=True))):
        assert np.array_equal(ln.error_bound(kernel, a, b), wanted)


@pytest.mark.parametrize("name", FLOATS)
def test_targets_that_execute_no_instruction(name: str) -> None:
    """There a tile is its body, and the bound is that of the math alone."""
    a, b = factors(name, "normal", 64)
    with ln.Fusion("product") as plain:
        x = plain.input("a", ("M", "K"), ln.instructions[name].operands["a"].dtype)
        y = plain.input("b", ("K", "N"), ln.instructions[name].operands["b"].dtype)
        plain.output(ln.matmul(x, y, dtype=ln.float32), "c")
    f = mma_gemm(name)
    wanted = ln.error_bound(plain, a, b)
    for target in ("c", "interpret"):
        assert np.array_equal(ln.error_bound(f, a, b, target=target), wanted)
    for target in ("cuda", ""):
        assert (ln.error_bound(f, a, b, target=target) > wanted).all()


def test_sums_have_a_rounding_a_term_and_an_instruction() -> None:
    name = "mma.m16n8k16.f32.f16"
    with ln.Fusion("product") as plain:
        x = plain.input("a", ("M", "K"), ln.float16)
        y = plain.input("b", ("K", "N"), ln.float16)
        plain.output(ln.matmul(x, y, dtype=ln.float32), "c")
    for depth in (64, 1024):
        a, b = factors(name, "positive", depth)
        found = ln.error_bound(mma_gemm(name), a, b) / ln.error_bound(plain, a, b)
        # 2^-23 where others have 2^-24, (16 + 1) / 16 times as often.
        assert np.isclose(np.mean(found), 2 * 17 / 16 * depth / (depth - 1), rtol=1e-2)


def test_of_ragged_sizes_fills_count_for_nothing() -> None:
    f = mma_gemm(NAME, whole=False)
    one = np.full((1, 1), FULL, np.float32)
    bound = ln.error_bound(f, one, one)
    assert isinstance(bound, np.ndarray)
    assert 0.99 < bound[0, 0] / (FULL**2 * 2.0**-9) < 1.01


def test_no_error_where_nothing_is_rounded() -> None:
    name = "mma.m16n8k16.f32.f16"
    a, b = np.full((64, 64), 3.0, np.float16), np.full((64, 32), 5.0, np.float16)
    assert not np.any(ln.error_bound(mma_gemm(name), a, b))
    zeros = np.zeros((64, 64), np.float32), np.zeros((64, 32), np.float32)
    assert not np.any(ln.error_bound(mma_gemm(NAME), *zeros))
    name = "mma.m16n8k32.s32.s8"
    a, b = np.full((64, 64), 3, np.int8), np.full((64, 32), 5, np.int8)
    assert not np.any(ln.error_bound(mma_gemm(name), a, b))


def test_a_row_without_accuracy_computes_as_the_nest() -> None:
    row = ln.instructions[NAME]
    ln.add_instruction(replace(row, name="exact", accuracy=None))
    ln.add_instruction(replace(row, name="factors", accuracy={"a": 2.0**-10}))
    a, b = factors(NAME, "normal", 64)
    plain = ln.error_bound(mma_gemm(NAME), a, b, target="c")
    assert np.array_equal(ln.error_bound(mma_gemm("exact"), a, b), plain)
    half, whole = [ln.error_bound(mma_gemm(name), a, b) - plain for name in ("factors", NAME)]
    assert np.allclose(half / whole, 0.5, rtol=1e-2)


def test_a_kernel_whose_row_nobody_added() -> None:
    ln.add_instruction(replace(ln.instructions[NAME], name="toy"))
    f = mma_gemm("toy")
    k = ln.lower(f)
    del instruction_table._table["toy"]
    a, b = factors(NAME, "normal", 64)
    message = (
        "error_bound(mma_gemm): T6 is computed by the instruction toy, of which there is no row; "
        "add it with ln.add_instruction"
    )
    with pytest.raises(ln.LaunchError, match=f"^{re.escape(message)}$"):
        ln.error_bound(k, a, b)


def test_a_kernel_whose_row_computes_something_else() -> None:
    ln.add_instruction(replace(ln.instructions[NAME], name="toy"))
    k = ln.lower(mma_gemm("toy"))
    instruction_table._table["toy"] = replace(
        ln.instructions[NAME], behaviour="d[m, n] = d[m, n] + a[m, k] * b[k, n] * b[k, n]"
    )
    a, b = factors(NAME, "normal", 64)
    message = (
        "error_bound(mma_gemm): T6 is not what the instruction mma.m16n8k8.f32.tf32 computes; it "
        "computes d[m, n] = d[m, n] + a[m, k] * b[k, n] * b[k, n]"
    )
    with pytest.raises(ln.LaunchError, match=f"^{re.escape(message)}$"):
        ln.error_bound(k, a, b)
