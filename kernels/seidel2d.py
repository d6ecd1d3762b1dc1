"""Sweeps of Gauss and Seidel over a grid, in place, by wavefronts.

Each sweep goes through the grid row by row and replaces a cell by the mean of itself and its eight
neighbours: those before it are new, those behind it of the sweep before. The cells at the border
stay. All cells (s, i, j) of sweep s with 4 s + 2 i + j = d, a wavefront, follow from the four waves
before it: a loop over waves that carries the last four, each with a cell for every sweep and row.

    python kernels/seidel2d.py                       # show it, run it, compare it
    python kernels/seidel2d.py dump --stage cuda
"""

import numpy as np

import loopnest as ln

PAST = ("four", "three", "two", "one")  # how many waves before


def seidel_numpy(x, S):
    grid = x.astype(np.float64)
    rows, columns = grid.shape
    for _ in range(S):
        for i in range(1, rows - 1):
            for j in range(1, columns - 1):
                grid[i, j] = grid[i - 1 : i + 2, j - 1 : j + 2].mean()
    return grid


def cells(wave, sweep, row):
    """Return the cells of earlier sweeps or of other rows; 0 beyond them."""
    return ln.pad(wave, [(sweep, -sweep), (row, -row)])


def step(f, x, below):
    """Return how a wave follows from the four before it; its cell (s, i) has j = d - 4 s - 2 i."""

    def next_of(past, d):
        four, three, two, one = [t.named(n) for t, n in zip(past, PAST, strict=True)]
        s = ln.broadcast(ln.iota("S"), (False, True))
        i = ln.broadcast(ln.iota("M"), (True, False))
        j = ln.broadcast(d, (True, True)) - s * 4 - i * 2

        def start(row, column):
            """Return the cells before the first sweep, those at (i + row, j + column)."""
            places = ln.clamp(ln.permute(j + column, (1, 0)), 0, f.extent("N - 1"))  # [M, S]
            return ln.permute(ln.gather(below if row else x, places, 1), (1, 0))

        def earlier(wave, row, column):
            """Return cells of the sweep before."""
            return ln.where(ln.eq(s, 0), start(row, column), cells(wave, 1, -row))

        above = cells(three, 0, 1) + cells(two, 0, 1) + cells(one, 0, 1)
        beside = one + earlier(four, 0, 0) + earlier(three, 0, 1)
        under = earlier(three, 1, -1) + earlier(two, 1, 0) + earlier(one, 1, 1)
        mean = (above + beside + under) / 9.0
        rim = ln.logical_or(ln.eq(i, 0), ln.eq(i, f.extent("M") - 1))
        rim = ln.logical_or(rim, ln.logical_or(ln.le(j, 0), ln.ge(j, f.extent("N") - 1)))
        return ln.where(rim, start(0, 0), mean).named("cell")

    return next_of


@ln.kernel(sizes={"M": 64, "N": 64, "S": 4}, reference=seidel_numpy)
def seidel2d(f):
    x = f.input("x", ("M", "N"), ln.float32)
    zero = ln.full(("S", "M"), 0.0).named("zero")
    f.assume("1 <= S")
    f.assume("1 <= N")
    below = ln.pad(x, [(-1, 1), (0, 0)]).named("below")  # the cells a row further down
    waves = ln.recur(step(f, x, below), (zero,) * 4, steps="4 * S + 2 * M + N", depth=4)
    last = waves[:, -1].named("last")  # the last sweep
    i = ln.broadcast(ln.iota("M"), (True, False))
    j = ln.broadcast(ln.iota("N"), (False, True))
    wave = ln.clamp((f.extent("S") - 1) * 4 + i * 2 + j, 0, f.extent("4 * S + 2 * M + N - 1"))
    f.output(ln.permute(ln.gather(last, wave, 0), (1, 0)), "y")


def place(f, memory):
    """Keep the last waves in `memory`, and only the last sweep of each; return the states."""
    (waves,) = f["cell"].consumers
    f["last"].memory = f["below"].memory = ln.GLOBAL
    waves.compute_at(f["last"], 1)
    waves.memory = memory
    return waves


@seidel2d.schedule("gpu")
def gpu(f, threads=64):
    """One block: its threads own rows of each wave, and wait for each other at its end."""
    waves = place(f, ln.SHARED)
    shared = [f[name] for name in ("zero", *PAST[1:])]
    for tensor in shared:
        tensor.memory = ln.SHARED
    for tensor in (f["below"], waves, *shared, f["last"], f["y"]):
        tensor.split(-1, threads)
        tensor.parallelize({-1: ln.ParallelType.block_x})
    f.inline_most(replay=True)


@seidel2d.schedule("cpu")
def cpu(f):
    """One core goes along each wave; the last waves stay in its cache."""
    place(f, ln.LOCAL)
    f.inline_most(replay=True)


if __name__ == "__main__":
    ln.main()
