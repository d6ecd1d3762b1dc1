"""The table of ATen operators: how each becomes nodes of a graph.

A rule is a function of a `Call`: all arguments of the operator's schema, where tensors are nodes
already, and what torch says of them and of the result. It returns a node, or a tuple of them; where
it raises `NotTranslated`, the operator runs in torch.
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

    Torch leaves out arguments that equal the defaults of the schema, so a rule never asks whether
    one was given.

    Args:
        named: every argument of the operator's schema by its name, in the order of the schema;
            defaults where none is given: nodes, numbers, lists of them.
        fakes: the same with torch's own (fake) tensors.
        result: what torch says that it returns (a fake tensor, or a tuple).
    """

    named: Mapping[str, Any]
    fakes: Mapping[str, Any]
    result: Any

    def __getitem__(self, place: int | str) -> Any:
        """Return an argument by its name, or by its place in the schema."""
        return self.named[place] if isinstance(place, str) else self.args[place]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument of a rule of several operators; of one without it, the default."""
        return self.named.get(name, default)

    @property
    def args(self) -> tuple[Any, ...]:
        """All arguments in the order of the schema."""
        return tuple(self.named.values())

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


def ordered(x: Node, order: Sequence[int]) -> Node:
    """Return x with its axes in another order; transposes of transposes are one."""
    places = [int(a) % x.ndim for a in order]
    if x.op == "transpose":
        places = [x.attrs["axes"][place] for place in places]
        (x,) = x.inputs
    return x if places == sorted(places) else G.transpose(x, places)
