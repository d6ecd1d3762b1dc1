"""Accesses at every point, as arrays: which element, which copy of it, when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from loopnest.proofs.data_indices import Trusted
from loopnest.proofs.point_arrays import Array, Enumeration, Points, TooMany, Undecidable, number
from loopnest.proofs.program_model import Access, Model, Site, data_values, is_private
from loopnest.proofs.report import Finding
from loopnest.proofs.witness import Witness
from loopnest.scalar.expr import Buffer, Expr, Load

OUTSIDE = -1
"""The number of an element that lies outside of its tensor."""


@dataclass(slots=True, eq=False)
class AccessInstances:
    """An access at every point at which it happens.

    Args:
        access: the access.
        points: where it happens.
        where: the numbers of these points among those of its site.
        place: the address in elements; all copies of a block share it. Swizzles are left aside.
        key: the element of one copy of the buffer.
        time: when, in the program's order.
    """

    access: Access
    points: Points
    where: Array
    place: Array
    key: Array
    time: Array


class InstanceTable:
    """The accesses of a program at given sizes.

    Args:
        model: the program.
        sizes: the value of every size symbol.
        space: its points.
        witness: makes findings.
        trusted: what each site takes on trust of the data that its indices are computed from.
    """

    def __init__(
        self,
        model: Model,
        sizes: Mapping[str, int],
        space: Enumeration,
        witness: Witness,
        trusted: Mapping[Site, Sequence[Trusted]] = MappingProxyType({}),
    ) -> None:
        self.trusted = trusted
        self.model, self.sizes, self.space, self.witness = model, sizes, space, witness
        self.shapes = {b: tuple([number(s, sizes) for s in b.shape]) for b in model.buffers()}
        self.strides = {b: tuple([number(s, sizes) for s in b.strides]) for b in self.shapes}
        self.sizes_of = {b: number(b.size, sizes) for b in self.shapes}
        self._dense = {b: self._is_dense(b) for b in self.shapes}
        self._marks: dict[tuple[object, ...], AccessInstances] = {}

    def _is_dense(self, buffer: Buffer) -> bool:
        step = 1
        shape = self.shapes[buffer]
        for extent, stride in zip(reversed(shape), reversed(buffer.strides), strict=True):
            if extent > 1 and number(stride, self.sizes) != step:
                return False
            step *= extent
        return True

    def array(self, points: Points, node: Expr) -> Array:
        """Return an index at every point."""
        return points.array(node, self.model.names, self.sizes)

    def linear(self, points: Points, index: Sequence[Expr], shape: Sequence[int]) -> Array:
        """Return the row-major number of an element, -1 where it lies outside of the shape."""
        result = np.zeros(points.count, np.int64)
        inside = np.ones(points.count, np.bool_)
        for node, extent in zip(index, shape, strict=True):
            value = self.array(points, node)
            inside &= (value >= 0) & (value < extent)
            result = result * extent + value
        return np.where(inside, result, OUTSIDE)

    def marks(self, access: Access) -> AccessInstances:
        """Return an access at every point.

        Raises:
            Undecidable: a flat offset into a swizzled tile.
        """
        key = (
            access.site, access.moment, access.buffer, access.index, access.flat, access.writes,
            access.guards, access.atomic,
        )  # fmt: skip
        found = self._marks.get(key)
        if found is None:
            found = self._marks[key] = self._made(access)
        return found

    def _where(self, access: Access) -> tuple[Array, Points]:
        points = self.space.points[access.site]
        where = np.arange(points.count, dtype=np.int64)
        if access.guards:
            where = where[points.where(access.guards, self.model.names, self.sizes)]
            points = points.take(where)
        for load in [x for x in data_values(access.index) if x not in points.values]:
            where, points = self._with_data(access, load, where, points)
        return where, points

    def _with_data(
        self, access: Access, load: Load, where: Array, points: Points
    ) -> tuple[Array, Points]:
        """Return each point once for every value that a load in an index may have.

        It may have those that are trusted, from one extent below the axes of the buffer to one
        above them: there is no other where an index is that load, and what is clamped or wrapped
        is so alike further away.

        Raises:
            TooMany: these are too many points.
        """
        reach = max([1, *self.shapes[access.buffer]])
        numbers = np.arange(-reach - 1, 2 * reach + 2, dtype=np.int64)
        trusted = [t for t in self.trusted.get(access.site, ()) if t.loads == (load,)]
        plain = tuple([(t.condition, True) for t in trusted if not t.guards])
        lone = np.zeros(numbers.size, np.int64)
        alone = Points(numbers.size, {load: numbers}, lone, lone, lone)
        numbers = numbers[alone.where(plain, self.model.names, self.sizes)]
        if points.count * numbers.size > self.space.most:
            raise TooMany
        where, points = np.repeat(where, numbers.size), points.with_each(load, numbers)
        for t in [t for t in trusted if t.guards]:
            kept = ~points.where(t.guards, self.model.names, self.sizes)
            kept |= points.where(((t.condition, True),), self.model.names, self.sizes)
            where, points = where[kept], points.take(kept)
        return where, points

    def _made(self, access: Access) -> AccessInstances:
        where, points = self._where(access)
        buffer = access.buffer
        index = [self.array(points, i) for i in access.index]
        if access.flat:
            if buffer.swizzles:
                raise Undecidable(f"{access}: a flat offset into a swizzled tile")
            (place,) = index
        else:
            place = np.zeros(points.count, np.int64)
            for value, stride in zip(index, self.strides[buffer], strict=True):
                place = place + value * stride
        key = place + self.sizes_of[buffer] * self._copy(access, points)
        time = points.time
        if access.moment is not access.site:
            time = self.space.moment(access.moment, points)
        return AccessInstances(access, points, where, place, key, time)

    def element(self, mark: AccessInstances) -> tuple[Array, ...]:
        """Return the element that an access uses, one index a dimension.

        Raises:
            Undecidable: a flat offset into a buffer with padding.
        """
        buffer, points = mark.access.buffer, mark.points
        shape = self.shapes[buffer]
        if not mark.access.flat:
            return tuple([self.array(points, i) for i in mark.access.index])
        if not self._dense[buffer]:
            raise Undecidable(f"{mark.access}: a flat offset into padding")
        if not points.count:
            return tuple([np.zeros(0, np.int64) for _ in shape])
        return tuple([np.asarray(i) for i in np.unravel_index(mark.place, shape)])

    def _copy(self, access: Access, points: Points) -> Array:
        """Return the number of the buffer's copy: of which thread or block, made when."""
        made = self.model.lifetime(access)
        if made is None:
            return np.zeros(points.count, np.int64)
        owner = points.thread if is_private(access.buffer) else points.block
        return owner * self.space.span + self.space.moment(made, points)

    def misplaced(self, access: Access, subject: str) -> Finding | None:
        """Return a finding where an access leaves its buffer, or its buffer is not in scope."""
        _, points = self._where(access)
        if not points.count:
            return None
        buffer = access.buffer
        if self.model.missing(access):
            message = f"{subject} uses buffer {buffer.name}, which is not in scope"
            return self.witness.point("scope", message, access, points, 0)
        shape = self.shapes[buffer]
        extents = (self.sizes_of[buffer],) if access.flat else shape
        for axis, (node, extent) in enumerate(zip(access.index, extents, strict=True)):
            value = self.array(points, node)
            bad = np.flatnonzero((value < 0) | (value >= extent))
            if bad.size:
                verb = "writes" if access.writes else "reads"
                which = "" if access.flat else f"axis {axis} of "
                message = (
                    f"{subject} {verb} out of bounds: index {value[bad[0]]} for {which}"
                    f"{buffer.name}, which has extent {extent}"
                )
                return self.witness.point("bounds", message, access, points, int(bad[0]))
        return None

    def lookup(self, site: Site, points: Points) -> Array:
        """Return, for points inside of a site's loops, the number of the site's own point."""
        own = self.space.points[site]
        span = self.space.span
        key = own.thread * span + own.time
        order = np.argsort(key)
        wanted = points.thread * span + self.space.moment(site, points)
        found = np.searchsorted(key[order], wanted)
        result: Array = order[np.minimum(found, order.size - 1)]
        return result
