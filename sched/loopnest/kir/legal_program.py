"""What a legal loop nest is, as code: the table that the result of every pass is checked against.

It asks for what the semantics in `kir` take for granted, not whether the nest computes its math:
that is for `verify`. What a condition tests is stored above it: in the first iterations of the
loops around, nothing else has a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import TypeAlias

from loopnest.base.errors import kind_of
from loopnest.kir import (
    BOUND,
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
    StatementVisitor,
    Stmt,
    Store,
    Until,
    Wait,
    bodies,
    expressions,
    written,
)
from loopnest.kir import walk as kir_walk
from loopnest.kir.atomic_updates import is_update
from loopnest.kir.legal_tiles import tile_faults
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import (
    Arg,
    Buffer,
    Const,
    Coordinate,
    Expr,
    Index,
    LaunchIndex,
    Load,
    Local,
    Op,
    ScalarParam,
    Symbol,
    is_zero,
    loads,
    walk,
)

_SCOPES = ("warp", "block", "grid")
_MODES = ("xor", "down", "up", "lane")
_SCANS = ("", "inclusive", "exclusive")


def program_faults(program: Program, *, staged: bool = True) -> list[str]:
    """Return what is not legal in a program, a sentence each; none where all is.

    Args:
        program: the nest.
        staged: whether accesses to circular buffers have an index for the stage already; before,
            tiles may have tests too, and are not looked at.
    """
    outputs = [output.buffer for output in program.outputs]
    known = {p.buffer for p in program.params if p.buffer is not None} | set(outputs)
    stored = {p.buffer for p in program.params if p.buffer is not None and p.kind == "input"}
    found: list[str] = []
    for part in program.launches:
        scope = _VisibleNames(part, staged, frozenset(known), stored)
        found += scope.body(part.body)
        if staged:
            found += tile_faults(part)
    if len(program.launches) < len(program.body):
        beside = [n for n in program.body if not isinstance(n, Launch)]
        if beside and len(beside) < len(program.body):
            found.append("a statement stands beside launches")
    return list(dict.fromkeys(found))


_Choices: TypeAlias = "tuple[tuple[If, bool], ...]"
"""The tests around a statement, and whether it stands in their second branch."""


def made_twice(program: Program) -> list[Buffer]:
    """Return the buffers made at several places, branches that exclude each other aside."""
    places: dict[Buffer, list[_Choices]] = {}

    def visit(body: Iterable[Stmt], around: _Choices) -> None:
        for node in body:
            if isinstance(node, Allocate):
                places.setdefault(node.storage, []).append(around)
            for number, inner in enumerate(bodies(node)):
                visit(inner, (*around, (node, bool(number))) if isinstance(node, If) else around)

    visit(program.body, ())
    return [
        buffer
        for buffer, found in places.items()
        if not all(_exclude_each_other(one, two) for one, two in combinations(found, 2))
    ]


def _exclude_each_other(one: _Choices, two: _Choices) -> bool:
    return any(a is b and m is not n for (a, m), (b, n) in product(one, two))


@dataclass
class _VisibleNames(StatementVisitor):
    """What may be named at a place of the nest.

    Args:
        program: the launch.
        staged: as for `program_faults`.
        buffers: those that are made.
        stored: those that the caller or a statement above stores to, at any element.
        indices: those of the loops around.
        threads: those of them that are bound to threads of a block.
        locals: the names defined.
        undefined: the names whose values were loaded from buffers that nothing above stores to.
        tested: whether a test, or a loop that some threads do not run, stands around.
        issuing: whether an Issue does.
        ending: the last statement of the loop around, where its iterations run in order.
    """

    program: Program
    staged: bool
    buffers: frozenset[Buffer]
    stored: set[Buffer]
    indices: frozenset[Index] = frozenset()
    threads: frozenset[Expr] = frozenset()
    locals: set[Local] = field(default_factory=set)
    undefined: dict[Local, Buffer] = field(default_factory=dict)
    tested: bool = False
    issuing: bool = False
    ending: Stmt | None = None

    def body(self, statements: Iterable[Stmt]) -> Iterator[str]:
        """Yield the faults of statements; what one defines, the next ones may name."""
        for node in statements:
            yield from self.visit(node)

    def _inner(self, statements: Iterable[Stmt], *indices: Index) -> Iterator[str]:
        """Yield the faults of a nested body, whose definitions end with it."""
        inner = replace(
            self,
            indices=self.indices | set(indices),
            locals=set(self.locals),
            undefined=dict(self.undefined),
        )
        yield from inner.body(statements)

    def visit_other(self, node: Stmt, *_: object) -> Iterator[str]:
        for value in expressions(node):
            yield from self._value(value, f"a {type(node).__name__.lower()}")
        yield from self._inner([inner for body in bodies(node) for inner in body])

    def visit_allocate(self, node: Allocate) -> Iterator[str]:
        if node.storage in self.buffers:
            yield f"{node.buffer} is made twice"
        self.buffers |= {node.storage}

    def visit_barrier(self, node: Barrier) -> Iterator[str]:
        if node.scope not in _SCOPES:
            yield f"a barrier of the scope '{node.scope}'"

    def visit_launch(self, _: Launch) -> Iterator[str]:
        yield "a launch stands inside of other statements"

    def visit_store(self, node: Store) -> Iterator[str]:
        yield from self._access(node.storage, node.index, node.flat)
        yield from self._value(node.value, f"a store to {node.buffer}")
        self.stored.add(node.storage)
        if node.atomic and not is_update(node):
            yield f"an atomic store to {node.buffer} is no update of its element alone"
        if node.atomic and node.storage.memory is Memory.LOCAL:
            yield f"an atomic store to {node.buffer}, which one thread has"

    def visit_issue(self, node: Issue) -> Iterator[str]:
        """Yield what may not stand in a copy that is in flight; what it stores is not there yet."""
        inner = replace(self, issuing=True)
        yield from inner._inner(node.body)
        if self.issuing:
            yield f"issue {node.instruction} stands inside of another issue"
        for part, _ in kir_walk(node.body):
            if isinstance(part, Store):
                yield from _copy_faults(part, node.instruction)
            elif not isinstance(part, (Loop, If)):
                yield f"issue {node.instruction} holds more than loops, tests and stores"
            elif isinstance(part, Loop) and loads(part.var.extent):
                yield f"issue {node.instruction} holds a loop whose extent loads"

    def visit_commit(self, node: Commit | Wait) -> Iterator[str]:
        name = "commit" if isinstance(node, Commit) else f"wait {node.pending}"
        if self.tested:
            yield f"{name} stands under a test"
        if self.issuing:
            yield f"{name} stands inside of an issue"
        if isinstance(node, Wait) and node.pending < 0:
            yield f"{name} waits for groups that are not closed yet"

    visit_wait = visit_commit

    def visit_if(self, node: If) -> Iterator[str]:
        yield from self._value(node.condition, "a condition")
        if node.condition.dtype is not dtypes.bool_:
            yield f"the condition {node.condition} has the type {node.condition.dtype}"
        for buffer in self._not_stored(node.condition):
            yield f"a condition tests {buffer.name} before it is stored"
        # What one branch stores the other one does not find; what follows may.
        # The bounds of a loop that are the same for all threads of a block leave none of them out.
        mine = self if self._is_common_bound(node) else replace(self, tested=True)
        other = replace(self, stored=set(self.stored), tested=True)
        yield from mine._inner(node.body)
        yield from other._inner(node.orelse)
        self.stored |= other.stored

    def visit_until(self, node: Until) -> Iterator[str]:
        yield from self._value(node.condition, "the end of a loop")
        if node is not self.ending:
            yield _no_end(node)
        if node.condition.dtype is not dtypes.bool_:
            yield f"a loop ends by {node.condition}, of the type {node.condition.dtype}"
        for buffer in self._not_stored(node.condition):
            yield f"the end of a loop tests {buffer.name} before it is stored"

    def _not_stored(self, value: Expr) -> Iterator[Buffer]:
        """Yield the buffers that a value is computed from and that nothing above stores to."""
        for node in walk(value):
            if isinstance(node, Load) and node.buffer not in self.stored:
                yield node.buffer
            elif isinstance(node, Local) and node in self.undefined:
                yield self.undefined[node]

    def visit_let(self, node: Let) -> Iterator[str]:
        yield from self._define(node.var, node.value)

    def visit_shuffle(self, node: Shuffle) -> Iterator[str]:
        if node.mode not in _MODES:
            yield f"a shuffle by '{node.mode}'"
        yield from self._value(node.offset, f"the offset of {node.var.name}")
        yield from self._define(node.var, node.value)

    def visit_arrive(self, node: Arrive) -> Iterator[str]:
        yield from self._access(node.counter, node.index, False)
        yield from self._value(node.count, f"the count of {node.var.name}")
        self.locals.add(node.var)

    def visit_collective(self, node: Collective) -> Iterator[str]:
        size = len(node.identity)
        wanted = [len(node.args), 2 * size] if node.scan else [len(node.args)]
        if node.scan not in _SCANS or (node.scan and len(node.args) != size):
            yield f"a scan '{node.scan}' by {node.name} of {len(node.args)} values"
        if len(node.results) not in wanted or len(node.args) % max(size, 1):
            yield (
                f"{node.name} of {size} components combines {len(node.args)} values to "
                f"{len(node.results)}"
            )
        for value in node.args:
            yield from self._value(value, f"what {node.name} combines")
        yield from self.body(node.body)
        for var in node.results:
            if var not in self.locals:
                yield f"{node.name} does not define {var.name}"

    def visit_loop(self, node: Loop) -> Iterator[str]:
        name = node.var.name
        if node.var in self.indices:
            yield f"the loop over {name} stands inside of a loop over {name}"
        yield from self._value(node.var.extent, f"the extent of {name}")
        if node.parallel.is_thread and self.program.launch_extent(node.parallel) is None:
            yield f"the loop over {name} is bound to {node.parallel.value}, which no launch has"
        yield from self._bounds(node)
        yield from [_no_end(inner) for inner in node.body[:-1] if isinstance(inner, Until)]
        some = node.parallel.is_thread and self.program.launch_extent(node.parallel) is not (
            node.var.extent
        )
        ordered = node.parallel.order == "ascending" and bool(node.body)
        ending = node.body[-1] if ordered else None
        inner = replace(self, tested=self.tested or some, ending=ending)
        if node.parallel.is_block:
            inner = replace(inner, threads=self.threads | {node.var})
        yield from inner._inner(node.body, node.var)

    def _is_common_bound(self, node: If) -> bool:
        """Whether a test is the bounds of a loop, and all threads of a block find the same."""
        return node.reason == BOUND and not any(
            part in self.threads
            or isinstance(part, Local)
            or (isinstance(part, LaunchIndex) and part.dimension.is_block)
            or (isinstance(part, Load) and part.buffer.memory is not Memory.GLOBAL)
            for part in walk(node.condition)
        )

    def _bounds(self, node: Loop) -> Iterator[str]:
        """Yield what a loop's bounds load and its body stores: they are asked once, in front."""
        first = node.body[0] if len(node.body) == 1 else None
        if not isinstance(first, If) or first.reason != BOUND:
            return
        tested = [load.buffer for load in loads(first.condition)]
        for buffer in written(node.body).intersection(tested) if tested else ():
            yield f"the loop over {node.var.name} stores {buffer.name}, which bounds it"

    def _define(self, var: Local, value: Expr) -> Iterator[str]:
        yield from self._value(value, f"the value of {var.name}")
        if value.dtype is not var.dtype:
            yield f"{var.name} has the type {var.dtype}, its value {value.dtype}"
        if (missing := next(self._not_stored(value), None)) is not None:
            self.undefined[var] = missing
        self.locals.add(var)

    def _access(self, buffer: Buffer, index: tuple[Expr, ...], flat: bool) -> Iterator[str]:
        if buffer not in self.buffers:
            yield f"{buffer.name} is used where it is not made"
        rank = 1 if flat else len(buffer.shape) - (buffer.stages > 1 and not self.staged)
        if len(index) != rank:
            yield f"{buffer.name} has {rank} dimensions, an access {len(index)} indices"
        for part in index:
            yield from self._value(part, f"an index of {buffer.name}")

    def _value(self, value: Expr, where: str) -> Iterator[str]:
        for node in walk(value):
            match node:
                case Index() if node not in self.indices:
                    yield f"{where} names {node.name} outside of its loop"
                case Local() if node not in self.locals:
                    yield f"{where} names {node.name} before it is defined"
                case LaunchIndex() if self.program.launch_extent(node.dimension) is None:
                    yield f"{where} names {node.dimension.value}, which no launch has"
                case Arg() | Coordinate():
                    yield f"{where} holds {node}, a hole of a template"
                case Load():
                    yield from self._access(node.buffer, node.args, node.flat)
                case Index() | Local() | LaunchIndex() | Const() | Symbol() | ScalarParam() | Op():
                    pass
                case _:
                    yield f"{where} holds {kind_of(node)}, of which no reader knows"


def _no_end(node: Until) -> str:
    return f"until {node.condition} is not the last statement of a loop that runs in order"


def _copy_faults(node: Store, instruction: str) -> Iterator[str]:
    """Yield why a store is no copy that may be in flight."""
    where = f"issue {instruction}: the store to {node.buffer}"
    if node.storage.memory is not Memory.SHARED:
        yield f"{where}, in {node.storage.memory.value} memory; use SHARED"
    if node.atomic:
        yield f"{where} is atomic"
    value = node.value
    if value.dtype is not node.storage.dtype:
        yield f"{where} converts {value.dtype} to {node.storage.dtype}"
    if isinstance(value, Const) or is_zero(value):
        return
    if not isinstance(value, Load):
        yield f"{where} computes; it copies what one load finds, or a constant"
    elif value.buffer.memory is not Memory.GLOBAL:
        yield f"{where} copies from {value.buffer.memory.value} memory; use GLOBAL"
