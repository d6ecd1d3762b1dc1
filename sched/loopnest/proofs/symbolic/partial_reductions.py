"""What partial results hold: elements of a reduction's root domain, stage by stage.

What a reader finds is a map from it to these elements:

- a start (an init, or a partial result that is stored) holds what it took, an init nothing;
- an update adds the element at its coordinate (beyond its domain, nothing: see `outside`), a merge
  what the other partial result holds;
- a collective holds the union over its group of threads, a scan over those before a thread.

Each stage must be disjoint: then a map that equals the wanted domain covers it exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

from loopnest import kir
from loopnest.proofs import affine
from loopnest.proofs.data_indices import Need
from loopnest.proofs.obligations import CollectiveMath, Work
from loopnest.proofs.program_model import Access, Site, data_values
from loopnest.proofs.quasi_affine import Poly, product_of
from loopnest.proofs.symbolic.isl_relations import NOWHERE, Instances, NotProved, about, agree
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.symbolic_dataflow import SymbolicDataflow, Writes, earlier
from loopnest.proofs.symbolic.symbolic_padding import SymbolicPadding
from loopnest.proofs.template_matching import Combined, Operand, reducer_of
from loopnest.scalar.enums import IterKind
from loopnest.scalar.expr import Buffer, Expr, substitute
from loopnest.scalar.templates import at
from loopnest.tensor.math_snapshot import MathTensor

# Reductions over a sum of indices that holds a product: ``i0 * C + i1`` with a size C.
#
# The product ``i0 * C`` is a hidden variable m (`spaces`), so that isl sees points whose m is no
# such product. An element that is folded is therefore named by its coordinate c = m + i1 and by
# the indices (i0, i1), its *tile*: they are the digits of c in mixed radix, so that an element
# has one tile, and with c they tell m. The domain that a reader must find is the set of all c,
# with every tile from which some m leads to c.
#
# That both are equal means for a true element, with its true tile, that it is found just once, by
# way of points whose m is true: each point on the way either has no hidden variable, or is the
# update at that tile, or lies in one iteration with it. `Tilings` refuses all else.
#
# Partial results of blocks lie in a buffer along an axis of the root domain, and the threads of the
# last block may take them in at such a sum, ``i0 * M + i1``. Then an element has every tile from
# which some m leads to it where it is folded first, and the merge takes in those of its own tile.


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a coordinate is made of indices.

    Args:
        axis: of the reduction's root domain.
        whole: the sum.
        members: its indices, the fastest last.
    """

    axis: int
    whole: Poly
    members: tuple[str, ...]


