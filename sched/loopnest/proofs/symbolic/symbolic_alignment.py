"""Wide accesses, for all sizes: lanes follow each other from an aligned address."""

from __future__ import annotations

import math

from loopnest.proofs import affine
from loopnest.proofs.quasi_affine import (
    Monomial,
    Poly,
    as_constant,
    offset_of,
    quotient,
    variable,
)
from loopnest.proofs.symbolic.isl_relations import Instances, NotProved, about
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.wide_accesses import WidePlace, wide_place_of
from loopnest.scalar.expr import Buffer, Const, Expr, Op


class Alignment:
    """Prove that wide accesses may be wide.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """

    def __init__(self, setting: PolyhedralModel) -> None:
        self.setting, self.algebra = setting, setting.algebra
        self.divisors = self._divisors()

    def _divisors(self) -> dict[Monomial, int]:
        """Return what products of sizes are known to be multiples of, the longest first."""
        found: dict[Monomial, int] = {}
        program = self.setting.model.program
        for _, condition in (*program.conditions, *program.requires):
            match condition:
                case Op(
                    op="eq",
                    args=(Op(op="mod", args=(whole, Const() as by)), Const(value=0)),
                ):
                    monomial = self._product(whole)
                    if monomial:
                        found[monomial] = math.lcm(found.get(monomial, 1), int(by.value))
        return dict(sorted(found.items(), key=lambda item: -len(item[0])))

    def _product(self, whole: Expr) -> Monomial:
        """Return the sizes that an expression is the product of; none for another one."""
        try:
            poly = self.algebra.poly(whole, {})
        except affine.NotAffine:
            return ()
        return next(iter(poly)) if [*poly.values()] == [1] else ()

    def prove(self) -> None:
        """Prove it for all of them."""
        for wide in wide_place_of(self.setting.model):
            with about(wide.access.site):
                if not wide.ordered:
                    raise NotProved(f"the order of {wide.access} among the lanes of a vector")
                self._wide(wide)

    def _wide(self, wide: WidePlace) -> None:
        access, buffer = wide.access, wide.access.buffer
        at = self.setting.points(access)
        lane = self.setting.spaces.name(wide.loop.var)
        if lane not in at.variables:
            raise NotProved("a merged lane")
        first = Instances(at.name, at.variables, [*at.conditions, affine.equal(lane, 0)], at.time)
        index = self.setting.polys(access.index)
        if access.flat:
            address: Poly = index[0]
        else:
            strides = [self.algebra.poly(s, {}) for s in buffer.strides]
            moved = self._moved(first, buffer, index, strides, lane, wide.lanes)
            still = [axis for axis in range(len(index)) if axis not in moved]
            address = offset_of([index[axis] for axis in still], [strides[axis] for axis in still])
        rest = affine.plus(address, variable(lane), -1)
        if lane in self.algebra.variables(rest):
            raise NotProved(f"the lanes of {access} do not follow each other")
        self._multiple(first, address, wide.lanes, f"the alignment of {access}")

    def _moved(
        self,
        first: Instances,
        buffer: Buffer,
        index: list[Poly],
        strides: list[Poly],
        lane: str,
        lanes: int,
    ) -> set[int]:
        """Return the dimensions that XOR moves by multiples of `lanes` elements.

        XOR moves all lanes together where all operands are multiples, but for the lane: such a
        dimension counts as it stands.
        """
        rows: dict[int, set[int]] = {}
        for a, b in buffer.swizzles:
            rows.setdefault(b, set()).update({a}, rows.get(a, ()))
        moved: set[int] = set()
        for column, operands in rows.items():
            if any(lane in self.algebra.variables(index[row]) for row in operands):
                raise NotProved(f"the lanes of {buffer.name} lie in several rows of a swizzle")
            stride = as_constant(strides[column])
            whole = stride is not None and stride % lanes == 0
            if whole and lane not in self.algebra.variables(index[column]):
                moved.add(column)
                continue
            for place in (*sorted(operands), column):
                self._multiple(first, index[place], lanes, f"the swizzle of {buffer.name}")
        return moved

    def _multiple(self, at: Instances, p: Poly, lanes: int, what: str) -> None:
        """Show that an index is a multiple of `lanes` at all points."""
        rest = {m: c for m, c in p.items() if (c * self._known(m)) % lanes}
        try:
            value = self.setting.linear(rest)
        except affine.NotAffine:
            raise NotProved(what) from None
        odd = affine.below(affine.sum_of([(affine.floor_of(value, lanes), lanes)]), value)
        self.setting.require_present([value], at.variables)
        found = self.setting.among(at, [odd])
        self.setting.require_empty(found, what)

    def _known(self, monomial: Monomial) -> int:
        result, rest = 1, monomial
        for known, divisor in self.divisors.items():
            while (left := quotient(rest, known)) is not None:
                result, rest = result * divisor, left
        return result
