"""Rules of ATen's operators that read and add at indices that are data."""

from __future__ import annotations

import loopnest.graph as G
from loopnest.graph.dimensions import Dim
from loopnest.graph.node import Node
from loopnest.scalar.dtypes import int32, int64
from loopnest.torch.aten_table import Call, as_node, translates
from loopnest.torch.symbolic_sizes import NotTranslated


@translates("embedding.default")
def _embedding(call: Call) -> Node:
    return G.take(call[0], call[1], 0)


@translates("embedding_dense_backward.default")
def _embedding_backward(call: Call) -> Node:
    """Return the sums of the gradients of each row; those of the padding are left out."""
    dy, indices, rows, padding, by_frequency = call.args[:5]
    if by_frequency:
        raise NotTranslated("scaled by frequency")
    width = dy.shape[-1]
    if padding >= 0:
        shown = G.expand_dims(G.ne(indices, as_node(padding, indices.dtype)), indices.ndim)
        dy = G.where(shown, dy, as_node(0, dy.dtype))
    flat = G.reshape(indices, (indices.tensor_type.size,))
    return G.index_add(G.zeros((rows, width), dy.dtype), flat, G.reshape(dy, (-1, width)), 0)


@translates("index_select.default")
def _index_select(call: Call) -> Node:
    x, axis, indices = call[0], call[1], call[2]
    if not x.ndim or indices.ndim != 1:
        raise NotTranslated("of a scalar, or at one place")
    return G.take(x, indices, axis % x.ndim)


@translates("index.Tensor")
def _index(call: Call) -> Node:
    """Return the elements at the indices of one axis; negative ones count from its end."""
    x, given = call[0], call[1]
    axes = [axis for axis, indices in enumerate(given) if indices is not None]
    if len(axes) != 1 or given[axes[0]].dtype not in (int32, int64):
        raise NotTranslated("at indices of several axes, or at a mask")
    (axis,) = axes
    indices = given[axis]
    zero = as_node(0, indices.dtype)
    behind = G.add(indices, as_node(x.shape[axis], indices.dtype))
    return G.take(x, G.where(G.lt(indices, zero), behind, indices), axis)


@translates("scatter.value", "scatter.src")
def _scatter(call: Call) -> Node:
    """Return x with one element a row replaced: where its place is the index."""
    x, axis, indices, value = call[0], call[1] % max(call[0].ndim, 1), call[2], call[3]
    rows = [e for i, e in enumerate(x.shape) if i != axis]
    given = [e for i, e in enumerate(indices.shape) if i != axis]
    if not x.ndim or indices.shape[axis] != 1 or rows != given:
        raise NotTranslated("of several elements a row, or of fewer rows")
    if isinstance(value, Node) and value.shape != indices.shape:
        raise NotTranslated("of a part of the values")
    shape: list[Dim] = [1] * x.ndim
    shape[axis] = x.shape[axis]
    places = G.reshape(G.iota(x.shape[axis], 0, 1, int64), shape)
    found = G.where(G.eq(places, as_node(indices, int64)), as_node(value, x.dtype), x)
    return G.broadcast_to(found, x.shape)
