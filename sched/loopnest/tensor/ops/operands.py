"""Operands: what the functions of this package take, and the types that they meet in.

An operand is a TensorView, a `ScalarOperand` (a run-time scalar or an expression of such), a size
(``x.shape[1]``, which is an int64 scalar in the math) or a Python number. Python numbers are weak:
they take the type of the others (NEP 50); alone they are bool, int32 or float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeGuard

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Const, Expr, cast
from loopnest.tensor.fusion import Fusion, Number, Operand, Scalar, ScalarOperand, current_fusion
from loopnest.tensor.intents import take_back
from loopnest.tensor.tensor_view import TensorView

_FLOAT_RANGE = {dtypes.float32: float.fromhex("0x1.ffffffp+127"), dtypes.float64: float("inf")}
"""From this magnitude on a literal rounds to infinity."""


class OperandRefused(Exception):
    """An operand does not fit: the reason, and what is allowed; its catcher knows the call."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason, self.hint = reason, hint


def require_flag(call: str, name: str, value: object, hint: str = "") -> None:
    """Refuse what is no bool, given to call `call` as `name`."""
    if not isinstance(value, bool):
        allowed = hint or f"use {name}=True or {name}=False"
        raise DefinitionError(call, f"{name}={show(value)} is no bool", allowed)


@contextmanager
def refusing(call: str) -> Iterator[None]:
    """Let what is refused inside be the error of a call."""
    try:
        yield
    except OperandRefused as refused:
        raise DefinitionError(call, refused.reason, refused.hint) from None


def is_number(value: object) -> TypeGuard[Number]:
    """Whether `value` is a Python number (of a subclass too, such as NumPy's float64)."""
    return isinstance(value, (int, float))


def show(operand: object) -> str:
    """Return an operand as errors name it."""
    if isinstance(operand, TensorView):
        return operand.name
    if isinstance(operand, ScalarOperand):
        return str(operand.expr)
    if isinstance(operand, Expr):
        return str(operand)
    if isinstance(operand, (tuple, list)):
        text = ", ".join([show(item) for item in operand])
        text = f"[{text}]" if isinstance(operand, list) else f"({text}{',' * (len(operand) == 1)})"
    elif operand is None or isinstance(operand, (int, float, str, DType)):
        text = repr(operand)
    else:
        text = f"<{type(operand).__name__}>"
    return text if len(text) <= 40 else text[:37] + "..."


def kind_text(operand: object) -> str:
    """Return what an operand is, for errors."""
    if isinstance(operand, ScalarOperand):
        return "a scalar"
    if is_size(operand):
        return "a size"
    return f"of type {type(operand).__name__}"


def call_text(name: str, operands: Sequence[object], note: str = "") -> str:
    """Return a call as errors show it: ``add(x, 2.0)``."""
    shown = [show(operand) for operand in operands]
    return f"{name}({', '.join([*shown, note] if note else shown)})"


