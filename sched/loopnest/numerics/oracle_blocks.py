"""Blocks of a domain: the parts in which the oracle evaluates what is large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from loopnest.numerics.float64_math import Values

BLOCK = 1 << 16
"""How many points are evaluated at a time: their intermediate values stay in the cache."""

CHUNK = 16 * BLOCK
"""How many elements are folded at once; of more, parts are folded first."""

Block: TypeAlias = Mapping[int, slice]
"""The part of a root domain between two coordinates along some axes."""

Region: TypeAlias = "tuple[tuple[int, int] | None, ...]"
"""The same, hashable: the two coordinates along each axis, None where it is whole."""

V = TypeVar("V", contravariant=True)
W = TypeVar("W")


class Pieces(Protocol[W]):
    """A value that is put together from those of blocks."""

    def put(self, where: tuple[slice | Values, ...], piece: W) -> None:
        """Take in what a block gives, or what rises through some places."""

    def whole(self) -> W:
        """Return the value."""


class Arrays:
    """An array that is put together from blocks; the first one tells its type."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        self.array: Values | None = None

    def put(self, where: tuple[slice | Values, ...], piece: Values) -> None:
        """Take in what a block gives, or what rises through some places."""
        if piece.shape == self.shape:
            self.array = piece
            return
        if self.array is None:
            self.array = np.empty(self.shape, piece.dtype)
        self.array[where] = piece

    def whole(self) -> Values:
        """Return the array."""
        assert self.array is not None
        return self.array


def blocks_of(shape: Sequence[int], kept: Sequence[int]) -> Iterator[Block]:
    """Yield the blocks, along axes in `kept`, that `shape` is cut into: outer axes first."""
    return _blocks(shape, kept, BLOCK)


def chunks_of(shape: Sequence[int], block: Block, folded: Sequence[bool]) -> Iterator[Block]:
    """Yield parts of a block, along axes that are folded away, where these are long."""
    sizes = [length(block, place, n) for place, n in enumerate(shape)]
    places = [place for place, folds in enumerate(folded) if folds]
    if int(np.prod([sizes[place] for place in places], dtype=np.int64)) <= CHUNK:
        return iter([block])
    return ({**block, **part} for part in _blocks(sizes, places, BLOCK))


def _blocks(shape: Sequence[int], places: Sequence[int], most: int) -> Iterator[Block]:
    inner, ranges = int(np.prod(shape, dtype=np.int64)), []
    for place in places:
        if inner <= most:
            break
        inner //= max(shape[place], 1)
        rows = max(1, most // max(inner, 1))
        starts = range(0, shape[place], rows)
        ranges.append([(place, slice(n, min(n + rows, shape[place]))) for n in starts])
    return (dict(block) for block in product(*ranges))


def length(block: Block, place: int, extent: int) -> int:
    """Return how many coordinates along an axis of `extent` lie in a block."""
    return block[place].stop - block[place].start if place in block else extent


def halves(half: int, ordered: bool) -> tuple[slice, slice]:
    """Return which elements of an axis are combined with which, each `half` of them."""
    if ordered:
        return slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    return slice(0, half), slice(half, 2 * half)
