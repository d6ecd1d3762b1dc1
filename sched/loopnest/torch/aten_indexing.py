"""Rules of ATen's operators that read and add at indices that are data."""

from __future__ import annotations

from collections.abc import Sequence

import loopnest.graph as G
from loopnest.graph.dimensions import Dim, product
from loopnest.graph.node import Node
from loopnest.scalar.dtypes import int32, int64, meet
from loopnest.torch.aten_table import Call, as_node, ordered, translates
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


@translates("index.Tensor", "_unsafe_index.Tensor")
def _index(call: Call) -> Node:
    """Return the elements at the indices of some axes; negative ones count from its end."""
    rows = _Rows(call[0], call[1])
    found = G.take(rows.of(call[0]), rows.places, 0)
    return ordered(found, rows.back(rows.places.ndim))


@translates("index_put.default", "_unsafe_index_put.default")
def _index_put(call: Call) -> Node:
    """Return x with values at the indices of some axes, or added there."""
    x, rows = call[0], _Rows(call[0], call["indices"])
    values = G.broadcast_to(as_node(call["values"], x.dtype), rows.shape)
    updates = ordered(values, inverse(rows.back(rows.places.ndim)))
    whole, rank = rows.of(x), rows.places.ndim
    if call["accumulate"]:
        flat = G.reshape(rows.places, (rows.places.tensor_type.size,))
        added = G.reshape(updates, (flat.shape[0], *whole.shape[1:]))
        found = G.index_add(whole, flat, added, 0)
    else:
        parts = [G.reshape(rows.places, (*rows.places.shape, *[1] * len(rows.others)))]
        for axis in range(1, whole.ndim):
            own = [1] * (rank + axis - 1), [1] * (whole.ndim - axis - 1)
            places = G.iota(whole.shape[axis], 0, 1, int64)
            parts.append(G.reshape(places, (*own[0], whole.shape[axis], *own[1])))
        found = G.put(whole, G.broadcast_to(_flat(parts, whole.shape), updates.shape), updates)
    order = [*rows.axes, *rows.others]
    return ordered(G.reshape(found, [x.shape[axis] for axis in order]), inverse(order))


