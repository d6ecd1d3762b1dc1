"""What automatic schedules have in common: copies, a tensor to follow, and axes by label."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from loopnest.facade import language as ln
from loopnest.schedulers.iteration_space import IterationSpace, MemoryAccess, iteration_space


def with_copies(fusion: ln.Fusion, keep_inputs: bool) -> IterationSpace:
    """Give a fusion the copies that its loops are shared through; return its new space.

    An output that other tensors read, or that a reduction folds into, becomes a copy of a tensor
    in registers. An input that several tensors read alike is read once, by a copy in registers: so
    `keep_inputs` says, or the tensors have no other connection, or an output overwrites it.
    """
    space = iteration_space(fusion)
    assert space is not None
    if space.joined:
        every = keep_inputs or not _connected(fusion)
        overwritten = fusion.inplace.values()
        in_parts = {read.tensor for read in space.reads if read.reads_parts}
        for tensor in fusion.inputs:
            shared = every and tensor not in in_parts  # what one reads elsewhere is in no register
            if len(tensor.consumers) > 1 and (shared or tensor in overwritten):
                tensor.cache_after()
    for tensor in fusion.outputs:
        if tensor.consumers:
            tensor.cache_fork()
        elif space.folded(tensor):
            tensor.cache_before()
    found = iteration_space(fusion)
    assert found is not None
    return found


def _connected(fusion: ln.Fusion) -> bool:
    """Whether all computed tensors are related as producers and consumers."""
    computed = [t for t in fusion.tensors if not t.is_input]
    seen = {computed[0]}
    pending = [computed[0]]
    while pending:
        tensor = pending.pop()
        siblings = tensor.definition.outputs if tensor.definition else ()
        for other in (*tensor.producers, *tensor.consumers, *siblings):
            if not other.is_input and other not in seen:
                seen.add(other)
                pending.append(other)
    return len(seen) == len(computed)


def reference(fusion: ln.Fusion, space: IterationSpace) -> ln.TensorView | None:
    """Return a tensor that has every dimension, an output if one does; None where none does."""
    tensors = [*fusion.outputs, *reversed(list(space.axes))]
    for tensor in tensors:
        if space.present[tensor] == space.all:
            return tensor
    return next((tensor for tensor in tensors if space.all_of(tensor) == space.all), None)


def widest(space: IterationSpace) -> MemoryAccess:
    """Return the access of the most dimensions and elements; a write before a read."""
    order = (*space.writes, *space.reads)
    return max(order, key=lambda a: (len(a.order), space.elements(a.order) or 0))


def in_memory_order(space: IterationSpace, dims: Iterable[int]) -> list[int]:
    """Return dimensions in the order in which the widest access has them."""
    order = [d for access in (widest(space), *space.accesses) for d in access.order]
    known = [*dict.fromkeys([*order, *sorted(space.all)])]
    wanted = frozenset(dims)
    return [d for d in known if d in wanted]


def coalesced(
    space: IterationSpace, dims: Iterable[int], one_size: bool = False
) -> list[list[int]]:
    """Return dimensions in groups that lie together in memory, wherever they are accessed.

    Each tensor has all dimensions of a group, or none of them.

    Args:
        space: the space.
        dims: some of its dimensions.
        one_size: whether a symbolic extent begins a group. An index of a group is divided by the
            extents behind its first one, and little is proved of a quotient by a size.
    """
    groups: list[list[int]] = []
    for d in in_memory_order(space, dims):
        begins = one_size and is_symbolic(space, [d])
        if groups and not begins and _together(space, groups[-1][-1], d):
            groups[-1].append(d)
        else:
            groups.append([d])
    return groups


def divided_by_numbers(space: IterationSpace, dims: Iterable[int]) -> list[list[int]]:
    """Return dimensions in groups for the threads of a launch, whose indices no size divides.

    Where all lie together in every array, a flat index serves for all of them. Where one is read in
    parts or repeated, or some lack a dimension, each of several symbolic extents begins a group.
    """
    wanted = [*dims]
    flat = coalesced(space, wanted)
    if len(flat) == 1 and not any(None in access.places for access in space.accesses):
        return flat
    return coalesced(space, wanted, one_size=True)


_Axis = TypeVar("_Axis", str, int)
"""An axis by label, or by place."""

GRID = 3
"""A grid has so many dimensions."""


def on_grid(axes: Sequence[_Axis]) -> dict[_Axis, ln.ParallelType]:
    """Return the dimension of a grid for each of up to three axes, outermost first.

    The outermost one may be long: along x a grid has 2**31 - 1 blocks, along y and z 65,535.
    """
    kinds = [ln.ParallelType.grid_x, ln.ParallelType.grid_y, ln.ParallelType.grid_z]
    return dict(zip(axes, kinds, strict=False))


def one_size_each(space: IterationSpace, dims: Iterable[int]) -> list[list[int]]:
    """Return dimensions in groups of neighbours, of which the first alone may be symbolic."""
    groups: list[list[int]] = []
    for d in dims:
        if not groups or is_symbolic(space, [d]):
            groups.append([])
        groups[-1].append(d)
    return groups


def is_symbolic(space: IterationSpace, dims: Iterable[int]) -> bool:
    """Whether a product of extents is not known."""
    return space.elements(dims) is None


Groups: TypeAlias = "Sequence[tuple[str, Sequence[int]]]"
"""Dimensions by label, outermost first."""


def numbered(name: str, parts: Iterable[Sequence[int]]) -> Groups:
    """Return groups of dimensions, labelled by a name and their number."""
    return [(f"{name}{number}", dims) for number, dims in enumerate(parts)]


def _together(space: IterationSpace, outer: int, inner: int) -> bool:
    """Whether every access has two dimensions as neighbours, or neither of them."""
    for access in space.accesses:
        order = access.order
        # An array that repeats one of two dimensions would need the quotient or the remainder of
        # the merged index, where it had an index before.
        if (outer in order) != (inner in order):
            return False
        if outer in order and order.index(inner) != order.index(outer) + 1:
            return False
    known = (*space.axes.values(), *space.present.values())
    return all((outer in places) == (inner in places) for places in known)


Tensors: TypeAlias = "Iterable[ln.TensorView] | None"


class LabelledAxes:
    """The leaf axes of tensors by label, so that tensors of other axes get the same loops.

    A step is taken on each tensor that has an axis of the label, or on those that are named. Axes
    of extent 1 that nothing repeats have the label ""; they come first, until `order` moves them.

    Args:
        space: that the tensors are of.
        tensors: unscheduled.
        groups: dimensions that become one axis, by label, outermost first.

    Attributes:
        labels: of the axes of each tensor.
        names: the labels of the groups.
        symbolic: the labels of axes whose extents are not known.
    """

    def __init__(
        self, space: IterationSpace, tensors: Iterable[ln.TensorView], groups: Groups
    ) -> None:
        self.labels = {tensor: _grouped(tensor, space.axes[tensor], groups) for tensor in tensors}
        self.names = [label for label, _ in groups]
        self.symbolic = {label for label, dims in groups if is_symbolic(space, dims)}

    def _of(self, tensors: Tensors) -> Iterable[tuple[ln.TensorView, list[str]]]:
        """Return tensors, all where they are None, with the labels of their axes."""
        return [(t, self.labels[t]) for t in (self.labels if tensors is None else tensors)]

    def merge(self, labels: Sequence[str], into: str) -> None:
        """Merge those axes of `labels` that there are, the first of them the outermost."""
        for tensor, known in self.labels.items():
            own = [label for label in labels if label in known]
            for label in own[1:]:
                places = known.index(own[0]), known.index(label)
                tensor.merge(*places)
                # What was merged stands at the smaller of the two places.
                known[min(places)] = own[0]
                del known[max(places)]
            if own:
                known[known.index(own[0])] = into
        self._rename(labels, into)

    def _rename(self, labels: Sequence[str], into: str) -> None:
        """Let what was symbolic in `labels` be so in the axis that was made of them."""
        if not self.symbolic.isdisjoint(labels):
            self.symbolic = self.symbolic.difference(labels) | {into}

    def spread(self, labels: Sequence[str], into: str, most: int = 0) -> list[str]:
        """Merge neighbours among `labels`, but let each symbolic extent begin an axis of its own.

        Loops over several axes then divide no index by a size. A tensor need not have all of
        `labels`; what is returned does not depend on which it has.

        Args:
            labels: the axes, outermost first.
            into: the label of the first axis; that of the others has a number behind it.
            most: so many axes at most, where it is not 0: the outermost are merged nevertheless.

        Returns:
            The labels of the axes, outermost first.
        """
        runs: list[list[str]] = []
        for label in labels:
            if not runs or label in self.symbolic:
                runs.append([])
            runs[-1].append(label)
        while most and len(runs) > most:
            # Where the outermost is static it becomes the inner one: its extent divides the index.
            first, second = runs[:2]
            runs[:2] = [first + second if first[0] in self.symbolic else second + first]
        names = [f"{into}{number or ''}" for number in range(len(runs))]
        for run, name in zip(runs, names, strict=True):
            self.merge(run, name)
        return names

    def to_threads(self, threads: int) -> None:
        """Give neighbours along the last axis to the threads of a block, the rest to a grid.

        Where several extents are symbolic, each of them has a dimension of the grid.
        """
        runs = self.spread(self.names, "all", GRID)
        if runs:
            self.split(runs[-1], threads, "block", "thread")
            grid = on_grid([*runs[:-1], "block"])
            self.parallelize({**grid, "thread": ln.ParallelType.block_x})

    def split(
        self, label: str, factor: int, outer: str, inner: str, tensors: Tensors = None
    ) -> None:
        """Split an axis into blocks of `factor`."""
        for tensor, known in self._of(tensors):
            if label in known:
                place = known.index(label)
                tensor.split(place, factor)
                known[place : place + 1] = [outer, inner]
        self._rename([label], outer)

    def split_once(self, label: str, outer: str) -> None:
        """Split an axis into one block, so that what is computed in a loop over it has all of it.

        Where the axis is one of parts the last of which is short, it has that part as a whole.
        """
        for tensor, known in self.labels.items():
            if label in known:
                place = known.index(label)
                tensor.split(place, 1, inner=False)
                known.insert(place, outer)

    def order(self, labels: Sequence[str], tensors: Tensors = None) -> None:
        """Bring the axes of `labels` into this order, behind all others; "" has those without."""
        for tensor, known in self._of(tensors):
            own = [n for label in labels for n, axis in enumerate(known) if axis == label]
            order = [*[n for n in range(len(known)) if n not in own], *own]
            tensor.reorder(order)
            known[:] = [known[n] for n in order]

    def parallelize(self, types: Mapping[str, ln.ParallelType], tensors: Tensors = None) -> None:
        """Give axes parallel types by label."""
        for tensor, known in self._of(tensors):
            own = {known.index(label): kind for label, kind in types.items() if label in known}
            tensor.parallelize(own)


def _grouped(tensor: ln.TensorView, places: Sequence[int | None], groups: Groups) -> list[str]:
    """Make an axis of each group of a tensor's dimensions; return the labels of its axes.

    Args:
        tensor: unscheduled.
        places: the dimension of each of its axes.
        groups: dimensions by label, outermost first.
    """
    labels = ["" for place in places if place is None]
    own = [(label, [d for d in dims if d in places]) for label, dims in groups]
    order = [place for place, d in enumerate(places) if d is None]
    order += [places.index(d) for _, dims in own for d in dims]
    if order != list(range(len(order))):
        tensor.reorder(order)
    for label, dims in own:
        if dims:
            for _ in dims[1:]:
                tensor.merge(len(labels))
            labels.append(label)
    return labels


def is_at_least(extent: int | None, least: int) -> bool:
    """Whether an extent is that large, or not known."""
    return extent is None or extent >= least


def even_part(extent: int | None, most: int) -> int:
    """Return the extent of a part of an axis: a divisor up to `most`, so that no part is short.

    Where all divisors are small the last part is short, as little as the number of parts allows.

    >>> even_part(24, 6), even_part(14, 6), even_part(7, 6), even_part(31, 6), even_part(None, 6)
    (6, 5, 4, 6, 6)
    """
    if extent is None:
        return most
    if extent <= most:
        return max(extent, 1)
    parts = -(-extent // most)
    return next((n for n in range(most, most // 2, -1) if extent % n == 0), -(-extent // parts))


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number up to `most`; 0 where there is none.

    >>> largest_divisor(64, 32), largest_divisor(20, 16), largest_divisor(19, 16)
    (32, 10, 1)
    >>> largest_divisor(0, 16), largest_divisor(4, 0)
    (0, 0)
    """
    return max([n for n in range(1, min(most, number) + 1) if number % n == 0], default=0)


def lane_part(extent: int | None, most: int, lanes: int) -> int:
    """Return the extent of a part of an axis that is cut to vectors; the last may be short.

    >>> lane_part(64, 32, 16), lane_part(62, 32, 16), lane_part(18, 64, 16), lane_part(6, 32, 16)
    (32, 32, 32, 6)
    >>> lane_part(257, 128, 16)
    96
    """
    even = even_part(extent, most)
    if extent is None or extent < lanes or even % lanes == 0:
        return even
    return min(most, -(-even // lanes) * lanes)
