"""Parts of tensors, elements in another order, and tensors beside each other.

The functions are slice, flip, roll, concatenate and stack; ``tv[...]`` is `basic_index`.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import TypeAlias

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import ZERO, Arg, Expr, Op, Symbol, cast, integer, walk, whole
from loopnest.tensor.ops.construction import (
    Axis,
    Demands,
    along,
    axes_of,
    axis_of,
    compared,
    define,
    insert_axes,
    normalized_axes,
    position,
    replaced,
    static,
    view,
)
from loopnest.tensor.ops.operands import (
    OperandRefused,
    call_text,
    common_type,
    fusion_of,
    kind_text,
    require_tensor,
    show,
)
from loopnest.tensor.tensor_view import Read, TensorView

Bound: TypeAlias = "int | str | Expr | None"
"""A bound of a slice: an int, a size symbol by name, a size expression, or None for the end."""
Item: TypeAlias = "int | builtins.slice | EllipsisType | None"
"""What stands in an index: ``tv[0, 1:-1, ::-2, None, ...]``."""

_ITEMS = "use ints, slices, None and one ..., as in tv[1:-1, ::-2, None, ..., 0]"


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of an axis that is taken: ``first + i * step`` for i below `count`; or one element.

    Args:
        first: the index of the first element.
        step: from one element to the next.
        count: how many elements; None where the axis is removed.
    """

    first: Expr
    step: int
    count: Expr | None


def slice(
    tv: TensorView,
    starts: Sequence[Bound],
    stops: Sequence[Bound],
    steps: Sequence[int] | None = None,
) -> TensorView:
    """Return the elements of `tv` from `starts` to before `stops`, `steps` apart, along every axis.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("every_other") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.slice(x, [1], [None], [2]), "y")
    >>> ln.evaluate(f, np.arange(6, dtype=np.float32))
    array([1., 3., 5.], dtype=float32)

    Along an axis of static extent, static bounds are clipped as NumPy's. Others must satisfy
    ``0 <= start <= stop <= extent``, which every launch checks.

    Args:
        tv: the operand.
        starts: a bound an axis: an int, a size symbol by name, a size expression, or None. An int
            below 0 counts from the end, and so does an expression that is never above 0,
            ``-(N // 2)``; launches refuse sizes for which it is 0.
        stops: likewise.
        steps: an int an axis, not 0; by default 1. A negative one starts from the end.

    Raises:
        DefinitionError: no TensorView, not one bound an axis, a bad bound, or a step of 0.

    Source: numpy, "Basic slicing and indexing"; XLA's `Slice`.
    """
    require_tensor("slice", tv, starts, stops)
    rank = len(tv.domain.logical)
    call = call_text("slice", (tv, starts, stops), "" if steps is None else f"steps={show(steps)}")
    columns: list[Sequence[object]] = []
    for what, given in (("starts", starts), ("stops", stops), ("steps", steps)):
        column = [None] * rank if given is None and what == "steps" else given
        if not isinstance(column, (tuple, list)) or len(column) != rank:
            hint = f"give one for each of the {rank} axes of {tv.name}, in a tuple"
            raise DefinitionError(call, f"{what} is {show(given)}", hint)
        columns.append(column)
    items = [builtins.slice(*bounds) for bounds in zip(*columns, strict=True)]
    return _taken("slice", call, tv, items)


