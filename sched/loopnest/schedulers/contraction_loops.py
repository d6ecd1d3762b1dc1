"""Schedules of contractions: a fold over pairs of elements of two arrays, and what follows it.

A product of matrices, of batches of them, a table of distances: the pairs of a row of one array
and a column of the other are folded along what both have.

    for columns in ...:      # a core
      a copy of its part of the second array
      for rows in ...:
        for k: a tile of results in registers
"""

from __future__ import annotations

from dataclasses import dataclass

import loopnest as ln
from loopnest.schedulers.iteration_space import (
    IterationSpace,
    copies,
    has_border,
    iteration_space,
    reads_parts,
    reductions,
    upstream,
)
from loopnest.schedulers.loop_shapes import (
    LabelledAxes,
    even_part,
    in_memory_order,
    is_at_least,
    one_size_each,
    symbolic_labels,
    with_copies,
)
from loopnest.schedulers.processor_facts import Processor

ENOUGH_ROWS = 4
"""So many rows of results pay for a copy of windows."""

MANY_PLACES = 1 << 18
"""An operand of so many elements does not lie in a core's cache."""

TERMS_AT_ONCE = 16
"""A copy takes so many terms of some rows before it comes to other rows: whole lines of a tile."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """The parts of a contraction.

    Args:
        total: the tensor that folds.
        pairs: what it folds, or that is computed from: the tensor that reads both operands.
        left: the operand that has rows; a copy of an input.
        right: the operand that has columns; a copy of an input.
        groups: the dimensions by label: "batch" of both operands, "rows" of the left one,
            "columns" of the right one, "folded". One may be empty, which is no batch.
        copies_windows: whether the right operand has windows or parts of an input, or a border.
    """

    total: ln.TensorView
    pairs: ln.TensorView
    left: ln.TensorView
    right: ln.TensorView
    groups: tuple[tuple[str, list[int]], ...]
    copies_windows: bool

    def dims(self, label: str) -> list[int]:
        """Return the dimensions of a group."""
        return dict(self.groups)[label]

    @property
    def results(self) -> frozenset[int]:
        """The dimensions of the results."""
        return frozenset([d for label, dims in self.groups if label != "folded" for d in dims])


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether it is a contraction of two inputs, and what follows has the shape of its result.

    The columns of one may be windows, if the other has rows enough to use each copy of them again.
    """
    space = iteration_space(fusion)
    parts = None if space is None else contraction(fusion, space)
    if space is None or parts is None:
        return False
    results = parts.results
    if parts.copies_windows and not is_at_least(space.elements(parts.dims("rows")), ENOUGH_ROWS):
        return False
    before = upstream([parts.total])
    if any(not space.all_of(t) <= results for t in space.axes if t not in before):
        return False
    return all(frozenset(w.order) == results for w in space.writes)


def contraction(fusion: ln.Fusion, space: IterationSpace) -> Contraction | None:
    """Return the parts of a contraction; None for other fusions."""
    folds = reductions(fusion)
    if len(folds) != 1:
        return None
    total = pairs = folds[0]
    while len(pairs.producers) == 1:
        (pairs,) = pairs.producers
        if len(pairs.consumers) != 1:
            return None
    if len(pairs.producers) != 2:
        return None
    first, second = pairs.producers
    one, other = _source(first, space), _source(second, space)
    folded = space.folded(total)
    a, b, both = one - other - folded, other - one - folded, one & other
    if not a or not b or not folded or not folded <= both or a | b | both != space.all_of(total):
        return None
    result = in_memory_order(space, space.all_of(total) - folded)
    indirect = _has_windows(first), _has_windows(second)
    # The right operand is the one that is copied, and whose lanes are vectors.
    if _is_copied(first, second, min(map(result.index, a)) > min(map(result.index, b))):
        first, second, a, b = second, first, b, a
    named = {"batch": both - folded, "rows": a, "columns": b, "folded": folded}
    groups = tuple([(label, in_memory_order(space, dims)) for label, dims in named.items()])
    return Contraction(total, pairs, first, second, groups, any(indirect))


def _source(operand: ln.TensorView, space: IterationSpace) -> frozenset[int]:
    """Return the dimensions of an operand that is an input, moved or repeated; none of another.

    It may be windows of an input, also with a border.
    """
    tensor = operand
    while not tensor.is_input and len(tensor.consumers) == 1:
        if len(tensor.producers) != 1 or not (copies(tensor) or has_border(tensor)):
            break
        if len(tensor.producers) > 1:  # where it reads is data
            break
        if any(read.reader is tensor for read in space.reads):
            return space.present[operand]
        (tensor,) = tensor.producers
    return frozenset()


