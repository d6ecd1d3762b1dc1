"""Kernels of kernels/ on 16-bit floats: nothing between load and store is rounded to 16 bits."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import loopnest as ln

sys.path.insert(0, str(Path(__file__).parents[2]))

from kernels.cross_entropy import cross_entropy
from kernels.layernorm import layernorm
from kernels.softmax import softmax


@pytest.mark.parametrize("schedule", layernorm.schedules)
def test_a_layernorm_of_large_float16_is_no_zero(schedule: str) -> None:
    """At a standard deviation of 400 the square of a centered element exceeds float16."""
    x = np.random.default_rng(0).normal(0, 400, (3, 256)).astype(np.float16)
    gamma, beta = np.ones(256, np.float16), np.zeros(256, np.float16)
    kernel = layernorm.lower(schedule, dtype=ln.float16)
    found = ln.compile(kernel, target="c")(x, gamma, beta)
    wide = x.astype(np.float64)
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_sums_of_many_float16_are_not_rounded_in_between() -> None:
    x = np.random.default_rng(1).normal(0, 4, (3, 2048)).astype(np.float16)
    label = np.array([3, 0, 7], np.int32)
    e = np.exp(x.astype(np.float64))
    shares = ln.compile(softmax.lower("gpu", dtype=ln.float16), target="c")(x)
    np.testing.assert_allclose(shares, e / e.sum(1, keepdims=True), rtol=1e-3, atol=1e-7)
    loss = ln.compile(cross_entropy.lower("gpu", dtype=ln.float16), target="c")(x, label)
    wanted = np.log(e.sum(1)) - x[range(3), label].astype(np.float64)
    np.testing.assert_allclose(loss, wanted, rtol=1e-3)
