"""Sorted rows of 64 numbers, by a bitonic network: 21 stages of comparisons, the same for all data.

A stage compares each element with the one whose number differs in one bit, and keeps the smaller or
the larger of the two. The network is math: a row is a cube of as many axes as numbers have bits,
and a stage compares it with itself, one axis flipped. So a stage is a tensor like any other: in the
registers of a warp, where a flip is an exchange of lanes, or in vectors of 16 rows.
Rows of any length, with NaN, equal elements in their order, and places, are `ln.sort`'s.

    python kernels/sort_rows.py                      # show it, run it, compare it
    python kernels/sort_rows.py dump --stage cuda

Source: Batcher, "Sorting networks and their applications", 1968.
"""

import numpy as np

import loopnest as ln

BITS = 6
WIDTH = 1 << BITS


def sort_rows_numpy(x):
    return np.sort(x, axis=1)


@ln.kernel(sizes={"B": 4096}, reference=sort_rows_numpy)
def sort_rows(f, dtype=ln.float32):
    x = f.input("x", ("B", WIDTH), dtype)
    cube = (2,) * BITS
    y = ln.reshape(x, ("B", *cube)).named("stage_0")
    place = ln.iota(WIDTH, dtype=ln.int32).named("place")
    place = ln.reshape(place, cube)[None]
    for size in range(1, BITS + 1):
        for step in reversed(range(size)):
            other = ln.flip(y, BITS - step)
            keeps_less = ln.eq(place // 2**step % 2, place // 2**size % 2)
            y = ln.where(keeps_less, ln.minimum(y, other), ln.maximum(y, other))
            y.named(f"stage_{size}_{step}")
    f.output(ln.reshape(y, ("B", WIDTH)), "y")


def stages_of(f):
    """Return the rows before, between and behind stages."""
    return [tensor for tensor in f.tensors if tensor.name.startswith("stage_")]


@sort_rows.schedule("gpu")
def gpu(f, rows=4):
    """A warp has a row, a lane the elements i and i + 32; a block has `rows` rows."""
    y, place, stages = f["y"], f["place"], stages_of(f)
    last = stages[-1]
    cubes = [tensor for tensor in f.tensors if tensor.ndim >= BITS and tensor is not last]
    last.split(0, rows)
    last.reorder({2: -1})  # [B / rows, rows, 2, 2, 2, 2, 2, the highest bit]
    for _ in range(BITS - 2):
        last.merge(2)
    y.split(0, rows)
    y.split(2, WIDTH // 2)
    y.reorder({2: 3})
    place.split(0, WIDTH // 2)
    place.reorder({0: 1})
    place.parallelize({0: ln.ParallelType.block_x})
    for tensor in (last, y):
        tensor.parallelize(
            {0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_y, 2: ln.ParallelType.block_x}
        )
    ln.propagate(last, tensors=cubes)
    ln.parallelize_like(last)
    for stage in reversed(stages):
        stage.compute_at(y, 2)
    f.inline_most([t for t in f.tensors if t not in stages and not t.is_input])


@sort_rows.schedule("cpu")
def cpu(f, rows=16):
    """A core takes `rows` rows together, vectors across them; all their stages are in a cache."""
    y, stages = f["y"], stages_of(f)
    last = stages[-1]
    cubes = [tensor for tensor in f.tensors if tensor.ndim == 1 + BITS and tensor is not last]
    for tensor in (last, y):
        tensor.split(0, rows)
        tensor.reorder({1: -1})  # [B / rows, the places of a row, rows]
        tensor.parallelize({0: ln.ParallelType.cpu_parallel})
    ln.propagate(last, tensors=cubes)
    for stage in reversed(stages):
        stage.compute_at(y, 1)
    for tensor in (last, *cubes):
        if not tensor.axis(-1).is_broadcast:
            tensor.axis(-1).parallelize(ln.ParallelType.vectorize)
    f.inline_most([t for t in f.tensors if t not in stages and not t.is_input])


if __name__ == "__main__":
    ln.main()
