"""Pass "circular_buffers": compute a tensor some iterations before it is read.

Requires guarded statements. Ensures, for a tensor T with s stages and a prefetch of d inside the
loop over k, that its buffer is made outside of the loop, that a prologue computes T for the first d
iterations, and that iteration k computes it for k + d, into stage (k + d) % s, and reads stage
k % s. LOCAL tensors that only T reads run ahead with it: they stand first in the body, T last, so
that loads are in flight during the work of an iteration. Loops over launch dimensions inside of
that over k are parted in two. Where T is LOCAL the loop is unrolled by s. It comes before
barriers: one an iteration will do.

Before: ``for k: { T = x[k]; y += T }``; after, with two stages::

    T[0] = x[0]
    for k: { if k + 1 < K: T[(k + 1) % 2] = x[k + 1]; y += T[k % 2] }

A fold runs ahead as a whole: from its initial value on, in the prologue and for each iteration.

Tensors that an instruction moves are copies in flight. What stores such a tensor is issued, as a
whole where nothing else stands in its loops. Those that rotate through one loop share its groups,
one an iteration: with a prefetch of d, iteration k waits until d - 1 groups are unfinished, issues
the copies for k + d, and commits them. Where no circular buffer waits for a copy later, it is
waited for at once.

A register has no address: the stage that an iteration reads must be known where it is printed. So
the loop over k is unrolled, where the least common multiple of the stages is s = 2::

    for k: { T[(k + 1) % 2] = x[k + 1]; y += T[k % 2] }
    for o in ceildiv(K, 2):
      for u in 2:  # unroll
        if o * 2 + u < K: { T[(u + 1) % 2] = x[o * 2 + u + 1]; y += T[u] }

Source: nvFuser's circular buffering (lower_circular_buffer.cpp), of copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from loopnest.base.errors import LoweringError
from loopnest.kir import (
    Allocate,
    Arrive,
    Collective,
    Commit,
    Issue,
    Shuffle,
    Store,
    Wait,
    map_expressions,
)
from loopnest.kir.instruction_table import gives_lanes
from loopnest.lowering.loops.guarded_tree import (
    Guarded,
    PredicateTerm,
    Rename,
    Tree,
    TreeItem,
    fresh,
    guarded,
    items_of,
)
from loopnest.lowering.loops.loop_plan import LoopPlan, scanned_over
from loopnest.lowering.loops.phase_nest import Nest
from loopnest.lowering.memory.allocation import TensorStorage
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    FALSE,
    TRUE,
    ZERO,
    Buffer,
    Const,
    Expr,
    Index,
    Load,
    Op,
    integer,
    map_loads,
    rewrite,
    substitute,
)
from loopnest.scalar.simplify import Simplifier
from loopnest.schedule.loop_forest import LoopGroup
from loopnest.tensor.tensor_view import TensorView, padded_copy

LEAST_BYTES = 4
"""How many bytes a copy in flight moves at least; 8 or 16 are the others."""

COMMIT = Guarded((Commit(),), ())
"""Closes a group of copies."""


def issue_moves(tree: Tree, moves: Mapping[str, str]) -> Tree:
    """Return `tree` with the stores of tensors issued that an instruction moves.

    Args:
        tree: the nest with guarded statements.
        moves: name of a tensor -> name of the instruction.
    """
    if not moves:
        return tree
    return replace(tree, body=tuple([_issued(item, moves) for item in tree.body]))


def _issued(item: TreeItem, moves: Mapping[str, str]) -> TreeItem:
    stored = list(dict.fromkeys(stored_tensors(item)))
    if len(stored) == 1 and stored[0] in moves:
        _require_copies(item, moves[stored[0]])
        return Tree(None, None, (item,), Issue(moves[stored[0]], ()))
    if isinstance(item, Tree):
        return replace(item, body=tuple([_issued(inner, moves) for inner in item.body]))
    return item


def _require_copies(item: TreeItem, name: str) -> None:
    """Refuse stores of what is in registers, or computed: a later call may have put it there.

    Raises:
        LoweringError: there is one.
    """
    for inner in item.body if isinstance(item, Tree) else ():
        _require_copies(inner, name)
    for node in item.statements if isinstance(item, Guarded) else ():
        value = node.value if isinstance(node, Store) else None
        padded = None if value is None else padded_copy(value)
        value = value if padded is None else padded[1]
        if isinstance(node, Store) and not (
            isinstance(value, Load) and value.buffer.memory is Memory.GLOBAL
        ):
            raise LoweringError(
                node.tensor,
                f"it is moved by {name}, from GLOBAL memory, and is stored {value}",
                "let it copy an input, or a tensor in GLOBAL memory, and compute from it",
            )


def stored_tensors(item: TreeItem) -> Iterator[str]:
    """Yield the names of tensors that the statements of an item store."""
    parts = items_of(item) if isinstance(item, Tree) else (item,)
    for part in parts:
        if isinstance(part, Guarded):
            yield from (s.tensor for s in part.statements if isinstance(s, Store))


def complete_moves(tree: Tree, names: Set[str]) -> Tree:
    """Return `tree` with a Commit and a Wait behind what was issued of some tensors."""
    if not names:
        return tree
    made: list[TreeItem] = []
    landing: list[TreeItem] = []
    for item in tree.body:
        issued = isinstance(item, Tree) and isinstance(item.header, Issue)
        issued = issued and not names.isdisjoint(stored_tensors(item))
        if landing and not issued and not isinstance(item, Allocate):
            made += _completed(landing)
            landing = []
        if issued:
            landing.append(item)
        made.append(complete_moves(item, names) if isinstance(item, Tree) else item)
    return replace(tree, body=(*made, *(_completed(landing) if landing else ())))


def _completed(landing: list[TreeItem]) -> list[TreeItem]:
    """Return what waits for copies at once."""
    return [COMMIT, Tree(None, None, tuple([fresh(item, {}) for item in landing]), Wait(0))]


FAR_AHEAD = "an iteration that far ahead exists"

MOST_COPIES = 64
"""How many copies of a loop's body may be printed."""


