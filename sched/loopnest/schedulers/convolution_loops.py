"""Schedules of convolutions by packed weights: the lanes of vectors are output channels.

    the weights, in the order in which a tile reads them
    for a few rows of an image:      # a core
      the part of the image that their windows reach, with its border
      for a few vectors of channels: for a tile of pixels:
        for element of a window: for input channel: pixels x vectors of sums in registers

A step of the innermost loop loads a few vectors of weights and, for each pixel of the tile, one
element of the image into all lanes. So windows of any stride cost what neighbouring ones cost. The
step stands under no predicate: the part of the image that a core copies has all that whole tiles
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from loopnest.facade import language as ln
from loopnest.schedulers.contraction_parts import contraction, ends_in
from loopnest.schedulers.iteration_space import (
    IterationSpace,
    iteration_space,
    steps,
    upstream,
    window_reads,
)
from loopnest.schedulers.loop_shapes import (
    LabelledAxes,
    largest_divisor,
    with_copies,
)
from loopnest.schedulers.processor_facts import Processor

# Register tiles: vectors of channels by pixels, whose sums a core keeps
#
# Source: Georganas et al., "Anatomy of high-performance deep learning convolutions on SIMD
# architectures" (2018).

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


BROADCAST_BYTES = 32
"""The shortest vectors that x86 fills with an element in all lanes by one load (AVX). Shorter ones
(SSE) need a shuffle too, for each two or three products."""
STORED = 4
"""The least number of neighbours of a row that are stored as a vector."""


@dataclass(frozen=True, slots=True)
class _Threshold:
    """From where on these loops are faster than those of `contraction_loops` and `window_loops`.

    The vectors of those lie along the rows of an image, and they use weights for several small
    images at once.

    Args:
        pixels: results of an image for one channel.
        terms: of a sum; the stores of a tile, whose lanes lie apart in memory, come once for all.
        worth: the part of a core's arithmetic that gives results, as in `RegisterTile`.
    """

    pixels: int
    terms: int
    worth: float


WHOLE_ROWS = _Threshold(pixels=17, terms=64, worth=0.75)
RAGGED_ROWS = _Threshold(pixels=9, terms=24, worth=0.4)
"""Of rows that no vector divides: the other loops lose more there."""


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A contraction of windows of an image with weights.

    Args:
        total: the tensor that folds.
        pairs: the tensor that reads windows and weights.
        weights: the operand that all pixels share.
        windows: the other operand.
        image: what windows are read of.
        channels: the dimensions of results that the weights have.
        pixels: the last dimensions of the windows, one or two of them: a tile has neighbours along
            them.
        outer: the other dimensions of results: images, groups.
        folded: the dimensions of the terms of a sum.
        window: those of `folded` that go along a window; the others are input channels.
    """

    total: ln.TensorView
    pairs: ln.TensorView
    weights: ln.TensorView
    windows: ln.TensorView
    image: ln.TensorView
    channels: tuple[int, ...]
    pixels: tuple[int, ...]
    outer: tuple[int, ...]
    folded: tuple[int, ...]
    window: frozenset[int]

    @property
    def terms(self) -> list[int]:
        """The folded dimensions in the order of a tile's loops: input channels innermost.

        Neighbouring windows share elements. If a loop along a window were innermost and unrolled, a
        compiler would keep these elements in registers, which the sums need.
        """
        return sorted(self.folded, key=lambda d: d not in self.window)


