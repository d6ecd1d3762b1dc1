"""Between nest and allocation: which axes of an allocation domain a buffer holds, and their layout.

A buffer holds the part of a tensor that its loops compute while it lives. An axis of the
allocation domain whose index is the same all that time, because the loops that it follows from are
outside of the buffer's home, is not allocated. The index of each axis is found as that of an access
is, with a stand-in for each loop; so an axis need not be one of the loops' own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loopnest.base.errors import InternalError, LoweringError
from loopnest.lowering.loops.loop_plan import LoopPlan, is_atomic, is_trivial
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import ONE, ZERO, Expr, Index, free_indices, integer
from loopnest.tensor.domain import IterDomain, TensorDomain
from loopnest.tensor.layout_transforms import (
    is_power_of_two,
    paddings_of,
    stored_axes,
    swizzles_of,
)
from loopnest.tensor.tensor_view import TensorView

Places: TypeAlias = "Sequence[int]"
"""Leaf positions whose loops run while a buffer lives."""

IndexOf: TypeAlias = "Callable[[IterDomain], Expr | None]"

Indices: TypeAlias = "Callable[[TensorView, tuple[Expr | None, ...]], IndexOf]"
"""From a tensor and the indices of its loops to the index of an axis of its allocation domain."""


@dataclass(frozen=True, eq=False, slots=True)
class StoredAxes:
    """The dimensions of a buffer that somebody laid out.

    Args:
        axes: one axis of the allocation domain a dimension.
        extents: how many elements each has.
        places: the leaf positions of the axes; None where they are no leaf axes.
    """

    axes: tuple[IterDomain, ...]
    extents: tuple[Expr, ...]
    places: tuple[int, ...] | None


def on_chip(plan: LoopPlan, tensor: TensorView, places: Places, indices: Indices) -> StoredAxes:
    """Return what a LOCAL or SHARED buffer holds of the allocation domain.

    Where it is the leaf axes at `places`, these keep the order of the loops; other axes are in the
    order of memory. So are those of an atomic fold, whose initial values have loops of their own.

    Raises:
        LoweringError: several threads would store one element of a SHARED buffer.
    """
    leaf = tensor.domain.leaf
    stand_ins = _stand_ins(plan, tensor)
    running = {stand_ins[place] for place in places}
    index_of = indices(tensor, stand_ins)
    held: list[IterDomain] = []
    for axis in _in_memory(tensor.domain):
        if not axis.is_iteration:
            continue
        value = index_of(axis)
        if value is None:
            raise InternalError(
                tensor.name, f"an axis of its allocation domain has no index: {axis!r}"
            )
        if not running.isdisjoint(free_indices(value)) or (
            not free_indices(value) and plan.algebra.simplify(axis.size) is not ONE
        ):  # where one element is all of it, its extent tells launches what it is split by
            held.append(axis)
    if not is_atomic(tensor) and set(held) == {leaf[place] for place in places}:
        extents = tuple([plan.spec(leaf[place]).extent for place in places])
        return StoredAxes(tuple([leaf[place] for place in places]), extents, tuple(places))
    _require_one_store(plan, tensor)
    return StoredAxes(tuple(held), _sizes(plan, held), None)


def in_global(plan: LoopPlan, tensor: TensorView) -> StoredAxes:
    """Return the dimensions of a GLOBAL buffer: the whole allocation domain.

    Logical axes keep their order; others are in the order of memory.
    """
    axes, logical = stored_axes(tensor.domain), tensor.domain.logical
    if set(axes) == set(logical):
        return StoredAxes(logical, _sizes(plan, logical), ())
    return StoredAxes(axes, _sizes(plan, axes), None)


def strides_of(
    plan: LoopPlan, tensor: TensorView, stored: StoredAxes
) -> tuple[tuple[Expr, ...], Expr]:
    """Return the stride of each dimension, and how many elements all of them take."""
    algebra, gaps = plan.algebra, paddings_of(tensor.domain)
    extent = dict(zip(stored.axes, stored.extents, strict=True))
    stride: dict[IterDomain, Expr] = {}
    step: Expr = ONE
    for axis in reversed(_in_memory(tensor.domain)):
        if axis in extent:
            stride[axis] = step
            step = algebra.mul(step, algebra.add(extent[axis], integer(gaps.get(axis, 0))))
    return tuple([stride[axis] for axis in stored.axes]), step


def swizzles(plan: LoopPlan, tensor: TensorView, stored: StoredAxes) -> tuple[tuple[int, int], ...]:
    """Return the pairs of dimensions that are swizzled.

    Raises:
        LoweringError: the buffer lacks an axis of one, or its loops give it another extent.
    """
    result: list[tuple[int, int]] = []
    for pair in swizzles_of(tensor.domain.allocation or ()):
        # (a, b ^ a) with as many bits of `a` as `b` has: of one element, either has none to move.
        if ONE in _sizes(plan, pair):
            continue
        places = [stored.axes.index(axis) for axis in pair if axis in stored.axes]
        if tensor.memory is not Memory.SHARED or len(places) != 2:
            raise LoweringError(
                tensor.name,
                f"its swizzle is over axes that its buffer in {tensor.memory.value} memory lacks",
                "swizzle two axes that a SHARED buffer holds: those right of the compute-at "
                "position, and those bound to threads of a block",
            )
        found = [stored.extents[place] for place in places]
        if not all(map(is_power_of_two, found)):
            raise LoweringError(
                tensor.name,
                f"its swizzle is over axes of the extents {found[0]} and {found[1]} in the loops "
                "that it shares",
                "swizzle axes of static powers of two there, too",
            )
        result.append((places[0], places[1]))
    return tuple(result)


def _in_memory(domain: TensorDomain) -> tuple[IterDomain, ...]:
    """Return the axes of a buffer in the order of memory: the logical ones unless laid out."""
    return stored_axes(domain) if domain.allocation is not None else domain.logical


def _sizes(plan: LoopPlan, axes: Sequence[IterDomain]) -> tuple[Expr, ...]:
    return tuple([plan.algebra.simplify(axis.size) for axis in axes])


def _stand_ins(plan: LoopPlan, tensor: TensorView) -> tuple[Expr | None, ...]:
    """Return an index for each loop of a tensor, none for reductions."""
    result: list[Expr | None] = []
    for place, axis in enumerate(tensor.domain.leaf):
        spec = plan.spec(axis)
        index: Expr = ZERO if is_trivial(spec) else Index(f"i{place}", spec.extent)
        result.append(None if axis.is_reduction else index)
    return tuple(result)


def _require_one_store(plan: LoopPlan, tensor: TensorView) -> None:
    """Refuse threads of a block that compute one element, each in a place of its own so far."""
    if tensor.memory is not Memory.SHARED:
        return
    promoter = plan.promoter
    held = promoter.held(tensor.siblings[0])
    for axis, node in zip(tensor.domain.leaf, plan.promotions[tensor].leaf, strict=True):
        keys, spec = promoter.concrete_keys(node), plan.spec(axis)
        if spec.parallel.is_block and not is_trivial(spec) and keys - held and keys & held:
            raise LoweringError(
                tensor.name,
                f"its buffer is laid out by its own axes, but several threads of the "
                f"{spec.parallel.value} loop {spec.axis} compute one element",
                "lay out the axis that is bound to these threads, or bind one that it has",
            )
