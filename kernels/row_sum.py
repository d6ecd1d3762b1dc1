"""The sum of each row: y[n] = sum over d of x[n, d]."""

import loopnest as ln


def row_sum_numpy(x):
    return x.sum(axis=1)


@ln.kernel(sizes={"N": 4096, "D": 1024}, reference=row_sum_numpy)
def row_sum(f, dtype=ln.float32):
    x = f.input("x", ("N", "D"), dtype)
    f.output(ln.sum(x, axis=1), "y")


@row_sum.schedule("gpu")
def gpu(f, threads=128, lanes=None):
    """A block owns a row: its threads fold vectors of `lanes`, then each other's sums."""
    x, y = f["x"], f["y"]
    total = y.cache_before()
    y.parallelize({0: ln.ParallelType.grid_x})
    total.compute_at(y, 1)
    total.split(1, lanes or 16 // x.dtype.size)
    total.split(1, threads)  # [N, D / lanes / threads, threads, lanes]
    row = x.cache_after()
    row.compute_at(total, 3)
    total.parallelize({2: ln.ParallelType.block_x, 3: ln.ParallelType.unroll})
    row.axis(3).parallelize(ln.ParallelType.vectorize)


@row_sum.schedule("gpu_warp")
def gpu_warp(f, lanes=None, rows=4):
    """A warp owns a row, a block `rows` of them: for short rows. Shuffles combine the sums."""
    x, y = f["x"], f["y"]
    total = y.cache_before()
    y.split(0, rows)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_y})
    total.compute_at(y, 2)
    total.split(2, lanes or 16 // x.dtype.size)
    total.split(2, 32)  # [N / rows, rows, D / lanes / 32, 32, lanes]
    row = x.cache_after()
    row.compute_at(total, 4)
    total.parallelize({3: ln.ParallelType.block_x, 4: ln.ParallelType.unroll})
    row.axis(4).parallelize(ln.ParallelType.vectorize)


@row_sum.schedule("cpu")
def cpu(f, lanes=16):
    """Rows go to the cores; a row is folded into `lanes` partial sums side by side.

    With one running sum each addition waits for the one before. `rfactor` moves the sum over every
    `lanes`-th element into a tensor of its own, of which `lanes` is an iteration axis that can be
    vectorized; `y` folds what it leaves. Where D is no multiple of `lanes` the last lanes need a
    test, and `unswitch` keeps it out of the loop otherwise.
    """
    y = f["y"]
    y.split(1, lanes)
    partial = y.rfactor(1)
    partial.parallelize({1: ln.ParallelType.unswitch, 2: ln.ParallelType.vectorize})
    partial.compute_at(y, 1)
    y.parallelize({0: ln.ParallelType.cpu_parallel})


if __name__ == "__main__":
    ln.main()
