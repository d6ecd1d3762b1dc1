"""Schedules of fusions whose reductions all fold over the same dimensions.

Sums of rows and columns, and what follows a reduction and broadcasts it back: softmax, norms.

    for kept in ...:      # a core, or a block of threads
      for reduced: first reduction
      for reduced: second reduction, which reads the first
      for reduced: results
"""

from __future__ import annotations

import loopnest as ln
from loopnest.errors import ScheduleError
from loopnest.schedulers.iteration_space import (
    IterationSpace,
    iteration_space,
    reads_windows,
    reductions,
    upstream,
)
from loopnest.schedulers.loop_shapes import (
    LabelledAxes,
    coalesced,
    is_at_least,
    reference,
    symbolic_labels,
    widest,
    with_copies,
)
from loopnest.schedulers.processor_facts import Processor

ALONE = 8
"""So few kept elements do not keep the cores busy."""


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether all reductions fold alike, and each output has the kept dimensions, or all.

    Windows of an input that are folded to a result each have a scheduler of their own.
    """
    space = iteration_space(fusion)
    folds = reductions(fusion)
    if space is None or not folds or _is_crossed(folds, space):
        return False
    if len(fusion.outputs) > 1 and not space.joined:
        return False
    if reference(fusion, space) is None:
        return False
    for tensor in folds:
        if space.folded(tensor) != space.reduced or space.all_of(tensor) != space.all:
            return False
    orders = [frozenset(write.order) for write in space.writes]
    if all(order == space.kept for order in orders) and len(folds) < 3:
        before = upstream(folds) - {*fusion.inputs}
        if any(reads_windows(space, tensor) for tensor in before):
            return False
    return all(order in (space.all, space.kept) for order in orders)


def _is_crossed(folds: tuple[ln.TensorView, ...], space: IterationSpace) -> bool:
    """Whether two folded inputs each lack a kept dimension of the other: a contraction.

    Windows of an input have the dimensions of what reads them.
    """
    before = upstream(folds)
    reads = [r for r in space.reads if r.reader in before]
    own = [space.present[r.reader] if r.reads_parts else frozenset(r.order) for r in reads]
    orders = [dims & space.kept for dims in own]
    return any(a - b and b - a for a in orders for b in orders)


def accepts_alone(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether few results are folded from many neighbours, and nothing is broadcast back."""
    if not accepts(fusion, processor):
        return False
    space = iteration_space(fusion)
    assert space is not None
    # With rows enough for the cores each row is folded by one, without memory or a second pass.
    kept, folded = space.elements(space.kept), space.elements(space.reduced)
    if kept is None or kept >= ALONE or not is_at_least(folded, processor.small):
        return False
    folds = reductions(fusion)
    after = [t for t in space.axes if t not in upstream(folds)]
    if any(space.all_of(t) & space.reduced for t in after):
        return False
    single = all(len(t.definition.outputs) == 1 for t in folds if t.definition)
    return single and _folds_neighbours(space)


def _folds_neighbours(space: IterationSpace) -> bool:
    """Whether the innermost dimension of the widest array is folded."""
    order = widest(space).order
    return not order or order[-1] in space.reduced


def _groups(
    space: IterationSpace, one_size: bool
) -> tuple[list[tuple[str, list[int]]], list[str], list[str]]:
    """Return the coalesced dimensions by label, and the labels of those kept and folded."""
    kept = [(f"kept{n}", dims) for n, dims in enumerate(coalesced(space, space.kept, one_size))]
    inner = coalesced(space, space.reduced, one_size)
    folded = [(f"folded{n}", dims) for n, dims in enumerate(inner)]
    return [*kept, *folded], [label for label, _ in kept], [label for label, _ in folded]


