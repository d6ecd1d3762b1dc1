"""A bias and a GELU: y = gelu(x + bias), the epilogue of a linear layer.

The whole kernel is pointwise, so its schedule is about two things only: every tensor in between
lives in a register of the innermost loop (`inline_most`), and the loops of `y` fit the machine.
Elements of 16 bits are widened where they are loaded, and rounded once.

    python kernels/bias_gelu.py                      # show it, run it, compare it
    python kernels/bias_gelu.py dump --stage cuda
"""

import math

import numpy as np

import loopnest as ln

_erf = np.frompyfunc(math.erf, 1, 1)


def bias_gelu_numpy(x, bias):
    h = x + bias
    return 0.5 * h * (1 + _erf(h * 2**-0.5).astype(h.dtype))


@ln.kernel(sizes={"N": 4096, "D": 1024}, reference=bias_gelu_numpy)
def bias_gelu(f, dtype=ln.float32):
    x = f.input("x", ("N", "D"), dtype)
    bias = f.input("bias", ("D",), dtype)
    if dtype is not dtype.compute:
        x, bias = [ln.cast(t, dtype.compute) for t in (x, bias)]
    y = ln.gelu(x + bias)
    f.output(y if dtype is dtype.compute else ln.cast(y, dtype), "y")


@bias_gelu.schedule("gpu")
def gpu(f, threads=128, lanes=None):
    """A block takes `threads * lanes` neighbours of a row; a thread takes `lanes`, of 16 bytes.

    [N, D] is split to [N, D / lanes / threads, threads, lanes]. `propagate` carries the splits to
    the tensors before `y`, so that `inline_most` finds loops that correspond; it stops at the
    vectorized axis, and so a thread keeps its `lanes` intermediate values in registers. The copies
    of the inputs are what is loaded as vectors.
    """
    y = f["y"]
    copies = [f[name].cache_after() for name in ("x", "bias")]
    y.split(1, lanes or 16 // y.dtype.size)
    y.split(1, threads)
    y.parallelize(
        {
            0: ln.ParallelType.grid_x,
            1: ln.ParallelType.grid_y,
            2: ln.ParallelType.block_x,
            3: ln.ParallelType.vectorize,
        }
    )
    for copy in copies:
        copy.compute_at(y, 3)
        copy.axis(-1).parallelize(ln.ParallelType.vectorize)
    f.inline_most(replay=True)


@bias_gelu.schedule("cpu")
def cpu(f, lanes=ln.choice(16, 8, 32, 64)):
    """Rows go to the cores; a row goes by vectors, whole cache lines of the result at a time.

    A result larger than the caches is then stored past them.
    """
    y = f["y"]
    y.split(1, lanes)
    f.inline_most(replay=True)
    y.parallelize(
        {
            0: ln.ParallelType.cpu_parallel,
            1: ln.ParallelType.unswitch,
            2: ln.ParallelType.vectorize,
        }
    )


if __name__ == "__main__":
    ln.main()
