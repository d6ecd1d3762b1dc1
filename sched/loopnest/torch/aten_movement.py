"""Rules of ATen's operators that move elements: shapes, parts, joins, indices that are data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import loopnest.graph as G
from loopnest.graph.dimensions import Dim, add, mul, product
from loopnest.graph.node import Node
from loopnest.scalar.dtypes import DType, int32, int64, meet
from loopnest.torch.aten_table import Call, as_node, axes_of, ordered, translates
from loopnest.torch.input_layouts import InputLayout, order_in_memory
from loopnest.torch.symbolic_sizes import NotTranslated, sizes_of, strides_of

_FAR = 1 << 62


@translates("view.default", "reshape.default", "_unsafe_view.default", "view_copy.default")
def _view(call: Call) -> Node:
    return G.reshape(call[0], call.shape)


@translates("expand.default", "expand_copy.default")
def _expand(call: Call) -> Node:
    return G.broadcast_to(call[0], call.shape)


@translates("copy.default")
def _copy(call: Call) -> Node:
    """Return what a tensor holds when another was copied to it."""
    return G.broadcast_to(as_node(call["src"], call.dtype), call.shape)


@translates("permute.default", "permute_copy.default")
def _permute(call: Call) -> Node:
    return ordered(call[0], call[1])


@translates("t.default")
def _t(call: Call) -> Node:
    return call[0] if call[0].ndim < 2 else ordered(call[0], (1, 0))


@translates("transpose.int")
def _swap(call: Call) -> Node:
    order = list(range(call[0].ndim))
    if order:
        a, b = call[1], call[2]
        order[a], order[b] = order[b], order[a]
    return ordered(call[0], order)


@translates("unsqueeze.default", "squeeze.dim", "squeeze.dims", "squeeze.default")
def _ones_moved(call: Call) -> Node:
    return G.reshape(call[0], call.shape)


@translates("select.int", "select_copy.int")
def _select(call: Call) -> Node:
    x, axis, place = call[0], call[1] % call[0].ndim, call[2]
    if place < 0:
        place = add(x.shape[axis], place)
    return G.squeeze(_part(x, axis, place, add(place, 1), 1), axis)


@translates("slice.Tensor", "slice_copy.Tensor")
def _slice(call: Call) -> Node:
    x, axis, start, stop, step = call.args
    return _part(x, axis % x.ndim, start or 0, _FAR if stop is None else stop, step)


def _part(x: Node, axis: int, start: Dim, stop: Dim, step: int) -> Node:
    starts: list[Dim] = [0] * x.ndim
    stops, steps = list(x.shape), [1] * x.ndim
    starts[axis], steps[axis] = start, step
    if not isinstance(stop, int) or stop < _FAR:
        stops[axis] = stop
    return G.slice(x, starts, stops, steps)


@translates("as_strided.default", "as_strided_copy.default")
def _as_strided(call: Call) -> Node:
    """Return the elements of the operand's memory that strides say."""
    x, own, first = call[0], call.fakes["self"], call["storage_offset"]
    behind = 0 if first is None else first - own.storage_offset()
    if behind < 0:
        raise NotTranslated("of memory in front of its operand")
    memory = _memory(x, InputLayout(sizes_of(own.shape), strides_of(own)))
    if behind:
        memory = G.slice(memory, (behind,), memory.shape)
    return G.strided_view(memory, call.shape, call["stride"])


def _memory(x: Node, layout: InputLayout) -> Node:
    """Return the elements of a tensor in one axis, as torch has them in memory."""
    if x.op == "strided_view":
        return x.inputs[0]
    whole = layout.is_contiguous
    order = [*range(x.ndim)] if whole else order_in_memory(layout.shape, layout.strides)
    if order is None:
        raise NotTranslated("of memory with gaps")
    return G.reshape(ordered(x, order), (x.tensor_type.size,))


@translates("split_with_sizes.default", "split_with_sizes_copy.default")
def _split_sizes(call: Call) -> tuple[Node, ...]:
    return _split(*call.args)


@translates("split.Tensor")
def _split_even(call: Call) -> tuple[Node, ...]:
    axis = call["dim"] % call[0].ndim
    sizes = [int(x.shape[axis]) for x in call.result]
    return _split(call[0], sizes, axis)


def _split(x: Node, sizes: Sequence[int], axis: int) -> tuple[Node, ...]:
    parts, start = [], 0
    for size in sizes:
        parts.append(_part(x, axis % x.ndim, start, start + size, 1))
        start += size
    return tuple(parts)


@translates("cat.default")
def _cat(call: Call) -> Node:
    dtype = call.dtype
    parts = [as_node(x, dtype) for x in call[0] if x.shape != (0,) or len(call.shape) == 1]
    return parts[0] if len(parts) == 1 else G.concatenate(parts, call["dim"])


@translates("stack.default")
def _stack(call: Call) -> Node:
    axis = call["dim"] % len(call.shape)
    return G.concatenate([G.expand_dims(as_node(x, call.dtype), axis) for x in call[0]], axis)


@translates("flip.default")
def _flip(call: Call) -> Node:
    return G.flip(call[0], axes_of(call[1], call[0].ndim)) if call[1] else call[0]


