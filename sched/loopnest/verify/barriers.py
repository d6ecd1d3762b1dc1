"""Barriers that order nothing: without them there is no race either."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopnest import kir
from loopnest.math_snapshot import MathSnapshot
from loopnest.verify.check import obligations, program_of
from loopnest.verify.exact.marks import Table
from loopnest.verify.exact.races import Races
from loopnest.verify.lanes import Enumeration, NoLaunch, TooMany, Undecidable
from loopnest.verify.model import Model
from loopnest.verify.poly import NotAffine
from loopnest.verify.sizes import filled, fulfils, points_at, small_sizes
from loopnest.verify.symbolic import NotProved, prove_order
from loopnest.verify.witness import Witness

MOST_POINTS = 3_000_000
"""How many points of statements are looked at, in all sizes together."""


def superfluous_barriers(k: Any, **sizes: int) -> list[kir.Barrier]:
    """Return the barriers of a kernel whose deletion, of all instances, leaves no race.

    Small sizes are looked at, in which loops of symbolic extent run twice; a barrier that none of
    them needs is superfluous, unless isl names sizes at which it may be needed.

    Args:
        k: a kernel, as `loopnest.lower` returns it, without races.
        **sizes: values of size symbols.
    """
    program, math = program_of(k, "superfluous_barriers")
    model = Model(program)
    left = list(dict.fromkeys(s.node for s in model.syncs if isinstance(s.node, kir.Barrier)))
    budget = MOST_POINTS
    for some in small_sizes(program, sizes):
        cost = points_at(program, some)
        if not left:
            return []
        if cost <= budget:
            budget -= cost
            left = _not_needed(model, some, left)
    return [b for b in left if not _may_be_needed(model, math, sizes, b, budget)]


def _not_needed(
    model: Model, sizes: Mapping[str, int], barriers: list[kir.Barrier]
) -> list[kir.Barrier]:
    """Return those of some barriers without which there is no race at these sizes."""
    try:
        space = Enumeration(model, sizes, 1 << 20)
        table = Table(model, sizes, space, Witness(model, sizes, space.grid, space.block))
        return [b for b in barriers if next(Races(table, [b]).conflicts(), None) is None]
    except (NoLaunch, TooMany, Undecidable, ZeroDivisionError):
        return barriers


def _may_be_needed(
    model: Model, math: MathSnapshot, given: Mapping[str, int], barrier: kir.Barrier, budget: int
) -> bool:
    """Whether isl names sizes at which there may be a race without a barrier."""
    works, exchanges, _ = obligations(model, math)
    try:
        prove_order(model, math, works, exchanges, dict(given), [barrier])
    except NotProved as why:
        found = filled(model.program, given, why.sizes)
        if not why.sizes or not fulfils(model.program, found):
            return False
        return points_at(model.program, found) > budget or not _not_needed(model, found, [barrier])
    except NotAffine:
        pass
    return False
