"""The elements that a factored reduction folds, at given sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loopnest.proofs.point_arrays import Array, Points
from loopnest.scalar.expr import Coordinate, Expr
from loopnest.tensor.math_snapshot import MathTensor


def root_points(root: Sequence[int]) -> Points:
    """Return a point for each element of a root domain, in row-major order."""
    count = int(np.prod(root, dtype=np.int64))
    numbers = np.arange(count, dtype=np.int64)
    values: dict[Expr, Array] = {}
    rest = numbers
    for axis in reversed(range(len(root))):
        values[Coordinate(axis)] = rest % max(root[axis], 1)
        rest = rest // max(root[axis], 1)
    return Points(count, values, numbers, numbers, numbers)


def logical_numbers(
    tensor: MathTensor, root: Sequence[int], logical: Sequence[int], sizes: Mapping[str, int]
) -> Array:
    """Return, for each element of the root domain, the row-major number of its logical element."""
    points = root_points(root)
    result = np.zeros(points.count, np.int64)
    for place, extent in zip(tensor.places, logical, strict=True):
        result = result * extent + points.array(place, {}, sizes)
    return result
