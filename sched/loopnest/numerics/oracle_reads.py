"""What a definition reads of a producer, in arrays: where, which part of it, and the values."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from loopnest.numerics.float64_math import Values
from loopnest.numerics.oracle_blocks import Region
from loopnest.tensor.definition import AxisMap

Spots: TypeAlias = "tuple[int | Values | None, ...]"
"""Where each axis of a producer is read, for the points of a region of the reader.

A root axis of the reader, at the same coordinate; or the coordinates, to broadcast to the region,
moved into the producer where they lie outside; or None, at 0.
"""


def part_of(spots: Spots, region: Region) -> Region:
    """Return the region of a producer that is read at `spots` of a region of the reader."""
    return tuple([_reach(spot, region) for spot in spots])


def _reach(spot: int | Values | None, region: Region) -> tuple[int, int] | None:
    if spot is None or isinstance(spot, int):
        return None if spot is None else region[spot]
    return (int(spot.min()), int(spot.max()) + 1) if spot.size else None


def gathered(value: Values, spots: Spots, part: Region, rank: int) -> Values:
    """Return what a reader finds at `spots` of a producer, given on its region `part`.

    It has the axes of the reader's root domain, to broadcast to them. Of an empty producer nothing
    is found: zeros stand where no template asks for it.
    """
    plain = [spot for spot in spots if isinstance(spot, int)]
    moved = [spot for spot in spots if not (spot is None or isinstance(spot, int))]
    if not moved and len(set(plain)) == len(plain):
        return _aligned(value, tuple([s if isinstance(s, int) else None for s in spots]), rank)
    where = []
    for axis, (spot, ends) in enumerate(zip(spots, part, strict=True)):
        if spot is None or isinstance(spot, int):
            shape = [1] * rank
            if spot is not None:
                shape[spot] = value.shape[axis]
            where.append(np.arange(value.shape[axis] if spot is not None else 1).reshape(shape))
        else:
            where.append(spot - (ends[0] if ends is not None else 0))
    if not value.size:
        return np.zeros(np.broadcast_shapes(*[w.shape for w in where]), value.dtype)
    return value[tuple(where)]


def _aligned(value: Values, axes: AxisMap, rank: int) -> Values:
    """Return the value of a producer with its axes where `axes` says, others of extent 1."""
    gone = tuple([place for place, axis in enumerate(axes) if axis is None])
    value = np.squeeze(value, gone) if gone else value
    places = [axis for axis in axes if axis is not None]
    order = sorted(range(len(places)), key=places.__getitem__)
    value = np.transpose(value, order)
    missing = [axis for axis in range(rank) if axis not in places]
    return np.expand_dims(value, tuple(missing))
