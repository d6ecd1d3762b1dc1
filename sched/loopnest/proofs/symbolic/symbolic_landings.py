"""When copies in flight land, for all sizes, and that nobody touches what they have in flight.

A copy lands at the first Wait(n) behind the n + 1 Commits of its thread that follow its Issue. The
next Commit of a point is a lexicographic minimum, and so is the first Wait; no group is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loopnest import kir
from loopnest.proofs.program_model import Access, Site
from loopnest.proofs.symbolic.barrier_order import Order
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.statement_instances import Instances, NotProved
from loopnest.proofs.symbolic.symbolic_dataflow import earlier

_Reached = dict[Site, Any]
"""By statement: which of its points follow a point."""


class SymbolicLandings:
    """The landings of a program's copies.

    Args:
        setting: the program.
        order: its barriers.
    """

    def __init__(self, setting: PolyhedralModel, order: Order) -> None:
        self.setting, self.order = setting, order
        self._landed: dict[object, _Reached] = {}
        self._last: dict[tuple[object, tuple[str, ...]], Any] = {}

    def last_epoch(self, site: Site, at: Instances, scopes: tuple[str, ...]) -> Any:
        """Return the map from points to the last barrier before their accesses are over.

        A copy that never lands is never over.
        """
        if site.issue is None:
            return self.order.epoch(site, at, scopes)
        key = (self._like(site), scopes)
        found = self._last.get(key)
        if found is None:
            own = self.setting.sites[site]
            found = self._never(site, own)
            for wait, landed in self._of(site).items():
                epoch = self.order.epoch(wait, self.setting.sites[wait], scopes)
                found = found.union(landed.apply_range(epoch))
            self._last[key] = found
        return self._at(found, site, at)

    def moment(self, site: Site, at: Instances) -> Any:
        """Return the map from points to the time at which their copies land."""
        own = self.setting.sites[site]
        found = self._never(site, own)
        for wait, landed in self._of(site).items():
            found = found.union(landed.apply_range(self._time(wait)))
        return self._at(found, site, at)

    def _at(self, found: Any, site: Site, at: Instances) -> Any:
        """Return a map from points of a site as one from points of another name."""
        if len(at.variables) != len(self.setting.sites[site].variables):
            raise NotProved("the landing of a copy whose index is data")
        return found.set_tuple_name(self.setting.isl.dim_type.in_, at.name)

    def _like(self, site: Site) -> object:
        """Return what sites share whose copies land together: one body, and one set of points."""
        at = self.setting.sites[site]
        return (site.issue, site.loops, *at.variables, *at.conditions)

    def _never(self, site: Site, at: Instances) -> Any:
        """Return the points whose copies never land, with a time behind all others."""
        domain = self.setting.domain(at)
        for landed in self._of(site).values():
            domain = domain.subtract(landed.domain().set_tuple_name(at.name))
        end = [str(len(self.setting.model.program.body) + 1)] + ["0"] * (self.setting.times - 1)
        return self.setting.over(at, f"T[{', '.join(end)}]").intersect_domain(domain)

    def _of(self, site: Site) -> _Reached:
        """Return at which points of which Waits the copies of a site land."""
        key = self._like(site)
        found = self._landed.get(key)
        if found is None:
            found = self._landed[key] = self._landing(self.setting.sites[site])
        name, dim = self.setting.sites[site].name, self.setting.isl.dim_type.in_
        return {wait: landed.set_tuple_name(dim, name) for wait, landed in found.items()}

    def _landing(self, at: Instances) -> _Reached:
        closed: list[_Reached] = [self._first(at, self._later(at, self.setting.model.commits))]
        waits: dict[Site, Any] = {}
        for site in self.setting.model.waits:
            assert isinstance(site.node, kir.Wait)
            while len(closed) <= site.node.pending:
                closed.append(self._first(at, self._then(closed[-1], self.setting.model.commits)))
            waits |= self._then(closed[site.node.pending], [site])
        return self._first(at, waits)

    def _then(self, reached: _Reached, sites: Sequence[Site]) -> _Reached:
        """Return all points of some statements that come after the first of others."""
        result: _Reached = {}
        for before, pairs in reached.items():
            for site, later in self._later(self.setting.sites[before], sites).items():
                found = pairs.apply_range(later)
                result[site] = result[site].union(found) if site in result else found
        return result

    def _later(self, at: Instances, sites: Sequence[Site]) -> _Reached:
        """Return which points of some statements a thread comes to after a point of its own."""
        setting = self.setting
        result: _Reached = {}
        for site in sites:
            other = setting.sites[site]
            parts = earlier(at, "a_", other, "b_", ())
            if not parts:
                continue
            team = [*setting.grid(other), *setting.block(other)]
            conditions = [f"a_{v} = b_{v}" for v in team]
            if [] not in parts:
                conditions.append(" or ".join([f"({' and '.join(part)})" for part in parts]))
            found = setting.relation(at.renamed("a_"), other.renamed("b_"), conditions)
            found = found.intersect_domain(setting.domain(at))
            result[site] = found.intersect_range(setting.domain(other))
        return result

    def _first(self, at: Instances, reached: _Reached) -> _Reached:
        """Return of what follows a point what comes first."""
        if len(reached) == 0:
            return {}
        times = [found.apply_range(self._time(site)) for site, found in reached.items()]
        whole = times[0]
        for more in times[1:]:
            whole = whole.union(more)
        first = whole.lexmin()
        return {
            site: found.intersect(first.apply_range(self._time(site).reverse()))
            for site, found in reached.items()
        }

    def _time(self, site: Site) -> Any:
        at = self.setting.sites[site]
        return self.setting.over(at, f"T[{', '.join(at.time)}]")

    # What a thread touches itself

    def touching(self, a: Access, b: Access) -> Iterator[tuple[Access, Access]]:
        """Yield the pairs of a copy and an access that might be made while it is in flight."""
        for flying, other in dict.fromkeys([(a, b), (b, a)]):
            if flying.site.issue is not None and (flying.writes or other.writes):
                yield flying, other

    def untouched(self, flying: Access, other: Access, met: Any) -> Any:
        """Return the pairs of points, of one thread, of which the second is made in flight."""
        setting = self.setting
        first, second = setting.points(flying), setting.points(other)
        begin = setting.over(first, f"T[{', '.join(first.time)}]")
        use = setting.over(second, f"T[{', '.join(second.time)}]")
        met = met.intersect(begin.lex_lt_map(use))
        if met.is_empty():
            return met
        return met.intersect(use.lex_lt_map(self.moment(flying.site, first)).reverse())
