"""The extents of a graph's tensors: ints, or size expressions of the core in one canonical form.

A size expression is made of size symbols (``N``), ints and + - * // %, ceildiv, min and max. Two
expressions that are one polynomial are one object, so that shapes are compared by ``==``. An
extent that no expression shows to be another is not equal to it: ``N`` and ``M`` differ, and so do
``N`` and 4. All arithmetic is that of the core's `Simplifier`; ints never reach it.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from loopnest.base.errors import kind_of
from loopnest.graph.graph_error import GraphError
from loopnest.scalar import dtypes
from loopnest.scalar.arguments import size_value
from loopnest.scalar.expr import Const, Expr, Symbol, integer, walk, whole
from loopnest.scalar.polynomials import Monomial, Poly, Products
from loopnest.scalar.simplify import Simplifier
from loopnest.scalar.size_text import read_size

Dim: TypeAlias = "int | Expr"
"""An extent: an int >= 0, or a size expression."""
Shape: TypeAlias = "tuple[Dim, ...]"
"""Extents, outermost axis first."""
DimLike: TypeAlias = "int | str | Expr"
"""What users write for an extent: ``32``, ``"N"``, ``"N * 2"``, an extent of another node."""
ShapeLike: TypeAlias = "Sequence[DimLike] | DimLike"
"""What users write for a shape; one extent stands for a shape of one axis."""

_WORDS = frozenset({"inf", "nan", *[dtype.name for dtype in dtypes.ALL]})
"""Words that mean something else in the text of a graph."""
_AUTOMATIC = re.compile(r"T\d+(_\d+)?")
"""Names that tensors of a kernel get."""
TYPICAL = 64
"""What a size is taken for where costs are compared and nothing says it."""


class _SortedProducts(Products):
    """Products with their atoms in the order of their texts."""

    def monomial(self, atoms: Iterable[Expr]) -> Monomial:
        return tuple(sorted(atoms, key=str))


class _SizeOrder(Simplifier):
    """The core's arithmetic, with the terms of sums and products in the order of their texts."""

    def expression(self, poly: Poly) -> Expr:
        ordered = sorted(poly.items(), key=lambda item: (-len(item[0]), tuple(map(str, item[0]))))
        return super().expression(dict(ordered))


_MOST = 1 << 14
_ALGEBRA = _SizeOrder(products=_SortedProducts())


def _algebra() -> Simplifier:
    """Return the arithmetic; what it remembers is dropped where it grows large."""
    global _ALGEBRA
    if len(_ALGEBRA._memo) > _MOST:
        _ALGEBRA = _SizeOrder(products=_SortedProducts())
    return _ALGEBRA


def as_expr(dim: Dim) -> Expr:
    """Return an extent as a size expression."""
    return integer(dim) if isinstance(dim, int) else dim


def _dim(found: Expr) -> Dim:
    return int(found.value) if isinstance(found, Const) else found


# Arithmetic


def add(a: Dim, b: Dim) -> Dim:
    """Return a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return _dim(_algebra().add(as_expr(a), as_expr(b)))


def sub(a: Dim, b: Dim) -> Dim:
    """Return a - b."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return _dim(_algebra().sub(as_expr(a), as_expr(b)))


def mul(a: Dim, b: Dim) -> Dim:
    """Return a * b."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return _dim(_algebra().mul(as_expr(a), as_expr(b)))


def floordiv(a: Dim, b: Dim) -> Dim:
    """Return floor(a / b), b >= 1."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return _dim(_algebra().floordiv(as_expr(a), as_expr(b)))


def ceildiv(a: Dim, b: Dim) -> Dim:
    """Return ceil(a / b), b >= 1."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return _dim(_algebra().ceildiv(as_expr(a), as_expr(b)))


def total(dims: Iterable[Dim]) -> Dim:
    """Return the sum of extents."""
    found: Dim = 0
    for dim in dims:
        found = add(found, dim)
    return found


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of extents: the elements of a shape."""
    count = 1
    symbolic: list[Expr] = []
    for dim in dims:
        if isinstance(dim, int):
            count *= dim
        else:
            symbolic.append(dim)
    if not symbolic or not count:
        return count
    return _dim(_algebra().product([*symbolic, integer(count)]))


