"""In which order loops meet the elements that a reduction folds.

A reducer that need not commute combines partial results in the C order of its reduction axes alone.
Loops keep it if the transforms that made them can be undone in their order: an outer axis next to
its inner one is the axis that was split, a merged axis is the two that it was made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loopnest.scalar.expr import ONE
from loopnest.tensor.domain import IterDomain, Merge, Split, TensorDomain, transforms_between


def keeps_order(axes: Sequence[IterDomain], domain: TensorDomain) -> bool:
    """Whether loops over `axes`, outermost first, meet what `domain` reduces in C order.

    Args:
        axes: what the reduction axes of `domain` were split and merged to.
        domain: of a reduction.
    """
    wanted = [axis for axis in domain.rfactor if axis.is_reduction]
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


def _several(axes: Iterable[IterDomain]) -> list[IterDomain]:
    """Return the axes that may have more than one point."""
    return [axis for axis in axes if axis.size is not ONE]
