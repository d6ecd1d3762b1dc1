"""pad: a border of a constant around a tensor, or between its elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from loopnest.base.errors import DefinitionError
from loopnest.scalar.arguments import as_int
from loopnest.scalar.expr import ONE, ZERO, Const, Coordinate, Expr, cast, integer
from loopnest.tensor.ops.construction import Axis, axes_of
from loopnest.tensor.ops.index_maps import Demands, along, axis_of, bordered, compared, listed_ints
from loopnest.tensor.ops.operands import (
    OperandRefused,
    Scalar,
    ScalarOperand,
    as_expr,
    call_text,
    is_number,
    require_tensor,
    show,
)
from loopnest.tensor.tensor_view import TensorView

Width: TypeAlias = "int | str | Expr"
"""How many elements stand beside an axis: an int, a size symbol by name, or a size expression."""
Pair: TypeAlias = "tuple[Width, Width]"
"""How many stand before the elements of an axis, and after them."""
Border: TypeAlias = "tuple[Expr, Expr]"
"""The same, as expressions."""
NO_BORDER: Border = (ZERO, ZERO)


def pad(
    tv: TensorView,
    widths: Sequence[Pair],
    value: Scalar = 0,
    interior: int | Sequence[int] = 0,
) -> TensorView:
    """Return `tv` with `value` around it: ``(before, after)`` elements of it an axis.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("padded") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.pad(x, [(1, 2)], value=7), "y")
    >>> ln.evaluate(f, np.arange(3, dtype=np.float32))
    array([7., 0., 1., 2., 7., 7.], dtype=float32)

    Args:
        tv: the operand.
        widths: two an axis; negative ones leave elements out. Each is an int, a size symbol by name
            or a size expression. What leaves a negative extent is refused, at launch if only
            that knows.
        value: a Python number or a scalar of the fusion, converted to the type of `tv`.
        interior: how many elements of `value` stand between two of `tv`: an int, or one an axis.
            It asks for one element at least along an axis of symbolic extent.

    Raises:
        DefinitionError: no TensorView, not two widths an axis, a negative extent of the result, or
            a value that is no number.

    Source: the order (interior first, then what is around or left out) is XLA's Pad.
    """
    require_tensor("pad", tv, widths)
    call = call_text("pad", (tv, widths))
    old, rank = axes_of(tv), len(tv.domain.logical)
    pairs = _pairs(call, tv, widths)
    between = listed_ints(call, "interior", interior, rank, least=0)
    fill = border_value(call, tv, value)
    demands = Demands(tv.fusion.algebra)
    axes: list[Axis] = []
    indices: list[Expr] = []
    inside: list[Expr] = []
    for place, (pair, extra) in enumerate(zip(pairs, between, strict=True)):
        if pair == NO_BORDER and not extra:
            axes.append(old[place])
            indices.append(along(place, old[place]))
            continue
        try:
            size = _extent(tv, demands, place, pair, extra)
        except OperandRefused as refused:
            raise DefinitionError(call, refused.reason, refused.hint) from None
        axes.append(axis_of(size))
        index, tests = border(tv, old[place][0], along(place, axes[-1]), pair, extra)
        indices.append(index)
        inside += tests
    tv.fusion.require(*demands.conditions)
    shown = ", ".join([f"{low}:{high}" for low, high in pairs])
    note = f"[{shown}], value={fill}" + (f", interior={between}" if any(between) else "")
    return bordered("pad", tv, indices, inside, fill, axes, note)


def _pairs(call: str, tv: TensorView, widths: object) -> list[Border]:
    rank = len(tv.domain.logical)
    hint = f"give a pair of ints for each of the {rank} axes of {tv.name}, as in ((1, 1), (0, 2))"
    if not isinstance(widths, (tuple, list)) or len(widths) != rank:
        raise DefinitionError(call, f"the widths are {show(widths)}", hint)
    pairs: list[Border] = []
    for pair in widths:
        found = border_of(tv, call, pair)
        if found is None:
            raise DefinitionError(call, f"the widths {show(pair)} are no pair of ints", hint)
        pairs.append(found)
    return pairs


def border_of(tv: TensorView, call: str, pair: object) -> Border | None:
    """Return a pair of widths as expressions; None where it is none."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return None
    low, high = [_width(tv, call, width) for width in pair]
    return None if low is None or high is None else (low, high)


def _width(tv: TensorView, call: str, width: object) -> Expr | None:
    number = as_int(width)
    if number is not None:
        return integer(number)
    if not isinstance(width, (str, Expr)):
        return None
    return tv.fusion.algebra.simplify(tv.fusion.size(call, width))


def border_value(call: str, tv: TensorView, value: object) -> Expr:
    """Return the value of a border, in the type of `tv`."""
    if isinstance(value, ScalarOperand) and value.fusion is tv.fusion:
        return cast(value.expr, tv.dtype)
    if not is_number(value):
        what = f"the value {show(value)} is no number"
        raise DefinitionError(call, what, "use a Python number or a scalar of the fusion")
    if not tv.dtype.is_float and value != int(value if value - value == 0 else 0):
        raise DefinitionError(call, f"{show(value)} is no {tv.dtype}", "use a value of that type")
    try:
        return cast(as_expr(value, tv.dtype.compute), tv.dtype)
    except OperandRefused as refused:
        raise DefinitionError(call, refused.reason, refused.hint) from None


def _extent(tv: TensorView, demands: Demands, place: int, pair: Border, extra: int) -> Expr:
    """Return the extent of a padded axis."""
    algebra, size = tv.fusion.algebra, tv.sizes[place]
    whole = size
    if extra and size is not ZERO:
        hint = f"{tv.name} is {tv.signature}"
        demands.at_most(ONE, size, f"axis {place} has no elements to stand apart", hint)
        whole = algebra.sub(algebra.mul(size, integer(extra + 1)), integer(extra))
    result = algebra.add(whole, algebra.add(*pair))
    reason = f"the extent of axis {place} would be {result}"
    demands.at_most(ZERO, result, reason, f"{tv.name} is {tv.signature}")
    return result


def border(
    tv: TensorView, size: Expr, own: Expr, pair: Border, extra: int = 0
) -> tuple[Expr, list[Expr]]:
    """Return the index at which a padded axis reads its producer, and where it does."""
    algebra = tv.fusion.algebra
    low, high = pair
    dense = algebra.sub(own, low)
    step = integer(extra + 1)
    tests: list[Expr] = []
    if _is_positive(low):
        tests.append(compared("le", ZERO, dense))
    index = algebra.floordiv(dense, step)
    if _is_positive(high) or size is ZERO:
        tests.append(compared("lt", index, size))
    if extra and isinstance(own, Coordinate):
        tests.append(compared("eq", algebra.mod(dense, step), ZERO))
    return index, tests


def _is_positive(width: Expr) -> bool:
    """Whether elements stand there, or may: that depends on a size."""
    return not isinstance(width, Const) or width.value > 0
