"""A multiset of threads for each thread: whose contributions a partial result contains.

`Bits` says exactly who is in once, and who more often; its rows are as long as a block. `Sums`
keeps the size and the sum of a random 64-bit number for each member, which is enough to compare
(two different multisets have equal sums with a chance of 2^-64) and cheap for thousands of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[np.int64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"
Words: TypeAlias = "npt.NDArray[np.uint64]"

_SEED = 20231


@dataclass(frozen=True, slots=True)
class Bits:
    """Multisets as rows of bits.

    Args:
        once: the members.
        twice: the members that are in more than once.
    """

    once: Words
    twice: Words

    @staticmethod
    def empty(size: int, members: int) -> Bits:
        words = -(-members // 64)
        return Bits(np.zeros((size, words), np.uint64), np.zeros((size, words), np.uint64))

    @staticmethod
    def singles(members: int) -> Bits:
        """Return the multisets that hold one thread each, for `members` threads."""
        result = Bits.empty(members, members)
        thread = np.arange(members)
        bit = np.left_shift(np.uint64(1), (thread % 64).astype(np.uint64))
        result.once[thread, thread // 64] = bit
        return result

    def take(self, place: Array) -> Bits:
        return Bits(self.once[place], self.twice[place])

    def put(self, place: Array, other: Bits) -> None:
        self.once[place], self.twice[place] = other.once, other.twice

    def plus(self, other: Bits) -> Bits:
        both = self.once & other.once
        return Bits(self.once | other.once, self.twice | other.twice | both)

    def choose(self, holds: Flags, other: Bits) -> Bits:
        rows = holds[:, None]
        return Bits(np.where(rows, self.once, other.once), np.where(rows, self.twice, other.twice))

    def same(self, other: Bits) -> Flags:
        equal = (self.once == other.once) & (self.twice == other.twice)
        result: Flags = equal.all(axis=1)
        return result

    def gathered(self, group: Array) -> Bits:
        """Return, for each row, the union of the rows of its group; of disjoint ones."""
        once = np.zeros((int(group.max(initial=-1)) + 1, self.once.shape[1]), np.uint64)
        np.bitwise_or.at(once, group, self.once)
        return Bits(once[group], np.zeros_like(self.twice))


@dataclass(frozen=True, slots=True)
class Sums:
    """Multisets as their sizes and the sums of their members' numbers."""

    count: Array
    sums: Words

    @staticmethod
    def empty(size: int, members: int) -> Sums:
        del members
        return Sums(np.zeros(size, np.int64), np.zeros(size, np.uint64))

    @staticmethod
    def singles(members: int) -> Sums:
        """Return the multisets that hold one thread each, for `members` threads."""
        draw = np.random.Generator(np.random.PCG64(_SEED)).integers(0, 1 << 64, members, np.uint64)
        return Sums(np.ones(members, np.int64), draw)

    def take(self, place: Array) -> Sums:
        return Sums(self.count[place], self.sums[place])

    def put(self, place: Array, other: Sums) -> None:
        self.count[place], self.sums[place] = other.count, other.sums

    def plus(self, other: Sums) -> Sums:
        return Sums(self.count + other.count, self.sums + other.sums)

    def choose(self, holds: Flags, other: Sums) -> Sums:
        return Sums(
            np.where(holds, self.count, other.count), np.where(holds, self.sums, other.sums)
        )

    def same(self, other: Sums) -> Flags:
        result: Flags = (self.count == other.count) & (self.sums == other.sums)
        return result

    def gathered(self, group: Array) -> Sums:
        """Return, for each row, the sum of the rows of its group."""
        size = int(group.max(initial=-1)) + 1
        count, sums = np.zeros(size, np.int64), np.zeros(size, np.uint64)
        np.add.at(count, group, self.count)
        np.add.at(sums, group, self.sums)
        return Sums(count[group], sums[group])


Multisets: TypeAlias = "Bits | Sums"
