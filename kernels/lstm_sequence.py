"""An LSTM over a sequence: a loop that carries the hidden state and the cell.

The products of the inputs with their weights do not read the state: they are made of all steps at
once, outside of the loop. A step multiplies the hidden state by the recurrent weights of four
gates, and computes the cell.

    python kernels/lstm_sequence.py                  # show it, run it, compare it
    python kernels/lstm_sequence.py dump --stage cuda
"""

import numpy as np

import loopnest as ln

GATES = ("i", "f", "g", "o")  # input gate, forget gate, candidate, output gate


def lstm_numpy(x, h, c, *arrays):
    inner, weights, biases = arrays[:4], arrays[4:8], arrays[8:]
    states = []
    for row in x.astype(np.float64):
        pairs = zip(inner, weights, biases, strict=True)
        i, f, g, o = [row @ u + h @ w + b for u, w, b in pairs]
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.array(states).reshape(len(x), *np.shape(h))


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


@ln.kernel(sizes={"T": 32, "B": 16, "K": 256, "H": 256}, reference=lstm_numpy)
def lstm_sequence(f):
    x = f.input("x", ("T", "B", "K"), ln.float32)
    h, c = [f.input(name, ("B", "H"), ln.float32) for name in ("h", "c")]
    inner = [f.input(f"u_{gate}", ("K", "H"), ln.float32) for gate in GATES]
    weights = [f.input(f"w_{gate}", ("H", "H"), ln.float32) for gate in GATES]
    biases = [f.input(f"b_{gate}", ("H",), ln.float32) for gate in GATES]
    sums = [ln.matmul(x, u).named(f"in_{gate}") for gate, u in zip(GATES, inner, strict=True)]

    def step(state, *parts):
        h, c = state
        gates = []
        for gate, part, w, b in zip(GATES, parts, weights, biases, strict=True):
            gates.append(ln.matmul(h, w).named(f"sum_{gate}") + part + b)
        i, forget, g, o = gates
        new = (ln.sigmoid(forget) * c + ln.sigmoid(i) * ln.tanh(g)).named("cell")
        return ln.sigmoid(o) * ln.tanh(new), new

    states, _ = ln.recur(step, (h, c), over=sums)
    f.output(states, "states")


def cells_of(f):
    """Return the cells after each step, a state beside the hidden one."""
    (cells,) = [t for t in f["cell"].consumers if t.memory is ln.GLOBAL]
    return cells


@lstm_sequence.schedule("gpu")
def gpu(f, threads=128):
    """A block owns a row of the batch, its threads columns of the state.

    All threads of a block meet once a step; blocks go on without each other. The weights are read
    through the caches by neighbouring threads side by side.
    """
    for tensor in (cells_of(f), f["states"]):
        tensor.split(2, threads)
        tensor.parallelize({1: ln.ParallelType.grid_x, 3: ln.ParallelType.block_x})
    f.inline_most(replay=True)


@lstm_sequence.schedule("cpu")
def cpu(f, rows=8, parts=2, lanes=None):
    """A tile of `rows` rows by `parts` vectors of columns at a time, its sums in registers."""
    lanes = lanes or ln.machine().lanes(4)
    states = f["states"]
    for tensor in (cells_of(f), states):
        tensor.split(2, lanes)
        tensor.split(2, parts)
        tensor.split(1, rows)
        tensor.reorder([0, 3, 1, 2, 4, 5])  # [T, H / columns, B / rows, rows, parts, lanes]
    kept = []
    for name in [f"{kind}_{gate}" for gate in GATES for kind in ("in", "sum")]:
        total = f[name]
        (product,) = total.producers
        total.compute_at(states, 3)
        total.reorder({-1: 3})  # [..., K, rows, parts, lanes]
        total.parallelize({3: ln.ParallelType.unswitch, 4: ln.ParallelType.unroll})
        total.parallelize({5: ln.ParallelType.unroll, 6: ln.ParallelType.vectorize})
        product.compute_at(total, 6)
        product.axis(-1).parallelize(ln.ParallelType.vectorize)
        product.producers[0].compute_at(product, 6)
        kept.append(total)
    f.inline_most([t for t in f.tensors if t not in kept], replay=True)


if __name__ == "__main__":
    ln.main()
