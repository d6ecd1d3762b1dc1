"""Value provenance: what each store leaves, a whole value or a part of a reduction's domain.

A partial result is a multiset of elements of the reduction's root domain (`held_multisets`), so
that a store's content is one cumulative sum, whatever stages it went through.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from loopnest.proofs.data_indices import Need
from loopnest.proofs.enumeration.access_instances import OUTSIDE, AccessInstances, InstanceTable
from loopnest.proofs.enumeration.fold_orders import FoldOrder
from loopnest.proofs.enumeration.held_multisets import Held, Sums, equal, nothing, scanned
from loopnest.proofs.live_points import LivePoints
from loopnest.proofs.obligations import CollectiveMath, Work
from loopnest.proofs.out_of_domain import defined, is_neutral
from loopnest.proofs.point_arrays import Array, Flags, Points, Undecidable, groups_along, number
from loopnest.proofs.program_model import Access, Site
from loopnest.proofs.template_matching import Combined, Operand
from loopnest.scalar.enums import MOST_THREADS
from loopnest.scalar.expr import Buffer, Const, Coordinate, Expr, loads
from loopnest.tensor.math_snapshot import MathAxis, MathSnapshot, MathTensor
from loopnest.tensor.tensor_view import Scan, data_of

_SEED = 20231

_UNKNOWN = -1
"""The number of a constant that is not known."""

_TAKING = ("merge", "partial", "finish")

MOST_STAGES = 16
"""How many stages a partial result may go through."""


@dataclass
class Writes:
    """All stores of tensors to one buffer, in order of key and time.

    Args:
        works: the stores.
        marks: their accesses.
        work, point: which of them, and which of its points.
        key, time: sorted.
        starts: whether a store begins a value (all but updates).
        final: whether it stores a whole value.
        tensor: the number of the tensor that it claims.
        element: the linear logical index that it claims, -1 outside of the tensor or where none.
    """

    works: list[Work]
    marks: list[AccessInstances]
    work: Array
    point: Array
    key: Array
    time: Array
    starts: Flags
    final: Flags
    tensor: Array
    element: Array

    @cached_property
    def _ranked(self) -> tuple[Array, Array]:
        """The keys, each once, and the place of each store's key among them."""
        fresh = np.r_[True, self.key[1:] != self.key[:-1]]
        return self.key[fresh], np.cumsum(fresh) - 1

    def source(self, key: Array, time: Array) -> Array:
        """Return for each read the last store to its key before it; -1 where there is none."""
        if not self.key.size:
            return np.full(key.size, -1)
        keys, rank = self._ranked
        span = int(max(self.time.max(initial=0), time.max(initial=0))) + 2
        place = np.searchsorted(keys, key)
        known = place < keys.size
        known &= keys[np.where(known, place, 0)] == key
        # Strictly before: of one statement, all loads precede the write (`kir`).
        found = np.searchsorted(rank * span + self.time, place * span + time) - 1
        valid = known & (found >= 0)
        valid &= self.key[np.where(found >= 0, found, 0)] == key
        return np.where(valid, found, -1)


