"""Rows of a table: y[k] = table[token[k]], and the gradient of the table.

A gather: which row is read is data. That all tokens are rows of the table is declared, so that each
launch checks it, and `verify` proves the kernel under it. The gradient adds row k of `g` to row
token[k] of the result: a sum over the tokens whose loop over rows runs over one row alone, that of
the token. On a GPU each token has a block of its own, which adds by atomic operations; with `fixed`
a thread owns some columns, on a CPU a core some rows of the table, and walks through the tokens: no
two threads add to one element, so that the order of the sum is the same each time.

    python kernels/embedding.py                      # show them, run them, compare them
    python kernels/embedding.py:embedding dump --stage cuda
"""

import numpy as np

import loopnest as ln


def embedding_numpy(table, token):
    return table[token]


@ln.kernel(sizes={"V": 32000, "D": 768, "K": 4096}, reference=embedding_numpy)
def embedding(f, dtype=ln.float32):
    table = f.input("table", ("V", "D"), dtype)
    token = f.input("token", ("K",), ln.int32)
    f.assume_range(token, 0, "V")
    f.output(ln.take(table, token, axis=0), "y")


@embedding.schedule("gpu")
def gpu(f, threads=128, lanes=None):
    """A block copies a row, each thread vectors of it."""
    y = f["y"]
    y.split(1, lanes or 16 // y.dtype.size)
    y.split(1, threads)
    y.parallelize({0: ln.ParallelType.grid_x, 2: ln.ParallelType.block_x})
    y.parallelize({3: ln.ParallelType.vectorize})


@embedding.schedule("cpu")
def cpu(f):
    """Rows go to the cores, each from one end to the other."""
    f["y"].parallelize({0: ln.ParallelType.cpu_parallel})


def embedding_grad_numpy(g, token, V):
    result = np.zeros((V, g.shape[1]), np.float64)
    np.add.at(result, token, g)
    return result


@ln.kernel(sizes={"V": 512, "D": 128, "K": 1024}, reference=embedding_grad_numpy)
def embedding_grad(f, dtype=ln.float32):
    g = f.input("g", ("K", "D"), dtype)
    token = f.input("token", ("K",), ln.int32)
    zeros = ln.full(("V", "D"), 0.0, dtype=ln.float32)  # sums of float16 are taken in float32
    f.assume_range(token, 0, "V")
    rows = g if dtype is ln.float32 else ln.cast(g, ln.float32).named("rows")
    f.output(ln.index_add(zeros, 0, token, rows), "table")


def casts(f):
    """Return the rows of `g` in float32, if they have 16 bits."""
    return [tensor for tensor in f.tensors if tensor.name == "rows"]


@embedding_grad.schedule("gpu")
def grad_gpu(f, threads=128, lanes=4):
    """A launch stores zeros; in the next one a block takes a token, and adds its row."""
    table = f["table"]
    zeros = table.atomic()
    zeros.split(1, lanes)
    zeros.split(1, threads)
    zeros.parallelize({0: ln.ParallelType.grid_x, 2: ln.ParallelType.block_x})
    zeros.parallelize({3: ln.ParallelType.vectorize})
    table.new_launch()
    table.split(1, threads)
    table.reorder({3: 0, 1: 1, 2: 2})  # [K, D / threads, threads, V]
    table.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.grid_y})
    table.parallelize({2: ln.ParallelType.block_x})
    for rows in casts(f):
        rows.compute_at(table, 3)


@embedding_grad.schedule("fixed")
def grad_fixed(f, threads=32):
    """A thread owns a column, and walks through the tokens: of each it adds to one row."""
    table = f["table"]
    table.split(1, threads)
    table.reorder({1: 0, 2: 1, 3: 2})  # [D / threads, threads, K, V]
    table.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    for rows in casts(f):
        rows.compute_at(table, 3)


@embedding_grad.schedule("cpu")
def grad_cpu(f, some=256):
    """A core owns `some` rows of the table, and walks through the tokens.

    It adds those of its own, a whole row of `g` each, so that memory is read from front to back,
    while its part of the table stays in its cache.
    """
    table = f["table"]
    table.split(0, some)
    table.reorder({3: 1})  # [V / some, K, some, D]
    table.parallelize({0: ln.ParallelType.cpu_parallel})
    for rows in casts(f):
        rows.memory = ln.GLOBAL
        rows.parallelize({0: ln.ParallelType.cpu_parallel})


if __name__ == "__main__":
    ln.main()
