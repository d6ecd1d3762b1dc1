"""Find superfluous barriers: without them, or with a narrower scope, there is no race either.

Whether there is one depends on the accesses to memory that threads share alone. A program is
therefore looked at without its other statements, which allows for blocks as large as they may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, TypeVar

from loopnest import kir
from loopnest.proofs.enumeration.access_instances import InstanceTable
from loopnest.proofs.enumeration.enumerated_races import EnumeratedRaces
from loopnest.proofs.point_arrays import Enumeration, NoLaunch, TooMany, Undecidable
from loopnest.proofs.program_model import Model
from loopnest.proofs.program_slices import focused, sliced
from loopnest.proofs.quasi_affine import NotAffine
from loopnest.proofs.report import Finding, Place
from loopnest.proofs.single_launches import single_launches
from loopnest.proofs.size_choice import filled, fulfils, large_sizes, points_at, small_sizes
from loopnest.proofs.symbolic import NotProved, prove_order
from loopnest.proofs.verifier import obligations, program_of
from loopnest.proofs.witness import Witness
from loopnest.scalar.enums import WARP
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
    for program, math in _launches(*program_of(k, "superfluous_barriers")):
        every = [n for n, _ in kir.walk(program.body) if isinstance(n, kir.Barrier)]
        left = _not_needed(program, every, sizes, _deleted)
        model, few = Model(program), sliced(program)
        result += [b for b in left if not _may_be_needed(model, few, math, sizes, b)]
    return result


def _launches(
    program: kir.Program, math: MathSnapshot
) -> Iterator[tuple[kir.Program, MathSnapshot]]:
    """Yield each launch with the math of it; the program itself where it is one."""
    if len(program.launches) == 1:
        yield program, math
        return
    for launch in single_launches(program, math):
        yield launch.program, launch.math


def necessity(program: kir.Program, math: MathSnapshot, given: Mapping[str, int]) -> list[Finding]:
    """Return a note on each barrier, wait and atomic store: what needs it, or that nothing does.

    A note of the kind "needed" has the two accesses that meet without it, one "superfluous" has the
    statement: no size that was looked at needs it, and isl names none.
    """
    found: list[Finding] = []
    for part, own in _launches(program, math):
        found += _Necessity(part, own, given).notes()
    return found


class _Necessity:
    """What needs the synchronisation of one launch."""

    def __init__(self, program: kir.Program, math: MathSnapshot, given: Mapping[str, int]) -> None:
        self.program, self.math, self.given = program, math, given
        self.races: dict[kir.Stmt, Finding] = {}
        self.looked_at: set[kir.Stmt] = set()
        self.witness = Witness(Model(program), given, (1, 1, 1), (1, 1, 1))

    def notes(self) -> list[Finding]:
        """Return a note on each statement, in program order."""
        every = [n for n, _ in kir.walk(self.program.body) if _orders(n)]
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
            found = self.witness.statement("needed", "", node, "note")
            assert found.at is not None
            message = f"{what} at nest line {found.at.line} orders two accesses"
            sides = [self._placed(place) for place in (race.at, race.other)]
            return replace(
                found, message=message, tensor=race.tensor, sizes=race.sizes, at=sides[0],
                other=sides[1],
            )  # fmt: skip
        if node not in self.looked_at:
            text = f"whether {what} is needed depends on data"
            return self.witness.statement("needed", text, node, "note")
        if isinstance(node, kir.Barrier) and _may_be_needed(
            Model(self.program), few, self.math, self.given, node
        ):
            text = f"{what} may be needed at sizes with too many points to look at"
            return self.witness.statement("needed", text, node, "note")
        text = f"{what} is superfluous: without it there is no race at any size looked at"
        return self.witness.statement("superfluous", text, node, "note")

    def _placed(self, place: Place | None) -> Place | None:
        """Return a place of a slice as one of the whole, by the text of its statement."""
        if place is None:
            return None
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

    for program, _ in _launches(*program_of(k, "wide_barriers")):
        every = [n for n, _ in kir.walk(program.body) if isinstance(n, kir.Barrier)]
        blocks = [b for b in every if b.scope == "block"]
        found += _not_needed(program, blocks, sizes, narrow)
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
