"""Predicates of a phase: the tests under which its statements run, for the indexer.

A phase runs at the points of its loops that are elements of its tensor (a split need not divide,
a loop may be one that others need), once where loops or threads would write the same element
again, in the blocks that go on, and, of an update, only where it takes something in.

At the points at which a reduction takes nothing in, an element is the identity. An element
``where(j <= i, x, 0)`` adds nothing to a sum where j > i, so that its update need not run there.
That is read off the definition, and of the pointwise definitions of what it reads: a mask is made
of `iota`s, which are indices. Only what is the identity as it is written counts: 0 * x is not 0
where x is infinite.

An index may be compared to data: to what the definition reads itself, or to elements of inputs, by
whatever pointwise definitions they come (the pointers of a sparse matrix, the lengths of rows). The
latter are loads: an input is there wherever a test stands.

Tiles with halo that run at once would store the elements of the halo at once: in GLOBAL memory, and
in SHARED memory where the threads of a block have no places of their own. The tile that an element
comes first in the interior of stores it, and the last one what is left; the rest of the nest waits
for all of them, as for any value that another thread wrote. Where no rule says which tile that is,
the schedule has no kernel.

Before: ``T1[8 * i0 + i1] = …`` for i1 in 10; after: under ``i1 < 8 or i0 == last``. Where
the elements of a tile lie apart, ``T1[3 * i0 + 2 * i1]``, only every second tile has some of the
same: ``2 * i1 < 6 or last - 2 < i0``. Of two loops, ``T1[8 * i0 + i1 + i2]``, the inner one's tiles
are the elements of the outer one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import gcd
from typing import NamedTuple

from loopnest.base.errors import LoweringError
from loopnest.kir import Let, Shuffle, Store
from loopnest.kir.loop_bounds import gaps, slope
from loopnest.lowering.indexing.accesses import Accesses
from loopnest.lowering.indexing.axis_indices import Environment
from loopnest.lowering.indexing.redundant_writes import first_points, first_starts
from loopnest.lowering.loops.guarded_tree import Guarded, PredicateTerm
from loopnest.lowering.loops.loop_plan import LoopPlan, is_trivial
from loopnest.lowering.loops.phase_nest import Compute
from loopnest.lowering.loops.reshaped_axes import axes_behind
from loopnest.lowering.loops.tightening import is_bounded
from loopnest.lowering.reductions.block_exchange import FreshNames
from loopnest.lowering.reductions.grid_reduction import GridReduction, result_loops
from loopnest.numerics.float64_math import fold
from loopnest.scalar import dtypes
from loopnest.scalar.conditions import decided, normal_le
from loopnest.scalar.enums import Memory, ParallelType
from loopnest.scalar.expr import (
    ONE,
    TRUE,
    ZERO,
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
    Symbol,
    cast,
    free_indices,
    integer,
    loads,
    substitute,
    variables,
    walk,
)
from loopnest.scalar.simplify import Simplifier
from loopnest.scalar.templates import coordinates
from loopnest.tensor.domain import IterDomain
from loopnest.tensor.index_forms import index_form, moved, pointwise
from loopnest.tensor.overlapping_tiles import Overlap, is_tile_loop, overlaps
from loopnest.tensor.tensor_view import Definition, Read, TensorView


def owners(plan: LoopPlan, env: Environment, memory: Memory) -> Iterator[Expr]:
    """Yield the conditions under which this tile stores an element.

    Args:
        plan: the loops.
        env: the indices of the tensor's axes.
        memory: GLOBAL; or SHARED, of a buffer that is laid out by axes of its own.

    Raises:
        LoweringError: several tiles that run at once have an element, and no rule tells one.
    """
    for step in overlaps(env.tensor.domain.history):
        yield from _WindowTiles(plan, env, step, memory).conditions()


class _WindowLoop(NamedTuple):
    """A loop that runs at once: where it is, counted so that tiles rise by `width` each."""

    at: Expr
    width: Expr
    extent: Expr


class _WindowTiles:
    """The tiles of one step, of which some are computed at once."""

    def __init__(self, plan: LoopPlan, env: Environment, step: Overlap, memory: Memory) -> None:
        self.plan, self.env, self.step, self.memory = plan, env, step, memory
        self.algebra = plan.algebra

    def conditions(self) -> Iterator[Expr]:
        """Yield the conditions under which a tile stores an element."""
        moved = {
            number: [p for p, base in enumerate(self.step.bases) if _moves(base, number)]
            for number, axis in enumerate(self.step.outer)
            if self._at_once(axis)
        }
        for number in [n for n, places in moved.items() if not places]:
            index = self.env.known[self.step.outer[number]]
            yield self._by_barrier([number], Op("eq", (index, ZERO), dtypes.bool_))
        loops: dict[int, list[int]] = {}
        for number, places in moved.items():
            for place in places:
                loops.setdefault(place, []).append(number)
        apart = {n for place, found in loops.items() if self._apart(place, found) for n in found}
        for place, found in loops.items():
            alone = all(len(moved[number]) == 1 for number in found)
            conditions = self._of_axis(place, found) if alone else None
            if conditions is None and not apart.issuperset(found):
                raise self._refused(found[0])
            for condition in conditions or ():
                yield self._by_barrier(found, condition)

    def _at_once(self, axis: IterDomain) -> bool:
        spec = self.plan.spec(axis)
        if is_trivial(spec):
            return False
        if self.memory is Memory.SHARED:
            return spec.parallel.is_block
        return spec.parallel.is_thread or spec.parallel is ParallelType.cpu_parallel

    def _apart(self, place: int, numbers: Sequence[int]) -> bool:
        """Whether a block's threads never store an element of an axis in one iteration.

        Barriers part what they store in several.
        """
        inner, leaf = self.step.inner[place], self.env.tensor.domain.leaf
        bound = any(self._at_once(axis) and inner in axes_behind(axis) for axis in leaf)
        reach = self._reach(place) if bound else ZERO
        loops = None if self.memory is Memory.GLOBAL else self._loops(place, numbers)
        for loop in loops or ():
            if not self.algebra.proves_lt(reach, loop.width):
                return False
            reach = self._farther(reach, loop)
        return loops is not None

    def _of_axis(self, place: int, numbers: Sequence[int]) -> list[Expr] | None:
        """Return a condition for each loop whose tiles have elements along an axis in common.

        The elements within a loop must lie so that what one tile has beyond the next one's
        beginning, the next one has, too: all of them `gap` apart, or in whole tiles of a loop
        inside. None where they do not.
        """
        algebra = self.algebra
        gap: Expr = integer(self.step.steps[place])
        inner = self.env.promotion.image.get(self.step.inner[place], self.step.inner[place])
        distance, reach = algebra.mul(self.env.known[inner], gap), self._reach(place)
        loops = self._loops(place, numbers)
        if loops is None or self._is_ragged(self.step.bases[place]):
            return None
        result: list[Expr] = []
        for loop in loops:
            turns = _turns(loop.width, gap, algebra)
            if turns is None or (turns > 1 and loop is not loops[-1]):
                return None
            width = algebra.mul(loop.width, integer(turns))
            if not algebra.proves_lt(reach, width):
                result.append(self._owner(loop, turns, algebra.lt(distance, width)))
            if not algebra.proves_le(width, algebra.add(reach, gap)):
                gap = width
            distance = algebra.add(distance, algebra.mul(loop.at, loop.width))
            reach = self._farther(reach, loop)
        return result

    def _owner(self, loop: _WindowLoop, turns: int, first: Expr) -> Expr:
        """Return the test of a tile that has an element `first`, or is one of the last."""
        after = self.algebra.add(loop.at, ONE)
        last: Expr = Op("eq", (after, loop.extent), dtypes.bool_)
        if turns > 1:
            last = self.algebra.lt(self.algebra.sub(loop.extent, integer(turns)), after)
        return TRUE if last is TRUE else Op("or", (first, last), dtypes.bool_)

    def _loops(self, place: int, numbers: Sequence[int]) -> list[_WindowLoop] | None:
        """Return the loops that move tiles along an axis, the narrowest and innermost first.

        None where they do not move them evenly.
        """
        algebra, base = self.algebra, self.step.bases[place]
        start = self._begin(base, dict.fromkeys(numbers, ZERO))
        loops: list[_WindowLoop] = []
        total = start
        for number in reversed(numbers):
            one = self._begin(base, {**dict.fromkeys(numbers, ZERO), number: ONE})
            index, extent = self.env.known[self.step.outer[number]], self.step.loops[number]
            width = algebra.sub(one, start)
            total = algebra.add(total, algebra.mul(index, width))
            if isinstance(width, Const) and int(width.value) < 0:
                index = algebra.sub(algebra.sub(extent, ONE), index)
                width = algebra.sub(ZERO, width)
            if free_indices(width) or not algebra.proves_le(ZERO, width):
                return None
            loops.append(_WindowLoop(index, width, extent))
        even = algebra.equal(total, self._begin(base, {}))
        return sorted(loops, key=_rank) if even else None

    def _begin(self, base: Expr, chosen: Mapping[int, Expr]) -> Expr:
        """Return where a tile begins, with the indices of some loops chosen."""
        outer = [self.env.known[axis] for axis in self.step.outer]
        known: dict[Expr, Expr] = {
            c: chosen.get(c.number, outer[c.number]) for c in coordinates(base)
        }
        return self.algebra.simplify(substitute(base, known))

    def _is_ragged(self, base: Expr) -> bool:
        """Whether some points of several loops around tiles are beyond what they were made of.

        The last tile of a loop would not be that of its last iteration.
        """
        image = self.env.promotion.image
        if len(coordinates(base)) < 2:
            return False
        axes = [self.step.outer[c.number] for c in coordinates(base)]
        behind = {node for axis in axes for node in axes_behind(image.get(axis, axis))}
        steps = self.env.promotion.steps
        return any(a in behind for step in steps for a in step.overshoots(self.algebra))

    def _reach(self, place: int) -> Expr:
        """Return how far the last element of a tile lies from its first one."""
        last = self.algebra.sub(self.step.extents[place], ONE)
        return self.algebra.mul(last, integer(self.step.steps[place]))

    def _farther(self, reach: Expr, loop: _WindowLoop) -> Expr:
        rest = self.algebra.sub(loop.extent, ONE)
        return self.algebra.add(reach, self.algebra.mul(rest, loop.width))

    def _by_barrier(self, numbers: Sequence[int], condition: Expr) -> Expr:
        """Return a condition, where the loops can wait for each other."""
        for number in numbers if condition is not TRUE else ():
            if self.plan.spec(self.step.outer[number]).parallel is ParallelType.cpu_parallel:
                raise self._refused(number)
        return condition

    def _refused(self, number: int) -> LoweringError:
        spec, name = self.plan.spec(self.step.outer[number]), self.env.tensor.name
        what = f"the tiles of the {spec.parallel.value} loop {spec.axis} overlap, and would store"
        if self.memory is Memory.SHARED:
            return LoweringError(
                name,
                f"its buffer is laid out by its own axes, but {what} the same elements of it at "
                "once",
                f"leave the layout of {name} to its loops, set its memory to ln.LOCAL, or compute "
                "it outside of that loop",
            )
        return LoweringError(
            name,
            f"{what} the same elements of GLOBAL memory at once",
            f"set the memory of {name} to ln.SHARED or ln.LOCAL, or compute it outside of that "
            "loop",
        )


def _moves(base: Expr, number: int) -> bool:
    return Coordinate(number) in coordinates(base)


def _rank(loop: _WindowLoop) -> tuple[bool, int]:
    """Order loops by what they move a tile by, those that are not known as numbers the last."""
    known = isinstance(loop.width, Const)
    return (not known, int(loop.width.value) if isinstance(loop.width, Const) else 0)


def _turns(width: Expr, gap: Expr, algebra: Simplifier) -> int | None:
    """Return after how many tiles one has elements of the first again; None where it is not known.

    Tiles begin `width` apart, and their elements lie `gap` apart: the first tile's element
    ``gap * j`` is one of tile t where ``width * t`` is a multiple of `gap`.
    """
    if algebra.divides(gap, width):
        return 1
    if not isinstance(width, Const) or not isinstance(gap, Const):
        return None
    return int(gap.value) // gcd(int(width.value), int(gap.value))


_SWAPPED = {"gt": "lt", "ge": "le"}
_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


class LiveTerms:
    """What holds wherever elements of reductions are not the identity.

    Args:
        buffer_of: the buffer of an input.
    """

    def __init__(self, buffer_of: Callable[[TensorView], Buffer]) -> None:
        self.buffer_of = buffer_of

    def of(self, definition: Definition) -> tuple[Expr, ...]:
        """Return what holds wherever an element of a reduction is not the identity.

        Comparisons ``lt``, ``le`` and ``eq`` of indices, over the coordinates of the root; in one
        with an index that is data stands the `Arg` of the read that finds it, or the load of an
        input.
        """
        reducer = definition.reducer
        if reducer is None:
            return ()
        found: dict[Expr, None] | None = None
        # All components are folded by one update, which may stay away only where each of them takes
        # nothing in: of the conditions those that all have in common.
        for value, identity in zip(definition.values, reducer.identity, strict=True):
            mine = self._live(value, identity, definition.reads, outermost=True)
            found = dict.fromkeys(t for t in mine if found is None or t in found)
        return tuple(found or ())

    def _live(
        self, value: Expr, identity: Const, reads: Sequence[Read], *, outermost: bool
    ) -> tuple[Expr, ...]:
        """Return what holds wherever a template is not `identity`."""
        match value:
            case Op(op="where"):
                condition, yes, no = value.args
                if no is identity:
                    rest = self._live(yes, identity, reads, outermost=outermost)
                    return (*self._terms(condition, reads, True, outermost), *rest)
                if yes is identity:
                    rest = self._live(no, identity, reads, outermost=outermost)
                    return (*self._terms(condition, reads, False, outermost), *rest)
            case Op(op="cast"):
                (inner,) = value.args
                source = _converted_to(identity, inner.dtype)
                if source is None:
                    return ()
                return self._live(inner, source, reads, outermost=outermost)
            case Arg():
                found = pointwise(reads[value.number])
                if found is None:
                    return ()
                template = found.values[0]
                source = _converted_to(identity, template.dtype)
                if source is None:
                    return ()
                made = self._live(template, source, found.reads, outermost=False)
                return moved(made, reads[value.number])
        return ()

    def _terms(
        self, condition: Expr, reads: Sequence[Read], wanted: bool, outermost: bool
    ) -> tuple[Expr, ...]:
        """Return comparisons that hold wherever a condition is `wanted`; those that are known."""
        match condition:
            case Arg():
                found = pointwise(reads[condition.number])
                if found is None:
                    return ()
                inner = self._terms(found.values[0], found.reads, wanted, False)
                return moved(inner, reads[condition.number])
            case Op(op="not"):
                return self._terms(condition.args[0], reads, not wanted, outermost)
            # All parts of an `and` that holds hold; all parts of an `or` that fails fail. Of the
            # two other cases nothing follows for one part alone.
            case Op(op="and" | "or") if wanted == (condition.op == "and"):
                return tuple([
                    t for arg in condition.args
                    for t in self._terms(arg, reads, wanted, outermost)
                ])  # fmt: skip
            case Op(op="eq" | "ne", args=(value, Const() as literal)) if wanted == (
                condition.op == "ne"
            ):  # it is not that literal
                return self._live(value, literal, reads, outermost=outermost)
            case Op(op="lt" | "le" | "gt" | "ge" | "eq"):
                return self._comparison(condition, reads, wanted, outermost)
        return ()

    def _comparison(
        self, condition: Op, reads: Sequence[Read], wanted: bool, outermost: bool
    ) -> tuple[Expr, ...]:
        op, sides = condition.op, [self._index(arg, reads, outermost) for arg in condition.args]
        a, b = sides
        # Indices that are not equal lie on either side: no bound of a loop follows.
        if a is None or b is None or (op == "eq" and not wanted):
            return ()
        data = [part for part in walk(a, b) if isinstance(part, (Arg, Load))]
        # A sum of others with an integer of 64 bits may have more.
        if len(data) > 1 and any(part.dtype is dtypes.int64 for part in data):
            return ()
        op = op if wanted else _NEGATED[op]
        if op in _SWAPPED:
            op, a, b = _SWAPPED[op], b, a
        return (Op(op, (a, b), dtypes.bool_),)

    def _index(self, value: Expr, reads: Sequence[Read], outermost: bool) -> Expr | None:
        """Return an index as an expression of coordinates, sizes, and data."""
        found = index_form(value, reads, None if outermost else self._element)
        if found is not None:
            return found
        inner = value.args[0] if isinstance(value, Op) and value.op == "cast" else value
        if not isinstance(inner, Arg) or inner.dtype not in dtypes.INTEGERS:
            return None
        if outermost:
            return None if inner is value else cast(inner, dtypes.index)
        element = self._element(inner, reads) if inner.dtype is dtypes.int64 else None
        return None if element is None else cast(element, dtypes.index)

    def _element(self, value: Arg, reads: Sequence[Read]) -> Load | None:
        """Return the element of an input that a read finds, maybe by copies; None of others."""
        read = reads[value.number]
        if read.data:
            return None
        if read.producer.is_input:
            return _placed(self.buffer_of(read.producer), read)
        definition = pointwise(read)
        if definition is None or not definition.is_copy:
            return None
        (source,) = definition.values
        assert isinstance(source, Arg)
        element = self._element(source, definition.reads)
        if element is None or element.dtype is not value.dtype:
            return None
        (found,) = moved((element,), read)
        assert isinstance(found, Load)
        return found


def _placed(buffer: Buffer, read: Read) -> Load:
    """Return the load of what is read of an input, over the reader's coordinates."""
    axes = read.producer.domain.logical
    index = [ZERO if axis.is_broadcast else i for axis, i in zip(axes, read.indices, strict=True)]
    return Load(buffer, tuple(index) or (ZERO,))


