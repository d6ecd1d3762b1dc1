"""How a proof writes the indices of loops for isl, and the sums of indices that it looks at."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from loopnest.proofs.quasi_affine import Monomial, Poly, Product
from loopnest.scalar.expr import Expr


class Forms(Enum):
    """How indices are given to isl: each way has programs that only it can express.

    PLAIN: digits stand for the indices of a divided sum.
    DIGITS: for those that are used as a whole only; other quotients have variables of their own.
    QUOTIENTS: all quotients have.
    """

    PLAIN = auto()
    DIGITS = auto()
    QUOTIENTS = auto()


@dataclass(frozen=True, slots=True)
class Group:
    """Indices that are used by one sum: the sum's digits stand for them.

    Args:
        members: their names, the fastest last.
        digits: the names of the digits, the fastest last; all but the first are bounded.
        whole: the sum, in digits.
        exact: an upper bound of the sum that makes it run over just the points, or None.
    """

    members: tuple[str, ...]
    digits: tuple[str, ...]
    whole: Poly
    exact: Poly | None


@dataclass(slots=True)
class DividedSums:
    """The sums of a program in mixed radix, by their indices.

    Args:
        divisors: what each is divided by.
        products: the products of an index and sizes in it.
        nodes: the expressions that divide it.
        offsets: the flat offsets that are nothing but it.
        left: expressions that divide another sum.
    """

    divisors: dict[tuple[str, ...], dict[Product, None]] = field(default_factory=dict)
    products: dict[tuple[str, ...], dict[Monomial, None]] = field(default_factory=dict)
    nodes: dict[tuple[str, ...], list[Expr]] = field(default_factory=dict)
    offsets: dict[tuple[str, ...], list[Expr]] = field(default_factory=dict)
    left: list[Expr] = field(default_factory=list)
