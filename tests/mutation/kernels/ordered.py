"""A reducer that need not commute under each way to combine over threads and blocks."""

import loopnest as ln

PT = ln.ParallelType

AFFINE = ln.Reducer((1.0, 0.0), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "affine")
"""Composition of linear functions: it does not commute."""


@ln.kernel(sizes={"N": 5, "D": 133})
def composed(f):
    x = f.input("x", ("N", "D"), ln.float32)
    f.output(ln.reduce(AFFINE, (x, 1.0 - x), axis=1)[1], "y")


@composed.schedule("lanes")
def lanes(f, threads=8):
    """Shuffles."""
    f["y"].split(1, threads, inner=False)
    f["y"].parallelize({0: PT.grid_x, 1: PT.block_x})


@composed.schedule("warps")
def warps(f):
    """Shuffles, and a slot of shared memory a warp."""
    lanes(f, 96)


@composed.schedule("odd")
def odd(f):
    """The last warp is not whole."""
    lanes(f, 40)


@composed.schedule("columns")
def columns(f):
    """Threads of a group are not neighbours: a slot each."""
    f["y"].split(1, 12, inner=False)
    f["y"].split(0, 4)
    f["y"].parallelize({0: PT.grid_x, 1: PT.block_x, 2: PT.block_y})


@composed.schedule("blocks")
def blocks(f):
    """Threads of a block, and blocks."""
    f["y"].split(1, 4).split(1, 8)
    f["y"].parallelize({0: PT.grid_y, 1: PT.grid_x, 2: PT.block_x})


LAST = ln.Reducer((0.0, False), lambda a, b: (ln.where(b[1], b[0], a[0]), a[1] | b[1]), "last")
"""One of two partial results is chosen by a flag, as lanes choose which of two comes first."""


@ln.kernel(sizes={"N": 5, "D": 133})
def flagged(f):
    x = f.input("x", ("N", "D"), ln.float32)
    f.output(ln.reduce(LAST, (x, x > 0.25), axis=1)[0], "y")


for _schedule in (lanes, warps, odd, columns, blocks):
    flagged.schedule(_schedule.__name__)(_schedule)
