"""What pooling spreads back, by phases: elements a stride apart lie at the same places of windows.

Along an axis, element p of the operand lies at place ``p + padding - stride * o`` of window o. All
elements of a phase (one rest of p by the stride) therefore read the same number of neighbouring
windows, and no zeros between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loopnest.graph.dimensions import Dim, Shape, mul
from loopnest.graph.node import Attrs, Node
from loopnest.graph.operators import movement_ops as m
from loopnest.graph.operators import movement_ops as slicing


@dataclass(frozen=True, slots=True)
class PoolPhases:
    """The phases along an axis of a pool's operand.

    Element ``q * stride + r`` lies at place ``r + nearest + t * stride`` of the window t in front
    of the last one of q, where it lies inside.

    Args:
        stride: the number of phases.
        taps: the windows around an element.
        nearest: the place of element 0 in the last of them; negative where it lies in front of it.
        count: elements of a phase.
        before: windows that are missing in front of the first.
        behind: windows that are missing behind the last.
    """

    stride: int
    taps: int
    nearest: int
    count: int
    before: int
    behind: int


def pool_phases(attrs: Attrs) -> list[PoolPhases]:
    """Return the phases along H and W of an operand of static shape in the layout NCHW."""
    top, left, bottom, right = attrs["padding"]
    around = (top, bottom), (left, right)
    rows = zip(attrs["pool"], attrs["strides"], around, attrs["shape"][2:], strict=True)
    return [_axis(*row) for row in rows]


def _axis(size: int, stride: int, around: tuple[int, int], extent: Dim) -> PoolPhases:
    assert isinstance(extent, int)
    count = -(-extent // stride)
    ahead = (stride - 1 + around[0]) // stride  # windows that begin behind phase 0
    before = (size - 1 - around[0]) // stride
    windows = (extent + sum(around) - size) // stride + 1
    behind = count + ahead - windows
    taps = ahead + before + 1
    return PoolPhases(stride, taps, around[0] - ahead * stride, count, before, behind)


def split_phases(found: Any, axes: list[PoolPhases]) -> Any:
    """Return an array [N, C, H, W] by phases: [N, C, SH, SW, counts of H, counts of W]."""
    (rows, columns), shape = axes, found.shape
    wide = [a.count * a.stride - e for a, e in zip(axes, shape[2:], strict=True)]
    whole = np.pad(found, [(0, 0), (0, 0), *[(0, more) for more in wide]])
    apart = whole.reshape(*shape[:2], rows.count, rows.stride, columns.count, columns.stride)
    return apart.transpose(0, 1, 3, 5, 2, 4)


def side_by_side(apart: Node, shape: Shape) -> Node:
    """Return what lies by phases, [N, C, SH, SW, counts of H, counts of W], as [N, C, H, W]."""
    n, c, *steps, rows, columns = apart.shape
    moved = m.transpose(apart, (0, 1, 4, 2, 5, 3))
    whole = m.reshape(moved, (n, c, mul(rows, steps[0]), mul(columns, steps[1])))
    return whole if whole.shape == shape else slicing.slice(whole, [0] * 4, shape, [1] * 4)
