"""Reducers that need not commute in CUDA text: run on the CPU, and compiled for a GPU."""

from __future__ import annotations

import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from helpers.ordered_reducers import SCHEDULES, compare, composed, farthest


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    return plug_in(monkeypatch, CpuGpu(tmp_path))


@pytest.mark.parametrize("name", SCHEDULES)
def test_it_folds_in_order(gpu, name, monkeypatch):
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")  # `test_ordered_reductions` proves them
    f = composed() if "x" in name else farthest()
    SCHEDULES[name](f["a"])
    f.inline_most()
    run = ln.compile(f, target="cuda")
    for size in ((5, 133), (3, 1), (3, 0)):
        for _ in range(3):  # each time in another order of threads and blocks
            compare(f, run, size)


@pytest.mark.parametrize("name", ["lanes", "warps", "odd", "across, odd", "blocks of threads"])
def test_it_compiles(headers, name):
    f = composed()
    SCHEDULES[name](f["a"])
    f.inline_most()
    assert ln.lower(f).cubin("sm_90")