def far_ahead(tensor: TensorView) -> str:
    """Return why what runs ahead for a tensor is tested."""
    return f"{tensor.name}: {FAR_AHEAD}"


def unroll_stages(
    tree: Tree, turns: Mapping[Index, Sequence[TensorView]], algebra: Simplifier
) -> Tree:
    """Return `tree` with loops unrolled by the stages of the tensors that rotate through them.

    Raises:
        LoweringError: the stages of several tensors have a common multiple that is too large, or
            threads reduce together in a loop in which not every unrolled iteration exists.
    """
    body: list[TreeItem] = []
    for item in tree.body:
        if not isinstance(item, Tree):
            body.append(item)
            continue
        inner = unroll_stages(item, turns, algebra)
        tensors = turns.get(item.var) if item.var is not None else None
        body.append(inner if tensors is None else _unrolled(inner, tensors, algebra))
    return replace(tree, body=tuple(body))


def _unrolled(loop: Tree, tensors: Sequence[TensorView], algebra: Simplifier) -> Tree:
    assert loop.var is not None
    assert loop.spec is not None
    names = ", ".join([t.name for t in tensors])
    count = math.lcm(*[t.layout.stages for t in tensors])
    if count > MOST_COPIES:
        raise LoweringError(
            names,
            f"circular buffers in registers unroll the loop over {loop.var} by {count}, a common "
            "multiple of their stages",
            f"use numbers of stages with a common multiple of at most {MOST_COPIES}",
        )
    extent = loop.var.extent
    short = isinstance(extent, Const) and int(extent.value) <= count
    turn = extent if short else integer(count)
    inner = Index(loop.var.name, turn)
    outer = Index(loop.var.name, algebra.ceildiv(extent, turn))
    now: Expr = inner if short else algebra.add(algebra.mul(outer, turn), inner)
    terms: tuple[PredicateTerm, ...] = ()
    if not short and not algebra.divides(turn, extent):
        _require_no_exchange(loop, names, count)
        reason = f"{names}: the loop is unrolled by {count} stages"
        terms = (PredicateTerm(algebra.lt(now, extent), reason),)
    tested = {far_ahead(t) for t in tensors}
    move = _Moved(loop.var, now, terms, tested, algebra.simplify)
    moved = [move.item(item) for item in loop.body]
    spec = replace(loop.spec, extent=turn, parallel=ParallelType.unroll)
    unrolled = replace(loop, var=inner, spec=spec, body=tuple(moved))
    if short:
        return unrolled
    return replace(loop, var=outer, spec=replace(loop.spec, extent=outer.extent), body=(unrolled,))


