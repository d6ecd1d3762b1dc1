"""The picture of a buffer: which thread touches which element, its bank, and conflicts of banks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from loopnest import kir
from loopnest.costs.iteration_classes import Array, Iterations, Uses
from loopnest.costs.launch_counts import BANKS, WORD, AccessCount, Counting
from loopnest.kir.tiles import in_registers
from loopnest.pictures.svg import LINE, Canvas, Svg, width_of
from loopnest.proofs.point_arrays import Points, number
from loopnest.scalar.enums import BLOCK_DIMENSIONS, WARP, Memory, ParallelType, along_dimensions
from loopnest.scalar.expr import (
    ZERO,
    Buffer,
    Const,
    Expr,
    Index,
    LaunchIndex,
    integer,
    substitute,
    variables,
    walk,
)

_CELL_WIDTH, _CELL_HEIGHT, _LEFT = 28, 20, 76
_MOST_ROWS, _MOST_COLUMNS, _WIDE_ROW = 64, 128, 64
_MOST_POINTS = 1 << 20

_WARPS = ("#54aeff", "#4ac26b", "#d4a72c", "#ff8182", "#c297ff", "#ff9bce", "#6fdd8b", "#fd8c73")
"""What fills the elements of a warp, by its number; the same on light and dark pages."""


_BANK_COLORS = tuple([f"hsl({bank * 360 // BANKS} 75% 45%)" for bank in range(BANKS)])


@dataclass(slots=True)
class Touched:
    """The elements that one access touches, in the block and the iterations that are drawn.

    Args:
        access: as the nest writes it.
        writes: whether it stores.
        element: how far each lies from the first one of the buffer, each once, ascending.
        thread: the first that touches it.
        ways: how many words of its bank the request asks for that touches it first.
    """

    access: str
    writes: bool
    element: Array
    thread: Array
    ways: Array

    @property
    def worst(self) -> int:
        """The most words of one bank that a request asks for."""
        return int(self.ways.max(initial=0))


@dataclass(frozen=True, slots=True)
class _FirstTile(Uses):
    """The iterations that touch one tile: those of static loops that its places depend on."""

    inside: frozenset[Expr] = field(default=frozenset())

    def iterations(self, var: Expr, extent: int, whole: bool = False) -> Iterations:
        """Return all iterations of a loop within a tile, the first one of another loop."""
        static = isinstance(var, Index) and isinstance(var.extent, Const)
        count = extent if whole or (static and var in self.inside) else min(extent, 1)
        return Iterations(np.arange(count, dtype=np.int64), np.ones(count, np.int64))


class _TileCounting(Counting):
    """The walk through the first block of a launch that looks at the accesses of one buffer.

    Args:
        program: the launch.
        sizes: the value of each size.
        buffer: the buffer.
    """

    def __init__(self, program: kir.Program, sizes: Mapping[str, int], buffer: Buffer) -> None:
        self.buffer = buffer
        self.touched: dict[int, Touched] = {}
        super().__init__(program, sizes, _MOST_POINTS)

    def uses_of(self, launch: Mapping[ParallelType, int]) -> Uses:
        """Return the uses of a launch, with what the places in the buffer depend on."""
        found = super().uses_of(launch)
        inside: set[Expr] = set()
        for site in self.model.sites:
            for access in self.model.accesses_of(site):
                if access.buffer is self.buffer:
                    inside |= variables(self.names.offset(access))
        return _FirstTile(found.conditions, found.offsets, found.extents, frozenset(inside))

    def request(self, entry: AccessCount, points: Points, place: Array | None) -> None:
        """Note who touches which elements."""
        if entry.buffer != self.buffer.name or place is None:
            return
        ways = _ways(self._warp(points), points.thread, place, entry.width)
        kept = np.flatnonzero(points.block == 0)
        kept = kept[np.argsort(points.time[kept], kind="stable")]
        lanes = np.arange(max(entry.width // entry.element, 1))
        found = (place[kept, None] // entry.element + lanes).ravel()
        threads, asked = [np.repeat(a[kept], lanes.size) for a in (points.thread, ways)]
        before = self.touched.get(id(entry))
        if before is not None:
            found = np.concatenate([before.element, found])
            threads = np.concatenate([before.thread, threads])
            asked = np.concatenate([before.ways, asked])
        element, first = np.unique(found, return_index=True)
        self.touched[id(entry)] = Touched(
            entry.access, entry.writes, element, threads[first], asked[first]
        )


def _ways(warp: Array, thread: Array, place: Array, width: int) -> Array:
    """Return for each access how many words of its first bank its request asks for together."""
    parts = max(width // WORD, 1)
    phase = warp * parts + thread % WARP * parts // WARP
    word = place // WORD
    pairs = np.unique(np.stack([phase, word % BANKS, word]), axis=1)
    keys, counts = np.unique(pairs[:2], axis=1, return_counts=True)
    table = {(int(p), int(b)): int(n) for p, b, n in zip(*keys, counts, strict=True)}
    asked = zip(phase.tolist(), (word % BANKS).tolist(), strict=True)
    return np.array([table[key] for key in asked], np.int64)


def touched_by(
    program: kir.Program, sizes: Mapping[str, int], buffer: Buffer
) -> tuple[Touched, ...]:
    """Return what each access of a buffer touches, stores first.

    Args:
        program: the nest.
        sizes: the value of each size.
        buffer: the buffer.
    """
    found: list[Touched] = []
    for part in program.launches:
        found += _TileCounting(in_registers(part), sizes, buffer).touched.values()
    return tuple(sorted(found, key=lambda touched: not touched.writes))


def draw_tile(program: kir.Program, sizes: Mapping[str, int], buffer: Buffer) -> Svg:
    """Draw the elements of a buffer, once for each access; see `Kernel.picture`."""
    grid = _Elements(buffer, sizes)
    launch = {dim: number(extent, sizes) for dim, extent in program.launches[0].launch}
    text = ", ".join([str(number(extent, sizes)) for extent in buffer.shape])
    canvas = Canvas(f"who touches {buffer.name}")
    canvas.text(12, 20, f"{buffer.name}: {buffer.dtype}[{text}] {buffer.memory.value}", "loud")
    at = ", ".join([f"{name}={size}" for name, size in sizes.items()])
    told = "block 0, first tile; numbers are threads, colours warps"
    canvas.text(12, 20 + LINE, f"{told}; {at}" if at else told, "quiet")
    y = 20 + 2.5 * LINE
    block = tuple([launch.get(dim, 1) for dim in BLOCK_DIMENSIONS])
    drawn: dict[tuple[bytes, ...], str] = {}
    for touched in touched_by(program, sizes, buffer):
        panel = _Panel(canvas, grid, touched, block)
        key = tuple([a.tobytes() for a in (panel.threads, panel.ways, panel.banks)])
        y = panel.draw(y, drawn.setdefault(key, touched.access)) + LINE
    pipeline = pipeline_of(program, buffer, sizes)
    if pipeline is not None:
        draw_stages(canvas, pipeline, y + 4)
    return canvas.svg()


class _Elements:
    """The elements of a buffer as rows and columns: the last axes that fit make a row.

    Args:
        buffer: the buffer.
        sizes: the value of each size.
    """

    def __init__(self, buffer: Buffer, sizes: Mapping[str, int]) -> None:
        self.buffer = buffer
        self.shape = [number(extent, sizes) for extent in buffer.shape]
        self.strides = [number(stride, sizes) for stride in buffer.strides]
        if not self._is_nested():  # declared strides: elements may have several indices, or none
            size = number(buffer.size, sizes)
            self.shape, self.strides = [-(-size // _WIDE_ROW), _WIDE_ROW], [_WIDE_ROW, 1]
        lead = len(self.shape) - 1
        while lead > 1 and math.prod(self.shape[lead - 1 :]) <= _WIDE_ROW:
            lead -= 1
        self.lead, self.within = self.shape[:lead], self.shape[lead:]
        self.columns = math.prod(self.within)

    def _is_nested(self) -> bool:
        """Whether each distance from the first element is that of one index."""
        reach = 1
        for stride, extent in sorted(zip(self.strides, self.shape, strict=True)):
            if extent > 1:
                if stride < reach:
                    return False
                reach = stride * extent
        return True

    def cells(self, element: Array) -> tuple[Array, Array]:
        """Return the rows and columns of elements, given their distances from the first one."""
        index: list[Array] = [np.zeros_like(element)] * len(self.shape)
        rest = element
        for axis in sorted(range(len(self.shape)), key=lambda n: -self.strides[n]):
            if self.shape[axis] > 1:
                index[axis], rest = np.divmod(rest, self.strides[axis])
        for a, b in reversed(self.buffer.swizzles):
            index[b] = index[b] ^ (index[a] & (self.shape[b] - 1))
        row, column = np.zeros_like(element), np.zeros_like(element)
        for extent, along in zip(self.lead, index, strict=False):
            row = row * extent + along
        for extent, along in zip(self.within, index[len(self.lead) :], strict=True):
            column = column * extent + along
        return row, column

    def name(self, row: int) -> str:
        """Return the indices of a row."""
        if len(self.lead) < 2:
            return str(row)
        return ",".join([str(int(n)) for n in np.unravel_index(row, self.lead)])


class _Panel:
    """The elements of a buffer as one access touches them.

    Args:
        canvas: where to draw.
        grid: the elements.
        touched: the access.
        block: the extents of a block.
    """

    def __init__(
        self, canvas: Canvas, grid: _Elements, touched: Touched, block: tuple[int, ...]
    ) -> None:
        self.canvas, self.grid, self.touched, self.block = canvas, grid, touched, block
        self.is_shared = grid.buffer.memory is Memory.SHARED
        rows, columns = grid.cells(touched.element)
        top, left = int(rows.min(initial=1 << 62)), int(columns.min(initial=1 << 62))
        if self.is_shared:
            left = 0
        right = grid.columns if self.is_shared else int(columns.max(initial=0)) + 1
        self.corner = (top, left)
        self.whole = (int(rows.max(initial=0)) + 1 - top, right - left)
        height, width = min(self.whole[0], _MOST_ROWS), min(self.whole[1], _MOST_COLUMNS)
        shown = (rows - top < height) & (columns - left < width) & (columns >= left)
        at = rows[shown] - top, columns[shown] - left
        self.threads, self.ways, self.banks = [
            np.full((max(height, 0), max(width, 0)), -1, np.int64) for _ in range(3)
        ]
        self.threads[at], self.ways[at] = touched.thread[shown], touched.ways[shown]
        size = grid.buffer.dtype.size
        self.banks[at] = touched.element[shown] * size // WORD % BANKS

    def draw(self, y: float, alike: str) -> float:
        """Draw from a height on, unless it looks like another access; return where it ends."""
        touched = self.touched
        head = f"{touched.access} {'stored' if touched.writes else 'read'}"
        if self.is_shared and touched.worst > 1:
            head = f"{head}: conflicts, up to {touched.worst} words of a bank"
        elif self.is_shared:
            head = f"{head}: no conflicts"
        self.canvas.text(12, y, head, "loud")
        if not touched.element.size:
            self.canvas.text(12, y + LINE, "nobody does in these iterations", "quiet")
            return y + LINE
        if alike != touched.access:
            self.canvas.text(12, y + LINE, f"by the same threads as {alike}", "quiet")
            return y + LINE
        top, left = self.corner
        height, width = self.threads.shape
        for column in range(0, width, 4):
            x = _LEFT + column * _CELL_WIDTH
            self.canvas.text(x + 2, y + LINE, str(left + column), "quiet")
        y += LINE + 5
        for row in range(height):
            below = y + row * _CELL_HEIGHT
            self.canvas.text(_LEFT - 6, below + 14, self.grid.name(top + row), "quiet", "end")
            self._row(row, below)
        if self.is_shared:
            self._strips(y)
        y += height * _CELL_HEIGHT
        if self.whole != (height, width):
            rows, columns = self.whole
            self.canvas.text(12, y + LINE, f"the first part of {rows} x {columns}", "quiet")
            y += LINE
        return y + 4

    def _row(self, row: int, y: float) -> None:
        """Draw a row; neighbours that one thread touches are one cell."""
        threads, ways = self.threads[row], self.ways[row]
        edges = np.flatnonzero((np.diff(threads) != 0) | (np.diff(ways) != 0)) + 1
        for start, end in pairwise([0, *edges.tolist(), len(threads)]):
            self._cell(row, start, end, y, int(threads[start]), int(ways[start]))

    def _cell(self, row: int, start: int, end: int, y: float, thread: int, ways: int) -> None:
        x, width = _LEFT + start * _CELL_WIDTH, (end - start) * _CELL_WIDTH - 1
        if thread < 0:
            self.canvas.box(x, y, width, _CELL_HEIGHT - 1, "box", "untouched", round_by=0)
            return
        color = _WARPS[thread // WARP % len(_WARPS)]
        hint = self._hint(row, start, end, thread, ways)
        hot = self.is_shared and ways > 1
        self.canvas.box(x, y, width, _CELL_HEIGHT - 1, "hot" if hot else "cell", hint, color, 0)
        text = str(thread)
        if width_of(text) < width:
            self.canvas.text(x + width / 2, y + 13, text, "ink", "middle")

    def _strips(self, y: float) -> None:
        """Draw a strip in the colour of its bank below each element of rows from a height on."""
        width = _CELL_WIDTH - 1
        for bank in np.unique(self.banks[self.banks >= 0]).tolist():
            parts = []
            for row, column in np.argwhere(self.banks == bank).tolist():
                x, top = _LEFT + column * _CELL_WIDTH, y + (row + 1) * _CELL_HEIGHT - 5
                parts.append(f"M{x} {top:g}h{width}v4h-{width}z")
            self.canvas.path("".join(parts), "", _BANK_COLORS[bank])

    def _hint(self, row: int, start: int, end: int, thread: int, ways: int) -> str:
        along = along_dimensions(np.array([thread]), self.block[0], self.block[1])
        x, y, z = [int(part[0]) for part in along]
        top, left = self.corner
        elements = f"{left + start}" + ("" if end == start + 1 else f"..{left + end - 1}")
        who = f"thread ({x}, {y}, {z}) of warp {thread // WARP}"
        text = f"row {self.grid.name(top + row)}, {elements}: {who}"
        if self.is_shared:
            text = f"{text}, bank {self.banks[row, start]}"
            if ways > 1:
                text = f"{text}, {ways} words of it in one request"
        return text


# A circular buffer in time: which copy goes into which of its stages while which one is read

_TIMES_LEFT, _COLUMN, _ROW = 84, 72, 26
_SHOWN = 8
"""How many iterations are drawn."""


@dataclass(frozen=True, slots=True)
class StageUse:
    """What happens in one stage of a buffer for some iterations of its loop.

    Args:
        text: what happens.
        stage: in which stage.
        start: the iteration in which it begins; below 0 in front of the loop.
        end: the iteration before which it has ended, in which it ends if `copies`.
        copies: whether a copy fills the stage; else the stage is read.
    """

    text: str
    stage: int
    start: int
    end: int
    copies: bool


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a loop turns a circular buffer.

    Args:
        loop: the loop.
        stages: how many stages there are.
        prefetch: how many iterations ahead copies are for.
        in_flight: whether they end later than they begin (cp.async).
    """

    loop: kir.Loop
    stages: int
    prefetch: int
    in_flight: bool

    def spans(self, count: int = _SHOWN) -> Iterator[StageUse]:
        """Yield what happens in the first iterations of the loop."""
        for turn in range(count + self.prefetch):
            start = turn - self.prefetch
            if start < count:
                end = turn if self.in_flight else start + 1
                yield StageUse(f"copy {turn}", turn % self.stages, start, end, True)
            if turn < count:
                yield StageUse(f"read {turn}", turn % self.stages, turn, turn + 1, False)


