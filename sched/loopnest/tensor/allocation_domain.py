"""The allocation domain of a tensor as users see it: the axes of its buffer, and their layout.

Each method is a schedule primitive; like those of TensorView they import the layer above when
called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, overload

from loopnest.scalar.enums import Memory, Swizzle
from loopnest.tensor.axis_names import Axis, AxisKey
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.layout_transforms import padding_of, stored_axis, swizzles_of

if TYPE_CHECKING:
    from loopnest.scalar.expr import Expr
    from loopnest.tensor.tensor_view import TensorView


class AllocationDomain(Sequence[IterDomain]):
    """The axes of a tensor's buffer in the order of memory, the one that varies slowest first.

    A sequence of axes, and a handle: what changes the tensor's buffer shows here. Until a method
    is called it is derived: the logical axes of a GLOBAL tensor, else the leaf axes that are no
    reductions. From the first call on it is the tensor's own, made from these axes, and loops may
    be split, merged and reordered without it. The buffer holds the axes that vary while it lives:
    those that the loops outside of its home run over (those left of the compute-at position, the
    grid's, and in LOCAL memory the threads') are not allocated.

    Positions are those of this domain, and may be negative; an axis may be given by name, too. Each
    method returns the handle, is carried out whole or raises a ScheduleError and changes nothing.
    Padding and swizzles come last: an axis that has one can be reordered, but not split or merged.

    Source: nvFuser's TensorDomain::setAllocationDomain; the swizzle of chunks is CuTe's Swizzle.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: TensorView) -> None:
        self.tensor = tensor

    @property
    def axes(self) -> tuple[IterDomain, ...]:
        """The axes, in the order of memory."""
        own = self.tensor.domain.allocation
        return derived_axes(self.tensor) if own is None else own

    @property
    def is_derived(self) -> bool:
        """Whether it follows from the loops, since no call laid the buffer out."""
        return self.tensor.domain.allocation is None

    @overload
    def __getitem__(self, place: int) -> IterDomain: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[IterDomain, ...]: ...
    def __getitem__(self, place: int | slice) -> IterDomain | tuple[IterDomain, ...]:
        return self.axes[place]

    def __len__(self) -> int:
        return len(self.axes)

    def __iter__(self) -> Iterator[IterDomain]:
        return iter(self.axes)

    def __str__(self) -> str:
        axes = self.axes
        stored = [stored_axis(axis) for axis in axes]
        columns = {column: row for row, column in swizzles_of(axes)}
        shown: list[str] = []
        for number, (axis, held) in enumerate(zip(axes, stored, strict=True)):
            text = f"{held.label(number)}: {held.size}"
            text += f" + {padding_of(axis)}" if padding_of(axis) else ""
            if held in columns:
                row = columns[held]
                text += f" xor {row.kind.letter}{stored.index(row)}"
            shown.append(text)
        return f"[{', '.join(shown)}]"

    def __repr__(self) -> str:
        return f"<AllocationDomain of {self.tensor.name}: {self}>"

    def split(self, axis: Axis, factor: int | str | Expr, inner: bool = True) -> AllocationDomain:
        """Split an axis in two, as `TensorView.split` does.

        Before ``[i0: 32, i1: 32]``; ``t.allocation_domain.split(1, 4)`` gives
        ``[i0: 32, i1: 8, i2: 4]``.

        Raises:
            ScheduleError: an input or output; out of range; a bad factor; padded or swizzled.
        """
        from loopnest.schedule import allocation_steps

        return allocation_steps.split(self.tensor, axis, factor, inner=inner)

    def merge(self, axis: Axis, other: Axis | None = None) -> AllocationDomain:
        """Merge two axes into one, as `TensorView.merge` does.

        Before ``[i0: 8, i1: 32]``; ``t.allocation_domain.merge(0)`` gives ``[i0: 256]``.

        Raises:
            ScheduleError: an input or output; out of range; the same axis twice; padded or
                swizzled.
        """
        from loopnest.schedule import allocation_steps

        return allocation_steps.merge(self.tensor, axis, other)

    def reorder(
        self, order: Mapping[AxisKey, Axis] | Sequence[Axis] | int, *more: Axis
    ) -> AllocationDomain:
        """Permute the axes in memory, as `TensorView.reorder` does.

        Before ``[i0: 8, i1: 32]``; ``t.allocation_domain.reorder([1, 0])`` gives
        ``[i0: 32, i1: 8]``.

        Raises:
            ScheduleError: an input or output; no permutation, or an axis out of range.
        """
        from loopnest.schedule import allocation_steps

        return allocation_steps.reorder(self.tensor, order, *more)

    def pad(self, axis: Axis, count: int) -> AllocationDomain:
        """Add `count` unused elements to the extent of an axis.

        Before ``[i0: 8, i1: 32]``; ``t.allocation_domain.pad(1, 1)`` gives
        ``[i0: 8, i1: 32 + 1]``: rows are 33 elements apart.

        Raises:
            ScheduleError: an input or output; out of range; no int >= 0.
        """
        from loopnest.schedule import allocation_steps

        return allocation_steps.pad(self.tensor, axis, count)

    def swizzle(self, kind: Swizzle, a: Axis, b: Axis) -> AllocationDomain:
        """Let the element at axes (a, b) of a SHARED tensor lie at (a, b ^ a).

        The extents are static powers of two; where axis `a` is longer, its low bits move axis `b`:
        of 32 rows of 8 chunks, row 9 has chunk 0 where row 1 has it, at 1. Several swizzles follow
        each other. Before ``[i0: 32, i1: 8, i2: 4]``;
        ``t.allocation_domain.swizzle(ln.Swizzle.XOR, 0, 1)`` gives
        ``[i0: 32, i1: 8 xor i0, i2: 4]``.

        Raises:
            ScheduleError: an input or output; not SHARED; out of range; the same axis twice; an
                extent that is no static power of two.
        """
        from loopnest.schedule import allocation_steps

        return allocation_steps.swizzle(self.tensor, kind, a, b)

    def reset(self) -> AllocationDomain:
        """Let the buffer follow from the loops again, without order, padding and swizzles.

        Raises:
            ScheduleError: an input or output.
        """
        from loopnest.schedule import allocation_steps

        return allocation_steps.reset(self.tensor)


def derived_axes(tensor: TensorView) -> tuple[IterDomain, ...]:
    """Return the axes of a buffer that nobody laid out."""
    if tensor.memory is Memory.GLOBAL:
        return tensor.domain.logical
    return tuple([axis for axis in tensor.domain.leaf if not axis.is_reduction])