def _require_no_exchange(loop: Tree, names: str, count: int) -> None:
    if any(_exchanges(item) for item in (loop, *items_of(loop)) if isinstance(item, Tree)):
        raise LoweringError(
            names,
            f"its circular buffer in registers unrolls the loop over {loop.var}, in which threads "
            f"reduce together, by {count}, which is not known to divide its extent",
            "assume that it divides, use other numbers of stages, or SHARED memory",
        )


def _exchanges(tree: Tree) -> bool:
    """Whether threads or blocks exchange values, by names that a test would hide from others."""
    direct = [item for item in tree.body if isinstance(item, Guarded)]
    named = any(
        isinstance(s, (Shuffle, Arrive, Commit)) for item in direct for s in item.statements
    )
    return named or isinstance(tree.header, (Collective, Wait))


@dataclass(frozen=True, slots=True)
class _Moved:
    """Puts `now` in the place of a loop index, under `terms` where no reason of `tested` stands."""

    var: Index
    now: Expr
    terms: tuple[PredicateTerm, ...]
    tested: Collection[str]
    simplify: Rename

    def item(self, item: TreeItem) -> TreeItem:
        if isinstance(item, Tree):
            header = None if item.header is None else map_expressions(item.header, self.value)
            body = tuple([self.item(inner) for inner in item.body])
            return replace(item, body=body, header=header)
        # What runs ahead in this loop is tested as of a later iteration.
        ahead = isinstance(item, Guarded) and any(t.reason in self.tested for t in item.terms)
        return guarded(item, self.value, lambda node: node, () if ahead else self.terms)

    def value(self, value: Expr) -> Expr:
        moved = substitute(value, {self.var: self.now})
        return moved if moved is value else simplified(moved, self.simplify)


def simplified(value: Expr, simplify: Rename) -> Expr:
    """Return `value` with its index expressions simplified."""

    def rule(node: Expr) -> Expr | None:
        return simplify(node) if node.dtype.name == "index" else None

    return rewrite(value, rule)


def circulate(
    tree: Tree, nest: Nest, storage: dict[TensorView, TensorStorage], *, single: bool = False
) -> Tree:
    """Return `tree` with the circular buffers that the schedule asks for.

    Args:
        tree: the nest with guarded statements.
        nest: its loops.
        storage: the buffers of tensors.
        single: whether vectors go by single elements: those of fewer bytes than a copy in flight
            can move are then stored as usual.

    Raises:
        LoweringError: the tensor shares an inner loop with others, or its loop is not serial.
    """
    turns: dict[Index, list[TensorView]] = {}
    flying: dict[Index, list[_Circle]] = {}
    units = nest.plan.forest.units
    moves = {
        unit.name: unit.layout.move
        for unit in units
        if unit.layout.move
        and not gives_lanes(unit.layout.move)
        and not (single and unit.dtype.size < LEAST_BYTES)
    }
    tree = issue_moves(tree, moves)
    for unit in units:
        if unit.layout.stages > 1:
            own = [storage[twin].buffer for twin in unit.siblings]
            circle = _Circle(unit, nest, {buffer for buffer in own if buffer.stages > 1})
            if unit.name in moves and circle.var is not None:
                flying.setdefault(circle.var, []).append(circle)
                continue
            tree = circle.apply(tree)
            local = any(buffer.memory is Memory.LOCAL for buffer in circle.buffers)
            if local and circle.var is not None:
                turns.setdefault(circle.var, []).append(unit)
    for circles in flying.values():
        tree = circles[0].apply(tree, _Pipeline(circles).rotated)
    waiting = {circle.tensor.name for circles in flying.values() for circle in circles}
    tree = complete_moves(tree, moves.keys() - waiting)
    return unroll_stages(tree, turns, nest.plan.algebra) if turns else tree


