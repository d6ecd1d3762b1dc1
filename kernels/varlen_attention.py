"""Attention over sequences of different lengths: y[t] = softmax of t's row of scores, times v.

The rows of q, k and v of all sequences lie one behind the other; `start` says where each sequence
begins. A row sees the keys of its own sequence alone. The math has one softmax for each sequence
and row, summed over the sequences under the mask of their rows. The loops over rows and keys begin
and end where the sequences do: the cost is that of the squares of the lengths, not that of all
rows times all keys.

The scores of a row are computed twice, for the largest one and for the weights, so that no memory
grows with the length of a sequence.

    python kernels/varlen_attention.py               # show it, run it, compare it
    python kernels/varlen_attention.py dump --stage cuda
"""

import math
from itertools import pairwise

import numpy as np

import loopnest as ln

PT = ln.ParallelType


def varlen_numpy(q, k, v, start):
    y = np.zeros((q.shape[0], v.shape[1]))
    for first, last in pairwise(start):
        if first < last:
            rows = slice(first, last)
            scores = q[rows].astype(np.float64) @ k[rows].T / math.sqrt(q.shape[1])
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            y[rows] = weights @ v[rows] / weights.sum(axis=1, keepdims=True)
    return y


def scores_of(q, k, name):
    """Return the scores of all rows and keys, [1, T, T]."""
    scale = 1 / math.sqrt(q.sizes[1].value)
    left, right = ln.broadcast(q, (False, True, False)), ln.broadcast(k, (True, False, False))
    scores = ln.sum(left * right, axis=2).named(name)
    return ln.broadcast(scores * scale, (True, False, False))


@ln.kernel(sizes={"T": 2048, "P": 17}, reference=varlen_numpy)
def varlen_attention(f, width=64):
    q, k, v = [f.input(name, ("T", width), ln.float32) for name in "qkv"]
    start = f.input("start", ("P",), ln.int32)

    def own(new):
        """Return the mask of rows or keys, with new axes; each use has one of its own."""
        return ln.broadcast(ln.segments(start, "T").mask, new)  # of [B, T]

    key, seen = (False, True, False), (False, True, False, True)
    most = ln.max(ln.where(own(key), scores_of(q, k, "score"), float("-inf")), axis=2).named("most")
    shifted = scores_of(q, k, "again") - ln.broadcast(most, (False, False, True))
    weight = ln.exp(shifted).named("weight")
    total = ln.sum(ln.where(own(key), weight, 0.0), axis=2).named("total")
    weighed = ln.broadcast(weight, (False, False, False, True)) * v
    of_keys = ln.sum(ln.where(own(seen), weighed, 0.0), axis=2).named("of_keys")
    of_row = of_keys / ln.broadcast(total, (False, False, True))
    f.output(ln.sum(ln.where(own((False, False, True)), of_row, 0.0), axis=0), "y")


def fold_of_keys(f, result, at):
    """Let one loop over keys fold the weights and the values, inside of `at` loops of `result`."""
    for name in ("most", "total", "of_keys"):
        f[name].compute_at(result, at)
    f["weight"].compute_at(f["of_keys"], at + 1)
    f["score"].compute_at(f["most"], at + 1)
    f["again"].compute_at(f["weight"], at + 1)


def side_by_side(score, lanes):
    """Let `lanes` sums make a score; return them: [T, T, width / lanes, lanes]."""
    score.split(-1, lanes)
    return score.rfactor([-2])


@varlen_attention.schedule("gpu")
def gpu(f, threads=64):
    """A thread owns a row: what it has folded of the values is in registers."""
    y = f["y"]
    result = y.cache_before()
    y.split(0, threads)
    result.compute_at(y, 2)  # [T / threads, threads, B, width]
    y.parallelize({0: PT.grid_x, 1: PT.block_x})
    fold_of_keys(f, result, 3)
    f.inline_most(replay=True)


@varlen_attention.schedule("cpu")
def cpu(f, block=64, lanes=16):
    """A core owns `block` rows, and goes through the sequences that have any of them.

    A score is `lanes` sums side by side, added at the end.
    """
    y = f["y"]
    parts = [side_by_side(f[name], lanes) for name in ("score", "again")]
    result = y.cache_before()
    y.split(0, block)
    result.compute_at(y, 1)
    result.reorder({2: 1, 1: 2})  # [T / block, B, block, width]
    y.parallelize({0: PT.cpu_parallel})
    fold_of_keys(f, result, 3)
    for part in parts:
        (score,) = part.consumers
        part.compute_at(score, 3)
        part.axis(-1).parallelize(PT.vectorize)
        (product,) = part.producers
        product.compute_at(part, -2)
        product.axis(-1).parallelize(PT.vectorize)
    f.inline_most(replay=True)


if __name__ == "__main__":
    ln.main()
