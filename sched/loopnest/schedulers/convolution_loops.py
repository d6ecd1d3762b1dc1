"""Schedules of convolutions by packed weights: the lanes of vectors are output channels.

    the weights, in the order in which a tile reads them
    for a few rows of an image:      # a core
      the part of the image that their windows reach, with its border
      for a few vectors of channels: for a tile of pixels:
        for element of a window: for input channel: pixels x vectors of sums in registers

A step loads a few vectors of weights, and one element of the image for each pixel of the tile:
windows of any stride are as good as neighbours. Nothing is tested in it, since the part of the
image is as wide as whole tiles ask for.

Source: a register tile of channels and pixels is that of Georganas et al., "Anatomy of
high-performance deep learning convolutions on SIMD architectures" (2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import loopnest as ln
from loopnest.scalar.expr import Coordinate, walk
from loopnest.schedulers.contraction_parts import contraction, steps
from loopnest.schedulers.iteration_space import (
    IterationSpace,
    iteration_space,
    upstream,
)
from loopnest.schedulers.loop_shapes import LabelledAxes, symbolic_labels, with_copies
from loopnest.schedulers.processor_facts import Processor

PARTS = ((2, 1.0), (3, 1.0), (1, 0.9))
"""Vectors of channels in a tile, and their worth: of one each step is bound by what it loads."""
SUMS = 12
"""So many sums a tile needs: a core begins two steps a cycle, and each takes 4 to 5 cycles."""
OTHERS = 2
"""Registers that hold neither sums nor weights."""
HIGH = 16
"""An image of more rows is cut to parts, so that tiles divide its rows."""
WIDE = 32
"""Bytes of vectors that processors load with one element in all lanes. SSE shuffles it into them, a
step more for each two or three that count."""
LEAST = 4
"""So many results are stored as a vector, at least."""
WORTH, WORTH_OF_RAGGED = 0.75, 0.4
"""The least part of a core's work that must count: other schedules are better below it. Their
vectors lie along rows; the second is that of rows that no vector divides."""
TERMS, TERMS_OF_RAGGED = 64, 24
"""So many terms of a sum make the stores of a tile cheap, whose lanes lie apart in memory."""
FEW, FEW_OF_RAGGED = 16, 8
"""Of images of so many pixels others compute several at once, and use weights more often."""


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
        outer: the other dimensions of results.
        folded: the dimensions that are folded.
        window: those of them that are inside of a window.
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
        """The folded dimensions as a tile goes through them: channels innermost.

        Neighbouring windows share elements. Where an unrolled loop over one were innermost, a
        compiler would keep them in the registers of the sums.
        """
        return sorted(self.folded, key=lambda d: d not in self.window)


def _convolution(fusion: ln.Fusion, space: IterationSpace) -> _Convolution | None:
    """Return the parts of a convolution; None for other fusions."""
    parts = contraction(fusion, space)
    if parts is None or not parts.copies_windows or parts.dims("batch"):
        return None
    sides = [(parts.left, parts.dims("rows")), (parts.right, parts.dims("columns"))]
    sides.sort(key=lambda side: any(_met(space, t) for t in steps(side[0])))
    (weights, channels), (windows, shape) = sides
    readers = [t for t in steps(windows) if _met(space, t)]
    if len(readers) != 1 or any(_met(space, t) for t in steps(weights)):
        return None
    definition = readers[0].definition
    assert definition is not None
    met = frozenset([d for own in _met(space, readers[0]) for d in own])
    pixels = tuple(shape[-2:] if len(shape) > 2 or shape[0] in met else shape[-1:])
    if len(definition.reads) != 1 or met.isdisjoint(pixels):
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
        met & space.reduced,
    )


def _met(space: IterationSpace, tensor: ln.TensorView) -> list[frozenset[int]]:
    """Return the dimensions in each index of a read that is made of kept and folded ones."""
    assert tensor.definition is not None
    places = space.axes[tensor]
    indices = [index for read in tensor.definition.reads for index in read.indices]
    found = []
    for index in indices:
        numbers = {places[part.number] for part in walk(index) if isinstance(part, Coordinate)}
        own = frozenset([d for d in numbers if d is not None])
        if own & space.kept and own & space.reduced:
            found.append(own)
    return found


@dataclass(frozen=True, slots=True)
class _Tile:
    """What a core keeps in registers, and how much work of it counts.

    Args:
        lanes: of a vector of channels.
        parts: vectors of channels.
        rows: of pixels.
        columns: of pixels.
        worth: the part of its time in which a core computes results that count, from 0 to 1.
    """

    lanes: int
    parts: int
    rows: int
    columns: int
    worth: float

    def order(self) -> tuple[float, int, int]:
        """Return what the better one of two tiles has more of."""
        return round(self.worth, 2), self.parts * self.rows * self.columns, self.columns


def _filled(extent: int, part: int) -> float:
    """Return which part of the elements of whole parts an axis has.

    >>> _filled(56, 14), _filled(7, 4)
    (1.0, 0.875)
    """
    return extent / (-(-extent // part) * part)


def _tile(channels: int, rows: int, columns: int, lanes: int, registers: int) -> _Tile | None:
    """Return the best tile for so many channels and pixels: one that fills the vectors of a core.

    None where channels are no whole vectors.

    >>> _tile(64, 56, 56, 16, 32)
    _Tile(lanes=16, parts=2, rows=1, columns=14, worth=1.0)
    >>> _tile(64, 8, 8, 8, 16)
    _Tile(lanes=8, parts=2, rows=1, columns=6, worth=...)
    """
    found: list[_Tile] = []
    # Vectors of channels are whole ones, or halves: lanes that do not count would be tested.
    own = [(part, n, share * part / lanes) for part in (lanes, lanes // 2) for n, share in PARTS]
    for part, parts, share in [row for row in own if channels % (row[0] * row[1]) == 0]:
        most = (registers - OTHERS - parts) // parts
        for width in range(1, min(most, columns) + 1):
            for height in range(1, min(most // width, rows) + 1):
                if rows % height and rows > HIGH:
                    continue
                worth = share * _filled(columns, width) * _filled(rows, height)
                worth *= min(1.0, width * height * parts / SUMS)
                found.append(_Tile(part, parts, height, width, worth))
    return max(found, key=_Tile.order, default=None)


def _shape(space: IterationSpace, found: _Convolution) -> tuple[int, int, int] | None:
    """Return the channels, rows and columns of results; None where one is symbolic."""
    channels = space.elements(found.channels)
    rows = space.elements(found.pixels[:-1])
    columns = space.elements(found.pixels[-1:])
    if channels is None or rows is None or columns is None:
        return None
    return channels, rows, columns


def _best_tile(space: IterationSpace, found: _Convolution, processor: Processor) -> _Tile | None:
    shape = _shape(space, found)
    lanes = processor.vector_bytes // found.total.dtype.size
    return None if shape is None else _tile(*shape, lanes, processor.registers)


def accepts(fusion: ln.Fusion, processor: Processor) -> bool:
    """Whether it is a convolution of many channels, and what follows has the shape of its result.

    Images may be of an unknown number. A tile must fill the registers of a core: where channels or
    pixels are few, others are better.
    """
    space = iteration_space(fusion)
    found = None if space is None else _convolution(fusion, space)
    if space is None or found is None:
        return False
    results = space.all_of(found.total) - frozenset(found.folded)
    before = upstream([found.total])
    if any(not space.all_of(t) <= results for t in space.axes if t not in before):
        return False
    if any(frozenset(w.order) != results for w in space.writes):
        return False
    kinds = {t.dtype for t in before}
    if kinds - {found.total.dtype} or found.total.dtype not in (ln.float32, ln.float64):
        return False
    if processor.vector_bytes < WIDE or _bytes_of_an_image(space, found) is None:
        return False
    terms, shape = space.elements(found.terms), _shape(space, found)
    tile = _best_tile(space, found, processor)
    if terms is None or shape is None or tile is None:
        return False
    pixels = shape[1] * shape[2]
    if gcd(shape[2], processor.vector_bytes) < LEAST:
        few, least, worth = FEW_OF_RAGGED, TERMS_OF_RAGGED, WORTH_OF_RAGGED
    else:
        few, least, worth = FEW, TERMS, WORTH
    return pixels > few and terms >= least and tile.worth >= worth


def for_cores(fusion: ln.Fusion, processor: Processor) -> None:
    """Give a core a few rows of results, whose part of the image it copies first."""
    given = _convolution(fusion, with_copies(fusion, keep_inputs=False))
    assert given is not None
    packed = given.weights
    loaded = packed.cache_after()
    # What follows reads sums by channel. Those of a tile are in registers, and then in memory.
    sums = given.total.cache_after()
    if given.image.is_input:
        given.image.cache_after()
    space = iteration_space(fusion)
    assert space is not None
    found = _convolution(fusion, space)
    assert found is not None
    tile = _best_tile(space, found, processor)
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
        for tensor in fusion.outputs if loops.stored >= LEAST else ():
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
        tasks: whether there are parts of images, which are given to the cores.
        page: whether the last tiles below each other are short: of a part of the image no row that
            they ask for may be missing.
        line: whether the last tile of a row is short, likewise.
        stored: so many neighbours along a row are stored at once, where it is not.
    """

    tasks: bool
    page: bool
    line: bool
    stored: int


