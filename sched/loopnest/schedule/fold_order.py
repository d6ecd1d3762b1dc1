"""In which order loops meet the elements that a reduction folds.

A reducer that need not commute combines partial results in the C order of its reduction axes alone.
Loops keep it if the transforms that made them can be undone in their order: an outer axis next to
its inner one is the axis that was split, a merged axis is the two that it was made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loopnest.scalar.expr import ONE
from loopnest.schedule.scan_segments import folded_by_segment, goes_by_segments
from loopnest.tensor.domain import (
    IterDomain,
    Merge,
    Split,
    TensorDomain,
    transforms_between,
)
from loopnest.tensor.tensor_view import TensorView


def keeps_order(
    axes: Sequence[IterDomain], domain: TensorDomain, along: Sequence[IterDomain] | None = None
) -> bool:
    """Whether loops over `axes`, outermost first, meet what `domain` folds in C order.

    Args:
        axes: what the folded axes of `domain` were split and merged to.
        domain: of a fold.
        along: the axes that it folds; by default its reduction axes.
    """
    wanted = [a for a in domain.rfactor if a.is_reduction] if along is None else along
    now = _several(axes)
    for step in reversed(list(transforms_between(domain.rfactor, axes))):
        found = [axis for axis in now if axis in step.outputs]
        if not found:
            continue
        if not isinstance(step, (Split, Merge)) or found != _several(step.outputs):
            return False
        first = now.index(found[0])
        if now[first : first + len(found)] != found:
            return False
        now[first : first + len(found)] = _several(step.inputs)
    return now == _several(wanted)


def carries(unit: TensorView) -> bool:
    """Whether `unit` is a scan: each element has what is folded so far."""
    return unit.definition is not None and unit.definition.scan is not None


def folded_axes(unit: TensorView) -> tuple[IterDomain, ...]:
    """Return the leaf axes that `unit` folds over: its reduction axes, or those of its scan."""
    definition, domain = unit.definition, unit.domain
    if definition is None or definition.scan is None:
        return tuple([axis for axis in domain.leaf if axis.is_reduction])
    scan = definition.scan
    return folded_by_segment(domain.root[scan.axis], domain, scan.segment)


def scans_in_order(unit: TensorView, loops: Sequence[IterDomain]) -> bool:
    """Whether `loops`, outermost first, take the steps of a scan in order."""
    definition, domain = unit.definition, unit.domain
    assert definition is not None
    assert definition.scan is not None
    axis, segment = domain.root[definition.scan.axis], definition.scan.segment
    if segment is None:
        return keeps_order(loops, domain, [axis])
    return goes_by_segments(axis, domain, segment, tuple(loops))


def _several(axes: Iterable[IterDomain]) -> list[IterDomain]:
    """Return the axes that may have more than one point."""
    return [axis for axis in axes if axis.size is not ONE]
