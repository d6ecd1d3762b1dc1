"""Pass "predicate_elimination": copies hold a constant beyond their tensor; sums need no test.

Requires guarded statements. Ensures the same results with fewer tests. Where a reduction in
registers reads LOCAL and SHARED tensors inside of loops that these are not computed in, it drops
the tests that keep to its axes if that changes no result, and the tensors that it reads from are
stored everywhere:

- a tensor that reads only such tensors drops its tests too (no result depends on what it
  holds outside);
- any other keeps them, and stores a constant where they fail.

A test of an axis that is folded goes only where the constants, through all that is computed from
them, become the reducer's identity at just the points that the test excluded: a sum of products of
zeros does, a maximum of them does not. Stores to GLOBAL memory keep their tests. It comes before
barriers, which the reads at more points may need, and before circular buffers, which move all this.

Before: ``if k < K: T1[k] = x[k]`` | ``if k < K: T2[i] += T1[k]``; after::

    if k < K: T1[k] = x[k] else: T1[k] = 0
    T2[i] += T1[k]

Where a store writes an element tells its index, solved for the loop indices in it. A buffer is
mostly indexed by loops, one each. One that is laid out by axes of its own is indexed by sums of
digits: of whole loop indices, and of their quotients and remainders. Where the digits of each
dimension make up all of its numbers once, each element has one point of the loops::

    T8[i1 % 2 * 4 + i2, i0 * 8 + i1 // 2]      i0 < 16, i1 < 16, i2 < 4, T8: [8, 128]
    element [k, m]: i0 = m // 8, i1 = m % 8 * 2 + k // 4, i2 = k % 4

Source: nvFuser's predicate elimination (device_lower/pass/predicate_elimination); rule 37.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite
from typing import NamedTuple

from loopnest.base.fast_init import fast_init
from loopnest.kir import Store, expressions
from loopnest.lowering.loops.guarded_tree import (
    Guarded,
    PredicateTerm,
    Tree,
    guarded_items,
    map_guarded,
)
from loopnest.lowering.loops.loop_plan import LoopPlan
from loopnest.numerics.float64_math import fold
from loopnest.scalar.enums import Memory, ParallelType
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
    integer,
    loads,
    substitute,
    terms_of,
    walk,
)
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.tensor_view import TensorView, TracedReducer


class _Digit(NamedTuple):
    """A part of a loop index: ``var // low % numbers``, times `weight` in its dimension."""

    var: Index
    low: int
    numbers: int
    weight: int


def solved_places(
    index: Sequence[Expr], shape: Sequence[Expr], element: Sequence[Expr], algebra: Simplifier
) -> dict[Expr, Expr] | None:
    """Return the loop indices at which a store at `index` writes `element` of a buffer.

    None where not every element is written at one point of these loops.
    """
    found: dict[Expr, Expr] = {}
    digits: dict[Index, list[tuple[_Digit, Expr]]] = {}
    for place, extent, at in zip(index, shape, element, strict=True):
        if (place is ZERO and extent is ONE) or (place is at and isinstance(place, LaunchIndex)):
            continue  # the one element there is, or those of the thread's own warp
        if isinstance(place, Index):
            if place in found or not algebra.equal(place.extent, extent):
                return None
            found[place] = at
            continue
        parts = _parts(place, extent, algebra)
        if parts is None:
            return None
        for part in parts:
            upper = algebra.floordiv(at, integer(part.weight))
            digits.setdefault(part.var, []).append(
                (part, algebra.mod(upper, integer(part.numbers)))
            )
    for var, held in digits.items():
        whole = _whole(var, held, algebra)
        if var in found or whole is None:
            return None
        found[var] = whole
    return found


def _whole(var: Index, held: list[tuple[_Digit, Expr]], algebra: Simplifier) -> Expr | None:
    """Return a loop index of its digits, None where they do not make it up."""
    reach = 1
    value: Expr = ZERO
    for part, digit in sorted(held, key=lambda pair: pair[0].low):
        # Digits of a loop index must follow each other without a gap and without overlap, else one
        # number has two writings, or none.
        if part.low != reach:
            return None
        value = algebra.add(value, algebra.mul(digit, integer(part.low)))
        reach *= part.numbers
    return value if algebra.equal(var.extent, integer(reach)) else None


