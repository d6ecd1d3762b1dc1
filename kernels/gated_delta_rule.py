"""The gated delta rule: linear attention that corrects what its memory has for a key.

For each head a matrix `memory` [K, V] is carried over the sequence. A step lets it decay, looks up
what it has for the key, moves that towards the value by a rate, and reads it by the query. No
column of the memory reads another one.

    python kernels/gated_delta_rule.py                # show it, run it, compare it
    python kernels/gated_delta_rule.py dump --stage cuda

Source: Yang, Kautz and Hatamizadeh, "Gated delta networks", 2024.
"""

import numpy as np

import loopnest as ln

KEYS = 64  # elements of a key: rows of a memory


def delta_numpy(query, key, value, decay, rate, start):
    memory = start.astype(np.float64)
    results = []
    for q, k, v, a, b in zip(query, key, value, decay, rate, strict=True):
        memory = memory * a[:, None, None]
        wrong = v - np.einsum("hk,hkv->hv", k, memory)
        memory = memory + np.einsum("hk,hv->hkv", k, wrong * b[:, None])
        results.append(np.einsum("hk,hkv->hv", q, memory))
    return np.array(results).reshape(value.shape)


def rows(vector):
    """Return a vector of each head along the rows of its memory."""
    return ln.broadcast(vector, (False, False, True))


def step(memory, k, v, a, b):
    """Return what a memory becomes: it decays, and what it has for a key moves towards a value."""
    kept = memory.named("before") * ln.broadcast(a, (False, True, True))
    found = ln.sum(rows(k) * kept, axis=1).named("found")
    wrong = ((v - found) * ln.broadcast(b, (False, True))).named("wrong")
    return kept.named("kept") + rows(k) * ln.broadcast(wrong, (False, True, False))


@ln.kernel(sizes={"T": 128, "H": 16, "V": 64}, reference=delta_numpy)
def gated_delta_rule(f):
    query, key = [f.input(name, ("T", "H", KEYS), ln.float32) for name in ("query", "key")]
    value = f.input("value", ("T", "H", "V"), ln.float32)
    decay, rate = [f.input(name, ("T", "H"), ln.float32) for name in ("decay", "rate")]
    start = f.input("start", ("H", KEYS, "V"), ln.float32)
    memory = ln.recur(step, start, over=(key, value, decay, rate)).named("memory")
    asked = ln.broadcast(query, (False, False, False, True))
    f.output(ln.sum(asked * memory, axis=2), "result")


@gated_delta_rule.schedule("gpu")
def gpu(f, threads=64):
    """A block owns a head and a tile of columns, a thread a column, through all steps.

    The column lies in registers, in two rooms: that of a step and that of the step before. Steps go
    in pairs, so that which room is meant is known when the kernel is compiled.
    """
    memory, result = f["memory"], f["result"]
    memory.split(0, 2)
    result.split(0, 2)
    result.split(-1, threads)
    result.reorder({3: -1})  # [T / 2, 2, H, V / threads, threads, K]
    f["kept"].compute_at(result, 5)
    memory.memory = ln.LOCAL
    f.inline_most(replay=True)
    result.parallelize({1: ln.ParallelType.unroll, 2: ln.ParallelType.grid_x})
    result.parallelize({3: ln.ParallelType.grid_y, 4: ln.ParallelType.block_x})
    for tensor in f.tensors:
        if tensor.ndim == result.ndim:
            tensor.parallelize({-1: ln.ParallelType.unroll})


@gated_delta_rule.schedule("cpu")
def cpu(f, parts=4, lanes=None):
    """A head after another, `parts` vectors of columns at a time; the memory lies in the cache."""
    lanes = lanes or ln.machine().lanes(4)
    memory, result = f["memory"], f["result"]
    total = result.cache_before()
    result.split(-1, lanes)
    result.split(-2, parts)
    f["kept"].compute_at(result, 3)  # [T, H, V / columns, parts, lanes]
    memory.memory = ln.LOCAL
    matrices = [tensor for tensor in f.tensors if tensor.ndim == total.ndim]
    for tensor in matrices:
        tensor.reorder({-1: 3})  # keys outside of columns
    f.inline_most([t for t in f.tensors if t not in (f["wrong"], total)], replay=True)
    for tensor in (*matrices, f["wrong"], result):
        tensor.parallelize({-2: ln.ParallelType.unroll, -1: ln.ParallelType.vectorize})


if __name__ == "__main__":
    ln.main()
