"""Dot products of bytes in CUDA text: words in place of elements, and where they are not."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from helpers.math_run import assert_equal
from kernels.int8_gemm import int8_gemm

PT = ln.ParallelType


def dots(left=ln.int8, right=ln.int8, size=32, step=16, memory="LOCAL", lead=0, dtype=ln.int32):
    """Return ``y[n] = sum over k of a[n, k] * b[n, k]``, whose operands are copied in vectors."""
    with ln.Fusion("dots") as f:
        a = f.input("a", (8, size + lead), left)
        b = f.input("b", (8, size), right)
        row = a[:, lead:] if lead else a
        product = ln.cast(row, dtype) * ln.cast(b, dtype)
        y = f.output(ln.sum(product, axis=1, dtype=dtype), "y")
    y.parallelize({0: PT.block_x})
    y.split(1, step)
    copies = []
    for x in (a, b):
        copy = x.cache_after()
        copy.memory = getattr(ln, memory)
        copies.append(copy)
    for copy in copies:
        if not lead:
            copy.compute_at(y, 2)
            copy.axis(-1).parallelize(PT.vectorize)
    y.axis(2).parallelize(PT.unroll)
    product.compute_at(y, -1)
    for side in product.producers:
        side.compute_at(product, -1)
    if lead:
        row.compute_at(row.consumers[0], -1)
    return f


def made(f):
    rng = np.random.default_rng(0)
    limits = {"int8": (-128, 128), "uint8": (0, 256), "int16": (-300, 300)}
    return [
        rng.integers(*limits[t.dtype.name], [int(str(a.extent)) for a in t.root_domain]).astype(
            t.dtype.numpy
        )
        for t in f.inputs
    ]


@pytest.mark.parametrize("memory", ["LOCAL", "SHARED"])
@pytest.mark.parametrize(
    ("dtype", "name", "word"),
    [(ln.int8, "ln_dot4", "int"), (ln.uint8, "ln_udot4", "unsigned int")],
    ids=str,
)
def test_bytes_in_words(dtype, name, word, memory, tmp_path, monkeypatch):
    f = dots(dtype, dtype, memory=memory)
    kernel = ln.lower(f)
    text = kernel.cuda()
    assert text.count(f"{name}(*(const {word} *)&") == 1, text
    assert " += 4) {  // y.r2 unroll\n" in text
    assert ln.verify(kernel).ok
    arrays = made(f)
    expected = ln.evaluate(f, *arrays)
    plug_in(monkeypatch, CpuGpu(tmp_path))
    for target in ("interpret", "c", "cuda"):
        assert_equal(ln.compile(kernel, target=target)(*arrays), expected)


@pytest.mark.parametrize(("dtype", "of"), [(ln.int8, "s32.s32"), (ln.uint8, "u32.u32")], ids=str)
def test_the_instruction(dtype, of):
    pytest.importorskip("cuda.bindings")
    assert f"dp4a.{of}" in ln.lower(dots(dtype, dtype)).ptx("sm_80")


@pytest.mark.parametrize(
    "case",
    [
        {"right": ln.uint8},  # a sign in one of both
        {"left": ln.int16, "right": ln.int16},  # no bytes
        {"step": 2},  # less than a word
        {"lead": 1},  # no multiple of a word
        {"dtype": ln.int64},  # another sum
    ],
    ids=str,
)
def test_what_stays_element_by_element(case, tmp_path, monkeypatch):
    f = dots(**case)
    kernel = ln.lower(f)
    assert "dot4(" not in kernel.cuda()
    arrays = made(f)
    expected = ln.evaluate(f, *arrays)
    plug_in(monkeypatch, CpuGpu(tmp_path))
    assert_equal(ln.compile(kernel, target="cuda")(*arrays), expected)


def test_the_sum_wraps(tmp_path, monkeypatch):
    """As all sums of int32: the instruction does not saturate, nor does its other form."""
    with ln.Fusion("wraps") as f:
        a = f.input("a", (1, 16), ln.int8)
        start = f.input("start", (1,), ln.int32)
        product = ln.cast(a, ln.int32) * ln.cast(a, ln.int32)
        y = f.output(ln.sum(product, axis=1, dtype=ln.int32) * start, "y")
    copy = a.cache_after()
    total = y.producers[0]
    total.axis(1).parallelize(PT.unroll)
    copy.compute_at(total, 1)
    copy.axis(1).parallelize(PT.vectorize)
    product.compute_at(total, -1)
    f.inline_most([t for t in product.producers if not t.is_input])
    y.parallelize({0: PT.block_x})
    arrays = np.full((1, 16), -128, np.int8), np.array([1 << 20], np.int32)
    plug_in(monkeypatch, CpuGpu(tmp_path))
    assert_equal(ln.compile(f, target="cuda")(*arrays), ln.evaluate(f, *arrays))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_words_are_not_taken_apart(arch):
    """Most of the hot loop of a product of bytes is the instruction that multiplies them."""
    pytest.importorskip("cuda.bindings.nvrtc")
    names = Counter(re.findall(r"\b(IDP|PRMT)\b", int8_gemm.lower("gpu").sass(arch)))
    assert names["IDP"] >= 256
    assert names["PRMT"] <= 8
