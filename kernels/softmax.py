"""The softmax of each row: y = exp(x - max(x)) / sum(exp(x - max(x))).

Three passes over a row: its maximum, the sum of the exponentials, the results. The schedules
differ in what becomes of the exponentials in between: the registers of a block have room for a row
of some thousand elements, shared memory for a longer one, and a core keeps them in its cache.
Elements of 16 bits are widened where they are loaded, and results are rounded once. `softmax_any`
takes the schedule that fits the length of the rows.

    python kernels/softmax.py                        # show it, run it, compare it
    python kernels/softmax.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def softmax_numpy(x):
    e = np.exp(x - (1.0 * x).max(axis=1, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=1, keepdims=True)


@ln.kernel(sizes={"N": 4096, "D": 1024}, reference=softmax_numpy)
def softmax(f, dtype=ln.float32):
    x = f.input("x", ("N", "D"), dtype)
    if dtype is not dtype.compute:
        x = ln.cast(x, dtype.compute).named("wide")
    largest = ln.max(x, axis=1, keepdims=True)
    shifted = (x - largest).named("shifted")
    e = ln.exp(shifted).named("e")
    total = ln.sum(e, axis=1).named("total")
    inverse = ln.reciprocal(total).named("inverse")  # one division a row
    y = e * ln.broadcast(inverse, (False, True))
    f.output(y if dtype is dtype.compute else ln.cast(y.named("scaled"), dtype), "y")
    largest.reduction.named("largest")


def by_rows(f, row_axes, place=1):
    """Give all computed tensors the axes of `y`, and compute them in its rows.

    `row_axes` are the parallel types of the axes of a row, outermost first, which begin at `place`.
    A copy of `x` keeps the row, so that it is read once; `wide` keeps one of 16 bits in float32.
    """
    y = f["y"]
    row = f["x"].cache_after()
    ln.propagate(y)
    y.axis(0).parallelize(ln.ParallelType.grid_x)
    wide, scaled = [[t for t in f.tensors if t.name == name] for name in ("wide", "scaled")]
    tensors = (row, *wide, f["largest"], f["shifted"], f["e"], f["total"])
    for tensor in tensors:
        tensor.compute_at(y, place)
    for tensor in (*tensors, y):
        tensor.parallelize(dict(enumerate(row_axes, place)))
    for tensor in (row, y):
        tensor.axis(-1).parallelize(ln.ParallelType.vectorize)
    for tensor in scaled:
        tensor.compute_at(y, -2)
    ln.inline_most()


@softmax.schedule("gpu")
def gpu(f, lanes=None, parts=2):
    """A block owns a row and keeps it in registers.

    [D] is split to [parts, threads, lanes] with two constants, so that the number of threads
    follows D: 128 for 1024. A thread has `parts` vectors of `lanes` neighbours; a warp reads
    neighbouring vectors. Both reductions run over the threads of the block.
    """
    y = f["y"]
    y.split(1, lanes or 16 // y.dtype.size)
    y.split(1, parts, inner=False)
    unroll = ln.ParallelType.unroll
    by_rows(f, (unroll, ln.ParallelType.block_x, unroll))


@softmax.schedule("gpu_warp")
def gpu_warp(f, lanes=None, rows=4, parts=None):
    """A warp owns a row and keeps it in registers, a block `rows` of them: for short rows.

    [D] is split to [1, parts, 32, lanes]: a thread has `parts` vectors, and a row up to
    `32 * parts * lanes` elements, 1024 by default; each launch checks that. Shuffles alone combine
    the parts of a row, and no thread waits for another warp.
    """
    y = f["y"]
    lanes = lanes or 16 // y.dtype.size
    parts = parts or 32 // lanes
    f.assume("D > 0")
    f.assume(f"D <= {32 * parts * lanes}")
    y.split(1, lanes)
    y.split(1, 32)
    y.split(1, parts)
    y.split(0, rows)  # [N / rows, rows, 1, parts, 32, lanes]
    y.axis(1).parallelize(ln.ParallelType.block_y)
    unroll = ln.ParallelType.unroll
    by_rows(f, (ln.ParallelType.serial, unroll, ln.ParallelType.block_x, unroll), 2)


def twice(f):
    """Let the sum and the result have exponentials of their own, instead of keeping a row."""
    f["e"].compute_at(f["total"], -2, recompute=True)
    f["shifted"].compute_at(f["e"], -1, recompute=True)


def by_vectors(copy, consumers):
    """Let each of the consumers read its own copy of a row, by vectors, into registers."""
    for place, consumer in enumerate(consumers, 1):
        copy.compute_at(consumer, consumer.ndim - 1, recompute=place < len(consumers))
        copy.axis(-1).parallelize(ln.ParallelType.vectorize)
        copy = (copy.clones or [copy])[-1]


@softmax.schedule("gpu_shared")
def gpu_shared(f, threads=256, lanes=None):
    """A block owns a row and keeps it in shared memory: for rows that registers cannot hold.

    [D] is split to [D / lanes / threads, threads, lanes]. The 227 KiB of shared memory on sm_90
    hold a row of 58,000 float32, if exponentials are taken twice instead of kept beside it.
    """
    y, total = f["y"], f["total"]
    y.split(1, lanes or 16 // y.dtype.size)
    y.split(1, threads)
    row = f["x"].cache_after()
    copy = row.cache_after()
    ln.propagate(y)
    y.parallelize({0: ln.ParallelType.grid_x})
    for tensor in (row, f["largest"], total):
        tensor.compute_at(y, 1)
        tensor.parallelize({2: ln.ParallelType.block_x})
    y.parallelize({2: ln.ParallelType.block_x})
    for tensor in (row, y):
        tensor.axis(3).parallelize(ln.ParallelType.vectorize)
    for tensor in (f["largest"], total):
        tensor.axis(3).parallelize(ln.ParallelType.unroll)
    row.memory = ln.SHARED
    row.axis(1).pin()
    twice(f)
    by_vectors(copy, (f["largest"], total, y))
    ln.inline_most()


@softmax.schedule("gpu_async")
def gpu_async(f, rows=8, threads=128, lanes=None, stages=2):
    """A block takes `rows` rows one after another; the next ones are on their way meanwhile.

    Rows lie in shared memory as in "gpu_shared", `stages` of them: threads begin the copies of a
    row, by 16 bytes, `stages` - 1 rows before it is read. Each thread reads what it copied itself,
    so that no barrier is needed but those of the two reductions.
    """
    y, total = f["y"], f["total"]
    y.split(1, lanes or 16 // y.dtype.size)
    y.split(1, threads)
    y.split(0, rows)  # [N / 8, 8, D / 512, 128, 4]
    row = f["x"].cache_after()
    copy = row.cache_after()
    ln.propagate(y)
    y.parallelize({0: ln.ParallelType.grid_x})
    for tensor in (row, f["largest"], total):
        tensor.compute_at(y, 2)
    for tensor in (row, f["largest"], total, y):
        tensor.axis(3).parallelize(ln.ParallelType.block_x)
    for tensor in (row, y):
        tensor.axis(4).parallelize(ln.ParallelType.vectorize)
    for tensor in (f["largest"], total):
        tensor.axis(4).parallelize(ln.ParallelType.unroll)
    row.memory = ln.SHARED
    row.axis(2).pin()
    twice(f)
    by_vectors(copy, (f["largest"], total, y))
    row.move_by("cp.async").circular_buffer(stages)
    ln.inline_most()


@softmax.schedule("cpu")
def cpu(f, lanes=ln.choice(16, 8, 32), chains=ln.choice(4, 2, 1)):
    """Rows go to the cores; `e` keeps a row in the core's cache.

    Both reductions are factored into `chains * lanes` partial ones side by side, as in row_sum.py:
    one step need not wait for the one before. All passes over a row go by vectors of `lanes`.
    """
    y, e = f["y"], f["e"]
    rows = [e]
    for name in ("largest", "total"):
        f[name].split(1, chains * lanes)
        partial = f[name].rfactor(1)
        f[name].split(1, lanes)
        folded = f[name].rfactor(1)
        partial.split(2, lanes)
        rows += [partial, folded]
    for tensor in (e, y):
        tensor.split(1, lanes)
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    for tensor in rows:
        tensor.compute_at(y, 1)
    f["shifted"].compute_at(e, -1)
    ln.inline_most()
    for tensor in (*rows, y):
        tensor.parallelize({1: ln.ParallelType.unswitch, -1: ln.ParallelType.vectorize})


softmax_any = softmax.choose({"D <= 1024": "gpu_warp", "D <= 8192": "gpu", True: "gpu_shared"})
"""A row in the registers of a warp, of a block, or in shared memory, as its length asks for."""


if __name__ == "__main__":
    ln.main()
