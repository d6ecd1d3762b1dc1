"""Scatters by automatic schedules: over their sources, by atomic operations where threads share."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import loopnest as ln
from helpers.math_run import assert_equal
from loopnest.schedulers.scheduler_table import auto_schedule, scheduler_of

G = np.random.default_rng(0).integers(-3, 4, (9, 6, 5)).astype(np.float32)


def scatter(shape: tuple[int, ...], axis: int, into: str, alike: bool = False) -> ln.Fusion:
    given = [*shape[:axis], 9, *shape[axis + 1 :]]
    with ln.Fusion("scatter") as f:
        i = f.input("i", tuple(given) if alike else (9,), ln.int32)
        g = f.input("g", tuple(given), ln.float32)
        base = ln.full(shape, 0.0) if into == "zeros" else f.input("x", shape, ln.float32)
        add = ln.scatter_add(base, i, g, axis) if alike else ln.index_add(base, axis, i, g)
        f.output(add, "w")
    return f


CASES = [
    ((4, 6), 0, "zeros", False), ((6, 4, 5), 1, "x", False), ((4,), 0, "zeros", True),
    ((3, 4), 1, "x", True), ((4, 300), 0, "zeros", False),
]  # fmt: skip


@pytest.mark.parametrize("target", ["c", "cuda"])
@pytest.mark.parametrize(("shape", "axis", "into", "alike"), CASES)
def test_scatters(shape: tuple[int, ...], axis: int, into: str, alike: bool, target: str) -> None:
    f = scatter(shape, axis, into, alike)
    rng = np.random.default_rng(0)
    arrays: list[Any] = []
    for tensor in f.inputs:
        drawn = rng.integers(-1 if tensor.name == "i" else -4, 5, tensor.shape)
        arrays.append(drawn.astype(tensor.dtype.numpy))
    expected = ln.evaluate(f, *arrays)
    assert auto_schedule(f, target).name == "scatter"
    kernel = ln.lower(f)
    assert ("atomic" in str(kernel)) == (target == "cuda")
    assert ln.verify(kernel).ok
    assert_equal(ln.compile(kernel, target="interpret")(*arrays), expected)


def test_a_fixed_sum_and_a_narrow_one_have_no_atomic_updates() -> None:
    for dtype, fixed in ((ln.float32, True), (ln.float16, False)):
        with ln.Fusion("k") as f:
            i, g = f.input("i", (9,), ln.int32), f.input("g", (9, 6), dtype)
            f.output(ln.index_add(ln.full((4, 6), 0, dtype=dtype), 0, i, g, deterministic=fixed))
        chosen = scheduler_of(f, "cuda")
        assert chosen is not None
        assert chosen.name == "fold"
        chosen = scheduler_of(f, "c")
        assert chosen is not None
        assert chosen.name == "scatter"


@pytest.mark.parametrize("target", ["c", "cuda"])
def test_updates_are_computed_where_they_are_added(target: str) -> None:
    with ln.Fusion("scaled") as f:
        i, g = f.input("i", ("N",), ln.int32), f.input("g", ("N", "D"), ln.float32)
        share, x = f.input("s", ("N",), ln.float32), f.input("x", ("V", "D"), ln.float32)
        f.assume_range(i, 0, "V")
        f.output(ln.index_add(x, 0, i, ln.relu(g) * share[:, None]), "w")
    assert auto_schedule(f, target).name == "scatter"
    kernel = ln.lower(f)
    report = ln.verify(kernel)
    assert report.all_sizes, str(report)
    assert len(kernel.launch(N=9, D=5, V=4).launches if target == "cuda" else [0]) <= 3
    rng = np.random.default_rng(0)
    arrays = (
        rng.integers(0, 4, 9).astype(np.int32), G[:, :5, 0].copy(),
        np.arange(9, dtype=np.float32), rng.integers(-3, 4, (4, 5)).astype(np.float32),
    )  # fmt: skip
    found = ln.compile(kernel, target="interpret")(*arrays)
    assert_equal(found, ln.evaluate(f, *arrays))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((99, 6), 0), ((6, 99, 5), 1), ((99,), 0), ((3, 99), 1)]
)
def test_assignments_go_over_their_updates(shape: tuple[int, ...], axis: int, zeros: bool) -> None:
    """The last of several updates stays; the time is that of the updates and of the elements."""
    given = (*shape[:axis], 9, *shape[axis + 1 :])
    with ln.Fusion("assignment") as f:
        i, g = f.input("i", given, ln.int64), f.input("g", given, ln.float32)
        base = ln.full(shape, 0.0) if zeros else f.input("x", shape, ln.float32)
        f.output(ln.scatter(base, i, g, axis), "w")
    rng = np.random.default_rng(0)
    arrays: list[Any] = [
        rng.integers(-1 if tensor.name == "i" else -4, 5, tensor.shape).astype(tensor.dtype.numpy)
        for tensor in f.inputs
    ]
    expected = ln.evaluate(f, *arrays)
    schedule = auto_schedule(f, "c").name
    kernel = ln.lower(f)
    assert ln.verify(kernel).status == "proved"
    for target in ("c", "interpret"):
        assert_equal(ln.compile(kernel, target=target)(*arrays), expected)
    assert schedule == "scatter"
    assert re.search(r"for i\d+ in .*index\(i\[.*\.\.", str(kernel)), kernel


@pytest.mark.parametrize("computed", [False, True])
def test_threads_share_out_the_updates_of_an_assignment(computed: bool) -> None:
    with ln.Fusion("assignment") as f:
        x, i = f.input("x", ("V",), ln.float32), f.input("i", ("N",), ln.int32)
        u = f.input("u", ("N",), ln.float32)
        f.output(ln.scatter(x, i, u * 2.0 if computed else u, 0), "w")
    assert auto_schedule(f, "cuda").name == ("stages" if computed else "scatter")
    kernel = ln.lower(f)
    assert "atomic" in str(kernel)
    assert ln.verify(kernel).all_sizes
    rng = np.random.default_rng(0)
    arrays = [rng.random(n, dtype=np.float32) for n in (7, 40)]
    arrays.insert(1, rng.integers(-1, 8, 40).astype(np.int32))
    found = ln.compile(kernel, target="interpret", thread_order=1)(*arrays)
    assert_equal(found, ln.evaluate(f, *arrays))
