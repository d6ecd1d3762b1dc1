"""Take flat offsets apart: the index along each axis, by the tests and extents around an access.

Where loops run over merged or split axes, an access holds one offset into memory, ``i0 * H * W +
i1 * 8 * W + i2 * W + i3``. Divided as a polynomial by W it is ``i0 * H + i1 * 8 + i2`` and a rest
i3. Where isl shows that the rest lies in [0, W) at every point of the access, these are the row and
the column, since quotient and rest of a division are unique. The same is done by H. What is left
where that ends is the offset along the first axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loopnest.proofs.constraint_matrices import Matrices
from loopnest.proofs.program_model import Access, Guards, Model
from loopnest.proofs.quasi_affine import (
    Algebra,
    Monomial,
    NotAffine,
    Poly,
    as_constant,
    plus,
    quotient,
    times,
)
from loopnest.scalar.expr import Expr, Op, walk

MAX_OPERATIONS = 200_000
"""How many steps isl may take to place one rest."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A flat offset: the offset along the first `count` axes together, and the others' indices."""

    count: int
    whole: Poly
    tail: tuple[Poly, ...]


class FlatOffsets:
    """The axes' indices of flat offsets, in the variables that loops have from the start.

    Args:
        model: the program.
        algebra: its polynomials.
        env: the variable of each loop and launch index.
        extent: how many values each variable has.
    """

    def __init__(
        self,
        model: Model,
        algebra: Algebra,
        env: Mapping[Expr, Poly],
        extent: Mapping[str, Poly],
    ) -> None:
        self.model, self.algebra = model, algebra
        self.env, self.extent = dict(env), dict(extent)
        self._context: Any = None
        self._known: dict[tuple[object, ...], bool] = {}

    def parts(self, access: Access, around: Sequence[str]) -> Parts | None:
        """Return the indices of the last axes of an access; None where no axis can be told.

        Args:
            access: of a dense buffer.
            around: the variables of its site: launch indices, and the loops around it.
        """
        shape = access.buffer.shape
        try:
            rest = self.algebra.poly(access.index[0], self.env)
        except NotAffine:
            return None
        tail: list[Poly] = []
        while len(tail) < len(shape) - 1:
            try:
                size = self.algebra.poly(shape[-1 - len(tail)], {})
                whole, within = self._divided(rest, size)
                shown = as_constant(size) is not None or self._lies_in(access, around, within, size)
                self.algebra.text(within, str)
            except NotAffine:
                break
            if not shown:
                break
            tail.insert(0, within)
            rest = whole
        return Parts(len(shape) - len(tail), rest, tuple(tail)) if tail else None

    def _divided(self, whole: Poly, size: Poly) -> tuple[Poly, Poly]:
        """Return quotient and rest of a division of polynomials.

        A term that the leading one of the size does not divide stays in the rest.
        """
        if as_constant(size) is not None:
            found = self.algebra.divided(whole, size)
            return found, plus(whole, times(found, size), -1)
        lead = max(size, key=lambda monomial: (len(monomial), monomial))
        found, rest = {}, dict(whole)
        while True:
            parts = [_part(m, lead, rest[m], size[lead]) for m in rest]
            term = next((part for part in parts if part is not None), None)
            if term is None:
                return found, rest
            found = plus(found, term)
            rest = plus(rest, times(term, size), -1)

    def _lies_in(self, access: Access, around: Sequence[str], rest: Poly, size: Poly) -> bool:
        """Whether a rest is in [0, size) at every point of an access."""
        guards = (*access.site.guards, *access.guards)
        key = (frozenset(rest.items()), frozenset(size.items()), guards, tuple(around))
        if key not in self._known:
            self._known[key] = self._is_shown(around, guards, rest, size)
        return self._known[key]

    def _is_shown(self, around: Sequence[str], guards: Guards, rest: Poly, size: Poly) -> bool:
        outside = f"not ({self.algebra.text(rest, str)} >= 0 and " + (
            f"{self.algebra.compare('lt', rest, size, str)})"
        )
        return self.no_point(around, [outside, *self.limits(around, guards)])

    def no_point(self, variables: Sequence[str], conditions: Sequence[str]) -> bool:
        """Whether isl shows that some conditions hold nowhere, at sizes that are assumed."""
        import islpy

        if self._context is None:
            self._context = islpy.Context()
            self._context.set_max_operations(MAX_OPERATIONS)
        limits = [*conditions, *self._assumed(), self.algebra.context()]
        names = ", ".join(variables)
        parameters = ", ".join(sorted({*self.algebra.symbols, *self.algebra.products.values()}))
        matrices = Matrices(islpy, self._context)
        try:
            return bool(matrices.read(parameters, f"{names}]", None, limits).is_empty())
        except islpy.Error:
            return False
        finally:
            self._context.reset_operations()

    def limits(self, around: Sequence[str], guards: Guards) -> Iterator[str]:
        """Yield the known bounds of the variables at an access that isl can express."""
        for name in around:
            yield f"{name} >= 0"
            try:
                yield self.algebra.compare("lt", {(name,): 1}, self.extent[name], str)
            except NotAffine:
                continue
        for condition, value in guards:
            try:
                text = self.algebra.condition(condition, self.env, str)
            except NotAffine:
                continue
            yield text if value else f"not ({text})"

    def terms(self, guards: Guards) -> Iterator[Poly]:
        """Yield the index expressions that conditions compare, as far as they are polynomials."""
        for condition, _ in guards:
            for part in walk(condition):
                if isinstance(part, Op) and part.dtype.is_bool and part.args[0].dtype.kind == "x":
                    for arg in part.args:
                        try:
                            yield self.algebra.poly(arg, self.env)
                        except NotAffine:
                            continue

    def _assumed(self) -> Iterator[str]:
        program = self.model.program
        for _, condition in (*program.conditions, *program.requires):
            try:
                yield self.algebra.condition(condition, {}, str)
            except NotAffine:
                continue


def _part(monomial: Monomial, lead: Monomial, count: int, times_lead: int) -> Poly | None:
    """Return a term divided by a leading one; None where that does not divide it."""
    part = quotient(monomial, lead)
    return None if part is None or count % times_lead else {part: count // times_lead}
