"""Schedules of contractions: a fold over pairs of elements of two arrays, and what follows it.

A product of matrices, of batches of them, a table of distances: the pairs of a row of one array
and a column of the other are folded along what both have. What an operand is computed from on the
way (an activation, dequantised weights) is computed where it is copied.

    for columns in ...:      # a core
      a copy of its part of the second array
      for rows in ...:
        for k: a tile of results in registers
"""

from __future__ import annotations

from math import gcd

from loopnest.facade import language as ln
from loopnest.schedulers import window_loops
from loopnest.schedulers.contraction_parts import (
    Contraction,
    contraction,
    dear_before_windows,
    ends_in,
    has_windows,
    is_computed,
    widest_read,
)
from loopnest.schedulers.iteration_space import (
    IterationSpace,
    has_border,
    iteration_space,
    reductions,
    steps,
    upstream,
)
from loopnest.schedulers.loop_shapes import (
    GRID,
    LabelledAxes,
    divided_by_numbers,
    even_part,
    is_at_least,
    numbered,
    on_grid,
    one_size_each,
    with_copies,
)
from loopnest.schedulers.processor_facts import Processor

ENOUGH_ROWS = 4
"""The least number of rows of results that pay for a copy of windows."""

TILES_FOR_COPY = 4
"""Up to so many tiles of rows of results do not pay for a copy of windows that can be read as whole
vectors where they lie."""

SHORT = 4
"""So many neighbours of a row pay for a loop of their own."""

MANY_PLACES = 1 << 18
"""An operand of so many elements does not lie in a core's cache."""

TERMS_AT_ONCE = 16
"""A copy takes so many terms of some rows before it comes to other rows: whole lines of a tile."""


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether it is a contraction, and what follows has the shape of its result.

    The columns of one may be windows, if the other has rows enough to use each copy of them again.
    """
    space = iteration_space(fusion)
    parts = None if space is None else contraction(fusion, space)
    if space is None or parts is None:
        return False
    results = parts.results
    if parts.copies_windows and not is_at_least(space.elements(parts.dims("rows")), ENOUGH_ROWS):
        return False
    return ends_in(space, parts.total, results)


def accepts_for_cores(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether it is such a contraction, and the copy of windows that it makes is read often enough.

    `window_loops` takes the others: it computes a row of results a vector at a time and reads
    windows where they lie. Its tiles start and end within a row of the image, and what they read
    has to lie in a cache.
    """
    if not accepts(fusion, processor):
        return False
    space = iteration_space(fusion)
    parts = None if space is None else contraction(fusion, space)
    assert space is not None
    assert parts is not None
    if not parts.copies_windows or not _has_few_rows(space, parts, processor):
        return True
    return not window_loops.accepts(fusion, processor)


