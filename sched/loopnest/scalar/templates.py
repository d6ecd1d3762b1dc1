"""Templates of definitions: expressions in the coordinates of an element, or in two values."""

from __future__ import annotations

from collections.abc import Sequence

from loopnest.scalar.expr import Coordinate, Expr, substitute, two_sides, walk


def coordinates(template: Expr) -> tuple[Coordinate, ...]:
    """Return the coordinates that `template` depends on, each once."""
    return tuple([node for node in walk(template) if isinstance(node, Coordinate)])


def at(template: Expr, coordinate: Sequence[Expr]) -> Expr:
    """Return `template` with the root's coordinates put in."""
    return substitute(template, {Coordinate(n): value for n, value in enumerate(coordinate)})


def instantiate(
    templates: tuple[Expr, ...], one: tuple[Expr, ...], other: tuple[Expr, ...]
) -> tuple[Expr, ...]:
    """Return templates in the `Arg`s of `two_sides` with values put in."""
    args = two_sides([value.dtype for value in one])
    mapping: dict[Expr, Expr] = dict(zip((*args[0], *args[1]), (*one, *other), strict=True))
    return tuple([substitute(template, mapping) for template in templates])
