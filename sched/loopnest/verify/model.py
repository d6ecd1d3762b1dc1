"""A program as the checkers see it: statements with their loops, tests, times and scopes.

A statement that stands at two places (both bodies of an unswitched loop) is two `Site`s. The time
of a site is a vector: its place in the outermost body, then for each loop the index and the place
inside, so that lexicographic order is the order of the program within a thread; loops bound to
launch dimensions add no index, their threads run side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from loopnest import kir
from loopnest.buffers import Buffer
from loopnest.enums import Memory
from loopnest.expr import Expr, Index, Load, Local, Op, walk

Guards: TypeAlias = "tuple[tuple[Expr, bool], ...]"
"""Conditions, each with the value that it must have."""


@dataclass(frozen=True, eq=False, slots=True)
class Site:
    """A statement at its place.

    Args:
        node: the statement.
        loops: the loops around it, outermost first.
        guards: the tests around it.
        time: places and loop indices, alternating.
        allocations: where each buffer in scope was made; parameters are not in it.
        lets: the scalar temporaries in scope.
    """

    node: kir.Stmt
    loops: tuple[kir.Loop, ...]
    guards: Guards
    time: tuple[int | Index, ...]
    allocations: Mapping[Buffer, Site]
    lets: Mapping[Local, Site]

    @property
    def serial(self) -> tuple[kir.Loop, ...]:
        """The loops that a thread runs one iteration after another."""
        return tuple([loop for loop in self.loops if not loop.parallel.is_thread])


@dataclass(frozen=True, eq=False, slots=True)
class Access:
    """A read or a write of one element a point of its site.

    Args:
        site: whose points.
        moment: the site that performs it: an earlier `Let`, or `site` itself.
        buffer, index, flat: the element.
        writes: whether it writes.
        guards: conditions beside those of the site.
    """

    site: Site
    moment: Site
    buffer: Buffer
    index: tuple[Expr, ...]
    flat: bool
    writes: bool
    guards: Guards = ()

    def __str__(self) -> str:
        inner = ", ".join([str(i) for i in self.index])
        return f"{self.buffer.name}{'.flat' if self.flat else ''}[{inner}]"


class Model:
    """The sites of a program."""

    def __init__(self, program: kir.Program) -> None:
        self.program = program
        self.sites = list(self._visit(program.body, (), (), (), {}, {}))
        self.stores = [s for s in self.sites if isinstance(s.node, kir.Store)]
        self.barriers = [s for s in self.sites if isinstance(s.node, kir.Barrier)]
        self.params = {p.buffer for p in program.params if p.buffer is not None}

    def _visit(
        self,
        body: tuple[kir.Stmt, ...],
        loops: tuple[kir.Loop, ...],
        guards: Guards,
        time: tuple[int | Index, ...],
        allocations: Mapping[Buffer, Site],
        lets: Mapping[Local, Site],
    ) -> Iterator[Site]:
        allocations, lets = dict(allocations), dict(lets)
        for place, node in enumerate(body):
            now = (*time, place)
            site = Site(node, loops, guards, now, dict(allocations), dict(lets))
            match node:
                case kir.Loop():
                    inside = now if node.parallel.is_thread else (*now, node.var)
                    yield from self._visit(
                        node.body, (*loops, node), guards, inside, allocations, lets
                    )
                    continue
                case kir.If():
                    yes, no = (node.condition, True), (node.condition, False)
                    yield from self._visit(
                        node.body, loops, (*guards, yes), (*now, 0), allocations, lets
                    )
                    yield from self._visit(
                        node.orelse, loops, (*guards, no), (*now, 1), allocations, lets
                    )
                    continue
                case kir.Allocate():
                    allocations[node.storage] = site
                case kir.Let():
                    lets[node.var] = site
            yield site

    def buffers(self) -> Iterator[Buffer]:
        """Yield every buffer once, parameters first."""
        found = dict.fromkeys(p.buffer for p in self.program.params if p.buffer is not None)
        for site in self.sites:
            if isinstance(site.node, kir.Allocate):
                found[site.node.storage] = None
        yield from found

    def missing(self, access: Access) -> bool:
        """Whether the buffer of an access is not in scope."""
        buffer = access.buffer
        return buffer not in self.params and buffer not in access.moment.allocations

    def lifetime(self, access: Access) -> Site | None:
        """Return the site that made the buffer of an access, None for a parameter."""
        return access.moment.allocations.get(access.buffer)


def is_private(buffer: Buffer) -> bool:
    """Whether each thread has its own copy."""
    return buffer.memory is Memory.LOCAL


def reads_memory(node: Expr) -> bool:
    """Whether an expression loads."""
    return any(isinstance(n, Load) for n in walk(node))


def terms(condition: Expr) -> list[Expr]:
    """Return the terms of a conjunction."""
    if isinstance(condition, Op) and condition.op == "and":
        return [*terms(condition.args[0]), *terms(condition.args[1])]
    return [condition]