class ValueProvenance:
    """What the stores of a program leave, at given sizes.

    Args:
        table: its accesses.
        math: what it should compute.
        works, exchanges: its stores and collectives.
    """

    def __init__(
        self,
        table: InstanceTable,
        math_: MathSnapshot,
        works: Sequence[Work],
        exchanges: Mapping[Site, CollectiveMath],
    ) -> None:
        self.table, self.math, self.works, self.exchanges = table, math_, works, exchanges
        self._works_of: dict[Buffer, list[Work]] = {}
        for work in works:
            self._works_of.setdefault(work.store.storage, []).append(work)
        self.numbers = {t.name: n for n, t in enumerate(math_.tensors)}
        self._writes: dict[Buffer, Writes] = {}
        self._sources: dict[AccessInstances, Array] = {}
        self._held: dict[Buffer, Held] = {}
        self._combined: dict[tuple[Site, int], Held] = {}
        self._own: dict[Work, Held] = {}
        self._domains: dict[tuple[str, ...], tuple[Sums, dict[str, Held]]] = {}
        self._results: dict[str, tuple[Array, Sums]] = {}
        self.outside = EnumeratedPadding(self)
        self.live = LivePoints(math_, table.model.program)

    def shape(self, axes: Sequence[MathAxis]) -> tuple[int, ...]:
        """Return extents as numbers."""
        return tuple([number(axis.extent, self.table.sizes) for axis in axes])

    # Domains

    def weights(self, tensor: MathTensor) -> Sums:
        """Return a random number for each element of a reduction's root domain."""
        return self._domain(tensor)[0]

    def _domain(self, tensor: MathTensor) -> tuple[Sums, dict[str, Held]]:
        assert tensor.definition is not None
        key = tensor.definition.outputs
        if key not in self._domains:
            size = math.prod(self.shape(tensor.root))
            seed = [_SEED, self.numbers[key[0]]]
            draw = np.random.Generator(np.random.PCG64(seed)).integers(0, 1 << 64, size, np.uint64)
            self._domains[key] = draw, {}
        return self._domains[key]

    def wanted(self, tensor: MathTensor) -> Held:
        """Return what each logical element of a reduction folds."""
        draw, done = self._domain(tensor)
        if tensor.name not in done:
            if tensor.scan is not None:
                done[tensor.name] = self._so_far(tensor, tensor.scan, draw)
                return done[tensor.name]
            numbers, results = self.results(tensor)
            total = results.size
            sums = np.zeros(total, np.uint64)
            live = self._live(tensor)
            if live is not None:
                numbers, draw = numbers[live], draw[live]
            if total:
                np.add.at(sums, numbers, draw)
            count = np.bincount(numbers, minlength=total)
            whose = count.astype(np.uint64) * results
            valid, order = np.ones(total, np.bool_), FoldOrder.nothing(total)
            done[tensor.name] = Held(count, sums, valid, whose, order)
        return done[tensor.name]

    def _live(self, tensor: MathTensor) -> Flags | None:
        """Return which elements of a root domain count; None where all do."""
        drawn = self.table.space.data
        conditions = tuple([
            (c, True) for c in self.live.at_elements(tensor)
            if not data_of((c,)) and all(load.buffer in drawn for load in loads(c))
        ])  # fmt: skip
        if not conditions:
            return None
        asked = dict.fromkeys([load for c, _ in conditions for load in loads(c)])
        points = root_points(self.shape(tensor.root))
        points = points.with_data(asked, drawn, {}, self.table.sizes)
        return points.where(conditions, {}, self.table.sizes)

    def _so_far(self, tensor: MathTensor, scan: Scan, draw: Sums) -> Held:
        """Return what each element of a scan folds: all up to it, or before it."""
        shape = self.shape(tensor.root)

        def added(values: Any) -> Any:
            own = values.reshape(shape)
            total = np.cumsum(own, axis=scan.axis, dtype=values.dtype)
            if scan.segment is not None and total.size:
                start = np.arange(shape[scan.axis]) // scan.segment * scan.segment
                total = total - np.take(total - own, start, axis=scan.axis)
            return (total - own if scan.exclusive else total).ravel()

        live = self._live(tensor)
        counts = np.ones(draw.size, np.bool_) if live is None else live
        numbers, results = self.results(tensor)
        valid, order = np.ones(draw.size, np.bool_), FoldOrder.nothing(draw.size)
        sums, whose = [added(np.where(counts, n, np.uint64(0))) for n in (draw, results[numbers])]
        return Held(added(counts.astype(np.int64)), sums, valid, whose, order)

    def results(self, tensor: MathTensor) -> tuple[Array, Sums]:
        """Return which logical element each root element folds into, and a number for each."""
        found = self._results.get(tensor.name)
        if found is None:
            root, logical = self.shape(tensor.root), self.shape(tensor.logical)
            numbers = logical_numbers(tensor, root, logical, self.table.sizes)
            generator = np.random.Generator(np.random.PCG64([_SEED, 1]))
            draw = generator.integers(0, 1 << 64, math.prod(logical), np.uint64)
            found = self._results[tensor.name] = numbers, draw
        return found

    def claimed(self, work: Work, held: Held) -> Flags:
        """Return where all that a partial result holds folds into the element that is claimed."""
        points = self.table.space.points[work.site]
        element = self.table.linear(points, work.element, self.shape(work.tensor.logical))
        _, draw = self.results(work.tensor)
        inside = (element >= 0) & (draw.size > 0)
        wanted = np.zeros(points.count, np.uint64)
        wanted[inside] = draw[element[inside]]
        result: Flags = held.results == held.count.astype(np.uint64) * wanted
        return result

    # Stores

    def writes(self, buffer: Buffer) -> Writes:
        """Return the stores of tensors to a buffer."""
        found = self._writes.get(buffer)
        if found is None:
            found = self._writes[buffer] = self._sorted(buffer)
        return found

    def _sorted(self, buffer: Buffer) -> Writes:
        works = self._works_of.get(buffer, [])
        marks = [self.table.marks(w.write) for w in works]
        columns: dict[str, list[Array]] = {}
        for n, (work, mark) in enumerate(zip(works, marks, strict=True)):
            count = mark.points.count
            element = np.full(count, OUTSIDE)
            if work.kind not in ("init", "partial"):
                element = self.table.linear(
                    mark.points, work.element, self.shape(work.tensor.logical)
                )
            row: dict[str, Any] = {
                "work": np.full(count, n), "point": np.arange(count), "key": mark.key,
                "time": mark.time, "starts": np.full(count, work.starts),
                "final": np.full(count, work.is_final),
                "tensor": np.full(count, self.numbers[work.tensor.name]), "element": element,
            }  # fmt: skip
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
        empty = [np.zeros(0, np.int64)]
        names = ("work", "point", "key", "time", "starts", "final", "tensor", "element")
        whole = {name: np.concatenate(columns.get(name, empty)) for name in names}
        order = np.lexsort((whole["work"], whole["time"], whole["key"]))
        whole = {name: value[order] for name, value in whole.items()}
        starts, final = whole.pop("starts").astype(np.bool_), whole.pop("final").astype(np.bool_)
        return Writes(works, marks, starts=starts, final=final, **whole)

    # Multisets

    def held(self, buffer: Buffer) -> Held:
        """Return what each store to a buffer leaves there, in the order of `writes`.

        Raises:
            Undecidable: it depends on itself.
        """
        if not self._held:
            self._solve()
        return self._held[buffer]

    def _solve(self) -> None:
        """Find what all stores leave, stage by stage, until nothing changes any more.

        One accumulator may serve several stages, so that buffers have no order; stores have one.
        """
        buffers = list(dict.fromkeys(w.store.storage for w in self.works))
        for buffer in buffers:
            self._held[buffer] = nothing(self.writes(buffer).key.size)
            self._held[buffer].valid[:] = False
        users = {b: [w.store.storage for w in self.works if b in self._taken(w)] for b in buffers}
        waiting = dict.fromkeys(buffers)
        for _ in range(MOST_STAGES * len(buffers)):
            if not waiting:
                return
            buffer = next(iter(waiting))
            del waiting[buffer]
            found = self._summed(self.writes(buffer))
            if not equal(self._held[buffer], found):
                self._held[buffer] = found
                self._combined.clear()
                waiting.update(dict.fromkeys(users[buffer]))
        raise Undecidable("partial results depend on each other")

    def _taken(self, work: Work) -> set[Buffer]:
        """Return the buffers of the partial results that a store takes in."""
        found: set[Buffer] = set()
        waiting: list[Operand] = [n.operand for n in work.needs if work.kind in _TAKING]
        while waiting:
            operand = waiting.pop()
            if isinstance(operand, Combined):
                waiting += self.exchanges[operand.moment].args
            else:
                found.add(operand.buffer)
        return found

    def _summed(self, writes: Writes) -> Held:
        size = writes.key.size
        own = nothing(size)
        for n, work in enumerate(writes.works):
            rows = np.flatnonzero(writes.work == n)
            added = self._added(work).take(writes.point[rows])
            own.count[rows], own.sums[rows] = added.count, added.sums
            own.valid[rows], own.results[rows] = added.valid, added.results
            own.order.put(rows, added.order)
        place = np.arange(size)
        fresh = np.r_[True, writes.key[1:] != writes.key[:-1]][:size]
        # A value lasts from a start to the next one of its key; what was added since is a
        # cumulative sum less what it was at the start.
        begin = np.maximum.accumulate(np.where(writes.starts | fresh, place, 0))
        changed = ~writes.starts & (writes.tensor != writes.tensor[begin])
        # Not known is what continues nothing, a value of another tensor, or one that was whole
        # already.
        bad = (
            ~own.valid | (fresh & ~writes.starts) | changed | (~writes.starts & writes.final[begin])
        )

        def since(values: Any) -> Any:
            total = np.cumsum(values)
            return total - total[begin] + values[begin]

        sums, results = since(own.sums), since(own.results)
        order = own.order.since(begin)
        return Held(since(own.count), sums, since(bad) == 0, results, order)

    def _added(self, work: Work) -> Held:
        """Return what a store adds to its value, at every point of its site."""
        if work.kind in _TAKING:
            need = work.part if work.kind == "merge" else work.needs[0]
            if need is None:
                raise Undecidable(f"{work.tensor.name} takes in a partial result of another tensor")
            return self.part(work, need)
        found = self._own.get(work)
        if found is None:
            found = self._own[work] = self.elements(work)
        return found

    def elements(self, work: Work) -> Held:
        """Return what a store adds that takes in no partial result."""
        points = self.table.space.points[work.site]
        if work.kind == "update":
            root = self.table.linear(points, work.store.coordinate, self.shape(work.tensor.root))
            draw = self.weights(work.tensor)
            inside = (root >= 0) & (draw.size > 0)
            idle = np.zeros(root.size, np.bool_)
            live = self._live(work.tensor)
            if live is not None:
                idle[inside] = ~live[root[inside]]
                inside &= ~idle
            sums, results = np.zeros(root.size, np.uint64), np.zeros(root.size, np.uint64)
            sums[inside] = draw[root[inside]]
            numbers, whose = self.results(work.tensor)
            results[inside] = whose[numbers[root[inside]]]
            valid = inside | idle | self.outside.neutral(work)
            order = FoldOrder.single(root, inside)
            return Held(inside.astype(np.int64), sums, valid, results, order)
        return nothing(points.count)

    def part(self, work: Work, need: Need) -> Held:
        """Return what a partial result that a store takes in holds, at every point of its site."""
        return self.found(work.site, need.operand, need.tensor)

    def found(self, site: Site, operand: Operand, tensor: MathTensor) -> Held:
        """Return what an operand holds of a tensor, at every point of a site."""
        points = self.table.space.points[site]
        if isinstance(operand, Combined):
            exchange = self.exchanges[operand.moment]
            if not points.count:
                return nothing(0)
            held = self.combined(exchange, operand.component)
            return held.take(self.table.lookup(exchange.site, points))
        mark = self.table.marks(operand)
        result = nothing(points.count)
        result.valid[:] = False
        writes = self.writes(operand.buffer)
        source = self._source(mark)
        if not writes.key.size:
            return result
        known = source >= 0
        held = self.held(operand.buffer).take(np.where(known, source, 0))
        result.count[mark.where], result.sums[mark.where] = held.count, held.sums
        result.results[mark.where] = held.results
        result.order.put(mark.where, held.order)
        mine = writes.tensor[np.where(known, source, 0)] == self.numbers[tensor.name]
        result.valid[mark.where] = held.valid & known & mine
        return result

    # Collectives

    def combined(self, exchange: CollectiveMath, component: int) -> Held:
        """Return what the results of a collective hold, at every point of its site."""
        key = (exchange.site, component)
        if key not in self._combined:
            argument = component % len(exchange.args)
            tensor = exchange.tensors[argument]
            part = self.found(exchange.site, exchange.args[argument], tensor)
            group = self.groups(exchange)
            if exchange.node.is_so_far(component):
                inclusive = exchange.node.scan == "inclusive"
                self._combined[key] = scanned(part, group, self.turns(exchange), inclusive)
                return self._combined[key]
            size = int(group.max(initial=-1)) + 1
            whole = nothing(size)
            np.add.at(whole.count, group, part.count)
            np.add.at(whole.sums, group, part.sums)
            np.add.at(whole.results, group, part.results)
            np.logical_and.at(whole.valid, group, part.valid)
            order = part.order.grouped(group, self.turns(exchange))
            if not exchange.node.in_order:
                order = order.unless_several(part.order, group)
            whole.order.put(np.arange(size), order)
            self._combined[key] = whole.take(group)
        return self._combined[key]

    def groups(self, exchange: CollectiveMath) -> Array:
        """Return for each point of a collective the number of the group that it belongs to."""
        points = self.table.space.points[exchange.site]
        space = self.table.space
        moment = points.block * space.span + points.time
        key = groups_along(exchange.node.dims, space.places(points), moment)
        return np.unique(key, return_inverse=True)[1] if key.size else key

    def used(self, exchange: CollectiveMath) -> Flags:
        """Return for each point of a collective whether a store or collective takes its result."""
        group = self.groups(exchange)
        found = np.zeros(int(group.max(initial=-1)) + 1, np.bool_)
        takers = [(w.site, [n.operand for n in w.needs]) for w in self.works]
        takers += [(e.site, list(e.args)) for e in self.exchanges.values()]
        for site, operands in takers:
            points = self.table.space.points[site]
            takes = any(isinstance(o, Combined) and o.moment is exchange.site for o in operands)
            if takes and points.count:
                found[group[self.table.lookup(exchange.site, points)]] = True
        result: Flags = found[group]
        return result

    def turns(self, exchange: CollectiveMath) -> Array:
        """Return for each point of a collective its thread's number along its dimensions."""
        space = self.table.space
        places = space.places(space.points[exchange.site])
        number = np.zeros(space.points[exchange.site].count, np.int64)
        for dim in reversed(exchange.node.dims):  # the first runs fastest
            number = number * MOST_THREADS + places[dim]
        return number

    def own(self, access: Access) -> tuple[AccessInstances, Writes, Array]:
        """Return a read's marks, the stores to its buffer, and the source of each."""
        mark = self.table.marks(access)
        writes = self.writes(access.buffer)
        return mark, writes, self._source(mark)

    def _source(self, mark: AccessInstances) -> Array:
        found = self._sources.get(mark)
        if found is None:
            writes = self.writes(mark.access.buffer)
            found = self._sources[mark] = writes.source(mark.key, mark.time)
        return found