class Tilings:
    """The tilings of all reductions.

    Raises:
        NotProved, NotAffine: a hidden variable matters elsewhere.
    """

    def __init__(self, setting: PolyhedralModel) -> None:
        self.setting, self.spaces = setting, setting.spaces
        self._of_tensors: dict[MathTensor, list[Tiling]] = {}
        self.merged: dict[Work, Tiling] = {}
        """The tilings of merges, by the indices of what they take in."""
        if not self.spaces.hidden:
            return
        for site in setting.model.sites:
            self._check_site(site)
        for work in setting.works:
            self._check_work(work)
        for work, tiling in self.merged.items():
            if self._of_tensors.get(work.tensor) or _is_ordered(work.tensor):
                raise affine.NotAffine("a product where a value is stored")
            self._of_tensors[work.tensor] = [tiling]

    def _check_site(self, site: Site) -> None:
        meets = kir.is_sync(site.node) or isinstance(site.node, kir.Collective)
        if self.spaces.hidden_at(site) and (meets or site.within is not None):
            raise affine.NotAffine("a product where threads meet")

    def _check_work(self, work: Work) -> None:
        hidden = self.spaces.hidden_at(work.site)
        if work.kind == "update":
            found = self._tilings(work)
            if not hidden <= {name for tiling in found for name in self._products(tiling.whole)}:
                raise affine.NotAffine("a product that is in no coordinate")
            # c and the tile tell one product by subtraction, and of two only the sum.
            derived = self.setting.algebra.derived
            if any(len(derived.keys() & tiling.whole.keys()) > 1 for tiling in found):
                raise affine.NotAffine("a coordinate that does not determine its products")
            known = self._of_tensors.setdefault(work.tensor, found)
            if [self._signature(t) for t in known] != [self._signature(t) for t in found]:
                raise NotProved(f"two tilings of {work.tensor.name}")
        elif hidden and work.kind == "merge":
            self.merged[work] = self._taken_in(work, hidden)
        elif hidden:
            made = self.setting.model.lifetime(work.write)
            hidden &= set(self.setting.hidden_points.storing(work).variables)
            if not hidden:
                return
            if made is None or not hidden <= self.spaces.hidden_at(made):
                raise affine.NotAffine("a product where a value is stored")

    def _taken_in(self, work: Work, hidden: set[str]) -> Tiling:
        """Return the tiling of a merge: of the axis along which parts lie that it takes in.

        Raises:
            NotAffine: another index has a hidden variable.
        """
        operand = None if work.part is None else work.part.operand
        if isinstance(operand, Access) and not operand.flat:
            poly = self.setting.algebra.poly
            wholes = self.setting.polys(operand.index)
            for whole, extent in zip(wholes, operand.buffer.shape, strict=True):
                for axis, along in enumerate(work.tensor.root):
                    reduced = along.kind is IterKind.REDUCTION
                    same = reduced and poly(along.extent, {}) == poly(extent, {})
                    if same and self._products(whole) == list(hidden):
                        return Tiling(axis, whole, self.spaces.radix(whole))
        raise affine.NotAffine("a product where a value is stored")

    def _tilings(self, work: Work) -> list[Tiling]:
        return [
            Tiling(axis, p, self.spaces.radix(p))
            for axis, p in enumerate(self.setting.polys(work.store.coordinate))
            if self._products(p)
        ]

    def _products(self, whole: Poly) -> list[str]:
        """Return the hidden variables in a sum."""
        derived = self.setting.algebra.derived
        return [derived[m] for m in whole if derived.get(m) in self.spaces.hidden]

    def _signature(self, tiling: Tiling) -> object:
        return tiling.axis, [self.spaces.extent[m] for m in tiling.members]

    # What readers ask

    def tile(self, work: Work) -> list[str]:
        """Return the indices that go with the coordinate of an update."""
        if not self.spaces.hidden:
            return []
        return [member for tiling in self._tilings(work) for member in tiling.members]

    def names(self, tensor: MathTensor) -> list[str]:
        """Return the names of all dimensions of an element."""
        found = self._of_tensors.get(tensor, [])
        roots = [f"c{n}" for n in range(len(tensor.root))]
        data = [f"g{n}" for n, _ in enumerate(self.setting.live.data(tensor))]
        return [*roots, *[name for tiling in found for name in _names(tiling).values()], *data]

    def in_order(self, tensor: MathTensor) -> list[str]:
        """Return the dimensions of an element that tell its place in C order, the first above all.

        A coordinate that has a tile grows as that, digit by digit: isl need not know the product.
        """
        tiles = {t.axis: [*_names(t).values()] for t in self._of_tensors.get(tensor, [])}
        return [n for axis, _ in enumerate(tensor.root) for n in tiles.get(axis, [f"c{axis}"])]

    def place(self, work: Work, mark: str) -> list[affine.Value]:
        """Return where in that order the element of an update is; `mark` begins variables."""
        tiles = {tiling.axis: tiling.members for tiling in self._tilings(work)}
        result: list[affine.Value] = []
        for axis, p in enumerate(self.setting.polys(work.store.coordinate)):
            if axis in tiles:
                result += [mark + m for m in tiles[axis]]
            else:
                result.append(self.setting.linear(p, mark))
        return result

    def conditions(self, tensor: MathTensor, extents: Sequence[Poly]) -> list[affine.Condition]:
        """Return which tiles an element may have; `extents` are those of the root domain.

        Raises:
            NotProved: there are elements that no tile has.
        """
        result: list[affine.Condition] = []
        algebra = self.setting.algebra
        for tiling in self._of_tensors.get(tensor, []):
            names = _names(tiling)
            sizes = {name: self.spaces.extent[member] for member, name in names.items()}
            total = product_of(sizes.values())
            result += [affine.within(v, self.setting.linear(e)) for v, e in sizes.items()]
            # Digits in mixed radix reach exactly the numbers below the product of their extents:
            # with fewer than the axis has, elements at its end have no tile, and none could be
            # found missing.
            more = algebra.compare("lt", total, extents[tiling.axis])
            found = self.setting.among(NOWHERE, [more, *self.setting.launched()])
            self.setting.require_empty(found, f"the tiles of {tensor.name}")
            result.append(self._leads(tiling, names))
        return result

    def _leads(self, tiling: Tiling, names: Mapping[str, str]) -> affine.Condition:
        """Return that some value of the product leads from a tile to the coordinate."""
        algebra = self.setting.algebra
        (product,) = algebra.derived.keys() & tiling.whole.keys()
        hidden, count = algebra.derived[product], tiling.whole[product]
        others: Poly = {
            tuple([names.get(v, v) for v in m]): n for m, n in tiling.whole.items() if m != product
        }
        rest = affine.sum_of([(f"c{tiling.axis}", 1), (algebra.linear(others), -1)])
        value = rest if count == 1 else affine.floor_of(rest, count)
        limit = affine.replaced(self.spaces.hidden[hidden], {hidden: value})
        return affine.all_of([affine.equal(affine.sum_of([(value, count)]), rest), limit])