def _convolution(fusion: ln.Fusion, space: IterationSpace) -> _Convolution | None:
    """Return the parts of a convolution; None for other fusions."""
    parts = contraction(fusion, space)
    if parts is None or not parts.copies_windows or parts.dims("batch"):
        return None
    sides = [(parts.left, parts.dims("rows")), (parts.right, parts.dims("columns"))]
    sides.sort(key=lambda side: any(window_reads(space, t) for t in steps(side[0])))
    (weights, channels), (windows, shape) = sides
    readers = [t for t in steps(windows) if window_reads(space, t)]
    if len(readers) != 1 or any(window_reads(space, t) for t in steps(weights)):
        return None
    definition = readers[0].definition
    assert definition is not None
    windowed = frozenset([d for _, dims in window_reads(space, readers[0]) for d in dims])
    pixels = tuple(shape[-2:] if len(shape) > 2 or shape[0] in windowed else shape[-1:])
    if len(definition.reads) != 1 or windowed.isdisjoint(pixels):
        return None
    return _Convolution(
        parts.total,
        parts.pairs,
        weights,
        windows,
        definition.reads[0].producer,
        tuple(channels),
        pixels,
        tuple(shape[: -len(pixels)]),
        tuple(parts.dims("folded")),
        windowed & space.reduced,
    )


def _shape(space: IterationSpace, found: _Convolution) -> tuple[int, int, int] | None:
    """Return the channels, rows and columns of results; None where one is symbolic."""
    channels = space.elements(found.channels)
    rows = space.elements(found.pixels[:-1])
    columns = space.elements(found.pixels[-1:])
    if channels is None or rows is None or columns is None:
        return None
    return channels, rows, columns


def _tile_of(
    space: IterationSpace, found: _Convolution, processor: Processor
) -> RegisterTile | None:
    shape = _shape(space, found)
    lanes = processor.vector_bytes // found.total.dtype.size
    return None if shape is None else best_tile(*shape, lanes, processor.registers)


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether it is a convolution of many channels, and what follows has the shape of its result.

    The number of images may be symbolic. Where channels, pixels or terms are too few for a good
    tile, other schedulers take it.
    """
    space = iteration_space(fusion)
    found = None if space is None else _convolution(fusion, space)
    if space is None or found is None:
        return False
    results = space.all_of(found.total) - frozenset(found.folded)
    if not ends_in(space, found.total, results):
        return False
    kinds = {t.dtype for t in upstream([found.total])}
    if kinds - {found.total.dtype} or found.total.dtype not in (ln.float32, ln.float64):
        return False
    if processor.vector_bytes < BROADCAST_BYTES or _bytes_of_an_image(space, found) is None:
        return False
    terms, shape = space.elements(found.terms), _shape(space, found)
    tile = _tile_of(space, found, processor)
    if terms is None or shape is None or tile is None:
        return False
    _, rows, columns = shape
    ragged = _stored_at_once(found, columns, processor) < STORED
    least = RAGGED_ROWS if ragged else WHOLE_ROWS
    return rows * columns >= least.pixels and terms >= least.terms and tile.worth >= least.worth


def _stored_at_once(found: _Convolution, columns: int, processor: Processor) -> int:
    """Return how many neighbours of a row, as a part of a vector, divide it."""
    return gcd(columns, processor.vector_bytes // found.total.dtype.size)


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give a core a few rows of results, whose part of the image it copies first."""
    given = _convolution(fusion, with_copies(fusion, keep_inputs=False))
    assert given is not None
    packed = given.weights
    loaded = packed.cache_after()
    # What follows reads a row of one channel. The sums of a tile are vectors of channels: they are
    # folded in registers, and copied to memory before they are read.
    sums = given.total.cache_after()
    if given.image.is_input:
        given.image.cache_after()
    space = iteration_space(fusion)
    assert space is not None
    found = _convolution(fusion, space)
    assert found is not None
    tile = _tile_of(space, found, processor)
    assert tile is not None
    loops = _shape_results(fusion, space, found, tile, processor)
    _pack(space, found, packed, tile)
    image, windows, pairs, total = found.image, found.windows, found.pairs, found.total
    target, inner = fusion.outputs[-1], len(found.pixels) + 2
    outside = target.ndim - inner - 1
    image.compute_at(target, outside - len(found.pixels))
    sums.compute_at(target, outside)
    columns = outside + len(found.pixels)
    sums.reorder({columns + 1: -1})  # [..., vector, row, columns, column, lane]
    if not loops.line:
        sums.merge(columns).split(columns, tile.columns)
        for tensor in fusion.outputs if loops.stored >= STORED else ():
            tensor.axis(-1).parallelize(ln.ParallelType.vectorize)
    sums.reorder({outside: -2}).reorder({columns - 1: outside})
    total.compute_at(sums, outside + 1)
    _windows_first(space, found, inner)
    for tensor in (sums, total):
        tensor.parallelize(dict.fromkeys(range(-inner, -1), ln.ParallelType.unroll))
    pairs.compute_at(total, total.ndim - 1)
    windows.compute_at(pairs, total.ndim - 2)
    loaded.compute_at(pairs, total.ndim - inner)
    loaded.axis(-2).parallelize(ln.ParallelType.unroll)
    for tensor in (sums, total, pairs, loaded):
        tensor.axis(-1).parallelize(ln.ParallelType.vectorize)
    if not (loops.tasks or loops.page or loops.line):
        image.memory = ln.GLOBAL
        image.axis(1).parallelize(ln.ParallelType.cpu_parallel)
    kept = (packed, loaded, windows, image, sums)
    ln.inline_most([tensor for tensor in fusion.tensors if tensor not in kept])