def root_points(root: Sequence[int]) -> Points:
    """Return a point for each element of a root domain, in row-major order."""
    count = int(np.prod(root, dtype=np.int64))
    numbers = np.arange(count, dtype=np.int64)
    values: dict[Expr, Array] = {}
    rest = numbers
    for axis in reversed(range(len(root))):
        values[Coordinate(axis)] = rest % max(root[axis], 1)
        rest = rest // max(root[axis], 1)
    return Points(count, values, numbers, numbers, numbers)


def logical_numbers(
    tensor: MathTensor, root: Sequence[int], logical: Sequence[int], sizes: Mapping[str, int]
) -> Array:
    """Return, for each element of the root domain, the row-major number of its logical element."""
    points = root_points(root)
    result = np.zeros(points.count, np.int64)
    for place, extent in zip(tensor.places, logical, strict=True):
        result = result * extent + points.array(place, {}, sizes)
    return result


class EnumeratedPadding:
    """The constants that stores leave, as numbers; -1 where they are not known.

    Each store is given the constant that it leaves at each of its points: that of a fill, and what
    a definition makes of such constants. Updates beyond the domain of a reduction may then be seen
    to add nothing.
    """

    def __init__(self, contents: ValueProvenance) -> None:
        self.contents = contents
        self.filled = any(work.kind == "fill" for work in contents.works)
        self.values: list[Const] = []
        self._stored: dict[Buffer, Array] = {}

    def neutral(self, work: Work) -> Flags:
        """Return at which points of an update it adds the identity, as far as that is known."""
        count = self.contents.table.space.points[work.site].count
        result: Flags = np.zeros(count, np.bool_)
        if not self.filled or not count:
            return result
        for where, constants in self._cases(work):
            result[where] = is_neutral(work.tensor, constants)
        return result

    def stored(self, buffer: Buffer) -> Array:
        """Return the constants that all stores to a buffer leave, in the order of `writes`."""
        found = self._stored.get(buffer)
        if found is None:
            writes = self.contents.writes(buffer)
            found = np.full(writes.key.size, _UNKNOWN)
            self._stored[buffer] = found  # one that depends on itself is unknown
            for n, work in enumerate(writes.works):
                rows = np.flatnonzero(writes.work == n)
                found[rows] = self._left(work)[writes.point[rows]]
        return found

    def _left(self, work: Work) -> Array:
        count = self.contents.table.space.points[work.site].count
        result = np.full(count, _UNKNOWN)
        if work.kind == "fill":
            assert isinstance(work.store.value, Const)
            result[:] = self._number(work.store.value)
        elif work.kind == "define" and count:
            for where, constants in self._cases(work):
                value = defined(work.tensor, constants)
                result[where] = _UNKNOWN if value is None else self._number(value)
        return result

    def _number(self, value: Const) -> int:
        for known, other in enumerate(self.values):
            if other is value:
                return known
        self.values.append(value)
        return len(self.values) - 1

    def _cases(self, work: Work) -> list[tuple[Array, dict[str, Const]]]:
        """Return the points of a store by what constants its operands are."""
        needs = [n for n in work.needs if n.demand == "whole"]
        if not needs:
            return []
        codes = [self._operand(work, need) for need in needs]
        if all((code == _UNKNOWN).all() for code in codes):
            return []
        result: list[tuple[Array, dict[str, Const]]] = []
        for where in _alike(codes):
            constants: dict[str, Const] = {}
            kind = [int(code[where[0]]) for code in codes]
            if kind == [_UNKNOWN] * len(kind):
                continue
            for need, code in zip(needs, kind, strict=True):
                if code != _UNKNOWN:
                    constants[need.tensor.name] = self.values[code]
            same = all(
                code != _UNKNOWN and constants[need.tensor.name] is self.values[code]
                for need, code in zip(needs, kind, strict=True)
                if need.tensor.name in constants
            )
            if same:
                result.append((where, constants))
        return result

    def _operand(self, work: Work, need: Need) -> Array:
        count = self.contents.table.space.points[work.site].count
        result = np.full(count, _UNKNOWN)
        if isinstance(need.operand, Combined) or need.tensor.definition is None:
            return result
        mark, writes, source = self.contents.own(need.operand)
        if writes.key.size:
            found = self.stored(need.operand.buffer)[np.where(source >= 0, source, 0)]
            result[mark.where] = np.where(source >= 0, found, _UNKNOWN)
        return result


def _alike(codes: Sequence[Array]) -> Iterator[Array]:
    """Yield the points at which all of some small numbers, from -1 on, are the same."""
    which = np.zeros(codes[0].size, np.int64)
    for code in codes:
        which = which * (int(code.max()) + 2) + code + 1
        present = np.bincount(which) > 0
        which = (np.cumsum(present) - 1)[which]
    for kind in range(int(which.max()) + 1):
        yield np.flatnonzero(which == kind)
