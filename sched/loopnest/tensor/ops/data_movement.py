"""Functions that place elements: broadcast, permute, squeeze, expand, copy; iota and full."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from loopnest.base.errors import DefinitionError
from loopnest.scalar.dtypes import DType, int64
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import ZERO, Const, Coordinate, Expr, Op, cast
from loopnest.tensor.fusion import Fusion, Scalar, ScalarOperand, check_dtype, current_fusion
from loopnest.tensor.ops.construction import (
    Axis,
    Demands,
    axes_of,
    define,
    insert_axes,
    move,
    normalized_axes,
    position,
)
from loopnest.tensor.ops.operands import (
    as_expr,
    call_text,
    common_type,
    fusion_of,
    is_number,
    refusing,
    require_tensor,
    scalar_of,
    show,
)
from loopnest.tensor.tensor_view import TensorView, root_axis

Extent: TypeAlias = "int | str | Expr"


def broadcast(tv: TensorView, mask: Sequence[bool]) -> TensorView:
    """Return `tv` with a new broadcast axis (of extent 1) wherever `mask` is True.

    Raises:
        DefinitionError: no TensorView, or not one False for each of its axes.

    Args:
        tv: the operand.
        mask: True where a new axis stands, one False for each axis of `tv`.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.broadcast(x, (False, True)), "y")
    >>> ln.evaluate(f, np.array([1, 2], np.float32)).shape
    (2, 1)

    Source: nvFuser `broadcast`; numpy.expand_dims.
    """
    require_tensor("broadcast", tv, mask)
    given = _listed(mask)
    rank = len(tv.domain.logical)
    if given is None or [type(new) for new in given] != [bool] * len(given):
        problem = "the mask is not a tuple of bools"
    elif given.count(False) != rank:
        problem = f"the mask has {given.count(False)} False for the {rank} axes of {tv.name}"
    else:
        return insert_axes(tv, [new is True for new in given])
    call = call_text("broadcast", (tv, mask))
    raise DefinitionError(call, problem, "use True for a new axis, False for one of the tensor")


def permute(tv: TensorView, order: Sequence[int]) -> TensorView:
    """Return `tv` with its axes in another order: new axis i is old axis order[i].

    Raises:
        DefinitionError: no TensorView, or no permutation of its axes.

    Args:
        tv: the operand.
        order: each axis of `tv` once; negative from the end.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", "D"), ln.float32)
    ...     y = f.output(ln.permute(x, (1, 0)), "y")
    >>> ln.evaluate(f, np.array([[1, 2, 3], [4, 5, 6]], np.float32)).shape
    (3, 2)

    Source: numpy.transpose; torch.permute.
    """
    require_tensor("permute", tv, order)
    old = axes_of(tv)
    places = _permutation(tv, order)
    axis_map = tuple([places.index(axis) for axis in range(len(old))])
    axes = [old[place] for place in places]
    return move("permute", tv, axis_map, axes, f"order={tuple(places)}")


def _permutation(tv: TensorView, order: object) -> list[int]:
    given = _listed(order)
    rank = len(tv.domain.logical)
    call = call_text("permute", (tv, order))
    hint = f"name each of the {rank} axes of {tv.name} once"
    if given is None:
        raise DefinitionError(call, "the order is not a tuple of ints", hint)
    with refusing(call):
        places = [position(tv, axis) for axis in given]
    if sorted(places) != list(range(rank)):
        raise DefinitionError(call, "the order is no permutation", hint)
    return places


def squeeze(tv: TensorView, axis: int | Sequence[int]) -> TensorView:
    """Return `tv` without the broadcast axes `axis`.

    Raises:
        DefinitionError: no TensorView, or an axis that is no broadcast axis.

    Args:
        tv: the operand.
        axis: one axis or several, of a static extent 1.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N", 1), ln.float32)
    ...     y = f.output(ln.squeeze(x, 1), "y")
    >>> ln.evaluate(f, np.ones((2, 1), np.float32)).shape
    (2,)

    Source: numpy.squeeze.
    """
    axes = normalized_axes("squeeze", tv, axis)
    old = axes_of(tv)
    for place in axes:
        if old[place][1] is not IterKind.BROADCAST:
            raise DefinitionError(
                call_text("squeeze", (tv,), f"axis={axis!r}"),
                f"axis {place} has extent {old[place][0]}",
                "only broadcast axes (of a static extent 1) can be squeezed",
            )
    kept = [place for place in range(len(old)) if place not in axes]
    axis_map = tuple([None if place in axes else kept.index(place) for place in range(len(old))])
    note = f"axis={axes[0] if len(axes) == 1 else axes}"
    return move("squeeze", tv, axis_map, [old[place] for place in kept], note)


def expand(tv: TensorView, shape: Sequence[Extent]) -> TensorView:
    """Return `tv` with its broadcast axes repeated to `shape`; new axes come in front.

    Args:
        tv: the operand.
        shape: an extent an axis (an int, the name of a size symbol, an extent of a tensor); that
            of an axis which is no broadcast axis must be its own.

    Raises:
        DefinitionError: no TensorView, a bad extent, or one that does not fit.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.expand(x, (3, "N")), "y")
    >>> print(ln.evaluate(f, np.array([1, 2], np.float32)))
    [[1. 2.]
     [1. 2.]
     [1. 2.]]

    Source: numpy.broadcast_to.
    """
    require_tensor("expand", tv, shape)
    call = call_text("expand", (tv, shape))
    sizes = sizes_of(tv.fusion, call, shape)
    missing = len(sizes) - len(tv.domain.logical)
    if missing < 0:
        raise DefinitionError(
            call, f"the shape has rank {len(sizes)}", f"{tv.name} is {tv.signature}"
        )
    for place, (size, kind) in enumerate(axes_of(tv), missing):
        if kind is not IterKind.BROADCAST and size is not sizes[place]:
            raise DefinitionError(
                call,
                f"axis {place} cannot become {sizes[place]}; {tv.name} is {tv.signature}",
                "only broadcast axes (of a static extent 1) can be expanded",
            )
    tensor = insert_axes(tv, [True] * missing + [False] * (len(sizes) - missing)) if missing else tv
    return move("expand", tensor, tuple(range(len(sizes))), root_axes(sizes))


def copy(tv: TensorView) -> TensorView:
    """Return a tensor with the elements of `tv`."""
    require_tensor("copy", tv)
    axes = axes_of(tv)
    return move("copy", tv, tuple(range(len(axes))), axes)


def iota(
    length: Extent, start: Scalar = 0, step: Scalar = 1, dtype: DType | None = None
) -> TensorView:
    """Return the tensor [start, start + step, start + 2 * step, …] of `length` elements.

    Args:
        length: an int, the name of a size symbol, or an extent of a tensor.
        start: a Python number or a scalar of the fusion.
        step: likewise.
        dtype: by default int64, or the type of `start` and `step` where one is a float or a scalar.

    Raises:
        DefinitionError: outside of a fusion, or bad arguments.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     y = f.output(ln.iota(4, start=1, step=2), "y")
    >>> print(ln.evaluate(f))
    [1 3 5 7]

    Source: numpy.arange, by length.
    """
    call = _call("iota", (length, start, step), dtype)
    start, step = scalar_of(start), scalar_of(step)
    fusion = fusion_of_scalars(call, (start, step))
    (size,) = sizes_of(fusion, call, (length,))
    found = common_type((start, step))
    weak = not isinstance(start, ScalarOperand) and not isinstance(step, ScalarOperand)
    dtype = (int64 if weak and not found.is_float else found) if dtype is None else dtype
    check_dtype(call, dtype)
    if dtype.is_bool or (found.is_float and not dtype.is_float):
        what = f"elements of {dtype} cannot step by {found}"
        raise DefinitionError(call, what, "use a wider dtype=")
    real = dtype.compute
    first, stride = _exprs(call, (start, step), real)
    value: Expr = cast(Coordinate(0), real)
    if stride is not Const(1, real):
        value = Op("mul", (value, stride), real)
    if first is not Const(0, real):
        value = Op("add", (first, value), real)
    axes = root_axes((size,))
    return define(fusion, "iota", (first, stride), (), axes, dtype, value)


def full(shape: Extent | Sequence[Extent], value: Scalar, dtype: DType | None = None) -> TensorView:
    """Return a tensor that has `value` everywhere.

    Args:
        shape: an extent an axis (an int, the name of a size symbol, an extent of a tensor), or one.
        value: a Python number or a scalar of the fusion.
        dtype: by default that of `value`: bool, int32 or float32 of a number.

    Raises:
        DefinitionError: outside of a fusion, or bad arguments.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     y = f.output(ln.full((2, 2), 0.5), "y")
    >>> print(ln.evaluate(f))
    [[0.5 0.5]
     [0.5 0.5]]

    Source: numpy.full.
    """
    call = _call("full", (shape, value), dtype)
    value = scalar_of(value)
    fusion = fusion_of_scalars(call, (value,))
    given = (shape,) if isinstance(shape, (int, str, Expr)) else shape
    sizes = sizes_of(fusion, call, given)
    found = common_type((value,))
    dtype = found if dtype is None else dtype
    check_dtype(call, dtype)
    if found.rank > dtype.rank and found.kind != dtype.kind:
        raise DefinitionError(call, f"{show(value)} is {found}, no {dtype}", "use a wider dtype=")
    (element,) = _exprs(call, (value,), dtype.compute)
    return define(fusion, "full", (element,), (), root_axes(sizes), dtype, element)


def _call(name: str, operands: tuple[object, ...], dtype: object) -> str:
    return call_text(name, operands, "" if dtype is None else f"dtype={dtype}")


def _exprs(call: str, values: tuple[Scalar, ...], dtype: DType) -> list[Expr]:
    with refusing(call):
        return [as_expr(value, dtype) for value in values]


def fusion_of_scalars(call: str, operands: tuple[object, ...]) -> Fusion:
    """Return the fusion of the scalars among `operands`, else the current one.

    Raises:
        DefinitionError: an operand is no number, two belong to two fusions, or no fusion is open.
    """
    if [o for o in operands if not isinstance(o, ScalarOperand) and not is_number(o)]:
        raise DefinitionError(call, "a value is no number", "use a Python number or a scalar")
    if [o for o in operands if isinstance(o, ScalarOperand)]:
        return fusion_of(call.partition("(")[0], operands)
    fusion = current_fusion()
    if fusion is None:
        raise DefinitionError(call, "no fusion is open", "call it inside 'with ln.Fusion(...):'")
    return fusion


def _listed(values: object) -> list[object] | None:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        return None
    try:
        return list(values)
    except TypeError:  # an array without axes
        return None


def sizes_of(fusion: Fusion, call: str, shape: object) -> list[Expr]:
    """Return the extents of `shape`; their symbols become symbols of `fusion`.

    Where one may be negative, as ``N - 4`` is for a small N, each launch checks that it is not.

    Raises:
        DefinitionError: no shape, or an extent that is none, or always negative.
    """
    given = _listed(shape)
    if given is None:
        raise DefinitionError(call, f"the shape {show(shape)} is not a tuple of extents")
    sizes = [fusion.size(call, extent) for extent in given]
    demands = Demands(fusion.algebra)
    with refusing(call):
        for size in sizes:
            demands.at_most(ZERO, size, f"the extent {size} is negative")
    fusion.require(*demands.conditions)
    return sizes


def root_axes(sizes: Sequence[Expr]) -> list[Axis]:
    """Return axes of these extents: a static 1 is a broadcast axis."""
    return [(axis.size, axis.kind) for axis in map(root_axis, sizes)]
