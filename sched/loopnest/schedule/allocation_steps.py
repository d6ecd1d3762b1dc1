"""Primitives of the allocation domain: the buffer of a tensor is laid out, loops stay as they are.

`AllocationDomain` hands over to them, and errors show them as its methods. Splits and merges give
the axes of the buffer; padding and swizzles come last, on axes that are not split or merged again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import Concatenate, ParamSpec

from loopnest.scalar.enums import Memory, Swizzle
from loopnest.scalar.expr import Expr, whole
from loopnest.schedule.transaction import (
    PrimitiveRefused,
    named_place,
    new_places,
    primitive,
    require_flag,
    require_not_atomic,
)
from loopnest.schedule.transforms import factor_of
from loopnest.tensor.axis_names import Axis, AxisKey
from loopnest.tensor.domain import IterDomain, Merge, Split
from loopnest.tensor.layout_transforms import (
    Padding,
    XorSwizzle,
    is_power_of_two,
    padding_of,
    stored_axis,
    swizzles_of,
)
from loopnest.tensor.tensor_view import AllocationDomain, TensorView, derived_axes

P = ParamSpec("P")


def _step(
    run: Callable[Concatenate[TensorView, P], AllocationDomain],
) -> Callable[Concatenate[AllocationDomain, P], AllocationDomain]:
    """Make `run` a primitive that errors show as a method of ``T1.allocation_domain``."""
    run.__name__ = f"allocation_domain.{run.__name__}"
    step = primitive(run)

    @wraps(step)
    def method(domain: AllocationDomain, /, *args: P.args, **kwargs: P.kwargs) -> AllocationDomain:
        return step(domain.tensor, *args, **kwargs)

    return method


@_step
def split(
    tensor: TensorView, axis: Axis, factor: int | str | Expr, *, inner: bool = True
) -> AllocationDomain:
    """Split an axis in two; see `AllocationDomain.split`."""
    axes = _axes(tensor)
    place = _plain(tensor, axes, axis, "split")
    size = factor_of(tensor, factor)
    require_flag("inner", inner)
    made = Split(axes[place], size, tensor.fusion.algebra, inner=inner).outputs
    return _bind(tensor, (*axes[:place], *made, *axes[place + 1 :]))


@_step
def merge(tensor: TensorView, axis: Axis, other: Axis | None = None) -> AllocationDomain:
    """Merge two axes into one; see `AllocationDomain.merge`."""
    axes = _axes(tensor)
    outer = _plain(tensor, axes, axis, "merge")
    if other is None and outer == len(axes) - 1:
        raise PrimitiveRefused(
            f"axis {outer} is the last of the allocation domain {AllocationDomain(tensor)}, there "
            "is none to merge it with",
            f"name the inner axis: merge({outer}, other)",
        )
    inner = _plain(tensor, axes, outer + 1 if other is None else other, "merge")
    if outer == inner:
        raise PrimitiveRefused(f"axis {outer} cannot be merged with itself", "name two axes")
    a, b = axes[outer], axes[inner]
    merged = Merge(a, b, tensor.fusion.algebra).outputs[0]
    rest = [x for x in axes if x is not a and x is not b]
    rest.insert(min(outer, inner), merged)
    return _bind(tensor, rest)


@_step
def reorder(
    tensor: TensorView,
    order: Mapping[AxisKey, Axis] | Sequence[Axis] | int,
    *more: Axis,
) -> AllocationDomain:
    """Permute the axes in memory; see `AllocationDomain.reorder`."""
    axes = _axes(tensor)
    listed = f"the allocation domain of {tensor.name} is {AllocationDomain(tensor)}"
    moves = new_places((order, *more), len(axes), partial(_place, tensor, axes), listed)
    free = iter([axis for place, axis in enumerate(axes) if place not in moves])
    wanted = {new: axes[old] for old, new in moves.items()}
    return _bind(tensor, [wanted[n] if n in wanted else next(free) for n in range(len(axes))])


@_step
def pad(tensor: TensorView, axis: Axis, count: int) -> AllocationDomain:
    """Add unused elements to an axis; see `AllocationDomain.pad`."""
    axes = _axes(tensor)
    place = _place(tensor, axes, axis)
    gaps = {stored_axis(a): padding_of(a) for a in axes}
    gaps[stored_axis(axes[place])] += require_count(count, f"count={count!r}")
    return lay_out(tensor, tuple(gaps), swizzles_of(axes), gaps)


@_step
def swizzle(tensor: TensorView, kind: Swizzle, a: Axis, b: Axis) -> AllocationDomain:
    """Permute the elements of two axes of a SHARED buffer; see `AllocationDomain.swizzle`."""
    axes = _axes(tensor)
    require_xor(tensor, kind)
    places = _place(tensor, axes, a), _place(tensor, axes, b)
    if places[0] == places[1]:
        raise PrimitiveRefused(f"axis {a} is given twice", "give two axes")
    row, column = [stored_axis(axes[place]) for place in places]
    if not is_power_of_two(row.size) or not is_power_of_two(column.size):
        raise PrimitiveRefused(
            f"axes {a} and {b} of the allocation domain of {tensor.name} have the extents "
            f"{row.size} and {column.size}",
            "two axes of static powers of two may be swizzled",
        )
    gaps = {stored_axis(a): padding_of(a) for a in axes}
    return lay_out(tensor, tuple(gaps), (*swizzles_of(axes), (row, column)), gaps)


@_step
def reset(tensor: TensorView) -> AllocationDomain:
    """Let the buffer follow from the loops again; see `AllocationDomain.reset`."""
    require_intermediate(tensor)
    tensor.bind(tensor.domain.with_allocation(None))
    return AllocationDomain(tensor)


# What the primitives of leaf axes share with these


def lay_out(
    tensor: TensorView,
    stored: Sequence[IterDomain],
    pairs: Iterable[tuple[IterDomain, ...]],
    gaps: Mapping[IterDomain, int],
) -> AllocationDomain:
    """Give `tensor` the allocation domain of some stored axes, with swizzles, then padding.

    Args:
        tensor: an intermediate.
        stored: the axes, in the order of memory.
        pairs: those of `stored` that are swizzled, the row first, in order.
        gaps: how many unused elements each of `stored` gets.
    """
    axes = {axis: axis for axis in stored}
    for row, column in pairs:
        axes[row], axes[column] = XorSwizzle(axes[row], axes[column]).outputs
    algebra = tensor.fusion.algebra
    made = [
        Padding(axes[a], gaps[a], algebra).outputs[0] if gaps.get(a) else axes[a] for a in stored
    ]
    return _bind(tensor, made)


def require_count(count: object, shown: str) -> int:
    """Return a number of elements to pad by.

    Raises:
        Refusal: no int >= 0.
    """
    found = whole(count)
    if found is None or found < 0:
        raise PrimitiveRefused(f"{shown} is no number of elements", "use an int >= 0")
    return found


def require_xor(tensor: TensorView, kind: object) -> None:
    """Refuse what is no swizzle, and tensors that are not SHARED."""
    if kind is not Swizzle.XOR:
        raise PrimitiveRefused(f"{kind!r} is no swizzle", "use ln.Swizzle.XOR")
    require_shared(tensor)


def require_intermediate(tensor: TensorView) -> None:
    """Refuse to lay out an input or an output."""
    if tensor.is_input or tensor.is_output:
        role = "an input" if tensor.is_input else "an output"
        raise PrimitiveRefused(
            f"{tensor.name} is {role}, whose layout is the caller's",
            "lay out an intermediate: cache_before or cache_after makes one",
        )
    require_not_atomic(tensor, "a layout")


def require_shared(tensor: TensorView) -> None:
    """Refuse a tensor that is not SHARED."""
    if tensor.memory is not Memory.SHARED:
        raise PrimitiveRefused(
            f"{tensor.name} is in {tensor.memory.value} memory",
            f"set {tensor.name}.memory = ln.SHARED first",
        )


def _axes(tensor: TensorView) -> tuple[IterDomain, ...]:
    """Return the axes that the buffer of an intermediate is laid out by so far."""
    require_intermediate(tensor)
    own = tensor.domain.allocation
    return derived_axes(tensor) if own is None else own


def _bind(tensor: TensorView, axes: Sequence[IterDomain]) -> AllocationDomain:
    tensor.bind(tensor.domain.with_allocation(axes))
    return AllocationDomain(tensor)


def _place(tensor: TensorView, axes: Sequence[IterDomain], axis: object) -> int:
    """Return a position in the allocation domain, counted from the front."""
    if isinstance(axis, str):
        stored = [stored_axis(a) for a in axes]
        return named_place(stored, axis, f"the allocation domain of {tensor.name}")
    position, count = whole(axis), len(axes)
    if position is None:
        raise PrimitiveRefused(
            f"axis {axis!r} is not an int",
            "axes of an allocation domain are given by position, or by name",
        )
    if not -count <= position < count:
        allowed = f"use {-count}..{count - 1}" if count else "it has no axis to name"
        raise PrimitiveRefused(
            f"axis {position} is out of range",
            f"the allocation domain of {tensor.name} is {AllocationDomain(tensor)}: {allowed}",
        )
    return position % count


def _plain(tensor: TensorView, axes: Sequence[IterDomain], axis: object, call: str) -> int:
    """Return the position of an axis that has neither padding nor a swizzle yet."""
    place = _place(tensor, axes, axis)
    found = axes[place]
    if stored_axis(found) is not found:
        rows = {row for row, _ in swizzles_of(axes)} | {column for _, column in swizzles_of(axes)}
        how = "swizzled" if stored_axis(found) in rows else "padded"
        raise PrimitiveRefused(
            f"axis {place} of the allocation domain of {tensor.name} is {how}",
            f"{call} first, then pad and swizzle (XOR of two axes is XOR of their parts)",
        )
    return place
