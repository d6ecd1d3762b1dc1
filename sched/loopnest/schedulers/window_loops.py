"""Schedules of fusions that read windows: convolutions, pooling, and what borders they need.

for image in ...:        # a core
the image with its border
for each result: a fold over its window
"""

from __future__ import annotations

import loopnest as ln
from loopnest.schedulers.iteration_space import (
    IterationSpace,
    has_border,
    iteration_space,
    reductions,
    upstream,
)
from loopnest.schedulers.loop_shapes import LabelledAxes, is_at_least
from loopnest.schedulers.processor_facts import Processor


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
    """Give the results along the outermost axis of several to the cores."""
    for tensor in fusion.outputs:
        if tensor.consumers:
            tensor.cache_fork()
        elif any(axis.is_reduction for axis in tensor.root_domain):
            tensor.cache_before()
    space = iteration_space(fusion)
    assert space is not None
    outer = _outer(space)
    order = [d for d in space.writes[0].order if d != outer]
    groups = [("outer", [] if outer is None else [outer])]
    groups += [(str(d), [d]) for d in (*order, *sorted(space.all - {outer, *order}))]
    large = is_at_least(space.elements(space.all_of(reductions(fusion)[0])), processor.small)
    for tensor in space.definitions:
        axes = LabelledAxes(tensor, space.axes[tensor], groups)
        if large:
            axes.parallelize({"outer": ln.ParallelType.cpu_parallel})
    fusion.inline_most()


def _outer(space: IterationSpace) -> int | None:
    """Return the first dimension of the results that has more than one element."""
    return next(iter(space.writes[0].order), None)
