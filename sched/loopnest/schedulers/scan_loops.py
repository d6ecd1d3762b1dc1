"""Schedules of scans: each row along one axis by itself, from one end to the other.

for row in ...:      # a core, or some threads of a block
  for element in row: what is folded so far, and what follows it

On a CPU a core goes along a few rows together: an element waits for the one before it, and those of
other rows fill the time. On a GPU the lanes of a warp, or more threads, go along a row together, so
that neighbours read neighbours; rows that lie side by side in memory are a thread each.
"""

from __future__ import annotations

from collections.abc import Iterable

from loopnest.facade import language as ln
from loopnest.scalar.enums import WARP
from loopnest.schedulers.iteration_space import (
    IterationSpace,
    iteration_space,
    reductions,
    upstream,
)
from loopnest.schedulers.loop_shapes import (
    LabelledAxes,
    in_memory_order,
    is_at_least,
    is_symbolic,
    numbered,
    one_size_each,
)
from loopnest.schedulers.processor_facts import Processor

BLOCK = 32
"""Threads of a block, each with a row."""

TOGETHER = 4
"""Rows that a core goes along together: a sum of floats is ready about four cycles after it begins,
and the next element of the same row waits for it."""

MOST_LANES = 256
"""So many threads go along a row where there are few rows."""