def _has_windows(operand: ln.TensorView) -> bool:
    """Whether an operand has windows or parts of an input, or a border."""
    return any(has_border(tensor) or reads_parts(tensor) for tensor in _steps(operand))


def _is_copied(first: ln.TensorView, second: ln.TensorView, later: bool) -> bool:
    """Whether the first of two operands is copied, and the second is read where it lies.

    A copy saves windows from being looked up again and again. Of two arrays with windows the larger
    one is copied, since all of the other one is read for each band of columns.

    Args:
        first: an operand.
        second: the other one.
        later: whether the results of the first operand lie closer together.
    """
    windows = _has_windows(first), _has_windows(second)
    if windows[0] != windows[1]:
        return windows[0]
    a, b = [_elements(_steps(operand)[-1].producers[0]) for operand in (first, second)]
    if not windows[0] or a is None or b is None or a == b:
        return later
    return a > b


def _elements(tensor: ln.TensorView) -> int | None:
    """Return how many elements an input has; None where an extent is symbolic."""
    product = 1
    for axis in tensor.rfactor_domain:
        if not isinstance(axis.extent, int):
            return None
        product *= axis.extent
    return product


@dataclass(frozen=True, slots=True)
class _Shaped:
    """A contraction whose results have the axes [bands…, tiles…, row, column].

    Args:
        space: its space.
        parts: its parts.
        result: the last output.
        bands: the number of axes over bands of columns.
        tiles: the number of axes over tiles of a band.
    """

    space: IterationSpace
    parts: Contraction
    result: ln.TensorView
    bands: int
    tiles: int


