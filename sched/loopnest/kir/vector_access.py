"""Which accesses of a vectorized loop are wide: one access for all its lanes, in large pieces.

A loop of this kind, with a static extent and nothing in it but definitions, stores and scalars of
its own, runs in three steps: wide loads, the lanes one after the other on registers, wide stores::

    for v in 4:  # vectorize             x4 = x[i * 4:i * 4 + 4]
      y[i * 4 + v] = exp(x[i * 4 + v])   for v in 4: y4[v] = exp(x4[v])
                                         y[i * 4:i * 4 + 4] = y4

An access to GLOBAL or SHARED memory takes part where neighbouring lanes touch neighbouring elements
and where the first one's offset is proved to be a multiple of the piece, from the sizes that
`Program.conditions` and `Program.requires` divide. It is then aligned if its buffer is: the arena
sees to that for SHARED memory, the launch checks it for GLOBAL (`alignments`). Loads that a
condition guards stay single, and so does what the three steps would put out of order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass

from loopnest.base.errors import LoweringError
from loopnest.kir import Allocate, Issue, Let, Loop, Program, Stmt, Store, expressions, walk
from loopnest.kir.shared_memory import permuted
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Buffer,
    Const,
    Expr,
    Index,
    Load,
    Op,
    Symbol,
    free_indices,
    integer,
    loads,
    rebuild,
    substitute,
    terms_of,
)
from loopnest.scalar.expr import walk as walk_expr
from loopnest.scalar.facts import Facts
from loopnest.scalar.simplify import Simplifier

PIECES = (16, 8, 4)
"""Bytes of one access, the widest first."""


@dataclass(frozen=True, eq=False, slots=True)
class WideAccess:
    """One wide access.

    Args:
        loop: the vectorized loop.
        statement: the statement in it that loads or stores.
        buffer: in GLOBAL or SHARED memory.
        is_store: whether it writes; else it is `load`.
        lanes: elements, one an iteration.
        piece_bytes: bytes of each access: 16, 8 or 4; what lanes take is a multiple of it.
        index: of the first lane's element.
        flat: whether `index` is one offset.
        load: the expression that it stands for, None for a store.
    """

    loop: Loop
    statement: Stmt
    buffer: Buffer
    is_store: bool
    lanes: int
    piece_bytes: int
    index: tuple[Expr, ...]
    flat: bool
    load: Load | None = None

    @property
    def piece_lanes(self) -> int:
        """Elements of each access."""
        return self.piece_bytes // self.buffer.dtype.size


def wide_accesses(program: Program) -> tuple[WideAccess, ...]:
    """Return the wide accesses of `program`, in the order of its statements."""
    loops = [n for n in program.nodes if isinstance(n, Loop) and is_vector(n)]
    finder = VectorFinder(program) if loops else None
    return tuple([a for loop in loops if finder is not None for a in finder.of_loop(loop)])


def alignments(accesses: Iterable[WideAccess]) -> dict[Buffer, int]:
    """Return what the address of each GLOBAL buffer must be a multiple of, in bytes."""
    found: dict[Buffer, int] = {}
    for access in accesses:
        if access.buffer.memory is Memory.GLOBAL:
            found[access.buffer] = max(access.piece_bytes, found.get(access.buffer, 1))
    return found


def require_wide_copies(program: Program) -> None:
    """Refuse copies in flight of elements that are narrower than a copy, and not joined by lanes.

    Raises:
        LoweringError: there is one.
    """
    finder: VectorFinder | None = None
    for node, ancestors in walk(program.body):
        if not isinstance(node, Store) or node.storage.dtype.size >= PIECES[-1]:
            continue
        issue = next((n for n in reversed(ancestors) if isinstance(n, Issue)), None)
        if issue is None or not isinstance(node.value, Load):
            continue
        finder, loop = finder or VectorFinder(program), ancestors[-1]
        if not isinstance(loop, Loop) or not finder.copied_pieces(loop):
            raise LoweringError(
                node.tensor,
                f"{issue.instruction} moves 4, 8 or 16 aligned bytes, and its copies are of "
                f"{node.storage.dtype.size}",
                "vectorize the innermost axis of its copy, and state by f.assume that it divides "
                "the size",
            )


class VectorFinder:
    """Finds the wide accesses of the loops of one program."""

    def __init__(self, program: Program) -> None:
        self.algebra = Simplifier(_facts(program))
        self.algebra.launch = dict(program.launch)
        self.values: dict[Expr, Expr] = {
            n.var: n.value
            for n in program.nodes
            if isinstance(n, Let) and n.var.dtype is dtypes.index
        }

    def of_loop(self, loop: Loop) -> tuple[WideAccess, ...]:
        """Return the wide accesses of `loop`: none where it is no vectorized one."""
        if not is_vector(loop):
            return ()
        found: dict[object, WideAccess] = {}
        for node in loop.body:
            for access in self._of_statement(loop, node):
                found.setdefault(node if access.load is None else access.load, access)
        return tuple([a for a in found.values() if _keeps_order(a, tuple(found.values()))])

    def copied_pieces(self, loop: Loop) -> int:
        """Return the bytes of the widest pieces in which a loop copies all its lanes; 0 for none.

        A wide load before a wide store is another order than lane by lane, if the two overlap.
        """
        store = loop.body[0]
        if not is_vector(loop) or len(loop.body) > 1 or not isinstance(store, Store):
            return 0
        source, target = store.value, store.storage
        if (
            not isinstance(source, Load)
            or source.buffer is target
            or source.dtype is not target.dtype
        ):
            return 0
        assert isinstance(loop.extent, int)
        return min([self.piece(side, loop.var, loop.extent) for side in (store.own, source)])

    def refusal(self, loop: Loop) -> tuple[str, str]:
        """Return why a vectorized loop without wide accesses has none, and what would help."""
        if not is_vector(loop):
            return (
                "a test, a loop or a barrier stands inside of the loop",
                "vectorize the innermost axis, and state by f.assume that its extent divides the "
                "size",
            )
        refused = [self._single(loop, load) for load in memory_accesses(loop)]
        if not refused:
            return (
                "all that it accesses in each iteration lies in registers",
                "vectorize the tensor that loads or stores memory: an output, or a cache_after "
                "of an input",
            )
        return refused[0]

    def _single(self, loop: Loop, load: Load) -> tuple[str, str]:
        """Return why an access is single, and what would help."""
        assert isinstance(loop.extent, int)
        buffer = load.buffer
        if self._start(load, loop.var, loop.extent) is None:
            size = self._undivided(loop, load)
            if size is not None:
                return (
                    f"neighbouring lanes access neighbouring elements of {buffer.name} only where "
                    f"{loop.extent} divides {size}",
                    f'state it: f.assume("{size} % {loop.extent} == 0")',
                )
            return (
                f"neighbouring lanes do not access neighbouring elements of {buffer.name}",
                f"vectorize an axis that runs along the innermost one of {buffer.name}, split "
                "from it without a merge",
            )
        if self._piece(loop, load):
            return (
                f"the accesses of {buffer.name} by several statements would change their order",
                "vectorize the loop of one statement",
            )
        if loop.extent * buffer.dtype.size < PIECES[-1]:
            return (
                f"{loop.extent} elements of {buffer.name} are fewer than {PIECES[-1]} bytes",
                "split by a larger factor",
            )
        return (
            f"nothing says that the first lane accesses an element of {buffer.name} at a multiple "
            f"of {min(loop.extent, PIECES[0] // buffer.dtype.size)}",
            f"state by f.assume that the vector divides the row length of {buffer.name}",
        )

    def _undivided(self, loop: Loop, load: Load) -> Expr | None:
        """Return the size that the lanes would have to divide for an access to be wide, if any."""
        assert isinstance(loop.extent, int)
        lanes = integer(loop.extent)
        for node in dict.fromkeys(
            part for place in load.args for part in walk_expr(self._plain(place))
        ):
            if not isinstance(node, Op) or node.op not in ("floordiv", "mod"):
                continue
            size = node.args[1]
            if isinstance(size, Symbol) and not self.algebra.divides(lanes, size):
                other = copy(self)
                other.algebra = Simplifier(self.algebra.facts.with_divisor(size, lanes))
                other.algebra.launch = self.algebra.launch
                again = tuple([other.algebra.simplify(self._plain(place)) for place in load.args])
                if other.piece(Load(load.buffer, again, load.flat), loop.var, loop.extent):
                    return size
        return None

    def _of_statement(self, loop: Loop, node: Stmt) -> Iterator[WideAccess]:
        if isinstance(node, (Store, Let)):
            for load in _certain_loads(node.value):
                piece = self._piece(loop, load)
                if piece:
                    yield self._access(loop, node, load, piece, load)
        if isinstance(node, Store):
            piece = self._piece(loop, node.own)
            if piece:
                yield self._access(loop, node, node.own, piece, None)

    def _access(
        self, loop: Loop, node: Stmt, own: Load, piece: int, load: Load | None
    ) -> WideAccess:
        assert isinstance(loop.extent, int)
        first, store = first_lane(loop, own.args), load is None
        return WideAccess(loop, node, own.buffer, store, loop.extent, piece, first, own.flat, load)

    def _piece(self, loop: Loop, load: Load) -> int:
        """Return the bytes of the widest pieces of an access; 0 where it is single."""
        if load.buffer.memory is Memory.LOCAL:
            return 0
        assert isinstance(loop.extent, int)
        return self.piece(load, loop.var, loop.extent)

    def piece(self, load: Load, lane: Index, lanes: int) -> int:
        """Return the bytes of the widest pieces in which `lanes` elements can be accessed.

        0 where they do not follow each other, or are not known to be aligned.
        """
        start = self._start(load, lane, lanes)
        if start is None:
            return 0
        for piece in PIECES:
            count = piece // load.dtype.size
            fits = count > 1 and lanes % count == 0
            if fits and self.algebra.divides(integer(count), start):
                return piece
        return 0

    def are_neighbours(self, load: Load, lane: Index, lanes: int) -> bool:
        """Whether `lanes` iterations access elements that follow each other."""
        return self._start(load, lane, lanes) is not None

    def are_whole(self, load: Load, lane: Index, lanes: int) -> bool:
        """Whether `lanes` elements that follow each other lie in a buffer if the first one does."""
        start = self._start(load, lane, lanes)
        sizes = [load.buffer.size] if start is None else [start, load.buffer.size]
        return start is not None and all(self.algebra.divides(integer(lanes), n) for n in sizes)

    def step(self, load: Load, var: Index) -> Expr | None:
        """Return how many elements lie between the accesses of two iterations in a row.

        None where that is not the same for all of them.
        """
        if load.buffer.swizzles:
            return None
        offset = self._offset(load.buffer, tuple(map(self._plain, load.args)), load.flat)
        first = self.algebra.simplify(substitute(offset, {var: ZERO}))
        step = self.algebra.sub(self.algebra.simplify(substitute(offset, {var: ONE})), first)
        moved = Op("add", (first, Op("mul", (var, step), dtypes.index)), dtypes.index)
        # Two iterations alone do not tell: a quotient may move at the third. The whole difference
        # must cancel.
        same = not self.algebra.poly(Op("sub", (offset, moved), dtypes.index))
        return step if same else None

    def _start(self, load: Load, lane: Index, lanes: int) -> Expr | None:
        """Return the offset of the first lane's element, give or take multiples of `lanes`.

        None where the lanes do not follow each other.
        """
        buffer, index = load.buffer, tuple(map(self._plain, load.args))
        if load.flat:
            return None if buffer.swizzles else self._before_lane(index[0], lane)
        for swizzle in buffer.swizzles:
            if not self._moves_whole(swizzle, index, lane, lanes):
                index = permuted(buffer, swizzle, index)
        return self._before_lane(self._offset(buffer, index, False), lane)

    def _offset(self, buffer: Buffer, index: tuple[Expr, ...], flat: bool) -> Expr:
        """Return the distance of an element from the first one, in elements."""
        if flat:
            return index[0]
        total: Expr = ZERO
        for place, stride in zip(index, buffer.strides, strict=True):
            if place is not ZERO:
                term = place if stride is ONE else Op("mul", (place, stride), dtypes.index)
                total = term if total is ZERO else Op("add", (total, term), dtypes.index)
        return total

    def _plain(self, index: Expr) -> Expr:
        """Return an index without names."""
        plain = substitute(index, self.values) if self.values else index
        return index if plain is index else self.algebra.simplify(self._plain(plain))

    def _moves_whole(
        self, swizzle: tuple[int, int], index: tuple[Expr, ...], lane: Index, lanes: int
    ) -> bool:
        """Whether XOR moves all lanes together: both operands are multiples, but for the lane."""
        a, b = swizzle
        moved = self._before_lane(index[b], lane)
        # Of multiples of `lanes`, XOR changes no bit below: neighbours stay neighbours.
        if moved is None or lane in free_indices(index[a]):
            return False
        return all(self.algebra.divides(integer(lanes), i) for i in (index[a], moved))

    def _before_lane(self, offset: Expr, lane: Index) -> Expr | None:
        """Return r where offset = r + lane, r free of `lane`; else None."""
        rest = Op("sub", (offset, lane), dtypes.index)
        atoms = {atom for term in self.algebra.poly(rest) for atom in term}
        return None if any(lane in free_indices(atom) for atom in atoms) else rest


def memory_accesses(loop: Loop) -> Iterator[Load]:
    """Yield the elements of memory whose accesses could be wide."""
    for node in loop.body:
        if isinstance(node, (Store, Let)):
            for load in _certain_loads(node.value):
                if load.buffer.memory is not Memory.LOCAL:
                    yield load
        if isinstance(node, Store) and node.storage.memory is not Memory.LOCAL:
            yield node.own


def first_lane(loop: Loop, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Return `index` where the index of `loop` is 0."""
    return tuple([_at_zero(place, loop.var) for place in index])


