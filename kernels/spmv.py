"""A sparse matrix times a vector, in two forms: y[n] = sum of value[n, e] * x[column[n, e]].

`spmv` has the ELLPACK form. Each row has E entries, a value and its column; rows with fewer are
filled with the value 0 at any column. The columns are stored one entry of all rows after another,
[E, N]: threads that own neighbouring rows then read neighbours.

`spmv_csr` has the compressed form: the entries of all rows one behind the other, and `start`, where
each row begins. The sum is one over all Z entries under the mask of a row; its loop begins and ends
where the row does.

    python kernels/spmv.py                           # show them, run them, compare them
    python kernels/spmv.py:spmv_csr dump --stage cuda
"""

import numpy as np

import loopnest as ln


def spmv_numpy(value, column, x):
    return (value.astype(np.float64) * x.astype(np.float64)[column]).sum(axis=0)


@ln.kernel(sizes={"E": 16, "N": 65536, "M": 65536}, reference=spmv_numpy)
def spmv(f, dtype=ln.float32):
    value = f.input("value", ("E", "N"), dtype)
    column = f.input("column", ("E", "N"), ln.int32)
    x = f.input("x", ("M",), dtype)
    f.assume_range(column, 0, "M")
    entry = ln.take(x, column, axis=0).named("entry")
    product = (value * entry).named("product")
    f.output(ln.sum(product, axis=0), "y")


@spmv.schedule("gpu")
def gpu(f, threads=128):
    """A thread owns a row; neighbours read neighbours but for x, which the caches hold."""
    y = f["y"]
    acc = y.cache_before()
    y.split(0, threads)
    acc.compute_at(y, 2)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    f.inline_most(replay=True)


@spmv.schedule("cpu")
def cpu(f, rows=512):
    """A core owns `rows` rows; their sums stay in its cache while entries are added."""
    y = f["y"]
    acc = y.cache_before()
    y.split(0, rows)
    acc.compute_at(y, 1)
    acc.reorder({1: 2})  # [N / rows, E, rows]
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    f.inline_most(replay=True)


def csr_numpy(value, column, x, start):
    entry = value.astype(np.float64) * x.astype(np.float64)[column]
    before = np.concatenate([[0.0], np.cumsum(entry)])
    low, high = start[:-1], np.maximum(start[1:], start[:-1])
    return before[high] - before[low]


@ln.kernel(sizes={"Z": 262144, "P": 16385, "M": 16384}, reference=csr_numpy)
def spmv_csr(f, dtype=ln.float32):
    value = f.input("value", ("Z",), dtype)
    column = f.input("column", ("Z",), ln.int32)
    x = f.input("x", ("M",), dtype)
    start = f.input("start", ("P",), ln.int32)
    f.assume_range(column, 0, "M")
    rows = ln.segments(start, "Z")
    product = (value * ln.take(x, column, axis=0)).named("product")
    f.output(ln.sum(ln.where(rows.mask, product, 0.0), axis=1), "y")


@spmv_csr.schedule("gpu")
def csr_gpu(f, threads=128):
    """A thread owns a row, and goes through its entries."""
    y = f["y"]
    acc = y.cache_before()
    y.split(0, threads)
    acc.compute_at(y, 2)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    f.inline_most(replay=True)


@spmv_csr.schedule("cpu")
def csr_cpu(f):
    """A core owns rows; the sum of a row is in a register."""
    y = f["y"]
    acc = y.cache_before()
    acc.compute_at(y, 1)
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    f.inline_most(replay=True)


if __name__ == "__main__":
    ln.main()
