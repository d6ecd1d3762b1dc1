"""In which order a program folds the terms of each reduction: loops, tests, exchanges of threads.

The bits of a float sum depend on the tree in which its terms are added. A step of that tree is a
store that takes in a term (an update) or a partial result (a merge), or an exchange of threads. The
terms of a step run with the loops whose index is part of the place of a term along the folded axes;
an index that names the element of the result instead has no say in the order. Steps say what the
order depends on (`dependences`), and steps of equal form fold in one order (`form`).

Requires that the program computes its math: which terms are folded is then known, and that a test
leaves none out but the identity. Exact reducers (of integers and truth values) have no steps, since
any order gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

from loopnest import kir
from loopnest.proofs.collectives.collective_contract import Outline
from loopnest.proofs.obligations import CollectiveMath, Work
from loopnest.proofs.point_arrays import OPERATIONS
from loopnest.proofs.program_model import Access, Guards, Model, Site
from loopnest.proofs.template_matching import reducer_of
from loopnest.scalar.enums import BLOCK_DIMENSIONS, IterKind
from loopnest.scalar.expr import (
    ONE,
    ZERO,
    Const,
    Coordinate,
    Expr,
    Index,
    LaunchIndex,
    Op,
    Symbol,
    integer,
    substitute,
    variables,
    walk,
)
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.math_snapshot import MathSnapshot, MathTensor

NEUTRAL = ("sum", "prod", "max", "min")
"""Reducers whose accumulator keeps its bits when it takes in the identity.

