"""The transpose of a matrix: y[d, n] = x[n, d]."""

import loopnest as ln


def transpose_numpy(x):
    return x.T.copy()


@ln.kernel(sizes={"N": 2048, "D": 2048}, reference=transpose_numpy)
def transpose(f, dtype=ln.float32):
    x = f.input("x", ("N", "D"), dtype)
    f.output(ln.permute(x, (1, 0)), "y")


@transpose.schedule("gpu")
def gpu(f, rows=8, columns=32):
    """A thread moves an element; the threads of a warp write neighbours and read far and wide."""
    y = f["y"]
    y.split(0, rows)
    y.split(2, columns)
    y.reorder({1: 2})
    y.parallelize(
        {
            0: ln.ParallelType.grid_y,
            1: ln.ParallelType.grid_x,
            2: ln.ParallelType.block_y,
            3: ln.ParallelType.block_x,
        }
    )


@transpose.schedule("cpu")
def cpu(f, rows=16, columns=128):
    """Tiles of `rows` x `columns` elements of x pass through a local buffer.

    A tile is read in pieces of `columns` neighbours and written in pieces of `rows` neighbours: 16
    floats are a cache line. Without the buffer one side would touch a line for each element, and
    where rows lie a power of two apart all these lines compete for the same few places in the
    cache. `unswitch` tests once a tile whether it is whole.
    """
    y = f["y"]
    block = f["x"].cache_after()
    y.split(1, rows)
    y.split(0, columns)
    y.reorder({1: 2})
    y.parallelize({0: ln.ParallelType.cpu_parallel, 2: ln.ParallelType.unswitch})
    block.compute_at(y, 2)
    block.axis(2).parallelize(ln.ParallelType.unswitch)


if __name__ == "__main__":
    ln.main()
