"""What lays out a buffer, loops never: its stages, and transforms that pad and swizzle it.

The transforms come last: the axis that such a step was made from, its *stored axis*, is a dimension
of the buffer; padding adds to the stride of what lies outside of it, a swizzle permutes its
elements.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from loopnest.scalar import dtypes
from loopnest.scalar.expr import Const, Expr, Op, integer
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.domain import IterDomain, TensorDomain, Transform, transforms_between


class Padding(Transform):
    """One axis to one with `count` more elements, which nobody uses."""

    __slots__ = ("count",)

    def __init__(self, axis: IterDomain, count: int, algebra: Simplifier) -> None:
        self.count = count
        self._bind([axis], [IterDomain(algebra.add(axis.size, integer(count)), axis.kind)])

    @property
    def key(self) -> Hashable:
        return ("padding", self.count)

    def replay(self, inputs: Sequence[IterDomain], algebra: Simplifier) -> Padding:
        return Padding(inputs[0], self.count, algebra)

    def backward(self, outputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        return tuple(outputs)

    def forward(self, inputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        return tuple(inputs)

    def describe(self) -> str:
        return f"padding by {self.count}"


class XorSwizzle(Transform):
    """Two axes (a, b) to axes of the same extents: the element at (a, b) is at (a, b ^ a).

    The extents are static powers of two; of `a` as many low bits move `b` as `b` has.
    """

    __slots__ = ()

    def __init__(self, row: IterDomain, column: IterDomain) -> None:
        made = [IterDomain(axis.size, axis.kind) for axis in (row, column)]
        self._bind([row, column], made)

    @property
    def key(self) -> Hashable:
        return ("xor",)

    def replay(self, inputs: Sequence[IterDomain], algebra: Simplifier) -> XorSwizzle:
        return XorSwizzle(inputs[0], inputs[1])

    def backward(self, outputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        return self.forward(outputs, algebra)

    def forward(self, inputs: Sequence[Expr], algebra: Simplifier) -> tuple[Expr, ...]:
        row, column = inputs
        low = algebra.mod(row, algebra.simplify(self.inputs[1].size))
        return row, Op("bitxor", (column, low), dtypes.index)

    def describe(self) -> str:
        return "xor swizzle"


def stored_axis(axis: IterDomain) -> IterDomain:
    """Return the axis that `axis` of an allocation domain pads and swizzles."""
    while isinstance(axis.definition, (Padding, XorSwizzle)):
        step = axis.definition
        axis = step.inputs[step.outputs.index(axis)]
    return axis


def padding_of(axis: IterDomain) -> int:
    """Return how many unused elements an axis of an allocation domain has."""
    count = 0
    while isinstance(axis.definition, (Padding, XorSwizzle)):
        step = axis.definition
        count += step.count if isinstance(step, Padding) else 0
        axis = step.inputs[step.outputs.index(axis)]
    return count


def swizzles_of(axes: Iterable[IterDomain]) -> tuple[tuple[IterDomain, IterDomain], ...]:
    """Return the pairs of stored axes that the swizzles of an allocation domain permute."""
    steps = transforms_between((), axes)
    pairs = [s.inputs for s in steps if isinstance(s, XorSwizzle)]
    return tuple([(stored_axis(row), stored_axis(column)) for row, column in pairs])


def stored_axes(domain: TensorDomain) -> tuple[IterDomain, ...]:
    """Return the stored axes of an allocation domain in the order of memory; () without one."""
    return tuple([stored_axis(axis) for axis in domain.allocation or ()])


def paddings_of(domain: TensorDomain) -> dict[IterDomain, int]:
    """Return how many unused elements each stored axis has that has any."""
    counts = {stored_axis(axis): padding_of(axis) for axis in domain.allocation or ()}
    return {axis: count for axis, count in counts.items() if count}


def is_power_of_two(size: Expr) -> bool:
    """Whether an extent is a static power of two, as both of a swizzle are."""
    value = int(size.value) if isinstance(size, Const) else 0
    return value > 0 and value & (value - 1) == 0


@dataclass(frozen=True, eq=False, slots=True)
class BufferLayout:
    """The stages that a user gave to an intermediate tensor's buffer.

    Args:
        stages: how many copies a circular buffer rotates through.
        move: the name of the instruction that copies elements to it; empty for ordinary stores.
        prefetch: how many iterations ahead of its use a circular buffer is computed.
    """

    stages: int = 1
    prefetch: int = 0
    move: str = ""


PLAIN = BufferLayout()
