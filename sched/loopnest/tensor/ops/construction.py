"""Make TensorViews: the one place where the math creates tensors and their definitions.

Values are templates (see `loopnest.tensor.tensor_view`). The value of a pointwise operation or
reduction is in the tensor's compute type (float32 for a 16-bit tensor); that of a cast, and of what
only moves or selects elements, is in the tensor's own type. Storing converts, once.

What has elements of another tensor at other indices (slices, borders, windows) is one definition,
too (`view`, `bordered`): a template for the index along every axis of a producer, and a value that
is what is read there, under a condition where the index may lie outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.conditions import normal_le
from loopnest.scalar.dtypes import DType
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import (
    FALSE,
    ONE,
    TRUE,
    Arg,
    Const,
    Coordinate,
    Expr,
    Op,
    Symbol,
    all_of,
    cast,
    integer,
    whole,
)
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.domain import IterDomain, TensorDomain
from loopnest.tensor.fusion import Fusion, Operand, ScalarOperand
from loopnest.tensor.ops.operands import OperandRefused, as_expr, call_text, require_tensor, show
from loopnest.tensor.tensor_view import (
    AxisMap,
    Definition,
    Read,
    Scan,
    TensorView,
    TracedReducer,
    root_axis,
)

Axis: TypeAlias = tuple[Expr, IterKind]
"""A root axis to be: its extent and kind."""


def axes_of(tensor: TensorView) -> list[Axis]:
    """Return the logical axes of `tensor`, for tensors that are computed from it.

    These have an element for each step, as for any index: only states wait for each other.
    """
    kinds = [IterKind.ITERATION if a.is_step else a.kind for a in tensor.domain.logical]
    return [(a.size, kind) for a, kind in zip(tensor.domain.logical, kinds, strict=True)]


def fresh_domain(axes: Iterable[Axis]) -> TensorDomain:
    """Return an untransformed domain of new axes."""
    return TensorDomain.of_root([IterDomain(size, kind) for size, kind in axes])


def define(
    fusion: Fusion,
    op: str,
    operands: tuple[TensorView | Expr, ...],
    reads: tuple[Read, ...],
    axes: Sequence[Axis],
    dtype: DType,
    value: Expr,
    note: str = "",
) -> TensorView:
    """Return a new tensor that has `value` at each element."""
    tensor = TensorView(fusion, fresh_domain(axes), dtype)
    tensor.define(Definition(op, operands, reads, (tensor,), (value,), None, note))
    return tensor


def define_reduction(
    op: str,
    producer: TensorView,
    axes: Sequence[Axis],
    axis_map: AxisMap,
    dtypes: Sequence[DType],
    values: tuple[Expr, ...],
    reducer: TracedReducer | None,
    note: str,
) -> tuple[TensorView, ...]:
    """Return the new tensors that `values` of `producer` are reduced to, one a component."""
    return define_tuple(op, (producer,), (producer,), axis_map, axes, dtypes, values, reducer, note)


def define_tuple(
    op: str,
    operands: tuple[TensorView | Expr, ...],
    producers: Sequence[TensorView],
    axis_map: AxisMap,
    axes: Sequence[Axis],
    dtypes: Sequence[DType],
    values: tuple[Expr, ...],
    reducer: TracedReducer | None,
    note: str,
    scan: Scan | None = None,
) -> tuple[TensorView, ...]:
    """Return the tensors of one definition, one a value; all producers have one axis map."""
    fusion = producers[0].fusion
    outputs = tuple([TensorView(fusion, fresh_domain(axes), dtype) for dtype in dtypes])
    reads = tuple([Read.along(producer, axis_map) for producer in producers])
    definition = Definition(op, operands, reads, outputs, values, reducer, note, scan)
    for output in outputs:
        output.define(definition)
    return outputs


def move(
    op: str, tensor: TensorView, axis_map: AxisMap, axes: Sequence[Axis], note: str = ""
) -> TensorView:
    """Return a new tensor that has the elements of `tensor`, at other axes."""
    reads = (Read.along(tensor, axis_map),)
    value = Arg(0, tensor.dtype)
    return define(tensor.fusion, op, (tensor,), reads, axes, tensor.dtype, value, note)


def insert_axes(tensor: TensorView, mask: Sequence[bool], order: AxisMap = ()) -> TensorView:
    """Return `tensor` with a new broadcast axis wherever `mask` is True.

    `order` says at which of the other axes each axis of `tensor` comes to stand; in place if empty.
    """
    places = [place for place, new in enumerate(mask) if not new]
    axes: list[Axis] = [(ONE, IterKind.BROADCAST)] * len(mask)
    axis_map = tuple([places[i] for i in order if i is not None] if order else places)
    for place, axis in zip(axis_map, axes_of(tensor), strict=True):
        axes[place] = axis
    moved = f", axes={axis_map}" if order else ""
    return move("broadcast", tensor, axis_map, axes, f"mask={tuple(mask)}{moved}")


def common_axes(
    name: str, operands: Sequence[object], tensors: Sequence[TensorView], trailing: int = 0
) -> list[Axis]:
    """Return the axes that `tensors`, operands of call `name`, broadcast to (by NumPy's rule).

    The last `trailing` axes of each are left out.

    Raises:
        DefinitionError: two extents at one axis that are not the same.
    """
    if len(tensors) == 1:
        return axes_of(tensors[0])
    rank = max([len(tensor.domain.logical) for tensor in tensors]) - trailing
    result: list[Axis] = [(ONE, IterKind.BROADCAST)] * rank
    fixed: list[TensorView | None] = [None] * rank
    for tensor in tensors:
        logical = tensor.domain.logical
        logical = logical[: len(logical) - trailing]
        for place, axis in enumerate(logical, rank - len(logical)):
            if axis.is_broadcast:
                continue
            other = fixed[place]
            if other is None:
                kind = IterKind.ITERATION if axis.is_step else axis.kind
                fixed[place], result[place] = tensor, (axis.size, kind)
            elif not tensor.fusion.algebra.equal(result[place][0], axis.size):
                raise _mismatch(name, operands, other, tensor, place - rank - trailing)
    return result


def _mismatch(
    name: str, operands: Sequence[object], a: TensorView, b: TensorView, place: int
) -> DefinitionError:
    one, other = a.sizes[place], b.sizes[place]
    hint = "extents at one axis are equal (the same int or the same name), or one is a static 1"
    algebra = a.fusion.algebra
    if algebra.simplify(one) is algebra.simplify(other):
        hint = "they are equal by an assumption that stands behind them: state it before"
    elif isinstance(one, Op) or isinstance(other, Op):
        hint += f"; what is assumed before counts too, such as f.assume('{one} == {other}')"
    return DefinitionError(
        call_text(name, operands),
        f"at axis {place} the extent of {a.name} is {one}, that of {b.name} is {other}",
        hint,
    )


def elementwise(
    fusion: Fusion,
    name: str,
    operands: tuple[Operand, ...],
    types: tuple[DType, ...],
    dtype: DType,
    template: Callable[..., Expr],
    note: str = "",
) -> TensorView | ScalarOperand:
    """Return `template` of the operands, each converted to its type of `types`.

    One new tensor of type `dtype` (and a broadcast tensor for each operand of lower rank), or a
    scalar where no operand is a tensor.

    Raises:
        DefinitionError: shapes that do not broadcast, or what the template refuses.
    """
    tensors: list[TensorView] = []
    try:
        args = [_argument(o, t, tensors) for o, t in zip(operands, types, strict=True)]
        value = template(*args)
    except OperandRefused as refused:
        call = call_text(name, operands, note)
        raise DefinitionError(call, refused.reason, refused.hint) from None
    if not tensors:
        return ScalarOperand(cast(value, dtype), fusion)
    axes = common_axes(name, operands, tensors)
    rank = len(axes)
    producers = [extended(tensor, rank) for tensor in tensors]
    shown: list[TensorView | Expr] = [
        producers[tensors.index(operand)] if isinstance(operand, TensorView) else arg
        for operand, arg in zip(operands, args, strict=True)
    ]
    reads = tuple([Read.along(producer, tuple(range(rank))) for producer in producers])
    return define(fusion, name, tuple(shown), reads, axes, dtype, value, note)


def _argument(operand: Operand, dtype: DType, tensors: list[TensorView]) -> Expr:
    """Return an operand as an expression of `dtype`; a tensor takes its place among `tensors`."""
    if not isinstance(operand, TensorView):
        return as_expr(operand, dtype)
    if operand not in tensors:
        tensors.append(operand)
    return cast(Arg(tensors.index(operand), operand.dtype), dtype)


def extended(tensor: TensorView, rank: int) -> TensorView:
    """Return `tensor`, with broadcast axes in front up to `rank`."""
    missing = rank - len(tensor.domain.logical)
    if not missing:
        return tensor
    return insert_axes(tensor, [True] * missing + [False] * (rank - missing))


def normalized_axes(name: str, tensor: TensorView, axis: object, note: str = "") -> tuple[int, ...]:
    """Return `axis` (an int, several, or None for all) of call `name`, ascending from 0.

    Raises:
        DefinitionError: out of range, twice the same, or none at all.
    """
    if not isinstance(tensor, TensorView) or tensor.compute_at_pos:
        require_tensor(name, tensor, note=f"axis={axis!r}{note}")
    try:
        return _positions(tensor, axis)
    except OperandRefused as refused:
        call = call_text(name, (tensor,), f"axis={axis!r}{note}")
        raise DefinitionError(call, refused.reason, refused.hint) from None


def _positions(tensor: TensorView, axis: object) -> tuple[int, ...]:
    rank = len(tensor.domain.logical)
    if axis is None:
        found = list(range(rank))
    else:
        chosen = axis if isinstance(axis, (tuple, list)) else (axis,)
        found = sorted([position(tensor, a) for a in chosen])
    if not found:
        reason = "no axis is named" if rank else f"{tensor.name} has no axes"
        raise OperandRefused(reason, f"{tensor.name} is {tensor.signature}")
    if len(set(found)) != len(found):
        raise OperandRefused("an axis is named twice", "name each axis once")
    return tuple(found)


def position(tensor: TensorView, axis: object) -> int:
    """Return a logical axis of `tensor` counted from 0.

    Raises:
        Refused: no int, or out of range.
    """
    rank = len(tensor.domain.logical)
    found = whole(axis)
    if found is None:
        raise OperandRefused(f"axis {axis!r} is not an int", "axes are given by position")
    if not -rank <= found < rank:
        allowed = f"so use {-rank}..{rank - 1}" if rank else "so there is none to name"
        axes = "axis" if rank == 1 else "axes"
        raise OperandRefused(
            f"axis {found} is out of range", f"{tensor.name} has {rank} {axes}, {allowed}"
        )
    return found % rank


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
    one = whole(given)
    found = [one] * count if one is not None else given
    ints = [whole(value) for value in found] if isinstance(found, (tuple, list)) else []
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
