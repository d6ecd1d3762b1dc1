"""Group normalisation of [N, C, S]: each group of channels by its own mean and variance.

    y = (x - mean) / sqrt(variance + eps) * gamma + beta, mean and variance over a group and S

The moments are taken of `x` in the shape [N, groups, C / groups * S]; the result is put back into
[N, C, S], where gamma and beta are those of a channel. Both reshapes are loops that the schedules
share: no copy in another shape is made.

    python kernels/group_norm.py                     # show it, run it, compare it
    python kernels/group_norm.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def group_norm_numpy(x, gamma, beta, groups, eps):
    rows = x.reshape(x.shape[0], groups, x.shape[1] // groups * x.shape[2])
    centered = rows - rows.mean(axis=2, keepdims=True)
    variance = (centered * centered).mean(axis=2, keepdims=True)
    normal = (centered / np.sqrt(variance + eps)).reshape(x.shape)
    return normal * gamma[:, None] + beta[:, None]


@ln.kernel(sizes={"N": 16, "C": 256, "S": 1024}, reference=group_norm_numpy)
def group_norm(f, groups=32, eps=1e-5):
    x = f.input("x", ("N", "C", "S"), ln.float32)
    gamma = f.input("gamma", ("C",), ln.float32)
    beta = f.input("beta", ("C",), ln.float32)
    f.assume(f"C % {groups} == 0")
    rows = ln.reshape(x, (x.shape[0], groups, -1)).named("rows")
    mean = ln.mean(rows, axis=2, keepdims=True)
    centered = (rows - mean).named("centered")
    square = (centered * centered).named("square")
    variance = ln.mean(square, axis=2)
    scale = ln.rsqrt(variance + eps).named("scale")
    normal = centered * ln.broadcast(scale, (False, False, True))
    back = ln.reshape(normal, x.shape).named("back")
    weight, shift = [ln.broadcast(row, (False, True)) for row in (gamma, beta)]
    f.output(back * weight.named("weight") + shift.named("shift"), "y")
    mean.reduction.named("total")
    variance.reduction.named("squares")


def regrouped(f):
    """Give `y` the axes [N, groups, C / groups * S], those of the moments; return it."""
    y = f["y"]
    y.split(1, f["rows"].shape[1], inner=False)
    return y.merge(2)


@group_norm.schedule("gpu")
def gpu(f, lanes=4, parts=4):
    """A block owns a group of channels of an image and keeps it in registers, as in layernorm.py.

    [C / groups * S] is split to [parts, threads, lanes] with two constants. `x` is loaded by
    vectors: the elements of a group are neighbours, and `lanes` of them have one channel.
    """
    f.assume(f"S % {lanes} == 0")
    y = regrouped(f)
    y.split(2, lanes)
    y.split(2, parts, inner=False)  # [N, groups, parts, threads, lanes]
    row = f["x"].cache_after()
    ln.propagate(y)
    y.parallelize({0: ln.ParallelType.grid_x, 1: ln.ParallelType.grid_y})
    tensors = (row, f["rows"], f["total"], f["centered"], f["squares"])
    for tensor in tensors:
        tensor.compute_at(y, 2)
    for tensor in (*tensors, y):
        tensor.axis(3).parallelize(ln.ParallelType.block_x)
    for tensor in (row, y):
        tensor.axis(-1).parallelize(ln.ParallelType.vectorize)
    ln.inline_most()


@group_norm.schedule("cpu")
def cpu(f, lanes=16):
    """Images and groups go to the cores; `centered` keeps a group in the core's cache.

    Both sums are factored into `lanes` partial ones side by side, as in row_sum.py. The result is
    written along S, where gamma and beta stay the same.
    """
    y = f["y"]
    y.split(1, f["rows"].shape[1], inner=False)
    y.merge(0)  # [N * groups, C / groups, S]
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    partials = []
    for name in ("total", "squares"):
        f[name].split(2, lanes)
        partial = f[name].rfactor(2)
        partial.parallelize({2: ln.ParallelType.unswitch, 3: ln.ParallelType.vectorize})
        partials.append(partial)
    for tensor in (*partials, f["centered"]):
        tensor.compute_at(y, 1)
    f["rows"].compute_at(partials[0], 2, recompute=True)
    f.inline_most(replay=True)


if __name__ == "__main__":
    ln.main()