@dataclass(frozen=True, slots=True)
class _ResultLoops:
    """The loops of results.

    Args:
        tasks: whether the loops over images, or over parts of one, are divided among the cores;
            those over bands of channels are, where there are none.
        page: whether a loop of one iteration stands around the tiles below each other, as the last
            of them is short. A core copies the image inside of it, with all rows that whole tiles
            read.
        line: whether such a loop stands around the tiles of a row.
        stored: how many neighbours of a row are stored at once, where `line` is false.
    """

    tasks: bool
    page: bool
    line: bool
    stored: int


def _shape_results(
    fusion: ln.Fusion,
    space: IterationSpace,
    found: _Convolution,
    tile: RegisterTile,
    processor: Processor,
) -> _ResultLoops:
    """Make the axes of results [tasks…, line, band, rows, vector, row, columns, lane, column].

    A task has some rows of an image, all columns, and the bands of channels one after the other.
    The sums of a row of tiles are complete before results are made of them: these are stored by
    vectors along the row, where sums are vectors of channels, whose lanes would be stored one by
    one.
    """
    before = upstream([found.total])
    shape = _shape(space, found)
    assert shape is not None
    _, rows, columns = shape
    names = ("row", "column")[-len(found.pixels) :]
    groups: list[tuple[str, Sequence[int]]] = [(f"image {d}", [d]) for d in found.outer]
    groups += [(name, [d]) for name, d in zip(names, found.pixels, strict=True)]
    groups.append(("channel", found.channels))
    tiles, part = _tiles_at_once(space, found, tile, processor)
    images = [label for label, _ in groups if label.startswith("image")]
    blocks = ["block"] if part < tiles else []
    line = ["line"] if columns % tile.columns else []
    page = ["page"] if rows % tile.rows else []
    stored = _stored_at_once(found, columns, processor)
    axes = LabelledAxes(space, [t for t in space.definitions if t not in before], groups)
    axes.split("column", tile.columns if line else stored, "columns", "column")
    for label in line:
        axes.split_once("columns", label)
    axes.split("row", tile.rows, "rows", "row")
    for label in page:
        axes.split_once("rows", label)
    for label in blocks:
        axes.split("rows", part, label, "rows")
    axes.split("channel", tile.lanes, "vector", "lane")
    axes.split("vector", tile.vectors, "band", "vector")
    tasks = axes.spread([*images, *blocks], "task")
    outside = [*tasks, *page, *line, "band", *[name + "s" for name in names[:-1]]]
    axes.order([*outside, "vector", *names[:-1], "columns", "lane", "column"])
    axes.parallelize(dict.fromkeys(tasks or ["band"], ln.ParallelType.cpu_parallel))
    return _ResultLoops(bool(tasks), bool(page), bool(line), stored)


