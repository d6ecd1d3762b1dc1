"""Schedules of scans: each row along one axis by itself, from one end to the other.

for row in ...:      # a core, or a thread
  for element in row: what is folded so far, and what follows it
"""

from __future__ import annotations

import loopnest as ln
from loopnest.schedulers.iteration_space import IterationSpace, iteration_space, reductions
from loopnest.schedulers.loop_shapes import (
    LabelledAxes,
    in_memory_order,
    is_at_least,
    one_size_each,
    symbolic_labels,
)
from loopnest.schedulers.processor_facts import Processor

BLOCK = 32
"""Threads of a block, each with a row."""


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
    outer = [(f"outer{n}", dims) for n, dims in enumerate([*before, *behind[:-1]])]
    inner = [("inner", dims) for dims in behind[-1:]]
    groups = [*outer, ("along", [d for d in order if d in along]), *inner]
    large = is_at_least(space.elements(space.all), processor.small)
    by_threads = columns == 1
    symbolic = frozenset() if by_threads else symbolic_labels(space, groups)
    last = "inner"
    rows: list[str] = []
    for tensor in space.definitions:
        axes = LabelledAxes(tensor, space.axes[tensor], groups)
        if inner and not by_threads:
            axes.split("inner", columns, "blocks", "columns")
            last = "blocks"
        across = {last} if "inner" in symbolic else set()
        rows = axes.spread([*[label for label, _ in outer], last], symbolic | across, "rows")
        axes.order([*rows, "along", "columns"])
        if large and not by_threads:
            axes.parallelize(dict.fromkeys(rows, ln.ParallelType.cpu_parallel))
        if by_threads:
            axes.split("rows", BLOCK, "blocks", "threads")
            axes.parallelize({"blocks": ln.ParallelType.grid_x, "threads": ln.ParallelType.block_x})
    return bool(inner), len(rows)


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give rows to the cores; rows that lie side by side go together, a vector at a time.

    What a single row is scanned of is computed before: an element of a scan waits for the one
    before it, and what stood in its loop would too.
    """
    side_by_side, rows = _shaped(fusion, processor, processor.columns)
    ahead: list[ln.TensorView] = []
    if not side_by_side:
        ahead = [t for t in fusion.tensors if not t.is_input and any(map(_scans, t.consumers))]
    for tensor in ahead:
        tensor.inline_at(min(rows, tensor.ndim - 1))
    ln.inline_most([t for t in fusion.tensors if t not in ahead])


def _scans(tensor: ln.TensorView) -> bool:
    return tensor.definition is not None and tensor.definition.scan is not None


def for_threads(fusion: ln.Fusion, processor: Processor) -> None:
    """Give each thread a row."""
    _shaped(fusion, processor, 1)
    fusion.inline_most()
