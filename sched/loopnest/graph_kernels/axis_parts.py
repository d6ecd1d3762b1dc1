"""Parts of axes that the tensors of a group have in common, where reshapes stand between them.

An axis that a reshape cuts consists of parts, and so does each axis that an op relates to it:
``[B * T, C]`` and ``[B, T, C]`` have the parts B, T and C. Parts that every tensor has next to each
other, in one order, are a block again: loops need no finer axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from loopnest.graph.dimensions import Dim, divides, floordiv


class NoCommonAxes(Exception):
    """Tensors have no axes in common; the text says why, as a part of a sentence."""


class SharedAxis:
    """An axis: one part, several, or the same as another axis; none where its extent is 1.

    Args:
        extent: its elements.
    """

    __slots__ = ("_parts", "_same", "extent")

    def __init__(self, extent: Dim) -> None:
        self.extent = extent
        self._same: SharedAxis | None = None
        self._parts: tuple[SharedAxis, SharedAxis] | None = None

    @property
    def found(self) -> SharedAxis:
        """The axis that stands for all that are the same as this one."""
        axis = self
        while axis._same is not None:
            axis = axis._same
        return axis

    @property
    def parts(self) -> list[SharedAxis]:
        """Its parts, the outermost first."""
        axis = self.found
        if axis.extent == 1:
            return []
        if axis._parts is None:
            return [axis]
        return [part for half in axis._parts for part in half.parts]

    def join(self, other: SharedAxis) -> None:
        """Say that two parts of equal extent are one."""
        if other.found is not self.found:
            other.found._same = self.found

    def cut(self, inner: Dim) -> tuple[SharedAxis, SharedAxis]:
        """Cut a part in two, of which the inner one has the extent `inner`; return both."""
        axis = self.found
        axis._parts = SharedAxis(floordiv(axis.extent, inner)), SharedAxis(inner)
        return axis._parts


Axes: TypeAlias = "tuple[SharedAxis, ...]"


def new_axes(shape: Iterable[Dim]) -> Axes:
    """Return axes of a shape that have nothing to do with others."""
    return tuple([SharedAxis(extent) for extent in shape])


def parts_of(axes: Iterable[SharedAxis]) -> list[SharedAxis]:
    """Return the parts of axes, the outermost first."""
    return [part for axis in axes for part in axis.parts]


def relate(one: Sequence[SharedAxis], other: Sequence[SharedAxis]) -> None:
    """Say that axes have the same elements in the same order, cut into parts where they differ.

    Raises:
        NoCommonAxes: an extent of the one is no part of one of the other.
    """
    left, right = [*one], [*other]
    while True:
        # What was cut on the way, as the same axis in another place, is taken by its parts.
        a, b = _last_part(left), _last_part(right)
        if a is None or b is None:
            break
        if a.extent == b.extent:
            a.join(b)
        elif divides(a.extent, b.extent):
            outer, inner = b.cut(a.extent)
            a.join(inner)
            right.append(outer)
        elif divides(b.extent, a.extent):
            outer, inner = a.cut(b.extent)
            inner.join(b)
            left.append(outer)
        else:
            raise NoCommonAxes(f"axes of {a.extent} and of {b.extent} have no parts in common")
    if a is not b:
        raise NoCommonAxes("their extents have no parts in common")


def _last_part(axes: list[SharedAxis]) -> SharedAxis | None:
    """Take the last part from axes; None where there is none left."""
    while axes:
        parts = axes.pop().parts
        if parts:
            axes += parts[:-1]
            return parts[-1]
    return None


class AxisBlocks:
    """Parts in blocks that no tensor takes apart.

    Args:
        tensors: the axes of each tensor.
        whole: axes of tensors that an op takes as they are: none lies in a block with others.

    Raises:
        NoCommonAxes: a tensor has one part twice, as the product of a matrix and its transpose.
    """

    def __init__(self, tensors: Iterable[Axes], whole: Iterable[Axes]) -> None:
        before: dict[SharedAxis | None, set[SharedAxis | None]] = {}
        after: dict[SharedAxis | None, set[SharedAxis | None]] = {}
        for axes in tensors:
            parts = parts_of(axes)
            if len(set(parts)) < len(parts):
                raise NoCommonAxes("two axes of a tensor are the same axis of another one")
            for outer, inner in pairwise([None, *parts, None]):
                after.setdefault(outer, set()).add(inner)
                before.setdefault(inner, set()).add(outer)
        for parts in [axis.parts for axes in whole for axis in axes if axis.parts]:
            before[parts[0]].add(None)
            after[parts[-1]].add(None)
        self._before, self._after = before, after

    def of(self, axes: Iterable[SharedAxis]) -> list[SharedAxis]:
        """Return the first part of each block of a tensor's axes, the outermost first."""
        return [part for part in parts_of(axes) if not self._continues(part)]

    def extents(self, axes: Iterable[SharedAxis]) -> Mapping[SharedAxis, list[Dim]]:
        """Return the extents of the parts of each block of a tensor, by its first part."""
        found: dict[SharedAxis, list[Dim]] = {}
        extents: list[Dim] = []
        for part in parts_of(axes):
            if not self._continues(part):
                extents = found[part] = []
            extents.append(part.extent)
        return found

    def _continues(self, part: SharedAxis) -> bool:
        """Whether a part lies in one block with that in front of it."""
        (outer, *others) = self._before[part]
        return not others and outer is not None and self._after[outer] == {part}