_Rotation: TypeAlias = Callable[[Tree], Iterable[TreeItem]]
"""What returns the items that stand in place of a loop."""


@dataclass(frozen=True, eq=False, slots=True)
class _Parts:
    """The body of the loop: allocations that move out, what runs ahead, and the rest."""

    made: tuple[TreeItem, ...]
    loads: tuple[TreeItem, ...]
    stores: tuple[TreeItem, ...]
    rest: tuple[TreeItem, ...]


class _Circle:
    def __init__(self, tensor: TensorView, nest: Nest, buffers: Set[Buffer]) -> None:
        self.tensor, self.buffers, self.plan = tensor, buffers, nest.plan
        self.names = {twin.name for twin in tensor.siblings}
        self.stages, self.prefetch = tensor.layout.stages, tensor.layout.prefetch
        home = _rotating(nest, tensor)
        index = nest.index_of[home] if home is not None else ZERO
        self.var = index if isinstance(index, Index) else None
        if self.var is not None and nest.spec_of[self.var].parallel is not ParallelType.serial:
            raise LoweringError(
                tensor.name,
                f"the loop that its circular buffer rotates through is "
                f"{nest.spec_of[self.var].parallel.value}",
                "compute it inside a serial loop",
            )
        private = _private_producers(self.plan, tensor)
        self.ahead = {twin.name for unit in private for twin in unit.siblings}
        if home is not None:
            self._require_own_folds([tensor, *private])
            self._require_sources(home, [tensor, *private])

    def _require_own_folds(self, ahead: list[TensorView]) -> None:
        """Refuse to run ahead where threads fold together: all of them meet in each iteration."""
        for unit in ahead:
            dims = self.plan.crossed[unit] or scanned_over(self.plan, unit)
            if dims:
                raise LoweringError(
                    self.tensor.name,
                    f"its circular buffer runs ahead in the loop over {self.var}, and threads "
                    f"along {dims[0].value} fold {unit.name} together in each iteration",
                    f"fold {unit.name} in one thread each, or compute it outside of that loop",
                )

    def _require_sources(self, home: LoopGroup, ahead: list[TensorView]) -> None:
        """Refuse to run ahead of what the same iteration computes for others too."""
        for reader in ahead:
            definition = reader.definition
            for source in definition.producers if definition is not None else ():
                computed = source.siblings[0] in self.plan.forest.position
                if source.siblings[0] in ahead or not computed:
                    continue
                if home in self.plan.forest.path(source.siblings[0]):
                    raise LoweringError(
                        self.tensor.name,
                        f"its circular buffer reads {source.name}, which each iteration of the "
                        f"loop over {self.var} computes, and cannot run ahead of it",
                        f"compute {source.name} outside of that loop, or in LOCAL memory for "
                        f"{self.tensor.name} alone",
                    )

    def apply(self, tree: Tree, rotated: _Rotation | None = None) -> Tree:
        """Return `tree` with what stands in place of the loop."""
        if self.var is None:  # a loop that runs once: stage 0 is all
            stage = self._in_stage(ZERO)
            return replace(tree, body=tuple([_mapped(item, stage) for item in tree.body]))
        return replace(tree, body=self._body(tree.body, rotated or self._rotated))

    def _body(self, items: Iterable[TreeItem], rotated: _Rotation) -> tuple[TreeItem, ...]:
        result: list[TreeItem] = []
        for item in items:
            if not isinstance(item, Tree):
                result.append(item)
            elif item.var is self.var:
                result.extend(rotated(item))
            else:
                result.append(replace(item, body=self._body(item.body, rotated)))
        return tuple(result)

    def _rotated(self, loop: Tree) -> Iterator[TreeItem]:
        """Yield what stands in place of the loop."""
        assert self.var is not None
        parts = self.parts(loop)
        extent = self.var.extent
        yield from parts.made
        for stage in range(self.prefetch):
            # later stages do not exist either
            if _below(stage, extent) is FALSE:
                break
            yield from self.begun((*parts.loads, *parts.stores), stage)
        first, last = self.ahead_of(parts.loads), self.ahead_of(parts.stores)
        rest = self.current(parts.rest)
        # Loads into registers stand first and are stored last, so that they are under way during
        # the work of the iteration. Without them the stores go to another stage than the one that
        # is read, and may stand first.
        body = [*first, *rest, *last] if first else [*last, *rest]
        yield replace(loop, body=tuple(body))

    def begun(self, items: Iterable[TreeItem], stage: int) -> list[TreeItem]:
        """Return what computes a stage in front of the loop."""
        assert self.var is not None
        guard = self._exists(_below(stage, self.var.extent))
        return [self._moved(item, integer(stage), guard) for item in items]

    def ahead_of(self, items: Iterable[TreeItem]) -> list[TreeItem]:
        """Return what computes the iteration that is `prefetch` ahead, if there is one."""
        assert self.var is not None
        later = self.plan.algebra.add(self.var, integer(self.prefetch))
        guard = self._exists(self.plan.algebra.lt(later, self.var.extent))
        return [self._moved(item, later, guard) for item in items]

    def now(self, items: Iterable[TreeItem]) -> list[TreeItem]:
        """Return copies of what computes this iteration."""
        assert self.var is not None
        return [self._moved(item, self.var, ()) for item in items]

    def current(self, items: Iterable[TreeItem]) -> list[TreeItem]:
        """Return what reads the stage of this iteration."""
        assert self.var is not None
        stage = self._in_stage(self.plan.algebra.mod(self.var, integer(self.stages)))
        return [_mapped(item, stage) for item in items]

    def _exists(self, test: Expr) -> tuple[PredicateTerm, ...]:
        if test is TRUE:
            return ()
        return (PredicateTerm(test, far_ahead(self.tensor)),)

    def _moved(self, item: TreeItem, at: Expr, guard: tuple[PredicateTerm, ...]) -> TreeItem:
        """Return a copy of `item` as of iteration `at`, under `guard`, with loops of its own."""
        assert self.var is not None
        var = self.var
        stage = self._in_stage(self.plan.algebra.mod(at, integer(self.stages)))
        simplify = self.plan.algebra.simplify

        def move(value: Expr) -> Expr:
            moved = substitute(value, {var: at})
            return stage(moved if moved is value else simplified(moved, simplify))

        return guarded(fresh(item, {}), move, stage.place, guard)

    def _in_stage(self, stage: Expr) -> _InStage:
        return _InStage(self.buffers, stage)

    def parts(self, loop: Tree) -> _Parts:
        """Return what runs ahead and what does not; loops over threads are parted."""
        made: list[TreeItem] = []
        loads: list[TreeItem] = []
        stores: list[TreeItem] = []
        rest: list[TreeItem] = []
        mine = self.names | self.ahead
        for item in loop.body:
            if isinstance(item, Allocate):
                moves = item.tensor in mine  # its buffer, and that in which it is folded
                (made if moves else rest).append(item)
                continue
            stored = set(stored_tensors(item))
            if not stored & mine:
                rest.append(item)
            elif isinstance(item, Tree) and item.spec is not None and item.spec.parallel.is_thread:
                inner = self.parts(item)
                made.extend(inner.made)
                for whole, part in (
                    (loads, inner.loads), (stores, inner.stores), (rest, inner.rest)
                ):  # fmt: skip
                    if part:
                        made_of = replace(item, body=part)
                        # What stays keeps its loops: other buffers may rotate through these.
                        whole.append(made_of if whole is rest else fresh(made_of, {}))
            elif stored - mine:
                others = ", ".join(sorted(stored - mine))
                raise LoweringError(
                    self.tensor.name,
                    f"it shares a loop inside of that over {loop.var} with {others}, and cannot "
                    "run ahead of it",
                    "compute it at the position of its circular loop",
                )
            else:
                # What is copied makes no buffers: each is made at one place of the nest.
                bare = _without_made(item, made) if isinstance(item, Tree) else item
                (stores if self.names & stored else loads).append(bare)
        return _Parts(tuple(made), tuple(loads), tuple(stores), tuple(rest))


