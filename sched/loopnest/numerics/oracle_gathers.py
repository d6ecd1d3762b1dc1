"""Reads at indices that are data, in arrays: where they are, and the values there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loopnest.errors import LaunchError
from loopnest.numerics.float64_math import Values, evaluate_expr
from loopnest.scalar.expr import Expr
from loopnest.tensor.definition import Definition, Read
from loopnest.tensor.domain import IterDomain


def points_along(place: int, ends: tuple[int, int] | None, size: int, rank: int) -> Values:
    """Return the numbers of the points of a region along an axis, to broadcast to all of them."""
    start, stop = (0, size) if ends is None else ends
    shape = [1] * rank
    shape[place] = stop - start
    return np.arange(start, stop, dtype=np.int64).reshape(shape)


def places_by_data(
    read: Read, root: Sequence[IterDomain], sizes: Sequence[int], known: Mapping[Expr, Values]
) -> dict[int, Values]:
    """Return the index along each axis that is neither broadcast nor an axis of the reader.

    Args:
        read: whose indices depend on data.
        root: the reader's root axes.
        sizes: the extents of the producer.
        known: the values of what the indices are made of, to broadcast to a region of the root.
    """
    found: dict[int, Values] = {}
    axes = zip(read.producer.domain.logical, read.equal_axes(root), read.indices, strict=True)
    for place, (axis, equal, index) in enumerate(axes):
        if not axis.is_broadcast and equal is None:
            value = np.asarray(evaluate_expr(index, known))
            found[place] = value.reshape((1,) * (len(root) - value.ndim) + value.shape)
    return found


def spots_by_data(
    read: Read,
    root: Sequence[IterDomain],
    sizes: Sequence[int],
    found: Mapping[int, Values],
    dense: Sequence[Values],
) -> tuple[Values, ...]:
    """Return the index along each axis of the producer; those outside of it are moved into it."""
    spots: list[Values] = []
    for place, equal in enumerate(read.equal_axes(root)):
        if place in found:
            spots.append(np.clip(found[place], 0, max(sizes[place] - 1, 0)))
        else:
            broadcast = equal is None or read.producer.domain.logical[place].is_broadcast
            zero = np.zeros((1,) * len(root), np.int64)
            spots.append(zero if broadcast or equal is None else dense[equal])
    return tuple(spots)


def picked(values: Values, spots: tuple[Values, ...]) -> Values:
    """Return the values at some places; zeros where there is no value at all."""
    if not values.size:
        return np.zeros(np.broadcast_shapes(*[s.shape for s in spots]), values.dtype)
    return values[spots]


def require_inside(
    subject: str, definition: Definition, read: Read, axis: tuple[int, int], found: Values
) -> None:
    """Refuse an index that lies outside of its axis, given with its extent.

    Raises:
        LaunchError: there is one; the first is named.
    """
    place, size = axis
    bad = np.flatnonzero((found < 0) | (found >= size))
    if bad.size:
        raise LaunchError(
            subject,
            f"{definition.outputs[0].name} ({definition.op}) reads {read.producer.name} at index "
            f"{int(found.ravel()[bad[0]])} along axis {place}, which has extent {size}",
            "pass indices that lie inside" if size else "pass no indices",
        )