@translates("constant_pad_nd.default")
def _pad(call: Call) -> Node:
    x, widths, value = call.args
    pairs = [(0, 0)] * x.ndim
    for number in range(len(widths) // 2):
        pairs[x.ndim - 1 - number] = (widths[2 * number], widths[2 * number + 1])
    starts = [max(-before, 0) for before, _ in pairs]
    stops = [e - max(-after, 0) for e, (_, after) in zip(x.shape, pairs, strict=True)]
    if any(low < 0 or high < 0 for low, high in pairs):
        x = G.slice(x, starts, stops)
    outer = [(max(before, 0), max(after, 0)) for before, after in pairs]
    return G.pad(x, outer, value) if any(map(any, outer)) else x


@translates("repeat.default")
def _repeat(call: Call) -> Node:
    """Return x repeated: an axis of repetitions in front of each axis, and a reshape."""
    counts = [int(n) for n in call[1]]
    x = G.reshape(call[0], (1,) * (len(counts) - call[0].ndim) + call[0].shape)
    if 0 in counts:
        raise NotTranslated("no repetition")
    shape = x.shape
    spread = G.reshape(x, [e for extent in shape for e in (1, extent)])
    wide = [e for n, extent in zip(counts, shape, strict=True) for e in (n, extent)]
    return G.reshape(G.broadcast_to(spread, wide), call.shape)


@translates("select_scatter.default")
def _select_scatter(call: Call) -> Node:
    x, part = call[0], call[1]
    axis = call[2] % x.ndim
    place = call["index"]
    if place < 0:
        place = add(x.shape[axis], place)
    return _put(x, G.expand_dims(part, axis), axis, place, 1)


@translates("slice_scatter.default")
def _slice_scatter(call: Call) -> Node:
    """Return x with a part replaced, whose extent says where it ends."""
    x, part, axis, start, _, step = call.args
    axis, start = axis % x.ndim, start or 0
    extent = x.shape[axis]
    if isinstance(start, int) and start < 0:
        start = add(extent, start)
    if isinstance(start, int) and isinstance(extent, int):
        start = min(max(start, 0), extent)
    return _put(x, part, axis, start, step)


def _put(x: Node, part: Node, axis: int, start: Dim, step: int) -> Node:
    """Return x with a part of it along one axis replaced."""
    starts: list[Dim] = [0] * x.ndim
    steps = [1] * x.ndim
    starts[axis], steps[axis] = start, step
    value = G.unslice(as_node(part, x.dtype), x.shape, starts, steps)
    first, stop = as_node(start, int64), as_node(add(start, mul(step, part.shape[axis])), int64)
    places = G.iota(x.shape[axis], 0, 1, int64)
    inside = G.logical_and(G.ge(places, first), G.lt(places, stop))
    if step > 1:
        inside = G.logical_and(inside, G.eq(G.mod(G.sub(places, first), step), 0))
    shape: list[Dim] = [1] * x.ndim
    shape[axis] = x.shape[axis]
    return G.where(G.reshape(inside, shape), value, x)


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
def _scatter_reduce(call: Call) -> Node:
    """Return x with the elements of a tensor folded into it where an index says along an axis."""
    x, axis, indices, values = call[0], call["dim"], call["index"], call["src"]
    if not x.ndim or indices.ndim != x.ndim:
        raise NotTranslated("of a scalar, or of no element")
    fold = call.get("reduce", "sum")
    if x.dtype.is_bool:
        raise NotTranslated("of bools")
    axis, keeps = axis % x.ndim, call.get("include_self", True)
    values = _corner(values, indices.shape)
    rows = _same_for_all(indices, axis, x.shape)
    if rows is not None and keeps and fold == "sum":
        return G.index_add(x, rows, values, axis)
    places = along_axis(x, axis, indices)
    if not keeps:
        x = G.put(x, places, G.full(indices.shape, _start(fold, x.dtype), x.dtype))
    if fold in ("amax", "amin", "prod"):
        return G.put(x, places, values, fold.removeprefix("a"))
    total = _added(x, places, values)
    if fold == "sum":
        return total
    counts = _added(G.full(x.shape, int(keeps), int64), places, G.full(indices.shape, 1, int64))
    counts = G.maximum(counts, as_node(1, int64))
    if not x.dtype.is_float:
        return as_node(G.floordiv(total, as_node(counts, x.dtype)), x.dtype)
    wide = x.dtype.compute
    return as_node(G.div(as_node(total, wide), as_node(counts, wide)), x.dtype)


def _start(fold: str, dtype: DType) -> float:
    """Return what an element begins with where a fold does not keep its own value."""
    if fold not in ("amax", "amin"):
        return int(fold == "prod")
    if dtype.is_float:
        return -math.inf if fold == "amax" else math.inf
    return dtype.least if fold == "amax" else dtype.greatest


def _added(x: Node, places: Node, values: Node) -> Node:
    """Return x with values added at flat places."""
    flat, where, more = [G.reshape(own, (own.tensor_type.size,)) for own in (x, places, values)]
    return G.reshape(G.index_add(flat, where, more, 0), x.shape)


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