def basic_index(tv: TensorView, key: object) -> TensorView:
    """Return ``tv[key]`` by NumPy's basic indexing: ints, slices, None and one ``...``.

    An int, or a size expression, removes its axis, None inserts a broadcast axis.

    Raises:
        DefinitionError: an index of another kind, too many, or one that is out of range.
    """
    call = f"{tv.name}[{_key_text(key)}]"
    require_tensor("getitem", tv)
    items = list(key) if isinstance(key, tuple) else [key]
    for item in items:
        basic = item is None or item is ... or isinstance(item, builtins.slice)
        if not basic and whole(item) is None and not _is_size(item):
            raise DefinitionError(call, f"{show(item)} is no basic index", _ITEMS)
    dots = [place for place, item in enumerate(items) if item is ...]
    if len(dots) > 1:
        raise DefinitionError(call, "... stands twice", _ITEMS)
    rank = len(tv.domain.logical)
    named = len([item for item in items if item is not None and item is not ...])
    if named > rank:
        raise DefinitionError(call, f"it has {named} indices", f"{tv.name} has {rank} axes")
    place = dots[0] if dots else len(items)
    rest: list[object] = [builtins.slice(None)] * (rank - named)
    items[place : place + 1] = rest
    taken = _taken("getitem", call, tv, [item for item in items if item is not None])
    kept = [item for item in items if item is None or isinstance(item, builtins.slice)]
    if len(kept) == len(taken.domain.logical):
        return taken
    return insert_axes(taken, [item is None for item in kept])


def _is_size(item: object) -> bool:
    return isinstance(item, Expr) and item.dtype is dtypes.index


def _key_text(key: object) -> str:
    items = key if isinstance(key, tuple) else (key,)
    return ", ".join([_item_text(item) for item in items])


def _item_text(item: object) -> str:
    if item is ...:
        return "..."
    if not isinstance(item, builtins.slice):
        return show(item)
    parts = ["" if bound is None else show(bound) for bound in (item.start, item.stop)]
    return ":".join([*parts, *([show(item.step)] if item.step is not None else [])])


def _taken(op: str, call: str, tv: TensorView, items: Sequence[object]) -> TensorView:
    """Return what `items`, an int or a slice an axis, take of `tv`: itself where that is all."""
    demands = Demands(tv.fusion.algebra)
    old = axes_of(tv)
    try:
        parts = [
            _part(tv, demands, place, size, item)
            for place, ((size, _), item) in enumerate(zip(old, items, strict=True))
        ]
    except OperandRefused as refused:
        raise DefinitionError(call, refused.reason, refused.hint) from None
    axes: list[Axis] = []
    indices: list[Expr] = []
    for part, axis in zip(parts, old, strict=True):
        if part.count is None:
            indices.append(part.first)
            continue
        whole = part.count is axis[0] and part.step == 1
        new = axis if whole else axis_of(part.count)
        indices.append(_index(tv, part, along(len(axes), new)))
        axes.append(new)
    for part in parts:
        _declare(tv, part.first)
        _declare(tv, ZERO if part.count is None else part.count)
    tv.fusion.require(*demands.conditions)
    if op == "getitem" and axes == old:
        identity = [along(n, axis) for n, axis in enumerate(old)]
        if indices == identity:
            return tv
    return view(op, tv, indices, axes, f"[{', '.join([_part_text(part) for part in parts])}]")


def _declare(tv: TensorView, value: Expr) -> None:
    """Make the symbols of a bound sizes of the fusion."""
    for node in walk(value):
        if isinstance(node, Symbol):
            tv.fusion.size(tv.name, node.name)


def _part_text(part: _Part) -> str:
    if part.count is None:
        return str(part.first)
    by = "" if part.step == 1 else f" by {part.step}"
    return f"{part.count} from {part.first}{by}"


def _index(tv: TensorView, part: _Part, coordinate: Expr) -> Expr:
    algebra = tv.fusion.algebra
    return algebra.add(algebra.mul(coordinate, integer(part.step)), part.first)


def _part(tv: TensorView, demands: Demands, axis: int, size: Expr, item: object) -> _Part:
    if not isinstance(item, builtins.slice):
        return _element(tv, demands, axis, size, item)
    step = 1 if item.step is None else whole(item.step)
    if not step:
        raise OperandRefused(
            f"the step {show(item.step)} of axis {axis} is no int other than 0",
            "use an int such as 2 or -1",
        )
    start, stop = [_bound(tv, axis, bound) for bound in (item.start, item.stop)]
    extent, ints = static(size), [b for b in (start, stop) if b is not None and static(b) is None]
    if extent is not None and not ints:
        taken = range(extent)[builtins.slice(_number(start), _number(stop), step)]
        return _Part(integer(taken.start), step, integer(len(taken)))
    return _symbolic(tv, demands, axis, size, start, stop, step)


