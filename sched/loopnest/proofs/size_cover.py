"""Whether regions of sizes cover all sizes that are allowed, for kernels that are chosen by size.

A region is a conjunction of conditions over size symbols. isl subtracts the regions from what is
allowed; what is left is empty, or it has a point, which is held against the conditions themselves:
products and quotients of sizes are variables of their own for isl, so that a point may be none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import TypeAlias

from loopnest.proofs import affine
from loopnest.proofs.quasi_affine import Algebra
from loopnest.scalar.arguments import broken_condition
from loopnest.scalar.expr import Const, Expr, Op, Symbol, walk

Region: TypeAlias = Sequence[Expr]
"""Conditions that all hold."""

_MOST_OPERATIONS = 1_000_000
_MOST_TRIED = 20_000


class Undecided(Exception):
    """Neither a proof nor a size that is left out was found."""


def left_out(allowed: Region, regions: Sequence[Region]) -> dict[str, int] | None:
    """Return sizes that are allowed and lie in no region; None where there are none, proved.

    Raises:
        Undecided: neither is found.
    """
    if any(all(_always(condition) for condition in region) for region in regions):
        return None
    names = _names([*allowed, *[c for region in regions for c in region]])
    try:
        point = _point(allowed, regions)
    except affine.NotAffine:
        point = {}  # it takes isl too long
    if point is None:
        return None
    for sizes in _candidates(names, point, [*allowed, *[c for r in regions for c in r]]):
        if _holds(allowed, sizes) and not any(_holds(region, sizes) for region in regions):
            return sizes
    raise Undecided


def _point(allowed: Region, regions: Sequence[Region]) -> dict[str, int] | None:
    """Return a point that isl finds outside of the regions; None where it shows there is none.

    Raises:
        NotAffine: it takes isl too long.
    """
    import islpy

    algebra = Algebra({}, {}, {})
    outside = []
    for region in regions:
        parts = [*_affine(algebra, region)]
        if len(parts) == len(region):  # else it covers nothing, for isl
            outside.append(~affine.all_of(parts))
    limits = [*_affine(algebra, allowed), *outside, algebra.context()]
    names = sorted({*algebra.symbols, *algebra.products.values()})
    context = islpy.Context()
    context.set_max_operations(_MOST_OPERATIONS)
    try:
        found = affine.Relations(islpy, context).make((), tuple(names), None, limits)
        if found.is_empty():
            return None
        point = found.lexmin().sample_point()
        values = [
            point.get_coordinate_val(islpy.dim_type.set, n).to_python() for n in range(len(names))
        ]
    except islpy.Error:
        raise affine.NotAffine("isl") from None
    return dict(zip(names, values, strict=True))


def _affine(algebra: Algebra, conditions: Region) -> Iterator[affine.Condition]:
    """Yield conditions for isl; one of another form is left out, which allows more sizes.

    For the algebra a divisor is above 0. A size may be 0, where a remainder fulfils no condition.
    """
    for condition in conditions:
        try:
            if not divides_by_size(condition):
                yield algebra.condition(condition, {})
        except affine.NotAffine:
            continue


def divides_by_size(condition: Expr) -> bool:
    """Whether a quotient or a remainder by a size, which may be 0, stands in a condition."""
    return any(
        isinstance(node, Op)
        and node.op in ("mod", "floordiv", "ceildiv")
        and not isinstance(node.args[1], Const)
        for node in walk(condition)
    )


def _candidates(
    names: Sequence[str], point: Mapping[str, int], conditions: Region
) -> Iterator[dict[str, int]]:
    """Yield sizes to look at: isl's point, then those around the numbers of the conditions."""
    yield {name: point.get(name, 1) for name in names}
    numbers = {
        int(node.value)
        for condition in conditions
        for node in walk(condition)
        if isinstance(node, Const) and not node.dtype.is_bool
    }
    near = {n + d for n in (0, 2, *numbers) for d in (-1, 0, 1)}
    values = sorted([value for value in near if value >= 0])
    for chosen in islice(product(values, repeat=len(names)), _MOST_TRIED):
        yield dict(zip(names, chosen, strict=True))


def _names(conditions: Region) -> list[str]:
    found = [n.name for c in conditions for n in walk(c) if isinstance(n, Symbol)]
    return list(dict.fromkeys(found))


def _always(condition: Expr) -> bool:
    return isinstance(condition, Const) and bool(condition.value)


def _holds(region: Region, sizes: Mapping[str, int]) -> bool:
    return broken_condition([("", condition) for condition in region], sizes) is None
