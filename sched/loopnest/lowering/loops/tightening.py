"""Pass "tighten": loops run only where something in them has an effect that counts.

Requires placed predicates. Where all that a loop's body leaves behind (stores to buffers that are
not made in it) is done under a condition of its index, the body stands under that condition, which
targets print as the bounds of the loop; so do loops around it, under what the condition comes to at
the best index of the inner loops. The conditions are those of updates that take nothing in
elsewhere (`indexing.phase_terms`). What iterations carry on to later ones alone, as a scan does,
does not keep the last ones. Ensures that every store that counts is made as before.

A condition may load an element of an input, such as where a row begins. Tests without which there
is no such element then go around the loop that the condition bounds. Where the index of a loop says
which element that is, the body stands under the condition as it is, which is no bound.

A loop in which threads meet must run alike in all of them: there a condition is taken at the best
thread of the block. And barriers in it may order what stands around it: it keeps at least one
iteration, or nothing around it needs them. The pass comes after predicates, whose tests it moves
outwards, and before unswitch, which doubles bodies.

Before: ``for i1 in N: { T2 = x[i0, i1]; if i1 <= i0: y += T2 }``; after::

    for i1 in 0..i0 + 1 of N: { T2 = x[i0, i1]; y += T2 }
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from loopnest.kir import (
    BOUND,
    Allocate,
    Arrive,
    Barrier,
    If,
    Launch,
    Loop,
    Program,
    Stmt,
    Store,
    before,
    bodies,
    expressions,
    holds_sync,
    one_launch,
    walk,
    with_bodies,
    written,
)
from loopnest.kir.loop_bounds import direction, gaps, slope
from loopnest.lowering.loops.guarded_tree import ThreadData
from loopnest.scalar.conditions import le, normal_le
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    FALSE,
    ONE,
    TRUE,
    ZERO,
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    Local,
    all_of,
    integer,
    loads,
    substitute,
    terms_of,
    variables,
)
from loopnest.scalar.expr import walk as nodes_of
from loopnest.scalar.simplify import Simplifier

MOST_SHORT = 8
"""A loop of so many iterations keeps them all, but for one over tiles: compilers write it out."""

_Effects = Mapping[Buffer, frozenset[Expr]]
"""What a statement leaves behind: buffers, with conditions under which alone they are stored."""


def is_bounded(
    parallel: ParallelType, extent: Expr, var: Index, condition: Expr, algebra: Simplifier
) -> bool:
    """Whether a loop may have bounds of its own, by a condition; of its index, or around it."""
    if parallel not in (ParallelType.serial, ParallelType.unswitch):
        return False
    if not isinstance(extent, Const) or extent.value > MOST_SHORT:
        return True
    return any(abs(slope(gap, var, algebra) or 0) > 1 for gap in gaps(condition, algebra))


def tighten(
    program: Program, algebra: Simplifier, idle: Collection[Expr], data: ThreadData
) -> Program:
    """Return `program` with the loops tightened by conditions in `idle`."""
    if not idle:
        return program
    found = _Tightening(program, algebra, idle, data)
    return program.with_body(found.body(program.body, frozenset()))


class _Tightening:
    def __init__(
        self, program: Program, algebra: Simplifier, idle: Collection[Expr], data: ThreadData
    ) -> None:
        self.program, self.algebra, self.idle, self.data = program, algebra, idle, data
        self.written = written(program.body)
        self.needs: dict[Expr, frozenset[Expr]] = {}
        """Tests without which what a condition loads of an input may not be there."""
        self._effects: dict[Stmt, _Effects] = {}
        self.threads: dict[Expr, Expr] = {
            LaunchIndex(d): e for d, e in program.launch if d.is_block
        }
        self.parallel: dict[Expr, ParallelType] = {LaunchIndex(d): d for d, _ in program.launch}
        for node, _ in walk(program.body):
            if isinstance(node, Loop) and node.parallel.is_thread:
                self.parallel[node.var] = node.parallel
                if node.parallel.is_block:
                    self.threads[node.var] = node.var.extent

    # What statements leave behind

    def effects(self, node: Stmt) -> _Effects:
        """Return what a statement leaves behind."""
        found = self._effects.get(node)
        if found is None:
            found = self._effects[node] = self._of(node)
        return found

    def _of(self, node: Stmt) -> _Effects:
        match node:
            case If():
                # Other terms of the test are left out: a condition may only be weakened on its way
                # out.
                tests = terms_of(node.condition)
                rest = [t for t in tests if t not in self.idle]
                idle = [t for t in tests if t in self.idle]
                mine = frozenset(t for term in idle for t in self._taken_out(term, rest))
                inner = {b: g | mine for b, g in self.left(node.body).items()}
                return _joined([inner, self.left(node.orelse)])
            case Loop():
                inner = dict(self.left(node.body))
                if not self.data.covers(node.parallel, node.var.extent):
                    inner = {b: self._common(g, node.parallel) for b, g in inner.items()}
                return {b: self.weakened(g, node.var, node.var.extent) for b, g in inner.items()}
            case Launch():
                raise one_launch(node)
        written = {} if node.own is None else {node.own.buffer: frozenset[Expr]()}
        return {**written, **self.left(tuple([n for body in bodies(node) for n in body]))}

    def _common(self, terms: Iterable[Expr], parallel: ParallelType) -> frozenset[Expr]:
        """Return the conditions but for data that each thread has, of which some have none."""
        return frozenset(t for t in terms if not self.data.lacks(t, parallel))

    def _taken_out(self, term: Expr, rest: Iterable[Expr]) -> tuple[Expr, ...]:
        """Return a condition and what it needs of the other tests beside it; () where it may not.

        Only tests of indices alone go out with it, for the sake of elements of inputs.
        """
        needed = frozenset(r for r in rest if self._shields(r, term))
        plain = not any(isinstance(v, Local) or loads(r) for r in needed for v in variables(r))
        if needed and not (plain and self._of_inputs(term)):
            return ()
        self.needs[term] = self.needs.get(term, frozenset()) | needed
        return (term, *needed)

    def _shields(self, test: Expr, term: Expr) -> bool:
        """Whether the data that a condition loads may be missing where another test fails."""
        index = {v for load in loads(term) for arg in load.args for v in variables(arg)}
        for var in variables(test) if loads(term) else ():
            parallel = self.parallel.get(var)
            if parallel is not None and self.data.lacks(term, parallel):
                return True
            if isinstance(var, Local) or (isinstance(var, Index) and var in index):
                return True
        return False

    def left(self, body: tuple[Stmt, ...]) -> _Effects:
        """Return what a body leaves behind, but for buffers that it makes.

        The conditions are to be asked in front of it.
        """
        made = {node.storage for node in body if isinstance(node, Allocate)}
        found = _joined([self.effects(node) for node in body])
        return {b: frozenset(before(g, body)) for b, g in found.items() if b not in made}

    # Conditions

    def weakened(self, terms: Iterable[Expr], var: Expr, extent: Expr) -> frozenset[Expr]:
        """Return conditions at the known value of an index that fulfils them most easily.

        Args:
            terms: the conditions.
            var: an index of a loop or thread.
            extent: it is below that, and at least 0.
        """
        result: dict[Expr, None] = {}
        for term in terms:
            if not _uses(term, var):
                result[term] = None
                continue
            for gap in gaps(term, self.algebra):
                best = self._at_best(gap, var, extent)
                # Unknown, or fulfilled at the best index whatever the rest: it says nothing about
                # this loop as a whole.
                if best is None or self.algebra.proves_le(ZERO, best):
                    continue
                condition = self._not_negative(best)
                if condition not in (TRUE, FALSE):
                    result[condition] = None
                    needed = self.needs.get(condition, frozenset())
                    self.needs[condition] = needed | self.needs.get(term, frozenset())
        return frozenset(result)

    def _not_negative(self, gap: Expr) -> Expr:
        """Return the condition that `gap` is not negative, with what data say alone on its side.

        That may be the largest number that there is: nothing is added to it.
        """
        algebra = self.algebra
        terms = algebra.poly(gap)
        data = {t: n for t, n in terms.items() if any(loads(atom) for atom in t)}
        signs = {count > 0 for count in data.values()}
        if len(signs) != 1:
            return normal_le(ZERO, gap, algebra)
        positive = signs == {True}
        alone = algebra.sum(
            [algebra.mul(algebra.product(t), integer(abs(n))) for t, n in data.items()]
        )
        if positive:
            return le(algebra.sub(alone, gap), alone, algebra)
        return le(alone, algebra.add(gap, alone), algebra)

    def _at_best(self, gap: Expr, var: Expr, extent: Expr) -> Expr | None:
        """Return the largest value of `gap` over an index; None where that is not known."""
        way = direction(gap, var, self.algebra)
        if way is None:
            return None
        best = ZERO if way < 0 else self.algebra.sub(extent, ONE)
        return self.algebra.simplify(substitute(gap, {var: best}))

    # Rewriting, from the outside

    def body(self, body: tuple[Stmt, ...], known: frozenset[Expr]) -> tuple[Stmt, ...]:
        """Return statements with their loops tightened; the conditions `known` hold here."""
        own = {node.storage for node in body if isinstance(node, Allocate)}
        known = frozenset(before(known, body))
        return tuple([made for node in body for made in self.statement(node, known, body, own)])

    def statement(
        self,
        node: Stmt,
        known: frozenset[Expr],
        body: tuple[Stmt, ...],
        own: Collection[Buffer],
    ) -> tuple[Stmt, ...]:
        """Return what takes the place of a statement of `body`, which makes the buffers `own`."""
        if isinstance(node, Loop):
            return (self.loop(node, known, self._carried(node, body, own)),)
        if not isinstance(node, If):
            inside = tuple([self.body(part, known) for part in bodies(node)])
            return (with_bodies(node, inside) if inside else node,)
        mine = terms_of(node.condition)
        rest = [t for t in mine if t not in known]
        if not node.orelse:
            # What spares no iteration is not asked: the update adds the identity.
            rest = [t for t in rest if t not in self.idle or not self._of_inputs(t)]
            if not rest:
                return self.body(node.body, known)
        inner = self.body(node.body, known | frozenset(mine))
        if not rest and not node.orelse:
            return inner
        orelse = self.body(node.orelse, known)
        return (If(all_of(rest or mine), inner, orelse, node.reason, node.origin),)

    def _carried(
        self, node: Loop, body: tuple[Stmt, ...], own: Collection[Buffer]
    ) -> frozenset[Buffer]:
        """Return the buffers made around a loop that its iterations alone read."""
        if not own:
            return frozenset()
        found = set(own).intersection(self.left(node.body))
        for other in body:
            if other is not node and found:
                inner = [n for n, _ in walk((other,))]
                found -= {x.buffer for n in inner for e in expressions(n) for x in loads(e)}
        return frozenset(found)

    def loop(self, node: Loop, known: frozenset[Expr], carried: frozenset[Buffer]) -> Stmt:
        """Return a loop with the conditions of its effects around it and its body.

        What iterations carry to later ones (`carried`) is no effect of the last ones, so that only
        conditions are asked that hold in front of all iterations in which they do not.
        """
        every = self.left(node.body)
        left = {b: g for b, g in every.items() if b not in carried}
        common = frozenset[Expr].intersection(*left.values()) if left else frozenset[Expr]()
        terms = [t for t in self._uniform(node, common) if t not in known]
        idle = [t for t in terms if t in self.needs]
        inside = [t for t in idle if _uses(t, node.var) and self._bounds(t, node)]
        around = [t for t in terms if not _uses(t, node.var)]
        # An iteration that only carries on may be left out if no later one counts: the condition
        # must end the loop, not begin it.
        if any(every[b].isdisjoint(inside) for b in carried):
            inside = [t for t in inside if self._ends(t, node.var)]
        # A loop over threads widens to the launch where they meet, and a vector is one statement:
        # neither goes under a test of its own.
        if node.parallel.is_thread or node.parallel is ParallelType.vectorize:
            around = []
        # Others count on the barriers inside: the loop must be reached, and run at least once.
        if _meets(node) and not self._is_alone(node):
            around = []
            inside = [t for t in inside if self._holds_at_first(t, node.var)]
        inside, around = self._with_needs(inside, around, known)
        now = known | frozenset(inside) | frozenset(around)
        chosen = [] if _meets(node) or carried else self._chosen(node, idle, now)
        body = self.body(node.body, now | frozenset(chosen))
        if chosen:
            body = (If(all_of(chosen), body, (), "elsewhere nothing is taken in", node.origin),)
        if inside:
            origin = next((s.origin for s in body if isinstance(s, Loop)), None)
            body = (If(all_of(inside), body, (), BOUND, origin),)
        made: Stmt = Loop(node.var, node.parallel, node.axis, body, node.origin)
        if around:
            made = If(all_of(around), (made,), (), "elsewhere nothing is taken in", node.origin)
        return made

    def _chosen(self, node: Loop, terms: Iterable[Expr], holds: frozenset[Expr]) -> list[Expr]:
        """Return the conditions by data of which a loop's index says what they load."""
        return [
            t for t in terms
            if t in self.idle and t not in holds and self.needs.get(t, frozenset()) <= holds
            and any(_uses(i, node.var) for load in loads(t) for i in load.args)
            and self._of_inputs(t) and any(isinstance(n, Loop) for n, _ in walk(node.body))
        ]  # fmt: skip

    def _of_inputs(self, term: Expr) -> bool:
        """Whether a condition loads something, of inputs alone."""
        return bool(loads(term)) and all(load.buffer.kind == "input" for load in loads(term))

    def _with_needs(
        self, inside: list[Expr], around: list[Expr], known: frozenset[Expr]
    ) -> tuple[list[Expr], list[Expr]]:
        """Return the conditions of which all that they load is there, and what they need for it."""
        holds = known.union(around)
        inside, wanted = [
            [t for t in terms if self.needs.get(t, frozenset()) <= holds]
            for terms in (inside, around)
        ]
        idle = [t for t in wanted if t in self.needs]
        needed = {r for t in (*inside, *idle) for r in self.needs.get(t, ())}
        # The needs of a condition come first: it is not asked where one of them fails.
        return inside, [*[t for t in around if t in needed], *[t for t in idle if t not in needed]]

    def _bounds(self, term: Expr, node: Loop) -> bool:
        """Whether a condition sets bounds to a loop's index, the same in all iterations."""
        extent = node.var.extent
        if not is_bounded(node.parallel, extent, node.var, term, self.algebra):
            return False
        short = isinstance(extent, Const) and extent.value <= MOST_SHORT
        if short and _in_registers(node):
            return False
        found = gaps(term, self.algebra)
        return bool(found) and all(slope(gap, node.var, self.algebra) for gap in found)

    def _ends(self, term: Expr, var: Index) -> bool:
        """Whether a condition that does not hold in an iteration holds in no later one."""
        slopes = [slope(gap, var, self.algebra) for gap in gaps(term, self.algebra)]
        return bool(slopes) and all(count is not None and count <= 0 for count in slopes)

    def _uniform(self, node: Loop, terms: Iterable[Expr]) -> list[Expr]:
        """Return conditions of a loop, at the best thread where threads meet in it."""
        found = frozenset(terms)
        if not _meets(node):
            return sorted(found, key=str)
        if any(_of_blocks(n) for n, _ in walk(node.body)):
            return []
        # All threads must agree on the bounds of a loop in which they meet: the condition at the
        # best thread holds wherever that of any thread does.
        for number, extent in self.threads.items():
            found = self.weakened(found, number, extent)
        # Data may differ from thread to thread.
        plain = [t for t in found if not loads(t)]
        return sorted(plain, key=str)

    def _holds_at_first(self, term: Expr, var: Index) -> bool:
        """Whether a condition always holds in the first iteration of a loop."""
        first = [
            self.algebra.simplify(substitute(g, {var: ZERO})) for g in gaps(term, self.algebra)
        ]
        return all(self.algebra.proves_le(ZERO, gap) for gap in first)

    def _is_alone(self, node: Loop) -> bool:
        """Whether nothing outside of a loop needs the barriers in it: none reads what is shared."""
        inner = {n for n, _ in walk(node.body)}
        for other, _ in walk(self.program.body):
            if other in inner:
                continue
            for load in [x for e in expressions(other) for x in loads(e)]:
                if load.buffer.memory is not Memory.LOCAL and load.buffer in self.written:
                    return False
        return True


def _joined(parts: Iterable[_Effects]) -> dict[Buffer, frozenset[Expr]]:
    result: dict[Buffer, frozenset[Expr]] = {}
    for part in parts:
        for buffer, terms in part.items():
            result[buffer] = result[buffer] & terms if buffer in result else terms
    return result


def _uses(value: Expr, var: Expr) -> bool:
    return any(node is var for node in nodes_of(value))


def _in_registers(node: Loop) -> bool:
    """Whether a loop stores to elements of a thread's own that its index tells.

    They are registers only where the loop is written out.
    """
    stores = [n for n, _ in walk(node.body) if isinstance(n, Store)]
    return any(
        n.storage.memory is Memory.LOCAL and any(_uses(i, node.var) for i in n.index)
        for n in stores
    )


def _of_blocks(node: Stmt) -> bool:
    """Whether blocks meet at a statement."""
    return isinstance(node, Arrive) or (isinstance(node, Barrier) and node.scope == "grid")


def _meets(node: Loop) -> bool:
    """Whether threads meet in a loop."""
    return holds_sync(node.body)