def _shape_results(
    fusion: ln.Fusion,
    space: IterationSpace,
    found: _Convolution,
    tile: _Tile,
    processor: Processor,
) -> _ResultLoops:
    """Make the axes of results [tasks…, line, band, rows, vector, row, columns, lane, column].

    A task has some rows of an image, all columns, and the bands one after the other. The sums of
    rows as high as a tile are complete before any of them is stored: in vectors along a row, where
    sums are vectors across channels. So many stores of one element each would wait for each other.
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
    symbolic = symbolic_labels(space, groups)
    images = [label for label, _ in groups if label.startswith("image")]
    blocks = ["block"] if part < tiles else []
    line = ["line"] if columns % tile.columns else []
    page = ["page"] if rows % tile.rows else []
    stored = gcd(columns, processor.vector_bytes // found.total.dtype.size)
    tasks: list[str] = []
    for tensor in [t for t in space.definitions if t not in before]:
        axes = LabelledAxes(tensor, space.axes[tensor], groups)
        axes.split("column", tile.columns if line else stored, "columns", "column")
        for label in line:
            axes.split_once("columns", label)
        axes.split("row", tile.rows, "rows", "row")
        for label in page:
            axes.split_once("rows", label)
        for label in blocks:
            axes.split("rows", part, label, "rows")
        axes.split("channel", tile.lanes, "vector", "lane")
        axes.split("vector", tile.parts, "band", "vector")
        tasks = axes.spread([*images, *blocks], symbolic, "task")
        outside = [*tasks, *page, *line, "band", *[name + "s" for name in names[:-1]]]
        axes.order([*outside, "vector", *names[:-1], "columns", "lane", "column"])
        axes.parallelize(dict.fromkeys(tasks or ["band"], ln.ParallelType.cpu_parallel))
    return _ResultLoops(bool(tasks), bool(page), bool(line), stored)


def _tiles_at_once(
    space: IterationSpace, found: _Convolution, tile: _Tile, processor: Processor
) -> tuple[int, int]:
    """Return how many tiles lie below each other, and how many of them a core takes at once.

    As many as their part of the image has place for in its cache. A divisor: where the last ones
    were fewer, each sum would be tested. All, where a single image has fewer parts than there are
    cores and than bands, which are given to the cores then.
    """
    shape = _shape(space, found)
    assert shape is not None
    channels, rows, _ = shape
    tiles = -(-rows // tile.rows)
    size = _bytes_of_an_image(space, found)
    assert size is not None
    fits = processor.cache // 4 * tiles // size
    part = max([n for n in range(1, min(fits, tiles) + 1) if tiles % n == 0], default=1)
    if rows % tile.rows or (2 * part < fits and size <= processor.cache):
        part = tiles
    bands = channels // (tile.parts * tile.lanes)
    if space.elements(found.outer) == 1 and tiles // part < min(processor.cores, bands):
        part = tiles
    return tiles, part


def _bytes_of_an_image(space: IterationSpace, found: _Convolution) -> int | None:
    """Return the bytes that windows reach for one element of the outer dimensions."""
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
    """Let the sums of a tile go through windows, and inside of these through channels."""
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


def _pack(space: IterationSpace, found: _Convolution, packed: ln.TensorView, tile: _Tile) -> None:
    """Lay weights out as tiles read them: [bands, window, input channel, channels of a band].

    A core goes through the weights of a band nearly as they lie.
    """
    terms = [(f"term {d}", [d]) for d in found.folded]
    others = [(f"image {d}", [d]) for d in (*found.outer, *found.pixels)]
    groups = [*others, ("channel", found.channels), *terms]
    axes = LabelledAxes(packed, space.axes[packed], groups)
    axes.split("channel", tile.lanes, "vector", "lane")
    axes.split("vector", tile.parts, "band", "vector")
    axes.order(["band", *[f"term {d}" for d in found.terms], "vector", "lane"])
    packed.memory = ln.GLOBAL
    packed.set_allocation([*range(packed.ndim)])
    axes.order(["band", "vector", *[label for label, _ in terms], "lane"])
    axes.parallelize({"band": ln.ParallelType.cpu_parallel})
    made = [tensor for tensor in steps(packed) if tensor is not packed]
    inside = [tensor for tensor in made if space.all_of(tensor) <= space.all_of(packed)]
    for tensor in inside:
        tensor.compute_at(packed, -1)
    # What is read in parts has other dimensions, loops of its own in each lane.
    if inside == made:
        axes.parallelize({"lane": ln.ParallelType.vectorize})