def _names(tiling: Tiling) -> dict[str, str]:
    return {member: f"w{tiling.axis}_{n}" for n, member in enumerate(tiling.members)}


class PartialReductions:
    """The partial results of a program.

    Raises:
        NotProved, NotAffine: it could not be shown that stages are disjoint.
    """

    def __init__(
        self, setting: PolyhedralModel, flow: SymbolicDataflow, outside: SymbolicPadding
    ) -> None:
        self.setting, self.flow, self.isl = setting, flow, setting.isl
        self.outside = outside
        self._contents: dict[Work, Any] = {}
        self._chains: dict[Work, tuple[Instances, Any]] = {}
        self._exchanges: dict[Site, tuple[Instances, list[Any]]] = {}
        self._open: set[object] = set()
        self.tilings = Tilings(setting)

    def reading(self, access: Access) -> Instances:
        """Return the points of a read, at the time of its moment."""
        name = f"R{next(self.setting.numbers)}"
        at = self.setting.instances(access.site, name, access.moment)
        at.conditions += self.setting.guards(access.guards)
        return self.setting.with_data(at, access, name) if data_values(access.index) else at

    def held(
        self,
        at: Instances,
        access: Any,
        buffer: Buffer,
        tensor: MathTensor,
        *,
        so_far: bool = False,
    ) -> Any:
        """Return {point of `at` -> elements that it finds accumulated in a buffer}.

        No update of the value may come later, unless what it holds `so_far` is asked for.
        """
        setting = self.setting
        writes = self.flow.writes(buffer)
        if any(w.tensor is not tensor or w.kind == "define" for w, _ in writes):
            raise NotProved("two tensors in one accumulator")
        starts = [(w, m) for w, m in writes if w.starts]
        begun, missing = self.flow.sources(at, access, buffer, starts)
        setting.require_empty(missing, f"a read of {tensor.name} without an init")
        parts = []
        for work in [w for w, _ in starts if w.kind != "init"]:
            found = begun.extract_map(
                self.flow.pairs(setting.hidden_points.storing(work), at)
            ).reverse()
            if not found.is_empty():
                parts.append(found.apply_range(self._content(work)))
        for work in [w for w, _ in writes if not w.starts]:
            again, chained = self.chain(work, buffer, starts)
            space = self.flow.pairs(at, again)
            # Of the updates, those that continue the start which the read finds.
            taken = begun.reverse().apply_range(chained).extract_map(space)
            if not taken.is_empty():  # {read -> update of the same value}
                late = taken.intersect(self.flow.late(at, again))
                if so_far:
                    taken = taken.subtract(late)
                else:
                    setting.require_empty(late, "a partial result is read")
                parts.append(taken.apply_range(self._adds(work, again, chained)))
        return self._disjoint(at, parts, tensor)

    def _disjoint(self, at: Instances, parts: Sequence[Any], tensor: MathTensor) -> Any:
        if len(parts) == 1:
            return parts[0].coalesce()
        element = affine.Tuple("C", tuple(self.tilings.names(tensor)))
        whole = self.setting.relation(at.tuple(), element, [affine.FALSE])
        for part in parts:
            if not whole.intersect(part).is_empty():
                raise NotProved("an element is accumulated by two statements")
            whole = whole.union(part)
        return whole.coalesce()

    # Stores

    def part(self, work: Work, need: Need, name: str = "") -> Any:
        """Return {point of a store -> what a partial result that it takes in holds}."""
        at = self.setting.sites[work.site]
        return self._operand(at, need.operand, need.tensor, name or at.name)

    def _content(self, work: Work) -> Any:
        """Return {point of a store -> what the partial result that it stores holds}."""
        found = self._contents.get(work)
        if found is None:
            with self._once(work):
                found = self._contents[work] = self.part(work, work.needs[0])
        return found

    def continued(self, work: Work, need: Need) -> Any:
        """Return {point of an update -> what a partial result that it continues holds by then}."""
        at = self.setting.sites[work.site]
        return self._operand(at, need.operand, need.tensor, at.name, so_far=True)

    def _operand(
        self,
        at: Instances,
        operand: Operand,
        tensor: MathTensor,
        name: str,
        *,
        so_far: bool = False,
    ) -> Any:
        """Return what an operand holds at the points of `at`, as a map from tuples of a name."""
        so_far = so_far or tensor.scan is not None  # what is carried on goes on growing
        if isinstance(operand, Combined):
            held = self.combined(at, operand)
        else:
            reading = self.reading(operand)
            access = self.setting.access(reading, operand)
            held = self.held(reading, access, operand.buffer, tensor, so_far=so_far)
        return held.set_tuple_name(self.isl.dim_type.in_, name)

    def chain(self, work: Work, buffer: Buffer, starts: Writes) -> tuple[Instances, Any]:
        """Return an update's points, and {start -> update}."""
        found = self._chains.get(work)
        if found is None:
            setting = self.setting
            again = setting.instances(work.site, f"U{next(setting.numbers)}")
            access = setting.access(again, work.write)
            chained, missing = self.flow.sources(again, access, buffer, starts)
            setting.require_empty(missing, "an update without an init")
            found = self._chains[work] = again, chained
        return found

    def _adds(self, work: Work, again: Instances, chained: Any) -> Any:
        """Return {update -> what it adds to the value that it continues}."""
        found = self._contents.get(work)
        if found is not None:
            return found
        setting = self.setting
        if work.kind == "merge":
            need = work.part
            if need is None:
                raise NotProved("a merge of nothing")
            with self._once(work):
                adds = self.part(work, need, again.name)
            if work in self.tilings.merged:
                adds = self._of_tile(work, again, adds)
        else:
            places: list[affine.Value] = [
                *map(setting.linear, setting.polys(work.store.coordinate)),
                *self.tilings.tile(work),
            ]
            within = self.outside.folded(work)
            chosen = setting.chosen[work.site]
            data: dict[Expr, Expr] = {x: chosen[x] for x in setting.live.data(work.tensor)}
            named = [setting.algebra.poly(x, setting.env) for x in data.values()]
            places += map(setting.linear, named)
            for condition in setting.live.conditions(work.tensor):
                here = at(substitute(condition, data), work.store.coordinate)
                within += setting.guards(((here, True),))
            adds = self._tiled(again, work, places, within)
        # Within one value, from one start on, each element is added by one point alone.
        if not chained.reverse().range_product(self.isl.UnionMap.from_map(adds)).is_injective():
            raise NotProved("an element is accumulated twice")
        self._contents[work] = adds
        return adds

    def _tiled(
        self,
        again: Instances,
        work: Work,
        places: Sequence[affine.Value],
        within: Sequence[affine.Condition],
    ) -> Any:
        """Return {update -> its element}, of which a later merge names the tile."""
        setting, tensor = self.setting, work.tensor
        names = self.tilings.names(tensor)
        if len(names) > len(places):
            extents = [setting.algebra.poly(axis.extent, {}) for axis in tensor.root]
            own = [name for name in names if not name.startswith("w")]
            within = [*within, *map(affine.equal, own, places)]
            within += self.tilings.conditions(tensor, extents)
            places = names
        return setting.over(again, affine.Tuple("C", tuple(places)), within)

    def _of_tile(self, work: Work, again: Instances, adds: Any) -> Any:
        """Return what a merge takes in of the elements that have its own tile.

        Raises:
            NotProved: the index of a partial result is not where its elements are along the axis.
        """
        setting, tiling = self.setting, self.tilings.merged[work]
        element = affine.Tuple("C", tuple(self.tilings.names(work.tensor)))
        own = [affine.equal(name, member) for member, name in _names(tiling).items()]
        adds = adds.intersect(setting.over(again, element, own))
        place = affine.equal(f"c{tiling.axis}", setting.linear(tiling.whole))
        if not adds.is_subset(setting.over(again, element, [place])):
            raise NotProved(f"the place of a part of {work.tensor.name}")
        return adds

    @contextmanager
    def _once(self, thing: object) -> Iterator[None]:
        """Refuse a partial result that is put together from itself."""
        if thing in self._open:
            raise NotProved("partial results depend on each other")
        self._open.add(thing)
        try:
            yield
        finally:
            self._open.discard(thing)

    # Collectives

    def combined(self, at: Instances, operand: Combined) -> Any:
        """Return what a collective's result holds: the union over the group of each thread.

        Of what a scan gives to a thread, that over the threads before it, and itself.
        """
        exchange = self.setting.exchanges[operand.moment]
        group, held = self._exchange(exchange)
        same = agree(self._kept(exchange, group))
        if exchange.node.is_so_far(operand.component):
            itself = exchange.node.scan == "inclusive"
            same.append(self._before(exchange, group, at, itself=itself))
        members = self.setting.between(at, group, same)
        members = members.intersect_domain(self.setting.domain(at))
        return members.apply_range(held[operand.component % len(held)]).coalesce()

    def _before(
        self, exchange: CollectiveMath, first: Instances, second: Instances, *, itself: bool
    ) -> affine.Condition:
        """Return that ``b_``, a thread of `first`, comes before ``a_`` of `second` in a scan.

        Raises:
            NotAffine: a thread's number is part of a merged index.
        """
        result: affine.Condition = affine.TRUE if itself else affine.FALSE
        threads = self.setting.spaces.threads
        dims = exchange.node.dims  # the one that runs fastest comes first, as its last digit does
        for name in [v for dim in dims for v in reversed(threads[dim])]:
            if name not in first.variables or name not in second.variables:
                raise affine.NotAffine("a merged index over threads of a scan")
            a, b = f"a_{name}", f"b_{name}"
            result = affine.below(b, a) | affine.equal(a, b) & result
        return result

    def in_turn(self, exchange: CollectiveMath) -> Iterator[Any]:
        """Yield {element -> element that a later thread of a group contributes} for each value."""
        group, held = self._exchange(exchange)
        same = agree(self._kept(exchange, group))
        same.append(self._before(exchange, group, group, itself=False))
        later = self.setting.between(group, group, same).reverse()
        later = later.intersect_domain(self.setting.domain(group))
        for first, *_ in exchange.node.by_value(held):
            yield first.reverse().apply_range(later).apply_range(first)

    def _kept(self, exchange: CollectiveMath, group: Instances) -> list[str]:
        """Return the variables in which the threads of a group agree."""
        spaces = self.setting.spaces
        dims = set(spaces.along(exchange.node.dims))
        kept = [m for m in spaces.members_of(exchange.site) if m not in dims]
        return [v for v in spaces.replaced(kept) if v in group.variables]

    def _exchange(self, exchange: CollectiveMath) -> tuple[Instances, list[Any]]:
        """Return a collective's points, and for each argument what each point contributes."""
        found = self._exchanges.get(exchange.site)
        if found is not None:
            return found
        setting = self.setting
        at = setting.instances(exchange.site, f"X{next(setting.numbers)}")
        with self._once(exchange):
            held = [
                self._operand(at, arg, tensor, at.name)
                for arg, tensor in zip(exchange.args, exchange.tensors, strict=True)
            ]
        kept = self._kept(exchange, at)
        key = setting.over(at, affine.Tuple("", tuple(kept)))
        for first, *others in exchange.node.by_value(held):
            if not all(first.is_equal(other) for other in others):
                raise NotProved("partial results out of step")
            # `kept` tells the group: within it, an element of two threads would be in the result
            # twice.
            if not key.range_product(first).is_injective():
                raise NotProved("two threads contribute one element")
        self._exchanges[exchange.site] = at, held
        return at, held