def _at_zero(node: Expr, lane: Index) -> Expr:
    if node is lane:
        return ZERO
    args = tuple([_at_zero(a, lane) for a in node.args])
    if isinstance(node, Op) and node.op in ("add", "mul") and ZERO in args:
        return ZERO if node.op == "mul" else args[1] if args[0] is ZERO else args[0]
    return rebuild(node, args)


def is_vector(loop: Loop) -> bool:
    """Whether a loop is vectorized, of 2, 4, 8… iterations, and holds simple statements only."""
    count = loop.extent
    if loop.parallel is not ParallelType.vectorize or not isinstance(count, int):
        return False
    simple = all(isinstance(n, (Store, Let)) or _is_private(n) for n in loop.body)
    simple = simple and not any(isinstance(n, Store) and n.atomic for n in loop.body)
    return count > 1 and count & (count - 1) == 0 and simple


def _is_private(node: Stmt) -> bool:
    return isinstance(node, Allocate) and node.storage.memory is Memory.LOCAL


def _certain_loads(value: Expr) -> Iterator[Load]:
    """Yield the loads that `value` always performs, each once."""
    seen: set[Expr] = set()
    stack = [value]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Load):
            yield node
        # a load that a condition guards may lie outside of its buffer
        guarded = isinstance(node, Op) and node.op in ("where", "and", "or")
        stack.extend(reversed(node.args[:1] if guarded else node.args))


