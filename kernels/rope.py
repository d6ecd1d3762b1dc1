"""Rotary position embedding: the two halves of each head turned by the angle of its position.

    y[:half] = x[:half] * cos - x[half:] * sin
    y[half:] = x[half:] * cos + x[:half] * sin

A head of [N, H, head] is two rows of half its width: `x` is reshaped to [N, H, 2, half], and both
results, stacked, are put back. cos and sin are tables of [N, half].

    python kernels/rope.py                           # show it, run it, compare it
    python kernels/rope.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def rope_numpy(x, cos, sin):
    first, second = np.split(x, 2, axis=2)
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2)


@ln.kernel(sizes={"N": 2048, "H": 32}, reference=rope_numpy)
def rope(f, head=128, dtype=ln.float32):
    half = head // 2
    x = f.input("x", ("N", "H", head), dtype)
    cos = f.input("cos", ("N", half), dtype)
    sin = f.input("sin", ("N", half), dtype)
    halves = ln.reshape(x, (*x.shape[:2], 2, half)).named("halves")
    first, second = halves[:, :, 0], halves[:, :, 1]
    cos, sin = [ln.broadcast(table, (False, True, False)) for table in (cos, sin)]
    turned = [first * cos - second * sin, second * cos + first * sin]
    both = ln.stack(turned, axis=2).named("both")
    f.output(ln.reshape(both, x.shape), "y")


@rope.schedule("gpu")
def gpu(f, heads=8, lanes=None):
    """A thread turns `lanes` neighbours of both halves; a block takes `heads` heads of a position.

    [N, H, head] is split to [N, H / heads, heads, 2, half / lanes, lanes]; the loop over the two
    halves lies inside of the threads, so that all of a pair is loaded once.
    """
    y = f["y"]
    half = f["both"].shape[3]
    y.split(2, half)  # [N, H, 2, half]
    y.split(3, lanes or 16 // y.dtype.size)
    y.split(1, heads)  # [N, H / heads, heads, 2, half / lanes, lanes]
    y.reorder({3: 4})
    copies = [f[name].cache_after() for name in ("x", "cos", "sin")]
    ln.propagate(y)
    y.parallelize(
        {
            0: ln.ParallelType.grid_x,
            1: ln.ParallelType.grid_y,
            2: ln.ParallelType.block_y,
            3: ln.ParallelType.block_x,
            5: ln.ParallelType.vectorize,
        }
    )
    for copy in copies:
        copy.compute_at(y, 4)
        if copy.ndim > 5:  # x: each half by vectors
            copy.reorder({4: 5})
        copy.axis(-1).parallelize(ln.ParallelType.vectorize)
    ln.inline_most()


@rope.schedule("cpu")
def cpu(f):
    """Positions go to the cores; the loop over half a head becomes vector code."""
    y = f["y"]
    y.split(2, f["both"].shape[3])
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    ln.propagate(y)
    ln.inline_most()


if __name__ == "__main__":
    ln.main()
