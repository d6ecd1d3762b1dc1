"""How often each of some values occurs, by counters that many threads add to.

Each block has counters of its own in shared memory, to which its threads add by atomic operations;
in the end it adds them to those of the result. So one value that occurs often makes the threads of
a block wait for each other, not those of the whole GPU, and memory is met once a block and counter.

    python kernels/histogram.py                       # show it, run it, compare it
    python kernels/histogram.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def histogram_numpy(x):
    return np.bincount(x[(x >= 0) & (x < 256)], minlength=256).astype(np.int32)


@ln.kernel(sizes={"N": 1 << 22}, reference=histogram_numpy, ranges={"x": (0, 256)})
def histogram(f, bins=256):
    x = f.input("x", ("N",), ln.int32)
    ones = ln.full(("N",), 1, dtype=ln.int32).named("ones")
    zeros = ln.full((bins,), 0, dtype=ln.int32)
    f.output(ln.index_add(zeros, 0, x, ones), "y")


@histogram.schedule("gpu")
def gpu(f, threads=256, rounds=16):
    """A block counts `rounds * threads` values in shared memory, and adds its counters to y.

    [bins, N] is reordered to [N, bins] and split to [blocks, rounds, threads, bins]; rfactor makes
    the counters of a block: own [blocks, rounds, threads, bins] and y [blocks, bins].
    """
    y = f["y"]
    y.reorder({1: 0})
    y.split(0, threads)
    y.split(0, rounds)
    own = y.rfactor([1, 2]).named("own")
    own.memory = ln.SHARED
    zeros = own.atomic()
    first = y.atomic()
    y.new_launch()  # first is stored by a launch of its own
    first.parallelize({0: ln.ParallelType.block_x})
    y.split(1, threads)
    y.parallelize({0: ln.ParallelType.grid_x, 2: ln.ParallelType.block_x})
    own.compute_at(y, 1)
    own.parallelize({2: ln.ParallelType.block_x})
    zeros.compute_at(own, 1)
    zeros.split(1, threads)
    zeros.parallelize({2: ln.ParallelType.block_x})
    f["ones"].compute_at(own, -1)


@histogram.schedule("gpu_direct")
def gpu_direct(f, threads=256):
    """Every thread adds to the counters of the result, in global memory."""
    y = f["y"]
    first = y.atomic()
    first.parallelize({0: ln.ParallelType.block_x})
    y.reorder({1: 0})
    y.split(0, threads)
    y.new_launch()
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.block_x})
    f["ones"].compute_at(y, -1)


@histogram.schedule("cpu")
def cpu(f, chunk=1 << 16):
    """A core counts chunks in counters of its own, which it adds to y."""
    y = f["y"]
    y.reorder({1: 0})
    y.split(0, chunk)
    own = y.rfactor(1).named("own")
    y.atomic()
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    own.compute_at(y, 1)
    f["ones"].compute_at(own, -1)


if __name__ == "__main__":
    ln.main()