def with_sizes(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """Return the operands of a call with sizes, such as ``x.shape[1]``, as scalars of the math."""
    if not any(isinstance(operand, Expr) for operand in operands):
        return operands
    owners = [o.fusion for o in operands if isinstance(o, (TensorView, ScalarOperand))]
    fusion = owners[0] if owners else current_fusion()
    if fusion is None:
        return operands
    return tuple([fusion.extent(o) if is_size(o) else o for o in operands])


def scalar_of(value: Scalar) -> Scalar:
    """Return a scalar; a size becomes one of the current fusion."""
    fusion = current_fusion()
    return value if fusion is None or not is_size(value) else fusion.extent(value)


def is_size(operand: object) -> TypeGuard[Expr]:
    """Whether an operand is an expression of sizes."""
    return isinstance(operand, Expr) and operand.dtype is dtypes.index


def fusion_of(name: str, operands: Sequence[object]) -> Fusion:
    """Return the one fusion that the operands of call `name` belong to.

    Raises:
        DefinitionError: an operand is none, two belong to two fusions, none belongs to one, or
            one is computed inside its consumers already.
    """
    fusion: Fusion | None = None
    for number, operand in enumerate(operands):
        if isinstance(operand, (TensorView, ScalarOperand)):
            if fusion is None:
                fusion = operand.fusion
            if operand.fusion is not fusion or (
                isinstance(operand, TensorView) and operand.compute_at_pos
            ):
                raise _misplaced(name, operands, fusion, operand)
        elif not is_number(operand):
            raise DefinitionError(
                call_text(name, operands),
                f"operand {number + 1} is {kind_text(operand)}",
                "use TensorViews, scalars of the fusion, sizes or Python numbers",
            )
    if fusion is None:
        raise DefinitionError(
            call_text(name, operands),
            "no operand belongs to a fusion",
            "at least one must be a TensorView or a scalar of a fusion",
        )
    return fusion


def _misplaced(
    name: str,
    operands: Sequence[object],
    fusion: Fusion,
    found: TensorView | ScalarOperand,
    note: str = "",
) -> DefinitionError:
    call = call_text(name, operands, note)
    if found.fusion is fusion:
        assert isinstance(found, TensorView)
        return DefinitionError(
            call,
            f"{found.name} is computed inside its consumers already "
            f"(compute_at_pos {found.compute_at_pos})",
            f"define all consumers of a tensor before it is inlined: {take_back(found)}",
        )
    if found.fusion.name == fusion.name:
        reason = f"{show(found)} belongs to another fusion of the name {fusion.name}"
    else:
        reason = f"{show(found)} belongs to fusion {found.fusion.name}, not to {fusion.name}"
    return DefinitionError(call, reason, "all operands of an expression belong to one fusion")


def require_tensor(name: str, tensor: object, *others: object, note: str = "") -> TensorView:
    """Return `tensor`, the first argument of call `name`, if it is a TensorView.

    Raises:
        DefinitionError: it is not, or it is computed inside its consumers already.
    """
    if not isinstance(tensor, TensorView):
        call = call_text(name, (tensor, *others), note)
        raise DefinitionError(call, f"operand 1 is {kind_text(tensor)}", "use a TensorView")
    if tensor.compute_at_pos:
        raise _misplaced(name, (tensor, *others), tensor.fusion, tensor, note)
    return tensor


def common_type(operands: Sequence[Operand]) -> DType:
    """Return the type that the operands meet in, before the operation's own rule.

    An integer tensor with a Python float gives float32, a bool tensor with a Python int int32.
    """
    typed = [x.dtype for x in operands if isinstance(x, (TensorView, ScalarOperand))]
    return dtypes.meet(typed, [x for x in operands if is_number(x)])


def literal(value: Number, dtype: DType) -> Const:
    """Return a Python number as a literal of `dtype`, a type that is computed in.

    Raises:
        Refused: an integer that does not fit.
    """
    if dtype.is_bool:
        return Const(bool(value), dtype)
    if dtype.is_float:
        return Const(_as_float(value, dtype), dtype)
    whole = int(value)
    if not dtype.least <= whole <= dtype.greatest:
        raise OperandRefused(f"{show(whole)} does not fit {dtype}", "use a wider type")
    return Const(whole, dtype)


def _as_float(value: Number, dtype: DType) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise OperandRefused(
            "the number is beyond the range of floats", "use float('inf')"
        ) from None
    limit = _FLOAT_RANGE[dtype]
    if number >= limit or number <= -limit:
        return float("inf") if number > 0 else float("-inf")
    return number


def as_expr(operand: Scalar, dtype: DType) -> Expr:
    """Return a scalar or number as an expression of `dtype`, a type that is computed in.

    Raises:
        Refused: an integer that does not fit.
    """
    if isinstance(operand, ScalarOperand):
        return cast(operand.expr, dtype)
    if isinstance(operand, Expr):
        return cast(cast(operand, dtypes.int64), dtype)
    return literal(operand, dtype)
