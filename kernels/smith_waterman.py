"""The best local alignment of two sequences: Smith and Waterman's table, by anti-diagonals.

The cell (i, j) of the table is the best score of alignments that end at elements i of `a` and j of
`b`: the cell before both and the score of the pair, or a neighbour less a gap, or 0. All cells of
an anti-diagonal i + j = d follow from the two before it: a loop over diagonals that carries the
last two. The score is the largest cell.

    python kernels/smith_waterman.py                 # show it, run it, compare it
    python kernels/smith_waterman.py dump --stage cuda
"""

import numpy as np

import loopnest as ln

MATCH, MISMATCH, GAP = 3, -3, 2


def smith_waterman_numpy(a, b):
    table = np.zeros((a.size + 1, b.size + 1), np.int64)
    for i in range(a.size):
        for j in range(b.size):
            pair = MATCH if a[i] == b[j] else MISMATCH
            best = max(table[i, j] + pair, table[i, j + 1] - GAP, table[i + 1, j] - GAP, 0)
            table[i + 1, j + 1] = best
    return table.max()


def up(diagonal):
    """Return the cells of a diagonal one row up; 0 above the table."""
    return ln.pad(diagonal, [(1, -1)])


def step(f, a, b):
    """Return how a diagonal follows from the two before it; its element i is the cell (i, d - i).

    Row and column 0 of the table are no cells of it: what is read beyond it is 0.
    """

    def next_of(past, d):
        earlier, last = past[0], past[1].named("last")
        i = ln.iota("M")
        j = ln.broadcast(d, (True,)) - i
        other = ln.take(b, j, 0, mode="clip")
        pair = ln.where(ln.eq(a, other), MATCH, MISMATCH)
        ends = ln.maximum(last, up(last)) - GAP
        best = ln.maximum(ln.maximum(up(earlier) + pair, ends), 0)
        inside = ln.logical_and(ln.ge(j, 0), ln.lt(j, f.extent("N")))
        return ln.where(inside, best, 0).named("cell")

    return next_of


@ln.kernel(sizes={"M": 512, "N": 512}, reference=smith_waterman_numpy)
def smith_waterman(f):
    a, b = f.input("a", ("M",), ln.int32), f.input("b", ("N",), ln.int32)
    empty = ln.full(("M",), 0, dtype=ln.int32).named("empty")
    diagonals = ln.recur(step(f, a, b), (empty, empty), steps="M + N", depth=2)
    best = ln.max(diagonals).named("best")
    f.output(ln.maximum(best, 0), "score")  # of an empty table, too


@smith_waterman.schedule("gpu")
def gpu(f, threads=256):
    """One block: a thread owns cells of each diagonal, and waits for the others at its end."""
    (diagonals,) = f["cell"].consumers
    empty, last = f["empty"], f["last"]
    empty.memory = last.memory = ln.SHARED
    for tensor in (empty, diagonals, last, f["best"]):
        tensor.split(-1, threads)
        tensor.parallelize({-1: ln.ParallelType.block_x})
    f.inline_most(replay=True)


@smith_waterman.schedule("cpu")
def cpu(f):
    """One core goes along each diagonal."""
    f.inline_most(replay=True)


if __name__ == "__main__":
    ln.main()
