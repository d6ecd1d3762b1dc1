"""The table of ATen operators: how each becomes nodes of a graph.

A rule is a function of a `Call`: the arguments, where tensors are nodes already, and what torch
says of them and of the result. It returns a node, or a tuple of them; where it raises
`NotTranslated`, the operator runs in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

import loopnest.graph as G
from loopnest.graph.dimensions import Dim
from loopnest.graph.node import Node
from loopnest.scalar.dtypes import DType
from loopnest.scalar.expr import Expr
from loopnest.torch.symbolic_sizes import NotTranslated, sizes_of
from loopnest.torch.tensor_arrays import Tensor, dtype_of_torch


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an ATen operator.

    Args:
        args: the arguments by position, defaults filled in: nodes, numbers, lists of them.
        fakes: the same with torch's own (fake) tensors.
        keywords: the arguments that are keywords alone, where given.
        result: what torch says that it returns (a fake tensor, or a tuple).
    """

    args: tuple[Any, ...]
    fakes: tuple[Any, ...]
    keywords: Mapping[str, Any]
    result: Any

    def __getitem__(self, place: int) -> Any:
        return self.args[place]

    @property
    def dtype(self) -> DType:
        """The element type of the result, or of its first value."""
        return own_dtype(self.first)

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of the result, or of its first value."""
        return sizes_of(self.first.shape)

    @property
    def first(self) -> Tensor:
        """The result, or its first value."""
        return self.result[0] if isinstance(self.result, (tuple, list)) else self.result


def own_dtype(tensor: Tensor) -> DType:
    """Return the element type of a tensor.

    Raises:
        NotTranslated: loopnest has no such type.
    """
    found = dtype_of_torch(tensor.dtype)
    if found is None:
        raise NotTranslated(f"there is no dtype {tensor.dtype}")
    return found


Rule: TypeAlias = "Callable[[Call], Node | tuple[Node | None, ...]]"
RULES: dict[Any, Rule] = {}
aten = torch.ops.aten


def translates(*names: str) -> Callable[[Rule], Rule]:
    """Make a function the rule of operators: ``"add.Tensor"`` is ``torch.ops.aten.add.Tensor``.

    Names that this version of torch does not have are left out.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            packet, _, overload = name.partition(".")
            found = getattr(getattr(aten, packet, None), overload or "default", None)
            if found is not None:
                RULES[found] = rule
        return rule

    return register


def as_node(value: Any, dtype: DType) -> Node:
    """Return an operand as a node of an element type; a number as a constant, a size as itself."""
    if isinstance(value, Node):
        return value if value.dtype is dtype else G.cast(value, dtype)
    if isinstance(value, Expr):
        return G.size(value, dtype)
    if dtype.is_bool:
        value = bool(value)
    elif dtype.is_integer:
        value = int(value)
    return G.const(value, dtype)


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """Return axes from the front; None and an empty list are all of them."""
    given: Sequence[int] = [axis] if isinstance(axis, int) else list(axis or range(rank))
    if not rank:
        return ()
    return tuple(sorted({int(a) % rank for a in given}))
