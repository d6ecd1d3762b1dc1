"""A step of an LSTM: four matrix products of one input, and the pointwise cell in one kernel.

`x` holds the step's input and the last hidden state side by side, so K = inputs + H. Of each gate
the weights are an input of their own. The four sums read the same element of x at the same time,
so they can share the loop over k: computing a copy of x inside that loop of one of them takes the
other three along (and refuses to do so where they could not share it).
"""

import numpy as np

import loopnest as ln

GATES = ("i", "f", "g", "o")


def lstm_cell_numpy(x, c, *weights_and_biases):
    weights, biases = weights_and_biases[:4], weights_and_biases[4:]
    i, f, g, o = [x @ w + b for w, b in zip(weights, biases, strict=True)]
    new_c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return new_c, _sigmoid(o) * np.tanh(new_c)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


@ln.kernel(sizes={"B": 64, "K": 1024, "H": 1024}, reference=lstm_cell_numpy)
def lstm_cell(f, dtype=ln.float32):
    x = f.input("x", ("B", "K"), dtype)
    c = f.input("c", ("B", "H"), dtype)
    weights = [f.input(f"w_{gate}", ("K", "H"), dtype) for gate in GATES]
    biases = [f.input(f"b_{gate}", ("H",), dtype) for gate in GATES]
    sums = [ln.matmul(x, w).named(f"sum_{gate}") for gate, w in zip(GATES, weights, strict=True)]
    i, forget, g, o = [s + b for s, b in zip(sums, biases, strict=True)]
    new_c = ln.sigmoid(forget) * c + ln.sigmoid(i) * ln.tanh(g)
    f.output(new_c, "new_c")
    f.output(ln.sigmoid(o) * ln.tanh(new_c), "new_h")


@lstm_cell.schedule("gpu")
def gpu(f, threads=128):
    """A thread owns one element of the cell, and its four sums."""
    h = f["new_h"]
    x = f["x"].cache_after()
    h.split(1, threads)
    h.parallelize(
        {0: ln.ParallelType.grid_y, 1: ln.ParallelType.grid_x, 2: ln.ParallelType.block_x}
    )
    ln.propagate(h)
    ln.inline_most()
