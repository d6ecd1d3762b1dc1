"""No two threads use one element unordered, with a write among them.

One map per access from points to elements, joined with its epoch; two accesses meet where these
agree. Within a block all barriers order; between blocks only those of the grid do, and arrivals:
what a block did before it arrived comes before what the last block does afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations_with_replacement, product
from typing import Any

from loopnest import kir
from loopnest.proofs import affine
from loopnest.proofs.affine import FALSE, Condition, Tuple, equal
from loopnest.proofs.index_variables import Group
from loopnest.proofs.program_model import Access, Model, Site, is_private, launch_dimensions
from loopnest.proofs.quasi_affine import product_of
from loopnest.proofs.symbolic.isl_relations import Instances, NotProved, about, agree, differ
from loopnest.proofs.symbolic.polyhedral_model import PolyhedralModel
from loopnest.proofs.symbolic.symbolic_dataflow import earlier
from loopnest.proofs.template_matching import reducer_of
from loopnest.scalar.enums import BLOCK_DIMENSIONS, WARP, Memory
from loopnest.scalar.expr import Buffer, Const, Expr, LaunchIndex

# Barriers: who reaches them, and which accesses they order.
#
# The epoch of an access is the last barrier before it, as a time; accesses of one block (or of
# the grid, or of a warp) with one epoch are not ordered. Epochs follow from the times alone, so
# that a loop that holds a barrier has an epoch for each of its iterations.


class Order:
    """The barriers of a program.

    Args:
        setting: the program.
        syncs: the barriers, shuffles and arrivals that count.
    """

    def __init__(self, setting: PolyhedralModel, syncs: Sequence[Site]) -> None:
        self.setting = setting
        self.syncs = list(syncs)
        self._epochs: dict[tuple[str, Site], Any] = {}
        self._alike: dict[object, Any] = {}
        self._stretches = stretches(setting.model)

    def has(self, scope: str) -> bool:
        """Whether there are barriers of a scope (arrivals are barriers of the block)."""
        return any(
            kir.meets(s.node) == scope and not isinstance(s.node, kir.Shuffle) for s in self.syncs
        )

    # Divergence

    def prove_uniform(self) -> None:
        """Show that each is reached by all threads of its scope, or by none.

        Raises:
            NotProved: it is not.
        """
        for site in self.syncs:
            self.closed(site, self._members(site))
        for site in self.setting.model.collectives:
            assert isinstance(site.node, kir.Collective)
            dims = self.setting.spaces.along(site.node.dims)
            shared = any(
                isinstance(n, kir.Store) and n.storage.memory is Memory.SHARED
                for n, _ in kir.walk(site.node.body)
            )
            block = self.setting.block(self.setting.sites[site])
            self.closed(site, block if shared else dims)

    def _members(self, site: Site) -> list[str]:
        """Return the variables that differ among the threads of a barrier's scope."""
        at = self.setting.sites[site]
        match kir.meets(site.node):
            case "grid":
                return [*self.setting.grid(at), *self.setting.block(at)]
            case _:
                return self.setting.block(at)

    def closed(self, site: Site, free: Sequence[str]) -> None:
        """Show that a site is reached for all values of these variables, or for none.

        Raises:
            NotProved: it is not, or a variable is merged with others.
        """
        at, spaces = self.setting.sites[site], self.setting.spaces
        free = [v for v in free if v in spaces.launch or v in at.variables]
        if any(v not in at.variables or v not in spaces.extent for v in free):
            raise NotProved("a merged thread number at a barrier")
        tied = self._tied(at, free)
        conditions = agree([v for v in at.variables if v not in (*free, *tied)])
        others: dict[affine.Atom, affine.Value] = {v: f"b_{v}" for v in (*free, *tied)}
        for v in free:
            conditions.append(affine.within(f"b_{v}", self.setting.linear(spaces.extent[v])))
            conditions += [
                affine.replaced(tie, others) for tie in spaces.derived.get(v, {}).values()
            ]
        domain = self.setting.domain(at)
        # Reached by all of the block or by none is more than a warp needs, holds mostly, and has no
        # division in it; only where it fails is each warp asked by itself.
        if site in self.setting.model.syncs and kir.meets(site.node) == "warp":
            try:
                self._all(at, conditions, domain)
                return
            except NotProved:
                conditions.append(self._same_warp())
        self._all(at, conditions, domain)

    def _all(self, at: Instances, conditions: Sequence[affine.Condition], domain: Any) -> None:
        others = self.setting.between(at, at, conditions)
        reached = others.intersect_domain(domain).range()
        self.setting.require_empty(reached.subtract(domain), "a divergent barrier")

    def _tied(self, at: Instances, free: Sequence[str]) -> list[str]:
        return [d for v in free for d in self.setting.spaces.derived.get(v, {})]

    # Warps

    def _same_warp(self) -> affine.Condition:
        """Return that the threads of ``a_`` and ``b_`` are of one warp.

        Raises:
            NotProved: the number of a thread is no affine function of its coordinates.
        """
        warps = [affine.floor_of(self._thread(mark), WARP) for mark in ("a_", "b_")]
        return affine.equal(*warps)

    def _thread(self, mark: str) -> affine.Sum:
        spaces = self.setting.spaces
        step, parts = 1, list[tuple[affine.Value, int]]()
        last = [d for d in BLOCK_DIMENSIONS if d in spaces.threads]
        for dim in last:
            if any(name in spaces.group_of for name in spaces.threads[dim]):
                raise NotProved("a merged thread number in a warp")
            parts.append((self.setting.linear(spaces.env[LaunchIndex(dim)], mark), step))
            extent = self.setting.model.program.launch_extent(dim)
            if isinstance(extent, Const):
                step *= int(extent.value)
            elif dim is not last[-1]:
                raise NotProved("warps of a block of symbolic extents")
        return affine.sum_of(parts)

    def warp_condition(self, same: bool) -> affine.Condition:
        """Return that ``a_`` and ``b_`` are of one warp, or of two."""
        found = self._same_warp()
        return found if same else ~found

    # Epochs

    def epoch(self, site: Site, at: Instances, scopes: tuple[str, ...]) -> Any:
        """Return the map from points to the time of the last barrier of these scopes before.

        The time -1 stands for none. A thread is where its whole scope is, so its own instances of
        a barrier tell the time.
        """
        setting = self.setting
        key = (" ".join(scopes), site)
        found = self._epochs.get(key)
        if found is None:
            # What is not parted by a barrier has one epoch, in the loops around it.
            around = (site.loops, site.guards, site.time[:-1], self._stretches[site])
            alike = (key[0], around, *at.variables, *at.conditions)
            found = self._alike.get(alike)
            if found is None:
                found = self._alike[alike] = self._last_barrier(at, scopes)
            found = found.set_tuple_name(setting.isl.dim_type.in_, at.name)
            self._epochs[key] = found
        return found

    def _last_barrier(self, at: Instances, scopes: tuple[str, ...]) -> Any:
        setting = self.setting
        start = affine.Tuple("T", (-1, *[0] * (setting.times - 1)))
        whole = setting.over(at, start, untied=True)
        for other in self.syncs:
            if kir.meets(other.node) not in scopes or isinstance(other.node, kir.Shuffle):
                continue
            barrier = setting.sites[other]
            order = earlier(barrier, "b_", at, "a_", ())
            if order == affine.FALSE:
                continue
            # Its own instances: the others of its scope are at the same ones (`prove_uniform`).
            team = [*setting.grid(barrier), *setting.block(barrier)]
            before = setting.between(at, barrier, [*agree(team), order])
            before = before.intersect_domain(setting.domain(at, untied=True))
            times = setting.over(barrier, barrier.moment, untied=True)
            whole = whole.union(before.apply_range(times))
        return whole.lexmax()

    # Rounds

    def parted(self, site: Site, at: Instances, scopes: tuple[str, ...], *, after: bool) -> Any:
        """Return the points with a barrier of these scopes in their round, before or after them."""
        setting = self.setting
        domain = setting.domain(at)
        found = domain.subtract(domain)
        loops = self._loops_of_rounds(site)
        around = [v for loop in loops for v in setting.spaces.names[loop.var]]
        for other in self.syncs:
            barrier = setting.sites[other]
            counts = kir.meets(other.node) in scopes and not isinstance(other.node, kir.Shuffle)
            if not counts or other.serial[: len(loops)] != loops:
                continue
            one, two = ((at, "a_"), (barrier, "b_")) if after else ((barrier, "b_"), (at, "a_"))
            team = [*setting.grid(barrier), *setting.block(barrier), *around]
            own = agree([v for v in team if v in barrier.variables and v in at.variables])
            pairs = setting.between(at, barrier, [*own, earlier(*one, *two, ())])
            found = found.union(pairs.intersect_range(setting.domain(barrier)).domain())
        return found.intersect(domain)

    def _loops_of_rounds(self, site: Site) -> tuple[kir.Loop, ...]:
        """Return the loops around a site down to the innermost one that makes rounds."""
        members = {m for group in self.setting.spaces.rounds for m in group.members}
        names = self.setting.spaces.names
        depths = [n + 1 for n, loop in enumerate(site.serial) if members & set(names[loop.var])]
        return site.serial[: max(depths, default=0)]