def last_place(start: Dim, step: Dim, count: Dim) -> Dim:
    """Return the least stop of a slice that takes `count` elements."""
    return start if count == 0 else add(start, add(mul(sub(count, 1), step), 1))


# Questions


def divides(divisor: Dim, dim: Dim) -> bool:
    """Whether an extent is a multiple of another at all sizes."""
    if isinstance(divisor, int) and isinstance(dim, int):
        return bool(divisor) and dim % divisor == 0
    return divisor != 0 and _algebra().divides(as_expr(divisor), as_expr(dim))


def never_at_most(a: Dim, b: Dim) -> bool:
    """Whether a > b, whatever the sizes are: what is decided before any is known."""
    if isinstance(a, int) and isinstance(b, int):
        return a > b
    algebra = _algebra()
    return algebra.holds_le(algebra.add(as_expr(b), integer(1)), as_expr(a))


def symbols(dim: Dim) -> Iterator[str]:
    """Yield the names of the sizes that an extent depends on."""
    if isinstance(dim, Symbol):
        yield dim.name
    elif isinstance(dim, Expr):
        for node in walk(dim):
            if isinstance(node, Symbol):
                yield node.name


def at(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Return an extent where every size is known."""
    return dim if isinstance(dim, int) else size_value(dim, sizes)


def typical(dim: Dim, sizes: Mapping[str, int] | None = None) -> int:
    """Return a number to compare costs by: sizes that are not known count as `TYPICAL`."""
    if isinstance(dim, int):
        return dim
    known = dict.fromkeys(symbols(dim), TYPICAL) | dict(sizes or {})
    return max(size_value(dim, known), 0)


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape that shapes broadcast to: equal extents, or a static 1; None for none."""
    rank = max(map(len, shapes), default=0)
    found: list[Dim] = [1] * rank
    for shape in shapes:
        for place, extent in enumerate(shape, rank - len(shape)):
            if found[place] == 1:
                found[place] = extent
            elif extent != 1 and extent != found[place]:
                return None
    return tuple(found)


# What users write


def size_symbol(name: str, refuse: Callable[[str], GraphError]) -> Symbol:
    """Return the symbol of a name.

    Raises:
        GraphError: the name cannot be that of a size.
    """
    fits = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    if not fits or name in _WORDS or _AUTOMATIC.fullmatch(name):
        raise refuse(f"{name!r} cannot name a size")
    return Symbol(name)


def read_dim(text: str, refuse: Callable[[str], GraphError]) -> Dim:
    """Return the extent that a text names: ``N``, ``N * 2 + 1``, ``ceildiv(N, 4)``.

    Raises:
        GraphError: it cannot be read.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise refuse(f"{text!r} is no size") from None
    found = read_size(tree, lambda name: size_symbol(name, refuse), refuse)
    return _dim(_algebra().simplify(found))


def dim_of(value: object, subject: str) -> Dim:
    """Return an extent that a user wrote: an int >= 0, a text, or a size expression.

    Raises:
        GraphError: `value` is no such extent.
    """

    def refuse(reason: str) -> GraphError:
        return GraphError(subject, reason, "a size is a name, or + - * // % of names and ints")

    if isinstance(value, str):
        return read_dim(value, refuse)
    if isinstance(value, Expr) and value.dtype is dtypes.index:
        return _dim(_algebra().simplify(value))
    found = whole(value)
    if found is None or found < 0:
        raise GraphError(subject, f"an extent is {kind_of(value)}", "use ints >= 0, or sizes")
    return found


def shown(shape: Sequence[Dim]) -> str:
    """Return a shape as errors show it: ``[N, 32]``."""
    return f"[{', '.join(map(str, shape))}]"
