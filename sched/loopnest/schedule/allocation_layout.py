"""Primitives that lay out the buffer of an intermediate tensor; loops stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from loopnest.scalar.enums import IterKind, Memory, ParallelType, Swizzle
from loopnest.scalar.expr import Const
from loopnest.schedule.transaction import PrimitiveRefused, leaf_position, primitive
from loopnest.tensor.buffer_layout import BufferLayout
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.tensor_view import TensorView

MOST_STAGES = 32
"""How many iterations a circular buffer may hold; each is written out before the loop."""


@primitive
def set_allocation(
    tensor: TensorView, order: Sequence[int] | None = None, pad: Mapping[int, int] | None = None
) -> TensorView:
    """Lay out a buffer in another order, or with gaps; see `TensorView.set_allocation`.

    Raises:
        ScheduleError: an input or output; no permutation of the leaf axes; a negative pad.
    """
    _require_intermediate(tensor)
    leaf = tensor.domain.leaf
    places: tuple[IterDomain, ...] | None = None
    if order is not None:
        if isinstance(order, str) or not isinstance(order, Sequence):
            raise PrimitiveRefused(
                f"order={order!r} is no list of axes", "name each leaf axis once"
            )
        positions = [leaf_position(tensor, axis) for axis in order]
        if sorted(positions) != list(range(len(leaf))):
            raise PrimitiveRefused(
                f"order={list(order)!r} is no permutation of the {len(leaf)} leaf axes of "
                f"{tensor.name}",
                "name each leaf axis once, the one that varies slowest first",
            )
        places = tuple([leaf[place] for place in positions])
    gaps: list[tuple[IterDomain, int]] = []
    if pad is not None and not isinstance(pad, Mapping):
        raise PrimitiveRefused(f"pad={pad!r} is no mapping", "use {axis: count}")
    for axis, count in (pad or {}).items():
        place = leaf_position(tensor, axis)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise PrimitiveRefused(
                f"pad={{{axis}: {count!r}}} is no number of elements", "use an int >= 0"
            )
        gaps.append((leaf[place], count))
    _change(tensor, replace(tensor.layout, order=places, pad=tuple(gaps)))
    return tensor


@primitive
def swizzle(tensor: TensorView, kind: Swizzle, a: int, b: int) -> TensorView:
    """Permute the elements of a SHARED buffer; see `TensorView.swizzle`.

    Raises:
        ScheduleError: the tensor is not SHARED, or the axes are not two of one static power of two.
    """
    _require_intermediate(tensor)
    if kind is not Swizzle.XOR:
        raise PrimitiveRefused(f"{kind!r} is no swizzle", "use ln.Swizzle.XOR")
    _require_shared(tensor)
    places = leaf_position(tensor, a), leaf_position(tensor, b)
    axes = tensor.domain.leaf[places[0]], tensor.domain.leaf[places[1]]
    if axes[0] is axes[1]:
        raise PrimitiveRefused(f"axis {a} is given twice", "give two axes")
    sizes = [int(x.size.value) if isinstance(x.size, Const) else 0 for x in axes]
    if sizes[0] != sizes[1] or sizes[0] < 1 or sizes[0] & (sizes[0] - 1):
        raise PrimitiveRefused(
            f"axes {a} and {b} of {tensor.name} have the extents {axes[0].size} and {axes[1].size}",
            "two axes of one static power of two may be swizzled",
        )
    _change(tensor, replace(tensor.layout, swizzle=axes))
    return tensor


@primitive
def circular_buffer(tensor: TensorView, stages: int) -> TensorView:
    """Compute a SHARED tensor some iterations ahead; see `TensorView.circular_buffer`.

    Raises:
        ScheduleError: fewer than 2 stages, or more than 32; not SHARED; not computed inside a
            serial loop; a reduction, or several outputs of one definition.
    """
    _require_intermediate(tensor)
    if isinstance(stages, bool) or not isinstance(stages, int) or not 2 <= stages <= MOST_STAGES:
        raise PrimitiveRefused(f"stages={stages!r}", f"use an int from 2 to {MOST_STAGES}")
    _require_shared(tensor)
    definition = tensor.definition
    assert definition is not None
    if definition.reducer is not None:
        raise PrimitiveRefused(
            f"{tensor.name} is a reduction", "a pointwise tensor may run ahead: a copy"
        )
    if len(definition.outputs) > 1:
        twins = ", ".join([twin.name for twin in definition.outputs if twin is not tensor])
        raise PrimitiveRefused(
            f"{tensor.name} is computed together with {twins}",
            "a tensor that is computed alone may run ahead: a copy (cache_after)",
        )
    pos = tensor.compute_at_pos
    if pos == 0 or tensor.domain.leaf[pos - 1].parallel is not ParallelType.serial:
        found = "at the root" if pos == 0 else f"in a {tensor.domain.leaf[pos - 1].parallel.value}"
        raise PrimitiveRefused(
            f"{tensor.name} is computed {found}{' loop' if pos else ''}",
            "compute it inside a serial loop of its consumer first",
        )
    if tensor.domain.leaf[pos - 1].kind is IterKind.REDUCTION:
        raise PrimitiveRefused(
            f"axis {pos - 1} of {tensor.name} is a reduction", "use an iteration axis"
        )
    _change(tensor, replace(tensor.layout, stages=stages))
    return tensor


def _change(tensor: TensorView, layout: BufferLayout) -> None:
    tensor.fusion.change(tensor, "layout", layout)


def _require_intermediate(tensor: TensorView) -> None:
    if tensor.is_input or tensor.is_output:
        role = "an input" if tensor.is_input else "an output"
        raise PrimitiveRefused(
            f"{tensor.name} is {role}, whose layout is the caller's",
            "lay out an intermediate: cache_before or cache_after makes one",
        )


def _require_shared(tensor: TensorView) -> None:
    if tensor.memory is not Memory.SHARED:
        raise PrimitiveRefused(
            f"{tensor.name} is in {tensor.memory.value} memory",
            f"set {tensor.name}.memory = ln.SHARED first",
        )
