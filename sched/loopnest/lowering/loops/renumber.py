"""Pass "renumber": loop indices are numbered in order of appearance.

Before: ``for i7: for i2: S``; after: ``for i0: for i1: S``.

Requires a program. Ensures the names i0, i1… in the order of the text; the same program comes back
where that holds already. Loops that later passes make, and bodies that unswitch doubles, come with
other names. It is last because it is about names alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loopnest.kir import Launch, Loop, Program, Stmt, bodies, map_expressions, walk, with_bodies
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, ParallelType
from loopnest.scalar.expr import Expr, Index, substitute
from loopnest.scalar.simplify import Simplifier


def renumber(program: Program) -> Program:
    """Return `program` with its loop indices numbered in order of appearance."""
    found: dict[Index, None] = {}
    for node, _ in walk(program.body):
        if isinstance(node, Loop):
            found[node.var] = None
    names: dict[Expr, Expr] = {}
    for number, var in enumerate(found):
        if var.name != f"i{number}":
            names[var] = Index(f"i{number}", var.extent)
    if not names:
        return program
    known: dict[Expr, Expr] = {}

    def rule(value: Expr) -> Expr:
        return substitute(value, names, known)

    return program.with_body(tuple([_renamed(node, names, rule) for node in program.body]))


def assembled(parts: Sequence[Program]) -> Program:
    """Return the program whose launches are `parts`; the only one as it is."""
    if len(parts) == 1:
        return parts[0]
    largest: dict[ParallelType, Expr] = {}
    algebra = Simplifier()
    for part in parts:
        for dimension, extent in part.launch:
            have = largest.get(dimension)
            largest[dimension] = extent if have is None else algebra.max(have, extent)
    order = tuple([(d, largest[d]) for d in LAUNCH_DIMENSIONS if d in largest])
    body = tuple([Launch(part.launch, part.body) for part in parts])
    return renumber(replace(parts[0], launch=order, body=body))


def _renamed(node: Stmt, names: Mapping[Expr, Expr], rule: Callable[[Expr], Expr]) -> Stmt:
    node = map_expressions(node, rule)
    inner = tuple([tuple([_renamed(n, names, rule) for n in body]) for body in bodies(node)])
    if isinstance(node, Loop):
        var = names.get(node.var, node.var)
        assert isinstance(var, Index)
        return Loop(var, node.parallel, node.axis, inner[0], node.origin)
    return with_bodies(node, inner) if inner else node
