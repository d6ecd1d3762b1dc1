"""Leaves, tuples and state: var, const, variable, assign, group, tuple, get_item.

State is functional. A variable's node is its value before the evaluation, wherever it is read;
the node of `assign` is the new value, which the variable takes when the evaluation ends. A graph
assigns a variable at most once. Passes may thus treat `assign` as an elementwise op on its second
operand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from loopnest.base.errors import InternalError
from loopnest.graph.dimensions import Shape, ShapeLike, dim_of
from loopnest.graph.graph_error import GraphError, Refused
from loopnest.graph.node import Attrs, Node, TensorType, TupleType, Type, is_name, items_of
from loopnest.graph.registry import (
    Pattern,
    call,
    call_text,
    read_only,
    register_op,
    short,
    takes_arguments,
)
from loopnest.scalar import dtypes
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Expr, whole

_BY_NAME = {dtype.name: dtype for dtype in dtypes.ALL}
_WEAK = {bool: dtypes.bool_, int: dtypes.int32, float: dtypes.float32}
"""Types of Python numbers that stand alone."""


def dtype_of(value: DType | str | type | np.dtype[Any], subject: str) -> DType:
    """Return the element type that a user named: a DType, its name, or NumPy's.

    Raises:
        GraphError: there is no such type.
    """
    if isinstance(value, DType):
        return value
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if name is None and isinstance(value, type):
        name = value.__name__
    found = _BY_NAME.get(str(name))
    if found is None:
        raise GraphError(
            subject, f"there is no dtype {short(value)}", f"use one of {', '.join(_BY_NAME)}"
        )
    return found


def shape_of(value: object, subject: str) -> Shape:
    """Return a shape as a tuple of extents.

    Raises:
        GraphError: it is no sequence of ints >= 0 and sizes.
    """
    if isinstance(value, (str, Expr)) or whole(value) is not None:
        value = (value,)
    given = items_of(value)
    known = given is not None and all(_is_extent(extent) for extent in given)
    if given is None or not known:
        raise GraphError(
            subject,
            f"the shape is {short(value)}",
            "a shape is a tuple of integers >= 0 and names of sizes",
        )
    return tuple([dim_of(extent, subject) for extent in given])


def _is_extent(value: object) -> bool:
    number = whole(value)
    return isinstance(value, (str, Expr)) if number is None else number >= 0


@takes_arguments
def var(name: str, shape: ShapeLike, dtype: DType | str | type = dtypes.float32) -> Node:
    """Return an input of a graph.

    Args:
        name: an identifier, unique among the inputs of a graph.
        shape: an int, or a size, an axis. A size is a name (equal names are equal extents), or
            + - * // %, ceildiv, min and max of names and ints. A static 1 broadcasts; a size never
            does.
        dtype: the element type.

    >>> var("x", (64, 32), "float32")
    <x: float32[64, 32]>
    >>> var("x", ("N", "2 * D + 1"))
    <x: float32[N, D * 2 + 1]>

    Raises:
        GraphError: the name is no identifier, a shape that is none, or an unknown dtype.
    """
    subject = f"var({name!r})"
    check_name(name, subject)
    attrs = {"shape": shape_of(shape, subject), "dtype": dtype_of(dtype, subject)}
    return call("var", (), attrs, name)


@takes_arguments
def const(value: object, dtype: DType | str | type | None = None, name: str = "") -> Node:
    """Return a constant: a copy of an array, or a Python number (alone bool, int32 or float32).

    >>> const(2.0), const([1, 2], "float64").shape
    (<2.0: float32[]>, (2,))

    Raises:
        GraphError: the value is no array of a type that loopnest knows.
    """
    subject = f"const({short(value)})"
    if name:
        check_name(name, subject)
    return call("const", (), {"value": constant_array(value, dtype, subject)}, name)


def constant_array(
    value: object, dtype: DType | str | type | None, subject: str
) -> npt.NDArray[Any]:
    """Return a read-only array of `value`.

    Raises:
        GraphError: it is no array of a type that loopnest knows.
    """
    if isinstance(value, Node):
        raise GraphError(subject, "the value is a node", "pass an array or a number")
    wanted = None if dtype is None else dtype_of(dtype, subject)
    try:
        array = _as_array(value, wanted)
    except (OverflowError, ValueError, TypeError) as error:
        raise GraphError(subject, f"it is no array: {error}") from None
    if dtypes.from_numpy(array.dtype) is None:
        known = ", ".join(d.name for d in dtypes.ALL)
        raise GraphError(subject, f"its dtype is {array.dtype}", f"use one of {known}")
    return read_only(array)


def _as_array(value: object, wanted: DType | None) -> npt.NDArray[Any]:
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        with np.errstate(all="ignore"):
            return array if wanted is None else array.astype(wanted.numpy)
    if wanted is None:
        kind = {"b": bool, "i": int, "f": float}.get(np.asarray(value).dtype.kind)
        wanted = None if kind is None else _WEAK[kind]
    with np.errstate(all="ignore"):
        return np.array(value, None if wanted is None else wanted.numpy)


@takes_arguments
def assign(variable: Node, value: Node) -> Node:
    """Return the new value of a variable, which it takes when the evaluation ends.

    Raises:
        GraphError: the first operand is no variable, or the types differ.
    """
    subject = call_text("assign", (variable, value))
    if not isinstance(variable, Node) or variable.op != "variable":
        raise GraphError(subject, "the first operand is no variable", "make one by G.Variable")
    return call("assign", (variable, value), {"variable": variable.attrs["variable"]})


@takes_arguments
def group(*updates: Node) -> Node:
    """Return a tuple of updates, so that one output carries them all.

    Raises:
        GraphError: an operand is no node.
    """
    return call("group", updates)


@takes_arguments
def make_tuple(*fields: Node) -> Node:
    """Return a tuple of nodes.

    Raises:
        GraphError: an operand is no node.
    """
    return call("tuple", fields)


@takes_arguments
def get_item(node: Node, index: int) -> Node:
    """Return a field of a tuple; negative from the end.

    Raises:
        GraphError: no tuple, or a field that it does not have.
    """
    if not isinstance(node, Node) or not isinstance(index, (int, np.integer)):
        raise GraphError(call_text("get_item", (node, index)), "it takes a tuple and an integer")
    count = len(node.type.fields) if isinstance(node.type, TupleType) else 0
    place = int(index)
    return call("get_item", (node,), {"index": place + count if place < 0 else place})


def check_name(name: object, subject: str) -> None:
    """Check that a name is an identifier.

    Raises:
        GraphError: it is none.
    """
    if not is_name(name):
        raise GraphError(subject, "the name is not an identifier")


def _infer_var(types: tuple[Type, ...], attrs: Attrs) -> Type:
    return TensorType(attrs["shape"], attrs["dtype"])


def _infer_value(types: tuple[Type, ...], attrs: Attrs) -> Type:
    array = attrs["value"]
    dtype = dtypes.from_numpy(array.dtype)
    if dtype is None:
        raise Refused(f"there is no dtype {array.dtype}")
    return TensorType(array.shape, dtype)


def _infer_assign(types: tuple[Type, ...], attrs: Attrs) -> Type:
    if types[0] != types[1]:
        raise Refused(f"the variable is {types[0]}, the value {types[1]}", "they must agree")
    return types[1]


def _infer_get_item(types: tuple[Type, ...], attrs: Attrs) -> Type:
    whole, index = types[0], attrs["index"]
    if not isinstance(whole, TupleType):
        raise Refused(f"{whole} is no tuple", "slice a tensor by x[0:1]")
    if not isinstance(index, int) or not 0 <= index < len(whole.fields):
        raise Refused(f"there is no field {index}", f"the tuple has {len(whole.fields)} fields")
    return whole.fields[index]


def _no_value(node: Node, *values: object) -> object:
    raise InternalError(f"{node}", "its value comes from the evaluator, not from the op")


register_op("var", infer=_infer_var, evaluate=_no_value, arity=0, params=("shape", "dtype"))
register_op(
    "const", infer=_infer_value, evaluate=lambda node: node.value, arity=0, params=("value",)
)
register_op(
    "variable", infer=_infer_value, evaluate=_no_value, arity=0, params=("value", "variable")
)
register_op(
    "assign",
    infer=_infer_assign,
    evaluate=lambda node, old, new: new,  # the evaluator keeps it for the end
    arity=2,
    params=("variable",),
    pattern=Pattern.ELEMWISE,
)
for _name in ("tuple", "group"):
    register_op(
        _name,
        infer=lambda types, attrs: TupleType(types),
        evaluate=lambda node, *values: values,
        pattern=Pattern.TUPLE,
    )
register_op(
    "get_item",
    infer=_infer_get_item,
    evaluate=lambda node, whole: whole[node.attrs["index"]],
    arity=1,
    params=("index",),
    pattern=Pattern.INJECTIVE,
)