def _parts(place: Expr, extent: Expr, algebra: Simplifier) -> list[_Digit] | None:
    """Return the digits that an index is the sum of, if they make up all of its numbers."""
    parts: list[_Digit] = []
    for term, weight in algebra.poly(place).items():
        if len(term) != 1 or weight < 1:
            return None
        part = _digit(term[0], weight)
        if part is None:
            return None
        parts.append(part)
    reach = 1
    for part in sorted(parts, key=lambda part: part.weight):
        # The same of the digits that a dimension is the sum of: each of its numbers is then met
        # once.
        if part.weight != reach:
            return None
        reach *= part.numbers
    return parts if algebra.equal(extent, integer(reach)) else None


def _digit(atom: Expr, weight: int) -> _Digit | None:
    match atom:
        case Index(extent=Const(value=count)):
            return _Digit(atom, 1, int(count), weight)
        case Op(op="mod", args=(inner, Const(value=count))):
            part = _digit(inner, weight)
            if part is not None and part.numbers % count == 0:
                return part._replace(numbers=int(count))
        case Op(op="floordiv", args=(inner, Const(value=by))):
            part = _digit(inner, weight)
            if part is not None and part.numbers % by == 0:
                return part._replace(low=part.low * int(by), numbers=part.numbers // int(by))
    return None


def fill_copies(tree: Tree, plan: LoopPlan) -> Tree:
    """Return `tree` with the tests gone that filled copies make needless."""
    if not any(term.inside is not None for item in guarded_items(tree) for term in item.terms):
        return tree
    chosen = _Fills(tree, plan).chosen()
    return map_guarded(tree, lambda item: chosen.get(item, item)) if chosen else tree


@fast_init
@dataclass(frozen=True, eq=False, slots=True)
class _Site:
    """A single store with its place.

    Args:
        item: the guarded statement.
        store: the statement.
        loops: around it, outermost first.
    """

    item: Guarded
    store: Store
    loops: tuple[Tree, ...]

    @property
    def holes(self) -> tuple[PredicateTerm, ...]:
        """The tests that keep to root axes."""
        return tuple([t for t in self.item.terms if t.inside is not None])

    @property
    def others(self) -> tuple[Expr, ...]:
        """The conditions that do not."""
        return tuple([t.condition for t in self.item.terms if t.inside is None])

    @property
    def sources(self) -> tuple[Load, ...]:
        """What it loads, but for the element that an update continues."""
        found = dict.fromkeys(load for e in expressions(self.store) for load in loads(e))
        return tuple([x for x in found if x.buffer is not self.store.storage])


_TRAPS = ("floordiv", "mod", "div", "pow")
"""Operations on integers that are not defined for all operands."""


class _Choice(NamedTuple):
    """What becomes of a site's tests of axes: those in `kept` stay, the others go.

    With `fill` they all stay, and elements beyond them are stored that.
    """

    kept: frozenset[PredicateTerm]
    fill: Const | None = None


_Choices = Mapping[_Site, _Choice]


class _Search(NamedTuple):
    """A search for choices: the value to fill with, what was chosen before, and so far."""

    value: float
    settled: _Choices
    found: dict[_Site, _Choice] | None


class _Fills:
    def __init__(self, tree: Tree, plan: LoopPlan) -> None:
        self.plan, self.algebra = plan, plan.algebra
        self.tensors: dict[str, TensorView] = {t.name: t for t in plan.fusion.tensors}
        self.sites: list[_Site] = []
        self.stores: dict[Buffer, list[Store]] = {}
        self.sole: dict[Buffer, _Site] = {}  # the one statement that defines a tensor
        self.starts: dict[Buffer, _Site] = {}
        self.threads: dict[Expr, Expr] = {}  # by the loops bound to them
        self._collect(tree, ())
        for site in self.sites:
            stored, buffer = self.stores[site.store.storage], site.store.storage
            if site.store.role == "define" and len(stored) == 1:
                self.sole[buffer] = site
            elif site.store.role == "init" and not site.holes:
                self.starts[buffer] = site

    def _collect(self, tree: Tree, loops: tuple[Tree, ...]) -> None:
        for item in tree.body:
            if isinstance(item, Tree):
                if item.var is not None and item.spec is not None and item.spec.parallel.is_thread:
                    self.threads[item.var] = LaunchIndex(item.spec.parallel)
                self._collect(item, (*loops, item))
            elif isinstance(item, Guarded):
                stores = [s for s in item.statements if isinstance(s, Store)]
                for store in stores:
                    self.stores.setdefault(store.storage, []).append(store)
                if len(item.statements) == len(stores) == 1:
                    self.sites.append(_Site(item, stores[0], loops))

    def chosen(self) -> dict[Guarded, Guarded]:
        """Return what takes the place of guarded statements."""
        settled: dict[_Site, _Choice] = {}
        for site in self.sites:
            if site.store.role == "update" and site.holes:
                settled.update(self._needed(site, settled))
        return {site.item: self._rewritten(site, choice) for site, choice in settled.items()}

    def _rewritten(self, site: _Site, choice: _Choice) -> Guarded:
        """Return a guarded statement with what was chosen for its tests.

        A filled store of ``where(c, v, fill)`` needs no test that c implies: where that test fails
        c does too, so the store leaves the constant by itself, and v is not loaded.
        """
        item, value = site.item, site.store.value
        if choice.fill is None:
            return replace(item, terms=tuple([t for t in item.terms if t not in site.holes
                                              or t in choice.kept]))  # fmt: skip
        needless: set[PredicateTerm] = set()
        if isinstance(value, Op) and value.op == "where" and value.args[2] is choice.fill:
            tests = list(terms_of(value.args[0]))
            needless = {t for t in site.holes if self._implies(tests, t.condition)}
        terms = tuple([t for t in item.terms if t not in needless])
        return replace(item, terms=terms, fill=None if needless == {*site.holes} else choice.fill)

    def _implies(self, tests: Iterable[Expr], wanted: Expr) -> bool:
        """Whether all of `wanted` holds where all of `tests` do: each part by one of these."""
        return all(any(self._is_weaker(part, test) for test in tests) for part in terms_of(wanted))

    def _is_weaker(self, part: Expr, test: Expr) -> bool:
        """Whether ``a < b`` holds wherever ``c < d`` does: a - b is never above c - d."""
        if part is test:
            return True
        if not (isinstance(part, Op) and isinstance(test, Op)) or part.op != test.op:
            return False
        if part.op not in ("lt", "le"):
            return False
        algebra = self.algebra
        return algebra.proves_le(algebra.sub(*part.args), algebra.sub(*test.args))

    def _needed(self, update: _Site, settled: _Choices) -> _Choices:
        """Return what an update asks of itself and others; nothing where that is no gain.

        `settled` are earlier answers, which these go beyond.
        """
        outer = frozenset(hole for hole in update.holes if not self._in_loops(hole))
        in_tile = any(loop.spec is not None and loop.spec.tile is not None for loop in update.loops)
        if (len(outer) == len(update.holes) and not in_tile) or not self._may_lead(update):
            return {}
        identity = self.identity(update)
        # A test of the thread alone is lifted around the loops if all that stands in them needs it.
        # Else it stands in the innermost loop, and goes where it can.
        inside = any(self._stays_inside(update, hole) for hole in outer)
        kinds = [frozenset[PredicateTerm](), outer] if inside else [outer]
        for kept, value in product(kinds, dict.fromkeys([0, identity.value])):
            dropped = [hole for hole in update.holes if hole not in kept]
            found: dict[_Site, _Choice] | None = {update: _Choice(kept)}
            for load in update.sources:
                found = self._total(load, update, kept, _Search(value, settled, found))
            if found is None or not (in_tile or self._gains(update, dropped, found)):
                continue
            after = _Outside(self, {**settled, **found})
            if all(not hole.folded or after.neutral(update, hole, identity) for hole in dropped):
                return found
        return {}

    def reducer(self, update: _Site) -> TracedReducer:
        """Return how an update folds."""
        definition = self.tensors[update.store.tensor].definition
        assert definition is not None
        assert definition.reducer is not None
        return definition.reducer

    def identity(self, update: _Site) -> Const:
        """Return what the component that an update writes starts from."""
        tensor = self.tensors[update.store.tensor]
        return self.reducer(update).identity[tensor.siblings.index(tensor)]

    def _in_loops(self, hole: PredicateTerm) -> bool:
        """Whether a test depends on more than the thread and so stands in loops."""
        return any(isinstance(n, Index) and n not in self.threads for n in walk(hole.condition))

    def _stays_inside(self, update: _Site, hole: PredicateTerm) -> bool:
        """Whether a loop of an update holds a store that does not need one of its tests."""
        named = set(walk(hole.condition))
        used = [n for n, loop in enumerate(update.loops) if loop.var in named]
        crossed = set(update.loops[used[-1] + 1 :] if used else update.loops)
        return any(
            not crossed.isdisjoint(site.loops)
            and all(term.condition is not hole.condition for term in site.item.terms)
            for site in self.sites
        )

    def _may_lead(self, update: _Site) -> bool:
        """Whether what an update adds outside of its tensor might be harmless."""
        buffer = update.store.storage
        start = self.starts.get(buffer)
        return (
            buffer.memory is Memory.LOCAL
            and start is not None
            and self._covers(start, update)
            and _is_harmless(update)
        )

    def _gains(self, update: _Site, dropped: Iterable[PredicateTerm], needed: _Choices) -> bool:
        """Whether a test goes that stands in loops which no copy is made in."""
        filled = [site for site, choice in needed.items() if choice.fill is not None]
        around = {t.var for site in filled for t in site.loops}
        own = {t.var for t in update.loops if t.var not in around and t.var not in self.threads}
        return any(node in own for hole in dropped for node in walk(hole.condition))

    def _total(
        self, load: Load, reader: _Site, kept: frozenset[PredicateTerm], search: _Search
    ) -> dict[_Site, _Choice] | None:
        """Return what makes `load` find a value where the tests `kept` of its reader hold."""
        site, found = self.sole.get(load.buffer), search.found
        if found is None or site is None or not self._covers(site, reader):
            return None
        if not self._is_inside(load):
            return None
        stays = self.matching(site, load, kept)
        earlier = found.get(site) or search.settled.get(site)
        if earlier is not None:
            stays &= earlier.kept
            if earlier.fill is not None or stays == earlier.kept:
                return {**found, site: earlier}
        if stays == frozenset(site.holes):
            return found
        if _is_harmless(site):
            deeper: dict[_Site, _Choice] | None = {**found, site: _Choice(stays)}
            for source in site.sources:
                deeper = self._total(source, site, stays, search._replace(found=deeper))
            if deeper is not None:
                return deeper
        if earlier is not None:
            return None  # others count on what it holds now
        dtype = site.store.storage.dtype
        if dtype.is_bool or not (dtype.is_float or isfinite(search.value)):
            return None
        return {**found, site: _Choice(frozenset(), Const(search.value, dtype))}

    def matching(
        self, site: _Site, load: Load, tests: Iterable[PredicateTerm]
    ) -> frozenset[PredicateTerm]:
        """Return the tests of the site of `load` that are among `tests` of its reader."""
        points = self._places(site.store, load.args)
        assert points is not None  # `_covers` saw to it
        wanted = {self._normal(t.inside) for t in tests if t.inside is not None}
        found: set[PredicateTerm] = set()
        for own in site.holes:
            assert own.inside is not None
            there = self.algebra.simplify(substitute(own.inside, points))
            if self._normal(there) in wanted:
                found.add(own)
        return frozenset(found)

    def _normal(self, test: Expr) -> object:
        """Return what two tests share that are one, whatever the order of their terms."""
        test = substitute(test, self.threads)
        if not isinstance(test, Op) or test.op != "lt":
            return test
        return frozenset(self.algebra.poly(self.algebra.sub(*test.args)).items())

    def _is_inside(self, load: Load) -> bool:
        """Whether an access stays in its buffer at every point of its loops."""
        return not load.flat and all(
            self.algebra.proves_lt(index, extent) and self.algebra.proves_le(ZERO, index)
            for index, extent in _dimensions(load.buffer, load.args)
        )

    def _covers(self, site: _Site, reader: _Site) -> bool:
        """Whether `site`, but for its tests of axes, stores all that `reader` can find there.

        At one point of its own loops it stores each element; the threads that run `reader` run it.
        """
        buffer = site.store.storage
        if buffer.memory is Memory.GLOBAL or site.store.flat:
            return False
        places = self._places(site.store, site.store.index)
        if places is None:
            return False
        alone = buffer.memory is Memory.LOCAL
        threads = _threads(reader)
        for loop in site.loops:
            assert loop.spec is not None
            parallel = loop.spec.parallel
            if loop in reader.loops:
                continue
            if parallel.is_thread and not buffer.memory.spans(parallel):
                mine = threads.get(parallel)
                if mine is None or not self.algebra.equal(mine, loop.spec.extent):
                    return False
            elif loop.var not in places:
                return False
        return all(
            condition in reader.others or (not alone and _is_one_thread(condition))
            for condition in site.others
        )

    def _places(self, store: Store, element: tuple[Expr, ...]) -> dict[Expr, Expr] | None:
        """Return the point of its loops at which a store writes an element, if that is one."""
        shape = store.storage.shape
        inner = shape[len(shape) - len(element) :]  # a circular buffer has no index of its stage
        return solved_places(store.index, inner, element, self.algebra)


class _Outside:
    """What is computed outside of tensors, from what the filled ones hold there."""

    def __init__(self, fills: _Fills, choices: _Choices) -> None:
        self.fills, self.choices = fills, choices

    def neutral(self, update: _Site, hole: PredicateTerm, identity: Const) -> bool:
        """Whether an update adds the identity where its test of an axis fails."""
        found = self._stored(update, hole)
        held = Load(update.store.storage, update.store.index, update.store.flat)
        reducer = self.fills.reducer(update)
        if len(reducer.identity) > 1:
            return False
        return reducer.combine((held,), (identity,)) == (found,)

    def _stored(self, site: _Site, hole: PredicateTerm) -> Expr | None:
        """Return what `site` stores where one of its tests fails; None where that is unknown."""
        values: dict[Expr, Expr] = {}
        for load in site.sources:
            value = self._loaded(load, hole)
            if value is None:
                return None
            values[load] = value
        return fold(substitute(site.store.value, values))

    def _loaded(self, load: Load, hole: PredicateTerm) -> Const | None:
        """Return the constant that a load finds where `hole` fails."""
        site = self.fills.sole[load.buffer]
        for own in self.fills.matching(site, load, (hole,)):
            choice = self.choices.get(site)
            if choice is not None and choice.fill is not None:
                return choice.fill
            found = self._stored(site, own)
            return found if isinstance(found, Const) else None
        return None


def _is_harmless(site: _Site) -> bool:
    """Whether a statement whose result is not used may run on any values."""
    if site.store.storage.memory is Memory.GLOBAL:
        return False
    for node in (n for e in expressions(site.store) for n in walk(e)):
        if isinstance(node, Local):
            return False
        if not isinstance(node, Op) or node.dtype.kind in "fx":
            continue
        if node.op in _TRAPS or (node.op == "cast" and node.args[0].dtype.is_float):
            return False
    return True


def _dimensions(buffer: Buffer, index: tuple[Expr, ...]) -> Iterator[tuple[Expr, Expr]]:
    """Yield each index with its extent; a circular buffer has no index of its stage yet."""
    return zip(index, buffer.shape[len(buffer.shape) - len(index) :], strict=True)


def _is_one_thread(condition: Expr) -> bool:
    """Whether a test picks the first thread of a block along a dimension."""
    if not isinstance(condition, Op) or condition.op != "eq":
        return False
    left, right = condition.args
    return isinstance(left, LaunchIndex) and not left.dimension.is_grid and right is ZERO


def _threads(site: _Site) -> dict[ParallelType, Expr]:
    """Return the extents of the thread loops around a statement."""
    specs = [loop.spec for loop in site.loops if loop.spec is not None]
    return {spec.parallel: spec.extent for spec in specs if spec.parallel.is_thread}
