"""Kernels that divide indices by sizes: quotients with few values, of sizes, of data."""

import numpy as np

import loopnest as ln

PT = ln.ParallelType


def rolled_numpy(x):
    return np.roll(x, 1, 0) * 2.0 + np.roll(x, -2, 0)


@ln.kernel(sizes={"N": 6, "M": 5}, reference=rolled_numpy)
def rolled(f):
    """Rows moved around the end of an axis."""
    x = f.input("x", ("N", "M"), ln.float32)
    f.output(ln.roll(x, 1, 0) * 2.0 + ln.roll(x, -2, 0), "y")


@rolled.schedule("gpu")
def rolled_gpu(f, threads=4):
    f["y"].split(0, threads)
    f["y"].parallelize({0: PT.grid_x, 1: PT.block_x})
    ln.propagate(f["y"])
    f.inline_most()


def wrapped_numpy(x, i):
    return np.take(x, i, 0, mode="wrap")


@ln.kernel(sizes={"N": 6, "M": 5, "K": 7}, reference=wrapped_numpy)
def wrapped(f):
    """Rows at indices that go around the end."""
    x, i = f.input("x", ("N", "M"), ln.float32), f.input("i", ("K",), ln.int32)
    f.output(ln.take(x, i, 0, mode="wrap"), "y")


@wrapped.schedule("cpu")
def wrapped_cpu(f):
    f["y"].split(1, 2)


def parted_numpy(x):
    return x + 1.0


@ln.kernel(sizes={"N": 10, "M": 4}, reference=parted_numpy)
def parted(f):
    """One axis in as many parts as another has elements, with a tail."""
    x = f.input("x", ("N", "M"), ln.float32)
    f.output(x + 1.0, "y")


@parted.schedule("gpu")
def parted_gpu(f):
    f["y"].split(0, "M")
    f["y"].parallelize({0: PT.grid_x, 1: PT.block_x})


def merged_numpy(x):
    return x * 2.0 + 1.0


@ln.kernel(sizes={"N": 6, "M": 5}, reference=merged_numpy)
def merged(f):
    """A buffer with the elements of two axes along one, read by both of them."""
    x = f.input("x", ("N", "M"), ln.float32)
    f.output((x * 2.0).named("twice") + 1.0, "y")


@merged.schedule("cpu")
def merged_cpu(f):
    f["twice"].merge(0)
    f["twice"].parallelize({0: PT.cpu_parallel})


def halves_numpy(x):
    return x.reshape(2, x.shape[0] // 2, x.shape[1]).sum(axis=0)


@ln.kernel(sizes={"N": 10, "M": 4}, reference=halves_numpy)
def halves(f):
    """An axis in parts of half its length."""
    x = f.input("x", ("N", "M"), ln.float32)
    f.assume("N % 2 == 0")
    f.output(ln.sum(ln.reshape(x, (2, -1, "M")), axis=0), "y")


@halves.schedule("gpu")
def halves_gpu(f, threads=4):
    f["y"].split(0, threads)
    f["y"].parallelize({0: PT.grid_x, 1: PT.block_x})
    ln.propagate(f["y"])
    f.inline_most()


def grouped_numpy(x, rate, scale):
    rows = x.reshape(x.shape[0], 4, x.shape[1] // 4 * x.shape[2]) * rate[:, :, None]
    return rows.reshape(x.shape) * scale[:, None]


@ln.kernel(sizes={"N": 3, "C": 8, "S": 6}, reference=grouped_numpy)
def grouped(f):
    x = f.input("x", ("N", "C", "S"), ln.float32)
    rate = f.input("rate", ("N", 4), ln.float32)
    scale = f.input("scale", ("C",), ln.float32)
    f.assume("C % 4 == 0")
    rows = ln.reshape(x, (x.shape[0], 4, -1)).named("rows")
    rated = (rows * ln.broadcast(rate, (False, False, True))).named("rated")
    weight = ln.broadcast(scale, (False, True))
    f.output(ln.reshape(rated, x.shape) * weight, "y")


@grouped.schedule("cpu")
def grouped_cpu(f):
    """A loop over images and groups together: its digits are multiplied by sizes."""
    y = f["y"]
    y.split(1, f["rows"].shape[1], inner=False)
    y.merge(0)
    y.parallelize({0: PT.cpu_parallel})
    f["rated"].compute_at(y, 1)
    ln.inline_most()


@grouped.schedule("gpu")
def grouped_gpu(f, parts=2):
    """Threads over the row of a group: the channel is a quotient with many values."""
    y = f["y"]
    y.split(1, f["rows"].shape[1], inner=False)
    y.merge(2)
    y.split(2, parts, inner=False)
    ln.propagate(y)
    y.parallelize({0: PT.grid_x, 1: PT.grid_y, 3: PT.block_x})
    f["rated"].compute_at(y, 2)
    f["rated"].axis(3).parallelize(PT.block_x)
    ln.inline_most()


def rolled_sum_numpy(x):
    return np.roll(x, 9, 1).sum(axis=1)


@ln.kernel(sizes={"N": 2, "M": 70}, reference=rolled_sum_numpy)
def rolled_sum(f):
    """A sum over a symbolic number of threads, which is proved at named sizes."""
    x = f.input("x", ("N", "M"), ln.float32)
    f.output(ln.sum(ln.roll(x, 9, 1), axis=1), "y")


@rolled_sum.schedule("gpu")
def rolled_sum_gpu(f):
    y = f["y"]
    partial = y.cache_before()
    ln.propagate(y)
    y.parallelize({0: PT.grid_x})
    partial.compute_at(y, 1)
    partial.axis(1).parallelize(PT.block_x)
    ln.inline_most()
