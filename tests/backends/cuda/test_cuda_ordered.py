"""Reducers that need not commute in CUDA text: run on the CPU, and compiled for a GPU."""

from __future__ import annotations

import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from helpers.ordered_reducers import AFFINE, PT, SCHEDULES, compare, composed, farthest


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


def _in_turns(y, threads):
    y.split(1, 4).split(1, threads)
    y.parallelize({0: PT.grid_x, 2: PT.block_x})


def _at_once(y, threads):
    y.split(1, threads, inner=False)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})


def scanned(schedule, threads, exclusive):
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        f.output(ln.cumsum(x, axis=1, exclusive=exclusive), "y")
        f.output(ln.scan(AFFINE, (x, 0.5), axis=1, exclusive=exclusive)[1], "z")
    for y in f.outputs:
        schedule(y, threads)
    return f


@pytest.mark.parametrize("threads", [8, 40, 64])
@pytest.mark.parametrize("schedule", [_in_turns, _at_once])
@pytest.mark.parametrize("exclusive", [False, True])
def test_scans_of_items(gpu, schedule, threads, exclusive, monkeypatch):
    monkeypatch.setenv("LOOPNEST_VERIFY", "0")  # `test_scan_items` proves them
    f = scanned(schedule, threads, exclusive)
    run = ln.compile(f, target="cuda")
    for size in ((5, 333), (3, 1), (3, 0)):
        for _ in range(3):
            compare(f, run, size)


@pytest.mark.parametrize("threads", [8, 40, 64])
def test_scans_of_items_compile(headers, threads):
    assert ln.lower(scanned(_in_turns, threads, True)).cubin("sm_90")