# In which order a reducer that need not commute takes its elements in, for all sizes.
#
# Of two updates of one value the earlier one has the lower coordinate. What a thread contributes
# to an exchange lies before what later threads do, and what a partial result holds lies before
# another one that it is combined with.


def prove_fold_order(
    setting: PolyhedralModel, flow: SymbolicDataflow, parts: PartialReductions
) -> None:
    """Show that every reducer that need not commute combines its elements in order.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """
    for exchange in setting.exchanges.values():
        with about(exchange.site):
            tensor = exchange.tensors[0]
            if not _is_ordered(tensor):
                continue
            if not exchange.node.in_order:
                raise NotProved(f"the order in which threads combine parts of {tensor.name}")
            for pairs in parts.in_turn(exchange):
                _require_rising(setting, parts, tensor, pairs)
    works = [w for w in setting.works if not w.starts and _is_ordered(w.tensor)]
    for work in works:
        with about(work.site):
            if work.kind == "merge":
                _prove_merge(setting, parts, work)
    updates = [w for w in works if w.kind != "merge"]
    for first, second in product(updates, repeat=2):
        if first.store.storage is second.store.storage:
            with about(second.site):
                _prove_pair(setting, flow, parts, first, second)


def _prove_merge(setting: PolyhedralModel, parts: PartialReductions, work: Work) -> None:
    """Show that what a merge continues lies before what it takes in."""
    part = work.part
    own = next((n for n in work.needs if n.demand == "own" and n.tensor is work.tensor), None)
    if part is None or own is None:
        raise NotProved("a merge of nothing")
    pairs = parts.continued(work, own).reverse().apply_range(parts.part(work, part))
    _require_rising(setting, parts, work.tensor, pairs)


