"""Schedules of fusions whose reductions all fold over the same dimensions.

Sums of rows and columns, and what follows a reduction and broadcasts it back: softmax, norms.

    for kept in ...:      # a core, or a block of threads
      for reduced: first reduction
      for reduced: second reduction, which reads the first
      for reduced: results
"""

from __future__ import annotations

from loopnest.base.errors import ScheduleError
from loopnest.facade import language as ln
from loopnest.scalar.enums import WARP
from loopnest.schedulers.iteration_space import (
    IterationSpace,
    iteration_space,
    reductions,
    upstream,
    window_reads,
)
from loopnest.schedulers.loop_shapes import (
    GRID,
    Groups,
    LabelledAxes,
    coalesced,
    divided_by_numbers,
    is_at_least,
    lane_part,
    largest_divisor,
    numbered,
    on_grid,
    reference,
    widest,
    with_copies,
)
from loopnest.schedulers.processor_facts import Processor

HELD = 32
"""So many elements of each tensor a thread keeps in registers."""

ALONE = 8
"""So few kept elements do not keep the cores busy."""


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether all reductions fold alike, and each output has the kept dimensions, or all.

    Windows of an input that are folded to a result each have a scheduler of their own.
    """
    space = iteration_space(fusion)
    folds = reductions(fusion)
    if space is None or not folds or not space.reduced or _is_crossed(folds, space):
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
        read = [read for tensor in before for read, _ in window_reads(space, tensor)]
        if any(one.producer.is_input for one in read):
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


def _groups(space: IterationSpace, kept: list[list[int]]) -> tuple[Groups, list[str], list[str]]:
    """Return the dimensions by label, coalesced, and the labels of those kept and folded."""
    own, inner = numbered("kept", kept), numbered("folded", coalesced(space, space.reduced, True))
    return [*own, *inner], [label for label, _ in own], [label for label, _ in inner]


_CHAINS = 4
"""Vectors of partial results that one after the other need not wait for each other."""

_LONG = 4
"""From so many steps of all chains on, the test whether a step is whole costs less than waiting."""


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give kept elements to the cores; fold rows in lanes, columns side by side.

    Where neighbours in memory are folded (rows), `rfactor` folds `processor.lanes` partial results
    side by side. Where they are kept (columns), a block of them is the innermost loop, so that no
    loop walks down a column.
    """
    space = with_copies(fusion, keep_inputs=False)
    large = is_at_least(space.elements(space.all), processor.small)
    if _folds_neighbours(space):
        _inline(fusion, space, _rows(fusion, space, processor, large))
    else:
        _columns(fusion, space, processor, large)


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
    groups, kept, folded = _groups(space, coalesced(space, space.kept, True))
    row = space.elements(groups[-1][1])
    lanes = _lanes(fusion, processor)
    in_lanes = is_at_least(row, 2 * lanes)
    whole = row is not None and row % (_CHAINS * lanes) == 0
    # Of a long row the last step alone is short: a loop of its own, with a test in each lane.
    long = row is not None and row >= _LONG * _CHAINS * lanes
    chains = in_lanes and (whole or long)
    axes = LabelledAxes(space, space.definitions, groups)
    rows = axes.spread(kept, "rows")
    if in_lanes:
        axes.split(folded[-1], lanes, "steps", "lanes")
    if chains:
        axes.split("steps", _CHAINS, "steps", "chains")
    if chains and not whole:
        axes.parallelize({"chains": ln.ParallelType.unswitch})
    if large:
        axes.parallelize(dict.fromkeys(rows, ln.ParallelType.cpu_parallel))
    if in_lanes:
        if not chains:
            whole = row is None or row % lanes == 0
        for tensor in reductions(fusion):
            _fold_in_lanes(tensor, chains, whole)
    return len(rows)


