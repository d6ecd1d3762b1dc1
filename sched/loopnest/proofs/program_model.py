"""A program as the checkers see it: statements with their loops, tests, times and scopes.

A statement that stands at two places (both bodies of an unswitched loop) is two `Site`s. The time
of a site is a vector: its place in the outermost body, then for each loop the index and the place
inside, so that lexicographic order is the order of the program within a thread; loops bound to
launch dimensions add no index, their threads run side by side.

Where accesses of different threads to one element are ordered by barriers, the order of these
vectors agrees with that order: a barrier is reached by all its threads in the same iterations, so
what comes before it in one thread has a lesser time than what comes after it in another. Values
may therefore be followed on these times, once it is shown that there are no races.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import TypeAlias

from loopnest import kir
from loopnest.kir.shared_memory import shared_places
from loopnest.scalar.enums import LAUNCH_DIMENSIONS, Memory, ParallelType
from loopnest.scalar.expr import (
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    ScalarParam,
    Symbol,
    substitute,
    walk,
)
from loopnest.scalar.facts import Facts
from loopnest.scalar.simplify import Simplifier

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
        names: the scalar temporaries in scope, with what defined them.
        within: the collective in whose body it stands.
        issue: what begins it, of a copy that lands later.
    """

    node: kir.Stmt
    loops: tuple[kir.Loop, ...]
    guards: Guards
    time: tuple[int | Index, ...]
    allocations: Mapping[Buffer, Site]
    names: Mapping[Local, Site]
    within: Site | None = None
    issue: kir.Issue | None = None

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
        atomic: whether it is a part of an atomic store: others of these may come at any time.
    """

    site: Site
    moment: Site
    buffer: Buffer
    index: tuple[Expr, ...]
    flat: bool
    writes: bool
    guards: Guards = ()
    atomic: bool = False

    def __str__(self) -> str:
        inner = ", ".join([str(i) for i in self.index])
        return f"{self.buffer.name}{'.flat' if self.flat else ''}[{inner}]"


@dataclass(frozen=True, slots=True)
class _ModelScope:
    """What surrounds a body."""

    loops: tuple[kir.Loop, ...] = ()
    guards: Guards = ()
    time: tuple[int | Index, ...] = ()
    within: Site | None = None
    issue: kir.Issue | None = None


class Model:
    """The sites of a program.

    Args:
        program: the program.

    Attributes:
        sites: in program order, without loops, and without tests that load nothing.
        accesses: every element that a site loads or stores, as it stands there.
        syncs: the sites of barriers, shuffles and arrivals.
        commits, waits: the sites that close groups of copies, and that wait for them.
        arrivals: the sites of arrivals by the flag that they set.
        names: what defined each name, wherever it stands.
        counters: the buffers at which blocks arrive.
        undefined: uses of names that are not defined there.
    """

    def __init__(self, program: kir.Program) -> None:
        self.program = program
        self.undefined: list[tuple[kir.Stmt, Local]] = []
        self.sites = list(self._visit(program.body, _ModelScope(), {}, {}))
        self.stores = [s for s in self.sites if isinstance(s.node, kir.Store)]
        self.tests = [s for s in self.sites if isinstance(s.node, kir.If)]
        self.collectives = [s for s in self.sites if isinstance(s.node, kir.Collective)]
        self.syncs = [s for s in self.sites if kir.is_sync(s.node)]
        self.commits = [s for s in self.sites if isinstance(s.node, kir.Commit)]
        self.waits = [s for s in self.sites if isinstance(s.node, kir.Wait)]
        self.arrivals = {s.node.var: s for s in self.sites if isinstance(s.node, kir.Arrive)}
        self.names = {n: s for s in self.sites if (n := kir.defined(s.node)) is not None}
        self.counters = {
            s.node.own.buffer for s in self.arrivals.values() if s.node.own is not None
        }
        self.params = {p.buffer for p in program.params if p.buffer is not None}
        self._accesses = {s: tuple(_accesses(s)) for s in self.sites}
        self.accesses = [a for found in self._accesses.values() for a in found]
        self._accesses_to: dict[Buffer, list[tuple[int, Access]]] = {}
        for place, access in enumerate(self.accesses):
            self._accesses_to.setdefault(access.buffer, []).append((place, access))
        self.shared_space = _spaces(list(self.buffers()))

    @cached_property
    def algebra(self) -> Simplifier:
        """The simplifier that knows what is assumed of sizes."""
        return Simplifier(Facts.of([test for _, test in self.program.assumed]))

    @cached_property
    def declared_bytes(self) -> dict[Buffer, Expr]:
        """What texts declare for each SHARED buffer: the bytes of the place that it lies in."""
        return {b: place.bytes for place in shared_places(self.program) for b in place.buffers}

    def _visit(
        self,
        body: tuple[kir.Stmt, ...],
        scope: _ModelScope,
        allocations: Mapping[Buffer, Site],
        names: dict[Local, Site],
    ) -> Iterator[Site]:
        """Yield the sites of `body`; names that it defines are put into `names`."""
        made = dict(allocations)
        for place, node in enumerate(body):
            now = (*scope.time, place)
            self.undefined += [(node, name) for name in _names(node) if name not in names]
            if isinstance(node, (kir.Loop, kir.If)):
                yield from self._nested(node, scope, now, made, names)
                continue
            if isinstance(node, kir.Collective):
                yield from self._collective(node, scope, now, made, names)
                continue
            if isinstance(node, kir.Issue):
                inner = replace(scope, time=now, issue=node)
                yield from self._visit(node.body, inner, made, names)
                continue
            site = Site(
                node, scope.loops, scope.guards, now, dict(made), dict(names), scope.within,
                scope.issue,
            )  # fmt: skip
            if node.encloses:
                raise kir.one_launch(node)
            made.update(dict.fromkeys(kir.allocated((node,)), site))
            if (name := kir.defined(node)) is not None:
                names[name] = site
            yield site

    def _nested(
        self,
        node: kir.Loop | kir.If,
        scope: _ModelScope,
        now: tuple[int | Index, ...],
        made: Mapping[Buffer, Site],
        names: dict[Local, Site],
    ) -> Iterator[Site]:
        if isinstance(node, kir.Loop):
            inside = now if node.parallel.is_thread else (*now, node.var)
            inner = replace(scope, loops=(*scope.loops, node), time=inside)
            yield from self._visit(node.body, inner, made, dict(names))
            return
        if reads_memory(node.condition):
            yield Site(
                node, scope.loops, scope.guards, (*now, 0), dict(made), dict(names), scope.within
            )
        # The test comes before both of its branches.
        for number, (body, wanted) in enumerate(((node.body, True), (node.orelse, False)), 1):
            guards = (*scope.guards, (node.condition, wanted))
            inner = replace(scope, guards=guards, time=(*now, number))
            yield from self._visit(body, inner, made, dict(names))

    def _collective(
        self,
        node: kir.Collective,
        scope: _ModelScope,
        now: tuple[int | Index, ...],
        made: Mapping[Buffer, Site],
        names: dict[Local, Site],
    ) -> Iterator[Site]:
        """Yield the declaration, then the body, which comes after it in time."""
        site = Site(
            node, scope.loops, scope.guards, (*now, 0), dict(made), dict(names), scope.within
        )
        yield site
        inner = _ModelScope(scope.loops, scope.guards, (*now, 1), scope.within or site)
        yield from self._visit(node.body, inner, made, names)
        names.update(dict.fromkeys(node.results, site))

    def kept_by_last_blocks(self) -> Iterator[Buffer]:
        """Yield memory of a block that keeps what it stored as the last one to arrive.

        In the next iteration of a loop around the arrival the last one may be another block.
        """
        for site in self.sites:
            if not isinstance(site.node, kir.Store) or site.node.storage.memory is Memory.GLOBAL:
                continue
            made = site.allocations.get(site.node.storage)
            for flag in self.flags(site.guards):
                if made is None or not set(self.arrivals[flag].serial) <= set(made.loops):
                    yield site.node.storage

    def tests_around(self, site: Site) -> list[Site]:
        """Return the tests around a site that load something, outermost first."""
        return [
            test
            for test in self.tests
            if test.time[:-1] == site.time[: len(test.time) - 1] and test.time < site.time
        ]

    def buffers(self) -> Iterator[Buffer]:
        """Yield every buffer once, parameters first."""
        found = dict.fromkeys(p.buffer for p in self.program.params if p.buffer is not None)
        for site in self.sites:
            if isinstance(site.node, kir.Allocate):
                found[site.node.storage] = None
        yield from found

    def accesses_of(self, site: Site) -> tuple[Access, ...]:
        """Return every element that a site loads or stores."""
        return self._accesses[site]

    def accesses_to(self, buffers: Sequence[Buffer]) -> list[Access]:
        """Return the accesses to some buffers, in program order."""
        found = [pair for b in buffers for pair in self._accesses_to.get(b, ())]
        return [access for _, access in sorted(found, key=itemgetter(0))]

    def missing(self, access: Access) -> bool:
        """Whether the buffer of an access is not in scope."""
        buffer = access.buffer
        return buffer not in self.params and buffer not in access.moment.allocations

    def lifetime(self, access: Access) -> Site | None:
        """Return the site that made the buffer of an access, None for a parameter."""
        return access.moment.allocations.get(access.buffer)

    def aliases(self, buffer: Buffer) -> list[Buffer]:
        """Return the other buffers that share its space."""
        return [b for b in self.shared_space.get(buffer, ()) if b is not buffer]

    def flags(self, guards: Guards) -> list[Local]:
        """Return the flags of arrivals that conditions ask for, those negated too."""
        return [
            node
            for condition, _ in guards
            for node in walk(condition)
            if isinstance(node, Local) and node in self.arrivals
        ]


def _names(node: kir.Stmt) -> Iterator[Local]:
    """Yield the names that a statement itself uses."""
    parts: tuple[Expr, ...] = kir.expressions(node)
    if isinstance(node, kir.Collective):
        parts = node.args
    for part in parts:
        yield from [n for n in walk(part) if isinstance(n, Local)]


def _spaces(buffers: list[Buffer]) -> dict[Buffer, list[Buffer]]:
    """Return for each buffer that shares space all that share it."""
    named = {b.name: b for b in buffers}

    def first(buffer: Buffer) -> Buffer:
        seen = {buffer}
        while buffer.alias_of is not None and buffer.alias_of in named:
            buffer = named[buffer.alias_of]
            if buffer in seen:
                break
            seen.add(buffer)
        return buffer

    groups: dict[Buffer, list[Buffer]] = {}
    for buffer in buffers:
        groups.setdefault(first(buffer), []).append(buffer)
    return {b: group for group in groups.values() if len(group) > 1 for b in group}


def _accesses(site: Site) -> Iterator[Access]:
    """Yield what a statement itself loads, then what it stores."""
    node = site.node
    found: dict[tuple[Expr, Guards], None] = {}
    for part in kir.expressions(node):
        _loads(part, (), found)
    atomic = isinstance(node, kir.Store) and node.atomic
    own = node.own if atomic else None
    for load, guards in found:
        assert isinstance(load, Load)
        yield Access(
            site, site, load.buffer, load.args, load.flat, False, guards, load is own
        )  # fmt: skip
    if (written := node.own) is not None:
        yield Access(site, site, written.buffer, written.args, written.flat, True, (), atomic)


def _loads(node: Expr, guards: Guards, found: dict[tuple[Expr, Guards], None]) -> None:
    stack, seen = [(node, guards)], set()
    while stack:
        node, guards = stack.pop()
        if (node, guards) in seen:
            continue
        seen.add((node, guards))
        if isinstance(node, Load):
            found[node, guards] = None
        stack += [(a, guarded(node, n, guards)) for n, a in enumerate(node.args)]


def guarded(node: Expr, number: int, guards: Guards) -> Guards:
    """Return the conditions under which operand `number` of an operation is evaluated."""
    if not isinstance(node, Op) or number == 0 or not is_decidable(node.args[0]):
        return guards
    if node.op == "where":
        return (*guards, (node.args[0], number == 1))
    if node.op in ("and", "or"):
        return (*guards, (node.args[0], node.op == "and"))
    return guards


def is_decidable(condition: Expr) -> bool:
    """Whether a condition is one of indices and sizes alone."""
    for node in walk(condition):
        if not (node.dtype.kind == "x" or node.dtype.is_bool):
            return False
        if isinstance(node, (Load, Local, ScalarParam)):
            return False
    return True


def is_private(buffer: Buffer) -> bool:
    """Whether each thread has its own copy."""
    return buffer.memory is Memory.LOCAL


def strided(program: kir.Program) -> set[Buffer]:
    """Return the arrays of the caller that were declared with strides."""
    params = [p for p in program.params if p.kind == "input" and p.strides is not None]
    return {p.buffer for p in params if p.buffer is not None}


def is_callers(buffer: Buffer) -> bool:
    """Whether it is an array of the caller: the place of each element is given, as in an output.

    Elsewhere a tensor may lie as it likes, as long as what is read is what was stored.
    """
    return buffer.memory is Memory.GLOBAL and buffer.kind in ("input", "output")


def reads_memory(node: Expr) -> bool:
    """Whether an expression loads."""
    return any(isinstance(n, Load) for n in walk(node))


def data_values(index: Sequence[Expr]) -> tuple[Load, ...]:
    """Return the loads that an index is computed from, each once, in order of appearance.

    What these loads are at themselves is no part of the index.
    """
    found: dict[Load, None] = {}
    stack = list(reversed(index))
    while stack:
        node = stack.pop()
        if isinstance(node, Load):
            found[node] = None
        else:
            stack.extend(reversed(node.args))
    return tuple(found)


def terms(condition: Expr) -> list[Expr]:
    """Return the terms of a conjunction."""
    if isinstance(condition, Op) and condition.op == "and":
        return [*terms(condition.args[0]), *terms(condition.args[1])]
    return [condition]


def launch_dimensions(site: Site, node: Expr) -> set[ParallelType]:
    """Return the launch dimensions that an expression at a site depends on."""
    bound = {loop.var: loop.parallel for loop in site.loops if loop.parallel.is_thread}
    result: set[ParallelType] = set()
    for part in walk(node):
        if isinstance(part, LaunchIndex):
            result.add(part.dimension)
        elif isinstance(part, Index) and part in bound:
            result.add(bound[part])
        elif isinstance(part, Local) and part in site.names:
            made = site.names[part]
            for inner in kir.expressions(made.node):
                result |= launch_dimensions(made, inner)
    return result & set(LAUNCH_DIMENSIONS)


def multiples(program: kir.Program) -> dict[str, int]:
    """Return what sizes are assumed, or required by vectors, to be multiples of."""
    found: dict[str, int] = {}
    same = equal_sizes(program)
    for _, condition in (*program.conditions, *program.requires):
        match condition:
            case Op(
                op="eq", args=(Op(op="mod", args=(Symbol() as s, Const() as by)), Const(value=0))
            ):
                other = same.get(s.name, s)
                name = other.name if isinstance(other, Symbol) else s.name
                found[name] = math.lcm(found.get(name, 1), int(by.value))
    return found


def equal_sizes(program: kir.Program) -> dict[str, Expr]:
    """Return the sizes that are assumed to be another one, or sums and products of others."""
    found: dict[Expr, Expr] = {}
    for _, condition in program.conditions:
        match condition:
            case Op(op="eq", args=(one, other)):
                solved = _solved(substitute(one, found), substitute(other, found))
                if solved is not None:
                    size, value = solved
                    found = {s: substitute(v, {size: value}) for s, v in found.items()}
                    found[size] = value
    return {size.name: value for size, value in found.items() if isinstance(size, Symbol)}


def _solved(one: Expr, other: Expr) -> tuple[Expr, Expr] | None:
    """Return a size and the sum of others that it equals, by an equation; None for other equations.

    N == M - K gives M and N + K.
    """
    for size, value in ((other, one), (one, other)):
        if isinstance(size, Symbol) and _is_sum(value) and size not in walk(value):
            return size, value
    algebra = Simplifier()
    difference = algebra.combine(algebra.poly(one), algebra.poly(other), -1)
    for term, count in difference.items():
        rest = {key: -count * times for key, times in difference.items() if key != term}
        alone = not any(atom in term for key in rest for atom in key)
        if len(term) == 1 and abs(count) == 1 and alone and all(n > 0 for n in rest.values()):
            value = algebra.expression(rest)
            if isinstance(term[0], Symbol) and _is_sum(value):
                return term[0], value
    return None


def _is_sum(value: Expr) -> bool:
    """Whether a size is made of sizes by sums and products, nowhere negative; no number."""
    return not isinstance(value, Const) and all(
        isinstance(node, Symbol)
        or (isinstance(node, Const) and node.value >= 0)
        or (isinstance(node, Op) and node.op in ("add", "mul"))
        for node in walk(value)
    )
