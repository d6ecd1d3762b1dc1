"""Functions that put tensors beside each other: concatenate, stack."""

from __future__ import annotations

from collections.abc import Sequence

from loopnest.base.errors import DefinitionError
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import ZERO, Arg, Expr, Op, cast, integer
from loopnest.tensor.definition import Read
from loopnest.tensor.ops.construction import Axis, axes_of, define, position
from loopnest.tensor.ops.index_maps import along, axis_of, compared, replaced
from loopnest.tensor.ops.operands import (
    OperandRefused,
    call_text,
    common_type,
    fusion_of,
    kind_text,
    show,
)
from loopnest.tensor.tensor_view import TensorView


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
    given, place = _joined("concatenate", tensors, axis, 0)
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
    given, place = _joined("stack", tensors, axis, 1)
    axes = axes_of(given[0])
    axes.insert(place, axis_of(integer(len(given))))
    rest = [n for n in range(len(axes)) if n != place]
    reads = [Read(t, tuple([along(n, axes[n]) for n in rest])) for t in given]
    ends = [integer(n + 1) for n in range(len(given))]
    return _chosen("stack", given, reads, axes, place, ends)


def _joined(
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
    value = _element(len(tensors) - 1, tensors, dtype)
    own = along(place, axes[place])
    for number in reversed(range(len(tensors) - 1)):
        first = compared("lt", own, ends[number])
        value = Op("where", (first, _element(number, tensors, dtype), value), dtype)
    note = f"axis={place}"
    return define(tensors[0].fusion, op, tensors, tuple(reads), axes, dtype, value, note)


def _element(number: int, tensors: Sequence[TensorView], dtype: DType) -> Expr:
    return cast(Arg(number, tensors[number].dtype), dtype)
