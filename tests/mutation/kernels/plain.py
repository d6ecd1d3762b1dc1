"""Kernels without values that cross threads: what tests count on, whatever becomes of kernels/."""

import numpy as np

import loopnest as ln

PT = ln.ParallelType


def sum_numpy(x):
    return x.sum(axis=1)


@ln.kernel(sizes={"N": 512, "D": 64}, reference=sum_numpy)
def plain_sum(f):
    x = f.input("x", ("N", "D"), ln.float32)
    f.output(ln.sum(x, axis=1), "y")


@plain_sum.schedule("gpu")
def sum_gpu(f, threads=128):
    """A thread owns a row."""
    y = f["y"]
    t = y.cache_before()
    y.split(0, threads)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    t.compute_at(y, 2)


def softmax_numpy(x):
    e = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=1, keepdims=True)


@ln.kernel(sizes={"N": 512, "D": 64}, reference=softmax_numpy)
def plain_softmax(f):
    x = f.input("x", ("N", "D"), ln.float32)
    largest = ln.max(x, axis=1, keepdims=True)
    shifted = (x - largest).named("shifted")
    e = ln.exp(shifted).named("e")
    total = ln.sum(e, axis=1, keepdims=True)
    f.output(e / total, "y")
    largest.reduction.named("largest")
    total.reduction.named("total")


@plain_softmax.schedule("gpu")
def softmax_gpu(f, threads=128):
    """A thread owns a row, and computes the exponentials twice."""
    y, largest, total = f["y"], f["largest"], f["total"]
    y.split(0, threads)
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    largest.compute_at(y, 2)
    total.compute_at(y, 2)
    f["e"].compute_at(total, -1, recompute=True)
    f["shifted"].compute_at(f["e"], -1, recompute=True)
    ln.inline_most()


@plain_softmax.schedule("cpu")
def softmax_cpu(f):
    """A core owns a row, and keeps its exponentials."""
    y = f["y"]
    y.parallelize({0: PT.cpu_parallel})
    for name in ("largest", "total", "e"):
        f[name].compute_at(y, 1)
    ln.inline_most()


@ln.kernel(sizes={"N": 512, "D": 64})
def plain_moments(f):
    x = f.input("x", ("N", "D"), ln.float32)
    mean, variance, _ = ln.welford(x, axis=1)
    f.output(mean, "mean")
    f.output(variance, "variance")


@plain_moments.schedule("serial")
def moments_serial(f):
    """Three components advance together; nobody reads the count when all is done."""


@plain_moments.schedule("factored")
def moments_factored(f):
    """Four partial moments, put together at the end."""
    mean = f["mean"]
    mean.split(1, 4)
    mean.rfactor(1).compute_at(mean, 1)


def gemm_numpy(a, b):
    return a @ b


@ln.kernel(sizes={"M": 64, "N": 64, "K": 64}, reference=gemm_numpy)
def plain_gemm(f):
    a = f.input("a", ("M", "K"), ln.float32)
    b = f.input("b", ("K", "N"), ln.float32)
    f.output(ln.matmul(a, b), "c")


@plain_gemm.schedule("gpu")
def gemm_gpu(f, threads=4, tile=2):
    """A thread owns a tile of sums in registers."""
    c = f["c"]
    (product,) = c.producers
    left, right = product.producers
    total = c.cache_before()
    c.split(1, tile)
    c.split(1, threads)
    c.split(0, tile)
    c.split(0, threads)
    c.reorder([0, 3, 1, 4, 2, 5])
    c.parallelize({0: PT.grid_y, 1: PT.grid_x, 2: PT.block_y, 3: PT.block_x})
    total.compute_at(c, 4)
    total.reorder({-1: 4})
    product.compute_at(total, -1)
    right.compute_at(total, 5)
    left.compute_at(total, 6)
