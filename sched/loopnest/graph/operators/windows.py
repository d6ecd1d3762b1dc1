"""Windows over the last two axes of [N, C, H, W]: what convolution and pooling share, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loopnest.graph.dimensions import Dim, add, ceildiv, mul, never_at_most, sub
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
