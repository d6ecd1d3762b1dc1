"""Tests against repetition: a loop over axes that a tensor lacks must not do its work again.

A tensor may stand in a loop over an axis of the math that it does not have: the loop of a tensor
that it shares a producer with, or that of an axis which is broadcast in it. Computing a value again
does no harm, but an update inside of a reduction adds again. Such an update happens only where what
the tensor lacks is 0; so does a store to GLOBAL memory in a loop that runs over nothing else, whose
first iteration is as good as all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from loopnest import dtypes
from loopnest.domain import IterDomain
from loopnest.enums import ParallelType
from loopnest.expr import ZERO, Expr, Index, Op, free_indices
from loopnest.lower.nest import Compute, Nest
from loopnest.lower.promotion import roots_of

_IN_ORDER = (ParallelType.serial, ParallelType.unroll, ParallelType.unswitch)


def first_points(
    nest: Nest, compute: Compute, known: Mapping[IterDomain, Expr], is_global: bool
) -> Iterator[Expr]:
    """Yield the conditions under which `compute` is no repetition.

    Args:
        nest: the loops.
        compute: a phase of a definition.
        known: the indices of the axes that its loops run over.
        is_global: whether it stores to GLOBAL memory.
    """
    plan, unit = nest.plan, compute.unit
    path, leaf = plan.forest.path(unit), unit.domain.leaf
    if len(path) == len(leaf) and not plan.promotions[unit].image:
        return
    held = plan.promoter.held(unit)
    place = next((n for n, axis in enumerate(leaf) if axis.is_reduction), len(leaf))
    start = path.index(plan.forest.find(leaf[place])) if place < len(leaf) else len(path)
    around = path if compute.phase in ("update", "define") else path[:start]
    for group in around if is_global else around[start:]:
        index = nest.index_of[group]
        keys = plan.promoter.concrete_keys(plan.promoter.node_of[group])
        if keys and keys.isdisjoint(held) and index is not ZERO and _in_order(index, nest):
            yield _is_zero(index)
    if compute.phase == "update":
        for position in range(place, len(leaf)):
            if is_global or leaf[position].is_reduction:
                yield from _within(nest, compute, position, known)


def _within(
    nest: Nest, compute: Compute, position: int, known: Mapping[IterDomain, Expr]
) -> Iterator[Expr]:
    """Yield the tests for a leaf that was merged with axes which the tensor lacks."""
    promoter, unit = nest.plan.promoter, compute.unit
    node, held = nest.plan.promotions[unit].leaf[position], promoter.held(unit)
    if promoter.concrete_keys(node).isdisjoint(held):
        return
    for root in roots_of(node):
        value = known.get(root)
        if value is None or value is ZERO or root.is_broadcast:
            continue
        if promoter.keys(root).isdisjoint(held) and _in_order(value, nest):
            yield _is_zero(value)


def _in_order(value: Expr, nest: Nest) -> bool:
    """Whether the loops behind `value` run one iteration after the other, in one thread."""
    return all(_parallel(index, nest) in _IN_ORDER for index in free_indices(value))


def _parallel(index: Index, nest: Nest) -> ParallelType:
    return nest.spec_of[index].parallel


def _is_zero(value: Expr) -> Expr:
    return Op("eq", (value, ZERO), dtypes.bool_)
