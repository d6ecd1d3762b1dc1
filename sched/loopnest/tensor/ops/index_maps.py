"""Tensors that have elements of others, at other indices: what slices, borders and windows are.

Each is one definition: a template for the index along every axis of a producer, and a value that is
what is read there, under a condition where the index may lie outside.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.arguments import as_int
from loopnest.scalar.conditions import normal_le
from loopnest.scalar.expr import (
    FALSE,
    TRUE,
    Arg,
    Const,
    Coordinate,
    Expr,
    Op,
    Symbol,
    all_of,
    integer,
)
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.definition import Read
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.ops.construction import Axis, define
from loopnest.tensor.ops.operands import OperandRefused, show
from loopnest.tensor.tensor_view import TensorView, root_axis


def view(
    op: str, tensor: TensorView, indices: Sequence[Expr], axes: Sequence[Axis], note: str
) -> TensorView:
    """Return a new tensor that has the elements of `tensor` at `indices`, which lie inside."""
    reads = (Read(tensor, tuple(indices)),)
    value = Arg(0, tensor.dtype)
    return define(tensor.fusion, op, (tensor,), reads, axes, tensor.dtype, value, note)


def bordered(
    op: str,
    tensor: TensorView,
    indices: Sequence[Expr],
    inside: Sequence[Expr],
    fill: Expr,
    axes: Sequence[Axis],
    note: str,
) -> TensorView:
    """Return a new tensor that has elements of `tensor` where all of `inside` hold, else `fill`."""
    if not inside:
        return view(op, tensor, indices, axes, note)
    reads = (Read(tensor, tuple(indices)),)
    value = Op("where", (all_of(inside), Arg(0, tensor.dtype), fill), tensor.dtype)
    return define(tensor.fusion, op, (tensor,), reads, axes, tensor.dtype, value, note)


def axis_of(size: Expr) -> Axis:
    """Return a root axis of extent `size`; of a static 1 it is a broadcast axis."""
    made = root_axis(size)
    return made.size, made.kind


def along(number: int, axis: Axis) -> Expr:
    """Return the coordinate along root axis `number`, which is 0 along a broadcast axis."""
    return integer(0) if axis[0] is integer(1) else Coordinate(number)


def replaced(indices: Sequence[Expr], place: int, index: Expr) -> tuple[Expr, ...]:
    """Return `indices` with another one at `place`."""
    return (*indices[:place], index, *indices[place + 1 :])


def compared(op: str, a: Expr, b: Expr) -> Expr:
    """Return a comparison of indices as a condition."""
    return Op(op, (a, b), dtypes.bool_)


class Demands:
    """What the definition of a tensor asks of sizes; `reason` says of what, where it never holds.

    Gathered first and stated at once, so that a call that is refused states nothing.
    """

    def __init__(self, algebra: Simplifier) -> None:
        self.algebra = algebra
        self.conditions: list[Expr] = []

    def at_most(self, small: Expr, large: Expr, reason: str, hint: str = "") -> None:
        """Ask that ``small <= large``.

        Raises:
            OperandRefused: it never holds.
        """
        condition = normal_le(small, large, self.algebra)
        if condition is FALSE:
            raise OperandRefused(reason, hint)
        if condition is not TRUE:
            self.conditions.append(condition)


def listed_ints(
    call: str, what: str, given: object, count: int, least: int | None = None
) -> tuple[int, ...]:
    """Return an int for each of `count` axes: `given` is one for all, or a tuple of them.

    Raises:
        DefinitionError: it is neither, or one is below `least`.
    """
    one = as_int(given)
    found = [one] * count if one is not None else given
    ints = [as_int(value) for value in found] if isinstance(found, (tuple, list)) else []
    kept = [value for value in ints if value is not None and (least is None or value >= least)]
    if len(kept) != count or len(ints) != count:
        hint = "give an int" if least is None else f"give an int >= {least}"
        hint += f", or a tuple of {count} such ints, one an axis" if count > 1 else ""
        raise DefinitionError(call, f"{what} is {show(given)}", hint)
    return tuple(kept)


def named_size(fusion: Fusion, call: str, extent: object) -> Expr:
    """Return an extent as an expression; a new name becomes no symbol of the fusion yet.

    It does once the call goes well, by `Fusion.size`: a call that is refused declares nothing.

    Raises:
        DefinitionError: as `Fusion.size`.
    """
    if isinstance(extent, str) and extent.isidentifier() and extent not in fusion._names:
        return Symbol(extent)
    return fusion.size(call, extent)


def static(size: Expr) -> int | None:
    """Return an extent as an int where it is static."""
    return int(size.value) if isinstance(size, Const) else None