def _tiles_at_once(
    space: IterationSpace, found: _Convolution, tile: RegisterTile, processor: Processor
) -> tuple[int, int]:
    """Return how many tiles lie below each other in an image, and how many of them are a task.

    The image under the tiles of a task takes a quarter of a core's cache at most. Tasks are equal,
    or each sum would have a predicate. A task is a whole image where the last tile is short, where
    equal tasks would leave half of that quarter unused and the cache holds an image, and where
    there is one image, which has fewer tasks than there are cores and bands: then these are divided
    among the cores.
    """
    shape = _shape(space, found)
    assert shape is not None
    channels, rows, _ = shape
    tiles = -(-rows // tile.rows)
    size = _bytes_of_an_image(space, found)
    assert size is not None
    fits = processor.cache // 4 * tiles // size
    part = max(largest_divisor(tiles, fits), 1)
    if rows % tile.rows or (2 * part < fits and size <= processor.cache):
        part = tiles
    bands = channels // (tile.vectors * tile.lanes)
    if space.elements(found.outer) == 1 and tiles // part < min(processor.cores, bands):
        part = tiles
    return tiles, part


def _bytes_of_an_image(space: IterationSpace, found: _Convolution) -> int | None:
    """Return the bytes of what the windows of one image read; None where a size is symbolic."""
    size = found.image.dtype.size
    read = [access.places for access in space.reads if access.tensor is found.image]
    places = read[0] if read else space.axes[found.image]
    for place, axis in zip(places, found.image.rfactor_domain, strict=True):
        if place not in found.outer:
            if not isinstance(axis.extent, int):
                return None
            size *= axis.extent
    return size


def _windows_first(space: IterationSpace, found: _Convolution, inner: int) -> None:
    """Bring the folded loops of the sums into the order of `_Convolution.terms`."""
    total = found.total
    leaves = total.leaf_domain
    kept = [i for i, axis in enumerate(leaves) if not axis.is_reduction]
    places = space.axes[total]
    own = [d for d, axis in zip(places, total.root_domain, strict=True) if axis.is_reduction]
    folded = [i for i, axis in enumerate(leaves) if axis.is_reduction]
    order: dict[int | None, int] = {d: place for place, d in enumerate(found.terms)}
    pairs = zip(own, folded, strict=True)
    ordered = [i for _, i in sorted([(order.get(d, -1), i) for d, i in pairs])]
    total.reorder([*kept[:-inner], *ordered, *kept[-inner:]])


def _pack(
    space: IterationSpace, found: _Convolution, packed: ln.TensorView, tile: RegisterTile
) -> None:
    """Lay weights out as tiles read them: [bands, window, input channel, channels of a band]."""
    terms = [(f"term {d}", [d]) for d in found.folded]
    others = [(f"image {d}", [d]) for d in (*found.outer, *found.pixels)]
    groups = [*others, ("channel", found.channels), *terms]
    axes = LabelledAxes(space, [packed], groups)
    axes.split("channel", tile.lanes, "vector", "lane")
    axes.split("vector", tile.vectors, "band", "vector")
    axes.order(["band", *[f"term {d}" for d in found.terms], "vector", "lane"])
    packed.memory = ln.GLOBAL
    packed.set_allocation([*range(packed.ndim)])
    axes.order(["band", "vector", *[label for label, _ in terms], "lane"])
    axes.parallelize({"band": ln.ParallelType.cpu_parallel})
    made = [tensor for tensor in steps(packed) if tensor is not packed]
    inside = [tensor for tensor in made if space.all_of(tensor) <= space.all_of(packed)]
    for tensor in inside:
        tensor.compute_at(packed, -1)
    # Weights that are read in parts have loops of their own, which no vectorized loop may hold.
    if inside == made:
        axes.parallelize({"lane": ln.ParallelType.vectorize})
