"""Pass "barriers": order the accesses of different threads to memory that they share.

Requires guarded statements. Ensures that between two accesses of different threads to one element,
one of them a store, stands a barrier of a scope that holds both threads; barriers stand outside of
every predicate, and loops bound to threads that hold one run over the whole launch, their
statements under a test instead (rules 39 and 40). It comes before predicates, which must not be
lifted over a barrier, and after indexing, whose indices tell which threads meet.

A barrier is placed as late as possible, in front of the first access that needs it: it serves
everything before it. One in front of a loop is left out where a barrier in each iteration can do
its work, in front of the first access in the loop that needs either. A serial loop whose end
conflicts with its beginning gets one at its end.

Before: ``for i0: { for i1 (block_x): T2[i1] = x; for i2 (block_x): y = T2[31 - i2] }``; after::

    for i0: { for i1: T2[i1] = x; barrier; for i2: y = T2[31 - i2]; barrier }

A barrier in a loop is reached by every execution only if the loop runs at least once. Two accesses
in loops that run, and the launch itself, tell which sizes are not 0; a loop of such a size, between
the two, reaches its barriers too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias, assert_never

from loopnest.base.fast_init import fast_init
from loopnest.kir import (
    Allocate,
    Arrive,
    Barrier,
    Collective,
    Commit,
    Store,
    Wait,
    expressions,
    is_unconditional,
    map_expressions,
)
from loopnest.lowering.barriers.thread_dependence import Arrival, BufferAccess, Dependence, Scope
from loopnest.lowering.indexing.redundant_writes import is_repeated
from loopnest.lowering.loops.guarded_tree import (
    Guarded,
    PredicateTerm,
    Simple,
    Tree,
    TreeItem,
    guarded,
    guarded_items,
    items_of,
)
from loopnest.lowering.loops.loop_plan import LoopPlan
from loopnest.lowering.loops.phase_nest import Compute
from loopnest.scalar.access_bounds import without_remainders
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Op,
    Symbol,
    loads,
    substitute,
)
from loopnest.scalar.launch_bounds import LaunchBounds, implied
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.overlapping_tiles import overlaps

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


_WIDEST = {Memory.WARP: Scope.warp, Memory.SHARED: Scope.block, Memory.GLOBAL: Scope.grid}
"""By memory the scope of a barrier that all threads pass which may meet there."""


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class _Entry:
    """An access and the barriers between it and the edge of the body that is looked at.

    `arrived` gives the arrivals in between: the flag, and the grid dimensions that they order.
    """

    access: BufferAccess
    passed: Sure = field(default_factory=dict)
    arrived: Mapping[Expr, frozenset[ParallelType]] = field(default_factory=dict)

    def behind(self, sure: Sure) -> _Entry:
        more = both(self.passed, sure)
        return self if more == self.passed else replace(self, passed=more)

    @property
    def is_over(self) -> bool:
        """Whether barriers that are always reached part it from all that is beyond."""
        # Threads of one block alone meet in SHARED memory; an element of GLOBAL memory may be met
        # by another block, which a barrier of the block does not stop.
        scope = self.passed.get(NO_SIZES, Scope.NONE)
        return scope >= _WIDEST[self.access.buffer.memory]


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class _Summary:
    """A part of the nest: entries as seen from its start and from its end, and its barriers."""

    head: list[_Entry]
    tail: list[_Entry]
    sure: Sure = field(default_factory=dict)


def insert_barriers(
    tree: Tree, plan: LoopPlan, arrivals: Mapping[Expr, frozenset[ParallelType]]
) -> Tree:
    """Return `tree` with barriers, and with the loops around them widened to the launch.

    Args:
        tree: the nest with guarded statements.
        plan: the loops.
        arrivals: by flag: the grid dimensions whose blocks have all arrived where it is true.
    """
    # One thread runs it all, in the order of the text; cores of a parallel loop meet at its end.
    if not plan.launch:
        return tree
    shared = _shared(tree)
    if not shared and not _holds_sync(tree):
        return tree
    placer = _Placer(plan, arrivals, shared)
    body, _ = placer.sequence(tree.body, frozenset())
    return _with_body(tree, _widened(body, plan))


def _with_body(tree: Tree, body: tuple[TreeItem, ...]) -> Tree:
    """Return a tree with other items; itself where they are the same."""
    if len(body) == len(tree.body) and all(a is b for a, b in zip(body, tree.body, strict=True)):
        return tree
    return Tree(tree.var, tree.spec, body, tree.header)


def _shared(tree: Tree) -> frozenset[Buffer]:
    """Return the buffers by which values cross threads: SHARED, and GLOBAL ones read again."""
    stored: set[Buffer] = set()
    loaded: set[Buffer] = set()
    for item in guarded_items(tree):
        loaded.update(load.buffer for load in _tested(item))
        for statement in item.statements:
            if isinstance(statement, Store):
                stored.add(statement.storage)
            for value in expressions(statement):
                loaded.update(load.buffer for load in loads(value))
    return frozenset(
        b
        for b in stored
        if b.memory in (Memory.SHARED, Memory.WARP) or (b.memory is Memory.GLOBAL and b in loaded)
    )


def _tested(item: Guarded) -> Iterator[Load]:
    """Yield what the tests of statements load."""
    for term in item.terms:
        yield from loads(term.condition)


class _Placer:
    def __init__(
        self,
        plan: LoopPlan,
        arrivals: Mapping[Expr, frozenset[ParallelType]],
        shared: frozenset[Buffer],
    ) -> None:
        self.plan, self.arrivals, self.shared = plan, arrivals, shared
        self.dependence = Dependence(plan.launch, plan.algebra)
        self.threads: dict[Expr, Expr] = {}
        self.around: list[Expr] = []
        self.twice: dict[Expr, Dependence] = {}
        self.summaries: dict[tuple[Guarded, frozenset[Index]], _Summary] = {}
        self.private: dict[Tree, bool] = {}

    @cached_property
    def repeated(self) -> frozenset[str]:
        """The names of tensors whose elements loops of one thread store again."""
        again = [unit for unit in self.plan.forest.units if is_repeated(self.plan, unit)]
        return frozenset([twin.name for unit in again for twin in unit.siblings])

    @cached_property
    def tiled(self) -> frozenset[str]:
        """The names of SHARED tensors whose tiles overlap: several threads may store an element."""
        names = [t.name for unit in self.plan.forest.units for t in unit.siblings
                 if t.memory is Memory.SHARED and overlaps(t.domain.history)]  # fmt: skip
        return frozenset(names)

    def sequence(
        self, items: Iterable[TreeItem], common: frozenset[Index], outside: Sequence[_Entry] = ()
    ) -> tuple[tuple[TreeItem, ...], _Summary]:
        """Return the items of one body with barriers between them.

        Those of a loop may be asked to serve accesses `outside` too, in front of the loop.
        """
        result: list[TreeItem] = []
        head: list[_Entry] = []
        pending: list[_Entry] = []
        sure: Sure = {}
        for item in items:
            # Invariant: `pending` holds the accesses made so far, each with the barriers that every
            # execution has passed since; two accesses are compared when the later one turns up.
            before = [*(e.behind(sure) for e in outside), *pending]
            made, part = self.item(item, common)
            need, reason = self._needed(before, part.head, common)
            loop = isinstance(item, Tree) and item.var is not None and item.spec is not None
            if need and loop and any(_scopes(made)):
                assert isinstance(item, Tree)
                # Try to serve what comes before the loop by a barrier inside it, which is there
                # anyway: taken if nothing is left over and no barrier is added or widened.
                again, inside = self._loop(item, common, before)
                served = not self._needed(before, inside.head, common)[0]
                if served and _no_more(again, made):
                    made, part, need = again, inside, Scope.NONE
            if need:
                result.append(Barrier(need.name, reason))
                sure = both(sure, always(need))
                pending = [e.behind(always(need)) for e in pending]
            result.append(made)
            head += [e for e in [e.behind(sure) for e in part.head] if not e.is_over]
            sure = both(sure, part.sure)
            pending = [*self._past(item, pending, part.sure), *part.tail]
        return tuple(result), _Summary(head, pending, sure)

    def _past(self, item: TreeItem, pending: list[_Entry], sure: Sure) -> list[_Entry]:
        passed = [e.behind(sure) for e in pending]
        if isinstance(item, Guarded):
            for node in item.statements:
                if isinstance(node, Arrive):
                    more: dict[Expr, frozenset[ParallelType]] = {node.var: self.arrivals[node.var]}
                    passed = [replace(e, arrived={**e.arrived, **more}) for e in passed]
        return [e for e in passed if not e.is_over]

    def item(self, item: TreeItem, common: frozenset[Index]) -> tuple[TreeItem, _Summary]:
        """Return one item with barriers inside, and what it does."""
        match item:
            case Tree() if item.var is None:
                body, summary = self.sequence(item.body, common)
                return _with_body(item, body), summary
            case Tree() if self._is_private(item):
                return item, _Summary([], [])
            case Tree():
                return self._loop(item, common)
            case Guarded():
                # A loop is looked at again where a barrier inside may serve what comes before it.
                found = self.summaries.get((item, common))
                if found is None:
                    found = self.summaries[item, common] = self._guarded(item, common)
                return item, found
            case Barrier():
                return item, _Summary([], [], always(Scope[item.scope]))
            case Compute() | Allocate():
                return item, _Summary([], [])
            case _:
                assert_never(item)

    def _is_private(self, tree: Tree) -> bool:
        """Whether the threads that run a tree have nothing in common in it."""
        found = self.private.get(tree)
        if found is None:
            found = self.private[tree] = all(
                self._is_private(item) if isinstance(item, Tree) else self._is_alone(item)
                for item in tree.body
            )
        return found

    def _is_alone(self, item: TreeItem) -> bool:
        if isinstance(item, Guarded):
            tested = any(load.buffer in self.shared for load in _tested(item))
            made = any(is_unconditional(node) or self._shares(node) for node in item.statements)
            return not (tested or made)
        return not isinstance(item, Barrier)

    def _shares(self, node: Simple) -> bool:
        stores = isinstance(node, Store) and node.storage in self.shared
        return stores or any(
            load.buffer in self.shared for value in expressions(node) for load in loads(value)
        )

    def _loop(
        self, tree: Tree, common: frozenset[Index], outside: Sequence[_Entry] = ()
    ) -> tuple[TreeItem, _Summary]:
        assert tree.var is not None
        assert tree.spec is not None
        self.around.append(tree.spec.extent)
        if tree.spec.parallel.is_thread:
            self.threads[tree.var] = LaunchIndex(tree.spec.parallel)
            body, summary = self.sequence(tree.body, common, outside)
            self.around.pop()
            return _with_body(tree, body), _in_tile(summary) if tree.spec.tile else summary
        choices = [
            self._iterated(tree, body, common, outside) for body in _with_early_barriers(tree.body)
        ]
        made, summary = min(choices, key=lambda found: sorted(_scopes(found[0]), reverse=True))
        self.around.pop()
        # What the body is sure of holds behind the loop only where the loop runs at least once.
        sure = {sizes | {tree.spec.extent}: scope for sizes, scope in summary.sure.items()}
        return made, _Summary(summary.head, summary.tail, sure)

    def _iterated(
        self,
        tree: Tree,
        items: tuple[TreeItem, ...],
        common: frozenset[Index],
        outside: Sequence[_Entry],
    ) -> tuple[Tree, _Summary]:
        """Return a serial loop over some items, with barriers, and what an iteration does."""
        assert tree.var is not None
        body, summary = self.sequence(items, common | {tree.var}, outside)
        # Between iterations: the accesses of the end against those of the beginning, whose loop
        # index has another value. Barriers that every iteration passes count.
        need, reason = self._needed(
            summary.tail, summary.head, common, tree.var, every=summary.sure
        )
        if need:
            body = (*body, Barrier(need.name, reason))
            tail = [e.behind(always(need)) for e in summary.tail]
            summary = _Summary(summary.head, tail, both(summary.sure, always(need)))
        return _with_body(tree, body), summary

    def _needed(
        self,
        before: list[_Entry],
        after: list[_Entry],
        common: frozenset[Index],
        wrapped: Index | None = None,
        every: Sure | None = None,
    ) -> tuple[Scope, str]:
        """Return the barrier that entries need, and why.

        With `wrapped`, `after` are those of later iterations; `every` iteration has that barrier.
        """
        need, reason = Scope.NONE, ""
        twice = wrapped.extent if wrapped is not None else None
        dependence = self._where_twice(twice)
        limits = dependence.limits
        for b in after:
            for a in before:
                if a.access.atomic and b.access.atomic:
                    continue
                loops = a.access.loops | b.access.loops
                level = widest(limits, both(a.passed, b.passed), loops, twice)
                # All that SHARED memory can ask for: who meets there is in one block.
                if level >= Scope.block and not _is_global(a, b):
                    continue
                scope, apart = dependence.scope(a.access, b.access, common, wrapped)
                # A barrier in every iteration separates accesses that are two iterations or more
                # apart; only those of neighbouring iterations may still meet.
                each = widest(limits, every or {}, loops, twice) if scope else Scope.NONE
                if wrapped is not None and Scope.NONE < scope <= each:
                    scope, apart = dependence.scope(
                        a.access, b.access, common, wrapped, adjacent=True
                    )
                # What was passed orders this pair too if it is as wide; and one barrier stands here
                # in the end, as wide as the widest pair asks for.
                if scope <= max(level, need) or _arrived(a, b, apart):
                    continue
                need, reason = scope, _reason(a.access, b.access)
        return need, reason

    def _where_twice(self, extent: Expr | None) -> Dependence:
        """Return the test for sizes at which a loop of this extent runs twice.

        One over ``ceildiv(3, N)`` does where N is at most 2.
        """
        if not isinstance(extent, Op) or extent.op != "ceildiv":
            return self.dependence
        whole, by = extent.args
        if not isinstance(whole, Const) or not isinstance(by, Symbol):
            return self.dependence
        found = self.twice.get(extent)
        if found is None:
            facts = self.plan.algebra.facts.with_upper(by, int(whole.value) - 1)
            algebra = Simplifier(facts)
            algebra.launch = self.plan.launch
            found = self.twice[extent] = Dependence(self.plan.launch, algebra)
            found.arrivals = self.dependence.arrivals
        return found

    def _guarded(self, item: Guarded, common: frozenset[Index]) -> _Summary:
        entries: list[_Entry] = []
        conditions = tuple([substitute(t.condition, self.threads) for t in item.terms])
        sure: Sure = {}
        whose = next((s.tensor for s in item.statements if isinstance(s, Store)), "")
        for load in _tested(item):
            if load.buffer in self.shared:
                entries.append(self._entry(load, conditions, whose))
        for node in item.statements:
            if isinstance(node, Arrive):
                arrival = Arrival(self.arrivals[node.var], common)
                self.dependence.arrivals[node.var] = arrival
                # An arrival orders as a barrier of the block (`kir`); under a test not every
                # execution comes to it.
                sure = sure if item.terms else always(Scope.block)
            whose = node.tensor if isinstance(node, Store) else ""
            own = node.own if isinstance(node, Store) and node.atomic else None
            for value in expressions(node):
                for load in loads(value):
                    if load.buffer in self.shared and load is not own:
                        entries.append(self._entry(load, conditions, whose))
            if isinstance(node, Store) and node.storage in self.shared:
                entries.append(self._entry(node, conditions, whose))
        return _Summary(entries, entries, sure)

    def _entry(self, node: Load | Store, conditions: tuple[Expr, ...], whose: str) -> _Entry:
        place = node.args if isinstance(node, Load) else node.index
        known = [substitute(i, self.threads) for i in place]
        index = tuple([without_remainders(i, conditions, self.plan.algebra) for i in known])
        around = frozenset(self.around)
        if isinstance(node, Load):
            return _Entry(BufferAccess(node.buffer, index, False, conditions, whose, False, around))
        injective = node.role != "partial" and not node.atomic and node.tensor not in self.tiled
        again = node.storage.memory is Memory.GLOBAL and node.tensor in self.repeated
        return _Entry(
            BufferAccess(
                node.storage, index, True, conditions, whose, injective, around,
                again or node.atomic, node.atomic,
            )
        )  # fmt: skip


def _with_early_barriers(body: tuple[TreeItem, ...]) -> Iterator[tuple[TreeItem, ...]]:
    """Yield a body as it is, then with a barrier of each scope behind its Waits.

    One that stands there orders the copies that landed before those who read them, and those who
    read the stage before the copies that are issued to it next: placed late it takes two barriers.
    """
    yield body
    if not any(_is_wait(item) for item in body):
        return
    for scope in (Scope.warp, Scope.block):
        barrier = Barrier(scope.name, "copies have landed, and their next target is read no more")
        yield tuple([i for item in body for i in ((item, barrier) if _is_wait(item) else (item,))])


def _is_wait(item: TreeItem) -> bool:
    return isinstance(item, Tree) and isinstance(item.header, Wait)


def _in_tile(summary: _Summary) -> _Summary:
    """Return what a tile does: a barrier of the warp stands at its two ends."""
    edge = always(Scope.warp)
    head, tail = [[e.behind(edge) for e in part] for part in (summary.head, summary.tail)]
    return _Summary(head, tail, both(summary.sure, edge))


def _no_more(made: TreeItem, than: TreeItem) -> bool:
    """Whether an item has no more barriers than another one, and none of a wider scope instead."""
    mine, theirs = sorted(_scopes(made), reverse=True), sorted(_scopes(than), reverse=True)
    narrow = all(a <= b for a, b in zip(mine, theirs, strict=False))
    return len(mine) <= len(theirs) and narrow


def _scopes(item: TreeItem) -> Iterator[Scope]:
    """Yield the scopes of the barriers that an item holds."""
    parts = (item, *items_of(item)) if isinstance(item, Tree) else (item,)
    return (Scope[part.scope] for part in parts if isinstance(part, Barrier))


def _is_global(a: _Entry, b: _Entry) -> bool:
    return a.access.buffer.memory is Memory.GLOBAL and a.access.buffer is b.access.buffer


def _arrived(a: _Entry, b: _Entry, apart: frozenset[ParallelType]) -> bool:
    """Whether `b` runs only in blocks that saw the blocks of `a` arrive."""
    grid = {d for d in apart if d.is_grid}
    return bool(grid) and any(
        flag in b.access.conditions and grid <= dims for flag, dims in a.arrived.items()
    )


def _reason(a: BufferAccess, b: BufferAccess) -> str:
    first = "stores" if a.is_store else "reads"
    second = "stores to" if b.is_store else "reads"
    name, whose = a.buffer.name, b.whose or b.buffer.tensor  # an exchange names what it reads
    if a.buffer is not b.buffer:
        return f"{whose} {second} {b.buffer.name}, in the space of {name}"
    earlier = a.whose or a.buffer.tensor
    return f"{whose} {second} {name} after {earlier} {first} it in other threads"


# Loops around what threads do together


def _widened(body: tuple[TreeItem, ...], plan: LoopPlan) -> tuple[TreeItem, ...]:
    return tuple([_widen(item, plan) if isinstance(item, Tree) else item for item in body])


def _widen(tree: Tree, plan: LoopPlan) -> Tree:
    """Make a loop bound to threads that holds a barrier run over the whole launch."""
    if not _holds_sync(tree):
        return tree
    tree = _with_body(tree, _widened(tree.body, plan))
    if tree.var is None or tree.spec is None:
        return tree
    if tree.spec.parallel is ParallelType.cpu_parallel:
        # Threads that meet in it go through its iterations together.
        return replace(tree, spec=replace(tree.spec, parallel=ParallelType.serial))
    if not tree.spec.parallel.is_thread:
        return tree
    extent = plan.launch[tree.spec.parallel]
    if plan.algebra.equal(extent, tree.spec.extent):
        return tree
    var = Index(tree.var.name, extent)
    test = plan.algebra.lt(var, tree.spec.extent)
    term = PredicateTerm(test, f"the launch has {extent} along {tree.spec.parallel.value}")
    body = tuple([_guard(item, {tree.var: var}, term) for item in tree.body])
    return Tree(var, replace(tree.spec, extent=extent), body)


def _holds_sync(tree: Tree) -> bool:
    return any(
        isinstance(item, Barrier)
        or _is_wait(item)
        or (isinstance(item, Guarded) and any(is_unconditional(s) for s in item.statements))
        for item in items_of(tree)
    )


def _guard(item: TreeItem, renamed: Mapping[Expr, Expr], term: PredicateTerm | None) -> TreeItem:
    """Return `item` with another index, its statements under `term` too."""

    def rename(value: Expr) -> Expr:
        return substitute(value, renamed)

    match item:
        case Tree():
            # A collective is for all threads; those outside hold the identity.
            header = item.header
            inner = None if isinstance(header, Collective) else term
            body = tuple([_guard(i, renamed, inner) for i in item.body])
            made = None if header is None else map_expressions(header, rename)
            return replace(item, body=body, header=made)
        case Guarded():
            free = all(_is_private_start(s) for s in item.statements)
            guard = () if free or term is None else (term,)
            return guarded(item, rename, lambda node: node, guard)
        case Compute() | Allocate() | Barrier():
            return item
        case _:
            assert_never(item)


def _is_private_start(node: Simple) -> bool:
    """Whether every thread may execute `node`: the start of its own accumulator, for example."""
    if isinstance(node, Store):
        return node.role == "init" and node.storage.memory is Memory.LOCAL
    return isinstance(node, (Arrive, Commit))