def _number(bound: Expr | None) -> int | None:
    return None if bound is None else static(bound)


def _symbolic(
    tv: TensorView,
    demands: Demands,
    axis: int,
    size: Expr,
    start: Expr | None,
    stop: Expr | None,
    step: int,
) -> _Part:
    """Return a part whose bounds are known at launch: the elements from `low` to before `high`."""
    algebra = tv.fusion.algebra
    start, stop = [_from_end(tv, demands, axis, size, b) for b in (start, stop)]
    if step > 0:
        low, high = ZERO if start is None else start, size if stop is None else stop
    else:
        one = integer(1)
        low = ZERO if stop is None else algebra.add(stop, one)
        high = size if start is None else algebra.add(start, one)
    span = f"the part of axis {axis} from {low} to {high}"
    hint = f"{tv.name} is {tv.signature}: its bounds must satisfy 0 <= start <= stop <= {size}"
    demands.at_most(ZERO, low, f"{span} starts below 0", hint)
    demands.at_most(low, high, f"{span} ends before it starts", hint)
    demands.at_most(high, size, f"{span} ends beyond the axis", hint)
    count = algebra.ceildiv(algebra.sub(high, low), integer(abs(step)))
    return _Part(low if step > 0 else algebra.sub(high, integer(1)), step, count)


def _from_end(
    tv: TensorView, demands: Demands, axis: int, size: Expr, bound: Expr | None
) -> Expr | None:
    """Return a bound as a place from the front: one that is below 0 counts from the end.

    A bound such as ``-(N // 2)`` is 0 for some sizes, which would be a place in front: launches
    refuse these.
    """
    algebra = tv.fusion.algebra
    if bound is None or bound is ZERO or not algebra.holds_le(bound, ZERO):
        return bound
    reason = f"the bound {bound} of axis {axis} counts from the end, and is not below 0"
    demands.at_most(integer(1), algebra.sub(ZERO, bound), reason)
    return algebra.add(size, bound)


def _bound(tv: TensorView, axis: int, bound: object) -> Expr | None:
    """Return a bound as an index expression."""
    number = whole(bound)
    if number is not None:
        return integer(number)
    if bound is None:
        return None
    if isinstance(bound, Expr):
        return bound
    if isinstance(bound, str) and bound.isidentifier() and bound not in tv.fusion._names:
        return Symbol(bound)
    if isinstance(bound, str) and set(bound) & set("+-*/%("):
        return tv.fusion.size(f"{tv.name}[{bound!r}]", bound)
    raise OperandRefused(
        f"the bound {show(bound)} of axis {axis} is no index",
        "use an int, the name of a size symbol, a size expression or None",
    )


def _element(tv: TensorView, demands: Demands, axis: int, size: Expr, item: object) -> _Part:
    algebra = tv.fusion.algebra
    reason, hint = f"index {item} of axis {axis} is out of range", f"{tv.name} is {tv.signature}"
    first = _from_end(tv, demands, axis, size, _bound(tv, axis, item))
    assert first is not None
    demands.at_most(ZERO, first, reason, hint)
    demands.at_most(algebra.add(first, integer(1)), size, reason, hint)
    return _Part(first, 1, None)


def flip(tv: TensorView, axis: int | Sequence[int] | None = None) -> TensorView:
    """Return `tv` with its elements in reverse order along `axis` (all axes for None).

    Raises:
        DefinitionError: no TensorView, or axes that it does not have.

    Args:
        tv: the operand.
        axis: an axis, several, or None for all; negative from the end.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.flip(x), "y")
    >>> print(ln.evaluate(f, np.arange(4, dtype=np.float32)))
    [3. 2. 1. 0.]

    Source: numpy.flip.
    """
    axes = normalized_axes("flip", tv, axis)
    algebra, old = tv.fusion.algebra, axes_of(tv)
    indices: list[Expr] = []
    for place, (size, kind) in enumerate(old):
        own = along(place, (size, kind))
        if place in axes and own is not ZERO:
            own = algebra.sub(algebra.sub(size, integer(1)), own)
        indices.append(own)
    return view("flip", tv, indices, old, f"axis={axes[0] if len(axes) == 1 else axes}")


