"""Templates of definitions: expressions in the coordinates of an element."""

from __future__ import annotations

from collections.abc import Sequence

from loopnest.scalar.expr import Coordinate, Expr, substitute, walk


def coordinates(template: Expr) -> tuple[Coordinate, ...]:
    """Return the coordinates that `template` depends on, each once."""
    return tuple([node for node in walk(template) if isinstance(node, Coordinate)])


def at(template: Expr, coordinate: Sequence[Expr]) -> Expr:
    """Return `template` with the root's coordinates put in."""
    return substitute(template, {Coordinate(n): value for n, value in enumerate(coordinate)})
