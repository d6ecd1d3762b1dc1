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


@dataclass(frozen=True, slots=True)
class Spans:
    """Runs of neighbouring threads, combined in their order: what a scan may hold of its group.

    Anything else, one out of order or with a gap, is no run, and never becomes one again.

    Args:
        first: the number of the first thread; equal to `stop` where there is none.
        stop: behind the last one.
    """

    first: Array
    stop: Array

    @staticmethod
    def empty(size: int, members: int) -> Spans:
        del members
        return Spans(np.zeros(size, np.int64), np.zeros(size, np.int64))

    def take(self, place: Array) -> Spans:
        return Spans(self.first[place], self.stop[place])

    def put(self, place: Array, other: Spans) -> None:
        self.first[place], self.stop[place] = other.first, other.stop

    def plus(self, other: Spans) -> Spans:
        """Return this run and then the other one."""
        mine, theirs = self.first == self.stop, other.first == other.stop
        joined = self.stop == other.first
        first = np.where(mine, other.first, np.where(theirs | joined, self.first, _NO_RUN))
        stop = np.where(mine, other.stop, np.where(theirs, self.stop, other.stop))
        return Spans(first, np.where(first == _NO_RUN, _NO_RUN - 1, stop))

    def choose(self, holds: Flags, other: Spans) -> Spans:
        return Spans(
            np.where(holds, self.first, other.first), np.where(holds, self.stop, other.stop)
        )

    def same(self, other: Spans) -> Flags:
        neither = (self.first == self.stop) & (other.first == other.stop)
        result: Flags = neither | ((self.first == other.first) & (self.stop == other.stop))
        return result


_NO_RUN = -1

Multisets: TypeAlias = "Bits | Sums | Spans"
