"""In which order loops meet the elements that a reduction folds.

A reducer that need not commute combines partial results in the C order of its reduction axes alone.
Loops keep it if the transforms that made them can be undone in their order: an outer axis next to
its inner one is the axis that was split, a merged axis is the two that it was made of.

A scan with segments starts anew every so many elements. Its axis is split: loops whose step is less
than a segment go through one, those whose step is a multiple of it go from one to the next, and may
run in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loopnest.scalar.expr import ONE, Const
from loopnest.tensor.domain import (
    IterDomain,
    Merge,
    Split,
    TensorDomain,
    ancestors,
    transforms_between,
)
from loopnest.tensor.tensor_view import TensorView


def steps_along(axis: IterDomain, domain: TensorDomain) -> Mapping[IterDomain, int | None]:
    """Return for each leaf made from root `axis` how far it goes along that axis in a step.

    None where that is no static number, or a leaf was made from other axes too.
    """
    step = _steps(axis, domain)
    return {leaf: step[leaf] for leaf in domain.leaf if leaf in step}


def _steps(axis: IterDomain, domain: TensorDomain) -> dict[IterDomain, int | None]:
    """Return `steps_along` of all axes that were made from `axis`, itself among them."""
    step: dict[IterDomain, int | None] = {axis: 1}
    for made in transforms_between(domain.root, domain.leaf):
        if not any(source in step for source in made.inputs):
            continue
        own = step.get(made.inputs[0])
        outer: int | None = None
        if isinstance(made, Split) and own is not None:
            width = made.factor if made.inner else made.outputs[1].size
            outer = own * int(width.value) if isinstance(width, Const) else None
            step[made.outputs[0]], step[made.outputs[1]] = outer, own
        else:
            step.update(dict.fromkeys(made.outputs))
    return step


def folded_by_segment(
    axis: IterDomain, domain: TensorDomain, segment: int | None
) -> tuple[IterDomain, ...]:
    """Return the leaves that go through a segment; without segments, all along the axis."""
    if segment is None:
        return tuple([leaf for leaf in domain.leaf if axis in ancestors([leaf], domain)])
    steps = steps_along(axis, domain).items()
    return tuple([leaf for leaf, step in steps if step is None or step < segment])


def goes_by_segments(
    axis: IterDomain, domain: TensorDomain, segment: int, loops: tuple[IterDomain, ...]
) -> bool:
    """Whether `loops`, outermost first, meet the elements of each segment in order.

    Args:
        axis: the root axis of the scan.
        domain: of the scan.
        segment: its length.
        loops: the leaves that go through a segment, in the order of the loops.
    """
    steps = steps_along(axis, domain)
    inside = [steps[leaf] for leaf in loops if leaf.size is not ONE]
    apart = [step for leaf, step in steps.items() if leaf not in loops and leaf.size is not ONE]
    # A loop outside that moves by no multiple of a segment would begin in the middle of one.
    if any(step is None or step % segment for step in apart):
        return False
    known = [step for step in inside if step is not None]
    if len(known) != len(inside) or known != sorted(known, reverse=True):
        return False
    return _fills(axis, domain, segment, loops)


def _fills(
    axis: IterDomain, domain: TensorDomain, segment: int, loops: tuple[IterDomain, ...]
) -> bool:
    """Whether `loops` go through a segment, no less and no more but for what tests leave out."""
    steps, now = _steps(axis, domain), set(loops)
    for made in reversed(list(transforms_between(domain.root, domain.leaf))):
        source = made.inputs[0]
        step, size = steps.get(source), source.size
        inside = step is not None and isinstance(size, Const) and step * size.value <= segment
        if inside and now.issuperset(made.outputs):
            now = (now - set(made.outputs)) | {source}
    reach = 1
    for node in sorted(now, key=lambda node: steps[node] or 0):
        if node.size is ONE:
            continue
        if steps[node] != reach or not isinstance(node.size, Const):
            return False
        reach *= int(node.size.value)
    return reach == segment


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