class _Pipeline:
    """The copies in flight of all tensors that rotate through one loop."""

    def __init__(self, circles: list[_Circle]) -> None:
        self.circles = circles
        self.ahead = [circle.prefetch for circle in circles]

    def rotated(self, loop: Tree) -> Iterator[TreeItem]:
        """Yield what stands in place of the loop: a group before it for each iteration ahead."""
        issues: list[tuple[TreeItem, ...]] = []
        for circle in self.circles:
            parts = circle.parts(loop)
            yield from parts.made
            issues.append((*parts.loads, *parts.stores))
            loop = replace(loop, body=parts.rest)
        assert loop.var is not None
        most, extent = max(self.ahead), loop.var.extent
        for step in range(most):
            for circle, items in zip(self.circles, issues, strict=True):
                stage = step - most + circle.prefetch
                if stage >= 0 and _below(stage, extent) is not FALSE:
                    yield from circle.begun(items, stage)
            yield COMMIT
        landing: list[TreeItem] = []
        last: list[TreeItem] = []
        rest: list[TreeItem] = list(loop.body)
        for circle, items in zip(self.circles, issues, strict=True):
            landing += circle.now(items)
            last += circle.ahead_of(items)
            rest = circle.current(rest)
        wait = Tree(None, None, tuple(landing), Wait(min(self.ahead) - 1))
        yield replace(loop, body=(wait, *last, COMMIT, *rest))


