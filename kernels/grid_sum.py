"""The sum of a whole array by all blocks of a grid.

Each block folds a part and leaves its sum in workspace; the block that arrives last folds those, in
the order of the blocks: the result is the same in every run, without atomic additions of floats.

    python kernels/grid_sum.py                       # show it, run it, compare it
    python kernels/grid_sum.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def grid_sum_numpy(x):
    return np.sum(x, dtype=np.float64)


@ln.kernel(sizes={"N": 1 << 22}, reference=grid_sum_numpy)
def grid_sum(f, dtype=ln.float32):
    x = f.input("x", ("N",), dtype)
    f.output(ln.sum(x, axis=0), "y")


@grid_sum.schedule("gpu")
def gpu(f, blocks=264, threads=256, lanes=None):
    """`blocks` blocks of `threads` threads, each of which folds vectors of `lanes`.

    [N] is split to [blocks, N / blocks / threads / lanes, threads, lanes]. The number of blocks is
    a constant, a few for each multiprocessor, so that the last one has little to do.
    """
    y = f["y"]
    total = y.cache_before()
    total.split(0, lanes or 16 // y.dtype.size)
    total.split(0, threads)
    total.split(0, blocks, inner=False)
    part = f["x"].cache_after()
    part.compute_at(total, 3)
    total.parallelize(
        {0: ln.ParallelType.grid_x, 2: ln.ParallelType.block_x, 3: ln.ParallelType.unroll}
    )
    part.axis(3).parallelize(ln.ParallelType.vectorize)


@grid_sum.schedule("gpu_launches")
def gpu_launches(f, rounds=16, threads=256, lanes=None):
    """A block folds `rounds * threads * lanes` elements; a second launch of one block the rest.

    The second launch begins when all blocks have ended, so none has to count the others. The number
    of blocks follows from N here, not that of the rounds.
    """
    y = f["y"]
    y.split(0, lanes or 16 // y.dtype.size)
    y.split(0, threads)
    y.split(0, rounds)  # [N / 16384, 16, 256, 4]
    total = y.rfactor([1, 2, 3])
    part = f["x"].cache_after()
    part.compute_at(total, 3)
    total.parallelize(
        {0: ln.ParallelType.grid_x, 2: ln.ParallelType.block_x, 3: ln.ParallelType.unroll}
    )
    part.axis(3).parallelize(ln.ParallelType.vectorize)
    total.memory = ln.GLOBAL
    y.new_launch()
    y.split(0, threads)
    y.axis(1).parallelize(ln.ParallelType.block_x)


@grid_sum.schedule("cpu")
def cpu(f, lanes=16, chunk=1 << 16):
    """Chunks go to the cores; `lanes` partial sums of each are folded side by side."""
    y = f["y"]
    y.split(0, chunk)
    chunks = y.rfactor(1)
    chunks.split(1, lanes)
    chunks.parallelize({0: ln.ParallelType.cpu_parallel})
    sums = chunks.rfactor(1)
    sums.parallelize({2: ln.ParallelType.vectorize})
    sums.compute_at(chunks, 1)


if __name__ == "__main__":
    ln.main()
