"""Arrays of the caller whose elements are named by digits of their offset, in a shape that fits.

A group of C / 32 channels of S elements each is one row of a reshape, and a loop over that row has
offsets ``i0 * C * S + i1 * (C // 32 * S) + i2``: no affine index of a channel follows from i2. But
dense memory has no shape of its own. If each stride of a list divides the next one and the size of
the array, the digits of an offset by these strides name the place as well as the indices of the
declared shape do, one to one. The strides that occur in the offsets of a program are tried: what is
left by a stride must lie in [0, stride) at every access, which isl shows from the loops and tests
around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from loopnest.kir.buffers import Buffer
from loopnest.proofs.program_model import Access, Site, is_callers
from loopnest.proofs.quasi_affine import NotAffine, Poly, as_constant, constant, plus, times
from loopnest.proofs.quasi_affine import quotient as divided
from loopnest.scalar.expr import Expr

if TYPE_CHECKING:
    from loopnest.proofs.isl_spaces import Spaces


class DenseShapes:
    """The shapes in which arrays of the caller are looked at; most keep their own.

    Args:
        spaces: the loops, before any index is written by digits.

    Attributes:
        shapes: the extents of an array, where they are not its own.
    """

    def __init__(self, spaces: Spaces) -> None:
        self.spaces, self.algebra = spaces, spaces.algebra
        self.shapes: dict[Buffer, tuple[Poly, ...]] = {}
        self._index: dict[tuple[Site, Buffer, tuple[Expr, ...]], list[Poly]] = {}
        for buffer in spaces.model.buffers() if spaces.wide else ():
            if is_callers(buffer) and self._is_dense(buffer):
                self._look_at(buffer, spaces.model.accesses_to([buffer]))

    def index(self, access: Access) -> list[Poly]:
        """Return the digits of an access of such an array, the slowest first."""
        found = self._index[access.site, access.buffer, access.index]
        return [self.spaces.in_digits(p) for p in found]

    def offset(self, buffer: Buffer, index: Sequence[Poly]) -> Poly:
        """Return the offset of an element of the declared shape."""
        total: Poly = {}
        for p, stride in zip(index, buffer.strides, strict=True):
            total = plus(total, times(p, self.algebra.poly(stride, {})))
        return total

    def whole(self, access: Access) -> Poly:
        """Return the offset of an access in the variables that isl knows."""
        return self.spaces.in_digits(self._offset(access))

    def _is_dense(self, buffer: Buffer) -> bool:
        step: Poly = constant(1)
        for extent, stride in zip(reversed(buffer.shape), reversed(buffer.strides), strict=True):
            if self.algebra.poly(stride, {}) != step:
                return False
            step = times(step, self.algebra.poly(extent, {}))
        return True

    def _look_at(self, buffer: Buffer, accesses: Sequence[Access]) -> None:
        try:
            offsets = {access: self._offset(access) for access in accesses}
        except NotAffine:
            return
        if all(self._is_plain(access) for access in accesses):
            return
        size = self.algebra.poly(buffer.size, {})
        shape: list[Poly] = []
        below: Poly = constant(1)
        digits: dict[Access, list[Poly]] = {access: [] for access in accesses}
        for stride in self._strides(offsets.values()):
            extent = _exactly(stride, below)
            if extent is None or _exactly(size, stride) is None:
                continue
            parts = {a: self._parted(a, offsets[a], extent) for a in accesses}
            known = {a: part for a, part in parts.items() if part is not None}
            if len(known) < len(accesses):
                continue
            for access, (whole, rest) in known.items():
                offsets[access] = whole
                digits[access].insert(0, rest)
            shape.insert(0, extent)
            below = stride
        first = _exactly(size, below)
        if shape and first is not None:
            self.shapes[buffer] = (first, *shape)
            for a in accesses:
                self._index[a.site, a.buffer, a.index] = [offsets[a], *digits[a]]

    def _offset(self, access: Access) -> Poly:
        index = [self.algebra.poly(i, self.spaces.env) for i in access.index]
        return index[0] if access.flat else self.offset(access.buffer, index)

    def _is_plain(self, access: Access) -> bool:
        """Whether isl knows the indices of an access along the declared axes."""
        found = [self.algebra.poly(i, self.spaces.env) for i in access.index]
        if access.flat and len(access.buffer.shape) > 1:
            parts = self.spaces.offsets.parts(access, self.spaces.members_of(access.site))
            if parts is None or parts.count > 1:
                return False
            found = [parts.whole, *parts.tail]
        return all(
            self.spaces.products.derive(m) for p in found for m in self.spaces.products.of(p)
        )

    def _strides(self, offsets: Iterable[Poly]) -> list[Poly]:
        """Return the strides of loops in these offsets that are products of sizes, the least first.

        A product of fewer sizes comes first: only of such it is known that it may divide another.
        """
        found: dict[tuple[object, ...], Poly] = {}
        for offset in offsets:
            for monomial, count in offset.items():
                own = [v for v in monomial if v in self.spaces.extent]
                rest = tuple([v for v in monomial if v not in own])
                if len(own) == 1 and rest and count > 0:
                    found[len(rest), rest, count] = {rest: count}
        return [found[key] for key in sorted(found, key=lambda key: (key[0], key[2], key[1]))]

    def _parted(self, access: Access, offset: Poly, extent: Poly) -> tuple[Poly, Poly] | None:
        """Return quotient and rest of an offset by an extent; None where the rest may be larger."""
        ((divisor, number),) = extent.items()
        whole: Poly = {}
        for monomial, count in offset.items():
            part = divided(monomial, divisor)
            if part is not None and count % number == 0:
                whole[part] = count // number
        rest = plus(offset, times(whole, extent), -1)
        return (whole, rest) if self._lies_in(access, rest, extent) else None

    def _lies_in(self, access: Access, rest: Poly, extent: Poly) -> bool:
        products, offsets = self.spaces.products, self.spaces.offsets
        try:
            if not all(products.derive(m) for m in products.of(rest)):
                return False
            outside = f"not ({self.algebra.text(rest, str)} >= 0 and " + (
                f"{self.algebra.compare('lt', rest, extent, str)})"
            )
        except NotAffine:
            return False
        around = self.spaces.members_of(access.site)
        guards = (*access.site.guards, *access.guards)
        for term in offsets.terms(guards):
            for part in products.of(term):
                products.derive(part)
        tied = {v: text for m in around for v, text in self.spaces.derived.get(m, {}).items()}
        limits = [outside, *offsets.limits(around, guards), *tied.values()]
        return offsets.no_point([*around, *tied], limits)


def _exactly(whole: Poly, by: Poly) -> Poly | None:
    """Return a quotient of products of sizes that comes out even; None for any other."""
    if as_constant(by) == 1:
        return whole
    if len(whole) != 1 or len(by) != 1:
        return None
    ((sizes, count),), ((others, number),) = whole.items(), by.items()
    part = divided(sizes, others)
    return None if part is None or count % number else {part: count // number}
