"""Windows over the last two axes of [N, C, H, W]: what convolution and pooling share, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loopnest.graph.dimensions import (
    Dim,
    Shape,
    add,
    ceildiv,
    divides,
    mul,
    never_at_most,
    sub,
)
from loopnest.graph.graph_error import Refused


def window_extent(padded: Dim, size: Dim, stride: int, dilation: int) -> Dim:
    """Return how many windows fit into an extent.

    Raises:
        Refused: none does, whatever the sizes are.
    """
    before = mul(sub(size, 1), dilation)
    starts = sub(padded, before)
    if never_at_most(1, size) or never_at_most(1, starts):
        raise Refused(f"a window of {add(before, 1)} does not fit the padded extent {padded}")
    return ceildiv(starts, stride)


def columns(
    x: Any,
    size: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    value: Any,
) -> Any:
    """Return the windows of [N, C, H, W] as a view [N, C, KH, KW, OH, OW] of the padded array."""
    top, left, bottom, right = padding
    if any(padding):
        widths = ((0, 0), (0, 0), (top, bottom), (left, right))
        x = np.pad(x, widths, constant_values=value)
    spans = [d * (k - 1) + 1 for k, d in zip(size, dilation, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, spans, axis=(2, 3))
    view = view[:, :, :: strides[0], :: strides[1], :: dilation[0], :: dilation[1]]
    return view.transpose(0, 1, 4, 5, 2, 3)


def scatter(
    found: Any,
    size: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Any:
    """Add windows [N, C, KH, KW, OH, OW] up to [N, C, H, W] of `size`: `columns` transposed."""
    n, c, kh, kw, oh, ow = found.shape
    top, left, bottom, right = padding
    result = np.zeros((n, c, size[0] + top + bottom, size[1] + left + right), found.dtype)
    for i in range(kh):
        for j in range(kw):
            first, second = i * dilation[0], j * dilation[1]
            rows = slice(first, first + strides[0] * (oh - 1) + 1, strides[0])
            cols = slice(second, second + strides[1] * (ow - 1) + 1, strides[1])
            result[:, :, rows, cols] += found[:, :, i, j]
    return result[:, :, top : top + size[0], left : left + size[1]]


def check_groups(groups: object, own: Dim, out: Dim) -> None:
    """Check the groups of a convolution of so many channels to so many.

    Raises:
        Refused: they do not divide both.
    """
    if (
        not isinstance(groups, int)
        or groups < 1
        or not divides(groups, own)
        or not divides(groups, out)
    ):
        raise Refused(f"{groups} groups of {own} channels to {out}", "groups must divide both")


def check_channels(groups: int, own: Dim, kernel: Dim, out: Dim) -> None:
    """Check the channels of a convolution in groups.

    Args:
        groups: their number.
        own: channels of the data.
        kernel: channels that a kernel takes: those of one group.
        out: channels of the results.

    Raises:
        Refused: they do not fit.
    """
    check_groups(groups, own, out)
    if mul(kernel, groups) != own:
        raise Refused(
            f"the kernel takes {kernel} channels in {groups} groups, the data has {own}",
            "the second extent of the kernel is C // groups",
        )


def window_counts(
    space: Shape,
    kernel: Shape,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Shape:
    """Return how many windows there are along each spatial axis.

    Raises:
        Refused: a window does not fit.
    """
    rows = zip(space, kernel, strides, padding, dilation, strict=True)
    return tuple([window_extent(add(n, sum(pair)), k, s, d) for n, k, s, pair, d in rows])
