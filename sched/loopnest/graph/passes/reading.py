"""Build the chain of ops (transposes, slices, …) that reads a tensor by an index map."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from loopnest.graph.dimensions import Dim, Shape, add, mul, sub
from loopnest.graph.node import Node
from loopnest.graph.passes.index_map import Affine, Axis, Chain
from loopnest.graph.registry import call
from loopnest.graph.structural import node_key


class Builder:
    """Makes nodes, each once: one that stands in the graph already is taken from there."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._made: dict[Hashable, Node] = {}
        for node in nodes:
            if node.op != "var":
                self._made.setdefault(self._key(node), node)

    @staticmethod
    def _key(node: Node) -> Hashable:
        return (node_key(node), *[id(x) for x in node.inputs])

    def call(
        self, op: str, inputs: Sequence[Node], attrs: Mapping[str, object] | None = None
    ) -> Node:
        """Return a node; the same object for the same op, operands and attributes."""
        made = call(op, inputs, attrs)
        return self._made.setdefault(self._key(made), made)

    def read(self, source: Node, chain: Chain, loose: bool = False) -> Node:
        """Return what a chain reads of a tensor, as one canonical chain of ops.

        Affine maps become slice, flip, squeeze, transpose, expand_dims, broadcast_to, in this
        order, each only if it does something.

        Args:
            source: the tensor.
            chain: the map.
            loose: whether the result only has to broadcast to the shape of the chain.
        """
        for number, step in enumerate(chain.steps):
            if isinstance(step, Affine):
                last = number == len(chain.steps) - 1
                source = self._affine(source, step, loose and last)
            else:
                source = self.call("reshape", (source,), {"shape": step.shape})
        return source

    def _affine(self, source: Node, step: Affine, loose: bool) -> Node:
        if source.op == "full":
            return self.call("full", (), {**source.attrs, "shape": step.shape})
        found = self._flipped(self._sliced(source, step), step)
        repeats = any(extent != 1 for extent in dropped(step.shape, step.followed))
        found = self._arranged(found, step, loose or repeats)
        if loose or not repeats:
            return found
        return self.call("broadcast_to", (found,), {"shape": step.shape})

    def _sliced(self, source: Node, step: Affine) -> Node:
        places = [_places(axis, step.shape) for axis in step.axes]
        if all(place == (0, e, 1) for place, e in zip(places, source.shape, strict=True)):
            return source
        starts, stops, steps = zip(*places, strict=True)
        return self.call("slice", (source,), {"starts": starts, "stops": stops, "steps": steps})

    def _flipped(self, source: Node, step: Affine) -> Node:
        turned = tuple([i for i, axis in enumerate(step.axes) if axis.step < 0])
        return self.call("flip", (source,), {"axis": turned}) if turned else source

    def _arranged(self, found: Node, step: Affine, loose: bool) -> Node:
        """Return axes in order and axes of extent 1 where the result has them (or repeats)."""
        rank = len(step.shape)
        follows = [axis.out for axis in step.axes]
        lead = rank - len(follows)
        if loose and lead >= 0 and all(o in (None, lead + i) for i, o in enumerate(follows)):
            return found  # broadcasts as it is
        places = {out: i for i, out in enumerate(follows) if out is not None}
        wanted = tuple([extent if i in places else 1 for i, extent in enumerate(step.shape)])
        if loose:
            first = min(places, default=rank)
            places = {out - first: i for out, i in places.items()}
            wanted = wanted[first:]
        if list(places.values()) != [places[out] for out in sorted(places)]:
            found, places = self._transposed(found, places, wanted)
        return self._spaced(found, wanted)

    def _transposed(
        self, found: Node, places: dict[int, int], wanted: Shape
    ) -> tuple[Node, dict[int, int]]:
        """Return a tensor whose axes are in order, with as many of extent 1 as are wanted."""
        ones = [i for i in range(found.ndim) if i not in places.values()]
        spare = len(ones) - (len(wanted) - len(places))
        if spare > 0:
            gone = ones[len(ones) - spare :]
            found = self.call("squeeze", (found,), {"axis": tuple(gone)})
            moved = {out: i - sum(1 for g in gone if g < i) for out, i in places.items()}
            return self._transposed(found, moved, wanted)
        order: list[int] = []
        free = iter(ones)
        for out in range(len(wanted)):
            place = places[out] if out in places else next(free, None)
            order += [] if place is None else [place]
        return self.call("transpose", (found,), {"axes": tuple(order)}), places

    def _spaced(self, found: Node, wanted: Shape) -> Node:
        """Return a tensor with axes of extent 1 dropped and added."""
        if found.shape == wanted:
            return found
        added = _missing(found.shape, wanted)
        if added is None:
            dropped = _missing(wanted, found.shape)
            if dropped is None:
                dropped = tuple([i for i, extent in enumerate(found.shape) if extent == 1])
            found = self.call("squeeze", (found,), {"axis": dropped})
            added = _missing(found.shape, wanted)
            assert added is not None
        return self.call("expand_dims", (found,), {"axis": added}) if added else found


def _places(axis: Axis, shape: Shape) -> tuple[Dim, Dim, int]:
    """Return start, stop and step (forwards) of what an axis of the source is read at."""
    if axis.out is None:
        return axis.start, add(axis.start, 1), 1
    count = shape[axis.out]
    if count == 0:
        return 0, 0, 1
    last = add(axis.start, mul(sub(count, 1), axis.step))
    low, high = (axis.start, last) if axis.step > 0 else (last, axis.start)
    return low, add(high, 1), abs(axis.step)


def dropped(shape: Shape, places: Sequence[int]) -> Shape:
    """Return a shape without some axes."""
    return tuple([extent for i, extent in enumerate(shape) if i not in places])


def _missing(part: Shape, whole: Shape) -> tuple[int, ...] | None:
    """Return where `whole` has axes of extent 1 more than `part`; None if that is not all."""
    added: list[int] = []
    rest = list(part)
    for i, extent in enumerate(whole):
        if rest and rest[0] == extent:
            rest.pop(0)
        elif extent == 1:
            added.append(i)
        else:
            return None
    return None if rest else tuple(added)
