"""The loop nest: statements that printers, the interpreter and the checkers read.

Semantics
=========

A `Program` runs once for every thread of a launch: the product of its launch dimensions
(`Program.launch`: grid and block extents; a dimension that is not named has extent 1). Each thread
executes the body from top to bottom; threads are unordered but for barriers. An extent of 0 counts
as 1 where an output has elements: loops over nothing run in no thread, what stands outside of them
runs in one. Buffers that are no parameters of the user's then have at least one element along each
axis, and elements of an output that nobody stores are what its reduction starts from, else 0.

- `Loop` over [0, extent). A serial, unroll, vectorize, unswitch or cpu_parallel loop runs its body
  for each index in ascending order (vectorize and cpu_parallel promise that the order does not
  matter). A loop bound to a launch dimension runs its body at most once: in the threads whose
  number along the dimension is < extent, with the index equal to that number.
- `If` evaluates its condition (no effects) and runs one branch. What a condition loads is stored
  by a statement above it, or by the caller.
- `Allocate` makes a buffer of LOCAL (one a thread) or SHARED (one a block) memory for the rest of
  the enclosing body. Its elements are undefined until stored; loading an undefined element is a
  fault.
- `Store` evaluates the index and the value, converts the value to the buffer's type (floats round
  to nearest even), then writes one element. Within one statement all loads precede the write.
- An `atomic` store is one step for all threads: nothing comes between its load of the element that
  it stores and the store. Its value is that load combined with something that reads other buffers.
- `Let` names a value; the name is defined for the rest of the enclosing body.

- `Tile` is reached by all lanes of a warp together: a barrier of the warp, its body, a barrier of
  the warp. One whose body has no loop over lanes is its body alone, of one thread. The body is what
  the instruction does, as loops and stores; a target may execute the instruction in its place. Only
  in tiles may a lane access elements of WARP memory that lie in other lanes; a WARP buffer has axes
  for the warps of a block in front, and each warp its own index of them; its last two axes are the
  lane and the register. All else is as in SHARED memory.

Threads of a block are numbered x + X * (y + Y * z), with the launch extents X and Y; 32 neighbours
from a multiple of 32 on are a warp (the last one of a block may be partial). Four statements
concern several threads. Each must be reached by all threads of its scope or by none, in the same
iterations of the same loops; anything else is a fault (a divergent barrier).

- `Barrier(scope)` orders all earlier accesses of the threads in its scope before all later ones.
- `Shuffle` gives each thread of a warp the value that another thread of that warp has. Where that
  other thread does not exist the result is undefined; it may be named, but not decide anything.
- `Arrive` counts blocks. It orders as a barrier of the block does; the block that makes the count
  full sees all that the others wrote before they arrived, gets True, and sets the counter to 0.
  It may be one block at this counter and another one at that.
- `Collective` runs its body, in place, and declares what comes of it: after it, `results` hold, in
  every thread, the combination of `args` over all threads of the block that differ from it in
  `dims` only; of several values, each is combined with itself alone. One that is `ordered` combines
  them in the order of their threads: by their number along `dims`, the first of which runs
  fastest. A `scan`, which is ordered too, gives each thread the combination over those threads of
  its group alone that come before it ("exclusive") or up to it ("inclusive"); and then, if there
  are as many results more, the combination over all of them. Names that the body defines stay
  defined. Readers may believe the declaration only if they have checked it.

Copies may be in flight: a thread begins them, works, and waits for them.

- `Issue` begins the stores of its body. What they store is what their sources hold then; each
  happens at some time before the `Wait` that ends its group. Until then nobody, its own thread
  included, touches the targets or stores to the sources.
- `Commit` closes a group: of the copies that this thread issued since the last one, maybe none.
- `Wait(n)` waits until at most the last n groups that this thread closed are unfinished: a copy has
  landed at the first one behind n + 1 Commits that follow its Issue. For other threads a landed
  copy is a store of the thread that waited, at that Wait; a barrier orders it.

Commit and Wait stand under no test, and a thread that runs one runs all in its launch.

A program may be several launches: its body is then `Launch` statements and nothing else. They run
one after the other, each by threads of its own, as many as its extents say; one begins when all
threads of the one before have ended, and sees all that they wrote. What a launch allocates and
names ends with it; only arrays, workspace among them, last from one to the next.

- `Until` is the last statement of a loop that runs in order, and ends it for a thread that finds
  the condition true: no later iteration runs. Threads that meet in the loop must find the same.

Two accesses to one element of SHARED or GLOBAL memory by different threads, one of them a store,
race unless a barrier (or an arrival) orders them, or both belong to atomic stores. Stores of one
equal value race too.

Indices are mathematical integers here; their width is chosen by the runtime. Division is floor
division. Expressions follow `loopnest.scalar.expr`: a load under a false `where` or behind a false
`and` is not performed.

Every node is compared by identity, carries the place in the user's code that it came from
(`origin`), and is never modified.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, TypeVar

from loopnest.base.errors import InternalError
from loopnest.base.fast_init import fast_init
from loopnest.scalar.enums import ParallelType
from loopnest.scalar.expr import Buffer, Const, Expr, Index, Load, Local, loads, map_loads
from loopnest.scalar.origin import Origin

Item = TypeVar("Item")

_UNNAMED = re.compile(r"[irbs]\d+")
"""How an axis without a name is called beside its tensor."""

WHOLE_ELEMENTS = frozenset({"init", "merge", "finish"})
"""Roles of stores that concern a logical element, not a single point that a reduction folds."""


class Statement:
    """What walks, renamings, slices and lives ask of a statement; its class declares it once.

    Attributes:
        encloses: the fields with its bodies.
        evaluates: the fields with the expressions that it evaluates itself, in order; those of a
            Collective are in its body.
        rewrites: the fields with expressions that change where names and indices do; those that it
            evaluates, where nothing else is said.
        binds: the field with the name that it defines for the rest of the body around it.
        makes: the field with the buffer that it makes for the rest of that body.
        element: the fields with the buffer and the index of the element that it writes.
        threads: which threads meet at it: of a "warp", of a "block"; "" where each goes on alone.
        counts: whether it counts groups of copies in flight.
        form: its line in the nest text, without its bodies.
    """

    __slots__ = ()
    encloses: ClassVar[tuple[str, ...]] = ()
    evaluates: ClassVar[tuple[str, ...]] = ()
    rewrites: ClassVar[tuple[str, ...]] = ()
    binds: ClassVar[str] = ""
    makes: ClassVar[str] = ""
    element: ClassVar[tuple[str, ...]] = ()
    threads: ClassVar[str] = ""
    counts: ClassVar[bool] = False
    form: ClassVar[str] = ""

    @property
    def own(self) -> Load | None:
        """The element that it writes, as a load."""
        return Load(*[getattr(self, name) for name in self.element]) if self.element else None


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Loop(Statement):
    """``for index in extent: body``.

    Args:
        var: the index; its `extent` is the loop's.
        parallel: how it runs.
        axis: the leaf axis of the tensor that gave it its shape, as ``T3.i0``, or ``T3.do`` where
            the user named it.
        body: statements.
    """

    encloses: ClassVar = ("body",)
    var: Index
    parallel: ParallelType
    axis: str
    body: tuple[Stmt, ...]
    origin: Origin | None = None

    @property
    def axis_name(self) -> str:
        """The name that the user gave its axis, "" where it has none."""
        label = self.axis.partition(".")[2]
        return "" if _UNNAMED.fullmatch(label) else label

    @property
    def index(self) -> str:
        """The name of the index: ``i0``, numbered in order of appearance."""
        return self.var.name

    @property
    def extent(self) -> int | Expr:
        """The number of iterations: an int where static."""
        size = self.var.extent
        return int(size.value) if isinstance(size, Const) else size


BOUND = "bounds the loop"
"""The reason of an `If` that is the whole body of a loop: targets print it as the loop's bounds."""


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class If(Statement):
    """``if condition: body else: orelse``; `reason` says why the test is needed."""

    encloses: ClassVar = ("body", "orelse")
    evaluates: ClassVar = ("condition",)
    condition: Expr
    body: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()
    reason: str = ""
    origin: Origin | None = None


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Allocate(Statement):
    """Make `storage` for the rest of the enclosing body."""

    makes: ClassVar = "storage"
    storage: Buffer
    origin: Origin | None = None

    @property
    def buffer(self) -> str:
        """The name of the buffer."""
        return self.storage.name

    @property
    def tensor(self) -> str:
        """The name of the tensor that it holds."""
        return self.storage.tensor


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Store(Statement):
    """``storage[index] = value``.

    Args:
        storage: the buffer written.
        index: one index a dimension, or one offset in elements where `flat`.
        value: converted to the buffer's type.
        tensor: the name of the tensor that is computed.
        role: "define" (a pointwise value), "init" (the identity of a reduction), "update" (one
            step of a reduction), "merge" (a step that takes in a partial result), "finish" (a
            reduction's result, rounded once), "fill" (a constant where the element lies outside of
            the tensor) or "partial" (a partial result that is handed on).
        coordinate: the element that this claims to compute: of the tensor's root domain; of its
            logical domain where the tensor is factored and the role one of `WHOLE_ELEMENTS`.
        atomic: whether the load of the element, the computation and the write are one step.
    """

    evaluates: ClassVar = ("index", "value")
    rewrites: ClassVar = ("index", "coordinate", "value")
    element: ClassVar = ("storage", "index", "flat")
    storage: Buffer
    index: tuple[Expr, ...]
    value: Expr
    tensor: str
    role: str = "define"
    flat: bool = False
    coordinate: tuple[Expr, ...] = ()
    origin: Origin | None = None
    atomic: bool = False

    @property
    def buffer(self) -> str:
        """The name of the buffer written."""
        return self.storage.name

    @property
    def own(self) -> Load:
        """The element written, as a load."""
        return Load(self.storage, self.index, self.flat)


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Let(Statement):
    """``var = value``: a scalar temporary."""

    evaluates: ClassVar = ("value",)
    binds: ClassVar = "var"
    form: ClassVar = "let {node.var} = {node.value}"
    var: Local
    value: Expr
    origin: Origin | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Barrier(Statement):
    """Order the accesses of all threads in `scope`: "warp", "block" or "grid"."""

    scope: str
    reason: str = ""
    origin: Origin | None = None


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Shuffle(Statement):
    """``var = value in lane``: the value that another thread of the warp has.

    Args:
        var: the result.
        value: what this thread offers.
        mode: "xor" (lane number ^ offset), "down" (lane number + offset), "up" (lane number -
            offset) or "lane" (offset itself).
        offset: in lanes; the same in all threads of the warp.
    """

    evaluates: ClassVar = ("value", "offset")
    binds: ClassVar = "var"
    threads: ClassVar = "warp"
    form: ClassVar = "let {node.var} = shuffle_{node.mode}({node.value}, {node.offset})"
    var: Local
    value: Expr
    mode: str
    offset: Expr
    origin: Origin | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Arrive(Statement):
    """``var = whether this block is the last of count blocks``, by ``counter[index]``.

    Args:
        var: a bool, the same in all threads of the block.
        counter: GLOBAL int32 workspace, 0 before the launch and after it.
        index: one index a dimension.
        count: how many blocks arrive at this counter.
    """

    evaluates: ClassVar = ("index", "count")
    element: ClassVar = ("counter", "index")
    binds: ClassVar = "var"
    threads: ClassVar = "block"
    form: ClassVar = "let {node.var} = arrive({node.own}, {node.count})"
    var: Local
    counter: Buffer
    index: tuple[Expr, ...]
    count: Expr
    origin: Origin | None = None


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Collective(Statement):
    """Statements by which threads combine values, with a declaration of what they compute.

    Args:
        name: of the reducer: "sum", "max", "welford"…
        results: of each value, one a component of the reducer; defined by the body, equal in all
            threads that differ in `dims` only. Of a scan (of one value) those of this thread, and
            then, where somebody needs it, those of the whole group.
        args: what each thread contributes: of each value, one a component.
        dims: the launch dimensions of the block that are reduced over, the one first along which
            neighbours in the order of threads lie.
        identity: of the reducer, one a component.
        combine: the reducer: templates of the components of two partial results in one, in the
            `Arg`s of `expr.two_sides`.
        body: the statements; they store to no buffer but those that they make.
        scan: "inclusive" or "exclusive"; empty where threads get the combination of all.
        ordered: whether the values are combined in the order of their threads; any scan does.
    """

    encloses: ClassVar = ("body",)
    rewrites: ClassVar = ("args",)
    name: str
    results: tuple[Local, ...]
    args: tuple[Expr, ...]
    dims: tuple[ParallelType, ...]
    identity: tuple[Expr, ...]
    combine: tuple[Expr, ...]
    body: tuple[Stmt, ...]
    origin: Origin | None = None
    scan: str = ""
    ordered: bool = False

    @property
    def in_order(self) -> bool:
        """Whether the order of threads is declared to be kept."""
        return self.ordered or bool(self.scan)

    def is_so_far(self, result: int) -> bool:
        """Whether a result, by its number, is what threads combine to up to this one."""
        return bool(self.scan) and result < len(self.args)

    def by_value(self, items: Sequence[Item]) -> tuple[tuple[Item, ...], ...]:
        """Return `args` or `results` (or what goes with them) as a tuple a value."""
        size = len(self.identity)
        return tuple([tuple(items[n : n + size]) for n in range(0, len(items), size)])


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class Issue(Statement):
    """Begin the stores of `body` by an instruction that ends them later.

    Args:
        instruction: the name of a row whose completion is "group".
        body: loops, tests and stores of what one load finds, or of a constant.
    """

    encloses: ClassVar = ("body",)
    form: ClassVar = "issue {node.instruction}"
    instruction: str
    body: tuple[Stmt, ...]
    origin: Origin | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Commit(Statement):
    """Close the group of the copies that this thread issued since it closed one."""

    counts: ClassVar = True
    form: ClassVar = "commit"
    origin: Origin | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Wait(Statement):
    """Wait until at most the last `pending` groups that this thread closed are unfinished."""

    counts: ClassVar = True
    form: ClassVar = "wait {node.pending}"
    pending: int
    origin: Origin | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Until(Statement):
    """End the loop whose last statement this is, where the condition holds."""

    evaluates: ClassVar = ("condition",)
    form: ClassVar = "until {node.condition}"
    condition: Expr
    origin: Origin | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Tile(Statement):
    """One instruction on small matrices that a warp or a thread holds, and its behaviour.

    Args:
        instruction: the name of its row in the table of instructions.
        operands: by role, the buffers that hold its matrices.
        body: what it does, as statements: loops of static extents, without tests.
    """

    encloses: ClassVar = ("body",)
    threads: ClassVar = "warp"
    instruction: str
    operands: tuple[tuple[str, Buffer], ...]
    body: tuple[Stmt, ...]
    origin: Origin | None = None

    @property
    def over_lanes(self) -> bool:
        """Whether the lanes of a warp execute it together."""
        return any(
            isinstance(node, Loop) and node.parallel is ParallelType.block_x for node in self.body
        )


