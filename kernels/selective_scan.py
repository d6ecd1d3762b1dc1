"""The selective scan of Mamba: a state-space model whose matrices depend on the input.

Each channel carries a vector over the sequence, a row of the state [D, STATES] that belongs to a
sequence of the batch. A step lets each element decay, by a rate of its own times the length of the
step, adds the input, and reads the state. No channel reads another one.

    python kernels/selective_scan.py                # show it, run it, compare it
    python kernels/selective_scan.py dump --stage cuda

Source: Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023.
"""

import numpy as np

import loopnest as ln

STATES = 16  # elements of the state of a channel


def scan_numpy(x, length, rate, into, out, skip, start):
    state = start.astype(np.float64)
    results = []
    for u, dt, b, c in zip(x, length, into, out, strict=True):
        state = np.exp(dt[..., None] * rate) * state + (dt * u)[..., None] * b[:, None, :]
        results.append(np.einsum("bds,bs->bd", state, c) + skip * u)
    return np.array(results).reshape(x.shape)


def channels(tensor):
    """Return a value for each channel along the elements of its state."""
    return ln.broadcast(tensor, (False, False, True))


def elements(tensor):
    """Return a value for each element along the channels of a sequence."""
    return ln.broadcast(tensor, (False, True, False))


@ln.kernel(
    sizes={"T": 256, "B": 2, "D": 256},
    reference=scan_numpy,
    ranges={"length": (0, 1), "rate": (-1, 0)},
)
def selective_scan(f):
    x, length = [f.input(name, ("T", "B", "D"), ln.float32) for name in ("x", "length")]
    rate = f.input("rate", ("D", STATES), ln.float32)
    into, out = [f.input(name, ("T", "B", STATES), ln.float32) for name in ("into", "out")]
    skip = f.input("skip", ("D",), ln.float32)
    start = f.input("start", ("B", "D", STATES), ln.float32)

    def step(state, u, dt, b):
        kept = ln.exp(channels(dt) * rate) * state
        return kept + channels(dt * u) * elements(b)

    state = ln.recur(step, start, over=(x, length, into)).named("state")
    read = ln.sum(state * ln.broadcast(out, (False, False, True, False)), axis=3).named("read")
    f.output(read + x * skip, "y")


@selective_scan.schedule("gpu")
def gpu(f, threads=128):
    """A block owns channels of a sequence, a thread a channel, through all steps.

    Its state lies in registers, in two rooms: that of a step and that of the step before. Steps go
    in pairs, so that which room is meant is known when the kernel is compiled.
    """
    state, y = f["state"], f["y"]
    state.split(0, 2)
    y.split(0, 2)
    y.split(-1, threads)  # [T / 2, 2, B, D / threads, threads]
    state.compute_at(y, 5)
    state.memory = ln.LOCAL
    f.inline_most(replay=True)
    y.parallelize({1: ln.ParallelType.unroll, 2: ln.ParallelType.grid_y})
    y.parallelize({3: ln.ParallelType.grid_x, 4: ln.ParallelType.block_x})
    for tensor in (state, f["read"]):
        tensor.parallelize({-1: ln.ParallelType.unroll})


@selective_scan.schedule("cpu")
def cpu(f, lanes=None):
    """A vector of channels at a time; the state lies in the cache."""
    lanes = lanes or ln.machine().lanes(4)
    state, read, y = f["state"], f["read"], f["y"]
    rates = f["rate"].cache_after()
    rates.reorder({0: 1})  # those of neighbouring channels side by side
    y.split(-1, lanes)
    state.compute_at(y, 3)  # [T, B, D / lanes]
    state.memory = ln.LOCAL
    matrices = [tensor for tensor in f.tensors if tensor.ndim == read.ndim]
    for tensor in matrices:
        tensor.reorder({-1: 3})  # elements outside of channels
    f.inline_most([t for t in f.tensors if t not in (rates, read)], replay=True)
    for tensor in (*matrices, y):
        tensor.parallelize({-1: ln.ParallelType.vectorize})


if __name__ == "__main__":
    ln.main()
