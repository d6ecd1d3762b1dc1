"""Wide accesses, at every point: lanes follow each other from an aligned address."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loopnest.proofs.enumeration.access_instances import InstanceTable
from loopnest.proofs.point_arrays import Array, Undecidable
from loopnest.proofs.program_model import data_values
from loopnest.proofs.report import Finding
from loopnest.proofs.wide_accesses import WidePlace, wide_place_of


def misaligned(table: InstanceTable) -> Iterator[Finding]:
    """Yield wide accesses that are no aligned neighbours.

    Raises:
        Undecidable: something of the loop comes between the lanes.
    """
    for wide in wide_place_of(table.model):
        if not wide.ordered:
            raise Undecidable(f"the order of {wide.access} among the lanes of a vector")
        yield from _wide(table, wide)


def _wide(table: InstanceTable, wide: WidePlace) -> Iterator[Finding]:
    mark = table.marks(wide.access)
    points = mark.points
    if not points.count:
        return
    order = _by_lanes(table, wide)
    lane = points.values[wide.loop.var][order]
    address = _address(table, wide)[order]
    name = wide.access.buffer.name
    start = np.flatnonzero(lane == 0)[np.cumsum(lane == 0) - 1]
    apart = np.flatnonzero(address != address[start] + lane)
    odd = np.flatnonzero((lane == 0) & (address % wide.lanes != 0))
    if apart.size:
        message = f"the lanes of a wide access to {name} do not follow each other"
        yield table.witness.point("vector", message, wide.access, points, int(order[apart[0]]))
    if odd.size:
        message = (
            f"a wide access to {name} begins at element {int(address[odd[0]])}, no multiple of "
            f"{wide.lanes}"
        )
        yield table.witness.point("vector", message, wide.access, points, int(order[odd[0]]))


def _by_lanes(table: InstanceTable, wide: WidePlace) -> Array:
    """Return the order of the points in which the lanes of one access stand side by side.

    Where its index depends on data, a point stands there once for each value of them, and the lanes
    of an access are those that have the same values.
    """
    mark = table.marks(wide.access)
    loads = list(data_values(wide.access.index))
    if not loads:
        return np.arange(mark.points.count)
    first = table.space.points[wide.access.site].values[wide.loop.var] == 0
    values = [mark.points.values[load] for load in loads]
    lane = mark.points.values[wide.loop.var]
    return np.lexsort((lane, *values, np.cumsum(first)[mark.where]))


def _address(table: InstanceTable, wide: WidePlace) -> Array:
    """Return where each element lies, in elements, swizzled."""
    mark, buffer = table.marks(wide.access), wide.access.buffer
    if not buffer.swizzles:
        return mark.place
    index = list(table.element(mark))
    for a, b in buffer.swizzles:
        index[b] = index[b] ^ (index[a] % table.shapes[buffer][b])
    result = np.zeros(mark.points.count, np.int64)
    for value, stride in zip(index, table.strides[buffer], strict=True):
        result = result + value * stride
    return result
