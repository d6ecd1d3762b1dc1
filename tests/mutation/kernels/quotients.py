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
