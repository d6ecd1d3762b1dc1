"""Scans over threads each of which has several items."""

import loopnest as ln

PT = ln.ParallelType

AFFINE = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")
"""Composition of linear functions: it does not commute."""


@ln.kernel(sizes={"N": 5, "D": 133})
def linear(f):
    x = f.input("x", ("N", "D"), ln.float32)
    f.output(ln.scan(AFFINE, (x, 1.0 - x), axis=1)[1], "y")


@linear.schedule("turns")
def turns(f, threads=8):
    """A block goes through a row."""
    f["y"].split(1, 3)
    f["y"].split(1, threads)
    f["y"].parallelize({0: PT.grid_x, 2: PT.block_x})


@linear.schedule("warps")
def warps(f):
    """A slot of shared memory a warp, the last one of which is not whole."""
    turns(f, 40)


@linear.schedule("at_once")
def at_once(f):
    """Nothing is carried."""
    f["y"].split(1, 3)
    f["y"].parallelize({0: PT.grid_x, 1: PT.block_x})


@ln.kernel(sizes={"N": 5, "D": 133})
def scanned_twice(f):
    t = ln.cumsum(f.input("x", ("N", "D"), ln.float32), axis=1)
    f.output(ln.cumsum(ln.tanh(t), axis=1, exclusive=True) + t, "y")


@scanned_twice.schedule("shared")
def shared(f):
    """One scan is computed again for the next."""
    turns(f)
    ln.propagate(f["y"])
    f.inline_most()
