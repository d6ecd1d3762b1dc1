"""Stores in loops that were merged with axes which a tensor lacks: one iteration makes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import loopnest as ln

PT = ln.ParallelType


def rows_of_tiles() -> ln.Fusion:
    """`twice` has one axis of a loop that was merged of it and of the tiles of another one."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("K", "K"), ln.float32)
        row = f.input("row", ("K",), ln.float32)
        twice = f.output(row * 2.0, "twice")
        y = f.output(twice + x, "y")
    y.split(0, 2)
    y.reorder({1: 2})
    y.merge(0)
    ln.propagate(y)
    f.inline_most()
    y.axis(0).parallelize(PT.block_x)
    ln.parallelize_like(y)
    return f


def repeated(kind: ln.ParallelType) -> ln.Fusion:
    """`kept` lacks the inner part of a loop that a reshape made of its axis and a repetition."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("K",), ln.float32)
        column = ln.broadcast(x, [False, True])
        y = f.output(ln.flatten(ln.expand(column, (x.shape[0], 2)), 0, 1), "y")
        f.output(column, "kept")
    column.cache_fork()
    y.split(-1, 2)
    f.inline_most()
    y.axis(-1).parallelize(kind)
    return f


def updates_in_a_merged_loop() -> ln.Fusion:
    """Atomic updates are not initialized again where loops around them begin again."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("K", "M"), ln.int32)
        total = ln.sum(x, 0, keepdims=True, dtype=ln.int32)
        y = f.output(total + x, "y")
    fold = total.producers[0]
    y.merge(0)
    ln.propagate(y)
    f.inline_most()
    fold.atomic()
    return f


def shared_by_a_part(inside: bool) -> ln.Fusion:
    """A tensor in SHARED memory lacks a part, bound to threads, of the axis that it is read as."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("K", "M"), ln.float32)
        column = ln.broadcast(x, [False, True, False])
        wide = ln.expand(column, (x.shape[0], 3, x.shape[1]))
        y = f.output(ln.flatten(wide, 0, 1), "y")
    y.split(0, 3)
    column.memory = ln.SHARED
    column.compute_at(y, -1 if inside else 2)
    y.axis(1).parallelize(PT.block_x)
    f.inline_most()
    return f


CASES: dict[str, Callable[[], ln.Fusion]] = {
    "tiles": rows_of_tiles,
    "updates": updates_in_a_merged_loop,
    "shared": lambda: shared_by_a_part(inside=True),
    "shared rows": lambda: shared_by_a_part(inside=False),
    **{
        kind.value: lambda kind=kind: repeated(kind)  # type: ignore[misc]
        for kind in (PT.block_x, PT.grid_x, PT.vectorize, PT.cpu_parallel)
    },
}


@pytest.mark.parametrize("name", CASES)
def test_each_element_is_stored_by_one_iteration(name: str) -> None:
    f = CASES[name]()
    k = ln.lower(f)
    report = ln.verify(k)
    assert report.ok, report
    assert not [finding for finding in report.findings if finding.kind == "redundant"]
    sizes = {"K": 5, "M": 3}
    arrays = [
        np.arange(np.prod(shape)).reshape(shape).astype(tensor.dtype.numpy)
        for tensor in f.inputs
        for shape in [[sizes[str(size)] for size in tensor.shape]]
    ]
    wanted = ln.evaluate(f, *arrays)
    for target in ("interpret", "c"):
        found = ln.compile(k, target=target)(*arrays)
        pairs = zip(wanted, found, strict=True) if isinstance(wanted, tuple) else [(wanted, found)]
        for a, b in pairs:
            np.testing.assert_array_equal(a, b)
