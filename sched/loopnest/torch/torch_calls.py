"""The graph ops ``torch_call`` and ``torch_random``: a function of torch as a node of its own.

What loopnest has no kernel for runs in torch, on the tensors of the step. ``torch_random`` is one
that draws numbers, which no pass merges or moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from loopnest.graph.dimensions import at
from loopnest.graph.node import Attrs, Node, TensorType, TupleType, Type
from loopnest.graph.registry import Pattern, call, register_attr, register_op
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Expr
from loopnest.torch.symbolic_sizes import sizes_of
from loopnest.torch.tensor_arrays import Tensor, array_of, dtype_of_torch, tensor_of

NO_SIZES: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class OperandPlace:
    """In the arguments of a call: operand number `number` of the node."""

    number: int


def torch_node(
    function: Any,
    operands: Sequence[Node],
    args: tuple[Any, ...],
    kwargs: Any,
    kind: Type,
    order: Sequence[int] = (),
    told: tuple[bool, str] = (False, ""),
) -> Node:
    """Return a node that calls a function of torch.

    Args:
        function: an operator of ``torch.ops``.
        operands: the tensors that it takes.
        args: its arguments, with an `OperandPlace` for each operand.
        kwargs: its keywords, likewise.
        kind: what it returns.
        order: of a tensor that lies in another order in memory: its axes from the outermost there,
            which is the order that the node's value has them in.
        told: whether torch computes it by choice, and why: what a launch says.
    """
    tags = getattr(function, "tags", ())
    draws = torch.Tag.nondeterministic_seeded in tags
    attrs = {
        "function": function,
        "args": args,
        "kwargs": tuple(sorted(kwargs.items())),
        "result": _spec(kind),
        "order": tuple(order),
        "told": told,
    }
    return call("torch_random" if draws else "torch_call", operands, attrs)


def run_in_torch(
    node: Node, tensors: Sequence[Tensor], sizes: Mapping[str, int] = NO_SIZES
) -> list[Tensor]:
    """Call the function of a node on tensors, at sizes; return its values."""
    attrs = node.attrs
    args = _filled(attrs["args"], tensors, sizes)
    kwargs = {key: _filled(value, tensors, sizes) for key, value in attrs["kwargs"]}
    found = attrs["function"](*args, **kwargs)
    if attrs["order"]:
        return [found.permute(attrs["order"])]
    return [*found] if isinstance(found, (tuple, list)) else [found]


def returns_views(node: Node) -> bool:
    """Whether what the function of a node returns may be memory of an operand."""
    schema = getattr(node.attrs["function"], "_schema", None)
    return schema is not None and any(x.alias_info is not None for x in schema.returns)


def _filled(value: Any, tensors: Sequence[Tensor], sizes: Mapping[str, int]) -> Any:
    if isinstance(value, OperandPlace):
        return tensors[value.number]
    if isinstance(value, tuple):
        return [_filled(item, tensors, sizes) for item in value]
    return at(value, sizes) if isinstance(value, Expr) else value


def _spec(kind: Type) -> tuple[Any, ...]:
    """Return a type as an attribute, in which sizes can be bound."""
    if isinstance(kind, TupleType):
        return tuple([_spec(part) for part in kind.fields])
    return (kind.dtype, kind.shape)


def _infer(types: tuple[Type, ...], attrs: Attrs) -> Type:
    spec = attrs["result"]
    if spec and isinstance(spec[0], DType):
        return TensorType(spec[1], spec[0])
    return TupleType(tuple([TensorType(shape, dtype) for dtype, shape in spec]))


def _evaluate(node: Node, *arrays: Any) -> Any:
    found = run_in_torch(node, [tensor_of(array.copy()) for array in arrays])
    values = tuple([array_of(x.contiguous()) for x in found])
    return values if isinstance(node.type, TupleType) else values[0]


def type_of_tensor(tensor: Tensor) -> TensorType | None:
    """Return the type of a tensor; None where loopnest has no such element type."""
    dtype = dtype_of_torch(tensor.dtype)
    return None if dtype is None else TensorType(sizes_of(tensor.shape), dtype)


for _name in ("torch_call", "torch_random"):
    register_op(
        _name,
        infer=_infer,
        evaluate=_evaluate,
        params=("function", "args", "kwargs", "result", "order", "told"),
        pattern=Pattern.OPAQUE,
    )
    register_attr(_name, "makes_memory", True)
register_attr("torch_random", "pure", False)