MANY_ROWS = 1024
"""So many rows keep a GPU busy by a warp each."""


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether nothing but scans along one dimension folds, and all outputs have all dimensions.

    What reads a scan from its end has another dimension in the place of the scan's.
    """
    space = iteration_space(fusion, in_order=True)
    if space is None or reductions(fusion) or not space.joined:
        return False
    scanned = _scanned(space)
    if scanned is None:
        return False
    rows, along = scanned
    return all(
        rows <= frozenset(access.order) and len(frozenset(access.order) & along) == 1
        for access in space.writes
    )


def _scanned(space: IterationSpace) -> tuple[frozenset[int], frozenset[int]] | None:
    """Return the dimensions of rows, and those that go along them; None without a scan."""
    rows: set[frozenset[int]] = set()
    for tensor in space.axes:
        definition = tensor.definition
        if definition is not None and definition.scan is not None:
            along = space.axes[tensor][definition.scan.axis]
            if along is None:
                return None
            rows.add(space.all_of(tensor) - {along})
    if len(rows) != 1:
        return None
    (found,) = rows
    return found, space.all - found


def _shaped(fusion: ln.Fusion, processor: Processor, columns: int) -> tuple[bool, int]:
    """Make all axes [rows…, along], or [rows…, along, columns] where rows lie side by side.

    For cores a few rows that do not are the innermost axis, but of what is scanned.

    Returns:
        Whether rows lie side by side, and the number of loops over rows.
    """
    for tensor in fusion.outputs:
        if tensor.consumers:
            tensor.cache_fork()
    space = iteration_space(fusion, in_order=True)
    assert space is not None
    scanned = _scanned(space)
    assert scanned is not None
    kept, along = scanned
    order = in_memory_order(space, space.all)
    # What stands in front of the scanned dimension in memory makes separate rows; what stands
    # behind it makes rows whose elements are neighbours, step by step.
    first = min([order.index(d) for d in along])
    before = one_size_each(space, [d for d in order[:first] if d in kept])
    behind = one_size_each(space, [d for d in order[first:] if d in kept])
    outer = numbered("outer", [*before, *behind[:-1]])
    inner = [("inner", dims) for dims in behind[-1:]]
    groups = [*outer, ("along", [d for d in order if d in along]), *inner]
    large = is_at_least(space.elements(space.all), processor.small)
    by_threads = columns == 1
    lanes, several = _block(space, [d for _, dims in [*outer, *inner] for d in dims], along)
    before_scans = upstream(_ahead(fusion))
    count = space.elements([d for _, dims in outer for d in dims])
    together = not by_threads and not inner and is_at_least(count, 2 * TOGETHER)
    axes = LabelledAxes(space, space.definitions, groups)
    ahead = [tensor for tensor in space.definitions if tensor in before_scans]
    others = [tensor for tensor in space.definitions if tensor not in before_scans]
    last = "inner"
    if inner and not by_threads:
        axes.split("inner", columns, "blocks", "columns")
        last = "blocks"
    rows = [*[label for label, _ in outer], last]
    if by_threads:
        axes.merge(rows, "rows")
        rows = ["rows"]
    else:
        rows = axes.spread(rows, "rows")
    axes.order([*rows, "along", "columns"])
    if together:
        axes.split(rows[-1], TOGETHER, rows[-1], "together")
        axes.order(["together", "along"], ahead)
        axes.order(["along", "together"], others)
        axes.parallelize({"together": ln.ParallelType.unswitch}, ahead)
        axes.parallelize({"together": ln.ParallelType.unroll}, others)
    if large and not by_threads:
        axes.parallelize(dict.fromkeys(rows, ln.ParallelType.cpu_parallel))
    if by_threads and not inner:
        _bind_lanes(axes, rows[-1], lanes, several)
    elif by_threads:
        axes.split("rows", BLOCK, "blocks", "threads")
        axes.parallelize({"blocks": ln.ParallelType.grid_x, "threads": ln.ParallelType.block_x})
    return bool(inner), len(rows)


def _bind_lanes(axes: LabelledAxes, rows: str, lanes: int, several: int) -> None:
    """Let `lanes` threads go along a row, a block have `several` rows."""
    if several > 1:
        axes.split(rows, several, rows, "several")
    axes.split("along", lanes, "steps", "lanes")
    grid, block = ln.ParallelType.grid_x, ln.ParallelType.block_x
    axes.parallelize({rows: grid, "several": ln.ParallelType.block_y, "lanes": block})


def _block(space: IterationSpace, rows: Iterable[int], along: Iterable[int]) -> tuple[int, int]:
    """Return how many threads go along a row, and how many rows a block has."""
    rows = list(rows)
    count = space.elements(rows)
    length = max([space.elements([d]) or MOST_LANES for d in along])
    lanes = WARP if is_at_least(count, MANY_ROWS) else MOST_LANES
    while lanes > 1 and lanes >= 2 * length:
        lanes //= 2
    if sum(is_symbolic(space, [d]) for d in rows) > 1:
        # An index of several sizes is divided by one of them; beyond the last one, which a block of
        # rows may have, little is proved of it.
        return lanes, 1
    return lanes, max(1, min(MOST_LANES // 2 // lanes, count or MOST_LANES))


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give rows to the cores; rows that lie side by side go together, a vector at a time.

    Other rows go together a few at a time, element by element. What they are scanned of is computed
    before, row by row: an element of a scan waits for the one before it, and what stood in its loop
    would too.
    """
    side_by_side, rows = _shaped(fusion, processor, processor.columns)
    if side_by_side:
        ln.inline_most(fusion.tensors)
        return
    ahead = _ahead(fusion)
    # What lies between two scans shares the loops over rows: else what the first of them scans
    # could not stand in these loops.
    for tensor in reversed([t for t in fusion.tensors if t in upstream(fusion.outputs)]):
        if tensor.consumers and not tensor.is_input:
            tensor.inline_at(min(rows, tensor.ndim - 1))
    ln.inline_most([t for t in fusion.tensors if t not in ahead])


def _ahead(fusion: ln.Fusion) -> list[ln.TensorView]:
    """Return what is scanned for an output."""
    live = upstream(fusion.outputs) - {*fusion.inputs}
    scanned = {t for s in live if _scans(s) for t in s.producers}
    return [t for t in fusion.tensors if t in live & scanned]


def _scans(tensor: ln.TensorView) -> bool:
    return tensor.definition is not None and tensor.definition.scan is not None


def for_threads(fusion: ln.Fusion, processor: Processor) -> None:
    """Give each row to the lanes of a warp, or of several; each row of columns to a thread."""
    _shaped(fusion, processor, 1)
    fusion.inline_most()
    for tensor in fusion.tensors:
        if not tensor.is_input and not tensor.is_output and _is_kept(tensor):
            tensor.memory = ln.GLOBAL


def _is_kept(tensor: ln.TensorView) -> bool:
    """Whether registers cannot hold it: other lanes read it, or a row of unknown length is kept."""
    return bool(tensor.consumers) and any(
        axis.parallel is ln.ParallelType.block_x or not isinstance(axis.extent, int)
        for axis in tensor.leaf_domain[tensor.compute_at_pos :]
    )
