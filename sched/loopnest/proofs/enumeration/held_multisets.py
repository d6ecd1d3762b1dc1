"""Multisets of elements of a reduction's root domain: what partial results hold.

A multiset is kept as its size and the sum of a random 64-bit number for each element: two multisets
with equal sums are equal but for a chance of 2^-64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loopnest.proofs.enumeration.fold_orders import FoldOrder
from loopnest.proofs.point_arrays import Array, Flags

Sums: TypeAlias = "npt.NDArray[np.uint64]"


@dataclass(slots=True)
class Held:
    """Multisets of elements of a root domain.

    Args:
        count: their sizes.
        sums: the sums of their elements' numbers.
        valid: whether each is known: everything that went into it was stored before.
        results: the sums of the numbers of the logical elements that their elements fold into.
        order: in which order they were combined.
    """

    count: Array
    sums: Sums
    valid: Flags
    results: Sums
    order: FoldOrder

    def take(self, place: Array) -> Held:
        return Held(
            self.count[place],
            self.sums[place],
            self.valid[place],
            self.results[place],
            self.order.take(place),
        )

    def same(self, other: Held) -> Flags:
        """Return where two are equal."""
        equal: Flags = (self.count == other.count) & (self.sums == other.sums)
        return equal & self.valid & other.valid


def nothing(size: int) -> Held:
    """Return empty multisets."""
    none = np.zeros(size, np.uint64)
    valid = np.ones(size, np.bool_)
    return Held(np.zeros(size, np.int64), none, valid, none.copy(), FoldOrder.nothing(size))


def scanned(part: Held, group: Array, turn: Array, inclusive: bool) -> Held:
    """Return for each what the members of its group before it hold, by `turn`, and its own."""
    size = group.size
    place = np.lexsort((turn, group))
    own, sorted_group = part.take(place), group[place]
    fresh = np.r_[True, sorted_group[1:] != sorted_group[:-1]][:size]
    begin = np.maximum.accumulate(np.where(fresh, np.arange(size), 0))

    def since(values: Any) -> Any:
        total = np.cumsum(values)
        return total - total[begin] + values[begin]

    found = Held(
        since(own.count), since(own.sums), since(~own.valid) == 0, since(own.results),
        own.order.since(begin),
    )  # fmt: skip
    if not inclusive:
        first = nothing(size)
        found = found.take(np.maximum(np.arange(size) - 1, 0))
        for mine, neutral in (
            (found.count, first.count), (found.sums, first.sums), (found.valid, first.valid),
            (found.results, first.results),
            *zip(found.order.parts, first.order.parts, strict=True),
        ):  # fmt: skip
            mine[fresh] = neutral[fresh]
    back = np.empty(size, np.int64)
    back[place] = np.arange(size)
    return found.take(back)


def equal(a: Held, b: Held) -> bool:
    """Whether two are the same, multiset by multiset, whatever is known of them."""
    return all(
        map(
            np.array_equal,
            (a.count, a.sums, a.valid, a.results, *a.order.parts),
            (b.count, b.sums, b.valid, b.results, *b.order.parts),
        )
    )
