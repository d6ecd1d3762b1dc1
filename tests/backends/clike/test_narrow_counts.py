"""Counts of elements in 32 bits where indices have 32 bits, and what must stay in 64."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import loopnest as ln
from helpers.cuda_on_cpu import CpuGpu
from helpers.fake_gpu import plug_in
from loopnest.backends.clike.narrow_counts import narrow_counts
from loopnest.launch.launch_plan import Planner

PT = ln.ParallelType


PASSED = re.compile(r"^    const|^    long long \*|^    int64_t \*|static")


def wide_integers(text: str) -> list[str]:
    """Return the lines with integers of 64 bits, but for parameters."""
    wide = [line for line in text.splitlines() if re.search(r"long long|int64_t", line)]
    return [line for line in wide if not PASSED.search(line)]


def moments(threads: bool = True, factored: bool = False, blocks: bool = False) -> ln.Fusion:
    """Return the variance of rows by Welford's algorithm, the count being an output if `blocks`."""
    with ln.Fusion("moments") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        mean, variance, count = ln.welford(x, axis=1)
        f.output(variance * 2.0, "y")
        if blocks:
            f.output(count, "n")
    mean.split(1, 64)
    stages = [mean, mean.rfactor(1)] if factored else [mean]
    for stage in stages if threads else ():
        stage.axis(-1).parallelize(PT.block_x)
    if blocks:
        mean.axis(1).parallelize(PT.grid_x)
    f.inline_most()
    return f


@pytest.mark.parametrize(
    "build",
    [
        moments,
        lambda: moments(threads=False),
        lambda: moments(factored=True),
        lambda: moments(threads=False, factored=True),
    ],
    ids=["threads", "serial", "factored", "factored serial"],
)
def test_counts_follow_the_width_of_indices(build: Callable[[], ln.Fusion]) -> None:
    kernel = ln.lower(build())
    for text in (kernel.cuda, kernel.c):
        preludes = text(32).split("moments(")[0]
        assert not wide_integers(text(32)[len(preludes) :])
        assert wide_integers(text(64)[len(preludes) :])
    assert "long long" in kernel.cuda(64)


def test_memory_of_the_launch_keeps_its_type() -> None:
    """What blocks leave, and an output, are int64 arrays; what a thread holds is not."""
    text = ln.lower(moments(blocks=True)).cuda(32)
    assert "long long *__restrict__ n" in text
    held = [line for line in wide_integers(text) if "long long *" not in line]
    assert all("blocks" in line or "n[" in line for line in held), held


def test_what_is_made_of_counts_is_wide() -> None:
    """Twice a count may be more than the width of indices bounds."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        _, _, count = ln.welford(x, axis=1)
        twice = count + count
        f.output(twice * twice, "y")
    f.inline_most()
    program, _ = narrow_counts(ln.lower(f).program)
    types = dict(re.findall(r"(\w+): (int\d+)\[1\] local", str(program_text(program))))
    assert types == {"T3": "int32", "T4": "int64"}
    assert "int64(T3[0]) + int64(T3[0])" in program_text(program)


def program_text(program: object) -> str:
    from loopnest.kir.nest_text import print_nest

    return print_nest(program)  # type: ignore[arg-type]


def test_a_count_bounds_the_width() -> None:
    """No array and no index is large; the elements that are counted are too many for 32 bits."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N",), ln.float32)
        rows = ln.expand(ln.broadcast(x, (False, True)), ("N", "D"))
        _, variance, _ = ln.welford(rows, axis=(0, 1))
        f.output(variance, "y")
    f.inline_most()
    planner = Planner(ln.lower(f).program)
    assert planner.plan({"N": 1000, "D": 1000}, "k").index_bits == 32
    assert planner.plan({"N": 70000, "D": 70000}, "k").index_bits == 64


def test_quotients_of_counts_need_no_slow_path() -> None:
    """Operands are whole numbers; others take the division that cares for all."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        _, variance, _ = ln.welford(x, axis=1)
        f.output(1.0 / variance, "y")
    f.inline_most()
    kernel = ln.lower(f)
    assert "1.0f / T2" in kernel.cuda(32)
    assert "ln_quotient(1.0f, (float)" in kernel.cuda(32)
    assert "ln_quotient" not in kernel.cuda(64)
    assert "ln_quotient(1.0f" not in kernel.c(32)


@pytest.mark.parametrize("kind", ["threads", "factored", "blocks"])
def test_results_are_the_same(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of 32 bits on the CPU, and that in C, against the nest as it stands."""
    f = moments(factored=kind == "factored", blocks=kind == "blocks")
    x = np.random.default_rng(7).normal(3.0, 2.0, (3, 200)).astype(np.float32)
    plug_in(monkeypatch, CpuGpu(tmp_path))
    wanted, *found = [ln.compile(f, target=t)(x) for t in ("interpret", "c", "cuda")]
    for result in found:
        pairs = zip(result, wanted, strict=True) if kind == "blocks" else [(result, wanted)]
        for mine, theirs in pairs:
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)
