"""Nodes of a tensor program: immutable, compared by identity.

A node is an op applied to nodes, with attributes, and the type that inference gave it. Nodes are
made by `registry.call` (or the functions of `operators`, which use it), never changed; two nodes of
equal structure are two nodes (`structural` compares by structure).

Leaves are nodes without inputs: ``var`` (an input of a graph), ``const`` (a read-only array),
``variable`` (state that outlives an evaluation).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from loopnest.graph.dimensions import Dim, Shape, product, shown
from loopnest.graph.graph_error import GraphError
from loopnest.scalar.dtypes import DType
from loopnest.scalar.operators import Operators

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Attrs: TypeAlias = Mapping[str, Any]  # each op knows the types of its own attributes
Operand: TypeAlias = "Node | bool | int | float"

NO_ATTRS: Attrs = MappingProxyType({})
_NAME = re.compile(r"[^\W\d]\w*")
LEAVES = frozenset({"var", "const", "variable"})
"""Ops that compute nothing."""
OPERATORS: dict[str, Callable[..., Node]] = {}
"""What Python's operators on nodes call, by name; the modules of `operators` add it."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """An array's shape (outermost axis first; ints, or size expressions) and element type."""

    shape: Shape
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype}{shown(self.shape)}"

    @property
    def size(self) -> Dim:
        """The number of elements."""
        return product(self.shape)


@dataclass(frozen=True, slots=True)
class TupleType:
    """The type of a node that has several values."""

    fields: tuple[Type, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.fields))}{',' * (len(self.fields) == 1)})"


Type: TypeAlias = TensorType | TupleType


class Referable:
    """What a weak reference may point to.

    A dataclass's own `weakref_slot` is lost under a generic class in Python 3.11.9 and 3.12.3.
    """

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Node(Referable, Operators["Operand", "Node"]):
    """An op applied to nodes; see `registry.call`, which makes them.

    Attributes:
        op: the name of the op in the registry.
        inputs: the operands.
        attrs: an immutable mapping from attribute name to an immutable value.
        type: `TensorType`, or `TupleType` of a node with several values.
        name: what the user called it; "" for most.
    """

    op: str
    inputs: tuple[Node, ...]
    attrs: Attrs
    type: Type
    name: str = ""

    @property
    def tensor_type(self) -> TensorType:
        """The type of a node that has one value.

        Raises:
            GraphError: it has several.
        """
        if isinstance(self.type, TensorType):
            return self.type
        raise GraphError(
            describe(self),
            f"{self.type} has no shape and no dtype",
            "take a field: node[0]",
        )

    @property
    def shape(self) -> Shape:
        """The extents, outermost first. Raises GraphError for a tuple."""
        return self.tensor_type.shape

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The extents as ints.

        Raises:
            GraphError: it is a tuple, or an extent is known only where sizes are bound.
        """
        found = tuple([extent for extent in self.shape if isinstance(extent, int)])
        if len(found) < len(self.shape):
            raise GraphError(describe(self), f"{self.type} has sizes", "bind them: G.bind")
        return found

    @property
    def dtype(self) -> DType:
        """The element type. Raises GraphError for a tuple."""
        return self.tensor_type.dtype

    @property
    def ndim(self) -> int:
        """The number of axes. Raises GraphError for a tuple."""
        return len(self.tensor_type.shape)

    @property
    def is_tuple(self) -> bool:
        """Whether the node has several values."""
        return isinstance(self.type, TupleType)

    @property
    def value(self) -> npt.NDArray[np.generic]:
        """The read-only array of a const, or the first value of a variable.

        Raises:
            GraphError: it is neither.
        """
        if self.op not in ("const", "variable"):
            raise GraphError(describe(self), "only a const and a variable hold a value")
        array: npt.NDArray[np.generic] = self.attrs["value"]
        return array

    def __repr__(self) -> str:
        return f"<{describe(self)}: {self.type}>"

    def __str__(self) -> str:
        return describe(self)

    def __bool__(self) -> bool:
        raise GraphError(
            describe(self), "a node has no truth value", "compare with `is`, or use G.where"
        )

    def __iter__(self) -> Iterator[Node]:
        if not isinstance(self.type, TupleType):
            raise GraphError(describe(self), "a tensor cannot be iterated over", "slice it: x[0:1]")
        return iter([self[number] for number in range(len(self.type.fields))])

    def __getitem__(self, key: object) -> Node:
        """Return a field of a tuple (an int), or a slice of a tensor (NumPy's basic indexing)."""
        return self._operate("index", self, key)

    def __matmul__(self, other: Node) -> Node:
        return self._operate("matmul", self, other)

    def _operate(self, name: str, *operands: object) -> Node:
        return OPERATORS[name](*operands)


def items_of(value: object) -> tuple[Any, ...] | None:
    """Return the items of a list of nodes, or of names; None where there is no list.

    A node and a text could be iterated over too, which is never what was meant.
    """
    if isinstance(value, (Node, str, bytes)) or not isinstance(value, Iterable):
        return None
    try:
        return tuple(value)
    except TypeError:
        return None  # an array without axes


def is_name(text: object) -> bool:
    """Whether a text can name an input, a variable, a node or a graph."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def describe(node: Node, depth: int = 1) -> str:
    """Return what errors call a node: its name, or its op with its operands one level deep."""
    if node.name:
        return node.name
    if node.op == "const":
        return f"const {node.type}" if node.value.size != 1 else str(node.value.item())
    op = f"@{node.attrs['body'].name}" if node.op == "fused" and "body" in node.attrs else node.op
    if not depth:
        return f"{op}(…)" if node.inputs else op
    shown = [describe(x, depth - 1) for x in node.inputs[:4]]
    return f"{op}({', '.join([*shown, '…'] if len(node.inputs) > 4 else shown)})"