class _Rows:
    """A tensor seen as rows of the axes that have no index, and which of them indices name.

    Args:
        x: the tensor.
        given: for each of its first axes indices, or None.
    """

    def __init__(self, x: Node, given: Sequence[Node | None]) -> None:
        known = {axis: found for axis, found in enumerate(given) if found is not None}
        if any(indices.dtype not in (int32, int64) for indices in known.values()):
            raise NotTranslated("at a mask")
        self.axes, self.x = [*known], x
        self.others = [axis for axis in range(x.ndim) if axis not in known]
        """The axes that have no index."""
        self.places = _flat([_wrapped(i, x.shape[axis]) for axis, i in known.items()],
                            [x.shape[axis] for axis in known])  # fmt: skip
        """The row of each set of indices."""

    def of(self, x: Node) -> Node:
        """Return x as [rows, elements of a row along each axis]."""
        moved = ordered(x, [*self.axes, *self.others])
        count = product([x.shape[axis] for axis in self.axes])
        return G.reshape(moved, (count, *[x.shape[axis] for axis in self.others]))

    def back(self, rank: int) -> list[int]:
        """Return the order of axes in which those of the indices stand where torch has them.

        That is in place of the indexed axes where these are neighbours, else in front.
        """
        first = self.axes[0]
        front = first if self.axes == [*range(first, first + len(self.axes))] else 0
        rest = [*range(rank, rank + len(self.others))]
        return [*rest[:front], *range(rank), *rest[front:]]

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of the elements, as torch has it."""
        whole = (*self.places.shape, *[self.x.shape[axis] for axis in self.others])
        return tuple([whole[place] for place in self.back(self.places.ndim)])


def inverse(order: Sequence[int]) -> list[int]:
    """Return the order of axes that undoes another."""
    return sorted(range(len(order)), key=order.__getitem__)


def _wrapped(indices: Node, extent: Dim) -> Node:
    """Return indices from the front: negative ones count from the end."""
    wide = as_node(indices, int64)
    behind = G.add(wide, as_node(extent, int64))
    return G.where(G.lt(wide, as_node(0, int64)), behind, wide)


def _flat(places: Sequence[Node], extents: Sequence[Dim]) -> Node:
    """Return the places of elements in C order; -1 where one is outside of its axis."""
    zero, found = as_node(0, int64), places[0]
    for place, extent in zip(places[1:], extents[1:], strict=True):
        found = G.add(G.mul(found, as_node(extent, int64)), place)
    if len(places) == 1:
        return found  # outside it is of the axis itself
    outside = None
    for place, extent in zip(places, extents, strict=True):
        own = G.logical_or(G.lt(place, zero), G.ge(place, as_node(extent, int64)))
        outside = own if outside is None else G.logical_or(outside, own)
    assert outside is not None
    return G.where(outside, as_node(-1, int64), found)


def along_axis(x: Node, axis: int, indices: Node) -> Node:
    """Return the flat places in x that indices name along an axis, at their own others."""
    places = []
    for other, extent in enumerate(indices.shape):
        shape: list[Dim] = [1] * x.ndim
        shape[other] = extent
        own = G.reshape(G.iota(extent, 0, 1, int64), shape)
        places.append(as_node(indices, int64) if other == axis else own)
    return _flat(places, x.shape)


def _same_for_all(indices: Node, axis: int, shape: Sequence[Dim]) -> Node | None:
    """Return the indices along an axis where those are the same at all places of other axes.

    None where they are not known to be, or are not for all places of a tensor of this shape.
    """
    others = [n for n in range(indices.ndim) if n != axis]
    if not others or any(indices.shape[n] != shape[n] for n in others):
        return None
    once = indices
    while once.op == "broadcast_to" and once.inputs[0].ndim == indices.ndim:
        (once,) = once.inputs
    if any(once.shape[n] != 1 for n in others) or once.shape[axis] != indices.shape[axis]:
        return None
    while once.op in ("expand_dims", "reshape"):
        (once,) = once.inputs  # a kernel checks indices that are its input
    return G.reshape(once, (indices.shape[axis],))


def _corner(x: Node, shape: Sequence[Dim]) -> Node:
    """Return as many elements of each axis as `shape` has, the first ones."""
    return x if x.shape == tuple(shape) else G.slice(x, [0] * x.ndim, shape)


@translates("gather.default")
def _gather(call: Call) -> Node:
    """Return the elements that indices name along an axis; one of each row as a choice in the row.

    Such a choice is part of the kernel that makes the row, as in a loss of logits.
    """
    x, indices = call[0], call["index"]
    if not x.ndim or indices.ndim != x.ndim:
        raise NotTranslated("of a scalar, or of no element")
    axis = call["dim"] % x.ndim
    if (places := _same_for_all(indices, axis, x.shape)) is not None:
        return G.take(x, places, axis)
    rows = tuple([e for i, e in enumerate(indices.shape) if i != axis])
    if indices.shape[axis] != 1 or rows != tuple([e for i, e in enumerate(x.shape) if i != axis]):
        flat = G.reshape(x, (x.tensor_type.size,))
        return G.take(flat, along_axis(x, axis, indices), 0)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    places = G.reshape(G.iota(x.shape[axis], 0, 1, int64), shape)
    own = G.where(G.eq(places, as_node(indices, int64)), x, as_node(0, x.dtype))
    return as_node(G.sum(own, axis, keepdims=True), x.dtype)


@translates("sort.default", "sort.stable")
def _sort(call: Call) -> tuple[Node, Node]:
    return _sorted(call[0], call["dim"], call["descending"], None)


@translates("topk.default")
def _topk(call: Call) -> tuple[Node, Node]:
    return _sorted(call[0], call["dim"], call["largest"], call["k"])


def _sorted(x: Node, dim: int, descending: bool, count: Dim | None) -> tuple[Node, Node]:
    """Return the first elements in their order along an axis, all if None, and their places."""
    if not x.ndim:
        return x, G.full((), 0, int64)
    if x.dtype.is_bool:
        raise NotTranslated("of bools")
    axis = dim % x.ndim
    places = G.argsort(x, axis, descending)
    if count is not None:
        ends = [count if n == axis else extent for n, extent in enumerate(x.shape)]
        places = G.slice(places, [0] * x.ndim, ends)
    return G.take(G.reshape(x, (x.tensor_type.size,)), along_axis(x, axis, places), 0), places


@translates("searchsorted.Tensor")
def _searchsorted(call: Call) -> Node:
    if call.get("sorter") is not None:
        raise NotTranslated("of what a sorter orders")
    return _searched(
        call, call[0], call[1], call.get("right", False) or call.get("side") == "right"
    )


@translates("bucketize.Tensor")
def _bucketize(call: Call) -> Node:
    return _searched(call, call[1], call[0], call.get("right", False))


def _searched(call: Call, sorted_: Node, values: Node, right: bool) -> Node:
    kind = meet((sorted_.dtype, values.dtype))
    found = G.searchsorted(
        as_node(sorted_, kind), as_node(values, kind), "right" if right else "left"
    )
    return as_node(found, int32 if call.get("out_int32", False) else int64)


@translates("scatter_add.default", "scatter_reduce.two")
def _scatter_add(call: Call) -> Node:
    """Return x with each element of a tensor added where an index says along an axis."""
    x, axis, indices, values = call[0], call["dim"], call["index"], call["src"]
    if not x.ndim or indices.ndim != x.ndim:
        raise NotTranslated("of a scalar, or of no element")
    if call.get("reduce", "sum") != "sum":
        raise NotTranslated("not of a sum")
    axis, keeps = axis % x.ndim, call.get("include_self", True)
    values = _corner(values, indices.shape)
    rows = _same_for_all(indices, axis, x.shape)
    if rows is not None and keeps:
        return G.index_add(x, rows, values, axis)
    places = along_axis(x, axis, indices)
    if not keeps:
        x = G.put(x, places, G.full(indices.shape, 0, x.dtype))
    (count,) = (indices.tensor_type.size,)
    flat = G.reshape(x, (x.tensor_type.size,))
    found = G.index_add(flat, G.reshape(places, (count,)), G.reshape(values, (count,)), 0)
    return G.reshape(found, x.shape)


@translates("scatter.value", "scatter.src")
def _scatter(call: Call) -> Node:
    """Return x with elements replaced where indices say along an axis; one of each row by a choice.

    Such a choice is part of the kernel that makes the row.
    """
    x, indices, value = call[0], call["index"], call[3]
    if not x.ndim or indices.ndim != x.ndim:
        raise NotTranslated("of a scalar, or of no element")
    axis = call["dim"] % x.ndim
    if isinstance(value, Node):
        value = _corner(value, indices.shape)
    value = G.broadcast_to(as_node(value, x.dtype), indices.shape)
    rows = [e for i, e in enumerate(x.shape) if i != axis]
    if indices.shape[axis] != 1 or rows != [e for i, e in enumerate(indices.shape) if i != axis]:
        return G.put(x, along_axis(x, axis, indices), value)
    shape: list[Dim] = [1] * x.ndim
    shape[axis] = x.shape[axis]
    places = G.reshape(G.iota(x.shape[axis], 0, 1, int64), shape)
    found = G.where(G.eq(places, as_node(indices, int64)), value, x)
    return G.broadcast_to(found, x.shape)
