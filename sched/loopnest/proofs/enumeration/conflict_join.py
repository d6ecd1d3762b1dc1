"""Accesses joined where they may conflict: of one element, in one stretch between barriers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from loopnest.proofs.enumeration.access_instances import AccessInstances
from loopnest.proofs.point_arrays import Array


class ConflictJoin:
    """Accesses in groups that may conflict: of one element, in one epoch.

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