def _require_rising(
    setting: PolyhedralModel, parts: PartialReductions, tensor: MathTensor, pairs: Any
) -> None:
    """Show that of all pairs of elements the first lies before the second in C order."""
    names = parts.tilings.names(tensor)
    places: list[tuple[affine.Value, affine.Value]] = [
        (f"a_{name}", f"b_{name}") for name in parts.tilings.in_order(tensor)
    ]
    one, other = [affine.Tuple("C", tuple([mark + n for n in names])) for mark in ("a_", "b_")]
    wrong = setting.relation(one, other, [_not_below(places)])
    setting.require_empty(pairs.intersect(wrong), f"the order in which {tensor.name} folds")


def _prove_pair(
    setting: PolyhedralModel,
    flow: SymbolicDataflow,
    parts: PartialReductions,
    first: Work,
    second: Work,
) -> None:
    """Show that no point of `first` comes before one of `second` that it should come after."""
    buffer = first.store.storage
    starts = [(w, m) for w, m in flow.writes(buffer) if w.starts]
    one, chained = parts.chain(first, buffer, starts)
    other, continued = parts.chain(second, buffer, starts)
    pairs = chained.reverse().apply_range(continued).extract_map(flow.pairs(one, other))
    before = earlier(one, "a_", other, "b_", ())
    if pairs.is_empty() or before == affine.FALSE:
        return
    tilings = parts.tilings
    places = [*zip(tilings.place(first, "a_"), tilings.place(second, "b_"), strict=True)]
    wrong = setting.between(one, other, [before, _not_below(places)])
    setting.require_empty(pairs.intersect(wrong), f"the order in which {first.tensor.name} folds")


def _not_below(places: Sequence[tuple[affine.Value, affine.Value]]) -> affine.Condition:
    """Return the condition that one coordinate does not come before another in C order."""
    result: affine.Condition = affine.TRUE
    for a, b in reversed(places):
        result = affine.below(b, a) | affine.equal(a, b) & result
    return result


def _is_ordered(tensor: MathTensor) -> bool:
    return tensor.accumulates and reducer_of(tensor).ordered
