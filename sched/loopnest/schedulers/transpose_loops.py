"""Schedules of pointwise fusions that read an array along another dimension than they write.

A transposed matrix, a change of layout: neighbours of the one lie far apart in the other.

    for square in ...:                 # a core, or a block of threads
      a square of what is read across  # along its own rows
      for row: for column: results     # along theirs
"""

from __future__ import annotations

from dataclasses import dataclass

from loopnest.facade import language as ln
from loopnest.schedulers import pointwise_loops
from loopnest.schedulers.iteration_space import IterationSpace, copies, iteration_space
from loopnest.schedulers.loop_shapes import (
    GRID,
    LabelledAxes,
    coalesced,
    is_at_least,
    on_grid,
)
from loopnest.schedulers.processor_facts import Processor

LEAST = 8
"""Extents from which on a square pays."""
SIDE = 16
"""Rows and columns of a core's square: 16 floats are a cache line."""
LINE = 64
"""Bytes of the longest vector."""
BLOCK_SIDE, BLOCK_ROWS = 32, 8
"""Rows and columns of a block's square, and how many of them its threads take at once."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """What is read across.

    Args:
        inputs: the inputs whose innermost dimensions are `across`.
        groups: the dimensions by label: "others", one label each, then "across" and "along".
        others: the labels of the dimensions that are neither.
    """

    inputs: tuple[ln.TensorView, ...]
    groups: tuple[tuple[str, list[int]], ...]
    others: tuple[str, ...]


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether it is pointwise, of all dimensions, and reads across what it writes along."""
    if not pointwise_loops.accepts(fusion, processor):
        return False
    space = iteration_space(fusion)
    return space is not None and crossing(space) is not None


def crossing(space: IterationSpace, one_size: bool = False) -> Crossing | None:
    """Return what a pointwise fusion reads across; None where nothing, or in two ways.

    With `one_size` no two symbolic extents are in one group of dimensions (see `coalesced`).
    """
    if not space.joined or any(read.reads_parts for read in space.reads):
        return None
    if any(frozenset(write.order) != space.all for write in space.writes):
        return None
    groups = coalesced(space, space.all, one_size)
    last = {write.order[-1:] for write in space.writes}
    if len(last) != 1 or last == {()}:
        return None
    ((along,),) = last
    found = {
        read.tensor: read.order[-1]
        for read in space.reads
        if along in read.order and read.order[-1] != along
    }
    places = {g: dims for g, dims in enumerate(groups) if dims[-1] in found.values()}
    # Squares have two sides. A read along a third dimension would cross them both.
    if len(places) != 1:
        return None
    ((number, across),) = places.items()
    (own,) = [g for g, dims in enumerate(groups) if dims[-1] == along]
    if not all(is_at_least(space.elements(dims), LEAST) for dims in (across, groups[own])):
        return None
    rest = [(str(g), dims) for g, dims in enumerate(groups) if g not in (number, own)]
    labelled = (*rest, ("across", across), ("along", groups[own]))
    return Crossing(tuple(found), labelled, tuple([label for label, _ in rest]))


def _shaped(
    fusion: ln.Fusion, side: int, hold: bool, grid: bool
) -> tuple[list[ln.TensorView], IterationSpace, int]:
    """Make all axes [squares…, rows of squares, across, along], with one symbolic extent in each.

    Returns:
        The copies of what is read across, the space, and the number of loops in front of `across`.

    Args:
        fusion: unscheduled.
        side: rows and columns of a square.
        hold: whether what is read across is copied first.
        grid: whether the loops over squares are those of a grid: rows are merged with the others
            then where no size divides an index for it, and there are no more loops than dimensions.
    """
    for tensor in fusion.outputs:
        if tensor.consumers:
            tensor.cache_fork()
    space = iteration_space(fusion)
    assert space is not None
    found = crossing(space, one_size=True)
    assert found is not None
    held = [tensor.cache_after() for tensor in found.inputs] if hold else []
    space = iteration_space(fusion)
    assert space is not None
    axes = LabelledAxes(space, space.definitions, found.groups)
    axes.split("along", side, "columns", "along")
    axes.split("across", side, "rows", "across")
    if grid:
        outer = axes.spread([*found.others, "columns", "rows"], "outer", GRID)
    else:
        outer = [*axes.spread([*found.others, "columns"], "outer"), "rows"]
    axes.order([*outer, "across", "along"])
    return held, space, len(outer)


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give squares to the cores, which transpose them in registers: whole lines of the caches.

    A core goes along rows of what it reads across, a square at a time, so that it reads memory in
    order. `unswitch` tests once a square whether it is whole.
    """
    space = iteration_space(fusion)
    assert space is not None
    extent = space.elements(_along(space))
    whole = extent is None or extent % SIDE == 0
    plain = whole and all(copies(t) for t in fusion.tensors if not t.is_input)
    held, space, outer = _shaped(fusion, SIDE, not plain, grid=False)
    large = is_at_least(space.elements(space.all), processor.small)
    for tensor in (*held, *fusion.outputs):
        tensor.axis(-2).parallelize(ln.ParallelType.unswitch)
    for tensor in fusion.outputs:
        for place in range(-2 - outer, -3) if large else ():
            tensor.axis(place).parallelize(ln.ParallelType.cpu_parallel)
    for tensor in (*held, *fusion.outputs) if whole else ():
        lanes = LINE // tensor.dtype.size
        if lanes < SIDE:
            tensor.split(-1, lanes)
        tensor.axis(-1).parallelize(ln.ParallelType.vectorize)
    # What is held may have several readers, which share the loops of the results by then.
    ln.inline_most([t for t in fusion.tensors if t not in held])
    for tensor in held:
        tensor.inline_at(outer)


def _along(space: IterationSpace) -> list[int]:
    """Return the dimensions along which results are written."""
    found = crossing(space, one_size=True)
    assert found is not None
    return dict(found.groups)["along"]


def for_threads(fusion: ln.Fusion, processor: Processor) -> None:
    """Give squares to blocks: rows of shared memory are read along, its padded columns across.

    Where several extents are symbolic, each of them has a dimension of the grid.
    """
    held, space, squares = _shaped(fusion, BLOCK_SIDE, hold=True, grid=True)
    for tensor in held:
        tensor.reorder({-2: -1})
    for tensor in space.definitions:
        tensor.split(-2, BLOCK_ROWS)  # [squares…, steps, rows, columns]
        tensor.parallelize(
            {
                **on_grid(range(squares)),
                -3: ln.ParallelType.unroll,
                -2: ln.ParallelType.block_y,
                -1: ln.ParallelType.block_x,
            }
        )
    ln.inline_most([t for t in fusion.tensors if t not in held])
    for tensor in held:
        tensor.memory = ln.SHARED
        tensor.inline_at(squares)
        # A bank is 4 bytes wide and a row of 32 elements a whole turn of the 32 banks: without
        # padding a column would lie in one bank. One bank more a row, and the columns of a warp lie
        # in 32.
        tensor.set_allocation(pad={tensor.ndim - 1: max(1, 4 // tensor.dtype.size)})
