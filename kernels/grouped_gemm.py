"""Products of groups of rows with matrices of their own: y[t] = x[t] @ w[g], where t is of group g.

The rows of a group lie one behind the other, as tokens do that are sorted by their expert; `start`
says where each group begins. The math is one product for each group and row, summed over the
groups under the mask of the group's rows: the loop over rows begins and ends where the group does,
so that each row is multiplied once.

    python kernels/grouped_gemm.py                   # show it, run it, compare it
    python kernels/grouped_gemm.py dump --stage cuda
"""

from itertools import pairwise

import numpy as np

import loopnest as ln


def grouped_numpy(x, w, start):
    y = np.zeros((x.shape[0], w.shape[2]))
    for group, (first, last) in enumerate(pairwise(start)):
        y[first:last] = x[first:last].astype(np.float64) @ w[group]
    return y


@ln.kernel(sizes={"T": 1024, "K": 256, "N": 256, "G": 8, "P": 9}, reference=grouped_numpy)
def grouped_gemm(f):
    x = f.input("x", ("T", "K"), ln.float32)
    w = f.input("w", ("G", "K", "N"), ln.float32)
    start = f.input("start", ("P",), ln.int32)
    f.assume("P == G + 1")
    rows = ln.segments(start, "T")
    product = ln.matmul(ln.broadcast(x, (True, False, False)), w).named("product")
    of_group = ln.broadcast(rows.mask, (False, False, True))
    f.output(ln.sum(ln.where(of_group, product, 0.0), axis=0), "y")


@grouped_gemm.schedule("gpu")
def gpu(f, threads=128):
    """A thread owns an element of y: it looks for the group of its row, and multiplies there."""
    y = f["y"]
    total = y.cache_before()
    y.split(1, threads)
    total.compute_at(y, 3)  # [T, N / threads, threads, G]
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.grid_y})
    y.parallelize({2: ln.ParallelType.block_x})
    f.inline_most(replay=True)


@grouped_gemm.schedule("cpu")
def cpu(f, block=128, rows=8, parts=2, lanes=None):
    """A core owns `block` rows of y, and goes through the groups that have any of them.

    Of a group it multiplies `rows` rows by `parts` vectors of columns at a time; the sums stay in
    registers. Rows at the end of a group that are not of it are multiplied, and left out.
    """
    lanes = lanes or ln.machine().lanes(4)
    y, product = f["y"], f["product"]
    total = y.cache_before()
    y.split(0, block)
    total.compute_at(y, 1)  # [T / block, block, G, N]
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    total.split(3, lanes)
    total.split(3, parts)
    total.split(1, rows)
    # [T / block, G, N / columns, block / rows, rows, parts, lanes]
    total.reorder({3: 1, 4: 2, 1: 3, 2: 4})
    product.compute_at(total, 4)
    product.reorder({-1: 4})  # [..., K, rows, parts, lanes]
    product.parallelize({4: ln.ParallelType.unswitch, 5: ln.ParallelType.unroll})
    product.parallelize({6: ln.ParallelType.unroll, 7: ln.ParallelType.vectorize})
    (factors,) = product.producers
    factors.compute_at(product, 7)
    factors.axis(-1).parallelize(ln.ParallelType.vectorize)
    factors.producers[0].compute_at(factors, 7)
    f.inline_most([t for t in f.tensors if t is not product], replay=True)


if __name__ == "__main__":
    ln.main()
