"""Rules of ATen's operators that move elements: shapes, parts, joins."""

from __future__ import annotations

from collections.abc import Sequence

import loopnest.graph as G
from loopnest.graph.dimensions import Dim, add, mul
from loopnest.graph.node import Node
from loopnest.scalar.dtypes import int64
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