def roll(tv: TensorView, shift: int | Sequence[int], axis: int | Sequence[int]) -> TensorView:
    """Return `tv` with its elements moved by `shift` along `axis`, those beyond the end in front.

    Element i is ``tv[(i - shift) mod n]``.

    Args:
        tv: the operand.
        shift: how far, an int; or one for each of several axes.
        axis: along which axis; or several.

    Raises:
        DefinitionError: no TensorView, axes that it does not have, or not one int an axis.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.roll(x, 1, 0), "y")
    >>> print(ln.evaluate(f, np.arange(4, dtype=np.float32)))
    [3. 0. 1. 2.]

    Source: numpy.roll.
    """
    require_tensor("roll", tv, shift, axis)
    call = call_text("roll", (tv, shift, axis))
    chosen = list(axis) if isinstance(axis, (tuple, list)) else [axis]
    shifts = list(shift) if isinstance(shift, (tuple, list)) else [shift] * len(chosen)
    numbers = [whole(number) for number in shifts]
    if len(numbers) != len(chosen) or None in numbers:
        hint = "give an int, or a tuple of ints, one an axis"
        raise DefinitionError(call, f"the shift is {show(shift)}", hint)
    for place, number in zip(chosen, numbers, strict=True):
        (at,) = normalized_axes("roll", tv, place)
        assert number is not None
        tv = _rolled(tv, number, at)
    return tv


def _rolled(tv: TensorView, shift: int, axis: int) -> TensorView:
    algebra, axes, note = tv.fusion.algebra, axes_of(tv), f"shift={shift}, axis={axis}"
    own = [along(place, found) for place, found in enumerate(axes)]
    size = axes[axis][0]
    extent = static(size)
    by: Expr = integer(shift if extent is None else shift % max(extent, 1))
    if own[axis] is ZERO or by is ZERO:
        return view("roll", tv, own, axes, note)
    back = algebra.sub(own[axis], by)
    if not algebra.holds_le(integer(abs(shift)), size) and extent is None:
        return view("roll", tv, replaced(own, axis, algebra.mod(back, size)), axes, note)
    ahead = algebra.add(back, size)
    if shift < 0 and extent is None:
        back, ahead, by = algebra.sub(back, size), back, algebra.add(size, by)
    reads = (Read(tv, replaced(own, axis, ahead)), Read(tv, replaced(own, axis, back)))
    both = (Arg(0, tv.dtype), Arg(1, tv.dtype))
    value = Op("where", (compared("lt", own[axis], by), *both), tv.dtype)
    return define(tv.fusion, "roll", (tv,), reads, axes, tv.dtype, value, note)


def concatenate(tensors: Sequence[TensorView], axis: int = 0) -> TensorView:
    """Return `tensors` behind each other along `axis`, in their common type.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("joined") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.concatenate([x, x * 10]), "y")
    >>> ln.evaluate(f, np.arange(2, dtype=np.float32))
    array([ 0.,  1.,  0., 10.], dtype=float32)

    Args:
        tensors: one or more, with the same extents along all other axes.
        axis: along which axis.

    Raises:
        DefinitionError: no TensorViews, extents that do not fit, or an axis out of range.

    Source: numpy.concatenate.
    """
    given, place = _checked("concatenate", tensors, axis, 0)
    algebra = given[0].fusion.algebra
    starts: list[Expr] = [ZERO]
    for tensor in given:
        starts.append(algebra.add(starts[-1], tensor.sizes[place]))
    axes = [*axes_of(given[0])]
    axes[place] = axis_of(starts[-1])
    reads: list[Read] = []
    for tensor, start in zip(given, starts, strict=False):
        own = [along(n, found) for n, found in enumerate(axes)]
        reads.append(Read(tensor, replaced(own, place, algebra.sub(own[place], start))))
    return _chosen("concatenate", given, reads, axes, place, starts[1:])


