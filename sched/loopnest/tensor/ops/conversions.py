"""Conversions to another element type, with a choice of rounding and of what is out of range."""

from __future__ import annotations

import math
from typing import TypeVar

from loopnest.base.errors import DefinitionError
from loopnest.scalar.dtypes import DType, bool_
from loopnest.scalar.expr import Const, Expr, Op
from loopnest.scalar.expr import cast as convert
from loopnest.tensor.fusion import ScalarOperand, check_dtype
from loopnest.tensor.ops.construction import elementwise
from loopnest.tensor.ops.operands import call_text, fusion_of, require_flag, show
from loopnest.tensor.tensor_view import TensorView

T = TypeVar("T", TensorView, ScalarOperand)

_ROUNDINGS = {"trunc": "trunc", "nearest": "round", "floor": "floor", "ceil": "ceil"}
"""The operation of each rounding to an integer."""


def cast(tv: T, dtype: DType, saturate: bool = False, rounding: str | None = None) -> T:
    """Return `tv` converted to `dtype`: to a float rounded once, to an integer truncated.

    An integer that does not fit wraps. A float that does not fit an integer may give any; one
    beyond the range of a float gives infinity, or NaN in float8_e4m3fn.

    Args:
        tv: a tensor of any shape, or a run-time scalar.
        dtype: an element type, as ``ln.float16``.
        saturate: whether what is out of range gives the least or the greatest value of `dtype`
            (of a float the finite ones, of infinities too); to an integer NaN gives 0. NaN stays
            NaN in floats.
        rounding: to an integer "trunc" (towards 0, by default), "nearest" (of two the even one),
            "floor" or "ceil"; to a float "nearest".

    Raises:
        DefinitionError: no operand, no element type, or a choice that there is not.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(ln.cast(x / 2.0, ln.int32), "y")
    ...     z = f.output(ln.cast(x, ln.int8, saturate=True, rounding="nearest"), "z")
    >>> for found in ln.evaluate(f, np.array([1, 2.5, 300], np.float32)):
    ...     print(found)
    [  0   1 150]
    [  1   2 127]

    Source: numpy.ndarray.astype; saturating as XLA's ConvertElementType and PTX's cvt do.
    """
    fusion = fusion_of("cast", (tv,))
    said = _said(saturate, rounding)
    call = call_text("cast", (tv, dtype), said)
    check_dtype(call, dtype)
    _check(call, dtype, saturate, rounding)

    def template(x: Expr) -> Expr:
        if rounding is not None and dtype.is_integer and x.dtype.is_float:
            x = convert(x, x.dtype.compute)
            x = Op(_ROUNDINGS[rounding], (x,), x.dtype)
        return _saturated(x, dtype) if saturate else convert(x, dtype)

    result = elementwise(fusion, "cast", (tv,), (tv.dtype,), dtype, template, said)
    assert isinstance(result, type(tv))
    return result


def _said(saturate: object, rounding: object) -> str:
    given = [f"saturate={show(saturate)}"] if saturate is not False else []
    return ", ".join([*given, f"rounding={show(rounding)}"] if rounding is not None else given)


def _check(call: str, dtype: DType, saturate: object, rounding: object) -> None:
    require_flag(call, "saturate", saturate)
    if dtype.is_bool and (saturate or rounding is not None):
        raise DefinitionError(call, "a bool says whether a value is 0", "leave the choice out")
    allowed = list(_ROUNDINGS) if dtype.is_integer else ["nearest"]
    if rounding is not None and rounding not in allowed:
        reason = f"there is no rounding={show(rounding)} to {dtype}"
        raise DefinitionError(call, reason, f"use {' or '.join(map(repr, allowed))}")


def _saturated(x: Expr, dtype: DType) -> Expr:
    """Return `x` converted to `dtype`, what is out of range by way of the end of the range."""
    if x.dtype.is_bool:
        return convert(x, dtype)
    if dtype.is_float:
        return _to_float(x, dtype)
    if x.dtype.is_integer:
        least, greatest = max(x.dtype.least, dtype.least), min(x.dtype.greatest, dtype.greatest)
        return convert(_clamped(x, least, greatest), dtype)
    x = convert(x, x.dtype.compute)
    # Of 2^31 - 1 and the like float32 has not all digits: its greatest float is the next below.
    top = _below(dtype.greatest + 1, x.dtype)
    number = Op("where", (_isnan(x), Const(0, x.dtype), _clamped(x, dtype.least, top)), x.dtype)
    result = convert(number, dtype)
    if top == dtype.greatest:
        return result
    beyond = Op("ge", (x, Const(dtype.greatest + 1, x.dtype)), bool_)
    return Op("where", (beyond, Const(dtype.greatest, dtype), result), dtype)


def _to_float(x: Expr, dtype: DType) -> Expr:
    own = float(x.dtype.greatest) if x.dtype.is_integer else math.inf
    if own <= dtype.largest:
        return convert(x, dtype)
    real = dtype.compute
    if x.dtype.is_float and x.dtype.compute.rank > real.rank:
        real = x.dtype.compute
    x = convert(x, real)
    return convert(_clamped(x, -dtype.largest, dtype.largest), dtype)


def _clamped(x: Expr, least: float, greatest: float) -> Expr:
    low, high = Const(least, x.dtype), Const(greatest, x.dtype)
    return Op("min", (Op("max", (x, low), x.dtype), high), x.dtype)


def _isnan(x: Expr) -> Expr:
    return Op("isnan", (x,), bool_)


def _below(power: int, dtype: DType) -> float:
    """Return the greatest integer below a power of two, of those that `dtype` holds."""
    digits = 24 if dtype.size == 4 else 53
    return float(power - max(1, power >> digits))
