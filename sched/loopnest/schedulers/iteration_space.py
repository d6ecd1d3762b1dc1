"""The dimensions that the tensors of an unscheduled fusion share: what schedulers decide by.

Axes that producers and consumers relate are one dimension. A dimension is reduced where a tensor
folds over it, and kept otherwise. Nothing here knows an operation: what counts is which axes a
definition reads, moves, repeats and folds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loopnest.facade import language as ln
from loopnest.scalar.expr import Arg, Const, Coordinate, Expr, Op, walk
from loopnest.tensor.tensor_view import Read

Places: TypeAlias = "tuple[int | None, ...]"
"""For each axis its dimension; None for a broadcast axis."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension of an iteration space.

    Args:
        extent: its elements; an int where static.
        reduced: whether a tensor folds over it.
    """

    extent: int | Expr
    reduced: bool


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """An array that a kernel reads or writes.

    An axis that is read at another index than a dimension's own (a window, a part) has no place.

    Args:
        tensor: the input or output.
        places: the dimensions of its axes.
        reader: the tensor that reads an input; of an output itself.
    """

    tensor: ln.TensorView
    places: Places
    reader: ln.TensorView

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions, outermost first, without broadcast axes."""
        return tuple([d for d in self.places if d is not None])

    @property
    def reads_parts(self) -> bool:
        """Whether an axis is read at other indices than a dimension's own."""
        return any(
            place is None and not axis.is_broadcast and axis.extent != 1
            for place, axis in zip(self.places, self.tensor.rfactor_domain, strict=False)
        )


@dataclass(frozen=True, slots=True)
class IterationSpace:
    """The dimensions of a fusion, and where each tensor has them.

    Args:
        dims: the dimensions.
        axes: for each computed tensor the dimension of each root axis, also where a consumer
            repeats it; None for an axis of extent 1 that nothing repeats.
        present: for each computed tensor the dimensions of its axes that are no broadcast axes.
        reads: each read of an input.
        writes: each output.
        joined: whether each input has the same dimensions wherever it is read.
    """

    dims: tuple[Dimension, ...]
    axes: Mapping[ln.TensorView, Places]
    present: Mapping[ln.TensorView, frozenset[int]]
    reads: tuple[MemoryAccess, ...]
    writes: tuple[MemoryAccess, ...]
    joined: bool

    @property
    def all(self) -> frozenset[int]:
        """Every dimension."""
        return frozenset(range(len(self.dims)))

    @property
    def reduced(self) -> frozenset[int]:
        """The dimensions that a tensor folds over."""
        return frozenset([d for d, dim in enumerate(self.dims) if dim.reduced])

    @property
    def kept(self) -> frozenset[int]:
        """The dimensions that no tensor folds over."""
        return self.all - self.reduced

    @property
    def accesses(self) -> tuple[MemoryAccess, ...]:
        """Reads and writes."""
        return (*self.reads, *self.writes)

    def elements(self, dims: Iterable[int]) -> int | None:
        """Return the product of extents; None where one is symbolic."""
        product = 1
        for d in dims:
            extent = self.dims[d].extent
            if not isinstance(extent, int):
                return None
            product *= extent
        return product

    @property
    def definitions(self) -> tuple[ln.TensorView, ...]:
        """Return one tensor of each definition: what is said of it holds for its siblings."""
        return tuple([t for t in self.axes if t.definition and t.definition.outputs[0] is t])

    def all_of(self, tensor: ln.TensorView) -> frozenset[int]:
        """Return the dimensions of a computed tensor, repeated ones included."""
        return frozenset([d for d in self.axes[tensor] if d is not None])

    def folded(self, tensor: ln.TensorView) -> frozenset[int]:
        """Return the dimensions that a tensor folds over; none where it is no reduction."""
        pairs = zip(self.axes[tensor], tensor.root_domain, strict=True)
        return frozenset([d for d, axis in pairs if d is not None and axis.is_reduction])


def reductions(fusion: ln.Fusion) -> tuple[ln.TensorView, ...]:
    """Return the tensors that fold, one a definition, in order of creation; not what is unused."""
    live = upstream(fusion.outputs)
    found = [t for t in fusion.tensors if any(axis.is_reduction for axis in t.root_domain)]
    found = [t for t in found if not live.isdisjoint(together(t))]
    return tuple([t for t in found if t.definition is not None and t.definition.outputs[0] is t])