@dataclass(frozen=True, eq=False, slots=True)
class _InStage:
    """Give accesses of circular buffers the index of their stage."""

    buffers: Set[Buffer]
    stage: Expr

    def __call__(self, value: Expr) -> Expr:
        def rule(node: Load) -> Load:
            if node.buffer in self.buffers and len(node.args) < len(node.buffer.shape):
                return Load(node.buffer, (self.stage, *node.args))
            return node

        return map_loads(value, rule)

    def place(self, node: Store) -> Store:
        if node.storage not in self.buffers or len(node.index) == len(node.storage.shape):
            return node
        return replace(node, index=(self.stage, *node.index))


def _below(stage: int, extent: Expr) -> Expr:
    """Return the test ``stage < extent``; before the loop, its extent may be 0."""
    if isinstance(extent, Const):
        return TRUE if stage < extent.value else FALSE
    return Op("lt", (integer(stage), extent), dtypes.bool_)


def _rotating(nest: Nest, tensor: TensorView) -> LoopGroup | None:
    """Return the innermost loop that a tensor shares, those over launch dimensions aside."""
    for axis in reversed(tensor.domain.leaf[: tensor.compute_at_pos]):
        group = nest.plan.forest.find(axis)
        index = nest.index_of[group]
        if not isinstance(index, Index) or not nest.spec_of[index].parallel.is_thread:
            return group
    return None


def _private_producers(plan: LoopPlan, tensor: TensorView) -> list[TensorView]:
    """Return the LOCAL tensors in the same loop that only `tensor` depends on.

    Of several outputs of one definition, as which they are computed, the first.
    """
    found = [tensor]
    waiting = [tensor]
    while waiting:
        definition = waiting.pop().definition
        for producer in definition.producers if definition is not None else ():
            unit = producer.siblings[0]
            readers = [c.siblings[0] for twin in unit.siblings for c in twin.consumers]
            # Only what nobody else reads may run ahead: another reader wants the value of this
            # iteration.
            alone = all(c in found for c in readers if c in plan.forest.position)
            plain = all(t.memory is Memory.LOCAL and t.layout.stages == 1 for t in unit.siblings)
            if plain and alone and unit not in found:
                found.append(unit)
                waiting.append(unit)
    return found[1:]


def _without_made(tree: Tree, made: list[TreeItem]) -> Tree:
    """Return a loop without the allocations in it, which `made` then has."""
    body: list[TreeItem] = []
    for item in tree.body:
        if isinstance(item, Allocate):
            made.append(item)
        else:
            body.append(_without_made(item, made) if isinstance(item, Tree) else item)
    return replace(tree, body=tuple(body))


def _mapped(item: TreeItem, stage: _InStage) -> TreeItem:
    return guarded(item, stage, stage.place, ())