def stack(tensors: Sequence[TensorView], axis: int = 0) -> TensorView:
    """Return `tensors`, all of the same shape, along a new axis, in their common type.

    Args:
        tensors: one or more.
        axis: where the new axis stands in the result.

    Raises:
        DefinitionError: no TensorViews, shapes that differ, or an axis out of range.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.stack([x, -x]), "y")
    >>> print(ln.evaluate(f, np.array([1, 2], np.float32)))
    [[ 1.  2.]
     [-1. -2.]]

    Source: numpy.stack.
    """
    given, place = _checked("stack", tensors, axis, 1)
    axes = axes_of(given[0])
    axes.insert(place, axis_of(integer(len(given))))
    rest = [n for n in range(len(axes)) if n != place]
    reads = [Read(t, tuple([along(n, axes[n]) for n in rest])) for t in given]
    ends = [integer(n + 1) for n in range(len(given))]
    return _chosen("stack", given, reads, axes, place, ends)


def _checked(
    name: str, tensors: object, axis: object, new: int
) -> tuple[tuple[TensorView, ...], int]:
    """Return the operands of a call and its axis, from 0 on; `new` is how many axes it adds."""
    call = call_text(name, (tensors,), f"axis={show(axis)}")
    if not isinstance(tensors, (tuple, list)) or not tensors:
        raise DefinitionError(call, "no tensors are given", "give a tuple of TensorViews")
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, TensorView):
            what = f"operand {number + 1} is {kind_text(tensor)}"
            raise DefinitionError(call, what, "give a tuple of TensorViews")
    fusion_of(name, tuple(tensors))
    first, rank = tensors[0], len(tensors[0].domain.logical)
    try:
        place = position(first, axis) if not new else _new_place(first, axis)
    except OperandRefused as refused:
        raise DefinitionError(call, refused.reason, refused.hint) from None
    for other in tensors[1:]:
        sizes = other.sizes
        kept = [n for n in range(rank) if new or n != place]
        if len(sizes) != rank or any(sizes[n] is not first.sizes[n] for n in kept):
            raise DefinitionError(
                call,
                f"{first.name} is {first.signature}, {other.name} is {other.signature}",
                "all shapes are the same" + ("" if new else f" but for axis {place}"),
            )
    return tuple(tensors), place


def _new_place(tensor: TensorView, axis: object) -> int:
    rank = len(tensor.domain.logical) + 1
    if not isinstance(axis, int) or isinstance(axis, bool) or not -rank <= axis < rank:
        raise OperandRefused(
            f"axis {show(axis)} is no place for a new axis", f"use {-rank}..{rank - 1}"
        )
    return axis % rank


def _chosen(
    op: str,
    tensors: tuple[TensorView, ...],
    reads: Sequence[Read],
    axes: Sequence[Axis],
    place: int,
    ends: Sequence[Expr],
) -> TensorView:
    """Return the tensor whose element i along an axis is that of the first read with end > i."""
    dtype = common_type(tensors)
    value = _operand_element(len(tensors) - 1, tensors, dtype)
    own = along(place, axes[place])
    for number in reversed(range(len(tensors) - 1)):
        first = compared("lt", own, ends[number])
        value = Op("where", (first, _operand_element(number, tensors, dtype), value), dtype)
    note = f"axis={place}"
    return define(tensors[0].fusion, op, tensors, tuple(reads), axes, dtype, value, note)


def _operand_element(number: int, tensors: Sequence[TensorView], dtype: DType) -> Expr:
    return cast(Arg(number, tensors[number].dtype), dtype)