def upstream(tensors: Iterable[ln.TensorView]) -> frozenset[ln.TensorView]:
    """Return tensors and all that they are computed from."""
    seen: set[ln.TensorView] = set()
    pending = [*tensors]
    while pending:
        tensor = pending.pop()
        if tensor not in seen:
            seen.add(tensor)
            pending += tensor.producers
    return frozenset(seen)


def steps(*tensors: ln.TensorView) -> list[ln.TensorView]:
    """Return tensors and those between them and their inputs, each behind what reads it."""
    own = upstream(tensors)
    return [t for t in reversed(tensors[0].fusion.tensors) if t in own and not t.is_input]


def copies(tensor: ln.TensorView) -> bool:
    """Whether a tensor's elements are those of one other tensor, moved or repeated."""
    return tensor.definition is not None and tensor.definition.is_copy


def has_border(tensor: ln.TensorView) -> bool:
    """Whether a tensor's elements are those of one other tensor inside, and a constant around."""
    definition = tensor.definition
    if definition is None or definition.reducer is not None or len(definition.values) != 1:
        return False
    value = definition.values[0]
    if not isinstance(value, Op) or value.op != "where":
        return False
    return isinstance(value.args[1], Arg) and isinstance(value.args[2], Const)


def reads_parts(tensor: ln.TensorView) -> bool:
    """Whether a tensor reads another at other indices than its own."""
    assert tensor.definition is not None
    for read in tensor.definition.reads:
        axes = [axis for axis in read.producer.rfactor_domain if not axis.is_reduction]
        pairs = zip(axes, read.equal_axes(tensor.root_domain), strict=True)
        if any(place is None and axis.extent != 1 for axis, place in pairs):
            return True
    return False


def window_reads(space: IterationSpace, tensor: ln.TensorView) -> list[tuple[Read, frozenset[int]]]:
    """Return the reads of windows of a tensor, and the dimensions of each index of one.

    In a window, one index is made of a dimension that is kept and of one that is folded.
    """
    assert tensor.definition is not None
    places = space.axes[tensor]
    found = []
    for read in tensor.definition.reads:
        for index in read.indices:
            own = {places[part.number] for part in walk(index) if isinstance(part, Coordinate)}
            if own & space.kept and own & space.reduced:
                found.append((read, frozenset([d for d in own if d is not None])))
    return found


def iteration_space(fusion: ln.Fusion, in_order: bool = False) -> IterationSpace | None:
    """Return the iteration space of an unscheduled fusion.

    Args:
        fusion: the fusion.
        in_order: whether the caller's loops keep the order of scans and of such reducers.

    None where there is no single one: two extents meet in one dimension (a tensor is repeated to
    both), or one dimension is two axes of a computed tensor (it meets its own transpose). An input
    may be read in two ways; `joined` tells whether it is. None too where loops must keep an order,
    unless `in_order`: in a scan, or a fold by a reducer that need not commute; and where consumers
    of a tensor see other axes than its own, as those of a reshape do.
    """
    for known, version, ordered, space in _LAST[:1]:
        if known is fusion and version == fusion.version and ordered == in_order:
            return space
    found = None
    reshaped = any(map(is_reshaped, fusion.tensors))
    if not reshaped and (in_order or not any(map(_keeps_order, fusion.tensors))):
        # An input may be read in two ways (x and its transpose): then its axes join no others.
        found = _Numbers(fusion, joined=True).space() or _Numbers(fusion, joined=False).space()
    _LAST[:] = [(fusion, fusion.version, in_order, found)]
    return found


_LAST: list[tuple[ln.Fusion, int, bool, IterationSpace | None]] = []
"""The last answer, of a fusion at a version of its tensors: several schedulers ask in turn."""


def together(tensor: ln.TensorView) -> tuple[ln.TensorView, ...]:
    """Return the tensors that are computed together with a tensor."""
    return (tensor,) if tensor.definition is None else tensor.definition.outputs


def is_reshaped(tensor: ln.TensorView) -> bool:
    """Whether consumers of a tensor see other axes than those that it is computed over."""
    return [tensor.root_domain[n] for n in _seen_axes(tensor)] != [*tensor.domain.logical]


def _keeps_order(tensor: ln.TensorView) -> bool:
    definition = tensor.definition
    if definition is None or definition.reducer is None:
        return False
    return definition.scan is not None or definition.reducer.ordered


def _reads(tensor: ln.TensorView) -> Iterator[tuple[ln.TensorView, Sequence[int | None]]]:
    """Yield what a tensor reads, with its own root axis for each axis of what it reads."""
    definition = tensor.definition
    if definition is not None:
        for read in definition.reads:
            yield read.producer, read.equal_axes(tensor.root_domain)