@dataclass(frozen=True, eq=False, slots=True)
class Launch(Statement):
    """One launch of a program that is several.

    Args:
        extents: of each launch dimension in use, in the order x, y, z of grid, then block.
        body: what its threads execute.
    """

    encloses: ClassVar = ("body",)
    form: ClassVar = "launch"
    extents: tuple[tuple[ParallelType, Expr], ...]
    body: tuple[Stmt, ...]
    origin: Origin | None = None


Stmt: TypeAlias = (
    Loop | If | Allocate | Store | Let | Barrier | Shuffle | Arrive | Collective
    | Issue | Commit | Wait | Until | Tile | Launch
)  # fmt: skip
S = TypeVar("S", bound="Stmt")
EMPTY: Mapping[Buffer, Buffer] = MappingProxyType({})


def one_launch(node: Stmt) -> InternalError:
    """Return the error of a reader that takes launches one by one, and tiles as their bodies.

    `Program.launches` and `tiles.without_tiles` give it what it reads.
    """
    kind, inner = type(node).__name__.lower(), sum(map(len, bodies(node)))
    return InternalError(kind, f"a reader of one {kind} was given {inner} statements")


class StatementVisitor:
    """Hands each statement to the method of its class: `visit_store`, `visit_loop`, `visit_if`.

    A reader has methods for those that it cares about, and says in `visit_other` what becomes of
    all others, by what they declare; else they are an error by name.

    Source: `ast.NodeVisitor` of Python.
    """

    def visit(self, node: Stmt, *given: Any) -> Any:
        """Return what the method of a statement's class returns."""
        method = getattr(self, f"visit_{type(node).__name__.lower()}", self.visit_other)
        return method(node, *given)

    def visit_other(self, node: Stmt, *_: Any) -> Any:
        """Read a statement that has no method."""
        if isinstance(node, (Launch, Tile)):
            raise one_launch(node)
        raise InternalError(f"{node}", f"{type(self).__name__} has no case for it")