def _converted_to(identity: Const, dtype: dtypes.DType) -> Const | None:
    """Return the literal of `dtype` that `identity` is when it is converted, None for none."""
    if dtype is identity.dtype:
        return identity
    if not (dtype.is_float and identity.dtype.is_float):
        return None
    found = fold(cast(Const(identity.value, dtype.compute), dtype))
    if not isinstance(found, Const) or found.dtype is not dtype:
        return None
    # Rounding to the narrower type may change the literal: only one that comes back is the identity
    # there, too.
    return found if fold(cast(found, identity.dtype)) is identity else None


class PhaseTerms:
    """The tests of the phases of a fusion.

    Args:
        accesses: the indices of their tensors.
        stages: the grid reductions, by tensor.
        flagged: of a tensor, those whose last block alone computes it.
        names: of the kernel's variables.
    """

    def __init__(
        self,
        accesses: Accesses,
        stages: dict[TensorView, GridReduction],
        flagged: dict[TensorView, tuple[TensorView, ...]],
        names: FreshNames,
    ) -> None:
        self.accesses, self.nest, self.names = accesses, accesses.nest, names
        self.plan, self.algebra = accesses.plan, accesses.algebra
        self.storage, self.vectors = accesses.storage, accesses.vectors
        self.stages, self._flagged = stages, flagged
        self._flags: dict[TensorView, Local] = {}
        # A test of threads alone is best lifted around their loops; one around the lanes that
        # execute an instruction together has to go.
        self.fills_tiles = any(spec.tile is not None for spec in self.plan.specs.values())
        self.live = LiveTerms(lambda tensor: accesses.storage[tensor].buffer)

    # Blocks that go on alone

    def flag_of(self, unit: TensorView) -> Local:
        """Return the name that says whether this block is the last one of a reduction."""
        found = self._flags.get(unit)
        if found is None:
            name = self.names.buffer(f"{unit.name}_last")
            found = self._flags[unit] = Local(name, dtypes.bool_)
        return found

    def arrivals(self) -> dict[Expr, frozenset[ParallelType]]:
        """Return by flag the grid dimensions whose blocks have all arrived where it is true."""
        return {flag: frozenset(self.stages[unit].dims) for unit, flag in self._flags.items()}

    def flags(self, unit: TensorView, *, own: bool) -> tuple[PredicateTerm, ...]:
        """Return the tests for the blocks that `unit` is computed in."""
        return tuple([
            PredicateTerm(self.flag_of(t), f"{unit.name} is computed in the last block of {t.name}")
            for t in self._flagged[unit] if own or t is not unit
        ])  # fmt: skip

    def first_threads(
        self, unit: TensorView, used: Iterable[ParallelType]
    ) -> tuple[PredicateTerm, ...]:
        """Return the tests that let one thread write what does not use the other dimensions."""
        alone = {d for t in self._flagged[unit] if t is not unit for d in self.plan.crossed[t]}
        free = {*used, *(d for d in alone if d.is_grid)}
        return tuple([
            PredicateTerm(one_thread(d), f"{unit.name} does not use {d.value}, so one writes it")
            for d in self.plan.launch
            if d not in free
        ])  # fmt: skip

    # Tests of a phase

    def guarded(
        self,
        compute: Compute,
        env: Environment,
        made: tuple[Store | Let | Shuffle, ...],
        carried: bool = False,
    ) -> tuple[Guarded, ...]:
        """Return the statements, those with the same predicate together.

        `carried` says that they are a step of a scan in one thread, whose update alone may be idle.

        Outputs of one definition may differ: holes of a LOCAL buffer may be initialised, where its
        loops gave it its axes, and a GLOBAL one has one writer, as have the LOCAL ones that it
        alone is computed in. Updates do not differ (see `nest.accumulates_apart`).
        """
        holes = self._holes(compute, env)
        once = all(twin.memory is Memory.GLOBAL for twin in compute.unit.siblings)
        once = once and not self.plan.crossed[compute.unit]  # all threads have a part
        stores = [s for s in made if isinstance(s, Store)]
        memories = dict.fromkeys([store.storage.memory for store in stores])
        definition = compute.unit.definition
        folds = definition is not None and (carried or definition.scan is None)
        folds = folds and any(store.role == "update" for store in stores)
        by_memory = {m: self._terms(compute, env, m, once, holes, folds, carried) for m in memories}
        result: list[Guarded] = []
        for memory, same in groupby(stores, key=lambda store: store.storage.memory):
            first = () if result else tuple([s for s in made if not isinstance(s, Store)])
            result.append(Guarded((*first, *same), by_memory[memory]))
        return tuple(result)

    def _terms(
        self,
        compute: Compute,
        env: Environment,
        memory: Memory,
        once: bool,
        holes: dict[Expr, PredicateTerm],
        folds: bool,
        carried: bool,
    ) -> tuple[PredicateTerm, ...]:
        is_global = memory is Memory.GLOBAL
        terms: dict[Expr, PredicateTerm] = {}
        own = [self.storage[twin] for twin in compute.unit.siblings]
        own_axes = any(s.axes is not None and s.accumulator is s.buffer for s in own)
        # An init may run at holes of a buffer whose dimensions are its loops: there is room, and no
        # other element lies there (rule 37). GLOBAL memory, and a buffer laid out by axes of its
        # own, have no room beyond their elements, or another element there.
        if compute.phase != "init" or is_global or own_axes:
            last = compute.phase == "finish" or not self.plan.crossed[compute.unit]
            terms = {t.condition: t for t in self.flags(compute.unit, own=last)}
            terms |= holes
        if compute.phase == "update" and folds:
            for condition in self._live(compute, env):
                # A test for which no loop gets bounds would stand in the way of vectors; one of
                # data bounds a loop over the index that it is compared to.
                if carried and not loads(condition):
                    continue
                reason = f"{compute.unit.name} takes nothing in elsewhere"
                terms[condition] = PredicateTerm(condition, reason, idle=True)
        places = self.storage[env.tensor].places
        again = first_points(self.nest, compute, env.known, memory, places)
        for condition in (*again, *first_starts(self.nest, env, self.storage[env.tensor].axes)):
            terms[condition] = PredicateTerm(condition, f"{compute.unit.name}: once is enough")
        # In SHARED memory each thread has a place of its own, but where axes were laid out.
        shared = memory is Memory.SHARED and any(s.axes is not None for s in own)
        stored = shared or (is_global and any(t.memory is memory for t in compute.unit.siblings))
        for condition in owners(self.plan, env, memory) if stored else ():
            terms[condition] = PredicateTerm(condition, f"{compute.unit.name}: one tile stores it")
        if once or memory is not Memory.LOCAL:
            for term in self._one_writer(compute, Memory.GLOBAL if once else memory):
                terms[term.condition] = term
        return tuple(terms.values())

    def _live(self, compute: Compute, env: Environment) -> Iterator[Expr]:
        """Yield the conditions of an update outside of which it adds the identity.

        Only those that spare iterations of a loop.
        """
        definition, root = compute.unit.definition, env.tensor.domain.root
        assert definition is not None
        for term in self.live.of(definition):
            known: dict[Expr, Expr] = {
                c: self.accesses.need(env, root[c.number]) for c in coordinates(term)
            }
            data = [n for n in walk(term) if isinstance(n, Arg)]
            if data:
                known.update(self._data(definition, env, data))
            condition = decided(substitute(term, known), self.algebra)
            if isinstance(condition, Op) and self._spares(compute, condition):
                yield condition

    def _data(
        self, definition: Definition, env: Environment, data: Sequence[Arg]
    ) -> dict[Expr, Expr]:
        """Return what some reads of a definition find, which an update reads anyway."""
        before = len(self.accesses.unguarded)
        found = self.accesses.reads(definition, env)
        del self.accesses.unguarded[before:]
        return {arg: found[arg.number] for arg in data}

    def _spares(self, compute: Compute, condition: Expr) -> bool:
        """Whether a condition bounds a loop around a phase, or stands outside of one."""
        used = free_indices(condition)
        if self._chooses(compute, condition):
            return True
        if loads(condition):  # one of data bounds a loop over the index that it is compared to
            found = gaps(condition, self.algebra)
            inner = frozenset(v for v in used if all(slope(g, v, self.algebra) for g in found))
            places = {var: n for n, var in enumerate(compute.loops)}
            known = max([places.get(v, 0) for v in used - inner], default=-1)
            used = frozenset(v for v in inner if places.get(v, -1) > known)
        specs = [self.nest.spec_of[var] for var in compute.loops]
        if any(s.parallel in (ParallelType.vectorize, ParallelType.unroll)
               for var, s in zip(compute.loops, specs, strict=True) if var in used):  # fmt: skip
            return False
        # At its best thread a condition may stand outside of all loops over threads.
        serial = [n for n, (var, s) in enumerate(zip(compute.loops, specs, strict=True))
                  if var in used and not s.parallel.is_thread]  # fmt: skip
        last = max(serial, default=-1)
        return any(
            is_bounded(spec.parallel, spec.extent, var, condition, self.algebra)
            and (var in used or (n > last and not loads(condition)))
            for n, (var, spec) in enumerate(zip(compute.loops, specs, strict=True))
        )

    def _chooses(self, compute: Compute, condition: Expr) -> bool:
        """Whether an element of an input, which the index of a serial loop names, is compared."""
        asked = loads(condition)
        if not asked or any(load.buffer.kind != "input" for load in asked):
            return False
        named = {v for load in asked for index in load.args for v in free_indices(index)}
        kinds = [self.nest.spec_of[var].parallel for var in compute.loops if var in named]
        return bool(kinds) and kinds[-1] in (ParallelType.serial, ParallelType.unswitch)

    def _holes(self, compute: Compute, env: Environment) -> dict[Expr, PredicateTerm]:
        """Return the tests that keep a phase to the elements that there are.

        Those of a definition and of an update are the root's; a reduction starts and ends with
        logical elements, also with one that no element of the root belongs to (a part of a split
        that does not divide): it holds the identity, which is read like any other.
        """
        terms: dict[Expr, PredicateTerm] = {}
        domain = env.tensor.domain
        whole = compute.phase not in ("define", "update")
        above = env.above(domain.logical if whole else domain.root)
        for step in env.promotion.steps:
            for axis in step.overshoots(self.algebra):
                if axis in above:
                    continue
                if not self._concerns(axis, compute.unit):
                    self._mixed(env, axis, terms)
                elif not self._follows(env, axis, above):
                    self._hole(env, axis, step.describe(), terms)
            for axis in step.undershoots(self.algebra):
                if axis in env.known and self._concerns(axis, compute.unit):
                    self._before(env, axis, terms)
        for axis in domain.logical if whole else dict.fromkeys((*domain.root, *domain.logical)):
            value = env.part(axis) if whole else env.index_as_part(axis)
            if value is not None:
                self._beyond(env, axis, value, "a loop that others need", terms)
        return terms

    def _mixed(self, env: Environment, axis: IterDomain, terms: dict[Expr, PredicateTerm]) -> None:
        """Add the tests of the axes that a reshape mixes with others into `axis`.

        Where [N, M] is read as [M, N], an index beyond the new columns of a tensor along N alone
        counts on into the next row, and from the last one beyond N.
        """
        promoter, step = self.plan.promoter, axis.definition
        if not promoter.reshapes or step is None:
            return
        behind = {key for node in axes_behind(axis)[1:] for key in promoter.concrete_keys(node)}
        for own in env.tensor.domain.root:
            if not own.is_broadcast and not behind.isdisjoint(promoter.keys(own)):
                value = env.index(own)
                if value is not None:
                    self._beyond(env, own, value, step.describe(), terms)

    def _concerns(self, axis: IterDomain, unit: TensorView) -> bool:
        """Whether `unit` has any of the axes of the math that `axis` was made from.

        Or is computed in tiles, of which there are no more than its loops have points.
        """
        if self._holds(axis, unit):
            return True
        image = self.plan.promotions[unit].image
        return any(axis in axes_behind(node) for own, node in image.items() if is_tile_loop(own))

    def _holds(self, axis: IterDomain, unit: TensorView) -> bool:
        """Whether an index beyond `axis` may lie beyond `unit`: it has an axis of the math of it.

        One of a loop around its tiles it need not have: beyond that, elements of it are repeated.
        Of an axis that a reshape makes it need not have all that it is made of: where T[W, 2] is
        read as an axis of W * 2 elements, an index beyond these lies beyond W, too.
        """
        promoter = self.plan.promoter
        if not self.plan.promotions[unit].image:
            return True
        return not promoter.concrete_keys(axis).isdisjoint(promoter.held(unit))

    def _follows(self, env: Environment, axis: IterDomain, above: frozenset[IterDomain]) -> bool:
        """Whether the tests of what `axis` was made from keep `axis` within bounds too.

        There is none of the axes `above`.
        """
        step = axis.definition
        if step is None or axis not in step.follows() or not above.isdisjoint(step.inputs):
            return False
        tested = step.overshoots(self.algebra)
        return all(
            source in env.known and (source in tested or self._follows(env, source, above))
            for source in step.inputs
        )

    def _hole(
        self, env: Environment, axis: IterDomain, how: str, terms: dict[Expr, PredicateTerm]
    ) -> None:
        value = env.known.get(axis)
        if value is not None:
            self._beyond(env, axis, value, how, terms)

    def _before(self, env: Environment, axis: IterDomain, terms: dict[Expr, PredicateTerm]) -> None:
        """Add the test that an index is not negative, where a tile with halo may begin before 0."""
        condition = self.algebra.lt(integer(-1), env.known[axis])
        if condition is not TRUE:
            below = self._lanes_agree(self._multiple_below, env.known[axis])
            condition = normal_le(ZERO, below, self.algebra)
            reason = f"{env.tensor.name}: a tile with halo begins in front of the first element"
            terms[condition] = PredicateTerm(condition, reason)

    def _beyond(
        self,
        env: Environment,
        axis: IterDomain,
        value: Expr,
        how: str,
        terms: dict[Expr, PredicateTerm],
    ) -> None:
        size = self.algebra.simplify(axis.size)
        first = self._lanes_agree(partial(self._first_lane, env.tensor, size), value)
        condition = self.algebra.lt(first, size)
        if condition is not TRUE:
            name, unit = env.tensor.name, env.tensor.siblings[0]
            root = self._root_of(axis) if self.fills_tiles else axis
            alone = value if root is axis else env.known.get(root)
            if root.definition is not None or not self._holds(root, unit):
                alone = None
            terms[condition] = PredicateTerm(
                condition,
                f"{name}: {how} need not divide {size}",
                None if alone is None else self.algebra.lt(alone, self.algebra.simplify(root.size)),
                folded=not (root.is_iteration and root in env.tensor.domain.root)
                or root in _scanned(env.tensor),
            )

    def _root_of(self, axis: IterDomain) -> IterDomain:
        """Return the axis beyond which an index lies where it lies beyond `axis`.

        Of an axis that is the outer part of a split that divides, it is the axis that was split.
        """
        while (step := axis.definition) and axis in step.follows():
            if len(step.inputs) > 1 or step.overshoots(self.algebra):
                break
            (axis,) = step.inputs
        return axis

    def _lanes_agree(self, tested: Callable[[Expr, bool], Expr], value: Expr) -> Expr:
        """Return the index to test, and note what whole vectors require."""
        whole = tested(value, True)
        if self.vectors.assumed or self.vectors.lanes.isdisjoint(variables(value)):
            return whole
        return tested(value, False)

    def _first_lane(self, tensor: TensorView, size: Expr, value: Expr, assumed: bool) -> Expr:
        """Return the index to test: that of iteration 0 where all of an inner loop agree.

        They do where they are neighbours and the loop's extent divides the size. For the lanes of a
        vector that is required of a symbolic size, or else each lane has a test of its own.
        """
        for node in walk(value):
            if not isinstance(node, Index) or not isinstance(node.extent, Const):
                continue
            first = self.algebra.sub(value, node)
            if not self._starts_whole(node, first, assumed):
                continue
            if self.algebra.divides(node.extent, size):
                return self._first_lane(tensor, size, first, assumed)
            if node in self.vectors.lanes:
                return self._of_lanes(tensor, node, value, size, assumed)
        return value

    def _multiple_below(self, value: Expr, assumed: bool) -> Expr:
        """Return what is negative where `value` is: the part that an inner loop counts on from.

        It is a multiple of the loop's extent, so that no number lies between it and 0.
        """
        for node in walk(value):
            if isinstance(node, Index) and isinstance(node.extent, Const):
                first = self.algebra.sub(value, node)
                if self._starts_whole(node, first, assumed):
                    return self._multiple_below(first, assumed)
        return value

    def _starts_whole(self, node: Index, first: Expr, assumed: bool) -> bool:
        """Whether an inner loop's extent divides what it counts on from.

        For the lanes of a vector that is required of sizes that an index is moved by.
        """
        if self.algebra.divides(node.extent, first):
            return True
        if node not in self.vectors.lanes or not assumed:
            return False
        sizes: list[Expr] = []
        for term, count in self.algebra.poly(first).items():
            value: Expr = integer(count)
            for atom in term:
                value = self.algebra.mul(value, atom)
            if not self.algebra.divides(node.extent, value):
                if len(term) != 1 or not isinstance(term[0], Symbol):
                    return False
                sizes.append(term[0])
        for size in sizes:
            self.vectors.require(size, node.extent)
        return True

    def _of_lanes(
        self, tensor: TensorView, lane: Index, value: Expr, size: Expr, assumed: bool
    ) -> Expr:
        if isinstance(size, Const):
            raise LoweringError(
                tensor.name,
                f"its vectorized axis of extent {lane.extent} runs over {size} elements, "
                f"which {lane.extent} does not divide",
                "a vectorized axis must divide: choose another factor",
            )
        if not assumed:
            return value
        self.vectors.require(size, lane.extent)
        return self.algebra.sub(value, lane)

    def _one_writer(self, compute: Compute, memory: Memory) -> tuple[PredicateTerm, ...]:
        """Return the tests that let one thread write a tensor without these dimensions.

        One of the launch writes to GLOBAL memory, one of each block to SHARED memory.
        """
        whole = compute.phase in ("update", "define")
        path = self.plan.forest.path(compute.unit)
        loops = path if whole else result_loops(self.plan, compute.unit)
        specs = [self.plan.specs[group] for group in loops]
        used = {spec.parallel for spec in specs if not is_trivial(spec)}
        used.update(d for d in self.plan.launch if not memory.spans(d))
        used.update(
            d for t in self._flagged[compute.unit] for d in self.plan.crossed[t] if d.is_grid
        )
        return self.first_threads(compute.unit, used)


def _scanned(tensor: TensorView) -> tuple[IterDomain, ...]:
    """Return the root axis that a scan folds along; none of other definitions."""
    if tensor.definition is None or tensor.definition.scan is None:
        return ()
    return (tensor.domain.root[tensor.definition.scan.axis],)


def one_thread(dimension: ParallelType) -> Expr:
    """Return the test for the first thread (or block) along a launch dimension."""
    return Op("eq", (LaunchIndex(dimension), ZERO), dtypes.bool_)