_CHAINS = 4
"""Vectors of partial results that one after the other need not wait for each other."""


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give kept elements to the cores; fold rows in lanes, columns side by side.

    Where neighbours in memory are folded (rows), `rfactor` folds `processor.lanes` partial results
    side by side. Where they are kept (columns), a block of `processor.columns` of them is the
    innermost loop, so that no loop walks down a column.
    """
    space = with_copies(fusion, keep_inputs=False)
    large = is_at_least(space.elements(space.all), processor.small)
    shape = _rows if _folds_neighbours(space) else _columns
    _inline(fusion, space, shape(fusion, space, processor, large))


def _inline(fusion: ln.Fusion, space: IterationSpace, kept: int) -> None:
    """Inline all tensors: those without folded dimensions outside of the loops over these.

    Args:
        fusion: its loops are shaped.
        space: its space before reductions were taken apart.
        kept: the number of leading loops, which are over kept dimensions alone.
    """
    most: list[ln.TensorView] = []
    once = {t for t in space.present if t.consumers and not space.all_of(t) <= space.kept}
    once = {t for t in once if not space.present[t] & space.reduced}
    for tensor in reversed(fusion.tensors):
        place = kept + sum(d is None for d in space.axes.get(tensor, ()))
        if tensor not in once or not _is_inlined(tensor, place):
            most.append(tensor)
    ln.inline_most(most)


def _is_inlined(tensor: ln.TensorView, place: int) -> bool:
    """Inline a tensor at a place; return whether its consumers have the same loops up to there."""
    try:
        tensor.inline_at(place)
    except ScheduleError:
        return False
    return True


def _rows(fusion: ln.Fusion, space: IterationSpace, processor: Processor, large: bool) -> int:
    """Make all axes [kept…, folded…, folded / lanes, lanes], or with chains in front of lanes.

    Returns:
        The number of loops over kept axes: one where no inner extent of them is symbolic.
    """
    groups, kept, folded = _groups(space, one_size=True)
    symbolic = symbolic_labels(space, groups)
    rows: list[str] = []
    row = space.elements(groups[-1][1])
    lanes = _lanes(fusion, processor)
    in_lanes = is_at_least(row, 2 * lanes)
    chains = in_lanes and row is not None and row % (_CHAINS * lanes) == 0
    for tensor in space.definitions:
        axes = LabelledAxes(tensor, space.axes[tensor], groups)
        rows = axes.spread(kept, symbolic, "rows")
        if in_lanes:
            axes.split(folded[-1], lanes, "steps", "lanes")
        if chains:
            axes.split("steps", _CHAINS, "steps", "chains")
        if large:
            axes.parallelize(dict.fromkeys(rows, ln.ParallelType.cpu_parallel))
    if in_lanes:
        for tensor in reductions(fusion):
            _fold_in_lanes(tensor, row, lanes, chains)
    return len(rows)


def _lanes(fusion: ln.Fusion, processor: Processor) -> int:
    """Return how many partial results are folded side by side: those of one vector."""
    widest_type = max(tensor.dtype.compute.size for tensor in reductions(fusion))
    return min(processor.lanes, processor.vector_bytes // widest_type)


def _columns(fusion: ln.Fusion, space: IterationSpace, processor: Processor, large: bool) -> int:
    """Make all axes [kept and blocks of columns…, folded…, columns of a block].

    Returns:
        The number of the first of these loops: one where no inner extent is symbolic.
    """
    groups, kept, folded = _groups(space, one_size=True)
    symbolic = symbolic_labels(space, groups)
    if kept[-1] in symbolic:
        symbolic |= {"blocks"}
    outer: list[str] = []
    blocks = is_at_least(space.elements(groups[len(kept) - 1][1]), processor.columns + 1)
    for tensor in space.definitions:
        axes = LabelledAxes(tensor, space.axes[tensor], groups)
        if blocks:
            axes.split(kept[-1], processor.columns, "blocks", "columns")
        else:
            axes.merge(kept[-1:], "columns")
        outer = axes.spread([*kept[:-1], "blocks"], symbolic, "outer")
        axes.order([*outer, *folded, "columns"])
        if large:
            axes.parallelize(dict.fromkeys(outer, ln.ParallelType.cpu_parallel))
    return len(outer)


def _fold_in_lanes(
    tensor: ln.TensorView, row: int | None, lanes: int, chains: bool = False
) -> None:
    """Fold each lane of [.., row / lanes, lanes] by itself, and then the lanes.

    With `chains` it is [.., steps, chains, lanes], and chains are folded by themselves first.
    """
    definition = tensor.definition
    assert definition is not None
    if len(definition.outputs) > 1:
        return
    folded = [i for i, axis in enumerate(tensor.leaf_domain) if axis.is_reduction]
    if chains:
        partial = tensor.rfactor(folded[:-2])
        chain = next(i for i, axis in enumerate(tensor.leaf_domain) if axis.is_reduction)
        together = tensor.rfactor(chain)
        for part in (partial, together):
            part.axis(-2).parallelize(ln.ParallelType.unroll)
            part.axis(-1).parallelize(ln.ParallelType.vectorize)
        return
    partial = tensor.rfactor(folded[:-1])
    if row is None or row % lanes == 0:
        partial.axis(-1).parallelize(ln.ParallelType.vectorize)
    else:
        partial.axis(-2).parallelize(ln.ParallelType.unswitch)


def alone_on_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give chunks of the folded elements to the cores; fold what they found afterwards.

    Where inner extents are symbolic, a chunk is a row.
    """
    space = with_copies(fusion, keep_inputs=True)
    groups, kept, folded = _groups(space, one_size=True)
    symbolic = symbolic_labels(space, groups)
    lanes = _lanes(fusion, processor)
    chunks: list[str] = []
    for tensor in space.definitions:
        axes = LabelledAxes(tensor, space.axes[tensor], groups)
        axes.merge(kept, "kept")
        *chunks, last = axes.spread(folded, symbolic, "folded")
        if not chunks:
            axes.split(last, processor.chunk, "chunks", last)
            chunks = ["chunks"]
        axes.split(last, lanes, "steps", "lanes")
    partial = []
    for tensor in reductions(fusion):
        found = tensor.rfactor([-2, -1])
        found.memory = ln.GLOBAL
        for place in range(len(chunks)):
            found.axis(-3 - place).parallelize(ln.ParallelType.cpu_parallel)
        _fold_in_lanes(found, space.elements(space.reduced), lanes)
        partial.append(found)
    ln.inline_most([t for t in fusion.tensors if t not in partial])


def for_threads(fusion: ln.Fusion, processor: Processor) -> None:
    """Give rows to blocks, whose threads fold them together; columns to threads.

    Where neighbours in memory are kept, a warp has 32 of them, and the other threads of its block
    share their columns.
    """
    space = with_copies(fusion, keep_inputs=True)
    groups, kept, folded = _groups(space, one_size=False)
    by_rows = _folds_neighbours(space)
    for tensor in space.definitions:
        axes = LabelledAxes(tensor, space.axes[tensor], groups)
        axes.merge(kept, "kept")
        axes.merge(folded, "folded")
        if by_rows:
            axes.split("folded", processor.threads, "steps", "x")
            axes.parallelize({"kept": ln.ParallelType.grid_x, "x": ln.ParallelType.block_x})
        else:
            axes.split("folded", processor.threads // 32, "steps", "y")
            axes.split("kept", 32, "blocks", "x")
            axes.parallelize(
                {
                    "blocks": ln.ParallelType.grid_x,
                    "x": ln.ParallelType.block_x,
                    "y": ln.ParallelType.block_y,
                }
            )
    _inline(fusion, space, min(1 if by_rows else 2, 2 * len(space.kept)))
