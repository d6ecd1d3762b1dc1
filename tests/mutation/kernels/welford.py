"""Welford under each way to reduce, with every combination of components that something reads.

A component that no output depends on is computed all the same: others are computed from it.
"""

from itertools import combinations

import loopnest as ln

PT = ln.ParallelType

COMPONENTS = ("mean", "var", "count")


def moments(f, used):
    x = f.input("x", ("N", "D"), ln.float32)
    found = dict(zip(COMPONENTS, ln.welford(x, axis=1), strict=True))
    for name in used:
        f.output(found[name], name)


def reduced(f):
    """Return a component of the reduction: what is scheduled on it holds for all."""
    return next(t for t in f.tensors if any(a.is_reduction for a in t.root_domain))


def plain(f):
    """One loop."""


def parts(f, memory=ln.LOCAL):
    """Each row in parts, which are merged."""
    whole = reduced(f)
    whole.split(1, 4)
    part = whole.rfactor([1])
    if memory is not ln.LOCAL:
        part.memory = memory
    part.compute_at(whole, 1)


def parts_of_parts(f, memory=ln.LOCAL):
    """Three stages; what the middle one leaves lies in `memory`."""
    whole = reduced(f)
    whole.split(1, 4)
    part = whole.rfactor([1])
    part.split(1, 2)
    last = part.rfactor([1])
    for stage in (part, last):
        if memory is not ln.LOCAL:
            stage.memory = memory


def warp(f):
    """Shuffles."""
    block(f, 32)


def block(f, threads=40):
    """Shuffles, then a slot for each warp in shared memory; the last warp is not whole."""
    whole = reduced(f)
    whole.split(1, threads)
    part = whole.rfactor(1)
    whole.parallelize({0: PT.grid_x, 1: PT.block_x})
    part.compute_at(whole, 1)
    part.parallelize({2: PT.block_x})


def grid(f):
    """Parts of blocks in workspace; the last block goes on."""
    whole = reduced(f)
    whole.split(1, 2, inner=False)
    part = whole.rfactor([2])
    whole.parallelize({0: PT.block_x, 1: PT.grid_x})
    part.compute_at(whole, 2)


SCHEDULES = {
    "plain": plain,
    "parts": parts,
    "shared": lambda f: parts(f, ln.SHARED),
    "global": lambda f: parts(f, ln.GLOBAL),
    "parts_of_parts": parts_of_parts,
    "shared_middle": lambda f: parts_of_parts(f, ln.SHARED),
    "global_middle": lambda f: parts_of_parts(f, ln.GLOBAL),
    "warp": warp,
    "block": block,
    "grid": grid,
}


def registered(used):
    """Make a kernel of these components, under every schedule."""

    def math(f):
        moments(f, used)

    math.__name__ = f"welford_{'_'.join(used)}"
    kernel = ln.kernel()(math)
    for name, schedule in SCHEDULES.items():
        kernel.schedule(name)(schedule)


for count in (1, 2, 3):
    for some in combinations(COMPONENTS, count):
        registered(some)