def bodies(node: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """Return the nested bodies of a statement."""
    names = node.encloses
    return tuple([getattr(node, name) for name in names]) if names else ()


def meets(node: Stmt) -> str:
    """Return whose threads meet at `node`: of a "warp", of a "block", of the "grid"; "" of none."""
    if isinstance(node, Tile) and not node.over_lanes:
        return ""
    return node.scope if isinstance(node, Barrier) else node.threads


def is_sync(node: Stmt) -> bool:
    """Whether `node` itself is reached by all threads of a warp, a block or the grid together."""
    return bool(meets(node))


def is_unconditional(node: Stmt) -> bool:
    """Whether `node` itself stands under no test: threads meet at it, or count groups."""
    return node.counts or is_sync(node)


def holds_sync(body: tuple[Stmt, ...]) -> bool:
    """Whether a statement in `body`, at any depth, must be run whatever a test says."""
    return any(is_unconditional(node) for node, _ in walk(body))


def walk(
    body: tuple[Stmt, ...], ancestors: tuple[Stmt, ...] = ()
) -> Iterator[tuple[Stmt, tuple[Stmt, ...]]]:
    """Yield (statement, ancestors), pre-order, ancestors outermost first."""
    # No recursion: each level of generators would hand every statement on.
    stack = [(iter(body), ancestors)]
    while stack:
        rest, around = stack[-1]
        for node in rest:
            yield node, around
            inner = bodies(node)
            if inner:
                below = (*around, node)
                stack += [(iter(part), below) for part in reversed(inner) if part]
                break
        else:
            stack.pop()


def written(body: Iterable[Stmt]) -> frozenset[Buffer]:
    """Return the buffers that statements, at any depth, make or store to."""
    nodes = [node for node, _ in walk(tuple(body))]
    stored = [own.buffer for node in nodes if (own := node.own) is not None]
    return frozenset([*allocated(nodes), *stored])


def before(terms: Iterable[Expr], body: Sequence[Stmt]) -> list[Expr]:
    """Return those conditions that may be asked in front of statements instead of among them.

    One that loads what the statements store, or make, has another value there, or none.
    """
    found = list(terms)
    if not any(True for term in found for _ in loads(term)):
        return found
    changed = written(body)
    return [t for t in found if changed.isdisjoint(load.buffer for load in loads(t))]


def defined(node: Stmt) -> Local | None:
    """Return the name that a statement defines for the rest of the body around it."""
    return getattr(node, node.binds) if node.binds else None


def allocated(nodes: Iterable[Stmt]) -> tuple[Buffer, ...]:
    """Return the buffers that statements make themselves, each once."""
    return tuple(dict.fromkeys([getattr(node, node.makes) for node in nodes if node.makes]))


def expressions(node: Stmt) -> tuple[Expr, ...]:
    """Return the expressions that a statement itself evaluates; a Collective's are in its body."""
    found: list[Expr] = []
    for name in node.evaluates:
        value = getattr(node, name)
        found += value if isinstance(value, tuple) else (value,)
    return tuple(found)


def loaded(node: Stmt) -> tuple[Load, ...]:
    """Return the loads that a statement itself performs, each once, in order of appearance."""
    return tuple(dict.fromkeys([load for value in expressions(node) for load in loads(value)]))


def map_expressions(node: S, rule: Callable[[Expr], Expr]) -> S:
    """Return `node` with `rule` applied to each expression that it evaluates, not in its bodies."""
    changes: dict[str, object] = {}
    for name in node.rewrites or node.evaluates:
        value = getattr(node, name)
        new = _all(rule, value) if isinstance(value, tuple) else rule(value)
        if new is not value:
            changes[name] = new
    return _changed(node, changes) if changes else node


def map_accesses(
    node: S, rule: Callable[[Load], Load], other: Mapping[Buffer, Buffer] = EMPTY
) -> S:
    """Return `node` with `rule` applied to each element that it loads or writes itself.

    `other` says what stands for the buffers that it makes.
    """
    found = map_expressions(node, lambda value: map_loads(value, rule))
    changes: dict[str, object] = {}
    own = found.own
    if own is not None and (to := rule(own)) is not own:
        changes.update(zip(found.element, (to.buffer, to.args, to.flat), strict=False))
    if found.makes and (storage := getattr(found, found.makes)) in other:
        changes[found.makes] = other[storage]
    return _changed(found, changes) if changes else found


def _all(rule: Callable[[Expr], Expr], items: tuple[Expr, ...]) -> tuple[Expr, ...]:
    made = tuple([rule(item) for item in items])
    return items if all(a is b for a, b in zip(items, made, strict=True)) else made


def with_bodies(node: Stmt, inner: tuple[tuple[Stmt, ...], ...]) -> Stmt:
    """Return `node` with other nested bodies; itself where they are the same."""
    if all(a is b for a, b in zip(bodies(node), inner, strict=True)):
        return node
    return _changed(node, dict(zip(node.encloses, inner, strict=True)))


def _changed(node: S, changes: Mapping[str, object]) -> S:
    """Return a statement with other values of some fields, sooner than `dataclasses.replace`."""
    kind: Any = type(node)
    made: S = kind(*[changes.get(name, getattr(node, name)) for name in kind.__match_args__])
    return made


def map_body(
    body: tuple[Stmt, ...], rule: Callable[[Stmt], Stmt | tuple[Stmt, ...] | None]
) -> tuple[Stmt, ...]:
    """Return `body` rewritten bottom-up: `rule` gets each statement with its bodies rewritten.

    `rule` returns the statement itself, another, several, or None to drop it. The same object
    comes back where nothing changed.
    """
    result: list[Stmt] = []
    changed = False
    for node in body:
        inner = tuple([map_body(b, rule) for b in bodies(node)])
        new = rule(with_bodies(node, inner) if inner else node)
        changed = changed or new is not node
        if isinstance(new, tuple):
            result.extend(new)
        elif new is not None:
            result.append(new)
    return tuple(result) if changed else body
