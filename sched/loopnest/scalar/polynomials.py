"""Polynomials over atoms of indices: sums of products, each with an integer coefficient.

An atom is what no sum or product is: a symbol, a loop index, a quotient, a remainder, a minimum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from loopnest.scalar import dtypes
from loopnest.scalar.expr import Expr, Index, Op, integer
from loopnest.scalar.facts import Facts

if TYPE_CHECKING:
    from loopnest.scalar.equations import SolvedSizes

Monomial: TypeAlias = tuple[Expr, ...]
Poly: TypeAlias = dict[Monomial, int]
"""A sum of products of atoms: each with the number of times that it stands there."""

UNIT: Monomial = ()
"""The product of no atoms: the key of a polynomial's constant."""


class Products:
    """Products of atoms, in one order: loop indices first, then others as they were first seen.

    Attributes:
        rank: the atoms seen, each with its place in that order.
    """

    def __init__(self) -> None:
        self.rank: dict[Expr, int] = {}

    def _atom_key(self, atom: Expr) -> tuple[bool, int]:
        rank = self.rank.get(atom)
        if rank is None:
            rank = self.rank[atom] = len(self.rank)
        return (not isinstance(atom, Index), rank)

    def monomial(self, atoms: Iterable[Expr]) -> Monomial:
        """Return the product of `atoms`."""
        result = list(atoms)
        if len(result) > 1:
            result.sort(key=self._atom_key)
        return tuple(result)

    def times(self, a: Poly, b: Poly) -> Poly:
        """Return the product of two polynomials."""
        if len(b) == 1 and UNIT in b:
            factor = b[UNIT]
            return {t: c * factor for t, c in a.items()}
        result: Poly = {}
        for left, m in a.items():
            for right, n in b.items():
                term = self.monomial((*left, *right)) if left and right else left or right
                total = result.get(term, 0) + m * n
                if total:
                    result[term] = total
                else:
                    result.pop(term, None)
        return result


class PolynomialAlgebra(Protocol):
    """What rules and bounds ask of the simplifier, which uses them."""

    facts: Facts
    products: Products

    @property
    def solved(self) -> SolvedSizes: ...

    def poly(self, node: Expr) -> Poly: ...
    def expression(self, poly: Poly) -> Expr: ...
    def combine(self, a: Poly, b: Poly, sign: int) -> Poly: ...
    def split(self, dividend: Poly, divisor: Expr) -> tuple[Poly, Poly]: ...
    def mul(self, a: Expr, b: Expr) -> Expr: ...
    def mod(self, a: Expr, b: Expr) -> Expr: ...
    def binary(self, op: str, a: Expr, b: Expr) -> Expr: ...
    def divides(self, divisor: Expr, value: Expr) -> bool: ...
    def simplify(self, root: Expr) -> Expr: ...


def divide_monomial(term: Monomial, by: Monomial) -> Monomial | None:
    """Return ``term / by``, None where `by` has an atom that `term` lacks."""
    if not by:
        return term
    rest = list(term)
    for atom in by:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def product_of(term: Monomial, factor: int) -> Expr:
    """Return ``term * factor`` as an expression."""
    if not term:
        return integer(factor)
    result = term[0]
    for atom in term[1:]:
        result = index_op("mul", result, atom)
    return result if factor == 1 else index_op("mul", result, integer(factor))


def index_op(op: str, *args: Expr) -> Expr:
    """Return an operation on indices as it is, not simplified."""
    return Op(op, args, dtypes.index)
