"""A sparse matrix times a vector, in ELLPACK form: y[n] = sum of value[n, e] * x[column[n, e]].

Each row has E entries, a value and its column; rows with fewer are filled with the value 0 at any
column. The columns are stored one entry of all rows after another, [E, N]: threads that own
neighbouring rows then read neighbours.

    python kernels/spmv.py                           # show it, run it, compare it
    python kernels/spmv.py dump --stage cuda
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


if __name__ == "__main__":
    ln.main()
