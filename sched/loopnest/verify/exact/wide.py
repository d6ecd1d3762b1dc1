"""Wide accesses, at every point: lanes follow each other from an aligned address."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loopnest.verify.exact.marks import Table
from loopnest.verify.lanes import Array, Undecidable
from loopnest.verify.report import Finding
from loopnest.verify.wide import Wide, wide_of


def misaligned(table: Table) -> Iterator[Finding]:
    """Yield wide accesses that are no aligned neighbours.

    Raises:
        Undecidable: something of the loop comes between the lanes.
    """
    for wide in wide_of(table.model):
        if not wide.ordered:
            raise Undecidable(f"the order of {wide.access} among the lanes of a vector")
        yield from _wide(table, wide)


def _wide(table: Table, wide: Wide) -> Iterator[Finding]:
    mark = table.marks(wide.access)
    points = mark.points
    if not points.count:
        return
    lane = points.values[wide.loop.var]
    address = _address(table, wide)
    name = wide.access.buffer.name
    start = np.flatnonzero(lane == 0)[np.cumsum(lane == 0) - 1]
    apart = np.flatnonzero(address != address[start] + lane)
    odd = np.flatnonzero((lane == 0) & (address % wide.lanes != 0))
    if apart.size:
        message = f"the lanes of a wide access to {name} do not follow each other"
        yield table.witness.point("vector", message, wide.access, points, int(apart[0]))
    if odd.size:
        message = (
            f"a wide access to {name} begins at element {int(address[odd[0]])}, no multiple of "
            f"{wide.lanes}"
        )
        yield table.witness.point("vector", message, wide.access, points, int(odd[0]))


def _address(table: Table, wide: Wide) -> Array:
    """Return where each element lies, in elements, swizzled."""
    mark, buffer = table.marks(wide.access), wide.access.buffer
    if buffer.swizzle is None:
        return mark.place
    index = list(table.element(mark))
    a, b = buffer.swizzle
    index[b] = index[b] ^ index[a]
    result = np.zeros(mark.points.count, np.int64)
    for value, stride in zip(index, table.strides[buffer], strict=True):
        result = result + value * stride
    return result
