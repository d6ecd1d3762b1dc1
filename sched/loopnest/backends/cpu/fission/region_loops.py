"""Put thread loops around parallel regions; context arrays keep what lives across regions.

What a single region uses stays a variable of its own; what several use gets an array::

    T2: float32[1] local             T2_slots: float32[32] local
    for k in K:                      for k in K:
      T2[0] = T2[0] + s[k, t]   ->     for t in 32: T2_slots[t] = T2_slots[t] + s[k, t]
      barrier block                    …

A name whose value is index arithmetic is computed again instead. Where a region touches a buffer
many times in loops of its own it works on a copy, which a C compiler can keep in registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

from loopnest.backends.clike.sink_allocations import settle_allocations
from loopnest.backends.cpu.fission.context_arrays import ContextArray, ContextArrays, redirect
from loopnest.backends.cpu.fission.parallel_regions import Cutter, Fork, Listing, Region, Threads
from loopnest.backends.cpu.fission.shuffle_loads import shuffled, swap
from loopnest.kir import (
    Allocate,
    Arrive,
    If,
    Let,
    Loop,
    Shuffle,
    Stmt,
    Store,
    bodies,
    expressions,
    with_bodies,
)
from loopnest.kir import walk as walk_statements
from loopnest.kir.buffers import Buffer
from loopnest.scalar import dtypes
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import ONE, ZERO, Const, Expr, Index, Load, Local, all_of, walk

OFTEN = 4
"""A region works on a copy of a buffer where it touches each element at least so often."""

MOST_COPIED = 1024
"""The largest buffer, in elements, that is copied."""

UNKNOWN_EXTENT = 16
"""What a loop of symbolic extent counts for."""


def spread(body: tuple[Stmt, ...], threads: Threads, maker: ContextArrays) -> tuple[Stmt, ...]:
    """Return `body`, which each of `threads` executes, as loops over them.

    Requires that no two names or buffers in `body` have one name.
    """
    return _Spread(settle_allocations(body), threads, maker).statements()


@dataclass(eq=False, slots=True)
class _Contents:
    """What a region touches: buffers of single threads, and names."""

    buffers: dict[Buffer, None] = field(default_factory=dict)
    used: dict[Local, None] = field(default_factory=dict)
    defined: dict[Local, None] = field(default_factory=dict)


class _Spread:
    def __init__(self, body: tuple[Stmt, ...], threads: Threads, maker: ContextArrays) -> None:
        self.threads, self.maker = threads, maker
        self.cut = Cutter(threads, body, maker.local)
        self.contents: dict[Region, _Contents] = {}
        for listing in self.cut.listing.walk():
            for region in listing.regions():
                self.contents[region] = self._contents(region)
        self.names: dict[Local, ContextArray] = {}
        self.slots: dict[Buffer, ContextArray] = {}
        for var in self._crossing_names():
            self.names[var] = maker.of_name(var, threads.blocks, threads.threads)
        self._keep_buffers()

    def statements(self) -> tuple[Stmt, ...]:
        return tuple(self._listing(self.cut.listing))

    # What crosses

    def _contents(self, region: Region) -> _Contents:
        found = _Contents()
        # What a region makes is its own, though another branch may make it between regions.
        made = self.cut.made.difference(_made_in(region.body))
        for guard in region.guards:
            found.used |= {n: None for n in walk(guard) if isinstance(n, Local)}
        for node, _ in walk_statements(tuple(region.body)):
            values = expressions(node)
            match node:
                case Loop():
                    values = (node.var.extent,)
                case Let() | Arrive():
                    found.defined[node.var] = None
                case Shuffle():
                    found.defined[node.var] = None
                    if self.threads.parts(node):  # what it offers is read where others left it
                        values = (node.offset,)
                case Store() if node.storage in made:
                    found.buffers[node.storage] = None
            for value in values:
                for part in walk(value):
                    if isinstance(part, Load) and part.buffer in made:
                        found.buffers[part.buffer] = None
                    elif isinstance(part, Local):
                        found.used[part] = None
        return found

    def _missing(self, region: Region) -> Iterator[Local]:
        """Yield the names that a region needs from others, those that they stand on first."""
        contents = self.contents[region]
        seen: set[Local] = set()
        for var in contents.used:
            yield from self._with_parts(var, contents, seen)

    def _with_parts(self, var: Local, contents: _Contents, seen: set[Local]) -> Iterator[Local]:
        known = var in contents.defined or var in self.cut.uniform
        if known or var in seen or var not in self.cut.values:
            return
        seen.add(var)
        value = self._formula(var)
        if value is not None:
            for part in walk(value):
                if isinstance(part, Local):
                    yield from self._with_parts(part, contents, seen)
        yield var

    def _formula(self, var: Local) -> Expr | None:
        """Return the value of a name that is better computed again than kept, else None."""
        value = self.cut.values[var]
        # Others read it from its array, which must then be stored.
        if value is None or var in self.cut.offered or var in self.cut.decided:
            return None
        fetched = isinstance(value, Load) and value.buffer in self.maker.fixed
        return value if fetched or all(map(_is_cheap, walk(value))) else None

    def _crossing_names(self) -> dict[Local, None]:
        found = {**self.cut.offered, **self.cut.decided}
        for region in self.contents:
            missing = self._missing(region)
            found |= {var: None for var in missing if self._formula(var) is None}
        return found

    def _keep_buffers(self) -> None:
        """Make slots for each buffer that does not stay within one region of the body it is in."""
        users: dict[Buffer, list[Listing]] = {}
        homes: dict[Buffer, set[Listing]] = {}
        for listing in self.cut.listing.walk():
            for buffer in listing.made:
                homes.setdefault(buffer, set()).add(listing)
            for region in listing.regions():
                for buffer in self.contents[region].buffers:
                    users.setdefault(buffer, []).append(listing)
        blocks, threads = self.threads.blocks, self.threads.threads
        for buffer, places in users.items():
            # One region of the body that makes it: a variable there. Two regions, or one in a body
            # inside, run at different times, between which other threads run.
            if len(set(places)) < len(places) or not set(places) <= homes[buffer]:
                self.slots[buffer] = self.maker.of_buffer(buffer, blocks, threads)

    # Statements

    def _listing(self, listing: Listing) -> list[Stmt]:
        made = {self.slots[b].buffer: None for b in listing.made if b in self.slots}
        for region in listing.regions():
            found = [self.names.get(v) for v in self.contents[region].defined]
            made |= {slots.buffer: None for slots in found if slots is not None}
        swaps = [item for item in listing.items if isinstance(item, Shuffle)]
        made |= {self.names[item.var].buffer: None for item in swaps}
        result: list[Stmt] = [Allocate(buffer) for buffer in made]
        for item in listing.items:
            match item:
                case Region():
                    result += self._region(item, listing)
                case Fork():
                    result.append(self._fork(item))
                case Shuffle(value=Local() as value):
                    ends = self.names[value], self.names[item.var]
                    result.append(swap(item, *ends, self.threads.threads, self.maker))
                case _:
                    result.append(item)
        return result

    def _fork(self, fork: Fork) -> Stmt:
        node = fork.node
        if isinstance(node, If):
            test = node.condition
            if isinstance(test, Local) and test in self.cut.decided:
                test = self.names[test].of_first()
            node = If(test, (), (), node.reason, node.origin)
        return with_bodies(node, tuple([tuple(self._listing(b)) for b in fork.branches]))

    def _region(self, region: Region, listing: Listing) -> tuple[Stmt, ...]:
        contents = self.contents[region]
        private = [b for b in contents.buffers if b in listing.made and b not in self.slots]
        crossing = [b for b in contents.buffers if b in self.slots]
        copied = [b for b in crossing if self._is_copied(b, region.body)]
        direct = {b: self.slots[b] for b in crossing if b not in copied}
        fetched = [self._fetch(var) for var in self._missing(region)]
        used = [n for n in region.body if not self._is_idle(n, contents)]
        body = [node for n in used for node in self._kept(n)]
        body = [
            *[Allocate(b) for b in (*private, *copied)],
            *[node for b in copied for node in self._copies_in(b, region.body)],
            *redirect(tuple(body), direct),
            *[node for b in copied for node in self._copies_out(b, region.body)],
        ]
        if region.guards:
            body = [If(all_of(region.guards), tuple(body))]
        if len(body) == 1:
            body = [_joined(body[0])]
        return self.threads.around((*fetched, *body))

    def _fetch(self, var: Local) -> Let:
        value = self._formula(var)
        return Let(var, self.names[var].element() if value is None else value)

    def _is_idle(self, node: Stmt, contents: _Contents) -> bool:
        """Whether a region names a value for others only, which do not need it."""
        if not isinstance(node, Let):
            return False
        return node.var not in contents.used and node.var not in self.names

    def _kept(self, node: Stmt) -> Iterator[Stmt]:
        """Yield a statement of a region, and the store of what it names for others."""
        if isinstance(node, Shuffle) and self.threads.parts(node):
            assert isinstance(node.value, Local)
            offered = self.names[node.value]
            yield Let(node.var, shuffled(node, offered, self.threads.threads), node.origin)
        else:
            yield node
        if isinstance(node, (Let, Shuffle, Arrive)) and node.var in self.names:
            place = self.names[node.var].element()
            yield _store(place, node.var, node.var.name)

    # Copies

    def _is_copied(self, buffer: Buffer, body: list[Stmt]) -> bool:
        if not isinstance(buffer.size, Const) or not 0 < buffer.size.value <= MOST_COPIED:
            return False
        if any(self.maker.lanes.is_outside(n) for n, _ in walk_statements(tuple(body))):
            return False
        return _touches(buffer, tuple(body)) >= OFTEN * buffer.size.value

    def _copies_in(self, buffer: Buffer, body: list[Stmt]) -> Iterator[Stmt]:
        if buffer.size is ONE and _is_stored_first(buffer, body):
            return
        yield self._copy(buffer, inward=True)

    def _copies_out(self, buffer: Buffer, body: list[Stmt]) -> Iterator[Stmt]:
        stores = (n for n, _ in walk_statements(tuple(body)) if isinstance(n, Store))
        if any(store.storage is buffer for store in stores):
            yield self._copy(buffer, inward=False)

    def _copy(self, buffer: Buffer, *, inward: bool) -> Stmt:
        offset: Expr = ZERO if buffer.size is ONE else self.maker.index("kept", buffer.size)
        own, kept = Load(buffer, (offset,), flat=True), self.slots[buffer].flat(offset)
        to, value = (own, kept) if inward else (kept, own)
        store = _store(to, value, buffer.tensor)
        if not isinstance(offset, Index):
            return store
        return Loop(offset, ParallelType.serial, buffer.tensor, (store,))


def _made_in(body: list[Stmt]) -> list[Buffer]:
    return [n.storage for n, _ in walk_statements(tuple(body)) if isinstance(n, Allocate)]


def _joined(node: Stmt) -> Stmt:
    """Return branches that hold nothing but another one as one, so that a loop may end there."""
    while isinstance(node, If) and not node.orelse and len(node.body) == 1:
        (inner,) = node.body
        if not isinstance(inner, If) or inner.orelse:
            break
        node = replace(inner, condition=all_of((node.condition, inner.condition)))
    return node


def _is_cheap(node: Expr) -> bool:
    return not isinstance(node, Load) and node.dtype in (dtypes.index, dtypes.bool_)


def _store(to: Load, value: Expr, tensor: str) -> Store:
    return Store(to.buffer, to.args, value, tensor, "kept", to.flat)


def _touches(buffer: Buffer, body: tuple[Stmt, ...]) -> int:
    """Estimate how often a thread loads from or stores to `buffer` within loops of its own."""
    total = 0
    # Outside of loops of its own a region touches a buffer once or twice: a copy would cost as
    # much.
    for node, ancestors in walk_statements(body):
        extents = [a.extent for a in ancestors if isinstance(a, Loop)]
        count = prod([e if isinstance(e, int) else UNKNOWN_EXTENT for e in extents])
        if extents:
            total += count * (isinstance(node, Store) and node.storage is buffer)
            parts = [n for e in expressions(node) for n in walk(e)]
            total += count * sum(isinstance(n, Load) and n.buffer is buffer for n in parts)
    return total


def _is_stored_first(buffer: Buffer, body: list[Stmt]) -> bool:
    """Whether the first statement that touches `buffer` stores all of it."""
    for node in body:
        loaded = any(
            isinstance(n, Load) and n.buffer is buffer for e in expressions(node) for n in walk(e)
        )
        if isinstance(node, Store) and node.storage is buffer:
            return not loaded
        if loaded or any(_uses(buffer, inner) for inner in bodies(node)):
            return False
    return False


def _uses(buffer: Buffer, body: tuple[Stmt, ...]) -> bool:
    return any(
        (isinstance(n, Store) and n.storage is buffer)
        or any(isinstance(p, Load) and p.buffer is buffer for e in expressions(n) for p in walk(e))
        for n, _ in walk_statements(body)
    )