def _keeps_order(access: WideAccess, candidates: tuple[WideAccess, ...]) -> bool:
    """Whether `access` may go before (a load) or behind (a store) all else that its loop does."""
    body = access.loop.body
    buffer = access.buffer
    stores = [k for k, n in enumerate(body) if isinstance(n, Store) and n.storage is buffer]
    if not access.is_store:
        uses = [
            k for k, n in enumerate(body) if any(access.load in loads(e) for e in expressions(n))
        ]
        # A wide load stands before all stores of the lanes; in the order of the text the last lane
        # loads after the first lane stored, unless no statement stores before the use. Lanes
        # themselves are in no order.
        return not stores or uses[-1] <= stores[0]
    others = [k for k, n in enumerate(body) for e in expressions(n)
              if any(load.buffer is buffer for load in loads(e))]  # fmt: skip
    wide = {a.statement for a in candidates if a.is_store}
    after = max(others, default=-1) > body.index(access.statement)
    # A wide store stands behind all lanes: nothing may load the buffer after it, and no single
    # store may come to stand before it.
    return not after and all(body[k] in wide for k in stores)


def _facts(program: Program) -> Facts:
    """Return what the sizes are known to be multiples of."""
    divisible: dict[Expr, list[Expr]] = {}
    for _, condition in (*program.conditions, *program.requires):
        for term in terms_of(condition):
            match term:
                case Op(op="eq", args=(Op(op="mod", args=(value, by)), Const(value=0))):
                    divisible.setdefault(value, []).append(by)
    return Facts(_divisible=divisible)
