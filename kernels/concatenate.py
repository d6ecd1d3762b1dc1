"""Three matrices beside each other: y = [a | b | c], row by row.

Which matrix an element comes from depends on its column. A vector of columns comes from one alone
where the vector divides all three widths; that is asked of each launch, and where it does not hold
another variant of the same schedule goes element by element.

    python kernels/concatenate.py                    # show it, run it, compare it
    python kernels/concatenate.py dump --stage cuda
"""

import numpy as np

import loopnest as ln


def concatenate_numpy(a, b, c):
    return np.concatenate([a, b, c], axis=1)


@ln.kernel(sizes={"N": 4096, "D": 1024, "E": 256, "C": 512}, reference=concatenate_numpy)
def concatenate(f, dtype=ln.float32):
    parts = [f.input(n, ("N", width), dtype) for n, width in zip("abc", "DEC", strict=True)]
    f.output(ln.concatenate(parts, axis=1), "y")


def pieces(f, place):
    """Copy what a vector of `y` takes of each matrix to registers, where there is any of it."""
    for name in "abc":
        part = f[name].cache_after()
        part.compute_at(f["y"], place)
        part.axis(-1).parallelize(ln.ParallelType.vectorize)


@concatenate.schedule("gpu")
def gpu(f, threads=128, lanes=None):
    """A block copies a row, each thread vectors of it; each is loaded from one matrix."""
    y = f["y"]
    y.split(1, lanes or 16 // y.dtype.size)
    y.split(1, threads)  # [N, (D + E + C) / (threads * lanes), threads, lanes]
    y.parallelize({0: ln.ParallelType.grid_x, 2: ln.ParallelType.block_x})
    y.parallelize({3: ln.ParallelType.vectorize})
    pieces(f, 3)


@concatenate.schedule("cpu")
def cpu(f, lanes=16):
    """Rows go to the cores, each from one end to the other, by vectors."""
    y = f["y"]
    y.split(1, lanes)
    y.parallelize({0: ln.ParallelType.cpu_parallel, 2: ln.ParallelType.vectorize})
    pieces(f, 2)


if __name__ == "__main__":
    ln.main()
