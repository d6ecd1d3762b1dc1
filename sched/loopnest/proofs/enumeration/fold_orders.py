"""In which order partial results were combined: the first and the last element of each.

Elements are numbered in the order of the math. A partial result is in order if its elements were
combined one after the other, each behind all before it; of two in order that are combined, the last
element of the one must lie before the first one of the other. One without elements may stand
anywhere. With a count, which says that all elements are there, this is the whole order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loopnest.proofs.point_arrays import Array, Flags

_BEHIND = np.int64(1 << 38)
"""The number of the first element where there is none: behind all others."""


@dataclass(frozen=True, slots=True)
class FoldOrder:
    """Of many partial results.

    Args:
        first, last: the numbers of the first and of the last element; where there is none, a number
            behind all others, and -1.
        kept: whether they are in order.
    """

    first: Array
    last: Array
    kept: Flags

    @property
    def parts(self) -> tuple[Array, Array, Flags]:
        """The fields."""
        return self.first, self.last, self.kept

    @staticmethod
    def nothing(size: int) -> FoldOrder:
        """Return that of partial results without elements."""
        return FoldOrder(
            np.full(size, _BEHIND), np.full(size, -1, np.int64), np.ones(size, np.bool_)
        )

    @staticmethod
    def single(number: Array, inside: Flags) -> FoldOrder:
        """Return that of single elements; of none where `inside` is false."""
        first, last = np.where(inside, number, _BEHIND), np.where(inside, number, -1)
        return FoldOrder(first, last, np.ones(number.size, np.bool_))

    def take(self, place: Array) -> FoldOrder:
        return FoldOrder(self.first[place], self.last[place], self.kept[place])

    def put(self, place: Array, other: FoldOrder) -> None:
        for mine, theirs in zip(self.parts, other.parts, strict=True):
            mine[place] = theirs

    def since(self, begin: Array) -> FoldOrder:
        """Return for each what all from `begin` on, in the order of the arrays, combine to.

        Args:
            begin: ascending, for each the place at which what it continues begins.
        """
        if not begin.size:
            return self
        chain = np.cumsum(np.r_[0, begin[1:] != begin[:-1]])
        step = 2 * _BEHIND
        last = np.maximum.accumulate(chain * step + self.last) - chain * step
        first = chain * step - np.maximum.accumulate(chain * step - self.first)
        before = np.r_[np.int64(-1), last[:-1]]
        before[begin == np.arange(begin.size)] = -1
        wrong = np.cumsum(~self.kept | (self.first <= before))
        start = np.r_[0, wrong][begin]
        return FoldOrder(first, last, wrong == start)

    def unless_several(self, parts: FoldOrder, group: Array) -> FoldOrder:
        """Return that of groups whose members are combined in no order.

        Args:
            parts: of the members.
            group: the group of each.
        """
        members = np.bincount(group, weights=parts.last >= 0, minlength=self.kept.size)
        return FoldOrder(self.first, self.last, self.kept & (members <= 1))

    def grouped(self, group: Array, turn: Array) -> FoldOrder:
        """Return for each group what its members combine to, by ascending `turn`."""
        order = np.lexsort((turn, group))
        sorted_group = group[order]
        places = np.arange(order.size)
        fresh = np.r_[True, sorted_group[1:] != sorted_group[:-1]][: order.size]
        begin = np.maximum.accumulate(np.where(fresh, places, 0))
        whole = self.take(order).since(begin)
        ends = np.flatnonzero(np.r_[fresh[1:], True][: order.size])
        return whole.take(ends)
