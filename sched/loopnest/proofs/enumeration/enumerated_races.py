"""Barriers, arrivals and races, at every point."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import permutations, product

import numpy as np

from loopnest import kir
from loopnest.proofs.enumeration.access_instances import AccessInstances, InstanceTable
from loopnest.proofs.point_arrays import (
    Array,
    Enumeration,
    Flags,
    TooMany,
    Undecidable,
    groups_along,
)
from loopnest.proofs.program_model import Model, Site, is_private, launch_dimensions
from loopnest.proofs.report import Finding
from loopnest.scalar.enums import BLOCK_DIMENSIONS, WARP, Memory, ParallelType
from loopnest.scalar.expr import Buffer

MOST_PAIRS = 4_000_000
"""How many pairs of accesses are looked at where arrivals may order them."""


class EnumeratedRaces:
    """Decide which accesses are ordered.

    Args:
        table: the accesses.
        without: barriers and waits that do not count, atomic stores that are plain ones.
        narrow: barriers that order no more than each warp.
    """

    def __init__(
        self,
        table: InstanceTable,
        without: Collection[kir.Stmt] = (),
        narrow: Collection[kir.Stmt] = (),
    ) -> None:
        self.table, self.space, self.model = table, table.space, table.model
        self.syncs = [
            s
            for s in self.model.syncs
            if not isinstance(s.node, kir.Shuffle) and s.node not in without
        ]
        self.without, self.narrow = without, narrow
        self.landings = EnumeratedLandings(self.model, self.space, without)
        self._times: dict[str, Array] = {}

    def findings(self) -> Iterator[Finding]:
        """Yield what does not hold.

        Raises:
            Undecidable: beyond that, something may depend on which block is the last.
        """
        yield from self._divergent()
        for site, message in self.space.faults:
            yield self.table.witness.bare("arrival", message, site)
        yield from self.conflicts()
        self._lonely()

    def conflicts(self) -> Iterator[Finding]:
        """Yield the races."""
        done: set[Buffer] = set()
        for buffer in self.model.buffers():
            if buffer in done or buffer in self.model.counters:
                continue
            group = [buffer, *self.model.aliases(buffer)]
            done.update(group)
            accesses = [
                replace(a, atomic=False) if a.site.node in self.without else a
                for a in self.model.accesses_to(group)
            ]
            if any(a.writes for a in accesses):
                marks = [self.table.marks(a) for a in accesses]
                yield from self._space(group, [m for m in marks if m.points.count])

    # Reaching barriers

    def team(self, scope: str, block: Array, thread: Array) -> Array:
        """Return the number of the warp, the block, or the grid that threads belong to."""
        if scope == "grid":
            return np.zeros_like(block)
        if scope == "block":
            return block
        inside = thread % self.space.threads
        return block * (-(-self.space.threads // WARP)) + inside // WARP

    def _divergent(self) -> Iterator[Finding]:
        """Yield the barriers that some threads of their scope reach and others do not."""
        lanes = np.arange(self.space.threads * math.prod(self.space.grid))
        for site in self.model.syncs:
            scope = kir.meets(site.node)
            points = self.space.points[site]
            # A run of a barrier is one team at one time; as many threads must be in it as the team
            # has.
            whole = np.bincount(self.team(scope, lanes // self.space.threads, lanes))
            team = self.team(scope, points.block, points.thread)
            runs, first, count = np.unique(
                team * self.space.span + points.time, return_index=True, return_counts=True
            )
            if bool((count != whole[runs // self.space.span]).any()):
                p = int(first[np.flatnonzero(count != whole[runs // self.space.span])[0]])
                message = f"not all threads of a {scope} reach the {_noun(site)}"
                yield self.table.witness.at("barrier", message, site, None, points, p)
        for site in self.model.collectives:
            yield from self._group(site)

    def _group(self, site: Site) -> Iterator[Finding]:
        """Yield a collective that not all of a group reach; of a block, where it shares memory."""
        node, points = site.node, self.space.points[site]
        assert isinstance(node, kir.Collective)
        shared = any(
            isinstance(n, kir.Store) and n.storage.memory is Memory.SHARED
            for n, _ in kir.walk(node.body)
        )
        dims = BLOCK_DIMENSIONS if shared else node.dims
        extents = dict(zip(BLOCK_DIMENSIONS, self.space.block, strict=True))
        size = math.prod([extents[dim] for dim in dims if dim.is_block])
        moment = points.block * self.space.span + points.time
        key = groups_along(dims, self.space.places(points), moment)
        _, first, count = np.unique(key, return_index=True, return_counts=True)
        bad = np.flatnonzero(count != size)
        if bad.size:
            message = f"not all threads of a group reach the collective '{node.name}'"
            yield self.table.witness.at("barrier", message, site, None, points, int(first[bad[0]]))

    def _lonely(self) -> None:
        """Check that common memory does not depend on which block was the last.

        Raises:
            Undecidable: it does.
        """
        grid = {d for d, _ in self.model.program.launch if d.is_grid}
        for site in self.model.sites:
            flags = self.model.flags(site.guards)
            if not flags:
                continue
            dims: set[ParallelType] = set()
            for flag in flags:
                arrival = self.model.arrivals[flag]
                assert isinstance(arrival.node, kir.Arrive)
                used = set[ParallelType]().union(
                    *[launch_dimensions(arrival, i) for i in arrival.node.index],
                    *[launch_dimensions(arrival, c) for c, _ in arrival.guards],
                )
                dims |= grid - used
            found = [i for a in self.model.accesses_of(site)
                     if a.buffer.memory is Memory.GLOBAL for i in a.index]  # fmt: skip
            if isinstance(site.node, kir.Store):
                found += site.node.coordinate
            found += [condition for condition, _ in site.guards]
            if any(dims & launch_dimensions(site, i) for i in found):
                raise Undecidable("an access depends on which block arrives last")

    # Epochs

    def _scope(self, site: Site) -> str:
        return "warp" if site.node in self.narrow else kir.meets(site.node)

    def _sync_times(self, scopes: Sequence[str], team: str) -> Array:
        """Return the sorted keys (team, time) of the barriers of these scopes."""
        key = " ".join((*scopes, team))
        if key not in self._times:
            found = [np.zeros(0, np.int64)]
            for site in self.syncs:
                if self._scope(site) in scopes:
                    points = self.space.points[site]
                    owner = self.team(team, points.block, points.thread)
                    found.append(np.unique(owner * self.space.span + points.time))
            self._times[key] = np.unique(np.concatenate(found))
        return self._times[key]

    def _epoch(self, mark: AccessInstances, scopes: Sequence[str], team: str, when: Array) -> Array:
        """Return a number for each team and each stretch between its barriers, at some times."""
        times = self._sync_times(scopes, team)
        owner = self.team(team, mark.points.block, mark.points.thread)
        found = np.searchsorted(times, owner * self.space.span + when)
        return owner * (times.size + 1) + found

    def _stretched(
        self, marks: Sequence[AccessInstances], scopes: Sequence[str], team: str
    ) -> tuple[list[AccessInstances], list[Array]]:
        """Return the accesses with the stretch of each: a copy in flight is in several."""
        made: list[AccessInstances] = []
        epochs: list[Array] = []
        for mark in marks:
            epoch = self._epoch(mark, scopes, team, mark.time)
            if mark.access.site.issue is not None:
                last = self._epoch(mark, scopes, team, self.landings.of(mark))
                chosen = np.repeat(epoch, last - epoch + 1)
                mark, later = repeated(mark, last - epoch + 1, self.space.most)
                epoch = chosen + later
            made.append(mark)
            epochs.append(epoch)
        return made, epochs

    # Races

    def _space(
        self, group: Sequence[Buffer], marks: Sequence[AccessInstances]
    ) -> Iterator[Finding]:
        for buffer in group:
            own = [m for m in marks if m.access.buffer is buffer]
            if not any(m.access.writes for m in own):
                continue
            if not is_private(buffer):
                for several, owner, epoch in self._in_block(own):
                    yield from self._meet(several, [m.place for m in several], owner, epoch)
            if buffer.memory is Memory.GLOBAL:
                yield from self._between_blocks(own)
            yield from self._in_loops(own)
        if not is_private(group[0]):
            for a, b in permutations(group, 2):
                yield from self._across(
                    [m for m in marks if m.access.buffer is a and m.access.writes],
                    [m for m in marks if m.access.buffer is b],
                )
        for flying, p, other, q in self.landings.touched(marks):
            name = flying.access.buffer.name
            message = f"a thread uses an element of {name} that a copy of its own has in flight"
            yield self.table.witness.pair(
                "race", message, other.access, other.points, q,
                flying.access, flying.points, p,
            )  # fmt: skip

    def _in_block(
        self, marks: Sequence[AccessInstances]
    ) -> Iterator[tuple[list[AccessInstances], list[Array], list[Array]]]:
        """Yield accesses, whose, in which stretch: those of two in one stretch are not ordered.

        Where there are barriers of warps: warps between barriers of the block, then threads.
        """
        scopes = ("block", "grid")
        several, epochs = self._stretched(marks, scopes, "block")
        if any(self._scope(s) == "warp" for s in self.syncs):
            yield (
                several,
                [self.team("warp", m.points.block, m.points.thread) for m in several],
                epochs,
            )
            several, epochs = self._stretched(marks, (*scopes, "warp"), "warp")
        yield several, [m.points.thread for m in several], epochs

    def _across(
        self, writes: Sequence[AccessInstances], others: Sequence[AccessInstances]
    ) -> Iterator[Finding]:
        """Yield a store that another thread's access to a buffer in its space is not ordered with.

        All elements are one here. In a stretch there is no conflict where all is done by one.
        """
        if not writes or not others:
            return
        views = list(zip(self._in_block(writes), self._in_block(others), strict=True))
        if others[0].access.buffer.memory is Memory.GLOBAL:
            one, two = [self._in_grid(marks) for marks in (writes, others)]
            views.append((one, two))
        for (mine, who, when), (theirs, whom, then) in views:
            a = ConflictJoin(mine, [np.zeros_like(m.place) for m in mine], who, when)
            b = ConflictJoin(theirs, [np.zeros_like(m.place) for m in theirs], whom, then)
            for row, other in bipartite(a, b):
                yield self._race(b, other, row, "threads", a)
                return

    def _in_grid(
        self, marks: Sequence[AccessInstances]
    ) -> tuple[list[AccessInstances], list[Array], list[Array]]:
        """Return the same of the blocks of the grid."""
        several, epochs = self._stretched(marks, ("grid",), "grid")
        return several, [m.points.block for m in several], epochs

    def _between_blocks(self, marks: Sequence[AccessInstances]) -> Iterator[Finding]:
        marks, owner, epoch = self._in_grid(marks)
        key = [m.place for m in marks]
        # An arrival orders pairs of blocks, and ends no stretch for the others: with one, pairs
        # must be looked at.
        if not self.model.arrivals:
            yield from self._meet(marks, key, owner, epoch, "blocks")
            return
        joined = ConflictJoin(marks, key, owner, epoch)
        suspects = joined.groups_in_conflict()
        if suspects.size:
            yield from self._by_pairs(joined, suspects)

    def _meet(
        self,
        marks: Sequence[AccessInstances],
        key: Sequence[Array],
        owner: Sequence[Array],
        epoch: Sequence[Array],
        what: str = "threads",
    ) -> Iterator[Finding]:
        joined = ConflictJoin(marks, key, owner, epoch)
        bad = joined.conflicts()
        if bad.size:
            b = int(bad[0])
            yield self._race(joined, b, joined.rival(b), what)

    def _race(
        self, joined: ConflictJoin, b: int, a: int, what: str, other: ConflictJoin | None = None
    ) -> Finding:
        """Return the finding of row `b`, and of row `a`, of `other` where that is given."""
        other = joined if other is None else other
        first, second = other.mark(a), joined.mark(b)
        name = second.access.buffer.name
        message = f"two {what} use one element of {name}, and one of them writes"
        if first.access.buffer is not second.access.buffer:
            message = (
                f"two {what} use {first.access.buffer.name} and {name}, which share space, "
                f"and one of them writes"
            )
        return self.table.witness.pair(
            "race", message, second.access, second.points, int(joined.point[b]),
            first.access, first.points, int(other.point[a]),
        )  # fmt: skip

    # Arrivals

    def _by_pairs(self, joined: ConflictJoin, suspects: Array) -> Iterator[Finding]:
        """Yield a race between blocks that no arrival orders, looking at every pair.

        Of the threads of a block that use an element in the same way between the same arrivals, one
        stands for all.

        Raises:
            Undecidable: there are too many pairs, and no race among the first of them.
        """
        phases = [self._phases(site, joined) for site in self.model.arrivals.values()]
        pairs = 0
        for rows in self._distinct(joined, suspects, phases):
            pairs += rows.size**2
            if pairs > MOST_PAIRS:
                raise Undecidable("too many accesses beside an arrival")
            a, b = np.meshgrid(rows, rows, indexing="ij")
            bad = (joined.who[a] != joined.who[b]) & joined.writes[a]
            bad &= ~(joined.atomic[a] & joined.atomic[b])
            for before, after in phases:
                bad &= ~((before[a] == after[b]) & (before[a] >= 0))
                bad &= ~((before[b] == after[a]) & (before[b] >= 0))
            found = np.flatnonzero(bad)
            if found.size:
                yield self._race(
                    joined, int(b.ravel()[found[0]]), int(a.ravel()[found[0]]), "blocks"
                )
                return

    def _distinct(
        self, joined: ConflictJoin, groups: Array, phases: Sequence[tuple[Array, Array]]
    ) -> Iterator[Array]:
        """Yield for each group its rows, the first of those that are alike."""
        size = joined.sizes()
        known = [a for pair in phases for a in pair]
        for group in groups.tolist():
            rows = np.arange(joined.start[group], joined.start[group] + size[group])
            own = (joined.who[rows], joined.writes[rows], joined.atomic[rows])
            alike = np.stack([*own, *[a[rows] for a in known]])
            _, first = np.unique(alike, axis=1, return_index=True)
            yield rows[np.sort(first)]

    def _phases(self, site: Site, joined: ConflictJoin) -> tuple[Array, Array]:
        """Return for each access the counter that its block arrives at later, and earlier.

        The second only for accesses of the block that goes on; -1 for none. Where a block arrives
        at several counters, the next and the last one are meant.
        """
        assert isinstance(site.node, kir.Arrive)
        points, span = self.space.points[site], self.space.span
        counter = self.space.counter(site, points)
        key = points.block * span + points.time
        times, place = np.unique(key, return_index=True)
        here = joined.who * span + joined.time
        later = np.searchsorted(times, here, side="right")
        before = self._counted(later, times, counter[place], joined.who)
        earlier = np.searchsorted(times, here, side="left") - 1
        after = self._counted(earlier, times, counter[place], joined.who)
        return before, np.where(self._goes_on(site, joined, earlier, times), after, -1)

    def _counted(self, found: Array, times: Array, counter: Array, who: Array) -> Array:
        inside = (found >= 0) & (found < times.size)
        found = np.where(inside, found, 0)
        if not times.size:
            return np.full(found.size, -1)
        same = inside & (times[found] // self.space.span == who)
        return np.where(same, counter[found], -1)

    def _goes_on(self, site: Site, joined: ConflictJoin, earlier: Array, times: Array) -> Flags:
        """Return which accesses are those of the block that an arrival lets go on."""
        assert isinstance(site.node, kir.Arrive)
        points, span = self.space.points[site], self.space.span
        counter = self.space.counter(site, points)
        key = points.block * span + points.time
        chosen: dict[int, set[int]] = {c: set() for c in np.unique(counter).tolist()}
        for c, block in zip(counter.tolist(), points.block.tolist(), strict=True):
            chosen[c].add(block)
        first = self.space.lets_first_go_on(site.node, len(chosen)).tolist()
        goes_on = {
            c: min(blocks) if is_first else max(blocks)
            for (c, blocks), is_first in zip(chosen.items(), first, strict=True)
        }
        _, place = np.unique(key, return_index=True)
        if not place.size:
            return np.zeros(earlier.size, np.bool_)
        last = np.array([goes_on[c] for c in counter[place].tolist()])
        found = np.where((earlier >= 0) & (earlier < last.size), earlier, 0)
        result: Flags = (earlier >= 0) & (last[found] == joined.who)
        return result

    # Loops without an order

    def _in_loops(self, marks: Sequence[AccessInstances]) -> Iterator[Finding]:
        loops: dict[kir.Loop, list[AccessInstances]] = {}
        for mark in marks:
            made = self.model.lifetime(mark.access)
            for loop in mark.access.site.loops:
                free = loop.parallel.is_unordered
                if free and (made is None or loop not in made.loops):
                    loops.setdefault(loop, []).append(mark)
        for loop, inside in loops.items():
            owner = [m.points.values[loop.var] for m in inside]
            epoch = [self._outer(m, loop) for m in inside]
            what = f"iterations of the {loop.parallel.value} loop {loop.index}"
            yield from self._meet(inside, [m.key for m in inside], owner, epoch, what)

    def _outer(self, mark: AccessInstances, loop: kir.Loop) -> Array:
        """Return the number of the run of `loop` that each point belongs to."""
        result = mark.points.thread.copy()
        for outer in mark.access.site.serial:
            if outer is loop:
                break
            result = result * max(self.space.extent(outer), 1) + mark.points.values[outer.var]
        return result


def _noun(site: Site) -> str:
    return {"Barrier": "barrier", "Shuffle": "shuffle", "Arrive": "arrival"}[
        type(site.node).__name__
    ]


class ConflictJoin:
    """Accesses in groups that may conflict: of one element, in one stretch between barriers.

    Stores come first, then atomic updates, which do not conflict with each other, then loads.
    """

    def __init__(
        self,
        marks: Sequence[AccessInstances],
        key: Sequence[Array],
        owner: Sequence[Array],
        epoch: Sequence[Array],
    ) -> None:
        self.marks = marks
        keys, when = np.concatenate(key), np.concatenate(epoch)
        writes = np.concatenate([np.full(m.place.size, m.access.writes) for m in marks])
        atomic = np.concatenate([np.full(m.place.size, m.access.atomic) for m in marks])
        order = np.lexsort((np.where(atomic, 1, np.where(writes, 0, 2)), when, keys))
        self.atomic = atomic[order]
        keys, when, self.writes = keys[order], when[order], writes[order]
        self.when = when
        self.who = np.concatenate(owner)[order]
        self.time = np.concatenate([m.time for m in marks])[order]
        self.source = np.concatenate([np.full(m.place.size, n) for n, m in enumerate(marks)])[order]
        self.point = np.concatenate([np.arange(m.place.size) for m in marks])[order]
        fresh = np.r_[True, (keys[1:] != keys[:-1]) | (when[1:] != when[:-1])][: keys.size]
        self.start = np.flatnonzero(fresh)
        self.group = np.cumsum(fresh) - 1

    def mark(self, row: int) -> AccessInstances:
        return self.marks[int(self.source[row])]

    def sizes(self) -> Array:
        result: Array = np.diff(np.r_[self.start, self.group.size])
        return result

    def conflicts(self) -> Array:
        """Return the rows that conflict with the first of their group."""
        first = self.start[self.group]
        # If any two rows conflict, the first row is a store (stores come first), and one of the two
        # has another owner than it: so the first row conflicts with that one.
        bad = (self.who != self.who[first]) & self.writes[first] & ~self.atomic[first]
        if self.atomic.any():
            # Where updates come first, nobody else may load: of several that update, nobody at all.
            updated = self.atomic[first]
            others = self.atomic & (self.who != self.who[first])
            several = np.bincount(self.group[others], minlength=self.start.size) > 0
            loads = updated & ~self.atomic
            bad |= loads & (several[self.group] | (self.who != self.who[first]))
        return np.flatnonzero(bad)

    def rival(self, row: int) -> int:
        """Return a row that one of `conflicts` conflicts with."""
        group = self.group[row]
        first = int(self.start[group])
        if self.who[first] != self.who[row]:
            return first
        rows = np.flatnonzero((self.group == group) & self.atomic & (self.who != self.who[row]))
        return int(rows[0])

    def groups_in_conflict(self) -> Array:
        return np.unique(self.group[self.conflicts()])


def bipartite(a: ConflictJoin, b: ConflictJoin) -> Iterator[tuple[int, int]]:
    """Yield a row of each, in one group by `when`, of two owners; where there is one."""
    shared = np.intersect1d(a.when, b.when)
    for when in shared.tolist():
        mine, theirs = np.flatnonzero(a.when == when), np.flatnonzero(b.when == when)
        # min(a) = max(b) and max(a) = min(b) only where all owners are one: two comparisons decide
        # all pairs.
        low, high = mine[np.argmin(a.who[mine])], theirs[np.argmax(b.who[theirs])]
        if a.who[low] != b.who[high]:
            yield int(low), int(high)
            return
        high, low = mine[np.argmax(a.who[mine])], theirs[np.argmin(b.who[theirs])]
        if a.who[high] != b.who[low]:
            yield int(high), int(low)
            return


class EnumeratedLandings:
    """The times at which copies in flight land, at every point.

    A copy lands at the first Wait(n) behind the n + 1 Commits of its thread that follow its Issue.

    Args:
        model: the program.
        space: its points.
        without: waits that do not count.
    """

    def __init__(
        self, model: Model, space: Enumeration, without: Collection[kir.Stmt] = ()
    ) -> None:
        self.space = space
        self.commits = self._keys(model.commits)
        self.waits: dict[int, list[Site]] = {}
        for site in [s for s in model.waits if s.node not in without]:
            assert isinstance(site.node, kir.Wait)
            self.waits.setdefault(site.node.pending, []).append(site)

    def _keys(self, sites: Sequence[Site]) -> Array:
        """Return thread and time of statements in one number, in order."""
        found = [np.zeros(0, np.int64)]
        for site in sites:
            points = self.space.points[site]
            found.append(points.thread * self.space.span + points.time)
        return np.sort(np.concatenate(found))

    def of(self, mark: AccessInstances) -> Array:
        """Return when the copy of each point lands; a time behind all others where it never does.

        Of an access that no copy makes, that is its own time.
        """
        if mark.access.site.issue is None:
            return mark.time
        span, thread = self.space.span, mark.points.thread
        never = thread * span + span - 1
        landed = never
        after = np.searchsorted(self.commits, thread * span + mark.time, side="right")
        for pending, sites in self.waits.items():
            closed = _at(self.commits, after + pending, never)
            waits = self._keys(sites)
            found = _at(waits, np.searchsorted(waits, closed, side="right"), never)
            landed = np.minimum(landed, found)
        return landed - thread * span

    def touched(
        self, marks: Sequence[AccessInstances]
    ) -> Iterator[tuple[AccessInstances, int, AccessInstances, int]]:
        """Yield two points at which a thread uses what a copy of its own has in flight."""
        for flying, other in product(marks, repeat=2):
            one, two = flying.access, other.access
            if one.site.issue is None or not (one.writes or two.writes):
                continue
            same = one.buffer is two.buffer
            size = int(max(flying.place.max(initial=0), other.place.max(initial=0))) + 1
            span = self.space.span

            def key(mark: AccessInstances, size: int, same: bool, span: int) -> Array:
                place = mark.place if same else np.zeros_like(mark.place)
                return (mark.points.thread * size + place) * span

            uses = key(other, size, same, span) + other.time
            order = np.argsort(uses)
            begin = key(flying, size, same, span)
            first = np.searchsorted(uses[order], begin + flying.time, side="right")
            end = np.searchsorted(uses[order], begin + self.of(flying), side="left")
            bad = np.flatnonzero(first < end)
            if bad.size:
                point = int(bad[0])
                yield flying, point, other, int(order[first[point]])
                return


def repeated(mark: AccessInstances, counts: Array, most: int) -> tuple[AccessInstances, Array]:
    """Return each point of an access some times, and how often it stood there before.

    Raises:
        TooMany: these are too many points.
    """
    if int(counts.sum()) > max(most, mark.place.size):
        raise TooMany
    chosen = np.repeat(np.arange(counts.size), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    made = AccessInstances(
        mark.access, mark.points.take(chosen), mark.where[chosen], mark.place[chosen],
        mark.key[chosen], mark.time[chosen],
    )  # fmt: skip
    return made, np.arange(chosen.size) - first


def _at(keys: Array, places: Array, never: Array) -> Array:
    """Return the keys at some places; `never` where there is none, or none of that thread."""
    if not keys.size:
        return never
    found = np.where(places < keys.size, keys[np.minimum(places, keys.size - 1)], never)
    return np.minimum(found, never)
