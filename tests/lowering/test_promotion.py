"""Promoted axes: what a loop runs over where one of its tensors lacks a part of it."""

from __future__ import annotations

import numpy as np
import pytest

import loopnest as ln


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_a_repeated_part_that_no_shared_loop_runs_over_stays_one_point(
    replay: bool, inner: bool
) -> None:
    """A copy of the column maxima shares the loop over parts of the rows, not that over a part."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("N", "M"), ln.float32)
        top = ln.max(x, 0, keepdims=True)
        y = f.output(ln.sum(top + x, (0, 1)), "y")
    copy = top.cache_after()
    y.split(0, 4, inner=inner)
    copy.compute_at(y, 1)
    copy.merge(1)
    f.inline_most(replay=replay)
    kernel = ln.lower(f)
    assert {b.name: [str(n) for n in b.shape] for b in kernel.buffers}[copy.name] == ["M"]
    assert ln.verify(kernel).all_sizes
    array = np.arange(17 * 5, dtype=np.float32).reshape(17, 5)
    for target in ("interpret", "c"):
        assert ln.compile(kernel, target)(array) == ln.evaluate(f, array)