def pipeline_of(program: kir.Program, buffer: Buffer, sizes: Mapping[str, int]) -> Pipeline | None:
    """Return how a loop turns a buffer; None where none does."""
    if buffer.stages < 2:
        return None
    stride = number(buffer.strides[0], sizes)
    for node, around in kir.walk(program.body):
        if not isinstance(node, kir.Store) or node.storage is not buffer:
            continue
        in_flight = any(isinstance(outer, kir.Issue) for outer in around)
        for loop in [n for n in around if isinstance(n, kir.Loop) and not n.parallel.is_thread]:
            ahead = [_stage(node, loop.var, turn, stride, sizes) for turn in range(buffer.stages)]
            for prefetch in range(buffer.stages):
                wanted = [(turn + prefetch) % buffer.stages for turn in range(buffer.stages)]
                if ahead == wanted:
                    return Pipeline(loop, buffer.stages, prefetch, in_flight)
    return None


def _stage(store: kir.Store, var: Index, turn: int, stride: int, sizes: Mapping[str, int]) -> int:
    """Return the stage of an element that a store reaches in an iteration of a loop."""
    index = store.index[0]
    values: dict[Expr, Expr] = {
        node: integer(turn) if node is var else ZERO
        for node in walk(index)
        if isinstance(node, (Index, LaunchIndex))
    }
    found = number(substitute(index, values), sizes)
    return found // stride if store.flat else found


