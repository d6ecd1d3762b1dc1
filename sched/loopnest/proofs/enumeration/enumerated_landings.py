"""When copies in flight land, at every point.

A copy lands at the first Wait(n) behind the n + 1 Commits of its thread that follow its Issue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import product

import numpy as np

from loopnest import kir
from loopnest.proofs.enumeration.access_instances import AccessInstances
from loopnest.proofs.point_arrays import Array, Enumeration, TooMany
from loopnest.proofs.program_model import Model, Site


class EnumeratedLandings:
    """The times at which copies land.

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