A sum starts from 0.0, so that it is never -0.0, which adding 0.0 would change.
"""

_MOST_TILE = 4096
"""How many elements of a tile are looked at, to see that each has one place."""


@dataclass(frozen=True, slots=True)
class OrderDependence:
    """Why the order of a fold may depend on a size.

    Args:
        tensor: the tensor that is folded, or whose math reads the size.
        node: the loop, test, store or exchange; None where it is the math.
        reason: a sentence.
    """

    tensor: str
    node: kir.Stmt | None
    reason: str


@dataclass(frozen=True, slots=True)
class FoldLoop:
    """A loop, or a launch dimension, along which the terms of a step run.

    Args:
        index: its index.
        how: "serial", or the launch dimension.
        extent: how many.
        place: where what is folded lies: "fresh" where each iteration begins a partial result,
            "own" where each has an accumulator, else "".
        loop: the statement; None of a launch dimension.
    """

    index: Expr
    how: str
    extent: Expr
    place: str
    loop: kir.Loop | None


@dataclass(frozen=True, slots=True)
class FoldStep:
    """A store that takes in a term, or a partial result.

    Args:
        work: the store.
        loops: along which the terms run, outermost first.
        points: where a term lies: its index along each folded axis, or that of the partial result.
        element: the element of the result.
    """

    work: Work
    loops: tuple[FoldLoop, ...]
    points: tuple[Expr, ...]
    element: tuple[Expr, ...]

    @property
    def turning(self) -> frozenset[Expr]:
        """The indices of its loops."""
        return frozenset([loop.index for loop in self.loops])

    @property
    def tests(self) -> Iterator[tuple[Expr, bool]]:
        """The tests around it, each conjunct by itself."""
        return self.asked(self.work.site.guards)

    def asked(self, guards: Guards) -> Iterator[tuple[Expr, bool]]:
        """Yield the conjuncts of tests around it, launch indices as those of its loops."""
        bound = _bound(self.work.site)
        return ((substitute(test, bound), wanted) for test, wanted in conjuncts(guards))

    @property
    def fold(self) -> tuple[str, str]:
        """What it is a step of."""
        return self.work.tensor.name, self.work.kind


class Folds:
    """The steps of all folds of a program.

    Args:
        model: the program.
        math: what it computes.
        works, exchanges: its stores and collectives.
    """

    def __init__(
        self,
        model: Model,
        math: MathSnapshot,
        works: Sequence[Work],
        exchanges: Sequence[CollectiveMath],
    ) -> None:
        self.model, self.math, self.works = model, math, works
        self.algebra = model.algebra
        self.exchanges = [e for e in exchanges if any(map(is_inexact, e.tensors))]
        self._starts: dict[object, list[Site]] = {}
        for work in works:
            if work.kind == "init":
                self._starts.setdefault(work.store.storage, []).append(work.site)
        self.launch = dict(model.program.launch)
        self.steps = [self._step(w) for w in works if self._combines(w)]

    def _combines(self, work: Work) -> bool:
        return work.kind in ("update", "merge") and is_inexact(work.tensor)

    def _step(self, work: Work) -> FoldStep:
        if work.kind == "update":
            axes = zip(work.tensor.root, work.store.coordinate, strict=True)
            scan = work.tensor.scan
            points = tuple(
                [
                    place
                    for n, (axis, place) in enumerate(axes)
                    if axis.kind is IterKind.REDUCTION or (scan is not None and scan.axis == n)
                ]
            )
            return FoldStep(work, self._loops(work, points, frozenset()), points, work.element)
        part = work.part
        named = frozenset[Expr]().union(*map(variables, work.element))
        points = ()
        if part is not None and isinstance(part.operand, Access):
            bound = _bound(work.site)
            index = [substitute(p, bound) for p in part.operand.index]
            points = tuple([p for p in index if not variables(p) <= named])
        return FoldStep(work, self._loops(work, points, named), points, work.element)

    def _loops(
        self, work: Work, points: Sequence[Expr], named: frozenset[Expr]
    ) -> tuple[FoldLoop, ...]:
        used = frozenset[Expr]().union(*map(variables, points)) - named
        starts = [loop for s in self._starts.get(work.store.storage, ()) for loop in s.loops]
        stored = frozenset[Expr]().union(*map(variables, work.store.index))
        found = []
        for loop in work.site.loops:
            if loop.var in used:
                how = loop.parallel.value if loop.parallel.is_thread else "serial"
                own = "own" if loop.var in stored else ""
                place = "fresh" if loop in starts and not loop.parallel.is_thread else own
                found.append(FoldLoop(loop.var, how, loop.var.extent, place, loop))
        bound = {loop.how for loop in found}
        for node in sorted(used, key=str):
            if isinstance(node, LaunchIndex) and node.dimension.value not in bound:
                extent = self.launch.get(node.dimension, ONE)
                found.append(FoldLoop(node, node.dimension.value, extent, "", None))
        return tuple(found)

    # What the order depends on

    def dependences(self, sizes: frozenset[Symbol]) -> Iterator[OrderDependence]:
        """Yield why the bits of an element may depend on some sizes: nothing where they do not."""
        yield from self._of_math(sizes)
        yield from self.atomic()
        for step in self.steps:
            yield from self._of_step(step, sizes)
        for exchange in self.exchanges:
            yield from self._of_exchange(exchange, sizes)
        yield from self._of_choices(sizes)

    def atomic(self) -> Iterator[OrderDependence]:
        """Yield the updates that come in any order."""
        for step in self.steps:
            if step.work.store.atomic:
                text = "atomic updates come in any order"
                yield OrderDependence(step.work.tensor.name, step.work.store, text)

    def _of_math(self, sizes: frozenset[Symbol]) -> Iterator[OrderDependence]:
        for tensor in self.math.tensors:
            definition = tensor.definition
            if definition is None:
                continue
            folded = [a for a in tensor.root if a.kind is IterKind.REDUCTION]
            if any(mentions(axis.extent, sizes) for axis in folded):
                text = f"it folds {' * '.join(str(a.extent) for a in folded)} elements"
                yield OrderDependence(tensor.name, None, text)
                continue
            read = [i for r in definition.reads for i in r.indices]
            for value in (*definition.values, *read, *tensor.places):
                if mentions(value, sizes):
                    yield OrderDependence(tensor.name, None, f"its math has '{value}'")
                    break

    def _of_step(self, step: FoldStep, sizes: frozenset[Symbol]) -> Iterator[OrderDependence]:
        name, node = step.work.tensor.name, step.work.store
        if node.atomic:
            return
        for point in step.points:
            strange = [
                v for v in variables(point) if not isinstance(v, (Index, LaunchIndex, Symbol))
            ]
            if strange:
                yield OrderDependence(name, node, f"its place '{point}' depends on data")
            elif mentions(point, sizes):
                yield OrderDependence(name, node, f"which terms it takes in turn is '{point}'")
        for loop in step.loops:
            if mentions(loop.extent, sizes):
                kind = "threads" if loop.how != "serial" else "iterations"
                text = f"terms are folded by {loop.extent} {kind}"
                yield OrderDependence(name, loop.loop or node, text)
        asked = [
            guard for guard in step.work.site.guards if (step.fold, guard[0]) not in self._even
        ]
        for test, _ in step.asked(tuple(asked)):
            used = variables(test)
            if used.isdisjoint(step.turning):
                continue
            if mentions(test, sizes):
                yield OrderDependence(
                    name, self._if(step, test), f"which terms are folded is '{test}'"
                )
            for other in used - step.turning:
                if isinstance(other, (Index, LaunchIndex)) and not self._settled(
                    step, other, sizes
                ):
                    text = (
                        f"'{test}' asks for {other}, which elements share or change with the size"
                    )
                    yield OrderDependence(name, self._if(step, test), text)

    @cached_property
    def _even(self) -> frozenset[tuple[tuple[str, str], Expr]]:
        """The tests between two bodies that fold alike: which of them runs does not matter."""
        sides: dict[tuple[tuple[str, str], Expr], tuple[set[str], set[str]]] = {}
        for step in self.steps:
            for test, wanted in step.work.site.guards:
                found = sides.setdefault((step.fold, test), (set(), set()))
                found[wanted].add(self._text(step))
        return frozenset([key for key, (no, yes) in sides.items() if no == yes and len(yes) == 1])

    def _if(self, step: FoldStep, test: Expr) -> kir.Stmt:
        """Return the statement that asks a test around a step."""
        for node, ancestors in kir.walk(self.model.program.body):
            if node is step.work.store:
                for outer in ancestors:
                    if isinstance(outer, kir.If) and test in set(
                        walk(substitute(outer.condition, _bound(step.work.site)))
                    ):
                        return outer
        return step.work.store

    def _settled(self, step: FoldStep, index: Expr, sizes: frozenset[Symbol]) -> bool:
        """Whether the element of a step tells an index, one and the same at all sizes."""
        for place in step.element:
            if index not in variables(place):
                continue
            inner = sorted([v for v in variables(place) if isinstance(v, Index)], key=str)
            open_ended = [v for v in inner if not isinstance(v.extent, Const)]
            strange = len(inner) != len(variables(place)) or len(open_ended) > 1
            return not strange and _is_radix(place, inner, open_ended)
        return False

    def _of_exchange(
        self, exchange: CollectiveMath, sizes: frozenset[Symbol]
    ) -> Iterator[OrderDependence]:
        name, node = exchange.tensors[0].name, exchange.node
        for dim in BLOCK_DIMENSIONS:
            extent = self.launch.get(dim, ONE)
            if mentions(extent, sizes):
                text = f"{extent} threads along {dim.value} combine what they have"
                yield OrderDependence(name, node, text)
        for inner, _ in kir.walk(node.body):
            parts = list(kir.expressions(inner))
            if isinstance(inner, kir.Loop):
                parts.append(inner.var.extent)
            if any(mentions(part, sizes) for part in parts):
                yield OrderDependence(
                    name, node, "how threads combine what they have reads the size"
                )
                return

    def _of_choices(self, sizes: frozenset[Symbol]) -> Iterator[OrderDependence]:
        """Yield tests of sizes that choose between statements that fold in different orders."""
        by_kind: dict[tuple[str, str], dict[str, list[FoldStep]]] = {}
        for step in self.steps:
            by_kind.setdefault(step.fold, {}).setdefault(self._text(step), []).append(step)
        for (name, _), forms in by_kind.items():
            if len(forms) == 1:
                continue
            every = [step for steps in forms.values() for step in steps]
            asked = [set(step.tests) for step in every]
            common = set.intersection(*asked)
            for step, tests in zip(every, asked, strict=True):
                for test, wanted in sorted(tests - common, key=str):
                    if mentions(test, sizes) and not self._inside(step, test, wanted):
                        text = f"'{test}' chooses between two orders of its terms"
                        yield OrderDependence(name, self._if(step, test), text)
                        return

    def _inside(self, step: FoldStep, test: Expr, wanted: bool) -> bool:
        """Whether a test asks no more than that the element of a step exists."""
        if not (wanted and isinstance(test, Op) and test.op == "lt"):
            return False
        low, high = test.args
        axes = step.work.tensor.logical
        return any(
            self.algebra.equal(high, axis.extent) and self.algebra.holds_le(low, place)
            for axis, place in zip(axes, step.element, strict=True)
        )

    # Forms

    @cached_property
    def forms(self) -> Mapping[str, tuple[str, ...]]:
        """For each tensor that is folded the forms of its steps, in program order, each once."""
        found: dict[str, dict[str, None]] = {}
        moments = [(s.work.site, s.work.tensor.name, self._text(s)) for s in self.steps]
        for exchange in self.exchanges:
            block = [str(self.launch.get(dim, ONE)) for dim in BLOCK_DIMENSIONS]
            text = f"exchange in {block}: {Outline(exchange.node, frozenset()).text}"
            moments += [(exchange.site, t.name, text) for t in exchange.tensors]
        order = {site: n for n, site in enumerate(self.model.sites)}
        for _, name, text in sorted(moments, key=lambda m: order[m[0]]):
            found.setdefault(name, {})[text] = None
        return {name: tuple(texts) for name, texts in found.items()}

    def _text(self, step: FoldStep) -> str:
        """Return a text that steps have in common which take their terms in one order."""
        neutral = reducer_of(step.work.tensor).name in NEUTRAL
        joined = _joined(step, self.algebra) if neutral else step
        names: dict[Expr, Expr] = {loop.index: Coordinate(n) for n, loop in enumerate(joined.loops)}
        loops = [f"{loop.how} {loop.place} {loop.extent}" for loop in joined.loops]
        points = [str(self.algebra.simplify(substitute(p, names))) for p in joined.points]
        named = [
            str(self.algebra.simplify(substitute(e, names)))
            for e in joined.element
            if not variables(e).isdisjoint(names)
        ]
        tests = []
        if not neutral:
            tests = [f"{substitute(t, names)} {wanted}" for t, wanted in step.tests
                     if not variables(t).isdisjoint(names)]  # fmt: skip
        return f"{step.work.kind} {loops} {points} {named} {sorted(tests)}"


def _bound(site: Site) -> dict[Expr, Expr]:
    """Return the launch indices that are those of loops around a site."""
    return {LaunchIndex(loop.parallel): loop.var for loop in site.loops if loop.parallel.is_thread}


def is_inexact(tensor: MathTensor) -> bool:
    """Whether the bits of a tensor depend on the order in which its terms are folded."""
    definition = tensor.definition
    if definition is None or definition.reducer is None:
        return False
    return any(value.dtype.is_float for value in definition.reducer.identity)


def is_rounding(tensor: MathTensor) -> bool:
    """Whether another order of the terms of a tensor may give other numbers than another zero."""
    return is_inexact(tensor) and reducer_of(tensor).name not in ("max", "min")


def mentions(value: Expr, sizes: frozenset[Symbol]) -> bool:
    """Whether an expression depends on one of some sizes."""
    return not sizes.isdisjoint(variables(value))


def conjuncts(guards: Guards) -> Iterator[tuple[Expr, bool]]:
    """Yield the parts of conditions that must all have the value that is told."""
    stack = list(guards)
    while stack:
        test, wanted = stack.pop()
        if isinstance(test, Op) and test.op == ("and" if wanted else "or"):
            stack += [(arg, wanted) for arg in test.args]
        elif isinstance(test, Op) and test.op == "not":
            stack.append((test.args[0], not wanted))
        else:
            yield test, wanted


def _is_radix(place: Expr, inner: Sequence[Index], grown: Sequence[Index]) -> bool:
    """Whether an index has one value for each value of its parts; `grown` has one without end."""
    fixed = [v for v in inner if v not in grown]
    extents = [int(v.extent.value) for v in fixed if isinstance(v.extent, Const)]
    count = prod(extents)
    if count > _MOST_TILE:
        return False
    seen: list[set[int]] = []
    for turn in (0, 1) if grown else (0,):
        values = set()
        for digits in product(*map(range, extents)):
            numbers: dict[Expr, Expr] = {v: integer(d) for v, d in zip(fixed, digits, strict=True)}
            numbers.update({v: integer(turn) for v in grown})
            value = constant(substitute(place, numbers))
            if value is None:
                return False
            values.add(value)
        if len(values) != count:
            return False
        seen.append(values)
    if len(seen) == 1:
        return True
    step = min(seen[1]) - min(seen[0])
    return max(seen[0]) < min(seen[0]) + step and seen[1] == {v + step for v in seen[0]}


def constant(value: Expr) -> int | None:
    """Return the number that an expression of literals is, None of any other."""
    match value:
        case Const() if not value.dtype.is_float:
            return int(value.value)
        case Op() if value.op in OPERATIONS:
            parts = [constant(arg) for arg in value.args]
            return None if None in parts else int(OPERATIONS[value.op](*parts))
    return None


def _joined(step: FoldStep, algebra: Simplifier) -> FoldStep:
    """Return a step in which neighbouring loops that count on are one loop.

    Before: ``for a in A: for b in 4: term a * 4 + b``; after: ``for a in A * 4: term a``. The
    extent of the outermost one is left out where it is what covers the axis.
    """
    loops, points, element = list(step.loops), list(step.points), list(step.element)
    n = 0
    while n + 1 < len(loops):
        a, b = loops[n], loops[n + 1]
        if a.how == b.how == "serial" and a.place == b.place and a.place != "own":
            flat: dict[Expr, Expr] = {a.index: ZERO}
            counted = [
                algebra.equal(
                    _slope(p, a.index, algebra), algebra.mul(_slope(p, b.index, algebra), b.extent)
                )
                for p in (*points, *element)
            ]
            if all(counted):
                points = [substitute(p, flat) for p in points]
                element = [substitute(e, flat) for e in element]
                loops[n : n + 2] = [replace(b, extent=algebra.mul(a.extent, b.extent))]
                n = max(n - 1, 0)
                continue
        n += 1
    for n, loop in enumerate(loops):
        others = [other for other in loops if other is not loop]
        if loop.how == "serial" and all(_covers(loop, other, points, algebra) for other in others):
            loops[n] = replace(loop, extent=ZERO)
    return FoldStep(step.work, tuple(loops), tuple(points), tuple(element))


def _covers(loop: FoldLoop, other: FoldLoop, points: Sequence[Expr], algebra: Simplifier) -> bool:
    """Whether a loop runs over what another one leaves, in each place that both are part of."""
    for point in points:
        if loop.index not in variables(point) or other.index not in variables(point):
            continue
        outer, inner = _slope(point, loop.index, algebra), _slope(point, other.index, algebra)
        if not algebra.holds_le(algebra.mul(inner, other.extent), outer):
            return False
    return True


def _slope(value: Expr, index: Expr, algebra: Simplifier) -> Expr:
    """Return by how much a value grows with an index; of no linear one, an expression of it."""
    if index not in variables(value):
        return ZERO
    following = substitute(value, {index: algebra.add(index, ONE)})
    return algebra.sub(algebra.simplify(following), algebra.simplify(value))
