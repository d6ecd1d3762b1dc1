"""Schedules of fusions that fold nothing: each element of the outputs by itself.

for chunk in ...:   # a core, or a block of threads
  for element in chunk:
    all tensors, in registers
"""

from __future__ import annotations

from loopnest.facade import language as ln
from loopnest.schedulers.iteration_space import IterationSpace, iteration_space, reductions
from loopnest.schedulers.loop_shapes import (
    LabelledAxes,
    coalesced,
    divided_by_numbers,
    is_at_least,
    numbered,
    with_copies,
)
from loopnest.schedulers.processor_facts import Processor

SHORT = 8
"""A loop of fewer elements does not pay for the divisions in front of it."""
CHUNKS = 16
"""So many chunks keep the cores busy."""


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether nothing folds, and all outputs have the same dimensions.

    What is read in parts or windows may have dimensions of its own: it is computed where it is
    read.
    """
    space = iteration_space(fusion)
    if space is None or reductions(fusion):
        return False
    if len(fusion.outputs) > 1 and not space.joined:
        return False
    kept = _kept(space)
    if any(frozenset(access.order) != kept for access in space.writes):
        return False
    return kept == space.all or any(space.all_of(t) <= kept for t in space.definitions)


def _kept(space: IterationSpace) -> frozenset[int]:
    """Return the dimensions of the first output."""
    return frozenset(space.writes[0].order)


def _shared(space: IterationSpace) -> list[ln.TensorView]:
    """Return the tensors that share loops: those of no other dimensions than the outputs."""
    kept = _kept(space)
    return [tensor for tensor in space.definitions if space.all_of(tensor) <= kept]


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give chunks of neighbours to the cores; the loop over a chunk becomes vector code.

    Axes that lie together in all arrays are one. Where the arrays differ (one is repeated, or
    moved), or an inner extent is symbolic, the innermost is a chunk; else a chunk is
    `processor.chunk` elements, of which the last may be short: `unswitch` tests once whether it is.
    Where all elements are of one wide type, and their number is known to fill vectors, a chunk goes
    by them, past the caches where it is large.
    """
    space = with_copies(fusion, keep_inputs=False)
    parts = coalesced(space, _kept(space), one_size=True)
    groups = numbered("", parts)
    outer = [label for label, _ in groups[: -2 if _is_short(space, parts) else -1]]
    count = space.elements(_kept(space))
    large = is_at_least(count, processor.small)
    lanes = _lanes(fusion, processor) if large and count and len(groups) == 1 else 0
    # A vector that is cut off at the end would need a test in each chunk; of a plain loop the
    # compiler makes vector code anyway.
    if lanes and count and count % lanes:
        lanes = 0
    shared = _shared(space)
    # Axes of extent 1 that some tensors lack stand inside, where no other loop waits for them; a
    # vector is the innermost.
    uneven = len({space.axes[tensor].count(None) for tensor in shared}) > 1
    axes = LabelledAxes(space, shared, groups)
    chunks = axes.spread(outer, "chunks")
    if len(groups) == 1 and large:
        axes.split("0", processor.chunk, "chunks", "chunk")
        chunks = ["chunks"]
        if lanes:
            axes.split("chunk", lanes, "chunk", "lanes")
        axes.parallelize({"chunk": ln.ParallelType.unswitch})
    if large:
        axes.parallelize(dict.fromkeys(chunks, ln.ParallelType.cpu_parallel))
    if uneven:
        axes.order(["", "lanes"])
    fusion.inline_most()
    for tensor in shared if lanes else ():
        if tensor.compute_at_pos < tensor.ndim:
            tensor.axis(-1).parallelize(ln.ParallelType.vectorize)


def _is_short(space: IterationSpace, parts: list[list[int]]) -> bool:
    """Whether an innermost loop over the last part would be short beside the search of its place.

    Two loops are then left of what the cores do not share, which the compiler interleaves.
    """
    extents = [space.elements(dims) for dims in parts]
    outer = space.elements([d for dims in parts[:-2] for d in dims])
    short = len(parts) > 2 and extents[-1] is not None and extents[-1] < SHORT
    return short and extents[-2] is not None and is_at_least(outer, CHUNKS)


def _lanes(fusion: ln.Fusion, processor: Processor) -> int:
    """Return how many elements fill a cache line; 0 where they are not all of one wide type.

    A condition that is computed on the way is a mask.
    """
    ends = {*fusion.inputs, *fusion.outputs}
    types = {t.dtype for t in fusion.tensors if t in ends or not t.dtype.is_bool}
    (dtype, *others) = types
    wide = not others and dtype.is_float and dtype.size >= 4
    return processor.vector_bytes // dtype.size if wide else 0


def for_threads(fusion: ln.Fusion, processor: Processor) -> None:
    """Give each thread one element: neighbouring threads have neighbouring elements."""
    space = with_copies(fusion, keep_inputs=True)
    groups = numbered("", divided_by_numbers(space, _kept(space)))
    LabelledAxes(space, _shared(space), groups).to_threads(processor.threads)
    fusion.inline_most()