def draw_stages(canvas: Canvas, pipeline: Pipeline, y: float) -> float:
    """Draw a pipeline from a height on; return where it ends."""
    loop = pipeline.loop
    canvas.text(12, y, f"stages over the iterations of {loop.index}", "loud")
    y += LINE
    first = -pipeline.prefetch
    for turn in range(first, _SHOWN):
        x = _TIMES_LEFT + (turn - first) * _COLUMN
        name = f"{loop.index} = {turn}" if turn >= 0 else "before"
        canvas.text(x + 4, y, name, "quiet")
    for stage in range(pipeline.stages):
        canvas.text(12, y + 22 + 2 * _ROW * stage, f"stage {stage}", "quiet")
    for span in pipeline.spans():
        x = _TIMES_LEFT + (span.start - first) * _COLUMN
        width = (min(span.end, _SHOWN) - span.start) * _COLUMN - 3
        top = y + 8 + 2 * _ROW * span.stage + (0 if span.copies else _ROW)
        kind = "shared" if span.copies else "block"
        hint = f"{span.text}, from iteration {span.start} until {span.end}"
        canvas.box(x, top, width, _ROW - 4, kind, hint)
        canvas.text(x + 5, top + 15, span.text)
    return y + 8 + 2 * _ROW * pipeline.stages


def chrome_trace(name: str, pipeline: Pipeline, count: int = _SHOWN) -> str:
    """Return a pipeline in the format of Chrome's trace viewer, an iteration being 1 ms.

    Source: the "Trace Event Format" of the Chromium project (complete events, "X").
    """
    events = [
        {
            "name": span.text, "cat": "copy" if span.copies else "read", "ph": "X", "pid": name,
            "tid": f"stage {span.stage}", "ts": (span.start + pipeline.prefetch) * 1000,
            "dur": (span.end - span.start) * 1000,
        }
        for span in pipeline.spans(count)
    ]  # fmt: skip
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, indent=1)