def _shaped(fusion: ln.Fusion, tile: tuple[int, int], lanes: int = 0) -> _Shaped:
    """Make the axes of all results [bands of columns…, tiles of rows…, row, column] of a tile.

    With `lanes` the columns of a tile are two axes: [vectors, lanes], and each axis has one
    symbolic extent at most: a tile lies along the innermost one.
    """
    space = with_copies(fusion, keep_inputs=False)
    parts = contraction(fusion, space)
    assert parts is not None
    before = upstream([parts.total])
    groups, symbolic = parts.groups[:-1], frozenset[str]()
    if lanes:
        groups = tuple([row for label, dims in groups for row in _one_size(space, label, dims)])
        symbolic = symbolic_labels(space, groups)
        symbolic |= {part for part, whole in _PARTS.items() if whole in symbolic}
    rows = even_part(space.elements(dict(groups)["rows"]), tile[0])
    around = {
        label: [name for name, _ in groups if name.startswith(prefixes)]
        for label, prefixes in (("bands", ("batch", "columns ")), ("tiles", ("rows ",)))
    }
    bands: list[str] = []
    tiles: list[str] = []
    for tensor in space.definitions:
        if tensor not in before:
            axes = LabelledAxes(tensor, space.axes[tensor], groups)
            axes.split("rows", rows, "tiles", "row")
            if lanes:
                axes.split("columns", lanes, "columns", "lane")
            axes.split("columns", tile[1] // max(lanes, 1), "bands", "column")
            bands = axes.spread([*around["bands"], "bands"], symbolic, "band")
            tiles = axes.spread([*around["tiles"], "tiles"], symbolic, "tile")
            axes.order([*bands, *tiles, "row", "column", "lane"])
    return _Shaped(space, parts, fusion.outputs[-1], len(bands), len(tiles))


_PARTS = {"bands": "columns", "tiles": "rows"}
"""The label of an axis that a split makes, and of the axis that it splits."""


def _one_size(space: IterationSpace, label: str, dims: list[int]) -> list[tuple[str, list[int]]]:
    """Return dimensions in groups of one symbolic extent; the last has the label itself."""
    *outer, last = one_size_each(space, dims) or [[]]
    return [*[(f"{label} {n}", own) for n, own in enumerate(outer)], (label, last)]


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give a core columns of the result; it goes down them a few rows at a time.

    The part of the right operand that it needs is copied first, without gaps, and lies in its
    cache; a tile of `processor.tile` results stays in registers, as vectors. Lanes of the copy that
    lie outside of the array hold 0, so that no lane is tested.
    """
    folded_type = reductions(fusion)[0].dtype
    lanes = min(processor.vector_bytes // folded_type.size, processor.tile[1])
    shaped = _shaped(fusion, processor.tile, lanes)
    space, parts, result = shaped.space, shaped.parts, shaped.result
    total, pairs, left, right = parts.total, parts.pairs, parts.left, parts.right
    column = result.ndim - 3 - shaped.tiles
    for place in range(column - shaped.bands, column):
        result.axis(place).parallelize(ln.ParallelType.cpu_parallel)
    right.compute_at(result, column)
    right.reorder({column: -2, column + 1: -1})  # neighbours along a row of the copy
    if parts.copies_windows and not _is_shifted(space, parts):
        _hoist_places(right, len(parts.dims("folded")) - 1)
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
    if _has_rows_inside(space, parts):
        _copy_tiles(space, parts, processor.tile[0])
    else:
        left.compute_at(pairs, pairs.ndim - 1)
    for operand in (left, right):
        for tensor in _moved_for(operand):
            if space.all_of(tensor) <= space.all_of(total):
                tensor.compute_at(operand, -1)
    fusion.inline_most()


def _has_rows_inside(space: IterationSpace, parts: Contraction) -> bool:
    """Whether neighbours of the left operand in memory are rows, and not terms of one sum.

    A tile would find the rows of each term at another place far away, and of so many lines few stay
    in a cache until the next tile needs the rest of them. Windows stay: a copy repeats elements.
    """
    if _has_windows(parts.left):
        return False
    read = next(r for r in space.reads if r.reader in _steps(parts.left))
    matrix = [d for d in read.order if d not in parts.dims("batch")]
    is_large = is_at_least(space.elements(matrix), MANY_PLACES)
    return is_large and read.order[-1] in parts.dims("rows")


def _copy_tiles(space: IterationSpace, parts: Contraction, rows: int) -> None:
    """Copy the left operand first, in memory [tiles, terms, rows of a tile].

    A core takes a few terms, whose rows it reads from front to back.
    """
    left = parts.left
    left.memory = ln.GLOBAL
    axes = LabelledAxes(left, space.axes[left], parts.groups)
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


def _hoist_places(right: ln.TensorView, inner: int) -> None:
    """Let a copy find the place of a column once for `inner` folded dimensions.

    Its loops become [..., columns, lanes, inner]; in memory columns stay neighbours.
    """
    ahead = right.ndim - 2 - inner
    right.reorder({-2: ahead, -1: ahead + 1})
    places = [*range(right.ndim)]
    right.set_allocation([*places[:ahead], *places[ahead + 2 :], ahead, ahead + 1])


def _steps(operand: ln.TensorView) -> list[ln.TensorView]:
    """Return an operand, and the tensors between it and its input."""
    return [operand, *_moved_for(operand)]


def _moved_for(operand: ln.TensorView) -> list[ln.TensorView]:
    """Return the tensors between an input and an operand, the last one first."""
    found = []
    while operand.producers and not operand.producers[0].is_input:
        (operand,) = operand.producers
        found.append(operand)
    return found


def for_threads(fusion: ln.Fusion, processor: Processor) -> None:
    """Give a block 16 x 16 squares of 4 x 4 results; a thread keeps one in registers."""
    shaped = _shaped(fusion, (4, 4))
    parts, result = shaped.parts, shaped.result
    first = result.ndim - 4
    result.split(first + 1, 16)
    result.split(first, 16)  # [bands / 16, 16, tiles / 16, 16, 4, 4]
    result.reorder({first + 1: first + 2})
    result.parallelize(
        {
            first: ln.ParallelType.grid_x,
            first + 1: ln.ParallelType.grid_y,
            first + 2: ln.ParallelType.block_x,
            first + 3: ln.ParallelType.block_y,
        }
    )
    ln.propagate(result, first + 4)
    total = parts.total
    total.compute_at(result, first + 4)
    folded = [i for i, axis in enumerate(total.leaf_domain) if axis.is_reduction]
    others = [i for i in range(total.ndim) if i not in folded]
    total.reorder([*others[:-2], *folded, *others[-2:]])  # [..., folded, 4, 4]
    parts.pairs.compute_at(total, -1)
    parts.right.compute_at(total, total.ndim - 2)
    parts.left.compute_at(total, total.ndim - 1)
    for tensor in (total, result):
        tensor.axis(-1).parallelize(ln.ParallelType.unroll)
        tensor.axis(-2).parallelize(ln.ParallelType.unroll)
    fusion.inline_most()
