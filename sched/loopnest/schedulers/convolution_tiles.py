"""Register tiles of convolutions: vectors of channels by pixels, whose sums a core keeps.

Source: Georganas et al., "Anatomy of high-performance deep learning convolutions on SIMD
architectures" (2018).
"""

from __future__ import annotations

from dataclasses import dataclass

VECTORS = ((2, 1.0), (3, 1.0), (1, 0.9))
"""How many vectors of channels a tile may have, and which part of a core's arithmetic it can use:
with one vector each product of vectors needs a load of its own."""
SUMS = 12
"""Vectors of sums that a tile needs to use all of a core's arithmetic: a core begins two products
of vectors a cycle, each is ready 4 to 5 cycles later, and 12 is the next number that two and three
vectors divide."""
FREE_REGISTERS = 2
"""Registers of a step that hold neither sums nor weights: elements of the image."""
TALL = 16
"""Tiles divide the rows of an image that has more rows than this, so that it can be cut between
tiles where a core's cache does not hold it."""


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """The sums that a core keeps in registers.

    Args:
        lanes: of a vector of channels.
        vectors: of channels.
        rows: of pixels.
        columns: of pixels.
        worth: the part of a core's arithmetic that gives results, from 0 to 1: what lies beyond the
            end of a row or an image gives none.
    """

    lanes: int
    vectors: int
    rows: int
    columns: int
    worth: float

    def order(self) -> tuple[float, int, int]:
        """Return what the better one of two tiles has more of."""
        return round(self.worth, 2), self.vectors * self.rows * self.columns, self.columns


def _filled(extent: int, tile: int) -> float:
    """Return which part of the elements of whole tiles an axis has.

    >>> _filled(56, 14), _filled(7, 4)
    (1.0, 0.875)
    """
    return extent / (-(-extent // tile) * tile)


def best_tile(
    channels: int, rows: int, columns: int, lanes: int, registers: int
) -> RegisterTile | None:
    """Return the tile of the most worth for vectors of so many lanes, and so many registers.

    None where channels are no multiple of half a vector.

    >>> best_tile(64, 56, 56, 16, 32)
    RegisterTile(lanes=16, vectors=2, rows=1, columns=14, worth=1.0)
    >>> best_tile(64, 8, 8, 8, 16)
    RegisterTile(lanes=8, vectors=2, rows=2, columns=3, worth=0.88...)
    """
    found: list[RegisterTile] = []
    # Vectors divide the channels, or each lane would have a predicate.
    sizes = [(own, n, part * own / lanes) for own in (lanes, lanes // 2) for n, part in VECTORS]
    for own, vectors, part in [row for row in sizes if channels % (row[0] * row[1]) == 0]:
        most = (registers - FREE_REGISTERS - vectors) // vectors
        for width in range(1, min(most, columns) + 1):
            for height in range(1, min(most // width, rows) + 1):
                if rows % height and rows > TALL:
                    continue
                worth = part * _filled(columns, width) * _filled(rows, height)
                worth *= min(1.0, width * height * vectors / SUMS)
                found.append(RegisterTile(own, vectors, height, width, worth))
    return max(found, key=RegisterTile.order, default=None)
