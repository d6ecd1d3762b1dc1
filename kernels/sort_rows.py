"""Sorted rows of 64 numbers, by a bitonic network: 21 stages of comparisons, the same for all data.

A stage compares each element with the one `step` further, or before, and keeps the smaller or the
larger of the two. The network is math: a stage reads two rotations of the row before it. So a stage
is a tensor like any other, in shared memory between the threads of a row, or in vectors of 16 rows.
Rows of any length, with NaN, equal elements in their order, and places, are `ln.sort`'s.

    python kernels/sort_rows.py                      # show it, run it, compare it
    python kernels/sort_rows.py dump --stage cuda

Source: Batcher, "Sorting networks and their applications", 1968.
"""

import numpy as np

import loopnest as ln

WIDTH = 64


def sort_rows_numpy(x):
    return np.sort(x, axis=1)


@ln.kernel(sizes={"B": 4096}, reference=sort_rows_numpy)
def sort_rows(f, dtype=ln.float32):
    y = f.input("x", ("B", WIDTH), dtype)
    place = ln.iota(WIDTH, dtype=ln.int32)
    size = 2
    while size <= WIDTH:
        step = size // 2
        while step:
            is_first = ln.eq(place // step % 2, 0)
            rises = ln.eq(place // size % 2, 0)
            other = ln.where(is_first[None, :], ln.roll(y, -step, 1), ln.roll(y, step, 1))
            keeps_less = ln.eq(is_first, rises)[None, :]
            y = ln.where(keeps_less, ln.minimum(y, other), ln.maximum(y, other))
            y.named(f"stage_{size}_{step}")
            step //= 2
        size *= 2
    f.output(y, "y")


def stages_of(f):
    """Return the rows between stages."""
    return [tensor for tensor in f.tensors if tensor.name.startswith("stage_")]


@sort_rows.schedule("gpu")
def gpu(f, rows=4):
    """A thread has an element, a block `rows` rows; a barrier stands between two stages."""
    x, y = f["x"], f["y"]
    stages = stages_of(f)
    for stage in stages:
        stage.memory = ln.SHARED
    y.split(0, rows)
    y.parallelize(
        {0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_y, 2: ln.ParallelType.block_x}
    )
    x.compute_at(y, 2)
    ln.propagate(y)
    ln.parallelize_like(y)
    f.inline_most([t for t in f.tensors if t not in stages and not t.is_input])


@sort_rows.schedule("cpu")
def cpu(f, rows=16):
    """A core takes `rows` rows together, vectors across them; all their stages are in a cache."""
    x, y = f["x"], f["y"]
    columns, last = x.cache_after(), y.cache_before()
    kept = [columns, *stages_of(f), last]
    y.split(0, rows)
    y.reorder({1: 2, 2: 1})  # [B / rows, WIDTH, rows]
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    x.compute_at(y, 1)
    ln.propagate(y)
    for tensor in [t for t in f.tensors if t.ndim == 3 and t not in (x, y, columns)]:
        if not tensor.axis(2).is_broadcast:
            tensor.axis(2).parallelize(ln.ParallelType.vectorize)
    f.inline_most([t for t in f.tensors if t not in kept and not t.is_input])


if __name__ == "__main__":
    ln.main()
