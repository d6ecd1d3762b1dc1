"""A schedule that has much to store: for tests of texts and copies of kernels."""

from __future__ import annotations

import loopnest as ln


def statistics(*, factored: bool) -> tuple[ln.Fusion, ln.TensorView]:
    """Return a fusion with a collective, a scalar variant, padding and Welford, and its mean.

    Where it is `factored`, so is the reduction: one tensor folds what threads have.
    """
    with ln.Fusion("statistics") as f:
        x = f.input("x", ("N", "D"), ln.float32)
        scale = f.scalar("scale", ln.float32)
        c = x * scale
        mean, spread, count = ln.welford(c, axis=1)
        f.output(mean, "mean")
        f.output(spread, "spread")
        f.output(count, "count")
        f.output(c + 1.0, "y").split(1, 4).parallelize({2: ln.ParallelType.vectorize})
    f.assume("N >= 1")
    mean.split(1, 32)
    mean.split(0, 4)
    if factored:
        mean.rfactor([2])
    mean.parallelize({0: ln.ParallelType.grid_x, 2 if factored else 3: ln.ParallelType.block_x})
    c.memory = ln.GLOBAL
    c.set_allocation(pad={1: 1})
    return f, mean
