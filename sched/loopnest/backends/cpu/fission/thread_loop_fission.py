"""Thread-loop fission: the threads of a block as loops, cut where they meet; blocks likewise.

Requires a program whose threads communicate: by SHARED memory, barriers, shuffles or arrivals.
Ensures the same program as loops, without barriers, shuffles and loops bound to launch dimensions;
arrivals stay, since blocks still run at the same time::

    for i0 in N:  # grid_x              for i0 in N:  # cpu_parallel
      s: float32[32] shared               s: float32[32] shared
      for i1 in 32:  # block_x            for i1 in 32:
        s[i1] = x[i0, i1]          ->       s[i1] = x[i0, i1]
        barrier block                     for i1 in 32:
        y[i0, i1] = s[31 - i1]              y[i0, i1] = s[31 - i1]

1. The launch becomes indices; a smaller loop over a launch dimension a test.
2. Barriers of the grid part the loops over blocks (`spread`, with a slot for each thread of
   the launch and each block's SHARED memory).
3. All other meeting places part the loops over the threads of a block.
4. Within a row of threads, loops that run along it better stand outside (`loop_interchange`).

The order of 2 and 3 matters: what is kept across a barrier of the grid is memory like any other to
the threads of one block.

Source: loop fission at barriers is that of MCUDA (Stratton et al., 2008) and pocl.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from loopnest.backends.clike.sink_allocations import settle_allocations
from loopnest.backends.cpu.fission.context_arrays import ContextArray, ContextArrays, redirect
from loopnest.backends.cpu.fission.loop_form import LoopForm, trimmed
from loopnest.backends.cpu.fission.loop_interchange import Interchange, accesses, choose_interchange
from loopnest.backends.cpu.fission.parallel_regions import Cutter, Fork, Listing, Region, Threads
from loopnest.backends.cpu.fission.shuffle_loads import shuffled, swap
from loopnest.base.errors import InternalError
from loopnest.kir import (
    Allocate,
    Arrive,
    Barrier,
    Collective,
    Commit,
    If,
    Issue,
    Launch,
    Let,
    Loop,
    Program,
    Shuffle,
    Stmt,
    Store,
    Tile,
    Until,
    Wait,
    expressions,
    holds_sync,
    map_expressions,
    meets,
    one_launch,
    with_bodies,
)
from loopnest.kir import walk as walk_statements
from loopnest.kir.tiles import without_tiles
from loopnest.scalar import dtypes
from loopnest.scalar.enums import (
    BLOCK_DIMENSIONS,
    GRID_DIMENSIONS,
    LAUNCH_DIMENSIONS,
    Memory,
    ParallelType,
)
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    all_of,
    rewrite,
    walk,
)
from loopnest.scalar.simplify import Simplifier


def has_threads_that_meet(program: Program) -> bool:
    """Whether the threads of `program` communicate, so that a loop over them must be split."""
    if holds_sync(program.body):
        return True
    shared = any(
        isinstance(n, Allocate) and n.storage.memory is Memory.SHARED
        for n, _ in walk_statements(program.body)
    )
    return shared and any(d.is_block and size is not ONE for d, size in program.launch)


def thread_form(program: Program) -> LoopForm:
    """Return `program` as loops, which are the same objects each time.

    Raises:
        InternalError: threads would meet where not all of them come.
    """
    found = _FORMS.get(program)
    if found is None:
        found = _FORMS[program] = _thread_form(program)
    return found


_FORMS: WeakKeyDictionary[Program, LoopForm] = WeakKeyDictionary()
"""The text of a program and the widths that its slots need ask for the same loops."""


def _thread_form(program: Program) -> LoopForm:
    launch, axes = _launch(program)
    blocks = tuple([index for d, index in launch.items() if d.is_grid])
    threads = tuple([index for d, index in launch.items() if d.is_block])
    body = _Flat(program, launch).statements(program.body)
    lanes = choose_interchange(body, threads) if threads else Interchange(frozenset(), frozenset())
    maker = ContextArrays(_names(program, body), lanes)
    whole = _Passes(blocks, threads, axes, maker).grid(body)
    return trimmed(whole, launch, threads[-1] if threads else None)


def slot_sizes(program: Program) -> tuple[Expr, ...]:
    """Return the elements of each array in which C keeps what threads own."""
    made = [
        n.storage
        for part in without_tiles(program).launches
        if has_threads_that_meet(part)
        for n, _ in walk_statements(thread_form(part).body)
        if isinstance(n, Allocate)
    ]
    return tuple([b.size for b in made if b.kind == "slots"])


def _launch(program: Program) -> tuple[dict[ParallelType, Index], dict[Index, str]]:
    """Return an index for each launch dimension in use, outermost first, and the axes of loops."""
    bound: dict[ParallelType, list[Loop]] = {d: [] for d in LAUNCH_DIMENSIONS}
    for node, _ in walk_statements(program.body):
        if isinstance(node, Loop) and node.parallel.is_thread:
            bound[node.parallel].append(node)
    sizes = dict(program.launch)
    launch: dict[ParallelType, Index] = {}
    axes: dict[Index, str] = {}
    for dimension in (*GRID_DIMENSIONS[::-1], *BLOCK_DIMENSIONS[::-1]):
        size = sizes.get(dimension, ONE)
        if size is ONE:
            continue
        loops = bound[dimension]
        if len(loops) == 1 and loops[0].var.extent is size:
            launch[dimension] = index = loops[0].var
            axes[index] = loops[0].axis
        else:
            launch[dimension] = Index(dimension.value, Simplifier().simplify(size))
    return launch, axes


def _names(program: Program, body: tuple[Stmt, ...]) -> set[str]:
    found = {p.name for p in program.params} | {p.buffer.name for p in program.params if p.buffer}
    for node, _ in walk_statements(body):
        match node:
            case Allocate():
                found.add(node.storage.name)
            case Loop():
                found.add(node.index)
            case Let() | Shuffle() | Arrive():
                found.add(node.var.name)
    return found


class _Flat:
    """The statements of one thread, without loops over launch dimensions and collectives.

    No two names are spelled alike after it, for what stood in bodies of its own may now meet.
    """

    def __init__(self, program: Program, launch: Mapping[ParallelType, Index]) -> None:
        self.program, self.launch = program, launch
        self.algebra = Simplifier()
        self.known: dict[Expr, Expr] = {
            LaunchIndex(d): launch.get(d, ZERO) for d in LAUNCH_DIMENSIONS
        }
        self.spelled: dict[Local, Local] = {}
        self.taken: set[str] = set()
        self.has_blocks = any(d.is_grid for d in launch)
        self.has_threads = any(d.is_block for d in launch)

    def statements(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Return `body`, flattened."""
        return tuple([made for node in body for made in self._statement(node)])

    def _value(self, value: Expr) -> Expr:
        return rewrite(value, self.known.get)

    def _statement(self, node: Stmt) -> Iterable[Stmt]:
        match node:
            case Loop() if node.parallel.is_thread:
                return self._bound(node)
            case Loop():
                return (self._loop(node),)
            case If():
                body, orelse = self.statements(node.body), self.statements(node.orelse)
                return (
                    replace(node, condition=self._test(node.condition), body=body, orelse=orelse),
                )
            case Collective() | Issue():
                return self.statements(node.body)
            case Tile() if not node.over_lanes:
                return self.statements(node.body)
            case Commit() | Wait():
                return ()  # copies are made where they are issued, which is one of their times
            case Barrier():
                return self._barrier(node)
            case Shuffle() if not self.has_threads:
                return self._statement(Let(node.var, node.value, node.origin))
            case Let() | Shuffle() | Arrive():
                made = map_expressions(node, self._value)
                assert isinstance(made, (Let, Shuffle, Arrive))
                return (replace(made, var=self._spelled(node.var)),)
            case Launch() | Tile():
                raise one_launch(node)
        return (map_expressions(node, self._value),)

    def _spelled(self, var: Local) -> Local:
        found = self.spelled.get(var)
        if found is None:
            number, name = 1, var.name
            while name in self.taken:
                number += 1
                name = f"{var.name}_{number}"
            self.taken.add(name)
            found = self.spelled[var] = var if number == 1 else Local(name, var.dtype)
            self.known[var] = found
        return found

    def _test(self, condition: Expr) -> Expr:
        """Return a condition; ``i == 0`` of an index as ``i < 1``, which can end a loop."""

        def first(node: Expr) -> Expr | None:
            match node:
                case Op(op="eq", args=(Index() as index, right)) if right is ZERO:
                    return Op("lt", (index, ONE), dtypes.bool_)
            return None

        return rewrite(self._value(condition), first)

    def _barrier(self, node: Barrier) -> Iterable[Stmt]:
        if node.scope == "grid" and self.has_blocks:
            return (node,)
        if not self.has_threads:
            return ()
        return (replace(node, scope="block"),) if node.scope == "grid" else (node,)

    def _loop(self, node: Loop) -> Stmt:
        extent = self._value(node.var.extent)
        if extent is node.var.extent:
            return replace(node, body=self.statements(node.body))
        self.known[node.var] = var = Index(node.var.name, extent)
        return replace(node, var=var, body=self.statements(node.body))

    def _bound(self, node: Loop) -> Iterable[Stmt]:
        number = self.known[LaunchIndex(node.parallel)]
        extent = self.algebra.simplify(self._value(node.var.extent))
        self.known[node.var] = number
        body = self.statements(node.body)
        whole = dict(self.program.launch).get(node.parallel, ONE)
        if self.algebra.equal(extent, self.algebra.simplify(whole)):
            return body
        scopes = {meets(n) for n, _ in walk_statements(body)} - {""}
        if scopes and (node.parallel.is_block or "grid" in scopes):
            reason = f"it holds a barrier and has extent {extent}, while the launch has {whole}"
            raise InternalError(f"loop {node.index} ({node.parallel.value})", reason)
        # A loop over fewer threads than the launch has is run by the first ones.
        return (If(Op("lt", (number, extent), dtypes.bool_), body, (), "", node.origin),)


