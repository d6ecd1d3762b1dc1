"""Reductions that are factored more than once; what middle stages leave lies in any memory.

Extents are symbolic, and no split divides them: what a stage stores is guarded, and so must be what
the next one reads.
"""

import loopnest as ln

PT = ln.ParallelType


def placed(stages, memory):
    for stage in stages:
        if memory is not ln.LOCAL:
            stage.memory = memory


@ln.kernel()
def total(f):
    x = f.input("x", ("A", "B"), ln.float32)
    f.output(ln.sum(x, axis=(0, 1)), "y")


def total_rows_last(f, memory=ln.GLOBAL):
    """The rows of parts, then the parts."""
    y = f["y"]
    y.split(1, 8)
    part = y.rfactor([0, 1])
    placed([part.rfactor([0])], memory)


def total_thrice(f, memory=ln.SHARED):
    """Four stages, with a split of each axis."""
    y = f["y"]
    y.split(1, 4)
    y.split(0, 2)
    first = y.rfactor([1, 3])
    second = first.rfactor([1])
    placed([first, second, y.rfactor([0])], memory)


def total_by_threads(f, memory=ln.SHARED):
    """Threads fold what the stage before left in memory of all of them."""
    y = f["y"]
    y.merge(0)
    y.split(0, 8)
    part = y.rfactor([0])
    part.split(0, 3)
    rest = part.rfactor([1])
    placed([rest], memory)
    for tensor, axis in ((y, 0), (part, -1), (rest, -1)):
        tensor.axis(axis).parallelize(PT.block_x)


for memory in (ln.LOCAL, ln.SHARED, ln.GLOBAL):
    for make in (total_rows_last, total_thrice, total_by_threads):
        name = make.__name__.removeprefix("total_")

        def schedule(f, make=make, memory=memory):
            make(f, memory)

        total.schedule(f"{name}_{memory.value}")(schedule)


@ln.kernel()
def vector(f):
    x = f.input("x", ("A",), ln.float32)
    f.output(ln.sum(x), "y")


@vector.schedule("by_one")
def vector_by_one(f):
    """An axis split by 1, then the other part by 4."""
    y = f["y"]
    y.split(0, 1)
    part = y.rfactor([1])
    part.split(1, 4)
    part.rfactor([1]).memory = ln.SHARED


@vector.schedule("outer_split")
def vector_outer_split(f):
    """Parts whose extent is symbolic, in parts of a static one."""
    y = f["y"]
    y.split(0, 3, inner=False)
    part = y.rfactor([1])
    part.split(1, 4)
    part.rfactor([2]).memory = ln.GLOBAL


@ln.kernel()
def largest(f):
    x = f.input("x", ("N", "D"), ln.float32)
    f.output(ln.max(x, axis=1) * 0.5, "y")


@largest.schedule("twice")
def largest_twice(f):
    """Rows on threads; the parts of a row lie in memory of the block."""
    top = next(t for t in f.tensors if any(a.is_reduction for a in t.root_domain))
    top.split(1, 6)
    part = top.rfactor([2])
    part.split(2, 2)
    rest = part.rfactor([2])
    placed([part, rest], ln.SHARED)


@largest.schedule("halves")
def largest_halves(f):
    """Each stage takes half of what is left."""
    top = next(t for t in f.tensors if any(a.is_reduction for a in t.root_domain))
    top.split(1, 8)
    part = top.rfactor([1])
    part.memory = ln.SHARED
    top.split(1, 4)
    rest = top.rfactor([1])
    rest.memory = ln.SHARED


@ln.kernel()
def half(f):
    """Parts of 16-bit values are held in 32 bits and rounded once."""
    x = f.input("x", ("N", "D"), ln.float16)
    f.output(ln.sum(x, axis=1), "y")


@half.schedule("twice")
def half_twice(f):
    y = f["y"]
    y.split(1, 6)
    part = y.rfactor([2])
    part.split(2, 2)
    placed([part, part.rfactor([2])], ln.GLOBAL)
