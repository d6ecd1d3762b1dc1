"""A step of an LSTM: four matrix products of one input, and the pointwise cell, in one kernel.

`x` holds the step's input and the last hidden state side by side, so K = inputs + H. The weights
and the bias of each gate are inputs of their own.

    python kernels/lstm_cell.py                      # show it, run it, compare it
    python kernels/lstm_cell.py dump --stage cuda
"""

import numpy as np

import loopnest as ln

GATES = ("i", "f", "g", "o")  # input gate, forget gate, candidate, output gate


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
    wide = dtype.compute
    pairs = zip(GATES, weights, strict=True)
    sums = [ln.matmul(x, w, dtype=wide).named(f"sum_{gate}") for gate, w in pairs]
    i, forget, g, o = [total + bias for total, bias in zip(sums, biases, strict=True)]
    new_c = ln.sigmoid(forget) * c + ln.sigmoid(i) * ln.tanh(g)
    new_h = ln.sigmoid(o) * ln.tanh(new_c)
    for new, name in ((new_c, "new_c"), (new_h, "new_h")):
        f.output(new if dtype is wide else ln.cast(new, dtype), name)


@lstm_cell.schedule("gpu")
def gpu(f, threads=32, sums=16, parts=16):
    """A thread owns `sums` elements of each product, and a part of their sums over k.

    Those are 16 rows of one column, or 8 rows of two where elements have 16 bits: a warp reads 128
    bytes of a row of weights, and each weight is used for all rows. `x` is read along k, the same
    in all threads of a warp, by 8 bytes, as registers allow. All four products share one loop over
    k; what makes them share it is the copy of `x`: all four read it. So few threads own all of the
    cell that the `parts` warps of a block share k among them. They leave their parts in shared
    memory, those of neighbours side by side, and then each warp adds up a row of the cell and
    computes it. That takes 128 KiB of a block's memory; with 8 `parts` it is half.
    """
    h = f["new_h"]
    size = h.dtype.size
    columns, lanes = max(4 // size, 1), 8 // size
    x = f["x"].cache_after()
    state = f["new_c"]
    if state.consumers:
        state.cache_fork()  # the state stays in registers; the output is a copy
    h.split(1, columns)
    h.split(1, threads)
    h.split(0, sums // columns)
    h.reorder({1: 3})  # [B / 16, H / 32, 32, 16, 1]
    h.parallelize(
        {
            0: ln.ParallelType.grid_y,
            1: ln.ParallelType.grid_x,
            2: ln.ParallelType.block_x,
            3: ln.ParallelType.block_y,
        }
    )
    ln.propagate(h)
    for gate in GATES:
        total = f[f"sum_{gate}"]
        total.split(-1, lanes)
        total.split(-2, parts)
        part = total.rfactor([5, 7])
        part.memory = ln.SHARED
        part.reorder({6: 3, 5: 4, 7: 5, 3: 6, 4: 7})  # [B / 16, H / 32, 32, 16, K / 2 / 16, 2, ...]
        part.compute_at(h, 3)
        part.set_allocation(order=[0, 1, 3, 4, 5, 6, 7, 2])
        part.parallelize(
            {3: ln.ParallelType.block_y, 5: ln.ParallelType.unroll, 6: ln.ParallelType.unroll}
        )
        total.axis(-1).parallelize(ln.ParallelType.unroll)
        (product,) = part.producers
        left, right = product.producers
        product.compute_at(part, -1)
        left.compute_at(product, -1)
        right.compute_at(part, 6)
        right.axis(6).pin()
        if columns > 1:
            weights = f[f"w_{gate}"].cache_after()
            weights.split(1, columns)
            weights.split(1, threads)
            weights.split(0, lanes)
            weights.split(0, parts)
            weights.reorder([3, 4, 1, 0, 2, 5])  # [H / 64, 32, 16, K / 8 / 16, 8, 2]
            weights.axis(-1).parallelize(ln.ParallelType.vectorize)
    x.split(2, lanes)
    x.split(2, parts)
    x.reorder({3: 1, 2: 2, 1: 3})  # [B / 16, 16, K / 2 / 16, 16, 2]
    x.axis(-1).parallelize(ln.ParallelType.vectorize)
    ln.inline_most()


@lstm_cell.schedule("cpu")
def cpu(f, rows=6, columns=32):
    """Four matrix products as in gemm.py, whose tiles of sums meet in the tile of the cell.

    Each product has a loop over k of its own here: four tiles at once would not fit the registers.
    """
    h = f["new_h"]
    h.split(1, columns)
    h.split(0, rows)
    h.reorder({2: 0})  # [H / 32, B / 6, 6, 32]
    h.parallelize({0: ln.ParallelType.cpu_parallel})
    for gate in GATES:
        total = f[f"sum_{gate}"]
        (product,) = total.producers
        right = product.producers[1]
        right.compute_at(h, 1)
        right.reorder({-1: 1})  # [H / 32, K, 1, 32]: the columns of the weights, packed
        total.compute_at(h, 2)
        total.reorder({-1: 2})  # [H / 32, B / 6, K, 6, 32]
        total.parallelize({2: ln.ParallelType.unswitch, 3: ln.ParallelType.unroll})
        product.compute_at(total, -1)
    f.inline_most(replay=True)


if __name__ == "__main__":
    ln.main()
