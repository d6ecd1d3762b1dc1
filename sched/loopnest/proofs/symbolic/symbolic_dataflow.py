"""The source of each read: the last store to its element before it.

Where each read has only one store before it that takes its element, that one is the source; nothing
more than a join of the two maps is needed then. Else isl's dependence analysis finds the last.

Source: Verdoolaege, "isl: an integer set library for the polyhedral model", 2010; Feautrier,
"Dataflow analysis of array and scalar references", 1991.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any, TypeAlias

from loopnest import kir
from loopnest.proofs import affine
from loopnest.proofs.obligations import Work
from loopnest.proofs.program_model import Access, Site, is_private
from loopnest.proofs.symbolic.isl_relations import Instances, NotProved
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.scalar.expr import Buffer

Writes: TypeAlias = "list[tuple[Work, Any]]"
"""Stores with the maps from their points to the elements."""

Stores: TypeAlias = "list[tuple[Instances, Any]]"

_Whole: TypeAlias = "tuple[Instances, Any, list[Instances]]"
"""A store, or two in the branches of one test, with the map to elements; and what it is made of."""


class SymbolicDataflow:
    """The stores of a program, by buffer."""

    def __init__(self, setting: PolyhedralModel) -> None:
        self.setting, self.isl = setting, setting.isl
        self._writes: dict[Buffer, Writes] = {}
        self._kills: dict[Buffer, Stores] = {}
        self._wholes: dict[Buffer, list[_Whole]] = {}
        # By buffer, since a look at all for each read grows with the square of their number.
        self._works: dict[Buffer, list[Work]] = defaultdict(list)
        for work in setting.works:
            self._works[work.store.storage].append(work)
        self._stores: dict[Buffer, list[tuple[int, Access]]] = defaultdict(list)
        for number, access in enumerate(setting.model.accesses):
            if access.writes:
                self._stores[access.buffer].append((number, access))
        self._made: dict[Buffer, list[Site]] = defaultdict(list)
        for site in setting.model.sites:
            if isinstance(site.node, kir.Allocate):
                self._made[site.node.storage].append(site)

    def writes(self, buffer: Buffer) -> Writes:
        """Return the stores of tensors to a buffer."""
        found = self._writes.get(buffer)
        if found is None:
            setting = self.setting
            found = self._writes[buffer] = [
                (w, setting.access(setting.hidden_points.storing(w), w.write))
                for w in self._works.get(buffer, ())
            ]
        return found

    def kills(self, buffer: Buffer) -> Stores:
        """Return the stores to buffers that share its space: each takes all its elements."""
        found = self._kills.get(buffer)
        if found is None:
            others = self.setting.model.aliases(buffer)
            stores = [store for other in others for store in self._stores.get(other, ())]
            stores.sort(key=itemgetter(0))
            found = self._kills[buffer] = [self._kill(access, buffer) for _, access in stores]
        return found

    def _kill(self, access: Access, buffer: Buffer) -> tuple[Instances, Any]:
        setting = self.setting
        at = setting.instances(access.site, f"K{next(setting.numbers)}")
        made = next(iter(self._made.get(buffer, ())), None)
        if made is None or access.buffer.memory is not buffer.memory:
            raise NotProved(f"the space of {buffer.name}")
        members = setting.spaces.members_of(made)
        if not is_private(buffer):
            members = [m for m in members if not m.startswith("t_block")]
        copy = setting.spaces.replaced(members)
        owner = [v for v in (*setting.grid(at), *setting.block(at)) if v in copy]
        axes = setting.parted.divisors(buffer)
        width = 1 if buffer in setting.strides else sum(len(found) + 1 for found in axes)
        places = [f"k{n}" for n in range(len(copy) + width)]
        same = [affine.equal(places[copy.index(v)], v) for v in owner]
        return at, setting.over(at, affine.Tuple(setting.tags[buffer], tuple(places)), same)

    # Sources

    def sources(
        self, at: Instances, access: Any, buffer: Buffer, writes: Writes
    ) -> tuple[Any, Any]:
        """Return ({source -> read}, reads without a source).

        Raises:
            NotProved: a store to a buffer in the same space lies between.
        """
        if not writes:
            raise NotProved("a read without a store")
        whole = self._with_fills(buffer, writes)
        stores = [(source, m) for source, m, _ in whole]
        same = self._one_iteration(buffer)
        kills = self.kills(buffer)
        if all(self._before(at, access, store, ()).is_empty() for store in kills):
            pairs = self._nearest(at, access, stores, same)
            if pairs is not None:
                missing = access.domain().subtract(_set_of(pairs.domain(), access))
                return self._parted(pairs.reverse(), at, whole), missing
        found, missing = self._last(at, access, stores, kills, buffer)
        return self._parted(found, at, whole), missing

    def _with_fills(self, buffer: Buffer, writes: Writes) -> list[_Whole]:
        """Return the stores, a copy and the constant in the other branch of its test as one.

        The two have all points of the test: which of them a point is makes no difference to what
        reads it finds, so that the test need not be known.
        """
        if writes is not self._writes.get(buffer):
            return list(self._grouped(writes))
        found = self._wholes.get(buffer)
        if found is None:
            found = self._wholes[buffer] = list(self._grouped(writes))
        return found

    def _grouped(self, writes: Writes) -> Iterator[_Whole]:
        setting, taken = self.setting, set[Work]()
        for number, (work, written) in enumerate(writes):
            if work in taken:
                continue
            own = setting.hidden_points.storing(work)
            twin = next((w for w, _ in writes[number + 1 :] if _are_branches(work, w)), None)
            plain = own is setting.sites[work.site]
            if twin is None or not plain or own.variables != setting.sites[twin.site].variables:
                yield own, written, [own]
                continue
            taken.add(twin)
            guards = tuple([g for g in work.site.guards if g in twin.site.guards])
            site = replace(work.site, guards=guards)
            setting.chosen[site] = setting.chosen.get(work.site, {})
            at = setting.instances(site)
            yield at, setting.access(at, work.write), [own, setting.sites[twin.site]]

    def _parted(self, found: Any, at: Instances, whole: list[_Whole]) -> Any:
        """Return sources with each store by itself."""
        result = self.isl.UnionMap.read_from_str(self.setting.ctx, "{}")
        for source, _, parts in whole:
            pairs = found.extract_map(self.pairs(source, at))
            for own in parts:
                named = pairs.set_tuple_name(self.isl.dim_type.in_, own.name)
                if own is not source:
                    named = named.intersect_domain(self.setting.domain(own))
                result = result.union(self.isl.UnionMap.from_map(named))
        return result

    def _nearest(
        self, at: Instances, access: Any, stores: Stores, same: Collection[str]
    ) -> Any | None:
        """Return {read -> its source}; None where that is not a matter of program order.

        A statement that always comes after another hides it from the reads that it reaches.
        """
        result = self.isl.UnionMap.read_from_str(self.setting.ctx, "{}")
        reached = access.domain().subtract(access.domain())
        later: list[Instances] = []
        # From the last statement on: what it reaches has its source there, and is taken from the
        # earlier ones, if these always come before it (`hidden`).
        for source, writes in reversed(stores):
            pairs = self._before(at, access, (source, writes), same)
            if pairs.is_empty():
                continue
            hidden = all(earlier(source, "a_", other, "b_", same) == affine.TRUE for other in later)
            if not hidden and not pairs.domain().intersect(reached).is_empty():
                return None
            later.append(source)
            pairs = pairs.subtract_domain(reached)
            # Several points of one statement reach a read: which one is the last, the text does not
            # tell.
            if not pairs.is_single_valued():
                return None
            reached = reached.union(pairs.domain())
            result = result.union(self.isl.UnionMap.from_map(pairs))
        return result

    def _one_iteration(self, buffer: Buffer) -> tuple[str, ...]:
        """Return the loop variables in which all accesses to one copy of a buffer agree."""
        made = self._made.get(buffer, [])
        if not made or any(s.serial != made[0].serial for s in made):
            return ()
        # A buffer is a new one in each iteration of the loops that it is made in: no store of
        # another iteration reaches a read.
        return tuple(self.setting.spaces.variables(made[0]))

    def _before(
        self, at: Instances, access: Any, store: tuple[Instances, Any], same: Collection[str]
    ) -> Any:
        """Return {read -> points of a store before it, to its element}."""
        source, writes = store
        pairs = access.apply_range(writes.reverse())
        order = earlier(source, "b_", at, "a_", same)
        return (
            pairs
            if order == affine.TRUE
            else pairs.intersect(self.setting.between(at, source, [order]))
        )

    def _last(
        self, at: Instances, access: Any, stores: Stores, kills: Stores, buffer: Buffer
    ) -> tuple[Any, Any]:
        isl, setting = self.isl, self.setting
        sources = isl.UnionMap.from_map(stores[0][1])
        schedule = isl.UnionMap.from_map(setting.schedule(at))
        for source, more in (*stores, *kills):
            sources = sources.union(isl.UnionMap.from_map(more))
            schedule = schedule.union(isl.UnionMap.from_map(setting.schedule(source)))
        info = isl.UnionAccessInfo.from_sink(isl.UnionMap.from_map(access))
        found = info.set_must_source(sources).set_schedule_map(schedule).compute_flow()
        result = found.get_may_dependence()
        for source, _ in kills:
            part = result.extract_map(self.pairs(source, at))
            setting.require_empty(part, f"a store in the space of {buffer.name}")
        return result, _set_of(found.get_must_no_source().domain(), access)

    def pairs(self, source: Instances, at: Instances) -> Any:
        """Return the space of maps from a source to a read."""
        return self.setting.between(source, at).get_space()

    def late(self, at: Instances, update: Instances) -> Any:
        """Return {read -> update at or after it}."""
        before = earlier(update, "b_", at, "a_", ())
        everything = self.setting.between(at, update)
        return everything.subtract(self.setting.between(at, update, [before]))


def _are_branches(copy: Work, fill: Work) -> bool:
    """Whether two stores are to one element, in the two branches of one test, a constant in one."""
    a, b = copy.store, fill.store
    if "fill" not in (a.role, b.role) or a.storage is not b.storage or a.flat is not b.flat:
        return False
    mine, theirs = copy.site.guards, fill.site.guards
    pairs = list(zip(mine, theirs, strict=False))
    differ = [(g, h) for g, h in pairs if g != h]
    if a.index != b.index or len(mine) != len(theirs) or len(differ) != 1:
        return False
    ((test, wanted), (other, unwanted)) = differ[0]
    return test is other and wanted is not unwanted


def _set_of(found: Any, access: Any) -> Any:
    """Return the part of a union set in the domain of an access."""
    return found.extract_set(access.domain().get_space())


def earlier(
    first: Instances, mark: str, second: Instances, other: str, same: Collection[str]
) -> affine.Condition:
    """Return when a point of `first` comes before one of `second`.

    Loop variables in `same` are equal.
    """
    result: list[affine.Condition] = []
    alike: list[affine.Condition] = []
    for a, b in zip(first.time, second.time, strict=True):
        if a in same and a == b:
            continue
        x, y = _marked(a, mark, first), _marked(b, other, second)
        if isinstance(x, int) and isinstance(y, int):
            if x == y:
                continue
            if x < y:
                result.append(affine.all_of(alike))
            break
        result.append(affine.all_of([*alike, affine.below(x, y)]))
        alike.append(affine.equal(x, y))
    return affine.any_of(result)


def _marked(value: affine.Value, mark: str, at: Instances) -> affine.Value:
    return mark + value if isinstance(value, str) and value in at.variables else value