def _has_few_rows(space: IterationSpace, parts: Contraction, processor: Processor) -> bool:
    """Whether the left operand has too few rows, each of which reads the copy of windows once."""
    named = frozenset(widest_read(space, parts.right).order)
    window = space.elements(frozenset(parts.dims("folded")) - named)
    rows = space.elements(parts.dims("rows"))
    columns = space.elements(parts.dims("columns")[-1:])
    if window is None or window == 1 or rows is None or columns is None:
        return False
    if is_computed(parts.left) or is_computed(parts.right):
        return False  # the copy spares computing an element for each window that it lies in
    borders = [tensor for tensor in steps(parts.right) if has_border(tensor)]
    if not all(window_loops.is_kept_whole(space, tensor) for tensor in borders):
        return False
    lanes = min(processor.vector_bytes // parts.total.dtype.size, processor.tile[1])
    most = processor.tile[0]
    if columns % lanes == 0:
        return rows <= TILES_FOR_COPY * most
    if columns > lanes:
        most *= 2
    # A copy element by element takes several times as long as one of vectors.
    return columns >= lanes // 2 and rows <= most and not _row_part(columns, lanes)


class _OneSizeLoops:
    """The dimensions of a contraction, in groups of one symbolic extent at most.

    A tile lies along the innermost one.

    Args:
        fusion: unscheduled.
    """

    def __init__(self, fusion: ln.Fusion) -> None:
        self.space = with_copies(fusion, keep_inputs=False)
        found = contraction(fusion, self.space)
        assert found is not None
        self.parts = found
        before = upstream([found.total])
        self.results = [t for t in self.space.definitions if t not in before]
        named = [row for label, dims in found.groups for row in self._one_size(label, dims)]
        self.groups = tuple(named)

    def _one_size(self, label: str, dims: list[int]) -> list[tuple[str, list[int]]]:
        """Return dimensions in groups of one symbolic extent; the last has the label itself."""
        *outer, last = one_size_each(self.space, dims) or [[]]
        return [*[(f"{label} {n}", own) for n, own in enumerate(outer)], (label, last)]

    def labels(self, *prefixes: str) -> list[str]:
        """Return the labels that begin so, of groups with dimensions."""
        return [name for name, dims in self.groups if dims and name.startswith(prefixes)]


def _tile_results(loops: _OneSizeLoops, tile: tuple[int, int], lanes: int) -> tuple[int, int]:
    """Make the axes of all results [bands of columns…, tiles of rows…, row, column, lane].

    Returns:
        How many axes go over bands of columns, and how many over the tiles of a band.
    """
    rows = even_part(loops.space.elements(dict(loops.groups)["rows"]), tile[0])
    axes = LabelledAxes(loops.space, loops.results, loops.groups)
    axes.split("rows", rows, "tiles", "row")
    axes.split("columns", lanes, "columns", "lane")
    axes.split("columns", tile[1] // lanes, "bands", "column")
    bands = axes.spread([*loops.labels("batch", "columns "), "bands"], "band")
    tiles = axes.spread([*loops.labels("rows "), "tiles"], "tile")
    axes.order([*bands, *tiles, "row", "column", "lane"])
    return len(bands), len(tiles)


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give a core columns of the result; it goes down them a few rows at a time.

    The part of the right operand that it needs is copied first, without gaps, and lies in its
    cache; a tile of `processor.tile` results stays in registers, as vectors. Lanes of the copy that
    lie outside of the array hold 0, so that no lane is tested.
    """
    folded_type = reductions(fusion)[0].dtype
    lanes = min(processor.vector_bytes // folded_type.size, processor.tile[1])
    loops = _OneSizeLoops(fusion)
    bands, tiles = _tile_results(loops, processor.tile, lanes)
    space, parts, result = loops.space, loops.parts, fusion.outputs[-1]
    total, pairs, left, right = parts.total, parts.pairs, parts.left, parts.right
    column = result.ndim - 3 - tiles
    for place in range(column - bands, column):
        result.axis(place).parallelize(ln.ParallelType.cpu_parallel)
    right.compute_at(result, column)
    right.reorder({column: -2, column + 1: -1})  # neighbours along a row of the copy
    if parts.copies_windows:
        row = _row_part(space.elements(parts.dims("columns")[-1:]), lanes)
        shifted = _is_shifted(space, parts)
        if row == lanes or not (shifted or _has_neighbours(space, parts)):
            row = 0
        if row:
            right.split(-1, row)
        if not shifted:
            _hoist_places(right, len(parts.dims("folded")) - 1, row > 0)
    total.compute_at(result, result.ndim - 3)
    leaves = total.leaf_domain
    folded = [i for i, axis in enumerate(leaves) if axis.is_reduction]
    others = [i for i in range(len(leaves)) if i not in folded]
    # Folded axes outside of the tile: each element of an operand is then loaded once for a whole
    # row or column of results, which stay in registers.
    total.reorder([*others[:-3], *folded, *others[-3:]])  # [..., folded, rows, vectors, lanes]
    total.parallelize(
        {
            len(others) - 3: ln.ParallelType.unswitch,
            -3: ln.ParallelType.unroll,
            -2: ln.ParallelType.unroll,
        }
    )
    pairs.compute_at(total, total.ndim - 1)
    many = is_at_least(space.elements(parts.dims("columns")), processor.tile[1] + 1)
    if _has_rows_inside(space, parts) or (many and _is_made_again(left)):
        _copy_tiles(space, parts, processor.tile[0])
    else:
        left.compute_at(pairs, pairs.ndim - 1)
    stored = dear_before_windows(parts)
    for tensor in stored:
        tensor.memory = ln.GLOBAL
        if tensor.ndim:
            tensor.axis(0).parallelize(ln.ParallelType.cpu_parallel)
    for operand in (left, right):
        for tensor in [t for t in steps(operand)[1:] if t not in upstream(stored)]:
            # What is read in windows has other dimensions; it can be inlined later.
            if space.all_of(tensor) <= space.all_of(total):
                tensor.compute_at(operand, -1)
    fusion.inline_most()


def _is_made_again(left: ln.TensorView) -> bool:
    """Whether each band of columns would compute the left operand again. Windows stay as they are.

    A copy of them repeats elements.
    """
    return is_computed(left) and not has_windows(left)


def _has_rows_inside(space: IterationSpace, parts: Contraction) -> bool:
    """Whether neighbours of the left operand in memory are rows, and not terms of one sum.

    A tile would find the rows of each term at another place far away, and of so many lines few stay
    in a cache until the next tile needs the rest of them. Windows stay: a copy repeats elements.
    """
    if has_windows(parts.left):
        return False
    order = widest_read(space, parts.left).order
    matrix = [d for d in order if d not in parts.dims("batch")]
    is_large = is_at_least(space.elements(matrix), MANY_PLACES)
    return is_large and order[-1] in parts.dims("rows")


def _copy_tiles(space: IterationSpace, parts: Contraction, rows: int) -> None:
    """Copy the left operand first, in memory [tiles, terms, rows of a tile].

    A core takes a few terms, whose rows it reads from front to back.
    """
    left = parts.left
    left.memory = ln.GLOBAL
    axes = LabelledAxes(space, [left], parts.groups)
    axes.split("rows", rows, "tiles", "row")
    axes.merge(["batch", "tiles"], "tiles")
    axes.order(["tiles", "folded", "row"])
    left.set_allocation([*range(left.ndim)])
    axes.split("folded", TERMS_AT_ONCE, "slices", "term")
    axes.order(["slices", "tiles", "term", "row"])
    axes.parallelize({"slices": ln.ParallelType.cpu_parallel})


def _is_shifted(space: IterationSpace, parts: Contraction) -> bool:
    """Whether the place of a column in its array is found by shifts, without divisions."""
    *_, inner = one_size_each(space, parts.dims("columns"))
    extents = [space.dims[d].extent for d in inner[1:]]
    return all(isinstance(e, int) and e & (e - 1) == 0 for e in extents)


def _row_part(columns: int | None, lanes: int) -> int:
    """Return how many lanes of each vector lie in one row of windows; 0 where there are few.

    A copy goes along them without divisions, and reads neighbours where windows are neighbours.

    >>> _row_part(8, 16), _row_part(56, 16), _row_part(28, 16), _row_part(14, 16), _row_part(64, 16)
    (8, 8, 4, 0, 16)
    """
    part = 0 if columns is None else gcd(columns, lanes)
    return part if part >= SHORT else 0


def _has_neighbours(space: IterationSpace, parts: Contraction) -> bool:
    """Whether the windows along a row lie at neighbouring elements, and not some elements apart."""
    extent = widest_read(space, parts.right).tensor.rfactor_domain[-1].extent
    columns = space.elements(parts.dims("columns")[-1:])
    return isinstance(extent, int) and columns is not None and extent < 2 * columns


def _hoist_places(right: ln.TensorView, inner: int, rows: bool) -> None:
    """Let a copy find the place of a column once for `inner` folded dimensions.

    Its loops become [..., columns, lanes, inner], and where the lanes are parts of rows the
    elements of a part stay innermost; in memory columns stay neighbours.
    """
    last = right.ndim - rows
    ahead = last - 2 - inner
    right.reorder({last - 2: ahead, last - 1: ahead + 1})
    places = [*range(right.ndim)]
    order = [*places[:ahead], *places[ahead + 2 : last], ahead, ahead + 1, *places[last:]]
    right.set_allocation(order)


THREADS, OWN = 16, 4
"""A block has so many rows and columns of threads, and a thread so many of results."""
DEPTH = 16
"""Terms of a slice in shared memory."""


def for_threads(fusion: ln.Fusion, processor: Processor) -> None:
    """Give a block 64 x 64 results; it goes through both operands in slices of shared memory.

    for slice in ...:            # 16 terms
      a slice of rows and one of columns: each element is computed once by a thread of the block
      for term: 4 x 4 results of a thread, in registers

    What takes work and is read in windows has a launch of its own in front.
    """
    loops = _OneSizeLoops(fusion)
    space, parts, result = loops.space, loops.parts, fusion.outputs[-1]
    total = parts.total
    fragments = [operand.cache_after() for operand in (parts.left, parts.right)]
    results = [*loops.results, total]
    axes = LabelledAxes(space, [*results, parts.left, parts.right], loops.groups)
    axes.split("rows", THREADS * OWN, "tiles", "rows")
    axes.split("columns", THREADS * OWN, "bands", "columns")
    axes.split("folded", DEPTH, "slices", "term")
    # Bands and tiles are not merged: in an operand one of them is a broadcast axis, and windows are
    # followed through no loop that is merged with one.
    grid = axes.spread([*loops.labels("batch", "columns "), "bands"], "band", GRID - 1)
    grid += axes.spread([*loops.labels("rows "), "tiles"], "tile", 1)
    outer = [*grid, "", *loops.labels("folded "), "slices"]
    axes.order([*outer, "columns", "term", "rows"], [parts.left])
    axes.order([*outer, "rows", "term", "columns"], [parts.right])
    axes.split("rows", OWN, "y", "row", results)
    axes.split("columns", OWN, "x", "column", results)
    axes.order([*outer, "y", "x", "term", "row", "column"], results)
    axes.parallelize(_THREADS, results)
    axes.parallelize(on_grid(grid))
    stored = dear_before_windows(parts)
    for tensor in stored:
        tensor.memory = ln.GLOBAL
        groups = numbered("", divided_by_numbers(space, space.all_of(tensor)))
        LabelledAxes(space, [tensor], groups).to_threads(processor.threads)
        result.new_launch()
    total.compute_at(result, result.ndim - 4)
    parts.pairs.compute_at(total, -1)
    for fragment in fragments:
        fragment.compute_at(total, total.ndim - 2)
        fragment.parallelize({-2: ln.ParallelType.unroll, -1: ln.ParallelType.unroll})
    for operand in (parts.left, parts.right):
        operand.compute_at(total, total.ndim - 5)
        _share(space, operand, parts.dims("folded"))
    for operand in (parts.left, parts.right):
        for tensor in [t for t in steps(operand)[1:] if t not in upstream(stored)]:
            tensor.compute_at(operand, -1)
    ln.inline_most([tensor for tensor in fusion.tensors if tensor not in fragments])


_THREADS = {
    "y": ln.ParallelType.block_y,
    "x": ln.ParallelType.block_x,
    "row": ln.ParallelType.unroll,
    "column": ln.ParallelType.unroll,
}


def _share(space: IterationSpace, operand: ln.TensorView, folded: list[int]) -> None:
    """Let the threads of a block make a slice of an operand: [term, neighbour] in shared memory.

    Neighbouring threads read neighbours of the operand's input, whichever of the two axes that is.
    """
    operand.memory = ln.SHARED
    order = widest_read(space, operand).order
    along_terms = not has_windows(operand) and order and order[-1] in folded
    # Threads that store down a column: with one element more a row it lies in 16 banks.
    pad = {operand.ndim - 1: 1} if along_terms else {}
    operand.set_allocation([*range(operand.ndim)], pad)
    operand.split(-1, THREADS)  # [..., term, parts, neighbour]
    operand.reorder({-2: -3} if not along_terms else {-3: -1})
    operand.parallelize({-2: ln.ParallelType.block_y, -1: ln.ParallelType.block_x})