class _Numbers:
    """Axes by number, united where they are one dimension."""

    def __init__(self, fusion: ln.Fusion, joined: bool) -> None:
        self.fusion, self.joined = fusion, joined
        live = upstream(fusion.outputs)  # what nothing reads has no dimensions of its own
        self.tensors = [t for t in fusion.tensors if t.is_input or not live.isdisjoint(together(t))]
        self.first: dict[ln.TensorView, int] = {}
        self.parent: list[int] = []
        self.domain: list[ln.IterDomain] = []
        for tensor in self.tensors:
            self.first[tensor] = len(self.parent)
            for axis in tensor.root_domain:
                self.parent.append(len(self.parent))
                self.domain.append(axis)
        for tensor in self.tensors:
            for producer, places in _reads(tensor):
                if joined or not producer.is_input:
                    self._relate(producer, places, tensor)
            if tensor.definition is not None:
                for sibling in tensor.definition.outputs[1:]:
                    for place in range(len(sibling.root_domain)):
                        self._unite(self.first[tensor] + place, self.first[sibling] + place)

    def _relate(
        self, producer: ln.TensorView, places: Sequence[int | None], consumer: ln.TensorView
    ) -> None:
        for place, target in zip(_seen_axes(producer), places, strict=True):
            if target is not None:
                self._unite(self.first[producer] + place, self.first[consumer] + target)

    def _root(self, number: int) -> int:
        while self.parent[number] != number:
            self.parent[number] = self.parent[self.parent[number]]
            number = self.parent[number]
        return number

    def _unite(self, a: int, b: int) -> None:
        self.parent[self._root(b)] = self._root(a)

    def space(self) -> IterationSpace | None:
        dims = self._dimensions()
        if dims is None:
            return None
        self.place = {root: d for d, root in enumerate(dims)}
        axes: dict[ln.TensorView, Places] = {}
        present: dict[ln.TensorView, frozenset[int]] = {}
        reads: list[MemoryAccess] = []
        for tensor in self.tensors:
            if tensor.is_input:
                continue
            axes[tensor] = self._places(tensor)
            concrete = [d for d in axes[tensor] if d is not None]
            # One dimension for two axes of a tensor: only its diagonal would be computed.
            if len(set(concrete)) < len(concrete):
                return None
            own = self._own(tensor, axes[tensor])
            present[tensor] = frozenset([d for d in own if d is not None])
            for producer, places in _reads(tensor):
                if producer.is_input:
                    there = [None if p is None else axes[tensor][p] for p in places]
                    reads.append(MemoryAccess(producer, self._own(producer, there), tensor))
        writes = [
            MemoryAccess(t, tuple([self._own(t, axes[t])[i] for i in _seen_axes(t)]), t)
            for t in self.fusion.outputs
        ]
        kinds = tuple(dims.values())
        return IterationSpace(kinds, axes, present, tuple(reads), tuple(writes), self.joined)

    def _dimensions(self) -> dict[int, Dimension] | None:
        extents: dict[int, int | Expr] = {}
        folded: set[int] = set()
        inputs = self.fusion.inputs
        computed = [tensor for tensor in self.first if tensor not in inputs]
        for tensor in (*computed, *(inputs if self.joined else ())):
            for number, axis in enumerate(tensor.root_domain, self.first[tensor]):
                root = self._root(number)
                if axis.is_broadcast or axis.extent == 1:
                    continue
                if tensor in inputs and root not in extents:
                    continue  # it is read at other indices alone
                # Axes of two extents would share one loop.
                if extents.setdefault(root, axis.extent) != axis.extent:
                    return None
                if axis.is_reduction:
                    folded.add(root)
        return {root: Dimension(extent, root in folded) for root, extent in extents.items()}

    def _places(self, tensor: ln.TensorView) -> Places:
        first = self.first[tensor]
        count = len(tensor.root_domain)
        return tuple([self.place.get(self._root(first + i)) for i in range(count)])

    @staticmethod
    def _own(tensor: ln.TensorView, places: Sequence[int | None]) -> Places:
        """Return `places` with None where the tensor's own axis is a broadcast axis."""
        pairs = zip(places, tensor.root_domain, strict=True)
        return tuple([None if axis.is_broadcast else d for d, axis in pairs])


def _seen_axes(tensor: ln.TensorView) -> list[int]:
    """Return the root axes that consumers see: those that are not folded."""
    return [place for place, axis in enumerate(tensor.root_domain) if not axis.is_reduction]