def _lanes(fusion: ln.Fusion, processor: Processor) -> int:
    """Return how many partial results are folded side by side: those of one vector."""
    widest_type = max(tensor.dtype.compute.size for tensor in reductions(fusion))
    return min(processor.lanes, processor.vector_bytes // widest_type)


def _columns(fusion: ln.Fusion, space: IterationSpace, processor: Processor, large: bool) -> None:
    """Make all axes [kept and blocks of columns…, folded…, columns of a block], and inline.

    Columns of a block are [vectors, lanes] where they are vectors: their sums are in registers.
    """
    groups, kept, folded = _groups(space, coalesced(space, space.kept, True))
    count = space.elements(groups[len(kept) - 1][1])
    lanes = _lanes(fusion, processor)
    vectors = 0
    if all(map(_is_in_vectors, reductions(fusion))):
        vectors = _block_vectors(space, lanes, processor)
    width = vectors * lanes or lane_part(count, processor.columns, processor.lanes)
    blocks = is_at_least(count, width + 1)
    axes = LabelledAxes(space, space.definitions, groups)
    if blocks:
        axes.split(kept[-1], width, "blocks", "columns")
    else:
        axes.merge(kept[-1:], "columns")
    if vectors:
        axes.split("columns", lanes, "columns", "lanes")
    outer = axes.spread([*kept[:-1], "blocks"], "outer")
    axes.order([*outer, *folded, "columns", "lanes"])
    if large:
        axes.parallelize(dict.fromkeys(outer, ln.ParallelType.cpu_parallel))
    _inline(fusion, space, len(outer))
    if vectors:
        # What a fold reads is computed in the lanes of its loop: these become vectors after that.
        for tensor in reductions(fusion):
            tensor.axis(-2).parallelize(ln.ParallelType.unroll)
        for tensor in (*reductions(fusion), *fusion.outputs):
            fits = lanes * tensor.dtype.size <= processor.vector_bytes  # a result may be wider
            if fits and tensor.compute_at_pos < tensor.ndim:
                tensor.axis(-1).parallelize(ln.ParallelType.vectorize)


def _is_in_vectors(tensor: ln.TensorView) -> bool:
    """Whether a fold is one of vectors of floats."""
    assert tensor.definition is not None
    alone = len(tensor.definition.outputs) == 1
    return alone and tensor.dtype in (ln.float32, ln.float64)


def _block_vectors(space: IterationSpace, lanes: int, processor: Processor) -> int:
    """Return how many vectors of columns a block has: as many as a core has registers.

    They are fewer where cores would be without a block, or where a block that is read several times
    would not stay in the cache of a core; no less than pieces of rows need to be fetched ahead. 0
    where blocks are no whole vectors.
    """
    count = space.elements(coalesced(space, space.kept, one_size=True)[-1])
    kept, folded = space.elements(space.kept), space.elements(space.reduced)
    if count is None or kept is None or count % lanes:
        return 0
    least = processor.columns // lanes
    most = min(processor.registers, kept // lanes // processor.cores)
    if _is_read_again(space):
        row = lanes * widest(space).tensor.dtype.size
        most = min(most, 0 if folded is None else processor.cache // 2 // max(folded * row, 1))
    whole = count // lanes
    found = largest_divisor(whole, max(most, least))
    return found if found == whole or 2 * found >= least else 0


def _is_read_again(space: IterationSpace) -> bool:
    """Whether what is folded is read by several folds, or by what follows them."""
    several = sum(bool(space.folded(tensor)) for tensor in space.definitions) > 1
    return several or any(frozenset(w.order) & space.reduced for w in space.writes)


def _fold_in_lanes(tensor: ln.TensorView, chains: bool, whole: bool) -> None:
    """Fold each lane of [.., row / lanes, lanes] by itself, and then the lanes.

    With `chains` it is [.., steps, chains, lanes], and chains are folded by themselves first.

    Args:
        tensor: the reduction.
        chains: whether there are chains.
        whole: whether the last step is as long as all others, or nothing is known of it.
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
        together.axis(-2).parallelize(ln.ParallelType.unroll)
        together.axis(-1).parallelize(ln.ParallelType.vectorize)
        if whole:
            partial.axis(-2).parallelize(ln.ParallelType.unroll)
            partial.axis(-1).parallelize(ln.ParallelType.vectorize)
        else:
            partial.axis(-2).parallelize(ln.ParallelType.unswitch)
        return
    partial = tensor.rfactor(folded[:-1])
    if whole:
        partial.axis(-1).parallelize(ln.ParallelType.vectorize)
    else:
        partial.axis(-2).parallelize(ln.ParallelType.unswitch)


def alone_on_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give chunks of the folded elements to the cores; fold what they found afterwards.

    Where inner extents are symbolic, a chunk is a row.
    """
    space = with_copies(fusion, keep_inputs=True)
    groups, kept, folded = _groups(space, coalesced(space, space.kept, True))
    lanes = _lanes(fusion, processor)
    axes = LabelledAxes(space, space.definitions, groups)
    axes.merge(kept, "kept")
    *chunks, last = axes.spread(folded, "folded")
    if not chunks:
        axes.split(last, processor.chunk, "chunks", last)
        chunks = ["chunks"]
    axes.split(last, lanes, "steps", "lanes")
    partial = []
    count = space.elements(space.reduced)
    for tensor in reductions(fusion):
        found = tensor.rfactor([-2, -1])
        found.memory = ln.GLOBAL
        for place in range(len(chunks)):
            found.axis(-3 - place).parallelize(ln.ParallelType.cpu_parallel)
        _fold_in_lanes(found, chains=False, whole=count is None or count % lanes == 0)
        partial.append(found)
    ln.inline_most([t for t in fusion.tensors if t not in partial])


def for_threads(fusion: ln.Fusion, processor: Processor) -> None:
    """Give rows to blocks, whose threads fold them together; columns to threads.

    Where neighbours in memory are kept, a warp has 32 of them, and the other threads of its block
    share their columns. Where several extents are symbolic, each kept one has a dimension of the
    grid, and the last two folded ones have a dimension of the block.

    A thread keeps its part of a row in registers from one fold to the next. What is too long for
    them, or of no known length, is read and computed again for each fold.
    """
    space = iteration_space(fusion)
    assert space is not None
    row = space.elements(space.reduced)
    is_held = row is not None and row <= HELD * processor.threads
    space = with_copies(fusion, keep_inputs=is_held)
    groups, kept, folded = _groups(space, divided_by_numbers(space, space.kept))
    by_rows = _folds_neighbours(space)
    axes = LabelledAxes(space, space.definitions, groups)
    blocks = axes.spread(kept, "kept", GRID)
    runs = axes.spread(folded, "folded")
    threads = {"x": ln.ParallelType.block_x, "y": ln.ParallelType.block_y}
    if not by_rows:
        axes.split(runs[-1], processor.threads // WARP, "steps", "y")
        if blocks:
            axes.split(blocks[-1], WARP, "blocks", "x")
            blocks[-1] = "blocks"
    elif len(runs) > 1:
        axes.split(runs[-1], WARP, "steps", "x")
        axes.split(runs[-2], processor.threads // WARP, "outer steps", "y")
    else:
        axes.split(runs[-1], processor.threads, "steps", "x")
    axes.parallelize({**on_grid(blocks), **threads})
    if not is_held:
        _compute_for_each_fold(fusion, space)
    _inline(fusion, space, len(blocks) + (not by_rows and bool(blocks)))


def _compute_for_each_fold(fusion: ln.Fusion, space: IterationSpace) -> None:
    """Give each fold, and what follows the last one, its own clone of what they read of a row."""
    pending = [t for t in space.axes if space.all_of(t) & space.reduced and not space.folded(t)]
    while pending:
        tensor = next(t for t in reversed(pending) if not any(c in pending for c in t.consumers))
        pending.remove(tensor)
        known = len(fusion.tensors)
        if len(tensor.consumers) > 1:
            tensor.compute_at(tensor.consumers[0], -1, recompute=True)
        pending += fusion.tensors[known:]  # a clone of what it reads may have several readers
