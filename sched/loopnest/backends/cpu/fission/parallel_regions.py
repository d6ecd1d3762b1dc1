"""Parallel regions: a body that several threads run, cut at the places where they meet.

A region is a run of statements that each thread executes on its own, so that a loop over the
threads may go around it. What stands between regions is executed once for all threads: loops and
branches that hold a meeting place, and what is the same in all threads::

    x0 = …                      region 1
    for k in K:                 for k in K, once for all threads:
      s[t] = …            ->      region 2
      barrier                     region 3
      x0 = x0 + s[t + 1]

A branch around a meeting place is taken by all threads or by none (`kir`). Where that does not show
in its condition, each thread evaluates it, and the first one decides; but a branch around meeting
places of a warp only, or around loops that are to stand outside, becomes a test in each region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from loopnest.backends.cpu.fission.loop_interchange import is_formula
from loopnest.backends.cpu.fission.shuffle_loads import is_swap
from loopnest.base.errors import InternalError
from loopnest.kir import Allocate, Arrive, Barrier, If, Let, Loop, Shuffle, Stmt, Until
from loopnest.kir import walk as walk_statements
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import Buffer, Expr, Index, Load, Local, Op, walk


@dataclass(frozen=True, eq=False, slots=True)
class Threads:
    """The threads that loops are put around.

    Args:
        blocks: the indices of their blocks, outermost first; empty where one block is split.
        threads: the indices within a block, outermost first.
        parts: whether a statement itself parts what is before it from what is after it: a meeting
            place, or a loop that is to stand outside the loops over threads.
        around: puts the loops over threads around a region.
    """

    blocks: tuple[Index, ...]
    threads: tuple[Index, ...]
    parts: Callable[[Stmt], bool]
    around: Callable[[tuple[Stmt, ...]], tuple[Stmt, ...]]

    def owns(self, buffer: Buffer) -> bool:
        """Whether there is one `buffer` for each of these threads, or for each of these blocks."""
        if buffer.memory is Memory.LOCAL:
            return True
        return buffer.memory is Memory.SHARED and bool(self.blocks)


@dataclass(eq=False, slots=True)
class Region:
    """Statements that each thread executes on its own, where all `guards` hold."""

    body: list[Stmt]
    guards: tuple[Expr, ...] = ()


@dataclass(eq=False, slots=True)
class Fork:
    """A loop or a branch that all threads take together."""

    node: Loop | If
    branches: tuple[Listing, ...]


Item: TypeAlias = "Region | Fork | Stmt"


@dataclass(eq=False, slots=True)
class Listing:
    """A body, cut: regions, and what stands between them.

    `made` are the buffers of single threads that the body makes.
    """

    items: list[Item] = field(default_factory=list)
    made: list[Buffer] = field(default_factory=list)
    is_open: bool = False

    def region(self, guards: tuple[Expr, ...]) -> Region:
        """Return the region that the next statement belongs to."""
        last = self.items[-1] if self.is_open else None
        if isinstance(last, Region) and last.guards == guards:
            return last
        made = Region([], guards)
        self.items.append(made)
        self.is_open = True
        return made

    def before(self, node: Stmt) -> None:
        """Put a statement of all threads before the region that is open."""
        self.items.insert(len(self.items) - self.is_open, node)

    def close(self, *items: Item) -> None:
        """End the region that is open, and add what follows it."""
        self.is_open = False
        self.items.extend(items)

    def regions(self) -> Iterator[Region]:
        """Yield the regions that stand in this body itself."""
        yield from (item for item in self.items if isinstance(item, Region))

    def walk(self) -> Iterator[Listing]:
        """Yield this body and those nested in it."""
        yield self
        for item in self.items:
            if isinstance(item, Fork):
                for branch in item.branches:
                    yield from branch.walk()


class Cutter:
    """Cuts one body.

    Args:
        threads: who runs it.
        body: the statements.
        fresh: makes a name that no other has, from a stem and a type.
    """

    def __init__(
        self,
        threads: Threads,
        body: tuple[Stmt, ...],
        fresh: Callable[[str, dtypes.DType], Local],
    ) -> None:
        self.threads = threads
        self.fresh = fresh
        self.indices = {*threads.blocks, *threads.threads}
        self.values: dict[Local, Expr | None] = {}
        """The names that threads define, with their values where a `Let` defines them."""
        self.decided: dict[Local, None] = {}
        """Names by which the first thread decides for all."""
        self.offered: dict[Local, None] = {}
        """Names that other threads read, or that are defined for all threads at once."""
        self.uniform: set[Local] = set()
        """Names with one value for all threads, defined between regions."""
        self.own: set[Buffer] = set()
        """Buffers of which each thread has one."""
        self.made: set[Buffer] = set()
        """Those of them that are made between regions, so that several regions may use them."""
        self._parted: dict[Stmt, bool] = {}
        for node, _ in walk_statements(body):
            if isinstance(node, Let):
                self.values[node.var] = node.value
            elif isinstance(node, (Shuffle, Arrive)):
                self.values[node.var] = None
            elif isinstance(node, Allocate) and threads.owns(node.storage):
                self.own.add(node.storage)
        self.listing = self._listing(body, ())

    def is_uniform(self, value: Expr) -> bool:
        """Whether `value` shows that it is the same in all threads."""
        for node in walk(value):
            match node:
                case Index() if node in self.indices:
                    return False
                case Load() if node.buffer in self.own:
                    return False
                case Local() if node in self.values and node not in self.uniform:
                    return False
        return True

    def _listing(self, body: tuple[Stmt, ...], guards: tuple[Expr, ...]) -> Listing:
        found = Listing()
        for node in body:
            self._put(node, found, guards)
        found.close()
        return found

    def _put(self, node: Stmt, found: Listing, guards: tuple[Expr, ...]) -> None:
        match node:
            case Allocate():
                if node.storage in self.own:
                    found.made.append(node.storage)
                    self.made.add(node.storage)
                else:
                    found.before(node)
            case Let() if not guards and self._is_invariant(node.value):
                self.uniform.add(node.var)
                found.before(node)
            case Loop() if self._is_parted(node):
                self._fork_loop(node, found, guards)
            case If() if self._is_parted(node):
                self._fork_if(node, found, guards)
            case Until():
                found.close(replace(node, condition=self._end(node.condition, found, guards)))
            case Barrier() | Shuffle() | Arrive() if self.threads.parts(node):
                self._meet(node, found, guards)
            case _:
                found.region(guards).body.append(node)

    def _is_invariant(self, value: Expr) -> bool:
        # A load may find another value in another region, after a store in between.
        return self.is_uniform(value) and not any(isinstance(n, Load) for n in walk(value))

    def _is_parted(self, node: Stmt) -> bool:
        known = self._parted.get(node)
        if known is None:
            inside = walk_statements((node,))
            known = self._parted[node] = any(self.threads.parts(n) for n, _ in inside)
        return known

    def _meet(
        self, node: Barrier | Shuffle | Arrive, found: Listing, guards: tuple[Expr, ...]
    ) -> None:
        if isinstance(node, Shuffle):
            value = node.value
            if not isinstance(value, Local) or value in self.uniform or value not in self.values:
                value = self._name(node.var.name, node.value, found, guards)
            self.offered[value] = None
            node = replace(node, value=value)
            found.close()
            if is_swap(node, self.threads.threads):
                self.offered[node.var] = None
                found.close(node)
            else:
                found.region(guards).body.append(node)
            return
        found.close()
        if isinstance(node, Arrive):
            if not all(map(self.is_uniform, (*node.index, node.count))):
                reason = "where its blocks arrive differs between threads"
                raise InternalError(node.var.name, reason)
            self.uniform.add(node.var)
            found.close(node)

    def _name(self, stem: str, value: Expr, found: Listing, guards: tuple[Expr, ...]) -> Local:
        var = self.fresh(stem, value.dtype)
        self.values[var] = value
        found.region(guards).body.append(Let(var, value))
        return var

    def _fork_loop(self, node: Loop, found: Listing, guards: tuple[Expr, ...]) -> None:
        # A loop in which threads meet is executed once for all of them.
        if not self.is_uniform(node.var.extent):
            reason = f"its extent {node.var.extent} differs between threads that meet in it"
            raise InternalError(f"loop {node.index}", reason)
        found.close()
        shared = node.parallel is ParallelType.cpu_parallel
        kind = node.parallel if shared else ParallelType.serial
        loop = replace(node, parallel=kind, body=())
        found.close(Fork(loop, (self._listing(node.body, guards),)))

    def _end(self, test: Expr, found: Listing, guards: tuple[Expr, ...]) -> Expr:
        """Return what ends a loop that all threads run together: what the first one finds."""
        if not self.is_uniform(test):
            test = decided = self._name("ended", test, found, guards)
            self.decided[decided] = None
        found.close()
        return test

    def _fork_if(self, node: If, found: Listing, guards: tuple[Expr, ...]) -> None:
        test = node.condition
        if not self.is_uniform(test):
            if not self._is_taken_together(node):
                self._guard(node, found, guards)
                return
            # All threads of the block take the branch or none does (`kir`): what the first one
            # finds holds for all.
            test = decided = self._name("taken", test, found, guards)
            self.decided[decided] = None
        found.close()
        branches = (self._listing(node.body, guards), self._listing(node.orelse, guards))
        found.close(Fork(replace(node, condition=test, body=(), orelse=()), branches))

    def _is_taken_together(self, node: If) -> bool:
        """Whether all threads meet in a branch, not those of a warp only."""
        for inner, _ in walk_statements((node,)):
            wide = isinstance(inner, Arrive) or (
                isinstance(inner, Barrier) and inner.scope != "warp"
            )
            if wide and self.threads.parts(inner):
                return True
        return False

    def _guard(self, node: If, found: Listing, guards: tuple[Expr, ...]) -> None:
        """Put the branches of `node` under tests of their own; a formula is evaluated again."""
        test = node.condition
        if not is_formula(test):
            test = self._name("taken", test, found, guards)
        otherwise = Op("not", (test,), dtypes.bool_)
        for guard, body in ((test, node.body), (otherwise, node.orelse)):
            for inner in body:
                self._put(inner, found, (*guards, guard))
        found.close()
