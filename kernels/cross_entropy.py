"""The cross-entropy of each row of logits against a class: log(sum(exp(x))) - x[class].

There is no gather: the logit of the class is the sum of the row under a mask, which costs nothing
beside the row itself. It is summed together with the exponentials, by a reducer of two sums, so
that threads meet once for both. The largest logit is subtracted before exponentials are taken.
Logits of 16 bits are widened where they are loaded: nothing in between is rounded to 16 bits.

    python kernels/cross_entropy.py                  # show it, run it, compare it
    python kernels/cross_entropy.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def cross_entropy_numpy(x, label):
    x = x.astype(np.float64)
    largest = x.max(axis=1, initial=-np.inf)
    total = np.exp(x - largest[:, None]).sum(axis=1)
    chosen = np.where(np.arange(x.shape[1]) == label[:, None], x, 0).sum(axis=1)
    return np.log(total) + largest - chosen


BOTH = ln.Reducer((0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1]), "two_sums")
"""Two sums side by side."""


@ln.kernel(sizes={"N": 4096, "C": 1024}, reference=cross_entropy_numpy, ranges={"label": (0, 8)})
def cross_entropy(f, dtype=ln.float32):
    x = f.input("x", ("N", "C"), dtype)
    if dtype is not dtype.compute:
        x = ln.cast(x, dtype.compute).named("wide")
    label = f.input("label", ("N",), ln.int32)
    largest = ln.max(x, axis=1, keepdims=True)
    largest.reduction.named("largest")
    e = ln.exp((x - largest).named("shifted")).named("e")
    numbers = ln.iota("C", dtype=ln.int32).named("numbers")
    classes = ln.broadcast(numbers, (True, False)).named("classes")
    mine = ln.eq(classes, ln.broadcast(label, (False, True))).named("mine")
    masked = ln.where(mine, x, 0.0).named("masked")
    total, chosen = ln.reduce(BOTH, (e, masked), axis=1)
    total.named("total")
    chosen.named("chosen")
    loss = ln.log(total) + largest.reduction - chosen
    f.output(loss if dtype is dtype.compute else ln.cast(loss, dtype), "loss")


@cross_entropy.schedule("gpu")
def gpu(f, lanes=None, parts=2):
    """A block owns a row and keeps it in registers; its threads meet twice.

    [C] is split to [parts, threads, lanes] with two constants, as in softmax.py.
    """
    loss = f["loss"]
    row = f["x"].cache_after()
    loss.parallelize({0: ln.ParallelType.grid_x})
    wide = [t for t in f.tensors if t.name == "wide"]  # of logits of 16 bits
    for tensor in (row, *wide, f["largest"], f["total"]):
        tensor.compute_at(loss, 1)
        tensor.split(1, lanes or 16 // row.dtype.size)
        tensor.split(1, parts, inner=False)
        tensor.axis(2).parallelize(ln.ParallelType.block_x)
    row.axis(3).parallelize(ln.ParallelType.vectorize)
    for read_once in (f["mine"].producers[1], f["shifted"].producers[1]):
        read_once.compute_at(loss, 1)
    f.inline_most(replay=True)


@cross_entropy.schedule("cpu")
def cpu(f, lanes=16):
    """Rows go to the cores; the sums are factored into `lanes` partial ones side by side."""
    loss = f["loss"]
    partials = []
    for name in ("largest", "total"):
        f[name].split(1, lanes)
        partial = f[name].rfactor(1)
        partial.parallelize({1: ln.ParallelType.unswitch, 2: ln.ParallelType.vectorize})
        partials.append(partial)
    loss.parallelize({0: ln.ParallelType.cpu_parallel})
    for tensor in partials:
        tensor.compute_at(loss, 1)
    for name in ("e", "masked"):
        f[name].compute_at(partials[1], 2)
    ln.inline_most()


if __name__ == "__main__":
    ln.main()
