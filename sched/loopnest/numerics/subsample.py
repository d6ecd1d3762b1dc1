"""A part of a fusion's results to evaluate where all of them would take too long.

An axis along which nothing is reduced can be cut down to some coordinates: what is computed there
does not depend on the others. Axes that the definitions relate are cut alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loopnest.scalar.arguments import size_value
from loopnest.scalar.templates import coordinates
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.fusion import Fusion
from loopnest.tensor.tensor_view import TensorView

if TYPE_CHECKING:
    import numpy.typing as npt

_FEWEST = 3
"""An axis keeps so many coordinates at least: the first, the last, one between."""


@dataclass(frozen=True)
class Sample:
    """The coordinates to evaluate along axes that are not evaluated whole.

    Args:
        places: axis -> ascending coordinates; every axis of a tensor that is not named is whole.
    """

    places: Mapping[IterDomain, npt.NDArray[Any]] = field(default_factory=dict)

    def of(self, tensor: TensorView, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the part of `array`, the elements of `tensor`, that is evaluated."""
        for place, axis in enumerate(tensor.domain.logical):
            if axis in self.places:
                array = array.take(self.places[axis], place)
        return array

    def index(self, tensor: TensorView, place: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index in `tensor` of an index in the part that is evaluated."""
        found = zip(tensor.domain.logical, place, strict=True)
        return tuple([int(self.places[a][n]) if a in self.places else n for a, n in found])


def points(fusion: Fusion, sizes: Mapping[str, int], sample: Sample | None = None) -> int:
    """Return at how many points definitions are evaluated: at all, or those of a sample."""
    places = sample.places if sample is not None else {}
    lengths = {axis: len(found) for axis, found in places.items()}
    return _points(fusion, sizes, lengths)


def _points(fusion: Fusion, sizes: Mapping[str, int], lengths: Mapping[IterDomain, int]) -> int:
    return sum(
        math.prod([lengths.get(a, size_value(a.size, sizes)) for a in tensor.root_domain])
        for tensor in fusion.tensors
    )


def choose(fusion: Fusion, sizes: Mapping[str, int], most: int) -> Sample | None:
    """Return a sample that takes at most `most` points: all where that is enough.

    Returns:
        None where one result alone reduces more points than that.
    """
    import numpy as np

    classes = _Classes(fusion)
    extents = {root: size_value(root.size, sizes) for root in classes.free()}
    kept = dict(extents)
    members = {axis: classes.find(axis) for axis in classes.parents}

    def lengths() -> dict[IterDomain, int]:
        return {axis: kept[root] for axis, root in members.items() if root in kept}

    while _points(fusion, sizes, lengths()) > most:
        longest = max(kept, key=kept.__getitem__, default=None)
        if longest is None or kept[longest] <= _FEWEST:
            return None
        kept[longest] = max(kept[longest] // 2, _FEWEST)
    draw = np.random.default_rng(0)
    places = {
        root: np.array([0, *sorted(draw.choice(extents[root] - 2, n - 2, replace=False) + 1),
                        extents[root] - 1])
        for root, n in kept.items() if n < extents[root]
    }  # fmt: skip
    return Sample({axis: places[root] for axis, root in members.items() if root in places})


class _Classes:
    """The axes of a fusion that run over the same coordinates of the math."""

    def __init__(self, fusion: Fusion) -> None:
        self.parents: dict[IterDomain, IterDomain] = {}
        self.whole: set[IterDomain] = set()
        for tensor in fusion.tensors:
            domain = tensor.domain
            for axis in (*domain.root, *domain.rfactor):
                self.parents.setdefault(axis, axis)
                plain = axis in domain.root and axis in domain.rfactor
                if axis.is_reduction or axis.is_broadcast or not plain:
                    self.whole.add(axis)
            if tensor.definition is not None and tensor.definition.scan is not None:
                self.whole.add(domain.root[tensor.definition.scan.axis])
            if tensor.definition is not None:
                self._relate(tensor)

    def _relate(self, tensor: TensorView) -> None:
        definition = tensor.definition
        assert definition is not None
        root = tensor.domain.root
        for sibling in definition.outputs:
            for mine, other in zip(root, sibling.domain.root, strict=True):
                self._unite(mine, other)
        for read in definition.reads:
            equal = read.equal_axes(root)
            for axis, place, index in zip(
                read.producer.domain.logical, equal, read.indices, strict=True
            ):
                if axis.is_broadcast:
                    continue
                if place is None:  # what is read at one place may stand anywhere along the axis
                    self.whole.add(axis)
                    self.whole.update(root[c.number] for c in coordinates(index))
                elif not root[place].is_broadcast:
                    self._unite(axis, root[place])

    def find(self, axis: IterDomain) -> IterDomain:
        """Return the representative of the class of `axis`."""
        while self.parents[axis] is not axis:
            axis = self.parents[axis]
        return axis

    def _unite(self, a: IterDomain, b: IterDomain) -> None:
        for axis in (a, b):
            self.parents.setdefault(axis, axis)
        self.parents[self.find(a)] = self.find(b)

    def free(self) -> list[IterDomain]:
        """Return the classes that may be cut."""
        bound = {self.find(axis) for axis in self.whole}
        return [a for a in self.parents if self.find(a) is a and a not in bound]
