"""Circular buffers of one or two copies under random schedules: proved, and run."""

from __future__ import annotations

from random import Random

import pytest

import loopnest as ln
from helpers.schedule_run import PT, assert_computes, random


def scheduled(rng: Random) -> ln.Fusion | None:
    """Return a fusion with copies that run ahead; None where a call was refused."""
    with ln.Fusion("k") as f:
        x = f.input("x", ("K", 6), ln.float32)
        w = f.input("w", ("K", 6), ln.float32)
        values = [x * 2.0 + w, ln.sum(x * w, axis=0), ln.sum(x * w, axis=1)]
        y = f.output(rng.choice(values), "y")
    copies = [t.cache_after() for t in rng.sample([x, w], rng.choice([1, 2]))]
    try:
        for copy in copies:
            copy.memory = rng.choice([ln.LOCAL, ln.SHARED])
        if rng.random() < 0.6:
            y.split(rng.randrange(y.ndim), rng.choice([2, 3, 4]))
        if rng.random() < 0.7:
            ln.propagate(y)
        for kind in rng.sample([PT.grid_x, PT.block_x], rng.choice([0, 1, 1])):
            y.axis(rng.randrange(y.ndim)).parallelize(kind)
        if rng.random() < 0.6:
            ln.parallelize_like(y)
        for copy in copies:
            copy.compute_at(y, rng.randint(1, y.ndim))
        if rng.random() < 0.6:
            f.inline_most()
        for copy in copies:
            stages = rng.choice([2, 2, 3, 4])
            copy.circular_buffer(stages, rng.choice([None, 1, stages - 1]))
    except ln.ScheduleError:
        return None
    return f


@pytest.mark.parametrize("seed", range(24))
def test_random_schedules_with_circular_buffers(seed: int) -> None:
    f = scheduled(Random(seed))
    if f is None:
        return
    try:
        k = ln.lower(f)
    except ln.LoweringError:
        return
    assert ln.verify(k).ok, f"seed {seed}\n{k}"
    for rows in (1, 5):
        assert_computes(f, random(rows, 6), random(rows, 6))
