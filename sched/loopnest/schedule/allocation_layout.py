"""Primitives that lay out the buffer of an intermediate tensor; loops stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from loopnest.scalar.enums import Memory, ParallelType, Swizzle
from loopnest.schedule.allocation_steps import (
    lay_out,
    require_count,
    require_intermediate,
    require_xor,
)
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    leaf_position,
    named_in_errors,
    place_text,
    primitive,
    require_not_atomic,
)
from loopnest.tensor.axis_names import Axis, AxisKey
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.layout_transforms import (
    is_power_of_two,
    paddings_of,
    stored_axes,
    swizzles_of,
)
from loopnest.tensor.tensor_view import AllocationDomain, TensorView, derived_axes

MOST_STAGES = 32
"""How many iterations a circular buffer may hold; each is written out before the loop."""


@primitive
@named_in_errors("order", "pad")
def set_allocation(
    tensor: TensorView,
    order: Sequence[Axis] | None = None,
    pad: Mapping[AxisKey, int] | None = None,
) -> TensorView:
    """Lay out a buffer in another order, or with gaps; see `TensorView.set_allocation`.

    Raises:
        ScheduleError: an input or output; no permutation of the leaf axes; a negative pad; a
            swizzle of axes that are no leaf axes any more.
    """
    require_intermediate(tensor)
    leaf = tensor.domain.leaf
    positions = list(range(len(leaf))) if order is None else _permutation(tensor, order)
    if pad is not None and not isinstance(pad, Mapping):
        raise PrimitiveRefused(f"pad={pad!r} is no mapping", "use {axis: count}")
    gaps: dict[IterDomain, int] = {}
    for axis, count in (pad or {}).items():
        place = leaf_position(tensor, axis)
        gaps[leaf[place]] = require_count(count, f"pad={{{axis}: {count!r}}}")
    _require_stored(tensor, [axis for axis, count in gaps.items() if count])
    stored = [leaf[place] for place in positions if not leaf[place].is_reduction]
    pairs = swizzles_of(tensor.domain.allocation or ())
    if any(axis not in stored for pair in pairs for axis in pair):
        raise PrimitiveRefused(
            f"the swizzle of {tensor.name} is over axes of its allocation domain "
            f"{AllocationDomain(tensor)} that are no leaf axes",
            f"change that domain by {tensor.name}.allocation_domain, or call its reset() first",
        )
    if order is None and not any(gaps.values()) and not pairs:
        tensor.bind(tensor.domain.with_allocation(None))
    else:
        lay_out(tensor, stored, pairs, gaps)
    return tensor


def _permutation(tensor: TensorView, order: object) -> list[int]:
    """Return the leaf positions that `order` names, each once."""
    if isinstance(order, str) or not isinstance(order, Sequence):
        raise PrimitiveRefused(f"order={order!r} is no list of axes", "name each leaf axis once")
    positions = [leaf_position(tensor, axis) for axis in order]
    if sorted(positions) != list(range(tensor.ndim)):
        raise PrimitiveRefused(
            f"order={list(order)!r} is no permutation of the {tensor.ndim} leaf axes of "
            f"{tensor.name}",
            "name each leaf axis once, the one that varies slowest first",
        )
    return positions


@primitive
def swizzle(tensor: TensorView, kind: Swizzle, a: Axis, b: Axis) -> TensorView:
    """Permute the elements of a SHARED buffer; see `TensorView.swizzle`.

    Raises:
        ScheduleError: the tensor is not SHARED, the axes are not two of one static power of two,
            or its allocation domain has them no more.
    """
    require_intermediate(tensor)
    require_xor(tensor, kind)
    places = leaf_position(tensor, a), leaf_position(tensor, b)
    axes = tensor.domain.leaf[places[0]], tensor.domain.leaf[places[1]]
    if axes[0] is axes[1]:
        raise PrimitiveRefused(f"axis {a} is given twice", "give two axes")
    if axes[0].size is not axes[1].size or not is_power_of_two(axes[0].size):
        raise PrimitiveRefused(
            f"axes {a} and {b} of {tensor.name} have the extents {axes[0].size} and {axes[1].size}",
            "two axes of one static power of two may be swizzled",
        )
    _require_stored(tensor, axes)
    stored = stored_axes(tensor.domain) or derived_axes(tensor)
    for place, axis in zip((a, b), axes, strict=True):
        if axis not in stored:
            raise PrimitiveRefused(
                f"axis {place} of {tensor.name} is none of its allocation domain "
                f"{AllocationDomain(tensor)}, which was laid out before",
                f"swizzle axes of {tensor.name}.allocation_domain, or call its reset() first",
            )
    lay_out(tensor, stored, (axes,), paddings_of(tensor.domain))
    return tensor


def _require_stored(tensor: TensorView, axes: Iterable[IterDomain]) -> None:
    """Refuse leaf axes that no buffer has."""
    for axis in axes:
        if axis.is_reduction:
            raise PrimitiveRefused(
                f"axis {place_text(axis, tensor.domain.leaf.index(axis))} of {tensor.name} is a "
                "reduction, which its buffer does not have",
                "name iteration axes",
            )


@primitive
def circular_buffer(tensor: TensorView, stages: int, prefetch: int | None = None) -> TensorView:
    """Compute a tensor some iterations ahead; see `TensorView.circular_buffer`.

    Raises:
        ScheduleError: fewer than 2 stages, or more than 32; a prefetch that is not less; a GLOBAL
            tensor, also one that is computed together with this one; an atomic one; not computed
            inside a serial loop.
    """
    for twin in tensor.siblings:
        require_intermediate(twin)
    if isinstance(stages, bool) or not isinstance(stages, int) or not 2 <= stages <= MOST_STAGES:
        raise PrimitiveRefused(f"stages={stages!r}", f"use an int from 2 to {MOST_STAGES}")
    ahead = stages - 1 if prefetch is None else prefetch
    if isinstance(ahead, bool) or not isinstance(ahead, int) or not 1 <= ahead < stages:
        raise PrimitiveRefused(
            f"prefetch={prefetch!r} of {stages} stages", f"use an int from 1 to {stages - 1}"
        )
    require_not_atomic(tensor, "circular_buffer")
    for twin in tensor.siblings:
        if twin.memory is Memory.GLOBAL:
            raise PrimitiveRefused(
                f"{twin.name} is in global memory",
                f"set {twin.name}.memory = ln.SHARED first, or ln.LOCAL",
            )
    _require_serial_loop(tensor)
    for twin in tensor.siblings:
        layout = replace(twin.layout, stages=stages, prefetch=ahead)
        tensor.fusion.change(twin, "layout", layout)
    return tensor


def _require_serial_loop(tensor: TensorView) -> None:
    """Require a serial loop as the innermost shared one, those over launch dimensions aside."""
    shared = tensor.domain.leaf[: tensor.compute_at_pos]
    own = [axis for axis in shared if not axis.parallel.is_thread]
    if own and own[-1].parallel is ParallelType.serial:
        return
    found = f"in a {(own or shared)[-1].parallel.value} loop" if shared else "at the root"
    raise PrimitiveRefused(
        f"{tensor.name} is computed {found}",
        "compute it inside a serial loop of its consumer first",
    )
