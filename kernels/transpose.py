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
def cpu(f, tile=32):
    """Square tiles pass through a local buffer, so that memory is read and written in rows.

    Without it, one side would touch a new cache line for each element; of a matrix whose rows are
    a power of two apart, all of these lines compete for a few places in the cache.
    """
    y = f["y"]
    block = f["x"].cache_after()
    y.split(0, tile)
    y.split(2, tile)
    y.reorder({1: 2})
    y.parallelize({0: ln.ParallelType.cpu_parallel})
    block.compute_at(y, 2)
    block.reorder([0, 1, 3, 2])


if __name__ == "__main__":
    ln.main()
