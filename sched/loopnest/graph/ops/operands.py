"""Operands: nodes and weak Python numbers, and the element type that they meet in.

Ops take operands of one element type; what differs is converted by a ``cast`` node here, and a
number becomes a const of that type. So rewriting never meets a hidden conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

import numpy as np

from loopnest import dtypes
from loopnest.dtypes import DType, bool_, float32, int32
from loopnest.graph.errors import GraphError, Refused
from loopnest.graph.leaves import const
from loopnest.graph.node import Attrs, Node, Operand, TensorType, Type
from loopnest.graph.registry import call, call_text

Rule = Callable[[DType], DType | None]
"""From the type in which operands meet to that which they are converted to; None: refused."""


def arithmetic(dtype: DType) -> DType:
    """Keep the type, but int32 for bool."""
    return int32 if dtype.is_bool else dtype


def keeping(dtype: DType) -> DType:
    """Keep the type."""
    return dtype


def floating(dtype: DType) -> DType:
    """Keep floats; float32 for integers and bool."""
    return dtype if dtype.is_float else float32


def logical(dtype: DType) -> DType:
    """Take bool."""
    return bool_


def bitwise(dtype: DType) -> DType | None:
    """Keep integers and bool, refuse floats."""
    return None if dtype.is_float else dtype


def is_number(value: object) -> TypeGuard[bool | int | float]:
    """Whether `value` is a Python number."""
    return isinstance(value, (bool, int, float)) and not isinstance(value, np.generic)


def _weak(value: float) -> DType:
    if isinstance(value, bool):
        return bool_
    return int32 if isinstance(value, int) else float32


def common_type(operands: Sequence[Operand]) -> DType:
    """Return the type that operands meet in: nodes promote, numbers yield to them.

    An integer node with a Python float gives float32, a bool node with a Python int int32.
    """
    typed: DType | None = None
    weak = bool_
    for operand in operands:
        if isinstance(operand, Node):
            typed = operand.dtype if typed is None else dtypes.promote(typed, operand.dtype)
        else:
            own = _weak(operand)
            weak = own if own.rank > weak.rank else weak
    if typed is None or (weak.rank > typed.rank and weak.kind != typed.kind):
        return weak
    return typed


def require(op: str, operands: Sequence[object]) -> list[Operand]:
    """Return `operands` if each is a tensor node or a number.

    Raises:
        GraphError: one is not.
    """
    found: list[Operand] = []
    for number, operand in enumerate(operands):
        if isinstance(operand, Node):
            if not isinstance(operand.type, TensorType):
                raise GraphError(
                    call_text(op, operands), f"operand {number} is a tuple", "take a field: node[0]"
                )
        elif isinstance(operand, np.generic):
            operand = const(operand)
        elif not is_number(operand):
            what = "an array" if isinstance(operand, np.ndarray) else type(operand).__name__
            raise GraphError(
                call_text(op, operands),
                f"operand {number} is {what}",
                "use nodes (G.const makes one of an array) or Python numbers",
            )
        found.append(operand)
    return found


def require_node(op: str, operand: object) -> Node:
    """Return `operand` as a tensor node; a number becomes a const.

    Raises:
        GraphError: it is none.
    """
    (found,) = require(op, (operand,))
    return found if isinstance(found, Node) else const(found)


def converted(operand: Operand, dtype: DType, op: str = "cast") -> Node:
    """Return an operand as a node of `dtype`: itself, a cast of it, or a const.

    Raises:
        GraphError: an integer that does not fit the type.
    """
    if isinstance(operand, Node):
        if operand.dtype is dtype:
            return operand
        if operand.op == "const" and operand.value.ndim == 0 and not operand.name:
            return const(operand.value, dtype)
        return call("cast", (operand,), {"dtype": dtype})
    limit = 1 << (8 * dtype.size - 1)
    subject = f"{op}(…, {operand})"
    if dtype.is_integer and not -limit <= operand < limit:
        raise GraphError(subject, f"{operand} does not fit {dtype}", "use a wider type")
    try:
        return const(operand, dtype)
    except OverflowError:
        raise GraphError(subject, "the number is beyond the range of floats") from None


def meet(op: str, operands: Sequence[object], rule: Rule) -> list[Node]:
    """Return operands as nodes of the one type that `rule` makes of their common type.

    Raises:
        GraphError: one is neither node nor number, or the rule refuses the type.
    """
    found = require(op, operands)
    common = common_type(found)
    dtype = rule(common)
    if dtype is None:
        raise GraphError(
            call_text(op, operands), f"the operands meet in {common}", "use integers or bool"
        )
    return [converted(operand, dtype, op) for operand in found]


def tensors(types: Sequence[Type]) -> list[TensorType]:
    """Return operand types if none is a tuple.

    Raises:
        Refused: one is.
    """
    found = [t for t in types if isinstance(t, TensorType)]
    if len(found) < len(types):
        raise Refused("an operand is a tuple", "take a field: node[0]")
    return found


def broadcast_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that NumPy broadcasts `shapes` to.

    Raises:
        Refused: they do not fit together.
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " and ".join(str(list(s)) for s in shapes)
        raise Refused(
            f"the shapes {listed} do not broadcast together", "equal extents or 1 fit"
        ) from None


def one_type(types: Sequence[TensorType]) -> DType:
    """Return the element type that all operands have.

    Raises:
        Refused: they differ.
    """
    dtype = types[0].dtype
    for other in types:
        if other.dtype is not dtype:
            raise Refused(f"element types differ: {dtype} and {other.dtype}", "cast one of them")
    return dtype


def elementwise(
    result: DType | None = None, accepts: Rule = keeping
) -> Callable[[tuple[Type, ...], Attrs], Type]:
    """Return the inference of a pointwise op: shapes broadcast, one type, `result` or that type.

    `accepts` tells which types the op takes: those that it maps to themselves.
    """

    def infer(types: tuple[Type, ...], attrs: Attrs) -> Type:
        operands = tensors(types)
        dtype = one_type(operands)
        if accepts(dtype) is not dtype:
            raise Refused(f"it does not take {dtype}", "cast the operands")
        return TensorType(broadcast_shapes([t.shape for t in operands]), result or dtype)

    return infer
