"""Operands: nodes and weak Python numbers, and the element type that they meet in.

Ops take operands of one element type; what differs is converted by a ``cast`` node here, and a
number becomes a const of that type. So rewriting never meets a hidden conversion. Which type that
is, `loopnest.scalar.dtypes` says, for the core and for graphs.

A node of 16-bit floats computes in float32 and rounds its value. An operand that such a type would
round on the way in (an integer, the number 0.1) is not rounded twice: then the operands become
float32, and the value is cast at the end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeGuard

import numpy as np

from loopnest.graph.dimensions import Shape, broadcast, shown
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.leaves import const
from loopnest.graph.node import Attrs, Node, Operand, TensorType, Type
from loopnest.graph.node_values import by_math
from loopnest.graph.registry import Evaluate, Pattern, call, call_text, register_op
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import KEEPING, DType, Rule

TypeRule: TypeAlias = Callable[..., TensorType]


def is_number(value: object) -> TypeGuard[bool | int | float]:
    """Whether `value` is a Python number (of a subclass too, such as NumPy's float64)."""
    return isinstance(value, (int, float))


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
        elif is_number(operand):
            pass
        elif isinstance(operand, np.generic):
            operand = const(operand)
        else:
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
        GraphError: the operand is neither a tensor node nor a number.
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
        if _is_literal(operand):
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
    """Return operands converted to one element type: what `rule` gives for their common type.

    For ops that move elements or take operands of one type alone; see `applied`.

    Raises:
        GraphError: one is neither node nor number, or the rule refuses the type.
    """
    found = require(op, operands)
    dtype, _ = _types(op, found, rule)
    return [converted(operand, dtype, op) for operand in found]


def applied(
    op: str, operands: Sequence[object], rule: Rule, make: Callable[[list[Node]], Node]
) -> Node:
    """Return `make` of the operands, cast to the type that `rule` computes in, cast to its result.

    Raises:
        GraphError: one is neither node nor number, or the rule refuses the type.
    """
    found = require(op, operands)
    dtype, result = _types(op, found, rule)
    if all(_is_exact(operand, dtype) for operand in found):
        return make([converted(operand, dtype, op) for operand in found])
    made = make([converted(operand, dtype.compute, op) for operand in found])
    return converted(made, result) if made.dtype is result.compute else made


def _types(op: str, operands: Sequence[Operand], rule: Rule) -> tuple[DType, DType]:
    """Return the type of the operands of a node, and that of its value."""
    nodes = [operand.dtype for operand in operands if isinstance(operand, Node)]
    common = dtypes.meet(nodes, [x for x in operands if not isinstance(x, Node)])
    types = rule.get(common)
    if types is None:
        raise GraphError(
            call_text(op, operands), f"the operands meet in {common}", "use integers or bool"
        )
    computed, result = types
    return (common if computed is common.compute else computed), result


def _is_exact(operand: Operand, dtype: DType) -> bool:
    """Whether an operand becomes `dtype` without the rounding that 16 bits would add."""
    if not dtype.is_narrow:
        return True
    if isinstance(operand, Node):
        if operand.dtype is dtype or operand.dtype.is_bool:
            return True
        if not _is_literal(operand):
            return False
        value = operand.value
    else:
        try:
            value = np.asarray(operand, np.float32)
        except OverflowError:
            return True  # `converted` refuses it
    with np.errstate(over="ignore"):
        back = value.astype(dtype.numpy).astype(value.dtype)
    return bool(back == value or value != value)


def _is_literal(node: Node) -> bool:
    return node.op == "const" and node.value.ndim == 0 and not node.name


def tensors(types: Sequence[Type]) -> list[TensorType]:
    """Return operand types if none is a tuple.

    Raises:
        Refused: one is.
    """
    found = [t for t in types if isinstance(t, TensorType)]
    if len(found) < len(types):
        raise Refused("an operand is a tuple", "take a field: node[0]")
    return found


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that `shapes` broadcast to, as NumPy's do.

    Raises:
        Refused: they do not fit together.
    """
    found = broadcast(shapes)
    if found is None:
        listed = " and ".join(map(shown, shapes))
        raise Refused(f"the shapes {listed} do not broadcast together", "equal extents or 1 fit")
    return found


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


def elementwise(rule: Rule = KEEPING) -> Callable[[tuple[Type, ...], Attrs], Type]:
    """Return the inference of a pointwise op: shapes broadcast, one type, which `rule` keeps."""

    def infer(types: tuple[Type, ...], attrs: Attrs) -> Type:
        operands = tensors(types)
        dtype = one_type(operands)
        computed, result = rule.get(dtype, (None, dtype))
        if computed is not dtype.compute:
            raise Refused(f"it does not take {dtype}", "cast the operands")
        return TensorType(broadcast_shapes([t.shape for t in operands]), result)

    return infer


def declares(
    name: str,
    params: Mapping[str, object] | Sequence[str] = (),
    *,
    value: Evaluate = by_math,
    pattern: Pattern = Pattern.OPAQUE,
) -> Callable[[TypeRule], TypeRule]:
    """Register an op whose operands are tensors by its rule of types: ``(attrs, *types) -> type``.

    The rule takes as many types as the op takes operands.

    Args:
        name: of the op.
        params: its attributes, as of `register_op`.
        value: ``(node, *arrays) -> array``; by default it follows from the attribute ``math``.
        pattern: what fusion asks about it.
    """

    def declared(rule: TypeRule) -> TypeRule:
        _, *operands = inspect.signature(rule).parameters.values()
        several = any(each.kind is each.VAR_POSITIONAL for each in operands)
        register_op(
            name,
            infer=lambda types, attrs: rule(attrs, *tensors(types)),
            evaluate=value,
            arity=None if several else len(operands),
            params=params,
            pattern=pattern,
        )
        return rule

    return declared
