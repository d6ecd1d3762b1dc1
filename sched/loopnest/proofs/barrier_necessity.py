"""Find superfluous barriers: without them, or with a narrower scope, there is no race either.

Whether there is one depends on the accesses to memory that threads share alone. A program is
therefore looked at without its other statements (`sliced`), and around one barrier (`focused`),
which allows for blocks as large as they may be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, TypeVar

from loopnest import kir
from loopnest.kir.tiles import without_tiles
from loopnest.proofs.affine import NotAffine
from loopnest.proofs.enumeration.access_instances import InstanceTable
from loopnest.proofs.enumeration.enumerated_races import EnumeratedRaces
from loopnest.proofs.obligations import obligations, program_of
from loopnest.proofs.point_arrays import Enumeration, NoLaunch, TooMany, Undecidable
from loopnest.proofs.program_model import Model
from loopnest.proofs.report import Finding, Place
from loopnest.proofs.single_launches import SingleLaunch, single_launches
from loopnest.proofs.size_choice import filled, fulfils, large_sizes, points_at, small_sizes
from loopnest.proofs.symbolic import NotProved, prove_order
from loopnest.proofs.witness import Witness, among_tiles
from loopnest.scalar import dtypes
from loopnest.scalar.enums import WARP, Memory
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Buffer,
    Const,
    Expr,
    Index,
    Local,
    Op,
    integer,
    loads,
    substitute,
    walk,
)
from loopnest.tensor.math_snapshot import MathSnapshot

MOST_POINTS = 6_000_000
"""How many points of statements are looked at, in all sizes together."""

S = TypeVar("S", bound=kir.Stmt)
Test = Callable[[InstanceTable, S], Iterator[Finding]]
"""Yields the races that there are if something is done to a statement."""


def _deleted(table: InstanceTable, barrier: kir.Barrier) -> Iterator[Finding]:
    return EnumeratedRaces(table, [barrier]).conflicts()


def superfluous_barriers(k: Any, **sizes: int) -> list[kir.Barrier]:
    """Return the barriers of a kernel whose deletion, of all instances, leaves no race.

    Sizes are looked at in which loops of symbolic extent run twice, and in which blocks have up to
    1024 threads; a barrier that none of them needs is superfluous, unless isl names sizes at which
    it may be needed.

    Args:
        k: a kernel, as `loopnest.lower` returns it, without races.
        **sizes: values of size symbols.
    """
    result: list[kir.Barrier] = []
    for part in _parts(*program_of(k, "superfluous_barriers")):
        left = _not_needed(part.program, part.barriers, sizes, _deleted)
        model, few = Model(part.program), sliced(part.program)
        result += [b for b in left if not _may_be_needed(model, few, part.launch.math, sizes, b)]
    return result


@dataclass(frozen=True, slots=True)
class _LaunchOrder:
    """One launch of a kernel, without tiles.

    Args:
        launch: the launch.
        program: what it runs, without tiles.
        ordering: its barriers, waits and atomic stores, in program order, without what stands in no
            nest of the kernel: the edges of tiles, and the barrier in place of earlier launches.
    """

    launch: SingleLaunch
    program: kir.Program
    ordering: list[kir.Stmt]

    @property
    def barriers(self) -> list[kir.Barrier]:
        """The barriers among what orders accesses."""
        return [n for n in self.ordering if isinstance(n, kir.Barrier)]

    def seen(self, finding: Finding) -> Finding:
        """Return a finding about this nest as one about that of the kernel."""
        return finding.moved(among_tiles(self.launch.program)).moved(self.launch.place)


def _parts(program: kir.Program, math: MathSnapshot) -> Iterator[_LaunchOrder]:
    """Yield each launch of a kernel; all of it where it is one."""
    own = {n for n in program.nodes if isinstance(n, kir.Barrier)}
    several = single_launches(program, math) if len(program.launches) > 1 else ()
    for launch in several or [SingleLaunch(program, math, frozenset())]:
        plain = without_tiles(launch.program)
        ordering = [n for n in plain.nodes if _orders(n)]
        ordering = [n for n in ordering if n in own or not isinstance(n, kir.Barrier)]
        yield _LaunchOrder(launch, plain, ordering)


def necessity(program: kir.Program, math: MathSnapshot, given: Mapping[str, int]) -> list[Finding]:
    """Return a note on each barrier, wait and atomic store: what needs it, or that nothing does.

    A note of the kind "needed" has the two accesses that meet without it, one "superfluous" has the
    statement: no size that was looked at needs it, and isl names none.
    """
    found: list[Finding] = []
    for part in _parts(program, math):
        found += _Necessity(part, given).notes()
    return found


class _Necessity:
    """What needs the synchronisation of one launch."""

    def __init__(self, part: _LaunchOrder, given: Mapping[str, int]) -> None:
        self.part, self.program, self.given = part, part.program, given
        self.races: dict[kir.Stmt, Finding] = {}
        self.looked_at: set[kir.Stmt] = set()
        self.witness = Witness(Model(self.program), given, (1, 1, 1), (1, 1, 1))

    def notes(self) -> list[Finding]:
        """Return a note on each statement, in program order."""
        every = self.part.ordering
        plain = [n for n in every if not isinstance(n, kir.Barrier)]
        small = small_sizes(self.program, self.given)
        # The whole program first: its accesses have their lines. Of slices they are looked for.
        left = _tried(self.program, every, small, self._kept)
        left = [n for n in plain if n in left] + _not_needed(
            self.program, [n for n in left if isinstance(n, kir.Barrier)], self.given, self._kept
        )
        few = sliced(self.program)
        return [self._note(node, node in left, few) for node in every]

    def _kept(self, table: InstanceTable, node: kir.Stmt) -> Iterator[Finding]:
        """Yield a race that there is without a statement, and keep it."""
        for race in islice(EnumeratedRaces(table, [node]).conflicts(), 1):
            self.races[node] = race
            yield race
        self.looked_at.add(node)

    def _note(self, node: kir.Stmt, alone: bool, few: kir.Program) -> Finding:
        what = _noun(node)
        race = self.races.get(node)
        if not alone and race is not None:
            found = self._about(node, "needed", "")
            assert found.at is not None
            message = f"{what} at nest line {found.at.line} orders two accesses"
            sides = self.part.seen(race.moved(self._placed))
            return replace(
                found, message=message, tensor=race.tensor, sizes=race.sizes, at=sides.at,
                other=sides.other,
            )  # fmt: skip
        if node not in self.looked_at:
            text = f"whether {what} is needed depends on data"
            return self._about(node, "needed", text)
        if isinstance(node, kir.Barrier) and _may_be_needed(
            Model(self.program), few, self.part.launch.math, self.given, node
        ):
            text = f"{what} may be needed at sizes with too many points to look at"
            return self._about(node, "needed", text)
        text = f"{what} is superfluous: without it there is no race at any size looked at"
        return self._about(node, "superfluous", text)

    def _about(self, node: kir.Stmt, kind: str, text: str) -> Finding:
        return self.part.seen(self.witness.statement(kind, text, node, "note"))

    def _placed(self, place: Place) -> Place:
        """Return a place of a slice as one of the launch, by the text of its statement."""
        texts = [text.strip() for text in self.witness.texts]
        if texts[place.line - 1 : place.line] == [place.text]:
            return place
        target = place.text.partition(" = ")[0]
        same = [n for n, text in enumerate(texts, 1) if text == place.text]
        same += [n for n, text in enumerate(texts, 1) if text.partition(" = ")[0] == target]
        return replace(place, line=same[0], text=texts[same[0] - 1]) if same else place


def _orders(node: kir.Stmt) -> bool:
    """Whether a statement is there to order accesses."""
    return isinstance(node, (kir.Barrier, kir.Wait)) or (
        isinstance(node, kir.Store) and node.atomic
    )


def _noun(node: kir.Stmt) -> str:
    if isinstance(node, kir.Barrier):
        return f"the barrier of the {node.scope}"
    return "the wait for copies" if isinstance(node, kir.Wait) else "the atomic store"


def wide_barriers(k: Any, **sizes: int) -> list[kir.Barrier]:
    """Return the barriers of a block in whose place one of each warp leaves no race.

    Only those are told that were looked at in a block of several warps.

    Args:
        k: see `superfluous_barriers`.
        **sizes: values of size symbols.
    """
    seen: set[kir.Barrier] = set()
    found: list[kir.Barrier] = []

    def narrow(table: InstanceTable, barrier: kir.Barrier) -> Iterator[Finding]:
        yield from EnumeratedRaces(table, narrow=[barrier]).conflicts()
        if table.space.threads > WARP:
            seen.add(barrier)

    for part in _parts(*program_of(k, "wide_barriers")):
        blocks = [b for b in part.barriers if b.scope == "block"]
        found += _not_needed(part.program, blocks, sizes, narrow)
    return [b for b in found if b in seen]


def _not_needed(
    program: kir.Program, barriers: Sequence[kir.Barrier], given: Mapping[str, int], test: Test[Any]
) -> list[kir.Barrier]:
    """Return those of some barriers of which a test finds no race, at any size looked at."""
    few = sliced(program)
    small, large = small_sizes(few, given), large_sizes(few, given)
    left = _tried(few, list(barriers), chain(small, large), test)
    result = []
    for barrier in left:
        part = focused(few, barrier)
        sizes = chain(large_sizes(part, given), small_sizes(part, given))
        result += _tried(part, [barrier], sizes, test)
    return result


def _tried(
    program: kir.Program, left: list[S], sizes: Iterable[Mapping[str, int]], test: Test[S]
) -> list[S]:
    """Return those of some statements of which a test finds no race in a part of a program."""
    model, budget = Model(program), MOST_POINTS
    for some in sizes:
        if not left:
            break
        cost = points_at(program, some)
        if cost <= budget:
            budget -= cost
            left = _quiet(model, some, left, test)
    return left


def _quiet(model: Model, sizes: Mapping[str, int], barriers: list[S], test: Test[S]) -> list[S]:
    """Return the statements of `_without_race`; all of them where that cannot be told."""
    try:
        return _without_race(model, sizes, barriers, test)
    except (NoLaunch, TooMany, Undecidable, ZeroDivisionError):
        return barriers


def _without_race(
    model: Model, sizes: Mapping[str, int], barriers: Iterable[S], test: Test[S]
) -> list[S]:
    """Return those of some statements of which a test finds no race at these sizes.

    Raises:
        NoLaunch, TooMany, Undecidable, ZeroDivisionError: that cannot be told.
    """
    space = Enumeration(model, sizes, 1 << 20)
    table = InstanceTable(model, sizes, space, Witness(model, sizes, space.grid, space.block))
    return [b for b in barriers if next(test(table, b), None) is None]


def _may_be_needed(
    model: Model,
    few: kir.Program,
    math: MathSnapshot,
    given: Mapping[str, int],
    barrier: kir.Barrier,
) -> bool:
    """Whether isl names sizes at which there may be a race without a barrier.

    Where data decide whether there is one, or that has too many points to tell, the answer is yes.
    """
    works, exchanges, _ = obligations(model, math)
    try:
        prove_order(model, math, works, exchanges, dict(given), [barrier])
    except NotProved as why:
        found = filled(model.program, given, why.sizes)
        if not why.sizes or not fulfils(model.program, found):
            return False
        if points_at(few, found) > MOST_POINTS:
            return True
        try:
            return not _without_race(Model(few), found, [barrier], _deleted)
        except (TooMany, Undecidable):
            return True
        except (NoLaunch, ZeroDivisionError):
            return False
    except NotAffine:
        pass
    return False


# Slices of a program that suffice to find its races


def sliced(program: kir.Program) -> kir.Program:
    """Return a program without the statements that have no part in races between threads."""
    watched = _watched(program)
    names = _names(program, watched)

    def rule(node: kir.Stmt) -> kir.Stmt | tuple[kir.Stmt, ...] | None:
        match node:
            case kir.Collective():
                return node.body
            case kir.Shuffle():
                return None
            case kir.Let() | kir.Store():
                used = node.var in names if isinstance(node, kir.Let) else node.storage in watched
                return node if used or _reads(node, watched) else None
        return node if any(kir.bodies(node)) or not node.encloses else None

    def short(node: kir.Stmt) -> kir.Stmt:
        if isinstance(node, kir.Store) and not any(b in watched for b in _loaded([node.value])):
            # A race is about where and when; the value of a store that loads no shared memory is
            # neither.
            return replace(node, value=Const(0, node.storage.dtype))
        return node

    body = kir.map_body(program.body, rule)
    return program.with_body(_without_idle(kir.map_body(body, short)))


def _without_idle(body: tuple[kir.Stmt, ...]) -> tuple[kir.Stmt, ...]:
    """Return `body` without loops and tests that hold allocations alone."""

    def rule(node: kir.Stmt) -> kir.Stmt | None:
        inner = [n for b in kir.bodies(node) for n in b]
        idle = all(isinstance(n, kir.Allocate) for n in inner)
        return None if kir.bodies(node) and idle else node

    return kir.map_body(body, rule)


def _watched(program: kir.Program) -> frozenset[Buffer]:
    """Return the buffers that threads share and some thread stores to, with their spaces."""
    stored = {n.storage for n in program.nodes if isinstance(n, kir.Store)}
    common = {b for b in (*stored, *kir.allocated(program.nodes)) if b.memory is not Memory.LOCAL}
    spaces = {b.alias_of or b.name for b in stored}
    return frozenset(b for b in common if b in stored or (b.alias_of or b.name) in spaces)


def _names(program: kir.Program, watched: Collection[Buffer]) -> set[Local]:
    """Return the names that decide where and whether shared memory is used."""
    made: dict[Local, Expr] = {}
    queue: list[Expr] = []
    for node, _ in kir.walk(program.body):
        match node:
            case kir.If():
                queue.append(node.condition)
            case kir.Loop():
                queue.append(node.var.extent)
            case kir.Store():
                queue += node.index
            case kir.Let():
                made[node.var] = node.value
        for part in kir.expressions(node):
            queue += [part] if any(b in watched for b in _loaded([part])) else []
    found: set[Local] = set()
    while queue:
        for part in walk(queue.pop()):
            if isinstance(part, Local) and part not in found:
                found.add(part)
                queue += [made[part]] if part in made else []
    return found


def _reads(node: kir.Stmt, watched: Collection[Buffer]) -> bool:
    return any(load.buffer in watched for load in kir.loaded(node))


def _loaded(values: Sequence[Expr]) -> Iterator[Buffer]:
    for value in values:
        yield from (load.buffer for load in loads(value))


# Around one barrier


def focused(program: kir.Program, barrier: kir.Barrier) -> kir.Program:
    """Return what a thread does around a barrier, without long loops before and after it.

    For a barrier of a block or a warp, only the first block runs. Of each body a stretch of its
    statements is kept, of each loop at most two iterations (one, where the stretch is not the whole
    body). Each race of the result is a race of the program.
    """
    launch = [
        (d, ONE if d.is_grid and barrier.scope != "grid" else size) for d, size in program.launch
    ]
    return replace(program, launch=tuple(launch), body=_stretch(program.body, barrier)[0])


def _stretch(
    body: tuple[kir.Stmt, ...], barrier: kir.Barrier
) -> tuple[tuple[kir.Stmt, ...], bool, bool]:
    """Return a stretch of a body, whether that is all of it, and whether it is in a loop."""
    (place,) = [n for n, node in enumerate(body) if _holds(node, barrier)]
    node = body[place]
    whole, looped = True, False
    match node:
        case kir.If():
            first = any(_holds(n, barrier) for n in node.body)
            inner, whole, looped = _stretch(node.body if first else node.orelse, barrier)
            node = replace(node, body=inner if first else (), orelse=() if first else inner)
        case kir.Loop():
            inner, whole, looped = _stretch(node.body, barrier)
            if node.parallel.is_thread:
                node = replace(node, body=inner)
            else:
                # Two iterations show a race of what stands behind the barrier with what stands
                # before it in the next one, but only where all of the body is kept: what is left
                # out could have a barrier.
                node = _shortened(node, inner, 2 if whole and not looped else 1)
                looped = True
    low, high = place, place + 1
    if not looped:
        while low and not _is_long(body[low - 1]):
            low -= 1
        while high < len(body) and not _is_long(body[high]):
            high += 1
    named = (kir.Let, kir.Arrive, kir.Allocate)
    before = [n for n in body[:low] if isinstance(n, named)]
    made = (*before, *body[low:place], node, *body[place + 1 : high])
    return made, whole and low == 0 and high == len(body), looped


def _holds(node: kir.Stmt, barrier: kir.Barrier) -> bool:
    return node is barrier or any(_holds(n, barrier) for b in kir.bodies(node) for n in b)


def _is_long(node: kir.Stmt) -> bool:
    """Whether a statement has a loop, not bound to threads, of symbolic extent."""
    symbolic = isinstance(node, kir.Loop) and not isinstance(node.var.extent, Const)
    if symbolic and isinstance(node, kir.Loop) and not node.parallel.is_thread:
        return True
    return any(_is_long(n) for b in kir.bodies(node) for n in b)


def _shortened(loop: kir.Loop, body: tuple[kir.Stmt, ...], most: int) -> kir.Stmt:
    """Return the first iterations of a loop."""
    if most == 1:
        first: dict[Expr, Expr] = {loop.var: ZERO}
        test = Op("lt", (ZERO, loop.var.extent), dtypes.bool_)
        return kir.If(test, _substituted(body, first))
    extent = Op("min", (loop.var.extent, integer(most)), dtypes.index)
    var = Index(loop.var.name, extent)
    return replace(loop, var=var, body=_substituted(body, {loop.var: var}))


def _substituted(body: tuple[kir.Stmt, ...], values: dict[Expr, Expr]) -> tuple[kir.Stmt, ...]:
    def rule(node: kir.Stmt) -> kir.Stmt:
        if not any(v in set(walk(e)) for e in kir.expressions(node) for v in values):
            return node
        return kir.map_expressions(node, lambda value: substitute(value, values))

    return kir.map_body(body, rule)
