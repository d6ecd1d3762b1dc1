"""Gradients of layer normalisation, for x, gamma and beta, in one pass over the rows.

With n = (x - mean) / deviation, which the forward pass leaves as `mean` and `scale` of each row,
and w = g * gamma:

    dx = (w - mean(w) - n * mean(w * n)) * scale
    dgamma = sum of g * n over the rows,  dbeta = sum of g over the rows

The two sums over rows are partial sums of groups of rows first, added in one order at the end: so
results have the same bits each time, which atomic additions would not give.

    python kernels/layernorm_backward.py             # show it, run it, compare it
    python kernels/layernorm_backward.py dump --stage cuda
"""

import loopnest as ln


def layernorm_backward_numpy(x, g, gamma, mean, scale):
    normal = (x - mean[:, None]) * scale[:, None]
    weighted = g * gamma
    rest = weighted.mean(axis=1, keepdims=True)
    rest = rest + normal * (weighted * normal).mean(axis=1, keepdims=True)
    return (weighted - rest) * scale[:, None], (g * normal).sum(axis=0), g.sum(axis=0)


@ln.kernel(sizes={"N": 4096, "D": 1024}, reference=layernorm_backward_numpy)
def layernorm_backward(f, dtype=ln.float32):
    x, g = [f.input(name, ("N", "D"), dtype) for name in ("x", "g")]
    gamma = f.input("gamma", ("D",), dtype)
    mean, scale = [f.input(name, ("N",), dtype.compute) for name in ("mean", "scale")]
    if dtype is not dtype.compute:
        x, g = [ln.cast(t, dtype.compute).named(f"wide_{t.name}") for t in (x, g)]
    mean, scale = [ln.broadcast(t, (False, True)) for t in (mean, scale)]
    normal = ((x - mean) * scale).named("normal")
    weighted = (g * gamma).named("weighted")
    first = ln.mean(weighted, axis=1, keepdims=True)
    second = ln.mean(weighted * normal, axis=1, keepdims=True)
    first.reduction.named("first")
    second.reduction.named("second")
    dx = (weighted - first - normal * second) * scale
    dgamma = ln.sum(g * normal, axis=0)
    dbeta = ln.sum(g, axis=0)
    f.output(dx if dtype is dtype.compute else ln.cast(dx, dtype), "dx")
    f.output(dgamma, "dgamma")  # float32 for rows of 16 bits too, as optimisers keep them
    f.output(dbeta, "dbeta")


def wide(f):
    """Return rows of 16 bits in float32, if there are any: they are kept instead of these."""
    return [tensor for tensor in f.tensors if tensor.name in ("wide_x", "wide_g")]


@layernorm_backward.schedule("gpu")
def gpu(f, rows=32, columns=None, lanes=None):
    """A block goes through `rows` rows; a thread owns columns, and keeps their sums.

    [N, D] is split to [N / rows, rows, columns, threads, lanes]. A row is read once, for the two
    sums over it, its result, and the sums over rows, which blocks leave in memory: the last one
    that is done adds them up, in their order.
    """
    dx, block = f["dx"], ln.ParallelType.block_x
    lanes = lanes or 16 // dx.dtype.size
    outputs = [f["dgamma"], f["dbeta"]]
    sums = [tensor.cache_before() for tensor in outputs]
    copies = [f[name].cache_after() for name in ("x", "g")]
    gamma = f["gamma"].cache_after()
    dx.split(1, lanes)
    dx.split(1, columns or dx.dtype.size // 2, inner=False)
    dx.split(0, rows)
    ln.propagate(dx)
    kept = [*copies, *wide(f), f["normal"], f["weighted"], f["first"], f["second"]]
    for tensor in kept:
        tensor.compute_at(dx, 2)
    for tensor in (*kept, dx, *sums):
        tensor.axis(3).parallelize(block)
    for tensor in outputs:
        tensor.axis(1).parallelize(block)
    for tensor in (*copies, dx, *outputs):
        tensor.axis(-1).parallelize(ln.ParallelType.vectorize)
    gamma.compute_at(f["weighted"], 4)
    gamma.axis(-1).parallelize(ln.ParallelType.vectorize)
    dx.axis(0).parallelize(ln.ParallelType.grid_x)
    ln.inline_most()
    for tensor in sums:
        tensor.parallelize({2: ln.ParallelType.unroll, 4: ln.ParallelType.unroll})


@layernorm_backward.schedule("cpu")
def cpu(f, rows=64, lanes=16):
    """A core goes through `rows` rows, and leaves their sums in memory; these are added at the end.

    `normal` and `weighted` keep a row in the core's cache. The sums over a row are `lanes` partial
    ones side by side, as in row_sum.py.
    """
    dx, vector = f["dx"], ln.ParallelType.vectorize
    f["g"].cache_after()  # what reads it shares the loop over rows with what reads the copy
    partials = []
    for name in ("first", "second"):
        f[name].split(1, lanes)
        partials.append(f[name].rfactor(1))
    dx.split(0, rows)
    columns = []
    for tensor in (f["dgamma"], f["dbeta"]):
        tensor.split(0, rows)
        columns.append(tensor.rfactor(1))
        columns[-1].memory = ln.GLOBAL
    dx.parallelize({0: ln.ParallelType.cpu_parallel})
    ln.propagate(dx, 2)
    for tensor in partials:
        tensor.axis(-1).parallelize(vector)
    ln.inline_most([tensor for tensor in f.tensors if tensor.memory is ln.LOCAL])


if __name__ == "__main__":
    ln.main()
