"""Which barriers every execution reaches: one in a loop only if the loop runs at least once.

Two accesses in loops that run, and the launch itself, tell which sizes are not 0; a loop of such a
size, between the two, reaches its barriers too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from loopnest.lowering.barriers.thread_dependence import Scope
from loopnest.scalar.expr import Expr
from loopnest.scalar.launch_bounds import LaunchBounds, implied

Sure: TypeAlias = "Mapping[frozenset[Expr], Scope]"
"""Barriers that are reached for sure: the widest one, by the sizes that must not be 0 for it."""

NO_SIZES: frozenset[Expr] = frozenset()


def always(scope: Scope) -> Sure:
    """Return a barrier that is reached whatever the sizes."""
    return {NO_SIZES: scope}


def both(a: Sure, b: Sure) -> Sure:
    """Return the barriers of both."""
    if not a or not b:
        return a or b
    return {key: max(a.get(key, Scope.NONE), b.get(key, Scope.NONE)) for key in {**a, **b}}


def widest(
    limits: LaunchBounds, sure: Sure, loops: Iterable[Expr], twice: Expr | None = None
) -> Scope:
    """Return the widest barrier that is reached where some loops run.

    Args:
        limits: of the launch.
        sure: the barriers.
        loops: extents of the loops that run.
        twice: the extent of one that runs at least twice.
    """
    if not sure:
        return Scope.NONE
    known = {found for e in loops for found in implied(e)}
    known.update(() if twice is None else implied(twice, 2))
    # A barrier counts whose every enclosing loop runs: because the two accesses happen, because the
    # launch has threads, or because a loop around both runs twice.
    held = [s for sizes, s in sure.items() if all(limits.runs(e, known) for e in sizes)]
    return max(held, default=Scope.NONE)
