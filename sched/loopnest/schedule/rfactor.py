"""rfactor: factor a reduction into a partial one and a final one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import Arg
from loopnest.scalar.simplify import Simplifier
from loopnest.schedule.atomic_folds import require_not_atomic
from loopnest.schedule.axis_places import leaf_position, place_text
from loopnest.schedule.cloning import carry_allocation, clone_domain, new_tensor
from loopnest.schedule.fold_order import keeps_order
from loopnest.schedule.launches import hand_over_launch
from loopnest.schedule.scan_rfactor import factor_scan
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    axis_names,
    primitive,
    require_computed,
    require_not_instructed,
)
from loopnest.tensor.axis_names import Axis
from loopnest.tensor.definition import Definition, Read, TracedReducer
from loopnest.tensor.domain import IterDomain, TensorDomain, Transform, ancestors
from loopnest.tensor.intents import take_back
from loopnest.tensor.tensor_view import TensorView


@primitive
def rfactor(tensor: TensorView, axes: Axis | Sequence[Axis], refold: bool = False) -> TensorView:
    """Factor `axes` of a reduction out into a new producer.

    Before ``y [i0, r1: D / 4, r2: 4]``; ``p = y.rfactor(1)`` gives ``p [i0, r1: D / 4, i2: 4]``
    and ``y [i0, r1: 4]``, which reduces p. Of a scan, p scans each segment by itself; the totals of
    the segments and their exclusive scan are made too, and y combines p with the latter: they are
    ``y.producers``.

    Args:
        tensor: a reduction or a scan.
        axes: reduction leaf axes that the new tensor reduces; at least one other must stay. All
            outputs of a multi-output reduction are factored alike. Of a scan, the innermost of the
            axes that its axis was split to.
        refold: of a scan: whether the totals fold the elements again, in place of reading the last
            one of each segment's scan, which may then be computed in the loops of `tensor`.

    Returns:
        The new producer (of a 16-bit tensor in float32: partial results are not rounded). Where
        `tensor` started a launch, this one does now, and `tensor` is computed in that launch.

    Raises:
        ScheduleError: no reduction, an axis that is none, all of them, or a frozen prefix.

    Source: nvFuser TensorView::rFactor; Suriana et al., "Parallel Associative Reductions in
    Halide", CGO 2017.
    """
    require_computed(tensor)
    require_not_atomic(tensor, "rfactor")
    require_not_instructed(tensor, "rfactor")
    places = _places(tensor, axes)
    definition = tensor.definition
    assert definition is not None
    assert definition.reducer is not None
    known = len(tensor.fusion.tensors)
    if definition.scan is not None:
        segments = factor_scan(tensor, places, refold)
        hand_over_launch(tensor, tensor.fusion.tensors[known:])
        return segments[definition.outputs.index(tensor)]
    if refold:
        raise PrimitiveRefused(
            f"refold is asked for, and {tensor.name} is no scan",
            "a reduction has no totals of segments; leave refold out",
        )
    if definition.reducer.ordered:
        _require_order(tensor, definition.reducer, places)
    partials = tuple([_partial(twin, places) for twin in tensor.siblings])
    moved = definition.with_outputs(partials)
    for partial in partials:
        partial.define(moved)
    for twin, partial in zip(definition.outputs, partials, strict=True):
        reduced = [twin.domain.leaf[place] for place in places]
        before = twin.domain
        rest = _rest(before, partial.domain, reduced, tensor.fusion.algebra)
        if definition.reducer.ordered and _reductions(rest.root) != _reductions(rest.rfactor):
            raise _out_of_order(tensor, definition.reducer)
        twin.bind(rest)
        carry_allocation(twin, before)
    final = _final(definition, partials)
    for twin in definition.outputs:
        twin.define(final)
    hand_over_launch(tensor, partials)
    return partials[definition.outputs.index(tensor)]


def _places(tensor: TensorView, axes: object) -> tuple[int, ...]:
    names = axis_names(tensor.domain)
    if tensor.definition is None or tensor.definition.reducer is None:
        raise PrimitiveRefused(f"{tensor.name} is no reduction", "rfactor factors a reduction")
    if tensor.frozen:
        raise PrimitiveRefused(
            f"the leading {tensor.frozen} loops of {tensor.name} are shared already",
            f"call rfactor before compute_at: {take_back(tensor)}",
        )
    several = isinstance(axes, Sequence) and not isinstance(axes, str)
    chosen = list(axes) if isinstance(axes, Sequence) and several else [axes]
    places = sorted([leaf_position(tensor, axis) for axis in chosen])
    if not places:
        raise PrimitiveRefused("no axis is named", f"the leaf axes are {names}")
    for place, after in pairwise(places):
        if place == after:
            text = place_text(tensor.domain.leaf[place], place)
            raise PrimitiveRefused(
                f"axis {text} of {tensor.name} is named twice", "name each reduction axis once"
            )
    if tensor.definition.scan is not None:
        return tuple(places)  # `factor_scan` asks for more
    for place in places:
        axis = tensor.domain.leaf[place]
        if not axis.is_reduction:
            raise PrimitiveRefused(
                f"axis {place_text(axis, place)} is no reduction axis",
                f"{tensor.name} has the leaf axes {names}",
            )
    rest = [a for n, a in enumerate(tensor.domain.leaf) if a.is_reduction and n not in places]
    if not rest:
        raise PrimitiveRefused(
            f"all reduction axes of {tensor.name} are named, so nothing is left to reduce",
            f"leave one of the reduction axes of {names} to {tensor.name}; split first",
        )
    above = ancestors([tensor.domain.leaf[place] for place in places], tensor.domain)
    if any(axis in above and not axis.is_reduction for axis in tensor.domain.rfactor):
        raise PrimitiveRefused(
            f"one of the axes was made by merging a broadcast axis of {tensor.name} with a "
            "reduction axis",
            "call rfactor before that merge: the result keeps the broadcast axis",
        )
    return tuple(places)


def _require_order(tensor: TensorView, reducer: TracedReducer, places: Sequence[int]) -> None:
    """Refuse to factor out what does not leave neighbours together.

    Raises:
        PrimitiveRefused: the new tensor would reduce elements that others lie between.
    """
    domain = tensor.domain
    reduced = [domain.leaf[place] for place in places]
    frontier = _frontier(domain, ancestors(reduced, domain))
    rest = [axis for axis in _reductions(frontier) if axis not in reduced]
    inner = [axis for axis in frontier if axis in reduced]
    if not keeps_order([*rest, *inner], domain):
        raise _out_of_order(tensor, reducer)


def _out_of_order(tensor: TensorView, reducer: TracedReducer) -> PrimitiveRefused:
    return PrimitiveRefused(
        f"{reducer.name} combines neighbours only (it need not commute), and between those that "
        "the new tensor would reduce there are others",
        f"factor out the innermost of the reduction axes of {axis_names(tensor.domain)}",
    )


def _reductions(axes: Sequence[IterDomain]) -> list[IterDomain]:
    return [axis for axis in axes if axis.is_reduction]


def _partial(tensor: TensorView, places: Sequence[int]) -> TensorView:
    """Return the producer that reduces the leaf axes `places`, without its definition."""
    domain, _ = clone_domain(tensor.domain, tensor.fusion.algebra)
    reduced = {domain.leaf[place] for place in places}
    above = ancestors(reduced, domain)
    for axis in _all_axes(domain):
        if axis.is_reduction and axis not in above:
            axis.kind = IterKind.ITERATION
    shaped = TensorDomain(domain.root, tuple(_frontier(domain, above)), domain.leaf)
    return new_tensor(tensor, shaped, tensor.dtype.compute)


def _all_axes(domain: TensorDomain) -> list[IterDomain]:
    return [*domain.root, *(axis for step in domain.history for axis in step.outputs)]


def _frontier(domain: TensorDomain, above: set[IterDomain]) -> list[IterDomain]:
    """Return the axes, from the rfactor domain down, that no reduced axis was made from."""
    axes = list(domain.rfactor)
    for step in domain.history:
        if above.isdisjoint(step.outputs) or not set(axes).issuperset(step.inputs):
            continue
        first = min(axes.index(axis) for axis in step.inputs)
        axes[first : first + 1] = [*step.outputs, axes[first]]
        axes = [axis for axis in axes if axis not in step.inputs]
    return axes


def _rest(
    old: TensorDomain,
    partial: TensorDomain,
    reduced: Sequence[IterDomain],
    algebra: Simplifier,
) -> TensorDomain:
    """Return the domain of the final reduction over the logical axes of `partial`."""
    above = ancestors(reduced, old)
    frontier = [a for a in _frontier(old, above) if a not in reduced]
    image: dict[IterDomain, IterDomain] = {}
    for mine, theirs in zip(frontier, partial.logical, strict=True):
        image[mine] = IterDomain(theirs.size, mine.kind)
        image[mine].parallel, image[mine].pinned = mine.parallel, mine.pinned
    root = tuple([image[axis] for axis in frontier])
    for step in old.history:
        if all(axis in image for axis in step.inputs) and step.outputs[0] not in image:
            _copy_step(step, image, algebra)
    rfactor = tuple([image[axis] for axis in old.rfactor if axis in image])
    extra = [a for a in root if a.is_reduction and a not in rfactor]
    whole = _ordered(root, rfactor, extra)
    return TensorDomain(root, whole, tuple([image[a] for a in old.leaf if a in image]))


def _ordered(
    root: tuple[IterDomain, ...], rfactor: tuple[IterDomain, ...], extra: list[IterDomain]
) -> tuple[IterDomain, ...]:
    if not extra or set(root) == {*rfactor, *extra}:
        return root if extra or rfactor == root else rfactor
    return (*rfactor, *extra)


def _copy_step(step: Transform, image: dict[IterDomain, IterDomain], algebra: Simplifier) -> None:
    copy = step.replay_named([image[axis] for axis in step.inputs], algebra)
    for mine, theirs in zip(step.outputs, copy.outputs, strict=True):
        theirs.kind, theirs.size = mine.kind, mine.size
        theirs.parallel, theirs.pinned, theirs.origin = mine.parallel, mine.pinned, mine.origin
        image[mine] = theirs


def _final(definition: Definition, partials: Sequence[TensorView]) -> Definition:
    axes = tuple(range(len(partials[0].domain.logical)))
    return Definition(
        definition.op,
        tuple(partials),
        tuple([Read.along(partial, axes) for partial in partials]),
        definition.outputs,
        tuple([Arg(n, partial.dtype) for n, partial in enumerate(partials)]),
        definition.reducer,
        "final",
    )
