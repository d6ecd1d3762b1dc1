"""Schedules of fusions that read windows: convolutions, pooling, and what borders they need.

for image in ...:        # a core
  the image with its border
  for a row of results, and a few channels:
    for window: a tile of results in registers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from loopnest.facade import language as ln
from loopnest.schedulers.iteration_space import (
    IterationSpace,
    has_border,
    iteration_space,
    reads_parts,
    reductions,
    upstream,
)
from loopnest.schedulers.loop_shapes import (
    LabelledAxes,
    even_part,
    is_at_least,
    lane_part,
)
from loopnest.schedulers.processor_facts import Processor

ROWS = 8
"""Results of a tile along an axis that the windows do not have, at most."""
ENOUGH = 4
"""So many steps of a loop keep the cores busy."""
KEPT = 1 << 26
"""So many bytes of memory a core may take for what windows read."""


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether reductions of one kind give all results, from tensors of other dimensions.

    What is read in windows, or has a border, has dimensions of its own; it is computed where it is
    read. Outputs and reductions have the same kept dimensions, and nothing is broadcast back.
    """
    space = iteration_space(fusion)
    folds = reductions(fusion)
    if space is None or not folds:
        return False
    results = frozenset(space.writes[0].order)
    parts = any(read.reads_parts for read in space.reads)
    bordered = any(has_border(tensor) for tensor in space.axes)
    if space.all == results | space.reduced and not bordered and not parts:
        return False
    before = upstream(folds)
    if any(frozenset(write.order) != results for write in space.writes):
        return False
    if any(tensor in before for tensor in fusion.outputs if tensor not in folds):
        return False
    if any(space.all_of(tensor) - space.folded(tensor) != results for tensor in folds):
        return False
    after = [tensor for tensor in space.axes if tensor not in before]
    return len(folds) < 3 and all(space.all_of(tensor) <= results for tensor in after)


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give results along an outer axis to the cores; a tile of them stays in registers.

    A tile has neighbours of the innermost axis, a vector, and a few along an axis that the windows
    do not have (the channels of a convolution), so that what is read of a window is used again.
    """
    space, folds = _with_copies(fusion)
    before = upstream(folds)
    widest = processor.vector_bytes // folds[0].dtype.compute.size
    columns = space.elements(space.writes[0].order[-1:])
    lanes = next((n for n in (widest, widest // 2) if columns and columns % n == 0), widest)
    groups, tile = _tiles(space, processor, lanes)
    large = is_at_least(space.elements(space.all_of(folds[0])), processor.small)
    kept = [label for label, _ in groups]
    order = [f"{label} tiles" if label in tile else label for label in kept]
    order += [label for label in kept if label in tile]
    borders = [t for t in space.definitions if t in before and has_border(t)]
    whole = [tensor for tensor in borders if is_kept_whole(space, tensor)]
    at_once = columns is not None and columns % lanes == 0
    at_once = at_once and all(_is_in_step(fusion, space, total, whole) for total in folds)
    least = lanes if at_once else lanes + 1
    vectors = bool(tile) and tile[kept[-1]] % lanes == 0 and tile[kept[-1]] >= least
    results = [t for t in space.definitions if t not in before]
    axes = LabelledAxes(space, results, groups)
    for label, extent in tile.items():
        axes.split(label, extent, f"{label} tiles", label)
    axes.order(order)
    if vectors:
        axes.split(kept[-1], lanes, "vectors", "lane")
    if large:
        axes.parallelize({_parallel(space, groups, tile, order): ln.ParallelType.cpu_parallel})
    target = fusion.outputs[-1]
    for total in reversed(folds):
        inner = len(tile) + vectors
        total.compute_at(target, target.ndim - inner)
        if vectors:
            total.split(max(_kept_places(total)), lanes)
        _folds_first(total, inner, vectors)
        _inline_operands(fusion, space, total)
        if vectors and at_once:
            total.axis(-1).parallelize(ln.ParallelType.vectorize)
    for tensor in whole:
        outer = _own_loops(space, tensor, order)
        tensor.compute_at(target, outer)
        tensor.axis(outer).pin()
    fusion.inline_most()


def is_kept_whole(space: IterationSpace, tensor: ln.TensorView) -> bool:
    """Whether a tensor with its border is computed once for all windows, which read it untested.

    It stands in the loops that it has itself. Where it lies in no cache, to store and to load it is
    still less work than to test each element of each window.
    """
    order = [str(d) for d in space.writes[0].order]
    outer = _own_loops(space, tensor, order)
    extents = [axis.extent for axis in tensor.rfactor_domain]
    inner = 1
    for place, extent in zip(space.axes[tensor], extents, strict=True):
        if place is None or str(place) not in order[:outer]:
            if not isinstance(extent, int):
                return False
            inner *= extent
    # Inside of no loop it would be one array for all cores, and of all images.
    return outer > 0 and inner * tensor.dtype.size <= KEPT


def _own_loops(space: IterationSpace, tensor: ln.TensorView, order: Sequence[str]) -> int:
    """Return how many of the outermost loops are over dimensions that a tensor has."""
    own = [str(d) for d in space.all_of(tensor)]
    return next((n for n, label in enumerate(order) if label not in own), len(order))


def _is_in_step(
    fusion: ln.Fusion, space: IterationSpace, total: ln.TensorView, whole: Sequence[ln.TensorView]
) -> bool:
    """Whether each lane of a fold computes what it reads, element by element.

    Not so where a tensor of other dimensions, which `whole` does not hold, is computed there.
    """
    feeding = upstream([total]) - {*reductions(fusion), *fusion.inputs, *upstream(whole)}
    return all(space.all_of(tensor) <= space.all_of(total) for tensor in feeding)


def _with_copies(fusion: ln.Fusion) -> tuple[IterationSpace, tuple[ln.TensorView, ...]]:
    """Give outputs that are read or folded copies in registers; return the space and the folds."""
    for tensor in fusion.outputs:
        if tensor.consumers:
            tensor.cache_fork()
        elif any(axis.is_reduction for axis in tensor.root_domain):
            tensor.cache_before()
    space = iteration_space(fusion)
    assert space is not None
    return space, reductions(fusion)


def _inline_operands(fusion: ln.Fusion, space: IterationSpace, total: ln.TensorView) -> None:
    """Compute what a fold reads in its innermost loop, but for what has dimensions of its own."""
    feeding = upstream([total]) - {*reductions(fusion), *fusion.inputs}
    for tensor in [t for t in reversed(fusion.tensors) if t in feeding]:
        if space.all_of(tensor) <= space.all_of(total):
            tensor.compute_at(total, -1, recompute=True)


def for_threads(fusion: ln.Fusion, processor: Processor) -> None:
    """Give each thread a result, which it folds alone: neighbours read neighbouring windows."""
    space, folds = _with_copies(fusion)
    before = upstream(folds)
    groups = [(str(d), [d]) for d in space.writes[0].order]
    results = [t for t in space.definitions if t not in before]
    LabelledAxes(space, results, groups).to_threads(processor.threads)
    target = fusion.outputs[-1]
    for total in reversed(folds):
        total.compute_at(target, target.ndim)
        _inline_operands(fusion, space, total)
    fusion.inline_most()


def _kept_places(total: ln.TensorView) -> list[int]:
    """Return the places of the axes that a fold keeps."""
    return [i for i, axis in enumerate(total.leaf_domain) if not axis.is_reduction]


def _folds_first(total: ln.TensorView, inner: int, vectors: bool) -> None:
    """Let a fold go along its windows outside of the results of a tile.

    Args:
        total: the fold.
        inner: the axes of a tile.
        vectors: whether the last of them are the lanes of a vector.
    """
    others = _kept_places(total)
    folded = [i for i in range(total.ndim) if i not in others]
    total.reorder([*others[: len(others) - inner], *folded, *others[len(others) - inner :]])
    unrolled = -2 if vectors else -1
    if inner:
        total.axis(unrolled).parallelize(ln.ParallelType.unroll)
    if total.ndim >= 1 - unrolled:
        total.axis(unrolled - 1).parallelize(ln.ParallelType.unswitch)


Groups: TypeAlias = "list[tuple[str, list[int]]]"


def _tiles(
    space: IterationSpace, processor: Processor, lanes: int
) -> tuple[Groups, dict[str, int]]:
    """Return the dimensions of the results by label, and the extents of a tile."""
    results = list(space.writes[0].order)
    groups = [(str(d), [d]) for d in results]
    if not results:
        return groups, {}
    columns = processor.tile[1]
    # What is read in parts but has no neighbours of a row (weights that are mirrored) is no window.
    parts = [space.present[t] for t in space.definitions if reads_parts(t)]
    windowed = [dims for dims in parts if results[-1] in dims]
    free = [d for d in results[:-1] if not any(d in dims for dims in windowed)]
    tile: dict[str, int] = {}
    if free:
        tile[str(free[0])] = even_part(space.elements(free[:1]), ROWS)
    tile[str(results[-1])] = lane_part(space.elements(results[-1:]), columns, lanes)
    return groups, tile


def _parallel(space: IterationSpace, groups: Groups, tile: dict[str, int], order: list[str]) -> str:
    """Return the label of the first loop that is long enough for several cores."""
    for label, dims in groups[:-1]:
        extent = space.elements(dims)
        if extent is None or extent >= ENOUGH * tile.get(label, 1):
            return f"{label} tiles" if label in tile else label
    return order[0]
