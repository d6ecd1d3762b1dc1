"""The plan of a step as data: steps in order, storages, and what is where.

Made by `step_plan`, carried out by `runs_by_size`, and held against the graph by `plan_proof`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from loopnest.graph.dimensions import Dim, Shape, at
from loopnest.graph.node import Node
from loopnest.graph.program import Graph
from loopnest.graph_kernels.code_gen import GroupKernel
from loopnest.scalar.dtypes import DType

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""


@dataclass(slots=True)
class Storage:
    """A piece of memory.

    Args:
        kind: "input", "const", "state", "output" (new in each call), "arena", or "made": by a step
            whose op makes its own memory (attribute ``makes_memory``).
        node: the var, const or variable whose value it holds; None for the value of a step.
        elements: their number.
        dtype: their type.
        offset: in the arena, in bytes.
        over: of a variable's new value, the storage of the old one that it overwrites.
    """

    kind: str
    node: Node | None
    elements: Dim
    dtype: DType
    offset: int = -1
    over: int | None = None

    @property
    def bytes(self) -> int:
        """The size in bytes, of a storage without sizes."""
        return at(self.elements, {}) * self.dtype.numpy.itemsize


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """A tensor in a storage, C-contiguous; for readers that can, transposed by `axes`, or strided.

    Args:
        storage: its number.
        shape: of the tensor, or of what is transposed.
        axes: the order of the axes; None where they stay.
        strides: from the first element on; None where it is C-contiguous.
    """

    storage: int
    shape: Shape
    axes: tuple[int, ...] | None = None
    strides: Shape | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is C-contiguous."""
        return self.axes is None and self.strides is None


PlaceTree: TypeAlias = "ValuePlace | tuple[PlaceTree, ...]"


@dataclass(frozen=True, slots=True)
class UpdatedVariable:
    """An item of a group: the value that a variable has behind the step.

    Args:
        name: of the variable.
        shape: its shape.
    """

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """An output that is a group: no step makes values for it of what it says of variables."""

    items: tuple[ResultTree, ...]


ResultTree: TypeAlias = "PlaceTree | UpdatedVariable | UpdateGroup"
"""What an output of a graph is."""


@dataclass(slots=True)
class PlannedStep:
    """A launch of a kernel, or a call of NumPy.

    Args:
        node: what it computes.
        kind: "kernel", "library" or "fallback".
        inputs: a place for each operand of the node (of a tuple, its fields).
        outputs: a place for each value.
        made: of a kernel.
        copies: inputs that a kernel overwrites but that are still needed: copied first, from place
            to place.
        reason: why it is a fallback, or a call of a library.
    """

    node: Node
    kind: str
    inputs: list[PlaceTree]
    outputs: list[ValuePlace]
    made: GroupKernel | None = None
    copies: list[tuple[ValuePlace, ValuePlace]] = field(default_factory=list)
    reason: str = ""

    def reads(self) -> set[int]:
        """Return the storages that it reads."""
        return {place.storage for place in places_in(self.inputs)}


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of a graph.

    Args:
        graph: of the calls, at the sizes of the plan.
        steps: in order.
        storages: by number.
        results: what the graph's outputs are.
        commits: at the end, each variable whose new value lies elsewhere, and where.
        arena: its size in bytes; 0 where sizes are not known.
    """

    graph: Graph
    steps: tuple[PlannedStep, ...]
    storages: tuple[Storage, ...]
    results: tuple[ResultTree, ...]
    commits: tuple[tuple[int, ValuePlace], ...]
    arena: int


def places_in(tree: ResultTree | Iterable[ResultTree]) -> Iterator[ValuePlace]:
    """Yield the places of trees, left to right."""
    if isinstance(tree, ValuePlace):
        yield tree
    elif not isinstance(tree, UpdatedVariable):
        for item in tree.items if isinstance(tree, UpdateGroup) else tree:
            yield from places_in(item)


def rounded(size: int) -> int:
    """Return a size in whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT
