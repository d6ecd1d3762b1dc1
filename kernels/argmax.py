"""Where each row is largest: y[n] = the first d at which x[n, d] is the maximum of row n.

The reduction folds pairs (element, index), and its combination commutes: of equal elements the
lower index counts. So a row may be folded in any order, like a sum.

    python kernels/argmax.py                         # show it, run it, compare it
    python kernels/argmax.py dump --stage cuda
"""

import loopnest as ln


def argmax_numpy(x):
    return x.argmax(axis=1)


@ln.kernel(sizes={"N": 4096, "D": 1024}, reference=argmax_numpy)
def argmax(f, dtype=ln.float32):
    x = f.input("x", ("N", "D"), dtype)
    f.output(ln.argmax(x, axis=1), "y")


@argmax.schedule("gpu")
def gpu(f, threads=128, lanes=None):
    """A block owns a row: its threads fold vectors of `lanes`, then each other's pairs."""
    x, y = f["x"], f["y"]
    place = y.cache_before()
    y.parallelize({0: ln.ParallelType.grid_x})
    place.compute_at(y, 1)
    place.split(1, lanes or 16 // x.dtype.size)
    place.split(1, threads)  # [N, D / lanes / threads, threads, lanes]
    row = x.cache_after()
    row.compute_at(place, 3)
    place.parallelize({2: ln.ParallelType.block_x, 3: ln.ParallelType.unroll})
    row.axis(3).parallelize(ln.ParallelType.vectorize)


@argmax.schedule("cpu")
def cpu(f, lanes=8):
    """Rows go to the cores; a row is folded into `lanes` pairs side by side.

    `rfactor` moves the fold over every `lanes`-th element into a tensor of its own, whose lanes can
    be vectorized; `y` folds what it leaves. `unswitch` keeps the test for a last part of a row that
    is shorter out of the loop.
    """
    y = f["y"]
    y.split(1, lanes)
    partial = y.rfactor(1)
    partial.parallelize({1: ln.ParallelType.unswitch, 2: ln.ParallelType.vectorize})
    partial.compute_at(y, 1)
    y.parallelize({0: ln.ParallelType.cpu_parallel})


if __name__ == "__main__":
    ln.main()
