"""Kernels with tiles that overlap, fills, carries, and loops that end early; small ones."""

import numpy as np

import loopnest as ln

PT = ln.ParallelType


def halo_numpy(x):
    wide = np.pad(x, ((1, 1), (0, 0)))
    rows = wide[:-2] + wide[1:-1] + wide[2:]
    return rows[:, ::2][:, 1:] + rows[:, ::2][:, :-1]


@ln.kernel(sizes={"N": 24, "M": 34}, reference=halo_numpy)
def halo(f):
    """Windows of a padded image, then windows two apart, in tiles in shared memory."""
    x = f.input("x", ("N", "M"), ln.float32)
    wide = ln.pad(x, ((1, 1), (0, 0))).named("wide")
    rows = (wide[:-2] + wide[1:-1] + wide[2:]).named("rows")
    even = rows[:, ::2]
    f.output(even[:, 1:] + even[:, :-1], "y")


@halo.schedule("gpu")
def halo_gpu(f, height=2, width=4):
    y, rows, wide = f["y"], f["rows"], f["wide"]
    y.split(1, width).split(0, height).reorder({1: 2})
    y.parallelize({0: PT.grid_y, 1: PT.grid_x})
    wide.compute_at(y, 2)
    for tensor, near in ((y, rows), (rows, wide)):
        for part in near.consumers:
            part.compute_at(tensor, -1)
    for tensor in (wide, rows, y):
        tensor.axis(3).parallelize(PT.block_x)
    rows.memory = ln.SHARED
    wide.memory = ln.SHARED
    ln.inline_most([tensor for tensor in f.tensors if tensor.memory is ln.LOCAL])


def joined_numpy(a, b):
    return np.concatenate([a, b[::-1]])


@ln.kernel(sizes={"N": 40, "M": 24}, reference=joined_numpy)
def joined(f):
    """Two arrays behind each other, the second backwards, by vectors where they divide."""
    a, b = f.input("a", ("N",), ln.float32), f.input("b", ("M",), ln.float32)
    f.output(ln.concatenate([a, ln.flip(b, 0).named("back")]), "y")


@joined.schedule("gpu")
def joined_gpu(f, threads=4, lanes=4):
    y = f["y"]
    copy = f["a"].cache_after()
    y.split(0, lanes).split(0, threads)
    y.parallelize({0: PT.grid_x, 1: PT.block_x, 2: PT.vectorize})
    for tensor in (copy, f["back"]):
        tensor.compute_at(y, 2)
    copy.axis(-1).parallelize(PT.vectorize)


def carried_numpy(x):
    so_far = np.cumsum(x, axis=1)
    rows, columns = x.shape
    return np.where(np.arange(columns) <= np.arange(rows)[:, None], so_far, 0).sum(axis=1)


@ln.kernel(sizes={"N": 12, "M": 20}, reference=carried_numpy)
def carried(f):
    """A scan whose last iterations nobody needs."""
    x = f.input("x", ("N", "M"), ln.float32)
    so_far = ln.cumsum(x, axis=1)
    row = ln.broadcast(ln.iota("N"), (False, True))
    column = ln.broadcast(ln.iota("M"), (True, False))
    f.output(ln.sum(ln.where(column <= row, so_far, 0.0), axis=1), "y")


@carried.schedule("gpu")
def carried_gpu(f, threads=4):
    f["y"].split(0, threads)
    f["y"].parallelize({0: PT.grid_x, 1: PT.block_x})
    ln.propagate(f["y"])
    f.inline_most()


def chunked_numpy(x):
    return np.cumsum(x, axis=1)


@ln.kernel(sizes={"N": 6, "M": 24}, reference=chunked_numpy)
def chunked(f):
    """A scan of chunks side by side, which meet in shared memory."""
    x = f.input("x", ("N", "M"), ln.float32)
    f.output(ln.cumsum(x, axis=1), "y")


@chunked.schedule("gpu")
def chunked_gpu(f, chunk=4):
    y = f["y"]
    y.split(1, chunk)  # [N, M / chunk, chunk]
    sums = y.rfactor(2)
    before = y.producers[0]
    totals = before.producers[0]
    for tensor in (sums, totals, before):
        tensor.compute_at(y, 1)
    y.parallelize({0: PT.grid_x})
    for tensor in (y, sums, totals):
        tensor.axis(1).parallelize(PT.block_x)
    for tensor in (totals, before):
        tensor.memory = ln.SHARED
