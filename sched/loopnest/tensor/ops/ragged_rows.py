"""Rows of different lengths that lie one behind the other: where each begins and ends.

The elements j of row r are those with ``offsets[r] <= j < offsets[r + 1]``: the rows of a sparse
matrix in CSR form, the sequences of a batch, the groups of a grouped product. A reduction under
that mask runs through the elements of the row alone, since the loop over j begins and ends there.
"""

from __future__ import annotations

from typing import NamedTuple

from loopnest.base.errors import DefinitionError
from loopnest.scalar import dtypes
from loopnest.scalar.data_ranges import DataRange
from loopnest.scalar.expr import ONE, ZERO, Const
from loopnest.tensor.ops.construction import axes_of
from loopnest.tensor.ops.data_movement import Extent, broadcast, iota
from loopnest.tensor.ops.operands import call_text, require_tensor
from loopnest.tensor.ops.pointwise import ge, logical_and, lt
from loopnest.tensor.ops.slices import slice as sliced
from loopnest.tensor.tensor_view import TensorView


class RaggedRows(NamedTuple):
    """Rows of a ragged array, as `ln.segments` returns them.

    Args:
        first: the number of the first element of each row [R].
        last: the number behind its last element [R].
        mask: whether an element belongs to a row [R, length].
    """

    first: TensorView
    last: TensorView
    mask: TensorView


def segments(offsets: TensorView, length: Extent) -> RaggedRows:
    """Return where rows begin and end that lie one behind the other, and which elements they have.

    Row r has the elements ``offsets[r] <= j < offsets[r + 1]`` of an axis of `length` elements. A
    reduction over them, ``ln.sum(ln.where(rows.mask, x, 0.0), axis=1)``, visits these alone: its
    loop is lowered as ``for j in offsets[r]..offsets[r + 1] of length``, within the axis whatever
    the data are.

    Args:
        offsets: integers that ascend, one more than there are rows. Of an input that is declared,
            and the range 0 <= offset <= length (`Fusion.assume_range`): each launch checks it.
        length: the extent of the axis that the rows lie along: an int, the name of a size symbol,
            or an extent of a tensor.

    Raises:
        DefinitionError: no tensor of integers with one axis, or fewer than one offset.

    >>> import numpy as np
    >>> import loopnest as ln
    >>> with ln.Fusion("row_sum") as f:
    ...     x = f.input("x", ("Z",), ln.float32)
    ...     offsets = f.input("offsets", ("P",), ln.int32)
    ...     rows = ln.segments(offsets, "Z")
    ...     y = f.output(ln.sum(ln.where(rows.mask, x, 0.0), axis=1), "y")
    >>> print(ln.evaluate(f, np.array([1, 2, 3, 4], np.float32), np.array([0, 1, 1, 4], np.int32)))
    [1. 0. 9.]

    Source: the row pointers of the compressed sparse row format (Saad, "Iterative methods for
    sparse linear systems", 2003, section 3.4).
    """
    call = call_text("segments", (offsets, length))
    require_tensor("segments", offsets)
    axes = axes_of(offsets)
    if len(axes) != 1 or offsets.dtype not in dtypes.INTEGERS:
        found = f"{offsets.name} is {offsets.dtype} with {len(axes)} axes"
        raise DefinitionError(call, found, "use integers along one axis")
    fusion = offsets.fusion
    ((count, _),) = axes
    if isinstance(count, Const) and count.value < 1:
        raise DefinitionError(call, f"{offsets.name} has no element", "use one more than rows")
    size = fusion.size(call, length)
    end = fusion.algebra.add(size, ONE)
    declared = DataRange(offsets.name, ZERO, end, ascending=True)
    if offsets in fusion.inputs and declared not in fusion.ranges:
        fusion.assume_range(offsets, 0, end, ascending=True)
    first, last = sliced(offsets, (None,), (-1,)), sliced(offsets, (1,), (None,))
    element = broadcast(iota(size), (True, False))
    begun = ge(element, broadcast(first, (False, True)))
    open_yet = lt(element, broadcast(last, (False, True)))
    return RaggedRows(first, last, logical_and(begun, open_yet))