def stretches(model: Model) -> dict[Site, int]:
    """Return the stretch of text of each site; synchronisations part them, each one by itself."""
    syncs, passed = set(model.syncs), 0
    result: dict[Site, int] = {}
    for site in model.sites:
        passed += site in syncs
        result[site] = passed
        passed += site in syncs
    return result


# Which pairs of accesses pose the same question about races, and which pose none.
#
# Statements that a loop could have written repeat each other but for a constant: the slots of
# values that threads exchange together. Two pairs of accesses are alike where the first ones
# stand in one body with no synchronisation between them, the second ones do as well, and where
# indices differ, both of a pair have one constant: whether the rest meets is one question. Where
# their constants differ they are two elements, whatever the rest.


class AlikePairs:
    """Tells pairs of accesses of a program apart."""

    def __init__(self, model: Model) -> None:
        self._stretch = stretches(model)

    def different(self, accesses: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
        """Yield the pairs, one of which writes, that may use one element: one of those alike."""
        seen: set[object] = set()
        for a, b in combinations_with_replacement(accesses, 2):
            places = self._places(a, b)
            if not (a.writes or b.writes) or places is None or (a.atomic and b.atomic):
                continue
            key = (self._where(a), self._where(b), places)
            if key not in seen:
                seen.add(key)
                yield a, b

    def _where(self, access: Access) -> object:
        """Return where an access stands: its buffer, its body, and between which barriers."""
        site = access.site
        around = (site.loops, site.guards, site.time[:-1], site.within)
        return (
            access.buffer,
            access.writes,
            access.atomic,
            access.guards,
            access.flat,
            around,
            self._stretch[site],
        )

    def _places(self, a: Access, b: Access) -> tuple[tuple[Expr, Expr] | None, ...] | None:
        """Return where indices differ from a constant that both have; None where they never meet.

        Of two buffers in one space any elements meet, wherever they lie.
        """
        if a.buffer is not b.buffer:
            return ()
        if a.flat or b.flat:
            return tuple([(place, place) for place in (*a.index, *b.index)])
        found: list[tuple[Expr, Expr] | None] = []
        for i, j in zip(a.index, b.index, strict=True):
            if isinstance(i, Const) and isinstance(j, Const):
                if i.value != j.value:
                    return None
                found.append(None)
            else:
                found.append((i, j))
        return tuple(found)


# When copies in flight land, for all sizes, and that nobody touches what they have in flight.
#
# A copy lands at the first Wait(n) behind the n + 1 Commits of its thread that follow its Issue.
# The next Commit of a point is a lexicographic minimum, and so is the first Wait; no group is
# counted.


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
        last = len(self.setting.model.program.body) + 1
        end = Tuple("T", (last, *[0] * (self.setting.times - 1)))
        return self.setting.over(at, end).intersect_domain(domain)

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
            order = earlier(at, "a_", other, "b_", ())
            if order == FALSE:
                continue
            team = [*setting.grid(other), *setting.block(other)]
            found = setting.between(at, other, [*agree(team), order])
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
        return self.setting.over(at, at.moment)

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
        begin, use = [setting.over(at, at.moment) for at in (first, second)]
        met = met.intersect(begin.lex_lt_map(use))
        if met.is_empty():
            return met
        return met.intersect(use.lex_lt_map(self.moment(flying.site, first)).reverse())


_BLOCK = ("block", "grid")
"""The scopes of barriers that order all threads of a block."""


class SymbolicRaces:
    """Prove that accesses are ordered.

    Args:
        setting: the program.
        without: barriers that do not count.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """

    def __init__(self, setting: PolyhedralModel, without: Collection[kir.Barrier] = ()) -> None:
        self.setting = setting
        self.pairs = AlikePairs(setting.model)
        self.order = Order(setting, [s for s in setting.model.syncs if s.node not in without])
        self.landings = SymbolicLandings(setting, self.order)

    def prove(self) -> None:
        """Prove all of it."""
        self.order.prove_uniform()
        for site in self.setting.model.arrivals.values():
            with about(site):
                self._arrival(site)
        self._lonely()
        self.prove_apart()

    def prove_apart(self) -> None:
        """Prove that there are no races."""
        done: set[Buffer] = set()
        for buffer in self.setting.model.buffers():
            if buffer not in done and buffer not in self.setting.model.counters:
                group = [buffer, *self.setting.model.aliases(buffer)]
                done.update(group)
                self._space(group)

    # One space of memory

    def _space(self, group: Sequence[Buffer]) -> None:
        model = self.setting.model
        accesses = model.accesses_to(group)
        if not any(a.writes for a in accesses):
            return
        if not is_private(group[0]):
            for a, b in self.pairs.different(accesses):
                with about(b.site):
                    self._pair(a, b)
                    self._in_flight(a, b)
        for loop in {loop: None for a in accesses for loop in a.site.loops}:
            if loop.parallel.is_unordered:
                inside = [a for a in accesses if loop in a.site.loops]
                self._unordered(loop, inside)

    def _pair(self, a: Access, b: Access) -> None:
        """Show that two accesses by different threads do not meet."""
        setting = self.setting
        if not setting.spaces.launch:
            return
        first, second = setting.points(a), setting.points(b)
        shared = a.buffer.memory is Memory.SHARED
        synced = any(map(self.order.has, ("block", "grid", "warp")))
        # Without barriers the whole launch is one epoch: threads of one block and of two are asked
        # at once.
        if not shared and not synced and a.buffer is b.buffer:
            self._apart(a, b, setting.spaces.launch, [])
            return
        grid, block = setting.grid(first), setting.block(first)
        if block:
            threads = differ(block)
            self._in_block(a, b, first, second, [*agree(grid), threads])
            self._in_two_rounds(a, b, first, second, threads)
        if grid and not shared:
            self._between_blocks(a, b, first, second, grid)

    def _in_flight(self, a: Access, b: Access) -> None:
        """Show that a thread does not touch what a copy of its own has in flight."""
        for flying, other in self.landings.touching(a, b):
            first, second = self.setting.points(flying), self.setting.points(other)
            own = [*self.setting.grid(first), *self.setting.block(first)]
            same = agree([v for v in own if v in second.variables])
            met = self._at_one_place(flying, other, first, second, same)
            if not met.is_empty():
                met = self.landings.untouched(flying, other, met)
            self.setting.require_empty(met, f"{other} while a copy of {flying} is in flight")

    def _in_block(
        self, a: Access, b: Access, first: Instances, second: Instances, pairs: list[Condition]
    ) -> None:
        if self.order.has("warp"):
            met = self._together(a, b, first, second, pairs, _BLOCK)
            if met.is_empty():
                return  # barriers of the block are enough, whatever those of a warp do
        for which, scopes in self._scopes():
            met = self._together(a, b, first, second, [*pairs, *which], scopes)
            self.setting.require_empty(met, f"a race of {a} and {b}")

    def _scopes(self) -> Iterator[tuple[list[Condition], tuple[str, ...]]]:
        """Yield conditions on two threads of a block, with the scopes of barriers that count.

        A barrier of the warp orders threads of one warp; for those of two it does not count.
        """
        scopes, order = _BLOCK, self.order
        if not order.has("warp"):
            yield [], scopes
            return
        yield [order.warp_condition(False)], scopes
        yield [order.warp_condition(True)], (*scopes, "warp")

    def _in_two_rounds(
        self, a: Access, b: Access, first: Instances, second: Instances, threads: Condition
    ) -> None:
        """Show that accesses in two rounds of a block do not meet, or that a barrier parts them.

        Which rounds are of one block the digits do not tell: any two may be. Of barriers those
        count that are in one of both rounds, behind the access there that comes first or in front
        of the other one. Which of them comes first is not asked: either may.
        """
        setting, order = self.setting, self.order
        rounds = [v for group in setting.spaces.rounds for v in group.digits]
        here = [v for v in rounds if v in first.variables]
        if not here:
            return
        same = agree([v for v in setting.grid(first) if v not in rounds])
        pairs = [*same, threads, differ(here)]
        for (which, scopes), behind in product(self._scopes(), (True, False)):
            met = self._at_one_place(a, b, first, second, [*pairs, *which])
            if not met.is_empty():
                if a.site.issue is not None or b.site.issue is not None:
                    raise NotProved("copies in flight in two rounds of a block")
                met = met.subtract_domain(order.parted(a.site, first, scopes, after=behind))
                met = met.subtract_range(order.parted(b.site, second, scopes, after=not behind))
            setting.require_empty(met, f"a race of {a} and {b}")

    def _together(
        self,
        a: Access,
        b: Access,
        first: Instances,
        second: Instances,
        pairs: list[Condition],
        scopes: tuple[str, ...],
    ) -> Any:
        """Return the pairs of points that use one element in one epoch."""
        met = self._at_one_place(a, b, first, second, pairs)
        if met.is_empty() or not any(self.order.has(scope) for scope in scopes):
            return met
        mine = self.order.epoch(a.site, first, scopes)
        other = self.order.epoch(b.site, second, scopes)
        if a.site.issue is None and b.site.issue is None:
            return met.intersect(mine.apply_range(other.reverse()))
        # Each begins before the other one is over.
        over = self.landings.last_epoch(b.site, second, scopes)
        met = met.intersect(mine.lex_le_map(over))
        if met.is_empty():
            return met
        over = self.landings.last_epoch(a.site, first, scopes)
        return met.intersect(other.lex_le_map(over).reverse())

    def _at_one_place(
        self, a: Access, b: Access, first: Instances, second: Instances, pairs: list[Condition]
    ) -> Any:
        """Return the pairs of points that use one element; all of buffers that share space."""
        setting = self.setting
        if a.buffer is b.buffer:
            places = zip(setting.placed(a), setting.placed(b), strict=True)
            same = [equal(setting.linear(p, "a_"), setting.linear(q, "b_")) for p, q in places]
            pairs = [*pairs, *same]
        met = setting.between(first, second, pairs)
        met = met.intersect_domain(setting.domain(first, a.guards))
        return met.intersect_range(setting.domain(second, b.guards))

    # Between blocks

    def _between_blocks(
        self, a: Access, b: Access, first: Instances, second: Instances, grid: Sequence[str]
    ) -> None:
        setting = self.setting
        met = self._together(a, b, first, second, [differ(grid)], ("grid",))
        for site in setting.model.arrivals.values():
            if met.is_empty() or a.site.issue is not None or b.site.issue is not None:
                break  # an arrival orders no copy that is in flight
            met = met.subtract(self._arrived(site, a, first, b, second))
            met = met.subtract(self._arrived(site, b, second, a, first).reverse())
        setting.require_empty(met, f"a race between blocks of {a} and {b}")

    def _arrived(
        self, site: Site, a: Access, first: Instances, b: Access, second: Instances
    ) -> Any:
        """Return the pairs: the first before an arrival, the second after it in the last block.

        Raises:
            NotProved: the arrival's counter has no affine index.
        """
        bound = [
            t
            for loop in site.loops
            if loop.parallel.is_thread
            for t in self.setting.spaces.bound(loop)
        ]
        if not site.serial and not site.guards and not bound:
            return self._arrived_once(site, first, second)
        before = self._counter(site, first, late=False)
        after = self._counter(site, second, late=True)
        return before.apply_range(after.reverse())

    def _arrived_once(self, site: Site, first: Instances, second: Instances) -> Any:
        """Return the same for an arrival that every block comes to once."""
        setting, arrival = self.setting, self.setting.sites[site]
        node = site.node
        assert isinstance(node, kir.Arrive)
        conditions = [
            earlier(first, "a_", arrival, "a_", ()),
            earlier(arrival, "b_", second, "b_", ()),
        ]
        for p in setting.polys(node.index):
            conditions.append(equal(setting.linear(p, "a_"), setting.linear(p, "b_")))
        return setting.between(first, second, [*conditions, *self._is_last(node)])

    def _counter(self, site: Site, at: Instances, *, late: bool) -> Any:
        """Return points -> the counters at which their block arrives later (earlier if `late`)."""
        setting, arrival = self.setting, self.setting.sites[site]
        node = site.node
        assert isinstance(node, kir.Arrive)
        same = agree(setting.grid(arrival))
        pairs = setting.between(at, arrival, [*same, *(self._is_last(node) if late else ())])
        mine, theirs = [setting.over(points, points.moment) for points in (at, arrival)]
        ordered = mine.lex_gt_map(theirs) if late else mine.lex_lt_map(theirs)
        access = Access(site, site, node.counter, node.index, False, False)
        return pairs.intersect(ordered).apply_range(setting.access(arrival, access))

    def _is_last(self, node: kir.Arrive) -> list[Condition]:
        """Return that the block of ``b_`` is the last one that arrives."""
        setting = self.setting
        dims = setting.last[node.var]
        return [equal(f"b_t_{d.value}", setting.last_names[node.var, d]) for d in dims]

    # Arrivals

    def _arrival(self, site: Site) -> None:
        """Show that just `count` blocks arrive at each counter, each once."""
        setting, at = self.setting, self.setting.sites[site]
        node = site.node
        assert isinstance(node, kir.Arrive)
        dims = [f"t_{d.value}" for d in setting.last[node.var]]
        count = product_of([setting.spaces.extent[name] for name in dims])
        if setting.algebra.poly(node.count, {}) != count:
            raise NotProved(f"so many blocks arrive at {node.counter.name}")
        self.order.closed(site, dims)
        access = Access(site, site, node.counter, node.index, False, False)
        where = setting.access(at, access, place=True)
        derived = setting.algebra.derived.values()
        others = [v for v in at.variables if v not in (*dims, *setting.block(at), *derived)]
        # Two arrivals at one counter that differ in anything but the blocks that it gathers (or the
        # thread, which all threads of a block share) would be two rounds of counting.
        pairs = setting.between(at, at, [differ(others)])
        met = where.apply_range(where.reverse()).intersect(pairs)
        setting.require_empty(met, f"two rounds at one counter {node.counter.name}")

    def _lonely(self) -> None:
        """Show that it makes no difference to common memory which block was the last.

        Raises:
            NotProved: an index in global memory, or a claim, depends on that block's number, or
                memory of its own keeps what it stored to a later arrival.
        """
        model = self.setting.model
        for buffer in model.kept_by_last_blocks():
            raise NotProved(f"{buffer.name} keeps what an earlier last block stored")
        for site in model.sites:
            dims = {d for f in model.flags(site.guards) for d in self.setting.last.get(f, ())}
            if not dims:
                continue
            used = [i for a in model.accesses_of(site) if a.buffer.memory is Memory.GLOBAL
                    for i in a.index]  # fmt: skip
            if isinstance(site.node, kir.Store):
                used += site.node.coordinate
            used += [condition for condition, _ in site.guards]
            if any(dims & launch_dimensions(site, i) for i in used):
                with about(site):
                    raise NotProved("an access that depends on which block is the last")

    # Loops without an order

    def _unordered(self, loop: kir.Loop, accesses: Sequence[Access]) -> None:
        model, spaces = self.setting.model, self.setting.spaces
        for a, b in combinations_with_replacement(accesses, 2):
            made = model.lifetime(a)
            # A buffer made inside of the loop is another one in each iteration.
            inner = made is not None and loop in made.loops
            if inner or not (a.writes or b.writes) or (a.atomic and b.atomic):
                continue
            with about(b.site):
                if a.buffer is not b.buffer:
                    raise NotProved("a loop without an order over shared space")
                around = a.site.serial[: a.site.serial.index(loop)]
                outer = [v for o in around for v in spaces.names[o.var]]
                self._apart(a, b, spaces.names[loop.var], [*spaces.launch, *outer])

    def _apart(self, a: Access, b: Access, other: Sequence[str], same: Sequence[str]) -> None:
        """Show that no two points with these indices different use one element."""
        spaces = self.setting.spaces
        first, second = self.setting.points(a), self.setting.points(b)
        for members in (other, same):
            gone = [m for m in members if m not in first.variables or m not in second.variables]
            if not all(m in spaces.group_of for m in gone):
                raise NotProved("a race")
        # Digits of a merged index may agree where the index differs: a group is asked for as a
        # whole.
        for group in spaces.groups:
            part = set(group.members)
            if not part.isdisjoint(same) and not part <= set(same):
                raise NotProved("a merged index of which a part agrees")
        apart = [v for v in self._named(other, first) if v in second.variables]
        together = [v for v in self._named(same, first) if v in second.variables]
        pairs = self.setting.between(first, second, [differ(apart), *agree(together)])
        met = self.setting.access(first, a).apply_range(self.setting.access(second, b).reverse())
        self.setting.require_empty(met.intersect(pairs), f"a race on {b}")

    def _named(self, members: Sequence[str], at: Instances) -> list[str]:
        return list(dict.fromkeys(self._digits(members, at)))

    def _digits(self, members: Sequence[str], at: Instances) -> Iterator[str]:
        for member in members:
            group = self.setting.spaces.group_of.get(member)
            yield from [
                v for v in ((member,) if group is None else group.digits) if v in at.variables
            ]


# Loops whose indices one sum replaces, but which do not run in the order of that sum.
#
# The time of a statement in such loops is that of the sum's digits (`PolyhedralModel.time`):
# right where the loops stand one in the other, the slowest part of the sum outside, and wrong
# after a reorder. There nothing may hang on the order of two iterations: none writes an element
# that another one uses, but for partial results that may be folded in any order.


def require_any_order(setting: PolyhedralModel) -> None:
    """Show that loops in another order than their sum's may run in any order.

    Raises:
        NotProved, NotAffine: it could not be shown.
    """
    model = setting.model
    for group in setting.spaces.groups:
        sites = [s for s in model.sites if _has(setting, group, s)]
        if all(_is_in_order(setting, group, s) for s in sites):
            continue
        inside = [a for a in model.accesses if a.site in set(sites)]
        for a, b in combinations_with_replacement(inside, 2):
            one_space = a.buffer is b.buffer or b.buffer in model.aliases(a.buffer)
            if one_space and (a.writes or b.writes) and not _folds(setting, a, b):
                with about(b.site):
                    _apart(setting, group, a, b)


def _has(setting: PolyhedralModel, group: Group, site: Site) -> bool:
    return set(group.members) <= set(setting.spaces.members_of(site))


def _is_in_order(setting: PolyhedralModel, group: Group, site: Site) -> bool:
    """Whether the serial loops of a group follow each other around a site, the slowest first."""
    serial = [v for loop in site.serial for v in setting.spaces.names[loop.var]]
    own = [m for m in group.members if m in serial]
    first = min([serial.index(m) for m in own], default=0)
    return serial[first : first + len(own)] == own


def _folds(setting: PolyhedralModel, a: Access, b: Access) -> bool:
    """Whether two accesses are of one update, by an element of a fold without an order."""
    works = [w for w in setting.works if w.site is a.site and w.kind == "update"]
    if a.site is not b.site or not works or (a.index, a.flat) != (b.index, b.flat):
        return False
    tensor = works[0].tensor
    return a.buffer is b.buffer and tensor.scan is None and not reducer_of(tensor).ordered


def _apart(setting: PolyhedralModel, group: Group, a: Access, b: Access) -> None:
    """Show that no two iterations of a group's loops use one element.

    Iterations of the loops around those of the group are in the right order.
    """
    made = [setting.model.lifetime(access) for access in (a, b)]
    # A thread's own buffer is another one in each iteration. One that threads share is too, but it
    # lies where the last one lay: whether a barrier stands between two uses hangs on the order.
    if is_private(a.buffer) and all(m is not None and _has(setting, group, m) for m in made):
        return
    if a.buffer is not b.buffer:
        raise NotProved("iterations of merged loops over shared space")
    first, second = setting.points(a), setting.points(b)
    around = _outside(setting, group, a.site)
    if around != _outside(setting, group, b.site):
        raise NotProved("the order of merged loops")
    same = agree([v for v in around if v in first.variables])
    pairs = setting.between(first, second, [differ(group.digits), *same])
    mine, theirs = [
        setting.access(at, access, place=True) for at, access in ((first, a), (second, b))
    ]
    met = mine.apply_range(theirs.reverse())
    setting.require_empty(met.intersect(pairs), f"the order of merged loops, for {b}")


def _outside(setting: PolyhedralModel, group: Group, site: Site) -> list[str]:
    """Return the indices of the loops around the outermost one of a group."""
    result: list[str] = []
    for loop in site.serial:
        names = setting.spaces.names[loop.var]
        if not set(group.members).isdisjoint(names):
            break
        result += names
    return result