class _Passes:
    """Loops around statements of one thread, from the grid to a row of threads."""

    def __init__(
        self,
        blocks: tuple[Index, ...],
        threads: tuple[Index, ...],
        axes: Mapping[Index, str],
        maker: ContextArrays,
    ) -> None:
        self.blocks, self.threads = blocks, threads
        self.axes, self.maker = axes, maker

    def grid(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Return the loops over all threads of a launch."""
        # Without a barrier of the grid blocks are independent: one loop over them holds everything.
        if not any(meets(n) == "grid" for n, _ in walk_statements(body)):
            return self._blocks(body)
        all_of_them = Threads(
            self.blocks, self.threads, lambda node: meets(node) == "grid", self._blocks
        )
        return spread(body, all_of_them, self.maker)

    def _blocks(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        if self.threads:
            threads = Threads((), self.threads, lambda node: meets(node) != "", self._rows)
            body = spread(body, threads, self.maker)
        return self._around(body, self.blocks, ParallelType.cpu_parallel)

    def _rows(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        *others, lane = self.threads
        is_outside = self.maker.lanes.is_outside
        if any(is_outside(node) for node, _ in walk_statements(body)):
            row = spread(body, Threads((), (lane,), is_outside, self._row), self.maker)
        else:
            row = self._row(body)
        return self._around(row, others, ParallelType.serial)

    def _row(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return self._around(body, self.threads[-1:], ParallelType.serial)

    def _around(
        self, body: tuple[Stmt, ...], indices: Sequence[Index], kind: ParallelType
    ) -> tuple[Stmt, ...]:
        # Nothing is left behind: no loop is needed.
        if all(isinstance(node, (Allocate, Let)) for node in body):
            return ()
        for index in reversed(indices):
            body = (Loop(index, kind, self.axes.get(index, ""), body),)
        return body


# Put thread loops around parallel regions; context arrays keep what lives across regions.
#
# What a single region uses stays a variable of its own; what several use gets an array::
#
#     T2: float32[1] local             T2_slots: float32[32] local
#     for k in K:                      for k in K:
#       T2[0] = T2[0] + s[k, t]   ->     for t in 32: T2_slots[t] = T2_slots[t] + s[k, t]
#       barrier block                    …
#
# A name whose value is index arithmetic is computed again instead. Where a region touches a buffer
# many times in loops of its own it works on a copy, which a C compiler can keep in registers.


OFTEN = 4
"""A region works on a copy of a buffer where it touches each element at least so often."""

MOST_COPIED = 1024
"""The largest buffer, in elements, that is copied."""


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
                case Until():
                    result.append(replace(item, condition=self._decided(item.condition)))
                case _:
                    result.append(item)
        return result

    def _decided(self, test: Expr) -> Expr:
        """Return a condition of all threads; where the first one decides, what that one found."""
        if isinstance(test, Local) and test in self.cut.decided:
            return self.names[test].of_first()
        return test

    def _fork(self, fork: Fork) -> Stmt:
        node = fork.node
        if isinstance(node, If):
            node = If(self._decided(node.condition), (), (), node.reason, node.origin)
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
    # Outside of loops of its own a region touches a buffer once or twice: a copy would cost as
    # much.
    return sum([a.count for a in accesses(body) if a.buffer is buffer and a.loop is not None])


def _is_stored_first(buffer: Buffer, body: list[Stmt]) -> bool:
    """Whether the first statement that touches `buffer` stores all of it."""
    for node in body:
        found = [a for a in accesses((node,)) if a.buffer is buffer]
        if found:
            return isinstance(node, Store) and all(a.is_store for a in found)
    return False
