"""Layout: how the buffer of a tensor lies in memory, beyond what its loops say."""

from __future__ import annotations

from dataclasses import dataclass

from loopnest.tensor.domain import IterDomain


@dataclass(frozen=True, eq=False, slots=True)
class BufferLayout:
    """The layout that a user gave to an intermediate tensor's buffer, in terms of its leaf axes.

    Args:
        order: the axes, outermost first; None for the order of the loops.
        pad: unused elements added to the extent of an axis.
        swizzle: two axes (a, b): the element at (a, b) lies at (a, b ^ a); None without.
        stages: how many copies a circular buffer rotates through.
    """

    order: tuple[IterDomain, ...] | None = None
    pad: tuple[tuple[IterDomain, int], ...] = ()
    swizzle: tuple[IterDomain, IterDomain] | None = None
    stages: int = 1

    def axes(self) -> tuple[IterDomain, ...]:
        """Return every axis that the layout names."""
        padded = tuple([axis for axis, _ in self.pad])
        return (*(self.order or ()), *padded, *(self.swizzle or ()))


PLAIN = BufferLayout()
