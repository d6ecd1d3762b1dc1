"""Axes of buffers as long as a product of sizes, whose elements are named by digits.

Where a merged loop runs over digits, ``e = q * M + r``, an index e along one axis of a buffer is no
affine relation of q and r. If the quotient and the rest of every index along that axis are known,
as of ``i * M + j`` elsewhere, the pair (q, r) names the element as well as e does.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from loopnest.kir.buffers import Buffer
from loopnest.proofs.program_model import is_callers
from loopnest.proofs.quasi_affine import Monomial, NotAffine, Poly, plus, times
from loopnest.proofs.symbolic.statement_instances import NotProved

if TYPE_CHECKING:
    from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel


class PartedAxes:
    """By what the indices along the axes of buffers are divided.

    Args:
        setting: the program in isl.
    """

    def __init__(self, setting: PolyhedralModel) -> None:
        self.setting, self.algebra = setting, setting.algebra
        self._divisors: dict[Buffer, tuple[tuple[Monomial, ...], ...]] = {}

    def parts(self, buffer: Buffer, index: Sequence[Poly]) -> list[Poly]:
        """Return what names an element: an index, or its digits, along each axis."""
        result: list[Poly] = []
        for p, divisors in zip(index, self.divisors(buffer), strict=True):
            found = self._digits(p, divisors)
            assert found is not None
            result += found
        return result

    def bounded(
        self, buffer: Buffer, index: Sequence[Poly], extents: Sequence[Poly]
    ) -> tuple[list[Poly], list[Poly]]:
        """Return the same with an extent for each; only the first digit's is not its own."""
        bounds = self.extents(buffer, extents)
        return self.parts(buffer, index), [extent for along in bounds for extent in along]

    def extents(self, buffer: Buffer, extents: Sequence[Poly]) -> list[list[Poly]]:
        """Return the extents of what names an element, along each axis.

        Raises:
            NotAffine: a divisor does not divide an axis.
        """
        result: list[list[Poly]] = []
        for extent, divisors in zip(extents, self.divisors(buffer), strict=True):
            bounds: list[Poly] = []
            for divisor in divisors:
                whole = self.algebra.exactly(extent, {divisor: 1})
                if whole is None or times(whole, {divisor: 1}) != extent:
                    raise NotAffine("a part of a merged axis")
                bounds.append(whole)
                extent = {divisor: 1}
            result.append([*bounds, extent])
        return result

    def by_digits(self, buffer: Buffer) -> bool:
        """Whether digits name the elements along an axis of a buffer."""
        return any(self.divisors(buffer))

    def divisors(self, buffer: Buffer) -> tuple[tuple[Monomial, ...], ...]:
        """Return the divisors of the indices along each axis, the largest first; mostly none."""
        if buffer not in self._divisors:
            self._divisors[buffer] = ((),) * max(len(buffer.shape), 1)
            if not is_callers(buffer):
                self._find(buffer)
            elif self.setting.spaces.groups and buffer not in self.setting.spaces.dense.shapes:
                with suppress(NotAffine, NotProved):  # a caller's has no other place
                    self._find(buffer)
        return self._divisors[buffer]

    def _find(self, buffer: Buffer) -> None:
        accesses = self.setting.model.accesses_to([buffer])
        if accesses and buffer not in self.setting.strides:
            indices = [self.setting.element(access) for access in accesses]
            along = zip(*indices, strict=True)
            self._divisors[buffer] = tuple([self._along(list(p)) for p in along])

    def alike(self, one: Poly, other: Poly) -> tuple[list[Poly], list[Poly]]:
        """Return what two indices are compared by: themselves, or their digits by the same sizes.

        Numbers in mixed radix are equal where their digits are.
        """
        divisors = self._along([one, other])
        parts = [self._digits(p, divisors) for p in (one, other)]
        assert parts[0] is not None
        assert parts[1] is not None
        return parts[0], parts[1]

    def _along(self, indices: list[Poly]) -> tuple[Monomial, ...]:
        found: set[Monomial] = set()
        for p in indices:
            for monomial in p:
                sizes = tuple([v for v in monomial if v in self.algebra.symbols])
                if sizes and len(sizes) < len(monomial) and monomial not in self.algebra.derived:
                    found.add(sizes)
        divisors = tuple(sorted(found, key=lambda m: (-len(m), m)))
        return divisors if all(self._digits(p, divisors) for p in indices) else ()

    def _digits(self, p: Poly, divisors: Sequence[Monomial]) -> list[Poly] | None:
        result: list[Poly] = []
        for divisor in divisors:
            whole = self.algebra.exactly(p, {divisor: 1})
            if whole is None:
                return None
            result.append(whole)
            p = plus(p, times(whole, {divisor: 1}), -1)
        return [*result, p]
