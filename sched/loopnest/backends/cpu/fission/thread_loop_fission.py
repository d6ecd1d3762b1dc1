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
2. Barriers of the grid part the loops over blocks (`region_loops`, with a slot for each thread of
   the launch and each block's SHARED memory).
3. All other meeting places part the loops over the threads of a block.
4. Within a row of threads, loops that run along it better stand outside (`loop_interchange`).

The order of 2 and 3 matters: what is kept across a barrier of the grid is memory like any other to
the threads of one block.

Source: loop fission at barriers is that of MCUDA (Stratton et al., 2008) and pocl.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never
from weakref import WeakKeyDictionary

from loopnest.backends.cpu.fission.context_arrays import ContextArrays
from loopnest.backends.cpu.fission.loop_form import LoopForm, trimmed
from loopnest.backends.cpu.fission.loop_interchange import Interchange, choose_interchange
from loopnest.backends.cpu.fission.parallel_regions import Threads
from loopnest.backends.cpu.fission.region_loops import spread
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
    Wait,
    holds_sync,
    map_expressions,
    one_launch,
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
from loopnest.scalar.expr import ONE, ZERO, Expr, Index, LaunchIndex, Local, Op, rewrite
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
            case Store() | Allocate():
                return (map_expressions(node, self._value),)
            case Launch() | Tile():
                raise one_launch(node)
            case _:
                assert_never(node)

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
        scopes = {_scope(n) for n, _ in walk_statements(body)} - {""}
        if scopes and (node.parallel.is_block or "grid" in scopes):
            reason = f"it holds a barrier and has extent {extent}, while the launch has {whole}"
            raise InternalError(f"loop {node.index} ({node.parallel.value})", reason)
        # A loop over fewer threads than the launch has is run by the first ones.
        return (If(Op("lt", (number, extent), dtypes.bool_), body, (), "", node.origin),)


def _scope(node: Stmt) -> str:
    """Return which threads meet at `node`: of a "warp", a "block" or the "grid"; "" for none."""
    match node:
        case Barrier():
            return node.scope
        case Shuffle():
            return "warp"
        case Arrive():
            return "block"
        case Loop() | If() | Allocate() | Store() | Let() | Collective():
            return ""
        case Issue() | Commit() | Wait():
            return ""
        case Launch() | Tile():
            raise one_launch(node)
        case _:
            assert_never(node)


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
        if not any(_scope(n) == "grid" for n, _ in walk_statements(body)):
            return self._blocks(body)
        all_of_them = Threads(
            self.blocks, self.threads, lambda node: _scope(node) == "grid", self._blocks
        )
        return spread(body, all_of_them, self.maker)

    def _blocks(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        if self.threads:
            threads = Threads((), self.threads, lambda node: _scope(node) != "", self._rows)
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
