"""Layer normalisation of each row: y = (x - mean) / sqrt(variance + eps) * gamma + beta.

The variance is that of the centered row, in two passes: as exact as Welford's algorithm, and each
pass is a plain sum. Elements of 16 bits are widened where they are loaded, and results are rounded
once: squares of centered elements soon exceed what float16 holds.
"""

import numpy as np

import loopnest as ln


def layernorm_numpy(x, gamma, beta, eps):
    centered = x - x.mean(axis=1, keepdims=True)
    variance = (centered * centered).mean(axis=1, keepdims=True)
    return centered / np.sqrt(variance + eps) * gamma + beta


@ln.kernel(sizes={"N": 4096, "D": 1024}, reference=layernorm_numpy)
def layernorm(f, dtype=ln.float32, eps=1e-5):
    x = f.input("x", ("N", "D"), dtype)
    gamma = f.input("gamma", ("D",), dtype)
    beta = f.input("beta", ("D",), dtype)
    if dtype is not dtype.compute:
        x = ln.cast(x, dtype.compute).named("wide")
    mean = ln.mean(x, axis=1, keepdims=True)
    centered = (x - mean).named("centered")
    square = (centered * centered).named("square")
    variance = ln.mean(square, axis=1)
    scale = ln.rsqrt(variance + eps).named("scale")  # one root a row
    y = centered * ln.broadcast(scale, (False, True)) * gamma + beta
    f.output(y if dtype is dtype.compute else ln.cast(y, dtype), "y")
    mean.reduction.named("total")
    variance.reduction.named("squares")


def widened(f):
    """Return a row of 16 bits in float32, if there is one: it is kept instead of `x`."""
    return [tensor for tensor in f.tensors if tensor.name == "wide"]


def by_vectors(copy, consumers):
    """Let each of the consumers read its own copy of a row, by vectors, into registers."""
    for place, consumer in enumerate(consumers, 1):
        copy.compute_at(consumer, consumer.ndim - 1, recompute=place < len(consumers))
        copy.axis(-1).parallelize(ln.ParallelType.vectorize)
        copy = (copy.clones or [copy])[-1]


def by_rows(f, place, threads):
    """Compute everything in the rows of `y`, whose threads are its axis `threads`.

    A copy of `x` keeps the row in registers, so that it is read once. Rows begin at axis `place`;
    their last axis goes by vectors.
    """
    y = f["y"]
    row, gamma, beta = [f[name].cache_after() for name in ("x", "gamma", "beta")]
    ln.propagate(y)
    y.axis(0).parallelize(ln.ParallelType.grid_x)
    tensors = (row, *widened(f), f["total"], f["centered"], f["squares"])
    for tensor in tensors:
        tensor.compute_at(y, place)
    for tensor in (*tensors, y):
        tensor.axis(threads).parallelize(ln.ParallelType.block_x)
    for tensor in (row, y):
        tensor.axis(-1).parallelize(ln.ParallelType.vectorize)
    for copy in (gamma, beta):
        by_vectors(copy, (y,))
    ln.inline_most()


@layernorm.schedule("gpu")
def gpu(f, lanes=None, parts=2):
    """A block owns a row and keeps it in registers, as in softmax.py.

    [D] is split to [parts, threads, lanes] with two constants; both sums run over the block.
    """
    y = f["y"]
    y.split(1, lanes or 16 // y.dtype.size)
    y.split(1, parts, inner=False)
    by_rows(f, 1, 2)


@layernorm.schedule("gpu_warp")
def gpu_warp(f, lanes=None, rows=4, parts=None):
    """A warp owns a row and keeps it in registers, a block `rows` of them, as in softmax.py.

    [D] is split to [1, parts, 32, lanes]: for rows of up to `32 * parts * lanes` elements, 1024 by
    default.
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
    y.axis(3).parallelize(ln.ParallelType.unroll)
    by_rows(f, 2, 4)


@layernorm.schedule("gpu_shared")
def gpu_shared(f, threads=256, lanes=None):
    """A block owns a row and keeps it in shared memory: for rows that registers cannot hold.

    `centered` costs a subtraction: the sum of squares and the result each get their own.
    """
    y, total, squares = f["y"], f["total"], f["squares"]
    y.split(1, lanes or 16 // y.dtype.size)
    y.split(1, threads)
    row, gamma, beta = [f[name].cache_after() for name in ("x", "gamma", "beta")]
    copy = row.cache_after()
    ln.propagate(y)
    y.parallelize({0: ln.ParallelType.grid_x})
    for tensor in (row, total, squares):
        tensor.compute_at(y, 1)
    for tensor in (row, total, squares, y):
        tensor.parallelize({2: ln.ParallelType.block_x})
    for tensor in (row, y):
        tensor.axis(3).parallelize(ln.ParallelType.vectorize)
    row.memory = ln.SHARED
    row.axis(1).pin()
    f["centered"].compute_at(squares, -2, recompute=True)
    by_vectors(copy, (total, squares, y))
    for copy in (gamma, beta):
        by_vectors(copy, (y,))
    ln.inline_most()


@layernorm.schedule("gpu_async")
def gpu_async(f, rows=8, threads=128, lanes=None, stages=2):
    """A block takes `rows` rows one after another; the next ones are on their way meanwhile.

    As "gpu_shared", with `stages` rows in shared memory: threads begin the copies of a row, by 16
    bytes, `stages` - 1 rows before it is read, as in softmax.py.
    """
    y, total, squares = f["y"], f["total"], f["squares"]
    y.split(1, lanes or 16 // y.dtype.size)
    y.split(1, threads)
    y.split(0, rows)  # [N / 8, 8, D / 512, 128, 4]
    row, gamma, beta = [f[name].cache_after() for name in ("x", "gamma", "beta")]
    copy = row.cache_after()
    ln.propagate(y)
    y.parallelize({0: ln.ParallelType.grid_x})
    for tensor in (row, total, squares):
        tensor.compute_at(y, 2)
    for tensor in (row, total, squares, y):
        tensor.axis(3).parallelize(ln.ParallelType.block_x)
    for tensor in (row, y):
        tensor.axis(4).parallelize(ln.ParallelType.vectorize)
    row.memory = ln.SHARED
    row.axis(2).pin()
    f["centered"].compute_at(squares, -2, recompute=True)
    by_vectors(copy, (total, squares, y))
    for copy in (gamma, beta):
        by_vectors(copy, (y,))
    row.move_by("cp.async").circular_buffer(stages)
    ln.inline_most()


@layernorm.schedule("cpu")
def cpu(f, lanes=16, chains=4):
    """Rows go to the cores; `centered` keeps a row in the core's cache.

    Both sums are factored into `chains * lanes` partial ones side by side, and all passes over a
    row go by vectors, as in softmax.py.
    """
    y, centered = f["y"], f["centered"]
    partials, rows = [], []
    for name in ("total", "squares"):
        f[name].split(1, chains * lanes)
        partial = f[name].rfactor(1)
        f[name].split(1, lanes)
        partial.split(2, lanes)
        partials.append(partial)
        rows += [partial, f[name].rfactor(1)]
    for tensor in (centered, y):
        tensor.split(1, lanes)
    y.axis(0).parallelize(ln.ParallelType.cpu_parallel)
    for tensor in (*rows, centered):
        tensor.compute_at(y, 1)
    f["square"].compute_at(partials[1], -1)
    f.inline_most(replay=True)
    for tensor in (*rows, centered, y):
        tensor.parallelize({1: ln.ParallelType.unswitch, -1: ln.ParallelType.vectorize})


if __name__ == "__main__":
    ln.main()
